"""The fewest replicas within limits: the search, and the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.errors import Impossible
from steptime.simulation import max_rate
from steptime.simulation.max_rate import fewest_replicas, find_replicas
from steptime.simulation.run_metrics import MOST_GROWTH, in_flight_growth
from steptime.workload.traffic import Lengths
from tests.cli.test_commands import run
from tests.conftest import each

REQUEST = "simulate llama-3.1-8b hgx-h100 --rate 60 --requests 3000 --input 1000 --output 200 --lengths lognormal --spread 1"


@given(some.integers(1, 300), some.integers(1, 256))
def test_the_search_finds_the_first_that_is_enough_in_few_tries(enough, most):
    tried = []
    found = fewest_replicas(lambda count: tried.append(count) or count >= enough, most)
    assert found == (enough if enough <= most else None)
    assert len(tried) == len(set(tried)) <= 18
    assert max(tried) <= most


def test_one_less_misses_the_limits():
    shown = json.loads(run(f"{REQUEST} --speed 60 --ttft 0.5 --find-replicas --json").stdout)
    count, sent = shown["layout"]["replicas"], shown["answers"]["sent"]
    assert (count > 1, shown["limits"]["is_met"]) == (True, True)
    request = REQUEST.replace("--requests 3000", f"--requests {sent}")
    less = run(f"{request} --speed 60 --ttft 0.5 --replicas {count - 1} --json")
    assert (less.returncode, json.loads(less.stdout)["limits"]["is_met"]) == (1, False)


def replicas_for(rate, requests, **limits):
    lengths = (Lengths(mean=mean, shape="lognormal", spread=1.0) for mean in (1000, 200))
    inputs, outputs = lengths
    return find_replicas(
        st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), lambda n: st.open_loop(rate, n, inputs, outputs),
        requests=requests, slo=st.Slo(**limits), percentile="p90", layout=st.Layout(), engine=st.load_engine("vllm"),
    )  # fmt: skip


@pytest.mark.thorough
def test_replicas_grow_with_the_rate_because_runs_are_steady():
    one, many = (replicas_for(rate, 1000, speed=60, ttft=0.5) for rate in (60, 1200))
    # A short run of many replicas that never fill would show far fewer than twenty times as many.
    assert 0.8 * 20 * one.replicas <= many.replicas <= 20 * one.replicas
    run = st.simulate(
        "llama-3.1-8b", "hgx-h100", many.traffic, layout=st.Layout(replicas=many.replicas), slo=st.Slo(speed=60, ttft=0.5)
    )
    answers, rows = run.answers, run.requests
    assert answers.verdict == "STABLE"
    assert answers.arriving >= 5 * (answers.steady_from - rows["arrival"].min())
    assert in_flight_growth(rows["arrival"], rows["finish"], answers.steady_from) <= MOST_GROWTH
    assert many.fewer


def test_few_requests_are_only_the_fewest():
    few, several = (replicas_for(60, requests, speed=60, ttft=0.5) for requests in (50, 4000))
    assert few.replicas == several.replicas
    assert len(few.traffic) > 50


@pytest.mark.thorough
def test_what_cannot_be_simulated_has_no_number(monkeypatch):
    with pytest.raises(Impossible, match="no number of replicas up to 1,024"):
        replicas_for(1e6, 4000, speed=60, ttft=0.5)
    monkeypatch.setattr(max_rate, "MAX_REQUESTS", 16_000)
    with pytest.raises(Impossible, match="too short for a steady state"):
        replicas_for(2000, 4000, speed=60, ttft=0.5)


def test_a_trace_that_is_too_short_has_no_number():
    lengths = Lengths(mean=500), Lengths(mean=200)
    with pytest.raises(Impossible, match="arrivals of 40 requests"):
        find_replicas(
            st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), lambda _: st.open_loop(60, 40, *lengths),
            requests=4000, slo=st.Slo(ttft=1), percentile="p90", layout=st.Layout(),
        )  # fmt: skip


def test_requests_that_no_replica_serves_are_not_in_flight():
    traffic = st.open_loop(20, 8000, Lengths(mean=500), Lengths(mean=100))
    long = replace(traffic, inputs=np.where(np.arange(8000) % 20, 500, 200_000))
    found = find_replicas(
        st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), lambda _: long, requests=8000, slo=st.Slo(ttft=1),
        percentile="p90", layout=st.Layout(),
    )  # fmt: skip
    assert found.replicas == 1


@pytest.mark.thorough
@pytest.mark.parametrize("limits", [{"ttft": 60.0}, {"ttft": 3600.0}])
def test_a_lenient_limit_does_not_name_a_saturated_number(limits):
    found = replicas_for(200, 4000, **limits)
    run = st.simulate(
        "llama-3.1-8b", "hgx-h100", found.traffic, layout=st.Layout(replicas=found.replicas), slo=st.Slo(**limits)
    )
    assert (run.answers.verdict, run.limits.is_met) == ("STABLE", True)


@each("options", ["", "--ttft 1 --replicas 2", "--ttft 1 --prefill-replicas 1"])
def test_what_the_search_needs(options):
    assert run(f"{REQUEST} {options} --find-replicas").returncode == 2


@pytest.mark.thorough
def test_limits_that_no_number_meets():
    shown = run(f"{REQUEST} --ttft 0.000001 --find-replicas --json")
    assert (shown.returncode, json.loads(shown.stdout)["error"]) == (1, "Impossible")
