"""Published deployments: launch settings from public scripts, where the columns of the runs lack or contradict them.

InferenceX's runs of DeepSeek-R1 on SGLang behind Dynamo on GB200, until December 2025, used two collections of scripts
(github.com/SemiAnalysisAI/InferenceX, benchmarks/dsr1_fp8_gb200_dynamo-sglang_slurm.sh and its history):

- **Attention that does not split contexts.** This applies to runs in FP8 until 2025-12-18, except those of 1,024 + 1,024
  tokens. Their script is in github.com/Elnifio/dynamo, branch update-result-file-name,
  components/backends/sglang/slurm_jobs/scripts/gb200-fp8.sh. It has `--attention-backend cutlass_mla`. This back end calls its
  kernel with `num_kv_splits=1` (github.com/sgl-project/sglang, layers/attention/cutlass_mla_backend.py;
  sgl-kernel/csrc/attention/cutlass_mla_kernel.cu: "Split_kv=1 will perform worse with larger context length and smaller batch
  sizes"). One pair of multiprocessors, with a tile of all 128 heads, reads the whole context of a sequence. A step therefore
  takes the same time for 4 sequences as for 76. Later runs used github.com/ai-dynamo/dynamo at b7107d0, with `trtllm_mla`,
  which splits contexts.
- **Data-parallel ranks that did not exist.** The columns of decode replicas with four chips record four data-parallel ranks
  (tp 1, dp 4, ep 4). Their scripts (at b7107d0, in examples/backends/sglang/slurm_jobs/scripts/,
  gb200-fp4/disagg/1k1k-low-latency.sh and its counterpart for 8,192 tokens, gb200-fp8/disagg/8k1k-low-latency.sh) have
  `--tensor-parallel-size "$TOTAL_GPUS" --data-parallel-size 1 --expert-parallel-size 1 --kv-cache-dtype fp8_e4m3`. The scripts
  of runs in FP8 with 1,024 + 1,024 tokens are not known.

AIConfigurator's own runs of SGLang 0.5.6 and later used `--enable-mixed-chunk`: chunks of prompts run within decode steps
(github.com/ai-dynamo/aiconfigurator, commit 07a3779 of 2026-01-19, src/aiconfigurator/generator/rule_plugin/sglang.rule:
"agg enable_mixed_chunk = true"). Its runs of 0.5.1 are older than the rule.

Its runs of vLLM 0.12 with Llama-3.1-8B in FP8 on H200 repeat prompts. Their prefill takes a share of its full time that falls
with the number of clients: 38 % at 16, 20 % at 32 and 11 % at 64; prefill of other runs takes 90 to 120 % at any number. 100
prompts are the default of AIConfigurator's load generator, which draws from them at random (github.com/ai-dynamo/aiperf at
db4f6397, common/config/config_defaults.py: NUM_DATASET_ENTRIES; dataset/dataset_manager.py, _return_any_conversation). Scripts
of other runs ask for 12 prompts per client (src/aiconfigurator/eval/benchmarks/genai_perf_runner.py until c0c44d911:
--num-dataset-entries). The prefix cache of vLLM is on by default (vllm/engine/arg_utils.py).

InferenceX's runs of TensorRT-LLM before 2026-01-29 used the image of release 1.1.0rc2.post2 where no version is recorded
(.github/configs/nvidia-master.yaml until commit ec7bafa). Those behind Dynamo record Dynamo's version: 0.5.1 until that day,
with TensorRT-LLM 1.1 as well. Some scripts of 1.1 set `TRTLLM_ENABLE_PDL`, which few of its kernels follow
(github.com/NVIDIA/TensorRT-LLM, pull request 7977): gpt-oss-120b on B200, whose script sets it (gptoss_fp4_b200_trt.sh), is
4 % off if kernels launch one after another, and 10 % if they launch early, as by default since 1.2. With its 19 runs of 1.1
left out of the fit, their bias is 2 % above that of its 65 runs of 1.2, and 10 % below it with early launches. One model does
not agree in FP8: Llama-3.1-70B, whose scripts do not set the variable (70b_fp8_b200_trt_slurm.sh and h200), is 8 % off on B200
and 14 % on H200, and 2 and 6 % with early launches. In NVFP4 it is 3 % off, and 7 % with early launches.

**Tensor parallelism of vLLM on one host.** Runs with expert parallelism record as many data-parallel ranks (tp 1, dp 4, ep 4).
Until May 2026 InferenceX's scripts (benchmarks/single_node, minimaxm2.5_fp8_b200.sh, minimaxm2.5_fp4_b200.sh and
minimaxm2.5_fp8_h100.sh) divide attention by `--tensor-parallel-size`, and add `--enable-expert-parallel`; that of Kimi-K2.5
(kimik2.5_fp4_b200.sh) adds nothing. Data-parallel ranks have `dp-attn: true` in .github/configs/nvidia-master.yaml:
MiniMax-M2.5 in nvfp4 on two B200 with 1,024 prompt tokens, with 512 clients and more, and 256 from 2026-04-22.

These settings are missing in the runs, and they are not constants of an engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from steptime.hardware.number_formats import is_day
from steptime.number_checks import Array
from steptime.physics.engine import IDEAL, TYPICAL, Engine, with_constants
from steptime.physics.engine_releases import version_numbers
from steptime.validation.mlperf_data_sets import as_submitted, find_data_set
from steptime.validation.run_table import (
    DISTINCT_PROMPTS,
    DRAWN_IDS,
    HIGHEST,
    MIXED,
    MLPERF,
    OFFLINE,
    OUTPUT_FORMAT,
    PREFILL_FIRST,
    PREFILL_SCHEDULE,
    PREFILL_WAYS,
    TOKEN_BUDGET,
    count_drafts,
    run_kind,
)

SEPARATE_POOLS, ENGINE, SYSTEM, MODEL = "ix_disaggregated", "sglang", "gb200-nvl72", "deepseek-r1"
DAY = len("2025-12-19")
# The last day with scripts, and one that is later than all.
DRAFTED_RUNS, LAST_DAY, LATER = "ix_mtp", "9998", "9999"
# First and last day of the second collection.
SINCE, UNTIL = "2025-12-19", "2025-12-31"
# Image of TensorRT-LLM until the day of the next.
EARLY_IMAGE, NEXT_IMAGE = "1.1.0rc2.post2", "2026-01-29"
# vLLM on one host: the day until which expert parallelism meant tensor parallelism, and the runs with data-parallel ranks
# before: prompt tokens, clients, and the day from which on fewer clients had them.
TENSOR_RANKS_UNTIL, MORE_RANKS_SINCE, RANKS_PROMPT, RANKS_CLIENTS = "2026-05-01", "2026-04-22", 1024.0, (512.0, 256.0)
# Pairs of the 152 multiprocessors that a GB200 reports (B200: 148).
PAIRS = 76.0
# Prompt and output tokens of the short workload.
LENGTHS, SHORT = ("input_tokens", "output_tokens"), ("1024", "1024")
LAUNCH_AXES = tuple(PREFILL_WAYS.values())
# tp, dp and ep in the columns, and in the scripts.
GROUPED, LAUNCHED = ("1", "4", "4"), ("4", "1", "1")
# Lengths and clients in the names of public runs. Names of AIConfigurator's own runs of SGLang, and the first release that its
# generator launched with mixed chunks. Runs of its "gap analysis" repeat InferenceX's settings.
LOADS = re.compile(r"_agg_\d+x\d+_c\d+")
GENERATED_IDS, REPEATED = re.compile(r".*_sglang_agg_\d+x\d+_c\d+_tp\d+"), "gap_analysis"
MIXED_SINCE = (0, 5, 6)
# Runs with repeated prompts: model and system in their names, and release. Their prompts (module docstring), and requests of a
# client before a run (genai_perf_runner.py, --warmup-request-count).
REPEATING_IDS, REPEATING_RELEASE = re.compile(r".*llama_3_1_8b_instruct_fp8_h200_sxm_vllm_agg_"), "0.12.0"
GENERATED_PROMPTS, WARM_UPS = 100.0, 2.0


def as_launched(row: dict[str, str]) -> dict[str, str]:
    """Correct the parallel sizes of a run to those of its script.

    Args:
        row: Run.

    Returns:
        A corrected copy, or the same row if its columns are right.

    >>> row = {"tp": "1", "dp": "4", "ep": "4", "part": "ix_disaggregated", "engine": "sglang", "system": "gb200-nvl72"}
    >>> row |= {"model": "deepseek-r1", "measured": "2025-12-19", "weight_dtype": "nvfp4"}
    >>> row |= {"input_tokens": "8192", "output_tokens": "1024"}
    >>> [as_launched(row)[axis] for axis in ("tp", "dp", "ep")]
    ['4', '1', '1']
    """
    if row.get("part") == MLPERF:
        return as_submitted(row)
    row = with_tensor_ranks(with_image(with_drafts(row)))
    if not row.get(PREFILL_SCHEDULE) and (mixes_chunks(row) or is_atom(row)):
        row = {**row, PREFILL_SCHEDULE: PREFILL_FIRST if is_atom(row) else MIXED}
    if not row.get("kv_dtype") and (kv := cache_format(row)):
        row = {**row, "kv_dtype": kv}
    if not row.get(OUTPUT_FORMAT) and (stored := output_format(row)):
        row = {**row, OUTPUT_FORMAT: stored}
    if not row.get(TOKEN_BUDGET) and (budget := token_budget(row)):
        row = {**row, TOKEN_BUDGET: f"{budget:.0f}"}
    if not row.get(DISTINCT_PROMPTS) and repeats_prompts(row):
        row = {**row, DISTINCT_PROMPTS: f"{GENERATED_PROMPTS:.0f}"}
    if not _is_early(row) or row["measured"] < SINCE or (_is_fp8(row) and _whole_cells(row, LENGTHS) == SHORT):
        return row
    if _whole_cells(row, (*LAUNCH_AXES, "pp")) != (*GROUPED, "1"):
        return row
    launched_row = {**row, **dict(zip(LAUNCH_AXES, LAUNCHED, strict=True)), "kv_dtype": row.get("kv_dtype") or "fp8"}
    return launched_row | (dict(zip(PREFILL_WAYS, LAUNCHED, strict=True)) if _whole_cells(row, PREFILL_WAYS) == GROUPED else {})


def with_tensor_ranks(row: dict[str, str]) -> dict[str, str]:
    """Return a run of vLLM on one host with the parallel sizes of its script (module docstring).

    Args:
        row: Run.

    Returns:
        A changed copy, or the same row if its ranks are data-parallel.

    >>> row = {"engine": "vllm", "tp": "1", "dp": "4", "ep": "4", "measured": "2026-03-27", "system": "hgx-b200"}
    >>> row |= {"part": "ix_aggregated", "input_tokens": "1024", "concurrency": "64", "weight_dtype": "nvfp4"}
    >>> changed = [with_tensor_ranks(row | {"model": name}) for name in ("Kimi-K2.5", "MiniMax-M2.5")]
    >>> [[one[axis] for axis in ("tp", "dp", "ep")] for one in changed]
    [['4', '1', '1'], ['4', '1', '4']]
    >>> ranks = row | {"model": "MiniMax-M2.5", "dp": "2", "ep": "2", "concurrency": "512"}
    >>> with_tensor_ranks(ranks) is ranks
    True
    """
    tp, dp, ep = _whole_cells(row, LAUNCH_AXES)
    is_recorded = row["engine"] == "vllm" and tp == "1" and dp == ep != "1" and not row.get("decode_workers")
    if not is_recorded or not _is_benchmark(row) or not "" < (row.get("measured") or "") < TENSOR_RANKS_UNTIL:
        return row
    has_ranks = _matches_script(row, "minimax-m2.5", ("nvfp4",), B200) and dp == "2"
    clients = RANKS_CLIENTS[row["measured"] >= MORE_RANKS_SINCE]
    if has_ranks and float(row["input_tokens"]) == RANKS_PROMPT and float(row.get("concurrency") or 0) >= clients:
        return row
    return {**row, **dict(zip(LAUNCH_AXES, (dp, "1", "1" if "kimi" in row["model"].casefold() else ep), strict=True))}


def with_image(row: dict[str, str]) -> dict[str, str]:
    """Add the version to a run on TensorRT-LLM whose image is known by its day only (module docstring).

    Args:
        row: Run.

    Returns:
        A changed copy, or the same row if it has a version, or was measured on the day of the next image or later.

    >>> row = {"engine": "trtllm", "measured": "2026-01-14", "engine_version": "trt nan"}
    >>> rows = [row | other for other in ({}, {"engine_version": "1.2.0rc2"}, {"measured": "2026-01-29"})]
    >>> [with_image(one)["engine_version"] for one in rows]
    ['1.1.0rc2.post2', '1.2.0rc2', 'trt nan']
    >>> with_image(row | {"part": "ix_disaggregated", "system": "gb200-nvl72", "dp": "1"})["engine_version"]
    '1.1.0rc2.post2'
    """
    version = row.get("engine_version") or ""
    has_version = any(mark.isdigit() for mark in version) and "dynamo" not in version
    if row["engine"] != "trtllm" or has_version or not "" < (row.get("measured") or "") < NEXT_IMAGE:
        return row
    return {**row, "engine_version": EARLY_IMAGE}


def latent_contexts(row: Mapping[str, str]) -> float:
    """Return the number of sequences that decode attention processes at once.

    Args:
        row: Run.

    Returns:
        Value of the engine constant of this name; inf for no limit.

    >>> latent_contexts({"part": "ix_aggregated"})
    inf
    """
    unsplit = _is_early(row) and row["measured"] < SINCE and _is_fp8(row) and _whole_cells(row, LENGTHS) != SHORT
    return PAIRS if unsplit else math.inf


def is_scripted(row: dict[str, str]) -> bool:
    """Check whether a run is predicted with settings that differ from its columns.

    Args:
        row: Run.

    Returns:
        True if its script replaces a column, limits attention or chooses other kernels.
    """
    imaged = with_image(row)
    changed = row.get("part") != MLPERF and as_launched(imaged) is not imaged
    return changed or math.isfinite(latent_contexts(row)) or bool(launch_constants(row))


def mixes_chunks(row: Mapping[str, str]) -> bool:
    """Check whether a run is one of AIConfigurator's on SGLang with mixed chunks (module docstring).

    Args:
        row: Run.

    Returns:
        True for the names and releases of those runs.

    >>> row = {"engine": "sglang", "id": "17:qwen3_h200_sxm_sglang_agg_1000x100_c160_tp1_epnone_1"}
    >>> [mixes_chunks(row | {"engine_version": version}) for version in ("0.5.6.post2", "0.5.1.post1", "")]
    [True, False, False]
    """
    name = row.get("id") or ""
    if row["engine"] != ENGINE or REPEATED in name or not GENERATED_IDS.match(name):
        return False
    return version_numbers(row.get("engine_version") or "") >= MIXED_SINCE


def repeats_prompts(row: Mapping[str, str]) -> bool:
    """Check whether the prompts of a public run repeat, and its engine has a prefix cache (module docstring).

    Args:
        row: Run.

    Returns:
        True for the names and the release of those runs.

    >>> row = {"engine_version": "0.12.0", "id": "17:llama_3_1_8b_instruct_fp8_h200_sxm_vllm_agg_4000x100_c64_tp4_epnone_7"}
    >>> repeats_prompts(row), repeats_prompts(row | {"engine_version": "0.15.1"}), repeats_prompts({"engine_version": "0.12.0"})
    (True, False, False)
    """
    return row.get("engine_version") == REPEATING_RELEASE and bool(REPEATING_IDS.match(row.get("id") or ""))


def prefix_hits(distinct: Array, clients: Array, requests: Array) -> Array:
    r"""Return the mean share of requests whose prompt came before.

    Each request draws one of $P$ prompts at random. The cache keeps all of them. After $k$ requests the next prompt is known
    with probability $1 - q^k$, where $q = 1 - 1/P$. With $w$ requests before the $n$ of a run the mean is

    $$ 1 - \frac{P}{n} \left(q^w - q^{w + n}\right). $$

    Args:
        distinct: Prompts from which requests draw; infinite if all differ.
        clients: Requests in flight; each sends `WARM_UPS` requests before the run.
        requests: Requests of the run.

    Returns:
        Shares from 0 to 1.

    >>> two = prefix_hits(np.array([2.0, np.inf]), np.array([0.0, 16.0]), np.array([2.0, 160.0]))
    >>> two.tolist(), prefix_hits(np.array(100.0), np.array([16.0, 64.0]), np.array([160.0, 640.0])).round(2).tolist()
    ([0.25, 0.0], [0.64, 0.96])
    """
    repeats = np.isfinite(distinct)
    pool = np.where(repeats, distinct, 1.0)
    q, before = 1 - 1 / pool, WARM_UPS * clients
    hits: Array = np.where(repeats, 1 - pool / requests * (q**before - q ** (before + requests)), 0.0)
    return hits


def is_atom(row: Mapping[str, str]) -> bool:
    """Check whether a public run is one of ATOM, which has no engine of its own here.

    Its scheduler runs all prompts that wait, in passes of up to `ATOM_TOKENS`, before it continues decode (schedule).

    Args:
        row: Run.

    Returns:
        True for InferenceX's runs with a release of ATOM.

    References:
        https://github.com/ROCm/ATOM/blob/3bb28a9fa/atom/model_engine/scheduler.py

    >>> row = {"engine": "typical", "engine_version": "atom rocm7.1.1", "part": "ix_aggregated"}
    >>> is_atom(row), is_atom(row | {"part": ""}), is_atom(row | {"engine_version": "1.2"})
    (True, False, False)
    """
    return row["engine"] == TYPICAL and (row.get("engine_version") or "").startswith("atom") and _is_benchmark(row)


def with_schedule(engine: Engine, schedule: str) -> Engine:
    """Return the engine with a schedule of prefill.

    Args:
        engine: Engine.
        schedule: "first", "mixed", or "" for the engine's own.

    Returns:
        A changed copy, or the same engine.
    """
    if not schedule or engine.name == IDEAL.name:
        return engine
    first = 1.0 if schedule == PREFILL_FIRST else 0.0
    return replace(engine, scheduler=replace(engine.scheduler, prefill_first=first))


def is_dated(row: Mapping[str, str]) -> bool:
    """Check whether `measured` of a run starts with a day, or is a month.

    Args:
        row: Run.

    Returns:
        True for a date.

    >>> [is_dated({"measured": text}) for text in ("2025-12-31", "2025-12-31T10:00", "2025-09", "December")]
    [True, True, True, False]
    """
    text = (row.get("measured") or "")[:DAY]
    return is_day(text) or is_day(f"{text}-01")


def with_contexts(engine: Engine, contexts: float) -> Engine:
    """Return the engine with a limit on contexts that attention processes at once.

    Args:
        engine: Engine.
        contexts: Sequences at once.

    Returns:
        A changed copy; the same engine for inf, for an engine with a limit, and for the ideal engine.
    """
    if math.isinf(contexts) or engine.name == IDEAL.name or np.any(np.isfinite(engine.kernels.latent_contexts)):
        return engine
    return with_constants(engine, {"latent_contexts": contexts})


def with_launch(engine: Engine, constants: Iterable[tuple[str, float]]) -> Engine:
    """Return the engine with the constants that a script of a deployment changes.

    Args:
        engine: Engine.
        constants: Names and values (`launch_constants`).

    Returns:
        A changed copy; the same engine without constants, and for the ideal engine.
    """
    changed = dict(constants)
    return with_constants(engine, changed) if changed and engine.name != IDEAL.name else engine


def with_gathering(engine: Engine, gathers: bool) -> Engine:
    """Return the engine whose data-parallel ranks gather all tokens before their experts.

    Args:
        engine: Engine.
        gathers: Whether they do.

    Returns:
        A changed copy, or the same engine.
    """
    if not gathers or engine.name == IDEAL.name:
        return engine
    return with_constants(engine, {"gathers_tokens": 1.0})


def _is_early(row: Mapping[str, str]) -> bool:
    """Check whether a run has DeepSeek-R1 on SGLang's separate pools on GB200, with a known day in 2025."""
    if row.get("part") != SEPARATE_POOLS or row["system"].casefold() != SYSTEM or row["engine"] != ENGINE:
        return False
    if MODEL not in row["model"].casefold():
        return False
    day = (row.get("measured") or "")[:DAY]
    return is_day(day) and day <= UNTIL


