"""The command `steptime train`: the fastest layout of a training run that fits, its step, memory, schedule, days and money."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.option_groups import grouped
from steptime.cli.options import (
    BRIEF,
    CATALOG,
    CSV,
    JSON,
    OUTPUT,
    RENT,
    SET,
    count,
    not_empty,
    option,
    read_system,
    with_rent,
)
from steptime.cli.output import check_outputs, console_of, patience, print_json, show, write_csv, wrote

if TYPE_CHECKING:
    from steptime.hardware.system import System
    from steptime.training.training_planner import Training

ASKED = "What is trained"
LAID = "How it is laid out (what is not given is searched)"
RUN = "The run"


STARTED = {name: name for name in ("torchtitan", "maxtext")}  # stacks that are searched for what starts them, unless told


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What one step computes."""

    chips: Annotated[int, count("--chips", "Chips in all.", ASKED)]
    batch: Annotated[int, count("--batch", "Sequences of a step, over all chips.", ASKED)]
    seq: Annotated[int, count("--seq", "Tokens of a sequence.", ASKED)] = 4096
    dtype: Annotated[str, option("Format of products: bf16, fp16, fp8, mxfp8, nvfp4, int8.", ASKED)] = "bf16"
    task: Annotated[str, option("pretrain, sft (all weights), or lora (a frozen base).", ASKED)] = "pretrain"
    optimizer: Annotated[str, option("adamw, adamw-bf16, adamw-fp8, muon, adafactor or sgd.", ASKED)] = "adamw"
    mtp: Annotated[bool, option("Train multi-token-prediction layers too.", ASKED, "--mtp")] = False
    engine: Annotated[
        str | None,
        option("Training stack: megatron, torchtitan, maxtext, llm-foundry, typical, a file, or ideal.", ASKED),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Laid:
    """The axes of the layout that are given."""

    tp: Annotated[int | None, count("--tp", "Tensor parallel ways, with sequence parallelism.", LAID)] = None
    pp: Annotated[int | None, count("--pp", "Pipeline stages.", LAID)] = None
    vpp: Annotated[int | None, count("--vpp", "Virtual stages of a pipeline stage.", LAID)] = None
    cp: Annotated[int | None, count("--cp", "Context parallel ways.", LAID)] = None
    ep: Annotated[int | None, count("--ep", "Expert parallel ways, out of tp x cp x dp.", LAID)] = None
    etp: Annotated[int | None, count("--etp", "Tensor parallel ways of experts.", LAID)] = None
    dp: Annotated[int | None, count("--dp", "Copies of the model.", LAID)] = None
    micro_batch: Annotated[int | None, count("--micro-batch", "Sequences that a copy computes at once.", LAID)] = None
    sharding: Annotated[str | None, option("States that copies divide: none, zero1, zero2, zero3.", LAID)] = None
    sharding_group: Annotated[int | None, count("--sharding-group", "Copies that divide them (hybrid sharding).", LAID)] = None
    recompute: Annotated[
        str | None,
        option(
            "none, selective, full, reversible (as if layers were), or modules joined by +: attention, norms, activation, mlp, "
            "moe_act, ...",
            LAID,
        ),
    ] = None
    schedule: Annotated[str | None, option("1f1b, interleaved, gpipe, zb-h1, zbv, dualpipe, ...", LAID)] = None
    layers: Annotated[
        str | None,
        option("Layers of each chunk, pp x vpp counts as 7,8x14,7 (dealt out evenly if not given).", LAID, metavar="COUNTS"),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the axes that are given, by the names of a training layout."""
        names = {"vpp": "virtual_stages"}
        return {names.get(name, name): value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A whole run."""

    tokens: Annotated[str | None, option("Tokens of the run, such as 15T: days, chip-hours, money and failures.", RUN)] = None
    stage: Annotated[
        list[str] | None,
        option("A further stage as TOKENS:SEQ:BATCH, such as 800B:128k:64 for long context; give it again for more.", RUN),
    ] = None
    ramp: Annotated[
        str | None, option("A ramp as TOKENS:BATCH, such as 469B:3072: the batch grows evenly from BATCH to --batch.", RUN)
    ] = None
    failures: Annotated[
        float | None,
        option("Failures of a chip in a year.", RUN, show_default="0.172: 419 in 54 days on 16,384 H100, arXiv 2407.21783"),
    ] = None
    checkpoint: Annotated[float, option("Seconds for which a checkpoint blocks.", RUN)] = 30.0
    restart: Annotated[float, option("Seconds from a failure to the next step.", RUN)] = 600.0
    spares: Annotated[int, count("--spares", "Spare chips that are rented beside.", RUN)] = 0
    rent: RENT = None


@grouped
def train(
    model: Annotated[
        str, typer.Argument(help="Catalogue name, Hugging Face id, or path to a config.json.", show_default=False)
    ],
    system: Annotated[str, typer.Argument(help="Catalogue name, or path to a TOML file.", show_default=False)],
    asked: Asked,
    laid: Laid,
    whole: Whole,
    scaling: Annotated[
        bool, option("Show strong and weak scaling: an eighth to eight times the chips.", OUTPUT, "--scaling")
    ] = False,
    explain: Annotated[bool, option("Show what a layer does, with its numbers, and sources.", OUTPUT, "--explain")] = False,
    launch: Annotated[
        str | None,
        option("Print what starts it: megatron, megatron-bridge, torchtitan or maxtext.", OUTPUT, metavar="STACK"),
    ] = None,
    plot: Annotated[str | None, option("Write the picture of the schedule to a file: .svg, .png or .pdf.", OUTPUT)] = None,
    set_: SET = None,
    catalog: CATALOG = None,
    brief: BRIEF = False,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """Find the fastest layout of a training run that fits: step time, memory, schedule, days, money, failures."""
    from steptime.models.model_loading import load_model
    from steptime.training.training_planner import train as found_for
    from steptime.training.training_stack import training_engine

    not_empty("--catalog", catalog, "a folder")
    not_empty("--layers", laid.layers, "layers by chunk, such as 7,8x14,7")
    check_outputs({"--csv": csv, "--plot": plot}, [model, system])
    machine = with_rent(read_system(system, set_, catalog), whole.rent, set_)
    described = load_model(model, catalog=catalog)
    stack = training_engine(asked.engine or STARTED.get(launch or ""), machine, catalog)
    given = {name: value for name, value in vars(asked).items() if name not in ("chips", "engine")}
    with patience("searching layouts"):
        found = found_for(
            described, machine, chips=asked.chips, engine=stack, layout=laid.given(), changes=not brief,
            phases=phases_of(whole, asked.seq, asked.batch), reliability=reliability_of(whole), **given,
        )  # fmt: skip
        scaled = _scaled(described, machine, found, stack, laid.given()) if scaling else None
    if csv is not None:
        write_csv(csv, found.step)
    if plot is not None:
        _plotted(plot, described, machine, found, stack)
    lines = None if launch is None else _lines(described, machine, found, launch)
    if json:
        more = {"scaling": scaled.to_dict()} if scaled else {}
        print_json(found.to_dict(**more, **({"launch": lines} if lines else {})))
        return
    _shown(described, machine, found, stack, scaled, brief=brief, explain=explain)
    for line in lines or []:
        typer.echo(line)


def _lines(described: Any, machine: "System", found: "Training", stack: str) -> list[str]:
    """Return the lines of a script that start a run."""
    from steptime.launch.training_commands import training_lines

    return training_lines(described, found.job, found.step.layout, machine, stack)


def _shown(
    described: Any, machine: "System", found: "Training", stack: Any, scaled: Any, *, brief: bool, explain: bool
) -> None:
    from steptime.cli.views.explain_view import sources_table
    from steptime.cli.views.training_view import explained_view, scaling_view, training_brief, training_view
    from steptime.training.step_schedule import timeline_of

    console = console_of()
    if brief:
        show(training_brief(found, machine), console=console)
    else:
        made = timeline_of(described, machine, found, stack)
        show(training_view(found, machine, made, console.width), console=console)
    if scaled is not None:
        show(scaling_view(scaled, console.width), console=console)
    if explain:
        show(explained_view(described, machine, found, stack), console=console)
        show(sources_table(machine), console=console)


def _plotted(path: str, described: Any, machine: "System", found: "Training", stack: Any) -> None:
    import os

    from steptime.errors import RangeError
    from steptime.training.schedule_timeline import plot as drawn
    from steptime.training.step_schedule import timeline_of

    made = timeline_of(described, machine, found, stack)
    if made is None:
        raise RangeError("--plot draws the schedule of a pipeline, and this layout has none (pp=1); give --pp")
    existed = os.path.exists(path)
    drawn(made, path)
    wrote(path, "the schedule of a step", replaced=existed)


def _scaled(described: Any, machine: "System", found: "Training", stack: Any, laid: dict[str, Any]) -> Any:
    from steptime.training.chip_scaling import scaling_of

    return scaling_of(described, machine, chips=found.chips, engine=stack, layout=laid, job=found.job)


def phases_of(whole: Whole, seq: int, batch: int) -> list[Any]:
    """Return the phases of a run from its options."""
    from steptime.errors import RangeError
    from steptime.training.training_runs import Phase
    from steptime.units import count as read_count

    found = []
    tokens = None if whole.tokens is None else _tokens(whole.tokens, "--tokens")
    if whole.ramp is not None:
        if tokens is None:
            raise RangeError("--ramp is part of a run: give its --tokens too")
        parts = whole.ramp.split(":")
        if len(parts) != 2:
            raise RangeError(f"--ramp takes TOKENS:BATCH, such as 469B:3072, not {whole.ramp!r}")
        ramped, first = _tokens(parts[0], "--ramp"), read_count(parts[1], "--ramp")
        if ramped > tokens or first > batch:
            raise RangeError("--ramp: its tokens are part of --tokens, and it begins below --batch")
        found.append(Phase(tokens=ramped, seq=seq, batch=batch, first=int(first)))
        tokens -= ramped
    if tokens:
        found.append(Phase(tokens=tokens, seq=seq, batch=batch))
    for stage in whole.stage or []:
        parts = stage.split(":")
        if len(parts) != 3:
            raise RangeError(f"--stage takes TOKENS:SEQ:BATCH, such as 800B:128k:64, not {stage!r}")
        found.append(
            Phase(
                tokens=_tokens(parts[0], "--stage"),
                seq=int(read_count(parts[1], "--stage")),
                batch=int(read_count(parts[2], "--stage")),
            )
        )
    return found


def _tokens(text: str, name: str) -> float:
    """Read a number of tokens: 15T, 469B, 1e12."""
    from steptime.errors import RangeError

    scale = {"T": 1e12, "B": 1e9, "M": 1e6, "k": 1e3, "K": 1e3, "t": 1e12, "b": 1e9, "m": 1e6}
    number, factor = (text[:-1], scale[text[-1]]) if text and text[-1] in scale else (text, 1.0)
    try:
        value = float(number.replace(",", "")) * factor
    except ValueError:
        raise RangeError(f"{name}: {text!r} is no number of tokens, such as 15T or 800B") from None
    if not 0 < value <= 1e18:
        raise RangeError(f"{name}: must be more than 0 and at most 1e18 tokens, not {text}")
    return value


def reliability_of(whole: Whole) -> Any:
    """Return how often chips fail, from the options."""
    from steptime.errors import RangeError
    from steptime.number_checks import MOST_CHIPS
    from steptime.number_checks import whole as whole_number
    from steptime.training.reliability import FAILURES_PER_CHIP_SECOND
    from steptime.training.training_runs import Reliability

    for name, value, least in (
        ("--failures", whole.failures, 0.0),
        ("--checkpoint", whole.checkpoint, 1e-3),
        ("--restart", whole.restart, 0.0),
    ):
        if value is not None and not least <= value <= 1e6:
            raise RangeError(f"{name} must be from {least:g} to 1,000,000, not {value:g}")
    spares = whole_number("--spares", whole.spares, least=0, most=MOST_CHIPS)
    rate = FAILURES_PER_CHIP_SECOND if whole.failures is None else whole.failures / (365.25 * 86400)
    return Reliability(rate=rate, checkpoint=whole.checkpoint, restart=whole.restart, spares=spares)
