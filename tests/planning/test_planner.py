"""A plan of a small machine against its own steady state, by hand: rates, money, pools and fronts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate, evaluate_prefill, evaluate_state
from steptime.planning.plan_search import fitting, ranked, search
from steptime.planning.prefill_pool import first_token
from steptime.planning.refinement import best
from tests.conftest import each, engine, machine
from tests.planning.cases import MODEL, NODES, USD, WORK, apart, case, closed_plan, equal_requests, shared


def test_a_shared_pool_delivers_its_steady_state():
    found = shared()
    (pool,) = found.pools
    candidate = Candidate(mode=AGGREGATED, layout=pool.layout, batch=pool.batch, chunk=pool.chunk)
    state = evaluate_state(case(), candidate, pool.batch, pool.chunk)
    sharing = pool.batch * pool.layout.replicas  # sequences that share tokens, of which one is the arrival itself
    rate = float(state.rate) * pool.layout.replicas * (sharing - 1) / sharing
    assert (found.mode, found.layout_text, pool.role) == (AGGREGATED, candidate.text, "serve")
    assert found.tpot == float(state.tpot) <= 8e-3
    assert found.ttft == float(state.ttft)
    assert found.tpot_bounds == (float(state.lower), float(state.upper))
    assert found.requests_per_second == pytest.approx(rate)
    assert found.utilisation == float(state.utilisation)
    assert (pool.chunk_share, pool.chunks_per_mixed_step) == (
        pytest.approx(float(1 - state.decode_only_share)),
        float(state.chunks_per_mixed_step),
    )
    assert pool.max_num_seqs == state.max_num_seqs > pool.batch
    assert found.concurrency == pytest.approx(sharing - 1 + found.requests_per_second * found.ttft)
    assert found.usd_per_second == pytest.approx(USD)
    cost = USD / (rate * 201) * 1e6
    assert found.usd_per_million_output_tokens == pytest.approx(cost)
    assert found.cost_bounds == pytest.approx(tuple(cost * float(b / state.tpot) for b in (state.lower, state.upper)))
    share = float(state.input_share)
    assert found.prefill_usd_per_million_tokens == pytest.approx(USD * share / (rate * 1000) * 1e6)
    assert found.decode_usd_per_million_tokens == pytest.approx(USD * (1 - share) / (rate * 201) * 1e6)
    assert found.usd_per_request == pytest.approx(USD / rate)
    assert found.transfer_seconds == 0
    assert pool.tokens_per_second == pytest.approx(rate * 201)
    assert found.tokens_per_second_per_chip == pytest.approx(rate * 201 / 4)
    assert found.tokens_per_second_per_user == 1 / found.tpot
    assert (found.chips, pool.chips, found.engine, found.ideal) == (4, 4, "ideal", None)
    assert found.search_seconds > 0


def test_pools_apart_deliver_what_both_can():
    found = apart(tpot=8e-3)
    first, server = found.pools
    one = Candidate(
        mode=DISAGGREGATED, layout=server.layout, batch=server.batch, prefill_layout=first.layout,
        prompts=first.batch // first.layout.dp,
    )  # fmt: skip
    state, prefill = evaluate_state(case(), one, server.batch, 1), evaluate_prefill(case(), one)
    can, sharing = float(prefill.rate) * first.layout.replicas, server.batch * server.layout.replicas
    serve = float(state.rate) * server.layout.replicas * (sharing - 1) / sharing
    rate = min(0.9 * can, serve)
    assert (first.role, server.role, found.layout_text) == ("prefill", "decode", one.text)
    assert first.batch == first.max_num_seqs == prefill.seats
    assert server.max_num_seqs == state.max_num_seqs > server.batch
    assert found.requests_per_second == pytest.approx(rate)
    assert found.utilisation == pytest.approx(rate / can)
    assert found.concurrency == pytest.approx((sharing - 1) * rate / serve + rate * found.ttft)
    # 1,000 tokens of 10 kB over the links of the sender, inside a node of four: each waits for those before it
    moving = 1e7 / (1e11 * first.layout.group * first.layout.pp)
    busy = rate / first.layout.replicas * moving / first.layout.dp
    assert found.transfer_seconds == pytest.approx(1e-6 + moving + moving / 2 * busy / (1 - busy))
    queued = float(first_token(prefill, rate / can, first.layout.replicas))
    assert found.ttft == pytest.approx(queued + found.transfer_seconds)
    assert (first.chunk, first.chunk_share, server.chunk, server.chunk_share) == (0, 0, 0, 0)
    assert first.tokens_per_second == pytest.approx(rate * 1000)
    assert server.tokens_per_second == pytest.approx(rate * 201)
    chip_seconds = [first.layout.chips / float(prefill.rate), server.layout.chips / float(state.rate)]  # of a request
    share = chip_seconds[0] / sum(chip_seconds)
    assert found.prefill_usd_per_million_tokens == pytest.approx(USD * share / (rate * 1000) * 1e6)
    assert found.decode_usd_per_million_tokens == pytest.approx(USD * (1 - share) / (rate * 201) * 1e6)
    bounds = [
        (float(getattr(state, name) / state.tpot) + float(getattr(prefill.step, name) / prefill.step.total)) / 2
        for name in ("lower", "upper")
    ]
    assert found.cost_bounds == pytest.approx(tuple(found.usd_per_million_output_tokens * b for b in bounds))


@pytest.mark.parametrize("tokens", [(100, 1000), pytest.param((4000, 100), marks=pytest.mark.thorough)])
def test_input_bears_the_rent_of_the_time_that_reads_it(tokens):
    """Prompts of 20 TFLOP per thousand tokens at 2 PFLOP/s of a chip; outputs take what decode takes: not whole chips."""
    workload = equal_requests(input_tokens=tokens[0], output_tokens=tokens[1])
    found = apart(workload=workload, tpot=8e-3)
    first, server = found.pools
    reads = float(first.step.total) * first.layout.chips / first.batch
    assert reads == pytest.approx(tokens[0] * 1e-5, rel=0.5)  # or the weights, where a pass is short
    decodes = (tokens[1] - 1) * found.tpot * server.layout.chips / server.batch
    money = found.requests_per_second * tokens[0] * found.prefill_usd_per_million_tokens / 1e6
    assert money == pytest.approx(USD * reads / (reads + decodes))
    assert found.decode_usd_per_million_tokens * found.requests_per_second * tokens[1] / 1e6 == pytest.approx(USD - money)


def test_caches_move_between_nodes_where_pools_are_on_several():
    found = apart(chips=8)
    first = found.pools[0].layout
    moving = 1e7 / (1e10 * first.group * first.pp)
    busy = found.requests_per_second / first.replicas * moving / first.dp
    assert found.transfer_seconds == pytest.approx(5e-6 + moving + moving / 2 * busy / (1 - busy))


def test_links_carry_no_more_than_nine_tenths_of_what_they_could():
    """Caches of 10 MB at 0.1 GB/s a chip: 100 ms of a link each, 9 a second of every chip that reads prompts."""
    slow = machine(size=4, capacity=11e9, up=1e8, latency=1e-6)
    found = closed_plan(MODEL, slow, WORK, engine="ideal", modes=(DISAGGREGATED,), diagnostics=True)
    senders = found.pools[0].chips
    assert found.requests_per_second == pytest.approx(9 * senders, rel=1e-3)
    moving = 0.1 / (found.pools[0].layout.group * found.pools[0].layout.pp)
    assert found.transfer_seconds == pytest.approx(1e-6 + moving + moving / 2 * 9, rel=1e-2)  # 0.9 / (1 - 0.9) halves
    assert found.ttft > found.transfer_seconds
    assert found.binding == ("transfer rate",)
    assert "KV caches" in found.why


def test_the_front_holds_points_of_both_modes_that_can_be_had():
    found = closed_plan(MODEL, NODES, WORK, st.Slo(ttft=0.5), engine="ideal", front=True)
    assert {p.mode for p in found.front} <= {AGGREGATED, DISAGGREGATED}
    for point in found.front:
        assert point.ttft <= 0.5
        assert point.usd_per_million_output_tokens == pytest.approx(USD / (4 * point.tokens_per_second_per_chip) * 1e6)
        assert 0 < point.batch < 1000
    soon = closed_plan(MODEL, NODES, WORK, st.Slo(ttft=0.01), engine="ideal", front=True).front
    assert max(point.ttft for point in soon) <= 0.01 < max(point.ttft for point in found.front)
    tight = closed_plan(MODEL, NODES, WORK, st.Slo(ttft=0.5, tpot=3e-3), engine="ideal", front=True)
    assert tight.front == found.front  # whatever the speed limit


@pytest.mark.slow
def test_a_point_of_the_front_is_its_own_plan():
    found = closed_plan(MODEL, NODES, WORK, engine="ideal", modes=(AGGREGATED,), alternatives=False)
    for point in found.front[:: max(1, len(found.front) // 5)]:
        fast = closed_plan(
            MODEL,
            NODES,
            WORK,
            st.Slo(tpot=1.0001 / point.tokens_per_second_per_user),
            engine="ideal",
            modes=(AGGREGATED,),
            alternatives=False,
        )
        assert fast.usd_per_million_output_tokens <= point.usd_per_million_output_tokens * 1.03  # a search is near


def test_points_of_one_chip_make_their_batch_times_their_speed():
    """Each of a batch but the one that comes gets 200 tokens while it decodes, and one from its prompt."""
    found = closed_plan(MODEL, NODES, WORK, engine="ideal", modes=(AGGREGATED,), chips=1, alternatives=False)
    for point in (*found.front, *((found.runner_up,) if found.runner_up else ())):
        tokens = point.tokens_per_second_per_chip
        sharing = tokens / (point.tokens_per_second_per_user * 201 / 200)
        filled = max(point.batch - 1, 0.9 * point.batch)  # requests may queue for few seats, taken nine tenths of the time
        assert (point.batch - 1) * (1 - 1e-9) <= sharing <= filled * (1 + 1e-9)
        assert point.batch < 10 or sharing == pytest.approx(point.batch - 1)
        assert point.usd_per_million_output_tokens == pytest.approx(2 / 3600 / tokens * 1e6)


@pytest.mark.thorough
def test_the_runner_up_is_another_layout_of_the_same_question():
    found = closed_plan(MODEL, NODES, WORK, engine=engine(compute_efficiency=0.5), diagnostics=True)
    given = replace(case(), engine=engine(compute_efficiency=0.5))
    peaks = best(given, ranked(given, search(given, (AGGREGATED, DISAGGREGATED), fitting(given))))
    ordered = [peak.candidate for peak in peaks]
    assert [c.text for c in ordered[:2]] == [found.layout_text, found.runner_up.layout_text]
    assert found.runner_up.layout_text != found.layout_text
    assert found.runner_up.tokens_per_second_per_user > 0
    assert found.ideal.layout_text == found.layout_text
    assert found.ideal.batch == found.pools[-1].batch
    assert found.ideal.tokens_per_second_per_user > 1.2 * found.tokens_per_second_per_user
    assert found.ideal.tokens_per_second_per_chip / found.tokens_per_second_per_chip == pytest.approx(
        found.usd_per_million_output_tokens / found.ideal.usd_per_million_output_tokens
    )


def test_the_chips_of_a_plan_are_the_systems_unless_told():
    assert closed_plan(MODEL, NODES, WORK, engine="ideal", alternatives=False).chips == 4
    one = closed_plan(MODEL, NODES, WORK, engine="ideal", chips=2, alternatives=False)
    assert (one.chips, one.usd_per_second) == (2, pytest.approx(USD / 2))
    with pytest.raises(st.InputError, match="modes: must be aggregated or disaggregated, got both"):
        closed_plan(MODEL, NODES, WORK, engine="ideal", modes=("both",), alternatives=False)
    with pytest.raises(st.InputError, match="modes: must be"):
        closed_plan(MODEL, NODES, WORK, engine="ideal", modes=(), alternatives=False)


def test_a_plan_that_is_none_has_no_figures():
    found = closed_plan(MODEL, NODES, WORK, st.Slo(tpot=1e-9), engine="ideal", front=True)
    assert not found.feasible
    assert math.isnan(found.tpot)
    assert (found.transfer_seconds, found.pools, found.throughput_range, found.speed_range) == (0, (), None, None)
    assert found.evaluated > 0
    assert found.search_seconds > 0
    assert found.front


@each(
    "chips, says",
    [
        (200_001, "chips must be a whole number of at least 1 and at most 200,000|chips must be at most 200,000"),
        (0, "chips must be at least 1"),
        (2.5, "chips must be a whole number"),
        ([1, 2], "chips must be one number"),
    ],
)
def test_chips_that_no_machine_has_are_refused(chips, says):
    with pytest.raises(st.InputError, match=says):
        closed_plan(MODEL, NODES, WORK, engine="ideal", chips=chips, alternatives=False)


def test_a_machine_without_a_network_beyond_it_has_no_more_chips():
    box = replace(NODES, domains=(replace(NODES.domains[0], size=4),))
    with pytest.raises(st.InputError, match=r"chips: must be at most 4, .* got 5"):
        closed_plan(MODEL, box, WORK, engine="ideal", chips=5, alternatives=False)


def test_a_plan_takes_one_of_everything():
    many = replace(WORK, input_tokens=np.array([1, 2]))
    for workload, slo in ((many, st.Slo()), (WORK, st.Slo(tpot=np.array([1.0, 2.0])))):
        with pytest.raises(st.InputError, match="a plan takes one system, one workload and one pair of limits"):
            closed_plan(MODEL, NODES, workload, slo, engine="ideal", alternatives=False)


@pytest.mark.parametrize(("gigabytes", "feasible"), [(17.203, False), (17.25, True)])
def test_a_front_has_no_point_whose_chunk_does_not_fit_beside_its_batch(gigabytes, feasible):
    """16.061 GB of weights and one sequence of 8,692 tokens of 131,072 B take 17.200; then a chunk, of 7 MB at least."""
    small = st.vary(st.load_system("hgx-h100"), {"chip.hbm.capacity": gigabytes * 1e9})
    work = equal_requests(input_tokens=8192, output_tokens=500)
    found = closed_plan(st.load_model("llama-3.1-8b"), small, work, chips=1, engine="ideal", modes=(AGGREGATED,), front=True)
    assert (len(found.front) > 0, found.feasible) == (feasible, feasible)
