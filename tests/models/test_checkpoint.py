"""What a config tells of its checkpoint: where it lies, and in which formats."""

from __future__ import annotations

import pytest

import steptime as st
from steptime.models.model import Checkpoint, stored_formats


@pytest.mark.parametrize(
    ("name", "place", "weights", "experts", "kv"),
    [
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3", "fp8", "fp8", "bf16"),
        ("qwen3-14b", "Qwen/Qwen3-14B", "bf16", "", "bf16"),
        ("gpt-oss-120b", "openai/gpt-oss-120b", "bf16", "mxfp4", "bf16"),
        ("nvidia/Kimi-K2.5-NVFP4", "nvidia/Kimi-K2.5-NVFP4", "bf16", "nvfp4", "fp8"),
    ],
)
def test_formats_of_a_checkpoint_outlast_those_asked_for(name, place, weights, experts, kv):
    wanted = Checkpoint(place=place, weights=weights, experts=experts, kv=kv)
    assert st.load_model(name).checkpoint == wanted
    changed = st.load_model(name, weights="int8", kv="fp8")
    assert changed.checkpoint == wanted
    assert changed.kv_format == "fp8"
    assert stored_formats(changed) == ("int8", "int8" if experts else "")


def test_a_config_without_a_name_tells_no_place():
    fields = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
        "vocab_size": 10,
    }  # fmt: skip
    assert st.load_model(fields).checkpoint == Checkpoint(weights="bf16", kv="bf16")


@pytest.mark.parametrize(("system", "chips"), [("gb200-nvl72", 4), ("hgx-h100", 8), ("gh200-nvl32", 2), ("rtx-pro-6000-2", 2)])
def test_hosts_are_as_large_as_the_file_says_or_as_the_domain(system, chips):
    from steptime.planning.served import what_is_served

    assert what_is_served(st.load_model("qwen3-14b"), st.load_system(system)).host_chips == chips
