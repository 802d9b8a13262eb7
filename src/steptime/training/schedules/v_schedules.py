"""V-half and V-min: schedules that repeat a building block, the slots of the passes of one micro-batch.

The lifespan of the block, from a forward pass to the gradients of weights, sets how many micro-batches are in flight
(Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, sections 3 and 4). A slot is the time of one pass of
one chunk, the same for all kinds. Repeated blocks leave holes at the beginning and the end of a step. Passes there move
forward into the holes as long as no device holds more activations than in the middle of the step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import final

import numpy as np

from steptime.number_checks import Array, Number
from steptime.training.schedules.schedule import Condition, Schedule, longest
from steptime.training.schedules.work_order import FORWARD, INPUT, WEIGHT, Item, v_path

SLOTS_PER_MICROBATCH = 6  # slots from one micro-batch to the next: forward, backward and gradients of weights of two chunks
Block = Callable[[int, int], tuple[int, int, int, int]]
Piece = tuple[int, int, int]  # kind, chunk, micro-batch
PASSES = ((FORWARD, 0), (FORWARD, 1), (INPUT, 1), (INPUT, 0))


class Slots:
    """The slots of one device: what stands in each, and how much the device holds during each."""

    def __init__(self, block: tuple[int, int, int, int], micros: int, length: int) -> None:
        """Repeat the block; gradients of weights take the free slots that follow, first in first out."""
        self.slot: dict[Piece, int] = {
            (kind, chunk, i): start_slot + SLOTS_PER_MICROBATCH * i
            for (kind, chunk), start_slot in zip(PASSES, block, strict=True)
            for i in range(micros)
        }
        self.taken = np.zeros(length, dtype=bool)
        self.taken[list(self.slot.values())] = True
        free_slot, change = 0, np.zeros(length + 1, dtype=np.int64)
        for start_slot, (kind, chunk, i) in sorted((start_slot, piece) for piece, start_slot in self.slot.items()):
            change[start_slot] += kind == FORWARD
            if kind == INPUT:
                free_slot = max(free_slot, start_slot + 1)
                while self.taken[free_slot]:
                    free_slot += 1
                self.slot[WEIGHT, chunk, i] = free_slot
                self.taken[free_slot] = True
                change[free_slot + 1] -= 1
        self.held: Array = np.cumsum(change)

    def move(self, piece: Piece, first_slot: int, limit: int) -> None:
        """Move a piece of work to the first free slot from `first_slot` on at which the device holds no more than `limit`."""
        start_slot, kind = self.slot[piece], piece[0]
        for target_slot in range(first_slot, start_slot):
            if self.taken[target_slot] or (kind == FORWARD and self.held[target_slot:start_slot].max() >= limit):
                continue
            self.taken[start_slot], self.taken[target_slot] = False, True
            self.slot[piece] = target_slot
            if kind == FORWARD:
                self.held[target_slot:start_slot] += 1
            elif kind == WEIGHT:
                self.held[target_slot + 1 : start_slot + 1] -= 1
            return


@lru_cache(maxsize=4)
def block_items(block: Block, p: int, m: int) -> tuple[tuple[Item, ...], ...]:
    """Return the work of each device in a step of m micro-batches."""
    blocks = [block(p, device) for device in range(p)]
    length = max(map(max, blocks)) + SLOTS_PER_MICROBATCH * m + 2 * m + 2
    devices = [Slots(device_slots, m, length) for device_slots in blocks]
    limit = max(int(device.held.max()) for device in devices)
    first_backward, last_forward = devices[0].slot[INPUT, 0, 0], devices[0].slot[FORWARD, 0, m - 1]
    for start_slot, d, piece in sorted(
        (start_slot, d, piece) for d, device_slots in enumerate(devices) for piece, start_slot in device_slots.slot.items()
    ):
        if not first_backward < start_slot < last_forward:
            devices[d].move(piece, _first_slot(devices, d, piece), limit)
    return tuple(
        tuple((*piece, -1, -1) for piece in sorted(device_slots.slot, key=device_slots.slot.__getitem__))
        for device_slots in devices
    )


def _first_slot(devices: list[Slots], device: int, piece: Piece) -> int:
    """Return the first slot at which a piece may stand: after what it waits for, and after the one before it of its kind."""
    kind, chunk, i = piece
    device_slots = devices[device].slot
    dependency_slots = [device_slots[kind, chunk, i - 1]] if i else []
    if kind == WEIGHT:
        return max([device_slots[INPUT, chunk, i], *dependency_slots]) + 1
    goes_down = (kind == FORWARD) == (chunk == 0)
    neighbour = device - 1 if goes_down else device + 1
    if 0 <= neighbour < len(devices):
        dependency_slots.append(devices[neighbour].slot[kind, chunk, i])
    pass_index = PASSES.index((kind, chunk))
    if pass_index:
        dependency_slots.append(device_slots[*PASSES[pass_index - 1], i])
    return max(dependency_slots, default=-1) + 1


class BuildingBlockSchedule(Schedule):
    """A schedule that repeats a building block of slots."""

    virtual = 2
    split = True
    source = "https://arxiv.org/abs/2405.15362"

    @staticmethod
    @abstractmethod
    def block(p: int, device: int) -> tuple[int, int, int, int]:
        """Return the slots of F 0, F 1, B_in 1 and B_in 0 of micro-batch 0 on a device of p."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """At least three devices: two hold as much as with 1F1B."""
        return (Condition(lambda x: x.p >= 3, lambda x: f"needs at least 3 stages to save memory, not pp={x.p}; take 1f1b"),)

    def paths(self, p: int, v: int) -> Array:
        """Return the path down and back."""
        return v_path(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the building block repeated, moved together at the beginning and the end."""
        return list(block_items(self.block, p, m)[device])


