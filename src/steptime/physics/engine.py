"""A serving engine: what it loses against the physics, as a few constants.

`ideal` loses nothing. An engine file in `engines/` holds the constants of a real one, with where they came from, so that a
fitted engine is data. Every constant is physical and shared by all models and chips.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from steptime.catalog.files import find, read_file
from steptime.errors import DataFileError, RangeError, did_you_mean
from steptime.machines.system import System
from steptime.numbers import Number
from steptime.results import Result, in_words


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Engine(Result):
    """Constants of an engine. Efficiencies are shares of peak, overheads are seconds; the ideal engine has neither.

    memory_efficiency, compute_efficiency: share of the peak rates that matrices reach; narrow_efficiency: of the former, with
    weights of less than 5 bits; expert_memory_efficiency, expert_efficiency: of grouped matrices; attention_memory_efficiency,
    attention_efficiency: of attention; network_efficiency: of links. chip_departure: how much of a chip's own departure from
    the usual share of its data sheet shows (an exponent).
    seconds_per_layer (norms, activations), seconds_per_kernel (dense matrices; those that share an input are one),
    seconds_per_quantised_kernel (to quantise its input), seconds_per_expert_layer (routing, sorting, grouped matrices),
    seconds_per_attention_layer, seconds_per_latent_layer (its extra products), seconds_per_state_layer (recurrent mixers),
    seconds_per_selected_layer (index and selection of sparse attention), seconds_per_collective (each time all wait for
    all), seconds_per_sequence and seconds_per_step (host), seconds_per_request (before its prefill). first_token_factor: of
    the closed form of a plan, the time to first token over what an orderly prompt queue gives.
    Of the simulator: seconds_before_queue and seconds_before_queue_per_token (HTTP, tokenising), steps_before_answer (decode
    steps from the end of a prompt until its first token is seen: a scheduler that runs ahead, tokens sent in groups),
    steps_to_balance (more of them where attention groups wait for prompts of their own), step_tokens (tokens of an attention
    group in a step; 0: a prompt and the decode batch).
    roofline_norm: how well arithmetic and traffic of one operator overlap. activation_traffic: share of activations that go
    through memory. expert_imbalance: rows on the busiest chip over the mean; expert_evenness: shape of the distribution of
    experts' popularity, infinite where all are alike; expert_tile_rows: rows to which those of an expert are padded.
    prefill_first: prompts are read before decoding goes on, so that requests which start together stay together. small_kv: KV
    cache in 8 bits where the model is computed in 8 or fewer. two_batch: where it overlaps two micro-batches of one stage: 2 in
    any layout, 1 where attention groups exchange experts, 0 nowhere. reserved_bytes: memory per chip that the engine keeps for
    itself; memory_share: share of the rest that it uses.
    """

    name: str = "ideal"
    title: str = ""
    memory_efficiency: Number = 1.0
    narrow_efficiency: Number = 1.0
    compute_efficiency: Number = 1.0
    expert_efficiency: Number = 1.0
    expert_memory_efficiency: Number = 1.0
    attention_efficiency: Number = 1.0
    attention_memory_efficiency: Number = 1.0
    network_efficiency: Number = 1.0
    chip_departure: Number = 0.0
    seconds_per_layer: Number = 0.0
    seconds_per_kernel: Number = 0.0
    seconds_per_quantised_kernel: Number = 0.0
    seconds_per_expert_layer: Number = 0.0
    seconds_per_attention_layer: Number = 0.0
    seconds_per_latent_layer: Number = 0.0
    seconds_per_state_layer: Number = 0.0
    seconds_per_selected_layer: Number = 0.0
    seconds_per_collective: Number = 0.0
    seconds_per_step: Number = 0.0
    seconds_per_request: Number = 0.0
    first_token_factor: Number = 1.0
    seconds_before_queue: Number = 0.0
    seconds_before_queue_per_token: Number = 0.0
    steps_before_answer: Number = 0.0
    steps_to_balance: Number = 0.0
    step_tokens: Number = 2048.0
    seconds_per_sequence: Number = 0.0
    roofline_norm: Number = math.inf
    activation_traffic: Number = 0.0
    expert_imbalance: Number = 1.0
    expert_evenness: Number = math.inf
    expert_tile_rows: Number = 0.0
    prefill_first: Number = 0.0
    small_kv: Number = 0.0
    two_batch: Number = 2.0
    reserved_bytes: Number = 0.0
    memory_share: Number = 1.0
    fit: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return what it is, and the shares of peak rates that it reaches."""
        title = f"Engine {self.name}" + (f": {self.title[:120]}" if self.title else "")
        shares = {"memory": self.memory_efficiency, "matrices": self.compute_efficiency, "network": self.network_efficiency}
        reached = ", ".join(f"{name} {in_words(share, '{:.0%}'.format)}" for name, share in shares.items())
        figures = {"reaches of peak": reached}
        if self.fit.get("runs"):
            figures["fitted to"] = f"{self.fit['runs']:,} measured runs"
        return title, figures


