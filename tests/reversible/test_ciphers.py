"""Ciphers give what their standards and a public implementation give; avalanches are as predicted."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.errors import InputError
from steptime.reversible import avalanche as mixing
from steptime.reversible import random_networks as networks
from steptime.reversible.sboxes import aes_rounds, feistel_rounds, random_tables, speck_rounds
from tests.conftest import each


def of_hex(text):
    return np.frombuffer(bytes.fromhex(text), dtype=np.uint8)[None]


def last(rounds):
    return list(rounds)[-1]


@pytest.mark.parametrize(
    ("key", "block", "made"),
    [
        # FIPS 197, appendices B and C.1
        ("2b7e151628aed2a6abf7158809cf4f3c", "3243f6a8885a308d313198a2e0370734", "3925841d02dc09fbdc118597196a0b32"),
        ("000102030405060708090a0b0c0d0e0f", "00112233445566778899aabbccddeeff", "69c4e0d86a7b0430d8cdb78070b4c55a"),
    ],
)
def test_aes_gives_what_fips_197_gives(key, block, made):
    assert bytes(last(aes_rounds(of_hex(block), of_hex(key)))[0]).hex() == made


def test_aes_is_after_its_first_round_as_fips_197_shows():
    """Appendix C.1: round[2].start, which is the state after the first round."""
    states = aes_rounds(of_hex("00112233445566778899aabbccddeeff"), of_hex("000102030405060708090a0b0c0d0e0f"))
    assert bytes(next(iter(states))[0]).hex() == "89d810e8855ace682d1843d8cb128fe4"


def test_speck_gives_the_vector_of_its_paper():
    """Beaulieu et al., 2013, appendix C."""
    made = last(speck_rounds(of_hex("6574694c"), of_hex("1918111009080100")))
    assert bytes(made[0]).hex() == "a86842f2"


def test_the_toy_is_a_feistel_cipher():
    from steptime.reversible.feistel import encrypt

    tables = random_tables(5, np.random.default_rng(0))
    made = last(feistel_rounds(of_hex("01234567"), tables))
    assert int(bytes(made[0]).hex(), 16) == encrypt(0x01234567, 32, [lambda half, t=t: int(t[half]) for t in tables])


@pytest.mark.slow
def test_aes_is_a_public_implementation_and_flips_half_its_bits():
    """10,000 random keys and each of the 128 bits of a block flipped, encrypted by PyCryptodome: 64 bits flip, to 0.1 %."""
    aes = pytest.importorskip("Crypto.Cipher.AES", reason="the oracle is PyCryptodome, of the extra oracle")
    draw = np.random.default_rng(0)
    keys, block = draw.integers(0, 256, size=(2, 10_000, 16), dtype=np.uint8)
    ones = np.zeros((129, 16), dtype=np.uint8)
    ones[np.arange(1, 129), np.arange(128) // 8] = 1 << np.arange(128) % 8
    flips, same = 0, True
    for key, plain in zip(keys, block, strict=True):
        asked = plain ^ ones
        made = np.frombuffer(aes.new(key.tobytes(), aes.MODE_ECB).encrypt(asked.tobytes()), dtype=np.uint8).reshape(129, 16)
        flips += int(mixing.BITS[made[1:] ^ made[0]].sum())
    ours = last(aes_rounds(block, keys))
    made = [aes.new(key.tobytes(), aes.MODE_ECB).encrypt(plain.tobytes()) for key, plain in zip(keys, block, strict=True)]
    same = ours.tobytes() == b"".join(made)
    assert same
    mean = flips / (10_000 * 128)
    assert mean == pytest.approx(64, rel=1e-3)
    found = mixing.cipher_curve("AES-128", samples=200_000)
    assert found.shares[-1] * 128 == pytest.approx(mean, abs=5 * found.errors[-1] * 128)


# --- avalanche ----------------------------------------------------------------------------------------------------------


def test_a_feistel_cipher_flips_as_predicted():
    """1 bit where the left half differs, else 1 + 16/2 of 32 after the first round; half from the third on."""
    found = mixing.cipher_curve("Feistel, random functions", samples=40_000)
    assert mixing.feistel_expected(1, 16)[0] == pytest.approx((1 + 1 + 8) / 2 / 32)
    for share, error, expected in zip(found.shares, found.errors, found.expected, strict=True):
        # one draw of tables serves all samples, so that its own scatter stays
        assert share == pytest.approx(expected, abs=5 * error + 2e-3)
    assert 0.49 < found.shares[15] < 0.51


def test_narrow_halves_are_counted_exactly():
    """With functions of one bit all is counted: four functions a round, four blocks, four flips."""
    from itertools import product

    from steptime.reversible.feistel import encrypt

    for rounds in (1, 2, 3):
        flips = total = 0
        for tables in product(product((0, 1), repeat=2), repeat=rounds):
            functions = [lambda half, t=t: t[half] for t in tables]
            for block, bit in product(range(4), (1, 2)):
                flips += (encrypt(block, 2, functions) ^ encrypt(block ^ bit, 2, functions)).bit_count()
                total += 2
        assert mixing.feistel_expected(rounds, 1)[-1] == pytest.approx(flips / total)


def test_rows_and_columns_are_both_needed():
    """A byte stays in its place without MixColumns, in its column without ShiftRows: 4 bits of 8, 16 of 32 of 128."""
    curves = {name: mixing.cipher_curve(name, samples=20_000) for name in mixing.CIPHERS if name.startswith("AES")}
    assert curves["AES-128"].shares[0] == pytest.approx(16 / 128, abs=0.005)
    assert all(share == pytest.approx(0.5, abs=0.005) for share in curves["AES-128"].shares[1:])
    assert curves["AES without ShiftRows"].shares[-1] == pytest.approx(16 / 128, abs=0.002)
    assert curves["AES without MixColumns"].shares[-1] == pytest.approx(4 / 128, abs=0.001)
    assert mixing.cipher_curve("Speck32/64 (ARX)", samples=20_000).shares[-1] == pytest.approx(0.5, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("name", networks.KINDS)
def test_random_networks_flip_as_the_correlation_map_says(name):
    """Exact for endless width: networks of 512 are within 6 %, and the error of sampling."""
    wide = mixing.network_curve(name, depth=6, width=512, samples=512)
    for share, error, expected in zip(wide.shares, wide.errors, wide.expected, strict=True):
        assert share == pytest.approx(expected, rel=0.06, abs=4 * error)


@pytest.mark.thorough
def test_residual_paths_with_layer_norms_keep_inputs_together():
    curves = {name: networks.expected_shares(64, 256, residual=r, normed=n) for name, (r, n) in networks.KINDS.items()}
    assert curves["network, random"][-1] > 0.45
    assert curves["network with residual paths and layer norm"][-1] < 0.07
    assert networks.expected_shares(1, 256, residual=False, normed=False)[0] == pytest.approx(np.arccos(1 - 2 / 256) / np.pi)
    tame = networks.expected_shares(64, 256, residual=False, normed=False, gain=0.9)
    assert tame[0] < tame[-1] < 1.2 * tame[0]  # below 1 values shrink until tanh is a line, and then nothing parts


@pytest.mark.thorough
def test_training_undoes_the_avalanche():
    """The majority of five flips with one vote in 6 of 16 cases, and one group of seven votes."""
    found = networks.trained_and_random()
    assert found.expected == pytest.approx(6 / 16 / 7)
    assert found.accuracy > 0.99
    assert found.trained == pytest.approx(found.expected, rel=0.1)
    assert found.random > 2 * found.trained


def test_slopes_are_those_of_the_loss():
    draw = np.random.default_rng(0)
    weights = [draw.normal(0, 0.3, shape) for shape in ((35, 8), (8, 7))]
    x = draw.choice((-1.0, 1.0), size=(16, 35))

    def loss():
        return float(np.log1p(np.exp(-networks._votes(x) * networks._outputs(x, weights)[-1])).sum() / len(x))

    slopes = networks._slopes(x, weights)
    for layer, place in ((0, (3, 2)), (1, (5, 6))):
        before = weights[layer][place]
        values = []
        for step in (1e-5, -1e-5):
            weights[layer][place] = before + step
            values.append(loss())
        weights[layer][place] = before
        assert slopes[layer][place] == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5)


@each(
    "ask, says",
    [
        (lambda: mixing.cipher_curve("DES"), "unknown cipher 'DES'"),
        (lambda: mixing.network_curve("AES"), "unknown kind of network 'AES'"),
        (lambda: mixing.mixing(samples=5), "samples must be at least 100"),
        (lambda: list(aes_rounds(np.zeros((1, 15), dtype=np.uint8), np.zeros((1, 16), dtype=np.uint8))), "rows of 16 bytes"),
        (lambda: list(aes_rounds(np.full((1, 16), np.nan), np.zeros((1, 16), dtype=np.uint8))), "not float64 of shape"),
    ],
)
def test_bad_input_is_named(ask, says):
    with pytest.raises(InputError, match=says):
        ask()
