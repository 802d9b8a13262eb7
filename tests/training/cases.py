"""Models, machines and jobs that tests of training share."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import steptime as st
from steptime.hardware.system import System
from steptime.models.model import Attention, Model
from steptime.models.model_loading import read_model
from steptime.training.training_job import TrainingJob, TrainingLayout
from steptime.training.training_stack import IDEAL, TrainingEngine
from tests.conftest import machine, matrix, model_of

GOLDEN = Path(__file__).parents[1] / "golden" / "training.toml"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "measured" / "training.csv"
SMALL, SPARSE = "llama-3.1-8b", "Qwen/Qwen3-30B-A3B"
# Where the layout does not matter: a search of all takes three times as long.
FIXED = {"tp": 1, "pp": 1, "cp": 1}
ROWS = 8192.0


@cache
def golden(name: str) -> dict[str, Any]:
    """Return a table of published runs; its rows by column."""
    found = tomllib.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    if "rows" in found:
        found["rows"] = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return found


def job(**given: Any) -> TrainingJob:
    return TrainingJob(**{"seq": 4096, "batch": 64} | given)


def lossy(**given: Any) -> TrainingEngine:
    """The ideal stack but for the constants named; nothing overlaps unless it is told."""
    none = {"tensor_overlap": 0.0, "expert_overlap": 0.0, "data_overlap": 0.0}
    return replace(IDEAL, constants=replace(IDEAL.constants, **none | given))


def gpt(*, heads: int, width: int, layers: int) -> dict[str, Any]:
    """The config of a GPT of Megatron-LM's papers."""
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": width, "n_head": heads, "n_layer": layers,
        "n_positions": 2048, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 51200,
    }  # fmt: skip


def llama(*, width: int, ffn: int, heads: int, kv: int, layers: int, vocabulary: int = 128256) -> Model:
    return read_model(
        {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": ffn,
            "num_attention_heads": heads, "num_key_value_heads": kv, "num_hidden_layers": layers, "vocab_size": vocabulary,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
        },
        name=f"llama-{layers}",
    )  # fmt: skip


@cache
def model(name: str = SMALL) -> Model:
    return st.load_model(name)


@cache
def system(name: str = "hgx-h100") -> System:
    return st.load_system(name)


def toy(*, layers: int = 8, weights: float = 1e9, pair_flops: float = 0.0, heads: int = 64) -> Model:
    """Layers of one matrix of `weights`, 1,000 values wide, that tensor parallelism divides 64 ways; with attention if told."""
    op = matrix(name="up_proj", weights=weights, stored="bf16", inputs=1000, outputs=1000, split_limit=64.0)
    attention = (Attention(name="attention", heads=heads, kv_shards=heads, flops_per_pair_prefill=pair_flops),)
    return replace(model_of(op, attention=attention if pair_flops else (), layers=layers, heads=heads), vocabulary=1000)


CHIP = machine(flops=1e15, bandwidth=1e30, capacity=1e14)
"""1 PFLOP/s, memory of any speed, eight in a domain, a free network."""
LINKED = machine(flops=1e15, bandwidth=1e30, size=8, up=1e11, out=1e10)
ALONE = TrainingLayout()
NAN = math.nan
