r"""Constants of an engine from one run that was recorded request by request.

The run is replayed: the same arrivals and lengths, the same limits. The constants that a replay depends on most are fitted in
their logarithms by least squares to the times of first and last tokens, with a shipped engine as prior: what a run cannot tell
(the efficiency of arithmetic, where a slow link hides it) stays near what is usual, so that it carries over to other machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.errors import InputError
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array
from steptime.physics.engine import Engine, constant, label_values, with_constants
from steptime.physics.layout import Layout
from steptime.simulation.loop_state import DONE
from steptime.simulation.replica_pools import serve
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.step_time_model import sample_pace
from steptime.simulation.traffic import Traffic

# deviation of the logarithm of a deployment's constant about its engine's
PRIOR = {
    "memory_efficiency": 0.1,
    "compute_efficiency": 0.15,
    "attention_memory_efficiency": 0.2,
    "attention_efficiency": 0.3,
    "seconds_per_kernel": 0.3,
    "seconds_per_step": 0.7,
    "seconds_per_sequence": 0.7,
}
# of a run's mean times: another run of the same requests differs by as much
NOISE = 0.02
# of a logarithm, for slopes: a replay is smooth only on the whole
STEP = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recorded run of one replica: traffic, first and last [s] tokens of each request on its clock, and how it was served."""

    traffic: Traffic
    first: Array
    last: Array
    model: Model
    system: System
    layout: Layout
    policy: Policy


def replay(run: Recorded, engine: Engine) -> Any:
    """Return the requests of a recorded run as `engine` would have served them (rows of `pool.REQUEST`)."""
    inputs, outputs = np.asarray(run.traffic.inputs), np.asarray(run.traffic.outputs)
    pace = sample_pace(
        run.model,
        run.system,
        layout=run.layout,
        engine=engine,
        max_num_seqs=run.policy.max_num_seqs,
        max_num_batched_tokens=run.policy.max_num_batched_tokens,
        contexts=(float(np.percentile(inputs, 5)), float(np.percentile(inputs + outputs, 95))),
        check=False,
    )
    requests, _, _ = serve(run.traffic, run.policy, pace)
    return requests


def differences(run: Recorded, requests: Any) -> Array:
    """Replayed less recorded first tokens, last tokens and times of decode, each over its recorded mean; (3, requests)."""
    arrival, done = np.asarray(run.traffic.arrival), requests["status"] == DONE
    decode = run.last - run.first
    parts = (
        (requests["first"] - run.first) / np.mean(run.first - arrival),
        (requests["finish"] - run.last) / np.mean(run.last - arrival),
        (requests["finish"] - requests["first"] - decode) / np.mean(decode),
    )
    return np.where(done, np.stack(parts), 1.0)


def fit(run: Recorded, prior: Engine) -> Engine:
    """Return `prior` with the constants of PRIOR fitted to a recorded run.

    Links stay as they are: a slow one and slow arithmetic look alike in a run, and its speed is a figure of the system.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError("fitting needs scipy: pip install 'steptime[simulate]'") from None
    names = [n for n in PRIOR if float(constant(prior, n)) > 0]
    mean, deviation = np.log([float(constant(prior, n)) for n in names]), np.array([PRIOR[n] for n in names])

    def engine(logs: Array) -> Engine:
        return with_constants(prior, label_values(names, np.exp(logs)))

    def residuals(logs: Array) -> Array:
        off = differences(run, replay(run, engine(logs)))
        return np.concatenate([(off / NOISE / np.sqrt(off.shape[1])).ravel(), (logs - mean) / deviation])

    def slopes(logs: Array) -> Array:
        moves = STEP * np.eye(len(names))
        return np.stack([(residuals(logs + move) - residuals(logs - move)) / (2 * STEP) for move in moves], axis=1)

    best = least_squares(residuals, mean, jac=slopes, x_scale=deviation, max_nfev=25, xtol=1e-3, ftol=1e-4)
    return replace(engine(best.x), name=f"{prior.name}, fitted to {len(run.traffic)} requests", fit={})
