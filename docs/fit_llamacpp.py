"""Fit the engine llama.cpp to measured runs and write its file: `python docs/fit_llamacpp.py llamacpp_gb10.csv`.

The argument has static batches of `llama-batched-bench` on DGX Spark, in the columns of `steptime validate`. Rows on RTX
boards and Apple chips are in docs/llamacpp_rows.csv, with their sources: prompts in micro-batches, of which each is one
step, and decoded tokens. Each model is left out once, on all machines; its errors give the ranges. Each chip is left out
once too, with all its models.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steptime.catalog.hardware_loading import load_system
from steptime.models.model import gguf_formats
from steptime.models.model_loading import load_model
from steptime.number_checks import Number
from steptime.physics.compute_dtype import Computed
from steptime.physics.engine import IDEAL, Engine, constant, with_constants
from steptime.physics.step import mixed_step
from steptime.physics.uncertainty import REGIMES, WAITS
from steptime.validation.engine_fit import engine_file

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "steptime" / "data" / "engines" / "llama.cpp.toml"
URL = "https://github.com/ggml-org/llama.cpp/tree/master/benches"
MMQ = "llama.cpp b6918, ggml/src/ggml-cuda/mmq.cuh: blocks of 32 int8 values with a scale"
RULES = tuple(Computed(operation="weights", stored=kind, computed="int8", source=MMQ) for kind in ("gguf", "fp6", "fp4"))
# Tokens of a step of the runs on DGX Spark (-ub 2048), and the usual ones.
MICROBATCH = 2048
# Maximum number of tokens of a step that counts as decode.
LARGEST_BATCH = 32
# Weight of a run of the table: they are older, and prompts repeat the routing of one text.
ROW_WEIGHT = 0.3
# Errors from here on count in proportion to their size, not to its square.
HUBER = 0.2
# Deviation of the logarithm of a start value.
PRIOR = 1.0
STEP, ROUNDS = 1e-3, 12
FIXED: dict[str, float] = {
    # Kernels of quantised products read activations in blocks of int8 and write 32 bits (mmq.cuh, quantize.cu).
    "timed_kernels": 0.0, "activation_traffic": 2.0,
    # Products wait for their tiles of weights: the two times add up. Fits with p of 1.5 and 2 are worse.
    "roofline_norm": 1.0,
    # As the other engines: cuBLAS multiplies 16-bit weights, chips depart from their data sheet, experts are popular.
    "compute_efficiency": 0.7, "chip_departure": 1.0, "expert_evenness": 1.0, "seconds_per_step": 2e-4,
    # Largest tile of mmq.cuh (MMQ_X_MAX).
    "expert_tile_rows": 128.0, "attention_time": 1.0, "expert_time": 1.0,
}  # fmt: skip
START: dict[str, float] = {
    "memory_efficiency": 0.85, "integer_efficiency": 0.3, "seconds_per_layer": 4e-5,
    "seconds_per_sequence": 1e-4, "seconds_per_sort": 8e-5, "expert_tile_share": 0.3,
}  # fmt: skip
NAMES = tuple(START)
# Deviations of the logarithms of constants that no run determines.
ASSUMED = {"compute_efficiency": 0.5, "expert_evenness": 0.5, "seconds_per_step": 0.7}


@dataclass(frozen=True)
class Run:
    """A measured time: its model, system, formats, steps with their counts, and seconds."""

    model: str
    system: str
    weights: str
    experts: str
    decodes: bool
    steps: tuple[tuple[tuple[float, ...], int], ...]
    seconds: float


def batched(row: Mapping[str, str]) -> list[Run]:
    """Return the decode and prefill runs of a row of `llama-batched-bench`."""
    tokens, batch = int(row["input_tokens"]), int(row["concurrency"])
    weights, experts = gguf_formats(row["weight_dtype"], row["expert_dtype"])
    model = row["model"].replace("Qwen2.5-Coder-7B", "Qwen2.5-7B")
    shared = (model, "dgx-spark", weights, experts)
    decode = (batch, tokens + int(row["output_tokens"]) / 2, 0, 0, 0)
    # Short prompts share a step; long ones take several.
    together = max(1, min(batch, MICROBATCH // tokens))
    chunks = range(0, tokens, MICROBATCH)
    prefill = tuple(((0, 0, together, min(MICROBATCH, tokens), start), batch // together) for start in chunks)
    return [
        Run(*shared, decodes=True, steps=((decode, 1),), seconds=float(row["tpot_s"])),
        Run(*shared, decodes=False, steps=prefill, seconds=float(row["ttft_s"])),
    ]


def micro_batched(row: Mapping[str, str]) -> Run:
    """Return the mean step of a prompt that `llama-bench` runs in micro-batches."""
    tokens, prompt = int(row["microbatch"]), int(row["prompt"])
    sizes = (0, 0, 1, tokens, (prompt - tokens) / 2)
    names = (row["model"], row["system"], row["weights"], row["experts"])
    return Run(*names, tokens <= LARGEST_BATCH, ((sizes, 1),), tokens / float(row["tokens_per_s"]))


class Runs:
    """Runs by model, system and formats, with their predictions."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.seconds = np.array([run.seconds for run in runs])
        self.weight = np.array([1.0 if run.system == "dgx-spark" else ROW_WEIGHT for run in runs])
        self.model = np.array([run.model for run in runs])
        self.system = np.array([run.system for run in runs])
        self.decodes = np.array([run.decodes for run in runs])
        self.groups = []
        for key in dict.fromkeys((run.model, run.system, run.weights, run.experts) for run in runs):
            steps = [
                (place, sizes, count)
                for place, run in enumerate(runs)
                if (run.model, run.system, run.weights, run.experts) == key
                for sizes, count in run.steps
            ]
            places, sizes, counts = zip(*steps, strict=True)
            model = load_model(key[0], weights=key[2], experts=key[3])
            self.groups.append((model, load_system(key[1]), np.array(places), np.array(sizes, dtype=float), np.array(counts)))

    def errors(self, engine: Engine) -> Number:
        """Return log(predicted / measured) of each run."""
        total = np.zeros(len(self.runs))
        for model, system, places, sizes, counts in self.groups:
            names = ("batch", "context", "prompts", "tokens", "prefix")
            inputs = dict(zip(names, sizes.T, strict=True))
            step = mixed_step(model, system, **inputs, engine=engine, parts=False)
            np.add.at(total, places, step.total * counts)
        return np.log(total / self.seconds)


