"""Operators of a step by hand: what each efficiency, norm and overhead of an engine does to their times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steptime.hardware.number_formats import number_format
from steptime.physics import operator_time
from steptime.physics.layout import Layout
from steptime.physics.op_work import Demand
from steptime.physics.operator_time import Operator, overlapped, run
from steptime.physics.step import ledger_of_step, mixed_step, prefill_step
from steptime.physics.time_ledger import Clock
from tests.conftest import each, engine, machine, matrix, model_of, one_matrix, sparse_matrix
from tests.physics.passes import (
    CHIP,
    COMPUTE_BOUND,
    HYBRID,
    MEMORY_BOUND,
    READ,
    decode,
    resources,
)


@each(
    "constants, given, term, slower",
    [
        ({"memory_efficiency": 0.8}, MEMORY_BOUND, "feed-forward", 1 / 0.8),
        ({"memory_efficiency": 0.8}, MEMORY_BOUND, "attention", 1),
        ({"memory_efficiency": 0.8}, COMPUTE_BOUND, "feed-forward", 1),
        ({"compute_efficiency": 0.65}, COMPUTE_BOUND, "feed-forward", 1 / 0.65),
        ({"compute_efficiency": 0.65}, MEMORY_BOUND, "feed-forward", 1),
        ({"attention_time": 2.0}, MEMORY_BOUND, "feed-forward", 1),
        ({"expert_time": 2.0}, MEMORY_BOUND, "feed-forward", 1),
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


@each(
    "constants, batch, milliseconds",
    [
        ({}, 1, 2.0),  # 8 of 64 experts of 0.1 GB, ten layers
        ({"memory_efficiency": 0.5, "compute_efficiency": 0.5}, 1, 2.0),
        ({}, 10_000, 80.0),  # 10,000 x 8 x 0.2 GFLOP x 10
        ({"expert_imbalance": 1.3}, 10_000, 80.0),  # one chip has all experts, and all rows
        ({"expert_skew": 1.28}, 10_000, 80.0),
    ],
)
def test_experts_have_efficiencies_of_their_own(constants, batch, milliseconds):
    step = decode(sparse_matrix(), on=engine(**constants), batch=batch, context=1)
    assert step.terms["experts"] == pytest.approx(milliseconds * 1e-3, rel=1e-9)


BLACKWELL = replace(CHIP, chip=replace(CHIP.chip, peak={"bf16": 1e15, "fp8": 2e15, "fp4": 4e15}))
IN_BLOCKS = number_format("fp8", values_per_scale=128 * 128, scale_bytes=4, block=128)


@each(
    "system, stored, slower",
    [
        (BLACKWELL, IN_BLOCKS, 2.5),
        (BLACKWELL, number_format("fp8"), 1.0),  # one scale for a tensor
        (BLACKWELL, number_format("nvfp4"), 1.0),
        (CHIP, IN_BLOCKS, 1.0),  # H100: without 4-bit arithmetic
    ],
)
def test_products_of_scaled_blocks_are_slower_on_chips_that_scale_narrower_ones(system, stored, slower):
    model = model_of(replace(matrix(), format=stored))
    real = decode(model, system, on=engine(block_efficiency=0.4), **COMPUTE_BOUND)
    assert real.total == pytest.approx(float(slower * decode(model, system, **COMPUTE_BOUND).total))


def test_weights_of_four_bits_stream_at_their_own_efficiency():
    model = model_of(matrix(stored="fp4"))
    slow = decode(model, on=engine(memory_efficiency=0.8, narrow_efficiency=0.75), batch=1, context=1)
    assert slow.total == pytest.approx(READ / 2 / 0.6)


def test_a_chip_that_reaches_more_of_its_data_sheet_is_faster():
    """Twice the usual 0.77 of bandwidth: weights stream twice as fast, if all of it shows; kernels of attention are timed."""
    fast = machine(reached={"memory": 1.54})
    both = decode(system=fast, on=engine(chip_departure=1.0, memory_efficiency=0.25), **MEMORY_BOUND)
    usual = decode(on=engine(memory_efficiency=0.25), **MEMORY_BOUND)
    assert both.terms["feed-forward"] == pytest.approx(float(usual.terms["feed-forward"]) / 2)
    assert both.terms["attention"] == pytest.approx(float(usual.terms["attention"]))
    twice = decode(system=fast, on=engine(chip_departure=2.0, memory_efficiency=0.25), **MEMORY_BOUND)
    assert twice.terms["feed-forward"] == pytest.approx(float(usual.terms["feed-forward"]) / 4)


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


@each("norm", [2.0, 4.0, 3.0])
@each("batch, larger", [(125, "weights"), (500, "compute")])
def test_resources_of_a_norm_are_shares_of_the_powers(norm, batch, larger):
    """Arithmetic and traffic of 1 to 2: of (1 + 2^p) parts one is the smaller's."""
    step = decode(model_of(matrix()), on=engine(roofline_norm=norm), batch=batch, context=1)
    longer = READ if batch == 125 else 2 * READ
    total = longer * (1 + 0.5**norm) ** (1 / norm)
    assert step.total == pytest.approx(total)
    smaller = total / (1 + 2**norm)
    other = {"weights": "compute", "compute": "weights"}[larger]
    assert resources(step) == pytest.approx({larger: total - smaller, other: smaller})


