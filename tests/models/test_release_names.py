"""Names of other releases: the shape that they stand for, the format in the name, and names that must not resolve."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from steptime.errors import UnknownName
from steptime.models.model_loading import load_model
from steptime.models.release_names import SHAPE_NOTE, find_release, parse_release
from tests.conftest import each, every

MEASURED = Path(__file__).parents[3] / "shared" / "data" / "measured"


@pytest.mark.parametrize(
    ("name", "entry", "formats"),
    every(
        3,
        [
            ("Qwen3-235B-A22B-Instruct-2507", "Qwen/Qwen3-235B-A22B", ("bf16", "bf16")),
            ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen/Qwen3-235B-A22B-FP8", ("fp8", "fp8")),
            ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen/Qwen3-30B-A3B", ("bf16", "bf16")),
            ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen/Qwen3-30B-A3B", ("bf16", "bf16")),
            ("Qwen/Qwen2.5-Coder-7B", "Qwen/Qwen2.5-7B", ("bf16", "")),
            ("Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B", ("int4", "")),
            ("qwen3-32b-awq-int4", "Qwen/Qwen3-32B", ("int4", "")),
            ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "Qwen/Qwen3-30B-A3B", ("int4", "int4")),
            ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-72B", ("int8", "")),
            ("RedHatAI/Qwen3-32B-FP8-dynamic", "Qwen/Qwen3-32B", ("fp8", "")),
            ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "meta-llama/Llama-3.1-8B", ("int8", "")),
            ("unsloth/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", ("bf16", "")),
            ("unsloth/Qwen3-8B-bnb-4bit", "Qwen/Qwen3-8B", ("int4", "")),
            ("unsloth/gpt-oss-120b-BF16", "openai/gpt-oss-120b", ("bf16", "bf16")),
            ("openai-gpt-oss-120b", "openai/gpt-oss-120b", ("bf16", "mxfp4")),
            ("nvidia/DeepSeek-R1-FP4", "deepseek-ai/DeepSeek-R1", ("nvfp4", "nvfp4")),
            ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-ai/DeepSeek-R1", ("nvfp4", "nvfp4")),
            ("amd/DeepSeek-R1-MXFP4", "deepseek-ai/DeepSeek-R1", ("mxfp4", "mxfp4")),
            ("Qwen/Qwen3-VL-32B-Thinking-FP8", "Qwen/Qwen3-VL-32B-Thinking", ("fp8", "")),
            ("moonshotai/Kimi-K2-Instruct-0905", "moonshotai/Kimi-K2-Instruct", ("fp8", "fp8")),
            # A distilled model has the shape of its student (the model card of DeepSeek-R1 names them).
            ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "meta-llama/Llama-3.3-70B-Instruct", ("bf16", "")),
            ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "meta-llama/Llama-3.1-8B", ("bf16", "")),
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen/Qwen2.5-32B", ("bf16", "")),
            ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "Qwen/Qwen3-8B", ("bf16", "")),
        ],
    ),
)
def test_load_model_another_release_takes_shape_and_format_with_a_note(name, entry, formats):
    model, shape = load_model(name), load_model(entry)
    assert model.name == shape.name == entry
    assert (model.width, model.vocabulary, model.heads) == (shape.width, shape.vocabulary, shape.heads)
    assert (model.checkpoint.weights, model.checkpoint.experts) == formats
    assert model.notes[0].startswith(f"{name}: {SHAPE_NOTE}{entry}")
    assert "/" not in name or model.checkpoint.place == name


@pytest.mark.parametrize(
    "name",
    every(2, [
        # Other shapes of known families.
        "Llama-3.2-8B", "Qwen3-32B-A3B", "Qwen3-Next-32B", "Qwen/Qwen3-Reranker-8B", "Qwen/Qwen3-Embedding-8B",
        "Qwen3-8B-speculator.eagle3", "EAGLE3-LLaMA3.1-Instruct-8B", "nvidia/Llama-3.1-Nemotron-70B-Instruct",
        "mistralai/Mistral-Large-2512", "mistralai/Mistral-7B-Instruct-v0.2", "microsoft/Phi-4-multimodal-instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Llama-405B", "zai-org/GLM-5-Air",
        "Qwen/Qwen2.5-7B-Instruct-1M", "cerebras/Qwen3-Coder-REAP-25B-A3B", "R1",
        # No release of full size, several formats, no format.
        "tiny-random/Qwen3-32B", "Qwen/Qwen3-32B-FP8-Int4", "unsloth/Qwen3-32B-GGUF",
    ]),
)  # fmt: skip
def test_load_model_other_shape_or_unclear_name_is_refused(name):
    with pytest.raises(UnknownName):
        load_model(name)


@each(
    "name, entry, place, notes",
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct", 0),
        ("llama-3.1-70b-instruct", "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct", 0),
        ("llama-3.1-70b", "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B", 0),
        ("c4ai-command-a-03-2025", "CohereLabs/c4ai-command-a-03-2025", "CohereLabs/c4ai-command-a-03-2025", 0),
        ("DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1-0528", 0),
        ("kimi-k2.6", "moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6", 1),
        ("Qwen/QwQ-32B", "Qwen/Qwen2.5-32B", "Qwen/QwQ-32B", 1),
        ("MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.5", "MiniMaxAI/MiniMax-M2", 1),
    ],
)
def test_load_model_alias_keeps_its_own_checkpoint(name, entry, place, notes):
    model = load_model(name)
    assert (model.name, model.checkpoint.place, len(model.notes)) == (entry, place, notes)


def test_load_model_user_format_replaces_that_of_the_name():
    model = load_model("Qwen/Qwen3-32B-AWQ", weights="fp8")
    assert {op.format.name for layer, _ in model.layers for op in layer.ops if op.term == "projections"} == {"fp8"}
    assert "int4" not in model.notes[0]
    assert load_model("amd/Llama-3.1-405B-Instruct-FP8-KV").kv_format == "fp8"
    assert load_model("amd/Llama-3.1-405B-Instruct-FP8-KV", kv="bf16").kv_format == "bf16"


def test_load_model_later_release_has_no_known_context_limit():
    assert load_model("Qwen/Qwen3-32B-AWQ").max_context == load_model("Qwen/Qwen3-32B").max_context == 40960
    assert load_model("Qwen3-235B-A22B-Instruct-2507").max_context == math.inf


def test_find_release_date_without_size_tells_models_apart():
    labels = {"a/Big-Instruct-2407": ("a/Big-Instruct-2407",), "a/Big-7B-2407": ("a/Big-7B-2407",)}
    assert find_release("Big-Instruct-2411", labels) is None
    assert find_release("Big-Chat-2407", labels).entries == ("a/Big-Instruct-2407",)
    assert find_release("Big-7B-2411", labels).entries == ("a/Big-7B-2407",)


def test_find_release_of_equal_standing_returns_all():
    labels = {"a/X-7B": ("a/X-7B",), "b/X-7B": ("b/X-7B",)}
    assert find_release("X-7B-Chat", labels).entries == ("a/X-7B", "b/X-7B")


def test_parse_release_every_catalogue_size_stays_in_the_core():
    for name in ("Qwen3-30B-A3B-Instruct-2507-FP8", "Llama-4-Scout-17B-16E-Instruct", "Mixtral-8x7B-Instruct-v0.1"):
        parts = parse_release(name)
        assert parts.has_size
        assert not {"instruct", "2507", "fp8"} & set(parts.core)


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measured runs are not beside this checkout")
def test_load_model_every_name_of_measured_runs_resolves():
    names = set()
    for path in MEASURED.glob("*.csv"):
        with path.open(newline="") as file:
            names |= {row.get("model") or "" for row in csv.DictReader(file)}
    names = {name for name in names if name and not name.endswith(".json")}
    assert len(names) >= 38
    for name in names:
        model = load_model(name)
        asked, taken = parse_release(name), parse_release(model.name)
        sizes = [word for word in asked.core if any(mark.isdigit() for mark in word)]
        assert set(sizes) <= set(taken.core) | {"meta"}, (name, model.name)


def test_releases_in_eight_bits_have_the_scales_of_their_maker():
    """FP8 of GLM-5 and Qwen3.5 has one scale per 128 x 128 weights, by name and by format; GLM-4.6 and Llama have not."""
    names = ("zai-org/GLM-5", "Qwen/Qwen3.5-397B-A17B", "zai-org/GLM-4.6", "meta-llama/Llama-3.3-70B-Instruct")
    models = [load_model(name, weights="fp8") for name in names]
    blocks = [{op.format.block for layer, _ in m.layers for op in layer.ops if op.format.name == "fp8"} for m in models]
    assert blocks == [{128}, {128}, {0}, {0}]
    named, given = load_model("Qwen/Qwen3.5-397B-A17B-FP8"), models[1]
    assert named.layers == given.layers
