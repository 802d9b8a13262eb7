"""Vidur with its tables and with steptime as its clock: the same requests, and the same batches.

    git clone https://github.com/microsoft/vidur && git -C vidur checkout 7d475133
    pip install -r vidur/requirements.txt
    python benchmarks/vidur_tables.py vidur [ATTENTION.csv]

Llama-2-7B on one A100: 300 requests of Vidur's trace of conversations, Sarathi scheduler with 512 tokens a step. Vidur fits
random forests to its tables of layers; here each has 50 trees. One of the clocks has the tables without the time of writes of
the KV cache. ATTENTION.csv takes the place of Vidur's table of attention.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import steptime as st
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.simulator_adapters import VidurTimePredictor
from steptime.workload.traffic import Traffic

REQUESTS, CHUNK, SLOTS, LONGEST = 300, 512, 128, 4096
RATES = (2.0, 4.0)
MODEL, SYSTEM, ENGINE = "llama-2-7b", "hgx-a100", "vllm"
CLOCKS = ("tables", "tables without writes", "steptime")
WRITE = "_attention_kv_cache_save_execution_time"


def run(root: Path, attention: str, clock: str, rate: float) -> SimpleNamespace:
    """Run Vidur with a clock; return its requests and the times of its batches with all clocks [s]."""
    os.environ["WANDB_MODE"] = "disabled"
    os.chdir(root)
    sys.path.insert(0, str(root))
    from vidur.config import config as options
    from vidur.execution_time_predictor import ExecutionTimePredictorRegistry as Registry
    from vidur.execution_time_predictor.random_forrest_execution_time_predictor import RandomForrestExecutionTimePredictor
    from vidur.simulator import Simulator
    from vidur.types import ExecutionTimePredictorType
    from vidur.utils.random import set_seeds

    logging.disable(logging.WARNING)
    adapter = VidurTimePredictor(st.compile_predictor(MODEL, SYSTEM, engine=ENGINE, max_context=2 * LONGEST))
    batches: list[tuple[float, ...]] = []

    class Clocks(RandomForrestExecutionTimePredictor):  # type: ignore[misc, unused-ignore]
        """Vidur's predictor, which answers with a clock of `CLOCKS` and keeps the times of all."""

        def get_execution_time(self, batch: Any, pipeline_stage: int) -> Any:
            """Answer with the clock."""
            tables = super().get_execution_time(batch, pipeline_stage)
            seconds = [tables.total_time]
            write = getattr(tables, WRITE)
            setattr(tables, WRITE, 0.0)
            seconds.append(tables.total_time)
            if clock == CLOCKS[0]:
                setattr(tables, WRITE, write)
            began = time.perf_counter()
            answer = adapter.get_execution_time(batch, pipeline_stage)
            took = time.perf_counter() - began
            prompts = sum(not request.is_prefill_complete for request in batch.requests)
            batches.append((prompts, len(batch.requests) - prompts, *seconds, answer.total_time, took))
            return answer if clock == CLOCKS[2] else tables

    kind = ExecutionTimePredictorType.RANDOM_FORREST
    Registry.unregister(kind)
    Registry.register(kind, Clocks)
    set_seeds(1)
    forest = options.RandomForrestExecutionTimePredictorConfig(
        num_estimators=[50], max_depth=[32], min_samples_split=[2], k_fold_cv_splits=2, num_training_job_threads=1,
        **({"attention_input_file": attention} if attention else {}),
    )  # fmt: skip
    cluster = options.ClusterConfig(
        replica_config=options.ReplicaConfig(model_name="meta-llama/Llama-2-7b-hf", device="a100"),
        replica_scheduler_config=options.SarathiSchedulerConfig(chunk_size=CHUNK, batch_size_cap=SLOTS),
    )
    lengths = options.TraceRequestLengthGeneratorConfig(
        max_tokens=LONGEST, trace_file="./data/processed_traces/splitwise_conv.csv"
    )
    requests = options.SyntheticRequestGeneratorConfig(
        num_requests=REQUESTS, length_generator_config=lengths,
        interval_generator_config=options.PoissonRequestIntervalGeneratorConfig(qps=rate),
    )  # fmt: skip
    metrics = options.MetricsConfig(write_metrics=False, store_plots=False, enable_chrome_trace=False)
    simulator = Simulator(
        options.SimulationConfig(
            cluster_config=cluster, request_generator_config=requests, execution_time_predictor_config=forest,
            metrics_config=metrics,
        )
    )  # fmt: skip
    atexit.unregister(simulator._write_output)
    served = sorted((event[-1]._request for event in simulator._event_queue), key=lambda request: request.arrived_at)
    began = time.perf_counter()
    simulator.run()
    names = {
        "arrival": "arrived_at", "first": "prefill_completed_at", "last": "completed_at", "inputs": "num_prefill_tokens",
        "outputs": "num_decode_tokens",
    }  # fmt: skip
    columns = {name: np.array([getattr(request, attribute) for request in served]) for name, attribute in names.items()}
    return SimpleNamespace(**columns, batches=np.array(batches), took=time.perf_counter() - began)


