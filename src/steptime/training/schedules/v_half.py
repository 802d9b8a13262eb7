"""V-half: half the activations of 1F1B, and about half its bubble."""

from __future__ import annotations

from typing import final

import numpy as np

from steptime.number_checks import Array, Number
from steptime.training.schedules.building_blocks import rows
from steptime.training.schedules.schedule import Condition, Schedule, longest
from steptime.training.schedules.work_order import Item, vee


@final
class VHalf(Schedule):
    """V-half (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4)."""

    name = "v-half"
    aliases = ("vhalf",)
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
        """Return about $(7p-10)/4$ times a pass of a device [s] where $f = b - w = w$: some half of 1F1B's.

        Not published as a formula (arXiv 2405.15362: "~p/2m" of the step): read off the walk, where it is exact from m = p on
        for equal passes and even p (odd: $7(p-1)/4$). A micro-batch needs $2 max(f, b-w) + w/2$ at the least, as
        the paper's page has it (huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-memory).
        """
        inputs, odd = b - w, p % 2 * 0.75
        alone = (p - m) * (f + inputs) - (m - 1) * w
        usual = (p / 2 - 1 + odd) * f + (1.5 * p - 2) * inputs - (p / 4 - 0.5) * w
        back = m * (inputs - f - w / 2) + (p + 1) * f + (p - 4) * inputs + 1.5 * w
        ahead = m * (f - inputs - w / 2) - 2.5 * f + (2 * p - 0.5) * inputs + 1.5 * w
        return np.maximum(longest(usual, back, ahead, alone), 0.0)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return $(p+2)/2$, rounded down (arXiv 2405.15362, as its page has it)."""
        return np.minimum(m, (p + 2) // 2)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops of the longest chain where all passes are alike, read off the walk."""
        return 5 * p - 6 + 0 * m


def _block(p: int, device: int) -> tuple[int, int, int, int]:
    """Return the slots of one micro-batch: two to a device on the way down, one on the way back, and both ways again."""
    gap = 3 if p % 2 == 0 else 0
    return 2 * device, 3 * p - device - 2, 3 * p + gap + 2 * device - 1, 6 * p + gap - device - 2
