"""Models with other fields: what changes, what stays, and what makes up for it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from steptime.errors import InputError, RangeError, UnknownName
from steptime.models.model import active_parameters, kv_bytes_per_token, total_parameters, weight_bytes
from steptime.models.model_loading import load_model
from steptime.models.model_variants import variant

LLAMA, DEEPSEEK, QWEN = "llama-3.3-70b", "deepseek-v3", "qwen3-235b-a22b"


def test_kv_heads_by_hand():
    base, found = load_model(LLAMA), variant(LLAMA, {"kv_heads": 2})
    assert kv_bytes_per_token(found) == kv_bytes_per_token(base) / 4 == 2 * 2 * 128 * 80 * 2
    assert total_parameters(base) - total_parameters(found) == 80 * 2 * 8192 * 6 * 128  # six KV heads fewer, keys and values
    assert found.name == base.name  # what was measured of its drafts is looked up by it
    assert found.notes == ("variant with kv_heads 2",)
    assert total_parameters(variant(LLAMA, {})) == total_parameters(base)


def test_latent_attention_in_place_of_grouped_and_the_other_way():
    found = variant(LLAMA, {"attention": "latent"})
    assert kv_bytes_per_token(found) == (512 + 64) * 2 * 80
    back = variant(DEEPSEEK, {"attention": "grouped", "kv_heads": 4})
    assert kv_bytes_per_token(back) == 2 * 4 * 128 * 2 * 61
    assert variant(DEEPSEEK, {"attention": "latent"}).layers == load_model(DEEPSEEK).layers
    assert kv_bytes_per_token(variant(DEEPSEEK, {"latent": 256})) == (256 + 64) * 2 * 61


@pytest.mark.slow
@settings(max_examples=12)
@given(layers=some.integers(20, 160), by=some.sampled_from(["ffn", "width"]))
def test_depth_against_width_at_equal_parameters(layers, by):
    base = total_parameters(load_model(LLAMA))
    try:
        found = variant(LLAMA, {"layers": layers, "equal": "total", "by": by})
    except InputError:
        assert by == "ffn"  # so many layers are larger than the model without any feed-forward block
        return
    assert found.depth == layers
    assert total_parameters(found) == pytest.approx(base, rel=0.02)


@pytest.mark.thorough
def test_granularity_of_experts_at_equal_parameters():
    base = load_model(QWEN)
    for experts in (32, 64, 256):
        found = variant(QWEN, {"experts": experts, "equal": "total"})
        assert total_parameters(found) == pytest.approx(total_parameters(base), rel=0.02)
    fine = variant(QWEN, {"experts": 256, "active": 16, "equal": "total"})
    assert active_parameters(fine) == pytest.approx(active_parameters(base), rel=0.02)


@pytest.mark.thorough
def test_what_a_model_has_not_is_named():
    with pytest.raises(UnknownName, match="Its config has layers, width, heads, kv_heads, ffn"):
        variant(LLAMA, {"experts": 8})
    with pytest.raises(UnknownName, match="did you mean kv_heads"):
        variant(LLAMA, {"kv_head": 8})
    with pytest.raises(InputError, match="kv_heads: not used in latent attention"):
        variant(DEEPSEEK, {"kv_heads": 8})
    with pytest.raises(UnknownName, match="Known: grouped, latent"):
        variant(LLAMA, {"attention": "linear"})
    with pytest.raises(UnknownName, match="Known: total, active"):
        variant(LLAMA, {"kv_heads": 2, "equal": "all"})
    with pytest.raises(RangeError, match="needs equal=total"):
        variant(LLAMA, {"kv_heads": 2, "by": "ffn"})
    with pytest.raises(InputError, match="no value of ffn restores the total parameters"):
        variant(LLAMA, {"layers": 900, "equal": "total"})
    with pytest.raises(InputError, match="equal layers and full attention"):
        variant("gpt-oss-120b", {"attention": "latent"})


def test_what_would_be_lost_or_change_nothing_is_refused():
    for name in ("ERNIE-4.5-300B-A47B-PT", "qwen3-next-80b-a3b-instruct", "mixtral-8x7b", "grok-2"):
        with pytest.raises(InputError):
            variant(name, {"attention": "latent"})
    with pytest.raises(InputError, match="layers: cannot change, because hybrid_override_pattern"):
        variant("nvidia/NVIDIA-Nemotron-Nano-9B-v2", {"layers": 80})
    with pytest.raises(InputError, match="ffn: 4,096 changes nothing in"):
        variant(QWEN, {"ffn": 4096})
    with pytest.raises(InputError, match="by: width would change ffn"):
        variant(LLAMA, {"layers": 60, "ffn": 20000, "equal": "total", "by": "width"})
    with pytest.raises(UnknownName, match="Known: expert_width, ffn, width, layers"):
        variant(LLAMA, {"kv_heads": 2, "equal": "total", "by": "heads"})


def test_formats_and_drafts_and_first_layers_stay():
    eight_bit = variant("qwen3-235b-a22b-fp8", {"attention": "latent"})
    assert weight_bytes(eight_bit) < 1.15 * total_parameters(eight_bit)
    glm, changed = load_model("glm-4.5"), variant("glm-4.5", {"attention": "latent"})
    assert [count for _, count in changed.layers] == [count for _, count in glm.layers]
    assert sum(count for _, count in changed.draft) == sum(count for _, count in glm.draft)
    deep = variant(LLAMA, {"attention": "latent", "layers": 100})
    assert deep.depth == 100
    assert not any(layer.routed for layer, _ in deep.layers)


def test_models_of_text_and_pictures_keep_both():
    base = load_model("google/gemma-3-27b-it")
    found = variant("google/gemma-3-27b-it", {"head_dim": 64})
    assert kv_bytes_per_token(found) == kv_bytes_per_token(base) / 2
    assert found.stem != ()


@pytest.mark.thorough
def test_depth_that_makes_up():
    found = variant(LLAMA, {"width": 4096, "equal": "total", "by": "layers"})
    assert total_parameters(found) == pytest.approx(total_parameters(load_model(LLAMA)), rel=0.01)
    assert found.depth > 80
