"""The catalogue: finds data files, checks them and turns them into chips, systems and rents.

A thing is one TOML file (or, for models, one JSON file around a config.json). Folders are searched in this order, the
first that has the name wins: the one given as --catalog, the user's (`STEPTIME_CATALOG`, or `~/.steptime`), the packaged
one. A path to a file works wherever a name does.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from steptime.errors import DataFileError, RangeError, UnitError, UnknownName
from steptime.hardware import Chip, Domain, Link, MemoryTier, Rent, System
from steptime.sourced import GRADES, Figure
from steptime.units import parse

PACKAGED = Path(__file__).parent / "data"
SUFFIXES = {"models": ".json"}


def folders(kind: str, catalog: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the folders that hold `kind` (chips, systems, rents, models, engines), first searched first."""
    user = Path(os.environ.get("STEPTIME_CATALOG") or Path.home() / ".steptime")
    if catalog is not None and not Path(catalog).is_dir():
        raise DataFileError(
            catalog,
            "is not a folder; --catalog names a folder with chips/, systems/, rents/, models/ or engines/ in it",
        )
    roots = ([Path(catalog)] if catalog is not None else []) + [user, PACKAGED]
    return [root / kind for root in roots if (root / kind).is_dir()]


def files(kind: str, catalog: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Return every file of `kind` by the name it goes by, nearer folders shadowing farther ones."""
    found: dict[str, Path] = {}
    suffix = SUFFIXES.get(kind, ".toml")
    for folder in folders(kind, catalog):
        for path in sorted(folder.glob("*" + suffix), key=lambda path: path.name):
            found.setdefault(path.stem.replace("--", "/"), path)
    return dict(sorted(found.items(), key=lambda item: item[0].casefold()))


def find(kind: str, name: str, catalog: str | os.PathLike[str] | None = None) -> Path:
    """Return the file of `name`: a path as it is, a name of the catalogue, or an alias of one; "_" counts as "-"."""
    suffix = SUFFIXES.get(kind, ".toml")
    path = Path(name)
    if path.suffix == suffix or path.is_file():
        if path.is_file():
            return path
        raise DataFileError(name, "no such file")
    known = files(kind, catalog)
    by_folded = {_folded(key): path for key, path in known.items()}
    if _folded(name) in by_folded:
        return by_folded[_folded(name)]
    aliases = {_folded(alias): path for path in known.values() for alias in read_file(path).get("aliases", ())}
    if _folded(name) in aliases:
        return aliases[_folded(name)]
    singular = kind.removesuffix("s")
    raise UnknownName(singular, name, [*known, *aliases], f"`steptime {kind}` lists them; a path to a file works too.")


def _folded(name: str) -> str:
    return name.casefold().replace("_", "-")


@lru_cache(maxsize=512)
def _read(path: Path, _modified: float) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not UTF-8 text ({error.reason} at byte {error.start})") from None
    try:
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise DataFileError(path, f"is not valid JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise DataFileError(path, "is nested too deep") from None
    except tomllib.TOMLDecodeError as error:
        line = str(error).rpartition("at line ")[2].partition(",")[0]
        raise DataFileError(
            path, f"is not valid TOML: {error}", int(line) if line.isdigit() else text.count("\n") + 1
        ) from None
    if not isinstance(data, dict):
        raise DataFileError(path, f"holds a {type(data).__name__}, not a table of keys", 1)
    return data


def read_file(path: Path) -> dict[str, Any]:
    """Read a TOML or JSON file into a dict; errors name the file and the line."""
    try:
        return _read(path, path.stat().st_mtime)
    except OSError as error:
        raise DataFileError(path, error.strerror or str(error)) from None


# --- the schema of the files -------------------------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


Text = Annotated[str, BeforeValidator(lambda v: v.isoformat() if isinstance(v, datetime.date) else v)]


class SourceEntry(_Strict):
    """Where figures were read."""

    url: str
    date: Text
    grade: Literal["measured", "vendor", "reported", "recalled", "guess"]
    note: str = ""


class FigureEntry(_Strict):
    """A figure as written: value with its unit, the name of its source, and what departs from that source."""

    value: str | int | float
    source: str = Field(default="", alias="from")
    grade: Literal["measured", "vendor", "reported", "recalled", "guess"] | None = None
    note: str = ""


def _as_entry(value: object) -> object:
    return {"value": value} if isinstance(value, str | int | float) and not isinstance(value, bool) else value


Entry = Annotated[FigureEntry, BeforeValidator(_as_entry)]


class _Thing(_Strict):
    name: str
    title: str = ""
    aliases: list[str] = []
    sources: dict[str, SourceEntry] = {}


class MemoryEntry(_Strict):
    """One memory tier."""

    name: str
    capacity: Entry
    bandwidth: Entry
    latency: Entry | None = None
    usd_per_byte: Entry | None = None


class ChipEntry(_Thing):
    """A chip file."""

    vendor: str = ""
    year: int = 0
    peak: dict[Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp6", "fp4", "int4"], Entry]
    memory: list[MemoryEntry] = Field(min_length=1)
    power: dict[Literal["tdp"], Entry] = {}
    reached: dict[Literal["memory", "compute"], Entry] = {}


class DomainEntry(_Strict):
    """One level of the network."""

    name: str
    kind: Literal["scale-up", "pod", "scale-out"]
    size: int | None = None
    topology: Literal["switch", "mesh", "torus", "ring"] = "switch"
    bandwidth: Entry
    latency: Entry = FigureEntry.model_validate({"value": "0 s"})


class RackEntry(_Strict):
    """What a rack draws, weighs and holds, the limits that are published for it, and the scale-up links of one chip."""

    power: Entry | None = None
    weight: Entry | None = None
    cables: Entry | None = None
    links: Entry | None = None
    power_limit: Entry | None = None
    weight_limit: Entry | None = None
    cable_limit: Entry | None = None
    chips: int | None = None


RACK_UNITS = {
    "power": "W", "weight": "kg", "cables": "", "links": "", "power_limit": "W", "weight_limit": "kg", "cable_limit": "",
}  # fmt: skip


class SystemEntry(_Thing):
    """A system file."""

    chip: str
    chips: int = Field(ge=1)
    year: int = 0
    domains: list[DomainEntry] = Field(min_length=1)
    tiers: list[MemoryEntry] = []
    rack: RackEntry = RackEntry()


class QuoteEntry(_Strict):
    """One rent."""

    chip: str
    kind: Literal["rental", "ownership-hyperscaler", "ownership-neocloud"]
    rate: Entry


class RentsEntry(_Thing):
    """A list of rents."""

    date: Text
    quotes: list[QuoteEntry]


Schema = TypeVar("Schema", bound=BaseModel)


def _validated(schema: type[Schema], path: Path) -> Schema:
    data = read_file(path)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        parts = [str(part) for part in first["loc"] if part != "[key]"]
        place = ".".join(parts)
        key = next((part for part in reversed(parts) if not part.isdigit()), "")
        problem = f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}"
        if first["type"] == "extra_forbidden":
            problem = f"{place}: no such key"
        elif first["type"] == "missing":
            problem = f"{place}: is missing"
        raise DataFileError(path, problem, _line_of(path, key)) from None


def _line_of(path: Path, key: str) -> int | None:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.lstrip(" [").startswith(key) and key), None)


class _Reader:
    """Turns the figures of one file into numbers and remembers each under its path."""

    def __init__(self, path: Path, sources: dict[str, SourceEntry]) -> None:
        self.path, self.sources = path, sources
        self.figures: dict[str, Figure] = {}

    def number(self, place: str, entry: FigureEntry, unit: str, *, zero: bool = False) -> float:
        """Return the value of `entry` in base units; errors name the file and the place."""
        source = SourceEntry(url="", date="", grade="guess")
        if entry.source:
            if entry.source not in self.sources:
                raise DataFileError(self.path, f"{place}: source {entry.source!r} is not among [sources]")
            source = self.sources[entry.source]
        try:
            value = parse(entry.value, unit)
        except UnitError as error:
            raise DataFileError(self.path, f"{place}: {error}", _line_of(self.path, place.rpartition(".")[2])) from None
        if value < 0 or (value == 0 and not zero):
            raise DataFileError(self.path, f"{place}: {entry.value!r} must be greater than 0")
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

    def tier(self, place: str, entry: MemoryEntry) -> MemoryTier:
        """Return one memory tier."""
        return MemoryTier(
            name=entry.name,
            capacity=self.number(f"{place}.capacity", entry.capacity, "B"),
            bandwidth=self.number(f"{place}.bandwidth", entry.bandwidth, "B/s"),
            latency=self.number(f"{place}.latency", entry.latency, "s", zero=True) if entry.latency else 0.0,
            usd_per_byte=self.number(f"{place}.usd_per_byte", entry.usd_per_byte, "USD/B", zero=True)
            if entry.usd_per_byte
            else 0.0,
        )


def load_chip(name: str, catalog: str | os.PathLike[str] | None = None) -> tuple[Chip, dict[str, Figure]]:
    """Return a chip and the sources of its figures."""
    path = find("chips", name, catalog)
    entry = _validated(ChipEntry, path)
    reader = _Reader(path, entry.sources)
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


def load_system(name: str, catalog: str | os.PathLike[str] | None = None) -> System:
    """Return the system of a catalogue name, an alias or a path to a TOML file.

    Raises UnknownName with the nearest names, or DataFileError with file and line.
    """
    path = find("systems", name, catalog)
    entry = _validated(SystemEntry, path)
    sibling = path.parent / f"{entry.chip}.toml"
    local = sibling if path.parent.name != "systems" and sibling.is_file() else None
    chip, figures = load_chip(str(local) if local else entry.chip, catalog)
    reader = _Reader(path, entry.sources)
    domains = tuple(_domain(reader, path, domain, last=domain is entry.domains[-1]) for domain in entry.domains)
    sizes = [domain.size for domain in domains]
    if sizes != sorted(sizes):
        raise DataFileError(path, "domains: sizes must grow from the inner to the outer", _line_of(path, "size"))
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


def _domain(reader: _Reader, path: Path, entry: DomainEntry, *, last: bool) -> Domain:
    if entry.size is None and not last:
        raise DataFileError(
            path, f"domains: {entry.name} needs a size; only the outermost goes without", _line_of(path, "name")
        )
    place = entry.kind.replace("-", "_")
    link = Link(
        bandwidth=reader.number(f"{place}.bandwidth", entry.bandwidth, "B/s"),
        latency=reader.number(f"{place}.latency", entry.latency, "s", zero=True),
        topology=entry.topology,
    )
    return Domain(name=entry.name, kind=entry.kind, size=entry.size if entry.size and not last else math.inf, link=link)


def quotes(catalog: str | os.PathLike[str] | None = None) -> Iterator[tuple[str, str, str, Figure]]:
    """Yield (chip, kind, date, figure) of every rent in the catalogue."""
    for path in files("rents", catalog).values():
        entry = _validated(RentsEntry, path)
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


def check_positive(**values: float) -> None:
    """Raise RangeError for a size that is not a finite number greater than 0; names are shown as options are written."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise RangeError(f"{name.replace('_', '-')} must be greater than 0, not {value:g}")
