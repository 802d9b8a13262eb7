"""Says in words what of a file does not fit its schema, and where: the library that checks it hides the keys of some tables.

Finds the line of a TOML file where the key of a place stands, so that errors can name it.
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

TIER_NAME: Final = "^[A-Za-z][A-Za-z0-9_-]{0,39}(?!a|[^a])"  # and no character more, such as the line end that $ lets be
LIKE: Final = {TIER_NAME: "a letter and up to 39 letters, digits, - and _", ENTRY_NAME: NAME_RULE}
EMPTY: Final = "must not be empty"
PLACE: Final = re.compile(r"(?P<key>key)?(?:` in `)?\$?(?P<place>[^`]*)`")
KINDS: Final = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "array": "a list",
    "object": "a table",
}  # fmt: skip


def describe_problem(message: str, data: Any, schema: type[Struct]) -> tuple[str, str]:
    """Return what does not fit a schema, in words, and its place; as it is told where keys look like what tells of them."""
    try:
        return _problem(message, data, schema)
    except (KeyError, IndexError, ValueError, TypeError, StopIteration):
        return short_repr(message).strip("'\""), ""


def _problem(message: str, data: Any, schema: type[Struct]) -> tuple[str, str]:
    # the last one: what stands before may be text of the file
    reason, separator, place_text = message.rpartition(" - at `")
    place_match = PLACE.fullmatch(place_text) if separator else None
    reason = reason if place_match else message
    parts = _parts(place_match["place"] if place_match else "", message, data, schema)
    if misspelt := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        field_names = [f.encode_name for f in msgspec.structs.fields(_type_at(schema, parts))]
        near = did_you_mean(misspelt[1], field_names, max_names=1)
        parts = [*parts, misspelt[1]]
        return f"{_place(parts)}: no such key" + (f"; did you mean {near[0]}?" if near else ""), ".".join(parts)
    if lacking := re.fullmatch(r"Object missing required field `(.*)`", reason):
        parts = [*parts, lacking[1]]
        return f"{_place(parts)}: is missing", ".".join(parts)
    if place_match and place_match["key"]:
        key = re.sub(r"^Invalid enum value '(.*)'$", r"\1", reason)
        keys = get_args(get_args(_type_at(schema, parts))[0])
        parts = [*parts, key]
        return f"{_place(parts)}: no such key; known are {', '.join(keys)}", ".".join(parts)
    words = _in_words(reason, schema, parts)
    value_words = "" if words in (EMPTY, reason) else _value_in_words(_value_at(data, parts))
    return f"{_place(parts)}: {words}{value_words}", ".".join(parts)


def _in_words(reason: str, schema: type[Struct], parts: Sequence[str]) -> str:
    """Return what is wanted of a value, by what is told of it."""
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
        return f", not {'null' if value is None else words}"
    return "" if value == "" else f", not {short_repr(value)}"


def _place(parts: Sequence[str]) -> str:
    """Write a place as TOML would: keys that are not plain in quotes."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", part) else short_repr(part) for part in parts)


def _parts(place: str, message: str, data: Any, schema: type[Struct]) -> list[str]:
    """Return the keys of a place such as ".memory[0].bandwidth"; "[...]" is the key alone with which the same is told."""
    parts: list[str] = []
    for part in re.findall(r"[^.\[\]]+|\[\.\.\.\]", place):
        parts.append(
            part
            if part != "[...]"
            else next(key for key in _value_at(data, parts) if _is_sole_cause(key, parts, message, data, schema))
        )
    return parts


def _is_sole_cause(key: str, parts: Sequence[str], message: str, data: Any, schema: type[Struct]) -> bool:
    """Whether the same is told of the data where a table has this key alone."""
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
    """Return what stands at a place of the data."""
    for part in parts:
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


def _type_at(schema: Any, parts: Sequence[str]) -> Any:
    """Return the type that a schema has at a place: of tables and texts, that of tables."""
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


# both run on every line of a file from anywhere: they read stripped text, and no two repeats share a character
_TABLE: Final = re.compile(r"(\[{1,2})([^\[\]]+)\]{1,2}\s*(?:#.*)?")
_KEY: Final = re.compile(r"[\w.\"' -]+")
Key = tuple[str, ...]


def line_number(path: Path, place: str) -> int | None:
    """Return the number, from 1, of the line where `place` stands, or the nearest table above it; None where nothing does.

    place: keys joined by dots; an entry of a list of tables goes by its number from 0, its name or its kind. A chip's own file
    lacks the "chip" that its places begin with.
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
    """Yield each line that has a key or opens a table, with every way to write its place."""
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
    """Yield what an entry of a list of tables goes by in places: its name, and its kind with low lines."""
    missing_keys = {"name", "kind"}
    for index in range(start, len(lines)):
        if not missing_keys or _TABLE.fullmatch(lines[index].strip()):
            return
        key, value = _key_and_value(lines[index])
        if key in missing_keys:
            # only the first counts: a text block may repeat such a line without end
            missing_keys.remove(key)
            yield value.partition("#")[0].strip().strip("\"'").replace("-", "_" if key == "kind" else "-")


def _key_and_value(line: str) -> tuple[str, str]:
    """Return the key of a line and its value, two empty texts where the line has no key."""
    before, equals, value = line.partition("=")
    key = before.strip()
    return (key, value.strip()) if equals and _KEY.fullmatch(key) else ("", "")


def _key_parts(key: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in key.split("."))
