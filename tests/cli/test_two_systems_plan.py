"""`plan --prefill-system` as a user types it."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import run
from tests.conftest import each
from tests.launch.reading import commands

PLAN = "plan llama-3.1-8b hgx-h200 --chips 2 --input 2k --output 256 --speed 50 --ttft 1 "
PAIR = PLAN + "--prefill-system hgx-h100 --prefill-chips 2 "


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.thorough
def test_json_of_a_pair_has_both_systems_and_what_each_costs_alone(closed_forms):
    shown = run(PAIR + "--rent owned --prefill-rent 1.50 --json")
    assert shown.returncode == 0, shown.stderr
    data = json.loads(shown.stdout)
    assert (data["system"], data["chips"], data["prefill_system"], data["prefill_chips"]) == ("hgx-h200", 2, "hgx-h100", 2)
    assert (data["rent"]["kind"], data["prefill_rent"]["kind"]) == ("owned", "given")
    rent = 2 * data["rent"]["typical_usd_per_s"] + 2 * 1.5 / 3600
    assert data["rent_usd_per_s"] == pytest.approx(rent)
    cost = rent / (data["requests_per_s"] * 256) * 1e6
    assert data["usd_per_million_output_tokens"] == pytest.approx(cost)
    assert [single["system"] for single in data["single_systems"]] == ["hgx-h200", "hgx-h100"]
    prefill, decode, router = commands(data["launch"]["vllm"])
    assert '"kv_role":"kv_producer"' in prefill.one("--kv-transfer-config")
    assert '"kv_role":"kv_consumer"' in decode.one("--kv-transfer-config")
    assert router.program == "vllm-router"
    assert "host 0: hgx-h100, host 1: hgx-h200" in " ".join(data["launch"]["vllm"])


def test_one_system_on_both_sides_is_named_once(closed_forms):
    shown = run(PLAN + "--prefill-system hgx-h200 --prefill-chips 2")
    assert shown.returncode == 0, shown.stderr
    text = words(shown.stdout)
    assert "on 4 chips of hgx-h200 (2 for prefill, 2 for decode)" in text
    assert "On hgx-h200 without fixed pools (8 chips in whole hosts," in text
    assert "published runs of such a pair" not in text


def test_text_of_a_pair_names_both_systems_and_the_missing_evidence(closed_forms):
    shown = run(PAIR + "--simulate --explain")
    assert shown.returncode == 0, shown.stderr
    text = words(shown.stdout)
    assert "2 chips of hgx-h100 for prefill and 2 chips of hgx-h200 for decode" in text
    assert "Nobody has published runs of such a pair." in text
    assert "On hgx-h100 alone" in text
    assert "Figures of hgx-h100" in text


@each(
    "options, message",
    [
        ("--prefill-chips 8", "--prefill-chips: needs another system"),
        ("--prefill-rent 2", "--prefill-rent: needs another system"),
        ("--prefill-system hgx-h100 --mode aggregated", "--mode: pools on two systems are separate"),
        ("--prefill-system mi300x-8", "--prefill-system: engines move KV caches between chips of one vendor"),
        ("--prefill-system hgx-h10", "--prefill-system: unknown system 'hgx-h10'"),
        ("--prefill-system hgx-h100 --prefill-rent abc", "--prefill-rent: unknown kind of rent 'abc'"),
        ("--prefill-system hgx-h100 --sessions chat", "leave out --prefill-system, or --sessions"),
    ],
)
def test_what_a_pair_cannot_do_is_refused_in_one_message(options, message):
    shown = run(PLAN + options)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert message in words(shown.stderr)
