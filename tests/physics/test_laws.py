"""Laws that every step, memory figure and plan obeys, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

import steptime as st
from steptime.blackboard.expert_activation import distinct_hit, experts_touched
from steptime.hardware.what_if import scale
from steptime.models.model import decode_flops_per_token, matmul_flops_per_token, prefill_flops, weight_bytes
from steptime.physics.chip_memory import memory_per_chip, weights_per_chip
from steptime.physics.engine import IDEAL, Engine, with_constants
from steptime.physics.layout import Layout, stacked
from steptime.physics.layout_space import legal
from steptime.physics.network_time import all_reduce, members_by_level
from steptime.physics.operator_time import overlap
from steptime.physics.step import decode_step, mixed_step, prefill_step
from steptime.planning import steady_state as serving
from tests.conftest import CHOICE_ALONE, each, examples, machine, one_matrix, sparse_matrix

MODELS = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "gemma-3-27b", "qwen3-30b-a3b", "gpt2")
KNOBS = ("chip.hbm.bandwidth", "chip.peak", "scale_up.bandwidth", "scale_out.bandwidth")
ROUGH = with_constants(Engine(name="rough"), {
    "memory_efficiency": 0.8, "compute_efficiency": 0.7, "expert_time": 1.2, "attention_time": 1.2,
    "network_efficiency": 0.6, "seconds_per_layer": 5e-6, "seconds_per_collective": 8e-6,
    "seconds_per_step": 1e-3, "seconds_per_sequence": 1e-6, "roofline_norm": 4.0, "activation_traffic": 1.0,
    "expert_skew": 1.28,
})  # fmt: skip


@cache
def layouts(name: str, system: str) -> list[Layout]:
    """Every legal layout of a model on two nodes of eight, or a rack."""
    chips = {"hgx-h200": 16, "gb200-nvl72": 72}[system]
    return [replace(m, replicas=1) for m in legal(st.load_model(name), st.load_system(system), chips)]


anything = {
    "name": some.sampled_from(MODELS),
    "system": some.sampled_from(("hgx-h200", "gb200-nvl72")),
    "batch": some.integers(1, 20_000),
    "context": some.integers(1, 500_000),
    "chunk": some.integers(0, 16_384),
    "seed": some.integers(0, 10**9),
}


def _step(model, system, layout, batch, context, chunk, engine=IDEAL):
    return mixed_step(
        model, system, batch=batch, context=context, prompts=layout.dp if chunk else 0, tokens=chunk, prefix=context // 2,
        layout=layout, engine=engine,
    )  # fmt: skip


@given(**anything, knob=some.sampled_from(KNOBS), factor=some.floats(1.0, 100.0), engine=some.sampled_from((IDEAL, ROUGH)))
@examples(60)
def test_better_machines_are_never_slower(name, system, batch, context, chunk, seed, knob, factor, engine):
    options = layouts(name, system)
    layout = options[seed % len(options)]
    model, machine_ = st.load_model(name), st.load_system(system)
    slow = _step(model, machine_, layout, batch, context, chunk, engine)
    fast = _step(model, scale(machine_, knob, factor), layout, batch, context, chunk, engine)
    assert fast.total <= slow.total * (1 + 1e-12)
    assert fast.lower <= slow.lower * (1 + 1e-12)
    assert fast.upper <= slow.upper * (1 + 1e-12)


@given(**anything, engine=some.sampled_from((IDEAL, ROUGH)))
@examples(80)
def test_bounds_and_sums(name, system, batch, context, chunk, seed, engine):
    """lower <= total <= upper, and the total is the sum of the terms and of the resources."""
    options = layouts(name, system)
    step = _step(st.load_model(name), st.load_system(system), options[seed % len(options)], batch, context, chunk, engine)
    assert 0 < step.lower <= step.total * (1 + 1e-12)
    assert step.total <= step.upper * (1 + 1e-12)
    assert sum(step.terms.values()) == pytest.approx(float(step.total), rel=1e-9)
    assert sum(step.resources.values()) == pytest.approx(float(step.total), rel=1e-9)
    assert all(np.all(value >= 0) for value in (*step.terms.values(), *step.resources.values()))


@given(**anything, points=some.integers(2, 40))
@examples(20)
def test_array_input_equals_the_loop_over_its_elements(name, system, batch, context, chunk, seed, points):
    model, machine_ = st.load_model(name), st.load_system(system)
    random = np.random.default_rng(seed)
    options = [layouts(name, system)[i] for i in random.integers(0, len(layouts(name, system)), points)]
    batches, contexts = random.integers(1, batch + 1, points), random.integers(1, context + 1, points)
    table = stacked(options)
    together = mixed_step(
        model,
        machine_,
        batch=batches,
        context=contexts,
        prompts=table.dp,
        tokens=chunk,
        prefix=contexts // 2,
        layout=table,
        engine="ideal",
    )
    memory = memory_per_chip(model, machine_, batch=batches, context=contexts, layout=table, engine="ideal")
    for i, option in enumerate(options):
        alone = mixed_step(
            model, machine_, batch=batches[i], context=contexts[i], prompts=option.dp, tokens=chunk, prefix=contexts[i] // 2,
            layout=option,
        engine="ideal",
    )  # fmt: skip
        assert together.total[i] == pytest.approx(float(alone.total), rel=1e-12)
        assert together.bound[i] == alone.bound
        used = memory_per_chip(model, machine_, batch=batches[i], context=contexts[i], layout=option, engine="ideal").used
        assert np.broadcast_to(memory.used, points)[i] == pytest.approx(float(used), rel=1e-12)


def test_large_arrays_are_cut_in_blocks_without_a_trace(deepseek, rack):
    batch, context = np.arange(1, 700)[:, None], np.arange(1, 400)[None, :] * 100
    whole = decode_step(deepseek, rack, batch=batch, context=context, layout=Layout(dp=72, ep=72), engine="ideal")
    for i, j in ((0, 0), (698, 398), (300, 7)):
        one = decode_step(deepseek, rack, batch=batch[i, 0], context=context[0, j], layout=Layout(dp=72, ep=72), engine="ideal")
        assert whole.total[i, j] == pytest.approx(float(one.total), rel=1e-12)
        assert sum(t[i, j] for t in whole.terms.values()) == pytest.approx(float(one.total), rel=1e-9)


def test_any_figure_of_the_machine_may_be_an_array(deepseek, rack):
    factors = np.array([1.0, 2.0, 4.0])
    swept = decode_step(
        deepseek, scale(rack, "chip.hbm.bandwidth", factors), batch=512, context=8192, layout=Layout(dp=8, ep=8), engine="ideal"
    )
    for i, factor in enumerate(factors):
        one = decode_step(
            deepseek,
            scale(rack, "chip.hbm.bandwidth", float(factor)),
            batch=512,
            context=8192,
            layout=Layout(dp=8, ep=8),
            engine="ideal",
        )
        assert swept.total[i] == pytest.approx(float(one.total))


@each("name", MODELS)
@given(tokens=some.integers(1, 5000))
@examples(15)
def test_prefill_costs_the_matmul_flops_of_its_decode_steps(name, tokens):
    """Operators with weights: n tokens at once or one by one; only the logits of all but the last are saved."""
    model = st.load_model(name)
    head = matmul_flops_per_token(model) - matmul_flops_per_token(model, logits=False)
    attention = prefill_flops(model, tokens) - matmul_flops_per_token(model, logits=False) * tokens - head
    assert prefill_flops(model, tokens) - attention == pytest.approx(
        matmul_flops_per_token(model) * tokens - head * (tokens - 1)
    )


@each("name", ["llama-3.1-8b", "mistral-7b-v0.1", "gpt-oss-20b", "gemma-3-27b"])
@given(tokens=some.integers(1, 9000), prefix=some.integers(0, 9000))
@examples(10)
def test_prefill_equals_the_sum_of_its_decode_steps_in_attention(name, tokens, prefix):
    """Where decode and prefill attend in the same form, n tokens cost what they cost one by one, windows or not."""
    model = st.load_model(name)
    steps = np.sum(decode_flops_per_token(model, prefix + np.arange(1, tokens + 1))) - matmul_flops_per_token(model) * tokens
    head = matmul_flops_per_token(model) - matmul_flops_per_token(model, logits=False)
    whole = prefill_flops(model, tokens, prefix) - matmul_flops_per_token(model, logits=False) * tokens - head
    assert whole == pytest.approx(float(steps), rel=1e-9)


@given(chips=some.sampled_from((1, 2, 4, 8)), batch=some.integers(1, 500), context=some.integers(1, 5000))
def test_the_sum_over_shards_is_the_whole(chips, batch, context):
    """Weights, cache and FLOPs of all chips together are those of one, where nothing has to be repeated."""
    model, system = one_matrix(), machine()
    one = memory_per_chip(model, system, batch=batch, context=context, engine="ideal")
    many = memory_per_chip(model, system, batch=batch, context=context, layout=Layout(tp=chips), engine="ideal")
    assert chips * many.weights == pytest.approx(float(one.weights)) == pytest.approx(weight_bytes(model))
    assert chips * many.cache == pytest.approx(float(one.cache))
    alone = decode_step(model, system, batch=batch, context=context, engine="ideal")
    shared = decode_step(model, system, batch=batch, context=context, layout=Layout(tp=chips), engine="ideal")
    assert chips * shared.lower == pytest.approx(float(alone.lower))


@given(ways=some.sampled_from((1, 2, 4, 8, 16, 32, 64)))
def test_experts_divide_over_chips(ways):
    model = sparse_matrix()
    assert ways * weights_per_chip(model, Layout(dp=ways, ep=ways)) == pytest.approx(weight_bytes(model))
    assert ways * weights_per_chip(model, Layout(tp=ways, ep=1)) == pytest.approx(weight_bytes(model))


@pytest.mark.parametrize(("name", "copies"), [("llama-3.1-70b", 2), ("deepseek-v3", 16)])
def test_kv_is_replicated_past_its_heads(name, copies):
    """GQA with 8 KV heads is held twice on tp 16; a latent once on every chip. Context and data parallelism divide both."""
    model, system = st.load_model(name), machine(size=64)
    one = memory_per_chip(model, system, batch=64, context=1000, engine="ideal").cache
    wide = memory_per_chip(model, system, batch=64, context=1000, layout=Layout(tp=16), engine="ideal").cache
    assert 16 * wide == pytest.approx(copies * float(one))
    shared = memory_per_chip(model, system, batch=64, context=1000, layout=Layout(tp=8, cp=2), engine="ideal").cache
    assert 16 * shared == pytest.approx((1 if name.startswith("llama") else 8) * float(one))


def test_doubling_rent_doubles_usd(rack, closed_forms):
    workload, slo = st.Workload(input_tokens=2000, output_tokens=500), st.Slo(tpot=0.03, ttft=3)
    small = st.load_model("llama-3.1-8b")
    once = st.plan(small, rack, workload, slo, chips=4, engine="ideal", alternatives=False)
    dear = scale(rack, "rent", 2.0)
    twice = st.plan(small, dear, workload, slo, chips=4, engine="ideal", **CHOICE_ALONE)
    for figure in (
        "usd_per_million_output_tokens",
        "prefill_usd_per_million_tokens",
        "decode_usd_per_million_tokens",
        "usd_per_request",
    ):
        assert getattr(twice, figure) == pytest.approx(2 * getattr(once, figure), rel=1e-12)
    assert once.elasticities["rent"] == pytest.approx(1, abs=1e-9)


# --- pieces --------------------------------------------------------------------------------------------------------------


@given(a=some.floats(0, 1e3), b=some.floats(0, 1e3), norm=some.floats(1, 50))
def test_overlap_lies_between_maximum_and_sum(a, b, norm):
    assert max(a, b) * (1 - 1e-9) <= overlap(a, b, norm) <= (a + b) * (1 + 1e-9) + 1e-12
    assert overlap(a, b) == max(a, b)


@given(n=some.integers(2, 512), k=some.integers(1, 16), tokens=some.integers(1, 100_000))
def test_touched_experts(n, k, tokens):
    assume(k <= n)
    touched = experts_touched(n, k, tokens)
    assert touched <= n * (1 + 1e-9)
    assert touched <= k * tokens * (1 + 1e-9)
    assert experts_touched(n, k, 1) == pytest.approx(k, rel=1e-6)
    assert touched <= experts_touched(n, k, tokens + 1)


@given(groups=some.sampled_from((1, 2, 4, 8, 16, 32, 64)), k=some.integers(1, 16))
def test_distinct_groups(groups, k):
    hit = distinct_hit(64, k, groups)
    assert 1 - 1e-9 <= hit <= min(groups, k) + 1e-9
    assert distinct_hit(64, k, 64) == pytest.approx(k)


@given(size=some.integers(1, 4096), stride=some.integers(1, 16), domain=some.integers(1, 128))
def test_members_of_a_group_multiply_to_its_size(size, stride, domain):
    members = members_by_level(machine(size=domain).domains, size, stride)
    assert np.prod(members) == pytest.approx(size)
    assert all(m >= 1 - 1e-9 for m in members)


@given(size=some.integers(2, 512), bytes_=some.floats(1, 1e9), up=some.floats(1e10, 1e12), slower=some.floats(1, 20))
def test_groups_inside_the_domain_pay_scale_up_prices(size, bytes_, up, slower):
    wide = machine(size=1024, up=up, out=up / slower)
    inside = all_reduce(wide, size, bytes_)
    assert inside.busy[1] == 0
    assert inside.busy[0] == pytest.approx(2 * (size - 1) / size * bytes_ / up)
    split = all_reduce(machine(size=8, up=up, out=up / slower), 8 * size, bytes_)
    assert split.busy[1] == pytest.approx(2 * (size - 1) / size * bytes_ / 8 / (up / slower))


def test_two_batch_overlap_hides_collectives_and_reads_weights_twice():
    """With collectives as long as the arithmetic, two micro-batches take as long as the longer alone, not the sum."""
    model = one_matrix(weights=1e9, layers=8, kv_bytes=0.0)
    system = machine(flops=1e15, bandwidth=1e20, up=1e11)
    one = decode_step(model, system, batch=4096, context=1, layout=Layout(tp=8), engine="ideal")
    two = decode_step(model, system, batch=4096, context=1, layout=Layout(tp=8, microbatches=2), engine="ideal")
    reduce_ = float(one.terms["all-reduce"])
    assert two.total == pytest.approx(max(reduce_, float(one.total) - reduce_), rel=1e-9)
    slow = machine(flops=1e30, bandwidth=1e12)
    once, twice = (
        decode_step(model, slow, batch=64, context=1, layout=Layout(tp=8, microbatches=m), engine="ideal") for m in (1, 2)
    )
    assert twice.total == pytest.approx(2 * float(once.total))


def test_latent_attention_decodes_absorbed_and_prefills_expanded(deepseek):
    """DeepSeek-V3: 2 x 128 x (2 x 512 + 64) FLOPs a pair in decode, 2 x 128 x (128 + 64 + 128) in prefill."""
    attention = deepseek.layers[0][0].attention[0]
    assert attention.flops_per_pair_decode == 2 * 128 * (2 * 512 + 64)
    assert attention.flops_per_pair_prefill == 2 * 128 * (128 + 64 + 128)


def test_a_prefill_in_chunks_costs_at_least_the_whole():
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    whole = prefill_step(model, system, tokens=8192, engine="ideal")
    chunks = sum(
        float(prefill_step(model, system, tokens=2048, prefix=done, engine="ideal").total) for done in range(0, 8192, 2048)
    )
    assert chunks >= whole.total


@given(batch=some.integers(1, 500), chunk=some.sampled_from((256, 1024, 4096)))
@examples(20)
def test_other_requests_prefill_delays_the_decoders(batch, chunk):
    """A steady state takes longer per token than decode alone, and no longer than if every step had a chunk."""
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    workload = st.Workload(input_tokens=1000, output_tokens=500)
    state = serving.aggregated(model, system, workload, layout=Layout(), batch=batch, chunk=chunk, engine=IDEAL)
    assert state.decode.total < state.tpot <= state.mixed.total
    assert 0 < state.input_share < 1
    assert np.isinf(state.ttft) == (state.utilisation >= 1)


@given(a=some.floats(0, 1e3), b=some.floats(0, 1e3), norm=some.floats(1, 50))
def test_short_ways_of_a_norm_are_the_general_one(a, b, norm):
    """The norms of the ideal and of fitted engines, and any norm as an array."""
    for one in (np.inf, 4.0, norm):
        assert overlap(a, b, np.array([one]))[0] == pytest.approx(float(overlap(a, b, one)), rel=1e-12)
