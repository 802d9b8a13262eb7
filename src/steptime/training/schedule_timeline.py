"""Exact event simulation of a step of a pipeline with unequal stages.

A device works in the order of its schedule. Each item starts as soon as the device is free and its dependencies are done. A
hop delays the data and keeps neither device busy.

A `Timeline` has the work of each device as arrays, and draws it to a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steptime.errors import InputError, install_hint
from steptime.number_checks import Array, Number
from steptime.picture_files import PICTURES, replace_file
from steptime.training.schedules.work_order import BACKWARD, FORWARD, INPUT, KINDS, PAIR, WEIGHT, Order

if TYPE_CHECKING:
    from steptime.training.training_memory import TrainingMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """A simulated step [s]; leading axes are those of the given times.

    start, end: (..., items), in the order of `order`. busy: (..., devices), working time. span: (..., devices), from the
    first item of a device to the end of its last. in_flight: (devices,), peak activations on a device; all chunks of the
    device for one micro-batch count as 1.
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
        """Seconds without work of each device, where the optimizer waits for all stages."""
        return self.total[..., None] - self.busy

    @property
    def period(self) -> Array:
        """Seconds per step where a device starts the next step after its own part."""
        return np.asarray(self.span.max(axis=-1))


def simulate_step(
    order: Order, forward: Number, backward: Number, weight: Number = 0.0, *, pair: Number | None = None, hop: Number = 0.0
) -> PipelineRun:
    """Simulate one step of a pipeline.

    Times have the shape (..., devices, chunks) or broadcast to it.

    Args:
        order: Order of work of the step.
        forward: Forward pass of one micro-batch in a chunk [s].
        backward: Whole backward pass of one micro-batch in a chunk [s].
        weight: Part of `backward` for the gradients of the weights [s].
        pair: Forward pass overlapped with a backward pass, by the chunk of the forward pass [s]; their sum if not given.
        hop: Hop from one device to another, (..., devices, devices) or one number [s].

    Returns:
        Start and end of each item.

    >>> from steptime.training.schedules.schedule import schedule_named
    >>> done = simulate_step(schedule_named("1f1b").order(4, 8), 1.0, 2.0)
    >>> float(done.total), float(done.idle[0]), done.in_flight.tolist()
    (33.0, 9.0, [4.0, 3.0, 2.0, 1.0])
    """
    # Sort the items by dependency, so that each wave depends on earlier waves only.
    links, sizes = order.links, (order.devices, order.chunks)
    item_seconds = item_durations(order, forward, backward, weight, pair)
    leading_shape = np.broadcast_shapes(item_seconds.shape[:-1], np.shape(hop)[:-2])
    items_by_rank = np.argsort(links.rank)
    work_seconds = np.moveaxis(np.broadcast_to(item_seconds, (*leading_shape, item_seconds.shape[-1])), -1, 0)[items_by_rank]

    # A hop to the same device takes no time.
    receiver = order.device[items_by_rank]
    hops = np.broadcast_to(np.asarray(hop, dtype=float), (*leading_shape, sizes[0], sizes[0])) * (1 - np.eye(sizes[0]))
    delay = np.moveaxis(hops[..., links.sender, receiver], (-2, -1), (0, 1))

    # Position 0 of `end` stands for items without a dependency.
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
    """Return the seconds of each item from the times of the chunks.

    Args:
        order: Order of work of the step.
        forward: Forward pass in a chunk, (..., devices, chunks) [s].
        backward: Whole backward pass in a chunk, with the same shape [s].
        weight: Part of `backward` for the gradients of the weights [s].
        pair: Forward pass overlapped with a backward pass [s]; their sum if not given.

    Returns:
        Seconds, (..., items).
    """
    times = [np.asarray(t, dtype=float) for t in (forward, backward, weight)]
    if pair is not None:
        times.append(np.asarray(pair, dtype=float))
    leading_shape = np.broadcast_shapes(*(t.shape[:-2] for t in times))
    shape = (*leading_shape, order.devices, order.chunks)
    forward_seconds, backward_seconds, weight_seconds, *pair_seconds = (np.broadcast_to(t, shape) for t in times)
    # Items without a backward chunk have -1, which index 0 replaces; `select` discards its value.
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
    """Return the peak activations on each device.

    The peak does not depend on times, because a device works in a fixed order.

    Args:
        order: Order of work of the step.
        size: Activations of one micro-batch in a chunk, (devices, chunks), in any unit; an equal share of 1 if not given.
        retained_share: Share that stays until the gradients of the weights are computed, if the backward pass is split.

    Returns:
        Peak per device, (devices,), in the unit of `size`.
    """
    allocation, release = activation_changes(order, size, retained_share)
    bounds = np.searchsorted(order.device, np.arange(order.devices))
    # Activations that an item frees at its end are present while it runs.
    activations = np.cumsum(allocation) - (np.cumsum(release) - release)
    initial = np.append(0.0, np.cumsum(allocation - release)[:-1])[bounds]
    return np.asarray(np.maximum.reduceat(activations, bounds) - initial)


