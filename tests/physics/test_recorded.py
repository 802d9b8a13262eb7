"""Figures of steps and their parts over drawn models, systems, engines, layouts and sizes: tests/golden/recorded_steps.csv."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np

import steptime as st
from steptime.physics import attention_kernels, expert_imbalance, expert_kernels, lora_adapters, network_time, operator_time
from steptime.physics.bias_correction import Anchor, MeasuredRun, OperatingPoint
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.chip_power import step_energy
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import IDEAL, ttft_factor, with_constants, with_sampling
from steptime.physics.engine_parameters import DESCRIPTIONS
from steptime.physics.layout import Layout, collect_facts, select_layouts
from steptime.physics.layout_rules import RULES, reasons
from steptime.physics.layout_space import default_layout, legal_table, not_tried
from steptime.physics.speculative_step import cache_moved, drafted_memory, drafted_sequences, drafted_step
from steptime.physics.step import decode_step, ledger_of_step, mixed_step, prefill_step
from steptime.physics.uncertainty import distances, explained_step_range, factors, widening
from tests.recorded import Recorded, spread

# model, system, engine, chips, drafts: odd families, formats, networks and engines.
SUBJECTS = [
    ("deepseek-v3", "gb200-nvl72", "trtllm", 16, 1),
    ("deepseek-v3", "hgx-h800", "sglang", 32, 3),
    ("nvidia/DeepSeek-V3.2-NVFP4", "hgx-b200", "vllm", 8, 2),
    ("deepseek-ai/DeepSeek-V4-Flash", "gb300-nvl72", "sglang", 8, 1),
    ("moonshotai/Kimi-K2-Thinking", "mi355x-8", "vllm", 8, 0),
    ("llama-3.1-70b", "hgx-h100", "vllm", 8, 2),
    ("llama-3.1-70b", "mi300x-8", "sglang", 8, 0),
    ("llama-3.1-8b", "l4-8", "vllm", 2, 1),
    ("llama-3.1-8b", "rtx-4090-8", "llama.cpp", 2, 0),
    ("llama-3.1-405b", "hgx-h200", "trtllm", 16, 0),
    ("openai/gpt-oss-120b", "hgx-h100", "vllm", 4, 0),
    ("openai/gpt-oss-20b", "dgx-spark", "llama.cpp", 1, 0),
    ("mistralai/Mixtral-8x7B-v0.1", "hgx-a100", "vllm", 4, 0),
    ("Qwen/Qwen3-235B-A22B-FP8", "hgx-h20", "sglang", 8, 0),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "hgx-h200", "vllm", 4, 1),
    ("Qwen/Qwen3.5-397B-A17B", "hgx-b300", "sglang", 8, 2),
    ("MiniMaxAI/MiniMax-M2.5", "hgx-b200", "trtllm", 4, 0),
    ("MiniMaxAI/MiniMax-Text-01", "tpu-v6e", "typical", 16, 0),
    ("google/gemma-3-27b-it", "tpu-v5p", "typical", 8, 0),
    ("google/gemma-3n-E4B-it", "m4-max", "llama.cpp", 1, 0),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "hgx-h100", "sglang", 8, 0),
    ("nvidia/Nemotron-H-56B-Base-8K", "hgx-h100", "vllm", 8, 0),
    ("ai21labs/AI21-Jamba-1.5-Mini", "l40s-8", "vllm", 8, 0),
    ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "hgx-h20", "vllm", 4, 0),
    ("state-spaces/mamba-2.8b-hf", "a10-8", "typical", 1, 0),
    ("openai-community/gpt2", "strix-halo", "llama.cpp", 1, 0),
    ("zai-org/GLM-4.5-Air", "gaudi3-8", "typical", 8, 1),
    ("Qwen/Qwen2.5-VL-72B-Instruct", "trn2-16", "typical", 16, 0),
    ("xai-org/grok-1", "mi325x-8", "typical", 8, 0),
    ("stepfun-ai/step3", "hgx-h800", "ideal", 32, 0),
    ("deepseek-ai/DeepSeek-V2-Lite", "gh200-nvl32", "ideal", 4, 0),
    ("microsoft/bitnet-b1.58-2B-4T", "m2-ultra", "llama.cpp", 1, 0),
]  # fmt: skip
RECORDED = Recorded(Path(__file__).parents[1] / "golden" / "recorded_steps.csv")


def drawn(row: int):
    """Return the subject of a row, some of its legal layouts, and sizes of steps."""
    name, place, runs_on, chips, drafts = SUBJECTS[row]
    model, system, engine = st.load_model(name), st.load_system(place), st.load_engine(runs_on)
    model = as_served(model, system, engine)
    random = np.random.default_rng(row)
    table = legal_table(model, system, chips, engine=engine)
    some = select_layouts(table, np.sort(random.integers(0, len(table.tp), 6)))
    sizes = {
        "batch": random.choice([1, 3, 17, 64, 200, 777], 6), "context": random.choice([1, 100, 1500, 9000, 70_000], 6),
        "query": random.choice([1, 2, 4], 6), "prompts": random.choice([0, 1, 2, 9], 6),
        "tokens": random.choice([1, 33, 500, 4000], 6), "prefix": random.choice([0, 700, 5000], 6),
    }  # fmt: skip
    return model, system, engine, some, sizes, drafts


@RECORDED("step", range(0, len(SUBJECTS), 2))
@RECORDED("step", range(1, len(SUBJECTS), 2), thorough=True)
def steps(row):
    model, system, engine, layout, sizes, drafts = drawn(row)
    step, interval, shares = explained_step_range(model, system, engine=engine, layout=layout, **sizes)
    decode = {name: sizes[name] for name in ("batch", "context")}
    drafted = {"layout": layout, "engine": engine, "drafts": drafts}
    energy = step_energy(
        model, system, sizes, layout=layout, engine=engine, seconds=1.1 * step.total, tokens=sizes["batch"], time_range=interval
    )  # fmt: skip
    decoded = drafted_step(model, system, **decode, **drafted)
    return {
        "terms": step.terms, "resources": step.resources, "bounds": [step.lower, step.upper, step.latency], "total": step.total,
        "interval": interval, "shares": shares, "energy": energy, "decode": [decoded.terms, decoded.resources, decoded.latency],
        "memory": drafted_memory(model, system, **decode, **drafted), "moved": cache_moved(model, 3000.0, drafts),
        "room": drafted_sequences(model, system, context=sizes["context"], **drafted, step_tokens=sizes["tokens"]),
    }  # fmt: skip


@RECORDED("layouts", range(0, len(SUBJECTS), 2), thorough=True)
def layouts(row):
    model, system, engine, *_ = drawn(row)
    chips = min(SUBJECTS[row][3], 8)
    return {
        "legal": legal_table(model, system, chips, engine=engine),
        "default": default_layout(model, system, engine=engine, batch=64, context=3000),
        "not tried": not_tried(Layout(tp=3, dp=5), collect_facts(model, system, chips=chips, engine=engine), chips),
    }


def odd_engine(name: str):
    """Return an engine whose constants all differ from the ideal ones and from each other."""
    random, values = np.random.default_rng(3), {}
    for key, about in DESCRIPTIONS.items():
        usual = {"s": 1e-5, "s per step": 1e-4, "B": 900.0, "share": 0.6, "tokens": 700.0, "weights/s": 4e12}.get(
            about["unit"], 1.3
        )
        if about["unit"].startswith("s per"):
            usual = 1e-5
        value = usual * float(random.uniform(0.8, 1.2))
        values[key] = 1.0 if about["unit"] == "0 or 1" else min(max(value, about["least"]), about["most"])
    values |= {"two_batch": 2.0, "reserved_bytes": 1e9, "collective_bytes": 3e8, "top_p_seconds_per_entry": 2e-11}
    values |= {"expert_imbalance": 0.0, "latent_contexts": 40.0, "expert_tile_rows": 24.0, "fill_bytes": 700.0}
    return with_constants(replace(IDEAL, name=name), values)


ODD = {
    "all": {}, "untimed": {"timed_kernels": 0.0}, "gathers": {"gathers_tokens": 1.0, "exchange_time": 0.0},
    "exact": {"roofline_norm": math.inf}, "exchange": {"gathers_tokens": 0.0, "seconds_per_launched_layer": 0.0},
    "imbalance": {"expert_imbalance": 1.7, "expert_time": 0.0, "attention_time": 0.0},
}  # fmt: skip


@RECORDED("odd engine", ("untimed", "gathers", "exact", "exchange", "imbalance"), thorough=True)
@RECORDED("odd engine", ("all",))
def odd_engines(name):
    engine = with_constants(odd_engine("vllm"), ODD[name])
    found = {}
    for row in (1, 5, 10, 14, 21):
        model, system, _, layout, sizes, drafts = drawn(row)
        step = mixed_step(model, system, layout=layout, engine=engine, **sizes)
        found[SUBJECTS[row][0]] = [
            step,
            memory_per_chip(model, system, batch=9, context=800, layout=layout, engine=engine, step_tokens=300),
        ]
        if drafts:
            more = drafted_step(
                model, system, batch=8, context=900, prompts=1, tokens=70, layout=layout, engine=engine, drafts=drafts
            )
            found[f"{SUBJECTS[row][0]} drafts"] = more
    return found


@RECORDED("ledger", (0, 5, 9, 14))
def ledgers(row):
    """Every line of a step: formula, counts, traffic and seconds."""
    name, place, runs_on, *_ = SUBJECTS[row]
    layout = Layout(tp=2, dp=2, ep=4) if row in (0, 14) else Layout(tp=4, pp=2, microbatches=2)
    sizes = {"batch": 40, "context": 2000, "prompts": 2, "tokens": 300, "prefix": 100}
    step, entries = ledger_of_step(st.load_model(name), st.load_system(place), sizes, layout=layout, engine=runs_on)
    return {"step": step, "entries": entries}


@RECORDED("words", ("llama-3.1-8b", "openai/gpt-oss-20b", "Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-v3"))
def adapters(name):
    """Adapters, images and sampling."""
    system, found = st.load_system("hgx-h200"), {}
    for runs_on, target in (("vllm", "all-linear"), ("sglang", "attention")):
        model = lora_adapters.with_adapters(st.load_model(name), 6, rank=24, target=target, engine_name=runs_on)
        engine, layout = with_sampling(st.load_engine(runs_on), "top-p"), Layout(tp=np.array([1, 2, 4]))
        found[runs_on] = [
            mixed_step(model, system, batch=33, context=900, prompts=1, tokens=200, layout=layout, engine=engine),
            memory_per_chip(model, system, batch=33, context=900, layout=layout, engine=engine),
            lora_adapters.adapter_parameters(model), lora_adapters.adapter_bytes(model, layout),
            lora_adapters.adapter_kernels(model, runs_on), model.notes,
        ]  # fmt: skip
    return found


@RECORDED("images", ("Qwen/Qwen2.5-VL-7B-Instruct", "moonshotai/Kimi-K2.5"))
def images(name):
    model, layout = st.with_images(name, "900x700", text=300), Layout(tp=np.array([1, 2, 4]))
    return prefill_step(model, "hgx-b200", tokens=1500, prompts=np.array([[1], [3]]), layout=layout, engine="vllm")


@RECORDED("network", ("gb200-nvl72", "hgx-h100", "tpu-v5p", "trn2-16", "mi300x-8", "rtx-4090-8", "tpu-v6e"))
def network(place):
    system = st.load_system(place)
    at = spread(1, 12, size=(1, 200), data=(1e2, 1e9), tokens=(1, 4000))
    size, stride = np.floor(at["size"]), np.array([1, 2, 4] * 4)
    groups = {"experts": 256, "active": 8}
    return {
        "members": network_time.members_by_level(system.domains, size, stride),
        "reduce": network_time.all_reduce(system, size, at["data"], stride, overhead=3e-6, efficiency=0.8),
        "gather": network_time.all_gather(system, size, at["data"], stride),
        "ring": [network_time.ring(system, size, at["data"], stride), network_time.ring_latency(system, size, stride)],
        "all": network_time.all_to_all(system, size, at["data"], stride),
        "exchange": network_time.exchange(system, size, at["tokens"], 7000, **groups, stride=stride),
        "limited": network_time.exchange(system, size, at["tokens"], 7000, **groups, expert_groups=8, active_groups=4),
        "point": network_time.point_to_point(system, size, at["data"], stride, 700.0),
        "messages": [network_time.messages(domain.link, size) for domain in system.domains],
    }


@RECORDED("kernels", range(1))
def kernels(seed):
    at = spread(
        seed, 40, compute=(1e-6, 1e-2), memory=(1e-6, 1e-2), norm=(1, 30), rows=(1, 9000), touched=(1, 200), tokens=(1, 9000),
        columns=(64, 4096), share=(0.2, 1), few=(1, 400), skew=(0.05, 3), ranks=(1, 200),
    )  # fmt: skip
    expert = expert_kernels.ExpertKernel(
        seconds=1e-6, memory_share=at["share"], compute_share=at["share"] / 2, fill_columns=70.0, tile_rows=at["few"],
        activation_share=0.7, token_passes=1.3,
    )  # fmt: skip
    attention = attention_kernels.AttentionKernel(tile_entries=70.0, fill_rows=at["few"])
    joint = attention_kernels.JointKernel(engine="", chips="", form="", tile_rows=64, block_entries=10, timed_compute=1)
    sizes = {name: at[name] for name in ("touched", "rows", "tokens", "columns")} | {
        "width": 4096,
        "matrices": 3,
        "stored": 0.6,
    }
    ranks, copies = np.floor(at["ranks"]), 16 * (np.arange(40) % 3)
    return {
        "experts": expert_kernels.kernel_times(expert, **sizes, bandwidth=3e12, peak=9e14),
        "prefill": attention_kernels.prefill_pairs(attention, at["rows"], at["tokens"], at["few"], at["columns"]),
        "decode": attention_kernels.decode_entries(attention, at["rows"], at["few"]),
        "joint": attention_kernels.joint_pairs(joint, attention, at["rows"], at["tokens"]),
        "padding": attention_kernels.padding(8.0, at["few"]),
        "overlap": [operator_time.overlap(at["compute"], at["memory"], norm) for norm in (at["norm"], 1.0, 2.0, math.inf)],
        "overlapped": [operator_time.overlapped(at["compute"], at["memory"], norm) for norm in (at["norm"], 1.0, math.inf)],
        "busiest": expert_imbalance.busiest_rows(at["rows"], np.sqrt(at["rows"]), at["tokens"], at["skew"], 256, ranks, copies),
        "even": expert_imbalance.busiest_rows(at["rows"], np.sqrt(at["rows"]), at["tokens"], 1.28, 64, ranks, 8),
        "adapters": lora_adapters.distinct_adapters(9, at["few"] / 9),
    }


@RECORDED("rules", ("sglang", "trtllm", "llama.cpp", "other"), thorough=True)
@RECORDED("rules", ("vllm",))
def rules(name):
    """Which of many odd layouts each rule allows, and the figures in its reasons."""
    engine = st.load_engine(name) if name != "other" else replace(IDEAL, name="other")
    random, found = np.random.default_rng(8), {}
    degrees = {
        "tp": [1, 2, 3, 4, 6, 8, 16], "pp": [1, 2, 5], "dp": [1, 2, 3, 8], "ep": [1, 2, 6, 8, 16], "cp": [1, 2, 4],
        "microbatches": [1, 2, 4], "redundant_experts": [0, 3, 8],
    }  # fmt: skip
    columns = {key: random.choice(values, 120) for key, values in degrees.items()}
    table, few_rows = (Layout(**{key: column[:rows] for key, column in columns.items()}) for rows in (120, 4))
    few = [Layout(**{key: int(random.choice(values)) for key, values in degrees.items()}) for _ in range(6)]
    subjects = [SUBJECTS[row][:2] for row in (4, 10, 14, 21)]
    for model, place in subjects:
        for role in ("", "prefill", "decode"):
            facts = collect_facts(st.load_model(model), st.load_system(place), chips=16, engine=engine, role=role)
            holds = [np.sum(np.broadcast_to(rule.holds(facts, table), (120,)) * np.arange(1, 121)) for rule in RULES]
            found[f"{model} {role}"] = [
                facts,
                holds,
                [reasons(layout, facts) for layout in (*few, few_rows)],
            ]
    return found


@cache
def anchor() -> Anchor:
    """Runs on several layouts, loads and contexts."""
    shape = {"model": "meta-llama/Llama-3.1-8B", "system": "hgx-h100", "version": "0.19", "formats": ("bf16", "")}
    runs = tuple(
        MeasuredRun(
            name=f"{n}", tp=1 + n % 2, load=4.0 * 3**n, context=500.0 * 2**n, tpot=1.1 + 0.1 * n, ttft=1.5 - 0.2 * n, **shape
        )
        for n in range(4)
    )  # fmt: skip
    return Anchor(
        model=shape["model"], system=shape["system"], engine="vllm", source="runs.csv", formats=shape["formats"], measured=runs
    )


@RECORDED("anchor", range(1))
def anchors(_):
    point = OperatingPoint(layout=Layout(tp=np.array([1, 2, 4])), load=np.array([[3.0], [50.0]]), context=4000.0)
    engine, own = replace(st.load_engine("vllm"), anchor=anchor()), anchor()
    system, near = st.load_system("hgx-h100"), OperatingPoint(load=20.0)
    adapted = lora_adapters.with_adapters(st.load_model("llama-3.1-8b"), 8, rank=16)
    flags = distances(engine, system, Layout(tp=8, pp=2, dp=2), model=adapted, drafts=True, context=2e5, batch=3000)
    return {
        quantity: [own.correction(quantity, at) for at in (point, OperatingPoint(), OperatingPoint(load=7.0))]
        + [own.half_width(quantity, point), own.scale(quantity), getattr(own, quantity)]
        for quantity in ("tpot", "ttft")
    } | {
        "factors": [own.step_factor(point), own.wait_factor(point), ttft_factor(engine, point)],
        "words": [own.text(None), own.text({"tpot": 1.2}), own.warning, own.headline(), own.applied(OperatingPoint(load=9.0))],
        "step": decode_step("llama-3.1-8b", system, batch=np.array([8, 90]), context=900, engine="vllm", anchor=own),
        "wider": [widening(flags, quantity) for quantity in ("tpot", "ttft")],
        "ranges": [
            factors(runs_on, quantity, regime, variance=0.3, system=place, wider=widening(flags, quantity), point=near)
            for runs_on in (engine, st.load_engine("vllm"))
            for quantity, regime in (("tpot", "decode"), ("tpot", "mixed"), ("ttft", "queue"))
            for place in (system, st.load_system("gaudi3-8"), None)
        ],
    }  # fmt: skip


@RECORDED("declared")
def declared(_):
    """What engine files may have, and how far layouts are from measured runs."""
    numbers, found = ("unit", "least", "most", "default", "read_by"), {}
    for key, about in DESCRIPTIONS.items():
        found[key] = [crc32(about[one].encode()) % 1000 if isinstance(about[one], str) else about[one] for one in numbers]
    layout = Layout(tp=np.array([1, 8, 8, 16]), pp=np.array([1, 2, 1, 1]), dp=np.array([1, 1, 2, 64]))
    for name, place in (("vllm", "hgx-h100"), ("vllm", "mi300x-8"), ("trtllm", "gb300-nvl72"), ("llama.cpp", "m4-max")):
        runs_on, system = st.load_engine(name), st.load_system(place)
        for reader in (None, Layout(tp=2, pp=2, dp=2)):
            sizes = {"context": np.array([0.0, 1e3, 1e5, 3e5]), "batch": np.array([0, 1, 2000, 90_000])}
            flags = [distances(runs_on, system, layout, reader, drafts=drafts, **sizes) for drafts in (False, True)]
            usual = distances(runs_on, system, Layout(), reader)
            found[f"{name} {place} {reader}"] = [[applies for _, applies in some] for some in (*flags, usual)]
    return {"all": found}


test_figures_are_as_recorded = RECORDED.test()
