"""Describes what in a file does not fit its schema, and at which line.

msgspec leaves the keys of some tables out of its messages, so the keys are found again here. The line in a TOML file is
found by the key of the place.

The schema of chip, system, rent and law files, and the check against it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from steptime.catalog.data_files import ENTRY_NAME, LONGEST_NAME, NAME_RULE, looks_like, read_file
from steptime.errors import DataFileError, did_you_mean, short_repr
from steptime.number_checks import MOST_CHIPS

# The lookahead replaces "$", which allows a line end.
TIER_NAME: Final = "^[A-Za-z][A-Za-z0-9_-]{0,39}(?!a|[^a])"
LIKE: Final = {TIER_NAME: "a letter and up to 39 letters, digits, - and _", ENTRY_NAME: NAME_RULE}
EMPTY: Final = "must not be empty"
PLACE: Final = re.compile(r"(?P<key>key)?(?:` in `)?\$?(?P<place>[^`]*)`")
KINDS: Final = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "array": "a list",
    "object": "a table",
}  # fmt: skip


def describe_problem(message: str, data: Any, schema: type[Struct]) -> tuple[str, str]:
    """Describe what does not fit a schema, and name the place.

    Args:
        message: Message of msgspec.
        data: Content of the file.
        schema: Class of the schema.

    Returns:
        The problem in words, and the place as keys joined by dots. If the message cannot be parsed, it is returned as it
        is with an empty place.
    """
    try:
        return _problem(message, data, schema)
    except (KeyError, IndexError, ValueError, TypeError, StopIteration):
        return short_repr(message).strip("'\""), ""


def _problem(message: str, data: Any, schema: type[Struct]) -> tuple[str, str]:
    # Take the last separator, because text of the file may come before it.
    reason, separator, place_text = message.rpartition(" - at `")
    place_match = PLACE.fullmatch(place_text) if separator else None
    reason = reason if place_match else message
    parts = _parts(place_match["place"] if place_match else "", message, data, schema)

    # A misspelt key: suggest the nearest key of this table.
    if misspelt := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        field_names = [f.encode_name for f in msgspec.structs.fields(_type_at(schema, parts))]
        near = did_you_mean(misspelt[1], field_names, max_names=1)
        parts = [*parts, misspelt[1]]
        return f"{_place(parts)}: no such key" + (f"; did you mean {near[0]}?" if near else ""), ".".join(parts)

    # A required key is missing.
    if lacking := re.fullmatch(r"Object missing required field `(.*)`", reason):
        parts = [*parts, lacking[1]]
        return f"{_place(parts)}: is missing", ".".join(parts)

    # The keys of a table such as [peak] are limited to a list.
    if place_match and place_match["key"]:
        key = re.sub(r"^Invalid enum value '(.*)'$", r"\1", reason)
        keys = get_args(get_args(_type_at(schema, parts))[0])
        parts = [*parts, key]
        return f"{_place(parts)}: no such key; known: {', '.join(keys)}", ".".join(parts)

    # Any other reason is a wrong value.
    words = _in_words(reason, schema, parts)
    value_words = "" if words in (EMPTY, reason) else _value_in_words(_value_at(data, parts))

    return f"{_place(parts)}: {words}{value_words}", ".".join(parts)


def _in_words(reason: str, schema: type[Struct], parts: Sequence[str]) -> str:
    """Return the requirement on a value, from the reason in the message of msgspec."""
    if reason.startswith("Invalid enum value"):
        allowed = [option for option_type in _options(_type_at(schema, parts)) for option in get_args(option_type)]
        return (
            f"must be {_join_alternatives([option or 'left out' for option in sorted(allowed, key=lambda option: not option)])}"
        )
    if bound := re.fullmatch(r"Expected `(int|float)` (>=|<=) (.*)", reason):
        return f"must be at {'least' if bound[2] == '>=' else 'most'} {int(bound[3]):,}"
    if length := re.fullmatch(r"Expected `(str|array)` of length (>=|<=) (.*)", reason):
        if (length[2], length[3]) == (">=", "1"):
            return EMPTY
        noun = "characters" if length[1] == "str" else "entries"
        return f"must have at {'least' if length[2] == '>=' else 'most'} {length[3]} {noun}"
    if like := re.fullmatch(r"Expected `str` matching regex '(.*)'", reason):
        return f"must be {LIKE.get(like[1], like[1])}"
    if kinds := re.match(r"Expected `(.*?)`", reason):
        kind_names = [kind for kind in kinds[1].split(" | ") if kind != "null" and not (kind == "int" and "float" in kinds[1])]
        return f"must be {_join_alternatives([KINDS.get(kind, kind) for kind in kind_names])}"

    return reason


def _join_alternatives(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _value_in_words(value: Any) -> str:
    if value is None or isinstance(value, bool | dict | list):
        words = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else str(value).lower()
        return f", got {'null' if value is None else words}"
    return "" if value == "" else f", got {short_repr(value)}"


def _place(parts: Sequence[str]) -> str:
    """Return a place as TOML writes it, with special keys in quotes."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", part) else short_repr(part) for part in parts)


