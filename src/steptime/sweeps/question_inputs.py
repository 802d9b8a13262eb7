"""Limits on the points of a sweep, checked before an array is built: memory and time.

How the values of an input are written in texts: lists, ranges, units, rents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from steptime.errors import RangeError, UnitError, short_repr
from steptime.hardware.rental_prices import KINDS
from steptime.number_checks import Array
from steptime.questions.declaration import COUNT, RENT, TEXT, Input
from steptime.units import DAY, HOUR, MINUTE, count, in_digits, parse

# Points whose answers fit in the memory of a laptop.
MOST_POINTS: Final = 50_000_000
# Longest sweep that is started [s].
LONGEST: Final = 30 * DAY


def check_points(lengths: Sequence[int], seconds: float) -> None:
    """Raise an error for more points than fit in memory, or than finish in time.

    Args:
        lengths: Number of values of each axis.
        seconds: Time of one point [s].

    Raises:
        RangeError: If there are too many points, or they take more than `LONGEST`.
    """
    points = math.prod(lengths)
    takes = points * seconds
    product = f"{' x '.join(f'{n:,}' for n in lengths)} are {points:,} points"
    if points > MOST_POINTS:
        raise RangeError(
            f"axes: {product}; at most {MOST_POINTS:,} fit in memory, and they would take about {duration(takes)}; "
            "give fewer values, or sweep in parts"
        )
    if takes > LONGEST:
        raise RangeError(f"axes: {product}, which would take about {duration(takes)} on one core; give fewer values")


def duration(seconds: float) -> str:
    """Return a time in words.

    Args:
        seconds: Time [s].

    Returns:
        Text such as "3.3 minutes".

    >>> duration(0.2), duration(200), duration(5 * 86400), duration(4e11)
    ('less than a second', '3.3 minutes', '5 days', '12,700 years')
    """
    for size, name in ((365.25 * DAY, "years"), (DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes")):
        if seconds >= 2 * size:
            digits = 2 if seconds < 100 * size else 3
            return f"{in_digits(seconds / size, digits)} {name}"
    return "less than a second" if seconds < 1 else f"{in_digits(seconds, 2)} seconds"


# Largest number of values of one axis.
MOST_VALUES: Final = MOST_POINTS
# log2 (a ratio) or 50log (a number of values).
RATIO = re.compile(r"log([0-9.]+)|([0-9_]+)log")


# Prefixes of answers that are better if lower.
LOWER_IS_BETTER_PREFIXES: Final = (
    "usd", "time", "ttft", "tpot", "seconds", "memory_share", "joules", "kv_bytes", "end_to_end", "chips", "wait",
)  # fmt: skip


def lower_is_better(name: str) -> bool:
    """Return whether a lower value of an answer is better, as for times and costs.

    Args:
        name: Name of the answer.

    Returns:
        True for times, costs, memory and chips.

    >>> lower_is_better("usd_per_million_tokens"), lower_is_better("tokens_per_second_per_chip")
    (True, False)
    """
    return name.startswith(LOWER_IS_BETTER_PREFIXES) or "usd_per" in name


def read_values(name: str, text: str, spec: Input) -> list[Any] | Array:
    """Read the values of an axis from a text.

    "1,2,4" is a list. LOW:HIGH:N are N values at equal distances, LOW:HIGH:Nlog in equal ratios. LOW:HIGH:logR is a series
    with the ratio R, whose last value is HIGH. Commas join several of them: "1k:128k:log2" (doubling), "4TB/s:32TB/s:9",
    "1:1M:50log". A value without a unit has the unit of the input, or that of the end of its range.

    Args:
        name: Name of the input, for messages.
        text: The text.
        spec: Declaration of the input.

    Returns:
        Distinct numbers in base units, or names.

    Raises:
        RangeError: If a range or a number of values is malformed.
        UnitError: If a unit does not fit.

    >>> [read_values("batch", text, Input(kind=COUNT)).tolist() for text in ("1:100:log10", "8,1k:3k:3")]
    [[1, 10, 100], [8, 1000, 2000, 3000]]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise RangeError(f"{name}: has an empty entry in the list, got {short_repr(text)}")
    if spec.kind == TEXT or (spec.kind == RENT and any(part in KINDS for part in parts)):
        return list(dict.fromkeys(parts))
    # The number of values is checked before they are built.
    _check_many(name, count_values(name, text, spec))
    values = np.concatenate([_parsed(name, part, spec).build() for part in parts])
    _, first = np.unique(values, return_index=True)
    distinct_values: Array = values[np.sort(first)]
    return distinct_values


def count_values(name: str, text: str, spec: Input) -> int:
    """Return the largest number of values of a text, without building them.

    Args:
        name: Name of the input, for messages.
        text: The text.
        spec: Declaration of the input.

    Returns:
        Number of values, before duplicates are dropped.

    >>> count_values("batch", "1:1e9:100000000", Input(kind=COUNT)), count_values("batch", "8,1k:3k:3", Input(kind=COUNT))
    (100000000, 4)
    """
    parts = [part.strip() for part in text.split(",")]
    if spec.kind == TEXT or (spec.kind == RENT and any(part in KINDS for part in parts)):
        return len(parts)
    return sum(_parsed(name, part, spec).max_count for part in parts if part)


