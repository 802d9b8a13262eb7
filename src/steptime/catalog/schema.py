"""Schema of chip, system, rent, acceptance, law and training-token files, and the check of a file against it.

A class describes a table of a file: its annotations are the keys, and a key with a default may be missing. A check reads the
annotations, so that they must not become texts: this module has no `from __future__ import annotations`.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from steptime.catalog.data_files import ENTRY_NAME, LONGEST_NAME, NAME_RULE, line_number, looks_like, read_file
from steptime.errors import DataFileError, did_you_mean, short_repr
from steptime.number_checks import LARGEST, MOST_CHIPS

# Below it a float represents every integer exactly.
LARGEST_EXACT_INTEGER = 2.0**53
# Names that other figures have in their paths, so no memory tier may have them.
RESERVED_NAMES = ("chip", "rack", "rent", "peak", "power", "reached", "scale_up", "pod", "scale_out")
EMPTY: Mapping[Any, Any] = MappingProxyType({})
# Keys of files that are no clear names in Python, by attribute.
KEYS = {"source": "from", "largest": "most"}
# Types of values in words, in the order of a message.
TYPES = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list", dict: "a table",
}  # fmt: skip
# A file in JSON may have one, and no output can.
HALF_CHARACTER = re.compile(r"[\ud800-\udfff]")
Place = tuple[str, ...]


class Misfit(Exception):
    """A value that does not fit its schema, with the keys of its place."""

    def __init__(self, place: Place, problem: str) -> None:
        self.place = place
        # As TOML writes it, with special keys in quotes.
        keys = (key if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", key) else short_repr(key) for key in place)
        super().__init__(f"{'.'.join(keys)}: {problem}")


class Bounds(NamedTuple):
    """Bounds of a whole number, or of the length of a text or a list; pattern of a text, with its words."""

    minimum: int = 0
    maximum: float = LARGEST
    pattern: str = ""
    words: str = ""
    reserved_names: tuple[str, ...] = ()

    def check(self, value: Any, place: Place) -> None:
        """Raise Misfit unless a value is within the bounds.

        Args:
            value: A whole number, a text or a list.
            place: Keys of the value.

        Raises:
            Misfit: The value is out of bounds, or does not match the pattern.
        """
        is_number = isinstance(value, int)
        size = value if is_number else len(value)
        if size < self.minimum:
            raise Misfit(place, f"must be at least {self.minimum:,}{_got(value)}" if is_number else "must not be empty")
        if size > self.maximum:
            noun = "" if is_number else " characters" if isinstance(value, str) else " entries"
            raise Misfit(place, f"must {'be' if is_number else 'have'} at most {self.maximum:,}{noun}{_got(value)}")
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise Misfit(place, f"must be {self.words}{_got(value)}")
        if value in self.reserved_names:
            raise Misfit(place, f"{value!r} is reserved for other figures; take another name")


class Form:
    """An annotation, prepared for the check of values.

    `options` has the accepted types of values. Each type has the allowed texts, the form of the entries of a list, or the class
    of a table. A mapping has its allowed keys and the form of its values.
    """

    def __init__(self, annotation: Any) -> None:
        self.bounds: Bounds | None = None
        self.options: dict[type, Any] = {}
        for option in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
            is_bounded = get_origin(option) is Annotated
            kind, self.bounds = get_args(option) if is_bounded else (option, self.bounds)
            origin, arguments = get_origin(kind), get_args(kind)
            if origin is Literal:
                self.options[str] = arguments
            elif origin is Sequence:
                self.options[list] = Form(arguments[0])
            elif origin is Mapping:
                self.options[dict] = get_args(arguments[0]), Form(arguments[1])
            elif issubclass(kind, Table):
                self.options[dict] = kind
            else:
                self.options[kind] = None

    def convert(self, value: Any, place: Place) -> Any:
        """Return a value of a file, with tables as instances of their classes.

        Args:
            value: The value.
            place: Keys of the value.

        Returns:
            The value; a date becomes a text, and a number such as 8.0 an integer.

        Raises:
            Misfit: The value has another type, or is out of bounds.
        """
        if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_EXACT_INTEGER:
            value = int(value)
        elif isinstance(value, datetime.date):
            value = value.isoformat()
        if type(value) is int and int not in self.options and float in self.options:
            value = float(value)
        if type(value) not in self.options:
            # A whole number is a number too.
            kinds = [kind for kind in TYPES if kind in self.options and not (kind is int and float in self.options)]
            raise Misfit(place, f"must be {_join_alternatives([TYPES[kind] for kind in kinds])}{_got(value)}")

        option = self.options[type(value)]
        if isinstance(value, str) and HALF_CHARACTER.search(value):
            raise Misfit(place, "contains half of a character, such as \\ud800")
        if self.bounds and value is not None:
            self.bounds.check(value, place)
        if isinstance(value, list):
            return [option.convert(entry, (*place, str(index))) for index, entry in enumerate(value)]
        if isinstance(value, dict) and not isinstance(option, tuple):
            return option.from_data(value, place)
        if isinstance(value, dict):
            keys, form = option
            for key in value:
                if keys and key not in keys:
                    raise Misfit((*place, key), f"no such key; known: {', '.join(keys)}")
            return {key: form.convert(entry, (*place, key)) for key, entry in value.items()}
        if option and value not in option:
            texts = [text or "left out" for text in sorted(option, key=lambda text: not text)]
            raise Misfit(place, f"must be {_join_alternatives(texts)}{_got(value)}")
        return value


def _join_alternatives(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _got(value: Any) -> str:
    """Return the end of a message with a wrong value."""
    if value == "":
        return ""
    if value is None or isinstance(value, bool):
        return f", got {json.dumps(value)}"
    return f", got {TYPES[type(value)] if isinstance(value, dict | list) else short_repr(value)}"


@dataclass_transform(kw_only_default=True)
class Table:
    """A table of a file; it must not have other keys than the annotations of its class."""

    forms: ClassVar[Mapping[str, Form]] = EMPTY

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def from_data(cls, data: Mapping[str, Any], place: Place = ()) -> Any:
        """Return a table of a file.

        Args:
            data: Keys and values.
            place: Keys of the table in the file.

        Returns:
            The table.

        Raises:
            Misfit: A key is missing or unknown, or a value does not fit its annotation.
        """
        # Annotations are prepared once, for the first file of a kind.
        if "forms" not in vars(cls):
            hints = get_type_hints(cls, include_extras=True)
            cls.forms = {name: Form(annotation) for name, annotation in hints.items() if name != "forms"}
        names = {KEYS.get(name, name): name for name in cls.forms}
        values = {}
        for key, value in data.items():
            if key not in names:
                near = did_you_mean(key, names, max_names=1)
                raise Misfit((*place, key), "no such key" + (f"; did you mean {near[0]}?" if near else ""))
            values[names[key]] = cls.forms[names[key]].convert(value, (*place, key))
        for key, name in names.items():
            if name not in values and not hasattr(cls, name):
                raise Misfit((*place, key), "is missing")
        return cls(**values)


Grade = Literal["measured", "vendor", "reported", "recalled", "guess"]
Name = Annotated[str, Bounds(1, 100)]
EntryName = Annotated[str, Bounds(1, LONGEST_NAME, ENTRY_NAME, NAME_RULE)]
TierName = Annotated[
    str, Bounds(0, LARGEST, "[A-Za-z][A-Za-z0-9_-]{0,39}", "a letter and up to 39 letters, digits, - and _", RESERVED_NAMES)
]
Chips = Annotated[int, Bounds(1, MOST_CHIPS)]


class SourceEntry(Table):
    """The source of figures."""

    url: str
    date: str
    grade: Grade
    note: str = ""


class FigureEntry(Table):
    """A figure as written: value with unit, source, and differences from the source."""

    value: str | int | float
    source: str = ""
    grade: Grade | None = None
    note: str = ""


Entry = FigureEntry | str | int | float
"""A figure, or only its value."""


class _Thing(Table):
    name: EntryName
    title: Annotated[str, Bounds(0, 300)] = ""
    aliases: Sequence[str] = ()
    sources: Mapping[str, SourceEntry] = EMPTY


class MemoryEntry(Table):
    """One memory tier; its name is part of the paths of its figures."""

    name: TierName
    capacity: Entry
    bandwidth: Entry
    latency: Entry | None = None
    usd_per_byte: Entry | None = None


class SoftwareEntry(Table):
    """A period of measurements on a chip, the share of the usual speed reached, and the factor on fixed times of kernels."""

    first: str
    last: str
    share: Entry
    launches: Entry | None = None


class ChipEntry(_Thing):
    """A chip file."""

    vendor: str = ""
    generation: str = ""
    year: int = 0
    peak: Mapping[Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp6", "fp4", "int4"], Entry]
    memory: Annotated[Sequence[MemoryEntry], Bounds(1)]
    power: Mapping[Literal["tdp", "whole", "all_in"], Entry] = EMPTY
    reached: Mapping[Literal["memory", "compute", "capacity"], Entry] = EMPTY
    software: Sequence[SoftwareEntry] = ()


class DomainEntry(Table):
    """One level of the network."""

    name: Name
    kind: Literal["scale-up", "pod", "scale-out"]
    size: Chips | None = None
    topology: Literal["switch", "mesh", "torus", "ring"] = "switch"
    sums: bool = False
    bandwidth: Entry
    latency: Entry = "0 s"


class RackEntry(Table):
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


class SystemEntry(_Thing):
    """A system file."""

    chip: str | ChipEntry
    chips: Chips
    year: int = 0
    domains: Annotated[Sequence[DomainEntry], Bounds(1)]
    tiers: Sequence[MemoryEntry] = ()
    rack: RackEntry = RackEntry()


class QuoteEntry(Table):
    """One rent.

    A contract has a term, and a cost of ownership has an owner, if the source gives them.
    """

    chip: str
    kind: Literal["owned", "contract", "ondemand", "assumed"]
    term: Annotated[str, Bounds(0, 40)] = ""
    owner: Literal["", "hyperscaler", "neocloud"] = ""
    rate: Entry


class RentsEntry(_Thing):
    """A list of rents."""

    date: str
    quotes: Sequence[QuoteEntry]


class CurveEntry(Table):
    """Tokens per step with 1, 2, ... speculative tokens.

    models: names of the catalogue, or "typical" for all other models.
    """

    models: Annotated[Sequence[str], Bounds(1)]
    method: Literal["mtp", "eagle3", "dspark"]
    words: Annotated[str, Bounds(1, 200)]
    tokens: Annotated[Sequence[Entry], Bounds(1, 64)]


class LengthsEntry(Table):
    """Acceptance lengths of one drafter with one number of speculative tokens, by task.

    models: names of the catalogue, or "typical" for models outside it. kind: length (tokens per step) or rate (probability
    per token). drafts: speculative tokens per step. temperature: None if not published. tree: whether these form a tree,
    which no chain of them equals.
    """

    models: Annotated[Sequence[str], Bounds(1)]
    method: Literal["eagle3", "draft_model"]
    drafter: Annotated[str, Bounds(1, 200)]
    drafts: Annotated[int, Bounds(1, 64)]
    temperature: float | None = None
    kind: Literal["length", "rate"] = "length"
    tree: bool = False
    tasks: Annotated[Sequence[str], Bounds(1, 32)]
    values: Annotated[Sequence[Entry], Bounds(1, 32)]


class HeadEntry(Table):
    """A public EAGLE-3 head, with the shape of its layer; shape 0: as the layers of the model.

    place: Hugging Face id of the weights; "" if no public head has this shape.
    """

    models: Annotated[Sequence[str], Bounds(1)]
    place: Annotated[str, Bounds(0, 200)] = ""
    intermediate: Annotated[int, Bounds(0, 1 << 20)] = 0
    heads: Annotated[int, Bounds(0, 4096)] = 0
    kv_heads: Annotated[int, Bounds(0, 4096)] = 0
    head_dim: Annotated[int, Bounds(0, 4096)] = 0
    vocabulary: Annotated[int, Bounds(1, 1 << 22)] = 32_000
    source: str


class AcceptanceEntry(_Thing):
    """A list of measured acceptance lengths of speculative tokens, and of drafters."""

    curves: Sequence[CurveEntry] = ()
    lengths: Sequence[LengthsEntry] = ()
    heads: Sequence[HeadEntry] = ()


class SpanEntry(Table):
    """The range in which an input varied in the runs of a scaling law."""

    least: Entry | None = None
    largest: Entry | None = None


class SpreadEntry(Table):
    """The joint uncertainty of constants: standard deviations and correlations.

    Rows and columns follow `names`. For the constants in `logs` they are those of the logarithm.
    """

    source: str
    names: Sequence[str]
    logs: Sequence[str] = ()
    deviations: Sequence[float]
    correlations: Sequence[Sequence[float]]


class LawEntry(_Thing):
    """A scaling law: form, constants with standard errors, and the fitted runs.

    counts: which parameters the law counts. fixed: inputs that did not vary in its runs.
    """

    form: str
    year: int
    counts: Literal["active", "active without embeddings", "total", "compute"]
    corpus: Annotated[str, Bounds(0, 300)] = ""
    default: bool = False
    constants: Mapping[str, Entry] = EMPTY
    errors: Mapping[str, Entry] = EMPTY
    spread: SpreadEntry | None = None
    fixed: Mapping[str, Entry] = EMPTY
    domain: Mapping[
        Literal["params", "tokens", "compute", "experts", "granularity", "sparsity", "bits", "ratio"], SpanEntry
    ] = EMPTY


class TrainedEntry(Table):
    """An open model and the number of its training tokens."""

    model: str
    tokens: Entry


class TrainedListEntry(_Thing):
    """A list of the training tokens of open models."""

    trained: Sequence[TrainedEntry]


Schema = TypeVar("Schema", bound=Table)
NAMES: dict[type[Table], str] = {
    ChipEntry: "a chip",
    SystemEntry: "a system",
    RentsEntry: "a list of rents",
    AcceptanceEntry: "a list of acceptances",
    LawEntry: "a scaling law",
    TrainedListEntry: "a list of training tokens",
}


# Checked files, by schema and path.
_TABLES: dict[tuple[type[Table], Path], tuple[dict[str, Any], Any]] = {}


def validated(schema: type[Schema], path: Path) -> Schema:
    """Return a data file as an instance of a schema.

    Args:
        schema: Class of the schema.
        path: Path of the file.

    Returns:
        The content of the file; do not change it, it is cached.

    Raises:
        DataFileError: The file does not fit the schema; the error names the place and the line.
    """
    data = read_file(path)
    # An unchanged file is the same dict.
    entry = _TABLES.get((schema, path))
    if entry is not None and entry[0] is data:
        cached: Schema = entry[1]
        return cached
    expected_kind = NAMES[schema]
    if not data:
        raise DataFileError(path, f"is empty; expected the file of {expected_kind}")

    try:
        table: Schema = schema.from_data(data)
    except Misfit as misfit:
        # A wrong kind of file gets one clear message instead of a missing key.
        if (kind := looks_like(data)) not in ("", expected_kind):
            raise DataFileError(path, f"is not the file of {expected_kind}: it looks like {kind}") from None
        raise DataFileError(path, str(misfit), line_number(path, ".".join(misfit.place))) from None
    _TABLES[schema, path] = data, table
    return table
