"""Timeline of a step: the work of each device as arrays, and its plot as a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptime.errors import InputError, install_hint
from steptime.number_checks import Array
from steptime.picture_files import PICTURES, replace_file
from steptime.training.pipeline_simulator import PipelineRun
from steptime.training.schedules.work_order import KINDS

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
    backward (else -1). total: seconds of the step. idle: (devices,), seconds without work. in_flight: (devices,), peak
    activations; a whole device for one micro-batch counts as 1.
    """

    device: Array
    kind: Array
    chunk: Array
    micro: Array
    back_micro: Array
    start: Array
    end: Array
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
    return Timeline(
        device=order.device,
        kind=order.kind,
        chunk=order.chunk,
        micro=order.micro,
        back_micro=order.back_micro,
        start=walk.start,
        end=walk.end,
        total=float(walk.total),
        # Rounding leaves tiny idle times on devices that never wait.
        idle=np.where(walk.idle > 1e-9 * walk.total, walk.idle, 0.0),
        in_flight=walk.in_flight,
    )


def write_timeline(timeline: Timeline, path: str, title: str = "") -> None:
    """Write the plot of a timeline to a file.

    Args:
        timeline: Timeline of a step.
        path: File; the suffix .svg, .png or .pdf selects the format.
        title: Title of the plot.

    Raises:
        InputError: If the suffix is unknown.
        DataFileError: If the file cannot be written.
    """
    if Path(path).suffix.casefold() not in PICTURES:
        raise InputError(f"{path}: unknown suffix of a plot; take {', '.join(PICTURES)}")
    figure = timeline_figure(timeline, title)
    replace_file(path, lambda place: figure.savefig(place, dpi=160))


def timeline_figure(timeline: Timeline, title: str = "") -> Any:
    """Return the plot of a timeline as a matplotlib figure.

    A device is a row, an interval is a box. Later chunks are lighter.

    Args:
        timeline: Timeline of a step.
        title: Title of the plot.

    Returns:
        matplotlib figure.

    Raises:
        InputError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise InputError(f"plots need matplotlib: {install_hint('plot')}") from None

    figure = Figure(figsize=(11, 1.2 + 0.32 * timeline.devices), layout="constrained")
    axes = figure.subplots()
    chunk_count = int(timeline.chunk.max()) + 1
    for kind in np.unique(timeline.kind):
        for chunk in np.unique(timeline.chunk[timeline.kind == kind]):
            is_drawn = (timeline.kind == kind) & (timeline.chunk == chunk)
            axes.barh(
                timeline.device[is_drawn], (timeline.end - timeline.start)[is_drawn], left=timeline.start[is_drawn],
                height=0.86, color=KIND_COLOURS[kind], alpha=1.0 - 0.5 * chunk / chunk_count, edgecolor="white", linewidth=0.4,
            )  # fmt: skip

    # Boxes narrower than about 1 % of the step have no room for a label.
    longest = (timeline.end - timeline.start).max() / timeline.total
    if longest > 0.012:
        for device, start, end, micro, back in zip(
            timeline.device, timeline.start, timeline.end, timeline.micro, timeline.back_micro, strict=True
        ):
            label = f"{micro}" if back < 0 else f"{micro},{back}"
            axes.text((start + end) / 2, device, label, ha="center", va="center", fontsize=6, color="white")

    axes.set(xlabel="seconds", ylabel="device", xlim=(0, timeline.total), title=title)
    axes.set_yticks(range(timeline.devices))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=[Patch(color=KIND_COLOURS[kind], label=KIND_NAMES[kind]) for kind in np.unique(timeline.kind)],
        loc="outside lower center", ncols=5, frameon=False, fontsize=8,
    )  # fmt: skip
    return figure
