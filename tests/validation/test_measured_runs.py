"""Sixty measured runs (golden/measured_runs.md) from their files to predicted times per token, as far off as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from steptime.validation.predictions import predict
from steptime.validation.run_table import read_runs
from tests.conftest import each

RUNS = Path(__file__).parents[1] / "golden" / "measured_runs.csv"


@pytest.fixture(scope="module")
def runs():
    rows, problems = read_runs(RUNS)
    assert not problems
    return rows, predict(rows, by_simulation=False), np.array([float(row["tpot_s"]) for row in rows])


def test_the_sample_holds_every_engine_system_and_model(runs):
    rows, _, _ = runs
    assert len(rows) == 60
    assert {name: len({row[name] for row in rows}) for name in ("engine", "system", "model")} == {
        "engine": 3,
        "system": 5,
        "model": 7,
    }


def test_times_per_token_are_as_far_off_as_they_were(runs):
    """The median below 9 %, nine in ten within 33 %; nearly all inside their 90 % range."""
    _, found, measured = runs
    off = found.tpot / measured - 1
    assert np.median(np.abs(off)) < 0.09
    assert np.quantile(np.abs(off), 0.9) < 0.33
    assert abs(np.median(off)) < 0.03
    inside = (measured >= found.tpot_low) & (measured <= found.tpot_high)
    assert np.sum(inside) >= 49


@each("engine, most", [("sglang", 0.13), ("trtllm", 0.09), ("vllm", 0.095)])
def test_each_engine_is_as_far_off_as_it_was(runs, engine, most):
    """Engines that differ little err more on runs like those fitted, and less on new models."""
    rows, found, measured = runs
    of = np.array([row["engine"] == engine for row in rows])
    assert np.median(np.abs(found.tpot / measured - 1)[of]) < most
