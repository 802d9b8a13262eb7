"""Plans against a replay that starts empty and draws other requests: the same questions as docs/replayed_plans.md."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from benchmarks.plan_vs_simulation import compare
from replayed_plans import Question, found, off, questions

import steptime as st
from steptime.planning.slo_probability import point

# Of mean TPOT, TTFT at the percentile of the limits, and cost, which is noise of the drawn outputs only.
MEDIAN, MOST, WORST = (0.04, 0.12, 0.03), (0.15, 0.35, 0.1), (0.3, 0.6, 0.2)
COUNTED = 6000
SHORT, LONG = {"input_tokens": 1000, "output_tokens": 200}, {"input_tokens": 4000, "output_tokens": 1000}
CASES = [
    Question("llama-3.1-8b", "hgx-h100", 2, st.Workload(**SHORT), st.Slo(tpot=0.02, ttft=0.5), "p90", ("aggregated",)),
    Question("llama-3.3-70b", "hgx-b200", 4, st.Workload(**LONG), st.Slo(tpot=0.03, ttft=2.0), "p99", ("aggregated",)),
    Question("gpt-oss-120b", "hgx-h100", 4, st.Workload(**LONG), st.Slo(tpot=0.02, ttft=2.0), "mean", ("aggregated",)),
    Question(
        "qwen3-30b-a3b", "hgx-h200", 4, st.Workload(**LONG, cached_share=0.5), st.Slo(tpot=0.02, ttft=1.0), "p90",
        ("disaggregated",),
    ),
]  # fmt: skip


@pytest.mark.thorough
def test_plans_are_what_replays_of_other_draws_find():
    """Log-normal lengths whose standard deviation is their mean, and random arrivals."""
    for asked in CASES[::3]:
        plan = asked.answer()
        assert plan.percentile == asked.percentile
        compared = compare(plan, requests=COUNTED, seed=7)
        assert compared.steady
        assert compared.tpot_ratio == pytest.approx(1, abs=0.06), asked
        assert compared.tail_ttft_ratio == pytest.approx(1, abs=0.2), asked
        assert compared.tail_tpot_ratio == pytest.approx(1, abs=0.1), asked
        assert compared.planned_tail_ttft <= asked.slo.ttft
        assert compared.planned_tail_tpot <= asked.slo.tpot


@pytest.mark.slow
def test_forty_plans_are_what_their_replays_find():
    table = []
    for number in range(40):
        row = found(number)
        if row.compared is not None:
            assert row.compared.steady, row
            table.append(np.abs(off(row.compared)))
    assert len(table) >= 36
    assert np.all(np.median(table, axis=0) <= MEDIAN)
    assert np.all(np.quantile(table, 0.95, axis=0) <= MOST)
    assert np.all(np.max(table, axis=0) <= WORST)


@pytest.mark.slow
def test_plans_that_are_sure_cost_more_and_keep_their_limits_in_the_replay():
    """At their level: the point of the range below which nine in ten stay, moved by what the replay finds, is at the limit.

    But for the first token of one: two groups that read by context parallelism, four prompts each, take 1.45 times as long.
    """
    kept, late = 0, 0
    for q in islice(questions(5), 14):
        given = {"chips": q.chips, "modes": q.mode, "alternatives": False}
        plain = st.plan(q.model, q.system, q.workload, q.slo, **given)
        sure = st.plan(q.model, q.system, q.workload, q.slo, sure=0.9, **given)
        if not sure.feasible:
            continue
        kept += 1
        compared = compare(sure, requests=COUNTED)
        # The rent of the chips is that of the plan without, where it is known: output decides the cost.
        assert sure.requests_per_second <= plain.requests_per_second * 1.005
        assert sure.tpot * compared.tpot_ratio <= q.slo.tpot  # the mean
        assert point(sure.tpot, sure.tpot_range, 0.9) * compared.tpot_ratio <= q.slo.tpot * (1 + MEDIAN[0])
        at_level = point(sure.ttft, sure.ttft_range, 0.9) * compared.ttft_ratio
        late += sure.ttft * compared.ttft_ratio > q.slo.ttft or at_level > q.slo.ttft * (1 + WORST[1])
    assert kept >= 8
    assert late <= 1
