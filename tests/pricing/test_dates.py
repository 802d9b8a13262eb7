"""Prices of a day and an hour: from genai-prices, and without it from the shipped rows and facts."""

from __future__ import annotations

import importlib.util

import pytest

from steptime.errors import InputError, RangeError
from steptime.pricing import genai_prices_package
from steptime.pricing.bundled_prices import match_family, open_rows
from steptime.pricing.price_lookup import find_list, find_offers
from tests.conftest import each

HAVE = importlib.util.find_spec("genai_prices") is not None
WAYS = [
    pytest.param(True, marks=pytest.mark.skipif(not HAVE, reason="genai-prices (extra [prices]) is not installed")),
    False,
]


@pytest.fixture(params=WAYS, ids=["package", "shipped"])
def way(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(genai_prices_package, "installed", lambda: False)
    return request.param


@pytest.mark.parametrize(("day", "tiers"), [("2026-03-01", 2), ("2026-03-12", 2), ("2026-03-13", 1), ("2026-03-20", 1)])
def test_the_tier_of_opus_went(way, day, tiers):
    found = find_list("anthropic/claude-opus-4-6", price_time=day)
    assert len(found.service_rates()) == tiers
    assert (found.base.input, found.base.output) == (5, 25)
    if tiers == 2:
        assert (found.service_rates()[1].above_tokens, found.service_rates()[1].input, found.service_rates()[1].output) == (
            200_000,
            10,
            37.5,
        )


@each(
    "hour, paid",
    [
        ("2026-11-20T00:59Z", (0.66, 1.98, 0.022)),  # a Friday
        ("2026-11-20T02:00Z", (1.32, 3.96, 0.044)),
        ("2026-11-20T04:00Z", (0.66, 1.98, 0.022)),
        ("2026-11-20T09:59Z", (1.32, 3.96, 0.044)),
        ("2026-11-20T12:00Z", (0.66, 1.98, 0.022)),
        ("2026-11-21T02:00Z", (0.66, 1.98, 0.022)),  # a Saturday
        ("2026-11-22T08:00Z", (0.66, 1.98, 0.022)),
        ("2026-11-23T02:00Z", (1.32, 3.96, 0.044)),
        ("2026-05-20T12:00Z", (1.74, 3.48, 0.145)),  # before the cut of 2026-05-25
        ("2026-06-20T02:00Z", (0.435, 0.87, 0.003625)),  # before there were peaks
    ],
)
def test_peaks_of_deepseek(way, hour, paid):
    base = find_list("deepseek/deepseek-v4-pro", price_time=hour).base
    assert (base.input, base.output, base.cache_read) == pytest.approx(paid)


@pytest.mark.parametrize(("day", "paid"), [("2026-12-31", (0.75, 3.75)), ("2027-01-01", (1.5, 7.5))])
def test_a_promotion_ends_on_its_day(way, day, paid):
    base = find_list("google/gemini-3.6-flash", price_time=day).base
    assert (base.input, base.output) == paid


def test_a_day_before_the_first_row(way):
    with pytest.raises(RangeError, match="first known price is from 2026-02-05"):
        find_list("anthropic/claude-opus-4-6", price_time="2025-01-01")
    with pytest.raises(RangeError, match="first known price is from"):
        find_offers("deepseek-v3", price_time="2020-01-01")


def test_the_present_list_of_a_closed_model(way):
    found = find_list("openai/gpt-6-sol")
    assert [(line.above_tokens, line.input, line.output) for line in found.service_rates()] == [(0, 2, 10), (272_000, 4, 15)]
    assert (found.hold, found.hold_long) == (1800, 43_200)
    assert found.service_rates("batch")[0].output == 5


def test_facts_that_no_package_has(way):
    assert find_list("google/gemini-2.5-pro").storage == 4.5
    assert find_list("anthropic/claude-opus-4-6").speeds == {"fast": 2.5}


def test_old_data_say_how_old():
    assert any("days before" in note for note in find_list("openai/gpt-6-sol", price_time="2027-03-01").notes)


@each(
    "name, family",
    [
        ("glm-4.5", "glm-4.5"), ("glm-4.5-air", "glm-4.5-air"), ("zai-org/GLM-4.5-Air", "glm-4.5-air"), ("kimi-k2", "kimi-k2"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"), ("qwen3-coder", ""), ("qwen3-coder-next", ""), ("glm-4", ""),
        ("accounts/fireworks/models/glm-4p7", "glm-4.7"), ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"), ("Qwen/Qwen3-30B-A3B-FP8", "qwen3-30b-a3b"),
    ],
)  # fmt: skip
def test_names_match_whole(name, family):
    assert match_family(name)[0] == family


def test_variants_are_products_of_their_own():
    assert match_family("deepseek-r1-0528") == ("deepseek-r1", "@0528")
    assert match_family("kimi-k2.5-turbo") == ("kimi-k2.5", "turbo")
    assert match_family("glm-5.3-fp4") == ("glm-5.3", "fp4")
    assert match_family("GLM-5.3-FP8") == ("glm-5.3", "")


@pytest.mark.thorough
@pytest.mark.skipif(not HAVE, reason="genai-prices (extra [prices]) is not installed")
def test_the_package_and_the_normaliser_agree():
    """`find_model` matches beginnings of names: wherever it and the normaliser disagree, its answer is not taken."""
    from datetime import UTC, datetime

    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    names = sorted({(row.catalogue, row.family) for row in open_rows()})
    agreed = 0
    for seller in genai_prices_package.snapshot().providers:
        for catalogue, _ in names:
            found = seller.find_model(catalogue)
            if found is None:
                continue
            ours = match_family(found.id)
            taken = genai_prices_package.find(genai_prices_package.NAMES.get(seller.id, seller.id), catalogue, at)
            if ours[0] and ours == match_family(catalogue):
                agreed += 1
            elif ours[0]:
                assert taken is None, (seller.id, catalogue, found.id)
    assert agreed >= 73


@pytest.mark.skipif(not HAVE, reason="genai-prices (extra [prices]) is not installed")
def test_the_network_is_used_for_update_alone(monkeypatch):
    import genai_prices

    def fetch(_):
        raise OSError("no network")

    monkeypatch.setattr(genai_prices.UpdatePrices, "fetch", fetch)
    monkeypatch.setattr(genai_prices.UpdatePrices, "start", fetch)
    genai_prices_package._fetched.cache_clear()
    assert find_list("openai/gpt-6-sol").base.input == 2
    with pytest.raises(InputError, match="could not fetch prices: no network"):
        find_list("openai/gpt-6-sol", update=True)


@pytest.mark.skipif(not HAVE, reason="genai-prices (extra [prices]) is not installed")
def test_where_sources_disagree_both_stand():
    rows = [one for one in find_offers("deepseek-v3.2") if one.provider == "deepseek"]
    assert len({(one.input, one.output) for one in rows}) == len(rows)
    assert len({one.source for one in find_offers("deepseek-v4-flash")}) >= 2
