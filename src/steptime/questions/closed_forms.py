"""The closed forms of the lecture as questions, and any Python function as a question."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

from steptime import blackboard
from steptime.errors import InputError, expect
from steptime.number_checks import Number
from steptime.questions.declaration import COUNT, TEXT, Answer, Input, Question

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
    inputs, needs = {}, []
    for parameter in inspect.signature(function).parameters.values():
        # Only parameters that the function declares as `Number` accept arrays.
        every = hints[parameter.name] == Number
        unit = UNITS.get(parameter.name, "")
        inputs[parameter.name] = Input(
            meaning=parameter.name.replace("_", " "),
            unit=unit,
            kind=COUNT if hints[parameter.name] is int else "number",
            broadcasts=every,
        )
        if parameter.default is parameter.empty:
            needs.append(parameter.name)
    answer = Answer(meaning=_first_line(function), unit=ANSWERED.get(name, ""))
    return Question(
        name=f"{PREFIX}{name}",
        meaning=answer.meaning,
        inputs=inputs,
        answers={name: answer},
        ask=partial(_apply, function, name),
        vectorised=True,
        threads=True,
        needs=tuple(needs),
        shows=(name,),
        seconds=1e-8,
        written=function,
    )


def _apply(function: Callable[..., Any], name: str, values: Mapping[str, Any], answer_names: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - all questions have one signature
    return {name: function(**values)}


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
    return Question(
        name=_name(function),
        meaning=_first_line(function),
        inputs={parameter.name: Input(meaning=parameter.name, kind=TEXT, broadcasts=vectorised) for parameter in keywords},
        answers={},
        ask=partial(_call_function, function),
        vectorised=vectorised,
        needs=tuple(parameter.name for parameter in keywords if parameter.default is parameter.empty),
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