@each(
    "constant, count",
    [
        ("layer", 5),
        ("kernel", 3 * 2 + 2),
        ("quantised_kernel", 3 * 1 + 2),
        ("expert_layer", 3),
        ("latent_layer", 3),
        ("state_layer", 2),
        ("selected_layer", 3),
        ("step", 1),
        ("sequence", 64),
        ("request", 0),
        ("collective", 0),
    ],
)
@each("phase", ["decode", "prefill"])
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


def test_a_step_with_prompts_takes_at_least_as_long_as_its_launches():
    """Ten layers of 1 s; chips that work longer hide it, and decode steps run as one graph."""
    slow, given = engine(seconds_per_launched_layer=1.0), {"prompts": 1, "tokens": 100}
    assert float(mixed_step(one_matrix(), machine(), engine=slow, **given).total) == pytest.approx(10, rel=1e-3)
    for on, sizes in ((engine(seconds_per_launched_layer=1e-9), given), (slow, {"batch": 4, "context": 100})):
        plain = mixed_step(one_matrix(), machine(), engine=engine(), **sizes)
        assert float(mixed_step(one_matrix(), machine(), engine=on, **sizes).total) == float(plain.total)


def test_each_overhead_of_a_ledger_is_its_seconds_times_its_number():
    sizes, layout = {"batch": 8, "context": 100, "prompts": 1, "tokens": 100}, Layout(tp=2)
    slow = engine(seconds_per_launched_layer=1.0, seconds_per_kernel=1e-6, seconds_per_step=1e-3, seconds_per_collective=1e-5)
    step, entries = ledger_of_step(one_matrix(), machine(), sizes, layout=layout, engine=slow)
    overheads = [entry for entry in entries if entry.term == "overhead"]
    assert {entry.name: entry.count for entry in overheads}["launches of kernels by the host"] == 10
    for entry in overheads:
        assert float(entry.count * entry.seconds_each) == pytest.approx(float(entry.seconds))
    assert sum(float(entry.counted) for entry in overheads) == pytest.approx(float(step.terms["overhead"]))


def test_launches_count_products_and_steps_above_the_largest_graph():
    """Ten layers of one product, of 1 s each; prompts and sequences together are more than the graph."""
    slow = engine(seconds_per_launched_kernel=1.0, graph_tokens=100.0)
    sizes = {"prompts": 1, "tokens": np.array([96, 97, 200]), "batch": 4, "context": 100}
    plain, found = (mixed_step(one_matrix(), machine(), engine=on, **sizes).total for on in (engine(), slow))
    assert found[0] == plain[0]
    assert found[1:] == pytest.approx(10, rel=1e-2)


@each(
    "compute, memory, norm, seconds, to_compute, to_memory",
    [
        (3.0, 4.0, np.inf, 4, 0, 4),
        (4.0, 3.0, np.inf, 4, 4, 0),
        (4.0, 4.0, np.inf, 4, 4, 0),  # equal: arithmetic
        (3.0, 4.0, 1.0, 7, 3, 4),
        (4.0, 3.0, 1.0, 7, 4, 3),
        (3.0, 4.0, 2.0, 5, 5 * 9 / 25, 5 * 16 / 25),
        (4.0, 3.0, 2.0, 5, 5 * 16 / 25, 5 * 9 / 25),
        (0.0, 4.0, 2.0, 4, 0, 4),
        (4.0, 0.0, 2.0, 4, 4, 0),
    ],
)
def test_seconds_and_who_brought_them_about(compute, memory, norm, seconds, to_compute, to_memory):
    assert [float(x) for x in overlapped(compute, memory, norm)] == pytest.approx([seconds, to_compute, to_memory])


