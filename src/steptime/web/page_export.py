"""Export the page as static files, with answers on a grid of inputs per board.

Shell and Python snippets that reproduce a board's answer.

Shared texts of decode-step boards: layout options, Python call, sum of a step.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from steptime.errors import DataFileError, InputError
from steptime.physics.layout import Layout
from steptime.svg import PART_NAMES, PARTS
from steptime.units import show
from steptime.web.app import STATIC, start_bytes
from steptime.web.board import Board, Shared, described, is_config, is_toml, load_boards

# Points of the first slider, of the second slider at each point of the first, of each other slider, and of slow boards.
FIRST_POINTS, SECOND_POINTS, OTHER_POINTS, SLOW_POINTS = 13, 5, 5, 7


def export_to(folder: str) -> int:
    """Write the static copy of the page.

    Args:
        folder: New or empty folder.

    Returns:
        Number of answers in the copy.

    Raises:
        DataFileError: The folder is not empty, or cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise DataFileError(folder, "is not empty; name a new folder")
        shutil.copytree(STATIC, place / "static")
        page = (STATIC / "index.html").read_text(encoding="utf-8")
        # The copy has no server, so the page reads files and the link to the HTTP API is removed.
        page = page.replace('<html lang="en">', '<html lang="en" data-copy="yes">').replace(
            '<a href="docs">HTTP API</a> · ', ""
        )
        (place / "index.html").write_text(page, encoding="utf-8")
        (place / "data").mkdir()
        (place / "data" / "start.json").write_bytes(start_bytes())
        return sum(_board(board, place / "data" / board.name) for board in load_boards().values())
    except OSError as error:
        raise DataFileError(folder, f"cannot be written: {error.strerror or error}") from None


def _board(board: Board, place: Path) -> int:
    place.mkdir()
    bodies: list[dict[str, Any]] = []
    for body in grid(board):
        try:
            answer = board.answer(board.inputs(**body)).to_dict()
        except (InputError, ValidationError):
            # Some corners of the grid have no answer; the page then uses the nearest answer.
            continue
        (place / f"{len(bodies)}.json").write_text(json.dumps(answer, allow_nan=False, separators=(",", ":")), encoding="utf-8")
        bodies.append(body)
    (place / "index.json").write_text(json.dumps(bodies, separators=(",", ":")), encoding="utf-8")
    return len(bodies)


