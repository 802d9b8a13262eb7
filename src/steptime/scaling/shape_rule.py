"""Models of any size by one rule: the shape that a family of models of a budget has, as a config that `load_model` reads.

As Llama 3's three sizes: heads of 128 values, 8 KV heads, a gated feed-forward block of 3.5 times the width, a vocabulary of
128,256, and about one layer for every 128 of width (8 B: 4,096 and 32 layers; 70 B: 8,192 and 80; 405 B: 16,384 and 126). The
width is 1,024 times a number of three bits (1 to 8, then 10, 12, 14, 16, 20 ...), so that KV heads divide the heads and wide
models divide over many chips; layers make up for it. A mixture has as many layers of the same attention; its experts are
1/granularity of the block each, and a token goes to `granularity` of them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

from steptime.errors import RangeError
from steptime.models.model import Model
from steptime.models.model_loading import load_model

HEAD, KV_HEADS, FEED_FORWARD, VOCABULARY = 128, 8, 3.5, 128_256  # Llama 3, arXiv 2407.21783, Table 3
WIDTHS: Final = tuple(1024 * mantissa << exponent for exponent in range(6) for mantissa in range(1 if not exponent else 5, 9))
LAYERS_TO_WIDTH: Final = 128
SMALLEST, LARGEST = 0.3e9, 30e12  # parameters that the rule makes models of
POSITIONS: Final = 1_048_576


def per_layer(width: int) -> float:
    """Return the active parameters of a layer: queries and outputs, keys and values, three matrices of the feed-forward block.

    >>> per_layer(8192)
    855638016.0
    """
    return 2 * width**2 + 2 * width * KV_HEADS * HEAD + 3 * FEED_FORWARD * width**2


def width_and_layers(active: float) -> tuple[int, int]:
    """Return width and layers of about `active` parameters, in about Llama's proportion; the head counts.

    >>> width_and_layers(70e9), width_and_layers(8e9), width_and_layers(0.4e9)
    ((8192, 81), (4096, 34), (1024, 18))
    """
    shapes = [(width, max(1, round((active - VOCABULARY * width) / per_layer(width)))) for width in WIDTHS]
    return min(shapes, key=lambda shape: abs(math.log(shape[0] / (LAYERS_TO_WIDTH * shape[1]))))


def model_config(active: float, experts: int = 1, granularity: int = 1) -> dict[str, Any]:
    """Return the config of a model of about `active` parameters: experts times the feed-forward block where they are over one.

    >>> config = model_config(70e9)
    >>> config["hidden_size"], config["num_hidden_layers"]
    (8192, 81)
    """
    if not SMALLEST <= active <= LARGEST:
        raise RangeError(f"models are shaped from {SMALLEST / 1e9:g} B to {LARGEST / 1e12:g} T parameters, not {active:,.0f}")
    width, layers = width_and_layers(active)
    block = round(FEED_FORWARD * width)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": block,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    if experts > 1:
        config |= {
            "model_type": "qwen3_moe",
            "num_experts": experts * granularity,
            "num_experts_per_tok": granularity,
            "moe_intermediate_size": max(64, round(block / granularity / 64) * 64),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        }
    return config


@lru_cache(maxsize=256)
def shaped(active: float, experts: int = 1, granularity: int = 1, weights: str = "", kv: str = "") -> Model:
    """Return the model of the rule; weights and kv: number formats, bf16 by default."""
    return load_model(model_config(active, experts, granularity), weights=weights, kv=kv)
