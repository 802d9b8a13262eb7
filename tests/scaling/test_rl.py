"""A step of RL in its parts."""

from __future__ import annotations

import contextlib
import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import steptime as st
from steptime.errors import Impossible, InputError, RangeError
from steptime.models.model import active_parameters
from steptime.physics.layout_space import legal
from steptime.scaling.rl_step import answer_lengths, rl_step
from tests.conftest import each

RUNS = Path(__file__).parents[3] / "shared" / "data" / "measured" / "training_rl.csv"
ASKED = {"chips": 32, "rollouts": 2048, "output": 3200, "longest": 4096, "layout": st.Layout(tp=2)}


@pytest.fixture(scope="module")
def step():
    return rl_step("qwen3-30b-a3b", "hgx-h100", **ASKED)


def test_lengths_have_their_mean_and_their_longest():
    lengths = answer_lengths(1000, 32768, 0.9, 4096)
    assert lengths.mean() == pytest.approx(1000, rel=1e-3)
    assert lengths.max() <= 32768
    assert (np.diff(lengths) <= 0).all()
    free = answer_lengths(1000, 1e9, 0.9, 100_000)
    assert free.std() / free.mean() == pytest.approx(0.9, rel=0.01)
    assert np.median(lengths) < 800  # a long tail: the middle answer is shorter than the mean


def test_a_step_is_its_phases_one_after_the_other(step):
    assert step.computed == pytest.approx(step.rollout + step.log_probs + step.training + step.refit)
    assert step.total == pytest.approx(step.computed + step.overhead)
    assert step.low < step.total < step.high < 4 * step.low
    assert 0.2 < step.overhead / step.computed < 0.8  # published steps take half as long again as their computed phases
    trained = st.train("qwen3-30b-a3b", "hgx-h100", chips=32, seq=3456, batch=2048, changes=False)
    assert step.training == pytest.approx(float(trained.step.total))
    assert step.log_probs == pytest.approx(2 * step.training / 3)
    assert step.usd == pytest.approx(step.total * 32 * step.rent)


def test_one_step_off_is_the_longer_of_rollout_and_training(step):
    off = rl_step("qwen3-30b-a3b", "hgx-h100", **ASKED, rollout_share=0.5)
    assert off.computed == pytest.approx(max(off.rollout, off.log_probs + off.training) + off.refit)
    assert off.rollout > step.rollout  # on half the chips
    assert off.training == pytest.approx(2 * step.training, rel=0.3)


def test_a_share_of_the_peak_stands_in_for_the_training_step():
    given = rl_step("qwen3-30b-a3b", "hgx-h100", **ASKED, mfu=0.43)
    tokens, active = 2048 * (256 + 3200), float(active_parameters(st.load_model("qwen3-30b-a3b")))
    rate = st.load_system("hgx-h100").chip.peak["bf16"] * 0.43 * 32
    assert given.training == pytest.approx(6 * active * tokens / rate)
    assert given.log_probs == pytest.approx(2 * 2 * active * tokens / rate)
    assert given.mfu == pytest.approx(0.43)


def test_a_rollout_takes_as_long_as_its_longest_answer_at_least(step):
    """Decoding alone, as the last answer does, is the floor; all answers at the full batch to the end the ceiling."""
    model, ways, each = "qwen3-30b-a3b", st.Layout(tp=2), 2048 // 16
    alone = float(st.decode_step(model, "hgx-h100", batch=1, context=2304, layout=ways).total)
    full = float(st.decode_step(model, "hgx-h100", batch=each, context=4352, layout=ways).total)
    assert alone * 4096 < step.rollout < full * 4096 * 1.3


