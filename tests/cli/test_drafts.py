"""Drafts as a user types them: what is printed, launched and refused."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import run

ASKED = "plan deepseek-v3 hgx-h200 --input 2000 --output 500 --speed 30 --mode aggregated"


@pytest.mark.slow
def test_a_plan_says_what_is_drafted_and_what_that_does_at_each_batch():
    said = " ".join(run(f"{ASKED} --drafts 2 --full").stdout.split())
    assert "Speculative decoding: 2 " in said
    assert "(reported: DeepSeek-V3 in SGLang" in said
    assert "Speculative decoding at each batch" in said
    assert "Speculative decoding" not in run(ASKED).stdout


def test_json_has_the_drafting_and_explained_steps_that_add_up():
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
    said = " ".join(run(f"{ASKED} --drafts 2 --launch all").stdout.replace("\\\n", " ").split())
    assert """--speculative-config '{"method":"mtp","num_speculative_tokens":2}'""" in said
    window = (
        "--speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
    )
    assert window in said
    assert '"speculative_config": { "decoding_type": "MTP", "num_nextn_predict_layers": 2' in said
    assert "--speculative-" not in run(f"{ASKED} --launch all").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--acceptance 1.8", "needs a number of drafts"),
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
