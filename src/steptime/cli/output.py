"""Output of the commands: text, JSON, CSV, checks of output files, folders of files, and messages during long work."""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptime.atomic_files import write_text_atomically
from steptime.errors import DataFileError, InputError, escape_controls, install_hint, replace_controls

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from steptime.hardware.system import System
    from steptime.models.model import Model
    from steptime.result_base import Result, Tabular

# Minimum width of text, in columns, also on a narrower terminal.
NARROWEST = 30
# Words of a message that stay on one line: a command in backticks, a value in quotes, or letters without a space.
UNBROKEN = re.compile(r"(?:`[^`]*`|(?<!\w)'[^']*'|\S)+")
# Time before a message about long work, in s.
SOON = 2.0
# Functions that numba compiles by themselves: module, name, and the part of the simulator.
COMPILED_PARTS = (
    ("event_loop", "serve", "the simulator"),
    ("event_loop", "serve_pipeline", "the simulator of pipeline stages"),
    ("session_cache", "_serve_events", "the simulator of sessions"),
)
# Replacements for characters that an encoding such as ASCII lacks.
GLYPHS = {
    "█": "#", "▓": "%", "▒": "+", "▚": "=", "░": ".", "━": "=", "─": "-", "│": "|", "■": "#", "◆": "*", "●": "o", "…": "...",
    "µ": "u",
    "×": "x", "→": "->", "≤": "<=", "≥": ">=", "∞": "inf", "–": "-", "—": "-", "’": "'", "±": "+-", "╌": "-", "┄": "-",
}  # fmt: skip
# Eighths of a cell of a bar: seven by width, then seven by height.
PARTS = "▏▎▍▌▋▊▉▁▂▃▄▅▆▇"
# Header of a CSV file: plain names, after an optional byte order mark.
TABLE = re.compile(rb"(\xef\xbb\xbf)?[\w.]+(,[\w.]+)*")
# Endings of other kinds of tables, which --csv does not write.
OTHER_TABLES = (".xlsx", ".xls", ".ods", ".parquet", ".json", ".html", ".zarr", ".md")
# First bytes of PNG, SVG and PDF files.
PICTURE = (b"\x89PNG", b"<?xml", b"<svg", b"%PDF")
# Names and checksums of the files of the last call, as `sha256sum --check` reads them.
WRITTEN = "steptime.sha256"


def print_result(
    result: Tabular | Result, view: str, *, csv: str | None = None, json: bool = False, full: bool = False,
    summary: Callable[[Any], Mapping[str, Any]] | None = None, **settings: Any,
) -> None:  # fmt: skip
    """Print a result, and write it to a file if one is named.

    Args:
        result: the result.
        view: module and function of the text in `cli/views`; JSON does not import it.
        csv: file for the table.
        json: whether to print JSON instead of text.
        full: whether to print all of the text.
        summary: returns the answers of the question from the result, which JSON has as well.
        settings: further arguments of the view.
    """
    if csv is not None:
        write_csv(csv, result)  # type: ignore[arg-type]
    if json:
        print_json(result if summary is None else result.to_dict(summary=summary(result)))
        return
    # Views import rich, numpy and plotille, which JSON does not need.
    module, _, name = view.partition(".")
    draw = getattr(import_module(f"steptime.cli.views.{module}"), name)
    console = make_console()
    # A view takes the width and `full` only where its text depends on them.
    offered = {"width": console.width, "full": full}
    answer = draw(result, **settings, **{name: value for name, value in offered.items() if name in signature(draw).parameters})
    answer.full = answer.full or full
    console.print(answer)


# --- the stream ---------------------------------------------------------------------------------------------------------


def _in_few_letters(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the encoding of the stream lacks: bars by #, curves by *, other characters by ?."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    replacement = ""
    for letter in error.object[error.start : error.end]:
        # Curves are drawn with Braille dots.
        if "\u2800" <= letter <= "\u28ff":
            replacement += " " if letter == "\u2800" else "*"
        elif letter in PARTS:
            replacement += "#" if PARTS.index(letter) % 7 >= 3 else "."
        else:
            replacement += GLYPHS.get(letter, "?")
    return replacement, error.end


def prepare() -> None:
    """Make standard output accept any text, and set a width if the terminal has none.

    Raises:
        InputError: Standard output is closed.
    """
    if sys.stdout is None:
        raise InputError("cannot print: standard output is closed")
    codecs.register_error("steptime", _in_few_letters)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="steptime")
    # rich and typer read the width from the environment.
    os.environ["COLUMNS"] = str(max(NARROWEST, shutil.get_terminal_size((80, 24)).columns))


