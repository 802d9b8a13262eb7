"""Runs of every kind on the command line: drafts, separate pools, scenarios, and those that cannot be right."""

from __future__ import annotations

import csv
import json

import pytest

from tests.cli.test_commands import run
from tests.validation.rows import apart, deepseek, offline, plain, written

LINES = (
    plain(id="a", tpot_s="0.0095", ttft_s="0.1"),
    plain(id="b", tpot_s="0.0125", ttft_s="0.2", concurrency="64"),
    deepseek(id="d", drafted="2", acceptance="2.3", tpot_s="0.008", ttft_median_s="0.3", output_tok_s="1700"),
    apart(id="p", tpot_s="0.012", output_tok_s="1200", chips="24"),
    offline(id="o", output_tok_s="40000"),
    plain(id="f", tpot_s="0.0001"),
    plain(id="w", model="llama-3.1-70b", tpot_s="0.05"),
)


@pytest.mark.thorough
def test_validate_tells_of_kinds_and_names_what_cannot_be_right(tmp_path):
    written(tmp_path / "runs.csv", *(row | {"host": "x"} for row in LINES))
    shown = run("validate runs.csv --predictions out.csv --full", columns=100, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    assert "by kind aggregated 2" in words
    assert "Output tokens per second" in words
    assert "Run 'f' is left out of the tables: cannot be right: faster than physics" in words
    assert "Run 'w' is left out of the tables: cannot be right: weights do not fit" in words
    assert "Columns that are not read: host." in words
    out = {row["id"]: row for row in csv.DictReader((tmp_path / "out.csv").read_text().splitlines())}
    assert list(out) == [row["id"] for row in LINES]
    assert out["f"]["reason"].startswith("cannot be right: faster than physics")
    assert out["o"]["ttft_s"] == ""
    found = json.loads(run("validate runs.csv --json", folder=tmp_path).stdout)
    assert found["output_tok_s"]["all"]["runs"] == 3
    assert found["ttft_median"]["all"]["coverage"] is None
    assert [line.split(":")[0] for line in found["doubtful"]] == ["f", "w"]
    assert found["unread"] == ["host"]


def test_validate_says_which_runs_count_otherwise_than_their_columns_say(tmp_path):
    told = {"system": "gb200-nvl72", "dp": "4", "ep": "4", "tp": "1", "weight_dtype": "nvfp4", "expert_dtype": "nvfp4"}
    row = apart(**told, measured="2025-12-19", part="ix_disaggregated", tpot_s="0.008", concurrency="4")
    written(tmp_path / "runs.csv", row | {"id": "a"}, row | {"id": "b"}, row | {"id": "own", "part": ""})
    written(tmp_path / "own.csv", row | {"part": ""})
    shown = (" ".join(run(f"validate {name}.csv", columns=100, folder=tmp_path).stdout.split()) for name in ("runs", "own"))
    says = "2 runs of public benchmarks, by id or part"
    assert [says in words for words in shown] == [True, False]


def test_validate_names_a_day_that_is_none_and_says_where_all_are_in_doubt(tmp_path):
    written(tmp_path / "days.csv", plain(tpot_s="0.0095", measured="December"), plain(tpot_s="0.0095", measured="2025-09"))
    words = " ".join(run("validate days.csv", columns=100, folder=tmp_path).stdout.split())
    assert "1 run without a day: measured is 'December', not as 2025-12-31 or 2025-12." in words
    assert "not read" not in words
    written(tmp_path / "doubt.csv", plain(tpot_s="0.0001"))
    words = " ".join(run("validate doubt.csv", columns=100, folder=tmp_path).stdout.split())
    assert "Every row with a measured time is doubtful" in words


@pytest.mark.slow
def test_calibrate_says_what_it_leaves_out(tmp_path):
    pytest.importorskip("scipy")
    written(tmp_path / "runs.csv", *LINES)
    shown = run("calibrate runs.csv --name mine --prior vllm", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    assert "Run 'o' is left out: not in the fit: its throughput (offline)" in words
    assert "Run 'f' is left out: cannot be right: faster than physics" in words
    assert 'title = "vllm fitted to 4 runs"' in (tmp_path / "mine.toml").read_text()


def test_a_fit_to_nothing_is_refused(tmp_path):
    pytest.importorskip("scipy")
    written(tmp_path / "runs.csv", offline(id="o"))
    shown = run("calibrate runs.csv --name mine", folder=tmp_path)
    assert shown.returncode == 2
    assert "no run for the fit: o: not in the fit: its throughput (offline)" in " ".join(shown.stderr.split())


def test_a_scenario_that_is_none_exits_with_two(tmp_path):
    written(tmp_path / "runs.csv", offline(scenario="Sever"))
    shown = run("validate runs.csv", folder=tmp_path)
    assert shown.returncode == 2
    assert "runs.csv:2: unknown scenario 'Sever'; did you mean Server" in " ".join(shown.stderr.split())


def test_columns_lists_every_column():
    shown = run("validate --columns", columns=200).stdout
    for name in ("drafted", "acceptance", "prefill_workers", "ttft_median_s", "output_tok_s", "scenario", "stream_interval"):
        assert name in shown
