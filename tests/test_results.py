"""What every result can do: a repr to read, strict JSON with stable keys that carry units, tables, and HTML."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import math
import pickle
import pkgutil
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for
from steptime.describe.kv_tradeoff import cache_trade
from steptime.describe.law_summary import law_card, law_table
from steptime.describe.model_summary import compared, config_card, model_card, model_table
from steptime.describe.system_summary import engine_card, engine_table, system_card, system_table
from steptime.errors import DataFileError, UnknownName
from steptime.lecture.lecture_content import Verdicts, _row, contents, section, statements
from steptime.models.model_loading import load_config_fields
from steptime.planning.planner import DoesNotFit
from steptime.pricing.price_history import price_history
from steptime.questions.step_question import step_summary
from steptime.questions.train_comparison import compare_training
from steptime.result_base import Result, Tabular, entries, in_words, json_key, plain, problem, to_json, unit
from steptime.reversible.avalanche import mixing
from steptime.reversible.memory_tradeoff import KINDS, ErrorPoint, StackPoint, Stacks
from steptime.reversible.sboxes import sbox_card
from steptime.scaling.compute_optimal import optimal, predict_losses
from steptime.svg import curve, stacked
from steptime.validation.engine_metrics import read_scrape, window_between
from steptime.validation.live_drift import Watcher
from tests.conftest import CHOICE_ALONE, each
from tests.validation.fake_engine import FakeEngine

ROOT = Path(__file__).parents[1]
KEYS = tomllib.loads((ROOT / "tests" / "golden" / "json_keys.toml").read_text(encoding="utf-8"))
RUN = {
    "id": "a", "model": "llama-3.1-8b", "system": "hgx-h100", "engine": "vllm", "input_tokens": 512, "output_tokens": 128,
    "concurrency": 8, "tp": 1, "pp": 1, "dp": 1, "ep": 1, "weight_dtype": "bf16", "expert_dtype": "", "ttft_s": 0.05,
    "tpot_s": 0.008,
}  # fmt: skip
WORK = st.Workload(input_tokens=1024, output_tokens=256)
TIERED = {"input": 2, "output": 10, "tiers": [{"above_tokens": 200_000, "input": 4, "output": 15}]}


def simulated():
    pytest.importorskip("numba")
    return st.simulate("llama-3.1-8b", "hgx-h100", st.open_loop(20, 200, st.Lengths(mean=512), st.Lengths(mean=64)))


def highest():
    pytest.importorskip("numba")
    from steptime.simulation.max_rate import highest_rate, rates

    traffic = partial(st.open_loop, inputs=st.Lengths(mean=256), outputs=st.Lengths(mean=32))
    run = rates(st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), traffic, requests=100, slo=st.Slo(tpot=0.02))
    return highest_rate(run, slo=st.Slo(tpot=0.02), percentile="p90", tolerance=0.2)


def replayed():
    pytest.importorskip("numba")
    from steptime.planning.plan_replay import replay_pools

    plan = st.plan("llama-3.1-8b", "hgx-h100", WORK, chips=1)
    things = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    given = {"engine": st.load_engine("vllm"), "requests": 100, "tries": 1}
    return replay_pools(*things, WORK, plan.slo, plan.pools, plan.requests_per_second, **given)


def calibrated():
    pytest.importorskip("scipy")
    return st.calibrate([RUN, RUN | {"id": "b", "concurrency": 64, "tpot_s": 0.02}], name="mine")


def refitted():
    pytest.importorskip("scipy")
    from steptime.scaling.law_forms import refit

    params, tokens = np.geomspace(1e8, 1e10, 12), np.geomspace(1e11, 1e9, 12)
    return refit(params, tokens, 1.8 + 400 / params**0.34 + 500 / tokens**0.28, bootstraps=6)


def scaled():
    from steptime.training.training_alternatives import strong_and_weak_scaling

    found = st.train("llama-3.1-8b", "hgx-h100", chips=8, seq=4096, batch=64)
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    return strong_and_weak_scaling(model, system, chips=8, engine=st.training_engine("megatron", system), job=found.job)


SERVED = st.Serving(system="hgx-h100", workload=WORK)
TRAINED = {"seq": 4096, "batch": 64, "layout": st.TrainingLayout(tp=2, dp=np.array([4, 8]))}
TRAINING_RUN = {
    "id": "a", "model": "llama-3.1-8b", "system": "hgx-h100", "chips": 8, "seq_len": 4096, "global_batch": 64, "dtype": "bf16",
    "tp": 1, "dp": 8, "step_s": 4.0, "framework": "torchtitan", "sharding": "zero3", "date": "2025-01",
}  # fmt: skip


def held_against_training():
    from tempfile import TemporaryDirectory

    from steptime.validation.training_validation import validate_training

    with TemporaryDirectory() as folder:
        path = f"{folder}/runs.csv"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{','.join(TRAINING_RUN)}\n{','.join(map(str, TRAINING_RUN.values()))}\n")
        return validate_training(path)


def stacks():
    """What a measurement on PyTorch returns, made by hand."""
    point = {"depth": 4, "peak": 10**6, "allocated": None, "flop": 10**9, "arithmetic": 4 / 3, "seconds": 0.01, "slowness": 1.2}
    points = [StackPoint(kind=kind, saved=10**5, gradient_error=1e-7, **point) for kind in KINDS]
    error = ErrorPoint(depth=4, dtype="float32", gradient_error=1e-7, plain_error=1e-7, input_error=1e-7)
    return Stacks(
        depth=4, width=64, rows=8, dtype="float32", device="cpu", torch="2.13", streams=2048.0, arithmetic=4 / 3,
        points=tuple(points), error_width=64, errors=(error,),
    )  # fmt: skip


def watched():
    engine, watcher = FakeEngine(), Watcher(model="llama-3.1-8b", system="hgx-h100", weights="bf16")
    engine.run(10.0)
    first = read_scrape(engine.text(), 0.0)
    engine.run(10.0)
    second = read_scrape(engine.text(), 10.0)
    return watcher.compare(second, window_between(first, second))


def fleet():
    from steptime.planning.model_fleet import FleetChoice, FleetModel, FleetSystem, ModelFleet

    choice = FleetChoice(model="a", system="hgx-h100", deployments=2, chips=2, layout="one chip", rate=20.0, usd_per_hour=4.0)
    return ModelFleet(
        feasible=True, usd_per_hour=4.0, choices=(choice,), chips_in_use=(2,),
        models=(FleetModel(name="a", rate=15.0, workload=WORK, slo=st.Slo(speed=30)),),
        systems=(FleetSystem(name="hgx-h100", chips=8, usd_per_chip_hour=2.0),),
    )  # fmt: skip


STEP = {"batch": np.array([1, 64]), "context": 4096}
MAKE = {
    "plan": lambda: st.plan("llama-3.1-8b", "hgx-h100", WORK, st.Slo(tpot=0.02, ttft=1)),
    "impossible plan": lambda: st.plan("llama-3.1-8b", "hgx-h100", WORK, st.Slo(tpot=1e-6)),
    "step": lambda: st.decode_step("deepseek-v3", "gb200-nvl72", batch=8192, context=4096, layout=st.Layout(dp=72, ep=72)),
    "steps": lambda: st.decode_step("llama-3.1-8b", "hgx-h100", **STEP),
    "step card": lambda: step_summary("llama-3.1-8b", "hgx-h100", batch=64, context=4096),
    "memory": lambda: st.memory_per_chip("llama-3.1-8b", "hgx-h100", **STEP),
    "layout": lambda: st.Layout(tp=8, ep=np.array([1, 8])),
    "training": lambda: st.train("llama-3.1-8b", "hgx-h100", chips=8, seq=4096, batch=64, tokens=1e12),
    "training comparison": lambda: compare_training(
        ["hgx-h100", "hgx-a100"], {"model": "llama-3.1-8b", "chips": 8, "seq": 4096, "batch": 64}
    ),
    "training step": lambda: st.training_step("llama-3.1-8b", "hgx-h100", **TRAINED),
    "training memory": lambda: st.training_step("llama-3.1-8b", "hgx-h100", **TRAINED).memory,
    "training layout": lambda: st.TrainingLayout(tp=8, dp=np.array([1, 8])),
    "scaling": scaled,
    "training validation": held_against_training,
    "model": lambda: st.load_model("deepseek-v3"),
    "system": lambda: st.load_system("gb200-nvl72"),
    "chip": lambda: st.load_system("gb200-nvl72").chip,
    "engine": lambda: st.load_engine("vllm"),
    "simulation": simulated,
    "answers": lambda: simulated().answers,
    "traffic": lambda: st.open_loop(20, 200, st.Lengths(mean=512), st.Lengths(mean=64)),
    "highest rate": highest,
    "replay": replayed,
    "validation": lambda: st.validate([RUN]),
    "predictions": lambda: st.validate([RUN]).predictions,
    "calibrated": calibrated,
    "model card": lambda: model_card(st.load_model("google/gemma-3-27b-it"), context=8192),
    "image cost": lambda: st.image_cost("qwen3-vl-8b-instruct", ["1024x768*2", "64x64"]),
    "models": lambda: model_table("llama-3"),
    "comparison": lambda: compared([st.load_model("deepseek-v3"), st.load_model("kimi-k2")], context=8192),
    "system card": lambda: system_card(st.load_system("gb200-nvl72")),
    "systems": lambda: system_table([st.load_system("gb200-nvl72"), st.load_system("hgx-h100")]),
    "engine card": lambda: engine_card(st.load_engine("vllm")),
    "engines": lambda: engine_table([st.load_engine("vllm"), st.load_engine("ideal")]),
    "sweep": lambda: st.sweep("step", {"batch": [1, 2]}, model="llama-3.1-8b", system="hgx-h100"),
    "design": lambda: st.design("step", "llama-3.1-8b", "hgx-h100", {"arch.kv_heads": [2, 4]}),
    "sensitivity": lambda: st.sensitivity("step", model="llama-3.1-8b", system="hgx-h100"),
    "ranking": lambda: st.compare("llama-3.1-8b", ["hgx-h100", "hgx-b200"], WORK, st.Slo(tpot=0.02)),
    "budget": lambda: st.budget("100B@200T", st.Demand(served=200e12), law=["epoch", "hoffmann"]),
    "machine budget": lambda: st.budget("8B@1T", st.Demand(served=1e12), law="epoch", machine=SERVED).machine,
    "law": lambda: st.load_law("epoch"),
    "law card": lambda: law_card(st.load_law("epoch")),
    "laws": lambda: law_table([st.load_law("epoch"), st.load_law("kaplan")]),
    "split": lambda: optimal("epoch", 1e24),
    "losses": lambda: predict_losses([st.load_law("epoch"), st.load_law("kaplan")], 70e9, 1.4e12),
    "mixtures": lambda: st.moe_board(1e9, experts=[1, 8]),
    "rl step": lambda: st.rl_step("llama-3.1-8b", "hgx-h100", chips=8, rollouts=64, output=100, longest=400),
    "refit": refitted,
    "price list": lambda: st.read_prices(TIERED).list,
    "price reading": lambda: st.read_prices(TIERED),
    "reading": lambda: st.read_prices(TIERED)["kv_bytes_per_token"],
    "no reading": lambda: st.read_prices(TIERED)["memory_bound_share"],
    "ideal reading": lambda: st.read_prices(TIERED).ideal,
    "prices": lambda: st.survey_prices("llama-3.1-8b", mix="1k:256"),
    "price history": lambda: price_history("openai/o3"),
    "price proposal": lambda: st.propose_prices("llama-3.1-8b", "hgx-h100", margin=2, mix="1k:256"),
    "self-hosting": lambda: st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=1e8, mix="1k:256", chips=1),
    "anchors": lambda: st.load_anchor([RUN]),
    "watched": watched,
    "stacks": stacks,
    "mixing": lambda: mixing(samples=200, depth=4, width=64),
    "S-box": lambda: sbox_card("present"),
    "cache trade": lambda: cache_trade(["deepseek-v3"], "hgx-h200", (8192,)),
    "lecture": contents,
    "lecture section": lambda: section(3),
    # The verdicts of all numbers have a test of their own (tests/lecture).
    "lecture verdicts": lambda: Verdicts(rows=tuple(_row(*entry) for entry in islice(statements(), 3))),
    "roofline": lambda: st.roofline("llama-3.1-8b", "hgx-h100"),
    "config": lambda: config_card(load_config_fields("llama-3.1-8b")),
    "context walls": lambda: st.context_walls("llama-3.1-8b", "hgx-h100", techniques=["kv=fp8"], chips=1),
    "anchor": lambda: st.load_anchor([RUN]).anchors[0],
    "fleet": fleet,
    "predictor": lambda: st.compile_predictor("llama-3.1-8b", "hgx-h100", max_batch=8, max_tokens=64, max_context=512),
}

LONG = {
    "calibrated", "context walls", "machine budget", "mixing", "plan", "price proposal", "prices", "ranking", "refit", "replay",
    "scaling", "self-hosting",
}  # fmt: skip
"""What takes more than a third of a second to make."""
QUICK = [name for name in MAKE if name not in LONG]


def each_result(law: Callable[..., None]) -> Callable[..., None]:
    """Check a law for the results that are made soon each day, and for the others in the slow stage."""

    @pytest.mark.parametrize(
        "names", [pytest.param(QUICK, id="quick"), pytest.param(sorted(LONG), id="long", marks=pytest.mark.slow)]
    )
    def check(made, names):
        each("name", names)(law)(made=made)

    return check


@pytest.fixture(scope="module")
def made():
    """Return a function that makes each result once."""
    return cache(lambda name: MAKE[name]())


@each_result
def test_a_repr_is_short_and_says_what_it_is(made, name):
    text = repr(made(name))
    assert 10 < len(text) < 400
    assert len(text.splitlines()) <= 7
    assert "array(" not in text
    assert "nan" not in text.casefold()


@each_result
def test_json_is_strict_and_plain(made, name):
    result = made(name)
    data = result.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data == json.loads(result.to_json())
    if result.SCHEMA:
        assert data["schema"] == result.SCHEMA
        assert next(iter(data)) == "schema"


@each_result
def test_html_is_a_small_table(made, name):
    text = made(name)._repr_html_()
    assert text.startswith("<table>")
    assert text.endswith(("</table>", "</svg>"))
    assert text.count("<tr>") == text.count("</tr>") <= 7


@pytest.mark.thorough
def test_html_is_escaped(made):
    plan = replace(made("plan"), model="<script>alert(1)</script> & co")
    assert "<script>" not in plan._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in plan._repr_html_()


@each_result
def test_tables_have_units_in_their_columns(made, name):
    result = made(name)
    if not isinstance(result, Tabular):
        assert not hasattr(result, "to_csv")
        return
    frame = pytest.importorskip("pandas").DataFrame
    table, rows = result.to_dataframe(), list(csv.reader(result.to_csv().splitlines()))
    assert isinstance(table, frame)
    assert list(table.columns) == rows[0] == list(result.columns())
    assert len(table) == len(rows) - 1 > 0
    assert not [column for column in rows[0] if column in ("tpot", "ttft", "arrival", "capacity", "total")]


def test_what_the_tables_hold(made):
    plan = st.plan("llama-3.1-8b", "hgx-h100", WORK, chips=1, quick=True, **CHOICE_ALONE | {"front": True})
    assert list(plan.to_dataframe()["ttft_s"]) == [point.ttft for point in plan.front]
    steps = made("steps").to_dataframe()
    np.testing.assert_array_equal(steps["total_s"], made("steps").total)
    terms = [name for name in steps if name.endswith("_s") and not name.startswith(("total", "lower", "upper", "waits"))]
    np.testing.assert_allclose(steps[terms].sum(axis=1), steps["total_s"], rtol=1e-12)
    waits = [name for name in steps if name.startswith("waits_for_")]
    np.testing.assert_allclose(steps[waits].sum(axis=1), steps["total_s"], rtol=1e-12)
    requests = made("simulation").to_dataframe()
    assert len(requests) == made("simulation").answers.sent
    assert (requests["first_s"] - requests["arrival_s"]).mean() == pytest.approx(made("simulation").answers.ttft.mean)
    row = made("validation").to_dataframe().iloc[0]
    assert (row["id"], row["measured_tpot_s"]) == ("a", 0.008)
    assert row["predicted_tpot_low_s"] < row["predicted_tpot_s"] < row["predicted_tpot_high_s"]


def test_a_figure_that_is_not_finite_is_null_in_json_and_empty_in_csv(made):
    assert made("plan").slo.ttft == 1
    data = made("impossible plan").to_dict()
    assert (data["feasible"], data["tpot_s"], data["slo"]["ttft_s"]) == (False, None, None)
    assert plain(np.array([1.0, math.nan, -math.inf])) == [1.0, None, None]
    assert to_json(math.inf) == "null"
    ideal = list(csv.DictReader(made("engines").to_csv().splitlines()))[1]
    assert (ideal["name"], ideal["roofline_norm"], float(ideal["memory_efficiency"])) == ("ideal", "", 1)


@pytest.mark.slow
def test_keys_are_as_they_were(made):
    """A key that goes or is renamed breaks what reads it: then the schema's version rises with this list."""
    found = {}
    for name in MAKE:
        kind = type(made(name))
        if kind.SCHEMA:
            found[kind.SCHEMA if kind.__name__ != "Step" else "Step"] = [entry.key for entry in entries(kind)]
            assert [key for key in made(name).to_dict() if key != "schema"] == [entry.key for entry in entries(kind)]
    assert found == {key: value.split() for key, value in KEYS.items()}


