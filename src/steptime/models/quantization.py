"""Reads quantization_config: the number format of each module, and the bytes that its matrices take.

It covers the methods of published checkpoints: fp8 (block or tensor scales), modelopt (FP8, NVFP4, mixed),
compressed-tensors, mxfp4, gptq, awq and bitsandbytes. Embeddings, head, norms and routers stay in the base format
unless the config lists them. A config lists modules by name, by glob, or by a regular expression after "re:". It is
untrusted: an expression that could take long is refused before it runs, and the total time of all patterns is limited.

Values, scales and zero points are counted as the tools store them. Sources: DeepSeek-V3's inference/fp8_cast_bf16.py,
NVIDIA Model Optimizer (export/quant_utils.py), transformers' mxfp4, AutoGPTQ and GPTQModel (QuantLinear), AutoAWQ
(WQLinear_GEMM), compressed-tensors, bitsandbytes (QuantState.as_dict).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import translate
from functools import lru_cache
from math import comb, inf
from typing import Any, Final

from steptime.errors import short_repr
from steptime.hardware.number_formats import Format, Packing, number_format, packed_bytes

# Modules that checkpoints do not quantize unless they list them.
NEVER: Final = ("embed_tokens", "lm_head", "norm", "router", "gate", "shared_expert_gate", "eh_proj")
# Models in 16 bits whose releases in FP8 by the same maker have one scale per block of weights. Sources: quantization_config of
# zai-org/GLM-5-FP8 to GLM-5.3-FP8 (weight_block_size, in the catalogue); the format of Qwen/Qwen3.5-*-FP8
# (github.com/QuixiAI/Quantize-Qwen3.5: one scale per 128 x 128 tile) and of Qwen/Qwen3.6-35B-A3B-FP8
# (friendli.ai/models/gsting/Qwen3.6-35B-A3B-abliterated-FP8). FP8 of GLM-4.5 to 4.7 has one scale per output.
RELEASED_IN_BLOCKS: Final = ("zai-org/GLM-5", "Qwen/Qwen3.5-", "Qwen/Qwen3.6-")
RELEASED_BLOCK: Final = (128, 128)
# Modules with which checkpoints store the scales of the KV cache.
KEYS: Final = ("k_proj", "v_proj")
# Number formats by the names of NVIDIA Model Optimizer.
ALGORITHMS: Final = {
    "FP8": "fp8", "FP8_PB_WO": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_REAL": "fp8", "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4", "W4A16_AWQ": "int4", "W4A8_AWQ": "int4", "INT8": "int8", "W8A8_SQ_PER_CHANNEL": "int8",
    "MXFP8": "mxfp8", "MXFP4": "mxfp4", "W4A8_NVFP4_FP8": "nvfp4", "W4A16_NVFP4": "nvfp4", "W4A16_MXFP4": "mxfp4",
}  # fmt: skip
# Bytes of a scale of a whole matrix, in FP32.
SCALAR: Final = 4
# Scales of bitsandbytes that share one second-level scale.
NESTED: Final = 256
# Bytes of the codebooks of bitsandbytes, in FP32.
CODEBOOK: Final = {"4": 16 * 4, "nested": 256 * 4}
# Prefixes that checkpoints put before module names.
PREFIXES: Final = (
    "", "model.", "language_model.model.", "model.language_model.", "language_model.", "backbone.", "transformer.",
)  # fmt: skip
# Characters.
LONGEST_PATTERN: Final = 4_000
# Characters of a module name, for the bound on the time.
LONGEST_MODULE: Final = 100
# Most ways to match one module, which take hundredths of a second; real checkpoints need up to 40,000.
MOST_WAYS: Final = 1_000_000
# Levels of nested groups.
DEEPEST_GROUP: Final = 20
# CPU time [s] for all modules of a model; real checkpoints take hundredths of a second.
PATIENCE: Final = 1.0


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
            "fp8": self._read_fp8, "fbgemm_fp8": self._read_fp8, "mxfp4": self._read_small_blocks,
            "mxfp8": self._read_small_blocks, "gptq": self._read_bits, "awq": self._read_bits,
            "bitsandbytes": self._read_bitsandbytes, "quark": self._read_quark, "modelopt": self._read_modelopt,
            "modelopt_fp4": self._read_modelopt, "modelopt_mixed": self._read_modelopt,
            "compressed-tensors": self._read_groups, "gguf": self._read_gguf,
        }  # fmt: skip
        if not isinstance(method, str) or method not in readers:
            raise self._wrong("quant_method", f"is {short_repr(method)}; known: {', '.join(readers)}")
        readers[method](fields)
        self._listed = list(self._layers.values())
        self._by_module = Patterns(self._layers, self._refused)
        self._kept = Patterns(self._skipped, self._refused)

    def _refused(self, problem: str) -> Exception:
        return self._error("quantization_config", problem)

    def _wrong(self, field: str, problem: str) -> Exception:
        return self._error(f"quantization_config.{field}", problem)

    def of_module(self, module: str) -> tuple[Format | None, int]:
        """Return the number format of a module, and the bytes of KV cache scales that are stored with it.

        Args:
            module: Path of the module.

        Returns:
            The format, None for the base format; bytes, 0 for modules other than keys and values.
        """
        name = module.rpartition(".")[2]
        scale_bytes = self._cache_scale if name in KEYS else 0

        # A list per module overrides the default and the skipped modules.
        if self._layers and (rank := self._by_module.first(module)) is not None:
            return self._listed[rank], scale_bytes
        is_base = self._default is None or name in NEVER or module.startswith("visual") or self._kept.first(module) is not None
        return None if is_base else self._default, scale_bytes

    @property
    def bits(self) -> int:
        """Bits of an integer if several integers share a word: 8 or 4."""
        return 8 if self._default is not None and self._default.name == "int8" else 4

    def _strings(self, fields: Mapping[str, Any], *names: str) -> tuple[str, ...]:
        name = next((name for name in names if fields.get(name) is not None), "")
        value = fields[name] if name else []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, f"must be a list of module names, got {short_repr(value)}")
        return tuple(value)

    def _positive(self, fields: Mapping[str, Any], name: str, default: int) -> int:
        value = fields.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 20:
            raise self._wrong(name, f"must be a whole number greater than 0, got {short_repr(value)}")
        return value

    def _read_fp8(self, fields: Mapping[str, Any]) -> None:
        block = fields.get("weight_block_size")
        self._skipped = self._strings(fields, "modules_to_not_convert", "ignored_layers")
        self._read_layers(fields)
        # FP8 without blocks: one scale per matrix, or per output for FBGEMM.
        if block is None and quantization_method(fields) == "fbgemm_fp8":
            self._default = per_output("fp8", scale=4)
        elif block is None:
            self._default = per_matrix("fp8", scales=1 + (fields.get("activation_scheme") == "static"))
        elif not isinstance(block, list) or not block or not all(isinstance(n, int) and n > 0 for n in block):
            raise self._wrong("weight_block_size", f"must be two whole numbers, got {short_repr(block)}")
        else:
            self._default = in_blocks("fp8", (block[0], block[-1]) if len(block) > 1 else (1, block[0]))

    def _read_small_blocks(self, fields: Mapping[str, Any]) -> None:
        name = quantization_method(fields)
        self._default = small_blocks(name)
        other_names = ("ignored_layers",) if name == "mxfp8" else ()
        self._skipped = self._strings(fields, "modules_to_not_convert", *other_names)

    def _read_gguf(self, fields: Mapping[str, Any]) -> None:
        """Read the main type of a GGUF file, which `gguf_config` writes."""
        self._default = number_format(str(fields.get("type")))

    def _read_bits(self, fields: Mapping[str, Any]) -> None:
        bits = fields.get("bits", 4)
        if bits not in (4, 8):
            raise self._wrong("bits", f"must be 4 or 8, got {short_repr(bits)}")
        group = fields.get("group_size", 128)
        # A group of -1 means one scale per output.
        values = group if isinstance(group, int) and group > 0 else 0
        self._default = integers(bits, values, zeros=True, index=quantization_method(fields) == "gptq")
        self._skipped = self._strings(fields, "modules_to_not_convert")

    def _read_bitsandbytes(self, fields: Mapping[str, Any]) -> None:
        self._skipped = self._strings(fields, "modules_to_not_convert", "llm_int8_skip_modules")
        # LLM.int8: one scale per output and one byte for the layout.
        if fields.get("load_in_8bit"):
            self._default = per_output("int8", scale=4, fixed=1)
            return
        kind = fields.get("bnb_4bit_quant_type", "fp4")
        if kind not in ("nf4", "fp4"):
            raise self._wrong("bnb_4bit_quant_type", f"must be nf4 or fp4, got {short_repr(kind)}")
        self._default = bitsandbytes_4bit(kind, nested=bool(fields.get("bnb_4bit_use_double_quant")))

    def _read_modelopt(self, fields: Mapping[str, Any]) -> None:
        # ModelOpt also writes configs in the form of compressed-tensors.
        if "config_groups" in fields and "quant_algo" not in fields and "quantization" not in fields:
            self._read_groups(fields)
            return

        # ModelOpt nests its fields in hf_quant_config.json and not in config.json.
        inner = fields.get("quantization", fields)
        if not isinstance(inner, Mapping):
            raise self._wrong("quantization", f"must be a table of fields, got {short_repr(inner)}")
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
            raise self._wrong("quantized_layers", f"must be a table of modules, got {short_repr(layers)}")
        for module, entry in layers.items():
            self._layers[str(module)] = self._algorithm(entry.get("quant_algo") if isinstance(entry, Mapping) else entry)
        return True

    def _algorithm(self, name: Any, fields: Mapping[str, Any] | None = None) -> Format:
        if not isinstance(name, str) or name.upper() not in ALGORITHMS:
            raise self._wrong("quant_algo", f"is {short_repr(name)}; known: {', '.join(ALGORITHMS)}")
        kind, algorithm = ALGORITHMS[name.upper()], name.upper()
        if kind in ("nvfp4", "mxfp4", "mxfp8"):
            # NVFP4 also stores one FP32 scale of the weights, and with quantized activations one of the inputs.
            scalars = 0 if kind != "nvfp4" else 1 if "W4A16" in algorithm else 2
            return small_blocks(kind, scalars=scalars)
        if algorithm == "FP8":
            return per_matrix("fp8", scales=2)
        if algorithm in ("FP8_PB_WO", "FP8_PB_REAL"):
            return in_blocks("fp8", (128, 128))
        if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
            return per_output("fp8", scale=4)
        if kind == "int4":
            return number_format(kind, values_per_scale=self._positive(fields or {}, "group_size", 128), scale_bytes=2)

        return number_format(kind)

    def _read_groups(self, fields: Mapping[str, Any]) -> None:
        groups = fields.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise self._wrong("config_groups", "must be a table with at least one group")
        self._skipped = self._strings(fields, "ignore")
        self.kv_format = self._kv(fields.get("kv_cache_scheme"))

        # Bytes of a scale of a whole matrix.
        self._scalar = 2 if quantization_method(fields) == "compressed-tensors" else 4
        self._cache_scale = self._scalar if self.kv_format else 0
        for name, group in groups.items():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if not isinstance(weights, Mapping):
                raise self._wrong(f"config_groups.{name}.weights", f"must be a table, got {short_repr(weights)}")
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
                return small_blocks("mxfp8")
            return self._eight_bits("fp8" if kind == "float" else "int8", weights, fixed=fixed)
        if bits == 4 and kind == "float":
            return small_blocks("mxfp4") if group == 32 else small_blocks("nvfp4", scalars=1 + bool(inputs))
        if bits == 4:
            is_per_channel = weights.get("strategy") == "channel"
            ordered = weights.get("actorder") in ("group", True)
            zeros = weights.get("symmetric") is False
            return integers(4, 0 if is_per_channel else group or 128, zeros=zeros, index=ordered, fixed=16)

        raise self._error(f"{place}.num_bits", f"must be 4 or 8, got {short_repr(bits)}")

    def _eight_bits(self, name: str, weights: Mapping[str, Any], *, fixed: bool) -> Format:
        """Return an 8-bit format of compressed-tensors, whose scales have 16 bits."""
        strategy, block = weights.get("strategy"), weights.get("block_structure")
        if strategy == "block" and isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
            return in_blocks(name, (block[0], block[1]), scale=2)
        if strategy == "channel":
            return per_output(name, scale=2, fixed=2 * fixed)
        return per_matrix(name, scales=1 + fixed, scale=self._scalar)

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


def in_blocks(name: str, block: tuple[int, int], *, scale: int = SCALAR) -> Format:
    """Return an 8-bit format with one scale per block (weight, weight_scale_inv).

    Args:
        name: Name of the format.
        block: Outputs and inputs of a block.
        scale: Bytes of a scale.

    Returns:
        The format.
    """
    rows, columns = block
    plain = number_format(name, values_per_scale=rows * columns, scale_bytes=scale, block=max(block))
    return replace(plain, packing=Packing(columns=columns, rows=rows, scale=scale))


def release_format(model: str, name: str) -> Format:
    """Return a number format as the maker of a model stores it.

    Args:
        model: Name of the model in the catalogue.
        name: Name of the format.

    Returns:
        The format; with scales for blocks where the maker's releases in FP8 have them (`RELEASED_IN_BLOCKS`).

    >>> [release_format(model, "fp8").block for model in ("zai-org/GLM-5", "Qwen/Qwen3.5-397B-A17B", "zai-org/GLM-4.6")]
    [128, 128, 0]
    """
    return in_blocks(name, RELEASED_BLOCK) if name == "fp8" and model.startswith(RELEASED_IN_BLOCKS) else number_format(name)


def per_matrix(name: str, *, scales: int, scale: int = SCALAR) -> Format:
    """Return an 8-bit format with scales per matrix.

    Args:
        name: Name of the format.
        scales: Scales per matrix: one of the weights, and one of the inputs if it is static.
        scale: Bytes of a scale.

    Returns:
        The format.
    """
    return replace(number_format(name), packing=Packing(fixed=scales * scale))


def per_output(name: str, *, scale: int, fixed: int = 0) -> Format:
    """Return an 8-bit format with one scale per output.

    Args:
        name: Name of the format.
        scale: Bytes of a scale.
        fixed: Further bytes per matrix.

    Returns:
        The format.
    """
    return replace(number_format(name), packing=Packing(scale=scale, fixed=fixed))


def small_blocks(name: str, *, scalars: int = 0) -> Format:
    """Return NVFP4, MXFP4 or MXFP8, with a one-byte scale per 16 or 32 values.

    Args:
        name: Name of the format.
        scalars: FP32 scales per matrix.

    Returns:
        The format.
    """
    bits = 8 if name == "mxfp8" else 4
    columns = 16 if name == "nvfp4" else 32
    return replace(number_format(name), packing=Packing(bits=bits, columns=columns, scale=1, fixed=scalars * SCALAR))


def integers(bits: int, group: int, *, zeros: bool, index: bool = False, fixed: int = 0, scale: int = 2) -> Format:
    """Return integers of GPTQ, AWQ or compressed-tensors, packed into 32-bit words.

    Args:
        bits: Bits of an integer, 4 or 8.
        group: Values that share a scale; 0: all inputs of an output.
        zeros: Whether zero points are stored.
        index: Whether the group of each input is stored.
        fixed: Further bytes per matrix.
        scale: Bytes of a scale.

    Returns:
        The format.
    """
    plain = number_format("int4" if bits == 4 else "int8", values_per_scale=group, scale_bytes=scale)
    words = Packing(
        bits=bits, word=4, columns=group, scale=scale, zero_bits=bits if zeros else 0, per_input=4 if index else 0, fixed=fixed
    )
    return replace(plain, packing=words)


def bitsandbytes_4bit(kind: str, *, nested: bool, block: int = 64) -> Format:
    """Return the 4-bit format of bitsandbytes.

    Each block of values has a scale in FP32, or in 8 bits if nested. Codebooks and a state in JSON are stored too.

    Args:
        kind: "nf4" or "fp4".
        nested: Whether the scales are quantized.
        block: Values that share a scale.

    Returns:
        The format.
    """
    fixed = CODEBOOK["4"] + (CODEBOOK["nested"] if nested else 0)
    scale = 1 + 4 / NESTED if nested else 4
    plain = number_format("int4", values_per_scale=block, scale_bytes=scale)
    packing = Packing(bits=4, columns=block, scale=4, fixed=fixed, flat=True, nested=NESTED if nested else 0, state=kind)
    return replace(plain, packing=packing)


def state_bytes(kind: str, shape: tuple[int, int], dtype: str, *, nested: bool) -> int:
    """Return the bytes of the JSON state that bitsandbytes stores with a matrix.

    If the scales are nested, the state has their mean in decimal digits. No config gives their number; most means have
    17 to 20 characters.

    Args:
        kind: "nf4" or "fp4".
        shape: Outputs and inputs of the matrix.
        dtype: dtype of the unquantized matrix.
        nested: Whether the scales are quantized.

    Returns:
        Bytes.

    >>> state_bytes("nf4", (4096, 4096), "bfloat16", nested=False)
    82
    """
    state: dict[str, object] = {"quant_type": kind, "blocksize": 64, "dtype": dtype, "shape": list(shape)}
    if nested:
        state |= {"nested_blocksize": NESTED, "nested_dtype": "float32", "nested_offset": 0.04405477270483971}
    return len(json.dumps(state))


def stored(format: Format, matrices: Iterable[tuple[int, int]], *, base: Format, bias: int = 0, scale_bytes: int = 0) -> Format:
    """Return a format with the bytes per parameter that matrices of given shapes have.

    A format without a packing keeps its bytes.

    Args:
        format: The format with its packing.
        matrices: Shapes of the matrices as (inputs, outputs).
        base: Format of the biases.
        bias: Number of values of the biases.
        scale_bytes: Bytes of KV cache scales stored with the matrices.

    Returns:
        The format, without its packing.

    >>> blocks = in_blocks("fp8", (128, 128))
    >>> round(stored(blocks, [(7168, 576)], base=number_format("bf16")).bytes * 7168 * 576)
    4129888
    """
    matrices = list(matrices)
    packing = format.packing
    if packing is None and not scale_bytes and (not bias or format.bytes == base.bytes):
        return format
    values = sum(inputs * outputs for inputs, outputs in matrices)
    if packing is None:
        total_bytes = values * format.bytes
    else:
        # The state of bitsandbytes names the dtype, so its length depends on it.
        dtype = {"fp16": "float16", "fp32": "float32"}.get(base.name, "bfloat16")
        total_bytes = sum(packed_bytes(packing, inputs, outputs) for inputs, outputs in matrices)
        if packing.state:
            nested = packing.nested > 0
            total_bytes += sum(state_bytes(packing.state, (m, n), dtype, nested=nested) for n, m in matrices)
    if not values + bias:
        return format

    return replace(format, bytes=(total_bytes + bias * base.bytes + scale_bytes) / (values + bias), packing=None)


class Patterns:
    """An ordered list of patterns of module names."""

    def __init__(self, patterns: Iterable[str], refuse: Callable[[str], Exception]) -> None:
        self._names: dict[str, int] = {}
        self._expressions: list[tuple[int, re.Pattern[str]]] = []
        self._refuse, self._spent = refuse, 0.0
        for rank, pattern in enumerate(patterns):
            if pattern.startswith("re:") or "*" in pattern or "?" in pattern:
                start_time = time.process_time()
                self._expressions.append((rank, compiled(pattern, refuse)))
                self._count(time.process_time() - start_time)
            else:
                self._names.setdefault(pattern, rank)

    def first(self, module: str) -> int | None:
        """Return the position of the first pattern that matches a module or its parent.

        Args:
            module: Path of the module.

        Returns:
            Position from 0; None if no pattern matches.

        Raises:
            Exception: The error of `refuse`, if all matches together take too long.
        """
        ranks = [self._names[name] for name in _name_suffixes(module) if name in self._names] if self._names else []
        rank = min(ranks, default=None)
        for position, expression in self._expressions:
            # A plain name matched earlier in the list.
            if rank is not None and position > rank:
                break
            start_time = time.process_time()
            is_match = any(map(expression.fullmatch, _candidates(module)))
            self._count(time.process_time() - start_time)
            if is_match:
                return position
        return rank

    def _count(self, seconds: float) -> None:
        self._spent += seconds
        if self._spent > PATIENCE:
            raise self._refuse("has patterns that take more than a second to match; list fewer in 'ignore'")


@lru_cache(maxsize=8192)
def _candidates(module: str) -> tuple[str, ...]:
    """Return a module and its parents, each with every prefix."""
    parents = [module]
    while "." in parents[-1]:
        parents.append(parents[-1].rpartition(".")[0])
    return tuple(prefix + parent for parent in parents for prefix in PREFIXES)


@lru_cache(maxsize=8192)
def _name_suffixes(module: str) -> frozenset[str]:
    """Return every plain name that means a module.

    These are the module and its parents with any prefix, and the endings of its path.
    """
    words = module.split(".")
    endings = (".".join(words[start:]) for start in range(1, len(words)))
    prefixes = (prefix.rstrip(".") for prefix in PREFIXES if prefix)
    tops = {".".join(words[:stop]) for prefix in prefixes for words in [prefix.split(".")] for stop in range(1, len(words) + 1)}
    return frozenset((*_candidates(module), *endings, *tops))


def compiled(pattern: str, refuse: Callable[[str], Exception]) -> re.Pattern[str]:
    """Return the regular expression of a glob, or of the text after "re:".

    Args:
        pattern: The pattern.
        refuse: Makes the error for a problem.

    Returns:
        The compiled expression.

    Raises:
        Exception: The error of `refuse`, if the pattern is malformed or could take long.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise refuse(f"has a pattern of {len(pattern):,} characters, '{pattern[:20]}...'; the limit is {LONGEST_PATTERN:,}")
    if not pattern.startswith("re:"):
        return re.compile(translate(pattern))
    if max_match_count(pattern[3:]) > MOST_WAYS:
        raise refuse(f"has the pattern {pattern[:60]!r}, which could take very long to match")
    try:
        return re.compile(pattern[3:])
    except (re.error, OverflowError, RecursionError) as error:
        raise refuse(f"has the pattern {pattern[:60]!r}, which is not a regular expression: {error}") from None


