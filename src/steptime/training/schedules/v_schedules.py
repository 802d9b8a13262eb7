"""V-half and V-min: schedules that repeat a building block of slots.

The building block is the set of slots of the passes of one micro-batch. Its lifespan, from a forward pass to the gradients
of the weights, sets how many micro-batches are in flight. Source: Pipeline Parallelism with Controllable Memory, arXiv
2405.15362, sections 3 and 4.

A slot is the time of one pass of one chunk, the same for all kinds. Repeated blocks leave holes at the beginning and the
end of a step. Passes there move forward into the holes as long as no device has more activations than in the middle of the
step.
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

# Slots from one micro-batch to the next: forward, backward and gradients of the weights of two chunks.
SLOTS_PER_MICROBATCH = 6
Block = Callable[[int, int], tuple[int, int, int, int]]
# Kind, chunk, micro-batch.
Piece = tuple[int, int, int]
PASSES = ((FORWARD, 0), (FORWARD, 1), (INPUT, 1), (INPUT, 0))


class Slots:
    """The slots of one device: the pass in each slot, and its activations."""

    def __init__(self, block: tuple[int, int, int, int], micros: int, length: int) -> None:
        """Repeat the block; weight gradients take the next free slots, in order."""
        self.slot: dict[Piece, int] = {
            (kind, chunk, i): start_slot + SLOTS_PER_MICROBATCH * i
            for (kind, chunk), start_slot in zip(PASSES, block, strict=True)
            for i in range(micros)
        }
        self.taken = np.zeros(length, dtype=bool)
        self.taken[list(self.slot.values())] = True
        # Change of the activations per slot: one more at a forward pass, one less after the weight gradients.
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
        """Move a pass to the first free slot in which memory permits it.

        Args:
            piece: Kind, chunk and micro-batch of the pass.
            first_slot: First slot that the pass may take.
            limit: Activations that the device may have at once.
        """
        start_slot, kind = self.slot[piece], piece[0]
        for target_slot in range(first_slot, start_slot):
            # An earlier forward pass keeps its activations for longer, so that every slot in between must
            # have room.
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
    """Return the work of each device in a step that repeats a building block.

    Args:
        block: Function of (p, device) that returns the slots of micro-batch 0.
        p: Pipeline stages (devices).
        m: Micro-batches per step.

    Returns:
        Items of each device.
    """
    blocks = [block(p, device) for device in range(p)]
    # Room for all blocks, plus the slots that delayed weight gradients take after the last block.
    length = max(map(max, blocks)) + SLOTS_PER_MICROBATCH * m + 2 * m + 2
    devices = [Slots(device_slots, m, length) for device_slots in blocks]
    limit = max(int(device.held.max()) for device in devices)
    first_backward, last_forward = devices[0].slot[INPUT, 0, 0], devices[0].slot[FORWARD, 0, m - 1]
    # Only passes outside the steady state, before the first backward or after the last forward, move into holes.
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
    """Return the first slot that a pass may take.

    A pass comes after its dependencies and after the previous pass of its kind.
    """
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
        """Return the slots of F 0, F 1, B_in 1 and B_in 0 of micro-batch 0 on a device.

        Args:
            p: Pipeline stages (devices).
            device: Index of the device, from 0.

        Returns:
            Slot of each pass.
        """

    # Two devices need as much memory as 1F1B.
    conditions = (Condition(lambda x: x.p >= 3, lambda x: f"needs at least 3 stages to save memory, got pp={x.p}; take 1f1b"),)

    def paths(self, p: int, v: int) -> Array:
        """Return the path from the first device to the last and back.

        Args:
            p: Pipeline stages (devices).
            v: Virtual stages per device.

        Returns:
            Device and chunk of each stage, (1, 2 p, 2).
        """
        return v_path(p)

    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the repeated building block of a device, without holes at both ends.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Items of the device.
        """
        return list(block_items(self.block, p, m)[device])


