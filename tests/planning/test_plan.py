"""Plans: what they promise holds, limits are met, and what cannot be done is an answer with a reason."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.hardware.what_if import scale
from steptime.launch.launch_commands import ENGINES, launch_commands
from steptime.pareto import pareto
from steptime.planning.batch_queue import queue_wait
from steptime.planning.plan_search import smallest_system
from steptime.planning.planner import ACCURACY, DoesNotFit
from tests.conftest import each, machine, one_matrix
from tests.planning.cases import WHOLE, closed_plan, equal_requests

CHAT = equal_requests(input_tokens=8192, output_tokens=1024)
LIMITS = st.Slo(tpot=0.02, ttft=2)


@pytest.fixture(scope="module", params=["ideal", pytest.param("vllm", marks=pytest.mark.thorough)])
def plan(request, deepseek, rack):
    """The README's plan, of the bound and of a real engine."""
    return closed_plan(deepseek, rack, CHAT, LIMITS, engine=request.param, **WHOLE | {"elasticities": True})


@pytest.fixture(scope="module")
def apart(deepseek, rack):
    """The same with pools apart, by the default engine."""
    return closed_plan(deepseek, rack, CHAT, LIMITS, modes=("disaggregated",), alternatives=False)


@pytest.mark.slow
def test_the_plan_meets_its_limits(plan):
    assert plan.feasible
    assert plan.tokens_per_second_per_user >= 50
    assert plan.ttft <= 2
    assert all(np.all(pool.memory.fits) for pool in plan.pools)
    assert sum(pool.chips for pool in plan.pools) <= plan.chips == 72


def test_the_money_adds_up(plan):
    """What input and output tokens cost apart is the rent; so is what requests cost."""
    w = plan.workload
    a_second = plan.requests_per_second * (
        w.input_tokens * plan.prefill_usd_per_million_tokens + w.output_tokens * plan.decode_usd_per_million_tokens
    )
    assert a_second / 1e6 == pytest.approx(plan.usd_per_second)
    assert plan.requests_per_second * plan.usd_per_request == pytest.approx(plan.usd_per_second)
    assert plan.usd_per_million_output_tokens == pytest.approx(plan.usd_per_request / w.output_tokens * 1e6)
    low, high = plan.cost_bounds
    assert low <= plan.usd_per_million_output_tokens <= high


def test_littles_law_holds(plan):
    """Requests in flight = rate x time from the arrival of each to its last token."""
    lasts = plan.ttft + (plan.workload.output_tokens - 1) * plan.tpot
    assert plan.concurrency == pytest.approx(plan.requests_per_second * lasts)


def test_nothing_on_the_front_beats_the_plan_within_the_limits(plan):
    best = min(p.usd_per_million_output_tokens for p in plan.front if p.tokens_per_second_per_user >= 50)
    # Usual layouts win ties within the accuracy of a search.
    assert plan.usd_per_million_output_tokens <= best * (1 + ACCURACY)
    speed = [p.tokens_per_second_per_user for p in plan.front]
    output = [p.tokens_per_second_per_chip for p in plan.front]
    assert speed == sorted(speed, reverse=True)
    assert output == sorted(output)
    assert plan.runner_up.usd_per_million_output_tokens >= plan.usd_per_million_output_tokens * 0.99


def test_the_sentence_names_what_binds_and_what_helps(plan):
    assert plan.why.startswith("What keeps it from being cheaper: ")
    assert "would make it" in plan.why
    assert plan.binding


def test_elasticities_have_the_right_sign(plan):
    for name, value in plan.elasticities.items():
        assert value >= -1e-6 if name in ("rent", "kv_bytes") else value <= 1e-6, name
    improving = sum(-v for n, v in plan.elasticities.items() if n in ("hbm_bandwidth", "arithmetic", "scale_up_bandwidth"))
    if plan.engine == "ideal":  # which has no time of its own: a machine twice as fast in all is twice as cheap
        assert improving == pytest.approx(1, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "slo"), [("vllm", LIMITS), pytest.param("ideal", st.Slo(ttft=2), marks=pytest.mark.slow)])
def test_an_elasticity_is_what_a_new_plan_finds(deepseek, rack, engine, slo):
    """Ten per cent more arithmetic, planned anew: as much cheaper as it says, where no whole replicas are matched."""
    before, after = (
        closed_plan(deepseek, on, CHAT, slo, engine=engine, modes=("aggregated",), alternatives=False, elasticities=True)
        for on in (rack, scale(rack, "chip.peak", 1.1))
    )
    change = math.log(after.usd_per_million_output_tokens / before.usd_per_million_output_tokens) / math.log(1.1)
    assert change == pytest.approx(before.elasticities["arithmetic"], abs=0.15)


