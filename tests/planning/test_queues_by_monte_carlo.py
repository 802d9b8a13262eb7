"""Queues and the busiest chip against Monte Carlo and exact values that other code computed (`golden/monte_carlo.toml`)."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from steptime.blackboard.expert_activation import expected_maximum, experts_touched, nodes_hit
from steptime.planning.batch_queue import PassTime, passes
from steptime.planning.chunked_prefill import mixed_step_stats
from tests.conftest import every

GOLDEN = tomllib.loads((Path(__file__).parent.parent / "golden" / "monte_carlo.toml").read_text())


def column(name):
    return np.array(GOLDEN[name], dtype=np.float64).T


def test_the_most_experts_on_a_chip():
    """Distinct experts of the busiest of 8 to 128 chips, 1 to 4,096 tokens: within 5 % up, 20 % down where few have any."""
    experts, active, chips, tokens, most, _ = column("busiest_chip")
    slots = experts / chips
    mean = experts_touched(slots, slots * active / experts, tokens)
    found = expected_maximum(mean, mean * (1 - mean / slots), chips, np.maximum(1 - 2 * mean / slots, 0))
    ratio = np.clip(found, 1, slots) / most
    assert (np.min(ratio), np.max(ratio)) == (pytest.approx(0.805, abs=0.01), pytest.approx(1.049, abs=0.01))
    assert np.mean(np.abs(ratio - 1)) < 0.02
    assert np.max(most / mean) > 5  # which the mean chip was off by


def test_the_most_rows_on_a_chip():
    experts, active, chips, tokens, _, most = column("busiest_chip")
    mean = tokens * active / chips
    ratio = np.maximum(expected_maximum(mean, mean * (experts - active) / (experts - 1), chips), 1) / most
    assert (np.min(ratio), np.max(ratio)) == (pytest.approx(0.776, abs=0.01), pytest.approx(1.016, abs=0.01))
    assert np.max(np.abs(ratio - 1)[mean >= 4]) < 0.03


def test_nodes_of_a_token_whose_groups_are_limited():
    nodes, seen = column("nodes")
    assert nodes_hit(256, 8, 8, 4, nodes) == pytest.approx(seen, rel=1e-3)
    assert float(nodes_hit(256, 8, 8, 4, 18)) == pytest.approx(5.78, abs=0.005)  # DeepSeek's 18 nodes: not 4


def test_a_train_that_takes_all_who_wait():
    """Exact waits of M/D/1 with batches, loads of 0.1 to 0.95: within 1 % but for few seats near saturation."""
    seats, load, wait = column("train")
    found = passes(load * seats, PassTime(first=1.0), seats).wait
    assert found == pytest.approx(wait, rel=0.015)
    assert float(passes(0.3 * 16, PassTime(first=1.0), 16).wait) == pytest.approx(0.499, abs=0.001)  # not 0.15


def test_a_server_that_changes_between_two_states():
    """Passes that jump where a group has a second request, 1, 3 and 8 replicas, below the jump, above it and between."""
    replicas, rate, first, more, kink, jump, beyond, seats, prompts, wait, service = column("two_states")
    time = PassTime(first=first, slope_to_kink=more, kink=kink, jump=jump, beyond=beyond)
    found = passes(rate, time, seats, replicas=replicas)
    assert found.prompts == pytest.approx(prompts, rel=0.05)
    assert found.wait + found.service == pytest.approx(wait + service, rel=0.05)
    assert np.mean(np.abs((found.wait + found.service) / (wait + service) - 1)) < 0.015
    hopeful = passes(rate, PassTime(first=first, slope_to_kink=more, kink=kink, beyond=beyond), seats, replicas=replicas)
    assert np.min((hopeful.wait + hopeful.service) / (wait + service)) < 0.75  # where the jump is left out


@pytest.mark.parametrize("load", every(2, [0.9, 0.5, 0.7, 0.8]))
def test_a_server_of_several_rows(load):
    """Four groups that read up to four prompts each (DeepSeek-R1 on hgx-b200, 4,096 tokens): a jump at every fifth prompt."""
    time = PassTime(first=0.154, slope_to_kink=0.022, kink=4, jump=0.104, beyond=0.025, row_jump=0.104)
    seconds = time(np.arange(1, 17))
    assert seconds[[4, 8, 12]] - seconds[[3, 7, 11]] == pytest.approx(0.129)
    rate, random = load * 16 / seconds[-1], np.random.default_rng(3)
    arrived = np.cumsum(random.exponential(1 / rate, 60_000))
    now, first, took = 0.0, 0, 0.0
    while first < len(arrived):
        now = max(now, arrived[first])
        count = min(int(np.searchsorted(arrived, now, side="right")) - first, 16)
        now += seconds[count - 1]
        took += count * now - arrived[first : first + count].sum()
        first += count
    found = passes(rate, time, 16)
    assert found.wait + found.service == pytest.approx(took / len(arrived), rel=0.15)


def test_groups_that_share_a_clock():
    """1 to 72 groups, prompts of 1 and 4 chunks: mean step and time to the end of a prompt at the same rate of prompts."""
    groups, chunks, quiet, first, more, rate, step, ended = column("lockstep")
    low, high = np.zeros(len(rate)), groups.copy()  # chunks a step brings: as many as the rate gives in a mean step
    for _ in range(60):
        load = (low + high) / 2
        short = load < rate * chunks * mixed_step_stats(load, groups, chunks, quiet, first, more).seconds
        low, high = np.where(short, load, low), np.where(short, high, load)
    found = mixed_step_stats(load, groups, chunks, quiet, first, more)
    assert np.max(np.abs(found.seconds / step - 1)) < 0.02
    assert np.mean(np.abs(found.seconds / step - 1)) < 0.004
    assert np.max(np.abs((found.wait + found.service) / ended - 1)) < 0.035
    binomial = quiet + (first - quiet) * (1 - (1 - load / groups) ** groups)
    assert np.max((binomial / step - 1)[(more == 0) & (groups >= 8) & (groups <= 32)]) > 0.05  # what independence adds


def test_prompts_of_many_chunks_in_steps_that_grow():
    """Up to nine tenths of what full steps read: the queue is that of full steps, not of the time that slots are taken."""
    groups, chunks, quiet, first, more, rate, step, ended = column("many_chunks")
    low, high = np.zeros(len(rate)), groups.copy()
    for _ in range(60):
        load = (low + high) / 2
        short = load < rate * chunks * mixed_step_stats(load, groups, chunks, quiet, first, more).seconds
        low, high = np.where(short, load, low), np.where(short, high, load)
    found = mixed_step_stats(load, groups, chunks, quiet, first, more)
    assert found.utilisation == pytest.approx(rate * chunks * (first + more * (groups - 1)) / groups)
    usual = more < first / 2  # else single steps vary too much
    assert found.seconds[usual] == pytest.approx(step[usual], rel=0.02)
    assert found.seconds == pytest.approx(step, rel=0.07)
    assert (found.wait + found.service)[usual] == pytest.approx(ended[usual], rel=0.075)
    assert found.wait + found.service == pytest.approx(ended, rel=0.2)
