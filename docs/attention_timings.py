"""Attention kernels from kernel timings: `python docs/fit_kernels.py attention FOLDER` (half a minute).

The timings are from AIConfigurator (github.com/ai-dynamo/aiconfigurator, Apache-2.0): one call of the attention of one layer on
one chip, measured alone: attention over keys and values, and over latents (MLA), in decode and in prefill of whole prompts.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from fit_kernels import LEAST, NORM, SAMPLE, SCATTER, SEED, SYSTEMS, source_lines
from scipy.optimize import least_squares

from steptime.catalog.hardware_loading import load_chip
from steptime.number_checks import Array
from steptime.physics.attention_kernels import (
    ANY,
    CONSTANTS,
    HEADS,
    NARROW,
    VALUE_BYTES,
    WIDE,
    AttentionKernel,
    decode_entries,
    prefill_pairs,
)
from steptime.physics.compute_dtype import DECODE, LATENT_DECODE, LATENT_PREFILL, PREFILL
from steptime.physics.operator_time import overlap

FILE: Final = Path(__file__).parent.parent / "src" / "steptime" / "data" / "kernels" / "attention.toml"
TABLES: Final = {
    DECODE: "decode_attention", PREFILL: "prefill_attention", LATENT_DECODE: "decode_mla", LATENT_PREFILL: "prefill_mla",
}  # fmt: skip
LATENTS: Final = (LATENT_DECODE, LATENT_PREFILL)
DECODES: Final = (DECODE, LATENT_DECODE)
# DeepSeek-V3: values of a latent with its rotary key, those of them that are also the value, and key and value of a head.
LATENT, VALUE, EXPANDED = 576, 512, 320
# Kernels that engines run where they have no other for a head size: five times slower than others on Blackwell.
LEFT_OUT: Final = "triton"
# SGLang on Hopper casts latents of 8 bits in decode (six times slower), and multiplies latents in prefill.
UNUSUAL: Final = ("sglang", "hopper")
# Kernels of keys and values that an engine runs, by engine and generation: names of `kernel_source`. The engines' own selection
# takes them: FlashAttention-3 on Hopper (vLLM, SGLang), on Blackwell TensorRT-LLM's kernels through FlashInfer (vLLM:
# vllm/utils/flashinfer.py, `use_trtllm_attention`; SGLang: server_args.py, `trtllm_mha`), and TensorRT-LLM's own.
RUN_BY: Final = {
    ("sglang", "blackwell"): ("trtllm_mha",),
    ("sglang", "hopper"): ("fa3",),
    ("trtllm", "blackwell"): ("torch_flow",),
    ("trtllm", "hopper"): ("torch_flow",),
    ("vllm", "blackwell"): ("vllm_flashinfer_trtllmdecode", "vllm_flashinfer_trtllmprefill"),
    ("vllm", "hopper"): ("vllm_flash_attn_fa3",),
}
# Kernels of latents in decode: on Blackwell TensorRT-LLM's through FlashInfer in SGLang and vLLM (`trtllm_mla`), and in its own
# release; on Hopper FlashAttention-3 (SGLang) and TensorRT-LLM's.
LATENTS_RUN_BY: Final = {
    ("sglang", "blackwell"): ("trtllm_mla",),
    ("sglang", "hopper"): ("flash_attention",),
    ("trtllm", "blackwell"): ("default",),
    ("trtllm", "hopper"): ("default",),
    ("vllm", "blackwell"): ("trtllm_mla",),
}
# Most query heads of a KV head: models have up to 16 (Qwen3-235B); kernels for more are 10 to 100 times slower.
MOST_SHARING: Final = 16
# Usual value of each constant, the deviation of its logarithm, and the largest value.
USUAL: Final = {
    "seconds": (12e-6, 0.7, 1e-3),
    "memory_share": (0.85, 0.3, 0.95),
    "compute_share": (0.6, 0.6, 1.0),
    "tile_entries": (64.0, 1.0, 4096.0),
    "pair_values": (64.0, 1.0, 2048.0),
    "fill_rows": (1e4, 1.0, 1e6),
    "activation_passes": (2.0, 1.0, 20.0),
}
# In decode: 1 for kernels that divide each context among all parts of a chip, the number of these parts for those that do not.
FILL_OF_DECODE: Final = {"fill_rows": (8.0, 1.5, 1e4)}


@dataclass(frozen=True, slots=True)
class Shapes:
    """Timings as columns of work, rates and seconds.

    rows: Rows of queries, in decode sequences. pairs: Pairs of a head. longest: Entries of the longest row. heads, kv_heads:
    Heads of the chip. values: Values of a head's key and value. entries: Entries that are read. entry_bytes: Bytes of one.
    activations: Bytes. peak: FLOP/s.
    """

    rows: Array
    pairs: Array
    longest: Array
    heads: Array
    kv_heads: Array
    values: Array
    entries: Array
    entry_bytes: Array
    activations: Array
    bandwidth: Array
    peak: Array
    seconds: Array


def read_timings(folder: str, operation: str) -> pd.DataFrame:
    """Return the timings of an operation with generation, format and the columns of `Shapes`."""
    table = pd.read_parquet(Path(folder) / f"{TABLES[operation]}.parquet")
    chips = {name: load_chip(chip)[0] for name, chip in SYSTEMS.items()}
    table["chips"] = table.system.map({name: chip.generation for name, chip in chips.items()})
    table["form"] = np.where(table.kv_cache_dtype == "fp8", NARROW, WIDE)
    kept = ~table.kernel_source.str.contains(LEFT_OUT)
    if operation in LATENTS:
        unusual = (table.engine == UNUSUAL[0]) & (table.chips == UNUSUAL[1])
        kept &= ~(unusual & ((table.form == NARROW) | (operation == LATENT_PREFILL)))
    else:
        kept &= table.num_heads <= MOST_SHARING * table.num_key_value_heads
    table = table[kept].copy()
    size = np.where(table.form == NARROW, 1.0, 2.0)
    if operation in LATENTS:
        table["values"] = EXPANDED if operation == LATENT_PREFILL else LATENT + VALUE
        table["kv_heads"], table["entry_bytes"] = 1.0, LATENT * size
    else:
        table["values"], table["kv_heads"] = 2 * table.head_dim, table.num_key_value_heads
        table["entry_bytes"] = table["values"] * table.kv_heads * size
    table["heads"] = table.num_heads
    add_work(table, operation)
    table["bandwidth"] = table.system.map({name: chip.hbm.bandwidth for name, chip in chips.items()})
    table["peak"] = [
        chips[name].peak.get(form, chips[name].peak[WIDE]) for name, form in zip(table.system, table.form, strict=True)
    ]
    return table


def add_work(table: pd.DataFrame, operation: str) -> None:
    """Add rows, pairs, entries and bytes of activations to timings."""
    stated = table["window_size"].fillna(0).to_numpy(np.float64) if "window_size" in table else np.zeros(len(table))
    window = np.where(stated > 0, stated, np.inf)
    batch, tokens = table.batch_size.to_numpy(np.float64), table.isl.to_numpy(np.float64)
    if operation in DECODES:
        table["rows"], table["longest"] = batch, np.minimum(table.step + 1, window)
        table["pairs"] = table["entries"] = batch * table.longest
        table["activations"] = 0.0
        return
    longest = np.minimum(window, tokens)
    table["rows"], table["longest"], table["entries"] = batch * tokens, longest, batch * tokens
    table["pairs"] = batch * (longest * (longest + 1) / 2 + (tokens - longest) * longest)
    expanded = operation == LATENT_PREFILL
    values = table.heads * table["values"] * (VALUE_BYTES * (1 + expanded)) + (0.0 if expanded else table.entry_bytes)
    table["activations"] = table.rows * values


def columns_of(table: pd.DataFrame) -> Shapes:
    """Return the columns of a fit."""
    return Shapes(**{field.name: table[field.name].to_numpy(np.float64) for field in fields(Shapes)})


def kernel_from(logs: Array, operation: str, **names: Any) -> AttentionKernel:
    """Return a kernel from the logarithms of its constants."""
    values = dict(zip(CONSTANTS[operation], map(float, np.exp(logs)), strict=True))
    return AttentionKernel(operation=operation, **values, **names)


def predicted(kernel: AttentionKernel, of: Shapes) -> Array:
    """Return the seconds of one call."""
    if kernel.operation in DECODES:
        entries = of.rows * decode_entries(kernel, of.longest, of.rows * of.kv_heads)
        pairs = of.heads * entries
    else:
        entries, pairs = of.entries, prefill_pairs(kernel, of.pairs, of.rows, of.heads, of.longest)
    compute = 2 * (of.values + kernel.pair_values) * pairs / (kernel.compute_share * of.peak)
    moved = entries * of.entry_bytes + kernel.activation_passes * of.activations
    return kernel.seconds + np.asarray(overlap(compute, moved / (kernel.memory_share * of.bandwidth), NORM))


def fit(table: pd.DataFrame, operation: str) -> Array:
    """Return the logarithms of the constants of a kernel that fit its timings."""
    # Each engine, kernel and chip counts the same.
    groups = [group for _, group in table.groupby(["engine", "kernel_source", "system"])]
    size = max(1, SAMPLE // len(groups))
    of = columns_of(pd.concat([group.sample(min(size, len(group)), random_state=SEED) for group in groups]))
    measured = np.log(of.seconds)
    known = USUAL | (FILL_OF_DECODE if operation in DECODES else {})
    usual, deviations, largest = np.array([known[name] for name in CONSTANTS[operation]]).T

    def residuals(logs: Array) -> Array:
        off = (np.log(predicted(kernel_from(logs, operation), of)) - measured) / SCATTER
        return np.concatenate([off, (logs - np.log(usual)) / deviations])

    bounds = (-np.inf, np.log(largest))
    solution: Array = least_squares(residuals, np.log(usual), bounds=bounds, loss="soft_l1", max_nfev=60).x
    return solution


def errors(kernel: AttentionKernel, table: pd.DataFrame) -> Array:
    """Return log(predicted / measured)."""
    of = columns_of(table)
    result: Array = np.log(predicted(kernel, of) / of.seconds)
    return result


def families(table: pd.DataFrame, operation: str) -> dict[tuple[str, str, str], pd.DataFrame]:
    """Return timings by engine, generation of chips and format; "" has those of all engines, `ANY` those of all chips."""
    parts = {("", str(chips), str(form)): part for (chips, form), part in table.groupby(["chips", "form"])}
    parts |= {("", ANY, str(form)): part for form, part in table.groupby("form")}
    known = {LATENT_DECODE: LATENTS_RUN_BY, LATENT_PREFILL: {}}.get(operation, RUN_BY)
    for (engine, chips), names in known.items():
        mine = table[table.kernel_source.isin(names) & (table.chips == chips)]
        parts |= {(engine, chips, str(form)): part for form, part in mine.groupby("form")}
    return {key: part for key, part in sorted(parts.items()) if len(part) >= LEAST}


def by_heads(part: pd.DataFrame, operation: str) -> list[tuple[float, pd.DataFrame]]:
    """Return timings by the most heads of a kernel, where these have different kernels."""
    if operation != LATENT_DECODE:
        return [(math.inf, part)]
    kinds = np.searchsorted(HEADS, part.num_heads)
    return [(most, part[kinds == kind]) for kind, most in enumerate(HEADS) if np.any(kinds == kind)]


def entry(kernel: AttentionKernel, off: Array) -> list[str]:
    """Return the lines of one kernel."""
    texts = {name: getattr(kernel, name) for name in ("operation", "engine", "chips", "form") if getattr(kernel, name)}
    values = {name: getattr(kernel, name) for name in CONSTANTS[kernel.operation]}
    if math.isfinite(kernel.most_heads):
        values["most_heads"] = kernel.most_heads
    values["error"] = float(np.median(np.abs(np.expm1(off))))
    lines = ["[[kernel]]", *(f'{name} = "{text}"' for name, text in texts.items())]
    return [*lines, *(f"{name} = {value:.4g}" for name, value in values.items()), f"timings = {len(off)}", ""]


def left_out(part: pd.DataFrame, operation: str, by: str) -> float:
    """Return the median error of kernels for chips or shapes that their fit has not seen; NaN where all are alike."""
    off = []
    for value in part[by].unique():
        of = part[by] == value
        if not of.all():
            off.append(errors(kernel_from(fit(part[~of], operation), operation), part[of]))
    return float(np.median(np.abs(np.expm1(np.concatenate(off))))) if off else np.nan


def main(folder: str) -> None:
    """Fit all attention kernels, write them, and print their errors."""
    lines = ["# Attention kernels: constants fitted to kernel timings by docs/fit_kernels.py attention.", "", *source_lines()]
    all_medians: list[list[float]] = []
    for operation in TABLES:
        medians = []
        found = families(read_timings(folder, operation), operation).items()
        for (engine, chips, form), most, part in [(key, *kind) for key, every in found for kind in by_heads(every, operation)]:
            kernel = kernel_from(fit(part, operation), operation, engine=engine, chips=chips, form=form, most_heads=most)
            off = errors(kernel, part)
            lines += entry(kernel, off)
            if chips != ANY:
                without = [left_out(part, operation, by) for by in ("system", "num_heads")] if "--left-out" in sys.argv else []
                medians.append([float(np.median(np.abs(np.expm1(off)))), *without])
        print_medians(operation, medians)
        all_medians += medians
    print_medians("all", all_medians)
    FILE.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")


def print_medians(name: str, medians: list[list[float]]) -> None:
    """Print the medians of the errors of kernels."""
    words = ("median error", "chips left out", "numbers of heads left out")
    figures = [f"{word} {np.nanmedian(column):.1%}" for word, column in zip(words, zip(*medians, strict=True), strict=False)]
    print(f"{name}: {len(medians)} kernels, {', '.join(figures)}", flush=True)
