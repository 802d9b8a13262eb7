"""A plan of a small machine against its own steady state, by hand: rates, money, pools, fronts and what would help."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import steptime as st
from steptime.machines.system import Rent
from steptime.models.model import Attention
from steptime.planning.deployment import Plan, best_change, mean_resources, mean_terms
from steptime.planning.planner import DoesNotFit, plan, smallest_system
from steptime.planning.refine import best
from steptime.planning.search import (
    AGGREGATED,
    DISAGGREGATED,
    Candidate,
    Case,
    fitting,
    prefill_of,
    ranked,
    search,
    state_of,
)
from steptime.planning.steady import first_token
from tests.conftest import engine, machine, matrix, model_of, one_matrix

WORK = st.Workload(input_tokens=1000, output_tokens=201)
NODES = machine(size=4, capacity=11e9, up=1e11, out=1e10, latency=1e-6, out_latency=5e-6)
MODEL = one_matrix(heads=4)
USD = 4 * 2 / 3600  # of four chips a second


def case(chips=4, slo=None) -> Case:
    return Case(model=MODEL, system=NODES, workload=WORK, slo=slo or st.Slo(), chips=chips, engine=engine())


def shared() -> Plan:
    return plan(MODEL, NODES, WORK, st.Slo(tpot=8e-3), engine="ideal", modes=(AGGREGATED,))


def apart(chips=None, workload=WORK, **limits) -> Plan:
    return plan(MODEL, NODES, workload, st.Slo(**limits), engine="ideal", modes=(DISAGGREGATED,), chips=chips)


def test_a_shared_pool_delivers_its_steady_state():
    found = shared()
    (pool,) = found.pools
    candidate = Candidate(mode=AGGREGATED, layout=pool.layout, batch=pool.batch, chunk=pool.chunk)
    state = state_of(case(), candidate, pool.batch, pool.chunk)
    rate = float(state.rate) * pool.layout.replicas
    assert (found.mode, found.layout_text, pool.role) == (AGGREGATED, candidate.text, "serve")
    assert found.tpot == float(state.tpot) <= 8e-3
    assert found.ttft == float(state.ttft)
    assert found.tpot_interval == (float(state.lower), float(state.upper))
    assert found.requests_per_second == pytest.approx(rate)
    assert found.utilisation == pool.chunk_share == pytest.approx(float(state.utilisation))
    assert found.concurrency == pool.batch * pool.layout.replicas
    assert found.usd_per_second == pytest.approx(USD)
    cost = USD / (rate * 201) * 1e6
    assert found.usd_per_million_output_tokens == pytest.approx(cost)
    assert found.interval == pytest.approx(tuple(cost * float(b / state.tpot) for b in (state.lower, state.upper)))
    share = float(state.input_share)
    assert found.usd_per_million_input == pytest.approx(USD * share / (rate * 1000) * 1e6)
    assert found.usd_per_million_output == pytest.approx(USD * (1 - share) / (rate * 201) * 1e6)
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
    state, prefill = state_of(case(), one, server.batch, 1), prefill_of(case(), one)
    can, serve = float(prefill.rate) * first.layout.replicas, float(state.rate) * server.layout.replicas
    rate = min(0.95 * can, serve)
    assert (first.role, server.role, found.layout_text) == ("prefill", "decode", one.text)
    assert first.batch == prefill.seats
    assert found.requests_per_second == pytest.approx(rate)
    assert found.utilisation == pytest.approx(rate / can)
    assert found.concurrency == pytest.approx(server.batch * server.layout.replicas * rate / serve)
    assert found.ttft == pytest.approx(float(first_token(prefill, rate / can, engine())))
    assert (first.chunk, first.chunk_share, server.chunk, server.chunk_share) == (0, 0, 0, 0)
    assert first.tokens_per_second == pytest.approx(rate * 1000)
    assert server.tokens_per_second == pytest.approx(rate * 201)
    share = first.chips / (first.chips + server.chips)
    assert found.usd_per_million_input == pytest.approx(USD * share / (rate * 1000) * 1e6)
    assert found.usd_per_million_output == pytest.approx(USD * (1 - share) / (rate * 201) * 1e6)
    bounds = [
        (float(getattr(state, name) / state.tpot) + float(getattr(prefill.step, name) / prefill.seconds)) / 2
        for name in ("lower", "upper")
    ]
    assert found.interval == pytest.approx(tuple(found.usd_per_million_output_tokens * b for b in bounds))
    # 1,000 tokens of 10 kB over the links of the sender, inside a node of four
    assert found.transfer_seconds == pytest.approx(1e-6 + 1e7 / (1e11 * first.layout.group))


@pytest.mark.parametrize(("tokens", "chips"), [((100, 1000), (1, 3)), ((4000, 100), (3, 1))])
def test_input_bears_the_rent_of_the_chips_that_read_it(tokens, chips):
    found = apart(workload=st.Workload(input_tokens=tokens[0], output_tokens=tokens[1]), tpot=8e-3)
    assert tuple(pool.chips for pool in found.pools) == chips
    assert found.usd_per_million_input == pytest.approx(USD * chips[0] / 4 / (found.requests_per_second * tokens[0]) * 1e6)
    assert found.usd_per_million_output == pytest.approx(USD * chips[1] / 4 / (found.requests_per_second * tokens[1]) * 1e6)


def test_caches_move_between_nodes_where_pools_are_on_several():
    found = apart(chips=8)
    assert found.transfer_seconds == pytest.approx(5e-6 + 1e7 / (1e10 * found.pools[0].layout.group))


def test_the_front_holds_points_of_both_modes_that_can_be_had():
    found = plan(MODEL, NODES, WORK, st.Slo(ttft=0.5), engine="ideal")
    assert {p.mode for p in found.front} <= {AGGREGATED, DISAGGREGATED}
    for point in found.front:
        assert point.ttft <= 0.5
        assert point.usd_per_million_output_tokens == pytest.approx(USD / (4 * point.tokens_per_second_per_chip) * 1e6)
        assert 0 < point.batch < 1000
    soon = plan(MODEL, NODES, WORK, st.Slo(ttft=0.01), engine="ideal").front
    assert max(point.ttft for point in soon) <= 0.01 < max(point.ttft for point in found.front)
    tight = plan(MODEL, NODES, WORK, st.Slo(ttft=0.5, tpot=3e-3), engine="ideal")
    assert tight.front == found.front  # whatever the speed limit


def test_a_point_of_the_front_is_its_own_plan():
    found = plan(MODEL, NODES, WORK, engine="ideal", modes=(AGGREGATED,))
    for point in found.front[:: max(1, len(found.front) // 5)]:
        fast = plan(
            MODEL, NODES, WORK, st.Slo(tpot=1.0001 / point.tokens_per_second_per_user), engine="ideal", modes=(AGGREGATED,)
        )
        assert fast.usd_per_million_output_tokens <= point.usd_per_million_output_tokens * 1.006


def test_points_of_one_chip_make_their_batch_times_their_speed():
    """Each of a batch gets 200 tokens while it decodes, and one from its prompt."""
    found = plan(MODEL, NODES, WORK, engine="ideal", modes=(AGGREGATED,), chips=1)
    for point in (*found.front, *((found.runner_up,) if found.runner_up else ())):
        tokens = point.batch * point.tokens_per_second_per_user * 201 / 200
        assert point.tokens_per_second_per_chip == pytest.approx(tokens)
        assert point.usd_per_million_output_tokens == pytest.approx(2 / 3600 / tokens * 1e6)


def test_the_runner_up_is_another_layout_of_the_same_question():
    found = plan(MODEL, NODES, WORK, engine=engine(compute_efficiency=0.5))
    given = replace(case(), engine=engine(compute_efficiency=0.5))
    ordered = best(given, ranked(given, search(given, (AGGREGATED, DISAGGREGATED), fitting(given))))
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
    assert plan(MODEL, NODES, WORK, engine="ideal").chips == 4
    one = plan(MODEL, NODES, WORK, engine="ideal", chips=2)
    assert (one.chips, one.usd_per_second) == (2, pytest.approx(USD / 2))
    with pytest.raises(st.InputError, match="mode must be aggregated or disaggregated, not both"):
        plan(MODEL, NODES, WORK, engine="ideal", modes=("both",))
    with pytest.raises(st.InputError, match="mode must be"):
        plan(MODEL, NODES, WORK, engine="ideal", modes=())


def test_mean_resources_of_steps_with_and_without_a_chunk():
    found = shared()
    (pool,) = found.pools
    share = pool.chunk_share
    for mean, name in ((mean_resources(pool), "resources"), (mean_terms(pool), "terms")):
        plain, mixed = getattr(pool.step, name), getattr(pool.mixed, name)
        assert set(mean) == {*plain, *mixed}
        for key, value in mean.items():
            assert value == pytest.approx((1 - share) * float(plain.get(key, 0.0)) + share * float(mixed.get(key, 0.0)))
        assert sum(mean.values()) == pytest.approx(found.tpot)
    alone = replace(pool, mixed=None, chunk_share=0.0)
    assert mean_terms(alone) == {name: float(value) for name, value in pool.step.terms.items()}
    assert pool.chips == pool.layout.chips * pool.layout.replicas


@pytest.mark.parametrize(
    ("elasticities", "name", "saving"),
    [
        ({"HBM bandwidth": -0.6, "arithmetic": -0.2, "rent": 1.0}, "HBM bandwidth", 1 - 1.1**-0.6),
        ({"HBM bandwidth": -0.2, "KV bytes": 0.5, "rent": 1.0}, "KV bytes", 1 - 1.1**-0.5),
        ({"HBM bandwidth": -0.5, "KV bytes": 0.2}, "HBM bandwidth", 1 - 1.1**-0.5),
        ({"arithmetic": -0.01}, "arithmetic", 1 - 1.1**-0.01),
    ],
)
def test_what_would_help_most(elasticities, name, saving):
    found = replace(shared(), elasticities=elasticities)
    assert best_change(found) == (name, pytest.approx(saving))


@pytest.mark.parametrize("elasticities", [{"rent": 1.0}, {}, {"arithmetic": -0.001}, {"HBM bandwidth": 0.5, "KV bytes": -0.5}])
def test_what_hardly_helps_is_none(elasticities):
    assert best_change(replace(shared(), elasticities=elasticities)) is None


def test_a_plan_that_is_none_has_no_figures():
    found = plan(MODEL, NODES, WORK, st.Slo(tpot=1e-9), engine="ideal")
    assert not found.feasible
    assert math.isnan(found.tpot)
    assert (found.transfer_seconds, found.pools, found.throughput_range, found.speed_range) == (0, (), None, None)
    assert found.evaluated > 0
    assert found.search_seconds > 0
    assert found.front


def test_the_smallest_system_that_holds_a_model():
    """10 GB of weights, and systems of 8, 12 and 80 GB; one layer of one head on 12 chips of 1 GB has no room either."""
    small, right, large = (replace(machine(size=n, capacity=c), name=f"{n}x{c:g}") for n, c in ((8, 1e9), (4, 3e9), (8, 10e9)))
    assert smallest_system(MODEL, [large, right, small]).name == right.name
    many = replace(machine(size=12, capacity=1e9), name="many")
    deep = one_matrix(heads=1, layers=1, weights=1e10)
    assert smallest_system(deep, [many, large]) is None
    assert smallest_system(MODEL, [small]) is None
    exact = replace(machine(size=1, capacity=1e10), name="exact")
    assert smallest_system(MODEL, [exact]) is None  # weights that fill it leave no room


# --- words -------------------------------------------------------------------------------------------------------------------


def test_what_to_mind_before_a_plan_is_made():
    model = replace(MODEL, max_context=1200, notes=("a note",))
    found = plan(model, NODES, WORK, engine="ideal").warnings
    assert found == (
        "requests of 1,201 tokens exceed the model's context of 1,200",
        "the rent of 2.00 USD/h is a guess figure; give yours with --set rent='2 USD/h'",
        "a note",
    )
    exactly = replace(MODEL, max_context=1201)
    assert not any("exceed" in text for text in plan(exactly, NODES, WORK, engine="ideal").warnings)


@pytest.mark.parametrize(
    ("rent", "says"),
    [
        (Rent(low=1.0, typical=1.0, high=1.0, grade="list"), None),
        (Rent(low=1.0, typical=1.0, high=1.0, grade="recalled"), "is a recalled figure"),
        (Rent(low=math.nan, typical=math.nan, high=math.nan, grade="guess", note="nobody rents it"), "nobody rents it"),
    ],
)
def test_what_to_mind_about_a_rent(rent, says):
    found = plan(MODEL, replace(NODES, rent=rent), WORK, engine="ideal").warnings
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


def test_what_to_mind_about_chips_that_were_never_measured():
    on = engine(memory_efficiency=0.9, fit={"vendors": ["NVIDIA"]})
    assert any("no run on chips of this maker was measured" in text for text in plan(MODEL, NODES, WORK, engine=on).warnings)
    known = machine(size=4, capacity=11e9, vendor="NVIDIA")
    assert not any("was measured" in text for text in plan(MODEL, known, WORK, engine=on).warnings)
    amd = machine(size=4, capacity=11e9, vendor="AMD")
    assert any("chips of AMD" in text for text in plan(MODEL, amd, WORK, engine=on).warnings)


def test_why_a_plan_cannot_be_cheaper():
    found = plan(one_matrix(heads=1), machine(flops=1e30, size=1), WORK, st.Slo(tpot=3e-3), chips=1, engine="ideal")
    assert found.why.startswith(
        "It cannot be cheaper because a larger batch would make each token slower than 3.00 ms. A step streams weights for 83% "
        "and streams KV cache for 17% of its time."
    )
    assert "10 % more HBM bandwidth would help most" in found.why
    weights, cache = (mean_resources(found.pools[0])[name] / found.tpot for name in ("weights", "kv"))
    assert f"streams weights for {weights:.0%} and streams KV cache for {cache:.0%} of its time" in found.why
    split = apart(tpot=3e-3)
    assert "A decode step " in split.why


def test_small_shares_are_not_told():
    """A cache that takes less than a twentieth of the time."""
    found = plan(one_matrix(kv_bytes=1.0, heads=1), machine(flops=1e30, size=1), WORK, chips=1, engine="ideal")
    assert "A step streams weights for 100% of its time" in found.why
    cached = plan(one_matrix(kv_bytes=1e6, weights=1.0, heads=1), machine(flops=1e30, size=1), WORK, chips=1, engine="ideal")
    assert cached.why.endswith(
        "A step streams KV cache for 100% of its time. 10 % more HBM bandwidth would help most: 9.1% cheaper."
    )


def test_a_machine_that_nothing_helps():
    """All time is the engine's overhead."""
    found = plan(
        one_matrix(heads=1), machine(size=1), WORK, chips=1, engine=engine(seconds_per_step=1e3, seconds_per_sequence=1e3)
    )
    assert "No single figure of the machine, 10 % better, would lower the cost" in found.why
    assert "waits for the engine's overhead for 100%" in found.why


