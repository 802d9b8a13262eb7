"""Plans for sessions against simulations of the same layout, rate and tiers, on other draws, for drawn cases."""

import numpy as np
import pytest

from steptime.questions.plan_question import solve as plan
from steptime.questions.simulate_question import solve as simulate

# Requests of a simulation: several durations of a session.
REQUESTS = 40_000
# Largest time per token of the middle of three simulations, over that of the plan.
MOST_SLOWER = 1.05
MODELS = (("llama-3.1-8b", "l40s-8", 1, "bf16"), ("llama-3.1-8b", "hgx-h100", 1, "bf16"), ("qwen3-8b", "hgx-h100", 1, "bf16"))


def drawn_cases(count, seed=7):
    """Cases from a fixed seed: model, turns, think time, lengths, host memory, limits."""
    random = np.random.default_rng(seed)
    for number in range(count):
        model, system, chips, weights = MODELS[number % len(MODELS)]
        yield {
            "model": model, "system": system, "chips": chips, "weights": weights,
            "sessions": float(random.choice([2.5, 4, 6, 8])), "think_time": float(random.choice([15, 30, 60, 124])),
            "input": int(random.choice([150, 296, 500])), "output": int(random.choice([150, 300, 441])),
            "prefix_cache": f"host={int(random.choice([10, 20, 40, 80, 160]))}GB", "speed": float(random.choice([20, 25, 30])),
            "ttft": float(random.choice([1, 2, 3])), "mode": "aggregated",
        }  # fmt: skip


def simulated(asked, deployment, seed=3, requests=REQUESTS):
    """Simulate one replica of a plan: a session stays with its replica."""
    pool = deployment.pools[0]
    groups = int(pool.layout.dp)
    names = ("model", "system", "weights", "sessions", "think_time", "input", "output", "prefix_cache")
    return simulate(
        {name: asked[name] for name in names if name in asked}
        | {"rate": deployment.requests_per_second / int(pool.layout.replicas), "seed": seed, "requests": requests}
        | {"max_num_seqs": pool.max_num_seqs, "max_num_batched_tokens": -(-pool.max_num_seqs // groups) + pool.chunk}
        | {name: int(getattr(pool.layout, name)) for name in ("tp", "pp", "dp", "ep", "cp")}
    )


def differences(asked):
    """Return the layout, the verdict, and differences of TPOT, TTFT and hits of a simulation from its plan."""
    deployment = plan(asked, diagnostics=False)
    if not deployment.feasible:
        return None
    runs = [simulated(asked, deployment)]
    # Near the most that a chip serves, 40,000 requests with other draws have times per token that differ by a tenth.
    if runs[0].answers.tpot.p90 > MOST_SLOWER * deployment.tpot:
        runs += [simulated(asked, deployment, seed=seed) for seed in (4, 5)]
    run = sorted(runs, key=lambda each: each.answers.tpot.p90)[len(runs) // 2]
    hits = run.cache.hit_rate - deployment.session_cache.hit_share
    answers = run.answers
    return answers.verdict, answers.tpot.p90 / deployment.tpot - 1, answers.ttft.p90 / deployment.ttft - 1, hits


@pytest.mark.slow
def test_simulations_keep_what_plans_for_sessions_state():
    rows = [row for row in map(differences, drawn_cases(20)) if row is not None]
    assert len(rows) >= 15
    for row in rows:
        print(row)
    verdicts, tpot, ttft, hits = zip(*rows, strict=True)
    assert "OVERLOADED" not in verdicts
    # A plan must not promise more than a simulation keeps. On chips with many sequences, simulations are up to a fifth faster.
    assert np.max(tpot) < MOST_SLOWER - 1
    assert np.max(ttft) < 0.20
    assert np.min(hits) > -0.04
    assert np.max(np.abs(hits)) < 0.08
