"""Training stack: losses against the ideal machine, as a few constants.

Each constant is a share, a time or a factor. `ideal` has no losses. Files in `data/stacks/` have the constants of real
stacks (Megatron, torchtitan, MaxText, llm-foundry) and their sources.

All stacks share the efficiencies of kernels and links. They differ by one factor on their times, by their overlap, and by
the formats of gradients.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptime.catalog.data_files import check_entry_name, find, read_file
from steptime.errors import DataFileError, did_you_mean, short_repr
from steptime.hardware.system import Chip, System
from steptime.number_checks import Number
from steptime.physics.bias_correction import Anchor
from steptime.result_base import Result, unit


def _constant(default: float, meaning: str, *, unit: str = "share", smallest: float = 0.0, largest: float = 1.25) -> Any:
    return field(default=default, metadata={"line": meaning, "unit": unit, "least": smallest, "most": largest})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of a training stack; the defaults are ideal. Each may be an array."""

    compute_efficiency: Number = _constant(1.0, "of the rate of a chip, for products in 16 bits")
    eight_bit_efficiency: Number = _constant(1.0, "of compute_efficiency, for products in 8 bits with a scale per tensor")
    block_efficiency: Number = _constant(1.0, "of compute_efficiency, for products in 8 bits with a scale per block (mxfp8)")
    four_bit_efficiency: Number = _constant(1.0, "of compute_efficiency, for products in 4 bits (nvfp4)")
    expert_efficiency: Number = _constant(1.0, "of the rate of dense products, for grouped products of experts")
    attention_efficiency: Number = _constant(1.0, "of the bf16 rate of a chip, for flash attention")
    memory_efficiency: Number = _constant(1.0, "of the memory bandwidth, for element-wise passes", largest=20.0)
    scale_up_efficiency: Number = _constant(1.0, "of the bandwidth of the innermost links, for collectives")
    scale_out_efficiency: Number = _constant(1.0, "of the bandwidth of outer links, for collectives")
    exposed_writes: Number = _constant(0.0, "of the time in which a product writes its outputs, not overlapped with arithmetic")
    fill_share: Number = _constant(0.0, "of the outputs that timed products lose while the chip is not filled", largest=10.0)
    tensor_overlap: Number = _constant(1.0, "of tensor-parallel exchanges, overlapped with products", largest=1.0)
    expert_overlap: Number = _constant(1.0, "of expert exchanges, overlapped with products", largest=1.0)
    data_overlap: Number = _constant(1.0, "of the concurrent pass, which can hide data-parallel exchanges", largest=1.0)
    seconds_per_layer: Number = _constant(
        0.0, "fixed time per layer and micro-batch of the forward pass; twice this for the backward pass", unit="s", largest=1.0
    )
    seconds_per_expert_layer: Number = _constant(
        0.0, "additional time per expert layer: routing, sorting", unit="s", largest=1.0
    )
    seconds_per_local_expert: Number = _constant(
        0.0, "additional time per expert of a chip and layer: launches of its products and casts", unit="s", largest=1.0
    )
    seconds_per_step: Number = _constant(0.0, "fixed time per step: gradient norm, data, host", unit="s", largest=100.0)
    yearly_gain: Number = _constant(0.0, "speed-up of a stack per year, since 2024-06", unit="log", largest=2.0)
    expert_yearly_gain: Number = _constant(
        0.0, "additional speed-up per year of expert kernels, routing and sorting", unit="log", largest=5.0
    )
    chip_departure: Number = _constant(
        0.0, "of the ratio of a chip's reached share of its data sheet to the usual share", unit="exponent", largest=2.0
    )
    power_exponent: Number = _constant(
        0.0, "of sustained rates over the power of a chip per FLOP/s", unit="exponent", largest=1.0
    )