@pytest.mark.slow
def test_tighter_limits_never_cost_less(deepseek, rack, plan):
    tighter = {
        "ideal": (replace(LIMITS, tpot=0.01), replace(LIMITS, ttft=0.3), st.Slo(tpot=0.005, ttft=0.5)),
        "vllm": (replace(LIMITS, tpot=0.017), replace(LIMITS, ttft=1.0)),
    }
    for slo in tighter[plan.engine]:
        tight = closed_plan(deepseek, rack, CHAT, slo, engine=plan.engine, alternatives=False)
        assert tight.usd_per_million_output_tokens >= plan.usd_per_million_output_tokens * 0.99


def test_modes_can_be_chosen(apart):
    assert [pool.role for pool in apart.pools] == ["prefill", "decode"]
    assert apart.transfer_seconds > 0
    assert apart.utilisation <= 0.9 + 1e-9
    prefill, decode = apart.pools
    assert prefill.tokens_per_second == pytest.approx(apart.requests_per_second * 8192)
    assert decode.tokens_per_second == pytest.approx(apart.requests_per_second * 1024)


def test_the_batch_follows_the_blackboard():
    """One chip, one kind of layer, prompts of one token, no limits: the batch stops about where weights are paid for."""
    system = machine(flops=2e15, bandwidth=4e12, size=1)
    found = closed_plan(
        one_matrix(kv_bytes=0.0),
        system,
        equal_requests(input_tokens=1, output_tokens=100_000),
        chips=1,
        engine="ideal",
        diagnostics=True,
    )
    assert found.binding == ("saturation",)
    assert found.pools[-1].batch == pytest.approx(250, rel=0.05)  # R = 1e15 x 1 / 4e12


@pytest.mark.parametrize(
    ("slo", "says"),
    [
        (st.Slo(tpot=1e-5), "reaches 100,000 tok/s per user; the fastest gives"),
        pytest.param(st.Slo(ttft=1e-3), "gives a first token within 1.00 ms; the earliest comes", marks=pytest.mark.thorough),
    ],
)
def test_limits_that_nothing_meets_are_an_answer(deepseek, rack, slo, says):
    found = closed_plan(deepseek, rack, CHAT, slo, chips=8, engine="ideal", alternatives=False)
    assert not found.feasible
    assert says in found.reason


@pytest.mark.xfail(strict=True, reason="requests that queue for few seats meet both limits: another pair has to be found")
def test_limits_that_only_clash_are_told_apart(closed_forms):
    """Sixteen tokens of output on one node: speed needs chips of its own for decode, a soon first token needs all of them."""
    model, system = st.load_model("llama-3.1-70b"), st.load_system("hgx-h100")
    workload, slo = equal_requests(input_tokens=8192, output_tokens=16), st.Slo(tpot=0.02, ttft=0.4)
    found = closed_plan(model, system, workload, slo, engine="ideal", alternatives=False)
    assert "not both: at 50.0 tok/s per user the earliest first token comes after" in found.reason


def test_a_model_that_fits_nowhere_says_by_how_much():
    model = st.load_model("llama-3.1-405b")
    with pytest.raises(DoesNotFit, match=r"weights take 812 GB, the chips hold 684 GB, 128 GB too little\. With --chips 16"):
        closed_plan(model, st.load_system("hgx-h100"), CHAT, engine="ideal", alternatives=False)
    with pytest.raises(DoesNotFit, match=r"hold 614 GB \(vllm uses 92 % of 684 GB, 15.4 GB of it for buffers\), 198 GB too"):
        closed_plan(model, st.load_system("hgx-h100"), CHAT, alternatives=False)
    systems = [st.load_system(name) for name in ("hgx-h100", "gb200-nvl72", "hgx-h200")]
    system, chips = smallest_system(model, systems)
    assert (system.name, chips) == ("hgx-h200", 8)


def test_no_room_for_a_sequence_is_an_answer():
    model, system = st.load_model("llama-3.1-70b", weights="fp8"), st.load_system("hgx-h100")
    found = closed_plan(model, system, equal_requests(input_tokens=120_000, output_tokens=1000), chips=1, alternatives=False)
    assert not found.feasible
    assert "leave no room" in found.reason


