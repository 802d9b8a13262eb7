"""Closed loops in closed form: with drafts, over replicas, and what is seen of first tokens."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from steptime.physics.engine import IDEAL, load_engine
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import drafted_step
from steptime.physics.step import decode_step, mixed_step, prefill_step
from steptime.validation import predictions as validate
from steptime.validation.closed_loop import round_time, running_sequences
from steptime.validation.predictions import grouped, predict, solve_closed_loops
from steptime.validation.published_deployments import prefix_hits
from tests.conftest import each
from tests.validation.rows import deepseek, plain


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_without_drafts_a_loop_is_that_of_plain_steps(engine):
    (runs,) = grouped([deepseek(concurrency=str(c), stream_interval="1") for c in (1, 64, 4096)])
    found = solve_closed_loops(runs, load_engine(engine))
    on, context = load_engine(engine), runs.input_tokens + runs.output_tokens / 2
    given = {"layout": runs.layout, "engine": on}
    running = running_sequences(runs.model, runs.system, context=context, concurrency=runs.concurrency, **given)
    decode = decode_step(runs.model, runs.system, batch=running, context=context, **given)
    alone = prefill_step(runs.model, runs.system, tokens=runs.input_tokens, prompts=runs.layout.dp, **given).total
    beside = {"batch": running, "context": context, "prompts": runs.layout.dp, "tokens": runs.input_tokens}
    both = mixed_step(runs.model, runs.system, **beside, **given).total
    first = on.scheduler.prefill_first
    prefill, read = (alone, alone) if first else (both - decode.total, both)
    # Prompts of 1,024 tokens that wait together share passes of 8,192 tokens.
    shared = np.clip(on.scheduler.step_tokens // runs.input_tokens, 1, running / runs.layout.dp) if first else np.ones(3)
    pass_seconds = prefill_step(
        runs.model, runs.system, tokens=runs.input_tokens, prompts=runs.layout.dp * shared, **given
    ).total
    wave = pass_seconds / shared if first else prefill
    burst, decoding = running / runs.layout.dp * wave, runs.output_tokens * decode.total
    x, rounds = np.maximum(runs.spread, 0.005) * decoding / burst, runs.requests / runs.concurrency
    together = on.scheduler.prefill_first * np.log((1 + rounds * x) / (1 + x)) / (x * (rounds - 1))
    prefill = together * wave + (1 - together) * prefill
    others = (running - 1) / runs.layout.dp * prefill
    tpot = decode.total + others / (runs.output_tokens - 1) * (1 - together / 2)
    started = (1 - together) * runs.concurrency / runs.requests * burst / 2
    queued = decode.total / 2 + read + prefill * (burst / (burst + decoding)) + together * burst / 2 + started
    waiting = (runs.concurrency - running) / running * runs.output_tokens * tpot
    ttft = on.scheduler.seconds_per_request + on.scheduler.first_token_factor * queued + waiting
    assert found.tpot == pytest.approx(tpot)
    assert found.ttft == pytest.approx(ttft)
    assert found.decode.total == pytest.approx(decode.total)


def test_prompts_that_wait_together_share_passes_up_to_the_token_budget():
    """Prompts of 256 tokens and equal lengths on SGLang: passes of four prompts read faster than passes of one."""
    run = {"engine": "sglang", "input_tokens": "256", "output_tokens": "64", "concurrency": "64"}
    budgets = ("256", "511", "512", "1024", "1000000")
    tpot = predict([plain(**run, max_num_batched_tokens=b) for b in budgets], by_simulation=False).tpot
    assert tpot[1] == tpot[0]
    assert tpot[0] > tpot[2] > tpot[3] > tpot[4]
    # A budget that is no multiple of the prompts of the burst: at most all of them.
    assert predict([plain(**run, max_num_batched_tokens=str(64 * 256))], by_simulation=False).tpot[0] == pytest.approx(tpot[4])


def test_a_drafted_step_is_shared_by_the_tokens_that_it_yields():
    """Two clients: O - 1 tokens take as many / a steps of verification and drafts, and the prompt of the other once."""
    (runs,) = grouped([deepseek(concurrency="2", drafted="2", acceptance="2.3")])
    given = {"drafts": 2, "layout": Layout(tp=8), "engine": IDEAL}
    step = drafted_step(runs.model, runs.system, batch=2, context=1024 + 512, **given).total
    both = drafted_step(runs.model, runs.system, batch=2, context=1024 + 512, prompts=1, tokens=1024, **given).total
    assert solve_closed_loops(runs, IDEAL).tpot[0] == pytest.approx(step / 2.3 + (both - step) / 1023)


def test_the_acceptance_of_a_models_own_layers_stands_where_a_run_tells_none():
    """DeepSeek's layer yields 1.85 tokens with one draft, as its report says."""
    own, told = predict([deepseek(drafted="1"), deepseek(drafted="1", acceptance="1.85")], by_simulation=False).tpot
    assert own == pytest.approx(told)


