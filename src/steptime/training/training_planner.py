"""Training steps and runs of a layout, or of the fastest layout that fits.

`st.training_step` evaluates one layout. `st.train` searches the fastest one, and shows which changes would speed it up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError, LayoutError, RangeError, UnknownName
from steptime.hardware.number_formats import number_format, peak_rate
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import MOST_CHIPS, Array, Number, positive, whole_number
from steptime.physics.bias_correction import Anchor
from steptime.result_base import Tabular, broadcast, in_words, unit
from steptime.svg import stacked
from steptime.training.schedule_timeline import (
    MemoryCurve,
    Timeline,
    memory_over_time,
    simulate_step,
    timeline,
    trace_events,
)
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_alternatives import Change, infeasibility_error, training_alternatives
from steptime.training.training_correction import OwnCorrection, own_correction
from steptime.training.training_evidence import (
    ANY,
    MEASURED,
    TRAINING_EVIDENCE,
    SearchOptimism,
    search_optimism,
    searched_axes,
    unlike_measured_runs,
)
from steptime.training.training_job import (
    AXES,
    DEGREES,
    NO_OFFLOAD,
    TrainingJob,
    TrainingLayout,
    check_job,
    read_layers,
    show_layers,
    show_training_layout,
)
from steptime.training.training_memory import TrainingMemory, memory_by_layer, training_memory
from steptime.training.training_rules import (
    check_batch,
    check_counts,
    check_degrees,
    check_draft,
    check_group,
    check_layers,
    check_layout,
    check_stack,
    check_virtual_stages,
    check_words,
)
from steptime.training.training_runs import (
    Phase,
    Reliability,
    TrainingRunCost,
    failure_losses,
    largest_batch_tokens,
    model_flops,
    recompute_flops,
    run_time_range,
    training_run_cost,
)
from steptime.training.training_search import Recommendation, SearchResult, search
from steptime.training.training_stack import IDEAL, TrainingEngine, on_chip, step_time_range, training_engine
from steptime.training.training_step import StepTime, chunk_times, step_seconds
from steptime.units import DAY, counted, parse, percent, show

# Tokens of a run.
MAX_RUN_TOKENS: Final = 1e18
JOB_OPTIONS: Final = (
    "dtype",
    "task",
    "optimizer",
    "lora_rank",
    "mtp",
    "attention",
    "expert_imbalance",
    "offload",
    "least_micro_batch",
)


# Term of the time by which layouts from a search run slower than predicted.
SEARCH_TERM: Final = "search allowance"
EXPOSED_TERMS = ("tensor parallel", "context parallel", "expert exchange", "data parallel", "pipeline hops", "offload")
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
        """Idle share of the pipeline. The allowance of a search lengthens all parts alike."""
        return self.terms.get("pipeline idle", np.zeros_like(self.total)) / (self.total - self.terms.get(SEARCH_TERM, 0.0))

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
            "MFU": in_words(self.mfu_causal, lambda value: percent(value, 1)),
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


def missed_limits(run: TrainingRunCost, limits: Mapping[str, float]) -> tuple[str, ...]:
    """Return the limits that a run misses, with its figures rounded as they are printed.

    Args:
        run: Cost of the run.
        limits: Deadline [s] and budget [USD] by name.

    Returns:
        Names of limits.
    """
    figures = {
        "deadline": min(run.seconds, parse(show(run.seconds, "s"), "s")), "budget": min(run.usd, float(f"{run.usd:.3g}")),
    }  # fmt: skip
    return tuple(name for name, limit in limits.items() if not figures[name] <= limit * (1 + 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Training(Tabular):
    """A training run: layout, step, reasons for the choice, and cost of the run; as a table, one row."""

    SCHEMA: ClassVar[str] = "steptime.training/2"

    step: TrainingStep = field(metadata=unit("", "time and memory of a step", kind="training step"))
    run: TrainingRunCost | None = field(metadata=unit("", "cost of the run, where tokens are given", kind="run, or null"))
    chips: int = field(metadata=unit("", "chips"))
    evaluated_layouts: int = field(metadata=unit("", "number of evaluated layouts"))
    evidence: str = field(metadata=unit("", "measured if runs cover the kind of layout, else any"))
    close_layouts: int = field(metadata=unit("", "layouts with this evidence within 3.5 % of the fastest of them"))
    unmeasured: str = field(metadata=unit("", "fastest layout of any kind, if no run covers its kind; else empty"))
    unmeasured_saving: float = field(metadata=unit("", "share of the step time that the unmeasured layout would save"))
    search_factor: float = field(
        metadata=unit("", "factor on the step time: layouts from a search run slower than predicted; 1 if not searched")
    )
    anchor: Anchor | None = field(default=None, metadata=unit("", "your own runs that correct the times; null: no such runs"))
    own_factor: float = field(default=1.0, metadata=unit("", "factor on the step time by your own runs; 1 without runs"))
    runner_up: str = field(metadata=unit("", "fastest layout with other tp, pp or ep"))
    runner_up_slower: float = field(metadata=unit("", "factor by which the runner-up is slower"))
    changes: tuple[Change, ...] = field(metadata=unit("", "speed-ups by changes, largest first", kind="list of changes"))
    why: str = field(metadata=unit("", "bottleneck of the step, as text"))
    unlike: tuple[str, ...] = field(default=(), metadata=unit("", "ways in which the run is unlike those of the fit, as text"))
    largest_batch: float = field(
        default=math.nan, metadata=unit("tokens", "largest batch that hardly costs quality, where tokens are given")
    )
    limits: Mapping[str, float] = field(
        default_factory=dict, metadata=unit("", "limits of the run: deadline in s, budget in USD")
    )
    limit_probability: Mapping[str, float] = field(
        default_factory=dict, metadata=unit("", "probability that the run meets each limit: deadline, budget")
    )
    model: Model = field(metadata=unit("", "model", left_out=True))
    system: System = field(metadata=unit("", "system", left_out=True))
    job: TrainingJob = field(metadata=unit("", "work of a step", kind="job", left_out=True))
    searched: SearchResult | None = field(default=None, metadata=unit("", "all evaluated layouts", left_out=True))

    @property
    def missed_limits(self) -> tuple[str, ...]:
        """Limits that the run misses: deadline, budget."""
        return () if self.run is None else missed_limits(self.run, self.limits)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the title and the lines of the step, with its bottleneck.

        Returns:
            Title, and lines by name.
        """
        title, lines = self.step.headline()
        return title, lines | {"why": self.why}

    def drawing(self) -> str:
        """Return the terms of the step and the memory of the fullest chip as bars.

        Returns:
            Text.
        """
        return self.step.drawing() + self.step.memory.drawing()

    def columns(self) -> dict[str, Any]:
        """Return one row: layout, chips, cost of the run, and the columns of the step.

        Returns:
            Values by column name; the cost of the run is missing without tokens.
        """
        row: dict[str, Any] = {"chips": self.chips, "layout": show_training_layout(self.step.layout)}
        if self.run is not None:
            run = self.run
            row |= {
                "tokens": run.tokens, "run_s": run.seconds, "run_low_s": run.low, "run_high_s": run.high,
                "days": run.seconds / DAY, "usd": run.usd, "usd_low": run.usd_low, "usd_high": run.usd_high,
                "chip_hours": run.chip_hours, "goodput": run.goodput, "failures": run.failures,
            }  # fmt: skip
        return broadcast(row | self.step.columns())


