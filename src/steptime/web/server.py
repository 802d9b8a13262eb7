"""Start the page: find a port, run processes under a watchdog, open a browser."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_double, sizeof
from dataclasses import dataclass, field
from functools import partial
from mmap import mmap
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from steptime.errors import InputError, RangeError

if TYPE_CHECKING:
    from steptime.web.request_limits import Limits

MOST_PROCESSES: Final = 4
# Ports to try, from the given one on.
PORTS: Final = 20
# Connections of a process.
CONNECTIONS: Final = 1024
LOCAL: Final = ("127.0.0.1", "::1", "localhost")
LOG: Final = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits of the server.

    headers [s]: for the headers of a request. crowded [s]: the same while half of all connections are in use. idle
    [s]: an open connection between two requests. silence [s]: a process without a sign of life is replaced. restart
    [s]: pause before a process that ended at once starts again. end [s]: for processes to end by themselves.
    """

    headers: float = 10.0
    crowded: float = 1.0
    idle: float = 5.0
    silence: float = 30.0
    restart: float = 1.0
    end: float = 3.0


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the first free port.

    Args:
        host: Address to listen on.
        port: First port to try; 0: the system chooses one.

    Returns:
        Socket that already accepts connections, so that its address works at once.

    Raises:
        InputError: The address does not belong to this machine.
        RangeError: Twenty ports in a row are taken.
    """
    for number in range(port, min(port + PORTS, 65_536)) if port else (0,):
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # Two servers can bind one port; only one of them can listen on it.
            listening.bind((host, number))
            listening.listen(CONNECTIONS)
        except OSError as error:
            listening.close()
            # Address in use on Linux, in use on macOS, not permitted: try the next port.
            if error.errno not in (98, 48, 13):
                raise InputError(f"--host {host}: {error.strerror or error}") from None
            continue
        return listening
    raise RangeError(f"--port: {port} to {port + PORTS - 1} are all taken or not permitted")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

    Args:
        host: Address to listen on.

    Returns:
        True for loopback addresses.
    """
    return host in LOCAL or host.startswith("127.")


