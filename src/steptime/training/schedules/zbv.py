"""ZBV: two parts of the model on a device, down and back, and no bubble at the memory of 1F1B."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Array, Number
from steptime.training.schedules.schedule import Condition, Schedule, longest
from steptime.training.schedules.work_order import Item, Row, vee


@final
class ZeroBubbleV(Schedule):
    """ZBV (arXiv 2401.10241, section 6), in the fixed order that torch.distributed.pipelining gives it."""

    name = "zbv"
    aliases = ("zb-v", "v-zb", "zbvzerobubble", "zbv-formatted")
    virtual = 2
    split = True
    post_validation = True
    source = "https://arxiv.org/abs/2401.10241"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """At least two devices, without which there is no V."""
        return (Condition(lambda x: x.p >= 2, lambda x: f"needs at least 2 stages, not pp={x.p}"),)

    def paths(self, p: int, v: int) -> Array:
        """Return the path down and back."""
        return vee(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the order of at least 2p - 1 micro-batches, those left out that there are not."""
        row, count = Row((0, 0), most=m), max(2 * p - 1, m)
        for _ in range(2 * (p - device) - 1):
            row.forward(0)
        for _ in range(device):
            row.forward(1)
            row.forward(0)
        for _ in range(p - device):
            row.forward(1)
            row.inputs(1)
            row.weights(1)
        _go_on(row, p, count, device)
        return row.items

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        r"""Return the idle time between a device's first and last piece of work [s]: 0 where $f = b - w = w$.

        The fixed order waits where passes differ: the longest of the chains below, which the walk holds to be all. Below 2p - 1
        micro-batches the step is too short to fill. Source: arXiv 2401.10241, section 6; chains derived.
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
        r"""Return $\min(m, p)$, alike on all devices."""
        return np.minimum(m, p)

    def stagger(self, p: Number, v: Number, f: Number, b: Number, w: Number) -> Number:
        """Return $(p-1) f / 2$ [s] where $f = b - w = w$: the last device begins so much later than the first."""
        inputs, half = b - w, p / 2 - 1
        whole = longest(
            (p - 1.5) * f - half * inputs,
            (p - 1) * inputs / 2,
            half * w + np.maximum(f, inputs) / 2,
            (p - 1) * (inputs - w),
        )
        return np.maximum(whole - self.idle(p, np.inf, v, f, b, w), 0.0)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $5p - 7$: few, since enough is in flight."""
        return 5 * p - 7 + 0 * m


def _go_on(row: Row, p: int, count: int, device: int) -> None:
    """Add what follows the first backward passes: both chunks in turn, then the backward passes that are left."""
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
    row.rest()
