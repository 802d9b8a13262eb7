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

MAX_NAME_WIDTH = 34  # columns beside the axis of the picture, at most
COST_HEAD, INPUT_HEAD, RUNS_HEAD = "USD/M output (90 %)", "USD/M in", "Runs"
SHORT = {"ondemand": "on demand", "contract": "contract", "owned": "owned", "assumed": "assumed", "given": "given", "": ""}


def ranking_view(ranking: Ranking, width: int, *, brief: bool = False) -> RenderableType:
    """Return the answer in a sentence, a row for each pair, a picture of the costs, and what would flip the order."""
    conditions = [f"{ranking.workload.input_tokens:,.0f} tokens in, {ranking.workload.output_tokens:,.0f} out"]
    if math.isfinite(ranking.slo.tpot):
        conditions.append(f"at least {show(1 / ranking.slo.tpot, 'tok/s')} per user")
    if math.isfinite(ranking.slo.ttft):
        conditions.append(f"first token within {show(ranking.slo.ttft, 's')}")
    parts: list[RenderableType] = [Text(ranking.text, style="bold"), *notes(ranking.notes), Text("; ".join(conditions) + ".")]
    if brief:
        return Group(*parts)
    placed = [standing for standing in ranking.standings if standing.place]
    if placed:
        grid = _table(placed, ranking)
        parts += [Text(), grid, *_meaning(placed, grid, width), *_picture(ranking.priced, ranking, width)]
    if ranking.flips:
        parts += [
            Text(),
            Text("What would flip the first two", style="bold"),
            *(Text(f"  {words}.") for words in ranking.flips),
        ]
    free = [standing for standing in ranking.standings if standing.feasible and not standing.place]
    if free:
        parts += [Text(), Text("A plan, and no rent of that kind that is known", style="bold")]
        parts += [
            Text(f"  {ranking.called(standing)}: {show(standing.tokens_per_second_per_chip, 'tok/s')} a chip.")
            for standing in free
        ]
    unable = [standing for standing in ranking.standings if not standing.feasible]
    if unable:
        parts += [Text(), Text(f"No plan on {counted(len(unable), 'pair')}", style="bold")]
        parts += [Text(f"  {ranking.called(standing)}: {standing.reason.rstrip('.')}.") for standing in unable]
    return Group(*parts)


def _meaning(placed: Sequence[Standing], grid: Grid, width: int) -> list[Text]:
    """Say what the marks and columns mean that are shown."""
    visible_columns = {grid.columns[position] for position in grid.widths(width)}
    words = ["USD/M: per million output tokens, prompts included."]
    if any(standing.tied for standing in placed[1:]):
        words.append("≈: may be as cheap as the first, since the 90 % ranges overlap.")
    if INPUT_HEAD in visible_columns:
        words.append("USD/M in: per million prompt tokens, for the time that they take.")
    if "tok/s/kW" in visible_columns and any(standing.power_basis == "chip" for standing in placed):
        words.append("*: of the chip alone, host, network and cooling not counted.")
    if RUNS_HEAD in visible_columns:
        words.append("Runs: measured on the system, of any model, that the engine was fitted to.")
    return [Text(" ".join(words), style="bright_black")] if words else []


def _table(placed: Sequence[Standing], ranking: Ranking) -> Grid:
    sure = any(standing.cost_range is not None for standing in placed)
    cost_head = COST_HEAD if sure else COST_HEAD.partition(" (")[0]
    grid = table(
        "", "System", cost_head, "Chips", "Speed", "First token", "tok/s/chip", "tok/s/kW", INPUT_HEAD, "Rent per chip",
        "Layout", "Engine", RUNS_HEAD,
        numbers=(2, 3, 4, 5, 6, 7, 8, 12), first_to_go=(10, 11, 8, 7, 9, 12, 6, 4, 5, 3),
    )  # fmt: skip
    for standing in placed:
        cost = usd(standing.usd_per_million_output_tokens)
        if standing.cost_range is not None and math.isfinite(standing.usd_per_million_output_tokens):
            cost += f" ({usd(standing.cost_range[0])} to {usd(standing.cost_range[1])})"
        rent = "not known"
        if has_rent(standing.rent):
            rent = f"{show(float(standing.rent.typical), 'USD/s')} {SHORT[standing.rent.kind]} {standing.rent.date}".rstrip()
        power = f"{standing.tokens_per_second_per_kilowatt:,.0f}{'*' if standing.power_basis == 'chip' else ' '}"
        grid.add_row(
            f"{standing.place}{' ≈' if standing.tied and standing.place > 1 else ''}",
            ranking.called(standing).rpartition("/")[2] if not standing.label else ranking.called(standing),
            cost if math.isfinite(standing.usd_per_million_output_tokens) else "-",
            f"{standing.chips:,}",
            f"{standing.tokens_per_second_per_user:,.1f}",
            show(standing.ttft, "s"),
            f"{standing.tokens_per_second_per_chip:,.0f}",
            power if math.isfinite(standing.tokens_per_second_per_kilowatt) else "- ",
            usd(standing.prefill_usd_per_million_tokens) if math.isfinite(standing.prefill_usd_per_million_tokens) else "-",
            rent,
            standing.layout_text,
            standing.engine,
            f"{standing.runs:,}" if standing.runs else "none",
            style="green" if standing.place == 1 else None,
        )
    return grid


def _picture(priced: Sequence[Standing], ranking: Ranking, width: int) -> list[RenderableType]:
    """Return costs with their ranges as intervals on a logarithmic axis."""
    ends = [standing.cost_range or (standing.usd_per_million_output_tokens,) * 2 for standing in priced]
    if len(priced) < 2:
        return []
    names = [ranking.called(standing).rpartition("/")[2] if not standing.label else standing.label for standing in priced]
    scale = LogScale.fit(names, chain.from_iterable(ends), width, max_name_width=MAX_NAME_WIDTH)
    sure = any(standing.cost_range is not None for standing in priced)
    title = f"USD per million output tokens, {'90 % ranges, ' if sure else ''}logarithmic"
    lines: list[RenderableType] = [Text(), Text(title, style="bold")]
    edge = scale.cell_index(ends[0][1])
    for standing, name, (low, high) in zip(priced, names, ends, strict=True):
        row = [" "] * scale.cells
        row[edge] = "┊" if sure else " "
        for cell in range(scale.cell_index(low), scale.cell_index(high) + 1):
            row[cell] = "─"
        row[scale.cell_index(standing.usd_per_million_output_tokens)] = "●"
        colour = "green" if standing.place == 1 else "cyan" if standing.tied else "white"
        lines.append(Text.assemble(name[: scale.name_width].rjust(scale.name_width), " ", ("".join(row), colour)))
    lines.append(scale.labels())
    if sure:
        lines.append(Text("● the figure  ─ its range  ┊ where that of the cheapest ends: before it, a tie"))
    return lines
