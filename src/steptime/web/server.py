"""The server of the page: its port, its limits, its shield against harmful requests, and workers under a watchdog."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import c_double, sizeof
from dataclasses import dataclass, field
from errno import EACCES, EADDRINUSE
from mmap import mmap
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn

from steptime.errors import InputError, RangeError

MOST_PROCESSES: Final = 4
# Ports to try, from the given one on.
PORTS: Final = 20
# Connections of a process.
CONNECTIONS: Final = 1024
LOCAL: Final = ("127.0.0.1", "::1", "localhost")
# The same names, as requests write them.
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
LOG: Final = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on requests and answers.

    body: largest body of a request [bytes]. arrival: time in which the body must arrive [s]. seconds: longest time of
    an answer [s]. waiting: requests at once. stuck [s]: if abandoned work runs longer, the watchdog replaces the
    process.

    workers: answers of quick boards that run at once. Slow boards have one worker and a queue of `queue` requests, so
    that they delay only each other.
    """

    body: int = 262_144
    arrival: float = 10.0
    seconds: float = 20.0
    waiting: int = 256
    workers: int = 4
    queue: int = 16
    stuck: float = 60.0


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
        # On Windows SO_REUSEADDR would share the port with a server that listens already.
        if sys.platform != "win32":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # Two servers can bind one port; only one of them can listen on it.
            listening.bind((host, number))
            listening.listen(CONNECTIONS)
        except OSError as error:
            listening.close()
            # If the port is in use or not permitted, try the next one.
            if error.errno not in (EADDRINUSE, EACCES):
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
    address = () if host in ("0.0.0.0", "::", *LOCAL) else (f"[{host}]" if ":" in host else host,)
    return (*LOOPBACK, *address, *allowed)


# Hash of the only style that Observable Plot 0.6.17 adds to its pictures.
PLOT_STYLE: Final = "'sha256-jSYQUrW7J0b3jPqhZP9C2Xh1PyJKHKXd4s0fpGGKrww='"
# The page may load only its own files, and no inline scripts or styles.
POLICY: Final = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {PLOT_STYLE}; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", POLICY.encode()),
)


class Shield:
    """Middleware that refuses harmful requests and sets the security headers.

    It refuses requests that are too large, too slow, too many, or from another site. `hosts` are names of the server
    behind a proxy, with any port.
    """

    def __init__(self, app: Any, limits: Limits, hosts: tuple[str, ...] = ()) -> None:
        self.app, self.limits, self.hosts, self.open = app, limits, hosts, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def headed(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ())]
                # A page with inline scripts has a policy with their hashes.
                names = {name for name, _ in headers}
                message = {**message, "headers": headers + [header for header in HEADERS if header[0] not in names]}
            await send(message)

        if scope["path"].startswith("/api/") and self._is_of_another_site(dict(scope["headers"])):
            await _say(headed, 403, "requests from other sites are refused; open the page itself")
            return
        if self.open >= self.limits.waiting:
            await _say(headed, 503, f"more than {self.limits.waiting} requests are waiting; try again later")
            return
        self.open += 1
        try:
            # The body is read before the application runs, so that a slow client holds no worker.
            has_body = scope["method"] not in ("GET", "HEAD", "OPTIONS")
            body = await self._body(receive) if has_body else b""
            if body == 413:
                await _say(headed, 413, f"a request must have at most {self.limits.body:,} bytes")
            elif body == 408:
                await _say(headed, 408, "the request did not arrive in time")
            else:
                messages = [{"type": "http.request", "body": body, "more_body": False}] if has_body else []

                async def replay() -> Any:
                    return messages.pop() if messages else await receive()

                await self.app(scope, replay, headed)
        finally:
            self.open -= 1

    def _is_of_another_site(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a browser sent the request from another site.

        Programs other than browsers send neither header.
        """
        if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
            return True
        if (origin := headers.get(b"origin")) is None:
            return False
        try:
            origin_url = urlsplit(origin.decode("latin-1"))
            host = origin_url.hostname
        except ValueError:
            return True
        return origin_url.netloc.encode("latin-1") != headers.get(b"host") and host not in self.hosts

    async def _body(self, receive: Any) -> bytes | int:
        """Return the body of a request, or the status code of a refusal."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.arrival):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return 408
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.limits.body:
                        return 413
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            return 408


def problem(words: str, field: str = "", *loc: str) -> dict[str, Any]:
    """Return the body of a refusal.

    Args:
        words: Error message.
        field: Name of the invalid input; empty: none.
        loc: Location of the input in the request.

    Returns:
        Refusal for JSON, in FastAPI's form.
    """
    return {"detail": [{"loc": list(loc), "field": field, "msg": words}]}


async def _say(send: Any, status: int, words: str) -> None:
    body = json.dumps(problem(words)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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


def is_forkable() -> bool:
    """Return whether this process can fork safely: on Linux with one thread.

    Returns:
        True if a copy of this process works.
    """
    try:
        return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def open_page(address: str, announce: Callable[[str], None], *, browse: bool) -> None:
    """Announce the address of the page, and open a browser.

    Args:
        address: Address of the page.
        announce: Function that gets the address.
        browse: Whether to open a browser.
    """
    announce(address)
    if not browse:
        return
    if not is_forkable():
        threading.Timer(0.6, webbrowser.open, (address,)).start()
    # A text browser blocks its process, and a thread would prevent the watchdog from forking.
    elif os.fork() == 0:
        try:
            time.sleep(0.6)
            webbrowser.open(address)
        finally:
            os._exit(0)
