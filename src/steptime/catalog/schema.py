"""The schema of chip, system, rent and law files, and the check against it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from steptime.catalog.data_files import looks_like, read_file
from steptime.catalog.entry_names import ENTRY_NAME, LONGEST_NAME
from steptime.catalog.schema_errors import TIER_NAME, describe_problem, line_number
from steptime.errors import DataFileError
from steptime.number_checks import MOST_CHIPS

Grade: TypeAlias = Literal["measured", "vendor", "reported", "recalled", "guess"]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=100)]
EntryName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME, pattern=ENTRY_NAME)]
Chips: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_CHIPS)]


class _Strict(Struct, forbid_unknown_fields=True):
    """A table of a file that must not have other keys."""


class SourceEntry(_Strict, kw_only=True):
    """The source of figures."""

    url: str
    date: str
    grade: Grade
    note: str = ""


class FigureEntry(_Strict, kw_only=True):
    """A figure as written: value with unit, source, and differences from the source."""

    value: str | int | float
    source: str = msgspec.field(name="from", default="")
    grade: Grade | None = None
    note: str = ""


Entry: TypeAlias = FigureEntry | str | int | float
"""A figure, or only its value."""


def figure_entry(entry: Entry) -> FigureEntry:
    """Return a figure as a table with a value.

    Args:
        entry: A figure, or only its value.

    Returns:
        The figure; one with no source and no note if `entry` is only a value.
    """
    return entry if isinstance(entry, FigureEntry) else FigureEntry(value=entry)


class _Thing(_Strict, kw_only=True):
    name: EntryName
    title: Annotated[str, Meta(max_length=300)] = ""
    aliases: list[str] = []
    sources: dict[str, SourceEntry] = {}


# Below it a float represents every integer exactly.
LARGEST_EXACT_INTEGER: Final = 2.0**53
# Names that other figures have in their paths, so no memory tier may have them.
RESERVED_NAMES: Final = ("chip", "rack", "rent", "peak", "power", "reached", "scale_up", "pod", "scale_out")


class MemoryEntry(_Strict, kw_only=True):
    """One memory tier; its name is part of the paths of its figures."""

    name: Annotated[str, Meta(pattern=TIER_NAME)]
    capacity: Entry
    bandwidth: Entry
    latency: Entry | None = None
    usd_per_byte: Entry | None = None

    def __post_init__(self) -> None:
        """Refuse names that are part of the paths of other figures."""
        if self.name in RESERVED_NAMES:
            raise ValueError(f"the name {self.name!r} is reserved for other figures; take another name")


class SoftwareEntry(_Strict, kw_only=True):
    """A period of measurements on a chip, and the share of the usual speed reached."""

    first: str
    last: str
    share: Entry


class ChipEntry(_Thing, kw_only=True):
    """A chip file."""

    vendor: str = ""
    year: int = 0
    peak: dict[Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp6", "fp4", "int4"], Entry]
    memory: Annotated[list[MemoryEntry], Meta(min_length=1)]
    power: dict[Literal["tdp", "whole", "all_in"], Entry] = {}
    reached: dict[Literal["memory", "compute", "capacity"], Entry] = {}
    software: list[SoftwareEntry] = []


class DomainEntry(_Strict, kw_only=True):
    """One level of the network."""

    name: Name
    kind: Literal["scale-up", "pod", "scale-out"]
    size: Chips | None = None
    topology: Literal["switch", "mesh", "torus", "ring"] = "switch"
    bandwidth: Entry
    latency: Entry = "0 s"


class RackEntry(_Strict, kw_only=True):
    """A rack: its power, weight, cables and chips, and the published limits.

    links: scale-up links of one chip. host_chips: chips of one host, which one operating system manages.
    """

    power: Entry | None = None
    weight: Entry | None = None
    cables: Entry | None = None
    links: Entry | None = None
    power_limit: Entry | None = None
    weight_limit: Entry | None = None
    cable_limit: Entry | None = None
    host_chips: Entry | None = None
    chips: Chips | None = None


# Base units of the figures of a rack.
RACK_UNITS = {
    "power": "W", "weight": "kg", "cables": "", "links": "", "power_limit": "W", "weight_limit": "kg", "cable_limit": "",
    "host_chips": "",
}  # fmt: skip


class SystemEntry(_Thing, kw_only=True):
    """A system file."""

    chip: str | ChipEntry
    chips: Chips
    year: int = 0
    domains: Annotated[list[DomainEntry], Meta(min_length=1)]
    tiers: list[MemoryEntry] = []
    rack: RackEntry = msgspec.field(default_factory=RackEntry)


class QuoteEntry(_Strict, kw_only=True):
    """One rent.

    A contract has a term, and a cost of ownership has an owner, if the source gives them.
    """

    chip: str
    kind: Literal["owned", "contract", "ondemand", "assumed"]
    term: Annotated[str, Meta(max_length=40)] = ""
    owner: Literal["", "hyperscaler", "neocloud"] = ""
    rate: Entry


class RentsEntry(_Thing, kw_only=True):
    """A list of rents."""

    date: str
    quotes: list[QuoteEntry]


class CurveEntry(_Strict, kw_only=True):
    """Tokens per step with 1, 2, ... speculative tokens.

    models: names of the catalogue, or "typical" for all other models.
    """

    models: Annotated[list[str], Meta(min_length=1)]
    method: Literal["mtp", "eagle3", "dspark"]
    words: Annotated[str, Meta(min_length=1, max_length=200)]
    tokens: Annotated[list[Entry], Meta(min_length=1, max_length=64)]


class AcceptanceEntry(_Thing, kw_only=True):
    """A list of measured acceptance lengths of speculative tokens."""

    curves: list[CurveEntry]


class SpanEntry(_Strict, kw_only=True):
    """The range in which an input varied in the runs of a scaling law."""

    least: Entry | None = None
    largest: Entry | None = msgspec.field(name="most", default=None)


class SpreadEntry(_Strict, kw_only=True):
    """The joint uncertainty of constants: standard deviations and correlations.

    Rows and columns follow `names`. For the constants in `logs` they are those of the logarithm.
    """

    source: str = msgspec.field(name="from")
    names: list[str]
    logs: list[str] = []
    deviations: list[float]
    correlations: list[list[float]]


class LawEntry(_Thing, kw_only=True):
    """A scaling law: form, constants with standard errors, and the fitted runs.

    counts: which parameters the law counts. fixed: inputs that did not vary in its runs.
    """

    form: str
    year: int
    counts: Literal["active", "active without embeddings", "total", "compute"]
    corpus: Annotated[str, Meta(max_length=300)] = ""
    default: bool = False
    constants: dict[str, Entry] = {}
    errors: dict[str, Entry] = {}
    spread: SpreadEntry | None = None
    fixed: dict[str, Entry] = {}
    domain: dict[Literal["params", "tokens", "compute", "experts", "granularity", "sparsity", "bits", "ratio"], SpanEntry] = {}


class TrainedEntry(_Strict, kw_only=True):
    """An open model and the number of its training tokens."""

    model: str
    tokens: Entry


class TrainedListEntry(_Thing, kw_only=True):
    """A list of the training tokens of open models."""

    trained: list[TrainedEntry]


Schema = TypeVar("Schema", bound=Struct)
NAMES: Final[dict[type[Struct], str]] = {
    ChipEntry: "a chip",
    SystemEntry: "a system",
    RentsEntry: "a list of rents",
    AcceptanceEntry: "a list of acceptances",
    LawEntry: "a scaling law",
    TrainedListEntry: "a list of training tokens",
}


def validated(schema: type[Schema], path: Path) -> Schema:
    """Return a data file as an instance of a schema.

    Args:
        schema: Class of the schema.
        path: Path of the file.

    Returns:
        The content of the file.

    Raises:
        DataFileError: The file does not fit the schema; the error names the place and the line.
    """
    data = read_file(path)
    expected_kind = NAMES[schema]
    if not data:
        raise DataFileError(path, f"is empty; expected the file of {expected_kind}")

    # A wrong kind of file gets one clear message instead of a list of missing keys.
    kind = looks_like(data)
    if kind and kind != expected_kind and not {"a chip", "a system"} >= {kind, expected_kind}:
        raise DataFileError(path, f"is not the file of {expected_kind}: it looks like {kind}")

    # TOML has dates, and the schema has texts; msgspec refuses 8.0 as an integer.
    data = _texts(data)
    try:
        return msgspec.convert(data, schema)
    except UnicodeEncodeError:
        raise DataFileError(path, "contains half of a character, such as \\ud800") from None
    except msgspec.ValidationError as error:
        if kind and kind != expected_kind:
            raise DataFileError(path, f"is not the file of {expected_kind}: it looks like {kind}") from None
        problem, place = describe_problem(str(error), data, schema)
        raise DataFileError(path, problem, line_number(path, place)) from None


def _texts(data: Any) -> Any:
    """Return data with dates as texts and numbers such as 8.0 as integers."""
    if isinstance(data, dict):
        return {key: _texts(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_texts(value) for value in data]
    if isinstance(data, float) and data.is_integer() and abs(data) < LARGEST_EXACT_INTEGER:
        return int(data)
    return data.isoformat() if isinstance(data, datetime.date) else data
