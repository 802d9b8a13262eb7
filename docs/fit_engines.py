"""Fit the shipped engines to measured runs; write them and docs/validation.md: `python docs/fit_engines.py RUNS.csv ...`.

The fit uses closed loops without speculative tokens, and no rows that violate physical bounds.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from engine_cross_validation import LEFT_OUT as WHOLE
from engine_cross_validation import Calibration, fit_all, held_by_others

from steptime.catalog.hardware_loading import resolve_system
from steptime.number_checks import Number
from steptime.physics.engine import IDEAL, TYPICAL, Engine
from steptime.physics.uncertainty import LEFT_OUT, REGIMES, WAITS, factors
from steptime.units import percent, percent_change
from steptime.validation.engine_fit import engine_file
from steptime.validation.predictions import grouped, predict, predict_runs
from steptime.validation.published_deployments import polls_rarely
from steptime.validation.run_table import DRAFTED, LOOPS, MEASURED, POOLS, read_runs, run_kind

HERE = Path(__file__).parent
ENGINES = HERE.parent / "src" / "steptime" / "data" / "engines"
URL = "https://github.com/ai-dynamo/aiconfigurator"
MORE = "https://github.com/SemiAnalysisAI/InferenceX"
# Fewest runs of a kind whose coverage is stored.
LEAST = 20
TITLES = {
    "vllm": "vLLM 0.12 to 0.19",
    "sglang": "SGLang 0.5",
    "trtllm": "TensorRT-LLM 1.0 to 1.3",
    "typical": "the three engines together, for an unknown engine",
}
NOT_MODELLED = """## What is not modelled

- Settings that a row does not state: the KV format, the prefill chunk, max_num_seqs. Some runs at a concurrency of 512 have
  a TTFT of tens of seconds, because max_num_seqs limited them; their TPOT is that of far fewer sequences.
- Speculative tokens that no column records. Some runs of DeepSeek-R1 and Qwen3.5 take half the time of the same
  configuration elsewhere, and less at longer outputs, as with multi-token prediction. (DeepSeek-R1: TensorRT-LLM
  1.2.0rc6.post3 on hgx-b200; Qwen3.5: SGLang in fp8 on four chips.)
- Fused kernels of one engine for one model (attention with its projection, all-reduce with the norm). One rule counts the
  launches of all models, so gpt-oss has the largest error when it is left out.
- Exchanges of tokens with experts between nodes. DeepEP's low-latency kernels send a copy for each expert, and steptime one
  for each node. For 64 tokens on 4 nodes of H100, 58 layers take 13.6 ms when timed alone and 7.5 ms here. Published decode
  rates of DeepSeek-V3 on 72 H100 and 144 H800 are 23 % below and 19 % above the prediction.
- Waves: engines with prefill-first scheduling keep requests of equal length together. The drift of such requests is a guess
  (`closed_loop.DRIFT`, half a per cent of their length; from 0.3 to 2 % the error of first tokens changes by less than a
  point). The name of a public data set shows whether its runs have random lengths.
- Weights of 4 bits that are multiplied in int8. MLPerf v5.1 has seven results of Intel Arc Pro B60. Their four accelerators
  are dual boards, so they count as eight chips (`mlperf_data_sets.as_submitted`). Eight chips reach at most 2,962 tok/s for
  Llama-2-70B in bf16, but 3,009 were measured: two results are refused. In int8 all seven are inside the range.
- Host work of a speculative step that chips wait for. SGLang overlaps it only with `SGLANG_ENABLE_SPEC_V2`. The script of
  DeepSeek-R1 in FP8 on hgx-b200 sets it but does not export it. Its 24 runs are predicted 14 % too fast at the median.
