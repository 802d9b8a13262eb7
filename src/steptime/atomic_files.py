"""Atomic files: a file is written whole or not at all.

After a crash or on a full disk, the old file stays unchanged.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FilePath = str | os.PathLike[str]


def write_text_atomically(path: FilePath, text: str, *, executable: bool = False, follow_symlinks: bool = True) -> None:
    """Write a text as UTF-8 with unchanged line ends, and replace the file at once.

    After a full disk or a kill, the old file stays unchanged. A pipe or a device is written directly.

    Args:
        path: File to write; its folder must exist.
        text: Content.
        executable: Whether readers of the file may execute it.
        follow_symlinks: Whether a symbolic link at `path` stays and its target is replaced; otherwise the link is replaced.

    Raises:
        OSError: The file cannot be written.
    """
    write_bytes_atomically(path, text.encode(), executable=executable, follow_symlinks=follow_symlinks)


def write_bytes_atomically(path: FilePath, data: bytes, *, executable: bool = False, follow_symlinks: bool = True) -> None:
    """Write bytes, and replace the file at once.

    Args:
        path: File to write; its folder must exist.
        data: Content.
        executable: Whether readers of the file may execute it.
        follow_symlinks: Whether a symbolic link at `path` stays and its target is replaced; otherwise the link is replaced.

    Raises:
        OSError: The file cannot be written.
    """
    with temporary_file(path, executable=executable, follow_symlinks=follow_symlinks) as temporary_path:
        temporary_path.write_bytes(data)


@contextmanager
def temporary_file(path: FilePath, *, executable: bool = False, follow_symlinks: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`, which replaces `path` at the end.

    The caller writes a file or a folder there. The temporary path has the suffix of `path`. After an exception it is
    removed, and `path` stays unchanged. For a pipe or a device, `path` itself is yielded.

    Args:
        path: File or folder to replace; its parent folder must exist.
        executable: Whether readers of the file may execute it.
        follow_symlinks: Whether a symbolic link at `path` stays and its target is replaced; otherwise the link is replaced.

    Yields:
        The temporary path.

    Raises:
        OSError: The file cannot be written.
    """
    place = Path(os.path.realpath(path) if follow_symlinks else path)
    if follow_symlinks and place.exists() and not place.is_file() and not place.is_dir():
        # `/dev/stdout` is a link to a pipe, and the real path of a pipe cannot be opened.
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
    """Write a text as UTF-8 to a new file, whole or not at all.

    If several processes create one file at once, one of them succeeds.

    Args:
        path: File to create; its folder must exist.
        text: Content.

    Raises:
        FileExistsError: The file exists already. OSError: The file cannot be written.
    """
    place = Path(path)
    # Another suffix, so that readers of the folder do not use the unfinished file.
    temporary_path = place.with_name(_temporary_name(".partial"))
    try:
        temporary_path.write_bytes(text.encode())
        _sync(temporary_path)
        try:
            os.link(temporary_path, place)
        except FileExistsError:
            raise
        except OSError:
            # A file system without hard links: create an empty file under the name, then replace it.
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.replace(temporary_path, place)
        _sync_folder(place.parent)
    finally:
        _remove(temporary_path)


def _temporary_name(suffix: str) -> str:
    return f".steptime-{secrets.token_hex(8)}{suffix}"


def _set_mode(temporary_path: Path, place: Path, executable: bool) -> None:
    """Give a new file the mode of the old one; execute bits follow read bits.

    The umask applies to the execute bits too.
    """
    old = place if place.is_file() and not place.is_symlink() else temporary_path
    mode = old.stat().st_mode & 0o777
    new_mode = mode | ((mode & 0o444) >> 2) if executable else mode
    if old is place or new_mode != mode:
        temporary_path.chmod(new_mode)


def _sync(path: Path) -> None:
    # Windows syncs only files that are open for writing.
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut, where the system can."""
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
