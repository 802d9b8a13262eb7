"""Models that differ from one of the catalogue in a few fields of their config: heads, depth, latent rank, experts.

What is not changed is as in the config. With `equal` a further field, the width of feed-forward blocks or of experts unless
another is named, makes up for the change, so that variants have as many parameters in all, or for a token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from steptime.errors import InputError, RangeError, UnknownName, shown
from steptime.models.loading import config_of, load_model
from steptime.models.model import Model, active_parameters, total_parameters

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer"),
    "width": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size",),
    "latent": ("kv_lora_rank",),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "active": ("num_experts_per_tok",),
    "expert_width": ("moe_intermediate_size",),
}
"""Fields of a design, and what configs call them."""
ATTENTION, EQUAL, BY = "attention", "equal", "by"
GROUPED, LATENT = "grouped", "latent"
COUNTED: Final = {"total": total_parameters, "active": active_parameters}
ROUNDED: Final = 64  # what the field that makes up is a multiple of: tiles of matrix units
USUAL_LATENT, USUAL_HEADS = (
    {"kv_lora_rank": 512, "qk_rope_head_dim": 64},
    8,
)  # DeepSeek-V2 (arXiv 2405.04434); Llama 3's KV heads
OF_LATENT: Final = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def variant(
    name: str | os.PathLike[str],
    changes: Mapping[str, Any],
    *,
    weights: str = "",
    experts: str = "",
    kv: str = "",
    catalog: str | os.PathLike[str] | None = None,
) -> Model:
    """Return the model of a name with other fields: {"kv_heads": 4, "attention": "latent", "equal": "total"}.

    changes: values of `KEYS`; attention: "grouped" or "latent"; equal: "total" or "active" parameters that stay, to within a
    rounding of `by`, the field that makes up for the change. Raises UnknownName for a field that the config does not have, and
    InputError where no value of `by` brings the parameters back.

    >>> from steptime.models.model import kv_bytes_per_token
    >>> kv_bytes_per_token(variant("llama-3.3-70b", {"kv_heads": 4})), kv_bytes_per_token(load_model("llama-3.3-70b"))
    (163840.0, 327680.0)
    """
    frozen = tuple(sorted(changes.items()))
    return _variant(str(name), frozen, weights, experts, kv, None if catalog is None else str(catalog))


@lru_cache(maxsize=512)
def _variant(name: str, frozen: tuple[tuple[str, Any], ...], weights: str, experts: str, kv: str, catalog: str | None) -> Model:
    changes = dict(frozen)
    equal, by = changes.pop(EQUAL, None), changes.pop(BY, None)
    formats: dict[str, Any] = {"weights": weights, "experts": experts, "kv": kv}
    config = dict(config_of(name, catalog))
    base = load_model(name, **formats, catalog=catalog)
    told = ", ".join(f"{key} {value}" for key, value in sorted(changes.items()))
    config = _with_attention(config, changes)
    for field, value in changes.items():
        config = _with_field(config, field, value)
    if equal is None:
        if by is not None:
            raise RangeError(f"by={shown(by)} makes up for a change of parameters; it needs equal=total or equal=active")
        return _made(base, config, told, formats)
    if equal not in COUNTED:
        raise UnknownName("count of parameters", equal, COUNTED, "Known: total, active.")
    return _made_equal(base, config, told, formats, equal, by or _usual(config, changes))


def _made(base: Model, config: Mapping[str, Any], told: str, formats: Mapping[str, str]) -> Model:
    made = load_model(config, **formats)
    return replace(made, name=f"{base.name} ({told})" if told else base.name, notes=())


def _key(config: Mapping[str, Any], field: str) -> str:
    """Return what a config calls a field of a design."""
    if field not in KEYS:
        raise UnknownName("field of a model", field, [*KEYS, ATTENTION, EQUAL, BY], f"Known: {', '.join(KEYS)}, {ATTENTION}.")
    for key in KEYS[field]:
        if key in config:
            return key
    has = [name for name, keys in KEYS.items() if any(key in config for key in keys)]
    raise UnknownName("field of this model", field, has, f"Its config has {', '.join(has)}.")


def _with_field(config: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Return a config with one field changed; what is told for each layer goes on in its pattern."""
    if field in ("kv_heads", "head_dim") and "kv_lora_rank" in config:
        raise InputError(f"{field} has no part in latent attention, which keeps one latent; attention=grouped has KV heads")
    if field == "head_dim" and "head_dim" not in config:
        return {**config, "head_dim": value}
    key = _key(config, field)
    changed = {**config, key: value}
    if field in ("heads", "width") and "head_dim" not in config and "kv_lora_rank" not in config:
        changed["head_dim"] = config[_key(config, "width")] // config[_key(config, "heads")]
    if field == "heads" and "num_key_value_heads" in config and "kv_lora_rank" in config:
        changed["num_key_value_heads"] = value
    if field == "layers":
        before = config[key]
        for name, each in config.items():
            if isinstance(each, list) and len(each) == before:
                changed[name] = [each[i % before] for i in range(value)]
    return changed


