"""The command `steptime anchors`: keep measured runs, which correct later predictions."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.option_groups import grouped
from steptime.cli.options import CATALOG, CSV, FULL, JSON, not_empty, refuse_idle
from steptime.cli.output import check_outputs, print_json, say, show, write_csv
from steptime.cli.run_files import RunSettings
from steptime.errors import RangeError, UnknownName

if TYPE_CHECKING:
    from steptime.physics.bias_correction import Anchors

ACTIONS = ("add", "remove")


@grouped
def anchors(
    ctx: typer.Context,
    run_settings: RunSettings,
    action: Annotated[
        str | None,
        typer.Argument(metavar="[add|remove]", help="Without it, kept runs are listed.", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="add: result JSON of `vllm bench serve` or of SGLang's bench_serving, or a CSV of runs; remove: a name.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Keep them under this name.", show_default="that of the file")] = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Keep your measured runs: plan, step and simulate correct predictions of the same model, system and engine.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.validation import user_calibration

    adds = "add FILE"
    refuse_idle(
        ctx,
        {
            adds: (action == "add", "name " + " ".join(field.name for field in dataclasses.fields(run_settings))),
            "the list of runs": (action is None, "csv"),
            "text, not --json": (not json, "full"),
        },
    )
    if action is None:
        check_outputs({"--csv": csv}, ())
        _list(user_calibration.kept_anchors(catalog), csv, full=full, json=json)
        return
    if action not in ACTIONS:
        raise UnknownName("action", action, ACTIONS, "Known: add FILE, remove NAME; alone it lists them.")
    if not target:
        raise RangeError(f"anchors {action} needs {'a file of runs' if action == 'add' else 'the name of runs that are kept'}")
    not_empty("--name", name, "a name for the runs")
    if action == "remove":
        say(f"Removed {user_calibration.remove(target, catalog=catalog)}.")
        return
    path, runs = user_calibration.keep(target, name=name or "", catalog=catalog, **run_settings.arguments())
    say(f"Keeping {path}: plan, step and simulate use it for the same model, system and engine; --no-anchor leaves it out.")
    _list(runs, None, full=full, json=json)


def _list(runs: "Anchors", csv: str | None, *, full: bool, json: bool) -> None:
    """Print anchors as text or JSON, and write them as CSV if a file is named."""
    from steptime.cli.views.validation_view import anchors_view

    if csv is not None:
        write_csv(csv, runs)
    if json:
        print_json(runs)
    else:
        show(anchors_view(runs, full=full))
