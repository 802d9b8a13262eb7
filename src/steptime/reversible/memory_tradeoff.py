r"""Memory against arithmetic: what reversible layers save and cost, and the KV cache as the opposite trade. Section 18.

A training step keeps activations so that nothing is computed twice: $L$ layers of $a$ bytes. Checkpoints keep the input of each
layer, $s$ bytes, and compute each layer again; reversible layers keep the two streams alone, $2 s$, whatever the depth. Both
take one forward pass more: 4 passes' worth of arithmetic instead of 3, as a backward pass is worth two.

A KV cache goes the other way: it holds $\kappa$ bytes a token so that the prefix is not computed again at each step.
All functions broadcast; units are bytes, FLOPs and seconds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from steptime.errors import UnknownName
from steptime.number_checks import Number

FORWARDS: Final = {"none": 1, "full": 2, "reversible": 2}
"""Forward passes of a layer in a training step, by what is done for memory: nothing, full recomputation, reversible layers."""

LAYER_BYTES: Final = 0.0
"""Bytes of activations that a reversible layer keeps, beside the two streams that all such layers share."""


def arithmetic_ratio(forwards: Number, backward: Number = 2.0) -> Number:
    """Arithmetic of a training step over that of one with a single forward pass; backward [forward passes].

    Valid where matrix multiplies are all that counts. Section 18 (8 N D against 6 N D, *derived*); RevNet, section 3.2.

    >>> round(arithmetic_ratio(2), 4)
    1.3333
    """
    return (forwards + backward) / (1 + backward)


def forward_passes(recompute: str) -> int:
    """Return the forward passes of a layer by its kind of recomputation: none, full or reversible."""
    if recompute not in FORWARDS:
        raise UnknownName("kind of recomputation", recompute, FORWARDS, "Known here: " + ", ".join(FORWARDS) + ".")
    return FORWARDS[recompute]


def plain_bytes(layers: Number, layer_bytes: Number) -> Number:
    """Activations that a step holds at its fullest without recomputation: all of every layer. layer_bytes [B] -> [B].

    >>> plain_bytes(64, 4e6)
    256000000.0
    """
    return layers * layer_bytes


def checkpointed_bytes(layers: Number, stream_bytes: Number, layer_bytes: Number, every: Number = 1) -> Number:
    """Activations at the fullest with a checkpoint for `every` so many layers: the checkpoints, and what lies between two.

    stream_bytes [B]: what goes from layer to layer; layer_bytes [B]: all that a layer keeps. -> [B]

    >>> checkpointed_bytes(64, 1e6, 8e6), checkpointed_bytes(64, 1e6, 8e6, every=8)
    (72000000.0, 72000000.0)
    """
    return layers / every * stream_bytes + every * layer_bytes


def best_checkpoint(layers: Number, stream_bytes: Number, layer_bytes: Number) -> Number:
    r"""Layers between two checkpoints that need least memory, $\sqrt{L s / a}$: memory grows with the root of the depth.

    Chen et al., arXiv 1604.06174.

    >>> float(best_checkpoint(64, 1e6, 4e6))
    4.0
    """
    return np.sqrt(layers * stream_bytes / layer_bytes)


def reversible_bytes(stream_bytes: Number, working_bytes: Number = 0.0) -> Number:
    """Activations at the fullest with reversible layers: two streams, and the layer that is undone. No depth in it.

    stream_bytes [B] of one stream; working_bytes [B] of the largest layer while its gradient is made. -> [B]
    Left out: layers that change the shape, which keep their activations as plain ones do.

    >>> reversible_bytes(1e6, 4e6)
    6000000.0
    """
    return 2 * stream_bytes + working_bytes


def stream_bytes(tokens: Number, width: Number, value_bytes: Number) -> Number:
    """Bytes of one stream of activations: tokens, width [values], value_bytes [B]; shards of a sequence hold their share.

    >>> stream_bytes(4096, 8192, 2)
    67108864
    """
    return tokens * width * value_bytes


def exchange_rate(flops: Number, held_bytes: Number) -> Number:
    """FLOPs that a byte of cache saves: of all that need not be computed again, over the bytes that are held. -> [FLOP/B]

    >>> exchange_rate(2 * 37e9 * 4096, 70_272 * 4096) == 2 * 37e9 / 70_272
    True
    """
    return flops / held_bytes


def break_even_seconds(flops_per_byte: Number, capacity: Number, rate: Number, bandwidth: Number = np.inf) -> Number:
    r"""Seconds for which holding a byte costs as much as computing its share again: $(r / F - 1 / W) \, C$.

    flops_per_byte $r$ [FLOP/B]; capacity $C$ [B] and bandwidth $W$ [B/s] of the tier, rate $F$ [FLOP/s] of the chip. The tier
    as a whole is reckoned to cost as much as the chip rents for: one that costs a tenth of it breaks even ten times later.
    Reading back keeps the chip waiting: 0 where that takes longer than computing again. Section 15: for a chip's own
    memory, of which decode reads all anyway ($W$ without bound), it is the drain time times $L^*$.

    >>> round(float(break_even_seconds(2 * 100e9 / 1666.7, 288e9, 2 * 4.8e15 / 1.6)))
    5760
    """
    return np.maximum(flops_per_byte / rate - 1 / np.asarray(bandwidth), 0.0) * capacity
