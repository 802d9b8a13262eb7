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


def design_view(found: Design, width: int, *, brief: bool = False) -> RenderableType:
    """Return the best design in a sentence, the front with what stands today, and what is to be minded."""
    parts: list[RenderableType] = [Text(found.text[0].upper() + found.text[1:] + ".", style="bold"), *notes(_minded(found))]
    held = held_in_words(found.sweep)
    parts += [Text(f"Held: {held}.")] if held else []
    if brief:
        return Group(*parts)
    shown = _table(found)
    title = f"{counted(len(found.front), 'design')} of {found.sweep.points:,} that no other beats in " + " and ".join(
        name.replace("_", " ").replace("usd", "USD") for name in found.aims
    )
    parts += [Text(), Text(title, style="bold"), shown]
    if len(found.front) > MOST_ROWS:
        parts += [
            Text(
                f"{MOST_ROWS} of the {len(found.front):,} on the front, evenly; --csv and --json have all.",
                style="bright_black",
            )
        ]
    if found.sweep.points > 3:
        parts += picture(found.sweep, width, found.aims[0])
    return Group(*parts, *refused(found.sweep))


def _table(found: Design) -> Grid:
    """Return a row for what stands today, and one for each design on the front."""
    columns = columns_in_short(found)
    axes = found.sweep.axes
    heads = ["", *(axis.name.removeprefix(ARCH) for axis in axes), *map(head, columns)]
    going = [len(heads) - 1 - i for i in range(len(columns) - 1)]
    made = table(*heads, numbers=range(1, len(heads)), first_to_go=going)
    if found.today:
        now = [_figure(found, name, found.today.get(name, np.nan)) for name in columns]
        made.add_row("as it is", *(_now(found, axis) for axis in axes), *now)
    grid = [values.ravel() for values in found.sweep.grid()]
    some = found.front
    if len(some) > MOST_ROWS:
        some = tuple(some[i] for i in np.linspace(0, len(some) - 1, MOST_ROWS).round().astype(int))
    for at in some:
        on = [axis_value(axis, values[at]) for axis, values in zip(axes, grid, strict=True)]
        cells = [_figure(found, name, found.sweep.answers[name].values.ravel()[at]) for name in columns]
        made.add_row("best" if at == found.best else "", *on, *cells, style="green" if at == found.best else None)
    return made


def _now(found: Design, axis: Any) -> str:
    if axis.name in found.today:
        return axis_value(axis, found.today[axis.name])
    return "1" if axis.name.startswith("times.") else "-"


def _figure(found: Design, name: str, value: Any) -> str:
    if name.endswith("parameters"):
        return f"{in_digits(float(value) / 1e9, 4)} B" if np.isfinite(value) else "-"
    return written(float(value), found.sweep.answers[name].unit, bare=True)


def _minded(found: Design) -> list[str]:
    """Return what a reader of the answer must know: what is supposed, and what is not told."""
    words = []
    of_model = any(axis.name.startswith(ARCH) for axis in found.sweep.axes)
    if of_model and "parameters" in found.sweep.answers:
        sizes = found.sweep.answers["parameters"].values
        sizes = sizes[np.isfinite(sizes)] / 1e9
        spread = sizes.max() / sizes.min() - 1
        same = f"all have {in_digits(float(sizes.min()), 4)} billion parameters to within {max(spread, 0.001):.1%}"
        differ = f"they have {in_digits(float(sizes.min()), 4)} to {in_digits(float(sizes.max()), 4)} billion parameters"
        hint = "" if spread < 0.02 else " (--set arch.equal=total holds them)"
        words.append(f"how good the answers of these models are is not told: {same if spread < 0.02 else differ}{hint}")
    if WITHIN in found.sweep.fixed:
        words.append(f"within {found.sweep.fixed[WITHIN]}, at the same rent: FLOP/s make room for the other parts of the chip")
    elif any(axis.name.startswith("times.") for axis in found.sweep.axes):
        words.append(
            "the rent is that of the chip as it is, whatever more it has; --within power trades its parts for one another"
        )
    return words
