"""The schema of chip, system and rent files, and how a file that does not fit it is refused."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from steptime.catalog.files import read_file
from steptime.errors import DataFileError


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


def validated(schema: type[Schema], path: Path) -> Schema:
    """Return the file at `path` as `schema`; raise DataFileError with the place where it does not fit."""
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
        raise DataFileError(path, problem, line_of(path, key)) from None


def line_of(path: Path, key: str) -> int | None:
    """Return the number of the first line that begins with `key`, counted from 1."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.lstrip(" [").startswith(key) and key), None)