def every_kind(kind, seen):
    """Return the dataclasses that a result's JSON is made of."""
    if kind in seen:
        return seen
    seen.add(kind)
    known = vars(sys.modules[kind.__module__])
    for entry in entries(kind):
        for word in entry.type.replace("[", " ").replace("]", " ").replace(",", " ").split():
            if is_dataclass(known.get(word)):
                every_kind(known[word], seen)
    return seen


@pytest.mark.slow
def test_every_key_has_a_meaning_and_figures_their_units(made):
    kinds = set()
    for name in MAKE:
        if type(made(name)).SCHEMA:
            every_kind(type(made(name)), kinds)
    assert len(kinds) > 30
    for kind in kinds:
        keys = [entry.key for entry in entries(kind)]
        assert len(set(keys)) == len(keys), kind
        for entry in entries(kind):
            assert entry.meaning or kind.__name__ == "Figure", (kind, entry.name)
            assert " " not in entry.key
            if entry.unit in ("s", "B", "B/s", "USD", "USD/s", "FLOP/s"):
                words = {
                    "s": "_s",
                    "B": "bytes",
                    "B/s": "bytes_per_s",
                    "USD": "usd",
                    "USD/s": "usd_per_s",
                    "FLOP/s": "flop_per_s",
                }
                assert words[entry.unit] in entry.key, (kind, entry.key)


