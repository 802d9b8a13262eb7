"""S-boxes: difference distribution and linear approximation tables.

Lecture section 18. The tables are the derivatives of a cipher over GF(2). The difference distribution table counts
the output differences of each input difference, over all inputs. The linear approximation table counts how often a
sum of input bits equals a sum of output bits; here as Walsh values, the inputs that agree minus the others. An S-box
without a large entry in either table is hard to attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.errors import InputError, UnknownName, short_repr
from steptime.number_checks import Array
from steptime.result_base import Tabular, unit

PRESENT: Final = (0xC, 0x5, 0x6, 0xB, 0x9, 0x0, 0xA, 0xD, 0x3, 0xE, 0xF, 0x8, 0x4, 0x7, 0x1, 0x2)
"""S-box of PRESENT. Bogdanov et al., CHES 2007, section 3; ISO/IEC 29192-2."""
MOST_ENTRIES: Final = 1 << 10


def aes_sbox() -> Array:
    """Return the S-box of AES: the inverse in GF(2**8), then an affine map.

    Returns:
        The 256 outputs.

    References:
        FIPS 197, section 5.1.1.

    >>> [hex(value) for value in aes_sbox()[:4]]
    ['0x63', '0x7c', '0x77', '0x7b']
    """
    logs, powers = np.zeros(256, dtype=np.int64), np.zeros(255, dtype=np.int64)
    value = 1
    # 3 generates all elements of the field except 0.
    for power in range(255):
        powers[power], logs[value] = value, power
        value ^= times_two(value)
    inverse = np.append(0, powers[(255 - logs[1:]) % 255])
    turned = [(inverse << shift | inverse >> (8 - shift)) & 255 for shift in range(5)]
    box: Array = (np.bitwise_xor.reduce(turned) ^ 0x63).astype(np.uint8)
    return box


def times_two(value: Any) -> Any:
    """Double a byte in the field of AES, x**8 + x**4 + x**3 + x + 1.

    Args:
        value: Byte, or array of bytes wide enough for a ninth bit.

    Returns:
        Doubled value, with the shape of `value`.

    >>> hex(times_two(0x80)), hex(times_two(0x57))
    ('0x1b', '0xae')
    """
    return ((value << 1) & 0xFF) ^ ((value >> 7) * 0x1B)


def difference_table(sbox: Sequence[int] | Array) -> Array:
    """Return the difference distribution table of an S-box.

    Entry (a, b) is the number of inputs x with S(x) ^ S(x ^ a) = b.

    Args:
        sbox: Outputs in the order of inputs.

    Returns:
        Counts [input differences x output differences].

    >>> difference_table(PRESENT)[1].tolist()
    [0, 0, 0, 4, 0, 0, 0, 4, 0, 4, 0, 0, 0, 4, 0, 0]
    """
    box = _checked(sbox)
    every = np.arange(box.size)
    out = box[:, None] ^ box[every[:, None] ^ every]
    table = np.zeros((box.size, _outputs(box)), dtype=np.int64)
    np.add.at(table, (every, out), 1)
    return table


def walsh_table(sbox: Sequence[int] | Array) -> Array:
    """Return the Walsh values of an S-box.

    Entry (a, b) is the sum over x of (-1)**(a.x ^ b.S(x)), which is twice the bias, counted in inputs.

    Args:
        sbox: Outputs in the order of inputs.

    Returns:
        Values [sums of input bits x sums of output bits].

    >>> walsh_table(PRESENT)[1].tolist()
    [0, 0, 0, 0, 0, -8, 0, -8, 0, 0, 0, 0, 0, -8, 0, 8]
    """
    box = _checked(sbox)
    table: Array = _signs(box.size) @ _signs(_outputs(box))[box]
    return table


def differential_uniformity(sbox: Sequence[int] | Array) -> int:
    """Return the largest entry of the difference table; the best possible is 2.

    Args:
        sbox: Outputs in the order of inputs.

    Returns:
        Number of inputs.

    >>> differential_uniformity(PRESENT), differential_uniformity(aes_sbox())
    (4, 4)
    """
    return int(difference_table(sbox)[1:].max())


def largest_walsh(sbox: Sequence[int] | Array) -> int:
    """Return the largest absolute Walsh value of any sum of output bits.

    Args:
        sbox: Outputs in the order of inputs.

    Returns:
        Number of inputs that agree minus those that do not.

    >>> largest_walsh(PRESENT), largest_walsh(aes_sbox())
    (8, 32)
    """
    return int(np.abs(walsh_table(sbox)[:, 1:]).max())


def nonlinearity(sbox: Sequence[int] | Array) -> int:
    """Return the distance of an S-box from the nearest affine function.

    Args:
        sbox: Outputs in the order of inputs.

    Returns:
        Smallest number of inputs on which a sum of output bits differs from an affine function.

    >>> nonlinearity(PRESENT), nonlinearity(aes_sbox())
    (4, 112)
    """
    return (len(sbox) - largest_walsh(sbox)) // 2


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SboxCard(Tabular):
    """An S-box with its tables (`steptime reversible sboxes`)."""

    SCHEMA: ClassVar[str] = "steptime.sbox/2"

    name: str = field(metadata=unit("", "name of the S-box; own: outputs were given"))
    bits: int = field(metadata=unit("", "bits of input and of output"))
    values: tuple[int, ...] = field(metadata=unit("", "outputs in the order of inputs"))
    bijective: bool = field(metadata=unit("", "whether each output occurs once"))
    uniformity: int = field(metadata=unit("", "largest number of inputs with one input and one output difference"))
    walsh: int = field(
        metadata=unit("", "largest Walsh value: inputs on which the best linear approximation is right, minus the others")
    )
    nonlinearity: int = field(metadata=unit("", "inputs on which the nearest affine function is wrong"))
    differences: tuple[tuple[int, ...], ...] = field(
        metadata=unit("", "difference distribution table, one row per input difference", kind="list of lists")
    )
    approximations: tuple[tuple[int, ...], ...] = field(
        metadata=unit("", "Walsh values, one row per sum of input bits", kind="list of lists")
    )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the strength against differential and linear attacks.

        Returns:
            Title, and figures by name.
        """
        size = len(self.values)
        return f"S-box {self.name}: {self.bits} bits" + ("" if self.bijective else ", not bijective"), {
            "differential uniformity": f"{self.uniformity} of {size} inputs",
            "largest Walsh value": f"{self.walsh} of {size}",
            "nonlinearity": f"{self.nonlinearity}",
        }

    def columns(self) -> dict[str, Any]:
        """Return one row per pair of input and output, as differences and as sums of bits.

        Returns:
            Columns by name, each with one value per pair.
        """
        size = len(self.values)
        input_differences, output_differences = np.divmod(np.arange(size * len(self.differences[0])), len(self.differences[0]))
        return {
            "input": input_differences, "output": output_differences, "inputs_of_difference": np.ravel(self.differences),
            "walsh_value": np.ravel(self.approximations),
        }  # fmt: skip


