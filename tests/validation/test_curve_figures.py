"""Saturation points of curves and the parts of first tokens, by hand-made curves and by the runs that no fit has seen."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy")
from curve_figures import LEAST_LOADS, first_token_ratios, saturation, saturation_ratios

from tests.conftest import each
from tests.validation.rows import SHARED, plain

CLIENTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])


def runs(clients=CLIENTS, prompts=(1024,), **changes: str) -> list[dict[str, str]]:
    return [plain(concurrency=str(c), input_tokens=str(p), engine_version="1.0", **changes) for p in prompts for c in clients]


@each(
    "rate, point, highest",
    [
        (np.minimum(10 * CLIENTS, 160.0), 16.0, 160.0),
        # A closed loop without a think time: 1 / (a + b N) per client, so that X(1) = 1 / (a + b); its limit is 1 / b.
        (CLIENTS / (0.09 + 0.01 * CLIENTS), np.nan, np.nan),  # 64 clients reach 88 % of it
        (CLIENTS / (0.04 + 0.01 * CLIENTS), 0.05 * 64 / 0.68, 64 / 0.68),  # and 94 %
        (10 * CLIENTS, np.nan, np.nan),
        # Past its highest throughput.
        (np.array([10.0, 20.0, 40.0, 80.0, 80.0, 70.0, 60.0]), 8.0, 80.0),
    ],
)
def test_saturation_of_a_curve_is_where_its_bounds_meet(rate, point, highest):
    assert saturation(CLIENTS, rate) == pytest.approx((point, highest), nan_ok=True)


def test_saturation_of_loads_within_a_doubling_is_not_known():
    assert np.isnan(saturation(np.array([8.0, 12.0]), np.array([10.0, 10.0]))).all()


def test_saturation_ratios_compare_curves_that_saturate():
    rows = [*runs(), *runs(tp="2"), *runs(CLIENTS[: LEAST_LOADS - 1], tp="4")]
    # All of a request is TTFT: throughput is clients x output / TTFT. The first curve stops at 16 clients, the second never.
    flat = np.concatenate([np.maximum(CLIENTS / 16, 1.0), np.ones(len(CLIENTS)), np.ones(LEAST_LOADS - 1)])
    ttft = np.stack([flat, flat])
    ttft[1, 1 : len(CLIENTS)] *= 0.8
    ratios, count = saturation_ratios(rows, ttft, np.zeros_like(ttft))
    assert count == 2
    assert ratios == pytest.approx(np.array([[1.25, 1.25]]))


def test_parts_of_first_tokens_are_differences_along_curves():
    # 20 ms of the host, 10 us a prompt token, and 5 ms of queue for each other client; predictions change one part each.
    clients, prompts = np.array([1.0, 8.0, 64.0]), (1000, 3000, 9000)
    rows = runs(clients, prompts)
    load, prompt = (np.array([float(row[name]) for row in rows]) for name in ("concurrency", "input_tokens"))

    def seconds(host, token, queue):
        return host + token * prompt + queue * (load - 1)

    measured = seconds(0.02, 1e-5, 0.005)
    for part, predicted in (
        ("host", seconds(0.03, 1e-5, 0.005)), ("prefill", seconds(0.02, 1.5e-5, 0.005)), ("queue", seconds(0.02, 1e-5, 0.0075)),
    ):  # fmt: skip
        found = first_token_ratios(rows, np.stack([measured, predicted]))
        assert {name: float(np.median(ratios)) for name, ratios in found.items()} == pytest.approx(
            {name: 1.5 if name == part else 1.0 for name in found}
        )
        # Queues of 35 ms at 8 clients double the first token of the shortest prompt only.
        assert [len(found[name]) for name in ("queue", "prefill", "host")] == [4, 1, 1]


@pytest.mark.thorough
@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured runs are not beside this checkout")
def test_saturation_and_parts_of_runs_that_no_fit_has_seen():
    """The figures of docs/scoreboard.md, models, systems and releases left out at once."""
    pytest.importorskip("numba")
    from group_cross_validation import leave_out
    from scoreboard import FILES, measured_and_predicted

    left = leave_out([str(SHARED / name) for name in FILES])
    ttft, tpot = measured_and_predicted(left)
    ratios, count = saturation_ratios(left.rows, ttft, tpot)
    assert (len(ratios), count) == (35, 360)
    assert (np.median(np.abs(ratios - 1), axis=0) < 0.10).all()
    bias = {part: np.median(values) - 1 for part, values in first_token_ratios(left.rows, ttft).items()}
    assert abs(bias["queue"]) < 0.15
    assert abs(bias["prefill"]) < 0.08
