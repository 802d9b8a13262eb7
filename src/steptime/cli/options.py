"""Options of a command: derived from the declared inputs of questions, or spelt out in dataclasses of typer options.

The order is: the derivation, and options that several commands share with the functions that read their values. The text of
`--anchor` is a file of measured runs with settings that the file lacks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from steptime.cli.output import check_outputs, check_picture, print_result
from steptime.errors import DataFileError, InputError, RangeError, UnknownName, short_repr
from steptime.questions.declaration import COUNT, NUMBER, SWITCH, TEXTS, Input, number_in_unit
from steptime.units import MOST_COUNTED
from steptime.units import count as read_count

if TYPE_CHECKING:
    from steptime.hardware.system import System
    from steptime.models.model import Model
    from steptime.physics.bias_correction import Anchor, Anchors
    from steptime.physics.engine import Engine
    from steptime.result_base import Result

TYPES: dict[str, Any] = {COUNT: int | None, NUMBER: float | None, SWITCH: bool, TEXTS: list[str] | None}
# Panels of `--help`.
SUBJECT, LIMITS, LAYOUT, OUTPUT = "Model, machine and engine", "Limits", "Layout", "Output"
# Placeholders of numbers in the help, by unit.
METAVARS = {"s": "SECONDS", "tok/s": "TOK/S", "requests/s": "RATE", "B/s": "BANDWIDTH", "days": "DAYS"}
# Options whose text must not be empty, with what the error message asks for.
NEEDED = {
    "weights": "a number format, such as fp8", "experts": "a number format, such as fp8", "kv": "a number format, such as fp8",
    "catalog": "a folder", "rent": "owned, contract, ondemand, or USD per chip-hour such as 2.10",
}  # fmt: skip


# --- options from declared inputs ---------------------------------------------------------------------------------------

keyword_parameter = partial(Parameter, kind=Parameter.KEYWORD_ONLY)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command in which each parameter of a dataclass type is spelt out as one option per field.

    Args:
        command: takes dataclasses; fields that a question declares become the options that their declarations describe.

    Returns:
        A function whose signature typer reads; it calls `command` with the dataclasses made of the options.

    Raises:
        ValueError: if two fields or parameters have one name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if name != "return" and is_dataclass(hint)}
    spelt: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name not in groups:
            spelt.append(keyword_parameter(name, annotation=hints[name], default=parameter.default))
            continue
        # One option per field of a dataclass.
        group_hints = get_type_hints(groups[name], include_extras=True)
        for option in fields(groups[name]):
            if "input" in option.metadata:
                spelt.append(_declared_option(option.name, option.metadata["input"]))
            else:
                default = Parameter.empty if option.default is MISSING else option.default
                spelt.append(keyword_parameter(option.name, annotation=group_hints[option.name], default=default))
    names = [parameter.name for parameter in spelt]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{command.__name__} has the option {name} twice")

    def spelt_out(**values: Any) -> None:
        for name, group in groups.items():
            typed = {option.name: values.pop(option.name) for option in fields(group)}
            # A declared input that was not typed has its default.
            defaults = [f.name for f in fields(group) if "input" in f.metadata and f.default is not MISSING]
            values[name] = group(**{key: value for key, value in typed.items() if value is not None or key not in defaults})
        command(**values)

    spelt_out.__name__, spelt_out.__doc__, spelt_out.__module__ = command.__name__, command.__doc__, command.__module__
    spelt_out.__annotations__ = {parameter.name: parameter.annotation for parameter in spelt}
    # typer expects positional arguments before options
    spelt.sort(key=lambda parameter: parameter.name not in ("ctx", "model", "system"))
    spelt_out.__signature__ = Signature(spelt)  # type: ignore[attr-defined]
    return spelt_out


def _declared_option(name: str, declared: Input) -> Parameter:
    """Return the option, or the argument, that an input declares."""
    kind = TYPES.get(declared.kind, str | None)
    if declared.positional:
        argument: Any = typer.Argument(help=declared.help(), show_default=False)
        kind, argument_default = (str, Parameter.empty) if declared.required else (str | None, None)
        return keyword_parameter(name, annotation=Annotated[kind, argument], default=argument_default)
    words, default = f"--{name.strip('_').replace('_', '-')}", declared.default
    settings: dict[str, Any] = {}
    if declared.metavar:
        settings["metavar"] = declared.metavar
    if declared.kind == NUMBER:
        # A number may have its unit: 200ms.
        parser = partial(_read_optional_number, name=words, unit=declared.unit)
        settings |= {"parser": parser, "metavar": declared.metavar or METAVARS.get(declared.unit, "NUMBER")}
    if declared.kind == COUNT:
        parser = partial(read_count, name=words, maximum=declared.maximum or MOST_COUNTED)
        settings |= {"parser": parser, "metavar": declared.metavar or "N"}
    help_words = declared.help() + r" [red]\[required][/red]" * declared.required
    if declared.kind != SWITCH:
        is_hidden = declared.kind == TEXTS or default in ("", None)
        default_text = False if is_hidden else f"{default:,}" if isinstance(default, int) else str(default)
        settings["show_default"] = declared.default_words or default_text
    described = option(help_words, declared.group or None, words, **settings)
    return keyword_parameter(name, annotation=Annotated[kind, described], default=False if declared.kind == SWITCH else None)


def _read_optional_number(text: Any, name: str, unit: str) -> Any:
    return number_in_unit(name, text, unit) if isinstance(text, str) else text


def typed_values(ctx: typer.Context, form: type) -> dict[str, Any]:
    """Return the inputs of a question that were typed on the command line, by name.

    Args:
        ctx: context of typer.
        form: dataclass of the inputs.

    Returns:
        Values by name.
    """
    names = _typed_names(ctx)
    return {f.name: ctx.params[f.name] for f in fields(form) if "input" in f.metadata and f.name in names}


def _typed_names(ctx: typer.Context) -> set[str]:
    return {name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}


def declared(form: Any, name: str) -> Any:
    """Return a field of a dataclass that is declared like an input of a question.

    Args:
        form: Dataclass of the question's inputs.
        name: Name of the input.

    Returns:
        A dataclass field, from which `grouped` derives the option.
    """
    original = form.__dataclass_fields__[name]
    return field(default=original.default, metadata=original.metadata)


def count(name: str, words: str, panel: str | None = None, **settings: Any) -> Any:
    """Return an option that takes a count: 8192, 8k or 1e3.

    Args:
        name: Option string, such as "--input".
        words: Help of the option.
        panel: Panel of `--help`.
        **settings: Further settings of `typer.Option`.

    Returns:
        The typer option.
    """
    parser = partial(read_count, name=name, maximum=MOST_COUNTED)
    if isinstance(settings.get("show_default"), str):
        # typer would put a default in words in parentheses.
        words, settings = rf"{words} [dim]\[default: {settings['show_default']}][/dim]", settings | {"show_default": False}
    return typer.Option(name, parser=parser, metavar="N", help=words, rich_help_panel=panel, **settings)


def option(words: str, panel: str | None = None, *names: str, show_default: str | bool = True, **settings: Any) -> Any:
    """Return an option in a panel of `--help`.

    Args:
        words: Help of the option.
        panel: Panel of `--help`.
        *names: Option strings; without any, typer takes the name of the parameter.
        show_default: The default in words, or whether typer shows the value.
        **settings: Further settings of `typer.Option`.

    Returns:
        The typer option.
    """
    # typer puts words of a default in parentheses within its brackets.
    if isinstance(show_default, str):
        words, show_default = rf"{words} [dim]\[default: {show_default}][/dim]", False
    return typer.Option(*names, help=words, rich_help_panel=panel, show_default=show_default, **settings)


# --- options that several commands share --------------------------------------------------------------------------------

FULL = Annotated[bool, option("Print all tables, charts and notes.", OUTPUT, "--full")]
JSON = Annotated[bool, option("Print JSON in SI units instead of text; errors too.", OUTPUT, "--json")]
CSV = Annotated[str | None, option("Write the table to a CSV file in SI units as well.", OUTPUT, "--csv", metavar="FILE")]
SET = Annotated[
    list[str] | None,
    option(
        "Changed figure of the system, such as chip.hbm.bandwidth=16TB/s or rent='2 USD/h'. Repeatable.", SUBJECT, "--set",
        metavar="KEY=VALUE",
    ),
]  # fmt: skip
CATALOG = Annotated[
    str | None,
    option(
        "Folder with chips/, systems/, rents/, models/ or engines/, searched before the packaged files.", SUBJECT, "--catalog",
        metavar="FOLDER",
    ),
]  # fmt: skip
RENT = Annotated[
    str | None,
    option(
        "Rent: owned (cost of ownership), contract, ondemand, or USD per chip-hour such as 2.10.", SUBJECT, "--rent",
        metavar="KIND", show_default="contract or on demand, whichever source has the best grade and newest date",
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TextOutput:
    """Options of the output of a command that writes no table."""

    full: FULL = False
    json: JSON = False

    def check(
        self,
        ctx: typer.Context,
        needs: Mapping[str, tuple[bool, str]] | None = None,
        inputs: Iterable[str] = (),
        **files: str | None,
    ) -> None:
        """Check options and output files before any work.

        Args:
            ctx: Context of the command.
            needs: For each requirement in words: whether it is met, and the parameters that need it, separated by spaces.
            inputs: Names that may be input files or folders.
            **files: Further output files by the name of their option.
        """
        refuse_idle(ctx, {**(needs or {}), "text, not --json": (not self.json, "full")})
        outputs = {"csv": getattr(self, "csv", None)} | files
        check_outputs({f"--{name.replace('_', '-')}": path for name, path in outputs.items()}, inputs)
        if (plot := files.get("plot")) is not None:
            check_picture(plot)

    def print(
        self, result: Result, view: str, *, summary: Callable[[Any], Mapping[str, Any]] | None = None, **settings: Any
    ) -> None:
        """Print a result as text or JSON, and write its table to the file of --csv.

        Args:
            result: The result.
            view: Module and function of the text in `cli/views`.
            summary: Returns the answers of the question from the result, which JSON has as well.
            **settings: Further arguments of the view.
        """
        csv = getattr(self, "csv", None)
        print_result(result, view, csv=csv, json=self.json, full=self.full, summary=summary, **settings)


@dataclass(frozen=True, kw_only=True)
class Output(TextOutput):
    """Options of the output of a command."""

    csv: CSV = None


def not_empty(name: str, text: str | None, content: str) -> None:
    """Raise RangeError for an option with an empty text.

    Args:
        name: Option string, such as "--rent".
        text: Text of the option; None if it was not given.
        content: What the option needs, for the message.
    """
    if text is not None and not text.strip():
        raise RangeError(f"{name} needs {content}")


def lengths_need(trace: str | None) -> dict[str, tuple[bool, str]]:
    """Return the requirement of options of lengths: no trace, which sets them.

    Args:
        trace: Value of --trace.

    Returns:
        The requirement for `Output.check`.
    """
    not_empty("--trace", trace, "a name or a file: azure-chat, azure-code, mooncake, or a path")
    return {"--trace already gives lengths; leave out {}": (trace is None, "input output spread output_spread")}


def read_system(name: str, changes: list[str] | None, catalog: str | None) -> System:
    """Return a system with the figures that --set changes.

    Args:
        name: Name in the catalogue, or path of a file.
        changes: Texts of --set, such as "chip.hbm.bandwidth=16TB/s".
        catalog: Folder that is searched before the packaged catalogue.

    Returns:
        The system.
    """
    from steptime.catalog.hardware_loading import load_system
    from steptime.hardware.what_if import read_changes, vary

    try:
        system = load_system(name, catalog)
    except UnknownName as problem:
        # A model in this place means that the two arguments are swapped.
        raise _swapped(name, catalog) or problem from None
    return vary(system, read_changes(system, tuple(changes or ())))


def _swapped(name: str, catalog: str | None) -> InputError | None:
    """Return the error for a model in the place of the system; None for a name that is not a model."""
    from steptime.models.model_loading import load_model

    try:
        load_model(name, catalog=catalog)
    except InputError:
        return None
    return UnknownName("system", name, (), "It is a model: the model comes first, then the system.")


def with_rent(system: System, rent: str | None, changes: list[str] | None) -> System:
    """Return a system with the rent that --rent sets.

    Args:
        system: A system.
        rent: Text of --rent; None keeps the rent of the system.
        changes: Texts of --set, which may set the rent instead.

    Returns:
        The system with its rent.

    Raises:
        RangeError: Both --rent and --set give a rent.
    """
    from steptime.hardware.rental_prices import with_rent as rented

    not_empty("--rent", rent, "owned, contract, ondemand, or USD per chip-hour such as 2.10")
    if rent is None:
        return system
    if any(change.partition("=")[0].strip() == "rent" for change in changes or ()):
        raise RangeError("--rent and --set rent= both set the rent; keep one of the two")
    return rented(system, rent)


def read_systems(catalog: str | None) -> list[System]:
    """Return every system of the catalogue.

    Args:
        catalog: Folder that is searched before the packaged catalogue.

    Returns:
        The systems.
    """
    from steptime.catalog.data_files import files
    from steptime.catalog.hardware_loading import load_system

    return [load_system(name, catalog) for name in files("systems", catalog)]


def refuse_idle(ctx: typer.Context, needs: Mapping[str, tuple[bool, str]]) -> None:
    """Raise RangeError for an option that has no effect in this call.

    Args:
        ctx: Context of the command.
        needs: For each requirement in words, or message with {} for the option: whether it is met, and the parameters that need
            it, separated by spaces.
    """
    # Defaults never count: only options on the command line can be idle.
    typed_names = _typed_names(ctx)
    for requirement, (is_met, names) in needs.items():
        idle = [name for name in names.split() if name in typed_names]
        if idle and not is_met:
            option_strings = {param.name: param.opts[0] for param in ctx.command.params}
            message = requirement if "{}" in requirement else f"{{}} needs {requirement}"
            raise RangeError(message.format(option_strings[idle[0]]))


@dataclass(frozen=True, kw_only=True)
class SubjectChanges:
    """Options that change the subject of a question: the user's own runs, and figures of the system."""

    anchor: Annotated[
        str | None,
        option(
            "Benchmark results that correct the prediction. A result of a benchmark harness, as for `steptime validate`, "
            "followed by settings that the file lacks (result.json,tp=4,weights=fp8), or a CSV file of runs.",
            SUBJECT, "--anchor", metavar="RESULTS", show_default="the runs that `steptime anchors` stores",
        ),
    ] = None  # fmt: skip
    no_anchor: Annotated[bool, option("Ignore the runs that `steptime anchors` stores.", SUBJECT, "--no-anchor")] = False
    set_: SET = None

    def values(self, ctx: typer.Context, form: type) -> dict[str, Any]:
        """Return the inputs on the command line, with changed figures and the corrected engine.

        Args:
            ctx: Context of the command.
            form: Dataclass of the question's inputs.

        Returns:
            Values by the name of the input; the engine is corrected by the user's own runs.

        Raises:
            RangeError: Both --anchor and --no-anchor are given.
        """
        from steptime.questions.subject import read_subject

        values = typed_with_changes(ctx, form, self.set_)
        if self.anchor is not None and self.no_anchor:
            raise RangeError("--anchor adds runs and --no-anchor ignores them; keep one of the two")
        try:
            model, system, engine = read_subject(values)
        except UnknownName as problem:
            raise _swapped(values["system"], values.get("catalog")) or problem from None
        from steptime.catalog.data_files import files
        from steptime.physics.uncertainty import has_range

        # An engine without a range is a bound, which stored runs do not correct.
        catalog = values.get("catalog")
        if self.anchor is None and (self.no_anchor or not has_range(engine) or not files("anchors", catalog)):
            return values
        corrected = corrected_engine(values, (model, system, engine), self.anchor)
        # The engine has the imbalance already; None keeps it from being applied twice.
        return values if corrected is engine else {**values, "engine": corrected, "imbalance": None}

    def files(self, values: Mapping[str, Any]) -> list[str]:
        """Return the inputs of the command that may be files.

        Args:
            values: Inputs by name.

        Returns:
            Names of model, system, engine and runs, which may be paths.
        """
        names = [values.get(key) for key in ("model", "system", "prefill_system", "engine")]
        names += [anchor_path(self.anchor)] if self.anchor else []
        return [name for name in names if isinstance(name, str) and name]


