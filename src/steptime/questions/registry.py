"""Which questions can be asked many times: steps, plans, simulations, the closed forms, and functions of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from steptime import blackboard
from steptime.errors import InputError, UnknownName
from steptime.questions.closed_forms import PREFIX, closed_form, of_function
from steptime.questions.declaration import Input, Question, listed
from steptime.questions.subject import settable_figures

HOMES: Final = {
    "step": "questions.step_question STEP",
    "plan": "questions.plan_question PLAN",
    "simulate": "questions.simulate_question SIMULATE",
    "train": "questions.train_question TRAIN",
    "budget": "questions.budget_question BUDGET",
    "laws": "questions.laws_question LOSS",
    "rl": "questions.rl_question RL",
    "prices": "questions.prices_question PRICES",
    "reversible": "describe.reversible_question REVERSIBLE",
    "roofline": "lecture.roofline_question ROOFLINE",
    "context": "sweeps.context_question CONTEXT",
}
"""Module and name of each question; what is to be asked elsewhere registers itself here."""
MEANT: Final = {
    "steptime.physics.step.decode_step": "step",
    "steptime.physics.step.mixed_step": "step",
    "steptime.planning.planner.plan": "plan",
    "steptime.simulation.simulator.simulate": "simulate",
}  # functions of steptime that stand for a question
SAME: Final = {"input_tokens": "input", "output_tokens": "output", "cached_share": "cached", "modes": "mode"}


def names() -> list[str]:
    """Return the names of all questions."""
    forms = [name for name in blackboard.__all__ if callable(getattr(blackboard, name))]
    return [*HOMES, *(f"{PREFIX}{name}" for name in forms)]


def find_question(source: Question | str | Callable[..., Any], *, vectorised: bool = False) -> Question:
    """Return the question of a name, of a function of steptime that stands for one, or of a function of one's own."""
    if isinstance(source, Question):
        return source
    if isinstance(source, str):
        return _question_by_name(source)
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
    """Return an input of a question by its name; raise UnknownName with the nearest where there is none.

    values: what is known already, the system among it where one is, which has figures of its own.
    """
    if name in question.inputs:
        return question.inputs[name]
    figures: dict[str, Input] = {}
    if question.figures and values.get("system") is not None:
        figures = settable_figures(values)
        if name in figures:
            return figures[name]
    elif question.figures and ("." in name or name == "power"):
        raise InputError(f"{name} looks like a figure of a machine, and no system is named that has it")
    input_names = [*question.inputs, *figures]
    figures_hint = ", and the figures of the system (steptime systems NAME lists them)" if question.figures else ""
    raise UnknownName(f"input of {question.name}", name, input_names, f"It takes {listed(question.inputs, 40)}{figures_hint}.")


def plain_name(question: Question, name: str) -> str:
    """Return an input's name as questions have it: --max-sequences and input_tokens are max_sequences and input."""
    if not isinstance(name, str):
        raise InputError(f"an input has a name, such as batch, not {name!r}")
    name = name.strip().lstrip("-")
    under = name.replace("-", "_")
    if question.name in HOMES and under in SAME and under not in question.inputs:
        return SAME[under]
    return under if "." in name or under in question.inputs else name


def ask(question: str, **values: Any) -> Mapping[str, Any]:
    """Return the answers of a question, as every front end gives them.

    Args:
        question: name, such as "step", "plan", "train" or "budget".
        **values: inputs by name, as the command line has them: numbers in base units or texts such as "8k"; figures of the
            machine as **{"chip.hbm.bandwidth": 8e12}.

    Returns:
        Answers by name, in base units; what is not known is NaN or None.

    Raises:
        InputError: if an input is unknown, outside its bounds, or missing.

    >>> answers = ask("step", model="llama-3.1-8b", system="hgx-h100", batch=64, engine="ideal")
    >>> round(float(answers["time"]) * 1e3, 2), bool(answers["fits"])
    (14.74, True)
    """
    declaration = find_question(question)
    unknown = [name for name in values if name not in declaration.inputs and "." not in name and name != "power"]
    if unknown:
        raise UnknownName(
            f"input of {question}", unknown[0], list(declaration.inputs), f"It takes {listed(declaration.inputs, 40)}."
        )
    missing = [name for name in declaration.needs if values.get(name) is None]
    if missing:
        raise InputError(f"{question} needs {listed(missing)}")
    if question == "step":
        from steptime.questions.step_question import with_layout

        values = with_layout(declaration, values)
    return declaration.ask(values, frozenset())
