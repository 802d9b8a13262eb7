"""Server of the Model Context Protocol: questions as tools of an assistant, on standard input and output or loopback HTTP.

`mcp_tools` has the tools and their answers. An answer takes at most `SHORT` bytes; the argument full, or the resource that
the answer names, has all figures.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final

from steptime.catalog.data_files import files
from steptime.errors import RangeError, SteptimeError, UnknownName, one_line, short_repr
from steptime.result_base import problem
from steptime.web.mcp_tools import FIGURES, FULL, KINDS, SHORT, questions, reply, tools

# Bytes of an answer with the argument full.
LONG: Final = 100_000
# Longest time of a call [s], and full answers that stay readable as resources.
MOST_SECONDS: Final = 300.0
KEPT_ANSWERS: Final = 64
# Longest text in a short answer [characters].
LONGEST_TEXT: Final = 400
URI: Final = "steptime://"
# Lists of an answer that lose their last entries first where an answer is too long.
SHORTENED: Final = ("names", "flips", "notes", "rows", "numbers", "summary")
INSTRUCTIONS: Final = (
    "steptime computes step time, latency, throughput, cost and training time of large language models from a config and a "
    "data sheet. Begin with `catalogue` for names. Figures have a unit and, where known, a 90 % range and a grade: of the rent "
    "for USD, of the evidence for the layout for times of a plan, of the verdict for numbers of the lecture. Quote the range "
    "with the figure. Nothing is measured here: figures are predictions."
)


# --- short answers -------------------------------------------------------------------------------------------------------


def call(tool: str, arguments: Mapping[str, Any] | None, keep: Callable[[str], str] = lambda _: "") -> tuple[str, bool]:
    """Answer a call as JSON text.

    Args:
        tool: Name of the tool.
        arguments: Its arguments.
        keep: Function that keeps the full answer and returns its address.

    Returns:
        Text, and whether it is an error.
    """
    arguments = arguments or {}
    try:
        is_full = arguments.get(FULL, False)
        if not isinstance(is_full, bool):
            raise RangeError(f"{FULL}: must be true or false, got {short_repr(is_full)}")
        answer = reply(tool, arguments)
        full_text = fit(answer, LONG)
        if is_full:
            return full_text, False
        place = keep(full_text) if _bytes(full_text) > SHORT or _brief(answer) != answer else ""
        return fit(_brief(answer) | ({"more": place} if place else {}), SHORT), False
    except SteptimeError as error:
        return fit({name: value for name, value in problem(error).items() if name != "schema"}, SHORT), True
    except MemoryError:
        return json.dumps({"error": "MemoryError", "message": "there is not enough memory for that; ask for less"}), True
    # A client gets a message, never a traceback.
    except Exception as error:
        words = one_line(f"steptime failed on these arguments ({type(error).__name__}: {error})")[:LONGEST_TEXT]
        return json.dumps({"error": "Failure", "message": f"{words}; change them, or report it"}), True


def _brief(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with the figures that its question shows, and without the result itself."""
    question = questions()[answer["question"]]
    brief = {name: value for name, value in answer.items() if name not in ("result", "summary")}
    if "figures" in brief and question.shows:
        brief[FIGURES] = {name: figure for name, figure in answer[FIGURES].items() if name in question.shows}
    return brief


def _bytes(words: str) -> int:
    return len(words.encode())