def run_steptime(same: SimpleNamespace) -> SimpleNamespace:
    """Return the requests of a run in steptime's simulator."""
    traffic = Traffic(arrival=same.arrival - same.arrival[0], inputs=same.inputs, outputs=same.outputs)
    policy = Policy(max_num_seqs=SLOTS, max_num_batched_tokens=CHUNK)
    requests = st.simulate(MODEL, SYSTEM, traffic, engine=ENGINE, policy=policy).requests
    times = {name: requests[column] for name, column in (("arrival", "arrival"), ("first", "first"), ("last", "finish"))}
    return SimpleNamespace(**times, outputs=same.outputs)


def show(name: str, rate: float, run: SimpleNamespace) -> None:
    """Print the row of a run."""
    first = 1e3 * (run.first - run.arrival)
    tpot = (1e3 * (run.last - run.first) / np.maximum(run.outputs - 1, 1))[run.outputs > 1]
    speed = np.sum(run.outputs) / (np.max(run.last) - np.min(run.arrival))
    print(
        f"| {rate:g}/s | {name} | {np.mean(first):.0f} ms | {np.percentile(first, 90):.0f} ms | {np.mean(tpot):.1f} ms | "
        f"{np.percentile(tpot, 90):.1f} ms | {speed:,.0f} tok/s |"
    )


def main() -> None:
    """Print the tables."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "vidur").resolve()
    attention = str(Path(sys.argv[2]).resolve()) if len(sys.argv) > 2 else ""
    if not (root / "vidur/simulator.py").is_file():
        print(f"No checkout of Vidur in {root}; see the head of this file. Nothing was run.")
        return
    print("| rate | clock | TTFT, mean | p90 | TPOT, mean | p90 | output |\n|---|---|---:|---:|---:|---:|---:|")
    # Vidur numbers its replicas and requests over the life of a process.
    with ProcessPoolExecutor(1, max_tasks_per_child=1) as fresh:
        runs = {(rate, clock): fresh.submit(run, root, attention, clock, rate).result() for rate in RATES for clock in CLOCKS}
    for rate in RATES:
        for clock in CLOCKS:
            show(clock, rate, runs[rate, clock])
        show("steptime's `simulate`", rate, run_steptime(runs[rate, CLOCKS[0]]))
    print("\n| rate | batch | number | tables | without writes | steptime | ratio to tables | ratio without writes |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for rate in RATES:
        batches = runs[rate, CLOCKS[0]].batches
        prompts, decodes = batches[:, 0], batches[:, 1]
        kinds = {"decode": prompts == 0, "prefill": decodes == 0, "both": (prompts > 0) & (decodes > 0)}
        for kind, chosen in kinds.items():
            if np.any(chosen):
                tables, plain, answer = 1e3 * np.mean(batches[chosen, 2:5], axis=0)
                print(
                    f"| {rate:g}/s | {kind} | {np.sum(chosen):,} | {tables:.1f} ms | {plain:.1f} ms | {answer:.1f} ms | "
                    f"{answer / tables:.3f} | {answer / plain:.3f} |"
                )
    fastest = runs[RATES[0], CLOCKS[2]]
    print(f"\nsteptime: {1e6 * np.mean(fastest.batches[:, 5]):.0f} us an answer, {len(fastest.batches):,} batches.")


if __name__ == "__main__":
    main()
