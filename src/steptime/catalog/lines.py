"""Finds the line of a TOML file where the key of a place stands, so that errors can name it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# both run on every line of a file from anywhere: they read stripped text, and no two repeats share a character
_TABLE: Final = re.compile(r"(\[{1,2})([^\[\]]+)\]{1,2}\s*(?:#.*)?")
_KEY: Final = re.compile(r"[\w.\"' -]+")
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
        if opened := _TABLE.fullmatch(line.strip()):
            table = _parts(opened[2])
            names = [table]
            if len(opened[1]) == 2:
                n = counts[table] = counts.get(table, -1) + 1
                names = [(*table, str(n)), *((*table[:-1], name) for name in _names(lines, number))]
            yield from ((number, name) for name in names)
        elif key := _key_and_value(line)[0]:
            yield from ((number, (*name, *_parts(key))) for name in names)


def _names(lines: list[str], start: int) -> Iterator[str]:
    """Yield what an entry of a list of tables goes by in places: its name, and its kind with low lines."""
    sought = {"name", "kind"}
    for at in range(start, len(lines)):
        if not sought or _TABLE.fullmatch(lines[at].strip()):
            return
        key, value = _key_and_value(lines[at])
        if key in sought:
            # only the first counts: a text block may repeat such a line without end
            sought.remove(key)
            yield value.partition("#")[0].strip().strip("\"'").replace("-", "_" if key == "kind" else "-")


def _key_and_value(line: str) -> tuple[str, str]:
    """Return the key of a line and its value, two empty texts where the line has no key."""
    before, equals, value = line.partition("=")
    key = before.strip()
    return (key, value.strip()) if equals and _KEY.fullmatch(key) else ("", "")


def _parts(key: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in key.split("."))
