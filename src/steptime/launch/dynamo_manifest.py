"""A DynamoGraphDeployment of NVIDIA Dynamo 1.6: a frontend, and one component per pool.

The operator of Dynamo gives the hosts of a replica their ranks and addresses, so that the arguments have none. The structure
follows the templates of the released package ai-dynamo, `dynamo/profiler/templates/dgd`, and `dynamo/profiler/utils/config.py`;
for `multinode` see https://docs.nvidia.com/dynamo/kubernetes-deployment/multinode/multinode-deployments.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Final

from steptime.errors import InputError, install_hint
from steptime.launch import sglang, trtllm, vllm
from steptime.launch.host_placement import Replica
from steptime.launch.serve_args import ServeArgs
from steptime.launch.shell_script import Command, comments
from steptime.planning.plan_result import Plan

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