def unwritten() -> str:
    """Flush standard output, and close it if it accepts no more text.

    Returns:
        The error message; empty if all is written, or if the reader closed the pipe.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        # A closed pipe, as of `| head`, is the reader's choice and no error.
        drop()
        return "" if isinstance(error, BrokenPipeError) else f"cannot print: {error.strerror}"
    return ""


def drop() -> None:
    """Discard the rest of standard output, so that the program ends without an error."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        # A stream in memory has no file descriptor.
        return


def make_console() -> Console:
    """Return the console for text on standard output.

    Returns:
        A console with the width of the terminal.
    """
    from steptime.cli.views.widgets import SafeConsole

    width = max(NARROWEST, shutil.get_terminal_size((80, 24)).columns)
    return SafeConsole(highlight=False, width=width, height=24)


def show(*parts: RenderableType, console: Console | None = None) -> None:
    """Print texts, tables and charts, one below the other.

    Args:
        *parts: Texts, tables and charts.
        console: Where to print; None makes a console for standard output.
    """
    (console or make_console()).print(*parts, sep="\n")


def say_release(model: Model) -> None:
    """Print on standard error which entry a model stands for, where its name is that of another release.

    Args:
        model: The model.
    """
    from steptime.models.release_names import SHAPE_NOTE

    for note in model.notes:
        if SHAPE_NOTE in note:
            say(f"Note: {note}")


def say_system(name: str, system: System) -> None:
    """Print on standard error which system a name stands for, where it is a name of a chip or of a similar system.

    Args:
        name: The name on the command line.
        system: The system.
    """
    from steptime.catalog.data_files import folded

    if folded(name) != folded(system.name) and not Path(name).exists():
        say(f"Note: {name} stands for {system.name} with {system.chips:,} chips; --chips sets another number")


def say(words: str) -> None:
    """Print a message on standard error.

    Args:
        words: The message.
    """
    # Standard output carries only the answer, so that it can be piped.
    if sys.stderr is not None:
        with suppress(OSError):
            text = replace_controls(words)
            sys.stderr.write((wrap_for_terminal(text) if sys.stderr.isatty() else text) + "\n")
            sys.stderr.flush()


def wrap_for_terminal(words: str, width: int | None = None) -> str:
    """Break a message into lines at spaces, never inside a word, in quotes or in backticks, which people copy.

    Args:
        words: The message.
        width: Columns; None for those of the terminal.

    Returns:
        The message with line breaks.

    >>> print(wrap_for_terminal("steptime: use `plan MODEL SYSTEM`, or '/a path' instead", 30))
    steptime: use
    `plan MODEL SYSTEM`, or
    '/a path' instead
    """
    columns = max(NARROWEST, shutil.get_terminal_size((80, 24)).columns) if width is None else width
    lines = list[str]()
    for paragraph in words.split("\n"):
        line = ""
        for word in UNBROKEN.findall(paragraph):
            if line and len(line) + 1 + len(word) >= columns:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        lines.append(line)
    return "\n".join(lines)


def write_out(text: str) -> None:
    """Print plain text with control characters replaced.

    Args:
        text: The text.
    """
    sys.stdout.write(replace_controls(text))


