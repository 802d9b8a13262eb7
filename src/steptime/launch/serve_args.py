"""The requirements of a pool in numbers that are independent of the engine, and the common parts of its commands.

The numbers of a model that flags of training stacks need: plain GPTs and Llamas, with experts or latent attention.

They come from the operators of a `Model`, so that your own config works like one of the catalogue. Features that such flags
cannot express (windows, linear or sparse attention, parallel layers) are listed in words.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from steptime.launch.host_placement import Replica
from steptime.launch.shell_script import Command
from steptime.models.model import Layer, Model, Op
from steptime.number_checks import Number
from steptime.physics.engine import load_engine
from steptime.physics.engine_rules import deepep_counts
from steptime.physics.layout import ENGINE, Layout, exchanges_experts, facts_of_engine
from steptime.physics.layout_rules import broken
from steptime.planning.launch_facts import Served
from steptime.planning.plan_result import Plan, Pool
from steptime.planning.steady_state import fresh_tokens, mean_context
from steptime.planning.workload import Workload
from steptime.training.layer_profile import has_dense_prologue

# Vendors, and names of the engines in notes.
NVIDIA, AMD = "NVIDIA", "AMD"
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
# Note for DeepEP inside a rack.
RACK = "DeepEP must be built for NVLink between hosts"
# Largest number of tokens per rank in DeepEP's low-latency kernels, as SGLang's deepep.py asserts.
LOW_LATENCY_TOKENS = 1024
# Default number of entries in NVSHMEM's queues. The low-latency kernels need two entries per token and two more.
# https://github.com/deepseek-ai/DeepEP deep_ep/buffer.py, read 2026-11-21 in a comment that cites it; the default is recalled.
QUEUE_DEPTH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeArgs:
    """A pool in the numbers that an engine needs.

    Attributes:
        name: Name of the model.
        served: Facts about model, checkpoint and machine.
        role: serve, prefill or decode.
        layout: Layout of a replica.
        sequences: Slots (max_num_seqs) of one data-parallel rank.
        parts: Micro-batches of the pipeline stages.
        tokens: Tokens of one data-parallel rank in a usual pass of a stage.
        prompt_tokens: Prefill tokens among them.
        length: Longest request [tokens].
        two_batches: Whether a stage overlaps two micro-batches.
        memory_share: Share of a chip's memory for the engine; 0 if the plan has no real engine.
        cached: Whether prompts share prefixes.
        chips: Chips of a replica.
        drafts: Speculative tokens per step from the model's MTP layers.
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
        """Whether data-parallel ranks exchange tokens for their experts."""
        return bool(exchanges_experts(self.layout))

    @property
    def decoding(self) -> int:
        """Largest number of sequences of one data-parallel rank in a pass of a stage."""
        return -(-self.sequences // self.parts)

    @property
    def hosts(self) -> int:
        """Smallest number of hosts of one replica."""
        return -(-self.chips // self.served.host_chips)


def serve_args_for_pool(plan: Plan, pool: Pool) -> ServeArgs:
    """Return the requirements of a pool of a plan.

    Args:
        plan: The plan.
        pool: One of its pools.

    Returns:
        Numbers per data-parallel rank and micro-batch.
    """
    layout, workload = pool.layout, plan.workload

    # A plan counts sequences of a replica; engines count those of a data-parallel rank.
    parts, groups = int(layout.pp), int(layout.dp)
    sequences = -(-pool.max_num_seqs // groups)
    prefills = pool.role == "prefill"

    # A prefill pool runs whole prompts; other pools run prefill chunks.
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
    room = min(_room(plan.workload, pool) for pool in plan.pools)
    longest = max(mean, room // 1024 * 1024) if math.isfinite(room) else math.inf
    max_context = min(longest, plan.served.max_context)
    return int(max_context) if math.isfinite(max_context) else mean


def _room(workload: Workload, pool: Pool) -> float:
    """Return the tokens of KV cache that fit on the chips of one data-parallel rank."""
    memory, sequences = pool.memory, -(-pool.max_num_seqs // int(pool.layout.dp))
    # A prefill pool stores the pass that runs and the one that it sends to the decode pool.
    prefills = pool.role == "prefill"
    cache_tokens = 2 * sequences * workload.input_tokens if prefills else sequences * mean_context(workload)
    free = float(memory.capacity - memory.weights - memory.activations - memory.reserved)
    return cache_tokens * free / float(memory.cache) if memory.cache > 0 else math.inf


def deepep_runs(served: Served, ranks: int) -> bool:
    """Return whether DeepEP has kernels for a number of ranks.

    It has some counts inside a host, and whole hosts of eight between hosts.

    Args:
        served: Facts about the machine.
        ranks: Number of expert-parallel ranks.

    Returns:
        True if it has kernels.
    """
    return bool(deepep_counts(float(served.host_chips), ranks))


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


# Note on checkpoints in GGUF.
GGUF = "the checkpoint is a GGUF file, which not every engine reads; vLLM needs one file, and --tokenizer of its model"


# Variable of the checkpoint, quoted so that a folder with a blank stays one word.
VARIABLE = '"$CHECKPOINT"'


def checkpoint(served: Served, *, quantises: bool) -> tuple[str, list[str]]:
    """Return the word that names the checkpoint, and notes on it.

    Args:
        served: Facts about the checkpoint.
        quantises: Whether the engine converts the weights to the plan's formats itself.

    Returns:
        The quoted id or folder, or a variable with notes on its value.
    """
    place, missing = _checkpoint_place(served)
    same = (served.weights, served.experts) == (served.checkpoint_weights, served.checkpoint_experts)
    if place and (same or quantises):
        return shlex.quote(place), [GGUF] if place.endswith(".gguf") else []
    asked_for = served.weights + (f" with experts in {served.experts}" if served.experts not in ("", served.weights) else "")
    if not place:
        return VARIABLE, [f"CHECKPOINT: id or folder of the weights in {asked_for}, {missing}"]
    stored = served.checkpoint_weights
    stored += f" with experts in {served.checkpoint_experts}" if served.checkpoint_experts not in ("", stored) else ""
    return VARIABLE, [
        f"CHECKPOINT: id or folder of this model in {asked_for}; {place} is stored in {stored}, and this engine",
        "does not convert such weights to another format when it loads them",
    ]


def _checkpoint_place(served: Served) -> tuple[str, str]:
    """Return the checkpoint's id or folder, or "" and the reason.

    A terminal interprets control characters in a pasted command, even if they are quoted.
    """
    if not served.checkpoint:
        return "", "which the model's file does not name"
    if not served.checkpoint.isprintable():
        return "", "whose name has characters that are not safe in a command"
    return served.checkpoint, ""


def too_long(plan: Plan) -> str:
    """Return a note if requests are longer than the model's context.

    Args:
        plan: The plan.

    Returns:
        The note; "" if they fit.
    """
    mean, max_context = plan.workload.input_tokens + plan.workload.output_tokens, plan.served.max_context
    if mean <= max_context:
        return ""
    context_text = (
        f"requests of {mean:,.0f} tokens are longer than the model's context of {max_context:,.0f}, which servers enforce"
    )
    return f"{context_text}: serve a checkpoint with extended positions"


def unsaid(serve_args: ServeArgs, engine: str) -> list[str]:
    """Return notes on the parts of a layout that an engine does not run.

    Only rules that need no more facts of the model than its experts apply.

    Args:
        serve_args: Requirements of the pool.
        engine: Name of the engine.

    Returns:
        One note per rule.
    """
    role = serve_args.role if serve_args.role != "serve" else ""
    facts = replace(facts_of_engine(load_engine(engine)), experts=serve_args.served.routed_experts, role=role)
    return [
        f"{rule.reason(facts, serve_args.layout)}: "
        + ("expect slower steps" if rule.name.startswith("two batches") else "the engine will not start with this layout")
        for rule in broken(serve_args.layout, facts, scopes=(ENGINE,))
    ]


# Flags of the weights' formats, the word that names the checkpoint, and notes on it.
Flags = tuple[list[str], str, list[str]]
# Flags of the experts, their environment, and notes.
Exchange = tuple[list[str], dict[str, str], list[str]]


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
    """Return the first part of a server command: layout, formats and limits.

    Args:
        serve_args: Requirements of the pool.
        engine: Name of the engine.
        program: Program and its option for the checkpoint.
        axes: Flags of the layout.
        weights: Flags of the weights, checkpoint, and notes.
        experts: Flags of the experts, environment, and notes.
        caches: The engine's names of KV cache formats.
        room: Flags of the limits.
        counted: Notes on the scope of the limits.

    Returns:
        The command with its environment and notes.
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
    """Return the flags of the parallel sizes above 1.

    Args:
        flags: Sizes by flag.

    Returns:
        Flags with their values.

    >>> parallel_sizes({"--pp-size": 1, "--ep-size": 8.0})
    ['--ep-size 8']
    """
    return [f"{flag} {int(n)}" for flag, n in flags.items() if n > 1]


def cache(served: Served, engine: str, caches: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the flag of the KV cache format, and notes.

    Args:
        served: Facts about the checkpoint.
        engine: Name of the engine.
        caches: The engine's names of KV cache formats.

    Returns:
        The flag if the engine would choose another format by itself, and a note if it does not have the format.
    """
    if served.kv not in caches:
        return [], [f"{NAMES[engine]} has no KV cache in {served.kv}: expect a cache of another size"]
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
    """Return the command of a router in front of several servers.

    Args:
        plan: The plan.
        replicas: Placement of all replicas.
        ports: Ports by replica.
        port: Port of the clients.
        program: Program of the router.
        pools: Flags for a prefill and a decode pool.
        address_suffix: Text after the address, by replica.

    Returns:
        The command.
    """
    urls = {r: f"http://${r.variable}:{ports[r]}" for r in replicas}
    if len(plan.pools) > 1:
        servers = [pools, *(f"--{r.role} {url}{address_suffix.get(r, '')}" for r, url in urls.items())]
    else:
        servers = ["--worker-urls " + " ".join(urls.values())]
    policy = "cache_aware" if plan.workload.cached_share > 0 else "round_robin"
    return Command(words=(program, *servers, f"--policy {policy}", "--host 0.0.0.0", f"--port {port}"))


# Families whose attention has a bias by distance, without position embeddings or rotation.
ALIBI = ("bloom", "mpt")
# Norms of the residual stream in a plain layer.
WHOLE_NORM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Latent attention: ranks of queries (0: none) and keys, and the parts of a head.

    A head has plain, rotary and value dimensions.
    """

    query_rank: int
    rank: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts of a layer.

    count: all experts. active: experts per token. width: hidden size of one. shared: hidden size of the shared experts.
    groups: expert groups, and groups that a token uses.
    """

    count: int
    active: int
    width: int
    shared: int
    groups: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model in the numbers of training flags.

    head: query dimensions per head. hidden: hidden size of dense feed-forward blocks. dense: layers before those with experts.
    drafts: multi-token-prediction layers. odd: features that flags cannot express, in words.
    """

    layers: int
    width: int
    heads: int
    groups: int
    head: int
    hidden: int
    vocabulary: int
    gated: bool
    tied: bool
    learned_positions: bool
    rms: bool
    bias: bool
    qkv_bias: bool
    query_norms: bool
    latent: Latent | None
    experts: Experts | None
    dense: int
    drafts: int
    odd: tuple[str, ...]


def model_shape(model: Model, seq: float) -> Shape:
    """Return the numbers of a model for training flags.

    Args:
        model: The model.
        seq: Sequence length [tokens]; longer windows have no effect.

    Returns:
        The shape, with the features that flags cannot express.

    >>> import steptime as st
    >>> shape = model_shape(st.load_model("llama-3.1-8b"), 8192)
    >>> shape.width, shape.groups, shape.hidden, shape.odd
    (4096, 8, 14336, ())
    """
    # First and last kind of layer: dense layers come before those with experts.
    kinds = [layer for layer, _ in model.layers]
    first, last = kinds[0], kinds[-1]
    query, out = _find_op(first, "q_b_proj") or _find_op(first, "q_proj"), _find_op(first, "o_proj")
    inner = [op for layer in kinds for op in layer.ops if op.term == "feed-forward"]
    keys, values = _find_op(first, "k_proj"), _find_op(first, "v_proj")
    latent = _latent(first, model.heads)
    experts = _experts(last)
    norms = [op for op in first.ops if op.term == "norms" and op.inputs == model.width and op.name not in ("q_norm", "k_norm")]
    head = int(query.outputs / model.heads) if query else 0

    # Without a key projection of that name, every head has its own keys.
    groups = int(keys.outputs / head) if keys and head else model.heads
    return Shape(
        layers=model.depth,
        width=model.width,
        heads=model.heads,
        groups=groups,
        head=head,
        hidden=int(max((op.inputs for op in inner if op.name == "down_proj"), default=experts.width if experts else 0)),
        vocabulary=model.vocabulary,
        gated=any(op.name == "gate_proj" for op in inner) or _gated(last.routed),
        tied=not any(op.name == "embed_tokens" and op.total_weights for op in model.stem),
        learned_positions=any(op.name == "positions" for op in model.stem),
        rms=all(op.total_weights <= op.inputs for op in norms),
        bias=_biased(out) or any(map(_biased, inner)),
        qkv_bias=_biased(query) or _biased(values),
        query_norms=_find_op(first, "q_norm") is not None,
        latent=latent,
        experts=experts,
        dense=model.layers[0][1] if len(kinds) > 1 and not first.routed and last.routed else 0,
        drafts=sum(n for _, n in model.draft),
        odd=tuple(_odd(model, seq, len(norms), head)),
    )


def _find_op(layer: Layer, name: str) -> Op | None:
    return next((op for op in layer.ops if op.name == name and op.term != "shared experts"), None)


def _biased(op: Op | None) -> bool:
    return op is not None and op.weights > op.inputs * op.outputs


def _gated(routed: Op | None) -> bool:
    return routed is not None and routed.columns > 0 and routed.flops_per_row >= 5 * routed.inputs * routed.columns


def _latent(layer: Layer, heads: int) -> Latent | None:
    keys, expanded, out = _find_op(layer, "kv_a_proj_with_mqa"), _find_op(layer, "kv_b_proj"), _find_op(layer, "o_proj")
    query, ranked = _find_op(layer, "q_b_proj") or _find_op(layer, "q_proj"), _find_op(layer, "q_a_proj")
    if keys is None or expanded is None or query is None or out is None:
        return None
    rank = int(expanded.inputs)
    rotary = int(keys.outputs) - rank
    return Latent(
        query_rank=int(ranked.outputs) if ranked else 0,
        rank=rank,
        plain=int(query.outputs / heads) - rotary,
        rotary=rotary,
        value=int(out.inputs / heads),
    )


def _experts(layer: Layer) -> Experts | None:
    routed = layer.routed
    if routed is None:
        return None
    shared = [op for op in layer.ops if op.term == "shared experts" and op.name == "down_proj"]
    return Experts(
        count=routed.experts,
        active=int(routed.active),
        width=routed.columns,
        shared=int(sum(op.inputs for op in shared)),
        groups=(routed.expert_groups, routed.active_groups),
    )


def _odd(model: Model, seq: float, norms: int, head: int) -> list[str]:
    """Return the features that flags of plain models cannot express."""
    kinds, oddities = [layer for layer, _ in model.layers], []
    mixers = [a for layer in kinds for a in layer.attention]
    if any(a.state_bytes for a in mixers) or any(not layer.attention for layer in kinds):
        oddities.append("layers with a recurrent state, or without attention")
    if any(a.window < seq for a in mixers):
        oddities.append(f"windows of {min(a.window for a in mixers):,.0f} tokens in sequences of {seq:,.0f}")
    if any(a.selected < seq or a.stride > 1 for a in mixers):
        oddities.append("sparse attention")
    if any(not a.stored for a in mixers):
        oddities.append("layers that share keys and values")

    # A dense prologue before layers with experts is plain; any other alternation is not.
    mixed = len(kinds) > 1 and len({layer.routed is None for layer in kinds}) > 1
    if len(kinds) > 2 or (len(kinds) > 1 and not (mixed and has_dense_prologue([n for _, n in model.layers]))):
        oddities.append("layers of several kinds that alternate")
    if norms != WHOLE_NORM:
        oddities.append(f"{norms} norms of the residual stream in a layer, not {WHOLE_NORM}")
    wide = [op for layer in kinds for op in layer.ops if op.name == "q_norm" and op.total_weights > head]
    if wide:
        oddities.append("norms of queries over all heads")
    if any(op.name == "sinks" for layer in kinds for op in layer.ops):
        oddities.append("attention sinks")
    if model.family in ALIBI:
        oddities.append("attention biased by distance (ALiBi)")
    if not all(_plain(a.flops_per_pair_prefill) for a in mixers):
        oddities.append("attention of an unknown kind")
    return oddities


def _plain(flops: float) -> bool:
    return flops > 0 and math.isfinite(flops)
