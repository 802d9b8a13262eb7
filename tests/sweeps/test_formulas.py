"""Formulas of a spreadsheet give what the closed forms give."""

from __future__ import annotations

import inspect
import math
import re
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from steptime import blackboard
from steptime.questions.registry import find_question, names
from steptime.sweeps.export import Cell, Untraceable, formula
from tests.conftest import every, examples

FORMS = [name.removeprefix("blackboard.") for name in names() if name.startswith("blackboard.")]
LIVE = [name for name in FORMS if name not in ("expected_maximum", "nodes_hit", "tokens_per_pass")]
CHOOSES = {"experts_touched": "evenness"}  # parameters by which a function chooses its formula: live at their default alone
FUNCTIONS = {
    "IF": lambda test, then, other: then if test else other,
    "MAX": max,
    "MIN": min,
    "SQRT": math.sqrt,
    "EXP": math.exp,
    "LN": math.log,
    "FLOOR": lambda x, _: math.floor(x),
    "CEILING": lambda x, _: math.ceil(x),
    "ABS": abs,
    "NA": lambda: math.inf,
    "AND": lambda a, b: a and b,
}


def worked_out(text, cells):
    """Work a formula out, as a spreadsheet does."""
    python = re.sub(r"\^", "**", re.sub(r"(?<![<>=])=(?!=)", "==", text.removeprefix("=").replace("<>", "!=")))
    return eval(python, {"__builtins__": {}}, FUNCTIONS | cells)


def whole(name):
    hints = get_type_hints(getattr(blackboard, name))
    return {key for key in inspect.signature(getattr(blackboard, name)).parameters if hints[key] is int}


@pytest.mark.parametrize("name", every(3, LIVE))
@examples(20)
@given(data=some.data())
def test_a_formula_is_its_closed_form(name, data):
    function, given, cells = getattr(blackboard, name), {}, {}
    for i, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.name == CHOOSES.get(name):
            continue
        if parameter.name in whole(name):
            given[parameter.name] = (
                data.draw(some.integers(8, 16)) if parameter.name == "experts" else data.draw(some.integers(1, 7))
            )
            continue
        value = data.draw(some.floats(1.01, 900.0))
        cells[f"{'ABCDEFGHIJ'[i]}2"], given[parameter.name] = value, value
    text = formula(
        function, {key: Cell(f"{'ABCDEFGHIJ'[i]}2") if key not in whole(name) else given[key] for i, key in enumerate(given)}
    )
    try:
        expected = float(function(**given))
    except ZeroDivisionError:
        assume(False)
    assert worked_out(text, cells) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_what_no_formula_can_is_said():
    given = {name: Cell(f"{at}2") for at, name in zip("ABCD", ("experts", "active", "tokens", "evenness"), strict=True)}
    with pytest.raises(Untraceable):
        formula(blackboard.experts_touched, given)
    with pytest.raises(Untraceable):
        formula(lambda x: 1 if x > 2 else 0, {"x": Cell("A2")})
    with pytest.raises(Untraceable):
        formula(np.cumsum, {"a": Cell("A2")})


def test_every_closed_form_is_a_question_and_its_inputs_have_units():
    for name in FORMS:
        question = find_question(f"blackboard.{name}")
        assert question.needs
        assert question.written is getattr(blackboard, name)
    assert find_question("blackboard.cost_per_token").inputs["rent"].unit == "USD/s"
    assert find_question("blackboard.drain_seconds").answers["drain_seconds"].unit == "s"
