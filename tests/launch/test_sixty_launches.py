"""Sixty drawn plans, read back from their launch commands: flags, hosts, limits and memory.

The reader has what a user has: the printed text, the folder of scripts, the config of the checkpoint, the data sheet of
the chip and the question. Its arithmetic of weights and KV cache is its own, from the fields of `config.json`.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steptime as st
from steptime.launch.launch_commands import launch_commands, launch_files
from steptime.planning.plan_result import Plan, Pool
from tests.launch.reading import Read, Said, commands, options_file, said
from tests.launch.test_read_back import check

pytestmark = pytest.mark.slow
COUNT = 60
# Largest relative difference between what a reader computes and what the plan says.
TOLERANCE = 0.05
MODELS = (
    "qwen3-14b", "qwen3-32b", "llama-3.3-70b", "qwen3-30b-a3b", "gpt-oss-120b", "qwen3-235b-a22b", "deepseek-v3", "kimi-k2",
)  # fmt: skip
SYSTEMS = (
    ("hgx-h100", 8), ("hgx-h100", 16), ("hgx-h100", 24), ("hgx-h200", 8), ("hgx-h200", 12), ("hgx-h200", 20), ("hgx-b200", 8),
    ("hgx-b200", 16), ("gb200-nvl72", 12), ("gb200-nvl72", 36), ("gb200-nvl72", 72), ("mi300x-8", 8), ("mi300x-8", 16),
)  # fmt: skip
REQUESTS = ((1000, 300), (4096, 512), (8192, 1024), (500, 1000), (20000, 400))
LIMITS = (st.Slo(tpot=0.03), st.Slo(tpot=0.05), st.Slo(tpot=0.1), st.Slo(tpot=0.05, ttft=3.0))
FORMATS: tuple[dict[str, str], ...] = ({}, {}, {"kv": "fp8"}, {"weights": "fp8"})
SERVERS = ("vllm serve", "python -m sglang.launch_server", "trtllm-serve")
# Bytes per value of number formats, with the scales of their blocks.
BYTES = {"bf16": 2.0, "fp8": 1.0, "mxfp4": 4.25 / 8, "nvfp4": 4.5 / 8}
CONFIGS = Path(st.__file__).parent / "data" / "models"


@dataclass(frozen=True)
class Case:
    """A question, its plan, and its launch as text and as files."""

    question: str
    plan: Plan
    system: st.System
    lines: list[str]
    files: dict[str, str]

    def servers(self) -> Iterator[tuple[Read, Pool]]:
        """Yield the first server of each pool with the pool."""
        reads = [read for read in commands(self.lines) if read.program in SERVERS and "--headless" not in read.flags]
        reads = [read for read in reads if read.one("--node-rank", 0) == 0]
        yield from zip(reads, self.plan.pools, strict=True)


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """Return sixty plans that meet their limits."""
    draw, drawn = random.Random(20261127), []
    while len(drawn) < COUNT:
        name, (machine, chips) = draw.choice(MODELS), draw.choice(SYSTEMS)
        (inputs, outputs), spread = draw.choice(REQUESTS), draw.choice((0.0, 0.5, 1.0))
        settings: dict[str, Any] = {
            "chips": chips,
            "engine": draw.choice(("vllm", "sglang", "trtllm")),
            "modes": draw.choice(("aggregated", "aggregated", "disaggregated")),
            "evidence": draw.choice(("measured", "measured", "measured", "published")),
            "sizes": {"pp": 2} if draw.random() < 0.08 else {},
        }
        formats, limits, cached = draw.choice(FORMATS), draw.choice(LIMITS), draw.choice((0.0, 0.0, 0.5))
        drafts = draw.choice((0, 1)) if name == "deepseek-v3" else 0
        workload = st.Workload(
            input_tokens=inputs, output_tokens=outputs, input_spread=spread, output_spread=spread, cached_share=cached
        )
        system = st.load_system(machine)
        try:
            plan = st.plan(
                st.load_model(name, **formats), system, workload, limits, drafts=drafts, alternatives=False,
                elasticities=False, front=False, diagnostics=False, **settings,
            )  # fmt: skip
        except st.InputError:
            continue
        engine = settings["engine"]
        if plan.feasible and not (engine == "trtllm" and system.chip.vendor != "NVIDIA"):
            question = (
                f"{name} {machine} {settings} {formats} {inputs}/{outputs} spread {spread} cached {cached} drafts {drafts}"
            )
            files = launch_files(plan, engine)
            drawn.append(Case(question, plan, system, launch_commands(plan, engine), files))
    return tuple(drawn)


# --- the reader's arithmetic --------------------------------------------------------------------------------------------


@lru_cache
def config(place: str) -> dict[str, Any]:
    """Return the fields of a checkpoint's `config.json`."""
    fields: dict[str, Any] = json.loads((CONFIGS / f"{place.replace('/', '--')}.json").read_text())["config"]
    return fields


