"""Steps by hand: the two sides of a roofline, prompts beside decode, micro-batches and pipelines, bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import LayoutError, RangeError
from steptime.models.model import Attention
from steptime.physics.layout import Layout, stacked
from steptime.physics.step import TIMES, Step, add_passes, decode_step, ledger_of_step, mixed_step, prefill_step, scale_step
from tests.conftest import each, engine, experts, machine, matrix, model_of, one_matrix, sparse_matrix
from tests.physics.passes import CHIP, HEAD, IDEAL, MEMORY_BOUND, NODES, READ, decode, resources, terms


@each(
    "given, matrices, attention, waits",
    [
        ({}, READ, 64 * 4096 * 1e4 / 4e12, "weights"),
        ({"batch": 1000}, 1000 * 2e10 / 2e15, 1000 * 4096 * 1e4 / 4e12, "kv"),  # 10 ms and 10.2 ms
        ({"batch": 1000, "context": 1024}, 10e-3, 2.56e-3, "compute"),
        ({"batch": 64, "query": 5}, 64 * 5 * 2e10 / 2e15, 64 * 4096 * 1e4 / 4e12, "compute"),
        ({"layout": Layout(tp=8)}, READ / 8, 64 * 4096 * 1e4 / 4e12 / 8, "weights"),
    ],
)
def test_decode_by_hand(given, matrices, attention, waits):
    step = decode(**given)
    assert terms(step) == pytest.approx({"feed-forward": matrices, "attention": attention})
    assert step.total == pytest.approx(matrices + attention)
    assert step.bound == waits
    assert resources(step)["kv"] == pytest.approx(attention)
    assert resources(step)["compute" if matrices != READ and given.get("layout") is None else "weights"] == pytest.approx(
        matrices
    )


def test_prefill_by_hand():
    """1,000 tokens of 20 GFLOP; 500,500 pairs of 4 kFLOP in ten layers; each group reads one prompt unless told."""
    model = one_matrix(kv_flops=4000.0)
    step = prefill_step(model, CHIP, tokens=1000, engine=IDEAL)
    assert terms(step) == pytest.approx({"feed-forward": 1000 * 2e10 / 2e15, "attention": 10 * 4000 * 500_500 / 2e15})
    three = prefill_step(model, CHIP, tokens=1000, prompts=3, engine=IDEAL)
    assert three.total == pytest.approx(3 * float(step.total))
    groups = prefill_step(sparse_matrix(), CHIP, tokens=1000, layout=Layout(dp=4, ep=4), engine=IDEAL)
    told = prefill_step(sparse_matrix(), CHIP, tokens=1000, prompts=4, layout=Layout(dp=4, ep=4), engine=IDEAL)
    assert groups.total == told.total
    cached = prefill_step(model, CHIP, tokens=1000, prefix=2000, engine=IDEAL)
    assert cached.terms["attention"] == pytest.approx(10 * 4000 * (1000 * 2000 + 500_500) / 2e15)


def test_a_mixed_step_reads_the_weights_once():
    """64 tokens of decode and 36 of a prompt are a hundred rows."""
    step = mixed_step(one_matrix(), CHIP, batch=64, context=4096, prompts=1, tokens=36, prefix=100, engine=IDEAL)
    assert step.terms["feed-forward"] == pytest.approx(max(READ, 100 * 2e10 / 2e15))
    assert step.terms["attention"] == pytest.approx((64 * 4096 + 136) * 1e4 / 4e12)


EMBEDDING = matrix(name="embedding", term="embedding", rows="lookup", outputs=1000)
MTP = matrix(name="stored", term="head", rows="none", weights=9e9)


def test_a_head_runs_once_and_what_is_only_stored_never():
    step = decode(model_of(matrix(), stem=(EMBEDDING, HEAD, MTP)))
    assert terms(step) == pytest.approx({"feed-forward": READ, "head": 0.5e-3})
    traffic = decode(model_of(matrix(), stem=(EMBEDDING, HEAD, MTP)), on=engine(activation_traffic=1.0))
    assert traffic.terms["embedding"] == pytest.approx(64 * 1000 * 2 / 4e12)


# --- micro-batches and pipelines -----------------------------------------------------------------------------------------

FREE = machine(flops=1e30, bandwidth=1e12)  # 1 ms for each GB


@each(
    "layout, milliseconds",
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


def test_bounds_of_one_chip():
    """Ten layers, 500 rows: 5 ms of arithmetic and 2.5 + 1.25 of weights and cache, of which attention does not compute."""
    step = decode(batch=500, context=1000)
    assert step.lower == pytest.approx(5e-3)
    assert step.total == pytest.approx(5e-3 + 1.25e-3)
    assert step.upper == pytest.approx(5e-3 + 2.5e-3 + 1.25e-3)
    cached = decode(batch=200, context=10_000)
    assert cached.lower == pytest.approx(2.5e-3 + 5e-3)  # all that memory streams


def test_bounds_of_a_pipeline_with_a_head():
    """Two stages, four micro-batches of 50 rows: a stage of 5 layers and the head, 1.25 + 0.5 ms of memory four times."""
    model = model_of(matrix(), stem=(HEAD,))
    step = decode(model, CHIP, layout=Layout(pp=2, microbatches=4), batch=200, context=1)
    memory, compute = 4 * (1.25e-3 + 0.5e-3), 4 * (0.25e-3 + 0.1e-3)
    assert step.lower == pytest.approx(memory)
    assert step.total == pytest.approx(memory)
    assert step.upper == pytest.approx(memory + compute)
    alone = decode(model, CHIP, layout=Layout(pp=2), batch=50, context=1)
    assert alone.lower == pytest.approx(2.5e-3 + 0.5e-3)
    assert alone.upper == pytest.approx(3e-3 + 0.5e-3 + 0.1e-3)


def test_overheads_are_a_resource_of_the_bounds():
    step = decode(on=engine(seconds_per_layer=1.0, seconds_per_step=2.0), **MEMORY_BOUND)
    assert step.lower == pytest.approx(12)
    assert step.upper == pytest.approx(12 + 2.5e-3 + 10.24e-6 + 10e-6, rel=1e-9)
    waits = decode(system=NODES, on=engine(seconds_per_collective=1.0), layout=Layout(tp=2), **MEMORY_BOUND)
    assert waits.lower == pytest.approx(20 * (1 + 1e-6))


def test_layouts_of_all_kinds_at_once():
    """What one layout has and another has not is none of the other's: exchanges, all-reduces, stages, divided contexts."""
    kept = Attention(name="kv", kv_bytes=1000.0, kv_shards=1, heads=64, query_values=3000.0, output_values=2000.0)
    model = model_of(matrix(), experts(), attention=(kept,), stem=(HEAD,))
    options = [
        Layout(),
        Layout(tp=2),
        Layout(cp=2),
        Layout(dp=4, ep=4),
        Layout(tp=2, dp=2, ep=2, microbatches=2),
        Layout(tp=2, pp=2, microbatches=2),
        Layout(pp=2),
    ]
    given = {"batch": 64, "context": 1000, "prompts": 4, "tokens": 10, "prefix": 100}
    for on in (IDEAL, engine(seconds_per_collective=1e-6, network_efficiency=0.7, roofline_norm=3.0, activation_traffic=1.0)):
        together = mixed_step(model, NODES, layout=stacked(options), engine=on, **given)
        for i, layout in enumerate(options):
            alone = mixed_step(model, NODES, layout=layout, engine=on, **given)
            for name in ("lower", "total", "upper"):
                assert getattr(together, name)[i] == pytest.approx(float(getattr(alone, name)))
            assert {k: v[i] for k, v in together.terms.items() if v[i] > 1e-15} == pytest.approx(terms(alone))
            assert {k: v[i] for k, v in together.resources.items() if v[i] > 1e-15} == pytest.approx(resources(alone))


