"""Engine fit: physical constants of an engine from a user's measured runs, with their covariance.

The fit is a robust least-squares fit of the logarithms of the constants to the logarithms of measured TPOT. A shipped engine is
the prior: each constant has its value there and the deviation of engines from it, which is small, so few runs change it little.
The shipped engines themselves are fitted by `docs/engine_cross_validation.py` with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.errors import InputError, install_hint
from steptime.number_checks import Array, Number
from steptime.physics.engine import Engine, constant, label_values, with_constants
from steptime.physics.engine_parameters import CONSTANTS, DESCRIPTIONS, RUN_WAITS
from steptime.validation.closed_loop import Runs
from steptime.validation.predictions import can_simulate, grouped, predict_runs, simulate_loops
from steptime.validation.run_table import in_runs

# Scatter of log(TPOT) of a user's runs: repeats of one run differ by 4 %.
NOISE = 0.05
# In units of the noise: larger errors have little weight.
ROBUST = 10.0
# Deviation of a user's deployment from an engine, over that between engines.
DEPLOYMENT_DEVIATION = 12.0
# Deviation of the logarithm of a constant between engines.
BETWEEN_ENGINES = {
    "memory_efficiency": 0.0075,
    "compute_efficiency": 0.01,
    "attention_time": 0.02,
    "seconds_per_kernel": 0.025,
    "seconds_per_quantised_kernel": 0.025,
    "seconds_per_collective": 0.2,
    "seconds_per_sequence": 0.0225,
    "expert_call": 0.025,
    "expert_time": 0.01,
}
NAMES = tuple(BETWEEN_ENGINES)
BETWEEN = np.array(list(BETWEEN_ENGINES.values()))
QUEUE_NAMES = ("seconds_per_request", "first_token_factor")
QUEUE_DEVIATIONS = np.array([0.7, 0.4])
QUEUE_NOISE = 0.3
# Minimum prior values of the waits: a constant of zero has no logarithm.
LEAST_WAITS = dict(zip(RUN_WAITS, (1e-4, 1e-8, 0.1, 0.1, 1e-3), strict=True))
# Deviations of the waits of a user's deployment from those of an engine.
WAIT_DEVIATIONS = np.array([0.5, 0.5, 0.5, 0.5, 1.0])
# Simulation passes; the second uses the waits fitted in the first.
PASSES = 2


def engine_from(logs: Array, base: Engine, names: Sequence[str] = NAMES) -> Engine:
    """Build an engine from fitted logarithms.

    Each constant is limited to its range.

    Args:
        logs: Logarithms of `names`, of shape (constants,) or (n, constants); the latter gives constants of shape (n, 1).
        base: Engine with the constants that are not fitted.
        names: Names of the constants.

    Returns:
        The engine.
    """
    limits = np.array([[DESCRIPTIONS[name][end] for name in names] for end in ("least", "most")])
    values = np.clip(np.exp(logs), *limits)
    return with_constants(base, {n: values[i] if values.ndim == 1 else values[:, i, None] for i, n in enumerate(names)})


EngineBuilder = Callable[[Array, Runs], Engine]
"""Builds the engine of runs from logarithms of constants, of shape (constants,) or (n, constants)."""


def _log_errors(logs: Array, groups: list[Runs], target: Array, build_engine: EngineBuilder) -> Array:
    """Return log(predicted / measured) of all runs, of shape (runs,), or (n, runs) for `logs` of shape (n, constants)."""
    parts = [
        np.broadcast_to(np.log(predict_runs(runs, build_engine(logs, runs))[0]), (*np.shape(logs)[:-1], len(runs.index)))
        for runs in groups
    ]
    errors: Array = np.concatenate(parts, axis=-1) - target[np.concatenate([runs.index for runs in groups])]
    return errors


def fit(
    groups: list[Runs],
    target: Array,
    mean: Array,
    deviation: Array,
    build_engine: EngineBuilder,
    *,
    start: Array | None = None,
    noise: float = NOISE,
    robust: float = ROBUST,
) -> tuple[Array, Array]:
    """Fit the constants of an engine to measured TPOT.

    Args:
        groups: Runs.
        target: log of measured TPOT by index of a run.
        mean: Prior mean of the logarithms of the constants.
        deviation: Prior deviation of the logarithms.
        build_engine: Engine of runs with the constants.
        start: Start of the fit; by default `mean`.
        noise: Scatter of log(TPOT).
        robust: Error, in units of the noise, above which the weight falls (Cauchy loss).

    Returns:
        Fitted logarithms of the constants, of shape (constants,), and their covariance.

    Raises:
        InputError: scipy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError(f"calibrate needs scipy: {install_hint('calibrate')}") from None

    def soft(errors: Array) -> Array:
        scaled = errors / noise
        return np.sign(scaled) * robust * np.sqrt(np.log1p((scaled / robust) ** 2))

    def residuals(logs: Array) -> Array:
        return np.concatenate([soft(_log_errors(logs, groups, target, build_engine)), (logs - mean) / deviation])

    def jacobian(logs: Array) -> Array:
        step = 1e-4
        table = np.concatenate([logs[None, :], logs[None, :] + step * np.eye(len(mean))])
        errors = soft(_log_errors(table, groups, target, build_engine))
        return np.concatenate([((errors[1:] - errors[0]) / step).T, np.diag(1 / deviation)])

    solution = least_squares(residuals, mean if start is None else start, jac=jacobian, max_nfev=40, xtol=1e-4, ftol=1e-5)
    pairs = np.concatenate([np.full(len(runs.index), label_of_pair(runs), dtype=object) for runs in groups])
    return solution.x, shared_covariance(solution.fun[: len(pairs)], solution.jac[: len(pairs)], deviation, pairs)


