"""Fits the constants of training stacks to measured runs: `python docs/fit_training.py RUNS.csv MORE.csv`.

Writes src/steptime/data/stacks/*.toml and the tables of docs/training.md. Runs that dropped tokens, or that cannot be as
recorded, are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import training_regression

from steptime.number_checks import Array
from steptime.training.training_stack import IDEAL, TYPICAL, TrainingEngine, decimal_year
from steptime.validation.training_run_table import TrainingRun, read_training_runs
from steptime.validation.training_validation import (
    NAMES,
    Fitted,
    Runs,
    attention_kernel,
    fit,
    fits_without,
    from_free,
    predicted,
    resolve_layout,
    validate_training,
)

HERE = Path(__file__).parent
STACKS = HERE.parent / "src" / "steptime" / "data" / "stacks"
URL = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/performance-summary.md"
CANNOT_BE = ("bridge-26.02.01-DGX-GB300-LLAMA3_70B-64-NVFP4-147",)  # does not fit its chips at two sequences a micro-batch
ARCHITECTURES = {
    "a100": "ampere", "h100": "hopper", "h200": "hopper", "h800": "hopper", "h20": "hopper", "gh200": "hopper",
    "b200": "blackwell",
    "gb200": "blackwell", "gb300": "blackwell", "b300": "blackwell", "mi300x": "cdna3", "mi325x": "cdna3", "mi350x": "cdna4",
    "mi355x": "cdna4",
    "tpu-v4": "tpu", "tpu-v5e": "tpu", "tpu-v5p": "tpu", "tpu-v6e": "tpu", "tpu7x": "tpu", "l40s": "ada", "rtx-4090": "ada",
    "l4": "ada", "rtx-5090": "blackwell-rtx", "rtx-pro-6000": "blackwell-rtx",
    "rtx-pro-6000-server": "blackwell-rtx", "rubin": "rubin",
}  # fmt: skip
TRAITS = {
    "megatron": {"title": "Megatron-Bridge, NVIDIA's recipes of 2025 and 2026", "gradient_bytes": 2.0, "narrow_gather": True,
                 "logit_bytes": 6.0, "reserved_bytes": 1e9, "cached": 0.15, "schedules": ["1f1b", "interleaved"],
                 "shardings": ["zero1"],
                 "fused_experts": ["deepseek_v3@gb200", "deepseek_v3@gb300", "deepseek_v3@b300", "deepseek_v3@vr200",
                                   "qwen3_moe@gb200", "qwen3_moe@gb300", "qwen3_moe@b200", "qwen3_moe@b300",
                                   "gpt_oss@gb200", "gpt_oss@gb300", "gpt_oss@vr200"],
                 # `target_modules` of scripts/performance/configs/llama/llama3_llm_finetune.py of Megatron-Bridge
                 "adapted": ["qkv"],
                 "narrow_attention": ["deepseek_v3@gb300", "deepseek_v3@b300", "qwen3_moe@gb200", "qwen3_moe@gb300",
                                      "qwen3_moe@b200", "qwen3_moe@b300", "gpt_oss@gb200", "gpt_oss@gb300", "gpt_oss@vr200"],
                 "narrow_heads": ["deepseek_v3", "gpt_oss"]},
    "megatron-lm": {"title": "Megatron-LM as papers and others ran it", "gradient_bytes": 4.0, "logit_bytes": 6.0,
                    "reserved_bytes": 1e9, "cached": 0.15, "schedules": ["1f1b", "interleaved"], "shardings": ["zero1"]},
    # its reserve is that with which peaks of BLOOM, as the driver showed them, are off least at the median
    "megatron-deepspeed": {"title": "Megatron-DeepSpeed of 2022 (BLOOM)", "gradient_bytes": 2.0, "logit_bytes": 10.0,
                           "reserved_bytes": 9.5e9, "cached": 0.15, "schedules": ["1f1b"], "shardings": ["zero1"]},
    # `attention_qkv` is the default of `target_modules`, megatron_gpt_finetuning_config.yaml of https://github.com/NVIDIA/NeMo
    "nemo": {"title": "NeMo 24.07", "gradient_bytes": 4.0, "adapted": ["qkv"], "logit_bytes": 6.0, "reserved_bytes": 1e9,
             "cached": 0.15,
             "schedules": ["1f1b", "interleaved"], "shardings": ["zero1"]},
    # bf16 gradients (`grad_reduce_in_fp32=False`) and weights gathered in 8 bits (`FP8_PARAMS`): pretrain.py and
    # config_common.sh of NVIDIA's llama31_405b in https://github.com/mlcommons/training_results_v5.0
    # `lora_target_modules` of the reference: https://github.com/mlcommons/training/tree/master/llama2_70b_lora
    "nemo-mlperf": {"title": "NeMo as tuned for MLPerf Training 4.0 to 5.0", "gradient_bytes": 2.0, "narrow_gather": True,
                    "adapted": ["qkv", "output"],
                    "logit_bytes": 6.0, "reserved_bytes": 1e9, "cached": 0.15, "schedules": ["1f1b", "interleaved"],
                    "shardings": ["zero1"]},
    "torchtitan": {"title": "torchtitan of December 2024", "gradient_bytes": 4.0, "logit_bytes": 10.0, "reserved_bytes": 1e9,
                   "cached": 0.15, "schedules": ["1f1b", "interleaved", "zbv", "gpipe", "dualpipev"], "shardings": ["zero3"],
                   "gathered_inputs": True, "grouped_experts": True,
                   "recomputes": ["none", "alternate", "full"]},
    # bf16 parameters and gradients: `torch_dtype` and torch.optim.Adam of its benchmarks,
    # https://github.com/NVIDIA-NeMo/Automodel/tree/main/examples/llm_benchmark
    "automodel": {"title": "NeMo AutoModel (FSDP2) of 2025 and 2026", "gradient_bytes": 2.0, "logit_bytes": 6.0,
                  "reserved_bytes": 1e9, "cached": 0.15, "schedules": ["1f1b", "interleaved"], "shardings": ["zero3"],
                  "grouped_experts": True,
                  "recomputes": ["none", "full"]},
    "maxtext": {"title": "MaxText on TPUs", "gradient_bytes": 2.0, "logit_bytes": 6.0, "reserved_bytes": 2e8, "cached": 0.0,
                "prefetched": 0.0, "schedules": ["1f1b", "interleaved"], "shardings": ["zero3"], "grouped_experts": True,
        "recomputes": ["none", "norms+activation", "norms+mlp", "full"]},
    "llm-foundry": {"title": "llm-foundry (FSDP) of 2023", "gradient_bytes": 2.0, "logit_bytes": 8.0, "reserved_bytes": 1e9,
                    "cached": 0.15, "schedules": ["1f1b"], "shardings": ["zero3"], "recomputes": ["none", "full"]},
    "rocm-mlperf": {"title": "PyTorch on ROCm as tuned for MLPerf Training", "gradient_bytes": 4.0,
                    "adapted": ["qkv", "output"], "logit_bytes": 6.0,
                    "reserved_bytes": 1e9, "cached": 0.15, "schedules": ["1f1b", "interleaved"]},
    "typical": {"title": "all stacks together: for one that is not known", "gradient_bytes": 4.0, "logit_bytes": 6.0,
                "reserved_bytes": 1e9, "cached": 0.15},
}  # fmt: skip


def traits(name: str) -> TrainingEngine:
    """Return a stack with its traits and the ideal's constants."""
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in TRAITS[name].items()}
    return replace(IDEAL, name=name, **given)