@final
class VHalf(BuildingBlockSchedule):
    """V-half: about half of the activations of 1F1B.

    Source: Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4.
    """

    name = "v-half"
    aliases = ("vhalf",)

    @staticmethod
    def block(p: int, device: int) -> tuple[int, int, int, int]:
        """Return the slots of one micro-batch.

        A forward pass takes two slots per device down and one per device back. The backward pass does the same.

        Args:
            p: Pipeline stages (devices).
            device: Index of the device, from 0.

        Returns:
            Slot of each pass.
        """
        gap = 3 if p % 2 == 0 else 0
        return 2 * device, 3 * p - device - 2, 3 * p + gap + 2 * device - 1, 6 * p + gap - device - 2

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the idle seconds of a device, about half of those of 1F1B.

        The time is about $(7p-10)/4$ passes of a device where $f = b - w = w$. The paper gives no formula ("~p/2m" of the
        step). This one is fitted to the event simulation; it is exact from m = p on for equal passes and even p (odd:
        $7(p-1)/4$).

        A micro-batch needs at least $2 max(f, b-w) + w/2$.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].
            fb: A forward pass overlapped with a whole backward pass [s]; their sum if not given.

        Returns:
            Seconds.

        References:
            arXiv 2405.15362, and its page, huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-memory.
        """
        inputs, odd = b - w, p % 2 * 0.75
        few_microbatches = (p - m) * (f + inputs) - (m - 1) * w
        equal_passes = (p / 2 - 1 + odd) * f + (1.5 * p - 2) * inputs - (p / 4 - 0.5) * w
        backward_bound = m * (inputs - f - w / 2) + (p + 1) * f + (p - 4) * inputs + 1.5 * w
        forward_bound = m * (f - inputs - w / 2) - 2.5 * f + (2 * p - 0.5) * inputs + 1.5 * w
        return np.maximum(longest(equal_passes, backward_bound, forward_bound, few_microbatches), 0.0)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return the peak number of micro-batches in flight, $(p+2)/2$ rounded down.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.

        References:
            Page of arXiv 2405.15362.
        """
        return np.minimum(m, (p + 2) // 2)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops of the longest chain of equal passes, from the event simulation.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step.
        """
        return 5 * p - 6 + 0 * m


@final
class VMin(BuildingBlockSchedule):
    """V-min: about a third of the activations of 1F1B.

    Source: Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4.
    """

    name = "v-min"
    aliases = ("vmin",)

    @staticmethod
    def block(p: int, device: int) -> tuple[int, int, int, int]:
        """Return the slots of one micro-batch.

        Each pass takes one slot per device in each direction.

        Args:
            p: Pipeline stages (devices).
            device: Index of the device, from 0.

        Returns:
            Slot of each pass.
        """
        gap = 2 if p % 3 == 0 else 0
        return device, 2 * p - device - 1, 2 * p + gap + device, 4 * p + gap - device - 1

    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the idle seconds of a device, about two thirds of those of 1F1B.

        The time is about $2p-5/2$ passes of a device where $f = b - w = w$. The paper gives no formula ("~2p/3m" of the
        step). This one is fitted to the event simulation from m = p on.

        A micro-batch needs at least $3 max(f, b-w)$, so that the schedule suits equal passes.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].
            fb: A forward pass overlapped with a whole backward pass [s]; their sum if not given.

        Returns:
            Seconds.

        References:
            arXiv 2405.15362.
        """
        inputs = b - w
        few_microbatches = (p - m) * (f + inputs) - (m - 1) * w
        equal_passes = (p + 1) / 2 * f + (11 * p - 19) / 6 * inputs - (p - 0.5) / 3 * w
        backward_bound = m * (2 * inputs - f - w) + (p + 0.5) * f + (p - 4) * inputs + w
        forward_bound = m * (2 * f - inputs - w) - 2.5 * f + (2 * p - 1.5) * inputs + 1.5 * w
        return np.maximum(longest(equal_passes, backward_bound, forward_bound, few_microbatches), 0.0)

    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return the peak number of micro-batches in flight, $(p+4)/3$ rounded down.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.

        References:
            Page of arXiv 2405.15362.
        """
        return np.minimum(m, (p + 4) // 3)

    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return the hops of the longest chain of equal passes, from the event simulation.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step.
        """
        return 6 * (p - 1) * m / p + 2.5 * p - 2
