"""The requirements of a pool in numbers that are independent of the engine, and the parts that engines' commands share."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from steptime.catalog.acceptance_lengths import OWN_LAYERS
from steptime.launch.host_placement import Replica
from steptime.launch.shell_script import Command, select_texts
from steptime.models.draft_models import EAGLE3
from steptime.physics.engine import load_engine
from steptime.physics.engine_rules import deepep_counts
from steptime.physics.layout import ENGINE, Layout, exchanges_experts, facts_of_engine
from steptime.physics.layout_rules import broken
from steptime.planning.launch_facts import Served
from steptime.planning.plan_result import Plan, Pool
from steptime.planning.steady_state import fresh_tokens
from steptime.units import show

# Vendors, and names of the engines in notes.
NVIDIA, AMD = "NVIDIA", "AMD"
NAMES: Final = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
# End of a note on a layout that an engine refuses.
NO_START: Final = "the engine will not start with this layout"
# Note for DeepEP inside a rack.
RACK: Final = "DeepEP must be built for NVLink between hosts"
# Largest number of tokens per rank in DeepEP's low-latency kernels, as SGLang's deepep.py asserts.
LOW_LATENCY_TOKENS: Final = 1024
# Default number of entries in NVSHMEM's queues. The low-latency kernels need two entries per token and two more.
# https://github.com/deepseek-ai/DeepEP deep_ep/buffer.py, read 2026-11-21 in a comment that cites it; the default is recalled.
QUEUE_DEPTH: Final = 1024
# Note on checkpoints in GGUF.
GGUF: Final = "the checkpoint is a GGUF file, which not every engine reads; vLLM needs one file, and --tokenizer of its model"
# Variable of the checkpoint, quoted so that a folder with a blank stays one word.
VARIABLE: Final = '"$CHECKPOINT"'
# Variable of a drafter without a public id, and its use in a shell word.
DRAFTER_NAME: Final = "DRAFT_MODEL"
DRAFTER_VARIABLE: Final = f'"${DRAFTER_NAME}"'

# Name of the tier in the memory of the hosts; other tiers behind HBM are disks.
HOST_TIER: Final = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTier:
    """A memory tier behind HBM that holds a part of the prefix cache of a replica.

    Attributes:
        name: Name of the tier.
        capacity: Bytes for one replica.
    """

    name: str
    capacity: float

    @property
    def folder(self) -> str:
        """Folder of the files of a disk tier, which the reader of a command may change."""
        return f"/mnt/{re.sub(r'[^A-Za-z0-9]+', '_', self.name)}_kv_cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeArgs:
    """A pool in the numbers that an engine needs.

    Attributes:
        served: Facts about model, checkpoint and machine.
        role: serve, prefill or decode.
        layout: Layout of a replica.
        sequences: Slots (max_num_seqs) of one data-parallel rank.
        tokens: Tokens of one data-parallel rank in a usual pass of a stage.
        prompt_tokens: Prefill tokens among them.
        length: Longest request [tokens].
        memory_share: Share of a chip's memory for the engine; 0 if the plan has no real engine.
        static_share: Share of a chip's memory for weights and KV cache.
        cache_share: Share of the memory that weights and activations leave free for the KV cache.
        cached: Whether prompts share prefixes.
        drafts: Speculative tokens per step.
        method: What drafts: mtp (the model's MTP layers), eagle3 or draft_model.
        drafter: Id or folder of a separate drafter; "" if none is known.
        sends_from_stages: Whether the prefill pool of the deployment has pipeline stages.
        tiers: Tiers behind HBM that hold the prefix cache of the plan, fastest first.
        cache_copies: Copies of the KV cache of a token in the chips of a data-parallel rank.
    """

    served: Served
    role: str
    layout: Layout
    sequences: int
    tokens: int
    prompt_tokens: int
    length: int
    memory_share: float
    static_share: float
    cache_share: float
    cached: bool
    drafts: int
    method: str = OWN_LAYERS
    drafter: str = ""
    sends_from_stages: bool = False
    tiers: tuple[CacheTier, ...] = ()
    cache_copies: int = 1

    @property
    def host_tier(self) -> CacheTier | None:
        """Tier in the memory of the hosts, if there is one."""
        return next((tier for tier in self.tiers if tier.name == HOST_TIER), None)

    @property
    def disk_tiers(self) -> tuple[CacheTier, ...]:
        """Tiers on disks."""
        return tuple(tier for tier in self.tiers if tier.name != HOST_TIER)

    @property
    def parts(self) -> int:
        """Micro-batches of the pipeline stages."""
        return int(self.layout.pp)

    @property
    def has_drafter(self) -> bool:
        """Whether something with its own weights drafts, an EAGLE-3 head or a draft model."""
        return self.drafts > 0 and self.method != OWN_LAYERS

    @property
    def exchanges(self) -> bool:
        """Whether data-parallel ranks exchange tokens for their experts."""
        return bool(exchanges_experts(self.layout))

    @property
    def two_batches(self) -> bool:
        """Whether a stage overlaps two micro-batches."""
        return bool(self.layout.microbatches > self.layout.pp) and self.exchanges

    @property
    def decoding(self) -> int:
        """Largest number of sequences of one data-parallel rank in a pass of a stage."""
        return -(-self.sequences // self.parts)

    @property
    def in_rack(self) -> bool:
        """Whether one fast domain joins several hosts and holds a whole pipeline stage."""
        return self.served.domain_chips > self.served.host_chips and int(self.layout.stage) <= self.served.domain_chips


def serve_args_for_pool(plan: Plan, pool: Pool) -> ServeArgs:
    """Return the requirements of a pool of a plan.

    Args:
        plan: The plan.
        pool: One of its pools.

    Returns:
        Numbers per data-parallel rank and micro-batch.
    """
    # A plan counts sequences of a replica; engines count those of a data-parallel rank.
    parts, groups = int(pool.layout.pp), int(pool.layout.dp)
    sequences = -(-pool.max_num_seqs // groups)
    prefills = pool.role == "prefill"

    # A prefill pool runs whole prompts; other pools run prefill chunks.
    prefill_tokens = math.ceil(sequences * fresh_tokens(plan.workload)) if prefills else max(pool.chunk, 0)
    decoding = 0 if prefills else math.ceil(pool.batch / groups)
    served = plan.served_by(pool.role)
    memory, chip = pool.memory, served.memory
    share, workspace = float(memory.capacity) / chip, float(memory.activations + memory.reserved)
    free = chip - float(memory.weights) - workspace
    return ServeArgs(
        served=served,
        role=pool.role,
        layout=pool.layout,
        sequences=sequences,
        tokens=-(-(decoding * (plan.speculation.drafts + 1) + prefill_tokens) // parts),
        prompt_tokens=-(-prefill_tokens // parts),
        length=longest_request(plan),
        memory_share=round(share, 4) if 0 < share < 1 else 0.0,
        static_share=round(share - workspace / chip, 4),
        cache_share=round(float(memory.cache_room) / free, 4) if math.isfinite(free) else 0.0,
        cached=float(plan.workload.cached_share) > 0,
        drafts=plan.speculation.drafts,
        method=plan.speculation.method or OWN_LAYERS,
        drafter=plan.speculation.draft_model,
        sends_from_stages=any(entry.role == "prefill" and int(entry.layout.pp) > 1 for entry in plan.pools),
        tiers=tiers_of_pool(plan, pool),
        cache_copies=cache_copies(plan, pool),
    )


def tiers_of_pool(plan: Plan, pool: Pool) -> tuple[CacheTier, ...]:
    """Return the tiers behind HBM that hold the prefix cache of a pool.

    Prompts are looked up where they are prefilled, in the first pool.

    Args:
        plan: The plan.
        pool: One of its pools.

    Returns:
        Tiers that the plan uses, fastest first; none for a plan without sessions.
    """
    if plan.session_cache is None or pool is not plan.pools[0]:
        return ()
    rows = plan.session_cache.tiers[1:]
    return tuple(
        CacheTier(name=row.name, capacity=row.capacity)
        for row in rows
        if not row.why_unused and row.capacity >= 1 and math.isfinite(row.capacity)
    )


def cache_copies(plan: Plan, pool: Pool) -> int:
    """Return how many copies of the KV cache of a token the chips of a data-parallel rank hold.

    Latent attention has one per tensor-parallel rank, and grouped-query attention where ranks outnumber KV heads.

    Args:
        plan: The plan.
        pool: One of its pools.

    Returns:
        Copies, at least 1.
    """
    chips = int(pool.layout.chips) / int(pool.layout.dp)
    stored, once = float(pool.memory.cache_room) * chips, pool.kv_tokens_per_rank * plan.served.kv_bytes_per_token
    ratio = stored / once if once > 0 else 1.0
    return max(1, round(ratio)) if math.isfinite(ratio) else 1


def tier_notes(args: ServeArgs) -> list[str]:
    """Return notes on disk tiers that every engine sets up in a folder.

    Args:
        args: Requirements of the pool.

    Returns:
        One note per tier.
    """
    return [
        f"{tier.folder}: folder on the {tier.name} tier, {show(tier.capacity, 'B')} per replica" for tier in args.disk_tiers
    ]


def needs_host_tier(args: ServeArgs) -> str:
    """Return why disk tiers are not set up: engines load them through host memory.

    Args:
        args: Requirements of the pool.

    Returns:
        The reason; "" where there is a host tier, or no tier.
    """
    if args.host_tier is not None or not args.disk_tiers:
        return ""
    names = " and ".join(tier.name for tier in args.disk_tiers)
    return f"no {names} tier is set up: engines load disks through host memory, which the plan does not use"


def longest_request(plan: Plan) -> int:
    """Return the longest request that every pool has room for.

    The lengths of the workload are means, so that their sum as a limit would refuse longer requests. One request may take all
    the KV cache that the plan leaves to a data-parallel rank. The result is rounded down to a multiple of 1,024 tokens; it is
    at least the mean request, and at most the model's context.

    Args:
        plan: The plan.

    Returns:
        Tokens of prompt and output.
    """
    mean = math.ceil(plan.workload.input_tokens + plan.workload.output_tokens)
    room = min(pool.kv_tokens_per_rank for pool in plan.pools)
    longest = max(mean, room // 1024 * 1024) if math.isfinite(room) else math.inf
    max_context = min(longest, plan.served.max_context)
    return int(max_context) if math.isfinite(max_context) else mean


def deepep_refusal(args: ServeArgs) -> str:
    """Return the reason why DeepEP has no kernels for a pool.

    It needs NVLink. It has kernels for some counts inside a host, for whole hosts of eight, and inside a rack.

    Args:
        args: Requirements of the pool.

    Returns:
        The reason; "" if it has kernels.
    """
    served, ranks = args.served, int(args.layout.stage)
    if served.vendor != NVIDIA or served.fabric != "nvlink":
        return "DeepEP needs NVLink between the chips of a host, which this machine does not have"
    if args.in_rack or deepep_counts(float(served.host_chips), ranks):
        return ""
    return f"DeepEP has no kernels for {ranks} ranks on hosts of {served.host_chips}"


def queues(tokens: int) -> dict[str, str]:
    """Return the environment that DeepEP's low-latency kernels need.

    Args:
        tokens: Tokens per rank.

    Returns:
        Variables by name; empty if the default is enough.

    >>> queues(511), queues(512)
    ({}, {'NVSHMEM_QP_DEPTH': '2048'})
    """
    queue_depth = 2 * (tokens + 1)
    return {"NVSHMEM_QP_DEPTH": str(1 << (queue_depth - 1).bit_length())} if queue_depth > QUEUE_DEPTH else {}


def checkpoint(served: Served, *, quantises: bool) -> tuple[str, list[str]]:
    """Return the word that names the checkpoint, and notes on it.

    A terminal interprets control characters in a pasted command, even if they are quoted. A checkpoint with such a name is a
    variable.

    Args:
        served: Facts about the checkpoint.
        quantises: Whether the engine converts the weights to the plan's formats itself.

    Returns:
        The quoted id or folder, or a variable with notes on its value.
    """
    place, is_safe = served.checkpoint, served.checkpoint.isprintable()
    same = (served.weights, served.experts) == (served.checkpoint_weights, served.checkpoint_experts)
    if place and is_safe and (same or quantises):
        return shlex.quote(place), select_texts((place.endswith(".gguf"), GGUF))
    needed = _formats_text(served.weights, served.experts)
    if not place or not is_safe:
        why = "whose name has characters that are not safe in a command" if place else "which the model's file does not name"
        return VARIABLE, [f"CHECKPOINT: id or folder of the weights in {needed}, {why}"]
    stored = _formats_text(served.checkpoint_weights, served.checkpoint_experts)
    return VARIABLE, [
        f"CHECKPOINT: id or folder of this model in {needed}; {place} is stored in {stored}, and this engine",
        "does not convert such weights to another format when it loads them",
    ]


def drafter_place(args: ServeArgs) -> tuple[str, list[str]]:
    """Return the id or folder of a separate drafter, not quoted, and notes on it.

    Args:
        args: Requirements of the pool.

    Returns:
        The place; "" with a note that names the missing file, where none is known or its name is not safe in a command.
    """
    if not args.has_drafter:
        return "", []
    if args.drafter and args.drafter.isprintable():
        return args.drafter, []
    weights = f"an EAGLE-3 head of {args.served.checkpoint or 'this model'}" if args.method == EAGLE3 else "the draft model"
    why = "whose name has characters that are not safe in a command" if args.drafter else "of which no public id is known"
    return "", [f"{DRAFTER_NAME}: id or folder of the weights (config.json and safetensors) of {weights}, {why}"]


def _formats_text(weights: str, experts: str) -> str:
    return weights + (f" with experts in {experts}" if experts not in ("", weights) else "")


def unsaid(args: ServeArgs, engine: str) -> list[str]:
    """Return notes on the parts of a layout that an engine does not run.

    Only rules that need no more facts of the model than its experts apply.

    Args:
        args: Requirements of the pool.
        engine: Name of the engine.

    Returns:
        One note per rule.
    """
    role = args.role if args.role != "serve" else ""
    facts = replace(facts_of_engine(load_engine(engine)), experts=args.served.routed_experts, role=role)
    return [
        f"{rule.reason(facts, args.layout)}: " + ("expect slower steps" if rule.name.startswith("two batches") else NO_START)
        for rule in broken(args.layout, facts, scopes=(ENGINE,))
    ]


def adapter_flags(served: Served, slots: str, rank: int) -> list[str]:
    """Return the flags of LoRA adapters that vLLM and SGLang share.

    Both allocate slots for every matrix that can have an adapter, such as embedding, head and routed experts, unless the flags
    name the matrices (vllm/lora/model_manager.py; https://docs.sglang.io/docs/advanced_features/lora).

    Args:
        served: Facts about the model.
        slots: The engine's flag for the number of adapters.
        rank: Rank of the slots that the engine allocates.

    Returns:
        Flags; none without adapters.
    """
    if not served.lora_adapters:
        return []
    modules = " ".join(served.lora_modules)
    return [
        "--enable-lora", f"{slots} {served.lora_adapters}", f"--max-lora-rank {rank}", f"--lora-target-modules {modules}",
    ]  # fmt: skip


# Note on the adapted matrices that a command names.
OTHER_MODULES: Final = "--lora-target-modules are the matrices of the plan: name those of your adapters if they differ"


def no_adapters(served: Served, engine: str) -> list[str]:
    """Return the note of an engine whose command does not set up LoRA adapters.

    Args:
        served: Facts about the model.
        engine: Name of the engine, for people.

    Returns:
        One note; none without adapters.
    """
    note = f"the {served.lora_adapters:,} LoRA adapters of the plan are not set up: this command starts {engine} without them"
    return [note] if served.lora_adapters else []


def cache_flag(served: Served, names: Mapping[str, str]) -> list[str]:
    """Return the flag of the KV cache format.

    Args:
        served: Facts about the checkpoint.
        names: The engine's names of KV cache formats.

    Returns:
        The flag, if the engine has the format and would choose another one by itself.
    """
    is_default = served.kv == served.checkpoint_kv == "bf16"
    return select_texts((served.kv in names and not is_default, f"--kv-cache-dtype {names.get(served.kv)}"))


def routed(
    plan: Plan,
    ports: Mapping[Replica, int],
    port: int,
    *,
    program: str,
    pools: str,
    package: str,
    address_suffix: Mapping[Replica, str] | None = None,
) -> Command:
    """Return the command of a router in front of several servers.

    Args:
        plan: The plan.
        ports: Ports by replica.
        port: Port of the clients.
        program: Program of the router.
        pools: Flags for a prefill and a decode pool.
        package: Package of the router.
        address_suffix: Text after the address, by replica.

    Returns:
        The command.
    """
    urls = {r: f"http://${r.variable}:{number}" for r, number in ports.items()}
    if len(plan.pools) > 1:
        servers = [pools, *(f"--{r.role} {url}{(address_suffix or {}).get(r, '')}" for r, url in urls.items())]
    else:
        servers = ["--worker-urls " + " ".join(urls.values())]
    # Policy of the router, and its meaning.
    policy, meaning = "power_of_two", "the less loaded of two replicas receives a request"
    if plan.workload.cached_share > 0:
        policy, meaning = "cache_aware", "a request goes to the replica that has its prefix in the cache"
    words = (program, *servers, f"--policy {policy}", "--host 0.0.0.0", f"--port {port}")
    return Command(words=words, notes=(f"{policy}: {meaning}", f"pip install {package}"))
