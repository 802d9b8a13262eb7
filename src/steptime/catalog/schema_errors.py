"""Describes what in a file does not fit its schema, and at which line.

msgspec leaves the keys of some tables out of its messages, so the keys are found again here. The line in a TOML file is
found by the key of the place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from steptime.catalog.entry_names import ENTRY_NAME, NAME_RULE
from steptime.errors import did_you_mean, short_repr

# The lookahead replaces "$", which allows a line end.
TIER_NAME: Final = "^[A-Za-z][A-Za-z0-9_-]{0,39}(?!a|[^a])"
LIKE: Final = {TIER_NAME: "a letter and up to 39 letters, digits, - and _", ENTRY_NAME: NAME_RULE}
EMPTY: Final = "must not be empty"
PLACE: Final = re.compile(r"(?P<key>key)?(?:` in `)?\$?(?P<place>[^`]*)`")
KINDS: Final = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "array": "a list",
    "object": "a table",
}  # fmt: skip


def describe_problem(message: str, data: Any, schema: type[Struct]) -> tuple[str, str]:
    """Describe what does not fit a schema, and name the place.

    Args:
        message: Message of msgspec.
        data: Content of the file.
        schema: Class of the schema.

    Returns:
        The problem in words, and the place as keys joined by dots. If the message cannot be parsed, it is returned as it
        is with an empty place.
    """
    try:
        return _problem(message, data, schema)
    except (KeyError, IndexError, ValueError, TypeError, StopIteration):
        return short_repr(message).strip("'\""), ""


def _problem(message: str, data: Any, schema: type[Struct]) -> tuple[str, str]:
    # Take the last separator, because text of the file may come before it.
    reason, separator, place_text = message.rpartition(" - at `")
    place_match = PLACE.fullmatch(place_text) if separator else None
    reason = reason if place_match else message
    parts = _parts(place_match["place"] if place_match else "", message, data, schema)

    # A misspelt key: suggest the nearest key of this table.
    if misspelt := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        field_names = [f.encode_name for f in msgspec.structs.fields(_type_at(schema, parts))]
        near = did_you_mean(misspelt[1], field_names, max_names=1)
        parts = [*parts, misspelt[1]]
        return f"{_place(parts)}: no such key" + (f"; did you mean {near[0]}?" if near else ""), ".".join(parts)

    # A required key is missing.
    if lacking := re.fullmatch(r"Object missing required field `(.*)`", reason):
        parts = [*parts, lacking[1]]
        return f"{_place(parts)}: is missing", ".".join(parts)

    # The keys of a table such as [peak] are limited to a list.
    if place_match and place_match["key"]:
        key = re.sub(r"^Invalid enum value '(.*)'$", r"\1", reason)
        keys = get_args(get_args(_type_at(schema, parts))[0])
        parts = [*parts, key]
        return f"{_place(parts)}: no such key; known: {', '.join(keys)}", ".".join(parts)

    # Any other reason is a wrong value.
    words = _in_words(reason, schema, parts)
    value_words = "" if words in (EMPTY, reason) else _value_in_words(_value_at(data, parts))

    return f"{_place(parts)}: {words}{value_words}", ".".join(parts)


def _in_words(reason: str, schema: type[Struct], parts: Sequence[str]) -> str:
    """Return the requirement on a value, from the reason in the message of msgspec."""
    if reason.startswith("Invalid enum value"):
        allowed = [option for option_type in _options(_type_at(schema, parts)) for option in get_args(option_type)]
        return (
            f"must be {_join_alternatives([option or 'left out' for option in sorted(allowed, key=lambda option: not option)])}"
        )
    if bound := re.fullmatch(r"Expected `(int|float)` (>=|<=) (.*)", reason):
        return f"must be at {'least' if bound[2] == '>=' else 'most'} {int(bound[3]):,}"
    if length := re.fullmatch(r"Expected `(str|array)` of length (>=|<=) (.*)", reason):
        if (length[2], length[3]) == (">=", "1"):
            return EMPTY
        noun = "characters" if length[1] == "str" else "entries"
        return f"must have at {'least' if length[2] == '>=' else 'most'} {length[3]} {noun}"
    if like := re.fullmatch(r"Expected `str` matching regex '(.*)'", reason):
        return f"must be {LIKE.get(like[1], like[1])}"
    if kinds := re.match(r"Expected `(.*?)`", reason):
        kind_names = [kind for kind in kinds[1].split(" | ") if kind != "null" and not (kind == "int" and "float" in kinds[1])]
        return f"must be {_join_alternatives([KINDS.get(kind, kind) for kind in kind_names])}"

    return reason


def _join_alternatives(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _value_in_words(value: Any) -> str:
    if value is None or isinstance(value, bool | dict | list):
        words = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else str(value).lower()
        return f", got {'null' if value is None else words}"
    return "" if value == "" else f", got {short_repr(value)}"


def _place(parts: Sequence[str]) -> str:
    """Return a place as TOML writes it, with special keys in quotes."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", part) else short_repr(part) for part in parts)


