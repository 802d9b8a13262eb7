"""Tools of the Model Context Protocol: schemas of the declarations, ranges and grades, small answers, odd calls."""

from __future__ import annotations

import json
import os
import random
import shlex
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from typer.testing import CliRunner

from steptime import ask
from steptime.catalog.data_files import files
from steptime.cli.main import app_for
from steptime.errors import InputError, UnknownName
from steptime.questions.registry import HOMES, find_question
from steptime.web import mcp_server
from steptime.web.mcp_server import KEPT_ANSWERS, Answers, call, fit
from steptime.web.mcp_tools import SHORT, input_schema, questions, reply, tools
from steptime.web.question_requests import check_request
from tests.conftest import each

STEP = {"model": "llama-3.1-8b", "system": "hgx-h100", "batch": 64}
RUNS = (
    "id,model,system,engine,input_tokens,output_tokens,concurrency,tp,pp,dp,ep,weight_dtype,expert_dtype,tpot_s,ttft_s\n"
    "mine,llama-3.1-8b,hgx-h100,vllm,1024,1024,64,1,1,1,1,bf16,,0.0125,0.4\n"
)
# One cheap call of each tool.
CALLS: dict[str, dict[str, Any]] = {
    "step": STEP,
    "plan": {"model": "llama-3.1-8b", "system": "hgx-h100", "input": "1k", "output": 256, "speed": 40, "chips": 2},
    "compare": {"models": ["llama-3.1-8b"], "systems": ["hgx-h100"], "speed": 40, "chips": 2},
    "simulate": {"model": "llama-3.1-8b", "system": "hgx-h100", "rate": 5, "requests": 200},
    "train": {"model": "llama-3-8b", "system": "hgx-h100", "chips": 64, "batch": 256},
    "budget": {"compute": 1e24},
    "laws": {"params": "70B", "tokens": "15T"},
    "rl": {
        "model": "qwen3-30b-a3b",
        "system": "hgx-h100",
        "chips": 32,
        "tp": 2,
        "rollouts": 512,
        "output": 800,
        "longest": 1600,
    },
    "prices": {"model": "deepseek-v3", "chips": "8"},
    "reversible": {"model": "llama-3.1-8b", "system": "hgx-h100"},
    "roofline": {"model": "deepseek-v3", "system": "gb200-nvl72"},
    "context": {"model": "llama-3.3-70b", "system": "hgx-h200", "speed": 30},
    "lecture": {"section": 3},
    "validate": {"runs": RUNS},
    "catalogue": {"kind": "models", "like": "qwen3"},
}


def answered(tool: str, **arguments: Any) -> dict[str, Any]:
    words, is_error = call(tool, arguments)
    assert not is_error, words
    return json.loads(words)  # type: ignore[no-any-return]


def refused(tool: str, **arguments: Any) -> dict[str, Any]:
    words, is_error = call(tool, arguments)
    assert is_error, words
    assert "Traceback" not in words
    return json.loads(words)  # type: ignore[no-any-return]


# --- schemas -------------------------------------------------------------------------------------------------------------


def test_each_question_of_the_registry_is_a_tool():
    assert set(HOMES) | {"lecture", "validate", "catalogue"} == {tool["name"] for tool in tools()}
    assert set(CALLS) == set(questions())


def test_a_schema_has_the_inputs_of_the_declaration_except_files():
    declared = find_question("plan").inputs
    schema = input_schema(find_question("plan"))
    files_and_figures = {"catalog", "trace", "within"} | {name for name in declared if "." in name}
    assert set(schema["properties"]) == set(declared) - files_and_figures | {"figures", "full"}
    assert schema["required"] == ["model", "system"]
    assert schema["properties"]["input"] == {
        "type": ["integer", "string"], "description": "Mean prompt tokens per request.", "minimum": 1,
        "maximum": declared["input"].maximum, "default": 1024,
    }  # fmt: skip
    assert schema["properties"]["percentile"]["enum"] == ["mean", "p50", "p90", "p95", "p99"]


def test_schemas_are_valid_and_accept_the_calls():
    jsonschema = pytest.importorskip("jsonschema")
    for tool in tools():
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
        jsonschema.validate(CALLS[tool["name"]], tool["inputSchema"])


# --- answers -------------------------------------------------------------------------------------------------------------


def test_a_step_has_the_figures_of_the_question_with_unit_range_and_grade():
    answer, expected = answered("step", **STEP), ask("step", **STEP)
    figure = answer["figures"]["time"]
    assert figure["value"] == pytest.approx(float(expected["time"]), rel=1e-5)
    assert figure["range"] == pytest.approx([float(expected["time_low"]), float(expected["time_high"])], rel=1e-5)
    assert figure["unit"] == "s"
    cost = answer["figures"]["usd_per_million_tokens"]
    assert (cost["unit"], cost["grade"]) == ("USD", answer["basis"]["rent"]["grade"])
    assert answer["basis"]["rent"]["unit"] == "USD per chip-hour"