CONSTANTS: Final = {f.name: f.metadata for f in fields(Constants)}
RATES: Final = ("attention_efficiency", "memory_efficiency", "scale_up_efficiency", "scale_out_efficiency")
NARROW: Final = ("eight_bit_efficiency", "block_efficiency", "four_bit_efficiency")
# Date at which `yearly_gain` has no effect.
REFERENCE_YEAR: Final = 2024.5


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingEngine(Result):
    """A training stack: constants, overlap, the fit and its source.

    speed: factor on the speed of all times. elsewhere: additional factor on chips without runs of any stack; 1 if the stack
    ran on several chips, because its speed then held on chips that were left out. largest_share: largest share of the data
    sheet that products in 16 bits reach. fill_outputs: by format, outputs that a chip could have made while it is not filled.
    chips: by chip name, factors on the speed of all times ("speed") and on the rate
    of attention kernels ("attention").

    gradient_bytes: bytes per gradient, as it is accumulated and reduced. logit_bytes: bytes per logit at one time.
    schedules, shardings, recomputes: the supported ones; all if empty. prefetched: layers whose sharded weights are
    gathered ahead of their use.

    gathered_inputs: whether tensor-parallel ranks save the gathered inputs of blocks, as DTensor does: a linear saves its
    input, which `PrepareModuleInput` has replicated
    (https://github.com/pytorch/torchtitan/blob/main/torchtitan/models/llama3/infra/parallelize.py).

    grouped_experts: whether one kernel has the products of all experts of a chip, as `torch._grouped_mm` of AutoModel and
    torchtitan and megablox of MaxText; else they are launched one by one, as by GroupedLinear of Transformer Engine
    (`nvte_multi_tensor_gemm` of
    https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/common/gemm/cublaslt_gemm.cu).

    rings: whether gathers of sharded weights take the fixed time of NCCL's rings.

    narrow_gather: whether weights of products in 8 bits are gathered in this format
    (`fp8_param_gather` of https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/src/megatron/bridge/training/mixed_precision.py).

    adapted: groups of products with LoRA adapters: qkv, output, mlp.

    fused_experts: "family@chip" whose recipes have fused kernels for experts in mxfp8, in a captured step that overlaps
    exchanges (`cutedsl_fused_grouped_mlp`, `full_iteration`, `moe_a2a_overlap`). narrow_attention: those of them with
    attention in 8 bits (`fp8_dot_product_attention`). narrow_heads: families with the head in 8 bits (`fp8_output_proj`).
    Source: https://github.com/NVIDIA-NeMo/Megatron-Bridge/tree/v0.5.1/scripts/performance/configs.

    reserved_bytes: memory of driver, libraries and buffers per chip. cached: share of the allocated bytes that an allocator
    keeps in addition.

    anchor: correction from your own runs, which `training_correction.own_correction` applies to a step.
    """

    name: str = "ideal"
    title: str = ""
    constants: Constants = Constants()
    speed: Number = 1.0
    elsewhere: float = 1.0
    chips: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gradient_bytes: float = 4.0
    logit_bytes: float = 6.0
    schedules: tuple[str, ...] = ()
    shardings: tuple[str, ...] = ()
    recomputes: tuple[str, ...] = ()
    reserved_bytes: float = 0.0
    cached: float = 0.0
    prefetched: float = 1.0
    gathered_inputs: bool = False
    grouped_experts: bool = False
    rings: bool = True
    narrow_gather: bool = False
    adapted: tuple[str, ...] = ("qkv", "output", "mlp")
    fused_experts: tuple[str, ...] = ()
    narrow_attention: tuple[str, ...] = ()
    narrow_heads: tuple[str, ...] = ()
    largest_share: float = 1.0
    fill_outputs: Mapping[str, float] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    anchor: Anchor | None = field(default=None, metadata=unit("", "your own runs", left_out=True))

    def has_run_on(self, chip: str) -> bool:
        """Return whether the stack has a run on a chip in its fit.

        Args:
            chip: Name of the chip.

        Returns:
            True if there is a run.
        """
        return chip in self.fit.get("systems", ())

    def speed_on(self, chip: str) -> Number:
        """Return the speed of the stack on a chip, without the factor of the chip.

        A stack is as fast as its runs only where it ran. On other chips with runs, it is at most as fast as all stacks
        together. Factors for a chip without any run are not multiplied with those of the chip.

        Args:
            chip: Name of the chip.

        Returns:
            Factor on the speed of all times.
        """
        if self.has_run_on(chip):
            return self.speed
        if chip in self.fit.get("chips", ()):
            slower: Number = np.minimum(self.speed, float(self.fit.get("typical_speed", np.inf)))
            return slower
        return self.speed * self.elsewhere

    def recipe_flags(self, family: str, chip: str) -> dict[str, Any]:
        """Return the fields of a job that the recipe of a model decides.

        Args:
            family: Family of the model.
            chip: Name of the chip.

        Returns:
            Fields of `TrainingJob` by name.

        >>> load_stack("megatron").recipe_flags("deepseek_v3", "gb200")
        {'fused_experts': True, 'narrow_attention': False, 'narrow_head': True}
        """
        return {
            "fused_experts": f"{family}@{chip}" in self.fused_experts,
            "narrow_attention": f"{family}@{chip}" in self.narrow_attention,
            "narrow_head": family in self.narrow_heads,
        }

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the name of the stack, and the number of runs of its fit.

        Returns:
            Title, and lines by name.
        """
        runs = {"fitted to": f"{self.fit['runs']:,} measured runs"} if self.fit.get("runs") else {}
        return f"Training stack {self.name}" + (f": {self.title}" if self.title else ""), runs


IDEAL: Final = TrainingEngine(
    name="ideal", title="the bound that physics sets: every efficiency 1, every overhead 0", rings=False
)
# Stacks of chips whose runs have one. Runs on NVIDIA's chips have many: production runs are as fast as all of them together,
# tuned recipes and papers faster.
DEFAULT: Final = {"AMD": "rocm-mlperf", "Google": "maxtext"}
TYPICAL: Final = "typical"
PAPERS: Final = "megatron-lm"
TUNED: Final = "megatron"
# Other names of stacks: `megatron` has the recipes of Megatron-Bridge.
ALIASES: Final = {"megatron-bridge": TUNED}
# Largest share of the data sheet that timed products in bf16 reach: the 99th percentile of products of at least 1,024 rows,
# in the tables of AIConfigurator 0.12 (https://github.com/ai-dynamo/aiconfigurator). Other chips have the largest of these.
LARGEST_GEMM_SHARE: Final = {
    "a100": 0.927, "h100": 0.870, "h200": 0.858, "h800": 0.870, "h20": 0.870, "gh200": 0.858, "b200": 0.769, "gb200": 0.753,
    "gb300": 0.826, "b300": 0.771,
}  # fmt: skip


def training_engine(
    name: str | os.PathLike[str] | TrainingEngine | None, system: System, catalog: str | os.PathLike[str] | None = None
) -> TrainingEngine:
    """Return a training stack by name or path, or the usual one.

    Without a name, AMD chips have the stack of MLPerf, TPUs have MaxText, and all others have all stacks together.

    Args:
        name: "ideal", a file of data/stacks, a path, or a stack, which is returned; None for the usual stack.
        system: Chips and links.
        catalog: Folder of the catalog; the one of the package if None.

    Returns:
        Training stack.
    """
    if isinstance(name, TrainingEngine):
        return name
    if name is None:
        return load_stack(DEFAULT.get(system.chip.vendor, TYPICAL), catalog)
    return load_stack(os.fspath(name), catalog)


def load_stack(name: str, catalog: str | os.PathLike[str] | None = None) -> TrainingEngine:
    """Return a training stack by name or path.

    Args:
        name: "ideal", a file of data/stacks, or a path.
        catalog: Folder of the catalog; the one of the package if None.

    Returns:
        Training stack.

    Raises:
        DataFileError: If the file is not a training stack.
    """
    if name.casefold() == "ideal":
        return IDEAL
    name = ALIASES.get(name.casefold(), name)
    path = find("stacks", name, catalog)
    return _load(path, path.stat().st_mtime)


@lru_cache(maxsize=32)
def _load(path: Path, _modified: float) -> TrainingEngine:
    data = read_file(path)
    field_names = tuple(f.name for f in fields(TrainingEngine))
    unknown = [key for key in data if key not in field_names]
    if unknown or not isinstance(data.get("constants"), dict):
        problem_text = f"{unknown[0][:40]!r} is not a key of a training stack" if unknown else "has no table [constants]"
        raise DataFileError(path, f"{problem_text}; the keys are {', '.join(field_names)}")
    check_entry_name(data.get("name", path.stem), path)
    for key, value in data["constants"].items():
        problem = constant_error(key, value)
        if problem:
            raise DataFileError(path, f"constants.{key}: {problem}")
    engine_fields: Any = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key != "constants"
    }
    return TrainingEngine(constants=replace(Constants(), **data["constants"]), **engine_fields)


def on_chip(engine: TrainingEngine, system: System, *, experts: bool, date: str = "") -> TrainingEngine:
    """Return the stack on a chip at a date.

    Its speed combines chip, stack and age. No rate exceeds the data sheet: where the speed would lift a rate above it, the
    rate is that of the data sheet. Gains end at the date of the newest runs of the fit.

    Args:
        engine: Training stack.
        system: Chips and links.
        experts: Whether the model has routed experts.
        date: Date of the stack, such as "2025-06"; the newest of its fit if empty.

    Returns:
        Stack.
    """
    # Beyond the newest run of the fit no further gain is assumed.
    chip = engine.chips.get(system.chip.name, {})
    last_year = float(engine.fit.get("until", REFERENCE_YEAR))
    years = (last_year if not date else min(decimal_year(date), last_year)) - REFERENCE_YEAR
    # Software for experts improves faster than the rest, so that it has its own gain.
    constants = age_constants(engine.constants, years if experts else 0.0)
    speed = engine.speed_on(system.chip.name) * chip.get("speed", 1.0)
    speed = speed * np.exp(constants.yearly_gain * years)
    constants = replace(constants, attention_efficiency=constants.attention_efficiency * chip.get("attention", 1.0))
    largest_share = 1.0 if engine.name == "ideal" else largest_gemm_share(system.chip.name)
    fill = {} if engine.name == "ideal" else fill_outputs(system.chip)
    return replace(
        engine, constants=cap_rates(constants, 1 / speed), speed=speed, largest_share=largest_share, fill_outputs=fill
    )


@cache
def _timed_products(constant: str) -> dict[tuple[str, str], float]:
    """Return a constant of timed products by generation of chips and format."""
    text = (resources.files("steptime") / "data" / "kernels" / "products.toml").read_text(encoding="utf-8")
    return {(kernel["chips"], kernel["form"]): float(kernel[constant]) for kernel in tomllib.loads(text)["kernel"]}


def largest_narrow_share(chip: Chip, form: str) -> float:
    """Return the largest share of the data sheet that timed products in 8 or 4 bits reach.

    Args:
        chip: Chip.
        form: "fp8", "int8", "mxfp8" or "nvfp4".

    Returns:
        Share; the largest of all generations where the chip has no timings.
    """
    form = "fp8" if form == "int8" else form
    timed = _timed_products("largest_share")
    return timed.get((chip.generation, form), max(value for key, value in timed.items() if key[1] == form))


def fill_outputs(chip: Chip) -> Mapping[str, float]:
    """Return the outputs that a chip could have made while the first and last tiles of a product leave parts of it idle.

    A product of sums of k values takes 2 k times these outputs over the rate longer than its arithmetic. They are fitted to
    timings of products (docs/product_timings.py). Chips and formats without timings have the median of the others.

    Args:
        chip: Chip.

    Returns:
        Outputs by format.

    >>> from steptime.catalog.hardware_loading import load_chip
    >>> outputs = fill_outputs(load_chip("h100")[0])
    >>> outputs["fp8"] > 5 * outputs["bf16"]
    True
    """
    timed = _timed_products("fill_outputs")
    forms = {form: float(np.median([value for key, value in timed.items() if key[1] == form])) for _, form in timed}
    outputs = {form: timed.get((chip.generation, form), usual) for form, usual in forms.items()}
    return outputs | {"int8": outputs["fp8"]}


def largest_gemm_share(chip: str) -> float:
    """Return the largest share of the data sheet that products in 16 bits reach on a chip.

    Args:
        chip: Name of the chip.

    Returns:
        Share.
    """
    return LARGEST_GEMM_SHARE.get(chip, max(LARGEST_GEMM_SHARE.values()))


NEW_SYSTEM: Final = "new system"
DENSE, SPARSE = "dense", "experts"
# Range of a stack without a fit; about the error of runs whose whole source was left out of a fit.
DEFAULT_RANGE: Final = (0.6, 1.8)


def step_time_range(engine: TrainingEngine, system: System, *, experts: bool) -> tuple[float, float]:
    """Return the factors of the 90 % range of a step time.

    Three kinds have their own range: dense models and models with experts, on chips with runs in the fit, and other chips.

    Args:
        engine: Training stack.
        system: Chips and links.
        experts: Whether the model has routed experts.

    Returns:
        Lower and upper factor; 1 and 1 for the stack "ideal".
    """
    if engine.name == "ideal":
        return 1.0, 1.0
    # The range of new systems comes from systems that were left out of the fit.
    intervals = engine.fit.get("interval", {})
    kind = (SPARSE if experts else DENSE) if engine.has_run_on(system.chip.name) else NEW_SYSTEM
    low, high = intervals.get(kind, DEFAULT_RANGE)
    return float(low), float(high)


def age_constants(c: Constants, years: Number) -> Constants:
    """Return the constants after years of gains in software for experts.

    Expert kernels, routing and sorting get faster.

    Args:
        c: Constants of the stack.
        years: Years since the reference date.

    Returns:
        Constants.
    """
    gain = np.exp(c.expert_yearly_gain * years)
    names = ("seconds_per_expert_layer", "seconds_per_local_expert")
    return replace(c, expert_efficiency=c.expert_efficiency * gain, **{name: getattr(c, name) / gain for name in names})


def cap_rates(c: Constants, slower: Number) -> Constants:
    """Return the constants with all rates limited to the data sheet.

    A rate counts after division by `slower`.

    Args:
        c: Constants of the stack.
        slower: Factor on all times.

    Returns:
        Constants.
    """
    # Times are multiplied by `slower` later, so that an efficiency of `slower` is the data sheet.
    largest_share = np.asarray(slower)
    dense = np.minimum(c.compute_efficiency, largest_share)
    narrow_rates = {name: np.minimum(getattr(c, name), largest_share / dense) for name in NARROW}
    rates = {name: np.minimum(getattr(c, name), largest_share) for name in RATES}
    return replace(c, compute_efficiency=dense, expert_efficiency=np.minimum(c.expert_efficiency, 1.0), **narrow_rates, **rates)


def constant_error(name: str, value: object) -> str:
    """Return the error in the value of a constant as text.

    Args:
        name: Name of the constant.
        value: Value to check.

    Returns:
        Text; "" if the value is valid.

    >>> constant_error("compute_efficiency", 7)
    'must be from 0 to 1.25 (share of the rate of a chip, for products in 16 bits), got 7'
    """
    if name not in CONSTANTS:
        suggestions = did_you_mean(name, CONSTANTS, max_names=1)
        return "no such constant" + (f"; did you mean {suggestions[0]}?" if suggestions else "")
    metadata = CONSTANTS[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"must be a number, got {short_repr(value)}"
    if metadata["least"] <= value <= metadata["most"]:
        return ""
    limits = f"{metadata['least']:g} to {metadata['most']:g}"
    return f"must be from {limits} ({metadata['unit']} {metadata['line']}), got {short_repr(value)}"


def decimal_year(date: str) -> float:
    """Return a date as a year with a fraction.

    Args:
        date: Date such as "2025", "2024-06" or "2026-01-15"; a year is its middle.

    Returns:
        Year.

    >>> round(decimal_year("2024-06"), 2), decimal_year("2025"), round(decimal_year("2026-01-15"), 2)
    (2024.46, 2025.5, 2026.04)
    """
    parts = [int(part) for part in date.split("-")]
    if len(parts) == 1:
        return parts[0] + 0.5
    day = parts[2] if len(parts) > 2 else 15
    return parts[0] + (parts[1] - 1) / 12 + (day / 30.4 if len(parts) > 2 else 0.5) / 12
