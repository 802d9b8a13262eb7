"""Every formula's example is run."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import steptime

MODULES = sorted(m.name for m in pkgutil.walk_packages(steptime.__path__, "steptime.") if not m.name.endswith("__main__"))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    assert sum(bool(t.examples) for name in MODULES for t in finder.find(import_module(name))) > 60
