"""A command as data, and as lines of a shell script."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")  # that YAML reads as something else than texts
WIDTH = 90  # letters that lines of a command stay within, where a word allows it


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: `words` (a flag and its value are one), the environment it needs, comments, and files it reads by name."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def wrapped(words: tuple[str, ...]) -> list[str]:
    """Return words as lines that a backslash joins."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < WIDTH:
            lines[-1] += " " + word
        else:
            lines[-1] += " \\"
            lines.append("    " + word)
    return lines


def comments(notes: tuple[str, ...]) -> list[str]:
    """Return notes as comment lines."""
    return [f"# {note}" for note in notes]


def files_written(files: Mapping[str, str]) -> list[str]:
    """Return the lines that write files from the shell, which fills in its variables where a file has any."""
    lines = []
    for name, text in files.items():
        end = "END" if "$" in text else "'END'"
        lines += [f"cat > {name} <<{end}", *text.rstrip("\n").split("\n"), "END"]
    return lines


def spoken(command: Command) -> list[str]:
    """Return a command as lines to paste: files first, then the environment before the words."""
    environment = tuple(f"{name}={value}" for name, value in command.environment.items())
    return files_written(command.files) + wrapped((*environment, *command.words))


def yaml(value: object, indent: int = 0) -> list[str]:
    """Return tables, lists, texts, numbers and truth values as lines of YAML, whose quoted texts are those of JSON."""
    pad = " " * indent
    if isinstance(value, Mapping):
        lines = []
        for key, inner in value.items():
            nested = isinstance(inner, Mapping | list | tuple) and bool(inner)
            lines += [f"{pad}{key}:", *yaml(inner, indent + 2)] if nested else [f"{pad}{key}: {scalar(inner)}"]
        return lines
    lines = []
    for item in value if isinstance(value, list | tuple) else ():
        first, *rest = yaml(item, indent + 2) if isinstance(item, Mapping) else [f"{pad}  {scalar(item)}"]
        lines += [f"{pad}- {first[indent + 2 :]}", *rest]
    return lines


def scalar(value: object) -> str:
    """Return a text, a number or a truth value in YAML: a text is quoted where it might be read as something else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", value) and value.lower() not in WORDS else json.dumps(value)
    return "[]" if isinstance(value, list | tuple) else "{}" if isinstance(value, Mapping) else str(value)
