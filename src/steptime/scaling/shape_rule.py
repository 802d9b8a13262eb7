"""Shape of a model of any size by one rule, as a config for `load_model`.

The rule follows the three sizes of Llama 3: heads of 128 values, 8 KV heads, a gated feed-forward block of 3.5 times the
width, a vocabulary of 128,256. There is about one layer per 128 of width (8 B: 4,096 and 32 layers; 70 B: 8,192 and 80; 405
B: 16,384 and 126).

The width is 1,024 times a number of three bits (1 to 8, then 10, 12, 14, 16, 20 ...). With this, KV heads divide the heads,
and wide models divide over many chips. The number of layers makes up the difference.

A mixture has the same number of layers with the same attention. Each expert has 1/granularity of the block, and a token
uses `granularity` experts.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

from steptime.errors import RangeError
from steptime.models.model import Model
from steptime.models.model_loading import load_model

# Head width, KV heads, feed-forward over width, tokens: Llama 3, arXiv 2407.21783, Table 3.
HEAD, KV_HEADS, FEED_FORWARD, VOCABULARY = 128, 8, 3.5, 128_256
WIDTHS: Final = tuple(1024 * mantissa << exponent for exponent in range(6) for mantissa in range(1 if not exponent else 5, 9))
# Width per layer of Llama 3.
LAYERS_TO_WIDTH: Final = 128
# Range of the rule [parameters].
SMALLEST, LARGEST = 0.3e9, 30e12
POSITIONS: Final = 1_048_576


def per_layer(width: int) -> float:
    """Return the active parameters of a layer.

    They are queries and outputs, keys and values, and three matrices of the feed-forward block.

    Args:
        width: Width of the residual stream.

    Returns:
        Parameters.

    >>> per_layer(8192)
    855638016.0
    """
    return 2 * width**2 + 2 * width * KV_HEADS * HEAD + 3 * FEED_FORWARD * width**2


def width_and_layers(active: float) -> tuple[int, int]:
    """Return the width and the number of layers for a number of parameters.

    The proportion is close to that of Llama 3. The head counts.

    Args:
        active: Active parameters.

    Returns:
        Width, and layers.

    >>> width_and_layers(70e9), width_and_layers(8e9), width_and_layers(0.4e9)
    ((8192, 81), (4096, 34), (1024, 18))
    """
    shapes = [(width, max(1, round((active - VOCABULARY * width) / per_layer(width)))) for width in WIDTHS]
    return min(shapes, key=lambda shape: abs(math.log(shape[0] / (LAYERS_TO_WIDTH * shape[1]))))


def model_config(active: float, experts: int = 1, granularity: int = 1) -> dict[str, Any]:
    """Return the config of a model with about the given active parameters.

    Above one expert, the feed-forward block exists `experts` times.

    Args:
        active: Active parameters.
        experts: Feed-forward blocks, of which a token uses one.
        granularity: Experts per token; each has 1/granularity of a feed-forward block.

    Returns:
        Config by key, as in config.json.

    Raises:
        RangeError: If the parameters are out of the range of the rule.

    >>> config = model_config(70e9)
    >>> config["hidden_size"], config["num_hidden_layers"]
    (8192, 81)
    """
    if not SMALLEST <= active <= LARGEST:
        raise RangeError(f"parameters: must be from {SMALLEST / 1e9:g} B to {LARGEST / 1e12:g} T, got {active:,.0f}")
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
            # Multiples of 64 keep the expert width divisible over chips.
            "moe_intermediate_size": max(64, round(block / granularity / 64) * 64),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        }
    return config


@lru_cache(maxsize=256)
def shaped(active: float, experts: int = 1, granularity: int = 1, weights: str = "", kv: str = "") -> Model:
    """Return the model of the rule.

    Args:
        active: Active parameters.
        experts: Feed-forward blocks, of which a token uses one.
        granularity: Experts per token; each has 1/granularity of a feed-forward block.
        weights: Number format of the weights; bf16 if empty.
        kv: Number format of the KV cache; bf16 if empty.

    Returns:
        Model.
    """
    return load_model(model_config(active, experts, granularity), weights=weights, kv=kv)
