"""How often intervals held, recomputed from the shipped rows without the code that wrote what is printed."""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from steptime.catalog.hardware_loading import load_system
from steptime.models.model import active_parameters, total_parameters
from steptime.models.model_loading import load_model
from steptime.pricing.bundled_prices import FOLDER, table
from steptime.pricing.price_inversion import read_prices
from steptime.pricing.serving_costs import CALIBRATED_MODES, plan_chips
from steptime.workload.workload import Slo
from tests.planning.cases import closed_plan, equal_requests

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from price_priors import families, known_tiers

from tests.conftest import each

HOPPER = ("hgx-h100", "hgx-h200")


def rows(name):
    with open(FOLDER / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def market():
    """(input, output, price of 4,096 + 1,024 tokens, cost on Hopper, active, total) of each family with three sellers."""
    costs = defaultdict(dict)
    for row in rows("model_costs.csv"):
        costs[row["catalogue"], row["weights"]][row["system"]] = row
    sold = defaultdict(dict)
    for row in sorted(rows("open_models.csv"), key=lambda r: (r["variant"] != "", r["variant"])):
        key = row["family"], row["catalogue"], row["weights"]
        if (
            row["service"] == "standard"
            and row["above_tokens"] == "0"
            and row["retrieval_date"] > "2026-06"
            and row["role"] != "reseller"
        ):
            sold[key].setdefault(row["provider"], (float(row["input"]), float(row["output"])))
    found = []
    for (_, catalogue, weights), offers in sold.items():
        if len(offers) < 3:
            continue
        prices, known = np.array(list(offers.values())), costs[catalogue, weights]
        on = [float(known[name]["usd_per_request"]) for name in HOPPER if known[name]["usd_per_request"]]
        figures = known["gb200-nvl72"]
        found.append((
            *np.median(prices, axis=0), np.median(prices @ [4096, 1024]) / 1e6, math.exp(np.mean(np.log(on))),
            float(figures["active_parameters"]), float(figures["total_parameters"]),
        ))  # fmt: skip
    return np.array(found).T


def test_margins_of_the_market(market):
    _, _, price, cost, _, _ = market
    margins = price / cost
    assert len(margins) == 71
    assert 2 <= np.median(margins) <= 5
    inside = int(np.sum((margins >= 0.5) & (margins <= 10)))
    assert inside >= 0.8 * 71
    told = table("priors")["margin"]
    assert (told["held"], told["of"]) == (inside, 71)
    np.testing.assert_allclose(told["values"], np.sort(margins), rtol=1e-5)


def test_active_parameters_from_input_price(market):
    inputs, _, _, _, active, _ = market
    ratio = np.log10(active / inputs)
    assert np.mean(np.abs(ratio - np.median(ratio)) <= math.log10(3.5)) >= 0.80
    held = 0
    for at in range(71):
        others = np.delete(ratio, at)
        centre = np.median(others)
        held += abs(ratio[at] - centre) <= 1.6448536 * np.std(others - centre, ddof=1)
    told = table("priors")["active"]
    assert (told["held"], told["of"]) == (held, 71)
    assert 10 ** told["log10"][0] == pytest.approx(10 ** np.median(ratio), rel=1e-4)
    reading = read_prices({"input": 2, "output": 10})["active_parameters"]
    assert (reading.interval_held.hits, reading.interval_held.trials) == (held, 71)
    assert reading.value == pytest.approx(2 * 10 ** np.median(ratio), rel=1e-4)
    assert (reading.bound_held.hits, reading.bound_held.trials) == (int(np.sum(active <= inputs * reading.bound / 2)), 71)


def test_total_parameters_from_both_prices(market):
    inputs, outputs, _, _, _, total = market
    columns = np.stack([np.ones(71), np.log10(inputs), np.log10(outputs)], axis=1)
    held = 0
    for at in range(71):
        rest = np.arange(71) != at
        fit, residual, *_ = np.linalg.lstsq(columns[rest], np.log10(total[rest]), rcond=None)
        scatter = np.std(np.log10(total[rest]) - columns[rest] @ fit, ddof=3)
        held += abs(math.log10(total[at]) - columns[at] @ fit) <= 1.6448536 * scatter
        del residual
    told = table("priors")["total"]
    assert (told["held"], told["of"]) == (held, 71)
    assert held >= 0.85 * 71


def test_ten_price_steps_of_known_models():
    held, below, widths = 0, 0, []
    for listed, truth in known_tiers():
        reading = read_prices(listed)["kv_bytes_per_token"]
        low, high = reading.interval
        held += low <= truth <= high
        widths.append(math.sqrt(high / low))
        assert reading.bound > reading.value
        below += truth <= reading.bound
    told = table("priors")["step"]
    assert (told["bound_held"], str(reading.bound_held)) == (below, f"correct in {below} of 10")
    assert (told["held"], told["of"]) == (held, 10)
    assert 8 <= held <= 10
    assert min(widths) >= 3
    assert str(reading.interval_held) == f"correct in {held} of 10"


def test_what_is_known_stands_beside_a_reading():
    """DeepSeek-V3: 37 B of 671 B parameters (its model card), 70,272 B a token (61 layers of 576 values in BF16)."""
    known = read_prices("deepseek/deepseek-v3").true_values
    assert known["active_parameters"] == pytest.approx(37e9, rel=0.02)
    assert known["total_parameters"] == pytest.approx(671e9, rel=0.01)
    assert known["kv_bytes_per_token"] == pytest.approx(70_272, rel=1e-6)
    assert read_prices("openai/gpt-6-sol").true_values == {}


def test_tier_models_are_rows_of_the_history():
    dated = rows("price_history.csv")
    for one in table("tier_models")["models"]:
        mine = [
            r for r in dated if (r["provider"], r["model"]) == (one["provider"], one["model"]) and float(r["above_tokens"]) > 0
        ]
        assert mine, one["model"]
        assert one["grade"] in ("vendor", "reported", "recalled")
        assert one["url"].startswith("https://")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "model",
    [
        ("Qwen/Qwen3-30B-A3B-FP8", "native"),
        pytest.param(("meta-llama/Llama-3.3-70B-Instruct", "fp8"), marks=pytest.mark.thorough),
    ],
)
def test_shipped_costs_are_what_plans_say(model, closed_forms):
    name, weights = model
    loaded = load_model(name, weights="fp8" if weights == "fp8" else "")
    row = next(r for r in rows("model_costs.csv") if (r["catalogue"], r["weights"], r["system"]) == (name, weights, "hgx-h200"))
    work, slo = equal_requests(input_tokens=4096, output_tokens=1024), Slo(tpot=1 / 40)
    # The shipped costs are those of equal requests by closed forms.
    system = load_system("hgx-h200")
    found = closed_plan(loaded, system, work, slo, modes=CALIBRATED_MODES, chips=plan_chips(system), alternatives=False)
    assert found.usd_per_request == pytest.approx(float(row["usd_per_request"]), rel=0.01)
    assert active_parameters(loaded) == pytest.approx(float(row["active_parameters"]), rel=1e-6)
    assert total_parameters(loaded) == pytest.approx(float(row["total_parameters"]), rel=1e-6)


