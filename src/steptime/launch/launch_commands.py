"""A DynamoGraphDeployment of NVIDIA Dynamo 1.6: a frontend, and one component per pool.

The operator of Dynamo gives the hosts of a replica their ranks and addresses, so that the arguments have none. The structure
follows the templates of the released package ai-dynamo, `dynamo/profiler/templates/dgd`, and `dynamo/profiler/utils/config.py`;
for `multinode` see https://docs.nvidia.com/dynamo/kubernetes-deployment/multinode/multinode-deployments.

The commands that start a plan in vLLM, SGLang or TensorRT-LLM, as text and as a folder of scripts.

There is one command per host; addresses are shell variables. A comment line names everything that an engine cannot express. An
engine that does not run on the plan's chips gives a reason instead of commands.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from steptime.errors import InputError, install_hint
from steptime.launch import sglang, trtllm, vllm
from steptime.launch.host_placement import Replica, in_words, place_replicas, racks
from steptime.launch.serve_args import AMD, NAMES, NVIDIA, VARIABLE, ServeArgs, serve_args_for_pool, too_long
from steptime.launch.shell_script import Command, comments, escape_markdown, files_written, spoken, wrapped
from steptime.planning.plan_result import Plan, Pool
from steptime.units import counted

# Release of Dynamo whose images and schema the manifest uses.
RELEASE: Final = "1.6.1"
RUNTIMES: Final = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
# Flags that Dynamo sets by itself.
LEFT_OUT: Final = ("--port", "--host", "--kv-transfer-config", "--disaggregation-mode", "--disaggregation-bootstrap-port")
# Secret with the token of the Hugging Face hub.
SECRET: Final = [{"secretRef": {"name": "hf-token-secret"}}]


def pyyaml_installed() -> bool:
    """Return whether PyYAML is installed, which writes manifests.

    Returns:
        True if a manifest can be written.
    """
    return find_spec("yaml") is not None


def manifest(plan: Plan, engine: str, replicas: tuple[Replica, ...], pools: Mapping[str, ServeArgs]) -> str:
    """Return the text of a Kubernetes manifest for a plan.

    Args:
        plan: The plan.
        engine: Engine: vllm, sglang or trtllm.
        replicas: Placement of all replicas.
        pools: Engine arguments by role of the pool.

    Returns:
        YAML with notes as comments.

    Raises:
        InputError: If PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise InputError(f"launch: a manifest needs PyYAML, which is not installed: {install_hint('launch')}") from None
    image = f"nvcr.io/nvidia/ai-dynamo/{RUNTIMES[engine]}:{RELEASE}"
    components: list[dict[str, Any]] = [_component("Frontend", "frontend", 1, _container(image, "dynamo.frontend", []))]
    notes: list[str] = []
    for role, serve_args in pools.items():
        # All replicas of a pool have one layout, so that the first stands for all.
        pool_replicas = [r for r in replicas if r.role == role]
        arguments, environment, worker_notes = _arguments(engine, serve_args, pool_replicas[0])
        container = _container(image, f"dynamo.{engine}", arguments)
        if environment:
            container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
        container["resources"] = {"limits": {"nvidia.com/gpu": str(pool_replicas[0].chips)}}
        name = "worker" if role == "serve" else role
        component = _component(name, name, len(pool_replicas), container)
        if pool_replicas[0].nodes > 1:
            component["multinode"] = {"nodeCount": pool_replicas[0].nodes}
        components.append(component)
        notes += [f"{name}: {note}" for note in worker_notes]
    deployment = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": _label(plan.model)},
        "spec": {"components": components},
    }

    # A copy shares no lists, for which YAML would write anchors and aliases.
    text: str = yaml.safe_dump(json.loads(json.dumps(deployment)), sort_keys=False, width=2**20)
    return "".join(f"{line}\n" for line in comments(dict.fromkeys(notes))) + text


