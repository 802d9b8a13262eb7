"""Strong and weak scaling: the fastest layout at other numbers of chips, with the batch as it is or growing with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.training.training_job import TrainingJob
from steptime.training.training_layout import show_training_layout
from steptime.training.training_search import search
from steptime.training.training_stack import TrainingEngine, on_chip

CHIP_FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """A number of chips."""

    kind: str = field(metadata=unit("", "strong: the batch stays; weak: it grows with the chips"))
    chips: int = field(metadata=unit("", "chips"))
    batch: int = field(metadata=unit("", "sequences of a step"))
    seconds: float = field(metadata=unit("s", "a step; nan where nothing fits"))
    tokens_per_second_per_chip: float = field(metadata=unit("tok/s", "tokens of a chip", key="tokens_per_s_per_chip"))
    layout: str = field(metadata=unit("", "fastest layout that fits, or why there is none"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scaling(Tabular):
    """Points of strong and of weak scaling."""

    SCHEMA: ClassVar[str] = "steptime.scaling/2"
    points: tuple[ScalingPoint, ...] = field(metadata=unit("", "points", kind="list of points"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many points there are."""
        return f"Scaling: {len(self.points)} points", {}

    def columns(self) -> dict[str, Any]:
        """Return a row for each point."""
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
    """Return strong and weak scaling about `chips` chips."""
    experts = model.routed
    tuned, slower = on_chip(engine, system, experts=experts)
    fixed = {k: v for k, v in (layout or {}).items() if k != "dp"}
    points = []
    for kind in ("strong", "weak"):
        for times in CHIP_FACTORS:
            chip_count = int(chips * times)
            batch = int(job.batch) if kind == "strong" else int(int(job.batch) * times)
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
