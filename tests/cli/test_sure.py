"""`plan --sure` as a user types it: what it refuses, what it says, and how limits are met without it."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.test_commands import run
from tests.conftest import each

PLAN = "plan llama-3.1-8b hgx-h100 --chips 2 --input 1k --output 256 --speed 50 --ttft 1 "


def words(text: str) -> str:
    return " ".join(text.split())


@each("sure", ["0.3", "2", "nan", "1", "-0.9"])
def test_a_probability_out_of_bounds_is_refused(sure):
    shown = run(f"{PLAN}--sure {sure}")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(
        ("steptime: --sure: must be a probability from 0.5 to 0.99", "steptime: --sure must be a finite number")
    )


@pytest.mark.parametrize("sure", ["x", "90kg"])
def test_what_is_no_number_is_refused(sure):
    shown = run(f"{PLAN}--sure {sure}")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert words(shown.stderr).startswith(f"steptime: --sure: must be a number, got '{sure}'")


@pytest.mark.slow
def test_plan_shows_the_chance_of_each_limit():
    plain = words(run(PLAN).stdout)
    # 385 ms, 90 %: 82 to 837 ms: ln(1000 / 385) / (ln(837 / 385) / 1.645) = 2.0 deviations.
    assert "≤ 1.00 s (98 %)" in plain
    assert "--sure 0.9 plans for 90 %." in plain
    sure = words(run(PLAN + "--sure 0.9").stdout)
    assert re.search(r"≥ 50 \(9\d %\)", sure)
    assert "at least 90 % probability" in sure


@pytest.mark.thorough
def test_a_surer_plan_as_json_is_likelier_and_dearer():
    plain, sure = (json.loads(run(PLAN + more + " --json").stdout) for more in ("", "--sure 0.9"))
    assert (plain["sure"], sure["sure"]) == (None, 0.9)
    assert plain["slo_probability"]["tpot"] < 0.9 <= sure["slo_probability"]["tpot"] + 1e-9
    assert sure["usd_per_million_output_tokens"] > plain["usd_per_million_output_tokens"]
    assert sure["tpot_s"] < plain["tpot_s"]
    assert plain["distance"] == sure["distance"] == []


@pytest.mark.thorough
def test_what_nothing_meets_so_surely_is_told_with_exit_code_1():
    asked = PLAN.replace("--speed 50", "--speed 220")
    assert run(asked).returncode == 0
    shown = run(asked + "--sure 0.99")
    assert shown.returncode == 1
    assert "Not possible: with probability 0.99, " in words(shown.stdout)


@pytest.mark.thorough
def test_what_lies_beyond_the_runs_is_named(closed_forms):
    asked = "plan llama-3.1-70b hgx-h200 --chips 8 --input 2k --output 256 --speed 33 --mode disaggregated"
    said = "separate prefill and decode pools"
    assert f"The range is wider for lack of measured runs: {said}" in words(run(asked).stdout)
    assert said in json.loads(run(asked + " --json").stdout)["distance"]
