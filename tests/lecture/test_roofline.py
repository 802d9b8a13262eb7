"""The board for real pairs: closed forms by hand, the full model beside them, and what is refused."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for
from steptime.errors import RangeError
from steptime.lecture.current_figures import build_pair
from steptime.lecture.pair_roofline import price_of_speed, roofline

# gb200-nvl72 by its data sheet: 72 chips of 5,000 TFLOP/s dense in FP8, 8 TB/s and 186 GB; DeepSeek-V3 by its config


def test_closed_forms_of_deepseek_by_hand():
    found = roofline("deepseek-v3", "gb200-nvl72", context=8192)
    assert found["R in fp8"].closed == pytest.approx(2.5e15 / 8e12)
    assert found["R in fp4"].closed == pytest.approx(5e15 * 0.5 / 8e12)
    assert found["sparsity"].closed == pytest.approx(671.03 / 37.55, rel=1e-3)
    assert found["floor of a step"].closed == pytest.approx(671.03e9 / 576e12, rel=5e-3)
    assert found["drain of the memory"].closed == pytest.approx(186e9 / 8e12)
    assert found["L*, the knee"].closed == pytest.approx(37.55e9 * 576e12 / (1.7506e17 * 35_136), rel=1e-3)
    assert found["B* at this context"].closed == math.inf
    assert found["links inside over outside"].closed == 18
    assert found["pipeline hidden from 1"].closed == pytest.approx(2 * 8 / 18)
    assert any("attention" in note for note in found.notes)
    assert any("batch of one" in note for note in found.notes)


def test_batches_of_closed_form_and_full_model_count_sequences_of_all_chips():
    found = roofline("deepseek-v3", "gb200-nvl72")
    assert found["batch that is cheapest"].full % found.chips == 0
    # No layout runs one sequence on 72 chips.
    assert math.isnan(found["cost at batch 1"].full)
    small = roofline("llama-3.3-70b", "hgx-h100")
    rent = st.load_system("hgx-h100").rent.typical
    assert small["cost at batch 1"].full == pytest.approx(8 * rent * small["floor of a step"].full * 1e6)


def test_with_a_short_context_the_best_batch_is_finite():
    short = roofline("deepseek-v3", "gb200-nvl72", context=1758)  # half of the knee
    assert short["B* at this context"].closed == pytest.approx(2 * short["B*, cache left out"].closed, rel=2e-3)


def test_price_of_speed_keeps_the_law_of_steps():
    """At the batch that a price stands for, a step is as much faster as was asked."""
    pair = build_pair(st.load_model("llama-3.3-70b"), st.load_system("hgx-h100"), context=8192)
    base = 200.0
    for speed in (1.5, 2.5):
        price = price_of_speed(pair, base, speed)
        batch = base / (price * speed)
        assert pair.step_seconds(batch) * speed == pytest.approx(pair.step_seconds(base))
    ceiling = pair.step_seconds(base) / pair.floor
    assert price_of_speed(pair, base, ceiling * 1.001) == math.inf


def test_the_full_model_is_never_below_the_floor_and_dearer_than_the_closed_form():
    found = roofline("llama-3.3-70b", "hgx-h100", weights="fp8")
    assert found["floor of a step"].full > found["floor of a step"].closed
    assert found["cost at that batch"].full > found["cost at that batch"].closed
    assert found["greatest speed"].full >= 2.5
    ideal = roofline("llama-3.3-70b", "hgx-h100", weights="fp8", engine="ideal")
    assert ideal["floor of a step"].full < found["floor of a step"].full


def test_what_does_not_fit_is_refused():
    with pytest.raises(RangeError, match="need more than"):
        roofline("deepseek-v3", "hgx-h100")
    with pytest.raises(RangeError, match="context of at most"):
        roofline("llama-3.3-70b", "hgx-h100", context=10**6)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_command(columns):
    words = ["roofline", "llama-3.3-70b", "hgx-h100", "--context", "32k", "--weights", "fp8"]
    done = CliRunner().invoke(app_for(words), words, env={"COLUMNS": columns})
    assert done.exit_code == 0, done.output
    assert max(len(line) for line in done.output.splitlines()) <= int(columns)
    told = json.loads(CliRunner().invoke(app_for(words), [*words, "--json"]).output)
    assert told["schema"] == "steptime.roofline/2"
    assert told["context_tokens"] == 32_000


def test_a_pair_that_fits_by_the_closed_form_alone_is_answered():
    tight = st.vary(st.load_system("hgx-h100"), {"chip.hbm.capacity": 88e9})
    found = st.roofline("deepseek-v3", tight)
    assert any("no layout" in note for note in found.notes)
    assert math.isnan(found["floor of a step"].full)
