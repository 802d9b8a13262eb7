"""The time of a prefill pass by its prompts: straight lines through the passes that are evaluated."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.planning.prefill_pool import _looked_at, _pass_time


@pytest.mark.parametrize(
    ("groups", "seats", "prompts"),
    [
        (1, 1, [1]),
        (8, 8, [8, 1]),
        (1, 4, [4, 1, 1, 2, 2]),
        (1, 16, [16, 1, 1, 2, 6]),  # a third of the fifteen beyond the first
        (2, 4, [4, 1, 2, 3, 3]),  # one of two ranks has both of its prompts
        (8, 16, [16, 1, 8, 9, 12]),
        (8, 24, [24, 1, 8, 9, 16]),  # three rows: two prompts per rank
        (8, 48, [48, 1, 8, 9, 16]),
        (8, 56, [56, 1, 8, 9, 24]),  # beyond six rows: a third of the 48
        (2, 12, [12, 1, 2, 3, 5]),  # two ranks have no rows
    ],
)
def test_passes_that_are_evaluated(groups, seats, prompts):
    assert [int(x) for x in _looked_at(groups, np.array(seats))] == prompts


def seconds_of_rows(prompts, groups=8):
    """A pass of 1 s a row of one prompt per rank, and 10 ms a prompt."""
    return np.ceil(np.asarray(prompts) / groups) + 0.01 * np.asarray(prompts)


@pytest.mark.parametrize("seats", [16, 24, 40, 48])
def test_few_rows_last_as_long_as_their_rows(seats):
    looked_at = _looked_at(8, np.array(seats))
    time = _pass_time(looked_at, seconds_of_rows(np.stack(looked_at)), 8)
    prompts = np.arange(1, seats + 1)
    assert time(prompts) == pytest.approx(seconds_of_rows(prompts))
    assert (float(time.kink), float(time.jump)) == (8, pytest.approx(1.0))
    assert float(time.row_jump) == pytest.approx(1.0 if seats > 16 else 0.0)


def test_many_rows_lie_on_a_line_to_the_longest_pass():
    looked_at = _looked_at(8, np.array(80))
    time = _pass_time(looked_at, seconds_of_rows(np.stack(looked_at)), 8)
    for prompts in (1, 8, 9, 32, 80):
        assert float(time(prompts)) == pytest.approx(float(seconds_of_rows(prompts)))
    assert float(time(56)) == pytest.approx(float(seconds_of_rows(32) + seconds_of_rows(80)) / 2)
    assert float(time.row_jump) == 0


def test_one_rank_bends_at_a_third():
    """1 s for one prompt, 0.1 s for each up to six of sixteen, 0.3 s for each after."""
    looked_at = _looked_at(1, np.array(16))
    time = _pass_time(looked_at, np.interp(np.stack(looked_at), [1, 6, 16], [1.0, 1.5, 4.5]), 1)
    assert time(np.array([1, 2, 6, 7, 16])) == pytest.approx([1.0, 1.1, 1.5, 1.8, 4.5])
    assert (float(time.jump), float(time.row_jump)) == (0, 0)


def test_prompts_that_ranks_take_side_by_side_add_no_jump():
    """Two ranks, 0.5 s for the second: each further prompt adds as much, from the second on."""
    looked_at = _looked_at(2, np.array(14))
    time = _pass_time(looked_at, 1 + 0.5 * (np.stack(looked_at) - 1.0), 2)
    assert float(time.jump) == 0
    assert time(np.arange(1, 15)) == pytest.approx(1 + 0.5 * np.arange(14))


def test_passes_of_one_prompt_per_rank_have_no_further_one():
    looked_at = _looked_at(4, np.array(4))
    time = _pass_time(looked_at, np.array([2.5, 1.0]), 4)
    assert time(np.array([1, 2, 3, 4])) == pytest.approx([1.0, 1.5, 2.0, 2.5])
    single = _pass_time(_looked_at(1, np.array(1)), np.array([3.0]), 1)
    assert float(single(1)) == float(single(5)) == 3.0


def test_times_that_fall_count_as_level():
    looked_at = _looked_at(8, np.array(80))
    time = _pass_time(looked_at, np.array([4.0, 3.0, 2.0, 1.0, 5.0]), 8)
    assert min(float(x) for x in (time.slope_to_kink, time.jump, time.beyond, time.far, time.row_jump)) == 0


def test_pools_of_unequal_ranks_have_the_times_of_each():
    groups, seats = np.array([1, 2, 8, 8]), np.array([16, 12, 24, 80])
    looked_at = _looked_at(groups, seats)
    together = _pass_time(looked_at, np.ceil(np.stack(looked_at) / groups) + 0.01 * np.stack(looked_at), groups)
    for index, (count, most) in enumerate(zip(groups.tolist(), seats.tolist(), strict=True)):
        alone = _looked_at(count, np.array(most))
        time = _pass_time(alone, seconds_of_rows(np.stack(alone), count), count)
        for name in ("first", "slope_to_kink", "kink", "jump", "beyond", "far", "row_jump"):
            assert np.broadcast_to(getattr(together, name), 4)[index] == pytest.approx(float(getattr(time, name))), name
