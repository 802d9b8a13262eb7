"""Steps by hand: what operators, collectives, overheads and pipelines take, and what each constant of an engine does.

Unless told, ten layers of one matrix of 1 GB and a cache of 1 kB a token, on chips of 2 PFLOP/s and 4 TB/s.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import LayoutError, RangeError
from steptime.models.model import Attention, Layer
from steptime.physics.layout import Layout, stacked
from steptime.physics.step import decode_step, mixed_step, prefill_step
from tests.conftest import engine, experts, machine, matrix, model_of, one_matrix, sparse_matrix

IDEAL = "ideal"
READ = 2.5e-3  # 10 GB at 4 TB/s
CHIP = machine()
UP, OUT = 1e11, 1e10
NODES = machine(size=8, up=UP, out=OUT, latency=1e-6, out_latency=5e-6)


def decode(model=None, system=CHIP, on=IDEAL, **given):
    return decode_step(model or one_matrix(), system, engine=on, **{"batch": 64, "context": 4096} | given)


def terms(step) -> dict[str, float]:
    return {name: float(value) for name, value in step.terms.items() if value > 1e-15}  # a free network takes some 1e-24 s


def resources(step) -> dict[str, float]:
    return {name: float(value) for name, value in step.resources.items() if value > 1e-15}


@pytest.mark.parametrize(
    ("given", "matrices", "attention", "waits"),
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
HEAD = matrix(name="head", term="head", rows="outputs", weights=2e9)
MTP = matrix(name="stored", term="head", rows="none", weights=9e9)


def test_a_head_runs_once_and_what_is_only_stored_never():
    step = decode(model_of(matrix(), stem=(EMBEDDING, HEAD, MTP)))
    assert terms(step) == pytest.approx({"feed-forward": READ, "head": 0.5e-3})
    traffic = decode(model_of(matrix(), stem=(EMBEDDING, HEAD, MTP)), on=engine(activation_traffic=1.0))
    assert traffic.terms["embedding"] == pytest.approx(64 * 1000 * 2 / 4e12)


# --- constants of engines ------------------------------------------------------------------------------------------------

MEMORY_BOUND = {"batch": 1, "context": 4096}  # 2.5 ms of weights, 10.24 us of cache, 10 us of arithmetic
COMPUTE_BOUND = {"batch": 1000, "context": 1}  # 10 ms of arithmetic


@pytest.mark.parametrize(
    ("constants", "given", "term", "slower"),
    [
        ({"memory_efficiency": 0.8}, MEMORY_BOUND, "feed-forward", 1 / 0.8),
        ({"memory_efficiency": 0.8}, MEMORY_BOUND, "attention", 1),
        ({"memory_efficiency": 0.8}, COMPUTE_BOUND, "feed-forward", 1),
        ({"compute_efficiency": 0.65}, COMPUTE_BOUND, "feed-forward", 1 / 0.65),
        ({"compute_efficiency": 0.65}, MEMORY_BOUND, "feed-forward", 1),
        ({"attention_memory_efficiency": 0.5}, MEMORY_BOUND, "attention", 2),
        ({"attention_memory_efficiency": 0.5}, MEMORY_BOUND, "feed-forward", 1),
        ({"attention_efficiency": 0.5}, MEMORY_BOUND, "attention", 1),
        ({"expert_efficiency": 0.5, "expert_memory_efficiency": 0.5}, MEMORY_BOUND, "feed-forward", 1),
        ({"narrow_efficiency": 0.5}, MEMORY_BOUND, "feed-forward", 1),
        ({"seconds_per_step": 1.0, "network_efficiency": 0.5}, MEMORY_BOUND, "feed-forward", 1),
        ({"roofline_norm": 1.0}, MEMORY_BOUND, "feed-forward", 1 + 1 / 250),
        ({"roofline_norm": 2.0}, {"batch": 250, "context": 1}, "feed-forward", 2**0.5),  # as long as the weights take
        ({"roofline_norm": 4.0}, {"batch": 250, "context": 1}, "feed-forward", 2**0.25),
    ],
)
def test_an_efficiency_below_one_is_slower_by_as_much_where_it_binds(constants, given, term, slower):
    real, ideal = decode(on=engine(**constants), **given), decode(**given)
    assert real.terms[term] == pytest.approx(float(slower * ideal.terms[term]))


def test_attention_that_computes_is_slower_by_its_own_efficiency():
    model = one_matrix(kv_flops=1e6)
    assert decode(model, on=engine(attention_efficiency=0.5)).terms["attention"] == pytest.approx(
        2 * 64 * 4096 * 10 * 1e6 / 2e15
    )


@pytest.mark.parametrize(
    ("constants", "batch", "milliseconds"),
    [
        ({}, 1, 2.0),  # 8 of 64 experts of 0.1 GB, ten layers
        ({"expert_memory_efficiency": 0.5}, 1, 4.0),
        ({"memory_efficiency": 0.5, "compute_efficiency": 0.5}, 1, 2.0),
        ({}, 10_000, 80.0),  # 10,000 x 8 x 0.2 GFLOP x 10
        ({"expert_efficiency": 0.4}, 10_000, 200.0),
        ({"expert_imbalance": 1.3}, 10_000, 104.0),
    ],
)
def test_experts_have_efficiencies_of_their_own(constants, batch, milliseconds):
    step = decode(sparse_matrix(), on=engine(**constants), batch=batch, context=1)
    assert step.terms["experts"] == pytest.approx(milliseconds * 1e-3, rel=1e-9)


def test_weights_of_four_bits_stream_at_their_own_efficiency():
    model = model_of(matrix(stored="fp4"))
    slow = decode(model, on=engine(memory_efficiency=0.8, narrow_efficiency=0.75), batch=1, context=1)
    assert slow.total == pytest.approx(READ / 2 / 0.6)


def test_a_chip_that_reaches_more_of_its_data_sheet_is_faster():
    """Twice the usual 0.77 of bandwidth: cache and weights stream twice as fast, if all of it shows."""
    fast = machine(reached={"memory": 1.54})
    both = decode(system=fast, on=engine(chip_departure=1.0), **MEMORY_BOUND)
    usual = decode(**MEMORY_BOUND)
    assert both.total == pytest.approx(float(usual.total) / 2)
    assert decode(system=fast, on=engine(chip_departure=2.0), **MEMORY_BOUND).total == pytest.approx(float(usual.total) / 4)


def test_activations_go_through_memory_beside_the_weights():
    """1,000 rows of 2,000 values in 16 bits in each of ten layers: 40 MB at half the bandwidth take 20 us."""
    model = model_of(matrix(weights=1e5, inputs=1500, outputs=500))
    base = {"activation_traffic": 1.0, "memory_efficiency": 0.5}
    on = engine(**base)
    step = decode(model, on=on, batch=1000, context=1)
    weights, activations, compute = 1e6 / 2e12, 4e7 / 2e12, 1000 * 2e6 / 2e15
    assert step.total == pytest.approx(weights + activations)
    assert resources(step) == pytest.approx({"weights": weights, "activations": activations})
    assert decode(model, on=engine(**base | {"activation_traffic": 0.25}), batch=1000, context=1).total == pytest.approx(
        weights + activations / 4
    )
    summed = decode(model, on=engine(**base, roofline_norm=1.0), batch=1000, context=1)
    assert resources(summed) == pytest.approx({"compute": compute, "weights": weights, "activations": activations})


@pytest.mark.parametrize("norm", [2.0, 4.0, 3.0])
@pytest.mark.parametrize(("batch", "larger"), [(125, "weights"), (500, "compute")])
def test_resources_of_a_norm_are_shares_of_the_powers(norm, batch, larger):
    """Arithmetic and traffic of 1 to 2: of (1 + 2^p) parts one is the smaller's."""
    step = decode(model_of(matrix()), on=engine(roofline_norm=norm), batch=batch, context=1)
    longer = READ if batch == 125 else 2 * READ
    total = longer * (1 + 0.5**norm) ** (1 / norm)
    assert step.total == pytest.approx(total)
    smaller = total / (1 + 2**norm)
    other = {"weights": "compute", "compute": "weights"}[larger]
    assert resources(step) == pytest.approx({larger: total - smaller, other: smaller})


