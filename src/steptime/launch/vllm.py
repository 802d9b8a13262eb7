"""Server commands of vLLM with the flags of release 0.33: `vllm serve`, and `vllm-router` 0.1 for several servers.

`--max-num-seqs` and `--max-num-batched-tokens` count for one data-parallel rank.
"""

from __future__ import annotations

import json
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

# First ports of a replica; replicas on one host count up, side channels by `STRIDE`.
RPC_PORT, MASTER_PORT, SIDE_PORT, STRIDE = 29550, 29501, 5600, 128
# Formats to which vLLM converts bf16 weights when it loads them, https://docs.vllm.ai/en/stable/features/quantization/online/
ONLINE = {"fp8": "fp8_per_tensor", "mxfp8": "mxfp8"}
# Formats of experts: also int8, and nvfp4 on chips that multiply in it.
ONLINE_EXPERTS = ONLINE | {"int8": "int8_per_channel_weight_only", "nvfp4": "nvfp4_per_token"}
# vLLM's names of KV cache formats.
CACHE = {
    "bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "fp8_ds_mla": "fp8_ds_mla", "int8": "int8_per_token_head",
    "nvfp4": "nvfp4",
}  # fmt: skip
# Packages that run vLLM on other chips.
PLUGINS = {"Google": "vllm-tpu", "AWS": "vllm-neuron", "Apple": "vllm-metal"}
# Default number of tokens from which vLLM overlaps two micro-batches.
DBO_DECODE, DBO_PREFILL = 32, 512


def refused(served: Served) -> str:
    """Return the reason why vLLM cannot serve a plan.

    Args:
        served: Facts about the machine.

    Returns:
        The reason; "" if it can.
    """
    if served.vendor in ("", NVIDIA, AMD, "Intel", *PLUGINS):
        return ""
    return f"vLLM runs on GPUs, and with plug-ins on chips of {', '.join(PLUGINS)}, not on chips of {served.vendor}"


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
    axes = parallel_sizes(
        {"--decode-context-parallel-size": m.cp, "--pipeline-parallel-size": m.pp, "--data-parallel-size": m.dp},
    )
    opening = opened(
        serve_args,
        "vllm",
        "vllm serve",
        axes=[f"--tensor-parallel-size {int(m.group)}", *axes, *_hosts(serve_args, replica, rank)],
        weights=weights(serve_args.served),
        experts=_experts(serve_args),
        caches=CACHE,
        room=_room(serve_args),
        counted=_counted(serve_args),
    )
    words, environment = [], dict(opening.environment)
    if serve_args.drafts:
        words.append(f"""--speculative-config '{{"method":"mtp","num_speculative_tokens":{serve_args.drafts}}}'""")
    # Pools pass the KV cache on over NIXL, with one side channel per replica on a host.
    if serve_args.role != "serve":
        role = "kv_producer" if serve_args.role == "prefill" else "kv_consumer"
        words.append(f"""--kv-transfer-config '{{"kv_connector":"NixlConnector","kv_role":"{role}"}}'""")
        environment |= {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "$NODE_ADDRESS",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_PORT + STRIDE * replica.slot),
        }
    if rank == 0:
        words.append(f"--port {port}")
    return replace(opening, words=(*opening.words, *words), environment=environment)


def _counted(serve_args: ServeArgs) -> tuple[str, ...]:
    """Return notes on plug-ins, and on limits that do not count for the whole server."""
    plugin = PLUGINS.get(serve_args.served.vendor)
    notes = [f"pip install {plugin}, which may not know every flag"] if plugin else []
    if serve_args.layout.dp > 1:
        notes.append("--max-num-seqs and --max-num-batched-tokens count for one data-parallel rank")
    if serve_args.parts > 1:
        notes.append(f"--max-num-seqs counts for all {serve_args.parts} micro-batches, --max-num-batched-tokens for one")
        if serve_args.role == "prefill":
            notes.append(
                f"a pass of {serve_args.parts * serve_args.tokens:,} prompt tokens runs as {serve_args.parts} micro-batches of "
                f"{serve_args.tokens:,}, one per pipeline stage"
            )
    return tuple(notes)


