"""Plans against their own replay: the same draws as docs/replayed_plans.md."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from replayed_plans import DRAWN, off, replayed

MEDIAN, WORST = (0.05, 0.15, 0.05), (0.15, 0.35, 0.15)  # of TPOT, TTFT and cost


def test_two_plans_are_what_their_replay_finds():
    for _, _, found in replayed(2, seed=3):
        assert found.steady
        assert np.all(np.abs(off(found)) <= WORST)


@pytest.mark.slow
def test_sixty_plans_are_what_their_replays_find():
    table = []
    for _, _, found in replayed(DRAWN):
        assert found.steady  # none is refused
        table.append(np.abs(off(found)))
    assert np.all(np.median(table, axis=0) <= MEDIAN)
    assert np.all(np.max(table, axis=0) <= WORST)
