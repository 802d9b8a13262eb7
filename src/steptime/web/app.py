"""The HTTP application: catalogue, boards, questions and static files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from steptime.errors import InputError, SteptimeError
from steptime.web.board import Board, load_boards
from steptime.web.board_inputs import Shared
from steptime.web.page_subject import WrongField, listed
from steptime.web.question_routes import add_question_routes
from steptime.web.request_limits import Limits, Shield, problem

VERSION: Final = version("steptime")
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
STATIC: Final = Path(__file__).parent / "static"
# Answers kept in the cache of a board.
MAX_ANSWERS: Final = 256
DESCRIPTION: Final = (
    "One route for each board of steptime's page. A request holds inputs with units and bounds; an answer holds columns and "
    "a sentence. An invalid request gets status 422 with the field and the message of the command line."
)


def app_for(*, hosts: tuple[str, ...] = LOOPBACK, limits: Limits | None = None) -> FastAPI:
    """Return the HTTP application.

    Args:
        hosts: Host names that a request may use; "*" allows all.
        limits: Sizes, times and numbers of requests; None: the defaults.

    Returns:
        FastAPI application.
    """
    request_limits = limits or Limits()
    # Redirects would lose the prefix and the scheme of a proxy.
    app = FastAPI(
        title="steptime", version=VERSION, description=DESCRIPTION, docs_url=None, redoc_url=None, redirect_slashes=False
    )  # fmt: skip
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    app.add_middleware(Shield, limits=request_limits, hosts=tuple(name for name in hosts if name not in (*LOOPBACK, "*")))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(SteptimeError)(_refused)
    # Slow boards have a queue with one worker, so that they cannot delay quick boards.
    quick, slow = (
        Desk(asyncio.Semaphore(request_limits.workers), request_limits.waiting),
        Desk(asyncio.Semaphore(1), request_limits.queue),
    )
    app.state.is_stuck = lambda: any(desk.longest() > request_limits.stuck for desk in (quick, slow))

    @app.get("/api/start", tags=["page"], summary="The boards with their inputs, and the names of the catalogue.")
    def start() -> Response:
        return Response(start_bytes(), media_type="application/json")

    for board in load_boards().values():
        _routes(app, board, slow if board.slow else quick, request_limits)

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return FileResponse(STATIC / "docs.html")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    async def work(answer: Callable[[Any], bytes], body: Any) -> Response:
        return await _answered(slow, request_limits, answer, body)

    add_question_routes(app, work)
    return app


async def _answered(desk: Desk, limits: Limits, answer: Callable[[Any], bytes], body: Any) -> Response:
    """Return an answer, or status 503 if the queue is full or the work takes too long."""
    if desk.line >= desk.max_waiting:
        return _later(f"more than {desk.max_waiting} requests are waiting; try again later")
    desk.line += 1
    try:
        text = await desk.work(answer, body, limits)
    except TimeoutError:
        return _later(f"no answer within {limits.seconds:g} s; use smaller inputs")
    finally:
        desk.line -= 1
    return Response(text, media_type="application/json")


@lru_cache(maxsize=1)
def start_bytes() -> bytes:
    """Return the start data of the page as JSON.

    Returns:
        Boards, inputs of the bar, and names of the catalogue.
    """
    boards = [board.to_dict() for board in load_boards().values()]
    bar = [
        {"name": name, "label": field.title, "words": field.description, "default": field.default}
        for name, field in Shared.model_fields.items()
    ]
    return json.dumps({"version": VERSION, "boards": boards, "bar": bar, **dict(listed())}, allow_nan=False).encode()


@dataclass
class Desk:
    """A queue of answers: `places` run at once, at most `max_waiting` wait.

    `running` maps the work in threads to its start time. A thread cannot be stopped, so abandoned work keeps its
    place.
    """

    places: asyncio.Semaphore
    max_waiting: int
    line: int = 0
    running: dict[asyncio.Future[bytes], float] = field(default_factory=dict)

    def longest(self) -> float:
        """Return the run time of the oldest work.

        Returns:
            Seconds; 0 if nothing runs.
        """
        return monotonic() - min(self.running.values()) if self.running else 0.0

    async def work(self, answer: Callable[[Any], bytes], body: Any, limits: Limits) -> bytes:
        """Run an answer in a thread.

        Args:
            answer: Function of the body that returns JSON.
            body: Inputs of the request.
            limits: Limits of the server.

        Returns:
            JSON of the answer.

        Raises:
            TimeoutError: No place becomes free in time, or the work takes too long.
        """
        async with asyncio.timeout(limits.stuck):
            await self.places.acquire()
        task = asyncio.ensure_future(to_thread.run_sync(answer, body, abandon_on_cancel=True))
        self.running[task] = monotonic()
        task.add_done_callback(self._leave)
        async with asyncio.timeout(limits.seconds):
            return await asyncio.shield(task)

    def _leave(self, task: asyncio.Future[bytes]) -> None:
        del self.running[task]
        self.places.release()
        # Read the error of abandoned work, so that asyncio does not report it.
        if not task.cancelled():
            task.exception()


def _routes(app: FastAPI, board: Board, desk: Desk, limits: Limits) -> None:
    form, answer = board.inputs, _cached_answer(board)

    async def ask(body: Any) -> Response:
        return await _answered(desk, limits, answer, body)

    # FastAPI reads the inputs of GET from the query and those of POST from the body.
    for method, kind in (("POST", form), ("GET", Annotated[form, Query()])):

        async def endpoint(body: Any) -> Response:
            return await ask(body)

        endpoint.__annotations__["body"] = kind
        app.add_api_route(
            f"/api/boards/{board.name}", endpoint, methods=[method], tags=["boards"], summary=board.title,
            operation_id=f"{board.name}_{method.lower()}",
        )  # fmt: skip


def _later(words: str) -> JSONResponse:
    return JSONResponse(problem(words), 503)


def _cached_answer(board: Board) -> Callable[[Any], bytes]:
    """Return a function that computes each answer once, as JSON."""

    @lru_cache(maxsize=MAX_ANSWERS)
    def answered(inputs: Any) -> bytes:
        return json.dumps(board.answer(inputs).to_dict(), allow_nan=False, separators=(",", ":")).encode()

    return answered


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # A request can have thousands of errors; twenty are enough to fix it.
    detail = [
        {
            "loc": [str(part) for part in issue["loc"]],
            "field": str(issue["loc"][-1]) if issue["loc"] else "",
            "msg": _worded(issue),
        }
        for issue in error.errors()[:20]
    ]
    return JSONResponse({"detail": detail}, 422)


def _worded(issue: dict[str, Any]) -> str:
    """Return a validation error in the words of the command line."""
    name, context = str(issue["loc"][-1]) if issue["loc"] else "the request", issue.get("ctx") or {}
    words = {
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "less_than_equal": f"must be at most {context.get('le')}",
        "extra_forbidden": "is not an input of this board",
        "missing": "is missing",
        "string_too_long": f"must have at most {context.get('max_length')} characters",
        "finite_number": "must be a finite number",
        "string_pattern_mismatch": "must be one of " + str(context.get("pattern", "")).strip("^()$").replace("|", ", "),
    }  # fmt: skip
    kind = str(issue["type"])
    if kind == "json_invalid":
        return "the body is not JSON"
    if kind in ("model_attributes_type", "model_type", "dict_type"):
        return "the body must be a JSON object, sent with content-type: application/json"
    number = "must be a whole number" if kind.startswith("int_") else "must be a number" if kind.startswith("float_") else ""
    return f"{name} {words.get(kind, number or str(issue['msg'])[:200])}"


async def _refused(_request: Request, error: Exception) -> Response:
    # Wrong input is the caller's error; other errors of the package are the server's.
    field = error.field if isinstance(error, WrongField) else ""
    status = 422 if isinstance(error, InputError) else 500
    return JSONResponse(problem(str(error), field, "body", *filter(None, [field])), status)
