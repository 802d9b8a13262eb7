"""Which layouts are legal, how many there are, and how many replicas fit: by hand, and by counting in another way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import LayoutError
from steptime.models.model import Attention
from steptime.number_checks import divisors
from steptime.physics.layout import Layout, check_ways, exchanges_experts, select_layouts, shaped, show_layout, stacked
from steptime.physics.layout_rules import check
from steptime.physics.layout_space import legal, replicas
from tests.conftest import each, experts, machine, matrix, model_of

COUNTS = {
    # 32 heads: tp 1, 2, 4, 8 with pp of 1, 2, 3, 4, 6, 8 within eight chips are 6 + 4 + 2 + 1, with one micro-batch or two
    ("llama-3.1-8b", "hgx-h100", 8): 26,
    ("llama-3.1-8b", "hgx-h200", 16): 42,
    ("llama-3.1-8b", "gb200-nvl72", 72): 96,
    ("mixtral-8x7b", "hgx-h100", 8): 156,
    ("mixtral-8x7b", "hgx-h200", 16): 316,
    ("mixtral-8x7b", "gb200-nvl72", 72): 1100,
    ("deepseek-v3", "hgx-h100", 8): 258,
    ("deepseek-v3", "hgx-h200", 16): 630,
    ("deepseek-v3", "gb200-nvl72", 72): 3258,
}


def counted(model, system, chips) -> set[tuple[int, ...]]:
    """(tp, cp, pp, dp, ep, microbatches, redundant experts) by trying all numbers against the rules."""
    routed = max((layer.routed.experts for layer, _ in model.layers if layer.routed), default=0)
    kv = max(a.kv_shards for layer, _ in model.layers for a in layer.attention)
    domain, found = min(system.scale_up.size, chips), set()
    for group in range(1, domain + 1):
        for tp in (n for n in range(1, group + 1) if group % n == 0):
            cp = group // tp
            if model.heads % group or cp not in (1, 2, 4, 8) or (cp > 1 and tp < kv):
                continue
            for pp in (p for p in (1, 2, 3, 4, 6, 8, 9, 12, 16) if p <= model.depth and p * group <= chips):
                room = chips // (group * pp)
                for dp in range(1, room + 1 if routed else 2):
                    odd = dp // (dp & -dp)
                    even = odd == 1 or (odd <= 13 and dp <= 256) or system.scale_up.size % dp == 0
                    straddles = group * dp > domain and domain % group
                    if (routed and not even) or straddles:
                        continue
                    spread = max(e for e in range(1, group * dp + 1) if group * dp % e == 0 and e <= max(routed, 1))
                    found |= {
                        (tp, cp, pp, dp, ep, pp * m, -routed % ep + more)
                        for m in (1, 2)
                        for ep in {1, spread}
                        if ep == 1 or dp == 1 or spread == group * dp
                        for more in ({0, ep} if ep > 1 else {0})
                    }
    return found


@pytest.mark.parametrize(
    ("model", "system", "chips"),
    [pytest.param(*case, marks=pytest.mark.thorough) if count > 1000 else case for case, count in COUNTS.items()],
)
def test_legal_layouts_are_counted(model, system, chips):
    described, on = st.load_model(model), st.load_system(system)
    found = list(legal(described, on, chips))
    assert len(found) == COUNTS[model, system, chips]
    ways = {(m.tp, m.cp, m.pp, m.dp, m.ep, m.microbatches, m.redundant_experts) for m in found}
    assert ways == counted(described, on, chips)
    for layout in found:
        assert layout.replicas == replicas(on.scale_up.size, chips, layout.chips) >= 1
        check(layout, described, on)


def test_every_layout_of_a_small_model_on_four_chips():
    """Two heads, one KV head, two layers: tp 1 or 2, cp 2 where tp is 1 (a chip can hold its head), pp 1 or 2."""
    model = model_of(matrix(), attention=(Attention(name="kv", kv_bytes=1.0, heads=2),), layers=2, heads=2)
    found = [show_layout(m) for m in legal(model, machine(size=4), 4, microbatches=(1,))]
    assert found == ["x4", "cp2 x2", "pp2 mb2 x2", "pp2 cp2 mb2", "tp2 x2", "tp2 pp2 mb2"]


def test_every_layout_of_four_experts_on_two_nodes_of_two():
    """One head, one layer: groups of one chip; experts on all chips or, each over all chips, on none in particular."""
    model = model_of(experts(count=4, active=1), layers=1, heads=1)
    found = [show_layout(m) for m in legal(model, machine(size=2), 4, microbatches=(1,))]
    assert found == [
        "x4", "dp2 x2", "dp2 ep2 x2", "dp2 ep2 x2 red2", "dp3", "dp3 ep3 red2", "dp3 ep3 red5", "dp4",
        "dp4 ep4", "dp4 ep4 red4",
    ]  # fmt: skip
    fewer = [show_layout(m) for m in legal(model_of(experts(count=3, active=1), layers=1, heads=1), machine(size=2), 4)]
    assert [text for text in fewer if "mb" not in text] == [
        "x4", "dp2 x2", "dp2 ep2 x2 red1", "dp2 ep2 x2 red3", "dp3", "dp3 ep3", "dp3 ep3 red3", "dp4",
    ]  # fmt: skip


def test_replicas_grow_to_256_chips_or_a_domain():
    """Beyond, only where a scale-up domain is larger."""
    model = model_of(experts(count=4096, active=1), layers=1, heads=1)
    assert max(m.chips for m in legal(model, machine(size=8), 1024)) == 256
    assert max(m.chips for m in legal(model, machine(size=512), 1024)) == 512
    assert max(m.chips for m in legal(model, machine(size=8), 100)) == 96  # the rung below: four chips idle


def test_a_group_stays_inside_its_domain_and_a_stage_holds_whole_ones():
    """Six chips a node, two nodes: a group of four fits one node, but two such groups would straddle them."""
    model = model_of(experts(), layers=1, heads=4)
    found = list(legal(model, machine(size=6), 12, microbatches=(1,)))
    assert {m.group for m in found} == {1, 2, 4}
    assert {m.stage for m in found if m.group == 4} == {4}
    assert {m.stage for m in found if m.group == 2} == {2, 4, 6, 8, 10, 12}


@each(
    "chips, each, count",
    [
        (8, 1, 8),
        (8, 3, 2),
        (16, 3, 4),  # two in each node of eight
        (20, 3, 5),  # and one in the four chips left
        (16, 5, 2),
        (16, 8, 2),
        (24, 16, 1),
        (32, 12, 2),  # larger than a node: 32 over 12
        (6, 4, 1),  # less than a node
        (6, 7, 0),
        (15, 8, 1),
    ],
)
def test_replicas_are_whole_in_their_nodes_of_eight(chips, each, count):
    assert replicas(8, chips, each) == count


def test_only_groups_with_experts_apart_exchange_tokens():
    assert exchanges_experts(Layout(dp=2, ep=2))
    assert not exchanges_experts(Layout(dp=2))
    assert not exchanges_experts(Layout(tp=2, ep=2))


KEPT = (Attention(name="kv", kv_bytes=1.0),)
DENSE, SPARSE = (model_of(op, attention=KEPT, heads=12, layers=4) for op in (matrix(), experts(count=6)))
STATE = model_of(matrix(), attention=(Attention(name="state", state_bytes=1.0),), heads=12)


@each(
    "layout, model, says",
    [
        ({"tp": 5}, DENSE, r"tp=5 does not divide the 12 heads of toy; try 1, 2, 3, 4 or 6"),
        ({"tp": 4, "cp": 2}, DENSE, r"tp x cp=8 does not divide the 12 heads of toy; try 1, 2, 3, 4 or 6"),
        ({"tp": 2}, model_of(matrix(), attention=KEPT, heads=3), r"tp=2 does not divide the 3 heads of toy; try 1 or 3"),
        ({"tp": 0}, DENSE, r"tp must be at least 1, not 0"),
        ({"tp": 1.5}, DENSE, r"tp must be a whole number of at least 1, not 1.5"),
        ({"redundant_experts": -1}, SPARSE, r"redundant_experts must be at least 0, not -1"),
        ({"pp": 5}, DENSE, r"pp=5 is more than the 4 layers of toy"),
        ({"tp": 2, "ep": 2}, DENSE, r"ep=2, but toy has no experts; use tp or pp"),
        ({"dp": 2}, DENSE, r"dp=2, but toy has no routed experts that data-parallel ranks could share; use replicas"),
        ({"tp": 4, "ep": 3}, SPARSE, r"ep=3 does not divide the tp x cp x dp = 4 chips of a stage; try 2 or 4"),
        ({"dp": 7, "ep": 7}, SPARSE, r"ep=7 is more than the 6 experts of toy"),
        ({"cp": 2}, STATE, r"cp=2, but toy has no KV cache to divide"),
        ({"tp": np.array([1, 5])}, DENSE, r"does not divide the 12 heads of toy; try a degree that divides it"),
    ],
)
def test_a_layout_that_does_not_divide_the_model_is_refused(layout, model, says):
    with pytest.raises(LayoutError, match=says):
        check(Layout(**layout), model, machine())


@each(
    "layout, model",
    [
        ({"tp": 12, "pp": 4}, DENSE),
        ({"tp": 2.0}, DENSE),
        ({"redundant_experts": 0, "dp": 6, "ep": 6}, SPARSE),
        ({"cp": 3}, DENSE),
        ({"tp": 3}, STATE),
        ({"tp": np.array([1, 2, 12])}, DENSE),
    ],
)
def test_a_layout_that_divides_it_is_not(layout, model):
    check(Layout(**layout), model, machine())


def test_a_context_is_divided_where_one_mixer_keeps_it():
    mixed = model_of(matrix(), attention=(Attention(name="state", state_bytes=1.0), Attention(name="kv", kv_bytes=1.0)))
    check(Layout(cp=2), mixed, machine())


def test_a_machine_of_so_many_chips_has_no_more():
    system = machine()
    closed = replace(system, domains=(system.domains[0], replace(system.domains[1], size=16)))
    check(Layout(dp=16), SPARSE, closed)
    with pytest.raises(LayoutError, match="32 chips are more than the 16 of toy"):
        check(Layout(dp=16, pp=2), SPARSE, closed)


def test_sizes_of_a_layout():
    layout = Layout(tp=2, cp=3, dp=5, pp=7)
    assert (layout.group, layout.stage, layout.chips) == (6, 30, 210)
    assert show_layout(replace(layout, microbatches=2, replicas=4, redundant_experts=1)) == "tp2 pp7 dp5 cp3 mb2 x4 red1"


def test_layouts_as_columns():
    table = stacked([Layout(tp=2), Layout(tp=4, dp=3)])
    assert table.tp.tolist() == [2, 4]
    assert table.dp.tolist() == [1, 3]
    assert shaped(table, 2).tp.shape == (2, 1, 1)
    assert divisors(12) == (1, 2, 3, 4, 6, 12)


def test_a_layout_in_words():
    assert repr(Layout()) == "Layout()"
    assert repr(Layout(tp=8, pp=3, redundant_experts=2)) == "Layout(tp=8, pp=3, redundant_experts=2)"
    assert repr(Layout(tp=np.array([1, 2]))) == "Layout(tp=1 to 2, shape (2,))"
    assert Layout(tp=8, pp=30, dp=5).headline() == ("Layout(tp=8, pp=30, dp=5)", {"chips of a replica": "1,200"})
    columns = Layout(tp=np.array([1, 2]), dp=3).columns()
    assert {name: value.tolist() for name, value in columns.items()} == {
        "tp": [1, 2], "pp": [1, 1], "dp": [3, 3], "ep": [1, 1], "cp": [1, 1], "microbatches": [1, 1], "replicas": [1, 1],
        "redundant_experts": [0, 0],
    }  # fmt: skip


def test_fields_of_a_layout_may_be_lists_that_go_together():
    found = check_ways(Layout(tp=[1, 2], dp=(3, 4)))
    assert (found.tp.tolist(), found.dp.tolist()) == ([1, 2], [3, 4])
    plain = Layout(tp=2)
    assert check_ways(plain) is plain
    with pytest.raises(LayoutError, match="layout: the shapes of its fields do not broadcast"):
        check_ways(Layout(tp=[1, 2], dp=[1, 2, 3]))
    with pytest.raises(LayoutError, match="dp must be at most 200,000"):
        check_ways(Layout(dp=200_001))
    assert check_ways(Layout(dp=200_000))


def test_rows_of_layouts():
    table = stacked([Layout(tp=2), Layout(tp=4, dp=3), Layout(tp=8)])
    some = select_layouts(table, np.array([2, 1]))
    assert (some.tp.tolist(), some.dp.tolist(), some.replicas.tolist()) == ([8, 4], [1, 3], [1, 1])
    assert select_layouts(table, np.array([[0], [1]])).tp.shape == (2, 1)


@each("wrong", [0, -1, 2.5, "8", None, True, 10**9])
@each("name", ["tp", "replicas"])
def test_layout_of_a_scalar_that_counts_nothing_is_refused(name, wrong):
    with pytest.raises(LayoutError, match=name):
        Layout(**{name: wrong})


def test_layout_of_arrays_and_of_no_redundant_experts_is_made():
    layout = Layout(tp=np.array([1, 2]), dp=[1, 2], redundant_experts=0)
    assert (layout.tp.tolist(), layout.dp, layout.redundant_experts) == ([1, 2], [1, 2], 0)
