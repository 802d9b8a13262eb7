"""Images and sound: sizes worked by hand, parameters of towers as they were counted before towers ran, and what is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.models.blocks_vision import read_media, tower_flops
from steptime.models.image_tokens import LONGEST_SIDE, Medium, canvases, read_images, read_recordings, resized
from steptime.models.model import Attention, Layer, Model, pairs, prefill_flops, total_parameters
from tests.conftest import each

LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 1, "num_attention_heads": 40, "vocab_size": 100,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 64, "intermediate_size_mlp": 64, "num_local_experts": 1,
        "num_experts_per_tok": 1,
    },
    "vision_config": {
        "hidden_size": 1408, "intermediate_size": 5632, "num_attention_heads": 16, "num_hidden_layers": 34, "image_size": 336,
        "patch_size": 14, "projector_input_dim": 4096, "projector_output_dim": 4096, "vision_output_dim": 4096,
        "pixel_shuffle_ratio": 0.5,
    },
}  # fmt: skip
FUYU = {
    "model_type": "fuyu", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "vocab_size": 100, "patch_size": 30,
}  # fmt: skip
COUNTED = {
    "Qwen/Qwen2.5-VL-7B-Instruct": 676_550_144,
    "qwen3-vl-8b-instruct": 576_388_336,
    "qwen3.5-397b-a17b": 456_010_480,
    "google/gemma-3-27b-it": 423_060_336,
    "google/gemma-3n-E4B-it": 983_281_504,
    "google/gemma-4-12B-it": 52_379_904,
    "google/gemma-4-31B-it": 575_741_232,
    "google/gemma-4-E2B-it": 475_728_160,
    "mistralai/Ministral-3-8B-Instruct-2512": 428_472_320,
    "kimi-k2.5": 471_143_920,
    "kimi-k3": 447_358_976,
    "nvidia/MiniMax-M3-NVFP4": 865_567_232,
}
"""Parameters of towers and projectors, as the oracle of transformers holds them."""


@each("name", COUNTED)
def test_a_tower_has_the_parameters_that_the_model_stores_for_it(name):
    model = st.load_model(name)
    stored = sum(op.total_weights for op in model.stem if op.term == "vision")
    assert sum(total_parameters(tower.model) for tower in model.towers) == stored == COUNTED[name]


@pytest.mark.parametrize(
    ("model", "size", "rows", "tokens"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "1024x1024", 74 * 74, 37 * 37),  # 1036 = 74 x 14
        ("Qwen/Qwen2.5-VL-7B-Instruct", "8000x4000", 180 * 362, 90 * 181),  # at most 12,845,056 pixels: 2520 x 5068
        ("qwen3-vl-8b-instruct", "1024x1024", 64 * 64, 32 * 32),
        ("qwen3-vl-8b-instruct", "10x10", 16 * 16, 64),  # at least 65,536 pixels
        ("qwen3.5-397b-a17b", "640x480", 40 * 30, 300),
        ("google/gemma-3-27b-it", "3000x20", 64 * 64, 256),
        ("google/gemma-4-31B-it", "1024x1024", 48 * 48, 256),  # 16 x 16 squares of 48 pixels, of 280 at most
        ("google/gemma-4-12B-it", "1024x1024", 256, 256),
        ("mistralai/Ministral-3-8B-Instruct-2512", "1540x1540", 110 * 110, 55 * 56),
        ("kimi-k2.5", "1024x1024", 74 * 74, 37 * 37),
        (LLAMA4, "336x336", 577, 147),
        (LLAMA4, "1024x1024", 17 * 577, 17 * 144 + 16 + 3),
        ("nvidia/MiniMax-M3-NVFP4", "2000x2000", 48 * 48, 24 * 24),
        (FUYU, "1920x1080", 64 * 36, 65 * 36),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)  # fmt: skip
def test_patches_and_tokens_by_hand(model, size, rows, tokens):
    cost = st.image_cost(model, size)
    assert (cost.rows, cost.tokens) == (rows, tokens)


def test_sound_by_hand():
    """30 s are 2,999 spectra every 10 ms, and of these a quarter."""
    assert st.image_cost("google/gemma-4-E2B-it", audio="30").tokens == 750
    assert st.image_cost("google/gemma-4-E2B-it", audio=["1*3"]).tokens == 3 * 25
    assert st.image_cost("google/gemma-4-12B-it", audio="30").tokens == 750  # 640 samples each
    cost = st.image_cost("google/gemma-3n-E4B-it", audio="30")
    assert (cost.rows, cost.tokens) == (750, 188)


def test_flops_of_a_tower_by_hand():
    """A tower of one layer on four rows: all matrices twice a row, scores and values of all sixteen pairs."""
    mixer = Attention(name="a", flops_per_pair_prefill=4 * 8, causal=False)
    one = Model(name="tower", layers=((Layer(name="l", ops=(), attention=(mixer,)), 1),), width=8, vocabulary=1)
    assert prefill_flops(one, 4) == 16 * 32
    (reading,) = read_media(st.load_model("qwen3-vl-8b-instruct"), "1024x1024")
    width, hidden, rows = 1152, 4304, 4096
    layers = 27 * rows * (2 * (4 * width**2 + 2 * width * hidden) + 4 * width * rows)
    merged = 4 * width
    ends = rows * 2 * 1536 * width + 4 * rows // 4 * 2 * (merged**2 + merged * 4096)
    assert tower_flops(reading) == pytest.approx(layers + ends)


def test_windows_bound_what_a_row_reads():
    local = Attention(name="window", window=64, causal=False)
    assert [float(pairs(local, tokens, 0)) for tokens in (16, 64, 256)] == [256, 4096, 256 * 64]
    kinds = {layer.name: count for layer, count in st.load_model("Qwen/Qwen2.5-VL-7B-Instruct").towers[0].model.layers}
    assert kinds == {"attention of 64 rows + feed-forward": 28, "attention + feed-forward": 4}


def test_costs_add_up():
    one, four = (st.image_cost("qwen3-vl-8b-instruct", f"1024x768{more}") for more in ("", "*4"))
    assert four.tokens == 4 * one.tokens
    assert four.tower_flop == pytest.approx(4 * one.tower_flop)
    both = st.image_cost("qwen3-vl-8b-instruct", ["1024x768*4", "64x64"])
    assert both.tower_flop == pytest.approx(sum(row.count * row.tower_flop for row in both.media))
    assert both.tower_share == pytest.approx(both.tower_flop / (both.tower_flop + both.language_flop))


SEEING = [name for name in COUNTED if "3n" not in name]


@given(some.sampled_from(SEEING), some.integers(1, LONGEST_SIDE), some.integers(1, LONGEST_SIDE))
def test_every_size_is_cut_or_refused_in_words(name, width, height):
    rule = st.load_model(name).towers[0].rule
    medium = Medium(kind="image", width=width, height=height)
    if max(width, height) > 200 * min(width, height) and rule.how is resized:
        with pytest.raises(st.InputError, match="aspect ratios up to 200"):
            rule.cut(medium)
        return
    cut = rule.cut(medium)
    assert 1 <= cut.tokens <= 100_000
    assert 1 <= cut.rows <= 400_000


@each(
    "text",
    ["0x0", "1000000000x1", "cat", "-5x5", "5x-5", "5", "5x5*0", "5x5*1000000", "5x5x5", "", "x", "1e3x1e3", "9" * 5000, 7],
)
def test_what_is_no_image_is_refused_in_a_line(text):
    with pytest.raises(st.InputError) as caught:
        read_images([text])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@each("text", ["0", "-1", "nan", "inf", "1e9", "9999999", "song.wav", "30*0", ""])
def test_what_is_no_recording_is_refused_in_a_line(text):
    with pytest.raises(st.InputError, match=r"audio|count"):
        read_recordings([text])


@each(
    "model, given, words",
    [
        ("llama-3.1-8b", {"images": "64x64"}, "reads text only; its config has no vision tower"),
        ("qwen3-vl-8b-instruct", {"audio": "30"}, "reads text and images only; its config has no audio tower"),
        ("google/gemma-3n-E4B-it", {"images": "64x64"}, "MobileNet-V5"),
        ("google/gemma-4-E2B-it", {"audio": "31"}, "at most 30 seconds per recording, got 31 s"),
        ("qwen3-vl-8b-instruct", {"images": "4000x10"}, "aspect ratios up to 200"),
        ("qwen3-vl-8b-instruct", {}, "give an image"),
    ],
)
def test_what_a_model_cannot_read_is_refused_with_the_reason(model, given, words):
    with pytest.raises(st.InputError, match=re.escape(words)):
        st.image_cost(model, **given)


def test_canvases_are_those_of_a_processor():
    assert len(canvases(16)) == 50
    assert all(down * across <= 16 for down, across in canvases(16))


@each("ratio", [2.0, 0.0, -0.5])
def test_a_shuffle_that_makes_no_fewer_tokens_is_refused(ratio):
    config = LLAMA4 | {"vision_config": LLAMA4["vision_config"] | {"pixel_shuffle_ratio": ratio}}
    with pytest.raises(st.InputError, match="pixel_shuffle_ratio"):
        st.load_model(config)
