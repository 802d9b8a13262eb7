"""MET and MISSED: worked by hand from the figures of a run, and counted from its requests."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import UnknownName
from steptime.simulation.run_metrics import (
    MISSED,
    OVERLOADED,
    PASSED,
    STABLE,
    Answers,
    ClassAnswers,
    Percentiles,
    judge,
    latencies,
)
from tests.conftest import each


def steps(of: float) -> Percentiles:
    """A mean of 1, a median of 2, then 3, 4 and 5, times `of`."""
    return Percentiles(mean=of, p50=2 * of, p90=3 * of, p95=4 * of, p99=5 * of)


def run(**more) -> Answers:
    """A run whose first token takes 0.1 s in the mean and 0.5 s at p99, and each token 0.01 s and 0.05 s."""
    told = {"sent": 1000, "served": 1000, "rejected": 0, "rejected_why": "", "ttft": steps(0.1), "tpot": steps(0.01)}
    told |= {"verdict": STABLE, "why": "", "within_limits": 0.63, "classes": ()} | more
    return Answers(**{f.name: told.get(f.name, 0.0) for f in fields(Answers)})


@each(
    "limits, quantile, verdict",
    [
        (st.Slo(ttft=0.5, tpot=0.05), "p99", PASSED),  # a limit that is reached is kept
        (st.Slo(ttft=0.499), "p99", MISSED),
        (st.Slo(tpot=0.0499), "p99", MISSED),
        (st.Slo(ttft=0.4), "p95", PASSED),
        (st.Slo(ttft=0.3, tpot=0.02), "p90", MISSED),
        (st.Slo(ttft=0.3, tpot=0.02), "p50", PASSED),
        (st.Slo(ttft=0.1), "mean", PASSED),
        (st.Slo(), "p99", PASSED),
    ],
)
def test_a_quantile_is_held_to_its_limit(limits, quantile, verdict):
    found = judge(run(), limits, quantile)
    assert (found.verdict, found.is_met) == (verdict, verdict == PASSED)
    assert found.ttft == getattr(steps(0.1), quantile)
    assert (found.ttft_limit, found.tpot_limit) == (limits.ttft, limits.tpot)


def test_what_it_rests_on_is_said_with_the_limit_that_is_missed():
    found = judge(run(), st.Slo(ttft=0.2, tpot=0.1))
    assert found.why == "first token 500 ms > 200 ms; time per token 50.0 ms ≤ 100 ms (10.0 tok/s)"
    assert found.count == "630 of 1,000 requests (63.0 %) meet all limits"
    assert judge(run(within_limits=0.0), st.Slo(ttft=0.2)).count == "0 of 1,000 requests meet all limits"
    assert judge(run(within_limits=1e-3, sent=10_000), st.Slo()).within == 10
    assert "fewer than 0.1 %" in judge(run(within_limits=1e-4, sent=10_000), st.Slo()).count


def test_a_queue_that_grows_meets_no_limit():
    found = judge(run(verdict=OVERLOADED), st.Slo(ttft=100))
    assert found.verdict == MISSED
    assert "the queue grows" in found.why


@each("quantile, verdict", [("p99", MISSED), ("p95", PASSED), ("mean", MISSED)])
def test_no_more_are_rejected_than_the_quantile_leaves_out(quantile, verdict):
    found = judge(run(served=960, rejected=40, rejected_why="too long"), st.Slo(ttft=1), quantile)
    assert found.verdict == verdict
    assert ("4.0 % rejected: too long" in found.why) is (verdict == MISSED)
    assert judge(run(served=0, rejected=1000), st.Slo(), quantile).verdict == MISSED


def test_each_class_is_held_to_its_own_limits():
    quick = ClassAnswers(rank=0, served=100, ttft=steps(0.01), tpot=steps(0.001), within_limits=1.0)
    slow = replace(quick, rank=1, ttft=steps(0.1))
    both = run(classes=(quick, slow))
    limits = st.Slo(ttft=0.05), st.Slo(ttft=0.5)
    assert judge(both, limits).verdict == PASSED
    missed = judge(both, (limits[0], st.Slo(ttft=0.4)))
    assert missed.verdict == MISSED
    assert "class 1: first token 500 ms > 400 ms" in missed.why
    assert judge(both, (limits[0],)).verdict == MISSED  # the last stands for all further ones


def test_an_unknown_quantile_has_its_nearest():
    with pytest.raises(UnknownName, match="p95") as caught:
        judge(run(), st.Slo(), "p98")
    assert "p99" in caught.value.nearest
    with pytest.raises(UnknownName, match="percentile"):
        judge(run(), st.Slo(), ["p99"])


@pytest.fixture(scope="module")
def served():
    """Four hundred requests that come at two rates, the second beyond what one chip takes at once."""
    arrival = np.concatenate([np.linspace(0, 20, 100), 40 + np.linspace(0, 1, 300)])
    traffic = st.Traffic(arrival=arrival, inputs=np.full(400, 512), outputs=np.full(400, 64))
    return st.simulate("llama-3.1-8b", "hgx-h100", traffic, slo=st.Slo(ttft=0.2, tpot=0.03), percentile="p90")


def test_the_requests_that_meet_both_limits_are_counted(served):
    seen = latencies(served.requests)
    within = int(np.sum((seen["TTFT"] <= 0.2) & (seen["TPOT"] <= 0.03)))
    assert 0 < within < 400
    assert (served.limits.within, served.limits.sent, served.limits.percentile) == (within, 400, "p90")
    assert served.limits.ttft == pytest.approx(np.percentile(seen["TTFT"], 90))
    assert served.limits.verdict == (PASSED if served.limits.ttft <= 0.2 and served.limits.tpot <= 0.03 else MISSED)


def test_a_run_says_it_first(served):
    lines = repr(served).splitlines()
    assert lines[1].startswith(f"  limits: {served.limits.verdict} at p90: {served.limits.within} of 400 requests")
    assert lines[2].startswith("  verdict: ")
    assert served.to_dict()["limits"]["requests_within"] == served.limits.within


def test_a_run_without_limits_has_no_such_verdict():
    traffic = st.open_loop(2, 20, st.Lengths(mean=100), st.Lengths(mean=10))
    found = st.simulate("llama-3.1-8b", "hgx-h100", traffic)
    assert found.limits is None
    assert "limits" not in repr(found)
    with pytest.raises(UnknownName, match="percentile"):
        st.simulate("llama-3.1-8b", "hgx-h100", traffic, percentile="p98")
