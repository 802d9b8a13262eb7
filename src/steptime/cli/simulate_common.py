"""What the commands that simulate share: what they need, and words while one waits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from steptime.cli.output import patience
from steptime.errors import InputError, UnknownName, install_hint

if TYPE_CHECKING:
    from steptime.simulation.simulation_result import Simulation


def check_percentile(percentile: str) -> None:
    """Raise UnknownName for a percentile that no limit can be held at."""
    percentiles = ("mean", "p50", "p90", "p95", "p99")
    if percentile not in percentiles:
        raise UnknownName("percentile", percentile, percentiles, f"Known: {', '.join(percentiles)}.")


def need_numba() -> None:
    """Raise InputError where the simulator cannot run, with what to install."""
    from importlib.util import find_spec

    if find_spec("numba") is None:
        raise InputError(f"the simulator is compiled by numba, which is not installed: {install_hint('simulate')}")


@contextmanager
def compiling() -> Iterator[None]:
    """Say that the simulator is compiled, where that takes a while: numba keeps it for the next time."""
    from steptime.simulation import event_loop

    with patience("compiling the simulator, once (about 20 seconds)", unless=lambda: bool(event_loop.serve.signatures)):  # type: ignore[attr-defined]
        yield


def compile_first() -> None:
    """Compile the simulator before it is run many times, or load what was compiled: with a word where that takes a while."""
    need_numba()
    from steptime.simulation.simulator import simulate
    from steptime.simulation.traffic import Lengths, open_loop

    with compiling():
        simulate("llama-3.1-8b", "hgx-h100", open_loop(1.0, 1, Lengths(mean=8), Lengths(mean=2)))


def with_progress(total: int, quiet: bool, work: Callable[[Any], "Simulation"]) -> "Simulation":
    """Run `work` with a progress bar on the terminal where it is long."""
    from steptime.simulation.replica_pools import PORTION

    if quiet or total < 4 * PORTION:
        return work(None)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=total)
        return work(lambda done: bar.update(task, completed=done))
