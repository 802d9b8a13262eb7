"""The engine llama.cpp: formats of GGUF files, constants of its kernels, and public figures that they give back."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for
from steptime.errors import ConfigError
from steptime.hardware.number_formats import number_format
from steptime.models.model import gguf_formats, stored_formats, total_parameters
from steptime.models.model_loading import load_model
from steptime.physics.compute_dtype import Computed, select_compute_dtype
from steptime.physics.engine import IDEAL, load_engine, with_constants
from steptime.physics.step import decode_step, mixed_step
from steptime.physics.uncertainty import WAITS, factors
from steptime.questions.subject import read_subject
from steptime.simulation.step_predictor import compile_predictor
from steptime.validation.predictions import predict
from tests.conftest import each, engine

ROWS = Path(__file__).parents[2] / "docs" / "llamacpp_rows.csv"
# Decode steps of llama-batched-bench b6918 on DGX Spark [s]: model, weights, experts, batch, prompt, measured.
# github.com/ggml-org/llama.cpp, benches.
MEASURED = [
    ("qwen2.5-7b", "q8_0", "", 1, 512, 0.034219),
    ("qwen2.5-7b", "q8_0", "", 8, 4096, 0.049063),
    ("qwen2.5-7b", "q8_0", "", 32, 8192, 0.119313),
    ("gpt-oss-20b", "q8_0", "mxfp4", 1, 512, 0.012344),
    ("gpt-oss-20b", "q8_0", "mxfp4", 2, 4096, 0.022937),
    ("gpt-oss-20b", "q8_0", "mxfp4", 32, 8192, 0.093812),
]


@each("model, weights, experts, batch, prompt, seconds", MEASURED)
def test_decode_of_dgx_spark_is_within_15_percent(model, weights, experts, batch, prompt, seconds):
    loaded = load_model(model, weights=weights, experts=experts)
    step = decode_step(loaded, "dgx-spark", batch=batch, context=prompt + 16, engine="llama.cpp")
    assert step.total == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize(
    ("model", "weights", "experts", "seconds"),
    [("qwen2.5-7b", "q8_0", "", 1.813), ("gpt-oss-20b", "q8_0", "mxfp4", 1.166)],
)
def test_prefill_of_4096_tokens_is_within_25_percent(model, weights, experts, seconds):
    loaded = load_model(model, weights=weights, experts=experts)
    chunks = mixed_step(
        loaded, "dgx-spark", prompts=1, tokens=2048, prefix=np.array([0, 2048]), engine="llama.cpp", parts=False
    ).total
    assert chunks.sum() == pytest.approx(seconds, rel=0.25)


def test_a_batch_of_one_streams_the_weights_at_the_share_of_the_bandwidth():
    """Qwen2.5-7B in q8_0: 6.525 B weights in layers and 0.545 B in the head, 34 bytes for 32 each, at 273 GB/s."""
    step = decode_step(load_model("qwen2.5-7b", weights="q8_0"), "dgx-spark", batch=1, context=1, engine="llama.cpp")
    weights = (6.525e9 + 0.545e9) * 34 / 32 / 273e9 / 0.8503
    assert step.resources["weights"] == pytest.approx(weights, rel=0.01)


def test_rows_of_rtx_boards_and_apple_chips_are_within_25_percent_at_the_median():
    rows = list(csv.DictReader(ROWS.read_text(encoding="utf-8").splitlines()))
    errors = []
    for row in rows[::4]:
        loaded = load_model(row["model"], weights=row["weights"], experts=row["experts"])
        tokens, prompt = int(row["microbatch"]), int(row["prompt"])
        step = mixed_step(loaded, row["system"], prompts=1, tokens=tokens, prefix=(prompt - tokens) / 2, engine="llama.cpp")
        errors.append(abs(np.log(step.total * float(row["tokens_per_s"]) / tokens)))
    assert np.median(errors) < 0.25
    assert all(row["source"].startswith("https://github.com/ggml-org/llama.cpp/") for row in rows)


def test_mixtures_of_gguf_files_have_their_bits():
    assert number_format("q4_k_m").bytes * 8 == pytest.approx(4.8944)
    assert number_format("Q5_K_M").bytes * 8 == pytest.approx(5.7036)
    assert number_format("q8_0").bytes == 34 / 32


def test_gguf_quantises_the_head_and_other_formats_do_not():
    heads = {}
    for name in ("bf16", "fp8", "q4_0", "q4_k_m", "q8_0"):
        model = load_model("llama-3.1-8b", weights=name)
        heads[name] = next(op.format.name for op in model.stem if op.rows == "outputs")
    assert heads == {"bf16": "bf16", "fp8": "bf16", "q4_0": "q6_k", "q4_k_m": "q4_k_m", "q8_0": "q8_0"}


def test_a_rule_for_gguf_leaves_16_bit_weights_alone():
    rule = Computed(operation="weights", stored="gguf", computed="int8")
    peak = {"fp16": 1e14, "int8": 4e14}
    gguf, half = number_format("q4_0").arithmetic, number_format("fp16").arithmetic
    assert select_compute_dtype((rule,), "weights", gguf, peak)[0] == "int8"
    assert select_compute_dtype((rule,), "weights", half, peak)[0] == "fp16"


def test_the_integer_share_divides_only_int8_products():
    slow = engine(integer_efficiency=0.5)
    for weights, ratio in (("int8", 2.0), ("bf16", 1.0)):
        model = load_model("llama-3.1-8b", weights=weights)
        inputs = {"prompts": 1, "tokens": 4096}
        times = [mixed_step(model, "hgx-h100", **inputs, engine=runs).terms["projections"] for runs in (slow, IDEAL)]
        assert times[0] / times[1] == pytest.approx(ratio, rel=1e-6)


def test_without_timed_kernels_experts_and_attention_have_the_shares_of_dense_products():
    shares = {"timed_kernels": 0.0, "memory_efficiency": 0.5, "attention_time": 1.0, "expert_time": 1.0}
    sizes = {"batch": 1, "context": 100_000}
    step, ideal = (decode_step("qwen3-30b-a3b", "hgx-h100", **sizes, engine=e) for e in (with_constants(IDEAL, shares), IDEAL))
    assert step.resources["weights"] / ideal.resources["weights"] == pytest.approx(2.0, rel=1e-3)
    assert step.resources["kv"] / ideal.resources["kv"] == pytest.approx(2.0, rel=1e-3)


def test_a_tile_costs_several_tokens_and_a_sort_costs_each_layer():
    base = {"timed_kernels": 0.0, "expert_time": 1.0, "roofline_norm": 1.0}
    model = st.load_model("qwen3-30b-a3b")

    def seconds(batch, **constants):
        return decode_step(model, "hgx-h100", batch=batch, context=1, engine=with_constants(IDEAL, base | constants)).total

    layers = sum(n for layer, n in model.layers if layer.routed is not None)
    sort = {"seconds_per_sort": 1e-4}
    assert seconds(1, **sort) == seconds(1)
    assert seconds(2, **sort) - seconds(2) == pytest.approx(layers * 1e-4)
    assert seconds(512, expert_tile_rows=128.0) > 1.2 * seconds(512)


def test_formats_that_runs_of_llama_cpp_state():
    assert gguf_formats("int8", "") == ("q8_0", "")
    assert gguf_formats("bf16", "mxfp4") == ("q8_0", "mxfp4")
    assert gguf_formats("bf16", "") == ("bf16", "")


def stored_bytes(model):
    ops = [(op, n) for layer, n in model.layers for op in layer.ops] + [(op, 1) for op in model.stem]
    return sum(n * op.total_weights * op.format.bytes for op, n in ops)


@each("mixture", ["q4_k_m", "iq2_m", "q3_k_m", "q5_k_m"])
def test_a_mixture_has_its_bits_for_every_parameter(mixture):
    """Llama-3.1-8B has 8.03 B parameters: 4.913 GB in q4_k_m, 2.940 GB in iq2_m, with head and embeddings."""
    bits = {"q4_k_m": 4.8944, "iq2_m": 2.9294, "q3_k_m": 3.91, "q5_k_m": 5.7036}[mixture]
    model = load_model("llama-3.1-8b", weights=mixture)
    assert stored_bytes(model) == pytest.approx(bits / 8 * total_parameters(model), rel=0.005)
    assert total_parameters(model) == pytest.approx(8.03e9, rel=1e-3)


def test_gpt_oss_runs_in_the_formats_of_its_gguf_file():
    """llama-batched-bench on DGX Spark: 12.344 ms; the file of ggml-org has 12.1 GB."""
    words = ["step", "gpt-oss-20b", "dgx-spark", "--engine", "llama.cpp", "--batch", "1", "--context", "528", "--json"]
    ran = CliRunner().invoke(app_for(words), words)
    answer = json.loads(ran.stdout)
    assert answer["total_s"] == pytest.approx(12.344e-3, rel=0.03)
    assert answer["weights"] == "q8_0, experts in mxfp4"
    assert any("q8_0" in note for note in answer["notes"])
    sizes = {"batch": 1, "context": 528}
    file = load_model("gpt-oss-20b", weights="q8_0")
    assert stored_formats(file) == ("q8_0", "mxfp4")
    assert stored_bytes(file) == pytest.approx(12.1e9, rel=0.01)
    expected = float(decode_step(file, "dgx-spark", **sizes, engine="llama.cpp").total)
    assert answer["total_s"] == pytest.approx(expected)
    # The Python functions and the predictor load the same formats by name.
    assert float(decode_step("gpt-oss-20b", "dgx-spark", **sizes, engine="llama.cpp").total) == expected
    table = compile_predictor("gpt-oss-20b", "dgx-spark", engine="llama.cpp", max_batch=2, max_tokens=2, max_context=1024)
    assert table.seconds([528]) == pytest.approx(expected, rel=1e-3)


def test_explicit_formats_and_other_engines_keep_those_of_the_config():
    values = {"model": "gpt-oss-20b", "system": "dgx-spark"}
    of_file = {"engine": "llama.cpp"}
    inputs = (of_file, {"engine": "vllm"}, of_file | {"weights": "bf16", "experts": "mxfp4"})
    formats = [stored_formats(read_subject(values | more)[0]) for more in inputs]
    assert formats == [("q8_0", "mxfp4"), ("bf16", "mxfp4"), ("bf16", "mxfp4")]
    assert stored_formats(load_model("gpt-oss-20b", weights="q8_0", experts="q8_0")) == ("q8_0", "q8_0")
    assert stored_formats(read_subject(values | of_file | {"model": "qwen2.5-7b"})[0]) == ("bf16", "")


def test_a_first_token_has_the_range_of_the_fit():
    runs_on = load_engine("llama.cpp")
    for regime in WAITS:
        assert [float(end) for end in factors(runs_on, "ttft", regime)] == pytest.approx([0.662, 1.317])


def test_the_command_gives_a_range_for_a_gguf_file_type():
    words = ["step", "qwen2.5-7b", "dgx-spark", "--engine", "llama.cpp", "--weights", "q4_k_m", "--batch", "1", "--json"]
    ran = CliRunner().invoke(app_for(words), words)
    assert ran.exit_code == 0, ran.output
    answer = json.loads(ran.stdout)
    low, high = answer["range_s"]
    assert low < answer["total_s"] < high
    assert answer["weights"] == "q4_k_m"


def test_a_diffusion_model_is_out_of_scope(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.30.0"}', encoding="utf-8")
    with pytest.raises(ConfigError, match="diffusion model"):
        st.load_model(config)


def test_a_static_batch_is_validated_as_decode_steps_and_one_prefill():
    row = {
        "id": "a", "model": "gpt-oss-20b", "system": "dgx-spark", "engine": "llama.cpp", "input_tokens": "4096",
        "output_tokens": "32", "concurrency": "4", "tp": "1", "pp": "1", "dp": "1", "ep": "1", "weight_dtype": "bf16",
        "expert_dtype": "mxfp4", "ttft_s": "4.653", "tpot_s": "0.028594", "note": "static batch: ttft_s is the prefill of all",
    }  # fmt: skip
    told = predict([row])
    model = load_model("gpt-oss-20b", weights="q8_0", experts="mxfp4")
    decode = decode_step(model, "dgx-spark", batch=4, context=4112, engine="llama.cpp")
    chunks = mixed_step(model, "dgx-spark", prompts=1, tokens=2048, prefix=np.array([0, 2048]), engine="llama.cpp")
    assert told.tpot[0] == pytest.approx(float(decode.total), rel=1e-6)
    assert told.ttft[0] == pytest.approx(4 * float(chunks.total.sum()), rel=1e-6)
    assert told.tpot_low[0] < 0.028594 < told.tpot_high[0]
    # Without the note, prompts of other requests slow the tokens.
    assert predict([row | {"note": ""}], by_simulation=False).tpot[0] > 1.5 * told.tpot[0]
