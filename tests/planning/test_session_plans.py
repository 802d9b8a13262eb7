"""Plans for sessions: hits in closed form against numbers worked by hand and the tiers of the simulator; the fixed point."""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.errors import RangeError, UnknownName
from steptime.models.model import cached_token_bytes
from steptime.planning import session_plan
from steptime.planning.session_hits import (
    answer_quantiles,
    find_hits,
    flow_of_sessions,
    found_tokens,
    hold_seconds,
    tokens_used_within,
)
from steptime.planning.session_plan import SessionProblem, Trial, load_wait, next_share, plan_sessions, plan_turns
from steptime.questions.plan_question import solve
from steptime.simulation.prefix_cache import Cache, Tier, use_cache
from steptime.units import parse
from steptime.workload.sessions import PRESETS, Sessions, as_workload, draw_sessions, held_share, mean_history
from steptime.workload.workload import Slo
from tests.cli.test_commands import run
from tests.conftest import each, every
from tests.planning.test_session_truth import simulated

CHAT, AGENT = PRESETS["chat"], PRESETS["agent"]
# Two turns on average of 1,000 tokens; the next one comes after 10 s on average. Answers take no time.
TWO = Sessions(turns=2, input_tokens=600, output_tokens=400, think_time=10, input_spread=0, output_spread=0)
MODEL = "llama-3.1-8b"


def flow(sessions, rate, answer=0.0, **more):
    return flow_of_sessions(sessions, rate=rate, answer=answer, **more)


def test_tokens_in_use_by_hand():
    """Turns have 2,000 tokens after them on average; half of them are followed by another one."""
    mean, deviation = tokens_used_within(10.0, flow(TWO, 1.0))
    # 2,000 (10 - 0.5 (10 - 10 (1 - 1/e))) tokens of one turn a second.
    by_hand = 1000 * 10 + 10_000 * (1 - math.exp(-1))
    assert mean == pytest.approx(by_hand)
    # Squares of 1, 2, 3, ... turns with shares 1/2, 1/4, 1/8, ...: 6 on average.
    reused = 0.5 * (10 - 10 * (1 - math.exp(-1)))
    assert deviation**2 == pytest.approx(6e6 * (10 - reused))
    # The variances of two turns, the mean, add to it; the mean stays.
    varied = replace(TWO, input_spread=0.5, output_spread=0.25)
    same, deviation = tokens_used_within(10.0, flow(varied, 1.0))
    assert (same, deviation**2) == pytest.approx((by_hand, (6e6 + 2 * (300**2 + 100**2)) * (10 - reused)))


def test_hits_by_hand():
    """A cache that holds what was used in 10 s finds the turns that come back within 10 s: 1 - 1/e of 1,000 tokens."""
    # Very many sessions: their number hardly varies.
    many = flow(TWO, 1e6)
    capacity = 1e6 * (1000 * 10 + 10_000 * (1 - math.exp(-1)))
    assert hold_seconds(capacity, many) == pytest.approx(10, rel=1e-6)
    assert found_tokens(capacity, many) == pytest.approx(1000 * (1 - math.exp(-1)), rel=0.01)


@each("seconds", [1e-3, 0.5, 30.0, 1e4])
def test_a_cache_holds_for_the_time_in_which_turns_use_as_much(seconds):
    turns = flow(CHAT, 10.0, answer=4.0, answer_spread=0.5, longest=131_072)
    assert hold_seconds(float(tokens_used_within(seconds, turns)[0]), turns) == pytest.approx(seconds, rel=1e-6)
    assert (hold_seconds(0.0, turns), hold_seconds(math.inf, turns)) == (0.0, math.inf)


def test_a_system_prompt_takes_its_room_once():
    with_prompt = replace(TWO, system_prompt=5000)
    bare, shared = (tokens_used_within(3.0, flow(sessions, 100.0))[0] for sessions in (TWO, with_prompt))
    assert shared - bare == pytest.approx(5000)
    # A few turns more than its own room find it, and no history.
    assert found_tokens(1e5, flow(with_prompt, 1e4, answer=5.0)) == pytest.approx(5000, rel=0.01)


