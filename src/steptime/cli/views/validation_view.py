"""Text of `steptime validate`, `calibrate` and `anchors`: errors of predictions, fitted constants, own runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group

from steptime.cli.views.terminal_plots import Axis, Curve, draw
from steptime.cli.views.widgets import Answer, Grid, footnote, listing, table, write
from steptime.errors import install_hint
from steptime.physics.bias_correction import Anchors, Factor
from steptime.physics.run_covariance import TRAINING
from steptime.units import counted, percent, percent_change
from steptime.validation.data_quality import DOUBTFUL, WRONG
from steptime.validation.predictions import MOST_SIMULATED
from steptime.validation.published_deployments import BALANCED_WITHIN, BUSY_POLLING_STEPS, POLLING_STEPS, is_dated
from steptime.validation.run_table import COLUMNS, MEASURED, OPTIONAL, SPREAD, in_runs, length_spread
from steptime.validation.validate_api import QUANTITY_LABELS, Calibrated, Validation

MILLISECOND = 1e-3
# Columns of the figures of an error table.
FIGURES = 63
# Runs below which the ranges are those of the prior engine.
MIN_RUNS_FOR_RANGES = 50
# Doubtful runs that are named one by one.
FEW_NAMED = 3
# Place of a row in a file.
LINE = re.compile(r"(.*: )?(line|row) \d+")
# The reason against a run without a value.
EMPTY_CELL = re.compile(r"^(\w+) is empty$")
# Runs from which a chart shows more than the table, and up to which each has a letter.
MIN_SCATTER_RUNS, MAX_MARKED_RUNS = 3, 40
QUANTITIES = {
    "tpot": "Time per output token",
    "ttft": "Time to first token",
    "ttft_median": "Median time to first token",
    "output_tok_s": "Output tokens per second",
}
INSTALL = f"{install_hint('simulate')}, simulates each run"
MEANING = (
    "Median, mean, p90: of |predicted / measured - 1|. Bias: median of predicted / measured - 1, with its sign. "
    "Covered: runs within their 90 % range."
)
MEANINGS = {
    "id": "any name, kept in the output",
    "model": "Hugging Face id or catalogue name",
    "system": "catalogue name of the system",
    "engine": "vllm, sglang, trtllm, or another",
    "input_tokens": "prompt tokens per request; if lengths vary, the longest; a number with decimals is a mean",
    "output_tokens": "output tokens per request; if lengths vary, the longest; a number with decimals is a mean",
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
    "engine_version": "release of the engine, such as 0.11.1; some engine files have constants of older releases",
    "sampling": "greedy (by default, as benchmarks do) or top-p",
    "prefill_schedule": "first or mixed (chunks of prompts within decode steps, as SGLang's --enable-mixed-chunk); "
    "by default as the engine schedules",
    "tpot_statistic": "what tpot_s is: mean (by default) or median interval (of the intervals between tokens)",
    "task": "task of ML.ENERGY, which stands for its prompts, top-p and medians: lm-arena-chat or gpqa",
    "kv_dtype": "fp8, bf16, ...; by default as the engine keeps it",
    "input_mean": "mean prompt tokens, where known",
    "output_mean": "mean output tokens, where known",
    "concurrency_mean": "mean requests in flight, instead of concurrency",
    "requests": "of the whole run; where not given, ten for each in flight, and under a scenario as many as the benchmark has",
    "length_spread": "s, for lengths drawn evenly from 1 - s to 1 + s times their mean; by default 0, and 1/9 where "
    "the id has a date or cfg as in public runs (0.8 to 1 of the longest)",
    "ttft_median_s": "measured median time to first token [s]",
    "output_tok_s": "measured output tokens a second of the whole deployment",
    "total_tok_s": "measured input and output tokens a second, where output_tok_s is not known",
    "ttft_limit_s": "of Server and Interactive: time to first token that 99 % of requests keep [s]",
    "tpot_limit_s": "of Server and Interactive: time per output token that 99 % of requests keep [s]",
    "scenario": "Offline (all requests at once), Server or Interactive (Poisson arrivals within limits)",
    "part": "mlperf, trt_max (the highest throughput at any concurrency), or any label without effect",
    "spec": "none or a method of drafting; by default none, with a doubt where the run is as fast as with drafts",
    "acceptance": "tokens per step; by default as measured with the draft layers of the model",
    "drafted": "tokens drafted per step; by default none",
    "decode_workers": "of separate pools: replicas of tp, dp, ep that decode",
    "prefill_workers": "of separate pools: replicas for prefill",
    "prefill_tp": "of those, tensor parallel ways",
    "prefill_dp": "of those, data-parallel ranks; by default 1",
    "prefill_ep": "of those, expert parallel ways; by default 1",
    "chips": "of the whole deployment; where not given, those of one replica",
    "max_num_seqs": "most sequences that a replica (a decode replica of separate pools) runs at once, on all of its ranks; "
    "further clients wait; by default no limit",
    "max_num_batched_tokens": "prompt tokens of a data-parallel rank in a step (chunked-prefill-size, max-num-batched-tokens); "
    "by default those of the engine",
    "stream_interval": "decode steps between two reports of tokens: first tokens come that number of steps later, less one; "
    f"by default 1, and {POLLING_STEPS:.0f} or {BUSY_POLLING_STEPS:.0f} of some public SGLang runs; "
    f"up to {1 + BALANCED_WITHIN / 2:.0f} in public TensorRT-LLM runs with data-parallel ranks, which wait for each other",
}


FACTORS = (
    "Time per token, first token: median of measured / predicted, and in parentheses the correction at the load of the runs. "
    "Other loads, layouts and models are corrected less, the less they share with the runs."
)


def columns_view() -> Grid:
    """Return the columns of a file of runs.

    Returns:
        A row for each column, with its meaning.
    """
    names = (*COLUMNS, *MEASURED, *OPTIONAL)
    rows = [(name, MEANINGS[name] + ("; optional" if name in OPTIONAL else "")) for name in names]
    return table("Column", "Meaning", rows=rows)


def validation_view(validation: Validation, *, width: int) -> Answer:
    """Return errors of predictions.

    Args:
        validation: Measured runs, their predictions, and the errors by quantity.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    tables = validation.tables
    overall = _error_table("All runs", {QUANTITIES[name]: errors["all"] for name, errors in tables.items()})
    # A run that cannot be right would hide the errors of all others.
    warnings = _in_few_lines(validation.doubtful, "left out of the tables")
    if len(validation.doubtful) > FEW_NAMED:
        warnings[-1] += "; --predictions OUT.csv gives all reasons"
    if validation.left_out:
        of_all = counted(validation.runs + len(validation.left_out), "run")
        warnings[:0] = _in_few_lines(validation.left_out, "left out", of_all)
    warnings += validation.notes
    warnings += _simplifications(validation) if tables else []
    room = max(12, width - FIGURES)
    return Answer(
        sentence=_error_sentence(validation),
        conditions=f"Columns that are not read: {', '.join(validation.unread)}." if validation.unread else "",
        body=[overall, footnote(MEANING), _scatter_chart(validation, width)] if tables else [],
        details=[_group_table(QUANTITIES[name], errors["by"], room) for name, errors in tables.items()],
        warnings=warnings, full_adds="errors by model, system, engine, format, concurrency and bound" if tables else "",
    )  # fmt: skip


