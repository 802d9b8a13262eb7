"""Two sources of a list as one: nothing that either holds is lost, and where they disagree both are told."""

from __future__ import annotations

import importlib.util
import math

import pytest

from steptime.pricing import genai_prices_package
from steptime.pricing.bundled_prices import Row, closed_rows
from steptime.pricing.price_list import PRICES, PriceList, Rates, joined, shipped_leads
from steptime.pricing.price_lookup import find_list
from tests.conftest import each

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("genai_prices") is None, reason="genai-prices (extra [prices]) is not installed"
)


def listed(*rates, source="package 1", as_of="2026-11", model="m"):
    return PriceList(provider="a", model=model, rates=rates, source=source, retrieval_date=as_of)


def own(*rates, model="m"):
    return listed(*rates, source="maker", as_of="2026-10-20", model=model)


def dated(*rows):
    return [Row(provider="a", model="m", since=day, input=i, output=o, grade=grade) for day, i, o, grade in rows]


def test_what_one_lacks_is_of_the_other():
    package = listed(Rates(input=5.0, output=25.0, cache_write=6.25))
    mine = own(
        Rates(input=5.0, output=25.0, cache_write=6.25, cache_write_long=10.0, source="maker, 2026-10"),
        Rates(service="fast", input=30.0, output=150.0, source="pages, 2026-04"),
    )
    found = joined(package, mine, [])
    assert (found.base.cache_write_long, found.service_rates("fast")[0].output) == (10, 150)
    assert found.base.source == "long cache writes: maker, 2026-10"
    assert found.service_rates("fast")[0].source == "pages, 2026-04"
    assert any("package 1" in note and "fast (pages, 2026-04)" in note for note in found.notes)


def test_prices_of_a_line_that_costs_otherwise_are_not_mixed():
    batch = Rates(service="batch", input=2.5, output=12.5)
    mine = own(Rates(input=5.0, output=25.0), Rates(service="batch", input=3.0, output=15.0, cache_write_long=6.0))
    found = joined(listed(Rates(input=5.0, output=25.0), batch), mine, [])
    assert found.service_rates("batch") == (batch,)
    assert any("disagree on batch: package 1 of 2026-11 says 2.5/12.5" in note for note in found.notes)


@each(
    "rows, leads",
    [
        ([("2026-10-06", 0.68, 2.09, "reported"), ("2026-10-20", 1.36, 4.18, "vendor")], True),  # its maker's page
        ([("2026-10-06", 0.68, 2.09, "reported"), ("2026-10-20", 1.36, 4.18, "reported")], True),  # 0.70/2.10 was the first
        ([("2026-10-20", 1.36, 4.18, "reported")], False),
        ([("2026-10-20", 9.0, 9.0, "vendor")], False),
    ],
)
def test_who_leads(rows, leads):
    package, mine = listed(Rates(input=0.7, output=2.1)), own(Rates(input=1.36, output=4.18))
    assert shipped_leads(package, mine, dated(*rows)) is leads
    found = joined(package, mine, dated(*rows))
    assert found.base == (mine if leads else package).base
    note = found.notes[-1]
    for words in ("0.7/2.1", "1.36/4.18", "package 1 of 2026-11", "maker of 2026-10-20"):
        assert words in note


def test_a_name_that_the_package_knows_by_its_beginning_alone():
    assert shipped_leads(
        listed(Rates(input=1.0, output=2.0), model="m-1"), own(Rates(input=2.0, output=4.0), model="m-1-8b"), []
    )


@pytest.mark.thorough
@needs_package
def test_the_package_takes_nothing_away(monkeypatch):
    """Of every closed model each service, tier and price of caches of the shipped rows stands in the list with the package."""
    names = sorted({(row.provider, row.model) for row in closed_rows()})
    withs = {name: find_list("/".join(name)) for name in names}
    monkeypatch.setattr(genai_prices_package, "installed", lambda: False)
    for name in names:
        for line in find_list("/".join(name)).rates:
            twin = next(
                (r for r in withs[name].service_rates(line.service) if abs(r.above_tokens - line.above_tokens) <= 1), None
            )
            assert twin is not None, (name, line)
            if (twin.input, twin.output) == (line.input, line.output):
                lost = [p for p in PRICES if math.isfinite(getattr(line, p)) and math.isnan(getattr(twin, p))]
                assert not lost, (name, line.service, lost)
            else:
                assert any("disagree" in note for note in withs[name].notes), name


@needs_package
@pytest.mark.parametrize(
    ("name", "paid", "said"),
    [
        ("mistral/mistral-large-4", (1.36, 4.18), ("2026-10-20", "0.7/2.1")),
        ("mistral/mistral-large-4-0", (1.36, 4.18), ("2026-10-20", "0.7/2.1")),
        ("kimi-k2-turbo", (2.4, 10), ("1.15/8", "2026-10-26")),
        ("moonshotai/kimi-k2-turbo-preview", (1.15, 8), ("2.4/10", "2025-08-08")),
        ("deepseek/deepseek-chat", (0.14, 0.28), ("0.27/1.1", "2026-06-06")),
        ("google/gemini-1.5-flash-8b", (0.0375, 0.15), ("0.075/0.3",)),
    ],
)
def test_both_stand_where_sources_disagree(name, paid, said):
    found = find_list(name)
    assert (found.base.input, found.base.output) == paid
    note = next(note for note in found.notes if note.startswith("sources disagree"))
    assert all(words in note for words in (*said, "genai-prices"))


@needs_package
def test_a_fast_mode_and_the_long_lifetime_are_read_with_the_package():
    from steptime.pricing.price_inversion import read_prices

    opus, sol = read_prices("anthropic/claude-opus-4-6"), read_prices("openai/gpt-6-sol")
    assert opus["fast_mode"].identifiable
    assert sol.list.base.cache_write_long == 5
    assert sol["hits_long"].value == pytest.approx(3 / 1.8)
    assert sol["hold_price_long"].value == pytest.approx(0.25)


def test_a_past_day_has_the_prices_of_caches_that_held_then(monkeypatch):
    monkeypatch.setattr(genai_prices_package, "installed", lambda: False)
    assert find_list("openai/gpt-6-sol", price_time="2026-11-01").base.cache_write_long == 5
