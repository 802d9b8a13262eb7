"""DualPipeV: DualPipe cut in half, so that one copy of the parameters does, in a V."""

from __future__ import annotations

from typing import final

from steptime.number_checks import Array, Number
from steptime.training.schedules.dualpipe_order import dual, waits
from steptime.training.schedules.schedule import Condition, Schedule
from steptime.training.schedules.work_order import Item, Row, vee


@final
class DualPipeV(Schedule):
    """DualPipeV (deepseek-ai/DualPipe, after the "cut in half" of https://hackmd.io/@ufotalent/r1lVXsa9Jg)."""

    name = "dualpipev"
    aliases = ("dualpipe-v", "cut-in-half")
    virtual = 2
    split = True
    overlapped = True
    source = "https://github.com/deepseek-ai/DualPipe"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """As many micro-batches as there are virtual stages (dualpipe/dualpipev.py)."""
        return (
            Condition(lambda x: x.p >= 2, lambda x: f"needs at least 2 stages, not pp={x.p}"),
            Condition(lambda x: x.m >= 2 * x.p, lambda x: f"needs at least 2 x pp = {2 * x.p} micro-batches, not {x.m}"),
        )

    def paths(self, p: int, v: int) -> Array:
        """Return the path down and back."""
        return vee(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the work of a device of the first half of a DualPipe of 2p devices."""
        return dual(Row((0, 0)), p, device, m, 0, 1)

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return $(p-1)(fb+b-3w)/2$ [s] where $f = b - w = w$: DualPipe's of 2p stages, each half as long (its README).

        >>> float(DualPipeV().idle(8, 32, 2, 1.0, 2.0, 1.0))
        7.0
        """
        return waits(p - 1, f / 2, (b - w) / 2, w / 2, (f + b if fb is None else fb) / 2)

    def pairs(self, p: Number, m: Number, v: Number) -> Number:
        """Return $m - p - 1/2$: of the device with most."""
        return m - p - 0.5

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return $p+1/2$: 2p + 1 half stages (README of deepseek-ai/DualPipe)."""
        return p + 0.5 + 0 * m

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return $2(p - 1)m/p + 2(p - 2)$: every micro-batch waits for those that come back."""
        return 2 * (p - 1) * m / p + 2 * (p - 2)
