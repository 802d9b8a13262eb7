"""The command `steptime step`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.options import CSV, FULL, JSON, OUTPUT, SubjectChanges, grouped, option, refuse_idle
from steptime.cli.output import check_outputs, make_console, print_json, say, show, write_csv
from steptime.questions.step_question import STEP, StepInputs, bind_pass, pass_sizes, solve, with_layout

if TYPE_CHECKING:
    pass


@grouped
def step(
    ctx: typer.Context,
    inputs: StepInputs,
    changes: SubjectChanges,
    explain: Annotated[bool, option("Show each term's formula with its numbers and sources.", OUTPUT, "--explain")] = False,
    full: FULL = False,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """Compute the time of one forward pass on a given layout: decode, prefill, or both (mixed).

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    refuse_idle(
        ctx,
        {
            "--phase prefill or mixed": (inputs.phase != "decode", "tokens prompts prefix image audio"),
            "--phase decode or mixed": (inputs.phase != "prefill", "batch context query"),
            "text, not --json": (not json, "full"),
        },
    )
    check_outputs({"--csv": csv}, changes.files(vars(inputs)))
    values = changes.values(ctx, StepInputs)
    # Errors in the inputs are reported before the search for a layout.
    _, _, _, _, single = bind_pass(values)
    pass_sizes(inputs, single)
    summary = solve(values)
    if summary.layout.chips > single.chips:
        from steptime.physics.layout import show_layout

        say(f"steptime: layout {show_layout(summary.layout)} is the smallest that fits {summary.model}; --tp sets another")
    if csv is not None:
        write_csv(csv, summary)

    # The exit code is 1 for a step that does not fit in memory.
    exit_code = 0 if bool(summary.memory.fits) else 1
    if json:
        answers = STEP.ask(with_layout(STEP, values), frozenset())
        print_json(summary.to_dict(summary=answers, **(_explained(values) if explain else {})))
        raise typer.Exit(exit_code)
    from steptime.cli.views.step_view import step_view
    from steptime.cli.views.widgets import more_line

    console = make_console()
    show(step_view(summary, console.width, full=full), console=console)
    if explain:
        from steptime.cli.views.explain_view import lines_table, sources_table

        system, lines = _lines(values)
        show(lines_table(lines))
        show(sources_table(system))
    elif not full:
        show(more_line("--full (time by resource)", "--explain", "--csv FILE", "--json"), console=console)
    raise typer.Exit(exit_code)


def _lines(values: dict[str, Any]) -> tuple[Any, Any]:
    """Return the system, and the operators and collectives of a step."""
    from steptime.planning.step_explanation import explain_step

    inputs, model, system, engine, layout = bind_pass(with_layout(STEP, values))
    return system, explain_step(model, system, sizes=pass_sizes(inputs, layout), layout=layout, engine=engine)


def _explained(values: dict[str, Any]) -> dict[str, object]:
    """Return the operators and collectives of a step, and the sources of the system's figures, as data."""
    from steptime.cli.views.explain_view import sources_json

    system, lines = _lines(values)
    return {"explanation": {"lines": lines, "sources": sources_json(system)}}