def training_job(
    system: System, engine: TrainingEngine, *, seq: Number, batch: Number, dtype: str = "bf16", task: str = "pretrain",
    optimizer: str = "adamw", lora_rank: int = 16, mtp: bool = False, attention: str = "flash",
    expert_imbalance: Number = 1.0, offload: str = NO_OFFLOAD, least_micro_batch: int = 1, model: Model | None = None,
) -> TrainingJob:  # fmt: skip
    """Return a checked job with the gradient and logit bytes of the stack.

    Args:
        system: Chips and links.
        engine: Training stack.
        seq: Tokens per sequence.
        batch: Sequences per step, over all chips.
        dtype: Number format of the products of layers.
        task: "pretrain", "sft" or "lora".
        optimizer: Name of the optimizer.
        lora_rank: Rank of the adapters, with task "lora".
        mtp: Whether multi-token-prediction layers are trained.
        attention: "flash" or "unfused".
        expert_imbalance: Rows of the busiest expert-parallel rank over the mean.
        offload: What is in host memory: "none", "optimizer", "activations" or "optimizer+activations".
        least_micro_batch: Sequences that a searched micro-batch has at least.
        model: Model to train, which decides on fused kernels of its recipe; none of them if None.

    Returns:
        Job.

    Raises:
        InputError: If a word is unknown, or the chip does not compute in the format.
    """
    job = TrainingJob(
        seq=seq, batch=batch, dtype=dtype, task=task, optimizer=optimizer, lora_rank=lora_rank, mtp=mtp, attention=attention,
        gradient_bytes=engine.gradient_bytes, logit_bytes=engine.logit_bytes, gathered_inputs=engine.gathered_inputs,
        grouped_experts=engine.grouped_experts,
        narrow_gather=engine.narrow_gather, adapted=engine.adapted, expert_imbalance=expert_imbalance, offload=offload,
        least_micro_batch=least_micro_batch, **({} if model is None else engine.recipe_flags(model.family, system.chip.name)),
    )  # fmt: skip
    return check_job(job, system)


