"""The fewest replicas within limits: the search, and the command."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from steptime.simulation.max_rate import fewest_replicas
from tests.cli.test_commands import run

REQUEST = "simulate llama-3.1-8b hgx-h100 --rate 60 --requests 3000 --input 1000 --output 200 --lengths lognormal --spread 1"


@given(some.integers(1, 300), some.integers(1, 256))
def test_the_search_finds_the_first_that_is_enough_in_few_tries(enough, most):
    tried = []
    found = fewest_replicas(lambda count: tried.append(count) or count >= enough, most)
    assert found == (enough if enough <= most else None)
    assert len(tried) == len(set(tried)) <= 18
    assert max(tried) <= most


def test_one_less_misses_the_limits():
    shown = json.loads(run(f"{REQUEST} --speed 60 --ttft 0.5 --find-replicas --json").stdout)
    count = shown["layout"]["replicas"]
    assert (count > 1, shown["limits"]["is_met"]) == (True, True)
    less = run(f"{REQUEST} --speed 60 --ttft 0.5 --replicas {count - 1} --json")
    assert (less.returncode, json.loads(less.stdout)["limits"]["is_met"]) == (1, False)


@pytest.mark.parametrize("options", ["", "--ttft 1 --replicas 2", "--ttft 1 --prefill-replicas 1"])
def test_what_the_search_needs(options):
    assert run(f"{REQUEST} {options} --find-replicas").returncode == 2


def test_limits_that_no_number_meets():
    shown = run(f"{REQUEST} --ttft 0.000001 --find-replicas --json")
    assert (shown.returncode, json.loads(shown.stdout)["limits"]["is_met"]) == (1, False)
