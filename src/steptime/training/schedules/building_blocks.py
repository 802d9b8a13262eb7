"""Schedules made by repeating a building block: where the passes of one micro-batch stand, the next six slots later.

The lifespan of the block, from a forward pass to the gradients of weights, decides how many micro-batches are in flight
(Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, sections 3 and 4). A slot is the time of one pass of
one chunk, all kinds alike. Repeated blocks leave holes at the beginning and the end of a step, so passes there are moved
forward into holes as long as no device comes to hold more than in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from steptime.number_checks import Array
from steptime.training.schedules.work_order import FORWARD, INPUT, WEIGHT, Item

EVERY = 6  # slots from one micro-batch to the next: forward, backward and gradients of weights of two chunks
Block = Callable[[int, int], tuple[int, int, int, int]]  # of (p, device): slots of F 0, F 1, B_in 1, B_in 0
Piece = tuple[int, int, int]  # kind, chunk, micro-batch
PASSES = ((FORWARD, 0), (FORWARD, 1), (INPUT, 1), (INPUT, 0))


class Slots:
    """The slots of one device: what stands in each, and how much the device holds during each."""

    def __init__(self, block: tuple[int, int, int, int], micros: int, length: int) -> None:
        """Repeat the block; gradients of weights take the free slots that follow, first in first out."""
        self.slot: dict[Piece, int] = {
            (kind, chunk, i): at + EVERY * i for (kind, chunk), at in zip(PASSES, block, strict=True) for i in range(micros)
        }
        self.taken = np.zeros(length, dtype=bool)
        self.taken[list(self.slot.values())] = True
        free, change = 0, np.zeros(length + 1, dtype=np.int64)
        for at, (kind, chunk, i) in sorted((at, piece) for piece, at in self.slot.items()):
            change[at] += kind == FORWARD
            if kind == INPUT:
                free = max(free, at + 1)
                while self.taken[free]:
                    free += 1
                self.slot[WEIGHT, chunk, i] = free
                self.taken[free] = True
                change[free + 1] -= 1
        self.held: Array = np.cumsum(change)

    def move(self, piece: Piece, since: int, most: int) -> None:
        """Move a piece of work to the first free slot from `since` on at which the device holds no more than `most`."""
        old, kind = self.slot[piece], piece[0]
        for at in range(since, old):
            if self.taken[at] or (kind == FORWARD and self.held[at:old].max() >= most):
                continue
            self.taken[old], self.taken[at] = False, True
            self.slot[piece] = at
            if kind == FORWARD:
                self.held[at:old] += 1
            elif kind == WEIGHT:
                self.held[at + 1 : old + 1] -= 1
            return


@lru_cache(maxsize=4)
def rows(block: Block, p: int, m: int) -> tuple[tuple[Item, ...], ...]:
    """Return the work of each device in a step of m micro-batches."""
    blocks = [block(p, device) for device in range(p)]
    length = max(map(max, blocks)) + EVERY * m + 2 * m + 2
    devices = [Slots(one, m, length) for one in blocks]
    most = max(int(device.held.max()) for device in devices)
    begun, ending = devices[0].slot[INPUT, 0, 0], devices[0].slot[FORWARD, 0, m - 1]
    for at, d, piece in sorted((at, d, piece) for d, one in enumerate(devices) for piece, at in one.slot.items()):
        if not begun < at < ending:
            devices[d].move(piece, _since(devices, d, piece), most)
    return tuple(tuple((*piece, -1, -1) for piece in sorted(one.slot, key=one.slot.__getitem__)) for one in devices)


def _since(devices: list[Slots], d: int, piece: Piece) -> int:
    """Return the first slot at which a piece may stand: after what it waits for, and after the one before it of its kind."""
    kind, chunk, i = piece
    own = devices[d].slot
    before = [own[kind, chunk, i - 1]] if i else []
    if kind == WEIGHT:
        return max([own[INPUT, chunk, i], *before]) + 1
    goes_down = (kind == FORWARD) == (chunk == 0)
    neighbour = d - 1 if goes_down else d + 1
    if 0 <= neighbour < len(devices):
        before.append(devices[neighbour].slot[kind, chunk, i])
    place = PASSES.index((kind, chunk))
    if place:
        before.append(own[*PASSES[place - 1], i])
    return max(before, default=-1) + 1
