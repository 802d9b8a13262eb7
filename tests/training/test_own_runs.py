"""Corrections of training steps by own runs: laws, a factor by hand, and the commands as typed."""

from __future__ import annotations

import json
import math

import pytest

from steptime.errors import DataFileError, InputError
from steptime.physics.run_covariance import TRAINING, read_covariances
from steptime.questions.train_question import solve
from steptime.validation.own_training_runs import (
    kept_training_anchors,
    load_training_anchors,
    validate_with_own_runs,
    with_own_runs,
)
from steptime.validation.user_calibration import kept_anchors
from tests.cli.test_commands import run
from tests.conftest import each

COLUMNS = "id,model,system,chips,seq_len,global_batch,dtype,step_s,dp,micro_batch,sharding,recompute"
LAYOUT = {"dp": 64, "tp": 1, "pp": 1, "cp": 1, "micro_batch": 2, "sharding": "zero3", "recompute": "none"}
JOB = {"model": "llama-3.1-8b", "system": "hgx-h100", "chips": 64, "batch": 512, "seq": 4096}
LAYOUT_OPTIONS = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in LAYOUT.items())
TYPED = f"train llama-3.1-8b hgx-h100 --chips 64 --batch 512 {LAYOUT_OPTIONS}"


def written(path, ratio: float, *, model="llama-3.1-8b", system="hgx-h100", chips=64, batch=512, repeats=1):
    """Write runs whose step takes `ratio` times the prediction of Llama 3.1 8B on 64 H100."""
    step = ratio * float(solve(JOB | LAYOUT, changes=False).step.total)
    rows = [f"r{i},{model},{system},{chips},4096,{batch},bf16,{step!r},{chips},2,zero3,none" for i in range(repeats)]
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return str(path)


def corrected(path, **changes):
    return solve(with_own_runs(JOB | LAYOUT | changes, path), changes=False)


def test_a_repeat_of_the_run_shrinks_it_by_its_noise_as_worked_by_hand(tmp_path):
    covariance = read_covariances()[TRAINING]
    training = corrected(written(tmp_path / "runs.csv", 1.2))
    assert training.own_factor == pytest.approx(1.2 ** (1 - covariance.noise / covariance.total), rel=1e-9)
    before = solve(JOB | LAYOUT, changes=False).step
    assert float(training.step.total) == pytest.approx(training.own_factor * float(before.total), rel=1e-12)
    assert sum(float(term) for term in training.step.terms.values()) == pytest.approx(float(training.step.total), rel=1e-9)
    assert float(training.step.mfu_causal) == pytest.approx(float(before.mfu_causal) / training.own_factor, rel=1e-12)


def test_repeats_approach_their_measured_step_and_narrow_the_range(tmp_path):
    before = solve(JOB | LAYOUT, changes=False).step
    one, ten = (corrected(written(tmp_path / f"{n}.csv", 1.1, repeats=n)) for n in (1, 10))
    assert 1.0 < one.own_factor < ten.own_factor
    # Equal rows may be copies of one another, but noise of ten repeats is a tenth of that of one.
    assert ten.own_factor == pytest.approx(1.1, rel=0.01)
    width = [math.log(float(step.high) / float(step.low)) for step in (before, one.step, ten.step)]
    assert width[0] > width[1] >= width[2]


def test_corrections_decay_with_distance(tmp_path):
    path = written(tmp_path / "runs.csv", 1.2)
    same = corrected(path).own_factor
    batch = corrected(path, batch=4096).own_factor
    seq = corrected(path, seq=512, batch=512).own_factor
    chips = corrected(path, chips=512, dp=512, batch=1024).own_factor
    layout = corrected(path, tp=2, dp=32).own_factor
    for further in (batch, seq, chips, layout):
        assert 1.0 < further < same
    other_model = corrected(path, model="llama-2-7b").own_factor
    assert other_model == pytest.approx(1.0, abs=1e-3)


def test_a_run_of_another_stack_does_not_correct_a_stack(tmp_path):
    path = written(tmp_path / "runs.csv", 1.2)
    with pytest.raises(InputError, match="do not correct the stack torchtitan"):
        with_own_runs(JOB | {"engine": "torchtitan"}, path)


