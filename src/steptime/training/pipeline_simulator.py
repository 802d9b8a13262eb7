"""An exact walk through a step of a pipeline whose stages may be of unequal length.

A device does its work in the order of its schedule, each piece as soon as the device is free and what it waits for has come. A
hop delays what is sent and keeps neither device busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.number_checks import Array, Number
from steptime.training.schedules.work_order import BACKWARD, FORWARD, INPUT, PAIR, WEIGHT, Order


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """A step as it went [s]. Leading axes are those of the times that were given.

    start, end: (..., items), in the order of `order`. busy: (..., devices) at work. span: (..., devices) from a device's first
    piece to the end of its last. total: from the first piece of all to the last. in_flight: (devices,) most activations that
    a device holds at once, those of all its chunks together for one micro-batch counted as 1.
    """

    order: Order
    start: Array
    end: Array
    busy: Array
    span: Array
    in_flight: Array

    @property
    def total(self) -> Array:
        """Seconds of a step whose optimizer waits for all stages."""
        return np.asarray(self.end.max(axis=-1))

    @property
    def idle(self) -> Array:
        """Seconds in which each device has no work, of a step whose optimizer waits for all stages."""
        return self.total[..., None] - self.busy

    @property
    def period(self) -> Array:
        """Seconds from step to step where a device begins the next as soon as it has ended its own part."""
        return np.asarray(self.span.max(axis=-1))


def simulate_step(
    order: Order, forward: Number, backward: Number, weight: Number = 0.0, *, pair: Number | None = None, hop: Number = 0.0
) -> PipelineRun:
    """Walk through a step.

    forward, backward, weight [s]: of one micro-batch in a chunk, (..., devices, chunks) or what broadcasts to it; backward is
    the whole, weight its part that makes gradients of weights. pair [s]: of a forward pass overlapped with a backward pass, by
    the chunk that goes forward; the sum of both if not given. hop [s]: (..., devices, devices) from one to another, or one
    for all.

    >>> from steptime.training.schedules.schedule import schedule_named
    >>> done = simulate_step(schedule_named("1f1b").order(4, 8), 1.0, 2.0)
    >>> float(done.total), float(done.idle[0]), done.in_flight.tolist()
    (33.0, 9.0, [4.0, 3.0, 2.0, 1.0])
    """
    links, sizes = order.links, (order.devices, order.chunks)
    item_seconds = item_durations(order, forward, backward, weight, pair)
    leading_shape = np.broadcast_shapes(item_seconds.shape[:-1], np.shape(hop)[:-2])
    items_by_rank = np.argsort(links.rank)
    work_seconds = np.moveaxis(np.broadcast_to(item_seconds, (*leading_shape, item_seconds.shape[-1])), -1, 0)[items_by_rank]
    receiver = order.device[items_by_rank]
    hops = np.broadcast_to(np.asarray(hop, dtype=float), (*leading_shape, sizes[0], sizes[0])) * (1 - np.eye(sizes[0]))
    delay = np.moveaxis(hops[..., links.sender, receiver], (-2, -1), (0, 1))
    end = np.zeros((len(receiver) + 1, *leading_shape))
    start = np.empty((len(receiver), *leading_shape))
    for low, high in zip(links.waves[:-1].tolist(), links.waves[1:].tolist(), strict=True):
        ready_seconds = (end[links.after[:, low:high]] + delay[:, low:high]).max(axis=0)
        start[low:high] = ready_seconds
        end[low + 1 : high + 1] = ready_seconds + work_seconds[low:high]
    starts, ends = (np.moveaxis(times[links.rank], 0, -1) for times in (start, end[1:]))
    bounds = np.searchsorted(order.device, np.arange(sizes[0]))
    lasts = np.append(bounds[1:], len(receiver)) - 1
    return PipelineRun(
        order=order,
        start=starts,
        end=ends,
        busy=np.add.reduceat(np.broadcast_to(item_seconds, starts.shape), bounds, axis=-1),
        span=ends[..., lasts] - starts[..., bounds],
        in_flight=peak_in_flight(order),
    )


def item_durations(order: Order, forward: Number, backward: Number, weight: Number = 0.0, pair: Number | None = None) -> Array:
    """Return the seconds of each item (..., items) from those of chunks (..., devices, chunks)."""
    times = [np.asarray(t, dtype=float) for t in (forward, backward, weight)]
    if pair is not None:
        times.append(np.asarray(pair, dtype=float))
    leading_shape = np.broadcast_shapes(*(t.shape[:-2] for t in times))
    shape = (*leading_shape, order.devices, order.chunks)
    forward_seconds, backward_seconds, weight_seconds, *pair_seconds = (np.broadcast_to(t, shape) for t in times)
    chunk_index = order.device, order.chunk
    backward_index = order.device, np.maximum(order.back_chunk, 0)
    seconds_by_kind = {
        FORWARD: forward_seconds[..., *chunk_index],
        BACKWARD: backward_seconds[..., *chunk_index],
        INPUT: (backward_seconds - weight_seconds)[..., *chunk_index],
        WEIGHT: weight_seconds[..., *chunk_index],
        PAIR: pair_seconds[0][..., *chunk_index]
        if pair_seconds
        else forward_seconds[..., *chunk_index] + backward_seconds[..., *backward_index],
    }
    return np.select([order.kind == kind for kind in seconds_by_kind], list(seconds_by_kind.values()))


def peak_in_flight(order: Order, size: Number | None = None, retained_share: Number = 1.0) -> Array:
    """Return the most that each device holds at once (devices,), which no times change: a device works in a fixed order.

    size: what one micro-batch leaves in a chunk (devices, chunks), in whatever unit; an equal share of 1 if not given.
    retained_share: share of it that stays until the gradients of weights are made, where the backward pass is split.
    """
    stages = order.paths.shape[1]
    scale = order.devices / stages if size is None else 1.0
    sizes = np.broadcast_to(1.0 if size is None else size, (order.devices, order.chunks))
    item_sizes = sizes[order.device, order.chunk]
    backward_sizes = sizes[order.device, np.maximum(order.back_chunk, 0)]
    is_forward = np.isin(order.kind, (FORWARD, PAIR))
    freed = np.select(
        [order.kind == BACKWARD, order.kind == INPUT, order.kind == WEIGHT, order.kind == PAIR],
        [item_sizes, item_sizes * (1 - retained_share), item_sizes * retained_share, backward_sizes],
        0.0,
    )
    bounds = np.searchsorted(order.device, np.arange(order.devices))
    allocated = np.cumsum(np.where(is_forward, item_sizes, 0.0))
    released = np.cumsum(freed) - freed  # what is freed at the end of an item is there while it runs
    activations = allocated - released
    initial = np.append(0.0, np.cumsum(np.where(is_forward, item_sizes, 0.0) - freed)[:-1])[bounds]
    return np.asarray(scale * (np.maximum.reduceat(activations, bounds) - initial))