def _with_attention(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a config with grouped or with latent attention, and leave the other changes."""
    asked = changes.pop(ATTENTION, None)
    if asked is None:
        return config
    if asked not in (GROUPED, LATENT):
        raise UnknownName("attention", asked, (GROUPED, LATENT), f"Known: {GROUPED}, {LATENT}.")
    is_latent = "kv_lora_rank" in config
    if asked == GROUPED and is_latent:
        head = config.get("qk_nope_head_dim", 128)
        kept = {key: value for key, value in config.items() if key not in OF_LATENT}
        return {**kept, "head_dim": head, "num_key_value_heads": USUAL_HEADS}
    if asked == LATENT and not is_latent:
        return _latent(config)
    return config


def _latent(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config of the DeepSeek family with the sizes of another, and latent attention."""
    heads, width = config[_key(config, "heads")], config[_key(config, "width")]
    head = config.get("head_dim") or width // heads
    local = any(config.get(key) for key in ("sliding_window", "layer_types", "linear_attention"))
    if local and config.get("use_sliding_window", True):
        raise InputError("attention=latent is for models whose layers all attend to the whole context")
    kept = (
        "vocab_size", "tie_word_embeddings", "max_position_embeddings", "num_experts_per_tok", "moe_intermediate_size",
        "torch_dtype", "intermediate_size",
    )  # fmt: skip
    experts = next((config[key] for key in KEYS["experts"] if key in config), None)
    sparse = {} if experts is None else {"n_routed_experts": experts, "n_shared_experts": 0}
    depth = config[_key(config, "layers")]
    return {
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": depth,
        "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads, "qk_nope_head_dim": head,
        "v_head_dim": head, **{key: config[key] for key in kept if key in config}, **sparse, **USUAL_LATENT,
        "first_k_dense_replace": 0 if sparse else depth,
    }  # fmt: skip


def _usual(config: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Return the field that makes up for a change: the width of experts, or of feed-forward blocks, unless that is changed."""
    for field in ("expert_width", "ffn", "layers"):
        if field not in changes and any(key in config for key in KEYS[field]):
            return field
    raise InputError("no field is left that could make up for the change; name one with by")


def _made_equal(base: Model, config: dict[str, Any], told: str, formats: Mapping[str, str], equal: str, by: str) -> Model:
    """Return the variant whose field `by` brings its parameters back, by halving; width takes feed-forward blocks along."""
    count, key = COUNTED[equal], _key(config, by)
    aim, step = count(base), 1 if by in ("layers", "heads", "kv_heads", "experts", "active") else ROUNDED

    def made(steps: int) -> Model:
        value = steps * step
        changed = _with_field(config, by, value)
        if by == "width":
            for name in ("intermediate_size", "moe_intermediate_size"):
                if name in config:
                    changed[name] = max(step, round(config[name] * value / config[key] / step) * step)
        return _made(base, changed, f"{told}, {by} {value}" if told else f"{by} {value}", formats)

    low, high = 1, max(2, 16 * int(config[key]) // step)
    if not count(made(low)) <= aim <= count(made(high)):
        raise InputError(f"no {by} brings {equal} parameters back to those of {base.name} with {told}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(made(middle)) <= aim else (low, middle)
    return min((made(low), made(high)), key=lambda model: abs(count(model) - aim))
