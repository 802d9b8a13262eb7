"""Inputs of every kind that reach steptime from outside; each function takes a source of chance and tries one.

A try may end in InputError, or in an answer; anything else, a warning of numpy among them, is a fault.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import steptime as st
from steptime.catalog.data_files import PACKAGED
from steptime.catalog.hardware_loading import load_chip, load_system, quotes
from steptime.catalog.system_template import template
from steptime.describe.system_summary import system_card
from steptime.errors import InputError
from steptime.hardware.what_if import read_changes, settable, vary
from steptime.models import model as counted
from steptime.models.model_loading import read_model
from steptime.physics.chip_memory import sequences_that_fit
from steptime.questions.registry import find_question
from steptime.result_base import plain
from steptime.simulation.prefix_cache import Cache, Tier
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.simulator import simulate
from steptime.units import count, parse, show
from steptime.validation.bench_results import read_files
from steptime.validation.run_table import COLUMNS, read_runs
from steptime.workload.trace_files import read_trace
from steptime.workload.traffic import Lengths, Traffic, closed_loop, open_loop, scaled, with_sessions
from tests.fuzz.damage import FIGURES, LITERALS, NUMBERS, TEXTS, in_file
from tests.models.test_fuzz_configs import configs, damaged, shortened

Try = Callable[[random.Random, Path], Any]
SMALL, SYSTEM = "llama-3.2-1b", "hgx-h100"
UNITS = {
    "B": ("GB", "B", " TiB"), "B/s": ("TB/s", " GB/s", "B/s"), "FLOP/s": (" PFLOP/s", "TFLOPS"), "s": ("us", " s", "ms"),
    "USD/s": (" USD/h", "USD/s"), "USD/B": ("USD/GB",), "W": ("W", "kW"), "": ("",),
}  # fmt: skip
RESULT = {
    "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": 100, "completed": 100, "duration": 10.0,
    "total_input_tokens": 102400, "total_output_tokens": 12800, "mean_ttft_ms": 100.0, "mean_tpot_ms": 10.0,
    "max_concurrency": 16, "request_rate": "inf", "date": "20260101-101010", "tp": 1, "system": "hgx-h100",
    "weight_dtype": "bf16", "random_range_ratio": 1.0, "output_lens": [128, 128], "server_info": {"version": "1", "tp_size": 1},
}  # fmt: skip


@cache
def texts(kind: str) -> tuple[str, ...]:
    """Return the texts of the data files of a kind, and for systems those with their chip in them."""
    found = [path.read_text(encoding="utf-8") for path in sorted((PACKAGED / kind).glob("*.toml"))]
    return (*found, *map(template, ("hgx-h100", "tpu-v6e", "groq-rack"))) if kind == "systems" else tuple(found)


@cache
def small() -> Any:
    return st.load_model(SMALL)


@cache
def sparse() -> Any:
    return st.load_model("qwen3-30b-a3b")


@cache
def machine() -> Any:
    return st.load_system(SYSTEM)


def some(rng: random.Random, usual: tuple[Any, ...], odd: float = 0.3) -> Any:
    """Return a usual value, or at times an odd one."""
    return rng.choice(NUMBERS) if rng.random() < odd else rng.choice(usual)


def written(raw: bytes, folder: Path, name: str) -> Path:
    """Write bytes to a file that no other try has had."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_bytes(raw)
    return path


def fresh(rng: random.Random, suffix: str) -> str:
    return f"{rng.getrandbits(64):x}{suffix}"


def finite(step: Any) -> None:
    """Hold a step to what any answer must be."""
    total = np.asarray(step.total)
    assert np.all(np.isfinite(total)), total
    assert np.all(total >= 0), total


# --- files --------------------------------------------------------------------------------------------------------------


def config(rng: random.Random, _: Path) -> Any:
    of = configs()[rng.choice(sorted(configs()))]
    model = read_model(damaged(shortened(rng.choice(of)), rng), kv_format=rng.choice(("", "", "fp8")))
    assert 0 < counted.active_parameters(model) <= counted.total_parameters(model) < float("inf")


def config_file(rng: random.Random, folder: Path) -> Any:
    text = json.dumps(shortened(rng.choice(configs()[rng.choice(sorted(configs()))])), indent=1)
    if rng.random() < 0.2:
        text = text.replace("{", '{"hidden_size": 1, ', 1)
    path = written(in_file(text, rng), folder, fresh(rng, rng.choice((".json", ".json", ".toml", ""))))
    try:
        return st.load_model(path)
    finally:
        path.unlink()


