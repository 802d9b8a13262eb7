"""What the command line says of limits: MET or MISSED first, and the highest rate of traces, clients and pools."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from steptime.cli.views.simulation_view import _within
from tests.cli.test_commands import run
from tests.conftest import each, every

SMALL = "simulate llama-3.1-8b hgx-h100 --input 256 --output 32 "


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Requests at 8 a second in bursts, in Azure's columns."""
    folder = tmp_path_factory.mktemp("trace")
    times = np.cumsum(np.random.default_rng(3).gamma(0.25, 0.5, 600))
    rows = [f"{time:.4f},{400 + k % 300},{20 + k % 30}" for k, time in enumerate(times)]
    (folder / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    blocks = [
        json.dumps({"timestamp": 1000 * k, "input_length": 1024, "output_length": 8, "hash_ids": [k % 4, 100 + k]})
        for k in range(40)
    ]
    (folder / "hashed.jsonl").write_text("\n".join(blocks) + "\n")
    return folder


def words(text: str) -> str:
    return " ".join(text.split())


# --- MET or MISSED ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("more", ["", " --full"])
@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ("--ttft 1", "MET at p90: first token"),
        ("--ttft 0.01 --speed 50", "MISSED at p90: first token"),
        ("--ttft 0.01 --percentile mean", "MISSED on average: first token"),
    ],
)
def test_limits_are_answered_before_whether_it_keeps_up(limits, says, more, columns):
    shown = run(SMALL + f"--rate 20 --requests 200 {limits}{more}", columns=columns)
    assert shown.returncode == (1 if "MISSED" in says else 0), shown.stderr
    text = words(shown.stdout)
    assert says in text
    assert text.index(says) < text.index("STABLE")
    assert "of 200 requests" in text
    assert max(map(len, shown.stdout.splitlines())) <= columns


def test_without_limits_nothing_is_met_or_missed():
    text = run(SMALL + "--rate 20 --requests 200").stdout
    assert "STABLE" in text
    assert "MET" not in text
    assert "MISSED" not in text
    assert json.loads(run(SMALL + "--rate 20 --requests 50 --json").stdout)["limits"] is None


def test_a_trace_that_misses_its_limit_is_not_headed_stable(trace):
    found = json.loads(
        run("simulate llama-3.1-8b hgx-h100 --trace t.csv --rate-scale 4 --ttft 0.1 --json", folder=trace).stdout
    )
    limits = found["limits"]
    assert (limits["verdict"], limits["is_met"], limits["percentile"]) == ("MISSED", False, "p90")
    assert limits["ttft_s"] > limits["ttft_limit_s"] == 0.1
    assert limits["tpot_limit_s"] is None
    assert 0 < limits["requests_within"] < limits["requests_sent"] == 600
    assert found["answers"]["verdict"] in ("STABLE", "SATURATED")
    assert list(found).index("limits") < list(found).index("answers")


@each(
    "share, rate, shown",
    [(0.0, 0.0, "no request"), (0.0006, 0.0, "fewer than 0.1 % of requests"), (0.02, 0.0, "2.0 %"), (0.5, 1.5, "50.0 %, 1")],
)
def test_requests_within_the_limits_before_the_steady_state_are_not_none(share, rate, shown):
    """Six of the first requests met their limits, and none of the steady state, whose rate is 0."""
    assert _within(SimpleNamespace(within_limits=share, goodput=rate)).startswith(shown)


def test_a_range_says_which_end_misses():
    text = run(SMALL + "--rate 20 --requests 200 --ttft 1 --range").stdout
    row = next(line for line in text.splitlines() if line.strip().startswith("Limits"))
    assert row.split()[1:] == ["MET", "MET", "MET"]


# --- the highest rate ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_without_limits_the_highest_rate_speaks_of_none():
    shown = run("simulate llama-3.1-8b hgx-h100 --find-rate")
    assert shown.returncode == 0, shown.stderr
    assert "the queue does not grow" in words(shown.stdout)
    assert "within the limits" not in words(shown.stdout)


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.thorough)])
def test_the_highest_rate_of_a_trace_is_one_the_trace_meets(trace, columns):
    asked = "simulate llama-3.1-8b hgx-h100 --trace t.csv --ttft 0.3 --percentile p95"
    shown = run(f"{asked} --find-rate", folder=trace, columns=columns)
    assert shown.returncode == 0, shown.stderr
    text = words(shown.stdout)
    assert "is the highest rate within the limits, at p95." in text
    assert "times the rate of the trace" in text
    assert max(map(len, shown.stdout.splitlines())) <= columns
    found = json.loads(run(f"{asked} --find-rate --json", folder=trace).stdout)
    assert found["clients"] is None
    at = next(p for p in found["points"] if p["requests_per_s"] == found["requests_per_s"])
    assert at["good"]
    assert at["scale"] == found["scale"]
    again = json.loads(run(f"{asked} --rate-scale {found['scale']!r} --json", folder=trace).stdout)
    assert again["limits"]["is_met"]
    assert again["limits"]["ttft_s"] == pytest.approx(at["ttft_s"])


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("more", every(3, ["", " --prefill-replicas 1", " --replicas 2"]))
def test_the_most_clients(more, columns):
    shown = run(SMALL + f"--concurrency 8 --find-rate --ttft 0.1 --speed 60{more}", columns=columns)
    assert shown.returncode == 0, shown.stderr
    text = words(shown.stdout)
    assert "clients of a closed loop" in text
    assert "at p90. They send" in text
    assert max(map(len, shown.stdout.splitlines())) <= columns


