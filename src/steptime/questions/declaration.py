"""How a question is declared: its inputs with unit, bounds, default and help, and its answers with unit and meaning.

A question has one frozen dataclass of inputs. The functions `count`, `number`, `text`, `texts`, `switch` and `rent` make its
fields and keep the declaration in the metadata of the field:

    @dataclass(frozen=True, kw_only=True)
    class StepInputs:
        batch: int = count(1, "sequences that decode in one replica", unit="sequences")

All front ends read these declarations: command-line options, axes of a sweep, bodies of HTTP requests, and tables of the docs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import date
from functools import cache, partial
from numbers import Real
from os import PathLike
from typing import Any, Final, TypeVar

import numpy as np

from steptime.errors import InputError, RangeError, UnitError, UnknownName, short_repr
from steptime.number_checks import between, whole_number
from steptime.units import DECIMAL_COMMA, parse
from steptime.units import count as read_count

# Kinds of inputs.
COUNT, NUMBER, TEXT, RENT, SWITCH, TEXTS = "count", "number", "text", "rent", "switch", "texts"
# Inputs of a machine without a dot in their name: its power, and the budget that a design keeps.
POWER, WITHIN = "power", "within"
# A number with commas between groups of three digits.
GROUPED: Final = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
# Largest count that an input accepts if its declaration has no maximum.
LARGEST_COUNT: Final = 10**18
Form = TypeVar("Form")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a question.

    Attributes:
        meaning: Noun phrase, without the unit.
        unit: Unit of a number, in base units.
        kind: COUNT (8192, 8k), NUMBER, TEXT (a name), RENT (a kind, or USD per chip-hour), SWITCH or TEXTS (a list).
        broadcasts: Whether the value may be an array.
        separate: Whether a sweep evaluates the values of an axis one by one, because some of them may be illegal.
        bare: Whether a number without a unit is in `unit`; of a text, whether it may be a number.
        default: Value if the user gives none; None: see `default_words`.
        default_words: The default in words.
        required: Whether there is no default.
        minimum: Smallest value.
        maximum: Largest value.
        choices: The only values of a text.
        group: Heading under which the help lists the input.
        metavar: Placeholder of the value in the help.
        positional: Whether the command line takes the value without an option name.
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

        Returns:
            The meaning as a sentence, with the unit of a number.

        >>> Input(meaning="tokens of context", unit="tokens").help(), Input(meaning="rate", unit="requests/s").help()
        ('Tokens of context.', 'Rate [requests/s].')
        """
        sentence = self.meaning[:1].upper() + self.meaning[1:]
        shows_unit = self.unit and self.kind == NUMBER and self.unit not in self.meaning
        return f"{sentence} [{self.unit}]." if shows_unit else f"{sentence}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of a question: its meaning, its unit ("" for a share, count or text), and where the result has it.

    `source` is a path of attributes and positions such as "losses.0.best_loss", or a function of the result. An empty path is
    the name of the answer.
    """

    meaning: str = ""
    unit: str = ""
    text: bool = False
    source: str | Callable[[Any], Any] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A function with named inputs and answers.

    Attributes:
        name: Name of the command, and of the question in sweeps and HTTP.
        meaning: One line.
        inputs: Inputs by name.
        answers: Answers by name.
        ask: Function of values by input name and of answer names (empty: all), which returns answers by name. Values are
            scalars, or arrays that broadcast where their inputs do.
        solve: Function of values by input name that returns the whole result; None if there is no result object.
        figures: Whether figures of the machine ("chip.hbm.bandwidth") are inputs too.
        vectorised: Whether `ask` accepts arrays.
        threads: Whether several threads may call `ask` at the same time.
        shows: Answers that a front end shows by default.
        shows_with: Answers that it shows instead where an input has a value, by input.
        bands: Names of the answers with the lower and upper end of the 90 % range, by answer.
        seconds: Approximate time of one evaluation [s].
        written: The closed form, which a spreadsheet can recompute.
        limits: Inputs that are limits on the answer. Near a limit the cost rises by a multiple, or no answer exists.
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
    shows: tuple[str, ...] = ()
    shows_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seconds: float = 1.0
    written: Callable[..., Any] | None = None
    limits: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """Inputs without a default."""
        return tuple(name for name, declared in self.inputs.items() if declared.required)

    def default_answers(self, input_names: Iterable[str]) -> tuple[str, ...]:
        """Return the answers that a front end shows by default.

        Args:
            input_names: Inputs that have a value.

        Returns:
            Names of answers.
        """
        names = set(input_names)
        return next((answers for name, answers in self.shows_with.items() if name in names), self.shows)

    def check_answer(self, name: str) -> None:
        """Raise an error for an answer that does not exist; a Python function has declared none.

        Args:
            name: Name of the answer.

        Raises:
            UnknownName: If the question has no such answer; the message names the nearest.
        """
        if self.answers and name not in self.answers:
            raise UnknownName(f"answer of {self.name}", name, self.answers, f"It has {', '.join(self.answers)}.")

    def read_result(self, result: Any) -> dict[str, Any]:
        """Return all answers of the question from its result.

        Args:
            result: Result of `solve`.

        Returns:
            Answers by name, in base units.
        """
        return read_answers(self.answers, result)


def question_of_result(
    name: str,
    meaning: str,
    *,
    inputs: Mapping[str, Input],
    solve: Callable[[Mapping[str, Any]], Any],
    answers: Mapping[str, Answer],
    **properties: Any,
) -> Question:
    """Return a question whose answers are read from the result of `solve`.

    Args:
        name: Name of the question.
        meaning: One line.
        inputs: Inputs by name.
        solve: Function of values by input name that returns the result.
        answers: Answers by name, with their sources; a front end shows all of them unless `shows` names some.
        **properties: Other fields of `Question`.

    Returns:
        The question.
    """
    # A partial function can go to another process, which a nested function cannot.
    ask = partial(_ask_result, solve, answers)
    properties = {"shows": tuple(answers), **properties}
    return Question(name=name, meaning=meaning, inputs=inputs, answers=answers, ask=ask, solve=solve, **properties)


def _ask_result(
    solve: Callable[[Mapping[str, Any]], Any],
    answers: Mapping[str, Answer],
    values: Mapping[str, Any],
    answer_names: frozenset[str],
) -> dict[str, Any]:
    return read_answers(answers, solve(values), answer_names)


def read_answers(answers: Mapping[str, Answer], result: Any, answer_names: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the answers of a question from its result.

    Args:
        answers: Answers with their sources, by name.
        result: Result object of the question.
        answer_names: Names of the answers; empty for all.

    Returns:
        Answers by name; None if a part on the path of an answer is missing.
    """
    values: dict[str, Any] = {}
    for name, answer in answers.items():
        if answer_names and name not in answer_names:
            continue
        if callable(answer.source):
            value = answer.source(result)
        else:
            value = result
            for part in (answer.source or name).split("."):
                if value is not None:
                    value = value[int(part)] if part.isdecimal() else getattr(value, part)
        # An array without axes is one number.
        values[name] = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    return values


