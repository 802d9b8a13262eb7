"""Runs of one's own, read and held against predictions: laws, what is refused, what is kept, and what one run is worth."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import steptime as st
from steptime.catalog.data_files import find
from steptime.errors import DataFileError, InputError, UnknownName
from steptime.physics.bias_correction import OperatingPoint, select_anchor
from steptime.physics.run_covariance import read_covariances
from steptime.validation import user_calibration
from steptime.validation.predictions import predict
from tests.conftest import every
from tests.validation.rows import plain
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


def test_load_anchor_with_one_run_corrects_its_curve_almost_to_it(tmp_path):
    path = written(tmp_path / "runs.csv", measured([1.25], ttft=[0.8]))
    (found,) = st.load_anchor(path).anchors
    assert (found.model, found.system, found.engine, found.source, found.runs) == (*NAMES, "runs.csv", ("r0",))
    for factor, ratio, quantity in ((found.tpot, 1.25, "tpot"), (found.ttft, 0.8, "ttft")):
        covariance = read_covariances()[quantity]
        assert factor.ratio == pytest.approx(ratio, rel=1e-9)
        assert factor.factor == pytest.approx(ratio ** (1 - covariance.noise / covariance.total), rel=1e-9)
        assert factor.low * factor.factor < ratio < factor.high * factor.factor


def test_load_anchor_reads_what_a_run_shares():
    rows = measured([1.1, 1.2], tp="2", weight_dtype="fp8", engine_version="0.19.0")
    (found,) = st.load_anchor(rows).anchors
    first, second = found.measured
    assert (first.tp, first.pp, first.dp, first.ep, first.formats, first.version) == (2, 1, 1, 1, ("fp8", ""), "0.19.0")
    assert (first.load, second.load) == (8, 16)
    assert first.context == 1024 + 256 / 2
    assert (first.tpot, first.ttft) == (pytest.approx(1.1), None)


def test_load_anchor_with_an_unknown_version_takes_the_month():
    rows = [row | {"engine_version": "vllm nan", "measured": "2026-01-02"} for row in measured([1.1])]
    assert st.load_anchor(rows).anchors[0].version == "2026-01"


def test_load_anchor_with_a_run_as_predicted_has_the_factor_one():
    (found,) = st.load_anchor(measured([1.0])).anchors
    assert found.tpot.factor == pytest.approx(1.0, rel=1e-12)
    assert found.ttft is None


def test_ratio_is_the_median_of_logarithms():
    (found,) = st.load_anchor(measured([1.1, 1.2, 3.0])).anchors
    assert found.tpot.ratio == pytest.approx(1.2, rel=1e-9)
    (found,) = st.load_anchor(measured([1.0, 1.44])).anchors
    assert found.tpot.ratio == pytest.approx(1.2, rel=1e-9)


def test_predict_with_own_runs_shares_the_correction_and_obeys_littles_law():
    rows = measured([1.25, 1.0, 1.0], ttft=[0.8, 1.0, 1.0])
    anchor = st.load_anchor(rows[:1])
    before, after = predict(rows), predict(rows, anchor=anchor)
    own = select_anchor(anchor, model=NAMES[0], system=NAMES[1], engine=NAMES[2], formats=("bf16", ""))
    point = OperatingPoint(layout=st.Layout(), load=np.array([8.0, 16.0, 24.0]), context=1152.0)
    np.testing.assert_allclose(after.tpot / before.tpot, own.step_factor(point), rtol=1e-9)
    np.testing.assert_allclose(after.ttft / before.ttft, own.step_factor(point) * own.wait_factor(point), rtol=1e-9)
    assert np.all(np.diff(after.tpot / before.tpot) < 0)
    assert after.tpot_low[0] < float(rows[0]["tpot_s"]) < after.tpot_high[0]
    assert np.all((after.tpot_high / after.tpot_low)[:2] < (before.tpot_high / before.tpot_low)[:2])
    # A closed loop: clients = rate x (first token + other tokens), up to the last requests of the run.
    lasting = after.ttft + 255 * after.tpot
    np.testing.assert_allclose(after.output_tok_s, np.array([8, 16, 24]) * 256 / lasting, rtol=0.1)


def test_validate_with_own_runs_says_so_and_moves_errors(tmp_path):
    rows = measured([1.25, 1.25])
    plain_errors, corrected = st.validate(rows), st.validate(rows, anchor=st.load_anchor(rows[:1]))
    assert corrected.tpot["all"]["median"] < 0.3 * plain_errors.tpot["all"]["median"]
    assert any("corrected by 1 run" in note for note in corrected.notes)


@pytest.mark.thorough
def test_validate_names_an_engine_that_it_does_not_know():
    rows = measured([1.1]) + [row | {"engine": "lmdeploy", "id": "other"} for row in measured([1.1])]
    assert [note for note in st.validate(rows).notes if "lmdeploy" in note]
    assert not [note for note in st.validate(rows, engine="vllm").notes if "lmdeploy" in note]
    assert not [note for note in st.validate(measured([1.1])).notes if "is not known" in note]


def test_explain_outside_names_the_layout_that_fits():
    fast = predict([plain(id="r0", tp="2")]).tpot[0]
    (found,) = st.load_anchor([plain(id="r0", tpot_s=repr(float(fast)), ttft_s="")]).anchors
    assert found.outside_range == ("r0",)
    assert "tp=2" in found.explanations[0]
    assert "version" in found.explanations[0]
    (slow,) = st.load_anchor(measured([2.8])).anchors
    assert "sampling" in slow.explanations[0]
    assert "prefix cache" not in slow.explanations[0]
    (early,) = st.load_anchor(measured([1.0], ttft=[0.1])).anchors
    assert "prefix cache" in early.explanations[0]
    assert st.load_anchor(measured([1.0])).anchors[0].explanations == ()


@pytest.mark.parametrize(
    ("tpot", "ttft", "outside"),
    every(2, [([1.0, 1.1], None, ()), ([1.0, 2.8], None, ("r1",)), ([0.72], None, ("r0",)), ([1.0], [9.0], ("r0",))]),
)
def test_load_anchor_with_a_run_outside_its_range_names_it(tpot, ttft, outside):
    (found,) = st.load_anchor(measured(tpot, ttft=ttft)).anchors
    assert found.outside_range == outside


def shown(rows) -> list[str]:
    from steptime.cli.views.step_view import own_runs

    (anchor,) = st.load_anchor(rows).anchors
    return [line.plain for line in own_runs(anchor, anchor.applied(OperatingPoint(layout=st.Layout(), load=8, context=1152)))]


@pytest.mark.thorough
def test_own_runs_with_a_run_outside_its_range_warns():
    assert len(shown(measured([1.1]))) == 1
    assert shown(measured([2.8]))[1].startswith("WARNING: Your run lies outside the 90 %")


@pytest.mark.thorough
def test_own_runs_warn_of_runs_far_outside_and_of_more_runs_outside_than_expected():
    just_outside = 1.6
    assert len(st.load_anchor(measured([just_outside])).anchors[0].outside_range) == 1
    assert len(shown(measured([1.0] * 9 + [just_outside]))) == 1
    (warning,) = shown(measured([1.0] * 9 + [9.0]))[1:]
    assert "'r9' took 9 times as long as predicted" in warning
    assert "90 % range" not in warning
    (warning,) = shown(measured([1.0] * 5 + [just_outside] * 5))[1:]
    assert warning.count("Possible causes") == 3


@pytest.mark.thorough
def test_causes_leave_out_what_the_row_states():
    (own,) = st.load_anchor(measured([2.8], sampling="top-p")).anchors
    assert "sampling" not in own.explanations[0]
    (own,) = st.load_anchor([row | {"id": "a\nb"} for row in measured([2.8])]).anchors
    assert "\n" not in own.warning + own.text(own.applied(OperatingPoint()))


@pytest.mark.thorough
def test_validate_names_runs_far_outside_their_range():
    found = st.validate(measured([1.0, 1.1, 9.0]))
    assert [note for note in found.notes if "'r2' took 9 times as long as predicted" in note]
    assert not any("took" in note for note in st.validate(measured([1.0, 1.1])).notes)
    assert sum("took" in note for note in st.validate(measured([9.0] * 5)).notes) == 3


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
    with pytest.raises(InputError, match="no such file"):
        st.load_anchor(tmp_path / "none.csv")
    path = written(tmp_path / "runs.csv", measured([1.0]))
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match="has no runs"):
        st.load_anchor(path)


@pytest.mark.thorough
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
    assert (mine.source, mine.version, mine.is_stored, mine.tpot.runs) == ("other, new, old", "0.2", True, 3)
    assert sorted(run.tpot for run in mine.measured) == [pytest.approx(1.2), pytest.approx(1.5), pytest.approx(2.0)]
    assert [one.source for one in st.load_anchor(catalog=catalog).anchors] == ["new", "old", "other"]
    with pytest.raises(DataFileError, match="already exists"):
        user_calibration.keep(new, catalog=catalog)
    user_calibration.remove("new", catalog=catalog)
    assert user_calibration.kept_anchor(model, system, engine, catalog).version == "0.1"
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


def test_times_in_milliseconds_are_named():
    (note,) = [note for note in st.validate(measured([1.0, 1.1, 920.0])).notes if "took" in note]
    assert "is tpot_s in milliseconds?" in note
    assert "920 times" in note
    assert "Possible causes" not in note
    assert any("ttft_s in milliseconds" in note for note in st.validate(measured([1.0, 1.1], ttft=[1.0, 1000.0])).notes)
