"""What depends on what: rounds until each output depends on each input, by the pattern that a round mixes in. Section 18.

A pattern is a square of truths for each round: whether output i reads input j. Patterns name what ciphers and networks share: a
butterfly (the Fourier transform), a shuffle with small boxes (PRESENT), rows then columns (AES; attention over tokens, then a
feed-forward block over channels), windows (local attention), and a triangle (causal attention, which never closes).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from steptime.errors import InputError, RangeError, UnknownName
from steptime.number_checks import Array, whole_number
from steptime.reversible.ciphers import SHIFTED

Pattern = Callable[[int], Array]
MOST_WIDE: Final = 4096
MOST_ROUNDS: Final = 4096


def butterfly(size: int) -> Pattern:
    """Return the pattern in which each joins one that is 1, 2, 4, ... places away in turn: log2 of the size.

    >>> mixing_time(butterfly(64))
    6
    """
    steps = _power(size, 2)
    every = np.arange(size)
    return lambda number: np.eye(size, dtype=bool) | (every[:, None] == every ^ (1 << (number % steps)))


def shuffle(size: int, box: int = 4) -> Pattern:
    """Return the pattern of boxes side by side, whose outputs are dealt to all boxes in turn: the logarithm to base `box`.

    PRESENT's 64 bits with boxes of 4 are dealt so.

    >>> mixing_time(shuffle(64, 4)), mixing_time(shuffle(1024, 2))
    (3, 10)
    """
    _power(size, whole_number("a box", box, minimum=2, maximum=MOST_WIDE))
    boxes = np.kron(np.eye(size // box, dtype=bool), np.ones((box, box), dtype=bool))
    dealt = np.empty(size, dtype=np.int64)
    dealt[np.arange(size) % box * (size // box) + np.arange(size) // box] = np.arange(size)
    mixed = boxes[dealt]
    return lambda _: mixed


def grid(rows: int, columns: int) -> Pattern:
    """Return the pattern that mixes along rows and along columns in turn: two rounds, as of a cake's batter.

    Tokens by channels: attention mixes tokens, a feed-forward block channels.

    >>> mixing_time(grid(8, 16))
    2
    """
    row_identity, column_identity = (
        np.eye(whole_number("a side", side, maximum=MOST_WIDE), dtype=bool) for side in (rows, columns)
    )
    both = np.kron(row_identity, np.ones_like(column_identity)), np.kron(np.ones_like(row_identity), column_identity)
    return lambda number: both[number % 2]


def aes() -> Pattern:
    """Return the pattern of a round of AES on the 16 bytes of its state.

    >>> mixing_time(aes())
    2
    """
    columns = np.kron(np.eye(4, dtype=bool), np.ones((4, 4), dtype=bool))
    mixed = columns @ np.eye(16, dtype=bool)[SHIFTED]
    return lambda _: mixed


def feistel(half: int) -> Pattern:
    """Return the pattern of a Feistel round on halves of so many bits, of a function in which all depends on all.

    >>> mixing_time(feistel(16))
    3
    """
    same, none = np.eye(whole_number("half", half, maximum=MOST_WIDE // 2), dtype=bool), np.zeros((half, half), dtype=bool)
    mixed = np.block([[none, same], [same, ~none]])
    return lambda _: mixed


def window(size: int, reach: int, *, causal: bool = False) -> Pattern:
    """Return the pattern of attention within `reach` places; causal: of those before alone, so that none depends on later ones.

    >>> mixing_time(window(64, 9)), mixing_time(window(64, 63)), mixing_time(window(64, 63, causal=True))
    (7, 1, inf)
    """
    places = np.arange(whole_number("the size of a pattern", size, maximum=MOST_WIDE))
    back = places[:, None] - places
    mixed = (np.abs(back) <= whole_number("reach", reach, minimum=0)) & (not causal or back >= 0)
    return lambda _: mixed


def reached(pattern: Pattern, rounds: int) -> Array:
    """Return which output depends on which input after some rounds."""
    dependencies = np.eye(len(pattern(0)), dtype=bool)
    for number in range(whole_number("rounds", rounds, minimum=0, maximum=MOST_ROUNDS)):
        dependencies = _through(pattern(number), dependencies)
    return dependencies


def mixing_time(pattern: Pattern) -> float:
    """Return the rounds until each output depends on each input; infinity where a round adds nothing any more."""
    dependencies, still = np.eye(len(pattern(0)), dtype=bool), 0
    for number in range(MOST_ROUNDS):
        after = _through(pattern(number), dependencies)
        if after.all():
            return number + 1
        still = still + 1 if np.array_equal(after, dependencies) else 0
        if still > math.log2(len(dependencies)) + 2:  # no pattern here has a longer turn
            return math.inf
        dependencies = after
    return math.inf


def _through(mixed: Array, dependencies: Array) -> Array:
    if mixed.shape != dependencies.shape or mixed.ndim != 2 or mixed.shape[0] != mixed.shape[1]:
        raise InputError(f"a pattern is a square of truths, {dependencies.shape} in each round, not {mixed.shape}")
    through: Array = (mixed.astype(np.float32) @ dependencies.astype(np.float32)) > 0
    return through


def _power(size: int, base: int) -> int:
    """Return which power of the base a size is; raise RangeError where it is none."""
    whole_number("the size of a pattern", size, minimum=base, maximum=MOST_WIDE)
    power = round(math.log(size, base))
    if base**power != size:
        near = " or ".join(str(base ** rounding(math.log(size, base))) for rounding in (math.floor, math.ceil))
        raise RangeError(f"the size of this pattern must be a power of {base}, not {size}; {near} will do")
    return power


KNOWN_PATTERNS: Final[dict[str, Callable[[], Pattern]]] = {
    "butterfly of 64": lambda: butterfly(64),
    "shuffle of 64, boxes of 4 (PRESENT)": lambda: shuffle(64, 4),
    "AES, 16 bytes": aes,
    "Feistel, halves of 32 bits": lambda: feistel(32),
    "rows, then columns (tokens, then channels)": lambda: grid(16, 16),
    "attention to all of 64": lambda: window(64, 63),
    "attention in a window of 8, of 64": lambda: window(64, 8),
    "causal attention of 64": lambda: window(64, 63, causal=True),
}
"""Patterns that the lecture speaks of, with the name that each is shown by."""


def known_times(names: list[str] | None = None) -> dict[str, float]:
    """Return the mixing time of patterns by name."""
    for name in names or []:
        if name not in KNOWN_PATTERNS:
            raise UnknownName("pattern", name, KNOWN_PATTERNS)
    return {name: mixing_time(KNOWN_PATTERNS[name]()) for name in names or KNOWN_PATTERNS}
