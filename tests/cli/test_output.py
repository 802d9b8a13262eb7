"""How answers leave the program: any terminal, any stream, files that can be written."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from rich.console import Console

from steptime.catalog.hardware_loading import load_system
from steptime.cli import output
from steptime.cli.output import check_outputs, patience, wrap_for_terminal
from steptime.cli.views.widgets import stacked, table
from steptime.errors import DataFileError, InputError
from tests.cli.test_commands import run
from tests.conftest import each, every

RUNS = """id,model,system,engine,input_tokens,output_tokens,concurrency,tp,pp,dp,ep,weight_dtype,expert_dtype,ttft_s,tpot_s
a,llama-3.1-8b,hgx-h100,vllm,1024,512,16,1,1,1,1,bf16,,0.1,0.0095
"""
PLAN = "plan llama-3.1-8b hgx-h100 --chips 1"


def process(words: str, **more):
    """Run the program in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "PYTHONIOENCODING")}
    environment |= more.pop("env", {})
    command = [sys.executable, "-m", "steptime", *words.split()]
    return subprocess.run(command, check=False, timeout=120, env=environment, **({"capture_output": True} | more))


# --- any terminal -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [40, pytest.param(80, marks=pytest.mark.thorough), *(pytest.param(width, marks=pytest.mark.slow) for width in (60, 120))],
)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param("plan deepseek-v3 gb200-nvl72 --speed 50", marks=pytest.mark.thorough),
        "plan llama-3.1-8b cs-3", "step deepseek-v3 hgx-h200 --dp 8 --ep 8",
        "models deepseek-v3", "models --like gpt-oss", "models --table deepseek-v3 kimi-k2", "systems",
        pytest.param("engines vllm", marks=pytest.mark.thorough),
        "validate --columns",
    ],
)  # fmt: skip
def test_tables_and_pictures_keep_to_the_width_and_break_no_header(words, columns, closed_forms):
    shown = run(words, columns=columns)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    heads = headers(lines)
    assert heads
    assert heads <= widest_headers(words)


@lru_cache
def widest_headers(words: str) -> set[str]:
    """Return the headers where nothing is left out."""
    return headers(run(words, columns=240).stdout.splitlines())


def headers(lines: list[str]) -> set[str]:
    """Return the words in the last lines of the headers of tables."""
    rules = [number for number, line in enumerate(lines) if set(line.strip()) == {"─"}]
    return {word for number in rules for word in lines[number - 1].split()}


@each("columns", [46, 60, 80])
def test_the_list_of_systems_shows_rents_however_narrow(columns):
    lines = run("systems --full", columns=columns).stdout.splitlines()
    (row,) = (line for line in lines if line.strip().startswith("gb200-nvl72"))
    assert "4.00" in row
    assert "contract" in row


def test_columns_are_left_out_before_a_header_or_a_number_breaks():
    shown = table("Name of it", "Bytes", "Wanted", "", numbers=(1, 2), first_to_go=(3, 1))
    shown.add_row("a long name of several words", "123,456", "7,890", "█" * 12)
    texts = {}
    for width in (80, 40, 24, 12):
        console = Console(width=width, file=io.StringIO(), record=True)
        console.print(shown)
        texts[width] = console.export_text()
        assert max(map(len, texts[width].splitlines())) <= max(width, 14)
    assert "█" in texts[80]
    assert "█" not in texts[40]
    assert "123,456" in texts[40]
    assert "123,456" not in texts[24]
    assert "7,890" in texts[24]


@pytest.mark.parametrize("columns", every(2, ["0", "-3", "wide", ""]))
def test_a_width_that_is_none_is_80(columns):
    with patch("os.get_terminal_size", side_effect=OSError):  # there is no terminal that could tell
        shown = run("systems", columns=columns)
    assert shown.returncode == 0
    assert max(map(len, shown.stdout.splitlines())) == 80


def test_parts_of_a_bar_and_curves_differ_without_colour():
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(stacked([("a", 1e9, "red"), ("b", 2e9, "blue"), ("c", 1e9, "green")], 5e9, 80, "Memory"))
    legend, bar = console.export_text().splitlines()[:2]
    glyphs = [legend[legend.index(f" {name} ") - 1] for name in "abc"]
    assert len({*glyphs, "░"}) == 4
    assert all(bar.count(glyph) > 5 for glyph in (*glyphs, "░"))


