"""What leaving a scale-up domain costs. Lecture sections 7, 9 and 11."""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


def across_racks(racks: Number, bandwidth_ratio: Number) -> Number:
    r"""Slow-down of an exchange over $r$ racks against one: $\max(1/r, \beta (r-1)/r)$. Section 7.

    Scale-up is $\beta$ = `bandwidth_ratio` times as fast as scale-out.

    >>> float(across_racks(2, 8))
    4.0
    """
    return np.maximum(1 / racks, bandwidth_ratio * (racks - 1) / racks)


def pipeline_condition(active: Number, layers_per_stage: Number, bandwidth_ratio: Number) -> Number:
    r"""Scale-up time over scale-out time of a stage, $2 k \ell / \beta$; at least 1 and the hop between racks hides. Section 9.

    >>> pipeline_condition(8, 1, 8)
    2.0
    """
    return 2 * active * layers_per_stage / bandwidth_ratio


def floor_of_domain(total: Number, weight_bytes: Number, chips: Number, bandwidth: Number) -> Number:
    """Latency floor of a scale-up domain: its chips read the weights of one step together [s]. Section 11.

    >>> round(floor_of_domain(5e12, 0.5, 72, 8e12) * 1e3, 1)
    4.3
    """
    return weight_bytes * total / (chips * bandwidth)
