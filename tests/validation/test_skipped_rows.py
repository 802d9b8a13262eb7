"""Rows with means, names in another case and labels; and rows that are left out, with their number and lines."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from steptime.cli.main import app_for
from steptime.errors import DataFileError, InputError
from steptime.validation.run_table import read_runs
from steptime.validation.user_calibration import keep
from steptime.validation.validate_api import validate
from tests.validation.rows import plain, written


def run_command(words):
    return CliRunner().invoke(app_for(words), words, env={"COLUMNS": "80"})


def test_validate_fractional_length_is_a_mean(tmp_path):
    """A nominal length that is a whole number and a mean in its own column give the same prediction."""
    path = written(
        tmp_path / "runs.csv",
        plain(id="2026_01_01_a", input_tokens="1023.7", output_tokens="255.5", tpot_s="0.01", concurrency="15.5"),
        plain(id="2026_01_01_b", input_mean="1023.7", output_mean="255.5", tpot_s="0.01", concurrency_mean="15.5"),
        plain(id="2026_01_01_c", tpot_s="0.01"),
    )
    tpot = validate(path).predictions.tpot
    assert tpot[0] == tpot[1] != tpot[2]
    row = read_runs(path)[0][0]
    assert (row["input_tokens"], row["input_mean"], row["concurrency_mean"]) == ("1024", "1023.7", "15.5")


def test_validate_length_below_one_is_refused(tmp_path):
    with pytest.raises(InputError, match="input_tokens must be a whole number of at least 1"):
        read_runs(written(tmp_path / "runs.csv", plain(input_tokens="0.5")))


def test_validate_names_in_other_case_predict_the_same(tmp_path):
    path = written(
        tmp_path / "runs.csv", plain(tpot_s="0.01"),
        plain(id="b", engine="vLLM", system="HGX-H100", model="LLAMA-3.1-8B", weight_dtype="BF16", tpot_s="0.01"),
    )  # fmt: skip
    validation = validate(path)
    assert validation.predictions.tpot[0] == validation.predictions.tpot[1]
    assert [row["engine"] for row in validation.rows] == ["vllm", "vllm"]


def test_validate_label_of_a_collection_has_no_effect_and_a_misspelt_part_is_refused(tmp_path):
    assert len(validate(written(tmp_path / "a.csv", plain(part="blogs", tpot_s="0.01"))).rows) == 1
    with pytest.raises(InputError, match="did you mean trt_max"):
        validate(written(tmp_path / "b.csv", plain(part="trt_mx", tpot_s="0.01")))


@pytest.mark.thorough
def test_validate_one_bad_row_of_a_thousand_keeps_the_others(tmp_path):
    rows = [plain(id=str(i), tpot_s="0.01", concurrency=str(i % 64 + 1), ttft_s="") for i in range(1000)]
    path = written(tmp_path / "runs.csv", *rows[:500], rows[500] | {"tp": "x"}, *rows[501:])
    validation = validate(path, skip_bad=True)
    assert len(validation.predictions.tpot) == validation.runs == 999
    assert validation.left_out == ("line 502: tp must be a number, got 'x'",)


def test_validate_command_prints_number_reason_and_first_lines(tmp_path):
    path = written(tmp_path / "runs.csv", plain(tpot_s="0.01"), *(plain(tpot_s="0.01", tp="x") for _ in range(5)))
    run = run_command(["validate", str(path), "--skip-bad"])
    text = " ".join(run.stdout.split())
    assert run.exit_code == 0
    assert "5 of 6 runs are left out" in text
    assert "line 3, line 4, line 5" in text
    refused = run_command(["validate", str(path)])
    assert isinstance(refused.exception, DataFileError)
    answer = json.loads(run_command(["validate", str(path), "--skip-bad", "--json"]).stdout)
    assert len(answer["left_out"]) == 5


def test_validate_release_names_are_noted(tmp_path):
    path = written(tmp_path / "runs.csv", plain(model="unsloth/Llama-3.1-8B-Instruct", tpot_s="0.01"), plain(tpot_s="0.01"))
    (note,) = validate(path).notes
    assert note.startswith("unsloth/Llama-3.1-8B-Instruct: not in the catalogue")
    assert note.count("meta-llama/Llama-3.1-8B") == 1


def test_keep_skip_bad_keeps_the_other_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_CATALOG", str(tmp_path))
    path = written(tmp_path / "runs.csv", plain(tpot_s="0.01"), plain(id="b", tpot_s="0.01", tp="x"))
    with pytest.raises(InputError, match="tp must be a number"):
        keep(path, name="mine")
    _, anchors = keep(path, name="mine", skip_bad=True)
    assert anchors.anchors[0].runs == ("a",)
    assert anchors.anchors[0].left_out == ("line 3: tp must be a number, got 'x'",)


def test_validate_a_task_of_ml_energy_has_prompts_sampling_and_median_intervals(tmp_path):
    """The rows have no prompts, draw with top-p and give medians: as if these stood in their columns."""
    drawn = {"output_tokens": "400", "engine_version": "0.11.1", "tpot_s": "0.01"}
    told = {"input_tokens": "150", "sampling": "top-p", "tpot_statistic": "median interval"}
    path = written(
        tmp_path / "runs.csv", plain(id="task", input_tokens="", task="lm-arena-chat", **drawn),
        plain(id="told", **drawn | told), plain(id="greedy", **drawn | told | {"sampling": "greedy"}),
        plain(id="mean", **drawn | told | {"tpot_statistic": "mean"}),
        plain(id="later", **drawn | told | {"engine_version": "0.19.0"}),
    )  # fmt: skip
    task, stated, greedy, mean, later = validate(path).predictions.tpot
    assert task == stated
    # vLLM 0.11 sorts 128,256 logits (0.092 ns each), with 21 us of host work, for 16 sequences; and 1.37 ms a step.
    assert stated - greedy == pytest.approx(16 * (128_256 * 9.2e-11 + 22.7e-6) + 1.41e-3, rel=0.03)
    assert mean > stated > later > greedy
    with pytest.raises(InputError, match="sampling must be greedy or top-p"):
        read_runs(written(tmp_path / "wrong.csv", plain(sampling="beam")))


def test_empty_cells_are_named_and_a_file_without_a_usable_run_exits_with_1(tmp_path):
    path = written(tmp_path / "runs.csv", plain(tpot_s="0.01"), *(plain(tpot_s="0.01", input_tokens="") for _ in range(5)))
    text = " ".join(run_command(["validate", str(path), "--skip-bad"]).stdout.split())
    assert "5 of 6 runs are left out: they have no input_tokens" in text
    path = written(tmp_path / "no_times.csv", plain())
    assert run_command(["validate", str(path)]).exit_code == 1
    assert run_command(["validate", str(path), "--predictions", str(tmp_path / "out.csv")]).exit_code == 0
