"""The command `steptime budget`.

The command `steptime laws`.

The command `steptime rl`.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.options import (
    CATALOG,
    CSV,
    FULL,
    JSON,
    OUTPUT,
    SET,
    count,
    grouped,
    not_empty,
    option,
    refuse_idle,
    typed_values,
    typed_with_changes,
)
from steptime.cli.output import check_outputs, print_json, print_result, show, write_csv, wrote
from steptime.errors import InputError, RangeError, install_hint
from steptime.picture_files import PICTURES
from steptime.questions.economics_questions import BUDGET, LOSS, RL, BudgetInputs, RlInputs, solve_budget, solve_rl

if TYPE_CHECKING:
    from steptime.scaling.scaling_laws import Law


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
    result = solve_budget(typed_values(ctx, BudgetInputs))
    if plot is not None:
        from steptime.scaling.sizing_plots import draw

        draw(result, picture, plot)
        wrote(plot, f"the picture {picture}")
    print_result(result, "scaling_view.budget_view", csv=csv, json=json, summary=BUDGET.read_result, full=full)


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


LOSS_GROUP, BOARD = "Predicted loss", "MoE models"


def laws(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Law to show: a name, or a path to a TOML file. Without it, all laws are listed.", show_default=False
        ),
    ] = None,
    params: Annotated[
        int | None, count("--params", "Parameters of a dense model, such as 70B, for its predicted loss.", LOSS_GROUP)
    ] = None,
    tokens: Annotated[int | None, count("--tokens", "Training tokens of that model, such as 15T.", LOSS_GROUP)] = None,
    moe: Annotated[
        int | None,
        count("--moe", "Active parameters of MoE models, such as 37B: several laws compare them with dense models.", BOARD),
    ] = None,
    experts: Annotated[
        str | None,
        option("Numbers of experts, separated by commas.", BOARD, metavar="N,N,...", show_default="1 to 512, doubling"),
    ] = None,
    batch: Annotated[int, count("--batch", "Batch of a replica, in sequences.", BOARD)] = 2048,
    weights: Annotated[str, option("Number format of weights and arithmetic.", BOARD, metavar="FORMAT")] = "fp8",
    system: Annotated[str, option("Serving system.", BOARD, metavar="SYSTEM")] = "gb200-nvl72",
    plot: Annotated[
        str | None, option("Picture file (.png, .svg, .pdf) of effective size against experts.", OUTPUT, metavar="FILE")
    ] = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """List scaling laws, show one with its sources, predict a model's loss, or compare MoE models with dense ones.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.catalog.data_files import files
    from steptime.scaling.scaling_laws import load_law

    refuse_idle(
        ctx,
        {
            "--moe, the board of mixtures": (moe is not None, "experts batch weights system plot"),
            "the list or a board, not the NAME of a law": (name is None or moe is not None or params is not None, "csv"),
            "no board of mixtures": (moe is None, "params"),
            "a list, a loss or a board, as text": (
                not json and (name is None or moe is not None or params is not None),
                "full",
            ),
        },
    )
    not_empty("NAME", name, "the name of a law, such as epoch")
    if moe is None and (params is None) != (tokens is None):
        raise RangeError("a loss follows from --params and --tokens; give both")
    check_outputs({"--csv": csv, "--plot": plot}, ())
    if plot is not None:
        check_picture(plot)
    if moe is not None:
        _board(moe, tokens, name, experts, system, weights, batch, plot, csv, json, full)
        return
    scaling_laws = [load_law(law_name, catalog) for law_name in ([name] if name else files("laws", catalog))]
    _print(scaling_laws, name is None, params, tokens, csv, json, full)


def _print(
    scaling_laws: "list[Law]",
    listed: bool,
    params: int | None,
    tokens: int | None,
    csv: str | None,
    json: bool,
    full: bool,
) -> None:
    from steptime.describe.law_summary import law_card, law_table

    table = law_table(scaling_laws)
    loss_table = None
    if params is not None and tokens is not None:
        from steptime.scaling.compute_optimal import predict_losses

        loss_table = predict_losses(scaling_laws, params, tokens)
    if csv is not None:
        write_csv(csv, table if loss_table is None else loss_table)
    if json:
        extra_fields: dict[str, Any] = (
            {} if loss_table is None else {"losses": loss_table.losses, "summary": LOSS.read_result(loss_table)}
        )
        print_json((table if listed else law_card(scaling_laws[0])).to_dict(**extra_fields))
        return
    from steptime.cli.views.scaling_view import law_view, laws_view, losses_view

    if loss_table is not None:
        show(losses_view(loss_table, full=full))
        return
    show(laws_view(table.laws, full=full) if listed else law_view(table.laws[0]))


def _board(
    moe: int, tokens: int | None, law: str | None, experts: str | None, system: str, weights: str, batch: int, plot: str | None,
    csv: str | None, json: bool, full: bool,
) -> None:  # fmt: skip
    from steptime.scaling.moe_vs_dense import EXPERTS, LAWS, moe_board
    from steptime.units import count as read_count

    counts = EXPERTS if experts is None else tuple(read_count(text, "--experts") for text in experts.split(","))
    board = moe_board(
        moe, experts=counts, tokens=tokens, law=LAWS if law is None else law.split(","), system=system, weights=weights,
        batch=batch,
    )  # fmt: skip
    if plot is not None:
        from steptime.cli.output import wrote
        from steptime.scaling.sizing_plots import draw_board

        draw_board(board, plot)
        wrote(plot, "effective size against experts")
    print_result(board, "scaling_view.board_view", csv=csv, json=json, full=full)


@grouped
def rl(ctx: typer.Context, inputs: RlInputs, set_: SET = None, full: FULL = False, json: JSON = False) -> None:  # noqa: ARG001 - typer reads the options from `inputs`
    """Estimate the time and rent of one RL step: rollout, log-probabilities, training and weight transfer.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    refuse_idle(ctx, {"text, not --json": (not json, "full")})
    step = solve_rl(typed_with_changes(ctx, RlInputs, set_))
    print_result(step, "scaling_view.rl_view", json=json, summary=RL.read_result, full=full)
