"""Runs a job: here, in processes of this machine, or on a Dask cluster; what ends on the way is asked again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib import import_module
from typing import Any, Final

from steptime.errors import InputError
from steptime.physics.chunked_evaluation import keep_memory
from steptime.processes import can_fork, core_count, end_pool, hold_interrupts, process_pool
from steptime.sweeps.point_grid import Gathered, Job, Region, RegionAnswers, ask_all, size
from steptime.sweeps.resume_log import Journal

Progress = Callable[[int, int], None]
SHORT: Final = 3.0  # s of work that is not worth a second process
PER_TASK: Final = 5.0  # s of work that goes to a process at once, about
MOST_AT_ONCE: Final = 64  # points of such a task
DEATHS: Final = 3  # of processes, or of a cluster's workers, that are borne: the fourth ends the sweep
PATIENCE: Final = 5.0  # s that a cluster is waited for


def run(
    job: Job,
    *,
    workers: int | None = None,
    client: Any = None,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> Gathered:
    """Return all answers of a job.

    workers: processes of this machine; None for as many as there are cores where that is safe and worth it. client: of a Dask
    cluster, which gets the work instead. journal: where answers are kept as they come, and read from if it has some.
    progress(done, total): called as points are answered.
    """
    gathered = Gathered(job.shape)
    done = 0
    if journal is not None:
        for region_answers in journal.done.values():
            gathered.take(region_answers)
            done += size(region_answers.region)
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
    if job.question.threads and any(job.inner) and len(regions) > 1 and workers != 1:
        return in_threads(job, regions, workers)
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
    except Exception:  # what pickle raises for what it cannot write is of any kind
        return False
    return True


def _tasks(job: Job, regions: Sequence[Region], workers: int) -> list[Sequence[Region]]:
    """Return regions in groups that are asked at once: of a few seconds, and several for each worker."""
    points = max(size(region) for region in regions)
    task_size = max(1, min(MOST_AT_ONCE, int(PER_TASK / max(job.question.seconds * points, 1e-3))))
    task_size = max(1, min(task_size, len(regions) // (4 * workers)))
    return [regions[first : first + task_size] for first in range(0, len(regions), task_size)]


def in_threads(job: Job, regions: Sequence[Region], workers: int | None) -> Iterator[RegionAnswers]:
    """Yield answers about arrays, a block a thread: numpy leaves the other threads alone while it reckons."""
    keep_memory()
    with ThreadPoolExecutor(workers or core_count()) as pool:
        for task_answers in pool.map(partial(ask_all, job), ([region] for region in regions)):
            yield from task_answers


# --- processes of this machine ------------------------------------------------------------------------------------------


_JOB: list[Job] = []  # of this process, where it is one that answers


def _prepare(pickled_job: bytes) -> None:
    _JOB[:] = [pickle.loads(pickled_job)]


def _ask(regions: Sequence[Region]) -> list[RegionAnswers]:
    return ask_all(_JOB[0], regions)


def in_processes(job: Job, regions: Sequence[Region], workers: int) -> Iterator[RegionAnswers]:
    """Yield answers from several processes as they come; what a process was asked that died is asked again."""
    open_tasks = dict(enumerate(_tasks(job, regions, workers)))
    for _ in range(DEATHS + 1):
        pool = process_pool(workers, _prepare, (pickle.dumps(job),))
        try:
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
        except BrokenProcessPool:
            pool.shutdown(wait=False, cancel_futures=True)
        except BaseException:
            end_pool(pool)
            raise
    raise InputError(f"processes of this sweep were ended {DEATHS + 1} times, perhaps for want of memory; try workers=1")


# --- a Dask cluster -----------------------------------------------------------------------------------------------------


def connect(address: str) -> Any:
    """Return a client of a Dask cluster; raise InputError where dask is missing, or nothing answers at the address."""
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise InputError("a cluster needs dask: pip install 'steptime[cluster]'") from None
    try:
        return distributed.Client(address, timeout=PATIENCE)
    except (OSError, ValueError, TypeError) as problem:
        raise InputError(f"no Dask cluster answers at {address}: {_short(problem)}") from None


def _short(problem: Exception) -> str:
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__


def on_cluster(job: Job, regions: Sequence[Region], client: Any) -> Iterator[RegionAnswers]:
    """Yield answers from the workers of a cluster as they come; the work of one that is lost goes to others."""
    workers = max(1, sum(client.nthreads().values()))
    tasks = _tasks(job, regions, workers)
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
        raise InputError(f"the cluster lost its workers: {_short(problem)}") from None
    except distributed.CancelledError:
        raise InputError("the cluster went away; with results in a file, the same sweep goes on from there") from None
    return answers


def _ask_there(job: Job, regions: Sequence[Region]) -> list[RegionAnswers]:
    return ask_all(job, regions)
