"""Autoscaler: the rule by hand, the limits of a fixed fleet, cold starts, hours and dollars, and arrivals that follow a day."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for
from steptime.errors import InputError, RangeError, UnitError
from steptime.questions.declaration import bind
from steptime.questions.simulate_question import AutoscalerInputs
from steptime.units import DAY, HOUR
from steptime.workload.day_profile import named_profiles, profile_of_ratio, read_day, with_day
from steptime.workload.traffic import Lengths, closed_loop, open_loop

pytest.importorskip("numba")
from steptime.physics.layout import Layout
from steptime.simulation import autoscaler as module
from steptime.simulation.autoscaler import Autoscaler, cold_start_seconds, read_autoscale
from steptime.simulation.simulator import simulate
from tests.conftest import each

SUBJECT = ("llama-3.1-8b", "hgx-h100")


def requests(rate=20.0, n=4000, seed=1, kind="poisson"):
    return open_loop(rate, n, Lengths(mean=256), Lengths(mean=64), seed=seed, kind=kind)


@each(
    "metric, replicas, wanted",
    [
        # ceil(100 / 20) = 5, at most twice as many or 4 more.
        (100.0, 3, 5), (100.0, 1, 5), (400.0, 1, 5), (400.0, 6, 12),
        # Within a tenth of the target, 60, nothing changes.
        (65.0, 3, 3), (55.0, 3, 3), (67.0, 3, 4),
        # The limits are 1 and 16; nothing left to do asks for the fewest.
        (900.0, 15, 16), (0.0, 3, 1),
    ],
)  # fmt: skip
def test_the_rule_is_that_of_the_kubernetes_autoscaler(metric, replicas, wanted):
    control = np.array([1, 16, 0, 20.0, 15.0, 0.0, 0.0])
    assert module._desired.py_func(metric, replicas, np.zeros(1, dtype=np.int64), 0, control) == wanted


def test_fewer_replicas_must_be_enough_for_the_whole_wait():
    """The window has 4 readings: one of 5 replicas keeps 5 until it has left the window."""
    control, window = np.array([1, 16, 0, 20.0, 15.0, 0.0, 0.0]), np.ones(4, dtype=np.int64)
    replicas, seen = 5, []
    for turn, metric in enumerate([100.0, 20.0, 20.0, 20.0, 20.0]):
        replicas = module._desired.py_func(metric, replicas, window, turn, control)
        seen.append(replicas)
    assert seen == [5, 5, 5, 5, 1]


def test_a_cold_start_is_pull_and_load_and_start():
    # 16.06 GB at 2 GB/s, by hand.
    assert cold_start_seconds(16.06e9, image_pull=100.0, load_bandwidth=2e9, engine_start=64.0) == pytest.approx(172.03)
    assert abs(module.LOAD_BANDWIDTH - 0.892e9) < 1e6


@each("text", ["3", "0:4", "5:4", "a:b", "1:2:3", "-1:2", ""])
def test_a_wrong_pair_of_limits_is_refused(text):
    with pytest.raises(RangeError, match="autoscale"):
        read_autoscale(text)


def test_equal_limits_are_the_fixed_fleet_exactly():
    traffic = requests()
    fixed = simulate(*SUBJECT, traffic, layout=Layout(replicas=3))
    scaled = simulate(*SUBJECT, traffic, autoscaler=Autoscaler(minimum=3, maximum=3, target=10.0))
    for name in fixed.requests.dtype.names:
        assert np.array_equal(scaled.requests[name], fixed.requests[name], equal_nan=True), name
    ours, theirs = scaled.to_dict(), fixed.to_dict()
    assert ours.pop("scaling") is not None
    theirs.pop("scaling", None)
    assert ours == theirs
    assert scaled.scaling.usd == pytest.approx(scaled.scaling.fixed_usd)
    assert scaled.scaling.starts == 0


def test_what_an_autoscaler_cannot_do_is_refused():
    rule = Autoscaler(minimum=1, maximum=2, target=10.0)
    with pytest.raises(RangeError, match="closed loop"):
        simulate(*SUBJECT, closed_loop(2, 10, Lengths(mean=8), Lengths(mean=2)), autoscaler=rule)
    with pytest.raises(RangeError, match="at most 10,000,000 readings"):
        simulate(*SUBJECT, requests(rate=1e-6, n=10), autoscaler=Autoscaler(minimum=1, maximum=2, target=10.0, interval=0.1))
    with pytest.raises(RangeError, match="prefill"):
        simulate(*SUBJECT, requests(n=10), prefill=Layout(), autoscaler=rule)
    with pytest.raises(InputError, match="metric"):
        Autoscaler(minimum=1, maximum=2, target=10.0, metric="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("route", ["round-robin", "least-loaded"])
def test_a_target_that_is_never_reached_is_the_fixed_fleet(route):
    from steptime.simulation.scheduling_policy import Policy

    traffic, policy = requests(), Policy(route=route)
    fixed = simulate(*SUBJECT, traffic, layout=Layout(replicas=2), policy=policy)
    scaled = simulate(*SUBJECT, traffic, policy=policy, autoscaler=Autoscaler(minimum=2, maximum=3, target=1e9))
    assert scaled.scaling.largest == 2
    # The readings split runs of equal steps, whose sums differ in the last bits.
    assert scaled.requests["finish"] == pytest.approx(fixed.requests["finish"], rel=1e-9)


@pytest.mark.slow
def test_replicas_follow_the_load_after_their_cold_start():
    """Constant arrivals: Little's law gives the requests in the system, and the rule the replicas."""
    rule = Autoscaler(minimum=1, maximum=12, target=4.0, cold_start=50.0, interval=10.0, scale_down_wait=60.0)
    traffic = requests(rate=40.0, n=40 * 1200, kind="constant")
    run = simulate(*SUBJECT, traffic, engine="ideal", autoscaler=rule)
    scaling, done = run.scaling, run.requests
    late = done["arrival"] > 600
    in_system = 40.0 * float(np.mean((done["finish"] - done["arrival"])[late]))
    # At the end nothing changes: the requests are within a tenth of the target, or fewer than a replica more would need.
    replicas = int(scaling.rented[-1])
    assert replicas == max(1, math.ceil(in_system / rule.target)) or abs(in_system / (rule.target * replicas) - 1) <= 0.11
    # A replica takes requests from the first reading after its cold start.
    first = int(np.argmax(scaling.rented > 1))
    ready = int(np.argmax(scaling.ready > 1))
    assert first > 0
    assert scaling.times[ready] - scaling.times[first] == pytest.approx(50.0)
    assert np.all(scaling.ready <= scaling.rented)
    # Rented time is the sum over the readings, to one interval for each change.
    changes = int(np.abs(np.diff(scaling.rented)).sum())
    total = float(scaling.rented[:-1].sum()) * rule.interval
    assert abs(scaling.replica_hours * HOUR - total) <= (changes + replicas) * rule.interval
    assert np.all(done["status"] == done["status"][0])


