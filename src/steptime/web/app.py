"""The HTTP application of the page: catalogue, boards, questions and static files; and its start.

The inputs of a question are those of its declaration. Models, systems and engines are names of the catalogue: no request
opens another file. Figures of the machine are set by path, such as "chip.hbm.bandwidth".
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final

import uvicorn
from anyio import to_thread
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from steptime.catalog.hardware_loading import load_system
from steptime.errors import InputError, RangeError, SteptimeError, short_repr
from steptime.lecture.story import engine_rows, pair_tables
from steptime.models.model_loading import HUB_ID, fetch, load_model
from steptime.planning.planner import plan
from steptime.processes import core_count
from steptime.questions.declaration import Question
from steptime.questions.registry import HOMES, find_question
from steptime.result_base import plain
from steptime.web import server
from steptime.web.board import LONGEST, Board, Shared, load_boards
from steptime.web.lecture_page import served_page
from steptime.web.page_subject import WrongField, catalogue_file, listed
from steptime.web.question_requests import LONGEST_TEXT, check_request, declaration
from steptime.workload.workload import Slo, Workload

VERSION: Final = version("steptime")
STATIC: Final = Path(__file__).parent / "static"
# Answers kept in the cache of a board.
MAX_ANSWERS: Final = 256
DESCRIPTION: Final = (
    "One route for each board of steptime's page. A request holds inputs with units and bounds; an answer holds columns and "
    "a sentence. An invalid request gets status 422 with the field and the message of the command line."
)


def app_for(*, hosts: tuple[str, ...] = server.LOOPBACK, limits: server.Limits | None = None) -> FastAPI:
    """Return the HTTP application.

    Args:
        hosts: Host names that a request may use; "*" allows all.
        limits: Sizes, times and numbers of requests; None: the defaults.

    Returns:
        FastAPI application.
    """
    request_limits = limits or server.Limits()
    # Redirects would lose the prefix and the scheme of a proxy.
    app = FastAPI(
        title="steptime", version=VERSION, description=DESCRIPTION, docs_url=None, redoc_url=None, redirect_slashes=False
    )  # fmt: skip
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    further_hosts = tuple(name for name in hosts if name not in (*server.LOOPBACK, "*"))
    app.add_middleware(server.Shield, limits=request_limits, hosts=further_hosts)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(SteptimeError)(_refused)
    # Slow boards have a queue with one worker, so that they cannot delay quick boards.
    quick = Desk(request_limits, asyncio.Semaphore(request_limits.workers), request_limits.waiting)
    slow = Desk(request_limits, asyncio.Semaphore(1), request_limits.queue)
    app.state.is_stuck = lambda: quick.is_stuck() or slow.is_stuck()

    @app.get("/api/start", tags=["page"], summary="The boards with their inputs, and the names of the catalogue.")
    def start() -> Response:
        return Response(start_bytes(), media_type="application/json")

    for board in load_boards().values():
        _add_board_routes(app, board, slow if board.slow else quick)

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    def lecture() -> Response:
        page, policy = served_page()
        return Response(page, media_type="text/html; charset=utf-8", headers={"content-security-policy": policy})

    @app.head("/workbench", include_in_schema=False)
    @app.get("/workbench", include_in_schema=False)
    def workbench() -> FileResponse:
        return FileResponse(STATIC / "workbench.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return FileResponse(STATIC / "docs.html")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/api/lecture/pair", tags=["page"], summary="Numbers of a model and a system for the lecture.")
    async def pair(
        model: Annotated[str, Query(max_length=LONGEST_TEXT)], system: Annotated[str, Query(max_length=LONGEST_TEXT)]
    ) -> Response:
        return await quick.answer(_pair, (model, system))

    if not further_hosts and "*" not in hosts:
        _add_config_route(app, quick)
    add_question_routes(app, slow)
    return app


@lru_cache(maxsize=MAX_ANSWERS)
def _pair(names: tuple[str, str]) -> bytes:
    # Paths of catalogue files, so that no other file is opened.
    model, system = load_model(str(catalogue_file("models", names[0]))), load_system(str(catalogue_file("systems", names[1])))
    return json.dumps({**pair_tables(model, system), "engine": engine_rows(model, system)}, allow_nan=False).encode()


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

    limits: server.Limits
    places: asyncio.Semaphore
    max_waiting: int
    waiting: int = 0
    running: dict[asyncio.Future[bytes], float] = field(default_factory=dict)

    def is_stuck(self) -> bool:
        """Return whether some work runs for too long.

        Returns:
            True if the watchdog shall replace the process.
        """
        return bool(self.running) and monotonic() - min(self.running.values()) > self.limits.stuck

    async def answer(self, compute: Callable[[Any], bytes], body: Any) -> Response:
        """Compute an answer in a thread.

        Args:
            compute: Function of the body that returns JSON.
            body: Inputs of the request.

        Returns:
            The answer; status 503 if the queue is full or the work takes too long.
        """
        if self.waiting >= self.max_waiting:
            return _later(f"more than {self.max_waiting} requests are waiting; try again later")
        self.waiting += 1
        try:
            return Response(await self._work(compute, body), media_type="application/json")
        except TimeoutError:
            return _later(f"no answer within {self.limits.seconds:g} s; use smaller inputs")
        finally:
            self.waiting -= 1

    async def _work(self, compute: Callable[[Any], bytes], body: Any) -> bytes:
        async with asyncio.timeout(self.limits.stuck):
            await self.places.acquire()
        task = asyncio.ensure_future(to_thread.run_sync(compute, body, abandon_on_cancel=True))
        self.running[task] = monotonic()
        task.add_done_callback(self._leave)
        async with asyncio.timeout(self.limits.seconds):
            return await asyncio.shield(task)

    def _leave(self, task: asyncio.Future[bytes]) -> None:
        del self.running[task]
        self.places.release()
        # Read the error of abandoned work, so that asyncio does not report it.
        if not task.cancelled():
            task.exception()


def _later(words: str) -> JSONResponse:
    return JSONResponse(server.problem(words), 503)


def _add_board_routes(app: FastAPI, board: Board, desk: Desk) -> None:
    @lru_cache(maxsize=MAX_ANSWERS)
    def answer(inputs: Any) -> bytes:
        return json.dumps(board.answer(inputs).to_dict(), allow_nan=False, separators=(",", ":")).encode()

    # FastAPI reads the inputs of GET from the query and those of POST from the body.
    for method, kind in (("POST", board.inputs), ("GET", Annotated[board.inputs, Query()])):

        async def endpoint(body: Any) -> Response:
            return await desk.answer(answer, body)

        endpoint.__annotations__["body"] = kind
        app.add_api_route(
            f"/api/boards/{board.name}", endpoint, methods=[method], tags=["boards"], summary=board.title,
            operation_id=f"{board.name}_{method.lower()}",
        )  # fmt: skip


# --- questions ---------------------------------------------------------------------------------------------------------

# Largest body of a request [bytes].
LARGEST_BODY: Final = 100_000


def add_question_routes(app: FastAPI, desk: Desk) -> None:
    """Add the routes of all questions to an application.

    Args:
        app: The application.
        desk: Queue of the answers.
    """

    @app.get("/api/questions", tags=["questions"], summary="All questions: inputs and answers with units and bounds.")
    def declarations() -> Response:
        return Response(json.dumps({name: declaration(find_question(name)) for name in HOMES}), media_type="application/json")

    @app.post("/api/questions/{name}", tags=["questions"], summary="Answers of one question for a JSON object of inputs.")
    async def answer(name: str, request: Request) -> Response:
        body = await request.body()
        if len(body) > LARGEST_BODY:
            raise RangeError(f"body must be at most {LARGEST_BODY:,} bytes, not {len(body):,}")
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InputError(f"body is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise InputError(f"body must be an object of inputs, not {short_repr(values)}")
        return await desk.answer(partial(_answers, find_question(name)), values)


def _answers(question: Question, values: Mapping[str, Any]) -> bytes:
    from steptime.questions.step_question import with_layout

    inputs = check_request(question, values)
    # A step has the smallest layout that holds the model if the request gives none.
    answers = question.ask(with_layout(question, inputs) if question.name == "step" else inputs, frozenset())
    return json.dumps({"question": question.name, "answers": plain(dict(answers))}, allow_nan=False).encode()


# --- the config.json of a Hugging Face id ---------------------------------------------------------------------------------


class HubName(BaseModel):
    """The Hugging Face id of a config.json that the user asks for."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=LONGEST_TEXT, pattern=f"^{HUB_ID.pattern}$", description="owner/model")