@each(
    "constant, values",
    [
        ("seconds_per_layer", (0.0, 1e-5)),
        ("seconds_per_step", (0.0, 1e-3)),
        ("seconds_per_sequence", (0.0, 1e-5)),
        ("seconds_per_collective", (0.0, 1e-5)),
        ("activation_traffic", (0.0, 1.0)),
        ("expert_time", (0.5, 2.0)),
        ("expert_evenness", (2.0, 1.0)),
        ("roofline_norm", (3.0, 1.0)),
        ("network_efficiency", (0.5, 1.0)),
    ],
)
def test_engines_of_many_constants_at_once(constant, values):
    """Of which one may have what the other has not."""
    model = model_of(matrix(inputs=1e3), experts(inputs=1e3), attention=(Attention(name="kv", kv_bytes=1000.0),), stem=(HEAD,))
    given = {"batch": 64, "context": 1000, "layout": Layout(tp=2, dp=2, ep=2), "system": NODES}
    together = decode(model, on=engine(**{constant: np.array(values)}), **given)
    for i, value in enumerate(values):
        alone = decode(model, on=engine(**{constant: value}), **given)
        for name in ("lower", "total", "upper"):
            assert np.broadcast_to(getattr(together, name), 2)[i] == pytest.approx(float(getattr(alone, name)), rel=1e-9)
        assert {k: v[i] for k, v in together.resources.items() if v[i] > 1e-15} == pytest.approx(resources(alone))


