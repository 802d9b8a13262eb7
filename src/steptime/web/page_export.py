"""Export the page as static files, with answers on a grid of inputs per board."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from steptime.errors import DataFileError, InputError
from steptime.web.app import STATIC, start_bytes
from steptime.web.board import Board, Shared, described, load_boards
from steptime.web.lecture_page import lecture_html

# Points of the first slider, of the second slider at each point of the first, of each other slider, and of slow boards.
FIRST_POINTS, SECOND_POINTS, OTHER_POINTS, SLOW_POINTS = 13, 5, 5, 7


def export_to(folder: str) -> int:
    """Write the static copy of the page.

    Args:
        folder: New or empty folder.

    Returns:
        Number of answers in the copy.

    Raises:
        DataFileError: The folder is not empty, or cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise DataFileError(folder, "is not empty; name a new folder")
        shutil.copytree(STATIC, place / "static")
        page = (STATIC / "workbench.html").read_text(encoding="utf-8")
        # The copy has no server, so the page reads files and the link to the HTTP API is removed.
        page = page.replace('<html lang="en">', '<html lang="en" data-copy="yes">')
        page = page.replace('<a href="docs">HTTP API</a> · ', "")
        (place / "workbench.html").write_text(page, encoding="utf-8")
        (place / "index.html").write_text(lecture_html(is_live=False), encoding="utf-8")
        (place / "data").mkdir()
        (place / "data" / "start.json").write_bytes(start_bytes())
        return sum(_board(board, place / "data" / board.name) for board in load_boards().values())
    except OSError as error:
        raise DataFileError(folder, f"cannot be written: {error.strerror or error}") from None


def _board(board: Board, place: Path) -> int:
    place.mkdir()
    bodies: list[dict[str, Any]] = []
    for body in grid(board):
        try:
            answer = board.answer(board.inputs(**body)).to_dict()
        except (InputError, ValidationError):
            # Some corners of the grid have no answer; the page then uses the nearest answer.
            continue
        (place / f"{len(bodies)}.json").write_text(json.dumps(answer, allow_nan=False, separators=(",", ":")), encoding="utf-8")
        bodies.append(body)
    (place / "index.json").write_text(json.dumps(bodies, separators=(",", ":")), encoding="utf-8")
    return len(bodies)


def grid(board: Board) -> Iterator[dict[str, Any]]:
    """Yield the inputs of the answers in a static copy of a board.

    They are the defaults, the presets, and values along each input.

    Args:
        board: The board.

    Yields:
        Inputs of one answer.

    >>> from steptime.web.board import load_boards
    >>> bodies = list(grid(load_boards()["step"]))
    >>> bodies[0]["batch"], len(bodies) > 60, len({body["context"] for body in bodies}) >= 5
    (256, True, True)
    """
    inputs = described(board.inputs)
    base = {name: field.default for name, field in Shared.model_fields.items() if name in board.bar}
    base |= {control["name"]: control["default"] for control in inputs}
    changes: list[Mapping[str, Any]] = [{}, board.spoken, board.today]
    first_points, second_points = (SLOW_POINTS, 0) if board.slow else (FIRST_POINTS, SECOND_POINTS)
    # The first two sliders get a two-dimensional grid; the others vary one at a time.
    main_sliders = [control for control in inputs if control["kind"] == "slider" and not control["more"]]
    for first in main_sliders[:1]:
        for value in along(first, first_points):
            changes.append({first["name"]: value})
            for second in main_sliders[1:2]:
                changes += [{first["name"]: value, second["name"]: point} for point in along(second, second_points)]
    for control in inputs:
        if control["kind"] == "choice":
            changes += [{control["name"]: word} for word in control["options"]]
        elif control["kind"] == "slider" and control not in main_sliders[:1]:
            changes += [{control["name"]: value} for value in along(control, OTHER_POINTS)]
    bodies = [base | {name: value for name, value in change.items() if name in base} for change in changes]
    yield from {json.dumps(body, sort_keys=True): body for body in bodies}.values()


def along(control: dict[str, Any], count: int) -> list[float]:
    """Return evenly spaced values along a slider, in its scale.

    Args:
        control: Control of `described`.
        count: Number of values.

    Returns:
        Values within the bounds, rounded to three digits or to whole numbers.

    >>> along({"low": 1, "high": 1000, "log": True, "whole": True, "default": 10}, 4)
    [1, 10, 100, 1000]
    """
    low, high = control["low"], control["high"]
    points = np.geomspace(max(low, 1e-9), high, count) if control["log"] else np.linspace(low, high, count)
    values = [min(max(float(f"{value:.3g}"), low), high) for value in points]
    return [round(value) for value in values] if control["whole"] else values
