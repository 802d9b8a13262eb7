"""Terminal view of `steptime context`: the longest context, with a row and a bar for each way to compress the cache."""

from __future__ import annotations

import math

from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import LogScale
from steptime.cli.views.widgets import Answer, Grid, footnote, ranged, section, table
from steptime.hardware.rental_prices import usd
from steptime.sweeps.context_limit import ContextWall, ContextWalls, tokens
from steptime.units import counted, show

MAX_NAME_WIDTH = 30  # columns next to the axis of the chart, at most
UNCHANGED = "unchanged"
COMBINED = "combined"
COMBINED_WIDTH = 24  # letters from which the name of a combination stands below the table
# Why a smaller cache is not always faster, or a faster one smaller.
EFFECTS = {
    "share": "share: each layer still reads the shared cache, so memory falls and time does not",
    "topk": "topk: all tokens and an index stay in memory; each step reads the index and the best tokens",
    "blocks": "blocks: all tokens stay in memory",
}


def contexts_view(limits: ContextWalls, *, width: int, full: bool = False) -> RenderableType:
    """Return how long a context may be for a speed and a price.

    Args:
        limits: longest contexts of a model as it is, and with each technique.
        width: columns of the terminal.
        full: whether to show caveats of techniques, and those that do not apply.

    Returns:
        The answer.
    """
    conditions = (
        f"At most {counted(limits.chips, 'chip')}, {show(limits.tpot, 's')} per token, engine {limits.engine}, cache in "
    )
    conditions += f"{limits.kv_format}; decode only, without prefill."
    caveats = list(dict.fromkeys(text for wall in limits.walls for text in wall.caveats))
    details = [section("Caveats of techniques", caveats)] if caveats else []
    details += [section("Techniques that do not apply", limits.left_out)] if limits.left_out else []
    added = ["caveats of techniques"] if caveats else []
    added += [counted(len(limits.left_out), "technique") + " not applied"] if limits.left_out else []
    answered = [_table(limits), footnote(_meaning(limits)), *_picture(limits, width)]
    return Answer(
        sentence=_sentence(limits), conditions=conditions, body=[] if limits.reason else answered, details=details,
        warnings=_warnings(limits), full_adds=", ".join(added), full=full,
    )  # fmt: skip


def _sentence(limits: ContextWalls) -> str:
    """Say how long a context the model reaches as it is, and with the best technique."""
    base, model = limits.base, limits.model.rpartition("/")[2]
    speed = f"{1 / limits.tpot:,.3g} tok/s"
    if not base.longest:
        return limits.text
    text = f"{model} on {limits.system} reaches {tokens(base.longest)} of context at {speed} for at least one sequence"
    remarks = []
    if base.longest_range and base.longest_range[1] >= 1.01 * base.longest_range[0]:
        remarks.append(f"90 %: {' to '.join(map(_length, base.longest_range))}")
    if base.longest > limits.max_context:
        remarks.append(f"trained for {limits.max_context:,.0f}")
    text += f" ({'; '.join(remarks)})" if remarks else ""
    if math.isfinite(limits.usd_per_million) and limits.priced:
        text += f", and {tokens(base.longest_priced)} for {usd(limits.usd_per_million)} per million output tokens"
    # among equal lengths at the price, the longer one at the speed is named
    longest = max(limits.walls, key=lambda wall: (wall.longest_priced, wall.longest))
    if longest is base or not longest.longest_priced > 1.01 * base.longest_priced:
        return text + "."
    cost = f" for {usd(limits.usd_per_million)} per million output tokens" if math.isfinite(limits.usd_per_million) else ""
    ends = "any length" if math.isinf(longest.longest_priced) else tokens(longest.longest_priced)
    quality = " It may cost quality (caveats: --full)." if longest.caveats else ""
    return f"{text}. The technique {longest.technique} allows {ends}{cost}.{quality}"


def _warnings(limits: ContextWalls) -> list[str]:
    """Say where the model itself ends before memory and time do, and where no price is known."""
    no_rent = not (math.isfinite(limits.usd_per_million) or limits.reason)
    rent_notes = [f"no rent of {limits.system} is known; --rent 2.50 sets one"] if no_rent else []
    trained = f"{limits.model} is trained for at most {limits.max_context:,.0f} tokens"
    if limits.context > limits.max_context:
        return [f"{trained}, fewer than --context {limits.context:,}", *rent_notes]
    beyond = limits.base.longest > limits.max_context
    return [f"{trained}; longer contexts show only what memory and time allow", *rent_notes] if beyond else rent_notes


