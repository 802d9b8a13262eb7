"""Which ways a search tries, by hand: divisors, groups, ways of experts, stages; and what is said of one that is not."""

from __future__ import annotations

from steptime.models.model import Attention
from steptime.number_checks import divisors
from steptime.physics.layout import Facts, Layout
from steptime.physics.layout_space import DEGREES, expert_ways, groups, legal, not_tried, proposed
from tests.conftest import each, engine, experts, machine, matrix, model_of


@each("number, found", [(1, (1,)), (2, (1, 2)), (9, (1, 3, 9)), (12, (1, 2, 3, 4, 6, 12)), (13, (1, 13))])
def test_divisors(number, found):
    assert divisors(number) == found


@each(
    "most, shared, found",
    [
        (1, True, [1]),
        (2, True, [1, 2]),
        (9, True, [*range(1, 10)]),
        (16, True, [*range(1, 15), 16]),  # 15 is no rung
        (17, True, [*range(1, 15), 16]),
        (34, True, [*range(1, 15), 16, 18, 20, 22, 24, 26, 28, 32]),
        (12, False, [1]),
        (1, False, [1]),
        (0, True, []),
        (0, False, []),
    ],
)
def test_attention_groups(most, shared, found):
    assert groups(most, shared=shared) == found


@each(
    "stage, dp, experts_, found",
    [
        (8, 1, 64, [1, 8]),
        (8, 8, 64, [1, 8]),
        (8, 4, 64, [1, 8]),
        (8, 8, 8, [1, 8]),
        (8, 8, 7, [1]),  # groups exchange tokens among all chips or none
        (8, 1, 7, [1, 4]),  # one group: as many ways as there are experts for
        (9, 1, 8, [1, 3]),
        (1, 1, 64, [1]),
        (8, 1, 1, [1]),
        (8, 2, 0, [1]),
    ],
)
def test_ways_of_experts(stage, dp, experts_, found):
    assert expert_ways(stage, dp, experts_) == tuple(found)


def axes(facts: Facts, chips: int, microbatches=(1,)) -> dict[str, set[int]]:
    found = list(proposed(facts, chips, microbatches))
    return {name: {x[DEGREES.index(name)] for x in found} for name in ("tp", "pp", "dp", "ep", "cp", "microbatches")}


DENSE = Facts(heads=8, depth=4, domain=8, chips=8)


@each(
    "facts, chips, expected",
    [
        (
            DENSE,
            8,
            {"tp": {1, 2, 4, 8}, "pp": {1, 2, 3, 4}, "cp": {1, 2, 4, 8}, "dp": {1}, "ep": {1}, "microbatches": {1, 2, 3, 4}},
        ),
        (DENSE, 2, {"tp": {1, 2}, "pp": {1, 2}, "cp": {1, 2}}),
        (Facts(heads=8, depth=40, domain=4, chips=16), 16, {"tp": {1, 2, 4}, "pp": {1, 2, 3, 4, 6, 8, 9, 12, 16}}),
        (
            Facts(heads=1, depth=1, experts=6, domain=8, chips=8),
            8,
            {"dp": {1, 2, 3, 4, 5, 6, 7, 8}, "ep": {1, 2, 3, 4, 5, 6}, "cp": {1, 2, 4, 8}},
        ),
    ],
)
def test_axes_that_are_tried(facts, chips, expected):
    found = axes(facts, chips)
    assert {name: found[name] for name in expected} == expected


def test_micro_batches_are_so_many_a_stage():
    assert axes(DENSE, 8, (1, 2))["microbatches"] == {1, 2, 3, 4, 6, 8}
    assert axes(DENSE, 8, (3,))["microbatches"] == {3, 6, 9, 12}
    assert list(proposed(DENSE, 8, ())) == []


@each(
    "experts_, domain, chips, largest",
    [(4096, 8, 1000, 256), (4096, 8, 100, 96), (4096, 512, 1000, 512), (4096, 512, 300, 256)],
)
def test_replicas_grow_to_256_chips_or_a_domain(experts_, domain, chips, largest):
    facts = Facts(heads=1, depth=1, experts=experts_, domain=domain, chips=chips)
    assert max(axes(facts, chips)["dp"]) == largest


@each(
    "layout, microbatches, says",
    [
        (Layout(tp=4), (1, 2), ""),
        (Layout(tp=2, pp=2, microbatches=4), (1, 2), ""),
        (Layout(tp=4, replicas=3), (1, 2), ""),  # as many as fit
        (Layout(tp=4, redundant_experts=5), (1, 2), "redundant_experts=5 is not tried here; the search tries 0"),
        (Layout(tp=3), (1, 2), "tp=3 is not tried here; the search tries 1, 2, 4, 8"),
        (Layout(tp=4, pp=3), (1, 2), "pp=3 is not tried here; the search tries 1, 2"),  # with tp=4 on eight chips
        (Layout(tp=2, dp=2), (1, 2), "dp=2 is not tried here; the search tries 1"),
        (Layout(tp=2, cp=3), (1, 2), "cp=3 is not tried here; the search tries 1, 2, 4"),
        (Layout(microbatches=2), (1,), "microbatches=2 is not tried here; the search tries 1"),
        (Layout(pp=2), (1, 2), "microbatches=1 is not tried here; the search tries 2, 4"),
    ],
)
def test_what_is_not_tried_is_said(layout, microbatches, says):
    assert not_tried(layout, DENSE, 8, microbatches) == says


def test_two_micro_batches_are_tried_unless_told():
    assert not_tried(Layout(microbatches=2), DENSE, 8) == ""
    model = model_of(matrix(), attention=(Attention(name="kv", kv_bytes=1.0),), heads=1, layers=1)
    assert [x.microbatches for x in legal(model, machine(size=1), 1)] == [1, 2]
    assert [x.microbatches for x in legal(model, machine(size=1), 1, engine=engine(two_batch=0.0))] == [1]
    assert legal(model, machine(size=1), 1, microbatches=()) == []


def test_replicas_are_as_many_as_fit():
    """Two chips of three on each of two nodes, and what is left; experts on one, two or three."""
    model = model_of(experts(count=8, active=1), heads=1, layers=1)
    found = {(x.dp, x.ep): x.replicas for x in legal(model, machine(size=3), 7, microbatches=(1,))}
    sizes = {1: 7, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1}  # one of two in each node, the seventh chip alone
    assert found == {(1, 1): 7} | {(dp, ep): sizes[dp] for dp in range(2, 8) for ep in (1, dp)}
