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
    from steptime.measured.comparison import write_predictions
    from steptime.measured.outcomes import validate as hold
    from steptime.terminal.validation_view import columns_view, validation_view

    if columns:
        console_of().print(columns_view())
        return
    if not files:
        raise RangeError("give a CSV file of runs (--columns lists what it holds) or result JSON of vLLM or SGLang")
    told = _told_of(model, system, tp, pp, dp, ep, weights, experts, kv)
    found = hold(files, engine=engine or None, skip_bad=skip_bad, catalog=catalog, **told)
    if predictions:
        write_predictions(predictions, found.rows, found.predictions)
    if json:
        print_json(found)
        return
    console = console_of()
    console.print(validation_view(list(found.rows), found.predictions, found.tables, list(found.left_out), console.width))


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
    from pathlib import Path

    from steptime.measured.outcomes import calibrate as fit
    from steptime.terminal.validation_view import calibration_view

    told = _told_of(model, system, tp, pp, dp, ep, weights, experts, kv)
    found = fit(files, name=engine, prior=prior or None, skip_bad=skip_bad, catalog=catalog, **told)
    path = Path(out or f"{engine}.toml")
    path.write_text(found.toml, encoding="utf-8")
    console_of().print(calibration_view(found.prior, found.engine, list(found.rows), list(found.left_out), str(path), catalog))


def _told_of(
    model: str, system: str, tp: int | None, pp: int | None, dp: int | None, ep: int | None, weights: str, experts: str, kv: str
) -> dict[str, Any]:
    """Return what was given, by the argument of `validate` and `calibrate`."""
    told = {
        "model": model, "system": system, "tp": tp, "pp": pp, "dp": dp, "ep": ep,
        "weights": weights, "experts": experts, "kv": kv,
    }  # fmt: skip
    return {name: value for name, value in told.items() if value not in ("", None)}
