"""1F1B: one forward pass, one backward pass, so that no more micro-batches are in flight than there are stages."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Number
from steptime.training.schedules.schedule import Schedule
from steptime.training.schedules.work_order import Item, Row


@final
class OneFOneB(Schedule):
    """1F1B with a flush (PipeDream-Flush, arXiv 2006.09503; Megatron-LM's schedule without interleaving, arXiv 2104.04473)."""

    name = "1f1b"
    aliases = ("pipedream-flush", "dapple", "non-interleaved")
    source = "https://arxiv.org/abs/2104.04473"

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return as many forward passes as stages follow, then one forward, one backward, then what is left."""
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
        """Return $(p-1)(f+b)$ [s] (arXiv 2104.04473, section 2.2.1)."""
        return (p - 1) * (f + b)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        r"""Return $\min(m, p-i)$ of device i.

        >>> OneFOneB().in_flight(4, 8, 1, np.arange(4)).tolist()
        [4, 3, 2, 1]
        """
        return np.minimum(m, p - device)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $2(p - 1)m/p + 2(p - 2)$: every micro-batch waits for those that come back."""
        return 2 * (p - 1) * m / p + 2 * np.maximum(p - 2, 0)
