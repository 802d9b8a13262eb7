r"""Failures, checkpoints and goodput of long runs.

Chips fail independently at a rate per chip-second, so that a run of many has a mean time between failures $M = 1 / (N r)$. A
checkpoint that blocks for $d$ every $T$, and a restart that takes $R$: with exponential failures a stretch of useful $T$ takes
$M e^{R/M} (e^{(T+d)/M} - 1)$ (Daly, "A higher order estimate of the optimum checkpoint interval", FGCS 22(3), 2006, equation
13).
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number

FAILURES_PER_CHIP_SECOND = 419 / (54 * 86400 * 16384)
"""Unexpected interruptions of Llama 3's training: 419 in 54 days on 16,384 H100 (arXiv 2407.21783, section 3.3.4)."""
CHECKPOINT_SECONDS = (
    30.0  # that an asynchronous checkpoint blocks; a guess of the size that torch.distributed.checkpoint reports
)
RESTART_SECONDS = 600.0  # to find the fault, restart and load; a guess: Llama 3 kept over 90 % with far less than that by hand


def mean_time_between_failures(chips: Number, rate: Number = FAILURES_PER_CHIP_SECOND) -> Number:
    """Seconds between failures: chips, rate [failures per chip-second] -> [s].

    >>> round(mean_time_between_failures(16384) / 3600, 2)
    3.09
    """
    return 1 / (chips * rate)


def young_interval(blocked: Number, between: Number) -> Number:
    r"""Return the useful time between checkpoints that wastes least to first order: $\sqrt{2 d M}$ [s] (Young, CACM 17(9),
    1974).

    >>> round(float(young_interval(30.0, 3.09 * 3600)) / 60, 1)
    13.6
    """
    return np.sqrt(2 * blocked * between)


def daly_interval(blocked: Number, between: Number) -> Number:
    r"""Return Daly's higher-order optimum: $\sqrt{2dM}\,(1 + \frac13\sqrt{d/2M} + \frac19 \frac{d}{2M}) - d$; $M$ where $d
    \ge 2M$.

    >>> round(float(daly_interval(30.0, 3.09 * 3600)) / 60, 1)
    13.3
    """
    ratio = blocked / (2 * between)
    interval = young_interval(blocked, between) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - blocked
    return np.where(ratio < 1, interval, between)


def goodput(interval: Number, blocked: Number, restart: Number, between: Number) -> Number:
    """Share of time that is useful work: interval, blocked, restart, between [s].

    >>> round(float(goodput(13.3 * 60, 30.0, 600.0, 3.09 * 3600)), 3)
    0.88
    """
    return interval / (between * np.exp(restart / between) * np.expm1((interval + blocked) / between))
