"""`steptime sweep` as a user types it."""

from __future__ import annotations

import json

import pytest

import steptime as st
from tests.cli.test_commands import run
from tests.conftest import each, every
from tests.validation.test_anchors import measured, written

STEP = "sweep step llama-3.1-8b hgx-h100 --tp 2"
FEW = f"{STEP} --over batch=1:64:log2 --over context=1k,8k"


@pytest.mark.parametrize("columns", every(3, [80, 120, 160]))
def test_few_points_have_a_row_each(columns):
    found = run(FEW, columns=columns)
    assert found.returncode == 0
    lines = found.stdout.splitlines()
    assert lines[0].startswith("Lowest USD per million tokens: $")
    assert "step: 7 values of batch x 2 values of context = 14 points" in found.stdout
    assert len(lines) <= 40
    assert all(len(line) <= columns for line in lines)
    batches = ("1 ", "2 ", "4 ", "8 ", "16 ", "32 ", "64 ")
    assert len([line for line in lines if line.strip().startswith(batches) and "ms (" in line]) == 14
    assert "(low to high): 90 % range." in found.stdout


@pytest.mark.parametrize("columns", every(2, [80, 120]))
def test_many_points_are_ends_and_a_picture(columns):
    found = run(f"{STEP} --over batch=1:1000:200 --over context=1k:100k:50", columns=columns)
    lines = found.stdout.splitlines()
    assert lines[0].startswith("Lowest USD per million tokens: $")
    assert "step: 200 values of batch x 50 values of context = 10,000 points" in found.stdout
    assert len(lines) <= 40
    assert all(len(line) <= columns for line in lines)
    assert "not fit in the memory of a chip" in " ".join(found.stdout.split())
    curve = run(f"{STEP} --over batch=1:1000:200", columns=columns)
    assert "(batch [sequences])" in curve.stdout


def test_files_and_json_hold_the_same_figures(tmp_path):
    found = run(f"{FEW} --json --out {tmp_path / 'a.csv'} --out {tmp_path / 'a.xlsx'} --plot {tmp_path / 'a.svg'}")
    data = json.loads(found.stdout)
    assert data["schema"] == "steptime.sweep/2"
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert len(rows) == 15
    assert rows[0].split(",")[:3] == ["batch", "context_tokens", "time_s"]
    assert float(rows[3].split(",")[2]) == data["table"]["time_s"][2]
    step = st.decode_step("llama-3.1-8b", "hgx-h100", batch=2, context=1000, layout=st.Layout(tp=2))
    assert data["table"]["time_s"][2] == pytest.approx(float(step.total), rel=1e-12)
    assert [line.split(":")[0].split("/")[-1] for line in found.stderr.splitlines()] == ["a.csv", "a.xlsx", "a.svg"]
    assert "90 % range shaded" in (tmp_path / "a.svg").read_text()


def test_options_of_the_question_are_what_is_held():
    one = run(f"{STEP} --over batch=1,2 --context 2k --engine ideal --json")
    other = run("sweep step llama-3.1-8b hgx-h100 --set tp=2 --set context=2k --set engine=ideal --over batch=1,2 --json")
    assert one.returncode == 0
    assert json.loads(one.stdout)["table"] == json.loads(other.stdout)["table"]


@pytest.mark.thorough
def test_plans_over_systems_and_speeds(closed_forms):
    found = run("sweep plan llama-3.1-8b --over system=hgx-h100,hgx-b200 --over speed=40,4000 --chips 1 --ttft 1 --input 512")
    assert found.returncode == 0
    text = " ".join(found.stdout.split())
    assert "2 points without an answer" in text
    assert "reaches 4,000 tok/s per user" in text
    assert "(first at system hgx-h100, speed 4,000 tok/s)" in text


def test_nothing_that_meets_the_limits_is_exit_code_1():
    assert run("sweep plan llama-3.1-8b hgx-h100 --over speed=4000,5000 --chips 1").returncode == 1


