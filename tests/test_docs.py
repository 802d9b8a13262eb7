"""The generated pages are what the generator writes today."""

from __future__ import annotations

import ast
import importlib.util
import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "models.md"


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate", PAGE.with_name("generate.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_the_page_of_models_is_up_to_date(generator):
    assert PAGE.read_text(encoding="utf-8") == generator.page()


@pytest.mark.thorough
def test_every_model_has_a_verdict_on_the_total_that_is_counted(generator):
    lines = [line for line in generator.page().splitlines() if line.count("|") > 10 and "---" not in line][1:]
    judged = {line.split(" | ")[0].strip("| "): line.rpartition(" | ")[2].strip("| ") for line in lines}
    assert len(judged) >= 100
    assert not [name for name, words in judged.items() if words in ("not judged", "differs")]
    assert [name for name, words in judged.items() if words.startswith("text part")] == [
        "google/gemma-3n-E2B-it", "google/gemma-3n-E4B-it",
    ]  # fmt: skip


def test_the_page_of_engines_is_up_to_date(generator):
    assert PAGE.with_name("engines.md").read_text(encoding="utf-8") == generator.engines_page()


def test_no_text_has_the_marks_of_an_unfinished_merge():
    root = PAGE.parents[1]
    texts = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "src" / "steptime" / "data").rglob("*.toml")]
    marked = [path.name for path in texts if re.search(rb"^(<<<<<<<|>>>>>>>) ", path.read_bytes(), re.MULTILINE)]
    assert len(texts) > 100
    assert not marked


ARCHITECTURE = PAGE.with_name("architecture.md").read_text(encoding="utf-8")
SOURCE = PAGE.parents[1] / "src" / "steptime"


def test_the_house_has_every_room_and_file_that_its_page_names():
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name not in ("data", "__pycache__")}
    told = set(re.findall(r"^\| `(\w+)/` \|", ARCHITECTURE, re.MULTILINE))
    assert told == rooms
    files = set(re.findall(r"`((?:\w+/)*\w+\.py)`", ARCHITECTURE)) - {
        "docs/correction_fit.py",
        "docs/fit_engines.py",
        "docs/engine_flags.py",
        "docs/training_flags.py",
        "tests/physics/test_rules.py",
    }
    assert len(files) > 25
    assert not [name for name in files if not (SOURCE / name).is_file()]


def test_the_way_of_a_question_names_functions_that_are_there():
    way = ARCHITECTURE.partition("## The path of one question")[2].partition("## Where to change what")[0]
    found = re.findall(r"`((?:\w+/)+\w+\.py)`\s+`(\w+)`", way)
    assert len(found) > 15
    for file, function in found:
        text = (SOURCE / file).read_text(encoding="utf-8")
        assert re.search(rf"^(def|class) {function}\b", text, re.MULTILINE), (file, function)


@pytest.mark.thorough
def test_scripts_import_what_the_package_has():
    """A benchmark that takes long runs seldom: a name that it takes from the package may have moved meanwhile."""
    root, missing = PAGE.parents[1], []
    for path in sorted(path for folder in ("benchmarks", "docs", "tools") for path in (root / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "steptime":
                module = import_module(node.module)
                rooms = {entry.stem for place in getattr(module, "__path__", ()) for entry in Path(place).iterdir()}
                names = [name.name for name in node.names if not hasattr(module, name.name) and name.name not in rooms]
                missing += [f"{path.name}: {node.module}.{name}" for name in names]
    assert missing == []
