"""Folders of files that the program writes: other files stay, its own earlier files are replaced."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from steptime.atomic_files import write_text_atomically
from steptime.cli.output import writing, wrote
from steptime.errors import DataFileError, InputError
from steptime.safe_text import replace_controls

WRITTEN = "steptime.sha256"  # names and checksums of the files of the last call, as `sha256sum --check` reads them


def check_folder(name: str, text: str | None) -> None:
    """Check, before any work, that a folder can be written.

    Args:
        name: option that names the folder.
        text: the folder; it may be missing if its parent exists.

    Raises:
        DataFileError: if it cannot be written.
    """
    if text is None:
        return
    if not text.strip() or "\0" in text:
        raise InputError(f"{name} needs the name of a folder")
    if os.path.exists(text) and not os.path.isdir(text):
        raise DataFileError(text, f"is a file; {name} needs a folder")
    above = text if os.path.isdir(text) else os.path.dirname(os.path.realpath(text))
    if not os.path.isdir(above):
        raise DataFileError(text, "cannot be written: the folder that it would lie in does not exist")
    if not os.access(above, os.W_OK | os.X_OK):
        raise DataFileError(text, "cannot be written: Permission denied")


def write_folder(folder: str, files: Mapping[str, str], *, force: bool) -> None:
    """Write files into a folder, each whole or not at all, and print that.

    Symbolic links in the folder are never followed: a link in a file's place is a conflict, one to another folder an error.

    Args:
        folder: the folder.
        files: texts by name; names that end in .sh become executable.
        force: whether to replace other texts of those names, and to remove unchanged files of an earlier call.

    Raises:
        DataFileError: if a file would be replaced or removed without `force`.
    """
    top = Path(folder)
    files = {name: replace_controls(text) for name, text in files.items()}
    places = {top / name: text for name, text in files.items()}
    with writing(folder):
        _check_inside(top, places)
        old = {place: checksum for place, checksum in _written(top).items() if place not in places and place.is_file()}
        obsolete_paths = [place for place, checksum in old.items() if _sum(place.read_bytes()) == checksum]
        conflicts = [place for place, text in places.items() if os.path.lexists(place) and _other_than(place, text)]
        if conflicts and not force:
            raise DataFileError(str(conflicts[0]), "is there already, with another text; give --force to write over it")
        if obsolete_paths and not force:
            raise DataFileError(
                str(obsolete_paths[0]), "is of an earlier plan, and no part of this one; give --force to remove it"
            )
        for place in obsolete_paths:
            place.unlink()
        _drop_empty(top, obsolete_paths)
        for place, text in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(place, text, executable=place.suffix == ".sh", follow_symlinks=False)
        sums = "".join(f"{_sum(text.encode())}  {name}\n" for name, text in files.items())
        write_text_atomically(top / WRITTEN, sums, follow_symlinks=False)
    changed = [place for place in old if place not in obsolete_paths]
    wrote(
        folder,
        f"{len(files):,} file{'s' if len(files) > 1 else ''}{_cleanup_words(obsolete_paths, changed)}",
        replaced=bool(conflicts),
    )


def _check_inside(top: Path, places: Iterable[Path]) -> None:
    """Raise DataFileError where a symbolic link leads a folder of the files elsewhere."""
    for folder in {place.parent for place in places} - {top}:
        if folder.is_symlink():
            raise DataFileError(str(folder), "is a symbolic link; remove it, or give another --launch-dir")


def _cleanup_words(removed_paths: list[Path], changed: list[Path]) -> str:
    """Say what became of files of an earlier plan."""
    words = f", and removed {len(removed_paths):,} of an earlier plan" if removed_paths else ""
    return words + (f"; {', '.join(map(str, changed))} of an earlier plan was changed by hand, and stays" if changed else "")


def _written(top: Path) -> dict[Path, str]:
    """Return the sums of the files that an earlier call wrote; lines that name nothing inside the folder are passed over."""
    try:
        lines = (top / WRITTEN).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return {}
    checksums = {}
    for line in lines:
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if (
            match
            and os.path.relpath(os.path.realpath(top / match[2]), os.path.realpath(top)) == match[2]
            and match[2][:2] != ".."
        ):
            checksums[top / match[2]] = match[1]
    return checksums


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _drop_empty(top: Path, removed: Iterable[Path]) -> None:
    """Remove the folders below the top that removed files leave empty."""
    for folder in {place.parent for place in removed} - {top}:
        if not any(folder.iterdir()):
            folder.rmdir()


def _other_than(place: Path, text: str) -> bool:
    return place.is_symlink() or not place.is_file() or place.read_bytes() != text.encode()
