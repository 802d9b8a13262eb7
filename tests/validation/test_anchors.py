"""Runs of one's own, read and held against predictions: laws, what is refused, what is kept, and what one run is worth."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import steptime as st
from steptime.catalog.data_files import find
from steptime.errors import DataFileError, InputError, UnknownName
from steptime.validation import user_calibration
from steptime.validation.predictions import predict, predict_runs
from steptime.validation.run_table import read_runs
from tests.validation.rows import SHARED, plain
from tests.validation.test_load_generators import VLLM

NAMES = ("meta-llama/Llama-3.1-8B", "hgx-h100", "vllm")


def measured(factors, *, ttft=None, **changes) -> list[dict[str, str]]:
    """Rows that took so many times as long as predicted."""
    rows = [plain(id=f"r{i}", concurrency=str(8 * (i + 1)), **changes) for i in range(len(factors))]
    found = predict(rows)
    for i, row in enumerate(rows):
        row["tpot_s"] = repr(float(found.tpot[i] * factors[i]))
        row["ttft_s"] = "" if ttft is None else repr(float(found.ttft[i] * ttft[i]))
    return rows


def written(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("k", [1, 3])
def test_k_runs_at_one_factor_give_its_power(k, tmp_path):
    path = written(tmp_path / "runs.csv", measured([1.25] * k, ttft=[0.8] * k))
    (found,) = st.load_anchor(path).anchors
    assert (found.model, found.system, found.engine, found.source) == (*NAMES, "runs.csv")
    assert (found.tpot.runs, found.ttft.runs, found.runs) == (k, k, tuple(f"r{i}" for i in range(k)))
    assert found.tpot.factor == pytest.approx(1.25 ** (k / (k + 1.0)), rel=1e-9)
    assert found.ttft.factor == pytest.approx(0.8 ** (k / (k + 0.3)), rel=1e-9)


def test_a_run_as_predicted_has_the_factor_one():
    (found,) = st.load_anchor(measured([1.0])).anchors
    assert found.tpot.factor == pytest.approx(1.0, rel=1e-12)
    assert found.ttft is None


def test_the_median_of_logarithms_counts():
    (found,) = st.load_anchor(measured([1.1, 1.2, 3.0])).anchors
    assert found.tpot.ratio == pytest.approx(1.2, rel=1e-9)
    (found,) = st.load_anchor(measured([1.0, 1.44])).anchors
    assert found.tpot.ratio == pytest.approx(1.2, rel=1e-9)


@pytest.mark.parametrize(
    ("tpot", "ttft", "outside"),
    [([1.0, 1.1], None, ()), ([1.0, 2.8], None, ("r1",)), ([0.72], None, ("r0",)), ([1.0], [9.0], ("r0",))],
)
def test_load_anchor_with_a_run_outside_its_range_names_it(tpot, ttft, outside):
    (found,) = st.load_anchor(measured(tpot, ttft=ttft)).anchors
    assert found.outside_range == outside


def test_own_runs_with_a_run_outside_its_range_warns():
    from steptime.cli.views.step_view import own_runs

    assert len(own_runs(st.load_anchor(measured([1.1])).anchors[0])) == 1
    assert own_runs(st.load_anchor(measured([2.8])).anchors[0])[1].plain.startswith("WARNING: Your run lies outside the 90 %")


def test_runs_are_predicted_by_the_engine_that_is_given():
    from steptime.physics.engine import load_engine, with_constants

    rows, slow = measured([1.0]), with_constants(load_engine("vllm"), {"seconds_per_step": 0.01})
    assert st.load_anchor(rows, engine=slow).anchors[0].tpot.ratio < 0.8
    assert st.load_anchor(rows, engine=load_engine("sglang")).anchors[0].tpot.ratio == pytest.approx(1)


def test_the_newest_version_comes_last():
    rows = [
        row | {"engine_version": version, "measured": date}
        for version, date, factor in (
            ("0.19.0", "2026-04-01", 1.3),
            ("0.9.0", "2026-04-01", 1.1),
            ("0.20.0", "2025-01-01", 2.0),
        )
        for row in measured([factor])
    ]
    assert [one.version for one in st.load_anchor(rows).anchors] == ["0.20.0", "0.9.0", "0.19.0"]


def test_a_result_of_a_load_generator_is_read(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(VLLM))
    (found,) = st.load_anchor(path, system="hgx-h100", tp=1, weights="bf16").anchors
    assert (found.model, found.system, found.engine) == NAMES
    assert (found.tpot.runs, found.ttft.runs) == (1, 1)
    with pytest.raises(DataFileError) as caught:
        st.load_anchor(path, system="hgx-h100")
    assert str(caught.value).startswith(f"{path}:1: has no tp and weight_dtype of the run")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tpot_s": "0"}, "tpot_s must be a time greater than 0, got '0'"),
        ({"tpot_s": "-1"}, "tpot_s must be a time greater than 0, got '-1'"),
        ({"tpot_s": ""}, "runs.csv: no usable run: r0: it has neither tpot_s nor ttft_s"),
        ({"tpot_s": "1e-5"}, "runs.csv: no usable run: r0: "),
        ({"model": "no-such"}, "unknown model 'no-such'"),
    ],
)
def test_runs_that_tell_nothing_are_refused(change, says, tmp_path):
    path = written(tmp_path / "runs.csv", [measured([1.0])[0] | change])
    with pytest.raises(InputError) as caught:
        st.load_anchor(path)
    assert says in str(caught.value)
    assert "--skip-bad" not in str(caught.value)


def test_a_file_that_is_not_there_or_holds_no_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file or directory"):
        st.load_anchor(tmp_path / "none.csv")
    path = written(tmp_path / "runs.csv", measured([1.0]))
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match="has no runs"):
        st.load_anchor(path)


def test_runs_are_kept_found_and_removed(tmp_path):
    catalog = str(tmp_path)
    assert st.load_anchor(catalog=catalog).anchors == ()
    model, system, engine = st.load_model(NAMES[0]), st.load_system(NAMES[1]), st.load_engine(NAMES[2])
    assert user_calibration.kept_anchor(model, system, engine, catalog) is None
    old = written(tmp_path / "old.csv", [row | {"engine_version": "0.1"} for row in measured([2.0])])
    new = written(tmp_path / "new.csv", [row | {"engine_version": "0.2"} for row in measured([1.2])])
    other = written(tmp_path / "other.csv", measured([1.5], system="hgx-h200"))
    for path in (old, new, other):
        kept, found = user_calibration.keep(path, catalog=catalog)
        assert kept == tmp_path / "anchors" / path.name
        assert found.anchors[0].is_stored
    mine = user_calibration.kept_anchor(model, system, engine, catalog)
    assert (mine.source, mine.version, mine.is_stored, mine.tpot.runs) == ("new", "0.2", True, 1)
    assert mine.tpot.ratio == pytest.approx(1.2, rel=1e-6)
    assert [one.source for one in st.load_anchor(catalog=catalog).anchors] == ["new", "old", "other"]
    with pytest.raises(DataFileError, match="already exists"):
        user_calibration.keep(new, catalog=catalog)
    user_calibration.remove("new", catalog=catalog)
    assert user_calibration.kept_anchor(model, system, engine, catalog).source == "old"
    with pytest.raises(UnknownName, match="did you mean old"):
        user_calibration.remove("olde", catalog=catalog)
    with pytest.raises(UnknownName):
        user_calibration.remove("../old", catalog=catalog)
    with pytest.raises(InputError, match="must have letters"):
        user_calibration.keep(new, name="../new", catalog=catalog)


def test_runs_on_a_machine_of_ones_own_are_found_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(find("systems", "hgx-h100").read_text())
    monkeypatch.chdir(tmp_path)
    path, found = user_calibration.keep(
        written(tmp_path / "runs.csv", measured([1.2], system="mine.toml")), catalog=str(tmp_path)
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert st.load_anchor(catalog=str(tmp_path)).anchors == found.anchors
    assert str(tmp_path / "mine.toml") in path.read_text()


def test_kept_runs_that_cannot_be_read_are_left_out_with_a_note(tmp_path, caplog):
    (tmp_path / "anchors").mkdir()
    (tmp_path / "anchors" / "bad.csv").write_text("id,model\n")
    st.load_anchor(catalog=str(tmp_path))
    assert "these stored runs are left out" in caplog.text
    assert "steptime anchors remove bad" in caplog.text


SERVING = SHARED / "serving.csv"


@pytest.mark.slow
@pytest.mark.skipif(not SERVING.is_file(), reason="the measured runs are not here")
def test_one_run_is_worth_something_on_models_left_out_of_the_fit():
    """Each run of a group in turn is given and the others are predicted: errors at the median and at the 90th percentile.

    A run counts once, however many others were given for it.
    """
    pytest.importorskip("scipy")
    import engine_cross_validation as fits

    rows = [row for row in read_runs(SERVING)[0] if row["tpot_s"]]
    measured_at = np.log([float(row["tpot_s"]) for row in rows])
    groups = fits.group_all(rows)
    known = fits.constants_of(groups)
    labels = np.array([" ".join(row[name] for name in ("model", "system", "engine", "engine_version")) for row in rows])
    off = np.full(len(rows), np.nan)
    for left in {runs.model.name for runs in groups}:
        kept = [runs for runs in groups if runs.model.name != left]
        constants, _ = fits.fit(kept, measured_at, known, (known.usual, known.deviations))
        for runs in (runs for runs in groups if runs.model.name == left):
            tpot = predict_runs(runs, known.engine(constants, runs.engine))[0]
            off[runs.index] = measured_at[runs.index] - np.log(tpot)
    parts = [off[labels == label] for label in set(labels)]
    pairs = [(np.delete(logs, i), logs[i], 1 / (len(logs) - 1)) for logs in parts if len(logs) > 1 for i in range(len(logs))]
    before = np.concatenate([others for others, _, _ in pairs])
    after = np.concatenate(
        [others - np.log(user_calibration.compute_factor(np.exp([given]), "tpot").factor) for others, given, _ in pairs]
    )
    weights = np.concatenate([np.full(len(others), weight) for others, _, weight in pairs])
    found = [quantiles(np.abs(np.expm1(-errors)), weights) for errors in (before, after)]
    assert np.all(found[1] < np.array([0.9, 0.95]) * found[0]), found


def quantiles(values, weights) -> np.ndarray:
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    return values[order][np.searchsorted(share, [0.5, 0.9])]
