"""Answers and errors that nothing takes: a full disk, closed streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


@pytest.mark.parametrize(
    ("words", "stream"),
    [
        ("plan nope gb200-nvl72 --json", "stderr"),
        pytest.param("systems gb200-nvl72 --json", "stdout", marks=pytest.mark.thorough),
        pytest.param("plan nope gb200-nvl72 --json", "stdout", marks=pytest.mark.thorough),
        pytest.param("systems gb200-nvl72 --json", "stderr", marks=pytest.mark.thorough),
        pytest.param("plan nope gb200-nvl72", "stdout", marks=pytest.mark.thorough),
        pytest.param("plan nope gb200-nvl72", "stderr", marks=pytest.mark.thorough),
    ],
)
def test_full_stream_gives_exit_code_2_and_no_traceback(words, stream):
    with FULL.open("w") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        run = subprocess.run([sys.executable, "-m", "steptime", *words.split()], text=True, check=False, **streams)
    is_answered = words.startswith("systems") and stream == "stderr"
    assert run.returncode == (0 if is_answered else 2)
    assert "Traceback" not in (run.stderr or "")


def test_error_as_json_without_standard_output_is_one_line():
    words = f"{sys.executable} -m steptime plan nope gb200-nvl72 --json >&-"
    run = subprocess.run(words, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
