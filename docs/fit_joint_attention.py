"""Attention of prompts and sequences in one call, against tables: `python docs/fit_joint_attention.py FOLDER`.

FOLDER is a checkout of https://github.com/casys-kaist/LLMServingSim at commit 5daddb21 (MIT). Its tables have vLLM 0.19's
attention of one layer on a GeForce RTX 4090 and on the Server Edition of the RTX PRO 6000. A row has a prompt of up to 2,048
new tokens after up to 16,384 cached ones, and up to 128 sequences. `block_entries` of data/kernels/joint_attention.toml is
fitted to `FITTED`; the other tables are left out. Times of prompts alone come from the tables, so that the error is that of
the sequences.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

import steptime as st
from steptime.models.model import Attention
from steptime.number_checks import Array
from steptime.physics import op_work
from steptime.physics.attention_kernels import JointKernel, load_kernels
from steptime.physics.engine import load_engine, with_constants
from steptime.physics.layout import Layout
from steptime.physics.op_work import attention_demands, build_work, joint_kernel
from steptime.physics.operator_time import compute_time, memory_time, overlap

BOARDS = {"RTX4090": "rtx-4090-8", "RTXPRO6000": "rtx-pro-6000-8"}
# Query heads and KV heads of 128 values, and tensor parallelism, of each table.
TABLES = {
    "RTX4090/meta-llama/Llama-3.1-8B": (32, 8, (1,)),
    "RTXPRO6000/meta-llama/Llama-3.1-8B": (32, 8, (1, 2)),
    "RTXPRO6000/Qwen/Qwen3-32B": (64, 8, (1, 2)),
    "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507": (32, 4, (1, 2)),
}
FITTED = ("RTXPRO6000/Qwen/Qwen3-32B", 1)
CANDIDATES = (0.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0)
# Kernels as they were timed, without the factor of whole runs.
ENGINE = with_constants(load_engine("vllm"), {"attention_time": 1.0})
# Batches of whole runs: sequences, tokens of a prompt, and contexts.
USUAL = ((16, 128), (128, 2048), (256, 2592))


def read(path: Path) -> tuple[Array, Array, Array]:
    """Return the rows with prompts and sequences, and for each row the seconds of its prompts and those of its sequences."""
    with path.open(newline="") as file:
        rows = np.array([[float(value) for value in row] for row in list(csv.reader(file))[1:]])
    alone = {tuple(row[:4]): 1e-6 * row[4] for row in rows}
    both = np.array([row for row in rows if row[0] and row[2] and (row[0], row[1], 0, 0) in alone])
    prompts = np.array([alone[row[0], row[1], 0.0, 0.0] for row in both])
    sequences = np.array([alone[0.0, 0.0, row[2], row[3]] for row in both])
    return both, prompts, sequences


def predicted(rows: Array, heads: int, kv_heads: int, system: str, tp: int) -> Array:
    """Return the seconds that decoding sequences add to a call with prompts."""
    mixer = Attention(
        name="attention", kv_bytes=2 * kv_heads * 128 * 2, kv_shards=kv_heads, heads=heads,
        flops_per_pair_decode=2 * heads * 256, flops_per_pair_prefill=2 * heads * 256,
        query_values=heads * 128, output_values=heads * 128,
    )  # fmt: skip
    machine, layout = st.load_system(system), Layout(tp=tp)
    assert joint_kernel(mixer, machine, ENGINE) is not None
    sizes = {"batch": rows[:, 2], "context": rows[:, 3], "query": 1, "prompts": 1, "tokens": rows[:, 0], "prefix": rows[:, 1]}
    demand = attention_demands(mixer, build_work(sizes, layout), machine, layout, ENGINE)["decode with prompts"]
    memory = memory_time(demand.kv, machine.chip.hbm.bandwidth, demand.memory_efficiency)
    compute = compute_time(demand.flops, demand.peak, demand.efficiency)
    return np.asarray(overlap(compute, memory, ENGINE.kernels.roofline_norm))


def error(ratio: Array) -> str:
    """Return the median error, the root mean square of its logarithm, and the median ratio as a text."""
    return f"{np.median(np.abs(ratio - 1)):.1%}, {np.sqrt(np.mean(np.square(np.log(ratio)))):.3f} ({np.median(ratio):.2f})"


def main() -> None:
    """Print errors of the sum of both parts, and of the joint call."""
    folder = Path(sys.argv[1], "profiler/perf")
    print("median error, root mean square of logarithms (median ratio) of attention of batches with both")
    for table, (heads, kv_heads, degrees) in TABLES.items():
        for tp in degrees:
            rows, prompts, sequences = read(folder / table / f"bf16/tp{tp}/attention.csv")
            measured, system = 1e-6 * rows[:, 4], BOARDS[table.split("/")[0]]
            (few, many), (short, long), (low, high) = USUAL
            usual = (rows[:, 2] >= few) & (rows[:, 2] <= many) & (rows[:, 0] >= short) & (rows[:, 0] <= long)
            usual &= (rows[:, 3] >= low) & (rows[:, 3] <= high)
            joint = prompts + predicted(rows, heads, kv_heads, system, tp)
            for name, chosen in (("all", usual | True), ("usual", usual)):
                apart, together = (error((seconds / measured)[chosen]) for seconds in (prompts + sequences, joint))
                print(f"{table}, tp{tp}, {name}, {np.sum(chosen):,}: sum {apart}, joint {together}")
            if (table, tp) == FITTED:
                kernels = load_kernels(JointKernel)
                for entries in CANDIDATES:
                    changed = {key: replace(kernel, block_entries=entries) for key, kernel in kernels.items()}
                    with patch.object(op_work, "load_kernels", lambda _kind, changed=changed: changed):
                        with_entries = prompts + predicted(rows, heads, kv_heads, system, tp)
                    print(f"  block_entries {entries:g}: usual {error((with_entries / measured)[usual])}")


if __name__ == "__main__":
    main()
