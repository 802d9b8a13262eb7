"""The command `steptime context`."""

from typing import Annotated

import typer

from steptime.cli.budget import check_picture
from steptime.cli.option_groups import grouped
from steptime.cli.options import CSV, FULL, JSON, OUTPUT, SubjectChanges, option, refuse_idle
from steptime.cli.output import check_outputs, patience, wrote
from steptime.cli.printing import print_result
from steptime.sweeps.context_question import ContextInputs, solve, summary


@grouped
def context(
    ctx: typer.Context,
    inputs: ContextInputs,
    changes: SubjectChanges,
    plot: Annotated[
        str | None,
        option("PNG, SVG or PDF file with cost against length of context, by technique.", OUTPUT, metavar="FILE"),
    ] = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Find the longest context for a speed and a price, and the effect of windows, latents or selection.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    refuse_idle(ctx, {"text, not --json": (not json, "full")})
    check_outputs({"--csv": csv, "--plot": plot}, changes.files(vars(inputs)))
    if plot is not None:
        check_picture(plot)
    values = changes.values(ctx, ContextInputs)
    with patience("Trying layouts and batches for each length of context ..."):
        walls = solve(values)
    if plot is not None:
        from steptime.sweeps.context_plot import plot as draw

        draw(walls, plot)
        wrote(plot, "the picture of costs by length")
    print_result(walls, "context_view.contexts_view", csv=csv, json=json, summary=summary, full=full)
    if walls.reason:
        raise typer.Exit(1)
