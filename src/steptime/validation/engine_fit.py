r"""Measured runs to an engine file: fits an engine's physical constants, with their covariance and the scatter that is left.

The constants are fitted in their logarithms by least squares with a robust loss, to the logarithms of measured TPOT, each
with a prior: what is usual, and how far engines depart from it. `fit_all` fits one typical engine to all runs first, which is
the prior of each engine; a user's own few runs take a shipped engine as theirs. The 90 % interval is that of errors on runs
that were left out with their whole model, and with their whole system, so that it holds for what was not seen. Structure and
priors are those that err least on such runs: engines differ little once a model is new, so that their priors are narrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from steptime.errors import InputError
from steptime.number_checks import Array
from steptime.physics.engine import Engine, constant, label_values, with_constants
from steptime.physics.engine_parameters import CONSTANTS, DESCRIPTIONS, RUN_WAITS
from steptime.physics.uncertainty import REGIMES, with_variances
from steptime.validation.predictions import Runs, can_simulate, grouped, predict_runs, resolve_engine, simulate_loops
from steptime.validation.run_table import in_runs

# scatter of log(TPOT) between groups of a model, system, engine and version; repeats of one run differ by 4 %
NOISE = 0.26
# in units of the noise: an error far beyond it hardly pulls, since some runs are not what their row says
ROBUST = 0.5
# one's own runs depart further from an engine, repeat better, and are true
OWN_DEVIATION, OWN_NOISE, OWN_ROBUST = (
    12.0,
    0.05,
    10.0,
)
# engines whose scheduler reads waiting prompts before it goes on decoding
PREFILL_FIRST = ("sglang",)
# vLLM (--enable-dbo) and SGLang overlap two batches where attention groups exchange experts
TWO_BATCH = {"trtllm": 0.0}
# engines that keep the KV cache in 16 bits unless told; the others' runs of 8-bit models were told
SMALL_KV = {"sglang": 0.0}
# SGLang's chunks; TensorRT-LLM is built for a prompt and the batch in a step
STEP_TOKENS = {"sglang": 8192.0, "trtllm": 0.0}


@dataclass(frozen=True, slots=True)
class Prior:
    """What is usual of a constant, and the deviation of its logarithm: before any run, and of engines about the typical one."""

    usual: float
    deviation: float
    between: float


# Usual values: what GEMM, grouped GEMM, attention and all-reduce kernels take in AIConfigurator's tables of ten systems.
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
# not fitted: runs as a whole say less of these than kernels measured alone
FIXED_CONSTANTS: dict[str, Any] = {
    # of int4 experts: the one rate at which B200 and H200 are as far off as each other
    "unpack_rate": 4.5e12,
    # as far off as FP8 of one model: 0.68 to 0.70 at most throughput, 0.73 to 0.83 offline
    "fp4_efficiency": 0.75,
    # B200: 0.58 to 0.97 times as fast as in 16 bits, so 0.4 to 0.7 of what other 8-bit products reach
    "block_efficiency": 0.6,
    "roofline_norm": 2.5,
    # of FP8 products measured alone on H800, without what writing their outputs takes
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
# simulations, the second with the waits that the first found
PASSES = 2


LIMITS = np.array([[DESCRIPTIONS[name][end] for name in NAMES] for end in ("least", "most")])
"""The least and the most that each constant can be."""


def engine_from(logs: Array, *, name: str, base: Engine | None = None) -> Engine:
    """Return the engine of fitted logarithms; an array of shape (n, constants) gives constants of shape (n, 1).

    What is not fitted is that of `base`, by default `FIXED_CONSTANTS`. A constant stays within its range.
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
    """log(predicted / measured) of all runs, of shape (runs,), or (n, runs) for `logs` of shape (n, constants)."""
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
    """Return the fitted logarithms of the constants, and their covariance.

    groups: runs; target: log of measured TPOT by index; mean and deviation: prior of the logarithms; noise: of log(TPOT);
    robust:
    from how many times the noise an error stops to pull (the loss of a Cauchy distribution); base: what is not fitted.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError("calibrate needs scipy: pip install 'steptime[calibrate]'") from None

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
    r"""Covariance of fitted constants when the runs of a model-system pair share their errors.

    $A^{-1} (\sum_p g_p g_p^T + \Lambda) A^{-1}$ with $g_p = \sum_{i \in p} J_i r_i$, $A = J^T J + \Lambda$ and the prior's
    $\Lambda = diag(1/s^2)$: the sandwich of clustered errors. errors $r$ (runs,), jacobian $J$ (runs, constants), deviation $s$
    (constants,), pairs: a label of each run. What no run tells keeps the variance of its prior.
    Source: Liang and Zeger, Biometrika 73 (1986), 13-22.

    >>> shared_covariance(np.zeros(1), np.zeros((1, 2)), np.array([0.5, 1.0]), np.array(["a"])).tolist()
    [[0.25, 0.0], [0.0, 1.0]]
    """
    prior = np.diag(1 / np.square(deviation))
    scores = np.stack([jacobian[pairs == pair].T @ errors[pairs == pair] for pair in sorted(set(pairs))])
    bread = np.linalg.inv(jacobian.T @ jacobian + prior)
    covariance: Array = bread @ (scores.T @ scores + prior) @ bread
    return covariance


def reading(groups: list[Runs]) -> list[Runs]:
    """Return the groups whose chips read their prompts."""
    return [runs for runs in groups if runs.prompts]


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Measured TTFT [s], not a number where there is none, and which of them are medians, not means."""

    seconds: Array
    medians: Array

    def select(self, groups: list[Runs]) -> FirstTokens:
        """Return those of the runs of `groups`, in their order."""
        index = np.concatenate([runs.index for runs in groups])
        return FirstTokens(self.seconds[index], self.medians[index])


