"""Runs with turns of sessions: replicas, tiers and the shares that are simulated, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.hardware.system import MemoryTier
from steptime.physics.layout import Layout
from steptime.planning import session_loop
from steptime.planning.finalists import SimulatedPool
from steptime.planning.session_hits import SessionCase
from steptime.planning.session_loop import SessionLoop, replica_cache, replica_of_sessions
from steptime.planning.simulated_rate import Deployment
from steptime.workload.sessions import Sessions
from tests.conftest import engine
from tests.planning.cases import MODEL, NODES

TWO = Sessions(turns=2, input_tokens=600, output_tokens=400, think_time=10, input_spread=0, output_spread=0)
HOST = MemoryTier(name="host", capacity=50e9, bandwidth=1e11)
SYSTEM = replace(NODES, tiers=(HOST,))


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (None, {"host": 100e9}),  # that of two chips
        ({"host": 7e9}, {"host": 7e9}),
        ({"hbm": 1e9, "host": 7e9}, {"hbm": 1e9, "host": 7e9}),
        ({"hbm": 1e12}, {"hbm": 22e9}),  # at most that of two chips
    ],
)
def test_tiers_of_a_replica_are_those_of_its_chips_or_those_given(monkeypatch, given, sizes):
    monkeypatch.setattr(
        session_loop, "cache_with_capacities", lambda model, system, layout, sizes, *, free_hbm: (sizes, free_hbm)
    )
    assert replica_cache(SessionCase(TWO, given), MODEL, SYSTEM, Layout(tp=2)) == (pytest.approx(sizes), True)


def test_turns_are_on_the_replica_of_their_session():
    """Turns 0 to 2 came before the run; sessions are dealt to two replicas."""
    turns = SimpleNamespace(session=np.array([0, 1, 2, 3, 4, 1]))
    earlier = SimpleNamespace(turn=np.array([0, 1, 2]))
    traffic = SimpleNamespace(turns=turns, turn=np.array([3, 5, 4]), earlier=earlier)
    assert replica_of_sessions(traffic, 2).tolist() == [0, 1, 0, 1, 1, 0]
    assert replica_of_sessions(SimpleNamespace(turns=turns, turn=np.array([3, 5, 4]), earlier=None), 3).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("first", "last", "replicas", "readers", "share"), [(6, None, 1, 0, 1 / 6), (4, 6, 3, 2, 1 / 2), (3, 5, 5, 3, 1.0)]
)
def test_a_run_has_one_replica_or_the_smallest_ratio_of_two_pools(monkeypatch, first, last, replicas, readers, share):
    pools = [SimulatedPool(role="serve" if last is None else "prefill", layout=Layout(replicas=first), batch=4, max_num_seqs=8,
                           chunk=512)]  # fmt: skip
    if last:
        pools.append(SimulatedPool(role="decode", layout=Layout(replicas=last), batch=4, max_num_seqs=8))
    served = Deployment(
        model=MODEL, system=SYSTEM, engine=engine(), workload=st.Workload(input_tokens=1000, output_tokens=201),
        pools=tuple(pools),
    )  # fmt: skip
    monkeypatch.setattr(session_loop, "replica_cache", lambda *_: "cache")
    loop = SessionLoop(served, 10.0, 1.0, SessionCase(TWO, None), 123)
    assert (loop.server.replicas, loop.readers, loop.count, loop.cache) == (replicas, readers, 123, "cache")
    assert (loop.share, loop.read_share) == pytest.approx((share, share))
    assert last is None or loop.reader.replicas == readers
    assert (SessionLoop.above, SessionLoop.most_parts, loop.parts) == (1.1, 1, 1)


def test_turns_begin_with_answers_of_the_expected_times(monkeypatch):
    """A first token after 0.5 s, and 10 ms for each token of an answer."""
    asked = []

    def serve_turns(traffic, _once, answers, *, most_runs):
        asked.append((traffic, answers, most_runs))
        raise InterruptedError

    monkeypatch.setattr(session_loop, "serve_turns", serve_turns)
    monkeypatch.setattr(session_loop, "replica_cache", lambda *_: "cache")
    pool = SimulatedPool(role="serve", layout=Layout(replicas=4), batch=4, max_num_seqs=8, chunk=512)
    work = st.Workload(input_tokens=1000, output_tokens=201)
    served = Deployment(model=MODEL, system=NODES, engine=engine(), workload=work, pools=(pool,))
    with pytest.raises(InterruptedError):
        SessionLoop(served, 10.0, 1.0, SessionCase(TWO, None), 123).run(8.0, st.Slo(), "mean", 0.01, 0.5)
    ((traffic, answers, most_runs),) = asked
    assert (len(traffic), most_runs) == (123, session_loop.MOST_RUNS)
    assert answers == pytest.approx(0.5 + traffic.turns.outputs * 0.01)
