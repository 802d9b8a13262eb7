"""Predictor server: answers of a step predictor as lines of JSON, on a local socket or on standard input.

One line is one request, and one line its answer:

    {"contexts": [900, 512], "prefills": [[256, 0]]}       {"seconds": 0.0071}
    {"batch": 64, "context": 2048}                         {"seconds": 0.0102}
    {"PromptTokens": 512, "CachedPromptTokens": 0, "RunningReqs": 8}      {"nanoseconds": 21000000}
    {"RunningReqs": 8}                                     {"nanoseconds": 7900000}

The last two have the field names of llm-d-inference-sim. A request that cannot be answered gets {"error": "..."}, and the
connection stays open. Lines, requests and connections are bounded, and only this machine is listened to.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from steptime.errors import InputError, RangeError, short_repr
from steptime.simulation.simulator_adapters import LlmdLatencyCalculator
from steptime.simulation.step_predictor import StepPredictor

# Longest line [bytes], most sequences and prompts of a request, and most connections.
LONGEST_LINE, MOST_ITEMS, MOST_CONNECTIONS = 262_144, 16_384, 64
LOOPBACK: Final = "127.0.0.1"
PASS_FIELDS: Final = ("contexts", "prefills")
UNIFORM_FIELDS: Final = ("batch", "context", "prompts", "tokens", "prefix")
LLMD_FIELDS: Final = ("PromptTokens", "CachedPromptTokens", "DoRemotePrefill", "RunningReqs")


def answer_line(predictor: StepPredictor, line: str | bytes) -> dict[str, Any]:
    """Return the answer to a line of JSON.

    Args:
        predictor: The step predictor.
        line: A request.

    Returns:
        `seconds`, `nanoseconds` or `error`.
    """
    try:
        if len(line) > LONGEST_LINE:
            raise RangeError(f"request: a line has at most {LONGEST_LINE:,} bytes, got {len(line):,}; split the pass")
        return _answer(predictor, json.loads(line))
    except InputError as problem:
        return {"error": str(problem)}
    except (ValueError, RecursionError):
        return {"error": f"request: is not JSON, got {short_repr(line)[:80]}"}


def _answer(predictor: StepPredictor, request: Any) -> dict[str, Any]:
    if not isinstance(request, Mapping) or not request:
        raise RangeError(f"request: must be an object such as {{'batch': 64, 'context': 2048}}, got {short_repr(request)[:80]}")
    for fields in (PASS_FIELDS, UNIFORM_FIELDS, LLMD_FIELDS):
        if set(request) <= set(fields):
            break
    else:
        field_lists = "; ".join(", ".join(names) for names in (PASS_FIELDS, UNIFORM_FIELDS, LLMD_FIELDS))
        raise RangeError(f"request: unknown fields {', '.join(sorted(map(str, request)))[:120]}; use one of: {field_lists}")
    if fields is PASS_FIELDS:
        contexts = [_size("contexts", value) for value in _items("contexts", request)]
        prefills = [_prompt(entry) for entry in _items("prefills", request)]
        return {"seconds": predictor.seconds(contexts, prefills)}
    if fields is UNIFORM_FIELDS:
        return {"seconds": predictor.uniform_seconds(**{name: _size(name, value) for name, value in request.items()})}
    calculator, running = LlmdLatencyCalculator(predictor), int(_size("RunningReqs", request.get("RunningReqs", 1)))
    if "PromptTokens" not in request:
        return {"nanoseconds": calculator.get_inter_token_latency(running)}
    remote = request.get("DoRemotePrefill", False)
    if not isinstance(remote, bool):
        raise RangeError(f"DoRemotePrefill: must be true or false, got {short_repr(remote)}")
    prompt, cached = (int(_size(name, request.get(name, 0))) for name in ("PromptTokens", "CachedPromptTokens"))
    if max(prompt, cached) > predictor.max_context:
        raise RangeError(f"PromptTokens: the table holds up to {predictor.max_context:,} tokens, got {max(prompt, cached):,}")
    return {"nanoseconds": calculator.get_time_to_first_token(prompt, cached, remote, running)}


def _items(name: str, request: Mapping[str, Any]) -> list[Any]:
    items = request.get(name, [])
    if not isinstance(items, list) or len(items) > MOST_ITEMS:
        raise RangeError(f"{name}: must be a list of at most {MOST_ITEMS:,} entries, got {short_repr(items)[:80]}")
    return items


def _size(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise RangeError(f"{name}: must be a number of at least 0, got {short_repr(value)[:80]}")
    return float(value)


def _prompt(entry: Any) -> tuple[float, float]:
    if not isinstance(entry, list) or len(entry) != 2:
        raise RangeError(f"prefills: each must be [new tokens, cached tokens], got {short_repr(entry)[:80]}")
    return _size("prefills", entry[0]), _size("prefills", entry[1])


def read_address(address: str) -> tuple[str, int] | Path:
    """Return a port of this machine, or the path of a Unix socket.

    Args:
        address: A port such as 7800, a host and port such as 127.0.0.1:7800, or a path.

    Returns:
        Host and port, or a path.

    Raises:
        RangeError: The port is out of range, the host is another machine, or this platform has no Unix sockets.

    >>> read_address("7800"), read_address("localhost:7800")
    (('127.0.0.1', 7800), ('127.0.0.1', 7800))
    """
    host, _, port = address.rpartition(":")
    if port.isdigit() and os.sep not in address:
        if host not in ("", LOOPBACK, "localhost"):
            raise RangeError(f"listen: only this machine is served, got {short_repr(host)}; use {LOOPBACK}:{port}")
        if not 0 <= int(port) < 65_536:
            raise RangeError(f"listen: a port is from 0 to 65535, got {port}")
        return LOOPBACK, int(port)
    if not hasattr(asyncio, "start_unix_server"):
        raise RangeError(f"listen: this platform has no Unix sockets, got {short_repr(address)}; use a port such as 7800")
    return Path(address)


async def serve_predictor(
    predictor: StepPredictor, address: str, *, ready: asyncio.Future[str] | None = None, connections: int = MOST_CONNECTIONS
) -> None:
    """Answer lines of JSON on a local socket until cancelled.

    Args:
        predictor: The step predictor.
        address: As for `read_address`.
        ready: Gets the address when the server listens.
        connections: Most connections at once; further ones get a message and are closed.

    Raises:
        RangeError: The address cannot be used.
    """
    target, open_connections = read_address(address), 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        open_connections += 1
        try:
            if open_connections > connections:
                writer.write(json.dumps({"error": f"server: {connections} connections are open; close one"}).encode() + b"\n")
                await writer.drain()
                return
            await _converse(predictor, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            open_connections -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    try:
        if isinstance(target, Path):
            # A socket that a server left behind is replaced; any other file stays.
            if target.exists() and stat.S_ISSOCK(target.stat().st_mode):
                target.unlink()
            server: asyncio.Server = await asyncio.start_unix_server(handle, path=str(target), limit=LONGEST_LINE)
            target.chmod(0o600)
            place = str(target)
        else:
            server = await asyncio.start_server(handle, *target, limit=LONGEST_LINE)
            place = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    except OSError as problem:
        raise RangeError(f"listen: cannot listen on {address}: {problem.strerror or problem}; use another address") from None
    async with server:
        if ready is not None:
            ready.set_result(place)
        await server.serve_forever()


async def _converse(predictor: StepPredictor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the lines of one connection."""
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            error = {"error": f"request: a line has at most {LONGEST_LINE:,} bytes; split the pass"}
            writer.write(json.dumps(error).encode() + b"\n")
            await writer.drain()
            return
        writer.write(json.dumps(answer_line(predictor, line.strip())).encode() + b"\n")
        await writer.drain()
