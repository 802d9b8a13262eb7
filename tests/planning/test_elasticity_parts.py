"""What limits a batch and what figures are worth, on states and rates made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning import elasticity
from steptime.planning.elasticity import _prefill_limit, binding, relaxed, worths
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate
from tests.conftest import each
from tests.planning.cases import case

SLO = st.Slo(tpot=0.02, ttft=1.0)
ONE = Candidate(mode=AGGREGATED, layout=Layout(), batch=84, chunk=1000)
SIZES = [500, 1000, 2000]


def grid(**changes) -> dict[str, np.ndarray]:
    """Columns of the next batch and of factors 1.1, 1.25, 1.5 and 2, in three chunk sizes: nothing is broken."""
    rate = np.array([10.1, 11.0, 12.5, 15.0, 20.0])[:, None] * np.array([0.9, 1.0, 0.8])
    columns = {
        "tpot": np.full((5, 3), 0.01), "ttft": np.full((5, 3), 0.5), "rate": rate, "utilisation": np.full((5, 3), 0.5),
        "fits": np.full((5, 3), True), "seats": np.full((5, 3), True),
    }  # fmt: skip
    for name, cells in changes.items():
        for where, value in cells.items():
            columns[name][where] = value
    return columns


@pytest.fixture
def bound(monkeypatch):
    """Return what binds a candidate that serves 10 requests/s, from columns of larger batches."""

    def find(columns, *, limit=math.inf, names=(), now=10.0, one=ONE):
        batches = []

        def evaluate_state(_case, _candidate, batch, _chunk):
            if np.ndim(batch) == 0:
                return SimpleNamespace(rate=now, tpot=0.01, memory=None)
            batches.extend(batch.ravel().tolist())
            figures = {name: columns[name] for name in ("tpot", "ttft", "rate", "utilisation")}
            return SimpleNamespace(**figures, input_share=0.0, memory=SimpleNamespace(fits=columns["fits"]))

        def evaluate_occupancy(_case, _state, _candidate, batch):
            return SimpleNamespace(memory=SimpleNamespace(fits=columns["seats"] if np.ndim(batch) else True))

        monkeypatch.setattr(elasticity, "evaluate_state", evaluate_state)
        monkeypatch.setattr(elasticity, "evaluate_occupancy", evaluate_occupancy)
        monkeypatch.setattr(elasticity, "decode_rate", lambda _case, state, *_: state.rate)
        monkeypatch.setattr(elasticity, "_prefill_limit", lambda *_: (limit, names))
        monkeypatch.setattr(elasticity, "chunk_sizes", lambda *_: np.array(SIZES))
        found = binding(case(slo=SLO), one)
        assert limit <= now or batches == [85, 93, 105, 126, 168]
        return found

    return find


@each(
    "columns, names",
    [
        (grid(), ("saturation",)),
        (grid(tpot={(0, 1): 0.021}), ("speed",)),
        (grid(tpot={(4, 1): 0.021}), ("speed",)),  # at twice the batch
        (grid(tpot={(0, 0): 0.021, (0, 2): 0.021}), ("saturation",)),  # of other chunks than the plan's
        (grid(ttft={(1, 1): 1.01}), ("first token",)),
        (grid(tpot={(2, 1): 0.021}, ttft={(2, 1): 1.01}), ("speed", "first token")),
        (grid(tpot={(2, 1): 0.021}, ttft={(1, 1): 1.01}), ("first token",)),  # the first that breaks
        (grid(tpot={(2, 1): 0.02}, ttft={(1, 1): 1.0}), ("saturation",)),  # limits are met
        (grid(seats={(3, 1): False}), ("memory",)),
        (grid(fits={(3, 1): False}), ("saturation",)),  # without spare slots, but more is served
        (grid(fits={(0, 1): False}, rate={(0, 1): 10.0}), ("memory",)),
        (grid(utilisation={(2, 1): 0.91}), ("prompt queue",)),
        (grid(utilisation={(2, 1): 0.91}, tpot={(2, 1): 9.0}, ttft={(2, 1): 9.0}), ("prompt queue",)),
        (grid(utilisation={(2, 1): 0.9}), ("saturation",)),
        (grid(utilisation={...: 0.91}), ("prompt queue",)),
        # Of a batch a tenth larger only one chunk is stable, and brings nothing; another would bring a tenth.
        (grid(utilisation={(1, 1): 0.95}, rate={(1, 0): 10.04, (1, 2): 10.04}), ("prompt queue",)),
        (grid(rate={(1, 0): 10.04, (1, 1): 10.04, (1, 2): 10.04}), ("saturation",)),
        (grid(utilisation={(1, 1): 0.95}, rate={(1, 0): 10.04, (1, 2): 10.04}, tpot={(1, 1): math.inf}), ("saturation",)),
        (grid(rate={(1, 0): 10.04, (1, 1): 10.05, (1, 2): 10.04}, tpot={(1, 1): 0.021}), ("speed",)),
        # The plan's chunk is not stable: the one that serves most shows the limit.
        (grid(utilisation={(1, 1): 0.95}, rate={(1, 0): 10.5, (1, 2): 11.0}, ttft={(1, 2): 2.0}), ("first token",)),
        # The plan's chunk breaks nothing: so does the one that serves most.
        (grid(rate={(1, 2): 12.0}, ttft={(1, 2): 2.0}), ("first token",)),
    ],
)
def test_binding_names_what_the_first_larger_batch_breaks(bound, columns, names):
    assert bound(columns) == names


def test_binding_names_a_prefill_pool_that_takes_no_more(bound):
    apart = replace(ONE, mode=DISAGGREGATED, chunk=0)
    one = {name: column[:, 1:2] for name, column in grid().items()}
    assert bound(one, limit=10.0, names=("transfer rate",), one=apart) == ("transfer rate",)
    assert bound(one, limit=10.05, names=("prefill rate",), one=apart) == ("prefill rate",)
    assert bound(one, limit=14.9, names=("first token", "prefill rate"), one=apart) == ("first token", "prefill rate")
    assert bound(one, limit=20.0, names=("prefill rate",), one=apart) == ("saturation",)
    late = one | {"ttft": np.where(np.arange(5)[:, None] == 1, 2.0, one["ttft"])}
    assert bound(late, limit=12.0, names=("first token",), one=apart) == ("first token",)


@pytest.mark.parametrize(
    ("most_utilised", "sends", "takes", "expected"),
    [
        (0.9, 99.0, 99.0, (18.0, ("prefill rate",))),
        (0.45, 99.0, 99.0, (9.0, ("first token",))),
        (0.897, 99.0, 99.0, (17.94, ("first token", "prefill rate"))),  # 0.3 % less than a plan would otherwise use
        (0.895, 99.0, 99.0, (17.9, ("first token",))),
        (0.9, 8.0, 99.0, (16.0, ("transfer rate",))),
        (0.9, 99.0, 5.0, (15.0, ("transfer rate",))),
        (0.45, 4.0, 99.0, (8.0, ("transfer rate",))),
    ],
)
def test_a_prefill_pool_is_limited_by_its_queue_its_passes_or_its_links(monkeypatch, most_utilised, sends, takes, expected):
    """Two prefill replicas of 10 requests/s each send to three decode replicas."""
    pool = SimpleNamespace(rate=10.0, most_utilised=most_utilised)
    monkeypatch.setattr(elasticity, "planned_prefill", lambda *_: pool)
    monkeypatch.setattr(elasticity, "prefill_rate", lambda *_: 2 * min(10.0 * most_utilised, sends))
    monkeypatch.setattr(elasticity, "moving", lambda *_: SimpleNamespace(max_rate=takes))
    apart = replace(ONE, mode=DISAGGREGATED, layout=Layout(replicas=3), prefill_layout=Layout(replicas=2))
    rate, names = _prefill_limit(case(), apart, SimpleNamespace(tpot=0.01))
    assert (rate, names) == (pytest.approx(expected[0]), expected[1])
    monkeypatch.setattr(elasticity, "planned_prefill", lambda *_: None)
    assert _prefill_limit(case(), ONE, SimpleNamespace(tpot=0.01)) == (math.inf, ())


def test_limits_are_relaxed_by_a_tenth():
    assert relaxed(case(slo=SLO)).slo == st.Slo(tpot=0.02 * 1.1, ttft=1.0 * 1.1)


def test_a_figure_is_worth_what_the_best_of_all_candidates_serves_with_it(monkeypatch):
    """10 requests/s before; with 10 % more of a figure the first serves 10.5 as it is, or the best of all 11 when tuned."""
    others = [replace(ONE, layout=Layout(replicas=n), batch=n) for n in range(1, 200)]
    tuned, served = [], {"before": 10.0, "after": 10.5, "best": 11.0}
    given = case(8)

    def best(better, candidates, finalists):
        tuned.append((len(candidates), finalists))
        return [SimpleNamespace(rate=served["best"])]

    monkeypatch.setattr(elasticity, "served_by", lambda asked, _: served["before" if asked is given else "after"])
    monkeypatch.setattr(elasticity, "best", best)
    figures = worths(given, [ONE, others[0]], others[1:])
    tenth = math.log(1.1)
    assert figures["arithmetic"]() == pytest.approx(-math.log(1.1) / tenth)
    assert figures["kv_bytes"]() == pytest.approx(1.0)
    assert figures["rent"]() == 1.0
    assert figures["scale_out_bandwidth"]() == pytest.approx(-1.0)
    served["best"] = 10.2
    assert figures["hbm_bandwidth"]() == pytest.approx(-math.log(1.05) / tenth)
    assert set(tuned) == {(65, 1)}  # 64 others, and the two finalists are one layout
    served.update(best=9.0, after=9.9)
    assert figures["hbm_capacity"]() == 0.0
    served.update(after=10.0 * (1 + 1e-13))
    assert figures["hbm_capacity"]() == 0.0
    inside = worths(replace(given, chips=4), [ONE])
    tuned.clear()
    assert (inside["scale_out_bandwidth"](), tuned) == (0.0, [])
