"""What a pass asks of one chip: its rows, the FLOPs and bytes of each operator, and how many kernels it launches.

Demand is work, not time. Two kinds of an engine's constants change the work itself and are read here: the imbalance of experts
with the tiles that pad their rows, and the share of activations that goes through memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from steptime.blackboard.expert_activation import expected_maximum, experts_touched
from steptime.hardware.number_formats import peak_rate
from steptime.hardware.software_maturity import SOFTWARE
from steptime.hardware.system import System
from steptime.models.model import Attention, Model, Op, entries_read, pairs
from steptime.number_checks import Number, has_nonzero
from steptime.physics.chip_memory import ACTIVATION_BYTES, cache_ways, expert_slots, state_ways
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
from steptime.physics.layout import Layout
from steptime.physics.moe_kernels import FOUR, Chain, four_bits, kernel_chain, multiplied_in

QUANTISED = ("fp8", "fp4", "int8")  # arithmetic that needs its inputs quantised first
UNPACKED = ("bf16", "fp16")  # arithmetic to which a chip itself widens narrower weights
FEWEST = 1e-6  # sequences, of a pass that has none
NARROW = 5 / 8  # bytes per weight under which unpacking it costs bandwidth


@dataclass(frozen=True, slots=True)
class Work:
    """The rows that one micro-batch brings to one attention group; `everywhere` counts those of all groups together.

    sequences, prompts; decode, prefill, everywhere [rows]; context, tokens, prefix [tokens of a sequence or a prompt].
    """

    sequences: Number
    decode: Number
    prompts: Number
    prefill: Number
    everywhere: Number
    context: Number
    tokens: Number
    prefix: Number

    @property
    def logits(self) -> Number:
        """Rows whose logits are needed: every decoded token, and the last of each prompt."""
        return self.decode + self.prompts


def build_work(inputs: Mapping[str, Any], layout: Layout) -> Work:
    """Return the rows that one micro-batch brings to an attention group; `inputs` are the arguments of `mixed_step`."""
    m, dp = layout.microbatches, layout.dp
    sequences = busiest(inputs["batch"], dp * m)
    group_prompts = busiest(inputs["prompts"], dp) / m
    return Work(
        sequences=sequences,
        decode=sequences * inputs["query"],
        prompts=group_prompts,
        prefill=group_prompts * inputs["tokens"],
        everywhere=(inputs["batch"] * inputs["query"] + inputs["prompts"] * inputs["tokens"]) / m,
        context=inputs["context"] * 1.0,
        tokens=inputs["tokens"] * 1.0,
        prefix=inputs["prefix"] * 1.0,
    )


def busiest(count: Number, groups: Number) -> Number:
    """Sequences or prompts of the group that has most of them, where they are dealt out in turn: at least one of any.

    A mean number between two whole ones is between theirs: a step of one prompt or two does not always read two.

    >>> [float(busiest(count, 4)) for count in (0, 0.5, 3.5, 4, 4.25, 5)], float(busiest(2.5, 1))
    ([0.0, 1.0, 1.0, 1.0, 1.25, 2.0], 2.5)
    """
    rounded = np.floor(count + 1e-9)
    part = np.maximum(count - rounded, 0.0)
    largest: Number = np.ceil(rounded / groups - 1e-9) + 0.0  # never -0
    if has_nonzero(part):
        largest = (1 - part) * largest + part * np.ceil((rounded + 1) / groups - 1e-9)
        largest = np.maximum(largest, np.minimum(np.ceil(count), 1.0))
    return largest


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a pass runs: operators of the layers with how many each stands for, those of the stem, mixers with their counts."""

    layers: tuple[tuple[Op, int], ...]
    stem: tuple[Op, ...]
    mixers: tuple[tuple[Attention, int], ...]