@pytest.mark.slow
def test_a_day_costs_less_than_a_fixed_fleet_and_its_dollars_are_its_hours():
    traffic = with_day(requests(rate=0.5, n=43_200), profile_of_ratio(3.0))
    rule = Autoscaler(minimum=1, maximum=8, target=1.0, cold_start=120.0)
    run = simulate(*SUBJECT, traffic, autoscaler=rule)
    scaling = run.scaling
    assert scaling.largest > 1
    assert scaling.replica_hours < scaling.fixed_replica_hours
    assert scaling.usd / scaling.replica_hours == pytest.approx(scaling.fixed_usd / scaling.fixed_replica_hours)
    assert scaling.fixed_replica_hours == pytest.approx(scaling.largest * float(traffic.arrival[-1]) / HOUR)
    assert 0 < scaling.busy_share <= 1
    assert run.to_dict()["scaling"]["replica_hours"] == pytest.approx(scaling.replica_hours)


def test_arrivals_follow_the_profile_of_a_day():
    """Two days at 1 request/s: each hour has its share, within five standard deviations of Poisson counts."""
    shape = read_day("chat")
    traffic = with_day(open_loop(1.0, 172_800, Lengths(mean=8), Lengths(mean=2), seed=3), shape)
    assert np.all(np.diff(traffic.arrival) >= 0)
    for day in (0, 1):
        inside = traffic.arrival[(traffic.arrival >= day * DAY) & (traffic.arrival < (day + 1) * DAY)] - day * DAY
        counts = np.histogram(inside, bins=np.arange(25) * HOUR)[0]
        # The last arrivals may come a little before the end of the second day.
        expected = shape * HOUR
        assert np.all(np.abs(counts - expected)[:23] <= 5 * np.sqrt(expected[:23]))


