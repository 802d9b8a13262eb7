"""Words of sweep, design and sensitivity: the question, its inputs, and progress of the work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from steptime.cli.output import say
from steptime.errors import InputError, UnknownName, did_you_mean

if TYPE_CHECKING:
    from steptime.questions.declaration import Question
    from steptime.sweeps.axes import Axis

MIN_POINTS_FOR_ETA = 8  # points from which the remaining time is shown: several come at once from a process


def read_words(command: str, words: list[str], several: str) -> tuple[str, dict[str, Any], list[str]]:
    """Return the parts of the words of a command.

    Args:
        command: its name.
        words: the words.
        several: option that takes more than one value of an input.

    Returns:
        The question, model and system by name, and other options as NAME=VALUE.
    """
    plain = words[: next((i for i, word in enumerate(words) if word.startswith("--")), len(words))]
    if not plain:
        raise InputError(
            f"{command} needs a question: step, plan, simulate, or blackboard.NAME; `steptime {command} --help` has examples"
        )
    if len(plain) > 3:
        raise InputError(f"{plain[3]} is one word too many: {command} takes QUESTION [MODEL] [SYSTEM]")
    remaining_words, settings = words[len(plain) :], []
    while remaining_words:
        name, equals, value = remaining_words.pop(0).partition("=")
        if not name.startswith("--") or not name.strip("-"):
            raise InputError(
                f"{name} follows no option; options of the question are --name value, and the rest goes before them"
            )
        if not equals:
            if not remaining_words:
                raise InputError(f"{name} needs a value; {several} NAME=... gives several")
            value = remaining_words.pop(0)
        settings.append(f"{name}={value}")
    return plain[0], dict(zip(("model", "system"), plain[1:], strict=False)), settings


def no_slips(question: Question, settings: list[str], command_options: Sequence[str]) -> None:
    """Refuse a misspelt option of the command, which would count as an input of the question.

    Args:
        question: the question.
        settings: options as NAME=VALUE.
        command_options: names of the options of the command.

    Raises:
        UnknownName: for a misspelt option.
    """
    for text in settings:
        name = text.partition("=")[0].lstrip("-")
        if (
            name.replace("-", "_") not in question.inputs
            and "." not in name
            and did_you_mean(name, command_options, cutoff=0.75)
        ):
            raise UnknownName("option", f"--{name}", [f"--{option}" for option in command_options])


def check_subject(question: Question, subject: Mapping[str, Any]) -> None:
    """Refuse a model or a system that the question does not take.

    Args:
        question: the question.
        subject: model and system by name.

    Raises:
        InputError: for an input that the question lacks.
    """
    for key in subject:
        if key not in question.inputs:
            raise InputError(f"{question.name} takes no {key}: its inputs are {', '.join(question.inputs)}")


def read_question(
    command: str, words: list[str], several: str, command_options: Sequence[str]
) -> tuple[Question, dict[str, Any], list[str]]:
    """Return the checked parts of the words of a command.

    Args:
        command: its name.
        words: the words.
        several: option that takes more than one value of an input.
        command_options: names of the options of the command.

    Returns:
        The question, model and system by name, and other options as NAME=VALUE.
    """
    from steptime.questions.registry import find_question

    name, subject, settings = read_words(command, words, several)
    question = find_question(name)
    no_slips(question, settings, command_options)
    check_subject(question, subject)
    return question, subject, settings


def with_kept(question: Question, fixed_inputs: Mapping[str, Any], axes: Sequence[Axis] = ()) -> dict[str, Any]:
    """Return fixed inputs, with the engine corrected by the runs that `steptime anchors` keeps.

    Args:
        question: the question.
        fixed_inputs: inputs that all points share.
        axes: inputs that vary.

    Returns:
        The inputs; a line on standard error says whether runs correct them.
    """
    from steptime.catalog.data_files import files

    if not question.figures or not files("anchors", fixed_inputs.get("catalog")):
        return dict(fixed_inputs)
    if {"model", "system", "engine"} & {axis.name for axis in axes} or any(a.name.startswith("arch.") for a in axes):
        say("steptime: runs that `steptime anchors` keeps are left out, since model, system or engine is an axis")
        return dict(fixed_inputs)
    if any(name not in fixed_inputs for name in question.needs):
        return dict(fixed_inputs)
    from steptime.physics.engine import anchored
    from steptime.physics.uncertainty import has_range
    from steptime.questions.subject import read_subject
    from steptime.validation.user_calibration import kept_anchor

    model, system, engine = read_subject(fixed_inputs)
    anchor = kept_anchor(model, system, engine, fixed_inputs.get("catalog")) if has_range(engine) else None
    if anchor is None:
        return dict(fixed_inputs)
    say(f"steptime: anchored on your runs of {model.name} on {system.name} by {engine.name} (`steptime anchors`)")
    return {**fixed_inputs, "engine": anchored(engine, anchor, model=model.name, system=system.name)}


@contextmanager
def report_progress() -> Iterator[Callable[[int, int], None]]:
    """Provide a function that reports progress: a bar with the remaining time for long work on a terminal.

    Yields:
        A function of the number of answered points and of all points.
    """
    from steptime.sweeps.axes import duration

    state = {"first": 0, "total": -1, "started": time.perf_counter()}
    bar: Any = None

    def progress(done: int, total: int) -> None:
        nonlocal bar
        if total != state["total"]:  # work that begins, perhaps after other work
            if bar:
                bar.stop()
            bar = None
            state.update(first=done, total=total, started=time.perf_counter())
            if done:
                say(f"steptime: goes on from {done:,} of {total:,} points that were answered before")
            return
        passed = time.perf_counter() - state["started"]
        if bar is None and passed > 1.5 and state["first"] + max(MIN_POINTS_FOR_ETA, total // 20) <= done < total:
            remaining_seconds = passed / (done - state["first"]) * (total - done)
            if sys.stderr is None or not sys.stderr.isatty():
                bar = False
                say(f"steptime: {done:,} of {total:,} points, some {duration(remaining_seconds)} left ...")
            else:
                bar = _bar(total)
        if bar:
            bar.update(bar.task_ids[0], completed=done)

    try:
        yield progress
    finally:
        if bar:
            bar.stop()


def _bar(total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(), MofNCompleteColumn(), TextColumn("points, left"), TimeRemainingColumn(), TextColumn("of"),
        TimeElapsedColumn(),
    )  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.start()
    bar.add_task("points", total=total)
    return bar
