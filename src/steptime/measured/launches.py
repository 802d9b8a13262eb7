"""How public deployments were launched, by their published scripts, where columns of their runs do not say it or say otherwise.

InferenceX's runs of DeepSeek-R1 by SGLang behind Dynamo on GB200, until December 2025, are of two collections of scripts
(github.com/SemiAnalysisAI/InferenceX, benchmarks/dsr1_fp8_gb200_dynamo-sglang_slurm.sh and its history):

- **Attention that splits no context.** Runs in FP8, but for those of 1,024 + 1,024 tokens, were launched until 2025-12-18 from
  github.com/Elnifio/dynamo, branch update-result-file-name, components/backends/sglang/slurm_jobs/scripts/gb200-fp8.sh:
  `--attention-backend cutlass_mla`. That back end calls its kernel with `num_kv_splits=1` (github.com/sgl-project/sglang,
  layers/attention/cutlass_mla_backend.py; sgl-kernel/csrc/attention/cutlass_mla_kernel.cu: "Split_kv=1 will perform worse with
  larger context length and smaller batch sizes"): a pair of multiprocessors, whose tile has all 128 heads, reads the whole
  context of a sequence, so that a step takes as long for 4 sequences as for 76. From then on they are of
  github.com/ai-dynamo/dynamo at b7107d0, with `trtllm_mla`, which splits contexts.
- **Groups that were none.** Columns of replicas of four chips that decode name four attention groups (tp 1, dp 4, ep 4). Their
  scripts (at b7107d0, in examples/backends/sglang/slurm_jobs/scripts/, gb200-fp4/disagg/1k1k-low-latency.sh and its like for
  8,192 tokens, gb200-fp8/disagg/8k1k-low-latency.sh) have `--tensor-parallel-size "$TOTAL_GPUS" --data-parallel-size 1
  --expert-parallel-size 1 --kv-cache-dtype fp8_e4m3`. Those of runs in FP8 of 1,024 + 1,024 tokens are not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from steptime.machines.software import is_day
from steptime.measured.kinds import PREFILL_WAYS
from steptime.physics.engine import IDEAL, Engine

APART, ENGINE, SYSTEM, MODEL = "ix_disaggregated", "sglang", "gb200-nvl72", "deepseek-r1"
DAY = len("2025-12-19")
SINCE, UNTIL = "2025-12-19", "2025-12-31"  # days from which, and to which, they are of the second collection
PAIRS = 76.0  # of the 152 multiprocessors that a GB200 reports (B200: 148)
SHORT = ("1024", "1024")  # lengths
WAYS = tuple(PREFILL_WAYS.values())
GROUPED, LAUNCHED = ("1", "4", "4"), ("4", "1", "1")  # tp, dp and ep as columns have them, and as scripts do


def as_launched(row: dict[str, str]) -> dict[str, str]:
    """Return a run with the ways that its script has, where its columns name attention groups that were none.

    >>> told = {"tp": "1", "dp": "4", "ep": "4", "part": "ix_disaggregated", "engine": "sglang", "system": "gb200-nvl72"}
    >>> told |= {"model": "deepseek-r1", "measured": "2025-12-19", "weight_dtype": "nvfp4"}
    >>> told |= {"input_tokens": "8192", "output_tokens": "1024"}
    >>> [as_launched(told)[way] for way in ("tp", "dp", "ep")]
    ['4', '1', '1']
    """
    if not _is_early(row) or row["measured"] < SINCE or (_is_fp8(row) and _lengths(row) == SHORT):
        return row
    if _ways(row, (*WAYS, "pp")) != (*GROUPED, "1"):
        return row
    found = {**row, **dict(zip(WAYS, LAUNCHED, strict=True)), "kv_dtype": row.get("kv_dtype") or "fp8"}
    return found | (dict(zip(PREFILL_WAYS, LAUNCHED, strict=True)) if _ways(row, PREFILL_WAYS) == GROUPED else {})


def latent_contexts(row: Mapping[str, str]) -> float:
    """Return how many sequences the decode attention of a run reads at once, of the constant of that name; inf: any number.

    >>> latent_contexts({"part": "ix_aggregated"})
    inf
    """
    unsplit = _is_early(row) and row["measured"] < SINCE and _is_fp8(row) and _lengths(row) != SHORT
    return PAIRS if unsplit else math.inf


def is_scripted(row: dict[str, str]) -> bool:
    """Whether a run is taken otherwise than its columns say."""
    return as_launched(row) is not row or math.isfinite(latent_contexts(row))


def is_dated(row: Mapping[str, str]) -> bool:
    """Whether `measured` of a run begins with a day, or is a month.

    >>> [is_dated({"measured": text}) for text in ("2025-12-31", "2025-12-31T10:00", "2025-09", "December")]
    [True, True, True, False]
    """
    text = (row.get("measured") or "")[:DAY]
    return is_day(text) or is_day(f"{text}-01")


def with_contexts(engine: Engine, contexts: float) -> Engine:
    """Return the engine with a kernel that reads so many contexts at once; as it is for inf, if told, and the ideal one."""
    if math.isinf(contexts) or engine.name == IDEAL.name or np.any(np.isfinite(engine.kernels.latent_contexts)):
        return engine
    return replace(engine, kernels=replace(engine.kernels, latent_contexts=contexts))


def _is_early(row: Mapping[str, str]) -> bool:
    """Whether a run is one of DeepSeek-R1 on SGLang's separate pools on GB200, of a day that is told, in 2025."""
    if row.get("part") != APART or row["system"].casefold() != SYSTEM or row["engine"] != ENGINE:
        return False
    if MODEL not in row["model"].casefold():
        return False
    day = (row.get("measured") or "")[:DAY]
    return is_day(day) and day <= UNTIL


def _is_fp8(row: Mapping[str, str]) -> bool:
    return row["weight_dtype"].casefold() == "fp8"


def _ways(row: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(_whole(row.get(name) or "1") for name in names)


def _lengths(row: Mapping[str, str]) -> tuple[str, str]:
    return _whole(row["input_tokens"]), _whole(row["output_tokens"])


def _whole(text: str) -> str:
    """Write a number as a whole one, which may stand as 8.0.

    >>> _whole("8.0")
    '8'
    """
    return f"{float(text):.0f}"
