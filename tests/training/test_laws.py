"""What must hold of every training step: machines that are better, ranks that are more, states that are divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

import steptime as st
from steptime.errors import LayoutError
from steptime.models.model import prefill_flops
from steptime.training.layer_profile import MODULES, layer_profiles, stem_profile
from steptime.training.layer_time import ALTERNATE, ChipParameters, exposed_exchange_seconds, sharding_ranks
from steptime.training.schedules.schedule import known_schedules
from steptime.training.training_job import SHARDINGS, TrainingLayout
from steptime.training.training_memory import training_memory
from steptime.training.training_rules import check_layout
from steptime.training.training_runs import forward_flops
from steptime.training.training_stack import on_chip, training_engine
from steptime.training.training_step import parameters_per_layer, step_seconds
from tests.conftest import each, every, examples
from tests.training.cases import LINKED, SMALL, SPARSE, job, lossy, model, system

MODELS = (SMALL, SPARSE, "deepseek-ai/DeepSeek-V3", "google/gemma-2-9b")
WAYS = some.sampled_from([1, 2, 4, 8])
RECOMPUTES = some.one_of(
    some.sampled_from(["none", "full", "selective", "reversible", ALTERNATE]),
    some.lists(some.sampled_from(MODULES), min_size=1, max_size=4, unique=True).map("+".join),
)
STACKS = some.sampled_from(["typical", "megatron", "ideal", "maxtext"])


@some.composite
def steps(draw):
    """Return a model, a job and a layout that can run."""
    name = draw(some.sampled_from(MODELS))
    schedule = draw(some.sampled_from(sorted(known_schedules())))
    known = known_schedules()[schedule]
    pp = draw(WAYS)
    v = known.virtual or draw(some.sampled_from([2, 3]))
    x = TrainingLayout(
        tp=draw(WAYS), pp=pp, cp=draw(some.sampled_from([1, 2])), dp=draw(some.sampled_from([1, 2, 3, 8, 16])),
        ep=draw(WAYS) if name in MODELS[1:3] else 1, micro_batch=draw(some.sampled_from([1, 2, 4])),
        virtual_stages=v if pp > 1 else 1, schedule=schedule, sharding=draw(some.sampled_from(SHARDINGS)),
        recompute=draw(RECOMPUTES),
    )  # fmt: skip
    asked = job(
        seq=draw(some.sampled_from([2048, 4096, 32768])),
        batch=int(x.dp * x.micro_batch * draw(some.sampled_from([1, 8, 16, 48]))),
        dtype=draw(some.sampled_from(["bf16", "fp8"])), task=draw(some.sampled_from(["pretrain", "lora"])),
        gradient_bytes=draw(some.sampled_from([2.0, 4.0])),
    )  # fmt: skip
    try:
        check_layout(x, model(name), system(), asked, training_engine("ideal", system()))
    except LayoutError:
        assume(False)
    return name, asked, x


def seconds(name, asked, x, on, stack) -> float:
    engine = on_chip(training_engine(stack, on), on, experts=name in MODELS[1:3])
    return float(step_seconds(model(name), asked, on, engine, x).total)


def better(what: str, times: float):
    """Return the H100 system with more of something."""
    on = system()
    if what in ("scale-up", "scale-out"):
        domains = list(on.domains)
        place = 0 if what == "scale-up" else 1
        link = domains[place].link
        domains[place] = replace(domains[place], link=replace(link, bandwidth=link.bandwidth * times))
        return replace(on, domains=tuple(domains))
    if what == "flops":
        return replace(on, chip=replace(on.chip, peak={kind: rate * times for kind, rate in on.chip.peak.items()}))
    hbm = replace(on.chip.hbm, bandwidth=on.chip.hbm.bandwidth * times)
    return replace(on, chip=replace(on.chip, memory=(*on.chip.memory[:-1], hbm)))


@pytest.mark.slow
@given(asked=steps(), what=some.sampled_from(["scale-up", "scale-out", "flops", "memory"]), times=some.floats(1, 8), on=STACKS)
@examples(150)
def test_more_bandwidth_or_arithmetic_is_never_slower(asked, what, times, on):
    before, after = seconds(*asked, system(), on), seconds(*asked, better(what, times), on)
    assert after <= before * (1 + 1e-9)
    assert after >= before / times * (1 - 1e-9)  # one thing alone brings at most as much


@given(
    ranks=some.integers(1, 7), bytes_=some.floats(1e6, 1e12), sharding=some.sampled_from(SHARDINGS),
    gradient=some.sampled_from([2.0, 4.0]), overlap=some.floats(0, 1),
)  # fmt: skip
def test_exchanges_of_a_chip_never_fall_as_copies_of_one_domain_are_added(ranks, bytes_, sharding, gradient, overlap):
    def shown(dp):
        return float(
            exposed_exchange_seconds(ChipParameters(bytes_, 0.0), job(gradient_bytes=gradient), LINKED,
                    lossy(data_overlap=overlap), TrainingLayout(dp=dp, sharding=sharding), forward=0.01,
                    backward=0.02, microbatches=4)
        )  # fmt: skip

    assert shown(ranks + 1) >= shown(ranks)


@given(asked=steps())
@examples(80)
def test_dividing_states_takes_less_memory_and_no_less_traffic(asked):
    """ZeRO-1 to 3 hold fewer bytes of states each, and exchange as much or more; with 16-bit gradients as much as none."""
    name, given_, x = asked
    given_ = replace(given_, gradient_bytes=2.0)
    held = ChipParameters(1e9, 1e9 if x.ep > 1 else 0.0)
    engine = lossy()
    states, traffic = [], []
    for sharding in SHARDINGS:
        divided = replace(x, sharding=sharding)
        found = training_memory(model(name), given_, system(), engine, divided, microbatches=8)
        states.append(float(found.weights + found.gradients + found.optimizer))
        traffic.append(
            float(exposed_exchange_seconds(held, given_, LINKED, engine, divided, forward=1.0, backward=2.0, microbatches=8))
        )
    assert states == sorted(states, reverse=True)
    assert traffic[1] <= min(traffic[2:]) * (1 + 1e-9)
    if float(sharding_ranks(x)) > 1 and given_.task != "lora":
        assert states[0] > states[1] >= states[2] > states[3]
        assert traffic[3] > traffic[1] * (1 - 1e-9)
        assert traffic[2] >= traffic[1] * (1 - 1e-9)


@pytest.mark.thorough
@given(asked=steps())
@examples(150)
def test_recomputation_never_takes_more_memory_once_two_layers_are_live(asked):
    name, given_, x = asked
    assume(model(name).depth / x.pp >= 2 and x.recompute != "none")
    m = given_.batch / (x.dp * x.micro_batch)
    again, none = (
        training_memory(model(name), given_, system(), lossy(), replace(x, recompute=r), microbatches=m)
        for r in (x.recompute, "none")
    )
    assert float(again.used) <= float(none.used) * (1 + 1e-12)


@given(asked=steps(), on=STACKS)
@examples(100)
def test_recomputation_is_never_faster(asked, on):
    name, given_, x = asked
    assert seconds(*asked, system(), on) >= seconds(name, given_, replace(x, recompute="none"), system(), on) * (1 - 1e-9)


@each("name", [*MODELS, "openai/gpt-oss-120b", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
@each("seq", [1, 128, 4096, 131072])
def test_a_forward_pass_of_training_is_a_prefill_but_for_the_head(name, seq):
    """Serving runs the head on the last token, training on every one."""
    head = stem_profile(model(name)).head_flops
    training = float(forward_flops(model(name), seq, full=False)) * seq
    assert training - (seq - 1) * head == pytest.approx(float(prefill_flops(model(name), seq)), rel=1e-12)


@pytest.mark.parametrize("stack", ["typical", "megatron"])
@given(asked=steps())
@examples(40)
def test_the_ideal_bounds_every_stack_from_below(stack, asked):
    """A step of a dense model lies between what physics allows and what it would take if nothing were hidden."""
    name, given_, x = asked
    assume(name not in MODELS[1:3])
    asked_ = {"seq": given_.seq, "batch": given_.batch, "dtype": given_.dtype, "task": given_.task}
    engine = replace(training_engine(stack, system()), schedules=(), shardings=(), recomputes=())
    found = st.training_step(model(name), system(), layout=x, engine=engine, **asked_)
    assert 0 < float(found.lower) <= float(found.total) <= float(found.upper) * (1 + 1e-9)
    assert float(found.low) < float(found.total) < float(found.high)
    assert 0 < float(found.mfu_causal) <= float(found.mfu_full) <= float(found.hfu)
    assert float(found.mfu_causal) < 1


@pytest.mark.parametrize(
    ("name", "on", "stack"), every(2, [("llama-4-scout", "hgx-a100", "megatron"), ("llama-4-scout", "tpu-v5p", "typical")])
)
def test_no_step_with_experts_is_faster_than_its_bound(name, on, stack):
    found = st.train(name, on, chips=256, seq=1024 if on == "hgx-a100" else 4096, batch=2048, engine=stack, changes=False).step
    assert found.fits
    assert float(found.total) >= float(found.lower)


@given(tp=WAYS, ep=some.sampled_from([1, 2, 4, 8, 32]), name=some.sampled_from(MODELS))
def test_shards_are_at_least_the_whole(tp, ep, name):
    """What is not held once for all ranks is held whole; nothing is lost."""
    for sheet, _ in layer_profiles(model(name)):
        held = parameters_per_layer(sheet, TrainingLayout(tp=tp, ep=ep))
        dense = sum(p.weights for p in sheet.products if not p.routed)
        experts = sum(p.weights for p in sheet.products if p.routed)
        assert held.experts * ep == pytest.approx(experts)
        assert dense + sheet.small <= held.dense * tp * (1 + 1e-12)
        if not any(p.replicated or p.limit < tp for p in sheet.products if not p.routed):
            assert (held.dense - sheet.small) * tp == pytest.approx(dense)


@given(asked=steps(), more=some.sampled_from([2, 3]), on=STACKS)
@examples(60)
def test_a_step_of_more_work_takes_longer(asked, more, on):
    name, given_, x = asked
    once = seconds(name, given_, x, system(), on)
    assert seconds(name, replace(given_, batch=given_.batch * more), x, system(), on) > once
    assert seconds(name, replace(given_, seq=given_.seq * more), x, system(), on) > once
    assert seconds(name, replace(given_, batch=given_.batch * more), x, system(), on) <= more * once * (1 + 1e-9)


@pytest.mark.thorough
@given(drawn=some.lists(steps(), min_size=2, max_size=5), on=STACKS)
@examples(40)
def test_arrays_are_answered_as_one_by_one(drawn, on):
    """Numbers of layouts as arrays, words as in the first."""
    name, _, first = drawn[0]
    xs = [
        replace(x, schedule=first.schedule, sharding=first.sharding, recompute=first.recompute)
        for of, _, x in drawn
        if of == name
    ]
    fields = {f: np.array([getattr(x, f) for x in xs]) for f in ("tp", "pp", "cp", "ep", "dp", "micro_batch", "virtual_stages")}
    batches = np.array([x.dp * x.micro_batch * 16 for x in xs])
    found = st.training_step(model(name), system(), seq=4096, batch=batches, layout=replace(first, **fields), engine=on)
    for place, (x, batch) in enumerate(zip(xs, batches, strict=True)):
        try:
            one = st.training_step(model(name), system(), seq=4096, batch=int(batch), layout=x, engine=on)
        except LayoutError:
            continue
        for value, array in ((one.total, found.total), (one.hfu, found.hfu), (one.lower, found.lower), (one.upper, found.upper),
                             (one.memory.used, found.memory.used)):  # fmt: skip
            assert float(np.broadcast_to(array, len(xs))[place]) == pytest.approx(float(value), rel=1e-9)
        terms = {term: float(np.broadcast_to(value, len(xs))[place]) for term, value in found.terms.items()}
        for term, value in terms.items():
            assert value == pytest.approx(float(one.terms.get(term, 0.0)), rel=1e-9, abs=1e-15), term
