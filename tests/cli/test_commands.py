"""The command line as a user types it."""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

import pytest
import typer
from rich.console import Console

import steptime as st
from steptime.cli import main as cli_main
from steptime.cli.main import EXAMPLES, app_for, main
from steptime.cli.views.plan_view import plan_view
from tests.conftest import CHOICE_ALONE, each, every

MAIN = "plan deepseek-ai/DeepSeek-V3 gb200-nvl72 --input 8192 --output 1024 --speed 50 --ttft 2"


@dataclass
class Shown:
    """What a command printed and returned."""

    returncode: int
    stdout: str
    stderr: str


@cache
def built_command(name: str) -> Any:
    """Return the command line of a command, which typer would build for each call."""
    return typer.main.get_command(app_for([name]))


def run(words: str, *, columns: int | str = 100, folder: Path | None = None, into: TextIO | None = None) -> Shown:
    """Run the command line in this process, as `main` does; `into`: a stream that takes the answer, which is not kept then."""
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1"}
    kept, err = io.StringIO(), io.StringIO()
    out = kept if into is None else into
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment))
        stack.enter_context(patch.object(sys, "argv", ["steptime", *words.split()]))
        stack.enter_context(chdir(folder or "."))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        stack.enter_context(
            patch.object(cli_main, "app_for", lambda given: built_command(given[0] if given and given[0] in EXAMPLES else ""))
        )
        try:
            main()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return Shown(code, kept.getvalue(), err.getvalue())


@pytest.mark.thorough
def test_large_rates_and_single_tokens_are_written_in_words(closed_forms):
    """A rate of six digits has no exponent, and one token is one."""
    shown = " ".join(run("plan qwen3-0.6b gb200-nvl72 --input 1 --output 1 --full").stdout.split())
    assert "1 token in, 1 out" in shown
    rate = re.search(r"([0-9,]+) requests/s", shown)
    assert rate
    assert re.fullmatch(r"[1-9][0-9]{0,2}(,[0-9]{3})*", rate[1])
    # Three digits count, and zeros stand for the others.
    assert len(rate[1].replace(",", "").rstrip("0")) <= 3


@pytest.mark.thorough
def test_a_prefill_pool_says_that_its_pass_is_the_longest(closed_forms):
    pools = "plan llama-3.1-8b hgx-h100 --input 2000 --output 200"
    said = "Batch and step of the prefill pool are maxima"
    assert said in " ".join(run(f"{pools} --mode disaggregated --full").stdout.split())
    assert said not in " ".join(run(f"{pools} --mode aggregated --full").stdout.split())


@pytest.mark.slow
def test_the_program_as_it_is_installed():
    """One run in a process of its own: the words, the exit codes, and no traceback."""
    good, bad = (
        subprocess.run(
            [sys.executable, "-m", "steptime", *words.split()], capture_output=True, text=True, check=False, timeout=120
        )
        for words in ("systems gb200-nvl72", "systems gb200-nvl7")
    )
    assert good.returncode == 0
    assert "NVL72" in good.stdout
    assert bad.returncode == 2
    assert bad.stderr.startswith("steptime: unknown system 'gb200-nvl7'; did you mean gb200-nvl72")


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.thorough)])
def test_the_main_job(columns, closed_forms):
    short = run(MAIN, columns=columns)
    assert (short.returncode, short.stderr) == (0, "")
    assert len(short.stdout.splitlines()) <= 40
    assert "per million output tokens" in " ".join(" ".join(short.stdout.splitlines()[:3]).split())
    shown = run(MAIN + " --full", columns=columns)
    assert shown.returncode == 0, shown.stderr
    for words in (
        "per million output tokens",
        "90 % range",
        "No losses",
        "Runner-up",
        "Memory of a",
        "attention",
        "Pareto front",
        "keeps it from being cheaper",
    ):
        assert words in " ".join(shown.stdout.split())
    assert max(len(line) for line in shown.stdout.splitlines()) <= columns


@pytest.mark.parametrize(
    ("words", "option"),
    [("--tp 4 --batch 800 --context 8k", "batch"), ("--tp 4 --batch 8 --context 2M", "context")],
)
def test_a_step_that_does_not_fit_names_a_batch_or_context_that_does(words, option):
    """Following the hint, the step fits; 10 % more does not."""
    shown = run(f"step llama-3.1-70b hgx-h100 {words}", columns=120)
    assert shown.returncode == 1
    hint = re.search(rf"--{option} ([0-9]+)", shown.stdout)
    assert hint
    value = int(hint[1])
    for factor, code in ((1.0, 0), (1.1, 1)):
        changed = re.sub(rf"--{option} \S+", f"--{option} {int(factor * value)}", words)
        assert run(f"step llama-3.1-70b hgx-h100 {changed}").returncode == code


