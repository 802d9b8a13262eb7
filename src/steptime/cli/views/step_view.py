"""Text of a step: time with range, rates, time by operator and by resource, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.widgets import Grid, facts, notes, ranged, share_table, stacked
from steptime.number_checks import Number
from steptime.physics.bias_correction import Anchor
from steptime.physics.chip_memory import Memory
from steptime.physics.layout import show_layout
from steptime.physics.step import Step
from steptime.units import counted, in_digits, show

if TYPE_CHECKING:
    from steptime.questions.step_question import StepSummary

TERM_COLOURS = {
    "projections": "blue",
    "attention": "magenta",
    "feed-forward": "cyan",
    "experts": "green",
    "shared experts": "bright_green",
    "head": "bright_blue",
    "embedding": "bright_blue",
    "norms": "white",
    "all-reduce": "yellow",
    "context exchange": "bright_yellow",
    "dispatch": "yellow",
    "combine": "bright_yellow",
    "pipeline": "red",
    "overhead": "red",
}
# Name in words and colour of each resource.
RESOURCES = {
    "compute": ("arithmetic", "green"),
    "weights": ("weights", "blue"),
    "kv": ("KV cache", "magenta"),
    "activations": ("activations", "white"),
    "scale-up": ("scale-up network", "yellow"),
    "pod": ("pod network", "bright_yellow"),
    "scale-out": ("scale-out network", "red"),
    "latency": ("message latency", "bright_red"),
    "overhead": ("engine overhead", "bright_black"),
}
RATES = {
    "tokens_per_second_per_user": "Speed per user",
    "output_tokens_per_second_per_chip": "Output per chip",
    "prompt_tokens_per_second_per_chip": "Prompt tokens per chip",
}


def step_view(card: StepSummary, width: int, *, full: bool = False) -> RenderableType:
    """Return one step as text: its time, its rates, the time of each operator, and memory.

    Args:
        card: A step with its layout, rates and memory.
        width: Columns of the terminal.
        full: Whether to add the time by resource.

    Returns:
        Something that a console prints.
    """
    parts: list[RenderableType] = [
        _answer(card),
        *notes(card.notes),
        *own_runs(card.anchor),
        facts(_answers(card)),
        share_table({k: float(v) for k, v in card.terms.items()}, TERM_COLOURS, width, "Operator"),
    ]
    if full:
        parts.append(resource_table({k: float(v) for k, v in card.resources.items()}, width))
    parts.append(memory_bar(card.memory, width, f"Memory of a chip, {show(float(card.memory.capacity), 'B')}"))
    return Group(*parts)


def _answer(card: StepSummary) -> Text:
    """Say how long the step takes, for which work, and on what."""
    time = ranged(float(card.total), _floats(card.range), lambda s: show(s, "s"))
    setup = f"{counted(int(card.layout.chips), 'chip')} of {card.system} ({show_layout(card.layout)}), engine {card.engine}"
    work = []
    if card.phase != "prefill":
        work.append(f"{counted(int(card.batch), 'sequence')} decode with {int(card.context):,} tokens of context")
    if card.phase != "decode":
        work.append(f"prefill of {counted(int(card.prompts), 'prompt')} of {int(card.tokens):,} tokens")
    words = Text.assemble("One ", card.phase, f" step of {card.model} takes ", (time, "bold green"), f": {', '.join(work)}. ")
    words.append(f"{setup[:1].upper()}{setup[1:]}.")
    free_bytes = float(card.memory.capacity - card.memory.used)
    if free_bytes < 0:
        words.append(f" It does not fit: {show(-free_bytes, 'B')} too much on a chip.", style="bold red")
    return words


def own_runs(anchor: Anchor | None) -> list[Text]:
    """Name the measured runs that correct an answer, and warn of runs outside the range.

    Args:
        anchor: The correction; None without one.

    Returns:
        Lines of text.
    """
    if anchor is None:
        return []
    lines = [Text(anchor.text, style="cyan")]
    if anchor.outside_range:
        outside, runs = len(anchor.outside_range), len(anchor.runs)
        subject = "Your run lies" if runs == 1 else f"{outside:,} of your {runs:,} runs {'lies' if outside == 1 else 'lie'}"
        cure = "check tp, weight format, prefix cache, version"
        lines.append(Text(f"WARNING: {subject} outside the 90 % range of the prediction: {cure}.", style="bold red"))
    return lines


def _answers(card: StepSummary) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    for name, (rate, limits) in card.rates().items():
        rows.append((RATES[name], ranged(float(rate), _floats(limits), lambda speed: f"{in_digits(speed)} tok/s")))
    if card.unanchored is not None:
        rows.append(("Without your runs", show(float(card.unanchored.total), "s")))
    if card.ideal is not None:
        rows.append(("Physical bound", f"{show(float(card.ideal.total), 's')} (no engine losses)"))
    rows += [("Overlap bounds", bounds(card)), ("Bound by", RESOURCES[str(card.bound)][0])]
    free_bytes = float(card.memory.capacity - card.memory.used)
    rows.append(("Fits", "yes" if free_bytes >= 0 else f"no, {show(-free_bytes, 'B')} too much on a chip"))
    return rows


def _floats(limits: tuple[Number, Number] | None) -> tuple[float, float] | None:
    return None if limits is None else (float(limits[0]), float(limits[1]))


def bounds(step: Step) -> str:
    """Write the two bounds of a step.

    Args:
        step: A step.

    Returns:
        Its time if everything overlaps and if nothing does.
    """
    return f"{show(float(step.lower), 's')} (full overlap) to {show(float(step.upper), 's')} (no overlap)"


def resource_table(seconds: Mapping[str, float], width: int) -> Grid:
    """Return the time of a step by the resource that limits it.

    Args:
        seconds: Seconds by resource.
        width: Columns of the terminal.

    Returns:
        A table with bars.
    """
    seconds_by_name = {RESOURCES[key][0] if key in RESOURCES else key: value for key, value in seconds.items()}
    return share_table(seconds_by_name, dict(RESOURCES.values()), width, "Waits for")


def memory_bar(memory: Memory, width: int, title: str) -> RenderableType:
    """Return one stacked bar of a chip's memory with its legend.

    Args:
        memory: Bytes of a chip by use.
        width: Columns of the terminal.
        title: Words before the legend.

    Returns:
        Something that a console prints.
    """
    parts = [
        ("weights", float(memory.weights), "blue"),
        ("KV cache", float(memory.cache), "magenta"),
        ("activations", float(memory.activations), "cyan"),
    ]
    if np.any(memory.reserved):
        parts.append(("engine", float(memory.reserved), "white"))
    return stacked(parts, float(memory.capacity), width, title)
