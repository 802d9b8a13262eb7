"""The command `steptime rl`."""

import typer

from steptime.cli.option_groups import grouped
from steptime.cli.options import FULL, JSON, SET, refuse_idle, typed_with_changes
from steptime.cli.printing import print_result
from steptime.questions.rl_question import RlInputs, solve, summary


@grouped
def rl(ctx: typer.Context, inputs: RlInputs, set_: SET = None, full: FULL = False, json: JSON = False) -> None:  # noqa: ARG001 - typer reads the options from `inputs`
    """Estimate the time and rent of one RL step: rollout, log-probabilities, training and weight transfer.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    refuse_idle(ctx, {"text, not --json": (not json, "full")})
    step = solve(typed_with_changes(ctx, RlInputs, set_))
    print_result(step, "scaling_view.rl_view", json=json, summary=summary, full=full)
