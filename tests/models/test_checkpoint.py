"""What a config tells of its checkpoint: where it lies, and in which formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import steptime as st
from steptime.errors import DataFileError
from steptime.models.model import Checkpoint, stored_formats
from tests.conftest import each, every

MODELS = Path(st.__file__).parent / "data" / "models"


@pytest.mark.parametrize(
    ("name", "place", "weights", "experts", "kv"),
    [
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3", "fp8", "fp8", "bf16"),
        ("qwen3-14b", "Qwen/Qwen3-14B", "bf16", "", "bf16"),
        ("gpt-oss-120b", "openai/gpt-oss-120b", "bf16", "mxfp4", "bf16"),
        ("nvidia/GLM-5-NVFP4", "nvidia/GLM-5-NVFP4", "bf16", "nvfp4", "fp8"),
    ],
)
def test_formats_of_a_checkpoint_outlast_those_asked_for(name, place, weights, experts, kv):
    wanted = Checkpoint(place=place, weights=weights, experts=experts, kv=kv)
    assert st.load_model(name).checkpoint == wanted
    changed = st.load_model(name, weights="int8", kv="fp8")
    assert changed.checkpoint == wanted
    assert changed.kv_format == "fp8"
    assert stored_formats(changed) == ("int8", "int8" if experts else "")


@each(
    "name, format, attention, other",
    [
        ("deepseek-v3", "nvfp4", "bf16", "nvfp4"),
        ("deepseek-v3", "mxfp4", "bf16", "mxfp4"),
        ("deepseek-v3", "int8", "int8", "int8"),
        ("qwen3-14b", "nvfp4", "nvfp4", "nvfp4"),
        ("nvidia/GLM-5-NVFP4", "", "bf16", "nvfp4"),  # as its config tells
    ],
)
def test_published_checkpoints_of_four_bits_leave_attention_wide_beside_experts(name, format, attention, other):
    found = {}
    for layer, _ in st.load_model(name, weights=format).layers:
        for op in layer.ops:
            if op.flops_per_row and op.name != "router" and not (op.term == "projections" and "index" in op.name):
                found.setdefault(op.term, set()).add(op.format.name)
    assert found.pop("projections") == {attention}
    assert found.pop("experts" if "experts" in found else "feed-forward") == {other}
    assert found.pop("shared experts", {other}) <= {other, "bf16"}


def test_shared_experts_are_stored_as_the_other_weights_are():
    ops = [op for layer, _ in st.load_model("deepseek-v3", weights="bf16").layers for op in layer.ops]
    assert {op.format.name for op in ops if op.term == "shared experts"} == {"bf16"}


def test_a_config_without_a_name_tells_no_place():
    fields = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
        "vocab_size": 10,
    }  # fmt: skip
    assert st.load_model(fields).checkpoint == Checkpoint(weights="bf16", kv="bf16")


@each("system, chips", [("gb200-nvl72", 4), ("hgx-h100", 8), ("gh200-nvl32", 2), ("rtx-pro-6000-2", 2)])
def test_hosts_are_as_large_as_the_file_says_or_as_the_domain(system, chips):
    from steptime.planning.launch_facts import what_is_served

    assert what_is_served(st.load_model("qwen3-14b"), st.load_system(system)).host_chips == chips


# --- code of its own ------------------------------------------------------------------------------------------------------

KIMI = sorted(path for path in MODELS.glob("*.json") if "Kimi" in path.name)


@pytest.mark.parametrize("path", every(2, KIMI), ids=lambda path: path.stem)
def test_every_kimi_brings_code_of_its_own_and_says_who_tells_so(path):
    """vLLM, SGLang and TensorRT-LLM refuse them without the flag that trusts it; their shipped configs leave `auto_map` out."""
    told = json.loads(path.read_text(encoding="utf-8"))
    assert st.load_model(told["name"]).checkpoint.remote_code
    assert told["remote_code"]["url"].startswith("https://")
    assert told["remote_code"]["date"] >= "2026-11-21"
    assert told["remote_code"]["grade"] in ("read", "reported")


def test_models_that_engines_know_by_themselves_need_no_trust():
    assert len(KIMI) >= 8
    assert not any(st.load_model(name).checkpoint.remote_code for name in ("deepseek-v3", "qwen3-14b", "gpt-oss-120b"))


def test_who_tells_of_code_is_a_table(tmp_path):
    told = json.loads(KIMI[0].read_text(encoding="utf-8")) | {"remote_code": True}
    (tmp_path / "own.json").write_text(json.dumps(told))
    with pytest.raises(DataFileError, match="remote_code: must be a table, got True"):
        st.load_model(tmp_path / "own.json")
