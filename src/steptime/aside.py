"""Work that a second core does meanwhile, in a copy of this process: answers that nothing else waits for."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

Answer = TypeVar("Answer")
Given = TypeVar("Given")
TASKS: Final = Path("/proc/self/task")
TICKET: Final = 2  # bytes of an item's number
MOST: Final = 4096 // TICKET  # numbers that every pipe holds at once


def aside(work: Callable[[], Answer]) -> Callable[[], Answer]:
    """Return a function that gives what `work` returns, once: worked out meanwhile by a fork where that is safe.

    Safe is a process with one thread, as the command line is (a copy of one with several may wait forever for a lock), on Linux
    with a second core; elsewhere, and where the copy does not answer, `work` is done when its answer is asked for.
    """
    if not alone():
        return work
    reads, writes = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _answer(work, reads, writes)
    os.close(writes)

    def answer() -> Answer:
        with os.fdopen(reads, "rb") as pipe:
            told = pipe.read()
        _, status = os.waitpid(child, 0)
        if status or not told:
            return work()  # which fails as it did there
        found: Answer = pickle.loads(told)
        return found

    return answer


def meanwhile(work: Callable[[Given], Answer], items: Sequence[Given], copies: int | None = None) -> Callable[[], list[Answer]]:
    """Return a function that gives what `work` makes of each item, in their order.

    Where that is safe (`aside`) other cores begin at once, at most `copies` (by default one for each item), and this one takes
    what is left when it is asked.

    >>> squares = meanwhile(lambda number: number**2, [1, 2, 3])
    >>> squares()
    [1, 4, 9]
    """
    most = len(items) if copies is None else copies
    copies = min(most, len(os.sched_getaffinity(0)) - 1) if items and alone() else 0
    if copies < 1:
        return lambda: [work(item) for item in items]
    line = _line(min(len(items), MOST))
    others = [aside(partial(_served, work, items, line)) for _ in range(copies)]

    def answers() -> list[Answer]:
        try:
            found = _served(work, items, line)
            for other in others:
                found |= other()
        finally:
            os.close(line)
        return [found[at] if at in found else work(item) for at, item in enumerate(items)]  # those of a copy that failed, anew

    return answers


def spread(work: Callable[[Given], Answer], items: Sequence[Given]) -> list[Answer]:
    """Return what `work` makes of each item, in their order: each core takes the next one where that is safe (`aside`).

    >>> spread(lambda number: number**2, [1, 2, 3])
    [1, 4, 9]
    """
    return meanwhile(work, items, len(items) - 1)()


def _line(number: int) -> int:
    """Return a pipe from which each number below `number` can be read once, by whichever process comes first."""
    reads, writes = os.pipe()
    os.write(writes, b"".join(at.to_bytes(TICKET, "little") for at in range(number)))
    os.close(writes)
    return reads


def _served(work: Callable[[Given], Answer], items: Sequence[Given], line: int) -> dict[int, Answer]:
    """Return what `work` makes of the items that this process takes from the line, until there are no more.

    A number stands for each `MOST`th item from it on, by their places.
    """
    found = {}
    while ticket := os.read(line, TICKET):
        for at in range(int.from_bytes(ticket, "little"), len(items), MOST):
            found[at] = work(items[at])
    return found


def alone() -> bool:
    """Whether this process may be copied: it has one thread, on Linux, and there is a second core."""
    if not sys.platform.startswith("linux") or sys.stdout is None or sys.stderr is None:
        return False
    try:
        return len(os.sched_getaffinity(0)) > 1 and sum(1 for _ in TASKS.iterdir()) == 1
    except OSError:
        return False


def _answer(work: Callable[[], object], reads: int, writes: int) -> None:
    """Write what `work` returns, and end this copy without a word, whatever happens."""
    code = 1
    try:
        os.close(reads)
        told = pickle.dumps(work())
        with os.fdopen(writes, "wb") as pipe:
            pipe.write(told)
        code = 0
    finally:
        os._exit(code)
