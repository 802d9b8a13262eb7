"""Evaluating points in blocks: the same as all at once, whatever the blocks are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.errors import RangeError
from steptime.sweeps.point_grid import in_blocks

LAYOUTS = np.array([(1, 1, 1), (8, 1, 1), (4, 2, 8), (1, 8, 8), (2, 4, 8)])  # tp, dp, ep


def step(batch, context, tp, dp, ep, engine="vllm"):
    layout = st.Layout(tp=tp, dp=dp, ep=ep)
    found = st.decode_step("deepseek-v3", "hgx-h200", batch=batch, context=context, layout=layout, engine=engine)
    return {"total": found.total, "latency": found.latency, **found.terms}


def drawn(n, seed):
    random = np.random.default_rng(seed)
    tp, dp, ep = LAYOUTS[random.integers(0, len(LAYOUTS), n)].T
    return {"batch": random.integers(1, 5000, n), "context": random.uniform(1, 1e5, n), "tp": tp, "dp": dp, "ep": ep}


@pytest.mark.slow
@given(some.integers(1, 40), some.integers(1, 50), some.integers(1, 3), some.integers(0, 99))
def test_steps_in_blocks_are_those_of_the_whole(n, block, workers, seed):
    points = drawn(n, seed)
    whole, found = step(**points), in_blocks(step, points, block=block, workers=workers)
    assert set(found) == set(whole)
    for name, values in whole.items():
        assert found[name].shape == (n,)
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=0)


@given(some.lists(some.integers(-(2**40), 2**40), max_size=30), some.integers(1, 9))
def test_blocks_of_any_function_hold_what_the_whole_holds(values, block):
    found = in_blocks(lambda a: 3 * a - 1, {"a": np.array(values, dtype=np.int64)}, block=block)
    assert found.dtype == np.int64
    assert found.tolist() == [3 * a - 1 for a in values]


def test_what_a_block_lacks_is_nothing():
    found = in_blocks(lambda a: {"a": a} | ({"late": a} if a[0] >= 4 else {}), {"a": np.arange(6.0)}, block=2, workers=1)
    assert found["a"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["late"].tolist() == [0, 0, 0, 0, 4, 5]


def test_progress_counts_every_point_once():
    told = []
    in_blocks(lambda a: a, {"a": np.arange(10)}, block=3, progress=lambda done, total: told.append((done, total)))
    assert [total for _, total in told] == [10] * 4
    assert sorted(done for done, _ in told) == [done for done, _ in told]
    assert told[-1] == (10, 10)


def test_what_is_no_row_of_points_is_refused():
    for points in ({}, {"a": 1.0}, {"a": np.ones((2, 2))}, {"a": [1, 2], "b": [1, 2, 3]}):
        with pytest.raises(RangeError, match="one axis and one length"):
            in_blocks(lambda **_: 0, points)
    with pytest.raises(RangeError, match="block"):
        in_blocks(lambda a: a, {"a": [1]}, block=0)
    with pytest.raises(RangeError, match="workers"):
        in_blocks(lambda a: a, {"a": [1]}, workers=0)


def test_an_error_in_a_block_is_told():
    with pytest.raises(RangeError, match="batch"):
        in_blocks(step, drawn(5, 0) | {"batch": [1, 2, 0, 4, 5]}, block=2)


def test_whole_numbers_do_not_swallow_fractions_of_later_blocks():
    with pytest.raises(TypeError, match="same_kind"):
        in_blocks(lambda a: a if a[0] < 2 else a / 2, {"a": np.arange(4)}, block=2, workers=1)
