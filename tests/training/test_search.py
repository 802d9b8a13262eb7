"""The search against a loop over all layouts, one training step each."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import LayoutError
from steptime.number_checks import divisors
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_job import DEGREES, TrainingLayout
from steptime.training.training_planner import training_job
from steptime.training.training_search import (
    MEMORY_MARGIN,
    add_virtual_stages,
    even_chunks,
    existing_modules,
    legal_degrees,
    search,
)
from steptime.training.training_stack import on_chip, training_engine
from steptime.training.training_step import step_seconds
from tests.conftest import each, every
from tests.training.cases import SMALL, SPARSE, job, model, system

FEW = {"recomputes": ("none", "full"), "shardings": ("zero1", "zero3"), "schedules": ("1f1b", "interleaved", "zb-h1")}


def stack(**more):
    return replace(training_engine("typical", system()), **FEW | more)


def found_by(name: str, chips: int, *, seq: int, batch: int, engine=None, fixed=None, dtype="bf16"):
    engine = stack() if engine is None else engine
    of = model(name)
    tuned = on_chip(engine, system(), experts=any(layer.routed for layer, _ in of.layers))
    asked = training_job(system(), engine, seq=seq, batch=batch, dtype=dtype)
    return search(of, system(), asked, tuned, chips=chips, fixed=fixed)


def every_layout(name: str, chips: int, *, seq: int, ways: tuple[int, ...] = (1, 2, 4, 8)):
    """All layouts of tp in a node, cp of chunks of 1,024 tokens, chunks of equal layers; those that cannot run are refused."""
    of = model(name)
    experts = max((op.experts for layer, _ in of.layers for op in layer.ops if op.rows == "routed"), default=1)
    for tp, pp, cp in itertools.product(ways, divisors(chips), (1, 2, 4, 8)):
        if chips % (tp * pp * cp) or seq // cp < 1024 or tp > chips:
            continue
        dp = chips // (tp * pp * cp)
        eps = [ep for ep in divisors(experts) if (tp * cp * dp) % ep == 0]
        for ep, micro, schedule in itertools.product(eps, (1, 2, 4, 8, 16), FEW["schedules"]):
            chunks = range(2, of.depth + 3) if schedule == "interleaved" else [1]
            for v in chunks:
                if v > 1 and of.depth % (pp * v) and (of.depth + 2) % (pp * v):
                    continue
                if pp == 1 and schedule != "1f1b":
                    continue
                for recompute, sharding in itertools.product(FEW["recomputes"], FEW["shardings"]):
                    yield TrainingLayout(tp=tp, pp=pp, cp=cp, ep=ep, dp=dp, micro_batch=micro, virtual_stages=v,
                                         schedule=schedule, recompute=recompute, sharding=sharding)  # fmt: skip


def by_a_loop(name: str, chips: int, *, seq: int, batch: int, ways: tuple[int, ...]):
    found = {}
    for x in every_layout(name, chips, seq=seq, ways=ways):
        try:
            one = st.training_step(name, system(), seq=seq, batch=batch, layout=x, engine=stack())
        except LayoutError:
            continue
        found[x] = float(one.total), bool(one.memory.used <= MEMORY_MARGIN * one.memory.capacity)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seq", "batch", "fixed"), [(SMALL, 4096, 8, {}), (SPARSE, 2048, 8, {"tp": 2})])
def test_the_fastest_that_fits_is_that_of_a_loop_over_all_layouts(name, seq, batch, fixed):
    looped = by_a_loop(name, 8, seq=seq, batch=batch, ways=(fixed["tp"],) if fixed else (1, 2, 4, 8))
    found = found_by(name, 8, seq=seq, batch=batch, fixed=fixed)
    assert found.count == len(looped)
    best, seconds = found.fastest()
    assert seconds == pytest.approx(min(t for t, fits in looped.values() if fits), rel=1e-9)
    assert looped[best] == (pytest.approx(seconds, rel=1e-9), True)
    assert found.fastest(fitting=False)[1] == pytest.approx(min(t for t, _ in looped.values()), rel=1e-9)
    assert sum(int(group.fits.sum()) for group in found.groups) == sum(fits for _, fits in looped.values())


def test_every_candidate_is_its_training_step():
    """Of a model with experts: seconds and bytes."""
    found = found_by(SPARSE, 64, seq=4096, batch=256)
    rng = np.random.default_rng(0)
    for group in found.groups:
        place = int(rng.integers(len(group)))
        one = st.training_step(SPARSE, system(), seq=4096, batch=256, layout=group.layout_at(place), engine=stack())
        assert float(one.total) == pytest.approx(group.seconds[place], rel=1e-9)
        assert float(one.memory.used) == pytest.approx(group.used[place], rel=1e-9)
        assert bool(one.memory.used <= MEMORY_MARGIN * one.memory.capacity) == bool(group.fits[place])


def test_a_single_micro_batch_hides_no_exchange():
    """A search times it as its step: no other micro-batch computes meanwhile."""
    of, fused = model(SPARSE), training_job(system(), stack(), seq=4096, batch=64)
    fused = replace(fused, overlapped_exchange=True)
    fixed = {"tp": 1, "pp": 1, "cp": 1, "ep": 8, "recompute": "none", "sharding": "zero1"}
    found = search(of, system(), fused, on_chip(stack(), system(), experts=True), chips=64, fixed=fixed)
    (group,) = [group for group in found.groups if group.layout.schedule == "1f1b"]
    assert group.layout_at(0).dp * group.layout_at(0).micro_batch == 64
    for place in range(len(group)):
        tuned = on_chip(stack(), system(), experts=True)
        seconds = step_seconds(of, fused, system(), tuned, group.layout_at(place)).total
        assert group.seconds[place] == pytest.approx(float(seconds), rel=1e-9)


def test_without_a_pipeline_dualpipe_hides_no_exchange():
    seconds = [
        float(st.training_step(SPARSE, system(), seq=4096, batch=256, layout=TrainingLayout(dp=64, ep=8, schedule=name)).total)
        for name in ("1f1b", "dualpipe")
    ]
    assert seconds[0] == seconds[1]


@each("seq, largest", [(512, 64), (2048, 32), (4096, 16), (8192, 16)])
def test_micro_batches_of_short_sequences_have_as_many_tokens(seq, largest):
    found = found_by(SMALL, 8, seq=seq, batch=1024, fixed={"tp": 1, "pp": 1})
    sizes = np.concatenate([np.atleast_1d(group.layout.micro_batch) for group in found.groups])
    assert sizes.max() == largest


def test_all_candidates_are_legal():
    found = found_by("llama-3.1-70b", 64, seq=8192, batch=128)
    assert found.count > 1000
    for group in found.groups:
        numbers = {name: np.broadcast_to(getattr(group.layout, name), group.seconds.shape) for name in DEGREES}
        assert np.all(numbers["tp"] * numbers["pp"] * numbers["cp"] * numbers["dp"] == 64)
        assert np.all(128 % (numbers["dp"] * numbers["micro_batch"]) == 0)
        assert np.all(numbers["pp"] * numbers["virtual_stages"] <= 82)
        piped = numbers["pp"] > 1
        m = 128 / (numbers["dp"] * numbers["micro_batch"])
        schedule = schedule_named(group.layout.schedule)
        assert np.all(schedule.legal(numbers["pp"], m, numbers["virtual_stages"])[piped])


@pytest.mark.parametrize(
    "fixed",
    every(2, [
        {"tp": 4}, {"pp": 4, "dp": 2}, {"cp": 2}, {"micro_batch": 2}, {"virtual_stages": 4, "schedule": "interleaved"},
        {"recompute": "mlp"}, {"sharding": "zero2"}, {"schedule": "gpipe"}, {"tp": 8, "pp": 1, "cp": 1, "dp": 8},
    ]),
)  # fmt: skip
def test_what_is_given_is_kept_and_never_faster_than_what_is_found(fixed):
    free, held = (found_by(SMALL, 64, seq=8192, batch=64, fixed=given) for given in ({}, fixed))
    x, seconds = held.fastest()
    assert {name: getattr(x, name) for name in fixed} == fixed
    within = all(fixed[key] in FEW[f"{key}s"] for key in ("recompute", "sharding", "schedule") if key in fixed)
    if within:
        assert seconds >= free.fastest()[1] * (1 - 1e-9)


def test_a_stack_has_the_schedules_shardings_and_recomputations_that_its_file_names():
    for name in ("torchtitan", "llm-foundry", "megatron"):
        engine = training_engine(name, system())
        found = found_by(SMALL, 8, seq=4096, batch=64, engine=engine)
        seen = {kind: {getattr(group.layout, kind) for group in found.groups} for kind in ("schedule", "sharding", "recompute")}
        assert not engine.schedules or seen["schedule"] <= set(engine.schedules)
        assert seen["sharding"] == set(engine.shardings)
        assert not engine.recomputes or seen["recompute"] == set(engine.recomputes)


def test_chunks_are_even_with_or_without_embedding_and_head():
    """126 layers on 16 stages: two, four and eight chunks with both counted."""
    assert even_chunks(126, 16) == (2, 4, 8)
    assert even_chunks(126, 9) == (2, 7, 14)
    assert even_chunks(32, 4) == (2, 4, 8)
    frame = legal_degrees(model(SMALL), system(), job(seq=4096, batch=64), 8, {})
    rows = add_virtual_stages(frame, 32, {}, 0)
    assert set(zip(rows[:, 1], rows[:, 7], strict=True)) == {(2, v) for v in (2, 4, 8, 16, 17)} | {
        (4, 2),
        (4, 4),
        (4, 8),
        (8, 2),
        (8, 4),
    }


def test_the_smallest_layout_takes_least_memory():
    found = found_by("llama-3.1-405b", 64, seq=8192, batch=64)
    x, used = found.smallest()
    assert used == min(float(group.used.min()) for group in found.groups)
    one = st.training_step("llama-3.1-405b", system(), seq=8192, batch=64, layout=x, engine=stack())
    assert float(one.memory.used) == pytest.approx(used)


def test_every_layout_of_405b_on_1024_chips():
    """Some 26,000, of all schedules, recomputations and shardings that are searched; how fast: benchmarks/training.py."""
    found = found_by("llama-3.1-405b", 1024, seq=8192, batch=1024, engine=training_engine("typical", system()))
    assert found.count > 20_000
    words = {(g.layout.schedule, g.layout.sharding, g.layout.recompute) for g in found.groups}
    assert len(words) >= 2 * 2 * 5


def test_some_sequences_fit_only_with_reversible_layers():
    """Llama 3.1 8B on eight H100, half a million tokens a sequence: inputs of layers alone are too much."""

    def fits(recompute):
        return found_by("llama-3.1-8b", 8, seq=524288, batch=8, fixed={"recompute": recompute}).fastest() is not None

    assert [fits(word) for word in ("none", "selective", "full", "reversible")] == [False, False, False, True]


def test_a_search_names_only_modules_that_the_model_has():
    without_latents = found_by(SPARSE, 8, seq=4096, batch=16, engine=stack(recomputes=()))
    words = {group.layout.recompute for group in without_latents.groups}
    assert not any("mla_up_proj" in word for word in words)
    assert "norms+moe_act" in words
    latents = st.load_model("deepseek-v3")
    assert existing_modules(latents, "norms+mla_up_proj+moe_act+shared_experts") == "norms+mla_up_proj+moe_act+shared_experts"
    maverick = st.load_model("llama-4-maverick")
    assert existing_modules(maverick, "mla_up_proj+moe_act") == "moe_act"
    # A module that the model does not have changes no number.
    layout = st.TrainingLayout(dp=8, ep=8, recompute="mla_up_proj+moe_act")
    one, other = (
        st.training_step(SPARSE, "hgx-h100", seq=4096, batch=16, layout=replace(layout, recompute=words))
        for words in ("mla_up_proj+moe_act", "moe_act")
    )
    assert float(one.total) == float(other.total)
    assert float(one.memory.used) == float(other.memory.used)