def typed_with_changes(ctx: typer.Context, form: type, changes: list[str] | None) -> dict[str, Any]:
    """Return the inputs on the command line, with the figures of the system that --set changes.

    Args:
        ctx: Context of the command.
        form: Dataclass of the question's inputs.
        changes: Texts of --set, such as "chip.hbm.bandwidth=16TB/s".

    Returns:
        Values by the name of the input, and changed figures by their key.

    Raises:
        RangeError: Both --rent and --set give a rent.
    """
    from steptime.hardware.what_if import read_changes
    from steptime.questions.subject import read_system

    values = typed_values(ctx, form)
    for name, example in NEEDED.items():
        not_empty(f"--{name}", values.get(name), example)
    try:
        system = read_system(values)
    except UnknownName as problem:
        raise _swapped(values["system"], values.get("catalog")) or problem from None
    figures = read_changes(system, tuple(changes)) if changes else {}
    if "rent" in figures and "rent" in values:
        raise RangeError("--rent and --set rent= both set the rent; keep one of the two")
    return values | figures


def anchor_path(text: str) -> str:
    """Return the name of the file in front of its settings.

    Args:
        text: text of --anchor.

    Returns:
        The name.

    >>> anchor_path("result.json,tp=4,weights=fp8")
    'result.json'
    """
    return text if os.path.exists(text) else text.partition(",")[0]


