"""Cycles of micro-batches by hand: which of operators, links and a pass alone sets the period, and when the last one ends.

Seconds of one micro-batch in all stages: c of layers, s of the stem, n of links, h of hops.
"""

from __future__ import annotations

import numpy as np
import pytest

from steptime.physics.step import bounds, cycle
from tests.conftest import each

EVERY = (1, 1, 1, 1)  # a pass alone: each part counts once


@each(
    "parts, m, share, period, latency, weights",
    [
        ((3, 1, 2, 0), 1, 1.0, 6, 6, EVERY),
        ((3, 1, 2, 0.5), 1, 0.25, 6.5, 6.5, EVERY),  # one micro-batch passes all stages
        ((3, 1, 2, 0.5), 1, 0.5, 6.5, 6.5, EVERY),
        # two on one stage: operators 2 (3 + 1), links 2 x 2 behind them; or links 2 x 5 over 2 x 1
        ((3, 1, 2, 0), 2, 1.0, 8, 8, (2, 2, 0, 0)),
        ((1, 0, 5, 0), 2, 1.0, 10, 10, (0, 0, 2, 0)),
        ((3, 1, 2, 0), 3, 1.0, 12, 12, (3, 3, 0, 0)),
        # equal: a pass before operators, operators before links
        ((3, 0, 3, 0), 2, 1.0, 6, 6, EVERY),
        ((3, 0, 3, 0), 3, 1.0, 9, 9, (3, 3, 0, 0)),
        # P on P stages: each stage serves all, the last of P starts (P - 1) / P of a period late
        ((8, 0, 0, 0), 4, 0.25, 8, 8 + 6, EVERY),
        ((8, 0, 2, 0), 4, 0.25, 10, 10 + 7.5, EVERY),  # a pass with its links is longer than 4 x 2
        ((10, 0, 0, 0), 3, 0.4, 12, 10 + 8, (1.2, 3, 0, 0)),  # four of ten layers thrice; three start 4 s apart
        ((10, 0, 0, 0), 4, 0.3, 12, 10 + 9, (1.2, 4, 0, 0)),
        ((0, 0, 10, 0), 3, 0.4, 12, 10 + 8, (0, 0, 1.2, 0)),
        # eight on four stages: the last stage is reached after 7.5 s and serves each in 2, links of one behind another
        ((8, 0, 2, 0), 8, 0.25, 16, 7.5 + 16, (2, 8, 0, 0)),
        ((2, 0, 8, 0), 8, 0.25, 16, 7.5 + 16, (0, 0, 2, 0)),
        # a head is in every pass of the stage that has it: 4 (5 + 2), which it begins after 5
        ((10, 2, 0, 0), 4, 0.5, 28, 5 + 28, (2, 4, 0, 0)),
        # hops make a pass longest: 8 s, the other 2 s behind it
        ((2, 0, 2, 4), 2, 0.5, 8, 8 + 2, EVERY),
        ((4, 0, 0, 5), 4, 0.5, 9, 9 + 3 * 2, EVERY),  # 9 s alone, the others 2 s apart
        ((8, 0, 0, 0), 2, 0.25, 8, 8 + 2, EVERY),  # fewer than stages: half of them wait
    ],
)
def test_periods_and_latencies(parts, m, share, period, latency, weights):
    for sizes in (np.asarray, float):
        found = cycle(*(sizes(part) for part in parts), microbatches=sizes(m), share=sizes(share))
        assert float(found.period) == pytest.approx(period)
        assert float(found.latency) == pytest.approx(latency)
        assert [float(w) for w in (found.layers, found.stem, found.links, found.hops)] == pytest.approx(weights)
        counted = sum(w * part for w, part in zip(weights, parts, strict=True))
        assert counted == pytest.approx(period)


def test_cycles_of_many_layouts_are_those_of_each():
    m, share = np.array([1, 2, 4, 8, 3]), np.array([1.0, 1.0, 0.25, 0.25, 0.4])
    parts = (8.0, 1.0, 2.0, 0.5)
    together = cycle(*parts, microbatches=m, share=share)
    for i in range(len(m)):
        alone = cycle(*parts, microbatches=m[i], share=share[i])
        for name in ("period", "latency", "layers", "stem", "links", "hops"):
            assert np.broadcast_to(getattr(together, name), m.shape)[i] == pytest.approx(float(getattr(alone, name)))


@each(
    "m, share, lower, upper",
    [
        (1, 1.0, 4, 8.25),  # memory 3 + 1; all 2 + 4 + 1.5 + 0.5, and the hops
        (1, 0.25, 4, 8.25),  # a pass alone, whatever the stages
        (4, 0.5, 10, 18),  # a stage: 2 x 3 + 4 x 1 of memory; 4 + 10 + 3 + 1
        (2, 0.5, 5, 9),  # 1 x 3 + 2 x 1; 2 + 5 + 1.5 + 0.5
        (8, 0.125, 11, 15),
    ],
)
def test_bounds_of_what_overlaps(m, share, lower, upper):
    operators, stem = {"compute": 2.0, "memory": 3.0}, {"memory": 1.0}
    links = {"scale-up": 1.5, "latency": 0.5}
    assert bounds(operators, stem, links, 0.25, microbatches=m, share=share) == (pytest.approx(lower), pytest.approx(upper))


def test_a_resource_of_operators_and_links_is_one():
    """Overheads of both, three times 1 + 2, and twelve of the stem: 9 + 12."""
    found = bounds({"overhead": 1.0}, {"overhead": 4.0}, {"overhead": 2.0}, 5.0, microbatches=3, share=1.0)
    assert found == (21, 21)
    alone = bounds({"overhead": 1.0}, {"overhead": 4.0}, {"overhead": 2.0}, 5.0, microbatches=1, share=1.0)
    assert alone == (7, 12)


def served(stages: list[float], batches: int) -> float:
    """When the last of some micro-batches leaves stages that take one at a time, in order: a simulation."""
    free, end = [0.0] * len(stages), 0.0
    for _ in range(batches):
        end = 0.0
        for k, seconds in enumerate(stages):
            end = free[k] = max(end, free[k]) + seconds
    return end


@each("m", [1, 2, 3, 8, 16, 24])
@each("stages", [[1.0], [2.0, 2.0], [3.0, 3.0, 4.0], [4.0, 3.0, 3.0], [1.0] * 8, [2.0, 3.0, 2.0, 3.0]])
def test_the_latency_without_collectives_is_that_of_stages_in_a_row(stages, m):
    found = cycle(sum(stages), 0.0, 0.0, 0.0, microbatches=m, share=max(stages) / sum(stages))
    assert float(found.latency) == pytest.approx(served(stages, m))


@each("m", [1, 2, 4, 9])
def test_a_head_on_the_fullest_stage_is_served_with_it(m):
    found = cycle(9.0, 2.0, 0.0, 0.0, microbatches=m, share=1 / 3)
    assert float(found.latency) == pytest.approx(served([3.0, 3.0, 3.0 + 2.0], m))
