"""Explanation of a plan: operators of each pass, equations, and sources of the system's figures.

Text of a step: time with range, rates, time by operator and by resource, and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.widgets import Grid, facts, heading, notes, ranged, share_table, sourced, stacked, table
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Number
from steptime.physics.bias_correction import Anchor
from steptime.physics.chip_memory import Memory
from steptime.physics.engine import Engine
from steptime.physics.kv_dtype import as_served
from steptime.physics.layout import show_layout
from steptime.physics.step import Step
from steptime.planning.plan_result import (
    Plan,
    Pool,
)
from steptime.planning.step_explanation import Line, equations, explain_step, sources, step_given
from steptime.units import counted, in_digits, show

if TYPE_CHECKING:
    from steptime.questions.step_question import StepSummary


def lines_table(lines: list[Line]) -> Grid:
    """Return a step's operators and collectives with their formulas.

    Args:
        lines: Operators and collectives with formula and time.

    Returns:
        A table; the name of a term stands in its first row only.
    """
    grid = table("Term", "Operator", "Per chip and micro-batch", "Time", numbers=(3,), first_to_go=(1,))
    previous = ""
    for line in lines:
        grid.add_row(line.term if line.term != previous else "", line.name, line.formula, show(line.seconds, "s"))
        previous = line.term
    return grid


def explain_plan(model: Model, system: System, plan: Plan, engine: Engine) -> RenderableType:
    """Return every term of a plan's steps with formulas, numbers and sources.

    Args:
        model: The model.
        system: The system.
        plan: A feasible plan.
        engine: The engine.

    Returns:
        Something that a console prints.
    """
    # The KV cache has the number format of the engine.
    model = as_served(model, system, engine)
    parts: list[RenderableType] = []
    for pool in plan.pools:
        parts += [Text(), heading(f"Equations of the {pool.role} pool")]
        parts += [Text(f"  {rule}") for rule in _equations(model, plan, pool)]
        for name, step, mixed in _passes(pool):
            parts += [Text(), heading(f"A {name}: {show(float(step.total), 's')} (bounds {bounds(step)})")]
            parts.append(lines_table(_explained(model, system, plan, pool, engine, mixed=mixed)))
    origin = model.source or {"url": "a local config"}
    provenance = ", ".join(text for key in ("grade", "date") if (text := origin.get(key)))
    parts.append(Text(f"Model: {origin['url']}" + (f" ({provenance})" if provenance else ""), no_wrap=True, overflow="ignore"))
    return Group(*parts, sources_table(system))


def explain_json(model: Model, system: System, plan: Plan, engine: Engine) -> dict[str, Any]:
    """Return the explanation of a plan as data.

    Args:
        model: The model.
        system: The system.
        plan: A feasible plan.
        engine: The engine.

    Returns:
        Equations and passes by pool, and the sources of model and system.
    """
    model = as_served(model, system, engine)
    pools = []
    for pool in plan.pools:
        passes = []
        for name, step, mixed in _passes(pool):
            lines = _explained(model, system, plan, pool, engine, mixed=mixed)
            times = {"total_s": step.total, "lower_s": step.lower, "upper_s": step.upper}
            passes.append({"pass": name, **times, "lines": lines})
        pools.append({"pool": pool.role, "equations": _equations(model, plan, pool), "passes": passes})
    return {"pools": pools, "model_source": dict(model.source), "sources": sources_json(system)}


def _equations(model: Model, plan: Plan, pool: Pool) -> list[str]:
    return equations(model, pool, plan.workload, utilisation=plan.utilisation, speculation=plan.speculation)


def _explained(model: Model, system: System, plan: Plan, pool: Pool, engine: Engine, *, mixed: bool) -> list[Line]:
    """Return the lines of a pass of a pool."""
    drafts = plan.speculation.drafts
    sizes = step_given(pool, plan.workload, mixed=mixed, drafts=drafts)
    return explain_step(model, system, sizes=sizes, layout=pool.layout, engine=engine, drafts=drafts)


def _passes(pool: Pool) -> Iterator[tuple[str, Step, bool]]:
    """Yield name and step of each pass of a pool, and whether it combines a prefill chunk with decode."""
    yield "prefill pass" if pool.role == "prefill" else "decode step", pool.step, False
    if pool.mixed is not None:
        yield "step with a prefill chunk", pool.mixed, True


def sources_table(system: System) -> RenderableType:
    """Return the sources of a system's figures as a table.

    Args:
        system: The system.

    Returns:
        A table with the list of sources.
    """
    return sourced("Figure", sources(system))


def sources_json(system: System) -> list[dict[str, str]]:
    """Return the sources of a system's figures as data.

    Args:
        system: The system.

    Returns:
        Name, value, grade, date and URL of each figure.
    """
    return [dict(zip(("figure", "value", "grade", "date", "url"), row, strict=True)) for row in sources(system)]


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
