"""An input that is declared once is found by every front end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import signature
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import typer

import steptime as st
from steptime.cli.options import grouped
from steptime.errors import InputError, RangeError, UnitError, UnknownName
from steptime.questions.declaration import (
    Answer,
    Input,
    bind,
    count,
    inputs_from,
    number_in_unit,
    question_of_result,
    read_answers,
    read_value,
    text,
)
from steptime.questions.plan_question import read_rate
from steptime.questions.step_question import STEP, StepInputs
from steptime.web.app import declaration
from steptime.workload.workload import Workload
from tests.conftest import each


@dataclass(frozen=True, kw_only=True)
class WiderInputs(StepInputs):
    """A step with one more input."""

    padding: Any = count(0, "tokens of padding", unit="tokens", minimum=0, maximum=100, broadcasts=True, group="The pass")


def ask(values, wanted):
    values = dict(values)
    padding = values.pop("padding", 0)
    return STEP.ask({**values, "context": values["context"] + padding}, wanted)


WIDER = replace(STEP, inputs={**STEP.inputs, **inputs_from(WiderInputs)}, ask=ask)


def test_added_input_is_an_option_with_its_help_and_default():
    @grouped
    def step(ctx: typer.Context, inputs: WiderInputs) -> None:
        """Time a step."""

    option = signature(step).parameters["padding"]
    declared = next(one for one in get_args(option.annotation) if isinstance(one, typer.models.OptionInfo))
    assert "--padding" in (declared.default, *declared.param_decls)
    assert declared.help == r"Tokens of padding. [dim]\[default: 0][/dim]"
    assert declared.show_default is False
    assert declared.rich_help_panel == "The pass"


def test_added_input_is_an_axis_of_a_sweep():
    fixed = {"model": "llama-3.1-8b", "system": "hgx-h100", "context": 1000, "engine": "ideal"}
    times = st.sweep(WIDER, {"padding": [0, 24]}, **fixed).answers["time"].values
    direct = [st.ask("step", **{**fixed, "context": context})["time"] for context in (1000, 1024)]
    assert times.tolist() == pytest.approx([float(one) for one in direct], rel=1e-12)


def test_added_input_is_in_the_declaration_that_http_serves():
    assert declaration(WIDER)["inputs"]["padding"]["unit"] == "tokens"


def test_bind_value_beyond_its_bounds_is_refused():
    with pytest.raises(RangeError, match="padding must be at most 100"):
        bind(WiderInputs, {"model": "a", "system": "b", "padding": 101}, "step")


def test_bind_misspelt_input_names_the_nearest():
    with pytest.raises(UnknownName) as caught:
        bind(WiderInputs, {"model": "a", "system": "b", "paddin": 1}, "step")
    assert caught.value.nearest[0] == "padding"


@each("words, value", [("8k", 8000), (8192, 8192), ("1e3", 1000)])
def test_read_value_count_takes_numbers_and_suffixes(words, value):
    assert read_value("context", words, Input(kind="count", minimum=1)) == value


def test_read_value_word_that_is_no_choice_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Form:
        phase: str = text("decode", "phase", choices=("decode", "prefill"))

    with pytest.raises(UnknownName):
        bind(Form, {"phase": "decod"}, "step")


def test_question_of_result_reads_wanted_answers_only():
    @dataclass(frozen=True, kw_only=True)
    class Form:
        size: Any = count(1, "size")

    question = question_of_result(
        "area", "an area", inputs=inputs_from(Form), solve=lambda values: values["size"],
        answers={"area": Answer(meaning="area", source=lambda size: size**2), "side": Answer(meaning="side", source="real")},
    )  # fmt: skip
    assert question.ask({"size": 3}, frozenset({"area"})) == {"area": 9}
    assert question.ask({"size": 3}, frozenset()) == question.read_result(3) == {"area": 9, "side": 3}
    assert question.shows == ("area", "side")


def test_read_answers_path_through_nothing_is_none():
    answers = {"days": Answer(source="run.days"), "first": Answer(source="losses.0.loss")}
    result = SimpleNamespace(run=None, losses=(SimpleNamespace(loss=2.5),))
    assert read_answers(answers, result) == {"days": None, "first": 2.5}


def test_sizes_may_be_texts_where_the_layout_is_chosen():
    fixed = {"model": "llama-3.1-8b", "system": "hgx-h100", "engine": "ideal"}
    assert st.ask("step", **fixed, context="8k", batch="64")["time"] == st.ask("step", **fixed, context=8000, batch=64)["time"]


ON = {"model": "llama-3.1-8b", "system": "hgx-h100"}


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("step", {"batch": "16"}),
        ("step", {"context": "8k"}),
        ("step", {"phase": "prefill", "tokens": "2k"}),
        ("simulate", {"rate": 2, "requests": 20, "input": "1k", "output": "10"}),
    ],
)
def test_ask_size_as_a_text_is_that_number(name, inputs):
    numbers = {
        key: st.units.count(value, key) if isinstance(value, str) and key != "phase" else value for key, value in inputs.items()
    }
    as_texts, as_numbers = (
        {key: str(value) for key, value in st.ask(name, **ON, **asked).items()} for asked in (inputs, numbers)
    )
    assert as_texts == as_numbers


WRONG = (b"x", {"a": 1}, 1j, True, object(), ["a"], np.arange(3), 5)


@each("name", ["weights", "software", "catalog", "within", "mode", "arch.by", "draft_model", "evidence"])
def test_ask_text_of_another_type_is_refused(name):
    for value in WRONG:
        with pytest.raises(InputError, match=rf"{name}\b"):
            st.ask("plan", **ON, speed=40, **{name: value})


@each("value", [5, [5], [["a"]], {"a": "b"}, True])
def test_ask_list_of_texts_of_another_type_is_refused(value):
    with pytest.raises(RangeError, match="stage"):
        st.ask("train", **ON, chips=8, batch=64, stage=value)


@each("name, value", [("chips", [1, 2]), ("speed", np.array([30.0, 40.0])), ("spare", [])])
def test_ask_array_in_place_of_one_number_is_refused(name, value):
    with pytest.raises(RangeError, match=f"{name}: must be one number"):
        st.ask("plan", **{**ON, "speed": 40, name: value})


NUMBERS = [("step", "arch.ffn"), ("step", "batch"), ("rl", "chips"), ("plan", "imbalance")]


@each("value", [{}, 1j, b"1", object(), True])
@each("question, name", NUMBERS)
def test_ask_number_of_another_type_is_refused(question, name, value):
    with pytest.raises(InputError, match=name):
        st.ask(question, **ON, **{name: value})


def test_ask_array_of_a_question_of_one_point_is_refused():
    with pytest.raises(RangeError, match="tp: must be one number"):
        st.ask("rl", **ON, tp=[1, 2])


def test_ask_imbalance_as_a_text_is_that_number():
    asked = {"model": "qwen3-30b-a3b", "system": "hgx-h100", "tp": 2, "ep": 2}
    assert st.ask("step", **asked, imbalance="1.5")["time"] == st.ask("step", **asked, imbalance=1.5)["time"]


@pytest.mark.parametrize("value", [[], [[1], [2, 3]]])
def test_ask_array_without_a_shape_or_values_is_refused(value):
    with pytest.raises(RangeError, match="batch: must be a number, or an array"):
        st.ask("step", **ON, batch=value)
    assert st.ask("step", **ON, batch=[1, 2])["time"].shape == (2,)


@pytest.mark.thorough
def test_ask_text_that_may_be_a_number_takes_both():
    asked = {**ON, "chips": 1, "tpot": 0.02, "mode": "aggregated", "rate": 1.0}
    numbers, words = (dict(st.ask("plan", **asked, carbon=value)) for value in (300, "300"))
    assert numbers == pytest.approx(words, nan_ok=True)


@pytest.mark.parametrize(("rate", "tokens_per_day"), [(1.001e6, None), (None, 1.001e6 * 86_400 * 2)])
def test_rates_end_at_a_million_requests_per_second(rate, tokens_per_day):
    work = Workload(input_tokens=1, output_tokens=1)
    with pytest.raises(RangeError, match="at most 1,000,000 requests/s"):
        read_rate(rate, tokens_per_day, work)
    below = tokens_per_day and tokens_per_day / 1.002
    assert read_rate(rate and rate / 1.002, below, work) == pytest.approx(0.999e6, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("200ms", "s", 0.2),
        ("2 min", "s", 120.0),
        ("40tok/s", "tok/s", 40.0),
        ("1,000", "tok/s", 1000.0),
        ("20/s", "requests/s", 20.0),
        ("20 requests/s", "requests/s", 20.0),
        ("50%", "", 0.5),
        ("2GB/s", "B/s", 2e9),
        ("1e3", "", 1000.0),
    ],
)
def test_number_with_its_unit_is_in_base_units(text, unit, value):
    assert number_in_unit("limit", text, unit) == pytest.approx(value)


@pytest.mark.parametrize(("text", "unit"), [("2kg", "s"), ("50%", "s"), ("0,5", "tok/s"), ("fast", "tok/s"), ("", "s")])
def test_text_that_is_no_number_of_the_unit_is_refused(text, unit):
    with pytest.raises(UnitError, match="limit: must be a number"):
        number_in_unit("limit", text, unit)
