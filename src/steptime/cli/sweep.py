"""The commands `steptime sweep`, `design` and `sensitivity`: one question for many values of its inputs."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.options import OUTPUT, Output, TextOutput, anchor_path, corrected_engine, count, grouped, not_empty, option
from steptime.cli.output import check_outputs, progress_bar, reported, say, wrote
from steptime.cli.simulate import compile_first
from steptime.errors import InputError, RangeError, UnknownName, did_you_mean, short_repr
from steptime.questions.registry import HOMES

if TYPE_CHECKING:
    from steptime.questions.declaration import Question
    from steptime.sweeps.axes import Axis
    from steptime.sweeps.sweep_result import Sweep

# Questions that own runs correct.
ANCHORED = ("step", "plan", "simulate", "train")
# Panels of `--help`.
AXES, EXECUTION, INPUTS, INDICES = "Axes", "Execution", "Uncertain inputs", "Sobol's indices"
# Points from which the remaining time is shown.
MIN_POINTS_FOR_ETA = 2
# Remaining time from which a message says how to stop and resume, and expected time that the first line names [s].
LONG_WORK, NOTED_WORK = 600.0, 60.0
OVER = Annotated[
    list[str] | None,
    option(
        "An axis: batch=1:4096:log2 (doubling), context=1k,8k,64k, speed=20:80:7 (7 values), rent=1:10:20log (equal "
        "ratios), chip.hbm.bandwidth=4TB/s:32TB/s:9, system=hgx-h100,hgx-b200. Repeatable: every combination is evaluated.",
        AXES, "--over", metavar="NAME=VALUES",
    ),
]  # fmt: skip
SET_WORDS = (
    "Value of an input of the question, or of a number of the system. You may also use the options of that command: "
    "--tp 8 is --set tp=8. Repeatable."
)
WORKERS = Annotated[int | None, option("Number of processes.", EXECUTION, metavar="N", show_default="one per core")]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Axes of a study, and its files and picture."""

    over: OVER = None
    set_: Annotated[list[str] | None, option(SET_WORDS, AXES, "--set", metavar="NAME=VALUE")] = None
    out: Annotated[
        list[str] | None,
        option(
            "Write the results: .csv, .parquet, .nc (netCDF), .zarr, .xlsx (closed forms as live formulas) or .json. "
            "Repeatable. Finished plans and simulations are saved next to the first file: the same command resumes.",
            OUTPUT, "--out", metavar="FILE",
        ),
    ] = None  # fmt: skip
    plot: Annotated[
        str | None, option("Picture file (.svg, .png, .pdf) of the main answer over the axes.", OUTPUT, metavar="FILE")
    ] = None
    against: Annotated[
        str | None, option("Answer on the y axis of the picture, with the Pareto front.", OUTPUT, metavar="NAME")
    ] = None
    workers: WORKERS = None
    anchor: Annotated[
        str | None,
        option(
            "Your own runs that correct the answers, as for the command of the question: a CSV of training runs for train, or "
            "results of a benchmark for step, plan and simulate.",
            AXES, "--anchor", metavar="RUNS", show_default="the runs that `steptime anchors` stores",
        ),
    ] = None  # fmt: skip

    def check(self, ctx: typer.Context, output: TextOutput, csv: str | None = None) -> None:
        """Check options and files before the work.

        Args:
            ctx: Context of the command.
            output: Options of the output.
            csv: File of --csv.

        Raises:
            InputError: A file cannot be written.
        """
        from steptime.picture_files import PICTURES
        from steptime.sweeps.export import ending

        for name in self.out or []:
            if name.casefold().endswith(PICTURES):
                raise InputError(f"{name} is a picture: --plot draws it, and --out writes tables")
            ending(name)
        needs = {"--plot, the picture that it is drawn in": (self.plot is not None, "against")}
        tables = {f"--out {number}" if number > 1 else "--out": name for number, name in enumerate(self.out or [], start=1)}
        output.check(ctx, needs, plot=self.plot)
        check_outputs({"--plot": self.plot, "--csv": csv, **tables}, [anchor_path(self.anchor or "")])

    def axes(
        self, question: "Question", settings: list[str], subject: Mapping[str, Any], example: str
    ) -> "tuple[Any, dict[str, Any]]":
        """Return the axes and the fixed inputs.

        Args:
            question: The question.
            settings: Options of the question as NAME=VALUE.
            subject: Model and system by name.
            example: What is missing without an axis, for the message.

        Returns:
            Axes, and values by name with the engine corrected by own runs.

        Raises:
            RangeError: There is no axis, or own runs cannot correct the question.
        """
        from steptime.sweeps.axes import read_axes

        axes, fixed_inputs = read_axes(question, self.over or [], [*settings, *(self.set_ or [])], subject)
        if not axes:
            raise RangeError(example)
        return axes, with_runs(question, fixed_inputs, axes, self.anchor)

    def write(self, sweep: "Sweep", answer: str | None) -> None:
        """Write the files after the first, which is written already, and the picture.

        Args:
            sweep: The sweep.
            answer: Answer in the picture.
        """
        for name in (self.out or [])[1:]:
            sweep.save(name)
        for name in self.out or []:
            wrote(name, f"{sweep.points:,} point{'s' * (sweep.points > 1)}")
        if self.plot is not None:
            with reported(self.plot, "the picture"):
                sweep.plot(self.plot, answer=answer, against=self.against)