def test_a_step_whose_weights_do_not_fit_names_a_number_of_chips():
    """671 GB of weights in fp8 and the cache of 64 sequences need more than the 8 chips of a host, and fit on two hosts."""
    shown = " ".join(run("step deepseek-v3 hgx-h100 --batch 64 --tp 8", columns=120).stdout.split())
    chips = re.search(r"Use some ([0-9]+) chips in place of 8", shown)
    assert chips
    assert 8 < int(chips[1]) <= 16
    assert run("step deepseek-v3 hgx-h100 --batch 64 --tp 16").returncode == 0


def test_a_front_of_mean_speeds_says_so_where_the_plan_has_a_percentile(closed_forms):
    """A row of the front may have a higher speed and a lower cost than the plan, whose speed is that of 90 % of requests."""
    work, only = st.Workload(input_tokens=512, output_tokens=128), CHOICE_ALONE | {"front": True}
    means = st.plan("llama-3.1-8b", "hgx-h100", work, st.Slo(tpot=0.02), chips=1, **only)
    assert len(means.front) > 1
    shown = {}
    for percentile in ("mean", "p90"):
        console = Console(width=80, file=io.StringIO(), color_system=None)
        console.print(plan_view(replace(means, percentile=percentile), 80, full=True))
        shown[percentile] = " ".join(console.file.getvalue().split())
    assert all("against mean speed for each user" in text for text in shown.values())
    assert ["the front has means" in text for text in shown.values()] == [False, True]


def test_the_main_job_as_json(both_forms):
    shown = run(MAIN + " --json")
    found = json.loads(shown.stdout)
    assert found["feasible"]
    assert found["tokens_per_s_per_user"] >= 50
    assert found["tpot_s"] <= 0.02
    assert set(found["launch"]) == {"vllm", "sglang", "trtllm"}
    assert found["pools"][0]["layout"]["ep"] >= 1


@pytest.mark.slow
def test_explain_shows_formulas_numbers_and_sources():
    shown = run(MAIN + " --explain", columns=140).stdout
    for words in ("2.5-norm(", "FLOP/s", "TB/s", "vendor", "https://"):
        assert words in shown
    shown = run(MAIN + " --chips 16 --explain --engine ideal --mode aggregated", columns=140).stdout
    for words in ("max(", "FLOP/s", "TB/s", "vendor", "https://", "time per token = (1 - f)"):
        assert words in shown


@pytest.mark.slow
def test_the_bound_is_one_flag_away():
    shown = " ".join(run(MAIN + " --engine ideal", columns=80).stdout.split())
    assert "engine ideal" in shown
    assert not re.search(r"90 %:|90 % range", shown)


@pytest.mark.parametrize("columns", every(2, [80, 120]))
def test_a_step_shows_its_range_and_the_ideal(columns):
    words = "step llama-3.1-70b hgx-h100 --tp 8 --batch 64"
    shown = run(words, columns=columns).stdout
    assert "(90 %: " in shown
    assert "Without losses" in shown
    assert max(len(line) for line in shown.splitlines()) <= columns
    assert "90 %" not in run(words + " --engine ideal", columns=columns).stdout


@pytest.mark.thorough
def test_ranges_as_json(closed_forms):
    found = json.loads(run("step llama-3.1-70b hgx-h100 --tp 8 --batch 64 --json").stdout)
    assert found["engine"] == "vllm"
    assert found["range_s"][0] < found["total_s"] < found["range_s"][1]
    assert found["ideal"]["total_s"] < found["total_s"]
    found = json.loads(run("step llama-3.1-70b hgx-h100 --tp 8 --batch 64 --engine ideal --json").stdout)
    assert (found["engine"], found["range_s"], found["ideal"]) == ("ideal", None, None)
    found = json.loads(run("plan llama-3.1-8b hgx-h100 --chips 1 --json").stdout)
    for value, limits in (
        ("tpot_s", "tpot_range_s"),
        ("ttft_s", "ttft_range_s"),
        ("usd_per_million_output_tokens", "usd_per_million_output_tokens_range"),
        ("tokens_per_s_per_user", "tokens_per_s_per_user_range"),
        ("tokens_per_s_per_chip", "tokens_per_s_per_chip_range"),
    ):
        assert found[limits][0] < found[value] < found[limits][1]
    assert found["ideal"]["tokens_per_s_per_user"] > found["tokens_per_s_per_user"]


def test_imbalance_is_the_engines_unless_it_is_given():
    words = "step deepseek-v3 gb200-nvl72 --dp 8 --ep 8 --batch 4096 --json"
    usual, even, uneven = (json.loads(run(words + more).stdout)["total_s"] for more in ("", " --imbalance 1", " --imbalance 3"))
    assert even < usual < uneven


@pytest.mark.parametrize("words", ["step deepseek-v3 hgx-h200 --batch 64", "simulate deepseek-v3 hgx-h200 --rate 1"])
def test_imbalance_without_expert_parallelism_is_refused(words):
    refused = run(f"{words} --tp 8 --imbalance 2")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--imbalance: has no effect without expert parallelism" in refused.stderr
    assert "give --ep too" in refused.stderr


