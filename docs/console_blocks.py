"""Commands and Python of the documentation: blocks that are run, in a folder with the files that the page shows.

A block of console has lines `$ steptime ...`; a block of Python is run too, with the names of earlier blocks of its page. A
block with a title is a file that commands read. Comments before a block say how it is run. `<!-- slow -->` takes more than some
seconds. `<!-- fails -->` ends with an error or without an answer. `<!-- not run -->` is only shown.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from steptime.cli.main import app_for
from steptime.errors import InputError

BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>slow|fails|not run) -->\n)?```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
WIDTH = 80
# Start of a line of an output that is a figure.
FIGURE = "data:image/png;base64,"
# Folders of the pages whose blocks are run, and single pages.
PAGES = ("tutorials/*.md", "how-to/*.md", "physics/*.md", "notebooks/*.md", "index.md", "accuracy.md")
DOCS = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of a page: language, title of a file, mark, text, and its end in the page."""

    language: str
    title: str
    mark: str
    body: str
    end: int

    @property
    def commands(self) -> list[str]:
        """Commands of a console block."""
        joined = self.body.replace("\\\n", " ")
        return [line[2:] for line in joined.splitlines() if line.startswith("$ ")] if self.language == "console" else []


def pages() -> list[Path]:
    """Return the pages whose blocks are run.

    Returns:
        Paths of Markdown files.
    """
    return sorted(path for pattern in PAGES for path in DOCS.glob(pattern))


def blocks(markdown: str) -> Iterator[Block]:
    """Yield the blocks of a page.

    Args:
        markdown: Text of the page.

    Yields:
        Blocks in order.
    """
    for match in BLOCK.finditer(markdown):
        yield Block(
            language=match["language"],
            title=match["title"] or "",
            mark=match["mark"] or "",
            body=match["body"],
            end=match.end(),
        )


def run_blocks(markdown: str, folder: Path, *, slow: bool = True) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page in a folder.

    Args:
        markdown: Text of the page.
        folder: An empty folder, in which the files of the page are written.
        slow: Whether slow blocks are run.

    Yields:
        Blocks that ran, with their output.
    """
    names: dict[str, Any] = {}
    for block in blocks(markdown):
        if block.title:
            (folder / block.title).write_text(block.body, encoding="utf-8")
        elif block.language in ("console", "python") and block.mark != "not run" and (slow or block.mark != "slow"):
            with contextlib.chdir(folder):
                yield block, _run(block, names)


def _run(block: Block, names: dict[str, Any]) -> str:
    if block.language == "python":
        printed = io.StringIO()
        # Figures need no screen.
        os.environ.setdefault("MPLBACKEND", "Agg")
        with contextlib.redirect_stdout(printed):
            exec(compile(block.body, "page", "exec"), names)
        return printed.getvalue() + "".join(_figures())
    texts = [run_command(command, fails=block.mark == "fails") for command in block.commands]
    # Of several outputs each says its command.
    return texts[0] if len(texts) == 1 else "\n".join(f"$ {c}\n{text}" for c, text in zip(block.commands, texts, strict=True))


def _figures() -> Iterator[str]:
    """Yield the open figures of matplotlib as addresses with their data, and close them."""
    if "matplotlib.pyplot" in sys.modules:
        from matplotlib import pyplot

        for number in pyplot.get_fignums():
            data = io.BytesIO()
            pyplot.figure(number).savefig(data, format="png", dpi=120, bbox_inches="tight", metadata={"Software": None})
            yield f"{FIGURE}{base64.b64encode(data.getvalue()).decode()}\n"
        pyplot.close("all")


def run_command(command: str, *, fails: bool = False) -> str:
    """Run a command of steptime in this process.

    Args:
        command: The command, as a user types it.
        fails: Whether it must end with another exit code than 0.

    Returns:
        What it prints.

    Raises:
        AssertionError: It ended otherwise than expected.
    """
    words = shlex.split(command)
    if words[0] != "steptime":
        raise AssertionError(f"{command}: only commands of steptime are run")
    done = CliRunner().invoke(app_for(words[1:]), words[1:], env={"COLUMNS": str(WIDTH), "NO_COLOR": "1"})
    message = f"steptime: {done.exception}\n" if isinstance(done.exception, InputError) else ""
    if (done.exit_code != 0) is not fails:
        raise AssertionError(f"{command}: ended with {done.exit_code}: {done.output[-500:]} {done.exception!r}")
    return f"{done.stdout}{message}"


def with_outputs(markdown: str, outputs: list[tuple[Block, str]], *, fold_after: int = 40) -> str:
    """Return a page with the output of each block behind it.

    Args:
        markdown: Text of the page.
        outputs: Blocks and their outputs.
        fold_after: Lines of an output that is shown unfolded.

    Returns:
        Text of the page.
    """
    for block, output in reversed(outputs):
        lines = output.strip("\n").splitlines()
        figures = [line for line in lines if line.startswith(FIGURE)]
        lines = [line for line in lines if not line.startswith(FIGURE)]
        shown = "".join(f'\n\n<img class="drawn" alt="Figure of the code above" src="{figure}">\n' for figure in figures)
        if lines:
            text = "\n".join(f"    {line}".rstrip() for line in ["```text", *lines, "```"])
            kind = "???" if len(lines) > fold_after else "???+"
            shown = f'\n\n{kind} output "Output"\n\n{text}\n{shown}'
        markdown = markdown[: block.end] + shown + markdown[block.end :]
    return markdown


def notebook(markdown: str, outputs: list[tuple[Block, str]]) -> dict[str, Any]:
    """Return a page as a Jupyter notebook with its outputs.

    Args:
        markdown: Text of the page.
        outputs: Blocks of Python and their outputs.

    Returns:
        Notebook of format 4.5 (https://nbformat.readthedocs.io/en/latest/format_description.html).
    """
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str, **parts: Any) -> None:
        if source.strip():
            lines = source.strip("\n").splitlines(keepends=True)
            cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines, **parts})

    start = 0
    for number, (block, output) in enumerate(outputs, start=1):
        add("markdown", re.sub(r"```\w+\n.*", "", markdown[start : block.end], flags=re.DOTALL))
        texts = [line for line in output.splitlines(keepends=True) if not line.startswith(FIGURE)]
        results: list[dict[str, Any]] = [{"output_type": "stream", "name": "stdout", "text": texts}] if texts else []
        results += [
            {"output_type": "display_data", "data": {"image/png": line.removeprefix(FIGURE)}, "metadata": {}}
            for line in output.splitlines()
            if line.startswith(FIGURE)
        ]
        add("code", block.body, execution_count=number, outputs=results)
        start = block.end
    add("markdown", markdown[start:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
