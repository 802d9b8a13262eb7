"""Boards of the page: their inputs with bounds and units, and their answers.

A board is a file of `web/boards` and a file of `static/boards`. An input of a board that a question has too takes unit,
meaning and bounds from the declaration of the question (`question_input`).
"""

from __future__ import annotations

import ast
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from steptime.hardware.rental_prices import usd
from steptime.questions.registry import find_question
from steptime.result_base import plain
from steptime.units import in_digits, show
from steptime.web import boards

# Longest pasted config.json or TOML [characters].
LONGEST: Final = 100_000
# Longest name of the catalogue [characters].
LONGEST_NAME: Final = 200
MODEL, SYSTEM = "deepseek-ai/DeepSeek-V3", "gb200-nvl72"


class Inputs(BaseModel):
    """The inputs of a board; unknown inputs and infinite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def slider(
    default: float, low: float, high: float, name: str, unit: str, words: str, *, log: bool = False, is_advanced: bool = False,
    step: float | None = None,
) -> Any:  # fmt: skip
    """Declare a bounded number, shown as a slider with a field and its unit.

    Args:
        default: Default value.
        low: Smallest value.
        high: Largest value.
        name: Label.
        unit: Unit after the label.
        words: Meaning, shown on hover.
        log: Whether the slider is logarithmic.
        is_advanced: Whether the input is under "more".
        step: Step of the slider, 1 for whole numbers; None: continuous.

    Returns:
        Field of a pydantic model.
    """
    extra: dict[str, Any] = {"kind": "slider", "unit": unit, "log": log, "more": is_advanced, "step": step}
    return Field(default, ge=low, le=high, title=name, description=words, json_schema_extra=extra | {"low": low, "high": high})


def choice(default: str, options: tuple[str, ...], name: str, words: str, *, is_advanced: bool = False) -> Any:
    """Declare one of several words, shown as a list.

    Args:
        default: Default word.
        options: Allowed words.
        name: Label.
        words: Meaning, shown on hover.
        is_advanced: Whether the input is under "more".

    Returns:
        Field of a pydantic model.
    """
    extra: dict[str, Any] = {"kind": "choice", "options": list(options), "more": is_advanced}
    return Field(default, pattern=f"^({'|'.join(options)})$", title=name, description=words, json_schema_extra=extra)


def text(default: str, name: str, words: str, *, longest: int = LONGEST_NAME) -> Any:
    """Declare a line of text.

    Args:
        default: Default text.
        name: Label.
        words: Meaning, shown on hover.
        longest: Largest number of characters.

    Returns:
        Field of a pydantic model.
    """
    extra: dict[str, Any] = {"kind": "text", "more": False}
    return Field(default, max_length=longest, title=name, description=words, json_schema_extra=extra)


def question_input(
    place: str, default: float, low: float | None = None, high: float | None = None, *, label: str = "", **scale: Any
) -> Any:
    """Declare a slider for an input of a question; unit, meaning and bounds are those of the question.

    Args:
        place: Question and input, such as "step.batch".
        default: Default value on the board.
        low: Lower end of the slider; None: the smallest value of the question's input.
        high: Upper end of the slider; None: the largest value of the question's input.
        label: Label; empty: the name of the input.
        **scale: Further arguments of `slider`.

    Returns:
        Field of a pydantic model.

    >>> field = question_input("step.batch", 256, high=65_536, log=True)
    >>> field.title, field.description, field.json_schema_extra["low"], field.json_schema_extra["unit"]
    ('batch', 'Decode batch: sequences in one replica.', 1, 'sequences')
    """
    question, _, name = place.partition(".")
    declared = find_question(question).inputs[name]
    ends = declared.minimum if low is None else low, declared.maximum if high is None else high
    return slider(default, *ends, label or name, **{"unit": declared.unit, "words": declared.help(), **scale})  # type: ignore[arg-type]


class Shared(Inputs):
    """The inputs that all boards share: the bar at the top of the page."""

    model: str = text(MODEL, "model", "Name in the catalogue, or the text of a config.json.", longest=LONGEST)
    system: str = text(SYSTEM, "system", "Name in the catalogue, or the text of a system's TOML file.", longest=LONGEST)
    engine: str = text(
        "", "engine", "Engine: vllm, sglang, trtllm, ... or ideal. Default: the system's usual engine.", longest=60
    )
    weights: str = text("", "weights", "Number format of the weights. Default: as in the config.", longest=20)
    kv: str = text("", "KV cache", "Number format of the KV cache. Default: as in the config.", longest=20)

    @field_validator("model", "system")
    @classmethod
    def _check_length(cls, value: str, info: ValidationInfo) -> str:
        is_pasted = is_config(value) if info.field_name == "model" else is_toml(value)
        if len(value) > LONGEST_NAME and not is_pasted:
            words = {"max_length": LONGEST_NAME}
            raise PydanticCustomError("string_too_long", "a name must have at most {max_length} characters", words)
        return value


def is_config(text: str) -> bool:
    """Return whether the model is the text of a config.json, not a name.

    Args:
        text: Input of the bar.

    Returns:
        True for the text of a config.json.
    """
    return text.lstrip().startswith(("{", "["))


def is_toml(text: str) -> bool:
    """Return whether the system is the text of a TOML file, not a name.

    Args:
        text: Input of the bar.

    Returns:
        True for the text of a TOML file.
    """
    return any(mark in text.strip() for mark in ("\n", "=", "["))


def bar_inputs(inputs: Shared) -> Shared:
    """Return the inputs of the bar only, as a key of shared caches.

    Args:
        inputs: Inputs of a board.

    Returns:
        Inputs without those of the board.
    """
    return Shared(**{name: getattr(inputs, name) for name in Shared.model_fields})


class SlowInputs(Shared):
    """The inputs of slow boards, with a switch for a rough answer while a slider moves."""

    coarse: bool = Field(False, title="coarse", description="Give a rough answer at once, while the slider moves.")


def described(kind: type[Inputs]) -> list[dict[str, Any]]:
    """Return the controls of a board's own inputs, without the bar.

    Args:
        kind: Class of the inputs.

    Returns:
        One control per input: name, label, default, bounds and kind.

    >>> class Example(Shared):
    ...     batch: int = slider(64, 1, 4096, "batch", "sequences", "Sequences that decode at once.", log=True)
    >>> [[control[key] for key in ("name", "default", "low", "high", "whole")] for control in described(Example)]
    [['batch', 64, 1, 4096, True]]
    """
    return [
        {
            "name": name, "label": control.title, "words": control.description, "default": control.default,
            "whole": control.annotation is int, "low": None, "high": None, **control.json_schema_extra,
        }
        for name, control in kind.model_fields.items()
        if name not in SlowInputs.model_fields and isinstance(control.json_schema_extra, dict)
    ]  # fmt: skip


def _column(values: Any) -> list[Any]:
    """Return a column as a plain list, quickly for finite numbers."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu" and np.isfinite(values).all():
        listed: list[Any] = values.tolist()
        return listed
    column: list[Any] = plain(values)
    return column


