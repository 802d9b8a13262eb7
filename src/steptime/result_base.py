"""Result base: repr, JSON with units in keys, tables for pandas, CSV and HTML.

A result is a frozen dataclass on `Result`, or on `Tabular` for a table. The metadata of its fields describe them:
`field(metadata=unit("s", "time per output token"))`. From this come the JSON key (`tpot_s`) and its line in docs/json.md.
The Python attribute keeps its name.
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from html import escape
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from steptime.errors import InputError, SteptimeError, choices_in, safe_cell

SUFFIXES = {
    "s": "_s", "B": "_bytes", "B/s": "_bytes_per_s", "FLOP": "_flop", "FLOP/s": "_flop_per_s", "W": "_w", "kg": "_kg",
    "tokens": "_tokens",
    "USD": "_usd", "USD/s": "_usd_per_s", "USD/B": "_usd_per_byte", "J": "_joules", "USD/J": "_usd_per_joule",
    "requests/s": "_requests_per_s", "tok/s": "_tokens_per_s",
}  # fmt: skip
"""The suffix for each unit in the JSON key of a field, unless the name of the field contains it."""


def unit(symbol: str, meaning: str, *, key: str = "", kind: str = "", left_out: bool = False) -> dict[str, Any]:
    """Return the metadata of a field.

    Args:
        symbol: Unit; "" for a count, a share or a text.
        meaning: Meaning, for docs/json.md.
        key: JSON key, where the name with its suffix would not read well.
        kind: Type in words, where the annotation does not express it.
        left_out: Whether JSON omits the field, such as an array with one value per request.

    Returns:
        The metadata.
    """
    return {"unit": symbol, "meaning": meaning, "key": key, "kind": kind, "left_out": left_out}


def json_key(name: str, metadata: Mapping[str, Any]) -> str:
    """Return the JSON key of a field: its name, and its unit if the name lacks it.

    Args:
        name: Name of the field.
        metadata: Metadata from `unit`.

    Returns:
        The key.

    >>> [json_key(n, unit(u, "")) for n, u in (("tpot", "s"), ("weight_bytes", "B"), ("requests_per_second", ""))]
    ['tpot_s', 'weight_bytes', 'requests_per_s']
    """
    if metadata.get("key"):
        return str(metadata["key"])
    short = name.replace("per_second", "per_s")
    suffix = SUFFIXES.get(metadata.get("unit", ""), "")
    return short if f"_{short}".endswith(suffix) else short + suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A JSON key of a result: attribute, key, unit, type and meaning.

    `kind` is the type in words.
    """

    name: str
    key: str
    unit: str
    type: str
    kind: str
    meaning: str


def entries(kind: type) -> Iterator[Entry]:
    """Yield the JSON keys of a dataclass: fields, then the properties in `DERIVED`.

    Args:
        kind: A dataclass.

    Yields:
        The keys in order.
    """
    attributes = [(f.name, f.metadata, str(f.type)) for f in fields(kind) if not f.metadata.get("left_out")]
    for name, metadata in getattr(kind, "DERIVED", {}).items():
        attributes.append((name, metadata, str(getattr(kind, name).fget.__annotations__["return"])))
    for name, metadata, annotated in attributes:
        yield Entry(
            name=name,
            key=json_key(name, metadata),
            unit=metadata.get("unit", ""),
            type=annotated,
            kind=metadata.get("kind", ""),
            meaning=metadata.get("meaning", ""),
        )


