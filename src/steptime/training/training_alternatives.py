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

MACHINE_CHANGES: Final = (
    ("twice the bandwidth between nodes", "scale-out"),
    ("twice the bandwidth inside a node or rack", "scale-up"),
    ("twice the memory bandwidth", "bandwidth"),
    ("twice the arithmetic", "peak"),
)
MIN_SPEEDUP: Final = 1.02  # a change that brings less is not worth a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change and how much faster a step would be with it."""

    description: str = field(metadata=unit("", "the change"))
    faster: float = field(metadata=unit("", "factor on the speed of a step"))
    layout: str = field(metadata=unit("", "layout with it, where it is another"))


def training_alternatives(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, best: tuple[TrainingLayout, float],
    fixed_axes: Mapping[str, Any], chips: int,
) -> tuple[Change, ...]:  # fmt: skip
    """Return what changes of the machine, the format and the optimizer would bring, most first."""
    experts = model.routed
    changes = []
    for description, resource in MACHINE_CHANGES:
        changed_system = _doubled(system, resource)
        tuned, slower = on_chip(engine, system, experts=experts)
        seconds = step_seconds(model, job, changed_system, tuned, best[0], slower=slower).total
        changes.append(Change(description=description, faster=best[1] / float(seconds), layout=""))
    candidates = [(f"--dtype {dtype}", replace(job, dtype=dtype), system) for dtype in _narrower_formats(job, system)]
    candidates.append(("twice the memory", job, _doubled(system, "capacity")))
    if job.optimizer == "adamw" and job.task != "lora":
        candidates.append(("--optimizer adamw-bf16", replace(job, optimizer="adamw-bf16"), system))
    for description, changed_job, machine in candidates:
        tuned, slower = on_chip(engine, machine, experts=experts)
        changed_best = search(model, machine, changed_job, tuned, chips=chips, slower=float(slower), fixed=fixed_axes).fastest()
        if changed_best is not None:
            changed = show_training_layout(changed_best[0]) if changed_best[0] != best[0] else ""
            changes.append(Change(description=description, faster=best[1] / changed_best[1], layout=changed))
    return tuple(sorted((c for c in changes if c.faster >= MIN_SPEEDUP), key=lambda c: -c.faster))


def _narrower_formats(job: TrainingJob, system: System) -> list[str]:
    peak = system.chip.peak
    if job.dtype in ("bf16", "fp16"):
        return ["fp8"] if "fp8" in peak else ["int8"] if "int8" in peak and system.chip.vendor == "Google" else []
    return ["nvfp4"] if job.dtype in ("fp8", "mxfp8") and "fp4" in peak else []


def _doubled(system: System, resource: str) -> System:
    """Return the system with twice of something."""
    chip = system.chip
    if resource in ("scale-out", "scale-up"):
        level = 0 if resource == "scale-up" else len(system.domains) - 1
        domains = list(system.domains)
        link = domains[level].link
        domains[level] = replace(domains[level], link=replace(link, bandwidth=link.bandwidth * 2))
        return replace(system, domains=tuple(domains))
    if resource == "peak":
        rates = {kind: rate * 2 for kind, rate in chip.peak.items()}
        return replace(system, chip=replace(chip, peak=rates, power_w=chip.power_w * 2))  # at the power that it needs
    hbm = chip.hbm
    changed = replace(hbm, **{resource: getattr(hbm, resource) * 2})
    return replace(system, chip=replace(chip, memory=(*chip.memory[:-1], changed)))
