"""Who does what, in which order: the work of each device of a pipeline in one step, and what each piece waits for.

A model of S stages is a path over (device, chunk): a chunk is a part of the model that a device holds. Interleaved schedules
wind round and round, V-shaped ones go down and come back, and DualPipe has two paths, one each way, each with half the
micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from steptime.errors import InputError
from steptime.number_checks import Array

FORWARD, BACKWARD, INPUT, WEIGHT, PAIR = range(5)
KINDS: Final = ("F", "B", "B_in", "W", "FB")  # whole backward; its two halves; a forward and a whole backward overlapped

Item = tuple[int, int, int, int, int]  # kind, chunk, micro-batch, and of a pair the chunk and micro-batch that go backward


class Row:
    """The work of one device as it is written down: micro-batches of a chunk in order, weight gradients first in, first out."""

    def __init__(self, first: Sequence[int] = (0,), limit: int = 1 << 60) -> None:
        """Start with the first micro-batch of each chunk; those from `limit` on are left out."""
        self.items: list[Item] = []
        self._next = {kind: list(first) for kind in (FORWARD, INPUT)}
        self._pending: list[tuple[int, int]] = []
        self._most = limit

    def _take(self, kind: int, chunk: int) -> int:
        micro = self._next[kind][chunk]
        self._next[kind][chunk] += 1
        return micro

    def _add(self, kind: int, chunk: int, micro: int) -> None:
        if micro < self._most:
            self.items.append((kind, chunk, micro, -1, -1))

    def forward(self, chunk: int = 0) -> None:
        """Add a forward pass."""
        self._add(FORWARD, chunk, self._take(FORWARD, chunk))

    def backward(self, chunk: int = 0) -> None:
        """Add a whole backward pass."""
        self._add(BACKWARD, chunk, self._take(INPUT, chunk))

    def inputs(self, chunk: int = 0) -> None:
        """Add the half of a backward pass that the stage before waits for."""
        micro = self._take(INPUT, chunk)
        self._add(INPUT, chunk, micro)
        self._pending.append((chunk, micro))

    def weights(self, chunk: int | None = None) -> None:
        """Add the longest pending gradients of weights, of one chunk if it is given; nothing if none is pending."""
        pending_pass = next((pair for pair in self._pending if chunk in (None, pair[0])), None)
        if pending_pass is not None:
            self._pending.remove(pending_pass)
            self._add(WEIGHT, *pending_pass)

    def pair(self, ahead: int, back: int) -> None:
        """Add a forward pass of chunk `ahead` overlapped with a whole backward pass of chunk `back`."""
        self.items.append((PAIR, ahead, self._take(FORWARD, ahead), back, self._take(INPUT, back)))

    def flush_weights(self) -> None:
        """Add all gradients of weights that are pending."""
        while self._pending:
            self.weights()


@dataclass(frozen=True)
class Order:
    """The work of a step: one entry an item, those of a device together and in the order in which it does them.

    paths: (lanes, stages, 2) device and chunk of each stage of the model. microbatches: of the whole step; the lanes share
    them. device, kind, chunk, micro; back_chunk, back_micro: of pairs, what goes backward (else -1).
    """

    paths: Array
    microbatches: int
    device: Array
    kind: Array
    chunk: Array
    micro: Array
    back_chunk: Array
    back_micro: Array

    @property
    def devices(self) -> int:
        """Devices of the pipeline."""
        return int(self.paths[..., 0].max()) + 1

    @property
    def chunks(self) -> int:
        """Parts of the model on each device."""
        return int(self.paths[..., 1].max()) + 1

    @cached_property
    def links(self) -> Links:
        """What each item waits for."""
        return _links(self)


@dataclass(frozen=True, slots=True)
class Links:
    """What items wait for, in an order in which none comes before what it waits for.

    rank: where an item stands in that order. waves: bounds of groups of items that do not wait for one another. after:
    (waits, items) places + 1 of the items waited for, 0 for nothing; sender: the devices that they come from.
    """

    rank: Array
    waves: Array
    after: Array
    sender: Array


def step_order(paths: Array, microbatches: int, rows: Sequence[Sequence[Item]]) -> Order:
    """Return the order of a step from the items of each device."""
    device = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    columns = np.array([item for row in rows for item in row], dtype=np.int64).reshape(-1, 5).T
    return Order(paths, microbatches, device, *columns)


def forward_path(devices: int, chunk: int = 0) -> list[tuple[int, int]]:
    """Return the path from the first device to the last."""
    return [(device, chunk) for device in range(devices)]


def interleaved_path(devices: int, virtual: int) -> Array:
    """Return the path that goes round `virtual` times: stage s lies on device s mod p (interleaved)."""
    return np.array([[step for chunk in range(virtual) for step in forward_path(devices, chunk)]])


def v_path(devices: int) -> Array:
    """Return the path down and back: the first device holds the first and the last stage."""
    return np.array([[*forward_path(devices, 0), *reversed(forward_path(devices, 1))]])


def two_way_paths(devices: int) -> Array:
    """Return two paths, down and up, each through a copy of the whole model."""
    return np.array([forward_path(devices, 0), list(reversed(forward_path(devices, 1)))])


def _ends(order: Order) -> tuple[Array, Array]:
    """Return the items that end the forward and the backward pass of (device, chunk, micro-batch), -1 for none."""
    shape = (order.devices, order.chunks, order.microbatches)
    forward, backward = np.full(shape, -1), np.full(shape, -1)
    places = np.arange(len(order.kind))
    is_forward = np.isin(order.kind, (FORWARD, PAIR))
    forward[order.device[is_forward], order.chunk[is_forward], order.micro[is_forward]] = places[is_forward]
    is_backward = np.isin(order.kind, (BACKWARD, INPUT))
    backward[order.device[is_backward], order.chunk[is_backward], order.micro[is_backward]] = places[is_backward]
    is_pair = order.kind == PAIR
    backward[order.device[is_pair], order.back_chunk[is_pair], order.back_micro[is_pair]] = places[is_pair]
    return forward, backward


def _dependencies(order: Order) -> Array:
    """Return (3, items): the item before on the device, what a forward waits for, what a backward waits for; -1 for nothing."""
    forward, backward = _ends(order)
    lanes, stages, _ = order.paths.shape
    stage = np.full((lanes, order.devices, order.chunks), -1)
    for lane in range(lanes):
        stage[lane, order.paths[lane, :, 0], order.paths[lane, :, 1]] = np.arange(stages)
    places = np.arange(len(order.kind))
    waits = np.full((3, len(places)), -1)
    waits[0] = np.where(np.append(-1, order.device[:-1]) == order.device, places - 1, -1)
    share = order.microbatches // lanes

    is_forward = np.isin(order.kind, (FORWARD, PAIR))
    lane, microbatch = order.micro[is_forward] // share, order.micro[is_forward]
    stage_index = stage[lane, order.device[is_forward], order.chunk[is_forward]]
    previous_stage = order.paths[lane, np.maximum(stage_index - 1, 0)]
    waits[1, is_forward] = np.where(stage_index > 0, forward[previous_stage[:, 0], previous_stage[:, 1], microbatch], -1)

    is_backward = np.isin(order.kind, (BACKWARD, INPUT, PAIR))
    is_pair = order.kind == PAIR
    chunk = np.where(is_pair, order.back_chunk, order.chunk)[is_backward]
    micro = np.where(is_pair, order.back_micro, order.micro)[is_backward]
    lane, device = micro // share, order.device[is_backward]
    stage_index = stage[lane, device, chunk]
    next_stage = order.paths[lane, np.minimum(stage_index + 1, stages - 1)]
    waits[2, is_backward] = np.where(
        stage_index < stages - 1, backward[next_stage[:, 0], next_stage[:, 1], micro], forward[device, chunk, micro]
    )
    return waits


def _levels(waits: Array) -> Array:
    """Return for each item how many items stand in the longest chain that it waits for."""
    count = waits.shape[1]
    pending_counts = (waits >= 0).sum(axis=0).tolist()
    followers: list[list[int]] = [[] for _ in range(count)]
    for row in waits:
        for item in np.flatnonzero(row >= 0).tolist():
            followers[row[item]].append(item)
    level = [0] * count
    ready = [item for item in range(count) if pending_counts[item] == 0]
    for item in ready:
        next_level = level[item] + 1
        for follower in followers[item]:
            level[follower] = max(level[follower], next_level)
            pending_counts[follower] -= 1
            if pending_counts[follower] == 0:
                ready.append(follower)
    if len(ready) < count:
        raise InputError("a schedule in which devices wait for one another in a circle cannot run")
    return np.array(level)


def _links(order: Order) -> Links:
    waits = _dependencies(order)
    level = _levels(waits)
    items_by_level = np.argsort(level, kind="stable")
    rank = np.empty_like(items_by_level)
    rank[items_by_level] = np.arange(len(items_by_level))
    waves = np.append(np.flatnonzero(np.diff(level[items_by_level], prepend=-1)), len(level))
    sender = np.where(waits >= 0, order.device[waits], order.device)[:, items_by_level]
    after = np.where(waits >= 0, rank[waits] + 1, 0)[:, items_by_level]
    is_used = np.append(True, (waits[1:] >= 0).any(axis=1))
    if not np.any((waits[1] >= 0) & (waits[2] >= 0)):  # without pairs one row does for both directions
        has_no_forward_wait = waits[1, items_by_level] < 0
        after = np.array([after[0], np.where(has_no_forward_wait, after[2], after[1])])
        sender = np.array([sender[0], np.where(has_no_forward_wait, sender[2], sender[1])])
        is_used = np.array([True, bool(is_used[1:].any())])
    return Links(rank=rank, waves=waves, after=after[is_used], sender=sender[is_used])