@pytest.mark.thorough
def test_a_longer_tail_takes_longer_for_the_same_tokens():
    short, long = (
        rl_step("qwen3-30b-a3b", "hgx-h100", **(ASKED | {"output": 2000, "longest": most})) for most in (4096, 32768)
    )
    assert long.rollout > 1.5 * short.rollout
    assert long.tail > short.tail


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match=r"^tp=3 does not divide the 32 heads"):
        rl_step("qwen3-30b-a3b", "hgx-h100", **ASKED | {"layout": st.Layout(tp=3)})
    with pytest.raises(RangeError, match="group: must divide the 2,048 rollouts, got 7; try 4 or 8"):
        rl_step("qwen3-30b-a3b", "hgx-h100", **ASKED, group=7)
    with pytest.raises(RangeError, match="longest: "):
        rl_step("qwen3-30b-a3b", "hgx-h100", **(ASKED | {"output": 5000}))
    with pytest.raises(RangeError, match="a replica takes 2 chips, and the rollout has 1 of 1"):
        rl_step("qwen3-30b-a3b", "hgx-h100", **(ASKED | {"chips": 1}))
    with pytest.raises(RangeError, match="a replica takes 1 chip, and the rollout has 0 of 1"):
        rl_step("qwen3-30b-a3b", "hgx-h100", **(ASKED | {"chips": 1, "layout": None, "rollout_share": 0.4}))
    with pytest.raises(Impossible, match=r"does not fit a replica of 2 chips: each chip needs .* take --tp 16"):
        rl_step("deepseek-v3", "hgx-h100", **ASKED)
    with pytest.raises(RangeError, match="leaves none to train"):
        rl_step("qwen3-30b-a3b", "hgx-h100", **(ASKED | {"rollout_share": 0.999}))


@pytest.mark.thorough
def test_chips_that_idle_and_answers_beyond_the_context_are_noted():
    assert rl_step("qwen3-30b-a3b", "hgx-h100", **ASKED).notes == ()
    (idle,) = rl_step("qwen3-30b-a3b", "hgx-h100", **(ASKED | {"chips": 33})).notes
    assert idle == "1 chip of the rollout idles: a replica takes 2"
    (long,) = rl_step("qwen3-30b-a3b", "hgx-h100", **(ASKED | {"longest": 1e6, "mfu": 0.2})).notes
    assert "exceed the context" in long


def test_the_bound_of_an_ideal_engine_has_no_further_time():
    bound = rl_step("qwen3-30b-a3b", "hgx-h100", **ASKED, engine="ideal")
    assert bound.overhead == 0
    assert bound.low == bound.total == bound.high


@pytest.mark.slow
def test_published_steps_take_longer_than_their_computed_parts():
    """NeMo RL, 11 steps: the computed parts are a lower bound, a quarter to all of what was measured.

    What lies between is left out (`rl`): rewards, starts of engines, pipelines that idle at small batches.
    """
    if not RUNS.is_file():
        pytest.skip(f"the measured steps are not here: {RUNS}")
    ratios, inside = [], []
    for row in csv.DictReader(RUNS.read_text(encoding="utf-8").splitlines()):
        if "8-step" in row["id"]:
            continue
        output, rollouts = (
            float(re.search(words + r" ([\d,]+)", row["note"])[1].replace(",", "")) for words in ("sequence", "step")
        )
        tp, pp = map(int, re.search(r"\[TP,PP\] \[(\d+),(\d+)\]", row["note"]).groups())
        step = rl_step(
            row["model"], row["system"], chips=int(row["chips"]), rollouts=int(rollouts), output=output,
            longest=float(row["seq_len"]), layout=st.Layout(tp=tp, pp=pp), rollout_share=0.5 if "Off" in row["id"] else 1.0,
            updates=int(rollouts / float(re.search(r"train batch ([\d,]+)", row["note"])[1].replace(",", ""))),
        )  # fmt: skip
        measured = float(row["step_s"])
        ratios.append(step.computed / measured)
        inside.append(step.low <= measured <= step.high)
    assert len(ratios) == 11
    assert 0.2 < min(ratios) < max(ratios) < 1.0
    assert np.mean(inside) >= 0.8


def test_too_few_chips_name_the_tensor_parallelism_and_the_chips_that_fit():
    """Weights of Llama-3.1-405B in bf16 take 810 GB: 8 chips of 78.7 GB do not hold them, and 16 do."""
    sizes = {"rollouts": 64, "output": 100, "longest": 400}
    with pytest.raises(Impossible, match=r"--tp 16, a replica of 16 chips: the rollout has 8"):
        rl_step("llama-3.1-405b", "hgx-h100", chips=8, **sizes)
    with pytest.raises(Impossible, match=r"--chips \d+$") as problem:
        rl_step("llama-3.1-8b", "hgx-h100", chips=1, **sizes)
    assert "--offload" not in str(problem.value)
    chips = int(str(problem.value).rpartition(" ")[2])
    assert rl_step("llama-3.1-8b", "hgx-h100", chips=chips, **sizes).chips == chips


