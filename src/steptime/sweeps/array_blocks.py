"""A function of arrays over millions of points, block by block: what it needs in between stays in cache, and memory small."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from steptime.errors import RangeError
from steptime.number_checks import Array, whole_number
from steptime.physics.chunked_evaluation import BLOCK, Assembly, in_threads


def in_blocks(
    function: Callable[..., Array | Mapping[str, Array]],
    points: Mapping[str, Any],
    *,
    block: int = BLOCK,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Return what `function` makes of all points: one array, or a table of arrays, each with a value for every point.

    points: arrays of one axis and one length. The function gets the same names with `block` points at a time, from `workers`
    threads at once (one for each core unless told), and returns an array, or a table of them; a table may lack names in some
    blocks, whose points then have 0. progress: called with the points done and all points, after each block.
    Raises RangeError where arrays are of other shapes, or `block` or `workers` no count.

    >>> in_blocks(lambda a, b: {"sum": a + b}, {"a": np.arange(5), "b": np.ones(5)}, block=2)["sum"].tolist()
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    arrays = {name: np.asarray(values) for name, values in points.items()}
    total = _length(arrays)
    size, threads = whole_number("block", block), None if workers is None else whole_number("workers", workers)
    assembly = Assembly(total)
    lock, done = threading.Lock(), 0

    def evaluate(first: int) -> None:
        nonlocal done
        part = slice(first, min(first + size, total))
        answer = function(**{name: values[part] for name, values in arrays.items()})
        assembly.put(part, answer if isinstance(answer, Mapping) else {None: answer})
        with lock:
            done += part.stop - part.start
            if progress is not None:
                progress(done, total)

    in_threads(evaluate, range(0, max(total, 1), size), threads)
    return assembly.arrays.get(None, assembly.arrays)


def _length(arrays: Mapping[str, Array]) -> int:
    """Return the length of all arrays; raise RangeError where they have none or several."""
    shapes = {values.shape for values in arrays.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        listed = ", ".join(f"{name} {values.shape}" for name, values in arrays.items())
        raise RangeError(f"points must be arrays of one axis and one length, not {listed or 'none'}")
    return int(next(iter(shapes))[0])
