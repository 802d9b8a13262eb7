"""Measured runs that cannot be meant as they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptime.cli.main import app_for
from steptime.errors import DataFileError, InputError
from steptime.physics.engine import load_engine
from steptime.validation.bench_results import read_files
from steptime.validation.engine_fit import calibrated_engine
from steptime.validation.run_table import COLUMNS, read_runs
from tests.conftest import each

ROW = dict(
    zip(COLUMNS, ("a", "llama-3.1-8b", "hgx-h100", "vllm", "1024", "128", "16", "1", "1", "1", "1", "bf16", ""), strict=True)
) | {"tpot_s": "0.01", "ttft_s": "0.1"}


def written(path, header, cells):
    path.write_text(",".join(header) + "\n" + ",".join(cells) + "\n")
    return path


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tpot_s": "12.3"}, "tpot_s must be at most 10 s, got '12.3': times are in seconds, not in milliseconds"),
        ({"ttft_s": "20000"}, "ttft_s must be at most 10,000 s, got '20000': times are in seconds, not in milliseconds"),
        ({"tp": "9" * 5000}, "tp must be a whole number|tp must be at most"),
        ({"model": "n" * 5000}, "unknown model"),
    ],
)
def test_a_run_in_other_units_or_sizes_is_refused(tmp_path, changes, says):
    row = ROW | changes
    with pytest.raises(DataFileError, match=says) as caught:
        read_runs(written(tmp_path / "runs.csv", row, row.values()))
    assert len(str(caught.value)) < 600


def test_a_column_that_stands_twice_is_refused(tmp_path):
    with pytest.raises(DataFileError, match=r"runs\.csv:1: has the column 'tpot_s' twice"):
        read_runs(written(tmp_path / "runs.csv", [*ROW, "tpot_s"], [*ROW.values(), "0.02"]))


@each("name", ["n" * 5000 + ".csv", "a\0b.csv", "nowhere.csv"])
def test_files_that_cannot_be(name):
    with pytest.raises(DataFileError) as caught:
        read_files([name])
    assert len(str(caught.value)) < 200


def test_results_with_numbers_beyond_all_sizes(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"completed": 10**400, "duration": 1, "total_input_tokens": 1}))
    with pytest.raises(InputError, match="completed must be a number greater than 0, got a number of some 400 digits"):
        read_files([path])


def test_an_engine_without_losses_is_no_prior():
    with pytest.raises(InputError, match=r"ideal has no attention_time: take vllm, sglang, trtllm or typical as prior"):
        calibrated_engine([ROW], name="mine", prior=load_engine("ideal"))
    assert calibrated_engine([ROW], name="mine", prior=load_engine("typical")).name == "mine"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
@pytest.mark.parametrize(
    "words", ["validate /dev/zero", "plan llama-3.3-70b hgx-h100 --trace /dev/zero", "calibrate /dev/zero --name mine"]
)
def test_a_device_is_refused_before_it_is_read(words):
    done = CliRunner().invoke(app_for(words.split()), words.split())
    assert isinstance(done.exception, DataFileError)
    assert "is not a regular file" in str(done.exception)
