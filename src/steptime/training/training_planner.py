"""Training steps and runs: `st.training_step` of a layout, `st.train` of the fastest one that fits, and what a change would
bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError, LayoutError, RangeError
from steptime.hardware.number_formats import number_format, peak_rate
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike, model_of
from steptime.number_checks import MOST_CHIPS, Number, positive, whole
from steptime.result_base import Result, unit
from steptime.training.infeasibility import nothing
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_alternatives import Change, changes_of
from steptime.training.training_flops import again_flops, model_flops
from steptime.training.training_job import TrainingJob, checked
from steptime.training.training_layout import NAMES, WAYS, TrainingLayout, read_layers, show_layers, show_training_layout
from steptime.training.training_memory import training_memory
from steptime.training.training_result import TrainingRunCost, TrainingStep, range_of
from steptime.training.training_rules import (
    check_alone,
    check_batch,
    check_counts,
    check_draft,
    check_group,
    check_layers,
    check_layout,
    check_stack,
    check_ways,
    check_words,
)
from steptime.training.training_runs import Phase, Reliability, cost_of
from steptime.training.training_search import Searched, search
from steptime.training.training_stack import TrainingEngine, on_chip, training_engine
from steptime.training.training_step import Seconds, step_seconds
from steptime.units import counted, show

MOST_RUN: Final = 1e18  # tokens of a run
JOB: Final = ("dtype", "task", "optimizer", "lora_rank", "mtp", "attention")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Training(Result):
    """A training run: its layout and step, what stands behind the choice, and what the run takes."""

    SCHEMA: ClassVar[str] = "steptime.training/2"

    step: TrainingStep = field(metadata=unit("", "the step", kind="training step"))
    run: TrainingRunCost | None = field(metadata=unit("", "the run, where tokens are given", kind="run, or null"))
    chips: int = field(metadata=unit("", "chips"))
    tried: int = field(metadata=unit("", "layouts evaluated"))
    runner_up: str = field(metadata=unit("", "next layout of another division"))
    runner_up_slower: float = field(metadata=unit("", "factor by which it is slower"))
    changes: tuple[Change, ...] = field(metadata=unit("", "what changes would bring, most first", kind="list of changes"))
    why: str = field(metadata=unit("", "what binds, in words"))
    job: TrainingJob = field(metadata=unit("", "what was asked", kind="job", left_out=True))
    searched: Searched | None = field(default=None, metadata=unit("", "all that was tried", left_out=True))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the step and the run."""
        title, lines = self.step.headline()
        return title, lines | {"why": self.why}

    def drawing(self) -> str:
        """Return the terms of the step and the memory of the fullest chip."""
        return self.step.drawing() + self.step.memory.drawing()


def job_of(
    system: System, engine: TrainingEngine, *, seq: Number, batch: Number, dtype: str = "bf16", task: str = "pretrain",
    optimizer: str = "adamw", lora_rank: int = 16, mtp: bool = False, attention: str = "flash",
) -> TrainingJob:  # fmt: skip
    """Return what is asked, with what the stack brings: the bytes of gradients and of logits."""
    job = TrainingJob(
        seq=seq, batch=batch, dtype=dtype, task=task, optimizer=optimizer, lora_rank=lora_rank, mtp=mtp, attention=attention,
        gradient_bytes=engine.gradient_bytes, logit_bytes=engine.logit_bytes,
    )  # fmt: skip
    return checked(job, system)


def training_step(
    model: ModelLike,
    system: SystemLike,
    *,
    seq: Number,
    batch: Number,
    layout: TrainingLayout | None = None,
    engine: TrainingEngine | str | None = None,
    **asked: Any,
) -> TrainingStep:
    """Return the time and the memory of one training step of `batch` sequences of `seq` [tokens] on a layout.

    asked: dtype, task, optimizer, lora_rank, mtp, attention, as for `TrainingJob`. Numbers of the layout, seq and batch may
    be arrays that broadcast. Raises LayoutError for a layout that cannot run, InputError for formats that the chip does not
    have.
    """
    model, system = model_of(model), resolve_system(system)
    engine = training_engine(engine, system)
    _known(asked)
    layout = TrainingLayout() if layout is None else layout
    check_counts({name: getattr(layout, name) for name in NAMES})
    job = job_of(system, engine, seq=seq, batch=batch, **asked)
    check_draft(model, job)
    plain = not any(np.ndim(v) for v in (seq, batch, *(getattr(layout, n) for n in NAMES)))
    if plain:
        check_layout(layout, model, system, job, engine)
    else:
        check_words(layout.recompute, layout.sharding, layout.schedule)
        check_layers(layout.layers, model, np.asarray(layout.pp) * layout.virtual_stages)
    return answer(model, system, job, engine, layout)


