"""What the terminal shows of models and systems held against one another: a table, and their costs as intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import LogScale
from steptime.cli.views.widgets import Grid, notes, table
from steptime.hardware.rental_prices import has_rent
from steptime.hardware.unit_cost import usd
from steptime.sweeps.ranking_result import Ranking, Standing
from steptime.units import counted, show

BESIDE = 34  # columns beside the axis of the picture, at most
PAID, READ, RUNS = "USD/M output (90 %)", "USD/M in", "Runs"
SHORT = {"ondemand": "on demand", "contract": "contract", "owned": "owned", "assumed": "assumed", "given": "given", "": ""}


def ranking_view(found: Ranking, width: int, *, brief: bool = False) -> RenderableType:
    """Return the answer in a sentence, a row for each pair, a picture of the costs, and what would flip the order."""
    asked = [f"{found.workload.input_tokens:,.0f} tokens in, {found.workload.output_tokens:,.0f} out"]
    if math.isfinite(found.slo.tpot):
        asked.append(f"at least {show(1 / found.slo.tpot, 'tok/s')} per user")
    if math.isfinite(found.slo.ttft):
        asked.append(f"first token within {show(found.slo.ttft, 's')}")
    parts: list[RenderableType] = [Text(found.text, style="bold"), *notes(found.notes), Text("; ".join(asked) + ".")]
    if brief:
        return Group(*parts)
    placed = [one for one in found.standings if one.place]
    if placed:
        shown = _table(placed, found)
        parts += [Text(), shown, *_meaning(placed, shown, width), *_picture(found.priced, found, width)]
    if found.flips:
        parts += [Text(), Text("What would flip the first two", style="bold"), *(Text(f"  {words}.") for words in found.flips)]
    free = [one for one in found.standings if one.feasible and not one.place]
    if free:
        parts += [Text(), Text("A plan, and no rent of that kind that is known", style="bold")]
        parts += [Text(f"  {found.called(one)}: {show(one.tokens_per_second_per_chip, 'tok/s')} a chip.") for one in free]
    unable = [one for one in found.standings if not one.feasible]
    if unable:
        parts += [Text(), Text(f"No plan on {counted(len(unable), 'pair')}", style="bold")]
        parts += [Text(f"  {found.called(one)}: {one.reason.rstrip('.')}.") for one in unable]
    return Group(*parts)


def _meaning(placed: Sequence[Standing], shown: Grid, width: int) -> list[Text]:
    """Say what the marks and columns mean that are shown."""
    left = {shown.columns[at] for at in shown.widths(width)}
    words = ["USD/M: per million output tokens, prompts included."]
    if any(one.tied for one in placed[1:]):
        words.append("≈: may be as cheap as the first, since the 90 % ranges overlap.")
    if READ in left:
        words.append("USD/M in: per million prompt tokens, for the time that they take.")
    if "tok/s/kW" in left and any(one.power_basis == "chip" for one in placed):
        words.append("*: of the chip alone, host, network and cooling not counted.")
    if RUNS in left:
        words.append("Runs: measured on the system, of any model, that the engine was fitted to.")
    return [Text(" ".join(words), style="bright_black")] if words else []


def _table(placed: Sequence[Standing], found: Ranking) -> Grid:
    sure = any(one.cost_range is not None for one in placed)
    paid = PAID if sure else PAID.partition(" (")[0]
    shown = table(
        "", "System", paid, "Chips", "Speed", "First token", "tok/s/chip", "tok/s/kW", READ, "Rent per chip", "Layout",
        "Engine", RUNS,
        numbers=(2, 3, 4, 5, 6, 7, 8, 12), first_to_go=(10, 11, 8, 7, 9, 12, 6, 4, 5, 3),
    )  # fmt: skip
    for one in placed:
        cost = usd(one.usd_per_million_output_tokens)
        if one.cost_range is not None and math.isfinite(one.usd_per_million_output_tokens):
            cost += f" ({usd(one.cost_range[0])} to {usd(one.cost_range[1])})"
        rent = "not known"
        if has_rent(one.rent):
            rent = f"{show(float(one.rent.typical), 'USD/s')} {SHORT[one.rent.kind]} {one.rent.date}".rstrip()
        power = f"{one.tokens_per_second_per_kilowatt:,.0f}{'*' if one.power_basis == 'chip' else ' '}"
        shown.add_row(
            f"{one.place}{' ≈' if one.tied and one.place > 1 else ''}",
            found.called(one).rpartition("/")[2] if not one.label else found.called(one),
            cost if math.isfinite(one.usd_per_million_output_tokens) else "-",
            f"{one.chips:,}",
            f"{one.tokens_per_second_per_user:,.1f}",
            show(one.ttft, "s"),
            f"{one.tokens_per_second_per_chip:,.0f}",
            power if math.isfinite(one.tokens_per_second_per_kilowatt) else "- ",
            usd(one.prefill_usd_per_million_tokens) if math.isfinite(one.prefill_usd_per_million_tokens) else "-",
            rent,
            one.layout_text,
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
    names = [found.called(one).rpartition("/")[2] if not one.label else one.label for one in priced]
    scale = LogScale.of(names, chain.from_iterable(ends), width, beside=BESIDE)
    sure = any(one.cost_range is not None for one in priced)
    title = f"USD per million output tokens, {'90 % ranges, ' if sure else ''}logarithmic"
    lines: list[RenderableType] = [Text(), Text(title, style="bold")]
    edge = scale.at(ends[0][1])
    for one, name, (least, most) in zip(priced, names, ends, strict=True):
        row = [" "] * scale.cells
        row[edge] = "┊" if sure else " "
        for cell in range(scale.at(least), scale.at(most) + 1):
            row[cell] = "─"
        row[scale.at(one.usd_per_million_output_tokens)] = "●"
        colour = "green" if one.place == 1 else "cyan" if one.tied else "white"
        lines.append(Text.assemble(name[: scale.left].rjust(scale.left), " ", ("".join(row), colour)))
    lines.append(scale.labels())
    if sure:
        lines.append(Text("● the figure  ─ its range  ┊ where that of the cheapest ends: before it, a tie"))
    return lines
