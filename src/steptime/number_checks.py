"""Number checks: number types of all formulas, and checks of numbers from outside.

A check takes the name of a number, its value (a Python or numpy scalar, or an array) and its bounds. It returns the value
unchanged, except that lists become arrays and numpy scalars become Python scalars. Or it raises RangeError with the name,
the bound, the unit and the value. Booleans, texts, complex numbers, NaN and infinity are invalid. An array costs two
passes.

Bounds are far beyond today's hardware and requests. They are low enough that no sum, product or search of steptime
overflows or runs forever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from steptime.errors import RangeError, short_repr

Array: TypeAlias = NDArray[Any]
"""An array of floats, integers or booleans."""
Number: TypeAlias = float | Array
"""A number, or an array of numbers: every formula broadcasts."""

# A check returns the type of its argument.
NumberT = TypeVar("NumberT")

# Maximum length of arrays with cached results.
SHORT: Final = 4096
# Cached results of `map_unique`, and how many there are at most.
MAPPED: Final[dict[Any, Array]] = {}
MOST_MAPPED: Final = 512
# Chips of the largest clusters; a plan for them takes a few seconds.
MOST_CHIPS: Final = 200_000
# Tokens of a context or a request; the longest real ones have some 1e7.
MOST_TOKENS: Final = 1_000_000_000
# Sequences of a batch.
MOST_SEQUENCES: Final = 1_000_000_000
# Requests/s of a fleet or a model; all models of the world serve fewer.
MOST_RATE: Final = 1e6
# Upper bound of a rate or a capacity: the product of two is finite.
LARGEST: Final = 1e30
# Seconds, some 30 years.
LONGEST: Final = 1e9


def whole_number(name: str, value: NumberT, *, minimum: float = 1, maximum: float = MOST_TOKENS, unit: str = "") -> NumberT:
    """Check whole numbers from `minimum` to `maximum`.

    Args:
        name: Name of the number, for the message.
        value: A number or an array.
        minimum: Lower bound.
        maximum: Upper bound.
        unit: Unit, for the message.

    Returns:
        The value; a scalar becomes an int.

    Raises:
        RangeError: A value is not whole or out of bounds.

    >>> whole_number("chips", 8.0, maximum=MOST_CHIPS)
    8
    >>> whole_number("chips", 2.5, maximum=MOST_CHIPS)
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: chips must be a whole number of at least 1, not 2.5
    """
    # Most values are Python integers within the bounds.
    number: Any = value
    if type(number) is int and minimum <= number <= maximum:
        return value
    number_or_array, low, high = _ends(name, value)
    checked: NumberT = _within(name, (number_or_array, low, high), minimum, maximum, unit)
    if np.ndim(number_or_array) == 0:
        if high != int(high):
            raise _broken(name, minimum, unit, high)
        number = int(high)
        checked = number
    elif number_or_array.dtype.kind == "f" and not np.array_equal(np.floor(number_or_array), number_or_array):
        raise _broken(name, minimum, unit, number_or_array[np.floor(number_or_array) != number_or_array].flat[0].item())
    return checked


def _broken(name: str, minimum: float, unit: str, value: float) -> RangeError:
    return RangeError(f"{name} must be a whole number of at least {_bound(minimum, unit)}, not {short_repr(value)}")


def positive(name: str, value: NumberT, unit: str = "", *, minimum: float = 0.0, maximum: float = LARGEST) -> NumberT:
    """Check finite numbers above 0.

    Args:
        name: Name of the number, for the message.
        value: A number or an array.
        unit: Unit, for the message.
        minimum: Lower bound; 0 is excluded.
        maximum: Upper bound.

    Returns:
        The value.

    Raises:
        RangeError: A value is out of bounds.

    >>> positive("ttft", 0.5, "s")
    0.5
    >>> positive("ttft", -1, "s")
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: ttft must be greater than 0 s, not -1
    """
    value, low, high = _ends(name, value)
    if not low > 0:
        raise RangeError(f"{name} must be greater than {_bound(0, unit)}, not {short_repr(low)}")
    checked: NumberT = _within(name, (value, low, high), minimum, maximum, unit)
    return checked


def at_least_zero(name: str, value: NumberT, unit: str = "", *, maximum: float = LARGEST) -> NumberT:
    """Check finite numbers from 0 to `maximum`.

    Args:
        name: Name of the number, for the message.
        value: A number or an array.
        unit: Unit, for the message.
        maximum: Upper bound.

    Returns:
        The value.

    Raises:
        RangeError: A value is out of bounds.

    >>> at_least_zero("prefix", [0, 4096])
    array([   0, 4096])
    """
    return between(name, value, 0.0, maximum, unit)


def between(name: str, value: NumberT, minimum: float, maximum: float, unit: str = "") -> NumberT:
    """Check finite numbers from `minimum` to `maximum`, both included.

    Args:
        name: Name of the number, for the message.
        value: A number or an array.
        minimum: Lower bound.
        maximum: Upper bound.
        unit: Unit, for the message.

    Returns:
        The value.

    Raises:
        RangeError: A value is out of bounds.
    """
    checked: NumberT = _within(name, _ends(name, value), minimum, maximum, unit)
    return checked


def share(name: str, value: NumberT, *, whole_too: bool = True) -> NumberT:
    """Check shares from 0 to 1.

    Args:
        name: Name of the share, for the message.
        value: A number or an array.
        whole_too: Whether 1 is valid.

    Returns:
        The value.

    Raises:
        RangeError: A value is out of bounds.

    >>> share("cached share", 0.3)
    0.3
    >>> share("cached share", 1.0, whole_too=False)
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: cached share must be a share of at least 0 and below 1, not 1
    """
    value, low, high = _ends(name, value)
    if low < 0 or high > 1 or (high == 1 and not whole_too):
        top, wrong = "at most" if whole_too else "below", low if low < 0 else high
        fix = f"; give {wrong / 100:g} for {wrong:g} %" if 2 <= wrong < 100 else ""
        raise RangeError(f"{name} must be a share of at least 0 and {top} 1, not {short_repr(wrong)}{fix}")
    return value


def limit(name: str, value: NumberT, unit: str = "s", *, minimum: float = 1e-9) -> NumberT:
    """Check limits above 0; infinity stands for no limit.

    Args:
        name: Name of the limit, for the message.
        value: A number or an array.
        unit: Unit, for the message.
        minimum: Lower bound.

    Returns:
        The value.

    Raises:
        RangeError: A value is out of bounds.

    >>> limit("the TTFT limit", math.inf)
    inf
    """
    value, low, high = _ends(name, value, endless=True)
    if not low > 0 and minimum:
        raise RangeError(f"{name} must be greater than {_bound(0, unit)}, not {short_repr(low)}")
    if low < minimum:
        raise RangeError(f"{name} must be at least {_bound(minimum, unit)}, not {_bound(low, unit)}")
    if LARGEST < high < math.inf:
        raise RangeError(f"{name} must be at most {_bound(LARGEST, unit)}, or infinite, not {short_repr(high)}")
    return value


def check_shapes(**values: Any) -> None:
    """Check that arrays broadcast.

    Args:
        values: Numbers and arrays by name.

    Raises:
        RangeError: They do not broadcast.
    """
    shapes = {name: np.shape(value) for name, value in values.items() if np.ndim(value)}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise RangeError(f"arrays of these shapes do not broadcast: {listed}") from None


def single(**values: Any) -> None:
    """Check that values are single numbers.

    Args:
        values: Values by name.

    Raises:
        RangeError: A value is an array or a list.

    >>> single(token_budget=[1024, 2048])
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: token budget must be one number, not [1024, 2048]
    """
    for name, value in values.items():
        if type(value) not in (int, float) and (isinstance(value, list | tuple) or np.ndim(value)):
            raise RangeError(f"{name.replace('_', ' ')} must be one number, not {short_repr(value)}")


def _within(name: str, value_and_ends: tuple[Any, Any, Any], minimum: float, maximum: float, unit: str) -> Any:
    value, low, high = value_and_ends
    if low < minimum:
        raise RangeError(f"{name} must be at least {_bound(minimum, unit)}, not {short_repr(low)}")
    if high > maximum:
        raise RangeError(f"{name} must be at most {_bound(maximum, unit)}, not {short_repr(high)}")
    return value


def _ends(name: str, value: Any, *, endless: bool = False) -> tuple[Any, Any, Any]:
    """Return numbers with their minimum and maximum; an empty array is always valid."""
    # Most calls have a Python scalar: skip numpy.
    if type(value) in (int, float):
        low = high = value
    else:
        try:
            array: Any = np.asarray(value)
        except (ValueError, TypeError, OverflowError):
            # Rows of unequal lengths, and values without a numpy dtype.
            array = np.asarray(None)
        if array.dtype.kind == "O" and array.size and all(type(x) is int for x in array.flat):
            largest = max(abs(x) for x in array.flat)
            if largest < 1e300:
                array = array.astype(np.int64 if largest < 1 << 63 else np.float64)
        elif array.dtype.kind not in "iuf" or isinstance(value, bool):
            raise RangeError(f"{name} must be a number or an array of numbers, not {short_repr(value)}")
        if array.size == 0:
            return array, 1, 1
        if array.dtype.kind == "O":
            low, high = min(array.flat), max(array.flat)
        else:
            low, high = array.min().item(), array.max().item()
        # A numpy scalar becomes a Python scalar, whose arithmetic does not overflow in a narrow dtype.
        value = array if array.ndim else array.item()
    if isinstance(low, int):
        return value, low, high
    if math.isnan(low) or (not endless and (math.isinf(low) or math.isinf(high))):
        worst = low if not math.isfinite(low) else high
        raise RangeError(f"{name} must be a finite number, not {worst}")
    return value, low, high


def _bound(value: float, unit: str) -> str:
    if unit == "s" and 0 < value < 1e-6:
        return f"{value * 1e9:.3g} ns"
    text = f"{value:,.0f}" if 1 <= abs(value) < 1e12 and value == int(value) else f"{value:g}"
    return f"{text} {unit}{'s' if unit in ('token', 'chip') and value != 1 else ''}".rstrip()


def has_nonzero(value: Number) -> bool:
    """Whether a number, or any number of an array, is not 0.

    Args:
        value: A number or an array.

    Returns:
        True or false.

    >>> has_nonzero(0.0), has_nonzero(np.array([0.0, 2.0]))
    (False, True)
    """
    if isinstance(value, float | int):
        return bool(value)
    array = np.asarray(value)
    # The first value decides in most cases, without a pass over the array.
    return array.size > 0 and (bool(array.item(0)) or bool(array.any()))


def map_unique(function: Callable[..., float], values: Number, *arguments: float) -> Array:
    """Evaluate a function once for each distinct number of an array.

    Numbers of chips are few and repeat from step to step, so that results of short arrays are cached. Whole numbers that
    are smaller than the array's length are found in a table without a sort.

    Args:
        function: Function of one number and `arguments`.
        values: A number or an array.
        arguments: Further arguments of the function.

    Returns:
        Results with the shape of `values`; the array may be read-only.

    >>> map_unique(math.sqrt, np.array([4, 9, 4])).tolist(), map_unique(math.pow, 3.0, 2).tolist()
    ([2.0, 3.0, 2.0], 9.0)
    """
    numbers = np.asarray(values, dtype=np.float64)
    key = (function, numbers.tobytes(), numbers.shape, arguments) if numbers.size <= SHORT else None
    results = MAPPED.get(key)
    if results is not None:
        return results
    if numbers.size and numbers.min() >= 0 and numbers.max() < numbers.size:
        places = numbers.astype(np.intp)
        if np.array_equal(places, numbers):
            is_present = np.zeros(int(numbers.max()) + 1, dtype=bool)
            is_present[places] = True
            table = np.zeros(len(is_present))
            table[is_present] = [function(float(number), *arguments) for number in np.flatnonzero(is_present)]
            results = table[places]
    if results is None:
        unique, inverse = np.unique(numbers, return_inverse=True)
        results = np.array([function(float(number), *arguments) for number in unique])[inverse].reshape(numbers.shape)
    # A single number has no flags before this.
    results = np.array(results)
    if key is not None:
        if len(MAPPED) >= MOST_MAPPED:
            MAPPED.clear()
        results.flags.writeable = False
        MAPPED[key] = results
    return results


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, in rising order.

    Args:
        number: A positive integer.

    Returns:
        The divisors.

    >>> divisors(72)
    (1, 2, 3, 4, 6, 8, 9, 12, 18, 24, 36, 72)
    """
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def as_whole(value: Number) -> int | float:
    """Return a number as an int where it is whole.

    Args:
        value: A number.

    Returns:
        An int or a float.

    >>> as_whole(np.float64(3.0)), as_whole(1.5)
    (3, 1.5)
    """
    number = float(value)
    return int(number) if number.is_integer() else number


def distinct(values: Number | list[Any]) -> Array:
    """Return the distinct values in rising order.

    For short lists this is faster than `np.unique`, which loads more of numpy.

    Args:
        values: Numbers, in any shape.

    Returns:
        Array of one axis.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered: Array = np.sort(np.ravel(values))
    unique_values: Array = ordered[np.append(np.ones(min(1, len(ordered)), dtype=bool), ordered[1:] != ordered[:-1])]
    return unique_values
