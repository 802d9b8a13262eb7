"""Plans drawn over models, machines, requests, modes and formats, with a fixed seed: a few every day, forty in slow tests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import pytest

import steptime as st
from steptime.planning.plan_result import Plan
from tests.conftest import CHOICE_ALONE
from tests.planning.cases import closed_plan, equal_requests

DENSE = ("llama-3.3-70b", "qwen3-14b", "qwen3-32b", "nvidia/Llama-3.1-70B-Instruct-FP8", "mistral-7b-v0.3")
SPARSE = ("deepseek-v3", "qwen3-235b-a22b", "kimi-k2", "qwen3-30b-a3b", "nvidia/Kimi-K2.5-NVFP4", "gpt-oss-120b")
HOSTS = (
    ("hgx-h100", 8), ("hgx-h100", 16), ("hgx-h200", 8), ("hgx-h200", 16), ("gb200-nvl72", 8), ("gb200-nvl72", 12),
    ("hgx-b200", 16), ("rtx-4090-8", 8), ("mi300x-8", 8),
)  # fmt: skip
REQUESTS = ((1000, 300), (4096, 1024), (128, 2000), (20000, 500))
ENGINES = ("vllm", "sglang", "trtllm")
drawn = pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.slow)])


Drawn = tuple[Plan, st.Model, st.System]
MADE: list[Drawn] = []


def plans(count: int) -> tuple[Drawn, ...]:
    """Return so many plans that fit, each with its model and system: the first of one series, each of which is made once."""
    MADE.extend(islice(SERIES, max(0, count - len(MADE))))
    return tuple(MADE[:count])


def series() -> Iterator[Drawn]:
    """Yield plans that fit, without end."""
    draw = random.Random(20261121)
    while True:
        name = draw.choice(DENSE + SPARSE)
        system, chips = draw.choice(HOSTS)
        chips = min(chips, 4) if name in DENSE else chips  # whose searches are quick
        reads, writes = draw.choice(REQUESTS)
        formats = draw.choice(({}, {}, {"kv": "fp8"}, {"weights": "fp8"}, {"weights": "fp8", "kv": "fp8"}))
        engine, mode, cached = draw.choice(ENGINES), draw.choice(("aggregated", "disaggregated")), draw.choice((0.0, 0.0, 0.5))
        model, machine = st.load_model(name, **formats), st.load_system(system)
        workload = equal_requests(input_tokens=reads, output_tokens=writes, cached_share=cached)
        try:
            made = closed_plan(model, machine, workload, chips=chips, engine=engine, modes=mode, **CHOICE_ALONE)
        except st.InputError:
            continue
        if made.feasible:
            yield made, model, machine


SERIES = series()
