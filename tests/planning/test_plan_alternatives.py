"""Alternatives to a plan: which are tried, near which layouts, and what is said of the best."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

import steptime as st
from steptime.hardware.number_formats import number_format
from steptime.hardware.system import Rent
from steptime.models.model import with_kv
from steptime.physics.layout import Layout
from steptime.planning import plan_alternatives
from steptime.planning.plan_alternatives import (
    Choice,
    _alternative,
    _near,
    _nearby,
    alternative_sentence,
    best_alternative,
    best_drafting,
    by_saving,
    evaluate_alternative,
    list_choices,
)
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate
from steptime.planning.plan_result import Alternative
from steptime.planning.refinement import Peak
from steptime.workload.workload import Speculation
from tests.conftest import each, experts, machine, matrix, model_of
from tests.planning.cases import MODEL, NODES, case, made

BOTH = (AGGREGATED, DISAGGREGATED)
SMALL_CACHE = replace(case(), model=with_kv(MODEL, number_format("fp8")))
ONE = Candidate(mode=AGGREGATED, layout=Layout(tp=2), batch=8, chunk=500)


def other(saving: float, **more) -> Alternative:
    figures = {"usd_per_million_output_tokens": 1.0, "tokens_per_second_per_chip": 1.0, "layout_text": ""}
    return Alternative(**{"option": "--kv fp8", "words": "KV cache in fp8", "saving": saving} | figures | more)


@each("saving, named", [(0.004, False), (0.005, False), (0.0051, True)])
def test_the_best_alternative_saves_more_than_half_a_percent(saving, named):
    assert (best_alternative(made(alternatives=(other(saving), other(0.001)))) is not None) == named
    assert best_alternative(made()) is None


def test_a_sentence_names_what_the_best_alternative_saves():
    """A fifth less cost, or 1 / 0.8 as much output."""
    rented = made(alternatives=(other(0.2, caveat="if it works"),), usd_per_million_output_tokens=2.0)
    assert (
        alternative_sentence(rented) == " The best alternative is KV cache in fp8 (--kv fp8): about 20 % cheaper, if it works."
    )
    free = made(alternatives=(other(0.2, option=""),))
    assert alternative_sentence(free) == " The best alternative is KV cache in fp8: about 25 % more output per chip."
    assert alternative_sentence(made()) == ""


def test_alternatives_come_by_their_saving():
    given = [other(0.1), None, other(0.3), other(-0.2)]
    assert [one.saving for one in by_saving(given)] == [0.3, 0.1, -0.2]


def with_peaks(*formats: str):
    system = machine(size=4)
    return replace(system, chip=replace(system.chip, peak=dict.fromkeys(formats, 1e15)))


WIDE = model_of(matrix(weights=1e9, stored="bf16"), layers=2)
NEARLY = model_of(matrix(weights=1e9), matrix(name="head", weights=2e7, stored="bf16"), layers=2)
MIXED = model_of(matrix(weights=1e8, stored="fp8"), experts(weights=1e8), layers=2)


@each(
    "model, formats, options",
    [
        (WIDE, ("bf16", "fp8"), ["--weights fp8"]),
        (WIDE, ("bf16", "int8"), ["--weights int8"]),
        (WIDE, ("bf16", "fp8", "int8"), ["--weights fp8"]),
        (WIDE, ("bf16",), []),
        (WIDE, ("bf16", "fp8", "fp4"), ["--weights fp8", "--weights nvfp4"]),
        (MIXED, ("bf16", "fp8", "fp4"), ["--experts nvfp4"]),
        (MIXED, ("bf16", "fp8"), []),
        (NEARLY, ("bf16", "fp8"), []),  # 1.02 of 1.04 GB a layer
    ],
)
def test_formats_that_the_chip_computes_in_and_that_are_smaller_are_tried(model, formats, options):
    given = replace(case(), model=model, system=with_peaks(*formats))
    found = [choice.option for choice in list_choices(given, BOTH)]
    assert all(c.words == c.option.replace("--", "").replace(" ", " in ") for c in list_choices(given, BOTH)[: len(options)])
    assert [option for option in found if not option.startswith(("--chips", "--kv"))] == options


def test_modes_and_chips_that_were_not_planned_are_tried():
    found = {choice.option: choice for choice in list_choices(SMALL_CACHE, (AGGREGATED,))}
    assert set(found) == {"--chips 8", "--mode disaggregated"}
    assert found["--chips 8"].case.chips == 8
    assert (found["--chips 8"].words, found["--chips 8"].modes) == ("twice the chips", ())
    assert found["--mode disaggregated"].modes == (DISAGGREGATED,)
    assert found["--mode disaggregated"].words == "separate pools for prefill and decode"
    assert "--mode aggregated" in [choice.option for choice in list_choices(SMALL_CACHE, (DISAGGREGATED,))]
    up, out = NODES.domains
    box = replace(SMALL_CACHE, system=replace(NODES, domains=(up, replace(out, size=7))))
    assert list_choices(box, BOTH) == []
    assert [one.option for one in list_choices(replace(box, chips=3), BOTH)] == ["--chips 6"]


def test_a_cache_of_two_bytes_is_tried_in_one():
    wide = replace(case(), model=st.load_model("llama-3.1-8b"), system=with_peaks("bf16"))
    (kv,) = (choice for choice in list_choices(wide, BOTH) if choice.option == "--kv fp8")
    assert (kv.words, kv.case.model.kv_format) == ("KV cache in fp8", "fp8")
    assert not any(choice.option == "--kv fp8" for choice in list_choices(kv.case, BOTH))


def test_layouts_are_near_within_a_factor_on_each_axis():
    layouts = [Layout(tp=tp, pp=pp, dp=dp, ep=dp) for tp in (1, 2, 4, 8, 16) for pp in (1, 2) for dp in (1, 4, 8)]
    about = [Layout(tp=4, dp=2, ep=2)]
    assert _near(layouts, about, 4) == [one for one in layouts if one.tp in (1, 2, 4, 8, 16) and one.dp in (1, 4, 8)]
    assert _near(layouts, about, 2) == [one for one in layouts if one.tp in (2, 4, 8) and one.dp in (1, 4)]
    near_either = _near(layouts, [Layout(tp=1), Layout(tp=16, pp=2)], 1)
    assert near_either == [one for one in layouts if one in (Layout(tp=1), Layout(tp=16, pp=2))]


@pytest.mark.parametrize(("count", "modes", "most"), [(160, BOTH, 4), (161, (AGGREGATED,), 2)])
def test_of_too_many_near_layouts_the_nearer_are_searched_in_one_mode(monkeypatch, count, modes, most):
    every = [Layout(replicas=n + 1) for n in range(count - 2)] + [Layout(tp=4), Layout(tp=8), Layout(tp=16)]
    monkeypatch.setattr(plan_alternatives, "lawful", lambda _: every)
    found, near = _nearby(case(), ONE, BOTH)
    assert found == modes
    assert near == [one for one in every if one.tp <= 2 * most]


@each(
    "option, caveat",
    [
        ("--weights fp8", "if the model stays accurate enough"),
        ("--experts nvfp4", "if the model stays accurate enough"),
        ("--kv fp8", "if the model stays accurate enough"),
        ("--drafts 2", "if each step yields 2.35 tokens (measured)"),
        ("--chips 8", ""),
    ],
)
def test_an_alternative_saves_by_its_rate_per_chip(option, caveat):
    """6 requests/s of 201 tokens on four chips, where the plan serves 1.2 per chip: a fifth less."""
    speculation = Speculation(drafts=2, acceptance=2.345, source="measured")
    choice = Choice(option=option, words="w", case=replace(case(), speculation=speculation))
    found = _alternative(choice, 1.2, Peak(6.0, 0.01, ONE))
    assert (found.option, found.words, found.caveat, found.layout_text) == (option, "w", caveat, ONE.text)
    assert found.saving == pytest.approx(0.2)
    assert found.tokens_per_second_per_chip == pytest.approx(1.5 * 201)
    assert found.usd_per_million_output_tokens == pytest.approx(2 / 3600 / (1.5 * 201) * 1e6)
    free = replace(choice, case=replace(choice.case, system=replace(NODES, rent=Rent())))
    assert math.isnan(_alternative(free, 1.2, Peak(6.0, 0.01, ONE)).usd_per_million_output_tokens)
    assert _alternative(choice, 1.2, None) is None


DRAFTS = (Speculation(), *(Speculation(drafts=n, acceptance=1 + 0.5 * n, source="measured") for n in (1, 2, 3)))


@pytest.fixture
def drafted(monkeypatch):
    """Rates of a search by the number of speculative tokens, and what was searched."""
    rates, searched = {0: 4.0, 1: 5.0, 2: 6.0, 3: 6.02}, []

    def best(given, modes, layouts):
        searched.append((given.speculation.drafts, modes, len(layouts)))
        rate = rates[given.speculation.drafts]
        return None if rate is None else Peak(rate, 0.01, ONE)

    monkeypatch.setattr(plan_alternatives, "_best", best)
    monkeypatch.setattr(plan_alternatives, "known_draftings", lambda _: DRAFTS)
    monkeypatch.setattr(plan_alternatives, "_nearby", lambda *_: ((AGGREGATED,), [Layout()]))
    monkeypatch.setattr(
        plan_alternatives,
        "evaluate_state",
        lambda given, one, *size: SimpleNamespace(
            rate=rates[given.speculation.drafts] if size == (one.batch, one.chunk) else 0.0
        ),
    )
    monkeypatch.setattr(plan_alternatives, "served_by", lambda *_: 4.0)
    return rates, searched


def test_of_equal_numbers_of_speculative_tokens_the_fewest_are_chosen(drafted):
    rates, searched = drafted
    assert best_drafting(case(), BOTH, [Layout()] * 5).drafts == 2
    assert searched == [(0, BOTH, 5), *((n, (AGGREGATED,), 1) for n in (1, 2, 3))]
    rates[3] = 6.1
    assert best_drafting(case(), BOTH, []).drafts == 3
    rates.update({1: None, 2: 4.01, 3: None})
    assert best_drafting(case(), BOTH, []).drafts == 0


def test_without_a_plan_each_number_of_speculative_tokens_is_searched_in_all_layouts(drafted):
    rates, searched = drafted
    rates[0] = None
    assert best_drafting(case(), BOTH, [Layout()] * 5).drafts == 2
    assert searched == [(n, BOTH, 5) for n in range(4)]
    rates.update(dict.fromkeys(rates))
    assert best_drafting(case(), BOTH, []) == Speculation()


def test_speculative_tokens_are_tried_in_the_number_that_serves_most(drafted):
    assert [one.option for one in list_choices(SMALL_CACHE, BOTH)] == ["--chips 8", "--drafts"]
    (drafts,) = (one for one in list_choices(SMALL_CACHE, BOTH) if one.option == "--drafts")
    found = evaluate_alternative(case(), ONE, BOTH, drafts)
    assert (found.option, found.saving) == ("--drafts 3", pytest.approx(1 - 4.0 / 6.02))
    assert found.words == "3 speculative tokens per step from the model's own MTP layers"
    drafted[0].update({2: 1.0, 3: 1.0})
    assert evaluate_alternative(case(), ONE, BOTH, drafts).words.startswith("1 speculative token per step")
    assert list_choices(replace(SMALL_CACHE, speculation=DRAFTS[1]), BOTH)[-1].option == "--chips 8"


def test_one_candidate_of_the_near_layouts_is_refined(monkeypatch):
    """Of the first hundred, without those beyond the limits that only a front needs."""
    asked = {}

    def search(given, modes, layouts):
        asked.update(front=given.front, modes=modes)
        return ["tables"] * len(layouts)

    def ranked(_given, tables, limit):
        asked.update(tables=len(tables), limit=limit)
        return [ONE] * len(tables)

    def best(_given, candidates, finalists):
        asked.update(finalists=finalists)
        return [Peak(3.0, 0.01, one) for one in candidates]

    for function in (search, ranked, best):
        monkeypatch.setattr(plan_alternatives, function.__name__, function)
    assert plan_alternatives._best(case(), BOTH, [Layout(), Layout(tp=2)]).rate == 3.0
    assert asked == {"front": False, "modes": BOTH, "tables": 2, "limit": 100, "finalists": 1}
    small = replace(case(), system=machine(size=4, capacity=9e9))
    assert plan_alternatives._best(small, BOTH, [Layout()]) is None
    assert plan_alternatives._best(small, BOTH, [Layout(), Layout(tp=2)]).rate == 3.0
    assert asked["tables"] == 1