@final
class VHalf(BuildingBlockSchedule):
    """V-half (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4)."""

    name = "v-half"
    aliases = ("vhalf",)

    @staticmethod
    def block(p: int, device: int) -> tuple[int, int, int, int]:
        """Return the slots of one micro-batch: two to a device on the way down, one on the way back, and both ways again."""
        gap = 3 if p % 2 == 0 else 0
        return 2 * device, 3 * p - device - 2, 3 * p + gap + 2 * device - 1, 6 * p + gap - device - 2

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return about $(7p-10)/4$ times a pass of a device [s] where $f = b - w = w$: some half of 1F1B's.

        Not published as a formula (arXiv 2405.15362: "~p/2m" of the step): read off the walk, where it is exact from m = p on
        for equal passes and even p (odd: $7(p-1)/4$). A micro-batch needs $2 max(f, b-w) + w/2$ at the least, as
        the paper's page has it (huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-memory).
        """
        inputs, odd = b - w, p % 2 * 0.75
        few_microbatches = (p - m) * (f + inputs) - (m - 1) * w
        equal_passes = (p / 2 - 1 + odd) * f + (1.5 * p - 2) * inputs - (p / 4 - 0.5) * w
        backward_bound = m * (inputs - f - w / 2) + (p + 1) * f + (p - 4) * inputs + 1.5 * w
        forward_bound = m * (f - inputs - w / 2) - 2.5 * f + (2 * p - 0.5) * inputs + 1.5 * w
        return np.maximum(longest(equal_passes, backward_bound, forward_bound, few_microbatches), 0.0)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return $(p+2)/2$, rounded down (arXiv 2405.15362, as its page has it)."""
        return np.minimum(m, (p + 2) // 2)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops of the longest chain where all passes are alike, read off the walk."""
        return 5 * p - 6 + 0 * m


@final
class VMin(BuildingBlockSchedule):
    """V-min (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4)."""

    name = "v-min"
    aliases = ("vmin",)

    @staticmethod
    def block(p: int, device: int) -> tuple[int, int, int, int]:
        """Return the slots of one micro-batch: as fast as it can go down and back, and again."""
        gap = 2 if p % 3 == 0 else 0
        return device, 2 * p - device - 1, 2 * p + gap + device, 4 * p + gap - device - 1

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return about $2p-5/2$ times a pass of a device [s] where $f = b - w = w$: some two thirds of 1F1B's.

        Not published as a formula (arXiv 2405.15362: "~2p/3m" of the step): read off the walk from m = p on. A micro-batch
        needs $3 max(f, b-w)$ at the least: the schedule is for equal passes.
        """
        inputs = b - w
        few_microbatches = (p - m) * (f + inputs) - (m - 1) * w
        equal_passes = (p + 1) / 2 * f + (11 * p - 19) / 6 * inputs - (p - 0.5) / 3 * w
        backward_bound = m * (2 * inputs - f - w) + (p + 0.5) * f + (p - 4) * inputs + w
        forward_bound = m * (2 * f - inputs - w) - 2.5 * f + (2 * p - 1.5) * inputs + 1.5 * w
        return np.maximum(longest(equal_passes, backward_bound, forward_bound, few_microbatches), 0.0)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return $(p+4)/3$, rounded down (arXiv 2405.15362, as its page has it)."""
        return np.minimum(m, (p + 4) // 3)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops of the longest chain where all passes are alike, read off the walk."""
        return 6 * (p - 1) * m / p + 2.5 * p - 2