@pytest.mark.parametrize(
    "sessions",
    [
        TWO,
        AGENT,
        *(pytest.param(sessions, marks=pytest.mark.thorough) for sessions in (CHAT, replace(CHAT, system_prompt=3000))),
    ],
)
@pytest.mark.parametrize("answer", every(2, [5.0, 0.0]))
def test_laws_of_hits(sessions, answer):
    sizes = np.array([0, 1e3, 1e5, 1e6, 1e7, 1e8, 1e12])
    turns = flow(sessions, 10.0, answer, answer_spread=0.5, longest=131_072)
    found = np.array([found_tokens(size, turns) for size in sizes])
    assert found[0] == 0
    assert np.all(np.diff(found) >= 0)
    # A very large cache finds all that repeats.
    everything = sessions.system_prompt + mean_history(sessions, 131_072)
    assert found[-1] == pytest.approx(everything, rel=0.01)
    assert found_tokens(math.inf, turns) == pytest.approx(everything)
    # Longer think times, more sessions and longer answers lower the hits.
    for harder in (
        flow(replace(sessions, think_time=2 * sessions.think_time), 10.0, answer, answer_spread=0.5, longest=131_072),
        flow(sessions, 20.0, answer, answer_spread=0.5, longest=131_072),
        flow(sessions, 10.0, answer + 5, answer_spread=0.5, longest=131_072),
    ):
        assert all(found_tokens(size, harder) <= tokens * (1 + 1e-9) for size, tokens in zip(sizes, found, strict=True))


def test_tiers_together_find_what_one_of_their_size_finds():
    turns = flow(CHAT, 10.0, 4.0)
    two = find_hits([2e5, 6e5], turns)
    assert two.tokens.sum() == pytest.approx(found_tokens(8e5, turns))
    assert two.hold_seconds[1] == pytest.approx(hold_seconds(8e5, turns))
    assert np.all(find_hits([0.0, 0.0], turns).tokens == 0)


def test_times_of_answers_keep_their_mean():
    assert answer_quantiles(3.0, 1.5).mean() == pytest.approx(3.0)
    assert answer_quantiles(3.0, 0.0).tolist() == [3.0]


@cache
def pace():
    """Step times, with which loads from memory of the chips cost nothing."""
    return st.simulate(MODEL, "hgx-h100", st.open_loop(1, 10, st.Lengths(mean=9000), st.Lengths(mean=9)), engine="ideal").pace


@pytest.mark.parametrize(
    ("sessions", "rate", "answer", "sizes"),
    [
        pytest.param(CHAT, 20.0, 5.0, (4e5, 1e6, 2e6, 4e6, 8e6), marks=pytest.mark.thorough),
        (replace(CHAT, system_prompt=2000), 20.0, 5.0, (4e5, 2e6, 8e6)),
        pytest.param(
            replace(AGENT, turns=20, system_prompt=4000), 5.0, 6.0, (4e5, 1e6, 2e6, 3e6, 6e6), marks=pytest.mark.thorough
        ),
        (replace(CHAT, think_time=15), 20.0, 10.0, (2e5, 1e6)),
    ],
)
def test_hits_are_those_of_the_tiers_of_the_simulator(sessions, rate, answer, sizes):
    """Within 4 points of all prompt tokens, for one tier and for two."""
    traffic = draw_sessions(sessions, rate=rate, requests=30_000, longest=131_072).turns.traffic(answer)
    prompt, width = as_workload(sessions, 0, 131_072).input_tokens, 1000.0
    # Histories are in no tier while an answer is made.
    turns = flow(sessions, rate, longest=131_072)
    for size in sizes:
        tiers = tuple(Tier(name=name, capacity=size * width, bandwidth=1e15) for name in ("hbm", "host"))
        measured = [tier.hit_share for tier in use_cache(Cache(tiers=tiers), traffic, pace(), bytes_per_token=width).by_tier]
        assert find_hits([size, size], turns).tokens / prompt == pytest.approx(measured, abs=0.04)