FULL = Layer(
    name="full",
    ops=(
        matrix(name="q", term="projections", weights=1.0, inputs=10),
        matrix(name="k", term="projections", weights=1.0, inputs=10),
        matrix(name="o", term="projections", weights=1.0, inputs=20, stored="bf16"),
        experts(weights=1.0, inputs=10),
    ),
    attention=(Attention(name="latent", kv_bytes=1.0, heads=64, expand_flops=1.0, selected=5.0),),
)
RECURRENT = Layer(
    name="recurrent", ops=(matrix(weights=1.0, inputs=10),), attention=(Attention(name="state", state_bytes=1.0, heads=64),)
)
HYBRID = replace(model_of(), layers=((FULL, 3), (RECURRENT, 2)))


@pytest.mark.parametrize(
    ("constant", "count"),
    [
        ("layer", 5),
        ("kernel", 3 * 2 + 2),
        ("quantised_kernel", 3 * 2 + 2),
        ("expert_layer", 3),
        ("attention_layer", 3),
        ("latent_layer", 3),
        ("state_layer", 2),
        ("selected_layer", 3),
        ("step", 1),
        ("sequence", 64),
        ("request", 0),
        ("collective", 0),
    ],
)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_overheads_are_counted_as_often_as_kernels_run(constant, count, phase):
    on = engine(**{f"seconds_per_{constant}": 1.0})
    if phase == "decode":
        step = decode(HYBRID, on=on)
    else:
        step, count = prefill_step(HYBRID, CHIP, tokens=64, engine=on), 0 if constant == "sequence" else count
    assert step.terms.get("overhead", 0.0) == count
    assert step.resources.get("overhead", 0.0) == count


def test_overheads_of_a_group_and_of_each_micro_batch():
    """64 sequences of four groups in two micro-batches: 8 each; two steps of the host, or all layers twice."""
    given = {"layout": Layout(dp=4, ep=4, microbatches=2), "batch": 64, "context": 1}
    for constants, seconds in (
        ({"seconds_per_sequence": 1.0}, 2 * 8),
        ({"seconds_per_step": 1.0}, 2),
        ({"seconds_per_layer": 1.0}, 2 * 10),
    ):
        assert decode(sparse_matrix(), on=engine(**constants), **given).terms["overhead"] == pytest.approx(seconds)


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


@pytest.mark.parametrize(
    ("constant", "values"),
    [
        ("seconds_per_layer", (0.0, 1e-5)),
        ("seconds_per_step", (0.0, 1e-3)),
        ("seconds_per_sequence", (0.0, 1e-5)),
        ("seconds_per_collective", (0.0, 1e-5)),
        ("activation_traffic", (0.0, 1.0)),
        ("expert_tile_rows", (0.0, 16.0)),
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


@pytest.mark.parametrize(
    ("step", "given", "says"),
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
        (mixed_step, {"batch": float("nan")}, "batch must be at least 0"),
    ],
)
def test_sizes_that_are_none_are_refused(step, given, says):
    with pytest.raises(RangeError, match=says):
        step(one_matrix(), CHIP, engine=IDEAL, **given)
    with pytest.raises(LayoutError):
        decode(layout=Layout(tp=7))
