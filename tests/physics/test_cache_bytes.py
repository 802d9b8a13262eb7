"""What of a cache the busiest chip holds: whole heads, in memory, in attention's traffic and in weights alike, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

import steptime as st
from steptime.models.model import Attention
from steptime.physics.chip_memory import cache_per_sequence, cache_ways, op_bytes, state_ways
from steptime.physics.layout import Layout, shard_count
from steptime.physics.step import decode_step
from tests.conftest import each, engine, machine, matrix, model_of


@each(
    "heads, chips, ways",
    [
        (8, 1, 1),
        (8, 2, 2),
        (8, 3, 8 / 3),  # three heads on a chip
        (8, 6, 4),  # two heads on two of the chips, so a quarter of the cache on each
        (8, 7, 4),
        (8, 8, 8),
        (8, 16, 8),  # copies
        (10, 8, 5),  # phi-4
        (10, 4, 10 / 3),
        (1, 72, 1),  # a latent
        (math.inf, 6, 6),
    ],
)
def test_ways_are_those_of_the_chip_that_holds_most(heads, chips, ways):
    assert shard_count(heads, chips) == pytest.approx(ways)
    assert shard_count(heads, np.array([chips, 1])).tolist() == pytest.approx([ways, 1])


def test_ways_are_never_more_than_heads_or_chips_and_never_fall():
    for heads in range(1, 40):
        found = shard_count(heads, np.arange(1, 100))
        assert np.all(found <= np.minimum(heads, np.arange(1, 100)) + 1e-9)
        assert np.all(np.diff(found) >= 0)
        assert heads / found == pytest.approx(np.round(heads / found))  # whole heads on the busiest chip


def kept(name: str, **ways) -> float:
    model = st.load_model(name)
    return float(cache_per_sequence(model, 1000, Layout(**ways)) / cache_per_sequence(model, 1000, Layout()))


def test_six_chips_hold_a_quarter_of_eight_heads_each():
    assert kept("llama-3.2-3b", tp=6) == pytest.approx(1 / 4)
    assert kept("llama-3.2-3b", tp=6, cp=2) == pytest.approx(1 / 8)
    assert kept("phi-4", tp=8) == pytest.approx(1 / 5)
    assert kept("phi-4", tp=5) == pytest.approx(1 / 5)
    assert kept("deepseek-v3", tp=64) == 1


def test_attention_reads_what_memory_holds():
    """With nothing but a cache to read, a step takes the bytes of the busiest chip over the bandwidth."""
    cache = Attention(name="kv", kv_bytes=1000.0, kv_shards=10, heads=40)
    model = model_of(matrix(weights=0.0), attention=(cache,), heads=40, layers=1)
    for tp, ways in ((1, 1), (4, 10 / 3), (5, 5), (8, 5), (10, 10), (20, 10), (40, 10)):
        layout = Layout(tp=tp)
        step = decode_step(model, machine(size=64, bandwidth=1e9), batch=7, context=100, layout=layout, engine=engine())
        assert float(step.resources["kv"]) == pytest.approx(7 * 100 * 1000 / ways / 1e9)
        assert 7 * float(cache_per_sequence(model, 100, layout)) == pytest.approx(7 * 100 * 1000 / ways)
        assert cache_ways(cache, layout) == pytest.approx(ways)


def test_states_and_weights_are_held_by_whole_heads_too():
    state = Attention(name="state", state_bytes=1.0, heads=24)
    assert [float(state_ways(state, Layout(tp=tp))) for tp in (8, 16, 24, 48)] == [8, 12, 24, 24]
    keys = matrix(split_limit=8)
    assert [1e9 / float(op_bytes(keys, Layout(tp=tp))) for tp in (6, 8, 16)] == pytest.approx([4, 8, 8])
    assert 1e9 / float(op_bytes(matrix(), Layout(tp=6))) == pytest.approx(6)
    assert op_bytes(matrix(split="replicated"), Layout(tp=6)) == 1e9
