"""A command as data and as lines of a shell script; texts from outside are escaped for shell, comments and Markdown.

Flags, notes and reasons against a layout are rows of a condition and texts, see `select_texts`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# Line width of a command in characters, if its words allow it.
WIDTH: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: words, environment, comments, and the files that it reads.

    A flag and its value are one word. `variables` names shell variables whose values replace `@NAME@` in the files.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()


def select_texts(*rows: tuple[object, *tuple[str, ...]]) -> list[str]:
    """Return the texts of the rows whose condition is true.

    Args:
        rows: A condition, and the flags, notes or reasons that it decides on.

    Returns:
        Texts in the order of the rows.

    >>> select_texts((1 > 2, "--first"), ([8], "--second", "--third"))
    ['--second', '--third']
    """
    return [text for condition, *texts in rows if condition for text in texts]


def escape_unprintable(text: str) -> str:
    r"""Return a text as one line of printable characters.

    Args:
        text: Text from outside.

    Returns:
        The text, with other characters as Python escapes.

    >>> escape_unprintable("a b\nrm\x1b"), escape_unprintable("modèle")
    ('a b\\nrm\\x1b', 'modèle')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def escape_markdown(text: str) -> str:
    r"""Return a text as one line that Markdown shows unchanged.

    Args:
        text: Text from outside.

    Returns:
        The text without active links, code or HTML.

    >>> escape_markdown("org/Model-7B"), escape_markdown("<b>`x`</b>")
    ('org/Model-7B', '\\<b\\>\\`x\\`\\</b\\>')
    """
    return re.sub(r"([\\`*_\[\]<>&|~!#])", r"\\\1", escape_unprintable(text))


def wrapped(words: tuple[str, ...]) -> list[str]:
    """Return words as lines that end in a backslash.

    Args:
        words: Words of a command.

    Returns:
        Lines of at most `WIDTH` characters, if the words allow it.
    """
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < WIDTH:
            lines[-1] += " " + word
        else:
            lines[-1] += " \\"
            lines.append("    " + word)
    return lines


def comments(notes: Iterable[str]) -> list[str]:
    """Return notes as comment lines.

    Args:
        notes: Notes of any text.

    Returns:
        One line per note.
    """
    return [f"# {escape_unprintable(note)}" for note in notes]


def files_written(command: Command) -> list[str]:
    """Return the lines that write a command's files from the shell.

    The shell expands nothing in the texts: the end word of each here-document is quoted, and does not occur in its text.

    Args:
        command: A command with files.

    Returns:
        Lines of a script.
    """
    lines = []
    for name, text in command.files.items():
        end = _heredoc_end(text)
        # Addresses are known only on the host, so that sed fills them in.
        filled = [variable for variable in command.variables if f"@{variable}@" in text]
        program = wrapped(("sed", *(f'-e "s|@{variable}@|${variable}|g"' for variable in filled))) if filled else ["cat"]
        program[-1] += f" > {shlex.quote(name)} <<'{end}'"
        lines += [*program, *text.removesuffix("\n").split("\n"), end]
    return lines


def _heredoc_end(text: str) -> str:
    """Return an end word of a here-document that its text does not contain.

    The same text gives the same word.
    """
    end = salt = ""
    while not end or end in text:
        end = "END_" + hashlib.sha256((salt + text).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        salt += "+"
    return end


def spoken(command: Command) -> list[str]:
    """Return a command as lines to paste.

    Args:
        command: The command.

    Returns:
        Its files first, then the environment and the words.
    """
    environment = tuple(f"{name}={value}" for name, value in command.environment.items())
    return files_written(command) + wrapped((*environment, *command.words))


def json_file(value: Mapping[str, Any]) -> str:
    """Return a table as a JSON file, which YAML parsers read as well.

    Args:
        value: The table.

    Returns:
        Text of the file.
    """
    return json.dumps(value, indent=2) + "\n"
