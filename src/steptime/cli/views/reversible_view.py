"""Text of `steptime reversible`: reversible stacks, mixing of ciphers, S-boxes, and KV caches as a trade."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from rich.console import Group
from rich.text import Text

from steptime.cli.views.terminal_plots import Axis, Curve, draw
from steptime.cli.views.widgets import Answer, facts, footnote, listing, section, table
from steptime.describe.kv_tradeoff import CacheTrade, HeldContext
from steptime.reversible.avalanche import Mixing
from steptime.reversible.memory_tradeoff import KINDS, Stacks
from steptime.reversible.sboxes import SboxCard
from steptime.units import percent, percent_change, show

GLYPHS = {"plain": ("p", "red"), "checkpointed": ("c", "yellow"), "reversible": ("r", "green")}
LETTERS, COLOURS = "FSARCnlro", ("green", "cyan", "blue", "white", "white", "red", "magenta", "yellow", "yellow")
SHOWN_ROUNDS = (1, 2, 3, 4, 8, 10, 16)
# Rows and columns of the tables of an S-box that are shown.
MAX_SHOWN = 16


def stacks_view(stacks: Stacks, *, width: int) -> Answer:
    """Return memory, arithmetic and time of stacks by depth.

    Args:
        stacks: Measured stacks.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    saved, _, reversible = stacks.deepest()
    figures = [
        ("Closed form of the memory, two streams", show(stacks.streams, "B")),
        (
            "FLOP relative to a plain stack",
            f"{percent_change(reversible.arithmetic - 1)}; closed form {percent_change(stacks.arithmetic - 1)}",
        ),
        ("Time relative to a plain stack", f"{reversible.slowness:.2f}x; published 1.1x to 1.7x (MemCNN, RevNet)"),
    ]
    points = listing(
        "Blocks: {blocks} | Stack: {kind} | Kept: {saved:B} | Peak: {peak:B} | FLOPs / plain: {arithmetic:.3f} | "
        "Time: {seconds:s} | / plain: {slowness:.2f} | Gradients off: {off}",
        stacks.points, numbers=(0, 7), first_to_go=(6, 3), style=lambda p: "green" if p.kind == "reversible" else None,
        blocks=lambda p: f"{p.depth:,}" if p.kind == KINDS[0] else "",
        off=lambda p: "-" if p.kind == "plain" else f"{p.gradient_error:.1e}",
    )  # fmt: skip
    # A line stands above the first stack of each depth.
    points.sections = {place for place, point in enumerate(stacks.points) if point.kind == KINDS[0]}
    errors = listing(
        "Number format: {dtype} | Blocks: {depth:,} | Gradients: {gradient_error:.1e} | Plain stack: {plain} | "
        "Rebuilt input: {input_error:.1e}",
        stacks.errors, title="Relative errors: gradients against a plain stack, a plain stack against float64", numbers=(3,),
        plain=lambda p: "-" if p.dtype == "float64" else f"{p.plain_error:.1e}",
    )  # fmt: skip
    return Answer(
        sentence=f"A reversible stack of {stacks.depth:,} blocks keeps {show(reversible.saved, 'B')} for the backward pass. A "
        f"plain one keeps {show(saved.saved, 'B')}: {saved.saved / reversible.saved:,.3g}x as much.",
        conditions=f"{stacks.width:,} wide, {stacks.rows:,} rows of {stacks.dtype} on {stacks.device} "
        f"(PyTorch {stacks.torch}).",
        body=[facts(figures), points, _memory_chart(stacks, width)], details=[errors],
        warnings=[
            "only saved activations and temporary values are counted, without parameters and allocator fragments",
            f"errors of gradients are of stacks {stacks.error_width:,} wide on the CPU",
        ],
        full_adds="errors of gradients by number format",
    )  # fmt: skip