- Flags that no column records and that change times most. Scripts give some of them, and public runs are predicted with those
  (`validation/published_deployments.py`). They are 8-bit KV caches, tokens of a prefill pass, polling, prompts in
  decode steps, products without DeepGEMM, sizes of CUDA graphs, repeated prompts, and speculative tokens of separate
  pools. A file of runs has them as `kv_dtype`, `max_num_batched_tokens`, `stream_interval`, `prefill_schedule` and
  `drafted`. In runs of SGLang on
  hgx-b200 and hgx-b300 with a median TTFT, first tokens come late: 9 decode steps at the median below 16 clients, and 17
  steps from 16 clients on. In runs with a mean TTFT they come two to three times as late. InferenceMAX starts these with a
  scheduler that polls for requests every 10 steps, or every 30 from 16 clients on (`--scheduler-recv-interval`, default 1). A
  file of runs states it as `stream_interval`. Those runs have no such column, so their first tokens are neither fitted nor
  scored here. `validate` takes 10 and 20 for them (`validation/published_deployments.py`): the median error is 12 % for runs
  with a median TTFT and 31 % for runs with a mean TTFT. First tokens of TensorRT-LLM with Llama-3.1-70B at 1024 in and out
  come 20 steps late on up to four chips, as its script says. With DP attention its public runs wait until each rank has a
  prompt, at most 60 steps (`published_deployments.balance_period`); those of December 2025 waited up to twice as long. First
  requests of SGLang with DeepSeek in nvfp4 wait 5 to 9 s on average.