def grid(board: Board) -> Iterator[dict[str, Any]]:
    """Yield the inputs of the answers in a static copy of a board.

    They are the defaults, the presets, and values along each input.

    Args:
        board: The board.

    Yields:
        Inputs of one answer.

    >>> from steptime.web.board import load_boards
    >>> bodies = list(grid(load_boards()["step"]))
    >>> bodies[0]["batch"], len(bodies) > 60, len({body["context"] for body in bodies}) >= 5
    (256, True, True)
    """
    inputs = described(board.inputs)
    base = {name: field.default for name, field in Shared.model_fields.items() if name in board.bar}
    base |= {control["name"]: control["default"] for control in inputs}
    keys: set[str] = set()

    def fresh(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if (key := json.dumps(body, sort_keys=True)) not in keys:
            keys.add(key)
            yield body

    yield from fresh(base)
    for preset in (board.spoken, board.today):
        yield from fresh(base | {name: value for name, value in preset.items() if name in base})
    sliders = [control for control in inputs if control["kind"] == "slider"]
    main_sliders = [control for control in sliders if not control["more"]]
    counts = (SLOW_POINTS, 1) if board.slow else (FIRST_POINTS, SECOND_POINTS)
    for control in main_sliders[:1]:
        # The first two sliders get a two-dimensional grid; the others vary one at a time.
        second_slider = main_sliders[1] if len(main_sliders) > 1 and counts[1] > 1 else None
        for value in along(control, counts[0]):
            yield from fresh(base | {control["name"]: value})
            for second in along(second_slider, counts[1]) if second_slider else ():
                yield from fresh(base | {control["name"]: value, second_slider["name"]: second})  # type: ignore[index]
    for control in inputs:
        if control["kind"] == "choice":
            for word in control["options"]:
                yield from fresh(base | {control["name"]: word})
        elif control["kind"] == "slider" and control not in main_sliders[:1]:
            for value in along(control, OTHER_POINTS):
                yield from fresh(base | {control["name"]: value})


def along(control: dict[str, Any], count: int) -> list[float]:
    """Return evenly spaced values along a slider, in its scale.

    Args:
        control: Control of `described`.
        count: Number of values.

    Returns:
        Values within the bounds, rounded to three digits or to whole numbers.

    >>> along({"low": 1, "high": 1000, "log": True, "whole": True, "default": 10}, 4)
    [1, 10, 100, 1000]
    """
    low, high = float(control["low"]), float(control["high"])
    places = [n / (count - 1) for n in range(count)]
    if control["log"]:
        low = max(low, 1e-9)
        points = [low * (high / low) ** place for place in places]
    else:
        points = [low + (high - low) * place for place in places]
    values = [min(max(float(f"{value:.3g}"), control["low"]), control["high"]) for value in points]
    return [round(value) for value in values] if control["whole"] else values


FORMATS: Final = {"engine": "--engine", "weights": "--weights", "kv": "--kv"}


def subject_names(inputs: Shared) -> tuple[str, str]:
    """Return the model and the system as a command names them.

    For a pasted text it is the name of a file to save it in.

    Args:
        inputs: Inputs of the bar.

    Returns:
        Model and system.
    """
    model = "config.json" if is_config(inputs.model) else inputs.model
    system = "system.toml" if is_toml(inputs.system) else inputs.system
    return model, system


def command(name: str, inputs: Shared, options: Mapping[str, Any], *, pair: bool = True, formats: bool = True) -> str:
    """Return a steptime command; options with empty values are left out.

    Args:
        name: Name of the command.
        inputs: Inputs of the bar.
        options: Values by option.
        pair: Whether the command names model and system.
        formats: Whether the command has --engine, --weights and --kv.

    Returns:
        Shell command.

    >>> command("step", Shared(model="llama-3.1-8b", system="hgx-h100"), {"--batch": 64, "--context": 4096})
    'steptime step llama-3.1-8b hgx-h100 --batch 64 --context 4096'
    """
    words = ["steptime", name, *(subject_names(inputs) if pair else ())]
    format_options = {option: getattr(inputs, field) for field, option in FORMATS.items()} if formats else {}
    for option, value in {**format_options, **options}.items():
        if value is True:
            words.append(option)
        elif value not in ("", None, False):
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def python(call: str) -> str:
    """Return a Python snippet with the import of steptime.

    Args:
        call: Python expression or statements.

    Returns:
        Lines of Python.

    >>> print(python("st.load_model('llama-3.1-8b')"))
    import steptime as st
    <BLANKLINE>
    st.load_model('llama-3.1-8b')
    """
    return f"import steptime as st\n\n{call}"


def loaded(inputs: Shared) -> tuple[str, str]:
    """Return the model and the system as Python expressions.

    Args:
        inputs: Inputs of the bar.

    Returns:
        Names, or a call of `st.load_model` for other number formats.
    """
    model, system = subject_names(inputs)
    formats = [f"{field}={getattr(inputs, field)!r}" for field in ("weights", "kv") if getattr(inputs, field)]
    model_text = repr(model)
    return (f"st.load_model({', '.join([model_text, *formats])})" if formats else model_text), repr(system)


PARALLEL_AXES = ("tp", "dp", "ep", "pp", "cp")


def parallel_sizes(layout: Layout) -> dict[str, int]:
    """Return the parallel sizes of a layout that are not 1.

    Args:
        layout: The layout.

    Returns:
        Sizes by axis: tp, dp, ep, pp, cp.
    """
    return {name: int(getattr(layout, name)) for name in PARALLEL_AXES if int(getattr(layout, name)) > 1}


def layout_options(layout: Layout) -> dict[str, int]:
    """Return the command-line options of a layout.

    Args:
        layout: The layout.

    Returns:
        Sizes by option, such as --tp.
    """
    return {f"--{name}": size for name, size in parallel_sizes(layout).items()}


def decode_call(inputs: Shared, layout: Layout, *, batch: int, context: int) -> str:
    """Return the Python call that computes a decode step.

    Args:
        inputs: Inputs of the bar.
        layout: Layout of one replica.
        batch: Sequences per replica.
        context: Tokens of each sequence.

    Returns:
        Python expression.
    """
    model, system = loaded(inputs)
    sizes = ", ".join(f"{name}={size}" for name, size in parallel_sizes(layout).items())
    engine = f", engine={inputs.engine!r}" if inputs.engine else ""
    return f"st.decode_step({model}, {system}, batch={batch}, context={context}, layout=st.Layout({sizes}){engine}).total"


def show_step_sum(parts: Mapping[str, float], total: float) -> str:
    """Return the step time as a sum of its parts.

    Args:
        parts: Seconds by part.
        total: Seconds of the step.

    Returns:
        Line of text.

    >>> show_step_sum({"compute": 1e-3, "weights": 2e-3, "kv": 0.0, "network": 0.0, "overhead": 0.0}, 3e-3)
    'step = 1.00 ms arithmetic + 2.00 ms weights = 3.00 ms'
    """
    listed = " + ".join(f"{show(parts[name], 's')} {PART_NAMES[name]}" for name in PARTS if parts[name] > 0)
    return f"step = {listed} = {show(total, 's')}"
