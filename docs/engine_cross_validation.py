"""Fits of the shipped engines to all measured runs, and their errors on a new model or a new system.

`fit_all` first fits a typical engine to all runs; it is the prior of each engine. Priors are narrow, because engines differ
little on a new model. The fits are repeated without each model and without each system. The errors on the runs that were left
out score a model structure and give the 90 % range. So the range holds for new models and systems. Runs of one model on one
system share flags that no column records. In the fit of first tokens they count as at most `MOST_PER_PAIR` runs.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.number_checks import Array
from steptime.physics.attention_kernels import load_kernels
from steptime.physics.engine import TYPICAL, Engine, label_values, with_constants
from steptime.physics.engine_parameters import RUN_WAITS
from steptime.physics.expert_kernels import EXCHANGED, STORED, ExpertFactor, ExpertKernel, exchanged_kind, stored_kind
from steptime.physics.layout import exchanges_experts
from steptime.physics.uncertainty import REGIMES, WAITS, wait_regime
from steptime.validation import engine_fit
from steptime.validation.closed_loop import Runs, solve_closed_loops
from steptime.validation.engine_fit import (
    BETWEEN_ENGINES,
    FirstTokens,
    label_of_pair,
    log_tpot,
    measured_first_tokens,
    with_queue,
    with_waits,
)
from steptime.validation.predictions import first_tokens, grouped, predict_runs, resolve_engine, time_variances

# Scatter of log(TPOT) between groups of a model, system, engine and version; repeats of one run differ by 4 %.
NOISE = 0.26
# In units of the noise: larger errors have little weight, because some rows do not describe their run.
ROBUST = 0.5
# Engines whose scheduler runs the prefill of waiting prompts before it continues decode.
PREFILL_FIRST = ("sglang",)
# vLLM (--enable-dbo) and SGLang overlap two micro-batches when data-parallel ranks exchange tokens between experts.
TWO_BATCH = {"trtllm": 0.0}
# Engines with a 16-bit KV cache by default; other engines' runs of 8-bit models set an 8-bit cache.
SMALL_KV = {"sglang": 0.0}
# Bytes per slot and entry of the vocabulary in vLLM's sampler: logits of 2 and of 4 bytes, their sort (4 and 8) and sums (4).
# With 256 slots and a step of 8,192 tokens, Llama-3-8B has 1.16 GB with its activations; vLLM measures 1.35 GB (PR 10511).
SAMPLING_BYTES = {"vllm": 22.0, "typical": 22.0}
# Seconds of top-p kernels per token and entry: 128 rows of 131,072 entries take 0.139 ms in FlashInfer's kernel, 0.528 ms in
# vLLM's (Triton) and 2.318 ms with a sort in PyTorch; 512 rows take 0.372, 2.013 and 6.150 ms, which is 92 ps an entry for the
# sort of releases before 0.12 (https://github.com/vllm-project/vllm/pull/40376).
TOP_P_SECONDS = {"vllm": 3.1e-11, "typical": 3.1e-11}
# Prefill tokens per step: SGLang's chunk size; 0 for TensorRT-LLM, which runs a whole prompt with the batch.
STEP_TOKENS = {"sglang": 8192.0, "trtllm": 0.0}
# TensorRT-LLM launches a step with prompts kernel by kernel, unless enable_piecewise_cuda_graph is set (InferenceX's scripts of
# some loads). A step with a prompt of 1,024 takes at least 18 to 20 ms in 32 layers (Llama-3.1-8B on 2 to 8 H100). In 64 layers
# it takes 35 to 40 ms (Qwen3-32B on 4 and 8), in 94 layers 31 ms (Qwen3-235B, 128 to 256 tokens). Steps of SGLang have
# no such minimum.
# A layer with latent attention takes twice as much in addition. On 4 to 8 B200, DeepSeek-R1 has a first token after 0.16 to
# 0.19 s with prompts of 1,024, after 0.21 s with those of 8,192, and after 0.14 s with piecewise graphs (EP 8, 64 clients).
LAUNCHED_LAYER, LAUNCHED_LATENT_LAYER = {"trtllm": 4e-4}, {"trtllm": 8e-4}
# vLLM has graphs for up to 512 tokens (vllm/config/compilation.py, max_cudagraph_capture_size). Above, compiled pieces launch
# the products of a layer and what surrounds them.
LAUNCHED_KERNEL, GRAPH_TOKENS = {"vllm": 1.2e-4}, {"vllm": 512.0}
# Share of the fixed times of kernels and collectives since 1.2, which launches each kernel while the one before it ends: by
# default (github.com/NVIDIA/TensorRT-LLM/issues/16330), and more kernels than 1.1 (pull/7977). This is what 162 runs say, with
# other models left out. A trace of DeepSeek-V3.1 in 4 bits on 16 GB200, with 32 sequences a rank, has 0.935 of the time of all
# layers (github.com/ai-dynamo/aiconfigurator/pull/550). Runs of vLLM and SGLang show no such change of a release.
LAUNCH_TIME = {"trtllm": 0.765}
# Whole runs of TensorRT-LLM show more than its timed products in 8 and 4 bits: prefill of Llama-3.1-70B has 0.65 of the peak
# of an H200 (products alone 0.59), and MLPerf's runs in 4 bits 0.7 of it at maximum throughput.
EIGHT_BIT, FOUR_BIT = {"trtllm": 0.85}, {"trtllm": 0.75}


@dataclass(frozen=True, slots=True)
class Prior:
    """Usual value of a constant before any run, and the deviation of its logarithm."""

    usual: float
    deviation: float


# Usual values: GEMM, grouped GEMM, attention and all-reduce kernels in AIConfigurator's tables of ten systems.
PRIORS: dict[str, Prior] = {
    "memory_efficiency": Prior(0.82, 0.035),
    "compute_efficiency": Prior(0.7, 0.05),
    "attention_time": Prior(1.0, 0.15),
    "seconds_per_kernel": Prior(3.3e-6, 0.1),
    "seconds_per_quantised_kernel": Prior(5e-6, 0.2),
    "seconds_per_collective": Prior(5e-6, 0.25),
    "seconds_per_sequence": Prior(5e-6, 0.25),
    "expert_call": Prior(1.0, 0.3),
}
# The constants of whole runs; each kind of experts (engine, generation of chips, stored format) has a factor besides.
FITTED = tuple(PRIORS)
# Factor on the kernels of experts with block scales where ranks exchange tokens. The rows of each expert arrive in a padded
# array, which is copied and quantised besides. Separate pools, which are in no other fit, say 1.4 (TensorRT-LLM on GB200,
# 15 runs), 1.5 (on B200, 13) and 1.75 (SGLang on GB200, 43). Two published deployments of SGLang on 48 GB200 say 1.5 (7,583
# tok/s a chip, lmsys.org/blog/2025-06-16-gb200-part-1) and 1.1 (9,087 tok/s, 2025-09-25-gb200-part-2), with 768 to 1,024
# sequences a chip. This is their geometric mean.
EXCHANGED_FACTORS = (ExpertFactor(chips="blackwell", stored=EXCHANGED, factor=1.4, runs=71),)
# Deviation of the logarithm of a factor around the timed kernels, and where no kernel of the chips was timed.
FACTOR_DEVIATION, UNTIMED_DEVIATION = 0.15, 0.4
# Not fitted: isolated kernel measurements determine these better than whole runs.
FIXED_CONSTANTS: dict[str, Any] = {
    # int4 experts: the rate at which the errors of B200 and H200 are equal.
    "unpack_rate": 4.5e12,
    # Share of the data sheet over that of 16-bit GEMMs, medians of AIConfigurator's tables with 1,024 to 8,192 rows and 16
    # million weights or more: 8 bits 0.72 (H100), 0.76 (H200), 0.72 (B200), on Hopper also with block scales (0.72); B200 with
    # block scales 0.83, in 4 bits 0.58 (`eight_bit_efficiency` and `fp4_efficiency` below).
    "block_efficiency": 0.8,
    "roofline_norm": 2.5,
    # Isolated FP8 GEMMs on H800, without the time to write their outputs.
    "fill_bytes": 300.0,
    "activation_traffic": 1.0,
    "network_efficiency": 0.65,
    "exchange_time": 1.0,
    "chip_departure": 0.5,
    "seconds_per_layer": 6e-6,
    "seconds_per_latent_layer": 6e-6,
    "seconds_per_state_layer": 33e-6,
    "seconds_per_selected_layer": 60e-6,
    "seconds_per_step": 2e-4,
    # Counted in 58 layers of DeepSeek-R1 on 32 GB200: a deviation of 164.1 tokens for a mean of 128 per expert, of which chance
    # is 11 (TensorRT-LLM, tech blog 4, table 1). Such experts are touched as often as those of an evenness of 1, within 5 %.
    "expert_skew": 1.28,
    "expert_evenness": 1.0,
    "expert_time": 1.0,
    # Errors of models and systems that were left out are the same with these two fitted.
    "narrow_efficiency": 0.75,
    "seconds_per_expert_layer": 4e-6,
    # vLLM on H100: 1.79 GiB outside PyTorch on one chip of two more than on a single one; SGLang on 8 H200: 2.0 GB.
    # https://github.com/vllm-project/vllm/pull/10511, https://github.com/sgl-project/sglang/pull/11716
    "collective_bytes": 1.92e9,
    "memory_share": 0.92,
}
# Deviation of the logarithm of a constant that no run determines. Published skews of experts, each as a log-normal: 0.48
# (DeepSeek-R1, a fifth of the experts with 35 % of the tokens) and 1.9 (Qwen3-235B, 65 %), both by comparison of latencies; and
# 1.28 (DeepSeek-R1, counted). Layers and data differ too: the busiest rank of a layer has 1.5 to 3.5 times the mean. The three
# logarithms deviate by 0.7 from each other, and are within 90 % of a log-normal around 1.28 with this deviation.
# https://github.com/ai-dynamo/aiconfigurator: power-law distribution in MoE workload simulation; TensorRT-LLM, ep_load_balancer
# The others: spread of shipped kernels in AIConfigurator's tables (efficiencies 0.15 to 0.3), and half to twice a counted time.
NOT_DETERMINED = {
    "expert_skew": 0.6,
    "unmeasured_expert_time": FACTOR_DEVIATION,
    "expert_evenness": 0.5,
    "network_efficiency": 0.3,
    "exchange_time": 0.3,
    "block_efficiency": 0.2,
    "eight_bit_efficiency": 0.15,
    "fp4_efficiency": 0.15,
    "narrow_efficiency": 0.15,
    "unpack_rate": 0.3,
    "chip_departure": 0.5,
    "roofline_norm": 0.3,
    "fill_bytes": 0.5,
    "seconds_per_layer": 0.5,
    "seconds_per_latent_layer": 0.5,
    "seconds_per_expert_layer": 0.5,
    "seconds_per_state_layer": 0.7,
    "seconds_per_selected_layer": 0.7,
    "seconds_per_step": 0.7,
    "launch_time": 0.15,
    "seconds_per_launched_layer": 0.3,
    "seconds_per_launched_kernel": 0.3,
    "seconds_per_launched_latent_layer": 0.5,
    "top_p_seconds_per_entry": 0.7,
}
USUAL = np.log([PRIORS[n].usual for n in FITTED])
DEVIATIONS = np.array([PRIORS[n].deviation for n in FITTED])
BETWEEN = np.array([BETWEEN_ENGINES[n] for n in FITTED])
# Usual waits besides the prefill queue (`QUEUE_NAMES`).
QUEUE_USUAL = np.log([0.02, 1.5])
# Prior of the logarithms of the waits of simulated loops (`RUN_WAITS`): a [s], b [s per token], n, w [steps] and s [s].
WAITS_USUAL = np.log([0.012, 3e-6, 2.0, 2.0, 1.0])
WAITS_DEVIATIONS = np.array([0.5, 0.5, 0.3, 1.5, 1.0])
# Maximum weight, in runs, of all runs of one model on one system.
MOST_PER_PAIR = 10.0
# Fewest runs of a group that counts in a range.
LEAST_OF_GROUP = 10
# Dimensions of cross-validation: one value at a time is left out of all engines.
LEFT_OUT = ("model", "system")


def base_engine(name: str) -> Engine:
    """Return an engine with the constants and settings that are not fitted.

    Args:
        name: Name of the engine.

    Returns:
        The engine.
    """
    settings = {
        "prefill_first": 1.0 if name in PREFILL_FIRST else 0.0,
        "step_tokens": STEP_TOKENS.get(name, 2048.0),
        "two_batch": TWO_BATCH.get(name, 1.0),
        "small_kv": SMALL_KV.get(name, 1.0),
        "eight_bit_efficiency": EIGHT_BIT.get(name, 0.75),
        "fp4_efficiency": FOUR_BIT.get(name, 0.6),
        "launch_time": LAUNCH_TIME.get(name, 1.0),
        "seconds_per_launched_layer": LAUNCHED_LAYER.get(name, 0.0),
        "seconds_per_launched_latent_layer": LAUNCHED_LATENT_LAYER.get(name, 0.0),
        "seconds_per_launched_kernel": LAUNCHED_KERNEL.get(name, 0.0),
        "graph_tokens": GRAPH_TOKENS.get(name, 0.0),
        # vLLM samples inside its share of the memory; the share of others leaves room for it.
        "sampling_bytes": SAMPLING_BYTES.get(name, 0.0),
        "top_p_seconds_per_entry": TOP_P_SECONDS.get(name, 8.3e-12),
    }
    shipped = resolve_engine(name)
    engine = Engine(name=name, kernel_engine=shipped.kernel_engine, arithmetic=shipped.arithmetic, releases=shipped.releases)
    return with_constants(engine, settings | FIXED_CONSTANTS)


@dataclass(frozen=True, slots=True)
class ExpertKind:
    """Routed experts whose time has a separate factor: engine, generation of chips, stored format; and the number of runs."""

    engine: str
    chips: str
    stored: str
    runs: int = 0


def count_kinds(runs: Runs) -> dict[tuple[str, str, str], int]:
    """Return the number of runs by engine, generation of chips and stored format of their routed experts.

    Runs whose data-parallel ranks exchange tokens have a format of their own where the engine has other kernels for them.
    """
    routed = [op for layer, _ in runs.model.layers for op in layer.ops if op.rows == "routed"]
    if not routed:
        return {}
    chips, stored = runs.system.chip.generation, stored_kind(max(routed, key=lambda op: op.weights).format)
    exchanging, count, exchanges = (runs.engine, chips, exchanged_kind(chips, stored, runs.engine)), len(runs.index), 0
    if exchanging in load_kernels(ExpertKernel):
        exchanges = int(np.broadcast_to(exchanges_experts(runs.layout), count).sum())
    counts = {(runs.engine, chips, stored): count - exchanges, exchanging: exchanges}
    return {kind: number for kind, number in counts.items() if number}


@dataclass(frozen=True, slots=True)
class Constants:
    """The fitted logarithms: those of `FITTED`, then a factor for each kind of experts."""

    kinds: tuple[ExpertKind, ...]

    @property
    def usual(self) -> Array:
        """Prior mean of the logarithms."""
        return np.concatenate([USUAL, np.zeros(len(self.kinds))])

    @property
    def deviations(self) -> Array:
        """Prior deviation of the logarithms."""
        return np.concatenate([DEVIATIONS, self._factor_deviations()])

    def near(self, logs: Array) -> tuple[Array, Array]:
        """Return mean and deviation of the prior of an engine, from the fit to all engines."""
        mean = np.concatenate([logs[: len(FITTED)], np.zeros(len(self.kinds))])
        return mean, np.concatenate([BETWEEN, self._factor_deviations()])

    def _factor_deviations(self) -> list[float]:
        kernels = load_kernels(ExpertKernel)
        known = [{("", kind.chips, kind.stored), (kind.engine, kind.chips, kind.stored)} & set(kernels) for kind in self.kinds]
        return [FACTOR_DEVIATION if timed else UNTIMED_DEVIATION for timed in known]

    def build_engine(self, logs: Array, runs: Runs) -> Engine:
        """Return the engine of runs, with the factor of their kind of experts."""
        kinds, factors = count_kinds(runs), []
        for place, known in enumerate(self.kinds, len(FITTED)):
            if (known.engine, known.chips, known.stored) in kinds:
                factor = np.exp(logs[..., place])
                value = factor[:, None] if logs.ndim == 2 else float(factor)
                factors.append(ExpertFactor(chips=known.chips, stored=known.stored, factor=value, runs=known.runs))
        engine = engine_fit.engine_from(logs[..., : len(FITTED)], base_engine(runs.engine), FITTED)
        return replace(engine, expert_factors=(*factors, *EXCHANGED_FACTORS))

    def engine(self, logs: Array, name: str) -> Engine:
        """Return a shipped engine. The typical engine has the mean factors of all engines where it has no runs."""
        engine = engine_fit.engine_from(logs[: len(FITTED)], base_engine(name), FITTED)
        sums: dict[tuple[str, str], list[tuple[float, int]]] = {}
        for place, kind in enumerate(self.kinds, len(FITTED)):
            if name == kind.engine or (name == TYPICAL and kind.stored in STORED):
                sums.setdefault((kind.chips, kind.stored), []).append((float(logs[place]), kind.runs))
        factors = []
        for (chips, stored), parts in sorted(sums.items()):
            runs = sum(count for _, count in parts)
            mean = sum(log * count for log, count in parts) / runs
            factors.append(ExpertFactor(chips=chips, stored=stored, factor=float(f"{math.exp(mean):.4g}"), runs=runs))
        return replace(engine, expert_factors=(*factors, *EXCHANGED_FACTORS))

    def covariance(self, covariance: Array, name: str) -> Array:
        """Return the covariance of `FITTED` and `expert_time`, which stands for the factors of an engine.

        One factor cannot take the errors out that kernels have by shape, so that both factors of timed kernels keep their prior
        variance besides: a step of long contexts, or of experts alone, is less certain than the fitted runs.
        """
        count = len(FITTED)
        mine = [place for place, kind in enumerate(self.kinds, count) if name in (kind.engine, TYPICAL)]
        result = np.zeros((count + 1, count + 1))
        result[:count, :count] = covariance[:count, :count]
        result[count, count] = np.mean(np.diagonal(covariance)[mine]) if mine else 0.0
        for place in (FITTED.index("attention_time"), count):
            result[place, place] += FACTOR_DEVIATION**2
        return result


def constants_of(groups: list[Runs]) -> Constants:
    """Return the constants that groups of runs determine."""
    counts = Counter[tuple[str, str, str]]()
    for runs in groups:
        counts.update(count_kinds(runs))
    return Constants(tuple(ExpertKind(*kind, runs=count) for kind, count in sorted(counts.items())))


def group_all(rows: list[dict[str, str]]) -> list[Runs]:
    """Group rows, with the KV cache of the shipped engines.

    Args:
        rows: Runs.

    Returns:
        Groups of runs.
    """
    return grouped(rows, {name: base_engine(name) for name in {row["engine"] for row in rows}})


def fit(
    groups: list[Runs], target: Array, of: Constants, prior: tuple[Array, Array], start: Array | None = None
) -> tuple[Array, Array]:
    """Fit the constants of an engine to public runs (`engine_fit.fit`).

    Args:
        groups: Runs.
        target: log of measured TPOT by index of a run.
        of: The constants.
        prior: Mean and deviation of their logarithms.
        start: Start of the fit; by default the prior mean.

    Returns:
        Fitted logarithms of the constants, of shape (constants,), and their covariance.
    """
    return engine_fit.fit(groups, target, *prior, of.build_engine, start=start, noise=NOISE, robust=ROBUST)


def reading(groups: list[Runs]) -> list[Runs]:
    """Return the groups whose chips run prefill.

    Args:
        groups: Groups of runs.

    Returns:
        Groups that are not decode-only pools.
    """
    return [runs for runs in groups if runs.prompts]


def pair_weights(groups: list[Runs], measured: FirstTokens) -> Array:
    """Return weights of errors of TTFT by model-system pair.

    Args:
        groups: Groups of runs.
        measured: Measured TTFT by index of a run.

    Returns:
        Weights in the order of the groups; 1 without a measured TTFT.
    """
    pairs = np.array([label_of_pair(runs) for runs in groups for _ in runs.index])
    all_weights = np.ones(len(pairs))
    is_measured = np.isfinite(np.concatenate([measured.seconds[runs.index] for runs in groups] or [np.ones(0)]))
    all_weights[is_measured] = weights(pairs[is_measured])
    return all_weights


def weights(labels: Array) -> Array:
    """Return weights of errors that limit the influence of a label.

    The squared weights of one label add up to at most `MOST_PER_PAIR`.

    Args:
        labels: Label of each run.

    Returns:
        Weights, of shape (runs,).
    """
    _, place, count = np.unique(labels, return_inverse=True, return_counts=True)
    return np.sqrt(np.minimum(1.0, MOST_PER_PAIR / count))[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fitted engines by name, and log(predicted / measured) of every run.

    fitted: errors of TPOT with all runs in the fit; left_out: errors of TPOT by the dimension left out (`LEFT_OUT`);
    left_out_ttft: errors of TTFT with the model left out; regime, waiting and bound: of each run.
    """

    engines: dict[str, Engine]
    fitted: Array
    left_out: dict[str, Array]
    left_out_ttft: Array
    regime: Array
    waiting: Array
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
    groups = group_all(rows)
    target, first = log_tpot(rows), measured_first_tokens(rows)

    # The typical engine is the prior of each engine, because engines differ little from it.
    names = sorted({row["engine"] for row in rows} - {TYPICAL})
    of = constants_of(groups)
    typical, covariance = fit(groups, target, of, (of.usual, of.deviations))
    logs, covariances = {TYPICAL: typical}, {TYPICAL: covariance}
    groups_by_engine = {TYPICAL: groups} | {name: [runs for runs in groups if runs.engine == name] for name in names}
    for name in names:
        logs[name], covariances[name] = fit(groups_by_engine[name], target, of, of.near(typical), typical)
    fitted_engines: dict[str, Engine] = {}
    loops: dict[str, list[Any]] = {}
    for name, values in logs.items():
        prefill_groups = reading(groups_by_engine[name])
        engine = with_queue(of.engine(values, name), prefill_groups, first, QUEUE_USUAL)
        weight = pair_weights(prefill_groups, first)
        fitted_engines[name], loops[name] = with_waits(engine, prefill_groups, first, WAITS_USUAL, WAITS_DEVIATIONS, weight)
    fitted, out_ttft = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    bound, regime, waiting = (np.empty(len(rows), dtype=object) for _ in range(3))
    for runs in groups:
        tpot, _, bound[runs.index], regime[runs.index] = predict_runs(runs, fitted_engines[runs.engine])
        fitted[runs.index] = np.log(tpot) - target[runs.index]
        waiting[runs.index] = waits_of(runs, fitted_engines[runs.engine])

    # Errors on a model or system that the fit has not seen give the 90 % range.
    out = {dimension: np.full(len(rows), np.nan) for dimension in LEFT_OUT}
    for dimension, label in _left_out(groups) if leave_out else ():
        training_groups = [runs for runs in groups if _label(runs, dimension) != label]
        without, _ = fit(training_groups, target, of, (of.usual, of.deviations), typical)
        for name in sorted({runs.engine for runs in groups if _label(runs, dimension) == label}):
            mine = [runs for runs in training_groups if runs.engine == name] if name != TYPICAL else []
            values = fit(mine, target, of, of.near(without), logs[name])[0] if mine else without
            engine, loops_name = of.engine(values, name), name if mine else TYPICAL
            held_out = [runs for runs in groups_by_engine[name] if runs.engine == name and _label(runs, dimension) == label]
            for runs in held_out:
                out[dimension][runs.index] = np.log(predict_runs(runs, engine)[0]) - target[runs.index]
            if dimension == LEFT_OUT[0]:
                simulated = list(zip(reading(groups_by_engine[loops_name]), loops[loops_name], strict=bool(loops[loops_name])))
                _leave_first_tokens_out(
                    out_ttft, engine, held_out, training_groups if loops_name == TYPICAL else mine, simulated, first
                )
    # The worse of the errors without the model and without the system.
    worse = np.where(np.abs(out[LEFT_OUT[0]]) >= np.abs(out[LEFT_OUT[1]]), out[LEFT_OUT[0]], out[LEFT_OUT[1]])
    every = np.ones(len(rows), dtype=bool)
    ranges = {
        "tpot": dict.fromkeys(REGIMES, interval_of_groups(worse, rows, every)),
        "ttft": {name: interval_of_groups(out_ttft, rows, waiting == name) for name in WAITS},
    }
    engines = {}
    for name, engine in fitted_engines.items():
        of_name = np.array([name in (TYPICAL, row["engine"]) for row in rows])
        info = {
            "names": [*FITTED, "expert_time"],
            "covariance": of.covariance(covariances[name], name).tolist(),
            "prior": {n: deviation for n, deviation in NOT_DETERMINED.items() if n != "launch_time" or name in LAUNCH_TIME},
            "interval": ranges,
            "runs": int(of_name.sum()),
        }
        engines[name] = replace(engine, fit=info | known_from(groups_by_engine[name], replace(engine, fit=info)))
    return Calibration(
        engines=engines, fitted=fitted, left_out=out, left_out_ttft=out_ttft, regime=regime, waiting=waiting, bound=bound
    )


