"""Named axes and fixed inputs of a sweep, read from texts or from numbers, and limits on their points.

"1,2,4" is a list. LOW:HIGH:N are N values at equal distances, LOW:HIGH:Nlog in equal ratios. LOW:HIGH:logR is a series with the
ratio R, whose last value is HIGH. Commas join several of them: "1k:128k:log2" (doubling), "4TB/s:32TB/s:9", "1:1M:50log". A
value without a unit has the unit of the input, or that of the end of its range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from steptime.errors import InputError, RangeError, UnitError, short_repr
from steptime.hardware.rental_prices import KINDS
from steptime.number_checks import Array
from steptime.questions.declaration import COUNT, RENT, SWITCH, TEXT, TEXTS, Input, Question, listed
from steptime.questions.registry import find_input, plain_name
from steptime.units import DAY, HOUR, MINUTE, count, in_digits, parse

# Points whose answers fit in the memory of a laptop.
MOST_POINTS: Final = 50_000_000
# Longest sweep that is started [s].
LONGEST: Final = 30 * DAY
# log2 (a ratio) or 50log (a number of values).
RATIO = re.compile(r"log([0-9.]+)|([0-9_]+)log")
# Kinds of inputs whose values are names.
NAMES: Final = (TEXT, TEXTS)
SWITCH_WORDS: Final = {"true": True, "false": False}
# The digits of a number without a unit.
BARE = re.compile(r"[-+0-9.,_eE ]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a sweep: the input that changes, its unit, and its values.

    The values are an array of numbers, or a tuple of names and objects.
    """

    name: str
    unit: str = ""
    meaning: str = ""
    values: Any = ()
    broadcasts: bool = False

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers."""
        return isinstance(self.values, np.ndarray)

    @property
    def labels(self) -> Array:
        """Values as an array of numbers or of names."""
        return self.values if self.numeric else np.array([label(value) for value in self.values], dtype=object)

    @property
    def title(self) -> str:
        """Name with its unit, such as "context [tokens]"."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


def label(value: Any) -> str:
    """Return the name of a value that is not a number.

    Args:
        value: A text, or an object with a name.

    Returns:
        The name of the object, or the value as a text.
    """
    return value if isinstance(value, str) else str(getattr(value, "name", value))


def grid_shape(axes: Sequence[Axis], *, together: bool) -> tuple[int, ...]:
    """Return the shape of the grid of points.

    Args:
        axes: The axes of the sweep.
        together: Whether the axes advance together, one point per position.

    Returns:
        The length of each axis; one length if the axes advance together.
    """
    lengths = tuple(len(axis.values) for axis in axes)
    return lengths[:1] if together else lengths


# --- inputs of a question -----------------------------------------------------------------------------------------------


def read_axes(
    question: Question, over: Iterable[str], fixed: Iterable[str], preset_values: Mapping[str, Any]
) -> tuple[list[Axis], dict[str, Any]]:
    """Return the axes and the fixed values in texts such as "batch=1:4096:log2".

    Args:
        question: The question that the sweep asks.
        over: Texts NAME=VALUES, one per axis.
        fixed: Texts NAME=VALUE, such as "tp=8".
        preset_values: Inputs that are already fixed, by name.

    Returns:
        The axes in the order of `over`, and the fixed values by name.

    Raises:
        InputError: If an input is given twice, or a text is not NAME=VALUES.
    """
    fixed_pairs = [_pair(question, text, "NAME=VALUE, such as tp=8") for text in fixed]
    axis_pairs = [_pair(question, text, "NAME=VALUES, such as batch=1:4096:log2") for text in over]
    names = [*preset_values, *(name for name, _ in (*fixed_pairs, *axis_pairs))]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name}: is given twice; keep one of the two")
    return read_inputs(question, dict(axis_pairs), {**preset_values, **dict(fixed_pairs)})


