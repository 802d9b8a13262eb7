"""Counts with their nouns in messages of training."""

from __future__ import annotations

import pytest

import steptime as st


def test_train_of_one_sequence_on_chips_that_it_does_not_divide_counts_in_the_singular():
    with pytest.raises(st.InputError) as refused:
        st.train("gpt2", "hgx-h100", chips=64, batch=1, seq=1024)
    assert "1 sequences" not in str(refused.value)


@pytest.mark.parametrize("given", [{"chips": 0}, {"seq": 0}])
def test_train_of_nothing_names_a_least_of_one(given):
    with pytest.raises(st.InputError) as refused:
        st.train("gpt2", "hgx-h100", **{"chips": 8, "batch": 8, "seq": 1024, **given})
    assert "1 chips" not in str(refused.value)
    assert "1 tokens" not in str(refused.value)
