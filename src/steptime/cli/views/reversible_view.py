"""What the terminal shows of reversible stacks, of mixing, of S-boxes and of caches as a trade."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import figure, label, render_chart, room
from steptime.cli.views.widgets import Grid, facts, heading, notes, table
from steptime.describe.kv_tradeoff import CacheTrade
from steptime.reversible.avalanche import Curve, Mixing
from steptime.reversible.sboxes import SboxCard
from steptime.reversible.stack_results import KINDS, Stacks
from steptime.units import show

GLYPHS = {"plain": ("p", "red"), "checkpointed": ("c", "yellow"), "reversible": ("r", "green")}
LETTERS, COLOURS = "FSARCnlro", ("green", "cyan", "blue", "white", "white", "red", "magenta", "yellow", "yellow")
SHOWN_ROUNDS = (1, 2, 3, 4, 8, 10, 16)
MOST_SHOWN = 16  # rows and columns of the tables of an S-box


def result_view(result: Any, width: int) -> RenderableType:
    """Return what is shown of a result of the room."""
    if isinstance(result, Stacks):
        return stacks_view(result, width)
    if isinstance(result, Mixing):
        return mixing_view(result, width)
    return sbox_view(result) if isinstance(result, SboxCard) else cache_view(result)


def stacks_view(stacks: Stacks, width: int) -> RenderableType:
    """Return what stacks hold, compute and take by depth, the picture of it, and how far gradients are off."""
    plain, _, reversible = stacks.deepest()
    saving = f"{show(reversible.saved, 'B')} of {show(plain.saved, 'B')}: {plain.saved / reversible.saved:,.3g} times less"
    minded = [
        "only what autograd keeps and the operations make is counted; fragments of an allocator and parameters are left out",
        f"gradients by number format are of stacks {stacks.error_width:,} wide on the CPU",
    ]
    return Group(
        Text(
            f"Reversible stack of {stacks.depth:,} blocks, {stacks.width:,} wide, {stacks.rows:,} rows of {stacks.dtype} on "
            f"{stacks.device} (PyTorch {stacks.torch})"
        ),
        *notes(minded),
        facts(
            [
                ("Kept for the backward pass", Text(saving, style="bold green")),
                ("Closed form, two streams", show(stacks.streams, "B")),
                ("Arithmetic over plain", f"{reversible.arithmetic - 1:+.1%}; closed form {stacks.arithmetic - 1:+.1%}"),
                ("Time over plain", f"{reversible.slowness:.2f}; 1.1 to 1.7 is published (MemCNN, RevNet)"),
            ]
        ),
        _stack_table(stacks),
        *_stack_picture(stacks, width),
        Text(),
        _error_table(stacks),
    )


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
    """Return what is kept against depth, both logarithmic; nothing for a single depth."""
    curves = {kind: [(p.depth, p.saved) for p in stacks.points if p.kind == kind] for kind in KINDS}
    if len(curves["plain"]) < 2:
        return []
    every = np.log10([saved for points in curves.values() for _, saved in points])
    depths = np.log2([depth for depth, _ in curves["plain"]])
    chart = figure(room(width), 12)
    chart.set_x_limits(float(depths.min()), float(depths.max()))
    chart.set_y_limits(float(every.min()) - 0.2, float(every.max()) + 0.1)
    chart.x_ticks_fkt, chart.y_ticks_fkt = lambda value, _: f"{2**value:,.0f}", lambda value, _: show(10**value, "B", 2)
    label(chart, "blocks", "kept", width)
    legend = Text()
    for kind, points in curves.items():
        letter, colour = GLYPHS[kind]
        x, y = np.log2([depth for depth, _ in points]), np.log10([saved for _, saved in points])
        chart.plot(x, y, lc=colour)
        chart.scatter(x, y, lc=colour, marker=letter)
        legend.append(f"{letter} {kind}   ", style=colour)
    return [Text("Activations kept for the backward pass, by depth", style="bold"), render_chart(chart), legend]


def _error_table(stacks: Stacks) -> Grid:
    grid = table(
        "Number format", "Blocks", "Gradients off", "Format alone", "Rebuilt input off", numbers=(1, 2, 3, 4),
        title="How far a reversible stack's gradients are from a plain one's, and a plain one's from float64",
    )  # fmt: skip
    for point in stacks.errors:
        format_error = "-" if point.dtype == "float64" else f"{point.plain_error:.1e}"
        grid.add_row(point.dtype, f"{point.depth:,}", f"{point.gradient_error:.1e}", format_error, f"{point.input_error:.1e}")
    return grid


# --- mixing -------------------------------------------------------------------------------------------------------------


def mixing_view(mixing: Mixing, width: int) -> RenderableType:
    """Return avalanches as a table and a picture, the trained network, and mixing times."""
    max_rounds = max(len(curve.shares) for curve in mixing.curves)
    round_numbers = [number for number in SHOWN_ROUNDS if number <= max_rounds]
    grid = table(
        "",
        "Cipher or network",
        *map(str, round_numbers),
        "Expected, last",
        numbers=range(2, 3 + len(round_numbers)),
        first_to_go=(6, 4, 7),
    )
    for letter, colour, curve in zip(LETTERS, COLOURS, mixing.curves, strict=True):
        cells = [f"{curve.shares[n - 1]:.1%}" if n <= len(curve.shares) else "" for n in round_numbers]
        expected = f"{curve.expected[-1]:.1%}" if curve.expected else "-"
        grid.add_row(Text(letter, style=colour), curve.name, *cells, expected)
    network = mixing.trained
    times = table("Pattern", "Rounds", numbers=(1,), title="Rounds until each output depends on each input")
    for name, rounds in mixing.rounds.items():
        times.add_row(name, f"{rounds:,.0f}" if math.isfinite(rounds) else "never")
    return Group(
        heading("Share of output bits that one flipped input bit flips, after so many rounds or layers"),
        grid,
        *_mixing_picture(mixing.curves, width),
        Text(),
        heading(f"A network of {network.inputs} inputs before and after it learnt the majority of each group of them"),
        facts(
            [
                ("Random", f"{network.random:.1%} of its outputs flip"),
                ("Trained", f"{network.trained:.1%}, {network.accuracy:.1%} of its outputs right"),
                ("The task itself, by counting", f"{network.expected:.1%}"),
            ]
        ),
        times,
    )


def _mixing_picture(curves: Sequence[Curve], width: int) -> list[RenderableType]:
    max_rounds = max(len(curve.shares) for curve in curves)
    chart = figure(room(width), 13)
    chart.set_x_limits(1, max_rounds)
    chart.set_y_limits(0, 0.6)
    chart.x_ticks_fkt, chart.y_ticks_fkt = lambda value, _: f"{value:.0f}", lambda value, _: f"{value:.0%}"
    label(chart, "rounds", "flipped", width)
    for letter, colour, curve in zip(LETTERS, COLOURS, curves, strict=True):
        x = np.arange(1, len(curve.shares) + 1)
        chart.plot(x, curve.shares, lc=colour)
        chart.scatter(x[::3], curve.shares[::3], lc=colour, marker=letter)
    return [Text("Avalanche: a cipher wants one half; letters as in the table", style="bold"), render_chart(chart)]


# --- S-boxes and caches -------------------------------------------------------------------------------------------------


def sbox_view(card: SboxCard) -> RenderableType:
    """Return the strength of an S-box, and its tables where they are small."""
    size = len(card.values)
    right = (size + card.walsh) // 2
    parts: list[RenderableType] = [
        Text(f"S-box {card.name} of {card.bits} bits" + ("" if card.bijective else ", not bijective")),
        facts(
            [
                ("Differential uniformity", f"{card.uniformity} of {size} inputs (2 is the least)"),
                ("Largest Walsh value", f"{card.walsh}: the best linear approximation is right on {right} of {size}"),
                ("Nonlinearity", f"{card.nonlinearity} inputs"),
            ]
        ),
    ]
    if size <= MOST_SHOWN:
        parts += [_square("Differences: inputs by input (row) and output difference (column)", card.differences)]
        parts += [_square("Linear approximations: Walsh values by sums of input (row) and output bits", card.approximations)]
    else:
        parts += [Text(f"Its tables have {size:,} rows: --csv and --json have them.", style="bright_black")]
    return Group(*parts)


def _square(title: str, rows: Sequence[Sequence[int]]) -> RenderableType:
    cells = max(len(str(value)) for row in rows for value in row) + 1
    lines = [Text(" " * 3 + "".join(f"{n:x}".rjust(cells) for n in range(len(rows[0]))), style="bold")]
    lines += [
        Text(f"{n:>2x} ", style="bold") + Text("".join((str(v) if v else ".").rjust(cells) for v in row))
        for n, row in enumerate(rows)
    ]
    return Group(Text(), heading(title), *lines)


def cache_view(trade: CacheTrade) -> RenderableType:
    """Return what caches hold and save, and for how long each tier is worth it."""
    cache_grid = table(
        "Model", "Context", "Held", "FLOP/B", "Make again", "FLOPs without / with", numbers=(1, 2, 3, 4, 5), first_to_go=(5,)
    )
    for cache in trade.caches:
        cells = (
            show(cache.held_bytes, "B"),
            f"{cache.flop_per_byte:,.0f}",
            show(cache.recompute_seconds, "s"),
            f"{cache.of_decode:,.0f}",
        )
        cache_grid.add_row(_short(cache.model), f"{cache.context:,}", *cells)
    heads = ("Model", "Context", "Tier", "Read back", "Worth it for", "Drain time", "Room for")
    tier_grid = table(*heads, numbers=(1, 3, 4, 5, 6), first_to_go=(6, 5))
    for cache in trade.caches:
        for number, tier in enumerate(cache.tiers):
            lasts = show(tier.break_even_seconds, "s") if tier.break_even_seconds else "never"
            first = (_short(cache.model), f"{cache.context:,}") if number == 0 else ("", "")
            read_time = show(tier.read_seconds, "s") if tier.read_seconds else "-"
            tier_grid.add_row(*first, tier.name, read_time, lasts, show(tier.drain_seconds, "s"), f"{tier.contexts:,.1f}")
    minded = (
        "computed again at the peak rates of one chip, read at full bandwidth",
        "worth it as long as holding costs less than computing again, were the whole tier as dear as the chip's rent: one that "
        "costs a tenth of it is worth it ten times longer; never: reading back takes longer than computing again",
    )
    return Group(
        Text(f"The KV cache as the opposite trade: memory held to save arithmetic, on {trade.system}"),
        *notes(minded),
        cache_grid,
        heading("For how long each tier of memory is worth it"),
        tier_grid,
    )


def _short(model: str) -> str:
    """Return the name of a model without its maker's."""
    return model.rpartition("/")[2]