def _table(limits: ContextWalls) -> Grid:
    grid = table(
        "Technique", "Longest", "Within price", "USD/M out", "Cache", "Batch", "Step (90 % range)", "Bytes read", "Parameters",
        "Limit", "Layout", numbers=(1, 2, 3, 4, 5, 6, 7, 8),
        first_to_go=(10, 8, 7, 9, 6, 5, 4),
    )  # fmt: skip
    for wall in limits.walls:
        grid.add_row(
            _name(wall, limits) or UNCHANGED, _length(wall.longest), _priced(wall, limits),
            usd(wall.usd_per_million) if math.isfinite(wall.usd_per_million) else "-", show(wall.cache, "B"),
            f"{wall.batch:,}" if wall.batch else "none",
            ranged(wall.step, wall.step_range, lambda value: show(value, "s"), label="") if wall.batch else "-",
            show(wall.read_bytes, "B"), show(wall.parameters), wall.binds or "-", wall.layout or "-",
            style="green" if not wall.technique else None,
        )  # fmt: skip
    return grid


def _combined(limits: ContextWalls) -> str:
    """Return the only technique whose name is too long for the table; empty where there are several or none."""
    names = [wall.technique for wall in limits.walls if len(wall.technique) > COMBINED_WIDTH]
    return names[0] if len(names) == 1 else ""


def _name(wall: ContextWall, limits: ContextWalls) -> str:
    is_combined = bool(wall.technique) and wall.technique == _combined(limits)
    return COMBINED if is_combined else wall.technique.replace("+", "+\n")


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


def _meaning(limits: ContextWalls) -> str:
    price = usd(limits.usd_per_million) if math.isfinite(limits.usd_per_million) else ""
    text = f"Longest: context in tokens within {show(limits.tpot, 's')} per token."
    text += f" Within price: also within {price} per million output tokens." if price else ""
    text += f" Cache, batch and USD/M: at {limits.context:,} tokens."
    combined = _combined(limits)
    text += f" Combined: {combined}." if combined else ""
    single_names = {wall.technique.partition("=")[0] for wall in limits.walls if "+" not in wall.technique}
    return text + "".join(f" {words}." for name, words in EFFECTS.items() if name in single_names)


def _picture(limits: ContextWalls, width: int) -> list[RenderableType]:
    """Return how long a context each technique allows, with the price and without, on a logarithmic axis."""
    lengths = [
        value for wall in limits.walls for value in (wall.longest, wall.longest_priced) if value and math.isfinite(value)
    ]
    if not lengths:
        return []
    names = [wall.technique or UNCHANGED for wall in limits.walls]
    values = [*lengths, limits.context, *([limits.max_context] if math.isfinite(limits.max_context) else [])]
    scale = LogScale.fit(names, values, width, max_name_width=MAX_NAME_WIDTH, spare=1.3)
    lines: list[RenderableType] = []
    for wall, name in zip(limits.walls, names, strict=True):
        text = name if len(name) <= scale.name_width else name[: scale.name_width - 1] + "…"
        lines.append(Text.assemble(text.rjust(scale.name_width), " ", _bar(wall, limits, scale)))
    lines.append(scale.labels(_length))
    legend = "█ within speed and price  ░ within speed" if math.isfinite(limits.usd_per_million) else "░ within speed"
    lines.append(Text(legend + ("  ┊ trained context" if math.isfinite(limits.max_context) else "")))
    return [section("Longest context [tokens]", lines)]


def _bar(wall: ContextWall, limits: ContextWalls, scale: LogScale) -> Text:
    def cells(value: float) -> int:
        return scale.cells if math.isinf(value) else scale.cell_index(value) + 1 if value else 0

    priced = cells(wall.longest_priced) if math.isfinite(limits.usd_per_million) else 0
    row = ["█"] * priced + ["░"] * max(cells(wall.longest) - priced, 0)
    row += [" "] * (scale.cells - len(row))
    if math.isfinite(limits.max_context):
        row[scale.cell_index(limits.max_context)] = "┊"
    return Text("".join(row), style="green" if not wall.technique else "cyan")
