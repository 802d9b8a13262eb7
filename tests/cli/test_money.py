"""Rents, energy and levers as a user types and reads them."""

from __future__ import annotations

import csv
import json

import pytest

from tests.cli.test_commands import run
from tests.conftest import each, every

pytestmark = pytest.mark.usefixtures("closed_forms")

PLAN = "plan llama-3.1-8b hgx-h100 --input 2000 --output 500 --speed 40"


def flat(words: str, columns: int = 100) -> str:
    shown = run(words, columns=columns)
    assert shown.returncode == 0, shown.stderr
    return " ".join(shown.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("", "Rent: 16.0 USD/h for 8 chips, three-year contract, 2026-09-08, reported."),
        (
            "--rent owned",
            "Rent: 9.36 USD/h for 8 chips, cost of ownership of a hyperscaler, 2026-09-08, reported (published August 2026,",
        ),
        ("--rent ondemand", "Rent: 55.0 USD/h for 8 chips, on demand, 2025-06-05, recalled (p5.48xlarge over eight,"),
        ("--rent 2.10", "Rent: 16.8 USD/h for 8 chips, as given."),
    ],
)
def test_the_kind_that_is_chosen_is_the_kind_that_is_printed(option, says, columns):
    assert says in flat(f"{PLAN} {option}", columns)


@pytest.mark.slow
def test_a_rent_twice_as_high_is_a_cost_twice_as_high_and_json_says_its_kind():
    one, two = (json.loads(run(f"{PLAN} --rent {rent} --json").stdout) for rent in ("1.5", "3"))
    assert two["usd_per_million_output_tokens"] == pytest.approx(2 * one["usd_per_million_output_tokens"])
    assert (one["rent"]["kind"], one["rent"]["typical_usd_per_s"]) == ("given", pytest.approx(1.5 / 3600))
    contract = json.loads(run(f"{PLAN} --rent contract --json").stdout)["rent"]
    assert (contract["kind"], contract["term"], contract["date"]) == ("contract", "three-year", "2026-09-08")


@each(
    "option, says",
    [
        ("--rent ownd", "unknown kind of rent 'ownd'; did you mean owned"),
        ("--rent -1", "rent: must be greater than 0 USD/h, got '-1'"),
        ("--rent assumed", "no assumed rent of h100 is known; known: contract (2.00 USD/h), owned (1.17 USD/h)"),
        ("--rent 2 --set rent=2USD/h", "--rent and --set rent= both set the rent"),
        ("--electricity x", "electricity: 'x' is not a price in USD per kWh; use 0.08 or 0.08/kWh"),
        ("--electricity -1", "electricity: must cost from 0 to 10 USD/kWh, got '-1'"),
    ],
)
def test_bad_money_is_refused_in_one_line(option, says):
    shown = run(f"{PLAN} {option}")
    assert shown.returncode == 2
    assert says in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1


@pytest.mark.thorough
def test_the_energy_of_a_token_by_its_own_figures(both_forms):
    found = json.loads(run(f"{PLAN} --electricity 0.08/kWh --json").stdout)
    output = found["requests_per_s"] * 500
    assert found["power"]["power_w"] == 1370
    assert found["joules_per_output_token"] == pytest.approx(8 * 1370 / output)
    kwh_per_million = found["joules_per_output_token"] * 1e6 / 3.6e6
    assert found["electricity_usd_per_million_output_tokens"] == pytest.approx(0.08 * kwh_per_million)
    assert json.loads(run(f"{PLAN} --json").stdout)["electricity_usd_per_million_output_tokens"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(PLAN, "not added, because the rent includes it", marks=pytest.mark.thorough),
        pytest.param(
            PLAN + " --rent owned", "not added, because this cost of ownership may include it", marks=pytest.mark.thorough
        ),
        pytest.param(PLAN + " --rent 2", "not added; add it if your rent does not include it", marks=pytest.mark.thorough),
        ("plan llama-3.1-8b m3-ultra", "270 W per chip (the whole machine, without cooling; recalled"),
        pytest.param(
            "plan llama-3.1-8b hgx-a100",
            "400 W per chip (limit of the chip, without host, network and cooling",
            marks=pytest.mark.thorough,
        ),
        pytest.param("plan llama-3.1-8b tpu-v6e --chips 8", "--set power=1.5kW", marks=pytest.mark.thorough),
        pytest.param(
            "plan llama-3.1-8b tpu-v6e --chips 8 --set power=300W", "from 300 W per chip (as given)", marks=pytest.mark.thorough
        ),
    ],
)
def test_what_energy_counts_and_who_pays_for_it(words, says, both_forms):
    assert says in flat(f"{words} --electricity 0.08")


