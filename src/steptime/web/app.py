"""HTTP routes of the questions: declarations and answers.

The inputs are those of the question's declaration. Models, systems and engines are names of the catalogue: no request
opens another file. Figures of the machine are set by path, such as "chip.hbm.bandwidth".

The HTTP application: catalogue, boards, questions and static files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
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

from steptime.errors import InputError, RangeError, SteptimeError, UnknownName, short_repr
from steptime.questions.declaration import COUNT, NUMBER, RENT, SWITCH, TEXT, TEXTS, Question, read_value
from steptime.questions.registry import HOMES, find_question
from steptime.result_base import plain
from steptime.web.board import Board, Shared, load_boards
from steptime.web.page_subject import WrongField, catalogue_file, listed
from steptime.web.request_limits import Limits, Shield, problem

# Inputs that name files.
FILES: Final = ("catalog", "trace")
# Inputs that name an entry of the catalogue, with its folder.
ENTRIES: Final = {"model": "models", "system": "systems", "machine": "systems", "engine": "engines"}
# Longest text [characters].
LONGEST_TEXT: Final = 200
# Largest body of a request [bytes].
LARGEST_BODY: Final = 100_000

Work = Callable[[Callable[[Any], bytes], Any], Awaitable[Response]]


def add_question_routes(app: FastAPI, work: Work) -> None:
    """Add the routes of all questions to an application.

    Args:
        app: The application.
        work: Runs a function of the body in a thread, within the limits of the server, and returns its answer.
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
        question = find_question(name)
        return await work(lambda inputs: _answers(question, inputs), values)


def declaration(question: Question) -> dict[str, Any]:
    """Return the inputs and answers of a question for JSON.

    Args:
        question: The question.

    Returns:
        Meaning, inputs and answers with units and bounds.
    """
    return {
        "meaning": question.meaning,
        "inputs": {name: plain(asdict(declared)) for name, declared in question.inputs.items() if name not in FILES},
        "answers": {
            name: {"meaning": declared.meaning, "unit": declared.unit, "text": declared.text}
            for name, declared in question.answers.items()
        },
    }


def check_request(question: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked inputs of a request.

    Args:
        question: The question.
        values: Inputs of the request.

    Returns:
        Inputs, with catalogue names as paths of their files.

    Raises:
        InputError: An input names a file, has a wrong type, is too long, or is missing.
        UnknownName: A name is not in the catalogue, or an input does not exist.
    """
    checked: dict[str, Any] = {}
    for name, value in values.items():
        is_figure = question.figures and ("." in name or name == "power")
        if name in FILES or not (name in question.inputs or is_figure):
            raise UnknownName(f"input of {question.name}", name, [key for key in question.inputs if key not in FILES])
        if value is None:
            continue
        _check_kind(name, value, TEXTS if name not in question.inputs else question.inputs[name].kind, is_figure=is_figure)
        if name in ENTRIES and not (name == "engine" and value == "ideal"):
            kind = "stacks" if name == "engine" and question.name == "train" else ENTRIES[name]
            # The path of the catalogue file prevents that a file of that name in the working folder is opened.
            checked[name] = str(catalogue_file(kind, value))
            continue
        # Numbers are valid where a text is expected, such as a rent in USD/h.
        is_word = name in question.inputs and question.inputs[name].kind == TEXT
        checked[name] = f"{value:.17g}" if is_word and not isinstance(value, str) else value
        _check_texts(question, name, checked[name])
        if name in question.inputs and question.inputs[name].kind in (COUNT, NUMBER):
            checked[name] = read_value(name, value, question.inputs[name])
    missing = [name for name in question.needs if checked.get(name) is None]
    if missing:
        raise InputError(f"{question.name} needs {' and '.join(missing)}")
    return checked


def _check_kind(name: str, value: object, kind: str, *, is_figure: bool) -> None:
    """Raise an error if a value has the wrong JSON type."""
    is_text, is_number = isinstance(value, str), isinstance(value, int | float) and not isinstance(value, bool)
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    takes = {
        COUNT: is_text or is_number, NUMBER: is_text or is_number, RENT: is_text or is_number, TEXT: is_text or is_number,
        SWITCH: isinstance(value, bool), TEXTS: is_text or is_list,
    }  # fmt: skip
    if not (is_text or is_number if is_figure else takes[kind]):
        raise RangeError(f"{name} must be a {'list of texts' if kind == TEXTS else kind}, not {short_repr(value)}")


def _check_texts(question: Question, name: str, value: object) -> None:
    """Raise an error for a text that could open a file outside the catalogue."""
    for words in value if isinstance(value, list) else [value]:
        if not isinstance(words, str):
            continue
        if len(words) > LONGEST_TEXT:
            raise RangeError(f"{name} must be a text of at most {LONGEST_TEXT} characters, not {short_repr(words)}")
        if name == "match_quality":
            size = words.partition("@")[0]
            if not size.rstrip("TBMk").replace(".", "", 1).isdigit():
                catalogue_file("models", size)
        elif name == "law" or (question.name == "laws" and name == "name"):
            for law in words.split(","):
                catalogue_file("laws", law.strip())
        elif any(mark in words for mark in ("\\", "..", ".toml", ".json")) or words.startswith(("/", "~")):
            raise RangeError(f"{name} must not be a path, got {short_repr(words)}")


def _answers(question: Question, values: Mapping[str, Any]) -> bytes:
    answers = question.ask(question_values(question, check_request(question, values)), frozenset())
    return json.dumps({"question": question.name, "answers": plain(dict(answers))}, allow_nan=False).encode()


def question_values(question: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs, with the default layout where a question needs one.

    Args:
        question: The question.
        values: Checked inputs.

    Returns:
        Inputs by name.
    """
    from steptime.questions.step_question import with_layout

    return with_layout(question, values) if question.name == "step" else dict(values)


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
