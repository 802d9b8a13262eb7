"""Models and systems held against one another: the same figures as their plans, places, ties, and what would flip them."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest

import steptime as st
from steptime.errors import InputError, RangeError, UnknownName
from steptime.hardware.rental_prices import usd
from steptime.planning import planner
from steptime.planning.two_systems import LikelyPair
from steptime.sweeps import ranking
from steptime.sweeps.ranking import Ranking, Standing, _placed, compare
from steptime.workload.sessions import PRESETS
from tests.conftest import CHOICE_ALONE, each

WORK, SLO = st.Workload(input_tokens=2000, output_tokens=500), st.Slo(tpot=1 / 40, ttft=2)
NAMES = ["hgx-h100", "hgx-b200", "l4-8", "hgx-h20"]


@pytest.fixture(scope="module")
def found() -> Ranking:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "find_spec", lambda name: None)
        patch.setattr(ranking, "flips", lambda *_: ())
        return compare("llama-3.3-70b", NAMES, WORK, SLO)


@pytest.mark.slow
def test_each_stands_where_its_own_plan_puts_it(found, closed_forms):
    for one in found.standings:
        plan = st.plan("llama-3.3-70b", one.system, WORK, SLO, **CHOICE_ALONE)
        assert one.feasible == plan.feasible
        if one.feasible:
            assert one.usd_per_million_output_tokens == pytest.approx(plan.usd_per_million_output_tokens, nan_ok=True)
            assert (one.layout_text, one.chips, one.engine) == (plan.layout_text, plan.chips, plan.engine)
            assert one.tokens_per_second_per_kilowatt == pytest.approx(
                1e3 * plan.tokens_per_second_per_chip / float(plan.power.watts)
            )
        else:
            assert one.reason == plan.reason


def test_the_cheapest_is_first_then_those_without_a_rent_then_those_without_a_plan(found):
    names = [one.system for one in found.standings]
    assert names[2:] == ["hgx-h20", "l4-8"]
    costs = [one.usd_per_million_output_tokens for one in found.standings[:2]]
    assert costs == sorted(costs)
    assert [one.place for one in found.standings] == [1, 2, 0, 0]  # what has no cost is not dearer than the rest
    assert math.isnan(found.standings[2].usd_per_million_output_tokens)
    assert "cheapest" in found.text
    assert "no layout on 8 chips reaches 40.0 tok/s per user" in found.standings[3].reason


def test_what_a_range_rests_on(found):
    runs = {one.system: (one.runs, one.rests_on) for one in found.standings}
    assert runs["hgx-b200"][0] > 400
    assert runs["hgx-b200"][1].startswith(f"{runs['hgx-b200'][0]:,} runs on it")
    assert runs["hgx-h20"][0] == 0
    assert "other chips of NVIDIA" in runs["hgx-h20"][1]


def standing(system: str, cost: float, low: float, high: float) -> Standing:
    return Standing(
        model="m",
        system=system,
        vendor="v",
        year=2025,
        feasible=True,
        usd_per_million_output_tokens=cost,
        cost_range=(low, high),
    )


def test_ranges_that_overlap_with_that_of_the_cheapest_are_ties():
    a, b, c = standing("a", 1.0, 0.5, 2.0), standing("b", 3.0, 1.9, 5.0), standing("c", 4.0, 2.1, 6.0)
    bound = replace(standing("d", 9.0, 1.0, 2.0), cost_range=None)
    placed = list(_placed([c, bound, a, b]))
    assert [(one.system, one.place, one.tied) for one in placed] == [
        ("a", 1, True), ("b", 2, True), ("c", 3, False), ("d", 4, False),
    ]  # fmt: skip
    unpriced = replace(a, system="e", usd_per_million_output_tokens=math.nan, tokens_per_second_per_chip=9.0)
    assert [(one.system, one.place) for one in _placed([unpriced, a])] == [("a", 1), ("e", 0)]
    assert [(one.system, one.place) for one in _placed([unpriced])] == [("e", 1)]


def test_a_pair_with_more_chips_than_a_single_system_is_noted():
    """Eight chips of one system beside forty of a pair are no comparison of equals."""
    one, pair = replace(standing("a", 3.7, 2.0, 6.0), chips=8), replace(standing("b", 3.0, 2.0, 6.0), chips=40)
    pair = replace(pair, prefill_system="c", prefill_chips=32)

    def noted(*standings):
        notes = Ranking(workload=WORK, slo=SLO, standings=tuple(_placed(standings))).notes
        return [note for note in notes if "--chips 40" in note]

    assert len(noted(one, pair)) == 1
    assert noted(replace(one, chips=40), pair) == noted(one) == noted(pair) == []


@pytest.mark.slow
def test_a_rent_that_flips_the_order_does(closed_forms):
    """Rent is paid for all of the time, so that cost is in proportion to it."""
    found = compare("llama-3.3-70b", NAMES, WORK, SLO)
    first, second = found.standings[:2]
    share = first.usd_per_million_output_tokens / second.usd_per_million_output_tokens
    told = float(second.rent.typical) * 3600 * share
    assert f"rents for {told:.3g} USD/h per chip" in found.flips[0]
    cheaper = st.with_rent(second.system, f"{told * 0.99} USD/h")
    flipped = compare("llama-3.3-70b", [first.system, cheaper], WORK, SLO)
    assert flipped.standings[0].system == second.system


@pytest.mark.slow
def test_engines_and_formats_on_both_of_the_first_two():
    found = compare("llama-3.3-70b", ["hgx-h100", "hgx-h200"], WORK, SLO)
    told = [words for words in found.flips if words.startswith("engine: with sglang on both")]
    costs = sorted(
        st.plan("llama-3.3-70b", one.system, WORK, SLO, engine="sglang", **CHOICE_ALONE).usd_per_million_output_tokens
        for one in found.standings
    )
    assert len(told) == 1
    assert all(f"${cost:,.2f}" in told[0] for cost in costs)
    (fp8,) = [words for words in found.flips if words.startswith("format: with --weights fp8 on both: ")]
    small = st.load_model("llama-3.3-70b", weights="fp8")
    for one in found.standings:
        cost = st.plan(small, one.system, WORK, SLO, **CHOICE_ALONE).usd_per_million_output_tokens
        assert usd(cost) in fp8
    one = compare("llama-3.3-70b", ["hgx-h100", "hgx-h200"], WORK, SLO, engine="sglang")
    assert not any(words.startswith("engine") for words in one.flips)


@pytest.mark.slow
def test_any_number_of_chips_is_the_cheapest_of_them():
    (one,) = compare("llama-3.1-8b", "hgx-h100", WORK, SLO, chips="any").standings
    counts = (1, 2, 4, 8, 16, 32, 64)
    costs = {n: st.plan("llama-3.1-8b", "hgx-h100", WORK, SLO, chips=n, **CHOICE_ALONE) for n in counts}
    assert one.usd_per_million_output_tokens == min(plan.usd_per_million_output_tokens for plan in costs.values())
    assert costs[one.chips].usd_per_million_output_tokens == one.usd_per_million_output_tokens


def test_a_kind_of_rent_is_for_all_and_a_system_without_it_has_none(closed_forms):
    found = compare("llama-3.1-8b", ["hgx-h100", "hgx-b200"], WORK, SLO, chips=1, rent="ondemand")
    assert [(one.system, one.rent.kind) for one in found.standings] == [("hgx-h100", "ondemand"), ("hgx-b200", "")]


@pytest.mark.thorough
def test_spread_percentile_and_evidence_are_those_of_the_plans(closed_forms):
    work = st.Workload(input_tokens=2000, output_tokens=100, input_spread=0.5, output_spread=2.0)
    how = {"chips": 2, "percentile": "p50", "evidence": "any"}
    found = compare("llama-3.1-8b", "hgx-h100", work, SLO, **how)
    plan = st.plan("llama-3.1-8b", "hgx-h100", work, SLO, alternatives=False, elasticities=False, diagnostics=False, **how)
    (one,) = found.standings
    assert one.usd_per_million_output_tokens == plan.usd_per_million_output_tokens
    assert (one.ttft, one.evidence, found.percentile) == (plan.ttft, plan.evidence, "p50")


@pytest.mark.slow
def test_the_first_of_many_pairs_have_whole_searches(monkeypatch):
    monkeypatch.setattr(ranking, "MANY_PAIRS", 3)
    monkeypatch.setattr(ranking, "WHOLE_SEARCHES", 1)
    names = ["hgx-h100", "hgx-b200", "l4-8"]
    many = compare("llama-3.1-8b", names, WORK, SLO)
    assert [standing.quick for standing in many.priced] == [False, True, True]
    first = st.plan("llama-3.1-8b", many.priced[0].system, WORK, SLO, **CHOICE_ALONE)
    assert many.priced[0].cost == pytest.approx(first.usd_per_million_output_tokens)
    for standing in many.priced[1:]:
        plan = st.plan("llama-3.1-8b", standing.system, WORK, SLO, quick=True, **CHOICE_ALONE)
        assert standing.cost == pytest.approx(plan.usd_per_million_output_tokens)
    few = compare("llama-3.1-8b", names[:2], WORK, SLO)
    assert not any(standing.quick for standing in few.standings)


def test_unlike_evidence_is_noted(found):
    priced = [standing for standing in found.standings if standing.feasible and math.isfinite(standing.cost)]
    levels = ["measured", "published", "measured", "measured", "measured", "any"]
    cycle = [replace(priced[0], system=f"s{n}", evidence=level, place=n + 1) for n, level in enumerate(levels)]
    (note,) = replace(found, standings=tuple(cycle))._evidence_notes()
    assert "s0, s2, s3 and 1 more" in note
    assert "--evidence any" in note
    assert list(replace(found, standings=(cycle[0], cycle[2]))._evidence_notes()) == []
    (alone,) = replace(found, standings=(cycle[5],))._evidence_notes()
    assert "nobody ran" in alone


@pytest.mark.thorough
def test_several_models_on_one_system(closed_forms):
    found = compare(["llama-3.1-8b", "llama-3.3-70b"], "hgx-h100", WORK, SLO)
    assert [one.model for one in found.standings] == ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.3-70B-Instruct"]
    assert "meta-llama/Llama-3.1-8B on hgx-h100 is the cheapest" in found.text


@pytest.mark.slow
def test_a_kind_of_rent_that_flips_the_order_is_told():
    """Cost is in proportion to rent, whatever its kind."""
    found = compare("llama-3.3-70b", ["tpu7x", "gh200-nvl32"], WORK, SLO)
    (told,) = [words for words in found.flips if words.startswith("rent: with ")]
    same = compare("llama-3.3-70b", ["tpu7x", "gh200-nvl32"], WORK, SLO, rent="ondemand")
    assert all(usd(one.usd_per_million_output_tokens) in told for one in same.standings)
    assert told.endswith("the order reverses")
    assert [one.system for one in same.standings] == ["gh200-nvl32", "tpu7x"]
    assert any("several kinds" in note for note in found.notes)
    assert any("no run on a chip of Google" in note for note in found.notes)


@pytest.mark.slow
def test_systems_of_one_name_are_told_apart():
    faster = st.vary("hgx-b200", {"chip.hbm.bandwidth": 16e12})
    found = compare("llama-3.1-8b", ["hgx-b200", "hgx-b200", faster], WORK, SLO)
    assert sorted(one.label for one in found.standings) == ["", "hgx-b200 (2)"]
    assert "hgx-b200 (2) is the cheapest" in found.text


@pytest.mark.slow
def test_one_chip_has_one_rent_whatever_it_serves():
    found = compare(["llama-3.1-8b", "llama-3.3-70b"], "hgx-h100", WORK, SLO)
    assert not any(words.startswith("rent") for words in found.flips)


@pytest.mark.slow
def test_the_ideal_is_a_bound_without_ranges_and_ties():
    found = compare("llama-3.1-8b", ["hgx-h100", "hgx-b200"], WORK, SLO, engine="ideal")
    assert all(one.cost_range is None and one.rests_on == "times without losses, not a prediction" for one in found.standings)
    assert "90 %" not in found.text


def test_as_a_table(found):
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["system"] for row in rows] == [one.system for one in found.standings]
    assert float(rows[0]["usd_per_million_output_tokens_low"]) == found.standings[0].cost_range[0]
    assert rows[2]["usd_per_million_output_tokens"] == ""
    assert rows[0]["rent"].startswith("three-year contract, ")


def test_nothing_meets_the_limits():
    found = compare("llama-3.3-70b", ["l4-8"], WORK, st.Slo(tpot=1e-4))
    assert found.text.startswith("No plan meets the limits")
    assert found.flips == ()


@each(
    "given, error, says",
    [
        ({"models": "llama-3.3-70c"}, UnknownName, "did you mean llama-3.3-70b"),
        ({"systems": "hgx-h10"}, UnknownName, "did you mean hgx-h100"),
        ({"systems": []}, RangeError, "systems: "),
        ({"models": []}, RangeError, "models: "),
        ({"chips": "many"}, RangeError, "chips: .*many"),
        ({"chips": 0}, RangeError, "chips must be at least 1"),
        ({"sure": 1.0, "slo": SLO}, RangeError, "sure: must be a probability"),
        ({"sure": 0.9}, RangeError, "sure: .* needs a limit"),
        ({"engine": "vlm"}, UnknownName, "did you mean vllm"),
        ({"rent": "lease"}, UnknownName, "A rent is owned, contract"),
    ],
)
def test_what_is_wrong_with_the_question_is_told(given, error, says):
    asked = {"models": "llama-3.1-8b", "systems": "hgx-h100", "workload": WORK} | given
    with pytest.raises(error, match=says):
        compare(**asked)
    assert issubclass(error, InputError)


def test_pairs_with_the_lowest_cost_by_closed_forms_are_planned(monkeypatch):
    systems = [st.load_system(name) for name in ("hgx-h100", "hgx-h200", "hgx-b200")]
    model = st.load_model("llama-3.1-8b")
    jobs = ranking.system_pairs([model], systems, None, ranking.MODES)
    names = [(decoding.name, prefilling.name) for (_, decoding, _), prefilling in jobs]
    costs = dict(zip(names, (5, 4, 1, 3, 6, 2), strict=True))

    def likely(_, decoding, prefilling, *_rest, **_settings):
        if costs[decoding.name, prefilling.name] == 6:
            raise RangeError("none")
        return LikelyPair(is_unpriced=False, cost=costs[decoding.name, prefilling.name], prefill_chips=(8, 16))

    monkeypatch.setattr(ranking, "likely_prefill", likely)
    options = {"engine": None, "percentile": "p90", "evidence": "any"}
    planned, others = ranking._likely_pairs(jobs, st.Workload(input_tokens=10, output_tokens=10), st.Slo(), None, options)
    assert [costs[decoding.name, prefilling.name] for (_, decoding, _), prefilling, _ in planned] == [1, 2, 3]
    assert {chips for _, _, chips in planned} == {(8, 16)}
    assert [costs[row.system, row.prefill_system] for row in others] == [4, 5, 6]
    assert not any(row.feasible for row in others)


# --- fleets for a rate ---------------------------------------------------------------------------------------------------

CHAT, CONVERSATIONS = st.Workload(input_tokens=1000, output_tokens=500), PRESETS["chat"]


@pytest.fixture(scope="module")
def fleets() -> Ranking:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "find_spec", lambda name: None)
        patch.setattr(ranking, "flips", lambda *_: ())
        names = ["hgx-h100", "mi300x-8", "gaudi3-8", "l4-8"]
        return compare("llama-3.3-70b", names, CHAT, SLO, rate=20.0, spare=1)


def test_fleets_are_ordered_by_the_money_of_a_month_with_one_kind_of_rent(fleets):
    priced = fleets.priced
    months = [row.usd_per_month for row in priced]
    assert months == sorted(months)
    assert [row.place for row in priced] == [1, 2]
    assert {row.rent.kind for row in priced} == {"contract"}
    # One system has rents on demand only, and one has no plan.
    assert {row.system for row in fleets.standings if row.feasible and not row.place} <= {"gaudi3-8"}
    assert "l4-8" in {row.system for row in fleets.standings if row.reason}


def test_fleet_has_whole_replicas_hosts_and_their_rent(fleets):
    for row in fleets.priced:
        served = fleets.rate / row.utilisation / row.replicas
        assert row.replicas == math.ceil(fleets.rate / served - 1e-9)
        assert row.fleet_chips == 8 * row.hosts
        assert row.hosts == math.ceil((row.replicas + 1) / (8 // row.replica_chips))
        assert row.usd_per_month == pytest.approx(row.fleet_chips * float(row.rent.typical) * 365.25 / 12 * 86_400)
        tokens = fleets.rate * 500 * 365.25 / 12 * 86_400
        assert row.usd_per_million_output_tokens_at_rate == pytest.approx(1e6 * row.usd_per_month / tokens)


def test_range_of_a_month_is_that_of_whole_replicas_at_both_ends_of_the_throughput(fleets):
    row = fleets.priced[0]
    served = fleets.rate / row.utilisation / row.replicas
    for month, end in zip(row.usd_per_month_range, reversed(row.plan.throughput_range), strict=True):
        replicas = math.ceil(fleets.rate / (served * end / row.plan.tokens_per_second_per_chip) - 1e-9)
        hosts = math.ceil((replicas + 1) / (8 // row.replica_chips))
        assert month == pytest.approx(row.usd_per_month * hosts / row.hosts)


@pytest.mark.thorough
def test_more_requests_never_cost_less_and_a_spare_never_saves(closed_forms):
    months = [
        compare("llama-3.1-8b", "hgx-h100", CHAT, SLO, rate=rate, spare=spare, chips=1, has_flips=False).first.usd_per_month
        for rate, spare in ((1, 0), (1, 1), (300, 1), (3000, 1))
    ]
    assert months == sorted(months)
    assert months[0] < months[-1]


@pytest.mark.thorough
def test_fleet_that_is_mostly_idle_has_a_note(fleets, closed_forms):
    assert not any("--chips any" in note for note in fleets.notes)
    idle = compare("llama-3.1-8b", "hgx-h100", CHAT, SLO, rate=0.1, has_flips=False)
    assert idle.first.utilisation < 0.5
    assert any("--chips any" in note for note in idle.notes)
    smaller = compare("llama-3.1-8b", "hgx-h100", CHAT, SLO, rate=0.1, chips="any", has_flips=False)
    assert smaller.first.usd_per_month <= idle.first.usd_per_month


def test_common_kind_is_a_contract_where_two_systems_have_one():
    systems = {name: st.load_system(name) for name in ("hgx-h100", "gh200-nvl32", "l4-8", "mi300x-8", "hgx-h20")}
    assert ranking.common_kind([systems["hgx-h100"], systems["mi300x-8"]]) is None
    assert ranking.common_kind([systems["gh200-nvl32"], systems["l4-8"], systems["hgx-h100"]]) == "ondemand"
    assert ranking.common_kind([systems["gh200-nvl32"], systems["mi300x-8"], systems["hgx-h100"]]) == "contract"
    assert ranking.common_kind([systems["hgx-h20"]]) is None


@pytest.mark.thorough
@pytest.mark.parametrize("names", [["hgx-h100"], ["hgx-h100", "mi300x-8"]])
def test_sessions_of_all_systems_have_hits_by_tier(names, closed_forms):
    found = compare("llama-3.1-8b", names, CHAT, SLO, chips=1, sessions=CONVERSATIONS, rate=4.0)
    for row in found.priced:
        own = st.plan_sessions("llama-3.1-8b", row.system, CONVERSATIONS, SLO, chips=1, rate=4.0)
        assert row.hit_share == own.session_cache.hit_share
        assert row.usd_per_month == own.fleet.usd_per_month
        assert row.plan.workload.cached_share == own.workload.cached_share
        assert row.hits_text.startswith("hbm ")
    assert all(words.startswith("rent: ") for words in found.flips)
