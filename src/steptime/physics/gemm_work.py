"""GEMM work: the demand of all products with weights, one row per GEMM.

For a few points, a step costs mostly Python overhead per product. All products share the same formulas, so that their
figures are columns, and each formula is evaluated once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial

import numpy as np

from steptime.hardware.number_formats import peak_rate
from steptime.models.model import Model, Op
from steptime.number_checks import Array, Number, has_nonzero
from steptime.physics.chip_memory import ACTIVATION_BYTES
from steptime.physics.compute_dtype import Computed
from steptime.physics.layout import SECOND, shard_count
from steptime.physics.op_work import (
    INTEGER,
    NARROW,
    ROW_BYTES,
    UNPACKED,
    Demand,
    Pass,
    computed_in,
    four_bits,
    in_blocks,
    ledger,
)

# Relative tolerance for FLOPs that equal 2 x inputs x outputs, which identifies a single GEMM.
EXACT = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Products with weights as columns: arrays of shape (products,).

    ops: Operators, each with the number of instances in the model for which it stands.
    stem: Position of the first product of embedding and head, which follow those of the layers.
    flags: Columns of booleans that are true for some product.
    computed, splits: Distinct arithmetic of the products, best first, and distinct maximum numbers of shards.
    rate, split: Index of each product into `computed` and `splits`.
    flops: FLOP per row.
    weights: Bytes.
    unsharded_values, sharded_values: Values that a row reads and writes on every chip, and values divided among
    chips.
    short: Mean of 1 / K over the sums of a product, per byte of a value [1/B]; 0 where unknown.
    second: Whether chips divide the sums (the inner dimension).
    narrow: Whether the weights cost bandwidth to unpack.
    unpacked: Bytes per weight that the chip itself unpacks; infinite where it does not.
    four, eight, blocked, integer: Whether the product runs in 4 bits, in 8 bits, in 8 bits with block scales, and in int8.
    logits: Whether the product runs only on rows with logits.
    """

    ops: tuple[tuple[Op, int], ...]
    stem: int
    flags: frozenset[str]
    computed: tuple[tuple[str, ...], ...]
    splits: tuple[float, ...]
    rate: Array
    split: Array
    flops: Array
    weights: Array
    unsharded_values: Array
    sharded_values: Array
    short: Array
    second: Array
    narrow: Array
    unpacked: Array
    four: Array
    eight: Array
    blocked: Array
    integer: Array
    logits: Array

    def parts(self, largest: int) -> Iterator[Products]:
        """Yield the products in parts of at most `largest` products.

        Args:
            largest: Maximum number of products per part.

        Yields:
            Products with a slice of all columns.
        """
        if largest >= len(self.ops):
            yield self
            return
        for first in range(0, len(self.ops), largest):
            rows_slice = slice(first, first + largest)
            columns = {name: getattr(self, name)[rows_slice] for name in COLUMNS}
            yield replace(self, ops=self.ops[rows_slice], stem=min(max(self.stem - first, 0), largest), **columns)


COLUMNS = tuple(f.name for f in fields(Products) if f.name not in ("ops", "stem", "flags", "computed", "splits"))


@lru_cache(maxsize=256)
def collect_products(
    model: Model, *, merged: bool, vendor: str, peak: tuple[str, ...], rules: tuple[Computed, ...]
) -> Products:
    """Return the products of a model on a chip.

    Args:
        model: The model.
        merged: Whether operators that cost the same together are joined.
        vendor: Vendor of the chip.
        peak: Arithmetic that the chip has.
        rules: Compute formats of the engine.

    Returns:
        The products as columns.
    """
    totals = ledger(model, merged=merged)
    # Routed experts have other weights for each row, and operators without rows have no products.
    layers, stem = (
        [(op, n) for op, n in ops if op.rows not in ("none", "routed")]
        for ops in (totals.layers, [(op, 1) for op in totals.stem])
    )
    return stacked_products(layers, vendor, peak, rules, stem)


