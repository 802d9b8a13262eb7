"""Closed forms refuse rates of nothing and negative sizes."""

from __future__ import annotations

import numpy as np
import pytest

from steptime import blackboard
from steptime.errors import InputError
from tests.conftest import each


@each(
    "name, given",
    [
        ("drain_seconds", (-1, 8e12)),
        ("drain_seconds", (192e9, 0)),
        ("drain_seconds", (192e9, np.array([8e12, 0.0]))),
        ("balance", (1e15, 1.0, 0)),
        ("compute_seconds", (8, 1e9, 0)),
        ("weight_seconds", (1e9, 1.0, 0)),
        ("kv_read_seconds", (8, 1024, 1e5, 0)),
        ("throughput", (8, 0)),
        ("recompute_cost", (1e9, 0, 1e-3)),
        ("hold_cost", (1e5, 0, 1e-3)),
        ("retrieve_cost", (1e5, 0, 1e-3)),
    ],
)
def test_closed_form_of_a_rate_of_nothing_is_refused(name, given):
    with pytest.raises(InputError):
        getattr(blackboard, name)(*given)
