"""Turns data files into chips, systems and rents, every figure with its source."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from steptime.catalog.data_files import files, find, folded, is_file, line_number
from steptime.catalog.schema import (
    RACK_UNITS,
    ChipEntry,
    Entry,
    FigureEntry,
    MemoryEntry,
    QuoteEntry,
    RentsEntry,
    SourceEntry,
    SystemEntry,
    validated,
)
from steptime.errors import DataFileError, InputError, RangeError, UnitError, UnknownName, did_you_mean, expect, short_repr
from steptime.hardware import rental_prices, what_if
from steptime.hardware.number_formats import is_day, reached_by
from steptime.hardware.rental_prices import KINDS, OWNERS, RENTED
from steptime.hardware.system import Chip, Domain, Link, MemoryTier, Power, Rent, Software, System, checked
from steptime.number_checks import Number, positive, share
from steptime.units import GRADES, HOUR, Figure, parse, show

SystemLike = System | str | os.PathLike[str]


@dataclass(eq=False)
class Reader:
    """Turns the figures of one file into numbers and keeps each with its path in `figures`."""

    path: Path
    sources: Mapping[str, SourceEntry]
    figures: dict[str, Figure] = field(init=False, default_factory=dict)

    def number(self, place: str, entry: Entry, unit: str, gate: Callable[..., Number] = checked) -> float:
        """Return the value of a figure in base units, and keep it in `figures`.

        Args:
            place: Path of the figure, its keys joined by dots.
            entry: The figure, or only its value.
            unit: Base unit, such as "B/s"; "" for a number.
            gate: Check of the value; called with place, value and unit, and raises RangeError.

        Returns:
            The value in `unit`.

        Raises:
            DataFileError: The source is not in the file, the unit is wrong, or the value is out of range.
        """
        if not isinstance(entry, FigureEntry):
            entry = FigureEntry(value=entry)

        # A figure without a source counts as a guess.
        source = SourceEntry(url="", date="", grade="guess")
        if entry.source:
            if entry.source not in self.sources:
                near = did_you_mean(entry.source, self.sources, max_names=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                problem = f"{place}: source {short_repr(entry.source)} is not in [sources]{hint}"
                raise DataFileError(self.path, problem, self.line(place))
            source = self.sources[entry.source]

        try:
            value = float(gate(place, parse(entry.value, unit), unit))
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
        """Return the line of a place in the file.

        Args:
            place: Path of the figure, its keys joined by dots.

        Returns:
            Line number from 1; None if it cannot be found.
        """
        return line_number(self.path, place)

    def tier(self, place: str, entry: MemoryEntry) -> MemoryTier:
        """Return one memory tier.

        Args:
            place: Path of the tier, its keys joined by dots.
            entry: The tier in the file.

        Returns:
            The tier in base units; latency and price are 0 if the file does not give them.
        """
        return MemoryTier(
            name=entry.name,
            capacity=self.number(f"{place}.capacity", entry.capacity, "B"),
            bandwidth=self.number(f"{place}.bandwidth", entry.bandwidth, "B/s"),
            latency=self.number(f"{place}.latency", entry.latency, "s") if entry.latency else 0.0,
            usd_per_byte=self.number(f"{place}.usd_per_byte", entry.usd_per_byte, "USD/B") if entry.usd_per_byte else 0.0,
        )


def load_chip(name: str, catalog: str | os.PathLike[str] | None = None) -> tuple[Chip, dict[str, Figure]]:
    """Return a chip and the figures of its file with their sources.

    Args:
        name: Name of the catalogue, alias or path to a TOML file.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        The chip, and its figures by path.
    """
    path = find("chips", name, catalog)
    entry = validated(ChipEntry, path)
    return _chip(entry, Reader(path, entry.sources))


def _chip(entry: ChipEntry, reader: Reader) -> tuple[Chip, dict[str, Figure]]:
    if not entry.peak:
        raise DataFileError(
            reader.path, 'peak: needs at least one rate, such as bf16 = "989 TFLOP/s"', reader.line("chip.peak")
        )

    _unique(reader, "memory", [tier.name for tier in entry.memory])

    # A chip without its own limit uses the limit of the machine around it.
    limit = entry.power.get("tdp") or entry.power.get("whole")

    # The usable capacity may exceed a label in GiB, the rates may not.
    gates = {"capacity": lambda place, value, _: positive(place, value, maximum=2**30 / 1e9)}
    reached: dict[str, Number] = {
        kind: reader.number(f"chip.reached.{kind}", part, "", gates.get(kind, _share)) for kind, part in entry.reached.items()
    }
    software = _software(entry, reader)
    chip = Chip(
        name=entry.name,
        title=entry.title,
        vendor=entry.vendor,
        generation=entry.generation,
        year=entry.year,
        peak={kind: reader.number(f"chip.peak.{kind}", rate, "FLOP/s") for kind, rate in entry.peak.items()},
        memory=tuple(reader.tier(f"chip.{tier.name}", tier) for tier in entry.memory),
        power_w=math.nan if limit is None else reader.number("chip.power", limit, "W"),
        reached=reached | (reached_by(software[-1]) if software else {}),
        software=software,
    )

    # The all-in power belongs to the system, see `_power`; the reader only keeps its figure.
    if "all_in" in entry.power:
        reader.number("power", entry.power["all_in"], "W")

    return chip, reader.figures


def _software(entry: ChipEntry, reader: Reader) -> tuple[Software, ...]:
    """Return the periods of software.

    Raises:
        DataFileError: A day is not a date, or the periods overlap or are not in order.
    """
    days = [day for period in entry.software for day in (period.first, period.last)]
    # A period must not begin on the day on which the one before ends.
    meet = any(before == after for before, after in zip(days[1::2], days[2::2], strict=False))
    if not all(map(is_day, days)) or days != sorted(days) or meet:
        day_list = " ".join(days)
        problem = f"software: days must be written as 2025-12-31, in order of the periods, got {short_repr(day_list)}"
        raise DataFileError(reader.path, problem, reader.line("chip.software"))
    return tuple(
        Software(
            first=period.first,
            last=period.last,
            share=reader.number(f"chip.software.{period.first}", period.share, "", _share),
            launches=1.0 if period.launches is None else reader.number(f"chip.launches.{period.first}", period.launches, ""),
        )
        for period in entry.software
    )


def load_system(name: str | os.PathLike[str], catalog: str | os.PathLike[str] | None = None) -> System:
    """Return the system of a name of the catalogue, an alias or a path.

    Args:
        name: Name, alias, or path to a TOML file; the file may contain the chip as a table.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        The system with its rents, its power and the sources of its figures.

    Raises:
        UnknownName: No system has this name; the error lists the nearest names.
        DataFileError: The file is malformed; the error names the file and the line.
    """
    expect("a system", name, (str, os.PathLike), "a name or a path")
    path = find("systems", os.fspath(name), catalog)
    entry = validated(SystemEntry, path)
    reader = Reader(path, entry.sources)
    chip_entry, chip_reader = entry_of_chip(entry, path, catalog)
    chip, figures = _chip(chip_entry, chip_reader)
    _unique(reader, "domains", [domain.kind for domain in entry.domains], "kind")
    _unique(
        reader, "tiers", [tier.name for tier in entry.tiers], reserved=("chip", "rack", *(tier.name for tier in chip.memory))
    )
    domains: tuple[Domain, ...] = ()
    for domain in entry.domains:
        place = domain.kind.replace("-", "_")
        if domain.size is None and domain is not entry.domains[-1]:
            problem = f"domains: {domain.name} needs a size; only the outermost domain may have none"
            raise DataFileError(reader.path, problem, reader.line(f"{place}.name"))
        bandwidth = reader.number(f"{place}.bandwidth", domain.bandwidth, "B/s")
        link = Link(
            bandwidth=bandwidth,
            latency=reader.number(f"{place}.latency", domain.latency, "s"),
            topology=domain.topology,
            sums=domain.sums,
        )
        size = math.inf if domain.size is None else domain.size
        domains += (Domain(name=domain.name, kind=domain.kind, size=size, link=link),)
    _check_sizes(reader, entry, domains)

    # Only the given figures of the rack, so that a missing one is not taken as zero.
    rack = {
        key: reader.number(f"rack.{key}", value, unit)
        for key, unit in RACK_UNITS.items()
        if (value := getattr(entry.rack, key)) is not None
    }
    if entry.rack.chips:
        rack["chips"] = entry.rack.chips

    # Figures of the system's file replace those of the chip's file with the same path.
    figures |= reader.figures
    power, power_figures = _power(figures, rack, is_machine_limit="whole" in chip_entry.power)
    rents = find_rents(chip.name, catalog)

    return System(
        name=entry.name,
        title=entry.title,
        chip=chip,
        chips=entry.chips,
        domains=domains,
        tiers=tuple(reader.tier(tier.name, tier) for tier in entry.tiers),
        rent=rents[0] if rents else _unknown_rent(chip.name),
        rents=rents,
        power=power,
        rack=rack,
        figures=figures | power_figures,
    )


def resolve_system(system: SystemLike) -> System:
    """Return a system as it is, or load it by name or path.

    Every public function accepts a system in these forms.

    Args:
        system: A system, its name in the catalogue, or a path.

    Returns:
        The system.

    Raises:
        InputError: `system` is of another type.
    """
    if isinstance(system, System):
        return system
    if not isinstance(system, str | os.PathLike):
        raise InputError(f"system: must be a name, a path or a System, got {type(system).__name__}")
    return load_system(system)


def with_rent(system: SystemLike, rent: str | float) -> System:
    """Return a system with a rent of another kind or amount.

    See `steptime.hardware.rental_prices.with_rent`.

    Args:
        system: A system, its name in the catalogue, or a path.
        rent: A kind of rent, or USD per chip-hour: 2.10, "2.10" or "2.10 USD/h".

    Returns:
        The system with this rent.
    """
    return rental_prices.with_rent(resolve_system(system), rent)


def vary(system: SystemLike, changes: Mapping[str, Number]) -> System:
    """Return a system with other figures.

    See `steptime.hardware.what_if.vary`.

    Args:
        system: A system, its name in the catalogue, or a path.
        changes: New values in base units by figure, such as {"chip.hbm.bandwidth": 16e12}; "rent" in USD per chip-hour.

    Returns:
        The system with these values.
    """
    if isinstance(changes, Mapping) and "rent" in changes:
        rent: Any = changes["rent"]
        # Users write rents per hour; figures are per second.
        changes = {**changes, "rent": positive("rent", rent, "USD/h") / HOUR}
    return what_if.vary(resolve_system(system), changes)


def entry_of_chip(entry: SystemEntry, path: Path, catalog: str | os.PathLike[str] | None = None) -> tuple[ChipEntry, Reader]:
    """Return the entry of a system's chip, and the reader of its file.

    The chip is a table in the file of the system, a file in the same folder, or a name of the catalogue.

    Args:
        entry: The system.
        path: File of the system.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        The entry of the chip, and a reader with its sources.

    Raises:
        DataFileError: No chip has this name.
    """
    if isinstance(entry.chip, ChipEntry):
        return entry.chip, Reader(path, {**entry.sources, **entry.chip.sources})
    # A user's system may keep its chip in the same folder; the packaged chips are in another one.
    sibling = path.parent / f"{entry.chip}.toml"
    local = path.parent.name != "systems" and is_file(sibling) and not sibling.samefile(path)
    try:
        place = sibling if local else find("chips", entry.chip, catalog)
    except UnknownName as error:
        raise DataFileError(path, f"chip: {error}", line_number(path, "chip")) from None
    chip = validated(ChipEntry, place)
    return chip, Reader(place, chip.sources)


def _share(place: str, value: Number, _: str) -> Number:
    """Return a reached share of a figure, above 0 and at most 1."""
    return share(place, positive(place, value))


def _unique(reader: Reader, place: str, names: list[str], key: str = "name", reserved: Iterable[str] = ()) -> None:
    for index, name in enumerate(names):
        if name in (*reserved, *names[:index]):
            line = reader.line(f"{place}.{index}.{key}")
            raise DataFileError(reader.path, f"{place}: the {key} {short_repr(name)} occurs twice", line)


def _check_sizes(reader: Reader, entry: SystemEntry, domains: tuple[Domain, ...]) -> None:
    """Check that domains grow outwards and have room for the chips of the system.

    Raises:
        DataFileError: They do not, or a system of one domain has fewer chips than the domain.
    """
    sizes = [domain.size for domain in domains]
    if sizes != sorted(sizes):
        raise DataFileError(
            reader.path, "domains: sizes must grow from the inner to the outer domain", reader.line("domains.1.size")
        )
    if entry.chips > sizes[-1]:
        problem = (
            f"chips: must be at most {sizes[-1]:,}, the size of the outermost domain {domains[-1].name}, got {entry.chips:,}"
        )
        raise DataFileError(reader.path, problem, reader.line("chips"))

    # One domain with a size has no network to a second box.
    if len(domains) == 1 and entry.chips < sizes[-1] < math.inf:
        problem = (
            f"domains: a system of one domain is one box, but its size is {sizes[-1]:,} and chips is {entry.chips:,}; "
            'add the domain that joins boxes (kind = "scale-out", without a size), or make both equal'
        )
        raise DataFileError(reader.path, problem, reader.line("domains.0.size"))


def quotes(catalog: str | os.PathLike[str] | None = None, chip: str | None = None) -> Iterator[tuple[QuoteEntry, str, Figure]]:
    """Yield every rent of the catalogue, or of one chip.

    Args:
        catalog: Folder that is searched first; None: only the user's and the packaged folder.
        chip: Name of a chip; None: all chips.

    Yields:
        The quote, the date of its list, and its figure [USD/s per chip].

    Raises:
        DataFileError: A file does not fit the schema, or its date is not a day.
    """
    chip_name = None if chip is None else folded(chip)
    for path in files("rents", catalog).values():
        entry = validated(RentsEntry, path)
        reader = Reader(path, entry.sources)
        if not is_day(entry.date):
            raise DataFileError(
                path, f"date: must be a day such as 2026-01-31, got {short_repr(entry.date)}", reader.line("date")
            )
        for n, quote in enumerate(entry.quotes):
            if chip_name is not None and folded(quote.chip) != chip_name:
                continue
            place = f"quotes.{n}.{quote.chip}"
            reader.number(place, quote.rate, "USD/s")
            yield quote, entry.date, reader.figures[place]


def find_rents(chip: str, catalog: str | os.PathLike[str] | None = None) -> tuple[Rent, ...]:
    """Return the known rents of a chip, one of each kind.

    The typical rent of a kind is the median of its quotes with the best grade on the newest date. The range is over the
    quotes of the year before. Plans use the first rent: the kind of the best-graded and then newest contracts and rents on
    demand. Without such rents, plans use the cost of ownership, of a hyperscaler before that of a neocloud.

    Args:
        chip: Name of the chip.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        The rents [USD/s per chip], first the one that plans use; empty if none is known.
    """
    mine = list(quotes(catalog, chip))
    kinds = [kind for kind in KINDS if any(quote.kind == kind for quote, _, _ in mine)]
    rented = [entry for entry in mine if entry[0].kind in RENTED] or mine
    if not rented:
        return ()

    # Among equally good and new quotes, the order of `RENTED` decides.
    first = min((quote.kind for quote, _, _ in _newest(rented)), key=(*RENTED, "owned").index)
    kinds.sort(key=lambda kind: kind != first)
    return tuple(_rent([entry for entry in mine if entry[0].kind == kind]) for kind in kinds)


def _newest(entries: list[tuple[QuoteEntry, str, Figure]]) -> list[tuple[QuoteEntry, str, Figure]]:
    """Return the quotes of the best grade in the newest list with that grade."""
    grade = min((figure.grade for _, _, figure in entries), key=GRADES.index)
    newest = max(date for _, date, figure in entries if figure.grade == grade)
    return [entry for entry in entries if entry[2].grade == grade and entry[1] == newest]


def _rent(mine: list[tuple[QuoteEntry, str, Figure]]) -> Rent:
    """Return the rent that the quotes of one kind give."""
    newest_quotes = _newest(mine)

    # A hyperscaler and a neocloud have different costs, so their quotes are not mixed.
    owner = min((quote.owner for quote, _, _ in newest_quotes), key=OWNERS.index)
    newest_quotes = [entry for entry in newest_quotes if entry[0].owner == owner]
    quote, newest, figure = newest_quotes[0]
    year_before = f"{int(newest[:4]) - 1}{newest[4:]}"

    # The range covers one year before the newest quote.
    rates = [
        figure.value
        for same_owner_quote, date, figure in mine
        if year_before <= date <= newest and same_owner_quote.owner == owner
    ]

    return Rent(
        low=min(rates),
        typical=median(figure.value for _, _, figure in newest_quotes),
        high=max(rates),
        kind=quote.kind,
        term=quote.term,
        owner=owner,
        date=figure.date or newest,
        url=figure.url,
        grade=figure.grade,
        note=figure.note,
    )


def _unknown_rent(chip: str) -> Rent:
    return Rent(note=f"no rent of {chip} is known; give one in USD per chip-hour, such as --rent 2.10")


def _power(
    figures: Mapping[str, Figure], rack: Mapping[str, Number], *, is_machine_limit: bool
) -> tuple[Power, dict[str, Figure]]:
    """Return the power of a chip, and its figure under its path.

    The figure that includes most of the equipment around the chip is used: all-in, then rack, then chip.
    is_machine_limit: whether the limit of the chip is the limit of the machine around it.
    """
    rack_power, chips = figures.get("rack.power"), rack.get("chips")
    if "power" in figures:
        basis, figure = "all-in", figures["power"]
    elif rack_power is not None and chips:
        note = f"{rack_power.text} divided by {chips:,.0f} chips" + (f"; {rack_power.note}" if rack_power.note else "")
        value = rack_power.value / float(chips)
        basis, figure = "rack", replace(rack_power, value=value, text=show(value, "W"), note=note)
    elif "chip.power" in figures:
        basis, figure = "whole" if is_machine_limit else "chip", figures["chip.power"]
    else:
        return Power(), {}
    power = Power(watts=figure.value, basis=basis, date=figure.date, url=figure.url, grade=figure.grade, note=figure.note)
    return power, {"power": figure}
