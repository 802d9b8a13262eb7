"""Sums of a part of a pass, by hand: terms, what is waited for, busy seconds, and the entries behind them."""

from __future__ import annotations

import numpy as np

from steptime.physics.time_ledger import Clock, Entry, accumulate
from tests.conftest import each


def test_a_clock_adds_up_its_entries():
    clock = Clock(explained=True)
    clock.add({"a": 3.0}, {"compute": 1.0, "weights": 2.0}, {"compute": 2.5, "memory": 2.0}, name="one")
    clock.add({"b": 4.0}, {"kv": 4.0}, {"memory": 4.0}, name="two")
    clock.add({"a": 0.5}, {"compute": 0.5}, {"compute": 0.5}, name="three")
    assert clock.total == 7.5
    assert clock.terms == {"a": 3.5, "b": 4.0}
    assert clock.resources == {"compute": 1.5, "weights": 2.0, "kv": 4.0}
    assert clock.busy == {"compute": 3.0, "memory": 6.0}
    assert [entry.name for entry in clock.entries] == ["one", "two", "three"]


def test_a_clock_without_parts_keeps_the_sums():
    clock = Clock(has_terms=False, has_resources=False)
    clock.add({"a": 3.0}, {"compute": 3.0}, {"compute": 2.5, "memory": 2.0}, name="one")
    clock.wait("layer", 3, 0.25)
    assert (clock.total, clock.busy) == (3.75, {"compute": 2.5, "memory": 2.0, "overhead": 0.75})
    assert (clock.terms, clock.resources, clock.entries) == ({}, {}, [])


def test_an_overhead_is_waited_for_and_busy():
    """Three times a quarter of a second."""
    clock = Clock(explained=True)
    clock.wait("layer", 3, 0.25)
    assert (clock.total, clock.terms, clock.resources, clock.busy) == (0.75, *[{"overhead": 0.75}] * 3)
    (entry,) = clock.entries
    assert (entry.term, entry.name, entry.seconds, entry.count, entry.seconds_each) == ("overhead", "layer", 0.75, 3, 0.25)


def test_what_counts_of_an_entry():
    """Seconds of one micro-batch, as often as they count in the period."""
    assert Entry(term="a", name="b", seconds=3.0).counted == 3.0
    assert Entry(term="a", name="b", seconds=3.0, weight=0.5).counted == 1.5
    plain = Entry(term="a", name="b", seconds=3.0)
    assert (plain.count, plain.compute, plain.memory, plain.demand, plain.times, plain.traffic, plain.seconds_each) == (
        1, 0, 0, None, 1, None, 0,
    )  # fmt: skip


@each(
    "times, expected",
    [
        (1.0, {"a": 3.0, "b": 3.0}),
        (2.0, {"a": 5.0, "b": 6.0}),
        (0.0, {"a": 1.0, "b": 0.0}),
        (np.array([1.0, 1.0]), {"a": [3.0, 3.0], "b": [3.0, 3.0]}),
        (np.array([0.0, 2.0]), {"a": [1.0, 5.0], "b": [0.0, 6.0]}),
    ],
)
def test_values_are_added_so_many_times(times, expected):
    sums: dict = {"a": 1.0}
    accumulate(sums, {"a": 2.0, "b": 3.0}, times)
    assert list(sums) == ["a", "b"]
    for name, value in expected.items():
        assert np.asarray(sums[name]).tolist() == value
        assert np.shape(sums[name]) == np.shape(times)
