"""The command `steptime systems`."""

from typing import Annotated

import typer

from steptime.cli.options import (
    CATALOG,
    CSV,
    FULL,
    JSON,
    OUTPUT,
    RENT,
    SET,
    option,
    read_system,
    read_systems,
    refuse_idle,
    with_rent,
)
from steptime.cli.output import check_outputs, print_json, show, write_csv, write_out


def systems(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="System to show. Without it: the list of systems.", show_default=False)
    ] = None,
    toml: Annotated[bool, option("Print the system's file as a template for a new one.", OUTPUT, "--toml")] = False,
    set_: SET = None,
    rent: RENT = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """List the systems, or show one: balance, drain time, links, rent, and where each figure comes from.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.describe import system_summary as cards

    refuse_idle(
        ctx,
        {
            "the NAME of a system": (name is not None, "set_ toml"),
            "the list, not the NAME of a system": (name is None, "csv"),
            "text, not --json or --toml": (not (json or toml), "full"),
            "a file as it is, not --json, --set or --rent": (not (json or set_ or rent), "toml"),
        },
    )
    check_outputs({"--csv": csv}, ())
    if name is not None:
        if toml:
            from steptime.catalog.system_template import template

            write_out(template(name, catalog))
            return
        card = cards.system_card(with_rent(read_system(name, set_, catalog), rent, set_))
        if json:
            print_json(card)
            return
        from steptime.cli.views.catalog_view import system_view

        show(system_view(card, full=full))
        return
    listed = read_systems(catalog)
    table = cards.system_table(listed, rent=rent)
    if csv is not None:
        write_csv(csv, table)
    if json:
        print_json(table)
        return
    from steptime.cli.views.catalog_view import systems_view

    show(systems_view(table.systems, {system.name: system.chip.vendor for system in listed}, full=full))
