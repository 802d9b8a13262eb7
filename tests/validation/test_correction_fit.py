"""The covariance behind corrections by own runs: its likelihood, its estimate, and what one run is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steptime.errors import DataFileError
from steptime.physics import run_covariance
from steptime.physics.run_covariance import LEVELS, TRAINING, Covariance, read_covariances

pytest.importorskip("scipy")
import correction_fit as fits

LOGS = np.log([0.02, 0.03, 0.05, 0.01, 0.02, 0.005, 0.004, 2.0, 1.5])


def synthetic(engines=2, models=2, groups=2, curves=3, runs=4, seed=0) -> fits.Errors:
    """Labels of nested runs with loads and contexts; values are drawn by `drawn`."""
    draw = np.random.default_rng(seed)
    shape = (engines, models, groups, curves, runs)
    engine, model, group, curve, _ = (x.ravel() for x in np.indices(shape))
    model = engine * models + model
    group = model * groups + group
    release, layout = group * 2 + curve % 2, group * 2 + (curve > 0)
    labels = {"engine": engine, "model": model, "group": group, "release": release, "layout": layout}
    labels["layout_release"] = np.unique(np.stack([release, layout]), axis=1, return_inverse=True)[1].ravel()
    labels["curve"] = labels["layout_release"]
    n = len(engine)
    return fits.Errors({"tpot": np.zeros(n)}, labels, draw.uniform(0, 9, n), draw.uniform(9, 13, n))


def dense(errors: fits.Errors, logs: np.ndarray) -> np.ndarray:
    """The covariance of all runs, noise included."""
    values, labels = np.exp(logs), errors.labels

    def same(name: str) -> np.ndarray:
        return labels[name][:, None] == labels[name][None]

    distance = [np.square(x[:, None] - x[None]) for x in (errors.load, errors.context)]
    near = np.exp(-distance[0] / (2 * values[-2] ** 2) - distance[1] / (2 * values[-1] ** 2))
    matrix = values[0] * same("engine") + values[1] * same("model") + values[-3] * np.eye(len(errors.load))
    for name, size in zip(LEVELS, values[2:6], strict=True):
        matrix = matrix + size * same(name) * (near if LEVELS[name] else 1.0)
    return matrix


def test_likelihood_is_that_of_the_whole_matrix_with_its_slopes():
    errors = synthetic()
    target = np.random.default_rng(3).normal(size=len(errors.load))
    blocks = fits.blocks_of(errors, np.ones(len(target), dtype=bool))
    total, gradient = fits.likelihood(LOGS, blocks, target)
    matrix, ones = dense(errors, LOGS), np.ones(len(target))
    inverse = np.linalg.inv(matrix)
    mean = ones @ inverse @ target / (ones @ inverse @ ones)
    expected = np.linalg.slogdet(matrix)[1] + np.log(ones @ inverse @ ones) + (target - mean) @ inverse @ (target - mean)
    assert total == pytest.approx(expected / 2, rel=1e-9)
    steps = 1e-5 * np.eye(len(LOGS))
    slopes = [
        (fits.likelihood(LOGS + h, blocks, target)[0] - fits.likelihood(LOGS - h, blocks, target)[0]) / 2e-5 for h in steps
    ]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_estimate_recovers_variances_that_made_the_errors():
    errors = synthetic(engines=3, models=4, groups=3, curves=3, runs=8)
    target = np.random.default_rng(5).multivariate_normal(np.zeros(len(errors.load)), dense(errors, LOGS))
    drawn = replace(errors, values={"tpot": target})
    found = fits.estimate(drawn, "tpot", np.ones(len(target), dtype=bool))
    assert found.noise == pytest.approx(0.004, rel=0.25)
    assert found.group + found.layout + found.layout_release == pytest.approx(0.075, rel=0.4)
    assert found.doublings == pytest.approx(2.0, rel=0.4)
    assert found.quantile == pytest.approx(1.645, rel=0.15)


def test_pairs_correct_by_what_two_runs_share_by_hand():
    errors = synthetic(engines=1, models=1, groups=1, curves=1, runs=2)
    errors = replace(errors, values={"tpot": np.array([0.3, 0.2])}, load=np.array([0.0, 2.0]), context=np.full(2, 10.0))
    covariance = Covariance(
        engine=0.0, model=0.0, group=0.06, release=0.03, layout=0.0, layout_release=0.0, noise=0.01, doublings=2.0,
        context_doublings=1.0, degrees=4.0, quantile=1.5,
    )  # fmt: skip
    part = fits.pairs(errors, "tpot", {0: covariance}, "curve")
    share = (0.03 + 0.06 * np.exp(-0.5)) / 0.1
    np.testing.assert_allclose(sorted(part.after), sorted([0.2 - share * 0.3, 0.3 - share * 0.2]))
    assert part.doublings.tolist() == [2.0, 2.0]
    deviation = np.sqrt(0.1 * (1 - share**2)) * np.sqrt((4 + np.array([0.9, 0.4])) / 5)
    np.testing.assert_allclose(np.sort(part.half), np.sort(1.5 * deviation))


def test_read_covariances_with_a_bad_figure_names_it(tmp_path, monkeypatch):
    text = (run_covariance.PACKAGED / "corrections.toml").read_text()
    (tmp_path / "corrections.toml").write_text(text.replace("noise = ", "noise = -"))
    monkeypatch.setattr(run_covariance, "PACKAGED", tmp_path)
    with pytest.raises(DataFileError, match=r"tpot\.noise: must be a number greater than 0"):
        read_covariances.__wrapped__()


def test_shipped_covariances_have_a_curve_that_shares_most():
    for quantity, covariance in read_covariances().items():
        # Runs of training with equal columns differ by settings that no column has, and by software of other months.
        assert covariance.noise < (0.2 if quantity == TRAINING else 0.1) * covariance.total
        assert covariance.engine + covariance.model < 0.32 * covariance.total
    assert 1.5 < read_covariances()["tpot"].doublings < 4
