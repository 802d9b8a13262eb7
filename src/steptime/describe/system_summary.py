"""Summaries of systems and engines.

A system has balance, drain time, links, limits of its rack and sources; an engine has constants and a measured error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from steptime.blackboard.decode_latency import balance, drain_seconds, multiplies
from steptime.describe import make_card
from steptime.hardware.rental_prices import KINDS, kind_asked, rents_by_kind, with_rent
from steptime.hardware.system import Power, Rent, Software, System
from steptime.hardware.what_if import read_figure, settable
from steptime.number_checks import Number
from steptime.physics.engine import Engine, constant
from steptime.physics.engine_parameters import CONSTANTS
from steptime.physics.uncertainty import constants_covariance, uncertain_constants
from steptime.result_base import Result, Tabular, columns_by_key, in_words, unit
from steptime.units import Figure, show


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SystemRow(Result):
    """One row of the list of systems."""

    name: str = field(metadata=unit("", "name in the catalogue"))
    chip: str = field(metadata=unit("", "name of the chip"))
    scale_up_size: Number = field(metadata=unit("", "chips of a scale-up domain; null: no limit"))
    chips: int = field(metadata=unit("", "chips of its usual deployment"))
    peak: Mapping[str, Number] = field(metadata=unit("FLOP/s", "dense peak rates of a chip, by arithmetic"))
    hbm_capacity: Number = field(metadata=unit("B", "memory of a chip"))
    hbm_bandwidth: Number = field(metadata=unit("B/s", "memory bandwidth of a chip"))
    scale_up_bandwidth: Number = field(metadata=unit("B/s", "bandwidth of a chip inside a scale-up domain, one direction"))
    scale_out_bandwidth: Number = field(metadata=unit("B/s", "bandwidth of a chip between scale-up domains, one direction"))
    rent: Number = field(metadata=unit("USD/s", "typical rent of a chip; null: not known"))
    rent_kind: str = field(metadata=unit("", "owned, contract, ondemand, assumed or given; empty: rent not known"))
    rent_term: str = field(metadata=unit("", "term of a contract, or billing of on-demand rent"))
    rent_date: str = field(metadata=unit("", "date of the quote"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the chips and their memory.

        Returns:
            Title, and figures by name.
        """
        capacity = in_words(self.hbm_capacity, partial(show, unit="B"))
        bandwidth = in_words(self.hbm_bandwidth, partial(show, unit="B/s"))
        return f"{self.name}: {self.chips} x {self.chip}", {"memory": f"{capacity} at {bandwidth}"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SystemTable(Tabular):
    """The systems of the catalogue (`steptime systems`)."""

    SCHEMA: ClassVar[str] = "steptime.systems/2"

    systems: tuple[SystemRow, ...] = field(metadata=unit("", "one row per system"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of systems and the first five names.

        Returns:
            Title, and figures by name.
        """
        return f"{len(self.systems)} systems", {"first": ", ".join(row.name for row in self.systems[:5])}

    def columns(self) -> dict[str, Any]:
        """Return one row per system, with one column per arithmetic.

        Returns:
            Columns by name, each with one value per system.
        """
        # Systems differ in their arithmetics, so the mapping becomes one column per arithmetic of any system.
        table_columns = columns_by_key(SystemRow, self.systems)
        peaks = table_columns.pop("peak_flop_per_s", [])
        # A dict keeps the order of the first system.
        kinds = dict.fromkeys(kind for peak in peaks for kind in peak)
        return table_columns | {
            f"peak_{kind}_flop_per_s": [float(peak.get(kind, math.nan)) for peak in peaks] for kind in kinds
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRow:
    """One memory tier."""

    name: str = field(metadata=unit("", "name of the tier, such as hbm or host"))
    capacity: Number = field(metadata=unit("B", "share of one chip"))
    bandwidth: Number = field(metadata=unit("B/s", "bandwidth to the chip"))
    latency: Number = field(metadata=unit("s", "latency of a read"))
    usd_per_byte: Number = field(metadata=unit("USD/B", "price; 0: not known"))
    drain_seconds: Number = field(metadata=unit("s", "capacity over bandwidth", key="drain_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRow:
    """Chips on one fabric."""

    name: str = field(metadata=unit("", "name of the fabric"))
    kind: str = field(metadata=unit("", "scale-up, pod or scale-out"))
    size: Number = field(metadata=unit("", "chips; null: no limit"))
    topology: str = field(metadata=unit("", "switch, mesh, torus or ring"))
    bandwidth: Number = field(metadata=unit("B/s", "bandwidth of a chip, one direction"))
    latency: Number = field(metadata=unit("s", "latency of one message"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Number of links of the scale-up domain."""

    count: float = field(metadata=unit("", "number of links"))
    basis: str = field(metadata=unit("", "method of the count"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SystemCard(SystemRow):
    """The summary of a system (`steptime systems NAME`)."""

    SCHEMA: ClassVar[str] = "steptime.system/2"

    title: str = field(metadata=unit("", "description"))
    chip_title: str = field(metadata=unit("", "description of the chip"))
    vendor: str = field(metadata=unit("", "maker of the chip"))
    year: int = field(metadata=unit("", "year of the chip"))
    power_w: Number = field(metadata=unit("W", "power limit in the chip's data sheet; null: not known"))
    power: Power = field(metadata=unit("", "power of a chip with its share of the server, and the parts that it includes"))
    balance: Mapping[str, Number] = field(metadata=unit("", "multiplies per weight read from memory, by arithmetic"))
    drain_seconds: Number = field(metadata=unit("s", "capacity over bandwidth of the chip's memory", key="drain_s"))
    memory: tuple[TierRow, ...] = field(metadata=unit("", "memory tiers, fastest first"))
    domains: tuple[DomainRow, ...] = field(metadata=unit("", "nested domains, innermost first"))
    up_over_out: Number = field(metadata=unit("", "scale-up over scale-out bandwidth"))
    driver_memory: Number = field(
        metadata=unit("B", "memory of a chip as its driver counts it, which plans use", key="driver_hbm_bytes")
    )
    scale_up_hbm: Number = field(metadata=unit("B", "memory of the usual deployment"))
    rent_range: Rent = field(metadata=unit("", "rent of a chip in plans"))
    rents: tuple[Rent, ...] = field(metadata=unit("", "known rents of a chip, by kind"))
    rack: Mapping[str, Number] = field(
        metadata=unit("", "chips, power_w, weight_kg, cables, links of a chip, and limits; unknown figures are missing")
    )
    software: tuple[Software, ...] = field(
        metadata=unit(
            "", "shares of their usual speed that engines reached on the chip, and factors on fixed times, by date, if known"
        )
    )
    scale_up_links: Links = field(metadata=unit("", "links of the scale-up domain"))
    physical_limits: Mapping[str, Any] = field(
        metadata=unit(
            "", "used: value, limit, unit and share of power, weight and cables; nearest: the one closest to its limit"
        )
    )
    settable: Mapping[str, Any] = field(metadata=unit("", "value and unit of every figure that can be set, by path"))
    figures: Mapping[str, Figure] = field(
        metadata=unit("", "value, unit, text, url, date, grade and note of each figure, by path")
    )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the chip and its balance.

        Returns:
            Title, and figures by name.
        """
        balances = ", ".join(f"{kind} {in_words(value, '{:,.0f}'.format)}" for kind, value in self.balance.items())
        return f"Card of {self.name}: {self.chips} x {self.chip_title or self.chip}", {"balance": balances}


def system_row(system: System) -> SystemRow:
    """Return one row of the list of systems.

    Args:
        system: The system.

    Returns:
        Chips, rates, memory, links and rent.
    """
    return make_card(SystemRow, system, **_row_figures(system))


def _row_figures(system: System) -> dict[str, Any]:
    """Return the figures of the list of systems, which the card repeats."""
    chip, rent = system.chip, system.rent
    return {
        "chip": chip.name, "peak": dict(chip.peak), "hbm_capacity": chip.hbm.capacity, "hbm_bandwidth": chip.hbm.bandwidth,
        "scale_up_size": system.scale_up.size, "scale_up_bandwidth": system.scale_up.link.bandwidth,
        "scale_out_bandwidth": math.nan if system.is_box else system.scale_out.link.bandwidth,
        "rent": rent.typical, "rent_kind": rent.kind, "rent_term": rent.term, "rent_date": rent.date,
    }  # fmt: skip


def system_table(systems: Iterable[System], *, rent: str | None = None) -> SystemTable:
    """Return the rows of several systems.

    Args:
        systems: The systems.
        rent: Kind of rent, or rent of all systems as text with unit; None: each system's default.

    Returns:
        One row per system.
    """
    return SystemTable(systems=tuple(system_row(_rented(system, rent)) for system in systems))


def _rented(system: System, rent: str | None) -> System:
    """Return a system with a rent of one kind, or without a rent if it is not known."""
    # A fixed rent applies to every system; a kind of rent only where it is known.
    lacks = rent is not None and kind_asked(rent) in set(KINDS) - set(rents_by_kind(system))
    return system if rent is None else replace(system, rent=Rent()) if lacks else with_rent(system, rent)


def scale_up_links(system: System) -> dict[str, Any]:
    """Count the links of the scale-up domain.

    If the links of a chip are known, all chips count theirs. On a switch each link has its own cable; between
    neighbours two chips share a cable. Otherwise the cables of a rack count; otherwise one link per chip, which is a
    lower bound.

    Args:
        system: The system.

    Returns:
        Number and method: {count, basis}.
    """
    domain, rack = system.scale_up, system.rack
    if not math.isfinite(domain.size):
        return {"count": 0.0, "basis": "no scale-up domain"}
    if "links" in rack:
        # A cable between neighbours serves two chips; a cable to a switch serves one.
        shared = domain.link.topology in ("mesh", "torus", "ring")
        basis = f"{domain.size:,.0f} chips x {rack['links']:,.0f}" + (", each shared by two" if shared else " to switches")
        return {"count": domain.size * rack["links"] / (2 if shared else 1), "basis": basis}
    if "cables" in rack:
        return {"count": rack["cables"], "basis": "cables of a rack"}
    return {"count": float(domain.size), "basis": "at least one per chip; the exact number is not known"}


# JSON keys of figures of a rack, which differ from the names in the catalogue by their unit.
RACK_KEYS = {"power": "power_w", "weight": "weight_kg", "power_limit": "power_limit_w", "weight_limit": "weight_limit_kg"}
# Limit and unit of each limited figure of a rack.
LIMITS = {"power": ("power_limit", "W"), "weight": ("weight_limit", "kg"), "cables": ("cable_limit", "")}


def physical_limits(system: System) -> dict[str, Any]:
    """Return the used share of each published limit of a rack.

    Args:
        system: The system.

    Returns:
        Values, limits and shares by name (`used`), and the name closest to its limit (`nearest`; None: no limit is
        known).
    """
    used: dict[str, dict[str, Any]] = {}
    for name, (limit, symbol) in LIMITS.items():
        value, bound = system.rack.get(name), system.rack.get(limit)
        if value is not None or bound is not None:
            # A value without a limit, or a limit without a value, is shown without a share.
            share = value / bound if value is not None and bound is not None else None
            used[name] = {"value": value, "limit": bound, "unit": symbol, "share": share}
    shares = {name: entry["share"] for name, entry in used.items() if entry["share"] is not None}
    return {"used": used, "nearest": max(shares, key=shares.__getitem__, default=None)}


def system_card(system: System) -> SystemCard:
    """Return the summary of a system.

    Args:
        system: The system.

    Returns:
        Rates, memory, links, rents, limits and figures with sources.
    """
    chip, figures = system.chip, _row_figures(system)
    # Bytes of a weight by arithmetic, without the scales of block formats.
    weights = {"fp4": 0.5, "fp8": 1.0, "int8": 1.0, "bf16": 2.0, "fp16": 2.0}
    rates = {kind: multiplies(rate) for kind, rate in chip.peak.items() if kind in weights}
    return make_card(
        SystemCard,
        system,
        **figures,
        chip_title=chip.title,
        vendor=chip.vendor,
        year=chip.year,
        power_w=chip.power_w,
        balance={kind: balance(rate, weights[kind], chip.hbm.bandwidth) for kind, rate in rates.items()},
        drain_seconds=drain_seconds(chip.hbm.capacity, chip.hbm.bandwidth),
        memory=tuple(
            make_card(TierRow, tier, drain_seconds=drain_seconds(tier.capacity, tier.bandwidth))
            for tier in (*chip.memory, *system.tiers)
        ),
        domains=tuple(
            make_card(DomainRow, x, topology=x.link.topology, bandwidth=x.link.bandwidth, latency=x.link.latency)
            for x in system.domains
        ),
        up_over_out=figures["scale_up_bandwidth"] / figures["scale_out_bandwidth"],
        driver_memory=chip.capacity,
        scale_up_hbm=system.chips * chip.hbm.capacity,
        rent_range=system.rent,
        rack={RACK_KEYS.get(name, name): value for name, value in system.rack.items()},
        software=chip.software,
        scale_up_links=Links(**scale_up_links(system)),
        physical_limits=physical_limits(system),
        settable={path: {"value": read_figure(system, path), "unit": symbol} for path, symbol in settable(system).items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineCard(Result):
    """The summary of an engine (`steptime engines NAME`)."""

    SCHEMA: ClassVar[str] = "steptime.engine/2"

    name: str = field(metadata=unit("", "name in the catalogue"))
    title: str = field(metadata=unit("", "description"))
    constants: Mapping[str, float] = field(metadata=unit("", "all constants in seconds, bytes or shares; null: no limit"))
    fit: Mapping[str, Any] = field(
        metadata=unit(
            "",
            "fitted runs, vendors of their chips, interval and parameter_variance by quantity and regime, and deviation of "
            "fitted constants (one standard deviation, as a share)",
        )
    )
    source: Mapping[str, Any] = field(metadata=unit("", "source of the constants: url, date, grade, note"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the title and the number of fitted runs.

        Returns:
            Title, and figures by name.
        """
        runs = self.fit.get("runs")
        return f"Card of engine {self.name}", {"is": self.title[:120], "fitted to": f"{runs:,} runs" if runs else "nothing"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineTable(Tabular):
    """The engines of the catalogue, one row per engine and one column per constant."""

    SCHEMA: ClassVar[str] = "steptime.engines/2"

    engines: tuple[EngineCard, ...] = field(metadata=unit("", "one card per engine"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of engines and their names.

        Returns:
            Title, and figures by name.
        """
        return f"{len(self.engines)} engines", {"names": ", ".join(card.name for card in self.engines)}

    def columns(self) -> dict[str, Any]:
        """Return one row per engine.

        Returns:
            Columns by name, each with one value per engine.
        """
        names = {name: [getattr(card, name) for card in self.engines] for name in ("name", "title")}
        return names | {name: [card.constants[name] for card in self.engines] for name in CONSTANTS}


def engine_card(engine: Engine) -> EngineCard:
    """Summarize an engine: constants, and errors on runs left out of its fit.

    Args:
        engine: The engine.

    Returns:
        Constants, fit and source.
    """
    constants = {name: float(constant(engine, name)) for name in CONSTANTS}
    # Engines without a fit, such as the ideal one, have none of these keys.
    fit = {key: engine.fit[key] for key in ("runs", "vendors", "interval", "parameter_variance") if key in engine.fit}
    # The diagonal of the covariance holds the variances.
    variances = zip(uncertain_constants(engine), np.diagonal(constants_covariance(engine)).tolist(), strict=True)
    fit |= {"deviation": {name: math.sqrt(variance) for name, variance in variances}} if fit else {}
    return make_card(EngineCard, engine, constants=constants, fit=fit)


def engine_table(engines: Iterable[Engine]) -> EngineTable:
    """Summarize several engines.

    Args:
        engines: The engines.

    Returns:
        One card per engine.
    """
    return EngineTable(engines=tuple(map(engine_card, engines)))
