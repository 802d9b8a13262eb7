"""What a page that is left open to others must not be stalled by: sizes, times and numbers of requests; and its headers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

PLOT_STYLE: Final = "'sha256-jSYQUrW7J0b3jPqhZP9C2Xh1PyJKHKXd4s0fpGGKrww='"
"""The one style that Observable Plot 0.6.17 puts into its pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """body [bytes] of a request; arrival [s] in which it must have come; seconds of an answer; waiting: requests at once.

    stuck [s]: after this time, work that was given up and still runs makes its process unfit; the watchdog replaces it.

    workers: answers of quick boards that are worked out at once; slow boards have one of their own, for which `queue` may wait,
    so that they hold up each other alone.
    """

    body: int = 262_144
    arrival: float = 10.0
    seconds: float = 20.0
    waiting: int = 256
    workers: int = 4
    queue: int = 16
    stuck: float = 60.0


def policy() -> str:
    """Return the content security policy: nothing from elsewhere, no script or style in the page but its files."""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self' {PLOT_STYLE}; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


class Shield:
    """Middleware that refuses requests that are too large, too slow, too many or of another site; it sets all headers.

    hosts: names of the server that a proxy may stand for, whatever port the browser uses.
    """

    def __init__(self, app: Any, limits: Limits, hosts: tuple[str, ...] = ()) -> None:
        self.app, self.limits, self.hosts, self.open = app, limits, hosts, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def headed(message: Any) -> None:
            if message["type"] == "http.response.start":
                security_headers = [*HEADERS, (b"content-security-policy", policy().encode())]
                message = {**message, "headers": [*message.get("headers", ()), *security_headers]}
            await send(message)

        if scope["path"].startswith("/api/") and self._is_of_another_site(dict(scope["headers"])):
            await _say(headed, 403, "requests of other sites are not answered; open the page itself")
            return
        if self.open >= self.limits.waiting:
            await _say(headed, 503, f"more than {self.limits.waiting} requests are waiting; try again")
            return
        self.open += 1
        try:
            body = await self._body(receive) if scope["method"] not in ("GET", "HEAD", "OPTIONS") else b""
            if isinstance(body, int):
                words = {413: f"a request has at most {self.limits.body:,} bytes", 408: "the request did not arrive in time"}
                await _say(headed, body, words[body])
                return
            sent = False

            async def replay() -> Any:
                nonlocal sent
                if sent:
                    return await receive()
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}

            await self.app(scope, replay if scope["method"] not in ("GET", "HEAD", "OPTIONS") else receive, headed)
        finally:
            self.open -= 1

    def _is_of_another_site(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a browser sent a request for the page of another site; programs send neither header."""
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
        """Return the body of a request, or the status that refuses it."""
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
    """Return the body of an answer that refuses: what is wrong, and the field that caused it."""
    return {"detail": [{"loc": list(loc), "field": field, "msg": words}]}


async def _say(send: Any, status: int, words: str) -> None:
    body = json.dumps(problem(words)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