def columns(names: str, rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Return rows as the columns of a table.

    Args:
        names: Names of the columns, separated by spaces.
        rows: Rows with one value per column.

    Returns:
        Columns by name; empty columns without a row.

    >>> columns("name idle", [("gpipe", 0.43), ("zbv", 0.0)])
    {'name': ['gpipe', 'zbv'], 'idle': [0.43, 0.0]}
    """
    listed = list(rows)
    return {name: [row[place] for row in listed] for place, name in enumerate(names.split())}


# Numbers from here on are shown with a prefix.
LARGE: Final = 1e6
COUNTED_UNITS: Final = ("sequences", "tokens", "chips", "requests", "experts", "stages", "layers", "rounds")
"""Units of countable things."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number below the picture, with its unit and its meaning, which is shown on hover."""

    name: str
    value: float | None
    unit: str = ""
    words: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the number with its display text.

        Returns:
            Name, value, unit, text and meaning.
        """
        value = math.nan if self.value is None else self.value
        text = _show_figure(value, self.unit) if math.isfinite(value) else "none" if math.isnan(value) else "no limit"
        return {"name": self.name, "value": plain(self.value), "unit": self.unit, "text": text, "words": self.words}


def finite_figures(*figures: Figure) -> tuple[Figure, ...]:
    """Return the figures that have a value.

    Args:
        figures: Figures; the value None, NaN or infinity stands for a missing one.

    Returns:
        Figures with a finite value.
    """
    return tuple(figure for figure in figures if figure.value is not None and math.isfinite(figure.value))


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


def printed(program: str) -> str:
    """Return a program that prints its last expression.

    Args:
        program: Lines of Python.

    Returns:
        The program; unchanged if its last statement is no expression, or prints already.

    >>> print(printed("x = 2\\nx * 3"))
    x = 2
    print(x * 3)
    """
    last = ast.parse(program).body[-1]
    if not isinstance(last, ast.Expr) or ast.unparse(last).startswith("print("):
        return program
    lines, end = program.split("\n"), last.end_lineno or last.lineno
    lines[last.lineno - 1] = f"print({lines[last.lineno - 1]}"
    # Further lines of the call keep their columns below its arguments.
    lines[last.lineno : end] = [f"{' ' * len('print(')}{line}" for line in lines[last.lineno : end]]
    lines[end - 1] += ")"
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a board.

    tables: columns by name, for each table; columns of a table have one length. marks: single numbers in the
    picture. sentence: the result with its numbers. formula: lines with the numbers inserted. command, python: code
    that gives the same result; `python` is a call of steptime, which is imported as `st`. scripts: texts to copy by
    title, such as launch commands.
    """

    tables: Mapping[str, Mapping[str, Any]]
    sentence: str
    command: str
    python: str
    marks: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    formula: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain lists, numbers and texts; NaN and infinity are null.

        Returns:
            Answer for JSON.
        """
        return {
            "tables": {name: {key: _column(column) for key, column in table.items()} for name, table in self.tables.items()},
            "marks": plain(self.marks), "sentence": self.sentence,
            "figures": [figure.to_dict() for figure in self.figures], "formula": list(self.formula), "notes": list(self.notes),
            "scripts": dict(self.scripts), "command": self.command,
            "python": f"import steptime as st\n\n{printed(self.python)}",
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