@pytest.mark.parametrize("name", ["ideal", "vllm"])
def test_a_step_without_parts_takes_as_long(name):
    layout = stacked([Layout(tp=8), Layout(dp=8, ep=8), Layout(dp=4, ep=4, pp=2, microbatches=2)])
    given = {"batch": 64, "context": 3000, "prompts": 2, "tokens": 512, "layout": layout, "engine": name}
    whole, bare = (mixed_step("deepseek-v3", "hgx-h200", **given, parts=parts) for parts in (True, False))
    for figure in ("lower", "total", "upper", "latency"):
        np.testing.assert_allclose(getattr(bare, figure), getattr(whole, figure), rtol=1e-12)
    assert (bare.terms, bare.resources) == ({}, {})


def test_the_bound_is_the_largest_resource_of_each_point():
    step = decode(batch=np.array([1, 1000, 1000]), context=np.array([1, 1, 100_000]))
    assert step.bound.tolist() == ["weights", "compute", "kv"]


def test_all_figures_share_one_shape_and_absent_resources_are_not_listed():
    step = decode(batch=np.array([[1], [2]]), context=np.array([1, 2, 3]))
    assert {np.shape(v) for v in (*step.terms.values(), *step.resources.values(), step.lower, step.upper)} == {(2, 3)}
    assert set(step.resources) == {"weights", "kv"}


def test_the_engine_is_the_systems_unless_named():
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    given = {"batch": 64, "context": 4096}
    default = decode_step(model, system, **given).total
    assert default == decode_step(model, system, engine="vllm", **given).total
    assert default > decode_step(model, system, engine=IDEAL, **given).total


@each(
    "step, given, says",
    [
        (decode_step, {"batch": 0, "context": 1}, "batch must be greater than 0, not 0"),
        (decode_step, {"batch": 1, "context": 0}, "context must be greater than 0, not 0"),
        (decode_step, {"batch": 1, "context": 1, "query": 0}, "query must be at least 1 token, not 0"),
        (decode_step, {"batch": np.array([1, -2]), "context": 1}, "batch must be greater than 0, not -2"),
        (prefill_step, {"tokens": 0}, "tokens must be greater than 0"),
        (prefill_step, {"tokens": 1, "prompts": 0}, "prompts must be greater than 0"),
        (prefill_step, {"tokens": 1, "prefix": -1}, "prefix must be at least 0, not -1"),
        (mixed_step, {"batch": 1, "context": -1}, "context must be at least 0"),
        (mixed_step, {"batch": -1}, "batch must be at least 0"),
        (mixed_step, {"batch": 1, "prompts": -1}, "prompts must be at least 0"),
        (mixed_step, {"batch": 1, "tokens": -1}, "tokens must be at least 0"),
        (mixed_step, {"batch": float("nan")}, "batch must be a finite number, not nan"),
    ],
)
def test_sizes_that_are_none_are_refused(step, given, says):
    with pytest.raises(RangeError, match=says):
        step(one_matrix(), CHIP, engine=IDEAL, **given)
    with pytest.raises(LayoutError):
        decode(layout=Layout(tp=7))


# --- what a step says ----------------------------------------------------------------------------------------------------

SAID = Step(
    terms={"head": 1.0, "feed-forward": 5.0, "all-reduce": 3.0, "attention": 1.0},
    resources={"weights": np.float64(6.0), "scale-up": np.float64(4.0)},
    lower=np.float64(6.0),
    total=np.float64(10.0),
    upper=np.float64(12.0),
    latency=np.float64(11.0),
)