def training_step(
    model: ModelLike,
    system: SystemLike,
    *,
    seq: Number,
    batch: Number,
    layout: TrainingLayout | None = None,
    engine: TrainingEngine | str | None = None,
    **job_options: Any,
) -> TrainingStep:
    """Return the time and the memory of one training step on a layout.

    Numbers of the layout, seq and batch may be arrays that broadcast.

    Args:
        model: Model, or its name.
        system: System, or its name.
        seq: Tokens per sequence.
        batch: Sequences per step, over all chips.
        layout: Training layout; one chip if None.
        engine: Training stack, or its name; the usual one of chip and model if None.
        **job_options: dtype, task, optimizer, lora_rank, mtp, attention, expert_imbalance, offload, as for
                `TrainingJob`.

    Returns:
        Time, memory and efficiency of the step.

    Raises:
        LayoutError: If the layout cannot run.
        InputError: If the chip does not compute in the format.
    """
    model, system = resolve_model(model), resolve_system(system)
    engine = training_engine(engine, system)
    _check_job_options(job_options)
    layout = TrainingLayout() if layout is None else layout
    check_counts({name: getattr(layout, name) for name in AXES})
    job = training_job(system, engine, seq=seq, batch=batch, model=model, **job_options)
    check_draft(model, job)

    # Arrays may contain illegal points, so that only their words and layers are checked.
    plain = not any(np.ndim(v) for v in (seq, batch, *(getattr(layout, n) for n in AXES)))
    if plain:
        check_layout(layout, model, system, job, engine)
    else:
        check_words(layout.recompute, layout.sharding, layout.schedule)
        check_layers(layout.layers, model, np.asarray(layout.pp) * layout.virtual_stages)
    return evaluate_layout(model, system, job, engine, layout)


def _check_job_options(job_options: Mapping[str, Any]) -> None:
    for name in job_options:
        if name not in JOB_OPTIONS:
            raise InputError(f"{name}: not an option of a training job; the options are {', '.join(JOB_OPTIONS)}")


def evaluate_layout(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, x: TrainingLayout, *, date: str = ""
) -> TrainingStep:
    """Return the time and the memory of a step on a legal layout.

    Args:
        model: Model to train.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.
        date: Date of the stack, such as "2025-06"; the newest of its fit if empty.

    Returns:
        Time, memory and efficiency of the step.
    """
    tuned = on_chip(engine, system, experts=model.routed, date=date)
    step_time = step_seconds(model, job, system, tuned, x)
    low, high = step_time_range(engine, system, experts=model.routed)
    memory = training_memory(model, job, system, engine, x, microbatches=step_time.microbatches)
    # The bounds: without losses and with all communication hidden, and without any overlap of communication.
    lower = np.asarray(step_seconds(model, job, system, IDEAL, x).total)
    unhidden = replace(tuned.constants, tensor_overlap=0.0, expert_overlap=0.0, data_overlap=0.0)
    upper = np.asarray(step_seconds(model, job, system, replace(tuned, constants=unhidden), x).total)
    tokens = job.batch * job.seq / x.chips / step_time.total
    peak = peak_rate(system.chip.peak, number_format(job.dtype).arithmetic)

    # Published efficiencies use either count of attention pairs, so that both are reported.
    causal_flops, full_flops = (model_flops(model, job, full=is_full) for is_full in (False, True))
    rates = [
        np.asarray(flops * tokens / peak)
        for flops in (causal_flops, full_flops, full_flops + recompute_flops(model, job, x.recompute))
    ]
    return TrainingStep(
        model=model.name,
        system=system.name,
        stack=engine.name,
        layout=x,
        total=np.asarray(step_time.total),
        low=np.maximum(step_time.total * low, lower),
        high=np.asarray(step_time.total * high),
        lower=lower,
        upper=upper,
        terms={name: np.asarray(value, dtype=np.float64) for name, value in step_time.terms.items()},
        tokens_per_second_per_chip=np.asarray(tokens),
        mfu_causal=rates[0],
        mfu_full=rates[1],
        hfu=rates[2],
        microbatches=np.asarray(step_time.microbatches),
        memory=memory,
    )


