"""Rows of every kind in one file: each read, predicted and written, or refused with one clear message."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from steptime.errors import DataFileError
from steptime.validation.error_summary import measured_figures, report, write_predictions
from steptime.validation.predictions import predict
from steptime.validation.run_table import read_runs, unread_columns
from steptime.validation.validate_api import calibrate, validate
from tests.validation.rows import SHARED, apart, deepseek, offline, plain, written

HIGHEST = offline(id="m", scenario="", part="trt_max", chips="1", output_tok_s="9000.5")
SERVER = offline(id="s", scenario="Server", tp="", ttft_limit_s="2.0", tpot_limit_s="0.1")
EVERY = (
    plain(concurrency="8.0", tp="1.0", engine_version="vllm nan", engine="atom"),
    deepseek(id="d", drafted="2.0", acceptance="2.3", spec="mtp"),
    apart(id="p"),
    apart(id="q", drafted="1", acceptance="1.8", spec="mtp"),
    offline(id="o"),
    SERVER,
    SERVER | {"id": "i", "scenario": "Interactive", "tpot_limit_s": "0.04"},
    HIGHEST,
    deepseek(id="u", spec="mtp"),
)


def test_every_kind_of_row_gets_one_line(tmp_path):
    path = written(tmp_path / "runs.csv", *EVERY)
    rows, problems = read_runs(path)
    assert not problems
    found = predict(rows, by_simulation=False)
    write_predictions(tmp_path / "out.csv", rows, found)
    back = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["id"] for row in back] == [row["id"] for row in EVERY]
    for row in back[:-1]:
        assert row["reason"] == ""
        assert float(row["output_tok_s_low"]) < float(row["output_tok_s"]) < float(row["output_tok_s_high"])
    for row in back[:4]:
        assert float(row["tpot_s"]) > 0
        assert float(row["ttft_s"]) >= float(row["ttft_median_s"]) > 0
    assert back[4]["ttft_s"] == back[4]["ttft_median_s"] == ""
    assert back[-1]["reason"] == "no prediction: spec is mtp, but drafted has no number of speculative tokens per step"
    assert back[-1]["tpot_s"] == back[-1]["output_tok_s"] == ""


def test_drafts_that_nobody_measured_have_a_reason():
    """A model without layers of its own that draft takes the drafts of others, where the run tells what they bring."""
    unknown, told = predict([plain(drafted="2"), plain(drafted="2", acceptance="2.5")], by_simulation=False).reason
    assert unknown.startswith("no prediction: the acceptance length of 2 speculative tokens")
    assert told == ""


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (plain(concurrency=""), "concurrency is empty"),
        (plain(tp=""), "tp is empty"),
        (plain(scenario="Ofline"), "unknown scenario 'Ofline'; did you mean Offline"),
        (plain(part="trtmax"), "unknown part 'trtmax'; did you mean trt_max"),
        (plain(drafted="9"), "drafted must be at most 8 tokens, got 9"),
        (plain(drafted="1.5"), "drafted must be a whole number of at least 0, got '1.5'"),
        (plain(drafted="two"), "drafted must be a number, got 'two'"),
        (plain(drafted="2", acceptance="3.5"), "from 1 to drafted . 1 = 3, got '3.5'"),
        (plain(acceptance="high"), "from 1 to drafted . 1 = 1, got 'high'"),
        (plain(chips="0"), "chips must be a whole number of at least 1, got '0'"),
        (plain(stream_interval="0.5"), "stream_interval must be a whole number of at least 1"),
        (plain(decode_workers="2"), "decode_workers belongs to separate pools, which also need prefill_workers and prefill_tp"),
        (apart(decode_workers=""), "prefill_workers belongs to separate pools, which also need decode_workers"),
        (apart(prefill_tp="7"), "tp=7 does not divide the 128 heads"),
        (apart(prefill_workers="1e9"), "prefill_workers must be at most 100,000,000"),
        (plain(output_tok_s="-1"), "output_tok_s must be a number greater than 0"),
        (plain(output_tok_s="1e13"), "output_tok_s must be at most 1,000,000,000,000"),
        (plain(ttft_median_s="30000"), "ttft_median_s must be at most 10,000 s, got '30000': times are in seconds"),
        (offline(ttft_limit_s="soon"), "ttft_limit_s must be a time greater than 0, got 'soon'"),
        (offline(tp="7"), "tp=7 does not divide the 32 heads"),
    ],
)
def test_a_bad_cell_is_one_clear_message(tmp_path, row, says):
    with pytest.raises(DataFileError, match=says) as caught:
        read_runs(written(tmp_path / "runs.csv", row))
    assert caught.value.line == 2
    assert len(str(caught.value)) < 400


def test_columns_that_nothing_reads_are_told(tmp_path):
    row = plain(host="x", acceptence="2", note="n", engine_version="1", measured="2026-01-01")
    assert unread_columns([row]) == ["host", "acceptence (acceptance?)"]
    assert validate(written(tmp_path / "runs.csv", row)).unread == ("host", "acceptence (acceptance?)")


def test_throughput_is_scored_and_follows_from_tokens_in_all():
    """Of 100 tokens a second, 256 in 1,280 are output."""
    rows = [
        plain(total_tok_s="100"),
        plain(output_tok_s="30", total_tok_s="100"),
        plain(),
        plain(input_mean="256", total_tok_s="8"),
    ]
    assert measured_figures(rows, "output_tok_s") == pytest.approx([20, 30, np.nan, 4], nan_ok=True)
    tables = report(rows, predict(rows, by_simulation=False))
    assert tables["output_tok_s"]["all"]["runs"] == 3
    assert set(tables) == {"output_tok_s"}
    assert list(tables["output_tok_s"]["by"]["kind"]) == ["aggregated"]


@pytest.mark.thorough
def test_a_fit_takes_closed_loops_and_pools_that_decode_and_says_what_it_leaves_out():
    pytest.importorskip("scipy")
    loops = [plain(id=str(c), concurrency=str(c), tpot_s=str(0.008 + 1e-4 * c)) for c in (1, 4, 16)]
    pools = [apart(id="p", tpot_s="0.012", output_tok_s="2500"), apart(id="q", tpot_s="0.012")]
    wrong = [plain(id="w", tpot_s="0.0001"), HIGHEST | {"output_tok_s": "9000"}]
    found = calibrate([*loops, *pools, *wrong], name="mine", prior="vllm")
    assert [row["id"] for row in found.rows] == ["1", "4", "16", "p"]
    told = dict(line.split(": ", 1) for line in found.left_out)
    assert told["q"].startswith("not in the fit: the batch of its decode pool")
    assert told["w"].startswith("cannot be right: faster than physics")
    assert told["m"].startswith("not in the fit: its throughput (maximum)")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serving", "serving_more", "serving_models"])
@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured runs are not beside this checkout")
def test_every_measured_run_has_a_line_and_a_figure_or_a_reason(name):
    rows, problems = read_runs(SHARED / f"{name}.csv")
    assert not problems
    found = predict(rows, by_simulation=False)
    assert len(found.tpot) == len(rows)
    none = ~(np.isfinite(found.tpot) | np.isfinite(found.output_tok_s))
    assert np.all(found.reason[none] != "")
    assert np.mean(found.reason != "") < 0.07
    assert np.all(np.isfinite(found.output_tok_s[found.reason == ""]))
