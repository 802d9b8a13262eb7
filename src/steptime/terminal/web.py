"""The command `steptime web`."""

from typing import Annotated

import typer

from steptime.terminal.options import count, option

HOW = "How it is served"


def web(
    host: Annotated[str, option("Address to listen on; others than loopback open the page to the network.", HOW)] = "127.0.0.1",
    port: Annotated[int, count("--port", "Port; the next free one where it is taken.", HOW)] = 8421,
    no_browser: Annotated[bool, option("Do not open a browser.", HOW, "--no-browser")] = False,
    export: Annotated[
        str | None, option("Write a static copy with precomputed answers to a folder, and end.", HOW, metavar="DIR")
    ] = None,
) -> None:
    """Open the lecture's blackboard as a page: boards that are dragged, for real models and machines."""
    from steptime.errors import InputError, RangeError

    if not 1 <= port <= 65_535:
        raise RangeError(f"--port must be from 1 to 65,535, not {port}")
    try:
        import fastapi  # noqa: F401 - whether it is there
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError("the page needs FastAPI and uvicorn: pip install 'steptime[web]'") from None
    if export is not None:
        from steptime.terminal.output import patience
        from steptime.web.export import export_to

        with patience("computing boards"):
            made = export_to(export)
        typer.echo(f"{made} answers in {export}; serve the folder with any file server")
        return
    from steptime.web.serving import serve

    serve(host, port, browse=not no_browser, told=lambda address: typer.echo(f"steptime at {address} (Ctrl+C ends it)"))
