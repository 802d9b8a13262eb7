"""How a question is declared: its inputs with unit, bounds, default and help, and its answers with unit and meaning.

A question has one frozen dataclass of inputs. Its fields are made by `count`, `number`, `choice`, `text`, `switch` and `texts`,
which keep the declaration in the field's metadata:

    @dataclass(frozen=True, kw_only=True)
    class StepInputs:
        batch: int = count(1, "sequences that decode in one replica", unit="sequences")

Everything else reads these declarations: options of a command, axes of a sweep, bodies of HTTP requests, tables of the docs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np

from steptime.errors import InputError, RangeError, UnitError, UnknownName, short_repr
from steptime.number_checks import between, whole_number
from steptime.units import count as read_count
from steptime.units import parse

COUNT, NUMBER, TEXT, RENT, SWITCH, TEXTS = "count", "number", "text", "rent", "switch", "texts"
# Largest count that is taken where an input declares no bound of its own.
LARGEST_COUNT: Final = 10**18
Form = TypeVar("Form")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a question.

    Attributes:
        meaning: noun phrase, without the unit.
        unit: unit of a number, in base units.
        kind: COUNT (8192, 8k), NUMBER, TEXT (a name), RENT (a kind, or USD per chip-hour), SWITCH or TEXTS (a list).
        broadcasts: whether it may be an array.
        separate: whether the values of an axis are evaluated one by one, since not every value is legal.
        bare: whether a number without a unit is taken as one in `unit`.
        default: value if none is given; None: see `default_words`.
        default_words: the default in words.
        required: whether it has no default.
        minimum: smallest value.
        maximum: largest value.
        choices: the only values of a text.
        group: heading under which the help lists it.
        metavar: what the help shows for its value.
        positional: whether the command line takes it without its name.
    """

    meaning: str = ""
    unit: str = ""
    kind: str = NUMBER
    broadcasts: bool = False
    separate: bool = False
    bare: bool = False
    default: Any = None
    default_words: str = ""
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    group: str = ""
    metavar: str = ""
    positional: bool = False

    def help(self) -> str:
        """Return the sentence that the help shows.

        >>> Input(meaning="tokens of context", unit="tokens").help(), Input(meaning="rate", unit="requests/s").help()
        ('Tokens of context.', 'Rate [requests/s].')
        """
        sentence = self.meaning[:1].upper() + self.meaning[1:]
        shows_unit = self.unit and self.kind == NUMBER and self.unit not in self.meaning
        return f"{sentence} [{self.unit}]." if shows_unit else f"{sentence}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of a question: its meaning and its unit ("" for a share, a count or a text)."""

    meaning: str = ""
    unit: str = ""
    text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A function with named inputs and answers.

    Attributes:
        name: name of the command and of the question in sweeps and HTTP.
        meaning: one line.
        inputs: inputs by name.
        answers: answers by name.
        ask: function of values by input name and of the wanted answers (none: all), which returns answers by name. Values
            are scalars, or arrays that broadcast where their inputs do.
        solve: function of values by input name that returns the whole result; None where there is no result object.
        figures: whether figures of the machine ("chip.hbm.bandwidth") are inputs too.
        vectorised: whether `ask` takes arrays.
        threads: whether several threads may call `ask` at once.
        needs: inputs without a default.
        shows: answers that are shown unless others are wanted.
        bands: the answers that hold the 90 % range of another.
        seconds: approximate time of one evaluation [s].
        written: the closed form, which a spreadsheet can recompute.
        limits: inputs that an answer has to meet, beyond which it costs a multiple or does not exist.
    """

    name: str
    meaning: str
    inputs: Mapping[str, Input]
    answers: Mapping[str, Answer]
    ask: Callable[[Mapping[str, Any], frozenset[str]], Mapping[str, Any]]
    solve: Callable[[Mapping[str, Any]], Any] | None = None
    figures: bool = False
    vectorised: bool = False
    threads: bool = False
    needs: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    bands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seconds: float = 1.0
    written: Callable[..., Any] | None = None
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One answer of a question whose result is an object: what it means, and how it is read from the result."""

    meaning: str
    unit: str = ""
    value: Callable[[Any], Any]
    text: bool = False


def question_of_result(
    name: str,
    meaning: str,
    *,
    form: Any,
    solve: Callable[[Mapping[str, Any]], Any],
    reads: Mapping[str, Reader],
    shows: tuple[str, ...],
    **properties: Any,
) -> Question:
    """Return a question whose answers are read from the result object that `solve` returns.

    Args:
        name: name of the question.
        meaning: one line.
        form: dataclass of the inputs.
        solve: function of values by input name that returns the result.
        reads: answers by name.
        shows: answers that are shown unless others are wanted.
        **properties: other fields of `Question`.
    """

    def ask(values: Mapping[str, Any], answer_names: frozenset[str]) -> dict[str, Any]:
        return read_answers(reads, solve(values), answer_names)

    return Question(
        name=name,
        meaning=meaning,
        inputs=inputs_from(form),
        answers={key: Answer(meaning=reader.meaning, unit=reader.unit, text=reader.text) for key, reader in reads.items()},
        ask=ask,
        solve=solve,
        needs=required_inputs(form),
        shows=shows,
        **properties,
    )


