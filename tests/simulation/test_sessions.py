"""Sessions: turns whose prompts repeat the history, in time and in the prefix cache."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError, RangeError, UnknownName
from steptime.models.model import cached_token_bytes
from steptime.simulation.loop_state import DONE
from steptime.simulation.prefix_cache import Cache, Tier
from steptime.workload.sessions import (
    PRESETS,
    Sessions,
    as_workload,
    draw_sessions,
    held_share,
    mean_history,
    read_turns,
    turn_shares,
)
from steptime.workload.traffic import scaled
from tests.cli.test_commands import run
from tests.conftest import each

CHAT = PRESETS["chat"]
# Equal turns: 100 tokens in, 50 out.
EQUAL = Sessions(turns=4, input_tokens=100, output_tokens=50, think_time=10, system_prompt=64, input_spread=0, output_spread=0)
MODEL = "llama-3.1-8b"


def test_a_prompt_is_the_system_prompt_the_history_and_the_new_input():
    traffic = draw_sessions(EQUAL, rate=2, requests=2000)
    turns = traffic.turns
    number = np.arange(len(turns.session)) - np.searchsorted(turns.session, turns.session)
    assert np.array_equal(turns.inputs, 64 + 150 * number + 100)
    assert np.array_equal(traffic.inputs, turns.inputs[traffic.turn])
    assert set(traffic.outputs.tolist()) == {50}


def test_the_shares_of_turns_are_geometric_and_end_at_the_context():
    # Of 1 + 1/2 + 1/4 requests of the sessions of two turns on average, three fit 600 tokens.
    two = Sessions(turns=2, input_tokens=100, output_tokens=100, think_time=1)
    assert turn_shares(two, 600) == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    # (0 x 4 + 1 x 2 + 2 x 1) / 7 turns of 200 tokens.
    assert mean_history(two, 600) == pytest.approx(200 * 4 / 7)
    # Without an end, one turn fewer than the mean comes before a request.
    assert mean_history(EQUAL) == pytest.approx(3 * 150)
    assert held_share(EQUAL) == pytest.approx((64 + 450) / (64 + 450 + 100))


def test_as_many_turns_are_drawn_as_asked_where_few_fit_the_context():
    """Of 20 turns of 457 tokens two fit 1,024 tokens, and fewer where they are unequal."""
    sessions = Sessions(turns=20, input_tokens=253, output_tokens=204, think_time=124, input_spread=0.5, output_spread=0.5)
    traffic = draw_sessions(sessions, rate=39, requests=6000, longest=1024)
    assert (len(traffic), len(traffic.earlier)) == (6000, 6000)
    assert traffic.rate == pytest.approx(39, rel=0.02)


def test_drawn_prompts_have_the_mean_and_the_spread_of_the_workload():
    sessions = replace(CHAT, system_prompt=500)
    traffic, workload = draw_sessions(sessions, rate=5, requests=40_000, longest=20_000), as_workload(sessions, 0, 20_000)
    assert np.mean(traffic.inputs) == pytest.approx(workload.input_tokens, rel=0.03)
    assert np.std(traffic.inputs) / np.mean(traffic.inputs) == pytest.approx(workload.input_spread, rel=0.05)
    assert traffic.rate == pytest.approx(5, rel=0.03)
    assert np.max(traffic.inputs + traffic.outputs) <= 20_000


def test_the_presets_have_their_published_figures():
    agent = PRESETS["agent"]
    # 357,161 calls with 186.9 M output tokens, and 609 M tokens of context growth.
    assert agent.output_tokens == pytest.approx(186.9e6 / 357_161, rel=0.01)
    assert agent.growth == pytest.approx(608.8e6 / 357_161, rel=0.01)
    assert CHAT.think_time == pytest.approx(86 / math.log(2), rel=0.01)
    # At the mean of 83 calls a session, prompts are as long as the mean of the trace, 54.9 G tokens.
    assert as_workload(replace(agent, turns=83), 0).input_tokens == pytest.approx(54.9e9 / 357_161, rel=0.05)
    assert held_share(agent) > 0.95


def simulate(traffic, **arguments):
    return st.simulate(MODEL, "hgx-h100", traffic, engine="ideal", **arguments)


def cache_of(*tokens, bandwidth=1e15):
    width = cached_token_bytes(st.load_model(MODEL))
    return Cache(
        tiers=tuple(
            Tier(name=name, capacity=size * width, bandwidth=bandwidth)
            for name, size in zip(("hbm", "host", "ssd"), tokens, strict=False)
        )
    )


def test_a_turn_arrives_a_think_time_after_the_answer_before():
    result = simulate(draw_sessions(CHAT, rate=5, requests=4000))
    traffic, requests, turns = result.traffic, result.requests, result.traffic.turns
    place = np.full(len(turns.session), -1)
    place[traffic.turn] = np.arange(len(traffic))
    follows = np.flatnonzero((traffic.turn > 0) & (turns.session[traffic.turn] == turns.session[traffic.turn - 1]))
    before = place[traffic.turn[follows] - 1]
    follows, before = follows[before >= 0], before[before >= 0]
    assert len(follows) > 1500
    wait = requests["arrival"][follows] - requests["finish"][before]
    # Runs agree within a small part of the time between turns.
    assert np.mean(np.abs(wait - turns.think[traffic.turn[follows]])) < 0.03 * (CHAT.think_time + 5)


def test_hits_end_at_what_sessions_repeat_and_grow_with_the_tier():
    traffic = draw_sessions(EQUAL, rate=5, requests=4000)
    rates = [simulate(traffic, cache=cache_of(size)).cache.hit_rate for size in (0, 3_000, 6_000, 12_000, 10**7)]
    assert rates[0] == 0
    assert rates == sorted(rates)
    # Half a block of 16 tokens is computed again.
    assert rates[-1] == pytest.approx(held_share(EQUAL) - 8 / 614, abs=0.02)


def test_two_tiers_find_what_one_of_their_size_finds():
    traffic = draw_sessions(CHAT, rate=5, requests=4000)
    one, two = (simulate(traffic, cache=cache_of(*sizes)).cache for sizes in ((0, 800_000), (200_000, 600_000)))
    assert two.hit_rate == pytest.approx(one.hit_rate, abs=0.005)
    assert sum(tier.hit_share for tier in two.by_tier) == pytest.approx(two.hit_rate)
    assert two.by_tier[1].hit_share > two.by_tier[0].hit_share > 0


def test_loads_from_a_slower_tier_delay_the_first_token():
    traffic = draw_sessions(CHAT, rate=2, requests=3000)
    fast, slow = (simulate(traffic, cache=cache_of(0, 10**8, bandwidth=width)) for width in (1e15, 20e9))
    assert slow.cache.hit_rate > 0.9 * fast.cache.hit_rate
    assert slow.answers.ttft.mean > fast.answers.ttft.mean


def test_turns_stay_with_their_history_if_the_router_knows_it():
    traffic = draw_sessions(CHAT, rate=8, requests=4000)
    layout, tiers = st.Layout(replicas=4), cache_of(0, 10**8)
    hits = {
        route: simulate(traffic, cache=tiers, layout=layout, policy=st.Policy(route=route)).cache.hit_rate
        for route in ("round-robin", "prefix-aware")
    }
    assert hits["prefix-aware"] == pytest.approx(simulate(traffic, cache=tiers).cache.hit_rate, abs=0.03)
    assert hits["round-robin"] < 0.7 * hits["prefix-aware"]


def test_a_longer_think_time_lowers_the_hit_rate():
    rates = [
        simulate(draw_sessions(replace(CHAT, think_time=think), rate=5, requests=8000), cache=cache_of(400_000)).cache.hit_rate
        for think in (20, 60, 180)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 2 * rates[2]


def test_an_overloaded_run_stops_and_says_so():
    result = simulate(draw_sessions(PRESETS["agent"], rate=20, requests=1000, longest=131_072))
    assert result.answers.verdict == "OVERLOADED"
    assert np.all(result.requests["status"] == DONE)


def test_a_scaled_rate_starts_more_sessions_and_keeps_think_times():
    traffic = draw_sessions(EQUAL, rate=2, requests=4000)
    twice = scaled(traffic, 1.25)
    assert twice.rate == pytest.approx(1.25 * traffic.rate, rel=0.05)
    assert np.array_equal(twice.turns.think, traffic.turns.think)


@each("value", ["chta", "", None])
def test_unknown_kinds_are_refused(value):
    with pytest.raises(UnknownName, match="kind of sessions"):
        read_turns(value)


@each(
    "changes, words",
    [({"turns": 0.5}, "turns"), ({"think_time": -1}, "think_time"), ({"input_tokens": 0}, "input tokens per turn")],
)
def test_impossible_sessions_are_refused(changes, words):
    with pytest.raises(RangeError, match=words):
        replace(EQUAL, **changes)


def test_a_turn_must_fit_the_context():
    with pytest.raises(InputError, match="one turn must fit the context of the model, 200 tokens, got 214"):
        draw_sessions(EQUAL, rate=1, requests=10, longest=200)


def test_the_command_reports_hits_by_tier():
    asked = f"simulate {MODEL} hgx-h100 --sessions chat --rate 5 --requests 2000 --prefix-cache hbm=20GB,host=200GB"
    shown = run(asked)
    assert shown.returncode == 0
    assert "of prompt tokens hit the cache" in shown.stdout
    usual, longer = (json.loads(run(f"{asked}{more} --json").stdout) for more in ("", " --input 1024 --think-time 60"))
    assert sum(tier["hit_share"] for tier in usual["cache"]["tiers"]) == pytest.approx(usual["cache"]["hit_rate"], abs=1e-6)
    # Figures of the user replace those of the kind, even where they are the default of an option.
    assert longer["answers"]["input_tokens_per_s"] > 1.5 * usual["answers"]["input_tokens_per_s"]


@each(
    "asked, words",
    [
        ("--sessions chat --concurrency 4", "--sessions needs --rate or --find-rate"),
        ("--sessions 0.5 --rate 1", "from 1 to 10,000 turns"),
        ("--think-time 5 --rate 1", "--think-time needs --sessions"),
        ("--sessions chat --rate 1 --prefixes 3 --prefix-cache hbm=1GB", "--prefixes needs requests without --sessions"),
        ("--sessions chat --rate 1 --think-time -1", "think-time must be at least 0"),
    ],
)
def test_wrong_options_are_refused(asked, words):
    result = run(f"simulate {MODEL} hgx-h100 {asked}")
    assert result.returncode == 2
    assert words in " ".join(result.stderr.split())
