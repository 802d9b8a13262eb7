"""Fleets of models: the program against brute force, reasons without an answer, and the file that describes a fleet."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.table import Table
from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for
from steptime.cli.views.fleet_view import fleet_view
from steptime.errors import DataFileError, Impossible, InputError
from steptime.physics.run_covariance import read_covariances
from steptime.planning import fleet_program, model_fleet
from steptime.planning.fleet_program import (
    FleetOption,
    _fewer_kinds,
    _hour_by_hour,
    _reserved_chips,
    additional_chips,
    possible_share,
    solve_day,
    solve_fleet,
    unserved_shares,
)
from steptime.planning.model_fleet import FleetChoice, FleetModel, FleetSystem, ModelFleet, plan_fleet, read_fleet
from steptime.planning.planner import NO_LAYOUT
from tests.conftest import each

scipy = pytest.importorskip("scipy")
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


@each("chips, on_demand", [((8.0, 8.0), (3.0, 2.0)), ((1.0, 8.0), (3.0, 4.0))])
def test_an_hour_has_the_chips_that_the_fractions_reserve_and_rents_further_ones(chips, on_demand):
    """One chip of the first system is reserved; in the second hour one of the second is cheaper, or the only one left."""
    both = [option(0, 0, 1, 1.0, 2.0), option(0, 1, 1, 1.0, 1.5)]
    counts = np.array([[1.0, 1.0], [0.0, 1.0]])
    given = np.array([[1.0, 2.0]]), np.array(chips), np.array([2.0, 2.5]), np.array(on_demand), np.eye(2), counts
    assert _hour_by_hour(both, *given).tolist() == counts.tolist()


def test_a_day_on_chips_without_rent_costs_nothing():
    day = solve_day([option(0, 0, 1, 1.0, 0.0)], [[3.0, 1.0]], [8], [0.0])
    assert (day.counts.tolist(), day.reserved.tolist(), day.usd_per_hour, day.gap) == ([[3.0, 1.0]], [3.0], 0.0, 0.0)


def test_kinds_of_a_day_are_left_out_where_another_serves_as_much_on_the_same_chips():
    """One chip serves 1 request/s, three chips 4; 5 and 1 requests/s run as one of both, and as the small one."""

    def kinds(reserved, counts=((1.0, 1.0), (1.0, 0.0)), rates=((5.0, 1.0),), models=(0, 0)):
        options = [option(models[0], 0, 1, 1.0, 1.0), option(models[1], 0, 3, 4.0, 3.0)]
        return _fewer_kinds(options, np.array(rates), np.array(counts), np.array([[1.0, 3.0]]), np.array([reserved])).tolist()

    as_it_was = [[1.0, 1.0], [1.0, 0.0]]
    assert kinds(4.0) == as_it_was  # two large ones in the first hour need 6 chips, five small ones 5
    assert kinds(6.0) == [[0.0, 0.0], [2.0, 1.0]]
    assert kinds(9.0, rates=((1.0, 1.0), (4.0, 0.0)), models=(0, 1)) == as_it_was  # not of one model


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
    assert common < 0.03
    # Two sides of 3 with this in common: the root of 9 + 9 + 2 x 9 x common; and of 4.
    assert (below, above) == pytest.approx((3 * math.sqrt(2 + 2 * common), 4 * math.sqrt(2 + 2 * common)))
    assert model_fleet._range_of_rows([row, row], np.ones((2, 2))) == pytest.approx((6.0, 8.0))
    assert model_fleet._moved(20.0, (6.0, 8.0)) == (14.0, 28.0)


def test_the_program_equals_brute_force_on_some_cases():
    against_brute_force(20)


@pytest.mark.slow
def test_the_program_equals_brute_force_on_200_cases():
    against_brute_force(200)


@each("rate", [1e-9, 1e-6, 20.0])
def test_each_model_has_a_deployment_at_any_rate(rate):
    one = FleetOption(model=0, system=0, chips=1, rate=20.0, usd_per_hour=2.0)
    assert solve_fleet([one], [rate], [8]).tolist() == [1]
    assert solve_fleet([one], [rate * 1.5], [8]).tolist() == [2 if rate == 20.0 else 1]
    assert possible_share([one], [rate], [8]) == pytest.approx(1.0)


def test_the_lines_of_the_solver_are_no_part_of_an_answer(monkeypatch, capfd):
    import scipy.optimize

    solver = scipy.optimize.milp

    def talkative(*arguments, **settings):
        ctypes.CDLL(None).puts(b"HighsMipSolverData")
        return solver(*arguments, **settings)

    monkeypatch.setattr(scipy.optimize, "milp", talkative)
    print("before")
    assert solve_fleet([option(0, 0, 1, 1.0, 2.0)], [1.0], [8]).tolist() == [1]
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"


def test_plans_replace_the_bounds_that_an_answer_uses_until_it_uses_plans_alone(monkeypatch):
    """A system whose bound costs more than the plans of another one is not planned; one whose plan disappoints is left."""
    rates = {("a", "cheap"): 4.0, ("a", "dear"): 9.0, ("a", "slow"): 2.0, ("b", "cheap"): 4.0, ("b", "dear"): 4.0}
    truths = {("a", "cheap"): 1.0, ("a", "dear"): 9.0, ("b", "cheap"): 4.0, ("b", "dear"): 4.0}
    rents, asked = {"cheap": 1.0, "dear": 2.0, "slow": 1.5}, []

    def made(pair, table):
        place = pair.model.name, pair.system.name
        return [option(pair.m, pair.s, 1, table[place], rents[place[1]])] if place in table else []

    def planned(pair):
        asked.append((pair.model.name, pair.system.name))
        return made(pair, truths), ""

    monkeypatch.setattr(model_fleet, "_likely_options", lambda pair: made(pair, rates))
    monkeypatch.setattr(model_fleet, "_planned_options", planned)
    monkeypatch.setattr(model_fleet, "map_in_processes", lambda work, items: [work(item) for item in items])
    work = st.Workload(input_tokens=9, output_tokens=9)
    models = [FleetModel(name=name, rate=4.0, workload=work, slo=st.Slo()) for name in ("a", "b")]
    systems = [FleetSystem(name=name, chips=8, usd_per_chip_hour=rent) for name, rent in rents.items()]
    fleet = plan_fleet(models, systems)
    # 4 requests/s of "a" on "cheap" seem to need one chip and need four, at 4 USD/h; one of "dear" costs 2.
    assert [(row.model, row.system) for row in fleet.choices] == [("a", "dear"), ("b", "cheap")]
    assert (fleet.usd_per_hour, fleet.options, fleet.planned) == (3.0, 5, 3)
    assert asked == [("a", "cheap"), ("b", "cheap"), ("a", "dear")]
    # Without an answer every pair is planned, and the reason is that of plans.
    asked.clear()
    few = plan_fleet([replace(model, rate=1000.0) for model in models], systems)
    assert (few.feasible, few.planned, len(asked)) == (False, 4, 5)


@pytest.mark.slow
def test_a_fleet_of_few_plans_costs_what_one_of_all_plans_costs(tmp_path):
    pytest.importorskip("numba")
    text = "".join(
        f'[[models]]\nname = "{name}"\nrate = {rate}\ninput = {size}\noutput = 256\nspeed = 25\nttft = 3\n\n'
        for name, rate, size in (("llama-3.1-8b", 60, 1024), ("qwen3-30b-a3b", 40, 4096), ("llama-3.3-70b", 2, 2048))
    )
    text += "".join(f'[[systems]]\nname = "{name}"\nchips = 8\n\n' for name in ("hgx-h100", "mi300x-8", "hgx-b200", "l40s-8"))
    models, systems, _ = read_fleet(written(tmp_path, text))
    few = plan_fleet(models, systems)
    options, _, planned = model_fleet.fleet_options(models, systems)
    assert few.planned < planned == len(options)
    counts = solve_fleet(options, [model.rate for model in models], [system.chips for system in systems])
    rent = sum(float(count) * one.usd_per_hour for count, one in zip(counts, options, strict=True))
    assert few.usd_per_hour == pytest.approx(rent)
    # No plan serves more than the bound of closed forms.
    for one in options:
        pair = model_fleet.Pair(one.model, one.system, models[one.model], systems[one.system])
        bound = model_fleet.BEYOND * pair.with_inputs(model_fleet.likely_rate)(chips=one.chips)
        assert 0.3 * bound < one.rate < bound


def test_of_two_fleets_of_one_rent_the_smaller_counts():
    options = [option(0, 0, 4, 10.0, 8.0), option(0, 1, 2, 10.0, 8.0)]
    assert solve_fleet(options, [10.0], [8, 8]).tolist() == [0, 1]
    assert solve_fleet(options[::-1], [10.0], [8, 8]).tolist() == [1, 0]


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

    def made(models, systems, in_use):
        return [option(0, 0, 1, 10.0, 2.0), option(1, 0, 4, 2.0, 8.0), option(1, 1, 2, 3.0, 8.0)], {}, 3

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
    assert sum(choice.usd_per_hour for choice in fleet.choices) == pytest.approx(fleet.usd_per_hour)
    limits = {choice.model: (choice.speed_limit, choice.ttft_limit) for choice in fleet.choices}
    assert limits == {models[0].name: (pytest.approx(30.0), 2.0), models[1].name: (None, math.inf)}
    assert sum(choice.chips for choice in fleet.choices) == sum(fleet.chips_in_use) == 7
    table = fleet.columns()
    assert len(table["model"]) == len(fleet.choices)
    assert fleet.to_dict()["schema"] == "steptime.fleet/1"


def test_both_tables_of_a_fleet_call_its_rows_alike():
    """Two deployments of two replicas are four times one chip, in the table of limits too."""
    row = FleetChoice(
        model="a", system="b", deployments=2, chips=4, layout="x2", rate=80.0, usd_per_hour=8.0, speed=30.0, ttft=0.4
    )
    shown = fleet_view(ModelFleet(feasible=True, choices=(row,), models=(), systems=()))
    tables = [part for part in shown.renderables if isinstance(part, Table)]
    cells = [[next(iter(column.cells)) for column in table.columns[:3]] for table in tables]
    assert cells == [["a", "b", "4 x one chip"]] * 2


def test_a_budget_that_is_too_small_is_the_reason(drawn, tmp_path):
    fleet = plan_fleet(*read_fleet(written(tmp_path, FLEET))[:2], 20.0)
    assert not fleet.feasible
    assert "$22.00" in fleet.reason
    assert fleet.possible_share < 1
    assert (fleet.budget, 0 < fleet.solve_seconds < 60) == (20.0, True)


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
    nothing = [option(0, 0, 1, 10.0, 2.0)], {(1, 0): "no layout holds the weights.", (1, 1): "too slow"}, 1
    monkeypatch.setattr(model_fleet, "fleet_options", lambda *_: nothing)
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
        ("ttft = 2", "ttft = 2\nsure = 0.3", r"models, table 1 \('llama-3.1-8b'\): sure"),
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


# --- rates, options and rows by hand --------------------------------------------------------------------------------------


def rates_of(entry: dict) -> tuple[float, tuple[float, ...]]:
    return model_fleet._read_rates(Path("fleet.toml"), "models, table 1", entry)


def test_rates_of_a_model_are_one_a_profile_or_those_of_the_hours():
    assert rates_of({"rate": 5}) == (5.0, ())
    hours = [0, 0.0, *[3] * 22]
    mean, rates = rates_of({"rates": hours})
    assert mean == pytest.approx(66 / 24)
    assert rates == pytest.approx(hours)
    mean, rates = rates_of({"rate": 6, "day": hours})
    assert (mean, sum(rates) / 24, rates[0], rates[2]) == (6.0, pytest.approx(6.0), 0.0, pytest.approx(6 * 24 / 22))
    mean, rates = rates_of({"rate": 2, "day": 1.5, "peak_hour": 23})
    assert (mean, max(rates), rates.index(max(rates))) == (2.0, pytest.approx(3.0), 23)


@each(
    "entry, words",
    [
        ({"rates": [0] * 24}, "rates: must have an hour above 0"),
        ({"rates": [1] * 23}, "rates: must be a list of 24 requests/s, one for each hour, got 23 values"),
        ({"rates": [1] * 25}, "got 25 values"),
        ({"rates": [1]}, "got 1 value$"),
        ({"rates": 7}, "got 7"),
        ({"rates": [1] * 24, "rate": 1}, "rate: rates has the rate of each hour"),
        ({"rates": [1] * 24, "day": 2}, "day: rates has the rate of each hour"),
        ({"rates": [*[1] * 7, -1, *[1] * 16]}, r"rates\.7"),
        ({"rates": [*[1] * 7, 1e6 + 1, *[1] * 16]}, r"rates\.7"),
        ({"rate": 1e6 + 1}, "models, table 1: rate"),
        ({"rate": 0}, "models, table 1: rate"),
        ({"rate": 1, "peak_hour": 3}, "peak_hour: moves the peak of a day profile"),
        ({"rate": 1, "day": 0.5}, "models, table 1: day"),
    ],
)
def test_rates_that_are_wrong_say_why(entry, words):
    with pytest.raises(DataFileError, match=words):
        rates_of(entry)


def test_rates_and_sizes_at_their_limits_are_read():
    assert rates_of({"rate": 1_000_000}) == (1e6, ())
    assert model_fleet._number(Path("a"), "models: ttft", "2", 2.0) == 2.0
    assert [model_fleet._sizes(most) for most in (1, 2, 3, 8)] == [[1], [1, 2], [1, 2], [1, 2, 4, 8]]
    assert [model_fleet._percent(share) for share in (0.5, 0.3331, 0.001, 1.0)] == ["50 %", "33.4 %", "0.1 %", "100 %"]


def drawn_plan(chips: int, per_chip: float, *, feasible=True, **more) -> SimpleNamespace:
    figures = {
        "chips": chips, "feasible": feasible, "reason": "too slow with --chips 4", "requests_per_second": per_chip * chips,
        "tokens_per_second_per_chip": 200.0, "throughput_range": (150.0, 240.0), "layout_text": f"tp{chips}",
        "tokens_per_second_per_user": 50.0, "ttft": 0.5, "slo_probability": {"tpot": 0.9, "ttft": 0.8}, "engine": "vllm",
    }  # fmt: skip
    return SimpleNamespace(**figures | more)


@pytest.fixture
def by_size(monkeypatch):
    """Requests/s of a chip by size of a deployment: absent for weights that do not fit, negative beyond the limits."""
    sizes: dict[int, float] = {}
    asked: list[dict] = []

    def plan(model, system, workload, slo, *, chips, **more):
        asked.append(more | {"chips": chips})
        if chips not in sizes:
            raise Impossible("needs --weights fp8")
        return drawn_plan(chips, abs(sizes[chips]), feasible=sizes[chips] > 0)

    monkeypatch.setattr(model_fleet, "plan", plan)
    monkeypatch.setattr(model_fleet, "load_model", lambda *_, **__: "a model")
    machine = SimpleNamespace(chips=8, chip=SimpleNamespace(vendor="NVIDIA"))
    monkeypatch.setattr(model_fleet, "load_system", lambda _: machine)

    def options(**system):
        work = st.Workload(input_tokens=9, output_tokens=9)
        model = FleetModel(name="a", rate=1.0, weights="fp8", workload=work, slo=st.Slo())
        kind = FleetSystem(**{"name": "s", "chips": 64, "usd_per_chip_hour": 3.0} | system)
        asked.clear()
        return model_fleet.fleet_options([replace(model, percentile="p95", sure=0.9)], [kind])[:2]

    return sizes, asked, options


def test_options_are_the_smallest_size_and_one_twice_as_large_that_serves_more(by_size):
    sizes, asked, options = by_size
    sizes |= {2: 1.0, 4: 1.03, 8: 9.0}
    found, reasons = options(engine="sglang")
    assert [(o.chips, o.rate, o.usd_per_hour, o.layout) for o in found] == [(2, 2.0, 6.0, "tp2"), (4, 4.12, 12.0, "tp4")]
    assert reasons == {}
    assert (found[0].slowest, found[0].fastest, found[0].probability, found[0].engine) == (0.75, 1.2, 0.8, "vllm")
    assert (found[0].speed, found[0].ttft) == (50.0, 0.5)
    assert [one["chips"] for one in asked] == [1, 2, 4]
    settings = dict.fromkeys(("alternatives", "elasticities", "front", "diagnostics"), False)
    settings |= {"engine": "sglang", "quick": True, "percentile": "p95", "sure": 0.9}
    assert all(one == settings | {"chips": one["chips"]} for one in asked)


@pytest.mark.parametrize(
    ("rates", "chips", "sizes", "reason"),
    [
        ({1: 1.0, 2: 1.02}, 64, [1], None),  # 2 % are no gain
        ({1: 1.0, 2: 0.5}, 64, [1], None),
        ({1: 1.0, 2: -1.0, 4: 3.0}, 64, [1], None),  # beyond the limits, larger ones are not tried
        ({1: -1.0, 2: -1.0, 4: 0.1, 8: 0.2}, 64, [4, 8], None),
        ({4: 1.0}, 3, [], 'needs weights = "fp8"'),  # 3 chips are 1 and 2
        ({8: -1.0}, 64, [], "too slow with 4 chips"),
        ({16: 1.0}, 64, [], 'needs weights = "fp8"'),  # a system of 8 chips
    ],
)
def test_sizes_of_options_by_hand(by_size, rates, chips, sizes, reason):
    planned, _, options = by_size
    planned |= rates
    found, reasons = options(chips=chips)
    assert [one.chips for one in found] == sizes
    assert reasons == ({} if reason is None else {(0, 0): reason})


def test_a_model_without_an_option_has_the_reason_of_a_whole_search(by_size, monkeypatch):
    """A quick search said "no such layout", and not which limit is too short."""
    _, _, options = by_size

    def plan(*_, chips, quick=False, **more):
        return drawn_plan(chips, 1.0, feasible=False, reason=NO_LAYOUT if quick else f"--ttft 0.001 on --chips {chips}")

    monkeypatch.setattr(model_fleet, "plan", plan)
    assert options() == ([], {(0, 0): "ttft 0.001 on 8 chips"})


def test_a_plan_without_a_range_or_a_limit_is_an_option_without_them():
    found = model_fleet._as_option(drawn_plan(2, 1.0, throughput_range=None, slo_probability={}), 0, 0, 6.0)
    assert (found.slowest, found.fastest, math.isnan(found.probability)) == (1.0, 1.0, True)


def test_rows_of_a_day_share_the_rent_of_their_system_by_chip_hours():
    """Two hours: 3 chips reserved at $2 and one on demand at $3 for an hour are $7.50, of which 5 of 7 chip-hours cost 5/7."""
    options = [option(0, 0, 1, 10.0, 2.0), option(1, 0, 2, 4.0, 4.0), option(1, 0, 4, 6.0, 8.0)]
    options[0] = replace(options[0], slowest=0.5, fastest=2.0, speed=30.0, ttft=0.2, probability=0.7)
    work = st.Workload(input_tokens=9, output_tokens=9)
    models = [FleetModel(name=name, rate=1.0, workload=work, slo=st.Slo()) for name in "ab"]
    models[0] = replace(models[0], slo=st.Slo(ttft=2.0, tpot=0.05), percentile="p95")
    systems = [FleetSystem(name="s", chips=8, usd_per_chip_hour=2.0, on_demand=3.0)]
    counts, rates = np.array([[3.0, 2.0], [0.0, 1.0], [0.0, 0.0]]), np.array([[30.0, 20.0], [0.0, 2.0]])
    day = model_fleet.DaySolution(counts, np.array([3.0]), np.array([[0.0, 1.0]]), 7.5, 0.0)
    first, second = model_fleet._rows(options, day, models, systems, rates)
    assert (first.model, first.system, first.deployments, first.chips, first.rate) == ("a", "s", 3, 3, 30.0)
    assert (first.by_hour, second.by_hour, second.chips, second.rate) == ((3, 2), (0, 1), 2, 4.0)
    assert (first.usd_per_hour, second.usd_per_hour) == pytest.approx((7.5 * 5 / 7, 7.5 * 2 / 7))
    # At twice its rate it needs 2 and 1 deployments in place of 3 and 2, at half of it 6 and 4.
    assert first.usd_range == pytest.approx((7.5 * 5 / 7 * 3 / 5, 7.5 * 5 / 7 * 2))
    assert (first.speed_limit, first.ttft_limit, first.percentile) == (pytest.approx(20.0), 2.0, "p95")
    assert (first.speed, first.ttft, first.probability) == (30.0, 0.2, 0.7)
    assert (second.speed_limit, second.ttft_limit, second.usd_range) == (None, math.inf, None)


def test_a_fleet_counts_its_chips_its_range_and_its_rent_apart(monkeypatch):
    """Peaks of 4 chips at two hours: 4 + 1 chips at $2 serve both; with its own chips for its peak, each has 4."""
    one = replace(option(0, 0, 1, 1.0, 2.0), slowest=0.5, fastest=2.0, engine="vllm")
    monkeypatch.setattr(model_fleet, "fleet_options", lambda *_: ([one, replace(one, model=1)], {}, 2))
    work = st.Workload(input_tokens=9, output_tokens=9)
    hours = (*[4.0] * 12, *[1.0] * 12)
    models = [
        FleetModel(name=name, rate=2.5, rates=rates, workload=work, slo=st.Slo())
        for name, rates in (("a", hours), ("b", hours[::-1]))
    ]
    fleet = plan_fleet(models, [FleetSystem(name="s", chips=16, usd_per_chip_hour=2.0)])
    assert (fleet.usd_per_hour, fleet.separate_usd_per_hour) == pytest.approx((10.0, 16.0))
    assert (fleet.chips_in_use, fleet.reserved_chips, fleet.on_demand_chip_hours) == ((5,), (5,), (0.0,))
    assert (fleet.options, fleet.possible_share, fleet.feasible) == (2, 1.0, True)
    # Each row costs $5, from 60 % with half of the deployments (rounded up) to twice as much.
    assert fleet.usd_range_together == pytest.approx((6.0, 20.0))
    low, high = fleet.usd_range
    assert 6.0 < low < 10.0 < high < 20.0
    always = plan_fleet([replace(model, rates=()) for model in models], [FleetSystem(name="s", chips=6, usd_per_chip_hour=2.0)])
    assert (always.usd_per_hour, always.separate_usd_per_hour, always.on_demand_chip_hours) == (12.0, 12.0, ())
    assert (always.chips_in_use, always.reserved_chips) == ((6,), (6,))
    few = plan_fleet(models, [FleetSystem(name="s", chips=5, usd_per_chip_hour=2.0)])
    assert (few.feasible, math.isnan(few.separate_usd_per_hour)) == (True, True)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ttft = 2", "ttft = 2\ncached = 1.0", "cached: must be a share of at least 0 and below 1"),
        ("ttft = 2", "ttft = 2\ncached = -0.1", "cached: must be"),
        ("ttft = 2", "ttft = 2\ncached = true", "cached: must be"),
        ("chips = 8\nrent = 4", "chips = 1000001\nrent = 4", "from 1 to 1,000,000, got 1,000,001"),
        ("chips = 8\nrent = 4", "chips = true\nrent = 4", "chips: must be a whole number"),
        ("chips = 8\nrent = 4", "chips = 8.0\nrent = 4", "chips: must be a whole number"),
        ("chips = 8\nrent = 4", "rent = 4", "chips: is missing"),
        ("input = 1000", "input = 1000000001", "input"),
        ("budget = 100", "budget = 1000000000001", "budget"),
        ("budget = 100", "budget = true", "budget: must be a number"),
        ("rent = 4", 'rent = 4\non_demand = "3.99"', "at least the reserved rent, \\$4.00 per hour, got \\$3.99"),
        ('name = "llama-3.1-8b"', "name = 3", "name: must be a text"),
        ('name = "llama-3.1-8b"', "", "models, table 1: name: must be a text"),
        ('name = "hgx-b200"', "", "systems, table 2: name: must be a text"),
    ],
)
def test_values_of_a_file_beyond_their_range_are_refused(tmp_path, old, new, words):
    with pytest.raises(DataFileError, match=words):
        read_fleet(written(tmp_path, FLEET.replace(old, new, 1)))


def test_values_of_a_file_at_the_ends_of_their_range_are_read(tmp_path):
    text = FLEET.replace("ttft = 2", "ttft = 2\ncached = 0.5").replace("chips = 8\nrent = 4", "chips = 1000000\nrent = 4")
    text = text.replace("rent = 4", "rent = 4\non_demand = 4")
    models, systems, budget = read_fleet(written(tmp_path, text.replace("budget = 100", "")))
    assert (models[0].workload.cached_share, models[1].workload.cached_share, budget) == (0.5, 0.0, math.inf)
    assert (systems[1].chips, systems[1].on_demand, systems[0].on_demand) == (1_000_000, pytest.approx(4.0), math.inf)
    assert (models[0].percentile, models[0].hourly(), models[1].weights, models[0].slo.ttft) == ("p90", (30.0,), "fp8", 2.0)


def test_a_file_has_at_most_a_hundred_models_and_fifty_systems():
    one = {"name": "x"}
    places = model_fleet._entries(Path("a"), {"models": [one, {}] * 50}, "models", model_fleet.MOST_MODELS)
    assert [place for place, _ in places[:2]] == ["models, table 1 ('x')", "models, table 2"]
    assert (len(places), model_fleet.MOST_SYSTEMS) == (100, 50)
    for entries in ([one] * 101, [], [one, 3], one, None):
        with pytest.raises(DataFileError):
            model_fleet._entries(Path("a"), {"models": entries}, "models", model_fleet.MOST_MODELS)


def test_a_program_without_an_answer_in_its_nodes_is_solved_without_that_limit(monkeypatch):
    calls = []

    def milp(cost, *, integrality, bounds, constraints, options):
        calls.append((integrality.tolist(), np.broadcast_to(bounds.ub, 2).tolist(), len(constraints), options))
        return SimpleNamespace(x=None if "node_limit" in options else cost, status=1)

    monkeypatch.setattr("scipy.optimize.milp", milp)
    patience, gap, row = fleet_program.PATIENCE, fleet_program.GAP, (np.ones((1, 2)), 0.0, 1.0)
    given = {"integral": np.array([1.0, 0.0]), "largest": np.array([3.0, 4.0])}
    assert fleet_program._minimum(np.ones(2), [row], **given, gap=0.25, nodes=7).x.tolist() == [1.0, 1.0]
    settings = {"time_limit": patience, "mip_rel_gap": 0.25}
    assert calls == [([1, 0], [3, 4], 1, settings | {"node_limit": 7}), ([1, 0], [3, 4], 1, settings)]
    calls.clear()
    fleet_program._minimum(np.ones(2), [])
    assert calls == [([1, 1], [math.inf] * 2, 0, {"time_limit": patience, "mip_rel_gap": gap})]
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: SimpleNamespace(x=None, status=2))
    assert fleet_program._minimum(np.ones(2), []) is None
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: SimpleNamespace(x=None, status=1))
    with pytest.raises(InputError, match="no answer in"):
        fleet_program._minimum(np.ones(2), [])


def test_options_serve_at_most_the_whole_rate_of_their_model():
    """10 of 30 requests/s are a third; 10 of 5 are all; nobody asks for the third model."""
    options = [option(0, 0, 1, 10.0, 2.0), option(1, 1, 4, 10.0, 8.0), option(2, 0, 2, 10.0, 4.0)]
    served, used, rent = fleet_program._program(options, [30.0, 5.0, 0.0], 2)
    assert served.tolist() == [[pytest.approx(1 / 3), 0, 0], [0, 1, 0], [0, 0, 1]]
    assert (used.tolist(), rent.tolist()) == ([[1, 0, 2], [0, 4, 0]], [2, 8, 4])
    assert fleet_program._budget_row(rent, math.inf) == []
    ((row, low, high),) = fleet_program._budget_row(rent, 7.0)
    assert (row.tolist(), low, high) == ([[2, 8, 4]], -math.inf, 7.0)