def test_profiles_have_a_mean_of_one_and_their_peak():
    for name in named_profiles():
        shape = read_day(name)
        assert float(shape.mean()) == pytest.approx(1.0)
        assert int(read_day(name, 5).argmax()) == 5
    for ratio in (1.0, 1.3, 2.0, 5.0, 12.0):
        shape = profile_of_ratio(ratio, 20)
        assert (float(shape.max()), float(shape.mean())) == pytest.approx((ratio, 1.0), rel=1e-6)
    for wrong in ("cha", 0.5, 13, [1.0] * 23, [0.0] * 24, [-1.0] + [1.0] * 23, True, None):
        with pytest.raises(InputError, match="day"):
            read_day(wrong)
    with pytest.raises(RangeError, match="peak_hour"):
        read_day("chat", 24)


def test_the_command_simulates_a_day_with_an_autoscaler():
    words = ["simulate", *SUBJECT, "--rate", "5", "--requests", "300", "--day", "2", "--peak-hour", "0", "--autoscale", "2:2"]
    ran = CliRunner().invoke(app_for(["simulate"]), [*words, "--json"])
    assert ran.exit_code == 0, ran.output
    data = json.loads(ran.stdout)["scaling"]
    # No image pull is given: the default of 510 s, 16.06 GB over 0.892 GB/s, and 64 s.
    assert data["autoscaler"]["cold_start_s"] == pytest.approx(510 + 16.06e9 / 0.892e9 + 64, rel=0.01)
    assert data["autoscaler"]["target"] == pytest.approx(0.7 * 256)
    ran = CliRunner().invoke(app_for(["simulate"]), words)
    assert "Replicas over time" in ran.stdout
    # The run is shorter than a cold start, which is said before the number of replicas.
    page = " ".join(ran.stdout.split())
    assert 0 < page.index("changes nothing") < page.index("--requests 432000") < page.index("2 replicas rented: ")
    assert page.index("2 replicas rented: ") < page.index("hour 0 of the day")
    for refused in (["--replicas", "3"], ["--find-replicas", "--ttft", "1"], ["--cold-start", "3", "--image-pull", "2"]):
        ran = CliRunner().invoke(app_for(["simulate"]), [*words, *refused])
        assert ran.exit_code != 0


@each("bandwidth", ["2", "0", "-1e9", 2])
def test_a_load_bandwidth_without_its_unit_is_refused(bandwidth):
    values = {"model": "llama-3.2-1b", "system": "hgx-h100", "rate": 2, "autoscale": "1:2", "load_bandwidth": bandwidth}
    with pytest.raises(RangeError, match=r"load_bandwidth: must be at least 1 MB/s, got .* B/s; write a unit, such as 2GB/s"):
        st.ask("simulate", **values)


def test_a_load_bandwidth_may_have_its_unit():
    for written in ("2GB/s", "2e9", 2e9):
        inputs = bind(AutoscalerInputs, {"autoscale": "1:2", "load_bandwidth": written}, "simulate")
        rule = inputs.autoscaler(st.load_model("llama-3.2-1b"), 8)
        assert rule.cold_start == pytest.approx(510 + 2.4716e9 / 2e9 + 64, rel=1e-4)
    with pytest.raises(UnitError, match="load_bandwidth: must be a number in B/s, got '2 GB', which is a quantity in B"):
        bind(AutoscalerInputs, {"load_bandwidth": "2 GB"}, "simulate")
