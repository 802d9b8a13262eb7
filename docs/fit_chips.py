"""Fits what share of a data sheet plain matrix products reach, to GEMM tables: `python docs/fit_chips.py FOLDER`.

FOLDER is `systems/data` of AIConfigurator (Apache-2.0), a folder a system; needs pandas and pyarrow. A product of m x k by
k x n in bf16 takes t0 + ((bytes / (b W))^p + (FLOPs / (c R))^p)^(1/p); b and c are printed for the chips' `[reached]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from steptime.catalog.hardware_loading import load_chip
from steptime.hardware.system import Chip

CHIPS = {
    "a100_sxm": "a100", "l40s": "l40s", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
    "gb200": "gb200", "gb300": "gb300", "rtx_pro_6000_server": "rtx-pro-6000-server",
}  # fmt: skip
SIZES = (512, 16384)  # of n and k: what layers have
# Bytes of a cache that holds the weights of smaller products in a loop of calls: without them the share of the memory is 0.92,
# with them 1.01.
CACHES = {"rtx-pro-6000-server": 128e6}
SAMPLE = 6000


def fitted(path: Path, chip: Chip) -> np.ndarray:
    """Return t0 [s], the shares of bandwidth and of the bf16 rate, and p of one table."""
    table = pd.read_parquet(path)
    table = table[(table.gemm_dtype == "bfloat16") & table.n.between(*SIZES) & table.k.between(*SIZES) & (table.latency > 0)]
    table = table[2.0 * table.n * table.k >= CACHES.get(chip.name, 0.0)]
    table = table.sample(min(len(table), SAMPLE), random_state=0)
    m, n, k = (table[name].to_numpy(dtype=float) for name in "mnk")
    moved, flops, seconds = 2 * (n * k + m * k + m * n), 2 * m * n * k, table.latency.to_numpy() * 1e-3

    def errors(logs: np.ndarray) -> np.ndarray:
        t0, memory, compute, p = np.exp(logs)
        parts = (moved / (memory * chip.hbm.bandwidth)) ** p + (flops / (compute * chip.peak["bf16"])) ** p
        return np.log((t0 + parts ** (1 / p)) / seconds)

    start = np.log([3e-6, 0.8, 0.8, 2.5])
    return np.exp(least_squares(errors, start, loss="soft_l1", f_scale=0.15).x)


def main() -> None:
    """Print the geometric mean over a chip's tables."""
    for folder, name in CHIPS.items():
        chip, _ = load_chip(name)
        tables = sorted(Path(sys.argv[1], folder).glob("gemm/*/*/gemm_perf.parquet"))
        t0, memory, compute, p = np.exp(np.mean(np.log([fitted(path, chip) for path in tables]), axis=0))
        print(f"{name}: t0 {1e6 * t0:.1f} us, memory {memory:.3f}, compute {compute:.3f}, p {p:.2f} ({len(tables)} tables)")


if __name__ == "__main__":
    main()
