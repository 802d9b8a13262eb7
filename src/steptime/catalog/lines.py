"""Finds the line of a TOML file where the key of a place stands, so that errors can name it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TABLE: Final = re.compile(r"\s*(\[{1,2})\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY: Final = re.compile(r"\s*([\w.\"' -]+?)\s*=\s*(.*)$")
Key = tuple[str, ...]


def line_of(path: Path, place: str) -> int | None:
    """Return the number, from 1, of the line where `place` stands, or the nearest table above it; None where nothing does.

    place: keys joined by dots; an entry of a list of tables goes by its number from 0, its name or its kind. A chip's own file
    lacks the "chip" that its places begin with.
    """
    found = list(_keys(path.read_text(encoding="utf-8-sig", errors="replace")))
    keys = tuple(place.split("."))
    while keys:
        for number, key in found:
            if key in (keys, keys[1:] if keys[0] == "chip" else keys):
                return number
        keys = keys[:-1]
    return None


def _keys(text: str) -> Iterator[tuple[int, Key]]:
    """Yield each line that has a key or opens a table, with every way to write its place."""
    lines = text.splitlines()
    table: Key = ()
    names: list[Key] = [()]
    counts: dict[Key, int] = {}
    for number, line in enumerate(lines, 1):
        if opened := _TABLE.match(line):
            table = _parts(opened[2])
            names = [table]
            if len(opened[1]) == 2:
                n = counts[table] = counts.get(table, -1) + 1
                names = [(*table, str(n)), *((*table[:-1], name) for name in _names(lines[number:]))]
            yield from ((number, name) for name in names)
        elif pair := _KEY.match(line):
            yield from ((number, (*name, *_parts(pair[1]))) for name in names)


def _names(lines: list[str]) -> Iterator[str]:
    """Yield what an entry of a list of tables goes by in places: its name, and its kind with low lines."""
    for line in lines:
        if _TABLE.match(line):
            return
        if (pair := _KEY.match(line)) and pair[1] in ("name", "kind"):
            yield pair[2].partition("#")[0].strip().strip("\"'").replace("-", "_" if pair[1] == "kind" else "-")


def _parts(key: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in key.split("."))