def test_costs_of_different_meaning_have_unlike_names(made):
    plan = made("plan")
    chip_time = (
        plan.prefill_usd_per_million_tokens * WORK.input_tokens + plan.decode_usd_per_million_tokens * WORK.output_tokens
    )
    assert plan.usd_per_million_output_tokens * WORK.output_tokens == pytest.approx(chip_time)
    keys = [key for key in plan.to_dict() if "usd_per_million" in key and not key.endswith(("_range", "_bounds"))]
    assert keys == [
        "usd_per_million_output_tokens", "prefill_usd_per_million_tokens", "decode_usd_per_million_tokens",
        "electricity_usd_per_million_output_tokens",
    ]  # fmt: skip
    assert set(plan.elasticities) >= {"hbm_bandwidth", "hbm_capacity", "arithmetic", "kv_bytes", "rent"}


def test_keys_of_fields():
    assert json_key("tpot", unit("s", "")) == "tpot_s"
    assert json_key("kv_bytes", unit("B", "")) == "kv_bytes"
    assert json_key("requests_per_second", unit("requests/s", "")) == "requests_per_s"
    assert json_key("seconds", unit("s", "", key="duration_s")) == "duration_s"
    assert json_key("name", {}) == "name"


def test_arrays_in_words():
    assert in_words(np.array([[1.0, 2.0], [3.0, 5.0]]), "{:g} s".format) == "1 s to 5 s, shape (2, 2)"
    assert in_words(np.zeros((0, 3)), str) == "unknown, shape (0, 3)"
    assert in_words(np.array([math.nan, 2.0]), "{:g}".format) == "2 to 2, shape (2,)"


