"""`steptime train` as a user types it: answers in two widths, JSON, and wrong input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from itertools import pairwise

import pytest
from rich.console import Console

import steptime as st
from steptime.cli.views.training_view import training_view
from steptime.questions.declaration import inputs_from
from steptime.questions.train_question import YEAR, TrainInputs
from steptime.training.training_runs import FAILURES_PER_CHIP_SECOND
from steptime.units import in_digits
from tests.cli.test_commands import run
from tests.conftest import each

DENSE = "train llama-3-70b hgx-h100 --chips 512 --seq 8192 --batch 512 --tokens 15T"
SMALL = "train llama-3.1-8b hgx-h100 --chips 8 --batch 64"
SPARSE = "train deepseek-ai/DeepSeek-V3 gb200-nvl72 --chips 256 --seq 4096 --batch 2048 --dtype mxfp8"
PIPED = f"{SMALL} --pp 4 --vpp 4"
# Where the layout does not matter, it is given: a search of all takes three times as long.
FIXED = "--tp 1 --pp 1 --cp 1"
TUNING = "--chips 8 --seq 4096 --batch 64 --task sft --tokens 1B"
LORA = "train llama-3.1-8b rtx-4090-8 --chips 8 --seq 2048 --batch 16 --task lora"
QUICK = "--json"


def answer(words: str) -> dict:
    shown = run(f"{words} {QUICK}")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def refused(words: str) -> str:
    shown = run(words)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert len(shown.stderr.strip().splitlines()) == 1, shown.stderr
    return shown.stderr


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "words",
    [
        LORA,
        f"{PIPED} --explain",
        *(
            pytest.param(words, marks=pytest.mark.thorough)
            for words in (f"{SMALL} --tokens 15T", SPARSE, DENSE, PIPED, f"{SMALL} --scaling")
        ),
    ],
)
def test_pages_keep_to_their_width(words, columns):
    shown = run(words, columns=columns)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "nan" not in re.findall(r"[a-z]+", shown.stdout.lower())
    assert "Traceback" not in shown.stdout


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.thorough)])
def test_training_answer_has_days_cost_and_mfu_in_its_first_lines(columns):
    found = answer(DENSE)
    lines = run(DENSE, columns=columns).stdout.splitlines()
    first = " ".join(" ".join(lines[:3]).split())
    assert f"{in_digits(found['run']['seconds_s'] / 86400)} days" in first
    assert f"${found['run']['usd'] / 1e6:.3g} M" in first
    assert f"MFU {100 * found['step']['mfu_causal']:.1f} %" in first
    assert len(lines) <= 40


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.thorough)])
def test_full_training_answer_has_every_figure(columns):
    shown = run(f"{DENSE} --full --engine megatron-lm", columns=columns).stdout
    text = " ".join(shown.split())
    for says in (
        "512 sequences of 8,192 tokens in bf16, stack megatron-lm", "without losses", "without overlap", "Tokens per chip",
        "MFU, full attention", "HFU, with recomputation", "Pipeline bubble", "Exposed communication", "Runner-up",
        "Memory of the fullest chip, 85.5 GB", "optimizer", "activations", "What would help", "twice the FLOP/s",
        "Layouts tried", "--dtype fp8", "Goodput", "Chip-hours", "MWh", "a failure every", "failures; a checkpoint",
    ):  # fmt: skip
        assert says in text, says


def test_a_short_run_has_a_chance_of_a_failure_and_no_count_of_them():
    """Eight chips fail 0.0006 times in four hours."""
    text = " ".join(run(f"train llama-3.1-8b hgx-h100 {TUNING}").stdout.split())
    assert "under 1 % chance of a failure" in text
    assert " failures; " not in text


@each("times, words", [(1.033, "tp8: 3.3 % more time"), (0.967, "tp8: 3.3 % less time")])
def test_a_runner_up_takes_more_time_or_less(times, words):
    """The simplest of near equals is recommended, so that the runner-up may be faster."""
    training = replace(
        st.train("llama-3.1-8b", "hgx-h100", chips=8, batch=64, changes=False), runner_up="tp8", runner_up_slower=times
    )
    console = Console(width=100, file=StringIO(), color_system=None)
    console.print(training_view(training, st.load_system("hgx-h100"), None, 100, full=True))
    assert words in console.file.getvalue()


def test_a_pipeline_is_drawn_by_stage():
    """Four stages, first forward passes one after another."""
    lines = run(f"{PIPED} --full", columns=100).stdout.splitlines()
    start = lines.index("The schedule of a step")
    stages = [line for line in lines[start + 1 :] if re.match(r"[0-3] ", line)]
    assert [line[0] for line in stages[:4]] == list("0123")
    waits = [len(line[2:]) - len(line[2:].lstrip("·")) for line in stages[:4]]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[3] > waits[1]


def test_json_and_the_page_say_the_same():
    found = answer(DENSE)
    step = found["step"]
    assert found["schema"] == "steptime.training/2"
    assert step["total_s"] == pytest.approx(sum(step["terms_s"].values()))
    rate = step["tokens_per_s_per_chip"]
    assert rate == pytest.approx(512 * 8192 / 512 / step["total_s"])
    page = run(f"{DENSE} --full").stdout
    assert f"{in_digits(rate)} tok/s" in page
    assert f"{100 * step['mfu_causal']:.1f} %" in page
    assert f"{found['evaluated_layouts']:,}" in page


def test_what_is_given_is_in_the_layout():
    layout = answer(f"{PIPED} --micro-batch 2 --recompute full --dp 2")["step"]["layout"]
    told = {"pp": 4, "vpp": 4, "dp": 2, "micro_batch": 2, "recompute": "full", "schedule": "interleaved"}
    assert {name: layout[name] for name in told} == told


@pytest.mark.thorough
def test_a_run_of_tokens():
    found = answer(f"{SMALL} --tokens 1T")
    cost = found["run"]
    assert cost["tokens"] == 1e12
    assert cost["steps"] == pytest.approx(1e12 / 4096 / 64)
    assert cost["chip_hours"] == pytest.approx(cost["seconds_s"] * 8 / 3600)
    assert answer(SMALL)["run"] is None
    more = answer(f"{SMALL} --tokens 1T --failures 100 --restart 3600 --spare 2")["run"]
    assert more["goodput"] < cost["goodput"]
    assert more["chip_hours"] == pytest.approx(more["seconds_s"] * 10 / 3600)
    none = answer(f"{SMALL} --tokens 1T --failures 0")["run"]
    assert none["goodput"] == pytest.approx(1 / none["overhead"])


@pytest.mark.thorough
def test_ramps_and_stages_add_to_a_run():
    plain = answer(f"{SMALL} --tokens 1T")["run"]
    ramped = answer(f"{SMALL} --tokens 1T --ramp 100B:16")["run"]
    longer = answer(f"{SMALL} --tokens 1T --stage 10B:32k:8")["run"]
    assert ramped["tokens"] == plain["tokens"]
    assert ramped["steps"] > plain["steps"]
    assert longer["tokens"] == 1.01e12
    assert longer["seconds_s"] > plain["seconds_s"]


@pytest.mark.thorough
def test_rents_are_those_that_are_given():
    one, two = (answer(f"{SMALL} --tokens 1T --rent {rent}")["run"] for rent in ("1.5", "3"))
    assert two["usd"] == pytest.approx(2 * one["usd"])
    assert one["usd"] == pytest.approx(1.5 * one["chip_hours"])


@pytest.mark.thorough
def test_a_machine_that_is_changed_is_timed_so():
    before, after = (answer(f"{DENSE} {more}")["step"]["total_s"] for more in ("", "--set scale_out.bandwidth=10GB/s"))
    assert after > before


@pytest.mark.thorough
def test_the_ideal_has_no_range_and_is_faster():
    found, bound = answer(SMALL)["step"], answer(f"{SMALL} --engine ideal")["step"]
    assert bound["total_s"] < found["total_s"]
    assert bound["low_s"] == bound["high_s"] == bound["total_s"]
    assert "90 %" not in run(f"{SMALL} --engine ideal").stdout


def test_a_lora_fine_tune_fits_cards_of_24_gb():
    found = answer(LORA)
    assert found["step"]["memory"]["fits"] is True
    layout = found["step"]["layout"]
    adapters = (
        16 * 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    )  # of rank 16, of all products of 32 layers
    assert found["step"]["memory"]["optimizer_bytes"] == 14 * adapters / (layout["tp"] * layout["pp"])


def test_ones_own_config(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 22, "vocab_size": 50000,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    shown = run(f"train {path} hgx-h100 --chips 8 --batch 64 {FIXED}")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Tokens per chip" in shown.stdout


@pytest.mark.thorough
def test_scaling_is_shown_about_the_chips(closed_forms):
    found = json.loads(run(f"{SMALL} {QUICK} --scaling").stdout)["scaling"]["points"]
    assert [point["chips"] for point in found if point["kind"] == "strong"] == [1, 2, 4, 8, 16, 32, 64]
    assert {point["batch"] for point in found if point["kind"] == "strong"} == {64}
    assert [point["batch"] for point in found if point["kind"] == "weak"] == [8, 16, 32, 64, 128, 256, 512]
    text = run(f"{SMALL} --scaling").stdout
    assert "s strong: the same batch" in text


@pytest.mark.slow
def test_tables_and_pictures_go_to_files(tmp_path):
    shown = run(f"{PIPED} --csv step.csv --plot schedule.svg", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    header = (tmp_path / "step.csv").read_text(encoding="utf-8").splitlines()[0]
    assert {"total_s", "low_s", "high_s", "fits"} <= set(header.split(","))
    assert "<svg" in (tmp_path / "schedule.svg").read_text(encoding="utf-8")
    # A layout with one stage shows the memory of each layer over a few micro-batches.
    shown = run(f"{SMALL} --tp 8 --pp 1 --micro-batch 1 --plot step.svg", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "The first 4 of 64 micro-batches" in (tmp_path / "step.svg").read_text(encoding="utf-8")


def test_layers_by_chunk_are_kept_and_told_to_a_stack():
    shown = run(f"{SMALL} --layers 7,9,9,7 --launch megatron", columns=120)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "pp4" in shown.stdout
    assert "layers 7,9x2,7" in shown.stdout
    assert "--pipeline-model-parallel-layout" in shown.stdout or "--account-for-embedding" in shown.stdout
    assert answer(f"{SMALL} --layers 7,9,9,7")["step"]["layout"]["layers"] == "7,9x2,7"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            f"{SMALL} --dp 8 --micro-batch 3",
            "--batch 64 does not divide over --dp 8 replicas in micro-batches of 3; try 48 or 72",
        ),
        ("train llama-3.1-8b hgx-h100 --chips 8 --batch 60 --dp 8", "--batch 60 does not divide over --dp 8"),
        ("train Qwen/Qwen3-30B-A3B hgx-h100 --chips 96 --batch 96 --ep 96", "--ep 96 does not divide the 128 experts"),
        (f"{SMALL} --ep 2", "has no experts"),
        (
            "train llama-3.1-8b hgx-h100 --chips 64 --batch 64 --pp 64",
            "64 chunks are more than the 32 layers of meta-llama/Llama-3.1-8B",
        ),
        (f"{SMALL} --pp 8 --vpp 5", "at most --vpp 4 with --pp 8"),
        (
            f"{SMALL} --pp 4 --vpp 2 --schedule 1f1b",
            "schedule 1f1b has no virtual stages; leave --vpp out, or take --schedule interleaved",
        ),
        (f"{SMALL} --pp 4 --vpp 2 --schedule zb-h1", "schedule zb-h1 has no virtual stages"),
        (f"{SMALL} --pp 1 --vpp 2", "--pp 1 has none"),
        (f"{SMALL} --schedule 2f2b", "unknown schedule '2f2b'"),
        (
            f"{SMALL} --pp 4 --schedule zb-h1 --engine megatron-lm",
            "stack megatron-lm has no schedule zb-h1; it has 1f1b, interleaved; --engine typical has all",
        ),
        (f"{SMALL} --sharding zero9", "unknown sharding 'zero9'; did you mean zero"),
        (f"{SMALL} --recompute most", "unknown recomputation 'most'"),
        (f"{SMALL} --optimizer adan", "unknown optimizer 'adan'; did you mean adamw"),
        (f"{SMALL} --task rlhf", "unknown task 'rlhf'"),
        (f"{SMALL} --tp 3", "--tp 3 does not divide 8 chips"),
        (f"{SMALL} --tp 4 --pp 4", "--tp 4 x --pp 4 = 16 does not divide 8 chips"),
        ("train llama-3.1-8b hgx-a100 --chips 8 --batch 64 --dtype fp8", "does not compute in fp8; try"),
        (f"{SMALL} --dtype nvfp4", "does not compute in nvfp4"),
        (f"{SMALL} --dtype fp7", "unknown number format of training 'fp7'"),
        ("train llama-3.1-8b hgx-h100 --chips 7 --batch 64 --tp 1 --pp 1 --cp 1", "--batch 64 does not divide over dp=7"),
        ("train llama-3.1-8b hgx-h100 --chips 37 --batch 64", "no layout of 37 chips divides 64 sequences"),
        (f"{SMALL} --tp 0", "tp must be at least 1, not 0"),
        (f"{SMALL} --pp 0", "pp must be at least 1, not 0"),
        (f"{SMALL} --vpp 0", "vpp must be at least 1, not 0"),
        (f"{SMALL} --micro-batch 0", "--micro-batch must be at least 1, not 0"),
        (f"{SMALL} --dp -8", "dp must be at least 1, not -8"),
        (f"{SMALL} --sharding-group -1", "--sharding-group must be at least 1, not -1"),
        (f"{SMALL} --spare -1", "--spare must be at least 0, not -1"),
        (f"{SMALL} --layers 7,8,8", "--layers 7,8,8 has 23 layers, and meta-llama/Llama-3.1-8B has 32; try --layers 11x2,10"),
        (f"{SMALL} --layers eight", "'eight' is not a number of layers; give them by chunk, such as 7,8x14,7"),
        (f"{SMALL} --layers 7,9,9,7 --pp 8", "--layers 7,9,9,7 has 4 chunks, and pp x vpp = 8"),
        (f"{SMALL} --tokens 1T --stage 1B:0:8", "seq must be at least 1 token, not 0"),
        (f"{SMALL} --tokens lots", "--tokens: must be a number of tokens, such as 15T or 800B"),
        (f"{SMALL} --tokens -1T", "--tokens: must be above 0"),
        (f"{SMALL} --ramp 1B:8", "--ramp: needs the tokens of the run"),
        (f"{SMALL} --tokens 1T --ramp 2T:8", "--ramp: must have at most the tokens"),
        (f"{SMALL} --tokens 1T --ramp 1B", "--ramp: must be TOKENS:BATCH, such as 469B:3072"),
        (f"{SMALL} --tokens 1T --stage 1B:8k", "--stage: must be TOKENS:SEQ:BATCH, such as 800B:128k:64"),
        (f"{SMALL} --failures -1", "--failures must be at least 0"),
        (f"{SMALL} --checkpoint 0", "--checkpoint must be at least 0.001"),
        (f"{SMALL} --engine pytorch", "unknown training stack 'pytorch'"),
        ("train llama-9 hgx-h100 --chips 8 --batch 8", "unknown model 'llama-9'"),
        ("train llama-3.1-8b hgx-h1000 --chips 8 --batch 8", "unknown system 'hgx-h1000'; did you mean hgx-h100"),
        (f"{SMALL} --sharding none --sharding-group 4", "--sharding-group: "),
    ],
)
def test_wrong_input_is_refused_in_one_line(words, says):
    assert says in refused(words)


@pytest.mark.thorough
def test_train_of_a_model_that_does_not_fit_leaves_with_1_and_names_the_excess(closed_forms):
    shown = run("train llama-3.1-405b hgx-h100 --chips 8 --batch 8")
    assert shown.returncode == 1
    assert "GB too much" in shown.stderr
    assert "; it fits " in shown.stderr


@each(
    "words",
    ["train", "train llama-3.1-8b hgx-h100", "train llama-3.1-8b hgx-h100 --chips 8", f"{SMALL} --chips 0", f"{SMALL} --vp 2"],
)
def test_what_is_missing_or_out_of_range_is_named(words):
    shown = run(words)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr


def test_help_has_examples_and_every_option():
    shown = run("train --help", columns=120)
    assert shown.returncode == 0
    for option in ("--chips", "--batch", "--seq", "--tp", "--vpp", "--cp", "--ep", "--sharding", "--recompute", "--schedule",
                   "--tokens", "--scaling", "--explain", "--json", "--set"):  # fmt: skip
        assert option in shown.stdout
    assert "steptime train " in shown.stdout


def test_documented_failures_of_a_year_are_those_of_the_default():
    declared = inputs_from(TrainInputs)["failures"]
    assert float(declared.default_words.partition(":")[0]) == round(FAILURES_PER_CHIP_SECOND * YEAR, 3)


def test_help_of_train_marks_required_options_and_the_program():
    text = run("train --help").stdout
    assert "Usage: steptime train" in text
    assert text.count("[required]") == 2


def test_a_command_without_chips_names_its_options():
    assert "give --chips, or --tokens with --deadline or --budget" in refused("train llama-3.1-8b hgx-h100 --batch 64")
    assert "--tokens" in refused("train llama-3.1-8b hgx-h100 --batch 64 --deadline 5d")
    assert "at least the tokens of a step, 262,144" in refused(f"{SMALL} --tokens 1")


@pytest.mark.thorough
def test_a_deadline_and_a_budget_show_their_probability():
    words = "train llama-3.1-8b hgx-h100 --batch 1024 --tokens 15T --deadline 60d --budget 5M"
    found = answer(words)
    assert found["limits"] == {"deadline": 60 * 86_400, "budget": 5e6}
    page = " ".join(run(words).stdout.split())
    for verb, name, limit in (("miss", "deadline", "60.0 d"), ("exceed", "budget", "$5.00 M")):
        chance = 1 - found["limit_probability"][name]
        assert f"{'under 1 %' if chance < 0.01 else f'{100 * chance:.0f} %'} chance to {verb} the {name} of {limit}" in page
    assert answer(SMALL)["limits"] == {}


@pytest.mark.parametrize(("limit", "says"), [("--deadline 1h", "misses the deadline"), ("--budget 10", "exceeds the budget")])
def test_a_run_that_misses_a_limit_says_so_first_and_exits_with_1(limit, says):
    words = f"{SMALL} --tokens 15T {FIXED}"
    missed = run(f"{words} {limit}")
    assert missed.returncode == 1
    assert f"{says} of" in missed.stdout.splitlines()[0]
    assert missed.stdout.count(says.split()[-1]) == 1
    assert run(f"{words} {limit} --json").returncode == 1
    assert run(f"{words} --deadline 90000d --budget 1B").returncode == 0


def test_systems_that_miss_a_limit_come_last_and_exit_with_1_if_all_do():
    words = "train llama-3.1-8b hgx-h100,hgx-a100 --chips 64 --batch 1024 --tokens 1T"
    early = run(f"{words} --deadline 6weeks --json")
    assert early.returncode == 0
    assert [(row["system"], row["missed"]) for row in json.loads(early.stdout)["standings"]] == [
        ("hgx-h100", ""),
        ("hgx-a100", "deadline"),
    ]
    missed = run(f"{words} --deadline 1d --budget 10")
    assert missed.returncode == 1
    assert missed.stdout.startswith("Every system misses the deadline or the budget.")
    assert run(f"{words} --deadline 1d --json").returncode == 1


@pytest.mark.thorough
def test_a_searched_layout_says_its_allowance_and_a_run_its_tokens():
    found = answer(SMALL)
    page = " ".join(run(f"{SMALL} --tokens 300k").stdout.split())
    assert f"all times include {100 * (found['search_factor'] - 1):.0f} %" in page.partition("Search allowance")[2][:90]
    assert found["step"]["terms_s"]["search allowance"] > 0
    assert "on 300,000 tokens" in page
    assert "one checkpoint, at the end" in page
    assert "Search allowance" not in run(f"{SMALL} --tp 1 --pp 1").stdout
    assert "on 1,000,000 T tokens" in " ".join(run(f"{SMALL} --tokens 1e18").stdout.split())


def test_a_trace_has_each_pass_of_each_stage(tmp_path):
    """Four stages, 16 micro-batches and four chunks: 4 x 16 x 4 forward passes and as many backward, in microseconds."""
    shown = run(f"{PIPED} --chrome step.json --json", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    step = json.loads(shown.stdout)["step"]
    trace = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    shown_batches = trace["metadata"]["micro_batches_shown"]
    for kind in ("forward", "backward"):
        assert sum(event["cat"] == kind for event in events) == 4 * 4 * shown_batches
    assert {event["tid"] for event in events} == {0, 1, 2, 3}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events)
    # Nothing runs twice at one time on a device.
    for device in range(4):
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == device)
        assert all(after[0] >= before[1] - 1e-6 * before[1] for before, after in pairwise(spans))
    assert shown_batches == step["microbatches"]
    assert max(event["ts"] + event["dur"] for event in events) / 1e6 == pytest.approx(step["total_s"], rel=0.15)


@pytest.mark.thorough
def test_systems_are_compared_by_the_rent_of_a_run():
    shown = run("compare train llama-3.1-8b hgx-h100,hgx-a100 --chips 64 --batch 256 --tokens 1T --json")
    assert shown.returncode == 0, shown.stderr
    standings = json.loads(shown.stdout)["standings"]
    assert [standing["usd"] for standing in standings] == sorted(standing["usd"] for standing in standings)
    alone = answer(f"train llama-3.1-8b {standings[0]['system']} --chips 64 --batch 256 --tokens 1T")
    assert standings[0]["run_s"] == pytest.approx(alone["run"]["seconds_s"])
    assert "needs one system" in refused("compare train llama-3.1-8b hgx-h100,hgx-a100 --chips 8 --batch 64 --plot a.svg")
    assert "compare train MODEL SYSTEM,SYSTEM" in refused("compare train llama-3.1-8b --chips 8 --batch 64")
    assert "hgx-h10" in refused("train llama-3.1-8b hgx-h10,hgx-a100 --chips 8 --batch 64")


@pytest.mark.thorough
@pytest.mark.parametrize(("launch", "schedule"), [("", "dualpipe"), (" --launch megatron-bridge", "1f1b")])
def test_a_started_stack_has_the_schedule_of_the_searched_layout(launch, schedule):
    """DualPipe is the fastest for DeepSeek-V3, and Megatron has no DualPipe."""
    shown = run(f"train deepseek-v3 hgx-h800 --chips 2048 --batch 15360 --dtype fp8 --json{launch}")
    layout = json.loads(shown.stdout)["step"]["layout"]
    assert layout["schedule"] == schedule


@pytest.mark.parametrize(
    ("words", "risk"),
    [
        ("llama-3.1-8b hgx-h100 --chips 8 --seq 4096 --batch 64 --task sft --tokens 1B", "under 1 % chance of a failure"),
        pytest.param(
            "llama-3.1-8b hgx-h100 --seq 8192 --tokens 1T --deadline 60d",
            "chance to miss the deadline of 60.0 d",
            marks=pytest.mark.thorough,
        ),
        (
            "llama-3.1-8b hgx-h100 --chips 16384 --seq 8192 --batch 16384 --tokens 15T --tp 1 --pp 1 --cp 1",
            "the largest fitted run has 8,192 chips",
        ),
        pytest.param(
            "llama-3.3-70b hgx-h100 --chips 4096 --tokens 15T --deadline 60d",
            "chance to miss the deadline of 60.0 d",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "llama-3.3-70b gb200-nvl72 --chips 1024 --tokens 15T --budget 8M",
            "chance to exceed the budget of $8.00 M",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_days_dollars_layout_command_and_risks_are_in_the_first_ten_lines(words, risk):
    shown = run(f"train {words}", columns=80)
    text = " ".join(" ".join(shown.stdout.splitlines()[:10]).split())
    assert re.search(r"(days|h) \(90 %: .*\$.* \(90 %: .*MFU", text)
    assert re.search(r"Layout .*Launch torchrun .*--launch megatron-lm.*Risks ", text)
    assert risk in text.partition("Risks")[2]


@each("rent, is_risk", [("contract", True), ("ondemand", False), ("2.10", False)])
def test_a_run_that_is_shorter_than_the_contract_of_its_rent_says_so(rent, is_risk):
    text = " ".join(run(f"train llama-3.1-8b hgx-h100 --chips 8 --batch 64 --tokens 1B --rent {rent}").stdout.split())
    assert ("the rent is that of a three-year contract" in text) is is_risk


def test_a_batch_follows_from_the_tokens():
    """0.2920 C^0.3271 of 1T tokens of 8B parameters are 7.8 M tokens, 957 sequences of 8,192: 896 on 64 chips."""
    found = answer(f"train llama-3.1-8b hgx-h100 --chips 64 --seq 8192 --tokens 1T {FIXED}")
    assert found["step"]["tokens_per_s_per_chip"] * 64 * found["step"]["total_s"] == pytest.approx(896 * 8192, rel=1e-3)
    assert found["largest_batch_tokens"] == pytest.approx(0.2920 * found["run"]["flops_flop"] ** 0.3271, rel=1e-6)
    assert "give --batch, or --tokens" in refused("train llama-3.1-8b hgx-h100 --chips 64 --seq 8192")


def test_another_batch_is_named_where_the_chips_do_not_divide_it():
    """80 sequences on 48 chips: 48 and 96 are whole; the speed-up counts tokens."""
    found = answer("train llama-3.1-8b hgx-h100 --chips 48 --seq 4096 --batch 80")
    changes = {change["description"]: change["faster"] for change in found["changes"]}
    whole = st.train("llama-3.1-8b", "hgx-h100", chips=48, seq=4096, batch=96, changes=False).to_dict()
    expected = whole["step"]["tokens_per_s_per_chip"] / found["step"]["tokens_per_s_per_chip"]
    assert changes["--batch 96"] == pytest.approx(expected, rel=1e-3)
    assert expected > 1.02