def test_a_step_in_words():
    title, figures = SAID.headline()
    assert title == "Step: 10.0 s"
    assert figures == {
        "bounds": "6.00 s with full overlap; 12.0 s with no overlap",
        "terms": "feed-forward 50 %, all-reduce 30 %, head 10 % and 1 more",
        "waits for": "weights 60 %, scale-up 40 %",
    }
    three = replace(SAID, terms={name: SAID.terms[name] for name in ("head", "feed-forward", "all-reduce")})
    assert three.headline()[1]["terms"] == "feed-forward 50 %, all-reduce 30 %, head 10 %"


def test_a_step_as_columns():
    columns = {name: value.tolist() for name, value in SAID.columns().items()}
    assert columns == {
        "total_s": [10], "lower_s": [6], "upper_s": [12], "bound": ["weights"], "head_s": [1], "feed_forward_s": [5],
        "all_reduce_s": [3], "attention_s": [1], "waits_for_weights_s": [6], "waits_for_scale_up_s": [4],
    }  # fmt: skip


def test_the_latency_of_stages_is_longer_than_their_period():
    """Four micro-batches of 8 ms of weights on four stages: 8 ms, and three of four more until the last one ends."""
    model = model_of(matrix(), layers=8)
    step = decode(model, FREE, layout=Layout(pp=4, microbatches=4), batch=64, context=1)
    assert (float(step.total), float(step.latency)) == (pytest.approx(8e-3), pytest.approx(14e-3))
    together = decode(model, FREE, layout=Layout(pp=np.array([1, 4]), microbatches=np.array([1, 4])), batch=64, context=1)
    assert together.latency.tolist() == pytest.approx([8e-3, 14e-3])


def test_a_step_of_many_points_is_evaluated_in_blocks():
    """More points than a block holds, of which some have no prompts."""
    prompts = np.zeros((3, 1 << 16))
    prompts[2] = 1
    step = mixed_step(one_matrix(), CHIP, batch=64, context=4096, prompts=prompts, tokens=36, prefix=100, engine=IDEAL)
    assert step.total.shape == prompts.shape
    for row, expected in ((0, {}), (2, {"prompts": 1, "tokens": 36, "prefix": 100})):
        alone = mixed_step(one_matrix(), CHIP, batch=64, context=4096, engine=IDEAL, **expected)
        for name in ("lower", "total", "upper", "latency"):
            assert getattr(step, name)[row, ::999] == pytest.approx(float(getattr(alone, name)), rel=1e-14)
        for name, value in step.resources.items():
            assert value[row, 0] == pytest.approx(float(alone.resources.get(name, 0.0)))


def test_sizes_that_do_not_broadcast_are_refused_by_name():
    sizes = {"batch": np.array([1, 2]), "context": np.array([1, 2, 3])}
    for ask in (st.decode_step, lambda *given, **more: ledger_of_step(*given, more)):
        with pytest.raises(st.InputError, match=r"do not broadcast: batch \(2,\), context \(3,\)"):
            ask(one_matrix(), machine(), **sizes)


def test_parts_choose_the_tables_of_a_step():
    sizes = {"batch": 4, "context": 100, "engine": "ideal"}
    for parts, has_terms, has_resources in (
        (True, True, True), (False, False, False), ("terms", True, False), ("resources", False, True)
    ):  # fmt: skip
        step = mixed_step(one_matrix(), machine(), **sizes, parts=parts)
        assert (bool(step.terms), bool(step.resources)) == (has_terms, has_resources)
    with pytest.raises(RangeError, match="parts: must be True, False, 'terms' or 'resources', got 'term'"):
        mixed_step(one_matrix(), machine(), **sizes, parts="term")


@each("factor", [1, 2.5, np.array([1.0, 3.0])])
def test_a_scaled_step_is_the_step_and_its_repetitions(factor):
    """Every time, term and resource of a step with waits of a pipeline, of a network and between its bounds."""
    one = decode(sparse_matrix(), NODES, layout=Layout(tp=2, pp=2, microbatches=2))
    assert 0 < one.lower < one.total < min(one.upper, one.latency)
    scaled, repeated = scale_step(one, factor), add_passes(one, [(factor - 1, one)], None)
    for step in (scaled, repeated):
        for name in TIMES:
            assert getattr(step, name) == pytest.approx(getattr(one, name) * factor)
        for parts, of_one in ((step.terms, one.terms), (step.resources, one.resources)):
            assert parts.keys() == of_one.keys()
            assert all(seconds == pytest.approx(of_one[name] * factor) for name, seconds in parts.items())
