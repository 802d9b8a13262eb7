"""Products with the weights of a model, all of them at once: what they ask of a chip, as arrays with a row for each.

A step of a few points costs as long as it takes to say what is to be done. What is said of one product holds for all, so that
their figures are columns, and a formula is evaluated once for them all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from steptime.models.model import Model, Op
from steptime.number_checks import Array, Number, has_nonzero
from steptime.physics.chip_memory import ACTIVATION_BYTES
from steptime.physics.compute_dtype import Computed
from steptime.physics.layout import shard_count
from steptime.physics.moe_kernels import four_bits
from steptime.physics.op_work import NARROW, ROW_BYTES, SECOND, UNPACKED, Demand, Pass, computed_in, in_blocks, ledger

EXACT = 1e-6  # how near the FLOPs of one product are to twice its inputs times its outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Products as columns, arrays of shape (products,): each `op` stands for so many `instances`.

    stored, splits: each arithmetic of weights, and each number of parts that they are cut into at most; `rate` and `split` say
    which a product has. flops [FLOP per row];
    weights [B]; a row reads and writes `whole` values on every chip and `shared` ones divided among them; short: mean of 1 / K
    of its sums over the bytes of a value [1/B], 0 where that is not known; `second`: whose sums chips divide. narrow: whose
    weights cost bandwidth to unpack, `unpacked`: by the chip itself, of so many bytes each [B], inf where not. four, blocked:
    multiplied in four bits, and in blocks of eight. logits: on rows of logits alone.
    """

    ops: tuple[tuple[Op, int], ...]
    stored: tuple[tuple[str, ...], ...]
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
    blocked: Array
    logits: Array

    def parts(self, largest: int) -> Iterator[Products]:
        """Yield the products in parts of at most so many."""
        if largest >= len(self.ops):
            yield self
            return
        for first in range(0, len(self.ops), largest):
            rows_slice = slice(first, first + largest)
            columns = {name: getattr(self, name)[rows_slice] for name in COLUMNS}
            yield replace(self, ops=self.ops[rows_slice], **columns)

    def by_term(self) -> Mapping[str, list[int]]:
        """Return the places of the products of each term."""
        places: dict[str, list[int]] = {}
        for place, (op, _) in enumerate(self.ops):
            places.setdefault(op.term, []).append(place)
        return places


COLUMNS = tuple(f.name for f in fields(Products) if f.name not in ("ops", "stored", "splits"))


def is_product(op: Op) -> bool:
    """Whether an operator takes rows, and all of them take the same weights: multiplied with them, or looked up in them."""
    return op.rows not in ("none", "routed")


@lru_cache(maxsize=256)
def collect_products(
    model: Model, *, merged: bool, stem: bool, vendor: str, peak: tuple[str, ...], rules: tuple[Computed, ...]
) -> Products:
    """Return the products of a model's layers, or of its stem, on a chip that multiplies `peak` arithmetic."""
    totals = ledger(model, merged=merged)
    ops = tuple((op, 1) for op in totals.stem) if stem else totals.layers
    return stacked_products([entry for entry in ops if is_product(entry[0])], vendor, peak, rules)


def stacked_products(ops: Iterable[tuple[Op, int]], vendor: str, peak: Collection[str], rules: Iterable[Computed]) -> Products:
    """Return products, each with how many it stands for, as columns."""
    ops, rules = tuple(ops), tuple(rules)
    stored = tuple(dict.fromkeys(op.format.arithmetic for op, _ in ops))
    splits = tuple(dict.fromkeys(_split(op) for op, _ in ops))
    kinds = [computed_in(rules, op.format.arithmetic, peak, vendor)[0] for op, _ in ops]

    def column(values: Iterable[Any]) -> Array:
        return np.array(list(values))

    def short(op: Op, instances: int, kind: str) -> float:
        product = 2 * op.inputs * op.outputs
        is_exact = product and abs(product - instances * op.flops_per_row) <= EXACT * product
        return instances / op.inputs / ROW_BYTES.get(kind, 2) if is_exact else 0.0

    def unpacked(op: Op, kind: str) -> float:
        return op.format.bytes if op.format.bytes < NARROW and kind in UNPACKED else math.inf

    return Products(
        ops=ops,
        stored=stored,
        splits=splits,
        rate=column(stored.index(op.format.arithmetic) for op, _ in ops),
        split=column(splits.index(_split(op)) for op, _ in ops),
        flops=column(0.0 if op.rows == "lookup" else op.flops_per_row for op, _ in ops),
        weights=column(0.0 if op.rows == "lookup" else op.weights * op.format.bytes for op, _ in ops),
        unsharded_values=column(
            0.0 if op.rows == "lookup" else op.outputs if op.name in SECOND else op.inputs for op, _ in ops
        ),
        sharded_values=column(op.inputs if op.name in SECOND and op.rows != "lookup" else op.outputs for op, _ in ops),
        short=column(short(op, n, kind) for (op, n), kind in zip(ops, kinds, strict=True)),
        second=column(op.name in SECOND for op, _ in ops),
        narrow=column(op.format.bytes < NARROW for op, _ in ops),
        unpacked=column(unpacked(op, kind) for (op, _), kind in zip(ops, kinds, strict=True)),
        four=column(kind in four_bits(vendor) and kind in peak for kind in kinds),
        blocked=column(kind == "fp8" and "fp4" in peak and in_blocks(op) for (op, _), kind in zip(ops, kinds, strict=True)),
        logits=column(op.rows == "outputs" for op, _ in ops),
    )


