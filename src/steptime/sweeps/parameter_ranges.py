"""The uncertain inputs of a question, with their ranges and the basis of each range.

`HOMES` names a function per question that returns its uncertain inputs. Another package adds its questions there. Any other
input becomes uncertain if the user gives a range.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.hardware.what_if import in_force
from steptime.physics.engine import Engine, constant, engine_for
from steptime.physics.engine_parameters import CONSTANTS, DESCRIPTIONS, find_problem
from steptime.questions.declaration import COUNT, TEXT, Input, Question
from steptime.questions.registry import find_input, plain_name
from steptime.questions.subject import read_system
from steptime.sweeps.input_distribution import Unsure, put
from steptime.sweeps.question_inputs import read_values
from steptime.sweeps.sensitivity_result import written
from steptime.sweeps.serving_ranges import CLOCK, put_constant

# Module and name of the function that returns the uncertain inputs of a question.
# It takes inputs and the name of the answer, and returns the settled inputs and the uncertain ones.
HOMES: Final = {"step": "serving_ranges of_step", "plan": "serving_ranges of_plan"}


def unsure_inputs(question: Question, input_values: Mapping[str, Any], answer: str) -> tuple[Mapping[str, Any], list[Unsure]]:
    """Return the inputs of a question with names loaded, and the uncertain inputs.

    Args:
        question: The question.
        input_values: Inputs by name.
        answer: Answer whose uncertainty matters.

    Returns:
        The inputs, and the uncertain ones; none for a closed form.
    """
    if question.name not in HOMES:
        return input_values, []
    module, _, name = HOMES[question.name].partition(" ")
    tells: Callable[..., tuple[Mapping[str, Any], list[Unsure]]] = getattr(import_module(f"steptime.sweeps.{module}"), name)
    return tells(input_values, answer)


def with_ranges(
    question: Question, input_values: Mapping[str, Any], parameters: Sequence[Unsure], ranges: Iterable[tuple[str, Any]]
) -> list[Unsure]:
    """Return the uncertain inputs of a question with the ranges that the user gives.

    Args:
        question: The question.
        input_values: Inputs by name.
        parameters: Inputs that are uncertain by default.
        ranges: Names with "LOW:HIGH", or with two numbers in base units.

    Returns:
        The uncertain inputs, with the given ranges in place of the default ones.

    Raises:
        RangeError: If a range does not contain the value of its input.
        UnknownName: If an input does not exist.
        InputError: If an input is a name, or has two ranges.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    ranged_names: set[str] = set()
    for typed, values in ranges:
        name = _name(question, by_name, typed)
        if name in ranged_names:
            raise InputError(f"{name}: has two ranges; keep one of them")
        ranged_names.add(name)
        base = by_name.get(name)
        spec = _input(question, input_values, base, name)
        if spec.kind == TEXT and (isinstance(values, str) or question.answers):
            raise InputError(f"{name}: is a name without a range; compare several with `steptime sweep --over {name}=...`")
        low, high = _ends(name, values, spec)
        if name in CONSTANTS and (problem := find_problem(name, low) or find_problem(name, high)):
            raise RangeError(f"{name} {problem}")
        middle = base.base if base is not None else _base_value(question, input_values, name)
        basis = "range as given" if middle is not None else "range as given, base at its middle"
        middle = (low + high) / 2 if middle is None else middle
        if not low <= middle <= high:
            value, lower, upper = (written(float(number), spec.unit) for number in (middle, low, high))
            raise RangeError(
                f"{name}: the value {value} is outside its range from {lower} to {upper}; widen the range, or give another "
                f"{name}"
            )

        # A range of the user says nothing about its middle, so that all values are equally likely.
        attributes: dict[str, Any] = {"low": low, "base": float(middle), "high": high, "basis": basis, "even": True}
        if base is not None:
            by_name[name] = Unsure(
                name=name, description=base.description, unit=base.unit, learn=base.learn, place=base.place,
                is_count=base.is_count, broadcasts=base.broadcasts, **attributes,
            )  # fmt: skip
        else:
            by_name[name] = Unsure(
                name=name, description=f"the {spec.meaning}" if spec.meaning else name, unit=spec.unit,
                is_count=spec.kind == COUNT, place=put_constant if name in CONSTANTS else put, broadcasts=spec.broadcasts,
                **attributes,
            )  # fmt: skip
    return list(by_name.values())


