"""Changes of how a cache is kept, held to models that have them, to configs that ask for them, and to a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

import steptime as st
from steptime.blackboard.decode_latency import sparse_reads
from steptime.errors import InputError
from steptime.models.kv_compression import CHANGE_KINDS, describe_technique, technique_caveats
from steptime.models.model import (
    cache_bytes,
    cache_bytes_read,
    decode_flops_per_token,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    matmul_flops_per_token,
    prefill_flops,
    total_parameters,
)
from steptime.models.model_variants import variant
from tests.conftest import each

FIGURES = (total_parameters, kv_bytes_per_token, matmul_flops_per_token)
LENGTHS = (100, 5_000, 131_072)


def same(one, other):
    for figure in FIGURES:
        assert figure(one) == figure(other), figure.__name__
    for length in LENGTHS:
        for figure in (cache_bytes, cache_bytes_read, decode_flops_per_token, prefill_flops):
            assert float(figure(one, length)) == pytest.approx(float(figure(other, length)), rel=1e-12), (
                figure.__name__,
                length,
            )
        assert prefill_flops(one, length, 7_000) == pytest.approx(prefill_flops(other, length, 7_000), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "technique", "changes"),
    [
        ("llama-3.3-70b", "latent=512", {"attention": "latent"}),
        ("qwen3-14b", "latent=512", {"attention": "latent"}),
        ("llama-3.3-70b", "kv_heads=4", {"kv_heads": 4}),
        ("qwen3-235b-a22b", "kv_heads=2", {"kv_heads": 2}),
        ("deepseek-v3", "latent=256", {"latent": 256}),
    ],
)
def test_a_change_is_what_the_config_would_say(name, technique, changes):
    same(st.with_techniques(name, technique), variant(name, changes))


def test_selection_over_deepseek_v3_is_deepseek_v3_2():
    same(st.with_techniques("deepseek-v3", "topk=2048"), st.load_model("deepseek-v3.2"))


def test_number_formats_are_those_of_the_cache_as_loaded():
    for name in ("llama-3.3-70b", "deepseek-v3", "google/gemma-3-27b-it"):
        same(st.with_techniques(name, "kv=int4"), st.load_model(name, kv="int4"))
    # 4 bits and a scale of 2 bytes for each 128 values, over 16 bits
    share = (0.5 + 2 / 128) / 2
    assert kv_bytes_per_token(st.load_model("llama-3.3-70b", kv="int4")) == 327_680 * share


def test_blocks_read_what_the_lecture_says():
    """Section 16: L/s summaries and m blocks of s tokens are 2 sqrt(m L) entries at the best s = sqrt(L / m)."""
    base, context, chosen = st.load_model("deepseek-v3"), 2**20, 16
    size = math.isqrt(context // chosen)  # 256
    found = st.with_techniques(base, f"blocks={size}x{chosen}")
    entries = cache_bytes_read(found, context) / kv_bytes_per_token(base)
    assert entries == sparse_reads(context, chosen) == 8192
    worse = [cache_bytes_read(st.with_techniques(base, f"blocks={s}x{chosen}"), context) for s in (size // 2, size * 2)]
    assert min(worse) > cache_bytes_read(found, context)


def test_windows_budgets_and_shared_caches_by_hand():
    base = st.load_model("llama-3.3-70b")  # 80 layers, 4,096 bytes an entry and layer
    five = st.with_techniques(base, "window=1024@5of6")
    assert cache_bytes(five, 100_000) == 4096 * (67 * 1024 + 13 * 100_000)
    assert total_parameters(five) == total_parameters(base)
    shared = st.with_techniques(base, "share=2")
    assert cache_bytes(shared, 1000) == 4096 * 40 * 1000
    assert cache_bytes_read(shared, 1000) == cache_bytes_read(base, 1000)  # each layer reads the one that is kept
    assert total_parameters(base) - total_parameters(shared) == 40 * 2 * 8192 * 1024  # keys and values of 40 layers
    low = st.with_techniques(base, "rank=0.5")
    key = 80 * (8192 * 512 + 8 * 64 * 128)  # W_k as two factors
    assert total_parameters(base) - total_parameters(low) == 80 * (8192 * 1024 * 2 + 8192 * 8192) - key - 80 * (
        8192 * 512 + 4096 * 8192
    )


@each(
    "one, other",
    [
        ("share=2+kv_heads=1", "kv_heads=1+share=2"),
        ("share=2+window=4096", "window=4096+share=2"),
        ("topk=2048+window=8192", "window=8192+topk=2048"),
        ("blocks=128x16+kv_heads=1", "kv_heads=1+blocks=128x16"),
        ("kv=int4+topk=2048", "topk=2048+kv=int4"),
        ("kv=int4@full+kv=int4@full", "kv=int4"),
        ("kv=int4@5of6+kv=int4", "kv=int4"),
        ("kv=fp8@1of2+kv=int4", "kv=int4"),
    ],
)
def test_order_does_not_matter_and_the_last_format_stays(one, other):
    base = st.load_model("llama-3.3-70b")
    first, second = (st.with_techniques(base, text) for text in (one, other))
    for length in LENGTHS:
        assert cache_bytes(first, length) == pytest.approx(cache_bytes(second, length))
        assert cache_bytes_read(first, length) == pytest.approx(cache_bytes_read(second, length))
    assert total_parameters(first) == total_parameters(second)


def test_layers_that_read_another_cache_change_with_it():
    for name in ("google/gemma-3n-E4B-it", "google/gemma-4-E2B-it"):
        kept = st.with_techniques(name, "keep=8192")
        assert all(a.window <= 8192 for layer, _ in kept.layers for a in layer.attention if a.kv_bytes)
        assert cache_bytes_read(kept, 1e6) == cache_bytes_read(kept, 2e6)
    twice = st.with_techniques("meituan-longcat/LongCat-Flash-Chat", "keep=8192")  # two mixers in a layer
    assert growing_kv_bytes_per_token(twice) == 0


def test_indexes_are_in_their_own_format_and_are_not_doubled():
    wide, narrow = (st.with_techniques(st.load_model("deepseek-v3.2", kv="fp8"), f"kv={kv}") for kv in ("bf16", "int4"))
    entry = 512 + 64
    assert kv_bytes_per_token(wide) == 61 * (entry * 2 + 132)
    assert kv_bytes_per_token(narrow) == 61 * (entry * (0.5 + 2 / 128) + 132)
    for name in ("zai-org/GLM-5.2", "deepseek-v3.2"):
        base = st.load_model(name)
        fewer = st.with_techniques(base, "topk=1024")
        assert kv_bytes_per_token(fewer) == kv_bytes_per_token(base)
        assert cache_bytes_read(fewer, 1e5) < cache_bytes_read(base, 1e5)
        assert total_parameters(fewer) == total_parameters(base)


def test_one_layer_of_those_that_share_keeps_the_cache():
    for name, layers, kept in (("qwen3-8b", 8, 5), ("llama-3.3-70b", 200, 1), ("llama-3.3-70b", 80, 1)):
        found = st.with_techniques(name, f"share={layers}")
        assert sum(n for layer, n in found.layers for a in layer.attention if a.stored) == kept
    gemma = st.with_techniques("google/gemma-3-27b-it", "share=20")
    assert growing_kv_bytes_per_token(gemma) > 0


def test_a_share_of_layers_counts_those_that_are_so_already():
    with pytest.raises(InputError, match="changes nothing"):
        st.with_techniques("google/gemma-3-27b-it", "window=4096@5of6")  # 52 of its 62 are
    found = st.with_techniques("gpt-oss-120b", "window=4096@5of6")
    assert sum(n for layer, n in found.layers if math.isfinite(layer.attention[0].window)) == 30


def test_character_ai_keeps_a_twentieth_and_less():
    """One KV head for 8, windows of 1,024 in 5 of 6 layers, caches of 3 layers, int8: over 20 times less; lecture, section 16.

    https://research.character.ai/optimizing-inference/
    """
    base = st.load_model("llama-3.3-70b")
    found = st.with_techniques(base, "kv_heads=1+window=1024@5of6+share=3+kv=int8")
    context = np.array([4096.0, 32_768.0])
    assert (cache_bytes(base, context) / cache_bytes(found, context) > 20).all()
    assert describe_technique("kv_heads=1+share=3").startswith("1 KV head; 3 layers share a cache")


@each("name", ["llama-3.3-70b", "deepseek-v3", "gpt-oss-120b", "google/gemma-3-27b-it", "qwen3-next-80b-a3b"])
@each("technique", ["kv=int4", "window=512@3of4", "keep=2000", "share=2", "topk=256", "blocks=16x8", "latent=128"])
def test_no_change_adds_to_what_a_long_context_reads(name, technique):
    base = st.load_model(name)
    found = st.with_techniques(base, technique)
    assert cache_bytes_read(found, 1e6) <= cache_bytes_read(base, 1e6) * (1 if technique != "share=2" else 1 + 1e-12)
    assert sum(n for _, n in found.layers) == base.depth
    assert found.notes[-1] == describe_technique(technique)
    st.decode_step(found, "hgx-b200", batch=2, context=4096, layout=st.Layout(tp=2))  # what physics takes
    assert len(technique_caveats(technique)) == 1


@each(
    "name, technique, match",
    [
        ("llama-3.3-70b", "wndow=1", "window"),
        ("llama-3.3-70b", "window", "must be window=TOKENS"),
        ("llama-3.3-70b", "window=", "must be window"),
        ("llama-3.3-70b", "window=-5", "whole number"),
        ("llama-3.3-70b", "window=1024@6of5", "unknown selection of layers"),
        ("llama-3.3-70b", "window=1024@", "must be window"),
        ("llama-3.3-70b", "rank=1.5", "share between 0 and 1"),
        ("llama-3.3-70b", "kv=fp9", "fp8"),
        ("llama-3.3-70b", "kv_heads=3", "must divide"),
        ("llama-3.3-70b", "share=1", "changes nothing"),
        ("llama-3.3-70b", "rank=0.5+rank=0.5", "rank: must be given once"),
        ("llama-3.3-70b", "rank=0.5+latent=512", "latent"),
        ("deepseek-v3.2", "blocks=64x8", "changes nothing"),
        ("llama-3.3-70b", "window=4096@local", "changes nothing"),
        ("llama-3.3-70b", "window=1024++kv=fp8", "technique"),
        ("llama-3.3-70b", "blocks=16", "whole number"),
        ("deepseek-v3", "kv_heads=1", "latent"),
        ("mamba-2.8b", "window=100", "changes nothing"),
    ],
)
def test_what_is_no_technique_is_refused(name, technique, match):
    with pytest.raises(InputError, match=match):
        st.with_techniques(name, technique)


@each("technique", [None, 5, ["kv=int4"], math.nan])
def test_a_technique_is_a_text(technique):
    with pytest.raises(InputError, match="a technique"):
        st.with_techniques("llama-3.1-8b", technique)


def test_a_changed_model_says_so_and_has_no_checkpoint():
    found = st.with_techniques("llama-3.1-8b", "window=1024")
    assert found.name.endswith(", window=1024")
    assert found.checkpoint.place == ""


def test_every_way_says_where_it_comes_from():
    for way in CHANGE_KINDS.values():
        assert way.source.startswith("https://arxiv.org/abs/")
