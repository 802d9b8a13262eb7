"""Server commands of vLLM with the flags of release 0.33: `vllm serve`, and `vllm-router` 0.1 for several servers.

`--max-num-seqs` and `--max-num-batched-tokens` count for one data-parallel rank.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from steptime.launch.host_placement import Replica
from steptime.launch.serve_args import (
    AMD,
    DRAFTER_NAME,
    DRAFTER_VARIABLE,
    LOW_LATENCY_TOKENS,
    NVIDIA,
    OTHER_MODULES,
    RACK,
    ServeArgs,
    adapter_flags,
    cache_flag,
    checkpoint,
    deepep_refusal,
    drafter_place,
    needs_host_tier,
    queues,
    routed,
    tier_notes,
    unsaid,
)
from steptime.launch.shell_script import Command, select_texts
from steptime.physics.lora_adapters import SLOT_RANKS, slot_rank
from steptime.planning.launch_facts import Served
from steptime.planning.plan_result import Plan
from steptime.units import show

# Back end of the expert exchange that runs on any link.
ALL_GATHER = "allgather_reducescatter"
# Name of the engine, and its largest rank of LoRA adapters.
NAME = "vllm"
LARGEST_RANK = SLOT_RANKS[NAME][-1]
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
VENDORS = (NVIDIA, AMD, "Intel", *PLUGINS)
RUNS_ON = f"GPUs, and with plug-ins on chips of {', '.join(PLUGINS)}"
# Default number of tokens from which vLLM overlaps two micro-batches.
DBO_DECODE, DBO_PREFILL = 32, 512


def server(args: ServeArgs, replica: Replica, rank: int | None, port: int) -> Command:
    """Return the command of one host of a replica.

    Args:
        args: Requirements of the pool.
        replica: Placement of the replica.
        rank: Number of the host in the replica; None for `$NODE_RANK`.
        port: Port of the server.

    Returns:
        The command with its environment and notes.
    """
    m, served, parts = args.layout, args.served, args.parts
    quantised, place, missing = _weights(served)
    exchange, environment, notes = _experts(args)
    # AMD's kernels are off by default, https://github.com/vllm-project/vllm/issues/56945 measures 1.7 to 3.7 times the speed.
    if served.vendor == AMD:
        environment |= {"VLLM_ROCM_USE_AITER": "1"}
    # Pools pass the KV cache on over NIXL, with one side channel per replica on a host.
    connector, tier_words = _transfer_config(args)
    if args.role != "serve":
        side_port = str(SIDE_PORT + STRIDE * replica.slot)
        environment |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": "$NODE_ADDRESS", "VLLM_NIXL_SIDE_CHANNEL_PORT": side_port}
    # A plan for another engine may have a rank that vLLM has no slots for.
    lora_rank = slot_rank(min(served.lora_rank, LARGEST_RANK), NAME)
    batched_tokens = max(args.tokens, args.sequences * (args.drafts + 1))
    words = select_texts(
        (True, f"vllm serve {place}", f"--tensor-parallel-size {int(m.group)}"),
        (m.cp > 1, f"--decode-context-parallel-size {int(m.cp)}"),
        (m.pp > 1, f"--pipeline-parallel-size {parts}"),
        (m.dp > 1, f"--data-parallel-size {int(m.dp)}"),
        (True, *[*_hosts(args, replica, rank), *exchange, *quantised]),
        (served.remote_code, "--trust-remote-code"),
        (True, *cache_flag(served, CACHE)),
        (True, f"--max-num-seqs {args.sequences}", f"--max-num-batched-tokens {batched_tokens}"),
        (True, f"--max-model-len {args.length}"),
        (args.memory_share, f"--gpu-memory-utilization {args.memory_share:g}"),
        (args.cached, "--enable-prefix-caching"),
        (args.drafts, f"--speculative-config {_speculative_config(args)}"),
        (True, *adapter_flags(served, "--max-loras", lora_rank)),
        (connector, f"--kv-transfer-config {shlex.quote(json.dumps(connector, separators=(',', ':')))}"),
        (rank == 0, f"--port {port}"),
    )
    plugin, pass_tokens = PLUGINS.get(served.vendor), f"{parts * args.tokens:,} prompt tokens"
    stages = f"{parts} micro-batches of {args.tokens:,}, one per pipeline stage"
    limits = select_texts(
        (plugin, f"pip install {plugin}, which may not know every flag"),
        (m.dp > 1, "--max-num-seqs and --max-num-batched-tokens count for one data-parallel rank"),
        (parts > 1, f"--max-num-seqs counts for all {parts} micro-batches, --max-num-batched-tokens for one"),
        (parts > 1 and args.role == "prefill", f"a pass of {pass_tokens} runs as {stages}"),
        (parts > 1, "vLLM does not schedule the next step of pipeline stages ahead, so that steps may take longer"),
    )
    loading = "add --lora-modules NAME=PATH for each adapter, or set VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and load them later"
    adapter_words = select_texts(
        (served.lora_adapters, loading),
        (served.lora_adapters, OTHER_MODULES),
        (served.lora_adapters, "--max-cpu-loras is the number of adapters in host memory, by default as --max-loras"),
        (lora_rank < served.lora_rank, f"vLLM has no slots above rank {lora_rank}, and the plan has rank {served.lora_rank}"),
        (served.lora_adapters, "vLLM has LoRA only for models that support it (SupportsLoRA in its list of models)"),
    )
    no_cache = f"vLLM has no KV cache in {served.kv}: expect a cache of another size"
    unsupported = select_texts((served.kv not in CACHE, no_cache), (True, *tier_words), (True, *unsaid(args, "vllm")))
    notes = [*drafter_place(args)[1], *adapter_words, *notes]
    return Command(words=tuple(words), environment=environment, notes=(*missing, *limits, *notes, *unsupported))


def _speculative_config(args: ServeArgs) -> str:
    """Return the quoted JSON of `--speculative-config`.

    A drafter has the tensor-parallel size of the model (vllm 0.33, v1/spec_decode/draft_model.py).
    """
    config: dict[str, Any] = {"method": args.method}
    if args.has_drafter:
        config |= {"model": drafter_place(args)[0] or f"${DRAFTER_NAME}"}
    config |= {"num_speculative_tokens": args.drafts}
    if args.has_drafter and int(args.layout.group) > 1:
        config |= {"draft_tensor_parallel_size": int(args.layout.group)}
    text = shlex.quote(json.dumps(config, separators=(",", ":")))
    # The shell fills in a missing place: the quotes end before the variable and begin again after it.
    missing = args.has_drafter and not drafter_place(args)[0]
    return text.replace(f"${DRAFTER_NAME}", f"'{DRAFTER_VARIABLE}'") if missing else text


def _transfer_config(args: ServeArgs) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON of `--kv-transfer-config`, and notes on tiers: pools pass the KV cache on, and tiers hold it.

    `cpu_bytes_to_use` counts for all chips of a data-parallel rank, and `fs` is a folder without a limit of its size
    (https://docs.vllm.ai/en/stable/features/kv_offloading_usage/; vllm 0.33, v1/kv_offload/cpu/spec.py and
    v1/kv_offload/tiering/fs/manager.py). Answers are offloaded too, because they are prompts of the next turn.
    """
    role = {"prefill": "kv_producer", "decode": "kv_consumer"}.get(args.role, "")
    pools = {"kv_connector": _connector(args), "kv_role": role} if role else {}
    if not args.tiers:
        return pools, []
    refusal = needs_host_tier(args)
    if args.served.vendor in PLUGINS:
        refusal = f"no tier behind HBM is set up: vLLM offloads the KV cache of GPUs only, not of {args.served.vendor}'s chips"
    host = args.host_tier
    if refusal or host is None:
        return pools, [refusal]
    folders = [{"type": "fs", "root_dir": tier.folder} for tier in args.disk_tiers]
    settings: dict[str, Any] = {"cpu_bytes_to_use": int(host.capacity // int(args.layout.dp)), "offload_prompt_only": False}
    settings |= {"spec_name": "TieringOffloadingSpec", "secondary_tiers": folders} if folders else {}
    tiers = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": settings}
    copies, is_shared = args.cache_copies, int(args.layout.chips) == int(args.layout.dp * args.layout.tp)
    is_latent = copies == int(args.layout.tp)
    copies_note = f"the host tier holds 1/{copies} of the plan's tokens, because each copy of the KV cache has its own"
    notes = select_texts(
        (True, f"cpu_bytes_to_use: {show(host.capacity, 'B')} of host memory per replica"),
        (args.layout.dp > 1, "cpu_bytes_to_use counts for one data-parallel rank"),
        (True, *tier_notes(args)),
        (folders, "vLLM does not limit the size of these folders: delete old files before the disks are full"),
        (copies > 1 and not (is_latent and is_shared), copies_note),
    )
    if not pools:
        return tiers, notes
    both = {"connectors": [pools, tiers]}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": both}, notes


def _connector(args: ServeArgs) -> str:
    """Return the connector over which pools pass the KV cache on.

    Only the one that pushes takes it from pipeline stages, https://github.com/vllm-project/vllm/pull/45880.
    """
    return "NixlPushConnector" if args.sends_from_stages else "NixlConnector"


def _hosts(args: ServeArgs, replica: Replica, rank: int | None) -> list[str]:
    """Return the flags that join the hosts of a replica.

    Data-parallel ranks join the hosts if a rank fits on one host; otherwise one rank spans hosts.
    """
    if replica.nodes == 1:
        return []

    # A data-parallel rank that fits on one host needs no network inside itself.
    ranks_per_host = int(args.layout.group * args.layout.pp)
    later = [] if rank == 0 else ["--headless"]
    if args.layout.dp > 1 and replica.chips % ranks_per_host == 0:
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


def _experts(args: ServeArgs) -> tuple[list[str], dict[str, str], list[str]]:
    """Return the flags of expert parallelism, exchange and balance, their environment, and notes."""
    m, backend, overlaps = args.layout, "", False
    environment, notes = dict[str, str](), list[str]()
    # Without an exchange, every rank has all tokens, and needs no back end.
    if m.ep > 1 and args.exchanges:
        backend, environment, why = _exchange(args)
        overlaps = args.two_batches and (backend.startswith("deepep") or args.served.vendor == AMD)
        no_overlap = f"vLLM overlaps two micro-batches only with DeepEP, not with {backend}: expect slower steps"
        notes = select_texts((why, why), (args.two_batches and not overlaps, no_overlap))
    # Thresholds of the overlap are given if the defaults exclude the plan's steps.
    decoding = args.tokens - args.prompt_tokens
    small_prefill = args.prompt_tokens > 0 and args.tokens < DBO_PREFILL
    balanced = m.ep > 1 and m.redundant_experts > 0
    words = select_texts(
        (m.ep > 1, "--enable-expert-parallel"),
        (backend, f"--all2all-backend {backend}"),
        (overlaps, "--enable-dbo"),
        (overlaps and 0 < decoding < DBO_DECODE, f"--dbo-decode-token-threshold {decoding}"),
        (overlaps and small_prefill, f"--dbo-prefill-token-threshold {args.tokens}"),
        (balanced, "--enable-eplb", f"""--eplb-config '{{"num_redundant_experts":{int(m.redundant_experts)}}}'"""),
    )
    return words, environment, notes


def _exchange(args: ServeArgs) -> tuple[str, dict[str, str], str]:
    """Return the back end of the expert exchange, its environment, and a note on an unexpected choice.

    Inside an NVLink rack, vLLM uses FlashInfer's kernels over multi-node NVLink, or DeepEP's for two micro-batches. On hosts
    with NVLink and InfiniBand, it uses DeepEP: low-latency kernels for a decode pool, throughput kernels for a prefill pool.
    Chips that do both use throughput kernels if the exchange leaves the host or overlaps; these have no CUDA graphs, so that
    all-gather replaces them otherwise. AMD uses MoRI. All other machines use all-gather and reduce-scatter, which run on any
    link.
    """
    served, refusal = args.served, deepep_refusal(args)
    # The low-latency buffers must hold one step of all sequences.
    low = args.role == "decode" and args.sequences <= LOW_LATENCY_TOKENS
    if served.vendor == AMD and args.two_batches:
        return ALL_GATHER, {}, "vLLM overlaps two micro-batches on AMD chips with all-gather, not with MoRI"
    if served.vendor == AMD:
        return ("mori_low_latency" if low else "mori_high_throughput"), {}, ""
    if refusal:
        return ALL_GATHER, {}, f"{refusal}: vLLM uses all-gather instead"
    if args.in_rack and args.two_batches:
        switch = "VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL" if low else "VLLM_DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE"
        environment = {switch: "1"} | (queues(args.sequences) if low else {})
        return f"deepep_{'low_latency' if low else 'high_throughput'}", environment, RACK
    if args.in_rack:
        # vLLM's own conversion to fp8 has no blocks, unlike experts in fp8 of the checkpoint itself.
        in_blocks = served.experts == served.checkpoint_experts == "fp8"
        one_sided = served.experts in ("bf16", "nvfp4", "mxfp8") or in_blocks
        return f"flashinfer_nvlink_{'one' if one_sided else 'two'}_sided", {}, ""
    if low:
        return "deepep_low_latency", queues(args.sequences), ""
    if args.role == "serve" and args.layout.chips <= served.host_chips and not args.two_batches:
        return ALL_GATHER, {}, ""
    note = "DeepEP's throughput kernels run without CUDA graphs; its low-latency kernels are too small for this prefill chunk"
    return "deepep_high_throughput", {}, note if args.role != "prefill" else ""


def _weights(served: Served) -> tuple[list[str], str, list[str]]:
    """Return the flags of the weights' formats, the word that names the checkpoint, and notes on it."""
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


def router(plan: Plan, ports: Mapping[Replica, int], port: int) -> Command:
    """Return the command of `vllm-router` in front of several servers.

    For pools it passes the KV cache on over NIXL.

    Args:
        plan: The plan.
        ports: Ports by replica.
        port: Port of the clients.

    Returns:
        The command.
    """
    pools = "--vllm-pd-disaggregation --kv-connector nixl"
    return routed(plan, ports, port, program="vllm-router", pools=pools, package="vllm-router")
