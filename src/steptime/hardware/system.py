"""System: chips, memory tiers, links and nested domains.

A `System` has equal chips in nested domains. The first domain (a node, a rack) is scale-up. The last domain has no size and
is scale-out. A system of one domain with a size is a box: a fixed number of chips without an outer network. Bandwidths are
per chip and direction; peak rates are dense. Any numeric field may be an array. Figures have bounds by unit (`checked`):
wide enough for all real chips, narrow enough that no product of figures overflows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from steptime.number_checks import LARGEST, MOST_CHIPS, Number, between, positive, whole_number
from steptime.result_base import Result, in_words, unit
from steptime.units import HOUR, Figure, show

# Lower bounds of positive figures. They are far below real chips, and reject a figure with a wrong prefix.
SMALLEST: Final = {"B": 1e6, "B/s": 1e6, "FLOP/s": 1e9, "W": 0.1, "kg": 1e-3}
# Upper bound of a figure that a sensitivity analysis has multiplied.
SCALED: Final = 1e3 * LARGEST
# Upper bounds of figures that may be 0: latencies and prices of memory.
LARGEST_BY_UNIT: Final = {"s": 100.0, "USD/B": 1e6}
# USD/s of a chip; they reject a rent that the user gave in USD/h.
CHEAPEST: Final = 0.01 / HOUR
DEAREST: Final = 1.0
# USD/J: 10 USD/kWh.
DEAREST_ENERGY: Final = 10 / 3.6e6


def checked(name: str, value: Number, unit: str, *, largest: float = LARGEST) -> Number:
    """Return a figure of a chip or system, after a check of its bounds.

    Args:
        name: Name of the figure, for the message.
        value: Value in base units, or an array.
        unit: Base unit of the figure.
        largest: Upper bound of rates and capacities.

    Returns:
        The value.

    Raises:
        RangeError: No chip can have this value; the message names the figure.

    >>> checked("chip.hbm.bandwidth", 8e12, "B/s")
    8000000000000.0
    >>> checked("rent", -1, "USD/s")
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: rent must be greater than 0 USD/s, not -1
    """
    if unit == "" and name.endswith("size"):
        return whole_number(name, value, maximum=MOST_CHIPS, unit="chip")
    if unit == "USD/s":
        return positive(name, value, unit, minimum=CHEAPEST, maximum=DEAREST)
    if unit in LARGEST_BY_UNIT:
        return between(name, value, 0.0, LARGEST_BY_UNIT[unit], unit)
    return positive(name, value, unit, minimum=SMALLEST.get(unit, 1e-9), maximum=largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """One level of a chip's memory: capacity [B], bandwidth [B/s], latency [s], price."""

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
    """A period of measurements on a chip, and the share of the fitted speed."""

    first: str = field(metadata=unit("", "first day, such as 2025-12-31"))
    last: str = field(metadata=unit("", "last day"))
    share: float = field(metadata=unit("", "share of the speed that the constants of engines predict"))
    launches: float = field(default=1.0, metadata=unit("", "factor on the fixed times of kernels and collectives"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the share and the period.

        Returns:
            A title and an empty table.
        """
        return f"Software {self.share:.2g}, {self.first} to {self.last}", {}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Chip(Result):
    """An accelerator package: dense peak rates by arithmetic, and its own memory.

    memory: Tiers on the package, fastest first.
    reached: Measured shares. "memory" and "compute": of the data sheet's bandwidth and bf16 rate, in plain
    matrix products.
    "capacity": of the label's bytes, as a driver counts them (labels mostly round down). "software": of the speed that the
    constants of engines predict, with the newest software. "launches": factor on the fixed times of kernels and collectives.
    software: The last two by period.
    generation: Chips that run the same kernels, such as "hopper"; "" where no kernel was timed.
    """

    name: str
    title: str = ""
    vendor: str = ""
    generation: str = ""
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
        """The memory of weights and KV cache: the largest tier on the package."""
        return self.memory[-1]

    @property
    def capacity(self) -> Number:
        """Bytes of memory as a driver counts them; engines use a share of them."""
        return self.hbm.capacity * self.reached.get("capacity", 1.0)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return memory and peak rates.

        Returns:
            A title and a table of texts.
        """
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
    """The link of a chip in a domain: bandwidth per direction, latency of one message.

    sums: Whether the switch adds up the data of an all-reduce (NVLink SHARP) faster than the chips do.
    """

    bandwidth: Number = field(metadata=unit("B/s", "bandwidth of a chip, one way"))
    latency: Number = field(default=0.0, metadata=unit("s", "latency of one message"))
    topology: str = "switch"
    sums: bool = False

    def __post_init__(self) -> None:
        checked("bandwidth of a link", self.bandwidth, "B/s", largest=SCALED)
        checked("latency of a link", self.latency, "s")


def slower_link(first: Link, second: Link) -> Link:
    """Return a link from one network to another: the lower bandwidth and the longer latency of both.

    Args:
        first: Link of a chip in the first network.
        second: Link of a chip in the second network.

    Returns:
        The link between them.

    >>> slower_link(Link(bandwidth=50e9, latency=5e-6), Link(bandwidth=100e9, latency=6e-6))
    Link(bandwidth=50000000000.0, latency=6e-06, topology='switch', sums=False)
    """
    return Link(bandwidth=min(first.bandwidth, second.bandwidth), latency=max(first.latency, second.latency))


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A set of `size` chips on one fabric; an unlimited outermost domain is infinite."""

    name: str
    kind: str
    size: Number
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """USD per chip-second: the typical quote of one kind, and the range of quotes.

    Kinds:

    - "owned": cost of ownership.
    - "contract": rent for a term.
    - "ondemand": rent on demand.
    - "assumed": the source does not state the kind.
    - "given": set by the user.
    - "": unknown rent.
    """

    low: Number = field(default=math.nan, metadata=unit("USD/s", "lowest quote of this kind in the past year, per chip"))
    typical: Number = field(default=math.nan, metadata=unit("USD/s", "quote that plans use, per chip"))
    high: Number = field(default=math.nan, metadata=unit("USD/s", "highest quote of this kind in the past year, per chip"))
    kind: str = field(default="", metadata=unit("", "owned, contract, ondemand, assumed or given; empty: unknown"))
    term: str = field(default="", metadata=unit("", "term of a contract, or billing of on-demand rent, if stated"))
    owner: str = field(default="", metadata=unit("", "owner in a cost of ownership: hyperscaler or neocloud"))
    date: str = field(default="", metadata=unit("", "date of the typical quote"))
    url: str = field(default="", metadata=unit("", "source of the typical quote"))
    grade: str = field(
        default="guess",
        metadata=unit("", "confidence: measured, vendor, reported, recalled, guess; given: set by the user"),
    )
    note: str = field(default="", metadata=unit("", "remark on the quote"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power of one chip, with a share of the machine around it by basis.

    Bases:

    - "all-in": with host, network and cooling.
    - "rack": a share of a rack, without cooling.
    - "whole": the machine, without cooling.
    - "chip": the limit of the chip, without a host.
    - "given": set by the user.
    - "": unknown power.
    """

    watts: Number = field(default=math.nan, metadata=unit("W", "power of one chip", key="power_w"))
    basis: str = field(default="", metadata=unit("", "all-in, rack, whole, chip or given; empty: unknown"))
    date: str = field(default="", metadata=unit("", "date of the figure"))
    url: str = field(default="", metadata=unit("", "source of the figure"))
    grade: str = field(default="guess", metadata=unit("", "confidence, with the grades of a rent"))
    note: str = field(default="", metadata=unit("", "remark on the figure"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class System(Result):
    """Chips in nested domains, with host memory tiers, rent and power.

    chips: The default deployment of `plan`.
    rent: The rent that plans use.
    rents: The known rent of each kind.
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
        """The outermost domain: any number of chips, or all chips of a box."""
        return self.domains[-1]

    @property
    def is_box(self) -> bool:
        """Whether the system is a single domain with a fixed number of chips."""
        return len(self.domains) == 1 and bool(np.all(np.isfinite(self.domains[0].size)))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return chip, links and rent.

        Returns:
            A title and a table of texts.
        """
        _, of_chip = self.chip.headline()
        return f"System {self.name}: {self.chips} x {self.chip.title or self.chip.name}", {
            **of_chip,
            "links": ", ".join(_joined(domain) for domain in self.domains),
            "rent": f"{_figure_in_words(self.rent.typical, 'USD/s')} per chip ({self.rent.kind}, {self.rent.date or 'no date'})"
            if np.any(np.isfinite(self.rent.typical))
            else "not known",
        }


def _joined(domain: Domain) -> str:
    """Describe the link of a domain."""
    chips = in_words(domain.size, lambda size: f" ({size:,.0f} chips)" if math.isfinite(size) else "")
    return f"{domain.kind} {_figure_in_words(domain.link.bandwidth, 'B/s')}{chips}"