def _is_fp8(row: Mapping[str, str]) -> bool:
    return row["weight_dtype"].casefold() == "fp8"


def _whole_cells(row: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    """Return cells as whole numbers; 1 for empty ones.

    >>> _whole_cells({"tp": "8.0"}, ("tp", "dp"))
    ('8', '1')
    """
    return tuple(f"{float(row.get(name) or 1):.0f}" for name in names)


# Launch settings of InferenceX by model, format of weights and system. Source: github.com/SemiAnalysisAI/InferenceX at 843c625,
# benchmarks/single_node/fixed_seq_len (and its folder deprecated) and their history: dsr1_fp8_b200.sh, dsr1_fp4_b200.sh,
# dsr1_fp4_mi355x.sh, qwen3.5_fp8_b200.sh, qwen3.5_bf16_mi355x.sh, glm5_fp4_b200.sh, glm5_fp8_mi325x.sh and their like; pools in
# benchmarks/multi_node/srt-slurm-recipes and amd_utils/models.yaml.
BLACKWELL, HOPPER = ("hgx-b200", "hgx-b300"), ("hgx-h100", "hgx-h200")
RACKS = ("gb200-nvl72",)
ANY_FORMAT = ("bf16", "fp8", "nvfp4", "mxfp4", "int4")
MI300, MI355 = ("mi300x-8", "mi325x-8"), ("mi355x-8",)
# --scheduler-recv-interval 10, or 30 from 16 clients: decode steps until the next check for new requests, as 185 median first
# tokens show them. Other scripts, such as glm5_fp8_b200.sh, and the engine's defaults check in each step.
POLLING_STEPS, BUSY_POLLING_STEPS, BUSY_CLIENTS = 10.0, 20.0, 16.0
POLLING = (
    ("deepseek-r1", ("fp8", "nvfp4"), BLACKWELL, ""),
    ("qwen3.5", ("bf16", "fp8", "nvfp4"), BLACKWELL, ""),
    ("qwen3.5", ("bf16", "fp8"), (*MI300, *MI355), "2026-04-15"),
    ("glm-5", ("nvfp4",), BLACKWELL, "2026-04-09"),
    ("glm-5", ("fp8",), MI300, ""),
)
# Formats of KV caches that differ from those of `as_served`: SGLang's --kv-cache-dtype fp8_e4m3, and vLLM without a
# flag. The first day of runs on one node with them, and the day from which on they are gone.
CACHES = (
    ("sglang", "deepseek-r1", ("fp8", "nvfp4"), BLACKWELL, "fp8", "", LATER),
    ("sglang", "deepseek-r1", ("mxfp4",), MI355, "fp8", "2025-12-16", LATER),
    ("sglang", "deepseek-r1", ("fp8",), MI355, "fp8", "2026-03-05", LATER),
    ("sglang", "deepseek-r1", ("fp8",), MI300, "fp8", "2026-01-22", LATER),
    ("sglang", "qwen3.5", ("fp8", "nvfp4"), (*BLACKWELL, *HOPPER), "fp8", "", LATER),
    ("sglang", "glm-5", ("fp8", "nvfp4"), (*BLACKWELL, *MI300), "fp8", "", LATER),
    ("sglang", "glm-5", ("fp8",), MI355, "fp8", "2026-04-17", LATER),
    ("sglang", "glm-5", ("mxfp4",), MI355, "fp8", "", LATER),
    ("sglang", "deepseek-r1", ("fp8", "nvfp4"), RACKS, "fp8", "2026-01-01", LATER),
    ("vllm", "minimax-m2.5", ("fp8",), ("hgx-h100", *MI300), "bf16", "", LATER),
    ("vllm", "minimax-m2.5", ("fp8",), ("hgx-h200",), "bf16", "", "2026-05-26"),
    ("vllm", "minimax-m2.5", ("fp8",), BLACKWELL, "bf16", "", "2026-04-03"),
    ("vllm", "minimax-m2.5", ("fp8",), MI355, "bf16", "", "2026-04-05"),
    ("vllm", "gpt-oss", ("bf16",), MI355, "bf16", "", LATER),
)
# First day of InferenceX's runs of nvidia/DeepSeek-R1-0528-FP4-v2 on all systems (.github/configs/nvidia-master.yaml since
# 17d5e20). "Compared to nvidia/DeepSeek-R1-0528-FP4, this checkpoint additionally quantizes the wo module in attention layers"
# (its model card, huggingface.co/nvidia/DeepSeek-R1-0528-NVFP4-v2).
OUTPUTS_SINCE = "2025-11-03"
FLASHINFER_SHARE = 0.164
"""Value of `block_efficiency` for SGLang on data-centre Blackwell without DeepGEMM. Its products are then FlashInfer's kernels
of TensorRT-LLM (sglang, layers/quantization/fp8_utils.py, _dispatch_auto_backend), where each tile of few rows reads all
weights again. 1,024 more rows of 24,576 x 7,168 take 0.81 ms, 442 TFLOP/s, and 2,048 more of 576 x 7,168 take 22 us, 757
TFLOP/s. DeepGEMM has 2,771 TFLOP/s (GB200, github.com/sgl-project/sglang/pull/13528). The geometric mean of the two is 0.164
of the 3,525 TFLOP/s of other products."""
# Closed loops without DeepGEMM: model, systems, and the day from which on they have it (SGL_ENABLE_JIT_DEEPGEMM=false in
# dsr1_fp8_b200.sh, dsr1_fp8_b200_mtp.sh, dsr1_fp8_b300.sh, and qwen3.5_fp8_b200.sh until InferenceX at 5152941).
# glm5_fp8_b200.sh has 1, and so have the defaults of the engine.
WITHOUT_DEEPGEMM = (("deepseek-r1", BLACKWELL, LATER), ("qwen3.5", BLACKWELL, "2026-04-30"))
# Separate pools without it: systems, prompt tokens and the day from which on they have it; 0 for any length. On racks those
# without data-parallel ranks. Source: srt-slurm, recipes/b200-fp8 (8,192 until 9fe6c37) and gb200-fp8/*/low-latency.yaml.
POOLS_WITHOUT_DEEPGEMM = ((BLACKWELL, 1024.0, LATER), (BLACKWELL, 8192.0, "2026-03-12"), (RACKS, 0.0, LATER))
GRAPH_TOKENS = 2048.0
"""Most tokens of a step with CUDA graphs in scripts of vLLM with cuda-graph-sizes or max-cudagraph-capture-size of 2,048."""
# Deployments with such graphs: model, formats, systems and first day. Source: InferenceX, gptoss_fp4_b200.sh, h100.sh, h200.sh
# and their like (all versions), minimaxm2.5_fp8_b200.sh (bddbf40), minimaxm2.5_fp4_b200.sh (79bd988), kimik2.5_fp4_b200.sh
# (6c3aceb).
GRAPHS = (
    ("gpt-oss", ANY_FORMAT, (*BLACKWELL, *HOPPER), ""),
    ("minimax-m2.5", ("fp8", "nvfp4"), BLACKWELL, "2026-04-03"),
    ("kimi-k2.5", ("nvfp4",), BLACKWELL, "2026-04-20"),
)
# Prompt tokens of a pass (SGLang's --chunked-prefill-size or --max-prefill-tokens, vLLM's --max-num-batched-tokens and its
# default for a server on chips of 70 GiB or more, vllm/engine/arg_utils.py; TensorRT-LLM's --max_num_tokens) by engine, model,
# formats and systems, first day, and the day from which on they are gone. Sources: the same scripts and their history.
BUDGETS = (
    ("trtllm", "gpt-oss", ANY_FORMAT, (*BLACKWELL, *HOPPER), 20000.0, "", LATER),
    ("trtllm", "llama-3.1-70b", ANY_FORMAT, (*BLACKWELL, *HOPPER), 16384.0, "", LATER),
    ("sglang", "deepseek-r1", ("fp8",), MI300, 196608.0, "", "2026-01-01"),
    ("sglang", "deepseek-r1", ("fp8",), MI300, 131072.0, "2026-01-01", LATER),
    ("sglang", "deepseek-r1", ("fp8", "mxfp4"), MI355, 196608.0, "", LATER),
    ("sglang", "deepseek-r1", ("fp8",), (*BLACKWELL, *HOPPER), 32768.0, "", LATER),
    ("sglang", "deepseek-r1", ("nvfp4",), BLACKWELL, 16384.0, "", LATER),
    ("sglang", "glm-5", ("fp8", "nvfp4"), BLACKWELL, 32768.0, "", LATER),
    ("sglang", "qwen3.5", ("fp8",), ("hgx-h200",), 16384.0, "", LATER),
    ("sglang", "qwen3.5", ("bf16", "fp8", "nvfp4"), BLACKWELL, 32768.0, "", LATER),
    ("sglang", "qwen3.5", ("bf16", "fp8"), (*MI300, *MI355), 32768.0, "", LATER),
    ("vllm", "", ANY_FORMAT, (*BLACKWELL, *HOPPER), 8192.0, "", LATER),
)
# --max-num-batched-tokens of twice the prompt: MiniMax-M2.5 of vLLM on B200 and B300.
DOUBLED = (("minimax", ("fp8", "nvfp4"), BLACKWELL, "2026-04-01"), ("kimi", ("nvfp4",), BLACKWELL, "2026-05-01"))
# MXFP4 on MI355X with 8,192 prompt tokens and more clients.
LONG_PROMPTS, MANY_CLIENTS, LONG_BUDGET = 8192.0, 32.0, 32768.0
# TensorRT-LLM with DeepSeek-R1: clients, prompt and 64 tokens, in blocks of 64; at least 8,192 from this day on.
BUDGET_BLOCK, LEAST_BUDGET, LEAST_SINCE = 64.0, 8192.0, "2026-01-22"
# AIConfigurator's own runs of SGLang with mixed chunks: a prompt and 1,500 tokens (src/aiconfigurator/generator/rule_plugin/
# sglang.rule at 95ddf241a, max_prefill_tokens), at most the engine's default chunk.
GENERATED_MARGIN, GENERATED_CHUNK = 1500.0, 8192.0
# Prompt tokens of a pass of ATOM by default, which InferenceX's scripts keep (ROCm/ATOM at 3bb28a9fa and d41076e52,
# atom/model_engine/arg_utils.py; dsr1_fp8_mi355x_atom.sh, dsr1_fp4_mi355x_atom.sh).
ATOM_TOKENS = 16384.0
BALANCED_WITHIN = 60.0
"""Maximum steps before TensorRT-LLM starts prefill although a data-parallel rank has no prompt, with balancing enabled. Source:
the scripts of InferenceX for DeepSeek-R1 and the benchmarks of TensorRT-LLM (attention_dp_config, enable_balance, timeout_iters
60; balancing is off by default). In _torch/pyexecutor/py_executor.py, _balance_adp_requests, the count continues whether or not
a prompt waits."""


BATCH_WAIT_STEPS = 20.0
"""Steps that TensorRT-LLM waits for more prompts, unless 0.9 times 16,384 tokens wait. It is for InferenceX's runs of Llama-70B
with 1,024 tokens in and out on fewer than eight chips: `batch_wait_timeout_iters: 20` of
github.com/SemiAnalysisAI/InferenceX, benchmarks/70b_fp8_b200_trt_slurm.sh (September 2025 until its removal on 2025-10-29)."""
BATCHED_MODEL, BATCHED_CHIPS, BATCHED_UNTIL = "llama-3.1-70b", 8.0, "2025-10-30"


def balance_period(groups: int, clients: float, output_tokens: float) -> float:
    """Return the steps between two prefills with balanced data-parallel ranks.

    Prefill starts when each rank has a prompt, or after `BALANCED_WITHIN` steps. A closed loop brings clients / output_tokens
    prompts per step, each to the rank where a request ended. On average, all ranks have one after groups (1 + 1/2 + ... +
    1/groups) prompts.

    Args:
        groups: Data-parallel ranks.
        clients: Requests in flight.
        output_tokens: Mean output tokens.

    Returns:
        Decode steps.

    >>> balance_period(8, 64, 1024), round(balance_period(4, 256, 1024), 1)
    (60.0, 33.3)
    """
    needed = groups * sum(1 / n for n in range(1, groups + 1))
    return min(BALANCED_WITHIN, needed * output_tokens / clients)


BENCHMARKED = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000, (2048, 128): 3000,
    (1000, 2000): 1500, (2048, 2048): 1500, (5000, 500): 1500, (20000, 2000): 1000,
}  # fmt: skip
"""Requests of `trtllm-bench` by prompt and output tokens. Source: TensorRT-LLM, docs/source/performance/perf-overview.md, table
"Preparing a Dataset"."""


