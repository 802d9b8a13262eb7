"""Models worked out by hand: parameters, caches, states and FLOPs of the newer families."""

from __future__ import annotations

import pytest

import steptime as st
from steptime.models.model import (
    active_parameters,
    cache_bytes,
    decode_flops_per_token,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    matmul_flops_per_token,
    state_bytes,
    total_parameters,
    weight_bytes,
)
from tests.conftest import each

D, VOCABULARY, ATTENTION, CONVOLUTIONS = 2048, 65_536, 6, 10


def test_lfm2():
    """LFM2-1.2B: 16 layers 2,048 wide, six of attention with 8 KV heads of 64, ten of a convolution of three taps."""
    model = st.load_model("LiquidAI/LFM2-1.2B")
    feed_forward = 3 * D * 8192  # 12,288 * 2 / 3, a multiple of 256
    attention = 2 * D * D + 2 * D * 512 + 2 * 64
    convolution = 3 * D * D + D * D + 3 * D
    norms = 2 * D
    by_hand = 16 * (feed_forward + norms) + ATTENTION * attention + CONVOLUTIONS * convolution + VOCABULARY * D + D
    assert total_parameters(model) == by_hand == 1_170_340_608
    assert kv_bytes_per_token(model) == ATTENTION * 2 * 8 * 64 * 2 == 12_288
    assert state_bytes(model) == CONVOLUTIONS * D * 2 * 2 == 81_920  # two inputs of 16 bits a channel
    matrices = 16 * feed_forward + ATTENTION * (attention - 128) + CONVOLUTIONS * 4 * D * D + VOCABULARY * D
    assert matmul_flops_per_token(model) == 2 * matrices
    pairs, taps = ATTENTION * 2 * 2 * 32 * 64 * 1000, CONVOLUTIONS * 2 * 3 * D
    assert decode_flops_per_token(model, 1000) == 2 * matrices + pairs + taps


def test_rwkv7_has_the_published_parameters():
    """The report (arXiv 2503.14456) has 2,947,735,040; a state is a matrix of 64 by 64 for each of 40 heads, and two tokens."""
    model = st.load_model("rwkv7-2.9b")
    assert total_parameters(model) == model.published["total"] == 2_947_735_040
    assert kv_bytes_per_token(model) == 0
    assert state_bytes(model) == 32 * (40 * 64 * 64 * 4 + 2 * 2560 * 2) == 21_299_200


def test_a_shared_block_is_stored_once_and_read_in_each_layer():
    """Zamba2-2.7B has two blocks for nine hybrid layers; seven of these layers store only matrices of their own."""
    model = st.load_model("Zyphra/Zamba2-2.7B")
    hybrid = [(layer, n) for layer, n in model.layers if layer.attention[1:]]
    assert sum(n for _, n in hybrid) == 9
    shared = 3 * 5120 * 5120 + 5120 * 2560 + 3 * 2560 * 10_240 + 5120 + 2560
    own = sum(n * sum(op.total_weights for op in layer.ops) for layer, n in hybrid)
    read = sum(n * sum(op.weights for op in layer.ops) for layer, n in hybrid)
    assert read - own == 7 * shared
    assert kv_bytes_per_token(model) == 9 * 2 * 32 * 160 * 2


def test_experts_that_return_their_input_cost_nothing():
    """LongCat-Flash: of 12 experts that a token chooses among 768, 8 compute when all are alike popular."""
    model = st.load_model("meituan-longcat/LongCat-Flash-Chat")
    routed = next(op for layer, _ in model.layers for op in layer.ops if op.rows == "routed")
    assert (routed.experts, routed.active) == (512, 8)
    assert next(op for layer, _ in model.layers for op in layer.ops if op.name == "router").outputs == 768
    assert total_parameters(model) / 1e9 == pytest.approx(560, rel=0.002)  # the report's title
    assert 18.6e9 < active_parameters(model) < 31.3e9  # its range
    assert kv_bytes_per_token(model) == 28 * 2 * (512 + 64) * 2


def test_layers_with_fields_of_their_own():
    """Two layers of 2 x 24 values, two of 2 x 32 values and another width of the feed-forward block."""
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2,
        "head_dim": 24, "vocab_size": 128,
        "per_layer_config": {"01": {"head_dim": 32}, 3: {"head_dim": 32, "intermediate_size": 48}},
    }  # fmt: skip
    model = st.load_model(config)
    assert kv_bytes_per_token(model) == 2 * 2 * 2 * (2 * 24 + 2 * 32)
    attention = 4 * 64 * (2 * 48 + 2 * 64)
    assert total_parameters(model) == attention + 3 * 64 * (3 * 96 + 48) + 2 * 128 * 64 + 9 * 64
    with pytest.raises(st.InputError, match=r"per_layer_config.*table of layers"):
        st.load_model(config | {"per_layer_config": [1]})


def test_a_window_stops_the_cache():
    """RecurrentGemma-2B keeps 2,048 tokens in eight layers of one KV head of 256, and a value and three taps a channel."""
    model = st.load_model("google/recurrentgemma-2b")
    state = 18 * 2560 * (4 + 3 * 2)
    assert growing_kv_bytes_per_token(model) == 0
    assert cache_bytes(model, 100_000) == 8 * 2 * 256 * 2 * 2048 + state


def test_kimi_k2_thinking_stores_routed_experts_in_four_bits():
    """60 layers of 384 experts of 3 x 7168 x 2048: weights of 4 bits, a scale of 16 bits per 32, and two integers a matrix."""
    model = st.load_model("kimi-k2-thinking")
    experts = 60 * 384 * 3 * 7168 * 2048
    others = total_parameters(model) - experts
    assert weight_bytes(model) == experts * (4 + 16 / 32) / 8 + 60 * 384 * 3 * 16 + 2 * others
    assert weight_bytes(model) == pytest.approx(594e9, rel=2e-3)


PUBLISHED_GEMMA_3 = {"hidden_size": 3840, "intermediate_size": 15360, "num_attention_heads": 16, "num_hidden_layers": 48,
                     "num_key_value_heads": 8, "sliding_window": 1024}  # fmt: skip


@each(
    "config, heads, kv_heads, head_dim",
    [
        # google/gemma-3-12b-it and 4b-it as published: text_config without the sizes that equal transformers' defaults.
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"} | PUBLISHED_GEMMA_3}, 16, 8, 256),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                                                  "num_hidden_layers": 34, "sliding_window": 1024}}, 8, 4, 256),
        # transformers' Qwen3Config has 128 values a head whatever the width; LlamaConfig shares the width.
        ({"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
          "num_hidden_layers": 36, "num_key_value_heads": 8, "vocab_size": 151_936}, 32, 8, 128),
        ({"model_type": "llama", "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
          "num_hidden_layers": 36, "num_key_value_heads": 8, "vocab_size": 151_936}, 32, 8, 80),
    ],
)  # fmt: skip
def test_a_config_without_a_default_size_has_that_of_transformers(config, heads, kv_heads, head_dim):
    model = st.load_model(config)
    depth = sum(count for _, count in model.layers)
    assert model.heads == heads
    assert kv_bytes_per_token(model) == depth * 2 * kv_heads * head_dim * 2
