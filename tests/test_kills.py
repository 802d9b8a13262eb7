"""Eight processes at once, each killed at a random moment, lose nothing that they reported as kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.validation.test_anchors import measured, written

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs copies of a process")


def killed(folder: Path, rounds: int) -> dict[str, int]:
    """Kill eight processes in each round, and return what they had reported."""
    (folder / "own").mkdir()
    written(folder / "runs.csv", measured([1.3] * 8, ttft=[1.3] * 8))
    environment = os.environ | {"STEPTIME_CATALOG": str(folder / "own"), "OPENBLAS_NUM_THREADS": "1"}
    script = Path(__file__).with_name("kill_processes.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(rounds)], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    tally: dict[str, int] = json.loads(done.stdout)
    return tally


@pytest.mark.slow
def test_eight_processes_killed_at_random_moments_keep_what_they_reported(tmp_path):
    tally = killed(tmp_path, 15)
    assert tally["kills"] >= 100
    assert min(tally["runs"], tally["tables"], tally["continued"]) >= 20
    assert tally["points"] >= 400