def test_fast_modes_cost_as_the_front_says():
    """2.5 times the speed from 40 tok/s costs some 5 times as much: the median of models of 10 B active or more on systems."""
    fast = [r for r in rows("model_costs.csv") if float(r["active_parameters"]) >= 10e9 and r["usd_at_40"] and r["usd_at_100"]]
    ratios = [float(row["usd_at_100"]) / float(row["usd_at_40"]) for row in fast]
    found = read_prices({"input": 5, "output": 25, "services": [{"name": "fast", "input": 30, "output": 150, "speed": 2.5}]})
    assert found["fast_mode"].value == pytest.approx(np.median(ratios), rel=1e-6)
    assert 3.3 < np.median(ratios) < 10
    held = 0
    for row, ratio in zip(fast, ratios, strict=True):
        others = [r for one, r in zip(fast, ratios, strict=True) if one["catalogue"] != row["catalogue"]]
        held += np.quantile(others, 0.05) <= ratio <= np.quantile(others, 0.95)
    assert str(found["fast_mode"].interval_held) == f"correct in {held} of {len(fast)}"
    page = (Path(__file__).parents[2] / "docs" / "prices.md").read_text(encoding="utf-8")
    assert f"{held} of {len(fast)}" in page


def ranks(values):
    """Return mean ranks, by counting."""
    return [sum(v < one for v in values) + (sum(v == one for v in values) - 1) / 2 for one in values]


