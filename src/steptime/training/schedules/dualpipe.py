"""DualPipe and DualPipeV: micro-batches enter from both ends, forward and backward passes overlap."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Array, Number
from steptime.training.schedules.schedule import Condition, Schedule, longest
from steptime.training.schedules.work_order import Item, Row, two_way_paths, v_path


@final
class DualPipe(Schedule):
    """DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1)."""

    name = "dualpipe"
    split = True
    copies = 2
    overlapped = True
    source = "https://github.com/deepseek-ai/DualPipe"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """An even number of stages, and of micro-batches at least twice as many (dualpipe/dualpipe.py)."""
        return (
            Condition(lambda x: x.p % 2 == 0, lambda x: f"needs an even number of stages, not pp={x.p}; try {x.p + 1}"),
            Condition(
                lambda x: (x.m % 2 == 0) & (x.m >= 2 * x.p),
                lambda x: f"needs an even number of micro-batches of at least 2 x pp = {2 * x.p}, not {x.m}",
            ),
        )

    def paths(self, p: int, v: int) -> Array:
        """Return the two paths, down and up."""
        return two_way_paths(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the work of a device; those of the second half see the same as the first from the other end."""
        near = int(device >= p // 2)
        return dualpipe_items(Row((0, m // 2)), p // 2, min(device, p - 1 - device), m // 2, near, 1 - near)

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return $(p/2-1)(fb+b-3w)$ [s] where $f = b - w = w$ (README of deepseek-ai/DualPipe).

        >>> float(DualPipe().idle(8, 32, 1, 1.0, 2.0, 1.0))
        6.0
        """
        return dualpipe_idle_seconds(p / 2 - 1, f, b - w, w, f + b if fb is None else fb)

    def pairs(self, p: Number, m: Number, v: Number) -> Number:
        """Return $m - p - 1$: of the device with most."""
        return m - p - 1

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return $p+1$ (README of deepseek-ai/DualPipe)."""
        return p + 1 + 0 * m

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $(p - 1)m/p + 1.5p - 3$: every micro-batch waits for those that come back."""
        return (p - 1) * m / p + 1.5 * p - 3


@final
class DualPipeV(Schedule):
    """DualPipeV (deepseek-ai/DualPipe, after the "cut in half" of https://hackmd.io/@ufotalent/r1lVXsa9Jg)."""

    name = "dualpipev"
    aliases = ("dualpipe-v", "cut-in-half")
    virtual = 2
    split = True
    overlapped = True
    source = "https://github.com/deepseek-ai/DualPipe"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """As many micro-batches as there are virtual stages (dualpipe/dualpipev.py)."""
        return (
            Condition(lambda x: x.p >= 2, lambda x: f"needs at least 2 stages, not pp={x.p}"),
            Condition(lambda x: x.m >= 2 * x.p, lambda x: f"needs at least 2 x pp = {2 * x.p} micro-batches, not {x.m}"),
        )

    def paths(self, p: int, v: int) -> Array:
        """Return the path down and back."""
        return v_path(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the work of a device of the first half of a DualPipe of 2p devices."""
        return dualpipe_items(Row((0, 0)), p, device, m, 0, 1)

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return $(p-1)(fb+b-3w)/2$ [s] where $f = b - w = w$: DualPipe's of 2p stages, each half as long (its README).

        >>> float(DualPipeV().idle(8, 32, 2, 1.0, 2.0, 1.0))
        7.0
        """
        return dualpipe_idle_seconds(p - 1, f / 2, (b - w) / 2, w / 2, (f + b if fb is None else fb) / 2)

    def pairs(self, p: Number, m: Number, v: Number) -> Number:
        """Return $m - p - 1/2$: of the device with most."""
        return m - p - 0.5

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return $p+1/2$: 2p + 1 half stages (README of deepseek-ai/DualPipe)."""
        return p + 0.5 + 0 * m

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $2(p - 1)m/p + 2(p - 2)$: every micro-batch waits for those that come back."""
        return 2 * (p - 1) * m / p + 2 * (p - 2)


def dualpipe_items(row: Row, half: int, place: int, count: int, near: int, far: int) -> list[Item]:
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
    _add_last_passes(row, outer, place, near, far)
    return row.items


def _add_last_passes(row: Row, outer: int, place: int, near: int, far: int) -> None:
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
    row.flush_weights()


def dualpipe_idle_seconds(outer: Number, f: Number, inputs: Number, w: Number, pair: Number) -> Number:
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
