"""One question through Python, the command line, a sweep and HTTP: the same numbers to 1e-12, and the same refusals."""

from __future__ import annotations

import json
import math
import random

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for
from steptime.errors import InputError
from steptime.questions.declaration import SWITCH, TEXTS
from steptime.questions.registry import HOMES, find_question
from steptime.questions.subject import DESIGN
from steptime.sweeps.sweep_result import column_name
from steptime.web.app import app_for as web_app
from tests.conftest import each, every

MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b", "qwen3-32b")
SYSTEMS = ("hgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72", "mi300x-8")


@pytest.fixture(scope="module")
def client():
    with TestClient(web_app(), base_url="http://127.0.0.1") as opened:
        yield opened


def sizes(draw):
    return {"tp": draw.choice((1, 2, 4, 8))} if draw.random() < 0.7 else {}


def drawn_step(draw):
    values = {"model": draw.choice(MODELS), "system": draw.choice(SYSTEMS), **sizes(draw)}
    values["phase"] = draw.choice(("decode", "prefill", "mixed"))
    if values["phase"] != "prefill":
        values |= {"batch": draw.choice((0, 1, 16, 300)), "context": draw.choice((10, 2048, 8192, 40_000))}
        values |= {"query": draw.choice((1, 4, 5000))} if draw.random() < 0.3 else {}
    if values["phase"] != "decode":
        values |= {"tokens": draw.choice((512, 8192)), "prompts": draw.choice((1, 2, 64)), "prefix": draw.choice((0, 1000))}
    values |= {"chip.hbm.bandwidth": 5e12} if draw.random() < 0.2 else {}
    values |= {"kv": "fp8"} if draw.random() < 0.2 else {}
    values |= {"engine": "ideal"} if draw.random() < 0.2 else {}
    return values | ({"rent": draw.choice(("ondemand", "contract"))} if draw.random() < 0.2 else {})


def drawn_plan(draw):
    values = {"model": draw.choice(MODELS[:3]), "system": draw.choice(SYSTEMS[:3]), "input": draw.choice((256, 2000))}
    values |= {"output": draw.choice((64, 500)), "speed": draw.choice((20, 40, 4000)), "chips": draw.choice((1, 4, 8))}
    values |= draw.choice(({}, {"spread": 0.0}, {"spread": 0.5, "output_spread": 2.0}))
    values |= draw.choice(({}, {"percentile": "mean"}, {"percentile": "p99"}, {"evidence": "any"}, {"evidence": "nearly"}))
    return values | draw.choice(({}, {"ttft": 2.0}, {"mode": "aggregated"}, {"mode": "both"}, {"cached": 0.5}))


def drawn_simulate(draw):
    values = {"model": "llama-3.1-8b", "system": "hgx-h100", "rate": draw.choice((2, 8)), "requests": 200, "seed": 3}
    values |= {
        "input": draw.choice((128, 512)),
        "output": draw.choice((16, 64)),
        "lengths": draw.choice(("fixed", "lognormal")),
    }
    values |= {"speed": 40, "percentile": draw.choice(("mean", "p50", "p90", "p99"))} if draw.random() < 0.5 else {}
    spreads = (
        draw.choice(({}, {"spread": 0.5}, {"spread": 0.5, "output_spread": 0.0})) if values["lengths"] == "lognormal" else {}
    )
    return values | spreads | draw.choice(({}, {"max_num_seqs": 0}))


# Models and chips that are not built; they are no options of a command, but of its sweep.
DESIGNS = (
    {"times.flops": 2.0}, {"arch.kv_heads": 4, "arch.equal": "total"}, {"times.bandwidth": 1.5, "within": "power"},
    {"arch.experts": 8}, {"within": "money"},
)  # fmt: skip


def drawn_train(draw):
    values = {"model": "llama-3-8b", "system": "hgx-h100", "chips": draw.choice((8, 64)), "batch": draw.choice((64, 256))}
    values |= draw.choice(({}, {}, *DESIGNS))
    return values | draw.choice(({"tokens": "1T"}, {"tp": 2}, {"dtype": "fp8"}, {"micro_batch": 0}, {"seq": 8192}))


def drawn_budget(draw):
    values = {"match_quality": draw.choice(("8B@15T", "70B@1T")), "tokens_served": draw.choice(("50M/s", "10T"))}
    values |= {"lifetime": "60d"} if values["tokens_served"] == "50M/s" else {}
    return values | draw.choice(({}, {"eta": 2.0}, {"discard": 0.3}, {"law": ["epoch"]}, {"rl_share": 0.2}))


def drawn_laws(draw):
    return {"name": draw.choice(("epoch", "hoffmann")), "params": draw.choice((10**9, 7 * 10**10)), "tokens": 10**12}


def drawn_rl(draw):
    values = {"model": "qwen3-30b-a3b", "system": "hgx-h100", "chips": 32, "tp": 2, "rollouts": draw.choice((512, 2048))}
    return values | {"output": draw.choice((1000, 3000)), "longest": 4096}


