"""The question `train`: the fastest layout of a training run that fits in memory, with its step, days and dollars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from steptime.errors import Impossible, InputError, LayoutError, RangeError, UnitError, short_repr
from steptime.hardware.number_formats import peak_rate
from steptime.hardware.rental_prices import usd
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import MOST_CHIPS
from steptime.planning.slo_probability import likelihood
from steptime.questions.declaration import (
    WITHIN,
    Answer,
    bind,
    count,
    inputs_from,
    number,
    question_of_result,
    rent,
    switch,
    text,
    texts,
)
from steptime.questions.subject import (
    DESIGN,
    DESIGN_ANSWERS,
    SUBJECT_GROUP,
    TIMES,
    ModelOnSystem,
    catalog_folder,
    design_answers,
    read_machine,
    read_model,
)
from steptime.training.layer_time import WIDE_FORMATS
from steptime.training.training_evidence import LAYOUT_ERROR, MEASURED, MOST_MEASURED_CHIPS
from steptime.training.training_job import NO_OFFLOAD, TrainingJob, show_training_layout
from steptime.training.training_planner import Training, missed_limits, train
from steptime.training.training_runs import (
    FAILURES_PER_CHIP_SECOND,
    TYPICAL_RUN_OVERHEAD,
    Phase,
    Reliability,
    TrainingRunCost,
    model_flops,
    proposed_batch,
)
from steptime.training.training_stack import TrainingEngine, training_engine
from steptime.units import count as read_count
from steptime.units import counted, dollars, parse_duration, show

JOB_GROUP, LAYOUT_GROUP, RUN_GROUP = "Training job", "Layout (searched if not given)", "Training run"
# Seconds of a year.
YEAR: Final = 365.25 * 86_400
# Factors of the suffixes of token counts.
SUFFIXES: Final = {"T": 1e12, "B": 1e9, "G": 1e9, "M": 1e6, "k": 1e3}


@dataclass(frozen=True, kw_only=True)
class TrainInputs(ModelOnSystem):
    """Inputs of `train`: model, machine, training job, layout and run."""

    chips: Any = count(
        None, "number of chips, such as 512", maximum=MOST_CHIPS, group=JOB_GROUP,
        default_words="the power of two that meets --deadline or --budget",
    )  # fmt: skip
    batch: Any = count(
        None, "sequences (not tokens) per step over all chips, such as 1024", unit="sequences", group=JOB_GROUP,
        default_words="with --tokens, the largest that the chips divide and that hardly costs quality (arXiv 2401.02954)",
    )  # fmt: skip
    seq: Any = count(4096, "sequence length in tokens; 8k is 8,000", unit="tokens", group=JOB_GROUP)
    dtype: str = text("bf16", "number format of GEMMs: bf16, fp16, fp8, mxfp8, nvfp4, int8", group=JOB_GROUP)
    task: str = text("pretrain", "training task: pretrain, sft (all weights) or lora (frozen base model)", group=JOB_GROUP)
    optimizer: str = text(
        "adamw", "optimizer: adamw, adamw-bf16, adamw-fp8, adam-bf16, muon, adafactor or sgd", group=JOB_GROUP
    )
    mtp: bool = switch("also train the multi-token-prediction layers", group=JOB_GROUP)
    engine: Any = text(
        None, "training stack: megatron-lm, megatron or megatron-bridge (recipes tuned by NVIDIA), torchtitan, maxtext, "
        "automodel, llm-foundry, typical, a file, or ideal", group=JOB_GROUP,
        default_words="typical; those of AMD and Google on their chips",
    )  # fmt: skip
    imbalance: Any = number(
        1.0, "token rows of the busiest expert-parallel rank over the mean; 1 if routing is balanced", minimum=1.0,
        maximum=64.0, group=JOB_GROUP,
    )  # fmt: skip
    offload: str = text(
        NO_OFFLOAD, "what is in host memory: none, optimizer (states), activations or optimizer+activations", group=JOB_GROUP
    )
    evidence: str = text(
        MEASURED, "kinds of layouts that a search may take: measured (in the fitted runs) or any", group=LAYOUT_GROUP
    )
    tp: Any = count(None, "tensor-parallel size, with sequence parallelism", group=LAYOUT_GROUP)
    pp: Any = count(None, "pipeline-parallel size: number of stages", group=LAYOUT_GROUP)
    vpp: Any = count(None, "virtual stages per pipeline stage", group=LAYOUT_GROUP)
    cp: Any = count(None, "context-parallel size", group=LAYOUT_GROUP)
    ep: Any = count(None, "expert-parallel size, a divisor of tp x cp x dp", group=LAYOUT_GROUP)
    etp: Any = count(None, "tensor-parallel size of the experts", group=LAYOUT_GROUP)
    dp: Any = count(None, "data-parallel size", group=LAYOUT_GROUP)
    micro_batch: Any = count(None, "micro-batch size in sequences", group=LAYOUT_GROUP)
    sharding: str | None = text(
        None, "sharding of the states over data-parallel ranks: none, zero1, zero2 or zero3", group=LAYOUT_GROUP
    )
    sharding_group: Any = count(
        None, "data-parallel ranks that share one copy of the states (hybrid sharding)", group=LAYOUT_GROUP
    )
    recompute: str | None = text(
        None,
        "activation recomputation: none, selective, full, reversible, or modules joined by +, such as attention, norms, "
        "activation, mlp or moe_act",
        group=LAYOUT_GROUP,
    )
    schedule: str | None = text(
        None, "pipeline schedule, such as 1f1b, interleaved, gpipe, zb-h1, zbv or dualpipe", group=LAYOUT_GROUP
    )
    layers: str | None = text(
        None, "layers per pipeline chunk: pp x vpp counts such as 7,8x14,7", group=LAYOUT_GROUP, metavar="COUNTS",
        default_words="evenly divided",
    )  # fmt: skip
    tokens: Any = text(
        None, "training tokens of the run, such as 15T: adds its duration, rent and goodput", group=RUN_GROUP, bare=True
    )
    deadline: str | None = text(
        None,
        "longest duration, such as 60d or 8 weeks: the cheapest number of chips that ends in time; with --chips the chance "
        "that they do",
        group=RUN_GROUP,
    )
    budget: Any = text(
        None,
        f"largest rent in USD, such as 5M: the fastest run within it on up to {MOST_MEASURED_CHIPS:,} chips, as in measured "
        "runs; with --chips the chance to stay within it",
        group=RUN_GROUP,
        bare=True,
    )
    stage: Any = texts(
        "further training stage as TOKENS:SEQ:BATCH, such as 800B:128k:64 for long context; repeatable", group=RUN_GROUP
    )
    ramp: str | None = text(
        None,
        "ramp as TOKENS:BATCH, such as 469B:3072: the batch grows from BATCH to --batch during the first TOKENS tokens",
        group=RUN_GROUP,
    )
    failures: Any = number(
        None, "failures per chip and year", group=RUN_GROUP, minimum=0.0, maximum=1e6,
        default_words="0.173: 419 in 54 days on 16,384 H100, arXiv 2407.21783",
    )  # fmt: skip
    checkpoint: Any = number(
        30.0, "pause of training per checkpoint in seconds", unit="s", minimum=1e-3, maximum=1e6, group=RUN_GROUP
    )
    restart: Any = number(
        600.0, "time from a failure to the next step in seconds", unit="s", minimum=0.0, maximum=1e6, group=RUN_GROUP
    )
    overhead: Any = number(
        None, "factor on the time of the steps for slow periods, evaluations and network problems",
        minimum=1.0, maximum=10.0, group=RUN_GROUP,
        default_words=f"{TYPICAL_RUN_OVERHEAD}, the median of five published runs; 1 with --engine ideal",
    )  # fmt: skip
    spare: Any = count(0, "number of spare chips, rented in addition", minimum=0, maximum=MOST_CHIPS, group=RUN_GROUP)
    rent: Any = rent(group=SUBJECT_GROUP)
    catalog: str | None = catalog_folder()

    def axes(self) -> dict[str, Any]:
        """Return the parallel sizes and other layout inputs that the user gave.

        Returns:
            Values by the field names of a training layout.
        """
        declared_inputs = inputs_from(TrainInputs).items()
        names = [name for name, declared in declared_inputs if declared.group == LAYOUT_GROUP and name != "evidence"]
        axes = {name: value for name in names if (value := getattr(self, name)) is not None}
        # The option is short as in Megatron; the layout spells the name out.
        return {"virtual_stages" if name == "vpp" else name: value for name, value in axes.items()}

    def phases(self) -> list[Phase]:
        """Return the phases of the run: the ramp, the main phase, and further stages.

        Returns:
            Phases in order; empty if the user gives no tokens and no stage.

        Raises:
            RangeError: If a ramp or a stage is malformed, or a ramp is longer than the run.
        """
        phases = []
        tokens = None if self.tokens is None else read_tokens("tokens", self.tokens)
        if self.ramp is not None:
            if tokens is None:
                raise RangeError(f"ramp: needs the tokens of the run, got only {short_repr(self.ramp)}; give tokens")
            parts = self.ramp.split(":")
            if len(parts) != 2:
                raise RangeError(f"ramp: must be TOKENS:BATCH, such as 469B:3072, got {short_repr(self.ramp)}")
            ramped, first = read_tokens("ramp", parts[0]), read_count(parts[1], "ramp")
            if ramped > tokens or (self.batch is not None and first > self.batch):
                raise RangeError(f"ramp: must have at most the tokens and the batch of the run, got {short_repr(self.ramp)}")

            # The tokens of the ramp are part of the run, so that the main phase gets the rest.
            phases.append(Phase(tokens=ramped, seq=self.seq, batch=self.batch, first=int(first)))
            tokens -= ramped
        if tokens:
            phases.append(Phase(tokens=tokens, seq=self.seq, batch=self.batch))
        return [*phases, *(_stage(stage) for stage in self.stage)]

    def limits(self) -> tuple[float, float]:
        """Return the deadline [s] and the budget [USD] of the run; infinite where they are not given.

        Returns:
            Two limits.

        Raises:
            RangeError: If there are neither chips nor limits, or limits without tokens.
        """
        has_limits = self.deadline is not None or self.budget is not None
        if self.chips is None and not has_limits:
            raise RangeError("chips: give chips, or tokens with deadline or budget")
        if not has_limits:
            return math.inf, math.inf
        if self.tokens is None:
            raise RangeError("tokens: a deadline or a budget needs the tokens of the run, such as 15T")
        try:
            deadline = math.inf if self.deadline is None else parse_duration(self.deadline)
        except UnitError:
            units = "60d, 36h or 8 weeks"
            raise RangeError(f"deadline: must be a duration, such as {units}, got {short_repr(self.deadline)}") from None
        budget = math.inf if self.budget is None else dollars(self.budget, "budget")
        for name, value in (("deadline", deadline), ("budget", budget)):
            if value <= 0:
                raise RangeError(f"{name}: must be above 0, got {getattr(self, name)}")
        return deadline, budget

    def reliability(self) -> Reliability:
        """Return how often chips fail, the cost of a failure, and other overhead.

        Returns:
            Failure rate [1/s], times of checkpoint and restart [s], spare chips, and the factor of other overhead.
        """
        rate = FAILURES_PER_CHIP_SECOND if self.failures is None else self.failures / YEAR
        return Reliability(
            rate=rate, checkpoint=self.checkpoint, restart=self.restart, spares=self.spare, overhead=self.overhead
        )


def _stage(words: str) -> Phase:
    parts = words.split(":")
    if len(parts) != 3:
        raise RangeError(f"stage: must be TOKENS:SEQ:BATCH, such as 800B:128k:64, got {short_repr(words)}")
    seq, batch = (int(read_count(part, "stage")) for part in parts[1:])
    return Phase(tokens=read_tokens("stage", parts[0]), seq=seq, batch=batch)


def read_tokens(name: str, value: Any) -> float:
    """Return the number of training tokens in a text or a number.

    Args:
        name: Name of the input, for messages.
        value: A number, or a text with a suffix k, M, B or G (1e9), or T.

    Returns:
        Tokens.

    Raises:
        RangeError: If the value is not a number above 0 and at most 1e18.

    >>> read_tokens("tokens", "15T"), read_tokens("tokens", "1G"), read_tokens("tokens", 2e12)
    (15000000000000.0, 1000000000.0, 2000000000000.0)
    """
    words = value.strip() if isinstance(value, str) else repr(float(value))
    # "K" and "k" are thousands; the other suffixes are upper case, as in model names.
    suffix = words[-1:].upper() if words[-1:] not in ("k", "K") else "k"
    scaled = suffix in SUFFIXES
    try:
        tokens = float((words[:-1] if scaled else words).replace(",", "")) * (SUFFIXES[suffix] if scaled else 1.0)
    except ValueError:
        raise RangeError(f"{name}: must be a number of tokens, such as 15T or 800B, got {short_repr(words)}") from None
    if not 0 < tokens <= 1e18:
        raise RangeError(f"{name}: must be above 0 and at most 1e18 tokens, got {words}")
    return tokens


def bind_train(values: Mapping[str, Any]) -> tuple[TrainInputs, Model, System, Any]:
    """Return the inputs of a training run, and the objects that they name.

    Args:
        values: Values of `TrainInputs` by name, and figures of the machine by path.

    Returns:
        Checked inputs, model, system, and training stack.
    """
    inputs = bind(TrainInputs, values, "train")
    system = _read_design(values)
    return inputs, read_model(values), system, training_engine(inputs.engine, system, inputs.catalog)


def _read_design(values: Mapping[str, Any]) -> System:
    """Return the system; arithmetic that a design scales keeps its power per FLOP/s, unless the user gives the power."""
    system = read_machine(values)
    present = {name: value for name, value in values.items() if name != WITHIN and not name.startswith(TIMES)}
    if len(present) == len(values) or ("chip.power" in values and WITHIN not in values):
        return system
    # Otherwise the power limit would cancel a part of the change, and add FLOP/s within a budget that memory and links use.
    chip = read_machine(present).chip
    scaled = peak_rate(system.chip.peak, WIDE_FORMATS) / peak_rate(chip.peak, WIDE_FORMATS)
    return replace(system, chip=replace(system.chip, power_w=chip.power_w * scaled))


def solve(values: Mapping[str, Any], *, changes: bool = True) -> Training:
    """Return the fastest layout that fits in memory, and the cost of the run.

    Args:
        values: Values of `TrainInputs` by name, and figures of the machine by path.
        changes: Whether the effect of other choices is computed too.

    Returns:
        The layout, its step, and the run.
    """
    inputs, model, system, stack = bind_train(values)
    deadline, budget = inputs.limits()

    def train_on(chips: int, *, with_changes: bool = False) -> Training:
        return _train(inputs, model, system, stack, chips, changes=with_changes)

    if inputs.chips is not None:
        training = train_on(inputs.chips, with_changes=changes)
        if not math.isfinite(min(deadline, budget)):
            return training
        if math.isfinite(budget) and not math.isfinite(required_run(training).usd):
            raise RangeError(f"budget: the rent of {system.name} is not known; give rent")
    else:
        sized = size_run(train_on, system, deadline=deadline, budget=budget, layout=inputs.axes())
        training = train_on(sized.chips, with_changes=True) if changes else sized
    limits, probabilities = run_limits(required_run(training), deadline, budget)
    return replace(training, limits=limits, limit_probability=probabilities)


def _train(inputs: TrainInputs, model: Model, system: System, stack: TrainingEngine, chips: int, *, changes: bool) -> Training:
    if inputs.batch is None:
        inputs = replace(inputs, batch=_proposed_batch(inputs, model, chips))
    return train(
        model, system, chips=chips, engine=stack, layout=inputs.axes(), changes=changes, phases=inputs.phases(),
        reliability=inputs.reliability(), seq=inputs.seq, batch=inputs.batch, dtype=inputs.dtype, task=inputs.task,
        optimizer=inputs.optimizer, mtp=inputs.mtp, expert_imbalance=inputs.imbalance, offload=inputs.offload,
        evidence=inputs.evidence,
    )  # fmt: skip


def _proposed_batch(inputs: TrainInputs, model: Model, chips: int) -> int:
    """Return the batch of a run of which only the tokens are given."""
    if inputs.tokens is None:
        raise RangeError("batch: give batch, or tokens, from which a batch follows")
    job = TrainingJob(seq=inputs.seq, batch=1, task=inputs.task, mtp=inputs.mtp)
    flops = read_tokens("tokens", inputs.tokens) * float(model_flops(model, job, full=False))
    return proposed_batch(flops, inputs.seq, chips)


def _days(training: Training) -> float | None:
    return None if training.run is None else training.run.seconds / 86_400


def _limit_probability(name: str, training: Training) -> float | None:
    return training.limit_probability.get(name)


def _design_answer(name: str, training: Training) -> Any:
    return design_answers(training.model, training.system, frozenset({name}))[name]


def _layout_text(training: Training) -> str:
    return show_training_layout(training.step.layout)


TRAIN = question_of_result(
    "train",
    "the fastest layout of a training run that fits, its step, days and dollars",
    inputs={**inputs_from(TrainInputs), **DESIGN},
    solve=partial(solve, changes=False),
    answers={
        "step_time": Answer(meaning="time of a step", unit="s", source="step.total"),
        "step_time_low": Answer(meaning="lower end of its 90 % range", unit="s", source="step.low"),
        "step_time_high": Answer(meaning="upper end of its 90 % range", unit="s", source="step.high"),
        "tokens_per_second_per_chip": Answer(
            meaning="training throughput per chip", unit="tok/s", source="step.tokens_per_second_per_chip"
        ),
        "mfu": Answer(meaning="MFU: model FLOPs utilization with causal attention", source="step.mfu_causal"),
        "days": Answer(meaning="duration of the run in days", source=_days),
        "goodput": Answer(meaning="share of time in useful steps", source="run.goodput"),
        "usd": Answer(meaning="rent of the run", unit="USD", source="run.usd"),
        "usd_low": Answer(meaning="lower end of its 90 % range", unit="USD", source="run.usd_low"),
        "usd_high": Answer(meaning="upper end of its 90 % range", unit="USD", source="run.usd_high"),
        "deadline_probability": Answer(
            meaning="probability that the run ends before its deadline", source=partial(_limit_probability, "deadline")
        ),
        "budget_probability": Answer(
            meaning="probability that the rent of the run is within its budget", source=partial(_limit_probability, "budget")
        ),
        "layout_text": Answer(meaning="layout in words", source=_layout_text, text=True),
        "search_factor": Answer(
            meaning="factor on the step time: layouts from a search run slower than predicted", source="search_factor"
        ),
        "unmeasured_saving": Answer(
            meaning="share of the step time that a layout of an unmeasured kind would save", source="unmeasured_saving"
        ),
        **{name: replace(answer, source=partial(_design_answer, name)) for name, answer in DESIGN_ANSWERS.items()},
    },
    shows=("step_time", "mfu", "tokens_per_second_per_chip", "days", "usd", "layout_text"),
    bands={"step_time": ("step_time_low", "step_time_high"), "usd": ("usd_low", "usd_high")},
    figures=True,
    seconds=0.3,
)


# Largest number of chips of a search; numbers are powers of two.
MOST_SIZED_CHIPS: Final = 65_536
# Chip-hours over the fewest within the limits, from which on more chips are not tried: cost rises with them.
MOST_EXTRA_COST: Final = 2.0
# Axes of a layout whose product is a divisor of the number of chips.
CHIP_AXES: Final = ("tp", "pp", "cp", "dp")


def size_run(
    train_on: Callable[[int], Training],
    system: System,
    *,
    deadline: float = math.inf,
    budget: float = math.inf,
    layout: Mapping[str, Any] | None = None,
) -> Training:
    """Return a cheap run that ends before a deadline, or the fastest run within a budget.

    Numbers of chips are powers of two. For a budget all up to the largest measured run are evaluated, because neither time nor
    cost has a single minimum: few chips need recomputation, and many have few sequences per replica. More chips follow only if
    none of these is within the budget. For a deadline the answer is the cheapest number of chips within the limits, the
    smallest of those that cost the same within the error of a layout.

    Args:
        train_on: Function from a number of chips to its training run, with a cost of the run.
        system: Chips and links.
        deadline: Longest duration [s].
        budget: Largest rent [USD].
        layout: Axes of the layout that are fixed, for messages.

    Returns:
        The training run.

    Raises:
        Impossible: If no number of chips meets the limits.
        RangeError: If there is a budget, and the rent of the system is not known.
    """
    largest = int(system.scale_up.size) if system.is_box else MOST_SIZED_CHIPS
    runs: list[Training] = []
    problems: list[Exception] = []
    in_time: list[Training] = []
    for chips in (2**power for power in range(largest.bit_length())):
        is_unmeasured = chips > MOST_MEASURED_CHIPS and math.isinf(deadline)
        if is_unmeasured and any(_within(required_run(training), deadline, budget) for training in runs):
            break
        try:
            training = train_on(chips)
        except (Impossible, LayoutError) as error:
            problems.append(error)
            continue
        run = required_run(training)
        if math.isfinite(budget) and not math.isfinite(run.usd):
            raise RangeError(f"budget: the rent of {system.name} is not known; give rent")
        runs.append(training)
        if math.isfinite(deadline) and _within(run, deadline, budget):
            in_time.append(training)
        if in_time and run.chip_hours > MOST_EXTRA_COST * min(required_run(training).chip_hours for training in in_time):
            break
    if in_time:
        # Costs within the error of a layout are equal; the fewest chips come first.
        limit = math.exp(LAYOUT_ERROR) * min(required_run(training).chip_hours for training in in_time)
        return next(training for training in in_time if required_run(training).chip_hours <= limit)
    affordable = [training for training in runs if _within(required_run(training), deadline, budget)]
    if affordable:
        return min(affordable, key=lambda training: required_run(training).seconds)
    if runs:
        raise Impossible(_reason(runs, system, deadline, budget, layout or {}, largest))
    axes = _axes_text(layout or {})
    if axes and all(isinstance(error, LayoutError) for error in problems):
        raise Impossible(f"no power of two up to {largest:,} is a number of chips for the given layout {axes}; give chips")
    raise Impossible(str(problems[0]))


def required_run(training: Training) -> TrainingRunCost:
    """Return the cost of a run.

    Args:
        training: Training run.

    Returns:
        Cost.

    Raises:
        InputError: If the run has no tokens.
    """
    if training.run is None:
        raise InputError("tokens: a deadline or a budget needs the tokens of the run, such as 15T")
    return training.run


def run_limits(run: TrainingRunCost, deadline: float, budget: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return the limits of a run, and the probability that the run meets each.

    Args:
        run: Cost of the run.
        deadline: Longest duration [s]; infinite without one.
        budget: Largest rent [USD]; infinite without one.

    Returns:
        Limits by name, and probabilities by name, from the 90 % ranges of time and rent.
    """
    limits = _finite_limits(deadline, budget)
    figures = {"deadline": (run.seconds, (run.low, run.high)), "budget": (run.usd, (run.usd_low, run.usd_high))}
    return limits, {name: likelihood(*figures[name], limit) for name, limit in limits.items()}


