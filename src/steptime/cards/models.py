"""What there is to know about a model: its parts, formats, cache and arithmetic."""

from __future__ import annotations

import math
from typing import Any

from steptime.catalog.files import files
from steptime.catalog.loading import load_system
from steptime.errors import InputError
from steptime.models.loading import load_model
from steptime.models.model import (
    Model,
    active_parameters,
    cache_bytes,
    cache_bytes_read,
    decode_flops_per_token,
    draft_parameters,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    prefill_flops,
    state_bytes,
    total_parameters,
    weight_bytes,
)
from steptime.planning.planner import smallest_system

CONTEXTS = (1024, 8192, 32768, 131072, 1048576)


def parts(model: Model) -> dict[str, float]:
    """Return parameters by part of the model: attention, experts, shared experts, embedding, head, ..."""
    found: dict[str, float] = {}
    for layer, n in model.layers:
        for op in layer.ops:
            found[op.term] = found.get(op.term, 0.0) + n * op.total_weights
    for op in model.stem:
        found[op.term] = found.get(op.term, 0.0) + op.total_weights
    return {name: value for name, value in found.items() if value}


def stored_formats(model: Model) -> dict[str, float]:
    """Return bytes of weights by number format."""
    found: dict[str, float] = {}
    for op, n in [(op, n) for layer, n in model.layers for op in layer.ops] + [(op, 1) for op in model.stem]:
        found[op.format.name] = found.get(op.format.name, 0.0) + n * op.total_weights * op.format.bytes
    return {name: value for name, value in found.items() if value}


def context_of_equal_reads(model: Model) -> float:
    """Context at which one sequence's cache is as many bytes to read as all weights, or infinity if it never is."""
    need = weight_bytes(model)
    low, high = 1.0, 1e12
    if float(cache_bytes_read(model, high)) < need:
        return math.inf
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if float(cache_bytes_read(model, middle)) < need else (low, middle)
    return round(high)


def model_card(model: Model, *, context: int) -> dict[str, Any]:
    """Return everything that `steptime models NAME` shows."""
    total, active = total_parameters(model), active_parameters(model)
    systems = [load_system(name) for name in files("systems")]
    holds = smallest_system(model, systems)
    return {
        "name": model.name,
        "family": model.family,
        "layers": [
            {"kind": layer.name, "count": n, "parameters": sum(op.total_weights for op in layer.ops)}
            for layer, n in model.layers
        ],
        "width": model.width,
        "heads": model.heads,
        "vocabulary": model.vocabulary,
        "max_context": model.max_context,
        "parameters": {
            "total": total,
            "active": active,
            "active_share": active / total,
            "draft": draft_parameters(model),
        },
        "published": dict(model.published),
        "counted_over_published": {
            kind: counted / model.published[kind]
            for kind, counted in (("total", total), ("active", active))
            if model.published.get(kind)
        },
        "parts": parts(model),
        "weight_bytes": weight_bytes(model),
        "weight_bytes_by_format": stored_formats(model),
        "kv_format": model.kv_format,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "kv_bytes_per_token_growing": growing_kv_bytes_per_token(model),
        "state_bytes_per_sequence": state_bytes(model),
        "context": context,
        "cache_bytes_at_context": float(cache_bytes(model, context)),
        "cache_bytes": [{"context": c, "bytes": float(cache_bytes(model, c))} for c in _contexts(model, context)],
        "context_of_equal_reads": context_of_equal_reads(model),
        "flops_per_token": [
            {
                "context": c,
                "decode": float(decode_flops_per_token(model, c)),
                "prefill": float(prefill_flops(model, c)) / c,
            }
            for c in _contexts(model, context)
        ],
        "smallest_system": None if holds is None else {"name": holds.name, "chips": holds.chips, "title": holds.title},
        "source": dict(model.source),
        "notes": list(model.notes),
    }


def _contexts(model: Model, context: int) -> list[int]:
    """Return the contexts that a card shows, up to the longest that the model takes."""
    return [c for c in sorted({*CONTEXTS, context}) if c <= max(model.max_context, context)]


def comparison_row(model: Model, *, context: int) -> dict[str, Any]:
    """Return one line of the comparison of models."""
    total, active = total_parameters(model), active_parameters(model)
    return {
        "name": model.name,
        "family": model.family,
        "total_parameters": total,
        "active_parameters": active,
        "active_share": active / total,
        "weight_bytes": weight_bytes(model),
        "kv_format": model.kv_format,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "kv_bytes_per_token_growing": growing_kv_bytes_per_token(model),
        "state_bytes_per_sequence": state_bytes(model),
        "context": context,
        "cache_bytes_at_context": float(cache_bytes(model, context)),
        "decode_flops_per_token": float(decode_flops_per_token(model, context)),
        "context_of_equal_reads": context_of_equal_reads(model),
        "max_context": model.max_context,
    }


def model_row(model: Model) -> dict[str, Any]:
    """Return one line of the list of models."""
    return {
        "name": model.name,
        "family": model.family,
        "total_parameters": total_parameters(model),
        "active_parameters": active_parameters(model),
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "weight_bytes": weight_bytes(model),
        "grade": model.source.get("grade", ""),
    }


def model_rows(like: str = "", catalog: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of all models whose name contains `like`; one that cannot be read is listed with the reason."""
    rows = []
    for name, path in files("models", catalog).items():
        if like.casefold() in name.casefold():
            try:
                rows.append(model_row(load_model(str(path))))
            except InputError as problem:
                rows.append({"name": name, "problem": str(problem)})
    return rows
