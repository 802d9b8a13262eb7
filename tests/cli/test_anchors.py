"""`--anchor`, `--no-anchor` and `steptime anchors` as a user types them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import steptime as st
from steptime.cli.main import _with_option
from steptime.physics.run_covariance import read_covariances
from tests.cli.test_commands import run
from tests.conftest import each
from tests.validation.test_anchors import measured, written
from tests.validation.test_load_generators import VLLM
from tests.validation.test_training_runs import written as training_runs

AIPERF = Path(__file__).parents[1] / "validation/harnesses/aiperf.json"
STEP = "step llama-3.1-8b hgx-h100 --batch 64"


@pytest.fixture
def runs(tmp_path):
    return written(tmp_path / "runs.csv", measured([1.3], ttft=[1.3]))


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        STEP,
        "plan llama-3.1-8b hgx-h100 --chips 1 --speed 50",
        "simulate llama-3.1-8b hgx-h100 --rate 2 --requests 50",
        "simulate llama-3.1-8b hgx-h100 --find-rate --requests 50 --input 256 --output 32 --ttft 1",
    ],
)
def test_an_answer_says_what_it_rests_on(asked, runs):
    shown = run(f"{asked} --anchor {runs}")
    assert shown.returncode == 0, shown.stderr
    assert "Corrected by 1 run that you measured (runs.csv): " in words(shown.stdout)
    assert "Measured over predicted time per token: 1.30 (r0, 8 at once)." in words(shown.stdout)
    assert "Note: Corrected" not in shown.stdout
    assert "Corrected by" not in run(asked).stdout


def test_an_answer_says_what_it_was_before(runs, closed_forms):
    step = run(f"{STEP} --json").stdout
    before = json.loads(step)
    found = json.loads(run(f"{STEP} --anchor {runs} --json").stdout)
    assert found["unanchored"]["total_s"] == before["total_s"]
    assert before["total_s"] < found["total_s"] < 1.3 * before["total_s"]
    assert found["range_s"][1] / found["range_s"][0] <= before["range_s"][1] / before["range_s"][0] * (1 + 1e-9)
    point = "step llama-3.1-8b hgx-h100 --batch 8 --context 1152 --json"
    near, far = (json.loads(run(f"{point} {more}").stdout) for more in (f"--anchor {runs}", ""))
    assert near["range_s"][1] / near["range_s"][0] < 0.9 * far["range_s"][1] / far["range_s"][0]
    told = found["anchor"]
    assert (told["source"], told["runs"], told["tpot"]["runs"]) == ("runs.csv", ["r0"], 1)
    covariance = read_covariances()["tpot"]
    assert told["tpot"]["factor"] == pytest.approx(1.3 ** (1 - covariance.noise / covariance.total), rel=1e-6)
    assert (before["anchor"], before["unanchored"]) == (None, None)
    assert "Without your runs" in run(f"{STEP} --anchor {runs}").stdout


@pytest.mark.thorough
def test_a_plan_says_what_it_was_before(runs, closed_forms):
    plan = words(run(f"plan llama-3.1-8b hgx-h100 --chips 1 --anchor {runs}").stdout)
    assert "Without your runs, the same layout and batch: " in plan
    assert "None of your runs has this layout" not in plan
    other = words(run(f"plan llama-3.1-8b hgx-h100 --chips 2 --tp 2 --anchor {runs}").stdout)
    assert "None of your runs has this layout." in other
    assert "--tp 1 plans with it." in other


def test_a_step_names_the_factor_that_it_takes_and_no_first_tokens(runs):
    for sizes in ("--batch 64", "--phase prefill --prompts 1 --tokens 512"):
        asked = f"step llama-3.1-8b hgx-h100 {sizes} --anchor {runs}"
        found, shown = json.loads(run(f"{asked} --json").stdout), words(run(asked).stdout)
        factor = found["total_s"] / found["unanchored"]["total_s"]
        assert f"(runs.csv): steps x {factor:.2f} here." in shown
        assert "first token" not in shown


def test_a_result_tells_its_ways_behind_its_name(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(VLLM))
    asked = f"{STEP} --anchor {path}"
    assert "Corrected by 1 run that you measured (result.json, 2026-05" in words(run(f"{asked},tp=1,weights=bf16").stdout)
    assert "Corrected by" in run(f"{asked},tp=1 --weights bf16").stdout  # the system, and here the format, as asked
    shown = run(asked)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "has no tp and weight_dtype of the run: give tp=WAYS and weights=FORMAT behind the file, as in" in shown.stderr
    for wrong, says in (
        (",tp", "'tp' is not NAME=VALUE"),
        (",tq=1", "unknown name in --anchor 'tq'; did you mean tp?"),
        (",tp=1,tp=2", "tp is given twice"),
    ):
        shown = run(asked + wrong)
        assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
        assert says in shown.stderr


def test_the_engine_of_a_result_that_names_none_can_be_given(tmp_path, monkeypatch):
    """AIPerf's file does not say which engine served the requests."""
    monkeypatch.setenv("STEPTIME_CATALOG", str(tmp_path))
    asked = f"{STEP} --weights bf16 --anchor {AIPERF},tp=1"
    shown = run(asked)
    assert shown.returncode == 2
    assert "engine=vllm after the file" in shown.stderr
    corrected = json.loads(run(f"{asked},engine=vllm --json").stdout)
    assert corrected != json.loads(run(f"{STEP} --weights bf16 --json").stdout)
    settings = "--system hgx-h100 --tp 1 --weights bf16"
    listed = json.loads(run(f"anchors add {AIPERF} {settings} --engine vllm --name mine --json").stdout)
    assert [anchor["engine"] for anchor in listed["anchors"]] == ["vllm"]
    assert st.load_anchor(AIPERF, system="hgx-h100", tp=1, weights="bf16", engine="vllm").anchors[0].engine == "vllm"
    kept = json.loads(run(f"{STEP} --weights bf16 --json").stdout)
    assert kept["total_s"] == corrected["total_s"]


