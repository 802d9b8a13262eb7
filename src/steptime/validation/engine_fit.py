"""Engine fit: physical constants of an engine from measured runs, with their covariance and the remaining scatter.

The fit is a robust least-squares fit of the logarithms of the constants to the logarithms of measured TPOT. Each constant has a
prior: its usual value and the deviation of engines from it. `fit_all` first fits one typical engine to all runs. This engine is
the prior of each engine. A user's few runs take a shipped engine as the prior. The 90 % range comes from errors on runs that
were left out with their whole model and with their whole system. It therefore holds for new models and systems. Structure and
priors minimize the error on such runs. Engines differ little on a new model, so the priors are narrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from steptime.errors import InputError, install_hint
from steptime.number_checks import Array
from steptime.physics.engine import Engine, constant, label_values, with_constants
from steptime.physics.engine_parameters import CONSTANTS, DESCRIPTIONS, RUN_WAITS
from steptime.physics.uncertainty import REGIMES, with_variances
from steptime.validation.predictions import Runs, can_simulate, grouped, predict_runs, resolve_engine, simulate_loops
from steptime.validation.run_table import in_runs

# Scatter of log(TPOT) between groups of a model, system, engine and version; repeats of one run differ by 4 %.
NOISE = 0.26
# In units of the noise: larger errors have little weight, because some rows do not describe their run.
ROBUST = 0.5
# A user's runs differ more from an engine, repeat better, and are described correctly.
OWN_DEVIATION, OWN_NOISE, OWN_ROBUST = (
    12.0,
    0.05,
    10.0,
)
# Engines whose scheduler runs the prefill of waiting prompts before it continues decode.
PREFILL_FIRST = ("sglang",)
# vLLM (--enable-dbo) and SGLang overlap two micro-batches when data-parallel ranks exchange tokens between experts.
TWO_BATCH = {"trtllm": 0.0}
# Engines with a 16-bit KV cache by default; other engines' runs of 8-bit models set an 8-bit cache.
SMALL_KV = {"sglang": 0.0}
# Prefill tokens per step: SGLang's chunk size; 0 for TensorRT-LLM, which runs a whole prompt with the batch.
STEP_TOKENS = {"sglang": 8192.0, "trtllm": 0.0}


@dataclass(frozen=True, slots=True)
class Prior:
    """Usual value of a constant, and deviations of its logarithm: before any run, and of engines from the typical one."""

    usual: float
    deviation: float
    between: float


# Usual values: GEMM, grouped GEMM, attention and all-reduce kernels in AIConfigurator's tables of ten systems.
PRIORS: dict[str, Prior] = {
    "memory_efficiency": Prior(0.82, 0.035, 0.0075),
    "narrow_efficiency": Prior(0.75, 0.075, 0.0125),
    "compute_efficiency": Prior(0.7, 0.05, 0.01),
    "expert_efficiency": Prior(0.45, 0.2, 0.02),
    "expert_memory_efficiency": Prior(0.8, 0.06, 0.0125),
    "latent_efficiency": Prior(0.7, 0.4, 0.025),
    "attention_memory_efficiency": Prior(0.8, 0.05, 0.011),
    "seconds_per_kernel": Prior(3.3e-6, 0.1, 0.025),
    "seconds_per_quantised_kernel": Prior(5e-6, 0.2, 0.025),
    "seconds_per_expert_layer": Prior(12e-6, 0.2, 0.025),
    "seconds_per_collective": Prior(5e-6, 0.25, 0.2),
    "seconds_per_sequence": Prior(5e-6, 0.25, 0.0225),
}
# Not fitted: isolated kernel measurements determine these better than whole runs.
FIXED_CONSTANTS: dict[str, Any] = {
    # int4 experts: the rate at which the errors of B200 and H200 are equal.
    "unpack_rate": 4.5e12,
    # Same error as FP8 of one model: 0.68 to 0.70 at maximum throughput, 0.73 to 0.83 offline.
    "fp4_efficiency": 0.75,
    # B200: 0.58 to 0.97 times the 16-bit speed, which is 0.4 to 0.7 of other 8-bit GEMMs.
    "block_efficiency": 0.6,
    "roofline_norm": 2.5,
    # Isolated FP8 GEMMs on H800, without the time to write their outputs.
    "fill_bytes": 300.0,
    "activation_traffic": 1.0,
    "attention_efficiency": 0.6,
    "network_efficiency": 0.65,
    "chip_departure": 0.5,
    "seconds_per_layer": 6e-6,
    "seconds_per_attention_layer": 10e-6,
    "seconds_per_latent_layer": 6e-6,
    "seconds_per_state_layer": 33e-6,
    "seconds_per_selected_layer": 60e-6,
    "seconds_per_step": 2e-4,
    "expert_imbalance": 1.3,
    "expert_evenness": 1.0,
    "expert_tile_rows": 16.0,
    "memory_share": 0.92,
}
NAMES = tuple(PRIORS)
USUAL = np.log([PRIORS[n].usual for n in NAMES])
DEVIATIONS = np.array([PRIORS[n].deviation for n in NAMES])
BETWEEN = np.array([PRIORS[n].between for n in NAMES])


QUEUE_NAMES = ("seconds_per_request", "first_token_factor")
QUEUE_USUAL = np.log([0.02, 1.5])
QUEUE_DEVIATIONS = np.array([0.7, 0.4])
QUEUE_NOISE = 0.3
# Simulation passes; the second uses the waits fitted in the first.
PASSES = 2


LIMITS = np.array([[DESCRIPTIONS[name][end] for name in NAMES] for end in ("least", "most")])
"""Minimum and maximum of each constant."""


def engine_from(logs: Array, *, name: str, base: Engine | None = None) -> Engine:
    """Build an engine from fitted logarithms.

    Each constant is limited to its range.

    Args:
        logs: Logarithms of `NAMES`, of shape (constants,) or (n, constants); the latter gives constants of shape (n, 1).
        name: Name of the engine.
        base: Engine with the constants that are not fitted; by default `FIXED_CONSTANTS`.

    Returns:
        The engine.
    """
    values = np.clip(np.exp(logs), *LIMITS)
    constants = {n: values[i] if values.ndim == 1 else values[:, i, None] for i, n in enumerate(NAMES)}
    if base is None:
        first = 1.0 if name in PREFILL_FIRST else 0.0
        tokens, two = STEP_TOKENS.get(name, 2048.0), TWO_BATCH.get(name, 1.0)
        settings = {"prefill_first": first, "step_tokens": tokens, "two_batch": two, "small_kv": SMALL_KV.get(name, 1.0)}
        base = with_constants(Engine(name=name, arithmetic=resolve_engine(name).arithmetic), settings | FIXED_CONSTANTS)
    return with_constants(base, constants)


def _log_errors(logs: Array, groups: list[Runs], target: Array, base: Engine | None) -> Array:
    """Return log(predicted / measured) of all runs, of shape (runs,), or (n, runs) for `logs` of shape (n, constants)."""
    parts = [np.log(predict_runs(runs, engine_from(logs, name=runs.engine, base=base))[0]) for runs in groups]
    order = np.concatenate([runs.index for runs in groups])
    joined = np.concatenate(
        [np.broadcast_to(p, (*np.shape(logs)[:-1], len(r.index))) for p, r in zip(parts, groups, strict=True)], axis=-1
    )
    off: Array = joined - target[order]
    return off


def fit(
    groups: list[Runs],
    target: Array,
    mean: Array,
    deviation: Array,
    start: Array | None = None,
    noise: float = NOISE,
    robust: float = ROBUST,
    base: Engine | None = None,
) -> tuple[Array, Array]:
    """Fit the constants of an engine to measured TPOT.

    Args:
        groups: Runs.
        target: log of measured TPOT by index of a run.
        mean: Prior mean of the logarithms of the constants.
        deviation: Prior deviation of the logarithms.
        start: Start of the fit; by default `mean`.
        noise: Scatter of log(TPOT).
        robust: Error, in units of the noise, above which the weight falls (Cauchy loss).
        base: Engine with the constants that are not fitted.

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
        return np.concatenate([soft(_log_errors(logs, groups, target, base)), (logs - mean) / deviation])

    def jacobian(logs: Array) -> Array:
        step = 1e-4
        table = np.concatenate([logs[None, :], logs[None, :] + step * np.eye(len(NAMES))])
        errors = soft(_log_errors(table, groups, target, base))
        return np.concatenate([((errors[1:] - errors[0]) / step).T, np.diag(1 / deviation)])

    solution = least_squares(residuals, mean if start is None else start, jac=jacobian, max_nfev=40, xtol=1e-4, ftol=1e-5)
    pairs = np.concatenate([np.full(len(runs.index), label_of_pair(runs), dtype=object) for runs in groups])
    return solution.x, shared_covariance(solution.fun[: len(pairs)], solution.jac[: len(pairs)], deviation, pairs)


