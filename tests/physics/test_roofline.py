"""The time of an operator from its FLOPs and bytes, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.physics.operator_time import compute_time, memory_time, overlap, root, smaller_power
from tests.conftest import each


def test_arithmetic_and_traffic_at_a_share_of_their_rates():
    assert compute_time(12, 4) == 3
    assert compute_time(12, 4, 0.5) == 6  # half the rate, twice the time
    assert memory_time(20, 5) == 4
    assert memory_time(20, 5, 0.8) == 5


@each(
    "norm, together",
    [(np.inf, 4.0), (1, 7.0), (2, 5.0), (3, 91 ** (1 / 3)), (4, 337**0.25), (5, 1267**0.2), (np.array([4.0]), 337**0.25)],
)
def test_overlap_of_3_and_4_seconds(norm, together):
    """27 + 64 = 91, 81 + 256 = 337, 243 + 1024 = 1267."""
    assert overlap(3.0, 4.0, norm) == pytest.approx(together)
    assert overlap(4.0, 3.0, norm) == pytest.approx(together)


def test_the_smaller_over_the_larger_to_a_power():
    assert smaller_power(2.0, 1.0, 3) == pytest.approx(0.125)
    assert smaller_power(1.0, 2.0, 4) == pytest.approx(0.0625)
    assert smaller_power(2.0, 1.0, np.array([4.0])) == pytest.approx(0.0625)
    assert smaller_power(0.0, 0.0, 4) == 0
    assert (root(81.0, 4), root(9.0, 2)) == (pytest.approx(3), pytest.approx(3))


@each("norm", [1, 1.25, 1.5, 2, 2.5, 3.0, 4.5, 7])
def test_short_ways_to_a_power_are_the_power(norm):
    ratios = np.array([0.0, 1e-9, 0.3, 1.0])
    np.testing.assert_allclose(smaller_power(ratios, 1.0, norm), ratios**norm, rtol=1e-12)
    np.testing.assert_allclose(root(1 + ratios, norm), (1 + ratios) ** (1 / norm), rtol=1e-14)