def _known(asked: Mapping[str, Any]) -> None:
    for name in asked:
        if name not in JOB:
            raise InputError(f"{name} is no part of a training job; there are {', '.join(JOB)}")


def answer(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, x: TrainingLayout, *, date: str = ""
) -> TrainingStep:
    """Return the answer of a layout that is legal."""
    experts = model.routed
    tuned, slower = on_chip(engine, system, experts=experts, date=date)
    found = step_seconds(model, job, system, tuned, x, slower=slower)
    low, high = range_of(engine, system, experts=experts)
    memory = training_memory(model, job, system, engine, x, microbatches=found.microbatches)
    lower = np.asarray(ideal_seconds(model, job, system, x))
    tokens = job.batch * job.seq / x.chips / found.total
    peak = peak_rate(system.chip.peak, number_format(job.dtype).arithmetic)
    causal, full = (model_flops(model, job, full=whole_) for whole_ in (False, True))
    rates = [np.asarray(flops * tokens / peak) for flops in (causal, full, full + again_flops(model, job, x.recompute))]
    return TrainingStep(
        model=model.name,
        system=system.name,
        stack=engine.name,
        layout=x,
        total=np.asarray(found.total),
        low=np.maximum(found.total * low, lower),
        high=np.asarray(found.total * high),
        lower=lower,
        upper=np.asarray(unhidden_seconds(model, job, system, tuned, x, slower)),
        terms={name: np.asarray(value, dtype=np.float64) for name, value in found.terms.items()},
        tokens_per_second_per_chip=np.asarray(tokens),
        mfu_causal=rates[0],
        mfu_full=rates[1],
        hfu=rates[2],
        microbatches=np.asarray(found.microbatches),
        memory=memory,
    )


def ideal_seconds(model: Model, job: TrainingJob, system: System, x: TrainingLayout) -> Number:
    """Return the seconds of a step on a machine that loses nothing and hides all communication."""
    return step_seconds(model, job, system, training_engine("ideal", system), x).total


