"""Odd values, and ways to damage the text of a file."""

from __future__ import annotations

import math
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

SECONDS = 20.0  # no input may keep anyone waiting longer
NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, 8, 72, -1, -8, 0.5, -0.0, 1e-9, 1e-300, 1e300, 1e308, math.nan, math.inf, -math.inf, 10**6, 10**9, 10**12,
    10**18, 10**23, 10**400, 2.5, 8.0, True, False, None, "8", "8k", "", "nan", [], [1, 2], [[1], [2, 3]], {}, 1j, b"1",
    np.float32(3), np.int8(5), np.float64("nan"), np.bool_(True), np.arange(1, 4), np.array([1.0, math.nan]), np.array([]),
    np.array([[1, 2], [3, 4]]), np.array(["a"]), np.array([1, 10**30], dtype=object), object(),
)  # fmt: skip
LITERALS = (
    "0", "-1", "1", "2.5", "1e300", "1e-300", "inf", "-inf", "nan", "1" * 30, "9" * 5000, "true", "false", '""', '"x"', '"8"',
    '"-5 GB"', '"0 B/s"', '"1e300 TB/s"', '"1e-300 B"', '"3 TB/s"', '"1 PFLOP/s"', '"80 GB"', '"2 us"', '"2 USD/h"', '"700 W"',
    "[]", "[1, 2]", '["a", 1]', "{}", "{a = 1}", '{value = "3 TB/s"}', '{value = "3 TB/s", from = "nowhere"}', "{value = []}",
    "2024-01-01", "1979-05-27T07:32:00Z", "'''a\nb'''", '"\\u0000"', '"' + "n" * 5000 + '"', "0x10", "1_000", "", "null", "[[",
)  # fmt: skip
FIGURES = ("0", "-1", "1e300", "9" * 30, "0.5", "nan", "", "1", "2", "7", "12", "300", "4000", "64000", "0.001", "1e6")
TEXTS = (
    "0", "1", "-1", "8", "1e3", "8k", "2.5", "1e23", "9" * 5000, "nan", "inf", "-inf", "", " ", "abc", "é", "1,024", "1_024",
    "0x10", "1e-300", "1e300", "1e999", "x" * 5000, "a/b", "../x", "/", "/dev/null", ".", "\0", "fp8", "bf16", "ideal", "vllm",
    "gpt2", "llama-3.1-8b", "hgx-h100", "h100", "128", "4096", "0.5", "0.99", "None", "[]", "{}", "=", "a=b", "%s", "--",
)  # fmt: skip


def in_file(text: str, rng: random.Random) -> bytes:
    """Return a text with one to three places damaged, as bytes in some encoding."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice((_value, _value, _value, _line, _piece, _number, _number, _number))(text, rng)
    kind = rng.random()
    if kind < 0.02:
        return text.encode("utf-16")
    if kind < 0.05:
        return b"\xef\xbb\xbf" + text.encode(errors="replace")
    raw = text.encode(errors="replace")
    if kind < 0.08:
        return raw[: rng.randrange(len(raw) + 1)]
    if kind < 0.1:
        place = rng.randrange(len(raw) + 1)
        return raw[:place] + bytes(rng.choices(range(256), k=3)) + raw[place:]
    return raw.replace(b"\n", b"\r\n") if kind < 0.15 else raw


def _value(text: str, rng: random.Random) -> str:
    """Replace what stands behind one "="."""
    lines = text.split("\n")
    places = [n for n, line in enumerate(lines) if "=" in line]
    if places:
        n = rng.choice(places)
        key, _, value = lines[n].partition("=")
        if "{" in value and rng.random() < 0.5:  # the value of a figure, its source kept
            before, _, after = value.partition('"')
            lines[n] = f"{key}={before}{rng.choice(LITERALS)}{after.partition(chr(34))[2]}"
        else:
            lines[n] = f"{key}= {rng.choice(LITERALS)}"
    return "\n".join(lines)


def _line(text: str, rng: random.Random) -> str:
    """Remove a line, double it, move it, or add one."""
    lines = text.split("\n")
    n, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[n]
    elif kind == 1:
        lines.insert(other, lines[n])
    elif kind == 2:
        lines.insert(other, lines.pop(n))
    elif kind == 3:
        lines.insert(other, f"{rng.choice(('extra', 'name', 'size', 'a.b', '[x]', '[[domains]]'))} = {rng.choice(LITERALS)}")
    else:
        del lines[min(n, other) : max(n, other)]
    return "\n".join(lines)


def _piece(text: str, rng: random.Random) -> str:
    """Put some characters in, or take some away."""
    place = rng.randrange(len(text) + 1)
    if rng.random() < 0.5:
        return text[:place] + text[place + rng.randrange(1, 20) :]
    return text[:place] + "".join(rng.choices('"[]{}=,.\\#\n\té0 -', k=rng.randrange(1, 4))) + text[place:]


def _number(text: str, rng: random.Random) -> str:
    """Replace one number."""
    places = [n for n, letter in enumerate(text) if letter.isdigit()]
    if not places:
        return text
    end = begin = rng.choice(places)
    while end < len(text) and text[end].isdigit():
        end += 1
    return text[:begin] + rng.choice(FIGURES) + text[end:]


@contextmanager
def in_time(seconds: float = SECONDS) -> Iterator[None]:
    """Raise TimeoutError in what takes more than `seconds` of processor time; other work on the machine counts for nothing."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