@pytest.mark.parametrize("encoding", every(3, ["latin-1", "ascii", "cp1252"]))
@pytest.mark.parametrize(
    "words", [pytest.param(PLAN, marks=pytest.mark.thorough), "--help", "systems gb200-nvl72 --json", "models deepseek-v3"]
)
def test_a_stream_of_few_letters_gets_others_in_their_place(words, encoding, closed_forms):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    shown = run(f"{words} --full" if words == PLAN else words, into=stream)
    assert (shown.returncode, shown.stderr) == (0, "")
    text = stream.buffer.getvalue().decode(encoding)
    if "--json" in words:
        assert json.loads(text)["name"] == "gb200-nvl72"
    if words == PLAN:
        assert "####" in text


@pytest.mark.slow
def test_a_process_whose_stream_has_few_letters():
    shown = process(f"{PLAN} --full", env={"PYTHONIOENCODING": "ascii"})
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert "####" in shown.stdout.decode("ascii")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["systems", "systems --json", "--help", pytest.param(PLAN, marks=pytest.mark.thorough)])
def test_a_full_disk_gets_one_message(words):
    with open("/dev/full", "w", encoding="utf-8") as full:
        shown = run(words, into=full)
    assert (shown.returncode, shown.stderr.strip()) == (2, "steptime: cannot print: No space left on device")


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_process_that_finds_the_disk_full_gets_one_message():
    with open("/dev/full", "wb") as full:
        shown = process("systems", stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert shown.returncode == 2
    assert shown.stderr.decode().strip() == "steptime: cannot print: No space left on device"


def test_a_closed_stream_gets_one_message():
    shown = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m steptime systems >&-"], capture_output=True, text=True, check=False, timeout=60
    )
    assert shown.returncode == 2
    assert shown.stderr.strip() == "steptime: cannot print: standard output is closed"


@pytest.mark.thorough
def test_a_reader_that_goes_is_no_error():
    words = f"{sys.executable} -m steptime systems --json | head -1; exit"
    shown = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False, timeout=60)
    assert shown.stderr == ""


@pytest.mark.thorough
def test_an_interrupt_ends_with_130_and_no_words():
    code = "import signal, sys, steptime.questions.plan_question as m, steptime.cli.main as t, time\n"
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what runs in the background may ignore it
    code += "m.plan = lambda *a, **k: (print('begun', flush=True), time.sleep(30))\n"
    code += f"sys.argv = ['steptime', *{PLAN.split()!r}]; t.main()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout.readline().startswith(b"begun")
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=20)
        assert running.returncode == 130
    assert b"Traceback" not in said


def test_words_come_only_while_one_waits(capfd):
    with patience("short work", 5.0):
        pass
    with patience("long work", 0.01):
        time.sleep(0.2)
    with patience(lambda: "", 0.01):
        time.sleep(0.1)
    assert capfd.readouterr().err == "long work\n"


def test_long_work_tells_when_its_first_part_is_done_and_when_all_is(capfd):
    # The first part is at work when the first message is due, and done afterwards.
    messages = iter(["first part of {a}"])
    with patience(lambda: next(messages, ""), 0.02, then="done after {}; second part"):
        heard, until = "", time.monotonic() + 20
        while "second part" not in heard and time.monotonic() < until:
            time.sleep(0.01)
            heard += capfd.readouterr().err
    heard += capfd.readouterr().err
    first, second, last = heard.splitlines()
    assert first == "first part of {a}"
    assert re.fullmatch(r"done after \d+ s; second part", second)
    assert re.fullmatch(r"answer after \d+ s", last)
    with patience(lambda: "", 0.02, then="done after {}"):
        time.sleep(0.1)
    assert capfd.readouterr().err == ""


# --- files --------------------------------------------------------------------------------------------------------------