"""


HEAD = "| | runs | median | mean | p90 | bias | within 25 % | inside 90 % |\n|---|---:|---:|---:|---:|---:|---:|---:|"
HEADINGS = {"concurrency": "concurrency, up to"}
BY = ("model", "system", "engine", "weight_dtype", "concurrency", "bound")


def figures(errors: Number, inside: Number, chosen: Number) -> str:
    """Write runs, median, mean, 90th percentile, bias, and shares within 25 % and inside the interval."""
    known = chosen & np.isfinite(errors)
    off = np.expm1(errors[known])
    median, p90 = np.quantile(np.abs(off), [0.5, 0.9])
    sizes = " | ".join(percent(size, 1) for size in (median, np.mean(np.abs(off)), p90))
    shares = f"{percent(np.mean(np.abs(off) <= 0.25))} | {percent(np.mean(inside[known]))}"
    return f"{len(off)} | {sizes} | {percent_change(np.median(off))} | {shares}"


def insides(errors: Number, quantity: str, engine: Number, found: Calibration) -> Number:
    """Whether each measured value lies in the interval that its engine states."""
    inside = np.zeros(len(errors), dtype=bool)
    for name in sorted(set(engine)):
        mine = engine == name
        low, high = factors(found.engines[name], quantity, (found.regime if quantity == "tpot" else found.waiting)[mine])
        inside[mine] = (np.exp(-errors[mine]) >= low) & (np.exp(-errors[mine]) <= high)
    return inside


def table(title: str, errors: Number, inside: Number, labels: list[str]) -> list[str]:
    """Return a table of errors by label, under a heading."""
    of, every = np.array(labels, dtype=object), np.ones(len(labels), dtype=bool)
    known = {label for label, error in zip(labels, errors, strict=True) if np.isfinite(error)}
    names = sorted(known, key=lambda label: (float(label), "") if label.isdigit() else (math.inf, label))
    lines = [f"### By {title}", "", HEAD]
    return [*lines, *(f"| {name} | {figures(errors, inside, every & (of == name))} |" for name in names), ""]


def label(row: dict[str, str], key: str) -> str:
    """Return the label of a row in the table by `key`; concurrency is rounded up to a power of two."""
    return str(2 ** math.ceil(math.log2(float(row[key])))) if key == "concurrency" else row[key].rpartition("/")[2]


def reasons(rows: list[dict[str, str]], errors: Number, first: Number) -> dict[int, str]:
    """Return the likely cause of the ten largest errors, from the other rows and from physics."""
    ideal = np.empty(len(rows))
    for runs in grouped(rows):
        ideal[runs.index] = predict_runs(runs, IDEAL)[0]
    alike = [tuple(v for k, v in row.items() if k not in ("id", "engine_version", "measured", *MEASURED)) for row in rows]
    pair = [(row["engine"], row["model"], row["system"]) for row in rows]
    found = {}
    for i in np.argsort(-np.abs(errors))[:10]:
        measured, delay = float(rows[i]["tpot_s"]), float(rows[i]["ttft_s"] or "nan")
        others = [float(rows[k]["tpot_s"]) for k in range(len(rows)) if alike[k] == alike[i] and k != i]
        same = np.array([k for k in range(len(rows)) if pair[k] == pair[i] and k != i], dtype=int)
        good = int(np.sum(np.abs(np.expm1(errors[same])) <= 0.25))
        if measured < ideal[i]:
            why = f"less than the physical bound of {1e3 * ideal[i]:.1f} ms: fewer sequences ran than the row states"
            why += f" (first tokens after {delay:.0f} s)" if delay > 5 else ""
        elif any(max(other, measured) > 1.3 * min(other, measured) for other in others):
            why = f"the same configuration measured {', '.join(f'{1e3 * x:.1f}' for x in others)} ms elsewhere"
        elif math.isfinite(first[i]) and first[i] < -1.2:
            why = f"first tokens after {delay:.1f} s, {np.exp(-first[i]):.0f} times as long as the load explains"
        else:
            why = f"not known; {good} of the {len(same)} other runs of its engine, model and system are within 25 %"
        found[int(i)] = why
    return found


def page(rows: list[dict[str, str]], found: Calibration) -> str:
    """Return docs/validation.md."""
    engine = np.array([row["engine"] for row in rows])
    every = np.ones(len(rows), dtype=bool)
    lines = [
        "# Predictions against measurements",
        "",
        f"{len(rows):,} public serving runs: closed loops without speculative tokens, one engine on a node or rack. They come",
        f"from [AIConfigurator's sample]({URL}) and [InferenceX]({MORE}), without the runs that `steptime validate` reports",
        "as wrong or doubtful. Errors are |predicted / measured - 1|, bias is its median with its sign. *Left out*: constants",
        "are fitted again without all runs of the model, or of the system, in every engine. *Inside 90 %*: measured values",
        "inside the engine's 90 % range, which is derived from both. Written by `docs/fit_engines.py`, with the engine",
        "files.",
        "",
    ]
    quantities = (
        ("Time per output token, whole models left out", found.left_out["model"], "tpot"),
        ("Time per output token, whole systems left out", found.left_out["system"], "tpot"),
        ("Time per output token, fitted", found.fitted, "tpot"),
        ("Time to first token of simulated closed loops, whole models left out", found.left_out_ttft, "ttft"),
    )
    for title, errors, name in quantities:
        inside = insides(errors, name, engine, found)
        lines += [f"## {title}", "", HEAD, f"| all | {figures(errors, inside, every)} |"]
        lines += [f"| {one} | {figures(errors, inside, engine == one)} |" for one in sorted(set(engine))]
        lines.append("")
        if title.endswith("fitted"):
            continue
        for key in BY:
            labels = list(map(str, found.bound)) if key == "bound" else [label(row, key) for row in rows]
            lines += table(HEADINGS.get(key, key.replace("_", " ")), errors, inside, labels)
        pairs = [f"{row['engine']}, {row['model'].rpartition('/')[2]} on {row['system']}" for row in rows]
        lines += table("engine, model and system", errors, inside, pairs)
    lines += [
        "## The 90 % interval",
        "",
        "90 % of the runs of a group (model, system, engine) that no fit has seen are between these two factors times the",
        "prediction; each group has the same weight. A step whose constants are less certain than those of the fitted runs has",
        "a wider range (`docs/scoreboard.md`).",
        "",
        "| time | factors |",
        "|---|---|",
    ]
    for quantity, name in (("tpot", "TPOT"), ("ttft", "TTFT")):
        for regime in WAITS if quantity == "ttft" else REGIMES[:1]:
            low, high = factors(found.engines[TYPICAL], quantity, regime)
            kind = {"prompt": ", up to six times its prefill", "queue": ", longer"}.get(regime, "")
            lines.append(f"| {name}{kind} | {float(low):.2f} to {float(high):.2f} |")
    lines += [
        "",
        "## The ten largest errors, with the reason",
        "",
        "| id | measured | predicted, left out | why |",
        "|---|---:|---:|---|",
    ]
    errors = found.left_out["model"]
    for i, why in reasons(rows, errors, found.left_out_ttft).items():
        measured = 1e3 * float(rows[i]["tpot_s"])
        lines.append(f"| {rows[i]['id']} | {measured:.1f} ms | {measured * np.exp(errors[i]):.1f} ms | {why} |")
    return "\n".join([*lines, "", NOT_MODELLED])


def fitted_rows(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows of the fit: closed loops without speculative tokens, with a TPOT, and not doubtful."""
    plain = [row for row in rows if run_kind(row) == LOOPS[0] and row.get("tpot_s")]
    reasons_ = predict(plain, by_simulation=False).reason
    return [_told(row) for row, reason in zip(plain, reasons_, strict=True) if not reason]


