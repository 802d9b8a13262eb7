"""How layers are dealt to stages: evenly, with the embedding and the head as slots, or as they come."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.errors import LayoutError
from steptime.training.layer_profile import (
    STEM_LAYERS,
    deal_layers,
    has_dense_prologue,
    layer_profiles,
    max_chunks,
    pipeline_stages,
    stage_layers_by_kind,
    stem_profile,
)
from steptime.training.layer_time import layer_passes, stem_passes
from steptime.training.schedule_timeline import simulate_step
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_job import TrainingLayout, read_layers, show_layers
from steptime.training.training_stack import IDEAL
from steptime.training.training_step import fullest_stage_parameters, step_seconds
from tests.conftest import each
from tests.training.cases import SMALL, SPARSE, job, model, system


def dealt(depth: int, pp: int, v: int = 1) -> tuple[float, float, float]:
    found = deal_layers(depth, TrainingLayout(pp=pp, virtual_stages=v))
    return float(found.first), float(found.middle), float(found.last)


@each(
    "depth, pp, v, layers",
    [
        (126, 16, 1, (7, 8, 7)),  # Llama 3 405B: 126 + 2 = 8 x 16 (arXiv 2407.21783, section 3.3.2)
        (126, 8, 8, (15, 16, 15)),  # the same in 64 chunks of two
        (126, 16, 8, (7, 8, 7)),
        (70, 12, 1, (5, 6, 5)),  # BLOOM: 70 layers, embedding and head on 12 stages of 6 (tr11-176B-ml)
        (80, 8, 5, (10, 10, 10)),
        (105, 35, 3, (3, 3, 3)),
        (32, 1, 1, (32, 32, 32)),
        (61, 16, 1, (4, 4, 1)),  # DeepSeek-V3: 15 stages of four, one layer beside the head (recipes of Megatron-Bridge)
        (61, 8, 1, (8, 8, 5)),
        (61, 4, 4, (16, 16, 13)),
        (32, 5, 1, (7, 7, 4)),
        (33, 16, 1, (3, 3, 2)),  # 15 stages of three would be more than 33 layers
    ],
)
def test_layers_of_the_first_the_middle_and_the_last_stage(depth, pp, v, layers):
    assert dealt(depth, pp, v) == layers


@given(depth=some.integers(1, 200), pp=some.integers(1, 64), v=some.integers(1, 8))
def test_no_stage_has_more_than_the_fullest_and_all_layers_are_there(depth, pp, v):
    if pp * v > depth + STEM_LAYERS:
        return
    first, middle, last = dealt(depth, pp, v)
    if pp == 1:
        assert (first, middle, last) == (depth, depth, depth)
        return
    assert 0 <= last <= middle
    assert middle - 1 <= first <= middle
    room = first + (pp - 2) * middle + last
    assert room >= depth  # enough room for all
    if depth % (pp * v) == 0 or (depth + STEM_LAYERS) % (pp * v) == 0:
        assert room == depth
    assert middle == -(-depth // pp) or (depth + STEM_LAYERS) % (pp * v) == 0


def test_arrays_of_stages_are_dealt_as_one_by_one():
    pps, vs = np.array([1, 4, 8, 16, 5]), np.array([1, 1, 8, 1, 1])
    found = deal_layers(126, TrainingLayout(pp=pps, virtual_stages=vs))
    for place, (pp, v) in enumerate(zip(pps, vs, strict=True)):
        assert (found.first[place], found.middle[place], found.last[place]) == dealt(126, int(pp), int(v))


def test_dense_layers_before_experts_are_on_the_first_stage():
    """DeepSeek-V3: three dense layers, then 58 of experts."""
    deepseek = model("deepseek-ai/DeepSeek-V3")
    assert [float(n) for n in stage_layers_by_kind(deepseek, 4.0, first=True)] == [3, 1]
    assert [float(n) for n in stage_layers_by_kind(deepseek, 4.0, first=False)] == [0, 4]
    assert [float(n) for n in stage_layers_by_kind(deepseek, 61.0, first=True)] == [3, 58]
    assert [float(n) for n in stage_layers_by_kind(deepseek, 2.0, first=True)] == [2, 0]


def test_kinds_of_layers_that_alternate_are_mixed():
    assert [float(n) for n in stage_layers_by_kind(model("openai/gpt-oss-120b"), 9.0, first=True)] == [4.5, 4.5]
    assert [float(n) for n in stage_layers_by_kind(model(SPARSE), 6.0, first=False)] == [6]
    assert has_dense_prologue([3, 58])
    assert not has_dense_prologue([18, 18])


def test_embedding_and_head_are_chunks_too():
    assert max_chunks(model("llama-3.1-405b")) == 128


@each("text", ["7,8x14,7", "7, 8*14, 7", "7,8,8x12,8,7"])
def test_layers_by_chunk_are_read_and_shown(text):
    assert read_layers(text) == (7, *[8] * 14, 7)
    assert show_layers(read_layers(text)) == "7,8x14,7"


@each("text", ["7,8y", "7,,8", "7,8x", "7,8x0", "-7,8", "7.5,8", "7,8x2x2", "99999"])
def test_what_is_no_list_of_layers_is_refused(text):
    with pytest.raises(LayoutError, match="is not a number of layers"):
        read_layers(text)


@pytest.mark.parametrize(("pp", "v", "layers"), [(16, 1, "7,8x14,7"), (8, 2, "7,8x14,7"), (1, 1, "126")])
def test_the_layers_that_a_deal_makes_may_be_said_and_change_nothing(pp, v, layers):
    schedule = "interleaved" if v > 1 else "1f1b"
    own = TrainingLayout(tp=8, pp=pp, virtual_stages=v, dp=4, schedule=schedule, sharding="zero3")
    dealt_, said = (
        st.training_step("llama-3.1-405b", "hgx-h100", seq=8192, batch=512, layout=x, engine="typical")
        for x in (own, replace(own, layers=layers))
    )
    assert float(said.total) == pytest.approx(float(dealt_.total), rel=5e-3)  # one walks through the step, one has a formula
    assert float(said.memory.used) == pytest.approx(float(dealt_.memory.used), rel=1e-12)


@given(cuts=some.lists(some.integers(1, 60), min_size=3, max_size=3, unique=True))
def test_the_slowest_stage_sets_the_pace_whichever_it_is(cuts):
    """Four stages by hand: a step of an ideal machine takes what a walk does, at most each other stage beside the slowest's."""
    sparse, asked = model("deepseek-ai/DeepSeek-V3"), job(batch=32)
    bounds = [0, *sorted(cuts), 61]
    counts = [b - a for a, b in pairwise(bounds)]
    x = TrainingLayout(pp=4, dp=2, layers=show_layers(counts))
    system = st.load_system("hgx-h100")
    passes = [layer_passes(sheet, asked, system, IDEAL, x) for sheet, _ in layer_profiles(sparse)]
    dense, routed = (one.total("forward") + one.total("backward") for one in passes)
    head = sum(stem_passes(stem_profile(sparse), asked, system, IDEAL, x))
    each = [
        max(min(b, 3) - a, 0) * dense + (b - a - max(min(b, 3) - a, 0)) * routed + (head if b == 61 else 0.0)
        for a, b in pairwise(bounds)
    ]
    found = step_seconds(sparse, asked, system, IDEAL, x)
    order = schedule_named("1f1b").order(4, 16, 1)
    forward = np.array([[f] for f, _ in step_seconds(sparse, asked, system, IDEAL, x).stages.per_stage])
    pace = float(simulate_step(order, forward, np.array(each)[:, None] - forward).total)
    assert max(each) * 16 * (1 - 1e-12) <= pace <= 16 * max(each) + sum(each) - max(each) + 1e-9
    kinds = ("matrices", "attention", "experts", "element-wise", "head", "pipeline idle")
    assert sum(float(found.terms.get(name, 0.0)) for name in kinds) == pytest.approx(pace, rel=1e-9)
    assert [float(f + b) for f, b in found.stages.per_stage] == pytest.approx(each, rel=1e-9)


