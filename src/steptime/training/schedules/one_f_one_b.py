"""GPipe, 1F1B and interleaved 1F1B: schedules with a whole backward pass."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Number
from steptime.training.schedules.schedule import TWO_STAGES, Condition, Schedule
from steptime.training.schedules.work_order import Item, Row


@final
class GPipe(Schedule):
    """GPipe (arXiv 1811.06965): all forward passes, then all backward passes."""

    name = "gpipe"
    aliases = ("fthenb",)
    source = "https://arxiv.org/abs/1811.06965"

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return all forward passes, then all backward passes.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Items of the device.
        """
        row = Row()
        for _ in range(m):
            row.forward()
        for _ in range(m):
            row.backward()
        return row.items

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the idle seconds of a device, $(p-1)(f+b)$.

        This is a share $(p-1)/(m+p-1)$ of the step.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].
            fb: A forward pass overlapped with a whole backward pass [s]; their sum if not given.

        Returns:
            Seconds.

        References:
            arXiv 1811.06965, section 2.3.
        """
        return (p - 1) * (f + b)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return the peak number of micro-batches in flight, $m$.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.
        """
        return m + 0 * p

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops that a step waits for, $2(p - 1)$.

        The first micro-batch hops to the last device, and the last micro-batch hops back.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step.
        """
        return 2 * (p - 1) + 0 * m


@final
class OneFOneB(Schedule):
    """1F1B with a flush (PipeDream-Flush, arXiv 2006.09503).

    This is the schedule of Megatron-LM without interleaving (arXiv 2104.04473).
    """

    name = "1f1b"
    aliases = ("pipedream-flush", "dapple", "non-interleaved")
    source = "https://arxiv.org/abs/2104.04473"

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the warm-up forward passes, then one forward and one backward in turn.

        The warm-up has one forward pass for each later stage. The remaining backward passes come last.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Items of the device.
        """
        row, ahead = Row(), min(p - device - 1, m)
        for _ in range(ahead):
            row.forward()
        for _ in range(m - ahead):
            row.forward()
            row.backward()
        for _ in range(ahead):
            row.backward()
        return row.items

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the idle seconds of a device, $(p-1)(f+b)$.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].
            fb: A forward pass overlapped with a whole backward pass [s]; their sum if not given.

        Returns:
            Seconds.

        References:
            arXiv 2104.04473, section 2.2.1.
        """
        return (p - 1) * (f + b)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        r"""Return the peak number of micro-batches in flight, $\min(m, p-i)$ on device i.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.

        >>> OneFOneB().in_flight(4, 8, 1, np.arange(4)).tolist()
        [4, 3, 2, 1]
        """
        return np.minimum(m, p - device)

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
        return 2 * (p - 1) * m / p + 2 * np.maximum(p - 2, 0)


@final
class Interleaved(Schedule):
    """Interleaved 1F1B (arXiv 2104.04473): micro-batches come in groups of p.

    Stages exchange v times as much as with 1F1B.
    """

    name = "interleaved"
    aliases = ("interleaved-1f1b", "1f1b-interleaved", "vpp", "looped-1f1b")
    virtual = 0
    source = "https://arxiv.org/abs/2104.04473"

    # Source: Megatron-LM, core/pipeline_parallel/schedules.py.
    conditions = (
        TWO_STAGES,
        Condition(
            lambda x: x.m % np.maximum(x.p, 1) == 0,
            lambda x: (
                f"needs micro-batches that are a multiple of pp={x.p}, got {x.m}; the nearest are "
                + " and ".join(f"{x.p * n}" for n in (x.m // x.p, x.m // x.p + 1) if n)
            ),
        ),
    )

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return groups of p micro-batches through each chunk in turn.

        Backward passes follow in the same way, from the last chunk.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Items of the device.
        """
        row = Row([0] * v)
        # Warm-up forward passes before the first backward pass, as in Megatron-LM.
        ahead = min(2 * (p - device - 1) + (v - 1) * p, m * v)
        for turn in range(m * v):
            row.forward(turn // p % v)
            if turn >= ahead:
                row.backward(v - 1 - (turn - ahead) // p % v)
        for turn in range(m * v - ahead, m * v):
            row.backward(v - 1 - turn // p % v)
        return row.items

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the idle seconds of a device, $(p-1)(f+b)/v$.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].
            fb: A forward pass overlapped with a whole backward pass [s]; their sum if not given.

        Returns:
            Seconds.

        References:
            arXiv 2104.04473, section 2.2.2.
        """
        return (p - 1) * (f + b) / v

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        r"""Return the peak number of micro-batches in flight, $\min(m, p + (p-1-2i)/v)$.

        The first device has $p (1 + \frac{p-1}{p v})$; each later device i has two chunks less than the one before.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.

        References:
            arXiv 2205.05198, section 4.2.3.

        >>> float(Interleaved().in_flight(8, 64, 2))
        11.5
        """
        return np.minimum(m, p + (p - 1 - 2 * device) / v)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops that a step waits for, $2(pv - 1)$.

        The number is small because enough micro-batches are in flight.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step.
        """
        return 2 * (p * v - 1) + 0 * m
