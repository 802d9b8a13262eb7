"""Why nothing can be trained so: by how much states and activations are too large, and what would fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from steptime.errors import Impossible, InputError, LayoutError
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.training.training_job import TrainingJob
from steptime.training.training_layout import show_training_layout
from steptime.training.training_search import MARGIN, Searched, proposed, search
from steptime.training.training_stack import TrainingEngine
from steptime.units import counted

MORE_CHIPS: Final = tuple(2**n for n in range(1, 11))


class NothingFits(Impossible):
    """No layout of the chips holds the model's training states: by how much, and what would."""


def nothing(
    model: Model,
    system: System,
    job: TrainingJob,
    engine: TrainingEngine,
    chips: int,
    given: Mapping[str, Any],
    found: Searched,
) -> InputError:
    """Return why nothing can be trained so: by how much states and activations are too large, and what would fit."""
    if not found.count:
        asked = f" with {', '.join(f'{k}={v}' for k, v in given.items())}" if given else ""
        rows = proposed(model, system, job, chips, dict(given))
        if len(rows):  # ways there are, and no schedule for their micro-batches
            pp, dp, each = (int(rows[:, at].min()) for at in (1, 5, 6))
            return LayoutError(
                f"no schedule of the stack runs {counted(int(job.batch) // (dp * each), 'micro-batch', 'micro-batches')} in "
                f"{counted(pp, 'stage')}{asked}; try a "
                f"batch that is a multiple of {pp * dp * each:,}, or another --schedule"
            )
        return LayoutError(
            f"no layout of {counted(chips, 'chip')} divides {counted(int(job.batch), 'sequence')} among its copies{asked}; try a "
            f"batch that is a multiple of {chips:,}, or other chips"
        )
    layout, used = found.smallest()
    capacity = MARGIN * float(system.chip.capacity)
    words = (
        f"{model.name} with {job.optimizer} does not fit {counted(chips, 'chip')} of {system.name}: the smallest layout "
        f"({show_training_layout(layout)}) needs {used / 1e9:,.1f} GB of the {capacity / 1e9:,.1f} GB of a chip that may be "
        f"filled, {(used - capacity) / 1e9:,.1f} GB too much"
    )
    return NothingFits(words + _would_fit(model, system, job, engine, chips, given))


def _would_fit(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, chips: int, given: Mapping[str, Any]
) -> str:
    """Return the smallest change with which something fits."""

    def fits(**other: Any) -> bool:
        tried = search(model, system, other.get("job", job), other.get("engine", engine), chips=other.get("chips", chips),
                       fixed=other.get("given", given))  # fmt: skip
        return bool(tried.count and tried.fastest())

    tied = ("pp", "virtual_stages", "layers") if "layers" in given else ()  # layers by chunk say stages too
    for name in ("recompute", "sharding", "layers", "pp", "tp", "virtual_stages", "micro_batch"):
        dropped = tied if name in tied else (name,)
        if name in given and fits(given={k: v for k, v in given.items() if k not in dropped}):
            other = "other layers by chunk" if name == "layers" else f"another {name}"
            return f"; it fits with {other} than {given[name]}"
    if engine.shardings and fits(engine=replace(engine, shardings=())):
        return "; it fits with weights divided too (--sharding zero3, FSDP), which --engine typical has"
    for optimizer in ("adamw-bf16", "adamw-fp8"):
        if job.task != "lora" and job.optimizer == "adamw" and fits(job=replace(job, optimizer=optimizer)):
            return f"; it fits with --optimizer {optimizer}"
    if not system.is_box:
        loose = {k: v for k, v in given.items() if k != "dp"}
        for times in MORE_CHIPS:
            more = replace(job, batch=int(job.batch) * times)
            if fits(chips=chips * times, job=more, given=loose):
                return f"; it fits {chips * times:,} chips"
    if job.task != "lora" and fits(job=replace(job, task="lora")):
        return "; a LoRA fine-tune of it fits (--task lora)"
    return "; take chips of more memory, or a smaller model"
