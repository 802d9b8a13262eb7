"""The command `steptime engines`."""

from typing import Annotated

import typer

from steptime.terminal.options import CATALOG, CSV, JSON, refuse_idle
from steptime.terminal.output import check_outputs, print_json, show, write_csv


def engines(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="An engine to show; without it, all are listed.", show_default=False)
    ] = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """List the engines, or show the constants of one."""
    from steptime.cards import engines as cards
    from steptime.catalog.files import files
    from steptime.physics.engine import load_engine

    refuse_idle(ctx, {"the list, not the NAME of an engine": (name is None, "csv")})
    check_outputs({"--csv": csv}, ())
    names = ("ideal", *files("engines", catalog)) if name is None else (name,)
    shown = cards.engine_table(load_engine(n, catalog) for n in names)
    if csv is not None:
        write_csv(csv, shown)
    if json:
        print_json(shown if name is None else shown.engines[0])
        return
    from steptime.terminal.views.cards import engine_view, engines_view

    show(engines_view(shown.engines) if name is None else engine_view(shown.engines[0]))