def chip_file(rng: random.Random, folder: Path) -> Any:
    path = written(in_file(rng.choice(texts("chips")), rng), folder, fresh(rng, ".toml"))
    try:
        return load_chip(str(path))
    finally:
        path.unlink()


def system_file(rng: random.Random, folder: Path) -> Any:
    path = written(in_file(rng.choice(texts("systems")), rng), folder, fresh(rng, ".toml"))
    try:
        system = load_system(str(path))
    finally:
        path.unlink()
    plain(system_card(system))
    finite(st.decode_step(small(), system, batch=8, context=100, layout=st.Layout(tp=rng.choice((1, 2)))))


def rents_file(rng: random.Random, folder: Path) -> Any:
    (folder / "rents").mkdir(exist_ok=True)
    path = written(in_file(rng.choice(texts("rents")), rng), folder / "rents", fresh(rng, ".toml"))
    try:
        return list(zip(range(40), quotes(folder), strict=False))
    finally:
        path.unlink()


def engine_file(rng: random.Random, folder: Path) -> Any:
    path = written(in_file(rng.choice(texts("engines")), rng), folder, fresh(rng, ".toml"))
    try:
        engine = st.load_engine(str(path))
    finally:
        path.unlink()
    finite(st.decode_step(small(), machine(), batch=8, context=100, engine=engine))


def runs_file(rng: random.Random, folder: Path) -> Any:
    row = "a,llama-3.1-8b,hgx-h100,vllm,1024,128,16,1,1,1,1,bf16,,0.5,0.01"
    text = ",".join((*COLUMNS, "ttft_s", "tpot_s")) + "\n" + "\n".join([row] * 3) + "\n"
    path = written(in_file(cells(text, rng), rng), folder, fresh(rng, ".csv"))
    try:
        return read_runs(path, skip_bad=rng.random() < 0.5)
    finally:
        path.unlink()


def trace_file(rng: random.Random, folder: Path) -> Any:
    if rng.random() < 0.5:
        text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2023-11-16 18:15:{n:02},{9 * n},{n}\n" for n in range(9))
        text, suffix = cells(text, rng), ".csv"
    else:
        row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
        text, suffix = "".join(json.dumps(row | {"timestamp": n}) + "\n" for n in range(9)), ".jsonl"
    path = written(in_file(text, rng), folder, fresh(rng, suffix))
    try:
        return read_trace(path, max_requests=rng.choice((None, None, 3)))
    finally:
        path.unlink()


def result_file(rng: random.Random, folder: Path) -> Any:
    result: dict[str, Any] = dict(RESULT)
    for _ in range(rng.choice((1, 1, 2, 3))):
        key = rng.choice((*result, "errors", "failed", "cache_report", "mean_e2el_ms", "accept_length"))
        result[key] = rng.choice(
            (0, -1, 1, 2.5, 1e300, -1e300, None, True, "x", "", [], [1], {}, {"a": 1}, 10**400, "9" * 5000)
        )
    text = json.dumps(result)
    path = written(in_file(text, rng) if rng.random() < 0.3 else text.encode(), folder, fresh(rng, ".json"))
    try:
        return read_files([path], overrides={"model": "llama-3.1-8b"}, skip_bad=rng.random() < 0.5)
    finally:
        path.unlink()


def cells(text: str, rng: random.Random) -> str:
    """Return a CSV with a cell changed, a column doubled or a row cut short."""
    rows = [line.split(",") for line in text.splitlines()]
    kind, n = rng.random(), rng.randrange(len(rows))
    if kind < 0.6:
        rows[n][rng.randrange(len(rows[n]))] = rng.choice((*TEXTS, *LITERALS))
    elif kind < 0.75:
        column = rng.randrange(len(rows[0]))
        rows = [[*row, row[column]] for row in rows]
    elif kind < 0.9:
        rows[n] = rows[n][: rng.randrange(len(rows[n]))]
    return "\n".join(",".join(row) for row in rows) + "\n"


# --- texts and arguments ------------------------------------------------------------------------------------------------


