"""Cards: what there is to know about one model, system or engine, as plain data."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from steptime import catalog as catalogue
from steptime.architectures.hf import load_model
from steptime.blackboard import balance, drain_seconds, multiplies
from steptime.engine import CONSTANTS, Engine
from steptime.errors import InputError
from steptime.hardware import System, knobs, read_knob
from steptime.model import (
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
from steptime.planner import smallest_system

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
    systems = [catalogue.load_system(name) for name in catalogue.files("systems")]
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
    for name, path in catalogue.files("models", catalog).items():
        if like.casefold() in name.casefold():
            try:
                rows.append(model_row(load_model(str(path))))
            except InputError as problem:
                rows.append({"name": name, "problem": str(problem)})
    return rows


def system_row(system: System) -> dict[str, Any]:
    """Return one line of the list of systems."""
    hbm = system.chip.hbm
    return {
        "name": system.name,
        "chip": system.chip.name,
        "scale_up_size": system.scale_up.size,
        "chips": system.chips,
        "peak": dict(system.chip.peak),
        "hbm_capacity": hbm.capacity,
        "hbm_bandwidth": hbm.bandwidth,
        "scale_up_bandwidth": system.scale_up.link.bandwidth,
        "scale_out_bandwidth": system.scale_out.link.bandwidth,
        "rent": system.rent.typical,
    }


def scale_up_links(system: System) -> dict[str, Any]:
    """Return how many links the scale-up domain has, as {count, basis}.

    Where the links of a chip are known, each chip's count: on a switch every one has a cable of its own, between
    neighbours two chips share one. Else the cables of a rack; else one link a chip, which is a floor.
    """
    domain, rack = system.scale_up, system.rack
    if not math.isfinite(domain.size):
        return {"count": 0.0, "basis": "no scale-up domain"}
    if "links" in rack:
        shared = domain.link.topology in ("mesh", "torus", "ring")
        basis = f"{domain.size:,.0f} chips x {rack['links']:,.0f}" + (", each shared by two" if shared else " to switches")
        return {"count": domain.size * rack["links"] / (2 if shared else 1), "basis": basis}
    if "cables" in rack:
        return {"count": rack["cables"], "basis": "cables of a rack"}
    return {"count": float(domain.size), "basis": "at least one a chip; more is not known"}


LIMITS = {"power": ("power", "power_limit"), "weight": ("weight", "weight_limit"), "cables": ("cables", "cable_limit")}


def physical_limits(system: System) -> dict[str, Any]:
    """Return what a rack uses of each published limit, and which of them is nearest (None where none is known)."""
    used: dict[str, dict[str, Any]] = {}
    for name, (has, limit) in LIMITS.items():
        value, bound = system.rack.get(has), system.rack.get(limit)
        if value is not None or bound is not None:
            share = value / bound if value is not None and bound is not None else None
            used[name] = {"value": value, "limit": bound, "share": share}
    shares = {name: entry["share"] for name, entry in used.items() if entry["share"] is not None}
    return {"used": used, "nearest": max(shares, key=lambda name: shares[name]) if shares else None}


def system_card(system: System) -> dict[str, Any]:
    """Return everything that `steptime systems NAME` shows."""
    hbm = system.chip.hbm
    weights = {"fp4": 0.5, "fp8": 1.0, "int8": 1.0, "bf16": 2.0, "fp16": 2.0}
    balances = {
        kind: balance(multiplies(rate), weights[kind], hbm.bandwidth)
        for kind, rate in system.chip.peak.items()
        if kind in weights
    }
    return system_row(system) | {
        "title": system.title,
        "chip_title": system.chip.title,
        "vendor": system.chip.vendor,
        "year": system.chip.year,
        "power_w": system.chip.power_w,
        "balance": balances,
        "drain_seconds": drain_seconds(hbm.capacity, hbm.bandwidth),
        "memory": [
            asdict(tier) | {"drain_seconds": drain_seconds(tier.capacity, tier.bandwidth)}
            for tier in (*system.chip.memory, *system.tiers)
        ],
        "domains": [
            {
                "name": d.name,
                "kind": d.kind,
                "size": d.size,
                "topology": d.link.topology,
                "bandwidth": d.link.bandwidth,
                "latency": d.link.latency,
            }
            for d in system.domains
        ],
        "up_over_out": system.scale_up.link.bandwidth / system.scale_out.link.bandwidth,
        "scale_up_hbm": system.chips * hbm.capacity,
        "rent_range": asdict(system.rent),
        "rack": dict(system.rack),
        "scale_up_links": scale_up_links(system),
        "physical_limits": physical_limits(system),
        "knobs": {path: {"value": read_knob(system, path), "unit": unit} for path, unit in knobs(system).items()},
        "figures": {path: asdict(figure) for path, figure in system.figures.items()},
    }


def engine_card(engine: Engine) -> dict[str, Any]:
    """Return an engine's constants, and how far off it was on the runs that were left out of its fit."""
    constants = {name: getattr(engine, name) for name in CONSTANTS}
    known = {key: engine.fit[key] for key in ("runs", "vendors", "interval", "parameter_variance") if key in engine.fit}
    variances = zip(engine.fit.get("names", ()), engine.fit.get("covariance", ()), strict=True)
    known |= {"deviation": {name: math.sqrt(row[i]) for i, (name, row) in enumerate(variances)}} if known else {}
    return {"name": engine.name, "title": engine.title, "constants": constants, "fit": known, "source": dict(engine.source)}