def _parts(place: str, message: str, data: Any, schema: type[Struct]) -> list[str]:
    """Return the keys of a place such as ".memory[0].bandwidth".

    For "[...]", msgspec hides the key. The key is the only one that causes the same message.
    """
    parts: list[str] = []
    for part in re.findall(r"[^.\[\]]+|\[\.\.\.\]", place):
        parts.append(
            part
            if part != "[...]"
            else next(key for key in _value_at(data, parts) if _is_sole_cause(key, parts, message, data, schema))
        )
    return parts


def _is_sole_cause(key: str, parts: Sequence[str], message: str, data: Any, schema: type[Struct]) -> bool:
    """Return whether the message is the same if the table has only this key."""
    try:
        msgspec.convert(_with(data, parts, {key: _value_at(data, [*parts, key])}), schema)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _with(data: Any, parts: Sequence[str], value: Any) -> Any:
    """Return the data with another value at a place."""
    if not parts:
        return value
    first, *inner_parts = parts
    if isinstance(data, list):
        return [_with(item, inner_parts, value) if str(index) == first else item for index, item in enumerate(data)]
    return data | {first: _with(data[first], inner_parts, value)}


def _value_at(data: Any, parts: Sequence[str]) -> Any:
    """Return the value at a place of the data."""
    for part in parts:
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


def _type_at(schema: Any, parts: Sequence[str]) -> Any:
    """Return the type at a place of a schema.

    Where a table or a text is allowed, this is the type of the table.
    """
    for part in parts:
        if isinstance(schema, type) and issubclass(schema, Struct):
            names = {f.encode_name: f.name for f in msgspec.structs.fields(schema)}
            schema = get_type_hints(schema)[names[part]]
        else:
            schema = get_args(schema)[-1]
        tables = [
            option_type
            for option_type in _options(schema)
            if get_origin(option_type) or (isinstance(option_type, type) and issubclass(option_type, Struct))
        ]
        schema = tables[0] if tables else schema
    return schema


def _options(annotation: Any) -> tuple[Any, ...]:
    """Return the types that a value may have."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


# Both patterns run on every line of an untrusted file. No two repeats share a character, so the time stays linear.
_TABLE: Final = re.compile(r"(\[{1,2})([^\[\]]+)\]{1,2}\s*(?:#.*)?")
_KEY: Final = re.compile(r"[\w.\"' -]+")
Key = tuple[str, ...]


def line_number(path: Path, place: str) -> int | None:
    """Return the line of a place in a TOML file.

    Args:
        path: Path of the file.
        place: Keys joined by dots. An entry of a list of tables has its number from 0, its name or its kind as key. A
            file of a chip has no table "chip", so the "chip" at the start of a place may be missing there.

    Returns:
        Line number from 1, of the place or of the nearest table above it; None if the file has neither.
    """
    key_lines = list(_keys(path.read_text(encoding="utf-8-sig", errors="replace")))
    keys = tuple(place.split("."))
    while keys:
        for number, key in key_lines:
            if key in (keys, keys[1:] if keys[0] == "chip" else keys):
                return number
        keys = keys[:-1]
    return None


def _keys(text: str) -> Iterator[tuple[int, Key]]:
    """Yield each line with a key or a table header, once for every form of its place."""
    lines = text.splitlines()
    table: Key = ()
    names: list[Key] = [()]
    counts: dict[Key, int] = {}
    for number, line in enumerate(lines, 1):
        if opened := _TABLE.fullmatch(line.strip()):
            table = _key_parts(opened[2])
            names = [table]
            if len(opened[1]) == 2:
                n = counts[table] = counts.get(table, -1) + 1
                names = [(*table, str(n)), *((*table[:-1], name) for name in _names(lines, number))]
            yield from ((number, name) for name in names)
        elif key := _key_and_value(line)[0]:
            yield from ((number, (*name, *_key_parts(key))) for name in names)


def _names(lines: list[str], start: int) -> Iterator[str]:
    """Yield the keys of an entry in a list of tables: name, and kind with underscores."""
    missing_keys = {"name", "kind"}
    for index in range(start, len(lines)):
        if not missing_keys or _TABLE.fullmatch(lines[index].strip()):
            return
        key, value = _key_and_value(lines[index])
        if key in missing_keys:
            # Only the first one counts, because a text block may repeat such a line many times.
            missing_keys.remove(key)
            yield value.partition("#")[0].strip().strip("\"'").replace("-", "_" if key == "kind" else "-")


def _key_and_value(line: str) -> tuple[str, str]:
    """Return the key and the value of a line, two empty texts if it has no key."""
    before, equals, value = line.partition("=")
    key = before.strip()
    return (key, value.strip()) if equals and _KEY.fullmatch(key) else ("", "")


def _key_parts(key: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in key.split("."))


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
