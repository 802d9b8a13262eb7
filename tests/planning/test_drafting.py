"""Plans with drafts: TPOT and memory by hand, laws, the best number of drafts, measured acceptances, and the replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.catalog.acceptance_lengths import acceptance_curve, curves
from steptime.errors import DataFileError, InputError, RangeError
from steptime.models.model import Layer
from steptime.physics.engine import IDEAL, engine_for
from steptime.physics.layout import Layout
from steptime.planning.steady_state import aggregated, answer_tokens, decode_pool
from steptime.workload.workload import (
    NONE,
    Speculation,
    choose_speculation,
    decode_steps,
    known_draftings,
    step_yield,
)
from tests.conftest import each, engine, machine, matrix, one_matrix
from tests.planning.cases import closed_plan, equal_requests

DRAFT = ((Layer(name="draft", ops=(matrix(weights=5e8),)), 1),)
MODEL = replace(one_matrix(heads=4), draft=DRAFT)
WORK = equal_requests(input_tokens=1000, output_tokens=201)
TWO = Speculation(drafts=2, acceptance=2.5, source="as given")
NODES = machine(size=4, capacity=20e9)


def test_time_per_token_by_hand():
    """10 GB and the caches of 8 sequences, 1,100 tokens of 10 kB, verified and two passes of 0.5 GB: over 2.5 tokens."""
    state = decode_pool(MODEL, machine(), WORK, layout=Layout(), batch=8, engine=IDEAL, speculation=TWO)
    step = (10e9 + 8 * 1100.5 * 1e4 + 2 * 0.5e9) / 4e12
    assert state.tpot == pytest.approx(step / 2.5, rel=1e-4)
    assert state.rate == pytest.approx(8 / (200 / 2.5 * step), rel=1e-4)
    assert state.decode.terms["drafts"] == pytest.approx(2 * 0.5e9 / 4e12)


def test_requests_that_live_for_fewer_steps_bring_more_prompts_to_each():
    """80 steps instead of 200: 2.5 times as many chunks; and rate times life is the batch."""
    given = {"layout": Layout(), "batch": 8, "chunk": 250, "engine": IDEAL}
    plain, drafted = (aggregated(MODEL, machine(), WORK, **given, speculation=drafting) for drafting in (NONE, TWO))
    assert (drafted.chunks_per_mixed_step * (1 - drafted.decode_only_share)) == pytest.approx(
        2.5 * plain.chunks_per_mixed_step * (1 - plain.decode_only_share), rel=0.03
    )
    for state in (plain, drafted):
        assert state.rate * 200 * state.tpot == pytest.approx(8)


def test_one_token_a_step_and_no_drafts_change_nothing():
    given = {"layout": Layout(), "batch": np.array([1, 8, 64]), "chunk": 250, "engine": engine(seconds_per_step=1e-4)}
    plain, same = (
        aggregated(MODEL, machine(), WORK, **given, speculation=d) for d in (NONE, Speculation(drafts=0, acceptance=1.0))
    )
    assert np.array_equal(plain.tpot, same.tpot)
    assert plain.memory.used == pytest.approx(same.memory.used)


@pytest.mark.slow
def test_more_accepted_tokens_are_never_dearer():
    costs = [
        closed_plan(MODEL, NODES, WORK, st.Slo(tpot=4e-3), engine="ideal", drafts=3, acceptance=accepted, alternatives=False)
        for accepted in (1.0, 2.0, 4.0)
    ]
    money = [found.usd_per_million_output_tokens for found in costs]
    assert money == sorted(money, reverse=True)
    assert money[-1] < money[0]


def test_a_request_yields_no_more_tokens_than_it_owes():
    short = equal_requests(input_tokens=8, output_tokens=2)
    assert decode_steps(short, TWO) == 1
    assert step_yield(short, TWO) == 1
    assert step_yield(WORK, TWO) == pytest.approx(2.5)
    late = engine(steps_before_answer=4.0)
    assert answer_tokens(WORK, Layout(), late, TWO) == pytest.approx(10)
    assert answer_tokens(short, Layout(), late, TWO) == 1


@pytest.mark.thorough
def test_plans_tell_what_they_draft_and_what_that_does_at_each_batch():
    found = closed_plan(MODEL, NODES, WORK, engine="ideal", drafts=2, acceptance=2.5, alternatives=False)
    assert found.speculation == Speculation(drafts=2, acceptance=2.5, source="given", method="mtp")
    assert found.speculation.text == "2 speculative tokens per step, acceptance length 2.5 (given)"
    assert found.pools[-1].batch in [row.batch for row in found.drafted]
    for row in found.drafted:
        assert row.speed_up == pytest.approx(row.tpot_without / row.tpot)
        assert row.rate / row.rate_without == pytest.approx(row.speed_up)
    assert closed_plan(MODEL, NODES, WORK, engine="ideal", alternatives=False).drafted == ()


def test_drafts_lose_at_the_batch_where_arithmetic_binds():
    """Without a cache: 2.5 tokens for 1.1 times the bytes; 2.5 for 3.1 times the arithmetic."""
    model = replace(one_matrix(heads=4, kv_bytes=1e-3), draft=DRAFT)
    found = closed_plan(model, machine(size=1), WORK, engine="ideal", chips=1, drafts=2, acceptance=2.5, alternatives=False)
    speeds = np.array([row.speed_up for row in found.drafted])
    assert speeds[0] == pytest.approx(2.5 / 1.1)
    assert speeds[-1] == pytest.approx(2.5 / 3.1)
    assert np.all(np.diff(speeds) < 1e-6)


@pytest.mark.slow
def test_the_best_number_is_none_where_arithmetic_binds_and_many_where_weights_do():
    bound = {"engine": "ideal", "modes": "aggregated", "alternatives": False, "drafts": "auto"}
    slow = closed_plan(MODEL, machine(size=4, flops=3e13, capacity=1e14), WORK, **bound)
    assert slow.speculation.drafts == 0
    fast = closed_plan(MODEL, machine(size=4, flops=1e30), WORK, st.Slo(tpot=4e-3), **bound)
    each = [
        closed_plan(MODEL, machine(size=4, flops=1e30), WORK, st.Slo(tpot=4e-3), **bound | {"drafts": n}) for n in (0, 3, 6, 8)
    ]
    money = [found.usd_per_million_output_tokens for found in each]
    assert fast.usd_per_million_output_tokens <= min(money) * 1.005
    assert fast.speculation.drafts > 0


@pytest.mark.thorough
def test_drafts_meet_a_limit_that_nothing_meets_without():
    asked = (MODEL, machine(size=1), WORK, st.Slo(tpot=2e-3))
    assert not closed_plan(*asked, chips=1, engine="ideal", alternatives=False).feasible
    found = closed_plan(*asked, chips=1, engine="ideal", alternatives=False, drafts="auto")
    assert found.feasible
    assert found.speculation.drafts > 0


def test_speed_ups_of_deepseek_fall_at_large_batches(deepseek, rack):
    """One draft on 8 chips: 1.85 tokens for more than twice the rows; experts that few tokens touch cost more to verify."""
    drafting = choose_speculation(deepseek, 1)
    batch = 8 * 2 ** np.arange(10)
    given = {"layout": Layout(dp=8, ep=8), "batch": batch, "engine": engine_for(rack, None)}
    plain, drafted = (decode_pool(deepseek, rack, WORK, **given, speculation=d).tpot for d in (NONE, drafting))
    gains = plain / drafted
    assert np.all(gains < 1.85)
    best = int(np.argmax(gains))
    assert np.all(np.diff(gains[best:]) < 0)
    assert gains[-1] < 0.8 * gains[best]


# --- measured acceptances -----------------------------------------------------------------------------------------------


def test_acceptances_are_those_that_were_published():
    assert choose_speculation(st.load_model("deepseek-v3"), 1).acceptance == 1.85
    assert choose_speculation(st.load_model("deepseek-ai/DeepSeek-V4-Pro"), 2).acceptance == 2.27
    assert choose_speculation(st.load_model("Qwen/Qwen3.5-397B-A17B"), 8).acceptance == 5.21
    assert "thinking" in acceptance_curve("zai-org/GLM-5.2").words
    assert all(figure.url and figure.date for curve in curves() for figure in curve.figures)


def test_curves_name_models_of_the_catalogue():
    names = {name for curve in curves() for name in curve.models} - {"typical"}
    assert {st.load_model(name).name for name in names} == names


@pytest.mark.slow
def test_a_model_without_a_curve_takes_a_guess_and_says_so():
    model = st.load_model("zai-org/GLM-4.5-Air")
    found = closed_plan(model, "hgx-h200", WORK, drafts=2, alternatives=False, chips=4)
    assert found.speculation.source.startswith("guess")
    assert any("--acceptance" in warning and "GLM-4.5-Air" in warning for warning in found.warnings)
    known = closed_plan(model, "hgx-h200", WORK, drafts=2, acceptance=2.1, alternatives=False, chips=4)
    assert not any("--acceptance" in warning for warning in known.warnings)


def test_an_own_file_of_measured_acceptances_comes_first(tmp_path, monkeypatch):
    (tmp_path / "acceptance").mkdir()
    own = tmp_path / "acceptance" / "aaa.toml"
    text = (
        'name = "own"\n[[curves]]\nmodels = ["deepseek-ai/DeepSeek-V3"]\nmethod = "mtp"\nwords = "own traffic"\ntokens = [{}]\n'
    )
    own.write_text(text.format(1.7))
    monkeypatch.setenv("STEPTIME_CATALOG", str(tmp_path))
    assert choose_speculation(st.load_model("deepseek-v3"), 1).acceptance == 1.7
    own.write_text(text.format(2.7))
    with pytest.raises(DataFileError, match=r"from 1 to 2 tokens, got 2\.7"):
        choose_speculation(st.load_model("deepseek-v3"), 1)


@each(
    "asked, error, message",
    [
        ({"drafts": 9}, RangeError, "drafts must be .* 8"),
        ({"drafts": -1}, RangeError, "drafts must be at least 0"),
        ({"drafts": 1.5}, RangeError, "drafts must be a whole number"),
        ({"drafts": "many"}, RangeError, "or auto, got 'many'"),
        ({"drafts": 2, "acceptance": 3.5}, RangeError, "from 1 to 3 .* got 3.5"),
        ({"drafts": 2, "acceptance": 0.85}, RangeError, "from 1 to 3 .* got 0.85"),
        ({"drafts": 0, "acceptance": 2.0}, RangeError, "from 1 to 1 .* got 2"),
        ({"acceptance": 2.0}, RangeError, "needs a number of drafts"),
        ({"drafts": "auto", "acceptance": 2.0}, RangeError, "got auto"),
        ({"drafts": 4}, RangeError, "measured beyond 3, got 4"),
    ],
)
def test_what_makes_no_sense_is_refused(asked, error, message, deepseek):
    with pytest.raises(error, match=message):
        closed_plan(deepseek, "hgx-h200", WORK, **asked, alternatives=False)


@each("asked", [{"drafts": 1, "acceptance": 1.5}, {"drafts": 1}, {"drafts": "auto"}])
def test_a_model_without_draft_layers_is_refused(asked):
    assert known_draftings(one_matrix()) == (NONE,)
    with pytest.raises(InputError, match="has no layers that draft"):
        closed_plan(one_matrix(), NODES, WORK, engine="ideal", **asked, alternatives=False)


# --- the replay ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_a_replay_agrees_with_the_plan(mode, deepseek):
    pytest.importorskip("numba")
    from benchmarks.plan_vs_simulation import compare

    workload, limits = equal_requests(input_tokens=2000, output_tokens=500), st.Slo(tpot=0.03, ttft=3)
    chips = 32 if mode == "disaggregated" else 8
    found = closed_plan(deepseek, "hgx-h200", workload, limits, drafts=2, modes=mode, chips=chips, alternatives=False)
    replayed = compare(found, requests=2000)
    assert replayed.steady
    assert replayed.tpot_ratio == pytest.approx(1, abs=0.05)
    assert replayed.cost_ratio == pytest.approx(1, abs=0.05)
