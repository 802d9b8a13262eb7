"""Rounds until each output depends on each input, against what is counted by hand and known of ciphers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from steptime.errors import InputError
from steptime.reversible import avalanche
from steptime.reversible.avalanche import mixing_time, reached
from steptime.reversible.sboxes import aes_rounds
from tests.conftest import each


@each("power", [1, 3, 7])
def test_a_butterfly_takes_the_logarithm(power):
    assert mixing_time(avalanche.butterfly(2**power)) == power


@each("size, box, rounds", [(64, 4, 3), (16, 4, 2), (81, 3, 4), (256, 2, 8)])
def test_a_shuffle_takes_the_logarithm_to_the_base_of_its_boxes(size, box, rounds):
    assert mixing_time(avalanche.shuffle(size, box)) == rounds


@each("size, reach", [(64, 1), (64, 8), (65, 8), (10, 9)])
def test_a_window_takes_the_distance_over_its_reach(size, reach):
    assert mixing_time(avalanche.window(size, reach)) == math.ceil((size - 1) / reach)


def test_what_is_known_of_ciphers():
    """AES: two rounds (The Design of Rijndael, section 9.5.1); a Feistel cipher whose function mixes all: three."""
    assert mixing_time(avalanche.aes()) == 2
    assert mixing_time(avalanche.feistel(16)) == 3
    assert mixing_time(avalanche.grid(4, 9)) == 2


def test_what_never_mixes():
    assert mixing_time(avalanche.window(64, 63, causal=True)) == math.inf
    assert mixing_time(avalanche.window(64, 0)) == math.inf
    assert mixing_time(lambda number: np.kron(np.eye(2, dtype=bool), np.ones((3, 3), dtype=bool))) == math.inf


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_pattern_of_aes_is_what_aes_does(rounds):
    """Flip each byte of a block in turn: the bytes that differ after a round are those that the pattern reaches."""
    draw = np.random.default_rng(0)
    key, found = np.zeros((256, 16), dtype=np.uint8), np.zeros((16, 16), dtype=bool)
    blocks = draw.integers(0, 256, size=(256, 16), dtype=np.uint8)
    for byte in range(16):
        other = blocks.copy()
        other[:, byte] ^= draw.integers(1, 256, size=256, dtype=np.uint8)
        states = [list(aes_rounds(each, key))[rounds - 1] for each in (blocks, other)]
        found[:, byte] = (states[0] != states[1]).any(axis=0)
    np.testing.assert_array_equal(found, reached(avalanche.aes(), rounds))


def test_all_known_patterns_have_a_time():
    times = avalanche.known_times()
    assert len(times) == len(avalanche.KNOWN_PATTERNS)
    assert sum(math.isinf(rounds) for rounds in times.values()) == 1


@each(
    "ask, says",
    [
        (lambda: avalanche.butterfly(48), "power of 2, not 48; use 32 or 64"),
        (lambda: avalanche.shuffle(48, 4), "power of 4, not 48; use 16 or 64"),
        (lambda: avalanche.window(0, 1), "the size of a pattern must be at least 1"),
        (lambda: mixing_time(lambda number: np.ones((2, 3), dtype=bool)), "boolean matrix"),
        (lambda: avalanche.known_times(["AES"]), "unknown pattern 'AES'"),
    ],
)
def test_bad_input_is_named(ask, says):
    with pytest.raises(InputError, match=says):
        ask()