@pytest.mark.thorough
def test_a_plan_without_expert_parallelism_says_that_the_imbalance_has_no_effect(closed_forms):
    words = "plan deepseek-v3 hgx-h200 --engine ideal --chips 8 --tp 8 --imbalance 2 --json"
    noted = {size: json.loads(run(f"{words} --ep {size}").stdout)["warnings"] for size in (1, 8)}
    assert any("(--imbalance) has no effect" in line for line in noted[1])
    assert not any("--imbalance" in line for line in noted[8])


def test_launch_commands(both_forms):
    shown = run(MAIN + " --launch all").stdout
    for words in ("vllm serve", "sglang.launch_server", "--engine trtllm --launch trtllm"):
        assert words in shown


@pytest.mark.parametrize(
    "words",
    [
        *every(2, [f"{name}--help" for name in ("", "plan ", "step ", "models ", "simulate ", "systems ", "engines ")]),
        "--version", pytest.param("models", marks=pytest.mark.thorough),
        pytest.param("models --like qwen3", marks=pytest.mark.thorough),
        *every(2, ["models deepseek-v3", "systems", "systems gb200-nvl72", "engines", "engines ideal"]),
        "step llama-3.1-70b hgx-h100 --tp 8 --batch 64 --explain", "step deepseek-v3 gb200-nvl72 --phase prefill --dp 8 --ep 8",
        "step deepseek-v3 gb200-nvl72 --phase mixed --dp 8 --ep 8 --batch 64 --tokens 2048",
        pytest.param(
            "plan llama-3.1-8b hgx-h100 --set rent=1USD/h --kv fp8 --weights fp8 --chips 2", marks=pytest.mark.thorough
        ),
    ],
)  # fmt: skip
def test_every_command_runs_at_80_columns(words, closed_forms):
    shown = run(words, columns=80)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout
    assert "Traceback" not in shown.stderr


@each("words", ["models deepseek-v3", "systems gb200-nvl72", "engines", "models --like llama", "step llama-3.1-8b hgx-h100"])
def test_every_command_speaks_json(words):
    json.loads(run(words + " --json").stdout)


