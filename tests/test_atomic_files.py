"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from steptime.atomic_files import write_text_atomically


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
