"""One table of rules: what a check refuses, what a search leaves out, and why."""

from __future__ import annotations

import math

import numpy as np
import pytest

import steptime as st
from steptime.errors import LayoutError
from steptime.physics.engine import load_engine
from steptime.physics.layout import Layout, stacked
from steptime.physics.rules import ENGINE, MODEL, RULES, Facts, allowed, check, facts_of, reasons
from steptime.physics.search_space import legal, not_tried
from steptime.planning.candidates import Case
from steptime.planning.search import absent_because, fitting

BROKEN = {  # one layout for each rule of scope "model" or "search", of DeepSeek-V3 (128 heads, 61 layers) on a rack of 72
    "heads": (Layout(tp=3), "does not divide the 128 heads"),
    "stages": (Layout(pp=62, microbatches=62), "pp=62 is more than the 61 layers"),
    "expert ways": (Layout(dp=8, ep=3), "ep=3 does not divide the tp x cp x dp = 8 chips"),
    "experts enough": (Layout(dp=512, ep=512), "more than the 256 experts"),
    "chips of the deployment": (Layout(dp=144, ep=144), "a replica of 144 chips is more than the 72 at hand"),
    "groups inside a domain": (Layout(tp=128), "leaves the scale-up domain of 72"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_says_why(name, deepseek, rack):
    layout, says = BROKEN[name]
    (rule,) = (r for r in RULES if r.name == name)
    facts = facts_of(deepseek, rack, chips=72)
    assert not np.all(rule.holds(facts, layout))
    assert says in rule.reason(facts, layout)
    assert any(says in reason for reason in reasons(layout, facts))
    if rule.scope == MODEL:
        with pytest.raises(LayoutError, match=says):
            check(layout, deepseek, rack)
    else:
        check(layout, deepseek, rack)  # it could run


@pytest.mark.parametrize(
    ("name", "layout", "says"),
    [
        ("has experts", Layout(tp=2, ep=2), "has no experts; use tp or pp"),
        ("shared experts", Layout(dp=2), "no experts that attention groups could share"),
        ("heads before context", Layout(tp=4, cp=2), "before tp=4 has divided the 8 KV heads"),
    ],
)
def test_a_dense_model_has_rules_of_its_own(name, layout, says):
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    facts = facts_of(model, system, chips=8)
    assert [r.name for r in RULES if not np.all(r.holds(facts, layout))] == [name]
    assert says in reasons(layout, facts)[0]


def test_groups_fill_domains():
    """Stages of 16 chips in groups of 6 on domains of 8: one group of three would lie in two domains."""
    facts = Facts(heads=96, depth=10, experts=64, domain=8.0, chips=48)
    assert allowed(Layout(tp=np.array([4, 6]), dp=np.array([4, 4])), facts).tolist() == [True, False]


def test_what_is_found_breaks_no_rule_and_what_breaks_one_is_not_found(deepseek, rack):
    found = legal(deepseek, rack, 72)
    facts = facts_of(deepseek, rack, chips=72)
    assert np.all(allowed(stacked(found), facts))
    assert all(not reasons(layout, facts) for layout in found[::97])
    assert not [layout for layout, _ in BROKEN.values() if layout in found]


def test_an_engine_overlaps_two_batches_where_its_rule_says(deepseek, rack):
    plain, shared = Layout(tp=8, microbatches=2), Layout(dp=8, ep=8, microbatches=2)
    holds = {
        name: [not reasons(x, facts_of(deepseek, rack, engine=load_engine(name)), scopes=(ENGINE,)) for x in (plain, shared)]
        for name in ("ideal", "vllm", "trtllm")
    }
    assert holds == {"ideal": [True, True], "vllm": [False, True], "trtllm": [False, False]}
    for name, held in holds.items():
        kept = legal(deepseek, rack, 8, engine=load_engine(name))
        assert any(x.microbatches > x.pp for x in kept) == any(held)


def test_an_absent_layout_is_explained(deepseek, rack):
    """A rule, memory, or a way that is not tried; and nothing for each layout that is."""
    case = Case(
        model=deepseek,
        system=rack,
        workload=st.Workload(input_tokens=1000, output_tokens=100),
        slo=st.Slo(),
        chips=72,
        engine=load_engine("vllm"),
    )
    assert "does not divide the 128 heads" in absent_because(case, Layout(tp=3))[0]
    assert "overlaps two micro-batches" in absent_because(case, Layout(tp=8, microbatches=2))[0]
    assert "its weights take 673 GB of a chip, which has" in absent_because(case, Layout())[0]
    assert "pp=5 is not tried here; ways that are: 1, 2, 3" in absent_because(case, Layout(tp=8, pp=5, microbatches=5))[0]
    assert not [layout for layout in fitting(case)[::53] if absent_because(case, layout)]


def test_every_way_that_is_tried_is_told():
    facts = Facts(heads=8, depth=4, experts=0, domain=8, chips=8)
    assert not_tried(Layout(tp=4), facts, 8) == ""
    assert not_tried(Layout(tp=3), facts, 8) == "tp=3 is not tried here; ways that are: 1, 2, 4, 8"
    assert math.isinf(Facts().most)