# --- JSON and CSV -------------------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print a value as JSON.

    Args:
        value: Dataclass, dictionary, list or scalar.
    """
    from steptime.result_base import to_json

    text = escape_controls(to_json(value))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # The encoding lacks a character: \u escapes are the same JSON in ASCII.
        text = json.dumps(json.loads(text), indent=2)
    sys.stdout.write(text + "\n")


def write_csv(path: str, table: Tabular) -> None:
    """Write a table as CSV in SI units, and report it on standard error.

    Args:
        path: File to write.
        table: A result with `to_csv`.
    """
    text = table.to_csv()
    rows = text.count("\n") - 1
    with reported(path, f"{rows:,} row{'' if rows == 1 else 's'}"):
        write_text_atomically(path, text)


# --- files --------------------------------------------------------------------------------------------------------------


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str]) -> None:
    """Check output files before any work.

    Args:
        outputs: Files by the option that names them; None for options that are not given.
        inputs: Names that may be input files or folders.

    Raises:
        InputError: An option has no file name.
        DataFileError: A file cannot be written, is an input or another output, or has foreign content.
    """
    names = list(inputs)
    input_paths = {Path(name).resolve() for name in names if os.path.isfile(name)}
    for folder in filter(os.path.isdir, names):
        input_paths |= {path.resolve() for path in Path(folder).iterdir() if path.suffix in (".json", ".jsonl", ".csv")}
    options_by_path: dict[Path, str] = {}
    for name, text in outputs.items():
        if text is None:
            continue
        if not text.strip() or "\0" in text:
            raise InputError(f"{name} needs the name of a file")
        if os.path.isdir(text) and not (text.endswith(".zarr") and os.path.exists(os.path.join(text, ".zgroup"))):
            raise DataFileError(text, f"is a folder; {name} needs a file")

        # Links and relative paths may name an input in another way.
        place = Path(os.path.realpath(text))
        if not os.path.isdir(place.parent):
            raise DataFileError(text, "cannot be written: its folder does not exist")
        with writing(text):
            _try(place)
        if place in input_paths:
            raise DataFileError(text, f"is an input of this command; give {name} another file")
        if place in options_by_path:
            raise DataFileError(text, f"is also the file of {options_by_path[place]}; give {name} another file")

        # A mistyped name must not destroy a file of the user.
        if _foreign(name, place):
            raise DataFileError(text, f"has content that {name} does not write; give another file, or remove it")
        if name == "--csv" and Path(text).suffix.casefold() in OTHER_TABLES:
            raise InputError(f"--csv writes CSV, not {Path(text).suffix}; name the file {Path(text).stem}.csv")
        options_by_path[place] = name


def _foreign(name: str, place: Path) -> bool:
    """Return whether an existing file is not of the kind that an option writes: a table, a picture or JSON."""
    if not place.is_file():
        return False
    try:
        with open(place, "rb") as file:
            begins = file.read(4096)
    except OSError:
        # `writing` reports files that cannot be opened.
        return False
    first_line = begins.partition(b"\n")[0]
    if not begins.strip():
        return False
    if name == "--report":
        return b"version" not in begins[:64]
    if name == "--chrome":
        return begins.lstrip()[:1] not in (b"{", b"[")
    if name == "--plot":
        return not begins.startswith(PICTURE)
    # Several kinds of files are results of a sweep.
    if name.startswith("--out"):
        marks = {".json": b"steptime.sweep/", ".csv": b","}
        return marks.get(place.suffix.casefold(), b"") not in (begins if place.suffix.casefold() == ".json" else first_line)
    return not begins.startswith(b"PAR1") and not TABLE.fullmatch(first_line.strip())


def _try(place: Path) -> None:
    """Open a file for writing without changing it, and remove it if it is new; raise OSError if that fails."""
    existed = os.path.exists(place)
    # Devices and pipes need no check.
    if existed and not os.path.isfile(place):
        return

    # Appending leaves the content of an old file unchanged.
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    if not existed:
        place.unlink()
    elif not os.access(place.parent, os.W_OK | os.X_OK):
        # The new file is written to the same folder, then renamed.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_picture(path: str | None) -> None:
    """Check, before any work, that a picture can be drawn.

    Args:
        path: file of --plot; None without one.

    Raises:
        InputError: if its ending is not one of a picture, or matplotlib is missing.
    """
    from importlib.util import find_spec

    from steptime.picture_files import PICTURES

    if path is None:
        return
    if not path.casefold().endswith(PICTURES):
        raise InputError(f"--plot writes a picture, {', '.join(PICTURES)}, not {path or 'a file without a name'}")
    if find_spec("matplotlib") is None:
        raise InputError(f"a picture needs matplotlib: {install_hint('plot')}")


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn an OSError of the block into a DataFileError.

    Args:
        path: File that the block writes.

    Yields:
        Nothing.

    Raises:
        DataFileError: The file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror}") from None


@contextmanager
def reported(path: str, content: str) -> Iterator[None]:
    """Report the file that the block writes on standard error.

    Args:
        path: File that the block writes.
        content: What it contains.

    Yields:
        Nothing.

    Raises:
        DataFileError: The file cannot be written.
    """
    existed = os.path.exists(path)
    with writing(path):
        yield
    wrote(path, content, replaced=existed)


def wrote(path: str, content: str, *, replaced: bool = False) -> None:
    """Report a written file on standard error.

    Args:
        path: The file.
        content: What it contains.
        replaced: Whether it replaced an older file.
    """
    say(f"Wrote {path}: {content}" + (", in place of an older file." if replaced else "."))


# --- waiting ------------------------------------------------------------------------------------------------------------


@contextmanager
def patience(words: str | Callable[[], str], seconds: float | None = None, *, then: str = "") -> Iterator[None]:
    """Print a message on standard error if the block takes long.

    Args:
        words: The message, or a function that returns it when it is due; "" while none is needed.
        seconds: Time before the message, in s; None is `SOON`.
        then: Message once a printed message is no longer needed, with the seconds since the start for {}; then a last line
            gives the time of the whole block. "" prints neither.

    Yields:
        Nothing.
    """
    seconds = SOON if seconds is None else seconds
    begin, messages = time.monotonic(), list[str]()

    def speak(*_: Any) -> None:
        now = words if isinstance(words, str) else words()
        message = now or (then.format(f"{time.monotonic() - begin:.0f} s") if len(messages) == 1 else "")
        if message and message not in messages:
            messages.append(message)
            say(message)

    def finish() -> None:
        if then and messages:
            say(f"answer after {time.monotonic() - begin:.0f} s")

    # Signals work only in the main thread, and not on Windows.
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        timer = threading.Timer(seconds, speak)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        finish()
        return

    # A signal needs no second thread: a process with threads cannot be forked safely.
    before = signal.signal(signal.SIGALRM, speak)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds if then else 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    finish()


def compiled_part() -> str:
    """Say which part of the simulator numba compiles at the moment; "" if none, as while it loads compiled code from disk."""
    # The alarm that asks may come while a module is imported: then it has no function yet.
    for module, name, part in COMPILED_PARTS:
        function: Any = getattr(sys.modules.get(f"steptime.simulation.{module}"), name, None)
        if hasattr(function, "stats") and function.stats.cache_misses and not function.signatures:
            return f"compiling {part}, once (20 to 60 seconds)"
    return ""


@contextmanager
def counting_plans(words: str) -> Iterator[None]:
    """Print a message on standard error if the block takes long, and on a terminal the number of finished plans.

    Args:
        words: The message.

    Yields:
        Nothing.
    """
    from steptime.processes import listening

    begin, bars = time.monotonic(), list[Any]()
    is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def count(done: int, total: int) -> None:
        if bars and bars[-1].tasks[0].total != total:
            bars.pop().stop()
        if not bars and is_terminal and done < total and time.monotonic() - begin > SOON:
            # Without refresh no thread runs: later plans fork.
            bars.append(progress_bar(total, "plans", auto_refresh=False))
        for bar in bars:
            bar.update(bar.task_ids[0], completed=done, refresh=True)

    try:
        with patience(words), listening(count):
            yield
    finally:
        for bar in bars:
            bar.stop()


def progress_bar(total: int, noun: str, *, auto_refresh: bool = True) -> Any:
    """Start a bar on standard error with counter, remaining and elapsed time.

    Args:
        total: Number of all items.
        noun: Items in words.
        auto_refresh: Whether a thread moves the clock between two updates.

    Returns:
        The bar of rich, with one task.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(), MofNCompleteColumn(separator=" of "), TextColumn(f"{noun}, left"), TimeRemainingColumn(),
        TextColumn("after"), TimeElapsedColumn(),
    )  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=auto_refresh)
    bar.start()
    bar.add_task(noun, total=total)
    return bar


