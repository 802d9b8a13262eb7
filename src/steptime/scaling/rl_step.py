r"""The time of one step of RL: rollout, log-probabilities, training and the refit of the rollout's weights.

The rollout is steptime's own decode, at a batch that shrinks as sequences end: lengths are log-normal with a longest one, and
the last sequences run nearly alone. Training is steptime's own step (`st.train`: the fastest layout that fits, all answers in
`updates` steps), and log-probabilities are forward passes at its pace, a third of it each; or both at a share of the chip's
bf16 rate that is given. The refit sends the weights once. On policy the four follow one another on all
chips; one step off, rollouts run on chips of their own while the others train on the step before. Left out: rewards, the
environment, starts of engines and what else lies between phases, which published steps hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import Impossible, RangeError
from steptime.hardware.system import System
from steptime.models.model import Model, active_parameters, total_parameters
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import MOST_CHIPS, MOST_SEQUENCES, MOST_TOKENS, Array, between, positive, share, whole_number
from steptime.physics.chip_memory import memory_per_chip, sequences_that_fit
from steptime.physics.engine import Engine, engine_for
from steptime.physics.layout import Layout, check_ways
from steptime.physics.step import decode_step, prefill_step
from steptime.result_base import Result, unit
from steptime.scaling.compute_optimal import TRAINING_FLOP
from steptime.training.training_planner import train
from steptime.units import counted, show

SPREAD: Final = 0.7  # of the logarithm of lengths; a guess: answers of one model to one kind of question differ by factors
POINTS: Final = 49  # of the rollout at which its step is reckoned
FORWARD_FLOP: Final = 2.0
BF16_BYTES: Final = 2.0
HALVINGS: Final = 60
PACKED: Final = 64  # tokens of which a training sequence is a multiple


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RlStep(Result):
    """One step of RL in its parts."""

    SCHEMA: ClassVar[str] = "steptime.rl/2"

    model: str = field(metadata=unit("", "the model"))
    system: str = field(metadata=unit("", "the machine"))
    chips: int = field(metadata=unit("", "chips in all"))
    rollout_chips: int = field(metadata=unit("", "chips that roll out; on policy all of them"))
    layout: str = field(metadata=unit("", "of a replica that rolls out"))
    rollouts: int = field(metadata=unit("", "sequences of a step"))
    output: float = field(metadata=unit("tokens", "mean length of an answer"))
    longest: float = field(metadata=unit("tokens", "longest answer"))
    rollout: float = field(metadata=unit("s", "making the answers"))
    tail: float = field(metadata=unit("s", "of it, after nine in ten answers were done"))
    log_probs: float = field(metadata=unit("s", "forward passes for log-probabilities"))
    training: float = field(metadata=unit("s", "training on them"))
    refit: float = field(metadata=unit("s", "sending the new weights"))
    on_policy: bool = field(metadata=unit("", "whether one phase follows the other on the same chips"))
    rent: float = field(metadata=unit("USD/s", "rent of a chip"))
    mfu: float = field(metadata=unit("", "share of the bf16 rate that training reaches, 6 N a token"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "what is to be minded"))
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "total": unit("s", "the step"),
        "usd": unit("USD", "rent of the step", key="usd"),
    }

    @property
    def total(self) -> float:
        """Time of the step: phases one after the other, or the longer of rollout and training."""
        trained = self.log_probs + self.training
        return (self.rollout + trained if self.on_policy else max(self.rollout, trained)) + self.refit

    @property
    def usd(self) -> float:
        """Rent of the step."""
        return self.total * self.chips * self.rent

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the step and its parts."""
        kind = "on policy" if self.on_policy else f"one step off, {self.rollout_chips} chips roll out"
        parts = {"rollout": self.rollout, "log-probabilities": self.log_probs, "training": self.training, "refit": self.refit}
        title = f"RL step: {self.rollouts:,} rollouts of {self.model} on {self.chips} chips of {self.system}, {kind}"
        return title, {"step": show(self.total, "s"), **{name: show(value, "s") for name, value in parts.items()}}


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
    rollout_share: float = 1.0,
    passes: float = 2.0,
    spread: float = SPREAD,
    mfu: float | None = None,
    updates: int = 1,
    engine: Engine | str | None = None,
) -> RlStep:
    """Return the time of a step of RL on `chips` chips, on policy, or one step off where `rollout_share` of them roll out.

    rollouts: sequences of a step; output, longest: mean and longest answer [tokens]; prompt [tokens]; layout: of a replica that
    rolls out; passes: forward passes for log-probabilities, of the policy and of its reference; spread: of the logarithm of
    lengths; mfu: of log-probabilities and training, in place of steptime's own training step; updates: training steps on the
    answers. Raises RangeError where replicas do not fit the chips, NothingFits where no layout trains the model on them.

    >>> step = rl_step("qwen3-30b-a3b", "hgx-h100", chips=32, rollouts=2048, output=3203, longest=4096, layout=Layout(tp=2))
    >>> step.rollout > step.training > step.refit
    True
    """
    described, machine = resolve_model(model), resolve_system(system)
    replica_layout = check_ways(Layout() if layout is None else layout)
    _check(rollouts, output, longest, prompt, updates)
    between("passes", passes, 0.0, 100.0)
    count = whole_number("chips", chips, maximum=MOST_CHIPS)
    share("rollout share", positive("rollout share", rollout_share))
    on_policy = rollout_share == 1
    making = count if on_policy else round(count * rollout_share)
    size = int(replica_layout.tp * replica_layout.pp * replica_layout.dp * replica_layout.cp)
    replicas = making // size
    if making == count and not on_policy:
        raise RangeError(
            f"of {count} chips a share of {rollout_share:g} leaves none to train; take a smaller one, or 1: on policy"
        )
    if not replicas:
        raise RangeError(f"a replica takes {size} chips, and {making} of {count} roll out")
    lengths = answer_lengths(output, longest, spread, rollouts)[::replicas]  # dealt out in turn: one replica has the longest
    rollout, tail = _rollout(described, machine, engine_for(machine, engine), replica_layout, prompt, lengths)
    training = count if on_policy else count - making
    trained = _training(described, machine, training, rollouts, prompt + output, mfu, updates)
    return RlStep(
        model=described.name,
        system=machine.name,
        chips=count,
        rollout_chips=making,
        layout=f"tp{replica_layout.tp} pp{replica_layout.pp} dp{replica_layout.dp} ep{replica_layout.ep}",
        rollouts=rollouts,
        output=output,
        longest=longest,
        rollout=rollout,
        tail=tail,
        log_probs=passes * FORWARD_FLOP / TRAINING_FLOP * trained,
        training=trained,
        refit=float(total_parameters(described)) * BF16_BYTES / size / float(machine.domains[-1].link.bandwidth),
        on_policy=on_policy,
        rent=float(machine.rent.typical),
        mfu=TRAINING_FLOP
        * float(active_parameters(described))
        * rollouts
        * (prompt + output)
        / (trained * training * float(machine.chip.peak["bf16"])),
        notes=tuple(_notes(described, machine, making - replicas * size, size, prompt + longest)),
    )