def count_requests(row: Mapping[str, str], rate: float) -> float:
    """Return the requests of a run that are all present at its start.

    MLPerf's runs have at least the requests of a data set. They have as many as the target rate makes in the minimum duration
    (loadgen's samples per query).

    Args:
        row: Run.
        rate: Steady-state requests per second.

    Returns:
        Requests; inf if unknown.

    >>> count_requests({"requests": "500", "scenario": "Offline"}, 1.0)
    500.0
    >>> count_requests({"part": "mlperf", "scenario": "Offline", "model": "DeepSeek-R1"}, 10.0)
    31300.0
    """
    if row.get("requests"):
        return float(row["requests"])
    if run_kind(row) == HIGHEST:
        return float(BENCHMARKED.get((int(float(row["input_tokens"])), int(float(row["output_tokens"]))), math.inf))
    data_set = find_data_set(row)
    return math.inf if data_set is None or run_kind(row) != OFFLINE else float(max(data_set.requests, rate * data_set.seconds))


MOST_AT_ONCE = 4096
"""Maximum batch of `trtllm-bench`. Source: TensorRT-LLM, tensorrt_llm/bench/build/tuning.py, finetune_setting."""
SUBMITTED_AT_ONCE = 2048
"""Usual maximum batch of a data-parallel rank in MLPerf: the default of TensorRT-LLM (tensorrt_llm/llmapi/llm_args.py,
max_batch_size) and the target of AMD's submissions (inference_results_v5.1, closed/AMD/code/llama2-70b-99.9,
offline_mi325x.yaml, VLLM_LLAMA2_MLPERF_MAX_TARGET_DECODE_BATCH)."""