def _hosts(serve_args: ServeArgs, replica: Replica, rank: int | None) -> list[str]:
    """Return the flags that join the hosts of a replica.

    Data-parallel ranks join the hosts if a rank fits on one host; otherwise one rank spans hosts.
    """
    if replica.nodes == 1:
        return []

    # A data-parallel rank that fits on one host needs no network inside itself.
    ranks_per_host = int(serve_args.layout.group * serve_args.layout.pp)
    later = [] if rank == 0 else ["--headless"]
    if serve_args.layout.dp > 1 and replica.chips % ranks_per_host == 0:
        local = replica.chips // ranks_per_host
        start = f"$((NODE_RANK * {local}))" if rank is None else str(rank * local)
        words = [
            f"--data-parallel-size-local {local}",
            "--data-parallel-address $HEAD_ADDRESS",
            f"--data-parallel-rpc-port {RPC_PORT + replica.slot}",
        ]
        return words + ([*later, f"--data-parallel-start-rank {start}"] if later else [])
    return [
        f"--nnodes {replica.nodes}",
        f"--node-rank {'$NODE_RANK' if rank is None else rank}",
        "--master-addr $HEAD_ADDRESS",
        f"--master-port {MASTER_PORT + replica.slot}",
        *later,
    ]


# --- experts ------------------------------------------------------------------------------------------------------------


def _experts(serve_args: ServeArgs) -> Exchange:
    """Return the flags of expert parallelism, exchange and balance.

    The environment and notes follow.
    """
    m = serve_args.layout
    if m.ep <= 1:
        return [], {}, []
    words, environment, notes = ["--enable-expert-parallel"], dict[str, str](), list[str]()

    # Without an exchange, every rank has all tokens, and needs no back end.
    if serve_args.exchanges:
        backend, environment, why = exchange(serve_args)
        words.append(f"--all2all-backend {backend}")
        notes += why
        if serve_args.two_batches and (backend.startswith("deepep") or serve_args.served.vendor == AMD):
            words += ["--enable-dbo", *_thresholds(serve_args)]
        elif serve_args.two_batches:
            notes.append(f"vLLM overlaps two micro-batches only with DeepEP, not with {backend}: expect slower steps")
    if m.redundant_experts > 0:
        extra = json.dumps({"num_redundant_experts": int(m.redundant_experts)}, separators=(",", ":"))
        words += ["--enable-eplb", f"--eplb-config '{extra}'"]
    return words, environment, notes


def _thresholds(serve_args: ServeArgs) -> list[str]:
    """Return the thresholds of the overlap, if the defaults exclude the plan's steps."""
    decoding, reads = serve_args.tokens - serve_args.prompt_tokens, serve_args.prompt_tokens > 0
    words = [f"--dbo-decode-token-threshold {decoding}"] if 0 < decoding < DBO_DECODE else []
    return words + ([f"--dbo-prefill-token-threshold {serve_args.tokens}"] if reads and serve_args.tokens < DBO_PREFILL else [])


def exchange(serve_args: ServeArgs) -> tuple[str, dict[str, str], list[str]]:
    """Return the back end of the expert exchange, its environment, and notes.

    Inside an NVLink rack, vLLM uses FlashInfer's kernels over multi-node NVLink, or DeepEP's for two micro-batches. On hosts
    with NVLink and InfiniBand, it uses DeepEP: low-latency kernels for a decode pool, throughput kernels for a prefill pool.
    Chips that do both use throughput kernels if the exchange leaves the host or overlaps; these have no CUDA graphs, so that
    all-gather replaces them otherwise. AMD uses MoRI. All other machines use all-gather and reduce-scatter, which run on any
    link.

    Args:
        serve_args: Requirements of the pool.

    Returns:
        Back end, environment by name, and notes on an unexpected choice.
    """
    plain, served, stage = "allgather_reducescatter", serve_args.served, int(serve_args.layout.stage)

    # The low-latency buffers must hold one step of all sequences.
    low = serve_args.role == "decode" and serve_args.sequences <= LOW_LATENCY_TOKENS
    if served.vendor == AMD and serve_args.two_batches:
        return plain, {}, ["vLLM overlaps two micro-batches on AMD chips with all-gather, not with MoRI"]
    if served.vendor == AMD:
        return ("mori_low_latency" if low else "mori_high_throughput"), {}, []
    if served.vendor != NVIDIA or served.fabric != "nvlink":
        return (
            plain,
            {},
            ["DeepEP needs NVLink between the chips of a host, which this machine does not have: vLLM uses all-gather instead"],
        )
    if served.domain_chips > served.host_chips and stage <= served.domain_chips:
        return _in_a_rack(serve_args, low=low)
    if not deepep_runs(served, stage):
        return (
            plain,
            {},
            [f"DeepEP has no kernels for {stage} ranks on hosts of {served.host_chips}: vLLM uses all-gather instead"],
        )
    if low:
        return "deepep_low_latency", queues(serve_args.sequences), []
    if serve_args.role == "serve" and serve_args.hosts == 1 and not serve_args.two_batches:
        return plain, {}, []
    note = "DeepEP's throughput kernels run without CUDA graphs; its low-latency kernels are too small for this prefill chunk"
    return "deepep_high_throughput", {}, [note] if serve_args.role != "prefill" else []


