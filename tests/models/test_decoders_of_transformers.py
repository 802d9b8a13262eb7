"""Every causal decoder that transformers builds from its defaults, and a thousand with sizes and switches changed at random."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

import steptime as st
from steptime.models.family_registry import REFUSED, known_families
from steptime.models.model import active_parameters, total_parameters
from steptime.models.model_loading import read_model
from tests.models.test_oracle_transformers import EXPERTS, TOWERS, auto, routed_share, spare

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
__all__ = ["auto"]

NOT_READ = {
    "blt": "bytes grouped into patches by a model of its own, cross-attention between two widths",
    "cpmant": "relative position biases by segment, a prompt of its own tokens",
    "deepseek_v2": "its defaults name no experts a token",
    "doge": "a mask that the values make, experts by retrieval",
    "git": "an encoder of images whose features precede the text; Grok-2's configs have the same model_type",
    "glm4_moe": "its defaults divide 4,096 by 96 heads, and drop the rest",
    "got_ocr2": "a tower of images",
    "inkling2_text": "residual streams that layers attend to",
    "jetmoe": "experts inside attention",
    "mllama": "cross-attention to images",
    "modernbert-decoder": "a head of its own",
    "moshi": "a second decoder over codes of sound",
    "moss_transcribe_diarize": "a tower of sound",
    "phi4_multimodal": "towers of images and sound",
}
"""Decoders that steptime refuses, and what it lacks; `via="transformers"` reads most of them."""


def kinds(auto: Any) -> list[str]:
    """Return what transformers' mapping of causal language models has, without encoders and encoder-decoders."""
    return [kind for kind in sorted(auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) if kind not in REFUSED]


def causal(auto: Any, kind: str, **changed: Any) -> tuple[Any, dict[str, Any]] | None:
    """Return transformers' model on the meta device and its config.json, or None where it builds none."""
    import torch

    try:
        ours = auto.configuration_auto.AutoConfig.for_model(kind, **changed)
        with torch.device("meta"):
            model = auto.AutoModelForCausalLM.from_config(ours)
    except Exception:
        return None
    return model, json.loads(ours.to_json_string(use_diff=False))


def text_parameters(model: Any, config: dict[str, Any]) -> tuple[float, float]:
    """Return all and the active parameters of the language part."""
    sizes = {name: p.numel() for name, p in model.named_parameters() if not TOWERS.search(name)}
    routed = sum(size for name, size in sizes.items() if EXPERTS.search(name)) - spare(config)
    total = sum(sizes.values()) - spare(config)
    return total, total - routed * (1 - routed_share(config))


def our_parameters(config: dict[str, Any]) -> tuple[float, float]:
    """Return the same of our model; towers count in neither."""
    model = read_model(config)
    towers = sum(op.total_weights for op in model.stem if op.rows == "none")
    return total_parameters(model) - towers, active_parameters(model)


def test_nine_of_ten_decoders_are_read_and_none_differs(auto: Any) -> None:
    built, read, refused = 0, 0, set()
    for kind in kinds(auto):
        found = causal(auto, kind)
        if found is None:
            continue
        model, config = found
        built += 1
        total, active = text_parameters(model, config)
        del model
        try:
            ours = our_parameters(config)
        except st.InputError:
            refused.add(kind)
            continue
        read += 1
        assert ours[0] == total, (kind, ours, total)
        assert math.isclose(ours[1], active, abs_tol=0.5), (kind, ours, active)
    assert refused == NOT_READ.keys()
    assert built >= 140
    assert read >= 0.9 * built, (read, built)


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_encoders_are_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(st.InputError, match=r"encoder|sound"):
        read_model({"model_type": kind})