def _error_sentence(validation: Validation) -> str:
    """Say how far predictions are off, and how many runs lie in their ranges."""
    claims = []
    for name, quantity_errors in validation.tables.items():
        errors = quantity_errors["all"]
        covered = f" ({percent(errors['coverage'])} of {in_runs(errors['runs'])} in the 90 % range)"
        claim = f"{error_in_percent(errors['median'])} in {QUANTITIES[name][0].lower()}{QUANTITIES[name][1:]}"
        claims.append(claim + ("" if math.isnan(errors["coverage"]) else covered))
    if claims:
        return f"Median error: {', '.join(claims)}."
    has_times = any(row.get(name) for row in validation.rows for name in (*MEASURED, "ttft_median_s", "output_tok_s"))
    says = "Every row with a measured time is doubtful" if has_times else "No row has a measured time"
    return f"{says}; --predictions writes the predicted times."


def _simplifications(validation: Validation) -> list[str]:
    """Say where predictions of these runs rest on assumptions."""
    rows, texts = validation.rows, []
    if "ttft" in validation.tables and not validation.simulated:
        too_many = f"runs are simulated in files of up to {MOST_SIMULATED:,}"
        texts.append(f"time to first token is a closed form: {too_many if len(rows) > MOST_SIMULATED else INSTALL}")
    spread_count = sum(not row.get(SPREAD) and length_spread(row) > 0 for row in rows)
    if spread_count:
        texts.append(
            f"{spread_count:,} of {in_runs(len(rows))} drew lengths from 0.8 to 1.0 of nominal, by their ids (--columns)"
        )
    if validation.scripted:
        texts.append(
            f"{in_runs(validation.scripted)} of public benchmarks, by id or part: predictions use settings of published "
            "scripts that no column states, such as the format of the KV cache"
        )
    undated = [row["measured"] for row in rows if row.get("measured") and not is_dated(row)]
    if undated:
        texts.append(f"{in_runs(len(undated))} without a day: measured is {undated[0][:40]!r}, not as 2025-12-31 or 2025-12")
    return texts


