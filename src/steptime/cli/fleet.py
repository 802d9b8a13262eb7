"""The command `steptime fleet`."""

from typing import Annotated

import typer

from steptime.cli.options import OUTPUT, option
from steptime.cli.output import make_console, print_json, write_csv


def fleet(
    file: Annotated[str, typer.Argument(metavar="file", help="Models, systems and budget: a TOML, JSON or YAML file.")],
    budget: Annotated[float | None, option("Limit on the rent in USD per hour; by default that of the file.", OUTPUT)] = None,
    csv: Annotated[str | None, option("Write the deployments to a CSV file.", OUTPUT, metavar="FILE")] = None,
    json_: Annotated[bool, option("Print the answer as JSON.", OUTPUT, "--json")] = False,
) -> None:
    """Find the cheapest deployments of several models on one budget of chips.

    The file has `budget` in USD per hour, `[[models]]` with name, rate (requests/s), input, output and perhaps cached, speed,
    ttft, weights, experts, kv and systems, and `[[systems]]` with name, chips and perhaps rent (USD per chip-hour) and engine.
    """
    from steptime.number_checks import positive
    from steptime.planning.model_fleet import plan_fleet, read_fleet

    models, systems, limit = read_fleet(file)
    if budget is not None:
        limit = float(positive("budget", budget, "USD/h"))
    answer = plan_fleet(models, systems, limit)
    if csv is not None:
        write_csv(csv, answer)
    if json_:
        print_json(answer.to_dict())
    else:
        from steptime.cli.views.fleet_view import fleet_view

        make_console().print(fleet_view(answer))
    # The exit code is 1 where the chips or the budget do not suffice.
    raise typer.Exit(0 if answer.feasible else 1)
