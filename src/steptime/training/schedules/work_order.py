"""Order of work of the devices of a pipeline in one step, with the dependencies.

A model of S stages is a path over (device, chunk); a chunk is a part of the model on a device. The path of an interleaved
schedule visits all devices several times. The path of a V-shaped schedule goes down and comes back. DualPipe has two paths,
one in each direction, each with half of the micro-batches.
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
# Forward pass; whole backward pass; its two halves; a forward and a whole backward pass overlapped.
KINDS: Final = ("F", "B", "B_in", "W", "FB")

# Kind, chunk, micro-batch; of a pair also the chunk and micro-batch that go backward (else -1).
Item = tuple[int, int, int, int, int]


class Row:
    """The work of one device, built up pass by pass.

    Micro-batches of a chunk come in order; gradients of the weights come first in, first out.
    """

    def __init__(self, first: Sequence[int] = (0,), limit: int = 1 << 60) -> None:
        """Start at the first micro-batch of each chunk; leave out `limit` and later ones."""
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
        """Add a forward pass.

        Args:
            chunk: Chunk of the device.
        """
        self._add(FORWARD, chunk, self._take(FORWARD, chunk))

    def backward(self, chunk: int = 0) -> None:
        """Add a whole backward pass.

        Args:
            chunk: Chunk of the device.
        """
        self._add(BACKWARD, chunk, self._take(INPUT, chunk))

    def inputs(self, chunk: int = 0) -> None:
        """Add the half of a backward pass that the previous stage waits for.

        Args:
            chunk: Chunk of the device.
        """
        micro = self._take(INPUT, chunk)
        self._add(INPUT, chunk, micro)
        self._pending.append((chunk, micro))

    def weights(self, chunk: int | None = None) -> None:
        """Add the gradients of the weights that are pending for longest, if any.

        Args:
            chunk: Chunk of the device; any chunk if None.
        """
        pending_pass = next((pair for pair in self._pending if chunk in (None, pair[0])), None)
        if pending_pass is not None:
            self._pending.remove(pending_pass)
            self._add(WEIGHT, *pending_pass)

    def pair(self, ahead: int, back: int) -> None:
        """Add a forward pass overlapped with a whole backward pass.

        Args:
            ahead: Chunk of the forward pass.
            back: Chunk of the backward pass.
        """
        self.items.append((PAIR, ahead, self._take(FORWARD, ahead), back, self._take(INPUT, back)))

    def flush_weights(self) -> None:
        """Add all pending gradients of the weights."""
        while self._pending:
            self.weights()


@dataclass(frozen=True)
class Order:
    """The work of a step: one entry per item, in the order of each device.

    Items of a device are together. paths: (lanes, stages, 2) device and chunk of each stage of the model. microbatches:
    micro-batches of the whole step, which the lanes share. back_chunk, back_micro: chunk and micro-batch of a pair that go
    backward (else -1).
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
        """Chunks of the model on each device."""
        return int(self.paths[..., 1].max()) + 1

    @cached_property
    def links(self) -> Links:
        """Dependencies of each item."""
        return _links(self)


@dataclass(frozen=True, slots=True)
class Links:
    """Dependencies of items, in an order that satisfies all of them.

    rank: position of an item in that order. waves: bounds of groups of items that do not depend on one another. after:
    (waits, items) positions + 1 of the dependencies, 0 for none. sender: devices of the dependencies.
    """

    rank: Array
    waves: Array
    after: Array
    sender: Array


def step_order(paths: Array, microbatches: int, rows: Sequence[Sequence[Item]]) -> Order:
    """Return the order of a step from the items of each device.

    Args:
        paths: Device and chunk of each stage, (lanes, stages, 2).
        microbatches: Micro-batches per step and replica.
        rows: Items of each device.

    Returns:
        Order of the step.
    """
    device = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    columns = np.array([item for row in rows for item in row], dtype=np.int64).reshape(-1, 5).T
    return Order(paths, microbatches, device, *columns)


