"""Data files: found by name and read, with errors that name the file and the line; and the one rule for such names."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeGuard

from steptime.errors import DataFileError, UnknownName, did_you_mean, os_problem, short_repr

Key = tuple[str, ...]
# Characters.
LONGEST_NAME: Final = 200
ENTRY_NAME: Final = f"(?!-)(?!(.*/)?[.][.](/|$))[A-Za-z0-9._/+:@-]{{1,{LONGEST_NAME}}}"
NAME_RULE: Final = f"1 to {LONGEST_NAME} letters, digits and . _ / + : @ -, no - at the start and no part '..'"


def is_entry_name(name: object) -> TypeGuard[str]:
    """Return whether a value from a file is a valid name of an entry.

    Scripts, manifests and tables repeat these names. So a name has no blank, quote, line end or other special character.

    Args:
        name: Value from the file.

    Returns:
        True for a text that follows `NAME_RULE`.

    >>> is_entry_name("deepseek-ai/DeepSeek-V3"), is_entry_name("evil/$(touch x)"), is_entry_name("../x")
    (True, False, False)
    """
    return isinstance(name, str) and re.fullmatch(ENTRY_NAME, name) is not None


def check_entry_name(name: object, path: object) -> str:
    """Return the name of an entry if it follows the rule.

    Args:
        name: Value of the key `name`.
        path: The file, for the message.

    Returns:
        The name.

    Raises:
        DataFileError: The value is not a text, or has other characters.
    """
    if not is_entry_name(name):
        raise DataFileError(path, f"name: must be {NAME_RULE}, got {short_repr(name)}")
    return name


PACKAGED = Path(__file__).parents[1] / "data"
# Folders of a catalogue.
FOLDERS = (
    "chips", "systems", "rents", "models", "engines", "stacks", "acceptance", "anchors", "laws", "trained",
)  # fmt: skip
# Label of a kind in messages, and the command that lists it, where they differ from the name of the folder.
LABEL_AND_COMMAND: Final = {"stacks": ("training stack", "engines")}
# Endings of data files that are not TOML.
# A part of a name that can be typed again as it is.
NAME_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,40}")
SUFFIXES = {"models": ".json", "anchors": ".csv"}
# Largest file [B]; real files have a thousandth to a tenth of it.
LARGEST: Final = {".json": 16_000_000, ".toml": 1_000_000}
# Most parts of a TOML key; the time of tomllib grows with their square.
DEEPEST_KEY: Final = 32
UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
# A key with `DEEPEST_KEY` dots or more; possessive, so the search takes linear time.
_KEY = re.compile(r"(?:(?<![^\s.=\[\]{},#])[^\s.=\[\]{},#]++[ \t]*+\.[ \t]*+)" + f"{{{DEEPEST_KEY}}}")

# Kinds of files, each with keys that only this kind has.
KINDS: Final = {
    "a model's config.json": ("model_type", "architectures", "hidden_size", "num_hidden_layers", "text_config"),
    "a model of the catalogue": ("config",),
    "a system": ("domains",),
    "a chip": ("peak", "memory"),
    "a list of rents": ("quotes",),
    "a list of acceptances": ("curves", "lengths", "heads"),
    "a scaling law": ("form", "counts"),
    "a list of training tokens": ("trained",),
    "an engine": ("constants", "fit"),
}


def looks_like(data: Mapping[str, Any]) -> str:
    """Return the kind of data file that has these keys, or "" if no key decides.

    Args:
        data: Top-level keys and values of the file.

    Returns:
        The kind in words, as in `KINDS`; "" if unknown.

    >>> looks_like({"model_type": "llama", "hidden_size": 4096}), looks_like({"name": "x"})
    ("a model's config.json", '')
    """
    return next((kind for kind, keys in KINDS.items() if any(key in data for key in keys)), "")


def folders(kind: str, catalog: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the existing folders of one kind of entry, in search order.

    Args:
        kind: Name of the folders: chips, systems, rents, models, engines, acceptance, laws, ...
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        Paths of the folders.

    Raises:
        DataFileError: `catalog` is not a folder, or has only folders that a catalogue does not have.
    """
    if catalog is not None and not is_dir(Path(catalog)):
        raise DataFileError(
            short_repr(catalog).strip("'"),
            "is not a folder; --catalog takes a folder that contains chips/, systems/, rents/, models/ or engines/",
        )
    if catalog is not None and _is_other(Path(catalog)):
        raise DataFileError(
            short_repr(catalog).strip("'"), f"is not a catalogue: it contains none of {', '.join(f'{k}/' for k in FOLDERS)}"
        )
    roots = ([Path(catalog)] if catalog is not None else []) + [*_users(), PACKAGED]
    return [root / kind for root in roots if is_dir(root / kind)]


