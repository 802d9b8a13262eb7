"""The command `steptime budget`."""

from typing import Annotated

import typer

from steptime.cli.option_groups import grouped, typed_values
from steptime.cli.options import CSV, FULL, JSON, OUTPUT, option, refuse_idle
from steptime.cli.output import check_outputs, wrote
from steptime.cli.printing import print_result
from steptime.errors import InputError, RangeError, install_hint
from steptime.picture_files import PICTURES
from steptime.questions.budget_question import BudgetInputs, solve, summary


@grouped
def budget(
    ctx: typer.Context,
    inputs: BudgetInputs,
    plot: Annotated[str | None, option("Picture file: .png, .svg or .pdf.", OUTPUT, metavar="FILE")] = None,
    picture: Annotated[
        str,
        option(
            "Content of the picture: cost, contours (of loss), open (open-weight models), experts, or frontier (loss by cost).",
            OUTPUT,
            metavar="KIND",
        ),
    ] = "cost",
    full: FULL = False,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """Find the model size and training tokens with the lowest lifetime cost, for a given quality and traffic.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    has_traffic = inputs.tokens_served != "0"
    refuse_idle(
        ctx,
        {
            "--machine": (
                inputs.machine is not None,
                "input output cached speed ttft engine weights kv training_chips training_batch machine_rent",
            ),
            "--plot": (plot is not None, "picture"),
            "--tokens-served": (has_traffic, "lifetime discard"),
            "--tokens-served or --rl-tokens": (has_traffic or inputs.rl_tokens > 0, "eta"),
            "--rl-tokens": (inputs.rl_tokens > 0, "rl_flop"),
            "text, not --json": (not json, "full"),
        },
    )
    check_outputs({"--csv": csv, "--plot": plot}, ())
    if plot is not None:
        check_picture(plot)
    result = solve(typed_values(ctx, BudgetInputs))
    if plot is not None:
        from steptime.scaling.sizing_plots import draw

        draw(result, picture, plot)
        wrote(plot, f"the picture {picture}")
    print_result(result, "scaling_view.budget_view", csv=csv, json=json, summary=summary, full=full)


def check_picture(path: str) -> None:
    """Check the file of a picture before the work.

    Args:
        path: the file.

    Raises:
        InputError: if it is not a picture.
        RangeError: if matplotlib is not installed.
    """
    if not path.casefold().endswith(PICTURES):
        raise InputError(f"--plot writes a picture, {', '.join(PICTURES)}, not {path or 'a file without a name'}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise RangeError(f"a picture needs matplotlib: {install_hint('plot')}")