@each(
    "words, says",
    [
        ("plan deepsek-v3 gb200-nvl72", "did you mean deepseek-ai/DeepSeek-V3"),
        ("plan deepseek-v3 gb200-nvl7", "did you mean gb200-nvl72"),
        ("plan deepseek-v3 gb200-nvl72 --set chip.hbm.bandwith=3TB/s", "did you mean chip.hbm.bandwidth"),
        ("plan deepseek-v3 gb200-nvl72 --set chip.hbm.bandwidth=3TB", "one in B/s is needed"),
        ("plan deepseek-v3 gb200-nvl72 --speed 0", "--speed must be greater than 0"),
        ("plan deepseek-v3 gb200-nvl72 --ttft -1", "greater than 0"),
        ("plan deepseek-v3 gb200-nvl72 --input 0", "--input must be at least 1"),
        ("plan deepseek-v3 gb200-nvl72 --chips 0", "chips must be at least 1"),
        ("plan deepseek-v3 gb200-nvl72 --cached 1.5", "--cached must be a share of at least 0 and below 1, not 1.5"),
        ("plan deepseek-v3 gb200-nvl72 --cached 1", "--cached must be a share of at least 0 and below 1, not 1"),
        ("plan deepseek-v3 gb200-nvl72 --speed 50 --tpot 0.02", "--speed and --tpot limit the same latency"),
        ("train deepseek-v3 gb200-nvl72 --batch 1024", "give --chips, or --tokens with --deadline or --budget"),
        ("plan deepseek-v3 gb200-nvl72 --mode both", "unknown mode 'both'"),
        ("plan deepseek-v3 gb200-nvl72 --mode aggregated,any", "mode any cannot be combined with other modes"),
        ("plan deepseek-v3 gb200-nvl72 --engine vlm", "unknown engine 'vlm'"),
        ("plan deepseek-v3 gb200-nvl72 --launch vlm", "did you mean vllm"),
        ("plan deepseek-v3 gb200-nvl72 --launch llm-d", "--launch-dir FOLDER adds files for Dynamo, llm-d, LiteLLM and FOCUS"),
        ("plan deepseek-v3 gb200-nvl72 --weights fp9", "did you mean fp8"),
        ("plan deepseek-v3 gb200-nvl72 --kv fp9", "unknown KV format"),
        ("plan deepseek-v3 gb200-nvl72 --imbalance 0.5", "imbalance must be at least 1"),
        ("plan llama-3.1-8b hgx-h100 --catalog nowhere", "nowhere: is not a folder"),
        ("step llama-3.1-70b hgx-h100 --tp 7", "does not divide the 64 heads"),
        ("step llama-3.1-70b hgx-h100 --ep 2", "has no experts"),
        ("step deepseek-v3 hgx-h100 --tp 8 --ep 3", "try 2 or 4"),
        ("step llama-3.1-70b hgx-h100 --pp 81", "more than the 80 layers"),
        ("step llama-3.1-70b hgx-h100 --batch 0", "--batch must be at least 1"),
        ("step llama-3.1-70b hgx-h100 --batch -5", "--batch must be at least 1"),
        ("step llama-3.1-70b hgx-h100 --phase sleep", "Known: decode, prefill, mixed"),
        ("models nothing-like-this", "unknown model"),
        ("models spark", "A system has a similar name: dgx-spark."),
        ("systems qwen3", "A model has a similar name: "),
        ("simulate llama-3.1-8b hgx-h100", "one of --trace FILE"),
        ("simulate llama-3.1-8b hgx-h100 --rate 0", "greater than 0 requests/s"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --requests 0", "requests must be at least 1"),
        ("simulate llama-3.1-8b hgx-h100 --concurrency 0", "concurrency must be at least 1"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --policy fifo", "unknown policy 'fifo'"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --input 0", "--input must be at least 1"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --prefixes 2 --prefix-cache hmb=1GB", "did you mean hbm"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --prefixes 2 --prefix-cache hbm=1GB,hbm=2GB", "hbm is given twice"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --prefixes 2 --prefix-cache hbm=1TB", "at most 85.5 GB"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --prefix-cache hbm=1GB", "--prefix-cache needs --prefixes or a trace"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --prefixes -1 --prefix-cache hbm=1GB", "prefixes must be at least 0"),
        (
            "simulate llama-3.1-8b hgx-h100 --rate 1 --prefixes 2 --prefix-tokens 63 --prefix-cache hbm=1GB",
            "--prefix-tokens must be at least 64",
        ),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --prefixes 2", "--prefixes needs --prefix-cache"),
        (
            "simulate llama-3.1-8b hgx-h100 --rate 1 --percentile p50",
            "--percentile needs --speed or --ttft",
        ),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --lengths foo", "unknown lengths 'foo'"),
        ("simulate llama-3.1-8b hgx-h100 --concurrency 4 --replicas 2 --route least-loaded", "--route needs --rate"),
        (
            "simulate llama-3.1-8b hgx-h100 --concurrency 8 --prefill-replicas 1 --policy static --patience inf",
            "--patience must be a finite number",
        ),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --seed -1", "--seed must be at least 0"),
        (
            "simulate llama-3.1-8b hgx-h100 --rate 1 --requests 10000000000",
            "requests must be at most 50,000,000",
        ),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --max-num-seqs 1000000000", "--max-num-seqs must be at most 1,048,576"),
        (
            "simulate llama-3.1-8b hgx-h100 --rate 1 --max-num-batched-tokens 100000000000",
            "--max-num-batched-tokens must be at most",
        ),
        ("simulate llama-3.1-8b hgx-h100 --rate 1e-300", "--rate must be at least 1e-06 requests/s"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --arrivals gamma --burst inf", "burst must be a finite number"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --lengths lognormal --spread inf", "--spread is too large; at most 5"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --tp 0", "tp must be at least 1"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --prefill-replicas 1 --prefill-tp -1", "tp must be at least 1"),
        ("simulate llama-3.1-8b hgx-h100 --find-rate --percentile p98", "unknown percentile 'p98'"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --range --engine ideal", "--range needs an engine"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --rate-scale 2", "--rate-scale needs --trace"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --lengths lognormal --spread 0", "--lengths needs --spread greater than 0"),
        (
            "simulate llama-3.1-8b hgx-h100 --rate 1 --lengths fixed --spread 0.5",
            "--spread needs --lengths uniform or lognormal",
        ),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --prefill-tp 2", "--prefill-tp needs --prefill-replicas"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --fast-replicas 1", "--fast-replicas needs --fast-share"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --route prefix-aware", "--route needs --prefix-cache"),
        ("simulate llama-3.1-8b hgx-h100 --concurrency 4 --fast-share 0.5", "--fast-share needs --rate or --find-rate"),
        ("simulate llama-3.1-8b hgx-h100 --find-rate --export a.csv", "--export needs a run at one rate"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --requests 10 --export a.txt", "--export needs a file name"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --chrome /none/a.json", "its folder does not exist"),
        ("simulate llama-3.1-8b hgx-h100 --trace nowhere.csv", "no such file"),
        ("simulate llama-3.1-8b hgx-h100 --percentile p42 --find-rate", "percentile"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --export r.txt --requests 5", ".csv or .parquet"),
        ("systems nowhere.toml", "no such file"),
        ("plan missing/config.json hgx-h100", "no such file"),
        ("plan llama-3.1-8b hgx-h100 --percentile p98", "unknown percentile 'p98'"),
        ("plan llama-3.1-8b hgx-h100 --experts fp8", "--experts: needs a model with experts"),
        ("plan llama-3.1-8b hgx-h100 --imbalance 2", "--imbalance: needs a model with experts"),
        ("plan llama-3.1-8b hgx-h100 --launch=", "--launch needs an engine"),
        ("plan llama-3.1-8b hgx-h100 --weights=", "--weights needs a number format"),
        ("plan llama-3.1-8b hgx-h100 --kv=", "--kv needs a number format"),
        ("plan llama-3.1-8b hgx-h100 --csv=", "--csv needs the name of a file"),
        ("plan llama-3.1-8b hgx-h100 --simulate --percentile p98", "unknown percentile 'p98'"),
        ("plan llama-3.1-8b hgx-h100 --mode aggregated,both", "unknown mode 'both'"),
        ("plan llama-3.1-8b hgx-h100 --input 5b", "write '5B'"),
        ("plan llama-3.1-8b hgx-h100 --tp 1000", "try 1, 2, 4 or 8"),
        ("plan llama-3.1-8b hgx-h100 --input 8kk", "--input: the suffix of '8kk' must be k, M, G, B, T, Ki"),
        ("step llama-3.1-8b hgx-h100 --batch 1,5", "--batch: '1,5' is not a number, such as 8192, 8k or 1e3; write 1.5"),
        ("step llama-3.1-8b hgx-h100 --drafts 3", "name a draft model with --draft-model (eagle3, or a small model"),
        ("plan llama-3.1-8b hgx-h100 --chips 1e30", "--chips must be at most"),
        ("plan llama-3.1-8b hgx-h100 --speed fast", "--speed: must be a number in tok/s, got 'fast'"),
        ("plan llama-3.1-8b hgx-h100 --ttft=500MB", "--ttft: must be a number in s, got '500MB', which is a quantity in B"),
        ("plan llama-3.1-8b hgx-h100 --engine ideal --launch vllm", "--launch cannot be used with --engine ideal"),
        ("plan llama-3.1-8b hgx-h100 --speed", "`steptime plan --help` lists"),
        ("plan llama-3.1-8b hgx-h100 --set chip.hbm.bandwidth=16", "chip.hbm.bandwidth: '16' has no unit"),
        ("plan hgx-h100 llama-3.1-8b", "It is a model: the model comes first, then the system."),
        ("plan llama-3.1-8b", "Missing argument"),
        ("plan llama-3.1-8b hgx-h100 --sped 3", "No such option: --sped"),
        ("plann", "No such command 'plann'"),
        ("step llama-3.1-8b hgx-h100 --tokens 8", "--tokens needs --phase prefill or mixed"),
        ("step llama-3.1-8b hgx-h100 --prompts 8", "--prompts needs --phase prefill or mixed"),
        ("step llama-3.1-8b hgx-h100 --prefix 8", "--prefix needs --phase prefill or mixed"),
        ("step llama-3.1-8b hgx-h100 --phase prefill --batch 8", "--batch needs --phase decode or mixed"),
        ("step llama-3.1-8b hgx-h100 --phase prefill --context 8", "--context needs --phase decode or mixed"),
        ("step llama-3.1-8b hgx-h100 --phase prefill --query 8", "--query needs --phase decode or mixed"),
        ("step llama-3.1-8b hgx-h100 --microbatches 100", "cannot be cut into 100 micro-batches"),
        ("simulate llama-3.1-8b hgx-h100 --rate 1 --csv a.csv", "--csv needs --find-rate"),
        ("models --like zzz", "finds no model; the nearest names are"),
        ("models deepseek-v3 --like qwen", "--like needs the whole list or --table"),
        ("models --context 8k", "--context needs a model, or --table"),
        ("systems --toml", "--toml needs the NAME of a system"),
        ("systems hgx-h100 --csv a.csv", "--csv needs the list"),
    ],
)
def test_wrong_input_gets_one_message_and_exit_code_2(words, says):
    shown = run(words)
    assert shown.returncode == 2, shown.stdout + shown.stderr
    assert says in " ".join(shown.stderr.split())
    assert "Traceback" not in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2}', "'hidden_size' is missing"),
        ('{"model_type": "lama", "hidden_size": 10}', "did you mean llama"),
        ('{"hidden_size": 10}', "'model_type' is missing"),
        (
            '{"model_type": "llama", "hidden_size": -4096, "num_attention_heads": 32, "num_hidden_layers": 2}',
            "must be at least 1",
        ),
        ('{"model_type": "llama", "hidden_size": "big", "num_attention_heads": 32, "num_hidden_layers": 2}', "whole number"),
        ('{"model_type": "llama",\n "hidden_size": }', "config.json:2: is not valid JSON"),
    ],
)
def test_broken_configs_name_the_field_or_the_line(tmp_path, config, says):
    path = tmp_path / "config.json"
    path.write_text(config)
    shown = run(f"models {path}")
    assert shown.returncode == 2
    assert says in " ".join(shown.stderr.split())


SIMULATE = "simulate llama-3.1-8b hgx-h100 --input 256 --output 32 --requests 200 "


@pytest.mark.parametrize(
    "words",
    every(2, [
        "--rate 20", "--concurrency 16 --ttft 0.2 --speed 50", "--rate 5 --policy train",
        "--rate 5 --policy static --patience 1", "--rate 20 --prefill-replicas 1", "--rate 20 --fast-share 0.2",
        "--rate 20 --fast-share 0.2 --fast-replicas 1 --fast-max-num-seqs 8",
        "--rate 20 --replicas 2 --route least-loaded --lengths lognormal --spread 1 --arrivals gamma",
        "--rate 20 --prefixes 4 --prefix-tokens 128 --prefix-cache hbm=1GB,host=10GB --replicas 2 --route prefix-aware",
        "--rate 20 --drafts 3 --acceptance 2.1", "--find-rate --ttft 0.1", "--rate 20 --range", "--rate 20 --engine ideal",
    ]),
)  # fmt: skip
def test_simulate(words, closed_forms):
    pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
    shown = run(SIMULATE + words, columns=80)
    assert shown.returncode == 0, shown.stderr
    assert "requests/s" in shown.stdout.lower()
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80


def test_simulate_of_an_overload_by_few_slots_names_the_option_that_helps():
    pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
    shown = run(SIMULATE + "--rate 2000 --max-num-seqs 8", columns=80)
    assert shown.returncode == 1
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    assert "raise --max-num-seqs" in " ".join(shown.stdout.split())
    assert "raise --max-num-seqs" not in run(SIMULATE + "--rate 20").stdout


def test_a_simulation_at_the_ends_of_its_range():
    pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
    found = json.loads(run(SIMULATE + "--rate 20 --range --json").stdout)
    (fast, slow), asked = found["range"], found["answers"]
    assert fast["slowness"] < 1 < slow["slowness"]
    assert fast["answers"]["tpot_s"]["mean"] < asked["tpot_s"]["mean"] < slow["answers"]["tpot_s"]["mean"]


@pytest.mark.slow
def test_the_range_of_a_simulation_is_wider_where_nothing_like_it_was_measured():
    pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
    asked = "simulate deepseek-v3 mi355x-8 --rate 2 --input 512 --output 16 --requests 50 --range"
    near, far = (json.loads(run(f"{asked} {ways} --json").stdout)["range"] for ways in ("--tp 8", "--dp 8 --ep 8"))
    # Ranges are factors: a width is a logarithm.
    assert math.log(far[1]["slowness"]) > 1.5 * math.log(near[1]["slowness"])
    said = " ".join(run(f"{asked} --dp 8 --ep 8").stdout.split())
    assert "data-parallel ranks on AMD chips" in said
    assert "wider here" not in run(f"{asked} --tp 8").stdout


@pytest.mark.thorough
def test_simulate_as_json_and_files(tmp_path, closed_forms):
    pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,10\n1,0,10\n1.5,200,20\n")
    shown = run(f"simulate llama-3.1-8b hgx-h100 --trace {trace} --export {tmp_path}/r.csv --chrome {tmp_path}/t.json --json")
    found = json.loads(shown.stdout)
    assert (found["answers"]["sent"], found["answers"]["served"], found["answers"]["rejected"]) == (3, 2, 1)
    assert (tmp_path / "r.csv").read_text().count("served") == 2
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    plan = run("plan llama-3.1-8b hgx-h100 --input 1024 --output 256 --speed 60 --chips 2 --simulate --json")
    assert json.loads(plan.stdout)["simulated"]["answers"]["served"] > 0


def test_limits_that_nothing_meets_are_told_with_exit_code_1():
    shown = run("plan llama-3.1-8b hgx-h100 --chips 1 --speed 100000")
    assert shown.returncode == 1
    assert "Not possible" in shown.stdout


def test_help_needs_neither_arrays_nor_markdown():
    """Help starts at once: it imports neither numpy nor pydantic nor a parser of Markdown, and leaves rich whole."""
    code = (
        "import sys; sys.argv = ['steptime', '--help']; from steptime.cli.main import main; main(); "
        "print(*(name in sys.modules for name in ('numpy', 'pydantic', 'markdown_it')), file=sys.stderr); "
        "from rich.markdown import Markdown; from rich.traceback import Traceback; Markdown('# a'); print(Traceback.__name__)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stderr.split() == ["False", "False", "False"]
    assert shown.stdout.endswith("Traceback\n")


RUNS = """id,model,system,engine,input_tokens,output_tokens,concurrency,tp,pp,dp,ep,weight_dtype,expert_dtype,ttft_s,tpot_s
a,llama-3.1-8b,hgx-h100,vllm,1024,512,16,1,1,1,1,bf16,,0.1,0.0095
b,llama-3.1-8b,hgx-h100,vllm,1024,512,64,1,1,1,1,bf16,,0.2,0.0125
"""


@pytest.mark.thorough
def test_validate_and_calibrate(tmp_path, closed_forms):
    pytest.importorskip("scipy")
    (tmp_path / "runs.csv").write_text(RUNS)
    shown = run("validate runs.csv --predictions out.csv", columns=80, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Median error: ")
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3
    assert json.loads(run("validate runs.csv --json", folder=tmp_path).stdout)["tpot"]["all"]["runs"] == 2
    fitted = run("calibrate runs.csv --name mine --prior vllm", folder=tmp_path)
    assert fitted.returncode == 0, fitted.stderr
    assert "mine.toml" in fitted.stdout
    planned = run("plan llama-3.1-8b hgx-h100 --chips 1 --engine mine.toml --json", folder=tmp_path)
    assert json.loads(planned.stdout)["engine"] == "mine"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,model\n", "runs.csv:1: lacks the columns system"),
        (RUNS.replace("hgx-h100,vllm", "hgx-h100,vlm"), "runs.csv:2: unknown engine 'vlm'; did you mean vllm?"),
        (RUNS.replace("0.0095", "0.0095,bf16"), "runs.csv:2: it has 16 cells, the header 15"),
        (RUNS.replace("0.0095", "-1"), "runs.csv:2: tpot_s must be a time greater than 0"),
        (RUNS.replace("hgx-h100", "hgx-h101"), "did you mean hgx-h100"),
    ],
)
def test_broken_runs_are_named(tmp_path, text, says):
    (tmp_path / "runs.csv").write_text(text)
    shown = run("validate runs.csv", folder=tmp_path)
    assert shown.returncode == 2
    assert says in " ".join(shown.stderr.split())


def test_missing_columns_point_to_the_list_of_columns(tmp_path):
    (tmp_path / "runs.csv").write_text("id,model\n")
    shown = run("validate runs.csv", folder=tmp_path)
    assert (shown.returncode, "`steptime validate --columns`" in shown.stderr) == (2, True)


def test_a_folder_in_place_of_a_system_is_named_as_one(tmp_path):
    (tmp_path / "machines").mkdir()
    shown = run("step llama-3.1-8b machines", folder=tmp_path)
    assert shown.returncode == 2
    assert "It is a folder: a system is a name" in shown.stderr


def test_invalid_json_has_the_same_line_in_all_commands(tmp_path):
    (tmp_path / "broken.json").write_text('{"a": 1,\n "b": [1,\n')
    read = [run(words, folder=tmp_path) for words in ("step broken.json hgx-h100", "validate broken.json")]
    assert [shown.returncode for shown in read] == [2, 2]
    assert [re.search(r"broken\.json:(\d+): is not valid JSON", shown.stderr)[1] for shown in read] == ["3", "3"]


def test_a_step_that_does_not_fit_says_so_first():
    shown = run("step llama-3.1-405b hgx-h100 --tp 2")
    assert shown.returncode == 1
    assert shown.stdout.startswith("Does not fit: ")
    assert "would take" in " ".join(shown.stdout.split())
    assert run("step llama-3.1-8b hgx-h100").stdout.startswith("One decode step")


def test_choices_of_a_message_are_in_its_json():
    shown = run("step llama-3.3-70b hgx-h100 --tp 3 --json")
    assert shown.returncode == 2
    assert json.loads(shown.stdout)["nearest"] == ["1", "2", "4", "8"]


def test_help_of_mcp_names_every_tool_and_how_a_client_starts_it():
    from steptime.web.mcp_server import questions

    words = " ".join(run("mcp --help").stdout.split())
    assert f"Tools: {', '.join(questions())}." in words
    assert '"mcpServers"' in words


@pytest.mark.thorough
def test_numbers_are_read_as_people_write_them(closed_forms):
    plain, short = (
        json.loads(run(f"plan llama-3.1-8b hgx-h100 --chips 2 --input {n} --output {m} --json").stdout)
        for n, m in (("8000", "1000"), ("8k", "1e3"))
    )
    assert {**plain, "search_s": 0} == {**short, "search_s": 0}


@pytest.mark.parametrize(
    ("words", "lines", "says"),
    [
        pytest.param("plan deepseek-v3 gb200-nvl72 --speed 50 --ttft 2", 40, "USD/M output", marks=pytest.mark.thorough),
        pytest.param("plan llama-3.1-8b cs-3", 40, "Output/chip", marks=pytest.mark.thorough),
        pytest.param("plan deepseek-v3 gb200-nvl72 --speed 1e5", 12, "Not possible: ", marks=pytest.mark.thorough),
        ("step deepseek-v3 gb200-nvl72 --dp 8 --ep 8 --batch 64", 40, "(90 %: "),
        ("simulate llama-3.1-8b hgx-h100 --rate 20 --input 256 --output 32 --requests 200 --ttft 1", 40, "Time to first token"),
    ],
)
def test_the_answer_fits_forty_lines(words, lines, says, closed_forms):
    if words.startswith("simulate"):
        pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
    shown = run(words, columns=80)
    assert len(shown.stdout.splitlines()) <= lines
    assert says in shown.stdout


@pytest.mark.thorough
def test_context_beyond_the_models_is_a_note(closed_forms):
    text = " ".join(run("plan qwen3-32b hgx-h100 --input 120k --chips 8").stdout.split())
    assert re.search(r"CAUTION: .*121,024", text)
    text = " ".join(run("step gpt2 hgx-h100 --context 1000000").stdout.split())
    assert re.search(r"Note: .*1,000,000 .*1,024", text)


def test_without_a_rent_a_plan_leads_with_output_and_speaks_of_no_money(closed_forms):
    body = run("plan llama-3.1-8b cs-3 --full").stdout
    assert "per chip" in " ".join(body.splitlines()[:3])
    for word in ("unknown", "nan", "$", "USD/M"):
        assert word not in body


def test_what_does_not_fit_is_an_answer():
    shown = run("plan llama-3.1-405b hgx-h100")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "198 GB too little" in shown.stderr


def test_errors_are_json_where_json_is_asked_for():
    shown = run("plan llama-3.1-405b hgx-h100 --json")
    assert shown.returncode == 1
    assert json.loads(shown.stdout)["error"] == "DoesNotFit"
    assert "198 GB too little" in json.loads(shown.stdout)["message"]
    assert len(shown.stderr.strip().splitlines()) == 1
    assert json.loads(run("plan --json").stdout)["message"].startswith("Missing argument")


@pytest.mark.slow
def test_explanations_are_json_where_json_is_asked_for():
    found = json.loads(run("plan deepseek-v3 gb200-nvl72 --chips 8 --mode aggregated --explain --json").stdout)["explanation"]
    assert {name: sum(parts.values()) for name, parts in found["range_shares"].items()} == pytest.approx(
        dict.fromkeys(("cost", "speed", "first token"), 1.0)
    )
    (pool,) = found["pools"]
    assert any(rule.startswith("time per token = ") for rule in pool["equations"])
    assert [one["pass"] for one in pool["passes"]] == ["decode step", "step with a prefill chunk"]
    assert {line["term"] for line in pool["passes"][0]["lines"]} >= {"attention", "experts", "overhead"}
    assert {"figure", "value", "grade", "date", "url"} == set(found["sources"][0])
    step = json.loads(run("step llama-3.1-8b hgx-h100 --explain --json").stdout)
    assert step["explanation"]["lines"][0]["seconds"] > 0


def test_the_help_tells_exit_codes_and_one_example_a_line():
    text = run("--help", columns=120).stdout
    assert "Exit codes: 0 an answer; 1 limits that nothing meets, a model that does not fit, or a simulated queue" in text
    lines = [line.strip() for line in run("simulate --help", columns=120).stdout.splitlines()]
    assert sum(line.startswith("steptime simulate ") for line in lines) == 5


def test_exports_say_what_they_wrote(tmp_path):
    pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
    words = SIMULATE + "--rate 20 --export r.csv --chrome t.json"
    first, again = run(words, folder=tmp_path), run(words, folder=tmp_path)
    assert first.stderr.startswith("Wrote r.csv: 200 requests; times in s, lengths in tokens.\nWrote t.json: a timeline")
    assert again.stderr.count("in place of an older file") == 2


@pytest.mark.thorough
def test_engine_files_are_written_over_only_by_force(tmp_path):
    pytest.importorskip("scipy")
    (tmp_path / "runs.csv").write_text(RUNS)
    words = "calibrate runs.csv --name mine --prior vllm"
    assert run(words, folder=tmp_path).returncode == 0
    assert run(words, folder=tmp_path).returncode == 2
    forced = run(words + " --force", folder=tmp_path)
    assert forced.returncode == 0
    assert "2 runs cannot determine each constant" in " ".join(forced.stdout.split())


@pytest.mark.thorough
def test_a_search_for_a_rate_that_finds_none_leaves_with_1():
    shown = run("simulate llama-3.1-8b hgx-h100 --find-rate --ttft 1e-9 --requests 200")
    assert (shown.returncode, "No rate is within the limits" in shown.stdout) == (1, True)
    as_json = run("simulate llama-3.1-8b hgx-h100 --find-rate --ttft 1e-9 --requests 200 --json")
    assert (as_json.returncode, json.loads(as_json.stdout)["requests_per_s"]) == (1, 0)


@pytest.mark.thorough
def test_a_rate_puts_the_fleet_first(closed_forms):
    shown = run("plan llama-3.1-8b hgx-h100 --rate 100 --speed 30 --ttft 2 --input 500 --output 100").stdout
    assert shown.startswith("For 100 requests/s: ")
    assert "on 8 chips" in " ".join(shown.split())
    assert "6 idle chips" in " ".join(shown.split())


def test_one_sequence_decodes_and_the_range_has_a_cause_in_words():
    shown = " ".join(run("step llama-3.1-8b hgx-h100 --batch 1 --context 1000 --full").stdout.split())
    assert "1 sequence decodes with 1,000 tokens" in shown
    assert "Width of the range" in shown
    assert "others 0" not in shown


def test_step_explain_names_the_parts_of_a_range():
    """A mixer with a state has a time that no run determines, and RWKV has no run at all."""
    shown = " ".join(run("step rwkv7-2.9b hgx-h100 --batch 8 --context 2000 --engine vllm --explain").stdout.split())
    causes = shown.partition("Width of the range")[2].partition(" Operator ")[0]
    assert "a mixer with a recurrent state" in causes
    assert "an architecture without measured runs" in causes
