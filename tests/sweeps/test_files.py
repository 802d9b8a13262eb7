"""Files of a sweep hold the sweep."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
from contextlib import chdir

import numpy as np
import pytest

import steptime as st
from steptime.errors import DataFileError, InputError
from tests.sweeps.test_formulas import worked_out

SMALL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 100,
}  # fmt: skip
STEP = {"model": "llama-3.1-8b", "system": "hgx-h100"}


@pytest.fixture(scope="module")
def steps():
    return st.sweep("step", {"batch": [1, 8, 64], "system": ["hgx-h100", "hgx-b200"]}, model="llama-3.1-8b")


@pytest.fixture(scope="module")
def drains():
    return st.sweep("blackboard.drain_seconds", {"bandwidth": [1e12, 2e12, 4e12]}, capacity="80 GB")


def test_csv_and_json(steps, tmp_path):
    steps.save(str(tmp_path / "a.csv"))
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0].startswith(
        "batch,system,time_s,time_low_s,time_high_s,tokens_per_s_per_user,tokens_per_s_per_chip,usd_per_"
    )
    assert lines[1].startswith("1,hgx-h100,")
    steps.save(str(tmp_path / "a.json"))
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["schema"] == "steptime.sweep/2"
    assert data["table"]["time_s"] == steps.answers["time"].values.ravel().tolist()


def test_tables_of_arrow_and_pandas(steps, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    steps.save(str(tmp_path / "a.parquet"))
    read = pandas.read_parquet(tmp_path / "a.parquet")
    assert read["time_s"].tolist() == steps.to_dataframe()["time_s"].tolist()
    assert read["system"].tolist() == ["hgx-h100", "hgx-b200"] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["nc", pytest.param("zarr", marks=pytest.mark.thorough)])
def test_labelled_arrays_with_units(steps, tmp_path, ending, closed_forms):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip({"nc": "netCDF4"}.get(ending, ending))
    place = tmp_path / f"a.{ending}"
    steps.save(str(place))
    with (xarray.open_dataset if ending == "nc" else xarray.open_zarr)(place) as read:
        assert read["time"].dims == ("batch", "system")
        assert read["time"].attrs["units"] == "s"
        assert float(read["time"].sel(batch=8, system="hgx-b200")) == steps.answers["time"].values[1, 1]
        assert read.attrs["model"] == "llama-3.1-8b"
    steps.save(str(place))  # in place of the older one


def test_labelled_arrays_select_by_name(steps):
    pytest.importorskip("xarray")
    found = steps.to_xarray()
    assert found["usd_per_million_tokens"].sel(system="hgx-h100").shape == (3,)
    assert found["batch"].attrs["units"] == "sequences"


def test_a_spreadsheet_recomputes_a_closed_form(drains, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    drains.save(str(tmp_path / "a.xlsx"))
    book = openpyxl.load_workbook(tmp_path / "a.xlsx")
    rows = list(book["sweep"].iter_rows(values_only=True))
    assert rows[0] == ("bandwidth [B/s]", "drain_seconds [s]")
    assert [row[0] for row in rows[1:]] == [1e12, 2e12, 4e12]
    assert book["held"]["A3"].value == "capacity"
    assert book["held"]["B3"].value == 80e9
    for at, value in enumerate(drains.answers["drain_seconds"].values, start=2):
        text = rows[at - 1][1].replace("held!$B$3", "held")
        assert text == f"=(held/A{at})"
        assert worked_out(text, {"held": 80e9, f"A{at}": rows[at - 1][0]}) == value


def test_a_spreadsheet_of_other_answers_has_values(steps, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    steps.save(str(tmp_path / "a.xlsx"))
    rows = list(openpyxl.load_workbook(tmp_path / "a.xlsx")["sweep"].iter_rows(values_only=True))
    assert rows[0][:3] == ("batch [sequences]", "system", "time [s]")
    assert rows[1][2] == pytest.approx(steps.answers["time"].values[0, 0], rel=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("soffice") is None, reason="LibreOffice is not installed")
def test_libreoffice_recomputes_it(drains, tmp_path):
    drains.save(str(tmp_path / "a.xlsx"))
    command = ["soffice", "--headless", "--convert-to", "csv", "--outdir", str(tmp_path), str(tmp_path / "a.xlsx")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    read = np.loadtxt(tmp_path / "a.csv", delimiter=",", skiprows=1)
    assert read[:, 1] == pytest.approx(drains.answers["drain_seconds"].values, rel=1e-6)


@pytest.mark.slow
def test_another_reader_of_formulas_recomputes_it(tmp_path):
    formulas = pytest.importorskip("formulas", reason="the formulas package recomputes spreadsheets")
    given = {
        "active": 37e9,
        "total": 671e9,
        "weight_bytes": 1,
        "kv_bytes_per_token": "70 kB",
        "mac_rate": 1e15,
        "bandwidth": "8 TB/s",
    }
    found = st.sweep("blackboard.step_seconds", {"batch": [1, 64, 4096], "context": [1e3, 1e5]}, **given)
    found.save(str(tmp_path / "a.xlsx"))
    worked = formulas.ExcelModel().loads(str(tmp_path / "a.xlsx")).finish().calculate()
    for at, value in enumerate(found.answers["step_seconds"].values.ravel(), start=2):
        assert float(worked[f"'[a.xlsx]SWEEP'!C{at}"].value[0, 0]) == pytest.approx(value, rel=1e-12)


def test_a_file_that_cannot_be_written_is_named(steps, tmp_path):
    with pytest.raises(InputError, match=r"a.foo: must end in .csv"):
        steps.save(str(tmp_path / "a.foo"))
    with pytest.raises(DataFileError, match="cannot be written"):
        steps.save(str(tmp_path / "no" / "a.csv"))
    place = tmp_path / "a.csv"
    place.write_text("older")
    steps.save(str(place))
    assert place.read_text().startswith("batch,")
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize("many", [False, True])
def test_csv_text_of_a_formula_is_text(tmp_path, monkeypatch, many):
    if many:
        pytest.importorskip("pyarrow")
        monkeypatch.setattr("steptime.sweeps.export.FEW_POINTS", 0)
    formula_named_sweep(tmp_path).save(str(tmp_path / "a.csv"))
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert rows[0]["model"].startswith("'=")
    assert rows[0]["model"].endswith("\ufffd")
    assert float(rows[0]["time_s"]) > 0


def test_spreadsheet_text_of_a_formula_is_text(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    formula_named_sweep(tmp_path).save(str(tmp_path / "a.xlsx"))
    cell = openpyxl.load_workbook(tmp_path / "a.xlsx")["sweep"]["A2"]
    assert (cell.data_type, cell.value[0], cell.value[-1]) == ("s", "=", "\ufffd")


def formula_named_sweep(folder):
    """Return a sweep over a model whose path is a formula with an escape character, as seen from its folder."""
    name = "=1+1\x1b"
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(SMALL))
    with chdir(folder):
        return st.sweep("step", {"model": [name, "llama-3.1-8b"], "batch": [1]}, system="hgx-h100")


@pytest.mark.parametrize("ending", ["csv", "json", "xlsx"])
def test_save_full_disk_keeps_the_old_file(steps, tmp_path, monkeypatch, ending):
    if ending == "xlsx":
        pytest.importorskip("openpyxl")
    place = tmp_path / f"a.{ending}"
    place.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataFileError, match="No space left"):
        steps.save(str(place))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(place.name, "old")]
