"""How sure a predicted step time is: factors of a 90 % range, from runs of models and systems that the fit had not seen.

The answer to one training step: seconds with their range and bounds, what they are spent on, efficiencies, memory.
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
from steptime.training.training_layout import TrainingLayout, show_training_layout
from steptime.training.training_memory import TrainingMemory
from steptime.training.training_stack import TrainingEngine
from steptime.units import show

NEW_SYSTEM: Final = "new system"
DENSE, SPARSE = "dense", "experts"
DEFAULT_RANGE: Final = (
    0.6,
    1.8,
)  # of a stack that nothing was fitted to: about what the runs of whole sources left out are off


def step_time_range(engine: TrainingEngine, system: System, *, experts: bool) -> tuple[float, float]:
    """Return the factors on a step time between which nine in ten measured ones lie; 1 and 1 for the ideal.

    A kind of its own each: dense models and those with experts on chips that the fit had runs of, and other chips.
    """
    if engine.name == "ideal":
        return 1.0, 1.0
    intervals = engine.fit.get("interval", {})
    kind = (SPARSE if experts else DENSE) if engine.has_run_on(system.chip.name) else NEW_SYSTEM
    low, high = intervals.get(kind, DEFAULT_RANGE)
    return float(low), float(high)


EXPOSED_TERMS = ("tensor parallel", "context parallel", "expert exchange", "data parallel", "pipeline hops")
"""Terms that are communication which nothing hides."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingStep(Tabular):
    """One training step; numbers share one broadcast shape.

    Efficiencies are model FLOPs over time x chips x the dense peak of the format: causal counts the pairs that a causal mask
    leaves, full counts all (as most printed figures do), and HFU counts what is computed again beside the full count.
    """

    SCHEMA: ClassVar[str] = "steptime.training_step/1"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bound": unit("", "term that takes the most", kind="text or list"),
        "fits": unit("", "whether it fits the chips", kind="true or false, or list"),
        "bubble": unit("", "share of the step that the pipeline leaves idle"),
        "exposed": unit("s", "communication that nothing hides"),
    }

    model: str = field(metadata=unit("", "model"))
    system: str = field(metadata=unit("", "system"))
    stack: str = field(metadata=unit("", "training stack"))
    layout: TrainingLayout = field(metadata=unit("", "layout", kind="layout"))
    total: Array = field(metadata=unit("s", "a step"))
    low: Array = field(metadata=unit("s", "lower end of the 90 % range"))
    high: Array = field(metadata=unit("s", "upper end of the 90 % range"))
    lower: Array = field(metadata=unit("s", "lower bound: peak rates, everything overlapped"))
    upper: Array = field(metadata=unit("s", "upper bound: nothing overlapped"))
    terms: Mapping[str, Array] = field(metadata=unit("s", "time by what is done"))
    tokens_per_second_per_chip: Array = field(metadata=unit("tok/s", "tokens of a chip", key="tokens_per_s_per_chip"))
    mfu_causal: Array = field(metadata=unit("", "model FLOPs with causal attention over peak"))
    mfu_full: Array = field(metadata=unit("", "model FLOPs with full attention over peak"))
    hfu: Array = field(metadata=unit("", "full count with what is computed again over peak"))
    microbatches: Array = field(metadata=unit("", "micro-batches of a copy in a step"))
    memory: TrainingMemory = field(metadata=unit("", "bytes of the fullest chip by part", kind="training memory"))

    @property
    def bound(self) -> Any:
        """The term that takes the largest part of the step."""
        names = list(self.terms)
        values = np.broadcast_arrays(*self.terms.values())
        return np.array(names)[np.argmax(np.stack(values), axis=0)]

    @property
    def fits(self) -> Array:
        """Whether it fits."""
        return self.memory.fits

    @property
    def bubble(self) -> Number:
        """Share of the step that the pipeline leaves idle."""
        return self.terms.get("pipeline idle", np.zeros_like(self.total)) / self.total

    @property
    def exposed(self) -> Number:
        """Seconds of communication that nothing hides."""
        return sum((self.terms[name] for name in EXPOSED_TERMS if name in self.terms), 0.0 * self.total)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the time with its range, the efficiency and the layout."""
        seconds = in_words(self.total, lambda value: show(value, "s"))
        return f"Training step: {seconds}", {
            "layout": show_training_layout(self.layout),
            "tokens": in_words(self.tokens_per_second_per_chip, lambda value: f"{value:,.0f} tok/s a chip"),
            "MFU": in_words(self.mfu_causal, "{:.1%}".format),
            "memory": self.memory.headline()[0],
        }

    def drawing(self) -> str:
        """Return the terms of a single step as a bar; "" for several."""
        if np.ndim(self.total):
            return ""
        return stacked({name: float(value) for name, value in self.terms.items()}, "s")

    def columns(self) -> dict[str, Any]:
        """Return a row for each point."""
        step_columns = {"total_s": self.total, "low_s": self.low, "high_s": self.high, "tokens_per_s_per_chip":
                 self.tokens_per_second_per_chip, "mfu_causal": self.mfu_causal, "mfu_full": self.mfu_full, "hfu": self.hfu,
                 "used_bytes": self.memory.used, "fits": self.fits}  # fmt: skip
        return broadcast(
            step_columns | {f"{name.replace(' ', '_').replace('-', '_')}_s": value for name, value in self.terms.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRunCost:
    """A whole run: time with failures, chip-hours, money and energy; nan where rent or power are not known."""

    tokens: float = field(metadata=unit("tokens", "tokens trained on"))
    steps: float = field(metadata=unit("", "steps"))
    seconds: float = field(metadata=unit("s", "time with checkpoints, failures and restarts"))
    low: float = field(metadata=unit("s", "lower end of its 90 % range"))
    high: float = field(metadata=unit("s", "upper end of its 90 % range"))
    goodput: float = field(metadata=unit("", "share of the time that is useful steps"))
    failures: float = field(metadata=unit("", "failures expected"))
    between_failures: float = field(metadata=unit("s", "mean time between failures"))
    checkpoint_every: float = field(metadata=unit("s", "useful time between checkpoints that wastes least"))
    checkpoint: float = field(metadata=unit("B", "bytes of a checkpoint: weights, master copy and moments"))
    chip_hours: float = field(metadata=unit("", "chip-hours, spares counted"))
    spares: int = field(metadata=unit("", "spare chips that are rented beside"))
    usd: float = field(metadata=unit("USD", "rent"))
    usd_low: float = field(metadata=unit("USD", "lower end of its range"))
    usd_high: float = field(metadata=unit("USD", "upper end of its range"))
    joules: float = field(metadata=unit("J", "energy"))
    power_basis: str = field(metadata=unit("", "what the power counts in"))
    flops: float = field(metadata=unit("FLOP", "model FLOPs with causal attention"))