def _in_a_rack(serve_args: ServeArgs, *, low: bool) -> tuple[str, dict[str, str], list[str]]:
    """Return the back end if one NVLink domain joins several hosts."""
    if serve_args.two_batches:
        switch = "VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL" if low else "VLLM_DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE"
        return (
            f"deepep_{'low_latency' if low else 'high_throughput'}",
            {switch: "1"} | (queues(serve_args.sequences) if low else {}),
            [RACK],
        )
    one_sided = serve_args.served.experts in ("bf16", "nvfp4", "mxfp8") or _in_blocks(serve_args.served)
    return f"flashinfer_nvlink_{'one' if one_sided else 'two'}_sided", {}, []


def _in_blocks(served: Served) -> bool:
    """Return whether the experts are fp8 blocks of the checkpoint itself.

    vLLM's own conversion to fp8 has no blocks.
    """
    return served.experts == served.checkpoint_experts == "fp8"


# --- formats and room ---------------------------------------------------------------------------------------------------


def weights(served: Served) -> Flags:
    """Return the flags of the weights' formats, the checkpoint, and notes.

    Args:
        served: Facts about the checkpoint.

    Returns:
        Flags, the word that names the checkpoint, and notes on it.
    """
    dense, routed = served.weights, served.experts
    same_dense, same_routed = dense == served.checkpoint_weights, routed == served.checkpoint_experts
    plain = {served.checkpoint_weights, served.checkpoint_experts} <= {"bf16", ""}
    if not plain or (same_dense and same_routed):
        return ([], *checkpoint(served, quantises=False))
    if dense in ONLINE and routed in (dense, ""):
        return ([f"--quantization {ONLINE[dense]}"], *checkpoint(served, quantises=True))
    # Experts and other weights can be converted to different formats.
    able = routed in ONLINE_EXPERTS and (routed != "nvfp4" or "fp4" in served.arithmetic)
    if (same_dense or dense in ONLINE) and (same_routed or able):
        arguments = ({} if same_dense else {"linear": ONLINE[dense]}) | ({} if same_routed else {"moe": ONLINE_EXPERTS[routed]})
        words = ["--quantization online", f"--quantization-config '{json.dumps(arguments, separators=(',', ':'))}'"]
        return (words, *checkpoint(served, quantises=True))
    return ([], *checkpoint(served, quantises=False))


def _room(serve_args: ServeArgs) -> list[str]:
    """Return the limits on sequences, tokens, lengths and memory."""
    words = [
        f"--max-num-seqs {serve_args.sequences}",
        f"--max-num-batched-tokens {max(serve_args.tokens, serve_args.sequences * (serve_args.drafts + 1))}",
        f"--max-model-len {serve_args.length}",
    ]
    if serve_args.memory_share:
        words.append(f"--gpu-memory-utilization {serve_args.memory_share:g}")
    return words + (["--enable-prefix-caching"] if serve_args.cached else [])


# --- the router ---------------------------------------------------------------------------------------------------------


def router(plan: Plan, replicas: tuple[Replica, ...], ports: dict[Replica, int], port: int) -> Command:
    """Return the command of `vllm-router` in front of several servers.

    For pools it passes the KV cache on over NIXL.

    Args:
        plan: The plan.
        replicas: Placement of all replicas.
        ports: Ports by replica.
        port: Port of the clients.

    Returns:
        The command.
    """
    pools = "--vllm-pd-disaggregation --kv-connector nixl"
    command = routed(plan, replicas, ports, port, program="vllm-router", pools=pools, address_suffix={})
    return replace(command, notes=("pip install vllm-router",))
