"""The published figures of tests/golden, and what the configs give for each."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import steptime as st
from steptime.models.model import cache_bytes, decode_flops_per_token, growing_kv_bytes_per_token, kv_bytes_per_token

GOLDEN = tomllib.loads((Path(__file__).parent / "golden" / "kv_bytes.toml").read_text(encoding="utf-8"))
KV: list[dict[str, Any]] = GOLDEN["kv"]
RATIOS: list[dict[str, Any]] = GOLDEN["ratios"]
DIFFERENT = {
    ("zai-org/GLM-5.2", 61_464): "The config gives 21 of the 78 layers an index; the others use the one before.",
}
"""Figures that the configs contradict, and why. The tests hold this list to be complete; the page shows it."""


def counted(entry: dict[str, Any]) -> float:
    """Return the bytes that the config gives for one entry of the table."""
    model = st.load_model(entry["model"], kv=entry.get("format", ""))
    what = entry["what"]
    if what == "full":
        return kv_bytes_per_token(model)
    if what == "growing":
        return growing_kv_bytes_per_token(model)
    if what == "latent":
        layers = ((a, n) for layer, n in model.layers for a in layer.attention)
        return sum(n * a.kv_bytes / a.stride for a, n in layers if a.name != "indexer")
    if what == "window":
        far = float(2**40)
        return float(cache_bytes(model, far)) - growing_kv_bytes_per_token(model) * far
    return float(cache_bytes(model, float(what)))


def agrees(entry: dict[str, Any]) -> bool:
    """Whether the count equals the figure, to the byte or within the tolerance that the entry states."""
    return math.isclose(counted(entry), entry["bytes"], rel_tol=entry.get("within", 0.0))


def ratios(entry: dict[str, Any]) -> tuple[float, float]:
    """Return (cache, FLOPs of a decode token) of a model over those of another at one context, both caches in BF16."""
    model, over = st.load_model(entry["model"]), st.load_model(entry["over"])
    context = entry["context"]
    return (
        float(cache_bytes(model, context)) / float(cache_bytes(over, context)),
        float(decode_flops_per_token(model, context)) / float(decode_flops_per_token(over, context)),
    )
