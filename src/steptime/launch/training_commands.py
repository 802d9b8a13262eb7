"""The commands that start a training run in Megatron-LM, Megatron-Bridge, torchtitan or MaxText.

If a stack cannot run a layout, one message gives all reasons. Nothing is left out without a message, and nothing else is
started in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from steptime.errors import LayoutError, UnknownName
from steptime.hardware.system import System
from steptime.launch import maxtext, megatron, megatron_bridge, torchtitan
from steptime.launch.shell_script import Command, comments, escape_unprintable, spoken
from steptime.launch.training_run import Run, training_run
from steptime.models.model import Model
from steptime.training.training_job import TrainingJob, TrainingLayout

# Names of the stacks in messages, and the modules that write their commands.
TITLES: Final = {
    "megatron": "Megatron-LM", "megatron-bridge": "Megatron-Bridge", "torchtitan": "torchtitan", "maxtext": "MaxText",
}  # fmt: skip
WRITERS: Final[Mapping[str, ModuleType]] = {
    "megatron": megatron, "megatron-bridge": megatron_bridge, "torchtitan": torchtitan, "maxtext": maxtext,
}  # fmt: skip
STACKS: Final = tuple(WRITERS)


def unable(model: Model, job: TrainingJob, layout: TrainingLayout, system: System, stack: str) -> str:
    """Return the reasons why a stack cannot run a layout.

    Args:
        model: The model.
        job: Sequence length, batch, formats and optimizer.
        layout: One training layout.
        system: The machine.
        stack: Name of the stack.

    Returns:
        All reasons in one line; "" if it can.
    """
    return _refusal(stack, training_run(model, job, layout, system))


def training_commands(model: Model, job: TrainingJob, layout: TrainingLayout, system: System, stack: str) -> list[Command]:
    """Return the commands that start a training run, each on every host.

    Args:
        model: The model.
        job: Sequence length, batch, formats and optimizer.
        layout: One training layout.
        system: The machine.
        stack: Name of the stack.

    Returns:
        Commands with environment, notes and files.

    Raises:
        LayoutError: If the stack cannot run the layout; the message has all reasons.

    >>> import steptime as st
    >>> job, layout = TrainingJob(seq=8192, batch=512), TrainingLayout(tp=8, dp=8)
    >>> (command,) = training_commands(st.load_model("llama-3.1-8b"), job, layout, st.load_system("hgx-h100"), "megatron")
    >>> "--tensor-model-parallel-size 8" in command.words
    True
    """
    run = training_run(model, job, layout, system)
    if reason := _refusal(stack, run):
        raise LayoutError(reason)
    problems: list[Command] = WRITERS[stack].commands(run)
    return problems


def training_lines(model: Model, job: TrainingJob, layout: TrainingLayout, system: System, stack: str) -> list[str]:
    """Return the lines of a shell script that start a training run.

    Args:
        model: The model.
        job: Sequence length, batch, formats and optimizer.
        layout: One training layout.
        system: The machine.
        stack: Name of the stack.

    Returns:
        Notes as comments, files, and commands; or the reasons as a comment.
    """
    run = training_run(model, job, layout, system)
    if reason := _refusal(stack, run):
        return comments((reason,))
    return [line for command in WRITERS[stack].commands(run) for line in (*comments(command.notes), *spoken(command))]


def _refusal(stack: str, run: Run) -> str:
    if stack not in WRITERS:
        raise UnknownName("training stack to start", stack, STACKS, "Known: " + ", ".join(STACKS) + ".")
    reasons = WRITERS[stack].unable(run)
    return escape_unprintable(f"{TITLES[stack]} cannot run this: {'; '.join(reasons)}") if reasons else ""
