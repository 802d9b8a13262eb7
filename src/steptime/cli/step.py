"""The command `steptime step`."""

from typing import Annotated, Any

import typer

from steptime.cli.options import OUTPUT, Output, SubjectChanges, grouped, option
from steptime.cli.output import make_console, print_json, say, write_csv
from steptime.questions.step_question import STEP, StepInputs, bind_pass, pass_sizes, pass_speculation, solve, with_layout


@grouped
def step(
    ctx: typer.Context,
    inputs: StepInputs,
    changes: SubjectChanges,
    output: Output,
    explain: Annotated[bool, option("Show each term's formula with its numbers and sources.", OUTPUT, "--explain")] = False,
) -> None:
    """Compute the time of one forward pass on a given layout: decode, prefill, or both (mixed).

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    needs = {
        "--phase prefill or mixed": (inputs.phase != "decode", "tokens prompts prefix image audio"),
        "--phase decode or mixed": (inputs.phase != "prefill", "batch context query acceptance"),
    }
    output.check(ctx, needs, changes.files(vars(inputs)))
    values = changes.values(ctx, StepInputs)
    # Errors in the inputs are reported before the search for a layout.
    _, model, _, _, single = bind_pass(values)
    pass_sizes(inputs, single)
    pass_speculation(inputs, model)
    summary = solve(values)
    if summary.layout.chips > single.chips:
        from steptime.physics.layout import show_layout

        words = f"layout {show_layout(summary.layout)} is the smallest that holds the weights of {summary.model}"
        say(f"steptime: {words}; --tp sets another")
    if output.csv is not None:
        write_csv(output.csv, summary)
    if output.json:
        extra = {}
        if explain:
            from steptime.cli.views.plan_view import sources_json

            system, lines = _explained(values)
            extra = {"explanation": {"lines": lines, "sources": sources_json(system)}}
        print_json(summary.to_dict(summary=STEP.ask(with_layout(STEP, values), frozenset()), **extra))
    else:
        from steptime.cli.views.step_view import step_view
        from steptime.cli.views.widgets import more_line

        console = make_console()
        console.print(step_view(summary, console.width, full=output.full))
        if explain:
            from steptime.cli.views.plan_view import FORMULAS, lines_table, sources_table
            from steptime.cli.views.widgets import footnote

            system, lines = _explained(values)
            console.print(lines_table(lines), footnote(FORMULAS), sources_table(system), sep="\n")
        elif not output.full:
            console.print(more_line("--full (time by resource)", "--explain", "--csv FILE", "--json"))
    # The exit code is 1 for a step that does not fit in memory.
    raise typer.Exit(0 if bool(summary.memory.fits) else 1)


def _explained(values: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the system, and the operators and collectives of a step."""
    from steptime.planning.step_explanation import explain_step

    inputs, model, system, engine, layout = bind_pass(with_layout(STEP, values))
    sizes = pass_sizes(inputs, layout)
    return system, explain_step(model, system, sizes=sizes, layout=layout, engine=engine, drafts=inputs.drafts)