def shared_covariance(errors: Array, jacobian: Array, deviation: Array, pairs: Array) -> Array:
    r"""Return the covariance of fitted constants with errors shared by pair.

    The estimator is $A^{-1} (\sum_p g_p g_p^T + \Lambda) A^{-1}$, with $g_p = \sum_{i \in p} J_i r_i$, $A = J^T J + \Lambda$
    and the prior $\Lambda = diag(1/s^2)$. It is the sandwich estimator of errors that are clustered by model-system pair. A
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


def reading(groups: list[Runs]) -> list[Runs]:
    """Return the groups whose chips run prefill.

    Args:
        groups: Groups of runs.

    Returns:
        Groups that are not decode-only pools.
    """
    return [runs for runs in groups if runs.prompts]


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


def with_queue(engine: Engine, groups: list[Runs], measured: FirstTokens, mean: Array = QUEUE_USUAL) -> Engine:
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
    groups: list[Runs], engine: Engine, measured: FirstTokens, prior: Engine | None = None
) -> tuple[Engine, list[Any]]:
    """Fit the waits that the simulator needs for TTFT.

    The loops are simulated twice, the second time with the fitted waits. Without numba or a measured time the engine is
    unchanged.

    Args:
        groups: Runs with prefill.
        engine: Engine.
        measured: Measured TTFT by index of a run.
        prior: Engine to start from for a user's few runs.

    Returns:
        The engine, and the simulated loops of each group.
    """
    if not groups:
        return engine, []
    ttft = measured.select(groups)
    if not can_simulate() or not np.isfinite(ttft.seconds).any():
        return engine, []
    from steptime.validation import ttft_fit as first_token

    mean, deviation = first_token.USUAL, first_token.PRIOR_DEVIATIONS
    pairs = [label_of_pair(runs) for runs in groups] if prior is None else None
    if prior is not None:
        mean, deviation = np.log(np.maximum(first_token.wait_constants(prior), first_token.LEAST)), first_token.OWN_DEVIATIONS
    constants = np.exp(mean)
    loops: list[Any] = []
    for _ in range(PASSES):
        engine = with_constants(engine, label_values(RUN_WAITS, constants))
        loops = [simulate_loops(runs, engine) for runs in groups]
        constants = first_token.fit(loops, ttft.seconds, ttft.medians, mean, deviation, pairs)
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


def known_from(groups: list[Runs], engine: Engine) -> dict[str, Any]:
    """Return the vendors, systems and parameter variance of a fit.

    The variance is part of the errors of runs that were left out (`uncertainty`).

    Args:
        groups: Runs of the fit.
        engine: Fitted engine with its covariance.

    Returns:
        Vendors of the chips, runs by system, and mean variance of log(time) from the constants, by quantity and regime.
    """
    regime = np.concatenate([predict_runs(runs, engine)[3] for runs in groups])

    def times(runs: Runs, varied: Engine) -> tuple[Array, ...]:
        return predict_runs(runs, varied)[:2]

    parts = [with_variances(partial(times, runs), engine, dimensions=1) for runs in groups]
    variances = {}
    for position, quantity in enumerate(("tpot", "ttft")):
        variance = np.concatenate([part[position][1] for part in parts])
        variances[quantity] = {name: float(np.nanmean(variance[regime == name])) for name in REGIMES if np.any(regime == name)}
    count = Counter(name for runs in groups for name in [runs.system.name] * len(runs.index))
    vendors = sorted({runs.system.chip.vendor for runs in groups})
    return {"vendors": vendors, "systems": dict(sorted(count.items())), "parameter_variance": variances}


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
    target = log_tpot(rows)
    mean = np.log([float(constant(prior, n)) for n in NAMES])
    logs, covariance = fit(groups, target, mean, OWN_DEVIATION * BETWEEN, mean, OWN_NOISE, OWN_ROBUST, prior)
    fitted = engine_from(logs, name=prior.name, base=prior)
    first = measured_first_tokens(rows)
    usual = np.log([float(constant(prior, n)) for n in QUEUE_NAMES])
    prefill_groups = reading(groups)
    fitted = with_queue(fitted, prefill_groups, first, usual)
    fitted, _ = with_waits(prefill_groups, fitted, first, prior)
    info: dict[str, Any] = {"names": list(NAMES), "covariance": covariance.tolist(), "runs": len(rows)}
    info |= {key: prior.fit[key] for key in ("interval", "parameter_variance") if key in prior.fit}
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
    lines = [f'name = "{engine.name}"', f'title = "{engine.title}"', "", "[source]"]
    lines += [f'{key} = "{value}"' for key, value in source.items()]
    lines += ["", "[constants]"]
    for name in CONSTANTS:
        value = float(constant(engine, name))
        if value != DESCRIPTIONS[name]["default"]:
            lines.append(f"{name} = {value:.4g}" if "e" not in f"{value:.4g}" else f"{name} = {value:.3e}")
    for rule in engine.arithmetic:
        rule_fields = {name: getattr(rule, name) for name in ("operation", "stored", "chips", "computed", "source")}
        lines += ["", "[[arithmetic]]", *(f'{name} = "{value}"' for name, value in rule_fields.items() if value)]
    lines += ["", "[fit]", f"runs = {engine.fit['runs']}"]
    lines += [f"{key} = {list(engine.fit[key])}".replace("'", '"') for key in ("vendors", "names") if key in engine.fit]
    lines.append("covariance = [")
    symmetric = np.array(engine.fit["covariance"])
    lines += ["  [" + ", ".join(f"{x:.3e}" for x in row) + "]," for row in (symmetric + symmetric.T) / 2]
    lines.append("]")
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