def engine_at(logs: Number) -> Engine:
    """Return the engine with the logarithms of the fitted constants."""
    values = {**FIXED, **dict(zip(NAMES, map(float, np.exp(logs)), strict=True))}
    return with_constants(replace(IDEAL, name="llama.cpp", arithmetic=RULES), values)


def fit(runs: Runs, weight: Number) -> tuple[Number, Number]:
    """Return the logarithms of the constants and their covariance, by Gauss-Newton steps with Huber weights."""
    start = np.log(list(START.values()))
    logs, identity = start.copy(), np.eye(len(start))
    for _ in range(ROUNDS):
        errors = runs.errors(engine_at(logs))
        slopes = np.array([(runs.errors(engine_at(logs + STEP * row)) - errors) / STEP for row in identity]).T
        robust = weight * np.minimum(1, HUBER / np.maximum(np.abs(errors), 1e-9))
        variance = float(np.sum(robust * errors**2) / max(np.sum(weight) - len(logs), 1.0))
        information = slopes.T @ (robust[:, None] * slopes) / variance + identity / PRIOR**2
        gradient = slopes.T @ (robust * errors) / variance + (logs - start) / PRIOR**2
        logs = logs - np.clip(np.linalg.solve(information, gradient), -0.5, 0.5)
    covariance: Number = np.linalg.inv(information)
    return logs, covariance


def left_out(runs: Runs, names: Number) -> Number:
    """Return the errors of each run from a fit without the runs that have its name."""
    errors = np.empty(len(runs.runs))
    for name in dict.fromkeys(names):
        mine = names == name
        logs, _ = fit(runs, np.where(mine, 0.0, runs.weight))
        errors[mine] = runs.errors(engine_at(logs))[mine]
    return errors


