"""How answers leave the program: text, JSON, CSV, files that can be written, and words while one waits."""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from steptime.atomic_files import write_text_atomically
from steptime.errors import DataFileError, InputError
from steptime.safe_text import escape_controls, replace_controls

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from steptime.result_base import Tabular

NARROWEST = 30  # columns that text is set in, however narrow the terminal says it is
SOON = 2.0  # s that work takes before a word is said about it
Value = TypeVar("Value")
GLYPHS = {
    "█": "#", "▓": "%", "▒": "+", "░": ".", "━": "=", "─": "-", "│": "|", "■": "#", "◆": "*", "●": "o", "…": "...", "µ": "u",
    "×": "x", "→": "->", "≤": "<=", "≥": ">=", "∞": "inf", "–": "-", "—": "-", "’": "'", "±": "+-", "╌": "-", "┄": "-",
}  # fmt: skip
PARTS = "▏▎▍▌▋▊▉▁▂▃▄▅▆▇"  # of a cell of a bar


# --- the stream ---------------------------------------------------------------------------------------------------------


def _in_few_letters(error: UnicodeError) -> tuple[str, int]:
    """Replace what a stream of a small alphabet cannot hold: bars by #, curves by stars, other letters by a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    replacement = ""
    for letter in error.object[error.start : error.end]:
        if "\u2800" <= letter <= "\u28ff":  # Braille dots, which curves are drawn with
            replacement += " " if letter == "\u2800" else "*"
        elif letter in PARTS:
            replacement += "#" if PARTS.index(letter) % 7 >= 3 else "."
        else:
            replacement += GLYPHS.get(letter, "?")
    return replacement, error.end


def prepare() -> None:
    """Make standard output take any text, whatever its alphabet, and set a width where the terminal tells none.

    Raises InputError where there is no standard output.
    """
    if sys.stdout is None:
        raise InputError("there is nowhere to print: standard output is closed")
    codecs.register_error("steptime", _in_few_letters)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="steptime")
    os.environ["COLUMNS"] = str(_columns())


def _columns() -> int:
    return max(NARROWEST, shutil.get_terminal_size((80, 24)).columns)


def unwritten() -> str:
    """Flush standard output; return what is wrong where it takes no more, and let it go then."""
    try:
        sys.stdout.flush()
    except OSError as error:
        drop()
        return "" if isinstance(error, BrokenPipeError) else f"cannot print: {error.strerror}"
    return ""


def drop() -> None:
    """Send what is left for standard output nowhere, so that the end of the program does not trip over it."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # a stream in memory has no number
        return


def make_console() -> Console:
    """Return where text is printed."""
    from steptime.cli.views.widgets import SafeConsole

    return SafeConsole(highlight=False, width=_columns(), height=24)


def show(*parts: RenderableType, console: Console | None = None) -> None:
    """Print texts, tables and pictures, one below the other."""
    (console or make_console()).print(*parts, sep="\n")


def say(words: str) -> None:
    """Say something about the work, beside the answer."""
    if sys.stderr is not None:
        sys.stderr.write(replace_controls(words) + "\n")


def write_out(text: str) -> None:
    """Print plain text as it is, but for control characters."""
    sys.stdout.write(replace_controls(text))


# --- JSON and CSV -------------------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    from steptime.result_base import to_json

    text = escape_controls(to_json(value))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=2)
    sys.stdout.write(text + "\n")


def problem_json(error: InputError) -> dict[str, Any]:
    """Return an error as what JSON says of it."""
    from steptime.result_base import problem

    return problem(error)


def write_csv(path: str, table: Tabular) -> None:
    """Write a table as CSV in SI units, and say so."""
    text = table.to_csv()
    existed = os.path.exists(path)
    with writing(path):
        write_text_atomically(path, text)
    rows = text.count("\n") - 1
    wrote(path, f"{rows:,} row{'' if rows == 1 else 's'}", replaced=existed)


# --- files --------------------------------------------------------------------------------------------------------------


TABLE = re.compile(rb"(\xef\xbb\xbf)?[\w.]+(,[\w.]+)*")  # the header of a CSV file: plain names


PICTURE = (b"\x89PNG", b"<?xml", b"<svg", b"%PDF")  # how pictures begin


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str]) -> None:
    """Raise DataFileError, before any work, for an output that cannot be written, or is an input or another output.

    outputs: files by the option that names them.
    """
    input_paths = set(_inputs(inputs))
    options_by_path: dict[Path, str] = {}
    for name, text in outputs.items():
        if text is None:
            continue
        if not text.strip() or "\0" in text:
            raise InputError(f"{name} needs the name of a file")
        if os.path.isdir(text):
            raise DataFileError(text, f"is a folder; {name} needs a file")
        place = Path(os.path.realpath(text))
        if not os.path.isdir(place.parent):
            raise DataFileError(text, "cannot be written: its folder does not exist")
        with writing(text):
            _try(place)
        if place in input_paths:
            raise DataFileError(text, f"is what this command reads; give {name} another name")
        if place in options_by_path:
            raise DataFileError(text, f"is written by {options_by_path[place]} already; give {name} another name")
        if _foreign(name, place):
            raise DataFileError(text, f"holds something else than {name} writes; give another name, or remove it")
        options_by_path[place] = name


def _foreign(name: str, place: Path) -> bool:
    """Whether a file is there that an option could not have written: no table, for --plot no picture, for --chrome no JSON."""
    if not place.is_file():
        return False
    try:
        with open(place, "rb") as file:
            begins = file.readline(4096)
    except OSError:  # told where it cannot be written
        return False
    if not begins.strip():
        return False
    if name == "--chrome":
        return begins.lstrip()[:1] not in (b"{", b"[")
    if name == "--plot":
        return not begins.startswith(PICTURE)
    return name != "--out" and not begins.startswith(b"PAR1") and not TABLE.fullmatch(begins.strip())


def _try(place: Path) -> None:
    """Open a file for writing and leave it, or its absence, as it was; raise OSError where that cannot be done."""
    existed = os.path.exists(place)
    if existed and not os.path.isfile(place):
        return  # a device or a pipe takes what comes
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    if not existed:
        place.unlink()
    elif not os.access(place.parent, os.W_OK | os.X_OK):
        # the new file is written beside the old one
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _inputs(names: Iterable[str]) -> Iterator[Path]:
    """Yield the files that names stand for, those of folders among them; a name of the catalogue is none."""
    for name in names:
        if os.path.isfile(name):
            yield Path(name).resolve()
        elif os.path.isdir(name):
            yield from (path.resolve() for path in Path(name).iterdir() if path.suffix in (".json", ".jsonl", ".csv"))


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn what goes wrong while a file is written into DataFileError."""
    try:
        yield
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror}") from None


def wrote(path: str, content: str, *, replaced: bool = False) -> None:
    """Say what was written where, and that it took the place of an older file."""
    say(f"Wrote {path}: {content}" + (", in place of an older file." if replaced else "."))


# --- waiting ------------------------------------------------------------------------------------------------------------


@contextmanager
def patience(words: str, seconds: float | None = None, *, unless: Any = None) -> Iterator[None]:
    """Say `words` on standard error once the work inside takes longer than some `seconds`, `unless` there is no need then."""
    seconds = SOON if seconds is None else seconds

    def speak(*_: Any) -> None:
        if unless is None or not unless():
            say(words)

    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        timer = threading.Timer(seconds, speak)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        return
    before = signal.signal(signal.SIGALRM, speak)  # no second thread: a process with threads is not forked
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
