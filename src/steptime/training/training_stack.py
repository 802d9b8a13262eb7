"""A training stack: what it loses against the physics, as a few constants, each a share, a time or a factor.

`ideal` loses nothing. Files in `data/stacks/` hold those of real stacks (Megatron, torchtitan, MaxText, llm-foundry), with
where they came from: all share what kernels and links reach, and differ by one factor on their times, by what they overlap,
and by the formats in which they keep gradients.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptime.catalog.data_files import find, read_file
from steptime.catalog.entry_names import check_entry_name
from steptime.errors import DataFileError, did_you_mean, short_repr
from steptime.hardware.system import System
from steptime.number_checks import Number
from steptime.result_base import Result


def _constant(default: float, meaning: str, *, unit: str = "share", smallest: float = 0.0, largest: float = 1.25) -> Any:
    return field(default=default, metadata={"line": meaning, "unit": unit, "least": smallest, "most": largest})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The constants of a training stack; the ideal's by default. Each may be an array."""

    compute_efficiency: Number = _constant(1.0, "of a chip's rate, in products of 16 bits")
    eight_bit_efficiency: Number = _constant(1.0, "of compute_efficiency, in products of 8 bits with a scale a tensor")
    block_efficiency: Number = _constant(1.0, "of compute_efficiency, in products of 8 bits with a scale a block (mxfp8)")
    four_bit_efficiency: Number = _constant(1.0, "of compute_efficiency, in products of 4 bits (nvfp4)")
    expert_efficiency: Number = _constant(1.0, "of the rate of dense products, in grouped products of experts")
    attention_efficiency: Number = _constant(1.0, "of a chip's bf16 rate, in flash attention")
    memory_efficiency: Number = _constant(1.0, "of memory bandwidth, in element-wise passes", largest=20.0)
    scale_up_efficiency: Number = _constant(1.0, "of the bandwidth of the innermost links, in collectives")
    scale_out_efficiency: Number = _constant(1.0, "of the bandwidth of outer links, in collectives")
    tensor_overlap: Number = _constant(1.0, "of tensor-parallel exchanges, that hides behind products", largest=1.0)
    expert_overlap: Number = _constant(1.0, "of expert exchanges, that hides behind products", largest=1.0)
    data_overlap: Number = _constant(
        1.0, "of the pass beside them, behind which exchanges of data-parallel copies hide", largest=1.0
    )
    seconds_per_layer: Number = _constant(
        0.0, "of a layer's forward pass that a micro-batch of any size takes, twice that backward", unit="s", largest=1.0
    )
    seconds_per_expert_layer: Number = _constant(0.0, "more of a layer with experts: routing, sorting", unit="s", largest=1.0)
    seconds_per_step: Number = _constant(0.0, "of a step: gradient norm, data, the host", unit="s", largest=100.0)
    yearly_gain: Number = _constant(0.0, "by which a stack gets faster in a year, since 2024-06", unit="log", largest=2.0)
    expert_yearly_gain: Number = _constant(
        0.0, "by which kernels of experts and what is around them gain beside", unit="log", largest=5.0
    )
    chip_departure: Number = _constant(
        0.0, "how much of a chip's own departure from the usual share of its data sheet shows", unit="exponent", largest=2.0
    )
    power_exponent: Number = _constant(
        0.0, "with which sustained rates follow the power that a chip has for a FLOP/s", unit="exponent", largest=1.0
    )


CONSTANTS: Final = {f.name: f.metadata for f in fields(Constants)}
RATES: Final = ("attention_efficiency", "memory_efficiency", "scale_up_efficiency", "scale_out_efficiency")
NARROW: Final = ("eight_bit_efficiency", "block_efficiency", "four_bit_efficiency")
REFERENCE_YEAR: Final = 2024.5  # the date at which `yearly_gain` is nothing


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingEngine(Result):
    """A training stack: its constants, what it overlaps, the fit behind them and their source.

    speed: factor on the speed of all its times. elsewhere: one more on chips of which the fit had no run, the median of the
    systems that were left out of it. chips: by name, factors on the speed of all times on a chip ("speed") and on
    the rate of its attention kernels ("attention"). gradient_bytes: of a gradient as it is
    accumulated and reduced; logit_bytes: that a logit takes at once. schedules, shardings, recomputes: those that it has, all
    where none are named. prefetched: layers whose divided weights are gathered ahead of their use. reserved_bytes: what
    driver, libraries and buffers take of a chip's memory. cached: share of allocated bytes that an allocator holds beside them.
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
    fit: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)

    def has_run_on(self, chip: str) -> bool:
        """Whether a run of the fit was on a chip."""
        return chip in self.fit.get("systems", ())

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return what it is, and how many runs it is fitted to."""
        runs = {"fitted to": f"{self.fit['runs']:,} measured runs"} if self.fit.get("runs") else {}
        return f"Training stack {self.name}" + (f": {self.title}" if self.title else ""), runs


IDEAL: Final = TrainingEngine(name="ideal", title="the bound that physics sets: every efficiency 1, every overhead 0")
DEFAULT: Final = {"NVIDIA": "megatron", "AMD": "rocm-mlperf", "Google": "maxtext"}
TYPICAL: Final = "typical"


