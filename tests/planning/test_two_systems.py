"""Pools on two systems: prefill on one, decode on another."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError, RangeError
from steptime.hardware.what_if import vary
from steptime.physics.engine import engine_for
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import cache_moved
from steptime.planning import planner, two_systems
from steptime.planning.finalists import simulate_candidate
from steptime.planning.pd_matching import replica_counts
from steptime.planning.plan_problem import DISAGGREGATED, Candidate, PlanProblem, evaluate_prefill, evaluate_state, moving
from steptime.planning.refinement import matched_rate
from steptime.planning.two_systems import (
    chips_to_try,
    likely_pair,
    likely_prefill_chips,
    rent_or_chips,
    single_system_problems,
)
from steptime.units import HOUR
from tests.conftest import each

MODEL = st.load_model("llama-3.1-8b")
H100, H200 = st.load_system("hgx-h100"), st.load_system("hgx-h200")
WORK = st.Workload(input_tokens=4096, output_tokens=256, input_spread=0.5, output_spread=0.5)
LIMITS = st.Slo(tpot=0.02, ttft=1)
BRIEF = {"alternatives": False, "elasticities": False, "front": False, "diagnostics": False}
RENTED = {"hgx-h100": 2.0, "hgx-h200": 3.0}
# Systems with a rent by hand, so that a new quote changes no test.
FIRST, SECOND = (vary(system, {"rent": RENTED[system.name] / HOUR}) for system in (H200, H100))
CANDIDATE = Candidate(mode=DISAGGREGATED, layout=Layout(tp=8), batch=64, prefill_layout=Layout(tp=8), prompts=2)


def problem(**changes):
    settings = {"model": MODEL, "system": H200, "workload": WORK, "slo": LIMITS, "chips": 8, "engine": engine_for(H200)}
    return PlanProblem(**settings | {"limits": LIMITS, "percentile": "p90"} | changes)


def pair_plan(system=FIRST, prefill_system=SECOND, *, chips=2, prefill_chips=4, **settings):
    return st.plan(
        MODEL, system, WORK, LIMITS, chips=chips, prefill_system=prefill_system, prefill_chips=prefill_chips, **BRIEF | settings
    )


@pytest.fixture(scope="module")
def planned():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "find_spec", lambda name: None)
        return pair_plan(diagnostics=True)


# --- the same system on both sides ----------------------------------------------------------------------------------------


def test_closed_forms_of_a_system_with_itself_equal_those_of_one_system():
    one, two = problem(chips=16), problem(prefill_system=H200, prefill_chips=8)
    rates = []
    for case in (one, two):
        state = evaluate_state(case, CANDIDATE, CANDIDATE.batch, 1)
        rates.append([float(x) for x in matched_rate(case, CANDIDATE, state, evaluate_prefill(case, CANDIDATE, state.tpot))])
    assert rates[0] == pytest.approx(rates[1], rel=1e-12)


def test_simulation_of_a_system_with_itself_equals_that_of_one_system():
    pytest.importorskip("numba")
    one = simulate_candidate(problem(chips=16), CANDIDATE, 0.0)
    two = simulate_candidate(problem(prefill_system=H200, prefill_chips=8), CANDIDATE, 0.0)
    assert one.run == two.run


def test_plan_of_a_system_with_itself_serves_as_much_as_its_split(closed_forms):
    # On 24 chips caches cross domains.
    one = st.plan(MODEL, H200, WORK, LIMITS, chips=24, modes=DISAGGREGATED, evidence="published", **BRIEF)
    prefill, decode = (pool.chips for pool in one.pools)
    two = pair_plan(H200, H200, chips=decode, prefill_chips=prefill, evidence="published")
    assert two.requests_per_second == pytest.approx(one.requests_per_second, rel=0.025)
    assert two.evidence == "published"


# --- parts ----------------------------------------------------------------------------------------------------------------


def test_caches_move_over_the_slower_bandwidth_and_the_longer_latency():
    slow = vary(H100, {"scale_out.bandwidth": 10e9, "scale_out.latency": 1e-6})
    quick = vary(H200, {"scale_out.bandwidth": 40e9, "scale_out.latency": 7e-6})
    layout = Layout(tp=2)
    for first, second in ((slow, quick), (quick, slow)):
        sent = moving(problem(system=first, prefill_system=second, prefill_chips=8), layout)
        assert sent.latency == 7e-6
        assert float(sent.moving) == pytest.approx(float(cache_moved(MODEL, WORK.input_tokens, 0)) / (2 * 10e9))


def test_replica_counts_fill_both_systems():
    case = problem(chips=24, prefill_system=H100, prefill_chips=20)
    assert [counts.tolist() for counts in replica_counts(case, 8, 3)] == [[2], [6]]
    assert [counts.tolist() for counts in replica_counts(case, 32, 3)] == [[], []]


def test_the_prefill_problem_has_its_system_and_its_chips():
    case = problem(prefill_system=H100, prefill_chips=4)
    assert (case.prefill.system, case.prefill.chips, case.prefill.prefill_system) == (H100, 4, None)
    assert case.prefill.memo is not case.memo
    assert case.prefill is case.prefill
    alone = problem()
    assert alone.prefill is alone


# --- the plan -------------------------------------------------------------------------------------------------------------


def test_cost_follows_from_the_rate_and_both_rents(planned):
    rent = (2 * 3.0 + 4 * 2.0) / 3600
    assert planned.usd_per_second == pytest.approx(rent)
    output = planned.requests_per_second * 256
    assert planned.usd_per_million_output_tokens == pytest.approx(rent / output * 1e6)
    assert planned.usd_per_request == pytest.approx(rent / planned.requests_per_second)
    assert planned.tokens_per_second_per_chip == pytest.approx(output / 6)
    parts = planned.prefill_usd_per_million_tokens * 4096 + planned.decode_usd_per_million_tokens * 256
    assert parts == pytest.approx(planned.usd_per_million_output_tokens * 256)
    watts = 2 * float(H200.power.watts) + 4 * float(H100.power.watts)
    assert planned.joules_per_output_token == pytest.approx(watts / output)


def test_plan_names_both_systems_and_their_chips(planned):
    assert (planned.system, planned.chips, planned.prefill_system, planned.prefill_chips) == ("hgx-h200", 2, "hgx-h100", 4)
    assert (planned.evidence, planned.mode) == ("any", DISAGGREGATED)
    prefill, decode = planned.pools
    assert (prefill.role, decode.role) == ("prefill", "decode")
    assert prefill.chips <= 4
    assert decode.chips <= 2
    assert float(prefill.memory.capacity) < float(decode.memory.capacity)
    assert planned.idle_chips == 6 - prefill.chips - decode.chips
    assert any("nobody has published" in words for words in planned.warnings)


def test_plan_compares_each_system_alone_for_the_same_rent(planned):
    # 14 USD/h rent 8 chips in whole hosts of either system.
    assert [(single.system, single.chips) for single in planned.single_systems] == [("hgx-h200", 8), ("hgx-h100", 8)]
    for single, system in zip(planned.single_systems, (FIRST, SECOND), strict=True):
        alone = 8 * float(system.rent.typical) / (single.requests_per_second * 256) * 1e6
        assert single.usd_per_million_output_tokens == pytest.approx(alone)
        assert single.usd_per_second == pytest.approx(8 * RENTED[system.name] / HOUR)


@pytest.mark.thorough
def test_lower_rent_and_faster_chips_do_not_cost_more(planned, closed_forms):
    cost = planned.usd_per_million_output_tokens
    cheap = pair_plan(prefill_system=vary(SECOND, {"rent": 1.0 / HOUR}))
    assert cheap.usd_per_million_output_tokens == pytest.approx(cost * (2 * 3 + 4 * 1) / (2 * 3 + 4 * 2), rel=0.02)
    figures = {f"chip.peak.{kind}": 1.5 * rate for kind, rate in SECOND.chip.peak.items()}
    fast = vary(SECOND, figures | {"chip.hbm.bandwidth": 1.5 * SECOND.chip.hbm.bandwidth})
    assert pair_plan(prefill_system=fast).usd_per_million_output_tokens <= cost * 1.02


def test_ranges_of_a_pool_come_from_its_own_system(closed_forms):
    vague = pair_plan(prefill_system=replace(SECOND, name="unmeasured"))
    known = pair_plan()
    # TPOT belongs to the pool that decodes, TTFT to the one that prefills.
    assert vague.tpot_range[1] / vague.tpot == pytest.approx(known.tpot_range[1] / known.tpot)
    assert vague.ttft_range[1] / vague.ttft > 1.01 * known.ttft_range[1] / known.ttft
    # Neither system alone is planned where the choice is all that is asked.
    assert known.single_systems == ()


@pytest.mark.thorough
def test_plan_without_prefill_chips_takes_the_cheapest_number_of_hosts(closed_forms):
    best = pair_plan(chips=8, prefill_chips=None)
    assert best.prefill_chips % 8 == 0
    for chips in (best.prefill_chips - 8, best.prefill_chips + 8):
        if chips:
            other = pair_plan(chips=8, prefill_chips=chips)
            assert other.usd_per_million_output_tokens > 0.98 * best.usd_per_million_output_tokens


def test_chips_to_try_are_up_to_four_times_those_that_decode_in_whole_hosts():
    assert [chips_to_try(chips, H100) for chips in (1, 3, 16)] == [8, 16, 64]


def test_likely_prefill_chips_start_with_the_lowest_cost_of_closed_forms():
    case = problem(chips=2, levels=(LIMITS,), prefill_system=SECOND, prefill_chips=8, system=FIRST)
    assert likely_prefill_chips(case, "any") == [8]


def test_replay_of_a_plan_on_two_systems_meets_its_figures(planned):
    pytest.importorskip("numba")
    again = st.replay(planned, MODEL, FIRST, prefill_system=SECOND, requests=4000, seed=5)
    assert again.rate > 0.9 * planned.requests_per_second
    assert again.simulation.prefill_system == "hgx-h100"
    cost = planned.usd_per_second / again.answers.output_tokens_per_second * 1e6
    assert again.answers.usd_per_million_output_tokens == pytest.approx(cost)


# --- refusals -------------------------------------------------------------------------------------------------------------


@each(
    "system, prefill_system, settings, words",
    [
        ("hgx-h200", "mi300x-8", {}, "one vendor"),
        ("hgx-h200", None, {"prefill_chips": 8}, "prefill_chips: needs"),
        ("hgx-h200", "hgx-h100", {"modes": "aggregated"}, "pools on two systems are separate"),
        ("hgx-h200", "hgx-h100", {"rate": 5}, "rate: a fleet"),
        ("hgx-h200", "hgx-h100", {"chunk": 512}, "chunk: separate pools"),
        ("hgx-h200", "hgx-h100", {"prefill_chips": 0}, "prefill"),
        (replace(H200, name="box", domains=H200.domains[:1]), "hgx-h100", {}, "and box has none"),
    ],
)
def test_what_two_systems_cannot_do_is_refused(system, prefill_system, settings, words):
    with pytest.raises(RangeError, match=words):
        st.plan(MODEL, system, WORK, LIMITS, prefill_system=prefill_system, **BRIEF | settings)


def test_different_kv_formats_are_refused_and_one_format_is_planned(closed_forms):
    with pytest.raises(RangeError, match="kv: both pools need one format"):
        st.plan("gpt-oss-120b", "hgx-h200", WORK, LIMITS, prefill_system="hgx-b200", **BRIEF)
    model = st.load_model("gpt-oss-120b", kv="bf16")
    assert st.plan(model, "hgx-h200", WORK, LIMITS, chips=2, prefill_system="hgx-b200", prefill_chips=2, **BRIEF).feasible


def test_plan_without_prefill_chips_leaves_out_hosts_that_are_too_small(closed_forms):
    # One host of 8 H100 does not hold the weights of DeepSeek-V3.
    plan = st.plan("deepseek-v3", "hgx-h200", WORK, st.Slo(tpot=0.1, ttft=20), prefill_system="hgx-h100", quick=True, **BRIEF)
    assert plan.feasible
    assert plan.prefill_chips >= 16


def test_weights_that_do_not_fit_name_the_prefill_chips():
    with pytest.raises(InputError, match=r"prefill pool: .*--prefill-chips 16"):
        st.plan("deepseek-v3", "hgx-h200", WORK, LIMITS, prefill_system="hgx-h100", prefill_chips=8, **BRIEF)


def test_replay_of_a_plan_on_one_system_refuses_a_second_system(closed_forms):
    one = st.plan(MODEL, "hgx-h100", WORK, LIMITS, chips=2, **BRIEF)
    with pytest.raises(RangeError, match="the plan is on one system"):
        st.replay(one, prefill_system="hgx-h200")


def test_closed_forms_rank_a_pair_by_its_likely_number_of_prefill_chips():
    case = problem(chips=2, levels=(LIMITS,), prefill_system=SECOND, prefill_chips=8, system=FIRST)
    pair = likely_pair(case, "any")
    assert list(pair.prefill_chips) == likely_prefill_chips(case, "any")
    assert not pair.is_unpriced
    dearer = replace(case, prefill_system=vary(SECOND, {"rent": 100 / HOUR}))
    assert likely_pair(dearer, "any").cost > 2 * pair.cost
    impossible = replace(case, slo=st.Slo(tpot=1e-9), levels=(st.Slo(tpot=1e-9),))
    assert likely_pair(impossible, "any").cost == float("inf")


# --- numbers of prefill chips by hand --------------------------------------------------------------------------------------

PAIR = replace(problem(), prefill_system=SECOND, prefill_chips=8, system=FIRST)


def test_a_deployment_costs_its_rents_or_its_chips():
    assert rent_or_chips(PAIR) == pytest.approx((8 * 3.0 + 8 * 2.0) / HOUR)
    for rent in (float("nan"), 0.0):
        unknown = replace(SECOND, rent=replace(SECOND.rent, low=rent, typical=rent, high=rent))
        free = replace(FIRST, rent=replace(FIRST.rent, low=rent, typical=rent, high=rent))
        assert rent_or_chips(replace(PAIR, prefill_system=unknown, system=free)) == 16


@pytest.fixture
def by_hosts(monkeypatch):
    """Costs of numbers of hosts as a function, and the evidence and numbers that were asked for."""
    rates, asked = {}, []
    monkeypatch.setattr(two_systems, "fitting", lambda case: [case.prefill_chips] if rates["fits"](case) else [])
    monkeypatch.setattr(two_systems, "stacked", lambda layouts: layouts)
    monkeypatch.setattr(two_systems, "shaped", lambda *_: None)
    monkeypatch.setattr(two_systems, "batch_grid", lambda *_: None)
    monkeypatch.setattr(two_systems, "steady_state", lambda *_: None)
    monkeypatch.setattr(two_systems, "search_disaggregated", lambda case, *_: case)

    def highest(case, _):
        asked.append((case.evidence, case.prefill_chips))
        return rates["rate"](case)

    monkeypatch.setattr(two_systems, "_highest_rate", highest)
    rates["fits"] = lambda case: True
    return rates, asked


def test_hosts_are_tried_in_steps_of_half_more_and_then_one_by_one(by_hosts):
    """The cost is lowest at 7 hosts: the steps 1, 2, 3, 4, 6, 9, 13 find 6, from which one more host is better."""
    rates, asked = by_hosts
    rates["rate"] = lambda case: 1 / (1 + abs(case.prefill_chips / 8 - 7)) * rent_or_chips(case)
    costs = two_systems._costs_by_hosts(PAIR, 8, 16)
    assert [chips // 8 for _, chips in asked] == [1, 2, 3, 4, 6, 9, 13, 5, 7, 8]
    assert (costs[7], costs[6], costs[1]) == pytest.approx((1.0, 2.0, 7.0))
    rates["rate"] = lambda case: 0.0
    assert set(two_systems._costs_by_hosts(PAIR, 8, 3).values()) == {float("inf")}
    rates["fits"] = lambda case: False
    assert two_systems._costs_by_hosts(PAIR, 8, 3) == {1: float("inf")}


@pytest.mark.parametrize(
    ("evidence", "serves", "kinds", "chips"),
    [
        ("measured", ("published", "any"), ["published"], [56, 48, 64]),
        ("published", ("any",), ["published", "any"], [56, 48, 64]),
        ("any", ("any",), ["any"], [56, 48, 64]),
        ("measured", (), ["published", "any"], [256]),
    ],
)
def test_likely_numbers_are_the_best_and_its_neighbours_of_the_first_evidence_that_serves(
    monkeypatch, by_hosts, evidence, serves, kinds, chips
):
    rates, asked = by_hosts
    monkeypatch.setattr(two_systems, "chips_to_try", lambda *_: 256)
    rates["rate"] = lambda case: (case.evidence in serves) / (1 + abs(case.prefill_chips / 8 - 7))
    counts, cost = two_systems._likely_sizes(PAIR, evidence)
    assert (counts, list(dict.fromkeys(kind for kind, _ in asked))) == (chips, kinds)
    assert (cost < float("inf")) == bool(serves)
    pair = likely_pair(PAIR, evidence)
    assert pair == (False, cost, tuple(chips))
    unknown = replace(FIRST, rent=replace(FIRST.rent, low=0.0, typical=0.0, high=0.0))
    second = replace(SECOND, rent=unknown.rent)
    assert likely_pair(replace(PAIR, system=unknown, prefill_system=second), evidence).is_unpriced


def test_likely_numbers_have_hosts_and_hold_the_weights(monkeypatch, by_hosts):
    """One host is the best and the fewest; the most are two, and too small a pool is left out."""
    rates, _ = by_hosts
    monkeypatch.setattr(two_systems, "chips_to_try", lambda *_: 16)
    rates["rate"] = lambda case: 1 / case.prefill_chips**2
    assert two_systems._likely_sizes(PAIR, "any")[0] == [8, 16]
    rates["rate"] = lambda case: case.prefill_chips**2
    assert two_systems._likely_sizes(PAIR, "any")[0] == [16, 8]
    rates["fits"] = lambda case: case.chips != 8
    assert two_systems._likely_sizes(PAIR, "any")[0] == [16]


def test_each_system_alone_has_whole_hosts_for_about_the_rent_of_both():
    """8 chips at $3 and 8 at $2 are $40: 13.3 chips of the first and 20 of the second, or two hosts of each."""
    first, second = single_system_problems(PAIR)
    assert [(one.system.name, one.chips, one.prefill_system, one.prefill_chips) for one in (first, second)] == [
        ("hgx-h200", 16, None, 0), ("hgx-h100", 16, None, 0)
    ]  # fmt: skip
    assert (first.front, first.diagnostics) == (False, False)
    large = list(single_system_problems(replace(PAIR, prefill_chips=32)))
    # $88: 29.3 chips and 44; 44 / 8 is 5.5, which rounds to 6.
    assert [one.chips for one in large] == [32, 48]
    unknown = replace(SECOND, rent=replace(SECOND.rent, low=0.0, typical=0.0, high=0.0))
    free = [replace(one, rent=unknown.rent) for one in (FIRST, SECOND)]
    assert [one.chips for one in single_system_problems(replace(PAIR, system=free[0], prefill_system=free[1], chips=16))] == [
        24,
        24,
    ]
    assert len(list(single_system_problems(replace(PAIR, prefill_system=FIRST)))) == 1


def test_prefill_chips_to_try_fill_hosts_of_the_network():
    """Four times 8 chips; of 5 chips 20, which are three hosts; of a network of 17 chips two hosts; at least one."""
    out = SECOND.domains[-1]
    small = replace(SECOND, domains=(*SECOND.domains[:-1], replace(out, size=17)))
    assert [chips_to_try(8, SECOND), chips_to_try(5, SECOND), chips_to_try(8, small)] == [32, 24, 16]
    assert chips_to_try(8, replace(SECOND, domains=(*SECOND.domains[:-1], replace(out, size=5)))) == 8
    assert chips_to_try(10**6, SECOND) <= two_systems.MOST_CHIPS


def test_pools_on_two_systems_are_a_warning_that_names_what_they_rest_on(monkeypatch):
    levels = {"hgx-h200": "published", "hgx-h100": "published"}
    monkeypatch.setattr(two_systems, "deployment_evidence", lambda engine, system, *_: levels[system.name])
    (words,) = two_systems.pair_warning(PAIR, CANDIDATE)
    assert "prefill on hgx-h100 and decode on hgx-h200" in words
    assert words.endswith("Each pool has a layout of a published kind")
    levels["hgx-h100"] = "any"
    assert two_systems.pair_warning(PAIR, CANDIDATE)[0].endswith("A pool has a layout that no published run has")
    assert two_systems.pair_warning(replace(PAIR, prefill_system=FIRST), CANDIDATE) == ()
    assert two_systems.pair_warning(problem(), CANDIDATE) == ()
    assert two_systems.pair_warning(PAIR, replace(CANDIDATE, prefill_layout=None)) == ()


def test_the_highest_rate_is_that_of_the_usual_limits_or_of_the_widest(monkeypatch):
    """Levels have the widest limits first; the usual ones are the second."""
    wide, usual = st.Slo(ttft=9.0), st.Slo(ttft=1.0)
    within = {9.0: [0, 1, 2], 1.0: [0, 1]}
    monkeypatch.setattr(two_systems, "rows_within", lambda case, _: within[case.slo.ttft])
    table = SimpleNamespace(rate=np.array([2.0, 3.0, 5.0]))
    assert two_systems._highest_rate(replace(PAIR, levels=(wide, usual)), table) == 3.0
    assert two_systems._highest_rate(replace(PAIR, levels=(wide,)), table) == 5.0
    within[1.0] = []
    assert two_systems._highest_rate(replace(PAIR, levels=(wide, usual)), table) == 5.0
    within[9.0] = []
    assert two_systems._highest_rate(replace(PAIR, levels=(wide, usual)), table) == 0.0
