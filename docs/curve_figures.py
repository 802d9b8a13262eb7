r"""Figures of measured and predicted curves of closed loops: saturation points, and the parts of first tokens.

A closed loop is a closed network of queues. Its throughput $X(N)$ with $N$ clients has two bounds: $N$ times the throughput
per client at low load, and the highest throughput. They meet at the saturation point

$$ N^* = X_{max} / (X(N_1) / N_1). $$

With more clients requests wait for each other. $N_1$ is the lowest load of the curve. A curve saturates if its last doubling of
clients adds less than `MOST_GAIN` of throughput: of a hyperbola $N / (a + b N)$ it then reaches 90 % of its limit.

References:
    Denning and Buzen, The Operational Analysis of Queueing Network Models, ACM Computing Surveys 10 (1978), section
    "Asymptotic analysis", https://doi.org/10.1145/356733.356735.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from steptime.number_checks import Array
from steptime.validation.run_table import group_positions

# Columns of a layout, and lengths of a curve.
LAYOUT = ("model", "system", "engine", "engine_version", "tp", "pp", "dp", "ep", "weight_dtype", "expert_dtype")
LENGTHS = ("input_tokens", "output_tokens")
# Fewest loads of a curve that has a saturation point.
LEAST_LOADS = 3
# Gain of throughput by the last doubling of clients below which a curve saturates.
MOST_GAIN = 0.1
# Ratio of the longest prompt to the shortest one from which their TTFT have a slope.
LEAST_RATIO = 2.0

Rows = Sequence[dict[str, str]]


def saturation(clients: Array, rate: Array) -> tuple[float, float]:
    """Return the clients of the saturation point and the highest throughput; NaN where the curve does not saturate.

    >>> clients = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    >>> saturation(clients, np.minimum(10 * clients, 40.0))
    (4.0, 40.0)
    >>> saturation(clients, 10 * clients)
    (nan, nan)
    """
    highest, before = float(np.max(rate)), clients[-1] / 2
    if clients[0] > before:
        return float("nan"), float("nan")
    half = float(np.exp(np.interp(np.log(before), np.log(clients), np.log(rate))))
    if rate[-1] >= (1 + MOST_GAIN) * half:
        return float("nan"), float("nan")
    return highest / float(rate[0] / clients[0]), highest


def number(rows: Rows, name: str) -> Array:
    """Return a column as numbers."""
    return np.array([float(row[name]) for row in rows])


def known_groups(rows: Rows, values: Array, names: Sequence[str]) -> list[Array]:
    """Return the places of runs with all values, by the cells of some columns."""
    known = np.flatnonzero(np.isfinite(values).all(axis=0))
    return [known[group] for group in group_positions([tuple(rows[i][name] for name in names) for i in known])]


def curves(rows: Rows, values: Array, names: Sequence[str], axis: str) -> Iterator[tuple[Array, Array]]:
    """Yield curves of known values over one column: its numbers, and the geometric means of repeats.

    Args:
        rows: Runs.
        values: Measured and predicted values, of shape (2, runs).
        names: Columns that the runs of a curve share.
        axis: Column of the abscissa.

    Yields:
        Abscissas of shape (points,), and values of shape (2, points).
    """
    at = number(rows, axis)
    for places in known_groups(rows, values, names):
        abscissas = np.unique(at[places])
        logs = np.log(values[:, places])
        yield abscissas, np.exp(np.stack([logs[:, at[places] == x].mean(axis=1) for x in abscissas], axis=1))


def saturation_ratios(rows: Rows, ttft: Array, tpot: Array) -> tuple[Array, int]:
    """Return predicted over measured saturation points of the curves that saturate, and the number of all curves.

    Throughput follows from both times by Little's law, on both sides alike. A prediction has the same clients.

    Args:
        rows: Runs.
        ttft: Measured and predicted TTFT [s], of shape (2, runs).
        tpot: Measured and predicted TPOT [s], of shape (2, runs).

    Returns:
        Ratios of clients and of the highest throughput, of shape (curves, 2), and the number of curves of `LEAST_LOADS`.
    """
    output = number(rows, "output_tokens")
    rate = number(rows, "concurrency") * output / (ttft + (output - 1) * tpot)
    ratios, count = [], 0
    for clients, (measured, predicted) in curves(rows, rate, (*LAYOUT, *LENGTHS), "concurrency"):
        if len(clients) < LEAST_LOADS:
            continue
        count += 1
        point, highest = saturation(clients, measured)
        if np.isfinite(point):
            gained = float(np.max(predicted))
            ratios.append((gained / (predicted[0] / clients[0]) / point, gained / highest))
    return np.array(ratios).reshape(-1, 2), count


def first_token_ratios(rows: Rows, ttft: Array) -> dict[str, Array]:
    """Return predicted over measured parts of first tokens, from differences between runs of a curve.

    Args:
        rows: Runs.
        ttft: Measured and predicted TTFT [s], of shape (2, runs).

    Returns:
        Ratios by part. "queue": TTFT minus that of the lowest load of its curve, where the measured one at least doubles.
        "prefill": slope of TTFT by prompt tokens at the lowest load of a layout. "host": the rest, at a prompt of no tokens.
    """
    parts: dict[str, list[float]] = {"queue": [], "prefill": [], "host": []}
    for _, seconds in curves(rows, ttft, (*LAYOUT, *LENGTHS), "concurrency"):
        measured, predicted = seconds[:, 1:] - seconds[:, :1]
        parts["queue"] += (predicted / measured)[measured >= seconds[0, 0]].tolist()
    for place in lowest_loads(rows, ttft):
        lowest = [rows[i] for i in place]
        for prompt, seconds in curves(lowest, ttft[:, place], (*LAYOUT, "output_tokens"), "input_tokens"):
            if prompt[-1] < LEAST_RATIO * prompt[0]:
                continue
            slope = (seconds[:, -1] - seconds[:, 0]) / (prompt[-1] - prompt[0])
            rest = seconds[:, 0] - slope * prompt[0]
            for name, (measured, predicted) in (("prefill", slope), ("host", rest)):
                # Scatter of two runs may exceed their difference.
                parts[name] += [predicted / measured] if measured > 0 else []
    return {name: np.array(values) for name, values in parts.items()}


def lowest_loads(rows: Rows, values: Array) -> Iterator[Array]:
    """Yield the places of the known runs with the fewest clients of each layout and output length."""
    clients = number(rows, "concurrency")
    for places in known_groups(rows, values, (*LAYOUT, "output_tokens")):
        yield places[clients[places] == np.min(clients[places])]
