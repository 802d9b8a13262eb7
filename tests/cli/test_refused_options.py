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
        (PLAN + "--ttft 0,5", "--ttft: must be a number in s, got '0,5'; write 0.5"),
        (PLAN + "--cached 50", "--cached must be a share of at least 0 and below 1, not 50; give 0.5 for 50 %"),
        (PLAN + "--set chip", "--set: must be KEY=VALUE, got 'chip'"),
        (PLAN + "--csv table.md", "--csv writes CSV, not .md; name the file table.csv"),
        ("sweep step llama-3.1-8b hgx-h100 --over batch", "--over: must be NAME=VALUES"),
        ("sweep step llama-3.1-8b hgx-h100 --over batch=1,2 --answer tokns", "did you mean tokens_per_second_per_user"),
        ("rl llama-3.1-8b hgx-h100 --rollout-share 1.5", "--rollout-share must be a share"),
        ("lecture three", "section takes a whole number without a unit, not 'three'"),
        ("web --export page.txt", "--export writes one .html file or a folder; name the file page.html"),
        ("web --export /nonexistent/page.html", "its folder does not exist"),
        (PLAN + "--ttft 2 s", "--ttft takes one word, so that 's' is left over"),
        (PLAN + "hgx-h200", "'hgx-h200' is left over; where a question takes several values"),
        (PLAN + "hgx-h200 mi300x-8", "joined by commas: hgx-h100,hgx-h200,mi300x-8"),
        ("mcp here", "'here' is left over; mcp takes options only"),
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


def test_a_config_that_is_cut_off_says_so(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 4096, "num_hid')
    shown = run("models config.json", folder=tmp_path)
    assert shown.returncode == 2
    assert "(column 46); the file may be cut off" in shown.stderr


def test_an_unknown_architecture_names_its_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "foo", "hidden_size": 4096}')
    shown = run("models config.json", folder=tmp_path)
    assert shown.returncode == 2
    assert "unknown architecture 'foo'. The config of " in shown.stderr
