"""Cross-validation: fits the shipped engines and measures their errors on a new model or a new system.

`fit_all` fits a typical engine to all runs, then each engine from it. It repeats the fits without each model and without each
system. The errors on the runs that were left out score a model structure and give the 90 % range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.number_checks import Array
from steptime.physics.engine import TYPICAL, Engine, label_values, with_constants
from steptime.physics.engine_parameters import RUN_WAITS
from steptime.physics.uncertainty import REGIMES
from steptime.validation.engine_fit import (
    BETWEEN,
    DEVIATIONS,
    NAMES,
    SMALL_KV,
    USUAL,
    FirstTokens,
    engine_from,
    fit,
    known_from,
    label_of_pair,
    log_tpot,
    measured_first_tokens,
    reading,
    with_queue,
    with_waits,
)
from steptime.validation.predictions import Runs, first_tokens, grouped, predict_runs

# Dimensions of cross-validation: one value at a time is left out of all engines.
LEFT_OUT = ("model", "system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fitted engines by name, and log(predicted / measured) of every run.

    fitted: errors of TPOT with all runs in the fit; left_out: errors of TPOT by the dimension left out (`LEFT_OUT`);
    left_out_ttft: errors of TTFT with the model left out; regime and bound: of each run.
    """

    engines: dict[str, Engine]
    fitted: Array
    left_out: dict[str, Array]
    left_out_ttft: Array
    regime: Array
    bound: Array


def fit_all(rows: list[dict[str, str]], *, leave_out: bool = True) -> Calibration:
    """Fit the typical engine and each engine, and cross-validate them.

    The waits of first tokens are fitted without the model as well, to loops that the engine of the full fit simulated.

    Args:
        rows: Runs with a measured TPOT.
        leave_out: Whether to repeat the fits without each model and without each system.

    Returns:
        Engines with covariance and 90 % ranges, and the errors of every run.
    """
    groups = grouped(rows, small_kv={name: flag > 0 for name, flag in SMALL_KV.items()})
    target, first = log_tpot(rows), measured_first_tokens(rows)

    # The typical engine is the prior of each engine, because engines differ little from it.
    names = sorted({row["engine"] for row in rows} - {TYPICAL})
    typical, deviation = fit(groups, target, USUAL, DEVIATIONS)
    logs, covariances = {TYPICAL: typical}, {TYPICAL: deviation}
    groups_by_engine = {TYPICAL: groups} | {name: [runs for runs in groups if runs.engine == name] for name in names}
    for name in names:
        logs[name], covariances[name] = fit(groups_by_engine[name], target, typical, BETWEEN, typical)
    fitted_engines: dict[str, Engine] = {}
    loops: dict[str, list[Any]] = {}
    for name, values in logs.items():
        engine = with_queue(engine_from(values, name=name), reading(groups_by_engine[name]), first)
        fitted_engines[name], loops[name] = with_waits(reading(groups_by_engine[name]), engine, first)
    fitted, out_ttft = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    bound, regime = (np.empty(len(rows), dtype=object) for _ in range(2))
    for runs in groups:
        tpot, _, bound[runs.index], regime[runs.index] = predict_runs(runs, fitted_engines[runs.engine])
        fitted[runs.index] = np.log(tpot) - target[runs.index]

    # Errors on a model or system that the fit has not seen give the 90 % range.
    out = {dimension: np.full(len(rows), np.nan) for dimension in LEFT_OUT}
    for dimension, label in _left_out(groups) if leave_out else ():
        training_groups = [runs for runs in groups if _label(runs, dimension) != label]
        without, _ = fit(training_groups, target, USUAL, DEVIATIONS, typical)
        for name in sorted({runs.engine for runs in groups if _label(runs, dimension) == label}):
            mine = [runs for runs in training_groups if runs.engine == name] if name != TYPICAL else []
            values = fit(mine, target, without, BETWEEN, logs[name])[0] if mine else without
            engine, loops_name = engine_from(values, name=name), name if mine else TYPICAL
            held_out = [runs for runs in groups_by_engine[name] if runs.engine == name and _label(runs, dimension) == label]
            for runs in held_out:
                out[dimension][runs.index] = np.log(predict_runs(runs, engine)[0]) - target[runs.index]
            if dimension == LEFT_OUT[0]:
                simulated = list(zip(reading(groups_by_engine[loops_name]), loops[loops_name], strict=bool(loops[loops_name])))
                _leave_first_tokens_out(
                    out_ttft, engine, held_out, training_groups if loops_name == TYPICAL else mine, simulated, first
                )
    engines = {}
    for name, engine in fitted_engines.items():
        of_name = np.array([name in (TYPICAL, row["engine"]) for row in rows])
        both = np.tile(of_name, len(LEFT_OUT)), np.tile(regime, len(LEFT_OUT))
        info = {
            "names": list(NAMES),
            "covariance": covariances[name].tolist(),
            "interval": {
                "tpot": intervals(np.concatenate([out[dimension] for dimension in LEFT_OUT]), both[1], both[0]),
                "ttft": intervals(out_ttft, regime, of_name),
            },
            "runs": int(of_name.sum()),
        }
        engines[name] = replace(engine, fit=info | known_from(groups_by_engine[name], replace(engine, fit=info)))
    return Calibration(engines=engines, fitted=fitted, left_out=out, left_out_ttft=out_ttft, regime=regime, bound=bound)


