"""What the terminal shows of a step: its time and range, what it delivers, its terms, what it waits for, and memory."""

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
from steptime.units import counted, show

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
RESOURCES = {  # name, colour
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
    "tokens_per_second_per_user": "Speed for each user",
    "output_tokens_per_second_per_chip": "Output per chip",
    "prompt_tokens_per_second_per_chip": "Prompt tokens per chip",
}
MEANING = "90 % range: nine in ten measured steps lie in it. Bounds: all overlapped, and nothing overlapped."


def step_view(card: StepSummary, width: int) -> RenderableType:
    """Return one step on a screen, what changes the answer first."""
    meaning = [Text(MEANING, style="bright_black")] if card.range else []
    return Group(
        Text(title(card)),
        *notes(card.notes),
        *own_runs(card.anchor),
        facts(_answers(card)),
        *meaning,
        share_table({k: float(v) for k, v in card.terms.items()}, TERM_COLOURS, width, "Term"),
        resource_table({k: float(v) for k, v in card.resources.items()}, width),
        memory_bar(card.memory, width, f"Memory of a chip, {show(float(card.memory.capacity), 'B')}"),
    )


def step_brief(card: StepSummary) -> RenderableType:
    """Return the answer alone."""
    lines = (Text(f"{name}: {value}") for name, value in _answers(card))
    return Group(Text(title(card)), *notes(card.notes), *own_runs(card.anchor), *lines)


def own_runs(anchor: Anchor | None) -> list[Text]:
    """Name the measured runs that an answer is anchored on, and warn of those outside the range of their prediction."""
    if anchor is None:
        return []
    lines = [Text(anchor.text, style="cyan")]
    if anchor.outside_range:
        outside, runs = len(anchor.outside_range), len(anchor.runs)
        subject = "Your run lies" if runs == 1 else f"{outside:,} of your {runs:,} runs {'lies' if outside == 1 else 'lie'}"
        cure = "check tp, weight format, prefix cache, version"
        lines.append(Text(f"WARNING: {subject} outside the 90 % range of the prediction: {cure}.", style="bold red"))
    return lines


def title(card: StepSummary) -> str:
    """Say in a line what ran on what."""
    setup = f"{counted(int(card.layout.chips), 'chip')} of {card.system}, {show_layout(card.layout)}, engine {card.engine}"
    return f"{card.model} on {setup}: one {card.phase} step"


def _answers(card: StepSummary) -> list[tuple[str, str | Text]]:
    time = ranged(float(card.total), _floats(card.range), lambda s: show(s, "s"))
    rows: list[tuple[str, str | Text]] = [
        ("Time" + (" (90 % range)" if card.range else ""), Text(time, style="bold green")),
    ]
    if card.unanchored is not None:
        rows.append(("Before your own runs", show(float(card.unanchored.total), "s")))
    if card.ideal is not None:
        rows.append(("Ideal, were nothing lost", show(float(card.ideal.total), "s")))
    rows += [("Bounds", bounds(card)), ("Bound by", RESOURCES[str(card.bound)][0])]
    for name, (rate, limits) in card.rates().items():
        rows.append((RATES[name], ranged(float(rate), _floats(limits), lambda speed: show(speed, "tok/s"))))
    free_bytes = float(card.memory.capacity - card.memory.used)
    rows.append(("Fits", "yes" if free_bytes >= 0 else f"no, {show(-free_bytes, 'B')} too much on a chip"))
    return rows


def _floats(limits: tuple[Number, Number] | None) -> tuple[float, float] | None:
    return None if limits is None else (float(limits[0]), float(limits[1]))


def bounds(step: Step) -> str:
    """Write the two bounds of a step."""
    return f"{show(float(step.lower), 's')}, all overlapped, to {show(float(step.upper), 's')}, nothing overlapped"


def resource_table(seconds: Mapping[str, float], width: int) -> Grid:
    """Return the seconds of a step by what it waits for."""
    seconds_by_name = {RESOURCES[key][0] if key in RESOURCES else key: value for key, value in seconds.items()}
    return share_table(seconds_by_name, dict(RESOURCES.values()), width, "Waits for")


def memory_bar(memory: Memory, width: int, title: str) -> RenderableType:
    """Return one stacked bar of a chip's memory with its legend."""
    parts = [
        ("weights", float(memory.weights), "blue"),
        ("KV cache", float(memory.cache), "magenta"),
        ("activations", float(memory.activations), "cyan"),
    ]
    if np.any(memory.reserved):
        parts.append(("engine", float(memory.reserved), "white"))
    return stacked(parts, float(memory.capacity), width, title)
