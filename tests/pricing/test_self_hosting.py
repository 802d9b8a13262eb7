"""Own chips against an API: costs by hand, the break-even volume, and the command."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.cli.views.prices_view import self_hosting_view
from steptime.errors import InputError, RangeError
from steptime.planning import planner
from steptime.planning.fleet import MONTH, size_fleet
from steptime.pricing import market, self_hosting
from steptime.pricing.self_hosting import FleetUnit, _plan_sizes, _plans, break_even_rate
from steptime.units import DAY, MILLION
from tests.cli.test_commands import run
from tests.conftest import CHOICE_ALONE

AMOUNT = some.floats(0.01, 100)


@pytest.fixture(scope="module")
def compared():
    """100 million tokens a day of requests of 1,250 tokens: 0.926 a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "find_spec", lambda name: None)
        return st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=1e8, mix="1000:250", chips=1)


UNITS = some.builds(FleetUnit, capacity=AMOUNT, host_rent=AMOUNT, per_host=some.integers(1, 8), hosts_each=some.just(1))


@given(AMOUNT, some.lists(UNITS, min_size=1, max_size=3), some.integers(0, 3))
def test_own_chips_cost_no_more_from_the_break_even_rate_on(price, units, spare):
    rate = break_even_rate(price, units, spare=spare)
    if math.isnan(rate):
        # Even full hosts without spares cost nearly as much, at the largest fleets too.
        assert min(unit.usd_per_request for unit in units) > price * 0.99 or spare or len(units) > 1
        return

    def own(requests: float) -> float:
        return min(
            size_fleet(
                requests, served=unit.capacity, replica_chips=1, host_chips=unit.per_host,
                chip_rent=unit.host_rent / unit.per_host, output_tokens=1, spare=spare,
            ).usd_per_month
            for unit in units
        ) / MONTH  # fmt: skip

    smallest = min(unit.capacity for unit in units)
    for share in (1.0, 1.01, 1.5, 3.0, 10.0):
        if share * rate < 1000 * smallest:
            assert own(share * rate) <= share * rate * price * (1 + 1e-6)
    # Just below, they cost more, or the next fleet does.
    below = rate * (1 - 1e-6)
    assert own(below) > below * price * (1 - 1e-5)


def test_a_volume_by_hand(compared, monkeypatch):
    found = compared
    api, own = found.provisions[-2], found.provisions[-1]
    assert found.rate == pytest.approx(1e8 / 1250 / DAY)
    for provision in found.provisions:
        assert provision.usd_per_month == pytest.approx(provision.usd_per_request * found.rate * MONTH)
        assert provision.usd_per_million_tokens == pytest.approx(provision.usd_per_request * MILLION / 1250)
    assert own.usd_per_month == found.fleet.usd_per_month
    # Eight replicas of one chip fill a host, whose full load is eight times that of one.
    capacity = found.rate / found.fleet.utilisation / found.fleet.replicas
    full = found.fleet.usd_per_month / found.fleet.hosts / MONTH / 8 / capacity
    assert found.break_even_utilisation == pytest.approx(full / api.usd_per_request)
    lowest = found.provisions[0].usd_per_request
    assert found.cheapest_break_even_utilisation == pytest.approx(full / lowest)
    assert not found.cheapest_break_even_tokens_per_day < found.break_even_tokens_per_day
    monkeypatch.setattr(market, "token_costs", lambda *_, **__: [])
    sold = st.survey_prices("llama-3.1-8b", mix="1000:250", chips=8)
    assert api.usd_per_request == pytest.approx(sold.median_price)


def test_own_chips_have_the_plan_of_the_cheapest_fleet(monkeypatch, closed_forms):
    """Plans by chips: 8 do not hold the model, and 32 have no fleet within the limits."""
    work = st.Workload(input_tokens=1000, output_tokens=250)
    plain = st.plan("llama-3.1-8b", "hgx-h100", work, rate=1.0, **CHOICE_ALONE)

    def planned(chips: int) -> Any:
        if chips == 8:
            raise InputError("does not fit")
        rents = {16: 9.0, 24: 7.0, 40: 8.0}
        return replace(plain, chips=chips, fleet=replace(plain.fleet, usd_per_month=rents[chips]) if chips in rents else None)

    monkeypatch.setattr(self_hosting, "map_in_processes", lambda work, items: [work(item) for item in items])
    assert [each.chips for each in _plans(planned, [8, 16, 24, 32, 40])] == [24, 40, 16, 32]
    with pytest.raises(InputError, match="does not fit"):
        _plans(planned, [8])


