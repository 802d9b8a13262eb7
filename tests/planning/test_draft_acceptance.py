"""Acceptance lengths of separate drafters: the closed form, its inverse, measured rows, priors and what widens a plan."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.blackboard.pipeline_stages import tokens_per_pass
from steptime.catalog.acceptance_lengths import TYPICAL, measured_lengths
from steptime.errors import InputError
from steptime.models.draft_models import with_draft_model
from steptime.workload.draft_acceptance import acceptance_per_token, estimate_acceptance, length_at
from steptime.workload.workload import Speculation, choose_speculation, drafting_warnings, known_draftings
from tests.conftest import each


def estimate(model, drafter, drafts):
    return estimate_acceptance(with_draft_model(st.load_model(model), drafter), drafts)


@each("drafts, percent", [(n, a) for n in range(1, 9) for a in (0, 1, 30, 61, 75, 99)])
def test_the_closed_form_is_the_sum_over_positions(drafts, percent):
    """One token, and the n-th draft where all before it were accepted."""
    accepted = Fraction(percent, 100)
    exact = sum(accepted**position for position in range(drafts + 1))
    assert exact == (1 - accepted ** (drafts + 1)) / (1 - accepted)
    assert float(tokens_per_pass(drafts, float(accepted))) == pytest.approx(float(exact))
    assert float(acceptance_per_token(float(exact), drafts)) == pytest.approx(float(accepted), abs=1e-9)


@given(some.integers(1, 8), some.integers(1, 8), some.floats(0, 1))
def test_a_length_at_another_number_grows_with_it_and_comes_back(measured, drafts, part):
    length = 1 + part * measured
    there = float(length_at(length, measured, drafts))
    assert 1 <= there <= drafts + 1 + 1e-9
    assert (there >= length - 1e-9) if drafts >= measured else (there <= length + 1e-9)
    assert float(length_at(there, drafts, measured)) == pytest.approx(length, abs=1e-6)


def test_a_length_measured_on_the_model_by_hand():
    """nebius' card of three tasks with seven drafts: 2.88, 3.62 and 3.29, of the head that is named."""
    seven = estimate("llama-3.3-70b", "eagle3", 7)
    assert seven.is_measured
    assert seven.length == seven.low == seven.high == pytest.approx((2.88 + 3.62 + 3.29) / 3)
    three = estimate("llama-3.3-70b", "eagle3", 3)
    rates = [acceptance_per_token(length, 7) for length in (2.88, 3.62, 3.29)]
    assert three.length == pytest.approx(np.mean([1 + a + a**2 + a**3 for a in rates]))
    assert "3 drafts" in three.source
    assert "https://" in three.source


@each("drafts, length", [(2, 1.91), (3, 2.07), (4, 2.13)])
def test_each_measured_number_of_drafts_is_its_own(drafts, length):
    assert estimate("gpt-oss-120b", "eagle3", drafts).length == length


def test_a_prior_is_the_median_with_the_range_of_all():
    """Rates of Leviathan et al.: means 0.69, 0.75, 0.62, 0.65 and 0.53 over rows; 0.53 to 0.75 over all."""
    prior = estimate("llama-3.3-70b", "llama-3.2-1b", 1)
    assert not prior.is_measured
    assert prior.length == pytest.approx(1.65)
    assert (prior.low, prior.high) == pytest.approx((1.53, 1.75))
    assert prior.source.startswith("prior")


def test_no_tree_is_a_default():
    """Trees of EAGLE-3's paper yield more than six tokens; no default or prior has as many."""
    assert max(f.value for row in measured_lengths() if row.tree for f in row.figures) > 6
    for name in ("llama-3.3-70b", "llama-3.1-8b", "qwen3-14b"):
        assert estimate(name, "eagle3", 8).high < 6


def test_rows_name_models_of_the_catalogue_and_lengths_that_can_be():
    for row in measured_lengths():
        for name in row.models:
            assert name == TYPICAL or st.load_model(name).name == name
        for figure in row.figures:
            assert figure.url.startswith("https://")
            assert (0 < figure.value < 1) if row.kind == "rate" else (1 <= figure.value <= row.drafts + 1)


def test_the_best_number_is_chosen_from_zero_to_eight():
    model = with_draft_model(st.load_model("llama-3.3-70b"), "eagle3")
    found = known_draftings(model)
    assert [drafting.drafts for drafting in found] == list(range(9))
    assert np.all(np.diff([drafting.acceptance for drafting in found]) > 0)
    assert {drafting.method for drafting in found[1:]} == {"eagle3"}


def test_measured_lengths_do_not_widen_and_priors_do():
    measured, prior = (
        choose_speculation(with_draft_model(st.load_model("llama-3.3-70b"), name), 3) for name in ("eagle3", "llama-3.2-1b")
    )
    assert measured.acceptance_range is None
    assert measured.log_range == (0.0, 0.0)
    low, high = prior.acceptance_range
    assert prior.log_range == pytest.approx((math.log(high / prior.acceptance), math.log(prior.acceptance / low)))
    assert min(prior.log_range) > 0.1
    assert Speculation(drafts=3, acceptance=2.0).log_range == (0.0, 0.0)


def test_a_prior_and_a_shape_by_rule_are_said():
    models = {name: with_draft_model(st.load_model(name), "eagle3") for name in ("llama-3.3-70b", "qwen3-14b")}
    assert drafting_warnings(models["llama-3.3-70b"], choose_speculation(models["llama-3.3-70b"], 3)) == ()
    assert len(drafting_warnings(models["qwen3-14b"], choose_speculation(models["qwen3-14b"], 3))) == 2
    assert len(drafting_warnings(models["qwen3-14b"], choose_speculation(models["qwen3-14b"], 3, 2.0))) == 1


def test_a_model_without_drafter_or_layers_is_refused():
    with pytest.raises(InputError, match="--draft-model"):
        choose_speculation(st.load_model("llama-3.3-70b"), 3)