def _scatter_chart(validation: Validation, width: int) -> Group | None:
    """Return predicted against measured TPOT on logarithmic axes, with the diagonal."""
    rows, predictions = validation.rows, validation.predictions
    run_indices = [i for i, row in enumerate(rows) if row.get("tpot_s") and not predictions.reason[i]]
    # A chart of one or two runs shows less than their row.
    if "tpot" not in validation.tables or len(run_indices) < MIN_SCATTER_RUNS:
        return None
    x = np.log10([float(rows[i]["tpot_s"]) / MILLISECOND for i in run_indices])
    y = np.log10(predictions.tpot[run_indices] / MILLISECOND)
    low = math.floor(2 * min(x.min(), y.min())) / 2
    high = math.ceil(2 * max(x.max(), y.max()) + 1e-9) / 2
    diagonal = np.linspace(low, high, 16)
    mark, glyph = ("o", "o") if len(x) <= MAX_MARKED_RUNS else (None, "⠿")
    curves = [
        Curve(diagonal, diagonal, "predicted as measured", "red", "/", has_line=False),
        Curve(x, y, "a run", mark=mark, glyph=glyph, has_line=False),
    ]
    axes = Axis("TPOT in ms, measured", low, high), Axis("TPOT in ms, predicted", low, high)
    return draw(curves, *axes, width, 16, "Predicted against measured")


def _error_table(title: str, errors: Mapping[str, Mapping[str, float]]) -> Grid:
    """Return a row of errors for each name."""
    heads = (title, "Runs", "Median", "Mean", "p90", "Bias", "<25 %", "Covered")
    rows = [(name, *_error_cells(figures)) for name, figures in errors.items()]
    return table(*heads, rows=rows, numbers=range(1, 8), first_to_go=(1, 3, 4, 5, 6, 7))


def _error_cells(errors: Mapping[str, float]) -> list[str]:
    shares = [error_in_percent(errors[key]) for key in ("median", "mean", "p90")]
    covered = "" if math.isnan(errors["coverage"]) else percent(errors["coverage"])
    bias = error_in_percent(errors["bias"], percent_change)
    return [f"{errors['runs']:,}", *shares, bias, percent(errors["within_25"]), covered]


def _group_table(title: str, groups: Mapping[str, Any], room: int) -> Grid:
    """Return the errors of a quantity by group of runs, with labels of at most `room` columns."""
    grid = _error_table(title, {})
    for key, errors_by_value in groups.items():
        if len(errors_by_value) > 1:
            grid.add_section()
            grid.add_row(f"by {key.replace('_', ' ')}", style="italic")
            for value, errors in errors_by_value.items():
                label = f"  {value.rpartition('/')[2] or 'not given'}"
                grid.add_row(label if len(label) <= room else label[: room - 1] + "…", *_error_cells(errors))
    return grid


def _in_few_lines(lines: Sequence[str], verb: str, of_all: str = "") -> list[str]:
    """Return sentences for lines "run: reason"; where they are many, one for each kind of reason, with the first runs.

    >>> _in_few_lines(["a: bad"], "left out"), _in_few_lines([f"{n}: too fast: {n} ms" for n in range(9)], "left out")
    (["Run 'a' is left out: bad"], ['9 runs are left out: too fast; the first is 0'])
    >>> _in_few_lines([f"line {n}: tp is empty" for n in range(9)], "left out", "20 runs")
    ['9 of 20 runs are left out: they have no tp; the first are line 0, line 1, line 2']
    """
    parts = [line.partition(": ")[::2] for line in lines]
    if len(lines) <= FEW_NAMED:
        names = [name[:1].upper() + name[1:] if LINE.fullmatch(name) else f"Run {name!r}" for name, _ in parts]
        return [f"{name} is {verb}: {reason}" for name, (_, reason) in zip(names, parts, strict=True)]
    kinds: dict[str, list[str]] = {}
    for name, reason in parts:
        sure = next((words for words in (WRONG, DOUBTFUL) if reason.startswith(words)), "")
        cause = reason.removeprefix(sure).split(":")[0].split(",")[0]
        kinds.setdefault(EMPTY_CELL.sub(r"they have no \1", sure + cause), []).append(name)
    return [
        (f"{len(names):,} of {of_all}" if of_all else counted(len(names), "run"))
        + f" {'is' if len(names) == 1 else 'are'} {verb}: {kind}; "
        + (f"the first are {', '.join(names[:FEW_NAMED])}" if all(map(LINE.fullmatch, names)) else f"the first is {names[0]}")
        for kind, names in kinds.items()
    ]