def _leave_first_tokens_out(
    errors: Array,
    engine: Engine,
    held_out: list[Runs],
    training_groups: list[Runs],
    simulated: list[tuple[Runs, Any]],
    first: FirstTokens,
) -> None:
    """Set log(predicted / measured) of TTFT of `held_out` runs, with waits fitted to the loops of `training_groups`."""
    prefill_groups = reading(training_groups)
    group_ids = {id(runs) for runs in prefill_groups}
    engine = with_queue(engine, prefill_groups, first)
    engine = _refitted(engine, prefill_groups, [loop for runs, loop in simulated if id(runs) in group_ids], first)
    for runs in reading(held_out):
        measured = first.select([runs])
        mean, median = first_tokens(runs, engine)
        errors[runs.index] = np.log(np.where(measured.medians, median, mean) / measured.seconds)


def _left_out(groups: list[Runs]) -> list[tuple[str, str]]:
    """Return each dimension and label to leave out: every model and every system."""
    return [(dimension, label) for dimension in LEFT_OUT for label in sorted({_label(runs, dimension) for runs in groups})]


def _label(runs: Runs, dimension: str) -> str:
    return runs.model.name if dimension == LEFT_OUT[0] else runs.system.name


def _refitted(engine: Engine, groups: list[Runs], loops: list[Any], measured: FirstTokens) -> Engine:
    """Return the engine with waits fitted to loops that were already simulated."""
    if not loops:
        return engine
    from steptime.validation import ttft_fit as first_token

    ttft = measured.select(groups)
    pairs = [label_of_pair(runs) for runs in groups]
    return with_constants(engine, label_values(RUN_WAITS, first_token.fit(loops, ttft.seconds, ttft.medians, pairs=pairs)))


def intervals(log_errors: Array, regime: Array, mask: Array) -> dict[str, list[float]]:
    """Return the 90 % range of measured over predicted values, by regime.

    Args:
        log_errors: log(predicted / measured), of shape (runs,).
        regime: Latency regime of each run.
        mask: Runs to include, as booleans.

    Returns:
        Lower and upper factor by regime; regimes with fewer than 10 runs are missing.
    """
    factor_ranges = {}
    for name in REGIMES:
        errors = log_errors[mask & (regime == name) & np.isfinite(log_errors)]
        if len(errors) >= 10:
            low, high = np.quantile(-errors, [0.05, 0.95])
            factor_ranges[name] = [round(math.exp(low), 4), round(math.exp(high), 4)]
    return factor_ranges