def test_an_empty_list_keeps_its_columns():
    found = model_table("no-such-model")
    assert found.to_csv().splitlines() == [",".join(found.columns())]
    assert "kv_bytes_per_token" in found.columns()
    assert found.to_dict() == {"schema": "steptime.models/2", "models": []}


def test_more_goes_behind_a_result(made):
    data = made("step").to_dict(asked={"batch": np.int64(8192)}, layout=st.Layout(dp=72))
    assert data["asked"] == {"batch": 8192}
    assert data["layout"]["dp"] == 72
    assert data["total_s"] == float(made("step").total)


def test_a_step_card_is_the_step_with_what_goes_with_it(made):
    card, step = made("step card"), st.decode_step("llama-3.1-8b", "hgx-h100", batch=64, context=4096)
    assert card.total == step.total
    assert (card.phase, card.model, card.engine) == ("decode", "meta-llama/Llama-3.1-8B", "vllm")
    assert card.range == st.step_range("llama-3.1-8b", "hgx-h100", batch=64, context=4096)
    assert card.tokens_per_second_per_user == 1 / step.total
    assert card.output_tokens_per_second_per_chip == pytest.approx(64 / step.total)
    assert card.ideal.total < step.total
    assert card.memory.to_dict() == st.memory_per_chip("llama-3.1-8b", "hgx-h100", batch=64, context=4096).to_dict()
    prefill = step_summary("llama-3.1-8b", "hgx-h100", engine="ideal", prompts=2, tokens=1000, layout=st.Layout(tp=2))
    assert (prefill.phase, prefill.range, prefill.ideal, prefill.tokens_per_second_per_user) == ("prefill", None, None, 0)
    assert prefill.prompt_tokens_per_second_per_chip == pytest.approx(1000 / prefill.total)
    assert step_summary("llama-3.1-8b", "hgx-h100", batch=4, context=10, prompts=1, tokens=99).phase == "mixed"


