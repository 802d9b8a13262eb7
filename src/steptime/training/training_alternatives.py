"""What changes of the machine, the number format and the optimizer would bring a training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.result_base import unit
from steptime.training.training_job import TrainingJob
from steptime.training.training_layout import TrainingLayout, show_training_layout
from steptime.training.training_search import search
from steptime.training.training_stack import TrainingEngine, on_chip
from steptime.training.training_step import step_seconds

LEVERS: Final = (
    ("twice the bandwidth between nodes", "scale-out"),
    ("twice the bandwidth inside a node or rack", "scale-up"),
    ("twice the memory bandwidth", "bandwidth"),
    ("twice the arithmetic", "peak"),
)
ENOUGH: Final = 1.02  # a change that brings less is not worth a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change and how much faster a step would be with it."""

    what: str = field(metadata=unit("", "the change"))
    faster: float = field(metadata=unit("", "factor on the speed of a step"))
    layout: str = field(metadata=unit("", "layout with it, where it is another"))


def changes_of(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, best: tuple[TrainingLayout, float],
    given: Mapping[str, Any], chips: int,
) -> tuple[Change, ...]:  # fmt: skip
    """Return what changes of the machine, the format and the optimizer would bring, most first."""
    experts = model.routed
    found = []
    for words, what in LEVERS:
        other = _varied(system, what)
        tuned, slower = on_chip(engine, system, experts=experts)
        seconds = step_seconds(model, job, other, tuned, best[0], slower=slower).total
        found.append(Change(what=words, faster=best[1] / float(seconds), layout=""))
    tried = [(f"--dtype {dtype}", replace(job, dtype=dtype), system) for dtype in _narrower(job, system)]
    tried.append(("twice the memory", job, _varied(system, "capacity")))
    if job.optimizer == "adamw" and job.task != "lora":
        tried.append(("--optimizer adamw-bf16", replace(job, optimizer="adamw-bf16"), system))
    for words, other_job, machine in tried:
        tuned, slower = on_chip(engine, machine, experts=experts)
        other_best = search(model, machine, other_job, tuned, chips=chips, slower=float(slower), fixed=given).fastest()
        if other_best is not None:
            changed = show_training_layout(other_best[0]) if other_best[0] != best[0] else ""
            found.append(Change(what=words, faster=best[1] / other_best[1], layout=changed))
    return tuple(sorted((c for c in found if c.faster >= ENOUGH), key=lambda c: -c.faster))


def _narrower(job: TrainingJob, system: System) -> list[str]:
    peak = system.chip.peak
    if job.dtype in ("bf16", "fp16"):
        return ["fp8"] if "fp8" in peak else ["int8"] if "int8" in peak and system.chip.vendor == "Google" else []
    return ["nvfp4"] if job.dtype in ("fp8", "mxfp8") and "fp4" in peak else []


def _varied(system: System, what: str) -> System:
    """Return the system with twice of something."""
    chip = system.chip
    if what in ("scale-out", "scale-up"):
        place = 0 if what == "scale-up" else len(system.domains) - 1
        domains = list(system.domains)
        link = domains[place].link
        domains[place] = replace(domains[place], link=replace(link, bandwidth=link.bandwidth * 2))
        return replace(system, domains=tuple(domains))
    if what == "peak":
        rates = {kind: rate * 2 for kind, rate in chip.peak.items()}
        return replace(system, chip=replace(chip, peak=rates, power_w=chip.power_w * 2))  # at the power that it needs
    hbm = chip.hbm
    changed = replace(hbm, **{what: getattr(hbm, what) * 2})
    return replace(system, chip=replace(chip, memory=(*chip.memory[:-1], changed)))
