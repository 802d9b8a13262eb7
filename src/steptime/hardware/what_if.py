"""What-if: figures that can be changed, and systems with changed figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from steptime.errors import RangeError, UnitError, UnknownName, expect, short_repr
from steptime.hardware.system import Domain, Link, MemoryTier, Power, Rent, System, checked
from steptime.number_checks import Number
from steptime.result_base import in_words
from steptime.units import USER_SET, Figure, parse, show

Thing = TypeVar("Thing", MemoryTier, Link)

COUNTED = "chip.hbm.capacity"
TIER_UNITS = {"capacity": "B", "bandwidth": "B/s", "latency": "s", "usd_per_byte": "USD/B"}


DOMAIN_UNITS = {"bandwidth": "B/s", "latency": "s", "size": ""}


def settable(system: System) -> dict[str, str]:
    """Return the figures of a system that `vary` can change.

    Args:
        system: The system.

    Returns:
        Units by path, in the order of the data sheet.
    """
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
    """Return the value of one figure that `vary` can change.

    Args:
        system: The system.
        path: Path such as "chip.hbm.bandwidth".

    Returns:
        The value in base units.

    Raises:
        UnknownName: The system has no such figure.

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

    # Memory tiers of the chip and of the host, then the links between chips.
    for tier in (*system.chip.memory, *system.tiers):
        if head in (f"chip.{tier.name}", tier.name):
            figure: Number = getattr(tier, key)
            return figure
    domain = next(d for d in system.domains if d.kind.replace("-", "_") == head)
    of_domain: Number = domain.size if key == "size" else getattr(domain.link, key)
    return of_domain


def in_force(system: System, path: str) -> Number:
    """Return the value of one figure for which `vary` changes nothing.

    For memory it is the capacity as a driver counts it, not the label.

    Args:
        system: The system.
        path: Path such as "chip.hbm.capacity".

    Returns:
        The value in base units.
    """
    return system.chip.capacity if path == COUNTED else read_figure(system, path)


def is_scalar(system: System) -> bool:
    """Whether all figures that a step uses are single numbers.

    Args:
        system: The system.

    Returns:
        True or false.
    """
    figures = [*system.chip.peak.values(), *(d.size for d in system.domains)]
    figures += [x for tier in system.chip.memory for x in (tier.capacity, tier.bandwidth)]
    figures += [x for domain in system.domains for x in (domain.link.bandwidth, domain.link.latency)]
    return all(np.ndim(figure) == 0 for figure in figures)


def is_single(system: System) -> bool:
    """Whether all figures that can be changed are single numbers.

    Args:
        system: The system.

    Returns:
        True or false.
    """
    return not any(np.ndim(read_figure(system, path)) for path in settable(system))


def vary(system: System, changes: Mapping[str, Number]) -> System:
    """Return the system with other figures, such as {"chip.hbm.bandwidth": 16e12}.

    Changed figures get the grade "given".

    Args:
        system: The system.
        changes: Values by path, which may be arrays, in base units. A rent is in USD/s here; `st.vary` takes
            USD per chip-hour.

    Returns:
        The changed system.

    Raises:
        UnknownName: The system has no such figure.
        RangeError: No system can have the value: a negative bandwidth, half a chip, or an inner domain larger
            than an outer one.
    """
    expect("a system to vary", system, System, "a System, as load_system gives it")
    expect("a change", changes, Mapping, 'a dict, such as {"chip.hbm.bandwidth": 16e12}')
    units = settable(system)
    for path, amount in changes.items():
        _check_path(system, path)
        value = checked(path, amount, units[path])
        system = _vary_one(system, path, value)
        # A changed capacity means bytes as a driver counts them, not as on a label.
        if path == COUNTED:
            reached = {name: share for name, share in system.chip.reached.items() if name != "capacity"}
            system = replace(system, chip=replace(system.chip, reached=reached))
        # The power of the machine follows the chip's only where `_vary_one` has changed it too.
        moved = ("power",) if path == "chip.power" and system.power.grade == USER_SET else ()
        for figure in (path, *moved):
            if figure in system.figures:
                system = replace(system, figures={**system.figures, figure: _user_figure(value, units[path])})
    _check_sizes(system)
    return system


def _user_figure(value: Number, figure_unit: str) -> Figure:
    """Return a figure that the user set: its source is no longer a data sheet."""
    figure: Any = value
    return Figure(
        value=figure,
        unit=figure_unit,
        text=in_words(value, lambda number: show(number, figure_unit)),
        grade=USER_SET,
        note="set by hand",
    )


def scale(system: System, path: str, factor: Number) -> System:
    """Return the system with some figures multiplied.

    Args:
        system: The system.
        path: Path of a figure; "chip.peak" multiplies all peak rates.
        factor: A factor, or an array.

    Returns:
        The changed system.
    """
    if path == "chip.peak":
        peak = {kind: rate * factor for kind, rate in system.chip.peak.items()}
        return replace(system, chip=replace(system.chip, peak=peak))
    return _vary_one(system, path, read_figure(system, path) * factor)


def read_changes(system: System, texts: tuple[str, ...]) -> dict[str, Number]:
    """Read changes such as "chip.hbm.bandwidth=16TB/s", with the unit of each figure.

    Args:
        system: The system.
        texts: Changes of the form KEY=VALUE.

    Returns:
        Values by path, in base units.

    Raises:
        RangeError: A text has another form, or a path occurs twice. UnitError: A value has a wrong unit. UnknownName: The
        system has no such figure.
    """
    changes: dict[str, Number] = {}
    units = settable(system)
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals:
            raise RangeError(f"change: must be KEY=VALUE, got {short_repr(text)}; use for example chip.hbm.bandwidth=16TB/s")
        # Accept scale-up.size for scale_up.size.
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
                f"{inner.name}: must have at most as many chips as {outer.name} ({np.min(outer.size):,}), "
                f"got {np.max(inner.size):,}"
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
        # With other bases the power of the machine does not follow from the power of its chip.
        includes_chip = system.power.basis in ("chip", "whole", "")
        return replace(
            system,
            chip=replace(system.chip, power_w=value),
            power=replace(draws, basis=system.power.basis or "chip") if includes_chip else system.power,
        )

    # The other paths name a part of the chip, a host tier or a domain.
    if head == "chip.peak":
        return replace(system, chip=replace(system.chip, peak={**system.chip.peak, key: value}))
    if head.startswith("chip."):
        memory = tuple(_with(t, key, value) if head == f"chip.{t.name}" else t for t in system.chip.memory)
        return replace(system, chip=replace(system.chip, memory=memory))
    tiers = tuple(_with(t, key, value) if head == t.name else t for t in system.tiers)
    return replace(system, tiers=tiers, domains=tuple(_vary_domain(d, head, key, value) for d in system.domains))


def _with(thing: Thing, key: str, value: Number) -> Thing:
    """Return a memory tier or a link with another figure."""
    changed: dict[str, Any] = {key: value}
    return replace(thing, **changed)


def _vary_domain(domain: Domain, head: str, key: str, value: Number) -> Domain:
    if domain.kind.replace("-", "_") != head:
        return domain
    if key == "size":
        return replace(domain, size=value)
    return replace(domain, link=_with(domain.link, key, value))
