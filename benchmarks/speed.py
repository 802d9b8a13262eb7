"""How fast steptime is: run `python benchmarks/speed.py`; the table goes into benchmarks/README.md."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import steptime as st
from steptime.physics.layout import NAMES, shaped, stacked
from steptime.physics.layout_space import legal

MAIN = ["plan", "deepseek-ai/DeepSeek-V3", "gb200-nvl72", "--input", "8192", "--output", "1024", "--speed", "50", "--ttft", "2"]


def best_of(run: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def command(*words: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-m", "steptime", *words], capture_output=True, check=True)


def in_blocks(model: st.Model, system: st.System, chosen: st.Layout, points: int, engine: str) -> Callable[[], object]:
    """Steps of many points in little memory: whole numbers of 32 bits, and one answer for each."""
    random = np.random.default_rng(1)
    index = random.integers(0, 4096, points, dtype=np.int16)
    given = {name: np.asarray(getattr(chosen, name), dtype=np.int32)[index] for name in NAMES if name != "replicas"}
    given["batch"] = random.integers(1, 20_000, points, dtype=np.int32)
    given["context"] = random.integers(1, 200_000, points, dtype=np.int32)

    def total(batch: np.ndarray, context: np.ndarray, **ways: np.ndarray) -> np.ndarray:
        return st.decode_step(model, system, batch=batch, context=context, layout=st.Layout(**ways), engine=engine).total

    return lambda: st.in_blocks(total, given)


def main() -> None:
    model, system = st.load_model("deepseek-ai/DeepSeek-V3"), st.load_system("gb200-nvl72")
    random = np.random.default_rng(0)
    layouts = list(legal(model, system, 72))
    points = 1_000_000
    chosen = stacked([layouts[i] for i in random.integers(0, len(layouts), 4096)])
    index = random.integers(0, 4096, points)
    many = 10 * points
    measured: list[tuple[str, float, int]] = []
    for engine in ("ideal", "vllm"):
        seconds = best_of(in_blocks(model, system, chosen, many, engine), 2)
        measured.append((f"{many:,} of them in blocks (`st.in_blocks`), {engine}", seconds, many))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    scattered = st.Layout(**{name: getattr(chosen, name)[index] for name in NAMES})
    batch, context = random.integers(1, 20_000, points), random.integers(1, 200_000, points)
    grid = shaped(stacked(layouts[:500]), 2)

    def every_point_its_own(engine: str = "ideal") -> object:
        return st.decode_step(model, system, batch=batch, context=context, layout=scattered, engine=engine)

    def a_grid(engine: str = "ideal") -> object:
        batches, contexts = np.geomspace(1, 20_000, 50).astype(int)[:, None], np.linspace(1, 2e5, 40)
        return st.decode_step(model, system, batch=batches, context=contexts, layout=grid, engine=engine)

    def one() -> object:
        return st.decode_step(model, system, batch=256, context=4096, layout=st.Layout(dp=8, ep=8), engine="ideal")

    rows = [
        ("1,000,000 decode steps, every point its own batch, context and layout", every_point_its_own, points),
        ("1,000,000 decode steps, a grid of 500 layouts x 50 batches x 40 contexts", a_grid, points),
        ("the scattered ones, vllm", lambda: every_point_its_own("vllm"), points),
        ("the grid, vllm", lambda: a_grid("vllm"), points),
        ("one decode step", one, 1),
        ("the README's plan, process start included", command(*MAIN), 1),
        ("steptime --help", command("--help"), 1),
    ]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}. "
        f"Peak memory of the points in blocks {memory:.2f} GB.\n"
    )
    for name, run, count in rows:
        run()
        seconds = best_of(run)
        measured.append((name, seconds, count))
    print("| what | seconds | a second |\n|---|---:|---:|")
    for name, seconds, count in measured:
        print(f"| {name} | {seconds:.3g} | {count / seconds:,.0f} |")


if __name__ == "__main__":
    main()
