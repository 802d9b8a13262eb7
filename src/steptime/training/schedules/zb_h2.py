"""ZB-H2: twice the forward passes in flight, and no bubble between a device's first and last piece of work."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Number
from steptime.training.schedules.schedule import Schedule
from steptime.training.schedules.work_order import Item, Row


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
        row.rest()
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
