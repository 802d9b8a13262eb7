"""A static copy of the page for any file server: the files, and answers on a grid of inputs for each board."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from steptime.errors import DataFileError, InputError
from steptime.web.app import STATIC, start_bytes
from steptime.web.board import Board, found
from steptime.web.board_inputs import Shared, described

FIRST, SECOND, OTHERS, SLOW = (
    13,
    5,
    5,
    7,
)  # points of the first slider, of the second at each of them, of others alone; of slow boards


def export_to(folder: str) -> int:
    """Write the copy to a folder that is new or empty, and return how many answers it holds."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise DataFileError(folder, "is not empty; name a new folder")
        shutil.copytree(STATIC, place / "static")
        page = (STATIC / "index.html").read_text(encoding="utf-8")
        page = page.replace('<html lang="en">', '<html lang="en" data-copy="yes">').replace(
            '<a href="docs">HTTP API</a> · ', ""
        )
        (place / "index.html").write_text(page, encoding="utf-8")
        (place / "data").mkdir()
        (place / "data" / "start.json").write_bytes(start_bytes())
        return sum(_board(board, place / "data" / board.name) for board in found().values())
    except OSError as error:
        raise DataFileError(folder, f"cannot be written: {error.strerror or error}") from None


def _board(board: Board, place: Path) -> int:
    place.mkdir()
    kept: list[dict[str, Any]] = []
    for body in grid(board):
        try:
            answer = board.answer(board.asked(**body)).to_dict()
        except (InputError, ValidationError):
            continue  # a corner of the grid that has no answer; the page takes the nearest that has one
        (place / f"{len(kept)}.json").write_text(json.dumps(answer, allow_nan=False, separators=(",", ":")), encoding="utf-8")
        kept.append(body)
    (place / "index.json").write_text(json.dumps(kept, separators=(",", ":")), encoding="utf-8")
    return len(kept)


def grid(board: Board) -> Iterator[dict[str, Any]]:
    """Yield the inputs of the answers that a copy holds: the defaults, the presets, and values along each input.

    >>> from steptime.web.board import found
    >>> bodies = list(grid(found()["step"]))
    >>> bodies[0]["batch"], len(bodies) > 60, len({one["context"] for one in bodies}) >= 5
    (256, True, True)
    """
    inputs = described(board.asked)
    base = {name: field.default for name, field in Shared.model_fields.items() if name in board.bar}
    base |= {one["name"]: one["default"] for one in inputs}
    seen: set[str] = set()

    def fresh(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if (key := json.dumps(body, sort_keys=True)) not in seen:
            seen.add(key)
            yield body

    yield from fresh(base)
    for preset in (board.spoken, board.today):
        yield from fresh(base | {name: value for name, value in preset.items() if name in base})
    sliders = [one for one in inputs if one["kind"] == "slider"]
    shown = [one for one in sliders if not one["more"]]
    counts = (SLOW, 1) if board.slow else (FIRST, SECOND)
    for one in shown[:1]:
        other = shown[1] if len(shown) > 1 and counts[1] > 1 else None
        for value in along(one, counts[0]):
            yield from fresh(base | {one["name"]: value})
            for second in along(other, counts[1]) if other else ():
                yield from fresh(base | {one["name"]: value, other["name"]: second})  # type: ignore[index]
    for one in inputs:
        if one["kind"] == "choice":
            for word in one["options"]:
                yield from fresh(base | {one["name"]: word})
        elif one["kind"] == "slider" and one not in shown[:1]:
            for value in along(one, OTHERS):
                yield from fresh(base | {one["name"]: value})


def along(one: dict[str, Any], count: int) -> list[float]:
    """Return values along a slider, even in the way that it runs.

    >>> along({"low": 1, "high": 1000, "log": True, "whole": True, "default": 10}, 4)
    [1, 10, 100, 1000]
    """
    low, high = float(one["low"]), float(one["high"])
    places = [n / (count - 1) for n in range(count)]
    if one["log"]:
        low = max(low, 1e-9)
        found = [low * (high / low) ** place for place in places]
    else:
        found = [low + (high - low) * place for place in places]
    held = [min(max(float(f"{value:.3g}"), one["low"]), one["high"]) for value in found]
    return [round(value) for value in held] if one["whole"] else held
