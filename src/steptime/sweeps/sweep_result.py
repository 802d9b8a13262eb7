"""The result of a sweep: answers over named axes, as a table, labelled arrays, files and plots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steptime.errors import InputError, UnknownName, install_hint
from steptime.number_checks import Array
from steptime.picture_files import save_picture
from steptime.questions.declaration import Answer, Question
from steptime.result_base import Tabular, json_key, unit
from steptime.sweeps.axes import Axis, grid_shape, label
from steptime.units import counted, in_span

# Numbers in a reason.
NUMBERS = re.compile(r"\d[\d.,]*")
# Answers whose range a short repr shows.
HEADLINE_ANSWERS = 5
# Largest number of reasons in JSON and on pages.
CASES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One answer over all points: meaning, unit, and values in the shape of the axes."""

    meaning: str = field(metadata=unit("", "meaning of the answer"))
    values: Any = field(metadata=unit("", "values of all points, the last axis fastest", left_out=True))
    unit: str = field(default="", metadata=unit("", "unit of the answer; empty for a share, a count or a text"))

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers."""
        return bool(self.values.dtype != object)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(Tabular):
    """Answers to one question over axes.

    `together`: whether the axes advance together, like the columns of a table of points. The table has one row per point, the
    last axis fastest, with units in the names of its columns.
    """

    SCHEMA: ClassVar[str] = "steptime.sweep/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fixed_inputs": unit("", "fixed inputs, numbers in base units", kind="object"),
        "table": unit("", "columns by name, one value per point; units in the names", kind="object of lists"),
        "refused_because": unit(
            "", f"reasons of points without an answer with their counts, at most {CASES}", kind="object of counts"
        ),
    }

    question: str = field(metadata=unit("", "name of the question"))
    meaning: str = field(metadata=unit("", "question in words"))
    axes: tuple[Axis, ...] = field(metadata=unit("", "inputs that vary", left_out=True))
    fixed: Mapping[str, Any] = field(metadata=unit("", "fixed inputs", left_out=True))
    answers: Mapping[str, Column] = field(metadata=unit("", "meaning and unit of each answer, by name", kind="object"))
    reasons: Mapping[int, str] = field(metadata=unit("", "why a point has no answer, by its position", left_out=True))
    together: bool = field(default=False, metadata=unit("", "whether the axes advance together, one point per position"))
    seconds: float = field(default=0.0, metadata=unit("s", "time of the sweep", key="sweep_s"))
    declaration: Question = field(metadata=unit("", "declaration of the question", left_out=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis; one length if the axes advance together."""
        return grid_shape(self.axes, together=self.together)

    @property
    def points(self) -> int:
        """Number of points."""
        return int(np.prod(self.shape))

    @property
    def fixed_inputs(self) -> dict[str, Any]:
        """Fixed inputs by name: numbers, and names of objects."""
        return {name: value if isinstance(value, str | int | float) else label(value) for name, value in self.fixed.items()}

    @property
    def fits(self) -> Array:
        """Whether each point fits the memory of a chip; True everywhere if unknown."""
        share = self.answers.get("memory_share")
        every: Array = np.ones(self.shape, dtype=bool)
        return every if share is None or not (share.values <= 1).any() else ~(share.values > 1)

    @property
    def table(self) -> dict[str, Any]:
        """Columns as lists, for JSON."""
        return {name: np.asarray(values).tolist() for name, values in self.columns().items()}

    @property
    def refused_because(self) -> dict[str, int]:
        """Reasons of points without an answer, with their counts.

        Reasons that differ only in their numbers count as one.
        """
        groups: dict[str, list[str]] = {}
        for text in self.reasons.values():
            groups.setdefault(NUMBERS.sub("#", text), []).append(text)
        # The first text of a group stands for all.
        largest = sorted(groups.values(), key=len, reverse=True)[:CASES]
        return {texts[0]: len(texts) for texts in largest}

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title, and the range of each answer.

        Returns:
            The title, and texts by answer.
        """
        over = " x ".join(f"{axis.name} ({len(axis.values)})" for axis in self.axes)
        figures = {"refused": counted(len(self.reasons), "point")} if self.reasons else {}
        if not self.fits.all():
            figures["beyond memory"] = f"{counted(int((~self.fits).sum()), 'point')}, left out below"
        edges = {edge for pair in self.declaration.bands.values() for edge in pair}
        for name in [name for name in self.answers if name not in edges][:HEADLINE_ANSWERS]:
            column = self.answers[name]
            able = self.fits if column.numeric else False
            finite = column.values[np.isfinite(column.values) & able] if column.numeric else np.zeros(0)
            if finite.size:
                ends = in_span(float(finite.min()), float(finite.max()), 4)
                figures[name] = f"{ends} {column.unit}".rstrip()
        return f"Sweep of {self.question} over {over}: {counted(self.points, 'point')}", figures

    def axis(self, name: str) -> Axis:
        """Return the axis with a name.

        Args:
            name: Name of the input.

        Returns:
            The axis.

        Raises:
            UnknownName: If the sweep has no such axis.
        """
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise UnknownName("axis", name, [axis.name for axis in self.axes])

    def column(self, name: str) -> Column:
        """Return the answer with a name.

        Args:
            name: Name of the answer.

        Returns:
            The answer over all points.

        Raises:
            UnknownName: If the sweep has no such answer; the message names the nearest.
        """
        if name not in self.answers:
            raise UnknownName("answer", name, self.answers, f"It has {', '.join(self.answers)}.")
        return self.answers[name]

    def grid(self) -> list[Array]:
        """Return the value of each axis at every point.

        Returns:
            One array per axis, of the shape of the sweep.
        """
        if self.together:
            return [axis.labels for axis in self.axes]
        return list(np.broadcast_arrays(*np.ix_(*(axis.labels for axis in self.axes)))) if self.axes else []

    def columns(self) -> dict[str, Any]:
        """Return one row per point: values of the axes, then answers.

        Returns:
            Columns by name; `reason` exists if a point has no answer.
        """
        table = {column_name(axis.name, axis.unit): values.ravel() for axis, values in zip(self.axes, self.grid(), strict=True)}
        table |= {column_name(name, column.unit): column.values.ravel() for name, column in self.answers.items()}
        if self.reasons and "reason" not in table:
            reasons = np.full(self.points, "", dtype=object)
            reasons[list(self.reasons)] = list(self.reasons.values())
            table["reason"] = reasons
        return table

    def to_xarray(self) -> Any:
        """Return the answers as labelled arrays with units.

        Returns:
            An xarray.Dataset.

        Raises:
            InputError: If xarray is not installed.
        """
        try:
            import xarray
        except ImportError:
            raise InputError(f"labelled arrays need xarray: {install_hint('sweep')}; or use to_csv()") from None
        names = ["point"] if self.together else [axis.name for axis in self.axes]
        coordinates = {
            axis.name: (names if self.together else [axis.name], axis.labels, {"units": axis.unit, "long_name": axis.meaning})
            for axis in self.axes
        }
        data = {
            name: (names, column.values, {"units": column.unit, "long_name": column.meaning})
            for name, column in self.answers.items()
        }
        return xarray.Dataset(data, coordinates, {"question": self.question, "asked": self.meaning, **self.fixed_inputs})

    def save(self, path: str, *, answer: str | None = None) -> None:
        """Write the results to a file, in the format of its ending.

        Args:
            path: File .csv, .parquet, .nc, .zarr, .xlsx or .json, or a plot .svg, .png or .pdf.
            answer: Answer to plot, for plots only.
        """
        from steptime.sweeps.export import save

        save(self, path, answer=answer)

    def plot(self, path: str, *, answer: str | None = None, against: str | None = None) -> None:
        """Write a plot of one answer to a file.

        Args:
            path: File with the ending .svg, .png or .pdf.
            answer: Answer to plot; the cost by default.
            against: Answer on the horizontal axis, with the Pareto front of both.
        """
        from steptime.sweeps.plots import draw_sweep

        save_picture(path, lambda: draw_sweep(self, answer=answer, against=against))


def column_name(name: str, unit_symbol: str) -> str:
    """Return the name of a column: the answer with its unit, unless the name has it.

    Args:
        name: Name of an input or an answer.
        unit_symbol: Its unit.

    Returns:
        Name such as "ttft_s".

    >>> [column_name(*pair) for pair in (("ttft", "s"), ("drain_seconds", "s"), ("usd_per_request", "USD"), ("bound", ""))]
    ['ttft_s', 'drain_seconds', 'usd_per_request', 'bound']
    >>> column_name("tokens_per_second_per_chip", "tok/s"), column_name("chip.hbm.bandwidth", "B/s")
    ('tokens_per_s_per_chip', 'chip.hbm.bandwidth_bytes_per_s')
    """
    short = name.replace("per_second", "per_s")
    tells = {
        "s": name.endswith("seconds"),
        "USD": "usd" in name,
        "tok/s": "tokens_per_s" in short,
        "requests/s": "requests_per_s" in short,
    }
    return short if tells.get(unit_symbol, False) else json_key(name, {"unit": unit_symbol})


def answer_columns(question: Question, arrays: Mapping[str, Array], answer_names: tuple[str, ...]) -> dict[str, Column]:
    """Return answers as columns, in the order of their names.

    Args:
        question: The question.
        arrays: Values by answer, of the shape of the sweep.
        answer_names: Names in order; empty for all.

    Returns:
        Columns by name.
    """
    ends = {end for pair in question.bands.values() for end in pair}
    # The ideal engine is a bound without ranges, so that their ends have no values.
    empty = {name for name in ends if name in arrays and not np.isfinite(arrays[name]).any()}
    names = [name for name in answer_names if name in arrays and name not in empty] if answer_names else list(arrays)
    plain = Answer()
    return {
        name: Column(
            meaning=question.answers.get(name, plain).meaning or name.replace("_", " "),
            unit=question.answers.get(name, plain).unit,
            values=arrays[name],
        )
        for name in names
    }