def error_in_percent(share: float, form: Callable[[float, int], str] = percent) -> str:
    """Write an error in at most seven characters.

    Args:
        share: the error, relative to the measured value.
        form: writes a share with digits after the point: `percent`, or `percent_change` to show the sign.

    Returns:
        Per cents.

    >>> error_in_percent(0.0834), error_in_percent(97.4), error_in_percent(-0.021, percent_change)
    ('8.3 %', '>999 %', '-2.1 %')
    """
    if share >= 9.995:
        return ">999 %"
    return form(share, 0 if abs(share) >= 0.9995 else 1)


def calibration_view(calibrated: Calibrated, *, tables: Mapping[str, Mapping[str, Any]], path: str) -> Answer:
    """Return the errors of an engine before and after a fit, and its constants.

    Args:
        calibrated: The fitted engine and the engine that the fit started from.
        tables: Errors of both engines by name and quantity.
        path: File of the fitted engine.

    Returns:
        The answer.
    """
    before, fitted, runs = calibrated.prior.name, calibrated.engine.name, calibrated.runs
    rows = []
    for name, value in calibrated.constants.items():
        form = "s" if name.startswith("seconds") else ".3g"
        rows.append((name.replace("_", " "), write(calibrated.prior_constants[name], form), write(value, form)))
    errors = {
        f"{QUANTITY_LABELS[quantity]}, {engine}": of_all["all"]
        for engine, quantity_errors in tables.items()
        for quantity, of_all in quantity_errors.items()
    }
    medians = [
        f"{QUANTITY_LABELS[name]} {error_in_percent(of_all['all']['median'])} "
        f"({before}: {error_in_percent(old['all']['median'])})"
        for name, of_all in tables.get(fitted, {}).items()
        if (old := tables.get(before, {}).get(name))
    ]
    warnings = _in_few_lines(calibrated.left_out, "left out")
    if runs < MIN_RUNS_FOR_RANGES:
        # The constant that the fit changes most, of those that are not 0.
        ratios = {
            name: value / old for name, value in calibrated.constants.items() if (old := calibrated.prior_constants[name])
        }
        moved = max(ratios, key=lambda name: abs(math.log(ratios[name])) if ratios[name] > 0 else 0.0)
        words = f"{counted(runs, 'run')} cannot determine each constant: the fit changes the most uncertain ones most"
        warnings.insert(
            0, f"{words} ({moved.replace('_', ' ')} x {ratios[moved]:.2g}), and the 90 % ranges stay those of {before}"
        )
    errors_text = f" Median errors on them: {', '.join(medians)}." if medians else ""
    return Answer(
        sentence=f"{fitted} is fitted to {counted(runs, 'run')}.{errors_text}",
        conditions=f"Written to {path}: use it with --engine {path}.",
        body=[_error_table("Errors on these runs", errors), table("Constant", before, fitted, rows=rows, numbers=(1, 2)),
            footnote("Constants: `steptime engines NAME --full` explains each."),
        ],
        warnings=warnings, files="", has_json=False, full_adds="all constants",
    )  # fmt: skip


def anchors_view(anchors: Anchors) -> Answer:
    """Return the runs of the user that are kept.

    Args:
        anchors: Groups of runs with their corrections.

    Returns:
        The answer.
    """
    if not anchors.anchors:
        return Answer(sentence="No runs are kept: `steptime anchors add FILE` keeps those of a load generator or a CSV.")

    def factor(correction: Factor | None) -> str:
        return "-" if correction is None else f"{correction.ratio:.2f} (x {correction.factor:.2f})"

    quantities = {"tpot": "Time per token", "ttft": "First token", TRAINING: "Training step"}
    columns = [f"{words}: {{{name}}}" for name, words in quantities.items() if any(a.has(name) for a in anchors.anchors)]
    grid = listing(
        " | ".join(["Name: {source} | Model: {model} | System: {system} | Engine: {version} | Runs: {count:,}", *columns]),
        anchors.anchors, numbers=tuple(range(5, 5 + len(columns))),
        training_step=lambda anchor: factor(anchor.training_step),
        version=lambda anchor: f"{anchor.engine} {anchor.version}".strip(),
        count=lambda anchor: len(anchor.runs), tpot=lambda anchor: factor(anchor.tpot), ttft=lambda anchor: factor(anchor.ttft),
    )  # fmt: skip
    runs, groups = sum(len(anchor.runs) for anchor in anchors.anchors), counted(len(anchors.anchors), "group")
    return Answer(
        sentence=f"{counted(runs, 'run')} in {groups} correct predictions by these factors.",
        body=[grid, footnote(FACTORS)],
        warnings=[line for anchor in anchors.anchors for line in _in_few_lines(anchor.left_out, "left out")],
    )  # fmt: skip