def most_at_once(row: Mapping[str, str]) -> float:
    """Return the maximum sequences that a replica runs at once.

    Args:
        row: Run.

    Returns:
        Sequences: `concurrency` of the row, the limit of `trtllm-bench`, the usual limit of MLPerf's submissions, or inf.

    >>> [most_at_once({"engine": "trtllm", "part": "trt_max", "concurrency": limit}) for limit in ("64", "")]
    [64.0, 4096.0]
    >>> most_at_once({"engine": "vllm", "part": "mlperf", "scenario": "Offline"})
    2048.0
    """
    if row.get("concurrency"):
        return float(row["concurrency"])
    if row.get("part") == MLPERF:
        return SUBMITTED_AT_ONCE * float(row.get("dp") or 1)
    return MOST_AT_ONCE / int(float(row.get("pp") or 1)) if keeps_room(row) else math.inf


def keeps_room(row: Mapping[str, str]) -> bool:
    """Check whether each request reserves memory for its whole output.

    TensorRT-LLM's scheduler does so by default (GUARANTEED_NO_EVICT), and `trtllm-bench` does not change it. MLPerf's
    submitters do.

    Args:
        row: Run.

    Returns:
        True for TensorRT-LLM's maximum-throughput runs.

    >>> [keeps_room({"engine": engine, "part": "trt_max"}) for engine in ("trtllm", "vllm")]
    [True, False]
    """
    return row["engine"] == "trtllm" and run_kind(row) == HIGHEST