def declare(kind: str, default: Any, meaning: str, **declaration: Any) -> Any:
    """Declare an input as a field of a dataclass.

    Args:
        kind: Kind of the input.
        default: Value if the user gives none; MISSING if the input is required.
        meaning: Noun phrase for the help.
        **declaration: Other fields of `Input`.

    Returns:
        A dataclass field.
    """
    required = default is MISSING
    default_value = None if required else default
    metadata = {"input": Input(kind=kind, default=default_value, required=required, meaning=meaning, **declaration)}
    return field(metadata=metadata) if required else field(default=default, metadata=metadata)


# A whole number, such as 8192 or 8k.
count = partial(declare, COUNT, minimum=1)
# A number; without a unit it is in the unit of the input.
number = partial(declare, NUMBER, bare=True)
# A name, a path, or an object in place of a name; `choices` lists the only legal values.
text = partial(declare, TEXT)
# A list of texts, empty by default.
texts = partial(declare, TEXTS, ())
# A truth value, False by default.
switch = partial(declare, SWITCH, False)
# The rent of a chip: a kind of rent, or USD per chip-hour.
rent = partial(
    declare, RENT, None, "rent: owned (cost of ownership), contract, ondemand, or USD per chip-hour such as 2.10", unit="USD/s",
    default_words="the newest known of contract and on demand", metavar="KIND",
)  # fmt: skip


