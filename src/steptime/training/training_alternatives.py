"""Alternatives to a training step: why nothing fits, what would speed it up, and other numbers of chips.

With strong scaling the batch is constant; with weak scaling it grows with the chips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from steptime.errors import Impossible, InputError, LayoutError
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.training.training_correction import own_correction
from steptime.training.training_evidence import MEASURED, search_optimism, searched_axes
from steptime.training.training_job import (
    ACTIVATIONS,
    NO_OFFLOAD,
    OFFLOADS,
    OPTIMIZER,
    TrainingJob,
    TrainingLayout,
    host_memory,
    show_training_layout,
)
from steptime.training.training_memory import training_memory
from steptime.training.training_search import MEMORY_MARGIN, Recommendation, SearchResult, legal_degrees, search
from steptime.training.training_stack import PAPERS, TUNED, TYPICAL, TrainingEngine, load_stack, on_chip
from steptime.training.training_step import step_seconds
from steptime.units import counted, percent

# Multiples of the chips that are tried, up to 1,024.
CHIP_MULTIPLES: Final = tuple(2**n for n in range(1, 11))


class NothingFits(Impossible):
    """No layout of the chips has room for the training states.

    `misfit` is the message without the change that fits, whose options not all commands have.
    """

    def __init__(self, misfit: str, change: str = "") -> None:
        """Join the missing bytes and the change."""
        super().__init__(misfit + change)
        self.misfit = misfit


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
            if "schedule" in fixed_axes and int(degree_rows[:, 1].max()) == 1:
                return LayoutError(
                    f"schedule={fixed_axes['schedule']} needs at least 2 stages, and pp is 1; try --pp 2, or no --schedule"
                )
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
    kind, driver_bytes = "", float(system.chip.capacity)
    room_text = f"are usable ({percent(MEMORY_MARGIN)} of the {driver_bytes / 1e9:,.1f} GB that the driver counts)"
    # Offloaded states may fit the chips and not the host.
    if used_bytes <= capacity:
        memory = training_memory(model, job, system, engine, layout, microbatches=job.batch / (layout.dp * layout.micro_batch))
        kind, used_bytes, capacity = " of host memory", float(memory.host), float(memory.host_capacity)
        room_text = "are there"
    message = (
        f"{model.name} with {job.optimizer} does not fit {counted(chips, 'chip')} of {system.name}: the smallest layout "
        f"({show_training_layout(layout)}) needs {used_bytes / 1e9:,.1f} GB{kind} per chip, and "
        f"{capacity / 1e9:,.1f} GB {room_text}: {(used_bytes - capacity) / 1e9:,.1f} GB too much"
    )
    return NothingFits(message, _nearest_change(model, system, job, engine, chips, fixed_axes))


def _nearest_change(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, chips: int, fixed_axes: Mapping[str, Any]
) -> str:
    """Return the smallest change with which a layout fits, as text."""

    def fits(**changes: Any) -> bool:
        inputs: dict[str, Any] = {"job": job, "engine": engine, "chips": chips, "fixed": fixed_axes} | changes
        return search(model, system, **inputs).fastest() is not None

    # Layers by chunk also fix the number of stages, so that these axes are dropped together.
    tied_axes = ("pp", "virtual_stages", "layers") if "layers" in fixed_axes else ()
    for name in ("recompute", "sharding", "layers", "pp", "tp", "virtual_stages", "micro_batch"):
        dropped_axes = tied_axes if name in tied_axes else (name,)
        if name in fixed_axes and fits(fixed={k: v for k, v in fixed_axes.items() if k not in dropped_axes}):
            change_text = "other layers by chunk" if name == "layers" else f"another {name}"
            return f"; it fits with {change_text} than {fixed_axes[name]}"
    if engine.shardings and fits(engine=replace(engine, shardings=())):
        return "; it fits with sharded weights (--sharding zero3, FSDP), which --engine typical has"
    # Narrower states change the arithmetic of the optimizer, and states in host memory do not, so that both are named.
    is_adamw = job.task != "lora" and job.optimizer == "adamw"
    optimizers = ("adamw-bf16", "adamw-fp8") if is_adamw else ()
    changed_options = [
        next((f"--optimizer {name}" for name in optimizers if fits(job=replace(job, optimizer=name))), ""),
        next((f"--offload {name}" for name in offload_choices(job, system) if fits(job=replace(job, offload=name))), ""),
    ]
    if any(changed_options):
        return f"; it fits with {' or with '.join(filter(None, changed_options))}"
    if not system.is_box:
        axes_without_dp = {k: v for k, v in fixed_axes.items() if k != "dp"}
        for factor in CHIP_MULTIPLES:
            larger_job = replace(job, batch=int(job.batch) * factor)
            if fits(chips=chips * factor, job=larger_job, fixed=axes_without_dp):
                return f"; it fits {chips * factor:,} chips"
    if job.task != "lora" and fits(job=replace(job, task="lora")):
        return "; a LoRA fine-tune of it fits (--task lora)"
    return "; take chips with more memory, or a smaller model"


def offload_choices(job: TrainingJob, system: System) -> tuple[str, ...]:
    """Return the offloads that a job could have and has not.

    Args:
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.

    Returns:
        Offloads, the fastest of most jobs first.
    """
    if host_memory(system) is None or job.offload != NO_OFFLOAD:
        return ()
    has_states = job.task != "lora" and job.optimizer != "muon"
    return tuple(offload for offload in OFFLOADS[1:] if has_states or OPTIMIZER not in offload)


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

    description: str = field(metadata=unit("", "change of machine, format, batch or optimizer"))
    faster: float = field(metadata=unit("", "speed-up, per token"))
    layout: str = field(metadata=unit("", "fastest layout with the change, if it is another"))


def training_alternatives(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, best: tuple[TrainingLayout, float],
    fixed_axes: Mapping[str, Any], chips: int, evidence: str = MEASURED,
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
        evidence: Evidence of the layouts, as for `train`.

    Returns:
        Changes, largest speed-up first.
    """
    tuned = on_chip(engine, system, experts=model.routed)
    changes = []
    for description, resource in MACHINE_CHANGES:
        # A faster machine keeps the layout, so that one evaluation is enough.
        changed_system = _doubled(system, resource)
        seconds = step_seconds(model, job, changed_system, tuned, best[0]).total
        changes.append(Change(description=description, faster=best[1] / float(seconds), layout=""))

    # Formats, memory and optimizer change which layouts fit, so that the search runs again.
    candidates = [(f"--dtype {dtype}", replace(job, dtype=dtype), system) for dtype in _narrower_formats(job, system)]
    candidates.append(("twice the memory", job, _doubled(system, "capacity")))
    if job.optimizer == "adamw" and job.task != "lora":
        candidates.append(("--optimizer adamw-bf16", replace(job, optimizer="adamw-bf16"), system))
    # More layouts divide a multiple of the chips.
    candidates += [(f"--batch {batch}", replace(job, batch=batch), system) for batch in _whole_batches(int(job.batch), chips)]
    # Host memory may replace recomputation.
    if best[0].recompute != "none" and ACTIVATIONS in offload_choices(job, system):
        candidates.append((f"--offload {ACTIVATIONS}", replace(job, offload=ACTIVATIONS), system))
    for description, changed_job, machine in candidates:
        changed_best = search(model, machine, changed_job, tuned, chips=chips, fixed=fixed_axes).recommended(evidence)
        if changed_best is not None:
            changed = show_training_layout(changed_best.layout) if changed_best.layout != best[0] else ""
            faster = best[1] / changed_best.seconds * int(changed_job.batch) / int(job.batch)
            changes.append(Change(description=description, faster=faster, layout=changed))

    # NVIDIA's tuned recipes count as a separate stack, where it ran on the chip.
    recipes = load_stack(TUNED)
    if engine.name in (TYPICAL, PAPERS) and recipes.has_run_on(system.chip.name):
        recipe_engine = on_chip(recipes, system, experts=model.routed)
        recipe_job = replace(
            job,
            gradient_bytes=recipes.gradient_bytes,
            logit_bytes=recipes.logit_bytes,
            narrow_gather=recipes.narrow_gather,
            adapted=recipes.adapted,
            **recipes.recipe_flags(model.family, system.chip.name),
        )
        recipe_best = _best_or_none(model, system, recipe_job, recipe_engine, chips, fixed_axes, evidence)
        if recipe_best is not None:
            # Each stack has its own optimism of searches.
            ratio = 1.0
            if not set(searched_axes(model)) <= set(fixed_axes):
                factors = [search_optimism(stack, system, experts=model.routed).factor for stack in (engine, recipes)]
                ratio = factors[0] / factors[1]
            changed = show_training_layout(recipe_best.layout) if recipe_best.layout != best[0] else ""
            faster = ratio * best[1] / recipe_best.seconds
            changes.append(Change(description=f"recipes tuned by NVIDIA (--engine {TUNED})", faster=faster, layout=changed))
    return tuple(sorted((c for c in changes if c.faster >= MIN_SPEEDUP), key=lambda c: -c.faster))