def _name(question: Question, parameters: Mapping[str, Unsure], name: str) -> str:
    under = name.strip().lstrip("-").replace("-", "_")
    return under if under in parameters or under in CONSTANTS else plain_name(question, name)


def _input(question: Question, input_values: Mapping[str, Any], parameter: Unsure | None, name: str) -> Input:
    """Return the declaration with which the range of an input is read."""
    if name in question.inputs:
        return question.inputs[name]
    if parameter is not None:
        return Input(
            meaning=parameter.description,
            unit=parameter.unit,
            broadcasts=True,
            bare=not parameter.unit or parameter.place is put_constant,
        )

    # Constants of the engine have no declaration: the unit is the first word of their description.
    if name in CONSTANTS and "engine" in question.inputs:
        description = DESCRIPTIONS[name]
        unit = "s" if description["unit"].startswith("s ") or description["unit"] == "s" else ""
        return Input(meaning=f"engine's {name.replace('_', ' ')}", unit=unit, broadcasts=True, bare=True)
    try:
        return find_input(question, name, input_values)
    except UnknownName:
        figures = [CLOCK, *CONSTANTS] if "engine" in question.inputs else []
        raise UnknownName(
            f"input of {question.name}", name, [*question.inputs, *figures, *_paths(question, input_values)],
            f"Known: {', '.join(question.inputs)}" + (
                ", figures of the system (`steptime systems NAME`) and constants of the engine (`steptime engines NAME`)."
                if figures else "."
            ),
        ) from None  # fmt: skip


def _paths(question: Question, input_values: Mapping[str, Any]) -> list[str]:
    if not question.figures or input_values.get("system") is None:
        return []
    from steptime.questions.subject import settable_figures

    return list(settable_figures(input_values))


def _ends(name: str, values: Any, spec: Input) -> tuple[float, float]:
    if isinstance(values, str):
        parts = values.split(":")
        if len(parts) != 2 or not all(part.strip() for part in parts):
            raise RangeError(f"{name}: must be LOW:HIGH, such as {_example(spec)}, got {short_repr(values)}")
        # The reader of axes knows units: LOW:HIGH:2 gives both ends.
        ends = [float(value) for value in read_values(name, f"{values}:2", spec)]
        return ends[0], ends[-1]
    pair = list(values) if isinstance(values, tuple | list | np.ndarray) else []
    if len(pair) != 2 or not all(isinstance(end, int | float | np.number) and math.isfinite(end) for end in pair):
        raise RangeError(f"{name}: a range must be two numbers, low and high, got {short_repr(values)}")
    low, high = float(pair[0]), float(pair[1])
    if not low < high:
        raise RangeError(f"{name}: low must be below high, got {short_repr(low)} to {short_repr(high)}")
    return low, high


def _example(spec: Input) -> str:
    return {
        "B/s": "7TB/s:8TB/s", "B": "80GB:96GB", "FLOP/s": "1PFLOP/s:2PFLOP/s", "s": "1ms:2ms", "USD/s": "1.5:3",
    }.get(spec.unit, "1k:8k" if spec.kind == COUNT else "0.8:1.2")  # fmt: skip


def _base_value(question: Question, input_values: Mapping[str, Any], name: str) -> float | None:
    """Return the value of an input; None if it is unknown."""
    if name in input_values:
        value = input_values[name]
        if not isinstance(value, int | float | np.number) or isinstance(value, bool):
            raise RangeError(f"{name}: must be one number to have a range, got {short_repr(value)}")
        return float(value)

    # Values that the user did not give come from the engine, the machine, or the default of the closed form.
    system = input_values.get("system")
    if name in CONSTANTS:
        engine = input_values.get("engine")
        engine = (
            engine if isinstance(engine, Engine) else engine_for(read_system(input_values), engine, input_values.get("catalog"))
        )
        value = float(constant(engine, name))
        return value if math.isfinite(value) else None
    if question.figures and system is not None and ("." in name or name in ("rent", "power")):
        figure = float(in_force(read_system(input_values), name))
        return figure if math.isfinite(figure) else None
    if question.written is not None:
        default = inspect.signature(question.written).parameters[name].default
        return float(default) if isinstance(default, int | float) else None
    return None
