"""Why no layout can train a model: the missing memory and the smallest fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from steptime.errors import Impossible, InputError, LayoutError
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.training.training_job import TrainingJob
from steptime.training.training_layout import show_training_layout
from steptime.training.training_search import MEMORY_MARGIN, SearchResult, legal_degrees, search
from steptime.training.training_stack import TrainingEngine
from steptime.units import counted

# Multiples of the chips that are tried, up to 1,024.
CHIP_MULTIPLES: Final = tuple(2**n for n in range(1, 11))


class NothingFits(Impossible):
    """No layout of the chips has room for the training states."""


def infeasibility_error(
    model: Model,
    system: System,
    job: TrainingJob,
    engine: TrainingEngine,
    chips: int,
    fixed_axes: Mapping[str, Any],
    search_result: SearchResult,
) -> InputError:
    """Return the error for a job that has no feasible layout.

    Args:
        model: Model to train.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.
        engine: Training stack.
        chips: Chips in total.
        fixed_axes: Axes of the layout that are given, by the field names of `TrainingLayout`.
        search_result: All layouts of the search.

    Returns:
        Error with the missing bytes and the smallest change that fits.
    """
    if not search_result.count:
        fixed_text = f" with {', '.join(f'{k}={v}' for k, v in fixed_axes.items())}" if fixed_axes else ""
        degree_rows = legal_degrees(model, system, job, chips, dict(fixed_axes))
        # The degrees divide the chips, but no schedule accepts the number of micro-batches.
        if len(degree_rows):
            pp, dp, micro_batch = (int(degree_rows[:, column].min()) for column in (1, 5, 6))
            return LayoutError(
                "no schedule of the stack runs "
                f"{counted(int(job.batch) // (dp * micro_batch), 'micro-batch', 'micro-batches')} in "
                f"{counted(pp, 'stage')}{fixed_text}; "
                f"try a batch that is a multiple of {pp * dp * micro_batch:,}, or another --schedule"
            )
        return LayoutError(
            f"no layout of {counted(chips, 'chip')} divides {counted(int(job.batch), 'sequence')} among its replicas"
            f"{fixed_text}; try a batch that is a multiple of {chips:,}, or other chips"
        )
    layout, used_bytes = search_result.smallest()
    capacity = MEMORY_MARGIN * float(system.chip.capacity)
    message = (
        f"{model.name} with {job.optimizer} does not fit {counted(chips, 'chip')} of {system.name}: the smallest layout "
        f"({show_training_layout(layout)}) needs {used_bytes / 1e9:,.1f} GB per chip, and {capacity / 1e9:,.1f} GB are usable: "
        f"{(used_bytes - capacity) / 1e9:,.1f} GB too much"
    )
    return NothingFits(message + _nearest_change(model, system, job, engine, chips, fixed_axes))


def _nearest_change(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, chips: int, fixed_axes: Mapping[str, Any]
) -> str:
    """Return the smallest change with which a layout fits, as text."""

    def fits(**changes: Any) -> bool:
        search_result = search(model, system, changes.get("job", job), changes.get("engine", engine),
                               chips=changes.get("chips", chips), fixed=changes.get("fixed", fixed_axes))  # fmt: skip
        return bool(search_result.count and search_result.fastest())

    # Layers by chunk also fix the number of stages, so that these axes are dropped together.
    tied_axes = ("pp", "virtual_stages", "layers") if "layers" in fixed_axes else ()
    for name in ("recompute", "sharding", "layers", "pp", "tp", "virtual_stages", "micro_batch"):
        dropped_axes = tied_axes if name in tied_axes else (name,)
        if name in fixed_axes and fits(fixed={k: v for k, v in fixed_axes.items() if k not in dropped_axes}):
            change_text = "other layers by chunk" if name == "layers" else f"another {name}"
            return f"; it fits with {change_text} than {fixed_axes[name]}"
    if engine.shardings and fits(engine=replace(engine, shardings=())):
        return "; it fits with sharded weights (--sharding zero3, FSDP), which --engine typical has"
    for optimizer in ("adamw-bf16", "adamw-fp8"):
        if job.task != "lora" and job.optimizer == "adamw" and fits(job=replace(job, optimizer=optimizer)):
            return f"; it fits with --optimizer {optimizer}"
    if not system.is_box:
        axes_without_dp = {k: v for k, v in fixed_axes.items() if k != "dp"}
        for factor in CHIP_MULTIPLES:
            larger_job = replace(job, batch=int(job.batch) * factor)
            if fits(chips=chips * factor, job=larger_job, fixed=axes_without_dp):
                return f"; it fits {chips * factor:,} chips"
    if job.task != "lora" and fits(job=replace(job, task="lora")):
        return "; a LoRA fine-tune of it fits (--task lora)"
    return "; take chips with more memory, or a smaller model"