@pytest.mark.thorough
def test_a_step_that_does_not_fit_says_so_first():
    """The answer was "Step: 279 ms", with the memory as one of five figures."""
    answer = answered("step", model="llama-3.1-405b", system="hgx-h100", tp=1)["answer"]
    assert answer.startswith("Does not fit: needs 10.3 times the memory")
    assert answered("step", model="llama-3.1-8b", system="hgx-h100")["answer"].startswith("Step: ")


def test_a_plan_grades_its_times_by_the_evidence_for_the_layout():
    answer = answered("plan", **CALLS["plan"])
    assert answer["basis"]["layout_evidence"] == answer["figures"]["ttft"]["grade"] == "measured"
    low, high = answer["figures"]["usd_per_million_output_tokens"]["range"]
    assert low < answer["figures"]["usd_per_million_output_tokens"]["value"] < high


def test_a_plan_without_an_answer_says_why():
    answer = answered("plan", model="llama-3.1-8b", system="hgx-h100", speed=100_000)
    assert "answer" in answer
    assert "usd_per_million_output_tokens" not in answer["figures"]


def test_a_step_of_rl_has_its_range():
    words = {"model": "qwen3-30b-a3b", "system": "hgx-h100", "chips": 32, "rollouts": 256, "longest": 4096, "tp": 2}
    figures = answered("rl", **words)["figures"]
    value, (low, high) = figures["step_time"]["value"], figures["step_time"]["range"]
    assert low < value < high
    assert high / low == pytest.approx(2.347 / 0.862, rel=1e-3)
    assert "step_time_low" not in figures


def test_the_ideal_engine_has_no_range():
    assert "range" not in answered("step", **STEP, engine="ideal")["figures"]["time"]


def test_the_lecture_grades_numbers_by_their_verdict():
    numbers = answered("lecture", section=3)["numbers"]
    assert numbers[0]["grade"] == "holds"
    assert numbers[0]["computed"] == pytest.approx([295.358])
    assert len(answered("lecture")["rows"]) == 18


def test_validate_compares_pasted_runs():
    result = reply("validate", {"runs": RUNS})["result"]
    assert result["tpot"]["all"]["runs"] == 1


def test_figures_of_the_machine_change_the_answer():
    faster = answered("step", **STEP, figures={"chip.hbm.bandwidth": "6.7 TB/s"}, engine="ideal")
    assert faster["figures"]["time"]["value"] < answered("step", **STEP, engine="ideal")["figures"]["time"]["value"]


def test_a_pasted_config_is_the_model():
    config = json.loads(files("models")["meta-llama/Llama-3.1-8B"].read_text(encoding="utf-8"))["config"]
    by_name = answered("step", **STEP)["figures"]["time"]["value"]
    for pasted in (config, json.dumps(config)):
        assert answered("step", **{**STEP, "model": pasted})["figures"]["time"]["value"] == pytest.approx(by_name, rel=1e-3)
    narrower = answered("step", **{**STEP, "model": config}, weights="fp8")["figures"]["time"]["value"]
    assert narrower == pytest.approx(answered("step", **STEP, weights="fp8")["figures"]["time"]["value"], rel=1e-3)


def test_the_command_gives_the_same_figure():
    answer = answered("step", **STEP, context="8k", figures={"chip.hbm.bandwidth": "6 TB/s"})
    words = shlex.split(answer["command"])
    done = CliRunner().invoke(app_for([words[1]]), [*words[1:], "--json"])
    assert json.loads(done.stdout)["total_s"] == pytest.approx(answer["figures"]["time"]["value"], rel=1e-5)


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param(name, marks=pytest.mark.thorough) if name in ("plan", "roofline") else name
        for name in CALLS
        if name not in ("compare", "prices", "context", "rl")
    ],
)
def test_a_short_answer_is_below_its_limit_and_names_the_full_one(tool: str):
    kept = Answers()
    words, is_error = call(tool, CALLS[tool], kept.keep)
    assert not is_error, words
    assert len(words.encode()) <= SHORT
    full, _ = call(tool, {**CALLS[tool], "full": True})
    brief = json.loads(words)
    assert len(full) >= len(words) - 60
    if "more" in brief:
        assert json.loads(kept.resource(brief["more"])).get("figures") == json.loads(full).get("figures")


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["compare", "prices", "context", "rl"])
def test_a_slow_tool_answers_below_its_limit(tool: str):
    words, is_error = call(tool, CALLS[tool])
    assert not is_error, words
    assert len(words.encode()) <= SHORT


