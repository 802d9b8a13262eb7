"""Every formula's example is run."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import steptime

MODULES = sorted(m.name for m in pkgutil.walk_packages(steptime.__path__, "steptime.") if not m.name.endswith("__main__"))


TORCH = {
    f"steptime.reversible.{name}" for name in ("reversible_blocks", "reversible_stacks", "torch_memory")
}  # which are of the extra torch


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name in TORCH:
        pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'steptime[torch]'")
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [name for name in MODULES if name not in TORCH]
    assert sum(bool(t.examples) for name in modules for t in finder.find(import_module(name))) > 60
