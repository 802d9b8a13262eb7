"""Terminal views of `steptime reversible`: reversible stacks, mixing of ciphers, S-boxes, and KV caches as a trade."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import Ticks, figure, label, plain, render_chart, room
from steptime.cli.views.widgets import Answer, Grid, facts, footnote, section, table
from steptime.describe.kv_tradeoff import CacheTrade, HeldContext
from steptime.reversible.avalanche import Curve, Mixing
from steptime.reversible.sboxes import SboxCard
from steptime.reversible.stack_results import KINDS, Stacks
from steptime.units import show

GLYPHS = {"plain": ("p", "red"), "checkpointed": ("c", "yellow"), "reversible": ("r", "green")}
LETTERS, COLOURS = "FSARCnlro", ("green", "cyan", "blue", "white", "white", "red", "magenta", "yellow", "yellow")
SHOWN_ROUNDS = (1, 2, 3, 4, 8, 10, 16)
MAX_SHOWN = 16  # rows and columns of the tables of an S-box


def result_view(result: Any, *, width: int, full: bool = False) -> RenderableType:
    """Return the view of any answer of the command.

    Args:
        result: stacks, mixing, an S-box or caches.
        width: columns of the terminal.
        full: whether to show all of it.

    Returns:
        The answer.
    """
    if isinstance(result, Stacks):
        return stacks_view(result, width=width, full=full)
    if isinstance(result, Mixing):
        return mixing_view(result, width=width, full=full)
    return sbox_view(result, full=full) if isinstance(result, SboxCard) else cache_view(result, full=full)


def stacks_view(stacks: Stacks, *, width: int, full: bool = False) -> RenderableType:
    """Return memory, arithmetic and time of stacks by depth.

    Args:
        stacks: measured stacks.
        width: columns of the terminal.
        full: whether to show the chart, and errors of gradients by number format.

    Returns:
        The answer.
    """
    saved, _, reversible = stacks.deepest()
    figures = [
        ("Closed form of the memory, two streams", show(stacks.streams, "B")),
        ("FLOP relative to a plain stack", f"{reversible.arithmetic - 1:+.1%}; closed form {stacks.arithmetic - 1:+.1%}"),
        ("Time relative to a plain stack", f"{reversible.slowness:.2f}x; published 1.1x to 1.7x (MemCNN, RevNet)"),
    ]
    return Answer(
        sentence=f"A reversible stack of {stacks.depth:,} blocks keeps {show(reversible.saved, 'B')} for the backward pass. A "
        f"plain one keeps {show(saved.saved, 'B')}: {saved.saved / reversible.saved:,.3g}x as much.",
        conditions=f"{stacks.width:,} wide, {stacks.rows:,} rows of {stacks.dtype} on {stacks.device} "
        f"(PyTorch {stacks.torch}).",
        body=[facts(figures), _stack_table(stacks), *_stack_picture(stacks, width)], details=[_error_table(stacks)],
        warnings=[
            "only saved activations and temporary values are counted, without parameters and allocator fragments",
            f"errors of gradients are of stacks {stacks.error_width:,} wide on the CPU",
        ],
        full_adds="errors of gradients by number format", full=full,
    )  # fmt: skip


def _stack_table(stacks: Stacks) -> Grid:
    heads = ("Blocks", "Stack", "Kept", "Peak", "FLOPs / plain", "Time", "/ plain", "Gradients off")
    grid = table(*heads, numbers=(0, 2, 3, 4, 5, 6, 7), first_to_go=(6, 3))
    for point in stacks.points:
        off = "-" if point.kind == "plain" else f"{point.gradient_error:.1e}"
        blocks = f"{point.depth:,}" if point.kind == KINDS[0] else ""
        if blocks:
            grid.add_section()
        grid.add_row(
            blocks, point.kind, show(point.saved, "B"), show(point.peak, "B"), f"{point.arithmetic:.3f}",
            show(point.seconds, "s"), f"{point.slowness:.2f}", off, style="green" if point.kind == "reversible" else None,
        )  # fmt: skip
    return grid


def _stack_picture(stacks: Stacks, width: int) -> list[RenderableType]:
    """Return memory against depth, both logarithmic; nothing for a single depth."""
    curves = {kind: [(p.depth, p.saved) for p in stacks.points if p.kind == kind] for kind in KINDS}
    if len(curves["plain"]) < 2:
        return []
    every = np.log10([saved for points in curves.values() for _, saved in points])
    depths = np.log10([depth for depth, _ in curves["plain"]])
    chart = figure(room(width), 10)
    chart.set_x_limits(float(depths.min()), float(depths.max()))
    chart.set_y_limits(float(every.min()) - 0.2, float(every.max()) + 0.1)
    label(chart, "blocks", "bytes", width)
    legend = Text()
    for kind, points in curves.items():
        letter, colour = GLYPHS[kind]
        x, y = np.log10([depth for depth, _ in points]), np.log10([saved for _, saved in points])
        chart.plot(x, y, lc=colour)
        chart.scatter(x, y, lc=colour, marker=letter)
        legend.append(f"{letter} {kind}   ", style=colour)
    picture = render_chart(chart, Ticks(plain), Ticks(partial(show, unit="B", digits=2)))
    return [section("Activations kept for the backward pass", [picture, legend])]


def _error_table(stacks: Stacks) -> Grid:
    grid = table(
        "Number format", "Blocks", "Gradients", "Plain stack", "Rebuilt input", numbers=(1, 2, 3, 4),
        title="Relative errors: gradients against a plain stack, a plain stack against float64",
    )  # fmt: skip
    for point in stacks.errors:
        format_error = "-" if point.dtype == "float64" else f"{point.plain_error:.1e}"
        grid.add_row(point.dtype, f"{point.depth:,}", f"{point.gradient_error:.1e}", format_error, f"{point.input_error:.1e}")
    return grid


# --- mixing -------------------------------------------------------------------------------------------------------------


def mixing_view(mixing: Mixing, *, width: int, full: bool = False) -> RenderableType:
    """Return how far one flipped input bit spreads, by rounds or layers.

    Args:
        mixing: avalanche curves, a trained network, and mixing times.
        width: columns of the terminal.
        full: whether to show the chart.

    Returns:
        The answer.
    """
    max_rounds = max(len(curve.shares) for curve in mixing.curves)
    numbers = [number for number in SHOWN_ROUNDS if number <= max_rounds]
    grid = table(
        "", "Output bits that flip, by rounds", *map(str, numbers), "Expected",
        numbers=range(2, 3 + len(numbers)), first_to_go=(6, 4, 7),
    )  # fmt: skip
    for letter, colour, curve in zip(LETTERS, COLOURS, mixing.curves, strict=True):
        cells = [f"{curve.shares[n - 1]:.0%}" if n <= len(curve.shares) else "" for n in numbers]
        expected = f"{curve.expected[-1]:.0%}" if curve.expected else "-"
        grid.add_row(Text(letter, style=colour), curve.name, *cells, expected)
    network = mixing.trained
    times = table("Rounds until each output depends on each input", "Rounds", numbers=(1,))
    for name, rounds in mixing.rounds.items():
        times.add_row(name, f"{rounds:,.0f}" if math.isfinite(rounds) else "never")
    best = max(mixing.curves, key=lambda curve: curve.shares[-1])
    trained = (
        f"A network of {network.inputs} inputs that learns majorities of groups: random {network.random:.1%} of outputs flip, "
        f"trained {network.trained:.1%} ({network.accuracy:.1%} correct), the task itself {network.expected:.1%}."
    )
    return Answer(
        sentence=f"After {len(best.shares)} rounds of {best.name}, one input bit flips {best.shares[-1]:.0%} of the output "
        "bits; a cipher needs one half.",
        conditions=trained, body=[grid, times], details=_mixing_picture(mixing.curves, width), full_adds="chart", full=full,
    )  # fmt: skip


def _mixing_picture(curves: Sequence[Curve], width: int) -> list[RenderableType]:
    max_rounds = max(len(curve.shares) for curve in curves)
    chart = figure(room(width), 13)
    chart.set_x_limits(1, max_rounds)
    chart.set_y_limits(0, 0.6)
    label(chart, "rounds", "flipped", width)
    for letter, colour, curve in zip(LETTERS, COLOURS, curves, strict=True):
        x = np.arange(1, len(curve.shares) + 1)
        chart.plot(x, curve.shares, lc=colour)
        chart.scatter(x[::3], curve.shares[::3], lc=colour, marker=letter)
    picture = render_chart(chart, Ticks("{:.0f}".format, log=False), Ticks("{:.0%}".format, log=False))
    return [section("Share of output bits that flip; letters as in the table", [picture])]


# --- S-boxes and caches -------------------------------------------------------------------------------------------------


def sbox_view(card: SboxCard, *, full: bool = False) -> RenderableType:
    """Return the strength of an S-box, with its tables where they are small.

    Args:
        card: the S-box.
        full: whether to show both tables.

    Returns:
        The answer.
    """
    size = len(card.values)
    right = (size + card.walsh) // 2
    small = size <= MAX_SHOWN
    squares = [
        _square("Differences: inputs by input (row) and output difference (column)", card.differences),
        _square("Linear approximations: Walsh values by sums of input (row) and output bits", card.approximations),
    ]
    return Answer(
        sentence=f"S-box {card.name} of {card.bits} bits: differential uniformity {card.uniformity} of {size} inputs "
        f"(minimum 2), nonlinearity {card.nonlinearity} inputs.",
        conditions=f"Its largest Walsh value is {card.walsh}: the best linear approximation is right on {right} of {size} "
        "inputs."
        + ("" if card.bijective else " It is not bijective.")
        + ("" if small else f" --csv and --json have its tables of {size:,} rows."),
        body=squares if small else [],
        full=full,
    )


def _square(title: str, rows: Sequence[Sequence[int]]) -> RenderableType:
    cells = max(len(str(value)) for row in rows for value in row) + 1
    lines = [Text(" " * 3 + "".join(f"{n:x}".rjust(cells) for n in range(len(rows[0]))), style="bold")]
    lines += [
        Text(f"{n:>2x} ", style="bold") + Text("".join((str(v) if v else ".").rjust(cells) for v in row))
        for n, row in enumerate(rows)
    ]
    return section(title, lines)


def cache_view(trade: CacheTrade, *, full: bool = False) -> RenderableType:
    """Return the size of caches, the cost to compute them again, and how long each memory tier pays.

    Args:
        trade: caches of models at contexts.
        full: whether to show all rows and columns.

    Returns:
        The answer.
    """
    cache_grid = table(
        "Model", "Context", "Cache", "Saved FLOP/B", "Recompute", "FLOP without / with",
        numbers=(1, 2, 3, 4, 5), first_to_go=(5, 3),
    )  # fmt: skip
    tier_grid = table(
        "Model", "Context", "Tier", "Load", "Keep if reused within", "Drain", "Caches in tier",
        numbers=(1, 3, 4, 5, 6), first_to_go=(5, 6),
    )  # fmt: skip
    for cache in trade.caches:
        name, context = _short(cache.model), f"{cache.context:,}"
        cache_grid.add_row(
            name, context, show(cache.held_bytes, "B"), show(_three_digits(cache.flop_per_byte)),
            show(cache.recompute_seconds, "s"), f"{_three_digits(cache.of_decode):,.0f}x",
        )  # fmt: skip
        for number, tier in enumerate(cache.tiers):
            lasts = show(tier.break_even_seconds, "s") if tier.break_even_seconds else "never"
            read_time = show(tier.read_seconds, "s") if tier.read_seconds else "-"
            first = ("", "") if number else (name, context)
            tier_grid.add_row(*first, tier.name, read_time, lasts, show(tier.drain_seconds, "s"), _number(tier.contexts))
    # the first model is the one that was asked about; others are for comparison
    first_model_caches = [cache for cache in trade.caches if cache.model == trade.caches[0].model]
    largest = max(first_model_caches, key=lambda cache: cache.held_bytes)
    legend = "Saved FLOP/B: FLOP to recompute / bytes of the cache. FLOP without / with: a token without / with the cache. "
    legend += "Drain: time to read all of the tier. Caches in tier: without weights."
    return Answer(
        sentence=f"On {trade.system} the cache of {_short(largest.model)} at {largest.context:,} tokens takes "
        f"{show(largest.held_bytes, 'B')}. One chip recomputes it in {show(largest.recompute_seconds, 's')}. "
        f"{_keep_or_recompute(largest)}",
        conditions="Bounds: recompute at the peak rate of one chip, load at full bandwidth.",
        body=[cache_grid, tier_grid, footnote(legend)],
        warnings=[
            "the time to keep assumes that the tier costs as much as the rent of the whole chip; at a tenth of that cost, keep "
            "a cache ten times longer"
        ],
        full=full,
    )  # fmt: skip


def _keep_or_recompute(cache: HeldContext) -> str:
    """Say from which tiers loading the cache costs less than recomputing it, and for how long."""
    useful = [tier for tier in cache.tiers if tier.read_seconds and tier.break_even_seconds]
    if not useful:
        return "Recompute it: loading it from any slower tier takes longer."
    first = useful[0]
    times = " or ".join(", ".join(f"{show(tier.break_even_seconds, 's')} ({tier.name})" for tier in useful).rsplit(", ", 1))
    return f"Loading it from {first.name} takes {show(first.read_seconds, 's')}. Keep it if it is reused within {times}."


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def _number(value: float) -> str:
    """Write a number of caches with three digits."""
    return f"{_three_digits(value):,.0f}" if value >= 100 else f"{value:.3g}"


def _short(model: str) -> str:
    """Return the name of a model without its maker's, and without a suffix that says nothing about the cache."""
    return model.rpartition("/")[2].removesuffix("-Instruct")
