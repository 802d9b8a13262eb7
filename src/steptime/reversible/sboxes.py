"""Ciphers on many blocks at once (a toy Feistel cipher, Speck32/64 and AES-128), and S-boxes with their tables.

Lecture section 18. Each function of a cipher yields the blocks after every round, as bytes, so that mixing is visible. The
code is for analysis only: it has no protection against timing attacks or reads of memory.

The tables of an S-box are the derivatives of a cipher over GF(2). The difference distribution table counts
the output differences of each input difference, over all inputs. The linear approximation table counts how often a
sum of input bits equals a sum of output bits; here as Walsh values, the inputs that agree minus the others. An S-box
without a large entry in either table is hard to attack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.errors import InputError, UnknownName, short_repr
from steptime.number_checks import Array
from steptime.result_base import Tabular, unit

# Rounds of Speck32/64: Beaulieu et al., "The SIMON and SPECK families", 2013, table 4.1.
SPECK_ROUNDS: Final = 22
# Rounds of AES-128: FIPS 197, figure 4.
AES_ROUNDS: Final = 10


def feistel_rounds(blocks: Array, tables: Array) -> Iterator[Array]:
    """Yield the blocks after each round of a Feistel cipher.

    Args:
        blocks: Blocks [n x 4 bytes].
        tables: Round functions as lookup tables [rounds x 65,536] of 16 bits.

    Yields:
        Blocks [n x 4 bytes] after each round.

    Raises:
        InputError: The blocks are not rows of 4 bytes.

    >>> blocks = np.zeros((1, 4), dtype=np.uint8)
    >>> [bytes(block[0]).hex() for block in feistel_rounds(blocks, np.full((2, 65536), 0x1234, dtype=np.uint16))]
    ['00001234', '12341234']
    """
    left_half, right_half = np.ascontiguousarray(_of_bytes(blocks, 4)).view(">u2").T.astype(np.uint16)
    for table in tables:
        left_half, right_half = right_half, left_half ^ table[right_half]
        yield np.stack((left_half, right_half), axis=1).astype(">u2").view(np.uint8)


def random_tables(rounds: int, samples: np.random.Generator) -> Array:
    """Draw a random function of 16 bits for each round.

    Args:
        rounds: Number of rounds.
        samples: Random generator.

    Returns:
        Lookup tables [rounds x 65,536].
    """
    return samples.integers(0, 1 << 16, size=(rounds, 1 << 16), dtype=np.uint16)


def speck_rounds(blocks: Array, keys: Array) -> Iterator[Array]:
    """Yield the blocks after each round of Speck32/64.

    A round uses addition modulo 2**16, rotations and XOR. The doctest is the published test vector.

    Args:
        blocks: Blocks [n x 4 bytes].
        keys: Keys [n x 8 bytes], with the last word first, as printed in the paper.

    Yields:
        Blocks [n x 4 bytes] after each of 22 rounds.

    Raises:
        InputError: Blocks or keys have another size.

    References:
        Beaulieu et al., "The SIMON and SPECK families of lightweight block ciphers", 2013, section 4.1.

    >>> block, key = (np.frombuffer(bytes.fromhex(text), dtype=np.uint8) for text in ("6574694c", "1918111009080100"))
    >>> bytes(list(speck_rounds(block[None], key[None]))[-1][0]).hex()
    'a86842f2'
    """
    x, y = np.ascontiguousarray(_of_bytes(blocks, 4)).view(">u2").T.astype(np.uint16)
    words = np.ascontiguousarray(_of_bytes(keys, 8)).view(">u2").T.astype(np.uint16)
    key, later = words[3], [words[2], words[1], words[0]]
    for number in range(SPECK_ROUNDS):
        x, y = _speck_round(x, y, key)
        yield np.stack((x, y), axis=1).astype(">u2").view(np.uint8)
        # The key schedule is the same round function, with the round number as its key.
        mixed, key = _speck_round(later[number % 3], key, np.uint16(number))
        later[number % 3] = mixed


def _speck_round(x: Array, y: Array, key: Array | np.uint16) -> tuple[Array, Array]:
    x = ((x >> 7 | x << 9) + y) ^ key
    return x, (y << 2 | y >> 14) ^ x


def aes_rounds(blocks: Array, keys: Array, *, rows: bool = True, columns: bool = True) -> Iterator[Array]:
    """Yield the blocks after each round of AES-128.

    Args:
        blocks: Blocks [n x 16 bytes].
        keys: Keys [n x 16 bytes].
        rows: Whether ShiftRows runs; it mixes along the rows of the state.
        columns: Whether MixColumns runs; it mixes along the columns of the state.

    Yields:
        Blocks [n x 16 bytes] after each of 10 rounds; the last are the ciphertexts.

    Raises:
        InputError: Blocks or keys are not rows of 16 bytes.

    References:
        FIPS 197, section 5.

    >>> key = np.arange(16, dtype=np.uint8)[None]
    >>> bytes(list(aes_rounds(key * 17, key))[-1][0]).hex()
    '69c4e0d86a7b0430d8cdb78070b4c55a'
    """
    state, key, box = _of_bytes(blocks, 16), _of_bytes(keys, 16), aes_sbox()
    state, factor = state ^ key, 1
    for number in range(1, AES_ROUNDS + 1):
        key, factor = _next_key(key, factor, box), times_two(factor)
        state = box[state]
        state = state[:, SHIFTED] if rows else state
        # The last round of AES has no MixColumns.
        state = _mixed(state) if columns and number < AES_ROUNDS else state
        state = state ^ key
        yield state


SHIFTED: Final = np.array([(column + row) % 4 * 4 + row for column in range(4) for row in range(4)])
"""Source index of each byte of the state after ShiftRows: row r moves by r columns; bytes are stored by column."""


def _mixed(state: Array) -> Array:
    """Apply MixColumns: each byte becomes 2 a + 3 b + c + d of its column, cyclically."""
    column = state.reshape(-1, 4, 4)
    after = np.roll(column, -1, axis=2)
    twice = times_two((column ^ after).astype(np.uint16)).astype(np.uint8)
    other_bytes = after ^ np.roll(column, -2, axis=2) ^ np.roll(column, -3, axis=2)
    mixed: Array = (twice ^ other_bytes).reshape(state.shape)
    return mixed


def _next_key(key: Array, factor: int, box: Array) -> Array:
    """Return the key of the next round. FIPS 197, section 5.2."""
    words = key.reshape(-1, 4, 4)
    carried = box[np.roll(words[:, 3], -1, axis=1)]
    carried[:, 0] ^= np.uint8(factor)
    return np.bitwise_xor.accumulate(np.concatenate((carried[:, None], words), axis=1), axis=1)[:, 1:].reshape(key.shape)


def _of_bytes(values: Array, size: int) -> Array:
    values = np.asarray(values)
    if values.dtype != np.uint8 or values.ndim != 2 or values.shape[1] != size:
        raise InputError(f"blocks and keys must be rows of {size} bytes, not {values.dtype} of shape {values.shape}")
    return values


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
        inputs, outputs = np.indices(np.shape(self.differences))
        return {
            "input": inputs.ravel(), "output": outputs.ravel(), "inputs_of_difference": np.ravel(self.differences),
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
    boxes: dict[str, Any] = {"aes": aes_sbox(), "present": PRESENT}
    if isinstance(sbox, str) and sbox not in boxes:
        raise UnknownName("S-box", sbox, boxes, "Known: aes, present; or your outputs, separated by commas.")
    values = _checked(boxes[sbox] if isinstance(sbox, str) else sbox)
    return SboxCard(
        name=sbox if isinstance(sbox, str) else "own", bits=values.size.bit_length() - 1, values=tuple(values.tolist()),
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
