"""Speed-up of a training step by changes of machine, number format and optimizer."""

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
    ("twice the FLOP/s", "peak"),
)
# Smallest speed-up that is listed.
MIN_SPEEDUP: Final = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change and the speed-up of a step with it."""

    description: str = field(metadata=unit("", "change of machine, format or optimizer"))
    faster: float = field(metadata=unit("", "speed-up of a step"))
    layout: str = field(metadata=unit("", "fastest layout with the change, if it is another"))


def training_alternatives(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, best: tuple[TrainingLayout, float],
    fixed_axes: Mapping[str, Any], chips: int,
) -> tuple[Change, ...]:  # fmt: skip
    """Return the speed-ups by changes of machine, format and optimizer.

    Args:
        model: Model to train.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.
        engine: Training stack.
        best: Fastest layout and its seconds per step.
        fixed_axes: Axes of the layout that are given, by the field names of `TrainingLayout`.
        chips: Chips in total.

    Returns:
        Changes, largest speed-up first.
    """
    experts = model.routed
    changes = []
    for description, resource in MACHINE_CHANGES:
        # A faster machine keeps the layout, so that one evaluation is enough.
        changed_system = _doubled(system, resource)
        tuned, slower = on_chip(engine, system, experts=experts)
        seconds = step_seconds(model, job, changed_system, tuned, best[0], slower=slower).total
        changes.append(Change(description=description, faster=best[1] / float(seconds), layout=""))

    # Formats, memory and optimizer change which layouts fit, so that the search runs again.
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
    """Return the system with twice of one resource."""
    chip = system.chip
    if resource in ("scale-out", "scale-up"):
        level = 0 if resource == "scale-up" else len(system.domains) - 1
        domains = list(system.domains)
        link = domains[level].link
        domains[level] = replace(domains[level], link=replace(link, bandwidth=link.bandwidth * 2))
        return replace(system, domains=tuple(domains))
    if resource == "peak":
        rates = {kind: rate * 2 for kind, rate in chip.peak.items()}
        # Twice the power too; otherwise the power limit would cancel a part of the change.
        return replace(system, chip=replace(chip, peak=rates, power_w=chip.power_w * 2))
    hbm = chip.hbm
    changed = replace(hbm, **{resource: getattr(hbm, resource) * 2})
    return replace(system, chip=replace(chip, memory=(*chip.memory[:-1], changed)))