def _is_other(folder: Path) -> bool:
    """Return whether a folder has subfolders, but none of a catalogue."""
    try:
        return any(map(is_dir, folder.iterdir())) and not any(is_dir(folder / name) for name in FOLDERS)
    except OSError:
        return False


def own_folder(kind: str, catalog: str | os.PathLike[str] | None = None) -> Path:
    """Return the user's folder of one kind of entry; it may not exist yet.

    Args:
        kind: Name of the folder, as for `folders`.
        catalog: Folder of the catalogue; None: `STEPTIME_CATALOG`, or else `~/.steptime`.

    Returns:
        Path of the folder.

    Raises:
        DataFileError: There is neither `catalog` nor a home folder.
    """
    # Raises for a path that is not a catalogue.
    folders(kind, catalog)
    roots = [Path(catalog)] if catalog is not None else _users()
    if not roots:
        raise DataFileError("~/.steptime", "there is no home folder; set the variable STEPTIME_CATALOG or give --catalog")
    return roots[0] / kind


def _users() -> list[Path]:
    """Return a list with the user's folder: `STEPTIME_CATALOG`, or `~/.steptime`.

    The list is empty if there is no home folder.
    """
    if folder := os.environ.get("STEPTIME_CATALOG"):
        if not is_dir(Path(folder)):
            raise DataFileError(folder, "is not a folder; the variable STEPTIME_CATALOG must be the path of a folder")
        return [Path(folder)]
    try:
        return [Path.home() / ".steptime"]
    except RuntimeError:
        # A container may run as a user without a home.
        return []


def is_file(path: Path) -> bool:
    """Return whether a path is a file that can be looked at.

    Args:
        path: The path.

    Returns:
        True for a file; False for a missing file, an invalid path, or one that may not be looked at.
    """
    try:
        return path.is_file()
    except (OSError, ValueError):
        # The name is too long or has a zero byte, or the folder is not readable.
        return False


def require_regular_file(path: str | os.PathLike[str]) -> None:
    """Refuse a device, pipe or socket, which may never end.

    Args:
        path: File that a user names; a missing one is left to the function that opens it.

    Raises:
        DataFileError: The path is neither a regular file nor a folder.

    >>> require_regular_file(os.devnull)
    Traceback (most recent call last):
        ...
    steptime.errors.DataFileError: /dev/null: is not a regular file (a device, pipe or socket); save its content to a file
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataFileError(path, "is not a regular file (a device, pipe or socket); save its content to a file")


def is_dir(path: Path) -> bool:
    """Return whether a path is a folder that can be looked at.

    Args:
        path: The path.

    Returns:
        True for a folder; False for a missing folder, an invalid path, or one that may not be looked at.
    """
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def files(kind: str, catalog: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Return every file of one kind by name; earlier folders hide later ones.

    Args:
        kind: Name of the folders, as for `folders`.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        Paths by name, sorted by name without regard to case.
    """
    return dict(_paths_by_name(*_listing(kind, catalog)))


# Folders, the suffix of their data files, and the names in each folder.
Listing = tuple[tuple[Path, ...], str, tuple[tuple[str, ...], ...]]


def _listing(kind: str, catalog: str | os.PathLike[str] | None) -> Listing:
    names_by_folder = {}
    for folder in folders(kind, catalog):
        with suppress(PermissionError):
            names_by_folder[folder] = tuple(os.listdir(folder))
    return tuple(names_by_folder), SUFFIXES.get(kind, ".toml"), tuple(names_by_folder.values())


# Paths of hundreds of files take longer to make and to sort than to list.
@lru_cache(maxsize=64)
def _paths_by_name(folders: tuple[Path, ...], suffix: str, file_names: tuple[tuple[str, ...], ...]) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for folder, names in zip(folders, file_names, strict=True):
        for name in sorted(name for name in names if name.endswith(suffix)):
            paths.setdefault(name.removesuffix(suffix).replace("--", "/"), folder / name)
    return dict(sorted(paths.items(), key=lambda item: item[0].casefold()))


@lru_cache(maxsize=64)
def _paths_by_folded_name(folders: tuple[Path, ...], suffix: str, names: tuple[tuple[str, ...], ...]) -> dict[str, Path]:
    return {folded(name): path for name, path in _paths_by_name(folders, suffix, names).items()}


