"""Finds data files by name and reads them; errors name the file and the line."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from steptime.errors import DataFileError, UnknownName, short_repr

PACKAGED = Path(__file__).parents[1] / "data"
FOLDERS = (  # of a catalogue
    "chips", "systems", "rents", "models", "engines", "stacks", "acceptance", "anchors", "laws", "trained",
)  # fmt: skip
LABEL_AND_COMMAND: Final = {
    "stacks": ("training stack", "engines")
}  # what messages call a kind, and the command that lists it, if another
SUFFIXES = {"models": ".json", "anchors": ".csv"}
LARGEST: Final = {".json": 16_000_000, ".toml": 1_000_000}  # bytes; real files have a thousandth to a tenth of it
DEEPEST_KEY: Final = 32  # parts of a TOML key; the reader's time grows with their square
UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
_KEY = re.compile(r"(?:(?<![^\s.=\[\]{},#])[^\s.=\[\]{},#]++[ \t]*+\.[ \t]*+)" + f"{{{DEEPEST_KEY}}}")

KINDS: Final = {  # what a file is, by keys that only its kind has
    "a model's config.json": ("model_type", "architectures", "hidden_size", "num_hidden_layers", "text_config"),
    "a model of the catalogue": ("config",),
    "a system": ("domains",),
    "a chip": ("peak", "memory"),
    "a list of rents": ("quotes",),
    "a list of acceptances": ("curves",),
    "a scaling law": ("form", "counts"),
    "a list of training tokens": ("trained",),
    "an engine": ("constants", "fit"),
}


def looks_like(data: Mapping[str, Any]) -> str:
    """Return what kind of data file some keys make, or "" where no key tells.

    >>> looks_like({"model_type": "llama", "hidden_size": 4096}), looks_like({"name": "x"})
    ("a model's config.json", '')
    """
    return next((kind for kind, keys in KINDS.items() if any(key in data for key in keys)), "")


def folders(kind: str, catalog: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the folders that hold `kind` (chips, systems, rents, models, engines, acceptance, laws), first searched first."""
    if catalog is not None and not is_dir(Path(catalog)):
        raise DataFileError(
            short_repr(catalog).strip("'"),
            "is not a folder; --catalog names a folder with chips/, systems/, rents/, models/ or engines/ in it",
        )
    if catalog is not None and _is_other(Path(catalog)):
        raise DataFileError(
            short_repr(catalog).strip("'"), f"is no catalogue: none of {', '.join(f'{k}/' for k in FOLDERS)} is in it"
        )
    roots = ([Path(catalog)] if catalog is not None else []) + [*_users(), PACKAGED]
    return [root / kind for root in roots if is_dir(root / kind)]


def _is_other(folder: Path) -> bool:
    """Whether a folder holds others, and none that a catalogue does."""
    try:
        return any(map(is_dir, folder.iterdir())) and not any(is_dir(folder / name) for name in FOLDERS)
    except OSError:
        return False


def own_folder(kind: str, catalog: str | os.PathLike[str] | None = None) -> Path:
    """Return the user's own folder of `kind`, which may not be there yet: in `catalog`, else where `_users` looks first.

    Raises DataFileError where there is neither.
    """
    folders(kind, catalog)  # refuses what is no folder
    roots = [Path(catalog)] if catalog is not None else _users()
    if not roots:
        raise DataFileError("~/.steptime", "there is no home folder; name one by the variable STEPTIME_CATALOG or --catalog")
    return roots[0] / kind


def _users() -> list[Path]:
    """Return the user's own folder: `STEPTIME_CATALOG`, or `~/.steptime` where there is a home."""
    if folder := os.environ.get("STEPTIME_CATALOG"):
        if not is_dir(Path(folder)):
            raise DataFileError(folder, "is not a folder; the variable STEPTIME_CATALOG names one")
        return [Path(folder)]
    try:
        return [Path.home() / ".steptime"]
    except RuntimeError:  # an unknown user in a container
        return []