def test_errors_as_data():
    with pytest.raises(UnknownName) as caught:
        st.load_model("lama-3.1-8b")
    found = problem(caught.value)
    assert (found["schema"], found["error"]) == ("steptime.error/2", "UnknownName")
    assert "meta-llama/Llama-3.1-8B" in found["nearest"]
    assert found["message"] == str(caught.value)
    with pytest.raises(DoesNotFit) as caught:
        st.plan("deepseek-v3", "hgx-h100", WORK, chips=1)
    found = problem(caught.value)
    assert (found["error"], found["nearest"]) == ("DoesNotFit", [])
    assert "does not fit" in json.loads(json.dumps(found, allow_nan=False))["message"]
    assert problem(DataFileError("a.toml", "no such file"))["message"] == "a.toml: no such file"


def test_a_table_without_pandas_says_what_to_install(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(st.InputError, match="pip install pandas"):
        made("plan").to_dataframe()
    assert made("plan").to_csv()


def test_validate_and_calibrate_read_rows_and_files(tmp_path):
    path = tmp_path / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, RUN)
        writer.writeheader()
        writer.writerow(RUN)
    of_rows, of_file = st.validate([RUN]), st.validate(path)
    assert of_rows.tpot == of_file.tpot
    assert of_file.runs == 1
    assert st.validate([str(path), path]).runs == 2
    ideal = st.validate(path, engine="ideal")
    assert ideal.tpot["all"]["bias"] < of_file.tpot["all"]["bias"]
    assert ideal.ttft["all"]["runs"] == 1


