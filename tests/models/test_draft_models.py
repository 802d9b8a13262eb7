"""What drafts for a model: shapes of EAGLE-3 heads by hand, small models, and the reasons of refusals."""

from __future__ import annotations

import json

import pytest

import steptime as st
from steptime.errors import InputError
from steptime.models.draft_models import RULE, with_draft_model
from steptime.models.model import kv_bytes_per_token, total_parameters
from tests.conftest import each

HEAD = {  # width, intermediate, heads, KV heads, values of a head, draft vocabulary: configs of public heads in SpecForge
    "llama-3.3-70b": (8192, 28_672, 64, 8, 128, 32_000),
    "llama-3.1-8b": (4096, 14_336, 32, 8, 128, 32_000),
    "qwen3-235b-a22b": (4096, 24_576, 64, 4, 128, 32_000),
    "gpt-oss-120b": (2880, 16_384, 32, 8, 128, 32_000),
    "deepseek-v3": (7168, 40_960, 56, 8, 128, 32_000),
}


@each("name", HEAD)
def test_parameters_and_cache_of_a_head_by_hand(name):
    """Fusion 3h x h; queries, keys and values of 2h; output, three matrices of the block; the output matrix. Norms apart."""
    width, block, heads, kv_heads, values, words = HEAD[name]
    model = with_draft_model(st.load_model(name), "eagle3")
    drafter = model.drafter
    layer = 2 * width * (heads + 2 * kv_heads) * values + heads * values * width + 3 * width * block
    assert sum(op.total_weights for op in drafter.entry) == 3 * width * width
    assert total_parameters(drafter.model) == pytest.approx(layer + width * words, abs=5 * width)
    assert kv_bytes_per_token(drafter.model) == pytest.approx(2 * kv_heads * values * (2 if model.kv_format == "bf16" else 1))


def test_a_dense_model_without_a_public_head_gets_one_by_rule():
    drafter = with_draft_model(st.load_model("qwen3-14b"), "eagle3").drafter
    assert drafter.source.startswith(RULE)
    assert drafter.place == ""
    width, block, heads, kv_heads, values = 5120, 17_408, 40, 8, 128
    layer = 2 * width * (heads + 2 * kv_heads) * values + heads * values * width + 3 * width * block
    assert total_parameters(drafter.model) == pytest.approx(layer + width * 32_000, abs=5 * width)


def test_a_file_of_the_user_gives_a_head(tmp_path):
    (tmp_path / "acceptance").mkdir()
    (tmp_path / "acceptance" / "mine.toml").write_text(
        'name = "mine"\ntitle = "Mine"\n[sources.me]\nurl = "https://example.com/card"\ndate = "2026-11-01"\n'
        'grade = "reported"\nnote = "card"\n[[heads]]\nmodels = ["zai-org/GLM-4.6"]\nplace = "me/head"\nintermediate = 12288\n'
        'heads = 96\nkv_heads = 8\nhead_dim = 128\nvocabulary = 64000\nfrom = "me"\n'
    )
    model = with_draft_model(st.load_model("glm-4.6"), "eagle3", tmp_path)
    assert model.drafter.place == "me/head"
    assert model.drafter.model.vocabulary == 64_000


@pytest.mark.parametrize(("target", "name"), [("llama-3.3-70b", "llama-3.2-1b"), ("qwen3-32b", "qwen3-0.6b")])
def test_a_small_model_of_the_family_drafts(target, name):
    model, small = with_draft_model(st.load_model(target, kv="fp8"), name), st.load_model(name)
    assert model.drafter.method == "draft_model"
    assert model.drafter.model.name == model.drafter.place == small.name
    assert total_parameters(model.drafter.model) == total_parameters(small)
    assert model.drafter.model.kv_format == "fp8"
    assert model.can_draft


def test_a_folder_drafts(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 128_256, "max_position_embeddings": 8192,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = with_draft_model(st.load_model("llama-3.3-70b"), str(tmp_path))
    assert model.drafter.place == str(tmp_path)


@each(
    "target, name, says",
    [
        ("llama-3.3-70b", "qwen3-0.6b", "must have the vocabulary of .* \\(128,256 tokens\\), got .* with 151,936"),
        ("llama-3.2-1b", "llama-3.3-70b", "must be smaller than"),
        ("llama-3.2-1b", "llama-3.2-1b", "must be smaller than"),
        ("llama-3.3-70b", "mtp", "has no layers that draft tokens"),
        ("glm-4.6", "eagle3", "no shape of an EAGLE-3 head"),
        ("llama-3.3-70b", "nosuch", "unknown model 'nosuch'"),
        ("llama-3.3-70b", "", "empty text"),
    ],
)
def test_what_cannot_draft_is_refused_with_the_reason(target, name, says):
    with pytest.raises(InputError, match=says):
        with_draft_model(st.load_model(target), name)


def test_mtp_takes_a_separate_drafter_away():
    model = st.load_model("deepseek-v3")
    assert with_draft_model(with_draft_model(model, "eagle3"), "mtp") == model
