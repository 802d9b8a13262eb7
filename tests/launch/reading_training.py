"""Reads the commands that start a training run back: what a shell makes of them, and what layout they say.

Written from the documents and argument parsers of the stacks, and apart from the code that writes the commands.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

from steptime.launch.shell_script import Command, spoken

GOLDEN = Path(__file__).parents[1] / "golden" / "training_flags"
LAUNCHER = ("--standalone", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--nproc-per-node", "-m")


def golden(package: str) -> dict[str, Any]:
    """Return what was extracted from a package."""
    return json.loads((GOLDEN / f"{package}.json").read_text())


def known(package: str) -> tuple[set[str], dict[str, set[str]]]:
    """Return the flags or keys of a package, and the values that some may have."""
    told = golden(package)
    counted = {flag: set(values.split()) for flag, values in told["counted"].items()}
    return set(told["free"].split()) | set(counted), counted


def shell_words(command: Command) -> tuple[dict[str, str], list[str]]:
    """Return the environment and the words of a command as a shell takes its lines, here-documents left out."""
    lines, end = [], ""
    for line in spoken(command):
        if line.startswith("cat > "):
            end = line.split("'")[1]
        elif end:
            end = "" if line == end else end
        else:
            lines.append(line)
    words = shlex.split(" ".join(line.removesuffix("\\") for line in lines))
    environment = {}
    while re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    return environment, words


def flags(words: list[str]) -> tuple[dict[str, list[str]], dict[str, list[str]], str]:
    """Return the flags of torchrun, those of the program, and the program itself."""
    assert words[0] == "torchrun"
    place = next(n for n, word in enumerate(words) if word.endswith(".py") or (word == "-m" and n))
    end = place + 1 if words[place].endswith(".py") else place + 2
    return _flags(words[1:place]), _flags(words[end:]), words[end - 1]


def _flags(words: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            assert word not in found, f"{word} stands twice"
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def keys(words: list[str]) -> dict[str, str]:
    """Return the keys of a MaxText command."""
    found = dict(word.split("=", 1) for word in words if "=" in word)
    assert len(found) == sum("=" in word for word in words)
    return found


def stages_of(text: str) -> list[str]:
    """Return the letters of each chunk of a Megatron pipeline layout, as its `parse_str_to_list` unrolls them."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def assignments(text: str) -> dict[str, str]:
    """Return what a file of Python sets, by dotted name; it must be Python."""
    return {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign)
    }


def imported(text: str) -> dict[str, list[str]]:
    """Return what a file of Python imports from each module."""
    return {
        node.module or "": [alias.name for alias in node.names]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
    }
