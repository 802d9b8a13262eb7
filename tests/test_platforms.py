"""Commands work where Linux's calls are missing: as on macOS, and as on Windows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.test_commands import run as run_here

# Names that the standard library lacks on Windows, by module; macOS lacks those of `DARWIN`.
WINDOWS = {
    "os": (
        "fork",
        "forkpty",
        "sched_getaffinity",
        "geteuid",
        "getuid",
        "killpg",
        "mkfifo",
        "sysconf",
        "uname",
        "wait",
        "WNOHANG",
    ),
    "signal": ("SIGALRM", "SIGKILL", "SIGHUP", "SIGPIPE", "ITIMER_REAL", "setitimer", "pthread_sigmask", "sigwait"),
}
DARWIN = {"os": ("sched_getaffinity", "sched_setaffinity"), "signal": ("sigwaitinfo", "sigtimedwait")}
MODULES_OF_UNIX = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "posix_ipc")
# Other packages are imported first, because they belong to this machine; steptime is not.
START = """
import sys, os, signal, json, asyncio, multiprocessing, multiprocessing.popen_spawn_posix, concurrent.futures.process
import ctypes, subprocess, mmap, shutil, socket, threading, webbrowser
import numpy, typer, rich.console, plotille
if {web!r}:
    import uvicorn, fastapi
sys.platform = {platform!r}
for module, names in {names!r}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
for name in {blocked!r}:
    sys.modules[name] = None
"""


def run(system: str, code: str) -> str:
    windows = system == "windows"
    start = START.format(
        platform="win32" if windows else "darwin",
        names=WINDOWS if windows else DARWIN,
        blocked=MODULES_OF_UNIX if windows else (),
        web="steptime.web" in code,
    )
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("system", [pytest.param("macos", marks=pytest.mark.slow), "windows"])
@pytest.mark.parametrize(
    "words",
    [
        ["step", "llama-3.1-8b", "hgx-h100", "--batch", "64", "--context", "4k", "--json"],
        pytest.param(
            ["sweep", "step", "llama-3.1-8b", "hgx-h100", "--over", "batch=1:64:log2", "--context", "4k", "--json"],
            marks=pytest.mark.thorough,
        ),
    ],
    ids=lambda words: words[0],
)
def test_a_command_answers_as_on_linux(system, words):
    here = run_here(" ".join(words)).stdout
    there = run(system, f"sys.argv[1:] = {words!r}\nfrom steptime.__main__ import main\nmain()")
    # Seconds that the computation took.
    assert json.loads(there) | {"sweep_s": 0} == json.loads(here) | {"sweep_s": 0}


@pytest.mark.thorough
@pytest.mark.parametrize("system", [pytest.param("macos", marks=pytest.mark.thorough), "windows"])
def test_nothing_forks_and_work_stays_in_one_process(system):
    printed = run(
        system,
        "from steptime.processes import can_fork, core_count, hold_interrupts, map_in_processes\n"
        "with hold_interrupts():\n    answers = map_in_processes(abs, [-1, -2, -3])\n"
        "print(json.dumps([can_fork(), core_count() == os.cpu_count(), answers]))",
    )
    assert json.loads(printed) == [False, True, [1, 2, 3]]


@pytest.mark.parametrize("system", [pytest.param("macos", marks=pytest.mark.thorough), "windows"])
def test_a_message_after_a_while_comes_without_an_alarm(system):
    code = "from steptime.cli import output\nimport time\nwith output.patience('still at work', 0.01):\n    time.sleep(0.3)\n"
    printed = run(system, "sys.stderr = sys.stdout\n" + code)
    assert "still at work" in printed


@pytest.mark.thorough
@pytest.mark.parametrize("system", [pytest.param("macos", marks=pytest.mark.thorough), "windows"])
def test_files_are_written_whole_elsewhere_too(system, tmp_path):
    printed = run(
        system,
        f"from pathlib import Path\nfrom steptime.atomic_files import create_text_exclusively, write_text_atomically\n"
        f"place = Path({str(tmp_path / 'a.txt')!r})\nwrite_text_atomically(place, 'one')\nwrite_text_atomically(place, 'two')\n"
        "create_text_exclusively(place.with_name('b.txt'), 'three')\n"
        "print(json.dumps([file.read_text() for file in sorted(place.parent.iterdir())]))",
    )
    assert json.loads(printed) == ["two", "three"]


@pytest.mark.thorough
@pytest.mark.parametrize("system", [pytest.param("macos", marks=pytest.mark.thorough), "windows"])
def test_the_page_is_served_by_one_process(system):
    pytest.importorskip("uvicorn")
    printed = run(
        system,
        "from functools import partial\nfrom steptime.web import server\n"
        "opened = []\nwebbrowser.open = opened.append\n"
        "server.open_page('http://localhost:1/', print, browse=True)\n"
        "import time\ntime.sleep(1.2)\nprint(json.dumps([server.is_forkable(), opened]))",
    )
    assert json.loads(printed.splitlines()[-1]) == [False, ["http://localhost:1/"]]
