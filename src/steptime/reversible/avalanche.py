r"""Avalanche: the share of output bits that one flipped input bit flips, round by round. Lecture section 18.

A cipher wants one half from its first rounds on; a trained network wants little, as like inputs mean like things. Expected of
a Feistel cipher is what comes of the chance that its function is fed a difference; of a random network, by the correlation
$c$ of what two inputs become, that of their signs a share $\arccos(c) / \pi$ differs (`random_networks.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from steptime.errors import UnknownName
from steptime.number_checks import Array, whole_number
from steptime.result_base import Tabular, unit
from steptime.reversible import random_networks as networks
from steptime.reversible.ciphers import aes_rounds, feistel_rounds, random_tables, speck_rounds
from steptime.reversible.random_networks import Trained

Rounds = Callable[[Array, np.random.Generator], Iterable[Array]]
MOST_SAMPLES: Final = 1_000_000
FEISTEL_ROUNDS = 16
DEPTH, WIDTH = 16, 256  # of networks
NETWORKS = 8  # that a curve is the mean of
BITS = np.array([bin(byte).count("1") for byte in range(256)])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Curve(Tabular):
    """The avalanche of one cipher or network."""

    name: str = field(metadata=unit("", "of the cipher or network"))
    bits: int = field(metadata=unit("", "of its output"))
    samples: int = field(metadata=unit("", "pairs of inputs that differ in one bit"))
    shares: tuple[float, ...] = field(metadata=unit("", "share of output bits that differ, after each round or layer"))
    errors: tuple[float, ...] = field(metadata=unit("", "standard error of each share"))
    expected: tuple[float, ...] | None = field(metadata=unit("", "share by the closed form; null where there is none"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the first and the last share."""
        figures = {"first round": f"{self.shares[0]:.2%}", f"round {len(self.shares)}": f"{self.shares[-1]:.2%}"}
        return f"Avalanche of {self.name}: {self.samples:,} pairs", figures

    def columns(self) -> dict[str, Any]:
        """Return a row for each round."""
        expected = self.expected or (math.nan,) * len(self.shares)
        rounds = list(range(1, len(self.shares) + 1))
        return {
            "name": [self.name] * len(rounds), "round": rounds, "share": list(self.shares), "standard_error": list(self.errors),
            "expected_share": list(expected),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Mixing(Tabular):
    """Ciphers and networks side by side: what `steptime reversible mixing` shows."""

    SCHEMA: ClassVar[str] = "steptime.mixing/2"

    curves: tuple[Curve, ...] = field(metadata=unit("", "avalanche of each"))
    trained: Trained = field(metadata=unit("", "a network before and after training"))
    rounds: dict[str, float] = field(
        metadata=unit("", "rounds until each output depends on each input, by pattern; null: never", kind="object of numbers")
    )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the last share of each curve."""
        return f"Mixing: {len(self.curves)} ciphers and networks", {
            curve.name: f"{curve.shares[-1]:.1%} after {len(curve.shares)}" for curve in self.curves[:6]
        }

    def columns(self) -> dict[str, Any]:
        """Return a row for each curve and round."""
        parts = [curve.columns() for curve in self.curves]
        return {key: [value for part in parts for value in part[key]] for key in parts[0]}


def avalanche(name: str, rounds: Rounds, size: int, samples: int, *, seed: int = 0, expected: Any = None) -> Curve:
    """Return the curve of a cipher on blocks of `size` bytes: each sample has a block, a key and a flipped bit of its own.

    rounds: gives the blocks after each round; it is called twice with generators of one state, so that keys are the same.
    """
    samples = whole_number("samples", samples, minimum=2, maximum=MOST_SAMPLES)
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, size=(samples, size), dtype=np.uint8)
    bit_positions, flipped = draw.integers(0, 8 * size, size=samples), blocks.copy()
    flipped[np.arange(samples), bit_positions // 8] ^= (1 << bit_positions % 8).astype(np.uint8)
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
    """Return the share of bits that differ after 1, 2, ... rounds of a Feistel cipher with random functions of `half` bits.

    The flipped bit is anywhere. A half without a difference gives none, any other a random one, which is none once in 2**half.

    >>> feistel_expected(4, 16)[:2].round(4).tolist(), round(float(feistel_expected(16, 16)[-1]), 3)
    ([0.1562, 0.3906], 0.5)
    """
    none = 2.0**-half
    chances = {("0", "1"): 0.5, ("1", "0"): 0.5}  # of the differences in both halves: none, one bit, random (r)
    weight = {"0": 0.0, "1": 1.0, "r": half / 2, "x": half / 2 / (1 - none)}  # x: random, and not none
    shares = []
    for _ in range(whole_number("rounds", rounds, maximum=1000)):
        after: dict[tuple[str, str], float] = {}
        for (left_half, right_half), chance in chances.items():
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
    """Return the avalanche of a known cipher."""
    if name not in CIPHERS:
        raise UnknownName("cipher", name, CIPHERS, "Known: " + "; ".join(CIPHERS) + ".")
    expected = feistel_expected(FEISTEL_ROUNDS, 16) if name.startswith("Feistel") else None
    return avalanche(name, *CIPHERS[name], samples, seed=seed, expected=expected)


def network_curve(name: str, *, depth: int = DEPTH, width: int = WIDTH, samples: int = 512, seed: int = 0) -> Curve:
    """Return the avalanche of random networks of a kind (`random_networks.KINDS`); the bits are the signs."""
    residual, normed = networks.network_features(name)
    draw, shares = np.random.default_rng(seed), []
    for _ in range(NETWORKS):
        weights = networks.random_weights(draw, depth, width)
        x, flipped = networks.pairs(draw, max(2, samples // NETWORKS), width)
        both = (networks.layers(inputs, weights, residual=residual, normed=normed) for inputs in (x, flipped))
        shares.append(np.stack([((first > 0) != (second > 0)).mean(axis=1) for first, second in zip(*both, strict=True)]))
    expected = networks.expected_shares(depth, width, residual=residual, normed=normed)
    return _curve(name, width, list(np.concatenate(shares, axis=1)), expected)


def mixing(*, samples: int = 4096, depth: int = DEPTH, width: int = WIDTH, seed: int = 0) -> Mixing:
    """Return avalanches of all known ciphers and random networks, of a trained network, and mixing times of patterns."""
    from steptime.reversible.dependency_patterns import known_times

    samples = whole_number("samples", samples, minimum=100, maximum=MOST_SAMPLES)
    seed = int(whole_number("seed", seed, minimum=0))
    ciphers = [cipher_curve(name, samples=samples, seed=seed) for name in CIPHERS]
    nets = [network_curve(name, depth=depth, width=width, samples=min(samples, 1024), seed=seed) for name in networks.KINDS]
    return Mixing(curves=(*ciphers, *nets), trained=networks.trained_and_random(seed=seed), rounds=known_times())
