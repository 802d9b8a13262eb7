"""Picture files: suffixes, the common style, and atomic writes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from steptime.atomic_files import temporary_file
from steptime.errors import DataFileError, InputError, install_hint

PICTURES: Final = (".svg", ".png", ".pdf")
# Okabe and Ito's colours, which colour-blind readers can distinguish (https://jfly.uni-koeln.de/color/).
# Their yellow is too light for a line, so that it is replaced.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
BLUE, ORANGE, GREEN, GREY = *COLOURS[:3], "#888888"
STYLE: Final[Any] = {
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "steptime",
}


def check_picture(path: str) -> None:
    """Raise InputError unless `path` has a picture suffix and matplotlib is installed.

    Args:
        path: File to write later.

    Raises:
        InputError: The suffix is not one of a picture, or matplotlib is missing.
    """
    if Path(path).suffix.casefold() not in PICTURES:
        raise InputError(f"{path}: not a picture file; use a name that ends in {', '.join(PICTURES)}")
    if find_spec("matplotlib") is None:
        raise InputError(f"{path}: pictures need matplotlib: {install_hint('plot')}")


def save_picture(path: str, make_figure: Callable[[], Any]) -> None:
    """Write a figure to a file, in the format of its suffix.

    Args:
        path: File to write; an existing file is replaced when the new one is complete.
        make_figure: Returns a matplotlib figure; called after the check of the suffix.

    Raises:
        InputError: The suffix is not one of a picture, or matplotlib is missing. DataFileError: The file cannot be written.
    """
    check_picture(path)
    figure = make_figure()
    replace_file(path, lambda place: figure.savefig(place, dpi=160))


def replace_file(path: str, write: Callable[[str], None]) -> None:
    """Write a temporary file in the same folder, then move it to its place.

    Args:
        path: File to write or replace.
        write: Writes the whole file to the path in its argument.

    Raises:
        DataFileError: The file cannot be written.
    """
    try:
        with temporary_file(path) as place:
            write(str(place))
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror or error}") from None
