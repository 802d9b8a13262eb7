"""Zero-bubble schedules ZB-H1, ZB-H2 and ZBV (arXiv 2401.10241).

Gradients of the weights fill the bubble.
"""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Array, Number
from steptime.training.schedules.schedule import TWO_STAGES, Schedule, longest
from steptime.training.schedules.work_order import Item, Row, v_path


@final
class ZeroBubbleH1(Schedule):
    """ZB-H1 (arXiv 2401.10241, section 2.1), also known as ZB1P.

    ZB-H1 is 1F1B whose device i delays the gradients of the weights by i micro-batches.
    """

    name = "zb-h1"
    aliases = ("zb1p", "zbh1", "zero-bubble", "zerobubble", "zbb")
    split = True
    source = "https://arxiv.org/abs/2401.10241"

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return 1F1B with split backward passes and delayed gradients of the weights.

        The delay is `device` micro-batches.

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
        for done in range(m):
            if done < m - ahead:
                row.forward()
            row.inputs()
            if done >= device:
                row.weights()
        row.flush_weights()
        return row.items

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        r"""Return the idle seconds of a device, $(p-1) \max(f, b-w, f+b-2w)$.

        This is the published $(p-1)(f+b-2w)$ where w is the shortest pass. With fewer than p micro-batches, the gradients
        of the weights do not fill the end of the step.

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
            arXiv 2401.10241, table 2.

        >>> float(ZeroBubbleH1().idle(8, 32, 1, 1.0, 2.0, 1.0))
        7.0
        """
        inputs = b - w
        # The second term is the part of the bubble that weight gradients cannot fill in a short step.
        return (p - 1) * longest(f, inputs, f + inputs - w) + np.maximum(p - m, 0) * np.minimum(inputs, w)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        r"""Return the peak number of micro-batches in flight, $\min(m, p)$.

        The number is the same on all devices.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.

        References:
            arXiv 2401.10241, table 2.
        """
        return np.minimum(m, p)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops that a step waits for, $4(p - 1)$.

        The number is small because enough micro-batches are in flight.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step.
        """
        return 4 * (p - 1) + 0 * m


@final
class ZeroBubbleH2(Schedule):
    """ZB-H2 (arXiv 2401.10241, section 2.2), also known as ZB2P."""

    name = "zb-h2"
    aliases = ("zb2p", "zbh2")
    split = True
    source = "https://arxiv.org/abs/2401.10241"

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return twice the forward passes of 1F1B, then backward and forward in turn.

        Gradients of the weights are delayed by 2 `device` micro-batches.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Items of the device.
        """
        row, ahead = Row(), min(2 * (p - device) - 1, m)
        for _ in range(ahead):
            row.forward()
        for done in range(m):
            row.inputs()
            if done >= 2 * device:
                row.weights()
            if done < m - ahead:
                row.forward()
        row.flush_weights()
        return row.items

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        r"""Return the idle seconds between the first and last work of a device.

        The time is $(p-1) \max(0, b-w-f, f+b-3w)$, which is 0 for equal passes. It is the published $(p-1)(f+b-3w)$ where w
        is the shortest pass.

        With fewer than 2p - 1 micro-batches, forward passes do not fill the wait for the first micro-batch that comes back.

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
            arXiv 2401.10241, table 2.
        """
        inputs = b - w
        # Two limits: the published bubble of the steady state, and a step too short to fill the first wait.
        gap = (p - 1) * np.maximum(f + inputs - 2 * w, inputs - f)
        return np.maximum(np.maximum(gap, (p - 1) * inputs + (p - m) * f), 0.0)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        r"""Return the peak number of micro-batches in flight, $\min(m, 2p-1)$.

        The number is the same on all devices.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.

        References:
            arXiv 2401.10241, table 2.
        """
        return np.minimum(m, 2 * p - 1)

    def stagger(self, p: Number, v: Number, f: Number, b: Number, w: Number) -> Number:
        """Return how much later the last device begins, $(p-1) f$, minus the idle time.

        Args:
            p: Pipeline stages (devices).
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].

        Returns:
            Seconds.
        """
        return np.maximum((p - 1) * f - self.idle(p, np.inf, v, f, b, w), 0.0)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops that a step waits for, $p - 1$.

        The number is small because enough micro-batches are in flight.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step.
        """
        return p - 1 + 0 * m


@final
class ZeroBubbleV(Schedule):
    """ZBV (arXiv 2401.10241, section 6), in the order of torch.distributed.pipelining."""

    name = "zbv"
    aliases = ("zb-v", "v-zb", "zbvzerobubble", "zbv-formatted")
    virtual = 2
    split = True
    source = "https://arxiv.org/abs/2401.10241"

    # One device has no V.
    conditions = (TWO_STAGES,)

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
        """Return the work of a device for at least 2p - 1 micro-batches.

        If the step has fewer micro-batches, the missing ones are left out.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Items of the device.
        """
        row, count = Row((0, 0), limit=m), max(2 * p - 1, m)
        for _ in range(2 * (p - device) - 1):
            row.forward(0)
        for _ in range(device):
            row.forward(1)
            row.forward(0)
        for _ in range(p - device):
            row.forward(1)
            row.inputs(1)
            row.weights(1)
        _add_steady_passes(row, p, count, device)
        return row.items

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the idle seconds between the first and last work of a device.

        The time is 0 where $f = b - w = w$. If the passes differ, the fixed order waits for the longest of several chains
        of work. The event simulation confirms that the list of chains is complete. A step of fewer than 2p - 1
        micro-batches is too short to fill.

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
            arXiv 2401.10241, section 6; chains derived.
        """
        inputs, ends, half = b - w, p - 1, p / 2 - 1
        chains = (
            ends * (inputs - w),
            ends * (f - (inputs + w) / 2),
            ends * (inputs - f) / 2,
            half * (w - f) + (inputs - f) / 2,
            half * (w - f),
            half * (f - inputs),
            (p - 1.5) * f + inputs / 2 - ends * w,
            (2 * p - 1 - m) * f,
        )
        return np.maximum(longest(*chains), 0.0)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        r"""Return the peak number of micro-batches in flight, $\min(m, p)$.

        The number is the same on all devices.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.
        """
        return np.minimum(m, p)

    def stagger(self, p: Number, v: Number, f: Number, b: Number, w: Number) -> Number:
        """Return how much later the last device begins, minus the idle time.

        The delay is $(p-1) f / 2$ where $f = b - w = w$.

        Args:
            p: Pipeline stages (devices).
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].

        Returns:
            Seconds.
        """
        inputs, half = b - w, p / 2 - 1
        delay_seconds = longest(
            (p - 1.5) * f - half * inputs,
            (p - 1) * inputs / 2,
            half * w + np.maximum(f, inputs) / 2,
            (p - 1) * (inputs - w),
        )
        return np.maximum(delay_seconds - self.idle(p, np.inf, v, f, b, w), 0.0)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops that a step waits for, $5p - 7$.

        The number is small because enough micro-batches are in flight.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step.
        """
        return 5 * p - 7 + 0 * m


def _add_steady_passes(row: Row, p: int, count: int, device: int) -> None:
    """Add the steady state: both chunks in turn, then backward passes only."""
    for far in range(p, count):
        if far + p - 1 - device < count:
            row.forward(0)
        row.inputs(0)
        row.weights(0)
        row.forward(1)
        row.inputs(1)
        row.weights(1)
    for _ in range(device):
        row.inputs(0)
        row.inputs(1)
    for _ in range(p - device):
        row.inputs(0)
        row.weights(0)
    row.flush_weights()
