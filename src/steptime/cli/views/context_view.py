"""What the terminal shows of the longest contexts: a sentence, a row for each technique, and the lengths as bars."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import LogScale
from steptime.cli.views.widgets import Grid, notes, ranged, table
from steptime.hardware.unit_cost import usd
from steptime.sweeps.context_limit_result import ContextWall, ContextWalls, tokens
from steptime.units import counted, show

MAX_NAME_WIDTH = 30  # columns beside the axis of the picture, at most
AS_IS = "as it is"


def contexts_view(limits: ContextWalls, width: int) -> RenderableType:
    """Return the answer in a sentence, the techniques side by side, the longest contexts as bars, and what they cost beside."""
    conditions = f"{counted(limits.chips, 'chip')} at most, {show(limits.tpot, 's')} a token, engine {limits.engine}, "
    conditions += f"cache in {limits.kv_format}"
    parts: list[RenderableType] = [
        Text(limits.text, style="bold"),
        Text(conditions + "; decode alone, prompts not counted in."),
    ]
    parts += notes(_beyond(limits))
    if limits.reason:
        return Group(*parts)
    parts += [Text(), _side_by_side(limits), *_meaning(limits), *_picture(limits, width)]
    caveats = dict.fromkeys(text for wall in limits.walls for text in wall.caveats)
    if caveats:
        parts += [Text(), Text("What to mind of them", style="bold"), *(Text(f"  {text}") for text in caveats)]
    if limits.left_out:
        parts += [Text(), Text("Left out", style="bold"), *(Text(f"  {text}") for text in limits.left_out)]
    return Group(*parts)


def _beyond(limits: ContextWalls) -> list[str]:
    """Say where the model itself ends before memory and time do, and where no price is known."""
    rent_notes = (
        []
        if math.isfinite(limits.usd_per_million) or limits.reason
        else [f"no rent of {limits.system} is known; --rent 2.50 gives one"]
    )
    if limits.context > limits.max_context:
        return [
            f"{limits.model} is made for {limits.max_context:,.0f} tokens at most, fewer than --context {limits.context:,}",
            *rent_notes,
        ]
    if limits.base.longest > limits.max_context:
        model_limit = f"{limits.model} is made for {limits.max_context:,.0f} tokens at most"
        return [f"{model_limit}; what is longer tells what memory and time allow", *rent_notes]
    return rent_notes


def _side_by_side(limits: ContextWalls) -> Grid:
    grid = table(
        "Technique", "Longest", "For the price", "USD/M out", "Cache", "Batch", "Step (90 % range)", "Read", "Parameters",
        "Ends by", "Layout", title=f"At {limits.context:,} tokens of context" , numbers=(1, 2, 3, 4, 5, 6, 7, 8),
        first_to_go=(10, 8, 7, 9, 6, 5, 4),
    )  # fmt: skip
    for wall in limits.walls:
        grid.add_row(
            wall.technique.replace("+", "+\n") or AS_IS,
            _length(wall.longest),
            _priced(wall, limits),
            usd(wall.usd_per_million) if math.isfinite(wall.usd_per_million) else "-",
            show(wall.cache, "B"),
            f"{wall.batch:,}" if wall.batch else "none",
            ranged(wall.step, wall.step_range, lambda value: show(value, "s")) if wall.batch else "-",
            show(wall.read_bytes, "B"),
            show(wall.parameters),
            wall.binds or "-",
            wall.layout or "-",
            style="green" if not wall.technique else None,
        )
    return grid


def _priced(wall: ContextWall, limits: ContextWalls) -> str:
    """Write how long a context the price allows; for what the model costs as it is, that is the length asked."""
    if not math.isfinite(limits.usd_per_million):
        return "-"
    return f"{limits.context:,}" if wall is limits.base and not limits.priced and wall.batch else _length(wall.longest_priced)


def _length(value: float) -> str:
    return (
        tokens(value).removesuffix(" tokens").replace("over ", "> ")
        if value and math.isfinite(value)
        else "any"
        if value
        else "none"
    )


def _meaning(limits: ContextWalls) -> list[Text]:
    price = usd(limits.usd_per_million) if math.isfinite(limits.usd_per_million) else ""
    words = f"Longest: tokens of context within {show(limits.tpot, 's')} a token"
    if price and limits.priced:
        words += f"; for the price: within {price} per million output tokens too"
    elif price:
        words += f"; for the price: for the {price} per million that it costs as it is"
    words += "" if len(limits.walls) == 1 else ". Techniques are what-ifs: what an engine runs of them is its own affair"
    return [Text(words + ". Cache, batch, step and USD/M are at the length above.", style="bright_black")]


def _picture(limits: ContextWalls, width: int) -> list[RenderableType]:
    """Return how long a context each technique allows, with the price and without, on a logarithmic axis."""
    lengths = [
        value for wall in limits.walls for value in (wall.longest, wall.longest_priced) if value and math.isfinite(value)
    ]
    if not lengths:
        return []
    names = [wall.technique or AS_IS for wall in limits.walls]
    values = [*lengths, limits.context, *([limits.max_context] if math.isfinite(limits.max_context) else [])]
    scale = LogScale.fit(names, values, width, max_name_width=MAX_NAME_WIDTH, spare=1.3)
    lines: list[RenderableType] = [Text(), Text("Longest context [tokens], logarithmic", style="bold")]
    for wall, name in zip(limits.walls, names, strict=True):
        text = name if len(name) <= scale.name_width else name[: scale.name_width - 1] + "…"
        lines.append(Text.assemble(text.rjust(scale.name_width), " ", _bar(wall, limits, scale)))
    lines.append(scale.labels(_length))
    legend = "█ for the price  ░ for the speed alone" if math.isfinite(limits.usd_per_million) else "░ for the speed"
    lines.append(Text(legend + ("  ┊ what the model is made for" if math.isfinite(limits.max_context) else "")))
    return lines


def _bar(wall: ContextWall, limits: ContextWalls, scale: LogScale) -> Text:
    def cells(value: float) -> int:
        return scale.cells if math.isinf(value) else scale.cell_index(value) + 1 if value else 0

    priced = cells(wall.longest_priced) if math.isfinite(limits.usd_per_million) else 0
    row = ["█"] * priced + ["░"] * max(cells(wall.longest) - priced, 0)
    row += [" "] * (scale.cells - len(row))
    if math.isfinite(limits.max_context):
        row[scale.cell_index(limits.max_context)] = "┊"
    return Text("".join(row), style="green" if not wall.technique else "cyan")
