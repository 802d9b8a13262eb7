"""S-boxes: the values that are published of AES and PRESENT, and laws of all difference and approximation tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from steptime.errors import InputError
from steptime.reversible import sboxes
from steptime.reversible.sboxes import PRESENT, aes_sbox, difference_table, sbox_card, walsh_table
from tests.conftest import each

# Difference distribution table of PRESENT's S-box: M. Wang, "Differential Cryptanalysis of Reduced-Round PRESENT", AFRICACRYPT
# 2008, table 1, https://doi.org/10.1007/978-3-540-68164-9_4 (recalled), as public code that searches for trails has it
# ("PRESENT Differential Table", read on 2026-11-22).
PUBLISHED = """
16 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
0 0 0 4 0 0 0 4 0 4 0 0 0 4 0 0
0 0 0 2 0 4 2 0 0 0 2 0 2 2 2 0
0 2 0 2 2 0 4 2 0 0 2 2 0 0 0 0
0 0 0 0 0 4 2 2 0 2 2 0 2 0 2 0
0 2 0 0 2 0 0 0 0 2 2 2 4 2 0 0
0 0 2 0 0 0 2 0 2 0 0 4 2 0 0 4
0 4 2 0 0 0 2 0 2 0 0 0 2 0 0 4
0 0 0 2 0 0 0 2 0 2 0 4 0 2 0 4
0 0 2 0 4 0 2 0 2 0 0 0 2 0 4 0
0 0 2 2 0 4 0 0 2 0 2 0 0 2 2 0
0 2 0 0 2 0 0 0 4 2 2 2 0 2 0 0
0 0 2 0 0 4 0 2 2 2 2 0 0 0 2 0
0 2 4 2 2 0 0 2 0 0 2 2 0 0 0 0
0 0 2 2 0 0 2 2 2 2 0 0 2 2 0 0
0 4 0 0 4 0 0 0 0 0 0 0 0 0 4 4
"""


def test_aes_is_as_strong_as_published():
    """Daemen and Rijmen, The Design of Rijndael, section 3.4.1: differences at most 4 of 256, correlations at most 2**-3."""
    box = aes_sbox()
    assert sorted(box.tolist()) == list(range(256))
    assert sboxes.differential_uniformity(box) == 4
    assert sboxes.largest_walsh(box) == 32
    assert sboxes.nonlinearity(box) == 112
    assert (difference_table(box)[1:] == 4).sum(axis=1).tolist() == [1] * 255  # one difference each comes four times


def test_aes_sbox_has_the_rows_of_fips_197():
    """Figure 7: the first and the last row, and S(53) = ed of its text."""
    box = aes_sbox()
    assert bytes(box[:16]).hex() == "637c777bf26b6fc53001672bfed7ab76"
    assert bytes(box[-16:]).hex() == "8ca1890dbfe6426841992d0fb054bb16"
    assert box[0x53] == 0xED


def test_the_table_of_present_is_the_published_one():
    published = np.array([row.split() for row in PUBLISHED.split("\n") if row], dtype=int)
    np.testing.assert_array_equal(difference_table(PRESENT), published)


def test_present_meets_its_own_criteria():
    """Bogdanov et al., CHES 2007, section 4.3: four criteria of differences and of the Fourier coefficient."""
    differences, walsh = difference_table(PRESENT), walsh_table(PRESENT)
    single = [1, 2, 4, 8]
    assert differences[1:, 1:].max() == 4
    assert (differences[np.ix_(single, single)] == 0).all()
    assert np.abs(walsh[1:, 1:]).max() == 8
    assert (np.abs(walsh[np.ix_(single, single)]) <= 4).all()


@given(box=some.permutations(range(16)) | some.lists(some.integers(0, 7), min_size=8, max_size=8))
def test_laws_of_the_tables(box):
    differences, walsh, size = difference_table(box), walsh_table(box), len(box)
    assert (differences.sum(axis=1) == size).all()
    assert differences[0].tolist() == [size] + [0] * (differences.shape[1] - 1)
    assert (differences % 2 == 0).all()
    assert ((walsh**2).sum(axis=0) == size**2).all()  # Parseval
    every = np.arange(size)
    for a, b in ((1, 1), (3, 2), (size - 1, 5)):  # both tables by their definition
        assert differences[a, b] == sum(box[x] ^ box[x ^ a] == b for x in every)
        parity = [(int(a & x).bit_count() + int(b & box[x]).bit_count()) % 2 for x in every]
        assert walsh[a, b] == sum(1 if even == 0 else -1 for even in parity)
    # differences and approximations are Fourier transforms of one another
    signs = sboxes._signs(size)
    np.testing.assert_array_equal(signs @ differences @ sboxes._signs(differences.shape[1]), walsh**2)


def test_a_card_tells_it_all_and_linear_boxes_are_weak():
    card = sbox_card(list(range(16)))
    assert (card.name, card.bits, card.bijective) == ("own", 4, True)
    assert (card.uniformity, card.walsh, card.nonlinearity) == (16, 16, 0)
    assert len(card.columns()["input"]) == 256
    assert not sbox_card([0, 0, 1, 1]).bijective


@each("wrong", [[1, 2, 3], [0, 1, 2, 9], [0.5, 1.0], [], [[0, 1]], [-1, 0], "des"])
def test_what_is_no_sbox_is_refused(wrong):
    with pytest.raises(InputError, match="S-box"):
        sbox_card(wrong)
