"""The step predictor: answers per second in one process, and a run of Vidur with steptime as its clock.

`python benchmarks/predictor.py` times the answers. `python benchmarks/predictor.py vidur` also runs the simulator Vidur,
where the package `vidur` (0.0.26) is installed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from steptime.physics.layout import Layout
from steptime.simulation.simulator_adapters import SglangTimePredictor, VidurTimePredictor
from steptime.simulation.step_predictor import StepPredictor, compile_predictor, drawn_passes

CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", "hgx-h100", {}),
    ("qwen3-30b-a3b", "hgx-h100", {}),
    ("deepseek-v3", "hgx-h200", {"layout": Layout(tp=8, ep=8)}),
    ("gpt-oss-20b", "dgx-spark", {"engine": "llama.cpp", "weights": "q8_0", "experts": "mxfp4", "max_batch": 32}),
)
PASSES = 20_000


def answers_per_second(predictor: StepPredictor) -> tuple[float, float]:
    """Return the answers per second to equal sequences, and to batches of 32 requests of any length."""
    sizes = drawn_passes(predictor, PASSES, 3)
    names = ("batch", "context", "prompts", "tokens", "prefix")
    passes = list(zip(*(sizes[name].tolist() for name in names), strict=True))
    start = time.perf_counter()
    for values in passes:
        predictor.uniform_seconds(*values)
    uniform = PASSES / (time.perf_counter() - start)
    random = np.random.default_rng(5)
    batches = [(random.integers(1, 8000, 31).tolist(), [(256, 1024)]) for _ in range(2000)]
    start = time.perf_counter()
    for contexts, prefills in batches:
        predictor.seconds(contexts, prefills)
    return uniform, len(batches) / (time.perf_counter() - start)


def run_vidur(predictor: StepPredictor, requests: int = 200) -> dict[str, float]:
    """Run Vidur's default cluster with a predictor as its clock; return the time that it simulates and takes [s]."""
    from vidur.config import SimulationConfig
    from vidur.config.config import ClusterConfig, MetricsConfig, ReplicaConfig, SyntheticRequestGeneratorConfig
    from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
    from vidur.simulator import Simulator
    from vidur.types import ExecutionTimePredictorType

    class Clock(VidurTimePredictor):
        """The adapter, as Vidur constructs its predictors."""

        calls = 0

        def __init__(self, **_: Any) -> None:
            super().__init__(predictor)

        def get_execution_time(self, batch: Any, pipeline_stage: int = 0) -> Any:
            """Count and answer."""
            Clock.calls += 1
            return super().get_execution_time(batch, pipeline_stage)

    kind = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry.unregister(kind)
    ExecutionTimePredictorRegistry.register(kind, Clock)
    metrics = MetricsConfig(write_metrics=False, store_plots=False, enable_chrome_trace=False)
    replica = ReplicaConfig(tensor_parallel_size=1, num_pipeline_stages=1)
    config = SimulationConfig(
        cluster_config=ClusterConfig(replica_config=replica),
        request_generator_config=SyntheticRequestGeneratorConfig(num_requests=requests),
        metrics_config=metrics,
    )
    start = time.perf_counter()
    simulator = Simulator(config)
    simulator.run()
    return {"simulated": float(simulator._time), "took": time.perf_counter() - start, "calls": float(Clock.calls)}


def main() -> None:
    """Print the table."""
    print("| model | system | compile | largest error | equal sequences | 32 requests |")
    print("|---|---|---:|---:|---:|---:|")
    for model, system, options in CASES:
        start = time.perf_counter()
        predictor = compile_predictor(model, system, **options)
        took = time.perf_counter() - start
        uniform, mixed = answers_per_second(predictor)
        print(f"| {model} | {system} | {took:.2f} s | {predictor.error:.2%} | {uniform:,.0f}/s | {mixed:,.0f}/s |")
    if "vidur" in sys.argv[1:]:
        run = run_vidur(compile_predictor("llama-3.1-8b", "hgx-h100"))
        print(f"\nVidur: {run['calls']:,.0f} batches, {run['simulated']:.1f} s simulated in {run['took']:.1f} s")
    # SGLang's simulator calls the same table once per batch.
    assert SglangTimePredictor(predictor=predictor).get_metrics()["calls"] == 0


if __name__ == "__main__":
    main()