def plain(value: Any) -> Any:
    """Return a value as dicts, lists, numbers and texts.

    Args:
        value: Any value, with dataclasses and arrays inside.

    Returns:
        The plain value; numbers that are not finite become None.

    >>> plain({"seconds": np.array([1.0, math.inf])})
    {'seconds': [1.0, None]}
    """
    # Results first: their keys come from field metadata, not from the attribute names.
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.key: plain(getattr(value, entry.name)) for entry in entries(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


@cache
def _compared_fields(kind: type) -> Callable[[Any], Any]:
    """Return a function from a dataclass to the values that a comparison reads."""
    names = [f.name for f in fields(kind) if f.compare]
    return attrgetter(*names) if names else lambda _: ()


def is_same(first: Any, second: Any) -> bool:
    """Return whether two values are equal, where NaN equals NaN and arrays are compared by value.

    Args:
        first: Any value, with dataclasses and arrays inside.
        second: Another value.

    Returns:
        True if they are.

    >>> is_same({"seconds": (math.nan, 1.0)}, {"seconds": (float("nan"), 1.0)}), is_same(math.nan, 1.0)
    (True, False)
    """
    if first is second or type(first) is not type(second):
        return first is second or bool(np.all(first == second))
    if is_dataclass(first) and not isinstance(first, type):
        compared = _compared_fields(type(first))
        first, second = compared(first), compared(second)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(is_same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        # Mostly the comparison of Python decides, which is fast. It cannot compare arrays.
        with suppress(ValueError):
            if first == second:
                return True
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    return bool(first == second) or (isinstance(first, float) and math.isnan(first) and math.isnan(second))


def to_json(value: Any) -> str:
    """Return a value as strict JSON text.

    Args:
        value: A result, or any value for `plain`.

    Returns:
        JSON text; a result includes its schema.
    """
    data = value.to_dict() if isinstance(value, Result) else plain(value)
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def problem(error: SteptimeError) -> dict[str, Any]:
    """Return an error as the JSON of a command under --json, with exit code 2.

    The class name gives the kind of error (see `errors`). nearest: Valid choices that the message names.

    Args:
        error: The error.

    Returns:
        A plain dict.

    >>> problem(InputError("no such file"))
    {'schema': 'steptime.error/2', 'error': 'InputError', 'message': 'no such file', 'nearest': []}
    """
    nearest = list(getattr(error, "nearest", ()) or choices_in(str(error)))
    return {"schema": "steptime.error/2", "error": type(error).__name__, "message": str(error), "nearest": nearest}


# Dataclasses write the hash.
class Result(ABC):  # noqa: PLW1641
    """Base class of all results.

    `SCHEMA` is the name and version of the JSON that a command prints. `DERIVED` has the properties that JSON contains in
    addition to the fields, with their metadata.
    """

    __slots__ = ()
    SCHEMA: ClassVar[str] = ""
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A dataclass keeps this comparison; its own would take the NaN of a copy for another value.
        if "__hash__" not in cls.__dict__:
            cls.__eq__ = Result.__eq__  # type: ignore[method-assign]

    def __eq__(self, value: object) -> bool:
        return is_same(self, value) if type(self) is type(value) else NotImplemented

    @abstractmethod
    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the result in one line, and its main figures.

        Returns:
            A title and a table of texts.
        """

    def __repr__(self) -> str:
        title, figures = self.headline()
        return "\n".join([title, *(f"  {name}: {text}" for name, text in figures.items())])

    def _repr_html_(self) -> str:
        title, figures = self.headline()
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in figures.items())
        return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>{self.drawing()}"

    def drawing(self) -> str:
        """Draw the result for notebooks.

        Returns:
            SVG text; "" without a picture.
        """
        return ""

    def to_dict(self, **extra: Any) -> dict[str, Any]:
        """Return the result as dicts, lists, numbers and texts, with units in the keys.

        Args:
            extra: Further values, which follow the result.

        Returns:
            A plain dict; a number that is not finite becomes None, because JSON has no other value for it.
        """
        schema = {"schema": self.SCHEMA} if self.SCHEMA else {}
        figures: dict[str, Any] = plain(self)
        return schema | figures | {name: plain(value) for name, value in extra.items()}

    def to_json(self) -> str:
        """Return the result as strict JSON text.

        Returns:
            JSON text.
        """
        return to_json(self)


class Tabular(Result):
    """A result that is also a table.

    `ROWS` is the field with the rows, and their class; a table without rows of one class overrides `columns`.
    """

    __slots__ = ()
    ROWS: ClassVar[tuple[str, type]]

    def columns(self) -> dict[str, Any]:
        """Return the columns of the table.

        Returns:
            Columns of one length by name, with units in the names.
        """
        name, kind = self.ROWS
        return columns_by_key(kind, getattr(self, name))

    def to_csv(self) -> str:
        """Return the table as CSV text with a header.

        Returns:
            CSV text; a number that is not finite is an empty cell.
        """
        written = io.StringIO()
        columns = self.columns()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow(map(safe_cell, columns))
        cells = (np.asarray(values).tolist() for values in columns.values())
        writer.writerows([_cell(value) for value in row] for row in zip(*cells, strict=True))
        return written.getvalue()

    def to_dataframe(self) -> Any:
        """Return the table as a pandas.DataFrame.

        Returns:
            The data frame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InputError("a data frame needs pandas: pip install pandas; to_csv() and to_dict() work without it") from None
        return pandas.DataFrame({name: np.asarray(values) for name, values in self.columns().items()})


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else safe_cell(value)


def columns_by_key(kind: type, rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Return rows of one dataclass as columns.

    Args:
        kind: The dataclass.
        rows: Its instances.

    Returns:
        Lists by JSON key.
    """
    return {entry.key: [getattr(row, entry.name) for row in rows] for entry in entries(kind)}


def range_columns(pairs: Sequence[tuple[float, float] | None]) -> tuple[list[float], list[float]]:
    """Return the lower and the upper ends of ranges as two columns.

    Args:
        pairs: Ends of each range; None without a range.

    Returns:
        Lower ends and upper ends, NaN without a range.

    >>> range_columns([(1.0, 2.0), None])
    ([1.0, nan], [2.0, nan])
    """
    ends = [(math.nan, math.nan) if pair is None else pair for pair in pairs]
    return [low for low, _ in ends], [high for _, high in ends]


def broadcast(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures as columns of one length.

    Args:
        columns: Figures by name, which broadcast.

    Returns:
        Columns in the order of the common shape, with the last axis fastest.
    """
    arrays = np.broadcast_arrays(*map(np.asarray, columns.values()))
    return {name: array.ravel() for name, array in zip(columns, arrays, strict=True)}


def in_words(values: Any, write: Any) -> str:
    """Write one number, or the range and the shape of an array.

    Args:
        values: A number or an array.
        write: Function that writes one number.

    Returns:
        Text.

    >>> in_words(2.0, "{:g} s".format), in_words(np.array([1.0, 3.0]), "{:g} s".format)
    ('2 s', '1 s to 3 s, shape (2,)')
    """
    array = np.asarray(values)
    if array.ndim == 0:
        return str(write(float(array)))
    numbers = array[~np.isnan(array)]
    if numbers.size == 0:
        return f"unknown, shape {array.shape}"
    return f"{write(float(numbers.min()))} to {write(float(numbers.max()))}, shape {array.shape}"