@each(
    "demand, count, seconds, waits, sides",
    [
        (Demand(4e15, 2e15, weights=4e12), 1, 2, {"compute": 2, "weights": 0}, (2, 1)),
        (Demand(4e15, 2e15, weights=4e12), 3, 6, {"compute": 6, "weights": 0}, (6, 3)),
        (Demand(2e15, 2e15, weights=8e12), 1, 2, {"compute": 0, "weights": 2}, (1, 2)),
        (Demand(2e15, 2e15, weights=4e12, efficiency=0.5, memory_efficiency=0.25), 1, 4, {"compute": 0, "weights": 4}, (2, 4)),
        (Demand(2e15, 2e15, kv=8e12), 3, 6, {"compute": 0, "kv": 6}, (3, 6)),
        (Demand(0.0, 2e15, weights=4e12, activations=12e12), 1, 4, {"compute": 0, "weights": 1, "activations": 3}, (0, 4)),
        (Demand(0.0, 2e15, weights=4e12, activations=12e12), 2, 8, {"compute": 0, "weights": 2, "activations": 6}, (0, 8)),
        (Demand(0.0, 2e15, activations=4e12), 1, 1, {"compute": 0, "weights": 0, "activations": 1}, (0, 1)),
    ],
)
def test_an_operator_of_a_demand(demand, count, seconds, waits, sides):
    """2 PFLOP/s and 4 TB/s."""
    clock = Clock(explained=True)
    run(clock, [Operator("term", "name", demand, count, 7)], CHIP, engine())
    assert {name: float(value) for name, value in clock.resources.items()} == pytest.approx(waits)
    busy = {"compute": sides[0], "memory": sides[1]}
    assert {name: float(value) for name, value in clock.busy.items()} == pytest.approx(busy)
    (entry,) = clock.entries
    assert (float(entry.seconds), float(entry.compute), float(entry.memory)) == pytest.approx((seconds, *sides))
    assert (entry.term, entry.name, entry.count, entry.times, entry.demand) == ("term", "name", 7, count, demand)


@pytest.mark.parametrize("at_once", [1, 6, 10**6])
def test_operators_joined_in_one_array_add_up_as_one_by_one(monkeypatch, at_once):
    """Compute bound, memory bound, with activations and with a cache; numbers and arrays of two shapes."""
    many, layouts = np.array([1e15, 4e15, 9e15]), np.array([[1.0], [3.0]])
    demands = [
        Demand(many, 2e15, weights=4e12),
        Demand(0.0, 2e15, weights=4e12, activations=many / 1e3),
        Demand(2e15 / layouts, 2e15, kv=4e12 * layouts),
        Demand(2e15, 2e15, weights=4e12, efficiency=0.5),
    ]
    terms = ("a", "b", "c", "a")
    joined, apart = Clock(explained=True), Clock(explained=True)
    real = engine(roofline_norm=2.5)
    asked = [Operator(term, "name", demand, count) for count, (term, demand) in enumerate(zip(terms, demands, strict=True), 1)]
    for one in asked:
        run(apart, [one], CHIP, real)
    monkeypatch.setattr(operator_time, "AT_ONCE", at_once)
    run(joined, asked, CHIP, real)
    shape = (2, 3)
    for kind in ("terms", "resources", "busy"):
        left, right = getattr(joined, kind), getattr(apart, kind)
        assert set(left) == set(right)
        for name in left:
            assert np.broadcast_to(left[name], shape) == pytest.approx(np.broadcast_to(right[name], shape), rel=1e-12)
    assert np.broadcast_to(joined.total, shape) == pytest.approx(np.broadcast_to(apart.total, shape), rel=1e-12)
    assert sum(np.broadcast_to(x, shape) for x in joined.resources.values()) == pytest.approx(
        np.broadcast_to(joined.total, shape)
    )
    assert [entry.demand for entry in joined.entries] == demands


def test_points_with_and_without_a_batch_read_their_own_caches():
    """No sequence, and 64 of 4,096 tokens of 10 kB, beside ten tokens of a prompt."""
    given = {"context": 4096, "prompts": 1, "tokens": 10, "engine": "ideal"}
    step = mixed_step(one_matrix(), CHIP, batch=np.array([0, 64]), **given)
    none, some = step.terms["attention"]
    assert some - none == pytest.approx(64 * 4096 * 1e4 / 4e12)
