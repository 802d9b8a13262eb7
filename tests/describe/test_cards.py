"""Cards and comparisons: what the command line shows of models and systems."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for
from steptime.describe.model_summary import model_card
from steptime.describe.system_summary import physical_limits, scale_up_links
from steptime.errors import InputError
from tests.conftest import each, every

SEVERAL = "deepseek-v3 qwen3-235b-a22b kimi-k2 gpt-oss-120b Qwen/Qwen3-Next-80B-A3B-Instruct google/gemma-3-27b-it"


def shown(words: str, columns: int = 100) -> str:
    result = CliRunner().invoke(
        app_for(words.split()), words.split(), env={"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    )
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "words",
    every(
        2,
        [
            f"models --table {SEVERAL} --context 131072 --full",
            f"models {SEVERAL} --full",
            "models deepseek-v3",
            "models google/gemma-3-27b-it",
        ],
    ),
)
def test_tables_and_cards_keep_to_the_width(words, columns):
    text = shown(words, columns)
    assert max(map(len, text.splitlines())) <= columns
    assert len(text.splitlines()) <= 40
    full = shown(f"{words} --full", columns)
    assert max(map(len, full.splitlines())) <= columns
    assert "\u2588" in full, "a picture of the cache"


def test_the_comparison_has_every_figure():
    found = json.loads(shown("models --table deepseek-v3 google/gemma-3-27b-it --context 100000 --json"))
    assert found["schema"] == "steptime.comparison/2"
    deepseek, gemma = found["models"]
    assert deepseek["kv_bytes_per_token"] == 70_272
    assert deepseek["cache_bytes_at_context"] == 70_272 * 100_000
    assert deepseek["context_of_equal_reads_tokens"] == pytest.approx(deepseek["weight_bytes"] / 70_272, rel=1e-3)
    assert gemma["cache_bytes_at_context"] == 81_920 * 100_000 + (507_904 - 81_920) * 1_024
    assert gemma["active_share"] == gemma["active_parameters"] / gemma["total_parameters"]
    assert gemma["decode_flop_per_token"] > 2 * (gemma["active_parameters"] - 1.5e9)


def test_like_chooses_what_is_compared():
    rows = json.loads(shown("models --table --like gpt-oss --json"))
    assert [row["name"] for row in rows["models"]] == ["openai/gpt-oss-120b", "openai/gpt-oss-20b"]
    with pytest.raises(InputError, match="no-such-model"):
        shown("models --table --like no-such-model")


def test_a_card_sets_the_count_against_the_makers_figure():
    text = " ".join(shown("models deepseek-v3", 160).split())
    assert "published 37.0 B, the count is 1.5 % higher" in text
    assert "vendor" in text
    card = model_card(st.load_model("deepseek-v3"), context=8192)
    assert card.counted_over_published["total"] == pytest.approx(1, abs=1e-3)
    assert [row.bytes for row in card.cache_bytes] == [70_272 * row.context for row in card.cache_bytes]


@each(
    "name, count",
    [
        ("gb200-nvl72", 72 * 18),
        ("hgx-h100", 8 * 18),
        ("hgx-a100", 8 * 12),
        ("mi300x-8", 8 * 7 / 2),  # a full mesh of eight: 28 pairs
        ("tpu-v5p", 8960 * 6 / 2),
        ("rtx-4090-8", 8),
    ],
)
def test_scale_up_links(name, count):
    assert scale_up_links(st.load_system(name))["count"] == count


def test_four_copper_pairs_a_link_are_the_cables_of_the_rack():
    """SemiAnalysis, GB200 hardware architecture: 72 x 18 links of 4 pairs are 5,184 cables."""
    system = st.load_system("gb200-nvl72")
    assert 4 * scale_up_links(system)["count"] == system.rack["cables"]


def test_the_nearest_physical_limit():
    limits = physical_limits(st.load_system("gb200-nvl72"))
    assert limits["nearest"] == "weight"
    assert limits["used"]["weight"]["share"] == pytest.approx(1360 / 1400)
    assert limits["used"]["power"]["share"] == pytest.approx(120 / 132)
    assert limits["used"]["cables"]["share"] is None
    assert physical_limits(st.load_system("hgx-h100")) == {"used": {}, "nearest": None}
    assert "weight, 1,360 kg of 1,400 kg (97 %)" in shown("systems gb200-nvl72", 160)
    assert "physical limit" not in shown("systems hgx-h100"), "a row without a value is left out"
    assert "rack.weight_limit" in shown("systems gb200-nvl72 --full")


def test_every_limit_and_link_has_a_source():
    for name in ("gb200-nvl72", "gb300-nvl72", "vr200-nvl72", "hgx-h100", "mi300x-8", "tpu7x"):
        system = st.load_system(name)
        for key in set(system.rack) - {"chips"}:
            figure = system.figures[f"rack.{key}"]
            assert figure.url.startswith("https://")
            assert math.isfinite(figure.value)
