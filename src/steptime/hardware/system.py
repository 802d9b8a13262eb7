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

from steptime.hardware.figure_bounds import SCALED, checked
from steptime.number_checks import Number
from steptime.provenance import Figure
from steptime.result_base import Result, in_words, unit
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """One level of memory of a chip: capacity [B], bandwidth [B/s], latency [s], price [USD/B]."""

    name: str = field(metadata=unit("", "name, such as hbm or host"))
    capacity: Number = field(metadata=unit("B", "capacity"))
    bandwidth: Number = field(metadata=unit("B/s", "bandwidth to the chip"))
    latency: Number = field(default=0.0, metadata=unit("s", "latency of a read"))
    usd_per_byte: Number = field(default=0.0, metadata=unit("USD/B", "price"))

    def __post_init__(self) -> None:
        checked(f"{self.name}.capacity", self.capacity, "B", largest=SCALED)
        checked(f"{self.name}.bandwidth", self.bandwidth, "B/s", largest=SCALED)
        checked(f"{self.name}.latency", self.latency, "s")
        checked(f"{self.name}.usd_per_byte", self.usd_per_byte, "USD/B")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Software(Result):
    """Days on which engines were measured on a chip, and the share of the speed of their constants that they reached."""

    first: str = field(metadata=unit("", "first day, such as 2025-12-31"))
    last: str = field(metadata=unit("", "last day"))
    share: float = field(metadata=unit("", "share of the speed that the engines' constants tell"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the share and the days."""
        return f"Software {self.share:.2g}, {self.first} to {self.last}", {}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Chip(Result):
    """An accelerator package: dense peak rates [FLOP/s] by arithmetic, and its own memory, fastest tier first.

    reached: share of its data sheet's "memory" bandwidth and of its bf16 "compute" rate that plain matrix products reach, of
    its "capacity" that a driver counts (labels round, mostly down), and of the speed that engines would have by their
    constants, what their "software" for this chip reaches, the newest of `software`, by the day.
    """

    name: str
    title: str = ""
    vendor: str = ""
    year: int = 0
    peak: Mapping[str, Number] = field(metadata=unit("FLOP/s", "dense peak rates by arithmetic"))
    memory: tuple[MemoryTier, ...]
    power_w: Number = field(default=math.nan, metadata=unit("W", "power of the package"))
    reached: Mapping[str, Number] = field(default_factory=dict)
    software: tuple[Software, ...] = ()

    def __post_init__(self) -> None:
        for kind, rate in self.peak.items():
            checked(f"{self.name}.peak.{kind}", rate, "FLOP/s", largest=SCALED)

    @property
    def hbm(self) -> MemoryTier:
        """The memory that holds weights and KV cache: the largest tier on the package."""
        return self.memory[-1]

    @property
    def capacity(self) -> Number:
        """Bytes of that memory as a driver counts them, of which engines take a share: labels round, mostly down."""
        return self.hbm.capacity * self.reached.get("capacity", 1.0)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its memory and its peak rates."""
        hbm, usual = self.hbm, [kind for kind in ("bf16", "fp8", "fp4") if kind in self.peak]
        about = ", ".join(filter(None, (self.vendor, str(self.year or ""))))
        return f"Chip {self.title or self.name}" + (f" ({about})" if about else ""), {
            "memory": f"{_figure_in_words(hbm.capacity, 'B')} at {_figure_in_words(hbm.bandwidth, 'B/s')}",
            "peak": ", ".join(f"{kind} {_figure_in_words(self.peak[kind], 'FLOP/s')}" for kind in usual or list(self.peak)[:3]),
        }


def _figure_in_words(values: Number, figure_unit: str) -> str:
    return in_words(values, lambda value: show(value, figure_unit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the chips of a domain: bandwidth [B/s] per chip and direction, latency [s] of one message."""

    bandwidth: Number = field(metadata=unit("B/s", "bandwidth of a chip, one way"))
    latency: Number = field(default=0.0, metadata=unit("s", "latency of one message"))
    topology: str = "switch"

    def __post_init__(self) -> None:
        checked("bandwidth of a link", self.bandwidth, "B/s", largest=SCALED)
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
    """USD per chip-second: the typical quote of one kind, and the range of dated quotes of that kind.

    kind: "owned" (cost of ownership), "contract" (for a term), "ondemand", "assumed" (the source does not say which), or
    "given" by who asks; "" where no rent is known.
    """

    low: Number = field(default=math.nan, metadata=unit("USD/s", "lowest quote of its kind in the past year, of a chip"))
    typical: Number = field(default=math.nan, metadata=unit("USD/s", "the quote that plans reckon with, of a chip"))
    high: Number = field(default=math.nan, metadata=unit("USD/s", "highest quote of its kind in the past year, of a chip"))
    kind: str = field(default="", metadata=unit("", "owned, contract, ondemand, assumed or given; empty: no rent is known"))
    term: str = field(default="", metadata=unit("", "for how long a contract runs, or how on demand is billed, where told"))
    owner: str = field(default="", metadata=unit("", "whose cost of ownership it is: hyperscaler or neocloud"))
    date: str = field(default="", metadata=unit("", "of the typical quote"))
    url: str = field(default="", metadata=unit("", "where the typical quote stands"))
    grade: str = field(
        default="guess",
        metadata=unit("", "how far to trust it: measured, vendor, reported, recalled, guess; given by who asks"),
    )
    note: str = field(default="", metadata=unit("", "what to mind"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What a chip draws with its share of what stands around it, so far as the basis counts it in.

    basis: "all-in" (host, network and cooling counted), "rack" (its share of a rack, without cooling), "whole" (the machine
    around it, without cooling), "chip" (its limit, without a host), "given" by who asks; "" where nothing is known.
    """

    watts: Number = field(default=math.nan, metadata=unit("W", "of one chip", key="power_w"))
    basis: str = field(default="", metadata=unit("", "all-in, rack, whole, chip or given; empty: no power is known"))
    date: str = field(default="", metadata=unit("", "of the figure"))
    url: str = field(default="", metadata=unit("", "where it stands"))
    grade: str = field(default="guess", metadata=unit("", "how far to trust it, as of a rent"))
    note: str = field(default="", metadata=unit("", "what to mind"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class System(Result):
    """Chips in nested domains, with host tiers, rent and power; `chips` is the deployment that `plan` assumes by default.

    rents: what is known of each kind of rent, of which `rent` is the one that plans reckon with.
    """

    name: str
    title: str = ""
    chip: Chip
    chips: int
    domains: tuple[Domain, ...]
    tiers: tuple[MemoryTier, ...] = ()
    rent: Rent
    rents: tuple[Rent, ...] = ()
    power: Power = Power()
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

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its chip, its links and its rent."""
        _, of_chip = self.chip.headline()
        return f"System {self.name}: {self.chips} x {self.chip.title or self.chip.name}", {
            **of_chip,
            "links": ", ".join(_joined(domain) for domain in self.domains),
            "rent": f"{_figure_in_words(self.rent.typical, 'USD/s')} a chip ({self.rent.kind}, {self.rent.date or 'no date'})"
            if np.any(np.isfinite(self.rent.typical))
            else "not known",
        }


def _joined(domain: Domain) -> str:
    """Write what joins the chips of a domain."""
    chips = in_words(domain.size, lambda size: f" ({size:,.0f} chips)" if math.isfinite(size) else "")
    return f"{domain.kind} {_figure_in_words(domain.link.bandwidth, 'B/s')}{chips}"
