"""The card of a step: rates are tokens over its time, and what is asked is checked."""

import pytest

import steptime as st
from steptime.describe.step_summary import asked_of, step_card
from steptime.errors import InputError


def card_of(phase="decode", engine="vllm", **given):
    layout = st.Layout(**{name: given.pop(name) for name in ("tp", "pp", "dp", "microbatches") if name in given})
    return step_card("llama-3.1-8b", "hgx-h100", layout=layout, engine=engine, **asked_of(phase, layout, **given))


def test_what_each_phase_takes():
    assert asked_of("decode", st.Layout()) == {"batch": 1, "context": 4096, "query": 1}
    assert asked_of("prefill", st.Layout(dp=4)) == {"prompts": 4, "tokens": 8192, "prefix": 0}
    assert asked_of("mixed", st.Layout(), batch=7, prompts=2, prefix=5) == {
        "batch": 7, "context": 4096, "query": 1, "prompts": 2, "tokens": 8192, "prefix": 5,
    }  # fmt: skip


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
    assert card_of(context=131_072).notes == ()
    assert "exceeds the 131,072 of the model" in card_of(context=131_073).notes[0]
    assert "140,000 tokens exceeds" in card_of("prefill", tokens=10_000, prefix=130_000).notes[0]


@pytest.mark.parametrize(
    ("phase", "given", "says"),
    [
        ("sleep", {}, "Known: decode, prefill, mixed"),
        ("decode", {"batch": 0}, "--batch must be at least 1"),
        ("decode", {"query": 0}, "--query must be at least 1"),
        ("decode", {"query": 100, "context": 10}, "--query 100 is more than the --context of 10"),
        ("prefill", {"prompts": 0}, "--prompts must be at least 1"),
        ("prefill", {"prefix": -1}, "--prefix must be at least 0"),
        ("decode", {"batch": 4, "microbatches": 5}, "a batch of 4 cannot be cut into 5 micro-batches"),
    ],
)
def test_what_makes_no_sense_is_refused(phase, given, says):
    with pytest.raises(InputError, match=says):
        card_of(phase, **given)
