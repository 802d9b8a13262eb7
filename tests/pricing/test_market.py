"""A model at its sellers, its history, and a list that is proposed: what commands and Python calls answer."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from typer.testing import CliRunner

import steptime as st
from steptime.catalog.hardware_loading import load_system
from steptime.cli.main import app_for
from steptime.errors import Impossible, InputError, RangeError, UnknownName
from steptime.planning import planner
from steptime.planning.planner import MODES as EITHER
from steptime.pricing import genai_prices_package
from steptime.pricing.bundled_prices import Row, open_rows
from steptime.pricing.kv_storage_cost import holds, tiers
from steptime.pricing.market import (
    Market,
    Mix,
    family_named,
    market_caveats,
    product_caveats,
    read_mix,
    rent_on,
    system_margins,
    uncounted,
)
from steptime.pricing.price_history import price_history
from steptime.pricing.price_list import list_from
from steptime.pricing.price_lookup import Offer
from steptime.pricing.price_proposal import Point, _loaded, hold_cost_by_life, propose_prices, steps
from steptime.pricing.serving_costs import HOPPER, MAX_SYSTEMS, TokenCost, cost_on, plausible
from steptime.workload.workload import Workload, limits
from tests.conftest import each


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Answers of the shipped rows, whether or not the package is there."""
    monkeypatch.setattr(genai_prices_package, "installed", lambda: False)


@pytest.fixture(scope="module")
def llama():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(genai_prices_package, "installed", lambda: False)
        patch.setattr(planner, "find_spec", lambda name: None)
        # Each system takes a plan: three of the eight that are plausible.
        patch.setattr(
            "steptime.pricing.market.plausible",
            lambda catalog: ([load_system(n) for n in ("mi300x-8", "hgx-h200", "hgx-h100")], {}),
        )
        return st.survey_prices("llama-3.3-70b")


def test_systems_are_chosen_by_the_stated_rule():
    chosen, left = plausible()
    assert len(chosen) <= MAX_SYSTEMS
    assert set(HOPPER) <= {one.name for one in chosen}
    assert not {one.name for one in chosen} & set(left)
    assert all(left.values())
    widths = [float(one.chip.hbm.bandwidth) for one in chosen]
    assert widths == sorted(widths, reverse=True)
    assert all(one.rent.kind == "contract" for one in chosen)


