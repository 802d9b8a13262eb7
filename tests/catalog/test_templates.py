"""A template is the file of a system with its chip: read again, it gives the same system."""

from __future__ import annotations

import pytest

from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import load_system
from steptime.catalog.system_template import template
from tests.conftest import every


@pytest.mark.parametrize("name", every(3, files("systems")))
def test_a_template_gives_an_equal_system(tmp_path, name):
    path = tmp_path / "mine.toml"
    path.write_text(template(name), encoding="utf-8")
    assert load_system(str(path)) == load_system(name)
    again = tmp_path / "again.toml"
    again.write_text(template(str(path)), encoding="utf-8")
    assert load_system(str(again)) == load_system(name)


def test_a_template_explains_itself():
    text = template("hgx-h100")
    assert max(map(len, (line for line in text.splitlines() if line.startswith("#")))) <= 128
    for word in ("steptime plan MODEL", "[chip.peak]", "one way and per chip", "a box"):
        assert word in text
