"""What the terminal shows of predictions held against measurements, and of a fitted engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from steptime.measured.calibration import NAMES, QUEUE_NAMES
from steptime.measured.comparison import Predictions, report
from steptime.measured.runs import COLUMNS, MEASURED, OPTIONAL, SPREAD, spread_of
from steptime.measured.validation import MOST_SIMULATED, predict
from steptime.physics.constants import WAIT_NAMES
from steptime.physics.engine import Engine, constant
from steptime.terminal.widgets import table
from steptime.units import show

FIGURES = 63  # columns that the figures of an error table take
HEADINGS = ("Runs", "Median", "Mean", "p90", "Bias", "<25 %", "Covered")
MEANINGS = {
    "id": "any name, kept in the output",
    "model": "Hugging Face id or catalogue name",
    "system": "catalogue name of the system",
    "engine": "vllm, sglang, trtllm, or another",
    "input_tokens": "prompt tokens: of the longest, where lengths are drawn",
    "output_tokens": "output tokens: of the longest, where lengths are drawn",
    "concurrency": "requests in flight in the whole deployment",
    "tp": "tensor parallel ways",
    "pp": "pipeline stages",
    "dp": "attention groups; tp x pp x dp chips in all",
    "ep": "expert parallel ways",
    "weight_dtype": "bf16, fp8, nvfp4, ...: all but routed experts",
    "expert_dtype": "format of routed experts; empty for dense models",
    "ttft_s": "measured time to first token [s]; may be absent",
    "tpot_s": "measured time per output token [s]; may be absent",
    "kv_dtype": "fp8, bf16, ...; by default as the engine keeps it",
    "input_mean": "mean prompt tokens, where known",
    "output_mean": "mean output tokens, where known",
    "concurrency_mean": "mean requests in flight, instead of concurrency",
    "requests": "of the whole run; where not given, ten for each in flight",
    "length_spread": "how far lengths reach to both sides of their mean, as a share; where not given, 1/9 (drawn from 0.8 to 1 "
    "of the longest) if the id begins with a date or holds cfg, as in the public set, and else 0 (all alike)",
}


def columns_view() -> RenderableType:
    """Return the columns that a file of runs has."""
    shown = table("Column", "What it holds")
    for name in (*COLUMNS, *MEASURED, *OPTIONAL):
        shown.add_row(name, escape(MEANINGS[name]) + ("; optional" if name in OPTIONAL else ""))
    return shown


def _why_closed(rows: int) -> str:
    if rows > MOST_SIMULATED:
        return f"runs are simulated in files of up to {MOST_SIMULATED:,}."
    return "pip install 'steptime[simulate]' to simulate each run."


def validation_view(
    rows: list[dict[str, str]], predictions: Predictions, tables: Mapping[str, Any], problems: list[str], width: int
) -> RenderableType:
    """Return error tables and a scatter picture."""
    parts: list[RenderableType] = []
    room = max(12, width - FIGURES)  # for labels
    names = {"tpot": "Time per output token", "ttft": "Time to first token"}
    for name, found in tables.items():
        shown = table(
            "",
            *HEADINGS,
            title=f"{names[name]}: |predicted / measured - 1|, and how many runs lie in the 90 % interval",
            numbers=range(1, 8),
        )
        shown.add_row("all", *_cells(found["all"]), style="bold")
        for key, by in found["by"].items():
            if len(by) > 1:
                shown.add_section()
                shown.add_row(f"by {key.replace('_', ' ')}", style="italic")
                for value, errors in by.items():
                    label = f"  {value.rpartition('/')[2] or 'not given'}"
                    shown.add_row(label if len(label) <= room else label[: room - 1] + "…", *_cells(errors))
        parts.append(shown)
    if "tpot" in tables:
        parts.append(_scatter(rows, predictions, width))
    if "ttft" in tables and not predictions.simulated:
        parts.append(Text(f"Time to first token is a closed form: {_why_closed(len(rows))}"))
    named = sum(not row.get(SPREAD) and spread_of(row) > 0 for row in rows)
    if named and parts:
        parts.append(
            Text(f"{named:,} of {len(rows):,} runs drew lengths from 0.8 to 1.0 of nominal, by their ids (--columns).")
        )
    parts += [Text.assemble(("Left out: ", "yellow"), problem) for problem in problems]
    return Group(*parts) if parts else Text("No row has a measured time; --predictions writes what is predicted.")


def _cells(errors: Mapping[str, float]) -> list[str]:
    return [
        f"{errors['runs']:,}",
        *(percent(errors[key]) for key in ("median", "mean", "p90")),
        percent(errors["bias"], "+"),
        *(f"{errors[key]:.0%}" for key in ("within_25", "coverage")),
    ]


def percent(share: float, sign: str = "") -> str:
    """Write a share in at most six characters.

    >>> percent(0.0834), percent(1.376), percent(97.4), percent(-0.021, "+"), percent(3.0, "+")
    ('8.3%', '138%', '>999%', '-2.1%', '+300%')
    """
    if share >= 9.995:
        return ">999%"
    return f"{share:{sign}.{0 if abs(share) >= 0.9995 else 1}%}"


def _scatter(rows: list[dict[str, str]], predictions: Predictions, width: int) -> RenderableType:
    """Return predicted against measured TPOT on logarithmic axes, with the diagonal."""
    import plotille

    known = [i for i, row in enumerate(rows) if row.get("tpot_s")]
    measured = np.log10([1e3 * float(rows[i]["tpot_s"]) for i in known])
    predicted = np.log10(1e3 * predictions.tpot[known])
    low = math.floor(2 * min(measured.min(), predicted.min())) / 2
    high = math.ceil(2 * max(measured.max(), predicted.max()) + 1e-9) / 2
    figure = plotille.Figure()
    figure.width, figure.height, figure.origin, figure.color_mode = 10 * max(3, min(6, (width - 36) // 10)), 16, False, "names"
    figure.set_x_limits(low, high)
    figure.set_y_limits(low, high)
    figure.x_ticks_fkt = figure.y_ticks_fkt = lambda value, _: f"{10**value:,.3g}"
    figure.x_label, figure.y_label = "measured TPOT [ms]", "predicted TPOT [ms]"
    figure.plot([low, high], [low, high], lc="red")
    figure.scatter(measured, predicted)
    return Group(Text("Predicted against measured", style="bold"), Text.from_ansi(figure.show(legend=False)))


def calibration_view(
    before: Engine, fitted: Engine, rows: list[dict[str, str]], problems: list[str], path: str, catalog: str | None = None
) -> RenderableType:
    """Return constants before and after, and the errors on the runs that were fitted."""
    shown = table("Constant", before.name, fitted.name, numbers=(1, 2))
    for name in (*NAMES, *QUEUE_NAMES, *WAIT_NAMES):
        unit = "s" if name.startswith("seconds") else ""
        cells = [show(float(v), unit) if unit else f"{float(v):.3g}" for v in (constant(before, name), constant(fitted, name))]
        shown.add_row(name.replace("_", " "), *cells)
    errors = table("Errors on these runs", *HEADINGS, numbers=range(1, 8))
    for engine in (before, fitted):
        for name, found in report(rows, predict(rows, engine=engine, catalog=catalog)).items():
            errors.add_row(f"{name.upper()}, {engine.name}", *_cells(found["all"]))
    parts: list[RenderableType] = [shown, errors, Text(f"Written to {path}: use it with --engine {path}")]
    return Group(*parts, *(Text.assemble(("Left out: ", "yellow"), problem) for problem in problems))
