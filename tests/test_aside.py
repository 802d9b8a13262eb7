"""Work aside gives what the same work gives here, and fails as it does here."""

import os
import subprocess
import sys

import pytest

from steptime.aside import MOST, aside, meanwhile, spread

ALONE = """
import os, sys
from steptime.aside import aside, meanwhile, spread
{body}
"""


def run(body):
    """Run a script with one thread, as the command line has, so that work may go aside."""
    script = ALONE.format(body=body)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_what_is_worked_out_aside_comes_back():
    assert aside(lambda: (1, "two"))() == (1, "two")
    done = run("import time; print('before'); got = aside(lambda: (os.getpid(), [3.5])); pid, x = got(); print(x, pid)")
    *_, pid = done.stdout.split()
    assert done.stdout.startswith("before\n[3.5] ")
    assert pid.isdigit()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core: nothing goes aside here"
)
def test_a_process_of_one_thread_works_aside_in_another_process():
    assert run("print(aside(os.getpid)() == os.getpid())").stdout == "False\n"


def test_a_process_with_threads_does_not_copy_itself():
    body = "import threading; e = threading.Event(); threading.Thread(target=e.wait).start()\n"
    assert run(body + "print(aside(os.getpid)() == os.getpid()); e.set()").stdout == "True\n"


def test_a_failure_aside_is_a_failure_here_and_a_lost_copy_is_done_again():
    assert "ZeroDivisionError" in run("aside(lambda: 1 / 0)()").stderr
    lost = "here = os.getpid()\nprint(aside(lambda: os._exit(3) if os.getpid() != here else 'again')())"
    assert run(lost).stdout == "again\n"


@pytest.mark.parametrize("number", [0, 1, 2, 7, MOST + 3])
def test_items_spread_over_cores_come_back_in_their_order(number):
    body = f"items = list(range({number}))\nprint(spread(lambda x: x * x, items) == [x * x for x in items])"
    assert run(body).stdout == "True\n"
    assert spread(str, range(number)) == [str(one) for one in range(number)]


def test_items_of_a_lost_copy_are_done_again_and_failures_are_failures():
    lost = "here = os.getpid()\nprint(spread(lambda x: x if os.getpid() == here or x % 3 else os._exit(3), range(9)))"
    assert run(lost).stdout == "[0, 1, 2, 3, 4, 5, 6, 7, 8]\n"
    assert "ZeroDivisionError" in run("spread(lambda x: 1 / (x - 5), range(9))").stderr


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core: nothing goes aside here"
)
def test_a_long_item_does_not_hold_up_the_others():
    body = "import time\ndef nap(x):\n    time.sleep(x)\n    return os.getpid()\n"
    body += "done = spread(nap, [0.6] + [0.01] * 9)\nprint(sum(one == done[0] for one in done))"
    assert run(body).stdout == "1\n"


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core: nothing goes aside here"
)
def test_other_cores_begin_before_they_are_asked():
    body = "import time; got = meanwhile(lambda x: (os.getpid(), x), [1, 2, 3]); time.sleep(1); found = got()\n"
    done = run(body + "print([x for _, x in found], os.getpid() in {pid for pid, _ in found})")
    assert done.stdout == "[1, 2, 3] False\n"
    body = "import time; got = meanwhile(lambda x: (time.sleep(0.2), os.getpid())[1], [0] * 8)\n"
    assert run(body + "print(os.getpid() in got())").stdout == "True\n"  # and this one takes some of what is left
    assert meanwhile(str, [])() == []