def test_long_lists_lose_their_end_and_count_it():
    answer = json.loads(fit({"question": "catalogue", "names": [f"model {number}" for number in range(900)]}, SHORT))
    assert len(answer["names"]) + answer["left_out"]["names"] == 900
    assert answer["names"][0] == "model 0"


def test_only_the_newest_answers_are_kept():
    kept = Answers()
    places = [kept.keep(str(number)) for number in range(KEPT_ANSWERS + 1)]
    assert kept.resource(places[-1]) == str(KEPT_ANSWERS)
    with pytest.raises(UnknownName):
        kept.resource(places[0])


# --- wrong input ---------------------------------------------------------------------------------------------------------


def test_a_wrong_name_gets_the_nearest():
    assert "gb200-nvl72" in refused("step", model="llama-3.1-8b", system="gb200-nvl")["nearest"]
    assert "step" in refused("stepp")["nearest"]
    assert "batch" in refused("step", **STEP, bach=3)["nearest"]


@each(
    "tool, arguments, part",
    [
        ("step", {"model": "llama-3.1-8b"}, "system"),
        ("step", {**STEP, "batch": -1}, "batch"),
        ("step", {**STEP, "batch": True}, "batch"),
        ("step", {**STEP, "full": "yes"}, "full"),
        ("step", {**STEP, "figures": [1]}, "figures"),
        ("step", {**STEP, "figures": {"chip.hbm.bandwith": 1}}, "bandwith"),
        ("step", {**STEP, "model": "{"}, "JSON"),
        ("step", {**STEP, "model": {"model_type": "nothing"}}, "nothing"),
        ("simulate", {**CALLS["simulate"], "requests": 10**9}, "requests"),
        ("lecture", {"section": 99}, "99"),
        ("lecture", {"section": 1, "card": 1}, "card"),
        ("catalogue", {"kind": "cars"}, "cars"),
        ("catalogue", {"kind": "models", "like": "zzzzzz"}, "zzzzzz"),
        ("validate", {"runs": "id\n1"}, "columns"),
        ("validate", {"runs": 3}, "runs"),
        ("validate", {"runs": RUNS.replace("hgx-h100", "hgx-h1000")}, "hgx-h1000"),
    ],
)  # fmt: skip
def test_wrong_input_is_an_error_that_names_its_cause(tool: str, arguments: dict[str, Any], part: str):
    problem = refused(tool, **arguments)
    assert problem["error"] != "Failure"
    assert part in problem["message"]


@each(
    "tool, arguments",
    [
        ("step", {**STEP, "model": "./config.json"}),
        ("step", {**STEP, "model": "transformers:/tmp"}),
        ("step", {**STEP, "model": "some-org/not-in-the-catalogue"}),
        ("step", {**STEP, "system": "/etc/passwd"}),
        ("step", {**STEP, "catalog": "/tmp"}),
        ("step", {**STEP, "engine": "mine.toml"}),
        ("step", {**STEP, "drafts": 3, "draft_model": "some-org/not-in-the-catalogue"}),
        ("plan", {**CALLS["plan"], "trace": "/etc/passwd"}),
        ("laws", {"name": "/tmp/law.toml", "params": "7B", "tokens": "1T"}),
        ("compare", {"models": ["llama-3.1-8b"], "systems": ["../mine.toml"]}),
        ("validate", {"runs": RUNS.replace("llama-3.1-8b", "/etc/passwd")}),
    ],
)
def test_no_tool_opens_a_file_of_the_caller(tool: str, arguments: dict[str, Any]):
    assert refused(tool, **arguments)["error"] in ("UnknownName", "RangeError", "InputError")


def test_a_local_folder_is_no_draft_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    with pytest.raises(InputError):
        check_request(find_question("step"), {**STEP, "drafts": 3, "draft_model": "small"})


ODD = [
    None, True, False, 0, -1, 1, 2.5, 1e308, -1e308, float("nan"), float("inf"), 10**40, "", " ", "8k", "-5", "nan", "inf",
    "1e400", "a" * 5000, "\x00\x1b[2J", "../../etc/passwd", "llama-3.1-8b", "hgx-h100", "gb200-nvl72", "ideal", "vllm", "fp8",
    "{}", "[1]", '{"model_type": "llama"}', [], ["x"], [1, 2], {}, {"a": {"b": []}}, {"config": 3},
    {"model_type": "llama", "hidden_size": -1}, "1:2:3", "=1+1", "p90", "any", "64x64", "0", "١٢", "1TB", "3 apples",
]  # fmt: skip


