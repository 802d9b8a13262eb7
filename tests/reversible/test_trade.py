"""Closed forms of memory against arithmetic, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from steptime import blackboard
from steptime.reversible import memory_tradeoff


def test_one_more_forward_pass_is_a_third_more():
    """8 N D against 6 N D; a forward pass is a third of a step."""
    for forwards, ratio in ((1, 1.0), (2, 4 / 3)):
        assert memory_tradeoff.arithmetic_ratio(forwards) == pytest.approx(ratio)


def test_depth_is_in_all_but_the_reversible_form():
    layers = np.array([8, 64, 512])
    plain, full = memory_tradeoff.plain_bytes(layers, 34.0), memory_tradeoff.checkpointed_bytes(layers, 2.0, 34.0)
    np.testing.assert_array_equal(plain, 34 * layers)
    np.testing.assert_array_equal(full, 2 * layers + 34)
    assert memory_tradeoff.reversible_bytes(2.0, 34.0) == 38
    best = memory_tradeoff.best_checkpoint(layers, 2.0, 34.0)
    least = memory_tradeoff.checkpointed_bytes(layers, 2.0, 34.0, every=best)
    np.testing.assert_allclose(least, 2 * np.sqrt(layers * 2.0 * 34.0))
    for near in (0.9, 1.1):
        assert (memory_tradeoff.checkpointed_bytes(layers, 2.0, 34.0, every=near * best) > least).all()


def test_a_stream_is_tokens_by_width():
    assert memory_tradeoff.reversible_bytes(memory_tradeoff.stream_bytes(2048, 12288, 2)) == 2 * 2048 * 12288 * 2


def test_in_a_chips_own_memory_it_is_the_lectures_break_even():
    """Drain time times L*: 20 ms and 200,000 tokens are 4,000 s. Section 15."""
    bandwidth, active, kappa = 14.4e12, 100e9, 2048.0
    macs = 300 * bandwidth  # R = 300 with one byte a weight
    balanced = active / (300 * kappa)
    lecture = blackboard.break_even_hold(288e9 / bandwidth, balanced)
    rate = memory_tradeoff.exchange_rate(2 * active, kappa)
    assert memory_tradeoff.break_even_seconds(rate, 288e9, 2 * macs) == pytest.approx(lecture)


def test_reading_back_costs_time_too():
    found = memory_tradeoff.break_even_seconds(1e6, 1e12, 1e15, np.array([np.inf, 2e9, 1e9, 0.5e9]))
    np.testing.assert_allclose(found, [1000.0, 500.0, 0.0, 0.0])