IDEAL = Engine(name="ideal", title="the bound that physics sets: every efficiency 1, every overhead 0")
DEFAULT, DEFAULT_VENDOR = "vllm", "NVIDIA"  # the engine people run most, and the chips that it was measured on
TYPICAL = "typical"  # the engine that stands for one that is not known
CONSTANTS = tuple(f.name for f in fields(Engine) if f.name not in ("name", "title", "source", "fit"))
# what first tokens wait for besides the queue, in the simulator
WAIT_NAMES = ("seconds_before_queue", "seconds_before_queue_per_token", "steps_before_answer", "steps_to_balance")


def default_engine(system: System) -> str:
    """Return the name of the engine that a plan takes for a system unless told: a real one.

    `vllm` on the chips that it was measured on. Elsewhere no engine was (TPUs, Trainium, AMD and others run engines, or ports
    of them, whose constants nobody has fitted), so that it is `typical`, which stands for one that is not known.
    """
    return DEFAULT if system.chip.vendor == DEFAULT_VENDOR else TYPICAL


def engine_for(system: System, engine: Engine | str | None = None, catalog: str | os.PathLike[str] | None = None) -> Engine:
    """Return the engine asked for, or the default of the system where none is: what every function and command takes."""
    return load_engine(default_engine(system) if engine is None else engine, catalog)


def load_engine(name: str | Engine, catalog: str | os.PathLike[str] | None = None) -> Engine:
    """Return the engine of a name ("ideal", or a file of engines/), a path to a TOML file, or an Engine as it is."""
    if isinstance(name, Engine):
        return name
    if name.casefold() == "ideal":
        return IDEAL
    path = find("engines", name, catalog)
    return _load(path, path.stat().st_mtime)


@lru_cache(maxsize=64)
def _load(path: Path, _modified: float) -> Engine:
    data = read_file(path)
    constants = data.get("constants", {})
    for key, value in constants.items():
        if key not in CONSTANTS:
            near = did_you_mean(key, CONSTANTS, most=1)
            raise DataFileError(path, f"constants.{key}: no such constant" + (f"; did you mean {near[0]}?" if near else ""))
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            raise DataFileError(path, f"constants.{key}: must be a number of at least 0, not {value!r}")
        if key.endswith("efficiency") and value == 0:
            raise DataFileError(path, f"constants.{key}: must be greater than 0")
    return Engine(
        name=str(data.get("name", path.stem)),
        title=str(data.get("title", "")),
        source=data.get("source", {}),
        fit=_read_fit(path, data),
        **constants,
    )


def _read_fit(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Return the fit of an engine file: fitted names, covariance of their logarithms, residual scatter by regime."""
    fit = data.get("fit", {})
    if not fit:
        return {}
    names, covariance = fit.get("names"), fit.get("covariance")
    if not isinstance(names, list) or any(name not in CONSTANTS for name in names):
        raise DataFileError(path, "fit.names: must be a list of names of constants")
    try:
        matrix = np.array(covariance, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataFileError(path, "fit.covariance: must be rows of numbers") from None
    if matrix.shape != (len(names), len(names)):
        raise DataFileError(
            path, f"fit.covariance: must be {len(names)} x {len(names)} numbers, not {' x '.join(map(str, matrix.shape))}"
        )
    if (
        not np.all(np.isfinite(matrix))
        or not np.allclose(matrix, matrix.T, atol=1e-12)
        or np.linalg.eigvalsh(matrix).min() < -1e-9
    ):
        raise DataFileError(path, "fit.covariance: is no covariance: it must be symmetric, finite and of no negative variance")
    _check_fit_tables(path, fit)
    return dict(fit)


def _check_fit_tables(path: Path, fit: dict[str, Any]) -> None:
    """Raise DataFileError where the tables by quantity and regime that a range is made of cannot be right."""
    for key in ("interval", "parameter_variance"):
        tables = fit.get(key, {})
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise DataFileError(path, f"fit.{key}: must have tables such as [fit.{key}.tpot]")
        for quantity, table in tables.items():
            for regime, value in table.items():
                numbers = value if key == "interval" else [value]
                good = isinstance(numbers, list) and all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)
                if key == "interval" and not (good and len(numbers) == 2 and 0 < numbers[0] <= numbers[1]):
                    raise DataFileError(
                        path, f"fit.{key}.{quantity}.{regime}: must be two factors, the lower first, not {value!r}"
                    )
                if not good or min(numbers) < 0:
                    raise DataFileError(path, f"fit.{key}.{quantity}.{regime}: must be a variance of at least 0, not {value!r}")
    vendors = fit.get("vendors", [])
    if not isinstance(vendors, list) or not all(isinstance(vendor, str) for vendor in vendors):
        raise DataFileError(path, "fit.vendors: must be a list of makers of chips")


def with_constants(engine: Engine, names: Iterable[str], values: Number) -> Engine:
    """Return the engine with `values` for the constants of `names`, in their order.

    >>> with_constants(IDEAL, ["memory_efficiency"], [0.8]).memory_efficiency
    0.8
    """
    changes: dict[str, Any] = {name: float(value) for name, value in zip(names, values, strict=True)}
    return replace(engine, **changes)


def with_imbalance(engine: Engine, imbalance: float) -> Engine:
    """Return the engine with another expert imbalance, the rows on the busiest chip over the mean (at least 1)."""
    if not imbalance >= 1:
        raise RangeError(f"imbalance must be at least 1, not {imbalance:g}")
    return replace(engine, expert_imbalance=imbalance)