def train(
    model: ModelLike,
    system: SystemLike,
    *,
    chips: int,
    seq: int = 4096,
    batch: int,
    engine: TrainingEngine | str | None = None,
    layout: Mapping[str, Any] | None = None,
    tokens: float | None = None,
    phases: Sequence[Phase] = (),
    reliability: Reliability | None = None,
    changes: bool = True,
    evidence: str = MEASURED,
    **job_options: Any,
) -> Training:
    """Return a layout that fits the chips and is about the fastest, and the cost of a run.

    Of the layouts of measured kinds within the error of the fastest, it is the most conventional one. The seconds of a
    searched layout are corrected for the optimism of searches (`search_optimism`).

    Args:
        model: Model, or its name.
        system: System, or its name.
        chips: Chips in total.
        seq: Tokens per sequence.
        batch: Sequences per step, over all chips.
        engine: Training stack, or its name; the usual one of chip and model if None.
        layout: Axes that are fixed, by the field names of `TrainingLayout`; all others are searched.
        tokens: Training tokens of the run; no run if None.
        phases: Parts of the run with their own sequence length and batch, instead of `tokens`.
        reliability: Failure rate, checkpoint and restart times, and other overhead; the defaults if None.
        changes: Whether speed-ups by changes of machine and format are computed.
        evidence: "measured" for layouts of kinds that measured runs cover if any of them fits, or "any".
        **job_options: dtype, task, optimizer, lora_rank, mtp, attention, expert_imbalance, offload, least_micro_batch, as for
                `TrainingJob`.

    Returns:
        Layout, step and run.

    Raises:
        NothingFits: If no layout has room for the training states.
        LayoutError: If the given axes cannot run.
        RangeError: If the run has fewer tokens than one step.
    """
    model, system = resolve_model(model), resolve_system(system)
    engine = training_engine(engine, system)
    chips = int(whole_number("chips", chips, maximum=MOST_CHIPS, unit="chip"))
    _check_job_options(job_options)
    if evidence not in TRAINING_EVIDENCE:
        raise UnknownName("evidence", evidence, TRAINING_EVIDENCE, f"Known: {', '.join(TRAINING_EVIDENCE)}.")
    if tokens is not None:
        positive("tokens", tokens, maximum=MAX_RUN_TOKENS)
    job = training_job(system, engine, seq=seq, batch=batch, model=model, **job_options)
    parts = tuple(phases) or ((Phase(tokens=tokens, seq=seq, batch=batch),) if tokens else ())
    for phase in phases:
        check_job(replace(job, seq=phase.seq, batch=phase.batch), system)
    if parts and sum(phase.tokens / (phase.seq * (phase.first or phase.batch)) for phase in parts) < 1:
        run_tokens = sum(phase.tokens for phase in parts)
        raise RangeError(f"tokens: a run has at least the tokens of a step, {job.seq * job.batch:,}, got {run_tokens:,.0f}")
    check_draft(model, job)

    # Search the fastest layout.
    fixed_axes = _check_axes(dict(layout or {}), model, system, job, engine, chips)
    tuned = on_chip(engine, system, experts=model.routed)
    search_result = search(model, system, job, tuned, chips=chips, fixed=fixed_axes)
    recommendation = search_result.recommended(evidence)
    if recommendation is None:
        raise infeasibility_error(model, system, job, tuned, chips, fixed_axes, search_result)
    best = recommendation.layout, recommendation.seconds
    best_seconds = step_seconds(model, job, system, tuned, best[0])
    # The search assumes stages of mean length; a layout with given layers is simulated exactly.
    if best[0].layers:
        best = best[0], float(best_seconds.total)
    is_searched = any(axis not in fixed_axes for axis in searched_axes(model))
    optimism = search_optimism(engine, system, experts=model.routed) if is_searched else SearchOptimism()
    low, high = step_time_range(engine, system, experts=model.routed)

    def correct(corrected_job: TrainingJob) -> OwnCorrection:
        return own_correction(engine, corrected_job, best[0], low=low, high=max(high, optimism.high), shortfall=optimism.factor)

    correction = correct(job)
    step = corrected_step(evaluate_layout(model, system, job, engine, best[0]), optimism)
    step = step if engine.anchor is None else anchored_step(step, correction)
    runner_up, runner_up_slower = _runner_up(search_result, best[0], is_measured=recommendation.measured)
    unmeasured_text, unmeasured_saving = _unmeasured(recommendation)

    # Cost of the run: each phase may have its own length and batch.
    cost = None
    if parts:

        def phase_seconds(phase_job: TrainingJob) -> float:
            seconds = _phase_step_seconds(model, system, phase_job, tuned, chips, fixed_axes, best[0], evidence)
            return optimism.factor * correct(phase_job).factor * seconds

        losses, run_range, loss_range = reliability or Reliability(), (correction.low, correction.high), (1.0, 1.0)
        # The bound has no range, and only the overhead that is given.
        if engine.name != "ideal":
            failing = failure_losses(losses, chips)
            run_range = run_time_range(correction.low, correction.high, losses.run_overhead, failing)
            loss_range = run_time_range(1.0, 1.0, losses.run_overhead, failing)
        elif losses.overhead is None:
            losses = replace(losses, overhead=1.0)
        # A batch ramp grows in multiples that all replicas and the schedule accept.
        quantum = int(best[0].dp * best[0].micro_batch * (best[0].pp if best[0].virtual_stages > 1 else 1))
        cost = training_run_cost(
            model, system, job, parts, phase_seconds, chips=chips, step_range=run_range, reliability=losses, quantum=quantum,
            loss_range=loss_range,
        )  # fmt: skip
    return Training(
        step=step,
        run=cost,
        chips=chips,
        evaluated_layouts=search_result.count,
        evidence=MEASURED if recommendation.measured else ANY,
        close_layouts=recommendation.close,
        unmeasured=unmeasured_text,
        unmeasured_saving=unmeasured_saving,
        search_factor=optimism.factor,
        anchor=engine.anchor,
        own_factor=correction.factor,
        runner_up=runner_up,
        runner_up_slower=runner_up_slower,
        changes=training_alternatives(model, system, job, engine, best, fixed_axes, chips, evidence) if changes else (),
        why=_bottleneck_text(step, best_seconds),
        unlike=unlike_measured_runs(engine, system, job, chips),
        largest_batch=math.nan if cost is None else float(largest_batch_tokens(cost.flops)),
        model=model,
        system=system,
        job=job,
        searched=search_result,
    )


