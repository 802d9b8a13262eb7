"""The commands that start a training run in Megatron-LM, Megatron-Bridge, torchtitan or MaxText.

If a stack cannot run a layout, one message gives all reasons. Nothing is left out without a message, and nothing else is
started in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from steptime.errors import LayoutError, UnknownName
from steptime.hardware.system import System
from steptime.launch import maxtext, megatron, megatron_bridge, torchtitan
from steptime.launch.shell_script import Command, comments, escape_unprintable, spoken
from steptime.launch.training_run import training_run
from steptime.models.model import Model
from steptime.training.training_job import TrainingJob, TrainingLayout

# Modules that write the commands of the stacks.
WRITERS: Final[Mapping[str, ModuleType]] = {
    "megatron-lm": megatron, "megatron-bridge": megatron_bridge, "torchtitan": torchtitan, "maxtext": maxtext,
}  # fmt: skip
STACKS: Final = tuple(WRITERS)
# Other names of stacks.
ALIASES: Final = {"megatron": "megatron-lm"}
# Stacks whose commands configure an offload to host memory.
OFFLOADING: Final = ("megatron-lm", "megatron-bridge")


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
    >>> (command,) = training_commands(st.load_model("llama-3.1-8b"), job, layout, st.load_system("hgx-h100"), "megatron-lm")
    >>> "--tensor-model-parallel-size 8" in command.words
    True
    """
    commands, refusal = _commands_or_refusal(model, job, layout, system, stack)
    if refusal:
        raise LayoutError(refusal)
    return commands


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
    commands, refusal = _commands_or_refusal(model, job, layout, system, stack)
    if refusal:
        return comments((refusal,))
    return [line for command in commands for line in (*comments(command.notes), *spoken(command))]


def first_capable_stack(model: Model, job: TrainingJob, layout: TrainingLayout, system: System) -> str:
    """Return the first stack that can run a layout.

    Args:
        model: The model.
        job: Sequence length, batch, formats and optimizer.
        layout: One training layout.
        system: The machine.

    Returns:
        Name of the stack; "" if none can.
    """
    run = training_run(model, job, layout, system)
    return next((name for name, writer in WRITERS.items() if not writer.unable(run)), "")


def stacks_on(system: System) -> list[str]:
    """Return the stacks that run on the chips of a system.

    Args:
        system: The machine.

    Returns:
        Names of stacks.

    >>> from steptime.catalog.hardware_loading import load_system
    >>> stacks_on(load_system("tpu-v5p")), stacks_on(load_system("trn3-144"))
    (['maxtext'], [])
    """
    return [name for name, writer in WRITERS.items() if system.chip.vendor in writer.VENDORS]


# Words of a command that say where it runs and what it starts.
SHORT_WORDS: Final = re.compile(r"^\S+|--nnodes \S+|--nproc-per-node \S+|\S+\.py\b|-m \S+")


def short_command(model: Model, job: TrainingJob, layout: TrainingLayout, system: System, stack: str) -> str:
    """Return the start of the command of a stack: hosts and program.

    Args:
        model: The model.
        job: Sequence length, batch, formats and optimizer.
        layout: One training layout.
        system: The machine.
        stack: Name of a stack that can run the layout.

    Returns:
        Text.
    """
    command = training_commands(model, job, layout, system, stack)[-1]
    return " ".join(SHORT_WORDS.findall(" ".join(command.words)))


def _commands_or_refusal(
    model: Model, job: TrainingJob, layout: TrainingLayout, system: System, stack: str
) -> tuple[list[Command], str]:
    """Return the commands of a stack, or all reasons why it cannot run the layout in one line."""
    run = training_run(model, job, layout, system)
    stack = ALIASES.get(stack, stack)
    if stack not in WRITERS:
        raise UnknownName("training stack to start", stack, STACKS, "Known: " + ", ".join(STACKS) + ".")
    writer = WRITERS[stack]
    if reasons := writer.unable(run):
        return [], escape_unprintable(f"{writer.TITLE} cannot run this: {'; '.join(reasons)}")
    return writer.commands(run), ""