def activation_changes(order: Order, size: Number | None = None, retained_share: Number = 1.0) -> tuple[Array, Array]:
    """Return the activations that each item takes at its start, and those that it frees at its end.

    Args:
        order: Order of work of the step.
        size: Activations of one micro-batch in a chunk, as for `peak_in_flight`.
        retained_share: Share that stays until the gradients of the weights are computed, if the backward pass is split.

    Returns:
        Activations that are taken and freed, (items,), in the unit of `size`.
    """
    sizes = np.broadcast_to(order.devices / order.paths.shape[1] if size is None else size, (order.devices, order.chunks))
    item_sizes = sizes[order.device, order.chunk]
    backward_sizes = sizes[order.device, np.maximum(order.back_chunk, 0)]
    release = np.select(
        [order.kind == BACKWARD, order.kind == INPUT, order.kind == WEIGHT, order.kind == PAIR],
        [item_sizes, item_sizes * (1 - retained_share), item_sizes * retained_share, backward_sizes],
        0.0,
    )
    return np.where(np.isin(order.kind, (FORWARD, PAIR)), item_sizes, 0.0), release


# One colour per entry of KINDS, from the colour-blind safe palette of Okabe and Ito.
KIND_COLOURS: Final = ("#0072B2", "#E69F00", "#E69F00", "#009E73", "#CC79A7")
KIND_NAMES: Final = (
    "forward",
    "backward",
    "backward, gradients of inputs",
    "gradients of weights",
    "forward and backward overlapped",
)
# Index of a cell without work.
IDLE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The intervals of a step [s], one entry each, by device and in order of time.

    device, kind (index into KINDS), chunk, micro: the work of the interval. back_micro: micro-batch of a pair that goes
    backward (else -1). allocation, release: activations that the interval takes at its start and frees at its end. total:
    seconds of the step. idle: (devices,), seconds without work. in_flight: (devices,), peak activations; a whole device for one
    micro-batch counts as 1.
    """

    device: Array
    kind: Array
    chunk: Array
    micro: Array
    back_micro: Array
    start: Array
    end: Array
    allocation: Array
    release: Array
    total: float
    idle: Array
    in_flight: Array

    @property
    def devices(self) -> int:
        """Devices of the pipeline."""
        return len(self.idle)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of work in the step."""
        return tuple(KINDS[kind] for kind in np.unique(self.kind))

    def device_slice(self, device: int) -> slice:
        """Return the slice of the intervals of a device.

        Args:
            device: Index of the device, from 0.

        Returns:
            Slice into the arrays of the timeline.
        """
        low, high = np.searchsorted(self.device, (device, device + 1))
        return slice(int(low), int(high))

    def activations(self, device: int) -> tuple[Array, Array]:
        """Return the activations on a device over time.

        Args:
            device: Index of the device, from 0.

        Returns:
            Times [s], and the activations from each of them to the next.
        """
        intervals = self.device_slice(device)
        seconds = np.stack([self.start[intervals], self.end[intervals]], axis=1).ravel()
        changes = np.stack([self.allocation[intervals], -self.release[intervals]], axis=1).ravel()
        return np.append(0.0, seconds), np.append(0.0, np.cumsum(changes))

    def cells(self, since: float, step: float, count: int) -> Array:
        """Return the interval in the middle of each cell of a time grid.

        Args:
            since: Start of the first cell [s].
            step: Length of a cell [s].
            count: Number of cells.

        Returns:
            Index of an interval, (devices, count), or IDLE.
        """
        middles = since + (np.arange(count) + 0.5) * step
        interval_indices = np.full((self.devices, count), IDLE)
        for device in range(self.devices):
            intervals = self.device_slice(device)
            last_started = intervals.start + np.searchsorted(self.start[intervals], middles, side="right") - 1
            is_running = (last_started >= intervals.start) & (middles < self.end[np.maximum(last_started, 0)])
            interval_indices[device] = np.where(is_running, last_started, IDLE)
        return interval_indices


