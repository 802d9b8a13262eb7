"""What each board copies, the command and the Python program, runs and gives a number that the board shows."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")

from steptime.web.board import load_boards

pytestmark = pytest.mark.slow
# Boards with their first inputs, and boards of one pass for an 8-bit model, whose engine keeps the KV cache in 8 bits.
EIGHT_BITS = {"model": "deepseek-ai/DeepSeek-V3", "system": "hgx-b200", "context": 4096}
CASES = {name: (name, {}) for name in load_boards()}
CASES |= {f"{name}, 8 bits": (name, EIGHT_BITS) for name in ("step", "operators", "context", "cost", "speed")}
# Boards whose command searches plans on a busy machine.
SECONDS = 300


def answered(case: str) -> dict[str, Any]:
    name, inputs = CASES[case]
    board = load_boards()[name]
    data: dict[str, Any] = board.answer(board.inputs(**inputs)).to_dict()
    return data


def numbers(data: Any) -> Iterator[float]:
    """Yield all numbers of JSON data."""
    if isinstance(data, dict | list):
        for one in data.values() if isinstance(data, dict) else data:
            yield from numbers(one)
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield float(data)


def in_text(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"-?\d+\.?\d*(?:e[+-]?\d+)?", text)]


def shown(data: dict[str, Any]) -> list[float]:
    return [one["value"] for one in data["figures"] if one["value"] is not None and math.isfinite(one["value"])]


def run(arguments: list[str], folder: Any) -> str:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    return done.stdout


def matching(values: Any, figures: list[float]) -> list[float]:
    """Return the figures that are among values, to four digits."""
    every = list(values)
    return [one for one in figures if any(math.isclose(one, value, rel_tol=1e-3) for value in every)]


@pytest.mark.parametrize("name", CASES)
def test_the_copied_command_gives_the_first_number_of_the_board(name, tmp_path):
    data = answered(name)
    assert "--kv" not in data["command"]
    is_program = data["command"].startswith("python ")
    head = f'steptime() {{ "{sys.executable}" -m steptime "$@"; }}; python() {{ "{sys.executable}" "$@"; }}; '
    output = run(["bash", "-c", head + data["command"] + ("" if is_program else " --json")], tmp_path)
    values = in_text(output) if is_program else list(numbers(json.loads(output)))
    assert matching(values, shown(data)[:1]), (data["command"], shown(data)[0])


@pytest.mark.parametrize("name", CASES)
def test_the_copied_program_prints_a_number_of_the_board(name, tmp_path):
    data = answered(name)
    output = run([sys.executable, "-c", data["python"]], tmp_path)
    printed = in_text(output)
    if name in ("plan", "compare"):
        # These print the text of a result, with three digits of the cost.
        assert f"{shown(data)[0]:.3g}" in output
    else:
        assert matching(printed, shown(data)), (data["python"], output[:500])
