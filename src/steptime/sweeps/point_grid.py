"""A grid of points cut into parts: blocks of an array function, and regions of a question over axes.

Blocks are so small that intermediate arrays stay in a core's cache. A region is one point, or a block of arrays if the question
takes them.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from steptime.errors import ConfigError, DataFileError, InputError, RangeError, UnitError, UnknownName
from steptime.number_checks import Array, whole_number
from steptime.physics import chunked_evaluation
from steptime.physics.chunked_evaluation import BLOCK, Assembly, in_threads
from steptime.questions.declaration import Question
from steptime.sweeps.axes import Axis, grid_shape


def in_blocks(
    function: Callable[..., Array | Mapping[str, Array]],
    points: Mapping[str, Any],
    *,
    block: int = BLOCK,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Evaluate a function over all points, block by block.

    Args:
        function: Takes the same names with `block` points at a time, from several threads. It returns an array, or a table of
            arrays. A table may lack names in some blocks; their points then have the value 0.
        points: Arrays of shape (points,), by name.
        block: Points per call.
        workers: Number of threads; None: one per core.
        progress: Called with the points done and the number of points, after each block.

    Returns:
        One array of shape (points,), or a table of such arrays.

    Raises:
        RangeError: If the arrays differ in shape, or `block` or `workers` is not a count.

    >>> in_blocks(lambda a, b: {"sum": a + b}, {"a": np.arange(5), "b": np.ones(5)}, block=2)["sum"].tolist()
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    arrays = {name: np.asarray(values) for name, values in points.items()}
    shapes = {values.shape for values in arrays.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        words = ", ".join(f"{name} {values.shape}" for name, values in arrays.items())
        raise RangeError(f"points: must be arrays of one axis and one length, got {words or 'no array'}")
    ((total,),) = shapes
    size, threads = whole_number("block", block), None if workers is None else whole_number("workers", workers)

    # Threads finish in any order, so that each block writes into its own slice of the whole.
    assembly = Assembly(total)
    lock, done = threading.Lock(), 0

    def evaluate(first: int) -> None:
        nonlocal done
        part = slice(first, min(first + size, total))
        answer = function(**{name: values[part] for name, values in arrays.items()})
        assembly.put(part, answer if isinstance(answer, Mapping) else {None: answer})

        # The callback and its counter are shared by all threads.
        with lock:
            done += part.stop - part.start
            if progress is not None:
                progress(done, total)

    in_threads(evaluate, range(0, max(total, 1), size), threads)
    return assembly.arrays.get(None, assembly.arrays)


# Points per evaluation of lists and of grids: intermediate arrays stay in a core's cache.
SCATTERED, GRID = chunked_evaluation.BLOCK, chunked_evaluation.GRID
# Largest number of halves of a block that are tried after an error in the block.
MOST_REFUSED: Final = 2_000
# Start and stop position on each axis.
Region = tuple[tuple[int, int], ...]
# Errors that concern every point, and end the sweep.
FATAL_ERRORS = (UnknownName, UnitError, DataFileError, ConfigError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionAnswers:
    """Answers of one region as arrays of its shape, or the reason for missing answers."""

    region: Region
    answers: Mapping[str, Any]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A question over axes with fixed inputs.

    `together`: whether the axes advance together, one point per position; else every combination of values is a point.
    """

    question: Question
    axes: tuple[Axis, ...]
    fixed: Mapping[str, Any]
    answer_names: frozenset[str] = frozenset()
    together: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis; one length if the axes advance together."""
        return grid_shape(self.axes, together=self.together)

    @property
    def points(self) -> int:
        """Number of points."""
        return math.prod(self.shape)

    @property
    def inner(self) -> tuple[bool, ...]:
        """Whether the question takes the values of each dimension as an array."""
        inputs = self.question.inputs

        def wide(axis: Axis) -> bool:
            return self.question.vectorised and axis.broadcasts and axis.numeric

        if self.together:
            return (all(wide(axis) for axis in self.axes),)
        return tuple(wide(axis) and not (axis.name in inputs and inputs[axis.name].separate) for axis in self.axes)

    def regions(self) -> Iterator[Region]:
        """Yield the regions of the job in the order of the points.

        Yields:
            Start and stop position on each axis.
        """
        inner = self.inner
        spans = [[(0, n)] if wide else [(i, i + 1) for i in range(n)] for n, wide in zip(self.shape, inner, strict=True)]
        for region in itertools.product(*spans):
            yield from _cut(region, SCATTERED if self.together else GRID)

    def input_values(self, region: Region) -> dict[str, Any]:
        """Return the values of all inputs in a region.

        Args:
            region: Start and stop position on each axis.

        Returns:
            Scalars, and arrays that broadcast to the shape of the region, by name.
        """
        values = dict(self.fixed)
        if self.together:
            ((start, stop),) = region
            wide = self.inner[0]
            return values | {axis.name: axis.values[start:stop] if wide else _value_at(axis, start) for axis in self.axes}
        inner = self.inner
        for position, (axis, (start, stop)) in enumerate(zip(self.axes, region, strict=True)):
            if inner[position]:
                # Each axis has its own dimension, so that the arrays broadcast to the grid.
                shape = [1] * len(region)
                shape[position] = stop - start
                values[axis.name] = axis.values[start:stop].reshape(shape)
            else:
                values[axis.name] = _value_at(axis, start)
        return values


def _value_at(axis: Axis, position: int) -> Any:
    value = axis.values[position]
    return value.item() if axis.numeric else value


def size(region: Region) -> int:
    """Return the number of points of a region.

    Args:
        region: Start and stop position on each axis.

    Returns:
        Number of points.
    """
    return math.prod(stop - start for start, stop in region)


def _cut(region: Region, max_points: int) -> Iterator[Region]:
    if size(region) <= max_points:
        yield region
        return
    for half in _halves(region):
        yield from _cut(half, max_points)


def _halves(region: Region) -> Iterator[Region]:
    """Yield both halves of a region, cut across its first axis with several values.

    Points keep their order.
    """
    axis = next(position for position, (start, stop) in enumerate(region) if stop - start > 1)
    start, stop = region[axis]
    middle = (start + stop) // 2
    for part in ((start, middle), (middle, stop)):
        yield (*region[:axis], part, *region[axis + 1 :])


def ask_all(job: Job, regions: Sequence[Region]) -> list[RegionAnswers]:
    """Return the answers in regions; a refused point has a reason and no answer.

    Args:
        job: Question, axes and fixed inputs.
        regions: Regions in order.

    Returns:
        Answers by region; a region with an error is cut into smaller ones.
    """
    return [region_answers for region in regions for region_answers in _ask_region(job, region, [0])]


def _ask_region(job: Job, region: Region, refused: list[int]) -> Iterator[RegionAnswers]:
    try:
        answers = job.question.ask(job.input_values(region), job.answer_names)
    except FATAL_ERRORS:
        raise
    except InputError as problem:
        # An error in a block may concern one point only: halve the block until that point stands alone.
        if size(region) == 1:
            yield RegionAnswers(region=region, answers={}, reason=str(problem))
            return
        refused[0] += 1
        if refused[0] > MOST_REFUSED:
            raise RangeError(f"axes: more than {MOST_REFUSED:,} parts are refused; the last: {problem}") from None
        for half in _halves(region):
            yield from _ask_region(job, half, refused)
        return
    reason = str(answers.get("reason", "") or "")
    shape = tuple(stop - start for start, stop in region)
    named_answers = {
        name: value for name, value in answers.items() if not job.answer_names or name in job.answer_names or name == "reason"
    }
    arrays = {name: np.broadcast_to(np.asarray(_plain(value)), shape) for name, value in named_answers.items()}
    yield RegionAnswers(region=region, answers=arrays, reason=reason)


def _plain(value: Any) -> Any:
    """Return an answer as numbers or texts: truth values as 1 or 0, None as NaN."""
    if value is None:
        return np.nan
    array = np.asarray(value)
    if array.dtype.kind in "bui":
        return array.astype(np.float64)
    return value if array.dtype.kind == "f" else array.astype(object)


class Gathered:
    """Answers of all regions so far, and the reasons of points without an answer."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.arrays: dict[str, Array] = {}
        self.reasons: dict[int, str] = {}

    def take(self, region_answers: RegionAnswers) -> None:
        """Add the answers of a region.

        Args:
            region_answers: Answers of one region.
        """
        slices = tuple(slice(start, stop) for start, stop in region_answers.region)
        for name, values in region_answers.answers.items():
            # An answer may be missing in the first regions; its points there stay empty.
            if name not in self.arrays:
                self.arrays[name] = np.full(self.shape, "" if values.dtype == object else np.nan, dtype=values.dtype)
            elif values.dtype == object and self.arrays[name].dtype != object:
                self.arrays[name] = self.arrays[name].astype(object)
            self.arrays[name][slices] = values
        if region_answers.reason:
            self.reasons[int(np.ravel_multi_index([start for start, _ in region_answers.region], self.shape))] = (
                region_answers.reason
            )
