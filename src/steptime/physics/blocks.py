"""Cuts large input into blocks that stay in cache, and evaluates them on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

BLOCK = 1 << 15  # points evaluated at once: about what a core keeps in cache
KEPT = 31 << 20  # B; glibc learns from blocks of up to 32 MiB
Part = TypeVar("Part")
Answer = TypeVar("Answer")


def blocks_of(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arrays cut along the first axis of the shape that they broadcast to, in blocks of about `BLOCK` points.

    >>> [block["b"].shape for block in blocks_of({"a": np.ones(3), "b": np.ones((BLOCK, 3))})]
    [(10922, 3), (10922, 3), (10922, 3), (2, 3)]
    """
    shape = np.broadcast_shapes(*(a.shape for a in arrays.values()))
    size = int(np.prod(shape))
    if size < 2 * BLOCK or shape[0] == 1:
        return [arrays]
    rows = max(1, BLOCK * shape[0] // size)
    along = {name for name, a in arrays.items() if a.ndim == len(shape) and a.shape[0] > 1}
    return [
        {name: a[first : first + rows] if name in along else a for name, a in arrays.items()}
        for first in range(0, shape[0], rows)
    ]


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
    np.empty(KEPT, dtype=np.uint8)
