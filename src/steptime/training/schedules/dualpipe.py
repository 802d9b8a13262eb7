"""DualPipe and DualPipeV: schedules that overlap forward and backward passes.

Micro-batches enter from both ends.
"""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Array, Number
from steptime.training.schedules.schedule import TWO_STAGES, Condition, Schedule, longest
from steptime.training.schedules.work_order import Item, Row, two_way_paths, v_path


@final
class DualPipe(Schedule):
    """DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1)."""

    name = "dualpipe"
    split = True
    copies = 2
    source = "https://github.com/deepseek-ai/DualPipe"

    # Source: dualpipe/dualpipe.py.
    conditions = (
        Condition(lambda x: x.p % 2 == 0, lambda x: f"needs an even number of stages, got pp={x.p}; try {x.p + 1}"),
        Condition(
            lambda x: (x.m % 2 == 0) & (x.m >= 2 * x.p),
            lambda x: f"needs an even number of micro-batches of at least 2 x pp = {2 * x.p}, got {x.m}",
        ),
    )

    def paths(self, p: int, v: int) -> Array:
        """Return the two paths, from the first device down and from the last device up.

        Args:
            p: Pipeline stages (devices).
            v: Virtual stages per device.

        Returns:
            Device and chunk of each stage, (2, p, 2).
        """
        return two_way_paths(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the work of a device in a step, in order.

        Devices of the second half do the same work as devices of the first half, seen from the other end.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Items of the device.
        """
        # Chunk 0 belongs to the path down, chunk 1 to the path up; a device starts with the path of its half.
        near = int(device >= p // 2)
        return dualpipe_items(Row((0, m // 2)), p // 2, min(device, p - 1 - device), m // 2, near, 1 - near)

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the idle seconds of a device in a step.

        The time is $(p/2-1)(fb+b-3w)$ where $f = b - w = w$.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].
            fb: A forward pass overlapped with a whole backward pass [s]; their sum if not given.

        Returns:
            Seconds, of the device with the most idle time.

        References:
            README of deepseek-ai/DualPipe.

        >>> float(DualPipe().idle(8, 32, 1, 1.0, 2.0, 1.0))
        6.0
        """
        return dualpipe_idle_seconds(p / 2 - 1, f, b - w, w, f + b if fb is None else fb)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return the peak number of micro-batches in flight, $p+1$.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.

        References:
            README of deepseek-ai/DualPipe.
        """
        return p + 1 + 0 * m

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops that a step waits for, $(p - 1)m/p + 1.5p - 3$.

        Every micro-batch waits for micro-batches that come back.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step.
        """
        return (p - 1) * m / p + 1.5 * p - 3


@final
class DualPipeV(Schedule):
    """DualPipeV: the first half of a DualPipe of twice as many devices.

    Source: deepseek-ai/DualPipe, after the "cut in half" of https://hackmd.io/@ufotalent/r1lVXsa9Jg.
    """

    name = "dualpipev"
    aliases = ("dualpipe-v", "cut-in-half")
    virtual = 2
    split = True
    source = "https://github.com/deepseek-ai/DualPipe"

    # Source: dualpipe/dualpipev.py.
    conditions = (
        TWO_STAGES,
        Condition(lambda x: x.m >= 2 * x.p, lambda x: f"needs at least 2 x pp = {2 * x.p} micro-batches, got {x.m}"),
    )

    def paths(self, p: int, v: int) -> Array:
        """Return the path from the first device to the last and back.

        Args:
            p: Pipeline stages (devices).
            v: Virtual stages per device.

        Returns:
            Device and chunk of each stage, (1, 2 p, 2).
        """
        return v_path(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the work of a device of the first half of a DualPipe of 2p devices.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Items of the device.
        """
        return dualpipe_items(Row((0, 0)), p, device, m, 0, 1)

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the idle seconds of a device in a step.

        The time is $(p-1)(fb+b-3w)/2$ where $f = b - w = w$: DualPipe with 2p stages of half the length.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].
            fb: A forward pass overlapped with a whole backward pass [s]; their sum if not given.

        Returns:
            Seconds, of the device with the most idle time.

        References:
            README of deepseek-ai/DualPipe.

        >>> float(DualPipeV().idle(8, 32, 2, 1.0, 2.0, 1.0))
        7.0
        """
        return dualpipe_idle_seconds(p - 1, f / 2, (b - w) / 2, w / 2, (f + b if fb is None else fb) / 2)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return the peak number of micro-batches in flight, $p+1/2$.

        A device has activations of 2p + 1 half stages.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.

        References:
            README of deepseek-ai/DualPipe.
        """
        return p + 0.5 + 0 * m

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops that a step waits for, $2(p - 1)m/p + 2(p - 2)$.

        Every micro-batch waits for micro-batches that come back.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step.
        """
        return 2 * (p - 1) * m / p + 2 * (p - 2)


def dualpipe_items(row: Row, half: int, place: int, count: int, near: int, far: int) -> list[Item]:
    """Return the work of a device of one half of a DualPipe.

    The work has eight parts, as in deepseek-ai/DualPipe, dualpipe/dualpipe.py `step`.

    Args:
        row: Row of work to extend.
        half: Devices of the half.
        place: Position of the device in the half, counted from where its micro-batches enter.
        count: Micro-batches of each chunk.
        near: Chunk that this device starts with.
        far: Chunk that comes back to this device.

    Returns:
        Items of the device.
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
        # On the middle devices the first two passes are not overlapped, which makes the bubble smaller.
        if turn == 0 and outer == 0:
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
    """Add the last backward passes of a device.

    From the middle of these passes on, the gradients of the weights come later.
    """
    # The second half of the last passes splits off the weight gradients, which then fill the wait at the end.
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
    """Return the idle seconds of the device with most pairs.

    The time is $h (fb + b - 3w)$ where $f = b_{in} = w$. If the passes differ, it is the longest of several chains of work.
    The event simulation confirms that the list of chains is complete where a pair takes less than its parts and more than
    each part.

    Args:
        outer: Devices of a half, minus one, $h$.
        f: Forward pass of a stage [s].
        inputs: Backward pass of a stage for the gradients of its inputs, $b_{in}$ [s].
        w: Backward pass of a stage for the gradients of its weights [s].
        pair: Forward and whole backward pass of a stage overlapped, $fb$ [s].

    Returns:
        Seconds per step.

    References:
        README of deepseek-ai/DualPipe; chains derived.
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
