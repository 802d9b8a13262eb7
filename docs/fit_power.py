"""Fits the power of a chip to measured serving runs: `python docs/fit_power.py mlenergy.csv [--write]`, in some seconds.

The file has rows of ML.ENERGY Leaderboard 3.0 (Apache-2.0) in the columns of `steptime validate`, with the power of a chip.
The rows are vLLM with real prompts on H100 and B200. Rows in doubt and rows with images are left out, because the length
of their prompts is not known; chats have some 150 prompt tokens, and GPQA 250. The fit takes the measured rate, so that
errors of predicted times do not move the coefficients. It prints the error of joules per output token of models that are left
out, for the measured rate and for the predicted one. --write writes `data/chip_power.json`.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from steptime.catalog.hardware_loading import load_system
from steptime.hardware.system import System
from steptime.physics.chip_power import StepWork, chip_joules, energy_coefficients, step_work
from steptime.physics.engine import at_release, load_engine, with_sampling
from steptime.physics.engine_releases import TOP_P
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import REGIMES, Z90, factors
from steptime.validation.run_table import served_model

PROMPT_TOKENS = {"lm-arena-chat": 150.0, "gpqa": 250.0}
NAMES = ("static", "memory", "compute", "network")
# Shares of the limit before the fit, and standard deviations of their logs: an idle or waiting chip takes a fifth to a half;
# memory at full rate about a third; plain products reach the limit near four fifths of their rate; links a twentieth.
PRIOR, PRIOR_SPREAD = np.log([0.35, 0.35, 0.5, 0.05]), np.array([0.5, 0.5, 0.3, 0.7])
# Scatter of repeated rows, in log.
NOISE = 0.15
GENERATIONS = {
    "hopper": ("hgx-h100", ["h100", "h200", "h800", "h20", "gh200"]),
    "blackwell": ("hgx-b200", ["b200", "b300", "gb200", "gb300"]),
}
OUTPUT = Path(__file__).parents[1] / "src" / "steptime" / "data" / "chip_power.json"

# Release of vLLM in all rows, which draw their tokens with top-p.
RELEASE = "0.11.1"


@dataclass(frozen=True)
class Row:
    """A run: work of a chip per output token, and seconds per output token of the deployment, measured and predicted."""

    model: str
    system: System
    work: StepWork
    measured: float
    predicted: float
    joules: float


def read_rows(path: str) -> list[Row]:
    """Return the rows of the file with their work."""
    engine, rows = with_sampling(at_release(load_engine("vllm"), RELEASE), TOP_P), []
    with open(path, newline="", encoding="utf-8") as file:
        runs = [row for row in csv.DictReader(file) if not row["doubt"] and row["task"] in PROMPT_TOKENS]
    for run in runs:
        system = load_system(run["system"])
        model = served_model(run, system, engine, None)
        layout = Layout(**{axis: int(run[axis]) for axis in ("tp", "pp", "dp", "ep")})
        batch, output, prompt = float(run["concurrency"]), float(run["output_tokens"]), PROMPT_TOKENS[run["task"]]
        sizes = {"batch": batch, "context": prompt + output / 2}, {"prompts": 1, "tokens": prompt}
        (decode, decoded), (prefill, prefilled) = (
            step_work(model, system, size, layout=layout, engine=engine) for size in sizes
        )
        parts = ((decoded, 1 / batch), (prefilled, 1 / output))
        flops = {name: sum(work.flops.get(name, 0.0) * share for work, share in parts) for name in system.chip.peak}
        rows.append(
            Row(
                model=run["model"],
                system=system,
                work=StepWork(
                    flops=flops,
                    memory=sum(work.memory * share for work, share in parts),
                    links=sum(work.links * share for work, share in parts),
                ),
                measured=1 / float(run["output_tok_s"]),
                predicted=float(decode.total) / batch + float(prefill.total) / output,
                joules=float(run["joules_per_output_token"]) / int(run["chips"]),
            )
        )
    return rows


def log_errors(shares: dict[str, float], rows: list[Row], time: str = "measured") -> np.ndarray:
    """Return the log of predicted over measured joules of each row."""
    predicted = [chip_joules(energy_coefficients(row.system, shares), row.work, getattr(row, time)) for row in rows]
    return np.log(np.array(predicted) / [row.joules for row in rows])


def fitted(rows: list[Row]) -> dict[str, float]:
    """Return the shares of the limit that fit the rows."""

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.r_[log_errors(by_name(logs), rows) / NOISE, (logs - PRIOR) / PRIOR_SPREAD]

    return by_name(least_squares(residuals, PRIOR).x)


def by_name(logs: np.ndarray) -> dict[str, float]:
    """Return shares by name."""
    return dict(zip(NAMES, np.exp(logs).tolist(), strict=True))


def left_out(rows: list[Row], time: str = "measured") -> np.ndarray:
    """Return the log errors of each row, from a fit to the rows of other models."""
    errors = np.zeros(len(rows))
    for model in sorted({row.model for row in rows}):
        is_tested = np.array([row.model == model for row in rows])
        shares = fitted([row for row in rows if row.model != model])
        errors[is_tested] = log_errors(shares, [row for row in rows if row.model == model], time)
    return errors


def score(label: str, errors: np.ndarray, spread: float = 0.0) -> None:
    """Print the errors, and the coverage and width of a 90 % range."""
    sizes = np.abs(np.expm1(errors))
    text = f"{label}: {len(errors)} rows, median {np.median(sizes):.1%}, p90 {np.percentile(sizes, 90):.1%}"
    text += f", bias {np.expm1(np.median(errors)):+.1%}"
    if spread:
        margin = Z90 * spread
        text += f", {np.mean(np.abs(errors) < margin):.0%} in a range {np.exp(2 * margin):.2f} wide (high / low)"
    print(text)


def joined_range(rows: list[Row], shares: dict[str, float], spread: float) -> np.ndarray:
    """Return log factors of the 90 % range of joules: that of the time, and independently that of the coefficients."""
    engine, ends = load_engine("vllm"), np.empty((2, len(rows)))
    for place, row in enumerate(rows):
        coefficients = energy_coefficients(row.system, shares)
        for side, factor in enumerate(factors(engine, "tpot", REGIMES[0], system=row.system)):
            energies = [chip_joules(coefficients, row.work, row.predicted * x) for x in (float(factor), 1.0)]
            ends[side, place] = (2 * side - 1) * np.hypot(np.log(energies[0] / energies[1]), Z90 * spread)
    return ends


def main() -> None:
    """Fit, print the scores, and write the file."""
    rows = read_rows(sys.argv[1])
    groups: dict[str, Any] = {}
    all_errors, of_predicted, ranges = [], [], []
    for name, (system_name, chips) in GENERATIONS.items():
        members = [row for row in rows if row.system.name == system_name]
        errors = left_out(members)
        spread = float(np.sqrt(np.mean(errors**2)))
        all_errors.append(errors)
        of_predicted.append(left_out(members, "predicted"))
        ranges.append(joined_range(members, fitted(members), spread))
        score(f"{name}, models left out, measured rate", errors, spread)
        score(f"{name}, models left out, predicted rate", of_predicted[-1])
        chip, link = members[0].system.chip, members[0].system.scale_up.link
        measured = {
            "chip": chip.name, "limit": chip.power_w, "bandwidth": chip.hbm.bandwidth, "rate": chip.peak["bf16"],
            "link": link.bandwidth,
        }  # fmt: skip
        groups[name] = {"chips": chips, **rounded(fitted(members)), "spread": round(spread, 3), "rows": len(members)}
        groups[name]["measured"] = measured
        print(f"  {groups[name]}")
    score(
        "all, models left out, measured rate",
        np.concatenate(all_errors),
        float(np.sqrt(np.mean(np.concatenate(all_errors) ** 2))),
    )
    score("all, models left out, predicted rate", np.concatenate(of_predicted))
    low, high = np.concatenate(ranges, 1)
    off = -np.concatenate(of_predicted)
    inside = (off > low) & (off < high)
    print(f"  range of time and coefficients: holds {inside.mean():.0%}, median width {np.median(np.exp(high - low)):.2f}")

    # Other chips: coefficients of all rows, and the error of the generation that is left out.
    unseen = []
    for system_name, _ in GENERATIONS.values():
        shares = fitted([row for row in rows if row.system.name != system_name])
        unseen.append(log_errors(shares, [row for row in rows if row.system.name == system_name]))
    spread = float(np.sqrt(np.mean(np.concatenate(unseen) ** 2)))
    score("generation left out, measured rate", np.concatenate(unseen), spread)
    groups["pooled"] = {"chips": [], **rounded(fitted(rows)), "spread": round(spread, 3), "rows": len(rows)}
    print(f"  {groups['pooled']}")
    if "--write" in sys.argv[2:]:
        source = {"url": "https://github.com/ml-energy/leaderboard", "date": "2025-12-01", "grade": "measured"}
        note = "ML.ENERGY Leaderboard 3.0, vLLM 0.11.1, Apache-2.0; fitted by docs/fit_power.py"
        text = json.dumps({"source": {**source, "note": note}, "groups": groups}, indent=1)
        OUTPUT.write_text(text + "\n", encoding="utf-8")


def rounded(shares: dict[str, float]) -> dict[str, float]:
    """Return shares with three digits."""
    return {name: float(f"{share:.3g}") for name, share in shares.items()}


if __name__ == "__main__":
    main()