def read_answers(reads: Mapping[str, Reader], result: Any, answer_names: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the answers that are read from a result; `answer_names`: their names, empty for all."""
    return {name: reader.value(result) for name, reader in reads.items() if not answer_names or name in answer_names}


def _declared(default: Any, **declaration: Any) -> Any:
    required = default is MISSING
    metadata = {"input": Input(default=None if required else default, required=required, **declaration)}
    return field(metadata=metadata) if required else field(default=default, metadata=metadata)


def count(default: Any, meaning: str, **declaration: Any) -> Any:
    """Declare a whole number, such as 8192 or 8k; `minimum` is 1 unless given."""
    return _declared(default, meaning=meaning, kind=COUNT, **{"minimum": 1, **declaration})


def number(default: Any, meaning: str, **declaration: Any) -> Any:
    """Declare a number; one without a unit is in `unit`."""
    return _declared(default, meaning=meaning, kind=NUMBER, bare=True, **declaration)


def choice(default: Any, choices: tuple[str, ...], meaning: str, **declaration: Any) -> Any:
    """Declare one of several words."""
    return _declared(default, meaning=meaning, kind=TEXT, choices=choices, **declaration)


def text(default: Any, meaning: str, **declaration: Any) -> Any:
    """Declare a name, a path or an object that stands for one."""
    return _declared(default, meaning=meaning, kind=TEXT, **declaration)


def rent(default: Any, meaning: str, **declaration: Any) -> Any:
    """Declare a rent: a kind of rent, or USD per chip-hour."""
    return _declared(default, meaning=meaning, kind=RENT, **declaration)


def switch(meaning: str, **declaration: Any) -> Any:
    """Declare something that is off unless it is asked for."""
    return _declared(False, meaning=meaning, kind=SWITCH, **declaration)


def texts(meaning: str, **declaration: Any) -> Any:
    """Declare a list of texts, empty by default."""
    return _declared((), meaning=meaning, kind=TEXTS, **declaration)


@cache
def inputs_from(form: Any) -> Mapping[str, Input]:
    """Return the inputs that a dataclass declares, by name, those without a default first.

    Args:
        form: dataclass whose fields are made by the functions of this module.
    """
    declared = {f.name: f.metadata["input"] for f in fields(form) if "input" in f.metadata}
    return dict(sorted(declared.items(), key=lambda pair: not pair[1].required))


def required_inputs(form: Any) -> tuple[str, ...]:
    """Return the names of the inputs without a default."""
    return tuple(name for name, declared in inputs_from(form).items() if declared.required)


def bind(form: type[Form], values: Mapping[str, Any], question: str) -> Form:
    """Return the inputs of a question, read and checked.

    Args:
        form: dataclass of the inputs.
        values: values by input name: numbers, arrays, texts such as "8k", objects.
        question: name of the question, for messages.

    Returns:
        An instance of `form`; inputs that are None have their default.

    Raises:
        UnknownName: if a name is no input, or a word is none of the choices.
        RangeError: if a value is outside its bounds.
    """
    declared = inputs_from(form)  # type: ignore[arg-type]
    bound_values: dict[str, Any] = {}
    for name, value in values.items():
        if name not in declared:
            raise UnknownName(f"input of {question}", name, list(declared), f"Its inputs are {', '.join(declared)}.")
        if value is not None:
            bound_values[name] = read_value(name, value, declared[name])
    missing = [name for name in required_inputs(form) if name not in bound_values]
    if missing:
        raise InputError(f"{question} needs {' and '.join(missing)}")
    return form(**bound_values)


def bind_declared(form: type[Form], values: Mapping[str, Any], question: str) -> Form:
    """Return the inputs that a form declares, out of values that hold figures of the machine too.

    Args:
        form: dataclass of the inputs.
        values: values by input name, and figures of the machine by path.
        question: name of the question, for messages.
    """
    declared = inputs_from(form)  # type: ignore[arg-type]
    return bind(form, {name: value for name, value in values.items() if name in declared}, question)


def read_value(name: str, value: Any, declared: Input) -> Any:
    """Return the value of an input, read from a text where it is one, and checked.

    Args:
        name: name of the input, for messages.
        value: a number, an array, a text or an object.
        declared: what the question declares.

    Returns:
        The value in base units.

    >>> read_value("context", "8k", Input(kind=COUNT, minimum=1))
    8000
    """
    if declared.kind == COUNT:
        number_read = read_count(value, name) if isinstance(value, str) else value
        least = 1 if declared.minimum is None else declared.minimum
        return whole_number(
            name, number_read, minimum=least, maximum=LARGEST_COUNT if declared.maximum is None else declared.maximum
        )
    if declared.kind == NUMBER:
        return _read_number(name, value, declared)
    if declared.kind == SWITCH:
        if not isinstance(value, bool | np.bool_):
            raise RangeError(f"{name} must be true or false, not {short_repr(value)}")
        return bool(value)
    if declared.kind == TEXTS:
        return (value,) if isinstance(value, str) else tuple(value)
    if declared.choices and value not in declared.choices:
        raise UnknownName(name, value, declared.choices, f"Known: {', '.join(declared.choices)}.")
    return value


def _read_number(name: str, value: Any, declared: Input) -> Any:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            try:
                value = parse(value, declared.unit)
            except KeyError:
                unit = f" in {declared.unit}" if declared.unit else ""
                raise UnitError(f"{name} must be a number{unit}, not {short_repr(value)}") from None
    low = -np.inf if declared.minimum is None else declared.minimum
    high = np.inf if declared.maximum is None else declared.maximum
    return between(name, value, low, high, declared.unit)


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Return names separated by commas: the first `limit`, and the number of others."""
    several = list(names)
    suffix = f" and {len(several) - limit} more" if len(several) > limit else ""
    return ", ".join(several[:limit]) + suffix