def stacked_products(
    layers: Iterable[tuple[Op, int]],
    vendor: str,
    peak: Collection[str],
    rules: Iterable[Computed],
    stem: Iterable[tuple[Op, int]] = (),
) -> Products:
    """Return products as columns.

    Args:
        layers: Operators of layers, each with its number of instances.
        vendor: Vendor of the chip.
        peak: Arithmetic that the chip has.
        rules: Compute formats of the engine.
        stem: Operators of embedding and head.

    Returns:
        The products as columns.
    """
    # Distinct values are stored once and found by position: a model has dozens of products and few formats.
    layers, rules = tuple(layers), tuple(rules)
    ops = (*layers, *stem)
    arithmetic = [computed_in(rules, op.format.arithmetic, peak, vendor) for op, _ in ops]
    computed, kinds = tuple(dict.fromkeys(arithmetic)), [best_first[0] for best_first in arithmetic]
    # The rows of a lookup table can go to any chip of a data-parallel rank.
    shards = [math.inf if op.rows == "lookup" else 1.0 if op.split == "replicated" else op.split_limit for op, _ in ops]
    splits = tuple(dict.fromkeys(shards))

    # Inputs and outputs of some operators are not those of one matrix.
    sizes = [2 * op.inputs * op.outputs for op, _ in ops]
    is_matrix = [size and abs(size - n * op.flops_per_row) <= EXACT * size for size, (op, n) in zip(sizes, ops, strict=True)]
    blocked = np.array(
        [kind == "fp8" and "fp4" in peak and in_blocks(op) for (op, _), kind in zip(ops, kinds, strict=True)], dtype=bool
    )
    columns: dict[str, Array] = {
        "second": np.array([op.name in SECOND for op, _ in ops]),
        "narrow": np.array([op.format.bytes < NARROW for op, _ in ops]),
        "four": np.array([kind in four_bits(vendor) and kind in peak for kind in kinds]),
        "eight": np.array([kind == "fp8" and kind in peak for kind in kinds], dtype=bool) & ~blocked,
        "blocked": blocked,
        "integer": np.array([kind == INTEGER and kind in peak for kind in kinds]),
        "logits": np.array([op.rows == "outputs" for op, _ in ops]),
    }
    return Products(
        ops=ops,
        stem=len(layers),
        flags=frozenset(name for name, column in columns.items() if has_nonzero(column)),
        computed=computed,
        splits=splits,
        rate=np.array([*map(computed.index, arithmetic)]),
        split=np.array([*map(splits.index, shards)]),
        flops=np.array([0.0 if op.rows == "lookup" else op.flops_per_row for op, _ in ops]),
        weights=np.array([0.0 if op.rows == "lookup" else op.weights * op.format.bytes for op, _ in ops]),
        unsharded_values=np.array(
            [0.0 if op.rows == "lookup" else op.outputs if op.name in SECOND else op.inputs for op, _ in ops]
        ),
        sharded_values=np.array([op.inputs if op.name in SECOND and op.rows != "lookup" else op.outputs for op, _ in ops]),
        short=np.array(
            [
                n / op.inputs / ROW_BYTES.get(kind, 2) if has_size else 0.0
                for (op, n), kind, has_size in zip(ops, kinds, is_matrix, strict=True)
            ]
        ),
        unpacked=np.array(
            [
                op.format.bytes if op.format.bytes < NARROW and kind in UNPACKED else math.inf
                for (op, _), kind in zip(ops, kinds, strict=True)
            ]
        ),
        **columns,
    )