@pytest.mark.parametrize("chips", [0, -1])
def test_chips_must_be_positive(deepseek, rack, chips):
    with pytest.raises(st.InputError, match="at least 1"):
        closed_plan(deepseek, rack, CHAT, chips=chips, alternatives=False)


@each("sizes", [(0, 10), (10, 0), (-5, 10)])
def test_requests_have_tokens(sizes):
    with pytest.raises(st.InputError, match="at least 1 token"):
        equal_requests(input_tokens=sizes[0], output_tokens=sizes[1])


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_launch_commands_carry_the_layout(plan, apart, engine):
    text = "\n".join(launch_commands(plan, engine))
    assert "deepseek-ai/DeepSeek-V3" in text
    assert str(int(plan.pools[0].layout.stage if engine != "vllm" else plan.pools[0].layout.group)) in text
    lengths = re.findall(r"(?:max-model-len|context-length|max_seq_len) (\d+)", text)
    assert lengths
    assert all(int(length) >= 9216 for length in lengths)
    lines = launch_commands(apart, engine)
    assert sum(bool(re.match(r"# (prefill|decode) pool: \d+ replicas? of \d+ chips?", line)) for line in lines) == 2
    assert all(len(line) < 140 for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_plans_keep_to_what_their_engine_can_overlap(engine):
    """vLLM and SGLang overlap two batches where groups exchange experts, TensorRT-LLM nowhere; a pipeline has one a stage."""
    for name, chips in (("llama-3.1-70b", 8), ("deepseek-ai/DeepSeek-V3", 32)):
        given = {"chips": chips, "engine": engine, "alternatives": False}
        found = closed_plan(st.load_model(name), st.load_system("gb200-nvl72"), CHAT, st.Slo(ttft=4), **given)
        assert found.pools
        for pool in found.pools:
            m = pool.layout
            exchanged = m.dp > 1 and m.ep > 1 and engine != "trtllm"
            assert m.microbatches <= m.pp * (2 if exchanged else 1)
        assert "overlaps two micro-batches" not in "\n".join(launch_commands(found, engine))


def test_a_launch_of_another_engine_says_what_it_cannot_overlap():
    found = closed_plan(
        st.load_model("llama-3.1-70b"), st.load_system("hgx-h100"), CHAT, st.Slo(ttft=4), engine="ideal", alternatives=False
    )
    assert any(pool.layout.microbatches > pool.layout.pp for pool in found.pools)
    for engine in ENGINES:
        text = "\n".join(launch_commands(found, engine))
        assert "overlaps two micro-batches of a stage" in text
        assert "--enable-dbo" not in text
        assert "--enable-two-batch-overlap" not in text


def test_one_output_token_is_all_prefill():
    found = closed_plan(
        st.load_model("llama-3.1-8b"),
        st.load_system("hgx-h100"),
        equal_requests(input_tokens=2000, output_tokens=1),
        alternatives=False,
    )
    assert found.feasible
    assert found.prefill_usd_per_million_tokens > 0


# --- engines and ranges -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_default_is_a_real_engine(deepseek, rack):
    """One that is slower than the bound beside it, whatever its constants are."""
    found = closed_plan(deepseek, rack, CHAT, st.Slo(ttft=5), chips=16, diagnostics=True)
    assert found.engine == "vllm"
    assert found.ideal.layout_text == found.layout_text
    assert found.ideal.batch == found.pools[-1].batch
    assert found.ideal.tokens_per_second_per_user > found.tokens_per_second_per_user
    assert found.ideal.usd_per_million_output_tokens < found.usd_per_million_output_tokens
    assert found.ideal.ttft < found.ttft


@pytest.mark.thorough
def test_chips_on_which_one_model_was_measured_say_so():
    model, system = st.load_model("llama-3.1-70b"), st.load_system("mi300x-8")
    found = closed_plan(model, system, equal_requests(input_tokens=1000, output_tokens=500), alternatives=False)
    assert found.engine == "typical"
    assert any("rest only on runs of DeepSeek-R1" in warning for warning in found.warnings)
    sooner = st.decode_step(model, system, batch=8, context=1000, engine="typical").total
    bare = replace(system, chip=replace(system.chip, reached={"compute": system.chip.reached["compute"]}))
    assert sooner == pytest.approx(st.decode_step(model, bare, batch=8, context=1000, engine="typical").total / 0.71)
    ideal = [st.decode_step(model, of, batch=8, context=1000, engine="ideal").total for of in (system, bare)]
    assert ideal[0] == ideal[1]


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["tpu7x", pytest.param("trn2-16", marks=pytest.mark.thorough)])
def test_chips_without_a_measured_engine_get_the_typical_one_and_a_note(system):
    found = closed_plan(
        st.load_model("llama-3.1-70b"),
        st.load_system(system),
        equal_requests(input_tokens=1000, output_tokens=500),
        alternatives=False,
    )
    assert found.engine == "typical"
    assert any("has no measured run on chips of" in warning for warning in found.warnings)
    low, high = found.tpot_range
    assert low <= 0.5 * found.tpot
    assert high >= 2 * found.tpot * (1 - 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_ranges_hold_the_plan(deepseek, rack, mode):
    found = closed_plan(deepseek, rack, CHAT, st.Slo(tpot=0.03, ttft=5), engine="vllm", modes=(mode,), alternatives=False)
    assert found.tpot_range[0] < found.tpot < found.tpot_range[1]
    assert found.ttft_range[0] < found.ttft < found.ttft_range[1]
    assert found.cost_range[0] < found.usd_per_million_output_tokens < found.cost_range[1]
    assert found.speed_range == pytest.approx((1 / found.tpot_range[1], 1 / found.tpot_range[0]))
    low, high = found.throughput_range
    assert low < found.tokens_per_second_per_chip < high
    for output, cost in ((low, found.cost_range[1]), (high, found.cost_range[0])):
        assert output * cost == pytest.approx(found.tokens_per_second_per_chip * found.usd_per_million_output_tokens)


@pytest.mark.slow
def test_a_shared_pool_costs_as_its_tokens_take(deepseek, rack, monkeypatch):
    """Where prompts and decode share the chips, twice the time per token is twice the cost; the choice is left out."""
    monkeypatch.setattr("steptime.planning.plan_intervals.OPTIMISM", 0.0)
    monkeypatch.setattr("steptime.planning.plan_intervals.OPTIMISM_DEVIATION", 0.0)
    found = closed_plan(deepseek, rack, CHAT, st.Slo(ttft=5), engine="vllm", modes=("aggregated",), alternatives=False)
    cost, tpot = found.usd_per_million_output_tokens, found.tpot
    for side in (0, 1):
        assert found.cost_range[side] / cost == pytest.approx(found.tpot_range[side] / tpot)


def test_the_ideal_has_neither_range_nor_ideal(deepseek, rack):
    found = closed_plan(deepseek, rack, CHAT, st.Slo(ttft=5), chips=16, engine="ideal", alternatives=False)
    assert (found.tpot_range, found.ttft_range, found.cost_range, found.speed_range, found.throughput_range) == (None,) * 5
    assert found.ideal is None
    assert found.cost_bounds[0] <= found.usd_per_million_output_tokens <= found.cost_bounds[1]


@pytest.mark.parametrize("scale_", [4.0, pytest.param(100.0, marks=pytest.mark.thorough)])
def test_constants_known_less_well_never_make_a_plan_surer(scale_):
    model, system, workload = (
        st.load_model("llama-3.1-8b"),
        st.load_system("hgx-h100"),
        equal_requests(input_tokens=500, output_tokens=500),
    )
    engine = st.load_engine("vllm")
    doubtful = replace(engine, fit=engine.fit | {"covariance": (np.array(engine.fit["covariance"]) * scale_).tolist()})
    sure, unsure = (closed_plan(model, system, workload, chips=1, engine=e, alternatives=False) for e in (engine, doubtful))
    assert unsure.usd_per_million_output_tokens == pytest.approx(sure.usd_per_million_output_tokens)
    for name in ("tpot_range", "ttft_range", "cost_range"):
        (low, high), (wider_low, wider_high) = getattr(sure, name), getattr(unsure, name)
        assert wider_low <= low
        assert high <= wider_high


# --- queues -------------------------------------------------------------------------------------------------------------


@each("rho", [0.1, 0.5, 0.9])
def test_one_server_waits_as_pollaczek_and_khinchine_say(rho):
    assert queue_wait(1.0, rho) == pytest.approx(rho / (2 * (1 - rho)))


def test_more_servers_wait_less():
    waits = [float(queue_wait(1.0, 0.8, c)) for c in (1, 2, 8, 64)]
    assert waits == sorted(waits, reverse=True)


def test_pareto_drops_what_is_beaten():
    random = np.random.default_rng(0).random((2, 200))
    kept = set(pareto(*random).tolist())
    for i in range(200):
        beaten = np.any((random[0] >= random[0, i]) & (random[1] >= random[1, i]) & (random.sum(0) > random[:, i].sum()))
        assert (i in kept) == (not beaten)