@each(
    "given, told, says",
    [
        ([], {}, "runs: must be files, folders, or rows"),
        ([5], {}, "runs: must be files, folders, or rows"),
        ([RUN | {"tp": "two"}], {}, "row 0: tp must be a number, got 'two'"),
        ([{"id": "a"}], {}, "row 0: lacks the columns model, system"),
        ([RUN], {"tp": 4}, "tp applies to JSON results only"),
        ([RUN], {"wheights": "fp8"}, "unknown argument 'wheights'; did you mean weights"),
        ("no-such-file.csv", {}, "no-such-file.csv: no such file"),
    ],
)
def test_what_is_wrong_with_runs(given, told, says):
    with pytest.raises(st.InputError, match=says):
        st.validate(given, **told)


def test_bad_rows_are_left_out_where_asked():
    found = st.validate([RUN, RUN | {"model": "lama-3.1-8b"}], skip_bad=True)
    assert found.runs == 1
    assert "row 1: unknown model 'lama-3.1-8b'" in found.left_out[0]
    assert "1 left out" in repr(found)


def test_a_calibrated_engine_is_one_file(made, tmp_path):
    found = made("calibrated")
    assert found.prior.name == "vllm"
    path = tmp_path / "mine.toml"
    path.write_text(found.toml)
    again = st.load_engine(str(path))
    assert again.kernels.memory_efficiency == pytest.approx(found.engine.kernels.memory_efficiency, rel=1e-3)
    assert again.source["note"] == "2 runs"
    assert list(found.to_dataframe()["fitted"]) == list(found.constants.values())