def usual_interval(row: Mapping[str, str], clients: float) -> float:
    """Return the usual interval of a run without `stream_interval`.

    The value is 1 except for public deployments. Data-parallel ranks that wait for each other wait half a period on average,
    plus one step.

    Args:
        row: Run.
        clients: Requests in flight of one replica.

    Returns:
        Decode steps.

    >>> row = {"engine": "sglang", "system": "hgx-b200", "part": "ix_aggregated", "model": "DeepSeek-R1", "weight_dtype": "fp8"}
    >>> [usual_interval(row, clients) for clients in (4, 16)], usual_interval(row | {"part": ""}, 4)
    ([10.0, 20.0], 1.0)
    >>> usual_interval({"engine": "vllm", "system": "hgx-b200"}, 4)
    1.0
    """
    if waits_for_batch(row):
        return 1 + BATCH_WAIT_STEPS
    if row["engine"] == "trtllm" and float(row.get("dp") or 1) > 1:
        return 1 + balance_period(int(float(row["dp"])), clients, float(row["output_tokens"])) / 2
    if not polls_rarely(row):
        return 1.0
    return BUSY_POLLING_STEPS if clients >= BUSY_CLIENTS else POLLING_STEPS


def waits_for_batch(row: Mapping[str, str]) -> bool:
    """Check whether a deployment waits for more prompts before it starts a prefill (`BATCH_WAIT_STEPS`).

    Args:
        row: Run.

    Returns:
        True for TensorRT-LLM with Llama-70B, short prompts and few chips.

    >>> row = {"engine": "trtllm", "model": "meta-llama/Llama-3.1-70B-Instruct", "tp": "4", "measured": "2025-10-29"}
    >>> row |= {"input_tokens": "1024", "output_tokens": "1024"}
    >>> waits_for_batch(row), waits_for_batch(row | {"tp": "8"}), waits_for_batch(row | {"output_tokens": "8192"})
    (True, False, False)
    """
    if row["engine"] != "trtllm" or BATCHED_MODEL not in row.get("model", "").casefold():
        return False
    if float(row.get("tp") or 1) >= BATCHED_CHIPS or not "" < (row.get("measured") or "") <= BATCHED_UNTIL:
        return False
    return _whole_cells(row, LENGTHS) == SHORT


