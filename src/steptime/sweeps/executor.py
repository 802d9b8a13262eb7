"""Run the regions of a job in this process, in threads, in processes, or on a Dask cluster, and log the answers on disk.

One loop over futures serves threads, processes and the cluster. A stopped sweep continues from its log.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
import os
import pickle
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptime.errors import DataFileError, InputError, RangeError, install_hint, short_repr
from steptime.physics.chunked_evaluation import keep_memory
from steptime.processes import can_fork, can_pickle, core_count, end_pool, hold_interrupts, process_pool
from steptime.sweeps.axes import label
from steptime.sweeps.point_grid import Gathered, Job, Region, RegionAnswers, ask_all, size

# Called with the points done and the number of points.
Progress = Callable[[int, int], None]
Task = Sequence[Region]
# Suffix of the log next to the file of results.
SUFFIX: Final = ".partial"
# Time between two syncs to the disk [s].
SYNC_INTERVAL: Final = 1.0
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

    Raises:
        RangeError: If `workers` is not a count.
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise RangeError(f"workers: must be a whole number of at least 1, got {short_repr(workers)}")
    gathered, report = Gathered(job.shape), progress or (lambda *_: None)
    # Points that the journal already has are not asked again.
    logged = {} if journal is None else journal.done
    for region_answers in logged.values():
        gathered.take(region_answers)
    done = sum(map(size, logged))
    report(done, job.points)
    regions = [region for region in job.regions() if region not in logged]
    for region_answers in _answers(job, regions, workers, client):
        gathered.take(region_answers)
        if journal is not None:
            journal.note(region_answers)
        done += size(region_answers.region)
        report(done, job.points)
    # Tasks end in any order; reasons are in the order of the points.
    gathered.reasons = dict(sorted(gathered.reasons.items()))
    return gathered


def _answers(job: Job, regions: Sequence[Region], workers: int | None, client: Any) -> Iterator[RegionAnswers]:
    """Return the answers of all regions, from the place where they are evaluated fastest."""
    ask = partial(ask_all, job)
    if client is not None:
        return _on_cluster(client, ask, _tasks(job, regions, max(1, sum(client.nthreads().values()))))
    # numpy releases the lock of the interpreter, so that threads are enough for arrays.
    if job.question.threads and any(job.inner) and len(regions) > 1 and workers != 1:
        keep_memory()
        threads = partial(ThreadPoolExecutor, workers or core_count())
        return _in_pool(threads, lambda pool: pool.shutdown(cancel_futures=True), ask, [[region] for region in regions])
    # Starting processes costs more than a short job.
    if workers is None:
        is_long = job.question.seconds * sum(map(size, regions)) > SHORT
        workers = core_count() if is_long and can_fork() else 1
    workers = min(workers, len(regions))
    if workers > 1 and can_pickle(job):
        # Each process gets the job once, which is cheaper than with each task.
        processes = partial(process_pool, workers, _prepare, (job,))
        return _in_pool(processes, end_pool, _ask, _tasks(job, regions, workers))
    return itertools.chain.from_iterable(ask([region]) for region in regions)


def _tasks(job: Job, regions: Sequence[Region], workers: int) -> list[Task]:
    """Return regions in tasks of a few seconds, at least four per worker."""
    if not regions:
        return []
    points = max(map(size, regions))
    task_size = max(1, min(MOST_AT_ONCE, int(PER_TASK / max(job.question.seconds * points, 1e-3))))
    task_size = max(1, min(task_size, len(regions) // (4 * workers)))
    return [regions[first : first + task_size] for first in range(0, len(regions), task_size)]


# The job of this worker process.
_JOB: list[Job] = []


def _prepare(job: Job) -> None:
    _JOB[:] = [job]


def _ask(task: Task) -> list[RegionAnswers]:
    return ask_all(_JOB[0], task)


def _in_pool(
    make_pool: Callable[[], Executor],
    end: Callable[[Any], None],
    ask: Callable[[Task], list[RegionAnswers]],
    tasks: Sequence[Task],
) -> Iterator[RegionAnswers]:
    """Yield answers from a pool as they come; repeat the tasks of a process that died.

    Args:
        make_pool: Returns a pool.
        end: Ends a pool at once.
        ask: Function of one task.
        tasks: All tasks.

    Yields:
        Answers of one region.

    Raises:
        InputError: If processes die more than `DEATHS` times.
    """
    open_tasks = dict(enumerate(tasks))
    for _ in range(DEATHS + 1):
        pool = make_pool()
        try:
            # An interrupt while tasks are submitted would leave processes behind.
            with hold_interrupts():
                futures = {pool.submit(ask, task): index for index, task in open_tasks.items()}
            for future in as_completed(futures):
                # A future keeps its answers as long as someone refers to it.
                index = futures.pop(future)
                yield from future.result()
                del open_tasks[index]
            pool.shutdown()
            return
        # A process died, usually for lack of memory: open tasks go to a new pool.
        except BrokenProcessPool:
            end(pool)
        except BaseException:
            end(pool)
            raise
    raise InputError(f"workers: processes of this sweep died {DEATHS + 1} times, possibly out of memory; try workers=1")


def _on_cluster(client: Any, ask: Callable[[Task], list[RegionAnswers]], tasks: Sequence[Task]) -> Iterator[RegionAnswers]:
    """Yield answers from a cluster, which repeats the tasks of a lost worker."""
    # Tasks are not pure: results must not come from another sweep's cache.
    make_pool = partial(client.get_executor, pure=False, retries=DEATHS)
    try:
        yield from _in_pool(make_pool, lambda pool: pool.shutdown(wait=False), ask, tasks)
    except import_module("distributed").KilledWorker as problem:
        raise InputError(f"cluster: its workers died: {_short(problem)}") from None
    except CancelledError:
        raise InputError("cluster: the connection is lost; a sweep with a file of results continues from there") from None


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


# --- the log of answers -------------------------------------------------------------------------------------------------


class Journal:
    """A file next to the results with one line per answered region.

    It belongs to one sweep: its question, axes, fixed values, and the contents of files that these name. It is removed once the
    results are written. A file of another sweep raises DataFileError.
    """

    def __init__(self, results: str, job: Job) -> None:
        self.path = Path(results + SUFFIX)
        self.done: dict[Region, RegionAnswers] = {}
        self.synced = -math.inf
        header = _line({"sweep": fingerprint(job)})
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
            # A full disk or a power cut tore the first line: nothing is lost.
            if text and header.startswith(text):
                self.path.unlink()
                text = ""
            self._load(text, header)
            # Without a buffer, a line is one call of the system, which other processes do not split.
            self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - open as long as the sweep lasts
            if not text:
                self._write(header)
            # A torn last line stays: other processes may append to this file too.
            elif not text.endswith("\n"):
                self._write("\n")
        except OSError as error:
            raise self._refusal(error) from None
        # Whether the file has an answer that is worth keeping.
        self.kept = bool(self.done)

    def _load(self, text: str, header: str) -> None:
        lines = text.splitlines()
        if lines and lines[0] != header.rstrip():
            try:
                _ = _parse_line(lines[0])["sweep"]
            except (ValueError, KeyError, TypeError):
                raise DataFileError(self.path, "is not a log of a sweep; remove it, or give the results another name") from None
            raise DataFileError(self.path, "is the log of another sweep; remove it, or give the results another name")
        for line in lines[1:]:
            try:
                record = _parse_line(line)
                region = tuple((start, stop) for start, stop in record["region"])
            except (ValueError, KeyError, TypeError):
                # A process ended while it wrote this line. Its checksum is wrong; those of later lines may be right.
                continue
            shape = tuple(stop - start for start, stop in region)
            answers = {
                name: np.array(values, dtype=object if any(isinstance(v, str) for v in values) else np.float64).reshape(shape)
                for name, values in record["answers"].items()
            }
            self.done[region] = RegionAnswers(region=region, answers=answers, reason=record.get("reason", ""))

    def note(self, region_answers: RegionAnswers) -> None:
        """Append the answers of a region to the file.

        Args:
            region_answers: Answers of one region.

        Raises:
            DataFileError: If the file cannot be written, for example because the disk is full.
        """
        answers = {name: values.ravel().tolist() for name, values in region_answers.answers.items()}
        try:
            self._write(_line({"region": region_answers.region, "answers": answers, "reason": region_answers.reason}))
        except OSError as error:
            raise self._refusal(error) from None
        self.kept = True

    def _refusal(self, error: OSError) -> DataFileError:
        return DataFileError(self.path, f"cannot be written: {error.strerror}")

    def _write(self, text: str) -> None:
        data = text.encode()
        # A disk that gets full takes a part of a line, and refuses the next call.
        while data:
            data = data[self.file.write(data) :]
        # A power cut costs one second of work; a sync of every line would cost more than a short point.
        if time.monotonic() - self.synced >= SYNC_INTERVAL:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close the file; keep it only if the sweep stopped with answers in it."""
        stopped = kind is not None and self.kept
        if stopped:
            with suppress(OSError):
                os.fsync(self.file.fileno())
        self.file.close()
        if not stopped:
            self.path.unlink(missing_ok=True)