# --- folders -----------------------------------------------------------------------------------------------------------


def check_folder(name: str, text: str | None) -> None:
    """Check, before any work, that a folder can be written.

    Args:
        name: option that names the folder.
        text: the folder; it may be missing if its parent exists.

    Raises:
        DataFileError: if it cannot be written.
    """
    if text is None:
        return
    if not text.strip() or "\0" in text:
        raise InputError(f"{name} needs the name of a folder")
    if os.path.exists(text) and not os.path.isdir(text):
        raise DataFileError(text, f"is a file; {name} needs a folder")
    above = text if os.path.isdir(text) else os.path.dirname(os.path.realpath(text))
    if not os.path.isdir(above):
        raise DataFileError(text, "cannot be written: the folder that it would lie in does not exist")
    if not os.access(above, os.W_OK | os.X_OK):
        raise DataFileError(text, "cannot be written: Permission denied")


def write_folder(folder: str, files: Mapping[str, str], *, force: bool) -> None:
    """Write files into a folder, each whole or not at all, and print that.

    Symbolic links in the folder are never followed: a link in a file's place is a conflict, one to another folder an error.

    Args:
        folder: the folder.
        files: texts by name; names that end in .sh become executable.
        force: whether to replace other texts of those names, and to remove unchanged files of an earlier call.

    Raises:
        DataFileError: if a file would be replaced or removed without `force`.
    """
    top = Path(folder)
    files = {name: replace_controls(text) for name, text in files.items()}
    places = {top / name: text for name, text in files.items()}
    with writing(folder):
        _check_inside(top, places)
        old = {place: checksum for place, checksum in _written(top).items() if place not in places and place.is_file()}
        obsolete_paths = [place for place, checksum in old.items() if _sum(place.read_bytes()) == checksum]
        conflicts = [place for place, text in places.items() if os.path.lexists(place) and _other_than(place, text)]
        if conflicts and not force:
            raise DataFileError(str(conflicts[0]), "is there already, with another text; give --force to write over it")
        if obsolete_paths and not force:
            raise DataFileError(
                str(obsolete_paths[0]), "is of an earlier plan, and no part of this one; give --force to remove it"
            )
        for place in obsolete_paths:
            place.unlink()
        _drop_empty(top, obsolete_paths)
        for place, text in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(place, text, executable=place.suffix == ".sh", follow_symlinks=False)
        sums = "".join(f"{_sum(text.encode())}  {name}\n" for name, text in files.items())
        write_text_atomically(top / WRITTEN, sums, follow_symlinks=False)
    changed = [place for place in old if place not in obsolete_paths]
    wrote(
        folder,
        f"{len(files):,} file{'s' if len(files) > 1 else ''}{_cleanup_words(obsolete_paths, changed)}",
        replaced=bool(conflicts),
    )