def corrected_step(step: TrainingStep, optimism: SearchOptimism) -> TrainingStep:
    """Return a step of a searched layout with the expected shortfall as a term, and with the range of searches.

    Args:
        step: Predicted step.
        optimism: Correction of searches.

    Returns:
        Step.
    """
    factor = optimism.factor
    terms = dict(step.terms)
    if factor > 1:
        terms[SEARCH_TERM] = step.total * (factor - 1)
    return replace(
        _slower_step(step, factor), low=step.low * factor,
        high=np.maximum(step.high, step.total * optimism.high) * factor, upper=step.upper * factor, terms=terms,
    )  # fmt: skip


def anchored_step(step: TrainingStep, correction: OwnCorrection) -> TrainingStep:
    """Return a step whose times and range are corrected by your own runs.

    Args:
        step: Predicted step.
        correction: Correction by the runs.

    Returns:
        Step; no end of its range is below the time without losses.
    """
    total = step.total * correction.factor
    return replace(
        _slower_step(step, correction.factor), low=np.minimum(np.maximum(total * correction.low, step.lower), total),
        high=total * correction.high, terms={name: value * correction.factor for name, value in step.terms.items()},
    )  # fmt: skip


def _slower_step(step: TrainingStep, factor: Number) -> TrainingStep:
    """Return a step with `factor` times the time, and its throughput; ranges and terms unchanged."""
    return replace(
        step, total=step.total * factor, tokens_per_second_per_chip=step.tokens_per_second_per_chip / factor,
        mfu_causal=step.mfu_causal / factor, mfu_full=step.mfu_full / factor, hfu=step.hfu / factor,
    )  # fmt: skip


