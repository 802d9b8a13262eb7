"""The question `step`: rates are tokens over its time, and its inputs are checked."""

import pytest

from steptime.errors import InputError
from steptime.physics.layout import Layout
from steptime.questions.step_question import STEP, StepInputs, pass_sizes
from tests.conftest import each


def card_of(phase="decode", engine="vllm", **values):
    return STEP.solve({"model": "llama-3.1-8b", "system": "hgx-h100", "phase": phase, "engine": engine, **values})


def test_pass_sizes_phase_without_values_has_defaults():
    decode = pass_sizes(StepInputs(model="", system=""), Layout())
    assert decode == {"batch": 1, "context": 4096, "query": 1, "prompts": 0, "tokens": 0, "prefix": 0}
    prefill = pass_sizes(StepInputs(model="", system="", phase="prefill"), Layout(dp=4))
    assert prefill == {"batch": 0, "context": 0, "query": 1, "prompts": 4, "tokens": 8192, "prefix": 0}
    mixed = pass_sizes(StepInputs(model="", system="", phase="mixed", batch=7, prompts=2, prefix=5), Layout())
    assert mixed == {"batch": 7, "context": 4096, "query": 1, "prompts": 2, "tokens": 8192, "prefix": 5}


def test_step_mixed_counts_the_caches_of_both_phases():
    values = {"model": "llama-3.1-70b", "system": "hgx-h100", "phase": "mixed", "batch": 64, "context": 8192, "tp": 8}
    few, many = (STEP.solve({**values, "prompts": prompts, "tokens": 8192}).memory for prompts in (1, 64))
    assert float(many.cache) == pytest.approx(float(few.cache) * 128 / 65)
    assert few.fits
    assert not many.fits


def test_rates_are_tokens_over_the_time_of_the_step():
    card = card_of(batch=64, context=4096, query=3, tp=2)
    rates, seconds = card.rates(), float(card.total)
    assert list(rates) == ["tokens_per_second_per_user", "output_tokens_per_second_per_chip"]
    assert rates["tokens_per_second_per_user"][0] == pytest.approx(3 / seconds)
    value, ends = rates["output_tokens_per_second_per_chip"]
    assert value == pytest.approx(64 * 3 / 2 / seconds)
    assert ends == pytest.approx((64 * 3 / 2 / card.range[1], 64 * 3 / 2 / card.range[0]))
    prompts = card_of("prefill", prompts=4, tokens=1000, prefix=200).rates()
    assert list(prompts) == ["prompt_tokens_per_second_per_chip"]
    of_prompts = card_of("prefill", prompts=4, tokens=1000, prefix=200)
    assert prompts["prompt_tokens_per_second_per_chip"][0] == pytest.approx(4000 / float(of_prompts.total))
    assert set(card_of("mixed", batch=8).rates()) == {*rates, *prompts}
    assert card_of(engine="ideal").rates()["tokens_per_second_per_user"][1] is None


def test_the_row_has_what_was_asked_and_what_came_of_it():
    card = card_of(batch=2)
    row = {name: values[0] for name, values in card.columns().items()}
    assert (row["batch"], row["phase"], row["engine"], row["layout"]) == (2, "decode", "vllm", "one chip")
    assert row["low_s"] < row["total_s"] < row["high_s"]
    assert row["tokens_per_s_per_user"] == pytest.approx(1 / row["total_s"])
    assert row["memory_bytes"] == float(card.memory.used)
    assert row["fits"]
    assert not card_of(batch=1000, context=8192).columns()["fits"][0]


def test_a_context_beyond_the_models_is_noted():
    assert [note for note in card_of(context=131_072).notes if "exceeds" in note] == []
    assert "exceeds the 131,072 of the model" in card_of(context=131_073).notes[0]
    assert "140,000 tokens exceeds" in card_of("prefill", tokens=10_000, prefix=130_000).notes[0]


@each(
    "phase, given, says",
    [
        ("sleep", {}, "Known: decode, prefill, mixed"),
        ("decode", {"batch": 0}, "batch must be at least 1"),
        ("decode", {"query": 0}, "query must be at least 1"),
        ("decode", {"query": 100, "context": 10}, "query: .*context of 10"),
        ("prefill", {"prompts": 0}, "prompts must be at least 1"),
        ("prefill", {"prefix": -1}, "prefix must be at least 0"),
        ("decode", {"batch": 4, "microbatches": 5}, "a batch of 4 cannot be cut into 5 micro-batches"),
    ],
)
def test_what_makes_no_sense_is_refused(phase, given, says):
    with pytest.raises(InputError, match=says):
        card_of(phase, **given)
