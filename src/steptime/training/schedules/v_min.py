"""V-min: a third of the activations of 1F1B, and a bubble that grows with every micro-batch where passes differ."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Array, Number
from steptime.training.schedules.building_blocks import rows
from steptime.training.schedules.schedule import Condition, Schedule, longest
from steptime.training.schedules.work_order import Item, vee


@final
class VMin(Schedule):
    """V-min (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4)."""

    name = "v-min"
    aliases = ("vmin",)
    virtual = 2
    split = True
    source = "https://arxiv.org/abs/2405.15362"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """At least three devices: two hold as much as with 1F1B."""
        return (Condition(lambda x: x.p >= 3, lambda x: f"needs at least 3 stages to save memory, not pp={x.p}; take 1f1b"),)

    def paths(self, p: int, v: int) -> Array:
        """Return the path down and back."""
        return vee(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the building block repeated, moved together at the beginning and the end."""
        return list(rows(_block, p, m)[device])

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return about $2p-5/2$ times a pass of a device [s] where $f = b - w = w$: some two thirds of 1F1B's.

        Not published as a formula (arXiv 2405.15362: "~2p/3m" of the step): read off the walk from m = p on. A micro-batch
        needs $3 max(f, b-w)$ at the least: the schedule is for equal passes.
        """
        inputs = b - w
        alone = (p - m) * (f + inputs) - (m - 1) * w
        usual = (p + 1) / 2 * f + (11 * p - 19) / 6 * inputs - (p - 0.5) / 3 * w
        back = m * (2 * inputs - f - w) + (p + 0.5) * f + (p - 4) * inputs + w
        ahead = m * (2 * f - inputs - w) - 2.5 * f + (2 * p - 1.5) * inputs + 1.5 * w
        return np.maximum(longest(usual, back, ahead, alone), 0.0)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return $(p+4)/3$, rounded down (arXiv 2405.15362, as its page has it)."""
        return np.minimum(m, (p + 4) // 3)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops of the longest chain where all passes are alike, read off the walk."""
        return 6 * (p - 1) * m / p + 2.5 * p - 2


def _block(p: int, device: int) -> tuple[int, int, int, int]:
    """Return the slots of one micro-batch: as fast as it can go down and back, and again."""
    gap = 2 if p % 3 == 0 else 0
    return device, 2 * p - device - 1, 2 * p + gap + device, 4 * p + gap - device - 1