def test_a_pool_that_only_decodes_has_no_prompts_in_its_steps():
    """As many sequences as Little's law says: 2 replicas at 3200 tok/s and 10 ms hold 16 each."""
    pools = {"decode_workers": "2", "prefill_workers": "1", "prefill_tp": "8", "output_tok_s": "3200", "tpot_s": "0.01"}
    (runs,) = grouped([deepseek(concurrency="64", **pools)])
    found = solve_closed_loops(runs, IDEAL)
    step = drafted_step(runs.model, runs.system, batch=16, context=1536, layout=Layout(tp=8), engine=IDEAL)
    assert found.tpot[0] == pytest.approx(step.total)
    assert np.isnan(found.ttft[0])


def test_replicas_share_the_clients():
    found = predict([plain(concurrency="16"), plain(concurrency="32", chips="2")], by_simulation=False).columns()
    for name in ("tpot_s", "ttft_s", "ttft_median_s"):
        assert found[name][0] == pytest.approx(found[name][1])
    assert found["output_tok_s"][1] == pytest.approx(2 * found["output_tok_s"][0])


def test_throughput_is_littles_law():
    found = predict([plain(concurrency="16", length_spread="0")], by_simulation=False)
    assert found.output_tok_s[0] == pytest.approx(16 * 256 / (found.ttft[0] + 255 * found.tpot[0]))