def what_if(rng: random.Random, _: Path) -> Any:
    path = rng.choice((*settable(machine()), "chip.peak.fp9", "scale_out", "", "chip", "rent "))
    value = rng.choice((*TEXTS, *(text.strip('"') for text in LITERALS)))
    unit = rng.choice(("", "", " TB/s", "GB", " us", " USD/h", "W", " B", "TFLOP/s"))
    if path in settable(machine()) and rng.random() < 0.6:
        value, unit = rng.choice(FIGURES), rng.choice(UNITS[settable(machine())[path]])
    system = vary(machine(), read_changes(machine(), (f"{path}{rng.choice(('=', '=', '=', ' = ', ''))}{value}{unit}",)))
    finite(st.decode_step(small(), system, batch=8, context=100))


def figure(rng: random.Random, _: Path) -> Any:
    paths = rng.sample(sorted(settable(machine())), rng.choice((1, 1, 2)))
    system = vary(machine(), {path: some(rng, (1, 8, 1e12, 3e12), 0.7) for path in paths})
    finite(st.decode_step(small(), system, batch=8, context=100, layout=st.Layout(tp=2)))


def unit_text(rng: random.Random, _: Path) -> Any:
    text = rng.choice((*TEXTS, *NUMBERS)) if rng.random() < 0.5 else "".join(rng.choices("0123456789.,_-+ekMGTBiKs/ ", k=6))
    if rng.random() < 0.5:
        assert abs(count(text, "number")) <= 1e15  # its sign is for the gate that asked
    else:
        unit = rng.choice(("", "B", "B/s", "FLOP/s", "s", "USD/s", "W"))
        show(parse(text, unit), unit)


def step(rng: random.Random, _: Path) -> Any:
    layout = st.Layout(**{name: some(rng, (1, 1, 2, 8), 0.15) for name in ("tp", "dp", "ep", "pp", "cp", "microbatches")})
    layout = rng.choice((layout, None, st.Layout(tp=2)))
    model, kind = rng.choice((small(), sparse())), rng.randrange(4)
    if kind == 0:
        finite(
            st.decode_step(
                model,
                machine(),
                batch=some(rng, (1, 64)),
                context=some(rng, (10, 4096)),
                query=some(rng, (1, 4), 0.2),
                layout=layout,
                engine="ideal",
            )
        )
    elif kind == 1:
        of = {"tokens": some(rng, (10, 4096)), "prompts": some(rng, (None, 2)), "prefix": some(rng, (0, 99))}
        finite(st.prefill_step(model, machine(), **of, layout=layout))
    elif kind == 2:
        st.memory_per_chip(model, machine(), batch=some(rng, (1, 64)), context=some(rng, (10, 4096)), layout=layout)
    else:
        sequences_that_fit(model, machine(), context=some(rng, (10, 4096)), layout=layout)


def workload(rng: random.Random, _: Path) -> Any:
    if rng.random() < 0.5:
        return st.Slo(ttft=some(rng, (1.0, 0.2), 0.6), tpot=some(rng, (0.02, 0.05), 0.6))
    names = ("input_tokens", "output_tokens", "cached_share")
    return st.Workload(**{name: some(rng, (1, 100, 0.5), 0.6) for name in names})


def policy(rng: random.Random, _: Path) -> Any:
    usual: dict[str, tuple[Any, ...]] = {
        "kind": ("continuous", "train", "static"), "max_num_seqs": (8, 256), "max_num_batched_tokens": (64, 2048),
        "block": (1, 16), "kv_tokens": (1e5,), "when_full": ("recompute", "queue"), "interval": (0.1,),
        "patience": (0.0, 1.0), "speculative_tokens": (0, 3), "acceptance_length": (1.0, 2.0), "ranks": (1, 2),
        "max_context": (4096,), "route": ("round-robin", "least-loaded"),
    }  # fmt: skip
    names = rng.sample(sorted(usual), rng.choice((1, 2, 3, 5)))
    return Policy(**{name: some(rng, usual[name]) for name in names}).rules(groups=2)


