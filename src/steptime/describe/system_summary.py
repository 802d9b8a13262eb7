"""What there is to know about a system: balance, drain time, links, limits of a rack, and its figures with their sources."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

from steptime.blackboard.ideal_machine import balance, drain_seconds, multiplies
from steptime.hardware.rental_prices import KINDS, kind_asked, rents_by_kind, with_rent
from steptime.hardware.system import Domain, MemoryTier, Power, Rent, Software, System
from steptime.hardware.what_if import read_figure, settable
from steptime.number_checks import Number
from steptime.provenance import Figure
from steptime.result_base import Result, Tabular, columns_by_key, in_words, unit
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SystemRow(Result):
    """One line of the list of systems."""

    name: str = field(metadata=unit("", "name in the catalogue"))
    chip: str = field(metadata=unit("", "name of its chip"))
    scale_up_size: Number = field(metadata=unit("", "chips of a scale-up domain; null: no bound"))
    chips: int = field(metadata=unit("", "of its usual deployment"))
    peak: Mapping[str, Number] = field(metadata=unit("FLOP/s", "dense rates of a chip by arithmetic"))
    hbm_capacity: Number = field(metadata=unit("B", "memory of a chip"))
    hbm_bandwidth: Number = field(metadata=unit("B/s", "its bandwidth"))
    scale_up_bandwidth: Number = field(metadata=unit("B/s", "of a chip inside a domain, one way"))
    scale_out_bandwidth: Number = field(metadata=unit("B/s", "of a chip between domains, one way"))
    rent: Number = field(metadata=unit("USD/s", "typical rent of a chip; null: not known"))
    rent_kind: str = field(metadata=unit("", "owned, contract, ondemand, assumed or given; empty: no rent is known"))
    rent_term: str = field(metadata=unit("", "of a contract, or how on demand is billed"))
    rent_date: str = field(metadata=unit("", "of the quote"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its chips and their memory."""
        capacity = in_words(self.hbm_capacity, partial(show, unit="B"))
        bandwidth = in_words(self.hbm_bandwidth, partial(show, unit="B/s"))
        return f"{self.name}: {self.chips} x {self.chip}", {"memory": f"{capacity} at {bandwidth}"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SystemTable(Tabular):
    """The systems of the catalogue: what `steptime systems` lists."""

    SCHEMA: ClassVar[str] = "steptime.systems/2"

    systems: tuple[SystemRow, ...] = field(metadata=unit("", "one line each"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many there are, and the first of them."""
        return f"{len(self.systems)} systems", {"first": ", ".join(row.name for row in self.systems[:5])}

    def columns(self) -> dict[str, Any]:
        """Return a row for each system, and a column for each arithmetic."""
        table_columns = columns_by_key(SystemRow, self.systems)
        peaks = table_columns.pop("peak_flop_per_s", [])
        kinds = dict.fromkeys(kind for peak in peaks for kind in peak)
        return table_columns | {
            f"peak_{kind}_flop_per_s": [float(peak.get(kind, math.nan)) for peak in peaks] for kind in kinds
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRow:
    """One level of memory."""

    name: str = field(metadata=unit("", "such as hbm or host"))
    capacity: Number = field(metadata=unit("B", "of a chip's share"))
    bandwidth: Number = field(metadata=unit("B/s", "to the chip"))
    latency: Number = field(metadata=unit("s", "of a read"))
    usd_per_byte: Number = field(metadata=unit("USD/B", "price; 0: not known"))
    drain_seconds: Number = field(metadata=unit("s", "capacity over bandwidth", key="drain_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRow:
    """Chips that one fabric joins."""

    name: str = field(metadata=unit("", "of the fabric"))
    kind: str = field(metadata=unit("", "scale-up, pod or scale-out"))
    size: Number = field(metadata=unit("", "chips; null: no bound"))
    topology: str = field(metadata=unit("", "switch, mesh, torus or ring"))
    bandwidth: Number = field(metadata=unit("B/s", "of a chip, one way"))
    latency: Number = field(metadata=unit("s", "of one message"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How many links the scale-up domain has."""

    count: float = field(metadata=unit("", "links"))
    basis: str = field(metadata=unit("", "how they are counted"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SystemCard(SystemRow):
    """Everything that `steptime systems NAME` shows: its line in the list, and more."""

    SCHEMA: ClassVar[str] = "steptime.system/2"

    title: str = field(metadata=unit("", "what it is"))
    chip_title: str = field(metadata=unit("", "what its chip is"))
    vendor: str = field(metadata=unit("", "maker of the chip"))
    year: int = field(metadata=unit("", "of the chip"))
    power_w: Number = field(metadata=unit("W", "limit of the chip's data sheet; null: not known"))
    power: Power = field(metadata=unit("", "of a chip with what stands around it, and what that counts in"))
    balance: Mapping[str, Number] = field(metadata=unit("", "multiplies per weight read, by arithmetic"))
    drain_seconds: Number = field(metadata=unit("s", "capacity over bandwidth of the chip's memory", key="drain_s"))
    memory: tuple[TierRow, ...] = field(metadata=unit("", "levels of memory, fastest first"))
    domains: tuple[DomainRow, ...] = field(metadata=unit("", "nested domains, innermost first"))
    up_over_out: Number = field(metadata=unit("", "scale-up over scale-out bandwidth"))
    scale_up_hbm: Number = field(metadata=unit("B", "memory of the usual deployment"))
    rent_range: Rent = field(metadata=unit("", "the rent that plans reckon with, of a chip"))
    rents: tuple[Rent, ...] = field(metadata=unit("", "what is known of each kind of rent"))
    rack: Mapping[str, Number] = field(
        metadata=unit("", "chips, power_w, weight_kg, cables, links of a chip, and limits; what is not known is not there")
    )
    software: tuple[Software, ...] = field(metadata=unit("", "what engines reached on the chip, by the day, where it is known"))
    scale_up_links: Links = field(metadata=unit("", "of the scale-up domain"))
    physical_limits: Mapping[str, Any] = field(
        metadata=unit("", "used: value, limit, unit and share of power, weight and cables; nearest: the one nearest its limit")
    )
    settable: Mapping[str, Any] = field(metadata=unit("", "value and unit of every figure that --set changes, by path"))
    figures: Mapping[str, Figure] = field(metadata=unit("", "value, unit, text, url, date, grade, note of each, by path"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its chip and its balance."""
        balances = ", ".join(f"{kind} {in_words(value, '{:,.0f}'.format)}" for kind, value in self.balance.items())
        return f"Card of {self.name}: {self.chips} x {self.chip_title or self.chip}", {"balance": balances}


def system_row(system: System) -> SystemRow:
    """Return one line of the list of systems."""
    hbm = system.chip.hbm
    return SystemRow(
        name=system.name,
        chip=system.chip.name,
        scale_up_size=system.scale_up.size,
        chips=system.chips,
        peak=dict(system.chip.peak),
        hbm_capacity=hbm.capacity,
        hbm_bandwidth=hbm.bandwidth,
        scale_up_bandwidth=system.scale_up.link.bandwidth,
        scale_out_bandwidth=math.nan if system.is_box else system.scale_out.link.bandwidth,
        rent=system.rent.typical,
        rent_kind=system.rent.kind,
        rent_term=system.rent.term,
        rent_date=system.rent.date,
    )


def system_table(systems: Iterable[System], *, rent: str | None = None) -> SystemTable:
    """Return the lines of several systems, with rents of one kind where one is asked for, or all with one rent."""
    return SystemTable(systems=tuple(system_row(_rented(system, rent)) for system in systems))


def _rented(system: System, rent: str | None) -> System:
    """Return a system with a rent of the kind asked for, or none where it has none of that kind."""
    lacks = rent is not None and kind_asked(rent) in set(KINDS) - set(rents_by_kind(system))
    return system if rent is None else replace(system, rent=Rent()) if lacks else with_rent(system, rent)


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


UNITS = {"power": "W", "weight": "kg", "cables": ""}
RACK_KEYS = {"power": "power_w", "weight": "weight_kg", "power_limit": "power_limit_w", "weight_limit": "weight_limit_kg"}
LIMITS = {"power": ("power", "power_limit"), "weight": ("weight", "weight_limit"), "cables": ("cables", "cable_limit")}


def physical_limits(system: System) -> dict[str, Any]:
    """Return what a rack uses of each published limit, and which of them is nearest (None where none is known)."""
    used: dict[str, dict[str, Any]] = {}
    for name, (has, limit) in LIMITS.items():
        value, bound = system.rack.get(has), system.rack.get(limit)
        if value is not None or bound is not None:
            share = value / bound if value is not None and bound is not None else None
            used[name] = {"value": value, "limit": bound, "unit": UNITS[name], "share": share}
    shares = {name: entry["share"] for name, entry in used.items() if entry["share"] is not None}
    return {"used": used, "nearest": max(shares, key=lambda name: shares[name]) if shares else None}


def system_card(system: System) -> SystemCard:
    """Return everything that `steptime systems NAME` shows."""
    hbm = system.chip.hbm
    weights = {"fp4": 0.5, "fp8": 1.0, "int8": 1.0, "bf16": 2.0, "fp16": 2.0}
    line = system_row(system)
    return SystemCard(
        **{f.name: getattr(line, f.name) for f in fields(line)},
        title=system.title,
        chip_title=system.chip.title,
        vendor=system.chip.vendor,
        year=system.chip.year,
        power_w=system.chip.power_w,
        power=system.power,
        balance={
            kind: balance(multiplies(rate), weights[kind], hbm.bandwidth)
            for kind, rate in system.chip.peak.items()
            if kind in weights
        },
        drain_seconds=drain_seconds(hbm.capacity, hbm.bandwidth),
        memory=tuple(map(_tier_row, (*system.chip.memory, *system.tiers))),
        domains=tuple(map(_domain_row, system.domains)),
        up_over_out=math.nan if system.is_box else system.scale_up.link.bandwidth / system.scale_out.link.bandwidth,
        scale_up_hbm=system.chips * hbm.capacity,
        rent_range=system.rent,
        rents=system.rents,
        rack={RACK_KEYS.get(name, name): value for name, value in system.rack.items()},
        software=system.chip.software,
        scale_up_links=Links(**scale_up_links(system)),
        physical_limits=physical_limits(system),
        settable={path: {"value": read_figure(system, path), "unit": symbol} for path, symbol in settable(system).items()},
        figures=dict(system.figures),
    )


def _tier_row(tier: MemoryTier) -> TierRow:
    return TierRow(
        name=tier.name,
        capacity=tier.capacity,
        bandwidth=tier.bandwidth,
        latency=tier.latency,
        usd_per_byte=tier.usd_per_byte,
        drain_seconds=drain_seconds(tier.capacity, tier.bandwidth),
    )


def _domain_row(domain: Domain) -> DomainRow:
    return DomainRow(
        name=domain.name,
        kind=domain.kind,
        size=domain.size,
        topology=domain.link.topology,
        bandwidth=domain.link.bandwidth,
        latency=domain.link.latency,
    )