def timeline(walk: PipelineRun) -> Timeline:
    """Return the timeline of a simulated step.

    Args:
        walk: Simulated step of single times, without leading axes.

    Returns:
        Timeline.

    Raises:
        InputError: If the simulation has several steps.
    """
    if walk.start.ndim != 1:
        raise InputError(f"walk: a timeline takes one step, got {walk.start[..., 0].size}; select one of them")
    order = walk.order
    allocation, release = activation_changes(order)
    return Timeline(
        device=order.device,
        kind=order.kind,
        chunk=order.chunk,
        micro=order.micro,
        back_micro=order.back_micro,
        start=walk.start,
        end=walk.end,
        allocation=allocation,
        release=release,
        total=float(walk.total),
        # Rounding leaves tiny idle times on devices that never wait.
        idle=np.where(walk.idle > 1e-9 * walk.total, walk.idle, 0.0),
        in_flight=walk.in_flight,
    )


# Microseconds of the trace format per second.
MICROSECONDS: Final = 1e6
GIGABYTE: Final = 1e9


def trace_events(timeline: Timeline, after: Mapping[str, float], title: str = "") -> dict[str, Any]:
    """Return a step in the trace event format, which Perfetto and chrome://tracing open.

    Each device is a thread with complete events (`ph` X), in microseconds, and a counter (`ph` C) of the micro-batches whose
    activations it holds. Terms that follow the pipeline, such as exposed
    exchanges and the optimizer, run one after another on all devices.

    Args:
        timeline: Timeline of the pipeline.
        after: Seconds of the terms after the pipeline, in order.
        title: Name of the process.

    Returns:
        The trace, ready for JSON.

    References:
        https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: Trace Event Format.
    """
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": title}}]
    for device in range(timeline.devices):
        thread = {"ph": "M", "pid": 0, "tid": device}
        events.append({"name": "thread_name", **thread, "args": {"name": f"stage {device}"}})
        events.append({"name": "thread_sort_index", **thread, "args": {"sort_index": device}})
    columns = (
        timeline.device,
        timeline.kind,
        timeline.chunk,
        timeline.micro,
        timeline.back_micro,
        timeline.start,
        timeline.end,
    )
    for device, kind, chunk, micro, back_micro, start, end in zip(*(column.tolist() for column in columns), strict=True):
        args = {"micro_batch": micro, "chunk": chunk} | ({"backward_micro_batch": back_micro} if back_micro >= 0 else {})
        events.append(_event(f"{KIND_NAMES[kind]} {micro}", KIND_NAMES[kind], device, start, end - start, args))
    for device in range(timeline.devices):
        counter = {"name": f"micro-batches in flight, stage {device}", "ph": "C", "pid": 0, "tid": device}
        for second, count in zip(*(column.tolist() for column in timeline.activations(device)), strict=True):
            events.append(counter | {"ts": second * MICROSECONDS, "args": {"in flight": count}})
    start = timeline.total
    for name, seconds in after.items():
        events += [_event(name, name, device, start, seconds, {}) for device in range(timeline.devices) if seconds > 0]
        start += seconds
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(name: str, category: str, device: int, start: float, seconds: float, args: dict[str, int]) -> dict[str, Any]:
    times = {"ts": start * MICROSECONDS, "dur": seconds * MICROSECONDS}
    return {"name": name, "cat": category, "ph": "X", **times, "pid": 0, "tid": device, "args": args}