@cache
def inputs_from(form: Any) -> Mapping[str, Input]:
    """Return the inputs that a dataclass declares; required inputs come first.

    Args:
        form: Dataclass whose fields are made by the functions of this module.

    Returns:
        Inputs by name.
    """
    declared = {f.name: f.metadata["input"] for f in fields(form) if "input" in f.metadata}
    # Keyword-only fields may be in any order; help and tables list the required inputs first.
    return dict(sorted(declared.items(), key=lambda pair: not pair[1].required))


def is_figure(name: str) -> bool:
    """Return whether a name is a figure of the machine, or an input of a design, which forms do not declare.

    Args:
        name: Name of an input.

    Returns:
        True for paths such as "chip.hbm.bandwidth", and for the power and the budget of a chip.
    """
    return "." in name or name in (POWER, WITHIN)


def bind(form: type[Form], values: Mapping[str, Any], question: str) -> Form:
    """Return the inputs of a question, read and checked.

    Args:
        form: Dataclass of the inputs.
        values: Values by input name: numbers, arrays, texts such as "8k", objects. Figures of the machine are left to
            `subject.read_machine`.
        question: Name of the question, for messages.

    Returns:
        An instance of `form`; an input with the value None takes its default.

    Raises:
        UnknownName: If an input does not exist, or a text is not one of its choices.
        InputError: If a required input is missing.
        RangeError: If a value is outside its bounds.
    """
    declared = inputs_from(form)  # type: ignore[arg-type]
    bound_values: dict[str, Any] = {}
    for name, value in values.items():
        if name in declared:
            # None counts as not given, so that a required input with the value None is missing too.
            if value is not None:
                bound_values[name] = read_value(name, value, declared[name])
        elif not is_figure(name):
            raise UnknownName(f"input of {question}", name, list(declared), f"Its inputs are {', '.join(declared)}.")
    missing = [name for name, spec in declared.items() if spec.required and name not in bound_values]
    if missing:
        needs = " and ".join(f"--{name.replace('_', '-')} ({declared[name].meaning})" for name in missing)
        raise InputError(f"{question} needs {needs}")
    return form(**bound_values)


def read_value(name: str, value: Any, declared: Input) -> Any:
    """Return the checked value of an input; a text is parsed first.

    Args:
        name: Name of the input, for messages.
        value: A number, an array, a text or an object.
        declared: Declaration of the input.

    Returns:
        The value in base units.

    >>> read_value("context", "8k", Input(kind=COUNT, minimum=1))
    8000
    """
    if declared.kind == COUNT:
        # A count may be written with a suffix (8k); bounds are checked on the number.
        number_read = read_count(value, name) if isinstance(value, str) else value
        low = 1 if declared.minimum is None else declared.minimum
        return whole_number(name, number_read, minimum=low, maximum=declared.maximum or LARGEST_COUNT)
    if declared.kind == NUMBER:
        return _read_number(name, value, declared)
    if declared.kind == SWITCH:
        if not isinstance(value, bool | np.bool_):
            raise RangeError(f"{name}: must be true or false, got {short_repr(value)}")
        return bool(value)
    if declared.kind == TEXTS:
        return (value,) if isinstance(value, str) else tuple(value)
    if declared.choices and value not in declared.choices:
        raise UnknownName(name, value, declared.choices, f"Known: {', '.join(declared.choices)}.")
    return value


def check_type(name: str, value: Any, declared: Input, *, arrays: bool = True) -> None:
    """Raise an error for a value whose type no input of this kind takes.

    A text may be an object of steptime in place of a name, a path or a date.

    Args:
        name: Name of the input, for messages.
        value: Value that the caller gives; None counts as not given.
        declared: Declaration of the input.
        arrays: Whether the question takes arrays.

    Raises:
        RangeError: If the type is wrong.

    >>> check_type("weights", 8, Input(kind=TEXT))
    Traceback (most recent call last):
    ...
    steptime.errors.RangeError: weights: must be a text, got 8
    """
    if declared.kind in (COUNT, NUMBER):
        takes_arrays = arrays and declared.broadcasts
        if not (_is_number(value) or (takes_arrays and _is_array(value))):
            expected = "a number, or an array of numbers" if takes_arrays else "one number"
            raise RangeError(f"{name}: must be {expected}, got {short_repr(value)}")
    # The fields of a config may stand in place of a model.
    elif declared.kind != SWITCH and not (name == "model" and isinstance(value, Mapping)):
        is_list = declared.kind == TEXTS and isinstance(value, list | tuple)
        for item in value if is_list else (value,):
            if not _is_text(item, numbers=declared.bare or declared.kind == RENT):
                expected = "a text or a list of texts" if declared.kind == TEXTS else "a text"
                raise RangeError(f"{name}: must be {expected}, got {short_repr(value)}")