def test_outputs_are_looked_at_before_the_work(tmp_path):
    (tmp_path / "in.csv").write_text("a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "run.json").write_text("{}")
    (tmp_path / "link.csv").symlink_to(tmp_path / "in.csv")

    def check(*outputs):
        check_outputs({f"--out{k}": str(tmp_path / name) for k, name in enumerate(outputs)}, [str(tmp_path / "in.csv")])

    check("new.csv", "other.csv")
    assert not (tmp_path / "new.csv").exists()
    for outputs, says in (
        (("in.csv",), "is an input of this command"), (("link.csv",), "is an input of this command"),
        (("folder",), "is a folder"), (("none/a.csv",), "its folder does not exist"),
        (("a.csv", "a.csv"), "is also the file of --out0"), (("in.csv/a",), "its folder does not exist"),
    ):  # fmt: skip
        with pytest.raises(DataFileError, match=says):
            check(*outputs)
    for text in ("", " ", "a\0b", "x" * 5000, "y" * 5000 + "/a.csv"):
        with pytest.raises(InputError):
            check_outputs({"--csv": text}, [text])
    with pytest.raises(DataFileError, match="is an input of this command"):
        check_outputs({"--csv": str(tmp_path / "folder" / "run.json")}, [str(tmp_path / "folder")])
    assert (tmp_path / "in.csv").read_text() == "a"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody may write")
def test_a_file_that_may_not_be_written_is_found_before_the_work():
    with pytest.raises(DataFileError, match=r"/proc/a\.csv: cannot be written"):
        check_outputs({"--csv": "/proc/a.csv"}, ())


@pytest.mark.parametrize(
    ("words", "rows", "column"),
    [
        pytest.param("plan deepseek-v3 gb200-nvl72 --speed 50", 20, "tokens_per_s_per_chip", marks=pytest.mark.thorough),
        ("step llama-3.1-8b hgx-h100", 1, "total_s"),
        ("models --like gpt-oss", 2, "total_parameters"),
        ("models --table deepseek-v3 kimi-k2", 2, "decode_flop_per_token"),
        ("systems", 30, "hbm_bandwidth_bytes_per_s"),
        ("engines", 5, "memory_efficiency"),
        ("validate runs.csv", 1, "predicted_tpot_s"),
    ],
)
def test_tables_go_to_csv(tmp_path, words, rows, column, closed_forms):
    (tmp_path / "runs.csv").write_text(RUNS)
    shown = run(f"{words} --csv out.csv", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.splitlines()[-1].startswith("Wrote out.csv: ")  # on a slow machine words about the wait come before
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert len(found) >= rows
    assert all(float(row[column]) > 0 for row in found)
    assert run(f"{words} --csv out.csv", folder=tmp_path).stderr.rstrip().endswith("in place of an older file.")


def test_a_file_that_is_no_table_is_not_written_over(tmp_path):
    """Prose, and a table of requests where a timeline is asked for."""
    for name, text, words in (
        ("thesis.md", "My prose, and more of it.", "plan llama-3.1-8b hgx-h100 --csv thesis.md"),
        ("x.csv", "arrival_s,input_tokens\n1,2\n", "simulate llama-3.1-8b hgx-h100 --rate 1 --requests 10 --chrome x.csv"),
    ):
        (tmp_path / name).write_text(text)
        shown = run(words, folder=tmp_path)
        assert shown.returncode == 2
        assert f"{name}: has content that --" in shown.stderr
        assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("validate runs.csv --predictions runs.csv", "runs.csv: is an input of this command"),
        ("validate runs.csv --csv runs.csv", "runs.csv: is an input of this command"),
        (
            "validate runs.csv --predictions a.csv --csv a.csv",
            "is also the file of --csv; give --predictions another file",
        ),
        ("validate runs.csv --predictions none/a.csv", "its folder does not exist"),
        ("calibrate runs.csv --name mine --out runs.csv --force", "runs.csv: is an input of this command"),
        ("calibrate runs.csv --name mine --out none/mine.toml", "its folder does not exist"),
        ("calibrate runs.csv --name ../mine", "--name takes a plain name"),
        ("calibrate runs.csv --name old", "old.toml: is there already; give --force"),
        ("calibrate runs.csv --name ideal", "--name ideal is an engine of the catalogue; give yours another name"),
        ("calibrate runs.csv --name vLLM", "--name vLLM is an engine of the catalogue; give yours another name"),
        ("validate runs.csv --columns", "--columns stands alone"),
        ("calibrate runs.csv --name mine --prior ideal", "--prior ideal has no fitted constants"),
        ("simulate llama-3.1-8b hgx-h100 --trace runs.csv --export runs.csv", "runs.csv: is an input of this command"),
        ("plan llama-3.1-8b hgx-h100 --engine old.toml --csv old.toml", "old.toml: is an input of this command"),
        ("systems --csv .", ".: is a folder"),
    ],
)
def test_no_output_goes_over_an_input_or_nowhere(tmp_path, words, says):
    (tmp_path / "runs.csv").write_text(RUNS)
    (tmp_path / "old.toml").write_text("name = 'old'\n")
    shown = run(words, folder=tmp_path)
    assert shown.returncode == 2
    assert says in shown.stderr
    assert (tmp_path / "runs.csv").read_text() == RUNS
    assert (tmp_path / "old.toml").read_text() == "name = 'old'\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.toml", "runs.csv"]


def test_a_system_is_printed_as_a_template_that_gives_its_figures(tmp_path):
    shown = run("systems m3-ultra --toml")
    assert shown.returncode == 0
    (tmp_path / "mine.toml").write_text(shown.stdout, encoding="utf-8")
    mine, theirs = load_system(tmp_path / "mine.toml"), load_system("m3-ultra")
    assert (mine.chip, mine.domains, mine.tiers) == (theirs.chip, theirs.domains, theirs.tiers)