def write_timeline(timeline: Timeline, path: str, title: str = "", memory: MemoryCurve | None = None) -> None:
    """Write the plot of a timeline to a file.

    Args:
        timeline: Timeline of a step.
        path: File; the suffix .svg, .png or .pdf selects the format.
        title: Title of the plot.
        memory: Memory of the fullest chip over time, which is drawn below the schedule.

    Raises:
        InputError: If the suffix is unknown.
        DataFileError: If the file cannot be written.
    """
    if Path(path).suffix.casefold() not in PICTURES:
        raise InputError(f"{path}: unknown suffix of a plot; take {', '.join(PICTURES)}")
    figure = timeline_figure(timeline, title, memory)
    replace_file(path, lambda place: figure.savefig(place, dpi=160))


def timeline_figure(timeline: Timeline, title: str = "", memory: MemoryCurve | None = None) -> Any:
    """Return the plot of a timeline as a matplotlib figure.

    A device is a row, an interval is a box. Later chunks are lighter.

    Args:
        timeline: Timeline of a step.
        title: Title of the plot.
        memory: Memory of the fullest chip over time, for a second plot.

    Returns:
        matplotlib figure.

    Raises:
        InputError: If matplotlib is not installed.
    """
    try:
        from matplotlib.collections import PolyCollection
        from matplotlib.colors import to_rgb
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise InputError(f"plots need matplotlib: {install_hint('plot')}") from None

    heights = [1.2 + 0.32 * timeline.devices, *([2.6] if memory is not None else [])]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    axes, *memory_axes = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
    longest = (timeline.end - timeline.start).max() / timeline.total
    colours = np.array([to_rgb(KIND_COLOURS[kind]) for kind in range(len(KINDS))])[timeline.kind]
    lighter = (0.5 * timeline.chunk / (timeline.chunk.max() + 1))[:, np.newaxis]
    low, high = timeline.device - 0.43, timeline.device + 0.43
    x = np.stack([timeline.start, timeline.end, timeline.end, timeline.start], axis=1)
    boxes = np.stack([x, np.stack([low, low, high, high], axis=1)], axis=2)
    # Edges would cover boxes that are not much wider than a line, and smooth borders would make them pale.
    is_wide = bool(longest > 0.003)
    axes.add_collection(
        PolyCollection(
            list(boxes), facecolors=colours + (1 - colours) * lighter, edgecolors="white" if is_wide else "none",
            linewidths=0.4 if is_wide else 0.0, antialiased=is_wide,
        )
    )  # fmt: skip

    # Boxes narrower than about 1 % of the step have no room for a label.
    if longest > 0.012:
        for device, start, end, micro, back in zip(
            timeline.device, timeline.start, timeline.end, timeline.micro, timeline.back_micro, strict=True
        ):
            label = f"{micro}" if back < 0 else f"{micro},{back}"
            axes.text((start + end) / 2, device, label, ha="center", va="center", fontsize=6, color="white")

    axes.set(
        xlabel="" if memory_axes else "seconds", ylabel="device", xlim=(0, timeline.total), ylim=(timeline.devices - 0.5, -0.5),
    )  # fmt: skip
    schedule = "Pipeline schedule of a step" if timeline.devices > 1 else "Micro-batches of a step"
    words = title or schedule + (", later layers lighter" if timeline.chunk.any() else "")
    axes.set_title(words, fontsize=10)
    axes.set_yticks(range(timeline.devices))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=[Patch(color=KIND_COLOURS[kind], label=KIND_NAMES[kind]) for kind in np.unique(timeline.kind)],
        loc="outside lower center", ncols=5, frameon=False, fontsize=8,
    )  # fmt: skip
    if memory is not None:
        _draw_memory(memory_axes[0], timeline, memory)
    return figure


