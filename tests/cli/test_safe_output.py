"""Names and files of others break no terminal, no table and no other command; Ctrl-C and full disks lose nothing."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import steptime as st
from steptime.cli.main import SUMMARIES
from tests.cli.test_commands import run
from tests.validation.test_anchors import measured, written

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 100,
}  # fmt: skip
STEP = "step llama-3.1-8b hgx-h100 --batch 64"


def command(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Start the command line in a process group of its own, as a terminal does; jobs in the background ignore interrupts."""
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL) if os.name == "posix" else None
    return subprocess.Popen(
        [sys.executable, "-m", "steptime", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | environment, preexec_fn=heard,  # noqa: PLW1509
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what a process prints, and kill one that does not end."""
    try:
        return process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@pytest.mark.parametrize("option", ["", "--json"])
def test_models_with_escapes_in_a_name_prints_none(tmp_path, option):
    folder = tmp_path / "evil\x1b[2J\x9b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for asked in (f"models {folder}", f"step {folder} hgx-h100 --batch 1"):
        shown = run(f"{asked} {option}")
        assert not {"\x1b", "\x9b"} & {*shown.stdout, *shown.stderr}


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_csv_full_disk_keeps_the_old_table(tmp_path, monkeypatch, broken):
    table = tmp_path / "a.csv"
    asked = f"{STEP} --csv {table}"
    assert run(asked).returncode == 0
    before = table.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    shown = run(asked)
    assert (shown.returncode, table.read_bytes(), os.listdir(tmp_path)) == (2, before, ["a.csv"])
    assert "No space left" in shown.stderr


# --- kept runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return the folder of kept runs, with one good file."""
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("STEPTIME_CATALOG", str(own))
    runs = written(tmp_path / "runs.csv", measured([1.3] * 8, ttft=[1.3] * 8))
    assert run(f"anchors add {runs} --name good").returncode == 0
    return own / "anchors"


def bad_files(good: bytes) -> dict[str, bytes]:
    """Return contents of a file of kept runs that cannot be used."""
    return {
        "empty": b"", "torn in the header": good[:20], "torn in a row": good[: good.index(b"\n") + 30],
        "binary": bytes(range(256)), "other table": b"a,b\n1,2\n",
        "unknown model": good.replace(b"llama-3.1-8b", b"llama-none-8b"), "JSON": b'{"a": 1}',
    }  # fmt: skip


# A table that is torn; other files in the slow stage.
@pytest.mark.parametrize(
    "name",
    [name if name == "torn in a row" else pytest.param(name, marks=pytest.mark.thorough) for name in bad_files(b"id\n")],
)
def test_anchors_bad_file_is_left_out_with_a_note(kept, name, caplog):
    good = (kept / "good.csv").read_bytes()
    (kept / "bad.csv").write_bytes(bad_files(good)[name])
    with caplog.at_level(logging.WARNING):
        found = st.load_anchor()
        shown = [run(asked) for asked in ("anchors", STEP, "step llama-3.1-70b hgx-h100 --tp 8 --batch 8")]
    assert [anchor.source for anchor in found.anchors] == ["good"]
    assert [one.returncode for one in shown] == [0, 0, 0]
    assert "Corrected by" in shown[1].stdout
    assert [str(kept / "bad.csv") in record.getMessage() for record in caplog.records] == [True]
    assert run("anchors remove bad").returncode == 0


@pytest.mark.thorough
def test_anchors_bad_file_is_told_on_standard_error(kept):
    (kept / "bad.csv").write_bytes(b"")
    with command("anchors", "--json") as process:
        output, errors = wait_for(process)
    assert (process.returncode, len(json.loads(output)["anchors"]), errors.count("\n")) == (0, 1, 1)
    assert "bad.csv" in errors


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_anchors_add_of_eight_processes_keeps_or_refuses_each(kept, same):
    runs = kept.parents[1] / "runs.csv"
    names = ["r" if same else f"r{number}" for number in range(8)]
    processes = [command("anchors", "add", str(runs), "--name", name) for name in names]
    errors = [wait_for(process)[1] for process in processes]
    codes = sorted(process.returncode for process in processes)
    good = (kept / "good.csv").read_bytes()
    assert codes == ([0] + [2] * 7 if same else [0] * 8)
    assert sum("exists" in error for error in errors) == codes.count(2)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == dict.fromkeys(
        ["good.csv", *(f"{name}.csv" for name in names)], good
    )


@pytest.mark.thorough
def test_anchors_add_killed_at_the_end_of_the_write_keeps_nothing(kept):
    script = (
        "import os, signal, sys\nfrom steptime.cli.main import main\n"
        "os.link = os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\nmain()\n"
    )
    asked = ["anchors", "add", str(kept.parents[1] / "runs.csv"), "--name", "cut"]
    done = subprocess.run([sys.executable, "-c", script, *asked], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in kept.glob("*.csv")] == ["good.csv"]
    assert len(st.load_anchor().anchors) == 1


def test_anchors_add_full_disk_keeps_nothing(kept, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    shown = run(f"anchors add {kept.parents[1] / 'runs.csv'} --name cut")
    assert (shown.returncode, os.listdir(kept)) == (2, ["good.csv"])
    assert "No space left" in shown.stderr


# --- Ctrl-C -------------------------------------------------------------------------------------------------------------


def interrupt(seconds: float, *words: str) -> tuple[int, str]:
    """Press Ctrl-C after some seconds; return the exit code and what stands on standard error."""
    with command(*words) as process:
        time.sleep(seconds)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, errors = wait_for(process)
    return process.returncode, errors


LONG = ("sweep", "plan", "llama-3.1-8b", "hgx-h100", "--over", "speed=10:100:200", "--workers", "2")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_interrupted_sweep_exits_with_130():
    code, errors = interrupt(1.5, *LONG)
    assert code == 130
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    "words",
    [
        ("sensitivity", "plan", "llama-3.3-70b", "hgx-h100", "--speed", "40", "--vary", "input=1k:4k"),
        ("compare", "llama-3.3-70b", "--input", "2k", "--output", "500", "--speed", "40"),
        ("plan", "llama-3.3-70b", "hgx-h100", "--speed", "40"),
        ("simulate", "llama-3.1-8b", "hgx-h100", "--rate", "20"),
        ("prices", "deepseek-v3"),
        LONG,
    ],
    ids=lambda words: words[0],
)
def test_command_interrupted_at_any_time_exits_with_130_and_no_traceback(words):
    draw = random.Random(1)
    for _ in range(8):
        code, errors = interrupt(draw.uniform(0.3, 2.5), *words)
        assert code in (0, 130)
        assert "Traceback" not in errors
        assert "Exception ignored" not in errors


def ends(folder: Path, times: str) -> dict[str, list[tuple[int, str]]]:
    """Interrupt every command after each of some seconds of work; return exit codes and what stands on standard error."""
    written(folder / "runs.csv", measured([1.3] * 8, ttft=[1.3] * 8))
    (folder / "fleet.toml").write_text(
        '[[models]]\nname = "llama-3.1-8b"\nrate = 10\n\n[[systems]]\nname = "hgx-h100"\nchips = 8\n', encoding="utf-8"
    )
    script = Path(__file__).parents[1] / "interrupt_commands.py"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "STEPTIME_CATALOG": str(folder)}
    done = subprocess.run(
        [sys.executable, str(script), times],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs copies of a process")
def test_every_command_interrupted_at_its_start_exits_with_130(tmp_path):
    found = ends(tmp_path, "0.003")
    assert len(found) == len(SUMMARIES)
    assert {words: end for words, end in found.items() if end != [[130, ""]]} == {}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs copies of a process")
def test_every_command_interrupted_later_exits_with_130_or_has_its_answer(tmp_path):
    draw = random.Random(3)
    found = ends(tmp_path, ",".join(f"{draw.uniform(0.01, limit):.3f}" for limit in (0.05, 0.15, 0.3, 0.5)))
    assert all(code in (0, 130) for one in found.values() for code, _ in one)
    assert sum(code == 130 for one in found.values() for code, _ in one) > 2 * len(found)
    assert not [errors for one in found.values() for _, errors in one if "Traceback" in errors or "Exception ignored" in errors]


@pytest.mark.parametrize("error", ["RuntimeError('x') from KeyboardInterrupt()", "ValueError('x')"])
def test_error_because_of_an_interrupt_exits_with_130_and_another_one_shows_its_place(error):
    script = f"import steptime.cli.main as m, steptime.__main__ as t\ndef main(): raise {error}\nm.main = main\nt.main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == ((130, False) if "Keyboard" in error else (1, True))


def test_interrupt_inside_an_exec_exits_with_130(tmp_path):
    # CPython ends by the signal there, although the exception was caught
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\nmodule = types.ModuleType('steptime.cli.main')\n"
        "def main():\n    import os, signal\n"
        "    exec('os.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(10**8): pass', locals())\n"
        "module.main = main\nsys.modules['steptime.cli.main'] = module\n"
    )
    with command("plan", PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path(st.__file__).parents[1])])) as process:
        _, errors = wait_for(process)
    assert (process.returncode, errors) == (130, "")
