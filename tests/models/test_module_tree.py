"""Models read from the code of transformers against the families: the same parameters, caches and FLOPs of matrices."""

from __future__ import annotations

from typing import Any

import pytest

import steptime as st
from steptime.models.model import (
    active_parameters,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    matmul_flops_per_token,
    prefill_flops,
    state_bytes,
    total_parameters,
)
from tests.models import test_more_families, test_oracle_transformers
from tests.models.test_oracle_transformers import BASE, GPT, as_transformers, auto

pytestmark = pytest.mark.filterwarnings("ignore")
__all__ = ["auto"]

SMALL = test_oracle_transformers.TINY | test_oracle_transformers.MIXERS | test_more_families.TINY | test_more_families.STATES
WIDER = {
    "deepseek_v32": "its reference caches the keys of the indexer in 16 bits, engines in FP8 with scales",
    "falcon": "its reference caches shared heads as many times as there are queries",
    "glm_moe_dsa": "as deepseek_v32",
    "gpt_neo": "its reference keeps what a window has left behind",
}
"""Kinds whose reference caches more than an engine does."""
MIXED_STREAMS = {"gemma3n_text": "the family counts the sums of residual streams, which have no weights"}
UNFOLLOWED = {"dbrx": "its experts loop over tokens that they look up"}


def both(auto: Any, kind: str) -> tuple[st.Model, st.Model]:
    """Return a small model read from code and by its family, from what the reference's config says of itself."""
    fields = as_transformers(SMALL[kind] | {"model_type": kind})
    config = auto.configuration_auto.AutoConfig.for_model(fields.pop("model_type"), **fields).to_dict()
    return st.load_model(config, via="transformers"), st.load_model(config)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind not in UNFOLLOWED])
def test_code_and_family_agree(auto: Any, kind: str) -> None:
    code, family = both(auto, kind)
    assert total_parameters(code) == total_parameters(family)
    assert active_parameters(code) == pytest.approx(active_parameters(family), rel=1e-12)
    assert matmul_flops_per_token(code) == pytest.approx(
        matmul_flops_per_token(family), rel=0.03 if kind in MIXED_STREAMS else 1e-9
    )
    assert code.depth == family.depth
    assert "read from code" in code.family
    assert "read from code" in code.notes[0]
    if kind not in WIDER:
        assert kv_bytes_per_token(code) == kv_bytes_per_token(family)
        assert growing_kv_bytes_per_token(code) == growing_kv_bytes_per_token(family)
    assert (state_bytes(code) > 0) == (state_bytes(family) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mixtral", "glm4", "dots1", "nanochat"])
def test_prompts_cost_the_same(auto: Any, kind: str) -> None:
    code, family = both(auto, kind)
    assert float(prefill_flops(code, 6)) == pytest.approx(float(prefill_flops(family, 6)), rel=1e-9)


@pytest.mark.slow
def test_a_kind_that_no_family_reads(auto: Any) -> None:
    """Doge, by hand: four layers of attention with a step for each KV head, and a gated feed-forward block."""
    config = BASE | {"model_type": "doge", "num_key_value_heads": 2}
    with pytest.raises(st.InputError, match="'transformers:' before a path"):
        st.load_model(config)
    model = st.load_model(config, via="transformers")
    assert kv_bytes_per_token(model) == 4 * 2 * 2 * 16 * 2
    matrices = 4 * (2 * 64 * 64 + 2 * 64 * 32 + 32 * 2 + 3 * 64 * 96) + 128 * 64
    assert matmul_flops_per_token(model) == 2 * matrices
    vectors = 4 * (4 * 64 + 2 * 16 + 2) + 64  # norms and scaled residuals, norms of heads, decays; the final norm
    assert total_parameters(model) == matrices + vectors + 128 * 64


@pytest.mark.slow
def test_what_cannot_be_read_says_why(auto: Any) -> None:
    with pytest.raises(st.InputError, match=r"no code for the architecture 'tandem'.*trust_remote_code"):
        st.load_model(BASE | {"model_type": "tandem"}, via="transformers")
    with pytest.raises(st.InputError, match="cannot be followed without weights"):
        st.load_model(BASE | {"model_type": "jetmoe", "kv_channels": 16}, via="transformers")
    with pytest.raises(st.InputError, match="returns no cache"):
        st.load_model(GPT | {"model_type": "openai-gpt"}, via="transformers")
    with pytest.raises(st.InputError, match="builds no llama from this config"):
        st.load_model(BASE | {"model_type": "llama", "hidden_size": "wide"}, via="transformers")


def test_a_wrong_way_and_an_encoder_are_refused() -> None:
    with pytest.raises(st.InputError, match="unknown way to read a model 'torch'"):
        st.load_model("llama-3.1-8b", via="torch")
    with pytest.raises(st.InputError, match="encoder"):
        st.load_model({"model_type": "bert"}, via="transformers")
    with pytest.raises(st.InputError, match=r"compress_ratios.*compresses many tokens"):
        st.load_model(GPT | {"model_type": "deepseek_v4", "compress_ratios": [4]}, via="transformers")