def plausible(draw: random.Random, schema: dict[str, Any]) -> Any:
    """Draw a value of the right type, often at a bound, so that a call gets past the check of types."""
    kinds = schema.get("type", "string")
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if kinds == "boolean":
        return draw.choice((True, False))
    bounds = [schema[bound] for bound in ("minimum", "maximum") if bound in schema]
    if "integer" in kinds:
        return draw.choice([1, 2, 3, 8, 64, "1k", 1000, *bounds])
    return draw.choice([0.0, 0.3, 1, 2.5, 10, 100.0, "0.5", *bounds]) if "number" in kinds else draw.choice(ODD)


@pytest.mark.slow
def test_a_thousand_odd_calls_get_an_answer_or_a_message():
    """Each call changes some arguments of a valid call, into plausible or odd values; none of them fails inside."""
    draw = random.Random(7)
    cheap = [name for name in CALLS if name not in ("plan", "compare", "prices", "context", "rl")]
    failures, errors = [], 0
    for number in range(1_000):
        # One call in forty is of a slow tool.
        tool = draw.choice(list(CALLS)) if number % 40 == 0 else draw.choice(cheap)
        properties = {**input_schema(questions()[tool])["properties"], "nothing": {}, "catalog": {}, "trace": {}}
        is_plausible = number % 3 > 0
        names = list(properties)[: -3 if is_plausible else None]
        arguments = dict(CALLS[tool])
        for name in draw.sample(names, draw.choice((1, 1, 2))):
            arguments[name] = plausible(draw, properties[name]) if is_plausible else draw.choice(ODD)
        words, is_error = call(draw.choice((tool,) * 40 + ("", "nothing")), arguments)
        errors += is_error
        limit = SHORT if arguments.get("full") is not True else mcp_server.LONG
        if json.loads(words).get("error") == "Failure" or "Traceback" in words or len(words.encode()) > limit:
            failures.append((tool, arguments, words[:300]))
    assert failures == []
    assert 300 < errors < 800


# --- a client of the SDK -------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PYTHONPATH", "NUMBA_CACHE_DIR", "HOME", "PATH") if name in os.environ}


@pytest.mark.thorough
def test_the_sdk_lists_and_calls_tools_over_standard_input_and_output():
    asyncio_run(_talk, ["step", "lecture", "catalogue", "laws"])


@pytest.mark.slow
def test_the_sdk_calls_every_tool():
    asyncio_run(_talk, list(CALLS))


def asyncio_run(function: Any, *arguments: Any) -> None:
    pytest.importorskip("mcp")
    import anyio

    anyio.run(function, *arguments)


async def _talk(names: list[str]) -> None:
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    process = StdioServerParameters(command=sys.executable, args=["-m", "steptime", "mcp"], env=environment())
    async with Client(stdio_client(process), read_timeout_seconds=600) as client:
        await _use(client, names)


async def _use(client: Any, names: list[str]) -> None:
    listed = await client.list_tools()
    assert {tool.name for tool in listed.tools} == set(CALLS)
    for name in names:
        result = await client.call_tool(name, CALLS[name])
        words = result.content[0].text
        assert not result.is_error, words
        assert len(words.encode()) <= SHORT
        if more := json.loads(words).get("more"):
            kept = await client.read_resource(more)
            assert json.loads(kept.contents[0].text)["question"] == name
    wrong = await client.call_tool("step", {"model": "lama-3.1-8b", "system": "hgx-h100"})
    assert wrong.is_error
    assert "meta-llama/Llama-3.1-8B" in json.loads(wrong.content[0].text)["nearest"]
    catalogue = await client.read_resource("steptime://catalogue/systems")
    assert "hgx-h100" in json.loads(catalogue.contents[0].text)["systems"]


@pytest.mark.slow
def test_the_sdk_calls_a_tool_over_loopback_http():
    pytest.importorskip("mcp")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "steptime", "mcp", "--http", str(port)], stderr=subprocess.DEVNULL, env=environment()
    )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        asyncio_run(_talk_http, port)
    finally:
        server.terminate()
        server.wait(10)


async def _talk_http(port: int) -> None:
    import httpx2
    from mcp.client.client import Client

    async with Client(f"http://127.0.0.1:{port}/mcp") as client:
        await _use(client, ["step", "lecture"])
    async with httpx2.AsyncClient() as browser:
        # A page of another site, whose name was bound to loopback, is refused.
        answer = await browser.post(f"http://127.0.0.1:{port}/mcp", json={}, headers={"host": "evil.example"})
        assert answer.status_code in (403, 421)


def test_a_missing_sdk_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(app_for(["mcp"]), ["mcp"])
    assert isinstance(done.exception, InputError)
    assert "steptime[mcp]" in str(done.exception)
    assert "pip install '.[mcp]'" in str(done.exception)