def test_closed_forms_need_neither_model_nor_system(tmp_path):
    found = run(f"sweep blackboard.drain_seconds --over bandwidth=1TB/s:4TB/s:log2 --capacity 80GB --out {tmp_path / 'a.xlsx'}")
    assert found.returncode == 0
    assert "20.0 ms" in found.stdout


@each(
    "words, message",
    [
        ("sweep", "sweep needs a question"),
        ("sweep stp llama-3.1-8b hgx-h100 --over batch=1,2", "unknown question 'stp'; did you mean step?"),
        ("sweep step llama-3.1-8b hgx-h100 extra --over batch=1", "extra is one word too many"),
        (STEP, "a sweep needs an axis"),
        (f"{STEP} --over bacth=1,2", "unknown input of step 'bacth'; did you mean batch"),
        (f"{STEP} --over chip.hbm.bandwith=1TB/s", "did you mean chip.hbm.bandwidth"),
        (f"{STEP} --over chip.hbm.bandwidth=1TB", "chip.hbm.bandwidth: '1TB' is a quantity in B, but one in B/s is needed"),
        (
            f"{STEP} --over batch=1:1000000:1000000 --over context=1:1000000:1000000",
            "1,000,000,000,000 points",
        ),
        (
            f"{STEP} --over batch=1,2 --out /nonexistent/a.csv",
            "/nonexistent/a.csv: cannot be written: its folder does not exist",
        ),
        (f"{STEP} --over batch=1,2 --out a.foo", "a.foo: must end in .csv"),
        (f"{STEP} --over batch=1,2 --out a.png", "a.png is a picture: --plot draws it"),
        (f"{STEP} --over batch=1,2 --plot a.csv", "--plot writes a picture"),
        (f"{STEP} --over batch=1,2 --anser time", "unknown option '--anser'; did you mean --answer"),
        (f"{STEP} --over batch=1,2 --answer tim", "unknown answer of step 'tim'; did you mean time"),
        (f"{STEP} --over batch=1,2 --over batch=3", "batch: is given twice"),
        (f"{STEP} --over batch=1,2 --context", "--context needs a value"),
        (f"{STEP} --over batch=1,2 --against time", "--against needs --plot"),
        (f"{STEP} --over engine=vllm,foo", "unknown engine 'foo'"),
        (f"{STEP} --over batch=1,2 --workers 0", "workers: must be a whole number of at least 1"),
        ("sweep step llama-3.1-8b --over batch=1,2", "step needs system"),
        ("sweep step hgx-h100 llama-3.1-8b --over batch=1,2", "unknown"),
    ],
)
def test_wrong_words_get_one_message_and_exit_code_2(words, message):
    found = run(words, columns=100)
    assert found.returncode == 2
    assert message in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


@pytest.mark.thorough
def test_a_cluster_that_is_not_there_is_named(closed_forms):
    pytest.importorskip("distributed")
    found = run("sweep plan llama-3.1-8b hgx-h100 --over speed=10,20 --cluster nowhere")
    assert found.returncode == 2
    assert "no Dask cluster answers at nowhere" in found.stderr


def test_what_is_no_table_of_a_sweep_is_not_overwritten(tmp_path):
    place = tmp_path / "config.json"
    place.write_text('{"hidden_size": 4096}')
    found = run(f"{STEP} --over batch=1,2 --out {place}")
    assert found.returncode == 2
    assert "has content that --out does not write" in found.stderr
    assert place.read_text() == '{"hidden_size": 4096}'


def test_what_is_cheapest_fits_whatever_is_told():
    found = run(f"{STEP} --over batch=1:4096:200 --answer usd_per_million_tokens")
    text = " ".join(found.stdout.split())
    assert "not fit in the memory of a chip" in text
    assert "at batch 4,096" not in text
    assert run(f"{STEP} --over batch=50000,60000").returncode == 1
    rows = run(f"{STEP} --over batch=64,4096 --context 8k", columns=120).stdout
    assert rows.count(" †") == 2  # the row, and the note on the mark


