"""Groups of options as dataclasses, which typer itself does not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command in which each parameter of a dataclass type is spelt out as one option a field.

    Typer reads the options from the signature of what is returned; `command` is called with the dataclasses made of them. A
    field of two groups, or a field named as another parameter, is refused with ValueError.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if name != "return" and is_dataclass(hint)}
    spelt: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        spelt += _options(groups[name]) if name in groups else [_keyword(name, hints[name], parameter.default)]
    taken: set[str] = set()
    for parameter in spelt:
        if parameter.name in taken:
            raise ValueError(f"{command.__name__} has the option {parameter.name} twice")
        taken.add(parameter.name)

    def spelt_out(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    spelt_out.__name__, spelt_out.__doc__, spelt_out.__module__ = command.__name__, command.__doc__, command.__module__
    spelt_out.__annotations__ = {parameter.name: parameter.annotation for parameter in spelt}
    spelt_out.__signature__ = Signature(spelt)  # type: ignore[attr-defined]
    return spelt_out


def _options(group: Any) -> Iterator[Parameter]:
    """Yield one parameter a field of a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield _keyword(field.name, hints[field.name], Parameter.empty if field.default is MISSING else field.default)


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
