"""A user's script, which `make types` checks strictly; nothing runs it.

The last lines are wrong. An ignore that mypy does not need is an error, so each of them has to be reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import steptime as st

Array = npt.NDArray[np.float64]
MODEL, SYSTEM = "llama-3.1-8b", "hgx-h100"


def cheapest(models: Iterable[str], limit: float) -> dict[str, float]:
    work = st.Workload(input_tokens=8192, output_tokens=1024)
    slo = st.Slo(tpot=limit, ttft=2.0)
    costs: dict[str, float] = {}
    for name in models:
        plan: st.Plan = st.plan(name, SYSTEM, work, slo, chips=8)
        if plan.feasible:
            costs[name] = float(plan.usd_per_million_output_tokens)
    return costs


def speeds(batches: Array) -> Array:
    layout = st.Layout(tp=2)
    step: st.Step = st.decode_step(MODEL, SYSTEM, batch=batches, context=4096, layout=layout, engine="vllm")
    return np.asarray(1 / step.total, dtype=np.float64)


def measured(path: Path) -> None:
    system: st.System = st.vary(st.load_system(SYSTEM), {"chip.hbm.bandwidth": 4e12})
    model: st.Model = st.load_model(path)
    memory: st.Memory = st.memory_per_chip(model, system, batch=64, context=4096)
    print(memory.to_json(), model.name)


def simulated(rate: float) -> float:
    traffic: st.Traffic = st.open_loop(rate, 1000, st.Lengths(mean=512), st.Lengths(mean=128))
    policy = st.Policy(max_num_seqs=64)
    run: st.Simulation = st.simulate(MODEL, SYSTEM, traffic, policy=policy)
    return float(run.answers.ttft.mean)


def trained() -> tuple[str, float]:
    run: st.Training = st.train(MODEL, SYSTEM, chips=64, batch=256, tokens=1e12)
    size: st.Budget = st.budget("100B@200T", st.Demand(served=200e12))
    law: st.Law = st.load_law("hoffmann")
    return law.name, float(run.step.total) + size.choices[0].params


def priced() -> st.PriceReading:
    return st.read_prices("openai/gpt-6-sol")


try:
    print(cheapest([MODEL], 0.05), speeds(np.array([1.0, 64.0])), simulated(5.0), trained(), priced())
except st.InputError as problem:
    print(problem)

st.nonsense_xyz(1)  # type: ignore[attr-defined]
st.plan(MODEL, SYSTEM, "not a workload")  # type: ignore[arg-type]
wrong: int = st.load_system(SYSTEM)  # type: ignore[assignment]