def forward_path(devices: int, chunk: int = 0) -> list[tuple[int, int]]:
    """Return the path from the first device to the last.

    Args:
        devices: Devices of the pipeline.
        chunk: Chunk on each device.

    Returns:
        Device and chunk of each stage.
    """
    return [(device, chunk) for device in range(devices)]


def interleaved_path(devices: int, virtual: int) -> Array:
    """Return the path that visits all devices several times.

    Stage s is on device s mod p.

    Args:
        devices: Devices of the pipeline.
        virtual: Chunks per device.

    Returns:
        Device and chunk of each stage, (1, devices x virtual, 2).
    """
    return np.array([[step for chunk in range(virtual) for step in forward_path(devices, chunk)]])


def v_path(devices: int) -> Array:
    """Return the path from the first device to the last and back.

    The first device has the first and the last stage.

    Args:
        devices: Devices of the pipeline.

    Returns:
        Device and chunk of each stage, (1, 2 x devices, 2).
    """
    return np.array([[*forward_path(devices, 0), *reversed(forward_path(devices, 1))]])


def two_way_paths(devices: int) -> Array:
    """Return two paths, down and up, each through its own copy of the model.

    Args:
        devices: Devices of the pipeline.

    Returns:
        Device and chunk of each stage, (2, devices, 2).
    """
    return np.array([forward_path(devices, 0), list(reversed(forward_path(devices, 1)))])


def _ends(order: Order) -> tuple[Array, Array]:
    """Return the items that end each forward and backward pass.

    Both arrays have the shape (devices, chunks, micro-batches).

    -1 stands for no item.
    """
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
    """Return the three dependencies of each item, (3, items), -1 for none.

    They are the previous item of the device, the dependency of a forward pass, and the dependency of a backward pass.
    """
    forward, backward = _ends(order)
    lanes, stages, _ = order.paths.shape
    stage = np.full((lanes, order.devices, order.chunks), -1)
    for lane in range(lanes):
        stage[lane, order.paths[lane, :, 0], order.paths[lane, :, 1]] = np.arange(stages)
    places = np.arange(len(order.kind))
    waits = np.full((3, len(places)), -1)
    waits[0] = np.where(np.append(-1, order.device[:-1]) == order.device, places - 1, -1)
    # Each lane has an equal part of the micro-batches, which gives the lane of a micro-batch.
    share = order.microbatches // lanes

    # The forward pass of a stage waits for the previous stage of its path.
    is_forward = np.isin(order.kind, (FORWARD, PAIR))
    lane, microbatch = order.micro[is_forward] // share, order.micro[is_forward]
    stage_index = stage[lane, order.device[is_forward], order.chunk[is_forward]]
    previous_stage = order.paths[lane, np.maximum(stage_index - 1, 0)]
    waits[1, is_forward] = np.where(stage_index > 0, forward[previous_stage[:, 0], previous_stage[:, 1], microbatch], -1)

    # The backward pass of a stage waits for the next stage; on the last stage it waits for its own forward pass.
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
    """Return the length of the longest chain of dependencies before each item."""
    count = waits.shape[1]
    pending_counts = (waits >= 0).sum(axis=0).tolist()
    followers: list[list[int]] = [[] for _ in range(count)]
    for row in waits:
        for item in np.flatnonzero(row >= 0).tolist():
            followers[row[item]].append(item)

    # Topological sort: an item is ready when all of its dependencies are done.
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
        raise InputError("schedule: devices wait for one another in a circle; reorder the items of a device")
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
    # Without pairs no item has both dependencies, so that one row is enough for both directions.
    if not np.any((waits[1] >= 0) & (waits[2] >= 0)):
        has_no_forward_wait = waits[1, items_by_level] < 0
        after = np.array([after[0], np.where(has_no_forward_wait, after[2], after[1])])
        sender = np.array([sender[0], np.where(has_no_forward_wait, sender[2], sender[1])])
        is_used = np.array([True, bool(is_used[1:].any())])
    return Links(rank=rank, waves=waves, after=after[is_used], sender=sender[is_used])
