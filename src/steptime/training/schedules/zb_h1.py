"""ZB-H1: gradients of weights fill the end of the step, at the memory of 1F1B."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Number
from steptime.training.schedules.schedule import Schedule, longest
from steptime.training.schedules.work_order import Item, Row


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
        row.rest()
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