def _unmeasured(recommendation: Recommendation) -> tuple[str, float]:
    """Return the fastest layout as text and its saving, if the recommended layout has better evidence."""
    layout, seconds = recommendation.fastest
    saving = 1 - seconds / recommendation.seconds
    if not recommendation.measured or recommendation.fastest_measured or saving <= 0:
        return "", 0.0
    return show_training_layout(layout), saving


def _phase_step_seconds(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, chips: int, fixed_axes: Mapping[str, Any],
    best: TrainingLayout, evidence: str,
) -> float:  # fmt: skip
    """Return the seconds of a step with another length or batch.

    The layout stays the same if it can run the step; else the fastest layout is searched.
    """
    microbatches = int(job.batch) / (best.dp * best.micro_batch)
    if microbatches == int(microbatches) and int(job.seq) % int(best.cp) == 0:
        memory = training_memory(model, job, system, engine, best, microbatches=microbatches)
        if bool(memory.fits) and (
            best.pp == 1 or bool(schedule_named(best.schedule).legal(best.pp, microbatches, best.virtual_stages))
        ):
            return float(step_seconds(model, job, system, engine, best).total)
    recommendation = search(model, system, job, engine, chips=chips, fixed=fixed_axes).recommended(evidence)
    if recommendation is None:
        raise LayoutError(
            f"no layout of {counted(chips, 'chip')} runs {counted(int(job.batch), 'sequence')} "
            f"of {counted(int(job.seq), 'token')}"
        )
    return recommendation.seconds


