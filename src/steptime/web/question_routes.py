"""HTTP routes of the questions: declarations and answers.

The inputs are those of the question's declaration. Models, systems and engines are names of the catalogue: no request
opens another file. Figures of the machine are set by path, such as "chip.hbm.bandwidth".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from fastapi import FastAPI, Request, Response

from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.questions.declaration import COUNT, NUMBER, RENT, SWITCH, TEXT, TEXTS, Question, read_value
from steptime.questions.registry import HOMES, find_question
from steptime.result_base import plain
from steptime.web.page_subject import catalogue_file

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
        "answers": {name: plain(asdict(declared)) for name, declared in question.answers.items()},
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
