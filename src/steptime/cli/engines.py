"""The command `steptime engines`."""

from typing import Annotated

import typer

from steptime.cli.options import CATALOG, CSV, FULL, JSON, refuse_idle
from steptime.cli.output import check_outputs, print_json, show, write_csv


def engines(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="An engine or a training stack to show; without it, all are listed.", show_default=False),
    ] = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """List the serving engines and the training stacks, or show the constants of one.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.catalog.data_files import files
    from steptime.describe import engine_summary as cards
    from steptime.physics.engine import load_engine

    refuse_idle(ctx, {"the list, not the NAME of an engine": (name is None, "csv"), "text, not --json": (not json, "full")})
    check_outputs({"--csv": csv}, ())
    if name is not None and name in files("stacks", catalog) and name not in files("engines", catalog):
        _stack(name, catalog, full=full, json=json)
        return
    names = ("ideal", *files("engines", catalog)) if name is None else (name,)
    table = cards.engine_table(load_engine(n, catalog) for n in names)
    if csv is not None:
        write_csv(csv, table)
    if json:
        print_json(table if name is None else table.engines[0])
        return
    from steptime.cli.views.catalog_view import engine_view, engines_view

    if name is not None:
        show(engine_view(table.engines[0], full=full))
        return
    from steptime.cli.views.training_view import stacks_view

    show(engines_view(table.engines, stacks_view(files("stacks", catalog), catalog), full=full))


def _stack(name: str, catalog: str | None, *, full: bool, json: bool) -> None:
    """Show a training stack."""
    from steptime.cli.views.training_view import stack_view
    from steptime.training.training_stack import load_stack

    stack = load_stack(name, catalog)
    if json:
        print_json(stack)
    else:
        from rich.console import Group

        from steptime.cli.views.answer import Answer

        view = stack_view(stack)
        parts = view.renderables if isinstance(view, Group) else [view]
        sentence = f"{stack.name}: {stack.title}, fitted to {stack.fit.get('runs', 0):,} measured runs."
        show(Answer(sentence=sentence, body=parts, full_adds="all constants", files="", full=full))