def traffic(rng: random.Random, _: Path) -> Any:
    kind = rng.randrange(5)
    if kind == 0:
        shape = some(rng, ("fixed", "uniform", "lognormal"), 0.1)
        return Lengths(mean=some(rng, (1, 100)), shape=shape, spread=some(rng, (0, 0.5))).draw(np.random.default_rng(0), 5)
    one = Lengths(mean=64)
    of = {"n": rng.choice([x for x in NUMBERS if not isinstance(x, int) or x < 10**4 or x > 10**8])} | {
        "seed": some(rng, (0, 7))
    }
    if rng.random() < 0.7:
        of["n"] = 20
    if kind == 1:
        arrivals = {"kind": some(rng, ("poisson", "gamma", "constant"), 0.1), "burst": some(rng, (1, 3))}
        return open_loop(some(rng, (1, 20.0)), inputs=one, outputs=one, **of, **arrivals)
    if kind == 2:
        return closed_loop(some(rng, (1, 4)), inputs=one, outputs=one, **of)
    base = open_loop(5, 20, one, one)
    if kind == 3:
        return scaled(base, some(rng, (2.0,)))
    names = {"prefixes": (1, 3), "prefix_tokens": (64, 640), "block_tokens": (16, 64)}
    return with_sessions(base, **{name: some(rng, usual) for name, usual in names.items()})


# --- whole questions ----------------------------------------------------------------------------------------------------


def plan(rng: random.Random, folder: Path) -> Any:
    system = machine()
    kind = rng.random()
    if kind < 0.4:
        text = rng.choice(texts("systems"))
        path = written(in_file(text, rng), folder, fresh(rng, ".toml"))
        try:
            system = load_system(str(path))
        except InputError:
            system = st.load_system(rng.choice(("hgx-h100", "tpu-v6e", "cs-3", "m3-ultra")))
        finally:
            path.unlink()
    elif kind < 0.6:
        unit = settable(system)
        try:
            system = vary(system, {rng.choice(sorted(unit)): rng.choice(NUMBERS)})
        except InputError:
            system = machine()
    asked = st.Workload(
        input_tokens=rng.choice((1, 100, 4096.5, 10**6, 10**9)), output_tokens=rng.choice((1, 128, 10**5, 10**9))
    )
    if rng.random() < 0.2:
        asked = replace(asked, cached_share=rng.choice((0.5, 0.999999)))
    slo = st.Slo(ttft=rng.choice((float("inf"), 1.0, 1e-9)), tpot=rng.choice((float("inf"), 0.02, 1e-9, 1e9)))
    chips = some(rng, (None, None, 1, 2, 3, 8, 16, 127, 200_000), 0.2)
    plain(st.plan(rng.choice((small(), sparse())), system, asked, slo, chips=chips))


PLAN = {"model": SMALL, "system": SYSTEM, "speed": 40, "input": 500, "output": 100, "chips": 2}
SIMULATION = {"model": SMALL, "system": SYSTEM, "input": 100, "output": 10, "requests": 30}
TRAIN = {"model": SMALL, "system": SYSTEM, "seq": 2048, "batch": 64}
# Inputs of each question that have an answer, and how often the question is drawn.
ASKED: dict[str, tuple[int, tuple[dict[str, Any], ...]]] = {
    "step": (40, (
        {"model": SMALL, "system": SYSTEM, "batch": 16},
        {"model": "qwen3-30b-a3b", "system": "hgx-h200", "tp": 2, "ep": 2, "phase": "mixed", "batch": 8, "prompts": 2},
        {"model": SMALL, "system": SYSTEM, "drafts": 3, "acceptance": 2.0, "arch.layers": 8, "times.bandwidth": 2.0},
    )),
    "plan": (3, (
        PLAN,
        PLAN | {"prefill_system": "hgx-h200", "prefill_chips": 2, "mode": "disaggregated"},
        PLAN | {"tp": 2, "max_num_seqs": 32, "chunk": 2048},
        PLAN | {"sessions": "2", "think_time": 5.0, "system_prompt": 100, "input": 100, "prefix_cache": "cpu-dram"},
        {name: value for name, value in PLAN.items() if name != "chips"} | {"rate": 20.0, "spare": 1, "sure": 0.9},
    )),
    "simulate": (10, (
        SIMULATION | {"rate": 2.0},
        SIMULATION | {"concurrency": 4, "replicas": 2, "route": "least-loaded", "drafts": 2, "acceptance": 1.5},
        SIMULATION | {"rate": 2.0, "sessions": "2", "think_time": 1.0, "prefill_replicas": 1},
    )),
    "train": (25, (
        TRAIN | {"chips": 8},
        TRAIN | {"chips": 16, "tokens": "1T", "stage": ("50B:8192:128",), "failures": 1.0, "spare": 1},
        TRAIN | {"tokens": "100B", "deadline": "30d"},
        TRAIN | {"tokens": "100B", "budget": "100k"},
        TRAIN | {"chips": 8, "tp": 2, "micro_batch": 1, "recompute": "full", "task": "lora"},
    )),
    "budget": (6, (
        {"match_quality": "8B@15T", "tokens_served": "10T"}, {"compute": 1e22}, {"usd": "1M", "experts": 8, "rl_share": 0.1},
    )),
    "laws": (3, ({"params": 10**9, "tokens": 10**11}, {"name": "hoffmann", "params": 10**10, "tokens": 10**12})),
    "rl": (3, ({"model": SMALL, "system": SYSTEM, "chips": 8, "rollouts": 64, "output": 200, "longest": 1000},)),
    "roofline": (6, ({"model": SMALL, "system": SYSTEM},)),
    "context": (1, ({"model": SMALL, "system": SYSTEM, "context": 8192, "technique": ("kv=fp8",)},)),
    "reversible": (3, ({"model": SMALL, "system": SYSTEM},)),
}  # fmt: skip
# A run takes as long as these say.
LENGTHS = {
    "requests",
    "replicas",
    "fast_replicas",
    "prefill_replicas",
    "concurrency",
    "sessions",
    "prefixes",
    "longest",
    "rate_scale",
}