def _label(model: str) -> str:
    """Return a model name as Kubernetes accepts names: lower case, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")[:50].strip("-") or "model"


def _component(name: str, kind: str, replicas: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "replicas": replicas, "podTemplate": {"spec": {"containers": [container]}}}


def _container(image: str, module: str, arguments: list[str]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": image, "command": ["python3", "-m", module]}
    return container | ({"args": list(map(_escape_expansion, arguments))} if arguments else {}) | {"envFrom": SECRET}


def _escape_expansion(argument: str) -> str:
    """Return an argument that Kubernetes passes on unchanged.

    Kubernetes expands `$(NAME)`, and reads `$$` as `$`.
    """
    return re.sub(r"\$(?=[$(])", "$$", argument)


def _arguments(engine: str, serve_args: ServeArgs, replica: Replica) -> tuple[list[str], Mapping[str, str], tuple[str, ...]]:
    """Return the arguments of a pool's worker, its environment and its notes."""
    # The operator adds the flags of several hosts, so that the arguments are those of one host.
    single_node = replace(replica, hosts=replica.hosts[:1], slot=0)
    role = [] if serve_args.role == "serve" else ["--disaggregation-mode", serve_args.role]
    if engine == "trtllm":
        command = trtllm.server(serve_args, single_node, 0, 0)
        return [*_trtllm(serve_args, command), *role], {}, command.notes
    command = (vllm if engine == "vllm" else sglang).server(serve_args, single_node, 0, 0)
    place = shlex.split(command.words[0])[-1]
    flags = [word for word in command.words[1:] if shlex.split(word)[0] not in LEFT_OUT]
    arguments = [part for word in flags for part in shlex.split(word)]
    if engine == "vllm":
        transfer = [part for word in command.words if word.startswith("--kv-transfer") for part in shlex.split(word)]
        variables = {name: value for name, value in command.environment.items() if "NIXL" not in name}
        return ["--model", place, *arguments, *role, *transfer], variables, command.notes
    ports = ["--disaggregation-bootstrap-port", str(sglang.BOOTSTRAP_PORT), "--host", "0.0.0.0"] if role else []
    return ["--model-path", place, *arguments, *role, *ports], command.environment, command.notes


def _trtllm(serve_args: ServeArgs, command: Command) -> list[str]:
    """Return TensorRT-LLM's flags by Dynamo's names, and its options as one JSON text."""
    names = {
        "--tp_size": "--tensor-parallel-size",
        "--pp_size": "--pipeline-parallel-size",
        "--ep_size": "--expert-parallel-size",
        "--max_batch_size": "--max-batch-size",
        "--max_num_tokens": "--max-num-tokens",
        "--max_seq_len": "--max-seq-len",
    }
    words = [shlex.split(word) for word in command.words]
    arguments = ["--model", next(word[1] for word in words if word[0] == "trtllm-serve")]
    for word in words:
        if word[0] in names:
            arguments += [names[word[0]], word[1]]
    return [*arguments, "--override-engine-args", json.dumps(trtllm.options(serve_args))]


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


def launch_commands(plan: Plan, engine: str) -> list[str]:
    """Return the lines of a shell script that starts a plan.

    Args:
        plan: The plan.
        engine: Engine: vllm, sglang or trtllm.

    Returns:
        For each pool a comment and the commands of one replica, then the router; or the reason as a comment.
    """
    writer = WRITERS[engine]
    if reason := writer.refused(plan.served):
        return comments((reason,))
    replicas = place_replicas(plan)
    lines = comments(_before(plan, engine, replicas))
    ports = _ports(replicas)
    for pool in plan.pools:
        pool_replicas = [r for r in replicas if r.role == pool.role]
        lines += [
            _headline(pool, pool_replicas[0]),
            *_replica(engine, serve_args_for_pool(plan, pool), pool_replicas[0], ports[pool_replicas[0]]),
        ]
        if len(pool_replicas) > 1:
            lines.append(f"# {_other_replicas_text(pool_replicas, ports)}")
    return lines + (_router(plan, engine, replicas, ports) if len(replicas) > 1 else [])


