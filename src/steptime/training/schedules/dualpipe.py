"""DualPipe: micro-batches from both ends at once, forward and backward passes overlapped, two copies of the parameters."""

from __future__ import annotations

from typing import final

from steptime.number_checks import Array, Number
from steptime.training.schedules.dualpipe_order import dual, waits
from steptime.training.schedules.schedule import Condition, Schedule
from steptime.training.schedules.work_order import Item, Row, both_ways


@final
class DualPipe(Schedule):
    """DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1)."""

    name = "dualpipe"
    split = True
    copies = 2
    overlapped = True
    source = "https://github.com/deepseek-ai/DualPipe"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """An even number of stages, and of micro-batches at least twice as many (dualpipe/dualpipe.py)."""
        return (
            Condition(lambda x: x.p % 2 == 0, lambda x: f"needs an even number of stages, not pp={x.p}; try {x.p + 1}"),
            Condition(
                lambda x: (x.m % 2 == 0) & (x.m >= 2 * x.p),
                lambda x: f"needs an even number of micro-batches of at least 2 x pp = {2 * x.p}, not {x.m}",
            ),
        )

    def paths(self, p: int, v: int) -> Array:
        """Return the two paths, down and up."""
        return both_ways(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the work of a device; those of the second half see the same as the first from the other end."""
        near = int(device >= p // 2)
        return dual(Row((0, m // 2)), p // 2, min(device, p - 1 - device), m // 2, near, 1 - near)

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return $(p/2-1)(fb+b-3w)$ [s] where $f = b - w = w$ (README of deepseek-ai/DualPipe).

        >>> float(DualPipe().idle(8, 32, 1, 1.0, 2.0, 1.0))
        6.0
        """
        return waits(p / 2 - 1, f, b - w, w, f + b if fb is None else fb)

    def pairs(self, p: Number, m: Number, v: Number) -> Number:
        """Return $m - p - 1$: of the device with most."""
        return m - p - 1

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return $p+1$ (README of deepseek-ai/DualPipe)."""
        return p + 1 + 0 * m

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $(p - 1)m/p + 1.5p - 3$: every micro-batch waits for those that come back."""
        return (p - 1) * m / p + 1.5 * p - 3
