"""Fleets of models: the program against brute force, reasons without an answer, and the file that describes a fleet."""

from __future__ import annotations

import itertools
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for
from steptime.errors import DataFileError
from steptime.physics.run_covariance import read_covariances
from steptime.planning import model_fleet
from steptime.planning.fleet_program import (
    FleetOption,
    _reserved_chips,
    additional_chips,
    possible_share,
    solve_day,
    solve_fleet,
    unserved_shares,
)
from steptime.planning.model_fleet import FleetChoice, plan_fleet, read_fleet

pytest.importorskip("scipy")
FLEET = """
budget = 100
[[models]]
name = "llama-3.1-8b"
rate = 30
input = 1000
output = 200
speed = 30
ttft = 2
[[models]]
name = "llama-3.1-70b"
rate = 4
input = "1k"
output = 200
weights = "fp8"
[[systems]]
name = "hgx-h100"
chips = 8
rent = "2.00"
[[systems]]
name = "hgx-b200"
chips = 8
rent = 4
"""


def option(model, system, chips, rate, usd):
    return FleetOption(model=model, system=system, chips=chips, rate=rate, usd_per_hour=usd)


def brute_force(options, rates, chips, budget):
    """Return the lowest rent over all whole numbers of deployments; infinite without an answer."""
    most = [chips[o.system] // o.chips for o in options]
    counts = np.array(list(itertools.product(*(range(n + 1) for n in most))), dtype=float)
    table = np.array([[o.rate * (o.model == m) for o in options] for m in range(len(rates))])
    used = np.array([[o.chips * (o.system == s) for o in options] for s in range(len(chips))])
    rent = counts @ np.array([o.usd_per_hour for o in options])
    served, taken = counts @ table.T, counts @ used.T
    fits = np.all(served >= np.array(rates) - 1e-9, axis=1) & np.all(taken <= np.array(chips), axis=1) & (rent <= budget + 1e-9)
    return float(np.min(rent[fits], initial=math.inf))


def draw(random):
    models, systems = random.integers(1, 4), random.integers(1, 3)
    rents = random.uniform(1, 5, systems).round(2)
    options = [
        option(m, s, int(chips), round(int(chips) * random.uniform(1, 6), 2), float(chips * rents[s]))
        for m in range(models)
        for s in range(systems)
        for chips in random.choice([1, 2, 4], random.integers(1, 3), replace=False)
    ]
    options = options[:7]
    rates = [round(random.uniform(1, 12), 1) for _ in range(models)]
    chips = [int(random.integers(2, 7)) for _ in range(systems)]
    budget = math.inf if random.uniform() < 0.5 else float(random.uniform(4, 40))
    return options, rates, chips, budget


def against_brute_force(cases):
    random = np.random.default_rng(11)
    answers = 0
    for _ in range(cases):
        options, rates, chips, budget = draw(random)
        lowest = brute_force(options, rates, chips, budget)
        counts = solve_fleet(options, rates, chips, budget)
        rent = math.inf if counts is None else sum(n * o.usd_per_hour for n, o in zip(counts, options, strict=True))
        assert rent == pytest.approx(lowest, rel=1e-5), (options, rates, chips, budget)
        share = possible_share(options, rates, chips, budget)
        assert (share >= 1 - 1e-6) == math.isfinite(lowest)
        answers += math.isfinite(lowest)
    assert 0 < answers < cases


def brute_force_of_a_day(options, rates, chips, reserved_rent, on_demand_rent, budget):
    """Return the lowest mean rent over all deployments of each hour and all numbers of reserved chips."""
    most = [chips[o.system] // o.chips for o in options]
    counts = list(itertools.product(*(range(n + 1) for n in most)))
    hours = []
    for hour in range(len(rates[0])):
        use = set()
        for n in counts:
            served = [sum(k * o.rate for k, o in zip(n, options, strict=True) if o.model == m) for m in range(len(rates))]
            used = tuple(sum(k * o.chips for k, o in zip(n, options, strict=True) if o.system == s) for s in range(len(chips)))
            fits = all(u <= limit for u, limit in zip(used, chips, strict=True))
            if fits and all(have >= rate[hour] - 1e-9 for have, rate in zip(served, rates, strict=True)):
                use.add(used)
        hours.append([u for u in use if not any(v != u and all(x <= y for x, y in zip(v, u, strict=True)) for v in use)])
    lowest = math.inf
    for day in itertools.product(*hours):
        paid = 0.0
        for s, limit in enumerate(chips):
            in_use = [used[s] for used in day]
            mixes = []
            for reserved in range(limit + 1):
                extra = sum(max(0, n - reserved) for n in in_use)
                if not extra or math.isfinite(on_demand_rent[s]):
                    mixes.append(reserved * reserved_rent[s] + (extra * on_demand_rent[s] / len(day) if extra else 0.0))
            paid += min(mixes)
        lowest = min(lowest, paid)
    return lowest if lowest <= budget + 1e-9 else math.inf


def days_against_brute_force(cases):
    """Options of plans within limits, two or three hours, chips of two systems, rents of two kinds, perhaps a budget."""
    random = np.random.default_rng(7)
    answers = 0
    for _ in range(cases):
        options, _, _, budget = draw(random)
        options = options[:4]
        models, systems = 1 + max(o.model for o in options), 1 + max(o.system for o in options)
        hours = int(random.integers(2, 4))
        rates = [
            [round(float(random.uniform(0, 9)), 1) * (random.uniform() > 0.1) for _ in range(hours)] for _ in range(models)
        ]
        chips = [int(random.integers(2, 5)) for _ in range(systems)]
        reserved = [round(float(random.uniform(1, 5)), 2) for _ in range(systems)]
        extra = [price * float(random.uniform(1, 2.5)) if random.uniform() < 0.6 else math.inf for price in reserved]
        lowest = brute_force_of_a_day(options, rates, chips, reserved, extra, budget)
        day = solve_day(options, rates, chips, reserved, extra, budget)
        assert (math.inf if day is None else day.usd_per_hour) == pytest.approx(lowest, rel=1e-3), (options, rates, chips)
        answers += day is not None
    assert 0.2 * cases < answers < cases


def test_a_day_equals_brute_force_on_some_cases():
    days_against_brute_force(25)


@pytest.mark.slow
def test_a_day_equals_brute_force_on_200_cases():
    days_against_brute_force(200)


def test_a_day_in_hours_is_near_the_program_of_all_hours(monkeypatch):
    """The search hour by hour, for large days, against the program that has all of them."""
    random = np.random.default_rng(5)
    options = [option(m, s, c, round(c * random.uniform(2, 6), 1), 1.0) for m in range(3) for s in range(2) for c in (1, 2)]
    rates = [[float(random.uniform(2, 30)) for _ in range(6)] for _ in range(3)]
    exact = solve_day(options, rates, [24, 24], [2.0, 3.0], [3.0, math.inf])
    monkeypatch.setattr("steptime.planning.fleet_program.SMALL", 0)
    near = solve_day(options, rates, [24, 24], [2.0, 3.0], [3.0, math.inf])
    assert exact.usd_per_hour * (1 - 1e-3) <= near.usd_per_hour <= exact.usd_per_hour * 1.06
    # The bound holds: the lowest rent is not below it.
    assert near.usd_per_hour * (1 - near.gap) <= exact.usd_per_hour * (1 + 1e-3)


def test_a_day_in_hours_without_rents_on_demand_reserves_its_peaks_once(monkeypatch):
    """Chips that one hour reserves are free in all others: a system has as many as its fullest hour needs."""
    monkeypatch.setattr("steptime.planning.fleet_program.SMALL", 0)
    both = [option(m, 0, 1, 1.0, 2.0) for m in (0, 1)]
    day = solve_day(both, [[3.0, 1.0, 2.0], [1.0, 4.0, 2.0]], [16], [2.0])
    assert (day.reserved.tolist(), day.usd_per_hour) == ([5.0], pytest.approx(10.0))
    # A day of one hour is the program of its rates.
    assert solve_day(both, [[3.0], [1.0]], [16], [2.0]).usd_per_hour == pytest.approx(8.0)
    # A cheaper and slower kind of chip that the first hours fill serves the others too.
    two = [option(0, 0, 1, 1.0, 2.0), option(0, 1, 1, 2.0, 2.0)]
    day = solve_day(two, [[5.0, 2.0, 1.0]], [8, 2], [2.0, 2.5])
    assert (day.reserved.tolist(), day.usd_per_hour) == ([1.0, 2.0], pytest.approx(7.0))


def test_a_day_that_is_solved_has_no_gap():
    """The lower bound is the rent itself, apart from the weight of chips in use."""
    both = [option(m, 0, 1, 1.0, 2.0) for m in (0, 1)]
    day = solve_day(both, [[4.0, 1.0], [1.0, 4.0]], [16], [2.0], [3.0])
    assert day.usd_per_hour == pytest.approx(10.0)
    assert day.gap <= 1e-4


def test_a_chip_is_reserved_where_its_hours_on_demand_cost_as_much():
    """One hour at three times the rent costs as much as three; one that is cheaper pays from the second hour on."""
    in_use = np.array([4.0, 2.0, 1.0])
    assert [_reserved_chips(in_use, 0.1, rent) for rent in (0.3, 0.29, 0.31, 0.1, 0.09)] == [4.0, 2.0, 4.0, 1.0, 0.0]


def test_models_whose_peaks_differ_share_chips():
    """Peaks of 4 chips at different hours: 5 chips serve both, not 8; on demand at 1.5 times the rent pays below 16 h."""
    both = [option(m, 0, 1, 1.0, 2.0) for m in (0, 1)]
    rates = [[4.0] * 12 + [1.0] * 12, [1.0] * 12 + [4.0] * 12]
    assert solve_day(both, rates, [16], [2.0]).usd_per_hour == pytest.approx(10.0)
    short = [[4.0] * 12 + [1.0] * 12, [1.0] * 24]
    day = solve_day(both, short, [16], [2.0], [3.0])
    # 2 reserved at $2, and 3 more for half of the day at $3.
    assert (day.reserved.tolist(), day.usd_per_hour) == ([2.0], pytest.approx(4.0 + 4.5))


def test_what_does_not_fit_and_what_would_suffice():
    options = [option(0, 0, 1, 1.0, 2.0), option(1, 0, 4, 1.0, 8.0)]
    assert unserved_shares(options, [4.0, 1.0], [6]).tolist() == [0.5, 0.0]
    assert additional_chips(options, [4.0, 1.0], [6], [2.0]).tolist() == [2.0]


def test_a_deployment_whose_rate_has_no_range_gives_its_row_none():
    assert model_fleet._row_range(option(0, 0, 1, 10.0, 2.0), np.array([3.0]), np.array([30.0]), 6.0) is None


def test_ranges_of_rows_add_by_what_they_share():
    """Rows of two models share the small error of their engine: their sides add almost as squares."""
    row = FleetChoice(
        model="a", system="s", deployments=2, chips=2, layout="", rate=2.0, usd_per_hour=10.0, usd_range=(7.0, 14.0)
    )
    options = [FleetOption(model=m, system=0, chips=1, rate=1.0, usd_per_hour=5.0, engine="vllm") for m in (0, 1)]
    correlation = model_fleet._correlations(options)
    below, above = model_fleet._range_of_rows([row, row], correlation)
    errors = read_covariances()["tpot"]
    levels = errors.group + errors.release + errors.layout + errors.layout_release
    common = errors.engine / (errors.engine + errors.model + levels)
    assert correlation[0, 1] == pytest.approx(common)
    assert common < 0.02
    # Two sides of 3 with this in common: the root of 9 + 9 + 2 x 9 x common; and of 4.
    assert (below, above) == pytest.approx((3 * math.sqrt(2 + 2 * common), 4 * math.sqrt(2 + 2 * common)))
    assert model_fleet._range_of_rows([row, row], np.ones((2, 2))) == pytest.approx((6.0, 8.0))
    assert model_fleet._moved(20.0, (6.0, 8.0)) == (14.0, 28.0)


def test_the_program_equals_brute_force_on_some_cases():
    against_brute_force(20)


@pytest.mark.slow
def test_the_program_equals_brute_force_on_200_cases():
    against_brute_force(200)


@pytest.mark.parametrize("rate", [1e-9, 1e-6, 20.0])
def test_each_model_has_a_deployment_at_any_rate(rate):
    one = FleetOption(model=0, system=0, chips=1, rate=20.0, usd_per_hour=2.0)
    assert solve_fleet([one], [rate], [8]).tolist() == [1]
    assert solve_fleet([one], [rate * 1.5], [8]).tolist() == [2 if rate == 20.0 else 1]
    assert possible_share([one], [rate], [8]) == pytest.approx(1.0)


def test_of_two_fleets_of_one_rent_the_smaller_counts():
    options = [option(0, 0, 4, 10.0, 8.0), option(0, 1, 2, 10.0, 8.0)]
    assert solve_fleet(options, [10.0], [8, 8]).tolist() == [0, 1]


def test_a_cheap_system_is_left_to_the_model_that_needs_it():
    """Each model alone takes system 0; together only one fits, and the other saves less there."""
    options = [option(0, 0, 4, 5.0, 4.0), option(0, 1, 4, 5.0, 10.0), option(1, 0, 4, 5.0, 4.0), option(1, 1, 4, 5.0, 5.0)]
    assert solve_fleet(options, [5.0, 5.0], [4, 8]).tolist() == [1, 0, 0, 1]


def test_twelve_models_on_eight_systems_are_solved_in_ten_seconds():
    random = np.random.default_rng(3)
    rents = random.uniform(1, 6, 8)
    options = [
        option(m, s, chips, float(chips * random.uniform(2, 30)), float(chips * rents[s]))
        for m in range(12)
        for s in range(8)
        for chips in (1, 2, 4, 8)
    ]
    # Seconds of this process, so that other work on the machine does not count.
    start = time.process_time()
    counts = solve_fleet(options, [float(rate) for rate in random.uniform(50, 400, 12)], [64] * 8)
    assert counts is not None
    assert time.process_time() - start < 10


@pytest.fixture
def drawn(monkeypatch):
    """Options in place of plans."""

    def made(models, systems):
        return [option(0, 0, 1, 10.0, 2.0), option(1, 0, 4, 2.0, 8.0), option(1, 1, 2, 3.0, 8.0)], {}

    monkeypatch.setattr(model_fleet, "fleet_options", made)


def written(tmp_path, text, name="fleet.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_fleet_names_its_deployments(drawn, tmp_path):
    models, systems, budget = read_fleet(written(tmp_path, FLEET))
    assert (budget, [system.chips for system in systems]) == (100.0, [8, 8])
    assert [system.usd_per_chip_hour for system in systems] == pytest.approx([2.0, 4.0])
    fleet = plan_fleet(models, systems, budget)
    assert fleet.feasible
    # 3 x $2 for the first model; for the second 1 x 4 and 1 x 2 chips, at $16, or 2 x 2 chips for the same.
    assert fleet.usd_per_hour == pytest.approx(22.0)
    limits = {choice.model: (choice.speed_limit, choice.ttft_limit) for choice in fleet.choices}
    assert limits == {models[0].name: (pytest.approx(30.0), 2.0), models[1].name: (None, math.inf)}
    assert sum(choice.chips for choice in fleet.choices) == sum(fleet.chips_in_use) == 7
    table = fleet.columns()
    assert len(table["model"]) == len(fleet.choices)
    assert fleet.to_dict()["schema"] == "steptime.fleet/1"


def test_a_budget_that_is_too_small_is_the_reason(drawn, tmp_path):
    fleet = plan_fleet(*read_fleet(written(tmp_path, FLEET))[:2], 20.0)
    assert not fleet.feasible
    assert "$22.00" in fleet.reason
    assert fleet.possible_share < 1


def test_models_without_an_option_have_no_additional_chips():
    one = option(0, 0, 1, 1.0, 2.0)
    assert additional_chips([one], [1.0, 1.0], [8], [2.0]) is None
    assert possible_share([one], [1.0, 1.0], [8]) == 0
    assert unserved_shares([one], [4.0, 1.0], [2]).tolist() == [0.5, 1.0]


DAY = FLEET.replace("rate = 30", "rate = 20\nday = 1.5\npeak_hour = 3").replace("rent = 4", "rent = 4\non_demand = 6")


def test_a_fleet_by_hour_has_its_rates_its_chips_and_its_rents(drawn, tmp_path):
    models, systems, budget = read_fleet(written(tmp_path, DAY))
    assert np.argmax(models[0].rates) == 3
    assert np.mean(models[0].rates) == pytest.approx(20.0)
    assert max(models[0].rates) == pytest.approx(30.0)
    assert models[1].rates == ()
    fleet = plan_fleet(models, systems, budget)
    # The first model needs 3 deployments at its peak and 1 at its trough of 10.8 requests/s; the second always the same.
    first = next(choice for choice in fleet.choices if choice.model == models[0].name)
    needed = [math.ceil(rate / 10.0 - 1e-9) for rate in models[0].rates]
    assert list(first.by_hour) == needed
    assert sum(choice.usd_per_hour for choice in fleet.choices) == pytest.approx(fleet.usd_per_hour)
    assert fleet.usd_per_hour <= fleet.separate_usd_per_hour
    assert len(fleet.columns()["deployments_23h"]) == len(fleet.choices)


def test_a_budget_that_is_too_small_for_a_day_serves_a_share_of_its_peak(drawn, tmp_path):
    """$12 rent two chips for 20 of 30 requests/s at the peak, and three quarters of the other model; 10.8 at the trough."""
    models, systems, _ = read_fleet(written(tmp_path, DAY))
    assert plan_fleet(models, systems, 12.0).possible_share == pytest.approx(2 / 3)


def test_a_fleet_by_hour_that_does_not_fit_names_model_hour_and_chips(drawn, tmp_path):
    text = DAY.replace("rate = 20", "rate = 80").replace("budget = 100\n", "")
    fleet = plan_fleet(*read_fleet(written(tmp_path, text)))
    assert not fleet.feasible
    assert fleet.reason.startswith("at 3 h ")
    assert "llama-3.1-8b" in fleet.reason
    assert "of hgx-h100 would serve them" in fleet.reason
    # 120 requests/s need 12 chips of hgx-h100, which has 8; the second model has room on hgx-b200.
    assert fleet.unserved == pytest.approx((1 / 3, 0.0))


def test_chips_that_do_not_suffice_are_the_reason(drawn, tmp_path):
    models, systems, budget = read_fleet(
        written(tmp_path, FLEET.replace("rate = 30", "rate = 300").replace("budget = 100\n", ""))
    )
    fleet = plan_fleet(models, systems, budget)
    assert not fleet.feasible
    assert "more chips of hgx-h100" in fleet.reason
    assert 0 < fleet.possible_share < 0.4


def test_a_model_without_a_home_is_the_reason(monkeypatch, tmp_path):
    nothing = [option(0, 0, 1, 10.0, 2.0)], {(1, 0): "no layout holds the weights.", (1, 1): "too slow"}
    monkeypatch.setattr(model_fleet, "fleet_options", lambda models, systems: nothing)
    fleet = plan_fleet(*read_fleet(written(tmp_path, FLEET)))
    assert fleet.reason.startswith("meta-llama/Llama-3.1-70B" if "meta" in fleet.reason else "llama-3.1-70b")
    assert "hgx-b200: too slow" in fleet.reason


def test_the_files_of_the_page_and_of_the_help_are_read(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")
    models, systems, budget = read_fleet(written(tmp_path, text.split("```toml")[1].split("```")[0]))
    assert (len(models), len(systems), budget) == (2, 2, 200.0)
    assert systems[0].on_demand == pytest.approx(3.5)
    assert models[0].loaded is not None
    shown = CliRunner().invoke(app_for(["fleet"]), ["fleet", "--help"]).stdout
    for key in (*model_fleet.MODEL_KEYS, *model_fleet.SYSTEM_KEYS):
        assert key in shown, key


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rate = 30", "rat = 30", "did you mean rate"),
        ("rate = 30", "", r"models, table 1 \('llama-3.1-8b'\): rate: is missing"),
        ("rate = 30", "rate = -1", r"models, table 1 \('llama-3.1-8b'\): rate"),
        ("chips = 8\nrent = 4", "chips = 0\nrent = 4", r"systems, table 2 \('hgx-b200'\): chips"),
        ('name = "hgx-b200"', 'name = "hgx-h100"', "there twice"),
        ('name = "hgx-b200"', 'name = "hgx-b20"', "hgx-b200"),
        ("budget = 100", "budget = 0", "budget"),
        ("rent = 4", 'rent = "soon"', "rent"),
        ('weights = "fp8"', 'systems = ["tpu7x"]', "is not one of hgx-h100, hgx-b200"),
        ("speed = 30", "speed = true", r"models, table 1 \('llama-3.1-8b'\): speed"),
        (
            'name = "llama-3.1-8b"',
            'name = "llama-3.1-9b"',
            r"table 1 \('llama-3.1-9b'\): unknown model .*Llama-3.1-8B",
        ),
        ("input = 1000", "input = 1.5", r"models, table 1 \('llama-3.1-8b'\): input must be a whole number"),
        ("ttft = 2", 'ttft = 2\npercentile = "p80"', r"models, table 1 \('llama-3.1-8b'\): .*p90"),
        ("ttft = 2", 'ttft = 2\nday = "cha"', r"models, table 1 \('llama-3.1-8b'\): .*chat"),
        ("ttft = 2", "ttft = 2\nday = 0.5", r"models, table 1 \('llama-3.1-8b'\): day"),
        ("ttft = 2", "ttft = 2\nrates = [1, 2]", r"models, table 1 \('llama-3.1-8b'\): rate"),
        ("rate = 30", "rates = [1, 2]", r"models, table 1 \('llama-3.1-8b'\): rates"),
        ("ttft = 2", "ttft = 2\npeak_hour = 3", r"models, table 1 \('llama-3.1-8b'\): peak_hour"),
        ("rent = 4", "rent = 4\non_demand = 3", r"systems, table 2 \('hgx-b200'\): on_demand"),
        ("rent = 4", 'rent = 4\nengine = "vlmm"', r"systems, table 2 \('hgx-b200'\): .*vllm"),
    ],
)
def test_a_wrong_file_says_where(tmp_path, old, new, words):
    assert old in FLEET
    with pytest.raises(DataFileError, match=words):
        read_fleet(written(tmp_path, FLEET.replace(old, new, 1)))


def test_a_fleet_in_yaml_equals_one_in_toml(tmp_path):
    yaml = pytest.importorskip("yaml")
    import tomllib

    text = yaml.safe_dump(tomllib.loads(FLEET))
    assert read_fleet(written(tmp_path, text, "fleet.yaml")) == read_fleet(written(tmp_path, FLEET))
    for odd in ("[1, 2]", "models: &a [*a]", "a: b: c", "!!python/object:os.system {}"):
        with pytest.raises(DataFileError):
            read_fleet(written(tmp_path, odd, "odd.yaml"))


def test_the_command_prints_a_table_or_json_and_its_exit_code(drawn, tmp_path):
    path = str(written(tmp_path, FLEET))
    ran = CliRunner().invoke(app_for(["fleet"]), ["fleet", path])
    assert ran.exit_code == 0, ran.output
    assert "hgx-h100: " in ran.stdout
    ran = CliRunner().invoke(app_for(["fleet"]), ["fleet", path, "--budget", "20", "--json"])
    assert ran.exit_code == 1
    assert json.loads(ran.stdout)["feasible"] is False


@pytest.mark.slow
def test_a_fleet_of_real_plans(tmp_path):
    pytest.importorskip("numba")
    models, systems, budget = read_fleet(written(tmp_path, FLEET))
    fleet = st.plan_fleet(models, systems, budget)
    assert fleet.feasible
    for model in models:
        assert sum(choice.rate for choice in fleet.choices if choice.model == model.name) >= model.rate


def test_a_table_does_not_replace_the_file_of_the_fleet(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text('[[models]]\nname = "llama-3.1-8b"\nrate = 1\n[[systems]]\nname = "hgx-h100"\nchips = 8\n')
    before = path.read_bytes()
    ran = CliRunner().invoke(app_for(["fleet"]), ["fleet", str(path), "--csv", str(path)])
    assert isinstance(ran.exception, DataFileError)
    assert path.read_bytes() == before
