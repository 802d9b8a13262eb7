"""Machines: chips, memory tiers, links, nested domains, and systems built of them.

A `System` is any number of equal chips in nested domains. The first domain (a node, a rack) is scale-up, the last has no
size and is scale-out. A system of one domain with a size is a box: so many chips, and no network beyond them. Bandwidths are
per chip and per direction; peak rates are dense. Any numeric field may be an array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steptime.machines.figures import SCALED, checked
from steptime.numbers import Number
from steptime.sourced import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """One level of memory of a chip: capacity [B], bandwidth [B/s], latency [s], price [USD/B]."""

    name: str
    capacity: Number
    bandwidth: Number
    latency: Number = 0.0
    usd_per_byte: Number = 0.0

    def __post_init__(self) -> None:
        checked(f"{self.name}.capacity", self.capacity, "B", most=SCALED)
        checked(f"{self.name}.bandwidth", self.bandwidth, "B/s", most=SCALED)
        checked(f"{self.name}.latency", self.latency, "s")
        checked(f"{self.name}.usd_per_byte", self.usd_per_byte, "USD/B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """An accelerator package: dense peak rates [FLOP/s] by arithmetic, and its own memory, fastest tier first.

    reached: share of its data sheet's "memory" bandwidth and of its bf16 "compute" rate that plain matrix products reach.
    """

    name: str
    title: str = ""
    vendor: str = ""
    year: int = 0
    peak: Mapping[str, Number]
    memory: tuple[MemoryTier, ...]
    power_w: Number = math.nan
    reached: Mapping[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, rate in self.peak.items():
            checked(f"{self.name}.peak.{kind}", rate, "FLOP/s", most=SCALED)

    @property
    def hbm(self) -> MemoryTier:
        """The memory that holds weights and KV cache: the largest tier on the package."""
        return self.memory[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the chips of a domain: bandwidth [B/s] per chip and direction, latency [s] of one message."""

    bandwidth: Number
    latency: Number = 0.0
    topology: str = "switch"

    def __post_init__(self) -> None:
        checked("bandwidth of a link", self.bandwidth, "B/s", most=SCALED)
        checked("latency of a link", self.latency, "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A set of `size` chips that one fabric joins; an outermost one without end has size infinity."""

    name: str
    kind: str
    size: Number
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """USD per chip-second: the range of dated quotes and the typical one."""

    low: Number
    typical: Number
    high: Number
    date: str = ""
    url: str = ""
    grade: str = "guess"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Chips in nested domains, with host tiers and rent; `chips` is the deployment that `plan` assumes by default."""

    name: str
    title: str = ""
    chip: Chip
    chips: int
    domains: tuple[Domain, ...]
    tiers: tuple[MemoryTier, ...] = ()
    rent: Rent
    rack: Mapping[str, Number] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def scale_up(self) -> Domain:
        """The innermost domain."""
        return self.domains[0]

    @property
    def scale_out(self) -> Domain:
        """The outermost domain: of any number of chips, or the whole of a box."""
        return self.domains[-1]

    @property
    def is_box(self) -> bool:
        """Whether the chips of one domain are all there are."""
        return len(self.domains) == 1 and bool(np.all(np.isfinite(self.domains[0].size)))