@pytest.mark.parametrize(
    ("model", "system"),
    [("llama-3.1-8b", "hgx-h100"), pytest.param("qwen3-30b-a3b", "hgx-h200", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "speed", [pytest.param(15.0, marks=pytest.mark.slow), pytest.param(60.0, marks=pytest.mark.thorough), 5000.0]
)
def test_a_cost_is_the_same_without_what_other_speeds_cost(model, system, speed, closed_forms):
    given = {"model": _loaded(model, None), "workload": Workload(input_tokens=4096, output_tokens=1024)}
    whole, alone = (cost_on(load_system(system), **given, slo=limits(speed=speed), front=front) for front in (True, False))
    assert repr(alone) == repr(replace(whole, front=()))  # NaN equals nothing
    assert whole.feasible == (speed < 5000)


@pytest.mark.slow
def test_margin_is_price_over_cost(llama):
    prices = np.array(llama.prices)[list(llama.sold)]
    costs = {one.system: one.usd_per_request for one in llama.costs if one.feasible}
    for one in llama.margins:
        cost = math.sqrt(costs["hgx-h100"] * costs["hgx-h200"]) if one.system == "hopper" else costs[one.system]
        assert one.median == pytest.approx(np.median(prices) / cost)
        assert one.lowest == pytest.approx(prices.min() / cost)
        assert one.range[0] <= one.median <= one.range[1]
    assert "offer llama-3.3-70b" in llama.text
    assert "on Hopper" in llama.text


def test_survey_has_mode_chips_layout_and_aggregated_cost_of_each_system(llama):
    served = [one for one in llama.to_dict()["costs"] if one["feasible"]]
    assert served
    for one in served:
        assert one["mode"] in EITHER
        assert one["chips"] > 0
        assert one["layout"]
        assert one["aggregated_usd_per_request"] >= one["usd_per_request"] * (1 - 0.03)  # the accuracy of a rate
        assert one["mode"] == "disaggregated" or one["aggregated_usd_per_request"] == pytest.approx(
            one["usd_per_request"], rel=0.03
        )


@pytest.mark.thorough
def test_survey_plan_and_compare_at_the_same_chips_give_one_cost(llama, closed_forms):
    cost = next(one for one in llama.costs if one.system == "hgx-h200")
    weights = "fp8" if llama.weights == "fp8" else ""
    asked = (llama.mix.workload(), limits(speed=llama.speed))
    model = st.load_model(llama.model, weights=weights)
    options = {"chips": cost.chips, "evidence": llama.evidence}
    planned = st.plan(model, "hgx-h200", *asked, **options, alternatives=False, elasticities=False)
    compared = st.compare(model, ["hgx-h200"], *asked, **options).standings[0]
    assert (planned.mode, planned.layout_text, planned.evidence) == (cost.mode, cost.layout_text, cost.evidence)
    assert planned.ttft == cost.ttft
    assert planned.usd_per_request == pytest.approx(cost.usd_per_request)
    assert compared.usd_per_million_output_tokens == pytest.approx(planned.usd_per_million_output_tokens)


def test_costs_of_all_systems_have_layouts_of_one_evidence(llama):
    assert llama.evidence == "published"
    assert {cost.evidence for cost in llama.costs if cost.feasible} <= {"measured", "published"}
    hopper = {cost.system: cost.usd_per_request for cost in llama.costs if cost.system in ("hgx-h100", "hgx-h200")}
    assert hopper["hgx-h200"] < hopper["hgx-h100"] * 1.5


def test_margin_in_aggregated_mode_is_the_one_that_priors_are_fitted_on(llama):
    alone = {one.system: one.aggregated_usd_per_request for one in llama.costs if one.feasible}
    for one in llama.margins:
        cost = math.sqrt(alone["hgx-h100"] * alone["hgx-h200"]) if one.system == "hopper" else alone[one.system]
        assert one.aggregated == pytest.approx(llama.median_price / cost)


@pytest.mark.parametrize("factor", [0.5, 3])
def test_margins_scale_with_prices(llama, factor):
    scaled = replace(llama, prices=tuple(factor * price for price in llama.prices))
    for before, after in zip(llama.margins, system_margins(scaled), strict=True):
        assert after.system == before.system
        assert after.median == pytest.approx(factor * before.median)
        assert after.range == pytest.approx(tuple(factor * end for end in before.range))
        assert (after.lowest, after.highest) == pytest.approx((factor * before.lowest, factor * before.highest))


def test_holding_times_are_proportional_to_what_pays_them(llama):
    one, two = (holds(llama.kv_bytes, times * 0.04, times * 0.07, tiers()) for times in (1, 2))
    for before, after in zip(one, two, strict=True):
        assert after.hit_pays == pytest.approx(2 * before.hit_pays)
        assert after.break_even == pytest.approx(2 * before.break_even)
        assert after.usd_per_mtok_hour == before.usd_per_mtok_hour


def test_a_request_is_priced_by_hand(llama):
    """Groq, 0.59 in and 0.79 out: 4,096 x 0.59 + 1,024 x 0.79 = 3,225.6 millionths of a dollar."""
    groq = next(at for at, one in enumerate(llama.offers) if one.provider == "groq" and not one.variant)
    assert llama.prices[groq] == pytest.approx(3225.6e-6)
    row = Row(provider="a", model="m", input=1.0, output=2.0, cache_read=0.1)
    assert Mix(cached_share=0.5).price(row) == pytest.approx((2048 + 204.8 + 2048) / 1e6)


def test_one_row_of_each_seller_counts(llama):
    sold = [llama.offers[at] for at in llama.sold]
    assert len({one.provider for one in sold}) == len(sold)
    assert not any(one.role == "reseller" for one in sold)


def market(*offers, **more):
    """Return a market of offers (provider, role, variant, price, read), a token in for each request."""
    made = tuple(
        Offer(
            provider=name,
            role=role,
            variant=variant,
            input=price,
            output=price,
            cache_read=math.nan,
            retrieval_date=read,
            agreeing=n,
        )
        for name, role, variant, price, read, n in offers
    )
    prices = tuple(one.input for one in made)
    return Market(
        model="m", family="m", weights="native", mix=Mix(), speed=40.0, offers=made, prices=prices, costs=(), margins=(),
        left_out={}, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("served", "words"), [(("hgx-h100", "hgx-h200"), "H100 and H200"), (("hgx-h200",), "hgx-h200"), ((), "")]
)
def test_a_mean_on_hopper_names_the_systems_that_serve_the_model(served, words):
    costs = [TokenCost(system=name, feasible=name in served, usd_per_request=0.5) for name in ("tpu7x", *HOPPER)]
    sold = replace(market(("a", "host", "", 1.0, "2026-11", 1)), costs=tuple(costs))
    assert sold.hopper_words == words
    assert {margin.system for margin in system_margins(sold)} == {*served, *(["hopper"] if served else [])}


@pytest.mark.parametrize(
    ("name", "mix", "words"),
    [
        ("kimi-k2-thinking", "4096:1024", ["moonshotai/Kimi-K2.5"]),
        ("gpt-oss-120b", "1M:1k:0.9", ["requests of 1,001,000 tokens exceed the model's context of 131,072"]),
        ("gpt-oss-120b", "4096:1024", []),
    ],
)
def test_costs_of_another_model_and_requests_beyond_the_context_have_notes(name, mix, words):
    product = family_named(name)
    notes = product_caveats(product, product.load(None), read_mix(mix))
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


SOLD = (
    ("a", "host", "", 1.0, "2026-11", 1),
    ("b", "host", "", 3.0, "2026-11", 2),
    ("b", "host", "", 2.0, "2026-11", 1),  # of another source
    ("c", "first-party", "", 4.0, "2026-10-26", 3),
    ("d", "host", "turbo", 9.0, "2026-11", 1),
    ("e", "host", "", 0.1, "2026-05", 1),
    ("f", "reseller", "", 0.2, "2026-11", 1),
)


def test_the_median_is_of_the_sellers_that_are_counted_in_the_sentence():
    """a at 1, b at 3 (two sources tell it), c at 4: not the variant of d, nor e of May, nor the reseller f."""
    found = market(*SOLD)
    assert found.median_price == 3
    assert found.text.startswith("3 sellers offer m; ")
    (note,) = uncounted(found)
    for words in ("1 with the role reseller (f)", "1 with another variant only (d)", "1 without a price since June 2026 (e)"):
        assert words in note
    turbo = market(*SOLD, variant="turbo")
    assert turbo.median_price == 9
    assert turbo.text.startswith("1 seller offers m turbo; ")


def test_one_seller_that_is_asked_for():
    assert market(SOLD[0], provider="a").text.startswith("a offers m; a request")
    assert "at the median" not in market(SOLD[0], provider="a").text
    assert market(SOLD[4], provider="d").text.startswith("d offers m only as turbo; ")
    assert market(SOLD[6]).text.startswith("Only resellers offer m (f); ")


def test_notes_of_sources_name_what_others_say():
    one = replace(market(SOLD[0]).offers[0], disagreeing="litellm 0.5/2;models-dev 0.4/2")
    notes = market_caveats(replace(market(SOLD[0]), offers=(one,)))
    assert any(note.startswith("price sources disagree on a;") and "--csv" in note for note in notes)


def test_a_name_of_the_catalogue_is_the_model_itself():
    for model in {row.catalogue for row in open_rows()} | {row.family for row in open_rows()}:
        assert family_named(model).variant == "", model


def test_rents_of_a_day():
    rent, listed = rent_on("h100", date(2026, 5, 1))
    assert listed.startswith("2026-04")
    assert rent * 3600 == pytest.approx(1.30)
    assert math.isnan(rent_on("h100", date(2020, 1, 1))[0])


def test_history_against_rents():
    found = price_history("openai/o3")
    assert [(one.day, one.input, one.output) for one in found.rows] == [("2025-06-11", 2, 8), ("2025-06-17", 2, 8)]
    assert all(math.isnan(one.margin) for one in found.rows)
    with pytest.raises(InputError, match="no dated price"):
        price_history("gpt-oss-20b", provider="nobody")


@pytest.mark.slow
def test_a_proposal_is_proportional_to_its_margin():
    one, two = (propose_prices("llama-3.1-8b", "hgx-h100", margin=times, mix="2k:512") for times in (1, 2))
    for before, after in zip(one.lines, two.lines, strict=True):
        assert before.name == after.name
        assert after.usd == pytest.approx(2 * before.usd, nan_ok=True)
        assert before.reason
    paid = {line.name: line.usd for line in one.lines}
    assert paid["cached input"] < paid["input"] < paid["cache write, 5 minutes"]
    assert paid["hold in HBM, Mtok-hour"] > paid["hold in DRAM, Mtok-hour"] > paid["hold in disk, Mtok-hour"]
    assert paid["output, batch"] < paid["output"]
    # A hit moves 131,072 bytes at 55 GB/s into a chip of 2 USD/h that is busy 42 % of the day, and stays 5 minutes in DRAM.
    moved = 131_072 / 55e9 * float(load_system("hgx-h100").rent.typical) / one.utilisation * 1e6
    assert paid["cached input"] == pytest.approx(moved + paid["hold in DRAM, Mtok-hour"] / 12)
    assert st.read_prices(one.list).list.base.input == pytest.approx(paid["input"])


def asked(listed, context, out):
    """USD of a request without hits: the tier that its prompt falls in bills all of it."""
    rates = [one for one in listed.service_rates() if context > one.above_tokens or not one.above_tokens][-1]
    return (context * rates.input + out * rates.output) / 1e6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "system", "contexts"),
    [
        ("llama-3.3-70b", "hgx-h100", (1024, 4096, 4097, 6000, 8192, 8193, 20e3, 32768, 50e3, 65537, 100e3, 130_048)),
        ("deepseek-v3", "gb200-nvl72", (4097, 12e3, 65537, 162_816)),
    ],
)
def test_no_context_is_sold_below_the_target(model, system, contexts):
    found = propose_prices(model, system, margin=2)
    machine, loaded = load_system(system), _loaded(model, None)
    assert found.list.longest == loaded.max_context - 1024
    assert found.list.service_rates()[1].above_tokens in (4096, 8192)
    for context in contexts:
        work = Workload(input_tokens=context, output_tokens=1024, input_spread=0.0)
        cost = cost_on(machine, model=loaded, workload=work, slo=limits(speed=40), modes=EITHER)
        margin = asked(found.list, context, 1024) / (cost.usd_per_request / found.utilisation)
        assert margin >= 0.9 * found.margin, (context, margin)


