"""Feistel rounds and couplings undo themselves: exactly over bits and whole numbers, within a bound in floats."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from steptime.errors import InputError, RangeError
from steptime.reversible.feistel import (
    ADD,
    UNIT_ROUNDOFF,
    XOR,
    couple,
    decrypt,
    encrypt,
    forward,
    growth,
    inverse,
    modular,
    recovery_bound,
    split,
    uncouple,
)
from tests.conftest import each


def hashed(seed: int, number: int):
    """A round function that cannot be inverted: a hash of the half, as many bits as one likes."""
    return lambda half: int.from_bytes(hashlib.blake2b(f"{seed} {number} {half}".encode()).digest(), "big")


@given(half=some.integers(1, 128), rounds=some.integers(1, 64), seed=some.integers(0, 1 << 32), data=some.data())
def test_any_round_function_is_undone_bit_for_bit(half, rounds, seed, data):
    width = 2 * half
    block = data.draw(some.integers(0, (1 << width) - 1))
    functions = [hashed(seed, number) for number in range(rounds)]
    made = encrypt(block, width, functions)
    assert 0 <= made < 1 << width
    assert decrypt(made, width, functions) == block


@given(
    bits=some.integers(1, 128),
    rounds=some.integers(1, 64),
    left=some.integers(0),
    right=some.integers(0),
    modulus=some.booleans(),
)
def test_additions_of_whole_numbers_are_undone(bits, rounds, left, right, modulus):
    how = modular(bits) if modulus else ADD
    left, right = (half % (1 << bits) for half in (left, right))
    functions = [hashed(bits, number) for number in range(rounds)]
    assert inverse(*forward(left, right, functions, how), functions, how) == (left, right)
    assert uncouple(*couple(left, right, *functions[:1] * 2, how), *functions[:1] * 2, how) == (left, right)


@each("dtype, how", [("uint8", ADD), ("int64", ADD), ("uint16", XOR), ("int32", XOR), ("bool", XOR)])
def test_arrays_of_whole_numbers_are_undone_and_wrap_around(dtype, how):
    draw = np.random.default_rng(0)
    info = (0, 2) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    left, right = draw.integers(*info, size=(2, 1000), dtype="int64" if dtype == "bool" else dtype).astype(dtype)
    functions = [
        (lambda half, n=n: np.roll(half, n) if dtype == "bool" else half * half + np.array(n).astype(dtype)) for n in range(64)
    ]
    with np.errstate(over="ignore"):
        back = inverse(*forward(left, right, functions, how), functions, how)
    np.testing.assert_array_equal(back, (left, right))


def test_bits_of_gf2_and_whole_numbers_agree():
    """A round on arrays of bits is the round on the numbers that they write."""
    turn = 3
    as_number = forward(0b10110010, 0b01100101, [lambda half: ((half << turn) | (half >> (8 - turn))) & 255] * 5)
    bits = [np.array([int(bit) for bit in f"{number:08b}"], dtype=np.uint8) for number in (0b10110010, 0b01100101)]
    as_bits = forward(*bits, [lambda half: np.roll(half, -turn)] * 5)
    assert as_number == tuple(int("".join(map(str, half)), 2) for half in as_bits)


@each("dtype", ["float64", "float32"])
@each("slope", [0.0, 0.5, 1.0])
@each("rounds", [1, 8, 32])
def test_floats_come_back_within_the_bound(dtype, slope, rounds):
    """tanh(s x) has the Lipschitz constant s, and numpy computes it to within four roundoffs."""
    draw = np.random.default_rng(1)
    left, right = draw.uniform(-1, 1, size=(2, 4000)).astype(dtype)
    functions = [lambda half: np.tanh(half.dtype.type(slope) * half)] * rounds
    found = inverse(*forward(left, right, functions, ADD), functions, ADD)
    off = max(float(np.abs(a.astype(float) - b).max()) for a, b in zip(found, (left, right), strict=True))
    bound = recovery_bound(rounds, magnitude=1.0 + rounds * (slope > 0), lipschitz=slope, dtype=dtype, evaluation=8)
    assert off <= bound
    if rounds == 32 and slope:
        assert off > 0  # floats are not exact: the bound bounds something
    assert bound < UNIT_ROUNDOFF[dtype] * 33 * 10 * 33 * float(growth(slope)) ** rounds


def test_the_bound_grows_as_its_recurrence_says():
    assert recovery_bound(0, magnitude=1.0, lipschitz=1.0) == 0
    found = recovery_bound(40, magnitude=1.0, lipschitz=np.array([0.0, 1.0]), dtype="float64")
    assert found[0] == pytest.approx(20 * 2 * 2.0**-53)
    fibonacci = (1 + math.sqrt(5)) / 2
    longer = recovery_bound(41, magnitude=1.0, lipschitz=1.0, dtype="float64")
    assert longer / found[1] == pytest.approx(fibonacci, rel=1e-6) == pytest.approx(float(growth(1.0)), rel=1e-6)


@each("width", [1, 3, 7, 255])
def test_odd_widths_are_refused_with_the_even_ones_beside(width):
    with pytest.raises(RangeError, match=f"must be even.* not {width} bits; use .*{width + 1}|use 2"):
        split(0, width)


@each(
    "ask, says",
    [
        (lambda: split(256, 8), "must be from 0 to 2"),
        (lambda: forward(np.zeros(3), np.zeros(4), [], ADD), "same shape, not .3,. and .4,."),
        (lambda: forward(np.zeros(4), np.zeros(4), [lambda half: half[:2]], ADD), "turns a half of shape .4,. into .2,."),
        (lambda: couple(np.zeros(4), np.zeros(4), np.cos, lambda half: half.sum()), "round 2 .* has no inverse"),
        (lambda: forward(np.array([math.nan]), np.zeros(1), [np.cos], ADD), "left half must be finite .* NaN"),
        (lambda: forward(1.0, math.nan, [math.cos], ADD), "right half must be finite .* NaN"),
        (
            lambda: forward(np.zeros(1), np.zeros(1), [lambda half: half * math.nan], ADD),
            "function of round 1 must be finite .* NaN",
        ),
        (lambda: modular(0), "bits must be at least 1"),
        (lambda: recovery_bound(3, magnitude=math.nan, lipschitz=0.0), "magnitude must be a finite number"),
        (lambda: recovery_bound(3, magnitude=1.0, lipschitz=0.0, dtype="float8"), "unknown format of floats 'float8'"),
    ],
)  # fmt: skip
def test_what_cannot_be_undone_is_named(ask, says):
    with pytest.raises(InputError, match=says):
        ask()


@pytest.mark.slow
def test_tensors_go_the_same_way():
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    draw = torch.Generator().manual_seed(0)
    for dtype, how in ((torch.int64, XOR), (torch.uint8, ADD), (torch.int32, ADD)):
        halves = torch.randint(0, 255, (2, 50), generator=draw).to(dtype).unbind()
        functions = [lambda half: half * half + 3] * 64
        back = inverse(*forward(*halves, functions, how), functions, how)
        assert all(torch.equal(a, b) for a, b in zip(back, halves, strict=True))
    with pytest.raises(RangeError, match="NaN"):
        forward(torch.tensor([math.nan]), torch.zeros(1), [torch.cos], ADD)
