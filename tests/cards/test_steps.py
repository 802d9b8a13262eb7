"""The card of a step: rates are tokens over its time, and what is asked is checked."""

import pytest

import steptime as st
from steptime.cards.steps import as_row, step_card
from steptime.errors import InputError
from steptime.physics.engine import load_engine


@pytest.fixture(scope="module")
def card_of():
    model, system, engine = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), load_engine("vllm")

    def make(**given):
        layout = st.Layout(**{name: given.pop(name) for name in ("tp", "pp", "dp", "microbatches") if name in given})
        return step_card(model, system, layout=layout, engine=given.pop("engine", engine), **given)

    return make


def test_rates_are_tokens_over_the_time_of_the_step(card_of):
    card = card_of(batch=64, context=4096, query=3, tp=2)
    seconds = float(card.step.total)
    assert card.rates["tokens_per_second_per_user"].value == pytest.approx(3 / seconds)
    chip = card.rates["output_tokens_per_second_per_chip"]
    assert chip.value == pytest.approx(64 * 3 / 2 / seconds)
    assert chip.range == pytest.approx((64 * 3 / 2 / card.range[1], 64 * 3 / 2 / card.range[0]))
    prompts = card_of(phase="prefill", prompts=4, tokens=1000, prefix=200)
    assert list(prompts.rates) == ["prompt_tokens_per_second_per_chip"]
    assert prompts.rates["prompt_tokens_per_second_per_chip"].value == pytest.approx(4000 / float(prompts.step.total))
    assert set(card_of(phase="mixed", batch=8).rates) == {*card.rates, *prompts.rates}


def test_memory_is_that_of_the_batch_or_of_the_prompts_and_says_what_is_too_much(card_of):
    small, large = card_of(batch=1), card_of(batch=1000, context=8192)
    assert small.fits
    assert small.excess == 0.0
    assert not large.fits
    assert large.excess == pytest.approx(float(large.memory.used - large.memory.capacity))
    each = float(small.memory.cache) / 4096
    assert float(large.memory.cache) == pytest.approx(1000 * 8192 * each)
    assert float(card_of(phase="prefill", prompts=3, tokens=100, prefix=28).memory.cache) == pytest.approx(3 * 128 * each)


def test_the_row_holds_what_was_asked_and_what_came_of_it(card_of):
    row = as_row(card_of(batch=2))
    assert (row["batch"], row["phase"], row["engine"]) == (2, "decode", "vllm")
    assert row["ideal"]["total"] < row["total"]
    assert row["range"][0] < row["total"] < row["range"][1]
    ideal = as_row(card_of(batch=2, engine=load_engine("ideal")))
    assert (ideal["range"], ideal["ideal"]) == (None, None)


def test_a_context_beyond_the_models_is_noted(card_of):
    assert card_of(context=131_072).notes == ()
    assert "exceeds the 131,072 of the model" in card_of(context=131_073).notes[0]
    assert "140,000 tokens exceeds" in card_of(phase="prefill", tokens=10_000, prefix=130_000).notes[0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"phase": "sleep"}, "Known: decode, prefill, mixed"),
        ({"batch": 0}, "--batch must be at least 1"),
        ({"query": 0}, "--query must be at least 1"),
        ({"query": 100, "context": 10}, "--query 100 is more than the --context of 10"),
        ({"phase": "prefill", "prompts": 0}, "--prompts must be at least 1"),
        ({"phase": "prefill", "prefix": -1}, "--prefix must be at least 0"),
        ({"batch": 4, "microbatches": 5}, "a batch of 4 cannot be cut into 5 micro-batches"),
    ],
)
def test_what_makes_no_sense_is_refused(card_of, given, says):
    with pytest.raises(InputError, match=says):
        card_of(**given)
