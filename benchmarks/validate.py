"""How fast runs are predicted: run `python benchmarks/validate.py [RUNS.csv]`; the table goes into benchmarks/README.md."""

from __future__ import annotations

import csv
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np

from steptime.validation.error_summary import write_predictions
from steptime.validation.predictions import predict
from steptime.validation.run_table import read_runs

RUNS = Path(__file__).parents[2] / "shared/data/measured/serving.csv"
ROWS = 100_000


def best_of(run: Callable[[], object], times: int = 5) -> float:
    """Seconds of this process on its one core, of the fastest of a few runs."""
    seconds = []
    for _ in range(times):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    return min(seconds)


def made_up() -> list[dict[str, str]]:
    """Rows over models, systems and engines of the catalogue, for where no measured runs are at hand."""
    kinds = product(
        ("llama-3.1-8b", "qwen3-235b-a22b", "deepseek-v3"), ("hgx-h100", "hgx-h200", "hgx-b200"), ("vllm", "sglang", "trtllm")
    )
    return [
        {
            "id": f"{model}-{system}-{engine}-{concurrency}", "model": model, "system": system, "engine": engine,
            "input_tokens": "1024", "output_tokens": "1024", "concurrency": str(concurrency), "tp": "4", "pp": "1", "dp": "1",
            "ep": "1", "weight_dtype": "fp8", "expert_dtype": "", "ttft_s": "", "tpot_s": "",
        }
        for (model, system, engine), concurrency in product(kinds, (1, 4, 16, 64, 256))
    ]  # fmt: skip


def main() -> None:
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    known = read_runs(given)[0] if given.is_file() else made_up()
    chosen = np.random.default_rng(0).integers(0, len(known), ROWS)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "runs.csv", Path(folder) / "out.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(known[0]))
            writer.writeheader()
            writer.writerows(known[i] for i in chosen)
        rows, _ = read_runs(path)
        found = predict(rows)
        table = [
            ("read and checked", best_of(lambda: read_runs(path))),
            ("predicted, with intervals", best_of(lambda: predict(rows))),
            ("predictions written", best_of(lambda: write_predictions(out, rows, found))),
        ]
    drawn = f"drawn from {len(known):,} {'measured' if given.is_file() else 'made-up'} ones"
    print(
        f"{platform.machine()}, {os.cpu_count()} cores (one used), Python {platform.python_version()}, numpy {np.__version__}\n"
    )
    print("| what | seconds | a second |\n|---|---:|---:|")
    for name, seconds in table:
        print(f"| {ROWS:,} rows, {drawn}: {name} | {seconds:.3g} | {ROWS / seconds:,.0f} |")


if __name__ == "__main__":
    main()
