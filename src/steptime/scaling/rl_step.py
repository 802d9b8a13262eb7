"""Time of one RL step: rollout, log-probabilities, training and weight transfer.

The rollout is steptime's decode step at a batch that shrinks as sequences end. Answer lengths are log-normal with a
maximum, and the last sequences run at a very small batch.

Training is steptime's training step (`st.train`: the fastest layout that fits, all answers in `updates` steps). Its
micro-batches are packed, and have room for the longest answer (NeMo RL: `sequence_packing.train_mb_tokens`). A forward
pass for log-probabilities takes a third of its time. With `mfu`, both run at this share of the bf16 rate instead.

The refit gives the new weights to the rollout. Workers gather each tensor whole, or broadcast it to all rollout chips, before
each keeps its part, so that all weights pass the link of each chip (NeMo RL: nvidia-nemo.github.io/blog/2025/08/12,
"Policy parameter gather"; `broadcast_weights_for_collective`). DeepSeek-V3 takes 27 s at 50 GB/s; 35 s were measured. On policy
the training state also leaves the chips for the rollout, and comes back.

On policy, the four phases run one after another on all chips. One step off policy, rollout and training run on separate
chips at the same time. A rollout that may span several steps (partial rollouts, arXiv 2501.12599, section 2.6.2; a queue of
answers) does not wait for its longest answer: its slots stay full. Answers to one prompt share its prefill and KV cache. Tools
keep the slot of an answer for a given time. Rewards, engine starts and idle pipelines are not computed. Published
steps contain them: `overhead` is the median of this additional time, as a share of the computed phases (docs/fit_rl.py).

The layout of the rollout, that of the training and, off policy, the split of the chips are searched together for the shortest
step. It is also the cheapest, because all chips are rented. Rollout layouts of the kind that published steps have come first:
tensor parallelism alone.

The 90 % range is that of published steps of two models, each predicted by the other.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from statistics import NormalDist
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import Impossible, InputError, RangeError, UnknownName
from steptime.hardware.system import System
from steptime.models.model import Model, active_parameters, total_parameters
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import (
    MOST_CHIPS,
    MOST_SEQUENCES,
    MOST_TOKENS,
    Array,
    between,
    divisors,
    positive,
    share,
    whole_number,
)
from steptime.physics.chip_memory import memory_per_chip, sequences_that_fit
from steptime.physics.engine import Engine, engine_for
from steptime.physics.layout import Layout, check_ways, host_chips, select_layouts, shaped, show_layout, stacked, unstacked
from steptime.physics.layout_rules import check_rules
from steptime.physics.layout_space import legal_table, most_spread
from steptime.physics.step import decode_step, prefill_step
from steptime.result_base import Result, unit
from steptime.scaling.law_forms import TRAINING_FLOP, bisect
from steptime.training.training_alternatives import CHIP_MULTIPLES, NothingFits
from steptime.training.training_evidence import ANY, MEASURED, TRAINING_EVIDENCE
from steptime.training.training_job import show_training_layout
from steptime.training.training_planner import train
from steptime.training.training_rules import nearest_divisors
from steptime.units import counted, show

# Standard deviation of lengths over their mean; a guess: answers of one model to one kind of question differ by factors.
SPREAD: Final = 0.8
# Points of the rollout at which the decode step is evaluated.
POINTS: Final = 49
# FLOP per parameter and token of a forward pass.
FORWARD_FLOP: Final = 2.0
BF16_BYTES: Final = 2.0
# Bytes of training state per parameter: weights in bf16, gradients, a copy and two moments in fp32.
STATE_BYTES: Final = 18.0
# Bytes per second of a chip to and from pageable host memory: the moves of DeepSeek-V3's state take 20 of the 55 s of a refit
# (github.com/NVIDIA-NeMo/RL/pull/638), on the 256 chips of its recipe (examples/configs/recipes/llm, 32 hosts of 8).
HOST_RATE: Final = 4.7e9
# Largest number of steps that an answer may span.
MOST_SPANNED: Final = 64
# A split divides whole hosts from this number of hosts on, and tries at most twice this number of parts.
FEWEST_HOSTS, SPLIT_PARTS = 4, 16
# Training sequences are padded to a multiple of these tokens.
PACKED: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RlStep(Result):
    """One RL step with its phases."""

    SCHEMA: ClassVar[str] = "steptime.rl/2"

    model: str = field(metadata=unit("", "model"))
    system: str = field(metadata=unit("", "system"))
    chips: int = field(metadata=unit("", "total chips"))
    rollout_chips: int = field(metadata=unit("", "chips of the rollout; on policy all chips"))
    layout: str = field(metadata=unit("", "layout of a rollout replica"))
    training_layout: str = field(default="", metadata=unit("", "layout of the training; empty if its MFU is given"))
    searched: int = field(
        default=1, metadata=unit("", "searched pairs of a rollout layout and a split of the chips; 1 if both are given")
    )
    evidence: str = field(
        default=ANY, metadata=unit("", "measured if published steps have rollout layouts of this kind, else any")
    )
    unmeasured: str = field(
        default="", metadata=unit("", "rollout layout of the shortest step, if no published step has its kind; else empty")
    )
    unmeasured_saving: float = field(
        default=0.0, metadata=unit("", "share of the step time that the unmeasured layout would save")
    )
    rollouts: int = field(metadata=unit("", "sequences per step"))
    output: float = field(metadata=unit("tokens", "mean length of an answer"))
    longest: float = field(metadata=unit("tokens", "longest answer"))
    rollout: float = field(metadata=unit("s", "time of the rollout"))
    tail: float = field(metadata=unit("s", "part of the rollout after 90 % of the answers are done"))
    log_probs: float = field(metadata=unit("s", "time of the forward passes for log-probabilities"))
    training: float = field(metadata=unit("s", "time of training on the answers"))
    refit: float = field(metadata=unit("s", "time to give the new weights to the rollout"))
    overhead_share: float = field(
        default=0.0, metadata=unit("", "time of published steps beyond computed phases, as a share of the phases")
    )
    ends: tuple[float, float] = field(
        default=(1.0, 1.0), metadata=unit("", "90 % range of published steps over computed phases", left_out=True)
    )
    on_policy: bool = field(metadata=unit("", "whether the phases run one after another on the same chips"))
    rent: float = field(metadata=unit("USD/s", "rent per chip"))
    mfu: float = field(metadata=unit("", "MFU of training, of the bf16 rate, with 6 N FLOP per token"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "warnings"))
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "total": unit("s", "time of the step"),
        "overhead": unit("s", "time of rewards, engine starts and other parts that are not computed"),
        "low": unit("s", "lower end of the 90 % range of the step"),
        "high": unit("s", "upper end of the 90 % range of the step"),
        "usd": unit("USD", "rent of the step", key="usd"),
    }

    @property
    def computed(self) -> float:
        """Time of the phases: their sum, or the longer of rollout and training."""
        trained = self.log_probs + self.training
        return (self.rollout + trained if self.on_policy else max(self.rollout, trained)) + self.refit

    @property
    def overhead(self) -> float:
        """Time of the parts that are not computed."""
        return self.computed * self.overhead_share

    @property
    def total(self) -> float:
        """Time of the step."""
        return self.computed + self.overhead

    @property
    def low(self) -> float:
        """Lower end of the 90 % range."""
        return self.computed * self.ends[0]

    @property
    def high(self) -> float:
        """Upper end of the 90 % range."""
        return self.computed * self.ends[1]

    @property
    def usd(self) -> float:
        """Rent of the step."""
        return self.total * self.chips * self.rent

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the step and the times of its phases.

        Returns:
            Title, and lines by name.
        """
        kind = "on policy" if self.on_policy else f"one step off policy, {self.rollout_chips} chips for the rollout"
        parts = {"rollout": self.rollout, "log-probabilities": self.log_probs, "training": self.training, "refit": self.refit}
        title = f"RL step: {self.rollouts:,} rollouts of {self.model} on {self.chips} chips of {self.system}, {kind}"
        span = f"{show(self.low, 's')} to {show(self.high, 's')}"
        parts["overhead"] = self.overhead
        return title, {
            "step": f"{show(self.total, 's')} (90 % range {span})",
            **{name: show(value, "s") for name, value in parts.items()},
        }