def test_hits_are_those_of_a_whole_simulation():
    """Turns wait for their answers, in which their history is in no tier."""
    traffic = draw_sessions(CHAT, rate=5, requests=10_000)
    width = cached_token_bytes(st.load_model(MODEL))
    for size in (2e5, 8e5, 3e6):
        sizes = {"hbm": 0.0, "host": size * width}
        tiers = tuple(Tier(name=name, capacity=capacity, bandwidth=1e15) for name, capacity in sizes.items())
        result = st.simulate(MODEL, "hgx-h100", traffic, engine="vllm", cache=Cache(tiers=tiers))
        closed = found_tokens(size, flow(CHAT, 5.0)) / as_workload(CHAT, 0).input_tokens
        assert closed == pytest.approx(result.cache.hit_rate, abs=0.03)


# --- the fixed point ----------------------------------------------------------------------------------------------------


def test_the_next_share_lies_between_too_small_and_too_large():
    assert next_share(Trial(0.2, 0.3), Trial(0.8, -0.1), 0.7) == pytest.approx(0.2 + 0.6 * 0.75)
    assert next_share(Trial(0.2, 1e-9), Trial(0.8, -1.0), 0.7) == pytest.approx(0.26)
    assert next_share(None, Trial(0.8, -0.3), 0.5) == 0.5


@dataclass(frozen=True)
class Settled:
    """What a search of shares needs of a plan."""

    share: float
    feasible: bool = True
    percentile: str = "mean"
    requests_per_second: float = 1.0
    evidence: str = "any"
    session_run: None = None
    sessions: Sessions | None = None


def settled(monkeypatch, held):
    """Return the share of the plan where the tiers hold some function of it, and all shares that were planned."""
    asked = []

    def make_plan(workload, limits, modes, turns):
        asked.append((workload.cached_share, turns is None))
        return Settled(share=workload.cached_share)

    def evaluate(deployment, *_, **__):
        return SimpleNamespace(hit_share=held(deployment.share), load_seconds=0.0)

    monkeypatch.setattr(session_plan, "evaluate_cache", evaluate)
    monkeypatch.setattr(session_plan, "with_loads", lambda deployment, *_: deployment)
    model, system = st.load_model(MODEL), st.load_system("hgx-h100")
    return plan_turns(make_plan, replace(CHAT, turns=10), st.Slo(), model=model, system=system, modes=("aggregated",)), asked


@pytest.mark.parametrize("slope", [0.3, 1.0, 3.0])
def test_the_cached_share_is_what_the_tiers_hold(monkeypatch, slope):
    """With tiers that hold less at the rate of a larger share, in one line, the fixed point is known."""
    deployment, asked = settled(monkeypatch, lambda share: max(0.0, 0.9 - slope * share))
    fixed = 0.9 / (1 + slope)
    assert abs(deployment.share - fixed) * (1 + slope) <= session_plan.TOLERANCE * (1 - deployment.share)
    assert sum(not quick for _, quick in asked) == 1
    assert len(asked) <= session_plan.MOST_QUICK + 2


def test_a_plan_counts_no_more_than_its_tiers_hold(monkeypatch):
    """Where another layout, whose tiers hold less, is cheapest from some share on, the plan stays below it."""
    deployment, asked = settled(monkeypatch, lambda share: 0.9 if share < 0.5 else 0.2)
    assert 0.2 <= deployment.share < 0.5
    assert len(asked) <= session_plan.MOST_QUICK + session_plan.MOST_WHOLE + 2
    # Tiers that hold nothing count for nothing.
    assert settled(monkeypatch, lambda share: 0.0)[0].share == 0


@cache
def planned(tiers="", kind="chat", **more):
    asked = {"model": MODEL, "system": "l40s-8", "chips": 1, "mode": "aggregated"}
    asked |= {"sessions": kind, "speed": 20, "ttft": 3, **more}
    return solve(asked | ({"prefix_cache": tiers} if tiers else {}), diagnostics=False)


