"""`steptime design` as a user types it."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import run
from tests.conftest import each, every

CHIP = "design step llama-3.3-70b hgx-h100 --tp 8 --batch 64 --over times.bandwidth=0.5:5:46 --within power"


@pytest.mark.parametrize("columns", every(2, [80, 120]))
def test_the_best_comes_first_then_the_front_beside_what_stands_today(columns):
    found = run(CHIP, columns=columns)
    assert found.returncode == 0
    lines = found.stdout.splitlines()
    assert lines[0].startswith("Best of 46 designs: times.bandwidth 2.9, with lowest USD per million tokens:")
    assert all(len(line) <= columns for line in lines)
    text = " ".join(found.stdout.split())
    assert "less than today" in text
    assert "1 design of 46 on the Pareto front" in text
    assert len(lines) <= 40
    assert "(times.bandwidth)" in text


def test_a_plan_is_asked_unless_a_step_is(closed_forms):
    limits = "--chips 1 --mode aggregated --speed 40 --ttft 2 --input 2k --output 200"
    words = f"design llama-3.1-8b hgx-h100 --over arch.kv_heads=2,8 --arch.equal total {limits}"
    data = json.loads(run(words + " --json").stdout)
    assert data["schema"] == "steptime.design/2"
    assert data["sweep"]["question"] == "plan"
    assert data["front"][0]["arch.kv_heads"] == 2
    assert data["text"].endswith("with kv_heads 2")
    text = " ".join(run(words).stdout.split())
    assert "all have 8.0" in text


def test_a_training_run_is_designed_for_rent_and_days():
    words = "design train llama-3.1-8b hgx-h100 --chips 64 --batch 512 --tokens 1T --over times.link=1,2 --within power"
    data = json.loads(run(words + " --json").stdout)
    assert (data["sweep"]["question"], data["aims"]) == ("train", ["usd", "days"])
    # Links that no layout needs only take power from arithmetic.
    assert data["front"][0]["times.link"] == 1
    assert data["today"]["usd"] == pytest.approx(data["front"][0]["usd"], rel=1e-12)


@pytest.mark.thorough
def test_files(tmp_path):
    found = run(f"{CHIP} --csv {tmp_path / 'a.csv'} --plot {tmp_path / 'a.svg'} --full")
    assert found.returncode == 0
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 47
    assert "times.bandwidth" in (tmp_path / "a.svg").read_text()


@each(
    "words, message",
    [
        ("design", "a design needs a model and a system"),
        ("design llama-3.3-70b hgx-h100", "a design needs an axis"),
        ("design step llama-3.3-70b hgx-h100 --over batch=1,2", "a design needs an axis of the model"),
        ("design step llama-3.3-70b hgx-h100 --over arch.kv_head=1,2", "did you mean arch.kv_heads"),
        ("design step llama-3.3-70b hgx-h100 --over arch.experts=8,16", "has layers, width, heads, kv_heads, ffn"),
        (f"{CHIP} --aim usd", "unknown aim 'usd'"),
        (f"{CHIP} --withn power", "did you mean --within"),
        (CHIP.replace("power", "money"), "within: must be power, or shares"),
        (f"{CHIP} --csv /nonexistent/a.csv", "its folder does not exist"),
        (
            "design train llama-3.1-8b hgx-h100 --chips 8 --batch 64 --over times.link=1,2 --aim usd",
            "needs the tokens of the run",
        ),
        ("design train llama-3.1-8b hgx-h100 --chips 8 --batch 64 --over chips=8,16", "--chips: is given twice"),
        ("design train llama-3.1-8b hgx-h100 --chips 8 --over arch.latent=8,16 --batch 64", "every point is refused"),
        ("design trian llama-3.1-8b hgx-h100 --over times.flops=1,2", "did you mean train?"),
    ],
)
def test_wrong_words_get_one_message_and_exit_code_2(words, message):
    found = run(words)
    assert found.returncode == 2
    assert message in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


@pytest.mark.thorough
def test_limits_that_nothing_meets_and_memory_that_nothing_fits_are_answers_with_exit_code_1():
    found = run("design llama-3.1-8b hgx-h100 --over times.bandwidth=1,2 --chips 1 --speed 100000")
    assert found.returncode == 1
    assert "no design has an answer: no layout on 1 chip reaches 100,000" in " ".join(found.stderr.split())
    assert run("design step deepseek-v3 hgx-h100 --over arch.latent=256,512 --tp 8").returncode == 1
    found = run("design step llama-3.3-70b hgx-h20 --tp 8 --over times.bandwidth=1,2")
    assert (found.returncode, "no rent is known" in " ".join(found.stderr.split())) == (1, True)


def test_designs_that_are_as_good_are_told():
    found = run("design step llama-3.3-70b hgx-b200 --tp 8 --over arch.kv_heads=1,2,4,8 --batch 64")
    assert "as much as today" in " ".join(found.stdout.split())
    assert "3 other designs are as good" in " ".join(found.stdout.split())


def test_what_stands_today_says_at_which_batch():
    found = run("design step llama-3.3-70b hgx-h100 --tp 8 --over arch.kv_heads=4,8 --over batch=1,64", columns=120)
    row = next(line for line in found.stdout.splitlines() if line.strip().startswith("today"))
    assert row.split()[1:3] == ["-", "64"]