def _pair(question: Question, text: str, form: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise RangeError(f"axis: must be {form}, got {short_repr(text)}")
    return plain_name(question, name), values


def read_inputs(
    question: Question, axes: Mapping[str, Any], fixed: Mapping[str, Any], *, together: bool = False
) -> tuple[list[Axis], dict[str, Any]]:
    """Return the axes and the fixed values of a sweep, in base units.

    Args:
        question: The question that the sweep asks.
        axes: Values by input: a text, an array, or a list of numbers, names or objects. A bare rent is in USD per chip-hour.
        fixed: One value by input.
        together: Whether the axes advance together, one point per position.

    Returns:
        The axes in order, and the fixed values by name.

    Raises:
        InputError: If an input does not exist, or its values are malformed.
        RangeError: If the points do not fit in memory, or take too long.
    """
    axis_values = {plain_name(question, name): _values(values) for name, values in axes.items()}
    fixed_values = {plain_name(question, name): value for name, value in fixed.items()}
    # Figures such as chip.hbm.bandwidth exist only once their system is known; the first system of an axis stands for all.
    known_inputs = dict(fixed_values)
    if "system" in axis_values:
        systems = axis_values["system"]
        known_inputs["system"] = systems.partition(",")[0].strip() if isinstance(systems, str) else next(iter(systems), None)
    specs = {name: find_input(question, name, known_inputs) for name in (*axis_values, *fixed_values)}

    # The number of points is checked before any axis is built.
    lengths = [
        count_values(name, values, specs[name]) if isinstance(values, str) else len(values)
        for name, values in axis_values.items()
    ]
    check_points([max(lengths, default=1)] if together else lengths, question.seconds)
    built_axes = [
        made_axis(name, rents_per_second(values) if specs[name].kind == RENT else values, specs[name])
        for name, values in axis_values.items()
    ]
    return built_axes, {name: _read_fixed(name, value, specs[name]) for name, value in fixed_values.items()}


def _values(values: Any) -> Any:
    """Return the values of an axis as a text, an array or a list."""
    if values is None or isinstance(values, Mapping):
        raise InputError(f"axes: an axis needs values, such as [1, 64], got {values!r}")
    return values if isinstance(values, str | np.ndarray) else list(np.atleast_1d(values) if np.isscalar(values) else values)


def _read_fixed(name: str, value: Any, spec: Input) -> Any:
    """Return a fixed value in base units; an object stays as it is."""
    if isinstance(value, str):
        return read_one(name, value, spec)
    if spec.kind == COUNT and _is_number(value):
        return made_axis(name, [value], spec).values[0].item()
    return rents_per_second(value) if spec.kind == RENT else value


def rents_per_second(value: Any) -> Any:
    """Return rents in USD/s.

    Args:
        value: Rents in USD per chip-hour: one value, a list or an array; texts stay as they are.

    Returns:
        Rents in USD per chip and second.
    """
    if isinstance(value, list | tuple):
        return [rents_per_second(rent) for rent in value]
    is_rate = _is_number(value) or (isinstance(value, np.ndarray) and value.dtype.kind in "iuf")
    return value / HOUR if is_rate else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def made_axis(name: str, values: Any, spec: Input) -> Axis:
    """Return an axis of values in base units, or of names and objects.

    Args:
        name: Name of the input.
        values: A text, an array of numbers, or a list of values.
        spec: Declaration of the input.

    Returns:
        The axis; repeated names appear once.

    Raises:
        RangeError: If there is no value, or a number is not finite, or a count is not whole.
    """
    if isinstance(values, str):
        values = read_values(name, values, spec)

    # Inputs of a Python function are declared as texts, since their kind is unknown; they may be numbers.
    if isinstance(values, np.ndarray):
        has_names = False
    elif spec.kind in NAMES:
        has_names = not (values and all(map(_is_number, values)))
    else:
        # Kinds of rent (owned, contract, ondemand) are names; other rents are numbers.
        has_names = spec.kind == RENT and any(isinstance(value, str) and value in KINDS for value in values)
    if has_names:
        if not len(values):
            raise RangeError(f"{name}: needs at least one value, got none")
        return Axis(name=name, meaning=spec.meaning, values=tuple(dict.fromkeys(values)))
    if isinstance(values, np.ndarray):
        array = values
    else:
        array = np.asarray([read_one(name, value, spec) if isinstance(value, str) else value for value in values])
    if array.ndim != 1 or not len(array):
        raise RangeError(f"{name}: needs an array of one axis, got shape {array.shape}")
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise RangeError(f"{name}: needs finite numbers, got {_odd(array)}")
    if spec.kind == COUNT and array.dtype.kind == "f":
        if np.any(array != np.round(array)):
            raise RangeError(f"{name}: must be whole numbers, got {short_repr(float(array[array != np.round(array)][0]))}")
        array = array.astype(np.int64)
    return Axis(name=name, unit=spec.unit, meaning=spec.meaning, values=array, broadcasts=spec.broadcasts)


def _odd(array: Array) -> str:
    """Return the first value that is not a finite number, as a text."""
    odd = array[~np.isfinite(array)] if array.dtype.kind in "iuf" else array
    return short_repr(odd.ravel()[:1].tolist()[0])


def check_needs(question: Question, axes: Sequence[Axis], fixed: Mapping[str, Any]) -> None:
    """Raise an error for an input that is missing, or given more than once.

    Args:
        question: The question that the sweep asks.
        axes: The axes of the sweep.
        fixed: Fixed inputs by name.

    Raises:
        InputError: If a required input is missing, or an input is on an axis and fixed, or on two axes.
    """
    axis_names = [axis.name for axis in axes]
    for name in axis_names:
        if name in fixed:
            raise InputError(f"{name}: is on an axis and fixed at {short_repr(fixed[name])}; keep one of the two")
        if axis_names.count(name) > 1:
            raise InputError(f"{name}: is on two axes; keep one of the two")
    missing = [name for name in question.needs if name not in axis_names and name not in fixed]
    if missing:
        raise InputError(f"{question.name} needs {listed(missing)}; fix a value, or give an axis")


# --- limits on the points -----------------------------------------------------------------------------------------------


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


# --- values in texts ----------------------------------------------------------------------------------------------------


class _Series(NamedTuple):
    """Values that are not built yet: their largest number, and their builder."""

    max_count: int
    build: Callable[[], Array]


def read_values(name: str, text: str, spec: Input) -> list[str] | Array:
    """Read the values of an axis from a text, whose forms the head of this file lists.

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
    parts = _parts(name, text, spec)
    names = [part for part in parts if isinstance(part, str)]
    if names:
        return list(dict.fromkeys(names))
    # The number of values is checked before they are built.
    number = count_values(name, text, spec)
    if number > MOST_POINTS:
        raise RangeError(f"{name}: at most {MOST_POINTS:,} values fit in memory, got {number:,}; give fewer")
    values = np.concatenate([part.build() for part in parts if not isinstance(part, str)])
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
    return sum(1 if isinstance(part, str) else part.max_count for part in _parts(name, text, spec))


def read_one(name: str, text: str, spec: Input) -> Any:
    """Read one value of an input from a text.

    Args:
        name: Name of the input, for messages.
        text: The text.
        spec: Declaration of the input.

    Returns:
        A number in base units, or the text.

    Raises:
        RangeError: If the text has several values, or is neither true nor false.
    """
    if spec.kind in NAMES:
        return text
    if spec.kind == SWITCH:
        if text.casefold() not in SWITCH_WORDS:
            raise RangeError(f"{name}: must be true or false, got {short_repr(text)}")
        return SWITCH_WORDS[text.casefold()]
    values = read_values(name, text, spec)
    if len(values) != 1:
        raise RangeError(f"{name}: takes one value, got {short_repr(text)}; give several with --over {name}=...")
    return values[0] if isinstance(values, list) else values[0].item()


def _parts(name: str, text: str, spec: Input) -> list[str] | list[_Series]:
    """Return the entries of a text: names, or series of numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise RangeError(f"{name}: has an empty entry in the list, got {short_repr(text)}")
    if spec.kind in NAMES or (spec.kind == RENT and any(part in KINDS for part in parts)):
        return parts
    return [_series(name, part, spec) for part in parts]


def _series(name: str, part: str, spec: Input) -> _Series:
    ends = part.split(":")
    if len(ends) == 1:
        value = _number(name, part, spec)
        return _Series(1, lambda: np.array([value]))
    if len(ends) != 3 or not all(ends):
        raise RangeError(
            f"{name}: must be LOW:HIGH:N, such as 1k:128k:log2 (doubling), 10:100:10 (10 values) or 10:100:10log, "
            f"got {short_repr(part)}"
        )

    # "4:32TB/s:9" has one unit, which belongs to both ends.
    unit = BARE.sub("", ends[1], count=1) if spec.kind != COUNT and BARE.fullmatch(ends[0]) else ""
    low, high = _number(name, ends[0] + unit, spec), _number(name, ends[1], spec)
    if not high > low:
        raise RangeError(f"{name}: LOW must be below HIGH, got {ends[0]} and {ends[1]} in {short_repr(part)}")
    values = _spread(name, part, low, high, ends[2].strip())
    if spec.kind != COUNT:
        return values

    # Counts are rounded, and duplicates dropped.
    return _Series(values.max_count, lambda: np.unique(np.round(values.build())).astype(np.int64))


def _spread(name: str, part: str, low: float, high: float, how: str) -> _Series:
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

        return _Series(steps + 2, rising)
    number = _plain(name, part, ratio[2] if ratio is not None else how)
    if number != int(number) or number < 2:
        raise RangeError(f"{name}: the number of values must be a whole number of at least 2, got {how} in {short_repr(part)}")
    spread = np.geomspace if ratio is not None else np.linspace
    return _Series(int(number), lambda: spread(low, high, int(number)))


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
            return _rent(text)
        bare = _bare(text) if spec.bare else None
        return parse(text, spec.unit) if bare is None else bare
    except UnitError as problem:
        raise UnitError(str(problem) if str(problem).startswith(f"{name}: ") else f"{name}: {problem}") from None


def _bare(text: str) -> float | None:
    try:
        return parse(text)
    except UnitError:
        return None


def _rent(text: str) -> float:
    """Return a rent in USD per chip and second; a number without a unit is in USD per chip-hour."""
    try:
        return float(text) / HOUR
    except ValueError:
        return parse(text, "USD/s")