def test_chunks_lie_on_the_devices_that_the_schedule_puts_them_on():
    """Rounds: device 0 has chunks 0 and 2; a V: 0 and 3; both ways: half of the first and of the last stage."""
    llama = model("llama-3.1-8b")

    def held(schedule: str, v: int, layers: str) -> list[tuple[float, float, float]]:
        x = TrainingLayout(pp=2, virtual_stages=v, schedule=schedule, layers=layers)
        return [(float(s.layers), float(s.embedding), float(s.head)) for s in pipeline_stages(llama, x)]

    assert held("interleaved", 2, "3,5,8,16") == [(11, 1, 0), (21, 0, 1)]
    assert held("zbv", 2, "3,5,8,16") == [(19, 1, 1), (13, 0, 0)]
    assert held("dualpipe", 1, "12,20") == [(16, 0.5, 0.5), (16, 0.5, 0.5)]


def test_an_embedding_that_is_the_head_is_held_once_by_a_device_that_has_both():
    tied = model("meta-llama/Llama-3.2-1B")
    stem = stem_profile(tied)
    one, two = (
        fullest_stage_parameters(tied, TrainingLayout(pp=pp, layers=layers)).dense for pp, layers in ((1, "16"), (2, "16,0"))
    )
    assert float(one) == pytest.approx(float(two), rel=1e-12)  # the second device holds the head alone
    assert float(one) - stem.head == pytest.approx(
        16 * (float(fullest_stage_parameters(tied, TrainingLayout(pp=16)).dense) - stem.head)
    )


