"""The commands that read measured runs: validate holds predictions against them, calibrate fits an engine to them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from steptime.terminal.options import CATALOG, JSON, console_of, print_json

WHAT = (
    "CSV of runs (`steptime validate --columns` lists its columns), result JSON of `vllm bench serve` or of SGLang's "
    "bench_serving, or folders of them."
)
SKIP = Annotated[bool, typer.Option("--skip-bad", help="Leave out runs that cannot be read, and say which.")]
PANEL = "What result JSON does not tell"


def _told(words: str, name: str = "", metavar: str | None = None) -> Any:
    """Return an option of the panel of what result JSON does not tell."""
    return typer.Option(*([name] if name else []), help=words, metavar=metavar, rich_help_panel=PANEL, show_default=False)


MODEL = Annotated[
    str, _told("Catalogue name or config, instead of the file's model_id (SGLang's may have none).", "--model", "NAME")
]
SYSTEM = Annotated[str, _told("System that was measured.", "--system", "NAME")]
TP = Annotated[int | None, _told("Tensor parallel ways.", "--tp")]
PP = Annotated[int | None, _told("Pipeline stages; 1 where not given.", "--pp")]
DP = Annotated[int | None, _told("Attention groups (data parallel attention), which multiply tp; 1 where not given.", "--dp")]
EP = Annotated[int | None, _told("Expert parallel ways; 1 where not given.", "--ep")]
WEIGHTS = Annotated[str, _told("Format of all weights but routed experts: bf16, fp8, nvfp4, ...", "--weights", "FORMAT")]
EXPERTS = Annotated[str, _told("Format of routed experts; as --weights where not given.", "--experts", "FORMAT")]
KV = Annotated[str, _told("Format of the KV cache; where not given, 8 bits if the weights have 8 or fewer.", "--kv", "FORMAT")]


def validate(
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE...", help=WHAT, show_default=False)] = None,
    predictions: Annotated[
        str | None, typer.Option(metavar="OUT.csv", help="Write predicted times with 90 % intervals of every row.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Predict every row with this engine instead of its own (ideal: the bound).")
    ] = None,
    skip_bad: SKIP = False,
    columns: Annotated[bool, typer.Option("--columns", help="List the columns of the file and exit.")] = False,
    model: MODEL = "",
    system: SYSTEM = "",
    tp: TP = None,
    pp: PP = None,
    dp: DP = None,
    ep: EP = None,
    weights: WEIGHTS = "",
    experts: EXPERTS = "",
    kv: KV = "",
    catalog: CATALOG = None,
    json: JSON = False,
) -> None:
    """Hold predictions against measured serving runs: how far off, how biased, and do the intervals hold?"""
    from steptime.errors import RangeError
    from steptime.measured.load_generators import read_files
    from steptime.measured.validation import predict, report, write_predictions
    from steptime.physics.engine import load_engine
    from steptime.terminal.validation_view import columns_view, validation_view

    if columns:
        console_of().print(columns_view())
        return
    if not files:
        raise RangeError("give a CSV file of runs (--columns lists what it holds) or result JSON of vLLM or SGLang")
    given = _given(model, system, tp, pp, dp, ep, weights, experts, kv)
    rows, problems = read_files(files, given=given, skip_bad=skip_bad, catalog=catalog)
    found = predict(rows, engine=load_engine(engine, catalog) if engine else None, catalog=catalog)
    if predictions:
        write_predictions(predictions, rows, found)
    tables = report(rows, found)
    if json:
        print_json(tables | {"left_out": problems})
        return
    console = console_of()
    console.print(validation_view(rows, found, tables, problems, console.width))


def calibrate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help=WHAT, show_default=False)],
    engine: Annotated[str, typer.Option(help="Name of the engine to make.", show_default=False)],
    prior: Annotated[
        str, typer.Option(help="Engine to start from, which few runs move little; by default that of the runs, or typical.")
    ] = "",
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Engine file to write; by default NAME.toml.")] = None,
    skip_bad: SKIP = False,
    model: MODEL = "",
    system: SYSTEM = "",
    tp: TP = None,
    pp: PP = None,
    dp: DP = None,
    ep: EP = None,
    weights: WEIGHTS = "",
    experts: EXPERTS = "",
    kv: KV = "",
    catalog: CATALOG = None,
) -> None:
    """Fit an engine's physical constants to your own measured runs, with a shipped engine as prior."""
    import datetime
    from pathlib import Path

    from steptime.measured.calibration import calibrate as fit
    from steptime.measured.calibration import engine_file
    from steptime.measured.load_generators import read_files
    from steptime.measured.validation import engine_of
    from steptime.physics.engine import TYPICAL, load_engine
    from steptime.terminal.validation_view import calibration_view

    given = _given(model, system, tp, pp, dp, ep, weights, experts, kv)
    rows, problems = read_files(files, given=given, skip_bad=skip_bad, catalog=catalog)
    ran = {row["engine"] for row in rows}
    before = load_engine(prior, catalog) if prior else engine_of(min(ran) if len(ran) == 1 else TYPICAL, catalog=catalog)
    fitted = fit(rows, name=engine, prior=before, catalog=catalog)
    path = Path(out or f"{engine}.toml")
    first, *others = (Path(file).resolve().name for file in files)
    source = {
        "url": "",
        "date": datetime.date.today().isoformat(),
        "grade": "measured",
        "note": f"{len(rows)} runs of {first}" + (f" and {len(others)} more files" if others else ""),
    }
    path.write_text(engine_file(fitted, source), encoding="utf-8")
    console_of().print(calibration_view(before, fitted, rows, problems, str(path), catalog))


def _given(
    model: str, system: str, tp: int | None, pp: int | None, dp: int | None, ep: int | None, weights: str, experts: str, kv: str
) -> dict[str, str]:
    """Return what was given, by the column of a run that it fills."""
    columns = {
        "model": model, "system": system, "tp": tp, "pp": pp, "dp": dp, "ep": ep,
        "weight_dtype": weights, "expert_dtype": experts, "kv_dtype": kv,
    }  # fmt: skip
    return {column: str(value) for column, value in columns.items() if value not in ("", None)}
