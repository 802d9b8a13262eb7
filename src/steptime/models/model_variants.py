"""Variants of a model with some other fields in its config.

The fields are heads, depth, latent rank, experts and so on; all other fields stay. With `equal`, one more field makes
up for the change, so that the variants have equal total or active parameters. This field is the width of experts or of
feed-forward blocks unless another is named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.models.model import Model, active_parameters, total_parameters
from steptime.models.model_loading import load_config_fields, load_model

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer"),
    "width": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim", "attention_head_dim"),
    "ffn": ("intermediate_size",),
    "latent": ("kv_lora_rank",),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "active": ("num_experts_per_tok",),
    "expert_width": ("moe_intermediate_size",),
}
"""Fields of a variant, with their names in configs."""
ATTENTION, EQUAL, BALANCE_KEY = "attention", "equal", "by"
GROUPED, LATENT = "grouped", "latent"
# Counts of parameters that `equal` can keep.
COUNTED: Final = {"total": total_parameters, "active": active_parameters}
# Fields that can make up for a change; the default is the first that the model has.
MAKES_UP: Final = ("expert_width", "ffn", "width", "layers")
# Field with the config of the language part.
INNER: Final = "text_config"
# Layer numbers in the lists of unquantized modules.
ONE_BY_ONE: Final = re.compile(r"layers?\.\d+")
MOST_LAYERS: Final = 1000
# Widths that make up for a change are multiples of it, as tiles of matrix units are.
ROUNDED: Final = 64
# Default latent: DeepSeek-V2 (arXiv 2405.04434). Default KV heads: Llama 3.
USUAL_LATENT, USUAL_HEADS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 8
# Kinds that the DeepSeek family reads.
DEEPSEEK: Final = ("deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite", "mistral_large_3")
# Kinds whose layers differ from DeepSeek's only in attention.
DENSE, SPARSE = ("llama", "mistral", "qwen2", "qwen3"), ("qwen3_moe",)
# Fields of latent attention.
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
    """Return a model with some other fields.

    Args:
        name: Name of the catalogue, Hugging Face id or path.
        changes: Values of the fields in `KEYS`, and of three more keys. "attention" is "grouped" or "latent". "equal" keeps
            the "total" or "active" parameters, within a rounding. "by" is the field that makes up for the change.
        weights: Number format that replaces the config's; "": the config's.
        experts: Number format of the routed experts; "": that of `weights`.
        kv: Number format of the KV cache; "": the config's.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        The variant, under the name of the model.

    Raises:
        UnknownName: The config does not have a field.
        InputError: A change has no effect or is impossible, or no value of "by" restores the parameters.

    >>> from steptime.models.model import kv_bytes_per_token
    >>> kv_bytes_per_token(variant("llama-3.3-70b", {"kv_heads": 4})), kv_bytes_per_token(load_model("llama-3.3-70b"))
    (163840.0, 327680.0)
    """
    frozen = tuple(sorted(changes.items()))
    return _variant(str(name), frozen, weights, experts, kv, None if catalog is None else str(catalog))


@lru_cache(maxsize=512)
def _variant(name: str, frozen: tuple[tuple[str, Any], ...], weights: str, experts: str, kv: str, catalog: str | None) -> Model:
    changes = dict(frozen)
    equal, balance_field = changes.pop(EQUAL, None), changes.pop(BALANCE_KEY, None)
    formats: dict[str, Any] = {"weights": weights, "experts": experts, "kv": kv}
    base_config = dict(load_config_fields(name, catalog))
    base = load_model(name, **formats, catalog=catalog)
    inner = INNER in base_config and isinstance(base_config[INNER], dict)
    config = dict(base_config[INNER]) if inner else base_config

    def built(changed: Mapping[str, Any]) -> Model:
        return _load_variant(base, {**base_config, INNER: dict(changed)} if inner else changed, changes, formats)

    attention_kind = changes.get(ATTENTION)
    if attention_kind is not None and inner:
        raise InputError(f"attention: {attention_kind} works for text-only models; {base.name} has other inputs too")
    config = _with_attention(config, attention_kind, base.name) if attention_kind is not None else config

    # A change without effect is an error, not a silent variant.
    plain = built(config)
    for field, value in changes.items():
        if field == ATTENTION:
            continue
        before = config.get(_key(config, field)) if field != "head_dim" or _has(config, field) else None
        changed = _with_field(config, field, value)
        if value != before and _same(built(changed), plain):
            raise InputError(
                f"{field}: {short_repr(value)} changes nothing in {base.name}; its layers do not depend on this field"
            )
        config, plain = changed, built(changed)

    if equal is None:
        if balance_field is not None:
            raise RangeError(f"by: {short_repr(balance_field)} needs equal=total or equal=active")
        return plain
    if equal not in COUNTED:
        raise UnknownName("count of parameters", equal, COUNTED, "Known: total, active.")

    return _balanced(base, config, built, equal, _balance_field(config, changes, balance_field))


def _same(first: Model, second: Model) -> bool:
    return (first.layers, first.stem, first.draft) == (second.layers, second.stem, second.draft)


def _has(config: Mapping[str, Any], field: str) -> bool:
    return any(key in config for key in KEYS[field])


def _load_variant(base: Model, config: Mapping[str, Any], changes: Mapping[str, Any], formats: Mapping[str, Any]) -> Model:
    """Return the model of a changed config.

    It has the name of the original model, so its measured acceptance lengths apply.
    """
    change_text = ", ".join(f"{key} {value}" for key, value in sorted(changes.items()))
    return replace(load_model(config, **formats), name=base.name, notes=(f"variant with {change_text}",) if change_text else ())


def _key(config: Mapping[str, Any], field: str) -> str:
    """Return the name of a field in a config."""
    if field not in KEYS:
        raise UnknownName(
            "field of a model", field, [*KEYS, ATTENTION, EQUAL, BALANCE_KEY], f"Known: {', '.join(KEYS)}, {ATTENTION}."
        )
    for key in KEYS[field]:
        if key in config:
            return key
    fields_present = [name for name, keys in KEYS.items() if any(key in config for key in keys)]
    raise UnknownName("field of this model", field, fields_present, f"Its config has {', '.join(fields_present)}.")


def _with_field(config: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Return a config with one field changed; per-layer lists repeat their pattern."""
    if field in ("kv_heads", "head_dim") and "kv_lora_rank" in config:
        raise InputError(f"{field}: not used in latent attention; use attention=grouped for KV heads")
    if field == "head_dim" and not _has(config, field):
        return {**config, "head_dim": value}
    key = _key(config, field)
    changed = {**config, key: value}

    # The head width follows from heads and width; keep it fixed.
    if field in ("heads", "width") and not _has(config, "head_dim") and "kv_lora_rank" not in config:
        changed["head_dim"] = config[_key(config, "width")] // config[_key(config, "heads")]
    if field == "heads" and "num_key_value_heads" in config and "kv_lora_rank" in config:
        changed["num_key_value_heads"] = value
    if field == "layers":
        before = config[key]
        for name, field_value in config.items():
            listed = isinstance(field_value, list) and len(field_value) == before
            if listed and name == "layer_types":
                changed[name] = [field_value[i % before] for i in range(value)]
            elif listed or (isinstance(field_value, str) and name.endswith(("_pattern", "_enum"))):
                raise InputError(f"layers: cannot change, because {name} describes each layer")
        if ONE_BY_ONE.search(str(config.get("quantization_config", ""))):
            raise InputError(
                "layers: cannot change, because the quantization lists layers; use a config without it and --weights FORMAT"
            )

    return changed


