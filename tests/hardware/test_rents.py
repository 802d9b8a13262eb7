"""Rents by kind: which the files state, which a plan takes, and what a user may ask for instead."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import steptime as st
from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import find_rents, quotes
from steptime.hardware.rental_prices import KINDS, has_rent, kind_in_words, origin_in_words, rent_in_words, rents_by_kind
from steptime.hardware.system import Rent, System
from tests.conftest import each, machine

HOUR = 3600


@pytest.fixture(scope="module")
def systems() -> list[System]:
    return [st.load_system(name) for name in files("systems")]


def test_the_rents_that_plans_take_and_their_kinds(systems):
    """What the files say: InferenceX' corrected three-year contracts, lists on demand, blocks, and DeepSeek's assumption."""
    found = {s.name: (round(s.rent.typical * HOUR, 3), kind_in_words(s.rent)) for s in systems if has_rent(s.rent)}
    assert found["hgx-h100"] == (2.0, "three-year contract")
    assert found["vr200-nvl72"] == (8.5, "three-year contract")
    assert found["tpu-v6e"] == (2.7, "on demand")
    assert found["hgx-a100"] == (2.736, "on demand (serverless)")
    assert found["trn2-16"] == (2.235, "capacity-block contract")
    assert found["hgx-h800"] == (2.0, "assumed by its source, kind not stated")


def test_ownership_of_one_owner_is_told_apart_from_rents(systems):
    """The hyperscaler column of September 2026, by which H200 costs less a FLOP than by its contract."""
    owned = {s.name: round(rents_by_kind(s)["owned"].typical * HOUR, 2) for s in systems if "owned" in rents_by_kind(s)}
    assert {name: owned[name] for name in ("hgx-h100", "hgx-h200", "hgx-b200", "mi300x-8", "tpu7x")} == {
        "hgx-h100": 1.17, "hgx-h200": 1.22, "hgx-b200": 1.73, "mi300x-8": 0.95, "tpu7x": 1.03,
    }  # fmt: skip
    assert {rents_by_kind(s)["owned"].owner for s in systems if "owned" in rents_by_kind(s)} == {"hyperscaler"}


def test_every_quote_has_a_kind_and_a_contract_its_term():
    for quote, date, figure in quotes():
        assert quote.kind in KINDS
        assert date >= "2025"
        assert bool(quote.term) == (quote.kind == "contract" or "serverless" in figure.note), quote
        assert bool(quote.owner) == (quote.kind == "owned"), quote


def test_a_rent_lies_among_the_quotes_of_its_own_kind(systems):
    for system in systems:
        for rent in system.rents:
            mine = [f.value for q, _, f in quotes() if (q.chip, q.kind, q.owner) == (system.chip.name, rent.kind, rent.owner)]
            assert min(mine) <= rent.low <= rent.typical <= rent.high <= max(mine)
            assert (rent.grade, rent.date) in {
                (f.grade, f.date) for q, _, f in quotes() if (q.chip, q.kind) == (system.chip.name, rent.kind)
            }
        assert not system.rents or system.rents[0] == system.rent


def test_the_kind_that_is_asked_for_is_taken():
    h100 = st.load_system("hgx-h100")
    owned, contract = st.with_rent(h100, "owned"), st.with_rent("hgx-h100", "contract")
    assert (owned.rent.kind, owned.rent.typical * HOUR) == ("owned", pytest.approx(1.17))
    assert contract == h100
    assert st.with_rent(h100, "On-Demand").rent.kind == "ondemand"
    mine = st.with_rent(h100, "2.10").rent
    assert (mine.kind, mine.grade, mine.typical * HOUR) == ("given", "given", pytest.approx(2.1))
    assert st.with_rent(h100, "2.1 USD/h").rent == mine
    assert st.with_rent(st.with_rent(h100, "owned"), "contract") == h100


@each(
    "asked, says",
    [
        ("ownd", "unknown kind of rent 'ownd'; did you mean owned"),
        ("", "unknown kind of rent ''. A rent is owned, contract, ondemand, or USD per chip-hour such as 2.10"),
        ("-1", "rent: must be greater than 0 USD/h, got '-1'"),
        ("0", "rent: must be greater than 0 USD/h"),
        ("1e12", "rent: must be from"),
        ("2 GB", r"USD per chip-hour, such as 2.10 or '2.10 USD/h', got '2 GB'"),
        ("2.10 EUR", r"USD per chip-hour, such as 2.10 or '2.10 USD/h', got '2.10 EUR'"),
        ("$-1", "rent: must be greater than 0 USD/h"),
        ("assumed", r"known: contract \(2.00 USD/h\), owned \(1.17 USD/h\), ondemand \(6.88 USD/h\)"),
    ],
)
def test_a_rent_that_is_none_is_refused_with_what_there_is(asked, says):
    with pytest.raises(st.InputError, match=says):
        st.with_rent("hgx-h100", asked)


@each(
    "words",
    [
        "2.10",
        "$2.10",
        "$ 2.10",
        "2.10 $",
        "2.10/h",
        "$2.10/hr",
        "2.10 USD/hour",
        "2.10USD/h",
        "2.10 USD per hour",
        "0.035 USD/min",
    ],
)
def test_a_rent_is_read_as_people_write_it(words):
    assert float(st.with_rent("hgx-h100", words).rent.typical) == pytest.approx(2.10 / 3600)


def test_a_bare_number_is_usd_per_chip_hour_wherever_python_takes_a_rent(closed_forms):
    per_second = pytest.approx(2.1 / 3600)
    work, slo = st.Workload(input_tokens=500, output_tokens=100), st.Slo(speed=40)
    assert float(st.with_rent("hgx-h100", 2.1).rent.typical) == per_second
    assert float(st.vary("hgx-h100", {"rent": 2.1}).rent.typical) == per_second
    assert float(st.compare("llama-3.1-8b", "hgx-h100", work, slo, rent=2.1).standings[0].rent.typical) == per_second
    asked = {
        "model": "llama-3.1-8b",
        "system": "hgx-h100",
        "context": 1024,
        "engine": "ideal",
        "answers": ["usd_per_million_tokens"],
    }
    held = st.sweep("step", {"batch": [8]}, rent=2.1, **asked)
    text = st.sweep("step", {"batch": [8]}, rent="2.1 USD/h", **asked)
    axis = st.sweep("step", {"rent": [2.1, "4.2 USD/h"]}, batch=8, **asked)
    cost = text.answers["usd_per_million_tokens"].values.ravel()[0]
    assert held.answers["usd_per_million_tokens"].values.ravel() == pytest.approx([cost])
    assert axis.answers["usd_per_million_tokens"].values.ravel() == pytest.approx([cost, 2 * cost])


@each("odd", [True, None, [2.1]])
def test_with_rent_of_no_amount_is_refused(odd):
    with pytest.raises(st.InputError, match="rent: must be a kind, or USD per chip-hour"):
        st.with_rent("hgx-h100", odd)


def test_vary_with_a_rent_in_usd_per_second_is_refused():
    with pytest.raises(st.InputError, match="rent"):
        st.vary("hgx-h100", {"rent": 2.1 / 3600})


def test_with_rent_without_a_system_or_a_kind_is_refused():
    with pytest.raises(st.InputError, match="known: none"):
        st.with_rent("cs-3", "owned")
    with pytest.raises(st.InputError, match="system: must be a name"):
        st.with_rent(3, "owned")


def test_rents_in_words():
    assert rent_in_words(Rent(typical=2 / HOUR, kind="contract", term="three-year", date="2026-09-08", grade="reported")) == (
        "2.00 USD/h per chip, three-year contract, 2026-09-08, reported"
    )
    assert origin_in_words(Rent(typical=1.0, kind="given", grade="given")) == "as given"
    assert kind_in_words(Rent(kind="contract")) == "contract"
    assert kind_in_words(Rent(kind="owned")) == "cost of ownership"
    assert not has_rent(Rent())
    assert st.vary(machine(), {"rent": 1.0}).rent.kind == "given"


RENTS = """
name = "mine"
date = "2026-06-01"
[sources.page]
url = "https://example.com"
date = "2026-05-30"
grade = "vendor"
"""


def quote(kind: str, rate: str, more: str = "") -> str:
    return f'[[quotes]]\nchip = "h100"\nkind = "{kind}"\n{more}\nrate = {{ value = "{rate} USD/h", from = "page" }}\n'


def catalogue(folder, text: str):
    (folder / "rents").mkdir()
    (folder / "rents" / "mine.toml").write_text(RENTS + text, encoding="utf-8")
    return folder


def test_the_best_grade_then_the_newest_is_taken_and_contracts_of_equal_rank_first(tmp_path):
    """A vendor's own list outranks what is reported later; of both kinds in it the contract is reckoned with."""
    mine = catalogue(tmp_path, quote("ondemand", "4") + quote("contract", "3", 'term = "one-year"') + quote("owned", "1"))
    first, *others = find_rents("h100", mine)
    assert (first.kind, first.term, first.date) == ("contract", "one-year", "2026-05-30")
    assert first.typical * HOUR == pytest.approx(3)
    assert {one.kind: round(one.typical * HOUR, 2) for one in others} == {"owned": 1.0, "ondemand": 4.0}
    assert find_rents("nobody's", mine) == ()


def test_the_median_of_equal_quotes_and_the_range_of_a_year(tmp_path):
    mine = catalogue(tmp_path, quote("contract", "3") + quote("contract", "5") + quote("contract", "9"))
    rent = find_rents("h100", mine)[0]
    assert (rent.typical * HOUR, rent.high * HOUR) == (pytest.approx(5), pytest.approx(9))
    assert rent.low * HOUR == pytest.approx(1.3)  # April 2026; quotes after the list's date are none of that year


def test_without_rents_the_cost_of_ownership_is_taken(tmp_path):
    mine = catalogue(tmp_path, quote("owned", "1").replace('"h100"', '"gh200x"'))
    assert [rent.kind for rent in find_rents("gh200x", mine)] == ["owned"]


def test_a_kind_that_no_file_may_state_is_refused_by_line(tmp_path):
    with pytest.raises(st.InputError, match=r"mine.toml:\d+: quotes.0.kind: .*owned"):
        find_rents("h100", catalogue(tmp_path, quote("rental", "3")))


def test_no_rent_is_none_and_costs_are_unknown():
    plain = replace(machine(), rent=Rent())
    assert math.isnan(plain.rent.typical)
    assert "not known" in plain.headline()[1]["rent"]
