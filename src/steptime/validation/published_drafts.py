"""Speculative tokens of published deployments: drafts per step and acceptance lengths, where the rows assume them.

InferenceX's runs with multi-token prediction record neither. Their rows assume both by the engine (column
`acceptance_assumed`). The scripts of the runs state the drafts, and InferenceX measured the acceptance length of its random
prompts.
"""

from __future__ import annotations

from collections.abc import Mapping

from steptime.validation.run_table import count_drafts

SEPARATE_POOLS, MODEL, ASSUMED = "ix_disaggregated", "deepseek-r1", "acceptance_assumed"
RACKS, BLACKWELL, MI355 = "gb200-nvl72", "hgx-b200", "mi355x-8"
FP8, FP4 = ("fp8",), ("nvfp4", "mxfp4")
ANY = (*FP8, *FP4)
# Drafts of separate pools: engine, system, formats of weights, first day, prompt tokens, data-parallel and expert-parallel
# ranks of a decode replica, decode replicas, least clients, drafts; 0 for any number. The first line that matches holds, so
# that later days stand first. Sources: github.com/SemiAnalysisAI/InferenceX, .github/configs/amd-master.yaml
# (DECODE_MTP_SIZE) and nvidia-master.yaml (names of recipes, "mtp2") at the commits of each day; github.com/NVIDIA/srt-slurm,
# recipes/b200-fp8 and b200-fp4, and InferenceX at 263aace86, benchmarks/multi_node/srt-slurm-recipes (speculative-num-steps).
DRAFTS = (
    ("trtllm", "", ANY, "", 0, 1, 0, 0, 0, 3),
    ("trtllm", RACKS, FP8, "", 1024, 16, 0, 0, 0, 1),
    ("trtllm", RACKS, FP8, "", 8192, 16, 0, 0, 0, 3),
    ("trtllm", RACKS, FP4, "", 1024, 32, 0, 0, 0, 3),
    ("trtllm", BLACKWELL, FP8, "", 1024, 8, 0, 0, 1600, 2),
    ("trtllm", BLACKWELL, FP8, "", 1024, 8, 0, 0, 0, 3),
    ("trtllm", BLACKWELL, FP8, "", 8192, 8, 0, 0, 0, 2),
    ("trtllm", BLACKWELL, FP4, "", 1024, 8, 0, 0, 0, 2),
    ("trtllm", BLACKWELL, FP4, "", 8192, 8, 0, 0, 0, 3),
    ("trtllm", "", FP4, "", 0, 0, 0, 0, 0, 1),
    ("sglang", BLACKWELL, FP8, "", 1024, 8, 0, 2, 0, 1),
    ("sglang", BLACKWELL, FP4, "2026-06-01", 8192, 1, 0, 0, 0, 3),
    ("sglang", BLACKWELL, ANY, "", 0, 0, 0, 0, 0, 2),
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
    ("sglang", MI355, ANY, "", 0, 0, 0, 0, 0, 2),
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
    is_raw = part == SEPARATE_POOLS and row["system"].casefold() == MI355 and day < TEMPLATED_SINCE
    acceptance = (RAW if is_raw else TEMPLATED).get(drafts, "")
    return {**row, "drafted": str(drafts), "acceptance": acceptance, ASSUMED: ""}


def _scripted_drafts(row: Mapping[str, str]) -> int:
    """Return the drafts per step of separate pools by their script; 0 if unknown."""
    sizes = [float(row.get(name) or 1) for name in ("input_tokens", "dp", "ep", "decode_workers")]
    day, clients = row.get("measured") or "", float(row.get("concurrency") or 1)
    for engine, system, formats, since, *scripted_sizes, least, drafts in DRAFTS:
        is_deployment = row["engine"] == engine and system in ("", row["system"].casefold()) and row["weight_dtype"] in formats
        is_size = all(value in (0, size) for value, size in zip(scripted_sizes, sizes, strict=True))
        if is_deployment and is_size and day >= since and clients >= least:
            return drafts
    return 0
