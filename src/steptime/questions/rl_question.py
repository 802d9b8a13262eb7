"""The question `rl`: the time of one step of reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final

from steptime.models.model_loading import load_model, resolve_model
from steptime.number_checks import MOST_CHIPS
from steptime.physics.layout import Layout
from steptime.questions.declaration import (
    Reader,
    bind_declared,
    count,
    number,
    question_of_result,
    read_answers,
    rent,
    text,
)
from steptime.questions.subject import SIZES, SUBJECT_GROUP, ParallelSizes, read_machine
from steptime.scaling.rl_step import RlStep, rl_step

STEP_GROUP, PHASE_GROUP = "The step", "Phases"


@dataclass(frozen=True, kw_only=True)
class RlInputs(ParallelSizes):
    """Inputs of `rl`: rollout, log-probabilities, training and transfer of weights."""

    model: Any = text(MISSING, "model: catalogue name, Hugging Face id, or path to a config.json", positional=True)
    system: Any = text(MISSING, "system: catalogue name, or path to a TOML file", positional=True)
    chips: Any = count(64, "number of chips", maximum=MOST_CHIPS, group=STEP_GROUP)
    rollouts: Any = count(2048, "rollouts per step", group=STEP_GROUP)
    prompt: Any = count(256, "prompt tokens per rollout", unit="tokens", group=STEP_GROUP)
    output: Any = count(2048, "mean output tokens per rollout", unit="tokens", group=STEP_GROUP)
    longest: Any = count(16384, "maximum output tokens per rollout", unit="tokens", group=STEP_GROUP)
    spread: Any = number(
        0.7, "spread of output lengths: standard deviation of their logarithm (0: equal lengths)", group=STEP_GROUP
    )
    rollout_share: Any = number(
        1.0,
        "share of the chips that generate, while the others train one step behind; 1: all chips do both in turn (on policy)",
        group=PHASE_GROUP,
    )
    passes: Any = number(2.0, "number of forward passes for log-probabilities", group=PHASE_GROUP)
    updates: Any = count(1, "number of training steps on the rollouts", group=PHASE_GROUP)
    mfu: Any = number(
        None, "MFU of training and log-probabilities: the share of the chips' bf16 rate (0 to 1)", group=PHASE_GROUP,
        default_words="from steptime's training step",
    )  # fmt: skip
    engine: Any = text(
        None, "serving engine of the rollout: a name, or ideal", group=SUBJECT_GROUP, default_words="the system's"
    )
    rent: Any = rent(
        None, "rent: owned (cost of ownership), contract, ondemand, or USD per chip-hour such as 2.10", unit="USD/s",
        default_words="the newest known of contract and on demand", group=SUBJECT_GROUP, metavar="KIND",
    )  # fmt: skip


def solve(values: Mapping[str, Any]) -> RlStep:
    """Return the time of one step of reinforcement learning.

    Args:
        values: Values of `RlInputs` by name, and figures of the machine by path.

    Returns:
        Times of the phases, MFU and cost.
    """
    inputs = bind_declared(RlInputs, values, "rl")
    # Sizes that are not given take the defaults of `Layout`.
    sizes = {name: value for name in SIZES if (value := getattr(inputs, name)) is not None}
    model = load_model(inputs.model) if isinstance(inputs.model, str) else resolve_model(inputs.model)
    return rl_step(
        model, read_machine(values), chips=inputs.chips, rollouts=inputs.rollouts, prompt=inputs.prompt, output=inputs.output,
        longest=inputs.longest, layout=Layout(**sizes, microbatches=sizes.get("pp", 1)), spread=inputs.spread,
        rollout_share=inputs.rollout_share, passes=inputs.passes, mfu=inputs.mfu, updates=inputs.updates, engine=inputs.engine,
    )  # fmt: skip


READS: Final[Mapping[str, Reader]] = {
    "step_time": Reader(meaning="time of a step", unit="s", value=lambda step: step.total),
    "rollout_time": Reader(meaning="time of the rollout", unit="s", value=lambda step: step.rollout),
    "rollout_tail_time": Reader(
        meaning="time of the rollout after 90 % of the rollouts have ended", unit="s", value=lambda step: step.tail
    ),
    "log_probs_time": Reader(meaning="time of log-probabilities", unit="s", value=lambda step: step.log_probs),
    "training_time": Reader(meaning="time of training", unit="s", value=lambda step: step.training),
    "refit_time": Reader(meaning="time to send the new weights", unit="s", value=lambda step: step.refit),
    "mfu": Reader(meaning="MFU of training: the share of the chips' bf16 rate", value=lambda step: step.mfu),
    "usd_per_step": Reader(meaning="rent of a step", unit="USD", value=lambda step: step.usd),
}
RL = question_of_result(
    "rl",
    "the time of one step of reinforcement learning",
    form=RlInputs,
    solve=solve,
    reads=READS,
    shows=("step_time", "rollout_time", "training_time", "usd_per_step"),
    figures=True,
    seconds=0.5,
)


def summary(step: RlStep) -> dict[str, Any]:
    """Return the answers of the question from its result.

    Args:
        step: Result of `solve`.

    Returns:
        Answers by name, in base units.
    """
    return read_answers(READS, step)
