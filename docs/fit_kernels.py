"""Fit kernels to kernel timings; write them: `python docs/fit_kernels.py moe.parquet`.

`attention FOLDER` fits attention, `products FOLDER` dense products.

The timings are from AIConfigurator (github.com/ai-dynamo/aiconfigurator, Apache-2.0): one call of the experts of one layer on
the busiest expert-parallel rank, measured alone. Whole serving runs are not used here (`fit_engines.py` uses both).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from steptime.catalog.hardware_loading import load_chip
from steptime.number_checks import Array
from steptime.physics.attention_kernels import ANY
from steptime.physics.expert_kernels import BLOCKS, CONSTANTS, EXCHANGED, EXCHANGED_FP4, ExpertKernel, kernel_times
from steptime.physics.operator_time import overlap

FILE: Final = Path(__file__).parent.parent / "src" / "steptime" / "data" / "kernels" / "experts.toml"
URL: Final = "https://github.com/ai-dynamo/aiconfigurator"
SYSTEMS: Final = {
    "a100_sxm": "a100", "l40s": "l40s", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
    "gb200": "gb200", "gb300": "gb300", "rtx_pro_6000_server": "rtx-pro-6000-server", "b60": "intel-b60",
}  # fmt: skip
# Stored format, arithmetic and bytes per weight of a format of the tables.
FORMATS: Final = {
    "bfloat16": ("bf16", "bf16", 2.0),
    "fp8": ("fp8", "fp8", 1.0),
    "fp8_block": ("fp8_block", "fp8", 1 + 4 / 128**2),
    "int4_wo": ("int4", "bf16", 0.5 + 2 / 128),
    "nvfp4": ("nvfp4", "fp4", 0.5 + 1 / 16),
    "w4a16_mxfp4": ("mxfp4", "bf16", 0.5 + 1 / 32),
    "w4a8_mxfp4_mxfp8": ("mxfp4", "fp8", 0.5 + 1 / 32),
}
# Chips whose engines multiply mxfp4 experts with 8-bit activations (vLLM, SGLang and TensorRT-LLM with gpt-oss), and format.
EIGHT_BIT_ACTIVATIONS: Final = ("blackwell", "w4a8_mxfp4_mxfp8")
# Tables of kernels that their engines had not tuned (medians 50 % off any model); FlashInfer's CUTLASS kernels of 8-bit scales
# per tensor in vLLM, which take four times as long on Hopper as those of other engines; kernels of products without gates.
LEFT_OUT: Final = ("vllm_mxfp4_moe", "vllm_marlin_int4_moe", "vllm_modeloptfp8moe_flashinfer_cutlass", "nongated", "xpu")
# Kernels for many rows with scales for blocks: DeepGEMM, and TensorRT-LLM's CUTLASS kernels on Hopper, which come from it.
MANY_ROWS: Final = {"blackwell": "deepgemm", "hopper": "moe_torch_flow_cutlass"}
# Kernels that an engine runs where no ranks exchange tokens, by engine, generation and stored format: names of
# `kernel_source`. vLLM and TensorRT-LLM: those that their own selection took when they were timed (vLLM 0.19 to 0.24,
# TensorRT-LLM 1.3; vLLM's Triton experts and gpt-oss kernels on Hopper, Marlin on Ada, TensorRT-LLM's CUTLASS on Hopper).
# SGLang: Triton on Hopper, for gpt-oss OpenAI's Triton kernels, which only vLLM's tables have
# (python/sglang/srt/server_args.py: `moe_runner_backend = "triton_kernel"`); FlashInfer's TensorRT-LLM kernels on Blackwell
# (server_args.py, and `--moe-runner-backend flashinfer_trtllm` of github.com/SemiAnalysisAI/InferenceX,
# benchmarks/single_node). TensorRT-LLM on Blackwell has backends that its `moe_config` chooses by layout: for nvfp4 TRTLLM, and
# CUTLASS where data-parallel ranks exchange tokens. For other formats the kernels of all engines stand for them.
OPENAI_TRITON: Final = ("oaitriton",)
# Kernels that choose tiles by the rows that they expect (`ExpertKernel.tile_growth`).
GROWING: Final = "trtllm|min_latency"
RUN_BY: Final = {
    ("sglang", "blackwell", "bf16"): ("sglang_flashinfer_trtllm",),
    ("sglang", "blackwell", "fp8_block"): ("sglang_flashinfer_trtllm",),
    ("sglang", "blackwell", "mxfp4"): ("sglang_",),
    ("sglang", "blackwell", "nvfp4"): ("sglang_flashinfer_trtllm",),
    ("sglang", "hopper", "bf16"): ("sglang_fused_moe_triton",),
    ("sglang", "hopper", "fp8_block"): ("sglang_fused_moe_triton",),
    ("sglang", "hopper", "int4"): ("sglang_marlin_moe",),
    ("sglang", "hopper", "mxfp4"): OPENAI_TRITON,
    ("trtllm", "blackwell", "nvfp4"): ("moe_torch_flow_min_latency",),
    ("trtllm", "blackwell", EXCHANGED_FP4): ("moe_torch_flow_cutlass",),
    ("trtllm", "hopper", "bf16"): ("moe_torch_flow_cutlass",),
    ("trtllm", "hopper", "fp8"): ("moe_torch_flow_cutlass",),
    ("trtllm", "hopper", "fp8_block"): ("moe_torch_flow_cutlass",),
    ("trtllm", "hopper", "mxfp4"): ("moe_torch_flow",),
    ("vllm", "ada", "mxfp4"): ("vllm_gptossmxfp4moe_marlin",),
    ("vllm", "blackwell", "bf16"): ("trtllmbf16experts",),
    ("vllm", "blackwell", "fp8"): ("trtllmfp8expertsmonolithic",),
    ("vllm", "blackwell", "fp8_block"): ("trtllmfp8expertsmonolithic",),
    ("vllm", "blackwell", "int4"): ("vllm_",),
    ("vllm", "blackwell", "mxfp4"): ("vllm_mxfp4moe",),
    ("vllm", "blackwell", "nvfp4"): ("trtllmnvfp4expertsmonolithic", "vllm_flashinfer_trtllm_moe_fp4"),
    ("vllm", "hopper", "bf16"): ("vllm_fused_moe", "triton_tritonexperts"),
    ("vllm", "hopper", "fp8"): ("vllm_",),
    ("vllm", "hopper", "fp8_block"): ("vllm_fused_moe", "triton_tritonexperts"),
    ("vllm", "hopper", "int4"): ("vllm_",),
    ("vllm", "hopper", "mxfp4"): OPENAI_TRITON,
}
# Usual constants, as logarithms, and the deviation of each.
USUAL: Final = np.log([40e-6, 0.85, 0.4, 100.0, 16.0, 0.5, 4.0, 8.0])
DEVIATIONS: Final = np.array([0.7, 0.15, 0.6, 0.8, 0.7, 0.8, 1.0, 0.7])
# Largest constants. In a loop of equal calls the weights of small shapes stay in the cache of a chip; those of models do not.
LARGEST: Final = np.log([1e-3, 0.95, 1.0, 1e4, 1e3, 10.0, 100.0, 32.0])
# Scatter of the logarithm of a timing: kernels jump where their tiles change, and the routing is drawn once.
SCATTER: Final = 0.15
# p of the p-norm that joins memory and compute times, as in all operators (`roofline_norm`).
NORM: Final = 2.5
# Timings of a fit, drawn with a fixed seed, and draws of the loads of experts for one shape.
SAMPLE, DRAWS, SEED = 4000, 6, 7
# Fewest timings of a kernel.
LEAST: Final = 140


@dataclass(frozen=True, slots=True)
class Shapes:
    """Timings as columns: experts and rows of the busiest rank, tokens of all, sizes, bytes per weight, rates and seconds."""

    touched: Array
    rows: Array
    tokens: Array
    width: Array
    columns: Array
    matrices: Array
    bytes: Array
    bandwidth: Array
    peak: Array
    expected: Array
    seconds: Array


@cache
def busiest_rank(tokens: int, experts: int, active: int, ranks: int, distribution: str) -> tuple[float, float]:
    """Return rows and touched experts of the busiest rank, as AIConfigurator draws them (collect_moe.py)."""
    total = tokens * active
    if distribution == "balanced":
        return total / ranks, min(experts / ranks, max(total / ranks, 1.0))
    exponent, random = 1 - float(distribution.rpartition("_")[2]), np.random.default_rng(SEED)
    low, high = (1.0, max(0.8 * tokens, 1.0001)) if total > experts else (0.01, 2.0)
    results = []
    for _ in range(DRAWS):
        loads = ((high**exponent - low**exponent) * random.random(experts) + low**exponent) ** (1 / exponent)
        counts = np.minimum(np.round(loads / loads.sum() * total), tokens)
        # Rounding leaves a few tokens over, which go to experts with room, the most popular first.
        order, excess = np.argsort(-counts), total - counts.sum()
        for place in range(experts * 8):
            expert = order[place % experts] if total > experts or excess < 0 else order[-1 - place % experts]
            if abs(excess) < 1:
                break
            if (excess > 0 and counts[expert] < tokens) or (excess < 0 and counts[expert] > 0):
                counts[expert] += np.sign(excess)
                excess -= np.sign(excess)
        parts = np.array_split(counts, ranks)
        busiest = parts[int(np.argmax([part.sum() for part in parts]))]
        results.append((busiest.sum(), (busiest > 0).sum()))
    rows, touched = np.mean(results, axis=0)
    return float(rows), float(touched)


def read_timings(path: str) -> pd.DataFrame:
    """Return the timings with generation, stored format, kernel, rows and touched experts of each."""
    table = pd.read_parquet(path)
    skipped = np.logical_or.reduce([table.kernel_source.str.contains(name, regex=False) for name in LEFT_OUT])
    table = table[~skipped & table.moe_dtype.isin(FORMATS)].copy()
    chips = {name: load_chip(chip)[0] for name, chip in SYSTEMS.items()}
    table["chips"] = table.system.map({name: chip.generation for name, chip in chips.items()})
    formats = table.moe_dtype.map(FORMATS)
    table["stored"], table["computed"], table["bytes"] = formats.str[0], formats.str[1], formats.str[2]
    table["bandwidth"] = table.system.map({name: chip.hbm.bandwidth for name, chip in chips.items()})
    table["peak"] = [chips[name].peak.get(kind, np.nan) for name, kind in zip(table.system, table.computed, strict=True)]
    keys = zip(table.num_tokens, table.num_experts, table.topk, table.moe_ep_size, table.distribution, strict=True)
    table["rows"], table["touched"] = np.array([busiest_rank(*key) for key in keys]).T
    mixed = table.stored == "mxfp4"
    usual = (table.moe_dtype == EIGHT_BIT_ACTIVATIONS[1]) == (table.chips == EIGHT_BIT_ACTIVATIONS[0])
    return table[np.isfinite(table.peak) & (table.rows >= 1) & (table.touched >= 1) & (usual | ~mixed)]


def columns_of(table: pd.DataFrame) -> Shapes:
    """Return the columns of a fit."""

    def column(name: str) -> Array:
        values: Array = table[name].to_numpy(np.float64)
        return values

    return Shapes(
        touched=column("touched"), rows=column("rows"), tokens=column("num_tokens"), width=column("hidden_size"),
        columns=column("inter_size") / column("moe_tp_size"), matrices=np.full(len(table), 3.0), bytes=column("bytes"),
        bandwidth=column("bandwidth"), peak=column("peak"), seconds=column("seconds"),
        expected=column("num_tokens") * column("topk") * column("moe_ep_size") / column("num_experts"),
    )  # fmt: skip


def kernel_from(logs: Array, **names: Any) -> ExpertKernel:
    """Return a kernel from the logarithms of its constants."""
    return ExpertKernel(**dict(zip(CONSTANTS, map(float, np.exp(logs)), strict=False)), **names)


def predicted(kernel: ExpertKernel, of: Shapes) -> Array:
    """Return the seconds of one call."""
    compute, memory = kernel_times(
        kernel, touched=of.touched, rows=of.rows, tokens=of.tokens, width=of.width, columns=of.columns, matrices=of.matrices,
        stored=of.bytes, bandwidth=of.bandwidth, peak=of.peak, expected=of.expected,
    )  # fmt: skip
    return kernel.seconds + np.asarray(overlap(compute, memory, NORM))


def fit(table: pd.DataFrame) -> Array:
    """Return the logarithms of the constants of a kernel that fit its timings."""
    # Each engine, kernel and chip counts the same.
    groups = [group for _, group in table.groupby(["engine", "kernel_source", "system"])]
    size = max(1, SAMPLE // len(groups))
    of = columns_of(pd.concat([group.sample(min(size, len(group)), random_state=SEED) for group in groups]))
    measured = np.log(of.seconds)
    # The last constant is that of kernels that choose their tiles.
    count = len(USUAL) if table.kernel_source.str.contains(GROWING).all() else len(USUAL) - 1
    usual, deviations, largest = (values[:count] for values in (USUAL, DEVIATIONS, LARGEST))

    def residuals(logs: Array) -> Array:
        errors = (np.log(predicted(kernel_from(logs), of)) - measured) / SCATTER
        return np.concatenate([errors, (logs - usual) / deviations])

    solution: Array = least_squares(residuals, usual, bounds=(-np.inf, largest), loss="soft_l1", max_nfev=60).x
    return solution


def errors(kernel: ExpertKernel, table: pd.DataFrame) -> Array:
    """Return log(predicted / measured)."""
    of = columns_of(table)
    result: Array = np.log(predicted(kernel, of) / of.seconds)
    return result


def families(table: pd.DataFrame) -> dict[tuple[str, str, str], pd.DataFrame]:
    """Return timings by engine, generation and stored format; "" has those of all engines, `ANY` those of all chips."""
    parts = {("", str(chips), str(stored)): part for (chips, stored), part in table.groupby(["chips", "stored"])}
    blocks = table[table.stored == BLOCKS]
    parts |= {
        ("", chips, EXCHANGED): blocks[(blocks.chips == chips) & (blocks.kernel_source == source)]
        for chips, source in MANY_ROWS.items()
    }
    parts |= {("", ANY, str(stored)): part for stored, part in table.groupby("stored")}
    for (engine, chips, stored), names in RUN_BY.items():
        mine = np.logical_or.reduce([table.kernel_source.str.contains(name, regex=False) for name in names])
        part = table[mine & (table.chips == chips) & (table.stored == stored.partition(",")[0])]
        # OpenAI's Triton kernels run only without expert parallelism (server_args.py); with it their timings double.
        parts[engine, chips, stored] = part[part.moe_ep_size == 1] if names is OPENAI_TRITON else part
    return {key: part for key, part in parts.items() if len(part) >= LEAST}


def entry(kernel: ExpertKernel, off: Array) -> list[str]:
    """Return the lines of one kernel."""
    median = float(np.median(np.abs(np.expm1(off))))
    # A kernel without a choice of tiles has no growth.
    written = CONSTANTS if kernel.tile_growth != 1 else CONSTANTS[:-1]
    values = {name: getattr(kernel, name) for name in written} | {"error": median}
    texts = {name: getattr(kernel, name) for name in ("engine", "chips", "stored", "computed") if getattr(kernel, name)}
    lines = ["[[kernel]]", *(f'{name} = "{text}"' for name, text in texts.items())]
    return [*lines, *(f"{name} = {value:.4g}" for name, value in values.items()), f"timings = {len(off)}", ""]


def left_out(parts: dict[tuple[str, str, str], pd.DataFrame], by: str) -> list[float]:
    """Return the median errors of kernels for chips or widths that their fit has not seen."""
    medians = []
    for part in parts.values():
        values = part[by].unique()
        if len(values) < 2:
            continue
        off = []
        for value in values:
            of = part[by] == value
            off.append(errors(kernel_from(fit(part[~of])), part[of]))
        medians.append(float(np.median(np.abs(np.expm1(np.concatenate(off))))))
    return medians


def source_lines() -> list[str]:
    """Return the table of the source of a file of kernels."""
    return [
        "[source]",
        f'url = "{URL}"',
        'date = "2026-11-20"',
        'grade = "measured"',
        'note = "timings of one call by aiconfigurator-core 0.12.0, systems/data"',
        "",
    ]


def main() -> None:
    """Fit all kernels, write them, and print their errors."""
    if sys.argv[1] == "attention":
        import attention_timings

        attention_timings.main(sys.argv[2])
        return
    if sys.argv[1] == "products":
        import product_timings

        product_timings.main(sys.argv[2])
        return
    table = read_timings(sys.argv[1])
    parts = families(table)
    lines = ["# Kernels of routed experts: constants fitted to kernel timings by docs/fit_kernels.py.", "", *source_lines()]
    medians = []
    for (engine, chips, stored), part in sorted(parts.items()):
        kernel = kernel_from(fit(part), engine=engine, chips=chips, stored=stored, computed=part.computed.mode()[0])
        off = errors(kernel, part)
        medians += [float(np.median(np.abs(np.expm1(off))))] * (chips != ANY)
        lines += entry(kernel, off)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    single = {key: part for key, part in parts.items() if key[1] != ANY}
    print(f"{len(single)} kernels, {sum(map(len, single.values())):,} timings")
    print(f"median error: {np.median(medians):.1%}")
    if "--left-out" in sys.argv:
        for by, words in (("system", "chips"), ("hidden_size", "widths")):
            print(f"{words} left out: {np.median(left_out(single, by)):.1%}")


if __name__ == "__main__":
    main()
