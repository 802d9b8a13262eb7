r"""How far floats come back: the error of Feistel rounds that are undone in finite precision.

Each round adds once on the way and subtracts once on the way back, so that a half comes back with two roundings more. An error
in the half that $f$ reads is multiplied by the Lipschitz constant $L$ of $f$, and one in the other half is carried over:

$$ d_{k+1} = d_{k-1} + L d_k + r, \qquad r = u \, (2 + \ell) \, m $$

with unit roundoff $u$, values up to $m$, and $f$ computed to within $\ell$ roundoffs of $m$ at either time. For $L = 0$ it
grows with half the rounds, else by $(L + \sqrt{L^2 + 4}) / 2$ a round.

Feistel rounds and additive coupling: what undoes itself whatever its function is. Lecture section 18.

A round takes two halves to $(x, y) \to (y, x + f(y))$, and back by $(a, b) \to (b - f(a), a)$: the function need not be
invertible, for the half that it reads is kept. A cipher makes its secret $f$; a reversible residual network makes it a layer.

All works alike on whole numbers of any size, on bits, and on arrays and tensors of numpy and PyTorch. With XOR, and with
addition of whole numbers, the inverse is exact; of floats it is rounded (`rounding.py` says how much).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from steptime.errors import InputError, RangeError, UnknownName
from steptime.number_checks import Number, at_least_zero, positive, whole_number

UNIT_ROUNDOFF: Final = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half of the distance from 1 to the next number, by format. IEEE 754; bfloat16 has 8 significant bits."""
MOST_ROUNDS: Final = 100_000


def unit_roundoff(dtype: str) -> float:
    """Return the unit roundoff of a format of floats.

    >>> unit_roundoff("bfloat16")
    0.00390625
    """
    if dtype not in UNIT_ROUNDOFF:
        raise UnknownName("format of floats", dtype, UNIT_ROUNDOFF, "Known: " + ", ".join(UNIT_ROUNDOFF) + ".")
    return UNIT_ROUNDOFF[dtype]


def growth(lipschitz: Number) -> Number:
    r"""Factor by which an error grows in a round, in the long run: $(L + \sqrt{L^2 + 4}) / 2$.

    >>> float(growth(0.0)), round(float(growth(1.0)), 4)
    (1.0, 1.618)
    """
    lipschitz = at_least_zero("the Lipschitz constant", lipschitz)
    factor: Number = (lipschitz + np.sqrt(np.square(lipschitz) + 4)) / 2
    return factor


def recovery_bound(
    rounds: int, *, magnitude: Number, lipschitz: Number, dtype: str = "float32", evaluation: Number = 0
) -> Number:
    """Largest absolute error of a half that went through some rounds and back.

    magnitude: the largest absolute value of any half on the way; lipschitz: of the round functions, in the largest norm;
    evaluation [roundoffs of the magnitude]: how far a computed function may be off, both times together. -> [as magnitude]

    >>> recovery_bound(2, magnitude=1.0, lipschitz=0.0, dtype="float64") == 2 * 2.0**-53
    True
    >>> recovery_bound(64, magnitude=1.0, lipschitz=0.0) / recovery_bound(2, magnitude=1.0, lipschitz=0.0)
    32.0
    """
    whole_number("rounds", rounds, minimum=0, maximum=MOST_ROUNDS)
    positive("magnitude", magnitude)
    lipschitz = at_least_zero("the Lipschitz constant", lipschitz)
    round_error = unit_roundoff(dtype) * (2 + np.asarray(evaluation)) * magnitude
    before: Number = 0.0 * round_error * lipschitz
    error: Number = before
    for _ in range(rounds):
        before, error = error, before + lipschitz * error + round_error
    return np.maximum(before, error) if np.ndim(error) else max(float(before), float(error))


Function = Callable[[Any], Any]
MOST_BITS = 1 << 20  # of a block


@dataclass(frozen=True, slots=True)
class Joining:
    """How what a function gives is joined to the other half, and parted from it again."""

    name: str
    join: Callable[[Any, Any], Any]
    part: Callable[[Any, Any], Any]


XOR = Joining("xor", operator.xor, operator.xor)
"""Addition over GF(2), of bits and of whole numbers bit by bit: it undoes itself."""

ADD = Joining("add", operator.add, operator.sub)
"""Addition: exact for whole numbers (those of fixed width wrap around), rounded for floats."""


def modular(bits: int) -> Joining:
    """Return addition of whole numbers modulo 2**bits, as ciphers of additions and rotations use.

    >>> modular(8).join(250, 10), modular(8).part(4, 10)
    (4, 250)
    """
    mask = (1 << whole_number("bits", bits, maximum=MOST_BITS)) - 1
    return Joining(f"add modulo 2**{bits}", lambda a, b: (a + b) & mask, lambda a, b: (a - b) & mask)


