"""The constants of an engine in groups, with meaning, unit, range and reader.

Every constant is physical, and all models and chips share it. `docs/engines.md` is generated from these lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final

from steptime.errors import short_repr
from steptime.number_checks import Number

STEP, PLAN, SIMULATOR, FIT = "step", "plan", "simulator", "runs"
"""Readers of a constant: every step (and each result that uses steps), plans, the simulator, and measured runs."""
# Largest accepted share of a data sheet's peak rate: boost clocks exceed the stated rate a little.
SHARE: Final = 1.25


def constant(
    default: float, line: str, *, unit: str = "", least: float = 0.0, maximum: float = math.inf, read_by: str = STEP
) -> Any:
    """Declare the field of one constant.

    Args:
        default: Value of the ideal engine.
        line: Meaning of the constant, one line.
        unit: Unit; "" for a plain number.
        least: Lower end of the closed range; the range is open at 0.
        maximum: Upper end of the closed range.
        read_by: Parts of steptime that use the constant.

    Returns:
        A dataclass field.
    """
    return field(default=default, metadata={"line": line, "unit": unit, "least": least, "most": maximum, "read_by": read_by})


_share = partial(constant, unit="share", least=1e-3, maximum=SHARE)
_seconds = partial(constant, 0.0, unit="s", maximum=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Efficiencies of kernels against a chip's peak rates, and their overlap."""

    memory_efficiency: Number = _share(1.0, "share of memory bandwidth in reads of dense weights")
    narrow_efficiency: Number = _share(
        1.0, "factor on memory_efficiency for weights of fewer than 5 bits, which need unpacking"
    )
    unpack_rate: Number = constant(
        math.inf,
        "rate of unpacking weights of fewer than 5 bits that a chip multiplies in 16 bits",
        unit="weights/s",
        least=1e9,
    )
    compute_efficiency: Number = _share(1.0, "share of peak FLOP/s in dense GEMMs")
    fp4_efficiency: Number = _share(1.0, "factor on compute_efficiency for 4-bit GEMMs")
    eight_bit_efficiency: Number = _share(1.0, "factor on compute_efficiency for other 8-bit floating-point GEMMs")
    block_efficiency: Number = _share(
        1.0,
        "factor on compute_efficiency for 8-bit GEMMs with block scales, on chips with 4-bit arithmetic",
    )
    integer_efficiency: Number = _share(1.0, "factor on compute_efficiency for GEMMs in int8, whose blocks have scales")
    timed_kernels: Number = constant(
        1.0,
        "1: experts and attention as kernels timed alone; 0: with the shares of dense GEMMs",
        unit="0 or 1",
        maximum=1.0,
    )
    attention_time: Number = constant(
        0.0, "factor on the time of attention kernels; 0: the chip's rates", unit="factor", maximum=10.0
    )
    latent_contexts: Number = constant(
        math.inf,
        "latents (MLA) that decode attention reads at once, each by one part of the chip; infinite: all parts share each",
        unit="sequences",
        least=1.0,
    )
    network_efficiency: Number = _share(1.0, "share of link bandwidth in collectives")
    exchange_time: Number = constant(
        0.0, "factor on the time of a phase of an exchange of tokens with experts; 0: as other collectives", unit="factor",
        maximum=10.0,
    )  # fmt: skip
    gathers_tokens: Number = constant(
        0.0,
        "1: data-parallel ranks gather all tokens before their experts and add up the results; 0: they exchange tokens",
        unit="0 or 1",
        maximum=1.0,
    )
    chip_departure: Number = constant(
        0.0,
        "exponent on the ratio of a chip's measured share of its data sheet to the usual share",
        unit="exponent",
        maximum=2.0,
    )
    roofline_norm: Number = constant(
        math.inf,
        "p of the p-norm that joins an operator's compute and memory times; infinite: full overlap; 1: no overlap",
        least=1.0,
    )
    fill_bytes: Number = constant(
        0.0, "bytes of the inner dimension of a GEMM that take as long as its fill and drain", unit="B", maximum=1e5
    )
    activation_traffic: Number = constant(0.0, "share of activations that pass through memory", unit="share", maximum=4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds per step that do not depend on the sizes of matrices.

    Each overhead is proportional to a number of kernels, layers or sequences, or occurs once per step.
    """

    launch_time: Number = constant(
        1.0,
        "factor on the fixed times of kernels and collectives; below 1 where a kernel is launched before its predecessor ends",
        unit="factor",
        maximum=4.0,
    )
    seconds_per_layer: Number = _seconds("time of norms and other small kernels of a layer", unit="s per layer")
    seconds_per_kernel: Number = _seconds(
        "time of a dense kernel; matrices with one input share a kernel, and experts above 4 bits need three more",
        unit="s per kernel",
    )
    seconds_per_quantised_kernel: Number = _seconds(
        "time to quantise the input of an 8-bit or 4-bit matrix", unit="s per kernel"
    )
    seconds_per_expert_layer: Number = _seconds(
        "time of routing of an expert layer, in addition to the calls of its kernels", unit="s per layer"
    )
    seconds_per_latent_layer: Number = _seconds("time of the extra products of latent attention (MLA)", unit="s per layer")
    seconds_per_state_layer: Number = _seconds("time of a mixer with a recurrent state", unit="s per layer")
    seconds_per_selected_layer: Number = _seconds("time of index and selection in sparse attention", unit="s per layer")
    seconds_per_collective: Number = _seconds("time per synchronization of all chips of a collective", unit="s per phase")
    seconds_per_sequence: Number = _seconds(
        "time of greedy sampling and host work per token of a data-parallel rank, with speculative tokens", unit="s per token"
    )
    top_p_share: Number = constant(
        0.0, "share of requests that draw their tokens with top-p; 0: greedily, as benchmarks do", unit="share", maximum=1.0
    )
    top_p_seconds_per_entry: Number = _seconds(
        "time of top-p kernels per token and entry of the vocabulary", unit="s per entry"
    )
    top_p_seconds_per_sequence: Number = _seconds("time of host work for top-p, per token", unit="s per token")
    top_p_seconds_per_step: Number = _seconds("time of host work for top-p, per step", unit="s per step")
    seconds_per_step: Number = _seconds("time of host work per step", unit="s per step")
    seconds_per_launched_layer: Number = _seconds(
        "time for which the host launches a layer, in a step with prompts without a CUDA graph", unit="s per layer"
    )
    seconds_per_launched_kernel: Number = _seconds(
        "time for which the host launches a product and what surrounds it, in such a step", unit="s per kernel"
    )
    seconds_per_launched_latent_layer: Number = _seconds(
        "further time for which the host launches latent attention, in such a step", unit="s per layer"
    )
    graph_tokens: Number = constant(
        0.0, "most tokens of a step with prompts that runs as CUDA graphs", unit="tokens", maximum=1e6
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Popularity of routed experts, the load imbalance that it causes, and padding of their rows."""

    expert_skew: Number = constant(
        0.0,
        "coefficient of variation of the popularity of a layer's experts (log-normal), which unbalances expert-parallel ranks",
        maximum=10.0,
    )
    expert_imbalance: Number = constant(
        0.0,
        "rows on the busiest expert-parallel rank divided by the mean, where known; 0: computed from expert_skew",
        unit="factor",
        least=1.0,
        maximum=1e4,
    )
    expert_evenness: Number = constant(
        math.inf, "shape of the gamma distribution of expert popularity; infinite: uniform; 1: exponential", unit="shape"
    )
    expert_time: Number = constant(
        0.0,
        "factor on the time of the kernels of routed experts, times that of [[experts]]; 0: the chip's rates",
        unit="factor",
        maximum=10.0,
    )
    expert_call: Number = constant(
        1.0, "share of the fixed time of a call of these kernels that remains in whole runs", unit="share", maximum=4.0
    )
    seconds_per_sort: Number = _seconds(
        "time to sort the tokens of a layer by expert, without timed kernels; a single token needs none", unit="s per layer"
    )
    expert_tile_share: Number = constant(
        1.0, "rows of such a tile, as a share of the tokens of the step", unit="share", maximum=1.0
    )
    expert_tile_rows: Number = constant(
        0.0, "rows of a tile to which a kernel pads each expert, without timed kernels", unit="rows", maximum=1024.0
    )
    unmeasured_expert_time: Number = constant(
        1.0,
        "factor on the time of routed experts of chips and formats that are not in [[experts]]",
        unit="factor",
        least=0.1,
        maximum=10.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Order of work in a step, and delays of first tokens outside the prefill queue."""

    step_tokens: Number = constant(
        2048.0,
        "token budget of a data-parallel rank per step (max_num_batched_tokens); 0: one prompt and the decode batch",
        unit="tokens",
        maximum=1e7,
        read_by=SIMULATOR,
    )
    prefill_first: Number = constant(
        0.0, "1: prefill runs before decode continues; 0: chunked prefill runs together with decode", unit="0 or 1",
        maximum=1.0, read_by=f"{SIMULATOR}, {FIT}",
    )  # fmt: skip
    two_batch: Number = constant(
        2.0, "overlap of two micro-batches of a stage; 2: always; 1: only with dp and ep above 1; 0: never",
        unit="0, 1 or 2", maximum=2.0, read_by=PLAN,
    )  # fmt: skip
    seconds_per_request: Number = _seconds(
        "delay of a request before its prefill", unit="s per request", maximum=100.0, read_by=FIT
    )
    first_token_factor: Number = constant(
        1.0, "time to first token divided by that of a first-come prefill queue", unit="factor", least=1e-3, maximum=100.0,
        read_by=FIT,
    )  # fmt: skip
    seconds_before_queue: Number = _seconds(
        "time of HTTP and scheduling before a request enters the queue",
        unit="s per request",
        maximum=100.0,
        read_by=f"{PLAN}, {SIMULATOR}",
    )
    seconds_before_queue_per_token: Number = _seconds(
        "time of tokenization", unit="s per prompt token", read_by=f"{PLAN}, {SIMULATOR}"
    )
    steps_before_answer: Number = constant(
        0.0, "delay between prefill and the visible first token: tokens are sent in groups, the scheduler runs ahead",
        unit="decode steps", maximum=1e5, read_by=f"{PLAN}, {SIMULATOR}",
    )  # fmt: skip
    steps_to_balance: Number = constant(
        0.0,
        "extra delay of a first token where data-parallel ranks wait until each has a prompt",
        unit="decode steps",
        maximum=1e5,
        read_by=f"{PLAN}, {SIMULATOR}",
    )
    seconds_to_start: Number = _seconds(
        "extra delay of the first requests of a run, while kernels are compiled and connections are opened",
        unit="s per run",
        maximum=1e4,
        read_by=FIT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Use of a chip's memory by an engine."""

    reserved_bytes: Number = constant(0.0, "memory of a chip that the engine reserves", unit="B", maximum=1e13)
    collective_bytes: Number = constant(
        0.0, "memory of a chip for buffers of collectives, where a replica has several chips", unit="B", maximum=1e13
    )
    sampling_bytes: Number = constant(
        0.0, "memory for sampling, by slot and entry of the vocabulary: logits, their sort and its indices", unit="B",
        maximum=1e3,
    )  # fmt: skip
    memory_share: Number = constant(
        1.0, "share of the remaining memory that the engine uses", unit="share", least=1e-3, maximum=1.0
    )
    small_kv: Number = constant(
        0.0,
        "1: default KV cache of 8 bits where the model is computed in 8 bits or fewer; 0: of 16 bits",
        unit="0 or 1",
        maximum=1.0,
        read_by=f"{PLAN}, {FIT}",
    )


GROUPS: Final[dict[str, Any]] = {
    "kernels": Kernels, "overheads": Overheads, "experts": Experts, "scheduler": Scheduler, "room": Room,
}  # fmt: skip
GROUP_BY_NAME: Final[dict[str, str]] = {f.name: group for group, kind in GROUPS.items() for f in fields(kind)}
"""The group of each constant; names are unique over all groups, so that engine files list them without groups."""
CONSTANTS: Final = tuple(GROUP_BY_NAME)
DESCRIPTIONS: Final[dict[str, dict[str, Any]]] = {
    f.name: {**f.metadata, "default": f.default} for kind in GROUPS.values() for f in fields(kind)
}
WAIT_NAMES: Final = ("seconds_before_queue", "seconds_before_queue_per_token", "steps_before_answer", "steps_to_balance")
"""Delays of first tokens outside the queue, in the simulator."""
RUN_WAITS: Final = (*WAIT_NAMES, "seconds_to_start")
"""The same delays in measured runs, whose means include the start of the run."""


def find_problem(name: str, value: object) -> str:
    """Return the problem with a value of a constant.

    Args:
        name: Name of the constant.
        value: A value from a file or an option.

    Returns:
        The problem in words; "" where the value is valid.

    >>> find_problem("memory_efficiency", 50)
    'must be from 0.001 to 1.25 (share of memory bandwidth in reads of dense weights), got 50'
    >>> find_problem("memory_efficiency", 0.8)
    ''
    """
    description = DESCRIPTIONS[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, got {short_repr(value)}"
    default = description["default"]
    if description["least"] <= value <= description["most"] or value == default:
        return ""
    bounds = (
        f"at least {description['least']:g}"
        if math.isinf(description["most"])
        else f"from {description['least']:g} to {description['most']:g}"
    )
    # The default of a constant that switches something off is outside its range.
    bounds = bounds if default >= description["least"] else f"{default:g} or {bounds}"
    # The line of a share, factor or flag names the unit already.
    unit_text = f" [{description['unit']}]" if description["unit"].startswith("s per") or description["unit"] == "B" else ""
    return f"must be {bounds} ({description['line']}{unit_text}), got {short_repr(value)}"


def numbered_tables(name: str, entries: object) -> Iterator[tuple[str, Any]]:
    """Yield the tables of a list in an engine file.

    Args:
        name: Key of the list.
        entries: Its value.

    Yields:
        Place of a table in words, and the table.

    Raises:
        ValueError: The value is not a list.
    """
    if not isinstance(entries, list):
        raise ValueError(f"{name}: must be a list of tables, [[{name}]]")
    yield from ((f"{name}, table {number}", entry) for number, entry in enumerate(entries, 1))
