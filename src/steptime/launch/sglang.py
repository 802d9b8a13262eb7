"""Server commands of SGLang with the flags of release 0.5.23, and the command of `sglang_router` 0.3.

`--max-running-requests` and `--chunked-prefill-size` count for all data-parallel ranks together. `--pp-max-micro-batch-size`
counts for one rank and micro-batch, `--max-prefill-tokens` for one rank. `--mem-fraction-static` has weights and KV cache,
without activations; its default is less than the plan's share of the memory.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from steptime.launch.host_placement import Replica
from steptime.launch.serve_args import (
    AMD,
    DRAFTER_VARIABLE,
    LOW_LATENCY_TOKENS,
    NO_START,
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
from steptime.planning.plan_result import Plan
from steptime.units import show

VENDORS = (NVIDIA, AMD, "Intel")
RUNS_ON = "GPUs of NVIDIA, AMD and Intel"
# First ports of the hosts of a replica and of prefill servers, and the distance between replicas on a host.
RENDEZVOUS_PORT, BOOTSTRAP_PORT, STRIDE = 20000, 8998, 100
# Unit of the size of the host tier [B].
GIGABYTE = 1_000_000_000
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
# SGLang's algorithms by what drafts, https://docs.sglang.io/docs/advanced_features/speculative_decoding
ALGORITHMS = {"mtp": "EAGLE", "eagle3": "EAGLE3", "draft_model": "STANDALONE"}
# Names of matrices that stand for routed experts too (sglang, srt/lora/utils.py, `auto_detect_lora_target_modules`).
EXPERT_MODULES = frozenset({"gate_proj", "up_proj", "down_proj"})
# SGLang's names of KV cache formats.
CACHE = {"bf16": "bf16", "fp8": "fp8_e4m3", "fp8_ds_mla": "fp8_e4m3", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}


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
    m, served, groups, slot = args.layout, args.served, int(args.layout.dp), replica.slot
    exchange, environment, notes = _experts(args)

    # SGLang converts only bf16 checkpoints, and all weights to one format.
    stored = (served.checkpoint_weights, served.checkpoint_experts)
    able = served.weights in ONLINE and (served.weights != "nvfp4" or "fp4" in served.arithmetic)
    changed = (served.weights, served.experts) != stored and served.experts in (served.weights, "")
    online = {*stored} <= {"bf16", ""} and changed and able
    place, missing = checkpoint(served, quantises=online)

    # SGLang counts the sequences that decode in a mixed pass in its chunk, and has no mixed passes with drafts.
    mixes = args.role == "serve" and not args.drafts
    head, head_notes = drafter_place(args)
    tiers, tier_environment, tier_words = _tiers(args)
    environment |= tier_environment
    # A chunk must fill whole pages of the latent-attention kernels. The window of drafts has the verified token too.
    chunk = -(-(args.tokens if mixes else args.prompt_tokens) // PAGE) * PAGE
    words = select_texts(
        (True, f"python -m sglang.launch_server --model-path {place}", f"--tp-size {int(m.stage)}"),
        (m.cp > 1, f"--dcp-size {int(m.cp)}"),
        (m.pp > 1, f"--pp-size {int(m.pp)}", f"--pp-max-micro-batch-size {args.decoding}"),
        (groups > 1, f"--attn-dp-size {groups}"),
        (True, *exchange),
        (online, f"--quantization {ONLINE.get(served.weights)}"),
        (served.remote_code, "--trust-remote-code"),
        (True, *cache_flag(served, CACHE)),
        (True, f"--max-running-requests {args.sequences * groups}"),
        (chunk, f"--chunked-prefill-size {chunk * groups}"),
        (chunk > MOST_PREFILL, f"--max-prefill-tokens {chunk}"),
        (True, f"--context-length {args.length}"),
        (args.memory_share, f"--mem-fraction-static {args.static_share:g}"),
        (args.drafts, f"--speculative-algorithm {ALGORITHMS[args.method]}"),
        (args.has_drafter, f"--speculative-draft-model-path {shlex.quote(head) if head else DRAFTER_VARIABLE}"),
        (args.drafts, f"--speculative-num-steps {args.drafts}", "--speculative-eagle-topk 1"),
        (args.drafts, f"--speculative-num-draft-tokens {args.drafts + 1}"),
        (mixes, "--enable-mixed-chunk"),
        (True, *adapter_flags(served, "--max-loras-per-batch", served.lora_rank)),
        (True, *tiers),
        (args.role != "serve", f"--disaggregation-mode {args.role}", "--disaggregation-transfer-backend nixl"),
        (args.role == "prefill", f"--disaggregation-bootstrap-port {BOOTSTRAP_PORT + slot}"),
        (replica.nodes > 1, f"--nnodes {replica.nodes}", f"--node-rank {'$NODE_RANK' if rank is None else rank}"),
        (replica.nodes > 1, f"--dist-init-addr $HEAD_ADDRESS:{RENDEZVOUS_PORT + STRIDE * slot}"),
        (rank == 0, "--host 0.0.0.0", f"--port {port}"),
    )
    scopes = f"counts for all {args.parts} micro-batches, --chunked-prefill-size for one"
    unmixed = "SGLang runs no prefill together with decode where it drafts: expect slower tokens while prompts prefill"
    refused = f"SGLang runs a draft model only without data-parallel attention: {NO_START}"
    adapts_experts = served.routed_experts > 0 and not EXPERT_MODULES.isdisjoint(served.lora_modules)
    limits = select_texts(
        (True, *head_notes),
        (groups > 1 and args.drafts and args.method == "draft_model", refused),
        (args.role == "serve" and not mixes, unmixed),
        (groups > 1, "--max-running-requests and --chunked-prefill-size count for all data-parallel ranks together"),
        (args.parts > 1, f"--max-running-requests {scopes}"),
        (served.lora_adapters, "add --lora-paths NAME=PATH for each adapter, or load them later at /load_lora_adapter"),
        (served.lora_adapters, OTHER_MODULES),
        (adapts_experts, "SGLang adapts routed experts too where these matrices are named: expect larger adapters"),
    )
    no_cache = f"SGLang has no KV cache in {served.kv}: expect a cache of another size"
    unsupported = select_texts((served.kv not in CACHE, no_cache), (True, *tier_words), (True, *unsaid(args, "sglang")))
    return Command(words=tuple(words), environment=environment, notes=(*missing, *limits, *notes, *unsupported))


def _tiers(args: ServeArgs) -> tuple[list[str], dict[str, str], list[str]]:
    """Return the flags of the tiers behind HBM (HiCache), their environment, and notes.

    Sizes count for one chip: `--hicache-size` in whole GB (sglang 0.5.23, srt/mem_cache/pool_host/base.py), the limit of
    files for the chip that writes them (srt/mem_cache/storage/file/lru_file_evictor.py). Of copies, one is on disk
    (srt/mem_cache/hicache_storage.py). HiCache runs with `--dcp-size` for latent attention without drafts only
    (srt/arg_groups/hicache_hook.py). See https://docs.sglang.io/docs/advanced_features/hicache_best_practices.
    """
    if not args.tiers:
        return [], {}, []
    host, disks, chips, copies = args.host_tier, args.disk_tiers, int(args.layout.chips), args.cache_copies
    size = 0 if host is None else int(host.capacity / chips // GIGABYTE)
    refusal = needs_host_tier(args)
    if args.layout.cp > 1:
        refusal = "no tier behind HBM is set up: SGLang's HiCache does not run with every model and --dcp-size"
    elif size < 1 and not refusal:
        refusal = "no tier behind HBM is set up: the plan's host tier has less than 1 GB per chip, the unit of --hicache-size"
    if refusal or host is None:
        return [], {}, [refusal]
    words = select_texts(
        (True, "--enable-hierarchical-cache", f"--hicache-size {size}"), (disks, "--hicache-storage-backend file")
    )
    environment = {}
    if disks:
        limit = int(disks[0].capacity * copies / chips)
        environment = {
            "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": disks[0].folder, "SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE": str(limit),
        }  # fmt: skip
    slower_disks = " and ".join(tier.name for tier in disks[1:])
    copies_note = f"the host tier holds 1/{copies} of the plan's tokens, because each copy of the KV cache has its own"
    notes = select_texts(
        (True, f"--hicache-size counts GB for one chip: {show(host.capacity, 'B')} of host memory per replica"),
        (True, *tier_notes(args)[:1]),
        (slower_disks, f"SGLang has one disk tier: the {slower_disks} tier is not set up"),
        (copies > 1, copies_note),
    )
    return words, environment, notes


def _experts(args: ServeArgs) -> tuple[list[str], dict[str, str], list[str]]:
    """Return the flags of expert parallelism, exchange and balance, their environment, and notes."""
    m = args.layout
    if m.ep <= 1:
        return [], {}, []
    exchange, environment, why = _exchange(args) if args.exchanges else ([], {}, "")
    plain = "SGLang overlaps two micro-batches only with an all-to-all: expect slower steps"
    notes = select_texts((why, why), (args.two_batches and not exchange, plain))
    words = select_texts(
        (True, f"--ep-size {int(m.ep)}"),
        (True, *exchange),
        (args.two_batches and exchange, "--enable-two-batch-overlap"),
        (m.redundant_experts > 0, f"--ep-num-redundant-experts {int(m.redundant_experts)}", "--enable-eplb"),
    )
    return words, environment, notes


def _exchange(args: ServeArgs) -> tuple[list[str], dict[str, str], str]:
    """Return the flags of the expert exchange, its environment, and a note on an unexpected choice.

    All back ends need as many expert-parallel ranks as a stage has chips. FlashInfer's back end runs inside a rack of Blackwell
    chips if each chip is a data-parallel rank. DeepEP runs on hosts with NVLink: low-latency kernels for a decode pool, normal
    kernels for prefill, and "auto" (both in turn) if chips do both. MoRI runs on AMD. Without a back end, ranks gather all
    rows.
    """
    served, m = args.served, args.layout
    low = args.role == "decode" and args.decoding <= LOW_LATENCY_TOKENS
    mode = "low_latency" if low else "normal" if args.role != "serve" else "auto"
    if m.ep != m.stage:
        return [], {}, ""
    if served.vendor == AMD:
        return ["--moe-a2a-backend mori", f"--deepep-mode {mode}"], {}, ""
    if refusal := deepep_refusal(args):
        return [], {}, f"{refusal}: rows are gathered instead"
    blackwell_ranks = m.dp == m.stage and served.experts in ROUTED and "fp4" in served.arithmetic
    if args.in_rack and blackwell_ranks and not args.two_batches:
        return ["--moe-a2a-backend flashinfer", "--moe-runner-backend flashinfer_trtllm_routed"], {}, ""

    # Low-latency buffers must hold the whole decode batch; a larger batch needs the normal kernels.
    environment: dict[str, str] = {}
    if mode != "normal" and DISPATCHED < args.decoding <= LOW_LATENCY_TOKENS:
        environment = {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": str(args.decoding)} | queues(args.decoding)
    elif mode == "auto" and args.decoding > LOW_LATENCY_TOKENS:
        mode = "normal"
    return ["--moe-a2a-backend deepep", f"--deepep-mode {mode}"], environment, RACK if args.in_rack else ""


def router(plan: Plan, ports: Mapping[Replica, int], port: int) -> Command:
    """Return the command of SGLang's router in front of several servers.

    Args:
        plan: The plan.
        ports: Ports by replica.
        port: Port of the clients.

    Returns:
        The command.
    """
    bootstrap = {r: f" {BOOTSTRAP_PORT + r.slot}" for r in ports if r.role == "prefill"}
    settings = {"program": "python -m sglang_router.launch_router", "pools": "--pd-disaggregation", "package": "sglang-router"}
    return routed(plan, ports, port, **settings, address_suffix=bootstrap)
