r"""Measured runs to an engine file: fits an engine's physical constants, with their covariance and the scatter that is left.

The constants are fitted in their logarithms by least squares with a robust loss, to the logarithms of measured TPOT, each
with a prior: what is usual, and how far engines depart from it. `fit_all` fits one typical engine to all runs first, which is
the prior of each engine; a user's own few runs take a shipped engine as theirs. The 90 % interval is that of errors on runs
that were left out with their whole model-system pair, so that it holds for what was not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.engine import CONSTANTS, Engine
from steptime.errors import InputError
from steptime.hardware import Number
from steptime.validate import REGIMES, Runs, can_simulate, first_tokens, grouped, loops_of, predict_runs

NOISE = 0.2  # scatter of log(TPOT) that is common to the runs of a model on a system; repeats of one run differ by 4 %
OWN, OWN_NOISE = 3.0, 0.05  # one deployment departs further from an engine's mean, and repeats itself better
ROBUST = 1.5  # in units of the noise: errors beyond it count linearly
PREFILL_FIRST = ("sglang",)  # engines whose scheduler reads waiting prompts before it goes on decoding
STEP_TOKENS = {"sglang": 8192.0, "trtllm": 0.0}  # SGLang's chunks; TensorRT-LLM is built for a prompt and the batch in a step


@dataclass(frozen=True, slots=True)
class Prior:
    """What is usual of a constant, and the spread of its logarithm: before any run, and of engines about the typical one."""

    usual: float
    spread: float
    between: float


PRIORS: dict[str, Prior] = {
    "memory_efficiency": Prior(0.85, 0.1, 0.024),
    "compute_efficiency": Prior(0.7, 0.15, 0.045),
    "expert_efficiency": Prior(0.45, 0.5, 0.075),
    "attention_memory_efficiency": Prior(0.65, 0.15, 0.045),
    "attention_efficiency": Prior(0.6, 0.2, 0.06),
    "network_efficiency": Prior(0.5, 0.4, 0.06),
    "seconds_per_kernel": Prior(5e-6, 0.4, 0.045),
    "seconds_per_expert_layer": Prior(20e-6, 0.7, 0.12),
    "seconds_per_quantised_kernel": Prior(3e-6, 0.7, 0.09),
    "seconds_per_state_layer": Prior(20e-6, 0.7, 0.12),
    "seconds_per_selected_layer": Prior(30e-6, 0.7, 0.12),
    "seconds_per_collective": Prior(8e-6, 0.7, 0.075),
    "seconds_per_sequence": Prior(5e-6, 0.5, 0.09),
    "seconds_per_step": Prior(2e-4, 0.5, 0.09),
    "expert_imbalance": Prior(1.3, 0.15, 0.03),
    "expert_tile_rows": Prior(16.0, 0.5, 0.09),
    "length_spread": Prior(0.25, 0.3, 0.09),
}
NAMES = tuple(PRIORS)
USUAL = np.log([PRIORS[n].usual for n in NAMES])
SPREAD = np.array([PRIORS[n].spread for n in NAMES])
BETWEEN = np.array([PRIORS[n].between for n in NAMES])


WAIT_NAMES = ("seconds_before_queue", "seconds_before_queue_per_token", "steps_before_answer", "steps_to_balance")
QUEUE_NAMES = ("seconds_per_request", "first_token_factor")
QUEUE_USUAL = np.log([0.02, 1.5])
QUEUE_SPREAD = np.array([0.7, 0.4])


def engine_from(logs: Number, *, name: str) -> Engine:
    """Return the engine of fitted logarithms; an array of shape (n, constants) gives constants of shape (n, 1)."""
    values = np.exp(logs)
    constants = {n: values[i] if values.ndim == 1 else values[:, i, None] for i, n in enumerate(NAMES)}
    first = 1.0 if name in PREFILL_FIRST else 0.0
    return Engine(
        name=name,
        roofline_norm=4.0,
        activation_traffic=1.0,
        small_kv=1.0,
        prefill_first=first,
        step_tokens=STEP_TOKENS.get(name, 2048.0),
        **constants,
    )


def _log_errors(logs: Number, groups: list[Runs], target: Number) -> Number:
    """log(predicted / measured) of all runs, of shape (runs,), or (n, runs) for `logs` of shape (n, constants)."""
    parts = [np.log(predict_runs(runs, engine_from(logs, name=runs.engine))[0]) for runs in groups]
    order = np.concatenate([runs.index for runs in groups])
    joined = np.concatenate(
        [np.broadcast_to(p, (*np.shape(logs)[:-1], len(r.index))) for p, r in zip(parts, groups, strict=True)], axis=-1
    )
    return joined - target[order]


def fit(
    groups: list[Runs],
    target: Number,
    mean: Number,
    spread: Number,
    start: Number | None = None,
    noise: float = NOISE,
) -> tuple[Number, Number]:
    """Return the fitted logarithms of the constants, and their covariance.

    groups: runs; target: log of measured TPOT by index; mean and spread: prior of the logarithms.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError("calibrate needs scipy: pip install 'steptime[calibrate]'") from None

    def soft(errors: Number) -> Number:
        scaled = errors / noise
        return np.sign(scaled) * ROBUST * np.sqrt(2 * (np.sqrt(1 + (scaled / ROBUST) ** 2) - 1))

    def residuals(logs: Number) -> Number:
        return np.concatenate([soft(_log_errors(logs, groups, target)), (logs - mean) / spread])

    def jacobian(logs: Number) -> Number:
        step = 1e-4
        table = np.concatenate([logs[None, :], logs[None, :] + step * np.eye(len(NAMES))])
        errors = soft(_log_errors(table, groups, target))
        return np.concatenate([((errors[1:] - errors[0]) / step).T, np.diag(1 / spread)])

    found = least_squares(residuals, mean if start is None else start, jac=jacobian, max_nfev=40, xtol=1e-4, ftol=1e-5)
    return found.x, np.linalg.inv(found.jac.T @ found.jac)


