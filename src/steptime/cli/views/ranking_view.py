"""Terminal view of `steptime compare`: the cheapest pair, a row for each pair, and costs as intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import LogScale
from steptime.cli.views.widgets import Answer, Grid, footnote, heading, ranged, section, table
from steptime.hardware.rental_prices import has_rent, usd
from steptime.sweeps.ranking import Ranking, Standing
from steptime.units import HOUR, counted, show

MAX_NAME_WIDTH = 34  # columns next to the axis of the chart, at most
ON_DEMAND = "ondemand"
KINDS = {ON_DEMAND: "on demand"}  # of rents, as people write them


def ranking_view(ranking: Ranking, *, width: int, full: bool = False) -> RenderableType:
    """Return the comparison of models and systems.

    Args:
        ranking: pairs of model and system, the cheapest first.
        width: columns of the terminal.
        full: whether to show all columns, the chart of costs, and pairs without a plan.

    Returns:
        The answer.
    """
    conditions = [f"{ranking.workload.input_tokens:,.0f} tokens in, {ranking.workload.output_tokens:,.0f} out"]
    if math.isfinite(ranking.slo.tpot):
        conditions.append(f"at least {show(1 / ranking.slo.tpot, 'tok/s')} per user")
    if math.isfinite(ranking.slo.ttft):
        conditions.append(f"first token within {show(ranking.slo.ttft, 's')}")
    placed = [standing for standing in ranking.standings if standing.place]
    body: list[RenderableType] = [_table(placed, ranking, full=full), footnote(_meaning(placed, full=full))] if placed else []
    body += [section("What would change the order of the first two", [f"{words}." for words in ranking.flips])]
    unpriced = [standing for standing in ranking.standings if standing.feasible and not standing.place]
    unable = [standing for standing in ranking.standings if not standing.feasible]
    speeds = [f"{ranking.called(row)}: {show(row.tokens_per_second_per_chip, 'tok/s')} per chip." for row in unpriced]
    reasons = [f"{ranking.called(row)}: {row.reason.rstrip('.')}." for row in unable]
    details = [*_picture(ranking.priced, ranking, width)] if placed else []
    details += [section("A plan, but no known rent", speeds)] if speeds else []
    details += [section(f"No plan on {counted(len(unable), 'pair')}", reasons)] if reasons else []
    added = ["rent and layout of each", "chart of costs"] if placed else []
    added += [counted(len(unpriced), "pair") + " without a known rent"] if unpriced else []
    added += [counted(len(unable), "pair") + " that cannot hold the model or meet the limits"] if unable else []
    return Answer(
        sentence=_sentence(ranking), conditions="; ".join(conditions) + ".", body=body if ranking.flips else body[:-1],
        details=details, warnings=ranking.notes, full_adds=", ".join(added), full=full,
    )  # fmt: skip


def _sentence(ranking: Ranking) -> str:
    """Say which pair is cheapest, how far the second is, and which pair with measured runs is cheapest."""
    priced = ranking.priced
    if not priced:
        return ranking.text
    first, rivals = priced[0], priced[1:]
    several_models = len({row.model for row in ranking.standings}) > 1
    verb = "is" if several_models else f"serves {first.model.rpartition('/')[2]}"
    text = f"{_name(ranking, first)} {verb} cheapest: {_cost(first)} per million output tokens at full load"
    # ranges without a measured run rest on other chips, so the first pair with runs is named too
    text += "." if first.runs or first.cost_range is None else ", but without measured runs."
    measured = next((standing for standing in priced if standing.runs), None)
    if measured is not None and measured is not first:
        text += f" Cheapest with measured runs: {_name(ranking, measured)}, {_cost(measured)}."
    if rivals:
        ratio = rivals[0].usd_per_million_output_tokens / first.usd_per_million_output_tokens
        text += f" {_name(ranking, rivals[0])} costs {ratio:.2g}x as much as the first"
        ties = sum(standing.tied for standing in rivals)
        share = (
            "its range overlaps" if ties == len(rivals) == 1 else f"ranges of {ties} of {len(rivals)} overlap with the first"
        )
        text += f"; the order is not certain ({share})." if ties else "."
    return text


def _name(ranking: Ranking, standing: Standing) -> str:
    """Return the name of a pair without the maker of its model."""
    return ranking.called(standing) if standing.label else ranking.called(standing).rpartition("/")[2]


def _cost(standing: Standing) -> str:
    return ranged(standing.usd_per_million_output_tokens, standing.cost_range, usd)


def _meaning(placed: Sequence[Standing], *, full: bool) -> str:
    """Say what marks and columns mean."""
    words = "USD/M: per million output tokens, prompts included."
    if any(standing.tied for standing in placed[1:]):
        words += " ≈: no clear difference, since the 90 % range overlaps with that of row 1."
    if any(standing.cost_range is not None for standing in placed):
        words += " Runs: measured runs on this system."
    if any(standing.rent.kind == ON_DEMAND for standing in placed):
        words += " o: rent on demand."
    if full:
        words += " USD/M in: per million prompt tokens."
        if any(standing.power_basis == "chip" for standing in placed):
            words += " *: power of the chip, without host, network and cooling."
    return words


def _table(placed: Sequence[Standing], ranking: Ranking, *, full: bool) -> Grid:
    """Return a row for each pair with a price; rent, layout and engine only in full, since they wrap."""
    with_range = any(standing.cost_range is not None for standing in placed)
    grid = table(
        "", "System", "USD/M output (90 %)" if with_range else "USD/M output", "Chips", "USD per chip-hour", "Runs",
        "tok/s/user", "TTFT", "tok/s/chip", "tok/s/kW", "USD/M in", *(["Rent per chip", "Layout", "Engine"] if full else []),
        numbers=range(2, 11), first_to_go=(12, 13, 11, 10, 9, 8, 7, 6, 4, 3) if full else (10, 9, 8, 7, 6, 4, 3),
    )  # fmt: skip
    grid.no_wrap = (0,)
    for row in placed:
        cost, prefill = row.usd_per_million_output_tokens, row.prefill_usd_per_million_tokens
        rent, hourly = "not known", "-"
        if has_rent(row.rent):
            hourly = f"{float(row.rent.typical) * HOUR:.2f}{' o' if row.rent.kind == ON_DEMAND else ''}"
            kind = KINDS.get(row.rent.kind, row.rent.kind)
            rent = f"{show(float(row.rent.typical), 'USD/s')} {kind} {row.rent.date}".rstrip()
        power = f"{row.tokens_per_second_per_kilowatt:,.0f}{'*' if full and row.power_basis == 'chip' else ''}"
        grid.add_row(
            f"{row.place}{' ≈' if row.tied and row.place > 1 else ''}", _name(ranking, row),
            ranged(cost, row.cost_range, usd, label="") if math.isfinite(cost) else "-", f"{row.chips:,}",
            hourly, f"{row.runs:,}" if row.runs else "none", f"{row.tokens_per_second_per_user:,.1f}", show(row.ttft, "s"),
            f"{row.tokens_per_second_per_chip:,.0f}", power if math.isfinite(row.tokens_per_second_per_kilowatt) else "-",
            usd(prefill) if math.isfinite(prefill) else "-", *([rent, row.layout_text, row.engine] if full else []),
            style="green" if row.place == 1 else None,
        )  # fmt: skip
    return grid


def _picture(priced: Sequence[Standing], ranking: Ranking, width: int) -> list[RenderableType]:
    """Return costs with their ranges as intervals on a logarithmic axis."""
    ends = [standing.cost_range or (standing.usd_per_million_output_tokens,) * 2 for standing in priced]
    if len(priced) < 2:
        return []
    names = [standing.label or _name(ranking, standing) for standing in priced]
    scale = LogScale.fit(names, chain.from_iterable(ends), width, max_name_width=MAX_NAME_WIDTH)
    with_range = any(standing.cost_range is not None for standing in priced)
    lines: list[RenderableType] = [Text(), heading(f"USD per million output tokens{', 90 % ranges' if with_range else ''}")]
    # costs left of this edge overlap with the first
    edge = scale.cell_index(ends[0][1])
    for standing, name, (low, high) in zip(priced, names, ends, strict=True):
        row = [" "] * scale.cells
        row[edge] = "┊" if with_range else " "
        for cell in range(scale.cell_index(low), scale.cell_index(high) + 1):
            row[cell] = "─"
        row[scale.cell_index(standing.usd_per_million_output_tokens)] = "●"
        colour = "green" if standing.place == 1 else "cyan" if standing.tied else "white"
        lines.append(Text.assemble(name[: scale.name_width].rjust(scale.name_width), " ", ("".join(row), colour)))
    lines.append(scale.labels())
    if with_range:
        lines.append(Text("● cost  ─ its 90 % range  ┊ upper end of the first"))
    return [Group(*lines)]