def shards(most: float, ways: float) -> float:
    """Return the ways in which whole heads divide: the chip with the most heads counts."""
    return most / math.ceil(most / min(most, ways))


def attention_values(c: dict[str, Any], group: int) -> tuple[float, float]:
    """Return the weights of attention on one chip, and the largest number of values of a token's rows there."""
    width, heads = c["hidden_size"], c["num_attention_heads"]
    if "kv_lora_rank" in c:
        latent, rope, head = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"]
        low = width * (c["q_lora_rank"] + latent + rope)
        wide = heads * (c["q_lora_rank"] * (head + rope) + latent * (head + c["v_head_dim"]) + c["v_head_dim"] * width)
        return low + wide / shards(heads, group), heads * (head + rope + c["v_head_dim"]) / group
    head, pairs = c.get("head_dim", width // heads), c["num_key_value_heads"]
    return 2 * width * head * (heads / shards(heads, group) + pairs / shards(pairs, group)), (width + heads * head) / group


def weights_and_row(c: dict[str, Any], read: Said, formats: tuple[str, str], drafts: int) -> tuple[float, float]:
    """Return the bytes of weights on a chip, and the bytes of activations of a token."""
    layout, width, (dense, routed) = read.layout, c["hidden_size"], (BYTES[name] for name in formats)
    group, stage, layers = int(layout.group), int(layout.stage), c["num_hidden_layers"]
    experts = c.get("n_routed_experts", c.get("num_experts", c.get("num_local_experts", 0)))
    plain = c.get("first_k_dense_replace", 0) if experts else layers
    attention, row = attention_values(c, group)
    one = 3 * width * c["intermediate_size"] / group
    total = layers * attention * dense + plain * one * dense
    row = max(row, (width + 2 * c["intermediate_size"]) / group if plain else 0.0)
    if experts:
        inner = c.get("moe_intermediate_size", c["intermediate_size"])
        slots = math.ceil((experts + int(layout.redundant_experts)) / int(layout.ep))
        mixture = slots * 3 * width * inner * routed / (stage / int(layout.ep))
        mixture += c.get("n_shared_experts", 0) * 3 * width * inner * dense / group + 2.0 * width * experts
        total += (layers - plain) * mixture
        row = max(row, c["num_experts_per_tok"] * (width + 2 * inner))
        # The draft layer is one more layer, with a projection of two rows to one.
        total += (mixture + attention * dense + 2 * width * width * dense / group) * min(drafts, 1)
    share = math.ceil(layers / int(layout.pp)) / layers
    stem = 2.0 * width * c["vocab_size"] / group
    return total * share + stem * (1 if int(layout.pp) > 1 else 2), 2.0 * (2 * width + row)


def cache_per_sequence(c: dict[str, Any], read: Said, kv: str, context: float, drafts: int) -> float:
    """Return the bytes of a sequence's KV cache on one chip."""
    layout, layers = read.layout, c["num_hidden_layers"]
    share = math.ceil(layers / int(layout.pp)) / layers / int(layout.cp)
    if "kv_lora_rank" in c:
        values = c["kv_lora_rank"] + c["qk_rope_head_dim"]
        return (layers + min(drafts, 1)) * values * BYTES[kv] * context * share
    head, pairs = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"]), c["num_key_value_heads"]
    kinds = c.get("layer_types") or ["full_attention"] * layers
    tokens = sum(min(context, c["sliding_window"]) if kind == "sliding_attention" else context for kind in kinds)
    return 2 * head * pairs / shards(pairs, int(layout.tp)) * BYTES[kv] * tokens * share


def formats_of(c: dict[str, Any], read: Said, notes: list[str]) -> tuple[str, str]:
    """Return the formats of dense layers and of experts: of the flag, of the comment on the checkpoint, or stored."""
    for note in notes:
        if match := re.match(
            r"# CHECKPOINT: id or folder of (?:the weights|this model) in (\w+)(?: with experts in (\w+))?", note
        ):
            return match[1], match[2] or match[1]
    if read.weights:
        return read.weights, read.weights
    method = c.get("quantization_config", {}).get("quant_method", "bf16")
    return ("bf16" if method == "mxfp4" else method), method


def place_of(case: Case, read: Read) -> str:
    """Return the id of the checkpoint, from the command or from its comment."""
    place = read.place or read.one("--model-path")
    if place != "$CHECKPOINT":
        return str(place)
    return next(match[1] for line in case.lines if (match := re.search(r"; (\S+/\S+) is stored in", line)))


def drafts_of(read: Read) -> int:
    """Return the speculative tokens that a command asks for."""
    if read.program == "vllm serve":
        return int(json.loads(read.one("--speculative-config", "{}")).get("num_speculative_tokens", 0))
    if read.program == "trtllm-serve":
        told = options_file(read.files[read.one("--extra_llm_api_options")])
        return int(told.get("speculative_config", {}).get("num_nextn_predict_layers", 0))
    return int(read.one("--speculative-num-steps", 0))


def length_of(read: Read) -> int:
    """Return the longest request that a server takes [tokens]."""
    return int(next(read.one(flag) for flag in ("--max-model-len", "--context-length", "--max_seq_len") if flag in read.flags))


def nodes_of(read: Read) -> int:
    """Return the hosts of a replica."""
    if "--data-parallel-size-local" in read.flags:
        return int(read.one("--data-parallel-size")) // int(read.one("--data-parallel-size-local"))
    if "--gpus_per_node" in read.flags:
        return int(read.one("--tp_size")) * int(read.one("--pp_size", 1)) // int(read.one("--gpus_per_node"))
    return int(read.one("--nnodes", 1))


def devices_of(read: Read, host: int) -> int:
    """Return the chips that a server takes on each of its hosts."""
    if "--gpus_per_node" in read.flags:
        return int(read.one("--gpus_per_node"))
    devices = next((value for name, value in read.environment.items() if name.endswith("VISIBLE_DEVICES")), "")
    return len(devices.split(",")) if devices else host


def placed(hosts: str, chips: str) -> Iterator[tuple[int, int]]:
    """Yield the host and the number of each chip in a row of the README."""
    lists = chips.split(";")
    for n, host in enumerate(hosts.split(", ")):
        for part in lists[n if len(lists) > 1 else 0].split(","):
            first, _, last = part.strip().partition(" to ")
            yield from ((int(host), chip) for chip in range(int(first), int(last or first) + 1))


@dataclass(frozen=True)
class Bytes:
    """Bytes on a chip that a reader computes: parts, and the room of the KV cache that the engine allocates."""

    weights: float
    cache: float
    activations: float
    room: float
    longest: float


def read_memory(case: Case, read: Read, role: str) -> Bytes:
    """Return the memory of a chip from a command, a config, a data sheet and the lengths of the question."""
    c, told, work = config(place_of(case, read)), said(read, case.plan.served.routed_experts), case.plan.workload
    drafts, layout = drafts_of(read), told.layout
    formats = formats_of(c, told, case.lines)
    weights, row = weights_and_row(c, told, formats, drafts)
    sequences = math.ceil(told.sequences / int(layout.dp))
    context = work.input_tokens + work.output_tokens * (1 + work.output_spread**2) / 2
    if role == "prefill":
        # One pass runs while the one before it is sent.
        sequences, context = 2 * sequences, work.input_tokens
    kv = told.kv or "bf16"
    activations = row * max(told.tokens, sequences / int(layout.microbatches) if role != "prefill" else 0)
    # Buffers of collectives, and vLLM's sampler (tests/physics/test_memory.py).
    activations += min(1.92e9, 0.025 * float(case.system.chip.capacity)) * (layout.chips > 1)
    activations += 22.0 * sequences * c["vocab_size"] * (read.program == "vllm serve")
    memory = float(case.system.chip.capacity)
    if read.program == "vllm serve":
        room = float(read.one("--gpu-memory-utilization")) * memory - weights - activations
    elif read.program == "trtllm-serve":
        cache = options_file(read.files[read.one("--extra_llm_api_options")])["kv_cache_config"]
        room = cache["free_gpu_memory_fraction"] * (memory - weights - activations)
    else:
        room = float(read.one("--mem-fraction-static")) * memory - weights
    return Bytes(
        weights=weights,
        cache=sequences * cache_per_sequence(c, told, kv, context, drafts),
        activations=activations,
        room=room,
        longest=cache_per_sequence(c, told, kv, length_of(read), drafts),
    )


def relative(first: float, second: float) -> float:
    return abs(float(first) / float(second) - 1)


# --- the sixty ----------------------------------------------------------------------------------------------------------


def test_sixty_plans_are_of_every_kind():
    plans = [case.plan for case in cases()]
    assert len(plans) == COUNT
    assert {plan.engine for plan in plans} == {"vllm", "sglang", "trtllm"}
    assert {plan.mode for plan in plans} == {"aggregated", "disaggregated"}
    assert min(plan.chips for plan in plans) == 8
    assert max(plan.chips for plan in plans) == 72
    layouts = [pool.layout for plan in plans for pool in plan.pools]
    for way, least in (("tp", 10), ("pp", 2), ("dp", 10), ("ep", 5), ("replicas", 10)):
        assert sum(getattr(layout, way) > 1 for layout in layouts) >= least, way


def test_every_flag_and_value_is_in_the_engines_parser():
    for case in cases():
        for read in commands(case.lines):
            check(read)


def test_chips_and_hosts_that_start_are_those_that_the_plan_bills():
    for case in cases():
        plan, host = case.plan, case.plan.served.host_chips

        # The text alone: chips of a replica times the addresses that its router has.
        text, started = "\n".join(case.lines), 0
        for read, pool in case.servers():
            told = said(read, plan.served.routed_experts)
            names = set(re.findall(rf"\b{pool.role.upper()}_\d+_ADDRESS", text))
            started += max(1, len(names)) * int(told.layout.chips)
            assert nodes_of(read) * devices_of(read, host) == told.layout.chips, case.question
        assert started == plan.chips - plan.idle_chips, case.question

        # The folder: every chip of a host starts one process.
        rows = re.findall(r"^\| `[\w.-]+` \| ([\d, ]+) \| ([^|]+) \|$", case.files["README.md"], re.M)
        chips = [(host, chip) for hosts, numbers in rows for host, chip in placed(hosts, numbers)]
        assert len(chips) == len(set(chips)) == started, case.question
        hosts = {host for host, _ in chips}
        assert len(hosts) == len(re.findall(r"HOST_\d+:=", case.files["addresses.sh"]))

        # More or fewer hosts than billed are said, with their number.
        billed = math.ceil(plan.chips / host)
        if len(hosts) > billed:
            assert any(f"takes {len(hosts)} hosts" in warning for warning in plan.warnings), case.question
            assert f"replicas in equal parts take {len(hosts)} hosts" in text
        if len(hosts) < billed:
            assert re.search(rf"chips? of the {plan.chips} that the cost counts stay idle.* use {len(hosts)} host", text)


def test_limits_of_the_servers_are_those_of_the_plan():
    random_numbers = np.random.default_rng(7).standard_normal((2, 100_000))
    for case in cases():
        plan, work = case.plan, case.plan.workload
        for read, pool in case.servers():
            told, drafts, dp = said(read, plan.served.routed_experts), drafts_of(read), int(pool.layout.dp)
            parts = int(pool.layout.pp)
            # Whole sequences per rank and, where an engine counts so, per stage.
            rounded = dp * (parts if read.program == "trtllm-serve" else 1)
            assert pool.max_num_seqs <= told.sequences <= max(1.05 * pool.max_num_seqs, pool.max_num_seqs + rounded - 1)

            # The pass of the plan: the mean batch with a chunk, or whole prompts.
            fresh = work.input_tokens * (1 - work.cached_share)
            usual = pool.batch * fresh / dp if pool.role == "prefill" else pool.batch * (drafts + 1) / dp + max(pool.chunk, 0)
            tokens, waves = told.tokens * int(pool.layout.microbatches), int(pool.layout.microbatches)
            least = math.ceil(pool.max_num_seqs / rounded) * (drafts + 1) * waves
            page = 64 * parts if read.program.endswith("launch_server") else 0
            most = max(1.05 * usual + page + 2 * waves, least)
            assert 0.95 * usual <= tokens <= most, (case.question, plan.layout_text, pool.role, tokens, usual)

            # Requests that the server refuses although the model takes them.
            lengths = [
                mean * np.exp(math.sqrt(math.log1p(spread**2)) * normal) / math.sqrt(1 + spread**2)
                for mean, spread, normal in zip(
                    (work.input_tokens, work.output_tokens),
                    (work.input_spread, work.output_spread),
                    random_numbers,
                    strict=True,
                )
            ]
            context = config(place_of(case, read))["max_position_embeddings"]
            refused = float(np.mean(np.minimum(lengths[0] + lengths[1], context) > length_of(read)))
            assert refused < 5e-3, (case.question, plan.layout_text, length_of(read), refused)


def test_memory_that_a_reader_computes_is_that_of_the_plan():
    worst = 0.0
    for case in cases():
        for read, pool in case.servers():
            own, memory, text = (
                read_memory(case, read, pool.role),
                pool.memory,
                (case.question, case.plan.layout_text, pool.role),
            )
            capacity = own.weights + own.activations + own.room
            # A cache beyond the room is not allocated.
            used = own.weights + own.activations + min(own.cache, own.room)
            assert relative(used, memory.used) < TOLERANCE, text
            assert relative(capacity, memory.capacity) < TOLERANCE, text
            assert float(memory.used) <= 1.0001 * float(memory.capacity), text
            # One request of the greatest length has room.
            assert own.longest <= 1.05 * own.room, (*text, own.longest / own.room)
            worst = max(worst, relative(used, memory.used))
    assert worst > 0
