"""Result of a training step or run: time with range, efficiency, memory, cost.

The factors of the 90 % range come from measured runs of models and systems that were left out of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.hardware.system import System
from steptime.number_checks import Array, Number
from steptime.result_base import Tabular, broadcast, in_words, unit
from steptime.svg import stacked
from steptime.training.training_job import TrainingLayout, show_training_layout
from steptime.training.training_memory import TrainingMemory
from steptime.training.training_stack import TrainingEngine
from steptime.units import show

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


EXPOSED_TERMS = ("tensor parallel", "context parallel", "expert exchange", "data parallel", "pipeline hops")
"""Terms of exposed communication."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingStep(Tabular):
    """One training step; numbers share one broadcast shape.

    An efficiency is model FLOPs over time x chips x the dense peak of the format. The causal count has the query-key pairs
    of a causal mask. The full count has all pairs, as in most published figures. HFU adds the recomputed FLOPs to the full
    count.
    """

    SCHEMA: ClassVar[str] = "steptime.training_step/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bound": unit("", "largest term of the step", kind="text or list"),
        "fits": unit("", "whether the step fits the chips", kind="true or false, or list"),
        "bubble": unit("", "idle share of the pipeline"),
        "exposed": unit("s", "exposed communication"),
    }

    model: str = field(metadata=unit("", "model"))
    system: str = field(metadata=unit("", "system"))
    stack: str = field(metadata=unit("", "training stack"))
    layout: TrainingLayout = field(metadata=unit("", "layout", kind="layout"))
    total: Array = field(metadata=unit("s", "time of a step"))
    low: Array = field(metadata=unit("s", "lower end of the 90 % range"))
    high: Array = field(metadata=unit("s", "upper end of the 90 % range"))
    lower: Array = field(metadata=unit("s", "lower bound: peak rates, full overlap"))
    upper: Array = field(metadata=unit("s", "upper bound: no overlap"))
    terms: Mapping[str, Array] = field(metadata=unit("s", "time by term"))
    tokens_per_second_per_chip: Array = field(metadata=unit("tok/s", "tokens per second and chip", key="tokens_per_s_per_chip"))
    mfu_causal: Array = field(metadata=unit("", "model FLOPs with causal attention over peak"))
    mfu_full: Array = field(metadata=unit("", "model FLOPs with full attention over peak"))
    hfu: Array = field(metadata=unit("", "model FLOPs with full attention and recomputed FLOPs over peak"))
    microbatches: Array = field(metadata=unit("", "micro-batches per replica and step"))
    memory: TrainingMemory = field(metadata=unit("", "bytes on the fullest chip by part", kind="training memory"))

    @property
    def bound(self) -> Any:
        """Largest term of the step."""
        names = list(self.terms)
        values = np.broadcast_arrays(*self.terms.values())
        return np.array(names)[np.argmax(np.stack(values), axis=0)]

    @property
    def fits(self) -> Array:
        """Whether the step fits the chips."""
        return self.memory.fits

    @property
    def bubble(self) -> Number:
        """Idle share of the pipeline."""
        return self.terms.get("pipeline idle", np.zeros_like(self.total)) / self.total

    @property
    def exposed(self) -> Number:
        """Seconds of exposed communication."""
        return sum((self.terms[name] for name in EXPOSED_TERMS if name in self.terms), 0.0 * self.total)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the time as a title, and layout, tokens, MFU and memory.

        Returns:
            Title, and lines by name.
        """
        seconds = in_words(self.total, lambda value: show(value, "s"))
        return f"Training step: {seconds}", {
            "layout": show_training_layout(self.layout),
            "tokens": in_words(self.tokens_per_second_per_chip, lambda value: f"{value:,.0f} tok/s per chip"),
            "MFU": in_words(self.mfu_causal, "{:.1%}".format),
            "memory": self.memory.headline()[0],
        }

    def drawing(self) -> str:
        """Return the terms of a single step as a bar.

        Returns:
            Text; "" for several points.
        """
        if np.ndim(self.total):
            return ""
        return stacked({name: float(value) for name, value in self.terms.items()}, "s")

    def columns(self) -> dict[str, Any]:
        """Return one row per point.

        Returns:
            Values by column name.
        """
        step_columns = {"total_s": self.total, "low_s": self.low, "high_s": self.high, "tokens_per_s_per_chip":
                 self.tokens_per_second_per_chip, "mfu_causal": self.mfu_causal, "mfu_full": self.mfu_full, "hfu": self.hfu,
                 "used_bytes": self.memory.used, "fits": self.fits}  # fmt: skip
        return broadcast(
            step_columns | {f"{name.replace(' ', '_').replace('-', '_')}_s": value for name, value in self.terms.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRunCost:
    """Cost of a whole run: time with failures, chip-hours, money and energy.

    Money is nan where the rent is unknown, energy where the power is unknown.
    """

    tokens: float = field(metadata=unit("tokens", "training tokens"))
    steps: float = field(metadata=unit("", "steps"))
    seconds: float = field(metadata=unit("s", "time with checkpoints, failures and restarts"))
    low: float = field(metadata=unit("s", "lower end of the 90 % range of the time"))
    high: float = field(metadata=unit("s", "upper end of the 90 % range of the time"))
    goodput: float = field(metadata=unit("", "share of the time that is useful steps"))
    failures: float = field(metadata=unit("", "expected failures"))
    between_failures: float = field(metadata=unit("s", "mean time between failures"))
    checkpoint_every: float = field(metadata=unit("s", "optimal useful time between checkpoints"))
    checkpoint: float = field(metadata=unit("B", "bytes of a checkpoint: weights, master copy and moments"))
    chip_hours: float = field(metadata=unit("", "chip-hours with spares"))
    spares: int = field(metadata=unit("", "rented spare chips"))
    usd: float = field(metadata=unit("USD", "rent of the run"))
    usd_low: float = field(metadata=unit("USD", "lower end of the range of the rent"))
    usd_high: float = field(metadata=unit("USD", "upper end of the range of the rent"))
    joules: float = field(metadata=unit("J", "energy"))
    power_basis: str = field(metadata=unit("", "what the power includes"))
    flops: float = field(metadata=unit("FLOP", "model FLOPs with causal attention"))