def mean_variance(runs: Runs, engine: Engine, covariance: Number) -> Number:
    """Return the variance of each predicted logarithm from the constants."""
    names, size = (*NAMES, *ASSUMED), len(NAMES)
    spread = np.zeros((len(names),) * 2)
    spread[:size, :size], spread[size:, size:] = covariance, np.diag(np.square(list(ASSUMED.values())))
    errors = runs.errors(engine)
    nudged = [with_constants(engine, {name: constant(engine, name) * np.exp(STEP)}) for name in names]
    slopes = np.array([(runs.errors(other) - errors) / STEP for other in nudged])
    variance: Number = np.einsum("ir,ij,jr->r", slopes, spread, slopes)
    return variance


def interval(errors: Number) -> list[float]:
    """Return the factors on a prediction that contain nine in ten measured times, at least as wide on both sides as one."""
    low, high = np.quantile(-errors, [0.05, 0.95])
    return [round(float(np.exp(min(low, 0.0))), 3), round(float(np.exp(max(high, 0.0))), 3)]


def main() -> None:
    """Fit, print the errors, and write the engine file."""
    with open(sys.argv[1], encoding="utf-8") as table:
        runs_ = [run for row in csv.DictReader(table) for run in batched(row)]
    with (HERE / "llamacpp_rows.csv").open(encoding="utf-8") as table:
        runs_ += [micro_batched(row) for row in csv.DictReader(table)]
    runs = Runs(runs_)
    logs, covariance = fit(runs, runs.weight)
    engine, out, chip_out = engine_at(logs), left_out(runs, runs.model), left_out(runs, runs.system)
    fitted, system = runs.errors(engine), runs.system
    print("| system | model | phase | runs | fitted, median | model left out | its bias | chip left out |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for name, model in dict.fromkeys((run.system, run.model) for run in runs_):
        for decodes, phase in ((True, "decode"), (False, "prefill")):
            mine = (system == name) & (runs.model == model) & (runs.decodes == decodes)
            if mine.any():
                three = [f"{np.median(np.abs(np.expm1(e[mine]))):.1%}" for e in (fitted, out, chip_out)]
                bias = f"{np.median(np.expm1(out[mine])):+.1%}"
                print(f"| {name} | {model} | {phase} | {mine.sum()} | {three[0]} | {three[1]} | {bias} | {three[2]} |")
    for phase, mine in (("decode", runs.decodes), ("prefill", ~runs.decodes)):
        three = [f"{np.median(np.abs(np.expm1(e[mine]))):.1%}" for e in (fitted, out, chip_out)]
        print(f"| all | all | {phase} | {mine.sum()} | {three[0]} | {three[1]} | | {three[2]} |")
    decode, prefill = interval(out[runs.decodes]), interval(out[~runs.decodes])
    both = [min(decode[0], prefill[0]), max(decode[1], prefill[1])]
    counts = {load_system(name).name: int(np.sum(system == name)) for name in dict.fromkeys(system)}
    variance = mean_variance(runs, engine, covariance)
    by_phase = [float(np.mean(variance[chosen])) for chosen in (runs.decodes, ~runs.decodes)]
    means = {
        "tpot": dict(zip(REGIMES, by_phase, strict=True)),
        # A first token waits for prefill.
        "ttft": dict.fromkeys(WAITS, by_phase[1]),
    }
    vendors = list(dict.fromkeys(load_system(name).chip.vendor for name in system))
    fit_table = {
        "runs": len(runs_), "vendors": vendors, "names": list(NAMES), "covariance": covariance.tolist(),
        "prior": ASSUMED, "systems": counts, "parameter_variance": means,
        "interval": {"tpot": dict(zip(REGIMES, (decode, both), strict=True)), "ttft": dict.fromkeys(WAITS, both)},
    }  # fmt: skip
    lower, upper = (np.where(runs.decodes, decode[side], prefill[side]) for side in (0, 1))
    inside = (np.exp(-out) >= lower) & (np.exp(-out) <= upper)
    fit_table["held"] = {"left_out": [round(float(np.mean(inside)), 3), len(runs_)]}
    title = "llama.cpp b6918 with GGUF weights, static batches of 1 to 32"
    note = f"{len(runs_)} public runs on GB10, RTX 3090 and 4090, and Apple M2 Ultra to M4 Max; fitted by docs/fit_llamacpp.py"
    source = {"url": URL, "date": "2026-11-28", "grade": "measured", "note": note}
    text = engine_file(replace(engine, title=title, fit=fit_table), source)
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
