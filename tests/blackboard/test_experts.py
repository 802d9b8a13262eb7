"""Experts touched and groups hit, by counting."""

from __future__ import annotations

from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from steptime.blackboard.expert_activation import (
    distinct_hit,
    exchange_bytes,
    experts_per_chip,
    experts_touched,
    weights_touched,
)
from tests.conftest import each


@each("experts, active, groups", [(8, 2, 4), (8, 3, 2), (12, 4, 3), (6, 1, 6), (6, 6, 3)])
def test_groups_hit_by_all_choices_of_experts(experts, active, groups):
    choices = list(combinations(range(experts), active))
    hit = sum(len({expert * groups // experts for expert in chosen}) for chosen in choices) / len(choices)
    assert distinct_hit(experts, active, groups) == pytest.approx(hit)


@each("experts, tokens", [(3, 1), (3, 2), (3, 4), (4, 3)])
def test_experts_touched_by_all_choices_of_tokens(experts, tokens):
    """One expert a token."""
    choices = list(product(range(experts), repeat=tokens))
    touched = sum(len(set(chosen)) for chosen in choices) / len(choices)
    assert experts_touched(experts, 1, tokens) == pytest.approx(touched)


def test_experts_touched_by_hand():
    assert experts_touched(64, 8, 2) == pytest.approx(64 * (1 - 0.875**2))
    assert experts_touched(8, 8, 1) == pytest.approx(8)
    assert experts_touched(64, 8, 24, evenness=3.0) == pytest.approx(64 * (1 - 2**-3.0))  # 24 x 8 / 64 = 3 draws each
    assert experts_touched(64, 8, 1, evenness=np.array([1.0, 2.0])) == pytest.approx(
        [64 * (1 - 1 / 1.125), 64 * (1 - 1.0625**-2.0)]
    )


def test_weights_touched_by_few_tokens():
    """88 of 100 weights are left out by a token that uses one of 8 experts: seven eighths of the routed ones."""
    routed = (100 - 12) / (1 - 1 / 8)
    always = 100 - routed
    assert weights_touched(1, 12, 100, experts=8, active_experts=1) == pytest.approx(12)
    assert weights_touched(3, 12, 100, experts=8, active_experts=1) == pytest.approx(always + routed * (1 - (7 / 8) ** 3))
    assert weights_touched(1e9, 12, 100, experts=8, active_experts=1) == pytest.approx(100)


def test_bytes_of_an_exchange():
    """10 tokens of 1,000 values in 2 B to each chip that is hit of four."""
    hit = 4 * (1 - comb(48, 8) / comb(64, 8))
    assert exchange_bytes(10, 1000, 2, experts=64, active=8, chips=4) == pytest.approx(10 * hit * 2000)
    assert experts_per_chip(64, 4) == 16