def question(rng: random.Random, _: Path) -> Any:
    """Ask a question with one to three of its inputs odd."""
    name = rng.choices(list(ASKED), [share for share, _ in ASKED.values()])[0]
    inputs = find_question(name).inputs
    values = dict(rng.choice(ASKED[name][1]))
    for _ in range(rng.choice((1, 1, 1, 2))):
        key = rng.choice((*inputs, *values, "strange"))
        kind = inputs[key].kind if key in inputs else ""
        odd = rng.choice((*NUMBERS, *TEXTS))
        if rng.random() < 0.6:
            odd = rng.choice(FIGURES if kind == "text" else (1, 2, 4, 7, 60, 3000) if kind == "count" else (0.3, 0.9, 1.7, 60))
            odd = rng.choice(inputs[key].choices) if kind == "text" and inputs[key].choices else odd
        if key in LENGTHS and isinstance(odd, int | float) and 100 < odd < 10**8:
            odd = 7
        values[key] = [odd] if kind == "texts" and rng.random() < 0.5 else odd
    st.ask(name, **values)


def simulation(rng: random.Random, _: Path) -> Any:
    n = 40
    arrival = np.cumsum(np.full(n, rng.choice((0.0, 0.01, 1e6))))
    asked = Traffic(
        arrival=some(rng, (arrival,), 0.15),
        inputs=some(rng, (np.full(n, 100), np.full(n, 10**6), np.zeros(n, dtype=np.int64)), 0.15),
        outputs=some(rng, (np.full(n, 10), np.full(n, 1), np.full(n, 1000)), 0.15),
        clients=some(rng, (0, 0, 4, 100), 0.1),
    )
    schedule = {"max_num_seqs": some(rng, (1, 8, 256), 0.1), "max_num_batched_tokens": some(rng, (1, 64, 2048), 0.1)}
    schedule |= {"kind": rng.choice(("continuous", "prefill-first", "static", "train")), "interval": 0.1}
    given: dict[str, Any] = {"layout": st.Layout(tp=rng.choice((1, 2)), replicas=some(rng, (1, 2), 0.1))}
    if rng.random() < 0.2:
        given["prefill"] = st.Layout(replicas=some(rng, (1, 2), 0.1))
    if rng.random() < 0.2:
        given |= {"fast": Policy(max_num_seqs=4), "fast_replicas": some(rng, (1, 2), 0.3)}
    if rng.random() < 0.2:
        given["cache"] = Cache(tiers=(Tier(name="hbm", capacity=some(rng, (1e9,)), bandwidth=some(rng, (1e12,))),))
        asked = with_sessions(asked, prefixes=2, prefix_tokens=64)
    given |= {"cached": some(rng, (0, 50), 0.1), "slowness": some(rng, (1.0, 2.0), 0.1)}
    simulate(small(), machine(), asked, policy=Policy(**schedule), **given)