def _add_config_route(app: FastAPI, desk: Desk) -> None:
    """Add the only route that uses the network: the config.json of a name, at the request of a user of this machine."""

    @app.post("/api/config", tags=["page"], summary="The config.json of a Hugging Face id, by download.")
    async def config(body: HubName, request: Request) -> Response:
        if request.client is None or not server.is_loopback(request.client.host):
            return JSONResponse(server.problem("only users of this machine may download a config.json"), 403)
        return await desk.answer(_config, body.name)


def _config(name: str) -> bytes:
    path = fetch(name)
    if isinstance(path, str):
        raise InputError(f"{name}: {path}")
    text = path.read_text(encoding="utf-8")
    if len(text) > LONGEST:
        raise RangeError(f"{name}: its config.json has more than {LONGEST:,} characters")
    return json.dumps({"config": text}).encode()


# --- errors ------------------------------------------------------------------------------------------------------------


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # A request can have thousands of errors; twenty are enough to fix it.
    issues = [([str(part) for part in issue["loc"]], _worded(issue)) for issue in error.errors()[:20]]
    detail = [{"loc": loc, "field": loc[-1] if loc else "", "msg": words} for loc, words in issues]
    return JSONResponse({"detail": detail}, 422)


def _worded(issue: dict[str, Any]) -> str:
    """Return a validation error in the words of the command line."""
    name, context = str(issue["loc"][-1]) if issue["loc"] else "the request", issue.get("ctx") or {}
    words = {
        "greater_than_equal": f"must be at least {context.get('ge', 0):,.12g}",
        "less_than_equal": f"must be at most {context.get('le', 0):,.12g}",
        "string_type": "must be text",
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
    return JSONResponse(server.problem(str(error), field, "body", *filter(None, [field])), status)


# --- the server --------------------------------------------------------------------------------------------------------


def serve(
    host: str,
    port: int,
    *,
    browse: bool,
    announce: Callable[[str], None],
    allowed: tuple[str, ...] = (),
    patience: server.Patience | None = None,
    limits: server.Limits | None = None,
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
    patience = patience or server.Patience()
    listening = server.listening_socket(host, port)
    bound_port = listening.getsockname()[1]
    url_host = f"[{host}]" if ":" in host else host
    address = f"http://{'localhost' if host in ('127.0.0.1', '::1') else url_host}:{bound_port}/"
    app = app_for(hosts=server.answered_hosts(host, allowed), limits=limits)
    # All processes share the lecture, so that the first visitor does not wait for it.
    served_page()
    config = uvicorn.Config(
        app, host=host, port=bound_port, log_level="warning", timeout_keep_alive=int(patience.idle), server_header=False,
        limit_concurrency=server.CONNECTIONS, h11_max_incomplete_event_size=65_536, timeout_graceful_shutdown=2,
    )  # fmt: skip

    def work(beat: Callable[[], None]) -> None:
        threading.Thread(target=_warm, daemon=True).start()
        # A process with work that never ends sends no signs of life, so that the watchdog replaces it.
        server.Worker(config, patience, lambda: None if app.state.is_stuck() else beat()).run(sockets=[listening])

    if server.is_forkable():
        workers = server.Watchdog(work, min(core_count(), server.MOST_PROCESSES), patience)
        workers.run(partial(server.open_page, address, announce, browse=browse))
    else:
        server.open_page(address, announce, browse=browse)
        work(lambda: None)


def _warm() -> None:
    """Compute the first answers of the page before the first request."""
    start_bytes()
    first = next(iter(load_boards().values()))
    first.answer(first.inputs.model_validate({}))
    # A first plan after an installation compiles the simulator, which takes longer than a request may wait.
    requests, limits = Workload(input_tokens=512, output_tokens=64), Slo(tpot=0.01, ttft=1.0)
    plan("llama-3.1-8b", "hgx-h100", requests, limits, chips=2, alternatives=False, elasticities=False, diagnostics=False)