def test_tiers_begin_where_cost_turns():
    """At 1.05, 1.5, 2, 3 and 2.9 times the base: its own rates to 2, then tiers that end at 8 and 32, paid at the dearest."""
    told = [(2, 1.05), (4, 1.5), (8, 2.0), (16, 3.0), (32, 2.9)]
    points = [Point(tokens, 1.0, times, None) for tokens, times in told]
    found = steps(Point(1, 1.0, 1.0, None), points)
    assert [(one.above, one.end, one.output) for one in found] == [(2, 8, 2.0), (8, 32, 3.0)]
    assert steps(Point(1, 1.0, 1.0, None), points[:1]) == []


@pytest.mark.slow
def test_a_longer_hold_never_costs_less():
    """Nor does a service above a longer context; whatever tiers of memory cost."""
    found = propose_prices("llama-3.1-8b", "hgx-h100", margin=2, mix="2k:512")
    for line in found.list.service_rates():
        assert line.input < line.cache_write < line.cache_write_long
    for service in ("fast", "batch"):
        paid = [line.output for line in found.list.service_rates(service)]
        assert paid == sorted(paid)
    for hold in ({}, {"DRAM": 1.0}, {"flash": 1e-9}, {"HBM": 1e-9}):
        (short, _), (long, _) = hold_cost_by_life(tiers(hold))
        assert 0 < short < long


