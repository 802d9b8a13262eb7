"""Fits the shipped engines to measured runs and writes them and docs/validation.md: `python docs/fit_engines.py RUNS.csv`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from steptime.calibrate import Calibration, engine_file, fit_all
from steptime.hardware import Number
from steptime.validate import REGIMES, read_runs

HERE = Path(__file__).parent
ENGINES = HERE.parent / "src" / "steptime" / "data" / "engines"
URL = "https://github.com/ai-dynamo/aiconfigurator"
TITLES = {
    "vllm": "vLLM 0.12 to 0.19",
    "sglang": "SGLang 0.5",
    "trtllm": "TensorRT-LLM 1.0 to 1.3",
    "typical": "the three engines together: for one that is not known",
}
NOT_MODELLED = """## What is not modelled

- What a row does not say: the KV format, the chunk size, the limit on sequences that run at once. Runs at a concurrency of 512
  whose first tokens come after tens of seconds were held back by such a limit; their TPOT is that of far fewer sequences.
- Kernels that one engine has for one model at small batch (fused latent attention, an all-reduce with the norm in it): launches
  are counted by one rule for all models, which is why DeepSeek-R1 and gpt-oss are the worst when they are left out.
- Waves: engines that read prompts first keep requests of equal length together. The share that stays together is a formula of
  one constant (`length_spread`); in fixed-length runs of SGLang it is nearly all.
- Flags that no column tells, on which time to first token depends most. One number of each engine stands for what differs by
  deployment: first tokens of SGLang come some 30 decode steps late for Qwen3.5 and DeepSeek, 10 for GLM-5, none for Qwen3-32B
  (as `--stream-interval` of that size would do); of TensorRT-LLM with Llama-3.1-70B at 1024 in and out, 20 late on up to four
  chips and none on eight; with attention groups, 40. First requests of SGLang with DeepSeek in nvfp4 wait 5 to 9 s in the mean.
"""


def figures(errors: Number) -> str:
    """Write median, 90th percentile, bias and share within 25 % of log(predicted / measured)."""
    off = np.expm1(errors[np.isfinite(errors)])
    within = np.mean(np.abs(off) <= 0.25)
    median, p90 = np.quantile(np.abs(off), [0.5, 0.9])
    return f"{len(off)} | {median:.1%} | {p90:.1%} | {np.median(off):+.1%} | {within:.0%}"


def covered(errors: Number, regime: Number, table: dict[str, list[float]]) -> str:
    """Write the share of measured values inside the interval of their regime."""
    low, high = (np.array([table.get(r, (0.5, 2.0))[side] for r in regime]) for side in (0, 1))
    return f"{np.mean((np.exp(-errors) >= low) & (np.exp(-errors) <= high)):.0%}"


def page(rows: list[dict[str, str]], found: Calibration) -> str:
    """Return docs/validation.md."""
    engine = np.array([row["engine"] for row in rows])
    pair = np.array([f"{row['model'].rpartition('/')[2]} on {row['system']}" for row in rows])
    head = ["| | runs | median | p90 | bias | within 25 % |", "|---|---:|---:|---:|---:|---:|"]
    lines = [
        "# Predictions against measurements",
        "",
        f"{len(rows):,} public serving runs (closed loop, one engine on one node or rack, aggregated), from",
        f"[AIConfigurator's sample]({URL}). Errors are |predicted / measured - 1|. *Left out*: constants fitted anew without",
        "the run's whole model-system pair, in every engine. Written by `docs/fit_engines.py`, with the engine files.",
        "",
    ]
    for title, errors in (
        ("Time per output token, left out", found.left_out),
        ("Time per output token, fitted", found.fitted),
        ("Time to first token by simulation, left out", found.left_out_ttft),
    ):
        lines += [f"## {title}", "", *head, f"| all | {figures(errors)} |"]
        lines += [f"| {name} | {figures(errors[engine == name])} |" for name in sorted(set(engine))]
        lines.append("")
    lines += ["## Left out, by engine and pair", "", *head]
    for name in sorted(set(engine)):
        for label in sorted(set(pair[engine == name])):
            lines.append(f"| {name}, {label} | {figures(found.left_out[(engine == name) & (pair == label)])} |")
    lines += [
        "",
        "## The 90 % interval",
        "",
        "Factors on the prediction between which 90 % of left-out runs lie, by regime.",
        "",
    ]
    lines += ["| engine | " + " | ".join(REGIMES) + " | left-out runs inside |", "|---|---|---|---:|"]
    for name, one in found.engines.items():
        table = one.fit["interval"]["tpot"]
        mine = (engine == name) | (name == "typical")
        cells = [f"{table[r][0]:.2f} to {table[r][1]:.2f}" if r in table else "0.50 to 2.00" for r in REGIMES]
        lines.append(f"| {name} | {' | '.join(cells)} | {covered(found.left_out[mine], found.regime[mine], table)} |")
    lines += ["", "## The ten worst rows, fitted", "", "| id | measured | predicted |", "|---|---:|---:|"]
    for i in np.argsort(-np.abs(found.fitted))[:10]:
        measured = float(rows[i]["tpot_s"])
        lines.append(f"| {rows[i]['id']} | {1e3 * measured:.1f} ms | {1e3 * measured * np.exp(found.fitted[i]):.1f} ms |")
    return "\n".join([*lines, "", NOT_MODELLED])


def main() -> None:
    """Fit, write the engines and the page."""
    rows, _ = read_runs(sys.argv[1])
    found = fit_all(rows)
    ENGINES.mkdir(exist_ok=True)
    for name, engine in found.engines.items():
        note = f"{engine.fit['runs']} public serving runs of 2025 and 2026; fitted by docs/fit_engines.py"
        source = {"url": URL, "date": "2026-11-20", "grade": "measured", "note": note}
        (ENGINES / f"{name}.toml").write_text(engine_file(replace(engine, title=TITLES[name]), source), encoding="utf-8")
    (HERE / "validation.md").write_text(page(rows, found), encoding="utf-8")


if __name__ == "__main__":
    main()
