"""Options of a command: derived from the declared inputs of questions, or spelt out in dataclasses of typer options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from steptime.questions.declaration import COUNT, NUMBER, SWITCH, TEXTS, Input
from steptime.units import count as read_count

TYPES: dict[str, Any] = {COUNT: int | None, NUMBER: float | None, SWITCH: bool, TEXTS: list[str] | None}


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
        spelt += _options(groups[name]) if name in groups else [_keyword(name, hints[name], parameter.default)]
    names = [parameter.name for parameter in spelt]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{command.__name__} has the option {name} twice")

    def spelt_out(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: _value(field, values.pop(field.name)) for field in fields(group)})
        command(**values)

    spelt_out.__name__, spelt_out.__doc__, spelt_out.__module__ = command.__name__, command.__doc__, command.__module__
    spelt_out.__annotations__ = {parameter.name: parameter.annotation for parameter in spelt}
    # typer expects positional arguments before options
    spelt.sort(key=lambda parameter: parameter.name not in ("ctx", "model", "system"))
    spelt_out.__signature__ = Signature(spelt)  # type: ignore[attr-defined]
    return spelt_out


def _value(field: Field[Any], value: Any) -> Any:
    """Return the value of a field; a declared input that was not typed has its default."""
    if "input" in field.metadata and value is None and field.default is not MISSING:
        return field.default
    return value


def _options(group: Any) -> Iterator[Parameter]:
    """Yield one parameter per field of a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        if "input" in field.metadata:
            yield _declared_option(field.name, field.metadata["input"])
        else:
            yield _keyword(field.name, hints[field.name], Parameter.empty if field.default is MISSING else field.default)


def _declared_option(name: str, declared: Input) -> Parameter:
    """Return the option, or the argument, that an input declares."""
    kind = TYPES.get(declared.kind, str | None)
    if declared.positional:
        argument: Any = typer.Argument(help=declared.help(), show_default=False)
        return _keyword(name, Annotated[str if declared.required else str | None, argument], Parameter.empty)
    settings: dict[str, Any] = {"rich_help_panel": declared.group or None}
    if declared.metavar:
        settings["metavar"] = declared.metavar
    if declared.kind == COUNT:
        settings |= {"parser": _count_parser(f"--{option_name(name)}"), "metavar": declared.metavar or "N"}
    if declared.kind != SWITCH:
        settings["show_default"] = declared.default_words or (
            _shown_default(declared) if declared.default is not None else False
        )
    option = typer.Option(f"--{option_name(name)}", help=declared.help(), **settings)
    return _keyword(name, Annotated[kind, option], False if declared.kind == SWITCH else None)


def _shown_default(declared: Input) -> str | bool:
    if declared.kind == TEXTS or declared.default == "":
        return False
    return f"{declared.default:,}" if isinstance(declared.default, int) else str(declared.default)


def option_name(name: str) -> str:
    """Return the name of the option of an input.

    Args:
        name: name of the input.

    Returns:
        The option without dashes.

    >>> option_name("max_sequences")
    'max-sequences'
    """
    return name.strip("_").replace("_", "-")


def _count_parser(name: str) -> Callable[[Any], Any]:
    def parse(text: Any) -> Any:
        return text if text is None else read_count(text, name)

    return parse


def typed_values(ctx: typer.Context, form: type) -> dict[str, Any]:
    """Return the inputs of a question that were typed on the command line, by name.

    Args:
        ctx: context of the command.
        form: dataclass of the inputs.

    Returns:
        Values by name.
    """
    params: Mapping[str, Any] = ctx.params
    names = [field.name for field in fields(form) if "input" in field.metadata]
    return {name: params[name] for name in names if _is_typed(ctx, name)}


def _is_typed(ctx: typer.Context, name: str) -> bool:
    return getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
