r"""Operator time: the roofline of operators on one chip, and who waits for what.

An ideal chip computes and streams memory at once: $t = \max(F / P, Q / W)$ for $F$ FLOPs at peak rate $P$ and $Q$ bytes at
bandwidth $W$. A real chip overlaps them imperfectly, which a $p$-norm of the two times describes: $p = \infty$ is ideal, $p
= 1$ is no overlap.

References:
    Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from steptime.hardware.number_formats import peak_rate
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number, has_nonzero
from steptime.physics.engine import Engine, constant, launch_factor, launches_kernels
from steptime.physics.gemm_work import Products, collect_products, demand_row, products_demand
from steptime.physics.lora_adapters import ARITHMETIC, TERM, adapter_kernels, adapter_products
from steptime.physics.op_work import Demand, Pass, attention_demands, kernel_counts, ledger, routed_demand
from steptime.physics.time_ledger import Clock, Entry, accumulate

# Replaces 0 as a divisor.
TINY = 1e-300
# Twice the norms whose powers are products and a square root.
HALVES = range(2, 9)

# Overhead of an engine in words, by the unit that it is counted in.
OVERHEADS = {
    "layer": "small kernels per layer",
    "kernel": "launch per kernel",
    "quantised_kernel": "quantized input per kernel",
    "expert_layer": "routing per expert layer",
    "latent_layer": "latent attention per layer",
    "state_layer": "recurrent state per layer",
    "selected_layer": "index and selection per layer",
}


def compute_time(flops: Number, peak: Number, efficiency: Number = 1.0) -> Number:
    """Return the time of arithmetic.

    Args:
        flops: FLOP.
        peak: FLOP/s.
        efficiency: Share of peak.

    Returns:
        Seconds.

    >>> compute_time(2 * 37e9, 5e15)
    1.48e-05
    """
    return flops / (peak * efficiency)


def memory_time(bytes_moved: Number, bandwidth: Number, efficiency: Number = 1.0) -> Number:
    """Return the time of memory traffic.

    Args:
        bytes_moved: Bytes.
        bandwidth: Bytes per second.
        efficiency: Share of bandwidth.

    Returns:
        Seconds.

    >>> memory_time(671e9, 72 * 8e12)
    0.0011649305555555556
    """
    return bytes_moved / (bandwidth * efficiency)


def overlap(compute: Number, memory: Number, norm: Number = np.inf) -> Number:
    r"""Return the time of an operator whose arithmetic and traffic overlap.

    The time is $(a^p + b^p)^{1/p}$, which is the larger of the two at $p = \infty$. For every norm >= 1 it is between
    max(compute, memory) and compute + memory.

    Args:
        compute: Seconds of arithmetic.
        memory: Seconds of memory traffic.
        norm: p of the p-norm.

    Returns:
        Seconds.

    >>> float(overlap(3.0, 4.0)), float(overlap(3.0, 4.0, 2)), float(overlap(3.0, 4.0, 1))
    (4.0, 5.0, 7.0)
    """
    larger = np.maximum(compute, memory)
    if np.ndim(norm) == 0 and norm == np.inf:
        return larger
    seconds: Number = larger * root(1 + smaller_power(compute, memory, norm), norm)
    return seconds


def smaller_power(compute: Number, memory: Number, norm: Number) -> Number:
    """Return the ratio of the smaller to the larger time, to the power `norm`.

    This is the part that the smaller time adds in `overlap`.

    Args:
        compute: Seconds of arithmetic.
        memory: Seconds of memory traffic.
        norm: p of the p-norm.

    Returns:
        A number from 0 to 1.

    >>> float(smaller_power(1.0, 2.0, 4)), float(smaller_power(0.0, 0.0, 4))
    (0.0625, 0.0)
    """
    larger = np.maximum(compute, memory)
    ratio = np.minimum(compute, memory) / np.maximum(larger, TINY)
    halves = 2 * norm if np.ndim(norm) == 0 else np.nan
    if halves not in HALVES:
        return ratio**norm
    # Products are ten times faster than powers.
    power: Number = ratio * 1.0 if halves % 2 == 0 else ratio * np.sqrt(ratio)
    for _ in range(int(norm) - 1):
        power = power * ratio
    return power


def root(value: Number, norm: Number) -> Number:
    """Return the `norm`-th root of a number.

    Args:
        value: A number above 0.
        norm: p of the p-norm.

    Returns:
        The root.

    >>> round(float(root(16.0, 4)), 12), round(float(root(27.0, 3)), 12)
    (2.0, 3.0)
    """
    # exp and log are twice as fast as a power.
    value_root: Number = value if np.ndim(norm) == 0 and norm == 1 else np.exp(np.log(value) / norm)
    return value_root


# Values per block: about as many as the cache of one core holds.
AT_ONCE = 1 << 15


@dataclass(frozen=True, slots=True)
class Operator:
    """`count` times the demand of an operator, which has `instances` in the model."""

    term: str
    name: str
    demand: Demand
    count: Number = 1
    instances: Number = 1

    def scaled(self, amount: Number) -> Number:
        """Return the amount of all instances from the amount of one.

        Args:
            amount: FLOP or bytes of one.

        Returns:
            FLOP or bytes of `count`.
        """
        return amount if type(self.count) is int and self.count == 1 else self.count * amount


def run_operators(layers: Clock, stem: Clock, model: Model, context: Pass, *, merged: bool) -> None:
    """Add the operators, token mixers and overheads of all layers to a clock, and embedding, head and host work to another.

    Args:
        layers: Sums of seconds of the layers, which this function increases.
        stem: The same of embedding and head.
        model: The model.
        context: Work of a micro-batch on a chip.
        merged: Whether operators that cost the same together are joined.
    """
    system, engine, chip = context.system, context.engine, context.system.chip
    totals, overheads = ledger(model, merged=merged), engine.overheads
    launch = launch_factor(engine, chip)
    products = collect_products(model, merged=merged, vendor=chip.vendor, peak=tuple(chip.peak), rules=engine.arithmetic)
    run_products(layers, stem, products, context)
    operators = []
    for op, n in totals.layers:
        if op.rows == "routed":
            routed = routed_demand(op, context, instances=n)
            operators.append(Operator(op.term, op.name, routed, instances=n))
            if has_nonzero(routed.seconds):
                layers.wait("calls of expert kernels", n, launch * routed.seconds)
    for mixer, n in totals.mixers:
        phases = attention_demands(mixer, context.work, system, context.layout, engine).items()
        calls = _sum([demand.seconds for _, demand in phases]) if phases else 0.0
        if has_nonzero(calls):
            layers.wait("calls of attention kernels", n, launch * calls)
        operators += [Operator("attention", f"{mixer.name}, {phase}", demand, n, n) for phase, demand in phases]
    if model.adapters is not None:
        operators += adapter_operators(model, context)
        launches = adapter_kernels(model, engine.kernel_engine)
        if has_nonzero(overheads.seconds_per_kernel):
            layers.wait("launch per kernel of adapters", launches, launch * overheads.seconds_per_kernel)
    run(layers, operators, system, engine)

    # Launch overheads do not overlap with operators.
    for kernel, times in kernel_counts(model, chip.vendor, tuple(chip.peak), engine.arithmetic).items():
        launch_seconds = constant(engine, f"seconds_per_{kernel}")
        if times and has_nonzero(launch_seconds):
            layers.wait(OVERHEADS[kernel], times, launch * launch_seconds)

    if has_nonzero(overheads.seconds_per_step):
        stem.wait("host work per step", 1, overheads.seconds_per_step)
    if has_nonzero(overheads.top_p_share):
        wait_for_sampling(stem, model.vocabulary, context)
    if has_nonzero(overheads.seconds_per_sequence):
        stem.wait("sampling and host work per token", context.work.decode, overheads.seconds_per_sequence)


def adapter_operators(model: Model, context: Pass) -> list[Operator]:
    """Return the grouped products of LoRA adapters, with the rates of plain 16-bit products.

    Args:
        model: A model with adapters.
        context: Work of a micro-batch on a chip.

    Returns:
        Operators of one micro-batch.
    """
    work, peak = context.work, peak_rate(context.system.chip.peak, ARITHMETIC)
    products = adapter_products(
        model, context.layout.group, rows=context.rows, requests=work.sequences + work.prompts,
        activation_traffic=context.engine.kernels.activation_traffic,
    )  # fmt: skip
    return [
        Operator(
            TERM,
            product.name,
            Demand(
                product.flops, peak, product.weights, product.activations, efficiency=context.compute,
                memory_efficiency=context.memory,
            ),
            instances=product.instances,
        )
        for product in products
    ]  # fmt: skip


def wait_for_launches(layers: Clock, links: Clock, model: Model, context: Pass) -> None:
    r"""Add the time for which the chips wait for a host that launches kernels one by one to a clock.

    Decode steps run as CUDA graphs. A step with prompts has another size each time. Engines launch each of its kernels, above
    the number of tokens for which they have piecewise graphs. The chips work while the host launches:
    $t = \max(t_{chips}, \sum_i n_i \tau_i)$, with $n_i$ layers, products and layers with latent attention.

    Args:
        layers: Sums of seconds of the layers, which this function increases.
        links: Sums of seconds of collectives.
        model: The model.
        context: Work of a micro-batch on a chip.
    """
    engine, chip, prefill = context.engine, context.system.chip, np.asarray(context.work.prefill)
    if launches_kernels(engine) and has_nonzero(prefill):
        counts = kernel_counts(model, chip.vendor, tuple(chip.peak), engine.arithmetic)
        costs = engine.overheads
        seconds = counts["layer"] * costs.seconds_per_launched_layer + counts["kernel"] * costs.seconds_per_launched_kernel
        seconds = seconds + counts["latent_layer"] * costs.seconds_per_launched_latent_layer
        layers.host = seconds * ((prefill > 0) & (prefill + context.work.decode > costs.graph_tokens))
        missing = np.maximum(layers.host - layers.total - links.total, 0.0)
        if has_nonzero(missing):
            waits, count = {"overhead": missing}, counts["layer"]
            layers.add(waits, waits, {}, name="launches of kernels by the host", count=count, seconds_each=missing / count)


def wait_for_sampling(clock: Clock, vocabulary: Number, context: Pass) -> None:
    """Add the time that top-p takes beyond greedy sampling to a clock.

    Each rank of a replica draws the tokens of its data-parallel rank from the gathered logits, so that tensor parallelism does
    not divide this time.

    Args:
        clock: Sums of seconds, which this function increases.
        vocabulary: Entries of the vocabulary.
        context: Work of a micro-batch on a chip.
    """
    costs = context.engine.overheads
    share = costs.top_p_share
    seconds = share * (costs.top_p_seconds_per_entry * vocabulary + costs.top_p_seconds_per_sequence)
    if has_nonzero(seconds):
        clock.wait("sampling with top-p", context.work.decode, seconds)
    if has_nonzero(costs.top_p_seconds_per_step):
        clock.wait("host work of sampling per step", 1, share * costs.top_p_seconds_per_step)


def run_products(layers: Clock, stem: Clock, products: Products, context: Pass) -> None:
    """Add products that run one after another to the clocks of layers, and of embedding and head.

    Products are rows of one array, as many at once as fit in the cache of a core.

    Args:
        layers: Sums of seconds of the layers, which this function increases.
        stem: The same of embedding and head.
        products: Products as columns.
        context: Work of a micro-batch on a chip.
    """
    norm, bandwidth = context.engine.kernels.roofline_norm, context.system.chip.hbm.bandwidth
    points = math.prod(np.broadcast_shapes(np.shape(norm), np.shape(context.rows), np.shape(context.layout.group)))
    for part in products.parts(max(1, AT_ONCE // max(1, points))):
        if not part.ops:
            continue
        demand, axes = products_demand(part, context)
        compute: Array = np.asarray(compute_time(demand.flops, demand.peak, demand.efficiency))
        traffic = {"weights": memory_time(demand.weights, bandwidth, demand.memory_efficiency)}
        if has_nonzero(demand.activations):
            traffic["activations"] = memory_time(demand.activations, bandwidth, context.engine.kernels.memory_efficiency)
        memory: Array = np.asarray(_sum([*traffic.values()]))
        blame: dict[str, Array] = {}
        if not layers.has_resources:
            seconds = np.asarray(overlap(compute, memory, norm))
        else:
            # The part of traffic is divided by kind of data in proportion to its seconds.
            seconds, to_compute, to_memory = (np.asarray(array) for array in overlapped(compute, memory, norm))
            blame = {"compute": to_compute, "weights": to_memory}
            if len(traffic) > 1:
                to_memory = to_memory / np.maximum(memory, TINY)
                blame |= {resource: to_memory * delivered for resource, delivered in traffic.items()}
        for clock, rows in ((layers, range(part.stem)), (stem, range(part.stem, len(part.ops)))):
            if not rows:
                continue
            section = slice(rows.start, rows.stop)
            has_parts = clock.has_terms or clock.has_resources
            by_term: dict[str, Any] = {} if has_parts else {"": section}
            for row in rows if has_parts else ():
                by_term.setdefault(part.ops[row][0].term, []).append(row)
            clock.add(
                {term: _sum(seconds[of_term]) for term, of_term in by_term.items()},
                {resource: _sum(values[section]) for resource, values in blame.items()},
                {"compute": _sum(compute[section]), "memory": _sum(memory[section])},
            )
            if clock.explained:
                compute, memory = np.broadcast_arrays(compute, memory)
                clock.entries += [
                    Entry(
                        term=op.term, name=op.name, seconds=seconds[row], count=n, compute=compute[row], memory=memory[row],
                        demand=demand_row(demand, row, axes),
                    )
                    for row in rows for op, n in [part.ops[row]]
                ]  # fmt: skip


def run(clock: Clock, operators: Sequence[Operator], system: System, engine: Engine) -> None:
    """Add operators that run one after another to a clock.

    Args:
        clock: Sums of seconds, which this function increases.
        operators: The operators, whose times are rows of one array.
        system: The system.
        engine: The engine.
    """
    norm = engine.kernels.roofline_norm
    compute = [
        compute_time(operator.scaled(operator.demand.flops), operator.demand.peak, operator.demand.efficiency)
        for operator in operators
    ]
    traffic = [*map(partial(_traffic, system=system), operators)]
    memory = [_sum(list(parts.values())) for parts in traffic]
    shape = np.broadcast_shapes(np.shape(norm), *map(np.shape, compute), *map(np.shape, memory))
    rows_at_once = max(1, AT_ONCE // max(1, math.prod(shape)))
    for first in range(0, len(operators), rows_at_once):
        rows = slice(first, first + rows_at_once)
        to_compute, to_memory = _rows(compute[rows], shape), _rows(memory[rows], shape)
        busy = {"compute": _sum(to_compute), "memory": _sum(to_memory)}
        terms: dict[str, Number] = {}
        blame: dict[str, Number] = {}
        if not clock.has_resources:
            seconds = np.asarray(overlap(to_compute, to_memory, norm))
        else:
            # The part of traffic is divided by kind of data in proportion to its seconds.
            seconds, waits_compute, waits_memory = map(np.asarray, overlapped(to_compute, to_memory, norm))
            blame["compute"] = _sum(waits_compute)
            for row, delivered in enumerate(traffic[rows]):
                for resource, part in delivered.items():
                    share = part / np.maximum(to_memory[row], TINY) if len(delivered) > 1 else 1.0
                    accumulate(blame, {resource: waits_memory[row]}, share)
        if clock.has_terms or clock.has_resources:
            for row, operator in enumerate(operators[rows]):
                accumulate(terms, {operator.term: seconds[row]})
        else:
            terms[""] = _sum(seconds)
        clock.add(terms, blame, busy)
        if clock.explained:
            clock.entries += [
                Entry(
                    term=operator.term, name=operator.name, seconds=seconds[row], count=operator.instances,
                    compute=to_compute[row], memory=to_memory[row], demand=operator.demand, times=operator.count,
                )
                for row, operator in enumerate(operators[rows])
            ]  # fmt: skip


def _rows(values: Sequence[Number], shape: tuple[int, ...]) -> Array:
    if len(values) == 1:
        only = np.asarray(values[0])
        return only.reshape(1, *[1] * (len(shape) - only.ndim), *only.shape)
    rows = np.empty((len(values), *shape))
    for row, value in enumerate(values):
        rows[row] = value
    return rows


def _sum(parts: Sequence[Number] | Array) -> Number:
    """Return the sum of numbers, or of the rows of an array; a single one unchanged."""
    if len(parts) == 1:
        only: Number = parts[0]
        return only
    return np.add.reduce(parts) if isinstance(parts, np.ndarray) else sum(parts[1:], parts[0])


def _traffic(operator: Operator, system: System) -> dict[str, Number]:
    """Return the seconds of memory traffic of an operator, by kind of data."""
    demand, bandwidth = operator.demand, system.chip.hbm.bandwidth
    if has_nonzero(demand.kv):
        traffic = {"kv": memory_time(operator.scaled(demand.kv), bandwidth, demand.memory_efficiency)}
        if has_nonzero(demand.activations):
            traffic["activations"] = memory_time(operator.scaled(demand.activations), bandwidth, demand.memory_efficiency)
        return traffic
    traffic = {"weights": memory_time(operator.scaled(demand.weights), bandwidth, demand.memory_efficiency)}
    if has_nonzero(demand.activations):
        traffic["activations"] = memory_time(operator.scaled(demand.activations), bandwidth)
    return traffic


def overlapped(compute: Number, memory: Number, norm: Number) -> tuple[Number, Number, Number]:
    """Return the seconds of an operator, and the parts of arithmetic and of traffic.

    Args:
        compute: Seconds of arithmetic.
        memory: Seconds of memory traffic.
        norm: p of the p-norm that joins them.

    Returns:
        Total seconds, the part of arithmetic, and the part of traffic.

    >>> [float(x) for x in overlapped(3.0, 4.0, np.inf)], [round(float(x), 3) for x in overlapped(3.0, 4.0, 1)]
    ([4.0, 0.0, 4.0], [7.0, 3.0, 4.0])
    """
    larger = np.maximum(compute, memory)
    if np.ndim(norm) == 0 and norm == np.inf:
        seconds, to_memory = larger, memory * (memory > compute)
    else:
        # The formula of `roofline.overlap`; the powers are reused for the shares.
        smaller = smaller_power(compute, memory, norm)
        both = 1 + smaller
        seconds = larger * root(both, norm)
        to_memory = seconds * (smaller + (memory > compute) * (1 - smaller)) / both
    return seconds, seconds - to_memory, to_memory
