"""What no traffic, schedule or trace is, and a machine without a place for compiled code."""

from __future__ import annotations

import math

import numpy as np
import pytest

import steptime as st
from steptime.errors import DataFileError, InputError, RangeError
from steptime.simulation import loop_state
from steptime.simulation.prefix_cache import Cache, Tier
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.simulator import simulate
from steptime.workload.trace_files import read_trace
from steptime.workload.traffic import Lengths, Traffic, checked, closed_loop, open_loop, scaled, with_sessions
from tests.conftest import each

ONE = Lengths(mean=64)


@each(
    "given, says",
    [
        ({"max_num_seqs": 2.5}, "max_num_seqs must be a whole number"),
        ({"max_num_seqs": 10**7}, "max_num_seqs must be at most 1,048,576"),
        ({"max_num_seqs": "8"}, "max_num_seqs must be a number"),
        ({"max_num_batched_tokens": [64, 128]}, "max num batched tokens must be one number"),
        ({"kv_tokens": math.nan}, "KV tokens must be a finite number"),
        ({"block": 10**400}, "block must be at most 65,536 token"),
        ({"kind": ["static"]}, "unknown policy"),
        ({"kind": "train"}, "interval of a train schedule must be greater than 0 s"),
        ({"patience": -1}, "patience must be at least 0 s"),
        ({"acceptance_length": math.inf, "speculative_tokens": 3}, "acceptance_length must be a finite number"),
        ({"acceptance_length": 0.8, "speculative_tokens": 3}, "between 1 and"),
    ],
)
def test_schedules_that_none_is(given, says):
    with pytest.raises(InputError, match=says):
        Policy(**given)


def test_narrow_numbers_of_a_schedule_do_not_overflow():
    rules = Policy(max_num_seqs=np.int8(8), max_context=np.int8(100), kv_tokens=np.float16(1000)).rules()
    assert (rules.seats, rules.longest, rules.blocks) == (8, 100, 62)


@each(
    "make, says",
    [
        (lambda: open_loop(math.nan, 10, ONE, ONE), "rate must be a finite number"),
        (lambda: open_loop(1, 10**23, ONE, ONE), "requests must be at most 50,000,000"),
        (lambda: open_loop(1, 2.5, ONE, ONE), "requests must be a whole number"),
        (lambda: open_loop(1, 10, ONE, ONE, seed=-1), "a seed must be at least 0"),
        (lambda: open_loop(1, 10, ONE, ONE, kind="gamma", burst=0), "burst must be greater than 0"),
        (lambda: closed_loop(0.5, 10, ONE, ONE), "concurrency must be at least 1|concurrency must be a whole number"),
        (lambda: Lengths(mean=10**23), "a mean length must be at most 1,000,000,000 token"),
        (lambda: Lengths(mean=10, shape="uniform", spread=1.5), "spread of uniform lengths must be at most 1"),
        (lambda: scaled(open_loop(1, 5, ONE, ONE), math.inf), "a rate scale must be a finite number"),
        (lambda: with_sessions(open_loop(1, 5, ONE, ONE), prefixes=0, prefix_tokens=64), "prefixes must be at least 1"),
        (
            lambda: with_sessions(open_loop(1, 50, Lengths(mean=1e9), ONE), prefixes=1, prefix_tokens=64),
            "use fewer requests",
        ),
        (lambda: Tier(name="hbm", capacity=-1, bandwidth=1e12), "tier hbm: capacity must be at least 0 B"),
    ],
)
def test_traffic_that_none_is(make, says):
    with pytest.raises(RangeError, match=says):
        make()


@each(
    "changes, says",
    [
        ({"arrival": np.array([1.0, 0.0])}, "in order of arrival"),
        ({"arrival": np.array([0.0, math.nan])}, "arrival must be a finite number"),
        ({"inputs": np.array([1.5, 2.0])}, "inputs of a request must be a whole number"),
        ({"outputs": np.array([1, -2])}, "outputs of a request must be at least 0"),
        ({"outputs": np.array([1, 2, 3])}, "must have one length"),
        ({name: np.zeros(0) for name in ("arrival", "inputs", "outputs")}, "at least one request"),
    ],
)
def test_requests_that_none_are(changes, says):
    given = {name: np.array([1, 2]) for name in ("arrival", "inputs", "outputs")} | changes
    with pytest.raises(RangeError, match=says):
        checked(Traffic(**given))
    assert checked(Traffic(arrival=[0, 1], inputs=[5, 6], outputs=[7, 8])).inputs.dtype == np.int64


@each(
    "given, says",
    [
        ({"layout": st.Layout(replicas=100_000)}, "replicas must be at most"),
        ({"layout": st.Layout(tp=np.array([1, 2]))}, "one system and one layout"),
        ({"cached": -1}, "cached must be at least 0"),
        ({"slowness": 0}, "slowness must be greater than 0"),
        ({"fast_replicas": 1.5}, "fast replicas must be a whole number"),
    ],
)
def test_runs_that_cannot_be(given, says):
    with pytest.raises(InputError, match=says):
        simulate(st.load_model("llama-3.2-1b"), st.load_system("hgx-h100"), open_loop(1, 5, ONE, ONE), **given)


def test_a_prefix_cache_of_more_blocks_than_memory_holds_is_refused(monkeypatch):
    monkeypatch.setattr("steptime.simulation.prefix_cache.MAX_BLOCKS", 3)
    traffic = with_sessions(open_loop(1, 20, Lengths(mean=640), ONE), prefixes=2, prefix_tokens=64)
    cache = Cache(tiers=(Tier(name="hbm", capacity=1e9, bandwidth=1e12),))
    with pytest.raises(RangeError, match="blocks: must be at most 3"):
        simulate(st.load_model("llama-3.2-1b"), st.load_system("hgx-h100"), traffic, cache=cache)


@pytest.mark.parametrize("header", ["arrival,prompt_len,output_len,Prompt_Len ", "arrival,prompt_len,output_len,arrival"])
def test_a_column_that_stands_twice_is_refused(tmp_path, header):
    path = tmp_path / "trace.csv"
    path.write_text(f"{header}\n0,10,10,10\n")
    with pytest.raises(DataFileError, match=r"trace\.csv:1: has the column '(prompt_len|arrival)' twice"):
        read_trace(path)


def test_a_trace_in_another_encoding_or_of_no_name_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival,prompt_len,output_len\n0,1,1\n", encoding="utf-16")
    with pytest.raises(DataFileError, match="is UTF-16 text; save it as UTF-8"):
        read_trace(path)
    for name in ("n" * 5000, "a\0b", "nowhere.csv"):
        with pytest.raises(DataFileError, match="no such file"):
            read_trace(name)


def test_code_is_compiled_anew_where_it_cannot_be_kept(monkeypatch):
    asked = []

    def without_a_place(*, cache=False, **options):
        def decorated(function):
            asked.append(cache)
            if cache:
                raise RuntimeError(f"cannot cache function {function.__name__!r}: no locator available for file 'x'")
            return function

        return decorated

    monkeypatch.setattr(loop_state, "njit", without_a_place)
    assert loop_state.compiled(lambda x: x + 1)(1) == 2
    assert asked == [True, False]


@each("wrong", [None, 3, 1.5])
def test_read_trace_of_no_path_is_refused(wrong):
    with pytest.raises(InputError, match="path"):
        st.read_trace(wrong)
