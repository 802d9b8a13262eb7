"""Workers give what one process gives, and end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steptime.processes import can_fork, map_in_processes
from tests.conftest import each, every

forks = pytest.mark.skipif(
    not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2, reason="nothing forks here"
)
START = "import os, sys, signal, threading, time\nfrom steptime.processes import *\n"


def run(body: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, which has one thread, as the command line has."""
    return subprocess.run([sys.executable, "-c", START + body], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", every(3, [0, 1, 2, 50]))
def test_map_in_processes_keeps_the_order(number):
    body = f"print(map_in_processes(abs, range(-{number}, 0)) == list(range({number}, 0, -1)))"
    assert run(body).stdout == "True\n"


@forks
def test_map_in_processes_of_one_thread_works_elsewhere():
    assert run("print(os.getpid() in map_in_processes(eval, ['os.getpid()'] * 4))").stdout == "False\n"


@forks
def test_maps_one_after_the_other_work_elsewhere():
    """The threads of the first pool are over when the next map begins."""
    body = "print([os.getpid() in map_in_processes(eval, ['os.getpid()'] * 4) for _ in range(8)])"
    assert run(body).stdout == f"{[False] * 8}\n"


def test_map_in_processes_with_a_second_thread_stays_here():
    body = "threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n"
    assert run(body + "print(set(map_in_processes(eval, ['os.getpid()'] * 4)) == {os.getpid()})").stdout == "True\n"


@pytest.mark.parametrize("work", ["abs", "lambda x: sum(map_in_processes(abs, [x, x]))"])
def test_map_in_processes_listener_counts_the_items_of_the_outer_map(work):
    body = f"seen = []\nwith listening(lambda *n: seen.append(n)): map_in_processes({work}, [1, 2, 3])\n"
    after = "map_in_processes(abs, [1, 2])\nprint(seen)"
    assert run(body + after).stdout == "[(1, 3), (2, 3), (3, 3)]\n"


def test_map_in_processes_unpicklable_work_stays_here():
    assert map_in_processes(lambda x: x + 1, [1, 2]) == [2, 3]


def test_map_in_processes_failure_is_raised_and_lost_worker_is_done_again():
    assert "ZeroDivisionError" in run("map_in_processes((1).__floordiv__, [1, 0])").stderr
    lost = "here = os.getpid()\ndef work(x):\n    if os.getpid() != here: os._exit(3)\n    return x\n"
    assert run(lost + "print(map_in_processes(work, [1, 2, 3]))").stdout == "[1, 2, 3]\n"


@each("setting", ["signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "sys.stdout.close()", "sys.stdout = None"])
def test_map_in_processes_in_an_odd_process_answers(setting):
    done = run(f"{setting}\nprint(map_in_processes(abs, [-1, -2]), file=sys.stderr)")
    assert (done.returncode, done.stderr) == (0, "[1, 2]\n")


def test_can_fork_in_a_process_with_threads_is_false():
    assert run("threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\nprint(can_fork())").stdout == "False\n"
    assert can_fork() in (True, False)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="states of processes are read from /proc")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_process_pool_parent_killed_ends_the_workers(context, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        START
        + f"if __name__ == '__main__':\n    import steptime.processes as p\n    p.can_fork = lambda: {context == 'fork'}\n"
        "    pool = process_pool(2)\n    futures = [pool.submit(time.sleep, 600) for _ in range(2)]\n"
        "    print(*pool._processes, flush=True)\n    futures[0].result()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.5)
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while any(map(is_running, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    assert len(workers) == 2
    assert not any(map(is_running, workers))


def is_running(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
