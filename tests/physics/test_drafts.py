"""Steps that draft: time, terms, memory and what moves between pools, by hand on models of one matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steptime.models.model import Attention, Layer
from steptime.physics.chip_memory import memory_per_chip, sequences_that_fit
from steptime.physics.engine import IDEAL
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import cache_moved, drafted_memory, drafted_sequences, drafted_step, drafter
from steptime.physics.step import decode_step, mixed_step, prefill_step
from tests.conftest import engine, machine, matrix, model_of

CACHE = Attention(name="attention", kv_bytes=1000.0, kv_shards=4)
SMALL = Layer(name="draft", ops=(matrix(weights=5e8),), attention=(CACHE,))
HEAD = matrix(name="head", weights=1e8, rows="outputs", term="head")
MODEL = model_of(matrix(), attention=(CACHE,), stem=(HEAD,), draft=((SMALL, 1),), heads=4)
ONE = {"layout": Layout(), "engine": IDEAL}


def test_the_time_of_a_step_that_drafts_by_hand():
    """At 4 TB/s: 10 GB of layers and 0.1 of the head in 2.525 ms; two passes of 0.5 GB and the head, 0.3 ms; caches of 8
    sequences of 1,000 tokens, 80 MB in ten layers and 8 MB in a draft layer, 20 and 2 us."""
    step = drafted_step(MODEL, machine(), drafts=2, batch=8, context=1000, **ONE)
    verify, draft = (10e9 + 0.1e9 + 80e6) / 4e12, (0.5e9 + 0.1e9 + 8e6) / 4e12
    assert step.total == pytest.approx(verify + 2 * draft)
    assert step.terms["drafts"] == pytest.approx(2 * draft)
    assert sum(step.terms.values()) == pytest.approx(step.total)
    assert sum(step.resources.values()) == pytest.approx(step.total)


def test_verification_multiplies_every_token_and_a_draft_pass_one():
    """Where arithmetic binds, at 2 PFLOP/s: 8 x 3 tokens of 2 x 10.1e9 FLOP, and 2 x 8 of 2 x 0.6e9."""
    step = drafted_step(MODEL, machine(bandwidth=1e30), drafts=2, batch=8, context=1000, **ONE)
    assert step.total == pytest.approx((8 * 3 * 2 * 10.1e9 + 2 * 8 * 2 * 0.6e9) / 2e15)


def test_prompts_pass_through_the_draft_layers_once():
    given = {"prompts": 2, "tokens": 500, "prefix": 100}
    alone = prefill_step(drafter(MODEL), machine(), **given, **ONE).total
    read = drafted_step(MODEL, machine(), drafts=3, **given, **ONE)
    assert read.total == pytest.approx(prefill_step(MODEL, machine(), **given, **ONE).total + alone)
    beside = {"batch": 8, "context": 1000}
    both = mixed_step(drafter(MODEL), machine(), **beside, **given, **ONE).total
    again = decode_step(drafter(MODEL), machine(), **beside, **ONE).total
    mixed = drafted_step(MODEL, machine(), drafts=3, **beside, **given, **ONE).total
    assert mixed == pytest.approx(mixed_step(MODEL, machine(), query=4, **beside, **given, **ONE).total + both + 2 * again)


def test_nothing_changes_without_drafts_and_foreign_drafts_take_no_time():
    given = {"batch": np.array([1, 8, 64]), "context": 1000}
    plain = drafted_step(MODEL, machine(), **given, **ONE)
    assert np.array_equal(plain.total, decode_step(MODEL, machine(), **given, **ONE).total)
    foreign = drafted_step(replace(MODEL, draft=()), machine(), drafts=3, **given, **ONE)
    assert np.array_equal(foreign.total, decode_step(MODEL, machine(), query=4, **given, **ONE).total)


def test_the_host_works_once_for_a_step():
    """1 ms a step once; 0.1 ms a sequence for each of three tokens and two drafts; 10 us for ten layers and each draft pass."""
    costs = engine(seconds_per_step=1e-3, seconds_per_sequence=1e-4, seconds_per_layer=1e-5)
    free = drafted_step(MODEL, machine(), drafts=2, batch=8, context=1000, **ONE).total
    found = drafted_step(MODEL, machine(), drafts=2, batch=8, context=1000, layout=Layout(), engine=costs).total
    assert found - free == pytest.approx(1e-3 + 8 * (3 + 2) * 1e-4 + 12e-5)


def test_terms_of_draft_passes_may_be_added_to_those_of_the_model():
    given = {"drafts": 2, "batch": 8, "context": 1000}
    joined, apart = (drafted_step(MODEL, machine(), **given, **ONE, has_draft_term=apart) for apart in (False, True))
    assert joined.total == pytest.approx(apart.total)
    assert "drafts" not in joined.terms
    assert joined.terms["attention"] == pytest.approx(22e-6 + 2e-6)


def test_the_last_stage_drafts_for_one_micro_batch_after_another():
    """Two stages, two micro-batches of 4 sequences: the pass of one draft layer twice, weights and all."""
    layout = Layout(pp=2, microbatches=2)
    found = drafted_step(MODEL, machine(), drafts=1, batch=8, context=1000, layout=layout, engine=IDEAL)
    assert found.terms["drafts"] == pytest.approx(2 * (0.6e9 + 4e6) / 4e12)


def test_several_modules_are_stored_and_one_runs_in_a_pass():
    """Three modules of half a gigabyte and 1,000 B a token each."""
    three = replace(MODEL, draft=((SMALL, 3),))
    given = {"batch": 8, "context": 1000}
    times = [drafted_step(model, machine(), drafts=3, **given, **ONE).total for model in (MODEL, three)]
    assert times[0] == pytest.approx(times[1])
    plain, held = (drafted_memory(three, machine(), drafts=drafts, **given, **ONE) for drafts in (0, 3))
    assert held.weights - plain.weights == pytest.approx(1.5e9)
    assert held.cache - plain.cache == pytest.approx(3 * 8 * 1000 * 1000)


def test_draft_layers_take_memory_only_where_they_draft():
    """On four tensor-parallel chips a quarter of 0.5 GB of weights and of 8 MB of cache."""
    given = {"batch": 8, "context": 1000, "layout": Layout(tp=4), "engine": IDEAL}
    plain, held = (drafted_memory(MODEL, machine(), drafts=drafts, **given) for drafts in (0, 2))
    assert plain == memory_per_chip(MODEL, machine(), **given, step_tokens=8)
    assert held.weights - plain.weights == pytest.approx(0.125e9)
    assert held.cache - plain.cache == pytest.approx(2e6)
    assert held.activations == pytest.approx(3 * plain.activations)


def test_sequences_that_fit_beside_the_draft_layers():
    """12 GB: 1.9 beside 10.1 of weights hold 190 sequences of 10 MB; 1.4 beside the draft layer 127 of 11 MB."""
    small = machine(capacity=12e9)
    given = {"context": 1000, **ONE}
    assert sequences_that_fit(MODEL, small, **given) == 190
    assert drafted_sequences(MODEL, small, drafts=0, **given) == 190
    assert drafted_sequences(MODEL, small, drafts=1, **given) == 127
    assert drafted_sequences(MODEL, machine(capacity=10.3e9), drafts=1, **given) < 0


def test_the_cache_of_draft_layers_moves_with_the_prompt():
    assert cache_moved(MODEL, 1000, 0) == 1e7
    assert cache_moved(MODEL, 1000, 1) == 1.1e7
