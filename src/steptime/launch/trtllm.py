"""Server commands of TensorRT-LLM 1.2: `trtllm-serve` with an options file, and `trtllm-serve disaggregated` for pools.

`--max_batch_size` and `--max_num_tokens` count for one rank, which is a data-parallel rank, and one micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steptime.launch.host_placement import Replica
from steptime.launch.serve_args import DRAFTER_NAME, NVIDIA, ServeArgs, checkpoint, drafter_place, no_adapters, unsaid
from steptime.launch.shell_script import Command, json_file, select_texts
from steptime.models.draft_models import EAGLE3
from steptime.planning.plan_result import Plan
from steptime.units import show

VENDORS = (NVIDIA,)
RUNS_ON = "GPUs of NVIDIA"
# TensorRT-LLM's names of KV cache formats.
CACHE = {"bf16": "auto", "fp16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
# TensorRT-LLM's names of matrices with LoRA adapters (tensorrt_llm/lora_helper.py, get_default_trtllm_modules_to_hf_modules).
LORA_MODULES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_dense", "gate_proj": "mlp_h_to_4h",
    "up_proj": "mlp_gate", "down_proj": "mlp_4h_to_h",
}  # fmt: skip
# Layers whose experts move per step. With 0 the redundant experts would stay where they start.
LAYER_UPDATES = 1


def server(args: ServeArgs, replica: Replica, rank: int | None, port: int) -> Command:
    """Return the command of a replica, which starts all its hosts.

    Args:
        args: Requirements of the pool.
        replica: Placement of the replica.
        rank: Not used: one command starts all hosts.
        port: Port of the server.

    Returns:
        The command with its options file and notes.
    """
    del rank
    m, served, parts, spans_hosts = args.layout, args.served, args.parts, replica.nodes > 1
    place, missing = checkpoint(served, quantises=False)
    name = f"{args.role}.yaml"

    # With attention DP, TensorRT-LLM makes each chip a data-parallel rank.
    chips = int(m.group) if m.dp > 1 else 1
    sequences = -(-args.sequences // (parts * chips))
    tokens = max(-(-args.tokens // chips), sequences * (args.drafts + 1))
    words = select_texts(
        (spans_hosts, f"mpirun -n {int(m.chips)} -H $HOSTS"),
        (spans_hosts, *_own_chips(args, replica)),
        (spans_hosts, "trtllm-llmapi-launch"),
        (True, f"trtllm-serve {place}", f"--tp_size {int(m.stage)}"),
        (spans_hosts, f"--gpus_per_node {replica.chips}"),
        (m.pp > 1, f"--pp_size {parts}"),
        (m.ep > 1, f"--ep_size {int(m.ep)}"),
        (True, f"--max_batch_size {sequences}", f"--max_num_tokens {tokens}", f"--max_seq_len {args.length}"),
        (True, f"--extra_llm_api_options {name}", "--host 0.0.0.0", f"--port {port}"),
        (served.remote_code, "--trust_remote_code"),
    )
    limits, automatic = "--max_batch_size and --max_num_tokens count for one", CACHE.get(served.kv) == "auto"
    declared = f"dtype auto follows the checkpoint, which declares {served.checkpoint_kv}: expect a smaller KV cache"
    notes = select_texts(
        (m.dp > 1, f"{limits} attention data-parallel rank"),
        (parts > 1, f"{limits} of the {parts} micro-batches in flight"),
        (served.kv not in CACHE, f"TensorRT-LLM has no KV cache in {served.kv}: expect a cache of another size"),
        (automatic and served.checkpoint_kv not in ("", "bf16"), declared),
        (spans_hosts, f"one command starts all {replica.nodes} hosts; under Slurm use srun --mpi=pmix in place of mpirun;"),
        (spans_hosts, f"HOSTS: addresses of the hosts, each followed by :{replica.chips}, separated by commas"),
        (True, *_tier_words(args)),
        (True, *([] if _lora_config(args) else no_adapters(served, "TensorRT-LLM"))),
        (_lora_config(args), "each request names its LoRA adapter: lora_request with lora_name, lora_int_id and lora_path"),
        (True, *unsaid(args, "trtllm")),
    )
    head, head_notes = drafter_place(args)
    variables = (DRAFTER_NAME,) if args.has_drafter and not head else ()
    files = {name: json_file(options(args))}
    return Command(words=tuple(words), notes=(*missing, *head_notes, *notes), files=files, variables=variables)


def _own_chips(args: ServeArgs, replica: Replica) -> list[str]:
    """Return the words that restrict each process of a replica to its own chips.

    If all hosts use the same chips, the environment has one list. Otherwise each process picks the list of its host by its
    rank: `mpirun` fills hosts in order under `--map-by slot`, as `srun` does.
    """
    if replica.chips == args.served.host_chips:
        return []
    if replica.is_symmetric:
        return ["-x CUDA_VISIBLE_DEVICES"]
    lists = " ".join(",".join(map(str, devices)) for devices in replica.devices)
    rank = f"$((${{OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}} / {replica.chips} + 1))"
    pick = f'export CUDA_VISIBLE_DEVICES=$(echo {lists} | cut -d " " -f {rank}); exec "$0" "$@"'
    return ["--map-by slot", f"sh -c '{pick}'"]


def options(args: ServeArgs) -> dict[str, Any]:
    """Return the content of the options file of a pool.

    Args:
        args: Requirements of the pool.

    Returns:
        Options by name.
    """
    # The load balancer counts slots: the routed experts and their redundant copies.
    slots, redundant = args.served.routed_experts + int(args.layout.redundant_experts), args.layout.redundant_experts > 0
    balancer = {"load_balancer": {"num_slots": slots, "layer_updates_per_iter": LAYER_UPDATES}}
    reuse = {"enable_block_reuse": True} if args.cached else {}
    room = {"free_gpu_memory_fraction": args.cache_share} if args.memory_share else {}
    # Each rank has a host cache (_torch/pyexecutor/resource_manager.py).
    host = args.host_tier
    tiers = {"host_cache_size": int(host.capacity // int(args.layout.chips))} if host else {}
    settings = {
        "enable_chunked_prefill": args.role != "decode",
        "enable_attention_dp": bool(args.layout.dp > 1),
        "kv_cache_config": {"dtype": CACHE.get(args.served.kv, "auto")} | room | reuse | tiers,
        "moe_config": balancer if redundant else {},
        "speculative_config": _speculative_config(args),
        "lora_config": _lora_config(args),
        "cache_transceiver_config": {"backend": "DEFAULT"} if args.role != "serve" else {},
        # NVIDIA's manual runs a draft model without the overlap scheduler.
        "disable_overlap_scheduler": args.role == "prefill" or (args.has_drafter and args.method != EAGLE3),
    }
    return {name: value for name, value in settings.items() if value}


def _tier_words(args: ServeArgs) -> list[str]:
    """Return notes on the tiers behind HBM.

    Disks came after 1.2: `disk_cache_size` of https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html.
    """
    host, disks, copies = args.host_tier, " and ".join(tier.name for tier in args.disk_tiers), args.cache_copies
    copies_note = f"the host tier holds 1/{copies} of the plan's tokens, because each copy of the KV cache has its own"
    return select_texts(
        (host, f"host_cache_size counts for one chip: {show(host.capacity if host else 0.0, 'B')} of host memory per replica"),
        (host and copies > 1, copies_note),
        (disks, f"no {disks} tier is set up: TensorRT-LLM 1.2 has no KV cache on disks; later releases have disk_cache_size"),
    )


def _lora_config(args: ServeArgs) -> dict[str, Any]:
    """Return the LoRA adapters of an options file; empty without adapters, and for matrices that it has no name for.

    https://nvidia.github.io/TensorRT-LLM/features/lora.html
    """
    served = args.served
    if not served.lora_adapters or not LORA_MODULES.keys() >= {*served.lora_modules}:
        return {}
    modules = [LORA_MODULES[name] for name in served.lora_modules]
    limits = {"max_lora_rank": served.lora_rank, "max_loras": served.lora_adapters, "max_cpu_loras": served.lora_adapters}
    return {"lora_target_modules": modules} | limits


def _speculative_config(args: ServeArgs) -> dict[str, Any]:
    """Return the speculative decoding of an options file.

    "Eagle" runs EAGLE-3 heads. Names are those of `llm_args.py`; the manual at
    https://nvidia.github.io/TensorRT-LLM/features/speculative-decoding.html still writes "DraftTarget".
    """
    if not args.drafts:
        return {}
    if not args.has_drafter:
        return {"decoding_type": "MTP", "num_nextn_predict_layers": args.drafts}
    kind = "Eagle" if args.method == EAGLE3 else "Draft_Target"
    place = drafter_place(args)[0] or f"@{DRAFTER_NAME}@"
    return {"decoding_type": kind, "max_draft_len": args.drafts, "speculative_model_dir": place}


def router(plan: Plan, ports: Mapping[Replica, int], port: int) -> Command:
    """Return the command of the server between two pools, or of nginx.

    nginx balances the load of equal replicas.

    Args:
        plan: The plan.
        ports: Ports by replica.
        port: Port of the clients.

    Returns:
        The command with its configuration file.
    """
    urls = {r: f"@{r.variable}@:{number}" for r, number in ports.items()}
    variables = tuple(r.variable for r in ports)
    if len(plan.pools) == 1:
        servers = "".join(f" server {url};" for url in urls.values())
        text = f"events {{}}\nhttp {{\n  upstream replicas {{ least_conn;{servers} }}\n"
        passed = "proxy_pass http://replicas; proxy_buffering off; proxy_read_timeout 1h;"
        text += f"  server {{ listen {port}; location / {{ {passed} }} }}\n}}\n"
        notes = ("TensorRT-LLM has no load balancer for equal replicas; this uses nginx",)
        program = "nginx -g 'daemon off;' -c $PWD/router.conf"
        return Command(words=(program,), notes=notes, files={"router.conf": text}, variables=variables)

    # Prefill servers are context servers, decode servers are generation servers.
    sides = {}
    for side, role in (("context_servers", "prefill"), ("generation_servers", "decode")):
        if lines := [url for r, url in urls.items() if r.role == role]:
            sides[side] = {"num_instances": len(lines), "urls": lines}
    text = json_file({"hostname": "0.0.0.0", "port": port, "backend": "pytorch", **sides})
    words = ("trtllm-serve disaggregated", "-c router.yaml")
    return Command(words=words, files={"router.yaml": text}, variables=variables)
