"""The command `steptime roofline`."""

from typing import Annotated

import typer

from steptime.cli.options import (
    CATALOG,
    CSV,
    EXPERTS,
    JSON,
    KV,
    RENT,
    SET,
    WEIGHTS,
    count,
    option,
    read_model,
    read_system,
)
from steptime.cli.options import with_rent as rented
from steptime.cli.output import check_outputs, console_of, print_json, show, write_csv

SUBJECT = "The pair"


def roofline(
    model: Annotated[str, typer.Argument(help="Catalogue name, Hugging Face id, or path to a config.json or its folder.")],
    system: Annotated[str, typer.Argument(help="Catalogue name, or path to a TOML file.")],
    context: Annotated[int, count("--context", "Tokens of context of each sequence.", SUBJECT)] = 8192,
    engine: Annotated[str | None, option("Engine of the full model.", SUBJECT, show_default="as of `steptime step`")] = None,
    weights: WEIGHTS = None,
    experts: EXPERTS = None,
    kv: KV = None,
    rent: RENT = None,
    set_: SET = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """Answer the blackboard's questions for a real model on one scale-up domain, each closed form beside the full model."""
    from steptime.lecture.pair_roofline import roofline as board
    from steptime.physics.engine import engine_for

    check_outputs({"--csv": csv}, [model, system])
    machine = rented(read_system(system, set_, catalog), rent, set_)
    described = read_model(model, weights, experts, kv, catalog)
    found = board(described, machine, context=context, engine=engine_for(machine, engine, catalog))
    if csv is not None:
        write_csv(csv, found)
    if json:
        print_json(found)
        return
    from steptime.cli.views.lecture_view import roofline_view

    console = console_of()
    show(roofline_view(found, console.width), console=console)