def usable(run: TrainingRun | str) -> bool:
    """Whether a run can be fitted."""
    return (
        not isinstance(run, str)
        and run.step is not None
        and run.layout is not None
        and not run.dropped
        and run.id not in CANNOT_BE
    )


def left_out(data: Runs, group: Callable[[TrainingRun], str], whole: Fitted) -> Array:
    """Cross-validate: predict each run with a fit without its group.

    Args:
        data: Runs in groups.
        group: Function from a run to its group.
        whole: Fit of all runs.

    Returns:
        log(predicted / measured) of step times, of shape (runs,).
    """
    errors = np.full(len(data.runs), np.nan)
    labels = [group(run) for run in data.runs]
    for value, without in fits_without(data, whole, labels).items():
        out = [place for place, label in enumerate(labels) if label == value]
        test = Runs([data.runs[i] for i in out], [data.layouts[i] for i in out], ARCHITECTURES)
        errors[out] = predicted(test, without.free, without.differs, slopes=False)[0] - test.logs
    return errors


def quantiles(off: Array, tail: float) -> tuple[float, float]:
    """Return the factors on a prediction outside which a share of `tail` of measured times lies on each side."""
    low, high = np.quantile(-off, [tail, 1 - tail])
    return float(np.exp(low)), float(np.exp(high))


def carried(runs: Sequence[TrainingRun]) -> Array:
    """Return whether the stack of each run has runs on several chips other than its own, so that its speed holds there."""
    chips: dict[str, set[str]] = {}
    for run in runs:
        chips.setdefault(run.stack, set()).add(run.system.chip.name)
    return np.array([run.stack != TYPICAL and len(chips[run.stack] - {run.system.chip.name}) > 1 for run in runs])


