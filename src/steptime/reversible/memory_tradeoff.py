r"""Memory against arithmetic: reversible layers, and the KV cache in reverse.

Lecture section 18. A training step keeps the activations of $L$ layers of $a$ bytes, so that nothing is computed
twice. Checkpointing keeps only the input of each layer, $s$ bytes, and computes each layer again. Reversible layers
keep only the two streams, $2 s$, at any depth. Both need one more forward pass. A backward pass costs two forward
passes, so the step costs 4 instead of 3.

A KV cache is the opposite trade: it keeps $\kappa$ bytes per token, so that the prefix is not computed again in each
step. All functions broadcast; units are bytes, FLOP and seconds.

`Stacks` has what reversible stacks take when they are measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from steptime.number_checks import Number
from steptime.result_base import Tabular, unit
from steptime.units import percent_change, show


def arithmetic_ratio(forwards: Number, backward: Number = 2.0) -> Number:
    """Return the FLOP of a training step over those with a single forward pass.

    Valid where matrix products dominate.

    Args:
        forwards: Forward passes of the step.
        backward: Cost of a backward pass [forward passes].

    Returns:
        Ratio of FLOP, with the shape of the arguments.

    References:
        Lecture section 18 (8 N D against 6 N D, *derived*); RevNet, section 3.2.

    >>> round(arithmetic_ratio(2), 4)
    1.3333
    """
    return (forwards + backward) / (1 + backward)


def plain_bytes(layers: Number, layer_bytes: Number) -> Number:
    """Return the peak activation memory without recomputation.

    Args:
        layers: Number of layers.
        layer_bytes: Activations of a layer [B].

    Returns:
        Bytes of all layers.

    >>> plain_bytes(64, 4e6)
    256000000.0
    """
    return layers * layer_bytes


def checkpointed_bytes(layers: Number, stream_bytes: Number, layer_bytes: Number, every: Number = 1) -> Number:
    """Return the peak activation memory with one checkpoint per `every` layers.

    It is the sum of all checkpoints and the activations between two checkpoints.

    Args:
        layers: Number of layers.
        stream_bytes: Activations that pass from layer to layer [B].
        layer_bytes: All activations of a layer [B].
        every: Layers between two checkpoints.

    Returns:
        Bytes.

    >>> checkpointed_bytes(64, 1e6, 8e6), checkpointed_bytes(64, 1e6, 8e6, every=8)
    (72000000.0, 72000000.0)
    """
    return layers / every * stream_bytes + every * layer_bytes


def best_checkpoint(layers: Number, stream_bytes: Number, layer_bytes: Number) -> Number:
    r"""Return the layers between checkpoints that minimize memory.

    $\sqrt{L s / a}$; with it, memory grows with the square root of the depth.

    Args:
        layers: Number of layers L.
        stream_bytes: Activations that pass from layer to layer, s [B].
        layer_bytes: All activations of a layer, a [B].

    Returns:
        Layers between two checkpoints.

    References:
        Chen et al., arXiv 1604.06174.

    >>> float(best_checkpoint(64, 1e6, 4e6))
    4.0
    """
    return np.sqrt(layers * stream_bytes / layer_bytes)


def reversible_bytes(stream_bytes: Number, working_bytes: Number = 0.0) -> Number:
    """Return the peak activation memory of reversible layers; it has no depth in it.

    Not counted: layers that change the shape, which keep their activations as plain layers do.

    Args:
        stream_bytes: Activations of one stream [B].
        working_bytes: Activations of the largest layer during its backward pass [B].

    Returns:
        Bytes of two streams and the working memory.

    >>> reversible_bytes(1e6, 4e6)
    6000000.0
    """
    return 2 * stream_bytes + working_bytes


def stream_bytes(tokens: Number, width: Number, value_bytes: Number) -> Number:
    """Return the bytes of one stream of activations.

    With sequence sharding, `tokens` is the shard of one chip.

    Args:
        tokens: Tokens of a micro-batch.
        width: Values per token.
        value_bytes: Bytes of a value.

    Returns:
        Bytes.

    >>> stream_bytes(4096, 8192, 2)
    67108864
    """
    return tokens * width * value_bytes


def exchange_rate(flops: Number, held_bytes: Number) -> Number:
    """Return the FLOP that a cached byte saves.

    Args:
        flops: FLOP that need not be computed again.
        held_bytes: Bytes of the cache.

    Returns:
        FLOP per byte.

    >>> exchange_rate(2 * 37e9 * 4096, 70_272 * 4096) == 2 * 37e9 / 70_272
    True
    """
    return flops / held_bytes


def break_even_seconds(flops_per_byte: Number, capacity: Number, rate: Number, bandwidth: Number = np.inf) -> Number:
    r"""Return the time after which storing a cached byte costs more than recomputing.

    $(r / F - 1 / W) \, C$

    The whole tier is assumed to cost as much as the chip's rent: a tier at a tenth of that price breaks even ten
    times later. The chip waits while the cache is read back, so the result is 0 if this takes longer than
    recomputing. A chip's own memory has no such wait, because decode reads all of it anyway ($W$ infinite): the
    result is the drain time times $L^*$ (lecture section 15).

    Args:
        flops_per_byte: FLOP saved per cached byte, r [FLOP/B].
        capacity: Capacity of the tier, C [B].
        rate: Arithmetic rate of the chip, F [FLOP/s].
        bandwidth: Bandwidth of the tier, W [B/s].

    Returns:
        Seconds, at least 0.

    >>> round(float(break_even_seconds(2 * 100e9 / 1666.7, 288e9, 2 * 4.8e15 / 1.6)))
    5760
    """
    return np.maximum(flops_per_byte / rate - 1 / np.asarray(bandwidth), 0.0) * capacity


KINDS = ("plain", "checkpointed", "reversible")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPoint:
    """The training step of one stack: memory, FLOP, time and gradient error."""

    depth: int = field(metadata=unit("", "blocks"))
    kind: str = field(metadata=unit("", "plain, checkpointed (each block is computed again from its input) or reversible"))
    saved: int = field(metadata=unit("B", "saved tensors at the end of the forward pass, without parameters"))
    peak: int = field(metadata=unit("B", "peak of activations and temporary tensors, without gradients of parameters"))
    allocated: int | None = field(metadata=unit("B", "peak allocation of a step on a GPU; null on a CPU"))
    flop: int = field(metadata=unit("FLOP", "matrix products of the forward and the backward pass", key="flop"))
    arithmetic: float = field(metadata=unit("", "FLOP over the FLOP of the plain stack"))
    seconds: float = field(metadata=unit("s", "median time of a forward and a backward pass", key="step_s"))
    slowness: float = field(metadata=unit("", "time over the time of the plain stack"))
    gradient_error: float = field(metadata=unit("", "distance of all gradients from those of the plain stack, over their norm"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPoint:
    """Gradient and input errors of one reversible stack in one number format."""

    depth: int = field(metadata=unit("", "blocks"))
    dtype: str = field(metadata=unit("", "number format of weights and streams"))
    gradient_error: float = field(
        metadata=unit("", "distance from the plain stack's gradients in this format, over their norm")
    )
    plain_error: float = field(
        metadata=unit("", "distance of the plain stack's gradients from those in float64: the error of the format itself")
    )
    input_error: float = field(metadata=unit("", "distance of the rebuilt input from the true input, over its norm"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stacks(Tabular):
    """Measured plain, checkpointed and reversible stacks (`steptime reversible`)."""

    SCHEMA: ClassVar[str] = "steptime.reversible/2"
    ROWS: ClassVar[tuple[str, type]] = ("points", StackPoint)

    depth: int = field(metadata=unit("", "blocks of the deepest stack"))
    width: int = field(metadata=unit("", "values of a row, both streams together"))
    rows: int = field(metadata=unit("", "rows of the input"))
    dtype: str = field(metadata=unit("", "number format of weights and streams"))
    device: str = field(metadata=unit("", "cpu or cuda"))
    torch: str = field(metadata=unit("", "version of PyTorch"))
    streams: float = field(metadata=unit("B", "closed form: both streams, the only activations that reversible layers keep"))
    arithmetic: float = field(metadata=unit("", "closed form: FLOP with one more forward pass over FLOP of a plain step"))
    points: tuple[StackPoint, ...] = field(metadata=unit("", "one point per depth and kind"))
    error_width: int = field(metadata=unit("", "values of a row in the stacks that measure errors"))
    errors: tuple[ErrorPoint, ...] = field(metadata=unit("", "one point per depth and number format"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return memory, arithmetic, time and errors of the deepest stacks.

        Returns:
            Title, and figures by name.
        """
        plain, _, reversible = self.deepest()
        return f"Reversible stack of {self.depth} blocks, {self.width:,} wide, {self.rows} rows, {self.dtype}, {self.device}", {
            "kept": f"{show(reversible.saved, 'B')} of {show(plain.saved, 'B')}, {plain.saved / reversible.saved:.3g}x less",
            "arithmetic": f"{percent_change(reversible.arithmetic - 1)} (closed form {percent_change(self.arithmetic - 1)})",
            "time": f"{reversible.slowness:.2f} times the plain stack's",
            "gradients": f"off by {reversible.gradient_error:.1e}",
        }

    def deepest(self) -> tuple[StackPoint, StackPoint, StackPoint]:
        """Return the points of the deepest stacks.

        Returns:
            Plain, checkpointed and reversible point.
        """
        point_by_kind = {point.kind: point for point in self.points if point.depth == self.depth}
        return point_by_kind["plain"], point_by_kind["checkpointed"], point_by_kind["reversible"]