def unhidden_seconds(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, slower: Number
) -> Number:
    """Return the seconds of a step were nothing hidden."""
    none = replace(engine.constants, tensor_overlap=0.0, expert_overlap=0.0, data_overlap=0.0)
    return step_seconds(model, job, system, replace(engine, constants=none), x, slower=slower).total


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
    **asked: Any,
) -> Training:
    """Return the fastest layout that fits `chips` chips, and what a run of `tokens` takes.

    layout: axes that are given, by the names of `TrainingLayout`; all others are searched. phases: parts of the run, instead of
    tokens at one length and batch. asked: dtype, task, optimizer, lora_rank, mtp.
    Raises NothingFits where no layout holds the states, LayoutError where axes that are given cannot run.
    """
    model, system = model_of(model), resolve_system(system)
    engine = training_engine(engine, system)
    chips = int(whole("chips", chips, most=MOST_CHIPS, unit="chip"))
    _known(asked)
    if tokens is not None:
        positive("tokens", tokens, most=MOST_RUN)
    job = job_of(system, engine, seq=seq, batch=batch, **asked)
    if tokens is not None and tokens < job.seq * job.batch:
        raise RangeError(f"a run has at least the tokens of a step, {job.seq * job.batch:,}, not {tokens:,.0f}")
    check_draft(model, job)
    given = _given(dict(layout or {}), model, system, job, engine, chips)
    experts = model.routed
    tuned, slower = on_chip(engine, system, experts=experts)
    found = search(model, system, job, tuned, chips=chips, slower=float(slower), fixed=given)
    best = found.fastest() if found.count else None
    if best is None:
        raise nothing(model, system, job, tuned, chips, given, found)
    timed = step_seconds(model, job, system, tuned, best[0], slower=slower)
    if best[0].layers:  # a search takes stages of mean length, one layout is walked through
        best = best[0], float(timed.total)
    step = answer(model, system, job, engine, best[0])
    second, later = _runner_up(found, best[0])
    for phase in phases:
        checked(replace(job, seq=phase.seq, batch=phase.batch), system)
    parts = tuple(phases) or ((Phase(tokens=tokens, seq=seq, batch=batch),) if tokens else ())
    cost = None
    if parts:

        def seconds_of(other: TrainingJob) -> float:
            return _fastest_of(model, system, other, tuned, chips, given, float(slower), best[0])

        sure = range_of(engine, system, experts=experts)
        quantum = int(best[0].dp * best[0].micro_batch * (best[0].pp if best[0].virtual_stages > 1 else 1))
        cost = cost_of(
            model, system, job, parts, seconds_of, chips=chips, sure=sure, reliability=reliability or Reliability(),
            quantum=quantum,
        )  # fmt: skip
    return Training(
        step=step,
        run=cost,
        chips=chips,
        tried=found.count,
        runner_up=second,
        runner_up_slower=later,
        changes=changes_of(model, system, job, engine, best, given, chips) if changes else (),
        why=_why(step, timed),
        job=job,
        searched=found,
    )


def _fastest_of(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, chips: int, given: Mapping[str, Any], slower: float,
    best: TrainingLayout,
) -> float:  # fmt: skip
    """Return the seconds of a step of another length or batch: of the layout as it is if it can, else of the fastest."""
    micro = int(job.batch) / (best.dp * best.micro_batch)
    if micro == int(micro) and int(job.seq) % int(best.cp) == 0:
        memory = training_memory(model, job, system, engine, best, microbatches=micro)
        if bool(memory.fits) and (
            best.pp == 1 or bool(schedule_named(best.schedule).legal(best.pp, micro, best.virtual_stages))
        ):
            return float(step_seconds(model, job, system, engine, best, slower=slower).total)
    found = search(model, system, job, engine, chips=chips, slower=slower, fixed=given)
    other = found.fastest() if found.count else None
    if other is None:
        raise LayoutError(
            f"no layout of {counted(chips, 'chip')} runs {counted(int(job.batch), 'sequence')} of {counted(int(job.seq), 'token')}"
        )
    return other[1]


