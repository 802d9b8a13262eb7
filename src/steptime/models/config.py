"""Typed, checked access to a model's config.json.

Every getter names the field in its error. A missing field or a wrong kind of value gives an error with cause and place,
never a traceback or a silent zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from steptime.errors import ConfigError, InputError, did_you_mean, short_repr
from steptime.hardware.number_formats import Format, number_format
from steptime.models.quantization import Quantization, stored

# Largest number in a config. Real models are far below; larger numbers are mistakes or fuzz tests.
LARGEST: Final = 1e12
# Most layers of a model.
DEEPEST: Final = 1_000
# KV format of vLLM for latent attention only, see `blocks.latent`.
LATENT_FP8_MIXED: Final = "fp8_ds_mla"
# Values per head of a config without head_dim, for kinds whose class in transformers 5.24 has a fixed default. Of other
# kinds the heads share the width.
HEAD_DIMS: Final[dict[str, int]] = (
    {"gpt_oss": 64, "mimo_v2_flash": 192, "deepseek_v4": 512}
    | dict.fromkeys(
        (
            "afmoe", "cohere2_moe", "cwm", "ernie4_5", "flint", "glm", "glm4", "helium", "hrm_text", "hy_v3", "inkling_text",
            "internlm3", "iquestcoder", "kolibri1", "laguna", "lfm3", "llama4_text", "mellum", "minimax_m2",
            "minimax_m3_vl_text", "ministral3", "nemotron_h", "qwen3", "qwen3_vl_text", "seed_oss", "solar_open", "step3p5",
            "zaya",
        ),
        128,
    )
    | dict.fromkeys(
        (
            "dots3_note_text", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text",
            "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "vaultgemma",
        ),
        256,
    )
)  # fmt: skip
# Published files of Gemma 3 omit the fields of text_config that equal transformers' defaults.
TEXT_DEFAULTS: Final[dict[str, dict[str, int]]] = {
    "gemma3_text": {
        "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
    },
}  # fmt: skip
_MISSING: Final = object()


class Config:
    """A config.json with checked getters, and the formats of its weights and KV cache."""

    def __init__(
        self,
        fields: Mapping[str, Any],
        *,
        name: str = "",
        kv_format: str = "",
        within: str = "",
        lookups: set[str] | None = None,
    ) -> None:
        self.fields, self.name, self.within = fields, name, within
        self._prefix = f"{within}." if within else ""
        self.kv_name = kv_format
        # Full names of all fields that were looked up, present or not.
        self.lookups: set[str] = set() if lookups is None else lookups
        self.quantization = Quantization(fields.get("quantization_config"), self.error)

    def error(self, field: str, problem: str) -> ConfigError:
        """Return the error about a field, for the caller to raise.

        Args:
            field: Name of the field.
            problem: What is wrong with it, without the name.

        Returns:
            The error, which names the model and the field.
        """
        return ConfigError(f"config of {self.name or 'the model'}: {self._prefix + field!r} {problem}")

    def has(self, field: str) -> bool:
        """Return whether a field is present and not null.

        Args:
            field: Name of the field.

        Returns:
            True if it has a value.
        """
        self.lookups.add(self._prefix + field)
        return self.fields.get(field) is not None

    def raw(self, *names: str, default: Any = _MISSING) -> Any:
        """Return the first field of `names` that is present and not null.

        Args:
            names: Names of the field, tried in turn.
            default: Value if all are absent; without it, absence is an error.

        Returns:
            The value, unchecked.

        Raises:
            ConfigError: No field is present, and there is no default.
        """
        for name in names:
            self.lookups.add(self._prefix + name)
            if (value := self.fields.get(name)) is not None:
                return value
        if default is not _MISSING:
            return default
        # A misspelt field is more likely than an absent one.
        near = did_you_mean(names[0], self.fields, max_names=1, cutoff=0.8)
        if names[0] in self.fields:
            raise self.error(names[0], "is null")
        hint = f"; it has {near[0]!r}" if near else ""
        raise self.error(names[0], f"is missing{hint}")

    def integer(self, *names: str, default: Any = _MISSING, least: int = 1, maximum: float = LARGEST) -> int:
        """Return a whole number.

        Args:
            names: Names of the field, tried in turn.
            default: Value if all are absent; without it, absence is an error.
            least: Smallest allowed value.
            maximum: Largest allowed value.

        Returns:
            The number.

        Raises:
            ConfigError: The field is absent, not a whole number, or out of range.
        """
        value = self.raw(*names, default=default)
        # JSON writers may write 8 as 8.0.
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(names[0], f"must be a whole number, got {short_repr(value)}")
        if not least <= value <= maximum:
            bounds = f"at least {least}" + ("" if value < least else f" and at most {maximum:g}")
            raise self.error(names[0], f"must be {bounds}, got {short_repr(value)}")
        return value

    def number(self, *names: str, default: Any = _MISSING) -> float:
        """Return a finite number greater than 0.

        Args:
            names: Names of the field, tried in turn.
            default: Value if all are absent; without it, absence is an error.

        Returns:
            The number.

        Raises:
            ConfigError: The field is absent, not a number, or out of range.
        """
        value = self.raw(*names, default=default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LARGEST:
            raise self.error(names[0], f"must be a number greater than 0, got {short_repr(value)}")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return true or false.

        Args:
            names: Names of the field, tried in turn.
            default: Value if all are absent.

        Returns:
            The value.

        Raises:
            ConfigError: The field is neither true nor false.
        """
        value = self.raw(*names, default=default)
        if not isinstance(value, bool):
            raise self.error(names[0], f"must be true or false, got {short_repr(value)}")
        return value

    def text(self, *names: str, default: Any = _MISSING) -> str:
        """Return a text.

        Args:
            names: Names of the field, tried in turn.
            default: Value if all are absent; without it, absence is an error.

        Returns:
            The text.

        Raises:
            ConfigError: The field is absent or not a text.
        """
        value = self.raw(*names, default=default)
        if not isinstance(value, str):
            raise self.error(names[0], f"must be a text, got {short_repr(value)}")
        return value

    def items(self, *names: str, length: int | None = None, default: Any = _MISSING) -> list[Any]:
        """Return a list.

        Args:
            names: Names of the field, tried in turn.
            length: Smallest number of items; None: any.
            default: Value if all are absent; without it, absence is an error.

        Returns:
            The items, which may be more than `length`.

        Raises:
            ConfigError: The field is absent, not a list, or too short.
        """
        value = self.raw(*names, default=default)
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.error(names[0], f"must be a list, got {short_repr(value)}")
        if length is not None and len(value) < length:
            raise self.error(names[0], f"must have at least {length} items, one per layer, got {len(value)}")
        return list(value)

    def indices(self, *names: str, default: Any = _MISSING) -> list[int]:
        """Return a list of layer numbers from 0.

        Args:
            names: Names of the field, tried in turn.
            default: Value if all are absent; without it, absence is an error.

        Returns:
            The layer numbers.

        Raises:
            ConfigError: An item is not a whole number from 0.
        """
        layers = self.items(*names, default=default)
        for position, value in enumerate(layers):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self.error(f"{names[0]}[{position}]", f"must be a layer number from 0, got {short_repr(value)}")
        return layers

    def choices(self, *names: str, valid_names: Sequence[str], length: int | None = None) -> list[str]:
        """Return a list of names, each one of `valid_names`.

        Args:
            names: Names of the field, tried in turn.
            valid_names: Allowed items.
            length: Smallest number of items; None: any.

        Returns:
            The names.

        Raises:
            ConfigError: The field is absent, too short, or has another name.
        """
        values = self.items(*names, length=length)
        for position, value in enumerate(values):
            if value not in valid_names:
                raise self.error(f"{names[0]}[{position}]", f"is {short_repr(value)}; known: {', '.join(valid_names)}")
        return values

    def layer_kind(self, index: int, valid_names: Sequence[str], *names: str) -> str:
        """Return the kind of a layer from a list with one name per layer.

        Args:
            index: Layer number, from 0.
            valid_names: Allowed items of the list.
            names: Names of the field with the list, tried in turn; none: "layer_types".

        Returns:
            The name; "" if the config has no such list.

        Raises:
            ConfigError: The list is too short or has another name.
        """
        names = names or ("layer_types",)
        return self.choices(*names, valid_names=valid_names, length=index + 1)[index] if any(map(self.has, names)) else ""

    def marked(self, name: str, index: int) -> bool:
        """Return whether item `index` of a list of 0 and 1 is 1.

        Args:
            name: Name of the field.
            index: Layer number, from 0.

        Returns:
            True for 1.

        Raises:
            ConfigError: The list is absent or too short, or the item is neither 0 nor 1.
        """
        mark = self.items(name, length=index + 1)[index]
        if mark not in (0, 1):
            raise self.error(f"{name}[{index}]", f"must be 0 or 1, got {short_repr(mark)}")
        return bool(mark)

    def inner(self, field: str) -> Config:
        """Return the config nested at a field.

        It inherits the quantization, the dtype and the tying of embeddings of this config.

        Args:
            field: Name of the field.

        Returns:
            The nested config.

        Raises:
            ConfigError: The field is absent or not a table.
        """
        value = self.raw(field)
        if not isinstance(value, Mapping):
            raise self.error(field, f"must be a table of fields, got {short_repr(value)}")

        # Vision-language configs often state these fields only at the top.
        fields = dict(value)
        if self.has("quantization_config"):
            fields.setdefault("quantization_config", self.fields["quantization_config"])
        for key in ("torch_dtype", "dtype", "tie_word_embeddings"):
            if self.has(key) and fields.get(key) is None:
                fields[key] = self.fields[key]
        return Config(fields, name=self.name, kv_format=self.kv_name, within=self._prefix + field, lookups=self.lookups)

    def for_layer(self, index: int) -> Config:
        """Return the config for one layer, with its fields of `per_layer_config`.

        Args:
            index: Layer number, from 0.

        Returns:
            This config, or a copy with the fields of the layer.

        Raises:
            ConfigError: `per_layer_config` is malformed.
        """
        if not self.has("per_layer_config"):
            return self
        layer_tables = self.raw("per_layer_config")
        if not isinstance(layer_tables, Mapping):
            raise self.error("per_layer_config", f"must be a table of layers, got {short_repr(layer_tables)}")

        # Keys may have leading zeros, such as "007".
        layer_fields = next(
            (fields for layer, fields in layer_tables.items() if str(layer).lstrip("0") == (str(index).lstrip("0"))), None
        )
        if layer_fields is None:
            return self
        if not isinstance(layer_fields, Mapping):
            raise self.error(f"per_layer_config.{index}", f"must be a table of fields, got {short_repr(layer_fields)}")
        fields = {key: value for key, value in self.fields.items() if key != "per_layer_config"}

        return Config(
            fields | dict(layer_fields), name=self.name, kv_format=self.kv_name, within=self.within, lookups=self.lookups
        )

    @cached_property
    def language(self) -> Config:
        """Config of the language part, which vision-language models nest."""
        if not self.has("text_config"):
            return self
        text = self.inner("text_config")
        defaults = TEXT_DEFAULTS.get(str(text.fields.get("model_type")), {})
        text.fields = {**defaults, **text.fields}
        return text

    @cached_property
    def depth(self) -> int:
        """Number of layers."""
        return self.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers", maximum=DEEPEST)

    @cached_property
    def width(self) -> int:
        """Width of the residual stream."""
        return self.integer("hidden_size", "n_embd", "d_model", "hidden_dim")

    @cached_property
    def heads(self) -> int:
        """Number of query heads."""
        return self.integer("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")

    @cached_property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        kv_heads = self.integer("num_key_value_heads", default=self.heads)
        if self.heads % kv_heads:
            raise self.error("num_key_value_heads", f"must divide the {self.heads} query heads, got {kv_heads}")
        return kv_heads

    @cached_property
    def head_dim(self) -> int:
        """Values per head."""
        if self.has("head_dim"):
            return self.integer("head_dim")
        if (kind := str(self.fields.get("model_type"))) in HEAD_DIMS:
            return HEAD_DIMS[kind]
        # Without head_dim, the heads share the width equally.
        if self.width % self.heads:
            problem = f"must divide the width {self.width}, got {self.heads}; or give 'head_dim'"
            raise self.error("num_attention_heads", problem)
        return self.width // self.heads

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        return self.integer("vocab_size")

    @cached_property
    def base_format(self) -> Format:
        """Format of all weights that are not quantized."""
        value = self.raw("torch_dtype", "dtype", default="bfloat16")
        if not isinstance(value, str):
            raise self.error("torch_dtype", f"must be a text, got {short_repr(value)}")
        format = number_format(value.removeprefix("torch."))
        # Engines serve FP32 checkpoints in BF16.
        return number_format("bf16") if format.name == "fp32" else format

    def weight_format(self, module: str, matrices: Iterable[tuple[float, float]] = (), *, bias: float = 0) -> Format:
        """Return the format in which the weights of a module are stored.

        If the shapes are given, the bytes of a parameter include the scales and zero points of the checkpoint.

        Args:
            module: Path of the module, such as "layers.3.self_attn.q_proj".
            matrices: Shapes of its matrices as (inputs, outputs).
            bias: Number of values of its biases.

        Returns:
            The format.
        """
        base = self.base_format
        module_format, scale_bytes = self.quantization.of_module(module)
        format = module_format or base
        if format is base and not scale_bytes:
            return base
        # Without shapes, the bytes of scales cannot be counted.
        shapes = [(int(inputs), int(outputs)) for inputs, outputs in matrices]
        return (
            stored(format, shapes, base=base, bias=int(bias), scale_bytes=scale_bytes)
            if shapes
            else replace(format, packing=None)
        )

    @property
    def kv_format(self) -> Format:
        """Format of the KV cache.

        Raises:
            InputError: The format is one of a latent cache, but the model caches keys and values.
        """
        if self.kv_name == LATENT_FP8_MIXED:
            who = self.name or "the model"
            raise InputError(
                f"kv: '{LATENT_FP8_MIXED}' needs multi-head latent attention, but {who} caches keys and values; use fp8"
            )
        return number_format(self.kv_name or self.quantization.kv_format or "bf16")
