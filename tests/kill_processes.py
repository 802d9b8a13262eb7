"""A script that copies itself eight times a round, kills each copy at a random moment, and checks what they reported as kept.

All is loaded before the first copy, so that the kills fall into the work and not into the start.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for

Report = Callable[[object], object]
POINTS = 150
APP, COMMANDS = app_for(), CliRunner()


def call(*words: str) -> None:
    result = COMMANDS.invoke(APP, words)
    assert result.exit_code == 0, (words, result.output, result.exception)


def keep_runs(number: int, turn: int, report: Report) -> None:
    """Add measured runs under one name after the other."""
    for count in range(10**6):
        call("anchors", "add", "runs.csv", "--name", f"r{number}-{turn}-{count}")
        report(f"r{number}-{turn}-{count}")


def write_tables(number: int, turn: int, report: Report) -> None:
    """Write over a table of this process, and over one that all share."""
    for batch in range(1, 10**6):
        for table in (f"own-{number}.csv", "shared.csv"):
            call("step", "llama-3.1-8b", "hgx-h100", "--batch", str(batch), "--csv", table)
            report(table)


def late(x: float) -> float:
    time.sleep(0.002)
    return x + 1


def sweep_sums(number: int, turn: int, report: Report) -> None:
    """Sweep with a log of answers; a sweep that was killed continues in the next round."""
    st.sweep(late, {"x": list(range(POINTS))}, out=f"sums-{number}.csv", workers=1, progress=lambda done, total: report(done))
    report("end")


JOBS = [keep_runs] * 3 + [write_tables] * 2 + [sweep_sums] * 3


def start(number: int, turn: int) -> tuple[int, int]:
    """Start one process; return its id and the pipe of its reports."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        return child, ours
    try:
        JOBS[number](number, turn, lambda words: os.write(theirs, f"{words}\n".encode()))
    except BaseException as error:
        os.write(theirs, f"ERROR {error!r}\n".encode())
    os._exit(0)


def reports_until_killed(turn: int, draw: random.Random, tally: Counter[str]) -> list[list[str]]:
    """Return the reports of each process. A kill comes a moment after some report, so that busy machines have as many."""
    children = [start(number, turn) for number in range(len(JOBS))]
    wanted = [draw.randrange(2, 60 if work is sweep_sums else 4) for work in JOBS]
    texts, due = [b""] * len(JOBS), dict[int, float]()
    begun = time.monotonic()
    pipes = {pipe: number for number, (_, pipe) in enumerate(children)}
    while pipes:
        for pipe in select.select(list(pipes), [], [], 0.002)[0]:
            data = os.read(pipe, 65536)
            texts[pipes[pipe]] += data
            if not data:
                del pipes[pipe]
        for number in pipes.values():
            now = time.monotonic()
            if texts[number].count(b"\n") >= wanted[number]:
                due.setdefault(number, now + draw.uniform(0, 1.2) * (now - begun) / wanted[number])
            if now > due.get(number, math.inf):
                os.kill(children[number][0], signal.SIGKILL)
    for child, pipe in children:
        os.close(pipe)
        tally["kills"] += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    reports = [text.decode().splitlines() for text in texts]
    assert not [one for one in reports if one and one[-1].startswith("ERROR")], reports
    return reports


def rows_of(path: Path) -> list[list[str]]:
    with path.open() as file:
        return list(csv.reader(file))


def check_sums(number: int, reports: list[str], kept: int, tally: Counter[str]) -> int:
    """Check that a sweep continues from all points that were kept; return the points that are kept now."""
    if reports:
        assert reports[0] == "end" or int(reports[0]) >= kept, (number, reports[0], kept)
        tally["continued"] += kept > 0
        tally["points"] += len(reports)
        kept = int(reports[-1]) if reports[-1] != "end" else 0
    if reports and reports[-1] == "end":
        tally["sweeps"] += 1
        assert [row[0:2] for row in rows_of(Path(f"sums-{number}.csv"))[1:]] == [[str(x), f"{x + 1}.0"] for x in range(POINTS)]
    return kept


def main(rounds: int) -> None:
    """Kill and check in rounds, and print how much was reported."""
    anchors = Path(os.environ["STEPTIME_CATALOG"]) / "anchors"
    call("anchors", "add", "runs.csv", "--name", "good")
    call("step", "llama-3.1-8b", "hgx-h100", "--batch", "1", "--csv", "first.csv")
    st.sweep(late, {"x": [1, 2]}, out="first-sums.csv", workers=1)
    good, width = (anchors / "good.csv").read_bytes(), len(rows_of(Path("first.csv"))[0])
    draw, tally = random.Random(2), Counter[str]()
    runs, tables, sums = {"good"}, set[str](), Counter[int]()
    for turn in range(rounds):
        for number, reports in enumerate(reports_until_killed(turn, draw, tally)):
            if JOBS[number] is keep_runs:
                runs |= set(reports)
            elif JOBS[number] is write_tables:
                tables |= set(reports)
                tally["tables"] += len(reports)
            else:
                sums[number] = check_sums(number, reports, sums[number], tally)
        files = {path.stem: path.read_bytes() for path in anchors.glob("*.csv")}
        assert runs <= set(files), runs - set(files)
        assert set(files.values()) == {good}
        assert len(st.load_anchor().anchors) == len(files)
        assert all({len(row) for row in rows_of(Path(table))} == {width} for table in tables)
    print(json.dumps(tally | {"runs": len(runs)}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
