"""Fits the host work of top-p sampling to runs of ML.ENERGY: `python docs/fit_sampling.py mlenergy.csv`, in some seconds.

The runs are vLLM 0.11.1 with real prompts, real ends and tokens drawn with top-p 0.95 at temperature 0.8. Before 0.12 vLLM
sorts the logits in PyTorch; the time of that is published (`engine_cross_validation.TOP_P_SECONDS`). The rest, per step and per
sequence, is fitted to the time per token of the rows, each with its model left out; so is a factor on the kernels of 8-bit
experts. The values go to [[releases]] of vllm.toml.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from steptime.number_checks import Array
from steptime.physics.engine import Engine, load_engine
from steptime.validation.predictions import predict
from steptime.validation.run_table import read_runs

NAMES = ("top_p_seconds_per_step", "top_p_seconds_per_sequence")
EXPERTS = "fp8_block"
"""Stored format whose expert kernels these releases run slower: for bf16 and mxfp4 the rows show no difference."""
# Seconds of the derivatives, and start of the fit: the two times, and the factor on the kernels.
UNIT, START = 1e-3, np.log([1.5e-3, 2e-5, 1.5])
# Error of a row, in log, above which its weight falls: groups deviate by a fifth.
NOISE = 0.15


@dataclass(frozen=True, slots=True)
class Fit:
    """Runs, log(predicted / measured) without sampling and with each model left out, and the constants by name."""

    rows: list[dict[str, str]]
    without: Array
    left_out: Array
    constants: dict[str, float]


def fit_sampling(path: str) -> Fit:
    """Fit the constants, with each model left out and with all rows.

    Args:
        path: The file of runs.

    Returns:
        Errors and constants.
    """
    rows = [row for row in read_runs(path, skip_bad=True)[0] if not row["doubt"]]
    engine, measured = load_engine("vllm"), np.array([float(row["tpot_s"]) for row in rows])
    model = np.array([row["model"] for row in rows])

    # All three add to a step in proportion, so that one prediction each gives their derivatives.
    def times(step: float, sequence: float, experts: float) -> Array:
        return predict(rows, engine=with_release(engine, (step, sequence), experts), by_simulation=False).tpot

    base = times(0.0, 0.0, 1.0)
    by_second = [(times(*seconds, 1.0) - base) / UNIT for seconds in ((UNIT, 0.0), (0.0, UNIT))]
    slopes = np.array([*by_second, times(0.0, 0.0, 2.0) - base])

    def log_errors(logs: Array) -> Array:
        return np.log(base + (np.exp(logs) - [0, 0, 1]) @ slopes) - np.log(measured)

    def fitted(of: Array) -> Array:
        def residuals(logs: Array) -> Array:
            scaled = log_errors(logs)[of] / NOISE
            return np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))

        return least_squares(residuals, START).x

    errors = np.empty(len(rows))
    for name in sorted(set(model)):
        errors[model == name] = log_errors(fitted(model != name))[model == name]
    constants = np.exp(fitted(np.ones(len(rows), dtype=bool))).tolist()
    return Fit(rows, np.log(base / measured), errors, dict(zip((*NAMES, f"experts.{EXPERTS}"), constants, strict=True)))


def main() -> None:
    """Print the errors and the constants."""
    found = fit_sampling(sys.argv[1])
    score("without sampling", found.without)
    score("models left out", found.left_out)
    for name, value in found.constants.items():
        print(f"{name} = {value:.3g}")


def with_release(engine: Engine, seconds: tuple[float, float], experts: float) -> Engine:
    """Return the engine with constants of its oldest releases, which are those of the rows."""
    oldest, *newer = engine.releases
    constants = {**oldest.constants, **dict(zip(NAMES, seconds, strict=True))}
    return replace(engine, releases=(replace(oldest, constants=constants, experts={EXPERTS: experts}), *newer))


def score(label: str, errors: Array) -> None:
    """Print the errors."""
    sizes = np.abs(np.expm1(errors))
    text = f"{label}: {len(errors)} rows, median {np.median(sizes):.1%}, p90 {np.percentile(sizes, 90):.1%}, "
    text += f"bias {np.expm1(np.median(errors)):+.1%}"
    print(f"{text}; nine in ten within {np.exp(np.quantile(np.abs(errors), 0.9)):.2f} times")


if __name__ == "__main__":
    main()
