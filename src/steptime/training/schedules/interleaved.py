"""Interleaved 1F1B: each device holds v parts of the model, and the bubble is v times shorter."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Number
from steptime.training.schedules.schedule import Condition, Schedule
from steptime.training.schedules.work_order import Item, Row


@final
class Interleaved(Schedule):
    """Interleaved 1F1B (arXiv 2104.04473): micro-batches go round in groups of p; stages exchange v times as much."""

    name = "interleaved"
    aliases = ("interleaved-1f1b", "1f1b-interleaved", "vpp", "looped-1f1b")
    virtual = 0
    source = "https://arxiv.org/abs/2104.04473"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Micro-batches come in groups of p (Megatron-LM, core/pipeline_parallel/schedules.py)."""
        return (
            Condition(lambda x: x.p >= 2, lambda x: f"needs at least 2 stages, not pp={x.p}"),
            Condition(
                lambda x: x.m % np.maximum(x.p, 1) == 0,
                lambda x: (
                    f"needs micro-batches that are a multiple of pp={x.p}, not {x.m}; the nearest are "
                    + " and ".join(f"{x.p * n}" for n in (x.m // x.p, x.m // x.p + 1) if n)
                ),
            ),
        )

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return groups of p micro-batches through chunk after chunk; backward the same from the last chunk."""
        row = Row([0] * v)
        ahead = min(2 * (p - device - 1) + (v - 1) * p, m * v)
        for turn in range(m * v):
            row.forward(turn // p % v)
            if turn >= ahead:
                row.backward(v - 1 - (turn - ahead) // p % v)
        for turn in range(m * v - ahead, m * v):
            row.backward(v - 1 - turn // p % v)
        return row.items

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return $(p-1)(f+b)/v$ [s] (arXiv 2104.04473, section 2.2.2)."""
        return (p - 1) * (f + b) / v

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        r"""Return $\min(m, p + (p-1-2i)/v)$ of device i.

        Of the first $p (1 + \frac{p-1}{p v})$ (arXiv 2205.05198, section 4.2.3), of each after it two chunks less.

        >>> float(Interleaved().in_flight(8, 64, 2))
        11.5
        """
        return np.minimum(m, p + (p - 1 - 2 * device) / v)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $2(pv - 1)$: few, since enough is in flight."""
        return 2 * (p * v - 1) + 0 * m

    def crossings(self, p: Number, v: Number) -> Number:
        """Return $pv - 1$: round and round."""
        return p * v - 1