@each("clients", [4, 16, 64, 256])
def test_a_loop_ends_with_its_last_request(clients):
    """Ten requests for each client, of lengths drawn evenly from 0.8 to 1 of the longest: whoever is free takes the next."""
    random = np.random.default_rng(0)
    times = []
    for _ in range(512 // clients):
        lengths = random.uniform(0.8, 1.0, 10 * clients)
        free = [0.0] * clients
        for length in lengths:
            heapq.heappush(free, heapq.heappop(free) + length)
        times.append(max(free) / (10 * np.mean(lengths)))
    told = round_time(0.0, 1.0, spread=1 / 9, clients=clients, rounds=10)
    assert float(told) == pytest.approx(np.mean(times), abs=0.012)


def test_requests_that_mostly_wait_end_no_later_than_half_of_one():
    assert float(round_time(1.0, 1.0, spread=1.0, clients=1e6, rounds=4)) == pytest.approx(2 + 1 / 4)


@pytest.mark.parametrize("simulated", [False, True])
def test_first_tokens_come_an_interval_later(simulated):
    """A server that looks for what is new every 11 steps shows first tokens ten steps later."""
    if simulated and not validate.can_simulate():
        pytest.skip("the simulator needs the extra 'simulate'")
    rows = [plain(concurrency="1"), plain(concurrency="1", stream_interval="11")]
    found = predict(rows, engine=IDEAL, by_simulation=simulated)
    (runs,) = grouped(rows[:1])
    step = solve_closed_loops(runs, IDEAL).decode.total[0]
    assert found.tpot[0] == found.tpot[1]
    for ttft in (found.ttft, found.ttft_median):
        assert ttft[1] - ttft[0] == pytest.approx(10 * step, rel=0.02)


@pytest.mark.parametrize("simulated", [False, True])
def test_clients_beyond_the_slots_wait_and_do_not_slow_the_others(simulated):
    """Eight slots for 16 clients: tokens as fast as of eight clients, first tokens after a request of another client."""
    if simulated and not validate.can_simulate():
        pytest.skip("the simulator needs the extra 'simulate'")
    rows = [plain(concurrency="8"), plain(max_num_seqs="8"), plain(), plain(max_num_seqs="64")]
    found = predict(rows, engine=IDEAL, by_simulation=simulated)
    assert found.tpot[1] == pytest.approx(found.tpot[0], rel=0.01)
    assert found.ttft[1] - found.ttft[0] == pytest.approx(255 * found.tpot[0], rel=0.15)
    assert (found.tpot[3], found.ttft[3]) == (found.tpot[2], found.ttft[2])


@pytest.mark.skipif(not validate.can_simulate(), reason="the simulator needs the extra 'simulate'")
def test_the_burst_at_the_start_is_in_the_mean_and_not_in_the_median():
    found = predict([plain(concurrency="128", length_spread="0.3")])
    assert found.ttft[0] > 1.2 * found.ttft_median[0]


@pytest.mark.skipif(not validate.can_simulate(), reason="the simulator needs the extra 'simulate'")
def test_ranks_of_a_loop_have_seats_of_their_own():
    """A rank with more than its share of the clients starts their prompts at once, unless a limit of the run is reached."""
    ways = {"model": "MiniMaxAI/MiniMax-M2.5", "engine": "vllm", "tp": "1", "dp": "2", "ep": "2", "concurrency": "16"}
    row = deepseek(**ways, length_spread="0.1111")
    engine = load_engine("vllm")
    free, limited = (validate.simulate_loops(*grouped([one]), engine) for one in (row, row | {"max_num_seqs": "16"}))
    assert free.queued[0] < limited.queued[0] / 2


@pytest.mark.skipif(not validate.can_simulate(), reason="the simulator needs the extra 'simulate'")
def test_a_prompt_waits_for_room_for_its_output_on_tensorrt_llm_alone():
    """64 requests of 1,024 + 8,192 tokens of 131,072 bytes in 64 GB: all prompts have room, and 53 whole requests."""
    (runs,) = grouped([plain(concurrency="64", output_tokens="8192", kv_dtype="bf16")])
    free, reserving = (validate.simulate_loops(runs, replace(IDEAL, kernel_engine=name)) for name in ("vllm", "trtllm"))
    prompts = 64 * 2 * 8e9 * 1024 / 989e12
    assert prompts / 40 < free.queued[0] < prompts
    # A request of the eleven others ends before they start.
    assert reserving.queued[0] > 11 / 64 * 8000 * free.step[0] / 2


@pytest.mark.skipif(not validate.can_simulate(), reason="the simulator needs the extra 'simulate'")
@pytest.mark.parametrize(("clients", "together"), [(4, 4), (64, 32)])
def test_first_prompts_of_vllm_wait_for_the_tokenization_of_their_batch(clients, together):
    pytest.importorskip("numba")
    (runs,) = grouped([plain(concurrency=str(clients), requests=str(10 * clients))])
    alone, batched = (validate.simulate_loops(runs, replace(IDEAL, kernel_engine=name)) for name in ("sglang", "vllm"))
    # 2 us a token of 1,024; a tenth of the requests start the run. A median request does not.
    waits = np.array([0.0, 2e-6, 0.0, 0.0, 0.0])
    assert batched.ttft(waits) - alone.ttft(waits) == pytest.approx(0.1 * (together - 1) * 2e-6 * 1024, rel=1e-2)
    assert batched.ttft(waits, median=True) == pytest.approx(alone.ttft(waits, median=True))


def test_drafted_loops_are_simulated_with_their_drafts():
    """Tokens of a simulated loop of one client come as fast as those of the closed form but for prompts."""
    (runs,) = grouped([deepseek(concurrency="1", drafted="2", acceptance="2.3", length_spread="0.1")])
    loops = validate.simulate_loops(runs, IDEAL)
    assert loops.step[0] == pytest.approx(solve_closed_loops(runs, IDEAL).decode.total[0], rel=0.02)


def test_public_runs_that_do_not_tell_their_interval_have_their_own():
    """SGLang on B200: 10 steps, 20 from 16 clients on; 1 for own runs, GLM-5 in FP8, other systems and other engines."""
    public = {"part": "ix_aggregated"}
    intervals = {"8": "10", "16": "20"}
    rows = [deepseek(concurrency=c, **public, **told) for c, n in intervals.items() for told in ({}, {"stream_interval": n})]
    rows += [deepseek(**run, **told) for run in ({}, {**public, "model": "glm-5"}) for told in ({}, {"stream_interval": "1"})]
    rows += [plain(), plain(stream_interval="1")]
    groups = {"engine": "trtllm", "system": "gb200-nvl72", "tp": "1", "dp": "8", "ep": "8", "concurrency": "64"}
    rows += [deepseek(**groups, output_tokens="1024", **told) for told in ({}, {"stream_interval": "31"})]  # half of 60 more
    found = predict(rows, by_simulation=False)
    assert found.ttft[::2] == pytest.approx(found.ttft[1::2])
    assert found.tpot[::2] == pytest.approx(found.tpot[1::2])


def test_chunks_in_decode_steps_delay_each_token_and_not_the_first():
    """SGLang with mixed chunks: C/O prompts per step are in every token's time; with prefill first, a burst waits instead.

    AIConfigurator's runs of 0.5.6 have them without a column that says so.
    """
    run = {"model": "llama-3.1-8b", "system": "hgx-h200", "tp": "1", "ep": "1", "weight_dtype": "fp8", "expert_dtype": ""}
    run |= {"engine": "sglang", "input_tokens": "8000", "output_tokens": "100", "concurrency": "20", "kv_dtype": "fp8"}
    name = {"id": "1:llama_h200_sxm_sglang_agg_8000x100_c20_tp1_epnone_1", "engine_version": "0.5.6.post2"}
    rows = [plain(**run, **told) for told in ({}, {"prefill_schedule": "first"}, {"prefill_schedule": "mixed"}, name)]
    own, first, mixed, public = (predict([row], by_simulation=False) for row in rows)
    assert own.tpot[0] == first.tpot[0] < 0.8 * mixed.tpot[0]
    assert own.ttft[0] == first.ttft[0] > mixed.ttft[0]
    assert (public.tpot[0], public.ttft[0]) == (mixed.tpot[0], mixed.ttft[0])
    # Twenty requests of 8,000 and 100 tokens take 20 prompts of arithmetic per 100 steps: 2 x 8e9 x 8000 / 1.98e15 s each.
    assert mixed.tpot[0] > 20 / 100 * 2 * 8e9 * 8000 / 1.98e15


@each("distinct, clients, rounds", [(100, 16, 10), (100, 64, 10), (7, 1, 30)])
def test_prompts_drawn_before_are_known(distinct, clients, rounds):
    """Draws with replacement, of which the first two of each client are no part of the run."""
    random = np.random.default_rng(0)
    shares = []
    for _ in range(4000 // clients):
        drawn = random.integers(0, distinct, (2 + rounds) * clients)
        _, first = np.unique(drawn, return_index=True)
        shares.append(1 - np.sum(first >= 2 * clients) / (rounds * clients))
    told = prefix_hits(np.array(distinct), np.array(clients), np.array(rounds * clients))
    assert float(told) == pytest.approx(np.mean(shares), abs=0.01)


@pytest.mark.skipif(not validate.can_simulate(), reason="the simulator needs the extra 'simulate'")
def test_repeated_prompts_are_read_once():
    """One prompt for all requests: tokens and first tokens come as those of a decode step and a block of 16 tokens.

    AIConfigurator's runs of vLLM 0.12 have 100 prompts without a column that says so.
    """
    run = {"model": "llama-3.1-8b", "system": "hgx-h200", "weight_dtype": "fp8", "input_tokens": "8000", "output_tokens": "500"}
    run |= {"concurrency": "48", "engine_version": "0.12.0", "kv_dtype": "fp8"}
    name = {"id": "1:llama_3_1_8b_instruct_fp8_h200_sxm_vllm_agg_8000x500_c48_tp1_epnone_16"}
    rows = [plain(**run, **told) for told in ({}, {"distinct_prompts": "1"}, {"distinct_prompts": "100"}, name)]
    (runs,) = grouped(rows[:1])
    step = solve_closed_loops(runs, IDEAL).decode.total[0]
    found = predict(rows, engine=IDEAL)
    assert found.tpot[1] == pytest.approx(step, rel=0.03)
    assert found.ttft[1] < 2 * step < found.ttft[0] / 10
    assert found.tpot[1] < found.tpot[2] == found.tpot[3] < found.tpot[0]
    assert found.ttft[1] < found.ttft[2] == found.ttft[3] < found.ttft[0]
