"""Cuts large input into blocks that stay in cache, and evaluates them on all cores."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from steptime.number_checks import Array

BLOCK = 1 << 15  # points evaluated at once: about what a core keeps in cache
GRID = 1 << 16  # of a grid, where most of what is computed is smaller than it
RETAINED_BYTES = 31 << 20  # B; glibc learns from blocks of up to 32 MiB
Part = TypeVar("Part")
Answer = TypeVar("Answer")


def split_blocks(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arrays cut along the first axis of the shape that they broadcast to, of `BLOCK` or `GRID` points.

    >>> [block["b"].shape for block in split_blocks({"a": np.ones(3), "b": np.ones((BLOCK, 3))})]
    [(10922, 3), (10922, 3), (10922, 3), (2, 3)]
    """
    shape = np.broadcast_shapes(*(a.shape for a in arrays.values()))
    size = int(np.prod(shape))
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
    """Return the places of blocks along the axis that was cut.

    >>> block_slices(split_blocks({"a": np.ones(3), "b": np.ones((BLOCK, 3))}))[2:]
    [slice(21844, 32766, None), slice(32766, 32768, None)]
    """
    rows = [np.broadcast_shapes(*(a.shape for a in block.values()))[0] for block in blocks]
    ends = list(itertools.accumulate(rows))
    return [slice(end - n, end) for end, n in zip(ends, rows, strict=True)]


class Assembly:
    """Arrays of `length` along an `axis` that threads fill part by part: 0 where a part lacks what others have."""

    def __init__(self, length: int, axis: int = 0) -> None:
        self.length, self.axis = length, axis
        self.arrays: dict[Any, Array] = {}
        self.lock = threading.Lock()

    def put(self, part: slice, values: Mapping[Any, Array]) -> None:
        """Fill a part of each array that `values` has; the kind of its numbers is that of what comes first."""
        for name, value in values.items():
            array = np.asarray(value)
            with self.lock:
                if name not in self.arrays:
                    shape = list(array.shape) or [0]
                    shape[self.axis] = self.length
                    self.arrays[name] = np.zeros(shape, dtype=array.dtype)
            place = np.moveaxis(self.arrays[name], self.axis, 0)[part]
            np.copyto(place, np.moveaxis(array, self.axis, 0) if array.ndim else array, casting="same_kind")


def in_threads(work: Callable[[Part], Answer], parts: Iterable[Part], workers: int | None = None) -> list[Answer]:
    """Return what `work` makes of each part, in their order; on all cores unless told how many `workers` there are."""
    keep_memory()
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(work, parts))


def keep_memory() -> None:
    """Let the process keep the memory that temporary arrays give back, some 60 MiB, for the next ones.

    By itself glibc returns it to the system, which has to clear it page by page for the next array: up to half of the time of a
    formula. It keeps twice the size of the largest block of its own that was ever freed (mallopt(3), M_TRIM_THRESHOLD), so that
    one is asked for and freed, untouched.
    """
    np.empty(RETAINED_BYTES, dtype=np.uint8)