def _given(
    given: dict[str, Any], model: Model, system: System, job: TrainingJob, engine: TrainingEngine, chips: int
) -> dict[str, Any]:
    """Return the axes that are given, checked as far as they go."""
    unknown = [name for name in given if name not in NAMES]
    if unknown:
        raise InputError(f"{unknown[0]} is no axis of a training layout; there are {', '.join(NAMES)}")
    check_counts(given)
    given = with_layers(given, model)
    ways = {name: int(given[name]) for name in ("tp", "pp", "cp", "dp") if name in given}
    product = int(np.prod(list(ways.values()))) if ways else 1
    if chips % product:
        words = " x ".join(f"{name}={way}" for name, way in ways.items())
        raise LayoutError(f"{words}{f' = {product}' if len(ways) > 1 else ''} does not divide {counted(chips, 'chip')}")
    if len(ways) == 4 and product != chips:
        words = " x ".join(f"{name}={way}" for name, way in ways.items())
        raise LayoutError(f"{words} = {product} is not the {counted(chips, 'chip')}; leave one of them out")
    if "dp" not in given and {"tp", "pp", "cp"} <= set(given):
        given = given | {"dp": chips // product}
    if given.get("virtual_stages", 1) > 1 and "schedule" not in given:
        given = given | {"schedule": "interleaved"}
    check_group(given.get("sharding", "zero1"), given.get("sharding_group", 0))
    check_words(given.get("recompute", "none"), given.get("sharding", "zero1"), given.get("schedule", "1f1b"))
    schedule, virtual = schedule_named(given.get("schedule", "1f1b")), int(given.get("virtual_stages", 1))
    if virtual > 1 and schedule.virtual == 1:
        raise LayoutError(f"schedule {schedule.name} has no virtual stages; leave --vpp out, or take --schedule interleaved")
    if schedule.virtual == 0 and given.get("virtual_stages") == 1:
        raise LayoutError(
            f"schedule {schedule.name} needs at least 2 virtual stages on each device; give --vpp 2, or take 1f1b"
        )
    if given.get("pp") == 1:
        check_alone(virtual)
    if schedule.virtual != 1 and given.get("pp") == 1:
        raise LayoutError(f"schedule {schedule.name} needs a pipeline, and pp=1 has none; give --pp, or leave --schedule out")
    probe: dict[str, Any] = {name: int(given[name]) for name in WAYS if name in given}
    probe |= {"dp": chips // int(np.prod([way for name, way in ways.items() if name != "dp"]))}
    check_ways(TrainingLayout(**probe), model, system, job)
    if "dp" in given:
        check_batch(TrainingLayout(dp=given["dp"], micro_batch=given.get("micro_batch", 1)), job)
    if "pp" in given and given["pp"] > 1 and "schedule" in given:
        check_stack(schedule.name, engine)
    return given


def with_layers(given: dict[str, Any], model: Model) -> dict[str, Any]:
    """Return axes that are given with those that layers by chunk say: stages, and virtual ones where both differ."""
    layers = given.get("layers") or ""
    layers = layers if isinstance(layers, str) else show_layers(layers)
    if not layers:
        return {name: value for name, value in given.items() if name != "layers"}
    chunks = len(read_layers(layers))
    virtual = int(given.get("virtual_stages", chunks // int(given["pp"]) if "pp" in given else 1) or 1)
    pp = int(given.get("pp", chunks // virtual))
    check_layers(layers, model, pp * virtual)
    return given | {"layers": show_layers(read_layers(layers)), "pp": pp, "virtual_stages": virtual}


def _runner_up(found: Searched, best: TrainingLayout) -> tuple[str, float]:
    """Return the fastest layout that divides the chips otherwise, and how much slower it is."""
    own = (best.tp, best.pp, best.ep)
    first, second = np.inf, (np.inf, "")
    for group in found.groups:
        times = np.where(group.fits, group.seconds, np.inf)
        x = group.layout
        ways = [np.broadcast_to(getattr(x, name), times.shape) for name in ("tp", "pp", "ep")]
        same = np.logical_and.reduce([way == mine for way, mine in zip(ways, own, strict=True)])
        if same.any():
            first = min(first, float(times[same].min()))
        others = np.where(same, np.inf, times)
        place = int(np.argmin(others)) if len(others) else 0
        if len(others) and others[place] < second[0]:
            second = float(others[place]), show_training_layout(group.at(place))
    return (second[1], second[0] / first) if np.isfinite(second[0]) else ("", float("nan"))


TERM_WORDS = {"step": "fixed overhead"}


def _why(step: TrainingStep, timed: Seconds) -> str:
    """Say what binds."""
    total = float(step.total)
    parts = sorted(((float(value) / total, name) for name, value in step.terms.items()), reverse=True)
    first, second = parts[0], parts[1] if len(parts) > 1 else (0.0, "")
    words = f"{first[0]:.0%} of a step goes to {TERM_WORDS.get(first[1], first[1])}"
    words += f", {second[0]:.0%} to {TERM_WORDS.get(second[1], second[1])}" if second[1] else ""
    bubble, m = float(step.bubble), float(timed.microbatches)
    if bubble > 0.02:
        passes = counted(m, "micro-batch", "micro-batches")
        words += f"; the pipeline is idle for {bubble:.0%} ({passes} over {counted(float(step.layout.pp), 'stage')})"
    if float(step.exposed) / total > 0.02:
        words += f"; communication that nothing hides takes {float(step.exposed) / total:.0%}"
    left = float(step.memory.capacity - step.memory.used)
    return words + f"; {show(left, 'B')} of memory are free on the fullest chip"