def polls_rarely(row: Mapping[str, str]) -> bool:
    """Check whether a public deployment does not check for new requests in each step (`POLLING`).

    Args:
        row: Run.

    Returns:
        True for the deployments of `POLLING`.
    """
    if row["engine"] != ENGINE or not _is_benchmark(row):
        return False
    day = _script_day(row)
    return any(day >= since and _matches_script(row, model, stored, systems) for model, stored, systems, since in POLLING)


def output_format(row: Mapping[str, str]) -> str:
    """Return the format of the output projections of attention in a public deployment of DeepSeek-R1 in NVFP4.

    Args:
        row: Run.

    Returns:
        A format, or "" where they have the format of the other projections (`OUTPUTS_SINCE`).

    >>> row = {"engine": "trtllm", "model": "DeepSeek-R1", "system": "hgx-b200", "part": "ix_aggregated"}
    >>> row |= {"weight_dtype": "nvfp4"}
    >>> [output_format(row | {"measured": day}) for day in ("2025-10-01", "2025-12-08")]
    ['', 'nvfp4']
    """
    if not _is_benchmark(row) or not _matches_script(row, MODEL, ("nvfp4",), (row["system"].casefold(),)):
        return ""
    return "nvfp4" if (row.get("measured") or UNTIL)[:DAY] >= OUTPUTS_SINCE else ""


def launch_constants(row: Mapping[str, str]) -> tuple[tuple[str, float], ...]:
    """Return the constants of its engine that the script of a public deployment changes.

    Args:
        row: Run.

    Returns:
        Names and values: the rate of products with scales for blocks (`FLASHINFER_SHARE`), or the size of graphs (`GRAPHS`).

    >>> row = {"engine": "sglang", "model": "DeepSeek-R1", "system": "hgx-b200", "weight_dtype": "fp8", "part": "ix_aggregated"}
    >>> [launch_constants(row | other) for other in ({}, {"weight_dtype": "nvfp4"}, {"model": "zai-org/GLM-5"})]
    [(('block_efficiency', 0.164),), (), ()]
    >>> pools = row | {"part": "ix_disaggregated", "input_tokens": "8192"}
    >>> [launch_constants(pools | {"measured": day}) for day in ("2026-02-07", "2026-03-18")]
    [(('block_efficiency', 0.164),), ()]
    >>> launch_constants(row | {"engine": "vllm", "model": "gpt-oss-120b", "weight_dtype": "bf16"})
    (('graph_tokens', 2048.0),)
    """
    if not _is_benchmark(row):
        return ()
    day = (row.get("measured") or UNTIL)[:DAY]
    if row["engine"] == "vllm":
        is_larger = any(day >= since and _matches_script(row, name, stored, chips) for name, stored, chips, since in GRAPHS)
        return (("graph_tokens", GRAPH_TOKENS),) if is_larger else ()
    if row["engine"] == ENGINE and _is_fp8(row) and _lacks_deepgemm(row, day):
        return (("block_efficiency", FLASHINFER_SHARE),)
    return ()


def _lacks_deepgemm(row: Mapping[str, str], day: str) -> bool:
    """Whether a public deployment of SGLang in FP8 runs without DeepGEMM."""
    if row.get("part") != SEPARATE_POOLS:
        return any(day < until and _matches_script(row, model, ("fp8",), systems) for model, systems, until in WITHOUT_DEEPGEMM)
    if row["system"].casefold() in RACKS and float(row.get("prefill_dp") or 1) > 1:
        return False
    return any(
        length in (0.0, float(row["input_tokens"])) and day < until and _matches_script(row, MODEL, ("fp8",), systems)
        for systems, length, until in POOLS_WITHOUT_DEEPGEMM
    )