def centred(off: Array, groups: list[str], is_carried: Array) -> Array:
    """Return errors minus the median of all other groups: runs outside the fit are slower than predicted.

    As in a prediction, this factor applies to stacks that did not run on several other chips.
    """
    g = np.array(groups)
    found = off.copy()
    for group in set(groups):
        found[(g == group) & ~is_carried] -= np.median(off[(g != group) & ~is_carried])
    return found


def held(off: Array, kinds: list[str], groups: list[str], tail: float) -> float:
    """Return the share of runs inside the range that the other groups' runs of the same kind give."""
    inside = np.zeros(len(off), dtype=bool)
    k, g = np.array(kinds), np.array(groups)
    for kind in set(kinds):
        for group in set(g[k == kind]):
            mine, others = (k == kind) & (g == group), (k == kind) & (g != group)
            low, high = quantiles(off[others if others.any() else mine], tail)
            inside[mine] = (low <= np.exp(-off[mine])) & (np.exp(-off[mine]) <= high)
    return float(np.mean(inside))


def tail_for(off: Array, kinds: list[str], groups: list[str], share: float = 0.9) -> float:
    """Return the tail with which ranges made without a group hold `share` of its runs: groups err together, so it is below 5
    %."""
    tails = np.linspace(0.002, 0.06, 30)
    return float(tails[int(np.argmin([abs(held(off, kinds, groups, tail) - share) for tail in tails]))])


def main(paths: Sequence[str]) -> None:
    """Fit, leave out, write."""
    runs = [run for path in paths for run in read_training_runs(path)[0] if usable(run)]
    layouts = [resolve_layout(run, traits(run.stack)) for run in runs]
    data = Runs(runs, layouts, ARCHITECTURES)
    found = fit(data)
    off = predicted(data, found.free, found.differs, slopes=False)[0] - data.logs
    tables = {"fitted": table(off)}
    by = {"models": lambda run: run.model.name, "systems": lambda run: run.system.name, "sources": lambda run: run.source}
    outs = {name: left_out(data, group, found) for name, group in by.items()}
    kinds = ["experts" if run.experts else "dense" for run in runs]
    models, systems, alike = [run.model.name for run in runs], [run.system.name for run in runs], ["all"] * len(runs)
    tables["systems, constants alone"] = table(outs["systems"])
    is_carried = carried(runs)
    elsewhere = float(np.exp(np.median(outs["systems"][~is_carried])))
    outs["systems"] = centred(outs["systems"], systems, is_carried)
    tables |= {name: table(out) for name, out in outs.items()}
    for name, group in by.items():
        errors = training_regression.left_out_errors(runs, layouts, [group(run) for run in runs])
        tables[f"{name}, regression"] = table(errors)
    # Models with experts err together more than dense ones, so that each kind has its own tail.
    intervals: dict[str, tuple[float, float]] = {}
    inside = 0.0
    for kind in ("dense", "experts"):
        mine = [place for place, other in enumerate(kinds) if other == kind]
        off_kind, groups = outs["models"][mine], [models[place] for place in mine]
        tail = tail_for(off_kind, [kind] * len(mine), groups)
        intervals[kind] = quantiles(off_kind, tail)
        tables[kind] = table(off_kind) | {"held": held(off_kind, [kind] * len(mine), groups, tail), "tail": tail}
        inside += tables[kind]["held"] * len(mine) / len(runs)
    tables["models"]["held"] = inside
    tail = tail_for(outs["systems"], alike, systems)
    own = quantiles(outs["systems"], tail)  # never narrower than on a system that was seen
    intervals["new system"] = (min(own[0], intervals["dense"][0]), max(own[1], intervals["dense"][1]))
    tables["systems"] |= {"held": held(outs["systems"], alike, systems, tail), "tail": tail}
    for name, figures in tables.items():
        print(name, {key: round(value, 4) for key, value in figures.items()})
    print({name: round(float(from_free(name, value)), 5) for name, value in zip(NAMES, found.free, strict=True)})
    print({"/".join(label): round(value, 3) for label, value in found.differs.items()})
    STACKS.mkdir(exist_ok=True)
    for name in TRAITS:
        (STACKS / f"{name}.toml").write_text(toml(name, found, runs, intervals, elsewhere), encoding="utf-8")
    memory = memory_of(paths)
    print(memory)
    (HERE / "training_fit.json").write_text(
        json.dumps({"tables": tables, "memory": memory, "by": cells(runs, off, outs)}, indent=1) + "\n", encoding="utf-8"
    )


