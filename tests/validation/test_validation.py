"""Predictions against measured runs, fitted engines, and what a file of runs may do wrong."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_cross_validation import FITTED, USUAL, base_engine, fit_all

from steptime.errors import DataFileError, InputError
from steptime.physics.engine import Engine, constant, load_engine, with_constants
from steptime.physics.engine_parameters import CONSTANTS, find_problem
from steptime.validation import predictions as validate
from steptime.validation import run_table as runs_of
from steptime.validation.engine_fit import NAMES, engine_file, engine_from
from steptime.validation.error_summary import errors, report, write_predictions
from steptime.validation.predictions import predict
from steptime.validation.run_table import COLUMNS, OPTIONAL, read_runs
from tests.conftest import each

DOCS = Path(__file__).parents[2] / "docs"
RUNS = Path(__file__).parents[3] / "shared" / "data" / "measured" / "serving.csv"
SHIPPED = ("vllm", "sglang", "trtllm", "typical")


def one(**changes: str) -> dict[str, str]:
    row = {
        "id": "a", "model": "llama-3.1-8b", "system": "hgx-h100", "engine": "vllm",
        "input_tokens": "1024", "output_tokens": "256", "concurrency": "16",
        "tp": "1", "pp": "1", "dp": "1", "ep": "1", "weight_dtype": "bf16", "expert_dtype": "",
        "ttft_s": "0.1", "tpot_s": "0.01",
    }  # fmt: skip
    return row | changes


def written(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@each("name", SHIPPED)
def test_shipped_engines_are_physical(name):
    engine = load_engine(name)
    fitted = engine.fit["names"]
    assert fitted == [one for one in NAMES if one in fitted]  # in their order
    assert {"memory_efficiency", "seconds_per_sequence"} <= set(fitted)
    assert np.shape(engine.fit["covariance"]) == (len(fitted), len(fitted))
    assert engine.source["grade"] == "measured"
    for name_ in CONSTANTS:
        assert constant(engine, name_) >= 0
    assert 0.7 < engine.kernels.memory_efficiency < 1.1
    for table in engine.fit["interval"].values():
        assert all(low < 1 < high or (low < high) for low, high in table.values())


def test_a_real_engine_is_slower_than_the_ideal():
    rows = [
        one(),
        one(concurrency="128"),
        one(model="deepseek-v3", system="hgx-h200", tp="8", weight_dtype="fp8", expert_dtype="fp8"),
    ]
    real, ideal = predict(rows), predict(rows, engine=Engine())
    assert np.all(real.tpot > ideal.tpot)
    assert np.all(real.ttft > ideal.ttft)
    assert np.all((real.tpot_low < real.tpot) & (real.tpot < real.tpot_high))


def test_an_engine_that_is_not_known_gets_the_typical_one():
    known, unknown = predict([one(engine="typical")]), predict([one(engine="another")])
    assert unknown.tpot == known.tpot


def test_predictions_keep_the_order_and_every_row(tmp_path):
    rows = [one(id=str(i), concurrency=str(2**i), engine=SHIPPED[i % 3]) for i in range(6)]
    together = predict(rows)
    for i, row in enumerate(rows):
        assert together.tpot[i] == pytest.approx(predict([row]).tpot[0])
    write_predictions(tmp_path / "out.csv", rows, together)
    back = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["id"] for row in back] == [row["id"] for row in rows]
    times = ("tpot_s", "tpot_low_s", "tpot_high_s", "ttft_s", "ttft_low_s", "ttft_high_s", "ttft_median_s")
    assert list(back[0]) == ["id", *times, "output_tok_s", "output_tok_s_low", "output_tok_s_high", "bound", "reason"]


def test_first_tokens_are_simulated_where_numba_is(monkeypatch):
    """A burst of 64 waits for the prompts before it; without numba a closed form answers, and the view says so."""
    from steptime.cli.views.validation_view import validation_view
    from steptime.validation import predictions as validate
    from steptime.validation.validate_api import Validation

    rows = [one(concurrency="1"), one(concurrency="64")]
    if validate.can_simulate():
        found = predict(rows)
        assert found.simulated
        assert found.ttft[1] > 2 * found.ttft[0]
        assert not predict(rows, by_simulation=False).simulated
    monkeypatch.setattr(validate, "can_simulate", lambda: False)
    plain = predict(rows)
    assert not plain.simulated
    assert np.all(plain.ttft > 0)
    tables = {"ttft": None} | report(rows, plain)
    shown = validation_view(Validation(rows=tuple(rows), predictions=plain, simulated=False, **tables), width=120)
    assert any("steptime[simulate]" in text for text in shown.warnings)


def test_lengths_are_nominal_or_drawn_from_a_range_that_ends_there():
    """As the public set names its runs, unless a column tells."""
    ids = ("llama_c16", "2026_04_06_llama_c16", "llama_c16_cfg7", "2026_told")
    (runs,) = validate.grouped([one(id=name, length_spread="0.5" if "told" in name else "") for name in ids])
    assert list(runs.input_tokens) == pytest.approx([1024, 921.6, 921.6, 1024 / 1.5])
    assert list(runs.spread) == pytest.approx([0, 1 / 9, 1 / 9, 0.5])


@pytest.mark.skipif(not validate.can_simulate(), reason="the simulator needs the extra 'simulate'")
def test_requests_of_equal_length_stay_together():
    """An engine that reads prompts first keeps a burst together: each round waits as the first did, unless lengths differ."""
    (runs,) = validate.grouped([one(engine="sglang", concurrency="64", length_spread=s) for s in ("0", "0.5")])
    alike, apart = validate.simulate_loops(runs, load_engine("sglang")).queued
    assert alike > 2 * apart


@pytest.mark.skipif(not validate.can_simulate(), reason="the simulator needs the extra 'simulate'")
def test_a_run_of_few_requests_is_mostly_its_start():
    """The first of 64 clients wait for each other: all of one request each, a tenth of ten each, hardly any of a long run."""
    rows = [one(concurrency="64", length_spread="0.5", requests=n) for n in ("64", "640", "", "1000000")]
    (runs,) = validate.grouped(rows)
    once, ten, usual, long = validate.simulate_loops(runs, load_engine("vllm")).queued
    assert once > 3 * ten > 4 * long
    assert ten == usual
    assert np.all(np.diff(predict(rows, by_simulation=False).ttft[[0, 1, 3]]) < 0)


def test_error_figures():
    found = errors(np.array([1.0, 1.0, 1.0, 1.0]), np.array([1.1, 0.9, 1.5, 1.0]), np.full(4, 0.95), np.full(4, 1.05))
    assert found == pytest.approx(
        {"runs": 4, "median": 0.1, "mean": 0.175, "p90": 0.38, "bias": 0.05, "within_25": 0.75, "coverage": 1}
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"concurrency": "-1"}, "concurrency must be a whole number of at least 1"),
        ({"tp": "two"}, "tp must be a number, got 'two'"),
        ({"dp": "1e300"}, "dp must be at most 100,000,000, got '1e300'"),
        ({"tp": "1e8", "dp": "1e8", "pp": "1e8"}, "tp must be at most 200,000, not 100,000,000"),
        ({"tpot_s": "0"}, "tpot_s must be a time greater than 0"),
        ({"tpot_s": "nan"}, "tpot_s must be a time greater than 0"),
        ({"ttft_s": "-3"}, "ttft_s must be a time greater than 0"),
        ({"model": "lama-3.1-8b"}, "did you mean"),
        ({"system": "hgx-h1000"}, "did you mean"),
        ({"weight_dtype": "fp9"}, "unknown number format"),
        ({"tp": "7"}, "tp=7 does not divide the 32 heads"),
        ({"kv_dtype": "fp9"}, "unknown KV format"),
        ({"input_mean": "-1"}, "input_mean must be a number greater than 0"),
        ({"concurrency_mean": "many"}, "concurrency_mean must be a number greater than 0"),
        ({"length_spread": "1.5"}, "length_spread must be a share from 0 .equal lengths. to 1, got '1.5'"),
        ({"input_mean": "1e300"}, "input_mean must be at most 100,000,000, got '1e300'"),
        ({"concurrency_mean": "1e9"}, "concurrency_mean must be at most 100,000,000"),
        ({"requests": "none"}, "requests must be a number greater than 0"),
        ({"length_spread": "wide"}, "length_spread must be a share from 0"),
    ],
)
def test_a_bad_row_is_named_and_may_be_left_out(tmp_path, changes, says):
    optional = dict.fromkeys(OPTIONAL, "")
    path = written(tmp_path / "runs.csv", one(**optional), one(**optional | {"id": "bad"} | changes))
    with pytest.raises(DataFileError, match=says) as caught:
        read_runs(path)
    assert caught.value.line == 3
    rows, problems = read_runs(path, skip_bad=True)
    assert [row["id"] for row in rows] == ["a"]
    assert problems[0].startswith("line 3: ")


def test_each_name_of_the_catalogue_is_read_once(tmp_path, monkeypatch):
    """A file of many rows costs what its distinct names cost."""
    read = []

    def counted(load):
        return lambda name, *rest, **options: read.append(name) or load(name, *rest, **options)

    for module, load in ((runs_of, runs_of.load_system), (runs_of, runs_of.load_model), (validate, validate.load_system)):
        monkeypatch.setattr(module, load.__name__, counted(load))
    path = written(tmp_path / "runs.csv", *(one(id=str(i), concurrency=str(i + 1), tp=str(2 ** (i % 4))) for i in range(40)))
    rows, _ = read_runs(path)
    assert sorted(read) == ["hgx-h100", "llama-3.1-8b"]
    predict(rows)
    assert sorted(read) == ["hgx-h100", "hgx-h100", "llama-3.1-8b", "llama-3.1-8b"]


def test_rows_that_are_short_or_blank(tmp_path):
    path = written(tmp_path / "runs.csv", one(), one(id="b"))
    path.write_text("\ufeff" + path.read_text().replace("b,llama", "\nb,llama").removesuffix(",0.1,0.01\n") + "\n")
    rows, _ = read_runs(path)
    assert [(row["id"], row["tpot_s"]) for row in rows] == [("a", "0.01"), ("b", "")]
    path.write_text(",".join(COLUMNS) + "\na,llama-3.1-8b,hgx-h100\n")
    with pytest.raises(DataFileError, match="input_tokens is empty"):
        read_runs(path)


def test_missing_columns_and_files_are_named(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("id,model\n1,llama-3.1-8b\n")
    with pytest.raises(DataFileError, match="lacks the columns system, engine"):
        read_runs(path)
    with pytest.raises(DataFileError, match="no such file"):
        read_runs(tmp_path / "none.csv")
    path.write_text(",".join(COLUMNS) + "\n")
    with pytest.raises(DataFileError, match="has no runs"):
        read_runs(path)


def test_an_engine_file_is_read_as_it_was_written(tmp_path):
    engine = load_engine("vllm")
    path = tmp_path / "mine.toml"
    path.write_text(engine_file(replace(engine, name="mine"), {"url": "", "date": "2026-11-20", "grade": "measured"}))
    back = load_engine(str(path))
    assert back.name == "mine"
    for name in CONSTANTS:
        assert constant(back, name) == pytest.approx(constant(engine, name), rel=1e-3)
    for key in ("names", "vendors", "interval", "parameter_variance"):
        assert back.fit[key] == engine.fit[key], key


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("memory_efficiency = ", "memory_eficiency = ", "did you mean memory_efficiency"),
        ("memory_efficiency = 0", "memory_efficiency = -0", "memory_efficiency: must be from 0.001 to 1.25"),
        ("covariance = [\n  [", "covariance = [\n  [1.0, ", "fit.covariance"),
        ("covariance = [\n  [", 'covariance = [\n  ["a", ', "fit.covariance"),
        ('names = ["memory_efficiency"', 'names = ["mimory"', "fit.names"),
        ("[constants]", "[constants", "not valid TOML"),
    ],
)
def test_a_broken_engine_file_is_named(tmp_path, old, new, says):
    path = tmp_path / "broken.toml"
    text = engine_file(load_engine("vllm"), {})
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DataFileError, match=says):
        load_engine(str(path))


def test_constants_may_be_arrays():
    """The fit evaluates many engines at once: each row of constants gives what it gives alone."""
    from steptime.validation.predictions import grouped, predict_runs

    (runs,) = grouped([one(), one(concurrency="64")])
    logs = USUAL + np.array([[0.0], [0.1], [-0.2]])
    base = base_engine("vllm")
    together = predict_runs(runs, engine_from(logs, base, FITTED))[0]
    for i in range(3):
        assert together[i] == pytest.approx(predict_runs(runs, engine_from(logs[i], base, FITTED))[0])


def test_calibration_finds_the_constants_that_made_the_runs():
    """Runs made with a slower memory are fitted back to it, from a prior that does not know."""
    pytest.importorskip("scipy")
    from steptime.validation.engine_fit import calibrated_engine

    made = with_constants(load_engine("vllm"), {"memory_efficiency": 0.7, "seconds_per_kernel": 7e-6})
    rows = [
        one(id=str(i), concurrency=str(c), tp=str(t))
        for i, (c, t) in enumerate((c, t) for c in (1, 4, 16, 64) for t in (1, 2, 4, 8))
    ]
    truth = predict(rows, engine=made)
    times = zip(rows, truth.tpot, truth.ttft, strict=True)
    rows = [row | {"tpot_s": str(a), "ttft_s": str(b)} for row, a, b in times]
    fitted = calibrated_engine(rows, name="mine", prior=load_engine("vllm"))
    again = predict(rows, engine=fitted)
    assert np.median(np.abs(again.tpot / truth.tpot - 1)) < 0.03
    assert fitted.kernels.memory_efficiency < 0.8


def test_constants_stay_within_what_an_engine_may_have():
    """Runs that are faster than their chips ask for more than a data sheet's peak; the file that is written can be read."""
    found = engine_from(np.log(np.full(len(NAMES), 1e9)), base_engine("vllm"))
    assert all(not find_problem(name, float(constant(found, name))) for name in NAMES)
    assert found.kernels.memory_efficiency == 1.25


