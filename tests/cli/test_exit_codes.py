"""Exit codes that a script relies on, and options that contradict themselves."""

from __future__ import annotations

import importlib.util

import pytest

from tests.cli.test_commands import run
from tests.conftest import each

SMALL = "simulate llama-3.1-8b hgx-h100 --output 20"
needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="the simulator needs the extra 'simulate'")


@needs_numba
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--rate 5 --requests 200", 0),
        ("--rate 5 --speed 20", 0),
        ("--rate 5 --speed 100000", 1),
        ("--rate 5 --input 10000000 --tp 1", 1),
        ("--rate 5 --kv-tokens 10", 1),
        ("--rate 5000", 1),
    ],
)
def test_simulate_of_missed_limits_or_overload_leaves_with_1(options, code):
    assert run(f"{SMALL} {options}").returncode == code


@each("command", ["plan", "simulate --rate 5"])
@each("option", ["--spread", "--output-spread"])
def test_spread_of_lengths_has_the_same_bound_in_plans_and_simulations(command, option):
    name, *options = command.split()
    answer = run(" ".join([name, "llama-3.1-8b hgx-h100", *options, option, "30"]))
    assert answer.returncode == 2
    assert f"{option} must be at most 5" in answer.stderr


@needs_numba
def test_simulate_of_a_small_cache_names_its_own_size():
    assert "KV cache of 10 tokens" in " ".join(run(f"{SMALL} --rate 5 --kv-tokens 10").stdout.split())


@pytest.mark.parametrize(
    "words",
    [
        "plan llama-3.1-405b hgx-h100 --chips 1",
        "step llama-3.3-70b hgx-h100 --tp 1",
        pytest.param("train llama-3.1-405b hgx-h100 --chips 1 --batch 8", marks=pytest.mark.thorough),
        "compare llama-3.1-405b hgx-h100 --chips 1",
        "simulate llama-3.3-70b hgx-h100 --tp 1 --rate 5",
    ],
)
def test_command_of_a_model_that_does_not_fit_leaves_with_1(words):
    assert run(words).returncode == 1


@each(
    "words, names",
    [
        ("plan llama-3.1-8b hgx-h100 --speed 40 --speed 50", "--speed"),
        ("step llama-3.1-8b hgx-h100 --batch 1 --batch=2", "--batch"),
        ("simulate llama-3.1-8b hgx-h100 --rate 5 --drafts 3", "acceptance"),
        ("plan llama-3.1-8b hgx-h100 --set chip.peak.bf16=1FLOP/s", "chip.peak.bf16"),
        ("plan llama-3.1-8b hgx-h100 --set chip.hbm.bandwidth=1B/s", "chip.hbm.bandwidth"),
        ("plan llama-3.1-8b hgx-h100 --set rent=3600USD/s", "rent"),
    ],
)
def test_option_that_contradicts_or_means_no_machine_is_refused(words, names):
    found = run(words)
    assert found.returncode == 2
    assert names in found.stderr


def test_option_of_several_values_may_be_repeated():
    assert (
        run("step llama-3.1-8b hgx-h100 --batch 1 --set chip.hbm.bandwidth=4TB/s --set rent=2USD/h --full --full").returncode
        == 0
    )