@pytest.mark.slow
def test_larger_tiers_find_more_and_cost_less():
    plans = [planned(tiers) for tiers in ("hbm=0GB,host=0GB", "hbm=0GB,host=20GB", "hbm=0GB,host=100GB", "hbm=0GB,host=20TB")]
    shares = [plan.session_cache.hit_share for plan in plans]
    costs = [plan.usd_per_million_output_tokens for plan in plans]
    assert shares[0] == 0
    assert shares == sorted(shares)
    # Rates of plans are known to 2 %.
    assert all(after <= 1.03 * before for before, after in pairwise(costs))
    assert costs[-1] < 0.8 * costs[0]
    # Half a block of each prompt is computed again.
    assert shares[-1] == pytest.approx(held_share(CHAT), abs=0.012)
    for plan in plans:
        assert abs(plan.session_cache.hit_share - plan.workload.cached_share) < 0.08


@pytest.mark.slow
def test_a_longer_think_time_needs_more_memory():
    short, usual = (planned("hbm=0GB,host=50GB", think_time=think) for think in (20.0, 124.0))
    assert short.session_cache.hit_share > usual.session_cache.hit_share
    assert short.session_cache.needed_bytes < usual.session_cache.needed_bytes
    assert short.usd_per_million_output_tokens < usual.usd_per_million_output_tokens


@pytest.mark.thorough
def test_a_plan_with_everything_held_is_that_of_its_cached_share():
    plan = planned("hbm=0GB,host=20TB")
    load = plan.session_cache.load_seconds
    assumed = st.plan(
        MODEL, "l40s-8", as_workload(CHAT, held_share(CHAT, 131_072), 131_072), st.Slo(speed=20, ttft=3), alternatives=False,
        elasticities=False, diagnostics=False, chips=1, modes="aggregated",
    )  # fmt: skip
    assert plan.usd_per_million_output_tokens == pytest.approx(assumed.usd_per_million_output_tokens, rel=0.12)
    assert plan.mean_ttft == pytest.approx(assumed.mean_ttft + load, rel=0.35)
    assert plan.slo == st.Slo(speed=20, ttft=3)


@pytest.mark.thorough
def test_loads_take_bytes_over_bandwidth():
    plan = planned("hbm=0GB,host=20TB")
    host = plan.session_cache.tiers[1]
    chips = int(plan.pools[0].layout.chips)
    width = cached_token_bytes(st.load_model(MODEL))
    loaded = host.hit_share * as_workload(CHAT, 0, 131_072).input_tokens * width
    bandwidth = float(st.load_system("l40s-8").tiers[0].bandwidth) * chips
    assert host.load_seconds == pytest.approx(loaded / bandwidth, rel=0.02)
    rate = plan.requests_per_second / int(plan.pools[0].layout.replicas)
    assert host.bandwidth_share == pytest.approx(rate * loaded / bandwidth, rel=0.02)
    assert plan.session_cache.sessions_in_progress == pytest.approx(
        plan.requests_per_second * (124 * 0.6 + plan.mean_ttft + 440 * plan.mean_tpot), rel=0.01
    )


@pytest.mark.thorough
def test_a_disk_that_is_slower_than_prefill_is_not_used():
    by_name = {tier.name: tier for tier in planned(system="hgx-h100").session_cache.tiers}
    slow = by_name["hdd"]
    assert slow.why_unused
    assert slow.hit_share == slow.load_seconds == 0
    # Free HBM has the rest of the chips, and is the first tier.
    assert 0 < by_name["hbm"].capacity < float(st.load_system("hgx-h100").chip.hbm.capacity)


