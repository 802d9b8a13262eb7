"""Closed loops of separate pools: Little's law, the limits of either pool, and what a run on them may say wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steptime.catalog.hardware_loading import load_system
from steptime.physics.engine import IDEAL, load_engine
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import drafted_step
from steptime.validation.disaggregated_loop import build_pools, closed_pools
from steptime.validation.predictions import predict
from steptime.validation.run_table import served_model
from tests.conftest import each
from tests.validation.rows import apart


def found(*rows, engine=IDEAL):
    predictions = predict(list(rows), engine=engine)
    return {name: getattr(predictions, name) for name in ("tpot", "ttft", "ttft_median", "output_tok_s")}


def pools_of(row, engine=IDEAL):
    system = load_system(row["system"])
    return build_pools([row], served_model(row, system, engine, None), system)


@pytest.mark.parametrize(("drafts", "gained"), [(0, 1.0), (2, 2.3)])
def test_one_client_has_the_pools_for_itself(drafts, gained):
    told = {"drafted": str(drafts), "acceptance": str(gained)} if drafts else {}
    pools = pools_of(apart(concurrency="1", **told))
    given = {"drafts": drafts, "layout": Layout(tp=8), "engine": IDEAL}
    alone = closed_pools(pools, IDEAL)
    step = drafted_step(pools.model, pools.system, batch=1, context=1024 + 512, **given).total
    read = drafted_step(pools.model, pools.system, prompts=1, tokens=1024, **given).total
    assert alone["tpot"][0] == pytest.approx(step / gained)
    assert read < alone["ttft_median"][0] < 1.3 * read  # and the cache on its way, and the start


@each("engine", ["ideal", "sglang", "trtllm"])
def test_requests_in_flight_are_those_of_littles_law(engine):
    """All requests: C = X (first token + (O - 1) TPOT), at every load, and more of them are never served less."""
    clients = (1, 4, 16, 64, 256, 1024, 4096)
    rows = [apart(concurrency=str(c), output_tokens="1025", length_spread="0") for c in clients]
    all_of = found(*rows, engine=load_engine(engine))
    rate = all_of["output_tok_s"] / 1025
    assert rate * (all_of["ttft"] + 1024 * all_of["tpot"]) == pytest.approx(clients)
    assert np.all(np.diff(all_of["output_tok_s"]) >= -1e-9)
    assert np.all(np.diff(all_of["tpot"]) >= -2e-3 * all_of["tpot"][1:])
    assert np.all(all_of["ttft"] >= all_of["ttft_median"])


def test_the_pool_that_reads_sets_the_rate_where_it_is_the_slower():
    """Prompts of 30,000 tokens and ten tokens out: so many requests a second as the pool reads, and the others wait for it."""
    pools = pools_of(apart(concurrency="200", input_tokens="30000", output_tokens="11"))
    read = drafted_step(pools.model, pools.system, prompts=1, tokens=30000, layout=Layout(tp=8), engine=IDEAL).total
    busy = closed_pools(pools, IDEAL)
    assert busy["ttft_median"][0] == pytest.approx(200 * read, rel=0.02)
    twice = closed_pools(replace(pools, prefill=replace(pools.prefill, replicas=np.array([2.0]))), IDEAL)
    assert twice["output_tok_s"][0] == pytest.approx(2 * busy["output_tok_s"][0], rel=0.05)


def test_more_replicas_that_decode_are_no_slower():
    rows = [apart(concurrency="256", decode_workers=str(n)) for n in (1, 2, 4, 8)]
    assert np.all(np.diff(found(*rows)["tpot"]) < 0)


def test_slots_of_a_decode_replica_limit_it():
    """Two decode replicas with 64 slots each decode as fast as with 128 clients, and further clients wait."""
    few, slots, many = (found(apart(concurrency=c, max_num_seqs=s)) for c, s in (("128", ""), ("512", "64"), ("512", "")))
    assert slots["tpot"][0] == pytest.approx(few["tpot"][0], rel=0.02)
    assert slots["tpot"][0] < 0.9 * many["tpot"][0]
    assert slots["ttft"][0] > 2 * many["ttft"][0]


def test_a_full_pool_keeps_the_rest_waiting():
    """Twice the clients that a pool has seats for are served as fast as once, and wait."""
    long = {"input_tokens": "100000", "output_tokens": "20000", "decode_workers": "1", "prefill_workers": "64"}
    some, more = found(*(apart(concurrency=c, **long) for c in ("4000", "8000")))["tpot"]
    assert some == pytest.approx(more)


def test_chips_that_are_not_those_of_the_workers_are_named():
    right, wrong = predict([apart(chips="24"), apart(chips="20")]).reason
    assert right == ""
    assert wrong == "cannot be right: 20 chips, but its workers have 24"


def test_pools_whose_weights_do_not_fit_or_that_are_too_fast_are_named():
    heavy = apart(prefill_tp="2", chips="")
    fast = apart(tpot_s="0.0005", output_tok_s="1000", concurrency="4")
    weights, speed = predict([heavy, fast]).reason
    assert weights.startswith("cannot be right: weights do not fit: 337.")
    assert speed.startswith("cannot be right: faster than physics: a token took 0.5 ms, at least")