def test_tools_keep_the_slot_of_an_answer(step):
    """All 128 answers of a replica have a slot, so that the last one waits once."""
    waiting = rl_step("qwen3-30b-a3b", "hgx-h100", **ASKED, tool_seconds=30.0)
    assert waiting.rollout == pytest.approx(step.rollout + 30)
    assert waiting.training == step.training


def test_answers_to_one_prompt_share_its_prefill(step):
    """A group of 16 leaves a sixteenth of 128 prefills of 256 tokens."""
    shared = rl_step("qwen3-30b-a3b", "hgx-h100", **ASKED, group=16)
    prefill = float(st.prefill_step("qwen3-30b-a3b", "hgx-h100", tokens=256, layout=st.Layout(tp=2)).total)
    assert step.rollout - shared.rollout == pytest.approx(128 * 15 / 16 * prefill)


@each("rollouts, output, longest", [(2048, 2048, 16384), (100, 2048, 16384), (512, 4000, 32000), (4, 2048, 16384)])
def test_a_micro_batch_of_training_has_room_for_the_longest_answer(rollouts, output, longest):
    """Prompts have 256 tokens; answers of mean length are packed, at most all of a step."""
    step = rl_step(
        "llama-3.1-8b", "hgx-h100", chips=8, rollouts=rollouts, output=output, longest=longest, layout=st.Layout(tp=8)
    )
    packed = int(re.search(r"mbs(\d+)", step.training_layout)[1])
    assert packed * (output + 256 + 64) >= longest + 256 or packed == rollouts


def test_rollouts_that_span_steps_do_not_wait_for_the_longest():
    """Answers of 2,000 tokens on average and 32,768 at most: most of a rollout is its tail."""
    asked = ASKED | {"output": 2000, "longest": 32768, "mfu": 0.4}
    waiting, flowing = (rl_step("qwen3-30b-a3b", "hgx-h100", **asked, steps_spanned=steps) for steps in (1, 8))
    assert flowing.rollout < 0.5 * waiting.rollout
    assert (flowing.tail, waiting.tail > 0) == (0, True)
    assert flowing.rollout >= waiting.rollout / 8
    with pytest.raises(RangeError, match="steps spanned"):
        rl_step("qwen3-30b-a3b", "hgx-h100", **asked, steps_spanned=0)


def test_a_published_step_whose_answers_span_eight_is_inside_the_range():
    """NeMo RL 0.6: Qwen3-30B-A3B on 192 H100, 8 steps off policy, 2,048 answers of 3,206 tokens in 34.5 s."""
    step = rl_step(
        "qwen3-30b-a3b", "hgx-h100", chips=192, rollouts=2048, output=3206, longest=4096, layout=st.Layout(tp=2),
        rollout_share=0.5, updates=4, steps_spanned=8,
    )  # fmt: skip
    assert step.low <= 34.5 <= step.high


