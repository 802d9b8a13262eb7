r"""Feistel rounds and additive coupling: invertible for any round function.

Lecture section 18. A round maps two halves to $(x, y) \to (y, x + f(y))$; its inverse is $(a, b) \to (b - f(a), a)$.
The function $f$ need not be invertible, because the half that it reads is kept. In a cipher $f$ is secret; in a
reversible residual network it is a layer.

The functions work on whole numbers of any size, on bits, and on arrays and tensors of numpy and PyTorch. The inverse
is exact with XOR and with addition of whole numbers. For floats it is rounded, as follows.

Each round adds once forward and subtracts once backward, so a half gains two rounding errors. An error in the half
that $f$ reads is multiplied by the Lipschitz constant $L$ of $f$. An error in the other half is carried over:

$$ d_{k+1} = d_{k-1} + L d_k + r, \qquad r = u \, (2 + \ell) \, m. $$

Here $u$ is the unit roundoff, $m$ the largest absolute value, and $\ell$ the error of computing $f$ in roundoffs of
$m$. For $L = 0$ the error grows with half the rounds, else by a factor $(L + \sqrt{L^2 + 4}) / 2$ per round.
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
    """Return the unit roundoff of a float format.

    Args:
        dtype: float64, float32, float16 or bfloat16.

    Returns:
        Half of the distance from 1 to the next number.

    Raises:
        UnknownName: The format is unknown.

    >>> unit_roundoff("bfloat16")
    0.00390625
    """
    if dtype not in UNIT_ROUNDOFF:
        raise UnknownName("format of floats", dtype, UNIT_ROUNDOFF, "Known: " + ", ".join(UNIT_ROUNDOFF) + ".")
    return UNIT_ROUNDOFF[dtype]


def growth(lipschitz: Number) -> Number:
    r"""Return the long-run growth factor of an error per round.

    $(L + \sqrt{L^2 + 4}) / 2$

    Args:
        lipschitz: Lipschitz constant L of the round functions, at least 0.

    Returns:
        Factor per round, with the shape of `lipschitz`.

    >>> float(growth(0.0)), round(float(growth(1.0)), 4)
    (1.0, 1.618)
    """
    lipschitz = at_least_zero("the Lipschitz constant", lipschitz)
    factor: Number = (lipschitz + np.sqrt(np.square(lipschitz) + 4)) / 2
    return factor


def recovery_bound(
    rounds: int, *, magnitude: Number, lipschitz: Number, dtype: str = "float32", evaluation: Number = 0
) -> Number:
    """Return the largest absolute error of a half after rounds and their inverse.

    Args:
        rounds: Number of rounds, 0 to 100,000.
        magnitude: Largest absolute value of any half on the way.
        lipschitz: Lipschitz constant of the round functions in the maximum norm.
        dtype: Float format of the halves.
        evaluation: Error of computing the function, forward and backward together, in roundoffs of `magnitude`.

    Returns:
        Error in the unit of `magnitude`, with its shape.

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
        # The error of a half depends on the errors of the last two rounds.
        before, error = error, before + lipschitz * error + round_error
    return np.maximum(before, error) if np.ndim(error) else max(float(before), float(error))


Function = Callable[[Any], Any]
# Largest width of a block [bits].
MOST_BITS = 1 << 20


@dataclass(frozen=True, slots=True)
class Joining:
    """An operation that joins a half with a function's output, and its inverse."""

    name: str
    join: Callable[[Any, Any], Any]
    part: Callable[[Any, Any], Any]


XOR = Joining("xor", operator.xor, operator.xor)
"""Addition over GF(2), bit by bit; it is its own inverse."""

ADD = Joining("add", operator.add, operator.sub)
"""Addition: exact for whole numbers (fixed-width integers wrap around), rounded for floats."""


def modular(bits: int) -> Joining:
    """Return addition modulo 2**bits, as ARX ciphers use it.

    Args:
        bits: Width of the numbers [bits].

    Returns:
        Addition and subtraction modulo 2**bits.

    >>> modular(8).join(250, 10), modular(8).part(4, 10)
    (4, 250)
    """
    mask = (1 << whole_number("bits", bits, maximum=MOST_BITS)) - 1
    return Joining(f"add modulo 2**{bits}", lambda a, b: (a + b) & mask, lambda a, b: (a - b) & mask)


