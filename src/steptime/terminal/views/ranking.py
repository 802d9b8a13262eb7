"""What the terminal shows of models and systems held against one another: a table, and their costs as intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.machines.rents import known
from steptime.sweeping.ranking import Ranking, Standing
from steptime.terminal.views.widgets import Grid, table, usd
from steptime.units import counted, show

LEAST, BESIDE, MOST = 20, 34, 100  # columns of an axis, those beside it, and of a picture at most
TICKS = (1, 2, 5)
SHORT = {"ondemand": "on demand", "contract": "contract", "owned": "owned", "assumed": "assumed", "given": "given", "": ""}


def ranking_view(found: Ranking, width: int, *, brief: bool = False) -> RenderableType:
    """Return the answer in a sentence, a row for each pair, a picture of the costs, and what would flip the order."""
    asked = [f"{found.workload.input_tokens:,.0f} tokens in, {found.workload.output_tokens:,.0f} out"]
    if math.isfinite(found.slo.tpot):
        asked.append(f"at least {show(1 / found.slo.tpot, 'tok/s')} per user")
    if math.isfinite(found.slo.ttft):
        asked.append(f"first token within {show(found.slo.ttft, 's')}")
    parts: list[RenderableType] = [Text(found.text, style="bold"), Text("; ".join(asked) + ".")]
    if brief:
        return Group(*parts)
    able = [one for one in found.standings if one.feasible]
    if able:
        parts += [Text(), _table(able, found), Text(MEANING, style="bright_black")]
        parts += _picture([one for one in able if math.isfinite(one.usd_per_million_output_tokens)], found, width)
    if found.flips:
        parts += [Text(), Text("What would flip the first two", style="bold"), *(Text(f"  {words}.") for words in found.flips)]
    unable = [one for one in found.standings if not one.feasible]
    if unable:
        parts += [Text(), Text(f"No plan on {counted(len(unable), 'pair')}", style="bold")]
        parts += [Text(f"  {_name(one, found)}: {one.reason.rstrip('.')}.") for one in unable]
    return Group(*parts)


MEANING = (
    "=: as cheap as the first for all that is known, since the 90 % ranges overlap. USD are per million tokens: of output with "
    "prompts included, and of prompts for themselves. Runs: measured on that system, and fitted."
)


def _name(one: Standing, found: Ranking) -> str:
    several = len({each.model for each in found.standings}) > 1
    return f"{one.model.rpartition('/')[2]} on {one.system}" if several else one.system


def _table(able: Sequence[Standing], found: Ranking) -> Grid:
    shown = table(
        "", "System", "Chips", "USD/M output (90 %)", "USD/M in", "Speed", "First token", "tok/s/chip", "tok/s/kW",
        "Rent a chip", "Engine", "Runs",
        numbers=(2, 3, 4, 5, 6, 7, 8, 11), first_to_go=(10, 8, 4, 9, 11, 6, 5),
    )  # fmt: skip
    for one in able:
        cost = usd(one.usd_per_million_output_tokens)
        if one.cost_range is not None and math.isfinite(one.usd_per_million_output_tokens):
            cost += f" ({usd(one.cost_range[0])} to {usd(one.cost_range[1])})"
        rent = (
            f"{show(float(one.rent.typical), 'USD/s')} {SHORT[one.rent.kind]} {one.rent.date}"
            if known(one.rent)
            else "not known"
        )
        shown.add_row(
            f"{one.place}{'=' if one.tied and one.place > 1 else ''}",
            _name(one, found),
            f"{one.chips:,}",
            cost if math.isfinite(one.usd_per_million_output_tokens) else "-",
            usd(one.prefill_usd_per_million_tokens) if math.isfinite(one.prefill_usd_per_million_tokens) else "-",
            f"{one.tokens_per_second_per_user:,.1f}",
            show(one.ttft, "s"),
            f"{one.tokens_per_second_per_chip:,.0f}",
            f"{one.tokens_per_second_per_kilowatt:,.0f}" if math.isfinite(one.tokens_per_second_per_kilowatt) else "-",
            rent,
            one.engine,
            f"{one.runs:,}" if one.runs else "none",
            style="green" if one.place == 1 else None,
        )
    return shown


def _picture(priced: Sequence[Standing], found: Ranking, width: int) -> list[RenderableType]:
    """Return costs with their ranges as intervals on a logarithmic axis."""
    ends = [one.cost_range or (one.usd_per_million_output_tokens,) * 2 for one in priced]
    if len(priced) < 2:
        return []
    names = [_name(one, found) for one in priced]
    left = min(max(map(len, names)), BESIDE)
    cells = max(LEAST, min(width, MOST) - left - 3)
    low, high = math.log10(min(end[0] for end in ends)), math.log10(max(end[1] for end in ends))
    scale = (cells - 1) / max(high - low, 1e-9)

    def at(value: float) -> int:
        return max(0, min(cells - 1, round((math.log10(value) - low) * scale)))

    lines: list[RenderableType] = [Text(), Text("USD per million output tokens, 90 % ranges, logarithmic", style="bold")]
    edge = at(ends[0][1])
    for one, name, (least, most) in zip(priced, names, ends, strict=True):
        row = [" "] * cells
        row[edge] = "┊"
        for cell in range(at(least), at(most) + 1):
            row[cell] = "─"
        row[at(one.usd_per_million_output_tokens)] = "●"
        colour = "green" if one.place == 1 else "cyan" if one.tied else "white"
        lines.append(Text.assemble(name[:left].rjust(left), " ", ("".join(row), colour)))
    lines.append(_axis(left, cells, low, high, at))
    lines.append(Text("● the figure  ─ its range  ┊ where that of the cheapest ends: before it, a tie"))
    return lines


def _axis(left: int, cells: int, low: float, high: float, at: Callable[[float], int]) -> Text:
    """Return the labels of a logarithmic axis, as many as do not touch."""
    row, free = [" "] * (cells + 8), 0
    for power in range(math.floor(low), math.ceil(high) + 1):
        for step in TICKS:
            value = step * 10.0**power
            if not low <= math.log10(value) <= high:
                continue
            label, cell = usd(value).removesuffix(".00"), at(value)
            if cell >= free and cell + len(label) <= len(row):
                row[cell : cell + len(label)] = label
                free = cell + len(label) + 2
    return Text(" " * (left + 1) + "".join(row).rstrip(), style="bright_black")
