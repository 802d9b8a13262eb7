"""The acceptance checks of the lecture (Reiner Pope, 2026-04-29), sections 1-17 but 6 (tests/scaling), by their numbers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from steptime import blackboard as bb
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step
from tests.conftest import each, machine, one_matrix


def test_1_balance_of_h100_in_fp8():
    assert bb.balance(bb.multiplies(1978.9e12), 1.0, 3.35e12) == pytest.approx(295, rel=0.02)


def test_2_optimal_batch_as_spoken():
    assert bb.optimal_batch(300, 256 / 32) == 2400


def test_3_optimal_batch_of_the_real_model():
    assert bb.optimal_batch(300, 671 / 37) == pytest.approx(5441, rel=1e-3)


def test_4_utilisation_halves_at_twice_the_balanced_context():
    assert bb.utilisation(bb.memory_over_compute(1e15, 400e3, 2400, 200e3)) == pytest.approx(0.5, rel=0.01)


def test_5_drain_of_rubin():
    assert bb.drain_seconds(288e9, 20e12) == pytest.approx(14.4e-3, rel=1e-12)
    assert bb.drain_seconds(288e9, 20e12) == pytest.approx(15e-3, rel=0.05)


def test_6_worst_wait():
    assert bb.worst_wait(0.020) == 0.040


def test_7_throughput_of_a_rack():
    assert bb.throughput(2000, 1 / 64) == 128_000


def test_8_penalty_of_a_batch_of_one():
    assert bb.unbatched_penalty(300, 8) == 2400
    memory_bound = bb.cost_per_token(bb.memory_over_compute(1, 0, 2400, np.inf), 1, 1, 1.0)
    assert memory_bound / 1.0 == 2400  # the floor is one unit of compute a token


def test_9_batch_ratio_of_a_fast_mode():
    assert bb.batch_ratio(6, 2.5) == 15


def test_10_ceiling_of_a_fast_mode():
    assert bb.speed_ceiling(6, 2.5) == pytest.approx(2.8, rel=1e-12)
    assert bb.speed_for_price(6, 6, 2.5) == pytest.approx(2.5, rel=1e-12)
    assert bb.speed_for_price(1, 6, 2.5) == pytest.approx(1, rel=1e-12)
    assert bb.speed_for_price(1e15, 6, 2.5) == pytest.approx(bb.speed_ceiling(6, 2.5), rel=1e-12)


def test_fast_mode_inverts_a_step_time_law():
    """A step of t_w + u B, run at B and at B/15, gives back the price and speed ratios it was inverted from."""
    ratio = bb.kv_over_weights(6, 2.5)
    base, fast = 1 + ratio, 1 + ratio / bb.batch_ratio(6, 2.5)
    assert base / fast == pytest.approx(2.5)
    assert (fast / (1 / 15)) / base == pytest.approx(6)


def test_12_experts_of_a_chip():
    assert bb.experts_per_chip(256, 64) == 4


def test_13_pipeline_condition():
    assert bb.pipeline_condition(8, 1, 8) == 2.0
    assert bb.pipeline_condition(32, 1, 8) == 8.0


@each("stages", [1, 2, 4, 8])
def test_14_kv_of_a_chip_does_not_depend_on_stages(stages):
    assert bb.kv_bytes_per_chip(2400, 2e5, 1667, 64, stages) == pytest.approx(12.5e9, rel=1e-3)


def test_15_weights_of_a_chip():
    assert bb.weight_bytes_per_chip(2e12, 1, 64, 4) == pytest.approx(7.81e9, rel=1e-3)


@pytest.mark.parametrize("hop", [0.002, 0.0025])
def test_17_latency_of_pipeline_hops(hop):
    assert 0.028 <= bb.token_latency(0.020, 4, hop) <= 0.030


def test_22_kv_bytes_from_a_price_tier():
    assert bb.kv_bytes_from_tier(1e11, 2e5, 300, 1) == pytest.approx(1666.7, rel=1e-3)


def test_23_kv_bytes_from_a_shape():
    assert bb.kv_bytes_from_shape(1, 128, 8) == 2048
    assert bb.kv_bytes_from_shape(1, 128, 8) == pytest.approx(bb.kv_bytes_from_tier(1e11, 2e5, 300, 1), rel=0.25)


def test_24_utilisation_from_a_price_ratio():
    assert bb.decode_utilisation(5) == 0.20


def test_25_break_even_of_hbm_and_recompute():
    assert bb.break_even_hold(0.020, 200e3) == 4000


def test_break_even_is_where_holding_costs_as_much_as_recompute():
    active, mac_rate, bandwidth, capacity, rent = 1e11, 1e15, 4e12, 8e10, 1.0
    kv = bb.kv_bytes_from_tier(active, 200e3, bb.balance(mac_rate, 1, bandwidth), 1)
    seconds = bb.recompute_cost(active, mac_rate, rent) / bb.hold_cost(kv, capacity, rent)
    assert seconds == pytest.approx(bb.break_even_hold(bb.drain_seconds(capacity, bandwidth), 200e3))


def test_drain_identity():
    """A step that reads all of a full memory once takes the drain time."""
    system = machine(capacity=1e11, bandwidth=5e12)
    kv = (1e11 - 1e10) / (10 * 1000 * 1000)  # ten layers, a thousand sequences of a thousand tokens fill what weights leave
    step = decode_step(one_matrix(weights=1e9, layers=10, kv_bytes=kv), system, batch=1000, context=1000, engine="ideal")
    assert step.terms["attention"] + 1e10 / 5e12 == pytest.approx(bb.drain_seconds(1e11, 5e12))


def test_hits_that_pay_for_a_cache():
    assert bb.break_even_hits(6.25, 5, 0.5) == pytest.approx(0.28, abs=0.005)
    assert bb.break_even_hits(10, 5, 0.5) == pytest.approx(1.11, abs=0.005)


def test_exchange_in_two_levels():
    # Two racks: a token of 8 copies reaches 2 (1 - 1/256) of them, half of that remote, at an eighth of the bandwidth.
    assert bb.two_level_exchange(2, 16, 8) == pytest.approx(16 * 2 * (1 - 2**-8) / 2 / 8)
    assert bb.two_level_exchange(1, 8, 8) == 1
    # One copy per token: nothing to save.
    assert bb.two_level_exchange(4, 8, 1) == pytest.approx(bb.across_racks(4, 8))
    racks = np.arange(1, 65)
    assert (bb.two_level_exchange(racks, 8, 8) <= np.maximum(bb.across_racks(racks, 8), 1) + 1e-12).all()


def test_across_racks():
    assert bb.across_racks(2, 8) == 4
    assert bb.across_racks(1e9, 8) == pytest.approx(8)


def test_larger_scale_up_reads_weights_faster():
    assert bb.floor_of_domain(671e9, 1, 8, 3.35e12) / bb.floor_of_domain(671e9, 1, 72, 8e12) == pytest.approx(21.5, rel=1e-3)


def test_distinct_experts_and_chips():
    assert bb.weights_touched(1, 37e9, 671e9, experts=256, active_experts=8) == pytest.approx(37e9)
    assert bb.weights_touched(1e4, 37e9, 671e9, experts=256, active_experts=8) == pytest.approx(671e9, rel=1e-6)


# --- the full model on an ideal machine of one kind of layer agrees with the blackboard ------------------------------------


@each("batch, context, chips", list(product([1, 7, 100, 500, 5000], [1, 1000, 30_000], [1, 2, 8])))
def test_full_model_agrees_with_the_step_formula(batch, context, chips):
    """The busiest resource of a step is the lecture's max(compute, weights + KV)."""
    system = machine(flops=2e15, bandwidth=4e12)
    step = decode_step(one_matrix(), system, batch=batch, context=context, layout=Layout(tp=chips), engine="ideal")
    expected = bb.step_seconds(
        batch, context, active=1e10, total=1e10, weight_bytes=1, kv_bytes_per_token=10_000,
        mac_rate=bb.multiplies(2e15) * chips, bandwidth=4e12 * chips,
    )  # fmt: skip
    assert step.lower == pytest.approx(expected, rel=1e-12)


