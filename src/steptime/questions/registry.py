"""The questions that front ends and sweeps can ask, by name: steps, plans, simulations, ..., closed forms, Python functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final, get_type_hints

from steptime import blackboard
from steptime.errors import InputError, UnknownName, expect
from steptime.number_checks import Number
from steptime.questions.declaration import (
    COUNT,
    NUMBER,
    TEXT,
    Answer,
    Input,
    Question,
    check_type,
    is_figure,
    listed,
    read_value,
)
from steptime.questions.subject import settable_figures

# Units of the inputs of closed forms, by name. An input that is missing here is a count, a ratio or a share.
UNITS = {
    "bandwidth": "B/s", "capacity": "B", "kv_bytes_per_token": "B", "flops": "FLOP/s", "rent": "USD/s", "seconds": "s",
    "interval": "s", "hop": "s", "step": "s", "drain": "s", "rate": "tok/s", "served": "tokens",
    "rl_tokens": "tokens", "trained": "tokens",
}  # fmt: skip
# Units of the answers of closed forms, by name. An answer that is missing here is a count, a ratio or a share.
ANSWERED = {
    "recompute_cost": "USD", "hold_cost": "USD/s", "retrieve_cost": "USD", "break_even_hold": "s", "cost_per_token": "USD",
    "compute_seconds": "s", "weight_seconds": "s", "kv_read_seconds": "s", "step_seconds": "s", "drain_seconds": "s",
    "floor_of_domain": "s", "token_latency": "s", "worst_wait": "s", "mean_wait": "s", "weight_bytes_per_chip": "B",
    "kv_bytes_per_chip": "B", "kv_bytes_from_tier": "B", "kv_bytes_from_shape": "B", "exchange_bytes": "B",
    "throughput": "tok/s", "balanced_context": "tokens", "attention_equals_weights": "tokens", "sparse_reads": "tokens",
    "served_tokens": "tokens", "chinchilla_tokens": "tokens", "tokens_equal_to_rl": "tokens",
    "tokens_equal_to_serving": "tokens",
}  # fmt: skip
PREFIX = "blackboard."


def closed_form(name: str) -> Question:
    """Return a closed form of `steptime.blackboard` as a question.

    The parameters of the function are the inputs of the question.

    Args:
        name: Name of the function, such as "drain_seconds".

    Returns:
        A question with one answer, which takes arrays.
    """
    function = getattr(blackboard, name)
    hints = get_type_hints(function)
    # Only parameters that the function declares as `Number` accept arrays.
    inputs = {
        parameter.name: Input(
            meaning=parameter.name.replace("_", " "),
            unit=UNITS.get(parameter.name, ""),
            kind=COUNT if hints[parameter.name] is int else NUMBER,
            broadcasts=hints[parameter.name] == Number,
            required=parameter.default is parameter.empty,
        )
        for parameter in inspect.signature(function).parameters.values()
    }
    answer = Answer(meaning=_first_line(function), unit=ANSWERED.get(name, ""))
    return Question(
        name=f"{PREFIX}{name}",
        meaning=answer.meaning,
        inputs=inputs,
        answers={name: answer},
        ask=partial(_call_function, function),
        vectorised=True,
        threads=True,
        shows=(name,),
        seconds=1e-8,
        written=function,
    )


def _first_line(function: Callable[..., Any]) -> str:
    line = (inspect.getdoc(function) or function.__name__).splitlines()[0].partition(":")[0].strip().rstrip(".")
    return line.removeprefix("Return the ").removeprefix("Return ")


def of_function(function: Callable[..., Any], *, vectorised: bool = False) -> Question:
    """Return any Python function as a question.

    The function takes keywords, and returns a number, or a mapping of numbers and texts. The names of its answers are not known
    before the first call; until then a sweep keeps all answers.

    Args:
        function: Function with named parameters.
        vectorised: Whether the function takes arrays that broadcast.

    Returns:
        A question whose inputs are the parameters of the function.

    Raises:
        InputError: If the function has parameters that cannot be given by keyword.
    """
    expect("a function to sweep", function, Callable, 'a name such as "step", or a function')  # type: ignore[arg-type]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise InputError(f"function: {function!r} has no signature; wrap it in a function with named parameters") from None

    # A sweep gives values by name, which positional-only parameters do not accept.
    positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    if positional:
        raise InputError(f"function: {positional[0]} of {_name(function)} is positional-only; a sweep gives values by name")
    keywords = [
        parameter for parameter in parameters if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    inputs = {
        parameter.name: Input(
            meaning=parameter.name, kind=TEXT, broadcasts=vectorised, required=parameter.default is parameter.empty
        )
        for parameter in keywords
    }
    return Question(
        name=_name(function),
        meaning=_first_line(function),
        inputs=inputs,
        answers={},
        ask=partial(_call_function, function),
        vectorised=vectorised,
        seconds=0.0,
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _call_function(function: Callable[..., Any], values: Mapping[str, Any], answer_names: frozenset[str]) -> Mapping[str, Any]:  # noqa: ARG001 - all questions have one signature
    output = function(**values)
    if isinstance(output, Mapping):
        return output
    # A result object of steptime becomes its scalar fields; any other value is one answer with the function's name.
    to_dict = getattr(output, "to_dict", None)
    if to_dict is not None:
        return {name: value for name, value in to_dict().items() if isinstance(value, str | int | float) and name != "schema"}
    return {_name(function): output}


# Module and name of each question. Another package adds its questions to this table.
HOMES: Final = {
    "step": "questions.step_question STEP",
    "plan": "questions.plan_question PLAN",
    "simulate": "questions.simulate_question SIMULATE",
    "train": "questions.train_question TRAIN",
    "budget": "questions.economics_questions BUDGET",
    "laws": "questions.economics_questions LOSS",
    "rl": "questions.economics_questions RL",
    "prices": "questions.economics_questions PRICES",
    "reversible": "describe.kv_tradeoff REVERSIBLE",
    "roofline": "lecture.pair_roofline ROOFLINE",
    "context": "sweeps.context_limit CONTEXT",
    "compare": "sweeps.compare_question COMPARE",
}
# Functions of steptime that stand for a question, by module and name.
MEANT: Final = {
    "steptime.physics.step.decode_step": "step",
    "steptime.physics.step.mixed_step": "step",
    "steptime.planning.planner.plan": "plan",
    "steptime.simulation.simulator.simulate": "simulate",
}
# Argument names of the Python functions that differ from the input names of the questions.
SAME: Final = {"input_tokens": "input", "output_tokens": "output", "cached_share": "cached", "modes": "mode"}


def names() -> list[str]:
    """Return the names of all questions.

    Returns:
        Names of the questions, then of the closed forms with their prefix.
    """
    # `blackboard.__all__` also has constants, which are not questions.
    forms = [name for name in blackboard.__all__ if callable(getattr(blackboard, name))]
    return [*HOMES, *(f"{PREFIX}{name}" for name in forms)]


def find_question(source: Question | str | Callable[..., Any], *, vectorised: bool = False) -> Question:
    """Return the question for a name or a function.

    Args:
        source: A question, the name of one, a function of steptime that stands for one (`st.plan`), or any Python function.
        vectorised: Whether a Python function takes arrays.

    Returns:
        The question.
    """
    if isinstance(source, Question):
        return source
    if isinstance(source, str):
        return _question_by_name(source)
    # Functions of steptime have a declaration with units and bounds; other functions declare only their parameter names.
    place = f"{getattr(source, '__module__', '')}.{getattr(source, '__name__', '')}"
    if place in MEANT:
        return _question_by_name(MEANT[place])
    if place.startswith("steptime.blackboard.") and getattr(blackboard, source.__name__, None) is source:
        return closed_form(source.__name__)
    return of_function(source, vectorised=vectorised)


def _question_by_name(name: str) -> Question:
    if name in HOMES:
        module, _, attribute = HOMES[name].partition(" ")
        question: Question = getattr(import_module(f"steptime.{module}"), attribute)
        return question
    form = name.removeprefix(PREFIX)
    if form in blackboard.__all__ and callable(getattr(blackboard, form)):
        return closed_form(form)
    raise UnknownName("question", name, names(), f"Known: {', '.join(HOMES)}, and {PREFIX}NAME of the closed forms.")


def find_input(question: Question, name: str, values: Mapping[str, Any]) -> Input:
    """Return an input of a question by its name.

    Args:
        question: The question.
        name: Name of the input, or path of a figure of the machine.
        values: Inputs known so far. A system among them has figures that are inputs too.

    Returns:
        The declaration of the input.

    Raises:
        UnknownName: If the input does not exist; the message names the nearest.
        InputError: If the name is a figure of a machine, and no system is given.
    """
    if name in question.inputs:
        return question.inputs[name]
    figures: dict[str, Input] = {}
    if question.figures and values.get("system") is not None:
        figures = settable_figures(values)
        if name in figures:
            return figures[name]
    elif question.figures and ("." in name or name == "power"):
        raise InputError(f"{name}: is a figure of a machine, and no system is given; give system")
    input_names = [*question.inputs, *figures]
    figures_hint = ", and the figures of the system (steptime systems NAME lists them)" if question.figures else ""
    raise UnknownName(f"input of {question.name}", name, input_names, f"It takes {listed(question.inputs, 40)}{figures_hint}.")


def plain_name(question: Question, name: str) -> str:
    """Return the name of an input as the question declares it.

    The command line writes --max-num-seqs, Python writes input_tokens; the inputs are max_num_seqs and input.

    Args:
        question: The question.
        name: Name as the user wrote it.

    Returns:
        The declared name, or the stripped name if the question has no such input.

    Raises:
        InputError: If the name is not a text.
    """
    if not isinstance(name, str):
        raise InputError(f"input: the name must be a text such as batch, got {name!r}")
    name = name.strip().lstrip("-")
    under = name.replace("-", "_")
    if question.name in HOMES and under in SAME and under not in question.inputs:
        return SAME[under]
    return under if "." in name or under in question.inputs else name


def ask(question: str, **values: Any) -> Mapping[str, Any]:
    """Return the answers of a question, as every front end gives them.

    Args:
        question: Name, such as "step", "plan", "train" or "budget".
        **values: Inputs by name, as on the command line: numbers in base units or texts such as "8k"; figures of the machine as
            **{"chip.hbm.bandwidth": 8e12}.

    Returns:
        Answers by name, in base units; an unknown value is NaN or None.

    Raises:
        InputError: If an input is unknown, outside its bounds, or missing.

    >>> answers = ask("step", model="llama-3.1-8b", system="hgx-h100", batch=64, engine="ideal")
    >>> round(float(answers["time"]) * 1e3, 2), bool(answers["fits"])
    (14.74, True)
    """
    # A wrong name is reported before any work, with the nearest name.
    declaration = find_question(question)
    missing = [name for name in declaration.needs if values.get(name) is None]
    for name, value in values.items():
        declared = find_input(declaration, name, values)
        check_type(name, value, declared, arrays=declaration.vectorised)
        # Figures of the machine have other units.
        if isinstance(value, str) and declared.kind in (COUNT, NUMBER) and not is_figure(name):
            values[name] = read_value(name, value, declared)
    if missing:
        raise InputError(f"{question} needs {listed(missing)}")

    # Front ends choose the smallest layout that holds the model if the user gives none.
    if question == "step":
        from steptime.questions.step_question import with_layout

        values = with_layout(declaration, values)
    return declaration.ask(values, frozenset())