def memory_of(paths: Sequence[str]) -> dict[str, object]:
    """Return how far off peaks of memory are, by source, and the runs that are said not to fit."""
    predictions = [p for path in paths for p in validate_training(path).predictions if p.run and not p.run.out_of_memory]
    fits = [p for p in predictions if p.fits is not None and p.run.layout is not None and p.run.step]
    found: dict[str, object] = {"fitting": float(np.mean([p.fits for p in fits])), "ran": len(fits),
                                "refused": [p.id for p in fits if not p.fits]}  # fmt: skip
    for name, source in (("all", ""), ("simumax", "SimuMax"), ("torchtitan", "torchtitan"), ("bloom", "BLOOM")):
        off = np.array([p.peak / p.run.peak - 1 for p in predictions if p.run.peak and source in p.run.source])
        away = np.abs(off)
        found[name] = {
            "runs": len(off),
            "mean": float(away.mean()),
            "median": float(np.median(away)),
            "worst": float(away.max()),
        }
    return found


def table(off: Array) -> dict[str, float]:
    """Return errors: median, mean and 90th percentile of what predictions are off, and their bias."""
    away = np.abs(np.exp(off) - 1)
    return {"runs": len(off), "median": float(np.median(away)), "mean": float(away.mean()),
            "p90": float(np.quantile(away, 0.9)), "bias": float(np.exp(np.median(off)) - 1)}  # fmt: skip


def cells(runs: list[TrainingRun], off: Array, outs: dict[str, Array]) -> list[dict[str, object]]:
    """Return errors by source and kind, for the tables of the page."""
    found = []
    for source in sorted({run.source for run in runs}):
        at = [place for place, run in enumerate(runs) if run.source == source]
        found.append({"source": source, "fitted": table(off[at]), **{name: table(out[at]) for name, out in outs.items()}})
    return found


def toml(name: str, found: Fitted, runs: list[TrainingRun], intervals: dict[str, tuple[float, float]], elsewhere: float) -> str:
    """Return the file of a stack."""
    own = runs if name == "typical" else [run for run in runs if run.stack == name]
    constants = found.constants()
    for constant in ("memory_efficiency",):
        constants[constant] *= float(np.exp(found.differs.get(("stack", constant, name), 0.0)))
    lines = [f'name = "{name}"', f"title = {json.dumps(TRAITS[name]['title'])}"]
    for key, value in TRAITS[name].items():
        if key != "title":
            lines.append(f"{key} = {json.dumps(value)}")
    lines.append(f"speed = {np.exp(-found.differs.get(('stack', '', name), 0.0)):.4g}")
    # The speed of a stack that ran on several chips held on chips that were left out; that of others is not known.
    chips = sorted({run.system.chip.name for run in own})
    carries = name != TYPICAL and len(chips) > 1
    lines.append(f"elsewhere = {1.0 if carries else elsewhere:.4g}")
    lines += ["", "[source]", f'url = "{URL}"', 'date = "2026-11-22"', 'grade = "measured"',
              f'note = "{len(own):,} of {len(runs):,} public runs of 2021 to 2026; fitted by docs/fit_training.py"', "",
              "[constants]"]  # fmt: skip
    lines += [f"{constant} = {value:.4g}" for constant, value in constants.items()]
    for chip, architecture in ARCHITECTURES.items():
        slower = found.differs.get(("chip", "", chip), 0.0) + found.differs.get(("architecture", "", architecture), 0.0)
        attention = found.differs.get(("kernel", "attention_efficiency", attention_kernel(name, architecture)), 0.0)
        if slower or attention:
            lines += ["", f"[chips.{chip}]", f"speed = {np.exp(-slower):.4g}", f"attention = {np.exp(attention):.4g}"]
    many = len(NAMES)
    width = np.sqrt(np.diag(found.covariance)[:many])
    fitted_chips = sorted({run.system.chip.name for run in runs})
    lines += ["", "[fit]", f"runs = {len(own)}", f"until = {max(decimal_year(run.date) for run in runs if run.date):.3f}",
              f"systems = {json.dumps(chips)}", f"chips = {json.dumps(fitted_chips)}",
              f"typical_speed = {np.exp(-found.differs.get(('stack', '', 'typical'), 0.0)):.4g}", "",
              "[fit.interval]"]  # fmt: skip
    lines += [f'"{kind}" = [{low:.4f}, {high:.4f}]' for kind, (low, high) in intervals.items()]
    lines += ["", "[fit.width]"] + [f"{constant} = {value:.3g}" for constant, value in zip(NAMES, width, strict=True)]
    lines += ["", "[fit.covariance]", "names = " + json.dumps(list(NAMES)), "rows = ["]
    lines += ["  [" + ", ".join(f"{value:.3e}" for value in row[:many]) + "]," for row in found.covariance[:many]] + ["]"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
