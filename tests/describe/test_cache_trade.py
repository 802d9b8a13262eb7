"""The KV cache as a trade, against what is counted by hand and the lecture's closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

import steptime as st
from steptime import blackboard
from steptime.describe.kv_tradeoff import cache_trade, recompute_seconds
from steptime.errors import InputError
from tests.conftest import each, machine, one_matrix

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def test_llama_by_hand():
    """327,680 B a token; two FLOPs for each of 80 layers' weights, and 4 x 64 x 128 for each pair of tokens in a layer."""
    one = cache_trade([LLAMA], "hgx-h200", [8192]).caches[0]
    assert one.held_bytes == 8192 * 327_680
    layers = 80 * (8192 * 8192 * 2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    head = 8192 * 128256  # of the last token alone
    pairs = 8192 * 8193 / 2
    assert one.flop_saved == pytest.approx(2 * layers * 8192 + 80 * 4 * 64 * 128 * pairs + 2 * head, rel=1e-4)
    assert one.flop_per_byte == pytest.approx(one.flop_saved / one.held_bytes)
    assert one.recompute_seconds == pytest.approx(one.flop_saved / 989e12, rel=2e-3)
    assert one.of_decode == pytest.approx(8192, rel=0.15)


def test_it_is_the_lectures_break_even_on_its_machine():
    """One matrix in each of ten layers, a cache of 1,000 B a token and layer, arithmetic without attention: t_drain L*."""
    # The format of this cache is given, so that the engine does not choose it.
    model = replace(one_matrix(weights=1e9, layers=10, kv_bytes=1000.0), kv_told=True)
    system = machine(flops=2e15, bandwidth=4e12, capacity=1e11)
    tier = cache_trade([model], system, [1000]).caches[0].tiers[0]
    balance = blackboard.balance(blackboard.multiplies(2e15), 1.0, 4e12)
    balanced = blackboard.balanced_context(10e9, 1.0, balance, 10_000.0)
    assert tier.break_even_seconds == pytest.approx(blackboard.break_even_hold(1e11 / 4e12, balanced))
    assert tier.read_seconds == 0
    assert tier.contexts == 1e11 / 1e7


def test_tiers_pay_while_reading_back_is_sooner_than_computing_again():
    found = cache_trade([LLAMA, "deepseek-v3"], "hgx-h200", [8192, 131_072])
    assert len(found.caches) == 4
    for one in found.caches:
        assert [tier.name for tier in one.tiers] == ["hbm", "host", "ssd", "hdd"]
        for tier in one.tiers:
            assert (tier.break_even_seconds > 0) == (tier.read_seconds < one.recompute_seconds)
            assert tier.contexts == pytest.approx(tier.capacity / one.held_bytes)
    short, long = found.caches[:2]
    assert long.flop_per_byte > 2 * short.flop_per_byte  # attention grows with the square
    latent = found.caches[2]
    assert latent.held_bytes == 8192 * 35_136  # the engine keeps the latent in 8 bits
    assert latent.flop_per_byte > short.flop_per_byte  # a latent cache saves more for a byte


def test_the_table_has_a_row_for_each_tier():
    found = cache_trade([LLAMA], "hgx-h200", [8192])
    columns = found.columns()
    assert columns["tier"] == ["hbm", "host", "ssd", "hdd"]
    assert {len(values) for values in columns.values()} == {4}


@each(
    "ask, says",
    [
        (lambda: cache_trade([LLAMA], "hgx-h200", [1_000_000]), "has a context of at most 131,072 tokens, not 1,000,000"),
        (lambda: cache_trade([LLAMA], "hgx-h200", [0]), "the context must be at least 1 token"),
        (lambda: cache_trade([], "hgx-h200"), "at least one model"),
        (lambda: cache_trade(["lama"], "hgx-h200"), "unknown model"),
    ],
)
def test_bad_input_is_named(ask, says):
    with pytest.raises(InputError, match=says):
        ask()


def test_formats_of_weights_set_the_rate():
    wide, narrow = (
        recompute_seconds(st.load_model(LLAMA, weights=w), st.load_system("hgx-h200"), 1024) for w in ("bf16", "fp8")
    )
    assert 1.8 < wide / narrow < 2