def anchor_settings(text: str) -> dict[str, str]:
    """Return the settings behind the name of the file.

    Args:
        text: text of --anchor.

    Returns:
        Texts by the argument of `load_anchor`.

    >>> anchor_settings("result.json,tp=4,weights=fp8")
    {'tp': '4', 'weights': 'fp8'}
    """
    from steptime.validation.bench_results import SETTING_COLUMNS

    settings: dict[str, str] = {}
    for part in filter(None, text.removeprefix(anchor_path(text)).split(",")):
        name, equals, value = (field.strip() for field in part.partition("="))
        if not (equals and value):
            raise RangeError(f"--anchor: {short_repr(part)} is not NAME=VALUE, as in --anchor result.json,tp=4,weights=fp8")
        if name not in SETTING_COLUMNS:
            raise UnknownName("name in --anchor", name, SETTING_COLUMNS, f"Known: {', '.join(SETTING_COLUMNS)}.")
        if name in settings:
            raise RangeError(f"--anchor: {name} is given twice")
        settings[name] = value
    return settings


def corrected_engine(values: Mapping[str, Any], subject: tuple[Model, System, Engine], anchor: str | None) -> Engine:
    """Return the engine of a question about serving, corrected by the user's own runs.

    Args:
        values: inputs by name.
        subject: model, system and engine of the question.
        anchor: text of --anchor; None: the runs that `steptime anchors` keeps.

    Returns:
        The engine; the same where no run corrects it.
    """
    from steptime.models.model import stored_formats
    from steptime.physics.engine import anchored
    from steptime.physics.uncertainty import has_range
    from steptime.validation.user_calibration import kept_anchor

    (model, system, engine), catalog = subject, values.get("catalog")
    runs: Anchors | Anchor | None = None
    if anchor is not None:
        settings = {name: str(values.get(name) or "") for name in ("system", "weights")}
        runs = read_anchor(anchor, settings, engine, catalog)
    elif has_range(engine):
        runs = kept_anchor(model, system, engine, catalog)
    return anchored(engine, runs, model=model.name, system=system.name, formats=stored_formats(model))


