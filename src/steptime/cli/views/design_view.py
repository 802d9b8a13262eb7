"""Terminal view of `steptime design`: the best design, the Pareto front next to the design as it is, and a chart."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import RenderableType

from steptime.cli.views.answer import Answer, section
from steptime.cli.views.sweep_view import axis_value, fixed_text, head, memory_notes, picture, reason_section, words, written
from steptime.cli.views.widgets import Grid, table
from steptime.questions.subject import ARCH, WITHIN
from steptime.sweeps.design import Design, columns_in_short
from steptime.sweeps.question_inputs import lower_is_better
from steptime.units import counted, in_digits

MAX_ROWS = 16


def design_view(design: Design, *, width: int, full: bool = False) -> RenderableType:
    """Return the best design.

    Args:
        design: designs, the front of those that no other beats, and the design as it is.
        width: columns of the terminal.
        full: whether to show all charts and designs without an answer.

    Returns:
        The answer.
    """
    sweep = design.sweep
    charts = picture(sweep, width, design.aims[0]) if sweep.points > 3 else []
    aims = " and ".join(map(words, design.aims))
    title = f"{counted(len(design.front), 'design')} of {sweep.points:,} on the Pareto front of {aims}"
    rows = [f"{MAX_ROWS} of the {len(design.front):,} designs; --csv and --json have all."]
    return Answer(
        sentence=_sentence(design), conditions=f"{sweep.question}, {fixed_text(sweep)}." if sweep.fixed else "",
        body=[section(title, rows if len(design.front) > MAX_ROWS else []), _table(design), *charts],
        details=reason_section(sweep), warnings=[*_assumptions(design), *memory_notes(sweep)],
        full_adds="designs without an answer" if sweep.reasons else "", full=full,
    )  # fmt: skip


def _sentence(design: Design) -> str:
    """Say which design is best, and how far it is from the design as it is."""
    aim = design.aims[0]
    column, now = design.sweep.column(aim), float(design.today.get(aim, np.nan))
    value = float(column.values.ravel()[design.best])
    text = f"Best of {counted(design.sweep.points - len(design.sweep.reasons), 'design')}: {design.called(design.best)}, with "
    text += f"{'lowest' if lower_is_better(aim) else 'highest'} {words(aim)}: {written(value, column.unit)}"
    # the present design may have no answer, such as a model that does not fit
    change = value / now - 1
    if np.isfinite(change):
        size = f"{abs(change):.0%} {'less' if change < 0 else 'more'} than" if abs(change) >= 0.005 else "as much as"
        text += f", {size} today ({written(now, column.unit)})"
    text += f"; {counted(design.ties, 'other design')} {'is' if design.ties == 1 else 'are'} as good" if design.ties else ""
    return text + "."


def _table(design: Design) -> Grid:
    """Return a row for the design as it is, and one for each design on the front."""
    columns = columns_in_short(design)
    axes = design.sweep.axes
    heads = ["", *(axis.name.removeprefix(ARCH) for axis in axes), *map(head, columns)]
    going = [len(heads) - 1 - i for i in range(len(columns) - 1)]
    front_grid = table(*heads, numbers=range(1, len(heads)), first_to_go=going)
    if design.today:
        now = [_figure(design, name, design.today.get(name, np.nan)) for name in columns]
        front_grid.add_row("today", *(_now(design, axis) for axis in axes), *now)
    grid = [values.ravel() for values in design.sweep.grid()]
    indices = design.front
    if len(indices) > MAX_ROWS:
        indices = tuple(indices[i] for i in np.linspace(0, len(indices) - 1, MAX_ROWS).round().astype(int))
    for index in indices:
        axis_cells = [axis_value(axis, values[index]) for axis, values in zip(axes, grid, strict=True)]
        cells = [_figure(design, name, design.sweep.answers[name].values.ravel()[index]) for name in columns]
        front_grid.add_row(
            "best" if index == design.best else "", *axis_cells, *cells, style="green" if index == design.best else None
        )
    return front_grid


def _now(design: Design, axis: Any) -> str:
    if axis.name in design.today:
        return axis_value(axis, design.today[axis.name])
    return "1" if axis.name.startswith("times.") else "-"


def _figure(design: Design, name: str, value: Any) -> str:
    if name.endswith("parameters"):
        return f"{in_digits(float(value) / 1e9, 4)} B" if np.isfinite(value) else "-"
    return written(float(value), design.sweep.answers[name].unit, bare=True)


def _assumptions(design: Design) -> list[str]:
    """Return what a design is assumed to share with the present one: quality, size and rent."""
    warnings = []
    of_model = any(axis.name.startswith(ARCH) for axis in design.sweep.axes)
    if of_model and "parameters" in design.sweep.answers:
        sizes = design.sweep.answers["parameters"].values
        sizes = sizes[np.isfinite(sizes)] / 1e9
        low, high = float(sizes.min()), float(sizes.max())
        spread = high / low - 1
        same = f"all have {in_digits(low, 4)} B parameters to within {max(spread, 0.001):.1%}"
        differ = f"they have {in_digits(low, 4)} to {in_digits(high, 4)} B parameters (--set arch.equal=total keeps them equal)"
        warnings.append(f"the quality of these models is not predicted: {same if spread < 0.02 else differ}")
    if WITHIN in design.sweep.fixed:
        warnings.append(f"FLOP/s shrink until the chip stays within {design.sweep.fixed[WITHIN]}; its rent stays the same")
    elif any(axis.name.startswith("times.") for axis in design.sweep.axes):
        warnings.append("the rent stays that of the present chip; --within power trades bandwidth for FLOP/s")
    return warnings
