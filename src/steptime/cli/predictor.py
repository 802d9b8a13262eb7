"""The command `steptime predictor`."""

from typing import Annotated, Any

import typer

from steptime.cli.options import OUTPUT, count, option
from steptime.cli.output import print_json, say
from steptime.errors import LayoutError

TABLE = "The table"


def predictor(
    model: Annotated[str, typer.Argument(metavar="model", help="Model: catalogue name, Hugging Face id, or path.")],
    system: Annotated[str, typer.Argument(metavar="system", help="System: catalogue name, or path to a TOML file.")],
    tp: Annotated[int | None, option("Tensor-parallel size; by default the smallest that holds the model.", TABLE)] = None,
    ep: Annotated[int, option("Expert-parallel size.", TABLE)] = 1,
    engine: Annotated[str | None, option("Serving engine: a name (`steptime engines`), a file, or ideal.", TABLE)] = None,
    weights: Annotated[str, option("Number format of the weights, such as fp8 or q4_k_m.", TABLE)] = "",
    experts: Annotated[str, option("Number format of the routed experts.", TABLE)] = "",
    kv: Annotated[str, option("Number format of the KV cache.", TABLE)] = "",
    max_batch: Annotated[int, count("--max-batch", "Largest decode batch, in sequences.", TABLE)] = 256,
    max_tokens: Annotated[int, count("--max-tokens", "Most prompt tokens of a pass.", TABLE)] = 8192,
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

        from steptime.simulation.predictor_server import read_address, serve_predictor

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

        from steptime.simulation.predictor_server import LONGEST_LINE, answer_line

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