@pytest.mark.thorough
def test_the_volume_that_is_asked_does_not_move_the_break_even(monkeypatch, closed_forms):
    monkeypatch.setattr(self_hosting, "_plan_sizes", lambda _: [8, 16])
    one, two = (st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=n, mix="1000:250") for n in (1e8, 5e10))
    assert one.break_even_tokens_per_day == pytest.approx(two.break_even_tokens_per_day)
    own = two.provisions[-1].usd_per_month
    assert (own < two.provisions[-2].usd_per_month) == (two.break_even_tokens_per_day < 5e10)
    assert one.weights == "fp8"


def test_sizes_of_plans_are_multiples_of_the_usual_one():
    assert _plan_sizes(st.load_system("hgx-h200")) == [8, 16, 24, 32, 40, 48, 56, 64]
    assert _plan_sizes(st.load_system("gb200-nvl72")) == [72]


@pytest.mark.parametrize(("usd_per_month", "words"), [(2.0, "(2x as much)"), (5e9, "(more than 1,000x as much)")])
def test_a_ratio_above_a_thousand_has_no_digits(compared, usd_per_month, words):
    ends = zip(compared.provisions[-2:], (1.0, usd_per_month), strict=True)
    api, own = (replace(one, usd_per_month=usd) for one, usd in ends)
    assert words in self_hosting_view(replace(compared, provisions=(api, own))).sentence


def test_what_cannot_be_compared(closed_forms):
    with pytest.raises(InputError):
        st.compare_self_hosting("gpt-2", "hgx-h100", tokens_per_day=1e8)
    with pytest.raises(RangeError):
        st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=0)
    slow = st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=1e8, speed=1e5, chips=8)
    assert (slow.feasible, slow.fleet, bool(slow.reason), bool(slow.provisions)) == (False, None, True, True)


def test_the_command(compared, closed_forms):
    shown = run("prices llama-3.1-8b --self-host hgx-h100 --tokens-per-day 100M --mix 1000:250 --chips 1 --json")
    data = json.loads(shown.stdout)
    assert data["provisions"][-1]["usd_per_month"] == pytest.approx(compared.provisions[-1].usd_per_month)
    assert run("prices llama-3.1-8b --self-host hgx-h100").returncode == 2
    assert run("prices llama-3.1-8b --self-host hgx-h100 --tokens-per-day 100M --date 2026-03-01").returncode == 2


@pytest.mark.parametrize(
    ("name", "weights"), [("gpt-oss-20b", "native"), pytest.param("llama-3.1-8b", "fp8", marks=pytest.mark.thorough)]
)
def test_the_note_names_a_weight_format_only_where_hosts_change_it(name, weights, closed_forms):
    """16-bit weights would be twice the model whose experts are stored in MXFP4."""
    found = st.compare_self_hosting(name, "hgx-h100", tokens_per_day=1e8, mix="1000:250", chips=1)
    (command,) = (note.partition("steptime compare ")[2] for note in found.notes if "steptime compare" in note)
    assert found.weights == weights
    assert ("--weights" in command) == (weights != "native")
    first = json.loads(run(f"compare {command} --json").stdout)["standings"][0]
    assert first["usd_per_month"] == pytest.approx(found.fleet.usd_per_month)


def test_the_compare_command_of_the_note_has_the_same_fleet(compared, closed_forms):
    """A reader who compares both commands gets one cost."""
    command = compared.notes[-1].partition("steptime compare ")[2]
    first = json.loads(run(f"compare {command} --json").stdout)["standings"][0]
    assert first["usd_per_month"] == pytest.approx(compared.fleet.usd_per_month)
    assert "20 % of these tokens are output" in compared.notes[-1]
