"""Checks and progress messages that the simulating commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from steptime.cli.output import patience
from steptime.errors import NUMBA_MISSING, InputError, UnknownName

if TYPE_CHECKING:
    from steptime.simulation.simulation_result import Simulation


def check_percentile(percentile: str) -> None:
    """Raise UnknownName for a percentile that limits do not support.

    Args:
        percentile: Text of --percentile.
    """
    percentiles = ("mean", "p50", "p90", "p95", "p99")
    if percentile not in percentiles:
        raise UnknownName("percentile", percentile, percentiles, f"Known: {', '.join(percentiles)}.")


def need_numba() -> None:
    """Raise InputError, with the package to install, if numba is missing."""
    from importlib.util import find_spec

    if find_spec("numba") is None:
        raise InputError(NUMBA_MISSING)


@contextmanager
def compiling() -> Iterator[None]:
    """Print a message if compiling the simulator takes long.

    Yields:
        Nothing.
    """
    from steptime.simulation import event_loop

    # numba caches the compiled code on disk, so that the next run starts at once.
    with patience("compiling the simulator, once (about 20 seconds)", unless=lambda: bool(event_loop.serve.signatures)):  # type: ignore[attr-defined]
        yield


def compile_first() -> None:
    """Compile the simulator, or load it from the cache, before many runs."""
    need_numba()
    from steptime.simulation.simulator import simulate
    from steptime.simulation.traffic import Lengths, open_loop

    # One short request compiles all functions.
    with compiling():
        simulate("llama-3.1-8b", "hgx-h100", open_loop(1.0, 1, Lengths(mean=8), Lengths(mean=2)))


def with_progress(total: int, quiet: bool, work: Callable[[Any], "Simulation"]) -> "Simulation":
    """Run `work`, with a progress bar on standard error for long runs.

    Args:
        total: Number of requests.
        quiet: Whether to leave the progress bar out.
        work: Runs the simulation; takes a function of the number of finished requests, or None.

    Returns:
        The simulation.
    """
    from steptime.simulation.replica_pools import PORTION

    # The simulator reports after each portion of requests; short runs need no bar.
    if quiet or total < 4 * PORTION:
        return work(None)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=total)
        return work(lambda done: bar.update(task, completed=done))
