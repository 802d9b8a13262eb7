"""What a release needs: licences of all that is shipped, one version, one address, files that parse."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

import steptime

ROOT = Path(__file__).parents[1]
PACKAGE = Path(steptime.__file__).parent
DATA = PACKAGE / "data"
SOURCES = tomllib.loads((DATA / "SOURCES.toml").read_text(encoding="utf-8"))
NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PLACEHOLDER = "https://github.com/steptime/steptime"
VENDORED = PACKAGE / "web" / "static" / "vendor"


@cache
def data_files() -> list[str]:
    return sorted(
        path.relative_to(DATA).as_posix()
        for path in DATA.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    )


def matching(pattern: str) -> list[str]:
    return [name for name in data_files() if fnmatch(name, pattern) and name.count("/") == pattern.count("/")]


# --- licences of data ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_data_file_matches_one_entry_of_the_sources():
    matches = {
        name: [entry["pattern"] for entry in SOURCES["files"] if name in matching(entry["pattern"])] for name in data_files()
    }
    assert {name: patterns for name, patterns in matches.items() if len(patterns) != 1} == {}
    assert [entry["pattern"] for entry in SOURCES["files"] if not matching(entry["pattern"])] == []


def test_a_data_file_names_its_source_where_the_sources_name_none():
    nameless = {
        name
        for entry in SOURCES["files"]
        if "source" not in entry
        for name in matching(entry["pattern"])
        if not re.search(r"https?://\w", (DATA / name).read_text(encoding="utf-8"))
    }
    assert nameless == set()


def test_every_licence_of_data_is_explained_in_the_notice():
    headings = set(re.findall(r"^(\S.*)$", NOTICE.partition("2. Data in the package")[2], re.MULTILINE))
    assert {entry["licence"] for entry in SOURCES["files"]} <= headings


def test_every_model_has_a_licence_that_stands_in_the_notice():
    models = {path.stem.replace("--", "/") for path in (DATA / "models").glob("*.json")}
    named = {model: next((p for p in SOURCES["models"] if fnmatch(model, p)), None) for model in models}
    assert [model for model, pattern in named.items() if pattern is None] == []
    assert set(SOURCES["models"]) == set(named.values())
    lines = dict(re.findall(r"^ {4}(\S[^:]*): ((?:.+)(?:\n {6}.+)*)", NOTICE, re.MULTILINE))
    for pattern, licence in SOURCES["models"].items():
        assert pattern.split("/", maxsplit=1)[0] in re.split(r",\s+", lines[licence]), (pattern, licence)


# --- licences of software ------------------------------------------------------------------------------------------------


def test_the_licence_is_the_whole_text_of_apache_2():
    text = (ROOT / "LICENSE").read_bytes()
    # The digest of https://www.apache.org/licenses/LICENSE-2.0.txt
    assert hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


@pytest.mark.parametrize(("file", "name"), [("d3.min.js", "d3"), ("plot.umd.min.js", "Observable Plot")])
def test_vendored_files_have_the_version_and_the_copyright_that_the_notice_names(file, name):
    header = (VENDORED / file).read_text(encoding="utf-8").partition("\n")[0]
    version, holder = re.search(r" v(\d+\.\d+\.\d+) (Copyright .*)", header).groups()
    for text in (
        NOTICE,
        (VENDORED / "LICENSES.txt").read_text(encoding="utf-8"),
        (VENDORED / "README.md").read_text(encoding="utf-8"),
    ):
        assert re.search(rf"{name} {re.escape(version)}\b", text)
        assert holder in text


def test_every_vendored_file_is_in_its_licences():
    texts = (VENDORED / "LICENSES.txt").read_text(encoding="utf-8")
    assert [path.name for path in VENDORED.glob("*.js") if path.name not in texts] == []
    for clause in (
        "Permission to use, copy, modify",
        "Neither the name of the author",
        "Permission is hereby granted, free of charge",
    ):
        assert clause in texts


# --- metadata ------------------------------------------------------------------------------------------------------------


def test_licence_files_exist_and_the_metadata_is_whole():
    assert PROJECT["license"] == "Apache-2.0"
    assert [name for name in PROJECT["license-files"] if not (ROOT / name).is_file()] == []
    assert {"LICENSE", "NOTICE"} < set(PROJECT["license-files"])
    assert PROJECT["authors"] == [{"name": "steptime maintainers"}]
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_citation_has_the_keys_of_its_format_and_the_version_of_the_project():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert (str(citation["version"]), citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["repository-code"] == PROJECT["urls"]["Source"]


def test_the_address_of_the_repository_is_one_placeholder():
    assert PROJECT["urls"]["Source"] == PLACEHOLDER
    assert PLACEHOLDER in (ROOT / "RELEASING.md").read_text(encoding="utf-8")
    texts = [
        path.read_text(encoding="utf-8")
        for pattern in ("*.md", "*.cff", "pyproject.toml", ".github/**/*.yml", "docs/*.md")
        for path in ROOT.glob(pattern)
    ]
    addresses = {found for text in texts for found in re.findall(r"https?://[\w.]+/[\w.-]+/steptime\b", text)}
    assert addresses == {PLACEHOLDER}


def test_every_extra_is_in_the_table_and_every_hint_names_one():
    table = set(
        re.findall(
            r"`(\w+)`",
            "\n".join(re.findall(r"^\| (`.*?) \|", (ROOT / "RELEASING.md").read_text(encoding="utf-8"), re.MULTILINE)),
        )
    )
    assert table == set(PROJECT["optional-dependencies"])
    hints = {
        extra
        for path in [*PACKAGE.rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
        for extra in re.findall(
            r"(?:install_hint\(['\"]|pip install '(?:\.|steptime)\[)(\w+)", path.read_text(encoding="utf-8")
        )
    }
    assert {"simulate", "plot", "web"} <= hints <= table


def test_workflows_templates_and_hooks_parse():
    yaml = pytest.importorskip("yaml")
    files = [*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"]
    parsed = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in files}
    assert {"ci.yml", "publish.yml", "pages.yml", "bug.yml"} < set(parsed)
    versions = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert set(parsed["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"]) == versions
    # Trusted publishing: only the job that publishes may ask for an identity, and no secret is used.
    assert parsed["publish.yml"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert not [path.name for path in files if "secrets." in path.read_text(encoding="utf-8")]


def test_stages_of_the_workflow_are_those_of_the_script():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    stages = set(re.findall(r"^stage_(\w+)\(\)", script, re.MULTILINE))
    used = re.findall(r"\.ci/run ([\w ]+)", (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert stages == {"test", "checks", "site", "package", "slow", "oracle"}
    assert {word for words in used for word in words.split()} == stages
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=False).returncode == 0