def test_a_system_printed_as_a_template_is_read_again_as_a_system(tmp_path):
    shown = run("systems hgx-h100 --toml")
    assert (shown.returncode, shown.stderr) == (0, "")
    (tmp_path / "mine.toml").write_text(shown.stdout, encoding="utf-8")
    again = run("systems mine.toml", folder=tmp_path)
    assert (again.returncode, again.stdout) == (0, run("systems hgx-h100").stdout)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "runs.csv:1: is empty: give a CSV table"),
        (RUNS.replace(",", ";"), "runs.csv:1: separates its columns by ';'; separate them by commas"),
        (
            RUNS.replace("concurrency", "concurency"),
            "runs.csv:1: lacks the column concurrency (concurency is not a known column)",
        ),
        (RUNS.replace("tpot_s", "tpot_ms"), "runs.csv:1: has the column tpot_ms, which is not read: times stand in tpot_s"),
        (RUNS.replace("hgx-h100", "hgx-h10"), "a path to a file works too; --skip-bad leaves such rows out"),
    ],
)
def test_a_file_of_runs_that_is_not_quite_one_says_what_to_change(tmp_path, text, says):
    (tmp_path / "runs.csv").write_text(text)
    shown = run("validate runs.csv", folder=tmp_path)
    assert (shown.returncode, shown.stdout, says in shown.stderr) == (2, "", True), shown.stderr


def test_one_run_is_one_run(tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    shown = run("calibrate runs.csv --name mine", folder=tmp_path)
    assert shown.returncode == 0
    made = (tmp_path / "mine.toml").read_text()
    assert 'title = "vllm fitted to 1 run"' in made
    assert 'note = "1 run of runs.csv"' in made


def test_patience_speaks_late_and_takes_no_thread(capfd):
    import threading
    import time

    from steptime.cli.output import patience

    before = threading.active_count()
    with patience("still at it", 0.02):
        assert threading.active_count() == before  # or work could not be shared with copies of this process
        until = time.monotonic() + 5
        while "still at it" not in (said := capfd.readouterr().err) and time.monotonic() < until:
            time.sleep(0.01)
    assert said == "still at it\n"
    with patience("never said", 5):
        pass
    time.sleep(0.03)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("ending", [".xlsx", ".parquet", ".json"])
def test_csv_with_the_ending_of_another_table_is_refused(tmp_path, ending):
    refused = run(f"step llama-3.1-8b hgx-h100 --batch 4 --csv step{ending}", folder=tmp_path)
    assert refused.returncode == 2
    assert "step.csv" in refused.stderr
    assert not (tmp_path / f"step{ending}").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "note"),
    [
        ("--chunk 256", "No measured or published run has prefill chunks of 256 tokens."),
        ("--full", "with fewer measured runs or none: tp8 with smaller prefill chunks."),
    ],
)
def test_plan_names_small_chunks_as_the_lack_of_evidence(options, note, closed_forms):
    """Eight chips with tp8 were measured, but not with chunks below 512 tokens."""
    question = "plan llama-3.1-405b hgx-h200 --input 2048 --output 512 --speed 30 --ttft 2"
    assert note in " ".join(run(f"{question} {options}").stdout.split())


@each(
    "words, lines",
    [
        ("short", ["short"]),
        ("a word and `one command that is long` end", ["a word and", "`one command that is long`", "end"]),
        ("it's the file '/a b/c d e f g h i j k'", ["it's the file", "'/a b/c d e f g h i j k'"]),
    ],
)
def test_messages_break_between_words_that_nobody_copies(words, lines):
    assert wrap_for_terminal(words, 20).split("\n") == lines


@pytest.mark.parametrize(
    ("misses", "signatures", "is_compiling"), [({}, [], False), ({"all": 1}, [], True), ({"all": 1}, ["all"], False)]
)
def test_compiled_part_is_named_only_while_numba_compiles_it(monkeypatch, misses, signatures, is_compiling):
    loop = SimpleNamespace(serve=SimpleNamespace(stats=SimpleNamespace(cache_misses=misses), signatures=signatures))
    for module, _, _ in output.COMPILED_PARTS:
        monkeypatch.setitem(sys.modules, f"steptime.simulation.{module}", loop)
    assert ("the simulator" in output.compiled_part()) == is_compiling


@pytest.mark.parametrize(("name", "is_said"), [("rtx-4090", True), ("RTX_4090-8", False), ("rtx-4090-8", False)])
def test_say_system_name_of_a_chip_tells_the_system_and_its_chips(capfd, name, is_said):
    output.say_system(name, load_system("rtx-4090-8"))
    assert ("rtx-4090-8 with 8 chips" in capfd.readouterr().err) == is_said