def _notes(model: Model, system: System, idle: int, size: int, tokens: float) -> Iterator[str]:
    """Yield what is to be minded: chips that idle, answers beyond the context, a rent that is not known."""
    if idle:
        yield f"{counted(idle, 'chip')} of those that roll out {'idles' if idle == 1 else 'idle'}: a replica takes {size}"
    if tokens > model.max_context:
        yield f"prompts with answers of {tokens:,.0f} tokens exceed the model's context of {model.max_context:,.0f}"
    if not np.isfinite(float(system.rent.typical)):
        yield f"no rent of {system.name} is known; give one, such as --rent 2.10"


def _check(rollouts: int, output: float, longest: float, prompt: float, updates: int) -> None:
    """Raise RangeError for answers that cannot be."""
    whole_number("rollouts", rollouts, maximum=MOST_SEQUENCES)
    whole_number("updates", updates, maximum=rollouts)
    positive("prompt", prompt, maximum=MOST_TOKENS)
    positive("longest", longest, maximum=MOST_TOKENS)
    if not 0 < output < longest:
        raise RangeError(f"the mean answer lies between 0 and the longest of {longest:g} tokens, not {output:g}")


def _training(
    model: Model, system: System, chips: int, rollouts: int, sequence_tokens: float, mfu: float | None, updates: int
) -> float:
    """Return the seconds in which answers of `sequence_tokens` [tokens] with their prompts are trained on."""
    if mfu is not None:
        rate = float(system.chip.peak["bf16"]) * share("mfu", positive("mfu", mfu)) * chips
        return TRAINING_FLOP * float(active_parameters(model)) * rollouts * sequence_tokens / rate
    length = int(np.ceil(sequence_tokens / PACKED)) * PACKED
    batch = int(np.ceil(rollouts / updates))
    training_plan = train(model, system, chips=chips, seq=length, batch=batch, changes=False)
    return updates * float(np.asarray(training_plan.step.total))