@pytest.mark.slow
@pytest.mark.parametrize("columns", every(2, [80, 120]))
def test_without_a_rent_nothing_is_unknown_and_nothing_is_money(columns, tmp_path):
    for command in ("plan llama-3.1-8b m3-ultra", "plan llama-3.1-8b m3-ultra --full"):
        text = run(f"{command} --csv {tmp_path / 'front.csv'}", columns=columns).stdout
        for word in ("unknown", "nan", "$", "USD/M", "cheaper", "expensive", "cost"):
            assert word not in text, word
        assert "--rent 2.10" in " ".join(text.split())
    with (tmp_path / "front.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["usd_per_million_output_tokens"] for row in rows} == {""}
    found = json.loads(run("plan llama-3.1-8b m3-ultra --json").stdout)
    assert (found["rent"]["kind"], found["rent"]["typical_usd_per_s"], found["rent_usd_per_s"]) == ("", None, None)
    assert "NaN" not in run("plan llama-3.1-8b m3-ultra --json").stdout


@pytest.mark.thorough
def test_a_rent_that_is_given_brings_the_money_back(both_forms):
    assert "per million output tokens" in flat("plan llama-3.1-8b m3-ultra --rent 1.20")


def test_systems_show_every_kind_of_rent():
    text = flat("systems hgx-h100", 120)
    assert "2.00 USD per chip-hour, three-year contract, 2026-09-08, reported; past twelve months 1.30 to 2.00" in text
    assert "--rent owned 1.17 USD per chip-hour, cost of ownership of a hyperscaler" in text
    assert "--rent ondemand 6.88 USD per chip-hour, on demand, 2025-06-05, recalled; p5.48xlarge" in text
    assert "1.37 kW per chip (all-in" in text
    assert "Rent 1.17 USD per chip-hour, cost of ownership" in flat("systems hgx-h100 --rent owned", 120)
    card = json.loads(run("systems hgx-h100 --json").stdout)
    assert [rent["kind"] for rent in card["rents"]] == ["contract", "owned", "ondemand"]
    assert card["power"]["basis"] == "all-in"


def test_the_list_of_systems_in_rents_of_one_kind():
    rows = json.loads(run("systems --rent owned --json").stdout)["systems"]
    assert {row["rent_kind"] for row in rows} == {"owned", ""}
    assert {row["name"]: row["rent_usd_per_s"] for row in rows}["tpu-v6e"] is None
    rows = json.loads(run("systems --rent contract --json").stdout)["systems"]
    assert {row["rent_kind"] for row in rows} == {"contract", ""}
    assert "known: contract" in run("systems hgx-h200 --rent ondemand").stderr
    assert run("systems --rent ownd").returncode == 2


@pytest.mark.parametrize(
    ("chips", "words"),
    [(1, "without the 7 other chips of the host."), pytest.param(8, "reported.", marks=pytest.mark.thorough)],
)
def test_chips_of_a_host_that_a_plan_leaves_are_said_to_be_outside_its_rent(chips, words):
    text = flat(f"plan llama-3.1-8b hgx-h100 --chips {chips} --input 1000 --output 300 --percentile mean")
    rent = text[text.index("Rent: ") :]
    assert rent[: rent.index(words) + len(words)].count(".") == 2


def test_a_simulation_is_paid_by_the_rent_that_is_chosen():
    pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
    base = "simulate llama-3.1-8b hgx-h100 --rate 2 --requests 50 --json"
    contract, owned = (json.loads(run(f"{base} {more}").stdout)["answers"] for more in ("", "--rent owned"))
    key = "usd_per_million_output_tokens"
    assert owned[key] / contract[key] == pytest.approx(1.17 / 2)
    for columns in (80, 120):
        text = flat("simulate llama-3.1-8b m3-ultra --rate 0.2 --requests 20", columns)
        assert "nan" not in text
        assert "unknown" not in text
    text = flat("simulate llama-3.1-8b hgx-h100 --rate 2 --requests 50 --tp 2 --rent owned")
    assert "Rent: 2.34 USD/h for 2 chips, cost of ownership of a hyperscaler, 2026-09-08, reported." in text


def test_the_smallest_system_is_named_with_its_rent():
    text = flat("models llama-3.1-8b", 120)
    assert "1 chip of rtx-pro-6000-2, 0.52 USD/h, three-year contract" in text
    error = run("plan llama-3.1-405b hgx-h100").stderr
    assert "mi325x-8 (4 x mi325x, 6.40 USD/h, three-year contract)" in error


@pytest.mark.thorough
def test_the_choice_that_is_named_does_what_it_says(both_forms):
    """The option of the first lever, typed, costs what was said of it, within the 6 % that other draws may take from a rate."""
    first = json.loads(run(f"{PLAN} --json").stdout)["alternatives"][0]
    assert first["option"]
    typed = json.loads(run(f"{PLAN} {first['option']} --json").stdout)
    assert typed["usd_per_million_output_tokens"] == pytest.approx(first["usd_per_million_output_tokens"], rel=0.06)
    assert f"({first['option']}): about" in flat(PLAN)