ROUNDS, SEED = 12, 19
LEFT_ALONE = {
    "transformers_version", "output_hidden_states", "return_dict", "output_attentions", "use_cache", "is_encoder_decoder",
    "chunk_size_feed_forward", "is_decoder", "add_cross_attention", "num_logits_to_keep", "output_router_logits",
    "expansion_ratio",  # transformers' MPT has four times the width, whatever its config says
    "qk_head_dim",  # the sum of two others
    "embedding_dim",  # xLSTM: another name of the width
}  # fmt: skip
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
NEEDED: dict[str, dict[str, Any]] = {
    "dots1": {"n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "first_k_dense_replace": 1},
    "hunyuan_v1_moe": {"head_dim": 64, "num_experts": 8},
    "deepseek_v2": {"num_experts_per_tok": 4},
    "glm4_moe": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "ministral": {"head_dim": 128},
}
"""Fields without which transformers builds no model of these kinds, or none that runs."""
UNTIED = ("zamba", "zamba2")
"""Kinds whose shared blocks transformers stores apart once embedding and head are."""
WITH_TOWERS = (
    "emu3",
    "fuyu",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "llama4",
    "qwen3_5",
    "qwen3_5_moe",
    "dots3_note",
)


def perturbed(rng: random.Random, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return up to six sizes, counts and switches of the config, changed."""
    fields = [
        name
        for name, value in config.items()
        if name not in LEFT_ALONE
        and isinstance(value, int)
        and "token_i" not in name
        and "token" not in name.rpartition("_")[2]
    ]
    changed: dict[str, Any] = {}
    for name in rng.sample(fields, min(len(fields), rng.randint(1, 6))):
        value = config[name]
        if isinstance(value, bool):
            changed[name] = rng.random() < 0.5
        elif name in DEPTHS:
            changed[name] = rng.randint(1, 9)
        elif value <= 16:
            changed[name] = rng.choice((0, 1, 2)) if value == 0 else rng.randint(1, 8)
        else:
            changed[name] = max(1, int(value * rng.choice((0.25, 0.5, 0.75, 1.5, 2))))
    if kind in UNTIED:
        changed.pop("tie_word_embeddings", None)
    return changed


def runs(config: dict[str, Any]) -> bool:
    """Whether a pass of such a model works: heads divide what they must, and there are as many experts as a token takes."""

    def first(*names: str) -> int | None:
        return next((config[name] for name in names if isinstance(config.get(name), int)), None)

    heads, width = first("num_attention_heads", "n_head", "num_heads", "n_heads"), first("hidden_size", "n_embd", "d_model")
    kv_heads, head_dim = first("num_key_value_heads") or heads, first("head_dim")
    experts = first("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    chosen = first("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token")
    inner = first("mamba_d_ssm") or (first("mamba_expand", "expand") and first("mamba_expand", "expand") * width)
    parts = (
        (inner, first("mamba_n_heads", "n_mamba_heads")),
        (first("linear_num_value_heads"), first("linear_num_key_heads")),
        (first("lru_width"), heads),
        (heads and head_dim and heads * head_dim, first("o_groups")),
    )
    return (
        all(whole % part == 0 for whole, part in parts if whole and part)
        and (not experts or not chosen or chosen <= experts)
        and (
            not heads or "attention" not in str(sorted(config)) or (heads % kv_heads == 0 and (head_dim or width % heads == 0))
        )
        and not (config["model_type"] == "helium" and heads * head_dim != width)
    )


def test_a_thousand_perturbed_decoders_are_equal(auto: Any) -> None:
    rng, equal, wrong = random.Random(SEED), 0, []
    known = [kind for kind in kinds(auto) if kind in known_families() and kind not in (*WITH_TOWERS, "git")]
    for _ in range(ROUNDS):
        for kind in known:
            base = NEEDED.get(kind, {})
            plain = auto.configuration_auto.AutoConfig.for_model(kind, **base).to_dict()
            changed = base | perturbed(rng, kind, plain)
            found = causal(auto, kind, **changed)
            if found is None or not runs(found[1]):
                continue
            total = sum(p.numel() for p in found[0].parameters()) - spare(found[1])
            try:
                ours: float | str = total_parameters(read_model(found[1]))
            except st.InputError as problem:
                ours = str(problem)
            equal += ours == total
            wrong += [] if ours == total else [(kind, changed, ours, total)]
    assert equal + len(wrong) >= 1000
    assert equal >= 0.995 * (equal + len(wrong)), (equal, wrong)
