"""Rows of measured runs that tests change, as texts by column."""

from __future__ import annotations

import csv
from pathlib import Path

SHARED = Path(__file__).parents[3] / "shared" / "data" / "measured"


def plain(**changes: str) -> dict[str, str]:
    """A closed loop of a small dense model on one chip."""
    row = {
        "id": "a", "model": "llama-3.1-8b", "system": "hgx-h100", "engine": "vllm",
        "input_tokens": "1024", "output_tokens": "256", "concurrency": "16",
        "tp": "1", "pp": "1", "dp": "1", "ep": "1", "weight_dtype": "bf16", "expert_dtype": "",
    }  # fmt: skip
    return row | changes


def deepseek(**changes: str) -> dict[str, str]:
    """A closed loop of a model with layers that draft, on eight chips."""
    ways = {"model": "deepseek-ai/DeepSeek-R1", "system": "hgx-b200", "tp": "8", "weight_dtype": "fp8", "expert_dtype": "fp8"}
    return plain(**(ways | {"output_tokens": "1024", "engine": "sglang"} | changes))


def apart(**changes: str) -> dict[str, str]:
    """The same on a pool that reads prompts and one that decodes."""
    pools = {"decode_workers": "2.0", "prefill_workers": "1.0", "prefill_tp": "8.0", "prefill_dp": "1.0", "prefill_ep": "1.0"}
    return deepseek(**(pools | changes))


def offline(**changes: str) -> dict[str, str]:
    """All requests at once on eight chips."""
    return plain(**({"scenario": "Offline", "part": "mlperf", "concurrency": "", "chips": "8.0"} | changes))


def written(path: Path, *rows: dict[str, str]) -> Path:
    """Write rows, with a column for each name that any has."""
    names = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(names), restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path
