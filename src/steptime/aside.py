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


def spread(work: Callable[[Given], Answer], items: Sequence[Given]) -> list[Answer]:
    """Return what `work` makes of each item, in their order: each core takes its share where that is safe (`aside`).

    >>> spread(lambda number: number**2, [1, 2, 3])
    [1, 4, 9]
    """
    cores = min(len(items), len(os.sched_getaffinity(0))) if alone() else 1
    others = [aside(partial(_each, work, items[first::cores])) for first in range(1, cores)]
    parts = [_each(work, items[::cores]) if cores else [], *(other() for other in others)]
    return [parts[at % max(cores, 1)][at // max(cores, 1)] for at in range(len(items))]


def _each(work: Callable[[Given], Answer], items: Sequence[Given]) -> list[Answer]:
    return [work(item) for item in items]


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
