"""Evaluate an array function over millions of points in blocks, so that intermediate arrays stay in a core's cache."""

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
    total = _length(arrays)
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


def _length(arrays: Mapping[str, Array]) -> int:
    """Return the length of all arrays; raise RangeError if there is not one length."""
    shapes = {values.shape for values in arrays.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        listed = ", ".join(f"{name} {values.shape}" for name, values in arrays.items())
        raise RangeError(f"points: must be arrays of one axis and one length, got {listed or 'no array'}")
    return int(next(iter(shapes))[0])