def _within(run: TrainingRunCost, deadline: float, budget: float) -> bool:
    """Return whether a run meets its limits."""
    return not missed_limits(run, _finite_limits(deadline, budget))


def _finite_limits(deadline: float, budget: float) -> dict[str, float]:
    return {name: limit for name, limit in (("deadline", deadline), ("budget", budget)) if math.isfinite(limit)}


def _reason(
    runs: Sequence[Training], system: System, deadline: float, budget: float, layout: Mapping[str, Any], largest: int
) -> str:
    axes = _axes_text(layout)
    in_time = [training for training in runs if _within(required_run(training), deadline, math.inf)]
    layout_text = f" with the given layout {axes}" if axes else ""
    # A layout with dp runs on few numbers of chips.
    fixed = f"; {axes} runs on {_sizes(runs)} only: leave dp out, or " if "dp" in layout else "; "
    if not in_time:
        fastest = min(runs, key=lambda training: required_run(training).seconds)
        return (
            f"no number of chips up to {largest:,} ends within {show(deadline, 's')}{layout_text}: the fastest, "
            f"{counted(fastest.chips, 'chip')} of {system.name}, takes {show(required_run(fastest).seconds, 's')}"
            f"{fixed}take a later deadline or a larger batch"
        )
    cheapest = min(in_time, key=lambda training: required_run(training).usd)
    run = required_run(cheapest)
    within = f" within {show(deadline, 's')}" if math.isfinite(deadline) else ""
    return (
        f"no number of chips of {system.name} trains the model{within} for {usd(budget)}{layout_text}: the cheapest, "
        f"{counted(cheapest.chips, 'chip')}, costs {usd(run.usd)} and takes {show(run.seconds, 's')}"
        f"{fixed}take a larger budget{', a later deadline' if within else ''}, fewer tokens or a narrower dtype"
    )


def _axes_text(layout: Mapping[str, Any]) -> str:
    return " ".join(f"{axis}={layout[axis]}" for axis in CHIP_AXES if axis in layout)


def _sizes(runs: Sequence[Training]) -> str:
    *first, last = [f"{training.chips:,}" for training in runs]
    return f"{', '.join(first)} and {last} chips" if first else f"{last} chips"
