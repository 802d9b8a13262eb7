"""What a board is, what it answers, and how boards are found: each is a file of `web/boards` beside one of `static/boards`."""

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
    """Return a column as a plain list; of numbers that are all finite at once."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu" and np.isfinite(values).all():
        listed: list[Any] = values.tolist()
        return listed
    column: list[Any] = plain(values)
    return column


LARGE: Final = 1e6
COUNTED_UNITS: Final = ("sequences", "tokens", "chips", "requests", "experts", "stages", "layers", "rounds")
"""What is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that stands under a picture: as it is, and as it is read."""

    name: str
    value: float
    unit: str = ""
    words: str = ""  # what it means, on hover

    def to_dict(self) -> dict[str, Any]:
        """Return it with its text."""
        finite = math.isfinite(self.value)
        text = _show_figure(self.value, self.unit) if finite else "no limit" if self.value == self.value else "none"
        return {"name": self.name, "value": plain(self.value), "unit": self.unit, "text": text, "words": self.words}


def _show_figure(value: float, unit: str) -> str:
    """Write a number with its unit: things that are counted whole, money with its sign.

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
    """What a board answers.

    tables: columns by name, by table; those of one table are equally long. marks: single numbers that the picture shows.
    sentence: what is seen, with the numbers. formula: lines with the numbers in place. command, python: what gives the same.
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
        """Return it as plain lists, numbers and texts; what is not finite is null."""
        return {
            "tables": {name: {key: _column(column) for key, column in table.items()} for name, table in self.tables.items()},
            "marks": plain(self.marks), "sentence": self.sentence,
            "figures": [figure.to_dict() for figure in self.figures], "formula": list(self.formula), "notes": list(self.notes),
            "command": self.command, "python": self.python,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A question of the lecture with its picture.

    order: place on the page. inputs: their class. spoken, today: inputs as the lecture has them, and as machines of today do.
    bar: which inputs of the bar matter to it. slow: that an answer takes longer than a frame, so the page asks for a coarse
    one (`coarse`) while a slider moves.
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
        """Return what the page builds the board from."""
        return {
            "name": self.name, "title": self.title, "section": self.section, "bar": list(self.bar), "slow": self.slow,
            "inputs": described(self.inputs), "spoken": dict(self.spoken), "today": dict(self.today),
        }  # fmt: skip


@cache
def load_boards() -> Mapping[str, Board]:
    """Return the boards by name, in their order: the `BOARD` of each file of `web/boards`."""
    names = [module.name for module in pkgutil.iter_modules(boards.__path__) if not module.name.startswith("_")]
    every = [import_module(f"{boards.__name__}.{name}").BOARD for name in names]
    return {board.name: board for board in sorted(every, key=lambda board: board.order)}
