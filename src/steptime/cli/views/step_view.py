"""Text of a step: time with range, rates, time by operator and by resource, and memory."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, SupportsFloat

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.widgets import Grid, facts, notes, ranged, share_table, stacked
from steptime.physics.bias_correction import Anchor
from steptime.physics.chip_memory import Memory
from steptime.physics.chip_power import StepEnergy
from steptime.physics.engine_parameters import DESCRIPTIONS
from steptime.physics.layout import show_layout
from steptime.physics.uncertainty import GROUP_WORDS
from steptime.units import counted, percent, show

if TYPE_CHECKING:
    from steptime.questions.step_question import StepSummary

TERM_COLOURS = {
    "projections": "blue", "attention": "magenta", "feed-forward": "cyan", "experts": "green", "shared experts": "bright_green",
    "head": "bright_blue", "embedding": "bright_blue", "norms": "white", "all-reduce": "yellow",
    "context exchange": "bright_yellow", "dispatch": "yellow", "combine": "bright_yellow", "pipeline": "red",
    "launch and host": "red", "drafts": "bright_magenta",
}  # fmt: skip
# Terms whose key is not the name that readers see: "engine overhead" is a resource, which includes this term.
TERM_NAMES = {"overhead": "launch and host"}
OVERHEAD_MEANING = "Engine overhead: kernel launches, host work, and the fixed time of each collective."
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
# How operators follow each other in a step without losses: a lower bound with full overlap can be shorter.
ONE_BY_ONE = "operators one after another"
# Power around a chip, by what the system's figure includes.
SURROUNDINGS = {"all-in": "host, network and cooling", "rack": "its share of the rack", "whole": "its share of the machine"}
RATES = {
    "tokens_per_second_per_user": "Speed per user",
    "output_tokens_per_second_per_chip": "Output per chip",
    "prompt_tokens_per_second_per_chip": "Prompt tokens per chip",
}


def step_view(card: StepSummary, width: int, *, full: bool = False, explain: bool = False) -> RenderableType:
    """Return one step as text: its time, its rates, the time of each operator, and memory.

    Args:
        card: A step with its layout, rates and memory.
        width: Columns of the terminal.
        full: Whether to add the time by resource.
        explain: Whether to say what makes the range as wide as it is, as `full` does too.

    Returns:
        Something that a console prints.
    """
    # The factor of own runs on the step; a step has no first token.
    has_factor = card.anchor is not None and card.unanchored is not None and card.anchor.has("tpot")
    applied = {"tpot": float(card.total) / float(card.unanchored.total)} if has_factor and card.unanchored else {}
    free_bytes = float(card.memory.capacity - card.memory.used)
    misfit = "" if free_bytes >= 0 else f"{show(-free_bytes, 'B')} too much on a chip"
    figures = [(RATES[name], ranged(rate, limits, "digits tok/s")) for name, (rate, limits) in card.rates().items()]
    figures += [
        ("Without your runs", show(float(card.unanchored.total), "s") if card.unanchored else ""),
        ("Without losses", f"{show(float(card.ideal.total), 's')} ({ONE_BY_ONE})" if card.ideal else ""),
        ("Step time", f"{show(float(card.total), 's')}, between {bounds(card.lower, card.upper)}"),
        ("Bound by", RESOURCES[str(card.bound)][0]),
        *_power(card.energy),
        ("Fits", f"no, {misfit}" if misfit else "yes"),
        ("Width of the range", range_causes(card.range_shares) if full or explain else ""),
    ]
    return Group(
        _answer(card, misfit),
        *([Text(f"Speculative decoding: {card.speculation.text}.")] if card.speculation.drafts else []),
        *([Text(_remedy(card))] if misfit else []),
        *notes(card.notes),
        *(own_runs(card.anchor, applied) if card.anchor else []),
        facts(figures),
        term_table(card.terms, width, "Operator"),
        *([resource_table(card.resources, width)] if full else []),
        memory_bar(card.memory, width),
    )


def _power(energy: StepEnergy | None) -> list[tuple[str, str]]:
    """Write the power of a chip at the load of the step, with the part around it, and the energy of a token."""
    if energy is None:
        return []
    chip, total = show(float(energy.watts), "W"), show(float(energy.total_watts), "W")
    around = SURROUNDINGS.get(energy.basis, "")
    words = chip if not around else f"{chip}, with {around}" if total == chip else f"{chip}, {total} with {around}"
    return [("Power of a chip", words), ("Energy", f"{ranged(energy.joules_per_token, energy.joules_range, 'J')} per token")]


def range_causes(shares: Mapping[str, float]) -> str:
    """Say which causes make the range as wide as it is.

    Args:
        shares: Shares by cause (`uncertainty.range_shares`).

    Returns:
        Words, separated by commas.

    >>> range_causes({GROUP_WORDS: 0.91, "seconds_per_state_layer": 0.09, "others": 0.001})
    '91 % because a new group of runs differs from the fitted ones, 9 % from the time of a mixer with a recurrent state'
    """
    causes = []
    for name, share in shares.items():
        # The meaning of a constant up to its first comma or semicolon.
        meaning = re.split("[,;]", DESCRIPTIONS[name]["line"])[0] if name in DESCRIPTIONS else ""
        words = f"from the {meaning}" if meaning else f"from {name}"
        words = "because a new group of runs differs from the fitted ones" if name == GROUP_WORDS else words
        causes += [f"{percent(share)} {words}"] if share >= 0.005 else []
    return ", ".join(causes)


def _answer(card: StepSummary, misfit: str) -> Text:
    """Say how long the step takes, for which work, and on what."""
    work = []
    if card.phase != "prefill":
        verb = "decodes" if int(card.batch) == 1 else "decode"
        work.append(f"{counted(int(card.batch), 'sequence')} {verb} with {counted(int(card.context), 'token')} of context")
    if card.phase != "decode":
        work.append(f"prefill of {counted(int(card.prompts), 'prompt')} of {int(card.tokens):,} tokens")
    layout = f" ({show_layout(card.layout)})" if card.layout.chips > 1 else ""
    setup = f"{counted(int(card.layout.chips), 'chip')} of {card.system}{layout}, "
    setup += f"weights in {card.weights}, engine {card.engine}."
    # A time that no chip can show must not be read before its condition.
    return Text.assemble(
        (f"Does not fit: {misfit}. " if misfit else "", "bold red"),
        f"One {card.phase} step of {card.model} {'would take' if misfit else 'takes'} ",
        (ranged(card.total, card.range, "s"), "bold green"), f": {', '.join(work)}. {setup}",
    )  # fmt: skip


def _remedy(card: StepSummary) -> str:
    """Say what would make a step fit: fewer sequences or a shorter context if the weights do, else more chips."""
    memory, chips = card.memory, int(card.layout.chips)
    adapters = float(card.adapter_bytes)
    if adapters and float(memory.used) - adapters < float(memory.capacity):
        return _adapters_that_fit(card, float(memory.used) - adapters)
    if float(memory.weights + memory.reserved) >= float(memory.capacity):
        needed = math.ceil(chips * float(memory.used - memory.reserved) / float(memory.capacity - memory.reserved))
        return (
            f"The weights of a chip are larger than its memory. Use some {needed:,} chips in place of {chips:,} "
            "(--tp, --pp, --dp with --ep), or a narrower format (--weights)."
        )
    if card.phase != "decode":
        return "Fewer or shorter sequences (--batch, --context, --prompts, --tokens) or more chips (--tp, --pp) may fit."
    # Each data-parallel rank has whole sequences.
    ranks, share = int(card.layout.dp), float(memory.cache_room) / float(memory.cache)
    batch = math.floor(share * float(card.batch) / ranks) * ranks
    if batch >= 1:
        return f"{counted(batch, 'sequence')} of this context would fit (--batch {batch})."
    context = math.floor(share * float(card.context))
    more_chips = "more chips (--tp, --pp) or a narrower KV cache (--kv) may"
    sequences = counted(int(card.batch), "sequence")
    if context < 1:
        fewer = "fewer sequences (--batch) or " if card.batch > ranks else ""
        return f"Not even a context of 1 token fits with {sequences}; use {fewer}more chips (--tp, --pp)."
    return f"No sequence of this context fits. {sequences} of {context:,} tokens would (--context {context}), and {more_chips}."


def _adapters_that_fit(card: StepSummary, other_bytes: float) -> str:
    """Say how much memory LoRA adapters take, and how many fit next to everything else on a chip."""
    slots, capacity = card.adapters, float(card.memory.capacity)
    fitting = math.floor((capacity - other_bytes) / (float(card.adapter_bytes) / slots))
    remedy = f"{counted(fitting, 'adapter')} of this rank would fit (--lora-adapters {fitting})"
    if fitting < 1:
        remedy = "not even one fits; take a lower rank (--lora-rank) or more chips (--tp, --pp)"
    size, verb = show(float(card.adapter_bytes), "B"), "takes" if slots == 1 else "take"
    return f"{counted(slots, 'LoRA adapter')} {verb} {size} of a chip; {remedy}."


def own_runs(anchor: Anchor | None, applied: Mapping[str, float] | None) -> list[Text]:
    """Name the measured runs that correct an answer, and warn of runs outside the range.

    Args:
        anchor: The correction; None without one.
        applied: Factors on the times of the answer, by quantity (`Anchor.applied`); None for an answer at many loads.

    Returns:
        Lines of text.
    """
    if anchor is None:
        return []
    lines = [Text(anchor.text(applied), style="cyan")]
    if anchor.warning:
        lines.append(Text(f"WARNING: {anchor.warning}", style="bold red"))
    return lines


def bounds(lower: SupportsFloat, upper: SupportsFloat) -> str:
    """Write the two bounds of a step.

    Args:
        lower: Its time if everything overlaps [s].
        upper: Its time if nothing does [s].

    Returns:
        Both times.
    """
    return f"{show(lower, 's')} (full overlap) and {show(upper, 's')} (no overlap)"


def term_table(seconds: Mapping[str, SupportsFloat], width: int, title: str) -> Grid:
    """Return the time of a step by operator.

    Args:
        seconds: Seconds by term.
        width: Columns of the terminal.
        title: Header of the names.

    Returns:
        A table with bars.
    """
    return share_table({TERM_NAMES.get(name, name): value for name, value in seconds.items()}, TERM_COLOURS, width, title)


def resource_table(seconds: Mapping[str, SupportsFloat], width: int) -> RenderableType:
    """Return the time of a step by the resource that limits it, and what the engine's overhead includes.

    Args:
        seconds: Seconds by resource.
        width: Columns of the terminal.

    Returns:
        A table with bars, and a footnote.
    """
    seconds_by_name = {RESOURCES[key][0] if key in RESOURCES else key: value for key, value in seconds.items()}
    grid = share_table(seconds_by_name, dict(RESOURCES.values()), width, "Waits for")
    return Group(grid, Text(OVERHEAD_MEANING, style="bright_black"))


def memory_bar(memory: Memory, width: int, title: str = "Memory of a chip") -> RenderableType:
    """Return one stacked bar of a chip's memory with its legend.

    Args:
        memory: Bytes of a chip by use.
        width: Columns of the terminal.
        title: Words before the capacity and the legend.

    Returns:
        Something that a console prints.
    """
    uses = (
        ("weights", memory.weights, "blue"), ("KV cache", memory.cache, "magenta"), ("activations", memory.activations, "cyan"),
        ("engine", memory.reserved, "white"),
    )  # fmt: skip
    parts = [(name, float(value), colour) for name, value, colour in uses if float(value) or name != "engine"]
    capacity, chip = float(memory.capacity), float(memory.chip_capacity)
    share = f" for the engine ({percent(capacity / chip)} of the driver's {show(chip, 'B')})" if capacity < 0.999 * chip else ""
    return stacked(parts, capacity, width, f"{title}, {show(capacity, 'B')}{share}")
