"""Zero-bubble schedules ZB-H1, ZB-H2 and ZBV: gradients of weights fill the bubble (arXiv 2401.10241)."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Array, Number
from steptime.training.schedules.schedule import Condition, Schedule, longest
from steptime.training.schedules.work_order import Item, Row, v_path


@final
class ZeroBubbleH1(Schedule):
    """ZB-H1 (arXiv 2401.10241, section 2.1): 1F1B whose device i puts i gradients of weights off; ZB1P is its like."""

    name = "zb-h1"
    aliases = ("zb1p", "zbh1", "zero-bubble", "zerobubble", "zbb")
    split = True
    source = "https://arxiv.org/abs/2401.10241"

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return 1F1B with split backward passes, `device` gradients of weights behind."""
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
        r"""Return $(p-1) \max(f, b-w, f+b-2w)$ [s], which is the published $(p-1)(f+b-2w)$ where w is the shortest pass.

        Below p micro-batches the gradients of weights that fill the step's end are missing. Source: arXiv 2401.10241, table 2.

        >>> float(ZeroBubbleH1().idle(8, 32, 1, 1.0, 2.0, 1.0))
        7.0
        """
        inputs = b - w
        return (p - 1) * longest(f, inputs, f + inputs - w) + np.maximum(p - m, 0) * np.minimum(inputs, w)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        r"""Return $\min(m, p)$, alike on all devices (arXiv 2401.10241, table 2)."""
        return np.minimum(m, p)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $4(p - 1)$: few, since enough is in flight."""
        return 4 * (p - 1) + 0 * m


@final
class ZeroBubbleH2(Schedule):
    """ZB-H2 (arXiv 2401.10241, section 2.2); ZB2P is its like."""

    name = "zb-h2"
    aliases = ("zb2p", "zbh2")
    split = True
    post_validation = True
    source = "https://arxiv.org/abs/2401.10241"

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return twice the forward passes of 1F1B, then backward and forward, 2 `device` gradients of weights behind."""
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
        r"""Return $(p-1) \max(0, b-w-f, f+b-3w)$ [s] between a device's first and last piece of work: 0 where all are alike.

        The published $(p-1)(f+b-3w)$ where w is the shortest pass. Below 2p - 1 micro-batches forward passes do not fill the
        wait for the first that comes back. Source: arXiv 2401.10241, table 2.
        """
        inputs = b - w
        gap = (p - 1) * np.maximum(f + inputs - 2 * w, inputs - f)
        return np.maximum(np.maximum(gap, (p - 1) * inputs + (p - m) * f), 0.0)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        r"""Return $\min(m, 2p-1)$, alike on all devices (arXiv 2401.10241, table 2)."""
        return np.minimum(m, 2 * p - 1)

    def stagger(self, p: Number, v: Number, f: Number, b: Number, w: Number) -> Number:
        """Return $(p-1) f$ [s] less what is idle anyway: the last device begins so much later than the first."""
        return np.maximum((p - 1) * f - self.idle(p, np.inf, v, f, b, w), 0.0)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $p - 1$: few, since enough is in flight."""
        return p - 1 + 0 * m


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
        return v_path(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the order of at least 2p - 1 micro-batches, those left out that there are not."""
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
        delay_seconds = longest(
            (p - 1.5) * f - half * inputs,
            (p - 1) * inputs / 2,
            half * w + np.maximum(f, inputs) / 2,
            (p - 1) * (inputs - w),
        )
        return np.maximum(delay_seconds - self.idle(p, np.inf, v, f, b, w), 0.0)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $5p - 7$: few, since enough is in flight."""
        return 5 * p - 7 + 0 * m


def _add_steady_passes(row: Row, p: int, count: int, device: int) -> None:
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
    row.flush_weights()
