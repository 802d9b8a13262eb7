"""Refusals of `plan` and `simulate` name the option that was typed, and have the exit code of their kind."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import run
from tests.conftest import each

PLAN = "plan llama-3.1-8b hgx-h100 "


@each(
    "words, message",
    [
        (PLAN + "--power-cap abc", "--power-cap: 'abc' is not a number in W"),
        (PLAN + "--power-cap 10", "--power-cap: '10' has no unit"),
        (PLAN + "--sessions chat --prefix-cache host=10Tb", "--prefix-cache: host: '10Tb' is in bits"),
        (PLAN + "--sessions chat --prefix-cache host=abc", "--prefix-cache: host: 'abc' is not a number"),
        (PLAN + "--sessions chat --prefix-cache dram=1TB", "--prefix-cache: unknown memory tier 'dram'"),
        (PLAN + "--prefill-chips 8", "give --prefill-system too"),
        (
            "simulate llama-3.1-8b hgx-h100 --rate 1 --prefixes 2 --prefix-cache host=1Gb",
            "--prefix-cache: host: '1Gb' is in bits, but a capacity is in bytes; did you mean 1GB?",
        ),
        (PLAN + "--set chip.hbm.capacity=80Gb", "did you mean 80GB?"),
        (PLAN + "--ttft 0,5", "--ttft takes a number with a decimal point: 0.5, not '0,5'"),
        (PLAN + "--ttft 2 s", "--ttft takes one word, so that 's' is left over"),
        (PLAN + "hgx-h200", "'hgx-h200' is left over; where a question takes several values"),
        (PLAN + "hgx-h200 mi300x-8", "joined by commas: hgx-h100,hgx-h200,mi300x-8"),
        ("prices deepseek-v3 --tokens-per-day 2 billion", "'billion' is left over"),
        ("models llama-", "`steptime models --like llama-` lists "),
    ],
)
def test_a_refused_value_names_its_option(words, message):
    shown = run(words)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert message in shown.stderr


@pytest.mark.thorough
def test_a_power_below_one_replica_is_an_answer_with_a_reason(closed_forms):
    shown = run(PLAN + "--engine ideal --chips 8 --power-cap 1kW --json")
    assert shown.returncode == 1
    data = json.loads(shown.stdout)
    assert (data["feasible"], data["fleet"], data["launch"]) == (False, None, {})
    assert "the hosts of one replica take" in data["reason"]