def waits_of(runs: Runs, engine: Engine) -> Array:
    """Return the regime of the first tokens of runs."""
    loop = solve_closed_loops(runs, engine)
    return wait_regime(loop.ttft, loop.prompt_seconds)


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
    engine = with_queue(engine, prefill_groups, first, QUEUE_USUAL)
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
    from steptime.validation.ttft_fit import fit as fit_waits

    ttft = measured.select(groups)
    weight = pair_weights(groups, measured)
    waits = fit_waits(loops, ttft.seconds, ttft.medians, WAITS_USUAL, WAITS_DEVIATIONS, weight)
    return with_constants(engine, label_values(RUN_WAITS, waits))


def interval_of_groups(log_errors: Array, rows: list[dict[str, str]], mask: Array) -> list[float]:
    """Return the 90 % range of measured over predicted values of a group that no fit has seen.

    Errors of a group (model, system, engine) are alike, and groups have 2 to 277 runs. Quantiles over runs describe the large
    groups, which lie near the fit: they held 77 % of the runs of a group on average. Here each group has the same weight;
    groups of fewer than `LEAST_OF_GROUP` runs are left out, since a wrong record would be a group. Few models stand for all:
    the quantiles are those of Student's distribution with as many degrees of freedom as there are models less one.

    Args:
        log_errors: log(predicted / measured) of left-out runs, of shape (runs,); NaN where not measured.
        rows: The runs.
        mask: Runs to include, as booleans.

    Returns:
        Lower and upper factor.
    """
    labels = np.array([" ".join((row["model"], row["system"], row["engine"])) for row in rows])
    known = mask & np.isfinite(log_errors)
    _, place, count = np.unique(labels[known], return_inverse=True, return_counts=True)
    large = (count >= LEAST_OF_GROUP)[place]
    errors, weight = -log_errors[known][large], (1 / count[place])[large]
    order = np.argsort(errors)
    shares = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    models = len({row["model"] for row, is_known in zip(rows, known, strict=True) if is_known})
    # It takes longer to import than all others.
    from scipy.stats import norm, t

    low, high = np.exp(t.ppf(0.95, models - 1) / norm.ppf(0.95) * np.interp([0.05, 0.95], shares, errors[order]))
    return [round(float(low), 4), round(float(high), 4)]