def sbox_card(sbox: str | Sequence[int]) -> SboxCard:
    """Return an S-box with its tables and strength.

    Args:
        sbox: aes, present, or your outputs in the order of inputs.

    Returns:
        Tables and figures of the S-box.

    Raises:
        UnknownName: The name is unknown.
        InputError: The outputs are not an S-box.

    >>> sbox_card("aes").nonlinearity
    112
    """
    if isinstance(sbox, str) and sbox not in ("aes", "present"):
        raise UnknownName("S-box", sbox, ("aes", "present"), "Known: aes, present; or your outputs, separated by commas.")
    name = sbox if isinstance(sbox, str) else "own"
    values = _checked(sbox if not isinstance(sbox, str) else aes_sbox() if sbox == "aes" else PRESENT)
    return SboxCard(
        name=name, bits=values.size.bit_length() - 1, values=tuple(values.tolist()),
        bijective=len(set(values.tolist())) == values.size, uniformity=differential_uniformity(values),
        walsh=largest_walsh(values), nonlinearity=nonlinearity(values),
        differences=tuple(map(tuple, difference_table(values).tolist())),
        approximations=tuple(map(tuple, walsh_table(values).tolist())),
    )  # fmt: skip


def _signs(size: int) -> Array:
    """Return (-1)**(a.x) for all a and x: the Hadamard matrix."""
    signs = np.ones((1, 1), dtype=np.int64)
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])
    return signs


def _outputs(box: Array) -> int:
    return max(box.size, 1 << int(box.max()).bit_length())


def _checked(sbox: Sequence[int] | Array) -> Array:
    """Return an S-box as whole numbers; raise InputError if it is not an S-box."""
    box = np.asarray(sbox)
    if box.ndim != 1 or box.dtype.kind not in "iu" or not 2 <= box.size <= MOST_ENTRIES or box.size & (box.size - 1):
        raise InputError(f"an S-box must have 2, 4, 8, ... up to {MOST_ENTRIES:,} whole numbers, not {short_repr(sbox)}")
    if box.min() < 0 or box.max() >= box.size:
        raise InputError(f"an S-box of {box.size} inputs must have outputs from 0 to {box.size - 1}, not {short_repr(sbox)}")
    return box.astype(np.int64)
