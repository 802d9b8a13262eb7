"""Parts of plans for sessions: figures worked by hand, and shares that a search tries with plans that are made up."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

import steptime as st
from steptime.hardware.system import MemoryTier
from steptime.models.model import cached_token_bytes
from steptime.physics.layout import Layout
from steptime.planning import session_plan
from steptime.planning.plan_result import Point
from steptime.planning.session_hits import SessionCache, SessionCase, SessionRun, flow_of_sessions, found_tokens
from steptime.planning.session_plan import (
    TOO_SLOW,
    UNSETTLED,
    Estimate,
    Replica,
    SessionProblem,
    _in_progress,
    _needed,
    _tier_hits,
    estimate_share,
    evaluate_cache,
    free_tokens,
    history_ratio,
    history_square_ratio,
    is_small,
    plan_sessions,
    plan_turns,
    seconds_per_prompt_token,
    whole_plan,
    with_loads,
)
from steptime.workload.sessions import Sessions
from steptime.workload.workload import NONE
from tests.conftest import each
from tests.planning.cases import made

# Half of the turns are the first, a quarter the second: a turn has 1,000 tokens before it on average.
TWO = Sessions(turns=2, input_tokens=600, output_tokens=400, think_time=10, input_spread=0, output_spread=0)
ONCE = replace(TWO, turns=1)
WITH_PROMPT = replace(TWO, system_prompt=5000)
WORK = st.Workload(input_tokens=1000, output_tokens=401, output_spread=0.5)
MODEL = st.load_model("llama-3.1-8b")
WIDTH = cached_token_bytes(MODEL)
HBM, HOST, DISK = (
    MemoryTier(name=name, capacity=size, bandwidth=bandwidth)
    for name, size, bandwidth in (("hbm", 80e9, 3e12), ("host", 1e12, 1e11), ("disk", 1e15, 1e6))
)


def pool(**more: Any) -> SimpleNamespace:
    """Two replicas of one chip, whose prompts take 0.1 ms per token."""
    figures = {"batch": 8, "chunk": 100, "chunks_per_mixed_step": 1.0, "kv_tokens_per_rank": 1e5, "layout": Layout(replicas=2)}
    figures |= {"step": SimpleNamespace(total=0.02), "mixed": SimpleNamespace(total=0.03)}
    return SimpleNamespace(**figures | more)


def deployed(count: int = 1, **more: Any) -> SimpleNamespace:
    """A plan with 20 requests/s on both replicas: 0.5 s until the first token, and 400 steps of 10 ms."""
    figures = {"requests_per_second": 20.0, "mean_ttft": 0.5, "mean_tpot": 0.01, "workload": WORK, "speculation": NONE}
    return SimpleNamespace(**figures | {"pools": (pool(),) * count, "session_run": None, "percentile": "p90"} | more)


# --- figures by hand --------------------------------------------------------------------------------------------------------


@each(
    "sessions, percentile, ratio",
    [
        # Nine in ten turns have at most three before them, of 1,000 tokens each; 99 in 100 at most six.
        (TWO, "p90", 3.0),
        (TWO, "p99", 6.0),
        (WITH_PROMPT, "p90", 8 / 6),
        (WITH_PROMPT, "p99", 11 / 6),
        (TWO, "mean", 1.0),
        (ONCE, "p99", 1.0),
        (replace(ONCE, system_prompt=5000), "p99", 1.0),
    ],
)
def test_the_history_at_a_percentile_by_hand(sessions, percentile, ratio):
    assert history_ratio(sessions, math.inf, percentile) == pytest.approx(ratio)


def test_a_context_that_ends_sessions_ends_the_longest_history():
    """Two turns fit, of which the second has a third of all turns: 1,000 tokens over 333."""
    assert history_ratio(TWO, 2000.0, "p99") == pytest.approx(3.0)


@each(
    "sessions, longest, ratio",
    [(TWO, math.inf, 3.0), (replace(TWO, system_prompt=1000), math.inf, 6 / 4), (TWO, 2000.0, 3.0), (ONCE, math.inf, 1.0)],
)
def test_squares_of_histories_by_hand(sessions, longest, ratio):
    """The mean of k and of its square, with shares of 1/2, 1/4, ...: 1 and 3; of k + 1: 2 and 6."""
    assert history_square_ratio(sessions, longest) == pytest.approx(ratio)


@pytest.mark.parametrize(("share", "edge"), [(0.0, 0.05), (0.8, 0.01)])
def test_a_difference_is_small_by_the_tokens_to_prefill(share, edge):
    assert is_small(0.99 * edge, share)
    assert is_small(-0.99 * edge, share)
    assert not is_small(1.01 * edge, share)


def test_tokens_that_turns_in_progress_leave_by_hand():
    """Ten turns a second and replica for 4.5 s: each has 1,000 tokens less a prompt of 200, and half of 401."""
    assert free_tokens(deployed(), 200) == pytest.approx(1e5 - 10 * 4.5 * 1000.5)
    four = deployed(requests_per_second=40.0, pools=(pool(layout=Layout(replicas=4, dp=2)),))
    assert free_tokens(four, 200) == pytest.approx(2e5 - 10 * 4.5 * 1000.5)
    # A pool that only prefills has the prompt for half a second.
    assert free_tokens(deployed(2), 200) == pytest.approx(1e5 - 10 * 0.5 * 800)
    assert free_tokens(deployed(requests_per_second=1e4), 200) == 0


def test_the_time_of_a_prompt_token_by_hand():
    """A chunk of 100 tokens adds 10 ms; of two chunks each has half. A pass of 2 prompts of 1,000 tokens takes 0.1 s."""
    assert seconds_per_prompt_token(pool(), WORK) == pytest.approx(1e-4)
    assert seconds_per_prompt_token(pool(chunks_per_mixed_step=2.0), WORK) == pytest.approx(5e-5)
    # A limit of 4,096 tokens above a prompt of 1,000, half of it cached: a chunk of 500.
    assert seconds_per_prompt_token(pool(chunk=4096), replace(WORK, cached_share=0.5)) == pytest.approx(0.01 / 500)
    assert seconds_per_prompt_token(pool(chunks_per_mixed_step=0.5), WORK) == pytest.approx(1e-4)
    assert seconds_per_prompt_token(pool(mixed=SimpleNamespace(total=0.01)), WORK) == 0
    reader = pool(mixed=None, step=SimpleNamespace(total=0.1), batch=2)
    assert seconds_per_prompt_token(reader, WORK) == pytest.approx(5e-5)
    assert seconds_per_prompt_token(reader, replace(WORK, cached_share=0.5)) == pytest.approx(1e-4)


@each(
    "rate, ranks, utilisation, loaded",
    # 100 tokens of 100 B, at 2 chips x 1 MB/s: 5 ms.
    [(10.0, 1, 0.05, 100.0), (1000.0, 1, 1.0, 20.0), (1000.0, 2, 1.0, 40.0), (1000.0, 10, 0.5, 100.0)],
)
def test_a_tier_loads_as_much_as_its_bandwidth_allows(rate, ranks, utilisation, loaded):
    tier = MemoryTier(name="host", capacity=1e9, bandwidth=1e6, latency=0.01)
    replica = Replica(rate=rate, parts=2.0, ranks=ranks, token_bytes=100.0, prompt=1000.0)
    hits = _tier_hits(replica, tier, 1e9, "", tokens=100.0, hold=7.0)
    assert (hits.name, hits.capacity, hits.hold_seconds, hits.why_unused) == ("host", 1e9, 7.0, "")
    assert hits.bandwidth_share == pytest.approx(utilisation)
    assert hits.hit_share == pytest.approx(loaded / 1000)
    # A latency of 10 ms for the share of prompts that it has.
    assert hits.load_seconds == pytest.approx(loaded * 100 / 2e6 + 0.01 * loaded / 1000)


def test_sessions_in_progress_by_littles_law():
    """Of 20 turns a second, each takes 4.5 s and half come after 10 s of thought."""
    flow = flow_of_sessions(TWO, rate=10.0, answer=0.0)
    assert _in_progress(deployed(), TWO, flow) == pytest.approx(20 * (4.5 + 5.0))


def tier(name: str, capacity: float, reason: str = "") -> SimpleNamespace:
    return SimpleNamespace(name=name, capacity=capacity, why_unused=reason)


def test_the_needed_bytes_hold_95_percent_of_what_repeats():
    flow = flow_of_sessions(TWO, rate=100.0, answer=0.0)
    needed = _needed((), flow, 10.0)
    tokens = needed["needed_bytes"] / 10.0
    assert found_tokens(tokens, flow) == pytest.approx(950.0, rel=1e-6)
    assert needed["needed_tier"] == ""
    # The first tier with which all together have the bytes; slow ones do not count.
    half = 0.6 * needed["needed_bytes"]
    rows = (tier("hbm", half), tier("host", half), tier("disk", half))
    assert _needed(rows, flow, 10.0)["needed_tier"] == "host"
    assert _needed((rows[0], tier("host", half, TOO_SLOW), rows[2]), flow, 10.0)["needed_tier"] == "disk"
    assert _needed(rows[:1], flow, 10.0)["needed_tier"] == ""


def test_sessions_that_repeat_nothing_need_no_tier():
    assert _needed((tier("hbm", 1e9),), flow_of_sessions(ONCE, rate=10.0, answer=0.0), 10.0) == {
        "needed_bytes": 0.0, "needed_tier": ""
    }  # fmt: skip
    # Half a token repeats on average.
    rare = _needed((tier("hbm", 1e9),), flow_of_sessions(replace(TWO, turns=1.0005), rate=10.0, answer=0.0), 10.0)
    assert (rare["needed_bytes"] > 0, rare["needed_tier"]) == (True, "hbm")


# --- the cache of a plan ----------------------------------------------------------------------------------------------------


def cached(deployment: SimpleNamespace, sessions: Sessions = TWO, **capacities: float) -> SessionCache:
    return evaluate_cache(deployment, sessions, (HBM, HOST, DISK), capacities or None, model=MODEL)


def test_tiers_of_a_replica_are_those_of_its_chips():
    """HBM has what turns in progress leave; a chip has 1 TB of host memory; the disk is slower than 0.1 ms per token."""
    hbm, host, disk = cached(deployed()).tiers
    assert hbm.capacity == pytest.approx(WIDTH * (1e5 - 10 * 4.5 * 1200.5))
    assert (host.capacity, host.why_unused) == (1e12, "")
    assert (disk.hit_share, disk.load_seconds, disk.why_unused) == (0.0, 0.0, TOO_SLOW)
    four = pool(layout=Layout(tp=4, replicas=2))
    assert cached(deployed(pools=(four,))).tiers[1].capacity == 4e12
    # Prefill that takes longer than a load from the disk uses it.
    slow = pool(mixed=SimpleNamespace(total=1e3))
    assert cached(deployed(pools=(slow,))).tiers[2].why_unused == ""


def test_capacities_that_are_given_replace_those_of_the_system():
    free = WIDTH * (1e5 - 10 * 4.5 * 1200.5)
    sizes = [row.capacity for row in cached(deployed(), host=3e9).tiers]
    assert sizes == pytest.approx([free, 3e9, 0.0])
    assert [row.capacity for row in cached(deployed(), hbm=1e9).tiers] == pytest.approx([1e9, 0.0, 0.0])
    assert cached(deployed(), hbm=1e15).tiers[0].capacity == pytest.approx(free)


def test_a_large_tier_has_all_that_repeats_and_loads_what_hbm_has_not():
    """1,000 of 1,600 prompt tokens repeat; a load takes bytes over the bandwidth, and waits for the loads before it."""
    cache = cached(deployed())
    assert cache.held_share == pytest.approx(1000 / 1600)
    assert cache.hit_share == pytest.approx(cache.held_share, rel=1e-3)
    assert cache.mean_turns == pytest.approx(2.0)
    assert cache.sessions_in_progress == pytest.approx(20 * 9.5)
    load = cache.tiers[1].hit_share * 1600 * WIDTH / 1e11
    assert cache.tiers[1].load_seconds == pytest.approx(load)
    # Ten loads a second, whose mean square is three times the square of their mean.
    assert cache.load_seconds == pytest.approx(load + 10 * 3 * load**2 / (2 * (1 - 10 * load)))
    # On two data-parallel ranks each link has five of them.
    ranks = pool(layout=Layout(dp=2, replicas=2), kv_tokens_per_rank=5e4)
    shared = cached(deployed(pools=(ranks,)))
    assert shared.load_seconds == pytest.approx(load + 5 * 3 * load**2 / (2 * (1 - 5 * load)), rel=1e-3)


@pytest.mark.thorough
def test_answers_of_a_second_pool_delay_when_a_history_returns():
    """One pool has a history in use until the end of its answer; a pool that only prefills has it back 4 s later."""
    quick, slow = (cached(deployed(2, mean_tpot=tpot), hbm=2e9) for tpot in (1e-6, 0.05))
    assert slow.hit_share < 0.9 * quick.hit_share
    sizes = {"hbm": 2e9}
    # Unequal answers: some are over soon.
    equal = cached(deployed(2, mean_tpot=0.05, workload=replace(WORK, output_spread=0.0)), hbm=2e9)
    assert equal.hit_share != pytest.approx(slow.hit_share, rel=1e-3)
    together = [cached(deployed(mean_tpot=tpot), **sizes).hit_share for tpot in (1e-6, 0.001)]
    assert together[0] == pytest.approx(together[1])


def test_a_cache_whose_turns_were_served_has_their_hits():
    run = SessionRun({"hbm": 0.25, "host": 0.125}, 0.0625)
    cache = cached(deployed(session_run=run))
    assert [row.hit_share for row in cache.tiers] == [0.25, 0.125, 0.0]
    assert (cache.hit_share, cache.load_seconds, cache.is_replayed) == (0.375, 0.0625, True)
    assert cache.tiers[2].why_unused == TOO_SLOW
    # Turns load a history from the disk where a pass takes longer than the mean that closed forms have.
    disk = cached(deployed(session_run=SessionRun({"hbm": 0.25, "disk": 0.125}, 0.0625))).tiers[2]
    assert (disk.why_unused, disk.hit_share) == ("", 0.125)


# --- loads ------------------------------------------------------------------------------------------------------------------


def hits(hit_share: float, load: float = 0.0, *, is_replayed: bool = False) -> SimpleNamespace:
    return SimpleNamespace(hit_share=hit_share, load_seconds=load, is_replayed=is_replayed)


def test_a_plan_has_its_loads_in_the_first_token():
    workload = replace(WORK, cached_share=0.5)
    plan = replace(made(ttft=1.0, mean_ttft=0.4, ttft_range=(0.5, 2.0)), workload=workload)
    found = with_loads(plan, st.Slo(ttft=1.25), hits(0.5, 0.125), 0.25)
    assert (found.ttft, found.mean_ttft, found.ttft_range) == (1.25, pytest.approx(0.525), (0.75, 2.25))
    assert (found.feasible, found.slo.ttft, found.warnings) == (True, 1.25, ())
    # So have the points of the same requests without losses, and in the second layout.
    point = Point(
        mode="aggregated", layout_text="", batch=8, tokens_per_second_per_user=50, tokens_per_second_per_chip=400,
        usd_per_million_output_tokens=1, ttft=0.5,
    )  # fmt: skip
    beside = with_loads(replace(plan, ideal=point, runner_up=replace(point, ttft=2.0)), st.Slo(), hits(0.5), 0.25)
    assert (beside.ideal.ttft, beside.runner_up.ttft) == (0.75, 2.25)
    # Turns that were served have their loads in the mean already.
    assert with_loads(plan, st.Slo(), hits(0.5, 0.125, is_replayed=True), 0.0).mean_ttft == 0.4
    assert with_loads(replace(plan, ttft_range=None), st.Slo(), hits(0.5), 0.0).ttft_range is None


def test_a_load_beyond_the_limit_makes_a_plan_infeasible():
    """A twentieth above the limit is within what cached shares are known to."""
    plan = replace(made(ttft=1.0, mean_ttft=1.0), workload=replace(WORK, cached_share=0.5))
    assert with_loads(plan, st.Slo(ttft=2.0), hits(0.5), 1.09).feasible
    late = with_loads(plan, st.Slo(ttft=2.0), hits(0.5), 1.11)
    assert not late.feasible
    assert late.reason.startswith("loading the history of a session takes 1.11 s of the 2 s")


def test_a_plan_that_counts_less_than_its_tiers_hold_says_so():
    plan = replace(made(ttft=1.0, mean_ttft=1.0), workload=replace(WORK, cached_share=0.5))
    (words,) = with_loads(plan, st.Slo(), hits(0.75), 0.0).warnings
    assert words.startswith("the plan counts 50 % of the prompt tokens as cached, and its tiers hold 75 %")
    assert with_loads(plan, st.Slo(), hits(0.52), 0.0).warnings == ()
    assert with_loads(plan, st.Slo(), hits(0.75, is_replayed=True), 0.0).warnings == ()


# --- shares that are tried --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MadeUp:
    """What a search of shares needs of a plan."""

    share: float
    feasible: bool = True
    requests_per_second: float = 1.0
    evidence: str = "any"
    session_run: object = None
    percentile: str = "mean"
    modes: tuple[str, ...] = ()
    slo: st.Slo | None = None
    reason: str = ""
    sessions: Sessions | None = None


class Shares:
    """A problem whose tiers hold a function of the cached share, and the shares that were planned."""

    def __init__(self, held, feasible=lambda _: True, *, runs=None, rates=None) -> None:
        self.held, self.feasible, self.runs, self.rates = held, feasible, runs, rates or (lambda _: 1.0)
        self.held_share, self.slo, self.asked, self.loads = 0.8, st.Slo(ttft=9.0), [], []

    def plan(self, modes, share, load, *, quick) -> MadeUp:
        self.asked.append(round(share, 9))
        self.loads.append(load)
        rate, is_feasible = self.rates(share), self.feasible(share)
        return MadeUp(share=share, feasible=is_feasible, requests_per_second=rate, session_run=self.runs)

    def cache(self, deployment: MadeUp) -> SimpleNamespace:
        return hits(self.held(deployment.share), 0.1)

    def load(self, deployment: MadeUp, cache: SimpleNamespace) -> float:
        return 0.25

    def holds_nothing(self, modes) -> bool:
        return self.held(0.8) == 0


def test_quick_plans_find_the_share_on_a_line():
    """Tiers hold 0.9 less the share: 0.1 of 0.8, then 0.8 of 0.1; the line through both is at zero at 0.45."""
    case = Shares(lambda share: 0.9 - share)
    found = estimate_share(case, ("aggregated",))
    assert case.asked == [0.8, 0.1, 0.45]
    assert found == pytest.approx((0.45, 0.25, -2.0, 0.45))
    assert case.loads == [0.0, 0.25, 0.25]


def test_quick_plans_that_meet_no_limit_lie_between_shares():
    """Below 0.3 no plan meets the limits, and tiers hold nothing: 0 is tried, then halves of the way back."""
    case = Shares(lambda share: 0.0, lambda share: share >= 0.3)
    assert estimate_share(case, ("aggregated",)) == pytest.approx((0.3, 0.25, -1.5, 0.0))
    assert case.asked == [0.8, 0.0, 0.4, 0.0, 0.2]
    for held, share in ((0.5, 0.8), (0.0, 0.0)):
        hopeless = Shares(lambda _, held=held: held, lambda _: False)
        found = estimate_share(hopeless, ("aggregated",))
        assert (hopeless.asked, found.share, found.load, math.isnan(found.hit_share)) == ([0.8], share, 0.0, True)


@pytest.fixture
def chosen(monkeypatch):
    """Plans with their loads as what was asked for them."""
    monkeypatch.setattr(session_plan, "with_loads", lambda deployment, slo, cache, load: (deployment.share, slo.ttft, load))


def test_a_whole_plan_of_the_right_share_is_the_first(chosen):
    case = Shares(lambda share: 0.5)
    assert whole_plan(case, (), Estimate(0.5, 0.125, -1.5, 0.5)) == (0.5, 9.0, 0.25)
    assert (case.asked, case.loads) == ([0.5], [0.125])


def test_whole_plans_count_what_tiers_hold(chosen):
    """Tiers hold 0.2: from 0.8 a step of 0.6 / 1.5, then by the slope of -1 between both."""
    case = Shares(lambda share: 0.2)
    assert whole_plan(case, (), Estimate(0.8, 0.125, -1.5, 0.2))[0] == pytest.approx(0.2)
    assert case.asked == pytest.approx([0.8, 0.4, 0.2])
    assert case.loads == [0.125, 0.25, 0.25]
    # A slope of -2, which the first two plans show: from 1/3 half of the rest is added.
    steep = Shares(lambda share: 0.9 - share)
    assert whole_plan(steep, (), Estimate(0.8, 0.125, -1.5, 0.1))[0] == pytest.approx(0.45)
    assert steep.asked == pytest.approx([0.8, 1 / 3, 0.45])
    # A slope that is not as steep as -1 is taken as that.
    flat = Shares(lambda share: 0.2)
    whole_plan(flat, (), Estimate(0.8, 0.125, -0.5, 0.2))
    assert flat.asked == pytest.approx([0.8, 0.2])
    # Tiers that hold more deliver: the last of four such plans, whose share is at most that which repeats.
    more = Shares(lambda share: share + 0.1)
    assert whole_plan(more, (), Estimate(0.5, 0.0, -1.0, 0.5))[0] == pytest.approx(0.8)
    assert more.asked == pytest.approx([0.5, 0.6, 0.7, 0.8])


def test_the_last_whole_plan_counts_what_the_tiers_of_the_one_before_held(chosen):
    """Tiers always hold too little: 0.05 less and eight times the square above a half. Until then the line of two plans."""

    def held(share):
        return share - 0.05 - 8 * max(share - 0.5, 0.0) ** 2

    case = Shares(held)
    assert not whole_plan(case, (), Estimate(0.8, 0.0, -30.0, 0.5)).feasible
    assert len(case.asked) == 5
    for first, second, third in (case.asked[:3], case.asked[1:4]):
        falls = (held(second) - held(first)) / (second - first) - 1
        assert third == pytest.approx(second - (held(second) - second) / falls)
    assert case.asked[4] == pytest.approx(held(case.asked[3]))


def test_plans_that_turns_confirm_are_two_and_the_faster_counts(chosen):
    # Of two that are as fast, the first one.
    for first, second, share in ((2.0, 1.0, 0.6), (1.0, 2.0, 1 / 3), (1.0, 1.0, 0.6)):
        case = Shares(lambda share: 0.2, runs=object(), rates=lambda s, a=first, b=second: a if s > 0.5 else b)
        found = whole_plan(case, (), Estimate(0.6, 0.125, -1.5, 0.2))
        assert case.asked == pytest.approx([0.6, 1 / 3])
        assert case.loads == [0.125, 0.125]
        assert found == (pytest.approx(share), 9.0, 0.25)


def test_whole_plans_that_meet_no_limit_count_fewer_hits(chosen):
    """Half the share each time, then none; the reason names what tiers held in the last plan within the limits."""
    case = Shares(lambda share: 0.2, lambda share: False)
    found = whole_plan(case, (), Estimate(0.8, 0.0, -1.5, 0.25))
    assert case.asked == pytest.approx([0.8, 0.4, 0.2, 0.1, 0.0])
    assert (found.feasible, found.slo) == (False, case.slo)
    assert found.reason.startswith(UNSETTLED)
    assert "has 25 % at the rate" in found.reason
    assert whole_plan(case, (), Estimate(0.8, 0.0, -1.5, math.nan)).reason == UNSETTLED
    # A share that is almost none is not halved.
    small = Shares(lambda share: 0.2, lambda share: False)
    whole_plan(small, (), Estimate(0.03, 0.0, -1.5, 0.25))
    assert small.asked == pytest.approx([0.03, 0.015])
    edge = Shares(lambda share: 0.2, lambda share: False)
    whole_plan(edge, (), Estimate(0.02, 0.0, -1.5, 0.25))
    assert edge.asked == pytest.approx([0.02, 0.01])


# --- modes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "plans", "winner"),
    [
        # Tiers that hold all that repeats: one search of both modes.
        (0.75, {}, ("aggregated", "disaggregated")),
        # Otherwise each mode by itself: first what is feasible, then more evidence, then the higher rate.
        (0.3, {"disaggregated": {"requests_per_second": 2.0}}, ("disaggregated",)),
        (0.3, {"disaggregated": {"requests_per_second": 2.0, "evidence": "any"}}, ("aggregated",)),
        (0.3, {"aggregated": {"requests_per_second": 2.0, "feasible": False}}, ("disaggregated",)),
    ],
)
def test_modes_have_their_own_shares_where_tiers_hold_a_part(monkeypatch, held, plans, winner):
    def make_plan(workload, limits, modes, turns):
        figures = {"evidence": "measured"} | plans.get(modes[0] if len(modes) == 1 else "", {})
        return MadeUp(share=float(workload.cached_share), modes=modes, **figures)

    # 1.8 turns of 1,000 tokens before 600 new ones: 75 % repeat.
    sessions = replace(TWO, turns=2.8)
    monkeypatch.setattr(session_plan, "evaluate_cache", lambda deployment, *_, **__: hits(held))
    monkeypatch.setattr(session_plan, "with_loads", lambda deployment, *_: deployment)
    both = ("aggregated", "disaggregated")
    system = st.load_system("hgx-h100")
    found = plan_turns(make_plan, sessions, st.Slo(), model=MODEL, system=system, modes=both, evidence="measured")
    assert (found.modes, found.sessions) == (winner, sessions)


@each("load, ttft", [(0.5, 1.5), (5.0, 0.002), (0.0, 2.0)])
def test_a_plan_leaves_time_for_loads(load, ttft):
    problem = SessionProblem(lambda *asked: asked, TWO, st.Slo(ttft=2.0), (), {"host": 1e9}, MODEL)
    workload, slo, modes, turns = problem.plan(("aggregated",), 0.5, load, quick=False)
    assert (float(workload.cached_share), slo.ttft, modes) == (0.5, pytest.approx(ttft), ("aggregated",))
    assert (turns.sessions, turns.capacities, turns.load) == (TWO, {"host": 1e9}, pytest.approx(2.0 - ttft))
    assert problem.plan(("aggregated",), 0.5, load, quick=True)[3] is None


def test_the_load_at_a_percentile_is_that_of_its_history():
    problem = SessionProblem(lambda *asked: asked, TWO, st.Slo(), (), None, MODEL)
    assert problem.load(deployed(), hits(0.5, 0.5)) == pytest.approx(3 * 0.5)
    assert problem.load(deployed(session_run=SessionRun({}, 1.0)), hits(0.5, 0.5)) == 0


@pytest.fixture
def plans_made(monkeypatch):
    """The function that makes the plans of sessions, and what each plan was asked."""
    asked: list[dict[str, Any]] = []

    def plan(_model, _system, workload, slo, **settings):
        asked.append({"workload": workload, "slo": slo} | settings)

    monkeypatch.setattr(session_plan, "plan", plan)
    monkeypatch.setattr(session_plan, "plan_turns", lambda make_plan, *_, **settings: (make_plan, settings))
    return lambda **settings: plan_sessions("llama-3.1-8b", "hgx-h100", TWO, **settings), asked


def test_quick_plans_show_no_effects_and_whole_ones_those_that_are_asked_for(plans_made):
    make, asked = plans_made
    make_plan, settings = make(chips=4, chunk=512, modes="aggregated", alternatives=True, prefix_cache={"host": 1e9})
    assert (settings["modes"], settings["capacities"], settings["evidence"]) == (("aggregated",), {"host": 1e9}, "measured")
    make_plan(WORK, st.Slo(ttft=1.0), ("aggregated",), None)
    effects = {"alternatives": False, "elasticities": False, "diagnostics": False, "front": False}
    common = {"workload": WORK, "slo": st.Slo(ttft=1.0), "chips": 4, "chunk": 512, "modes": ("aggregated",)}
    assert asked.pop() == common | effects | {"quick": True, "turns": None}
    turns = SessionCase(TWO)
    make_plan(WORK, st.Slo(ttft=1.0), ("aggregated",), turns)
    assert asked.pop() == common | {"alternatives": True, "turns": turns}


def test_a_chunk_has_no_effect_on_separate_pools(plans_made):
    make, asked = plans_made
    for modes, chunk in ((("aggregated", "disaggregated"), None), (("disaggregated",), 512)):
        make(chunk=512, modes=modes, engine="ideal")[0](WORK, st.Slo(), ("disaggregated",), SessionCase(TWO))
        assert asked.pop()["chunk"] == chunk
    assert make(engine="ideal")[1]["evidence"] == "any"
