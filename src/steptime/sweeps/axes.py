"""Named axes and fixed inputs of a sweep, read from texts or from numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steptime.errors import InputError, RangeError, short_repr
from steptime.hardware.rental_prices import KINDS
from steptime.number_checks import Array
from steptime.questions.declaration import COUNT, RENT, TEXT, Input, Question, listed
from steptime.questions.registry import find_input, plain_name
from steptime.sweeps.question_inputs import check_points, count_values, read_one, read_values
from steptime.units import HOUR


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
    fixed_values = dict(preset_values)
    pairs = [(*_pair(question, text, "NAME=VALUE, such as tp=8"), False) for text in fixed]
    pairs += [(*_pair(question, text, "NAME=VALUES, such as batch=1:4096:log2"), True) for text in over]
    names = [name for name, _, _ in pairs]
    for name in names:
        if names.count(name) > 1 or name in preset_values:
            raise InputError(f"{name}: is given twice; keep one of the two")
    texts = {name: text for name, text, wide in pairs if wide}

    # Figures such as chip.hbm.bandwidth exist only once their system is known.
    pairs.sort(key=lambda pair: "." in pair[0])
    axes: dict[str, Axis] = {}
    check_texts(
        question, texts, {**fixed_values, **({"system": texts["system"].partition(",")[0]} if "system" in texts else {})}
    )
    for name, text, wide in pairs:
        spec = find_input(question, name, _with_system(fixed_values, axes))
        if wide:
            # The product of all axes is checked before any axis is built.
            check_points([*(len(axis.values) for axis in axes.values()), count_values(name, text, spec)], question.seconds)
            axes[name] = made_axis(name, read_values(name, text, spec), spec)
        else:
            fixed_values[name] = read_one(name, text, spec)
    return [axes[name] for name in names if name in axes], fixed_values


def check_texts(question: Question, texts: Mapping[str, str], fixed_values: Mapping[str, Any]) -> None:
    """Raise an error if axes in texts have too many points; build no values.

    Args:
        question: The question that the sweep asks.
        texts: Texts of the axes, by name.
        fixed_values: Fixed inputs by name.

    Raises:
        RangeError: If the points do not fit in memory, or take too long.
    """
    # Figures of the machine are left out: their declarations need the system, which may itself be an axis.
    plain = {name: text for name, text in texts.items() if "." not in name}
    check_points(
        [count_values(name, text, find_input(question, name, fixed_values)) for name, text in plain.items()], question.seconds
    )


def _with_system(fixed_values: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, Any]:
    system = axes["system"].values[0] if "system" in axes else fixed_values.get("system")
    return {**fixed_values, "system": system}


def _pair(question: Question, text: str, form: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise RangeError(f"axis: must be {form}, got {short_repr(text)}")
    return plain_name(question, name), values


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
    numbers = spec.kind != TEXT or (not isinstance(values, np.ndarray) and _all_numbers(values))

    # Kinds of rent (owned, contract, ondemand) are names; other rents are numbers.
    if spec.kind == RENT and not isinstance(values, np.ndarray):
        numbers = not any(value in KINDS for value in values if isinstance(value, str))
    if isinstance(values, np.ndarray) or numbers:
        array = np.asarray(
            [_number(name, coordinate, spec) for coordinate in values] if not isinstance(values, np.ndarray) else values
        )
        if array.ndim != 1 or not len(array):
            raise RangeError(f"{name}: needs an array of one axis, got shape {array.shape}")
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise RangeError(f"{name}: needs finite numbers, got {_odd(array)}")
        if spec.kind == COUNT and array.dtype.kind == "f":
            if np.any(array != np.round(array)):
                raise RangeError(f"{name}: must be whole numbers, got {short_repr(float(array[array != np.round(array)][0]))}")
            array = array.astype(np.int64)
        return Axis(name=name, unit=spec.unit, meaning=spec.meaning, values=array, broadcasts=spec.broadcasts)
    several: Sequence[Any] = list(values)
    if not several:
        raise RangeError(f"{name}: needs at least one value, got none")
    return Axis(name=name, meaning=spec.meaning, values=tuple(dict.fromkeys(several)), broadcasts=False)


def _odd(array: Array) -> str:
    """Return the first value that is not a finite number, as a text."""
    odd = array[~np.isfinite(array)] if array.dtype.kind in "iuf" else array
    return short_repr(odd.ravel()[0].item() if hasattr(odd.ravel()[0], "item") else odd.ravel()[0])


def _all_numbers(values: Iterable[Any]) -> bool:
    several = list(values)
    return bool(several) and all(
        isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in several
    )


def _number(name: str, value: Any, spec: Input) -> Any:
    return read_one(name, value, spec) if isinstance(value, str) else value


def read_held(question: Question, fixed_values: Mapping[str, Any], known_inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return fixed inputs, with texts of numbers ("80 GB") read.

    Args:
        question: The question that the sweep asks.
        fixed_values: Fixed inputs by name.
        known_inputs: Inputs known so far, with the system, for `find_input`.

    Returns:
        The same inputs, numbers in base units.
    """
    values = dict(fixed_values)
    for name, value in fixed_values.items():
        spec = find_input(question, name, known_inputs)
        if isinstance(value, str) and spec.kind != TEXT:
            values[name] = made_axis(name, [value], spec).values[0]
    return values


def in_base_units(question: Question, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a Python call with bare rents in USD/s.

    A bare rent is in USD per chip-hour, as on the command line.

    Args:
        question: The question that the call asks.
        inputs: Values, or lists and arrays of values, by input. Texts and kinds of rent stay as they are.

    Returns:
        The same inputs, rents in USD/s.
    """
    rents = {name for name in inputs if name in question.inputs and question.inputs[name].kind == RENT}
    return {name: _hourly(value) if name in rents else value for name, value in inputs.items()}


def _hourly(value: Any) -> Any:
    """Return rents [USD/h] as rents [USD/s]: one value, a list or an array."""
    if isinstance(value, list | tuple):
        return [_hourly(rent) for rent in value]
    if isinstance(value, bool) or not isinstance(value, int | float | np.number | np.ndarray):
        return value
    return value / HOUR if np.asarray(value).dtype.kind in "iuf" else value


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