def forward(left_half: Any, right_half: Any, rounds: Sequence[Function], how: Joining = XOR) -> tuple[Any, Any]:
    """Return both halves after some rounds, first round first.

    Raises InputError for a function that changes the shape of its half, and RangeError for NaN.

    >>> forward(0b1010, 0b0110, [lambda half: half * 7 % 16] * 2)
    (0, 6)
    >>> inverse(0, 6, [lambda half: half * 7 % 16] * 2) == (0b1010, 0b0110)
    True
    """
    _same_shape(left_half, right_half)
    for number, function in enumerate(rounds, 1):
        left_half, right_half = right_half, how.join(left_half, _fitting(function(right_half), left_half, number))
    return left_half, right_half


def inverse(left_half: Any, right_half: Any, rounds: Sequence[Function], how: Joining = XOR) -> tuple[Any, Any]:
    """Return both halves as they were before `forward` with the same rounds."""
    _same_shape(left_half, right_half)
    for number, function in reversed(list(enumerate(rounds, 1))):
        left_half, right_half = how.part(right_half, _fitting(function(left_half), right_half, number)), left_half
    return left_half, right_half


def couple(x: Any, y: Any, f: Function, g: Function, how: Joining = ADD) -> tuple[Any, Any]:
    """Return the halves after an additive coupling: x + f(y), then y + g of that. RevNet, arXiv 1707.04585, equation 6.

    Two Feistel rounds, the halves not exchanged.

    >>> couple(1, 2, lambda y: 10 * y, lambda x: x * x)
    (21, 443)
    >>> uncouple(21, 443, lambda y: 10 * y, lambda x: x * x)
    (1, 2)
    """
    _same_shape(x, y)
    x = how.join(x, _fitting(f(y), x, 1))
    return x, how.join(y, _fitting(g(x), y, 2))


def uncouple(x: Any, y: Any, f: Function, g: Function, how: Joining = ADD) -> tuple[Any, Any]:
    """Return the halves as they were before `couple` with the same functions. RevNet, equation 7."""
    _same_shape(x, y)
    y = how.part(y, _fitting(g(x), y, 2))
    return how.part(x, _fitting(f(y), x, 1)), y


def encrypt(block: int, width: int, rounds: Sequence[Function]) -> int:
    """Return a block of `width` bits after Feistel rounds; of what a function gives, the bits of a half are taken.

    >>> hex(encrypt(0x1234, 16, [lambda half: half + 1])), hex(decrypt(0x3427, 16, [lambda half: half + 1]))
    ('0x3427', '0x1234')
    """
    left_half, right_half = split(block, width)
    return joined(*forward(left_half, right_half, _masked(rounds, width)), width)


def decrypt(block: int, width: int, rounds: Sequence[Function]) -> int:
    """Return a block as it was before `encrypt` with the same rounds."""
    left_half, right_half = split(block, width)
    return joined(*inverse(left_half, right_half, _masked(rounds, width)), width)


def split(block: int, width: int) -> tuple[int, int]:
    """Return the halves of a block of `width` bits, the upper bits left.

    >>> split(0b1011_0010, 8)
    (11, 2)
    >>> split(1, 7)
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: the width of a block must be even, to have two halves, not 7 bits; 6 or 8 will do
    """
    half = half_width("the width of a block", width, "bits")
    if not 0 <= block < 1 << width:
        raise RangeError(f"a block of {width} bits must be from 0 to 2**{width} - 1, not {block}")
    return block >> half, block & ((1 << half) - 1)


def joined(left_half: int, right_half: int, width: int) -> int:
    """Return a block of `width` bits from its halves."""
    return left_half << (width // 2) | right_half


def half_width(name: str, width: int, unit: str) -> int:
    """Return half of a width; raise RangeError where it is odd, with the even ones beside it."""
    width = whole_number(name, width, minimum=1, maximum=MOST_BITS)
    if width % 2:
        near = f"{width - 1} or {width + 1}" if width > 1 else "2"
        raise RangeError(f"{name} must be even, to have two halves, not {width} {unit}; {near} will do")
    return width // 2


def _masked(rounds: Sequence[Function], width: int) -> list[Function]:
    mask = (1 << (width // 2)) - 1
    return [lambda half, function=function: function(half) & mask for function in rounds]  # type: ignore[misc]


def _same_shape(left_half: Any, right_half: Any) -> None:
    if _shape(left_half) != _shape(right_half):
        raise InputError(f"two halves must have one shape, not {_shape(left_half)} and {_shape(right_half)}")
    for name, half in (("left", left_half), ("right", right_half)):
        _no_nan(f"the {name} half", half)


def _fitting(output: Any, half: Any, number: int) -> Any:
    """Return what a function gave; raise where it cannot be undone."""
    if _shape(output) != _shape(half):
        raise InputError(
            f"the function of round {number} turns a half of shape {_shape(half)} into {_shape(output)}: a round that changes "
            "the shape cannot be undone; keep the shape, or put such a layer outside"
        )
    _no_nan(f"what the function of round {number} gives", output)
    return output


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _no_nan(name: str, value: Any) -> None:
    wrong = value != value  # noqa: PLR0124 - only NaN differs from itself, in any kind of number
    if wrong is not False and bool(wrong if isinstance(wrong, bool) else wrong.any()):
        raise RangeError(f"{name} must be finite numbers, and holds NaN")
