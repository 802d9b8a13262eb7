"""`steptime sensitivity` as a user types it."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.test_commands import run
from tests.conftest import each, every

ASKED = "sensitivity step deepseek-v3 gb200-nvl72 --dp 72 --ep 72 --batch 4096"


@pytest.mark.parametrize("columns", every(2, [80, 120]))
def test_the_answer_comes_first_then_a_table_and_bars(columns):
    found = run(ASKED + " --full", columns=columns)
    assert found.returncode == 0
    lines = found.stdout.splitlines()
    assert lines[0].startswith("USD per million tokens, step deepseek-v3 gb200-nvl72: $0.4")
    assert "(scatter)" in " ".join(lines[:4])
    assert all(len(line) <= columns for line in lines)
    text = " ".join(found.stdout.split())
    for words in (
        "4.00 USD/h",
        "assumed,",
        "▒ input at its low end █ at its high end │ current answer",
        "1. scatter,",
        "2. expert_skew,",
    ):
        assert words in text
    assert re.search(r"\d\. rent, \d+(\.\d)? %: a quote, then --rent", text)
    assert "─" in found.stdout
    assert found.stdout.count("│") == 10  # nine bars, and what the mark means


@pytest.mark.thorough
def test_indices_have_their_confidence():
    pytest.importorskip("scipy")
    found = run(f"{ASKED} --sobol --samples 1024 --seed 1", columns=120)
    text = " ".join(found.stdout.split())
    assert found.returncode == 0
    assert re.search(r"\$0\.4\d\d \(90 %: \$[\d.]+ to \$[\d.]+\)", text)
    assert "First Total" in text
    assert "bootstrap of 1,024 samples" in text


@pytest.mark.thorough
def test_json_csv_and_the_picture_hold_the_same(tmp_path, closed_forms):
    pytest.importorskip("matplotlib")
    found = run(f"{ASKED} --json --csv {tmp_path / 'a.csv'} --plot {tmp_path / 'a.svg'}")
    data = json.loads(found.stdout)
    assert data["schema"] == "steptime.sensitivity/2"
    assert data["order"][:2] == ["scatter", "expert_skew"]
    assert {"rent", "batch", "expert_time"} < set(data["order"])
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert len(rows) == 1 + len(data["swings"])
    assert str(data["swings"][0]["at_high"]) in rows[1]
    picture = (tmp_path / "a.svg").read_text()
    assert "scatter" in picture
    assert "input at its low" in picture


def test_answer_fits_forty_lines():
    assert len(run(ASKED).stdout.splitlines()) <= 40


def test_a_closed_form_with_ranges():
    words = "--vary rent=1.5USD/h:3USD/h --vary seconds=10ms:30ms --vary batch=1k:4k --chips 72"
    found = run(f"sensitivity blackboard.cost_per_token {words} --full", columns=140)
    assert found.returncode == 0
    assert "(batch)" in " ".join(found.stdout.splitlines()[:2])
    assert "range as given, base at its middle" in " ".join(found.stdout.split())


@pytest.mark.slow
def test_a_plan_says_how_long_it_takes():
    found = run("sensitivity plan llama-3.1-8b hgx-h100 --chips 1 --mode aggregated --speed 40")
    assert found.returncode == 0
    assert "31 plans, about" in found.stderr


@each(
    "words, says",
    [
        ("", "sensitivity needs a question, such as step, plan or simulate"),
        ("stp llama-3.3-70b hgx-h100", "did you mean step"),
        ("step llama-3.3-70b", "step needs system"),
        ("step llama-3.3-70b hgx-h100 extra", "extra is one word too many"),
        ("step llama-3.3-70b hgx-h100 --answer tim", "did you mean time"),
        ("step llama-3.3-70b hgx-h100 --answer bound", "bound is a text"),
        ("step llama-3.3-70b hgx-h100 --vary contxt=1:2", "did you mean context"),
        ("step llama-3.3-70b hgx-h100 --vary context", "'context' is not NAME=LOW:HIGH, such as context=1k:16k"),
        ("step llama-3.3-70b hgx-h100 --vary context=1k:2k", "is outside its range"),
        ("step llama-3.3-70b hgx-h100 --vary chip.hbm.bandwidth=3GB:4GB", "is a quantity in B, but one in B/s is needed"),
        ("step llama-3.3-70b hgx-h100 --vary context=1k:8k --vary context=2k:8k", "context: has two ranges"),
        ("step llama-3.3-70b hgx-h100 --sobol --samples 1000", "512 or 1,024"),
        ("step llama-3.3-70b hgx-h100 --sobol --samples 1M", "power of two"),
        ("step llama-3.3-70b hgx-h100 --samples 64", "add --sobol"),
        ("step llama-3.3-70b hgx-h100 --sobl 3", "did you mean --sobol"),
        ("step llama-3.3-70b hgx-h100 --plot a.txt", "--plot writes a picture, .svg, .png, .pdf, not a.txt"),
        ("step llama-3.3-70b hgx-h100 --plot /nowhere/a.png", "its folder does not exist"),
        ("step llama-3.3-70b hgx-h100 --csv /nowhere/a.csv", "its folder does not exist"),
        ("step llama-3.3-70b hgx-h100 --json --full", "--full needs text"),
        ("step llama-3.3-70b hgx-h20 --tp 8", "no rent is known: give one (--rent 2.10), or another answer"),
        ("blackboard.drain_seconds --capacity 80GB --bandwidth 4TB/s", "give ranges, --vary NAME=LOW:HIGH"),
    ],
)
def test_wrong_input_gets_one_message_and_exit_code_2(words, says):
    found = run(f"sensitivity {words}")
    assert found.returncode == 2
    assert says in " ".join((found.stderr or found.stdout).split())


def test_sensitivity_of_infeasible_plan_exits_with_1():
    found = run("sensitivity plan llama-3.3-70b l4-8 --speed 400")
    assert found.returncode == 1
    assert "has no answer with these inputs: no layout on 8 chips reaches 400" in found.stderr


def test_what_does_not_fit_is_said_with_exit_code_1():
    found = run("sensitivity step llama-3.3-70b hgx-h100 --batch 256 --tp 2")
    assert found.returncode == 1
    assert "does not fit" in " ".join(found.stdout.split())


TRAIN = "sensitivity train llama-3.1-8b hgx-h100 --chips 8 --seq 4096 --batch 64 --tp 1 --pp 1 --cp 1 --tokens 1T --json"


def test_days_of_a_training_run_are_uncertain_about_its_step_and_its_losses():
    """Days follow the factor of other overhead, 1 to 1.27 with 1.08 as the median."""
    found = json.loads(run(f"{TRAIN} --answer days").stdout)
    swings = {swing["name"]: swing for swing in found["swings"]}
    assert {"scatter", "failures", "checkpoint", "restart", "overhead"} == set(swings)
    low, high = (swings["overhead"][f"at_{end}"] for end in ("low", "high"))
    assert (low, high) == (pytest.approx(found["base"] / 1.08), pytest.approx(found["base"] * 1.27 / 1.08))


@pytest.mark.thorough
def test_dollars_of_a_training_run_are_uncertain_about_its_rent_and_not_about_a_given_overhead():
    priced = json.loads(run(f"{TRAIN} --answer usd --overhead 1.1").stdout)
    assert {"rent", "scatter"} < {swing["name"] for swing in priced["swings"]}
    assert "overhead" not in {swing["name"] for swing in priced["swings"]}


@pytest.mark.thorough
def test_a_searched_training_run_is_as_uncertain_as_train_says():
    """The rent is the answer about a run; its step has the range of a search, 1.26 at the upper end and not 1.20."""
    asked = "llama-3.1-8b hgx-h100 --chips 8 --batch 64 --tokens 1T --json"
    found, step = json.loads(run(f"sensitivity train {asked}").stdout), json.loads(run(f"train {asked}").stdout)["step"]
    assert found["answer"] == "usd"
    scatter = next(swing for swing in found["swings"] if swing["name"] == "scatter")
    for end in ("low", "high"):
        assert scatter[end] == pytest.approx(step[f"{end}_s"] / step["total_s"])
