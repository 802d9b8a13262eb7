"""One table of rules: what a check refuses, what a search leaves out, and why."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import LayoutError
from steptime.models.model import Attention, Layer
from steptime.physics.engine import load_engine
from steptime.physics.layout import ENGINE, MODEL, Facts, Layout, collect_facts, facts_of_engine, stacked
from steptime.physics.layout_rules import RULES, allowed, check, reasons
from steptime.physics.layout_space import legal, not_tried
from steptime.planning.plan_problem import PlanProblem
from steptime.planning.plan_search import absent_because, fitting
from tests.conftest import each, experts, machine, matrix, model_of

BROKEN = {  # one layout for each rule of scope "model" or "search", of DeepSeek-V3 (128 heads, 61 layers) on a rack of 72
    "heads": (Layout(tp=3), "does not divide the 128 heads"),
    "stages": (Layout(pp=62, microbatches=62), "pp=62 is more than the 61 layers"),
    "expert ways": (Layout(dp=8, ep=3), "ep=3 does not divide the tp x cp x dp = 8 chips"),
    "experts enough": (Layout(dp=512, ep=512), "more than the 256 experts"),
    "chips of the deployment": (Layout(dp=144, ep=144), "a replica of 144 chips is larger than the deployment of 72 chips"),
    "groups inside a domain": (Layout(tp=128), "is larger than the scale-up domain of 72"),
}


@each("name", BROKEN)
def test_a_broken_rule_says_why(name, deepseek, rack):
    layout, says = BROKEN[name]
    (rule,) = (r for r in RULES if r.name == name)
    facts = collect_facts(deepseek, rack, chips=72)
    assert not np.all(rule.holds(facts, layout))
    assert says in rule.reason(facts, layout)
    assert any(says in reason for reason in reasons(layout, facts))
    if rule.scope == MODEL:
        with pytest.raises(LayoutError, match=says):
            check(layout, deepseek, rack)
    else:
        check(layout, deepseek, rack)  # it could run


@each(
    "name, layout, says",
    [
        ("has experts", Layout(tp=2, ep=2), "has no experts; use tp or pp"),
        ("shared experts", Layout(dp=2), "no routed experts that data-parallel ranks could share"),
        ("heads before context", Layout(tp=4, cp=2), "although tp=4 does not yet divide all 8 KV heads"),
    ],
)
def test_a_dense_model_has_rules_of_its_own(name, layout, says):
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    facts = collect_facts(model, system, chips=8)
    assert [r.name for r in RULES if r.scope != ENGINE and not np.all(r.holds(facts, layout))] == [name]
    assert says in reasons(layout, facts)[0]


def test_groups_fill_domains():
    """Stages of 16 chips in groups of 6 on domains of 8: one group of three would lie in two domains."""
    facts = Facts(heads=96, depth=10, experts=64, domain=8.0, chips=48)
    assert allowed(Layout(tp=np.array([4, 6]), dp=np.array([4, 4])), facts).tolist() == [True, False]


def test_what_is_found_breaks_no_rule_and_what_breaks_one_is_not_found(deepseek, rack):
    found = legal(deepseek, rack, 72)
    facts = collect_facts(deepseek, rack, chips=72)
    assert np.all(allowed(stacked(found), facts))
    assert all(not reasons(layout, facts) for layout in found[::97])
    assert not [layout for layout, _ in BROKEN.values() if layout in found]


def test_an_engine_overlaps_two_batches_where_its_rule_says(deepseek, rack):
    plain, shared = Layout(tp=8, microbatches=2), Layout(dp=8, ep=8, microbatches=2)
    holds = {
        name: [
            not reasons(x, collect_facts(deepseek, rack, engine=load_engine(name)), scopes=(ENGINE,)) for x in (plain, shared)
        ]
        for name in ("ideal", "vllm", "trtllm")
    }
    assert holds == {"ideal": [True, True], "vllm": [False, True], "trtllm": [False, False]}
    for name, held in holds.items():
        kept = legal(deepseek, rack, 8, engine=load_engine(name))
        assert any(x.microbatches > x.pp for x in kept) == any(held)


def test_an_absent_layout_is_explained(deepseek, rack):
    """A rule, memory, or a way that is not tried; and nothing for each layout that is."""
    case = PlanProblem(
        model=deepseek,
        system=rack,
        workload=st.Workload(input_tokens=1000, output_tokens=100),
        slo=st.Slo(),
        chips=72,
        engine=load_engine("vllm"),
    )
    assert "does not divide the 128 heads" in absent_because(case, Layout(tp=3))[0]
    assert "overlaps two micro-batches" in absent_because(case, Layout(tp=8, microbatches=2))[0]
    assert absent_because(case, Layout(dp=128, ep=128)) == [
        "a replica of 128 chips is larger than the deployment of 72 chips; try --chips 128"
    ]
    assert "its weights take 673 GB of a chip, which has" in absent_because(case, Layout())[0]
    assert "pp=5 is not tried here; the search tries 1, 2, 3" in absent_because(case, Layout(tp=8, pp=5, microbatches=5))[0]
    assert not [layout for layout in fitting(case)[::53] if absent_because(case, layout)]


def test_every_way_that_is_tried_is_told():
    facts = Facts(heads=8, depth=4, experts=0, domain=8, chips=8)
    assert not_tried(Layout(tp=4), facts, 8) == ""
    assert not_tried(Layout(tp=3), facts, 8) == "tp=3 is not tried here; the search tries 1, 2, 4, 8"
    assert math.isinf(Facts().max_chips)


FACTS = Facts(
    model="m", system="s", heads=12, kv_heads=4, depth=6, experts=8, domain=8, max_chips=32, chips=16, engine="e", two_batch=1.0
)


@each(
    "name, holds, breaks",
    [
        ("heads", {"tp": 4, "cp": 3}, {"tp": 4, "cp": 2}),
        ("stages", {"pp": 6}, {"pp": 7}),
        ("expert ways", {"tp": 2, "cp": 2, "dp": 3, "ep": 6}, {"tp": 2, "dp": 3, "ep": 4}),
        ("experts enough", {"dp": 8, "ep": 8}, {"dp": 9, "ep": 9}),
        ("chips of the machine", {"tp": 2, "pp": 2, "dp": 4, "replicas": 2}, {"tp": 2, "pp": 2, "dp": 4, "replicas": 3}),
        ("chips of the deployment", {"tp": 2, "pp": 2, "dp": 4, "replicas": 2}, {"tp": 2, "pp": 3, "dp": 3}),
        ("heads before context", {"tp": 4, "cp": 2}, {"tp": 3, "cp": 2}),
        ("heads before context", {"tp": 3}, {"tp": 1, "cp": 2}),
        ("groups inside a domain", {"tp": 4, "cp": 2, "dp": 2}, {"tp": 9}),
        ("groups that fill a domain", {"tp": 4, "dp": 3}, {"tp": 3, "dp": 3}),  # twelve chips of three groups on domains of 8
        ("groups that fill a domain", {"tp": 3, "dp": 2}, {"tp": 6, "dp": 2}),
        ("two batches", {"pp": 2, "microbatches": 2}, {"pp": 2, "microbatches": 4}),
        ("two batches", {"dp": 2, "ep": 2, "microbatches": 2}, {"dp": 2, "microbatches": 2}),
    ],
)
def test_rules_at_their_edges(name, holds, breaks):
    (rule,) = (r for r in RULES if r.name == name)
    assert np.all(rule.holds(FACTS, Layout(**holds)))
    assert not np.any(rule.holds(FACTS, Layout(**breaks)))
    assert rule.reason(FACTS, Layout(**breaks)) in reasons(Layout(**breaks), FACTS)
    both = {axis: np.array([holds.get(axis, 1), breaks.get(axis, 1)]) for axis in {*holds, *breaks}}
    assert np.asarray(rule.holds(FACTS, Layout(**both))).tolist() == [True, False]


@each(
    "name, facts, layout, holds",
    [
        ("has experts", {"experts": 0}, {"ep": 1}, True),
        ("has experts", {"experts": 0}, {"tp": 2, "ep": 2}, False),
        ("experts enough", {"experts": 0}, {"tp": 2, "ep": 2}, True),  # that it has none is another rule's
        ("shared experts", {"experts": 0}, {"dp": 1}, True),
        ("shared experts", {"experts": 0}, {"dp": 2}, False),
        ("shared experts", {"experts": 1}, {"dp": 2}, True),
        ("divided cache", {"cached": False}, {"cp": 1}, True),
        ("divided cache", {"cached": False}, {"cp": 2}, False),
        ("divided cache", {"cached": True}, {"cp": 2}, True),
        ("two batches", {"two_batch": 2.0}, {"microbatches": 2}, True),
        ("two batches", {"two_batch": 0.0}, {"dp": 2, "ep": 2, "microbatches": 2}, False),
        ("two batches", {"two_batch": 0.0}, {"pp": 3, "microbatches": 3}, True),
    ],
)
def test_rules_of_some_models_and_engines(name, facts, layout, holds):
    (rule,) = (r for r in RULES if r.name == name)
    assert bool(np.all(rule.holds(replace(FACTS, **facts), Layout(**layout)))) is holds


@each(
    "layout, says",
    [
        ({"tp": 5}, "tp=5 does not divide the 12 heads of m; try 1, 2, 3, 4 or 6"),
        ({"tp": 4, "cp": 2}, "tp x cp=8 does not divide the 12 heads of m; try 1, 2, 3, 4 or 6"),
        ({"dp": 5, "ep": 3}, "ep=3 does not divide the tp x cp x dp = 5 chips of a stage; try 1 or 5"),
        ({"pp": 6, "dp": 6}, "36 chips are more than the 32 of s"),
        ({"pp": 3, "dp": 6}, "a replica of 18 chips is larger than the deployment of 16 chips"),
        ({"tp": 3, "cp": 2}, "cp=2 divides contexts although tp=3"),
        ({"tp": 12}, "a data-parallel rank of 12 chips is larger than the scale-up domain of 8"),
        ({"tp": 3, "dp": 4}, "a data-parallel rank of 3 chips would span two scale-up domains of 8"),
        ({"microbatches": 2}, "e overlaps two micro-batches of a stage only where data-parallel ranks exchange tokens"),
    ],
)
def test_reasons_name_the_axis_and_what_would_do(layout, says):
    assert any(says in reason for reason in reasons(Layout(**layout), FACTS))


def test_an_engine_without_a_name_or_overlap():
    layout = Layout(microbatches=2)
    assert reasons(layout, replace(FACTS, engine="", two_batch=0.0)) == [
        "the engine overlaps two micro-batches of a stage in no layout"
    ]


def test_facts_that_are_not_told_forbid_nothing():
    """One KV head, a cache, and machines and engines without end."""
    facts = Facts(heads=8, depth=8, experts=8, domain=8)
    assert reasons(Layout(cp=2, pp=8, replicas=10**5, microbatches=16), facts) == []
    assert reasons(Layout(), Facts(heads=1, depth=1, domain=1)) == []


def test_facts_of_a_model_on_some_chips():
    """A layer that keeps a cache beside layers with states; experts of the kind that has fewest."""
    state, kept = Attention(name="state", state_bytes=1.0), Attention(name="kv", kv_bytes=1.0, kv_shards=6)
    layers = (
        (Layer(name="a", ops=(experts(count=16),), attention=(state,)), 2),
        (Layer(name="b", ops=(experts(count=4),), attention=(kept, replace(kept, kv_shards=3))), 3),
        (Layer(name="c", ops=(matrix(),)), 1),
    )
    model = replace(model_of(heads=24), layers=layers)
    facts = collect_facts(model, machine(size=8))
    assert (facts.model, facts.system, facts.heads, facts.kv_heads) == ("toy", "toy", 24, 6)
    assert (facts.depth, facts.experts, facts.cached) == (6, 4, True)
    assert (facts.domain, facts.max_chips, facts.chips, facts.engine, facts.two_batch) == (8, math.inf, math.inf, "", 2)
    few = collect_facts(model, machine(size=8), chips=6, engine=load_engine("trtllm"))
    assert (few.domain, few.max_chips, few.chips, few.engine, few.two_batch) == (6, math.inf, 6, "trtllm", 0)
    assert collect_facts(model, machine(size=8), chips=20).domain == 8
    only = replace(model, layers=layers[:1])
    assert (collect_facts(only, machine()).cached, collect_facts(only, machine()).kv_heads) == (False, 1)
    dense = collect_facts(replace(model, layers=layers[2:]), machine())
    assert (dense.experts, dense.kv_heads, dense.depth) == (0, 1, 1)
    assert (facts_of_engine(load_engine("vllm")).two_batch, facts_of_engine(load_engine("vllm")).engine) == (1, "vllm")


def test_replicas_count_among_the_chips_of_a_machine():
    (rule,) = (rule for rule in RULES if rule.name == "chips of the machine")
    facts = Facts(system="box", max_chips=8)
    assert np.all(rule.holds(facts, Layout(tp=4, replicas=2)))
    assert not np.all(rule.holds(facts, Layout(tp=4, replicas=3)))
    assert rule.reason(facts, Layout(tp=4, replicas=3)) == "12 chips are more than the 8 of box"
