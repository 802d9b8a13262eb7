"""What a number is: the type that every formula takes, and the gate through which every number from outside comes.

A gate takes the name that the user knows a number by, the number (a Python or numpy scalar, or an array), and its bounds. It
returns the number as it is (lists as arrays, scalars of numpy as those of Python), or raises RangeError with the name, the
bound that was missed, the unit and what was given. Truth values, texts, complex numbers, NaN and infinity are no numbers. An
array costs two passes over it.

Bounds are far beyond what is built and asked today, and near enough that no sum, product or search of steptime overflows or
goes on for ever.
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
"""An array of numbers of any kind: floats, whole numbers, booleans."""
Number: TypeAlias = float | Array
"""A number, or an array of numbers: every formula broadcasts."""

NumberT = TypeVar("NumberT")  # what a gate is given, it gives on

SHORT: Final = 4096  # numbers of an array of which a function is remembered
MOST_CHIPS: Final = 200_000  # the largest clusters have as many; a plan for so many takes a few seconds
MOST_TOKENS: Final = 1_000_000_000  # of a context or of a request; the longest are some 1e7
MOST_SEQUENCES: Final = 1_000_000_000  # of a batch
LARGEST: Final = 1e30  # of a rate or a capacity: products of two stay finite
LONGEST: Final = 1e9  # s, some 30 years


def whole_number(name: str, value: NumberT, *, minimum: float = 1, maximum: float = MOST_TOKENS, unit: str = "") -> NumberT:
    """Return whole numbers from `minimum` to `maximum`; a scalar becomes an int.

    >>> whole_number("chips", 8.0, maximum=MOST_CHIPS)
    8
    >>> whole_number("chips", 2.5, maximum=MOST_CHIPS)
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: chips must be a whole number of at least 1, not 2.5
    """
    number_or_array, low, high = _ends(name, value)
    checked: NumberT = _within(name, (number_or_array, low, high), minimum, maximum, unit)
    if np.ndim(number_or_array) == 0:
        if high != int(high):
            raise _broken(name, minimum, unit, high)
        number: Any = int(high)
        checked = number
    elif number_or_array.dtype.kind == "f" and not np.array_equal(np.floor(number_or_array), number_or_array):
        raise _broken(name, minimum, unit, number_or_array[np.floor(number_or_array) != number_or_array].flat[0].item())
    return checked


def _broken(name: str, minimum: float, unit: str, value: float) -> RangeError:
    return RangeError(f"{name} must be a whole number of at least {_bound(minimum, unit)}, not {short_repr(value)}")


def positive(name: str, value: NumberT, unit: str = "", *, minimum: float = 0.0, maximum: float = LARGEST) -> NumberT:
    """Return finite numbers above 0, or of at least `minimum` where that is given, and at most `maximum`.

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
    """Return finite numbers from 0 to `maximum`.

    >>> at_least_zero("prefix", [0, 4096])
    array([   0, 4096])
    """
    return between(name, value, 0.0, maximum, unit)


def between(name: str, value: NumberT, minimum: float, maximum: float, unit: str = "") -> NumberT:
    """Return finite numbers from `minimum` to `maximum`, both among them."""
    checked: NumberT = _within(name, _ends(name, value), minimum, maximum, unit)
    return checked


def share(name: str, value: NumberT, *, whole_too: bool = True) -> NumberT:
    """Return shares from 0 to 1; 1 itself only where the whole may be meant.

    >>> share("cached share", 0.3)
    0.3
    >>> share("cached share", 1.0, whole_too=False)
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: cached share must be a share of at least 0 and below 1, not 1
    """
    value, low, high = _ends(name, value)
    if low < 0 or high > 1 or (high == 1 and not whole_too):
        top = "at most" if whole_too else "below"
        raise RangeError(f"{name} must be a share of at least 0 and {top} 1, not {short_repr(low if low < 0 else high)}")
    return value


def limit(name: str, value: NumberT, unit: str = "s", *, minimum: float = 1e-9) -> NumberT:
    """Return limits above 0, of at least `minimum`; infinity is none.

    >>> limit("the TTFT limit", math.inf)
    inf
    """
    value, low, high = _ends(name, value, endless=True)
    if not low > 0 and minimum:
        raise RangeError(f"{name} must be greater than {_bound(0, unit)}, not {short_repr(low)}")
    if low < minimum:
        raise RangeError(f"{name} must be at least {_bound(minimum, unit)}, not {short_repr(low)}")
    if LARGEST < high < math.inf:
        raise RangeError(f"{name} must be at most {_bound(LARGEST, unit)}, or infinite, not {short_repr(high)}")
    return value


def check_shapes(**values: Any) -> None:
    """Raise RangeError where arrays do not broadcast."""
    shapes = {name: np.shape(value) for name, value in values.items() if np.ndim(value)}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise RangeError(f"arrays of these shapes do not go together: {listed}") from None


def single(**values: Any) -> None:
    """Raise RangeError for what is an array, where only one number will do.

    >>> single(token_budget=[1024, 2048])
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: token budget must be one number, not [1024, 2048]
    """
    for name, value in values.items():
        if isinstance(value, list | tuple) or np.ndim(value):
            raise RangeError(f"{name.replace('_', ' ')} must be one number, not {short_repr(value)}")


