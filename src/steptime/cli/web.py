"""The command `steptime web`."""

import re
from typing import Annotated

import typer

from steptime.cli.options import count, option

HOW = "Server"
HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9a-fA-F:.]{2,45}\]")


def web(
    host: Annotated[str, option("Address to listen on; others than loopback open the page to the network.", HOW)] = "127.0.0.1",
    port: Annotated[int, count("--port", "Port; the next free one where it is taken.", HOW)] = 8421,
    allow_host: Annotated[
        list[str] | None,
        option("Name or address that visitors type, where it is another than --host; repeatable.", HOW, metavar="NAME"),
    ] = None,
    no_browser: Annotated[bool, option("Do not open a browser.", HOW, "--no-browser")] = False,
    export: Annotated[
        str | None, option("Write a static copy with precomputed answers to a folder, and end.", HOW, metavar="DIR")
    ] = None,
) -> None:
    """Open the lecture's blackboard as a page: interactive boards for real models and machines.

    Args:
        host: address to listen on; help texts describe all options.
    """
    from steptime.errors import InputError, RangeError, install_hint

    if not 1 <= port <= 65_535:
        raise RangeError(f"--port must be from 1 to 65,535, not {port}")
    try:
        import fastapi  # noqa: F401 - whether it is there
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError(f"the page needs FastAPI and uvicorn: {install_hint('web')}") from None
    if export is not None:
        from steptime.cli.output import patience
        from steptime.web.page_export import export_to

        with patience("computing boards"):
            answer_count = export_to(export)
        typer.echo(f"{answer_count} answers in {export}; serve the folder with any file server")
        return
    from steptime.web.app import serve
    from steptime.web.server import answered_hosts, is_loopback

    allowed = tuple(allow_host or ())
    for name in allowed:
        if not HOST_NAME.fullmatch(name):
            raise InputError(f"--allow-host: must be a host name or an address without a port, got {name!r}")
    if not is_loopback(host):
        answered = ", ".join(answered_hosts(host, allowed))
        typer.echo(
            f"Warning: --host {host} opens the page to the network, without a password. Requests are answered that name "
            f"{answered}; --allow-host NAME adds a name.",
            err=True,
        )
    serve(
        host, port, browse=not no_browser, allowed=allowed,
        announce=lambda address: typer.echo(f"steptime at {address} (Ctrl+C ends it)"),
    )  # fmt: skip