def test_what_five_minutes_and_an_hour_cost_by_hand():
    """DRAM at 5e-4 USD per GB-hour for 1/12 h, then flash at 7e-6 for 11/12 h."""
    (short, where), (long, then) = hold_cost_by_life(tiers())
    assert short * 1e9 == pytest.approx(5e-4 / 12)
    assert long * 1e9 == pytest.approx(5e-4 / 12 + 7e-6 * 11 / 12)
    assert (where, then) == ("5.00 min in DRAM", "5.00 min in DRAM, then 55.0 min in flash")


@pytest.mark.slow
def test_fresh_input_pays_for_the_prompt_that_is_not_cached():
    """Half of a prompt in a cache: its chip-time is that of the other half, which the price of input is asked for."""
    found = propose_prices("llama-3.1-8b", "hgx-h100", margin=2, mix="2k:512:0.5")
    work = Workload(input_tokens=2000, output_tokens=512, cached_share=0.5)
    loaded = _loaded("llama-3.1-8b", None)
    cost = cost_on(load_system("hgx-h100"), model=loaded, workload=work, slo=limits(speed=40), modes=EITHER)
    assert found.list.base.input == pytest.approx(cost.input_usd_per_million / 0.5 * 2 / found.utilisation)


@each(
    "fields, words",
    [
        ({"input": -1, "output": 2}, "0 or more"),
        ({"input": math.nan, "output": 2}, "not a number"),
        ({"input": math.inf, "output": 2}, "must be a number of USD"),
        ({"input": 2e-6, "output": 1e-5}, "give the unit"),
        ({"input": 2e-3, "output": 1e-2}, "give the unit"),
        ({"input": 2, "output": 10, "cache_read": 3}, "more expensive than a new one"),
        ({"input": 0, "output": 0}, "free tier"),
        ({"input": 2, "output": 10, "tiers": [{"above_tokens": 2e5, "input": 0, "output": 0}]}, "free tier"),
        (
            {"input": 2, "output": 10, "tiers": [{"above_tokens": a, "input": 3, "output": 15} for a in (2e5, 1e5)]},
            "must ascend",
        ),
        ({"input": 2, "output": 10, "currency": "EUR"}, "USD"),
        ({"input": 2}, "output is missing"),
        ({"input": 2, "output": 10, "cache_read": math.nan}, "cache_read is nan"),
        ({"input": 2, "output": 10, "storage": math.nan}, "storage must be 0 or more"),
        ({"input": 2, "output": 10, "longest": math.nan}, "longest must be 0 or more"),
        ({"input": 2, "output": 10, "tiers": [{"above_tokens": math.nan, "input": 4, "output": 15}]}, "above_tokens must be"),
        ({"input": 2, "output": 10, "services": [{"name": "fast", "input": math.nan, "output": 15}]}, "fast: input is nan"),
        ({"input": "2", "output": 10}, "must be a number"),
    ],
)
def test_what_is_no_list(fields, words):
    with pytest.raises(RangeError, match=words):
        list_from(fields)