def products_demand(products: Products, context: Pass) -> tuple[Demand, int]:
    """Return the demand of products on the busiest chip for one micro-batch.

    A figure that differs from product to product has one more axis, the first, with one row per product.

    Args:
        products: Products as columns.
        context: Work of a micro-batch on a chip.

    Returns:
        The demand, and the number of axes of all inputs on which the time depends.
    """
    chip, kernels = context.system.chip, context.engine.kernels
    bandwidth = chip.hbm.bandwidth
    peaks = [*map(partial(peak_rate, chip.peak), products.computed)]
    shards = [*map(partial(shard_count, chips=context.layout.group), products.splits)]
    constants = (
        kernels.fp4_efficiency, kernels.block_efficiency, kernels.fill_bytes, kernels.narrow_efficiency, kernels.unpack_rate,
        kernels.activation_traffic, kernels.roofline_norm, kernels.integer_efficiency, kernels.eight_bit_efficiency,
    )  # fmt: skip
    inputs = (context.rows, context.logits, context.compute, context.memory, bandwidth, *constants, *peaks, *shards)
    axes = max(0 if type(value) is float else np.ndim(value) for value in inputs)

    column = (-1, *(1,) * axes)

    def spread(values: list[Number], which: Array) -> Number:
        """Return one value per product from the distinct values."""
        if len(values) == 1:
            return values[0]
        shape = np.broadcast_shapes(*map(np.shape, values))
        rows = np.empty((len(values), *(1,) * (axes - len(shape)), *shape))
        for row, value in enumerate(values):
            rows[row] = value
        return rows[which]

    # Neutral terms are skipped: with few points, each numpy call counts.
    sharing = spread(shards, products.split)
    rows = context.rows
    if "logits" in products.flags:
        rows = np.where(products.logits.reshape(column), context.logits, context.rows)
    efficiency, reading = context.compute, context.memory
    if "four" in products.flags:
        efficiency = np.where(products.four.reshape(column), efficiency * kernels.fp4_efficiency, efficiency)
    if "eight" in products.flags and has_nonzero(kernels.eight_bit_efficiency - 1.0):
        efficiency = np.where(products.eight.reshape(column), efficiency * kernels.eight_bit_efficiency, efficiency)
    if "blocked" in products.flags:
        efficiency = np.where(products.blocked.reshape(column), efficiency * kernels.block_efficiency, efficiency)
    if "integer" in products.flags and has_nonzero(kernels.integer_efficiency - 1.0):
        efficiency = np.where(products.integer.reshape(column), efficiency * kernels.integer_efficiency, efficiency)
    # Short sums spend a larger share of their time in fill and drain.
    if context.fills:
        sums = np.where(products.second.reshape(column), sharing, 1.0) * products.short.reshape(column)
        efficiency = efficiency / (1 + kernels.fill_bytes * sums)
    if "narrow" in products.flags:
        reading = np.where(products.narrow.reshape(column), reading * kernels.narrow_efficiency, reading)
    if np.min(products.unpacked, initial=np.inf) < np.inf:
        reading = np.minimum(reading, kernels.unpack_rate * products.unpacked.reshape(column) / bandwidth)
    activations: Number = 0.0
    if has_nonzero(kernels.activation_traffic):
        moved = products.sharded_values.reshape(column) / sharing + products.unsharded_values.reshape(column)
        activations = rows * (moved * (ACTIVATION_BYTES * kernels.activation_traffic))
    demand = Demand(
        rows * (products.flops.reshape(column) / sharing),
        spread(peaks, products.rate),
        products.weights.reshape(column) / sharing,
        activations,
        efficiency=efficiency,
        memory_efficiency=reading,
    )
    return demand, axes


def demand_row(demand: Demand, place: int, axes: int) -> Demand:
    """Return the demand of one of several products.

    Args:
        demand: Demand of several products.
        place: Position of the product.
        axes: Number of axes of the inputs; a figure with more axes has one row per product.

    Returns:
        The demand of that product.
    """
    figures = {f.name: getattr(demand, f.name) for f in fields(Demand)}
    return Demand(**{name: value[place] if np.ndim(value) > axes else value for name, value in figures.items()})