def rl_step(
    model: ModelLike,
    system: SystemLike,
    *,
    chips: int,
    rollouts: int,
    output: float,
    longest: float,
    prompt: float = 256,
    layout: Layout | None = None,
    rollout_share: float | None = 1.0,
    passes: float = 2.0,
    spread: float = SPREAD,
    mfu: float | None = None,
    updates: int = 1,
    group: int = 1,
    tool_seconds: float = 0.0,
    steps_spanned: int = 1,
    engine: Engine | str | None = None,
    evidence: str = MEASURED,
) -> RlStep:
    """Return the time of an RL step.

    The step is on policy, or one step off policy where `rollout_share` is below 1 or None.

    Args:
        model: Model, or its name.
        system: System, or its name.
        chips: Total chips.
        rollouts: Sequences per step.
        output: Mean answer [tokens].
        longest: Longest answer [tokens].
        prompt: Prompt [tokens].
        layout: Layout of a rollout replica; that of the shortest step if None.
        rollout_share: Share of the chips for the rollout; 1 for on policy, None for that of the shortest step off policy.
        passes: Forward passes for log-probabilities, of the policy and its reference.
        spread: Standard deviation of lengths over their mean, before the longest are cut.
        mfu: MFU of log-probabilities and training, instead of steptime's training step.
        updates: Training steps on the answers.
        group: Answers per prompt, which share the prefill and the KV cache of the prompt.
        tool_seconds: Time in which an answer waits for tools and sandboxes [s].
        steps_spanned: Steps that an answer may span; 1 if each step waits for its longest answer.
        engine: Serving engine of the rollout, or its name.
        evidence: "measured" for rollout layouts of kinds that published steps have if any of them fits, or "any".

    Returns:
        Time of the step and its phases.

    Raises:
        RangeError: If the replicas do not fit the chips, or a value is out of its range.
        NothingFits: If no layout can train the model on the chips.
        Impossible: If the model does not fit a rollout replica.

    >>> step = rl_step("qwen3-30b-a3b", "hgx-h100", chips=32, rollouts=2048, output=3203, longest=4096, layout=Layout(tp=2))
    >>> step.rollout > step.training > step.refit
    True
    """
    described, machine = resolve_model(model), resolve_system(system)
    replica_layout = None if layout is None else check_ways(layout)
    if replica_layout is not None:
        check_rules(replica_layout, described, machine)
    _check(rollouts, output, longest, prompt, updates)
    between("passes", passes, 0.0, 100.0)
    count = whole_number("chips", chips, maximum=MOST_CHIPS)
    if rollout_share is not None:
        share("rollout share", positive("rollout share", rollout_share))
    if evidence not in TRAINING_EVIDENCE:
        raise UnknownName("evidence", evidence, TRAINING_EVIDENCE, f"Known: {', '.join(TRAINING_EVIDENCE)}.")
    if rollouts % whole_number("group", group, maximum=rollouts):
        raise RangeError(f"group: must divide the {rollouts:,} rollouts, got {group}; try {nearest_divisors(rollouts, group)}")
    on_policy = rollout_share == 1
    serving = engine_for(machine, engine)

    # The rollout of all layouts on each number of chips.
    answers = Answers(
        lengths=answer_lengths(output, longest, spread, rollouts), prompt=prompt,
        group=group, tool_seconds=between("tool seconds", tool_seconds, 0.0, 1e6),
        spanned=whole_number("steps spanned", steps_spanned, maximum=MOST_SPANNED),
    )  # fmt: skip
    pools = [
        _rollout_pool(described, machine, serving, replica_layout, answers, pool_chips)
        for pool_chips in _rollout_chips(machine, count, rollout_share)
    ]
    if not any(np.isfinite(pool.seconds).any() for pool in pools):
        raise _misfit(described, machine, serving, answers, pools[-1], count, replica_layout)
    pools = [pool for pool in pools if len(pool.seconds)]

    work = (rollouts, prompt + output, prompt + longest, mfu, updates)

    @cache
    def train_beside(rollout_chips: int) -> tuple[float, str] | NothingFits:
        try:
            return _training(described, machine, count if on_policy else count - rollout_chips, *work)
        except NothingFits as misfit:
            return misfit

    learned = 1 + passes * FORWARD_FLOP / TRAINING_FLOP
    shortest = _shortest(pools, train_beside, learned, on_policy=on_policy)
    if shortest is None:
        fitting = (pool for pool in pools if np.isfinite(pool.shortest))
        problem = next(trained for pool in fitting if isinstance(trained := train_beside(pool.chips), NothingFits))
        raise NothingFits(problem.misfit, _chips_that_train(described, machine, count, rollout_share, work)) from None
    # Layouts of measured kinds come first.
    covered = [pool.of_measured_kinds() for pool in pools] if evidence == MEASURED else []
    best = _shortest(covered, train_beside, learned, on_policy=on_policy) or shortest
    pool, index, (training_seconds, training_layout) = best.pool, best.index, best.trained
    training_chips = count if on_policy else count - pool.chips
    renewed = refit_seconds(described, machine, count, on_policy)
    size = int(pool.sizes[index])
    published = _published_steps() if serving.name != "ideal" else {"factor": 1.0, "low": 1.0, "high": 1.0}
    return RlStep(
        model=described.name,
        system=machine.name,
        chips=count,
        rollout_chips=pool.chips,
        layout=show_layout(unstacked(pool.layouts)[index]),
        training_layout=training_layout,
        searched=sum(int(np.isfinite(option.seconds).sum()) for option in (pools if best is shortest else covered)),
        evidence=MEASURED if pool.measured[index] else ANY,
        unmeasured=show_layout(unstacked(shortest.pool.layouts)[shortest.index]) if shortest.seconds < best.seconds else "",
        unmeasured_saving=(best.seconds - shortest.seconds) / (best.seconds + renewed),
        rollouts=rollouts,
        output=output,
        longest=longest,
        rollout=float(pool.seconds[index]),
        tail=float(pool.tails[index]),
        log_probs=passes * FORWARD_FLOP / TRAINING_FLOP * training_seconds,
        training=training_seconds,
        refit=renewed,
        overhead_share=published["factor"] - 1,
        ends=(published["low"], published["high"]),
        on_policy=on_policy,
        rent=float(machine.rent.typical),
        mfu=TRAINING_FLOP
        * float(active_parameters(described))
        * rollouts
        * (prompt + output)
        / (training_seconds * training_chips * float(machine.chip.peak["bf16"])),
        notes=tuple(_notes(described, machine, pool.chips - int(pool.replicas[index]) * size, size, prompt + longest)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """A rollout layout of a pool with its training: seconds of both, without the refit."""

    seconds: float
    pool: _Pool
    index: int
    trained: tuple[float, str]


def _shortest(
    pools: Sequence[_Pool], train_beside: Callable[[int], tuple[float, str] | NothingFits], learned: float, *, on_policy: bool
) -> _Choice | None:
    """Return the choice with the shortest step; None if no rollout or no training fits.

    learned: time of training with log-probabilities, over that of training.
    """
    best: _Choice | None = None
    # A pool with a faster rollout than the best step so far may be better; the others cannot.
    for pool in sorted(pools, key=lambda pool: pool.shortest):
        if pool.shortest >= (math.inf if best is None else best.seconds):
            break
        trained = train_beside(pool.chips)
        if isinstance(trained, NothingFits):
            continue
        learning = trained[0] * learned
        totals = pool.seconds + learning if on_policy else np.maximum(pool.seconds, learning)
        index = int(np.argmin(totals))
        if best is None or totals[index] < best.seconds:
            best = _Choice(seconds=float(totals[index]), pool=pool, index=index, trained=trained)
    return best


def is_measured_rollout(layouts: Layout) -> Array:
    """Return whether published steps have rollout layouts of this kind: tensor parallelism alone.

    Args:
        layouts: Layouts of a replica.

    Returns:
        Booleans.

    References:
        NeMo RL 0.6, column [TP, PP] of generation: 1 to 32 tensor-parallel ranks, one stage (`data/rl_steps.toml`).
    """
    return np.asarray(np.logical_and.reduce([np.asarray(getattr(layouts, name)) == 1 for name in ("pp", "dp", "cp", "ep")]))


@cache
def _published_steps() -> dict[str, Any]:
    return tomllib.loads((resources.files("steptime") / "data" / "rl_steps.toml").read_text(encoding="utf-8"))


def _notes(model: Model, system: System, idle: int, size: int, tokens: float) -> Iterator[str]:
    """Yield warnings: idle chips, answers beyond the context, an unknown rent."""
    if idle:
        yield f"{counted(idle, 'chip')} of the rollout {'idles' if idle == 1 else 'idle'}: a replica takes {size}"
    if tokens > model.max_context:
        yield f"prompts with answers of {tokens:,.0f} tokens exceed the context of the model, {model.max_context:,.0f}"
    if not np.isfinite(float(system.rent.typical)):
        yield f"no rent of {system.name} is known; give one, such as --rent 2.10"


def _check(rollouts: int, output: float, longest: float, prompt: float, updates: int) -> None:
    """Check the sizes of prompts and answers."""
    whole_number("rollouts", rollouts, maximum=MOST_SEQUENCES)
    whole_number("updates", updates, maximum=rollouts)
    positive("prompt", prompt, maximum=MOST_TOKENS)
    positive("longest", longest, maximum=MOST_TOKENS)
    if not 0 < output < longest:
        raise RangeError(
            f"longest: must be greater than the mean output of {output:,g} tokens, got {longest:,g}; raise it, or lower output"
        )


def _training(
    model: Model, system: System, chips: int, rollouts: int, sequence_tokens: float, most_tokens: float, mfu: float | None,
    updates: int,
) -> tuple[float, str]:  # fmt: skip
    """Return the seconds of training on all answers with their prompts, and the layout; "" with a given MFU."""
    if mfu is not None:
        rate = float(system.chip.peak["bf16"]) * share("mfu", positive("mfu", mfu)) * chips
        return TRAINING_FLOP * float(active_parameters(model)) * rollouts * sequence_tokens / rate, ""
    length = int(np.ceil(sequence_tokens / PACKED)) * PACKED
    batch = int(np.ceil(rollouts / updates))
    # A micro-batch of answers of mean length has room for the longest, unless all of them are shorter together.
    packed = next((size for size in divisors(batch) if size * length >= most_tokens), batch)
    training_plan = train(model, system, chips=chips, seq=length, batch=batch, least_micro_batch=packed, changes=False)
    return updates * float(np.asarray(training_plan.step.total)), show_training_layout(training_plan.step.layout)


def _chips_that_train(model: Model, system: System, chips: int, rollout_share: float | None, work: tuple[Any, ...]) -> str:
    """Return the smallest multiple of the chips that trains the model, as text; half of them train if the split is open."""
    rollout_share = 0.5 if rollout_share is None else rollout_share
    for total in (chips * factor for factor in CHIP_MULTIPLES if chips * factor <= MOST_CHIPS):
        try:
            _training(model, system, total if rollout_share == 1 else total - round(total * rollout_share), *work)
        except InputError:
            continue
        return f"; it fits with --chips {total}"
    return "; take chips with more memory, or a smaller model"


def _wider_layout(model: Model, system: System, engine: Engine, layout: Layout, context: float, chips: int) -> str:
    """Return the smallest tensor parallelism with which a sequence fits a replica, as text."""
    for tp in (int(layout.tp) * factor for factor in CHIP_MULTIPLES):
        wider = replace(layout, tp=tp)
        if float(sequences_that_fit(model, system, context=context, layout=wider, engine=engine)) >= 1:
            size = int(wider.tp * wider.pp * wider.dp * wider.cp)
            return f"take --tp {tp}" + (f", a replica of {size} chips: the rollout has {chips}" if size > chips else "")
    return "take stages too (--pp), shorter rollouts (--output), or chips with more memory"


def answer_lengths(mean: float, longest: float, spread: float, count: int) -> Array:
    """Return the lengths of the answers, longest first.

    Lengths are quantiles of a log-normal distribution, limited to the longest. The median is chosen so that the mean of the
    limited lengths is `mean`.

    Args:
        mean: Mean answer [tokens].
        longest: Longest answer [tokens].
        spread: Standard deviation of lengths over their mean, before the longest are cut.
        count: Number of answers.

    Returns:
        Tokens per answer, (count,).

    >>> lengths = answer_lengths(3200, 4096, 0.8, 128)
    >>> round(float(lengths.mean())), float(lengths[0])
    (3200, 4096.0)
    """
    between("spread", spread, 0.0, 5.0)
    sigma = math.sqrt(math.log1p(spread**2))
    scores = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])[::-1]

    def lengths(median: Array) -> Array:
        return np.asarray(np.minimum(median * np.exp(sigma * scores), longest))

    return lengths(bisect(lambda median: lengths(median).mean() >= mean, 1e-3 * mean, 1e6 * longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of a step.

    lengths: tokens of each, longest first. prompt: tokens of a prompt. group: answers per prompt. tool_seconds: of an answer.
    spanned: steps that an answer may span.
    """

    lengths: Array
    prompt: float
    group: int
    tool_seconds: float
    spanned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """The rollout on a number of chips with each of n layouts, (n,).

    sizes: chips of a replica. replicas: replicas on the chips. seconds: of the rollout; infinite where the model does not fit.
    tails: part after 90 % of the answers are done.
    """

    chips: int
    layouts: Layout
    sizes: Array
    replicas: Array
    seconds: Array
    tails: Array

    @property
    def shortest(self) -> float:
        """Time of the fastest rollout [s]."""
        return float(self.seconds.min())

    @property
    def measured(self) -> Array:
        """Whether published steps have layouts of this kind."""
        return np.broadcast_to(is_measured_rollout(self.layouts), self.seconds.shape)

    def of_measured_kinds(self) -> _Pool:
        """Return the rollout with layouts of measured kinds; the others do not fit."""
        return replace(self, seconds=np.where(self.measured, self.seconds, np.inf))


def refit_seconds(model: Model, system: System, chips: int, on_policy: bool) -> float:
    """Return the time to give new weights to the rollout.

    Args:
        model: The model.
        system: The system.
        chips: Chips that train and generate.
        on_policy: Whether the same chips do both, so that the training state moves to host memory and back.

    Returns:
        Seconds.

    >>> from steptime.catalog.hardware_loading import load_system
    >>> from steptime.models.model_loading import load_model
    >>> model, system = load_model("deepseek-v3"), load_system("hgx-h100")
    >>> [round(refit_seconds(model, system, 256, on_policy)) for on_policy in (False, True)]
    [27, 47]
    """
    parameters = float(total_parameters(model))
    link = next(domain.link for domain in system.domains if np.all(domain.size >= chips))
    moved = 2 * STATE_BYTES * parameters / chips / HOST_RATE if on_policy else 0.0
    return BF16_BYTES * parameters / float(link.bandwidth) + moved


def _rollout_chips(system: System, chips: int, rollout_share: float | None) -> list[int]:
    """Return the numbers of rollout chips to try.

    From four hosts on, a split divides whole hosts, in at most 32 parts.
    """
    if rollout_share is None:
        host = host_chips(system)
        hosts = chips // host
        part = host * max(1, 2 ** int(math.log2(hosts / SPLIT_PARTS))) if hosts >= FEWEST_HOSTS else 1
        if chips < 2:
            raise RangeError(f"chips: off policy, some generate and others train, got {chips}; take 2 or more")
        return list(range(part, chips, part))
    making = chips if rollout_share == 1 else round(chips * rollout_share)
    if making == chips and rollout_share != 1:
        raise RangeError(
            f"rollout_share: {rollout_share:g} of {chips} chips leaves none to train; take a smaller share, or 1 for on policy"
        )
    return [making]


def _rollout_pool(model: Model, system: System, engine: Engine, layout: Layout | None, answers: Answers, chips: int) -> _Pool:
    """Return the rollout of each layout of a replica that fits the chips: of the given one, or of all legal ones."""
    if layout is None:
        # A layout with redundant experts cannot be given by --tp, --pp, --dp, --ep and --cp.
        table = legal_table(model, system, chips, microbatches=(1,), engine=engine)
        table = select_layouts(table, np.asarray(table.redundant_experts) == 0)
        layouts = replace(table, replicas=np.ones_like(table.tp))
    else:
        layouts = stacked([layout] if int(layout.chips) <= chips else [])
    sizes = np.asarray(layouts.chips)
    counts = chips // sizes
    seconds, tails = _rollout(model, system, engine, layouts, counts, answers)
    return _Pool(chips=chips, layouts=layouts, sizes=sizes, replicas=counts, seconds=seconds, tails=tails)


def _misfit(
    model: Model, system: System, engine: Engine, answers: Answers, pool: _Pool, chips: int, layout: Layout | None
) -> InputError:
    """Return the error of the largest pool, where no layout of a rollout fits."""
    if layout is None:
        conventional = [row for row in unstacked(pool.layouts) if row.dp == row.cp == 1]
        layout = most_spread(conventional) if conventional else Layout()
    size = int(layout.chips)
    if size > pool.chips:
        return RangeError(
            f"a replica takes {counted(size, 'chip')}, and the rollout has {pool.chips} of {chips}; take a smaller layout"
        )
    context = answers.prompt + float(answers.lengths.mean())
    room = memory_per_chip(model, system, batch=1, context=context, layout=layout, engine=engine)
    return Impossible(
        f"{model.name} does not fit a replica of {counted(size, 'chip')}: each chip needs "
        f"{show(float(room.used), 'B')} and has {show(float(room.capacity), 'B')}; "
        + _wider_layout(model, system, engine, layout, context, pool.chips)
    )


def _rollout(
    model: Model, system: System, engine: Engine, layouts: Layout, replica_counts: Array, answers: Answers
) -> tuple[Array, Array]:
    """Return the time of the rollout with each of n layouts, and its part after 90 % of the answers are done, (n,).

    Answers are divided in turn over the replicas; the replica with the longest answer sets the time. It is infinite where the
    model does not fit.
    """
    # The answers of a replica are every r-th of all answers, of which the first is the longest.
    by_replicas = {int(r): answers.lengths[:: int(r)] for r in np.unique(replica_counts)}
    means = np.array([by_replicas[int(r)].mean() for r in replica_counts])
    context = answers.prompt / answers.group + means
    seats = np.broadcast_to(sequences_that_fit(model, system, context=context, layout=layouts, engine=engine), means.shape)
    seconds, tails = np.full(len(means), np.inf), np.full(len(means), np.inf)
    rows = np.flatnonzero(seats >= 1)
    if not len(rows):
        return seconds, tails
    layouts, means, groups = select_layouts(layouts, rows), means[rows], np.asarray(layouts.dp)[rows]
    lengths = [by_replicas[int(replica_counts[row])] for row in rows]
    counts = np.array([len(row) for row in lengths])
    # Answers of several steps fill the slots.
    slots = np.minimum(seats[rows], answers.spanned * counts).astype(int)

    def full_step(batch: Array) -> Array:
        middle = answers.prompt + means / 2
        return np.asarray(decode_step(model, system, batch=batch, context=middle, layout=layouts, engine=engine).total)

    prefill = prefill_step(model, system, tokens=answers.prompt, layout=layouts, engine=engine).total
    prefill_seconds = np.asarray(prefill) * counts / answers.group / groups
    # More sequences than slots: further sequences take the slots of finished ones, at a full batch.
    together = np.minimum(counts, slots)
    busy = means * full_step(together) + answers.tool_seconds
    waiting = np.where(counts > together, (counts - together) / together * busy, 0.0)
    # The last batch is a sample of all lengths, with the longest.
    last = [
        sample[np.linspace(0, len(sample) - 1, batch).round().astype(int)] if len(sample) > batch else sample
        for sample, batch in zip(lengths, together.tolist(), strict=True)
    ]

    # Integrate the decode step over the positions, at the batch of sequences that still run.
    positions = np.linspace(0.0, float(answers.lengths[0]), POINTS)
    alive = np.array([np.maximum(1, np.searchsorted(-sample, -positions, side="left")) for sample in last])
    batch = np.ceil(alive / groups[:, None]) * groups[:, None]
    steps = decode_step(
        model, system, batch=batch, context=answers.prompt + np.maximum(positions, 1.0), layout=shaped(layouts, 1),
        engine=engine,
    ).total  # fmt: skip
    steps = np.broadcast_to(steps, batch.shape)
    areas = np.diff(positions) * (steps[:, 1:] + steps[:, :-1]) / 2
    elapsed = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(areas, axis=1)], axis=1)
    ninth = [sample[min(len(sample) - 1, len(sample) // 10)] for sample in last]
    nine = np.array([np.interp(tokens, positions, row) for tokens, row in zip(ninth, elapsed, strict=True)])
    until_longest = prefill_seconds + waiting + elapsed[:, -1] + answers.tool_seconds
    if answers.spanned == 1:
        seconds[rows], tails[rows] = until_longest, elapsed[:, -1] - nine
        return seconds, tails
    flowing = prefill_seconds + counts / slots * (means * full_step(slots) + answers.tool_seconds)
    seconds[rows], tails[rows] = np.maximum(flowing, until_longest / answers.spanned), 0.0
    return seconds, tails