def read_anchor(text: str, defaults: Mapping[str, str], engine: Engine | None, catalog: str | None) -> Anchors:
    """Return the anchors of a file of runs.

    Args:
        text: text of --anchor.
        defaults: settings that apply where neither the file nor the text has one.
        engine: engine whose predictions the runs correct.
        catalog: folder of own catalogue files.

    Returns:
        Runs in groups, with their corrections.

    Raises:
        DataFileError: if a setting is missing.
    """
    from steptime.validation.bench_results import SETTING_COLUMNS, NotTold
    from steptime.validation.user_calibration import in_own_words, read_anchors

    if not text.strip():
        raise RangeError("--anchor needs a file of runs: a result of a load generator, or a CSV as of `steptime validate`")
    path, settings = anchor_path(text), anchor_settings(text)
    for _ in range(len(defaults) + 1):
        try:
            return read_anchors(path, settings, engine=engine, catalog=catalog)
        except NotTold as problem:
            names = [name for name, column in SETTING_COLUMNS.items() if column in problem.columns]
            filled = {name: defaults[name] for name in names if defaults.get(name) and name not in settings}
            if not filled:
                hint = (
                    f"{in_own_words(problem.problem)} behind the file, as in --anchor {os.path.basename(path)},tp=4,weights=fp8"
                )
                raise DataFileError(problem.path, hint, problem.line) from None
            settings |= filled
    raise RangeError(f"--anchor: {path} lacks settings of the run")