def _check_inside(top: Path, places: Iterable[Path]) -> None:
    """Raise DataFileError where a symbolic link leads a folder of the files elsewhere."""
    for folder in {place.parent for place in places} - {top}:
        if folder.is_symlink():
            raise DataFileError(str(folder), "is a symbolic link; remove it, or give another --launch-dir")


def _cleanup_words(removed_paths: list[Path], changed: list[Path]) -> str:
    """Say what became of files of an earlier plan."""
    words = f", and removed {len(removed_paths):,} of an earlier plan" if removed_paths else ""
    return words + (f"; {', '.join(map(str, changed))} of an earlier plan was changed by hand, and stays" if changed else "")


def _written(top: Path) -> dict[Path, str]:
    """Return the sums of the files that an earlier call wrote; lines that name nothing inside the folder are passed over."""
    try:
        lines = (top / WRITTEN).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return {}
    checksums = {}
    for line in lines:
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if (
            match
            and os.path.relpath(os.path.realpath(top / match[2]), os.path.realpath(top)) == match[2]
            and match[2][:2] != ".."
        ):
            checksums[top / match[2]] = match[1]
    return checksums


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _drop_empty(top: Path, removed: Iterable[Path]) -> None:
    """Remove the folders below the top that removed files leave empty."""
    for folder in {place.parent for place in removed} - {top}:
        if not any(folder.iterdir()):
            folder.rmdir()


def _other_than(place: Path, text: str) -> bool:
    return place.is_symlink() or not place.is_file() or place.read_bytes() != text.encode()
