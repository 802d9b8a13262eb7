"""Turns of sessions in time: the next turn arrives a think time after the answer before it.

The event loop serves requests with known arrivals. Therefore the turns are served again and again: each run gives the time
that every answer takes, and the next run moves the turns behind it accordingly. Answers by some time depend only on earlier
arrivals, so each run corrects at least one more turn of every session. In practice two to four runs are enough, because
answers take about as long in all of them.

In the long run turns arrive at a given rate, however long answers take. Therefore a queue that grows in one of these runs
grows without end, and the runs stop there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np

from steptime.simulation.loop_state import DONE
from steptime.simulation.run_metrics import queue_growth
from steptime.workload.traffic import Traffic

Use = TypeVar("Use")
# Most runs, and the mean change of an answer's time over the mean time between two turns below which they agree.
MOST_RUNS: Final = 8
AGREEMENT: Final = 0.03


def serve_turns(
    traffic: Traffic,
    once: Callable[[Traffic], tuple[Use, Any, int]],
    expected: Any = 0.0,
    *,
    most_runs: int = MOST_RUNS,
) -> tuple[Traffic, tuple[Use, Any]]:
    """Serve turns of sessions until their arrivals agree with the answers before them.

    Turns that are not served, before and after the run, take the mean time of those that are.

    Args:
        traffic: Drawn sessions, as `draw_sessions` gives them.
        once: Function that serves a traffic and returns what the caller needs, the finished requests, and the slots of the
            pool that prefills.
        expected: Expected time of answers [s], one for all turns or by turn.
        most_runs: Most runs.

    Returns:
        The traffic of the last run; what the caller needs, and the requests.
    """
    turns = traffic.turns
    latency = np.broadcast_to(np.asarray(expected, dtype=np.float64), turns.session.shape)
    if np.any(latency):
        traffic = turns.traffic(latency)
    outcome = once(traffic)
    for _ in range(most_runs - 1):
        _, requests, seats = outcome
        done = requests["status"] == DONE
        if not np.any(done) or queue_growth(requests["arrival"][done], requests["scheduled"][done], seats):
            break
        took = (requests["finish"] - requests["arrival"])[done]
        updated = _by_turn(took, traffic.turn[done], len(latency))
        between = float(turns.think.mean()) + float(took.mean())
        change = float(np.abs(updated - latency)[traffic.turn].mean())
        if change <= AGREEMENT * between:
            break
        # Half of a change, because long answers make the cache lose histories, and lost histories make answers long.
        latency = updated if not latency.any() else (latency + updated) / 2
        # A separate prefill pool has the blocks until they are sent.
        sent = np.fmin(requests["moved"], requests["finish"])[done] - requests["arrival"][done]
        use = latency if np.array_equal(sent, took) else np.minimum(_by_turn(sent, traffic.turn[done], len(latency)), latency)
        traffic = turns.traffic(latency, use)
        outcome = once(traffic)
    return traffic, outcome[:2]


def _by_turn(seconds: Any, turn: Any, count: int) -> Any:
    """Return times of all turns, the mean where a turn has no time [s]."""
    times = np.full(count, float(seconds.mean()))
    times[turn] = seconds
    return times