def training_engine(
    name: str | os.PathLike[str] | TrainingEngine | None, system: System, catalog: str | os.PathLike[str] | None = None
) -> TrainingEngine:
    """Return the stack of a name ("ideal", or a file of data/stacks), a path, or one as it is; None: that of the chip's
    maker."""
    if isinstance(name, TrainingEngine):
        return name
    return load_stack(DEFAULT.get(system.chip.vendor, TYPICAL) if name is None else os.fspath(name), catalog)


def load_stack(name: str, catalog: str | os.PathLike[str] | None = None) -> TrainingEngine:
    """Return the stack of a name or a path."""
    if name.casefold() == "ideal":
        return IDEAL
    path = find("stacks", name, catalog)
    return _load(path, path.stat().st_mtime)


@lru_cache(maxsize=32)
def _load(path: Path, _modified: float) -> TrainingEngine:
    data = read_file(path)
    field_names = tuple(f.name for f in fields(TrainingEngine))
    unknown = [key for key in data if key not in field_names]
    if unknown or not isinstance(data.get("constants"), dict):
        problem_text = f"{unknown[0][:40]!r} is no key of a training stack" if unknown else "has no table [constants]"
        raise DataFileError(path, f"{problem_text}; such a file has {', '.join(field_names)}")
    check_entry_name(data.get("name", path.stem), path)
    for key, value in data["constants"].items():
        problem = constant_error(key, value)
        if problem:
            raise DataFileError(path, f"constants.{key}: {problem}")
    engine_fields: Any = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key != "constants"
    }
    return TrainingEngine(constants=replace(Constants(), **data["constants"]), **engine_fields)


def on_chip(engine: TrainingEngine, system: System, *, experts: bool, date: str = "") -> tuple[TrainingEngine, Number]:
    """Return the stack as it is on a chip at a date, no rate above the data sheet's, and a factor on all its times.

    Without a date that of the newest runs that it is fitted to, beyond which no gain is counted. The factor is that of the
    chip, the stack and its age; where it would lift a rate above the data sheet, the rate is that of the data sheet.
    """
    chip = engine.chips.get(system.chip.name, {})
    last_year = float(engine.fit.get("until", REFERENCE_YEAR))
    years = (last_year if not date else min(decimal_year(date), last_year)) - REFERENCE_YEAR
    constants = age_constants(engine.constants, years if experts else 0.0)
    speed = engine.speed * chip.get("speed", 1.0) * (1.0 if engine.has_run_on(system.chip.name) else engine.elsewhere)
    time_factor = np.exp(-constants.yearly_gain * years) / speed
    constants = replace(constants, attention_efficiency=constants.attention_efficiency * chip.get("attention", 1.0))
    return replace(engine, constants=cap_rates(constants, time_factor)), time_factor


def age_constants(c: Constants, years: Number) -> Constants:
    """Return the constants after years in which software for experts got faster: its kernels, and what it does around them."""
    gain = np.exp(c.expert_yearly_gain * years)
    return replace(c, expert_efficiency=c.expert_efficiency * gain, seconds_per_expert_layer=c.seconds_per_expert_layer / gain)


def cap_rates(c: Constants, slower: Number) -> Constants:
    """Return the constants with which no rate, divided by `slower`, is above the data sheet's."""
    largest_share = np.asarray(slower)
    dense = np.minimum(c.compute_efficiency, largest_share)
    narrow_rates = {name: np.minimum(getattr(c, name), largest_share / dense) for name in NARROW}
    rates = {name: np.minimum(getattr(c, name), largest_share) for name in RATES}
    return replace(c, compute_efficiency=dense, expert_efficiency=np.minimum(c.expert_efficiency, 1.0), **narrow_rates, **rates)


def constant_error(name: str, value: object) -> str:
    """Return what is wrong with a value of a constant, "" for nothing.

    >>> constant_error("compute_efficiency", 7)
    "must be from 0 to 1.25 (share of a chip's rate, in products of 16 bits), not 7"
    """
    if name not in CONSTANTS:
        suggestions = did_you_mean(name, CONSTANTS, max_names=1)
        return "no such constant" + (f"; did you mean {suggestions[0]}?" if suggestions else "")
    metadata = CONSTANTS[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"must be a number, not {short_repr(value)}"
    if metadata["least"] <= value <= metadata["most"]:
        return ""
    limits = f"{metadata['least']:g} to {metadata['most']:g}"
    return f"must be from {limits} ({metadata['unit']} {metadata['line']}), not {short_repr(value)}"


def decimal_year(date: str) -> float:
    """Return a date as a year with its fraction; a year alone is its middle.

    >>> round(decimal_year("2024-06"), 2), decimal_year("2025"), round(decimal_year("2026-01-15"), 2)
    (2024.46, 2025.5, 2026.04)
    """
    parts = [int(part) for part in date.split("-")]
    if len(parts) == 1:
        return parts[0] + 0.5
    day = parts[2] if len(parts) > 2 else 15
    return parts[0] + (parts[1] - 1) / 12 + (day / 30.4 if len(parts) > 2 else 0.5) / 12
