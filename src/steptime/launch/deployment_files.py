"""Deployment files of a plan: values of llm-d's Helm chart, model entries of LiteLLM, and cost rows of FOCUS.

- **llm-d**: values of the Helm chart llm-d-modelservice v0.4.12, which starts vLLM. The chart writes the flags of ports,
  parallel sizes and names itself: https://github.com/llm-d-incubation/llm-d-modelservice (`values.yaml`, `values.schema.json`,
  `templates/_helpers.tpl`).
- **LiteLLM**: `model_list` of its proxy, with the costs per token of the plan, https://docs.litellm.ai/docs/proxy/configs.
- **FOCUS 1.2**: the rent of an hour as rows of a FinOps Open Cost and Usage Specification data set,
  https://github.com/FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec/tree/v1.2/specification/columns.

Values are data that PyYAML and `csv` write: no text of a plan is pasted into a template. The chart renders some values as
templates itself; a name with braces therefore has no values.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from steptime.errors import safe_cell
from steptime.launch import vllm
from steptime.launch.host_placement import Replica
from steptime.launch.serve_args import NVIDIA, ServeArgs
from steptime.planning.plan_result import Plan
from steptime.units import MILLION

LLMD_FILE, LITELLM_FILE, FOCUS_FILE = "llm-d-values.yaml", "litellm.yaml", "focus.csv"
# Image and ports of the chart's examples.
LLMD_IMAGE: Final = "ghcr.io/llm-d/llm-d-cuda:latest"
CLIENT_PORT, BEHIND_PROXY, NIXL_PORT = 8000, 8200, 5600
# Flags that the chart writes.
CHART_FLAGS: Final = (
    "--port", "--host", "--tensor-parallel-size", "--data-parallel-size", "--data-parallel-size-local", "--served-model-name",
)  # fmt: skip
# A repository of the Hugging Face hub. Braces would be a template of the chart.
HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
GIBIBYTE: Final = 2**30
# Room in the volume of the weights over their size.
VOLUME_ROOM: Final = 1.2
# Providers of LiteLLM by engine; the address comes from the environment of the proxy.
PROVIDERS: Final = {"vllm": "hosted_vllm", "sglang": "openai", "trtllm": "openai"}
ADDRESS_VARIABLE: Final = "os.environ/STEPTIME_API_BASE"
SECONDS_PER_HOUR: Final = 3600.0
FOCUS_COLUMNS: Final = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName",
    "ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "Tags",
)  # fmt: skip


def llmd_refusal(plan: Plan, replicas: tuple[Replica, ...]) -> str:
    """Return why a plan has no values for llm-d's chart; "" if it has.

    Args:
        plan: The plan.
        replicas: Its replicas.

    Returns:
        The reason, in words.
    """
    if plan.served.vendor != NVIDIA:
        return "llm-d's image of vLLM runs on NVIDIA GPUs"
    if not HUB_NAME.fullmatch(plan.served.checkpoint):
        return "llm-d's chart takes the weights from a repository of Hugging Face"
    if any(replica.nodes > 1 for replica in replicas):
        return "a replica spans hosts, whose ranks llm-d's chart does not number"
    return ""


def llmd_values(plan: Plan, replicas: tuple[Replica, ...], pools: Mapping[str, ServeArgs]) -> dict[str, Any]:
    """Return values of the chart llm-d-modelservice.

    Args:
        plan: A plan without `llmd_refusal`.
        replicas: Its replicas.
        pools: Requirements of the pools by role.

    Returns:
        The values.
    """
    served, is_split = plan.served, len(pools) > 1
    # Each chip's weights over all chips of a replica: an upper limit of the checkpoint.
    sizes = [float(pool.memory.weights) * int(pool.layout.chips) for pool in plan.pools]
    gibibytes = max(1, math.ceil(VOLUME_ROOM * max(sizes) / GIBIBYTE))
    values: dict[str, Any] = {
        "multinode": False,
        "modelArtifacts": {
            "name": served.checkpoint,
            "uri": f"hf://{served.checkpoint}",
            "size": f"{gibibytes}Gi",
            "authSecretName": "hf-token-secret",
            "labels": {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": label(served.checkpoint)},
        },
        "accelerator": {"type": "nvidia"},
        "routing": {"servicePort": CLIENT_PORT, "proxy": {"enabled": is_split, "targetPort": BEHIND_PROXY, "secure": False}},
    }
    # One pool that prefills and decodes is the chart's decode pool, without a proxy.
    for section, role in (("decode", "decode" if is_split else "serve"), ("prefill", "prefill")):
        values[section] = _llmd_pool(role, replicas, pools[role]) if role in pools else {"create": False}
    return values


def _llmd_pool(role: str, replicas: tuple[Replica, ...], args: ServeArgs) -> dict[str, Any]:
    """Return the values of one pool."""
    first, *following = (replica for replica in replicas if replica.role == role)
    command = vllm.server(args, first, 0, CLIENT_PORT)
    _, *flags = map(shlex.split, command.words)
    layout, is_split = args.layout, role != "serve"
    environment: list[dict[str, Any]] = [
        {"name": name, "value": value} for name, value in command.environment.items() if "NIXL" not in name
    ]
    if is_split:
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        environment += [
            {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address},
            {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(NIXL_PORT)},
        ]
    port = BEHIND_PROXY if role == "decode" else CLIENT_PORT
    ports = [{"containerPort": port, "name": "metrics", "protocol": "TCP"}]
    gpus = {"nvidia.com/gpu": str(first.chips)}
    container = {
        "name": "vllm",
        "image": LLMD_IMAGE,
        "modelCommand": "vllmServe",
        # Kubernetes expands `$(NAME)`, and reads `$$` as `$`.
        "args": [re.sub(r"\$(?=[$(])", "$$", word) for flag in flags if flag[0] not in CHART_FLAGS for word in flag],
        "env": environment,
        "ports": [*ports, *([{"containerPort": NIXL_PORT, "protocol": "TCP"}] if is_split else [])],
        "resources": {"limits": gpus, "requests": gpus},
        "mountModelVolume": True,
    }
    parallelism = {"tensor": int(layout.tp), "data": int(layout.dp), "dataLocal": int(layout.dp), "workers": 1}
    return {"create": True, "replicas": 1 + len(following), "parallelism": parallelism, "containers": [container]}


def label(name: str) -> str:
    """Return a name as the value of a Kubernetes label: lower case, digits and dashes, at most 50 characters.

    Args:
        name: Any name.

    Returns:
        The label.

    >>> label("meta-llama/Llama-3.1-8B")
    'llama-3-1-8b'
    """
    text = re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].casefold().encode("ascii", "ignore").decode())
    return text.strip("-")[:50].strip("-") or "model"


def litellm_entries(plan: Plan, engine: str) -> dict[str, Any]:
    """Return the configuration of LiteLLM's proxy for a plan.

    The proxy reads the address of the router from the environment variable STEPTIME_API_BASE.

    Args:
        plan: The plan.
        engine: Engine that serves it.

    Returns:
        The configuration: one entry, with the costs per token and the rate of the plan.
    """
    served, tokens = plan.served, plan.workload
    name = served.checkpoint or plan.model
    # Input tokens pay for prefill and output tokens for decode: both add up to the rent of busy chips.
    costs = {
        "input_cost_per_token": plan.prefill_usd_per_million_tokens / MILLION,
        "output_cost_per_token": plan.decode_usd_per_million_tokens / MILLION,
    }
    info: dict[str, Any] = {"mode": "chat", **{key: value for key, value in costs.items() if math.isfinite(value)}}
    if math.isfinite(served.max_context):
        info |= {"max_tokens": int(served.max_context), "max_input_tokens": int(served.max_context)}
    params: dict[str, Any] = {"model": f"{PROVIDERS[engine]}/{name}", "api_base": ADDRESS_VARIABLE, "api_key": "none"}
    if math.isfinite(plan.requests_per_second):
        per_minute = plan.requests_per_second * 60
        params |= {
            "rpm": max(1, math.floor(per_minute)),
            "tpm": max(1, math.floor(per_minute * (tokens.input_tokens + tokens.output_tokens))),
        }
    return {"model_list": [{"model_name": plan.model, "litellm_params": params, "model_info": info}]}


def focus_rows(plan: Plan, day: datetime.date | None = None) -> str:
    """Return the rent of an hour as CSV of FOCUS 1.2: one row per system.

    Args:
        plan: The plan.
        day: Day whose first hour the rows are for; by default today.

    Returns:
        CSV with a header. Costs in USD.
    """
    first = datetime.datetime.combine(day or datetime.datetime.now(datetime.UTC).date(), datetime.time())
    month = first.replace(day=1)
    next_month = (month + datetime.timedelta(days=32)).replace(day=1)
    systems = [(plan.system, plan.chips, plan.rent)]
    if plan.is_pair and plan.prefill_rent is not None:
        systems.append((plan.prefill_system, plan.prefill_chips, plan.prefill_rent))
    out = io.StringIO()
    # Written files have no control characters but the end of a line, so that "\r" would become part of the last column.
    writer = csv.DictWriter(out, FOCUS_COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    for system, chips, rent in systems:
        per_chip_hour = float(rent.typical) * SECONDS_PER_HOUR
        if not math.isfinite(per_chip_hour):
            continue
        cost, owner = f"{per_chip_hour * chips:.6f}", str(rent.owner or "self-hosted")
        row = {
            **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost),
            **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), f"{per_chip_hour:.6f}"),
            **dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), owner),
            **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), f"{chips:.1f}"),
            **dict.fromkeys(("ConsumedUnit", "PricingUnit"), "Chip-Hours"),
            "BillingAccountId": "steptime-plan",
            "BillingCurrency": "USD",
            "BillingPeriodStart": f"{month:%Y-%m-%dT%H:%M:%SZ}",
            "BillingPeriodEnd": f"{next_month:%Y-%m-%dT%H:%M:%SZ}",
            "ChargeCategory": "Usage",
            "ChargeDescription": f"planned rent of {chips} chips of {system} for {plan.model}, {rent.kind or 'unknown'} rate",
            "ChargeFrequency": "Usage-Based",
            "ChargePeriodStart": f"{first:%Y-%m-%dT%H:%M:%SZ}",
            "ChargePeriodEnd": f"{first + datetime.timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}",
            "PricingCategory": "Standard",
            "ResourceId": label(f"{plan.model}-{system}"),
            "ResourceName": plan.model,
            "ResourceType": system,
            "ServiceCategory": "AI and Machine Learning",
            "ServiceName": "LLM serving",
            "ServiceSubcategory": "Generative AI",
            "Tags": json.dumps({"model": plan.model, "system": system, "source": "steptime plan"}),
        }
        writer.writerow({name: safe_cell(value) for name, value in row.items()})
    return out.getvalue()


def write_deployment_files(
    plan: Plan, engine: str, replicas: tuple[Replica, ...], pools: Mapping[str, ServeArgs], *, has_yaml: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the files of this module for a plan, and lines of the README on them.

    Args:
        plan: The plan.
        engine: Engine: vllm, sglang or trtllm.
        replicas: Its replicas.
        pools: Requirements of the pools by role.
        has_yaml: Whether PyYAML is installed.

    Returns:
        Texts by file name, and lines.
    """
    files, lines = {FOCUS_FILE: focus_rows(plan)}, []
    if has_yaml:
        import yaml

        def text(data: dict[str, Any]) -> str:
            # A copy shares no lists, for which YAML would write anchors and aliases.
            return str(yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=False, width=2**20))

        refusal = llmd_refusal(plan, replicas) if engine == "vllm" else "llm-d starts vLLM"
        if not refusal:
            files[LLMD_FILE] = text(llmd_values(plan, replicas, pools))
            chart = "llm-d-modelservice/llm-d-modelservice"
            lines.append(f"On Kubernetes with llm-d: `helm install NAME {chart} --version v0.4.12 -f {LLMD_FILE}`.")
        elif engine == "vllm":
            lines.append(f"There are no values for llm-d: {refusal}.")
        files[LITELLM_FILE] = text(litellm_entries(plan, engine))
        lines.append(f"`{LITELLM_FILE}`: entry for LiteLLM's proxy; STEPTIME_API_BASE is the address of the router with /v1.")
    lines.append(f"`{FOCUS_FILE}`: rent of an hour as rows of FOCUS 1.2.")
    return files, lines
