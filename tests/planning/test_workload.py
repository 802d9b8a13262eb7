"""Limits of a plan: a speed for a time per token, and units that were mixed up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import steptime as st
from steptime.workload import workload
from steptime.workload.workload import Speculation, choose_speculation, drafting_warnings, known_draftings
from tests.conftest import each


def test_slo_of_a_speed_is_that_of_its_time_per_token():
    assert st.Slo(speed=40, ttft=2) == st.Slo(tpot=0.025, ttft=2)
    assert replace(st.Slo(speed=40), ttft=1) == st.Slo(tpot=0.025, ttft=1)
    assert st.Slo().tpot == st.Slo(ttft=1).tpot == math.inf


@each(
    "given, says",
    [
        ({"tpot": 40}, r"tpot must be at most 10 s, got 40; .*give the speed"),
        ({"ttft": 1e6}, r"ttft must be at most 86400 s, got 1e\+06; .*give the speed"),
        ({"speed": 0}, "speed must be greater than 0"),
        ({"speed": 0.01}, "speed must be at least 0.1"),
        ({"speed": 40, "tpot": 0.025}, "give one of the two"),
    ],
)
def test_slo_beyond_any_service_is_refused(given, says):
    with pytest.raises(st.InputError, match=says):
        st.Slo(**given)


def test_every_measured_number_of_speculative_tokens_is_known():
    model = st.load_model("deepseek-v3")
    known = known_draftings(model)
    measured = len(workload.acceptance_curve(model.name).figures)
    assert [one.drafts for one in known] == list(range(min(workload.MOST_DRAFTS, measured) + 1))
    assert [one.acceptance for one in known] == sorted(one.acceptance for one in known)
    assert choose_speculation(model, 2) == known[2]
    assert known_draftings(st.load_model("llama-3.1-8b")) == (Speculation(),)


def test_no_speculative_tokens_yield_one_token_a_step():
    model = st.load_model("llama-3.1-8b")
    assert choose_speculation(model, 0) == Speculation(drafts=0, acceptance=1.0)
    assert choose_speculation(model, 0, 1.0).acceptance == 1.0


@each(
    "drafts, source, warned",
    [(0, "guess: none", False), (1, "guess: other models", True), (1, "measured", False), (0, "measured", False)],
)
def test_a_guess_of_the_acceptance_is_warned_of(drafts, source, warned):
    model = st.load_model("llama-3.1-8b")
    found = drafting_warnings(model, Speculation(drafts=drafts, acceptance=1.0 + drafts, source=source))
    assert [text.startswith(f"no acceptance length of {model.name} was published: 2 tokens") for text in found] == [
        True
    ] * warned