@pytest.mark.thorough
@pytest.mark.parametrize(
    "more",
    [
        pytest.param("--prefill-replicas 1", marks=pytest.mark.thorough),
        "--prefixes 4 --prefix-tokens 128 --prefix-cache hbm=1GB --replicas 2 --route prefix-aware",
        pytest.param("--fast-share 0.2 --fast-replicas 1 --fast-max-num-seqs 8", marks=pytest.mark.thorough),
        pytest.param("--concurrency 8 --prefixes 4 --prefix-tokens 128 --prefix-cache hbm=1GB", marks=pytest.mark.thorough),
    ],
)
def test_a_highest_rate_of_pools_and_caches(more):
    shown = run(SMALL + f"--find-rate --requests 200 --ttft 0.2 {more}")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "within the limits, at p90" in words(shown.stdout)


def test_no_rate_of_a_trace_is_an_answer_with_exit_code_1(trace):
    for asked in ("--trace t.csv", "--concurrency 4"):
        shown = run(f"simulate llama-3.1-8b hgx-h100 {asked} --find-rate --ttft 0.0001", folder=trace)
        assert shown.returncode == 1
        assert "within the limits, at p90." in words(shown.stdout)


@pytest.mark.thorough
def test_the_csv_of_clients_has_their_number(tmp_path):
    run(SMALL + "--concurrency 8 --find-rate --ttft 0.1 --csv c.csv", folder=tmp_path)
    head, first, *_ = (tmp_path / "c.csv").read_text().splitlines()
    assert head == "requests_per_s,scale,clients,requests,ttft_s,tpot_s,verdict,good,why"
    assert first.split(",")[1:3] == ["", "8"] or int(first.split(",")[2]) >= 1


@each(
    "asked, says",
    [
        ("--trace t.csv --rate 3", "--trace and --rate exclude each other"),
        ("--trace t.csv --concurrency 3 --find-rate", "--trace and --concurrency exclude each other"),
        ("--rate 3 --find-rate", "keep one of the two"),
        ("--trace t.csv --find-rate --rate-scale 2", "--rate-scale needs --trace without --find-rate"),
        ("--trace t.csv --find-rate --input 20", "--trace already gives lengths; leave out --input"),
        ("--trace t.csv --find-rate --fast-share 0.1", "--fast-share needs --rate or --find-rate"),
        ("--concurrency 3 --find-rate", "needs a limit on TTFT"),
        ("--concurrency 3 --find-rate --speed 20", "needs a limit on TTFT"),
        ("--concurrency 0 --find-rate --ttft 1", "concurrency must be at least 1"),
        ("--concurrency 3 --find-rate --ttft 1 --export a.csv", "--export needs a run at one rate"),
        ("--trace t.csv --spread 2", "--trace already gives lengths; leave out --spread"),
        ("--trace azure-code", "no file 'azure-code', and of the public trace azure-code only lengths are known"),
        ("--trace azure-cod", "--rate R --input 2048 --output 28 --spread 0.964 --output-spread 2.15"),
        ("--rate 1 --speed 1234567890", "--speed must be at most 1,000,000,000 tok/s"),
        ("--rate 1 --tpot 8.1e-10", "--tpot must be at least 1 ns, not 0.81 ns"),
        ("--rate 1 --ttft 8.1e-10", "must be at least 1 ns, not 0.81 ns"),
        ("--rate 1 --percentile p50", "--percentile needs --speed or --ttft"),
        ("--rate 1 --ttft 1 --percentile p98", "unknown percentile 'p98'; did you mean"),
    ],
)
def test_wrong_questions_name_the_nearest_right_one(asked, says, trace):
    shown = run(f"simulate llama-3.1-8b hgx-h100 {asked}", folder=trace)
    assert shown.returncode == 2, shown.stdout
    assert says in words(shown.stderr)


def test_a_plan_with_a_trace_takes_no_lengths():
    shown = run("plan llama-3.1-8b hgx-h100 --trace azure-code --spread 2")
    assert (shown.returncode, words(shown.stderr)) == (2, "steptime: --trace already gives lengths; leave out --spread")


# --- blocks that nothing keeps ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("more", ["", " --find-rate --ttft 1"])
def test_a_trace_with_blocks_says_what_a_cache_would_keep(trace, more):
    """Of 80 blocks 4 shared ones and 40 of their own are new: 36 came before."""
    asked = f"simulate llama-3.1-8b hgx-h100 --trace hashed.jsonl{more}"
    assert "45.0 % of the prompts' blocks occurred" in words(run(asked, folder=trace).stdout)
    assert "hash_ids" not in run(f"{asked} --prefix-cache hbm=1GB", folder=trace).stdout
    assert "hash_ids" not in run(f"simulate llama-3.1-8b hgx-h100 --trace t.csv{more}", folder=trace).stdout


def test_older_software_is_slower_and_a_day_without_runs_is_refused():
    words = "step deepseek-v3 mi355x-8 --batch 8 --tp 8 --ep 8 --context 1k --json --software"
    old, new = (json.loads(run(f"{words} {day}").stdout)["total_s"] for day in ("2025-12-01", "2026-01-01"))
    assert 0.86 / 0.62 < old / new < 2.3 * 0.86 / 0.62
    refused = run("step deepseek-v3 mi355x-8 --software 2024-01-01")
    assert refused.returncode == 2
    assert "from 2025-10-06 to 2026-06-11, got 2024-01-01" in " ".join(refused.stderr.split())
