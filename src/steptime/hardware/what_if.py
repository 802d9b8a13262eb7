"""What if a figure of a machine were another: the paths that can be set, and systems with changed figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from steptime.errors import RangeError, UnitError, UnknownName, expect, short_repr
from steptime.hardware.figure_bounds import checked
from steptime.hardware.system import Domain, Link, MemoryTier, Power, Rent, System
from steptime.number_checks import Number
from steptime.provenance import USER_SET, Figure
from steptime.result_base import in_words
from steptime.units import parse, show

Thing = TypeVar("Thing", MemoryTier, Link)

COUNTED = "chip.hbm.capacity"
TIER_UNITS = {"capacity": "B", "bandwidth": "B/s", "latency": "s", "usd_per_byte": "USD/B"}


DOMAIN_UNITS = {"bandwidth": "B/s", "latency": "s", "size": ""}


def settable(system: System) -> dict[str, str]:
    """Return every figure of `system` that `vary` can change, with its unit, in the order of the data sheet."""
    units = {f"chip.peak.{kind}": "FLOP/s" for kind in system.chip.peak}
    units |= {f"chip.{tier.name}.{key}": unit for tier in system.chip.memory for key, unit in TIER_UNITS.items()}
    units["chip.power"] = "W"
    for domain in system.domains:
        for key, unit in DOMAIN_UNITS.items():
            units[f"{domain.kind.replace('-', '_')}.{key}"] = unit
    units |= {f"{tier.name}.{key}": unit for tier in system.tiers for key, unit in TIER_UNITS.items()}
    units["power"] = "W"
    units["rent"] = "USD/s"
    return units


def read_figure(system: System, path: str) -> Number:
    """Return the value of one settable figure, in base units.

    >>> import math
    >>> from steptime.hardware.system import Chip, Domain, Link, MemoryTier, Rent, System
    >>> chip = Chip(name="toy", peak={"bf16": 1e15}, memory=(MemoryTier(name="hbm", capacity=80e9, bandwidth=3e12),))
    >>> toy = System(name="toy", chip=chip, chips=1, rent=Rent(low=0, typical=0, high=0),
    ...              domains=(Domain(name="out", kind="scale-out", size=math.inf, link=Link(bandwidth=1e9)),))
    >>> read_figure(vary(toy, {"chip.hbm.bandwidth": 6e12}), "chip.hbm.bandwidth")
    6000000000000.0
    """
    _check_path(system, path)
    head, _, key = path.rpartition(".")
    if path == "rent":
        return system.rent.typical
    if path == "power":
        return system.power.watts
    if path == "chip.power":
        return system.chip.power_w
    if head == "chip.peak":
        return system.chip.peak[key]
    for tier in (*system.chip.memory, *system.tiers):
        if head in (f"chip.{tier.name}", tier.name):
            figure: Number = getattr(tier, key)
            return figure
    domain = next(d for d in system.domains if d.kind.replace("-", "_") == head)
    of_domain: Number = domain.size if key == "size" else getattr(domain.link, key)
    return of_domain


def in_force(system: System, path: str) -> Number:
    """Return the value of one settable figure that `vary` takes for no change: memory as a driver counts it, not the label."""
    return system.chip.capacity if path == COUNTED else read_figure(system, path)


def is_scalar(system: System) -> bool:
    """Whether every figure that a step depends on is a single number."""
    figures = [*system.chip.peak.values(), *(d.size for d in system.domains)]
    figures += [x for tier in system.chip.memory for x in (tier.capacity, tier.bandwidth)]
    figures += [x for domain in system.domains for x in (domain.link.bandwidth, domain.link.latency)]
    return all(np.ndim(figure) == 0 for figure in figures)


def is_single(system: System) -> bool:
    """Whether every figure that can be set is a single number."""
    return not any(np.ndim(read_figure(system, path)) for path in settable(system))


def vary(system: System, changes: Mapping[str, Number]) -> System:
    """Return `system` with other figures: {"chip.hbm.bandwidth": 16e12, "scale_up.size": 144, "rent": 2 / 3600}.

    Values are in base units, a rent in USD/s (`st.vary` takes USD per chip-hour), and may be arrays; their grade is "given"
    from then on. Raises UnknownName for a figure that the system lacks, RangeError for a value that no machine has, such as a
    negative bandwidth, half a chip or domains that do not grow outwards.
    """
    expect("a system to vary", system, System, "a System, as load_system gives it")
    expect("a change", changes, Mapping, 'a dict, such as {"chip.hbm.bandwidth": 16e12}')
    units = settable(system)
    for path, amount in changes.items():
        _check_path(system, path)
        value = checked(path, amount, units[path])
        system = _vary_one(system, path, value)
        if path == COUNTED:  # it is meant as a driver counts it, not as a label does
            reached = {name: share for name, share in system.chip.reached.items() if name != "capacity"}
            system = replace(system, chip=replace(system.chip, reached=reached))
        moved = ("power",) if path == "chip.power" and system.power.grade == USER_SET else ()
        for figure in (path, *moved):
            if figure in system.figures:
                system = replace(system, figures={**system.figures, figure: _user_figure(value, units[path])})
    _check_sizes(system)
    return system


def _user_figure(value: Number, figure_unit: str) -> Figure:
    """Return a figure that the caller set: its source is no data sheet any more."""
    figure: Any = value
    return Figure(
        value=figure,
        unit=figure_unit,
        text=in_words(value, lambda number: show(number, figure_unit)),
        grade=USER_SET,
        note="set by hand",
    )


def scale(system: System, path: str, factor: Number) -> System:
    """Return `system` with the figures at `path` multiplied; "chip.peak" and "tiers" scale all of their kind."""
    if path == "chip.peak":
        peak = {kind: rate * factor for kind, rate in system.chip.peak.items()}
        return replace(system, chip=replace(system.chip, peak=peak))
    return _vary_one(system, path, read_figure(system, path) * factor)


def read_changes(system: System, texts: tuple[str, ...]) -> dict[str, Number]:
    """Read what-ifs such as "chip.hbm.bandwidth=16TB/s" with the unit that each figure has."""
    changes: dict[str, Number] = {}
    units = settable(system)
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals:
            raise RangeError(f"{short_repr(text)} is not KEY=VALUE, such as chip.hbm.bandwidth=16TB/s")
        if path not in units and path.replace("-", "_") in units:
            path = path.replace("-", "_")
        _check_path(system, path)
        if path in changes:
            raise RangeError(f"{path} is set twice; keep one of the two")
        try:
            changes[path] = checked(path, parse(value, units[path]), units[path])
        except UnitError as problem:
            raise UnitError(f"{path}: {problem}") from None
    return changes


def _check_sizes(system: System) -> None:
    for inner, outer in pairwise(system.domains):
        if np.any(np.asarray(inner.size) > outer.size):
            raise RangeError(
                f"the {np.max(inner.size):,} chips of {inner.name} are more than the {np.min(outer.size):,} of {outer.name}"
            )


def _check_path(system: System, path: str) -> None:
    if path not in settable(system):
        raise UnknownName("key", path, settable(system), f"`steptime systems {system.name}` lists them.")


def _vary_one(system: System, path: str, value: Number) -> System:
    _check_path(system, path)
    head, _, key = path.rpartition(".")
    if path == "rent":
        return replace(
            system,
            rent=Rent(low=value, typical=value, high=value, kind=USER_SET, grade=USER_SET, note="set by hand"),
        )
    if path == "power":
        return replace(system, power=Power(watts=value, basis=USER_SET, grade=USER_SET, note="set by hand"))
    if path == "chip.power":
        draws = replace(system.power, watts=value, date="", url="", grade=USER_SET, note="set by hand")
        includes_chip = system.power.basis in ("chip", "whole", "")  # the rest of a machine does not follow from its chip
        return replace(
            system,
            chip=replace(system.chip, power_w=value),
            power=replace(draws, basis=system.power.basis or "chip") if includes_chip else system.power,
        )
    if head == "chip.peak":
        return replace(system, chip=replace(system.chip, peak={**system.chip.peak, key: value}))
    if head.startswith("chip."):
        memory = tuple(_with(t, key, value) if head == f"chip.{t.name}" else t for t in system.chip.memory)
        return replace(system, chip=replace(system.chip, memory=memory))
    tiers = tuple(_with(t, key, value) if head == t.name else t for t in system.tiers)
    return replace(system, tiers=tiers, domains=tuple(_vary_domain(d, head, key, value) for d in system.domains))


def _with(thing: Thing, key: str, value: Number) -> Thing:
    """Return a tier or a link with another figure."""
    changed: dict[str, Any] = {key: value}
    return replace(thing, **changed)


def _vary_domain(domain: Domain, head: str, key: str, value: Number) -> Domain:
    if domain.kind.replace("-", "_") != head:
        return domain
    if key == "size":
        return replace(domain, size=value)
    return replace(domain, link=_with(domain.link, key, value))