@each(
    "layout, words",
    [
        ({"layers": "7,8x14"}, "has 119 layers, and meta-llama/Llama-3.1-405B has 126; try layers=8,9x6,8x8"),
        ({"layers": "7,8x14,7", "pp": 8, "virtual_stages": 1}, "has 16 chunks, and pp x vpp = 8"),
        ({"layers": "7,0,8x13,15"}, "only the first chunk"),
        ({"layers": "7,8x14,7", "pp": 5}, "has 16 chunks, and pp x vpp = 15"),
        ({"layers": (7, 8.5)}, "is not a number of layers"),
    ],
)
def test_layers_that_are_not_those_of_a_pipeline_are_named(layout, words):
    with pytest.raises(LayoutError, match=re.escape(words)):
        st.train("llama-3.1-405b", "hgx-h100", chips=1280, batch=640, seq=4096, layout=layout)


@pytest.mark.thorough
def test_layers_say_stages_and_a_search_keeps_them():
    found = st.train("llama-3.1-405b", "hgx-h100", chips=1024, batch=512, seq=8192, layout={"layers": [7, *[8] * 14, 7]})
    assert (found.step.layout.pp, found.step.layout.virtual_stages, found.step.layout.layers) == (16, 1, "7,8x14,7")
    two = st.train("llama-3.1-405b", "hgx-h100", chips=1024, batch=512, seq=8192, layout={"layers": "7,8x14,7", "pp": 8})
    assert (two.step.layout.pp, two.step.layout.virtual_stages, two.step.layout.schedule) == (8, 2, "interleaved")


@each("schedule, vpp, hops", [("1f1b", 1, 16), ("interleaved", 2, 6)])
def test_a_hop_moves_the_activations_of_a_micro_batch_over_one_boundary(schedule, vpp, hops):
    """Two stages of eight chips: 4,096 x 4,096 values of 2 bytes, an eighth on each chip, at 50 GB/s after 5 us.

    An event simulation of 16 micro-batches waits for 16 hops of 1F1B, and for 6 of interleaved 1F1B.
    """
    x = st.TrainingLayout(tp=8, pp=2, dp=1, virtual_stages=vpp, schedule=schedule)
    found = step_seconds(model(SMALL), job(batch=16), system(), IDEAL, x)
    assert float(found.terms["pipeline hops"]) == pytest.approx(hops * (4096 * 4096 * 2 / 8 / 50e9 + 5e-6))