def test_the_shortfall_of_a_search_is_not_counted_twice(tmp_path):
    searched = solve(JOB, changes=False)
    layout = searched.step.layout
    assert (int(layout.dp), int(layout.micro_batch), layout.sharding, layout.recompute) == (64, 2, "zero3", "none")
    expected = float(searched.step.total)
    ratio = searched.search_factor
    assert ratio > 1
    again = solve(with_own_runs(JOB, written(tmp_path / "runs.csv", ratio)), changes=False)
    assert float(again.step.total) == pytest.approx(expected, rel=1e-9)


def rows_of(path, *steps):
    """Write repeats of the run with these measured over predicted steps."""
    predicted = float(solve(JOB | LAYOUT, changes=False).step.total)
    rows = [f"r{i},llama-3.1-8b,hgx-h100,64,4096,512,bf16,{step * predicted!r},64,2,zero3,none" for i, step in enumerate(steps)]
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return str(path)


def test_each_run_is_left_out_of_its_own_correction_as_worked_by_hand(tmp_path):
    path = rows_of(tmp_path / "runs.csv", 1.2, 1.1)
    covariance = read_covariances()[TRAINING]
    shared = 1 - covariance.noise / covariance.total
    validation = validate_with_own_runs(path, path)
    assert [p.own_factor for p in validation.predictions] == pytest.approx([1.1**shared, 1.2**shared], rel=1e-9)
    assert validation.before["median"] == pytest.approx((1 - 1 / 1.2 + 1 - 1 / 1.1) / 2, rel=1e-9)
    errors = [abs(1.1**shared / 1.2 - 1), abs(1.2**shared / 1.1 - 1)]
    assert (validation.after["median"], validation.after["runs"]) == (pytest.approx(sum(errors) / 2, rel=1e-9), 2)
    assert validation.step["all"] == validation.after


def test_a_run_of_another_file_corrects_as_in_train(tmp_path):
    """The copy of the run says nothing new; the run at another batch corrects it as `train --anchor` does."""
    path, other = written(tmp_path / "runs.csv", 1.2), written(tmp_path / "other.csv", 1.3, chips=128, batch=1024)
    both = tmp_path / "both.csv"
    both.write_text(
        (tmp_path / "runs.csv").read_text().replace("r0", "copy") + (tmp_path / "other.csv").read_text().split("\n")[1]
    )
    corrected_run = validate_with_own_runs(path, both).predictions[0]
    assert corrected_run.own_factor == pytest.approx(corrected(other).own_factor, rel=1e-9)
    assert corrected_run.own_factor > 1.1
    low, high = corrected_run.low / corrected_run.step, corrected_run.high / corrected_run.step
    step = corrected(other).step
    assert (low, high) == pytest.approx((float(step.low / step.total), float(step.high / step.total)), rel=1e-9)


@each(
    "own, engine, message",
    [
        ("runs.csv", None, "no run corrects itself"),
        ("runs.csv", "ideal", "is a bound"),
        ("serving.csv", None, "has no column 'system'"),
        ("megatron.csv", "torchtitan", "no run corrects itself"),
        ("none.csv", None, "no such file"),
    ],
)
def test_own_runs_that_correct_nothing_are_refused(own, engine, message, tmp_path):
    path = written(tmp_path / "runs.csv", 1.2)
    (tmp_path / "serving.csv").write_text("id,model,tpot_s\na,llama-3.1-8b,0.01\n")
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    (tmp_path / "megatron.csv").write_text(f"{lines[0]},framework\n{lines[1]},Megatron-LM\n")
    with pytest.raises(InputError, match=message):
        validate_with_own_runs(path, tmp_path / own, engine=engine)


