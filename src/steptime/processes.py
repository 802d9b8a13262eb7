"""Processes: pools whose workers end with their parent, and a parallel map."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")
TASKS: Final = Path("/proc/self/task")
# Functions that maps of this process call with the finished items and all items; empty in workers.
LISTENERS: Final[list[Callable[[int, int], None]]] = []
# Seconds between two checks of the parent.
WATCH: Final = 0.5
# Most seconds that the threads of a closed pool take to end.
THREADS_END: Final = 0.1


def can_fork() -> bool:
    """Whether a fork is safe and useful: on Linux, with one thread and several cores.

    Returns:
        True or false.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        return core_count() > 1 and sum(1 for _ in TASKS.iterdir()) == 1
    except OSError:
        return False


def core_count() -> int:
    """Return the number of cores that this process may use.

    Returns:
        Number of cores.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_pool(
    workers: int, prepare: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """Return a pool of worker processes.

    The workers ignore Ctrl-C, which the parent handles, and end when the parent dies.

    Args:
        workers: Number of processes.
        prepare: Function that each worker calls before its first task.
        arguments: Arguments of `prepare`.

    Returns:
        The pool.
    """
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    return ProcessPoolExecutor(
        workers, mp_context=context, initializer=_prepare_worker, initargs=(os.getpid(), prepare, arguments)
    )


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End a pool at once, with its running tasks.

    Args:
        pool: The pool.
    """
    for worker in list((getattr(pool, "_processes", None) or {}).values()):
        worker.terminate()
    # Futures are not cancelled (as in `pool.map`): the pool's thread prints a traceback when it fails a cancelled future.
    pool.shutdown()


def map_in_processes(work: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Evaluate `work` for each item, on all cores if `can_fork`.

    If a worker dies, this process evaluates all items.

    Args:
        work: Function of one item.
        items: Arguments of `work`.

    Returns:
        Results in the order of the items.

    >>> map_in_processes(abs, [-1, 2])
    [1, 2]
    """
    listeners = [] if len(items) < 2 else LISTENERS[:]
    if len(items) < 2 or not can_fork() or not can_pickle((work, items)):
        return _map_serially(work, items, listeners)
    pool = process_pool(min(len(items), core_count()))
    try:
        with suppress(BrokenProcessPool):
            with hold_interrupts():
                futures = [pool.submit(work, item) for item in items]
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                for listener in listeners:
                    listener(done, len(items))
            pool.shutdown()
            _wait_for_threads()
            return [future.result() for future in futures]
    except BaseException:
        end_pool(pool)
        raise
    return _map_serially(work, items, listeners)


def _wait_for_threads() -> None:
    """Wait until the system has ended the threads of a closed pool: the next map would not fork while they run."""
    end = time.monotonic() + THREADS_END
    while not can_fork() and time.monotonic() < end:
        time.sleep(THREADS_END / 100)


def _map_serially(
    work: Callable[[Item], Answer], items: Sequence[Item], listeners: Sequence[Callable[[int, int], None]]
) -> list[Answer]:
    """Evaluate `work` for each item in this process, and report each; maps inside the work report nothing."""
    answers = []
    for done, item in enumerate(items, 1):
        with listening(None):
            answers.append(work(item))
        for listener in listeners:
            listener(done, len(items))
    return answers


@contextmanager
def listening(listener: Callable[[int, int], None] | None) -> Iterator[None]:
    """Report the progress of maps inside the block to a function, which must start no thread.

    Args:
        listener: Function of the finished items and of all items; None: maps report nothing.

    Yields:
        None.
    """
    before = LISTENERS[:]
    LISTENERS[:] = [] if listener is None else [listener]
    try:
        yield
    finally:
        LISTENERS[:] = before


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block.

    Processes that start inside the block never receive it, not even during their imports.

    Yields:
        None.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def can_pickle(value: Any) -> bool:
    """Whether a value can go to another process.

    Args:
        value: Any value.

    Returns:
        True or false.
    """
    try:
        pickle.dumps(value)
    # pickle raises any type of exception for values that it cannot write.
    except Exception:
        return False
    return True


def _prepare_worker(parent: int, prepare: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    # The parent receives Ctrl-C too, and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    LISTENERS.clear()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if prepare is not None:
        prepare(*arguments)


def _end_with(parent: int) -> None:
    """End this process when its parent dies; an orphan worker would wait forever."""
    process = multiprocessing.parent_process()
    # On POSIX the parent's id changes at its death; on Windows the process object reports it.
    while os.getppid() == parent and (process is None or process.is_alive()):
        time.sleep(WATCH)
    os._exit(1)
