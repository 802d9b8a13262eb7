"""What every result can do: a repr that reads well, dicts and JSON with units in their keys, tables for pandas, CSV and HTML.

A result is a frozen dataclass on `Result`, or on `Tabular` where it is a table too. Its fields say what they are in their
metadata, `field(metadata=unit("s", "time per output token"))`: that gives the key in JSON (`tpot_s`), its line in
docs/json.md, and nothing to Python, where the attribute keeps its name.
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import Any, ClassVar

import numpy as np

from steptime.errors import InputError, SteptimeError
from steptime.safe_text import safe_cell

SUFFIXES = {
    "s": "_s", "B": "_bytes", "B/s": "_bytes_per_s", "FLOP": "_flop", "FLOP/s": "_flop_per_s", "W": "_w", "kg": "_kg",
    "tokens": "_tokens",
    "USD": "_usd", "USD/s": "_usd_per_s", "USD/B": "_usd_per_byte", "J": "_joules", "USD/J": "_usd_per_joule",
    "requests/s": "_requests_per_s", "tok/s": "_tokens_per_s",
}  # fmt: skip
"""What a unit adds to the key of a field whose name does not tell it."""


def unit(symbol: str, meaning: str, *, key: str = "", kind: str = "", left_out: bool = False) -> dict[str, Any]:
    """Return the metadata of a field: its unit ("" for a count, a share or a text), its meaning, and what JSON calls it.

    key: where the name with its suffix would not read well; kind: the type in words, where the annotation does not tell it;
    left_out: of JSON, as an array of every request is.
    """
    return {"unit": symbol, "meaning": meaning, "key": key, "kind": kind, "left_out": left_out}


def json_key(name: str, metadata: Mapping[str, Any]) -> str:
    """Return what JSON calls a field: its name, its unit behind it unless the name tells it.

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
    """A key of a result in JSON: attribute, key, unit, type as annotated or in words (`kind`), and meaning."""

    name: str
    key: str
    unit: str
    type: str
    kind: str
    meaning: str


def entries(kind: type) -> Iterator[Entry]:
    """Yield the keys that a dataclass has in JSON, in order: those of its fields, then of the properties in `DERIVED`."""
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
    """Return `value` as dicts, lists, numbers and texts; a number that is not finite becomes None.

    >>> plain({"seconds": np.array([1.0, math.inf])})
    {'seconds': [1.0, None]}
    """
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


def to_json(value: Any) -> str:
    """Return `value` as strict JSON text; a result brings its schema."""
    data = value.to_dict() if isinstance(value, Result) else plain(value)
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def problem(error: SteptimeError) -> dict[str, Any]:
    """Return an error as what a command prints under --json instead of its message, with exit code 2.

    The class tells the kind of slip (`errors` draws the tree); nearest: valid choices near a name that is unknown.

    >>> problem(InputError("no such file"))
    {'schema': 'steptime.error/2', 'error': 'InputError', 'message': 'no such file', 'nearest': []}
    """
    nearest = list(getattr(error, "nearest", ()))
    return {"schema": "steptime.error/2", "error": type(error).__name__, "message": str(error), "nearest": nearest}


class Result(ABC):
    """What all results share. `SCHEMA` is the name and version of the JSON of one that a command prints.

    `DERIVED` holds the properties that JSON tells beside the fields, with their metadata.
    """

    __slots__ = ()
    SCHEMA: ClassVar[str] = ""
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @abstractmethod
    def headline(self) -> tuple[str, dict[str, str]]:
        """Return what this is in one line, and its main figures in words by name."""

    def __repr__(self) -> str:
        title, figures = self.headline()
        return "\n".join([title, *(f"  {name}: {text}" for name, text in figures.items())])

    def _repr_html_(self) -> str:
        title, figures = self.headline()
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in figures.items())
        return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>{self.drawing()}"

    def drawing(self) -> str:
        """Return a small picture as SVG text, for notebooks; "" for what has none."""
        return ""

    def to_dict(self, **extra: Any) -> dict[str, Any]:
        """Return the result as plain dicts, lists, numbers and texts, units in the keys; `extra` is put behind it.

        A number that is not finite is None, as JSON has no other.
        """
        schema = {"schema": self.SCHEMA} if self.SCHEMA else {}
        figures: dict[str, Any] = plain(self)
        return schema | figures | {name: plain(value) for name, value in extra.items()}

    def to_json(self) -> str:
        """Return the result as strict JSON text."""
        return to_json(self)


class Tabular(Result):
    """A result that is a table too."""

    __slots__ = ()

    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """Return the columns of the table by name, units in the names, all of one length."""

    def to_csv(self) -> str:
        """Return the table as CSV text with a header; a number that is not finite is an empty cell."""
        written = io.StringIO()
        columns = self.columns()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow(map(safe_cell, columns))
        cells = (np.asarray(values).tolist() for values in columns.values())
        writer.writerows([_cell(value) for value in row] for row in zip(*cells, strict=True))
        return written.getvalue()

    def to_dataframe(self) -> Any:
        """Return the table as a pandas.DataFrame. Raises InputError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise InputError("a data frame needs pandas: pip install pandas; to_csv() and to_dict() do without") from None
        return pandas.DataFrame({name: np.asarray(values) for name, values in self.columns().items()})


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else safe_cell(value)


def columns_by_key(kind: type, rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Return rows of one dataclass as columns by JSON key."""
    return {entry.key: [getattr(row, entry.name) for row in rows] for entry in entries(kind)}


def broadcast(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures that broadcast as columns of one length, in the order of their common shape, last axis fastest."""
    arrays = np.broadcast_arrays(*map(np.asarray, columns.values()))
    return {name: array.ravel() for name, array in zip(columns, arrays, strict=True)}


def in_words(values: Any, write: Any) -> str:
    """Write one number with `write`, and an array as its range and its shape.

    >>> in_words(2.0, "{:g} s".format), in_words(np.array([1.0, 3.0]), "{:g} s".format)
    ('2 s', '1 s to 3 s, shape (2,)')
    """
    array = np.asarray(values)
    if array.ndim == 0:
        return str(write(float(array)))
    numbers = array[~np.isnan(array)]
    if numbers.size == 0:
        return f"nothing known, shape {array.shape}"
    return f"{write(float(numbers.min()))} to {write(float(numbers.max()))}, shape {array.shape}"