def fit_queue(groups: list[Runs], engines: MappingABC[str, Engine], measured: Number, mean: Number = QUEUE_USUAL) -> Number:
    """Return the logarithms of what a request waits besides an orderly prompt queue, fitted to measured TTFT."""
    from scipy.optimize import least_squares

    orderly = np.concatenate([predict_runs(runs, engines[runs.engine])[1] for runs in groups])
    seen = np.concatenate([measured[runs.index] for runs in groups])
    known = np.isfinite(seen)

    def residuals(logs: Number) -> Number:
        wait, factor = np.exp(logs)
        errors = (np.log(wait + factor * orderly[known]) - np.log(seen[known])) / QUEUE_NOISE
        soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([soft, (logs - mean) / QUEUE_SPREAD])

    return least_squares(residuals, mean).x


QUEUE_NOISE = 0.3


def with_waits(groups: list[Runs], engine: Engine, measured: Number, prior: Engine | None = None, passes: int = 2) -> Engine:
    """Return the engine with what the simulator needs for first tokens, fitted to measured TTFT [s] by index.

    The loops are simulated anew with what was found, `passes` times in all. A user's few runs start from a `prior` engine.
    Without numba the engine stays as it is.
    """
    if not can_simulate():
        return engine
    from steptime.simulate import first_token

    mean, spread = first_token.USUAL, first_token.SPREAD
    if prior is not None:
        mean, spread = np.log(np.maximum(first_token.constants_of(prior), first_token.LEAST)), first_token.OWN
    seen = np.concatenate([measured[runs.index] for runs in groups])
    constants = np.exp(mean)
    for _ in range(passes if np.isfinite(seen).any() else 0):
        engine = first_token.with_constants(engine, constants)
        constants = first_token.fit([loops_of(runs, engine) for runs in groups], seen, mean, spread)
    return first_token.with_constants(engine, constants)