@pytest.mark.slow
def test_agents_need_their_tiers_in_time():
    """Without a tier each turn prefills its whole history, which takes longer than the limit."""
    bare = planned("hbm=0GB,host=0GB", "agent", ttft=1.5)
    assert not bare.feasible
    assert "first token" in bare.reason
    assert "The prefix cache has 0 % of the prompt tokens; 98 % repeat" in bare.reason
    held = planned("", "agent", ttft=1.5)
    assert held.feasible
    assert held.session_cache.hit_share > 0.95
    assert held.session_cache.needed_tier in ("hbm", "host")
    # A refusal counts what the tiers hold.
    late = planned("", "agent", ttft=0.5)
    assert "The prefix cache has 98 % of the prompt tokens, all that repeat" in late.reason
    assert "the earliest comes after about" in late.reason


@pytest.mark.slow
def test_the_soonest_first_token_of_sessions_that_a_refusal_names_can_be_had():
    asked = {"model": MODEL, "system": "l40s-8", "chips": 1, "sessions": "agent", "speed": 20}
    refused = solve(asked | {"ttft": 0.3})
    soonest = parse(refused.reason.split("the earliest comes after about ")[1].split(". ")[0], "s")
    assert solve(asked | {"ttft": soonest}).feasible
    assert not solve(asked | {"ttft": 0.9 * soonest}, diagnostics=False).feasible


def test_wrong_inputs_are_refused():
    for more, error, words in (
        ({"cached": 0.5}, RangeError, "the cached share is a result of sessions, got cached"),
        ({"trace": "azure-code"}, RangeError, "sessions have their own prompts, got trace"),
        ({"prefix_cache": "hots=1TB"}, RangeError, "prefix_cache: unknown memory tier 'hots'; did you mean host"),
        ({"system_prompt": 131_072}, RangeError, "one turn must fit the context"),
    ):
        with pytest.raises(error, match=words):
            solve({"model": MODEL, "system": "l40s-8", "sessions": "chat", **more})
    for more, words in (({"prefix_cache": "host=1TB"}, "give sessions too"), ({"think_time": 3}, "only sessions have one")):
        with pytest.raises(RangeError, match=words):
            solve({"model": MODEL, "system": "l40s-8", **more})
    model, system = st.load_model("mamba-2.8b"), st.load_system("hgx-h100")
    with pytest.raises(RangeError, match="KV cache that grows with tokens"):
        plan_sessions(model, system, "chat")
    with pytest.raises(UnknownName, match="did you mean chat"):
        plan_sessions(MODEL, system, "chta")
    with pytest.raises(RangeError, match="histories of sessions are on one system"):
        plan_sessions(MODEL, system, "chat", prefill_system="l40s-8")


@pytest.mark.thorough
def test_the_command_says_what_holds_the_cached_tokens():
    asked = f"plan {MODEL} l40s-8 --speed 20 --ttft 3 --chips 1 --mode aggregated"
    sessions = json.loads(run(f"{asked} --sessions chat --json").stdout)
    assert sessions["session_cache"]["hit_share"] == pytest.approx(sessions["workload"]["cached_share"], abs=0.02)
    assert [tier["name"] for tier in sessions["session_cache"]["tiers"]][:2] == ["hbm", "host"]
    assumed = run(f"{asked} --cached 0.5")
    assert assumed.returncode == 0
    assert "cached, assumed" in " ".join(assumed.stdout.split())


@pytest.mark.slow
def test_one_pool_with_more_evidence_goes_before_two_that_are_cheaper():
    """Each mode has its own share; the levels of evidence are those of other plans."""
    asked = {"model": "llama-3.1-70b", "system": "hgx-h100", "sessions": "chat", "speed": 30, "ttft": 2}
    tiers = {"prefix_cache": "hbm=0GB,host=100GB"}
    plans = {
        evidence: solve(asked | tiers | {"evidence": evidence}, diagnostics=False) for evidence in ("measured", "published")
    }
    assert (plans["measured"].mode, plans["measured"].evidence) == ("aggregated", "measured")
    assert plans["published"].mode == "disaggregated"
    assert plans["published"].usd_per_million_output_tokens < plans["measured"].usd_per_million_output_tokens


def test_a_negative_capacity_of_a_tier_is_refused():
    with pytest.raises(RangeError, match=r"prefix_cache: host must be at least 0 B"):
        solve({"model": "llama-3.1-70b", "system": "hgx-h100", "sessions": "chat", "prefix_cache": "host=-1TB"})


