"""Options that several commands take, and how what was asked for is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.calibration_args import anchor_path, read_anchor
from steptime.errors import InputError, RangeError, UnknownName
from steptime.units import count as read_count

if TYPE_CHECKING:
    from steptime.hardware.system import System
    from steptime.models.model import Model
    from steptime.physics.engine import Engine
    from steptime.planning.workload import Slo, Workload

SUBJECT, LIMITS, LAYOUT, OUTPUT = "Model, machine and engine", "Limits", "Layout", "Output"
WORKLOAD = "Requests"
NEEDED = {
    "weights": "a number format, such as fp8", "experts": "a number format, such as fp8", "kv": "a number format, such as fp8",
    "catalog": "a folder", "rent": "owned, contract, ondemand, or USD per chip-hour such as 2.10",
}  # fmt: skip

JSON = Annotated[
    bool, typer.Option("--json", help="Print JSON in SI units instead of text, also for errors.", rich_help_panel=OUTPUT)
]
CSV = Annotated[
    str | None,
    typer.Option("--csv", metavar="FILE", help="Also write the table as CSV, in SI units.", rich_help_panel=OUTPUT),
]
FULL = Annotated[bool, typer.Option("--full", help="Print all tables, charts and notes.", rich_help_panel=OUTPUT)]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a number of the system: chip.hbm.bandwidth=16TB/s, or rent='2 USD/h' (per chip). Repeatable.",
        rich_help_panel=SUBJECT,
    ),
]
CATALOG = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="FOLDER",
        help="Folder with subfolders chips/, systems/, rents/, models/ or engines/, searched before the packaged catalogue.",
        rich_help_panel=SUBJECT,
    ),
]
RENT = Annotated[
    str | None,
    typer.Option(
        "--rent",
        metavar="KIND",
        help="Rent: owned (cost of ownership), contract, ondemand, or USD per chip-hour such as 2.10.",
        show_default="the newest known of contract and on demand",
        rich_help_panel=SUBJECT,
    ),
]
WEIGHTS = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="Number format of the weights, such as fp8, nvfp4, mxfp4, int4 or bf16. Default: as in the config.",
        rich_help_panel=SUBJECT,
    ),
]
EXPERTS = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT", help="Number format of the routed experts. Default: as the weights.", rich_help_panel=SUBJECT
    ),
]
KV = Annotated[
    str | None,
    typer.Option(
        "--kv",
        metavar="FORMAT",
        help="Number format of the KV cache, such as fp8 or bf16 (fp8_ds_mla: the latent of MLA).",
        rich_help_panel=SUBJECT,
    ),
]

IMAGES = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        metavar="SIZE",
        help="An image that each prompt holds, WIDTHxHEIGHT in pixels such as 1024x768; 1024x768*4 for four. Repeatable.",
        rich_help_panel=WORKLOAD,
    ),
]
AUDIO = Annotated[
    list[str] | None,
    typer.Option(
        "--audio",
        metavar="SECONDS",
        help="A recording that each prompt holds, such as 30; 30*2 for two. Repeatable.",
        rich_help_panel=WORKLOAD,
    ),
]


def count(name: str, words: str, panel: str | None = None, **settings: Any) -> Any:
    """Return an option that takes a count: 8192, 8k or 1e3."""

    def parse(text: Any) -> Any:
        return text if text is None else read_count(text, name)

    return typer.Option(name, parser=parse, metavar="N", help=words, rich_help_panel=panel, **settings)


def option(words: str, panel: str | None = None, *names: str, **settings: Any) -> Any:
    """Return an option of a panel of the help; its name is the parameter's unless others are given."""
    return typer.Option(*names, help=words, rich_help_panel=panel, **settings)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests that are alike, and the limits on them."""

    input_: Annotated[int, count("--input", "Prompt tokens of a request.", WORKLOAD)] = 1024
    output: Annotated[int, count("--output", "Output tokens of a request.", WORKLOAD)] = 1024
    cached: Annotated[float, option("Share of the prompt that a prefix cache holds (0 to 1).", WORKLOAD)] = 0.0
    speed: Annotated[float | None, option("Least output speed for each user, in tok/s.", LIMITS)] = None
    ttft: Annotated[float | None, option("Longest mean time to first token, in s.", LIMITS)] = None

    def workload(self) -> "Workload":
        """Return the requests."""
        from steptime.planning.workload import Workload

        return Workload(input_tokens=self.input_, output_tokens=self.output, cached_share=self.cached)


def read_limits(speed: float | None, ttft: float | None) -> "Slo":
    """Return the limits on speed [tok/s] for each user and on the first token [s]."""
    from steptime.number_checks import positive
    from steptime.planning.workload import limits

    return limits(
        speed=None if speed is None else positive("--speed", speed, "tok/s"),
        ttft=None if ttft is None else positive("--ttft", ttft, "s"),
    )


def read_modes(text: str) -> tuple[str, ...]:
    """Return the modes of deployment that --mode names, with commas between them, or any."""
    from steptime.errors import short_repr
    from steptime.planning.planner import MODES

    modes = MODES if text == "any" else tuple(name.strip() for name in text.split(","))
    for name in modes:
        if name == "any":
            raise RangeError(f"--mode {short_repr(text)} names any beside others; any alone is every mode")
        if name not in MODES:
            raise UnknownName("mode", name, [*MODES, "any"], "Known: aggregated, disaggregated, any.")
    return tuple(name for name in MODES if name in modes)


def read_model(name: str, weights: str | None, experts: str | None, kv: str | None, catalog: str | None) -> "Model":
    """Return the model of a name or a path, in the formats asked for."""
    from steptime.models.model_loading import load_model

    for option, text in (("--weights", weights), ("--experts", experts), ("--kv", kv)):
        not_empty(option, text, "a number format, such as fp8")
    return load_model(name, weights=weights or "", experts=experts or "", kv=kv or "", catalog=catalog)


def not_empty(name: str, text: str | None, content: str) -> None:
    """Raise RangeError for an option that was given without anything in it."""
    if text is not None and not text.strip():
        raise RangeError(f"{name} needs {content}")


def read_system(name: str, changes: list[str] | None, catalog: str | None) -> "System":
    """Return the system of a name or a path, with its what-ifs."""
    from steptime.catalog.hardware_loading import load_system
    from steptime.hardware.what_if import read_changes, vary

    try:
        system = load_system(name, catalog)
    except UnknownName as problem:
        raise _swapped(name, catalog) or problem from None
    return vary(system, read_changes(system, tuple(changes or ())))


def _swapped(name: str, catalog: str | None) -> InputError | None:
    """Return what to say where a model stands in the place of a system; None where it is none."""
    from steptime.models.model_loading import load_model

    try:
        load_model(name, catalog=catalog)
    except InputError:
        return None
    return UnknownName("system", name, (), "It is a model: the model comes first, then the system.")


def with_rent(system: "System", rent: str | None, changes: list[str] | None) -> "System":
    """Return a system with the rent asked for; refuse two rents."""
    from steptime.hardware.rental_prices import with_rent as rented

    not_empty("--rent", rent, "owned, contract, ondemand, or USD per chip-hour such as 2.10")
    if rent is None:
        return system
    if any(change.partition("=")[0].strip() == "rent" for change in changes or ()):
        raise RangeError("--rent and --set rent= both set the rent; keep one of the two")
    return rented(system, rent)


def read_systems(catalog: str | None) -> "list[System]":
    """Return every system of the catalogue."""
    from steptime.catalog.data_files import files
    from steptime.catalog.hardware_loading import load_system

    return [load_system(name, catalog) for name in files("systems", catalog)]


def refuse_idle(ctx: typer.Context, needs: Mapping[str, tuple[bool, str]]) -> None:
    """Raise RangeError for an option that was given and would be of no use.

    `needs` says what an option needs: whether that holds, and the parameters that need it, parted by spaces.
    """
    typed_names = {name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    for requirement, (holds, names) in needs.items():
        idle = [name for name in names.split() if name in typed_names]
        if idle and not holds:
            option_strings = {param.name: param.opts[0] for param in ctx.command.params}
            raise RangeError(f"{option_strings[idle[0]]} needs {requirement}")


@dataclass(frozen=True, kw_only=True)
class SubjectChanges:
    """Options of the command line that change what is asked about: the user's own runs, and figures of the machine."""

    anchor: Annotated[
        str | None,
        typer.Option(
            "--anchor",
            metavar="RESULTS",
            help="Benchmark results that correct predictions: a result of `vllm bench serve` or SGLang's bench_serving, with "
            "missing settings after it (result.json,tp=4,weights=fp8), or a CSV of runs.",
            show_default="those that `steptime anchors` keeps",
            rich_help_panel=SUBJECT,
        ),
    ] = None
    no_anchor: Annotated[
        bool, typer.Option("--no-anchor", help="Ignore the runs that `steptime anchors` keeps.", rich_help_panel=SUBJECT)
    ] = False
    set_: SET = None

    def values(self, ctx: typer.Context, form: type) -> dict[str, Any]:
        """Return the inputs of a question that were typed, with changed figures, and the engine corrected by own runs.

        Args:
            ctx: context of the command.
            form: dataclass of the question's inputs.
        """
        from steptime.questions.subject import read_subject

        values = typed_with_changes(ctx, form, self.set_)
        if self.anchor is not None and self.no_anchor:
            raise RangeError("--anchor gives runs and --no-anchor leaves them out; keep one of the two")
        try:
            model, system, engine = read_subject(values)
        except UnknownName as problem:
            raise _swapped(values["system"], values.get("catalog")) or problem from None
        corrected = self._anchored(values, model, system, engine)
        return values if corrected is engine else {**values, "engine": corrected, "imbalance": None}

    def _anchored(self, values: Mapping[str, Any], model: "Model", system: "System", engine: "Engine") -> "Engine":
        """Return the engine with the user's runs that are given, or that are kept of this model, system and engine."""
        from steptime.catalog.data_files import files
        from steptime.physics.engine import anchored
        from steptime.physics.uncertainty import has_range

        catalog = values.get("catalog")
        if self.anchor is not None:
            settings = {"system": str(values["system"]), "weights": values.get("weights") or ""}
            runs = read_anchor(self.anchor, settings, engine, catalog)
            return anchored(engine, runs, model=model.name, system=system.name)
        if self.no_anchor or not has_range(engine) or not files("anchors", catalog):
            return engine
        from steptime.validation.user_calibration import kept_anchor

        return anchored(engine, kept_anchor(model, system, engine, catalog), model=model.name, system=system.name)

    def files(self, values: Mapping[str, Any]) -> list[str]:
        """Return the names that may be files which the command reads."""
        runs = anchor_path(self.anchor) if self.anchor else ""
        return [
            name
            for name in (*(values.get(key) for key in ("model", "system", "engine")), runs)
            if isinstance(name, str) and name
        ]


def typed_with_changes(ctx: typer.Context, form: type, changes: list[str] | None) -> dict[str, Any]:
    """Return the inputs of a question that were typed, with the figures of the machine that --set changes.

    Args:
        ctx: context of the command.
        form: dataclass of the question's inputs.
        changes: texts of --set, such as "chip.hbm.bandwidth=16TB/s".
    """
    from steptime.cli.option_groups import typed_values
    from steptime.hardware.what_if import read_changes
    from steptime.questions.subject import read_system

    values = typed_values(ctx, form)
    for name, example in NEEDED.items():
        not_empty(f"--{name}", values.get(name), example)
    try:
        system = read_system(values)
    except UnknownName as problem:
        raise _swapped(values["system"], values.get("catalog")) or problem from None
    figures = read_changes(system, tuple(changes or ()))
    if "rent" in figures and "rent" in values:
        raise RangeError("--rent and --set rent= both set the rent; keep one of the two")
    return values | figures
