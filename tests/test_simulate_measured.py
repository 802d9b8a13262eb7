"""Two measured vLLM 0.19 runs of 300 ShareGPT requests at 10/s, replayed: constants of one predict the other.

One RTX 4090 with Llama-3.1-8B is short of KV cache (about 190 preemptions); two RTX PRO 6000 with Qwen3-32B are short of seats.
A run on one chip says nothing of a link, so that the link of the two, which reaches a sixth of its data sheet (no peer-to-peer
copies), is measured on the first 40 requests of its run; everything else comes from the other machine. The other way round the
link hides the efficiency of arithmetic: constants of the run on two chips are off by a third on one.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

import steptime as st
from steptime.engine import Engine
from steptime.simulate.metrics import timeline
from steptime.simulate.pace import pace_of
from steptime.simulate.policy import Policy
from steptime.simulate.run import serve
from steptime.simulate.traffic import Traffic

RUNS = Path(__file__).parents[2] / "shared/data/measured/vllm_runs"
pytestmark = pytest.mark.skipif(not RUNS.is_dir(), reason="the measured vLLM runs are not beside this checkout")

NAMES = ("memory_efficiency", "compute_efficiency", "attention_efficiency", "seconds_per_step", "seconds_per_sequence")
FITTED = (0.911, 0.939, 0.479, 1.57e-3, 1.44e-5)  # on the RTX 4090, by the slow test below
LINK = 0.167  # of the data sheet's PCIe 5.0 x16: 9.2 GB/s
START = (0.85, 1.0, 0.5, 2e-3, 2e-5)


@dataclass
class Run:
    """A measured run, times from the first arrival."""

    traffic: Traffic
    first: Any
    last: Any
    model: Any
    system: Any
    mapping: Any
    policy: Policy
    folder: Path


def measured(folder, model, system, mapping, policy):
    rows = [json.loads(line) for line in (RUNS / folder / "requests.jsonl").read_text().splitlines()]
    column = {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "request_id"}
    offset = np.min(column["queued_ts"] - column["arrival_time"])  # two clocks
    start = column["arrival_time"].min() + offset
    traffic = Traffic(
        arrival=column["arrival_time"] + offset - start, inputs=column["input_toks"], outputs=column["output_toks"]
    )
    return Run(
        traffic, column["first_token_ts"] - start, column["last_token_ts"] - start,
        st.load_model(model), st.load_system(system), mapping, policy, RUNS / folder,
    )  # fmt: skip


@pytest.fixture(scope="module")
def one_chip():
    policy = Policy(max_sequences=256, token_budget=2048, kv_tokens=41_408)  # its meta.json
    return measured("RTX4090_Llama-3.1-8B", "llama-3.1-8b", "rtx-4090-8", st.Mapping(), policy)


@pytest.fixture(scope="module")
def two_chips():
    policy = Policy(max_sequences=128, token_budget=2048, kv_tokens=400_000)
    return measured("RTXPRO6000_Qwen3-32B", "qwen3-32b", "rtx-pro-6000-8", st.Mapping(tp=2), policy)


def engine(values, link=1.0):
    constants = dict(zip(NAMES, values, strict=True))
    return Engine(attention_memory_efficiency=constants["memory_efficiency"], network_efficiency=link, **constants)


def replayed(run, constants):
    pace = pace_of(
        run.model, run.system, mapping=run.mapping, engine=constants, max_sequences=run.policy.max_sequences,
        contexts=(300, 2500), check=False,
    )  # fmt: skip
    return serve(run.traffic, run.policy, pace)


def ratios(run, found):
    """Simulated over measured: mean and p90 TTFT, mean TPOT."""
    arrival, owed = run.traffic.arrival, run.traffic.outputs - 1
    ours, theirs = found["first"] - arrival, run.first - arrival
    tpot = np.mean((found["finish"] - found["first"]) / owed) / np.mean((run.last - run.first) / owed)
    return ours.mean() / theirs.mean(), np.percentile(ours, 90) / np.percentile(theirs, 90), tpot


def within(run, found, ttft, p90, tpot):
    a, b, c = ratios(run, found)
    return abs(a - 1) <= ttft and abs(b - 1) <= p90 and abs(c - 1) <= tpot


def test_a_run_that_is_short_of_cache(one_chip):
    found, rules, pool = replayed(one_chip, engine(FITTED))
    assert within(one_chip, found, 0.02, 0.02, 0.02), ratios(one_chip, found)
    assert 100 < found["preempted"].sum() < 300
    with (one_chip.folder / "timeseries.csv").open() as file:
        seen = list(csv.DictReader(file))
    at = np.array([float(row["t"]) for row in seen])
    line = timeline(found, rules, pool, points=2000)
    decoding = np.interp(at, line["seconds"], line["decoding"])
    kv = np.interp(at, line["seconds"], line["kv"])
    running = np.array([float(row["running"]) for row in seen])
    full = (at > 5) & (at < 165)
    assert np.mean(kv[full]) == pytest.approx(np.mean([float(row["kv_cache_pct"]) / 100 for row in seen]) / 0.95, abs=0.06)
    assert np.mean(np.abs(decoding - running)[full]) < 0.12 * np.mean(running[full])


def test_constants_of_one_run_predict_the_other(two_chips):
    found, _, _ = replayed(two_chips, engine(FITTED, LINK))
    assert within(two_chips, found, 0.10, 0.10, 0.05), ratios(two_chips, found)
    assert found["preempted"].sum() == 0
    waiting = np.sum((run := two_chips.traffic.arrival) <= 40) - np.sum(found["scheduled"] <= 40)
    assert waiting == pytest.approx(172, abs=3)  # its timeseries.csv, at 40 s
    assert len(run) == 300


@pytest.mark.slow
def test_the_fit_itself(one_chip, two_chips):
    optimize = pytest.importorskip("scipy.optimize")

    def errors(run, found, most):
        decode, measured_decode = found["finish"] - found["first"], run.last - run.first
        parts = (
            (found["first"] - run.first) / np.mean(run.first - run.traffic.arrival),
            (found["finish"] - run.last) / np.mean(measured_decode),
            3 * (decode - measured_decode) / np.mean(measured_decode),
        )
        return float(np.sqrt(np.mean([part[:most] ** 2 for part in parts])))

    start = np.log(START)
    corners = np.vstack([start, start + 0.25 * np.eye(len(start))])
    best = optimize.minimize(
        lambda x: errors(one_chip, replayed(one_chip, engine(np.exp(x)))[0], None), start, method="Nelder-Mead",
        options={"maxfev": 250, "initial_simplex": corners},
    )  # fmt: skip
    values = np.exp(best.x)
    assert within(one_chip, replayed(one_chip, engine(values))[0], 0.02, 0.02, 0.02)
    link = optimize.minimize_scalar(
        lambda x: errors(two_chips, replayed(two_chips, engine(values, np.exp(x)))[0], 40), (-3, -1), method="brent"
    )
    found, _, _ = replayed(two_chips, engine(values, np.exp(link.x)))
    assert within(two_chips, found, 0.10, 0.10, 0.06), (ratios(two_chips, found), values, np.exp(link.x))
