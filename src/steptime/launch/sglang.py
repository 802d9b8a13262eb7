"""Server commands of SGLang with the flags of release 0.5.23, and the command of `sglang_router` 0.3.

`--max-running-requests` and `--chunked-prefill-size` count for all data-parallel ranks together. `--pp-max-micro-batch-size`
counts for one rank and micro-batch, `--max-prefill-tokens` for one rank.
"""

from __future__ import annotations

from dataclasses import replace

from steptime.launch.host_placement import Replica
from steptime.launch.serve_args import (
    AMD,
    LOW_LATENCY_TOKENS,
    NVIDIA,
    RACK,
    Exchange,
    Flags,
    ServeArgs,
    checkpoint,
    deepep_runs,
    opened,
    parallel_sizes,
    queues,
    routed,
)
from steptime.launch.shell_script import Command
from steptime.planning.launch_facts import Served
from steptime.planning.plan_result import Plan

# First ports of the hosts of a replica and of prefill servers, and the distance between replicas on a host.
RENDEZVOUS_PORT, BOOTSTRAP_PORT, STRIDE = 20000, 8998, 100
# Page size of its latent-attention kernels [tokens]; a prefill chunk must be a multiple.
PAGE = 64
# Default limit of a prefill batch [tokens].
MOST_PREFILL = 16384
# Default capacity of DeepEP's low-latency buffers [tokens per rank].
DISPATCHED = 128
# Formats to which SGLang converts bf16 weights when it loads them.
ONLINE = {"fp8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4_online"}
# Expert formats of FlashInfer's kernels after its exchange.
ROUTED = ("bf16", "fp8", "mxfp8", "nvfp4")
# SGLang's names of KV cache formats.
CACHE = {"bf16": "bf16", "fp8": "fp8_e4m3", "fp8_ds_mla": "fp8_e4m3", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}


def refused(served: Served) -> str:
    """Return the reason why SGLang cannot serve a plan.

    Args:
        served: Facts about the machine.

    Returns:
        The reason; "" if it can.
    """
    if served.vendor in (NVIDIA, AMD, "Intel", ""):
        return ""
    return f"SGLang runs on GPUs of NVIDIA, AMD and Intel, not on chips of {served.vendor}"


def server(serve_args: ServeArgs, replica: Replica, rank: int | None, port: int) -> Command:
    """Return the command of one host of a replica.

    Args:
        serve_args: Requirements of the pool.
        replica: Placement of the replica.
        rank: Number of the host in the replica; None for `$NODE_RANK`.
        port: Port of the server.

    Returns:
        The command with its environment and notes.
    """
    m = serve_args.layout
    stages = [f"--pp-size {int(m.pp)}", f"--pp-max-micro-batch-size {serve_args.decoding}"] if m.pp > 1 else []
    opening = opened(
        serve_args,
        "sglang",
        "python -m sglang.launch_server --model-path",
        axes=[
            f"--tp-size {int(m.stage)}",
            *parallel_sizes({"--dcp-size": m.cp}),
            *stages,
            *parallel_sizes({"--attn-dp-size": m.dp}),
        ],
        weights=weights(serve_args.served),
        experts=_experts(serve_args),
        caches=CACHE,
        room=_room(serve_args),
        counted=_counted(serve_args),
    )
    words = []

    # The window has the verified token and the speculative tokens.
    if serve_args.drafts:
        words += [f"--speculative-algorithm EAGLE --speculative-num-steps {serve_args.drafts}", "--speculative-eagle-topk 1"]
        words.append(f"--speculative-num-draft-tokens {serve_args.drafts + 1}")
    if serve_args.role == "serve":
        words.append("--enable-mixed-chunk")
    else:
        words += [f"--disaggregation-mode {serve_args.role}", "--disaggregation-transfer-backend nixl"]
        if serve_args.role == "prefill":
            words.append(f"--disaggregation-bootstrap-port {BOOTSTRAP_PORT + replica.slot}")
    if replica.nodes > 1:
        words += [
            f"--nnodes {replica.nodes}",
            f"--node-rank {'$NODE_RANK' if rank is None else rank}",
            f"--dist-init-addr $HEAD_ADDRESS:{RENDEZVOUS_PORT + STRIDE * replica.slot}",
        ]
    if rank == 0:
        words += ["--host 0.0.0.0", f"--port {port}"]
    return replace(opening, words=(*opening.words, *words))


def _counted(serve_args: ServeArgs) -> tuple[str, ...]:
    """Return notes on limits that do not count for one data-parallel rank."""
    notes = []
    if serve_args.layout.dp > 1:
        notes.append("--max-running-requests and --chunked-prefill-size count for all data-parallel ranks together")
    if serve_args.parts > 1:
        notes.append(f"--max-running-requests counts for all {serve_args.parts} micro-batches, --chunked-prefill-size for one")
    return tuple(notes)


# --- experts ------------------------------------------------------------------------------------------------------------


