"""Hooks of the documentation site (`mkdocs.yml`): outputs of commands, formulas as MathML, links to sources, pages of the API.

Formulas become MathML when the site is built, so that a reader needs neither a script nor a network for them.
"""

# ruff: noqa: E402 - the folder of the hooks is put on the path first
from __future__ import annotations

import ast
import base64
import hashlib
import html
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]
os.environ["STEPTIME_CATALOG"] = str(HERE)  # no catalogue of the user changes a page

import griffe
from console_blocks import blocks, notebook, pages, run_blocks, with_outputs
from latex2mathml.converter import convert
from mkdocs.structure.files import File

from steptime import blackboard

SOURCE = "https://github.com/steptime/steptime/blob/main/"
API = "reference/api"
# Whether commands run, which takes minutes.
RUNS = os.environ.get("STEPTIME_SITE_RUN") != "0"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
PICTURE = re.compile(r"^<!-- picture: (?P<file>[\w.-]+): (?P<alt>[^>]+) -->$", re.MULTILINE)
# What a room of the API is about.
ROOMS = {
    "blackboard": "Closed forms of the lecture",
    "catalog": "Systems and rents",
    "errors": "Errors",
    "hardware": "Machines",
    "lecture": "The lecture for a model",
    "models": "Models",
    "physics": "Steps, layouts and engines",
    "planning": "Plans",
    "pricing": "Prices",
    "questions": "Questions",
    "scaling": "Model size and scaling laws",
    "simulation": "Simulation",
    "sweeps": "Sweeps, comparisons and sensitivity",
    "training": "Training",
    "validation": "Validation and own runs",
    "workload": "Requests, limits and traffic",
}


def public_names() -> dict[str, list[str]]:
    """Return the public names by room.

    Returns:
        Dotted paths of `__init__.pyi`, by folder of the package.
    """
    tree = ast.parse((HERE.parent / "src" / "steptime" / "__init__.pyi").read_text(encoding="utf-8"))
    names: dict[str, list[str]] = defaultdict(list)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("steptime."):
            names[node.module.split(".")[1]] += [f"{node.module}.{alias.name}" for alias in node.names]
    names["blackboard"] = [
        f"{function.__module__}.{name}" for name in blackboard.__all__ if callable(function := getattr(blackboard, name))
    ]
    return dict(sorted(names.items()))


def on_config(config: Any) -> Any:
    """Add the pages of the API to the navigation."""
    reference = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    reference.append({"Python API": [{ROOMS.get(room, room): f"{API}/{room}.md"} for room in public_names()]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the API, one per room, and the notebooks."""
    for place in sorted((HERE / "notebooks").glob("*.md")) if RUNS else ():
        content = json.dumps(_run(place.read_text(encoding="utf-8"))[1], indent=1)
        files.append(File.generated(config, f"notebooks/{place.stem}.ipynb", content=content))
    for room, names in public_names().items():
        called = "st.blackboard" if room == "blackboard" else "st"
        lines = [f"# {ROOMS.get(room, room)}", "", "With `import steptime as st`:", ""]
        for path in dict.fromkeys(names):
            lines += [f"## `{called}.{path.rpartition('.')[2]}`", "", f"::: {path}", ""]
        files.append(File.generated(config, f"{API}/{room}.md", content="\n".join(lines)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - the signature of mkdocs
    """Add outputs and pictures of the commands of a page, and lead links out of the folder to the sources."""
    place = HERE / page.file.src_uri
    if place in pages() and any(True for _ in blocks(markdown)) and RUNS:
        markdown = _run(markdown)[0]
        if place.parent.name == "notebooks":
            markdown += f"\n\n[Download this page as a notebook]({place.stem}.ipynb)\n"
    depth = page.file.src_uri.count("/")
    return markdown.replace(f"]({'../' * (depth + 1)}", f"]({SOURCE}")


@lru_cache(maxsize=256)
def _run(markdown: str) -> tuple[str, dict[str, Any]]:
    """Return a page with outputs, and as a notebook; STEPTIME_SITE_CACHE names a file that keeps them between builds."""
    store = Path(os.environ["STEPTIME_SITE_CACHE"]) if os.environ.get("STEPTIME_SITE_CACHE") else None
    key = hashlib.sha256(markdown.encode()).hexdigest()
    cached = json.loads(store.read_text(encoding="utf-8")) if store is not None and store.exists() else {}
    if key in cached:
        text, cells = cached[key]
        return text, cells
    with tempfile.TemporaryDirectory() as folder:
        outputs = list(run_blocks(markdown, Path(folder)))
        text = with_outputs(markdown, outputs)
        text = PICTURE.sub(lambda match: _picture(Path(folder) / match["file"], match["alt"]), text)
    cells = notebook(markdown, outputs)
    if store is not None:
        store.write_text(json.dumps({**cached, key: (text, cells)}), encoding="utf-8")
    return text, cells


def _picture(path: Path, alt: str) -> str:
    kind = {"svg": "svg+xml"}.get(path.suffix[1:], path.suffix[1:])
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img class="drawn" alt="{html.escape(alt)}" src="data:image/{kind};base64,{data}">'


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - the signature of mkdocs
    """Replace formulas by MathML."""
    return FORMULA.sub(_formula, content)


def _formula(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    return convert(html.unescape(match[3]), display=display)


class Docstrings(griffe.Extension):  # type: ignore[misc]
    """Examples as blocks of code, in which lists are no links; fields of results with unit and meaning."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Fence the examples of an object, and describe a field.

        Args:
            obj: The object with its docstring.
        """
        if obj.is_alias:
            return
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
        elif obj.is_attribute and obj.value is not None and (words := field_meaning(str(obj.value))):
            obj.docstring = griffe.Docstring(words, parent=obj)


def field_meaning(value: str) -> str:
    """Return the meaning of a field of a result.

    Args:
        value: Code that makes the field, with its metadata.

    Returns:
        A sentence with the unit; "" for another value.

    >>> field_meaning("field(metadata=unit('s', 'time of the step'))")
    'Time of the step [s].'
    """
    for node in ast.walk(ast.parse(value, mode="eval")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "unit":
            texts = [str(part.value) for part in node.args if isinstance(part, ast.Constant)]
            if len(texts) >= 2:
                symbol = f" [{texts[0]}]" if texts[0] else ""
                return f"{texts[1][:1].upper()}{texts[1][1:]}{symbol}."
    return ""


def fenced(docstring: str) -> str:
    """Return a docstring with fences around its examples.

    Args:
        docstring: Text whose examples begin with ">>>" and end at an empty line.

    Returns:
        The text.

    >>> fenced("Text.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Text.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    lines: list[str] = []
    is_open = False
    for line in docstring.splitlines():
        if line.lstrip().startswith(">>>") and not is_open:
            margin = line[: len(line) - len(line.lstrip())]
            lines.append(f"{margin}```pycon")
            is_open = True
        elif is_open and not line.strip():
            lines.append(f"{margin}```")
            is_open = False
        lines.append(line)
    return "\n".join([*lines, *([f"{margin}```"] if is_open else [])])
