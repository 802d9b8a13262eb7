"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from typing import final

from steptime.number_checks import Number
from steptime.training.schedules.schedule import Schedule
from steptime.training.schedules.work_order import Item, Row


@final
class GPipe(Schedule):
    """GPipe (arXiv 1811.06965): every micro-batch of a step is in flight when the first comes back."""

    name = "gpipe"
    aliases = ("fthenb",)
    source = "https://arxiv.org/abs/1811.06965"

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return all forward passes, then all backward passes."""
        row = Row()
        for _ in range(m):
            row.forward()
        for _ in range(m):
            row.backward()
        return row.items

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return $(p-1)(f+b)$ [s]: a share $(p-1)/(m+p-1)$ of the step (arXiv 1811.06965, section 2.3)."""
        return (p - 1) * (f + b)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return $m$."""
        return m + 0 * p

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $2(p - 1)$: down with the first micro-batch and back with the last."""
        return 2 * (p - 1) + 0 * m