@grouped
def sweep(
    ctx: typer.Context,
    study: Study,
    output: TextOutput,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUESTION [MODEL] [SYSTEM]",
            help=f"QUESTION is {', '.join(HOMES)}, or blackboard.NAME (a formula of the lecture). MODEL and SYSTEM "
            "follow, unless --over varies them.",
            show_default=False,
        ),
    ] = None,
    together: Annotated[
        bool, option("Step through all axes at once, instead of every combination.", AXES, "--together")
    ] = False,
    answer: Annotated[
        list[str] | None,
        option("Name of an answer to show. Repeatable.", OUTPUT, metavar="NAME", show_default="the main answers"),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            "Address of a Dask cluster that computes the points, such as tcp://127.0.0.1:8786.", EXECUTION, metavar="ADDRESS"
        ),
    ] = None,
) -> None:
    """Run one question for many values of its inputs: tables, files and pictures of the answers.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.sweeps.executor import SUFFIX, connect
    from steptime.sweeps.sweep import sweep_axes

    question, subject, settings = read_question(ctx, words or [], "--over")
    study.check(ctx, output)
    answers = [name.strip() for text in answer or [] for name in text.split(",")]
    axes, fixed_inputs = study.axes(
        question, settings, subject, "a sweep needs an axis: --over NAME=VALUES, such as --over batch=1:4096:log2"
    )
    not_empty("--cluster", cluster, "an address, such as tcp://127.0.0.1:8786")
    if question.name == "simulate":
        compile_first()
    client = None if cluster is None else connect(cluster)
    first_file = study.out[0] if study.out else None
    names = [*(axis.name for axis in axes), *fixed_inputs]
    try:
        with report_progress(question.seconds) as progress:
            result = sweep_axes(
                question, axes, fixed_inputs, answers=_answers(question, answers, study.against, names), together=together,
                workers=study.workers, client=client, out=first_file, progress=progress, banded=True,
            )  # fmt: skip
    except KeyboardInterrupt:
        if first_file and os.path.exists(first_file + SUFFIX):
            say(f"steptime: stopped; answers are kept in {first_file}{SUFFIX}, and the same command continues from there")
        raise
    finally:
        if client is not None:
            client.close()
    study.write(result, answers[0] if answers else None)
    output.print(result, "sweep_view.sweep_view")
    share = result.answers.get("memory_share")
    if len(result.reasons) == result.points or (share is not None and not (share.values <= 1).any()):
        raise typer.Exit(1)


def _answers(question: "Question", names: list[str], against: str | None, inputs: list[str]) -> tuple[str, ...]:
    """Return the answers to compute, and the memory, which shows the points that can run."""
    if against is not None:
        names = [*(names or question.default_answers(inputs)), against]
    # Without it, the cheapest point may not fit in memory.
    memory = ["memory_share"] if names and "memory_share" in question.answers else []
    return tuple(dict.fromkeys([*names, *memory]))


@grouped
def design(
    ctx: typer.Context,
    study: Study,
    output: Output,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[step|plan|train] MODEL SYSTEM",
            help="Question for each design: one pass at a given batch and layout (step), the cheapest deployment within "
            "limits (plan, the default), or the fastest layout of a training run (train).",
            show_default=False,
        ),
    ] = None,
    within: Annotated[
        str | None,
        option(
            "Fixed budget of the chip: more bandwidth, capacity or links cost FLOP/s. Value: power, or the share of each part "
            "of an area or a price, such as bandwidth=0.3,capacity=0.1,link=0.1.",
            AXES,
            metavar="BUDGET",
        ),
    ] = None,
    aim: Annotated[
        list[str] | None,
        option(
            "Aim of the search, the most important first. Repeatable.",
            OUTPUT,
            metavar="NAME",
            show_default="cost and speed; rent and days of a training run",
        ),
    ] = None,
) -> None:
    """Search models and chips that do not exist yet: heads, experts, depth; bandwidth against FLOP/s.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.sweeps.design import AIMS, compare_designs

    words = words or []
    plain = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    if not plain:
        raise InputError("a design needs a model and a system; `steptime design --help` has examples")
    if plain == 3 and words[0] not in AIMS:
        raise UnknownName("question of a design", words[0], AIMS, f"Known: {', '.join(AIMS)}.")
    # The question is a plan unless another is named.
    has_question = words[0] in AIMS and plain != 2
    question, subject, settings = read_question(ctx, words if has_question else ["plan", *words], "--over")
    study.check(ctx, output, output.csv)
    axes, fixed_inputs = study.axes(
        question, settings, subject,
        "a design needs an axis, such as --over arch.kv_heads=1,2,4,8, --over arch.attention=grouped,latent or "
        "--over times.bandwidth=1:4:7",
    )  # fmt: skip
    aims = [part.strip() for text in aim or [] for part in text.split(",")]
    if study.against is not None and aims:
        aims.append(study.against)
    with report_progress(question.seconds) as progress:
        result = compare_designs(
            question, axes, fixed_inputs, aims=aims, within=within, workers=study.workers,
            out=study.out[0] if study.out else None, progress=progress,
        )  # fmt: skip
    study.write(result.sweep, result.aims[0])
    output.print(result, "sweep_view.design_view")


