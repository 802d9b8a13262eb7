"""How fast the simulator is: run `python benchmarks/simulate.py`; the table goes into benchmarks/README.md."""

# ruff: noqa: I001 - the oracle lies with the tests, which are put on the path first

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import steptime as st
from tests.simulation import reference_loop as reference
from steptime.simulation.loop_state import new_requests
from steptime.simulation.prefix_cache import Cache, Tier
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.simulator import simulate
from steptime.simulation.step_time_model import sample_pace
from steptime.workload.trace_files import read_trace
from steptime.workload.traffic import Lengths, closed_loop, open_loop
from steptime.validation.ttft_fit import closed_loops

TRACES = Path(__file__).parents[2] / "shared/data/traces"


def best_of(run: Callable[[], object], times: int = 3) -> float:
    """Seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def main() -> None:
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    lengths = Lengths(mean=512), Lengths(mean=128)
    warm = time.perf_counter()
    simulate(model, system, open_loop(10, 10, *lengths), engine="ideal")
    warm = time.perf_counter() - warm
    million = open_loop(30, 1_000_000, *lengths)
    cap = Policy(max_num_seqs=128)

    def poisson() -> object:
        return simulate(model, system, million, policy=cap, engine="ideal")

    rows: list[tuple[str, float, int]] = [
        ("1,000,000 Poisson requests, 512 in, 128 out, 30/s, at most 128 at once", best_of(poisson), 1_000_000)
    ]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    for name, policy in (
        ("prefill-first", Policy(kind="prefill-first", max_num_seqs=128)),
        ("room for 20,000 tokens: preemption", Policy(max_num_seqs=128, kv_tokens=20_000)),
        ("static batches", Policy(kind="static", max_num_seqs=128)),
    ):
        part = open_loop(30, 200_000, *lengths)
        rows.append(
            (
                f"200,000 of them, {name}",
                best_of(lambda p=policy, t=part: simulate(model, system, t, policy=p, engine="ideal")),
                200_000,
            )
        )
    loop = closed_loop(256, 200_000, *lengths)
    rows.append(("200,000 requests of 256 clients", best_of(lambda: simulate(model, system, loop, engine="ideal")), 200_000))
    four = Policy(max_num_seqs=128, route="least-loaded")
    part = open_loop(100, 200_000, *lengths)
    rows.append(
        (
            "200,000 requests, 4 replicas, least loaded",
            best_of(lambda: simulate(model, system, part, policy=four, layout=st.Layout(replicas=4), engine="ideal")),
            200_000,
        )
    )
    if TRACES.is_dir():
        azure = TRACES / "AzureLLMInferenceTrace_conv_2023.csv"
        rows.append(
            (
                "the Azure conversation hour, file read",
                best_of(lambda: simulate(model, system, read_trace(azure), engine="ideal")),
                19_366,
            )
        )
        read = read_trace(azure)
        rows.append(("the same, read before", best_of(lambda: simulate(model, system, read, engine="ideal")), 19_366))
        mooncake = read_trace(TRACES / "mooncake_conversation_trace.jsonl")
        tiers = Cache(tiers=(Tier(name="hbm", capacity=2e10, bandwidth=3e12), Tier(name="host", capacity=1e12, bandwidth=5e10)))
        rows.append(
            (
                "the Mooncake hour, prefix cache in two tiers, 4 replicas",
                best_of(lambda: simulate(model, system, mooncake, cache=tiers, layout=st.Layout(replicas=4), engine="ideal")),
                len(mooncake),
            )
        )
    pace = sample_pace(model, system, max_num_seqs=128, engine="ideal")
    few = open_loop(30, 1000, *lengths)
    requests = new_requests(few.arrival, few.inputs, few.outputs, few.ranks, 0, 0.0)
    rows.append(
        (
            "1,000 requests in the step-by-step reference",
            best_of(lambda: reference.serve(requests, cap.rules(), pace.rates), 1),
            1000,
        )
    )
    given = {"layout": st.Layout(), "input_tokens": 1024, "output_tokens": 256, "engine": st.load_engine("ideal")}
    clients = np.array([1, 2, 4, 8, 16, 32, 64, 128])
    rows.append(
        (
            "8 closed loops for TTFT (10 requests a client)",
            best_of(lambda: closed_loops(model, system, concurrency=clients, requests=10 * clients, **given)),
            8,
        )
    )
    command = [sys.executable, "-m", "steptime", "simulate", "llama-3.1-8b", "hgx-h100", "--rate", "20", "--json"]
    rows.append(
        (
            "`steptime simulate` of 10,000 requests, process start included",
            best_of(lambda: subprocess.run(command, capture_output=True, check=True)),
            10_000,
        )
    )
    print(
        f"{platform.machine()}, {os.cpu_count()} cores (one used), Python {platform.python_version()}, numpy {np.__version__}, "
        f"numba {numba.__version__}. First call {warm:.1f} s (it compiles where no cache is). "
        f"Peak memory of the first row {memory:.2f} GB.\n"
    )
    print("| what | seconds | a second |\n|---|---:|---:|")
    for name, seconds, count in rows:
        print(f"| {name} | {seconds:.3g} | {count / seconds:,.0f} |")


if __name__ == "__main__":
    main()
