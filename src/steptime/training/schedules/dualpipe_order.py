"""The order of work that DualPipe and DualPipeV share: two chunks of a device, one ahead of the other."""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number
from steptime.training.schedules.schedule import longest
from steptime.training.schedules.work_order import Item, Row


def dual(row: Row, half: int, place: int, count: int, near: int, far: int) -> list[Item]:
    """Return the work of the device at `place` of `half`, counted from where micro-batches enter.

    count: micro-batches of each chunk. near: the chunk that this device starts with, far: the one that comes back to it. In
    eight parts as in deepseek-ai/DualPipe, dualpipe/dualpipe.py `step`.
    """
    outer = half - place - 1
    for _ in range(2 * outer):
        row.forward(near)
    for _ in range(place + 1):
        row.forward(near)
        row.forward(far)
    for _ in range(outer):
        row.inputs(far)
        row.weights()
        row.forward(far)
    for turn in range(count - 2 * half + place + 1):
        if turn == 0 and outer == 0:  # in the middle the first two are not overlapped: the bubble is smaller
            row.forward(near)
            row.backward(far)
        else:
            row.pair(near, far)
        row.pair(far, near)
    for _ in range(outer):
        row.backward(far)
        row.pair(far, near)
    _tail(row, outer, place, near, far)
    return row.items


def _tail(row: Row, outer: int, place: int, near: int, far: int) -> None:
    """Add the last backward passes; from the middle of them on their gradients of weights come later."""
    late = False
    for turn in range(place + 1):
        late |= turn == (place + 1) // 2 and place % 2 == 1
        (row.inputs if late else row.backward)(far)
        late |= turn == (place + 1) // 2 and place % 2 == 0
        (row.inputs if late else row.backward)(near)
    for _ in range(outer):
        row.weights()
        row.inputs(near)
    row.rest()


def waits(outer: Number, f: Number, inputs: Number, w: Number, pair: Number) -> Number:
    r"""Return the seconds that the device with most pairs waits: $h (fb + b - 3w)$ where $f = b_{in} = w$ [s].

    outer: devices of a half but one, h; f, inputs, w, pair: seconds of a stage. Where passes differ, the longest of chains that
    the walk holds to be all where a pair takes less than its parts, but longer than either. Source: README of
    deepseek-ai/DualPipe; chains derived.
    """
    chains = (
        outer * (pair + f - w - inputs),
        outer * (pair + f - 2 * w),
        outer * (pair + inputs - 2 * w) - f,
        outer * (pair - w) - f,
        outer * (f + inputs + w - pair),
        outer * (f + 2 * inputs - pair),
        outer * (3 * inputs - pair) - f,
        outer * (2 * inputs + w - pair) - f,
    )
    return np.maximum(longest(*chains), 0.0)