def find(kind: str, name: str, catalog: str | os.PathLike[str] | None = None) -> Path:
    """Return the file of a path, a name of the catalogue, or an alias.

    Capitals do not count, and "_" and " " count as "-". An owner in front of the name may be left out, as long as one entry
    has the name.

    Args:
        kind: Name of the folders, as for `folders`.
        name: Path, name or alias.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        Path of the file.

    Raises:
        DataFileError: `name` ends like a file of this kind, and there is no such file.
        UnknownName: No entry has this name or alias; the error lists the nearest names.
    """
    suffix = SUFFIXES.get(kind, ".toml")
    path = Path(name)
    if is_file(path):
        return path
    if path.suffix == suffix:
        raise DataFileError(short_repr(name).strip("'"), "no such file")
    listing = _listing(kind, catalog)
    paths, by_folded = _paths_by_name(*listing), _paths_by_folded_name(*listing)
    folded_name = folded(name)
    if folded_name in by_folded:
        return by_folded[folded_name]
    # Aliases are read from the files. Most resemble the name of their file, so the files with similar names come first.
    for path in sorted(paths.values(), key=lambda path: folded_name not in folded(path.stem)):
        if any(is_name_of(alias, name) for alias in list_aliases(path)):
            return path
    # The name after the owner is enough where one entry has it.
    owned = [path for key, path in paths.items() if folded(key).rpartition("/")[2] == folded_name]
    if len(owned) == 1:
        return owned[0]
    aliases = {alias: key if kind == "systems" else alias for key, path in paths.items() for alias in list_aliases(path)}
    singular, command = LABEL_AND_COMMAND.get(kind, (kind.removesuffix("s"), kind))
    similar = sum(folded_name in key for key in by_folded) if kind == "models" and NAME_PART.fullmatch(name) else 0
    listed = f"`steptime {command}` lists them"
    if similar > 1:
        listed = f"`steptime {command} --like {name}` lists {similar} names with it"
    hint = f"{_other_kind(kind, name, catalog)}{listed}; a path to a file works too."
    if os.path.isdir(name):
        hint = f"It is a folder: a {singular} is a name, which `steptime {command}` lists, or a {suffix} file."
    if kind == "chips":
        # No command lists chips; only the file of a system names one.
        hint = "A chip is a name of the catalogue, a file in the folder of the system's file, or a table [chip]."

    raise UnknownName(singular, name, paths, hint, aliases=aliases)


def _other_kind(kind: str, name: str, catalog: str | os.PathLike[str] | None) -> str:
    """Name the models with a name that is no system, and the systems with a name that is no model."""
    if kind == "models":
        with suppress(UnknownName, DataFileError):
            return f"It is the system {find('systems', name, catalog).stem}: a model comes before it. "
    folder = {"models": "systems", "systems": "models"}.get(kind, "")
    names = did_you_mean(name, files(folder, catalog), cutoff=0.65) if folder else ()
    return f"A {folder.removesuffix('s')} has a similar name: {', '.join(names)}. " if names else ""


def is_name_of(label: str, name: str) -> bool:
    """Whether a user's name is a label, with or without its owner.

    Args:
        label: Name or alias of an entry.
        name: Name as a user gives it.

    Returns:
        True or false.

    >>> [is_name_of("Qwen/QwQ-32B", name) for name in ("qwen/qwq-32b", "QwQ_32B", "Qwen")]
    [True, True, False]
    """
    return folded(name) in (folded(label), folded(label).rpartition("/")[2])


def list_aliases(path: Path) -> list[str]:
    """Return the aliases of an entry.

    Args:
        path: File of the entry.

    Returns:
        Aliases, as the file spells them.
    """
    aliases = read_file(path).get("aliases", ())
    return [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []


def entry_labels(kind: str, catalog: str | os.PathLike[str] | None = None) -> dict[str, tuple[str, ...]]:
    """Return the name and the aliases of every entry of one kind.

    Args:
        kind: Name of the folders, as for `folders`.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        Name and aliases, by name.
    """
    return {name: (name, *list_aliases(path)) for name, path in files(kind, catalog).items()}


# A look-up compares a name with those of hundreds of files.
@lru_cache(maxsize=4096)
def folded(name: str) -> str:
    """Return a name in the form in which names are compared.

    Args:
        name: Name as the user wrote it.

    Returns:
        The name in lower case, with "-" in place of "_" and " ".
    """
    return name.strip().casefold().replace("_", "-").replace(" ", "-")


@lru_cache(maxsize=512)
def _parse_file(path: Path, _modified: float) -> dict[str, Any]:
    require_regular_file(path)
    text = _text(path)
    is_json = path.suffix == ".json" or text[:1000].lstrip().startswith("{")
    # Refuse deep keys before tomllib spends a long time on them.
    if not is_json and (deep := _KEY.search(text)):
        raise DataFileError(path, f"has a key of more than {DEEPEST_KEY} parts", text.count("\n", 0, deep.start()) + 1)
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys) if is_json else tomllib.loads(text)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise DataFileError(path, "is empty") from None
        problem = f"{error.msg.removesuffix(' at')} (column {error.colno})"
        # A file that was cut off ends in the middle of a value.
        cut = "; the file may be cut off" if error.pos >= len(text.rstrip()) - 1 or "Unterminated" in error.msg else ""
        raise DataFileError(path, f"is not valid JSON: {problem}{cut}", error.lineno) from None
    # The JSON and TOML parsers recurse once per level of nesting.
    except RecursionError:
        raise DataFileError(path, "is nested too deep") from None
    except tomllib.TOMLDecodeError as error:
        line = str(error).rpartition("at line ")[2].partition(",")[0]
        raise DataFileError(
            path, f"is not valid TOML: {error!s:.200}", int(line) if line.isdigit() else text.count("\n") + 1
        ) from None
    except _Twice as key:
        raise DataFileError(
            path, f"has the key {short_repr(str(key))} twice in one object; remove one", _line(text, str(key), nth=2)
        ) from None
    except ValueError:
        raise DataFileError(path, "has a number with too many digits to read") from None

    if not isinstance(data, dict):
        raise DataFileError(path, f"must be {'an object' if is_json else 'a table of keys'}, got {short_repr(data)}", 1)

    return data


