"""Collectives of a step by hand: how many there are, what each moves at which level, and what is waited for."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest

import steptime as st
from steptime.models.model import Attention
from steptime.physics.attention_kernels import ANY
from steptime.physics.collectives import load_exchanges, run_collective
from steptime.physics.layout import Layout
from steptime.physics.network_time import Traffic
from steptime.physics.step import mixed_step, prefill_step
from steptime.physics.time_ledger import Clock
from tests.conftest import each, engine, experts, machine, matrix, model_of, one_matrix, sparse_matrix
from tests.physics.passes import (
    FULL,
    IDEAL,
    NODES,
    OUT,
    RECURRENT,
    UP,
    decode,
    resources,
    terms,
)

WIDE = 2e5  # bytes of 100 rows of 1,000 values in 16 bits


@each(
    "model, layout, reductions",
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


def test_norms_over_all_heads_sum_their_squares_first():
    """Two numbers of 4 bytes for each of 100 rows in each of ten layers, besides its two all-reduces; none on one chip."""
    model = one_matrix()
    ((layer, count),) = model.layers
    (mixer,) = layer.attention
    normed = replace(model, layers=((replace(layer, attention=(replace(mixer, summed=2.0),)), count),))
    for layout, more in ((Layout(tp=2), count * (100 * 2 * 4 / UP + 1e-6)), (Layout(), 0.0), (Layout(cp=2), 0.0)):
        times = [decode(of, NODES, layout=layout, batch=100, context=1).terms.get("all-reduce", 0.0) for of in (model, normed)]
        assert times[1] - times[0] == pytest.approx(more, rel=1e-6)


def test_queries_and_keys_are_gathered_one_after_the_other_where_the_engine_does_that():
    """OLMo 2: half of 500 values of 2 bytes come from the other chip, in two messages of 1 us a layer."""
    model = one_matrix()
    ((layer, count),) = model.layers
    (mixer,) = layer.attention
    normed = replace(model, layers=((replace(layer, attention=(replace(mixer, gathered=500.0),)), count),))
    more = count * (100 * 500 * 2 / 2 / UP + 2 * 1e-6)
    times = [decode(of, NODES, layout=Layout(tp=2), batch=100, context=1).terms["all-reduce"] for of in (model, normed)]
    assert times[1] - times[0] == pytest.approx(more, rel=1e-6)
    olmo = st.load_model("allenai/OLMo-2-0325-32B")
    assert olmo.layers[0][0].attention[0].gathered == 5120 + 1024
    assert olmo.layers[0][0].attention[0].summed == 0
    assert any(
        mixer.summed and mixer.state_bytes
        for of, _ in st.load_model("MiniMaxAI/MiniMax-Text-01").layers
        for mixer in of.attention
    )


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
    launched = decode(system=NODES, on=engine(seconds_per_collective=4e-6, launch_time=0.25), **given)
    assert launched.terms["all-reduce"] == pytest.approx(20 * 7e-6)  # as calls of 1 us


HIT4 = 4 * (1 - comb(48, 8) / comb(64, 8))  # of four chips, with 8 of 64 experts
HIT2 = 2 * (1 - comb(32, 8) / comb(64, 8))


@each("stored, sent", [("fp8", 1), ("bf16", 2), ("fp4", 1), ("fp32", 2)])
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


def test_ranks_that_gather_tokens_have_those_of_all_ranks():
    """64 tokens of 2,000 B: three quarters of them come to each chip, and as many sums go; prompts take two phases twice."""
    model, given = model_of(experts(weights=1.0)), {"layout": Layout(dp=4, ep=4), "engine": engine(gathers_tokens=1.0)}
    step = mixed_step(model, NODES, batch=64, context=1, **given)
    for term in ("dispatch", "combine"):
        assert step.terms[term] == pytest.approx(10 * (3 / 4 * 64 * 2000 / UP + 1e-6))
    step = mixed_step(model, NODES, prompts=4, tokens=10_000, **given)
    for term in ("dispatch", "combine"):
        assert step.terms[term] == pytest.approx(10 * (2 * 3 / 4 * 40_000 * 2000 / UP + 2e-6))


@each(
    "constants, slower",
    [
        ({"network_efficiency": 0.5}, {"up": UP / 2, "out": OUT / 2}),
        ({"seconds_per_collective": 3e-6}, {"latency": 4e-6, "out_latency": 8e-6}),
    ],
)
def test_gathered_tokens_on_slower_links_are_those_of_an_engine_with_losses(constants, slower):
    """Half of the rate, and 3 us more for a phase; also where one phase of an all-reduce is as fast as two."""
    model, sizes = model_of(experts(weights=1.0)), {"prompts": 4, "tokens": np.geomspace(1, 10_000, 30)}
    usual = {"size": 8, "up": UP, "out": OUT, "latency": 1e-6, "out_latency": 5e-6}
    lossy, slow = (
        mixed_step(model, machine(**usual | more), layout=Layout(dp=4, ep=4), engine=engine(gathers_tokens=1.0, **on), **sizes)
        for more, on in (({}, constants), (slower, {}))
    )
    assert lossy.terms["dispatch"] == pytest.approx(slow.terms["dispatch"])


def test_gathered_tokens_wait_as_long_as_exchanged_ones_in_decode():
    """A phase of timed kernels replaces that of other collectives, but not in all-reduces of prompts."""
    model, layout = model_of(experts(weights=1.0)), Layout(dp=4, ep=4)
    times = {}
    for factor in (0.0, 1.0):
        engine_ = engine(gathers_tokens=1.0, exchange_time=factor)
        times[factor] = [
            mixed_step(model, NODES, layout=layout, engine=engine_, **sizes).terms["combine"]
            for sizes in ({"batch": 64, "context": 1}, {"prompts": 4, "tokens": 10_000})
        ]
    usual = engine().overheads.seconds_per_collective
    assert times[1.0][0] - times[0.0][0] == pytest.approx(10 * (load_exchanges()[ANY] - usual))
    assert times[1.0][1] == times[0.0][1]


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
    """Four of four experts on two nodes of two: three chips away at 30 GB/s, one node at 10 GB/s; the outer is waited for."""
    twos = machine(size=2, up=3e10, out=1e10)
    model = model_of(experts(weights=1.0, count=4, active=4))
    step = decode(model, twos, layout=Layout(dp=4, ep=4), batch=400, context=1)
    assert step.terms["dispatch"] == pytest.approx(10 * 100 * 1000 / 1e10)
    assert resources(step)["scale-out"] == pytest.approx(3 * 10 * 100 * 1000 / 1e10)
    assert "scale-up" not in resources(step)
    assert sum(resources(step).values()) == pytest.approx(float(step.total))


def test_node_limited_routing_in_a_step():
    """64 chips in eight nodes, 8 of 256 experts in 4 of 8 groups: 3.63 nodes, 7/8 of them others."""
    limited = model_of(experts(weights=1.0, count=256, expert_groups=8, active_groups=4))
    given = {"layout": Layout(dp=64, ep=64), "batch": 6400, "context": 1}
    hit = 4 * (1 - comb(96, 8) / comb(128, 8))
    assert decode(limited, NODES, **given).terms["dispatch"] == pytest.approx(10 * (100 * hit * 7 / 8 * 1000 / OUT + 6e-6))
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


@each(
    "changes, tp, bytes_",
    [
        ({}, 1, 3 * 700 * 1000),
        ({}, 2, 3 * 700 * 500),
        ({}, 4, 3 * 700 * 500),  # two KV heads
        ({"window": 40.0}, 1, 3 * 40 * 1000),
        ({"window": 40.0, "stride": 4.0}, 1, 3 * 160 * 1000),
    ],
)
def test_a_divided_context_gathers_the_cached_prefixes_of_prompts(changes, tp, bytes_):
    """Three prompts after 700 cached tokens of 1 kB, half of them on the other chip; no decode, and no gather for it."""
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
    assert step.terms["context exchange"] == pytest.approx(10 * (bytes_ / 2 / UP + 1e-6))


@pytest.mark.parametrize(
    ("layout", "constants", "term"),
    [(Layout(cp=2), {}, "context exchange"), (Layout(dp=4, ep=4), {"gathers_tokens": 1.0}, "dispatch")],
)
def test_passes_of_one_array_have_the_collectives_of_each_pass(layout, constants, term):
    """Decode, prefill without and with a prefix, and a share of 0.3 of the steps with a prompt."""
    mixer = Attention(name="kv", kv_bytes=1000.0, kv_shards=2, heads=64, query_values=3000.0, output_values=2000.0)
    model, on = model_of(experts(weights=1.0), attention=(mixer,)), engine(seconds_per_collective=1e-5, **constants)
    passes = {"batch": [100, 0, 0, 100], "prompts": [0, 4, 4, 0.3], "tokens": [10, 10, 10, 10], "prefix": [0, 0, 50, 50]}

    def seconds(**sizes):
        return mixed_step(model, NODES, context=500, layout=layout, engine=on, **sizes).terms.get(term, 0.0)

    together = seconds(**{name: np.array(sizes) for name, sizes in passes.items()})
    for place in range(4):
        assert together[place] == pytest.approx(seconds(**{name: sizes[place] for name, sizes in passes.items()})), place


def ran(busy, on, *, pipelined=False) -> Clock:
    """Return the clock of one collective on two levels, with a second of latency in two calls."""
    clock = Clock(explained=True)
    run_collective(clock, "dispatch", Traffic(busy, 1.0, 2.0), NODES, on, count=3, pipelined=pipelined)
    return clock


@each(
    "busy, pipelined, seconds, up, out",
    [
        ((3.0, 5.0), False, 9, 3, 5),  # one level after the other
        ((3.0, 5.0), True, 6, 0, 5),  # the longer one
        ((5.0, 3.0), True, 6, 5, 0),
        ((4.0, 4.0), True, 5, 0, 4),  # equal: the outer one
        ((3.0, 0.0), True, 4, 3, None),
        ((0.0, 3.0), True, 4, None, 3),
        ((0.0, 0.0), False, 1, None, None),
    ],
)
def test_levels_of_a_collective(busy, pipelined, seconds, up, out):
    clock = ran(busy, engine(), pipelined=pipelined)
    assert clock.total == pytest.approx(seconds)
    assert clock.terms == {"dispatch": pytest.approx(seconds)}
    waited = {name: value for name, value in (("scale-up", up), ("scale-out", out)) if value is not None}
    assert {name: float(value) for name, value in clock.resources.items()} == pytest.approx(waited | {"latency": 1})
    worked = {name: value for name, value in zip(("scale-up", "scale-out"), busy, strict=True) if value}
    assert {name: float(value) for name, value in clock.busy.items()} == pytest.approx(worked | {"latency": 1})
    (entry,) = clock.entries
    assert (entry.count, entry.traffic, entry.weight) == (3, Traffic(busy, 1.0, 2.0), 1)


@pytest.mark.parametrize(("pipelined", "moving"), [(False, 16), (True, 10)])
def test_links_at_half_their_rate_and_calls_that_wait(pipelined, moving):
    """3 and 5 s take 6 and 10; two calls of a quarter of a second beside a second of latency."""
    clock = ran((3.0, 5.0), engine(network_efficiency=0.5, seconds_per_collective=0.25), pipelined=pipelined)
    assert clock.total == pytest.approx(moving + 1 + 0.5)
    assert sum(clock.resources.values()) == pytest.approx(clock.total)
    assert (clock.resources["latency"], clock.resources["overhead"]) == (1, 0.5)
    assert clock.busy == {"scale-up": 6, "scale-out": 10, "latency": 1.5}


def test_which_level_is_waited_for_in_each_of_many_layouts():
    clock = ran((np.array([3.0, 5.0, 4.0]), np.array([5.0, 3.0, 4.0])), engine(), pipelined=True)
    assert np.asarray(clock.resources["scale-up"]).tolist() == [0, 5, 0]
    assert np.asarray(clock.resources["scale-out"]).tolist() == [5, 0, 4]
    assert clock.total.tolist() == [6, 6, 5]


def test_prefixes_are_gathered_where_some_points_have_prompts():
    """None, and three after 700 cached tokens of 1 kB, beside no decode: half of 2.1 MB in each of ten layers."""
    mixer = Attention(name="kv", kv_bytes=1000.0, kv_shards=2, heads=64)
    model = model_of(matrix(), attention=(mixer,))
    given = {"batch": 1, "context": 1, "tokens": 10, "prefix": 700, "layout": Layout(cp=2), "engine": IDEAL}
    step = mixed_step(model, NODES, prompts=np.array([0, 3]), **given)
    none, three = step.terms["context exchange"]
    assert three - none == pytest.approx(10 * (3 * 700 * 1000 / 2 / UP + 1e-6))


def test_one_chip_reduces_nothing():
    assert "all-reduce" not in decode(one_matrix(), NODES, layout=Layout(), batch=1, context=1).terms


@each("generation, seconds", [("blackwell", 1.723e-5), ("hopper", 1.179e-5), ("", 1.451e-5)])
def test_a_phase_of_an_exchange_takes_the_time_of_timed_kernels(generation, seconds):
    """Ten layers, each with one dispatch and one combine: their phases replace those of other collectives."""
    system = replace(NODES, chip=replace(NODES.chip, generation=generation))
    given = {"model": model_of(experts(weights=1.0)), "batch": 64, "context": 1, "layout": Layout(dp=4, ep=4)}
    plain, timed = (
        decode(system=system, on=engine(seconds_per_collective=5e-6, exchange_time=factor), **given) for factor in (0.0, 2.0)
    )
    for term in ("dispatch", "combine"):
        assert timed.terms[term] - plain.terms[term] == pytest.approx(10 * (2 * seconds - 5e-6), rel=1e-3)
