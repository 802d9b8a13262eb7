"""The command `steptime rl`."""

from typing import Annotated

import typer

from steptime.cli.option_groups import grouped
from steptime.cli.options import BRIEF, JSON, RENT, SUBJECT, Ways, count, option, read_model, refuse_idle, with_rent
from steptime.cli.output import print_json, show

STEP, PHASES = "The step", "Its phases"


@grouped
def rl(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Catalogue name, Hugging Face id, or path to a config.json.", show_default=False)
    ],
    system: Annotated[str, typer.Argument(help="Catalogue name, or path to a TOML file.", show_default=False)],
    ways: Ways,
    chips: Annotated[int, count("--chips", "Chips in all.", STEP)] = 64,
    rollouts: Annotated[int, count("--rollouts", "Answers of a step.", STEP)] = 2048,
    prompt: Annotated[int, count("--prompt", "Prompt tokens of each.", STEP)] = 256,
    output: Annotated[int, count("--output", "Mean tokens of an answer.", STEP)] = 2048,
    longest: Annotated[int, count("--longest", "Tokens at which an answer is cut.", STEP)] = 16384,
    spread: Annotated[float, option("Of the logarithm of lengths: 0.7 is a tail of factors.", STEP)] = 0.7,
    rollout_share: Annotated[
        float, option("Share of the chips that roll out while the others train, one step off; 1: on policy.", PHASES)
    ] = 1.0,
    passes: Annotated[float, option("Forward passes for log-probabilities.", PHASES)] = 2.0,
    updates: Annotated[int, count("--updates", "Training steps in which the answers are trained on.", PHASES)] = 1,
    mfu: Annotated[
        float | None,
        option("Share of the bf16 rate that training and log-probabilities reach.", PHASES, show_default="steptime's own step"),
    ] = None,
    engine: Annotated[str | None, option("Engine of the rollout, or ideal.", SUBJECT, metavar="NAME")] = None,
    rent: RENT = None,
    brief: BRIEF = False,
    json: JSON = False,
) -> None:
    """Time one step of RL: rollout by decoding with long-tail lengths, log-probabilities, training, and the refit."""
    from steptime.catalog.hardware_loading import load_system
    from steptime.scaling.rl_step import rl_step

    refuse_idle(ctx, {"text, not --json": (not json, "brief")})
    found = rl_step(
        read_model(model, None, None, None, None),
        with_rent(load_system(system), rent, None),
        chips=chips,
        rollouts=rollouts,
        prompt=prompt,
        output=output,
        longest=longest,
        layout=ways.layout(),
        spread=spread,
        rollout_share=rollout_share,
        passes=passes,
        mfu=mfu,
        updates=updates,
        engine=engine,
    )
    if json:
        print_json(found)
        return
    from steptime.cli.views.rl_view import rl_view

    show(rl_view(found, brief=brief))