def _before(plan: Plan, engine: str, replicas: tuple[Replica, ...]) -> tuple[str, ...]:
    """Return the notes on a whole plan."""
    notes = [too_long(plan)]
    if plan.engine in ENGINES and plan.engine != engine:
        planned_engine, started = NAMES[plan.engine], NAMES[engine]
        notes.append(
            f"planned for {planned_engine}: {started} may not start this layout, and its times differ; for {started} plan with "
            f"--engine {engine}"
        )

    # Replicas that do not divide evenly over hosts leave chips idle.
    hosts, host = len({h for r in replicas for h in r.hosts}), plan.served.host_chips
    if hosts > -(-plan.chips // host):
        notes.append(
            f"replicas in equal parts take {hosts} hosts of {host} chips, more than the {plan.chips} chips of the plan need"
        )
    together = [in_words(rack) for rack in racks(plan, replicas) if rack]
    if together:
        notes.append(f"hosts {'; '.join(together)}: each group is in one {plan.served.fabric or 'scale-up'} domain")
    return tuple(filter(None, notes))


def _headline(pool: Pool, first: Replica) -> str:
    layout = pool.layout
    replicas, chips = counted(int(layout.replicas), "replica"), counted(int(layout.chips), "chip")
    span_text = f" on {first.nodes} hosts of {first.chips}" if first.nodes > 1 else ""
    return f"# {ROLE_WORDS[pool.role]}: {replicas} of {chips}{span_text}"


def _ports(replicas: tuple[Replica, ...]) -> dict[Replica, int]:
    return {r: BEHIND + r.slot if len(replicas) > 1 else PORT for r in replicas}


def _replica(engine: str, serve_args: ServeArgs, replica: Replica, port: int) -> list[str]:
    """Return the commands of one replica; later hosts share one, with `$NODE_RANK`."""
    writer = WRITERS[engine]
    head = _visible(writer.server(serve_args, replica, 0, port), engine, serve_args, replica, 0)
    lines = comments(head.notes)
    if "$NODE_ADDRESS" in head.environment.values():
        lines.append("# NODE_ADDRESS: address of this host")
    if replica.nodes == 1 or engine == "trtllm":
        return lines + spoken(head)

    # All hosts after the first run one command that depends only on NODE_RANK.
    worker = _visible(writer.server(serve_args, replica, None, port), engine, serve_args, replica, None)
    worker_ranks = in_words(range(1, replica.nodes))
    device_notes = [f"# DEVICES: chips of this host: {_devices(replica)}"] if "$DEVICES" in worker.environment.values() else []
    return [
        *lines,
        "# on the first host, whose address is HEAD_ADDRESS on all hosts:",
        *spoken(head),
        f"# on the other host{'s' if replica.nodes > 2 else ''}, with NODE_RANK={worker_ranks}:",
        *device_notes,
        *spoken(worker),
    ]


def _visible(command: Command, engine: str, serve_args: ServeArgs, replica: Replica, rank: int | None) -> Command:
    """Return a command that sees only the chips of its replica.

    `rank`: as in the writers' `server`.
    """
    name = VISIBLE.get(serve_args.served.vendor)
    if name is None or replica.chips == serve_args.served.host_chips or (engine == "trtllm" and not replica.is_symmetric):
        return command
    # If all hosts use the same chips, their numbers are in the command; else each host sets DEVICES.
    lists = {
        ",".join(map(str, devices)) for devices in (replica.devices[1:] if rank is None else replica.devices[rank : rank + 1])
    }
    environment = {name: lists.pop() if len(lists) == 1 else "$DEVICES", **command.environment}
    return replace(command, environment=environment)


def _devices(replica: Replica) -> str:
    """Return the chips of a replica on each host after the first, in words."""
    lists: dict[tuple[int, ...], list[int]] = {}
    for rank, devices in enumerate(replica.devices[1:], 1):
        lists.setdefault(devices, []).append(rank)
    return "; ".join(f"{','.join(map(str, devices))} for NODE_RANK {in_words(ranks)}" for devices, ranks in lists.items())


def _other_replicas_text(pool_replicas: list[Replica], ports: Mapping[Replica, int]) -> str:
    """Return how the other replicas of a pool differ from the first, in words."""
    last = len(pool_replicas) - 1
    which = "replica 1" if last == 1 else f"replicas 1 to {last}"
    hosts = sorted({host for r in pool_replicas[1:] for host in r.hosts})
    if hosts == list(pool_replicas[0].hosts):
        difference = f"on other chips of the host{'s' if pool_replicas[0].nodes > 1 else ''}" + (
            f", port {ports[pool_replicas[1]]}" if last == 1 else f", ports up to {ports[pool_replicas[-1]]}"
        )
    else:
        difference = f"on hosts {in_words(hosts)}" if len(hosts) > 1 else "on another host"
        difference += ", some with other chips and ports" if len({(r.devices, ports[r]) for r in pool_replicas}) > 1 else ""
    return f"{which}: the same command {difference}; --launch-dir writes one script per host"


def _router(plan: Plan, engine: str, replicas: tuple[Replica, ...], ports: dict[Replica, int]) -> list[str]:
    command = WRITERS[engine].router(plan, replicas, ports, PORT)
    names = [*dict.fromkeys(re.findall(r"\$(\w+_ADDRESS)", " ".join(command.words)))]
    shown_names = ", ".join(names if len(names) <= SHOWN_ADDRESSES else [names[0], "...", names[-1]])
    return [
        f"# router; clients send requests to port {PORT}",
        *([f"# {shown_names}: address of the first host of each replica"] if names else []),
        *comments(command.notes),
        *spoken(command),
    ]


# --- a folder -----------------------------------------------------------------------------------------------------------


def launch_files(plan: Plan, engine: str) -> dict[str, str]:
    """Return the files that start a plan: scripts, a router, a manifest and a README.

    There is one script per host of each replica. An engine that does not run on the plan's chips has only a README.

    Args:
        plan: The plan.
        engine: Engine: vllm, sglang or trtllm.

    Returns:
        Texts by file name; names that end in .sh must become executable.
    """
    writer = WRITERS[engine]
    if reason := writer.refused(plan.served):
        return {"README.md": f"# {escape_markdown(f'{plan.model} on {plan.system}')}\n\n{escape_markdown(reason)}.\n"}
    replicas = place_replicas(plan)
    ports = _ports(replicas)
    pools = {pool.role: serve_args_for_pool(plan, pool) for pool in plan.pools}
    files = {"addresses.sh": _addresses(replicas)}
    for replica in replicas:
        # One command of TensorRT-LLM starts all hosts of a replica.
        ranks = 1 if engine == "trtllm" else replica.nodes
        for rank in range(ranks):
            pool_args = pools[replica.role]
            command = _visible(writer.server(pool_args, replica, rank, ports[replica]), engine, pool_args, replica, rank)
            name = f"{replica.role}-{replica.number}" + (f"-node-{rank}" if ranks > 1 else "") + ".sh"
            files[name] = _script(command, _address_lines(replica, rank, command))
    if len(replicas) > 1:
        files["router.sh"] = _script(writer.router(plan, replicas, ports, PORT), ())
    if plan.served.vendor == NVIDIA and pyyaml_installed():
        files["dynamo.yaml"] = manifest(plan, engine, replicas, pools)
    files["README.md"] = _readme(plan, engine, replicas, files)
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
    needed = (
        [': "${CHECKPOINT:?must be the id or the folder of the weights}"']
        if any(word.endswith(VARIABLE) for word in command.words)
        else []
    )

    # A missing checkpoint ends the script with a message before the engine starts.
    lines = [
        "#!/bin/sh",
        *comments(command.notes),
        "set -eu",
        'cd "$(dirname "$0")"',
        ". ./addresses.sh",
        *addresses,
        *needed,
        *(f"export {name}={value}" for name, value in command.environment.items()),
        *files_written(command),
        *wrapped((f"exec {command.words[0]}", *command.words[1:])),
    ]
    return "\n".join(lines) + "\n"


def _addresses(replicas: tuple[Replica, ...]) -> str:
    """Return the file with the addresses of the hosts."""
    hosts = sorted({host for r in replicas for host in r.hosts})
    lines = ["# Addresses of the hosts: edit them here, or set them in the environment."]
    lines += [f': "${{HOST_{host}:=host-{host}}}"' for host in hosts]
    lines += [f"{r.variable}=$HOST_{r.hosts[0]}" for r in replicas]
    return "\n".join(lines) + "\n"


def _readme(plan: Plan, engine: str, replicas: tuple[Replica, ...], files: Mapping[str, str]) -> str:
    """Return the README: the files of the folder, and the order of the start."""
    rows = []
    for r in replicas:
        name = f"{r.role}-{r.number}"
        scripts = [n for n in files if n in (f"{name}.sh",) or n.startswith(f"{name}-node-")]
        hosts, chips = [str(host) for host in r.hosts], [in_words(devices) for devices in r.devices]
        if len(scripts) < r.nodes:
            hosts, chips = [", ".join(hosts)], ["; ".join(chips if not r.is_symmetric else chips[:1])]
        rows += [f"| `{script}` | {host} | {devices} |" for script, host, devices in zip(scripts, hosts, chips, strict=True)]
    first = "; start a script for several hosts only on the first one" if engine == "trtllm" else ""

    steps = [
        "Write the addresses of the hosts into `addresses.sh`, and copy this folder to each host.",
        f"Start the scripts of each host{first}:",
    ]
    after = ["", f"| script | host | chips |\n|---|---|---|\n{chr(10).join(rows)}", ""]
    if "router.sh" in files:
        after.append(f"When all servers answer, start `router.sh` on any host; clients send requests to its port {PORT}.")
    else:
        after.append(f"Clients send requests to port {PORT} of the first host.")
    if "dynamo.yaml" in files:
        after.append("On Kubernetes with NVIDIA Dynamo's operator, run `kubectl apply -f dynamo.yaml` instead of the scripts.")
    elif plan.served.vendor == NVIDIA:
        after.append(
            "A Kubernetes manifest needs PyYAML: run `pip install '.[launch]'` in a checkout, or "
            "`pip install 'steptime[launch]'`, then write this folder again."
        )
    title = f"# {escape_markdown(f'{plan.model} on {plan.chips} chips of {plan.system}')}, {NAMES[engine]}"
    about = [f"{plan.layout_text}.", *(f"\nNote: {escape_markdown(note)}." for note in _before(plan, engine, replicas))]
    text = [title, "", *about, "", *(f"{n}. {step}" for n, step in enumerate(steps, 1)), *after, TRUST]
    return "\n".join(text) + "\n"
