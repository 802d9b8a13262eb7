"""Cost of communication outside a scale-up domain. Lecture sections 7, 9 and 11."""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


def across_racks(racks: Number, bandwidth_ratio: Number) -> Number:
    r"""Return the time of an exchange over several racks, relative to one rack.

    The ratio is $\max(1/r, \beta (r-1)/r)$.

    Args:
        racks: Racks $r$.
        bandwidth_ratio: Scale-up bandwidth over scale-out bandwidth, $\beta$.

    Returns:
        Ratio; above 1 the exchange is slower.

    References:
        Lecture, section 7.

    >>> float(across_racks(2, 8))
    4.0
    """
    return np.maximum(1 / racks, bandwidth_ratio * (racks - 1) / racks)


def pipeline_condition(active: Number, layers_per_stage: Number, bandwidth_ratio: Number) -> Number:
    r"""Return scale-up time over scale-out time of a stage, $2 k \ell / \beta$.

    The hop between racks is hidden from 1 on.

    Args:
        active: Experts $k$ per token.
        layers_per_stage: Layers $\ell$ per pipeline stage.
        bandwidth_ratio: Scale-up bandwidth over scale-out bandwidth, $\beta$.

    Returns:
        Ratio.

    References:
        Lecture, section 9.

    >>> pipeline_condition(8, 1, 8)
    2.0
    """
    return 2 * active * layers_per_stage / bandwidth_ratio


def floor_of_domain(total: Number, weight_bytes: Number, chips: Number, bandwidth: Number) -> Number:
    """Return the minimum step latency of a scale-up domain.

    All chips of the domain read the weights of one step together.

    Args:
        total: Parameters in total.
        weight_bytes: Bytes per parameter.
        chips: Chips of the domain.
        bandwidth: Memory bandwidth per chip [B/s].

    Returns:
        Seconds per step.

    References:
        Lecture, section 11.

    >>> round(floor_of_domain(5e12, 0.5, 72, 8e12) * 1e3, 1)
    4.3
    """
    return weight_bytes * total / (chips * bandwidth)