def _with_attention(config: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    """Return a config with grouped or with latent attention; all other fields stay."""
    if kind not in (GROUPED, LATENT):
        raise UnknownName("attention", kind, (GROUPED, LATENT), f"Known: {GROUPED}, {LATENT}.")
    is_latent = "kv_lora_rank" in config
    if kind == GROUPED and is_latent:
        if config.get("model_type") not in DEEPSEEK:
            raise InputError(
                f"attention: grouped in place of a latent works for models of DeepSeek's kind only, not for {name}"
            )
        head = config.get("qk_nope_head_dim", 128)
        other_fields = {key: value for key, value in config.items() if key not in OF_LATENT}
        return {**other_fields, "head_dim": head, "num_key_value_heads": USUAL_HEADS}
    if kind == LATENT and not is_latent:
        return _latent(config, name)
    return config


def _latent(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a config of the DeepSeek family that differs only in attention.

    Raises:
        InputError: The model's layers do not fit this family.
    """
    kind = config.get("model_type")
    heads, width = config[_key(config, "heads")], config[_key(config, "width")]
    head = config.get("head_dim") or width // heads
    of_latent = {"qk_nope_head_dim": head, "v_head_dim": head, **USUAL_LATENT, "num_key_value_heads": heads}
    if kind in DEEPSEEK:
        return {**config, **of_latent}
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    sparse = kind in SPARSE and not config.get("mlp_only_layers") and config.get("decoder_sparse_step", 1) == 1
    if windowed or config.get("layer_types") or (kind not in DENSE and not sparse):
        raise InputError(
            f"attention: latent works for models with equal layers and full attention, of the kinds "
            f"{', '.join((*DENSE, *SPARSE))} and DeepSeek's, not for {name}"
        )

    latent_fields: dict[str, Any] = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
    if sparse:
        latent_fields |= {"first_k_dense_replace": 0, "n_routed_experts": config["num_experts"], "n_shared_experts": 0}
    else:
        # Longer than any model, since the number of layers may change afterwards.
        latent_fields["mlp_layer_types"] = ["dense"] * MOST_LAYERS

    return {**config, **latent_fields, **of_latent}


def _balance_field(config: Mapping[str, Any], changes: Mapping[str, Any], balance_field: str | None) -> str:
    """Return the field that makes up for a change.

    Raises:
        InputError: No field can, or the named one is already changed.
    """
    if balance_field is None:
        for field in MAKES_UP:
            if field not in changes and _has(config, field):
                return field
        raise InputError("by: no default field can make up for the change; name one")
    if balance_field not in MAKES_UP:
        raise UnknownName("field that makes up for a change", balance_field, MAKES_UP, f"Known: {', '.join(MAKES_UP)}.")
    changed_fields = [
        field for field in (balance_field, *(("ffn", "expert_width") if balance_field == "width" else ())) if field in changes
    ]
    if changed_fields:
        raise InputError(f"by: {balance_field} would change {changed_fields[0]}, which is given; name another field")
    return balance_field


def _balanced(
    base: Model, config: dict[str, Any], built: Callable[[Mapping[str, Any]], Model], equal: str, balance_field: str
) -> Model:
    """Return the variant whose `balance_field` restores its parameters, by bisection.

    If the field is the width, the feed-forward blocks scale with it.
    """
    count, key = COUNTED[equal], _key(config, balance_field)
    target, step = count(base), 1 if balance_field == "layers" else ROUNDED

    def model_at(steps: int) -> Model:
        value = steps * step
        changed = _with_field(config, balance_field, value)
        if balance_field == "width":
            for name in ("intermediate_size", "moe_intermediate_size"):
                if name in config:
                    changed[name] = max(step, round(config[name] * value / config[key] / step) * step)
        return built(changed)

    # Bisection: the parameters grow with the field.
    low, high = 1, max(2, MOST_LAYERS if balance_field == "layers" else 16 * int(config[key]) // step)
    if not count(model_at(low)) <= target <= count(model_at(high)):
        raise InputError(f"by: no value of {balance_field} restores the {equal} parameters of {base.name}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(model_at(middle)) <= target else (low, middle)

    return min((model_at(low), model_at(high)), key=lambda model: abs(count(model) - target))
