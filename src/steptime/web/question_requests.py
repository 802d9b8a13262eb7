"""Requests from outside for a question: their declaration as JSON, and the check of their inputs.

HTTP routes and tools of the Model Context Protocol share this check. Models, systems, engines and laws are names of the
catalogue, so that no request opens another file or uses the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.questions.declaration import COUNT, NUMBER, SWITCH, TEXT, TEXTS, Question, read_value
from steptime.result_base import plain
from steptime.web.page_subject import catalogue_file

# Inputs that name files.
FILES: Final = ("catalog", "trace")
# Inputs that name an entry of the catalogue, with its folder.
ENTRIES: Final = {
    "model": "models",
    "system": "systems",
    "prefill_system": "systems",
    "machine": "systems",
    "engine": "engines",
    "draft_model": "models",
}
# Inputs that list entries of the catalogue, with their folder.
LISTS: Final = ("models", "systems")
# Values of these inputs that are not entries of the catalogue.
NOT_ENTRIES: Final = {"engine": ("ideal",), "draft_model": ("mtp", "eagle3")}
# Longest text [characters].
LONGEST_TEXT: Final = 200


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
        if name in FILES or not (name in question.inputs or (question.figures and ("." in name or name == "power"))):
            raise UnknownName(f"input of {question.name}", name, [key for key in question.inputs if key not in FILES])
        if value is None:
            continue
        kind = question.inputs[name].kind if name in question.inputs else NUMBER
        _check_kind(name, value, kind)
        if name in ENTRIES and value not in NOT_ENTRIES.get(name, ()):
            # The path of the catalogue file prevents that a file of that name in the working folder is opened.
            checked[name] = str(catalogue_file(entry_folder(question, name), value))
            continue
        if name in LISTS and kind == TEXTS:
            names = [value] if isinstance(value, str) else value
            parts = [part.strip() for words in names for part in words.split(",") if part.strip()]
            checked[name] = [str(catalogue_file(name, part)) for part in parts]
            continue
        # Numbers are valid where a text is expected, such as a rent in USD/h.
        checked[name] = f"{value:.17g}" if kind == TEXT and not isinstance(value, str) else value
        _check_texts(question, name, checked[name])
        if name in question.inputs and kind in (COUNT, NUMBER):
            checked[name] = read_value(name, value, question.inputs[name])
    missing = [name for name in question.needs if checked.get(name) is None]
    if missing:
        raise InputError(f"{question.name} needs {' and '.join(missing)}")
    return checked


def entry_folder(question: Question, name: str) -> str:
    """Return the folder of the catalogue that has the values of an input.

    Args:
        question: The question.
        name: Name of one of the inputs in `ENTRIES`.

    Returns:
        Folder such as "models".
    """
    return "stacks" if name == "engine" and question.name == "train" else ENTRIES[name]


def _check_kind(name: str, value: object, kind: str) -> None:
    """Raise an error if a value has the wrong JSON type; a number may be written as a text, and a text as a number."""
    is_text = isinstance(value, str)
    accepted = {
        SWITCH: isinstance(value, bool),
        TEXTS: is_text or (isinstance(value, list) and all(isinstance(item, str) for item in value)),
    }
    if not accepted.get(kind, is_text or (isinstance(value, int | float) and not isinstance(value, bool))):
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