def drawn_prices(draw):
    return {"model": draw.choice(("llama-3.3-70b", "qwen3-32b")), "speed": draw.choice((30, 40)), "mode": "aggregated"}


def drawn_roofline(draw):
    return {"model": draw.choice(MODELS), "system": draw.choice(SYSTEMS), "context": draw.choice((1024, 8192))}


def drawn_context(draw):
    return {
        "model": "llama-3.1-8b",
        "system": "hgx-h100",
        "speed": draw.choice((20, 50)),
        "context": draw.choice((8192, 32768)),
    }


def drawn_reversible(draw):
    return {"model": draw.choice(MODELS), "system": draw.choice(SYSTEMS), "context": draw.choice((1024, 8192))}


def drawn_compare(draw):
    values = {"models": ["llama-3.1-8b"], "systems": ["hgx-h100"], "input": 512, "output": 64, "chips": 1}
    values |= {"speed": draw.choice((20, 40)), "mode": "aggregated"}
    return values | draw.choice(({}, {"rate": 30.0}, {"rate": 200.0, "spare": 1}))


DRAWS = {name: globals()[f"drawn_{name}"] for name in HOMES}
# Questions of many inputs, and of how many of them everyday tests see.
COUNTS = {
    "step": 150, "plan": 24, "simulate": 16, "train": 24, "budget": 16, "laws": 16, "rl": 6, "prices": 2, "roofline": 30,
    "context": 4, "reversible": 20, "compare": 3,
}  # fmt: skip
EVERYDAY = {"step": 8, "plan": 1, "train": 1, "budget": 1, "laws": 1, "roofline": 1, "reversible": 1}
# An input that becomes the axis of the sweep.
AXES = {
    "step": "tp", "plan": "chips", "simulate": "requests", "train": "chips", "budget": "eta", "laws": "params",
    "rl": "rollouts", "prices": "speed", "roofline": "context", "context": "context", "reversible": "context",
    "compare": "speed",
}  # fmt: skip


def cases(counts):
    return [(name, seed) for name, count in counts.items() for seed in range(count)]


def words(name, values):
    """Return the command line of a question."""
    question, out = find_question(name), []
    for key, value in values.items():
        if (key in ("model", "system") and name not in ("budget", "laws")) or key in ("models", "systems"):
            continue
        if "." in key:
            out += ["--set", f"{key}={value}{'B/s' if 'bandwidth' in key else ''}"]
        elif question.inputs[key].kind == TEXTS:
            out += [word for one in value for word in (f"--{key.replace('_', '-')}", one)]
        elif question.inputs[key].kind == SWITCH:
            out += [f"--{key.replace('_', '-')}"]
        elif not (name == "laws" and key == "name"):
            out += [f"--{key.replace('_', '-')}", str(value)]
    lead = {"laws": [values.get("name")], "reversible": ["cache", values.get("model"), values.get("system")], "budget": []}
    lead["compare"] = [",".join(values[key]) for key in ("models", "systems") if key in values]
    subject = lead.get(name, [values[key] for key in ("model", "system") if key in values])
    return [name, *subject, *out, "--json"]


def sweep_words(name, values):
    """Return the command line of a sweep of one point, which takes the inputs of designs too."""
    settings = [f"{key}={value}" for key, value in values.items() if key not in ("model", "system", AXES[name])]
    answers = ["--answer", ",".join(find_question(name).answers)]
    axis = ["--over", f"{AXES[name]}={values[AXES[name]]}"]
    subject = [values["model"], values["system"]]
    return ["sweep", name, *subject, *axis, *(word for text in settings for word in ("--set", text)), *answers, "--json"]


def same(left, right):
    if isinstance(left, str) or isinstance(right, str):
        return left == right
    missing = [one is None or math.isnan(float(one)) or math.isinf(float(one)) for one in (left, right)]
    return all(missing) if any(missing) else math.isclose(float(left), float(right), rel_tol=1e-12)


def through_python(name, values):
    try:
        return dict(st.ask(name, **values))
    except InputError:
        return None


def through_command(name, values):
    is_design = not values.keys().isdisjoint(DESIGN)
    typed = sweep_words(name, values) if is_design else words(name, values)
    result = CliRunner().invoke(app_for(typed), typed)
    if isinstance(result.exception, InputError) or result.exit_code == 2:
        return None
    assert result.exit_code in (0, 1), result.output
    data = json.loads(result.stdout[result.stdout.index("{") :])
    if not is_design:
        return data["summary"]
    columns = {key: column_name(key, answer.unit) for key, answer in find_question(name).answers.items()}
    return {key: data["table"].get(column, [None])[0] for key, column in columns.items()}


def through_sweep(name, values):
    axis = AXES[name] if AXES[name] in values else next(key for key in values if key in ("batch", "tokens", "eta", "chips"))
    fixed = {key: value for key, value in values.items() if key != axis}
    question = find_question(name)
    try:
        swept = st.sweep(name, {axis: [values[axis]]}, answers=tuple(question.answers), workers=1, **fixed)
    except InputError:
        return None
    return {key: array.values.ravel()[0] for key, array in swept.answers.items()}