def cache_format(row: Mapping[str, str]) -> str:
    """Return the format of the KV cache of a public deployment whose script differs from its engine's rule (`CACHES`).

    Args:
        row: Run.

    Returns:
        A format, or "" where the rule of the engine holds. Separate pools and speculative tokens had theirs from the first day.

    >>> row = {"engine": "sglang", "model": "DeepSeek-R1", "system": "mi355x-8", "weight_dtype": "fp8", "part": "ix_aggregated"}
    >>> [cache_format(row | {"measured": day}) for day in ("2026-03-04", "2026-03-05")]
    ['', 'fp8']
    """
    if not _is_benchmark(row):
        return ""
    day = _script_day(row)
    for engine, model, stored, systems, kv, since, until in CACHES:
        if row["engine"] == engine and since <= day < until and _matches_script(row, model, stored, systems):
            return kv
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLaunch:
    """Launch settings of separate pools that no column records.

    pass_tokens, pass_prompts: Most prompt tokens and prompts of a data-parallel rank in a pass of prefill; infinite if unknown.
    slots: Most sequences of a decode replica. gathers_prefill, gathers_decode: Whether data-parallel ranks of a pool gather
    all tokens before their experts (`Kernels.gathers_tokens`).
    """

    pass_tokens: float = math.inf
    pass_prompts: float = math.inf
    slots: float = math.inf
    gathers_prefill: bool = False
    gathers_decode: bool = False

    def prompts(self, prompt_tokens: float) -> float:
        """Return the prompts of a data-parallel rank in a full pass of prefill.

        Args:
            prompt_tokens: Mean prompt tokens.

        Returns:
            Prompts; infinite if unknown.
        """
        fit = max(1.0, self.pass_tokens // prompt_tokens) if math.isfinite(self.pass_tokens) else math.inf
        return min(fit, self.pass_prompts)


POOL_PASSES = (
    ("nvfp4", RACKS, 1024, 4608.0, 4.0, "", "2026-01-01"),
    ("nvfp4", RACKS, 8192, 8448.0, 1.0, "", "2026-01-01"),
    ("nvfp4", RACKS, 1024, 16384.0, 16.0, "2026-01-01", LATER),
    ("nvfp4", RACKS, 8192, 16640.0, 2.0, "2026-01-01", LATER),
    ("nvfp4", BLACKWELL, 1024, 10240.0, 8.0, "", LATER),
    ("nvfp4", BLACKWELL, 8192, 16896.0, 2.0, "", LATER),
    ("fp8", (*RACKS, *BLACKWELL), 1024, 16384.0, 16.0, "", LATER),
    ("fp8", (*RACKS, *BLACKWELL), 8192, 16384.0, 2.0, "", LATER),
)
"""Most tokens and prompts of a pass of TensorRT-LLM's prefill pools: format of weights, systems, prompt tokens, limits, first
day, and the day from which on they are gone. Sources: github.com/SemiAnalysisAI/InferenceX, .github/configs/
nvidia-master.yaml of January 2026 (PREFILL_MAX_NUM_TOKENS, PREFILL_MAX_BATCH_SIZE); github.com/NVIDIA/srt-slurm at
c88ef731, recipes/trtllm (max_num_tokens, max_batch_size)."""
POOL_CHUNKS = (
    (RACKS, "fp8", 131072.0),
    (RACKS, "nvfp4", 65536.0),
    (BLACKWELL, "fp8", 32768.0),
    (BLACKWELL, "nvfp4", 32768.0),
)
"""--chunked-prefill-size of SGLang's prefill pools, which data-parallel ranks share: systems, format of weights and tokens.
Without --moe-a2a-backend, ranks gather tokens: all pools on BLACKWELL, and prefill of nvfp4 on RACKS. Source: srt-slurm,
recipes/gb200-fp8, gb200-fp4, b200-fp8 and b200-fp4 of 2026."""
# MI355X: sequences of a decode replica with data-parallel ranks, with expert parallelism alone, and without; prompt tokens and
# prompts of a pass of a rank, and of a replica without ranks. Source: InferenceX at 8d81e0bf4, benchmarks/multi_node/amd_utils/
# models.yaml (max_running_requests, chunked_prefill_size) and env.sh.
AMD_SLOTS = (4096.0, 256.0, 128.0)
AMD_RANK_PASS, AMD_REPLICA_PASS = (16384.0, 3.0), (262144.0, 128.0)


def pool_launch(row: Mapping[str, str]) -> PoolLaunch:
    """Return the launch settings of public separate pools with DeepSeek-R1.

    Args:
        row: Run.

    Returns:
        The settings; unknown ones for other runs.

    >>> row = {"part": "ix_disaggregated", "engine": "trtllm", "model": "DeepSeek-R1", "system": "hgx-b200"}
    >>> row |= {"measured": "2026-01-29", "weight_dtype": "nvfp4", "input_tokens": "8192"}
    >>> pool_launch(row).prompts(7373), pool_launch(row | {"engine": "sglang", "prefill_dp": "4"}).gathers_prefill
    (2.0, True)
    """
    launch = PoolLaunch()
    if row.get("part") != SEPARATE_POOLS or MODEL not in row["model"].casefold():
        return launch
    if row["engine"] == "trtllm":
        day, length = (row.get("measured") or "")[:DAY], float(row["input_tokens"])
        for stored, systems, prompt, tokens, prompts, since, until in POOL_PASSES:
            if length == prompt and since <= day < until and _matches_script(row, MODEL, (stored,), systems):
                return PoolLaunch(pass_tokens=tokens, pass_prompts=prompts)
    if row["engine"] != ENGINE:
        return launch
    ranks, has_ranks, has_ep = (float(row.get(name) or 1) for name in ("prefill_dp", "dp", "ep"))
    if row["system"].casefold() in MI355:
        tokens, prompts = AMD_RANK_PASS if ranks > 1 else AMD_REPLICA_PASS
        slots = AMD_SLOTS[0 if has_ranks > 1 else 1 if has_ep > 1 else 2]
        return PoolLaunch(pass_tokens=tokens, pass_prompts=prompts, slots=slots)
    for systems, stored, tokens in POOL_CHUNKS:
        if _matches_script(row, MODEL, (stored,), systems):
            gathers = systems == BLACKWELL
            return PoolLaunch(pass_tokens=tokens / ranks, gathers_prefill=gathers or stored == "nvfp4", gathers_decode=gathers)
    return launch


def token_budget(row: Mapping[str, str]) -> float:
    """Return the prompt tokens of a pass of a public deployment (`BUDGETS`).

    Args:
        row: Run.

    Returns:
        Tokens of a data-parallel rank; 0 for the engine's own.

    >>> row = {"engine": "trtllm", "model": "gpt-oss-120b", "system": "hgx-b200", "weight_dtype": "bf16"}
    >>> row |= {"part": "ix_aggregated", "input_tokens": "1024", "output_tokens": "1024", "concurrency": "16"}
    >>> row |= {"measured": "2025-12-01"}
    >>> token_budget(row), token_budget(row | {"model": "DeepSeek-R1"}), token_budget(row | {"part": ""})
    (20000.0, 1152.0, 0.0)
    """
    prompt, clients = float(row["input_tokens"] or 0), float(row.get("concurrency") or 1)
    if mixes_chunks(row):
        return min(prompt + GENERATED_MARGIN, GENERATED_CHUNK)
    if not _is_benchmark(row) or row.get("part") == SEPARATE_POOLS:
        return 0.0
    if is_atom(row):
        return ATOM_TOKENS
    day, engine = _script_day(row), row["engine"]
    if engine == "trtllm" and MODEL in row["model"].casefold():
        written = BUDGET_BLOCK * ((clients + prompt + 2 * BUDGET_BLOCK - 1) // BUDGET_BLOCK)
        return max(written, LEAST_BUDGET) if day >= LEAST_SINCE else written
    doubled = (since for model, stored, systems, since in DOUBLED if _matches_script(row, model, stored, systems))
    if engine == "vllm" and any(day >= since for since in doubled):
        return 2 * prompt
    for made_by, model, stored, systems, tokens, since, until in BUDGETS:
        if engine == made_by and since <= day < until and _matches_script(row, model, stored, systems):
            is_long = "mxfp4" in row["weight_dtype"].casefold() and prompt >= LONG_PROMPTS and clients > MANY_CLIENTS
            return LONG_BUDGET if is_long else tokens
    return 0.0


def _is_benchmark(row: Mapping[str, str]) -> bool:
    """Check whether a run is one of InferenceX, by its part or its name.

    >>> [_is_benchmark({"id": name}) for name in ("dsr1_b200_sglang_fp8_agg_1024x1024_c4_cfg3", "2026-11-20 prod", "my-cfg-3")]
    [True, False, False]
    """
    name = row.get("id") or ""
    return (row.get("part") or "").startswith("ix_") or bool(LOADS.search(name) and (DRAWN_IDS.match(name) or REPEATED in name))


def _script_day(row: Mapping[str, str]) -> str:
    """Return the day of a run.

    Separate pools, except those of racks, and speculative tokens had the settings of later scripts from their first day.
    """
    pools = row.get("part") in (SEPARATE_POOLS, DRAFTED_RUNS) and row["system"].casefold() not in RACKS
    return LAST_DAY if pools else (row.get("measured") or UNTIL)[:DAY]


def _matches_script(row: Mapping[str, str], model: str, formats: tuple[str, ...], systems: tuple[str, ...]) -> bool:
    """Check the model, the format of weights and the system of a run."""
    name, stored, system = (row[column].casefold() for column in ("model", "weight_dtype", "system"))
    return model in name and stored in formats and system in systems


# Column of runs with multi-token prediction, which record neither drafts nor acceptance: both were assumed by the engine.
ASSUMED = "acceptance_assumed"
FP8, FP4 = ("fp8",), ("nvfp4", "mxfp4")
LOW_BITS, B200 = (*FP8, *FP4), ("hgx-b200",)
# Drafts of separate pools: engine, systems, formats of weights, first day, prompt tokens, data-parallel and expert-parallel
# ranks of a decode replica, decode replicas, least clients, drafts; none and 0 for any. The first line that matches holds, so
# that later days stand first. Sources: github.com/SemiAnalysisAI/InferenceX, .github/configs/amd-master.yaml
# (DECODE_MTP_SIZE) and nvidia-master.yaml (names of recipes, "mtp2") at the commits of each day; github.com/NVIDIA/srt-slurm,
# recipes/b200-fp8 and b200-fp4, and InferenceX at 263aace86, benchmarks/multi_node/srt-slurm-recipes (speculative-num-steps).
DRAFTS = (
    ("trtllm", (), LOW_BITS, "", 0, 1, 0, 0, 0, 3),
    ("trtllm", RACKS, FP8, "", 1024, 16, 0, 0, 0, 1),
    ("trtllm", RACKS, FP8, "", 8192, 16, 0, 0, 0, 3),
    ("trtllm", RACKS, FP4, "", 1024, 32, 0, 0, 0, 3),
    ("trtllm", B200, FP8, "", 1024, 8, 0, 0, 1600, 2),
    ("trtllm", B200, FP8, "", 1024, 8, 0, 0, 0, 3),
    ("trtllm", B200, FP8, "", 8192, 8, 0, 0, 0, 2),
    ("trtllm", B200, FP4, "", 1024, 8, 0, 0, 0, 2),
    ("trtllm", B200, FP4, "", 8192, 8, 0, 0, 0, 3),
    ("trtllm", (), FP4, "", 0, 0, 0, 0, 0, 1),
    ("sglang", B200, FP8, "", 1024, 8, 0, 2, 0, 1),
    ("sglang", B200, FP4, "2026-06-01", 8192, 1, 0, 0, 0, 3),
    ("sglang", B200, LOW_BITS, "", 0, 0, 0, 0, 0, 2),
    ("sglang", MI355, FP4, "2026-05-31", 0, 1, 0, 0, 0, 3),
    ("sglang", MI355, FP4, "2026-05-31", 0, 0, 0, 0, 0, 1),
    ("sglang", MI355, FP4, "2026-05-07", 0, 0, 0, 0, 64, 2),
    ("sglang", MI355, FP4, "2026-03-13", 0, 0, 0, 0, 64, 1),
    ("sglang", MI355, FP4, "2026-03-13", 0, 0, 0, 0, 0, 3),
    ("sglang", MI355, FP4, "2026-03-03", 0, 0, 0, 1, 0, 3),
    ("sglang", MI355, FP4, "2026-03-03", 0, 0, 0, 0, 0, 2),
    ("sglang", MI355, FP4, "2026-02-11", 0, 0, 0, 0, 0, 1),
    ("sglang", MI355, FP8, "2026-02-11", 0, 1, 1, 0, 0, 2),
    ("sglang", MI355, FP8, "2026-02-11", 0, 0, 0, 0, 0, 1),
    ("sglang", MI355, LOW_BITS, "", 0, 0, 0, 0, 0, 2),
)
# Acceptance lengths of random prompts by drafts. With a chat template three drafts yield 2.50 tokens, as on MT-Bench, and 3.55
# without (github.com/SemiAnalysisAI/InferenceX, pull request 649). With one share of accepted tokens for every draft, 3.55 is
# 2.72 with two drafts. Other lengths with a template are those of the model's curve.
TEMPLATED: Mapping[int, str] = {3: "2.5"}
RAW: Mapping[int, str] = {1: "1.9", 2: "2.72", 3: "3.55"}
# First day of separate pools on MI355X with a chat template (pull requests 622 and 649).
TEMPLATED_SINCE = "2026-02-03"


def with_drafts(row: dict[str, str]) -> dict[str, str]:
    """Replace assumed drafts and acceptance lengths of a public run of DeepSeek-R1 by published ones.

    Args:
        row: Run.

    Returns:
        A changed copy, or the same row.

    >>> row = {"part": "ix_disaggregated", "model": "DeepSeek-R1", "engine": "trtllm", "system": "hgx-b200", "drafted": "1"}
    >>> row |= {"weight_dtype": "fp8", "measured": "2026-02-11", "input_tokens": "8192", "concurrency": "1088", "dp": "8"}
    >>> row |= {"acceptance": "1.8", "acceptance_assumed": "True"}
    >>> found = with_drafts(row)
    >>> found["drafted"], found["acceptance"], with_drafts(row | {"acceptance_assumed": ""})["drafted"]
    ('2', '', '1')
    """
    part, day = row.get("part") or "", row.get("measured") or ""
    if row.get(ASSUMED) != "True" or not part.startswith("ix_") or MODEL not in row["model"].casefold():
        return row
    drafts = count_drafts(row)
    if part == SEPARATE_POOLS:
        drafts = _scripted_drafts(row) or drafts
    is_raw = part == SEPARATE_POOLS and row["system"].casefold() in MI355 and day < TEMPLATED_SINCE
    acceptance = (RAW if is_raw else TEMPLATED).get(drafts, "")
    return {**row, "drafted": str(drafts), "acceptance": acceptance, ASSUMED: ""}


def _scripted_drafts(row: Mapping[str, str]) -> int:
    """Return the drafts per step of separate pools by their script; 0 if unknown."""
    sizes = [float(row.get(name) or 1) for name in ("input_tokens", "dp", "ep", "decode_workers")]
    day, clients = row.get("measured") or "", float(row.get("concurrency") or 1)
    for engine, systems, formats, since, *scripted_sizes, least, drafts in DRAFTS:
        is_deployment = row["engine"] == engine and _matches_script(row, MODEL, formats, systems or (row["system"].casefold(),))
        is_size = all(value in (0, size) for value, size in zip(scripted_sizes, sizes, strict=True))
        if is_deployment and is_size and day >= since and clients >= least:
            return drafts
    return 0
