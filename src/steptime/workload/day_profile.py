r"""Day profile: how the rate of requests varies over the 24 hours of a day.

A profile is 24 numbers $w_h$ with mean 1: the rate of an hour is $w_h$ times the mean of the day. It comes from 24 rates, from
a named profile of measured traffic (`data/day_profiles.toml`), or from the ratio $r$ of the peak to the mean. The last one has
the shape of a von Mises distribution, which is smooth, positive, and has any ratio from 1 to 24:

$$ w_h = \frac{e^{\kappa \cos(2 \pi (h - p) / 24)}}{\frac{1}{24} \sum_i e^{\kappa \cos(2 \pi (i - p) / 24)}}, \qquad w_p = r. $$

$p$ is the hour of the peak. Arrivals drawn at the mean rate follow a profile after a change of time: with $\Lambda(t) =
\int_0^t w$, a request of time $t$ arrives at $\Lambda^{-1}(t)$. Poisson arrivals stay Poisson, at the rate of each hour.

References:
    Lewis and Shedler, "Simulation of nonhomogeneous Poisson processes by thinning", 1979, for the change of time.
    ServeGen, https://arxiv.org/abs/2505.09999: the measured profiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.catalog.data_files import PACKAGED, read_file
from steptime.errors import DataFileError, RangeError, UnknownName, short_repr
from steptime.number_checks import Array
from steptime.units import DAY, HOUR
from steptime.workload.traffic import Traffic

HOURS: Final = 24
# Hour of the peak where only its ratio is known, and the largest ratio: with it, half of a day's requests come in an hour.
PEAK_HOUR, LARGEST_RATIO = 14, 12.0


@lru_cache(maxsize=1)
def named_profiles() -> dict[str, tuple[float, ...]]:
    """Read the measured profiles.

    Returns:
        24 shares of the mean rate by name.

    Raises:
        DataFileError: A profile does not have 24 numbers above 0.
    """
    path = PACKAGED / "day_profiles.toml"
    profiles = {name: tuple(map(float, table["hours"])) for name, table in read_file(path)["profiles"].items()}
    for name, hours in profiles.items():
        if len(hours) != HOURS or min(hours) <= 0:
            raise DataFileError(path, f"profiles.{name}.hours: must be {HOURS} numbers above 0")
    return profiles


def profile_of_ratio(ratio: float, peak_hour: int = PEAK_HOUR) -> Array:
    """Return the profile with a ratio of peak to mean.

    Args:
        ratio: Peak rate over mean rate, 1 to 12.
        peak_hour: Hour of the peak, 0 to 23.

    Returns:
        24 shares of the mean rate.

    >>> shape = profile_of_ratio(2.0, 20)
    >>> round(float(shape.max()), 6), int(shape.argmax()), round(float(shape.mean()), 9), round(float(shape.min()), 2)
    (2.0, 20, 1.0, 0.35)
    """
    cosine = np.cos(2 * np.pi * (np.arange(HOURS) - peak_hour) / HOURS)

    def shape(kappa: float) -> Array:
        weights = np.exp(kappa * (cosine - 1))
        result: Array = weights / weights.mean()
        return result

    # The ratio rises with kappa: 60 halvings find it to the last digits.
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(shape(middle).max()) < ratio else (low, middle)
    return shape(low) if ratio > 1 else np.ones(HOURS)


def read_day(day: Any, peak_hour: int | None = None) -> Array:
    """Return a profile from its name, from the ratio of peak to mean, or from 24 rates.

    Args:
        day: Name of a measured profile, ratio of peak to mean (also as a text), or 24 rates (also with commas).
        peak_hour: Hour to which the peak moves, 0 to 23; by default the measured one, or 14 for a ratio.

    Returns:
        24 shares of the mean rate.

    Raises:
        RangeError: The ratio, the rates or the hour are out of range.
        UnknownName: There is no profile of that name.

    >>> read_day([1.0] * 12 + [3.0] * 12).tolist() == [0.5] * 12 + [1.5] * 12
    True
    >>> int(read_day("chat").argmax()), int(read_day("chat", 9).argmax()), round(float(read_day("1.5").max()), 6)
    (20, 9, 1.5)
    """
    if peak_hour is not None and (isinstance(peak_hour, bool) or not isinstance(peak_hour, int) or not 0 <= peak_hour < HOURS):
        raise RangeError(f"peak_hour: must be a whole number from 0 to 23, got {short_repr(peak_hour)}")
    value = _numbers(day) if isinstance(day, str) else day
    if isinstance(value, str):
        profiles = named_profiles()
        if value not in profiles:
            raise UnknownName("day profile", value, tuple(profiles), f"Known: {', '.join(profiles)}; or a ratio such as 1.5.")
        shape = np.array(profiles[value])
        shape = shape / shape.mean()
    elif isinstance(value, Sequence):
        rates = [x for x in value if isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < math.inf]
        if len(value) != HOURS or len(rates) != HOURS or not sum(rates):
            raise RangeError(f"day: must be {HOURS} rates of at least 0, one for each hour, got {len(value)} values")
        shape = np.asarray(rates, dtype=float) / (sum(rates) / HOURS)
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= LARGEST_RATIO:
        raise RangeError(
            f"day: must be a profile ({', '.join(named_profiles())}), {HOURS} rates, or the ratio of peak to mean, from 1 to "
            f"{LARGEST_RATIO:g}, got {short_repr(day)}"
        )
    else:
        return profile_of_ratio(float(value), PEAK_HOUR if peak_hour is None else peak_hour)
    return shape if peak_hour is None else np.roll(shape, peak_hour - int(shape.argmax()))


def _numbers(text: str) -> Any:
    """Return a number, or a list of numbers with commas, or the text itself."""
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError:
        return text.strip()
    return parts if "," in text else parts[0]


def with_day(traffic: Traffic, shape: Array) -> Traffic:
    """Return the same requests with arrivals that follow a day, from midnight on.

    Args:
        traffic: Open-loop traffic at the mean rate.
        shape: 24 shares of the mean rate.

    Returns:
        The traffic; arrivals after a day follow the profile of the next one.

    Raises:
        RangeError: The traffic is a closed loop.

    >>> shape = np.array([0.0] * 12 + [2.0] * 12)
    >>> with_day(Traffic(arrival=[3600.0, 43200.0, 129600.0], inputs=[1] * 3, outputs=[1] * 3), shape).arrival.tolist()
    [45000.0, 64800.0, 151200.0]
    """
    if traffic.clients:
        raise RangeError("day: clients of a closed loop have no rate by hour; give a rate (--rate) in place of clients")
    # Time of the constant rate at which each hour ends.
    passed = np.concatenate([[0.0], np.cumsum(np.asarray(shape) * HOUR)])
    arrival = np.asarray(traffic.arrival, dtype=float)
    days = np.floor(arrival / passed[-1])
    # Hours without requests take no time of the constant rate.
    inside = np.interp(arrival - days * passed[-1], passed, np.arange(HOURS + 1) * HOUR)
    return replace(traffic, arrival=days * DAY + inside, name=f"{traffic.name}, by hour of the day")
