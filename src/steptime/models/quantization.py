"""Reads quantization_config: the number format of each module.

It covers the methods of published checkpoints: fp8 (block or tensor scales), modelopt (FP8, NVFP4, mixed),
compressed-tensors, mxfp4, gptq, awq and bitsandbytes. Embeddings, head, norms and routers stay in the base format
unless the config lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from steptime.errors import short_repr
from steptime.hardware.number_formats import Format, Packing, number_format
from steptime.models import dtype_assignment
from steptime.models.module_patterns import Patterns

# Modules that checkpoints do not quantize unless they list them.
NEVER: Final = ("embed_tokens", "lm_head", "norm", "router", "gate", "shared_expert_gate", "eh_proj")
# Number formats by the names of NVIDIA Model Optimizer.
ALGORITHMS: Final = {
    "FP8": "fp8", "FP8_PB_WO": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_REAL": "fp8", "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4", "W4A16_AWQ": "int4", "W4A8_AWQ": "int4", "INT8": "int8", "W8A8_SQ_PER_CHANNEL": "int8",
    "MXFP8": "mxfp8", "MXFP4": "mxfp4", "W4A8_NVFP4_FP8": "nvfp4", "W4A16_NVFP4": "nvfp4", "W4A16_MXFP4": "mxfp4",
}  # fmt: skip


METHODS: Final = (
    "fp8", "fbgemm_fp8", "mxfp4", "mxfp8", "gptq", "awq", "bitsandbytes", "quark", "modelopt", "modelopt_fp4", "modelopt_mixed",
    "compressed-tensors", "gguf",
)  # fmt: skip
# Modules with which checkpoints store the scales of the KV cache.
KEYS: Final = ("k_proj", "v_proj")


def quantization_method(fields: Mapping[str, Any]) -> Any:
    """Return the quantization method of a quantization_config.

    Args:
        fields: Fields of the quantization_config.

    Returns:
        Its `quant_method`, unchecked; "modelopt" for configs of ModelOpt without it; "" if unknown.
    """
    return fields.get("quant_method") or ("modelopt" if "quantization" in fields or "quant_algo" in fields else "")


class Quantization:
    """The number format of each module of a checkpoint; None for the base format."""

    def __init__(self, fields: Any, error: Callable[[str, str], Exception]) -> None:
        self.kv_format = ""

        # Bytes of a KV cache scale of the keys or values; 0 if the checkpoint has none.
        self._cache_scale = 0
        self._default: Format | None = None
        self._layers: dict[str, Format] = {}
        self._skipped: tuple[str, ...] = ()
        if not fields:
            return
        if not isinstance(fields, Mapping):
            raise error("quantization_config", f"must be a table of fields, got {short_repr(fields)}")
        self._error = error
        method = quantization_method(fields)
        readers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "fp8": self._read_fp8, "fbgemm_fp8": self._read_fp8, "mxfp4": self._read_mxfp4, "mxfp8": self._read_mxfp8,
            "gptq": self._read_bits, "awq": self._read_bits, "bitsandbytes": self._read_bitsandbytes, "quark": self._read_quark,
            "compressed-tensors": self._read_groups, "gguf": self._read_gguf,
        }  # fmt: skip
        if not isinstance(method, str) or method not in METHODS:
            raise error("quantization_config.quant_method", f"is {short_repr(method)}; known: {', '.join(METHODS)}")
        readers.get(method, self._read_modelopt)(fields)
        self._listed = list(self._layers.values())
        self._by_module = Patterns(self._layers, self._refused)
        self._kept = Patterns(self._skipped, self._refused)

    def _refused(self, problem: str) -> Exception:
        return self._error("quantization_config", problem)

    def module_format(self, module: str) -> Format | None:
        """Return the number format of a module.

        Args:
            module: Path of the module.

        Returns:
            The format; None for the base format.
        """

        # A list per module overrides the default and the skipped modules.
        if self._layers and (rank := self._by_module.first(module)) is not None:
            return self._listed[rank]
        if self._default is None or module.rpartition(".")[2] in NEVER or module.startswith("visual"):
            return None
        return self._default if self._kept.first(module) is None else None

    @property
    def bits(self) -> int:
        """Bits of an integer if several integers share a word: 8 or 4."""
        return 8 if self._default is not None and self._default.name == "int8" else 4

    def cache_scale_bytes(self, module: str) -> int:
        """Return the bytes of KV cache scales that are stored with a module.

        Args:
            module: Path of the module.

        Returns:
            Bytes; 0 for modules other than keys and values.
        """
        return self._cache_scale if self._cache_scale and module.rpartition(".")[2] in KEYS else 0

    def _strings(self, fields: Mapping[str, Any], *names: str) -> tuple[str, ...]:
        for name in names:
            value = fields.get(name)
            if value is not None:
                if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                    raise self._error(f"quantization_config.{name}", f"must be a list of module names, got {short_repr(value)}")
                return tuple(value)
        return ()

    def _positive(self, fields: Mapping[str, Any], name: str, default: int) -> int:
        value = fields.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 20:
            raise self._error(f"quantization_config.{name}", f"must be a whole number greater than 0, got {short_repr(value)}")
        return value

    def _read_fp8(self, fields: Mapping[str, Any]) -> None:
        block = fields.get("weight_block_size")
        self._skipped = self._strings(fields, "modules_to_not_convert", "ignored_layers")
        self._read_layers(fields)
        # FP8 without blocks: one scale per matrix, or per output for FBGEMM.
        if block is None:
            fixed = fields.get("activation_scheme") == "static"
            plain = quantization_method(fields) == "fbgemm_fp8"
            self._default = (
                dtype_assignment.per_output("fp8", scale=4) if plain else dtype_assignment.per_matrix("fp8", scales=1 + fixed)
            )
            return
        if not isinstance(block, list) or not block or not all(isinstance(n, int) and n > 0 for n in block):
            raise self._error("quantization_config.weight_block_size", f"must be two whole numbers, got {short_repr(block)}")
        self._default = dtype_assignment.fp8_blocks((block[0], block[-1]) if len(block) > 1 else (1, block[0]))

    def _read_mxfp4(self, fields: Mapping[str, Any]) -> None:
        self._default = dtype_assignment.small_blocks("mxfp4")
        self._skipped = self._strings(fields, "modules_to_not_convert")

    def _read_mxfp8(self, fields: Mapping[str, Any]) -> None:
        self._default = dtype_assignment.small_blocks("mxfp8")
        self._skipped = self._strings(fields, "modules_to_not_convert", "ignored_layers")

    def _read_gguf(self, fields: Mapping[str, Any]) -> None:
        """Read the main type of a GGUF file, which `gguf_config` writes."""
        self._default = number_format(str(fields.get("type")))

    def _read_bits(self, fields: Mapping[str, Any]) -> None:
        bits = fields.get("bits", 4)
        if bits not in (4, 8):
            raise self._error("quantization_config.bits", f"must be 4 or 8, got {short_repr(bits)}")
        group = fields.get("group_size", 128)
        # A group of -1 means one scale per output.
        values = group if isinstance(group, int) and group > 0 else 0
        self._default = dtype_assignment.integers(bits, values, zeros=True, index=quantization_method(fields) == "gptq")
        self._skipped = self._strings(fields, "modules_to_not_convert")

    def _read_bitsandbytes(self, fields: Mapping[str, Any]) -> None:
        self._skipped = self._strings(fields, "modules_to_not_convert", "llm_int8_skip_modules")
        # LLM.int8: one scale per output and one byte for the layout.
        if fields.get("load_in_8bit"):
            self._default = dtype_assignment.per_output("int8", scale=4, fixed=1)
            return
        kind = fields.get("bnb_4bit_quant_type", "fp4")
        if kind not in ("nf4", "fp4"):
            raise self._error("quantization_config.bnb_4bit_quant_type", f"must be nf4 or fp4, got {short_repr(kind)}")
        self._default = dtype_assignment.bitsandbytes_4bit(kind, nested=bool(fields.get("bnb_4bit_use_double_quant")))

    def _read_modelopt(self, fields: Mapping[str, Any]) -> None:
        # ModelOpt also writes configs in the form of compressed-tensors.
        if "config_groups" in fields and "quant_algo" not in fields and "quantization" not in fields:
            self._read_groups(fields)
            return

        # ModelOpt nests its fields in hf_quant_config.json and not in config.json.
        inner = fields.get("quantization", fields)
        if not isinstance(inner, Mapping):
            raise self._error("quantization_config.quantization", f"must be a table of fields, got {short_repr(inner)}")
        self._skipped = self._strings(inner, "exclude_modules", "ignore")
        self.kv_format = self._kv(inner.get("kv_cache_quant_algo") or fields.get("kv_cache_scheme"))
        self._cache_scale = 4 if self.kv_format else 0
        if not self._read_layers(inner):
            self._default = self._algorithm(inner.get("quant_algo"), inner)

    def _read_layers(self, fields: Mapping[str, Any]) -> bool:
        """Read the formats that are listed per module; return whether the list exists."""
        layers = fields.get("quantized_layers")
        if layers is None:
            return False
        if not isinstance(layers, Mapping):
            raise self._error("quantization_config.quantized_layers", f"must be a table of modules, got {short_repr(layers)}")
        for module, entry in layers.items():
            self._layers[str(module)] = self._algorithm(entry.get("quant_algo") if isinstance(entry, Mapping) else entry)
        return True

    def _algorithm(self, name: Any, fields: Mapping[str, Any] | None = None) -> Format:
        if not isinstance(name, str) or name.upper() not in ALGORITHMS:
            raise self._error("quantization_config.quant_algo", f"is {short_repr(name)}; known: {', '.join(ALGORITHMS)}")
        kind, algorithm = ALGORITHMS[name.upper()], name.upper()
        if kind in ("nvfp4", "mxfp4", "mxfp8"):
            # NVFP4 also stores one FP32 scale of the weights, and with quantized activations one of the inputs.
            scalars = 0 if kind != "nvfp4" else 1 if "W4A16" in algorithm else 2
            return dtype_assignment.small_blocks(kind, scalars=scalars)
        if algorithm == "FP8":
            return dtype_assignment.per_matrix("fp8", scales=2)
        if algorithm in ("FP8_PB_WO", "FP8_PB_REAL"):
            return dtype_assignment.fp8_blocks((128, 128))
        if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
            return dtype_assignment.per_output("fp8", scale=4)
        if kind == "int4":
            return number_format(kind, values_per_scale=self._positive(fields or {}, "group_size", 128), scale_bytes=2)

        return number_format(kind)

    def _read_groups(self, fields: Mapping[str, Any]) -> None:
        groups = fields.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise self._error("quantization_config.config_groups", "must be a table with at least one group")
        self._skipped = self._strings(fields, "ignore")
        self.kv_format = self._kv(fields.get("kv_cache_scheme"))

        # Bytes of a scale of a whole matrix.
        self._scalar = 2 if quantization_method(fields) == "compressed-tensors" else 4
        self._cache_scale = self._scalar if self.kv_format else 0
        for name, group in groups.items():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if not isinstance(weights, Mapping):
                raise self._error(
                    f"quantization_config.config_groups.{name}.weights", f"must be a table, got {short_repr(weights)}"
                )
            inputs = group.get("input_activations")
            fixed = isinstance(inputs, Mapping) and not inputs.get("dynamic", False)
            format = self._scheme(weights, f"quantization_config.config_groups.{name}.weights", inputs=inputs, fixed=fixed)
            targets = self._strings(group, "targets")
            # "Linear" means all linear modules; other targets are names or patterns.
            if not targets or "Linear" in targets:
                self._default = self._default or format
            else:
                self._layers |= dict.fromkeys(targets, format)

    def _scheme(self, weights: Mapping[str, Any], place: str, *, inputs: Any, fixed: bool) -> Format:
        """Return the format of a group.

        inputs: quantization of the activations. fixed: whether their scales are stored.
        """
        bits, kind = weights.get("num_bits"), weights.get("type", "int")
        group = self._positive(weights, "group_size", 0)
        if bits == 8:
            if kind == "float" and group == 32:
                return dtype_assignment.small_blocks("mxfp8")
            return self._eight_bits("fp8" if kind == "float" else "int8", weights, fixed=fixed)
        if bits == 4 and kind == "float":
            return (
                dtype_assignment.small_blocks("mxfp4")
                if group == 32
                else dtype_assignment.small_blocks("nvfp4", scalars=1 + bool(inputs))
            )
        if bits == 4:
            is_per_channel = weights.get("strategy") == "channel"
            ordered = weights.get("actorder") in ("group", True)
            zeros = weights.get("symmetric") is False
            return dtype_assignment.integers(4, 0 if is_per_channel else group or 128, zeros=zeros, index=ordered, fixed=16)

        raise self._error(f"{place}.num_bits", f"must be 4 or 8, got {short_repr(bits)}")

    def _eight_bits(self, name: str, weights: Mapping[str, Any], *, fixed: bool) -> Format:
        """Return an 8-bit format of compressed-tensors, whose scales have 16 bits."""
        strategy, block = weights.get("strategy"), weights.get("block_structure")
        if strategy == "block" and isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
            return replace(
                number_format(name, values_per_scale=block[0] * block[1], scale_bytes=2, block=max(block)),
                packing=Packing(columns=block[1], rows=block[0], scale=2),
            )
        if strategy == "channel":
            return dtype_assignment.per_output(name, scale=2, fixed=2 * fixed)
        return dtype_assignment.per_matrix(name, scales=1 + fixed, scale=self._scalar)

    def _read_quark(self, fields: Mapping[str, Any]) -> None:
        scheme = fields.get("global_quant_config")
        weight = scheme.get("weight") if isinstance(scheme, Mapping) else None
        dtype = weight.get("dtype") if isinstance(weight, Mapping) else None
        self._default = number_format("mxfp4" if isinstance(dtype, str) and "fp4" in dtype else "fp8")
        self._skipped = self._strings(fields, "exclude")

    def _kv(self, scheme: Any) -> str:
        if isinstance(scheme, Mapping):
            return "fp8" if scheme.get("num_bits") == 8 else ""
        name = scheme.upper() if isinstance(scheme, str) else ""
        return {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}.get(name, "")
