"""Wait of a request for a batch that departs on a schedule. Lecture section 4."""

from __future__ import annotations

from steptime.number_checks import Number


def worst_wait(interval: Number) -> Number:
    r"""Return the worst latency of a train that departs every interval, $2 \Delta$.

    A request waits for one interval and rides for one. Valid while the train is not full.

    Args:
        interval: Seconds between departures.

    Returns:
        Seconds.

    References:
        Lecture, section 4.

    >>> worst_wait(0.020)
    0.04
    """
    return 2 * interval


def mean_wait(interval: Number) -> Number:
    r"""Return the mean latency of evenly spread arrivals, $1.5 \Delta$.

    Valid while the train is not full.

    Args:
        interval: Seconds between departures.

    Returns:
        Seconds.

    References:
        Lecture, section 4, *derived*.

    >>> mean_wait(0.020)
    0.03
    """
    return 1.5 * interval