def _experts(serve_args: ServeArgs) -> Exchange:
    """Return the flags of expert parallelism, exchange and balance.

    The environment and notes follow.
    """
    m = serve_args.layout
    if m.ep <= 1:
        return [], {}, []
    words, environment, notes = [f"--ep-size {int(m.ep)}"], dict[str, str](), list[str]()
    if serve_args.exchanges:
        exchanged, environment, notes = exchange(serve_args)
        words += exchanged
        if serve_args.two_batches and exchanged:
            words.append("--enable-two-batch-overlap")
        elif serve_args.two_batches:
            notes.append("SGLang overlaps two micro-batches only with an all-to-all: expect slower steps")
    if m.redundant_experts > 0:
        words += [f"--ep-num-redundant-experts {int(m.redundant_experts)}", "--enable-eplb"]
    return words, environment, notes


def exchange(serve_args: ServeArgs) -> tuple[list[str], dict[str, str], list[str]]:
    """Return the flags of the expert exchange, its environment, and notes.

    All back ends need as many expert-parallel ranks as a stage has chips. FlashInfer's back end runs inside a rack of Blackwell
    chips if each chip is a data-parallel rank. DeepEP runs on hosts with NVLink: low-latency kernels for a decode pool, normal
    kernels for prefill, and "auto" (both in turn) if chips do both. MoRI runs on AMD. Without a back end, ranks gather all
    rows.

    Args:
        serve_args: Requirements of the pool.

    Returns:
        Flags, environment by name, and notes on an unexpected choice.
    """
    served, m = serve_args.served, serve_args.layout
    low = serve_args.role == "decode" and serve_args.decoding <= LOW_LATENCY_TOKENS
    mode = "low_latency" if low else "normal" if serve_args.role != "serve" else "auto"
    if m.ep != m.stage:
        return [], {}, []
    if served.vendor == AMD:
        return ["--moe-a2a-backend mori", f"--deepep-mode {mode}"], {}, []
    if served.vendor != NVIDIA or served.fabric != "nvlink":
        return (
            [],
            {},
            ["DeepEP needs NVLink between the chips of a host, which this machine does not have: rows are gathered instead"],
        )
    rack = served.domain_chips > served.host_chips and m.stage <= served.domain_chips
    if rack and m.dp == m.stage and not serve_args.two_batches and served.experts in ROUTED and "fp4" in served.arithmetic:
        return ["--moe-a2a-backend flashinfer", "--moe-runner-backend flashinfer_trtllm_routed"], {}, []
    if not rack and not deepep_runs(served, int(m.stage)):
        why = f"DeepEP has no kernels for {int(m.stage)} ranks on hosts of {served.host_chips}: rows are gathered instead"
        return [], {}, [why]

    # Low-latency buffers must hold the whole decode batch; a larger batch needs the normal kernels.
    environment: dict[str, str] = {}
    if mode != "normal" and DISPATCHED < serve_args.decoding <= LOW_LATENCY_TOKENS:
        environment = {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": str(serve_args.decoding)} | queues(serve_args.decoding)
    elif mode == "auto" and serve_args.decoding > LOW_LATENCY_TOKENS:
        mode = "normal"
    return ["--moe-a2a-backend deepep", f"--deepep-mode {mode}"], environment, [RACK] if rack else []


# --- formats and room ---------------------------------------------------------------------------------------------------


def weights(served: Served) -> Flags:
    """Return the flags of the weights' formats, the checkpoint, and notes.

    Args:
        served: Facts about the checkpoint.

    Returns:
        Flags, the word that names the checkpoint, and notes on it.
    """
    plain = {served.checkpoint_weights, served.checkpoint_experts} <= {"bf16", ""}
    changed = (served.weights, served.experts) != (served.checkpoint_weights, served.checkpoint_experts)
    able = served.weights in ONLINE and (served.weights != "nvfp4" or "fp4" in served.arithmetic)
    # SGLang converts only bf16 checkpoints, and all weights to one format.
    online = plain and changed and able and served.experts in (served.weights, "")
    words = [f"--quantization {ONLINE[served.weights]}"] if online else []
    return (words, *checkpoint(served, quantises=online))


def _room(serve_args: ServeArgs) -> list[str]:
    """Return the limits on requests, tokens and lengths."""
    groups = int(serve_args.layout.dp)
    words = [f"--max-running-requests {serve_args.sequences * groups}"]
    if serve_args.prompt_tokens:
        # A chunk must fill whole pages of the latent-attention kernels.
        chunk = -(-serve_args.prompt_tokens // PAGE) * PAGE
        words.append(f"--chunked-prefill-size {chunk * groups}")
        if chunk > MOST_PREFILL:
            words.append(f"--max-prefill-tokens {chunk}")
    return [*words, f"--context-length {serve_args.length}"]


# --- the router ---------------------------------------------------------------------------------------------------------


def router(plan: Plan, replicas: tuple[Replica, ...], ports: dict[Replica, int], port: int) -> Command:
    """Return the command of SGLang's router in front of several servers.

    Args:
        plan: The plan.
        replicas: Placement of all replicas.
        ports: Ports by replica.
        port: Port of the clients.

    Returns:
        The command.
    """
    address_suffix = {r: f" {BOOTSTRAP_PORT + r.slot}" for r in replicas if r.role == "prefill"}
    program = "python -m sglang_router.launch_router"
    command = routed(plan, replicas, ports, port, program=program, pools="--pd-disaggregation", address_suffix=address_suffix)
    return replace(command, notes=("pip install sglang-router",))
