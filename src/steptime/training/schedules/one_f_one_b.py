"""GPipe, 1F1B and interleaved 1F1B: schedules that do not split the backward pass."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Number
from steptime.training.schedules.schedule import Condition, Schedule
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
