"""What the terminal shows of predictions held against measurements, and of a fitted engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import scatter_plot
from steptime.cli.views.widgets import notes, table
from steptime.physics.engine import Engine, constant
from steptime.physics.engine_parameters import RUN_WAITS
from steptime.units import counted, show
from steptime.validation.data_quality import DOUBTFUL, WRONG
from steptime.validation.engine_fit import NAMES, QUEUE_NAMES
from steptime.validation.error_summary import Predictions
from steptime.validation.predictions import MOST_SIMULATED
from steptime.validation.published_deployments import BALANCED_WITHIN, INTERVALS, is_dated
from steptime.validation.run_table import COLUMNS, MEASURED, OPTIONAL, SPREAD, in_runs, length_spread
from steptime.validation.validate_api import QUANTITY_LABELS

MILLISECOND = 1e-3  # s
FIGURES = 63  # columns that the figures of an error table take
MIN_RUNS_FOR_RANGES = 50  # runs below which the ranges are those of the engine that was fitted from
GOING = (1, 3, 4, 5, 6, 7)  # columns of an error table in the order in which they are left out
FEW_NAMED = 8  # runs in doubt that are named one by one
QUANTITIES = {
    "tpot": "Time per output token",
    "ttft": "Time to first token",
    "ttft_median": "Median time to first token",
    "output_tok_s": "Output tokens a second",
}
HEADINGS = ("Runs", "Median", "Mean", "p90", "Bias", "<25 %", "Covered")
MEANINGS = {
    "id": "any name, kept in the output",
    "model": "Hugging Face id or catalogue name",
    "system": "catalogue name of the system",
    "engine": "vllm, sglang, trtllm, or another",
    "input_tokens": "prompt tokens: of the longest, where lengths are drawn",
    "output_tokens": "output tokens: of the longest, where lengths are drawn",
    "concurrency": "requests in flight in the whole deployment; under a scenario empty, or the most of a replica",
    "tp": "tensor parallel ways; under a scenario empty where they are not known",
    "pp": "pipeline stages",
    "dp": "attention groups; tp x pp x dp chips in all",
    "ep": "expert parallel ways",
    "weight_dtype": "bf16, fp8, nvfp4, ...: all but routed experts",
    "expert_dtype": "format of routed experts; empty for dense models",
    "ttft_s": "measured time to first token [s]; may be absent",
    "tpot_s": "measured time per output token [s]; may be absent",
    "measured": "day of the run, such as 2025-12-31: AMD's software, and public deployments, are known by the day",
    "kv_dtype": "fp8, bf16, ...; by default as the engine keeps it",
    "input_mean": "mean prompt tokens, where known",
    "output_mean": "mean output tokens, where known",
    "concurrency_mean": "mean requests in flight, instead of concurrency",
    "requests": "of the whole run; where not given, ten for each in flight, and under a scenario as many as the benchmark has",
    "length_spread": "how far lengths reach to both sides of their mean, as a share; where not given, 1/9 (drawn from 0.8 to 1 "
    "of the longest) if the id begins with a date or holds cfg, as in the public set, and else 0 (all alike)",
    "ttft_median_s": "measured median time to first token [s]",
    "output_tok_s": "measured output tokens a second of the whole deployment",
    "total_tok_s": "measured input and output tokens a second, where output_tok_s is not known",
    "ttft_limit_s": "of Server and Interactive: time to first token that 99 % of requests keep [s]",
    "tpot_limit_s": "of Server and Interactive: time per output token that 99 % of requests keep [s]",
    "scenario": "Offline (all requests at once), Server or Interactive (Poisson arrivals within limits)",
    "part": "ix_aggregated, ix_mtp, ix_disaggregated, mlperf or trt_max: the highest throughput at any concurrency",
    "spec": "none or a method of drafting; without the column a run is plain, unless it looks like a drafted one",
    "acceptance": "tokens that a step yields; where not given, as measured of the model's own layers",
    "drafted": "tokens drafted a step; where not given, none",
    "decode_workers": "of separate pools: replicas of tp, dp, ep that decode",
    "prefill_workers": "of separate pools: replicas that read prompts",
    "prefill_tp": "of those, tensor parallel ways",
    "prefill_dp": "of those, attention groups; 1 where not given",
    "prefill_ep": "of those, expert parallel ways; 1 where not given",
    "chips": "of the whole deployment; where not given, those of one replica",
    "stream_interval": "decode steps between two looks at what is new: first tokens come so many later, less one; "
    f"by default 1, and {INTERVALS[0].light_load_steps:.0f} or {INTERVALS[0].heavy_load_steps:.0f} of SGLang on B200 and B300; "
    f"of TensorRT-LLM's attention groups as many as public runs wait for each other, {1 + BALANCED_WITHIN / 2:.0f} at most",
}


def columns_view() -> RenderableType:
    """Return the columns that a file of runs has."""
    grid = table("Column", "What it holds")
    for name in (*COLUMNS, *MEASURED, *OPTIONAL):
        grid.add_row(name, MEANINGS[name] + ("; optional" if name in OPTIONAL else ""))
    return grid


def _why_closed(rows: int) -> str:
    if rows > MOST_SIMULATED:
        return f"runs are simulated in files of up to {MOST_SIMULATED:,}."
    return "pip install 'steptime[simulate]' to simulate each run."


def validation_view(
    rows: list[dict[str, str]],
    predictions: Predictions,
    tables: Mapping[str, Any],
    problems: list[str],
    width: int,
    *,
    scripted: int = 0,
    unread: Sequence[str] = (),
) -> RenderableType:
    """Return error tables, a scatter picture, and what was left out of them."""
    parts: list[RenderableType] = []
    room = max(12, width - FIGURES)  # for labels
    for name, quantity_errors in tables.items():
        grid = table(
            "",
            *HEADINGS,
            title=f"{QUANTITIES[name]}: |predicted / measured - 1|, and how many runs lie in the 90 % interval",
            numbers=range(1, 8),
            first_to_go=GOING,
        )
        grid.add_row("all", *_cells(quantity_errors["all"]), style="bold")
        for key, errors_by_value in quantity_errors["by"].items():
            if len(errors_by_value) > 1:
                grid.add_section()
                grid.add_row(f"by {key.replace('_', ' ')}", style="italic")
                for value, errors in errors_by_value.items():
                    label = f"  {value.rpartition('/')[2] or 'not given'}"
                    grid.add_row(label if len(label) <= room else label[: room - 1] + "…", *_cells(errors))
        parts.append(grid)
    if "tpot" in tables:
        run_indices = [i for i, row in enumerate(rows) if row.get("tpot_s") and not predictions.reason[i]]
        measured = [float(rows[i]["tpot_s"]) / MILLISECOND for i in run_indices]
        parts.append(scatter_plot(measured, predictions.tpot[run_indices] / MILLISECOND, width))
    if "ttft" in tables and not predictions.simulated:
        parts.append(Text(f"Time to first token is a closed form: {_why_closed(len(rows))}"))
    spread_count = sum(not row.get(SPREAD) and length_spread(row) > 0 for row in rows)
    if spread_count and parts:
        parts.append(
            Text(f"{spread_count:,} of {len(rows):,} runs drew lengths from 0.8 to 1.0 of nominal, by their ids (--columns).")
        )
    if scripted and parts:
        says = f"As published scripts launched them, not as columns say, count {in_runs(scripted)} of InferenceX on gb200-nvl72"
        parts.append(Text(f"{says}: tp 4 instead of dp 4, or attention that splits no context."))
    undated = [row["measured"] for row in rows if row.get("measured") and not is_dated(row)]
    if undated and parts:
        says = f"{in_runs(len(undated))} without a day: measured is {undated[0][:40]!r}, not as 2025-12-31 or 2025-12."
        parts.append(Text(says))
    if not parts:
        has_times = any(row.get(name) for row in rows for name in (*MEASURED, "ttft_median_s", "output_tok_s"))
        says = "Every row that has a measured time is in doubt" if has_times else "No row has a measured time"
        parts.append(Text(f"{says}; --predictions writes what is predicted."))
    if unread:
        parts.append(Text(f"Columns that are not read: {', '.join(unread)}."))
    unpredicted = [f"{row['id']}: {reason}" for row, reason in zip(rows, predictions.reason, strict=True) if reason]
    parts += [Text.assemble(("In no table: ", "yellow"), line) for line in _in_few_lines(unpredicted)]
    if len(unpredicted) > FEW_NAMED:
        parts.append(Text("--predictions OUT.csv gives the reason of each."))
    return Group(*parts, *(Text.assemble(("Left out: ", "yellow"), problem) for problem in problems))


def _in_few_lines(lines: Sequence[str]) -> list[str]:
    """Return lines "run: reason", or where they are many, how many runs have each kind of reason, and the first of them.

    >>> _in_few_lines(["a: bad"]), _in_few_lines([f"{n}: too fast: {n} ms" for n in range(9)])
    (['a: bad'], ['9 runs: too fast; the first is 0'])
    """
    if len(lines) <= FEW_NAMED:
        return list(lines)
    kinds: dict[str, list[str]] = {}
    for line in lines:
        name, _, reason = line.partition(": ")
        sure = next((words for words in (WRONG, DOUBTFUL) if reason.startswith(words)), "")
        cause = reason.removeprefix(sure).split(":")[0].split(",")[0]
        kinds.setdefault(sure + cause, []).append(name)
    return [f"{counted(len(names), 'run')}: {kind}; the first is {names[0]}" for kind, names in kinds.items()]


def _cells(errors: Mapping[str, float]) -> list[str]:
    return [
        f"{errors['runs']:,}",
        *(percent(errors[key]) for key in ("median", "mean", "p90")),
        percent(errors["bias"], "+"),
        f"{errors['within_25']:.0%}",
        "" if math.isnan(errors["coverage"]) else f"{errors['coverage']:.0%}",
    ]


def percent(share: float, sign: str = "") -> str:
    """Write a share in at most six characters.

    >>> percent(0.0834), percent(1.376), percent(97.4), percent(-0.021, "+"), percent(3.0, "+")
    ('8.3%', '138%', '>999%', '-2.1%', '+300%')
    """
    if share >= 9.995:
        return ">999%"
    return f"{share:{sign}.{0 if abs(share) >= 0.9995 else 1}%}"


def calibration_view(
    before: Engine, fitted: Engine, tables: Mapping[str, Mapping[str, Any]], runs: int, problems: list[str]
) -> RenderableType:
    """Return constants before and after, and the errors of both engines, by name, on the runs that were fitted."""
    grid = table("Constant", f"{before.name}, before", f"{fitted.name}, fitted", numbers=(1, 2))
    for name in (*NAMES, *QUEUE_NAMES, *RUN_WAITS):
        unit = "s" if name.startswith("seconds") else ""
        cells = [show(float(v), unit) if unit else f"{float(v):.3g}" for v in (constant(before, name), constant(fitted, name))]
        grid.add_row(name.replace("_", " "), *cells)
    errors = table("Errors on these runs", *HEADINGS, numbers=range(1, 8), first_to_go=GOING)
    for engine, quantity_errors in tables.items():
        for quantity, of_all in quantity_errors.items():
            errors.add_row(f"{QUANTITY_LABELS[quantity]}, {engine}", *_cells(of_all["all"]))
    warnings = []
    if runs < MIN_RUNS_FOR_RANGES:
        caution = f"{counted(runs, 'run')} {'tells' if runs == 1 else 'tell'} little"
        warnings = [f"{caution}: most constants stay near {before.name}'s, and the ranges are {before.name}'s"]
    exclusions = [Text.assemble(("Left out: ", "yellow"), line) for line in _in_few_lines(problems)]
    return Group(*notes(warnings), grid, errors, *exclusions)