def _parts(place: str, message: str, data: Any, schema: type[Struct]) -> list[str]:
    """Return the keys of a place such as ".memory[0].bandwidth".

    For "[...]", msgspec hides the key; the key is the one that alone causes the same message.
    """
    parts: list[str] = []
    for part in re.findall(r"[^.\[\]]+|\[\.\.\.\]", place):
        parts.append(
            part
            if part != "[...]"
            else next(key for key in _value_at(data, parts) if _is_sole_cause(key, parts, message, data, schema))
        )
    return parts


def _is_sole_cause(key: str, parts: Sequence[str], message: str, data: Any, schema: type[Struct]) -> bool:
    """Return whether the message is the same if the table has only this key."""
    try:
        msgspec.convert(_with(data, parts, {key: _value_at(data, [*parts, key])}), schema)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _with(data: Any, parts: Sequence[str], value: Any) -> Any:
    """Return the data with another value at a place."""
    if not parts:
        return value
    first, *inner_parts = parts
    if isinstance(data, list):
        return [_with(item, inner_parts, value) if str(index) == first else item for index, item in enumerate(data)]
    return data | {first: _with(data[first], inner_parts, value)}


def _value_at(data: Any, parts: Sequence[str]) -> Any:
    """Return the value at a place of the data."""
    for part in parts:
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


def _type_at(schema: Any, parts: Sequence[str]) -> Any:
    """Return the type at a place of a schema.

    Where a table or a text is allowed, this is the type of the table.
    """
    for part in parts:
        if isinstance(schema, type) and issubclass(schema, Struct):
            names = {f.encode_name: f.name for f in msgspec.structs.fields(schema)}
            schema = get_type_hints(schema)[names[part]]
        else:
            schema = get_args(schema)[-1]
        tables = [
            option_type
            for option_type in _options(schema)
            if get_origin(option_type) or (isinstance(option_type, type) and issubclass(option_type, Struct))
        ]
        schema = tables[0] if tables else schema
    return schema


def _options(annotation: Any) -> tuple[Any, ...]:
    """Return the types that a value may have."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


# Both patterns run on every line of an untrusted file. No two repeats share a character, so the time stays linear.
_TABLE: Final = re.compile(r"(\[{1,2})([^\[\]]+)\]{1,2}\s*(?:#.*)?")
_KEY: Final = re.compile(r"[\w.\"' -]+")
Key = tuple[str, ...]


def line_number(path: Path, place: str) -> int | None:
    """Return the line of a place in a TOML file.

    Args:
        path: Path of the file.
        place: Keys joined by dots. An entry of a list of tables has its number from 0, its name or its kind as key. A
            file of a chip has no table "chip", so the "chip" at the start of a place may be missing there.

    Returns:
        Line number from 1, of the place or of the nearest table above it; None if the file has neither.
    """
    key_lines = list(_keys(path.read_text(encoding="utf-8-sig", errors="replace")))
    keys = tuple(place.split("."))
    while keys:
        for number, key in key_lines:
            if key in (keys, keys[1:] if keys[0] == "chip" else keys):
                return number
        keys = keys[:-1]
    return None


def _keys(text: str) -> Iterator[tuple[int, Key]]:
    """Yield each line with a key or a table header, once for every form of its place."""
    lines = text.splitlines()
    table: Key = ()
    names: list[Key] = [()]
    counts: dict[Key, int] = {}
    for number, line in enumerate(lines, 1):
        if opened := _TABLE.fullmatch(line.strip()):
            table = _key_parts(opened[2])
            names = [table]
            if len(opened[1]) == 2:
                n = counts[table] = counts.get(table, -1) + 1
                names = [(*table, str(n)), *((*table[:-1], name) for name in _names(lines, number))]
            yield from ((number, name) for name in names)
        elif key := _key_and_value(line)[0]:
            yield from ((number, (*name, *_key_parts(key))) for name in names)


def _names(lines: list[str], start: int) -> Iterator[str]:
    """Yield the keys of an entry in a list of tables: name, and kind with underscores."""
    missing_keys = {"name", "kind"}
    for index in range(start, len(lines)):
        if not missing_keys or _TABLE.fullmatch(lines[index].strip()):
            return
        key, value = _key_and_value(lines[index])
        if key in missing_keys:
            # Only the first one counts, because a text block may repeat such a line many times.
            missing_keys.remove(key)
            yield value.partition("#")[0].strip().strip("\"'").replace("-", "_" if key == "kind" else "-")


def _key_and_value(line: str) -> tuple[str, str]:
    """Return the key and the value of a line, two empty texts if it has no key."""
    before, equals, value = line.partition("=")
    key = before.strip()
    return (key, value.strip()) if equals and _KEY.fullmatch(key) else ("", "")


def _key_parts(key: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in key.split("."))
