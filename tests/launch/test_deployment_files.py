"""Values of llm-d's chart, entries of LiteLLM and rows of FOCUS: read back, and held to the fields of their schemas.

`tests/golden/deployment_fields` has the fields of the chart's values.schema.json and of FOCUS' columns.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import steptime as st
from steptime.errors import replace_controls
from steptime.launch.deployment_files import FOCUS_COLUMNS, focus_rows, label, litellm_entries
from steptime.launch.launch_commands import ENGINES, launch_files
from tests.conftest import CHOICE_ALONE
from tests.launch.conftest import pool
from tests.launch.draws import plans
from tests.launch.reading import known

FIELDS = Path(__file__).parents[1] / "golden" / "deployment_fields"
CHART = json.loads((FIELDS / "llmd_modelservice.json").read_text(encoding="utf-8"))["values"]
COLUMNS = json.loads((FIELDS / "focus.json").read_text(encoding="utf-8"))["columns"]
HUB = "meta-llama/Llama-3.1-8B"
SPLIT = (pool("prefill", batch=4, chunk=0, tp=2, replicas=2), pool("decode", batch=20, chunk=0, tp=4))
HOSTILE = [
    "a: {b: c}\n- d",
    "{{ .Values.x }}",
    "'\"!!python/object:os.system",
    "=HYPERLINK(1)",
    "x\n---\nkind: Pod",
    "&a *a <<: *a",
]


def unknown_keys(values: Any, fields: Any, path: str = "") -> list[str]:
    """Keys that the schema does not have; below a leaf of it anything goes."""
    if not isinstance(values, dict) or not fields:
        return []
    extra = [f"{path}{key}" for key in values if key not in fields and not path.endswith("labels.")]
    return extra + [text for key in values for text in unknown_keys(values[key], fields.get(key), f"{path}{key}.")]


def llmd(plan: st.Plan) -> dict[str, Any]:
    return yaml.safe_load(launch_files(plan, "vllm")["llm-d-values.yaml"])


def test_one_pool_is_the_decode_pool_of_llm_d(build):
    values = llmd(build(pool(tp=2, dp=2, ep=4, replicas=2), checkpoint=HUB))
    assert unknown_keys(values, CHART) == []
    assert values["prefill"] == {"create": False}
    assert values["routing"]["proxy"]["enabled"] is False
    decode = values["decode"]
    assert (decode["replicas"], decode["parallelism"]) == (2, {"tensor": 2, "data": 2, "dataLocal": 2, "workers": 1})
    (container,) = decode["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert container["modelCommand"] == "vllmServe"
    assert "--enable-expert-parallel" in container["args"]
    assert values["modelArtifacts"]["uri"] == f"hf://{HUB}"


def test_two_pools_have_a_proxy_and_pass_caches_on(build):
    values = llmd(build(*SPLIT, checkpoint=HUB))
    assert unknown_keys(values, CHART) == []
    assert values["routing"]["proxy"] == {"enabled": True, "targetPort": 8200, "secure": False}
    assert [values[role]["replicas"] for role in ("prefill", "decode")] == [2, 1]
    for role, port in (("prefill", 8000), ("decode", 8200)):
        (container,) = values[role]["containers"]
        assert container["ports"][0]["containerPort"] == port
        transfer = json.loads(container["args"][container["args"].index("--kv-transfer-config") + 1])
        assert transfer["kv_connector"] == "NixlConnector"
        names = {variable["name"] for variable in container["env"]}
        assert {"VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"} <= names


@pytest.mark.thorough
def test_values_keep_the_flags_of_vllm_but_those_of_the_chart():
    allowed, seen = known("vllm serve")[0], 0
    for drawn, *_ in plans(12):
        made = replace(drawn, served=replace(drawn.served, checkpoint=HUB))
        text = launch_files(made, "vllm").get("llm-d-values.yaml")
        if text is None:
            continue
        seen += 1
        values = yaml.safe_load(text)
        assert unknown_keys(values, CHART) == []
        for role in ("prefill", "decode"):
            for container in values[role].get("containers", ()):
                flags = {word for word in container["args"] if word.startswith("--")}
                assert flags <= allowed
                chart = {"--port", "--tensor-parallel-size", "--data-parallel-size", "--data-parallel-size-local"}
                assert not flags & chart
                sizes = values[role]["parallelism"]
                gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
                assert gpus % (sizes["tensor"] * sizes["dataLocal"]) == 0
    assert seen > 3


@pytest.mark.parametrize(
    ("served", "says"),
    [
        ({"checkpoint": "/models/mine"}, "takes the weights from a repository of Hugging Face"),
        ({"checkpoint": HUB, "host_chips": 2}, "a replica spans hosts"),
        ({"checkpoint": "org/{{ .Values.x }}"}, "takes the weights from a repository"),
    ],
)
def test_plans_that_the_chart_does_not_deploy_say_why(build, served, says):
    files = launch_files(build(pool(tp=4), **served), "vllm")
    assert "llm-d-values.yaml" not in files
    assert says in files["README.md"]


@pytest.mark.parametrize("engine", ENGINES)
def test_litellm_has_costs_of_input_and_output(build, engine):
    plan = replace(
        build(pool(tp=2), checkpoint=HUB), requests_per_second=2.5, prefill_usd_per_million_tokens=0.1,
        decode_usd_per_million_tokens=0.9,
    )  # fmt: skip
    (entry,) = yaml.safe_load(launch_files(plan, engine)["litellm.yaml"])["model_list"]
    provider = "hosted_vllm" if engine == "vllm" else "openai"
    assert entry["litellm_params"]["model"] == f"{provider}/{HUB}"
    assert entry["litellm_params"]["api_base"] == "os.environ/STEPTIME_API_BASE"
    assert (entry["litellm_params"]["rpm"], entry["model_info"]["mode"]) == (150, "chat")
    assert entry["model_info"]["input_cost_per_token"] == pytest.approx(1e-7)
    assert entry["model_info"]["output_cost_per_token"] == pytest.approx(9e-7)


def test_costs_per_token_add_up_to_the_rent_of_busy_chips(closed_forms):
    work, slo = st.Workload(input_tokens=1000, output_tokens=200), st.Slo(tpot=0.02)
    plan = st.plan("llama-3.1-8b", "hgx-h100", work, slo, **CHOICE_ALONE)
    (entry,) = litellm_entries(plan, "vllm")["model_list"]
    info, rate = entry["model_info"], plan.requests_per_second
    per_second = rate * (1000 * info["input_cost_per_token"] + 200 * info["output_cost_per_token"])
    assert per_second == pytest.approx(plan.usd_per_second, rel=0.1)


def test_focus_columns_are_those_of_the_specification(build):
    mandatory = {name for name, column in COLUMNS.items() if column["level"] == "Mandatory"}
    assert mandatory <= set(FOCUS_COLUMNS) <= set(COLUMNS)
    rent = st.load_system("hgx-h100").rent
    text = focus_rows(replace(build(pool(tp=8)), rent=rent), datetime.date(2026, 12, 3))
    assert replace_controls(text) == text
    (row,) = csv.DictReader(io.StringIO(text))
    for name, value in row.items():
        column = COLUMNS[name]
        assert value or column["null"], name
        if value and "allowed" in column:
            assert value in column["allowed"], name
        if value and column["type"] == "Decimal":
            assert float(value) >= 0
        if value and column["type"] == "Date/Time":
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value)
    # An hour of eight chips.
    assert float(row["BilledCost"]) == pytest.approx(8 * float(rent.typical) * 3600)
    assert float(row["BilledCost"]) == pytest.approx(float(row["ListUnitPrice"]) * float(row["PricingQuantity"]), rel=1e-6)
    assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
    assert json.loads(row["Tags"])["model"] == "m"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_outside_stay_data(build, name):
    plan = replace(build(pool(tp=8), checkpoint=name), model=name, rent=st.load_system("hgx-h100").rent)
    files = launch_files(plan, "vllm")
    (entry,) = yaml.safe_load(files["litellm.yaml"])["model_list"]
    assert (entry["model_name"], entry["litellm_params"]["model"]) == (name, f"hosted_vllm/{name}")
    assert "llm-d-values.yaml" not in files
    (row,) = csv.DictReader(io.StringIO(files["focus.csv"]))
    assert not row["ResourceName"].startswith("=")
    assert json.loads(row["Tags"])["model"] == name
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", label(name))
