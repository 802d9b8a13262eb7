"""What there is to know about a system: balance, drain time, links, limits of a rack, and its figures with their sources."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from steptime.blackboard.machine import balance, drain_seconds, multiplies
from steptime.machines.system import System
from steptime.machines.what_if import read_figure, settable


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
        "scale_out_bandwidth": math.nan if system.is_box else system.scale_out.link.bandwidth,
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
        "up_over_out": math.nan if system.is_box else system.scale_up.link.bandwidth / system.scale_out.link.bandwidth,
        "scale_up_hbm": system.chips * hbm.capacity,
        "rent_range": asdict(system.rent),
        "rack": dict(system.rack),
        "scale_up_links": scale_up_links(system),
        "physical_limits": physical_limits(system),
        "settable": {path: {"value": read_figure(system, path), "unit": unit} for path, unit in settable(system).items()},
        "figures": {path: asdict(figure) for path, figure in system.figures.items()},
    }