@grouped
def sensitivity(
    ctx: typer.Context,
    output: Output,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUESTION [MODEL] [SYSTEM]",
            help="QUESTION is step, plan, train or budget, whose ranges are known, or simulate or blackboard.NAME, which need "
            "--vary.",
            show_default=False,
        ),
    ] = None,
    answer: Annotated[
        str | None,
        option(
            "Name of the answer.",
            OUTPUT,
            "--answer",
            metavar="ANSWER",
            show_default="the cost per million tokens, the rent of a training run, or else the first answer",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        option(
            "Range with a uniform distribution: context=1k:16k, rent=1.5:3, chip.hbm.bandwidth=7TB/s:8TB/s, "
            "memory_efficiency=0.7:0.9 (of the engine). Repeatable. It adds a range, or replaces the known range of that "
            "input.",
            INPUTS,
            "--vary",
            metavar="NAME=LOW:HIGH",
        ),
    ] = None,
    set_: Annotated[list[str] | None, option(SET_WORDS, INPUTS, "--set", metavar="NAME=VALUE")] = None,
    sobol: Annotated[
        bool, option("Variance shares with all inputs varied together: Sobol's first and total indices.", INDICES, "--sobol")
    ] = False,
    samples: Annotated[
        int | None,
        count("--samples", "Samples, a power of two.", INDICES, show_default="4,096, or fewer if that takes over 2 minutes"),
    ] = None,
    seed: Annotated[int, option("Seed of the samples.", INDICES, metavar="S")] = 0,
    workers: WORKERS = None,
    plot: Annotated[str | None, option("Picture file (.svg, .png, .pdf) of the tornado chart.", OUTPUT, metavar="FILE")] = None,
) -> None:
    """Find which uncertain input changes an answer most, and which to measure first.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.sweeps.axes import read_axes
    from steptime.sweeps.sensitivity import compute_sensitivity

    question, subject, settings = read_question(ctx, words or [], "--vary")
    output.check(ctx, inputs=subject.values(), plot=plot)
    ranges = [_range(text) for text in vary or []]
    _, fixed_inputs = read_axes(question, [], [*settings, *(set_ or [])], subject)
    fixed_inputs = with_runs(question, fixed_inputs)
    if question.name == "simulate":
        compile_first()
    with report_progress(question.seconds) as progress:
        study = compute_sensitivity(
            question, fixed_inputs, answer=answer, ranges=ranges, sobol=sobol, samples=samples, seed=seed, workers=workers,
            progress=progress, announce=lambda message: say(f"steptime: {message}"),
        )  # fmt: skip
    if plot is not None:
        with reported(plot, "the tornado"):
            study.plot(plot)
    output.print(study, "sweep_view.sensitivity_view")
    if not study.fits:
        raise typer.Exit(1)


def _range(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise RangeError(f"{short_repr(text)} is not NAME=LOW:HIGH, such as context=1k:16k")
    return name.strip(), values.strip()


# --- the words of a study -----------------------------------------------------------------------------------------------


def read_question(ctx: typer.Context, words: list[str], several: str) -> "tuple[Question, dict[str, Any], list[str]]":
    """Return the checked parts of the words of a command.

    Args:
        ctx: Context of the command.
        words: The words.
        several: Option that takes more than one value of an input.

    Returns:
        The question, model and system by name, and other options as NAME=VALUE.

    Raises:
        InputError: The question lacks an input that is named.
        UnknownName: An option of the command is misspelt: it would count as an input of the question.
    """
    from steptime.questions.registry import find_question

    name, subject, settings = _read_words(str(ctx.info_name), words, several)
    question = find_question(name)
    options = [param.opts[0].removeprefix("--") for param in ctx.command.params if param.opts[0].startswith("--")]
    for text in settings:
        option_name = text.partition("=")[0].lstrip("-")
        is_input = option_name.replace("-", "_") in question.inputs or "." in option_name
        if not is_input and did_you_mean(option_name, options, cutoff=0.75):
            raise UnknownName("option", f"--{option_name}", [f"--{known_name}" for known_name in options])
    # A comparison takes several models and systems.
    subject = {
        f"{key}s" if key not in question.inputs and f"{key}s" in question.inputs else key: subject[key] for key in subject
    }
    for key in subject:
        if key not in question.inputs:
            raise InputError(f"{question.name} takes no {key}: its inputs are {', '.join(question.inputs)}")
    return question, subject, settings


def _read_words(command: str, words: list[str], several: str) -> tuple[str, dict[str, Any], list[str]]:
    """Return the question, model and system by name, and other options as NAME=VALUE."""
    plain = words[: next((i for i, word in enumerate(words) if word.startswith("--")), len(words))]
    if not plain:
        raise InputError(f"{command} needs a question, such as step, plan or simulate; `steptime {command} --help` lists them")
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


def with_runs(
    question: "Question", fixed_inputs: Mapping[str, Any], axes: "Sequence[Axis]" = (), anchor: str | None = None
) -> dict[str, Any]:
    """Return fixed inputs, with the engine corrected by own runs.

    Args:
        question: the question.
        fixed_inputs: inputs that all points share.
        axes: inputs that vary.
        anchor: text of --anchor; by default the runs that `steptime anchors` keeps correct the engine.

    Returns:
        The inputs; a line on standard error says whether runs correct them.

    Raises:
        RangeError: --anchor does not suit the question or its axes.
    """
    from steptime.catalog.data_files import files

    is_varied = any(axis.name in ("model", "system", "engine") or axis.name.startswith("arch.") for axis in axes)
    if anchor is not None:
        not_empty("--anchor", anchor, "a file of runs")
        if question.name not in ANCHORED:
            raise RangeError(f"--anchor corrects {', '.join(ANCHORED)}, not {question.name}; leave it out")
        if is_varied:
            raise RangeError("--anchor corrects one model, system and engine, got an axis of them; leave one of the two out")
    elif not question.figures or not files("anchors", fixed_inputs.get("catalog")):
        return dict(fixed_inputs)
    elif is_varied:
        say("steptime: runs that `steptime anchors` keeps are left out, since model, system or engine is an axis")
        return dict(fixed_inputs)
    if any(name not in fixed_inputs for name in question.needs):
        return dict(fixed_inputs)
    source = "`steptime anchors`" if anchor is None else os.path.basename(anchor_path(anchor))
    if question.name == "train":
        from steptime.validation.own_training_runs import with_own_runs

        corrected_inputs = with_own_runs(fixed_inputs, anchor)
        if corrected_inputs.get("engine") is not fixed_inputs.get("engine"):
            say(f"steptime: corrected by your own training runs ({source})")
        return corrected_inputs
    from steptime.questions.subject import read_subject

    model, system, engine = read_subject(fixed_inputs)
    corrected = corrected_engine(fixed_inputs, (model, system, engine), anchor)
    if corrected is engine:
        return dict(fixed_inputs)
    say(f"steptime: anchored on your runs of {model.name} on {system.name} by {engine.name} ({source})")
    return {**fixed_inputs, "engine": corrected}


@contextmanager
def report_progress(seconds: float = 0.0) -> Iterator[Callable[[int, int], None]]:
    """Provide a function that reports progress: a bar with the remaining time for long work on a terminal.

    Args:
        seconds: Usual time of a point on one core [s].

    Yields:
        A function of the number of answered points and of all points.
    """
    from steptime.sweeps.axes import duration

    state = {"first": 0, "total": -1, "started": time.perf_counter()}
    bar: Any = None

    def progress(done: int, total: int) -> None:
        nonlocal bar
        # Work begins, perhaps after other work.
        if total != state["total"]:
            if bar:
                bar.stop()
            bar = None
            state.update(first=done, total=total, started=time.perf_counter())
            if done:
                say(f"steptime: goes on from {done:,} of {total:,} points that were answered before")
            if (total - done) * seconds > NOTED_WORK:
                say(f"steptime: {total - done:,} points, some {duration((total - done) * seconds)} on one core ...")
            return
        passed = time.perf_counter() - state["started"]
        if bar is None and passed > 1.5 and state["first"] + MIN_POINTS_FOR_ETA <= done < total:
            remaining_seconds = passed / (done - state["first"]) * (total - done)
            is_terminal, is_long = sys.stderr is not None and sys.stderr.isatty(), remaining_seconds > LONG_WORK
            bar = progress_bar(total, "points") if is_terminal else False
            if is_long or not is_terminal:
                advice = "; Ctrl+C stops it (sweep --out FILE keeps the finished points)" if is_long else ""
                say(f"steptime: {done:,} of {total:,} points, some {duration(remaining_seconds)} left{advice} ...")
        if bar:
            bar.update(bar.task_ids[0], completed=done)

    try:
        yield progress
    finally:
        if bar:
            bar.stop()
