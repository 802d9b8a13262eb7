"""Print the result of a command: as CSV, as JSON, or as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from steptime.cli.output import make_console, print_json, show, write_csv

if TYPE_CHECKING:
    from steptime.result_base import Result, Tabular


def print_result(
    result: Tabular | Result, view: str, *, csv: str | None = None, json: bool = False,
    summary: Callable[[Any], Mapping[str, Any]] | None = None, **settings: Any,
) -> None:  # fmt: skip
    """Print a result, and write it to a file if one is named.

    Args:
        result: the result.
        view: module and function of the text in `cli/views`; JSON does not import it.
        csv: file for the table.
        json: whether to print JSON instead of text.
        summary: returns the answers of the question from the result, which JSON has as well.
        settings: arguments of the view.
    """
    if csv is not None:
        write_csv(csv, result)  # type: ignore[arg-type]
    if json:
        print_json(result if summary is None else result.to_dict(summary=summary(result)))
        return
    # views import rich, numpy and plotille, which JSON does not need
    module, _, name = view.partition(".")
    console = make_console()
    draw = getattr(import_module(f"steptime.cli.views.{module}"), name)
    show(draw(result, width=console.width, **settings), console=console)