def test_units_that_are_stated():
    for name, factor in (("USD per token", 1e-6), ("USD per thousand tokens", 1e-3), ("USD per million tokens", 1)):
        base = list_from({"input": 2 * factor, "output": 10 * factor, "unit": name}).base
        assert (base.input, base.output) == pytest.approx((2, 10))
    with pytest.raises(UnknownName, match="unit of prices"):
        list_from({"input": 2, "output": 10, "unit": "EUR per word"})


def run(*words):
    return CliRunner().invoke(app_for(["prices"]), ["prices", *words])


@each(
    "words, told",
    [
        ("openia/gpt-6-sol --read", "did you mean openai"),
        ("openai/gpt-6-sool --read", "did you mean openai/gpt-6-sol"),
        ("openai/gpt-6-sol", "--read"),
        ("deepsek-v3", "did you mean deepseek-v3"),
        ("gpt2-xl", "no seller of it is known"),
        ("deepseek-v3 --provider nobody", "Sellers: "),
        ("deepseek-v3 hgx-h100", "--target-margin"),
        ("qwen3-30b-a3b-fp4", "variant fp4 of qwen3-30b-a3b"),
        ("qwen3-30b-a3b-fp4 hgx-h100 --target-margin 2", "variant fp4 of qwen3-30b-a3b"),
        ("deepseek-v3 cs-3 --target-margin 2", "no rent"),
        ("openai/gpt-6-sol --read --date 2020-01-01", "first known price is from 2026-09-22"),
        ("openai/gpt-6-sol --read --date yesterday", "--date: must be a day"),
        ("openai/gpt-6-sol --read --margin 7..2", "give 2..7"),
        ("openai/gpt-6-sol --read --seed -1", "seed"),
        ("openai/gpt-6-sol --read --hold HBN=1", "did you mean HBM"),
        ("deepseek-v3 --mix 4096", "4096:1024:0.5"),
        ("deepseek-v3 --update", "pip install '.[prices]'"),
        ("deepseek-v3 --read --history", "different questions"),
        ("openai/gpt-6-sol --read --mix 1k:256", "--mix needs a model at its sellers or a proposal"),
        ("glm-5.2 --history --date 2026-03-01", "--date needs a model at its sellers or a list, not --history"),
        (
            "deepseek-v3 gb200-nvl72 --target-margin 2 --provider x",
            "--provider needs prices that are sold, not --target-margin",
        ),
        ("deepseek-v3 --margin 3", "needs --read"),
    ],
)
def test_bad_input_is_named(words, told):
    found = run(*words.split())
    assert isinstance(found.exception, InputError)
    assert told in str(found.exception)