def answered_hosts(host: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the host names that a request may use.

    Args:
        host: Address to listen on.
        allowed: Further names.

    Returns:
        Names of this machine, the address itself, and the allowed names.
    """
    from steptime.web.app import LOOPBACK

    address = () if host in ("0.0.0.0", "::", *LOCAL) else (f"[{host}]" if ":" in host else host,)
    return (*LOOPBACK, *address, *allowed)


def _is_forkable() -> bool:
    """Return whether this process can fork safely: on Linux with one thread."""
    try:
        return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _warm() -> None:
    """Compute the first answers of the page before the first request."""
    from steptime.web.app import start_bytes
    from steptime.web.board import load_boards

    start_bytes()
    first = next(iter(load_boards().values()))
    first.answer(first.inputs.model_validate({}))


class Worker(uvicorn.Server):
    """A server process: it closes silent connections and sends signs of life."""

    def __init__(self, config: uvicorn.Config, patience: Patience, beat: Callable[[], None]) -> None:
        super().__init__(config)
        self.patience, self.beat = patience, beat
        # Connections that wait for the headers of a request: the previous request, and the start of the wait.
        self.waiting: dict[Any, tuple[Any, float]] = {}

    async def on_tick(self, counter: int) -> bool:
        """Close silent connections and send a sign of life, ten times a second.

        Args:
            counter: Number of the tick.

        Returns:
            Whether the server shall stop.
        """
        self._close_waiting(time.monotonic())
        self.beat()
        return await super().on_tick(counter)

    def _close_waiting(self, now: float) -> None:
        connections: set[Any] = self.server_state.connections
        crowded = 2 * len(connections) >= CONNECTIONS
        limit = self.patience.crowded if crowded else self.patience.headers
        before, self.waiting = self.waiting, {}
        for connection in connections:
            request = connection.cycle
            answering = request is not None and not request.response_complete
            # While the timer of idle connections runs, no byte of a new request has arrived.
            if answering or (connection.timeout_keep_alive_task is not None and not crowded):
                continue
            previous_request, since = before.get(connection, (request, now))
            since = since if previous_request is request else now
            self.waiting[connection] = (request, since)
            if now - since > limit:
                connection.transport.close()


@dataclass(frozen=True, slots=True)
class Child:
    """A worker of the watchdog, with its start [s] and the time of its last sign of life [s], which it writes itself."""

    process: BaseProcess
    start: float
    heard: c_double


@dataclass
class Watchdog:
    """Keeps `count` workers running; it replaces workers that end or are silent.

    `work` serves in the new process. It gets a function that gives a sign of life, and returns when it ends.
    """

    work: Callable[[Callable[[], None]], None]
    count: int
    patience: Patience
    children: list[Child] = field(default_factory=list)

    def run(self, started: Callable[[], None]) -> None:
        """Start the workers, call `started`, and watch until an interrupt or SIGTERM.

        Args:
            started: Function to call once the workers run.
        """
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            for _ in range(self.count):
                self._start()
            started()
            self._watch()
        except SystemExit:
            # Once the workers are gone, end by the signal itself, so that the exit status shows it.
            self._end()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            self._end()
            signal.signal(signal.SIGTERM, before)

    def _start(self) -> None:
        now = time.monotonic()
        # The memory is shared with the copied process.
        heard = c_double.from_buffer(mmap(-1, sizeof(c_double)))
        heard.value = now
        process = get_context("fork").Process(target=self._serve, args=(heard, os.getpid()))
        process.start()
        self.children.append(Child(process, now, heard))

    def _serve(self, heard: c_double, watchdog: int) -> None:
        """Serve in a new process until the watchdog is gone."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

        def beat() -> None:
            if os.getppid() != watchdog:
                os._exit(0)
            heard.value = time.monotonic()

        with suppress(KeyboardInterrupt):
            self.work(beat)

    def _watch(self) -> None:
        checked, silence = time.monotonic(), self.patience.silence
        while True:
            wait([child.process.sentinel for child in self.children], timeout=min(1.0, silence / 4))
            now = time.monotonic()
            # If this process itself was stopped, its workers perhaps were too.
            was_stopped, checked = now - checked > silence / 2, now
            for child in list(self.children):
                if was_stopped:
                    child.heard.value = now
                if not child.process.is_alive():
                    self._replace(child, "ended")
                elif now - child.heard.value > silence:
                    self._replace(child, f"gave no sign of life for {silence:g} s")

    def _replace(self, child: Child, cause: str) -> None:
        child.process.kill()
        child.process.join()
        self.children.remove(child)
        code = child.process.exitcode or 0
        status = f"signal {-code}" if code < 0 else f"status {code}"
        LOG.error("process %d of the page %s (%s); another takes its place", child.process.pid, cause, status)
        if time.monotonic() - child.start < self.patience.restart:
            time.sleep(self.patience.restart)
        self._start()

    def _end(self) -> None:
        for child in self.children:
            child.process.terminate()
        until = time.monotonic() + self.patience.end
        for child in self.children:
            child.process.join(max(0.0, until - time.monotonic()))
            child.process.kill()
            child.process.join()
        self.children.clear()


def serve(
    host: str,
    port: int,
    *,
    browse: bool,
    announce: Callable[[str], None],
    allowed: tuple[str, ...] = (),
    patience: Patience | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve the page until an interrupt, with several processes where fork is safe.

    Args:
        host: Address to listen on.
        port: First port to try.
        browse: Whether to open a browser.
        announce: Function that gets the address of the page.
        allowed: Further host names that a request may use.
        patience: Time limits of the server.
        limits: Sizes, times and numbers of requests.
    """
    from steptime.web.app import app_for

    patience = patience or Patience()
    listening = listening_socket(host, port)
    bound_port = listening.getsockname()[1]
    url_host = f"[{host}]" if ":" in host else host
    address = f"http://{'localhost' if host in ('127.0.0.1', '::1') else url_host}:{bound_port}/"
    app = app_for(hosts=answered_hosts(host, allowed), limits=limits)
    config = uvicorn.Config(
        app, host=host, port=bound_port, log_level="warning", timeout_keep_alive=int(patience.idle),
        limit_concurrency=CONNECTIONS, server_header=False, h11_max_incomplete_event_size=65_536, timeout_graceful_shutdown=2,
    )  # fmt: skip

    def work(beat: Callable[[], None]) -> None:
        threading.Thread(target=_warm, daemon=True).start()
        # A process with work that never ends sends no signs of life, so that the watchdog replaces it.
        Worker(config, patience, lambda: None if app.state.is_stuck() else beat()).run(sockets=[listening])

    if _is_forkable():
        workers = Watchdog(work, min(len(os.sched_getaffinity(0)), MOST_PROCESSES), patience)
        workers.run(partial(_announce, address, announce, browse=browse))
    else:
        _announce(address, announce, browse=browse)
        work(lambda: None)


def _announce(address: str, announce: Callable[[str], None], *, browse: bool) -> None:
    announce(address)
    if not browse:
        return
    if not _is_forkable():
        threading.Timer(0.6, webbrowser.open, (address,)).start()
    # A text browser blocks its process, and a thread would prevent the watchdog from forking.
    elif os.fork() == 0:
        try:
            time.sleep(0.6)
            webbrowser.open(address)
        finally:
            os._exit(0)