@pytest.mark.parametrize(
    ("words", "schema"),
    [
        ("plan llama-3.1-8b hgx-h100 --chips 1 --mode aggregated", "plan"),
        ("step llama-3.1-8b hgx-h100", "step"),
        ("sensitivity step llama-3.1-8b hgx-h100", "sensitivity"),
        ("sweep step llama-3.1-8b hgx-h100 --over batch=1,2", "sweep"),
        ("design step llama-3.1-8b hgx-h100 --over arch.kv_heads=2,4", "design"),
        ("simulate llama-3.1-8b hgx-h100 --rate 5 --requests 50", "simulation"),
        ("simulate llama-3.1-8b hgx-h100 --find-rate --requests 50 --speed 60 --output 16", "highest-rate"),
        ("validate {runs}", "validation"),
        ("train llama-3.1-8b hgx-h100 --chips 8 --batch 64 --tp 1 --pp 1 --cp 1", "training"),
        ("models --like llama-3.1", "models"),
        ("models llama-3.1-8b", "model"),
        ("models llama-3.1-8b llama-3.1-70b", "comparison"),
        ("systems", "systems"),
        ("systems hgx-h100", "system"),
        ("engines", "engines"),
        ("engines vllm", "engine"),
        pytest.param("prices llama-3.1-8b --mix 1k:256", "prices", marks=pytest.mark.thorough),
        ("prices openai/gpt-6-sol --read", "price-reading"),
        ("prices openai/o3 --history", "price-history"),
        pytest.param(
            "prices llama-3.1-8b hgx-h100 --target-margin 2 --mix 1k:256", "price-proposal", marks=pytest.mark.thorough
        ),
    ],
)
def test_what_a_command_prints_as_json_has_a_schema_and_the_keys_of_the_page(words, schema, tmp_path, closed_forms):
    if words.startswith("simulate"):
        pytest.importorskip("numba")
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(RUN)}\n{','.join(map(str, RUN.values()))}\n")
    shown = CliRunner().invoke(app_for(words.split()), [*words.format(runs=path).split(), "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout, parse_constant=pytest.fail)
    assert found["schema"] == f"steptime.{schema}/2"
    assert set(found) >= set(KEYS[found["schema"]].split())


def test_the_page_of_keys_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    assert page == module.keys_page()
    schemas = {getattr(kind, "SCHEMA", "") for kind in module.ANSWERS}
    assert schemas == {key for key in KEYS if "/" in key}


def results_of(*rooms):
    """Yield the results that the modules of some rooms declare."""
    for room in rooms:
        package = importlib.import_module(room.rstrip("."))
        for module in pkgutil.iter_modules(package.__path__, room):
            importlib.import_module(module.name)
    waiting = [Result]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if is_dataclass(kind) and kind.__module__.startswith(rooms):
            yield kind


def test_fields_of_results_have_a_meaning_and_one_key_each():
    kinds = list(results_of("steptime.physics.", "steptime.planning."))
    assert len(kinds) > 15
    for kind in kinds:
        listed = list(entries(kind))
        assert len({entry.key for entry in listed}) == len(listed), kind
        unnamed = [entry.name for entry in listed if not entry.meaning]
        # An engine, whose file has constants, has its own JSON.
        assert unnamed in ([], [entry.name for entry in listed]), (kind, unnamed)
        assert not unnamed or kind.__name__ == "Engine"


@each("name", ["plan", "impossible plan", "step", "steps", "step card", "training"])
def test_notebooks_show_a_picture_of_one_answer(made, name):
    pictures = re.findall(r"<svg.*?</svg>", made(name)._repr_html_(), re.DOTALL)
    assert bool(pictures) == (name not in ("impossible plan", "steps"))
    for text in pictures:
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("svg")
        assert len(list(root)) >= 3


def test_a_bar_is_as_long_as_its_parts():
    text = stacked({"weights": 3.0, "kv": 1.0}, "s")
    widths = [float(rect.get("width")) for rect in ElementTree.fromstring(text).iter() if rect.get("height") == "22"]
    assert widths == [420.0, 140.0]
    assert stacked({}, "s") == ""
    assert curve([1.0], [1.0], x_words="a", y_words="b") == ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Unknown(Result):
    rates: tuple[float, ...]
    by_name: dict[str, float]

    def headline(self):
        return "", {}


def test_a_copy_of_a_result_equals_it_with_numbers_that_are_not_known():
    step = st.decode_step("llama-3.1-8b", "hgx-h100", batch=np.array([1, 64]), context=1000)
    assert pickle.loads(pickle.dumps(step)) == step
    assert replace(step, total=step.total * 2) != step
    watched = Unknown(rates=(math.nan, 1.0), by_name={"x": math.nan})
    assert pickle.loads(pickle.dumps(watched)) == watched
    assert replace(watched, rates=(math.nan, 2.0)) != watched
    assert watched != "another kind"