def _with_queue(engine: Engine, logs: Number) -> Engine:
    return replace(engine, **dict(zip(QUEUE_NAMES, np.exp(logs), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fitted engines by name, and log(predicted / measured) of TPOT and TTFT of every run, left out and not."""

    engines: dict[str, Engine]
    fitted: Number
    left_out: Number
    left_out_ttft: Number
    regime: Number


def _log_tpot(rows: list[dict[str, str]]) -> Number:
    """log(measured TPOT) of every row; an engine cannot be fitted to a run without one."""
    without = [row["id"] for row in rows if not row.get("tpot_s")]
    if without:
        raise InputError(f"calibrate needs tpot_s of every run; {len(without)} have none, the first is {without[0]!r}")
    return np.log([float(row["tpot_s"]) for row in rows])


def _first_tokens(rows: list[dict[str, str]]) -> Number:
    """Measured TTFT of every row [s], not a number where there is none."""
    return np.array([float(row.get("ttft_s") or "nan") for row in rows])


def fit_all(rows: list[dict[str, str]], *, leave_out: bool = True) -> Calibration:
    """Fit a typical engine and each engine of the rows; with `leave_out`, again without each model-system pair."""
    groups = grouped(rows)
    target = _log_tpot(rows)
    names = sorted({row["engine"] for row in rows})
    pairs = {(runs.model.name, runs.system.name) for runs in groups}
    typical, spread = fit(groups, target, USUAL, SPREAD)
    logs = {"typical": typical}
    covariances = {"typical": spread}
    for name in names:
        mine = [runs for runs in groups if runs.engine == name]
        logs[name], covariances[name] = fit(mine, target, typical, BETWEEN, typical)
    first = _first_tokens(rows)
    made = {name: engine_from(values, name=name) for name, values in logs.items()}
    queue = {name: fit_queue([r for r in groups if name in ("typical", r.engine)], _under(made, name), first) for name in logs}
    fitted, out, out_ttft = (np.full(len(rows), np.nan) for _ in range(3))
    regime = np.empty(len(rows), dtype=object)
    for runs in groups:
        tpot, _, _, regime[runs.index] = predict_runs(runs, engine_from(logs[runs.engine], name=runs.engine))
        fitted[runs.index] = np.log(tpot) - target[runs.index]
    for pair in sorted(pairs) if leave_out else ():
        rest = [runs for runs in groups if (runs.model.name, runs.system.name) != pair]
        without, _ = fit(rest, target, USUAL, SPREAD, typical)
        for name in names:
            left = [runs for runs in groups if (runs.model.name, runs.system.name) == pair and runs.engine == name]
            if not left:
                continue
            mine = [runs for runs in rest if runs.engine == name]
            of, _ = fit(mine, target, without, BETWEEN, logs[name]) if mine else (without, None)
            engine = engine_from(of, name=name)
            known = mine or rest
            engine = _with_queue(engine, fit_queue(known, {r.engine: engine for r in known}, first))
            engine = with_waits(known, engine, first, passes=1)
            for runs in left:
                tpot, ttft, _, _ = predict_runs(runs, engine)
                if can_simulate():
                    ttft = first_tokens(runs, engine)
                out[runs.index] = np.log(tpot) - target[runs.index]
                out_ttft[runs.index] = np.log(ttft / first[runs.index])
    engines = {}
    for name in logs:
        of_name = np.array([name in ("typical", row["engine"]) for row in rows])
        table = {
            "tpot": intervals(out, regime, of_name),
            "ttft": intervals(out_ttft, regime, of_name),
        }
        info = {"names": list(NAMES), "covariance": covariances[name].tolist(), "interval": table, "runs": int(of_name.sum())}
        of_engine = [runs for runs in groups if name in ("typical", runs.engine)]
        engines[name] = replace(with_waits(of_engine, _with_queue(made[name], queue[name]), first), fit=info)
    return Calibration(engines=engines, fitted=fitted, left_out=out, left_out_ttft=out_ttft, regime=regime)


def _under(made: MappingABC[str, Engine], name: str) -> dict[str, Engine]:
    """The engines that runs are predicted with when `name` is fitted: the typical one for all, or its own."""
    return dict.fromkeys(made, made[name])


def intervals(log_errors: Number, regime: Number, chosen: Number) -> dict[str, list[float]]:
    """Return, by regime, the factors on a prediction that 90 % of measured values lie between."""
    found = {}
    for name in REGIMES:
        errors = log_errors[chosen & (regime == name) & np.isfinite(log_errors)]
        if len(errors) >= 10:
            low, high = np.quantile(-errors, [0.05, 0.95])
            found[name] = [round(math.exp(low), 4), round(math.exp(high), 4)]
    return found


def calibrate(rows: list[dict[str, str]], *, name: str, prior: Engine) -> Engine:
    """Return an engine fitted to a user's runs, with a shipped engine as prior: few runs move it little.

    The interval is the prior's until there are 50 runs or more of a regime.
    """
    groups = [replace(runs, engine=prior.name) for runs in grouped(rows)]
    target = _log_tpot(rows)
    mean = np.log([getattr(prior, n) for n in NAMES])
    logs, covariance = fit(groups, target, mean, OWN * BETWEEN, mean, OWN_NOISE)
    fitted = engine_from(logs, name=prior.name)
    first = _first_tokens(rows)
    usual = np.log([getattr(prior, n) for n in QUEUE_NAMES])
    fitted = _with_queue(fitted, fit_queue(groups, {prior.name: fitted}, first, usual))
    fitted = with_waits(groups, replace(fitted, step_tokens=prior.step_tokens), first, prior)
    info: dict[str, Any] = {"names": list(NAMES), "covariance": covariance.tolist(), "runs": len(rows)}
    info["interval"] = prior.fit.get("interval", {})
    return replace(fitted, name=name, title=f"{prior.name} fitted to {len(rows)} runs", fit=info)


def engine_file(engine: Engine, source: MappingABC[str, str]) -> str:
    """Return the TOML text of an engine file: constants, fit and where it came from."""
    default = Engine()
    lines = [f'name = "{engine.name}"', f'title = "{engine.title}"', "", "[source]"]
    lines += [f'{key} = "{value}"' for key, value in source.items()]
    lines += ["", "[constants]"]
    for name in CONSTANTS:
        value = float(getattr(engine, name))
        if value != getattr(default, name):
            lines.append(f"{name} = {value:.4g}" if "e" not in f"{value:.4g}" else f"{name} = {value:.3e}")
    lines += ["", "[fit]", f"runs = {engine.fit['runs']}", f"names = {list(engine.fit['names'])}".replace("'", '"')]
    lines.append("covariance = [")
    symmetric = np.array(engine.fit["covariance"])
    lines += ["  [" + ", ".join(f"{x:.3e}" for x in row) + "]," for row in (symmetric + symmetric.T) / 2]
    lines.append("]")
    for quantity, table in engine.fit["interval"].items():
        lines += ["", f"[fit.interval.{quantity}]"]
        lines += [f"{regime} = {list(factors)}" for regime, factors in table.items()]
    return "\n".join(lines) + "\n"
