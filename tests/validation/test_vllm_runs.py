"""Two measured vLLM 0.19 runs of 300 ShareGPT requests at 10/s, replayed: constants of one predict the other, both ways.

One RTX 4090 with Llama-3.1-8B is short of KV cache (about 190 preemptions); two RTX PRO 6000 with Qwen3-32B are short of seats.
Constants are fitted by `docs/recorded_run_fit.py` with the shipped vLLM as prior. The link of the two boards (no peer-to-peer
copies: 23.9 GB/s, of which vLLM reaches two thirds) is a figure of their system, found on the first 40 requests of their run.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
pytest.importorskip("scipy")

from recorded_run_fit import NOISE, PRIOR, Recorded, differences, fit, read_recorded, replay

import steptime as st
from steptime.physics.engine import load_engine, with_constants
from steptime.simulation.replica_pools import serve
from steptime.simulation.run_metrics import timeline
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.step_time_model import sample_pace
from steptime.workload.traffic import Lengths, open_loop
from tests.conftest import each

RUNS = Path(__file__).parents[3] / "shared/data/measured/vllm_runs"
needs_runs = pytest.mark.skipif(not RUNS.is_dir(), reason="the measured vLLM runs are not beside this checkout")
VLLM = load_engine("vllm")


@pytest.fixture(scope="module")
def recorded():
    return read_recorded(RUNS)


@pytest.fixture(scope="module")
def one_chip(recorded):
    return recorded[0]


@pytest.fixture(scope="module")
def two_chips(recorded):
    return recorded[1]


@pytest.fixture(scope="module")
def of_one(one_chip):
    return fit(one_chip, VLLM)


@pytest.fixture(scope="module")
def of_two(two_chips):
    return fit(two_chips, VLLM)


def ratios(run, found):
    """Simulated over measured: mean and p90 TTFT, mean TPOT."""
    arrival, owed = run.traffic.arrival, run.traffic.outputs - 1
    ours, theirs = found["first"] - arrival, run.first - arrival
    tpot = np.mean((found["finish"] - found["first"]) / owed) / np.mean((run.last - run.first) / owed)
    return ours.mean() / theirs.mean(), np.percentile(ours, 90) / np.percentile(theirs, 90), tpot


def within(run, found, ttft, p90, tpot):
    a, b, c = ratios(run, found)
    return abs(a - 1) <= ttft and abs(b - 1) <= p90 and abs(c - 1) <= tpot


@needs_runs
def test_a_run_that_is_short_of_cache(one_chip, of_one):
    pace = sample_pace(
        one_chip.model, one_chip.system, layout=one_chip.layout, engine=of_one, max_num_seqs=256, contexts=(300, 2500),
        check=False,
    )  # fmt: skip
    found, rules, pool = serve(one_chip.traffic, one_chip.policy, pace)
    assert within(one_chip, found, 0.02, 0.02, 0.02), ratios(one_chip, found)
    assert 100 < found["preempted"].sum() < 300
    with (RUNS / "RTX4090_Llama-3.1-8B" / "timeseries.csv").open() as file:
        seen = list(csv.DictReader(file))
    at = np.array([float(row["t"]) for row in seen])
    line = timeline(found, [(rules, pool)], points=2000)
    decoding = np.interp(at, line["seconds"], line["decoding"])
    kv = np.interp(at, line["seconds"], line["kv"])
    running = np.array([float(row["running"]) for row in seen])
    full = (at > 5) & (at < 165)
    assert np.mean(kv[full]) == pytest.approx(np.mean([float(row["kv_cache_pct"]) / 100 for row in seen]) / 0.95, abs=0.06)
    assert np.mean(np.abs(decoding - running)[full]) < 0.12 * np.mean(running[full])


@needs_runs
def test_constants_of_one_chip_predict_two(two_chips, of_one):
    found = replay(two_chips, of_one)
    assert within(two_chips, found, 0.10, 0.10, 0.05), ratios(two_chips, found)
    assert found["preempted"].sum() == 0
    waiting = np.sum(two_chips.traffic.arrival <= 40) - np.sum(found["scheduled"] <= 40)
    assert waiting == pytest.approx(172, abs=3)  # its timeseries.csv, at 40 s


@pytest.mark.thorough
@needs_runs
def test_constants_of_two_chips_predict_one(one_chip, of_two):
    assert within(one_chip, replay(one_chip, of_two), 0.10, 0.10, 0.07), ratios(one_chip, replay(one_chip, of_two))


@needs_runs
def test_the_link_is_what_the_first_requests_ask_for(two_chips, of_one):
    """At 23.9 GB/s the first 40 requests are close; a tenth less or more is further off."""

    def off(factor):
        inner, *outer = two_chips.system.domains
        link = replace(inner.link, bandwidth=factor * inner.link.bandwidth)
        system = replace(two_chips.system, domains=(replace(inner, link=link), *outer))
        run = replace(two_chips, system=system)
        return np.sqrt(np.mean(differences(run, replay(run, of_one))[:, :40] ** 2))

    assert off(1.0) < 0.03
    assert off(1.0) < off(0.9)
    assert off(1.0) < off(1.1)


@needs_runs
def test_the_shipped_engine_without_a_fit(one_chip, two_chips):
    """Nothing fitted to these runs: each within 20 %."""
    for run in (one_chip, two_chips):
        assert within(run, replay(run, VLLM), 0.20, 0.20, 0.20), ratios(run, replay(run, VLLM))


@needs_runs
@each("chips, queue, prefill", [(1, 0.15, 0.05), (2, 0.10, 0.30)])
def test_parts_of_first_tokens_are_near_recorded_ones(one_chip, two_chips, chips, queue, prefill):
    """Queue and prefill as vLLM has them in its metrics, by the shipped engine; means over 300 requests."""
    run = (one_chip, two_chips)[chips - 1]
    found = replay(run, VLLM)
    assert np.mean(found["scheduled"] - run.traffic.arrival) == pytest.approx(np.mean(run.scheduled - run.queued), rel=queue)
    assert np.mean(found["first"] - found["scheduled"]) == pytest.approx(np.mean(run.first - run.scheduled), rel=prefill)


@pytest.mark.thorough
def test_a_fit_finds_the_constants_that_made_a_run():
    """A run replayed with a faster memory is fitted back to it; links of one chip stay at the prior."""
    made = with_constants(VLLM, {"memory_efficiency": 0.93, "attention_time": 0.95})
    blank = Recorded(
        traffic=open_loop(60.0, 150, Lengths(mean=400), Lengths(mean=200)),
        **dict.fromkeys(("queued", "scheduled", "first", "last"), np.zeros(150)),
        model=st.load_model("llama-3.1-8b"), system=st.load_system("hgx-h100"), layout=st.Layout(),
        policy=Policy(max_num_seqs=32, max_num_batched_tokens=2048),
    )  # fmt: skip
    truth = replay(blank, made)
    run = replace(blank, first=truth["first"], last=truth["finish"])
    before = np.sqrt(np.mean(differences(run, replay(run, VLLM)) ** 2))
    fitted = fit(run, VLLM)
    assert np.sqrt(np.mean(differences(run, replay(run, fitted)) ** 2)) < min(NOISE, before / 3)
    assert fitted.kernels.memory_efficiency > VLLM.kernels.memory_efficiency
    assert fitted.kernels.network_efficiency == VLLM.kernels.network_efficiency
    assert "network_efficiency" not in PRIOR
