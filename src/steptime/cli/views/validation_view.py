"""Terminal views of `steptime validate`, `calibrate` and `anchors`: errors of predictions, fitted constants, own runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from steptime.cli.views.terminal_plots import scatter_plot
from steptime.cli.views.widgets import Answer, Grid, footnote, table
from steptime.errors import install_hint
from steptime.physics.bias_correction import Anchors, Factor
from steptime.physics.engine import Engine, constant
from steptime.physics.engine_parameters import RUN_WAITS
from steptime.units import counted, show
from steptime.validation.data_quality import DOUBTFUL, WRONG
from steptime.validation.engine_fit import NAMES, QUEUE_NAMES
from steptime.validation.error_summary import Predictions
from steptime.validation.predictions import MOST_SIMULATED
from steptime.validation.published_deployments import BALANCED_WITHIN, BUSY_POLLING_STEPS, POLLING_STEPS, is_dated
from steptime.validation.run_table import COLUMNS, MEASURED, OPTIONAL, SPREAD, in_runs, length_spread
from steptime.validation.validate_api import QUANTITY_LABELS

MILLISECOND = 1e-3  # s
FIGURES = 63  # columns of the figures of an error table
MIN_RUNS_FOR_RANGES = 50  # runs below which the ranges are those of the prior engine
GOING = (1, 3, 4, 5, 6, 7)  # columns of an error table in the order in which they are dropped
FEW_NAMED = 3  # doubtful runs that are named one by one
MIN_SCATTER_RUNS = 3  # runs from which a chart shows more than the table
QUANTITIES = {
    "tpot": "Time per output token",
    "ttft": "Time to first token",
    "ttft_median": "Median time to first token",
    "output_tok_s": "Output tokens per second",
}
HEADINGS = ("Runs", "Median", "Mean", "p90", "Bias", "<25 %", "Covered")
MEANINGS = {
    "id": "any name, kept in the output",
    "model": "Hugging Face id or catalogue name",
    "system": "catalogue name of the system",
    "engine": "vllm, sglang, trtllm, or another",
    "input_tokens": "prompt tokens: of the longest, where lengths are drawn",
    "output_tokens": "output tokens: of the longest, where lengths are drawn",
    "concurrency": "requests in flight in the whole deployment; under a scenario empty, or the maximum per replica",
    "tp": "tensor parallel ways; under a scenario empty where they are not known",
    "pp": "pipeline stages",
    "dp": "data-parallel ranks (DP attention); tp x pp x dp chips in total",
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
    "length_spread": "half width of the lengths over their mean; by default 0. Ids with a date or cfg, as in the "
    "public set: by default 1/9 (0.8 to 1 of the longest)",
    "ttft_median_s": "measured median time to first token [s]",
    "output_tok_s": "measured output tokens a second of the whole deployment",
    "total_tok_s": "measured input and output tokens a second, where output_tok_s is not known",
    "ttft_limit_s": "of Server and Interactive: time to first token that 99 % of requests keep [s]",
    "tpot_limit_s": "of Server and Interactive: time per output token that 99 % of requests keep [s]",
    "scenario": "Offline (all requests at once), Server or Interactive (Poisson arrivals within limits)",
    "part": "ix_aggregated, ix_mtp, ix_disaggregated, mlperf or trt_max: the highest throughput at any concurrency",
    "spec": "none or a method of drafting; without the column a run is plain, unless it looks like a drafted one",
    "acceptance": "tokens per step; by default as measured with the draft layers of the model",
    "drafted": "tokens drafted per step; by default none",
    "decode_workers": "of separate pools: replicas of tp, dp, ep that decode",
    "prefill_workers": "of separate pools: replicas for prefill",
    "prefill_tp": "of those, tensor parallel ways",
    "prefill_dp": "of those, data-parallel ranks; by default 1",
    "prefill_ep": "of those, expert parallel ways; by default 1",
    "chips": "of the whole deployment; where not given, those of one replica",
    "stream_interval": "decode steps between two reports of tokens: first tokens come that number of steps later, less one; "
    f"by default 1, and {POLLING_STEPS:.0f} or {BUSY_POLLING_STEPS:.0f} of SGLang on B200 and B300; "
    f"of TensorRT-LLM's data-parallel ranks as public runs wait for each other, {1 + BALANCED_WITHIN / 2:.0f} at most",
}


def columns_view() -> RenderableType:
    """Return the columns of a file of runs.

    Returns:
        A row for each column, with its meaning.
    """
    grid = table("Column", "Meaning")
    for name in (*COLUMNS, *MEASURED, *OPTIONAL):
        grid.add_row(name, MEANINGS[name] + ("; optional" if name in OPTIONAL else ""))
    return grid


def validation_view(
    rows: list[dict[str, str]],
    predictions: Predictions,
    tables: Mapping[str, Any],
    problems: list[str],
    width: int,
    *,
    scripted: int = 0,
    unread: Sequence[str] = (),
    full: bool = False,
) -> Answer:
    """Return errors of predictions.

    Args:
        rows: runs by column.
        predictions: predicted times of the runs.
        tables: errors by quantity, of all runs and by group.
        problems: rows that were left out, with reasons.
        width: columns of the terminal.
        scripted: number of runs whose layout is that of the published script instead of the columns.
        unread: columns that are not read.
        full: whether to show errors by model, system, engine, format, concurrency and bound.

    Returns:
        The answer.
    """
    overall = _error_table("All runs")
    for name, quantity_errors in tables.items():
        overall.add_row(QUANTITIES[name], *_cells(quantity_errors["all"]))
    body: list[RenderableType] = [overall, footnote(MEANING)] if tables else []
    run_indices = [i for i, row in enumerate(rows) if row.get("tpot_s") and not predictions.reason[i]]
    # a chart of one or two runs shows less than their row
    if "tpot" in tables and len(run_indices) >= MIN_SCATTER_RUNS:
        measured = [float(rows[i]["tpot_s"]) / MILLISECOND for i in run_indices]
        body.append(scatter_plot(measured, predictions.tpot[run_indices] / MILLISECOND, width))
    # a run that cannot be right would hide the errors of all others
    unpredicted = [f"{row['id']}: {reason}" for row, reason in zip(rows, predictions.reason, strict=True) if reason]
    warnings = [f"not in the tables: {line}" for line in _in_few_lines(unpredicted)]
    if len(unpredicted) > FEW_NAMED:
        warnings[-1] += "; --predictions OUT.csv gives all reasons"
    warnings += [f"left out: {line}" for line in _in_few_lines(problems)]
    if tables:
        warnings += _simplifications(rows, predictions, tables, scripted)
    if unread:
        warnings.append(f"columns that are not read: {', '.join(unread)}")
    room = max(12, width - FIGURES)
    return Answer(
        sentence=_error_sentence(rows, tables), body=body,
        details=[_group_table(QUANTITIES[name], quantity_errors["by"], room) for name, quantity_errors in tables.items()],
        warnings=warnings, full_adds="errors by model, system, engine, format, concurrency and bound" if tables else "",
        full=full,
    )  # fmt: skip


INSTALL = f"{install_hint('simulate')}, simulates each run"
MEANING = "|predicted / measured - 1|; bias: median without the sign. Covered: runs within their 90 % range."


def _error_sentence(rows: list[dict[str, str]], tables: Mapping[str, Any]) -> str:
    """Say how far predictions are off, and how many runs lie in their ranges."""
    claims = []
    for name, quantity_errors in tables.items():
        errors = quantity_errors["all"]
        claim = f"{QUANTITIES[name][0].lower()}{QUANTITIES[name][1:]} by {percent(errors['median'])}"
        covered = (
            ""
            if math.isnan(errors["coverage"])
            else f" ({errors['coverage']:.0%} of {errors['runs']:,} runs in the 90 % range)"
        )
        claims.append(claim + covered)
    if claims:
        return f"Median error of predictions: {', '.join(claims)}."
    has_times = any(row.get(name) for row in rows for name in (*MEASURED, "ttft_median_s", "output_tok_s"))
    says = "Every row with a measured time is doubtful" if has_times else "No row has a measured time"
    return f"{says}; --predictions writes the predicted times."


def _simplifications(
    rows: list[dict[str, str]], predictions: Predictions, tables: Mapping[str, Any], scripted: int
) -> list[str]:
    """Say where predictions of these runs rest on assumptions."""
    texts = []
    if "ttft" in tables and not predictions.simulated:
        too_many = f"runs are simulated in files of up to {MOST_SIMULATED:,}"
        why = too_many if len(rows) > MOST_SIMULATED else INSTALL
        texts.append(f"time to first token is a closed form: {why}")
    spread_count = sum(not row.get(SPREAD) and length_spread(row) > 0 for row in rows)
    if spread_count:
        texts.append(
            f"{spread_count:,} of {len(rows):,} runs drew lengths from 0.8 to 1.0 of nominal, by their ids (--columns)"
        )
    if scripted:
        texts.append(
            f"{in_runs(scripted)} of InferenceX on gb200-nvl72 use the layout of the published script: tp 4 instead of dp 4, "
            "or attention without context parallelism"
        )
    undated = [row["measured"] for row in rows if row.get("measured") and not is_dated(row)]
    if undated:
        texts.append(f"{in_runs(len(undated))} without a day: measured is {undated[0][:40]!r}, not as 2025-12-31 or 2025-12")
    return texts


def _error_table(title: str) -> Grid:
    return table(title, *HEADINGS, numbers=range(1, 8), first_to_go=GOING)


def _group_table(title: str, groups: Mapping[str, Any], room: int) -> Grid:
    """Return the errors of a quantity by group of runs, with labels of at most `room` columns."""
    grid = _error_table(title)
    for key, errors_by_value in groups.items():
        if len(errors_by_value) > 1:
            grid.add_section()
            grid.add_row(f"by {key.replace('_', ' ')}", style="italic")
            for value, errors in errors_by_value.items():
                label = f"  {value.rpartition('/')[2] or 'not given'}"
                grid.add_row(label if len(label) <= room else label[: room - 1] + "…", *_cells(errors))
    return grid


def _in_few_lines(lines: Sequence[str]) -> list[str]:
    """Return lines "run: reason"; where they are many, the number of runs with each kind of reason, and the first.

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

    Args:
        share: the share.
        sign: "+" to show the sign of positive shares.

    Returns:
        Per cents.

    >>> percent(0.0834), percent(1.376), percent(97.4), percent(-0.021, "+"), percent(3.0, "+")
    ('8.3%', '138%', '>999%', '-2.1%', '+300%')
    """
    if share >= 9.995:
        return ">999%"
    return f"{share:{sign}.{0 if abs(share) >= 0.9995 else 1}%}"


def calibration_view(
    before: Engine,
    fitted: Engine,
    tables: Mapping[str, Mapping[str, Any]],
    runs: int,
    problems: list[str],
    path: str,
    *,
    full: bool = False,
) -> RenderableType:
    """Return the errors of an engine before and after a fit, and its constants.

    Args:
        before: engine that the fit started from.
        fitted: the fitted engine.
        tables: errors of both engines by name and quantity.
        runs: number of runs.
        problems: rows that were left out, with reasons.
        path: file of the fitted engine.
        full: whether to show all constants and warnings.

    Returns:
        The answer.
    """
    constants = table("Constant", before.name, fitted.name, numbers=(1, 2))
    for name in (*NAMES, *QUEUE_NAMES, *RUN_WAITS):
        unit = "s" if name.startswith("seconds") else ""
        cells = [show(float(v), unit) if unit else f"{float(v):.3g}" for v in (constant(before, name), constant(fitted, name))]
        constants.add_row(name.replace("_", " "), *cells)
    errors = _error_table("Errors on these runs")
    for engine, quantity_errors in tables.items():
        for quantity, of_all in quantity_errors.items():
            errors.add_row(f"{QUANTITY_LABELS[quantity]}, {engine}", *_cells(of_all["all"]))
    medians = [
        f"{QUANTITY_LABELS[name]} {percent(of_all['all']['median'])} ({before.name}: {percent(old['all']['median'])})"
        for name, of_all in tables.get(fitted.name, {}).items()
        if (old := tables.get(before.name, {}).get(name))
    ]
    warnings = [f"left out: {line}" for line in _in_few_lines(problems)]
    if runs < MIN_RUNS_FOR_RANGES:
        caution = f"{counted(runs, 'run')} {'changes' if runs == 1 else 'change'} little"
        warnings.insert(0, f"{caution}: most constants stay near those of {before.name}, and its ranges are kept")
    errors_text = f" Median errors on them: {', '.join(medians)}." if medians else ""
    return Answer(
        sentence=f"{fitted.name} is fitted to {counted(runs, 'run')}.{errors_text}",
        conditions=f"Written to {path}: use it with --engine {path}.", body=[errors, constants], warnings=warnings, files="",
        has_json=False, full_adds="all constants", full=full,
    )  # fmt: skip


def anchors_view(anchors: Anchors, *, full: bool = False) -> RenderableType:
    """Return the runs of the user that are kept.

    Args:
        anchors: groups of runs with their corrections.
        full: whether to show all rows.

    Returns:
        The answer.
    """
    if not anchors.anchors:
        return Answer(sentence="No runs are kept: `steptime anchors add FILE` keeps those of a load generator or a CSV.")
    grid = table("Name", "Model", "System", "Engine", "Runs", "Time per token", "First token", numbers=(4, 5, 6))
    for anchor in anchors.anchors:
        engine = f"{anchor.engine} {anchor.version}".strip()
        figures = (f"{len(anchor.runs):,}", _factor(anchor.tpot), _factor(anchor.ttft))
        grid.add_row(anchor.source, anchor.model, anchor.system, engine, *figures)
    runs = sum(len(anchor.runs) for anchor in anchors.anchors)
    groups = counted(len(anchors.anchors), "group")
    return Answer(
        sentence=f"{counted(runs, 'run')} in {groups} correct predictions of plan, step and simulate by these factors.",
        body=[grid], warnings=[f"left out: {why}" for anchor in anchors.anchors for why in anchor.left_out], full=full,
    )  # fmt: skip


def _factor(correction: Factor | None) -> str:
    return "-" if correction is None else f"x {correction.factor:.3f}"