def _within(name: str, value_and_ends: tuple[Any, Any, Any], minimum: float, maximum: float, unit: str) -> Any:
    value, low, high = value_and_ends
    if low < minimum:
        raise RangeError(f"{name} must be at least {_bound(minimum, unit)}, not {short_repr(low)}")
    if high > maximum:
        raise RangeError(f"{name} must be at most {_bound(maximum, unit)}, not {short_repr(high)}")
    return value


def _ends(name: str, value: Any, *, endless: bool = False) -> tuple[Any, Any, Any]:
    """Return some numbers, the smallest and the largest of them; those of no numbers lie within any bounds."""
    if type(value) in (int, float):  # the way of most calls
        low = high = value
    else:
        array = _array(name, value)
        if array.size == 0:
            return array, 1, 1
        if array.dtype.kind == "O":
            low, high = min(array.flat), max(array.flat)
        else:
            low, high = array.min().item(), array.max().item()
        value = array if array.ndim else array.item()  # which no longer is narrow
    if isinstance(low, int):
        return value, low, high
    if math.isnan(low) or (not endless and (math.isinf(low) or math.isinf(high))):
        worst = low if not math.isfinite(low) else high
        raise RangeError(f"{name} must be a finite number, not {worst}")
    return value, low, high


def _array(name: str, value: Number) -> Any:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # rows of unequal lengths, and what numpy cannot hold
        raise RangeError(f"{name} must be a number or an array of numbers, not {short_repr(value)}") from None
    if array.dtype.kind == "O" and array.size and all(type(x) is int for x in array.flat):
        largest = max(abs(x) for x in array.flat)
        return array.astype(np.int64 if largest < 1 << 63 else np.float64) if largest < 1e300 else array
    if array.dtype.kind not in "iuf" or isinstance(value, bool):
        raise RangeError(f"{name} must be a number or an array of numbers, not {short_repr(value)}")
    return array


def _bound(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if 1 <= abs(value) < 1e12 and value == int(value) else f"{value:g}"
    return f"{text} {unit}{'s' if unit in ('token', 'chip') and value != 1 else ''}".rstrip()


def has_nonzero(value: Number) -> bool:
    """Whether a number, or any of an array, is not 0.

    >>> has_nonzero(0.0), has_nonzero(np.array([0.0, 2.0]))
    (False, True)
    """
    if type(value) is float:
        return value != 0
    array = np.asarray(value)
    return array.size > 0 and (bool(array.item(0)) or bool(array.any()))  # the first mostly tells


def map_unique(function: Callable[..., float], values: Number, *arguments: float) -> Array:
    """Return `function` of each number of an array and of `arguments`, called once for each distinct number.

    Counts of chips are few, and the same again from step to step: short arrays are remembered, and not to be written to. Whole
    numbers that are smaller than the array is long are looked up in a table, and nothing is sorted.

    >>> map_unique(math.sqrt, np.array([4, 9, 4])).tolist(), map_unique(math.pow, 3.0, 2).tolist()
    ([2.0, 3.0, 2.0], 9.0)
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.size > SHORT:
        return _map_unique(function, numbers, arguments)
    return _remembered(function, numbers.tobytes(), numbers.shape, arguments)


@lru_cache(maxsize=512)
def _remembered(function: Callable[..., float], values: bytes, shape: tuple[int, ...], arguments: tuple[float, ...]) -> Array:
    results = np.array(_map_unique(function, np.frombuffer(values).reshape(shape), arguments))
    results.flags.writeable = False
    return results


def _map_unique(function: Callable[..., float], numbers: Array, arguments: tuple[float, ...]) -> Array:
    if numbers.size and numbers.min() >= 0 and numbers.max() < numbers.size:
        places = numbers.astype(np.intp)
        if np.array_equal(places, numbers):
            is_present = np.zeros(int(numbers.max()) + 1, dtype=bool)
            is_present[places] = True
            table = np.zeros(len(is_present))
            table[is_present] = [function(float(number), *arguments) for number in np.flatnonzero(is_present)]
            return np.asarray(table[places])
    unique, inverse = np.unique(numbers, return_inverse=True)
    return np.array([function(float(number), *arguments) for number in unique])[inverse].reshape(numbers.shape)


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of `number`, smallest first.

    >>> divisors(72)
    (1, 2, 3, 4, 6, 8, 9, 12, 18, 24, 36, 72)
    """
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def as_whole(value: Number) -> int | float:
    """Return a number as an int where it is whole.

    >>> as_whole(np.float64(3.0)), as_whole(1.5)
    (3, 1.5)
    """
    number = float(value)
    return int(number) if number.is_integer() else number


def distinct(values: Number | list[Any]) -> Array:
    """Return the values in order, each once; a short list sooner than `np.unique`, which loads more of numpy.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered: Array = np.sort(np.ravel(values))
    unique_values: Array = ordered[np.append(np.ones(min(1, len(ordered)), dtype=bool), ordered[1:] != ordered[:-1])]
    return unique_values
