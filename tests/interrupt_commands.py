"""A script that presses Ctrl-C in every command after some processor time, and prints how each one ends as JSON.

Argument: times of processor work in seconds, separated by commas. Each command runs once for each, in a copy of this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from types import FrameType

import steptime.__main__
from steptime.cli.main import EXAMPLES, app_for

# The first example of each command, or one that needs no file which is not here.
OTHERS = {
    "web": "web --no-browser", "validate": "validate runs.csv", "calibrate": "calibrate runs.csv --prior vllm --name mine",
    "anchors": "anchors add runs.csv --name mine", "lecture": "lecture --check", "laws": "laws epoch",
    "engines": "engines vllm", "systems": "systems gb200-nvl72", "reversible": "reversible mixing --samples 10k",
}  # fmt: skip


def press(_number: int, _frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def run(words: str, seconds: float) -> None:
    """Run a command as the terminal does, in this process, which it ends."""
    # What starts in the background may ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGVTALRM, press)
    sys.argv = ["steptime", *words.split()]
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        steptime.__main__.main()
    finally:
        # A command that ended earlier is not interrupted.
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def end_of(words: str, seconds: float) -> tuple[int, str]:
    """Return the exit code of an interrupted command and what it says on standard error."""
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors.fileno(), 2)
            run(words, seconds)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        errors.seek(0)
        return code, errors.read().decode(errors="replace")


def main(times: list[float]) -> None:
    app_for()
    commands = [OTHERS.get(name, examples[0]) for name, examples in EXAMPLES.items()]
    print(json.dumps({words: [end_of(words, seconds) for seconds in times] for words in commands}))


if __name__ == "__main__":
    main([float(word) for word in sys.argv[1].split(",")])