def _is_number(value: Any) -> bool:
    """Whether a value is a number, a text of one, or None; texts are read later."""
    is_scalar = isinstance(value, np.ndarray) and value.ndim == 0
    return value is None or is_scalar or (isinstance(value, str | Real) and not isinstance(value, bool))


def _is_array(value: Any) -> bool:
    if not isinstance(value, list | tuple | np.ndarray):
        return False
    try:
        return np.asarray(value).size > 0
    except ValueError:
        return False


def _is_text(value: Any, *, numbers: bool) -> bool:
    if isinstance(value, Real):
        return numbers and not isinstance(value, bool)
    is_object = type(value).__module__.partition(".")[0] == "steptime"
    return value is None or is_object or isinstance(value, str | PathLike | date)


def number_in_unit(name: str, text: str, unit: str) -> float:
    """Return the number of a text; without a unit it is in the unit of the input.

    Args:
        name: Name of the input, for messages.
        text: A number such as "0.2", "200ms", "1,000", "20/s", or "50%" of an input without a unit.
        unit: Unit of the input, in base units.

    Returns:
        The number in base units.

    Raises:
        UnitError: If the text is no number, or its unit is another one.

    >>> number_in_unit("ttft", "200ms", "s"), number_in_unit("speed", "1,000", "tok/s"), number_in_unit("cached", "50%", "")
    (0.2, 1000.0, 0.5)
    >>> number_in_unit("rate", "20/s", "requests/s")
    20.0
    """
    # A unit that `parse` does not know, such as requests/s, may be written as it is, or from its slash on.
    plain = text.strip().removesuffix(unit) if unit else text.strip()
    plain = plain.removesuffix(unit[unit.index("/") :]) if "/" in unit else plain
    divisor = 100.0 if not unit and plain.endswith("%") else 1.0
    plain = plain.removesuffix("%") if divisor > 1 else plain
    try:
        return float(plain) / divisor
    except ValueError:
        pass
    if GROUPED.fullmatch(plain.strip()):
        return float(plain.replace(",", "")) / divisor
    try:
        return parse(text, unit)
    except (UnitError, KeyError) as problem:
        words = f" in {unit}" if unit else ""
        dimension = getattr(problem, "dimension", "")
        reason = f", which is a quantity in {dimension}" if dimension else ""
        point = f"; write {text.replace(',', '.')}" if DECIMAL_COMMA.fullmatch(text) else ""
        raise UnitError(f"{name}: must be a number{words}, got {short_repr(text)}{reason}{point}") from None


def _read_number(name: str, value: Any, declared: Input) -> Any:
    if isinstance(value, str):
        value = number_in_unit(name, value, declared.unit)
    if value == np.inf and declared.maximum is not None:
        raise RangeError(f"{name} is too large; at most {declared.maximum:g} {declared.unit}".rstrip())
    low = -np.inf if declared.minimum is None else declared.minimum
    high = np.inf if declared.maximum is None else declared.maximum
    return between(name, value, low, high, declared.unit)


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Return names separated by commas: the first `limit`, and the number of others.

    Args:
        names: Names in order.
        limit: Largest number of names to write.

    Returns:
        Text such as "a, b and 3 more".
    """
    several = list(names)
    suffix = f" and {len(several) - limit} more" if len(several) > limit else ""
    return ", ".join(several[:limit]) + suffix


# Prefixes of answers that are better if lower.
LOWER_IS_BETTER_PREFIXES: Final = (
    "usd", "time", "ttft", "tpot", "seconds", "memory_share", "joules", "kv_bytes", "end_to_end", "chips", "wait",
    "days", "step_time",
)  # fmt: skip


def lower_is_better(name: str) -> bool:
    """Return whether a lower value of an answer is better, as for times and costs.

    Args:
        name: Name of the answer.

    Returns:
        True for times, costs, memory and chips.

    >>> lower_is_better("usd_per_million_tokens"), lower_is_better("days"), lower_is_better("tokens_per_second_per_chip")
    (True, True, False)
    """
    return name.startswith(LOWER_IS_BETTER_PREFIXES) or "usd_per" in name
