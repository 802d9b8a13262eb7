"""The commands that start a plan in vLLM, SGLang or TensorRT-LLM: as text, as a folder of scripts, and as a manifest.

There is one command per host; addresses are shell variables. A comment line names everything that an engine cannot express. An
engine that does not run on the plan's chips gives a reason instead of commands.

The manifest is a DynamoGraphDeployment of NVIDIA Dynamo 1.6: a frontend, and one component per pool. The operator of Dynamo
gives the hosts of a replica their ranks and addresses, so that the arguments have none. The structure follows the templates of
the released package ai-dynamo, `dynamo/profiler/templates/dgd`, and `dynamo/profiler/utils/config.py`; for `multinode` see
https://docs.nvidia.com/dynamo/kubernetes-deployment/multinode/multinode-deployments.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from steptime.errors import install_hint
from steptime.launch import llama_cpp, sglang, trtllm, vllm
from steptime.launch.deployment_files import label, write_deployment_files
from steptime.launch.host_placement import Replica, in_words, place_replicas, racks
from steptime.launch.serve_args import (
    AMD,
    DRAFTER_NAME,
    DRAFTER_VARIABLE,
    NAMES,
    NO_START,
    NVIDIA,
    VARIABLE,
    ServeArgs,
    serve_args_for_pool,
)
from steptime.launch.shell_script import Command, comments, escape_markdown, files_written, select_texts, spoken, wrapped
from steptime.planning.fleet import replicas_per_host
from steptime.planning.plan_result import Plan
from steptime.units import counted, in_digits

# Engines, and the modules that write their commands.
ENGINES: Final = tuple(NAMES)
WRITERS: Final[Mapping[str, ModuleType]] = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}
# Port of the clients, and first port of servers behind a router; servers on one host count up.
PORT, BEHIND = 8000, 8100
# Most addresses that a comment lists.
SHOWN_ADDRESSES: Final = 3
ROLE_WORDS: Final = {"serve": "prefill and decode", "prefill": "prefill pool", "decode": "decode pool"}
# Note at the end of the README.
TRUST: Final = "Some checkpoints contain code, and need the engine's flag that trusts remote code."
# Environment variable with the visible chips, by vendor.
VISIBLE: Final = {NVIDIA: "CUDA_VISIBLE_DEVICES", AMD: "HIP_VISIBLE_DEVICES"}
# Release of Dynamo whose images and schema the manifest uses.
RELEASE: Final = "1.6.1"
RUNTIMES: Final = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
# Flags that Dynamo sets by itself.
LEFT_OUT: Final = ("--port", "--host", "--kv-transfer-config", "--disaggregation-mode", "--disaggregation-bootstrap-port")
# Dynamo's names of TensorRT-LLM's flags.
TRTLLM_FLAGS: Final = {
    "--tp_size": "--tensor-parallel-size",
    "--pp_size": "--pipeline-parallel-size",
    "--ep_size": "--expert-parallel-size",
    "--max_batch_size": "--max-batch-size",
    "--max_num_tokens": "--max-num-tokens",
    "--max_seq_len": "--max-seq-len",
}
# Secret with the token of the Hugging Face hub.
SECRET: Final = [{"secretRef": {"name": "hf-token-secret"}}]


def launch_commands(plan: Plan, engine: str) -> list[str]:
    """Return the lines of a shell script that starts a plan.

    Args:
        plan: The plan.
        engine: Engine: vllm, sglang or trtllm, and llama.cpp for a plan with that engine.

    Returns:
        For each pool a comment and the commands of one replica, then the router; or the reason as a comment.
    """
    if engine == llama_cpp.NAME:
        return comments(_fleet_notes(plan)) + llama_cpp.llama_server_commands(plan)
    if refusal := _refusal(plan, engine):
        return comments((refusal,))
    replicas = place_replicas(plan)
    lines, ports = comments(_plan_notes(plan, engine, replicas)), _ports(replicas)
    for pool in plan.pools:
        first, *remaining = (r for r in replicas if r.role == pool.role)
        sizes = f"{counted(int(pool.layout.replicas), 'replica')} of {counted(int(pool.layout.chips), 'chip')}"
        hosts_text = f" on {first.nodes} hosts of {first.chips}" if first.nodes > 1 else ""
        lines += [f"# {ROLE_WORDS[pool.role]}: {sizes}{hosts_text}"]
        lines += _replica_lines(engine, serve_args_for_pool(plan, pool), first, ports[first])
        lines += [f"# {_other_replicas_text(first, remaining, ports)}"] if remaining else []
    return lines + (_router_lines(plan, engine, ports) if len(replicas) > 1 else [])


def engines_of_plan(plan: Plan) -> tuple[str, ...]:
    """Return the engines whose commands start a plan: llama.cpp for its own plans, otherwise `ENGINES`.

    Args:
        plan: The plan.

    Returns:
        Names of engines.
    """
    return (llama_cpp.NAME,) if plan.engine == llama_cpp.NAME else ENGINES


def slot_note(plan: Plan) -> str:
    """Say why the numbers of a command are larger than the batch and the chunk of the plan.

    Args:
        plan: The plan.

    Returns:
        A sentence without a period.
    """
    pool = plan.pools[-1]
    batch, chunk = in_digits(pool.batch), f" and the chunk of {pool.chunk:,} tokens" if pool.chunk else ""
    slots = f"limits hold for the busiest moment: {pool.max_num_seqs:,} slots of a replica for a mean batch of {batch}"
    passes = f"; tokens of a pass are the decode batch{chunk}" if chunk else ""
    return slots + passes


def _refusal(plan: Plan, engine: str) -> str:
    """Return the reason why an engine cannot serve a plan; "" if it can."""
    vendor, writer = plan.served.vendor, WRITERS[engine]
    runs = vendor in ("", *writer.VENDORS)
    if not runs:
        return f"{NAMES[engine]} runs on {writer.RUNS_ON}, not on chips of {vendor}"
    if plan.engine not in NAMES or plan.engine == engine:
        return ""
    first = {replica.role: replica for replica in reversed(place_replicas(plan))}
    commands = [_server(engine, serve_args_for_pool(plan, pool), first[pool.role], 0, PORT) for pool in plan.pools]
    reasons = [
        note for note in dict.fromkeys(note for command in commands for note in command.notes) if note.endswith(NO_START)
    ]
    return "; ".join([*reasons, only_own_plans(engine)] if reasons else [])


def only_own_plans(engine: str) -> str:
    """Say how to get a plan that an engine can start, where it cannot start that of another engine.

    Args:
        engine: Name of the engine.

    Returns:
        A sentence without a period.
    """
    return f"{NAMES.get(engine, engine)} starts another plan: steptime plan ... --engine {engine} --launch {engine}"


def _fleet_notes(plan: Plan) -> list[str]:
    """Return where the commands of one replica run in a fleet of several; nothing for one replica."""
    fleet = plan.fleet
    if fleet is None or fleet.replicas + fleet.spare < 2:
        return []
    count, (per_host, hosts_each) = fleet.replicas + fleet.spare, replicas_per_host(fleet.replica_chips, plan.served.host_chips)
    if per_host > 1:
        copies = f"{count:,} times on {counted(fleet.hosts, 'host')}, at most {per_host} on each with other chips and ports"
        return [f"the fleet has {count:,} replicas: start this {copies}, behind a router"]
    place = f"each of {count:,} hosts" if hosts_each == 1 else f"each of {count:,} groups of {hosts_each} hosts"
    return [f"the fleet has {count:,} replicas: start this on {place}, behind a router"]


def _plan_notes(plan: Plan, engine: str, replicas: tuple[Replica, ...]) -> list[str]:
    """Return the notes on a whole plan."""
    requests, served = plan.workload.input_tokens + plan.workload.output_tokens, plan.served
    limit_text = f"are longer than the model's context of {served.max_context:,.0f}, which servers enforce"
    started = NAMES[engine]
    differs = f"{started} may not start this layout, and its times differ; for {started} plan with --engine {engine}"

    if plan.prefill_served is not None:
        lengths = f"requests of {requests:,.0f} tokens {limit_text}: serve a checkpoint with extended positions"
        planned = f"planned for {NAMES.get(plan.engine)}: {differs}"
        machines = (("prefill", plan.prefill_system), ("decode", plan.system))
        hosts_by_role = {role: sorted({h for r in replicas if r.role == role for h in r.hosts}) for role, _ in machines}
        systems = ", ".join(
            f"{'hosts' if len(hosts_by_role[role]) > 1 else 'host'} {in_words(hosts_by_role[role])}: {name}"
            for role, name in machines
        )
        idle = f"{counted(plan.idle_chips, 'chip')} of the {plan.total_chips} that the cost counts stay idle"
        return select_texts(
            (True, *_fleet_notes(plan)),
            (requests > served.max_context, lengths),
            (plan.engine in NAMES and plan.engine != engine, planned),
            (True, f"{systems}; KV caches move over a network between both"),
            (plan.idle_chips, idle),
        )

    # Replicas that do not divide evenly over hosts leave chips idle.
    hosts, host = len({h for r in replicas for h in r.hosts}), served.host_chips
    hosts_text = f"{hosts} hosts of {host} chips, more than the {plan.chips} chips of the plan need"
    idle_text = f"{counted(plan.idle_chips, 'chip')} of the {plan.chips} that the cost counts stay idle"
    together = "; ".join(in_words(rack) for rack in racks(plan, replicas) if rack)
    return select_texts(
        (True, *_fleet_notes(plan)),
        (
            requests > served.max_context,
            f"requests of {requests:,.0f} tokens {limit_text}: serve a checkpoint with extended positions",
        ),
        (plan.engine in NAMES and plan.engine != engine, f"planned for {NAMES.get(plan.engine)}: {differs}"),
        (plan.idle_chips, f"{idle_text}; the commands use {counted(hosts, 'host')} of {host} chips"),
        (hosts > -(-plan.chips // host), f"replicas in equal parts take {hosts_text}"),
        (together, f"hosts {together}: each group is in one {served.fabric or 'scale-up'} domain"),
    )


def _ports(replicas: tuple[Replica, ...]) -> dict[Replica, int]:
    return {r: BEHIND + r.slot if len(replicas) > 1 else PORT for r in replicas}


def _replica_lines(engine: str, args: ServeArgs, replica: Replica, port: int) -> list[str]:
    """Return the commands of one replica; later hosts share one, with `$NODE_RANK`."""
    head = _server(engine, args, replica, 0, port)
    addressed = "$NODE_ADDRESS" in head.environment.values()
    lines = [*comments(head.notes), *select_texts((addressed, "# NODE_ADDRESS: address of this host"))]
    if replica.nodes == 1 or engine == "trtllm":
        return lines + spoken(head)

    # All hosts after the first run one command that depends only on NODE_RANK.
    worker = _server(engine, args, replica, None, port)
    own_devices = "$DEVICES" in worker.environment.values()
    plural = "s" if replica.nodes > 2 else ""
    return [
        *lines,
        "# on the first host, whose address is HEAD_ADDRESS on all hosts:",
        *spoken(head),
        f"# on the other host{plural}, with NODE_RANK={in_words(range(1, replica.nodes))}:",
        *select_texts((own_devices, f"# DEVICES: chips of this host: {_devices_text(replica)}")),
        *spoken(worker),
    ]


def _server(engine: str, args: ServeArgs, replica: Replica, rank: int | None, port: int) -> Command:
    """Return a server's command, which sees only the chips of its replica.

    `rank`: as in the writers' `server`.
    """
    command: Command = WRITERS[engine].server(args, replica, rank, port)
    name = VISIBLE.get(args.served.vendor)
    if name is None or replica.chips == args.served.host_chips or (engine == "trtllm" and not replica.is_symmetric):
        return command
    # If all hosts use the same chips, their numbers are in the command; else each host sets DEVICES.
    devices = set(replica.devices[1:] if rank is None else replica.devices[rank : rank + 1])
    visible = ",".join(map(str, devices.pop())) if len(devices) == 1 else "$DEVICES"
    return replace(command, environment={name: visible, **command.environment})


def _devices_text(replica: Replica) -> str:
    """Return the chips of a replica on each host after the first, in words."""
    ranks_by_devices: dict[tuple[int, ...], list[int]] = {}
    for rank, devices in enumerate(replica.devices[1:], 1):
        ranks_by_devices.setdefault(devices, []).append(rank)
    texts = (f"{','.join(map(str, devices))} for NODE_RANK {in_words(ranks)}" for devices, ranks in ranks_by_devices.items())
    return "; ".join(texts)


def _other_replicas_text(first: Replica, remaining: Sequence[Replica], ports: Mapping[Replica, int]) -> str:
    """Return how the other replicas of a pool differ from the first, in words."""
    last = len(remaining)
    which = "replica 1" if last == 1 else f"replicas 1 to {last}"
    hosts = sorted({host for r in remaining for host in r.hosts})
    if hosts == list(first.hosts):
        difference = f"on other chips of the host{'s' if first.nodes > 1 else ''}, port"
        difference += f" {ports[remaining[0]]}" if last == 1 else f"s up to {ports[remaining[-1]]}"
    else:
        difference = f"on hosts {in_words(hosts)}" if len(hosts) > 1 else "on another host"
        vary = len({(r.devices, ports[r]) for r in (first, *remaining)}) > 1
        difference += ", some with other chips and ports" if vary else ""
    return f"{which}: the same command {difference}; --launch-dir writes one script per host"


def _router_lines(plan: Plan, engine: str, ports: Mapping[Replica, int]) -> list[str]:
    command = WRITERS[engine].router(plan, ports, PORT)
    names = [*dict.fromkeys(re.findall(r"\$(\w+_ADDRESS)", " ".join(command.words)))]
    shown_names = ", ".join(names if len(names) <= SHOWN_ADDRESSES else [names[0], "...", names[-1]])
    return [
        f"# router; clients send requests to port {PORT}",
        *select_texts((names, f"# {shown_names}: address of the first host of each replica")),
        *comments(command.notes),
        *spoken(command),
    ]


# --- a folder -----------------------------------------------------------------------------------------------------------


def launch_files(plan: Plan, engine: str) -> dict[str, str]:
    """Return the files that start a plan: scripts, a router, manifests, values, cost rows and a README.

    There is one script per host of each replica. An engine that does not run on the plan's chips has only a README.

    Args:
        plan: The plan.
        engine: Engine: vllm, sglang or trtllm.

    Returns:
        Texts by file name; names that end in .sh must become executable.
    """
    if refusal := _refusal(plan, engine):
        return {"README.md": f"# {escape_markdown(f'{plan.model} on {plan.system}')}\n\n{escape_markdown(refusal)}.\n"}
    replicas = place_replicas(plan)
    ports = _ports(replicas)
    pools = {pool.role: serve_args_for_pool(plan, pool) for pool in plan.pools}
    files = {"addresses.sh": _addresses(replicas)}
    for replica in replicas:
        # One command of TensorRT-LLM starts all hosts of a replica.
        ranks = 1 if engine == "trtllm" else replica.nodes
        for rank in range(ranks):
            command = _server(engine, pools[replica.role], replica, rank, ports[replica])
            name = f"{replica.role}-{replica.number}" + (f"-node-{rank}" if ranks > 1 else "") + ".sh"
            files[name] = _script(command, _address_lines(replica, rank, command))
    if len(replicas) > 1:
        files["router.sh"] = _script(WRITERS[engine].router(plan, ports, PORT), ())
    # PyYAML writes the manifest.
    if plan.served.vendor == NVIDIA and find_spec("yaml") is not None:
        files["dynamo.yaml"] = _manifest(plan, engine, replicas, pools)
    deployments, lines = write_deployment_files(plan, engine, replicas, pools, has_yaml=find_spec("yaml") is not None)
    files |= deployments
    files["README.md"] = _readme(plan, engine, replicas, files, lines)
    return files


def _address_lines(replica: Replica, rank: int, command: Command) -> tuple[str, ...]:
    """Return the lines of a script that set the addresses in its command."""
    hosts = ",".join(f"$HOST_{host}:{replica.chips}" for host in replica.hosts)
    addresses = {"HEAD_ADDRESS": f"$HOST_{replica.hosts[0]}", "NODE_ADDRESS": f"$HOST_{replica.hosts[rank]}", "HOSTS": hosts}
    # Only variables that occur in the command are set.
    text = " ".join((*command.words, *command.environment.values()))
    return tuple(f"{name}={value}" for name, value in addresses.items() if f"${name}" in text)


def _script(command: Command, addresses: tuple[str, ...]) -> str:
    """Return an executable script of one command."""
    # A missing checkpoint ends the script with a message before the engine starts.
    needs_checkpoint = any(word.endswith(VARIABLE) for word in command.words)
    needs_drafter = DRAFTER_NAME in command.variables or any(DRAFTER_VARIABLE in word for word in command.words)
    lines = [
        "#!/bin/sh",
        *comments(command.notes),
        "set -eu",
        'cd "$(dirname "$0")"',
        ". ./addresses.sh",
        *addresses,
        *select_texts(
            (needs_checkpoint, ': "${CHECKPOINT:?must be the id or the folder of the weights}"'),
            (needs_drafter, f': "${{{DRAFTER_NAME}:?must be the id or the folder of the weights that draft}}"'),
        ),
        *(f"export {name}={value}" for name, value in command.environment.items()),
        *files_written(command),
        *wrapped((f"exec {command.words[0]}", *command.words[1:])),
    ]
    return "\n".join(lines) + "\n"


def _addresses(replicas: tuple[Replica, ...]) -> str:
    """Return the file with the addresses of the hosts."""
    lines = ["# Addresses of the hosts: edit them here, or set them in the environment."]
    lines += [f': "${{HOST_{host}:=host-{host}}}"' for host in sorted({host for r in replicas for host in r.hosts})]
    lines += [f"{r.variable}=$HOST_{r.hosts[0]}" for r in replicas]
    return "\n".join(lines) + "\n"


def _readme(
    plan: Plan, engine: str, replicas: tuple[Replica, ...], files: Mapping[str, str], deployment_lines: Sequence[str]
) -> str:
    """Return the README: the files of the folder, and the order of the start."""
    rows = []
    for r in replicas:
        name = f"{r.role}-{r.number}"
        scripts = [n for n in files if n == f"{name}.sh" or n.startswith(f"{name}-node-")]
        hosts, chips = [str(host) for host in r.hosts], [in_words(devices) for devices in r.devices]
        if len(scripts) < r.nodes:
            hosts, chips = [", ".join(hosts)], ["; ".join(chips[:1] if r.is_symmetric else chips)]
        rows += [f"| `{script}` | {host} | {devices} |" for script, host, devices in zip(scripts, hosts, chips, strict=True)]
    first = "; start a script for several hosts only on the first one" if engine == "trtllm" else ""
    title = escape_markdown(f"{plan.model} on {plan.machines_text}")
    missing_manifest = plan.served.vendor == NVIDIA and "dynamo.yaml" not in files
    after = select_texts(
        (
            "router.sh" in files,
            f"When all servers answer, start `router.sh` on any host; clients send requests to its port {PORT}.",
        ),
        ("router.sh" not in files, f"Clients send requests to port {PORT} of the first host."),
        (
            "dynamo.yaml" in files,
            "On Kubernetes with NVIDIA Dynamo's operator, run `kubectl apply -f dynamo.yaml` instead of the scripts.",
        ),
        (
            missing_manifest,
            f"A Kubernetes manifest needs PyYAML: {install_hint('launch')}; then write this folder again.",
        ),
    )
    text = [
        f"# {title}, {NAMES[engine]}",
        "",
        f"{plan.layout_text}.",
        *(f"\nNote: {escape_markdown(note)}." for note in _plan_notes(plan, engine, replicas)),
        "",
        "1. Write the addresses of the hosts into `addresses.sh`, and copy this folder to each host.",
        f"2. Start the scripts of each host{first}:",
        "",
        "| script | host | chips |\n|---|---|---|",
        *rows,
        "",
        *after,
        *deployment_lines,
        TRUST,
    ]
    return "\n".join(text) + "\n"


# --- the manifest -------------------------------------------------------------------------------------------------------


def _manifest(plan: Plan, engine: str, replicas: tuple[Replica, ...], pools: Mapping[str, ServeArgs]) -> str:
    """Return the text of a Kubernetes manifest: YAML with notes as comments."""
    import yaml

    image = f"nvcr.io/nvidia/ai-dynamo/{RUNTIMES[engine]}:{RELEASE}"
    components = [_component("Frontend", "frontend", 1, _container(image, "dynamo.frontend", []))]
    notes: list[str] = []
    if plan.is_pair:
        notes.append(f"prefill runs on {plan.prefill_system}, decode on {plan.system}: add a nodeSelector to each component")
    for role, args in pools.items():
        # All replicas of a pool have one layout, so that the first stands for all.
        first, *remaining = (r for r in replicas if r.role == role)
        # The operator adds the flags of several hosts, so that the arguments are those of one host.
        command: Command = WRITERS[engine].server(args, replace(first, hosts=first.hosts[:1], slot=0), 0, 0)
        arguments, environment = _dynamo_arguments(engine, args, command)
        container = _container(image, f"dynamo.{engine}", arguments)
        if environment:
            container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
        container["resources"] = {"limits": {"nvidia.com/gpu": str(first.chips)}}
        name = "worker" if role == "serve" else role
        component = _component(name, name, 1 + len(remaining), container)
        if first.nodes > 1:
            component["multinode"] = {"nodeCount": first.nodes}
        components.append(component)
        notes += [f"{name}: {note}" for note in command.notes]

    deployment = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": label(plan.model)},
        "spec": {"components": components},
    }

    # A copy shares no lists, for which YAML would write anchors and aliases.
    text: str = yaml.safe_dump(json.loads(json.dumps(deployment)), sort_keys=False, width=2**20)
    return "".join(f"{line}\n" for line in comments(dict.fromkeys(notes))) + text


def _component(name: str, kind: str, replicas: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "replicas": replicas, "podTemplate": {"spec": {"containers": [container]}}}


def _container(image: str, module: str, arguments: list[str]) -> dict[str, Any]:
    # Kubernetes expands `$(NAME)`, and reads `$$` as `$`.
    escaped = [re.sub(r"\$(?=[$(])", "$$", argument) for argument in arguments]
    container: dict[str, Any] = {"name": "main", "image": image, "command": ["python3", "-m", module]}
    return container | ({"args": escaped} if escaped else {}) | {"envFrom": SECRET}


def _dynamo_arguments(engine: str, args: ServeArgs, command: Command) -> tuple[list[str], Mapping[str, str]]:
    """Return the arguments of a pool's worker by Dynamo's names, and its environment."""
    (_, *_, place), *flags = map(shlex.split, command.words)
    role = [] if args.role == "serve" else ["--disaggregation-mode", args.role]
    if engine == "trtllm":
        renamed = [part for flag in flags if flag[0] in TRTLLM_FLAGS for part in (TRTLLM_FLAGS[flag[0]], flag[1])]
        return ["--model", place, *renamed, "--override-engine-args", json.dumps(trtllm.options(args)), *role], {}
    kept_flags = [part for flag in flags if flag[0] not in LEFT_OUT for part in flag]
    if engine == "vllm":
        transfer = [part for flag in flags if flag[0] == "--kv-transfer-config" for part in flag]
        environment = {name: value for name, value in command.environment.items() if "NIXL" not in name}
        return ["--model", place, *kept_flags, *role, *transfer], environment
    ports = ["--disaggregation-bootstrap-port", str(sglang.BOOTSTRAP_PORT), "--host", "0.0.0.0"] if role else []
    return ["--model-path", place, *kept_flags, *role, *ports], command.environment
