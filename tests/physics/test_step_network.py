"""Steps by hand whose chips talk: collectives, micro-batches and pipelines, on the machines of `test_step`."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest

from steptime.models.model import Attention
from steptime.physics.layout import Layout
from steptime.physics.step import mixed_step, prefill_step
from tests.conftest import engine, experts, machine, matrix, model_of, one_matrix, sparse_matrix
from tests.physics.test_step import FULL, HEAD, IDEAL, NODES, OUT, RECURRENT, UP, decode, resources, terms

WIDE = 2e5  # bytes of 100 rows of 1,000 values in 16 bits


@pytest.mark.parametrize(
    ("model", "layout", "reductions"),
    [
        (one_matrix(), Layout(tp=2), 20),  # after attention and after the matrix
        (one_matrix(), Layout(cp=2), 20),
        (model_of(matrix()), Layout(tp=2), 10),
        (model_of(matrix(), experts(), attention=(Attention(name="kv", kv_bytes=1.0),)), Layout(tp=2), 30),
        (sparse_matrix(), Layout(tp=2), 20),
        (sparse_matrix(), Layout(tp=2, dp=2, ep=2), 10),  # experts exchange tokens instead
        (sparse_matrix(), Layout(tp=2, ep=2), 20),
        (replace(model_of(), layers=((FULL, 3), (RECURRENT, 2))), Layout(tp=2), 3 * 2 + 2 * 2),
        (one_matrix(), Layout(), 0),
    ],
)
def test_all_reduces_of_a_step(model, layout, reductions):
    """100 rows a group over two chips: 2 x 1/2 x 200 kB at 100 GB/s and a message of 1 us."""
    step = decode(model, NODES, layout=layout, batch=100 * layout.dp, context=1)
    assert step.terms.get("all-reduce", 0.0) == pytest.approx(reductions * (WIDE / UP + 1e-6))


def test_an_all_reduce_over_nodes_takes_both_levels_in_turn():
    """16 chips, 100 rows: 2 x 7/8 x 200 kB in a node, an eighth of it between two; four messages."""
    step = decode(one_matrix(), NODES, layout=Layout(tp=16), batch=100, context=1)
    up, out = 1.75 * WIDE / UP, WIDE / 8 / OUT
    assert step.terms["all-reduce"] == pytest.approx(20 * (up + out + 12e-6))
    assert (resources(step)["scale-up"], resources(step)["scale-out"]) == (pytest.approx(20 * up), pytest.approx(20 * out))


def test_constants_of_collectives():
    """20 all-reduces over four chips: 3/2 x 200 kB / 100 GB/s = 3 us and two messages; in one phase 6 us and one."""
    given = {"layout": Layout(tp=4), "batch": 100, "context": 1}
    assert decode(system=NODES, **given).terms["all-reduce"] == pytest.approx(20 * 5e-6)
    half = decode(system=NODES, on=engine(network_efficiency=0.5), **given)
    assert half.terms["all-reduce"] == pytest.approx(20 * 8e-6)
    assert resources(half)["scale-up"] == pytest.approx(20 * 6e-6)
    assert resources(half)["latency"] == pytest.approx(20 * 2e-6)
    short = decode(system=NODES, on=engine(seconds_per_collective=1e-6), **given)
    assert short.terms["all-reduce"] == pytest.approx(20 * 7e-6)  # 3 us of bytes, two of messages, two of calls
    assert resources(short)["overhead"] == pytest.approx(20 * 2e-6)
    long = decode(system=NODES, on=engine(seconds_per_collective=10e-6), **given)
    assert long.terms["all-reduce"] == pytest.approx(20 * (6 + 1 + 10) * 1e-6)  # one phase saves a call
    both = decode(system=NODES, on=engine(seconds_per_collective=3e-6, network_efficiency=0.5), **given)
    assert both.terms["all-reduce"] == pytest.approx(20 * (6 + 2 + 6) * 1e-6)  # 12 us of bytes less 6 are not worth 1 + 3


HIT4 = 4 * (1 - comb(48, 8) / comb(64, 8))  # of four chips, with 8 of 64 experts
HIT2 = 2 * (1 - comb(32, 8) / comb(64, 8))


@pytest.mark.parametrize(("stored", "sent"), [("fp8", 1), ("bf16", 2), ("fp4", 1), ("fp32", 2)])
def test_dispatch_in_the_format_of_the_experts_and_combine_in_16_bits(stored, sent):
    """64 tokens on four chips: 16 each, 1,000 values, to 3.66 chips of which three in four are others; ten layers."""
    model = model_of(experts(weights=1.0, stored=stored))
    step = decode(model, NODES, layout=Layout(dp=4, ep=4), batch=64, context=1)
    each = 16 * HIT4 * 3 / 4 * 1000 / UP
    assert step.terms["dispatch"] == pytest.approx(10 * (each * sent + 1e-6))
    assert step.terms["combine"] == pytest.approx(10 * (each * 2 + 1e-6))
    assert "all-reduce" not in terms(step)


def test_experts_shared_by_two_chips_are_gathered():
    """Two groups of two chips, two ways: 16 tokens a chip to 2 x (1 - C(32,8)/C(64,8)) ways, half of them others'; then 64
    x that / 2 rows over the two chips that share an expert: half of each is missing."""
    model = model_of(experts(weights=1.0))
    step = decode(model, NODES, layout=Layout(tp=2, dp=2, ep=2), batch=64, context=1)
    sent, gathered = 16 * HIT2 / 2 * 1000 / UP, 64 * HIT2 / 2 * 1000 / 2 / UP
    assert step.terms["dispatch"] == pytest.approx(10 * (sent + gathered + 2e-6))
    assert step.terms["combine"] == pytest.approx(10 * (2 * sent + 2 * gathered + 2e-6))


def test_experts_of_attention_groups_without_exchange_ways_are_gathered_alone():
    """ep 1: every token goes to all four chips, which share each expert: 3/4 of 64 rows are missing."""
    step = decode(model_of(experts(weights=1.0)), NODES, layout=Layout(dp=4), batch=64, context=1)
    assert step.terms["dispatch"] == pytest.approx(10 * (64 * 3 / 4 * 1000 / UP + 1e-6))


def test_exchanges_of_strided_ways_cross_nodes():
    """Groups of eight chips, one a node: two ways, eight chips apart; bytes between nodes only, but for the gathering."""
    model = model_of(experts(weights=1.0))
    step = decode(model, NODES, layout=Layout(tp=8, dp=2, ep=2), batch=64, context=1)
    assert step.terms["dispatch"] == pytest.approx(
        10 * (4 * HIT2 / 2 * 1000 / OUT + 5e-6 + 64 * HIT2 / 2 * 7 / 8 * 1000 / UP + 1e-6)
    )


def test_an_exchange_forwards_tokens_as_they_come():
    """16 chips in two nodes: the slower of the two levels counts, not their sum."""
    given = {"layout": Layout(dp=16, ep=16), "batch": 1600, "context": 1}
    chips, nodes = 16 * (1 - comb(60, 8) / comb(64, 8)), HIT2
    up, out = 100 * chips * 15 / 16 * 1000 / UP, 100 * nodes / 2 * 1000 / OUT
    step = decode(model_of(experts(weights=1.0)), NODES, **given)
    assert out > up
    assert step.terms["dispatch"] == pytest.approx(10 * (out + 6e-6))
    assert resources(step)["scale-out"] == pytest.approx(10 * 3 * out)
    assert "scale-up" not in resources(step)
    near = replace(
        NODES, domains=(NODES.domains[0], replace(NODES.domains[1], link=replace(NODES.domains[1].link, bandwidth=UP)))
    )
    step = decode(model_of(experts(weights=1.0)), near, **given)
    assert step.terms["dispatch"] == pytest.approx(10 * (up + 6e-6))
    assert resources(step)["scale-up"] == pytest.approx(10 * 3 * up)
    assert "scale-out" not in resources(step)


def test_levels_that_take_equally_long_are_blamed_once():
    """Four of four experts on two nodes of two: three chips away at 30 GB/s, one node at 10 GB/s; the outer one is blamed."""
    twos = machine(size=2, up=3e10, out=1e10)
    model = model_of(experts(weights=1.0, count=4, active=4))
    step = decode(model, twos, layout=Layout(dp=4, ep=4), batch=400, context=1)
    assert step.terms["dispatch"] == pytest.approx(10 * 100 * 1000 / 1e10)
    assert resources(step)["scale-out"] == pytest.approx(3 * 10 * 100 * 1000 / 1e10)
    assert "scale-up" not in resources(step)
    assert sum(resources(step).values()) == pytest.approx(float(step.total))


def test_node_limited_routing_in_a_step():
    """64 chips in eight nodes, 8 of 256 experts in 4 of 8 groups: four nodes, 7/8 of them others."""
    limited = model_of(experts(weights=1.0, count=256, expert_groups=8, active_groups=4))
    given = {"layout": Layout(dp=64, ep=64), "batch": 6400, "context": 1}
    assert decode(limited, NODES, **given).terms["dispatch"] == pytest.approx(10 * (100 * 4 * 7 / 8 * 1000 / OUT + 6e-6))
    free = model_of(experts(weights=1.0, count=256, expert_groups=1, active_groups=1))
    hit = 8 * (1 - comb(224, 8) / comb(256, 8))
    assert decode(free, NODES, **given).terms["dispatch"] == pytest.approx(10 * (100 * hit * 7 / 8 * 1000 / OUT + 6e-6))


def test_a_divided_context_gathers_queries_and_scatters_outputs():
    """100 rows of 3,000 + 2,000 values in 16 bits over two chips, half of them missing, in ten layers."""
    mixer = Attention(name="kv", kv_bytes=1000.0, kv_shards=2, heads=64, query_values=3000.0, output_values=2000.0)
    model = model_of(matrix(), attention=(mixer,))
    step = decode(model, NODES, layout=Layout(cp=2), batch=100, context=1)
    assert step.terms["context exchange"] == pytest.approx(10 * (1e6 / 2 / UP + 1e-6))
    over_heads = decode(model, NODES, layout=Layout(tp=2, cp=2), batch=100, context=1)
    assert over_heads.terms["context exchange"] == pytest.approx(10 * (0.5e6 / 2 / UP + 1e-6))
    assert "context exchange" not in terms(decode(model, NODES, layout=Layout(tp=2), batch=100, context=1))


@pytest.mark.parametrize(
    ("changes", "tp", "bytes_"),
    [
        ({}, 1, 3 * 700 * 1000),
        ({}, 2, 3 * 700 * 500),
        ({}, 4, 3 * 700 * 500),  # two KV heads
        ({"window": 40.0}, 1, 3 * 40 * 1000),
        ({"window": 40.0, "stride": 4.0}, 1, 3 * 160 * 1000),
    ],
)
def test_a_divided_context_gathers_the_cached_prefixes_of_prompts(changes, tp, bytes_):
    """Three prompts after 700 cached tokens of 1 kB, half of them on the other chip; a gather of nothing for decode."""
    mixer = Attention(**{"name": "kv", "kv_bytes": 1000.0, "kv_shards": 2, "heads": 64} | changes)
    step = prefill_step(
        model_of(matrix(), attention=(mixer,)),
        NODES,
        prompts=3,
        tokens=10,
        prefix=700,
        layout=Layout(tp=tp, cp=2),
        engine=IDEAL,
    )
    assert step.terms["context exchange"] == pytest.approx(10 * (bytes_ / 2 / UP + 2 * 1e-6))


# --- micro-batches and pipelines -----------------------------------------------------------------------------------------

FREE = machine(flops=1e30, bandwidth=1e12)  # 1 ms for each GB


@pytest.mark.parametrize(
    ("layout", "milliseconds"),
    [
        (Layout(pp=2, microbatches=2), 10),  # two halves of the layers, twice
        (Layout(pp=2, microbatches=4), 20),
        (Layout(pp=3, microbatches=3), 12),  # the fullest of three has four of ten layers: three times
        (Layout(pp=4, microbatches=4), 12),  # three of ten, four times
        (Layout(pp=2), 10),  # one micro-batch passes all stages
        (Layout(microbatches=2), 20),
    ],
)
def test_a_pipeline_takes_its_fullest_stage_as_often_as_it_has_micro_batches(layout, milliseconds):
    step = decode(model_of(matrix()), FREE, layout=layout, batch=64, context=1)
    assert step.total == pytest.approx(milliseconds * 1e-3)
    assert terms(step) == pytest.approx({"feed-forward": milliseconds * 1e-3})


def test_the_head_is_a_part_of_the_stage_that_has_it():
    """Four micro-batches on two stages of 5 ms and a head of 2 ms: 4 x 7."""
    model = model_of(matrix(), stem=(HEAD,))
    step = decode(model, FREE, layout=Layout(pp=2, microbatches=4), batch=64, context=1)
    assert terms(step) == pytest.approx({"feed-forward": 20e-3, "head": 8e-3})
    once = decode(model, FREE, layout=Layout(pp=2), batch=64, context=1)
    assert terms(once) == pytest.approx({"feed-forward": 10e-3, "head": 2e-3})


SLOW = machine(flops=1e30, bandwidth=1e12, size=2, up=1e8, out=1e7, latency=1e-3, out_latency=2e-3)


def test_a_chain_of_stages_hops_between_nodes():
    """Two stages of one chip, a node each: 50 rows of 2 kB over 10 MB/s take 10 ms, and two messages of 2 ms."""
    wide = machine(flops=1e30, bandwidth=1e12, size=1, up=1e8, out=1e7, latency=1e-3, out_latency=2e-3)
    step = decode(model_of(matrix()), wide, layout=Layout(pp=2), batch=50, context=1)
    assert terms(step) == pytest.approx({"feed-forward": 10e-3, "pipeline": 14e-3})
    assert resources(step) == pytest.approx({"weights": 10e-3, "scale-out": 10e-3, "latency": 4e-3})
    assert step.total == pytest.approx(24e-3)
    near = decode(model_of(matrix()), SLOW, layout=Layout(pp=2), batch=50, context=1)
    assert near.terms["pipeline"] == pytest.approx(1e-3 + 2e-3)
    read = mixed_step(model_of(matrix()), SLOW, prompts=1, tokens=50, layout=Layout(pp=2), engine=IDEAL)
    assert read.terms["pipeline"] == pytest.approx(3e-3)


def test_each_chip_of_a_group_hands_on_its_part():
    """Two chips a stage in nodes of two: half the bytes each, 100 kB / 2 / 10 MB/s, beside ten all-reduces in the node."""
    step = decode(model_of(matrix()), SLOW, layout=Layout(tp=2, pp=2), batch=50, context=1)
    assert step.terms["pipeline"] == pytest.approx(5e-3 + 4e-3)
    assert step.terms["all-reduce"] == pytest.approx(10 * (1e-3 + 1e-3))


# 16 layers of 1 GB on two chips each: 8 ms; all-reduces of 100 rows a micro-batch at 200 kB / 1e8 B/s: 2 ms x 16 = 32 ms
LINKED = machine(flops=1e30, bandwidth=1e12, size=64, up=1e8)


def test_links_that_take_longest_hide_the_operators():
    """Two micro-batches on one stage: 2 x 32 ms of links beside 2 x 8 ms of operators; terms are those of the links."""
    step = decode(model_of(matrix(), layers=16), LINKED, layout=Layout(tp=2, microbatches=2), batch=200, context=1)
    assert terms(step) == pytest.approx({"all-reduce": 64e-3})
    assert resources(step) == pytest.approx({"scale-up": 64e-3})
    assert step.lower == pytest.approx(64e-3)
    assert step.upper == pytest.approx(64e-3 + 16e-3)
    one = decode(model_of(matrix(), layers=16), LINKED, layout=Layout(tp=2), batch=100, context=1)
    assert terms(one) == pytest.approx({"all-reduce": 32e-3, "feed-forward": 8e-3})
    assert (one.lower, one.upper) == (pytest.approx(32e-3), pytest.approx(40e-3))


def test_stages_that_share_the_links_of_a_pipeline():
    """Four micro-batches of 50 rows on two stages: half of 16 x 1 ms of links four times is 32 ms; a pass alone takes less."""
    step = decode(model_of(matrix(), layers=16), LINKED, layout=Layout(tp=2, pp=2, microbatches=4), batch=200, context=1)
    assert terms(step) == pytest.approx({"all-reduce": 4 * 8e-3})
    hop = 50 * 2000 / 2 / 1e8  # of half the bytes
    assert step.lower == pytest.approx(32e-3)
    assert step.upper == pytest.approx(max(16e-3 + 8e-3 + hop, 4 * (8e-3 + 4e-3)))


def test_a_pass_alone_may_be_the_longest():
    """Two micro-batches on two stages, with slow hops: 10 ms of operators and 30 ms of hops; both stages wait."""
    wide = machine(flops=1e30, bandwidth=1e12, size=1, out=1e7, out_latency=10e-3)
    step = decode(model_of(matrix()), wide, layout=Layout(pp=2, microbatches=2), batch=100, context=1)
    assert terms(step) == pytest.approx({"feed-forward": 10e-3, "pipeline": 10e-3 + 20e-3})
    assert step.total == pytest.approx(40e-3)
    assert step.lower == pytest.approx(10e-3)
    assert step.upper == pytest.approx(40e-3)