def products_demand(products: Products, context: Pass) -> tuple[Demand, int]:
    """Return what products ask of the busiest chip for one micro-batch, and the number of axes of all that the time depends on.

    A figure that differs from product to product has one more axis, the first, with a row for each.
    """
    chip, kernels = context.system.chip, context.engine.kernels
    bandwidth = chip.hbm.bandwidth
    peaks = [context.rate(stored)[1] for stored in products.stored]
    shards = [shard_count(parts, context.layout.group) for parts in products.splits]
    constants = (
        kernels.fp4_efficiency, kernels.block_efficiency, kernels.fill_bytes, kernels.narrow_efficiency, kernels.unpack_rate,
        kernels.activation_traffic, kernels.roofline_norm,
    )  # fmt: skip
    axes = max(
        map(_axes, (context.rows, context.logits, context.compute, context.memory, bandwidth, *constants, *peaks, *shards))
    )

    def column(values: Array) -> Array:
        return values.reshape(-1, *(1,) * axes)

    def spread(values: list[Number], which: Array) -> Number:
        """Return the value of each product, of those that differ."""
        if len(values) == 1:
            return values[0]
        shape = np.broadcast_shapes(*map(np.shape, values))
        rows = np.empty((len(values), *(1,) * (axes - len(shape)), *shape))
        for row, value in enumerate(values):
            rows[row] = value
        return rows[which]

    sharing = spread(shards, products.split)
    rows = context.rows
    if has_nonzero(products.logits):
        rows = np.where(column(products.logits), context.logits, context.rows)
    efficiency, reading = context.compute, context.memory
    if has_nonzero(products.four):
        efficiency = np.where(column(products.four), efficiency * kernels.fp4_efficiency, efficiency)
    if has_nonzero(products.blocked):
        efficiency = np.where(column(products.blocked), efficiency * kernels.block_efficiency, efficiency)
    if context.fills:
        sums = np.where(column(products.second), sharing, 1.0) * column(products.short)
        efficiency = efficiency / (1 + kernels.fill_bytes * sums)
    if has_nonzero(products.narrow):
        reading = np.where(column(products.narrow), reading * kernels.narrow_efficiency, reading)
    if np.min(products.unpacked, initial=np.inf) < np.inf:
        reading = np.minimum(reading, kernels.unpack_rate * column(products.unpacked) / bandwidth)
    activations: Number = 0.0
    if has_nonzero(kernels.activation_traffic):
        moved = column(products.sharded_values) / sharing + column(products.unsharded_values)
        activations = rows * (moved * (ACTIVATION_BYTES * kernels.activation_traffic))
    demand = Demand(
        rows * (column(products.flops) / sharing),
        spread(peaks, products.rate),
        column(products.weights) / sharing,
        activations,
        efficiency=efficiency,
        memory_efficiency=reading,
    )
    return demand, axes


def _split(op: Op) -> float:
    """Return into how many parts the weights of an operator are cut at most; what is looked up goes to any chip of a group."""
    return math.inf if op.rows == "lookup" else 1.0 if op.split == "replicated" else op.split_limit


def _axes(value: Number) -> int:
    return 0 if type(value) is float else np.ndim(value)


def demand_row(demand: Demand, place: int, axes: int) -> Demand:
    """Return what one of several products asks: that row of all figures with an axis more than `axes`."""
    figures = {f.name: getattr(demand, f.name) for f in fields(Demand)}
    return Demand(**{name: value[place] if np.ndim(value) > axes else value for name, value in figures.items()})
