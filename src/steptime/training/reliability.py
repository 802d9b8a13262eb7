"""Failures, checkpoints and goodput of long runs.

Chips fail independently at a rate $r$ per chip-second. A run on $N$ chips has a mean time between failures $M = 1 / (N r)$.
A checkpoint blocks the run for $d$ after every useful time $T$, and a restart takes $R$.

With exponential failures, a useful time $T$ takes $M e^{R/M} (e^{(T+d)/M} - 1)$ in total. Source: Daly, "A higher order
estimate of the optimum checkpoint interval", FGCS 22(3), 2006, equation 13.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number

FAILURES_PER_CHIP_SECOND = 419 / (54 * 86400 * 16384)
"""Unexpected interruptions of Llama 3's training: 419 in 54 days on 16,384 H100 (arXiv 2407.21783, section 3.3.4)."""
# Seconds that an asynchronous checkpoint blocks the run; a guess, of the order that torch.distributed.checkpoint reports.
CHECKPOINT_SECONDS = 30.0
# Seconds to find the fault, restart and load; a guess: Llama 3 kept over 90 % goodput with far less manual time than this.
RESTART_SECONDS = 600.0


def mean_time_between_failures(chips: Number, rate: Number = FAILURES_PER_CHIP_SECOND) -> Number:
    """Return the mean time between failures of all chips together.

    Args:
        chips: Chips in total.
        rate: Failures per chip-second.

    Returns:
        Seconds.

    >>> round(mean_time_between_failures(16384) / 3600, 2)
    3.09
    """
    return 1 / (chips * rate)


def young_interval(blocked: Number, between: Number) -> Number:
    r"""Return the first-order optimum of the time between checkpoints, $\sqrt{2 d M}$.

    Args:
        blocked: Time $d$ that a checkpoint blocks the run [s].
        between: Mean time $M$ between failures [s].

    Returns:
        Useful seconds between checkpoints.

    References:
        Young, CACM 17(9), 1974.

    >>> round(float(young_interval(30.0, 3.09 * 3600)) / 60, 1)
    13.6
    """
    return np.sqrt(2 * blocked * between)


def daly_interval(blocked: Number, between: Number) -> Number:
    r"""Return the higher-order optimum of the time between checkpoints.

    The time is $\sqrt{2dM}\,(1 + \frac13\sqrt{d/2M} + \frac19 \frac{d}{2M}) - d$, and $M$ where $d \ge 2M$.

    Args:
        blocked: Time $d$ that a checkpoint blocks the run [s].
        between: Mean time $M$ between failures [s].

    Returns:
        Useful seconds between checkpoints.

    References:
        Daly, "A higher order estimate of the optimum checkpoint interval", FGCS 22(3), 2006.

    >>> round(float(daly_interval(30.0, 3.09 * 3600)) / 60, 1)
    13.3
    """
    ratio = blocked / (2 * between)
    interval = young_interval(blocked, between) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - blocked
    return np.where(ratio < 1, interval, between)


def goodput(interval: Number, blocked: Number, restart: Number, between: Number) -> Number:
    """Return the share of the time that is useful work.

    Args:
        interval: Useful time between checkpoints [s].
        blocked: Time that a checkpoint blocks the run [s].
        restart: Time of a restart [s].
        between: Mean time between failures [s].

    Returns:
        Share, 0 to 1.

    References:
        Daly, equation 13 (see the module).

    >>> round(float(goodput(13.3 * 60, 30.0, 600.0, 3.09 * 3600)), 3)
    0.88
    """
    return interval / (between * np.exp(restart / between) * np.expm1((interval + blocked) / between))
