"""Starts the page on this machine: a free port, loopback unless told, and a browser that opens on it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from steptime.aside import alone
from steptime.errors import InputError, RangeError

MOST_PROCESSES: Final = 4
TRIED: Final = 20  # ports after the one that is asked for


def free_port(host: str, port: int) -> int:
    """Return the first free port from `port` on; raise RangeError where twenty are taken."""
    for one in range(port, min(port + TRIED, 65_536)):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((host, one))
            except OSError as error:
                if error.errno not in (98, 48, 13):  # in use, in use on macOS, not permitted
                    raise InputError(f"--host {host}: {error.strerror or error}") from None
                continue
            return one
    raise RangeError(f"--port: {port} to {port + TRIED - 1} are all taken or not permitted")


def _warm() -> None:
    """Answer what the page asks first, so that it stands there when it is asked."""
    from steptime.web.app import start_bytes
    from steptime.web.board import found

    start_bytes()
    first = next(iter(found().values()))
    first.answer(first.asked.model_validate({}))


def serve(host: str, port: int, *, browse: bool, told: Callable[[str], None]) -> None:
    """Serve the page until it is interrupted, by a process a core where processes can be copied; `told` gets its address."""
    import uvicorn

    from steptime.web.app import LOOPBACK, app_for

    chosen = free_port(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{'localhost' if host in ('127.0.0.1', '::1') else shown}:{chosen}/"
    local = host in ("127.0.0.1", "::1", "localhost")
    config = uvicorn.Config(
        app_for(hosts=LOOPBACK if local else ("*",)), host=host, port=chosen, log_level="warning", timeout_keep_alive=20,
        limit_concurrency=1024, server_header=False, h11_max_incomplete_event_size=65_536, timeout_graceful_shutdown=2,
    )  # fmt: skip
    listening = config.bind_socket()
    others = _copies()
    first = others is not None
    threading.Thread(target=_warm, daemon=True).start()
    if first:
        told(address)
        if browse:
            threading.Timer(0.6, webbrowser.open, (address,)).start()
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        for child in others or ():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)
        if not first:
            os._exit(0)


def _copies() -> list[int] | None:
    """Copy this process once for each further core, and return the copies; None in a copy, which ends when the first does."""
    if not alone():
        return []
    children = []
    for _ in range(min(len(os.sched_getaffinity(0)), MOST_PROCESSES) - 1):
        parent = os.getpid()
        if child := os.fork():
            children.append(child)
            continue
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        return None
    return children


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.3)
    os._exit(0)