def test_ranges_of_runs_unlike_those_of_the_fit_are_wider():
    ways = {"model": "deepseek-ai/DeepSeek-R1", "engine": "sglang", "weight_dtype": "fp8", "expert_dtype": "fp8"}
    rows = [one(system=system, tp=tp, dp=dp, ep=ep, **ways) for system, tp, dp, ep in (
        ("mi355x-8", "8", "1", "1"), ("mi355x-8", "1", "8", "8"), ("gb200-nvl72", "1", "16", "16")
    )]  # fmt: skip
    found = predict(rows, by_simulation=False)
    near, groups, wide = found.tpot_high / found.tpot
    assert groups > 1.3 * near
    assert near < wide < groups


def test_calibration_needs_measured_times():
    from steptime.validation.engine_fit import calibrated_engine

    with pytest.raises(InputError, match="tpot_s: missing in 1 runs, the first is 'b'"):
        calibrated_engine([one(), one(id="b", tpot_s="")], name="mine", prior=load_engine("vllm"))


@pytest.mark.slow
@pytest.mark.skipif(not RUNS.is_file(), reason="the measured runs are not beside this checkout")
def test_shipped_engines_on_the_measured_runs():
    """What the shipped engines were fitted to: every row answered, with the errors that docs/validation.md states."""
    rows, problems = read_runs(RUNS)
    assert not problems
    found = predict(rows)
    assert np.all(np.isfinite(found.tpot) & np.isfinite(found.ttft) & (found.tpot > 0))
    tables = report(rows, found)
    assert tables["tpot"]["all"]["median"] < 0.09
    assert tables["tpot"]["all"]["p90"] < 0.30
    assert abs(tables["tpot"]["all"]["bias"]) < 0.035
    if found.simulated:
        off = np.abs(found.ttft / np.array([float(row["ttft_s"] or "nan") for row in rows]) - 1)
        late = np.array([row["engine"] == "sglang" and row["system"] in ("hgx-b200", "hgx-b300") for row in rows])
        assert np.nanmedian(off[~late]) < 0.20  # the others look for requests every 10 to 30 steps, which no column tells
        most = {"vllm": 0.17, "trtllm": 0.20, "sglang": 0.40}
        engine = np.array([row["engine"] for row in rows])
        assert all(np.nanmedian(off[~late & (engine == name)]) < limit for name, limit in most.items())
    assert 0.85 <= tables["tpot"]["all"]["coverage"] <= 0.97


@pytest.mark.slow
@pytest.mark.skipif(not RUNS.is_file(), reason="the measured runs are not beside this checkout")
def test_the_validation_page_says_what_a_new_fit_finds():
    """docs/validation.md, written anew: the same words, and figures within what another machine's rounding moves."""
    pytest.importorskip("scipy")
    pytest.importorskip("numba")
    from fit_engines import fitted_rows, page

    files = [RUNS, *(RUNS.parent / f"serving_{name}.csv" for name in ("more", "models", "groups"))]
    rows = fitted_rows([row for path in files for row in read_runs(path)[0]])
    number = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?")
    texts = page(rows, fit_all(rows)), (DOCS / "validation.md").read_text(encoding="utf-8")
    assert number.sub("#", texts[0]) == number.sub("#", texts[1])
    new, old = (np.array([float(figure.replace(",", "")) for figure in number.findall(text)]) for text in texts)
    assert np.all(np.abs(new - old) <= np.maximum(1.5, 0.05 * np.abs(old)))