@pytest.mark.parametrize(
    ("name", "chips", "given"),
    [
        ("llama-3.2-1b", 4, {"mfu": 0.4}),
        pytest.param("llama-3.2-1b", 4, {}, marks=pytest.mark.thorough),
        # Without a training step to search, more splits and the experts of a mixture take little time.
        pytest.param("llama-3.2-1b", 4, {"steps_spanned": 4, "passes": 1.0}, marks=pytest.mark.thorough),
        pytest.param("llama-3.1-8b", 8, {"mfu": 0.4}, marks=pytest.mark.thorough),
        pytest.param("llama-3.1-8b", 8, {"mfu": 0.1, "group": 8}, marks=pytest.mark.thorough),
        pytest.param("gpt-oss-20b", 4, {"mfu": 0.3}, marks=pytest.mark.thorough),
    ],
)
def test_layouts_and_split_are_those_of_all_combinations(name, chips, given):
    """Each legal layout on each number of rollout chips, one by one."""
    asked = given | {"chips": chips, "rollouts": 64, "output": 200, "longest": 800}
    for shares in ([1.0], [making / chips for making in range(1, chips)]):
        share_of_all = 1.0 if shares == [1.0] else None
        searched = rl_step(name, "hgx-h100", **asked, rollout_share=share_of_all, evidence="any")
        covered = rl_step(name, "hgx-h100", **asked, rollout_share=share_of_all)
        single = []
        for layout in legal(st.load_model(name), st.load_system("hgx-h100"), chips, microbatches=(1,)):
            for share in shares:
                with contextlib.suppress(InputError):
                    single.append(rl_step(name, "hgx-h100", **asked, layout=replace(layout, replicas=1), rollout_share=share))
        best = min(single, key=lambda step: step.total)
        assert searched.total == pytest.approx(best.total)
        assert (searched.on_policy, best.searched) == (shares == [1.0], 1)
        assert 1 < searched.searched <= len(single)
        # By default of the kind that published steps have: tensor parallelism alone.
        measured = min((step for step in single if step.evidence == "measured"), key=lambda step: step.total)
        assert (covered.evidence, covered.total) == ("measured", pytest.approx(measured.total))
        assert covered.unmeasured_saving == pytest.approx(1 - searched.total / covered.total)
        assert (covered.unmeasured == searched.layout) is (searched.evidence == "any")


def test_rollout_layouts_of_published_steps_come_first():
    """All 12 published steps generate with tensor parallelism alone; DeepSeek-V3 fits no such replica on nodes of 8 H100."""
    asked = {"chips": 32, "rollouts": 2048, "output": 2048, "longest": 16384, "mfu": 0.3}
    first, any_kind = (rl_step("qwen3-30b-a3b", "hgx-h100", **asked, evidence=kind) for kind in ("measured", "any"))
    assert (first.layout, first.evidence) == ("tp4", "measured")
    assert (any_kind.layout, any_kind.evidence, any_kind.unmeasured) == (first.unmeasured, "any", "")
    assert first.unmeasured_saving == pytest.approx(1 - any_kind.total / first.total)
    assert first.unmeasured_saving > 0
    uncovered = rl_step("deepseek-v3", "hgx-h100", **(asked | {"chips": 256}))
    assert (uncovered.evidence, uncovered.unmeasured) == ("any", "")
    with pytest.raises(InputError, match="evidence"):
        rl_step("qwen3-30b-a3b", "hgx-h100", **asked, evidence="none")


def test_a_given_layout_leaves_the_split_and_large_systems_split_whole_hosts():
    """Qwen3-30B on 64 H100: 7 splits of hosts of 8, each with one layout."""
    asked = ASKED | {"chips": 64, "mfu": 0.3}
    searched = rl_step("qwen3-30b-a3b", "hgx-h100", **asked, rollout_share=None)
    single = [rl_step("qwen3-30b-a3b", "hgx-h100", **asked, rollout_share=hosts / 8) for hosts in range(1, 8)]
    assert searched.searched == 7
    assert searched.rollout_chips % 8 == 0
    assert searched.total == pytest.approx(min(step.total for step in single))
    # The training has its layout from its own search, where no MFU is given.
    assert (searched.layout, searched.training_layout) == ("tp2", "")
    with pytest.raises(RangeError, match="off policy"):
        rl_step("qwen3-30b-a3b", "hgx-h100", **(asked | {"chips": 1}), rollout_share=None)


def test_answers_that_span_steps_fill_all_slots_of_a_full_replica():
    """More answers than slots: twice the answers take twice the time where none waits for the longest."""
    asked = {"chips": 1, "output": 2000, "longest": 2001, "spread": 0.0, "steps_spanned": 64, "mfu": 0.4}
    first, second = (
        rl_step("llama-3.1-8b", "hgx-h100", rollouts=count, layout=st.Layout(), **asked).rollout for count in (4000, 8000)
    )
    assert second == pytest.approx(2 * first, rel=1e-6)