def fit(answer: Mapping[str, Any], limit: int) -> str:
    """Return an answer as JSON of limited size; what is left out is counted.

    Args:
        answer: Plain data.
        limit: Largest size [B].

    Returns:
        JSON text.

    >>> fit({"question": "lecture", "rows": ["a" * 40] * 3}, 110)
    '{"question":"lecture","rows":["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"],"left_out":{"rows":2}}'
    """
    parts = {name: _cut(value) if limit <= SHORT else value for name, value in answer.items()}
    left_out: dict[str, int] = {}
    while _bytes(written := _written(parts, left_out)) > limit:
        name = next((name for name in SHORTENED if isinstance(parts.get(name), list | dict) and parts[name]), "")
        if name:
            # Several at a time, so that long lists need few steps.
            entries = parts[name]
            excess = max(1, len(entries) // 8) if _bytes(written) > 2 * limit else 1
            last = len(entries) - excess
            parts[name] = entries[:last] if isinstance(entries, list) else dict(list(entries.items())[:last])
            left_out[name] = left_out.get(name, 0) + excess
            continue
        name = next((name for name in ("result", "command", FIGURES, "basis", "nearest") if name in parts), "")
        if not name:
            return json.dumps({"error": "Failure", "message": "the answer is too long; ask with fewer inputs"})
        del parts[name]
        left_out[name] = 1
    return written


def _written(answer: Mapping[str, Any], left_out: Mapping[str, int]) -> str:
    every = {**answer, **({"left_out": dict(left_out)} if left_out else {})}
    return json.dumps(every, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _cut(value: Any) -> Any:
    """Return a value with shortened texts."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else f"{value[: LONGEST_TEXT - 4]} ..."
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    return [_cut(item) for item in value] if isinstance(value, list) else value


# --- the server ----------------------------------------------------------------------------------------------------------


class Answers:
    """The newest full answers, which a client reads as resources."""

    def __init__(self) -> None:
        self.texts: OrderedDict[str, str] = OrderedDict()
        self.number = 0

    def keep(self, words: str) -> str:
        """Keep an answer.

        Args:
            words: The full answer.

        Returns:
            Its address.
        """
        self.number += 1
        address = f"{URI}answers/{self.number}"
        self.texts[address] = words
        while len(self.texts) > KEPT_ANSWERS:
            self.texts.popitem(last=False)
        return address

    def resource(self, address: str) -> str:
        """Return a resource.

        Args:
            address: Address of a kept answer, or of a list of the catalogue.

        Returns:
            JSON text.

        Raises:
            UnknownName: There is no such resource.
        """
        if address in self.texts:
            return self.texts[address]
        kind = address.removeprefix(f"{URI}catalogue/")
        if kind in KINDS:
            return json.dumps({kind: sorted(files(kind))})
        addresses = [*(f"{URI}catalogue/{kind}" for kind in KINDS), *self.texts]
        raise UnknownName("resource", address, addresses, "Kept are the lists of the catalogue, and the newest answers.")


def build_server() -> Any:
    """Return the server with its tools and resources.

    Returns:
        A `Server` of the SDK.
    """
    import anyio
    from anyio import to_thread
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.shared.exceptions import MCPError

    answers = Answers()
    # One question at a time: most of them take all of a core.
    place = anyio.CapacityLimiter(1)

    async def list_tools(_context: Any, _parameters: Any) -> Any:
        hints = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
        listed_tools = [
            types.Tool(name=tool["name"], description=tool["description"], input_schema=tool["inputSchema"], annotations=hints)
            for tool in tools()
        ]
        return types.ListToolsResult(tools=listed_tools)

    async def call_tool(_context: Any, parameters: Any) -> Any:
        words, is_error = "", True
        with anyio.move_on_after(MOST_SECONDS) as scope:
            words, is_error = await to_thread.run_sync(
                call, parameters.name, parameters.arguments, answers.keep, limiter=place, abandon_on_cancel=True
            )
        if scope.cancelled_caught:
            words = json.dumps({"error": "Timeout", "message": f"no answer within {MOST_SECONDS:g} s; use smaller inputs"})
        return types.CallToolResult(content=[types.TextContent(type="text", text=words)], is_error=is_error)

    async def list_resources(_context: Any, _parameters: Any) -> Any:
        addresses = [*(f"{URI}catalogue/{kind}" for kind in KINDS), *answers.texts]
        listed_resources = [
            types.Resource(uri=address, name=address.removeprefix(URI), mime_type="application/json") for address in addresses
        ]
        return types.ListResourcesResult(resources=listed_resources)

    async def read_resource(_context: Any, parameters: Any) -> Any:
        try:
            words = answers.resource(str(parameters.uri))
        except UnknownName as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        content = types.TextResourceContents(uri=parameters.uri, mime_type="application/json", text=words)
        return types.ReadResourceResult(contents=[content])

    return Server(
        "steptime", version=version("steptime"), instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool,
        on_list_resources=list_resources, on_read_resource=read_resource,
    )  # fmt: skip


def serve(port: int | None = None) -> None:
    """Serve until the client leaves, or until an interrupt.

    Args:
        port: Port of loopback HTTP; None: standard input and output.
    """
    import anyio

    server = build_server()
    if port is not None:
        import uvicorn

        sys.stderr.write(f"steptime: tools at http://127.0.0.1:{port}/mcp (Ctrl+C ends it)\n")
        # The application refuses other host names and origins than those of loopback.
        uvicorn.run(server.streamable_http_app(host="127.0.0.1"), host="127.0.0.1", port=port, log_level="warning")
        return

    async def talk() -> None:
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(talk)
