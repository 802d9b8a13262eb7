"""Strong and weak scaling: the fastest layout for other numbers of chips.

With strong scaling the batch is constant; with weak scaling it grows with the chips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.training.training_job import TrainingJob, show_training_layout
from steptime.training.training_search import search
from steptime.training.training_stack import TrainingEngine, on_chip

# Numbers of chips, relative to the requested number.
CHIP_FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """One number of chips with its fastest layout."""

    kind: str = field(metadata=unit("", "strong (constant batch) or weak (batch grows with the chips)"))
    chips: int = field(metadata=unit("", "chips"))
    batch: int = field(metadata=unit("", "sequences per step"))
    seconds: float = field(metadata=unit("s", "time of a step; nan where nothing fits"))
    tokens_per_second_per_chip: float = field(metadata=unit("tok/s", "tokens per second and chip", key="tokens_per_s_per_chip"))
    layout: str = field(metadata=unit("", "fastest layout that fits, or the reason why no layout fits"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scaling(Tabular):
    """Points of strong and of weak scaling."""

    SCHEMA: ClassVar[str] = "steptime.scaling/2"
    points: tuple[ScalingPoint, ...] = field(metadata=unit("", "points", kind="list of points"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of points as a title.

        Returns:
            Title, and no lines.
        """
        return f"Scaling: {len(self.points)} points", {}

    def columns(self) -> dict[str, Any]:
        """Return one row per point.

        Returns:
            Values by column name.
        """
        return columns_by_key(ScalingPoint, self.points)


def strong_and_weak_scaling(
    model: Model,
    system: System,
    *,
    chips: int,
    engine: TrainingEngine,
    job: TrainingJob,
    layout: Mapping[str, Any] | None = None,
) -> Scaling:
    """Return strong and weak scaling around a number of chips.

    Args:
        model: Model to train.
        system: Chips and links.
        chips: Chips of the reference point.
        engine: Training stack.
        job: Sequences, formats and optimizer of a step.
        layout: Axes of the layout that are fixed; dp is always free.

    Returns:
        Points at 1/8 to 8 times the chips.
    """
    experts = model.routed
    tuned, slower = on_chip(engine, system, experts=experts)
    # Data parallelism follows from the number of chips and cannot stay fixed.
    fixed = {k: v for k, v in (layout or {}).items() if k != "dp"}
    points = []
    for kind in ("strong", "weak"):
        for times in CHIP_FACTORS:
            chip_count = int(chips * times)
            batch = int(job.batch) if kind == "strong" else int(int(job.batch) * times)
            # Skip fractions of a chip or a sequence, and more chips than a single machine has.
            if (
                chip_count < 1
                or batch < 1
                or chip_count != chips * times
                or (system.is_box and chip_count > system.scale_up.size)
            ):
                continue
            scaled_job = replace(job, batch=batch)
            search_result = search(model, system, scaled_job, tuned, chips=chip_count, slower=float(slower), fixed=fixed)
            best = search_result.fastest() if search_result.count else None
            words = (
                show_training_layout(best[0])
                if best
                else "nothing fits"
                if search_result.count
                else "the batch does not divide"
            )
            rate = batch * float(job.seq) / chip_count / best[1] if best else float("nan")
            points.append(
                ScalingPoint(kind=kind, chips=chip_count, batch=batch, seconds=best[1] if best else float("nan"),
                             tokens_per_second_per_chip=rate, layout=words)
            )  # fmt: skip
    return Scaling(points=tuple(points))
