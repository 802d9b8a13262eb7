"""What a pool asks of an engine, in numbers that no engine counts its own way yet.

What commands of vLLM and SGLang have in common: how those of a server open, and those of their routers.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from steptime.launch.host_placement import Replica
from steptime.launch.shell_script import Command
from steptime.number_checks import Number
from steptime.physics.engine import load_engine
from steptime.physics.engine_rules import deepep_counts
from steptime.physics.layout import Layout, exchanges_experts
from steptime.physics.layout_constraints import ENGINE, facts_of_engine
from steptime.physics.layout_rules import broken
from steptime.planning.launch_facts import Served
from steptime.planning.plan_result import Plan, Pool
from steptime.planning.steady_state import fresh_tokens, mean_context
from steptime.planning.workload import Workload

NVIDIA, AMD = "NVIDIA", "AMD"
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
RACK = "DeepEP must be built for NVLink between hosts"
LOW_LATENCY_TOKENS = 1024  # most tokens a rank in DeepEP's low-latency kernels, as SGLang's deepep.py asserts
QUEUE_DEPTH = 1024  # entries of NVSHMEM's queues unless told; those kernels want two for each token and two more
"""https://github.com/deepseek-ai/DeepEP deep_ep/buffer.py, read 2026-11-21 in a comment that cites it; the default recalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeArgs:
    """A pool, as an engine must be told.

    sequences: that one attention group has room for; parts: micro-batches of pipeline stages; tokens: of one attention group in
    a usual pass of a stage; prompt_tokens: those of them that are read; length: longest request [tokens]; two_batches: whether
    a stage overlaps two micro-batches; memory_share: of a chip's memory that the engine may use, 0 where the plan knows no
    engine; cached: whether prompts share prefixes; drafts: tokens that the model's own layers draft for a step.
    """

    name: str
    served: Served
    role: str
    layout: Layout
    sequences: int
    parts: int
    tokens: int
    prompt_tokens: int
    length: int
    two_batches: bool
    memory_share: float
    cached: bool
    chips: int
    drafts: int = 0

    @property
    def exchanges(self) -> bool:
        """Whether attention groups send each other tokens for their experts."""
        return bool(exchanges_experts(self.layout))

    @property
    def decoding(self) -> int:
        """Sequences of one attention group in one pass of a stage, at most."""
        return -(-self.sequences // self.parts)

    @property
    def hosts(self) -> int:
        """Hosts that one replica spans, at least."""
        return -(-self.chips // self.served.host_chips)


def serve_args_for_pool(plan: Plan, pool: Pool) -> ServeArgs:
    """Return what a pool of a plan asks."""
    layout, workload = pool.layout, plan.workload
    parts, groups = int(layout.pp), int(layout.dp)
    sequences = -(-pool.max_num_seqs // groups)
    prefills = pool.role == "prefill"
    prefill_tokens = math.ceil(sequences * fresh_tokens(workload)) if prefills else max(pool.chunk, 0)
    decoding = 0 if prefills else math.ceil(pool.batch / groups)
    share = float(pool.memory.capacity) / plan.served.memory
    return ServeArgs(
        name=plan.model,
        served=plan.served,
        role=pool.role,
        layout=layout,
        sequences=sequences,
        parts=parts,
        tokens=-(-(decoding * (plan.speculation.drafts + 1) + prefill_tokens) // parts),
        prompt_tokens=-(-prefill_tokens // parts),
        length=longest_request(plan),
        two_batches=bool(layout.microbatches > layout.pp) and bool(exchanges_experts(layout)),
        memory_share=round(share, 4) if 0 < share < 1 else 0.0,
        cached=float(workload.cached_share) > 0,
        chips=int(layout.chips),
        drafts=plan.speculation.drafts,
    )


def longest_request(plan: Plan) -> int:
    """Return the longest request [tokens] that every pool has room for, at most the model's context.

    The workload's figures are means, so that a limit of their sum would refuse every longer request. One request may take all
    the KV cache that the plan leaves to an attention group: what fits beside the weights, activations and the engine's own.
    Rounded down to 1,024 tokens, and never below the mean request.
    """
    mean = math.ceil(plan.workload.input_tokens + plan.workload.output_tokens)
    room = min(_room(plan.workload, pool) for pool in plan.pools)
    longest = max(mean, room // 1024 * 1024) if math.isfinite(room) else math.inf
    max_context = min(longest, plan.served.max_context)
    return int(max_context) if math.isfinite(max_context) else mean


def _room(workload: Workload, pool: Pool) -> float:
    """Return the tokens of KV cache that fit on the chips of one attention group."""
    memory, sequences = pool.memory, -(-pool.max_num_seqs // int(pool.layout.dp))
    prefills = pool.role == "prefill"  # one pass under way, one being sent on
    cache_tokens = 2 * sequences * workload.input_tokens if prefills else sequences * mean_context(workload)
    free = float(memory.capacity - memory.weights - memory.activations - memory.reserved)
    return cache_tokens * free / float(memory.cache) if memory.cache > 0 else math.inf


def deepep_runs(served: Served, ranks: int) -> bool:
    """Whether DeepEP has kernels for so many ranks: a few counts inside a host, whole hosts of eight between hosts."""
    return bool(deepep_counts(float(served.host_chips), ranks))


def queues(tokens: int) -> dict[str, str]:
    """Return the environment in which low-latency kernels hold so many tokens a rank.

    >>> queues(511), queues(512)
    ({}, {'NVSHMEM_QP_DEPTH': '2048'})
    """
    queue_depth = 2 * (tokens + 1)
    return {"NVSHMEM_QP_DEPTH": str(1 << (queue_depth - 1).bit_length())} if queue_depth > QUEUE_DEPTH else {}


GGUF = "the checkpoint is a GGUF file, which not every engine reads; vLLM wants one file, and --tokenizer of its model"


VARIABLE = '"$CHECKPOINT"'  # quoted, so that a folder with a blank stays one word


def checkpoint(served: Served, *, quantises: bool) -> tuple[str, list[str]]:
    """Return the word that names the checkpoint, and what it must be where the plan cannot name it.

    quantises: whether the engine brings its weights to the plan's formats by itself.
    """
    place, missing = _checkpoint_place(served)
    same = (served.weights, served.experts) == (served.checkpoint_weights, served.checkpoint_experts)
    if place and (same or quantises):
        return shlex.quote(place), [GGUF] if place.endswith(".gguf") else []
    asked_for = served.weights + (f" with experts in {served.experts}" if served.experts not in ("", served.weights) else "")
    if not place:
        return VARIABLE, [f"CHECKPOINT: id or folder of the weights, in {asked_for}, {missing}"]
    stored = served.checkpoint_weights
    stored += f" with experts in {served.checkpoint_experts}" if served.checkpoint_experts not in ("", stored) else ""
    return VARIABLE, [
        f"CHECKPOINT: id or folder of this model in {asked_for}; {place} is stored in {stored}, and this engine",
        "brings no such weights to another format while it loads",
    ]


def _checkpoint_place(served: Served) -> tuple[str, str]:
    """Return the checkpoint's id or folder, or "" and why no command names it.

    A terminal acts on control characters in a pasted command, quoted or not.
    """
    if not served.checkpoint:
        return "", "which the model's file does not name"
    if not served.checkpoint.isprintable():
        return "", "whose name has characters that no command can hold"
    return served.checkpoint, ""


def too_long(plan: Plan) -> str:
    """Say that requests of the workload are longer than the model's context, "" where they are not."""
    mean, max_context = plan.workload.input_tokens + plan.workload.output_tokens, plan.served.max_context
    if mean <= max_context:
        return ""
    context_text = (
        f"requests of {mean:,.0f} tokens are longer than the model's context of {max_context:,.0f}, to which servers keep"
    )
    return f"{context_text}: serve a checkpoint whose positions are stretched"


def unsaid(serve_args: ServeArgs, engine: str) -> list[str]:
    """Say what of a layout an engine does not run, by its rules as far as they need no more of the model than its experts."""
    role = serve_args.role if serve_args.role != "serve" else ""
    facts = replace(facts_of_engine(load_engine(engine)), experts=serve_args.served.routed_experts, role=role)
    return [
        f"{rule.reason(facts, serve_args.layout)}: "
        + ("expect slower steps" if rule.name.startswith("two batches") else "it will not start so")
        for rule in broken(serve_args.layout, facts, scopes=(ENGINE,))
    ]


Flags = tuple[list[str], str, list[str]]  # of the weights' formats, the word that names the checkpoint, what that must be
Exchange = tuple[list[str], dict[str, str], list[str]]  # flags of the experts, their environment, notes


def opened(
    serve_args: ServeArgs,
    engine: str,
    program: str,
    *,
    axes: Sequence[str],
    weights: Flags,
    experts: Exchange,
    caches: Mapping[str, str],
    room: Sequence[str],
    counted: Sequence[str],
) -> Command:
    """Return how the command of a server opens: its layout, formats and limits, with what is to be said of them.

    axes: flags of the layout; caches: the engine's names of the formats that it keeps a KV cache in; room: flags of the limits;
    counted: what limits count for.
    """
    quantised, place, missing = weights
    exchange, environment, notes = experts
    cached, uncached = cache(serve_args.served, engine, caches)
    trust = ["--trust-remote-code"] if serve_args.served.remote_code else []
    return Command(
        words=(f"{program} {place}", *axes, *exchange, *quantised, *trust, *cached, *room),
        environment=environment,
        notes=(*missing, *counted, *notes, *uncached, *unsaid(serve_args, engine)),
    )


def parallel_sizes(flags: Mapping[str, Number]) -> list[str]:
    """Return the flags of axes that have more ways than one.

    >>> parallel_sizes({"--pp-size": 1, "--ep-size": 8.0})
    ['--ep-size 8']
    """
    return [f"{flag} {int(n)}" for flag, n in flags.items() if n > 1]


def cache(served: Served, engine: str, caches: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the flag of the cache's format, wherever an engine would take another by itself, and what it cannot do."""
    if served.kv not in caches:
        return [], [f"{NAMES[engine]} keeps no KV cache in {served.kv}: expect another size of it"]
    is_default = served.kv == served.checkpoint_kv == "bf16"
    return ([] if is_default else [f"--kv-cache-dtype {caches[served.kv]}"]), []


def routed(
    plan: Plan,
    replicas: tuple[Replica, ...],
    ports: Mapping[Replica, int],
    port: int,
    *,
    program: str,
    pools: str,
    address_suffix: Mapping[Replica, str],
) -> Command:
    """Return the command of a router before several servers.

    pools: flags that tell it of a prefill and a decode pool; address_suffix: what follows the address of a replica.
    """
    urls = {r: f"http://${r.variable}:{ports[r]}" for r in replicas}
    if len(plan.pools) > 1:
        servers = [pools, *(f"--{r.role} {url}{address_suffix.get(r, '')}" for r, url in urls.items())]
    else:
        servers = ["--worker-urls " + " ".join(urls.values())]
    policy = "cache_aware" if plan.workload.cached_share > 0 else "round_robin"
    return Command(words=(program, *servers, f"--policy {policy}", "--host 0.0.0.0", f"--port {port}"))
