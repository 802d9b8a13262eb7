"""The rates and the sessions of a replay, without a simulator."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning import plan_replay
from steptime.planning.finalists import SimulatedPool
from steptime.planning.session_hits import TierHits
from steptime.workload.sessions import Sessions
from tests.conftest import engine
from tests.planning.cases import MODEL, NODES, WORK, made

SERVER = SimulatedPool(role="serve", layout=Layout(), batch=30, max_num_seqs=42, chunk=512)
SLO = st.Slo(tpot=0.02)


@pytest.fixture
def good_below(monkeypatch):
    """Return a function that replays with runs that meet the limits below a rate, and the rates that were tried."""
    rates: list[float] = []

    def settled(run, traffic, *, rate, requests, lifetimes):
        rates.append(rate)
        return SimpleNamespace(answers=rate)

    monkeypatch.setattr(plan_replay, "run_until_settled", settled)

    def replayed(limit: float, **more):
        rates.clear()
        monkeypatch.setattr(plan_replay, "meets", lambda answers, slo, percentile: answers <= limit)
        return plan_replay.replay_pools(MODEL, NODES, WORK, SLO, (SERVER,), 10.0, engine=engine(), **more), rates

    return replayed


def test_a_replay_lowers_the_rate_faster_and_faster_until_the_limits_are_met(good_below):
    """By 2 % for the first time, then by that four and nine times."""
    found, rates = good_below(9.0)
    assert rates == pytest.approx([10.0, 9.8, 10 * 0.98**4, 10 * 0.98**9])
    assert (found.rate, found.planned_rate, found.good, found.attempts) == (pytest.approx(10 * 0.98**9), 10.0, True, 4)
    assert (found.batch, found.planned_batch, found.percentile, found.slo) == (42, 30, "p90", SLO)
    found, rates = good_below(10.0)
    assert (rates, found.attempts) == ([10.0], 1)
    missed, rates = good_below(0.0)
    assert (missed.good, missed.attempts, len(rates)) == (False, 12, 12)
    assert good_below(0.0, tries=2)[0].attempts == 2


def test_reason_of_a_missed_replay_is_its_limit_or_a_run_that_is_too_short(good_below, monkeypatch):
    missed, _ = good_below(0.0, tries=1)
    for is_met, why in ((False, "TPOT"), (True, "the run is too short")):
        verdict = SimpleNamespace(is_met=is_met, why="TPOT")
        monkeypatch.setattr(plan_replay, "judge", lambda *given, verdict=verdict: verdict)
        assert missed.reason.endswith(f": {why}")
    assert good_below(10.0)[0].reason == ""


def test_a_replay_has_all_that_its_plan_has(monkeypatch):
    asked = []
    monkeypatch.setattr(plan_replay, "load_plan_inputs", lambda plan, *given: given)
    monkeypatch.setattr(plan_replay, "load_prefill_system", lambda plan, given: f"loaded {given}")
    monkeypatch.setattr(plan_replay, "replay_pools", lambda *given, **settings: asked.append((given, settings)))
    plan = replace(made(), percentile="p95", requests_per_second=3.0, speculation="drafts", session_cache="cache")
    for more in ({}, {"percentile": "mean", "requests": 9, "seed": 7}):
        plan_replay.replay(plan, "model", "system", "engine", prefill_system="other", **more)
    given = ("model", "system", plan.workload, plan.slo, plan.pools, 3.0)
    settings = {"engine": "engine", "percentile": "p95", "requests": 4000, "seed": 0, "speculation": "drafts"}
    settings |= {"prefill_system": "loaded other", "session_cache": "cache"}
    assert asked == [(given, settings), (given, settings | more)]


def test_sessions_of_a_plan_have_the_tiers_that_it_uses():
    rest = {"hold_seconds": 1.0, "hit_share": 0.1, "load_seconds": 0.0, "bandwidth_share": 0.0}
    sizes = (("hbm", 8e9, ""), ("disk", 1e12, "slow"), ("host", 2e9, ""))
    tiers = [TierHits(name=name, capacity=size, why_unused=why, **rest) for name, size, why in sizes]
    found = plan_replay.planned_sessions(SimpleNamespace(sessions="them", tiers=tiers))
    assert (found.sessions, dict(found.capacities), found.load) == ("them", {"hbm": 8e9, "host": 2e9}, 0.0)


@pytest.mark.parametrize(
    ("rate", "tpot", "counts"),
    [
        (1.0, 0.02, [4000]), (30.0, 0.0199, [12_000]), (1000.0, 0.01, [60_000]), (1000.0, 0.019, [60_000, 240_000]),
        (1000.0, 0.021, [60_000, 240_000]), (200.0, 0.02, [60_000, 80_000]), (1000.0, math.nan, [60_000]),
    ],
)  # fmt: skip
def test_a_replay_of_sessions_lasts_for_twenty_of_them_or_for_fewer_if_no_limit_is_near(monkeypatch, rate, tpot, counts):
    """Two turns of 10 s each: 400 s; the limit is 20 ms per token."""
    asked = []
    monkeypatch.setattr(plan_replay, "draw_sessions", lambda sessions, **given: asked.append(given))
    monkeypatch.setattr(plan_replay, "simulate", lambda *given, **settings: SimpleNamespace(answers=tpot, settings=settings))
    judged = SimpleNamespace(ttft=1.0, ttft_limit=math.inf, tpot=tpot, tpot_limit=0.02)
    monkeypatch.setattr(plan_replay, "judge", lambda answers, slo, percentile: judged)
    sessions = Sessions(turns=2, input_tokens=600, output_tokens=400, think_time=10, input_spread=0, output_spread=0)
    model, settings = replace(MODEL, max_context=10**9), {"slo": st.Slo(tpot=0.02), "percentile": "p90"}
    run = plan_replay._serve_sessions(sessions, model, NODES, 4000, 7, settings, rate=rate)
    assert run.settings == settings
    assert [one["requests"] for one in asked] == pytest.approx(counts, abs=1)
    assert {(one["rate"], one["seed"]) for one in asked} == {(rate, 7)}