def test_why_a_ratio_of_prices_tells_nothing():
    """The rank correlation of output over input price with that of costs, on each system, as it is told."""
    costs = defaultdict(dict)
    for row in rows("model_costs.csv"):
        if row["input_usd"]:
            costs[row["system"]][row["catalogue"], row["weights"]] = float(row["output_usd"]) / float(row["input_usd"])
    where = {r["family"]: (r["catalogue"], r["weights"]) for r in rows("open_models.csv")}
    found = {}
    for system, known in costs.items():
        able = [one for one in families() if where[one.name] in known]
        asked, computed = [one.output / one.input for one in able], [known[where[one.name]] for one in able]
        found[system] = np.corrcoef(ranks(asked), ranks(computed))[0, 1]
    reason = read_prices({"input": 2, "output": 10})["memory_bound_share"].reason
    low, high = min(found, key=found.get), max(found, key=found.get)
    assert f"is {np.median(list(found.values())):.2f} at the median of {len(found)} systems" in reason
    assert f"({found[low]:.2f} on {low}, {found[high]:.2f} on {high})" in reason
    page = (Path(__file__).parents[2] / "docs" / "prices.md").read_text(encoding="utf-8")
    assert f"{found[low]:.2f} on {low} and {found[high]:.2f} on {high}" in page


def test_why_a_multiple_tells_nothing():
    """Seven known models of Alibaba step at 32k, by 1.5 to 1.8 times, at 25 to 254 kB a token."""
    told = [(listed.service_rates()[1].output / listed.service_rates()[0].output, truth) for listed, truth in known_tiers()
            if listed.service_rates()[1].above_tokens == 32_000]  # fmt: skip
    multiples, truths = zip(*told, strict=True)
    rank = np.corrcoef(ranks(multiples), ranks(truths))[0, 1]
    reason = read_prices({"input": 2, "output": 10})["tier_multiplier"].reason
    assert f"{len(told)} known models of one seller have factors of {min(multiples):.2g} to {max(multiples):.2g}" in reason
    assert f"by up to {max(truths) / min(truths):.2g} times (rank correlation {rank:.2f})" in reason
    assert {one["provider"] for one in table("tier_models")["models"] if one["model"].startswith("qwen")} == {"alibaba"}


def test_a_bound_and_its_interval_are_of_one_unit():
    """The bound is the interval's upper end at margin 1: a step of 6 USD/M above 200k tokens, read in BF16 at most."""
    bound = read_prices("google/gemini-3.1-pro")["kv_bytes_per_token"].bound
    at_one = read_prices("google/gemini-3.1-pro", margin=1)["kv_bytes_per_token"]
    assert at_one.interval[1] == pytest.approx(bound)


def test_why_no_held_stands_beside_tiers_of_memory():
    """Of those that tell where caches lie no shipped row asks for writing or holding one."""
    telling = {one["provider"] for one in table("facts")["caches"] if "where" in one}
    assert telling == {"deepseek"}
    assert not any(row["cache_write"] not in ("", "0") for row in rows("open_models.csv") if row["provider"] in telling)
    assert not {one["provider"] for one in table("facts")["storage"]} & telling


@each("name", ["margin", "active", "total", "step"])
def test_the_page_tells_what_held(name):
    page = (Path(__file__).parents[2] / "docs" / "prices.md").read_text(encoding="utf-8")
    told = table("priors")[name]
    assert f"{told['held']} of {told['of']}" in page
