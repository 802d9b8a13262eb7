"""The command `steptime models`."""

from typing import Annotated

import typer

from steptime.errors import InputError
from steptime.terminal.options import CATALOG, CSV, EXPERTS, JSON, KV, OUTPUT, WEIGHTS, count, option, read_model, refuse_idle
from steptime.terminal.output import check_outputs, console_of, print_json, show, write_csv


def models(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="A model to show, or several to compare; without one, the catalogue is listed.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[bool, option("Compare the models named, or those that --like finds.", OUTPUT, "--table")] = False,
    like: Annotated[str, option("List only names that contain this text.", OUTPUT)] = "",
    context: Annotated[int, count("--context", "Context in tokens, for the figures that depend on one.", OUTPUT)] = 8192,
    weights: WEIGHTS = None,
    experts: EXPERTS = None,
    kv: KV = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """List the models, compare some of them, or show what one is made of."""
    from steptime.cards import models as cards
    from steptime.numbers import check_positive

    chosen, lists = list(names or []), not names and not compare
    refuse_idle(
        ctx,
        {
            "the whole list or --table, not names": (not chosen, "like"),
            "a model, or --table": (not lists, "context weights experts kv"),
            "the list or a table": (len(chosen) != 1 or compare, "csv"),
        },
    )
    check_positive(context=context)
    check_outputs({"--csv": csv}, chosen)
    found = chosen or _alike(like, catalog)
    if lists:
        rows = cards.model_rows(like, catalog)
    else:
        read = [read_model(name, weights, experts, kv, catalog) for name in found]
        if len(read) == 1 and not compare:
            _show_one(cards.model_card(read[0], context=context), json=json)
            return
        rows = [cards.comparison_row(model, context=context) for model in read]
    if csv is not None:
        write_csv(csv, rows)
    if json:
        print_json(rows)
        return
    from steptime.terminal.card_views import comparison_view, models_view

    console = console_of()
    show(models_view(rows) if lists else comparison_view(rows, console.width), console=console)


def _alike(like: str, catalog: str | None) -> list[str]:
    """Return the names of the catalogue that contain a text; raise InputError with the nearest where none does."""
    from steptime.catalog.files import files
    from steptime.errors import did_you_mean

    known = files("models", catalog)
    found = [name for name in known if like.casefold() in name.casefold()]
    if not found:
        near = ", ".join(did_you_mean(like, known, alike=0.0))
        raise InputError(f"--like {like!r} finds no model; the nearest names are {near}")
    return found


def _show_one(card: dict[str, object], *, json: bool) -> None:
    """Print the card of one model."""
    if json:
        print_json(card)
        return
    from steptime.terminal.card_views import model_view

    console = console_of()
    show(model_view(card, console.width), console=console)