def test_one_list_read_backward_in_text_and_json(monkeypatch):
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        found = run("openai/gpt-6-sol", "--read", "--lecture", "--full")
        assert found.exit_code == 0, found.exception
        assert found.output.startswith("The prices of openai/gpt-6-sol imply ")
        assert max(map(len, found.output.splitlines())) <= int(width)
        for words in ("Not identifiable",):
            assert words in " ".join(found.output.split())
    told = json.loads(run("openai/gpt-6-sol", "--read", "--json").stdout)
    assert told["schema"] == "steptime.price-reading/2"
    kv = next(one for one in told["readings"] if one["name"] == "kv_bytes_per_token")
    assert kv["unit"] == "B"
    assert kv["interval"][0] < kv["value"] < kv["interval"][1]
    assert next(one for one in told["readings"] if one["name"] == "memory_bound_share")["value"] is None


@pytest.mark.slow
def test_the_maker_is_in_the_picture_among_many(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = run("deepseek-v4-flash", "--date", "2026-08-20", "--full")
    assert found.exit_code == 0, found.exception
    assert "◆ the maker's" in found.output
    assert "prices and rents of 2026-08-20" in " ".join(found.output.split())


@pytest.mark.slow
def test_sellers_are_drawn(monkeypatch):
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        found = run("llama-3.3-70b", "--full")
        assert found.exit_code == 0, found.exception
        assert max(map(len, found.output.splitlines())) <= int(width)
        for words in (
            "USD per 1,000 requests by seller",
            "● price",
            "c cost on",
            "h cost on H100 and H200",
            "groq",
            "Not planned for",
        ):
            assert words in found.output
    told = json.loads(run("llama-3.3-70b", "--json").stdout)
    assert told["schema"] == "steptime.prices/2"
    assert len(told["usd_per_request"]) == len(told["offers"])


def test_a_list_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'provider = "me"\nmodel = "mine"\ninput = 2\noutput = 10\n[[tiers]]\nabove_tokens = 2e5\ninput = 4\noutput = 15\n'
    )
    found = run("--list", str(path))
    assert found.exit_code == 0, found.exception
    assert found.output.startswith("The prices of me/mine imply ")
    path.write_text("input = 2\noutpt = 10\n")
    assert "did you mean output" in str(run("--list", str(path)).exception)


@pytest.mark.slow
def test_a_day_says_whom_it_leaves_out_and_that_it_is_yet_to_come():
    found = st.survey_prices("deepseek-v3", price_time="2030-01-01", mix="1k:256")
    told = " ".join(found.notes)
    assert "current sellers left out (" in told
    assert "prices are those of 2026-11-21" in told


@pytest.mark.slow
def test_what_no_system_serves_at_a_speed_is_an_answer_and_no_hit_is_dearer_than_input():
    with pytest.raises(Impossible, match=r"hgx-h100 cannot serve .* at 1e"):
        st.propose_prices("deepseek-v3", "hgx-h100", margin=2.0, speed=1e6)
    small = st.propose_prices("gpt-2", "hgx-h100", margin=2.0, mix="512:128")
    paid = {line.name: line for line in small.lines}
    assert paid["cached input"].usd <= paid["input"].usd == small.list.base.input
    assert paid["cached input"].usd == small.list.base.cache_read
