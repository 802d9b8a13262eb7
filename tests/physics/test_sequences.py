"""Sequences that fit a replica, where a model keeps no cache."""

from __future__ import annotations

import math

import steptime as st
from steptime.physics.memory import sequences_that_fit
from tests.conftest import machine, one_matrix


def test_without_a_cache_any_number_fits_or_none():
    model = one_matrix(weights=1e9, layers=10, kv_bytes=0.0)  # 10 GB of weights
    roomy, full = machine(capacity=11e9), machine(capacity=9e9)
    assert sequences_that_fit(model, roomy, context=100, engine="ideal") == math.inf
    assert sequences_that_fit(model, full, context=100, layout=st.Layout(), engine="ideal") < 1
