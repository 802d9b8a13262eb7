"""Boards and their answers; a board is a file of `web/boards` and `static/boards`."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np

from steptime.hardware.unit_cost import usd
from steptime.result_base import plain
from steptime.units import in_digits, show
from steptime.web import boards
from steptime.web.board_inputs import Shared, described


def _column(values: Any) -> list[Any]:
    """Return a column as a plain list, quickly for finite numbers."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu" and np.isfinite(values).all():
        listed: list[Any] = values.tolist()
        return listed
    column: list[Any] = plain(values)
    return column


# Numbers from here on are shown with a prefix.
LARGE: Final = 1e6
COUNTED_UNITS: Final = ("sequences", "tokens", "chips", "requests", "experts", "stages", "layers", "rounds")
"""Units of countable things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number below the picture, with its display text."""

    name: str
    value: float
    unit: str = ""
    # Meaning, shown on hover.
    words: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the number with its display text.

        Returns:
            Name, value, unit, text and meaning.
        """
        finite = math.isfinite(self.value)
        text = _show_figure(self.value, self.unit) if finite else "no limit" if self.value == self.value else "none"
        return {"name": self.name, "value": plain(self.value), "unit": self.unit, "text": text, "words": self.words}


def _show_figure(value: float, unit: str) -> str:
    """Write a number with its unit: counts as whole numbers, money with its sign.

    >>> [_show_figure(5447.9, "sequences"), _show_figure(1, "chips"), _show_figure(1.8e14, "tokens")]
    ['5,448 sequences', '1 chip', '180 T tokens']
    >>> [_show_figure(0.0131, "s"), _show_figure(1.36, "x")]
    ['13.1 ms', '1.36x']
    >>> _show_figure(2.4, "USD"), _show_figure(312_627_517.0, "USD"), _show_figure(0.42, "%")
    ('$2.40', '$313 M', '42 %')
    """
    if unit == "USD":
        return usd(value) if abs(value) < LARGE else f"${show(value, '')}"
    if unit in ("%", "x"):
        return f"{in_digits(100 * value)} %" if unit == "%" else f"{in_digits(value)}x"
    if unit in COUNTED_UNITS and abs(value) < LARGE:
        return (
            f"{value:,.0f} {unit}" if value >= 100 else f"{in_digits(value)} {unit.removesuffix('s') if value == 1 else unit}"
        )
    return f"{show(value, '')} {unit}" if unit in COUNTED_UNITS else show(value, unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a board.

    tables: columns by name, for each table; columns of a table have one length. marks: single numbers in the
    picture. sentence: the result with its numbers. formula: lines with the numbers inserted. command, python: code
    that gives the same result.
    """

    tables: Mapping[str, Mapping[str, Any]]
    sentence: str
    command: str
    python: str
    marks: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    formula: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain lists, numbers and texts; NaN and infinity are null.

        Returns:
            Answer for JSON.
        """
        return {
            "tables": {name: {key: _column(column) for key, column in table.items()} for name, table in self.tables.items()},
            "marks": plain(self.marks), "sentence": self.sentence,
            "figures": [figure.to_dict() for figure in self.figures], "formula": list(self.formula), "notes": list(self.notes),
            "command": self.command, "python": self.python,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A question of the lecture with its picture.

    order: place on the page. inputs: class of the inputs. spoken, today: inputs of the lecture and of current
    machines. bar: inputs of the bar that the board uses. slow: whether an answer takes longer than a frame; the page
    then asks for a rough answer (`coarse`) while a slider moves.
    """

    name: str
    title: str
    order: int
    section: int
    inputs: type[Shared]
    answer: Callable[[Any], Answer]
    spoken: Mapping[str, Any] = field(default_factory=dict)
    today: Mapping[str, Any] = field(default_factory=dict)
    bar: tuple[str, ...] = ("model", "system", "engine", "weights", "kv")
    slow: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the data from which the page builds the board.

        Returns:
            Board for JSON.
        """
        return {
            "name": self.name, "title": self.title, "section": self.section, "bar": list(self.bar), "slow": self.slow,
            "inputs": described(self.inputs), "spoken": dict(self.spoken), "today": dict(self.today),
        }  # fmt: skip


@cache
def load_boards() -> Mapping[str, Board]:
    """Return the boards by name, in page order.

    A board is the `BOARD` of each file of `web/boards`.

    Returns:
        Boards by name.
    """
    names = [module.name for module in pkgutil.iter_modules(boards.__path__) if not module.name.startswith("_")]
    every = [import_module(f"{boards.__name__}.{name}").BOARD for name in names]
    return {board.name: board for board in sorted(every, key=lambda board: board.order)}
