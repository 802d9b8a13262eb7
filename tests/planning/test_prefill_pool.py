"""The time of a prefill pass by its prompts: straight lines through the passes that are evaluated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steptime.physics.layout import Layout
from steptime.planning.batch_queue import PassTime
from steptime.planning.prefill_pool import _looked_at, _pass_time, first_token, prefill_pool, within_limit
from tests.conftest import each, engine, machine, one_matrix
from tests.planning.cases import WORK


@each(
    "groups, seats, prompts",
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


@each("seats", [16, 24, 40, 48])
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


def test_a_rank_of_seven_prompts_bends_at_the_third():
    """1 s for one prompt, 0.2 s for each of two more, 0.5 s for each after."""
    looked_at = _looked_at(1, np.array(7))
    assert [int(x) for x in looked_at] == [7, 1, 1, 2, 3]
    time = _pass_time(looked_at, np.interp(np.stack(looked_at), [1, 3, 7], [1.0, 1.4, 3.4]), 1)
    assert time(np.array([1, 2, 3, 4, 7])) == pytest.approx([1.0, 1.2, 1.4, 1.9, 3.4])


def test_pools_of_one_prompt_stand_beside_larger_ones():
    looked_at = _looked_at(1, np.array([1, 16]))
    time = _pass_time(looked_at, 1.0 + np.stack(looked_at), 1)
    assert time(np.array([1, 16])) == pytest.approx([2.0, 17.0])
    assert len(_looked_at(np.array([1, 2]), np.array([1, 2]))) == 2


def test_the_limit_of_a_pool_counts_the_time_beyond_its_pass():
    """A pass of 1 s of one prompt that is 1.5 s under way: 2 s leave 0.5 s to wait, so that rho / (2 (1 - rho)) = 0.5."""
    pool = prefill_pool(one_matrix(), machine(), WORK, layout=Layout(), prompts=1, engine=engine())
    pool = replace(pool, time=PassTime(first=1.0), late=np.array(0.5), seats=1)
    assert float(within_limit(pool, 2.0, 1).most_utilised) == pytest.approx(0.5, abs=1e-3)
    many = within_limit(pool, 2.0, 4)
    assert float(many.most_utilised) > 0.7
    assert float(first_token(replace(many, rate=1.0), float(many.most_utilised), 4)) == pytest.approx(2.0, abs=0.01)
