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

BESIDE = 30  # columns beside the axis of the picture, at most
AS_IS = "as it is"


def contexts_view(found: ContextWalls, width: int) -> RenderableType:
    """Return the answer in a sentence, the techniques side by side, the longest contexts as bars, and what they cost beside."""
    asked = f"{counted(found.chips, 'chip')} at most, {show(found.tpot, 's')} a token, engine {found.engine}, "
    asked += f"cache in {found.kv_format}"
    parts: list[RenderableType] = [Text(found.text, style="bold"), Text(asked + "; decode alone, prompts not counted in.")]
    parts += notes(_beyond(found))
    if found.reason:
        return Group(*parts)
    parts += [Text(), _side_by_side(found), *_meaning(found), *_picture(found, width)]
    caveats = dict.fromkeys(text for one in found.walls for text in one.caveats)
    if caveats:
        parts += [Text(), Text("What to mind of them", style="bold"), *(Text(f"  {text}") for text in caveats)]
    if found.left_out:
        parts += [Text(), Text("Left out", style="bold"), *(Text(f"  {text}") for text in found.left_out)]
    return Group(*parts)


def _beyond(found: ContextWalls) -> list[str]:
    """Say where the model itself ends before memory and time do, and where no price is known."""
    said = (
        []
        if math.isfinite(found.usd_per_million) or found.reason
        else [f"no rent of {found.system} is known; --rent 2.50 gives one"]
    )
    if found.context > found.max_context:
        return [
            f"{found.model} is made for {found.max_context:,.0f} tokens at most, fewer than --context {found.context:,}",
            *said,
        ]
    if found.base.longest > found.max_context:
        made = f"{found.model} is made for {found.max_context:,.0f} tokens at most"
        return [f"{made}; what is longer tells what memory and time allow", *said]
    return said


def _side_by_side(found: ContextWalls) -> Grid:
    made = table(
        "Technique", "Longest", "For the price", "USD/M out", "Cache", "Batch", "Step (90 % range)", "Read", "Parameters",
        "Ends by", "Layout", title=f"At {found.context:,} tokens of context" , numbers=(1, 2, 3, 4, 5, 6, 7, 8),
        first_to_go=(10, 8, 7, 9, 6, 5, 4),
    )  # fmt: skip
    for one in found.walls:
        made.add_row(
            one.technique.replace("+", "+\n") or AS_IS,
            _length(one.longest),
            _priced(one, found),
            usd(one.usd_per_million) if math.isfinite(one.usd_per_million) else "-",
            show(one.cache, "B"),
            f"{one.batch:,}" if one.batch else "none",
            ranged(one.step, one.step_range, lambda value: show(value, "s")) if one.batch else "-",
            show(one.read, "B"),
            show(one.parameters),
            one.binds or "-",
            one.layout or "-",
            style="green" if not one.technique else None,
        )
    return made


def _priced(one: ContextWall, found: ContextWalls) -> str:
    """Write how long a context the price allows; for what the model costs as it is, that is the length asked."""
    if not math.isfinite(found.usd_per_million):
        return "-"
    return f"{found.context:,}" if one is found.base and not found.priced and one.batch else _length(one.longest_priced)


def _length(value: float) -> str:
    return (
        tokens(value).removesuffix(" tokens").replace("over ", "> ")
        if value and math.isfinite(value)
        else "any"
        if value
        else "none"
    )


def _meaning(found: ContextWalls) -> list[Text]:
    price = usd(found.usd_per_million) if math.isfinite(found.usd_per_million) else ""
    words = f"Longest: tokens of context within {show(found.tpot, 's')} a token"
    if price and found.priced:
        words += f"; for the price: within {price} per million output tokens too"
    elif price:
        words += f"; for the price: for the {price} per million that it costs as it is"
    words += "" if len(found.walls) == 1 else ". Techniques are what-ifs: what an engine runs of them is its own affair"
    return [Text(words + ". Cache, batch, step and USD/M are at the length above.", style="bright_black")]


def _picture(found: ContextWalls, width: int) -> list[RenderableType]:
    """Return how long a context each technique allows, with the price and without, on a logarithmic axis."""
    lengths = [value for one in found.walls for value in (one.longest, one.longest_priced) if value and math.isfinite(value)]
    if not lengths:
        return []
    names = [one.technique or AS_IS for one in found.walls]
    values = [*lengths, found.context, *([found.max_context] if math.isfinite(found.max_context) else [])]
    scale = LogScale.of(names, values, width, beside=BESIDE, spare=1.3)
    lines: list[RenderableType] = [Text(), Text("Longest context [tokens], logarithmic", style="bold")]
    for one, name in zip(found.walls, names, strict=True):
        text = name if len(name) <= scale.left else name[: scale.left - 1] + "…"
        lines.append(Text.assemble(text.rjust(scale.left), " ", _bar(one, found, scale)))
    lines.append(scale.labels(_length))
    told = "█ for the price  ░ for the speed alone" if math.isfinite(found.usd_per_million) else "░ for the speed"
    lines.append(Text(told + ("  ┊ what the model is made for" if math.isfinite(found.max_context) else "")))
    return lines


def _bar(one: ContextWall, found: ContextWalls, scale: LogScale) -> Text:
    def cells(value: float) -> int:
        return scale.cells if math.isinf(value) else scale.at(value) + 1 if value else 0

    priced = cells(one.longest_priced) if math.isfinite(found.usd_per_million) else 0
    row = ["█"] * priced + ["░"] * max(cells(one.longest) - priced, 0)
    row += [" "] * (scale.cells - len(row))
    if math.isfinite(found.max_context):
        row[scale.at(found.max_context)] = "┊"
    return Text("".join(row), style="green" if not one.technique else "cyan")
