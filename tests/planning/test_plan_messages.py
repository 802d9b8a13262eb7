"""Sentences of hand-made plans, problems and tables: no search."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.hardware.system import Rent
from steptime.physics.engine import IDEAL
from steptime.physics.layout import stacked
from steptime.planning import plan_messages
from steptime.planning.plan_messages import STOPS, list_warnings, unreachable, why
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Pinned
from tests.conftest import each, engine, machine
from tests.planning.cases import MODEL, NODES, case, made

NO_RENT = Rent(low=math.nan, typical=math.nan, high=math.nan, grade="guess", note="nobody rents it")
FITTED = engine(memory_efficiency=0.9, fit={"vendors": ["NVIDIA"], "names": [], "interval": {}})


PROBLEM = case(slo=st.Slo(tpot=0.02, ttft=1.5))
SURE = replace(PROBLEM, sure=0.95, engine=FITTED)
FREE = replace(PROBLEM, system=replace(NODES, rent=NO_RENT))


@each(
    "given, plan, says",
    [
        (PROBLEM, made(), "a larger batch would make each token slower than 20.0 ms."),
        (PROBLEM, made(("first token",)), "a larger batch would delay the first token beyond 1.50 s."),
        (
            PROBLEM,
            made(("first token",), mode=DISAGGREGATED),
            "queueing in the prefill pool would delay the first token",
        ),
        (PROBLEM, made(("speed", "memory")), f"slower than 20.0 ms, and {STOPS['memory']}."),
        (PROBLEM, made(("prompt queue",)), STOPS["prompt queue"]),
        (PROBLEM, made(("prefill rate",)), "already at 90 % utilization"),
        (PROBLEM, made(("transfer rate",)), STOPS["transfer rate"]),
        (PROBLEM, made(("saturation",)), "would cost the same per token, since"),
        (FREE, made(("saturation",)), "would bring no more output, since"),
        (SURE, made(), "would reach 50.0 tok/s per user with less than 95 % probability."),
        (SURE, made(("first token",)), "would give the first token within 1.50 s with less than 95 % probability."),
        (
            SURE,
            made(("first token",), mode=DISAGGREGATED),
            "leave less than 95 % probability of a first token within 1.50",
        ),
        (replace(SURE, engine=IDEAL), made(), "slower than 20.0 ms."),  # an engine without ranges
    ],
)
def test_why_names_the_limits_that_bind(given, plan, says):
    text = why(given, plan)
    assert text.startswith(f"What keeps it from {'serving more' if given is FREE else 'being cheaper'}: ")
    assert says in text


def test_why_tells_where_the_time_of_a_step_goes():
    """The two longest parts, each above a twentieth."""
    assert why(PROBLEM, made()).endswith(" A step spends 60 % of its time on reading weights and 35 % on reading the KV cache.")
    assert why(PROBLEM, made(role="decode")).endswith(
        " A decode step spends 60 % of its time on reading weights and 35 % on reading the KV cache."
    )
    small = {"weights": 0.05, "scale-up": 0.95}
    assert why(PROBLEM, made(resources=small)).endswith(" A step spends 95 % of its time on the scale-up network.")
    assert why(PROBLEM, made(resources={"weights": 0.1, "made": 0.9})).endswith(
        "90 % of its time on made and 10 % on reading weights."
    )


@each(
    "elasticities, better, cheaper, served",
    [
        # 1 - 1.1^-0.5 = 4.65 %, and 1 / 0.9535 - 1 = 4.88 % more requests.
        ({"hbm_bandwidth": -0.5, "arithmetic": -0.2, "rent": 1.0}, "10 % more HBM bandwidth", "4.7 % cheaper.", "4.9 % more"),
        ({"kv_bytes": 0.5, "arithmetic": -0.4}, "10 % fewer KV bytes per token", "4.7 % cheaper.", "4.9 % more"),
        (
            {"hbm_capacity": -2.0},
            "10 % more HBM capacity",
            "17.4 % cheaper, because larger batches then fit.",
            "21.0 % more",
        ),
        (
            {"hbm_bandwidth": -2.0},
            "10 % more HBM bandwidth",
            "17.4 % cheaper: 9.1 % by faster steps, 8.3 % because",
            "21.0 % more",
        ),
        ({"arithmetic": -1.0}, "10 % more FLOP/s", "9.1 % cheaper.", "10.0 % more"),
    ],
)
def test_why_names_the_figure_that_would_help_most(elasticities, better, cheaper, served):
    text = why(PROBLEM, made(elasticities=elasticities))
    assert f" {better} would make it {cheaper}" in text
    assert f" {better} would serve {served} requests per second" in why(FREE, made(elasticities=elasticities))
    assert text.endswith(("then meet the limits.", cheaper))
    # Without a rent: 10 % by a step that is 10 % faster, and the rest of 21 % by larger batches.
    if "faster steps" in cheaper:
        parts = "21.0 % more requests per second: 10.0 % by faster steps, 11.0 % because"
        assert parts in why(FREE, made(elasticities=elasticities))


def test_why_says_where_no_figure_helps():
    text = why(PROBLEM, made(elasticities={"arithmetic": -0.001, "rent": 1.0}))
    assert text.endswith("No single hardware figure, 10 % better, would lower the cost.")
    assert why(FREE, made(elasticities={"arithmetic": 0.0})).endswith("would raise the output.")


# --- warnings --------------------------------------------------------------------------------------------------------------


def test_a_plan_warns_of_its_context_its_rent_and_the_notes_of_its_model():
    noted = replace(PROBLEM, model=replace(MODEL, max_context=1200, notes=("a note",)))
    assert list_warnings(noted) == (
        "requests of 1,201 tokens exceed the model's context of 1,200",
        "the rent of 2.00 USD/h per chip is a guess figure (kind not stated); give yours in USD per chip-hour, such as "
        "--rent 2.10",
        "a note",
    )
    assert len(list_warnings(replace(noted, model=replace(MODEL, max_context=1201)))) == 1


@each(
    "rent, says",
    [
        (Rent(low=1.0, typical=1.0, high=1.0, grade="list"), None),
        (Rent(low=1.0, typical=1.0, high=1.0, grade="recalled"), "is a recalled figure"),
        (NO_RENT, "nobody rents it"),
    ],
)
def test_a_plan_warns_of_a_rent_that_nobody_states(rent, says):
    found = list_warnings(replace(PROBLEM, system=replace(NODES, rent=rent)))
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


@each("vendor, says", [("", "this vendor"), ("AMD", "AMD"), ("NVIDIA", None)])
def test_a_plan_warns_of_chips_whose_vendor_was_never_measured(vendor, says):
    on = machine(size=4, vendor=vendor)
    found = list_warnings(replace(PROBLEM, system=replace(on, rent=replace(on.rent, grade="list")), engine=FITTED))
    assert len(found) == (says is not None)
    assert says is None or f"no measured run on chips of {says}: times are a guess" in found[0]
    assert list_warnings(replace(PROBLEM, system=replace(on, rent=replace(on.rent, grade="list")), engine=IDEAL)) == ()


@each(
    "share, dates",
    [(0.7, "software of 2024-01 to 2024-06:"), (0.8, "software of 2025-01:"), (0.75, "unknown date (your own share):")],
)
def test_a_plan_warns_of_times_that_rest_on_one_model(share, dates):
    periods = (
        SimpleNamespace(share=0.7, first="2024-01", last="2024-06"),
        SimpleNamespace(share=0.8, first="2025-01", last="2025-01"),
    )
    on = machine(size=4, vendor="NVIDIA", reached={"software": share})
    on = replace(on, chip=replace(on.chip, software=periods), rent=replace(on.rent, grade="list"))
    (text,) = list_warnings(replace(PROBLEM, system=on, engine=FITTED))
    assert text.startswith("times on toy rest only on runs of DeepSeek-R1, with ")
    assert dates in text
    assert list_warnings(replace(PROBLEM, system=on, engine=IDEAL)) == ()


# --- limits out of reach ---------------------------------------------------------------------------------------------------


def table(*rows: tuple[float, float, float, float]) -> SimpleNamespace:
    """A table of (TPOT, TTFT, used memory, rate)."""
    tpot, ttft, memory, rate = (np.array(column) for column in zip(*rows, strict=True))
    return SimpleNamespace(tpot=tpot, ttft=ttft, memory=memory, rate=rate)


# Fast and late, slow and early, and three that are no answer: too large, without a rate, both.
ROWS = table((0.01, 3.0, 0.9, 5.0), (0.03, 0.5, 1.0, 9.0), (0.001, 0.1, 1.1, 9.0), (0.002, 0.1, 0.5, 0.0))


@pytest.fixture
def searched(monkeypatch):
    """Search hand-made tables instead of layouts: those of each mode. A chunk that is early is another one than the fastest."""
    tables = {AGGREGATED: ROWS, DISAGGREGATED: table((0.02, 9.0, 0.5, 1.0))}

    def search(given, modes, layouts):
        tables.setdefault("limits", []).append(given.slo.ttft)
        return [tables[mode] for mode in modes]

    monkeypatch.setattr(plan_messages, "search", search)
    return tables


BOTH = (AGGREGATED, DISAGGREGATED)


def missed(tpot: float, ttft: float, modes=BOTH) -> str:
    return unreachable(case(slo=st.Slo(tpot=tpot, ttft=ttft)), modes, [])


def test_a_speed_out_of_reach_is_told_with_the_fastest(searched):
    text = missed(0.005, math.inf)
    assert text.startswith("no layout on 4 chips reaches 200 tok/s per user; the fastest gives 100 tok/s. Use more")
    late = ", and the earliest first token comes after 500 ms, not 50.0 ms"
    assert f"the fastest gives 100 tok/s{late}. Use more" in missed(0.005, 0.05)
    assert "the fastest gives 100 tok/s. Use more" in missed(0.005, 1.0)


def test_requests_beyond_the_context_are_named_before_a_limit(searched):
    short = replace(case().model, max_context=1000.0)
    text = unreachable(replace(case(slo=st.Slo(tpot=0.005)), model=short), BOTH, [])
    assert "tokens exceed the model's context of 1,000" in text.partition(". ")[0]
    assert "Besides, no layout on 4 chips reaches 200 tok/s" in text


def test_a_first_token_out_of_reach_is_told_with_the_earliest(searched):
    text = missed(0.01, 0.3)
    assert text.startswith("no layout on 4 chips gives a first token within 300 ms; the earliest comes after 500 ms. Use")
    assert searched.pop("limits")[:2] == [math.inf, 0.3]
    assert missed(0.01, 0.3) == missed(math.inf, 0.3)
    searched[AGGREGATED] = table((0.01, 3.0, 0.9, 5.0), (0.03, 0.5, 1.0, 9.0), (0.001, 0.1, 1.1, 9.0))
    assert "the earliest comes after 500 ms." in missed(0.01, 0.3)
    assert "the earliest comes after 9.00 s." in missed(0.03, 0.3, (DISAGGREGATED,))


def test_the_earliest_first_token_is_at_the_percentile_of_the_limit(searched):
    """A mean of 0.4 s stands for 1 s at p90, so that the earliest mean of 0.5 s is 1.25 s."""
    given = replace(case(slo=st.Slo(ttft=0.4)), limits=st.Slo(ttft=1.0), percentile="p90")
    assert "within 1.00 s at p90; the earliest comes after 1.25 s." in unreachable(given, BOTH, [])
    # Closed forms meet these limits, and simulations did not.
    given = replace(case(slo=st.Slo(ttft=0.6)), limits=st.Slo(ttft=1.5), percentile="p90")
    assert unreachable(given, BOTH, []).startswith("no layout meets the limits at p90")


def test_limits_that_can_only_be_met_apart_are_told_with_what_both_cost(searched):
    text = missed(0.01, 0.5)
    assert text.startswith(
        "each limit can be met, but not both: at 100 tok/s per user the earliest first token comes after 3.00 s,"
    )
    assert "not 500 ms. Use more chips" in text


def test_weights_that_leave_no_room_are_told(searched):
    searched[AGGREGATED] = table((0.01, 3.0, 1.1, 5.0), (0.01, 3.0, 1.0, 0.0))
    searched[DISAGGREGATED] = table((0.01, 3.0, 1.1, 5.0))
    text = missed(0.01, 0.5)
    assert text == "the 10.0 GB of weights fit 4 chips, but leave no room for a request of 1,201 tokens; use more chips"
    assert missed(0.01, 0.5, (DISAGGREGATED,)).startswith("separate pools store the 10.0 GB of weights twice, and 4 chips are")
    searched[AGGREGATED] = table((0.01, 3.0, 1.1, 5.0))
    assert missed(0.01, 0.5, (DISAGGREGATED,)) == text


@pytest.mark.parametrize("likely", [True, False])
def test_a_probability_out_of_reach_is_told_apart_from_a_limit_out_of_reach(searched, monkeypatch, likely):
    asked = []

    def ranked(given, tables, limit):
        asked.append((given.sure, given.aim, limit))
        return [object()] * likely

    monkeypatch.setattr(plan_messages, "ranked", ranked)
    given = replace(case(slo=st.Slo(tpot=0.005)), sure=0.9, aim=(0.9, 0.8))
    text = unreachable(given, BOTH, [])
    assert asked == [(None, (1.0, 1.0), 1)]
    assert text.startswith("no layout meets the limits with this probability" if likely else "no layout on 4 chips reaches 200")


@pytest.mark.parametrize(
    ("least", "domain", "tries"),
    [
        (17, 4, [20, 24, 28, 32, 36, 40]),  # whole hosts of four: an eighth of them at a time, then a power of two
        (5, 8, [5, 6, 7, 8, 16]),
        (1000, 8, [1000, 1024, 1120, 1240, 1360, 1480, 1600, 1720, 1840, 1960, 2000]),
        (33, 32, [40, 48, 56, 64, 72, 80]),
        (3000, 8, [3000, 3368, 3736, 4096]),  # 375 hosts, 46 of them at a time
    ],
)
def test_chips_that_layouts_divide_well_are_tried(monkeypatch, least, domain, tries):
    tried = []
    monkeypatch.setattr(plan_messages, "_holds_request", lambda given: tried.append(given.chips))
    given = replace(SURE, chips=1, system=machine(size=domain))
    assert plan_messages._enough_chips(given, least) is None
    assert tried == tries
    monkeypatch.setattr(plan_messages, "_holds_request", lambda given: given.chips > tries[1] and given.slo == st.Slo())
    assert plan_messages._enough_chips(given, least) == tries[2]
    tried.clear()
    monkeypatch.setattr(plan_messages, "_holds_request", lambda given: tried.append((given.chips, given.sure)))
    plan_messages._enough_chips(replace(given, chips=tries[1]), least)
    assert tried == [(chips, None) for chips in tries[2:]]


@pytest.mark.parametrize(("memory", "rate", "holds"), [(1.0, 1.0, True), (1.01, 1.0, False), (0.5, 0.0, False)])
def test_chips_hold_a_request_that_they_serve(monkeypatch, memory, rate, holds):
    monkeypatch.setattr(plan_messages, "search", lambda *_: [table((0.01, 1.0, memory, rate), (0.01, 1.0, 2.0, 9.0))])
    assert plan_messages._holds_request(PROBLEM) == holds
    monkeypatch.setattr(plan_messages, "fitting", lambda _: [])
    assert not plan_messages._holds_request(PROBLEM)


def test_without_a_layout_the_weights_are_those_of_the_model(monkeypatch):
    monkeypatch.setattr(plan_messages, "legal_table", lambda *_: stacked([]))
    assert plan_messages._best_layout(PROBLEM, 10e9, 6e9) == "; the best layout puts 10.0 GB on a chip of 6.00 GB"


def test_weights_that_fill_a_chip_leave_no_room(monkeypatch):
    monkeypatch.setattr(plan_messages, "_enough_chips", lambda *_: 2)
    full = replace(case(1), system=machine(size=4, capacity=10e9), engine=IDEAL)
    text = plan_messages.does_not_fit(full)
    assert text.startswith(
        "one matrix does not fit 1 x toy: its weights take 10.0 GB, the chips hold 10.0 GB; the best layout "
    )
    assert text.endswith(
        ". With --chips 2 it would fit, with room for requests of 1,201 tokens, or with --weights int4 (5.16 GB)"
    )
    less = plan_messages.does_not_fit(replace(full, system=machine(size=4, capacity=9e9)))
    assert "the chips hold 9.00 GB, 1.00 GB too little. With" in less


@pytest.mark.parametrize(("system", "name"), [("hgx-h100", "fp8"), ("hgx-a100", "int8"), ("rtx-4090-8", "int4"), ("l4-8", "")])
def test_weights_that_do_not_fit_name_the_format_with_the_most_bits_that_does(system, name):
    """Llama 70B: 73 GB in 8 bits and 40 GB in 4 bits, on one chip of 80 GB, two of 24 GB, and one of 24 GB."""
    problem = replace(case(1), model=st.load_model("llama-3.1-70b"), system=st.load_system(system), engine=IDEAL)
    text = plan_messages.does_not_fit(replace(problem, chips=2 if name == "int4" else 1))
    assert re.findall(r"--weights (\w+)", text) == ([name] if name else [])


# --- what the user chose ----------------------------------------------------------------------------------------------------


def blame(pinned: Pinned, feasible_without: tuple[str, ...]) -> tuple[str, list[Pinned]]:
    """Return the reason where a plan needs one of these choices to be left out, and the choices that were tried."""
    tried = []

    def best_with(choices: Pinned):
        tried.append(choices)
        left = {name for name, _ in choices.sizes} | {name for name in ("chunk", "max_num_seqs") if getattr(choices, name)}
        return SimpleNamespace(feasible=any(name not in left for name in feasible_without))

    return plan_messages.blame_choices(pinned, best_with), tried


def test_a_single_choice_is_to_blame_without_a_search():
    for pinned, words in ((Pinned(chunk=512), "--chunk 512"), (Pinned(sizes=(("tp", 4),)), "--tp 4"),
                          (Pinned(max_num_seqs=8), "--max-num-seqs 8")):  # fmt: skip
        text, tried = blame(pinned, ())
        assert text.startswith(f"no layout meets the limits with {words}, although one does without it")
        assert tried == []


def test_of_several_choices_those_are_to_blame_without_which_there_is_a_plan():
    pinned = Pinned(sizes=(("tp", 4), ("pp", 2)), chunk=512, max_num_seqs=8)
    text, tried = blame(pinned, ("pp", "chunk"))
    assert text.endswith("with --tp 4, --pp 2, --chunk 512, --max-num-seqs 8; change --pp 2 or --chunk 512")
    # Each is left out by itself.
    assert tried == [
        replace(pinned, sizes=(("pp", 2),)), replace(pinned, sizes=(("tp", 4),)), replace(pinned, chunk=None),
        replace(pinned, max_num_seqs=None),
    ]  # fmt: skip
    assert blame(pinned, ())[0].endswith("change several of them")


def test_a_chunk_of_separate_pools_is_told_with_what_one_pool_serves():
    """3 of 4 requests/s."""
    shared = made(requests_per_second=3.0)
    assert "serve 75 % of these requests" in plan_messages.chunk_without_effect(made(requests_per_second=4.0), shared)
    missed = plan_messages.chunk_without_effect(made(requests_per_second=4.0), replace(shared, feasible=False))
    assert missed.startswith("no aggregated layout meets the limits with this --chunk")


def test_requests_are_too_long_beyond_the_context_alone():
    assert plan_messages.trained_context_warning(1000, 1000) == ""
    assert "1,001 tokens exceed the model's context of 1,000" in plan_messages.trained_context_warning(
        np.array([9, 1001]), 1000
    )


def test_networks_that_are_slower_inside_than_outside_are_a_warning():
    for inner, outer, count in ((1e10, 1e11, 1), (1e11, 1e11, 0), (1e12, 1e11, 0)):
        system = machine(size=4, up=inner, out=outer)
        assert len(plan_messages.warnings_of_step(MODEL, system, reach=10)) == count


def test_warnings_of_two_systems_are_those_of_both_once():
    other = replace(NODES, name="other", rent=NO_RENT)
    pair = replace(PROBLEM, prefill_system=other, prefill_chips=4)
    assert list_warnings(pair) == (*list_warnings(PROBLEM), "nobody rents it")
    same = replace(PROBLEM, prefill_system=replace(NODES, name="other"), prefill_chips=4)
    assert list_warnings(same) == list_warnings(PROBLEM)


def test_a_probability_is_likely_where_typical_times_meet_the_limits(monkeypatch):
    asked = []
    monkeypatch.setattr(plan_messages, "search", lambda given, *_: asked.append((given.sure, given.aim)) or [])
    monkeypatch.setattr(plan_messages, "ranked", lambda given, tables, limit: asked.append(limit) or ["one"] * asked.count(1))
    assert plan_messages._likely(replace(SURE, aim=(0.9, 0.8)), (AGGREGATED,), [])
    assert asked == [(None, (1.0, 1.0)), 1]