_ATOM: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[()|*+?{]", re.DOTALL)
_REPEAT: Final = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")


def max_match_count(expression: str) -> float:
    r"""Return an upper bound on the ways to match an expression with a module's name.

    Alternatives add, sequences multiply, `?` doubles, and $u$ repeats divide a text of $n$ characters in $\binom{n +
    u}{u}$ ways.

    Args:
        expression: The regular expression.

    Returns:
        The bound; infinity if a repeat contains a choice.

    >>> max_match_count("layers.(?:1|2).*"), max_match_count("(a+)+"), max_match_count("(a|a)*")
    (202.0, inf, inf)
    """
    total, repeats, position = _match_count(expression, 0, 0)
    if position < len(expression):
        # A closing bracket without an opening one; the compiler refuses it.
        return 0.0
    return total * comb(LONGEST_MODULE + repeats, repeats) if repeats <= LONGEST_MODULE else inf


def _match_count(text: str, position: int, depth: int) -> tuple[float, int, int]:
    """Return (ways without repeats, repeats, end) of the alternatives at `position`."""
    if depth > DEEPEST_GROUP:
        return inf, 0, len(text)

    # Sum of the ways of the alternatives so far, and the most repeats of one alternative.
    branches, most_repeats = 0.0, 0
    branch, repeats = 1.0, 0
    while position < len(text) and text[position] != ")":
        if text[position] == "|":
            branches, most_repeats = branches + branch, max(most_repeats, repeats)
            branch, repeats, position = 1.0, 0, position + 1
            continue

        # Ways and repeats of the next atom or group.
        inner, within = 1.0, 0
        if text[position] == "(":
            inner, within, position = _match_count(text, _group_start(text, position), depth + 1)
            position += 1
        else:
            atom = _ATOM.match(text, position)
            position = atom.end() if atom else position + 1
        repeat = _REPEAT.match(text, position)
        # Repeats of repeats, as in a{2}{3}, are refused by the compiler or multiply the same atom.
        while repeat:
            position = repeat.end()
            if repeat.group().startswith("?") and not within:
                inner += 1
            # A repeat of a choice or of a repeat can take exponential time.
            elif inner > 1 or within:
                inner = inf
            else:
                within += 1
            repeat = _REPEAT.match(text, position)
        branch *= inner
        repeats += within

    return branches + branch, max(most_repeats, repeats), position


def _group_start(text: str, position: int) -> int:
    """Return the first position inside a group, after ?:, ?=, ?<name> and others."""
    opened = re.compile(r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:|<?[=!]|>))?").match(text, position)
    return opened.end() if opened else position + 1