@pytest.mark.parametrize(
    ("gigabytes", "chips", "says"),
    [
        (3.0, 1, r"its weights take 10.0 GB, the chips hold 3.00 GB, 7.00 GB too little\. With --chips 4 it would fit"),
        (3.0, 3, r"the chips hold 9.00 GB, 1.00 GB too little\. With --chips 4 it would fit"),
        (6.0, 1, r"the chips hold 6.00 GB, 4.00 GB too little\. With --chips 2 it would fit"),
    ],
)
def test_weights_that_are_too_large_say_by_how_much(gigabytes, chips, says):
    with pytest.raises(DoesNotFit, match=says):
        plan(MODEL, machine(size=4, capacity=gigabytes * 1e9), WORK, chips=chips, engine="ideal")


def test_weights_that_cannot_be_divided_say_what_the_best_layout_holds():
    """One layer and one head: 10 GB on every chip, of however many."""
    model = model_of(matrix(weights=1e10), attention=(Attention(name="kv", kv_bytes=1.0),), layers=1, heads=1)
    with pytest.raises(DoesNotFit) as caught:
        plan(model, machine(size=4, capacity=6e9), WORK, chips=4, engine="ideal")
    assert "the best layout puts 10.0 GB on a chip of 6.00 GB" in str(caught.value)
    assert "would fit" not in str(caught.value)


