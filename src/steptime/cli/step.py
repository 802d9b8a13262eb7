"""The commands `steptime step` and `steptime predictor`: one pass, and a table of passes."""

from typing import Annotated, Any

import typer

from steptime.cli.options import OUTPUT, Output, SubjectChanges, count, grouped, option
from steptime.cli.output import make_console, print_json, say, write_csv
from steptime.errors import LayoutError
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
        console.print(step_view(summary, console.width, full=output.full, explain=explain))
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


TABLE = "The table"


def predictor(
    model: Annotated[str, typer.Argument(metavar="model", help="Model: catalogue name, Hugging Face id, or path.")],
    system: Annotated[str, typer.Argument(metavar="system", help="System: catalogue name, or path to a TOML file.")],
    tp: Annotated[
        int | None, option("Tensor-parallel size.", TABLE, metavar="N", show_default="the smallest that holds the model")
    ] = None,
    ep: Annotated[int, option("Expert-parallel size.", TABLE, metavar="N")] = 1,
    engine: Annotated[
        str | None,
        option(
            "Serving engine: a name (`steptime engines`), a file, or ideal.",
            TABLE,
            metavar="NAME",
            show_default="vllm on NVIDIA chips, llama.cpp on Apple's, typical on others",
        ),
    ] = None,
    weights: Annotated[
        str,
        option(
            "Number format of the weights, such as fp8 or q4_k_m.", TABLE, metavar="FORMAT", show_default="as in the config"
        ),
    ] = "",
    experts: Annotated[
        str, option("Number format of the routed experts.", TABLE, metavar="FORMAT", show_default="as the weights")
    ] = "",
    kv: Annotated[str, option("Number format of the KV cache.", TABLE, metavar="FORMAT", show_default="the engine's")] = "",
    max_batch: Annotated[int, count("--max-batch", "Largest decode batch, in sequences.", TABLE)] = 256,
    max_tokens: Annotated[int, count("--max-tokens", "Largest number of prompt tokens in a pass.", TABLE)] = 8192,
    max_context: Annotated[int, count("--max-context", "Longest context, in tokens.", TABLE)] = 131_072,
    listen: Annotated[
        str | None,
        option("Serve lines of JSON at a port of this machine such as 7800, or a socket's path.", OUTPUT, metavar="ADDRESS"),
    ] = None,
    json_: Annotated[bool, option("Print the summary of the table as JSON.", OUTPUT, "--json")] = False,
) -> None:
    """Compile a table of step times, and answer (contexts, prompts) in microseconds.

    The arguments are options, described by their help.
    """
    import sys

    from steptime.physics.layout import Layout
    from steptime.simulation.step_predictor import compile_predictor

    if (tp is not None and tp < 1) or ep < 1:
        raise LayoutError(f"tp and ep: must be at least 1, got {tp} and {ep}")
    layout = None if tp is None and ep == 1 else Layout(tp=tp or ep, ep=ep)
    arguments: dict[str, Any] = {"weights": weights, "experts": experts, "kv": kv}
    table = compile_predictor(
        model, system, layout=layout, engine=engine, max_batch=max_batch, max_tokens=max_tokens, max_context=max_context,
        **arguments,
    )  # fmt: skip
    if table.note:
        say(f"Note: {table.note}")
    if listen is not None:
        import asyncio

        from steptime.simulation.simulator_adapters import read_address, serve_predictor

        read_address(listen)

        async def run() -> None:
            ready = asyncio.get_running_loop().create_future()
            server = asyncio.ensure_future(serve_predictor(table, listen, ready=ready))
            await asyncio.wait({ready, server}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                say(f"steptime: serves {table.model} at {ready.result()}, one line of JSON per pass; Ctrl-C ends it")
            await server

        asyncio.run(run())
    elif json_:
        print_json(table.to_dict())
    elif not sys.stdin.isatty() and (first := sys.stdin.readline()):
        import json

        from steptime.simulation.simulator_adapters import LONGEST_LINE, answer_line

        line = first
        while line:
            print(json.dumps(answer_line(table, line.strip())), flush=True)
            line = sys.stdin.readline(LONGEST_LINE)
    else:
        title, figures = table.headline()
        typer.echo(title)
        for name, text in figures.items():
            typer.echo(f"  {name}: {text}")
        typer.echo("Ask with lines of JSON on standard input, or serve them with --listen 7800:")
        typer.echo('  {"contexts": [900, 512], "prefills": [[256, 0]]}')
