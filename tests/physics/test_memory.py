"""Bytes per chip, by hand: of weights in every kind of stage, of caches of every kind, of activations; and whether they fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import LayoutError, RangeError
from steptime.models.model import Attention, Layer
from steptime.physics.chip_memory import (
    Memory,
    activations_per_chip,
    cache_per_sequence,
    expert_slots,
    memory_per_chip,
    op_bytes,
    sequences_per_group,
    sequences_that_fit,
    stage_share,
    weights_per_chip,
)
from steptime.physics.layout import Layout
from tests.conftest import each, engine, experts, machine, matrix, model_of, one_matrix, sparse_matrix

GB = 1e9


def test_used_is_the_sum_and_may_fill_the_chip_to_the_last_byte():
    full = Memory(weights=1, cache=2, activations=4, reserved=8, capacity=15)
    assert full.used == 15
    assert full.fits
    assert not replace(full, capacity=14).fits
    assert replace(full, capacity=16).fits


@each(
    "op, layout, ways",
    [
        (matrix(), Layout(), 1),
        (matrix(), Layout(tp=4, cp=2), 8),
        (matrix(), Layout(tp=4, dp=3), 4),  # groups hold it each
        (matrix(split_limit=2), Layout(tp=4), 2),
        (matrix(split="replicated"), Layout(tp=4), 1),
    ],
)
def test_weights_are_divided_inside_a_group(op, layout, ways):
    assert op_bytes(op, layout) == 1 * GB / ways
    assert op_bytes(replace(op, format=matrix(stored="bf16").format), layout) == 2 * GB / ways


@each(
    "layout, slots, gigabytes",
    [
        (Layout(), 64, 6.4),
        (Layout(dp=8, ep=8), 8, 0.8),
        (Layout(dp=8, ep=8, redundant_experts=8), 9, 0.9),  # 72 over 8
        (Layout(dp=8, ep=8, redundant_experts=4), 9, 0.9),  # 68 over 8: the fullest has 9
        (Layout(dp=3, ep=3), 22, 2.2),  # 64 over 3
        (Layout(tp=4, dp=2, ep=4), 16, 0.8),  # 8 chips, 2 share an expert
        (Layout(tp=8), 64, 0.8),
    ],
)
def test_experts_and_their_redundant_copies(layout, slots, gigabytes):
    """64 experts of 0.1 GB."""
    assert expert_slots(experts(), layout) == slots
    assert op_bytes(experts(), layout) == pytest.approx(gigabytes * GB)
    assert op_bytes(experts(stored="bf16"), layout) == pytest.approx(2 * gigabytes * GB)


@each("pp, share", [(1, 1.0), (2, 0.5), (3, 0.4), (4, 0.3), (10, 0.1)])
def test_the_fullest_stage_of_ten_layers(pp, share):
    assert stage_share(model_of(matrix()), Layout(pp=pp)) == pytest.approx(share)


EMBEDDING, HEAD = matrix(weights=3e9, term="embedding", rows="lookup"), matrix(weights=5e9, term="head", rows="outputs")
TOWER, NORM = matrix(weights=4e9, term="vision", rows="none"), matrix(weights=1e9, term="norms", rows="tokens")


@each(
    "stem, pp, gigabytes",
    [
        ((EMBEDDING, HEAD), 1, 10 + 8),
        ((EMBEDDING, HEAD), 2, 5 + 5),  # the last stage is the fuller
        ((EMBEDDING, HEAD), 3, 4 + 5),
        ((EMBEDDING, TOWER, HEAD), 1, 10 + 12),
        ((EMBEDDING, TOWER, HEAD), 2, 5 + 7),  # the first
        ((EMBEDDING, NORM, HEAD), 2, 5 + 6),
        ((), 2, 5),
    ],
)
def test_first_and_last_stage_hold_embedding_and_head(stem, pp, gigabytes):
    """Ten layers of 1 GB."""
    model = model_of(matrix(), stem=stem)
    assert weights_per_chip(model, Layout(pp=pp)) == pytest.approx(gigabytes * GB)
    assert weights_per_chip(model, Layout(pp=np.array([pp, 1])))[0] == pytest.approx(gigabytes * GB)


@each(
    "batch, dp, sequences",
    [(10, 1, 10), (10, 4, 3), ((0.1 + 0.2) * 10, 3, 1), (2.5, 1, 3), (8, 4, 2), (1, 8, 1), (0, 2, 0)],
)
def test_the_busiest_group_has_the_odd_sequence(batch, dp, sequences):
    assert sequences_per_group(batch, Layout(dp=dp)) == sequences


KV = Attention(name="kv", kv_bytes=1000.0, kv_shards=4, heads=64)


@each(
    "mixer, layout, bytes_",
    [
        (KV, Layout(), 100_000),  # 100 tokens of 1,000 B
        (KV, Layout(tp=2), 50_000),
        (KV, Layout(tp=8), 25_000),  # four heads
        (KV, Layout(tp=8, cp=2), 12_500),
        (KV, Layout(dp=2), 100_000),
        (KV, Layout(pp=4), 30_000),  # three of ten layers
        (replace(KV, stride=4.0), Layout(), 25_000),
        (replace(KV, window=32.0), Layout(), 32_000),
        (replace(KV, selected=10.0), Layout(), 100_000),  # what is read is fewer than what is kept
        (replace(KV, stored=False), Layout(), 0),
        (Attention(name="state", state_bytes=640.0, heads=4), Layout(), 640),
        (Attention(name="state", state_bytes=640.0, heads=4), Layout(tp=2), 320),
        (Attention(name="state", state_bytes=640.0, heads=4), Layout(tp=8), 160),
        (Attention(name="state", state_bytes=640.0, heads=4), Layout(cp=2), 640),
        (replace(KV, state_bytes=640.0), Layout(tp=2), 50_320),
    ],
)
def test_cache_of_a_sequence_of_100_tokens_in_one_layer(mixer, layout, bytes_):
    assert cache_per_sequence(model_of(attention=(mixer,)), 100, layout) == pytest.approx(10 * bytes_)


def test_caches_of_all_layers_and_mixers_add_up():
    """Two kinds of layer: 3 with two mixers, 2 with one."""
    two, one = Layer(name="a", ops=(), attention=(KV, replace(KV, window=10.0))), Layer(name="b", ops=(), attention=(KV,))
    model = replace(model_of(), layers=((two, 3), (one, 2)))
    assert cache_per_sequence(model, 100, Layout()) == 3 * (100_000 + 10_000) + 2 * 100_000


@each(
    "ops, layout, values",
    [
        ((matrix(inputs=1000, outputs=4000),), Layout(), 2000 + 5000),
        ((matrix(inputs=1000, outputs=4000),), Layout(tp=4), 2000 + 1250),
        ((matrix(inputs=1000, outputs=4000), matrix(inputs=10, outputs=20)), Layout(), 2000 + 5000),
        ((matrix(inputs=10, outputs=20), matrix(inputs=1000, outputs=4000)), Layout(), 2000 + 5000),
        ((experts(inputs=1000, outputs=500),), Layout(tp=4, dp=2, ep=8), 2000 + 8 * 1500),  # eight experts a token
        ((matrix(inputs=1000, outputs=4000, split="replicated"),), Layout(tp=4), 2000 + 5000),
        ((), Layout(), 2000),
    ],
)
def test_activations_of_ten_tokens(ops, layout, values):
    """Twice the residual stream of 1,000 values, and the largest operator, in 16 bits."""
    assert activations_per_chip(model_of(*ops), 10, layout) == pytest.approx(10 * 2 * values)


def test_a_chip_holds_the_parts_of_its_group():
    """12 sequences in two groups: 6 caches of 1 MB each, and three micro-batches of two tokens."""
    model = model_of(experts(inputs=1000, outputs=500), attention=(KV,))
    held = memory_per_chip(
        model,
        machine(capacity=80 * GB),
        batch=12,
        context=100,
        layout=Layout(dp=2, ep=2, microbatches=3),
        engine=engine(memory_share=0.92, reserved_bytes=7 * GB),
    )
    assert held.weights == pytest.approx(10 * 32 * 0.1 * GB)
    assert held.cache == pytest.approx(6e6)
    assert held.activations == pytest.approx(2 * 2 * 14_000)
    assert held.reserved == 7 * GB
    assert held.capacity == pytest.approx(73.6 * GB)


@each("step_tokens, tokens", [(0, 5), (4, 5), (5, 5), (64, 64)])
def test_activations_are_of_the_larger_step(step_tokens, tokens):
    held = memory_per_chip(model_of(), machine(), batch=5, context=1, engine="ideal", step_tokens=step_tokens)
    assert held.activations == tokens * 2 * 2000


def test_draft_layers_are_not_counted():
    draft = ((Layer(name="draft", ops=(matrix(weights=7e9),)), 2),)
    model, system = model_of(matrix(), draft=draft), machine(capacity=30 * GB)
    assert weights_per_chip(model, Layout()) == memory_per_chip(model, system, batch=0, context=1, engine="ideal").weights
    assert weights_per_chip(model, Layout()) == 10 * GB


def test_memory_without_a_name_of_an_engine_is_that_of_the_systems():
    held = memory_per_chip(model_of(matrix()), machine(capacity=1e8, vendor="NVIDIA"), batch=1, context=1)
    assert held.capacity == pytest.approx(92e6)  # vllm: gpu_memory_utilization 0.92


@each(
    "sizes",
    [
        {"batch": -1, "context": 1},
        {"batch": 1, "context": -1},
        {"batch": [1, -1], "context": 1},
        {"batch": 1, "context": [-1, 1]},
    ],
)
def test_negative_sizes_are_refused(sizes):
    with pytest.raises(RangeError, match=r"(batch|context) must be at least 0, not -1"):
        memory_per_chip(model_of(matrix()), machine(), engine="ideal", **{k: np.asarray(v) for k, v in sizes.items()})


def test_no_sequences_of_no_context_are_a_size():
    held = memory_per_chip(model_of(matrix()), machine(), batch=0, context=0, engine="ideal")
    assert (held.cache, held.activations, held.reserved) == (0, 0, 0)


@each(
    "changes, layout, sequences",
    [
        ({}, Layout(), 5),  # 10 GB of weights; 5.5 MB left for caches of 1 MB
        ({"capacity": 10 * GB + 5e6}, Layout(), 5),
        ({"capacity": 10 * GB + 4.9e6}, Layout(), 4),
        ({"capacity": 10 * GB + 5e6 - 1}, Layout(), 4),
        ({"capacity": 10 * GB}, Layout(), 0),
        ({"capacity": 9 * GB}, Layout(), -1),
        ({"capacity": 5 * GB + 5.5e6}, Layout(tp=2), 11),  # half the weights, half of each cache
    ],
)
def test_sequences_of_100_tokens_that_fit(changes, layout, sequences):
    model, system = model_of(matrix(), attention=(KV,)), machine(**{"capacity": 10 * GB + 5.5e6} | changes)
    assert sequences_that_fit(model, system, context=100, layout=layout, engine="ideal") == sequences


def test_sequences_of_all_groups_fit_beside_a_step_and_what_is_reserved():
    """Two groups of 3.2 GB of experts: 9 MB less 4 MB reserved less 1,000 tokens of activations of 4,000 B hold one of 1 MB."""
    model = model_of(experts(weights=1e7), attention=(KV,))
    system = machine(capacity=3.2 * GB + 9e6)
    given = {"context": 100, "layout": Layout(dp=2, ep=2)}
    assert sequences_that_fit(model, system, engine=engine(reserved_bytes=4e6), **given) == 2 * 5
    assert sequences_that_fit(model, system, engine=engine(reserved_bytes=4e6), step_tokens=250, **given) == 2 * 4
    assert sequences_that_fit(model, system, engine="ideal", step_tokens=1000, **given) == 2 * 5
    assert sequences_that_fit(model, system, engine=engine(memory_share=0.5), **given) < 1


def test_weights_that_leave_no_room_hold_less_than_one():
    """64 GB of experts on a chip with a byte less."""
    assert sequences_that_fit(sparse_matrix(), machine(capacity=64 * GB - 1), context=100, engine="ideal") < 1


@each("name", ["batch", "context", "step_tokens"])
def test_arrays_that_do_not_go_together_are_named(name):
    given = {"batch": np.ones(2), "context": np.ones(2), "step_tokens": np.ones(2)} | {name: np.ones(3)}
    with pytest.raises(RangeError, match=rf"do not broadcast: .*{name} \(3,\)"):
        memory_per_chip(model_of(matrix()), machine(), engine="ideal", **given)
    layout = Layout(dp=np.ones(3, dtype=int))
    with pytest.raises(RangeError, match=r"dp \(3,\)"):
        memory_per_chip(model_of(experts()), machine(), batch=np.ones(2), context=1, engine="ideal", layout=layout)


def test_memory_in_words():
    held = Memory(weights=1e9, cache=2e9, activations=4e9, reserved=8e9, capacity=16e9)
    title, figures = held.headline()
    assert title == "Memory of a chip: 15.0 GB of 16.0 GB, fits"
    assert figures == {"weights": "1.00 GB", "cache": "2.00 GB", "activations": "4.00 GB", "reserved": "8.00 GB"}
    assert replace(held, capacity=14e9).headline()[0] == "Memory of a chip: 15.0 GB of 14.0 GB, does not fit"
    many = replace(held, weights=np.array([1e9, 2e9, 3e9]))
    assert many.headline()[0] == "Memory of a chip: 15.0 GB to 17.0 GB, shape (3,) of 16.0 GB, 2 of 3 fit"
    assert {name: value.tolist() for name, value in many.columns().items()} == {
        "weights_bytes": [1e9, 2e9, 3e9], "cache_bytes": [2e9] * 3, "activations_bytes": [4e9] * 3,
        "reserved_bytes": [8e9] * 3, "used_bytes": [15e9, 16e9, 17e9], "capacity_bytes": [16e9] * 3,
        "fits": [True, True, False],
    }  # fmt: skip


def test_without_a_cache_any_number_fits_or_none():
    model = one_matrix(weights=1e9, layers=10, kv_bytes=0.0)  # 10 GB of weights
    roomy, full = machine(capacity=11e9), machine(capacity=9e9)
    assert sequences_that_fit(model, roomy, context=100, engine="ideal") == np.inf
    assert sequences_that_fit(model, full, context=100, layout=Layout(), engine="ideal") < 1
    exact = machine(capacity=1e10)  # filled to the last byte, of which a sequence takes none
    assert sequences_that_fit(model, exact, context=100, engine="ideal") == np.inf


def test_a_cache_of_less_than_a_byte_is_one():
    """1e-4 B a token and layer: 0.1 B for a hundred tokens in ten layers, a thousand of which take 100 B."""
    model = one_matrix(kv_bytes=1e-4)
    assert sequences_that_fit(model, machine(capacity=1e10 + 100.05), context=100, engine="ideal") == 1000


@pytest.mark.parametrize("ask", [st.memory_per_chip, st.decode_step])
def test_a_layout_that_cannot_run_has_no_memory_and_no_time(ask):
    with pytest.raises(LayoutError, match="heads"):
        ask("llama-3.1-8b", "hgx-h100", batch=1, context=10, layout=st.Layout(tp=3))


def test_sequences_may_be_shorter_than_a_token_on_average():
    model = one_matrix(kv_bytes=1.0)
    assert sequences_that_fit(model, machine(capacity=2e10), context=0.5, engine="ideal") == pytest.approx(
        2 * sequences_that_fit(model, machine(capacity=2e10), context=1, engine="ideal"), rel=1e-3
    )


@pytest.mark.parametrize(("chips", "outside"), [(1, 0.0), (2, 1.79)])
def test_memory_of_an_engine_is_what_its_log_says(chips, outside):
    """vLLM serves Meta-Llama-3-8B with 256 slots and steps of 8,192 tokens: 1.26 GiB at the peak of activations.

    Outside PyTorch, two chips take 1.79 GiB more than one: https://github.com/vllm-project/vllm/pull/10511
    """
    arguments = {"batch": 256, "context": 1.0, "layout": Layout(tp=chips), "engine": "vllm", "step_tokens": 8192}
    memory = st.memory_per_chip("llama-3-8b", "hgx-h100", **arguments)
    if chips == 1:
        assert float(memory.activations) == pytest.approx(1.26 * 2**30, rel=0.15)
    assert float(memory.reserved) == pytest.approx(outside * 2**30, rel=0.01)
