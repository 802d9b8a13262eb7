"""What the terminal shows of scaling laws and of mixtures of experts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import figure, label, render_chart, room
from steptime.cli.views.widgets import Grid, facts, heading, notes, sourced, table
from steptime.describe.law_summary import LawCard
from steptime.scaling.law_comparison import Losses
from steptime.scaling.moe_vs_dense import MoeBoard, MoeRow
from steptime.scaling.scaling_laws import in_beyond
from steptime.units import in_digits, show

MARKS = ("o", "x", "+", "#", "%", "@")
COLOURS = ("green", "cyan", "yellow", "magenta", "red", "blue")
MOST_GAIN = 100.0  # of a picture; beyond, a law is far outside what it was fitted to


def laws_view(cards: Sequence[LawCard]) -> RenderableType:
    """Return the list of laws."""
    grid = table("Law", "Year", "Grade", "Form", "Fitted to", numbers=(1,), first_to_go=(4, 1))
    for card in cards:
        name = card.name + (" *" if card.default else "")
        grid.add_row(name, str(card.year), card.grade, card.formula, card.fitted_to)
    return Group(
        grid, Text("* used by `steptime budget` unless told. `steptime laws NAME` shows constants, errors and sources.")
    )


def law_view(card: LawCard) -> RenderableType:
    """Return one law: its form, what it was fitted to, and every constant with its source."""
    pairs = [("Form", card.formula), ("Counts", f"{card.counts}" + (" parameters" if card.counts != "compute" else "")),
             ("Fitted to", card.fitted_to), ("Knows too", ", ".join(card.takes) or "nothing else")]  # fmt: skip
    if card.lacks:
        pairs.append(("Not known", ", ".join(card.lacks) + ": give them in a copy of its file"))
    rows = []
    for name, value in card.constants.items():
        source = card.figures[f"constants.{name}"]
        error = card.errors.get(name)
        text = f"{value:g}" + (f" ± {error:g}" if error is not None else "")
        rows.append((name, text, source.grade, source.date, source.url))
    parts: list[RenderableType] = [Text(f"{card.name}: {card.title} ({card.year})", style="bold"), facts(pairs)]
    if rows:
        parts.append(sourced("Constant", rows))
    if card.errors and not card.drawn_together:
        parts += notes(["how its errors hang together was not published, so that budgets by it have no range"])
    if not card.errors and not card.lacks:
        parts += notes(["no errors of its constants are known, so that budgets by it have no range of their own"])
    return Group(*parts)


def losses_view(comparison: Losses) -> RenderableType:
    """Return what laws say of a model."""
    title = f"{comparison.words}; {in_digits(comparison.losses[0].over_chinchilla)}x over 20 tokens a parameter."
    grid = table(
        "Law", "Loss [nats/token]", "Over its own best", "Best of the same compute", "Beyond its runs",
        numbers=(1, 2), first_to_go=(3,),
    )  # fmt: skip
    for estimate in comparison.losses:
        best = f"{show(estimate.best_params)} on {show(estimate.best_tokens)}" if math.isfinite(estimate.best_params) else "-"
        grid.add_row(estimate.law, _number(estimate.loss, "{:.4f}"), _times(estimate.over_own), best,
                      estimate.reason or in_beyond(estimate.beyond))  # fmt: skip
    return Group(Text(title, style="bold"), grid, Text("A loss means something else to each law: its own corpus and tokens."))


def board_view(board: MoeBoard, width: int) -> RenderableType:
    """Return mixtures against dense models: a picture of effective sizes, and what each asks of the machine."""
    title = (
        f"{show(board.active)} active parameters on {show(board.tokens)} tokens, in {board.weight_format} on {board.system} "
        f"(R = {board.balance:.0f}), {board.batch:,.0f} sequences"
    )
    grid = table(
        "Law", "Experts", "Dense of equal loss", "Gain", "In all", "B* = R σ", "Chips", "USD/Mtok", "Over dense",
        numbers=range(1, 9), first_to_go=(6, 4, 7),
    )  # fmt: skip
    for law in dict.fromkeys(row.law for row in board.rows):
        _rows(grid, [row for row in board.rows if row.law == law])
    parts: list[RenderableType] = [heading(title), *_picture(board, width), grid]
    parts.append(
        Text("USD/Mtok: of output, on an ideal machine, the KV cache aside; over dense: that against the dense model of equal "
             "loss at the same batch. Weights in all, chips by their memory alone.")
    )  # fmt: skip
    fitted_ranges = facts([(law, words) for law, words in board.fitted.items()])
    parts += [heading("Where each law was fitted"), fitted_ranges]
    for law, size in board.vanishing.items():
        parts += notes([f"{law}: experts no longer help from {show(size)} parameters on, known to a factor of 3 at best"])
    far = {row.law for row in board.rows if row.gain > MOST_GAIN}
    if far:
        parts += notes([f"{', '.join(sorted(far))}: gains above {MOST_GAIN:g}x are far outside what it was fitted to"])
    return Group(*parts)


def _rows(grid: Grid, rows: Sequence[MoeRow]) -> None:
    best = min(rows, key=lambda row: row.cost_over_dense)
    for row in rows:
        usd = f"{row.usd_per_million_tokens:.4f}"
        cells = [row.law, f"{row.experts:g}", show(row.equivalent), _times(row.gain), show(row.total_params),
                 f"{row.optimal_batch:,.0f}", f"{row.chips:,.0f}", usd, _times(row.cost_over_dense)]  # fmt: skip
        grid.add_row(*cells, style="green" if row is best and len(rows) > 1 else None)
    grid.add_section()


def _picture(board: MoeBoard, width: int) -> list[RenderableType]:
    """Return gain against experts, a mark for each law."""
    rows = [row for row in board.rows if row.gain <= MOST_GAIN]
    counts = [row.experts for row in rows]
    if len(set(counts)) < 2:
        return []
    chart = figure(room(width), 12)
    top = max(row.gain for row in rows)
    chart.set_x_limits(0.0, float(np.log2(max(counts))) + 0.1)
    chart.set_y_limits(0.0, float(np.log10(max(top, 2.0))) + 0.05)
    chart.x_ticks_fkt = lambda value, _: f"{2**value:,.0f}"
    chart.y_ticks_fkt = lambda value, _: f"{10**value:.2g}x"
    label(chart, "experts", "dense size / active", width)
    legend = Text()
    for position, law in enumerate(dict.fromkeys(row.law for row in rows)):
        mine = [row for row in rows if row.law == law]
        mark, colour = MARKS[position % len(MARKS)], COLOURS[position % len(COLOURS)]
        chart.scatter([np.log2(row.experts) for row in mine], [np.log10(row.gain) for row in mine], lc=colour, marker=mark)
        legend.append(f"{mark} {law}   ", style=colour)
    return [Text("Dense model of equal loss over active parameters", style="bold"), render_chart(chart), legend]


def _number(value: float, form: str) -> str:
    return form.format(value) if math.isfinite(value) else "-"


def _times(value: float) -> str:
    return f"{in_digits(value)}x" if math.isfinite(value) else "-"
