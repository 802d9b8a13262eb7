"""What the terminal shows of designs: the best, the front, and what stands today."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.sweep_view import axis_value, head, held_in_words, picture, refused, written
from steptime.cli.views.widgets import Grid, notes, table
from steptime.questions.subject import ARCH, WITHIN
from steptime.sweeps.design import Design, columns_in_short
from steptime.units import counted, in_digits

MOST_ROWS = 16


def design_view(design: Design, width: int, *, brief: bool = False) -> RenderableType:
    """Return the best design in a sentence, the front with what stands today, and what is to be minded."""
    parts: list[RenderableType] = [Text(design.text[0].upper() + design.text[1:] + ".", style="bold"), *notes(_minded(design))]
    fixed_inputs = held_in_words(design.sweep)
    parts += [Text(f"Held: {fixed_inputs}.")] if fixed_inputs else []
    if brief:
        return Group(*parts)
    grid = _table(design)
    title = f"{counted(len(design.front), 'design')} of {design.sweep.points:,} that no other beats in " + " and ".join(
        name.replace("_", " ").replace("usd", "USD") for name in design.aims
    )
    parts += [Text(), Text(title, style="bold"), grid]
    if len(design.front) > MOST_ROWS:
        parts += [
            Text(
                f"{MOST_ROWS} of the {len(design.front):,} on the front, evenly; --csv and --json have all.",
                style="bright_black",
            )
        ]
    if design.sweep.points > 3:
        parts += picture(design.sweep, width, design.aims[0])
    return Group(*parts, *refused(design.sweep))


def _table(design: Design) -> Grid:
    """Return a row for what stands today, and one for each design on the front."""
    columns = columns_in_short(design)
    axes = design.sweep.axes
    heads = ["", *(axis.name.removeprefix(ARCH) for axis in axes), *map(head, columns)]
    going = [len(heads) - 1 - i for i in range(len(columns) - 1)]
    front_grid = table(*heads, numbers=range(1, len(heads)), first_to_go=going)
    if design.today:
        now = [_figure(design, name, design.today.get(name, np.nan)) for name in columns]
        front_grid.add_row("as it is", *(_now(design, axis) for axis in axes), *now)
    grid = [values.ravel() for values in design.sweep.grid()]
    indices = design.front
    if len(indices) > MOST_ROWS:
        indices = tuple(indices[i] for i in np.linspace(0, len(indices) - 1, MOST_ROWS).round().astype(int))
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


def _minded(design: Design) -> list[str]:
    """Return what a reader of the answer must know: what is supposed, and what is not told."""
    words = []
    of_model = any(axis.name.startswith(ARCH) for axis in design.sweep.axes)
    if of_model and "parameters" in design.sweep.answers:
        sizes = design.sweep.answers["parameters"].values
        sizes = sizes[np.isfinite(sizes)] / 1e9
        spread = sizes.max() / sizes.min() - 1
        same = f"all have {in_digits(float(sizes.min()), 4)} billion parameters to within {max(spread, 0.001):.1%}"
        differ = f"they have {in_digits(float(sizes.min()), 4)} to {in_digits(float(sizes.max()), 4)} billion parameters"
        hint = "" if spread < 0.02 else " (--set arch.equal=total holds them)"
        words.append(f"how good the answers of these models are is not told: {same if spread < 0.02 else differ}{hint}")
    if WITHIN in design.sweep.fixed:
        words.append(f"within {design.sweep.fixed[WITHIN]}, at the same rent: FLOP/s make room for the other parts of the chip")
    elif any(axis.name.startswith("times.") for axis in design.sweep.axes):
        words.append(
            "the rent is that of the chip as it is, whatever more it has; --within power trades its parts for one another"
        )
    return words