def _whole_batches(batch: int, chips: int) -> list[int]:
    """Return the multiples of the chips around a batch, up to twice the batch."""
    fewer = batch // chips * chips
    return [multiple for multiple in (fewer, fewer + chips) if 0 < multiple <= 2 * batch and batch % chips]


def _best_or_none(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, chips: int, fixed_axes: Mapping[str, Any],
    evidence: str,
) -> Recommendation | None:  # fmt: skip
    """Return the recommended layout of another stack; None if it does not have the given words."""
    words = {"sharding": engine.shardings, "schedule": engine.schedules, "recompute": engine.recomputes}
    if any(name in fixed_axes and choices and fixed_axes[name] not in choices for name, choices in words.items()):
        return None
    return search(model, system, job, engine, chips=chips, fixed=fixed_axes).recommended(evidence)


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
    evidence: str = MEASURED,
) -> Scaling:
    """Return strong and weak scaling around a number of chips.

    Args:
        model: Model to train.
        system: Chips and links.
        chips: Chips of the reference point.
        engine: Training stack.
        job: Sequences, formats and optimizer of a step.
        layout: Axes of the layout that are fixed; dp is always free.
        evidence: Evidence of the layouts, as for `train`.

    Returns:
        Points at 1/8 to 8 times the chips.
    """
    tuned = on_chip(engine, system, experts=model.routed)
    # Data parallelism follows from the number of chips and cannot stay fixed.
    fixed = {k: v for k, v in (layout or {}).items() if k != "dp"}
    is_searched = not set(searched_axes(model)) <= set(fixed)
    factor = search_optimism(engine, system, experts=model.routed).factor if is_searched else 1.0
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
            search_result = search(model, system, scaled_job, tuned, chips=chip_count, fixed=fixed)
            best = search_result.recommended(evidence)
            nothing = "nothing fits" if search_result.count else "the batch does not divide"
            words = show_training_layout(best.layout) if best else nothing
            seconds = float("nan")
            if best:
                correction = own_correction(engine, scaled_job, best.layout, low=1.0, high=1.0, shortfall=factor)
                seconds = factor * correction.factor * best.seconds
            rate = batch * float(job.seq) / chip_count / seconds
            points.append(
                ScalingPoint(kind=kind, chips=chip_count, batch=batch, seconds=seconds,
                             tokens_per_second_per_chip=rate, layout=words)
            )  # fmt: skip
    return Scaling(points=tuple(points))