def through_http(client, name, values):
    response = client.post(f"/api/questions/{name}", json=values)
    assert response.status_code in (200, 422), response.text
    return response.json()["answers"] if response.status_code == 200 else None


def check(client, name, values):
    expected = through_python(name, values)
    others = {"command": through_command(name, values), "http": through_http(client, name, values)}
    if name != "budget" or "eta" in values:
        others["sweep"] = through_sweep(name, values)
    for door, answers in others.items():
        assert (answers is None) == (expected is None), (door, values, expected, answers)
        for key, value in (expected or {}).items():
            if door == "sweep" and key == "reason":
                continue
            assert same(value, answers.get(key)), (door, values, key, value, answers.get(key))
    return expected


@pytest.mark.parametrize(("name", "seed"), [*cases(EVERYDAY), pytest.param("compare", 0, marks=pytest.mark.thorough)])
def test_question_through_four_doors_has_one_answer(client, name, seed):
    check(client, name, DRAWS[name](random.Random(f"{name} {seed}")))


@pytest.mark.parametrize("design", every(2, DESIGNS))
def test_design_of_a_training_run_through_four_doors(client, design):
    """A dense model has no experts to change, and no budget is called money."""
    answered = check(client, "train", {"model": "llama-3-8b", "system": "hgx-h100", "chips": 8, "batch": 64, **design})
    assert (answered is None) == ("arch.experts" in design or design == {"within": "money"})


LORA = {"model": "llama-3.1-8b", "system": "hgx-h100", "tp": 1, "lora_adapters": 8}


@each("more", [{"lora_rank": 24}, {"lora_target": "attention"}, {"lora_rank": 600}, {"lora_target": "head"}])
def test_lora_adapters_through_four_doors(client, more):
    """Ranks up to 512, and matrices that have a name, are answered; others are refused everywhere."""
    answered = check(client, "step", {**LORA, "batch": 32, **more})
    assert (answered is None) == (more in ({"lora_rank": 600}, {"lora_target": "head"}))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), cases(COUNTS))
def test_many_questions_through_four_doors_have_one_answer(client, name, seed):
    check(client, name, DRAWS[name](random.Random(f"{name} {seed}")))


PAIR = {"model": "llama-3.1-8b", "system": "hgx-h100", "input": 512, "output": 64}
PLAN = {**PAIR, "chips": 1, "tpot": 0.01, "ttft": 0.3, "mode": "aggregated"}
SIMULATION = {**PAIR, "rate": 8, "requests": 300}
# Inputs of unequal requests and percentiles, each with an answer that it changes.
CHANGES = {
    "plan": (
        ({"spread": 0.2}, "usd_per_million_output_tokens"), ({"output_spread": 0.0}, "usd_per_million_output_tokens"),
        ({"percentile": "p50"}, "usd_per_million_output_tokens"), ({"evidence": "any"}, "evidence"),
    ),
    "simulate": (
        ({"spread": 0.2}, "ttft_p90"), ({"output_spread": 0.0}, "end_to_end_p90"), ({"lengths": "fixed"}, "ttft_p90"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param("plan", marks=pytest.mark.thorough), "simulate"])
def test_spread_percentile_and_evidence_reach_every_door(client, name):
    base = {"plan": PLAN, "simulate": SIMULATION}[name]
    before, together = through_python(name, base), {}
    for changes, answer in CHANGES[name]:
        assert not same(through_python(name, base | changes)[answer], before[answer]), changes
        together |= changes if "lengths" not in changes else {}
    # A door that drops one of the changes has another answer to all of them.
    assert check(client, name, base | together)
    if name == "simulate":
        assert check(client, name, base | {"lengths": "fixed"})


def test_mixed_step_that_does_not_fit_is_refused_by_every_door(client):
    values = {"model": "llama-3.1-70b", "system": "hgx-h100", "phase": "mixed", "batch": 64, "context": 8192, "prompts": 64}
    values |= {"tokens": 8192, "tp": 8}
    assert not through_python("step", values)["fits"]
    assert through_python("step", values)["memory_share"] == pytest.approx(through_sweep("step", values)["memory_share"])


@pytest.mark.parametrize(("engine", "kv"), [("vllm", "fp8"), ("ideal", "bf16")])
def test_a_step_has_the_cache_format_of_its_engine(engine, kv):
    """The default is the engine's, as in plans and simulations: vLLM, SGLang and TensorRT-LLM keep 8 bits of an 8-bit model."""
    values = {"model": "llama-3.1-8b", "system": "hgx-h100", "weights": "fp8", "batch": 64, "context": 8192, "engine": engine}
    default, told = (through_python("step", values | more) for more in ({}, {"kv": kv}))
    assert default["time"] == pytest.approx(told["time"], rel=1e-12)
    assert default["memory_share"] == pytest.approx(told["memory_share"], rel=1e-12)


@each("name", HOMES)
def test_declaration_has_unit_bounds_and_help_of_each_input(name):
    for key, declared in find_question(name).inputs.items():
        assert declared.meaning, key
        assert declared.help().endswith(".")
