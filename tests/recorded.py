"""Recorded figures: answers over drawn inputs, which no change of the code moves unnoticed.

No figure here is right because it is recorded: laws and numbers worked by hand say what is right. These tables say that nothing
else moved. `RECORD=1 python -m pytest -n 0 -m "" tests/physics/test_recorded.py tests/planning/test_recorded.py` writes them
anew, in one process.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

# A number in a sentence: sentences may change their words, not their figures.
FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def leaves(value: Any) -> Iterator[float]:
    """Yield all numbers of an answer, in order."""
    if value is None or isinstance(value, bool | np.bool_):
        yield {None: 0.25, False: 0.5, True: 0.75}[None if value is None else bool(value)]
    elif isinstance(value, str) and len(value.split()) < 3:
        yield 1 + crc32(value.encode()) % 1000  # a name, such as that of a limit
    elif isinstance(value, str):
        yield from (float(text.replace(",", "")) for text in FIGURE.findall(value))
    elif isinstance(value, int | float | np.number):
        yield float(value)
    elif isinstance(value, np.ndarray):
        yield from (leaf for one in value.ravel().tolist() for leaf in leaves(one))
    elif is_dataclass(value):
        yield from (leaf for one in fields(value) for leaf in leaves(getattr(value, one.name)))
    elif isinstance(value, Mapping):
        yield from (leaf for key in sorted(value, key=str) for leaf in leaves(value[key]))
    else:
        yield from (leaf for one in value for leaf in leaves(one))


def digest(value: Any) -> float:
    """Return one number that any relative change of 1e-9 of any number of an answer moves by more than 1e-10."""
    total, count = 0.0, 0
    for count, leaf in enumerate(leaves(value), 1):
        size = math.log(abs(leaf) + 1e-12) if math.isfinite(leaf) else 50.0 + (leaf > 0)
        total += (1 + 0.1 * math.sin(count)) * (size + 0.3 * (leaf < 0))
    return round(total + 7.0 * count, 10) + 0.0


def figures(answer: Any) -> dict[str, float]:
    """Return a number itself, or one number for each field of an answer."""
    if is_dataclass(answer):
        answer = {one.name: getattr(answer, one.name) for one in fields(answer)}
    elif isinstance(answer, tuple) and hasattr(answer, "_asdict"):
        answer = answer._asdict()
    if not isinstance(answer, Mapping):
        answer = {"": answer}
    return {name: digest(value) for name, value in answer.items()}


class Recorded:
    """Functions whose answers a table has, each for some arguments; `test` returns the test of all.

    Args:
        table: CSV file of the figures.
    """

    def __init__(self, table: Path) -> None:
        self.table, self.answers, self.thorough = table, dict[str, Callable[[], Any]](), set[str]()
        self.rows: dict[str, dict[str, float]] = {}
        if table.exists():
            with table.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines):
                    self.rows.setdefault(row["case"], {})[row["field"]] = float(row["figure"])

    def __call__(
        self, name: str, arguments: Iterable[Any] = ("",), *, thorough: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Record the answers of a function for some arguments, by the name of both; `thorough` ones are for the slow stage."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            added = {f"{name} {argument}".strip(): partial(function, argument) for argument in arguments}
            self.answers |= added
            self.thorough |= set(added) if thorough else set()
            return function

        return add

    def check(self, case: str) -> None:
        """Compare an answer with its figures, or write them with `RECORD=1`."""
        now = figures(self.answers[case]())
        if os.environ.get("RECORD"):
            self.rows = {name: self.rows[name] for name in self.answers if name in self.rows} | {case: now}
            lines = [f"{name},{field},{value!r}\n" for name in sorted(self.rows) for field, value in self.rows[name].items()]
            self.table.write_text("case,field,figure\n" + "".join(lines), encoding="utf-8")
            return
        then = self.rows.get(case, {})
        moved = [name for name in then | now if not abs(then.get(name, math.inf) - now.get(name, math.inf)) < 1e-8]
        if moved:
            pytest.fail(f"{', '.join(moved)} moved; if that is meant, record again as {Path(__file__).name} says")

    def test(self) -> Callable[..., None]:
        """Return the test of all functions."""

        marks = {True: [pytest.mark.thorough], False: []}
        cases = [pytest.param(case, marks=marks[case in self.thorough]) for case in sorted(self.answers)]

        @pytest.mark.parametrize("case", cases)
        def test(case: str) -> None:
            self.check(case)

        return test


def spread(seed: int, count: int, **ranges: tuple[float, float]) -> dict[str, Any]:
    """Return numbers that are evenly spread over the logarithm of each range."""
    random = np.random.default_rng(seed)
    return {name: np.exp(random.uniform(math.log(low), math.log(high), count)) for name, (low, high) in ranges.items()}