class _Values(NamedTuple):
    """Values that are not built yet: their largest number, and their builder."""

    max_count: int
    build: Callable[[], Array]


def read_one(name: str, text: str, spec: Input) -> Any:
    """Read one value of an input from a text.

    Args:
        name: Name of the input, for messages.
        text: The text.
        spec: Declaration of the input.

    Returns:
        A number in base units, or the text.

    Raises:
        RangeError: If the text has several values.
    """
    if spec.kind == TEXT:
        return text
    values = read_values(name, text, spec)
    if len(values) != 1:
        raise RangeError(f"{name}: takes one value, got {short_repr(text)}; give several with --over {name}=...")
    return values[0] if isinstance(values, list) else values[0].item()


def _parsed(name: str, part: str, spec: Input) -> _Values:
    ends = part.split(":")
    if len(ends) == 1:
        value = _number(name, part, spec)
        return _Values(1, lambda: np.array([value]))
    if len(ends) != 3 or not all(ends):
        raise RangeError(
            f"{name}: must be LOW:HIGH:N, such as 1k:128k:log2 (doubling), 10:100:10 (10 values) or 10:100:10log, "
            f"got {short_repr(part)}"
        )

    # "4:32TB/s:9" has one unit, which belongs to both ends.
    unit = re.sub(r"^[-+0-9.,_eE ]*", "", ends[1]) if spec.kind != COUNT else ""
    bare = re.fullmatch(r"[-+0-9.,_eE ]*", ends[0]) is not None
    low, high = _number(name, ends[0] + (unit if bare else ""), spec), _number(name, ends[1], spec)
    if not high > low:
        raise RangeError(f"{name}: LOW must be below HIGH, got {ends[0]} and {ends[1]} in {short_repr(part)}")
    values = _spread(name, part, low, high, ends[2].strip())
    if spec.kind != COUNT:
        return values

    # Counts are rounded, and duplicates dropped.
    return _Values(values.max_count, lambda: np.unique(np.round(values.build())).astype(np.int64))


def _spread(name: str, part: str, low: float, high: float, how: str) -> _Values:
    ratio = RATIO.fullmatch(how)
    if ratio is not None and low <= 0:
        raise RangeError(f"{name}: equal ratios need a LOW above 0, got {short_repr(part)}")
    if ratio is not None and ratio[1]:
        base = _plain(name, part, ratio[1])
        if not base > 1:
            raise RangeError(f"{name}: a ratio must be above 1, got {ratio[1]} in {short_repr(part)}")

        # The small factors accept a HIGH that is a whole power apart from rounding.
        steps = math.floor(math.log(high / low) / math.log(base) * (1 + 1e-12) + 1e-9)

        def rising() -> Array:
            values = low * base ** np.arange(steps + 1)
            return values if math.isclose(values[-1], high, rel_tol=1e-9) else np.append(values, high)

        return _Values(steps + 2, rising)
    number = _plain(name, part, ratio[2] if ratio is not None else how)
    if number != int(number) or number < 2:
        raise RangeError(f"{name}: the number of values must be a whole number of at least 2, got {how} in {short_repr(part)}")
    spread = np.geomspace if ratio is not None else np.linspace
    return _Values(int(number), lambda: spread(low, high, int(number)))


def _check_many(name: str, number: int) -> None:
    """Raise RangeError for more values of an axis than fit in memory."""
    if number > MOST_VALUES:
        raise RangeError(f"{name}: at most {MOST_VALUES:,} values fit in memory, got {number:,}; give fewer")


def _plain(name: str, part: str, text: str) -> float:
    try:
        return float(count(text, "number"))
    except (UnitError, RangeError):
        pass
    try:
        return float(text)
    except ValueError:
        raise RangeError(
            f"{name}: must end in a number of values, got {short_repr(text)} in {short_repr(part)}; "
            "write 9, 9log (equal ratios) or log2 (doubling)"
        ) from None


def _number(name: str, text: str, spec: Input) -> float:
    try:
        if spec.kind == COUNT:
            return count(text, name)
        if spec.kind == RENT:
            return read_rent(text)
        bare = _bare(text) if spec.bare else None
        return parse(text, spec.unit) if bare is None else bare
    except UnitError as problem:
        raise UnitError(str(problem) if str(problem).startswith(f"{name}: ") else f"{name}: {problem}") from None


def _bare(text: str) -> float | None:
    try:
        return parse(text)
    except UnitError:
        return None


def read_rent(text: str) -> float:
    """Read a rent from a text.

    Args:
        text: "2 USD/h", or "2.10" in USD per chip-hour.

    Returns:
        USD per chip and second.
    """
    try:
        return float(text) / HOUR
    except ValueError:
        return parse(text, "USD/s")
