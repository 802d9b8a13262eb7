"""How long a request waits for a batch that departs on a schedule. Lecture section 4."""

from __future__ import annotations

from steptime.number_checks import Number


def worst_wait(interval: Number) -> Number:
    r"""Worst latency of a train that departs every `interval` [s] while not full: $2 \Delta$, wait and ride. Section 4.

    >>> worst_wait(0.020)
    0.04
    """
    return 2 * interval


def mean_wait(interval: Number) -> Number:
    r"""Mean latency of arrivals spread evenly, while not full: $1.5 \Delta$. Section 4, *derived*.

    >>> mean_wait(0.020)
    0.03
    """
    return 1.5 * interval
