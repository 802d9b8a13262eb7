"""The command `steptime fleet`."""

from typing import Annotated

import typer

from steptime.cli.options import OUTPUT, option
from steptime.cli.output import check_outputs, make_console, print_json, write_csv

# Shown by --help; a bracket before a name is escaped, because it would be markup.
FILE_FORMAT = """\b
budget = 200             # USD per hour (optional)
[\\[models]]
name = "llama-3.1-8b"
rate = 100               # requests/s; or rates: 24 of them
day = "chat"             # optional: chat, images, or peak over mean
peak_hour = 20           # optional: hour of the peak, 0 to 23
input = 1000             # tokens of a prompt
output = 200             # tokens of an answer
speed = 30               # limit: tokens/s per user (optional)
ttft = 2                 # limit: s to the first token (optional)
percentile = "p90"       # mean, p50, p90, p95 or p99 (optional)
cached = 0.5             # share of the prompt (optional)
weights = "fp8"          # also experts, kv (optional)
systems = ["hgx-h100"]   # only on these (optional)
[\\[systems]]
name = "hgx-h100"
chips = 32
rent = "2.10"            # USD per hour of a reserved chip (optional)
on_demand = "3.50"       # USD per chip-hour on demand (optional)
engine = "sglang"        # (optional)
"""


def fleet(
    file: Annotated[str, typer.Argument(metavar="file", help="Models, systems and budget: a TOML, JSON or YAML file.")],
    budget: Annotated[float | None, option("Limit on the rent in USD per hour; by default that of the file.", OUTPUT)] = None,
    csv: Annotated[str | None, option("Write the deployments to a CSV file.", OUTPUT, metavar="FILE")] = None,
    json_: Annotated[bool, option("Print the answer as JSON.", OUTPUT, "--json")] = False,
) -> None:
    """Find the cheapest deployments of several models on one budget of chips.

    `FILE_FORMAT` has the keys of the file.

    Without a feasible fleet the exit code is 1, and the answer says which model has no room and what would suffice.
    """
    from steptime.number_checks import positive
    from steptime.planning.model_fleet import plan_fleet, read_fleet

    check_outputs({"--csv": csv}, [file])
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
