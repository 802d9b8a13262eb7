"""Drafts as a user types them: what is printed, launched and refused."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import run
from tests.conftest import each

ASKED = "plan deepseek-v3 hgx-h200 --input 2000 --output 500 --speed 30 --mode aggregated"


@pytest.mark.slow
def test_a_plan_says_what_is_drafted_and_what_that_does_at_each_batch():
    said = " ".join(run(f"{ASKED} --drafts 2 --full").stdout.split())
    assert "Speculative decoding: 2 " in said
    assert "(reported: DeepSeek-V3 in SGLang" in said
    assert "Speculative decoding at each batch" in said
    assert "Speculative decoding" not in run(ASKED).stdout


@pytest.mark.thorough
def test_json_has_the_drafting_and_explained_steps_that_add_up(closed_forms):
    told = json.loads(run(f"{ASKED} --drafts 2 --json --explain").stdout)
    assert told["speculation"]["drafts"] == 2
    assert told["speculation"]["acceptance_tokens"] == 2.18
    assert told["speculation"]["source"].startswith("reported: DeepSeek-V3 in SGLang")
    assert {"batch", "tpot_s", "tpot_without_s", "speed_up"} <= set(told["drafted_by_batch"][0])
    for pool in told["explanation"]["pools"]:
        for step in pool["passes"]:
            assert sum(line["seconds"] for line in step["lines"]) == pytest.approx(step["total_s"], rel=1e-6)
            assert any(line["term"] == "drafts" for line in step["lines"])
        assert any("2.18" in rule for rule in pool["equations"])


@pytest.mark.slow
def test_commands_of_all_engines_draft():
    # TensorRT-LLM starts no ranks of several chips each.
    said = " ".join(run(f"{ASKED} --tp 8 --drafts 2 --launch all").stdout.replace("\\\n", " ").split())
    assert """--speculative-config '{"method":"mtp","num_speculative_tokens":2}'""" in said
    window = (
        "--speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
    )
    assert window in said
    assert '"speculative_config": { "decoding_type": "MTP", "num_nextn_predict_layers": 2' in said
    assert "--speculative-" not in run(f"{ASKED} --launch all").stdout


@each(
    "words, message",
    [
        ("--acceptance 1.8", "--acceptance: needs speculative tokens, got none"),
        ("--drafts many", "from 0 to 8, or auto, got 'many'"),
        ("--drafts 2 --acceptance 0.85", "with drafts 2 (drafts + 1), got 0.85"),
        ("--drafts auto --acceptance 1.8", "got auto"),
        ("--drafts 9", "at most 8"),
    ],
)
def test_what_makes_no_sense_gets_one_message(words, message):
    refused = run(f"{ASKED} {words}")
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.split())


# --- EAGLE-3 heads and draft models ---------------------------------------------------------------------------------------

STEP = "step llama-3.3-70b hgx-h100 --tp 8 --batch 8 --context 2000"
PLAN = "plan llama-3.3-70b hgx-h100 --input 1000 --output 300 --mode aggregated --chips 8 --tp 4"
SIMULATED = "simulate llama-3.3-70b hgx-h100 --tp 8 --rate 2 --requests 100 --input 1000 --output 100"


def answer(words):
    return json.loads(run(f"{words} --json").stdout)


def test_a_step_has_its_drafting_and_yields_its_length():
    told, plain = answer(f"{STEP} --drafts 3 --draft-model eagle3"), answer(STEP)
    drafting = told["speculation"]
    assert (drafting["drafts"], drafting["method"], drafting["acceptance_range_tokens"]) == (3, "eagle3", None)
    assert drafting["draft_model"] == "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3"
    assert told["query_tokens"] == 4
    assert told["tokens_per_s_per_user"] == pytest.approx(drafting["acceptance_tokens"] / told["total_s"])
    assert 1.5 < told["tokens_per_s_per_user"] / plain["tokens_per_s_per_user"] < drafting["acceptance_tokens"]
    assert told["memory"]["weights_bytes"] > plain["memory"]["weights_bytes"]
    given = answer(f"{STEP} --drafts 3 --draft-model eagle3 --acceptance 2")
    assert given["total_s"] == told["total_s"]
    assert given["speculation"]["acceptance_tokens"] == 2


@pytest.mark.thorough
def test_a_prior_widens_the_range_of_a_plan(closed_forms):
    drafted = f"{PLAN} --drafts 3 --draft-model llama-3.2-1b"
    prior = answer(drafted)
    given = answer(f"{drafted} --acceptance {prior['speculation']['acceptance_tokens']}")
    low, high = prior["speculation"]["acceptance_range_tokens"]
    assert low < prior["speculation"]["acceptance_tokens"] < high
    assert prior["usd_per_million_output_tokens"] == pytest.approx(given["usd_per_million_output_tokens"])
    (narrow_low, narrow_high), (wide_low, wide_high) = (p["usd_per_million_output_tokens_range"] for p in (given, prior))
    assert wide_low < narrow_low < narrow_high < wide_high
    assert given["speculation"]["acceptance_range_tokens"] is None


def test_a_simulation_drafts():
    pytest.importorskip("numba")
    told, plain = answer(f"{SIMULATED} --drafts 3 --draft-model eagle3"), answer(SIMULATED)
    assert told["speculation"]["method"] == "eagle3"
    assert "speculation" not in plain


@pytest.mark.thorough
def test_launch_lines_of_a_plan_name_the_head(closed_forms):
    lines = run(f"{PLAN} --drafts 2 --draft-model eagle3 --launch vllm").stdout
    assert '"model":"RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3","num_speculative_tokens":2' in lines


@each(
    "given, message",
    [
        ("--drafts 0 --draft-model eagle3", "--draft-model: needs speculative tokens, got 0;"),
        ("--draft-model eagle3", "--draft-model: needs speculative tokens, got none;"),
        ("--drafts 0 --acceptance 2", "--acceptance: needs speculative tokens, got 0;"),
        ("--acceptance 2", "--acceptance: needs speculative tokens, got none;"),
    ],
)
def test_drafters_without_drafts_are_refused_alike_in_every_command(given, message):
    errors = set()
    for words in (PLAN, STEP, SIMULATED):
        refused = run(f"{words} {given}")
        assert (refused.returncode, refused.stdout) == (2, "")
        errors.add(refused.stderr)
    (error,) = errors
    assert message in error


def test_a_step_that_drafts_make_slower_is_called_slower():
    shown = run(f"{STEP} --drafts 8 --draft-model eagle3 --acceptance 1.2")
    assert "% slower" in shown.stdout
    assert "speed-up" not in shown.stdout


@each(
    "words, message",
    [
        (f"{STEP} --drafts 3", "has no layers that draft tokens"),
        (f"{STEP} --drafts 3 --draft-model qwen3-0.6b", "must have the vocabulary of"),
        (f"{STEP} --drafts 3 --draft-model mtp", "has no layers that draft tokens"),
        ("step glm-4.6 hgx-h200 --tp 8 --drafts 3 --draft-model eagle3", "no shape of an EAGLE-3 head"),
        (f"{STEP} --drafts 3 --draft-model eagle3 --query 2", "query"),
        (f"{STEP} --drafts 3 --draft-model eagle3 --acceptance 5", "from 1 to 4 tokens per step"),
        (f"{PLAN} --draft-model eagle3", "needs speculative tokens, got none"),
        (f"{PLAN} --drafts auto --draft-model qwen3-0.6b", "must have the vocabulary of"),
        (f"{SIMULATED} --drafts 2 --draft-model qwen3-0.6b", "must have the vocabulary of"),
    ],
)
def test_what_cannot_draft_gets_one_message(words, message):
    refused = run(words)
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr
