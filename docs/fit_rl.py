"""Compares computed RL steps with published ones, and writes their ratio: `python docs/fit_rl.py training_rl.csv` (10 s).

Published steps contain rewards, the environment, engine starts and idle pipelines, which `rl_step` does not compute. Their
ratio to the computed parts, and the range that holds 90 % of the steps where the other model gives the ratio, are in
src/steptime/data/rl_steps.toml.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Final

import numpy as np

import steptime as st
from steptime.scaling.rl_step import rl_step

FILE: Final = Path(__file__).parent.parent / "src" / "steptime" / "data" / "rl_steps.toml"
URL: Final = "https://github.com/NVIDIA-NeMo/RL/blob/main/docs/about/performance-summary.md"
HELD: Final = 0.9
# Training that is eight steps behind, which `rl_step` does not describe (one step, or none).
SEVERAL: Final = "8-step"


def ratio(row: dict[str, str]) -> float:
    """Return the measured time of a step over the time of its computed parts.

    Args:
        row: Row of the file of steps.

    Returns:
        Ratio.
    """
    words = row["note"].replace(",", "")
    output, rollouts, batch = (float(re.search(f"{name} ([0-9]+)", words)[1]) for name in ("sequence", "step", "batch"))  # type: ignore[index]
    tp, pp = map(int, re.search(r"\[TP,PP\] \[(\d+),(\d+)\]", row["note"]).groups())  # type: ignore[union-attr]
    step = rl_step(
        row["model"], row["system"], chips=int(row["chips"]), rollouts=int(rollouts), output=output,
        longest=float(row["seq_len"]), layout=st.Layout(tp=tp, pp=pp), rollout_share=1.0 if "On_policy" in row["id"] else 0.5,
        updates=int(rollouts / batch),
    )  # fmt: skip
    return float(row["step_s"]) / step.computed


def left_out(logs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the logarithm of each step over its prediction by the steps with other labels."""
    return np.array([log - np.median(logs[labels != label]) for log, label in zip(logs, labels, strict=True)])


def main(path: str) -> None:
    """Compare and write.

    Args:
        path: File of steps.
    """
    table = csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines())
    rows = [row for row in table if SEVERAL not in row["id"]]
    logs = np.log([ratio(row) for row in rows])
    middle = float(np.median(logs))
    off = {name: left_out(logs, np.array([row[name] for row in rows])) for name in ("model", "system")}
    width = float(np.quantile(np.abs(off["model"]), HELD, method="inverted_cdf"))
    for name, errors in off.items():
        held = np.mean(np.abs(errors) <= width)
        print(f"{name}s left out: median of measured / predicted {np.exp(np.median(errors)):.2f}, {held:.0%} in the range")
    low, factor, high = np.exp([middle - width, middle, middle + width])
    FILE.write_text(
        "# Published RL steps over their computed parts: median, and range of 90 % with models left out. By docs/fit_rl.py.\n"
        f'steps = {len(logs)}\nfactor = {factor:.3f}\nlow = {low:.3f}\nhigh = {high:.3f}\n\n[source]\nurl = "{URL}"\n'
        'date = "2026-11-28"\ngrade = "measured"\nnote = "NeMo RL 0.6: Qwen3-30B-A3B and DeepSeek-V3 on H100 and GB200"\n',
        encoding="utf-8",
    )
    print(np.round(np.exp(np.sort(logs)), 2), low, factor, high)


if __name__ == "__main__":
    main(sys.argv[1])