def test_validate_prints_and_writes_corrected_runs(tmp_path):
    path = rows_of(tmp_path / "runs.csv", 1.2, 1.18)
    data = json.loads(run(f"validate {path} --anchor {path} --predictions {tmp_path / 'out.csv'} --json").stdout)
    assert (data["source"], data["before"]["runs"], data["after"]["coverage"]) == ("runs.csv", 2, 1.0)
    assert data["after"]["median"] < data["before"]["median"]
    plain = json.loads(run(f"validate {path} --json").stdout)
    assert (plain["source"], plain["before"], plain["step"]["all"]) == ("", {}, data["before"])
    steps = [float(line.split(",")[1]) for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    before = float(solve(JOB | LAYOUT, changes=False).step.total)
    assert all(step > before for step in steps)
    assert "left out of its own correction" in " ".join(run(f"validate {path} --anchor {path}").stdout.split())
    alone = run(f"validate {written(tmp_path / 'one.csv', 1.2)} --anchor {tmp_path / 'one.csv'}")
    assert (alone.returncode, alone.stdout, len(alone.stderr.strip().splitlines())) == (2, "", 1)


def test_a_sweep_and_a_design_are_corrected_by_a_file_as_one_answer_is(tmp_path):
    path = written(tmp_path / "runs.csv", 1.2)
    swept = run(f"sweep train llama-3.1-8b hgx-h100 --over batch=256,512 --chips 64 --anchor {path} --json {LAYOUT_OPTIONS}")
    assert "corrected by your own training runs (runs.csv)" in swept.stderr
    table = json.loads(swept.stdout)["table"]
    for batch, step, high in zip(table["batch"], table["step_time_s"], table["step_time_high_s"], strict=True):
        one = json.loads(run(f"{TYPED.replace('--batch 512', f'--batch {batch}')} --anchor {path} --json").stdout)["summary"]
        assert (step, high) == pytest.approx((one["step_time"], one["step_time_high"]), rel=1e-12)
    words = "design train llama-3.1-8b hgx-h100 --over times.link=1,2 --chips 64 --batch 512"
    designed = json.loads(run(f"{words} --anchor {path} --json {LAYOUT_OPTIONS}").stdout)
    assert designed["today"]["step_time"] == pytest.approx(table["step_time_s"][1], rel=1e-12)


@each(
    "words, message",
    [
        ("sweep train llama-3.1-8b hgx-h100 --over chips=8,16 --batch 64 --anchor none.csv", "none.csv: no such file"),
        (
            "sweep train llama-3.1-8b hgx-h100 --over engine=typical,torchtitan --chips 8 --batch 64 --anchor a.csv",
            "an axis of",
        ),
        ("sweep train --over system=hgx-h100,hgx-h200 --model llama-3.1-8b --chips 8 --batch 64 --anchor a.csv", "an axis of"),
        ("design train llama-3.1-8b hgx-h100 --over arch.kv_heads=4,2 --chips 8 --batch 64 --anchor a.csv", "an axis of"),
        ("sweep laws --name epoch --over tokens=1T,2T --params 8B --anchor a.csv", "corrects step, plan, simulate, train"),
        ("sweep train llama-3.1-8b hgx-h100 --over chips=8,16 --batch 64 --anchor=", "--anchor needs a file of runs"),
    ],
)
def test_a_file_that_corrects_no_sweep_gets_one_message_and_exit_code_2(words, message):
    refused = run(words)
    assert (refused.returncode, refused.stdout, len(refused.stderr.strip().splitlines())) == (2, "", 1), refused.stderr
    assert message in refused.stderr


def test_commands_keep_list_apply_and_remove_training_runs(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("STEPTIME_CATALOG", str(tmp_path / "own"))
    path = written(tmp_path / "mine.csv", 1.1)
    before = json.loads(run(f"{TYPED} --json").stdout)
    assert run(f"anchors add {path}").returncode == 0
    assert run(f"anchors add {path}").returncode == 2
    assert not kept_anchors().anchors
    assert [anchor.source for anchor in kept_training_anchors()] == ["mine"]
    table = json.loads(run("anchors --json").stdout)["anchors"]
    assert [(row["source"], row["runs"], row["tpot"]) for row in table] == [("mine", ["r0"], None)]
    after = json.loads(run(f"{TYPED} --json").stdout)
    ignored = json.loads(run(f"{TYPED} --no-anchor --json").stdout)
    assert after["own_factor"] == pytest.approx(after["step"]["total_s"] / before["step"]["total_s"], rel=1e-9)
    assert 1.05 < after["own_factor"] < 1.1
    assert ignored["step"]["total_s"] == before["step"]["total_s"]
    assert "Corrected by 1 run that you measured (mine): training steps x" in " ".join(run(TYPED).stdout.split())
    assert run("anchors remove mine").returncode == 0
    assert not kept_training_anchors()


def test_a_bad_row_is_named_with_its_line(tmp_path):
    path = written(tmp_path / "runs.csv", 1.1, repeats=2)
    (tmp_path / "runs.csv").write_text((tmp_path / "runs.csv").read_text().replace("r1,llama-3.1-8b", "r1,no-such-model"))
    with pytest.raises(DataFileError) as problem:
        load_training_anchors(path, skip_bad=False)
    assert problem.value.line == 3
    assert load_training_anchors(path).anchors[0].runs == ("r0",)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataFileError, match="no such file"):
        load_training_anchors(tmp_path / "runs.csv")