@lru_cache(maxsize=256)
def ledger(model: Model, *, merged: bool) -> Ledger:
    """Return distinct operators, each standing for all that are equal to it.

    The time of an operator is homogeneous: $n$ equal ones take the time of one with $n$ times the weights and FLOPs. Where
    activations cost nothing (`merged`), that holds for all operators of one term, format and split with one ratio of FLOPs
    to weights, too, where the lengths of sums cost nothing either; a format's bytes differ by what its scales take in matrices
    of other shapes, and count as their mean.
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
    """What an operator asks of one chip in one micro-batch.

    flops [FLOP] at a rate of peak [FLOP/s] x efficiency; weights [B], read at memory_efficiency of the bandwidth; activations
    and kv [B].
    """

    flops: Number
    peak: Number
    weights: Number = 0.0
    activations: Number = 0.0
    kv: Number = 0.0
    efficiency: Number = 1.0
    memory_efficiency: Number = 1.0


class Pass:
    """The work of one micro-batch on a chip, and what its operators have in common: each of it is found once.

    rows; logits [rows]; compute, memory: shares of the data sheet that plain products reach.
    """

    def __init__(self, work: Work, system: System, layout: Layout, engine: Engine) -> None:
        self.work, self.system, self.layout, self.engine = work, system, layout, engine
        self.rows, self.logits = work.decode + work.prefill, work.logits
        self.compute = engine.kernels.compute_efficiency * chip_factor(system, "compute", engine)
        self.memory = engine.kernels.memory_efficiency * chip_factor(system, "memory", engine)
        self.fills = has_nonzero(engine.kernels.fill_bytes)
        self._rates: dict[tuple[str, ...], tuple[tuple[str, ...], Any]] = {}

    def rate(self, stored: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
        """Return the arithmetic in which weights of the arithmetic `stored` are multiplied, and its peak rate [FLOP/s]."""
        if stored not in self._rates:
            peak = self.system.chip.peak
            computed = computed_in(self.engine.arithmetic, stored, peak, self.system.chip.vendor)
            self._rates[stored] = computed, peak_rate(peak, computed)
        return self._rates[stored]


def computed_in(rules: Iterable[Computed], stored: tuple[str, ...], peak: Collection[str], vendor: str) -> tuple[str, ...]:
    """Return the arithmetic, best first, in which an engine multiplies weights on a chip of such peak rates.

    AMD's chips that multiply 4 bits and not 6 run what 6 could in 4 (`four_bits`).

    >>> computed_in((), ("fp6", "bf16"), ("fp4", "bf16"), "AMD"), computed_in((), ("fp6", "bf16"), ("fp4", "bf16"), "")
    (('fp4', 'bf16'), ('fp6', 'bf16'))
    """
    computed = select_compute_dtype(rules, WEIGHTS, stored, peak)
    narrow = computed[0] in four_bits(vendor) and computed[0] not in peak and FOUR in peak
    return (FOUR, *computed[1:]) if narrow else computed


def routed_demand(op: Op, context: Pass, *, instances: int = 1) -> Demand:
    """Return what routed experts ask of the busiest chip for one micro-batch; they stand for so many `instances`."""
    work, system, layout, kernels, experts = (
        context.work,
        context.system,
        context.layout,
        context.engine.kernels,
        context.engine.experts,
    )
    computed, peak = context.rate(op.format.arithmetic)
    slots, sharing = expert_slots(op, layout), layout.stage / layout.ep
    copies = slots * layout.ep  # that the tokens choose among
    touched = experts_touched(slots, slots * op.active / copies, work.everywhere, experts.expert_evenness)
    share = np.minimum(touched / slots, 1.0)
    reachable = np.where(work.everywhere < 1, work.everywhere, np.minimum(slots, work.everywhere * op.active))
    touched = np.minimum(expected_maximum(touched, touched * (1 - share), layout.ep, np.maximum(1 - 2 * share, 0.0)), reachable)
    least = np.minimum(work.everywhere, 1.0)  # the busiest chip has at least one
    touched = np.maximum(touched, least)
    rows = work.everywhere * op.active / layout.ep
    distinct_factor = (op.experts - op.active) / np.maximum(op.experts - 1, 1)  # a token's experts differ from one another
    rows = np.maximum(expected_maximum(rows, rows * distinct_factor, layout.ep), least)
    rows = rows * np.where(np.asarray(layout.ep) > 1, experts.expert_imbalance, 1.0)  # one chip has all rows
    rows = np.minimum(rows, work.everywhere * np.minimum(op.active, slots))
    if has_nonzero(experts.expert_tile_rows):
        rows = np.hypot(rows, touched * experts.expert_tile_rows)  # a tile is computed whole
    efficiency, reading = kernels.expert_efficiency, kernels.expert_memory_efficiency
    if op.format.bytes < NARROW and computed[0] in UNPACKED:
        reading = np.minimum(reading, kernels.unpack_rate * op.format.bytes / system.chip.hbm.bandwidth)
    if computed[0] in four_bits(system.chip.vendor) and computed[0] in system.chip.peak:
        efficiency = efficiency * kernels.fp4_efficiency
    if computed[0] == "fp8" and "fp4" in system.chip.peak:
        efficiency = efficiency * kernels.block_efficiency
    if context.fills:
        sums = shortness(op, sharing, instances) / ROW_BYTES.get(computed[0], 2)
        efficiency = efficiency / (1 + kernels.fill_bytes * sums)
    activations: Number = 0.0
    if has_nonzero(kernels.activation_traffic):
        kind = multiplied_in(computed, system.chip.peak)
        moved = moved_values(op, sharing, instances, kernel_chain(op.format.arithmetic[0], kind, system.chip.vendor))
        activations = rows * (moved * ACTIVATION_BYTES * kernels.activation_traffic)
    flops, weights = rows * (op.flops_per_row / sharing), touched * op.weights * (op.format.bytes / sharing)
    return Demand(flops, peak, weights, activations, efficiency=efficiency, memory_efficiency=reading)


ROW_BYTES = {"fp4": 0.5, "fp6": 0.75, "fp8": 1.0, "int8": 1.0}  # of a value that is multiplied; else two


def shortness(op: Op, sharing: Number, instances: int) -> Number:
    """Return the mean of 1 / K over the FLOPs of routed experts, of products that sum K values; 0 where that is not known.

    Products of sums over K bytes reached 1,418 TFLOP/s / (1 + 719 / K) on H800 in FP8, for K from 512 to 16,384 and 4,096 rows,
    grouped ones alike (github.com/deepseek-ai/DeepGEMM, README of 2025-02); writing outputs of two bytes takes 420 of the 719.
    Chips that divide the inner dimension of a block's second product have shorter sums. What is not one product is not known.
    """
    if not op.columns or not op.inputs or not op.flops_per_row:
        return 0.0
    wide, matrices = op.inputs / instances, op.flops_per_row / (2 * op.inputs * op.columns)
    return ((matrices - 1) / wide + sharing / op.columns) / matrices


def moved_values(op: Op, sharing: Number, instances: int, chain: Chain) -> Number:
    """Return the values of 16 bits that go through memory for each row of routed experts, moved by a `chain` of kernels."""
    columns = op.columns * instances
    matrices = op.flops_per_row / (2 * op.inputs * op.columns) if op.inputs and op.columns else 0.0
    return chain.wide * op.inputs + (chain.narrow + chain.per_matrix * matrices) * columns / sharing


def in_blocks(op: Op) -> bool:
    """Whether 8-bit weights of an operator have a scale for each block: as their format says, and experts in any case.

    Tensor cores of chips with 4-bit arithmetic scale 16 or 32 values in a row. Sums over the blocks of 128 x 128 that FP8
    mixtures of experts have are scaled outside of them, by units hardly faster than those of chips before: slower than BF16 on
    B200 (0.58 to 0.97 times as fast; github.com/flashinfer-ai/flashinfer/issues/2146, github.com/NVIDIA/cutlass/issues/2923),
    but 1,500 of 1,979 TFLOP/s on H800 (github.com/deepseek-ai/DeepGEMM/pull/81). Kernels that round such scales to powers of
    two, for the tensor cores, are faster than that on Blackwell too (DeepGEMM, in wide deployments of SGLang).
    """
    return op.rows == "routed" or op.format.block > 0


def attention_demands(a: Attention, work: Work, system: System, layout: Layout, engine: Engine) -> dict[str, Demand]:
    """Return what a token mixer asks of a chip, by phase: "decode" and "prefill"."""
    kv_ways, state_shards = cache_ways(a, layout), state_ways(a, layout)
    latent = a.expand_flops > 0

    def peak(operation: str) -> Number:
        rate: Number = peak_rate(
            system.chip.peak, select_compute_dtype(engine.arithmetic, operation, a.arithmetic, system.chip.peak)
        )
        return rate

    demands = {}
    if has_nonzero(work.decode):
        entries = entries_read(a, work.context)
        flops = work.decode * (a.flops_per_pair_decode * entries / layout.cp + a.state_flops_per_token) / layout.tp
        moved = work.sequences * (entries * a.kv_bytes / kv_ways + 2 * a.state_bytes / state_shards)
        busy = busy_parts(work.sequences, engine.kernels.latent_contexts) if latent else 1.0
        reached = engine.kernels.attention_efficiency * (engine.kernels.latent_efficiency * busy if latent else 1.0)
        rate = peak(LATENT_DECODE if latent else DECODE)
        demands["decode"] = Demand(flops, rate, kv=moved, efficiency=reached, memory_efficiency=busy)
    if has_nonzero(work.prefill):
        flops = work.prompts * (
            a.flops_per_pair_prefill * pairs(a, work.tokens, work.prefix)
            + a.expand_flops * work.prefix
            + a.state_flops_per_token * work.tokens
        )
        window_tokens = np.minimum(work.prefix, a.window * a.stride) + work.tokens
        moved = work.prompts * (window_tokens / a.stride * a.kv_bytes / kv_ways + 2 * a.state_bytes / state_shards)
        reached = engine.kernels.attention_efficiency
        rate = peak(LATENT_PREFILL if latent else PREFILL)
        demands["prefill"] = Demand(flops / layout.group, rate, kv=moved, efficiency=reached)
    return demands


def busy_parts(sequences: Number, parts: Number) -> Number:
    """Return the share of a chip's parts that work, where each of `parts` takes a whole sequence at a time.

    A mean number of sequences between two whole ones takes rounds between theirs. One where `parts` is infinite: contexts are
    split among all of the chip.

    >>> [float(busy_parts(sequences, 76)) for sequences in (19, 76, 114)], busy_parts(19, np.inf)
    ([0.25, 1.0, 0.75], 1.0)
    """
    if not np.any(np.isfinite(parts)):
        return 1.0
    rounded = np.floor(sequences + 1e-9)
    rounds = np.maximum(np.ceil(rounded / parts - 1e-9), 1.0)
    rounds = rounds + np.maximum(sequences - rounded, 0.0) * (np.ceil((rounded + 1) / parts - 1e-9) - rounds)
    return np.where(np.isfinite(parts), np.maximum(sequences, FEWEST) / (rounds * parts), 1.0)


REACHED = {"memory": 0.77, "compute": 0.74}  # of the data sheet, by plain bf16 products: mean of H100, H200, B200, B300, GB200


def chip_factor(system: System, kind: str, engine: Engine) -> Number:
    """Return the factor by which a chip's share of its data sheet ("memory" or "compute") departs from the usual share.

    Shares are those of kernels measured alone. The constant `chip_departure` is the exponent with which the departure shows in
    an engine: 0 for the ideal, which reaches the data sheet on every chip.
    """
    share = system.chip.reached.get(kind)
    return 1.0 if share is None else (share / REACHED[kind]) ** engine.kernels.chip_departure


def slowness(system: System, engine: Engine) -> Number:
    """Return the factor on all of a step's times: for an engine's software for a chip, and what runs of one's own say."""
    anchored = 1.0 if engine.anchor is None else engine.anchor.step
    return software_factor(system, engine) * anchored