def test_a_system_without_a_rent_says_so():
    found = run("sweep step llama-3.1-8b hgx-h20 --over batch=1,2")
    text = " ".join(found.stdout.split())
    assert "2 points without a cost: no rent of the system is known" in text
    # The points have times, which the sentence names, and no empty column takes the place of another one.
    assert text.startswith("Lowest time: ")
    assert "USD/M" not in text
    assert "memory share" in text


def test_points_without_an_answer_are_not_among_those_of_the_sentence(closed_forms):
    asked = "sweep plan llama-3.1-8b hgx-h100 --chips 1 --mode aggregated --over"
    text = " ".join(run(f"{asked} speed=20,4000").stdout.split())
    assert "at every point with an answer. " in text
    assert text.count("reaches 4,000 tok/s") == 1
    refused = run(f"{asked} speed=3000,4000")
    assert (refused.returncode, refused.stdout.startswith("None of 2 points has an answer.")) == (1, True)
    assert "─" not in refused.stdout


@pytest.mark.thorough
def test_runs_of_ones_own_that_are_kept_are_gone_by(tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("STEPTIME_CATALOG", str(own))
    runs = written(tmp_path / "runs.csv", measured([1.3], ttft=[1.3]))
    assert "Keeping" in run(f"anchors add {runs} --name mine").stderr
    alone = json.loads(run("step llama-3.1-8b hgx-h100 --batch 64 --json").stdout)
    found = run("sweep step llama-3.1-8b hgx-h100 --over batch=64,128 --json")
    assert "anchored on your runs" in found.stderr
    assert json.loads(found.stdout)["table"]["time_s"][0] == pytest.approx(alone["total_s"], rel=1e-9)
    without = run("step llama-3.1-8b hgx-h100 --batch 64 --no-anchor --json")
    assert json.loads(without.stdout)["total_s"] != pytest.approx(alone["total_s"], rel=0.05)
    several = run("sweep step llama-3.1-8b hgx-h100 --batch 64 --over engine=vllm,sglang")
    assert "runs that `steptime anchors` keeps are left out" in several.stderr


def test_runs_of_a_file_correct_a_sweep_as_they_correct_a_step(tmp_path):
    runs = written(tmp_path / "runs.csv", measured([1.3], ttft=[1.3]))
    alone = json.loads(run(f"step llama-3.1-8b hgx-h100 --batch 64 --anchor {runs} --json").stdout)
    found = run(f"sweep step llama-3.1-8b hgx-h100 --over batch=64,128 --anchor {runs} --json")
    assert "(runs.csv)" in found.stderr
    assert json.loads(found.stdout)["table"]["time_s"][0] == pytest.approx(alone["total_s"], rel=1e-12)
    assert alone["total_s"] > alone["unanchored"]["total_s"]


@pytest.mark.thorough
def test_sweep_over_a_rate_shows_the_cost_at_that_rate(both_forms):
    found = run("sweep plan llama-3.1-8b hgx-h100 --over rate=1,100 --speed 40 --json")
    table = json.loads(found.stdout)["table"]
    alone = json.loads(run("plan llama-3.1-8b hgx-h100 --rate 1 --speed 40 --json").stdout)["fleet"]
    costs = table["usd_per_million_output_tokens_at_rate"]
    assert costs[0] == pytest.approx(alone["usd_per_million_output_tokens"], rel=1e-9)
    assert costs[0] > 10 * costs[1]
    assert table["usd_per_month"][0] == pytest.approx(alone["usd_per_month"], rel=1e-9)


@pytest.mark.thorough
def test_sweep_of_compare_over_a_rate_names_the_cheapest_system_in_80_columns(both_forms):
    found = run("sweep compare llama-3.1-8b hgx-h100,l4-8 --over rate=1,10 --evidence any", columns=80)
    assert any(line.split()[:2] == ["requests/s", "system"] for line in found.stdout.splitlines())
    assert "tokens at" in found.stdout
