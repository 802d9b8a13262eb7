"""Limits on size, time and number of requests, and security headers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit


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
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
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