def test_weights_that_only_some_layouts_divide_say_what_the_best_holds():
    """Two layers of one head: 5 GB on each of two chips, of four."""
    model = model_of(matrix(weights=5e9), attention=(Attention(name="kv", kv_bytes=1.0),), layers=2, heads=1)
    with pytest.raises(DoesNotFit, match=r"the best layout puts 5.00 GB on a chip of 4.00 GB"):
        plan(model, machine(size=4, capacity=4e9), WORK, chips=4, engine="ideal")


def test_whole_nodes_are_tried_where_fewer_chips_do_not_divide_a_model():
    """Three layers of three heads on nodes of three: seven chips would hold 10 GB at 1.5 each, but only nine divide it."""
    model = model_of(matrix(weights=10e9 / 3), attention=(Attention(name="kv", kv_bytes=1.0),), layers=3, heads=3)
    with pytest.raises(DoesNotFit, match=r"With --chips 9 it would fit"):
        plan(model, machine(size=3, capacity=1.5e9), WORK, chips=1, engine="ideal")


def test_room_for_a_sequence_but_not_for_a_chunk_is_none():
    """A cache of 12 MB fits beside 10 GB of weights, and the activations of a chunk do not."""
    tight = machine(size=1, capacity=10e9 + 1201 * 1e4 + 5000)
    found = plan(one_matrix(heads=1), tight, WORK, chips=1, engine="ideal", modes=(AGGREGATED,))
    assert "leave no room for a request of 1,201 tokens" in found.reason


def test_an_engine_that_uses_less_says_so():
    with pytest.raises(DoesNotFit, match=r"the chips hold 4.00 GB \(test uses 67% of 6.00 GB\)"):
        plan(MODEL, machine(size=4, capacity=6e9), WORK, chips=1, engine=engine(memory_share=0.75, reserved_bytes=0.5e9))


def test_limits_that_are_out_of_reach_say_how_near_the_best_comes():
    found = plan(MODEL, NODES, WORK, st.Slo(tpot=1e-4), engine="ideal")
    fastest = max(p.tokens_per_second_per_user for p in plan(MODEL, NODES, WORK, engine="ideal").front)
    assert f"reaches 10,000 tok/s per user; the fastest gives {fastest:,.0f} tok/s" in found.reason
    late = plan(MODEL, NODES, WORK, st.Slo(ttft=1e-3), engine="ideal")
    assert "no layout on 4 chips gives a first token within 1.00 ms; the soonest at full load is" in late.reason
    full = plan(
        MODEL, machine(size=1, capacity=10.0001e9), st.Workload(input_tokens=50_000, output_tokens=1), chips=1, engine="ideal"
    )
    assert "leave no room for a request of 50,001 tokens" in full.reason
