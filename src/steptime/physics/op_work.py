"""Operator work: the rows, FLOPs, bytes and kernel launches of a pass on one chip.

Demand is work, not time. Two kinds of engine constants change the work itself and are used here: the skew of experts
(`expert_imbalance`) with the tiles that pad their rows, and the share of activations that passes through memory. Kernels of
routed experts depend on the format of the weights and on the generation of the chip (`expert_kernels`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.blackboard.expert_activation import distinct_hit, expected_maximum, experts_touched
from steptime.hardware.number_formats import SOFTWARE, number_format, peak_rate
from steptime.hardware.system import System
from steptime.models.model import Attention, Model, Op, entries_read, pairs
from steptime.number_checks import Number, has_nonzero
from steptime.physics.attention_kernels import IDEAL_KERNEL as IDEAL_ATTENTION
from steptime.physics.attention_kernels import NARROW as NARROW_FORM
from steptime.physics.attention_kernels import (
    VALUE_BYTES,
    WIDE,
    AttentionKernel,
    JointKernel,
    decode_entries,
    joint_pairs,
    load_kernels,
    padding,
    prefill_pairs,
)
from steptime.physics.attention_kernels import select_kernel as select_attention
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.chip_memory import cache_ways, expert_slots, state_ways
from steptime.physics.compute_dtype import (
    DECODE,
    LATENT_DECODE,
    LATENT_PREFILL,
    PREFILL,
    WEIGHTS,
    Computed,
    select_compute_dtype,
)
from steptime.physics.engine import Engine
from steptime.physics.expert_imbalance import busiest_rows
from steptime.physics.expert_kernels import (
    IDEAL_KERNEL,
    ExpertKernel,
    activation_bytes,
    exchanged_kind,
    expert_factor,
    memory_share,
    select_kernel,
    stored_kind,
    tile_size,
)
from steptime.physics.layout import CLOSING, Layout, exchanges_experts

AMD: Final = "AMD"
# Arithmetic of nvfp4, of mxfp4, and of weights that a chip converts to 16 bits.
FOUR, SIX, SIXTEEN = "fp4", "fp6", "bf16"
INTEGER: Final = "int8"


def four_bits(vendor: str) -> tuple[str, ...]:
    """Return the arithmetic with both factors in four bits on a vendor's chips.

    AMD runs formats for 6-bit arithmetic with 4-bit inputs, at the same rate (aiter, per_1x32).

    Args:
        vendor: Vendor of the chip.

    Returns:
        Names of arithmetic.
    """
    return (FOUR, SIX) if vendor == AMD else (FOUR,)


def multiplied_in(computed: tuple[str, ...], peak: Collection[str]) -> str:
    """Return the first arithmetic that the chip has.

    Args:
        computed: Arithmetic that can multiply the weights, best first.
        peak: Arithmetic that the chip has.

    Returns:
        A name of arithmetic; 16 bits where the chip has no other.

    >>> multiplied_in(("fp4", "fp8", "bf16"), ("fp8", "bf16")), multiplied_in(("fp6", "bf16"), ("fp8", "bf16"))
    ('fp8', 'bf16')
    """
    return next((kind for kind in computed if kind in peak), SIXTEEN)


# Arithmetic with quantised inputs.
QUANTISED = ("fp8", "fp4", "int8")
# Arithmetic to which a chip converts narrower weights.
UNPACKED = ("bf16", "fp16")
# Sequences of an empty pass, which avoids a division by 0.
FEWEST = 1e-6
# Bytes per weight below which unpacking costs bandwidth.
NARROW = 5 / 8


@dataclass(frozen=True, slots=True)
class Work:
    """The rows of one micro-batch in one data-parallel rank.

    sequences, prompts: Sequences in decode, and prompts in prefill.
    decode, prefill, everywhere: Rows; `everywhere` is the sum over all data-parallel ranks.
    requests: Requests with equal numbers of rows whose experts fluctuate as much as those of all data-parallel ranks.
    context, tokens, prefix: Tokens in the KV cache of a sequence, new tokens of a prompt, and its cached
    tokens.
    """

    sequences: Number
    decode: Number
    prompts: Number
    prefill: Number
    everywhere: Number
    requests: Number
    context: Number
    tokens: Number
    prefix: Number


def build_work(inputs: Mapping[str, Any], layout: Layout) -> Work:
    """Return the rows of one micro-batch in a data-parallel rank.

    Args:
        inputs: The sizes of `mixed_step` by name.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        The work.
    """
    m, dp = layout.microbatches, layout.dp
    sequences = busiest(inputs["batch"], dp * m)
    group_prompts = busiest(inputs["prompts"], dp) / m
    rows = inputs["batch"] * inputs["query"] + inputs["prompts"] * inputs["tokens"]
    squares = inputs["batch"] * np.square(inputs["query"]) + inputs["prompts"] * np.square(inputs["tokens"] * 1.0)
    return Work(
        sequences=sequences,
        decode=sequences * inputs["query"],
        prompts=group_prompts,
        prefill=group_prompts * inputs["tokens"],
        everywhere=rows / m,
        requests=effective_requests(rows, squares) / m,
        context=inputs["context"] * 1.0,
        tokens=inputs["tokens"] * 1.0,
        prefix=inputs["prefix"] * 1.0,
    )


def effective_requests(rows: Number, squares: Number) -> Number:
    r"""Return the number of equal requests with the same fluctuation as unequal ones: $(\sum w)^2 / \sum w^2$.

    Args:
        rows: Sum of the rows $w$ of the requests.
        squares: Sum of their squares.

    Returns:
        Requests; 0 without rows.

    References:
        Kish, Survey Sampling, 1965: effective sample size.

    >>> float(effective_requests(3.0, 3.0)), float(effective_requests(102.0, 10_002.0)), float(effective_requests(0.0, 0.0))
    (3.0, 1.0401919616076785, 0.0)
    """
    return np.square(rows) / np.maximum(squares, FEWEST)


def busiest(count: Number, groups: Number) -> Number:
    """Return the number of sequences or prompts of the busiest rank.

    They are distributed round-robin, so that a positive number gives at least one. A mean number between two whole numbers
    is interpolated, because a step with one or two prompts does not always have two.

    Args:
        count: Sequences or prompts, or their mean number.
        groups: Data-parallel ranks, times micro-batches where these divide them.

    Returns:
        Sequences or prompts.

    >>> [float(busiest(count, 4)) for count in (0, 0.5, 3.5, 4, 4.25, 5)], float(busiest(2.5, 1))
    ([0.0, 1.0, 1.0, 1.0, 1.25, 2.0], 2.5)
    """
    rounded = np.floor(count + 1e-9)
    part = np.maximum(count - rounded, 0.0)
    # The sum with 0 turns -0 into 0.
    largest: Number = np.ceil(rounded / groups - 1e-9) + 0.0
    if has_nonzero(part):
        largest = (1 - part) * largest + part * np.ceil((rounded + 1) / groups - 1e-9)
        largest = np.maximum(largest, np.minimum(np.ceil(count), 1.0))
    return largest


@dataclass(frozen=True, slots=True)
class Ledger:
    """The operators of a pass: layers and mixers with their counts, and the stem."""

    layers: tuple[tuple[Op, int], ...]
    stem: tuple[Op, ...]
    mixers: tuple[tuple[Attention, int], ...]


@lru_cache(maxsize=256)
def ledger(model: Model, *, merged: bool) -> Ledger:
    """Return the distinct operators of a model, each with its number of instances.

    The time of an operator is homogeneous: $n$ equal operators take the time of one with $n$ times the weights and FLOPs.
    If activations and short sums cost nothing (`merged`), this is also true for different operators. These need one term,
    format, split and ratio of FLOPs to weights. The bytes per weight of one format differ by the scales of matrices of other
    shapes; the mean counts.

    Args:
        model: The model.
        merged: Whether to join operators in this way.

    Returns:
        The operators.
    """
    ops: dict[Any, list[tuple[Op, int]]] = {}
    mixers: Counter[Attention] = Counter()
    for layer, n in model.layers:
        for op in layer.ops:
            key = (
                op.term,
                op.rows,
                op.split,
                op.split_limit,
                replace(op.format, bytes=round(op.format.bytes, 2)),
                op.experts,
                op.flops_per_row / op.weights if op.weights else 0,
            )
            ops.setdefault(key if merged and op.rows != "routed" else op, []).append(
                (
                    replace(
                        op,
                        weights=n * op.weights,
                        flops_per_row=n * op.flops_per_row,
                        inputs=n * op.inputs,
                        outputs=n * op.outputs,
                    ),
                    n,
                )
            )
        for attention in layer.attention:
            mixers[attention] += n
    return Ledger(tuple(_joined(same) for same in ops.values()), model.stem, tuple(mixers.items()))


def _joined(same: list[tuple[Op, int]]) -> tuple[Op, int]:
    if len(same) == 1:
        return same[0]
    sums = {key: sum(getattr(op, key) for op, _ in same) for key in ("weights", "flops_per_row", "inputs", "outputs")}
    format = same[0][0].format
    if sums["weights"] and any(op.format != format for op, _ in same):
        format = replace(format, bytes=sum(op.weights * op.format.bytes for op, _ in same) / sums["weights"])
    return replace(same[0][0], format=format, **sums), sum(n for _, n in same)


@dataclass(frozen=True, slots=True)
class Demand:
    """The work of an operator on one chip in one micro-batch.

    flops: FLOP.
    peak, efficiency: Peak rate [FLOP/s] and the share of it.
    weights, memory_efficiency: Bytes of weights, and the share of memory bandwidth of their reads.
    activations, kv: Bytes.
    seconds: Time of a call that does not depend on the work [s].
    """

    flops: Number
    peak: Number
    weights: Number = 0.0
    activations: Number = 0.0
    kv: Number = 0.0
    efficiency: Number = 1.0
    memory_efficiency: Number = 1.0
    seconds: Number = 0.0


class Pass:
    """The work of one micro-batch on a chip, with the values that its operators share.

    rows, logits: Rows, and rows with logits.
    compute, memory: Shares of the data sheet's rates in plain products.
    """

    def __init__(self, work: Work, system: System, layout: Layout, engine: Engine) -> None:
        self.work, self.system, self.layout, self.engine = work, system, layout, engine
        self.rows = work.decode + work.prefill
        # Every decode token has logits, and the last token of each prompt.
        self.logits = work.decode + work.prompts
        self.compute = engine.kernels.compute_efficiency * chip_factor(system, "compute", engine)
        # Nothing is read faster than the data sheet says.
        self.memory = np.minimum(engine.kernels.memory_efficiency * chip_factor(system, "memory", engine), 1.0)
        self.fills = has_nonzero(engine.kernels.fill_bytes)


def computed_in(rules: Iterable[Computed], stored: tuple[str, ...], peak: Collection[str], vendor: str) -> tuple[str, ...]:
    """Return the arithmetic in which an engine multiplies weights, best first.

    AMD chips with 4-bit and without 6-bit arithmetic run formats for 6-bit arithmetic in 4 bits (`four_bits`).

    Args:
        rules: Compute formats of the engine.
        stored: Arithmetic that can multiply the stored format, best first.
        peak: Arithmetic that the chip has.
        vendor: Vendor of the chip.

    Returns:
        Names of arithmetic.

    >>> computed_in((), ("fp6", "bf16"), ("fp4", "bf16"), "AMD"), computed_in((), ("fp6", "bf16"), ("fp4", "bf16"), "")
    (('fp4', 'bf16'), ('fp6', 'bf16'))
    """
    computed = select_compute_dtype(rules, WEIGHTS, stored, peak)
    narrow = computed[0] in four_bits(vendor) and computed[0] not in peak and FOUR in peak
    return (FOUR, *computed[1:]) if narrow else computed


def routed_demand(op: Op, context: Pass, *, instances: int = 1) -> Demand:
    """Return the demand of routed experts on the busiest chip for one micro-batch.

    Args:
        op: Routed experts of `instances` layers.
        context: Work of a micro-batch on a chip.
        instances: Number of layers in `op`.

    Returns:
        The demand.
    """
    work, system, layout, experts = context.work, context.system, context.layout, context.engine.experts
    slots, sharing = expert_slots(op, layout), layout.stage / layout.ep

    # Weights: the busiest chip reads each expert that at least one of its tokens activates.
    copies = slots * layout.ep
    touched = experts_touched(slots, slots * op.active / copies, work.everywhere, experts.expert_evenness)
    share = np.minimum(touched / slots, 1.0)
    reachable = np.where(work.everywhere < 1, work.everywhere, np.minimum(slots, work.everywhere * op.active))
    touched = np.minimum(expected_maximum(touched, touched * (1 - share), layout.ep, np.maximum(1 - 2 * share, 0.0)), reachable)
    # The busiest chip has at least one active expert.
    least = np.minimum(work.everywhere, 1.0)
    touched = np.maximum(touched, least)

    # Rows: the experts of one token are distinct, which lowers the variance between chips.
    rows = work.everywhere * op.active / layout.ep
    distinct_factor = (op.experts - op.active) / np.maximum(op.experts - 1, 1)
    chance = expected_maximum(rows, rows * distinct_factor, layout.ep) - rows
    busiest_rank = busiest_rows(
        rows, chance, work.requests, experts.expert_skew, op.experts, layout.ep, layout.redundant_experts
    )
    if has_nonzero(experts.expert_imbalance):
        # A ratio that was counted replaces the popularity; chance is a lower bound for any popularity.
        counted_rows = np.maximum(rows * np.where(np.asarray(layout.ep) > 1, experts.expert_imbalance, 1.0), rows + chance)
        busiest_rank = np.where(np.asarray(experts.expert_imbalance) > 0, counted_rows, busiest_rank)
    rows = np.minimum(np.maximum(busiest_rank, least), work.everywhere * np.minimum(op.active, slots))

    # The kernel, and its factor in whole serving runs.
    kernel, factor = expert_kernel(op, context)
    plain = op.inputs > 0 and op.columns > 0
    columns = op.columns / sharing if plain else np.inf
    computed = number_format(kernel.computed).arithmetic if kernel.computed else op.format.arithmetic
    activations: Number = 0.0
    exchanges = exchanges_tokens(context)
    if plain and has_nonzero(kernel.activation_share):
        width = op.inputs / instances
        # Where ranks exchange tokens, a chip receives those with an expert there.
        received: Number = work.everywhere
        if has_nonzero(exchanges):
            share = distinct_hit(op.experts, round(op.active), layout.ep) / layout.ep
            received = received * np.where(exchanges, share, 1.0)
        matrices = op.flops_per_row / (2 * op.inputs * op.columns)
        moved = activation_bytes(kernel, rows, received, width, columns, matrices)
        activations = instances * moved * factor
    if has_nonzero(kernel.tile_rows):
        # Kernels behind an exchange know the rows of each expert; others expect that all rows are for experts of the chip.
        expected = work.everywhere * op.active / op.experts * np.where(exchanges, 1.0, layout.ep)
        rows = np.hypot(rows, touched * tile_size(kernel, expected))
    return Demand(
        rows * (op.flops_per_row / sharing),
        peak_rate(system.chip.peak, computed),
        touched * op.weights * (op.format.bytes / sharing),
        activations,
        efficiency=kernel.compute_share / factor,
        memory_efficiency=memory_share(kernel, columns) / factor,
        seconds=kernel.seconds * experts.expert_call * factor,
    )


def exchanges_tokens(context: Pass) -> Any:
    """Check whether data-parallel ranks send each token to its experts, where they do not gather all tokens.

    Args:
        context: Work of a micro-batch on a chip.

    Returns:
        Booleans with the broadcast shape of the layout.
    """
    return exchanges_experts(context.layout) & ~(np.asarray(context.engine.kernels.gathers_tokens) > 0)


def expert_kernel(op: Op, context: Pass) -> tuple[ExpertKernel, Number]:
    """Return the kernels of routed experts, and the factor on their time in whole serving runs.

    Args:
        op: Routed experts.
        context: Work of a micro-batch on a chip.

    Returns:
        Kernels and a factor; for an engine without losses those of an ideal chip and 1.
    """
    experts, chip, stored = context.engine.experts, context.system.chip, stored_kind(op.format)
    if not has_nonzero(experts.expert_time):
        return IDEAL_KERNEL, 1.0
    if not has_nonzero(context.engine.kernels.timed_kernels):
        return _dense_shares(op, context), experts.expert_time
    factor = expert_factor(context.engine.expert_factors, chip.generation, stored, experts.unmeasured_expert_time)
    engine, has_fp4 = context.engine.kernel_engine, FOUR in chip.peak
    kind, exchanges = exchanged_kind(chip.generation, stored, engine), exchanges_tokens(context)
    if kind and has_nonzero(exchanges):
        # Other kernels than those of runs without exchange, with their own factor.
        exchanged = expert_factor(context.engine.expert_factors, chip.generation, kind, experts.unmeasured_expert_time)
        factor = np.where(exchanges, exchanged, factor)
    kernel = select_kernel(chip.generation, stored, has_fp4=has_fp4, engine=engine, exchanges=exchanges)
    return kernel, experts.expert_time * factor


def _dense_shares(op: Op, context: Pass) -> ExpertKernel:
    """Return kernels of routed experts with the shares of dense products, for an engine whose kernels were not timed alone.

    A single token is a product of a matrix and a vector, without tiles.
    """
    kernels, experts, chip = context.engine.kernels, context.engine.experts, context.system.chip
    kinds = computed_in(context.engine.arithmetic, op.format.arithmetic, tuple(chip.peak), chip.vendor)
    kind = multiplied_in(kinds, chip.peak)
    return ExpertKernel(
        computed=kind,
        memory_share=context.memory * (kernels.narrow_efficiency if op.format.bytes < NARROW else 1.0),
        compute_share=context.compute * (kernels.integer_efficiency if kind == INTEGER else 1.0),
        seconds=experts.seconds_per_sort * np.clip(context.work.everywhere - 1.0, 0.0, 1.0),
        tile_rows=np.minimum(experts.expert_tile_rows, experts.expert_tile_share * context.work.everywhere),
    )


# Bytes per multiplied value; 2 for other arithmetic.
ROW_BYTES = {"fp4": 0.5, "fp6": 0.75, "fp8": 1.0, "int8": 1.0}


def in_blocks(op: Op) -> bool:
    """Whether 8-bit weights of an operator have block scales.

    Tensor cores of chips with 4-bit arithmetic scale 16 or 32 values in a row. FP8 models have sums over blocks of 128 x 128.
    Their scales are applied outside of tensor cores, by units that are hardly faster than on earlier chips.

    Args:
        op: The operator.

    Returns:
        True or false.

    References:
        B200: 0.58 to 0.97 times the speed of BF16 (github.com/flashinfer-ai/flashinfer/issues/2146,
        github.com/NVIDIA/cutlass/issues/2923). H800: 1,500 of 1,979 TFLOP/s
        (github.com/deepseek-ai/DeepGEMM/pull/81).
    """
    return op.format.block > 0


def attention_demands(a: Attention, work: Work, system: System, layout: Layout, engine: Engine) -> dict[str, Demand]:
    """Return the demand of a token mixer on a chip, by phase.

    Args:
        a: The token mixer.
        work: Rows of one micro-batch.
        system: The system.
        layout: Parallel degrees; fields may be arrays.
        engine: The engine.

    Returns:
        Demands of the phases with work: "decode", "prefill", and "decode with prompts" where a kernel takes both in one call.
    """
    kv_ways, state_shards = cache_ways(a, layout), state_ways(a, layout)
    latent, kernels = a.expand_flops > 0, engine.kernels
    demands = {}

    # Decode reads the whole cache of each sequence, and reads and writes recurrent states.
    if has_nonzero(work.decode):
        operation = LATENT_DECODE if latent else DECODE
        kernel, rate = attention_kernel(a, operation, system, engine, heads=a.heads / layout.tp)
        entries = entries_read(a, work.context) / layout.cp
        filled: Number = 1.0
        if has_nonzero(kernel.tile_entries):
            rows = np.maximum(work.sequences * (a.kv_shards * layout.cp / kv_ways), 1.0)
            if latent and has_nonzero(np.isfinite(kernels.latent_contexts)):
                # `busy_parts` has the parts that idle.
                rows = np.where(np.isfinite(kernels.latent_contexts), np.inf, rows)
            entries = decode_entries(kernel, entries, rows)
            if has_nonzero(work.decode - work.sequences):
                decodes = np.asarray(work.decode) > 0
                queries = np.where(decodes, work.decode, 1.0) / np.where(decodes, work.sequences, 1.0)
                filled = padding(a.heads / a.kv_shards, queries)
        flops = work.decode * filled * (a.flops_per_pair_decode * entries + a.state_flops_per_token) / layout.tp
        moved = work.sequences * (entries * (a.kv_bytes * layout.cp / kv_ways) + 2 * a.state_bytes / state_shards)
        busy = busy_parts(work.sequences, kernels.latent_contexts) if latent else 1.0
        demands["decode"] = Demand(
            flops, rate, kv=moved, efficiency=kernel.compute_share * busy, memory_efficiency=kernel.memory_share * busy,
            seconds=kernel.seconds * np.minimum(work.decode, 1.0) if has_nonzero(kernel.seconds) else 0.0,
        )  # fmt: skip
        joint = joint_kernel(a, system, engine) if has_nonzero(work.prefill) else None
        if joint is not None:
            demands = _decode_with_prompts(a, work, system, layout, engine, joint, demands["decode"])

    # Prefill of a latent expands the cached prefix to keys and values first.
    if has_nonzero(work.prefill):
        kernel, rate = attention_kernel(a, LATENT_PREFILL if latent else PREFILL, system, engine)
        activations: Number = 0.0
        flops = work.prompts * (a.expand_flops * work.prefix + a.state_flops_per_token * work.tokens) / layout.group
        # A mean number of prompts below 1 is the share of steps with a prompt.
        present = np.minimum(work.prompts, 1.0) * (work.tokens > 0)
        if a.flops_per_pair_prefill:
            values, heads = a.flops_per_pair_prefill / (2 * a.heads), a.heads / layout.group
            prompt_pairs = pairs(a, work.tokens, work.prefix)
            if has_nonzero(kernel.fill_rows):
                # A cached prefix is divided among the parts of the chip, as decode divides contexts.
                count, longest = np.maximum(work.prompts, 1.0), entries_read(a, work.tokens)
                all_pairs = present * prefill_pairs(kernel, count * prompt_pairs, count * work.tokens, heads, longest)
            else:
                all_pairs = heads * work.prompts * prompt_pairs
            flops = flops + all_pairs * (2 * (values + kernel.pair_values))
            if has_nonzero(kernel.activation_passes):
                moved_values = heads * values * (VALUE_BYTES * (1 + latent)) + (1 - latent) * a.kv_bytes / kv_ways
                activations = work.prompts * work.tokens * moved_values * kernel.activation_passes
        window_tokens = np.minimum(work.prefix, a.window * a.stride) + work.tokens
        moved = work.prompts * (window_tokens / a.stride * a.kv_bytes / kv_ways + 2 * a.state_bytes / state_shards)
        demands["prefill"] = Demand(
            flops, rate, activations=activations, kv=moved, efficiency=kernel.compute_share,
            memory_efficiency=kernel.memory_share, seconds=kernel.seconds * present if has_nonzero(kernel.seconds) else 0.0,
        )  # fmt: skip
    return demands


def joint_kernel(a: Attention, system: System, engine: Engine) -> JointKernel | None:
    """Return the kernel that takes prompts and decoding sequences in one call.

    Args:
        a: The token mixer.
        system: The system.
        engine: The engine.

    Returns:
        The kernel; None where each has its own call, and for an engine without timed kernels.
    """
    timed = has_nonzero(engine.kernels.attention_time) and has_nonzero(engine.kernels.timed_kernels)
    if not timed or not a.flops_per_pair_decode or a.expand_flops > 0 or a.state_bytes:
        return None
    form = NARROW_FORM if a.arithmetic[0] in ROW_BYTES else WIDE
    return load_kernels(JointKernel).get((engine.kernel_engine, system.chip.generation, form))


def has_joint_calls(model: Model, system: System, engine: Engine) -> bool:
    """Whether a kernel of the model's attention takes prompts and decoding sequences in one call.

    Args:
        model: The model.
        system: The system.
        engine: The engine.

    Returns:
        True or false.
    """
    return any(joint_kernel(a, system, engine) is not None for layer, _ in model.layers for a in layer.attention)


def _decode_with_prompts(
    a: Attention, work: Work, system: System, layout: Layout, engine: Engine, joint: JointKernel, decode: Demand
) -> dict[str, Demand]:
    """Return the demands of decode in calls without and with prompts.

    A mean number of prompts below 1 is the share of micro-batches with a prompt.
    """
    present = np.minimum(work.prompts, 1.0) * (work.tokens > 0)
    kernel, rate = attention_kernel(a, PREFILL, system, engine)
    values, heads = a.flops_per_pair_decode / (2 * a.heads), a.heads / layout.tp
    pairs_of_head = joint_pairs(joint, kernel, entries_read(a, work.context) / layout.cp, work.tokens)
    # The rate of prefill was timed on another chip of the generation, whose products may reach another share of its data sheet.
    reached = system.chip.reached.get("compute", joint.timed_compute) / joint.timed_compute
    joined = Demand(
        present * work.sequences * heads * pairs_of_head * (2 * (values + kernel.pair_values)), rate, kv=present * decode.kv,
        efficiency=np.minimum(kernel.compute_share * reached, 1.0), memory_efficiency=decode.memory_efficiency,
    )  # fmt: skip
    if np.all(present >= 1):
        return {"decode with prompts": joined}
    separate = replace(
        decode, flops=(1 - present) * decode.flops, kv=(1 - present) * decode.kv, seconds=(1 - present) * decode.seconds
    )
    return {"decode": separate, "decode with prompts": joined}


def attention_kernel(
    a: Attention, operation: str, system: System, engine: Engine, heads: Number = math.inf
) -> tuple[AttentionKernel, Number]:
    """Return the kernels of attention with the factor of an engine, and the peak rate of their arithmetic.

    Args:
        a: The token mixer.
        operation: Operation of `attention_kernels.OPERATIONS`.
        system: The system.
        engine: The engine.
        heads: Query heads of a chip.

    Returns:
        Kernels and FLOP/s; for an engine without losses the kernels of an ideal chip.
    """
    chip, factor = system.chip, engine.kernels.attention_time
    computed = select_compute_dtype(engine.arithmetic, operation, a.arithmetic, chip.peak)
    rate = peak_rate(chip.peak, computed)
    if not has_nonzero(factor):
        return IDEAL_ATTENTION, rate
    if a.state_bytes:
        # No recurrent mixer was timed: it has the rates of dense products, and its fixed time is `seconds_per_state_layer`.
        dense = engine.kernels
        return AttentionKernel(memory_share=dense.memory_efficiency, compute_share=dense.compute_efficiency), rate
    if not has_nonzero(engine.kernels.timed_kernels):
        dense = engine.kernels
        shares = AttentionKernel(memory_share=dense.memory_efficiency, compute_share=dense.compute_efficiency)
        return shares.slowed(factor), rate
    stored = a.arithmetic if operation in (DECODE, LATENT_DECODE) else computed
    form = NARROW_FORM if stored[0] in ROW_BYTES else WIDE
    return select_attention(operation, chip.generation, form, factor, engine.kernel_engine, heads), rate


def busy_parts(sequences: Number, parts: Number) -> Number:
    """Return the share of a chip's parts that work, with one whole sequence per part.

    A mean number of sequences between two whole numbers is interpolated.

    Args:
        sequences: Sequences on the chip.
        parts: Parts of the chip; infinite where all of the chip shares each context.

    Returns:
        A share; 1 for infinite parts.

    >>> [float(busy_parts(sequences, 76)) for sequences in (19, 76, 114)], busy_parts(19, np.inf)
    ([0.25, 1.0, 0.75], 1.0)
    """
    if not has_nonzero(np.isfinite(parts)):
        return 1.0
    rounded = np.floor(sequences + 1e-9)
    rounds = np.maximum(np.ceil(rounded / parts - 1e-9), 1.0)
    rounds = rounds + np.maximum(sequences - rounded, 0.0) * (np.ceil((rounded + 1) / parts - 1e-9) - rounds)
    return np.where(np.isfinite(parts), np.maximum(sequences, FEWEST) / (rounds * parts), 1.0)


# Usual share of the data sheet in plain bf16 products: mean of H100, H200, B200, B300, GB200.
REACHED = {"memory": 0.77, "compute": 0.74}


def chip_factor(system: System, kind: str, engine: Engine) -> Number:
    """Return a chip's measured share of its data sheet divided by the usual share.

    Shares were measured with single kernels. The constant `chip_departure` is the exponent: 0 for the ideal engine, which
    reaches the data sheet on every chip.

    Args:
        system: The system.
        kind: "memory" or "compute".
        engine: The engine.

    Returns:
        A factor on the efficiency.
    """
    share = system.chip.reached.get(kind)
    return 1.0 if share is None else (share / REACHED[kind]) ** engine.kernels.chip_departure


def slowness(system: System, engine: Engine, layout: Layout, inputs: Mapping[str, Any]) -> Number:
    """Return the factor on all times of a step, from software and from your own runs.

    Args:
        system: The system.
        engine: The engine.
        layout: Parallel degrees; fields may be arrays.
        inputs: The sizes of `mixed_step` by name.

    Returns:
        A factor; more than 1 is slower.
    """
    software = software_factor(system, engine)
    if engine.anchor is None:
        return software
    return software * engine.anchor.step_factor(OperatingPoint(layout=layout, load=inputs["batch"], context=inputs["context"]))


def software_factor(system: System, engine: Engine) -> Number:
    """Return the factor on an engine's times from its software for a chip.

    Args:
        system: The system.
        engine: The engine.

    Returns:
        A factor; 1 for the ideal engine.
    """
    share = system.chip.reached.get(SOFTWARE, 1.0)
    return np.where(np.asarray(engine.kernels.chip_departure) > 0, 1 / share, 1.0) if has_nonzero(share - 1) else 1.0


KERNELS = (
    "layer", "kernel", "quantised_kernel", "expert_layer", "latent_layer", "state_layer", "selected_layer",
)  # fmt: skip


# Norms with a separate kernel each (vLLM 0.19, models/qwen3.py: q_norm(q), k_norm(k)).
HEAD_NORMS = ("q_norm", "k_norm")


@lru_cache(maxsize=256)
def kernel_counts(
    model: Model, vendor: str = "", peak: tuple[str, ...] = (), rules: tuple[Computed, ...] = ()
) -> dict[str, int]:
    """Return the launches of each kind of kernel in a pass.

    Args:
        model: The model.
        vendor: Vendor of the chip.
        peak: Arithmetic that the chip has.
        rules: Compute formats of the engine.

    Returns:
        Launches by the name of their overhead: "layer" for `seconds_per_layer`.
    """

    quantised = (*QUANTISED, *four_bits(vendor))
    counts = dict.fromkeys(KERNELS, 0)
    for layer, n in model.layers:
        # Products of one input share a kernel.
        products = [op for op in layer.ops if op.flops_per_row and op.rows != "none"]
        kernels = {(op.inputs, op.term, op.rows, op.name in CLOSING): op for op in products}
        counts["layer"] += n
        # Kernels of routed experts are in `ExpertKernel.seconds`.
        kinds = [
            multiplied_in(computed_in(rules, op.format.arithmetic, peak, vendor), peak)
            for op in kernels.values()
            if op.rows != "routed"
        ]
        counts["kernel"] += n * len(kinds)
        counts["kernel"] += n * sum(op.name in HEAD_NORMS for op in layer.ops)
        counts["quantised_kernel"] += n * sum(kind in quantised for kind in kinds)
        counts["expert_layer"] += n * (layer.routed is not None)
        counts["latent_layer"] += n * sum(a.expand_flops > 0 for a in layer.attention)
        counts["state_layer"] += n * sum(a.state_bytes > 0 for a in layer.attention)
        counts["selected_layer"] += n * sum(math.isfinite(a.selected) for a in layer.attention)
    return counts