# Colours of the parts of memory: those of kinds of work have another meaning.
PART_COLOURS: Final = {
    "weights": "#595959", "gradients": "#808080", "optimizer": "#A6A6A6", "other": "#CCCCCC", "activations": "#56B4E9",
    "logits": "#F0E442",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Memory of the fullest chip in the course of a step.

    device: index of the device of this chip. seconds: times [s]. levels: bytes by part from each time to the next. capacity:
    memory of the chip [B].
    """

    device: int
    seconds: Array
    levels: Mapping[str, Array]
    capacity: float


def memory_curve(device: int, seconds: Array, memory: TrainingMemory, **changing: Array) -> MemoryCurve:
    """Return the memory of a chip over time from its changing parts.

    Args:
        device: Index of the device of the chip.
        seconds: Times [s].
        memory: Peak of each part.
        **changing: Bytes of the parts that change, from each time to the next.

    Returns:
        Memory with all parts; those that have no name in the plot are "other".
    """
    names = [name for name in PART_COLOURS if name not in ("other", "logits", *changing)]
    constant = {name: float(getattr(memory, name)) for name in names}
    peaks = sum(float(getattr(memory, name)) for name in changing)
    constant["other"] = float(memory.used) - peaks - sum(constant.values())
    levels = {name: np.full(len(seconds), size) for name, size in constant.items()} | changing
    return MemoryCurve(device=device, seconds=seconds, levels=levels, capacity=float(memory.capacity))


def memory_over_time(timeline: Timeline, memory: TrainingMemory) -> MemoryCurve:
    """Return the memory of the fullest chip of a pipeline in the course of a step.

    Args:
        timeline: Timeline of a step.
        memory: Memory of the fullest chip of all stages.

    Returns:
        Memory over time. Activations are in proportion to those in flight.
    """
    # Only the stage of the last layers has logits. Its backward pass is the first.
    starts = np.where(timeline.kind == FORWARD, np.inf, timeline.start)
    device = int(timeline.device[np.argmin(starts)]) if float(memory.logits) > 0 else int(np.argmax(timeline.in_flight))
    seconds, activations = timeline.activations(device)
    activation_bytes = float(memory.activations) * activations / timeline.in_flight[device]
    return memory_curve(device, seconds, memory, activations=activation_bytes)


def _draw_memory(axes: Any, timeline: Timeline, memory: MemoryCurve) -> None:
    """Draw the memory of the fullest chip over time, and its capacity."""
    lower = np.zeros(len(memory.seconds))
    for name, level in memory.levels.items():
        if not level.any():
            continue
        upper = lower + level / GIGABYTE
        axes.fill_between(memory.seconds, lower, upper, step="post", color=PART_COLOURS[name], label=name, linewidth=0)
        lower = upper
    capacity = memory.capacity / GIGABYTE
    axes.axhline(capacity, color="#D55E00", linewidth=1.2, linestyle="--", label=f"capacity, {capacity:.3g} GB")
    axes.set(
        xlabel="seconds", ylabel="GB", xlim=(0, timeline.total), ylim=(0, 1.08 * max(capacity, float(lower.max()))),
    )  # fmt: skip
    axes.set_title(f"Memory of the fullest chip (device {memory.device})", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.27), ncols=7, frameon=False, fontsize=8)
