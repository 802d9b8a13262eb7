"""What each engine refuses to start: every rule at a layout that keeps it and at one that breaks it, with the reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import steptime as st
from steptime.physics.engine import load_engine
from steptime.physics.engine_rules import ENGINE_RULES
from steptime.physics.layout import ENGINE, FREE, READ_ENGINES, Facts, Layout, collect_facts, near, stacked
from steptime.physics.layout_rules import allowed, broken, reasons
from steptime.physics.layout_space import legal
from tests.conftest import each

DENSE = Facts(model="m", domain=72, heads=40, kv_heads=10, kv_kinds=(10,), depth=8, columns=17_920)
SPARSE = Facts(model="m", heads=64, kv_heads=4, kv_kinds=(4,), depth=8, experts=128, expert_columns=1536, expert_block=128)
LATENT = Facts(model="m", heads=128, kv_heads=1, kv_kinds=(1,), depth=8, experts=256, columns=18_432, expert_columns=2048)
BLOCKS = replace(LATENT, block=128, expert_block=128)
SMALL = replace(SPARSE, experts=8, expert_columns=14_336, expert_block=0)  # Mixtral

CASES = [
    (
        "KV heads",
        DENSE,
        {"tp": 5},
        {"tp": 8},
        "tp=8 and the 10 KV heads of m do not divide each other, as {} needs; try 5 or 10",
    ),
    ("KV heads", DENSE, {"tp": 20}, {"tp": 4}, "the 10 KV heads of m"),
    ("KV heads", replace(DENSE, kv_kinds=(2, 8)), {"tp": 4}, {"tp": 5}, "the 2 KV heads of m"),
    ("even experts", SPARSE, {"tp": 8, "ep": 8}, {"tp": 3, "ep": 3}, "128 experts do not divide evenly over ep=3 chips"),
    (
        "even experts in an exchange",
        LATENT,
        {"dp": 24, "ep": 24, "redundant_experts": 8},
        {"dp": 24, "ep": 24},
        "256 experts do not divide evenly over ep=24 chips, as {} needs; try redundant_experts=8",
    ),
    (
        "even experts in an exchange",
        LATENT,
        {"dp": 24, "ep": 24, "redundant_experts": 32},
        {"dp": 24, "ep": 24, "redundant_experts": 9},
        "256 experts and 9 copies do not divide evenly over ep=24 chips, as {} needs; try redundant_experts=32",
    ),
    (
        "copies of experts",
        LATENT,
        {"dp": 3, "ep": 3, "redundant_experts": 2},
        {"tp": 3, "ep": 3, "redundant_experts": 2},
        "{} has redundant experts only where data-parallel ranks exchange tokens",
    ),
    (
        "experts over a stage",
        SMALL,
        {"tp": 8, "ep": 8},
        {"tp": 8, "ep": 4},
        "ep=4: {} spreads experts over all 8 chips of a stage",
    ),
    (
        "exchange over a stage",
        LATENT,
        {"tp": 2, "dp": 4, "ep": 8},
        {"tp": 2, "dp": 4, "ep": 4},
        "{} exchanges tokens among all 8",
    ),
    ("exchange over a stage", LATENT, {"tp": 8, "ep": 4}, {"tp": 2, "dp": 4, "ep": 2}, "or not at all"),
    ("an expert for each chip of a group", SMALL, {"tp": 8}, {"tp": 16}, "tp x cp=16 is more than the 8 experts of m"),
    (
        "an expert for each chip of a stage",
        SMALL,
        {"dp": 8},
        {"tp": 2, "dp": 8},
        "a stage of 16 chips has more chips than",
    ),
    (
        "state heads",
        replace(DENSE, state_heads=(16, 48)),
        {"tp": 8},
        {"tp": 12},
        "tp x cp=12 does not divide the 16 and 48 heads of recurrent mixers in m",
    ),
    ("columns", DENSE, {"tp": 10}, {"tp": 3}, "17,920 columns of feed-forward blocks in m do not divide evenly over 3 chips"),
    (
        "expert columns",
        SMALL,
        {"dp": 7},
        {"dp": 5},
        "14,336 columns of an expert in m do not divide evenly over 5 chips, as {} needs",
    ),
    ("expert columns", SMALL, {"dp": 5, "ep": 5}, {"tp": 2, "dp": 5, "ep": 2}, "over 5 chips"),
    (
        "blocks of columns",
        BLOCKS,
        {"tp": 16},
        {"tp": 32},
        "18,432 columns of feed-forward blocks in m give each of 32 chips 576",
    ),
    (
        "blocks of expert columns",
        SPARSE,
        {"tp": 4},
        {"tp": 8},
        "1,536 columns of an expert in m give each of 8 chips 192",
    ),
    ("blocks of expert columns", SPARSE, {"tp": 8, "ep": 8}, {"dp": 8}, "whole blocks of 128"),
    (
        "one chip a group",
        LATENT,
        {"dp": 8},
        {"tp": 2, "dp": 4},
        "dp=4 with tp x cp=2: {} makes each chip a data-parallel rank",
    ),
    ("one chip a group", LATENT, {"tp": 8}, {"cp": 2, "dp": 2}, "dp=2 with tp x cp=2: {} makes"),
    (
        "divided contexts",
        SPARSE,
        {"tp": 4, "cp": 2},
        {"tp": 2, "cp": 2},
        "cp=2 with tp=2: {} divides contexts only where tp is a",
    ),
    (
        "divided contexts",
        replace(SPARSE, heads=12),
        {"tp": 4, "cp": 3},
        {"tp": 4, "cp": 2},
        "cp divides the 3 query heads per KV head",
    ),
    ("divided contexts", LATENT, {"tp": 2, "cp": 4}, None, ""),
    ("divided latents", replace(LATENT, kv_heads=1), {"cp": 8}, None, ""),
    (
        "divided latents",
        SPARSE,
        {"tp": 8},
        {"tp": 4, "cp": 2},
        "cp=2: {} divides contexts of latent attention only, and m has KV",
    ),
    ("whole contexts", LATENT, {"tp": 8}, {"tp": 4, "cp": 2}, "cp=2: {} divides contexts only as an experiment"),
    (
        "two batches",
        replace(LATENT, two_batch=1),
        {"dp": 2, "ep": 2, "microbatches": 2},
        {"microbatches": 2},
        "of a stage only where",
    ),
    (
        "two batches without stages",
        LATENT,
        {"dp": 8, "ep": 8, "microbatches": 2},
        {"pp": 3, "dp": 8, "ep": 8, "microbatches": 6},
        "{} overlaps two micro-batches of a stage only without pipeline stages, not with pp=3",
    ),
    ("a decode pool without stages", replace(LATENT, role="decode"), {"pp": 1}, {"pp": 2}, "cannot transfer a KV cache"),
    ("a decode pool without stages", replace(LATENT, role="prefill"), {"pp": 2}, None, ""),
    (
        "prefill stages with one kind of cache",
        replace(LATENT, role="prefill", hybrid=True),
        {"pp": 1},
        {"pp": 2},
        "{} sends no cache of m from stages, because its layers have caches of several kinds",
    ),
    ("prefill stages with one kind of cache", replace(LATENT, role="prefill"), {"pp": 2}, None, ""),
    ("prefill stages with one kind of cache", replace(LATENT, hybrid=True), {"pp": 2}, None, ""),
    (
        "contexts handed on",
        replace(LATENT, role="decode"),
        {"tp": 1, "cp": 4},
        {"tp": 2, "cp": 4},
        "all 8 chips of a data-parallel rank",
    ),
    ("contexts handed on", LATENT, {"tp": 2, "cp": 4}, None, ""),
    (
        "two batches of ranks that DeepEP has",
        replace(LATENT, host=8.0),
        {"dp": 4, "ep": 4, "microbatches": 2},
        {"dp": 3, "ep": 3, "microbatches": 2},
        "over DeepEP, which has no kernels for 3 ranks here",
    ),
    # One micro-batch, or two of ranks that exchange no tokens.
    ("two batches of ranks that DeepEP has", replace(LATENT, host=8.0), {"dp": 3, "ep": 3}, None, ""),
    ("two batches of ranks that DeepEP has", replace(LATENT, host=8.0), {"dp": 3, "microbatches": 2}, None, ""),
    ("tensor parallelism only", DENSE, {"tp": 8}, {"tp": 4, "dp": 2}, "tensor parallelism only, not with dp=2"),
    ("tensor parallelism only", SPARSE, {"tp": 4}, {"tp": 4, "ep": 4}, "not with ep=4"),
    ("tensor parallelism only", DENSE, {"tp": 2}, {"pp": 2}, "not with pp=2"),
    ("tensor parallelism in a host", replace(DENSE, host_chips=4.0), {"tp": 4}, {"tp": 8}, "at most 4 chips of a host"),
    ("tensor parallelism in a host", DENSE, {"tp": 16}, {"tp": 32}, "at most 16 chips of a host"),
    (
        "models that llama.cpp divides",
        replace(DENSE, family="deepseek_v3"),
        {"tp": 1},
        {"tp": 2},
        "does not divide m over chips by --split-mode tensor",
    ),
    (
        "models that llama.cpp divides",
        replace(DENSE, family="llama", cache_format="q8_0"),
        {"tp": 1},
        {"tp": 2},
        "does not divide a KV cache in q8_0",
    ),
    ("two batches without stages", LATENT, {"pp": 3, "microbatches": 3}, {"pp": 3, "microbatches": 6}, "not with pp=3"),
]


@each("name, facts, keeps, breaks, says", CASES)
def test_a_rule_and_its_reason(name, facts, keeps, breaks, says):
    (rule,) = (r for r in ENGINE_RULES if r.name == name)
    assert np.all(rule.holds(facts, Layout(**keeps)))
    for engine in rule.engines or ("vllm",):
        of = replace(facts, engine=engine)
        assert rule not in broken(Layout(**keeps), of, scopes=(ENGINE,))
        if breaks is None:
            continue
        assert rule in broken(Layout(**breaks), of, scopes=(ENGINE,))
        assert says.format(engine) in rule.reason(of, Layout(**breaks))
        both = stacked([Layout(**keeps), Layout(**breaks)])
        assert np.asarray(rule.holds(of, both)).tolist() == [True, False]
        assert rule.reason(of, both)  # of several layouts at once


def test_every_rule_is_tried_and_says_where_it_is_from():
    assert {name for name, *_ in CASES} == {rule.name for rule in ENGINE_RULES}
    for rule in ENGINE_RULES:
        assert rule.says
        assert set(rule.sources) == set(rule.engines) or not rule.engines
        assert all(len(source) > 10 for source in rule.sources.values())


def test_unknown_engines_obey_what_all_known_ones_do():
    """And the ideal none but its own constant; a calibrated engine has a name of its own."""
    common = {rule.name for rule in ENGINE_RULES if set(READ_ENGINES) <= set(rule.engines)}
    assert common == {"KV heads", "even experts in an exchange", "columns", "expert columns"}
    for engine in ("typical", "mine"):
        assert {rule.name for rule in ENGINE_RULES if rule.binds(engine)} == common | {"two batches"}
    for engine in FREE:
        assert [rule.name for rule in ENGINE_RULES if rule.binds(engine)] == ["two batches"]
    layout = Layout(tp=8)
    assert [bool(reasons(layout, replace(DENSE, engine=engine))) for engine in (*READ_ENGINES, "typical", *FREE)] == [
        True
    ] * 4 + [False] * 2


@each(
    "model, tps",
    [
        ("llama-3.2-3b", [1, 2, 4, 8]),  # 24 heads, 8 KV heads: not 3, 6
        ("phi-4", [1, 2, 5, 10, 20]),  # 40 heads, 10 KV heads: not 4, 8
        ("qwen2.5-14b", [1, 2, 4, 8]),  # 40 heads, 8 KV heads: not 5, 10, 20
        ("google/gemma-3-1b-it", [1, 2, 4]),  # 4 heads, 1 KV head
    ],
)
def test_tensor_parallel_ways_by_hand(model, tps):
    described = st.load_model(model)
    found = legal(described, st.load_system("gb200-nvl72"), 32, engine=load_engine("vllm"))
    assert sorted({m.tp for m in found if m.cp == 1}) == tps
    free = {m.tp for m in legal(described, st.load_system("gb200-nvl72"), 32, engine=load_engine("ideal"))}
    assert free == {d for d in range(1, 33) if described.heads % d == 0}


def test_a_latent_takes_any_ways_of_its_heads(deepseek, rack):
    found = legal(deepseek, rack, 72, engine=load_engine("vllm"))
    assert {m.tp for m in found if m.cp == 1 and m.dp == 1 and m.ep > 1} == {2, 4, 8, 16}  # 32 cut blocks of the dense layers


@each("engine", ["vllm", "sglang", "trtllm", "typical"])
def test_layouts_that_exchange_have_as_many_experts_on_every_chip(deepseek, rack, engine):
    found = [m for m in legal(deepseek, rack, 72, engine=load_engine(engine)) if m.dp > 1 and m.ep > 1]
    assert {m.dp * m.group for m in found} >= {24, 36, 40, 64, 72}
    assert all((256 + m.redundant_experts) % m.ep == 0 for m in found)
    assert {int(m.redundant_experts // m.ep) for m in found} == {0, 1}
    facts = collect_facts(deepseek, rack, chips=72, engine=load_engine(engine))
    assert np.all(allowed(stacked(found), facts))


def test_fp8_blocks_of_qwen_and_minimax_do_not_go_over_eight_chips():
    """1,536 columns over 8 chips are 192, which is no multiple of 128: what users of vLLM and SGLang report."""
    model, system = st.load_model("MiniMaxAI/MiniMax-M2.7"), st.load_system("hgx-h200")
    facts = collect_facts(model, system, chips=8, engine=load_engine("vllm"))
    assert (facts.expert_columns, facts.expert_block) == (1536, 128)
    (reason,) = reasons(Layout(tp=8), facts)
    assert reason.startswith("1,536 columns of an expert in MiniMaxAI/MiniMax-M2.7 give each of 8 chips 192")
    assert not reasons(Layout(tp=4), facts)
    assert not reasons(Layout(tp=8, ep=8), facts)
    assert not reasons(Layout(tp=8), replace(facts, engine="ideal"))


def test_facts_of_real_models():
    def told(name):
        facts = collect_facts(st.load_model(name), st.load_system("hgx-h100"))
        return facts.kv_kinds, facts.columns, facts.expert_columns, facts.block, facts.expert_block

    assert told("deepseek-v3") == ((1,), 18_432, 2048, 128, 128)
    assert told("llama-3.1-8b") == ((8,), 14_336, 0, 0, 0)
    assert told("mixtral-8x7b") == ((8,), 0, 14_336, 0, 0)


def test_divisors_that_are_near():
    assert [near(8, 3), near(10, 8), near(1, 4), near(12, np.array([5]))] == [
        "2 or 4",
        "5 or 10",
        "1",
        "a degree that divides it",
    ]