def _check_axes(
    axes: dict[str, Any], model: Model, system: System, job: TrainingJob, engine: TrainingEngine, chips: int
) -> dict[str, Any]:
    """Return the given axes, checked as far as possible, with implied axes added."""
    unknown = [name for name in axes if name not in AXES]
    if unknown:
        raise InputError(f"{unknown[0]}: not an axis of a training layout; the axes are {', '.join(AXES)}")
    check_counts(axes)
    axes = add_layer_axes(axes, model)

    # The degrees must multiply to the number of chips; three of them give the fourth.
    degrees = {name: int(axes[name]) for name in ("tp", "pp", "cp", "dp") if name in axes}
    product = int(np.prod(list(degrees.values()))) if degrees else 1
    if chips % product:
        product_text = " x ".join(f"{name}={degree}" for name, degree in degrees.items())
        raise LayoutError(
            f"{product_text}{f' = {product}' if len(degrees) > 1 else ''} does not divide {counted(chips, 'chip')}"
        )
    if len(degrees) == 4 and product != chips:
        product_text = " x ".join(f"{name}={degree}" for name, degree in degrees.items())
        raise LayoutError(f"{product_text} = {product} is not the {counted(chips, 'chip')}; leave one of them out")
    if "dp" not in axes and {"tp", "pp", "cp"} <= set(axes):
        axes = axes | {"dp": chips // product}

    # Schedule and virtual stages must match.
    if axes.get("virtual_stages", 1) > 1 and "schedule" not in axes:
        axes = axes | {"schedule": "interleaved"}
    check_group(axes.get("sharding", "zero1"), axes.get("sharding_group", 0))
    check_words(axes.get("recompute", "none"), axes.get("sharding", "zero1"), axes.get("schedule", "1f1b"))
    schedule, virtual = schedule_named(axes.get("schedule", "1f1b")), int(axes.get("virtual_stages", 1))
    if virtual > 1 and schedule.virtual == 1:
        raise LayoutError(f"schedule {schedule.name} has no virtual stages; leave --vpp out, or take --schedule interleaved")
    if schedule.virtual == 0 and axes.get("virtual_stages") == 1:
        raise LayoutError(f"schedule {schedule.name} needs at least 2 virtual stages per device; give --vpp 2, or take 1f1b")
    if axes.get("pp") == 1:
        check_virtual_stages(virtual)
    if schedule.virtual != 1 and axes.get("pp") == 1:
        raise LayoutError(f"schedule {schedule.name} needs a pipeline, and pp=1 has none; give --pp, or leave --schedule out")

    # Free axes count as 1, so that only the given degrees are checked.
    probe: dict[str, Any] = {name: int(axes[name]) for name in DEGREES if name in axes}
    probe |= {"dp": chips // int(np.prod([degree for name, degree in degrees.items() if name != "dp"]))}
    check_degrees(TrainingLayout(**probe), model, system, job)
    if "dp" in axes:
        check_batch(TrainingLayout(dp=axes["dp"], micro_batch=axes.get("micro_batch", 1)), job)
    if "pp" in axes and axes["pp"] > 1 and "schedule" in axes:
        check_stack(schedule.name, engine)
    return axes


def add_layer_axes(axes: dict[str, Any], model: Model) -> dict[str, Any]:
    """Return the given axes with the axes that follow from layers by chunk.

    These are the stages, and the virtual stages where both differ.

    Args:
        axes: Axes that are given, by the field names of `TrainingLayout`.
        model: Model to train.

    Returns:
        Axes with "layers" as text, "pp" and "virtual_stages".

    Raises:
        LayoutError: If the layers do not suit the model.
    """
    layers = axes.get("layers") or ""
    layers = layers if isinstance(layers, str) else show_layers(layers)
    if not layers:
        return {name: value for name, value in axes.items() if name != "layers"}
    chunks = len(read_layers(layers))
    virtual = int(axes.get("virtual_stages", chunks // int(axes["pp"]) if "pp" in axes else 1) or 1)
    pp = int(axes.get("pp", chunks // virtual))
    check_layers(layers, model, pp * virtual)
    return axes | {"layers": show_layers(read_layers(layers)), "pp": pp, "virtual_stages": virtual}


def _runner_up(search_result: SearchResult, best: TrainingLayout, *, is_measured: bool) -> tuple[str, float]:
    """Return the fastest layout with other degrees and the same evidence, and its slow-down."""
    # Layouts with the same tp, pp and ep are variants of the best one, not alternatives.
    best_degrees = (best.tp, best.pp, best.ep)
    best_time, second = np.inf, (np.inf, "")
    for group in search_result.groups:
        times = np.where(group.fits & (group.measured | (not is_measured)), group.seconds, np.inf)
        x = group.layout
        degree_columns = [np.broadcast_to(getattr(x, name), times.shape) for name in ("tp", "pp", "ep")]
        has_same_degrees = np.logical_and.reduce(
            [degree_column == mine for degree_column, mine in zip(degree_columns, best_degrees, strict=True)]
        )
        if has_same_degrees.any():
            best_time = min(best_time, float(times[has_same_degrees].min()))
        other_times = np.where(has_same_degrees, np.inf, times)
        index = int(np.argmin(other_times)) if len(other_times) else 0
        if len(other_times) and other_times[index] < second[0]:
            second = float(other_times[index]), show_training_layout(group.layout_at(index))
    return (second[1], second[0] / best_time) if np.isfinite(second[0]) else ("", float("nan"))


TERM_WORDS = {
    "step": "fixed overhead",
    "matrices": "matrix multiplies",
}  # fmt: skip


def _bottleneck_text(step: TrainingStep, step_time: StepTime) -> str:
    """Return the bottleneck of a step as text. The allowance of a search lengthens all parts alike."""
    terms = {name: float(value) for name, value in step.terms.items() if name != SEARCH_TERM}
    total = float(step.total) - float(step.terms.get(SEARCH_TERM, 0.0))
    parts = sorted(((seconds / total, name) for name, seconds in terms.items()), reverse=True)
    first, second = parts[0], parts[1] if len(parts) > 1 else (0.0, "")
    sentence = f"{percent(first[0])} of a step is {TERM_WORDS.get(first[1], first[1])}"
    sentence += f", {percent(second[0])} {TERM_WORDS.get(second[1], second[1])}" if second[1] else ""
    bubble, m = float(step.bubble), float(step_time.microbatches)
    if bubble > 0.02:
        work = f"{counted(m, 'micro-batch', 'micro-batches')} over {counted(float(step.layout.pp), 'stage')}"
        sentence += f"; the pipeline is idle for {percent(bubble)} ({work})"
    if float(step.exposed) / total > 0.02:
        parts_of_it = [name for _, name in (first, second) if name in EXPOSED_TERMS]
        included = f" with {' and '.join(parts_of_it)} included" if parts_of_it else ""
        sentence += f"; exposed communication takes {percent(float(step.exposed) / total)}{included}"
    free_bytes = float(step.memory.capacity - step.memory.used)
    return sentence + f"; the fullest chip has {show(free_bytes, 'B')} of {show(step.memory.capacity, 'B')} of memory free"


# Largest stages x micro-batches x virtual stages of a plot; a longer step shows fewer micro-batches.
MAX_ITEMS = 200_000


# Micro-batches of a plot without pipeline stages, where all of them are alike.
MOST_ALIKE: Final = 4


def step_timeline(
    model: Model, system: System, training: Training, engine: TrainingEngine
) -> tuple[Timeline, MemoryCurve, str]:
    """Return the timeline of a training step with the memory of its fullest chip over time.

    Of a very long step only the first micro-batches are simulated, as many as a plot can show. Without a pipeline these are
    a few, whose memory is that of each layer.

    Args:
        model: Model to train.
        system: Chips and links.
        training: Result of `train`.
        engine: Training stack.

    Returns:
        Timeline, memory over time, and a title that says which micro-batches they show.
    """
    step = training.step
    total = int(np.asarray(step.microbatches))
    if int(step.layout.pp) > 1:
        pipeline = _simulated(model, system, training, engine)
        count, curve = int(pipeline.micro.max()) + 1, memory_over_time(pipeline, step.memory)
    else:
        count = min(total, MOST_ALIKE)
        pipeline = _simulated(model, system, training, engine, limit=count)
        tuned = on_chip(engine, system, experts=model.routed)
        curve = memory_by_layer(model, training.job, system, tuned, step.layout, step.memory, microbatches=count)
    title = f"The first {count:,} of {counted(total, 'micro-batch', 'micro-batches')}" if count < total else ""
    return pipeline, curve, title


# Terms of a step that follow the passes of its micro-batches in a trace.
AFTER_TERMS: Final = ("pipeline hops", "data parallel", "optimizer", "step", SEARCH_TERM)


def step_trace(model: Model, system: System, training: Training, engine: TrainingEngine) -> dict[str, Any]:
    """Return the schedule of a training step in the trace event format of Perfetto and chrome://tracing.

    Of a very long step only the first micro-batches are simulated; `metadata` says how many.

    Args:
        model: Model to train.
        system: Chips and links.
        training: Result of `train`.
        engine: Training stack.

    Returns:
        The trace, ready for JSON.
    """
    simulated = _simulated(model, system, training, engine)
    step = training.step
    after = {name: float(np.asarray(step.terms[name])) for name in AFTER_TERMS if name in step.terms}
    title = f"{step.model} on {training.chips:,} chips of {step.system}: {show_training_layout(step.layout)}"
    about = {
        "step_s": float(np.asarray(step.total)), "micro_batches": int(np.asarray(step.microbatches)),
        "micro_batches_shown": int(simulated.micro.max()) + 1,
    }  # fmt: skip
    return trace_events(simulated, after, title) | {"metadata": about}


def _simulated(
    model: Model, system: System, training: Training, engine: TrainingEngine, *, limit: int | None = None
) -> Timeline:
    """Return the simulated timeline of a step, or of its first micro-batches, at most `limit` of them."""
    x = training.step.layout
    pp, v = int(x.pp), int(x.virtual_stages)
    schedule = schedule_named(x.schedule)
    m = int(np.asarray(training.step.microbatches)) if limit is None else limit
    if pp * v * m > MAX_ITEMS:
        m = max(MAX_ITEMS // (pp * v) // pp * pp, 2 * pp)
    # The simulation takes the same times as the closed form of the step.
    tuned = on_chip(engine, system, experts=model.routed)
    stages = step_seconds(model, training.job, system, tuned, x).stages
    order = schedule.order(pp, m, v)
    forward, backward, weights = (times / float(tuned.speed) for times in chunk_times(x, stages, order.chunks))
    return timeline(simulate_step(order, forward, backward, weights))