def forward(left_half: Any, right_half: Any, rounds: Sequence[Function], how: Joining = XOR) -> tuple[Any, Any]:
    """Apply Feistel rounds to two halves, first round first.

    Args:
        left_half: Number, array or tensor.
        right_half: Number, array or tensor of the same shape.
        rounds: Round functions that keep the shape.
        how: Operation that joins the output of a function with a half.

    Returns:
        Left and right half after the last round.

    Raises:
        InputError: A function changes the shape of its half.
        RangeError: A half or an output contains NaN.

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
    """Apply the inverse of `forward`.

    Args:
        left_half: Left half after the rounds.
        right_half: Right half after the rounds.
        rounds: The round functions of `forward`, in the same order.
        how: The operation of `forward`.

    Returns:
        Left and right half before the first round.
    """
    _same_shape(left_half, right_half)
    for number, function in reversed(list(enumerate(rounds, 1))):
        left_half, right_half = how.part(right_half, _fitting(function(left_half), right_half, number)), left_half
    return left_half, right_half


def couple(x: Any, y: Any, f: Function, g: Function, how: Joining = ADD) -> tuple[Any, Any]:
    """Apply an additive coupling: x + f(y), then y + g(x).

    It equals two Feistel rounds without the exchange of halves.

    Args:
        x: First half.
        y: Second half, of the same shape.
        f: Function of y.
        g: Function of the new x.
        how: Operation that joins the output of a function with a half.

    Returns:
        Both halves after the coupling.

    References:
        RevNet, arXiv 1707.04585, equation 6.

    >>> couple(1, 2, lambda y: 10 * y, lambda x: x * x)
    (21, 443)
    >>> uncouple(21, 443, lambda y: 10 * y, lambda x: x * x)
    (1, 2)
    """
    # Two exchanges of the halves cancel.
    return forward(x, y, (f, g), how)


def uncouple(x: Any, y: Any, f: Function, g: Function, how: Joining = ADD) -> tuple[Any, Any]:
    """Apply the inverse of `couple`.

    Args:
        x: First half after the coupling.
        y: Second half after the coupling.
        f: The first function of `couple`.
        g: The second function of `couple`.
        how: The operation of `couple`.

    Returns:
        Both halves before the coupling.

    References:
        RevNet, arXiv 1707.04585, equation 7.
    """
    return inverse(x, y, (f, g), how)


def encrypt(block: int, width: int, rounds: Sequence[Function]) -> int:
    """Encrypt a block with Feistel rounds.

    Args:
        block: Whole number from 0 to 2**width - 1.
        width: Bits of the block, even.
        rounds: Round functions; only the bits of a half of their outputs count.

    Returns:
        Encrypted block.

    >>> hex(encrypt(0x1234, 16, [lambda half: half + 1])), hex(decrypt(0x3427, 16, [lambda half: half + 1]))
    ('0x3427', '0x1234')
    """
    left_half, right_half = split(block, width)
    return joined(*forward(left_half, right_half, _masked(rounds, width)), width)


def decrypt(block: int, width: int, rounds: Sequence[Function]) -> int:
    """Decrypt a block of `encrypt`.

    Args:
        block: Encrypted block.
        width: Bits of the block, even.
        rounds: The round functions of `encrypt`, in the same order.

    Returns:
        Block before encryption.
    """
    left_half, right_half = split(block, width)
    return joined(*inverse(left_half, right_half, _masked(rounds, width)), width)


def split(block: int, width: int) -> tuple[int, int]:
    """Split a block into two halves; the upper bits are the left half.

    Args:
        block: Whole number from 0 to 2**width - 1.
        width: Bits of the block, even.

    Returns:
        Left and right half.

    Raises:
        RangeError: The width is odd, or the block does not fit it.

    >>> split(0b1011_0010, 8)
    (11, 2)
    >>> split(1, 7)
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: the width of a block must be even, to have two halves, not 7 bits; use 6 or 8
    """
    half = half_width("the width of a block", width, "bits")
    if not 0 <= block < 1 << width:
        raise RangeError(f"a block of {width} bits must be from 0 to 2**{width} - 1, not {block}")
    return block >> half, block & ((1 << half) - 1)


def joined(left_half: int, right_half: int, width: int) -> int:
    """Join two halves to a block.

    Args:
        left_half: Upper bits.
        right_half: Lower bits.
        width: Bits of the block.

    Returns:
        Block of `width` bits.
    """
    return left_half << (width // 2) | right_half


def half_width(name: str, width: int, unit: str) -> int:
    """Return half of a width.

    Args:
        name: Name of the width in an error message.
        width: Width to halve, even.
        unit: Unit of the width in an error message.

    Returns:
        Half of the width.

    Raises:
        RangeError: The width is odd; the message names the nearest even widths.
    """
    width = whole_number(name, width, minimum=1, maximum=MOST_BITS)
    if width % 2:
        near = f"{width - 1} or {width + 1}" if width > 1 else "2"
        raise RangeError(f"{name} must be even, to have two halves, not {width} {unit}; use {near}")
    return width // 2


def _masked(rounds: Sequence[Function], width: int) -> list[Function]:
    mask = (1 << (width // 2)) - 1
    return [lambda half, function=function: function(half) & mask for function in rounds]  # type: ignore[misc]


def _same_shape(left_half: Any, right_half: Any) -> None:
    if _shape(left_half) != _shape(right_half):
        raise InputError(f"both halves must have the same shape, not {_shape(left_half)} and {_shape(right_half)}")
    _no_nan("the left half", left_half)
    _no_nan("the right half", right_half)


def _fitting(output: Any, half: Any, number: int) -> Any:
    """Return the output of a round function; raise an error if it has no inverse."""
    if _shape(output) != _shape(half):
        raise InputError(
            f"the function of round {number} turns a half of shape {_shape(half)} into {_shape(output)}: a round that changes "
            "the shape has no inverse; keep the shape, or put this layer outside the rounds"
        )
    _no_nan(f"the output of the function of round {number}", output)
    return output


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _no_nan(name: str, value: Any) -> None:
    # Only NaN differs from itself, in numbers, arrays and tensors alike.
    wrong = value != value  # noqa: PLR0124
    if wrong is not False and bool(wrong if isinstance(wrong, bool) else wrong.any()):
        raise RangeError(f"{name} must be finite numbers, but contains NaN")