def test_loads_wait_for_each_other_on_a_link():
    """Half of the time busy with loads of 0.2 s that are all equal: M/D/1 has a wait of 0.5 / (2 x 0.5) of a load."""
    assert load_wait(2.5, 0.2, 1.0) == pytest.approx(0.1)
    # Exponential loads wait twice as long.
    assert load_wait(2.5, 0.2, 2.0) == pytest.approx(0.2)
    assert load_wait(0.0, 0.2, 1.0) == 0


@pytest.mark.slow
def test_the_python_name_gives_the_plan_of_the_question():
    ours = planned()
    named = st.plan_sessions(
        MODEL, "l40s-8", "chat", st.Slo(speed=20, ttft=3), chips=1, modes="aggregated", alternatives=False, elasticities=False,
        diagnostics=False,
    )  # fmt: skip
    assert named.requests_per_second == pytest.approx(ours.requests_per_second, rel=1e-9)
    assert named.session_cache == ours.session_cache
    assert named.session_cache.is_replayed


@pytest.mark.slow
def test_a_context_that_ends_sessions_lowers_the_mean_turns():
    cache = planned(sessions=10_000, speed=5, ttft=60, input=7168, output=1024).session_cache
    # Turns of 8,192 tokens in and out within 131,072 tokens.
    assert cache.mean_turns == pytest.approx(131_072 // 8_192, rel=0.02)
    assert cache.sessions.turns == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("host", [20, 60])
def test_a_simulation_keeps_what_a_plan_states(host):
    """Where tiers barely hold the sessions in progress, the rate of a plan is one that they keep."""
    asked = {"model": MODEL, "system": "l40s-8", "sessions": "chat", "speed": 20, "ttft": 3, "chips": 1}
    asked |= {"prefix_cache": f"host={host}GB", "mode": "aggregated"}
    deployment = solve(asked, diagnostics=False)
    run = simulated(asked, deployment)
    assert run.answers.verdict != "OVERLOADED"
    assert run.answers.tpot.p90 == pytest.approx(deployment.tpot, rel=0.07)
    assert run.answers.ttft.p90 == pytest.approx(deployment.ttft, rel=0.2)
    tiers = {tier.name: tier.hit_share for tier in deployment.session_cache.tiers}
    for tier in run.cache.by_tier:
        assert tier.hit_share == pytest.approx(tiers[tier.name], abs=0.04)


@pytest.mark.slow
def test_a_replay_of_a_plan_for_sessions_serves_sessions():
    shown = json.loads(run(f"plan {MODEL} l40s-8 --speed 20 --ttft 3 --chips 1 --sessions chat --simulate --json").stdout)
    assert "sessions" in shown["simulated"]["simulation"]["traffic"]["name"] if "simulation" in shown["simulated"] else True
    assert shown["simulated"]["good"]
    assert shown["simulated"]["requests_per_s"] >= 0.9 * shown["simulated"]["planned_requests_per_s"]


@pytest.mark.thorough
def test_an_infeasible_plan_for_sessions_assumes_no_hits():
    refused = run(f"plan {MODEL} l40s-8 --speed 20 --ttft 0.001 --chips 1 --sessions chat")
    assert refused.returncode == 1
    assert "assumed" not in refused.stdout
    # The cache has all that repeats, so that larger tiers would not help.
    assert "all that repeat" in " ".join(refused.stdout.split())
    assert "--prefix-cache" not in refused.stdout


@pytest.mark.parametrize(("ttft", "expected"), [(math.inf, 0.0), (2.0, 0.5)])
def test_loads_take_time_only_from_a_limit(ttft, expected):
    """Infinity minus infinity is no number: separate pools without a limit had no plan for sessions."""
    problem = SessionProblem(lambda work, slo, modes, turns: turns, CHAT, Slo(ttft=ttft), (), None, st.load_model(MODEL))
    assert problem.plan(("disaggregated",), 0.5, 0.5, quick=False).load == expected