def answer_lengths(mean: float, longest: float, spread: float, count: int) -> Array:
    """Return lengths of `count` answers, longest first: quantiles of a log-normal distribution that is cut at the longest.

    Its median is such that the mean of what is left is `mean` [tokens].

    >>> lengths = answer_lengths(3200, 4096, 0.7, 128)
    >>> round(float(lengths.mean())), float(lengths[0])
    (3200, 4096.0)
    """
    between("spread", spread, 0.0, 5.0)
    scores = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])[::-1]
    low, high = np.log(1e-3 * mean), np.log(1e6 * longest)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        short = np.minimum(np.exp(middle + spread * scores), longest).mean() < mean
        low, high = (middle, high) if short else (low, middle)
    return np.asarray(np.minimum(np.exp(high + spread * scores), longest))


def _rollout(
    model: Model, system: System, engine: Engine, layout: Layout, prompt: float, lengths: Array
) -> tuple[float, float]:
    """Return the time in which a replica makes answers that begin together, and that of it after nine in ten are done."""
    mean = float(lengths.mean())
    seats = float(sequences_that_fit(model, system, context=prompt + mean, layout=layout, engine=engine))
    if seats < 1:
        size = int(layout.tp * layout.pp * layout.dp * layout.cp)
        room = memory_per_chip(model, system, batch=1, context=prompt + mean, layout=layout, engine=engine)
        raise Impossible(
            f"{model.name} does not fit a replica of {counted(size, 'chip')}: each would hold "
            f"{show(float(room.used), 'B')} of the {show(float(room.capacity), 'B')} that it has; give more ways, such as --tp "
            f"{2 * int(layout.tp)}"
        )
    prefill_seconds = (
        float(prefill_step(model, system, tokens=prompt, layout=layout, engine=engine).total) * len(lengths) / int(layout.dp)
    )
    waiting = 0.0
    together = min(len(lengths), int(seats))
    if len(lengths) > together:  # others take the seats of those that end, at a full batch
        step = float(decode_step(model, system, batch=together, context=prompt + mean / 2, layout=layout, engine=engine).total)
        waiting = (len(lengths) - together) * mean / together * step
        lengths = lengths[np.linspace(0, len(lengths) - 1, together).round().astype(int)]  # of all, the longest among them
    positions = np.linspace(0.0, float(lengths[0]), POINTS)
    alive = np.maximum(1, np.searchsorted(-lengths, -positions, side="left"))
    groups = int(layout.dp)
    batch = np.ceil(alive / groups) * groups
    steps = decode_step(
        model, system, batch=batch, context=prompt + np.maximum(positions, 1.0), layout=layout, engine=engine
    ).total
    seconds = np.append(0.0, np.cumsum(np.diff(positions) * (np.asarray(steps)[1:] + np.asarray(steps)[:-1]) / 2))
    nine = float(np.interp(lengths[min(len(lengths) - 1, len(lengths) // 10)], positions, seconds))
    return prefill_seconds + waiting + float(seconds[-1]), float(seconds[-1]) - nine
