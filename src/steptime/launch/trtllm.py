"""Server commands of TensorRT-LLM 1.2: `trtllm-serve` with an options file, and `trtllm-serve disaggregated` for pools.

`--max_batch_size` and `--max_num_tokens` count for one rank, which is a data-parallel rank, and one micro-batch.
"""

from __future__ import annotations

from typing import Any

from steptime.launch.host_placement import Replica
from steptime.launch.serve_args import NVIDIA, ServeArgs, checkpoint, unsaid
from steptime.launch.shell_script import Command, json_file
from steptime.planning.launch_facts import Served
from steptime.planning.plan_result import Plan

# TensorRT-LLM's names of KV cache formats.
CACHE = {"bf16": "auto", "fp16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
# Layers whose experts move per step. With 0 the redundant experts would stay where they start.
LAYER_UPDATES = 1


def refused(served: Served) -> str:
    """Return the reason why TensorRT-LLM cannot serve a plan.

    Args:
        served: Facts about the machine.

    Returns:
        The reason; "" if it can.
    """
    return "" if served.vendor in (NVIDIA, "") else f"TensorRT-LLM runs on GPUs of NVIDIA, not on chips of {served.vendor}"


def server(serve_args: ServeArgs, replica: Replica, rank: int | None, port: int) -> Command:
    """Return the command of a replica, which starts all its hosts.

    Args:
        serve_args: Requirements of the pool.
        replica: Placement of the replica.
        rank: Not used: one command starts all hosts.
        port: Port of the server.

    Returns:
        The command with its options file and notes.
    """
    del rank
    m = serve_args.layout
    place, missing = checkpoint(serve_args.served, quantises=False)
    name = f"{serve_args.role}.yaml"
    words = [f"trtllm-serve {place}", f"--tp_size {int(m.stage)}"]

    # With attention DP, TensorRT-LLM makes each chip a data-parallel rank.
    chips = int(m.group) if m.dp > 1 else 1
    sequences = -(-serve_args.sequences // (serve_args.parts * chips))
    if replica.nodes > 1:
        words = [f"mpirun -n {int(m.chips)} -H $HOSTS", *_own_chips(serve_args, replica), "trtllm-llmapi-launch", *words]
        words.append(f"--gpus_per_node {replica.chips}")
    if m.pp > 1:
        words.append(f"--pp_size {int(m.pp)}")
    if m.ep > 1:
        words.append(f"--ep_size {int(m.ep)}")
    words += [
        f"--max_batch_size {sequences}",
        f"--max_num_tokens {max(-(-serve_args.tokens // chips), sequences * (serve_args.drafts + 1))}",
        f"--max_seq_len {serve_args.length}",
        f"--extra_llm_api_options {name}",
        "--host 0.0.0.0",
        f"--port {port}",
    ]
    if serve_args.served.remote_code:
        words.append("--trust_remote_code")
    files = {name: json_file(options(serve_args))}
    return Command(words=tuple(words), notes=(*missing, *_notes(serve_args, replica)), files=files)


def _own_chips(serve_args: ServeArgs, replica: Replica) -> list[str]:
    """Return the words that restrict each process of a replica to its own chips.

    If all hosts use the same chips, the environment has one list. Otherwise each process picks the list of its host by its
    rank: `mpirun` fills hosts in order under `--map-by slot`, as `srun` does.
    """
    if replica.chips == serve_args.served.host_chips:
        return []
    if replica.is_symmetric:
        return ["-x CUDA_VISIBLE_DEVICES"]
    lists = " ".join(",".join(map(str, devices)) for devices in replica.devices)
    rank = f"$((${{OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}} / {replica.chips} + 1))"
    pick = f'export CUDA_VISIBLE_DEVICES=$(echo {lists} | cut -d " " -f {rank}); exec "$0" "$@"'
    return ["--map-by slot", f"sh -c '{pick}'"]


def options(serve_args: ServeArgs) -> dict[str, Any]:
    """Return the content of the options file of a pool.

    Args:
        serve_args: Requirements of the pool.

    Returns:
        Options by name.
    """
    m, served = serve_args.layout, serve_args.served
    settings: dict[str, Any] = {}
    if serve_args.role != "decode":
        settings["enable_chunked_prefill"] = True
    if m.dp > 1:
        settings["enable_attention_dp"] = True
    settings["kv_cache_config"] = {"dtype": CACHE.get(served.kv, "auto")} | (
        {"enable_block_reuse": True} if serve_args.cached else {}
    )

    # The load balancer counts slots: the routed experts and their redundant copies.
    if m.redundant_experts > 0:
        slots = served.routed_experts + int(m.redundant_experts)
        settings["moe_config"] = {"load_balancer": {"num_slots": slots, "layer_updates_per_iter": LAYER_UPDATES}}
    if serve_args.drafts:
        settings["speculative_config"] = {"decoding_type": "MTP", "num_nextn_predict_layers": serve_args.drafts}
    if serve_args.role != "serve":
        settings["cache_transceiver_config"] = {"backend": "DEFAULT"}
    if serve_args.role == "prefill":
        settings["disable_overlap_scheduler"] = True
    return settings


def _notes(serve_args: ServeArgs, replica: Replica) -> tuple[str, ...]:
    """Return notes on the scope of the limits, and on unsupported parts."""
    m, served = serve_args.layout, serve_args.served
    notes = []
    # Both limits count for less than the whole server.
    if m.dp > 1:
        notes.append("--max_batch_size and --max_num_tokens count for one attention data-parallel rank")
    if serve_args.parts > 1:
        notes.append(f"--max_batch_size and --max_num_tokens count for one of the {serve_args.parts} micro-batches in flight")
    if served.kv not in CACHE:
        notes.append(f"TensorRT-LLM has no KV cache in {served.kv}: expect a cache of another size")
    elif CACHE[served.kv] == "auto" and served.checkpoint_kv not in ("", "bf16"):
        notes.append(f"dtype auto follows the checkpoint, which declares {served.checkpoint_kv}: expect a smaller KV cache")
    if replica.nodes > 1:
        notes.append(f"one command starts all {replica.nodes} hosts; under Slurm use srun --mpi=pmix in place of mpirun;")
        notes.append(f"HOSTS: addresses of the hosts, each followed by :{replica.chips}, separated by commas")
    return (*notes, *unsaid(serve_args, "trtllm"))


# --- the router ---------------------------------------------------------------------------------------------------------


def router(plan: Plan, replicas: tuple[Replica, ...], ports: dict[Replica, int], port: int) -> Command:
    """Return the command of the server between two pools, or of nginx.

    nginx balances the load of equal replicas.

    Args:
        plan: The plan.
        replicas: Placement of all replicas.
        ports: Ports by replica.
        port: Port of the clients.

    Returns:
        The command with its configuration file.
    """
    urls = {r: f"@{r.variable}@:{ports[r]}" for r in replicas}
    variables = tuple(r.variable for r in replicas)
    if len(plan.pools) == 1:
        servers = "".join(f" server {url};" for url in urls.values())
        text = f"events {{}}\nhttp {{\n  upstream replicas {{ least_conn;{servers} }}\n"
        passed = "proxy_pass http://replicas; proxy_buffering off; proxy_read_timeout 1h;"
        text += f"  server {{ listen {port}; location / {{ {passed} }} }}\n}}\n"
        words = ("nginx -g 'daemon off;' -c $PWD/router.conf",)
        return Command(
            words=words,
            notes=("TensorRT-LLM has no load balancer for equal replicas; this uses nginx",),
            files={"router.conf": text},
            variables=variables,
        )

    # Prefill servers are context servers, decode servers are generation servers.
    sides = {
        side: {"num_instances": len(lines), "urls": lines}
        for side, role in (("context_servers", "prefill"), ("generation_servers", "decode"))
        if (lines := [url for r, url in urls.items() if r.role == role])
    }
    text = json_file({"hostname": "0.0.0.0", "port": port, "backend": "pytorch", **sides})
    files = {"router.yaml": text}
    return Command(words=("trtllm-serve disaggregated", "-c router.yaml"), files=files, variables=variables)
