"""The commands `steptime budget`, `steptime laws` and `steptime rl`: model sizes, scaling laws, and a step of RL."""

from typing import Annotated

import typer

from steptime.cli.options import (
    CATALOG,
    OUTPUT,
    SET,
    Output,
    TextOutput,
    count,
    grouped,
    not_empty,
    option,
    typed_values,
    typed_with_changes,
)
from steptime.cli.output import print_json, reported, write_csv
from steptime.errors import RangeError
from steptime.questions.economics_questions import BUDGET, LOSS, RL, BudgetInputs, RlInputs, solve_budget, solve_rl
from steptime.units import count as read_count

LOSS_GROUP, BOARD = "Predicted loss", "MoE models"


@grouped
def budget(
    ctx: typer.Context,
    inputs: BudgetInputs,
    output: Output,
    plot: Annotated[str | None, option("Picture file: .png, .svg or .pdf.", OUTPUT, metavar="FILE")] = None,
    picture: Annotated[
        str,
        option(
            "Content of the picture: cost, contours (of loss), open (open-weight models), experts, or frontier (loss by cost).",
            OUTPUT,
            metavar="KIND",
        ),
    ] = "cost",
) -> None:
    """Find the model size and training tokens with the lowest lifetime cost, for a given quality and traffic.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    has_traffic = inputs.tokens_served != "0"
    needs = {
        "--serving-system": (
            inputs.serving_system is not None,
            "input output cached speed ttft engine weights kv training_chips training_batch serving_rent",
        ),
        "--plot": (plot is not None, "picture"),
        "--tokens-served": (has_traffic, "lifetime discard"),
        "--tokens-served or --rl-tokens": (has_traffic or inputs.rl_tokens > 0, "eta"),
        "--rl-tokens": (inputs.rl_tokens > 0, "rl_flop"),
    }
    output.check(ctx, needs, plot=plot)
    result = solve_budget(typed_values(ctx, BudgetInputs))
    if plot is not None:
        from steptime.scaling.sizing_plots import draw

        with reported(plot, f"the picture {picture}"):
            draw(result, picture, plot)
    output.print(result, "scaling_view.budget_view", summary=BUDGET.read_result)


@grouped
def laws(
    ctx: typer.Context,
    output: Output,
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
) -> None:
    """List scaling laws, show one with its sources, predict a model's loss, or compare MoE models with dense ones.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.catalog.data_files import files
    from steptime.scaling.scaling_laws import load_law

    is_card = name is not None and moe is None and params is None
    needs = {
        "--moe, the board of mixtures": (moe is not None, "experts batch weights system plot"),
        "the list or a board, not the NAME of a law": (not is_card, "csv"),
        "no board of mixtures": (moe is None, "params"),
        "a list, a loss or a board, as text": (not (output.json or is_card), "full"),
    }
    output.check(ctx, needs, plot=plot)
    not_empty("NAME", name, "the name of a law, such as epoch")
    if moe is None and (params is None) != (tokens is None):
        raise RangeError("a loss follows from --params and --tokens; give both")
    if moe is not None:
        from steptime.scaling.moe_vs_dense import EXPERTS, LAWS, moe_board
        from steptime.scaling.sizing_plots import draw_board

        board = moe_board(
            moe, experts=EXPERTS if experts is None else tuple(read_count(text, "--experts") for text in experts.split(",")),
            tokens=tokens, law=LAWS if name is None else name.split(","), system=system, weights=weights, batch=batch,
        )  # fmt: skip
        if plot is not None:
            with reported(plot, "effective size against experts"):
                draw_board(board, plot)
        output.print(board, "scaling_view.board_view")
        return
    from steptime.describe.law_summary import law_card, law_table

    scaling_laws = [load_law(law_name, catalog) for law_name in ([name] if name else files("laws", catalog))]
    if params is not None and tokens is not None:
        from steptime.scaling.compute_optimal import predict_losses

        losses = predict_losses(scaling_laws, params, tokens)
        if output.json:
            described = law_table(scaling_laws) if name is None else law_card(scaling_laws[0])
            if output.csv is not None:
                write_csv(output.csv, losses)
            print_json(described.to_dict(losses=losses.losses, summary=LOSS.read_result(losses)))
        else:
            output.print(losses, "scaling_view.losses_view")
    elif name is None:
        output.print(law_table(scaling_laws), "scaling_view.laws_view")
    else:
        output.print(law_card(scaling_laws[0]), "scaling_view.law_view")


@grouped
def rl(ctx: typer.Context, inputs: RlInputs, output: TextOutput, set_: SET = None) -> None:  # noqa: ARG001 - typer reads the options from `inputs`
    """Estimate the time and rent of one RL step: rollout, log-probabilities, training and weight transfer.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    output.check(ctx)
    step = solve_rl(typed_with_changes(ctx, RlInputs, set_))
    output.print(step, "scaling_view.rl_view", summary=RL.read_result)