@each("command", ["anchors add", "validate", "calibrate --name mine"])
def test_settings_beside_a_table_of_training_runs_are_refused(command, tmp_path, monkeypatch):
    """They were ignored."""
    monkeypatch.chdir(tmp_path)
    shown = run(f"{command} {training_runs(tmp_path, {})} --tp 4")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "--tp applies to JSON results only" in shown.stderr


def test_settings_behind_a_file_keep_their_form_where_an_option_has_their_name(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["steptime", "step", "--tp", "8"])
    assert _with_option("give tp=WAYS, as in --anchor r.json,tp=4,weights=fp8").endswith("--anchor r.json,tp=4,weights=fp8")
    assert _with_option("tp=7 does not divide the heads").startswith("--tp 7 ")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (f"{STEP} --engine sglang --anchor {{}}", "has no runs of meta-llama/Llama-3.1-8B on hgx-h100 with engine sglang"),
        (f"{STEP} --engine ideal --anchor {{}}", "has no runs of meta-llama/Llama-3.1-8B on hgx-h100 with engine ideal"),
        (f"{STEP} --anchor nowhere.csv", "nowhere.csv: no such file"),
        (f"{STEP} --anchor {{}} --no-anchor", "keep one of the two"),
        (f"{STEP} --anchor {{}} --csv {{}}", "is an input of this command"),
    ],
)
def test_wrong_input_gets_one_message(asked, says, runs):
    shown = run(asked.replace("{}", str(runs)))
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert says in shown.stderr


def test_runs_that_are_kept_are_used_and_left_out(runs, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("STEPTIME_CATALOG", str(own))
    assert "No runs are kept" in run("anchors").stdout
    assert "Keeping" in run(f"anchors add {runs} --name mine").stderr
    listed = json.loads(run("anchors --json").stdout)
    assert [one["source"] for one in listed["anchors"]] == ["mine"]
    said = words(run(STEP).stdout)
    assert "Corrected by 1 run that you measured (mine): " in said
    assert "--no-anchor ignores these runs." in said
    assert "Corrected by" not in run(f"{STEP} --no-anchor").stdout
    assert "Corrected by" not in run(f"{STEP} --engine ideal").stdout
    assert "the prediction is unchanged" in words(run("step llama-3.1-8b hgx-h200 --batch 64").stdout)
    assert "Corrected by" not in run(f"{STEP} --engine sglang").stdout
    assert "Removed" in run("anchors remove mine").stderr
    assert "Corrected by" not in run(STEP).stdout


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("anchors drop x", "unknown action 'drop'"),
        ("anchors add", "anchors add needs a file of runs"),
        ("anchors remove", "anchors remove needs the name of runs that are kept"),
        ("anchors --tp 4", "--tp needs add FILE"),
        ("anchors remove none", "unknown stored runs 'none'"),
        ("anchors add nowhere.csv", "nowhere.csv"),
    ],
)
def test_what_cannot_be_kept_or_removed_is_told(asked, says, tmp_path):
    shown = run(f"{asked} --catalog {tmp_path}")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert says in words(shown.stderr)


def test_validate_corrects_by_own_runs(runs):
    shown = run(f"validate {runs} --anchor {runs}")
    assert shown.returncode == 0, shown.stderr
    assert "corrected by 1 run of runs.csv" in words(shown.stdout)
    assert "corrected by" not in words(run(f"validate {runs}").stdout)
    wrong = run(f"validate {runs} --anchor nowhere.csv")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "nowhere.csv: no such file" in wrong.stderr
