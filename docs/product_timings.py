"""Dense products from kernel timings: `python docs/fit_kernels.py products FOLDER` (a minute).

The timings are from AIConfigurator (github.com/ai-dynamo/aiconfigurator, Apache-2.0): one matrix product on one chip, measured
alone. Training takes the outputs that an unfilled chip could have made (`fill_outputs`), which make small products slower than
large ones, and `largest_share`. Usual shares of the data sheet are fitted to whole training runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from fit_kernels import SYSTEMS, source_lines
from scipy.optimize import least_squares

from steptime.catalog.hardware_loading import load_chip
from steptime.number_checks import Array

FILE: Final = Path(__file__).parent.parent / "src" / "steptime" / "data" / "kernels" / "products.toml"
# Formats of the tables: the format of a training job, the arithmetic, and bytes per value.
FORMATS: Final = {"bfloat16": ("bf16", "bf16", 2.0), "fp8": ("fp8", "fp8", 1.0), "fp8_block": ("mxfp8", "fp8", 1.0),
                  "nvfp4": ("nvfp4", "fp4", 0.5625)}  # fmt: skip
# Its timings of products with scales for blocks are bound by the host.
HOST_BOUND: Final = ("vllm", "0.24.0", "fp8_block")
# Training multiplies many rows; smaller products are bound by memory and launches.
LEAST_ROWS, LEAST_WIDTH = 1024, 256
OUTPUT_BYTES: Final = 2.0
MEMORY_SHARE: Final = 0.9
# Usual share of the data sheet, share of writes that is not overlapped, outputs and seconds; deviations of their logarithms.
USUAL: Final = np.log([0.75, 0.65, 1e6, 3e-6])
DEVIATIONS: Final = np.array([0.3, 0.3, 1.5, 1.0])
SCATTER: Final = 0.1
LEAST: Final = 200


def read_timings(folder: str) -> pd.DataFrame:
    """Return the timings with the figures of their chips.

    Args:
        folder: Folder of the tables.

    Returns:
        One row per timing.
    """
    table = pd.read_parquet(Path(folder) / "gemm.parquet")
    host_bound = (table.engine == HOST_BOUND[0]) & (table.version == HOST_BOUND[1]) & (table.gemm_dtype == HOST_BOUND[2])
    table = table[table.system.isin(SYSTEMS) & table.gemm_dtype.isin(FORMATS) & ~host_bound]
    table = table[(table.m >= LEAST_ROWS) & (table.n >= LEAST_WIDTH) & (table.k >= LEAST_WIDTH)]
    chips = {system: load_chip(SYSTEMS[system])[0] for system in table.system.unique()}
    form = table.gemm_dtype.map(FORMATS)
    peaks = [chips[system].peak.get(arithmetic, np.nan) for system, (_, arithmetic, _) in zip(table.system, form, strict=True)]
    table = table.assign(
        generation=[chips[system].generation for system in table.system],
        form=[words[0] for words in form],
        bytes=[words[2] for words in form],
        peak=np.array(peaks, dtype=float),
        bandwidth=[float(chips[system].hbm.bandwidth) for system in table.system],
    )
    return table[np.isfinite(table.peak) & (table.generation != "")]


def seconds(logarithms: Array, part: pd.DataFrame) -> Array:
    """Return the times of products, by the formula of `training.layer_time`.

    Args:
        logarithms: Logarithms of the constants.
        part: Timings.

    Returns:
        Seconds.
    """
    share, writes, outputs, fixed = np.exp(logarithms)
    rate, written = share * part.peak, OUTPUT_BYTES * part.m * part.n
    moved = ((part.m + part.n) * part.k * part.bytes + written) / (MEMORY_SHARE * part.bandwidth)
    busy = np.maximum(2.0 * part.m * part.n * part.k / rate, moved)
    return np.asarray(busy + writes * written / part.bandwidth + 2 * part.k * outputs / rate + fixed)


def fit(part: pd.DataFrame) -> Array:
    """Return the most probable logarithms of the constants.

    Args:
        part: Timings of one generation and format.

    Returns:
        Logarithms.
    """
    measured = np.log(part.seconds.to_numpy(dtype=float))

    def residuals(values: Array) -> Array:
        return np.concatenate([(np.log(seconds(values, part)) - measured) / SCATTER, (values - USUAL) / DEVIATIONS])

    return np.asarray(least_squares(residuals, USUAL, loss="soft_l1").x)


def largest_share(part: pd.DataFrame) -> float:
    """Return the largest share of the data sheet that a product reached: the 99th percentile.

    Args:
        part: Timings of one generation and format.

    Returns:
        Share.
    """
    return float(np.quantile(2.0 * part.m * part.n * part.k / part.peak / part.seconds, 0.99))


def main(folder: str) -> None:
    """Fit, write, and print errors, also with the chip left out.

    Args:
        folder: Folder of the tables.
    """
    table = read_timings(folder)
    lines = ["# Dense products: constants fitted to kernel timings by docs/fit_kernels.py products.", "", *source_lines()]
    for (generation, form), part in table.groupby(["generation", "form"]):
        if len(part) < LEAST:
            continue
        values = fit(part)
        off = np.abs(np.log(seconds(values, part) / part.seconds))
        share, writes, outputs, _ = np.exp(values)
        lines += ["[[kernel]]", f'chips = "{generation}"', f'form = "{form}"', f"compute_share = {share:.4g}",
                  f"largest_share = {largest_share(part):.4g}", f"exposed_writes = {writes:.4g}",
                  f"fill_outputs = {outputs:.4g}", f"error = {np.median(off):.4g}",
                  f"timings = {len(part)}", ""]  # fmt: skip
        print(generation, form, len(part), f"{np.median(off):.1%}", np.round(np.exp(values), 7))
    FILE.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