def held_by_others(errors: Array, models: Array, rows: list[dict[str, str]]) -> tuple[Array, float]:
    """Return which left-out runs are inside the range that follows from the groups of other models.

    Args:
        errors: log(predicted / measured) of left-out runs, of shape (runs,).
        models: Model of each run.
        rows: The runs.

    Returns:
        Booleans of shape (runs,), and the median ratio of the ends of the ranges.
    """
    inside, widths = np.zeros(len(errors), dtype=bool), []
    for model in sorted(set(models)):
        place = models == model
        low, high = interval_of_groups(errors, rows, ~place)
        inside[place] = (np.exp(-errors[place]) >= low) & (np.exp(-errors[place]) <= high)
        widths.append(high / low)
    return inside, float(np.median(widths))


def known_from(groups: list[Runs], engine: Engine) -> dict[str, Any]:
    """Return the vendors, systems, runs with data-parallel ranks and parameter variance of a fit.

    The variance is part of the errors of runs that were left out (`uncertainty`).

    Args:
        groups: Runs of the fit.
        engine: Fitted engine with its covariance.

    Returns:
        Vendors of the chips, runs with data-parallel ranks, runs by system, and mean variance of log(time) from the constants,
        by quantity and regime.
    """
    regimes = {
        "tpot": np.concatenate([predict_runs(runs, engine)[3] for runs in groups]),
        "ttft": np.concatenate([waits_of(runs, engine) for runs in groups]),
    }
    parts = [time_variances(runs, engine) for runs in groups]
    variances = {}
    for quantity in ("tpot", "ttft"):
        variance = np.concatenate([part[quantity] for part in parts])
        regime = regimes[quantity]
        variances[quantity] = {str(name): float(np.nanmean(variance[regime == name])) for name in sorted(set(regime))}
    count = Counter(name for runs in groups for name in [runs.system.name] * len(runs.index))
    vendors = sorted({runs.system.chip.vendor for runs in groups})
    ranks = sum(int(np.broadcast_to(np.asarray(runs.layout.dp) > 1, len(runs.index)).sum()) for runs in groups)
    return {"vendors": vendors, "ranks": ranks, "systems": dict(sorted(count.items())), "parameter_variance": variances}
