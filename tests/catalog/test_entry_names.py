"""Names in files of chips, systems, engines and stacks follow one rule."""

from __future__ import annotations

import pytest

from steptime.catalog.data_files import FOLDERS, files, find, is_entry_name
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError
from steptime.physics.engine import load_engine
from steptime.training.training_stack import load_stack
from tests.conftest import each

BAD = ("a b", "a\nb", "$(x)", "-x", "..", "a/../b", "..", "a;b", "é", "a\x1bb", "a`b`", "a\u202eb", "")


@each("name", BAD)
def test_is_entry_name_bad_character_is_false(name):
    assert not is_entry_name(name)


@each("kind", sorted(set(FOLDERS) - {"anchors"}))
def test_is_entry_name_every_name_of_the_catalogue_is_true(kind):
    assert all(map(is_entry_name, files(kind)))


@pytest.mark.parametrize("name", BAD[:4])
@pytest.mark.parametrize(
    ("kind", "entry", "load"),
    [
        ("systems", "hgx-h100", load_system),
        ("engines", "vllm", load_engine),
        ("stacks", "megatron", load_stack),
    ],
)
def test_load_bad_name_in_a_file_raises(tmp_path, kind, entry, load, name):
    lines = find(kind, entry).read_text(encoding="utf-8").splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("name = "))
    lines[at] = "name = " + '"' + name.replace("\n", "\\n") + '"'
    (tmp_path / "mine.toml").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataFileError, match="name: must be 1 to 200 letters"):
        load(str(tmp_path / "mine.toml"))


def test_load_bad_name_of_a_chip_in_a_system_raises(tmp_path):
    """A chip's table in a system's file is held to the rule as well."""
    chip = find("chips", "h100").read_text(encoding="utf-8").replace('name = "h100"', 'name = "h100 x"')
    (tmp_path / "h100.toml").write_text(chip, encoding="utf-8")
    (tmp_path / "mine.toml").write_text(find("systems", "hgx-h100").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(DataFileError, match=r"name: must be 1 to 200 letters"):
        load_system(tmp_path / "mine.toml")
