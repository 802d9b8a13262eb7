"""A log of answers on disk, from which a stopped sweep continues.

Run a job in this process, in several processes, or on a Dask cluster; repeat tasks whose worker died.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import pickle
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptime.atomic_files import write_text_atomically
from steptime.errors import DataFileError, InputError, install_hint
from steptime.physics.chunked_evaluation import keep_memory
from steptime.processes import can_fork, core_count, end_pool, hold_interrupts, process_pool
from steptime.sweeps.axes import label
from steptime.sweeps.point_grid import Gathered, Job, Region, RegionAnswers, ask_all, size

SUFFIX: Final = ".partial"
# Time between two syncs to the disk [s].
SYNC_INTERVAL: Final = 1.0


class Journal:
    """A file next to the results with one line per answered region.

    It belongs to one sweep: its question, axes, fixed values, and the contents of files that these name. It is removed once the
    results are written. A file of another sweep raises DataFileError.
    """

    def __init__(self, results: str, job: Job) -> None:
        self.path = Path(results + SUFFIX)
        self.mark = fingerprint(job)
        self.done: dict[Region, RegionAnswers] = {}
        self.synced = -math.inf
        try:
            if self.path.exists():
                self._load()
            self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the sweep lasts
            if self.path.stat().st_size == 0:
                self._write({"sweep": self.mark})
        except OSError as error:
            raise DataFileError(self.path, f"cannot be written: {error.strerror}") from None
        # Whether the file has an answer that is worth keeping.
        self.kept = bool(self.done)

    def _load(self) -> None:
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        try:
            mark = _parse_line(lines[0])["sweep"] if lines else self.mark
        except (ValueError, KeyError, TypeError):
            raise DataFileError(self.path, "is not a log of a sweep; remove it, or give the results another name") from None
        if mark != self.mark:
            raise DataFileError(self.path, "is the log of another sweep; remove it, or give the results another name")
        valid_lines = lines[:1]
        for line in lines[1:]:
            try:
                record = _parse_line(line)
                region = tuple((start, stop) for start, stop in record["region"])
            except (ValueError, KeyError, TypeError):
                # The sweep ended while it wrote this line.
                break
            shape = tuple(stop - start for start, stop in region)
            answers = {name: _array(value, shape) for name, value in record["answers"].items()}
            self.done[region] = RegionAnswers(region=region, answers=answers, reason=record.get("reason", ""))
            valid_lines.append(line)

        # New lines are appended, so that a broken last line must go first.
        if len(valid_lines) < len(lines):
            write_text_atomically(self.path, "".join(f"{line}\n" for line in valid_lines))

    def pending_regions(self, regions: Iterable[Region]) -> Iterator[Region]:
        """Yield the regions without an answer.

        Args:
            regions: All regions of the job.

        Returns:
            Those that are not in the file.
        """
        return (region for region in regions if region not in self.done)

    def note(self, region_answers: RegionAnswers) -> None:
        """Append the answers of a region to the file.

        Args:
            region_answers: Answers of one region.
        """
        answers = {name: values.ravel().tolist() for name, values in region_answers.answers.items()}
        self._write({"region": region_answers.region, "answers": answers, "reason": region_answers.reason})
        self.kept = True

    def _write(self, record: dict[str, Any]) -> None:
        text = json.dumps(record)
        self.file.write(f"{zlib.crc32(text.encode()):08x} {text}\n")
        self.file.flush()
        # A power cut costs one second of work; a sync of every line would cost more than a short point.
        if time.monotonic() - self.synced >= SYNC_INTERVAL:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()

    def close(self, *, finished: bool) -> None:
        """Close the file; remove it if the results are written.

        Args:
            finished: Whether the results are written.
        """
        if not finished:
            self.file.flush()
            with suppress(OSError):
                os.fsync(self.file.fileno())
        self.file.close()
        if finished:
            self.path.unlink(missing_ok=True)


def _parse_line(line: str) -> dict[str, Any]:
    """Return the record of a line; raise ValueError if the line is damaged."""
    mark, _, text = line.partition(" ")
    if mark != f"{zlib.crc32(text.encode()):08x}":
        raise ValueError("the checksum of the line is wrong")
    record: dict[str, Any] = json.loads(text)
    return record


def _array(values: list[Any], shape: tuple[int, ...]) -> Any:
    text = any(isinstance(value, str) for value in values)
    return np.array(values, dtype=object if text else np.float64).reshape(shape)


def fingerprint(job: Job) -> str:
    """Return a text that identifies a sweep.

    Args:
        job: Question, axes and fixed inputs.

    Returns:
        24 hexadecimal digits.
    """
    digest = hashlib.sha256()
    digest.update(f"{job.question.name} {job.together} {sorted(job.answer_names)}".encode())
    # The answers of a Python function change with its code.
    function = getattr(job.question.ask, "args", None)
    if function and callable(function[0]):
        try:
            digest.update(inspect.getsource(function[0]).encode())
        except (OSError, TypeError):
            digest.update(repr(function[0]).encode())
    for axis in job.axes:
        digest.update(axis.name.encode())
        digest.update(axis.values.tobytes() if axis.numeric else _fingerprint_values(axis.values).encode())
    for name, value in sorted(job.fixed.items()):
        digest.update(f"{name}={_fingerprint_values([value])}".encode())
    return digest.hexdigest()[:24]


def _fingerprint_values(values: Iterable[Any]) -> str:
    parts = []
    for value in values:
        plain = isinstance(value, str | float | int)
        parts.append(repr(value) if plain else label(value) + hashlib.sha256(pickle.dumps(value)).hexdigest())
        # The contents of a file may change under the same name.
        if isinstance(value, str) and os.path.isfile(value):
            parts.append(hashlib.sha256(Path(value).read_bytes()).hexdigest())
    return "|".join(parts)


# Called with the points done and the number of points.
Progress = Callable[[int, int], None]
# Work that is too short for a second process [s].
SHORT: Final = 3.0
# Approximate work per task of a process [s].
PER_TASK: Final = 5.0
# Largest number of points per task.
MOST_AT_ONCE: Final = 64
# Number of deaths of processes or cluster workers that a sweep survives.
DEATHS: Final = 3
# Timeout of the connection to a cluster [s].
PATIENCE: Final = 5.0


def run(
    job: Job,
    *,
    workers: int | None = None,
    client: Any = None,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> Gathered:
    """Return all answers of a job.

    Args:
        job: Question, axes and fixed inputs.
        workers: Processes of this machine; None: all cores if that is safe and faster.
        client: Client of a Dask cluster, which runs the job instead.
        journal: File that stores answers as they come, and from which a stopped sweep continues.
        progress: Called with the points done and the number of points.

    Returns:
        Arrays of all answers, and the reasons of points without one.
    """
    gathered = Gathered(job.shape)
    done = 0
    if journal is not None:
        for region_answers in journal.done.values():
            gathered.take(region_answers)
            done += size(region_answers.region)

    # Points that the journal already has are not asked again.
    regions = list(job.regions() if journal is None else journal.pending_regions(job.regions()))
    if progress is not None:
        progress(done, job.points)
    for region_answers in _answers(job, regions, workers, client):
        gathered.take(region_answers)
        if journal is not None:
            journal.note(region_answers)
        done += size(region_answers.region)
        if progress is not None:
            progress(done, job.points)
    return gathered


def _answers(job: Job, regions: Sequence[Region], workers: int | None, client: Any) -> Iterator[RegionAnswers]:
    if client is not None:
        return on_cluster(job, regions, client)
    # numpy releases the lock of the interpreter, so that threads are enough for arrays.
    if job.question.threads and any(job.inner) and len(regions) > 1 and workers != 1:
        return in_threads(job, regions, workers)
    # Starting processes costs more than a short job.
    if workers is None:
        is_long = job.question.seconds * sum(map(size, regions)) > SHORT
        workers = core_count() if is_long and can_fork() else 1
    workers = min(workers, len(regions))
    if workers > 1 and _goes_to_others(job):
        return in_processes(job, regions, workers)
    return (region_answers for region in regions for region_answers in ask_all(job, [region]))


def _goes_to_others(job: Job) -> bool:
    try:
        pickle.dumps(job)
    except Exception:  # pickle has no common error type for objects that it cannot write
        return False
    return True


def _tasks(job: Job, regions: Sequence[Region], workers: int) -> list[Sequence[Region]]:
    """Return regions in tasks of a few seconds, at least four per worker."""
    points = max(size(region) for region in regions)
    task_size = max(1, min(MOST_AT_ONCE, int(PER_TASK / max(job.question.seconds * points, 1e-3))))
    task_size = max(1, min(task_size, len(regions) // (4 * workers)))
    return [regions[first : first + task_size] for first in range(0, len(regions), task_size)]


def in_threads(job: Job, regions: Sequence[Region], workers: int | None) -> Iterator[RegionAnswers]:
    """Yield the answers of a question that takes arrays, one block per thread.

    Args:
        job: Question, axes and fixed inputs.
        regions: Blocks of points.
        workers: Number of threads; None: one per core.

    Yields:
        Answers of one region.
    """
    keep_memory()
    with ThreadPoolExecutor(workers or core_count()) as pool:
        for task_answers in pool.map(partial(ask_all, job), ([region] for region in regions)):
            yield from task_answers


# --- processes of this machine ------------------------------------------------------------------------------------------


# The job of this worker process. Sending it once per process is cheaper than once per task.
_JOB: list[Job] = []


def _prepare(pickled_job: bytes) -> None:
    _JOB[:] = [pickle.loads(pickled_job)]


def _ask(regions: Sequence[Region]) -> list[RegionAnswers]:
    return ask_all(_JOB[0], regions)


def in_processes(job: Job, regions: Sequence[Region], workers: int) -> Iterator[RegionAnswers]:
    """Yield answers from several processes as they come; repeat lost tasks.

    Args:
        job: Question, axes and fixed inputs.
        regions: Blocks of points.
        workers: Number of processes.

    Yields:
        Answers of one region.

    Raises:
        InputError: If processes die more than `DEATHS` times.
    """
    open_tasks = dict(enumerate(_tasks(job, regions, workers)))
    for _ in range(DEATHS + 1):
        pool = process_pool(workers, _prepare, (pickle.dumps(job),))
        try:
            # An interrupt while tasks are submitted would leave processes behind.
            with hold_interrupts():
                futures: dict[Future[list[RegionAnswers]], int] = {
                    pool.submit(_ask, task): index for index, task in open_tasks.items()
                }
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    index = futures.pop(future)
                    yield from future.result()
                    del open_tasks[index]
            pool.shutdown()
            return
        # A process died, usually for lack of memory: open tasks go to a new pool.
        except BrokenProcessPool:
            pool.shutdown(wait=False, cancel_futures=True)
        except BaseException:
            end_pool(pool)
            raise
    raise InputError(f"workers: processes of this sweep died {DEATHS + 1} times, possibly out of memory; try workers=1")


# --- a Dask cluster -----------------------------------------------------------------------------------------------------


def connect(address: str) -> Any:
    """Return a client of a Dask cluster.

    Args:
        address: Address of the scheduler.

    Returns:
        The client.

    Raises:
        InputError: If dask is not installed, or no cluster answers at the address.
    """
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise InputError(f"cluster: needs dask, which is not installed: {install_hint('cluster')}") from None
    try:
        return distributed.Client(address, timeout=PATIENCE)
    except (OSError, ValueError, TypeError) as problem:
        raise InputError(f"cluster: no Dask cluster answers at {address}: {_short(problem)}") from None


def _short(problem: Exception) -> str:
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__


def on_cluster(job: Job, regions: Sequence[Region], client: Any) -> Iterator[RegionAnswers]:
    """Yield answers from the workers of a cluster as they come.

    Args:
        job: Question, axes and fixed inputs.
        regions: Blocks of points.
        client: Client of the cluster, which repeats the tasks of a lost worker.

    Yields:
        Answers of one region.
    """
    workers = max(1, sum(client.nthreads().values()))
    tasks = _tasks(job, regions, workers)
    # Tasks are not pure: results must not come from another sweep's cache.
    futures = client.map(_ask_there, [job] * len(tasks), tasks, pure=False, retries=DEATHS)
    try:
        for future in import_module("distributed").as_completed(futures):
            yield from _result(future)
            future.release()
    finally:
        client.cancel(futures)


def _result(future: Any) -> list[RegionAnswers]:
    distributed = import_module("distributed")
    try:
        answers: list[RegionAnswers] = future.result()
    except distributed.KilledWorker as problem:
        raise InputError(f"cluster: its workers died: {_short(problem)}") from None
    except distributed.CancelledError:
        raise InputError("cluster: the connection is lost; a sweep with a file of results continues from there") from None
    return answers


def _ask_there(job: Job, regions: Sequence[Region]) -> list[RegionAnswers]:
    return ask_all(job, regions)