def _told(row: dict[str, str]) -> dict[str, str]:
    """Return a row without its TTFT if that depends on an unknown stream interval (`NOT_MODELLED`)."""
    held = polls_rarely(row) and not row.get("stream_interval")
    return row | {"ttft_s": "", "ttft_median_s": ""} if held else row


def held(every: list[dict[str, str]], rows: list[dict[str, str]], found: Calibration) -> dict[str, dict[str, list[float]]]:
    """Return the coverage of the TPOT range and the number of runs, by engine and kind of run.

    every: all rows of the files, also those outside the fit (separate pools, speculative tokens). rows: rows of the fit, which
    count as left out.
    """
    engine = np.array([row["engine"] for row in rows])
    vendor = np.array([resolve_system(row["system"]).chip.vendor for row in rows])
    models = np.array([row["model"] for row in rows])
    inside = np.mean([held_by_others(found.left_out[what], models, rows)[0] for what in WHOLE], axis=0)
    shares: dict[str, dict[str, list[float]]] = {}
    for name, fitted in found.engines.items():
        mine = (engine == name) | (name == TYPICAL)
        kinds = {LEFT_OUT: inside[mine]} | {maker: inside[mine & (vendor == maker)] for maker in sorted(set(vendor[mine]))}
        for kind in (DRAFTED, POOLS):
            of = [row for row in every if run_kind(row) == kind and (row["engine"] == name or name == TYPICAL)]
            kinds[kind] = in_range(of, fitted)
        shares[name] = {kind: [round(float(np.mean(x)), 3), len(x)] for kind, x in kinds.items() if len(x) >= LEAST}
    return shares


def in_range(rows: list[dict[str, str]], engine: Engine) -> Number:
    """Return whether each TPOT is inside its range, for rows with both and without doubt."""
    if not rows:
        return np.empty(0)
    told, seen = (
        predict(rows, engine=engine, by_simulation=False),
        np.array([float(row.get("tpot_s") or "nan") for row in rows]),
    )
    inside = (seen >= told.tpot_low) & (seen <= told.tpot_high)
    return inside[np.isfinite(seen) & np.isfinite(told.tpot) & (told.reason == "")]


def main() -> None:
    """Fit, write the engines and the page."""
    every = [row for path in sys.argv[1:] for row in read_runs(path)[0]]
    rows = fitted_rows(every)
    found = fit_all(rows)
    shares = held(every, rows, found)
    ENGINES.mkdir(exist_ok=True)
    for name, fitted in found.engines.items():
        engine = replace(fitted, fit=fitted.fit | {"held": shares[name]})
        note = f"{engine.fit['runs']} public serving runs of 2025 and 2026; fitted by docs/fit_engines.py"
        source = {"url": URL, "date": "2026-11-20", "grade": "measured", "note": note}
        (ENGINES / f"{name}.toml").write_text(engine_file(replace(engine, title=TITLES[name]), source), encoding="utf-8")
    (HERE / "validation.md").write_text(page(rows, found), encoding="utf-8")


if __name__ == "__main__":
    main()
