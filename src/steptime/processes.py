"""Processes of this machine that share work: pools whose workers end with their parent, and a map over them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")
TASKS: Final = Path("/proc/self/task")
# s between two looks at the parent
WATCH: Final = 0.5


def can_fork() -> bool:
    """Return whether a fork is safe and useful: on Linux, with one thread and a second core."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return core_count() > 1 and sum(1 for _ in TASKS.iterdir()) == 1
    except OSError:
        return False


def core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_pool(
    workers: int, prepare: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """Return a pool whose workers ignore Ctrl-C, which the parent handles, and end when the parent dies.

    Args:
        workers: the number of processes.
        prepare: called in each worker before its first task, with `arguments`.
        arguments: of `prepare`.
    """
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    return ProcessPoolExecutor(
        workers, mp_context=context, initializer=_prepare_worker, initargs=(os.getpid(), prepare, arguments)
    )


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End a pool at once, with what its workers are doing."""
    for worker in list((getattr(pool, "_processes", None) or {}).values()):
        worker.terminate()
    # no future is cancelled, as `pool.map` would: the pool's own thread prints a traceback where it fails a cancelled one
    pool.shutdown()


def map_in_processes(work: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Return what `work` makes of each item, in order: on all cores where `can_fork`, else one after the other.

    A worker that dies costs time alone: its items are worked out here.

    >>> map_in_processes(abs, [-1, 2])
    [1, 2]
    """
    if len(items) < 2 or not can_fork() or not _can_pickle((work, items)):
        return [work(item) for item in items]
    pool = process_pool(min(len(items), core_count()))
    try:
        with suppress(BrokenProcessPool):
            with hold_interrupts():
                futures = [pool.submit(work, item) for item in items]
            answers = [future.result() for future in futures]
            pool.shutdown()
            return answers
    except BaseException:
        end_pool(pool)
        raise
    return [work(item) for item in items]


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait meanwhile; processes that start inside never see it, not even during their imports."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _can_pickle(value: Any) -> bool:
    try:
        pickle.dumps(value)
    # what pickle raises for what it cannot write is of any kind
    except Exception:
        return False
    return True


def _prepare_worker(parent: int, prepare: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    # the parent gets Ctrl-C too, and ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if prepare is not None:
        prepare(*arguments)


def _end_with(parent: int) -> None:
    """End this process when its parent is another: a worker of a parent that was killed would wait without end."""
    process = multiprocessing.parent_process()
    # the number of the parent changes at its death on POSIX, the process object tells it on Windows
    while os.getppid() == parent and (process is None or process.is_alive()):
        time.sleep(WATCH)
    os._exit(1)