def is_file(path: Path) -> bool:
    """Whether there is such a file; what cannot be one, or be looked at, is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, a folder that may not be read, a zero byte
        return False


def is_dir(path: Path) -> bool:
    """Whether there is such a folder; what cannot be one, or be looked at, is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def files(kind: str, catalog: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Return every file of `kind` by the name it goes by, nearer folders shadowing farther ones."""
    paths: dict[str, Path] = {}
    suffix = SUFFIXES.get(kind, ".toml")
    for folder in folders(kind, catalog):
        for path in sorted(folder.glob("*" + suffix), key=lambda path: path.name):
            paths.setdefault(path.stem.replace("--", "/"), path)
    return dict(sorted(paths.items(), key=lambda item: item[0].casefold()))


def find(kind: str, name: str, catalog: str | os.PathLike[str] | None = None) -> Path:
    """Return the file of `name`: a path as it is, a name of the catalogue, or an alias of one.

    Capitals do not count, and "_" and " " are as "-".
    """
    suffix = SUFFIXES.get(kind, ".toml")
    path = Path(name)
    if is_file(path):
        return path
    if path.suffix == suffix:
        raise DataFileError(short_repr(name).strip("'"), "no such file")
    paths = files(kind, catalog)
    by_folded = {folded(key): path for key, path in paths.items()}
    if folded(name) in by_folded:
        return by_folded[folded(name)]
    aliases = {folded(alias): path for path in paths.values() for alias in _aliases(path)}
    if folded(name) in aliases:
        return aliases[folded(name)]
    singular, command = LABEL_AND_COMMAND.get(kind, (kind.removesuffix("s"), kind))
    hint = f"`steptime {command}` lists them; a path to a file works too."
    if kind == "chips":  # no command lists them; only a system's file names one
        hint = "A chip is one of the catalogue's, a file beside the system's own, or a table [chip]."
    raise UnknownName(singular, name, [*paths, *aliases], hint)


def _aliases(path: Path) -> list[str]:
    aliases = read_file(path).get("aliases", ())
    return [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []


def folded(name: str) -> str:
    """Return a name as it is looked up: capitals do not count, and "_" and " " are as "-"."""
    return name.strip().casefold().replace("_", "-").replace(" ", "-")


@lru_cache(maxsize=512)
def _parse_file(path: Path, _modified: float) -> dict[str, Any]:
    text = _text(path)
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys) if _is_json(path, text) else tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise DataFileError(path, f"is not valid JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise DataFileError(path, "is nested too deep") from None
    except tomllib.TOMLDecodeError as error:
        line = str(error).rpartition("at line ")[2].partition(",")[0]
        raise DataFileError(
            path, f"is not valid TOML: {error!s:.200}", int(line) if line.isdigit() else text.count("\n") + 1
        ) from None
    except _Twice as key:
        raise DataFileError(
            path, f"has the key {short_repr(str(key))} twice in one object", _line(text, str(key), nth=2)
        ) from None
    except ValueError:
        raise DataFileError(path, "holds a number of more digits than can be read") from None
    if not isinstance(data, dict):
        raise DataFileError(path, f"holds {short_repr(data)}, not a table of keys", 1)
    return data


def _text(path: Path) -> str:
    """Return the text of a data file; a byte order mark at its start is no part of it."""
    size, largest = path.stat().st_size, LARGEST.get(path.suffix, LARGEST[".toml"])
    if size > largest:
        problem = f"has {size / 1e6:,.1f} MB; a file of this kind has at most {largest / 1e6:g} MB: is it the right one?"
        raise DataFileError(path, problem)
    raw = path.read_bytes()
    if raw[:2] in UTF16:
        raise DataFileError(path, "is UTF-16 text; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not UTF-8 text ({error.reason} at byte {error.start})") from None
    text = text.replace("\r\n", "\n")
    if not _is_json(path, text) and (deep := _KEY.search(text)):
        line = text.count("\n", 0, deep.start()) + 1
        raise DataFileError(path, f"has a key of more than {DEEPEST_KEY} parts", line)
    return text


def _is_json(path: Path, text: str) -> bool:
    return path.suffix == ".json" or text[:1000].lstrip().startswith("{")


class _Twice(Exception):
    """A key that stands twice in one JSON object."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise _Twice(key)
        entries[key] = value
    return entries


def _line(text: str, key: str, nth: int) -> int | None:
    """Return the line of the nth place where a JSON key stands, where it is written plainly."""
    places = [key_match.start() for key_match in re.finditer(re.escape(json.dumps(key)), text)]
    return text.count("\n", 0, places[nth - 1]) + 1 if len(places) == nth else None


def read_file(path: Path) -> dict[str, Any]:
    """Read a TOML or JSON file into a dict; errors name the file and the line."""
    try:
        return _parse_file(path, path.stat().st_mtime)
    except OSError as error:
        raise DataFileError(path, error.strerror or str(error)) from None
