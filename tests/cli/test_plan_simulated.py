"""`plan --simulate` as a user types it: the replay leads, and a plan that it refuses is no plan."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest

from steptime.planning import planner, slo_probability
from tests.cli.test_commands import run
from tests.conftest import every

PLAN = "plan llama-3.1-8b hgx-h100 --chips 2 --input 1024 --output 256 --mode aggregated --simulate "
GOOD = PLAN + "--speed 50 --ttft 1"
REFUSED = PLAN + "--speed 50 --ttft 0.075 --percentile p99"


@pytest.fixture
def hardly_lowered():
    """Let a replay lower the rate to nine tenths at most, and plan by means: the limits of REFUSED do not hold at p99."""
    with (
        patch("steptime.planning.plan_replay.LOWER", 0.995),
        patch.object(planner, "find_spec", return_value=None),
        patch("steptime.planning.plan_figures.percentile_ratio", return_value=1.0),
        patch.object(slo_probability, "percentile_ratio", return_value=1.0),
    ):
        yield


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("columns", every(2, [80, 120]))
@pytest.mark.parametrize("more", ["", " --full"])
def test_the_replay_comes_before_the_plans_own_figures(more, columns):
    shown = run(GOOD + more, columns=columns)
    assert shown.returncode == 0, shown.stderr
    text = words(shown.stdout)
    simulated = "With random arrivals: $"
    assert text.index("tokens in") < text.index(simulated) < text.index("This plan")
    assert "the limits are met at p90" in text
    assert max(map(len, shown.stdout.splitlines())) <= columns
    assert len(shown.stdout.splitlines()) <= 40 or more


@pytest.mark.slow
@pytest.mark.usefixtures("hardly_lowered")
@pytest.mark.parametrize(("more", "columns"), [(" --full", 120), ("", 80)])
def test_a_plan_that_its_replay_refuses_is_not_possible(more, columns):
    shown = run(REFUSED + more, columns=columns)
    assert shown.returncode == 1, shown.stdout
    text = words(shown.stdout)
    assert "With random arrivals not possible: " in text
    assert "With random arrivals: $" not in text
    assert max(map(len, shown.stdout.splitlines())) <= columns


@pytest.mark.thorough
@pytest.mark.usefixtures("hardly_lowered")
def test_a_refused_plan_as_json():
    shown = run(REFUSED + " --json")
    assert shown.returncode == 1
    found = json.loads(shown.stdout)
    assert found["feasible"] is False
    assert found["reason"] == found["simulated"]["reason"]
    assert "not met at p99" in found["reason"]
    assert found["launch"] == {}
    assert found["simulated"]["good"] is False
    assert found["simulated"]["limits"]["verdict"] == "MISSED"
    alone = json.loads(run(REFUSED.replace(" --simulate", "") + " --json").stdout)
    assert alone["feasible"] is True
    for key in ("tpot_s", "ttft_s", "layout", "requests_per_s", "usd_per_million_output_tokens", "pools", "why"):
        assert found[key] == alone[key]


def test_a_plan_that_holds_as_json():
    found = json.loads(run(GOOD + " --json").stdout)
    assert found["feasible"] is True
    assert found["reason"] == found["simulated"]["reason"] == ""
    assert set(found["launch"]) == {"vllm", "sglang", "trtllm"}
    assert found["simulated"]["limits"]["is_met"]
    assert found["simulated"]["planned_requests_per_s"] == found["requests_per_s"]


@pytest.mark.thorough
@pytest.mark.usefixtures("hardly_lowered")
def test_a_refused_plan_has_no_launch_commands():
    shown = run(REFUSED + " --launch vllm --explain")
    assert shown.returncode == 1
    assert "vllm serve" not in shown.stdout
