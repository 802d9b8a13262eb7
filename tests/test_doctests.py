"""Every formula's example is run."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import steptime
from tests.conftest import each

MODULES = sorted(m.name for m in pkgutil.walk_packages(steptime.__path__, "steptime.") if not m.name.endswith("__main__"))
SOURCE = Path(steptime.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


# Examples that take a third of a second or more, of modules that have tests of their own too.
LONG = {f"steptime.{name}" for name in ("lecture.story", "reversible.avalanche", "scaling.rl_step", "scaling.sizing_plots")}

TORCH = {f"steptime.reversible.{name}" for name in ("reversible_blocks", "reversible_stacks")}  # which are of the extra torch


def run_examples(name: str) -> None:
    if name in TORCH:
        pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'steptime[torch]'")
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(import_module(name)):
        # `testmod` runs docstrings without examples too, each of which looks at the date of every file that was read.
        if test.examples:
            runner.run(test)
    assert runner.tries > 0
    assert runner.failures == 0


@each("name", [name for name in WITH_EXAMPLES if name not in LONG])
def test_examples(name):
    run_examples(name)


@pytest.mark.thorough
@each("name", sorted(LONG))
def test_long_examples(name):
    run_examples(name)


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [name for name in MODULES if name not in TORCH]
    assert sum(bool(t.examples) for name in modules for t in finder.find(import_module(name))) > 60