def with_queue(engine: Engine, groups: list[Runs], measured: FirstTokens, mean: Array = QUEUE_USUAL) -> Engine:
    """Return the engine with what a request waits besides an orderly prompt queue, fitted to measured mean TTFT by index.

    mean: prior of the logarithms of `QUEUE_NAMES`.
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
    """Return the engine with what the simulator needs for first tokens, fitted to measured TTFT by index, and its loops.

    The loops are simulated twice, the second time with what was found. A user's few runs start from a `prior` engine. Without
    numba or a measured time the engine stays as it is.
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
    """log(measured TPOT) of every row; an engine cannot be fitted to a run without one."""
    without = [row["id"] for row in rows if not row.get("tpot_s")]
    if without:
        raise InputError(f"calibrate needs tpot_s of every run; {len(without)} have none, the first is {without[0]!r}")
    return np.log([float(row["tpot_s"]) for row in rows])


def measured_first_tokens(rows: list[dict[str, str]]) -> FirstTokens:
    """Measured TTFT of every row: its median, which says more of a server than the mean with its burst, or else the mean."""
    median, mean = (np.array([float(row.get(name) or "nan") for row in rows]) for name in ("ttft_median_s", "ttft_s"))
    has_median = np.isfinite(median)
    return FirstTokens(np.where(has_median, median, mean), has_median)


def label_of_pair(runs: Runs) -> str:
    """Return what runs of one model on one system are called."""
    return f"{runs.model.name} {runs.system.name}"


def known_from(groups: list[Runs], engine: Engine) -> dict[str, Any]:
    """Return what a fit says of its runs: the vendors of their chips, and the mean variance of log(time) from the constants.

    The variance is that which the errors of left-out runs hold already (`uncertainty`), by quantity and regime.
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
    """Return an engine fitted to a user's runs, with a shipped engine as prior: few runs move it little.

    The interval is the prior's until there are 50 runs or more of a regime.
    """
    lossless = next((n for n in (*NAMES, *QUEUE_NAMES) if not float(constant(prior, n)) > 0), None)
    if lossless:
        raise InputError(
            f"calibrate starts from an engine with losses, to make them larger or smaller; {prior.name} has no {lossless}: "
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
    """Return the TOML text of an engine file: constants, fit and where it came from."""
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
    # the share of times per token in their range, and of how many runs
    if "held" in engine.fit:
        lines += ["", "[fit.held]", *(f"{kind} = {list(value)}" for kind, value in engine.fit["held"].items())]
    for quantity, means in engine.fit.get("parameter_variance", {}).items():
        lines += ["", f"[fit.parameter_variance.{quantity}]"]
        lines += [f"{regime} = {mean:.3e}" for regime, mean in means.items()]
    for quantity, table in engine.fit.get("interval", {}).items():
        lines += ["", f"[fit.interval.{quantity}]"]
        lines += [f"{regime} = {list(factors)}" for regime, factors in table.items()]
    return "\n".join(lines) + "\n"
