"""The constants of an engine in groups: each with what it is, its unit, its range and who reads it.

Every constant is physical, and shared by all models and chips. `docs/engines.md` is written from these lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Final

from steptime.errors import short_repr
from steptime.number_checks import Number

STEP, PLAN, SIMULATOR, FIT = "step", "plan", "simulator", "runs"
"""Who reads a constant: every step (and so all that stands on it); plans; the simulator; rows of measured runs."""
SHARE: Final = 1.25  # of a data sheet's peak that is believed: boost clocks reach a little more than it states


def constant(
    default: float, line: str, *, unit: str = "", least: float = 0.0, maximum: float = math.inf, read_by: str = STEP
) -> Any:
    """Return the field of one constant. `unit` "" is a plain number; the range is closed, its lower end open where it is 0."""
    return field(default=default, metadata={"line": line, "unit": unit, "least": least, "most": maximum, "read_by": read_by})


def _share(default: float, line: str) -> Any:
    return constant(default, line, unit="share", least=1e-3, maximum=SHARE)


def _seconds(line: str, *, unit: str = "s", maximum: float = 1.0, read_by: str = STEP) -> Any:
    return constant(0.0, line, unit=unit, maximum=maximum, read_by=read_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What kernels reach of a chip's peak rates, and how their arithmetic and traffic overlap."""

    memory_efficiency: Number = _share(1.0, "of memory bandwidth, reading the weights of dense matrices")
    narrow_efficiency: Number = _share(1.0, "of memory_efficiency, with weights of fewer than 5 bits, which must be unpacked")
    unpack_rate: Number = constant(
        math.inf, "that a chip unpacks of weights under 5 bits, where it multiplies them in 16", unit="weights/s", least=1e9
    )
    compute_efficiency: Number = _share(1.0, "of peak arithmetic, in dense matrices")
    expert_efficiency: Number = _share(1.0, "of peak arithmetic, in grouped matrices of routed experts")
    expert_memory_efficiency: Number = _share(1.0, "of memory bandwidth, reading the weights of routed experts")
    fp4_efficiency: Number = _share(1.0, "of those two, in products of 4-bit numbers")
    block_efficiency: Number = _share(
        1.0, "of those two, in products of 8-bit numbers with a scale for each block of weights, on chips with 4-bit arithmetic"
    )
    attention_efficiency: Number = _share(1.0, "of peak arithmetic, in attention")
    latent_efficiency: Number = _share(1.0, "of attention_efficiency, where decode attention works on a latent")
    attention_memory_efficiency: Number = _share(1.0, "of memory bandwidth, reading the KV cache")
    latent_contexts: Number = constant(
        math.inf,
        "whose latents decode attention reads at once, each by a part of the chip; infinite: each is split among all of it",
        unit="sequences",
        least=1.0,
    )
    network_efficiency: Number = _share(1.0, "of the bandwidth of links, in collectives")
    chip_departure: Number = constant(
        0.0, "how much of a chip's own departure from the usual share of its data sheet shows", unit="exponent", maximum=2.0
    )
    roofline_norm: Number = constant(
        math.inf,
        "p of the p-norm that joins arithmetic and traffic of an operator: infinite, all overlaps; 1, nothing",
        least=1.0,
    )
    fill_bytes: Number = constant(
        0.0, "of the inner dimension of a product, whose time it takes to start and to end one", unit="B", maximum=1e5
    )
    activation_traffic: Number = constant(0.0, "of activations, that go through memory", unit="share", maximum=4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds that a step takes whatever its sizes: each goes with a count of kernels, of sequences, or with the step."""

    seconds_per_layer: Number = _seconds("norms and other small kernels of a layer", unit="s per layer")
    seconds_per_kernel: Number = _seconds(
        "a dense matrix; those that share an input are one. Three beside experts of more than 4 bits", unit="s per kernel"
    )
    seconds_per_quantised_kernel: Number = _seconds("quantising the input of an 8- or 4-bit matrix", unit="s per kernel")
    seconds_per_expert_layer: Number = _seconds("routing and the grouped matrices of routed experts", unit="s per layer")
    seconds_per_attention_layer: Number = _seconds("attention that reads a cache", unit="s per layer")
    seconds_per_latent_layer: Number = _seconds("the extra products of latent attention", unit="s per layer")
    seconds_per_state_layer: Number = _seconds("a mixer with a recurrent state", unit="s per layer")
    seconds_per_selected_layer: Number = _seconds("index and selection of sparse attention", unit="s per layer")
    seconds_per_collective: Number = _seconds("each time that all chips of a group wait for all", unit="s per phase")
    seconds_per_sequence: Number = _seconds(
        "sampling, and the host's work, for each token that a sequence of a group gets, verifies or drafts", unit="s per token"
    )
    seconds_per_step: Number = _seconds("the host's work for a step", unit="s per step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """How unevenly tokens fall on routed experts, and what padding that brings."""

    expert_imbalance: Number = constant(
        1.0, "rows on the busiest chip over the mean, of chips that divide experts", unit="factor", least=1.0, maximum=1e4
    )
    expert_evenness: Number = constant(
        math.inf, "shape of the gamma distribution of experts' popularity: infinite, all alike; 1, exponential", unit="shape"
    )
    expert_tile_rows: Number = constant(0.0, "rows to which those of an expert are padded", unit="rows", maximum=1e4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """What is done in a step and in which order, and what first tokens wait for besides an orderly prompt queue."""

    step_tokens: Number = constant(
        2048.0,
        "of an attention group in a step; 0: a prompt and the decode batch",
        unit="tokens",
        maximum=1e7,
        read_by=SIMULATOR,
    )
    prefill_first: Number = constant(
        0.0, "1: waiting prompts are read before decoding goes on; 0: beside it", unit="0 or 1", maximum=1.0,
        read_by=f"{SIMULATOR}, {FIT}",
    )  # fmt: skip
    two_batch: Number = constant(
        2.0, "overlaps two micro-batches of a stage: 2 anywhere, 1 where groups exchange experts, 0 nowhere", unit="0, 1 or 2",
        maximum=2.0, read_by=PLAN,
    )  # fmt: skip
    seconds_per_request: Number = _seconds("before a prompt is read", unit="s per request", maximum=100.0, read_by=FIT)
    first_token_factor: Number = constant(
        1.0, "time to first token over that of an orderly prompt queue", unit="factor", least=1e-3, maximum=100.0,
        read_by=FIT,
    )  # fmt: skip
    seconds_before_queue: Number = _seconds(
        "HTTP and scheduling, before a request is in the queue",
        unit="s per request",
        maximum=100.0,
        read_by=f"{PLAN}, {SIMULATOR}",
    )
    seconds_before_queue_per_token: Number = _seconds("tokenising", unit="s per prompt token", read_by=f"{PLAN}, {SIMULATOR}")
    steps_before_answer: Number = constant(
        0.0, "from the end of a prompt until its first token is seen: tokens sent in groups, a scheduler that runs ahead",
        unit="decode steps", maximum=1e5, read_by=f"{PLAN}, {SIMULATOR}",
    )  # fmt: skip
    steps_to_balance: Number = constant(
        0.0,
        "more of them where attention groups wait for prompts of their own",
        unit="decode steps",
        maximum=1e5,
        read_by=f"{PLAN}, {SIMULATOR}",
    )
    seconds_to_start: Number = _seconds(
        "that the first requests of a run wait besides: kernels are compiled and tuned, connections opened",
        unit="s per run",
        maximum=1e4,
        read_by=FIT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What an engine does with a chip's memory."""

    reserved_bytes: Number = constant(0.0, "that the engine keeps for itself on a chip", unit="B", maximum=1e13)
    memory_share: Number = constant(1.0, "of the rest, that it uses", unit="share", least=1e-3, maximum=1.0)
    small_kv: Number = constant(
        0.0,
        "1: KV cache in 8 bits where the model is computed in 8 or fewer, unless told; 0: in 16",
        unit="0 or 1",
        maximum=1.0,
        read_by=f"{PLAN}, {FIT}",
    )


GROUPS: Final[dict[str, Any]] = {
    "kernels": Kernels, "overheads": Overheads, "experts": Experts, "scheduler": Scheduler, "room": Room,
}  # fmt: skip
GROUP_BY_NAME: Final[dict[str, str]] = {f.name: group for group, kind in GROUPS.items() for f in fields(kind)}
"""The group of each constant; names are unique over all groups, so that files of engines list them flat."""
CONSTANTS: Final = tuple(GROUP_BY_NAME)
DESCRIPTIONS: Final[dict[str, dict[str, Any]]] = {
    f.name: {**f.metadata, "default": f.default} for kind in GROUPS.values() for f in fields(kind)
}
WAIT_NAMES: Final = ("seconds_before_queue", "seconds_before_queue_per_token", "steps_before_answer", "steps_to_balance")
"""What first tokens wait for besides the queue, in the simulator."""
RUN_WAITS: Final = (*WAIT_NAMES, "seconds_to_start")
"""The same in measured runs, whose means hold their start."""


def find_problem(name: str, value: object) -> str:
    """Return what is wrong with a value of the constant `name`, "" for nothing.

    >>> find_problem("memory_efficiency", 50)
    'must be from 0.001 to 1.25 (share of memory bandwidth, reading the weights of dense matrices), not 50'
    >>> find_problem("memory_efficiency", 0.8)
    ''
    """
    description = DESCRIPTIONS[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, not {short_repr(value)}"
    if description["least"] <= value <= description["most"]:
        return ""
    bounds = (
        f"at least {description['least']:g}"
        if math.isinf(description["most"])
        else f"from {description['least']:g} to {description['most']:g}"
    )
    unit_text = f"{description['unit']} " if description["unit"] else ""
    return f"must be {bounds} ({unit_text}{description['line']}), not {short_repr(value)}"
