"""Turns data files into chips, systems and rents, every figure with its source."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

from steptime.catalog.files import files, find, is_file
from steptime.catalog.lines import line_of
from steptime.catalog.schema import (
    RACK_UNITS,
    ChipEntry,
    DomainEntry,
    FigureEntry,
    MemoryEntry,
    RentsEntry,
    SourceEntry,
    SystemEntry,
    validated,
)
from steptime.errors import DataFileError, InputError, RangeError, UnitError, did_you_mean, expect, shown
from steptime.machines import what_if
from steptime.machines.figures import checked
from steptime.machines.system import Chip, Domain, Link, MemoryTier, Rent, System
from steptime.numbers import Number
from steptime.sourced import GRADES, Figure
from steptime.units import parse

SystemLike = System | str | os.PathLike[str]


class _Reader:
    """Turns the figures of one file into numbers and remembers each under its path."""

    def __init__(self, path: Path, sources: dict[str, SourceEntry]) -> None:
        self.path, self.sources = path, sources
        self.figures: dict[str, Figure] = {}

    def number(self, place: str, entry: FigureEntry, unit: str) -> float:
        """Return the value of `entry` in base units; errors name the file and the place."""
        source = SourceEntry(url="", date="", grade="guess")
        if entry.source:
            if entry.source not in self.sources:
                near = did_you_mean(entry.source, self.sources, most=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                problem = f"{place}: source {shown(entry.source)} is not among [sources]{hint}"
                raise DataFileError(self.path, problem, self.line(place))
            source = self.sources[entry.source]
        try:
            value = float(checked(place, parse(entry.value, unit), unit))
        except UnitError as error:
            raise DataFileError(self.path, f"{place}: {error}", self.line(place)) from None
        except RangeError as error:
            raise DataFileError(self.path, str(error), self.line(place)) from None
        self.figures[place] = Figure(
            value=value,
            unit=unit,
            text=str(entry.value),
            url=source.url,
            date=source.date,
            grade=entry.grade or source.grade,
            note=entry.note or source.note,
        )
        return value

    def line(self, place: str) -> int | None:
        return line_of(self.path, place)

    def tier(self, place: str, entry: MemoryEntry) -> MemoryTier:
        """Return one memory tier."""
        return MemoryTier(
            name=entry.name,
            capacity=self.number(f"{place}.capacity", entry.capacity, "B"),
            bandwidth=self.number(f"{place}.bandwidth", entry.bandwidth, "B/s"),
            latency=self.number(f"{place}.latency", entry.latency, "s") if entry.latency else 0.0,
            usd_per_byte=self.number(f"{place}.usd_per_byte", entry.usd_per_byte, "USD/B") if entry.usd_per_byte else 0.0,
        )


def load_chip(name: str, catalog: str | os.PathLike[str] | None = None) -> tuple[Chip, dict[str, Figure]]:
    """Return a chip and the sources of its figures."""
    path = find("chips", name, catalog)
    entry = validated(ChipEntry, path)
    return _chip(entry, _Reader(path, entry.sources))


def _chip(entry: ChipEntry, reader: _Reader) -> tuple[Chip, dict[str, Figure]]:
    if not entry.peak:
        raise DataFileError(
            reader.path, 'peak: needs at least one rate, such as bf16 = "989 TFLOP/s"', reader.line("chip.peak")
        )
    _unique(reader, "memory", [tier.name for tier in entry.memory])
    chip = Chip(
        name=entry.name,
        title=entry.title,
        vendor=entry.vendor,
        year=entry.year,
        peak={kind: reader.number(f"chip.peak.{kind}", rate, "FLOP/s") for kind, rate in entry.peak.items()},
        memory=tuple(reader.tier(f"chip.{tier.name}", tier) for tier in entry.memory),
        power_w=reader.number("chip.power", entry.power["tdp"], "W") if "tdp" in entry.power else math.nan,
        reached={kind: reader.number(f"chip.reached.{kind}", share, "") for kind, share in entry.reached.items()},
    )
    return chip, reader.figures


def load_system(name: str | os.PathLike[str], catalog: str | os.PathLike[str] | None = None) -> System:
    """Return the system of a catalogue name, an alias or a path to a TOML file, in which the chip may stand as a table.

    Raises UnknownName with the nearest names, or DataFileError with file and line.
    """
    expect("a system", name, (str, os.PathLike), "a name or a path")
    path = find("systems", os.fspath(name), catalog)
    entry = validated(SystemEntry, path)
    reader = _Reader(path, entry.sources)
    chip, figures = _chip(*entry_of_chip(entry, path, catalog))
    _unique(reader, "domains", [domain.kind for domain in entry.domains], "kind")
    _unique(reader, "tiers", [tier.name for tier in entry.tiers], taken=("chip", "rack", *(tier.name for tier in chip.memory)))
    domains = tuple(_domain(reader, domain, last=domain is entry.domains[-1]) for domain in entry.domains)
    _check_sizes(reader, entry, domains)
    rack = {
        key: reader.number(f"rack.{key}", value, unit)
        for key, unit in RACK_UNITS.items()
        if (value := getattr(entry.rack, key)) is not None
    }
    if entry.rack.chips:
        rack["chips"] = entry.rack.chips
    return System(
        name=entry.name,
        title=entry.title,
        chip=chip,
        chips=entry.chips,
        domains=domains,
        tiers=tuple(reader.tier(tier.name, tier) for tier in entry.tiers),
        rent=find_rent(chip.name, catalog),
        rack=rack,
        figures={**figures, **reader.figures},
    )


def system_of(system: SystemLike) -> System:
    """Return a system as it is, and load one that is named: what every public function takes."""
    if isinstance(system, System):
        return system
    if not isinstance(system, str | os.PathLike):
        raise InputError(f"a system is a name, a path or a System, not {type(system).__name__}")
    return load_system(system)


def vary(system: SystemLike, changes: Mapping[str, Number]) -> System:
    """Return a system, or the one that is named, with other figures, as `machines.what_if.vary` does."""
    return what_if.vary(system_of(system), changes)


def entry_of_chip(entry: SystemEntry, path: Path, catalog: str | os.PathLike[str] | None = None) -> tuple[ChipEntry, _Reader]:
    """Return the chip of a system, which is a table of its file, a file beside it, or one of the catalogue, and its reader."""
    if isinstance(entry.chip, ChipEntry):
        return entry.chip, _Reader(path, {**entry.sources, **entry.chip.sources})
    sibling = path.parent / f"{entry.chip}.toml"
    local = path.parent.name != "systems" and is_file(sibling) and not sibling.samefile(path)
    place = sibling if local else find("chips", entry.chip, catalog)
    chip = validated(ChipEntry, place)
    return chip, _Reader(place, chip.sources)


def _unique(reader: _Reader, place: str, names: list[str], what: str = "name", taken: Iterable[str] = ()) -> None:
    for at, name in enumerate(names):
        if name in (*taken, *names[:at]):
            line = reader.line(f"{place}.{at}.{what}")
            raise DataFileError(reader.path, f"{place}: the {what} {shown(name)} stands twice", line)


def _domain(reader: _Reader, entry: DomainEntry, *, last: bool) -> Domain:
    if entry.size is None and not last:
        problem = f"domains: {entry.name} needs a size; only the outermost goes without"
        raise DataFileError(reader.path, problem, reader.line(f"{entry.kind.replace('-', '_')}.name"))
    place = entry.kind.replace("-", "_")
    link = Link(
        bandwidth=reader.number(f"{place}.bandwidth", entry.bandwidth, "B/s"),
        latency=reader.number(f"{place}.latency", entry.latency, "s"),
        topology=entry.topology,
    )
    return Domain(name=entry.name, kind=entry.kind, size=math.inf if entry.size is None else entry.size, link=link)


def _check_sizes(reader: _Reader, entry: SystemEntry, domains: tuple[Domain, ...]) -> None:
    """Raise DataFileError for domains that do not grow outwards, or do not hold the chips of the system."""
    sizes = [domain.size for domain in domains]
    if sizes != sorted(sizes):
        raise DataFileError(reader.path, "domains: sizes must grow from the inner to the outer", reader.line("domains.1.size"))
    if entry.chips > sizes[-1]:
        problem = f"chips: {entry.chips:,} are more than the {sizes[-1]:,} of the outermost domain, {domains[-1].name}"
        raise DataFileError(reader.path, problem, reader.line("chips"))
    if len(domains) == 1 and entry.chips < sizes[-1] < math.inf:
        problem = (
            f"domains: a machine of one domain is a box, whose size, {sizes[-1]:,}, is its number of chips, {entry.chips:,}; "
            'add the domain that joins boxes (kind = "scale-out", without a size), or make them equal'
        )
        raise DataFileError(reader.path, problem, reader.line("domains.0.size"))


def quotes(catalog: str | os.PathLike[str] | None = None) -> Iterator[tuple[str, str, str, Figure]]:
    """Yield (chip, kind, date, figure) of every rent in the catalogue."""
    for path in files("rents", catalog).values():
        entry = validated(RentsEntry, path)
        reader = _Reader(path, entry.sources)
        for n, quote in enumerate(entry.quotes):
            place = f"quotes.{n}.{quote.chip}"
            reader.number(place, quote.rate, "USD/s")
            yield quote.chip, quote.kind, entry.date, reader.figures[place]


def find_rent(chip: str, catalog: str | os.PathLike[str] | None = None) -> Rent:
    """Return the rent of a chip: the best-graded and then newest rental is typical, the past year's quotes are the range.

    Where no rental is known, the median of what ownership costs is typical.
    """
    mine = [quote for quote in quotes(catalog) if quote[0] == chip]
    if not mine:
        return Rent(
            low=math.nan,
            typical=math.nan,
            high=math.nan,
            note=f"no rent of {chip} is known; give one as --set rent='2 USD/h'",
        )
    rentals = [quote for quote in mine if quote[1] == "rental"] or mine
    grade = min((figure.grade for *_, figure in rentals), key=GRADES.index)
    newest = max(date for _, _, date, figure in rentals if figure.grade == grade)
    chosen = [figure for _, _, date, figure in rentals if figure.grade == grade and date == newest]
    year_before = f"{int(newest[:4]) - 1}{newest[4:]}"
    rates = [figure.value for _, _, date, figure in mine if date >= year_before]
    return Rent(
        low=min(rates),
        typical=median(figure.value for figure in chosen),
        high=max(rates),
        date=newest,
        url=chosen[0].url,
        grade=grade,
        note=chosen[0].note,
    )
