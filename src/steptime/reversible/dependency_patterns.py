"""Dependency patterns: rounds until every output depends on every input.

Lecture section 18. A pattern gives one square boolean matrix per round: entry (i, j) is true where output i reads
input j. Patterns show the structure that ciphers and networks share:

butterfly (Fourier transform); shuffle with small S-boxes (PRESENT); rows then columns (AES, or attention over tokens
and then a feed-forward block over channels); window (local attention); triangle (causal attention, which never mixes
completely).
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
    """Return the butterfly pattern: partners are 1, 2, 4, ... places apart in turn.

    It mixes in log2(size) rounds.

    Args:
        size: Number of values, a power of two.

    Returns:
        Pattern: boolean matrix [size x size] of a round number.

    Raises:
        RangeError: The size is not a power of two.

    >>> mixing_time(butterfly(64))
    6
    """
    steps = _power(size, 2)
    every = np.arange(size)
    return lambda number: np.eye(size, dtype=bool) | (every[:, None] == every ^ (1 << (number % steps)))


def shuffle(size: int, box: int = 4) -> Pattern:
    """Return the pattern of adjacent boxes whose outputs go to all boxes in turn.

    It mixes in log_box(size) rounds. PRESENT uses 64 bits with boxes of 4.

    Args:
        size: Number of values, a power of `box`.
        box: Values of one box.

    Returns:
        Pattern: boolean matrix [size x size], the same in each round.

    Raises:
        RangeError: The size is not a power of `box`.

    >>> mixing_time(shuffle(64, 4)), mixing_time(shuffle(1024, 2))
    (3, 10)
    """
    _power(size, whole_number("a box", box, minimum=2, maximum=MOST_WIDE))
    boxes = np.kron(np.eye(size // box, dtype=bool), np.ones((box, box), dtype=bool))
    dealt = np.empty(size, dtype=np.int64)
    # Output k of box b goes to place k * boxes + b, so that each box of the next round reads several boxes.
    dealt[np.arange(size) % box * (size // box) + np.arange(size) // box] = np.arange(size)
    mixed = boxes[dealt]
    return lambda _: mixed


def grid(rows: int, columns: int) -> Pattern:
    """Return the pattern that mixes along rows and along columns in turn.

    It mixes in two rounds. In a transformer, attention mixes tokens and a feed-forward block mixes channels.

    Args:
        rows: Rows of the grid.
        columns: Columns of the grid.

    Returns:
        Pattern: boolean matrix [rows*columns x rows*columns] of a round number.

    >>> mixing_time(grid(8, 16))
    2
    """
    row_identity, column_identity = (
        np.eye(whole_number("a side", side, maximum=MOST_WIDE), dtype=bool) for side in (rows, columns)
    )
    both = np.kron(row_identity, np.ones_like(column_identity)), np.kron(np.ones_like(row_identity), column_identity)
    return lambda number: both[number % 2]


def aes() -> Pattern:
    """Return the pattern of one AES round on the 16 bytes of its state.

    Returns:
        Pattern: boolean matrix [16 x 16], the same in each round.

    >>> mixing_time(aes())
    2
    """
    columns = np.kron(np.eye(4, dtype=bool), np.ones((4, 4), dtype=bool))
    mixed = columns @ np.eye(16, dtype=bool)[SHIFTED]
    return lambda _: mixed


def feistel(half: int) -> Pattern:
    """Return the pattern of a Feistel round whose function mixes a half completely.

    Args:
        half: Bits of a half.

    Returns:
        Pattern: boolean matrix [2*half x 2*half], the same in each round.

    >>> mixing_time(feistel(16))
    3
    """
    same, none = np.eye(whole_number("half", half, maximum=MOST_WIDE // 2), dtype=bool), np.zeros((half, half), dtype=bool)
    mixed = np.block([[none, same], [same, ~none]])
    return lambda _: mixed


def window(size: int, reach: int, *, causal: bool = False) -> Pattern:
    """Return the pattern of attention within a window.

    Args:
        size: Number of tokens.
        reach: Largest distance of a token that is read.
        causal: Whether a token reads earlier tokens only.

    Returns:
        Pattern: boolean matrix [size x size], the same in each round.

    >>> mixing_time(window(64, 9)), mixing_time(window(64, 63)), mixing_time(window(64, 63, causal=True))
    (7, 1, inf)
    """
    places = np.arange(whole_number("the size of a pattern", size, maximum=MOST_WIDE))
    back = places[:, None] - places
    mixed = (np.abs(back) <= whole_number("reach", reach, minimum=0)) & (not causal or back >= 0)
    return lambda _: mixed


def reached(pattern: Pattern, rounds: int) -> Array:
    """Return which output depends on which input after a number of rounds.

    Args:
        pattern: Boolean matrix of a round number.
        rounds: Number of rounds, 0 to 4,096.

    Returns:
        Boolean matrix [outputs x inputs].
    """
    dependencies = np.eye(len(pattern(0)), dtype=bool)
    for number in range(whole_number("rounds", rounds, minimum=0, maximum=MOST_ROUNDS)):
        dependencies = _through(pattern(number), dependencies)
    return dependencies


def mixing_time(pattern: Pattern) -> float:
    """Return the rounds until every output depends on every input.

    Args:
        pattern: Boolean matrix of a round number.

    Returns:
        Rounds; infinity if further rounds add no dependency.
    """
    dependencies, still = np.eye(len(pattern(0)), dtype=bool), 0
    for number in range(MOST_ROUNDS):
        after = _through(pattern(number), dependencies)
        if after.all():
            return number + 1
        still = still + 1 if np.array_equal(after, dependencies) else 0
        # The matrices of a pattern repeat after at most log2(size) rounds, so no later round adds a dependency.
        if still > math.log2(len(dependencies)) + 2:
            return math.inf
        dependencies = after
    return math.inf


def _through(mixed: Array, dependencies: Array) -> Array:
    if mixed.shape != dependencies.shape or mixed.ndim != 2 or mixed.shape[0] != mixed.shape[1]:
        raise InputError(f"pattern: each round must give a boolean matrix of shape {dependencies.shape}, got {mixed.shape}")
    through: Array = (mixed.astype(np.float32) @ dependencies.astype(np.float32)) > 0
    return through


def _power(size: int, base: int) -> int:
    """Return the exponent that gives a size; raise RangeError if it is not whole."""
    whole_number("the size of a pattern", size, minimum=base, maximum=MOST_WIDE)
    power = round(math.log(size, base))
    if base**power != size:
        near = " or ".join(str(base ** rounding(math.log(size, base))) for rounding in (math.floor, math.ceil))
        raise RangeError(f"the size of this pattern must be a power of {base}, not {size}; use {near}")
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
"""Patterns of the lecture, by display name."""


def known_times(names: list[str] | None = None) -> dict[str, float]:
    """Return the mixing times of known patterns.

    Args:
        names: Keys of `KNOWN_PATTERNS`; None: all.

    Returns:
        Rounds by name; infinity if the pattern never mixes completely.

    Raises:
        UnknownName: A name is not in `KNOWN_PATTERNS`.
    """
    for name in names or []:
        if name not in KNOWN_PATTERNS:
            raise UnknownName("pattern", name, KNOWN_PATTERNS)
    return {name: mixing_time(KNOWN_PATTERNS[name]()) for name in names or KNOWN_PATTERNS}
