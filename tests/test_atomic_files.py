"""Files are written whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress

import pytest

from steptime.atomic_files import create_text_exclusively, temporary_file, write_text_atomically


def test_write_text_atomically_replaces_the_text_and_leaves_no_other_file(tmp_path):
    write_text_atomically(tmp_path / "a", "one\r\n")
    write_text_atomically(tmp_path / "a", "two\n")
    assert (tmp_path / "a").read_bytes() == b"two\n"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_write_text_atomically_full_disk_keeps_the_old_file(tmp_path, monkeypatch, broken):
    (tmp_path / "a").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space left"):
        write_text_atomically(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_write_text_atomically_executable_keeps_to_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write_text_atomically(tmp_path / "a.sh", "x", executable=True)
        write_text_atomically(tmp_path / "b", "x")
    finally:
        os.umask(old)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.sh", "b")] == [0o750, 0o640]


def test_write_text_atomically_link_is_followed_or_replaced(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text_atomically(tmp_path / "link", "new")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "target").read_text()) == (True, "new")
    write_text_atomically(tmp_path / "link", "newer", follow_symlinks=False)
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "target").read_text()) == (False, "new")


def test_write_text_atomically_device_is_written_directly():
    write_text_atomically("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_write_text_atomically_killed_at_the_rename_keeps_the_old_file(tmp_path):
    place = tmp_path / "a.csv"
    place.write_text("old\n")
    script = (
        "import os, signal, sys\n"
        "from steptime.atomic_files import write_text_atomically\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_text_atomically(sys.argv[1], 'new\\n' * 10_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(place)], timeout=60, check=False)
    assert (done.returncode, place.read_text()) == (-signal.SIGKILL, "old\n")


def test_temporary_file_after_an_exception_leaves_the_old_file_alone(tmp_path):
    (tmp_path / "a.csv").write_text("old")
    with suppress(ZeroDivisionError), temporary_file(tmp_path / "a.csv") as beside:
        beside.write_text("new")
        suffix = beside.suffix
        raise ZeroDivisionError
    assert suffix == ".csv"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.csv", "old")]


def test_temporary_file_with_a_folder_replaces_the_old_folder(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "old").write_text("")
    with temporary_file(tmp_path / "a.zarr") as beside:
        beside.mkdir()
        (beside / "new").write_text("")
    assert os.listdir(tmp_path / "a.zarr") == ["new"]
    assert os.listdir(tmp_path) == ["a.zarr"]


@pytest.mark.parametrize("has_links", [True, False])
def test_create_text_exclusively_existing_file_is_refused_and_kept(tmp_path, monkeypatch, has_links):
    if not has_links:

        def refuse(*_):
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    create_text_exclusively(tmp_path / "a.csv", "one")
    with pytest.raises(FileExistsError):
        create_text_exclusively(tmp_path / "a.csv", "two")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.csv", "one")]


def test_create_text_exclusively_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        create_text_exclusively(tmp_path / "a.csv", "new")
    assert os.listdir(tmp_path) == []