def shared_covariance(errors: Array, jacobian: Array, deviation: Array, pairs: Array) -> Array:
    r"""Return the covariance of fitted constants with errors shared by pair.

    The estimator is $A^{-1} (\sum_p g_p g_p^T + \Lambda) A^{-1}$. Here $g_p = \sum_{i \in p} J_i r_i$, $A = J^T J + \Lambda$,
    and the prior is $\Lambda = diag(1/s^2)$. It is the sandwich estimator of errors that are clustered by model-system pair. A
    constant that no run determines keeps the variance of its prior.

    Args:
        errors: Residuals $r$, of shape (runs,).
        jacobian: Derivatives $J$, of shape (runs, constants).
        deviation: Prior deviations $s$, of shape (constants,).
        pairs: Label of the model-system pair of each run.

    Returns:
        Covariance, of shape (constants, constants).

    References:
        Liang and Zeger, Biometrika 73 (1986), 13-22.

    >>> shared_covariance(np.zeros(1), np.zeros((1, 2)), np.array([0.5, 1.0]), np.array(["a"])).tolist()
    [[0.25, 0.0], [0.0, 1.0]]
    """
    prior = np.diag(1 / np.square(deviation))
    scores = np.stack([jacobian[pairs == pair].T @ errors[pairs == pair] for pair in sorted(set(pairs))])
    bread = np.linalg.inv(jacobian.T @ jacobian + prior)
    covariance: Array = bread @ (scores.T @ scores + prior) @ bread
    return covariance


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Measured TTFT [s] (NaN if missing), and whether each value is a median instead of a mean."""

    seconds: Array
    medians: Array

    def select(self, groups: list[Runs]) -> FirstTokens:
        """Select the runs of groups.

        Args:
            groups: Groups of runs.

        Returns:
            Measured TTFT in the order of the groups.
        """
        index = np.concatenate([runs.index for runs in groups])
        return FirstTokens(self.seconds[index], self.medians[index])


def with_queue(engine: Engine, groups: list[Runs], measured: FirstTokens, mean: Array) -> Engine:
    """Fit the waits besides the prefill queue to measured mean TTFT.

    Args:
        engine: Engine.
        groups: Runs with prefill.
        measured: Measured TTFT by index of a run.
        mean: Prior mean of the logarithms of `QUEUE_NAMES`.

    Returns:
        The engine with fitted waits; unchanged without a measured mean.
    """
    from scipy.optimize import least_squares

    if not groups:
        return engine
    orderly = np.concatenate([predict_runs(runs, engine)[1] for runs in groups])
    ttft = measured.select(groups)
    has_mean = np.isfinite(ttft.seconds) & ~ttft.medians
    if not has_mean.any():
        return engine
    ttft_seconds = ttft.seconds

    def residuals(logs: Array) -> Array:
        wait, factor = np.exp(logs)
        errors = (np.log(wait + factor * orderly[has_mean]) - np.log(ttft_seconds[has_mean])) / QUEUE_NOISE
        soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([soft, (logs - mean) / QUEUE_DEVIATIONS])

    return with_constants(engine, label_values(QUEUE_NAMES, np.exp(least_squares(residuals, mean).x)))


def with_waits(
    engine: Engine, groups: list[Runs], measured: FirstTokens, mean: Array, deviation: Array, weight: Number = 1.0
) -> tuple[Engine, list[Any]]:
    """Fit the waits that the simulator needs for TTFT.

    The loops are simulated twice, the second time with the fitted waits. Without numba or a measured time the engine is
    unchanged.

    Args:
        engine: Engine.
        groups: Runs with prefill.
        measured: Measured TTFT by index of a run.
        mean: Prior mean of the logarithms of `RUN_WAITS`.
        deviation: Prior deviation of these logarithms.
        weight: Weight of the errors, one for all runs or of shape (runs of the groups,).

    Returns:
        The engine, and the simulated loops of each group.
    """
    ttft = measured.select(groups) if groups else None
    if ttft is None or not can_simulate() or not np.isfinite(ttft.seconds).any():
        return engine, []
    from steptime.validation.ttft_fit import fit as fit_waits

    constants = np.exp(mean)
    loops: list[Any] = []
    for _ in range(PASSES):
        engine = with_constants(engine, label_values(RUN_WAITS, constants))
        loops = [simulate_loops(runs, engine) for runs in groups]
        constants = fit_waits(loops, ttft.seconds, ttft.medians, mean, deviation, weight)
    return with_constants(engine, label_values(RUN_WAITS, constants)), loops


def log_tpot(rows: list[dict[str, str]]) -> Array:
    """Return log(measured TPOT) of every row.

    Args:
        rows: Runs.

    Returns:
        Logarithms of seconds, of shape (rows,).

    Raises:
        InputError: A row has no TPOT.
    """
    without = [row["id"] for row in rows if not row.get("tpot_s")]
    if without:
        raise InputError(
            f"tpot_s: missing in {len(without)} runs, the first is {without[0]!r}; calibrate needs it in every run"
        )
    return np.log([float(row["tpot_s"]) for row in rows])


def measured_first_tokens(rows: list[dict[str, str]]) -> FirstTokens:
    """Return the measured TTFT of every row: the median if there is one, else the mean.

    The median describes a server better, because the mean includes the burst at the start.

    Args:
        rows: Runs.

    Returns:
        Seconds, of shape (rows,), and which are medians.
    """
    median, mean = (np.array([float(row.get(name) or "nan") for row in rows]) for name in ("ttft_median_s", "ttft_s"))
    has_median = np.isfinite(median)
    return FirstTokens(np.where(has_median, median, mean), has_median)


def label_of_pair(runs: Runs) -> str:
    """Return the label of a model-system pair.

    Args:
        runs: Group of runs.

    Returns:
        Name of the model and name of the system.
    """
    return f"{runs.model.name} {runs.system.name}"


def calibrated_engine(rows: list[dict[str, str]], *, name: str, prior: Engine, catalog: str | None = None) -> Engine:
    """Fit an engine to a user's runs, with a shipped engine as the prior.

    Few runs change it little. The range is the prior's until a regime has 50 runs or more.

    Args:
        rows: Runs with a measured TPOT.
        name: Name of the new engine.
        prior: Engine to start from.
        catalog: Folder of additional catalogue entries.

    Returns:
        The fitted engine.

    Raises:
        InputError: The prior has a constant of zero, such as the ideal engine.
    """
    lossless = next((n for n in (*NAMES, *QUEUE_NAMES) if not float(constant(prior, n)) > 0), None)
    if lossless:
        raise InputError(
            f"calibrate scales the losses of its prior, but {prior.name} has no {lossless}: "
            "take vllm, sglang, trtllm or typical as prior"
        )
    groups = [replace(runs, engine=prior.name) for runs in grouped(rows, catalog=catalog)]
    mean, queue_mean = (np.log([float(constant(prior, n)) for n in names]) for names in (NAMES, QUEUE_NAMES))

    def build_engine(values: Array, _: Runs) -> Engine:
        return engine_from(values, prior)

    logs, covariance = fit(groups, log_tpot(rows), mean, DEPLOYMENT_DEVIATION * BETWEEN, build_engine, start=mean)
    first = measured_first_tokens(rows)
    prefill_groups = [runs for runs in groups if runs.prompts]
    fitted = with_queue(engine_from(logs, prior), prefill_groups, first, queue_mean)
    wait_mean = np.log([max(float(constant(prior, n)), least) for n, least in LEAST_WAITS.items()])
    fitted, _ = with_waits(fitted, prefill_groups, first, wait_mean, WAIT_DEVIATIONS)
    info: dict[str, Any] = {"names": list(NAMES), "covariance": covariance.tolist(), "runs": len(rows)}
    info |= {key: prior.fit[key] for key in ("prior", "interval", "parameter_variance") if key in prior.fit}
    if "vendors" in prior.fit:
        info["vendors"] = sorted({*prior.fit["vendors"], *(runs.system.chip.vendor for runs in groups)})
    return replace(fitted, name=name, title=f"{prior.name} fitted to {in_runs(len(rows))}", fit=info)


def engine_file(engine: Engine, source: Mapping[str, str]) -> str:
    """Format an engine file: constants, fit and source.

    Args:
        engine: Fitted engine.
        source: Fields of the `[source]` table.

    Returns:
        TOML text.
    """
    lines = [f'name = "{engine.name}"', f'title = "{engine.title}"']
    lines += [f'kernel_engine = "{engine.kernel_engine}"'] if engine.kernel_engine else []
    lines += ["", "[source]"]
    lines += [f'{key} = "{value}"' for key, value in source.items()]
    lines += ["", "[constants]"]
    for name in CONSTANTS:
        value = float(constant(engine, name))
        if value != DESCRIPTIONS[name]["default"]:
            lines.append(f"{name} = {value:.4g}" if "e" not in f"{value:.4g}" else f"{name} = {value:.3e}")
    for rule in engine.arithmetic:
        rule_fields = {name: getattr(rule, name) for name in ("operation", "stored", "chips", "computed", "source")}
        lines += ["", "[[arithmetic]]", *(f'{name} = "{value}"' for name, value in rule_fields.items() if value)]
    for entry in engine.expert_factors:
        lines += [
            "",
            "[[experts]]",
            f'chips = "{entry.chips}"',
            f'stored = "{entry.stored}"',
            f"factor = {float(entry.factor):.4g}",
        ]
        lines += [f"runs = {entry.runs}"] if entry.runs else []
    for release in engine.releases:
        lines += ["", "[[releases]]", f'before = "{release.before}"', f'source = "{release.source}"']
        lines += [f"{name} = {value:.3g}" for name, value in release.constants.items()]
        if release.experts:
            lines.append(f"experts = {{ {', '.join(f'{kind} = {factor:.3g}' for kind, factor in release.experts.items())} }}")
    lines += ["", "[fit]", *(f"{key} = {engine.fit[key]}" for key in ("runs", "ranks") if key in engine.fit)]
    lines += [f"{key} = {list(engine.fit[key])}".replace("'", '"') for key in ("vendors", "names") if key in engine.fit]
    lines.append("covariance = [")
    symmetric = np.array(engine.fit["covariance"])
    lines += ["  [" + ", ".join(f"{x:.3e}" for x in row) + "]," for row in (symmetric + symmetric.T) / 2]
    lines.append("]")
    if engine.fit.get("prior"):
        lines += ["", "[fit.prior]", *(f"{name} = {deviation:g}" for name, deviation in engine.fit["prior"].items())]
    if "systems" in engine.fit:
        lines += ["", "[fit.systems]", *(f"{name} = {count}" for name, count in engine.fit["systems"].items())]

    # Coverage of the range of times per token, and the number of runs.
    if "held" in engine.fit:
        lines += ["", "[fit.held]", *(f"{kind} = {list(value)}" for kind, value in engine.fit["held"].items())]
    for quantity, means in engine.fit.get("parameter_variance", {}).items():
        lines += ["", f"[fit.parameter_variance.{quantity}]"]
        lines += [f"{regime} = {mean:.3e}" for regime, mean in means.items()]
    for quantity, table in engine.fit.get("interval", {}).items():
        lines += ["", f"[fit.interval.{quantity}]"]
        lines += [f"{regime} = {list(factors)}" for regime, factors in table.items()]
    return "\n".join(lines) + "\n"