def software_factor(system: System, engine: Engine) -> Number:
    """Return the factor on an engine's times for how far its software for a chip is: 1 for the ideal."""
    share = system.chip.reached.get(SOFTWARE, 1.0)
    return np.where(np.asarray(engine.kernels.chip_departure) > 0, 1 / share, 1.0) if np.any(np.asarray(share) != 1) else 1.0


KERNELS = (
    "layer", "kernel", "quantised_kernel", "expert_layer", "attention_layer", "latent_layer", "state_layer", "selected_layer",
)  # fmt: skip


HEAD_NORMS = ("q_norm", "k_norm")  # each a kernel of its own (vLLM 0.19, models/qwen3.py: q_norm(q), k_norm(k))
CLOSING = ("o_proj", "out_proj", "down_proj")
"""Products of what others of their block make: they share no input with those, however wide it is."""


SECOND = (*CLOSING, "wo_b", "output_linear", "linear_out")  # whose inputs chips divide; of these some have inputs of their own


def _reads(op: Op) -> tuple[object, ...]:
    """Return what tells the input of a product apart: those that share one run as one kernel."""
    return op.inputs, op.term, op.rows, op.name in CLOSING


@lru_cache(maxsize=256)
def kernel_counts(
    model: Model, vendor: str = "", peak: tuple[str, ...] = (), rules: tuple[Computed, ...] = ()
) -> dict[str, int]:
    """Return how often a pass launches each kind of kernel, by the name of its overhead: seconds_per_layer counts "layer".

    vendor: who made the chip; peak: the arithmetic that it has; rules: in which an engine multiplies formats.
    """

    def launches(op: Op) -> tuple[int, int]:
        """Kernels that a step launches, those of `seconds_per_expert_layer` left out, and those that quantise inputs."""
        stored = op.format.arithmetic
        kind = multiplied_in(computed_in(rules, stored, peak, vendor), peak)
        chain = kernel_chain(stored[0], kind, vendor)
        quantises = kind in (*QUANTISED, *four_bits(vendor))
        if op.rows == "routed":
            return chain.extra_kernels, chain.quantising * quantises
        return 1, int(quantises)

    counts = dict.fromkeys(KERNELS, 0)
    for layer, n in model.layers:
        kernels = {_reads(op): op for op in layer.ops if op.flops_per_row and op.rows != "none"}
        counts["layer"] += n
        launched = [launches(op) for op in kernels.values()]
        counts["kernel"] += n * sum(count for count, _ in launched)
        counts["kernel"] += n * sum(op.name in HEAD_NORMS for op in layer.ops)
        counts["quantised_kernel"] += n * sum(quantising for _, quantising in launched)
        counts["expert_layer"] += n * (layer.routed is not None)
        counts["attention_layer"] += n * sum(a.state_bytes == 0 for a in layer.attention)
        counts["latent_layer"] += n * sum(a.expand_flops > 0 for a in layer.attention)
        counts["state_layer"] += n * sum(a.state_bytes > 0 for a in layer.attention)
        counts["selected_layer"] += n * sum(math.isfinite(a.selected) for a in layer.attention)
    return counts
