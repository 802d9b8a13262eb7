r"""How ciphers and networks mix: dependency patterns, and the avalanche of one flipped bit.

Lecture section 18. A pattern gives one square boolean matrix per round: entry (i, j) is true where output i reads
input j. Patterns show the structure that ciphers and networks share:

butterfly (Fourier transform); shuffle with small S-boxes (PRESENT); rows then columns (AES, or attention over tokens
and then a feed-forward block over channels); window (local attention); triangle (causal attention, which never mixes
completely).

Avalanche: the share of output bits that one flipped input bit flips, by round.

Lecture section 18. A cipher needs a share of one half after its first rounds. A trained network needs a small share,
because similar inputs mean similar things.

For a Feistel cipher, the expected share follows from the probability that the input of its round function differs.
For a random network, it follows from the correlation $c$ of two hidden vectors: a share $\arccos(c) / \pi$ of their
signs differs (`random_networks.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from steptime.errors import InputError, RangeError, UnknownName
from steptime.number_checks import Array, whole_number
from steptime.result_base import Tabular, unit
from steptime.reversible import random_networks as networks
from steptime.reversible.random_networks import Trained
from steptime.reversible.sboxes import SHIFTED, aes_rounds, feistel_rounds, random_tables, speck_rounds
from steptime.units import percent

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
    of_rows, of_columns = (np.eye(whole_number("a side", side, maximum=MOST_WIDE), dtype=bool) for side in (rows, columns))
    both = np.kron(of_rows, np.ones_like(of_columns)), np.kron(np.ones_like(of_rows), of_columns)
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


Rounds = Callable[[Array, np.random.Generator], Iterable[Array]]
MOST_SAMPLES: Final = 1_000_000
FEISTEL_ROUNDS = 16
# Layers and values per layer of random networks.
DEPTH, WIDTH = 16, 256
# Random networks averaged in one curve.
NETWORKS = 8
# Number of set bits of each byte value.
BITS = np.array([bin(byte).count("1") for byte in range(256)])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Curve(Tabular):
    """The avalanche of one cipher or network."""

    name: str = field(metadata=unit("", "name of the cipher or network"))
    bits: int = field(metadata=unit("", "bits of the output"))
    samples: int = field(metadata=unit("", "pairs of inputs that differ in one bit"))
    shares: tuple[float, ...] = field(metadata=unit("", "share of output bits that differ, after each round or layer"))
    errors: tuple[float, ...] = field(metadata=unit("", "standard error of each share"))
    expected: tuple[float, ...] | None = field(metadata=unit("", "expected share by the closed form; null: no closed form"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the first and the last share of differing bits.

        Returns:
            Title, and figures by name.
        """
        figures = {
            "first round": percent(self.shares[0], 2),
            f"round {len(self.shares)}": percent(self.shares[-1], 2),
        }
        return f"Avalanche of {self.name}: {self.samples:,} pairs", figures

    def columns(self) -> dict[str, Any]:
        """Return one row per round.

        Returns:
            Columns by name, each with one value per round.
        """
        count = len(self.shares)
        return {
            "name": [self.name] * count, "round": list(range(1, count + 1)), "share": list(self.shares),
            "standard_error": list(self.errors), "expected_share": list(self.expected or [math.nan] * count),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Mixing(Tabular):
    """Avalanches of ciphers and networks (`steptime reversible mixing`)."""

    SCHEMA: ClassVar[str] = "steptime.mixing/2"

    curves: tuple[Curve, ...] = field(metadata=unit("", "avalanche of each cipher and network"))
    trained: Trained = field(metadata=unit("", "avalanche of one network before and after training"))
    rounds: dict[str, float] = field(
        metadata=unit("", "rounds until every output depends on every input, by pattern; null: never", kind="object of numbers")
    )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the last share of the first six curves.

        Returns:
            Title, and figures by name.
        """
        return f"Mixing: {len(self.curves)} ciphers and networks", {
            curve.name: f"{percent(curve.shares[-1], 1)} after {len(curve.shares)}" for curve in self.curves[:6]
        }

    def columns(self) -> dict[str, Any]:
        """Return one row per curve and round.

        Returns:
            Columns by name, each with one value per row.
        """
        parts = [curve.columns() for curve in self.curves]
        return {key: [value for part in parts for value in part[key]] for key in parts[0]}


def avalanche(name: str, rounds: Rounds, size: int, samples: int, *, seed: int = 0, expected: Any = None) -> Curve:
    """Measure the avalanche of a cipher on random blocks.

    Each sample has its own block, key and flipped bit.

    Args:
        name: Name of the cipher.
        rounds: Function of blocks and a random generator that yields the blocks after each round. It is called twice
            with generators in the same state, so that both calls draw the same keys.
        size: Bytes of a block.
        samples: Pairs of blocks, 2 to 1,000,000.
        seed: Seed of the random generator.
        expected: Expected share after each round, or None.

    Returns:
        Share of differing bits after each round, with its standard error.
    """
    samples = whole_number("samples", samples, minimum=2, maximum=MOST_SAMPLES)
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, size=(samples, size), dtype=np.uint8)
    bit_positions, flipped = draw.integers(0, 8 * size, size=samples), blocks.copy()
    flipped[np.arange(samples), bit_positions // 8] ^= (1 << bit_positions % 8).astype(np.uint8)
    # Generators in the same state give both members of a pair the same key.
    pairs = zip(*(rounds(inputs, np.random.default_rng(seed + 1)) for inputs in (blocks, flipped)), strict=True)
    shares = [BITS[first ^ second].sum(axis=1) / (8 * size) for first, second in pairs]
    return _curve(name, 8 * size, shares, expected)


def _curve(name: str, bits: int, shares: list[Array], expected: Any = None) -> Curve:
    samples = shares[0].size
    return Curve(
        name=name, bits=bits, samples=samples, shares=tuple(float(share.mean()) for share in shares),
        errors=tuple(float(share.std(ddof=1)) / math.sqrt(samples) for share in shares),
        expected=None if expected is None else tuple(map(float, expected)),
    )  # fmt: skip


def feistel_expected(rounds: int, half: int) -> Array:
    """Return the expected avalanche of a Feistel cipher with random functions.

    The flipped bit is uniform over both halves. Equal inputs of a round function give equal outputs. Different inputs
    give random outputs, which are equal with probability 2**-half.

    Args:
        rounds: Number of rounds, 1 to 1,000.
        half: Bits of a half.

    Returns:
        Share of output bits that differ, one value per round.

    >>> feistel_expected(4, 16)[:2].round(4).tolist(), round(float(feistel_expected(16, 16)[-1]), 3)
    ([0.1562, 0.3906], 0.5)
    """
    none = 2.0**-half
    # Probability of each pair of differences in both halves: "0" none, "1" one bit, "r" random.
    chances = {("0", "1"): 0.5, ("1", "0"): 0.5}
    # Expected number of differing bits; "x" is a random difference that is not zero.
    weight = {"0": 0.0, "1": 1.0, "r": half / 2, "x": half / 2 / (1 - none)}
    shares = []
    for _ in range(whole_number("rounds", rounds, maximum=1000)):
        after: dict[tuple[str, str], float] = {}
        for (left_half, right_half), chance in chances.items():
            # A random difference is zero with probability 2**-half, and the round function then adds nothing.
            fed = [("x", 1 - none), ("0", none)] if right_half == "r" else [(right_half, 1.0)]
            for difference, part in fed:
                pair = (difference, left_half if difference == "0" else "r")
                after[pair] = after.get(pair, 0.0) + chance * part
        chances = after
        shares.append(sum(chance * (weight[a] + weight[b]) for (a, b), chance in chances.items()) / (2 * half))
    return np.array(shares)


def _feistel(blocks: Array, draw: np.random.Generator) -> Iterable[Array]:
    return feistel_rounds(blocks, random_tables(FEISTEL_ROUNDS, draw))


def _speck(blocks: Array, draw: np.random.Generator) -> Iterable[Array]:
    return speck_rounds(blocks, draw.integers(0, 256, size=(len(blocks), 8), dtype=np.uint8))


def _aes(blocks: Array, draw: np.random.Generator, *, rows: bool = True, columns: bool = True) -> Iterable[Array]:
    keys = draw.integers(0, 256, size=(len(blocks), 16), dtype=np.uint8)
    return aes_rounds(blocks, keys, rows=rows, columns=columns)


CIPHERS: Final[dict[str, tuple[Rounds, int]]] = {
    "Feistel, random functions": (_feistel, 4),
    "Speck32/64 (ARX)": (_speck, 4),
    "AES-128": (_aes, 16),
    "AES without ShiftRows": (partial(_aes, rows=False), 16),
    "AES without MixColumns": (partial(_aes, columns=False), 16),
}


def cipher_curve(name: str, *, samples: int = 10_000, seed: int = 0) -> Curve:
    """Measure the avalanche of a known cipher.

    Args:
        name: Key of `CIPHERS`.
        samples: Pairs of blocks, 2 to 1,000,000.
        seed: Seed of the random generator.

    Returns:
        Share of differing bits after each round.

    Raises:
        UnknownName: The name is not in `CIPHERS`.
    """
    if name not in CIPHERS:
        raise UnknownName("cipher", name, CIPHERS, "Known: " + "; ".join(CIPHERS) + ".")
    expected = feistel_expected(FEISTEL_ROUNDS, 16) if name.startswith("Feistel") else None
    return avalanche(name, *CIPHERS[name], samples, seed=seed, expected=expected)


def network_curve(name: str, *, depth: int = DEPTH, width: int = WIDTH, samples: int = 512, seed: int = 0) -> Curve:
    """Measure the avalanche of random networks of one kind; the bits are the signs.

    Args:
        name: Key of `random_networks.KINDS`.
        depth: Layers.
        width: Values of a layer.
        samples: Pairs of inputs over all networks.
        seed: Seed of the random generator.

    Returns:
        Share of differing signs after each layer, averaged over 8 networks.

    Raises:
        UnknownName: The name is not in `random_networks.KINDS`.
    """
    if name not in networks.KINDS:
        raise UnknownName("kind of network", name, networks.KINDS, "Known: " + "; ".join(networks.KINDS) + ".")
    residual, normed = networks.KINDS[name]
    draw, shares = np.random.default_rng(seed), []
    for _ in range(NETWORKS):
        weights = networks.random_weights(draw, depth, width)
        inputs = networks.pairs(draw, max(2, samples // NETWORKS), width)
        both = (networks.layers(x, weights, residual=residual, normed=normed) for x in inputs)
        shares.append(np.stack([((first > 0) != (second > 0)).mean(axis=1) for first, second in zip(*both, strict=True)]))
    expected = networks.expected_shares(depth, width, residual=residual, normed=normed)
    return _curve(name, width, list(np.concatenate(shares, axis=1)), expected)


def mixing(*, samples: int = 4096, depth: int = DEPTH, width: int = WIDTH, seed: int = 0) -> Mixing:
    """Measure all known ciphers, random networks, a trained network and patterns.

    Args:
        samples: Pairs of blocks per cipher, 100 to 1,000,000; networks use at most 1,024.
        depth: Layers of the random networks.
        width: Values of a layer of the random networks.
        seed: Seed of the random generator.

    Returns:
        Avalanche curves, the trained network, and mixing times of the known patterns.
    """
    samples = whole_number("samples", samples, minimum=100, maximum=MOST_SAMPLES)
    seed = int(whole_number("seed", seed, minimum=0))
    ciphers = [cipher_curve(name, samples=samples, seed=seed) for name in CIPHERS]
    nets = [network_curve(name, depth=depth, width=width, samples=min(samples, 1024), seed=seed) for name in networks.KINDS]
    return Mixing(curves=(*ciphers, *nets), trained=networks.trained_and_random(seed=seed), rounds=known_times())
