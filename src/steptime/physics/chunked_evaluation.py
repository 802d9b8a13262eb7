"""Chunked evaluation: large arrays in blocks that fit in cache, on all cores."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from steptime.number_checks import Array

# Points per block: about as many as the cache of one core holds.
BLOCK = 1 << 15
# Points per block of a grid, in which most arrays are smaller than the grid.
GRID = 1 << 16
# Bytes; glibc raises its threshold only for blocks of up to 32 MiB.
RETAINED_BYTES = 31 << 20
Part = TypeVar("Part")
Answer = TypeVar("Answer")


def split_blocks(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    """Split arrays along the first axis of their broadcast shape.

    A block has `BLOCK` points, or `GRID` points where no array has the full size.

    Args:
        arrays: Arrays by name, which broadcast together.

    Returns:
        The arrays of each block; one block where the input is small.

    >>> [block["b"].shape for block in split_blocks({"a": np.ones(3), "b": np.ones((BLOCK, 3))})]
    [(10922, 3), (10922, 3), (10922, 3), (2, 3)]
    """
    points = np.broadcast(*arrays.values())
    shape, size = points.shape, points.size
    largest = BLOCK if any(a.size == size for a in arrays.values()) else GRID
    if size < 2 * largest or shape[0] == 1:
        return [arrays]
    rows = max(1, largest * shape[0] // size)
    along = {name for name, a in arrays.items() if a.ndim == len(shape) and a.shape[0] > 1}
    return [
        {name: a[first : first + rows] if name in along else a for name, a in arrays.items()}
        for first in range(0, shape[0], rows)
    ]


def block_slices(blocks: list[dict[str, Any]]) -> list[slice]:
    """Return the position of each block along the axis that was split.

    Args:
        blocks: Blocks as `split_blocks` returns them.

    Returns:
        One slice per block.

    >>> block_slices(split_blocks({"a": np.ones(3), "b": np.ones((BLOCK, 3))}))[2:]
    [slice(21844, 32766, None), slice(32766, 32768, None)]
    """
    rows = [np.broadcast_shapes(*(a.shape for a in block.values()))[0] for block in blocks]
    ends = list(itertools.accumulate(rows))
    return [slice(end - n, end) for end, n in zip(ends, rows, strict=True)]


class Assembly:
    """Arrays of `length` along an `axis`, which threads fill part by part.

    A value is 0 where one part lacks an array that other parts have.
    """

    def __init__(self, length: int, axis: int = 0) -> None:
        self.length, self.axis = length, axis
        self.arrays: dict[Any, Array] = {}
        self.lock = threading.Lock()

    def put(self, part: slice, values: Mapping[Any, Array]) -> None:
        """Fill one part of each array in `values`.

        The dtype of an array is that of its first values.

        Args:
            part: Position along the axis.
            values: Arrays by name.
        """
        for name, value in values.items():
            array = np.asarray(value)
            # Two threads may be the first to see the same array.
            with self.lock:
                if name not in self.arrays:
                    shape = list(array.shape) or [0]
                    shape[self.axis] = self.length
                    self.arrays[name] = np.zeros(shape, dtype=array.dtype)
            place = np.moveaxis(self.arrays[name], self.axis, 0)[part]
            np.copyto(place, np.moveaxis(array, self.axis, 0) if array.ndim else array, casting="same_kind")


def in_threads(work: Callable[[Part], Answer], parts: Iterable[Part], workers: int | None = None) -> list[Answer]:
    """Evaluate `work` for each part in a pool of threads.

    Args:
        work: Function of one part.
        parts: Arguments of `work`.
        workers: Number of threads; by default one per core.

    Returns:
        The results in the order of the parts.
    """
    from concurrent.futures import ThreadPoolExecutor

    keep_memory()
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(work, parts))


def keep_memory() -> None:
    """Keep some 60 MiB of freed memory in the process for the next arrays.

    By default glibc returns freed memory to the system, which clears it page by page for the next array: up to half of the
    time of a formula. glibc keeps twice the size of the largest mapped block that was ever freed (mallopt(3),
    M_TRIM_THRESHOLD). So this function allocates one block and frees it untouched.
    """
    np.empty(RETAINED_BYTES, dtype=np.uint8)
