"""Text files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_text_atomically(
    path: str | os.PathLike[str], text: str, *, executable: bool = False, follow_symlinks: bool = True
) -> None:
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
    place = Path(os.path.realpath(path) if follow_symlinks else path)
    if follow_symlinks and Path(path).exists() and not Path(path).is_file() and not place.is_dir():
        Path(path).write_text(text, encoding="utf-8", newline="")
        return
    mode = place.stat().st_mode & 0o777 if place.is_file() and not place.is_symlink() else None
    beside = place.with_name(f".{place.name[:100]}.{secrets.token_hex(8)}.partial")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mode = beside.stat().st_mode & 0o777 if mode is None else mode
        # The execute bits follow the read bits, so that the user's umask holds for them too.
        beside.chmod(mode | ((mode & 0o444) >> 2) if executable else mode)
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