def _line(record: dict[str, Any]) -> str:
    """Return a record as a line with its checksum."""
    text = json.dumps(record)
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _parse_line(line: str) -> dict[str, Any]:
    """Return the record of a line; raise ValueError if the line is damaged."""
    mark, _, text = line.partition(" ")
    if mark != f"{zlib.crc32(text.encode()):08x}":
        raise ValueError("the checksum of the line is wrong")
    record: dict[str, Any] = json.loads(text)
    return record


def fingerprint(job: Job) -> str:
    """Return a text that identifies a sweep.

    Args:
        job: Question, axes and fixed inputs.

    Returns:
        24 hexadecimal digits.
    """
    digest = hashlib.sha256(f"{job.question.name} {job.together} {sorted(job.answer_names)}".encode())
    # A Python function declares no answers; they change with its code.
    if not job.question.answers:
        function = getattr(job.question.ask, "args", (job.question.ask,))[0]
        try:
            digest.update(inspect.getsource(function).encode())
        except (OSError, TypeError):
            digest.update(repr(function).encode())
    for axis in job.axes:
        digest.update(axis.name.encode())
        digest.update(axis.values.tobytes() if axis.numeric else b"|".join(map(_identity, axis.values)))
    for name, value in sorted(job.fixed.items()):
        digest.update(f"{name}=".encode() + _identity(value))
    return digest.hexdigest()[:24]


def _identity(value: Any) -> bytes:
    """Return bytes that identify a value; the contents of a file may change under the same name."""
    if isinstance(value, str) and os.path.isfile(value):
        return repr(value).encode() + hashlib.sha256(Path(value).read_bytes()).digest()
    if isinstance(value, str | float | int):
        return repr(value).encode()
    return label(value).encode() + hashlib.sha256(pickle.dumps(value)).digest()
