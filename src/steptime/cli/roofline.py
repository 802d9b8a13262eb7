"""The command `steptime roofline`."""

import typer

from steptime.cli.options import CSV, FULL, JSON, SET, grouped, refuse_idle, typed_with_changes
from steptime.cli.output import check_outputs, print_result
from steptime.lecture.pair_roofline import ROOFLINE, RooflineInputs, solve


@grouped
def roofline(
    ctx: typer.Context, inputs: RooflineInputs, set_: SET = None, csv: CSV = None, full: FULL = False, json: JSON = False
) -> None:
    """Compute the lecture's numbers for a real model on one scale-up domain, each closed form next to the full model.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    refuse_idle(ctx, {"text, not --json": (not json, "full")})
    check_outputs({"--csv": csv}, [inputs.model, inputs.system])
    board = solve(typed_with_changes(ctx, RooflineInputs, set_))
    print_result(board, "lecture_view.roofline_view", csv=csv, json=json, summary=ROOFLINE.read_result, full=full)