def _text(path: Path) -> str:
    """Return the text of a data file without a byte order mark."""
    size, largest = path.stat().st_size, LARGEST.get(path.suffix, LARGEST[".toml"])
    if size > largest:
        problem = f"has {size / 1e6:,.1f} MB; files of this kind have at most {largest / 1e6:g} MB: is it the right file?"
        raise DataFileError(path, problem)

    raw = path.read_bytes()

    # Windows PowerShell writes UTF-16 by default.
    if raw[:2] in UTF16:
        raise DataFileError(path, "is UTF-16 text; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not UTF-8 text ({error.reason} at byte {error.start})") from None

    return text.replace("\r\n", "\n")


class _Twice(Exception):
    """A key that occurs twice in one JSON object."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise _Twice(key)
        entries[key] = value
    return entries


def _line(text: str, key: str, nth: int) -> int | None:
    """Return the line of the nth occurrence of a JSON key; None if it is escaped."""
    places = [key_match.start() for key_match in re.finditer(re.escape(json.dumps(key)), text)]
    return text.count("\n", 0, places[nth - 1]) + 1 if len(places) == nth else None


def read_file(path: Path) -> dict[str, Any]:
    """Read a TOML or JSON file into a dict; errors name the file and the line.

    Args:
        path: Path of the file.

    Returns:
        The keys and values of the file; do not change them, they are cached.

    Raises:
        DataFileError: The file is missing, too large, not UTF-8, or not valid TOML or JSON.
    """
    try:
        return _parse_file(path, path.stat().st_mtime)
    except OSError as error:
        raise DataFileError(path, os_problem(error)) from None


def line_number(path: Path, place: str) -> int | None:
    """Return the line of a place in a TOML file.

    Args:
        path: Path of the file.
        place: Keys joined by dots. An entry of a list of tables has its number from 0, its name or its kind as key. A
            file of a chip has no table "chip", so the "chip" at the start of a place may be missing there.

    Returns:
        Line number from 1, of the place or of the nearest table above it; None if the file has neither.
    """
    numbers, entries = _lines(path.read_text(encoding="utf-8-sig", errors="replace"))
    keys = tuple(place.split("."))
    while keys:
        lines = []
        for names in (keys, keys[1:]) if keys[0] == "chip" else (keys,):
            alias, entry = next((pair for pair in entries.items() if names[: len(pair[0])] == pair[0]), ((), ()))
            lines += [numbers[key] for key in (names, (*entry, *names[len(alias) :])) if key in numbers]
        if lines:
            return min(lines)
        keys = keys[:-1]
    return None


def _lines(text: str) -> tuple[dict[Key, int], dict[Key, Key]]:
    """Return the first line of each key and table, and the entries of lists of tables by name and kind."""
    numbers: dict[Key, int] = {}
    entries: dict[Key, Key] = {}
    counts: dict[Key, int] = {}
    table: Key = ()
    entry_keys: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        # The patterns run on untrusted text. No two repeats share a character, so the time stays linear.
        if header := re.fullmatch(r"(\[{1,2})([^\[\]]+)\]{1,2}\s*(?:#.*)?", line.strip()):
            table, entry_keys = _key_parts(header[2]), set()
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table, entry_keys = (*table, str(counts[table])), {"name", "kind"}
            numbers.setdefault(table, number)
            continue
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[\w.\"' -]+", key.strip()):
            numbers.setdefault((*table, *_key_parts(key)), number)
            if key.strip() in entry_keys:
                # Only the first one counts, because a text block may repeat such a line many times.
                entry_keys.remove(key.strip())
                word = value.partition("#")[0].strip().strip("\"'").replace("-", "_" if key.strip() == "kind" else "-")
                entries.setdefault((*table[:-2], word), table)
    return numbers, entries


def _key_parts(key: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in key.split("."))
