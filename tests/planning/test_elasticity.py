"""What figures are worth and what binds, derived by hand on machines that wait for one thing.

Elasticities are forward differences over ten per cent, so that a share s of a cost that a figure divides is worth
log(1 - s + s / 1.1) / log(1.1).
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning.elasticity import binding, elastic_figures, elasticities, scaled_cache
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate, PlanProblem
from steptime.planning.prefill_pool import prefill_pool
from steptime.planning.refinement import best
from steptime.planning.steady_state import decode_pool
from tests.conftest import each, engine, machine, one_matrix, sparse_matrix
from tests.planning.cases import closed_plan, equal_requests

WORK = equal_requests(input_tokens=1000, output_tokens=201)  # 200 steps at a mean context of 1,100.5
CACHE = one_matrix(weights=1.0, kv_bytes=1e5)  # waits for its cache, whatever the batch: 1 MB a token
IDEAL = engine()


def case(model=CACHE, system=None, slo=None, workload=WORK) -> PlanProblem:
    return PlanProblem(model=model, system=system or machine(), workload=workload, slo=slo or st.Slo(), chips=8, engine=IDEAL)


def decodes(batch=100, layout=None, **more) -> Candidate:
    return Candidate(mode=DISAGGREGATED, layout=layout or Layout(), batch=batch, **more)


def reads(many=10**5) -> dict:
    """Prefill replicas beside those that decode: by default so many that they are never the slower pool."""
    return {"prefill_layout": Layout(replicas=many), "prompts": 1}


def worth(given: PlanProblem, candidate: Candidate, turns: int = 1) -> dict[str, float]:
    """What figures are worth to a candidate with the batch that serves most."""
    if candidate.mode == DISAGGREGATED and candidate.prefill_layout is None:
        candidate = replace(candidate, **reads())
    for _ in range(turns):  # in each of which the batch may grow by half
        ((_, _, candidate),) = best(given, [candidate], 1)
    return elasticities(given, [candidate])


def share(s: float) -> float:
    return math.log(1 - s + s / 1.1) / math.log(1.1)


NOTHING = {"hbm_bandwidth": 0.0, "hbm_capacity": 0.0, "arithmetic": 0.0, "scale_up_bandwidth": 0.0, "scale_out_bandwidth": 0.0}


def test_a_machine_that_waits_for_its_cache():
    found = worth(case(), decodes())
    assert found == pytest.approx(NOTHING | {"hbm_bandwidth": -1, "kv_bytes": 1, "rent": 1}, abs=1e-4)


def test_a_machine_that_computes():
    """10,000 sequences of 1e9 weights, without a cache to speak of."""
    found = worth(case(one_matrix(kv_bytes=1e-9)), decodes(10_000))
    assert found == pytest.approx(NOTHING | {"arithmetic": -1, "kv_bytes": 0, "rent": 1}, abs=1e-4)


def test_a_machine_that_waits_for_its_links():
    """Two chips of one matrix: an all-reduce of each row takes a thousand times the arithmetic."""
    model = one_matrix(weights=1.0, kv_bytes=1e-9)
    system = machine(up=1e9)
    found = worth(case(model, system), decodes(10_000, Layout(tp=2)))
    assert found == pytest.approx(NOTHING | {"scale_up_bandwidth": -1, "kv_bytes": 0, "rent": 1}, abs=1e-3)
    apart = worth(case(model, machine(size=1, out=1e9)), decodes(10_000, Layout(tp=2)))
    assert apart == pytest.approx(NOTHING | {"scale_out_bandwidth": -1, "kv_bytes": 0, "rent": 1}, abs=1e-3)


def test_weights_and_cache_by_their_shares():
    """A token a user every 3 ms: 2.5 ms of weights at 4 TB/s leave 0.5 ms of cache; ten per cent more leave 0.8."""
    slow = case(one_matrix(), machine(flops=1e30), st.Slo(tpot=3e-3))
    found = worth(slow, decodes(181))
    one = 1100.5 * 1e4  # the arrival itself is not in flight in the mean
    left, more = 3e-3 * 4e12 - 1e10 - one, 3e-3 * 4.4e12 - 1e10 - one
    assert found["hbm_bandwidth"] == pytest.approx(math.log(left / more) / math.log(1.1), abs=0.02)
    assert found["kv_bytes"] == pytest.approx(1, abs=0.01)
    assert found["arithmetic"] == pytest.approx(0, abs=1e-6)
    assert found["hbm_capacity"] == pytest.approx(0, abs=1e-6)


def test_memory_that_is_full():
    """20 GB hold 10 GB of weights and 10 of caches; ten per cent more, 12: room for the batch and 2.5 deviations of it."""
    full = case(one_matrix(kv_bytes=1e4), machine(flops=1e30, capacity=20e9))
    each = 1100.5 * 1e5  # bytes of a sequence

    def held(room: float) -> float:
        """The batch whose seats fill the room: steps read 10 GB of weights whatever it is, and its caches, which grow."""
        low, high = 1.0, room / each
        for _ in range(60):
            n = (low + high) / 2
            grows = n * each / (1e10 + n * each) * (1 - 1 / n)
            fills = n + 2.5 * math.sqrt(n * (1 + (201 / 1100.5) ** 2 / 12) / (1 - grows)) > math.floor(room / each)
            low, high = (low, n) if fills else (n, high)
        return low

    before, after = held(10e9), held(12e9)
    found = worth(full, decodes(round(before)))
    costs = [(1e10 + n * each) / n for n in (before, after)]  # bytes that a step reads, for each of its tokens
    assert found["hbm_capacity"] == pytest.approx(math.log(costs[1] / costs[0]) / math.log(1.1), abs=0.1)  # whole seats
    assert found["hbm_bandwidth"] == pytest.approx(-1, abs=1e-6)


def test_the_slower_of_two_pools_decides():
    """Decode waits for weights and cache, prefill computes: what the pool waits for that takes longer for a request.

    1,200 sequences are the most that are tried, three times the 400 of the candidate; one of them is the arrival itself.
    """
    model, system = one_matrix(weights=1e9, kv_bytes=1e5), machine(flops=2e14)
    decode = decode_pool(model, system, WORK, layout=Layout(), batch=1200, engine=IDEAL)
    prefill = prefill_pool(model, system, WORK, layout=Layout(), prompts=1, engine=IDEAL)
    decodes_in, reads_in = float(1 / decode.rate), float(1 / (0.9 * prefill.rate))
    many = math.ceil(2 * reads_in / decodes_in)  # that read for one that decodes, so that it is the slower
    matrices = float(decode.decode.resources["compute"] / decode.decode.total)
    assert 0.05 < matrices < 0.95
    found = worth(case(model, system), decodes(400, prefill_layout=Layout(replicas=many), prompts=1))
    assert found["arithmetic"] == pytest.approx(share(matrices), abs=2e-3)
    assert found["hbm_bandwidth"] == pytest.approx(share(1 - matrices), abs=2e-3)
    found = worth(case(model, system), decodes(400, Layout(replicas=2), prefill_layout=Layout(), prompts=1))
    assert found["arithmetic"] == pytest.approx(-1, abs=0.01)
    assert found["hbm_bandwidth"] == pytest.approx(0, abs=0.01)


def test_prompts_that_share_chips_by_their_share():
    """Aggregated: a decode step waits for its cache, a chunk of prompt computes beside it."""
    model = one_matrix(weights=1e9, kv_bytes=1e5)
    system = machine(flops=2e15)
    found = worth(case(model, system), Candidate(mode=AGGREGATED, layout=Layout(), batch=100, chunk=1000))
    assert -0.9 < found["hbm_bandwidth"] < -0.5
    assert found["hbm_bandwidth"] + found["arithmetic"] == pytest.approx(-1, abs=0.03)
    assert found["rent"] == pytest.approx(1)


@pytest.mark.thorough
def test_a_first_token_in_time_limits_the_batch():
    """A step of nothing but memory: ten per cent more bandwidth is ten per cent on cost, and a larger batch in time."""
    stream = machine(flops=1e30)
    one = Candidate(mode=AGGREGATED, layout=Layout(), batch=100, chunk=1000)
    tight = worth(case(one_matrix(), stream, st.Slo(ttft=4.5e-3)), one)
    free = worth(case(one_matrix(), stream), one, 16)
    assert free["hbm_bandwidth"] == pytest.approx(-1, abs=0.01)
    assert tight["hbm_bandwidth"] < -1.3


def test_without_a_rent_and_without_hbm_there_is_no_such_figure():
    system = machine()
    free = replace(system, rent=replace(system.rent, typical=math.nan))
    assert "rent" not in elastic_figures(free)
    assert "rent" in elastic_figures(system)
    found = worth(case(system=free), decodes())
    assert found["hbm_bandwidth"] == pytest.approx(-1, abs=1e-4)
    (hbm,) = system.chip.memory
    sram = replace(system, chip=replace(system.chip, memory=(replace(hbm, name="sram"),)))
    assert [name for name in elastic_figures(sram) if name.startswith("hbm")] == []
    assert len(elastic_figures(system)) == len(elastic_figures(sram)) + 2


def test_a_cache_of_twice_the_bytes():
    model = scaled_cache(one_matrix(kv_bytes=100.0), 2.0)
    assert [(layer.attention[0].kv_bytes, n) for layer, n in model.layers] == [(200.0, 10)]


# --- what binds ------------------------------------------------------------------------------------------------------------

STREAM = machine(flops=1e30)  # 2.5 ms of weights and 2.75 us of cache a sequence: 3 ms at 181.7


def held(seats: float) -> float:
    """Capacity that holds so many seats beside 10 GB of weights and a step of one token each."""
    return 1e10 + seats * (1e4 * 1100.5 + 4000)


@each(
    "model, system, slo, batch, names",
    [
        (one_matrix(), STREAM, st.Slo(tpot=3e-3), 181, ("speed",)),
        (one_matrix(), STREAM, st.Slo(tpot=3e-3), 170, ("speed",)),  # not at once, but ten per cent further
        (one_matrix(), STREAM, st.Slo(tpot=3e-3), 160, ("speed",)),  # a quarter further
        (one_matrix(), STREAM, st.Slo(), 160, ("saturation",)),  # twice the batch breaks nothing
        (one_matrix(), machine(flops=1e30, capacity=held(175.5)), st.Slo(), 150, ("memory",)),  # 151 need more
        (one_matrix(), machine(flops=1e30, capacity=held(175.5)), st.Slo(tpot=2.914e-3), 150, ("speed", "memory")),
        (one_matrix(), machine(flops=1e30, capacity=held(207.5)), st.Slo(tpot=2.914e-3), 150, ("speed",)),  # at once
        (one_matrix(), machine(), st.Slo(tpot=1.0), 1000, ("saturation",)),  # computes: nothing to gain
        (one_matrix(), machine(), st.Slo(tpot=0.0127), 1000, ("saturation",)),
    ],
)
def test_what_keeps_a_batch_from_growing(model, system, slo, batch, names):
    assert binding(case(model, system, slo), decodes(batch)) == names


def test_a_batch_grows_by_whole_sequences_of_its_groups():
    """Two micro-batches: 182 is the next after 180, which 3 ms do not hold with weights read twice."""
    limit = 2 * 2.5e-3 + 181 * 1100.5 * 1e4 / 4e12
    slo = st.Slo(tpot=limit)
    assert binding(case(one_matrix(), STREAM, slo), decodes(180, Layout(microbatches=2))) == ("speed",)
    assert binding(case(one_matrix(), STREAM, slo), decodes(160, Layout(microbatches=2))) == ("speed",)


def test_a_batch_grows_by_a_sequence_of_each_group():
    """Four groups with 31 seats each, which 100 need (121 in all) and 104 do not find; 88 have room enough."""
    model, layout = sparse_matrix(kv_bytes=1e4, active=1), Layout(dp=4, ep=4)
    full = machine(flops=1e30, capacity=16e9 + 31.5 * (1e5 * 1100.5 + 4000))
    assert binding(case(model, full), decodes(100, layout)) == ("memory",)
    tight = st.Slo(tpot=float(decode_pool(model, full, WORK, layout=layout, batch=102, engine=IDEAL).tpot))
    assert binding(case(model, full, tight), decodes(100, layout)) == ("speed", "memory")
    assert binding(case(model, full), decodes(80, layout)) == ("memory",)


def shares(batch: int, chunk: int = 1000) -> Candidate:
    return Candidate(mode=AGGREGATED, layout=Layout(), batch=batch, chunk=chunk)


@pytest.mark.parametrize(
    ("slo", "batch", "names"),
    [
        (st.Slo(ttft=1e-4), 100, ("first token",)),
        (st.Slo(tpot=1e-4), 100, ("speed",)),
        (st.Slo(tpot=1e-4, ttft=1e-4), 100, ("speed", "first token")),
        (st.Slo(), 2640, ("prompt queue",)),  # 16 prompts in a step at most: 2,904 of 3,200 sequences are more than 90 %
        (st.Slo(ttft=1e-4), 2560, ("first token",)),  # 2,816 of 3,200
        (st.Slo(ttft=1e-4), 2640, ("prompt queue",)),
    ],
)
def test_what_keeps_a_batch_that_shares_its_chips_from_growing(slo, batch, names):
    assert binding(case(one_matrix(), STREAM, slo), shares(batch)) == names


def test_a_prefill_pool_that_takes_no_more():
    """Prompts of 1,000 take 10 ms: 90 a second of 100 at most. Decode of 100 serves 100 / (200 x 2.8 ms) = 180 a second."""
    system = machine()
    both = decodes(100, prefill_layout=Layout(), prompts=1)
    assert binding(case(one_matrix(), system), both) == ("prefill rate",)
    three = decodes(100, prefill_layout=Layout(replicas=3), prompts=1)
    assert binding(case(one_matrix(), system), three) == ("prefill rate",)  # at twice the batch
    seven = decodes(100, prefill_layout=Layout(replicas=7), prompts=1)
    assert binding(case(one_matrix(), system), seven) == ("saturation",)
    two = decodes(100, Layout(replicas=2), prefill_layout=Layout(replicas=3), prompts=1)
    assert binding(case(one_matrix(), system), two) == ("prefill rate",)


def test_binding_where_the_ttft_limits_the_prefill_pool_is_first_token():
    """A first token within 10.1 ms leaves a pool of 10 ms passes almost idle: the limit binds, not the capacity."""
    three = decodes(100, prefill_layout=Layout(replicas=3), prompts=1)
    assert binding(case(one_matrix(), machine(), st.Slo(ttft=0.0101)), three) == ("first token",)
    both = decodes(100, prefill_layout=Layout(), prompts=1)
    assert binding(case(one_matrix(), machine(), st.Slo(ttft=10.0)), both) == ("prefill rate",)


@pytest.mark.parametrize(
    ("system", "sure", "names"),
    [
        pytest.param(
            "hgx-h100", None, ("first token",), marks=pytest.mark.thorough
        ),  # separate pools, 83 % utilization of prefill, first token 999 ms of 1 s
        pytest.param(
            "hgx-h200", None, ("first token",), marks=pytest.mark.thorough
        ),  # the decode pool just matches that prefill pool
        ("hgx-h100", 0.9, ("speed",)),  # one pool: 90 % probability of the speed, 100 % of the first token
    ],
)
def test_binding_of_a_plan_names_the_limit_that_is_just_met(system, sure, names):
    workload, slo = equal_requests(input_tokens=4000, output_tokens=500), st.Slo(tpot=0.025, ttft=1.0)
    found = closed_plan("llama-3.3-70b", system, workload, slo, sure=sure, diagnostics=True)
    assert found.binding == names
    name = {"speed": "tpot", "first token": "ttft"}[names[0]]
    if sure is None:
        assert getattr(found, name) == pytest.approx(getattr(slo, name), rel=0.01)
    else:
        assert found.slo_probability[name] == pytest.approx(sure, abs=0.01)


def test_links_that_take_no_more_caches():
    """Caches of 10 MB at 0.1 GB/s: 9 a second of each chip that reads prompts, whose passes take 100 a second."""
    slow = machine(up=1e8)
    both = decodes(100, prefill_layout=Layout(replicas=3), prompts=1)
    assert binding(case(one_matrix(), slow), both) == ("transfer rate",)
    few = replace(both, batch=2)  # 1 in flight, for 200 steps of 2.5 ms: 2 a second
    assert "transfer rate" not in binding(case(one_matrix(), slow), few)
    found = worth(case(one_matrix(), slow), both)
    assert found["scale_up_bandwidth"] == pytest.approx(share(1.0), abs=0.01)  # a ninth of a second each to send and to take in
    assert found["kv_bytes"] > 0.9
