"""Ciphers on many blocks at once: a toy Feistel cipher, Speck32/64 and AES-128.

Lecture section 18. Each function yields the blocks after every round, as bytes, so that mixing is visible. The code
is for analysis only: it has no protection against timing attacks or reads of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from steptime.errors import InputError
from steptime.number_checks import Array
from steptime.reversible.sboxes import aes_sbox, times_two

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