def test_full_model_turns_compute_bound_at_the_balanced_batch():
    system = machine(flops=2e15, bandwidth=4e12)
    best = bb.optimal_batch(bb.balance(bb.multiplies(2e15), 1, 4e12), 1)
    model = one_matrix(kv_bytes=0.0)
    below, above = (decode_step(model, system, batch=int(best) + d, context=1, engine="ideal") for d in (-1, 1))
    assert (str(below.bound), str(above.bound)) == ("weights", "compute")


def test_full_model_shows_that_pipeline_stages_cancel_in_kv():
    """P stages divide the weights of a chip by P; with P times the sequences in flight its cache stays."""
    system, model = machine(), one_matrix(layers=16, kv_bytes=1000.0)
    one = memory_per_chip(model, system, batch=2400, context=1000, layout=Layout(tp=8), engine="ideal")
    for stages in (2, 4, 8, 16):
        many = memory_per_chip(
            model,
            system,
            batch=2400 * stages,
            context=1000,
            layout=Layout(tp=8, pp=stages, microbatches=stages),
            engine="ideal",
        )
        assert many.cache == pytest.approx(float(one.cache))
        assert many.weights == pytest.approx(float(one.weights) / stages)


def test_full_model_shows_that_looped_pipelines_are_latency_neutral():
    """P stages and P micro-batches of b take the time of one stage with b: boxes moved between racks."""
    system, model = machine(), one_matrix(layers=16)
    one = decode_step(model, system, batch=100, context=1000, layout=Layout(tp=8), engine="ideal")
    four = decode_step(model, system, batch=400, context=1000, layout=Layout(tp=8, pp=4, microbatches=4), engine="ideal")
    assert four.total == pytest.approx(float(one.total), rel=1e-9)


def test_full_model_adds_one_hop_a_stage():
    system = machine(latency=0.0)
    slow = machine(latency=0.0025)
    model = one_matrix(layers=16)
    layout = Layout(tp=1, pp=4, microbatches=4)
    fast, hops = (decode_step(model, s, batch=400, context=1000, layout=layout, engine="ideal") for s in (system, slow))
    assert hops.total - fast.total == pytest.approx(4 * 0.0025, rel=1e-6)


def test_18_tokens_served_in_two_months():
    assert bb.served_tokens(50e6, 60 * 86400) == 2.592e14
    assert bb.served_tokens(50e6, 60 * 86400) == pytest.approx(200e12, rel=0.3)


def test_19_tokens_of_chinchilla():
    assert bb.chinchilla_tokens(100e9) == 2e12


def test_20_overtraining():
    assert bb.overtraining(200e12, 100e9) == 100


def test_21_tokens_that_cost_alike():
    assert bb.tokens_equal_to_rl(1.0, eta=3, per_token=3) == 1.5
    assert bb.tokens_equal_to_serving(1.0, eta=3) == 1.0
    assert bb.tokens_equal_to_rl(1.0, eta=1 / 0.3, per_token=3) == pytest.approx(1.67, abs=0.005)
    assert bb.tokens_equal_to_serving(1.0, eta=1 / 0.3) == pytest.approx(1.11, abs=0.005)
