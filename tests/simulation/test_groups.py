"""Several attention groups: the time per token against a law worked from single steps, without the simulator."""

from __future__ import annotations

import math

import numpy as np
import pytest

import steptime as st
from steptime.simulation.scheduling_policy import Policy
from steptime.workload.traffic import Traffic
from tests.conftest import every

INPUT, OUTPUT, CHUNK = 1024, 257, 256


def expected(rate, layout, *, model, system, engine):
    r"""The time per token [s] at which Little's law and the mean step agree.

    A step brings $\mu = \lambda t I / c$ chunks in the mean, each on a group of its own; their number in a step is Poisson's.
    The step waits for the busiest group, whose chunk lies behind the longest prefix of those that are read.
    """
    chunks, groups = INPUT // CHUNK, int(layout.dp)
    given = {"context": INPUT + OUTPUT / 2, "layout": layout, "engine": engine}

    def step(batch, k):
        if k == 0:
            return float(st.decode_step(model, system, batch=batch, **given).total)
        prefix = CHUNK * sum(1 - ((j + 1) / chunks) ** k for j in range(chunks - 1))  # mean of the longest of k
        return float(st.mixed_step(model, system, batch=batch, prompts=k, tokens=CHUNK, prefix=prefix, **given).total)

    t = step(1, 0)
    for _ in range(25):
        mean = rate * t * INPUT / CHUNK
        share = np.array([math.exp(-mean) * mean**k / math.factorial(k) for k in range(groups)])
        share = np.append(share, 1 - share.sum())
        batch = max(1.0, rate * (OUTPUT - 1) * t)
        t = float(share @ [step(batch, k) for k in range(groups + 1)])
    return t


@pytest.mark.parametrize(("ways", "rate"), every(2, [({"tp": 2, "dp": 4, "ep": 8}, 6.0), ({"dp": 8, "ep": 8}, 10.0)]))
def test_groups_that_read_in_turn_hold_up_all_others(ways, rate):
    model, system, engine = st.load_model("qwen3-235b-a22b"), st.load_system("hgx-h200"), st.load_engine("ideal")
    layout = st.Layout(**ways)
    traffic = st.open_loop(rate, 6000, st.Lengths(mean=INPUT), st.Lengths(mean=OUTPUT), seed=1)
    policy = Policy(max_num_seqs=512, max_num_batched_tokens=2048, chunk=CHUNK)
    found = st.simulate(model, system, traffic, layout=layout, policy=policy, engine=engine)
    later = found.requests[1000:-1000]
    took = float(np.mean((later["finish"] - later["first"]) / (OUTPUT - 1)))
    law = expected(rate, layout, model=model, system=system, engine=engine)
    alone = float(st.decode_step(model, system, batch=rate * 256 * law, context=1150, layout=layout, engine=engine).total)
    assert took == pytest.approx(law, rel=0.03)
    assert law > 1.05 * alone  # prompts are felt


def test_a_chunk_limits_the_prompt_tokens_of_a_step():
    """One prompt of 1,024 tokens on an idle server: four steps of 256, or one of 1,024."""
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    one = st.Traffic(arrival=[0.0], inputs=[1024], outputs=[1])

    def first_token(chunk):
        policy = Policy(max_num_batched_tokens=2048, chunk=chunk)
        return st.simulate(model, system, one, policy=policy, engine="ideal").answers.ttft.mean

    def passes(tokens):
        prefixes = np.arange(0, 1024, tokens)
        return float(np.sum(st.prefill_step(model, system, tokens=tokens, prefix=prefixes, engine="ideal").total))

    assert first_token(256) == pytest.approx(passes(256), rel=0.02)
    assert first_token(math.inf) == pytest.approx(passes(1024), rel=0.02)
    assert first_token(256) > 1.15 * first_token(math.inf)
    with pytest.raises(st.InputError, match="chunk must be greater than 0 tokens"):
        Policy(chunk=0)


def test_a_long_prompt_waits_for_the_cache_of_its_rank_only():
    """Two ranks of 2,000 tokens each: the other rank takes nothing from a prompt that needs most of its own."""
    count = 4000
    inputs = np.full(count, 100)
    inputs[200] = 1900
    traffic = Traffic(arrival=np.arange(count) / 900.0, inputs=inputs, outputs=np.full(count, 20))
    layout = st.Layout(dp=2, ep=2)
    policy = st.Policy(max_num_seqs=64, max_num_batched_tokens=512, kv_tokens=4000.0)
    run = st.simulate("gpt-oss-20b", "hgx-h100", traffic, layout=layout, engine="ideal", policy=policy)
    waits = run.requests["scheduled"] - run.requests["arrival"]
    assert waits[200] < 1.0
    longer = Traffic(arrival=np.zeros(1), inputs=np.array([2100]), outputs=np.array([20]))
    assert st.simulate("gpt-oss-20b", "hgx-h100", longer, layout=layout, engine="ideal", policy=policy).answers.served == 0
