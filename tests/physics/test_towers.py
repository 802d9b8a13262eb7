"""Steps, plans and simulations of prompts with images: the tower's time is added once, wherever prompts are read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.models.blocks_vision import read_media
from steptime.physics.step import ledger_of_step
from tests.conftest import CHOICE_ALONE, each

MODEL, SYSTEM, TEXT = "qwen3-vl-8b-instruct", "hgx-h100", 500
SEEING = st.with_images(MODEL, "1024x1024", text=TEXT)
TOKENS = TEXT + 1024


@pytest.mark.parametrize("engine", ["ideal", "vllm"])
def test_a_prompt_takes_the_time_of_its_text_and_of_its_tower(engine):
    layout = st.Layout(tp=2)
    (reading,) = read_media(st.load_model(MODEL), "1024x1024")
    plain = st.prefill_step(MODEL, SYSTEM, tokens=TOKENS, layout=layout, engine=engine)
    tower = st.prefill_step(reading.tower.model, SYSTEM, tokens=4096, layout=layout, engine=engine)
    step = st.prefill_step(SEEING, SYSTEM, tokens=TOKENS, layout=layout, engine=engine)
    assert step.terms["vision tower"] == pytest.approx(float(tower.total))
    for name in ("total", "lower", "upper", "latency"):
        assert getattr(step, name) == pytest.approx(float(getattr(plain, name) + getattr(tower, name)))
    assert sum(step.terms.values()) == pytest.approx(float(step.total))
    assert sum(step.resources.values()) == pytest.approx(float(step.total))


def test_chunks_of_a_prompt_share_its_tower():
    whole = st.prefill_step(SEEING, SYSTEM, tokens=TOKENS).terms["vision tower"]
    chunks = st.prefill_step(SEEING, SYSTEM, tokens=TOKENS / 4, prefix=np.arange(4) * TOKENS / 4).terms["vision tower"]
    assert chunks.sum() == pytest.approx(float(whole))


def test_a_step_that_only_decodes_runs_no_tower():
    seeing, blind = (st.decode_step(model, SYSTEM, batch=np.array([1, 64]), context=4096) for model in (SEEING, MODEL))
    assert "vision tower" not in seeing.terms
    np.testing.assert_array_equal(seeing.total, blind.total)
    mixed = st.mixed_step(SEEING, SYSTEM, batch=8, context=4096, prompts=np.array([0, 1, 2]), tokens=TOKENS)
    assert mixed.terms["vision tower"][0] == 0
    assert 0 < mixed.terms["vision tower"][1] < mixed.terms["vision tower"][2] < 2.5 * mixed.terms["vision tower"][1]


def test_ways_that_do_not_divide_a_tower_leave_it_to_fewer_chips():
    """Kimi K3's tower has 12 heads: on 8 chips it runs on 4."""
    seeing = st.with_images("kimi-k3", "1024x1024", text=TEXT)
    given = {"tokens": seeing.media.tokens, "prompts": 1, "engine": "ideal"}
    terms = [st.prefill_step(seeing, "gb200-nvl72", layout=st.Layout(tp=tp), **given).terms for tp in (4, 8, 16)]
    assert len({float(part["vision tower"]) for part in terms}) == 1


@each("given", [{"prompts": 2, "tokens": TOKENS}, {"prompts": 1, "tokens": TOKENS / 4}])
def test_the_lines_of_a_step_add_up_to_it(given):
    step, entries = ledger_of_step(SEEING, st.load_system(SYSTEM), given, layout=st.Layout(tp=2), engine="vllm")
    assert sum(float(entry.counted) for entry in entries) == pytest.approx(float(step.total))
    mine = sum(float(entry.counted) for entry in entries if entry.term == "vision tower")
    assert mine == pytest.approx(float(step.terms["vision tower"]))


def test_images_of_two_sizes_and_layouts_of_two_widths():
    seeing = st.with_images(MODEL, ["1024x1024*2", "640x480"], text=TEXT)
    layouts = st.Layout(tp=np.array([1, 2, 8]))
    step = st.prefill_step(seeing, SYSTEM, tokens=seeing.media.tokens, layout=layouts, engine="ideal")
    assert step.terms["vision tower"].shape == (3,)
    assert (np.diff(step.terms["vision tower"]) < 0).all()


def test_drafts_run_no_tower():
    seeing = st.with_images("qwen3.5-397b-a17b", "1024x1024", text=TEXT)
    from steptime.physics.speculative_step import drafter

    assert drafter(seeing).media is None


@pytest.mark.thorough
def test_a_plan_with_images_costs_more_than_one_of_as_many_tokens_of_text(closed_forms):
    limits = st.Slo(tpot=0.05, ttft=2)
    work = st.Workload(input_tokens=TOKENS, output_tokens=100)
    seeing, text = (st.plan(model, SYSTEM, work, limits, chips=1, **CHOICE_ALONE) for model in (SEEING, MODEL))
    assert text.usd_per_million_output_tokens < seeing.usd_per_million_output_tokens < 2 * text.usd_per_million_output_tokens
    assert any("1 image of 1024x1024" in words for words in seeing.warnings)


@pytest.mark.slow
def test_a_simulation_reads_prompts_with_their_images():
    pytest.importorskip("numba")
    traffic = st.open_loop(1, 100, st.Lengths(mean=TOKENS), st.Lengths(mean=16))
    seeing, text = (st.simulate(model, SYSTEM, traffic, engine="vllm") for model in (SEEING, MODEL))
    tower = float(st.prefill_step(SEEING, SYSTEM, tokens=TOKENS, engine="vllm").terms["vision tower"])
    assert seeing.answers.ttft.mean - text.answers.ttft.mean == pytest.approx(tower, rel=0.25)


def test_formats_leave_towers_alone():
    narrow = st.load_model(MODEL, weights="fp8")
    assert narrow.towers == st.load_model(MODEL).towers
    assert replace(narrow, media=SEEING.media).media is SEEING.media
