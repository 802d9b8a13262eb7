"""Files that are written whole or not at all: a crash or a full disk leaves the old file as it was."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FilePath = str | os.PathLike[str]


def write_text_atomically(path: FilePath, text: str, *, executable: bool = False, follow_symlinks: bool = True) -> None:
    """Write a text as UTF-8, line ends as they are, beside `path`, then put it in its place.

    A full disk or a kill leaves the old file as it was. A pipe or a device is written directly.

    Args:
        path: file to write; its folder must exist.
        text: its content.
        executable: whether those who may read the file may execute it.
        follow_symlinks: whether a symbolic link at `path` stays and its target is replaced, not the link itself.

    Raises:
        OSError: the file cannot be written.
    """
    write_bytes_atomically(path, text.encode(), executable=executable, follow_symlinks=follow_symlinks)


def write_bytes_atomically(path: FilePath, data: bytes, *, executable: bool = False, follow_symlinks: bool = True) -> None:
    """Write bytes as `write_text_atomically` writes text."""
    with temporary_file(path, executable=executable, follow_symlinks=follow_symlinks) as temporary_path:
        temporary_path.write_bytes(data)


@contextmanager
def temporary_file(path: FilePath, *, executable: bool = False, follow_symlinks: bool = True) -> Iterator[Path]:
    """Yield a path beside `path` to write a file or a folder to, and put it in the place of `path` at the end.

    The path has the ending of `path`. After an exception it is removed, and `path` is as it was. The path of a pipe or a
    device is yielded itself. `write_text_atomically` says what the arguments mean.

    Raises:
        OSError: the file cannot be written.
    """
    place = Path(os.path.realpath(path) if follow_symlinks else path)
    if follow_symlinks and place.exists() and not place.is_file() and not place.is_dir():
        # `/dev/stdout` is a link to a pipe, whose real path cannot be opened
        yield Path(path)
        return
    temporary_path = place.with_name(_temporary_name(place.suffix))
    try:
        yield temporary_path
        if temporary_path.is_file():
            _set_mode(temporary_path, place, executable)
            _sync(temporary_path)
        if place.is_dir() and not place.is_symlink() and temporary_path.is_dir():
            shutil.rmtree(place)
        os.replace(temporary_path, place)
        _sync_folder(place.parent)
    finally:
        _remove(temporary_path)


def create_text_exclusively(path: FilePath, text: str) -> None:
    """Write a text as UTF-8 to a file that is not there yet, whole or not at all.

    Of several processes that create one file at once, one succeeds.

    Raises:
        FileExistsError: the file is there.
        OSError: it cannot be written.
    """
    place = Path(path)
    # readers of the folder must not take it for a finished file, so that it has another ending
    temporary_path = place.with_name(_temporary_name(".partial"))
    try:
        temporary_path.write_bytes(text.encode())
        _sync(temporary_path)
        try:
            os.link(temporary_path, place)
        except FileExistsError:
            raise
        except OSError:
            # a file system without hard links: the name is taken first, then the empty file replaced
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.replace(temporary_path, place)
        _sync_folder(place.parent)
    finally:
        _remove(temporary_path)


def _temporary_name(suffix: str) -> str:
    return f".steptime-{secrets.token_hex(8)}{suffix}"


def _set_mode(temporary_path: Path, place: Path, executable: bool) -> None:
    """Give a new file the mode of the old one; the execute bits follow the read bits, for which the umask holds."""
    old = place if place.is_file() and not place.is_symlink() else temporary_path
    mode = old.stat().st_mode & 0o777
    new_mode = mode | ((mode & 0o444) >> 2) if executable else mode
    if old is place or new_mode != mode:
        temporary_path.chmod(new_mode)


def _sync(path: Path) -> None:
    # Windows syncs only files that are open for writing
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system can."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