def _memory_chart(stacks: Stacks, width: int) -> Group | None:
    """Return memory against depth, both logarithmic; None for a single depth."""
    curves = []
    for kind in KINDS:
        points = [point for point in stacks.points if point.kind == kind]
        x, y = np.log10([point.depth for point in points]), np.log10([point.saved for point in points])
        letter, colour = GLYPHS[kind]
        curves.append(Curve(x, y, kind, colour, letter))
    if len(curves[0].x) < 2:
        return None
    every, depths = np.concatenate([curve.y for curve in curves]), curves[0].x
    up = Axis("bytes", every.min() - 0.2, every.max() + 0.1, partial(show, unit="B", digits=2))
    chart = draw(curves, Axis("blocks", depths.min(), depths.max()), up, width)
    return section("Activations kept for the backward pass", [chart])


def mixing_view(mixing: Mixing, *, width: int) -> Answer:
    """Return how far one flipped input bit spreads, by rounds or layers.

    Args:
        mixing: Avalanche curves, a trained network, and mixing times.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    max_rounds = max(len(curve.shares) for curve in mixing.curves)
    numbers = [number for number in SHOWN_ROUNDS if number <= max_rounds]
    rows: list[tuple[str | Text, ...]] = []
    curves = []
    for letter, colour, curve in zip(LETTERS, COLOURS, mixing.curves, strict=True):
        cells = [percent(curve.shares[n - 1]) if n <= len(curve.shares) else "" for n in numbers]
        expected = percent(curve.expected[-1]) if curve.expected else "-"
        rows.append((Text(letter, style=colour), curve.name, *cells, expected))
        x = np.arange(1, len(curve.shares) + 1)
        curves.append(Curve(x, curve.shares, "", colour, letter, (0, 3)))
    grid = table(
        "", "Output bits that flip, by rounds", *map(str, numbers), "Expected", rows=rows,
        numbers=range(2, 3 + len(numbers)), first_to_go=(6, 4, 7),
    )  # fmt: skip
    times = [(name, f"{rounds:,.0f}" if math.isfinite(rounds) else "never") for name, rounds in mixing.rounds.items()]
    chart = draw(
        curves, Axis("rounds", 1, max_rounds, "{:.0f}".format, log=False), Axis("flipped", 0, 0.6, percent, log=False),
        width, 13,
    )  # fmt: skip
    best, network = max(mixing.curves, key=lambda curve: curve.shares[-1]), mixing.trained
    return Answer(
        sentence=f"After {len(best.shares)} rounds of {best.name}, one input bit flips {percent(best.shares[-1])} of the "
        "output bits; a cipher needs one half.",
        conditions=f"A network of {network.inputs} inputs that learns majorities of groups: random "
        f"{percent(network.random, 1)} of outputs flip, trained {percent(network.trained, 1)} "
        f"({percent(network.accuracy, 1)} correct), the task itself {percent(network.expected, 1)}.",
        body=[grid, table("Rounds until each output depends on each input", "Rounds", rows=times, numbers=(1,))],
        details=[section("Share of output bits that flip; letters as in the table", [chart])], full_adds="chart",
    )  # fmt: skip


def sbox_view(card: SboxCard) -> Answer:
    """Return the strength of an S-box, with its tables where they are small.

    Args:
        card: The S-box.

    Returns:
        The answer.
    """
    size = len(card.values)
    right, is_small = (size + card.walsh) // 2, size <= MAX_SHOWN
    squares = [
        _square("Differences: inputs by input (row) and output difference (column)", card.differences),
        _square("Linear approximations: Walsh values by sums of input (row) and output bits", card.approximations),
    ]
    kind = "" if card.bijective else " It is not bijective."
    kind += "" if is_small else f" --csv and --json have its tables of {size:,} rows."
    return Answer(
        sentence=f"S-box {card.name} of {card.bits} bits: differential uniformity {card.uniformity} of {size} inputs "
        f"(minimum 2), nonlinearity {card.nonlinearity} inputs.",
        conditions=f"Its largest Walsh value is {card.walsh}: the best linear approximation is right on {right} of {size} "
        f"inputs.{kind}",
        body=squares if is_small else [],
    )


def _square(title: str, rows: Sequence[Sequence[int]]) -> Group | None:
    cells = max(len(str(value)) for row in rows for value in row) + 1
    lines = [Text(" " * 3 + "".join(f"{n:x}".rjust(cells) for n in range(len(rows[0]))), style="bold")]
    lines += [
        Text.assemble((f"{n:>2x} ", "bold"), "".join((str(value) if value else ".").rjust(cells) for value in row))
        for n, row in enumerate(rows)
    ]
    return section(title, lines)


def cache_view(trade: CacheTrade) -> Answer:
    """Return the size of caches, the cost to compute them again, and how long each memory tier pays.

    Args:
        trade: Caches of models at contexts.

    Returns:
        The answer.
    """
    caches = listing(
        "Model: {name} | Context: {context:,} | Cache: {held_bytes:B} | Saved FLOP/B: {saved} | "
        "Recompute: {recompute_seconds:s} | FLOP without / with: {ratio:,.0f}x",
        trade.caches, numbers=(3,), first_to_go=(5, 3), name=lambda cache: _short(cache.model),
        saved=lambda cache: show(float(f"{cache.flop_per_byte:.3g}")), ratio=lambda cache: float(f"{cache.of_decode:.3g}"),
    )  # fmt: skip
    rows = []
    for cache in trade.caches:
        for number, tier in enumerate(cache.tiers):
            first = ("", "") if number else (_short(cache.model), f"{cache.context:,}")
            load = show(tier.read_seconds, "s") if tier.read_seconds else "-"
            lasts = show(tier.break_even_seconds, "s") if tier.break_even_seconds else "never"
            fitting = f"{float(f'{tier.contexts:.3g}'):,.0f}" if tier.contexts >= 100 else f"{tier.contexts:.3g}"
            rows.append((*first, tier.name, load, lasts, show(tier.drain_seconds, "s"), fitting))
    heads = ("Model", "Context", "Tier", "Load", "Keep if reused within", "Drain", "Caches in tier")
    tiers = table(*heads, rows=rows, numbers=(1, 3, 4, 5, 6), first_to_go=(5, 6))
    # The first model is the one that was asked about; others are for comparison.
    first_model_caches = [cache for cache in trade.caches if cache.model == trade.caches[0].model]
    largest = max(first_model_caches, key=lambda cache: cache.held_bytes)
    legend = "Saved FLOP/B: FLOP to recompute / bytes of the cache. FLOP without / with: a token without / with the cache. "
    legend += "Drain: time to read all of the tier. Caches in tier: without weights."
    return Answer(
        sentence=f"On {trade.system} the cache of {_short(largest.model)} at {largest.context:,} tokens takes "
        f"{show(largest.held_bytes, 'B')}. One chip recomputes it in {show(largest.recompute_seconds, 's')}. "
        f"{_keep_or_recompute(largest)}",
        conditions="Bounds: recompute at the peak rate of one chip, load at full bandwidth.",
        body=[caches, tiers, footnote(legend)],
        warnings=[
            "the time to keep assumes that the tier costs as much as the rent of the whole chip; at a tenth of that cost, keep "
            "a cache ten times longer"
        ],
    )  # fmt: skip


def _keep_or_recompute(cache: HeldContext) -> str:
    """Say from which tiers loading the cache costs less than recomputing it, and for how long."""
    useful = [tier for tier in cache.tiers if tier.read_seconds and tier.break_even_seconds]
    if not useful:
        return "Recompute it: loading it from any slower tier takes longer."
    first = useful[0]
    times = " or ".join(", ".join(f"{show(tier.break_even_seconds, 's')} ({tier.name})" for tier in useful).rsplit(", ", 1))
    return f"Loading it from {first.name} takes {show(first.read_seconds, 's')}. Keep it if it is reused within {times}."


def _short(model: str) -> str:
    """Return the name of a model without its maker's, and without a suffix that says nothing about the cache."""
    return model.rpartition("/")[2].removesuffix("-Instruct")
