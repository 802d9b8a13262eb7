"""Launch commands of plans with LoRA adapters: flags of the released packages, and their limits."""

from __future__ import annotations

import pytest

from steptime.launch.launch_commands import launch_commands
from tests.launch.conftest import pool
from tests.launch.reading import commands, options_file
from tests.launch.test_read_back import check

ADAPTERS = {"lora_adapters": 8, "lora_rank": 24, "lora_modules": ("q_proj", "o_proj", "down_proj")}
SLOTS = {"vllm": ("--max-loras", 32), "sglang": ("--max-loras-per-batch", 24)}


def launched(build, engine, *pools, **served):
    lines = launch_commands(build(*(pools or (pool(),)), **served), engine)
    return lines, [read for read in commands(lines) if check(read) is None]


@pytest.mark.parametrize("engine", SLOTS)
def test_slots_rank_and_matrices_are_flags_of_the_engine(build, engine):
    """vLLM has no slots of rank 24: it takes 32, as in the docs of `MaxLoRARanks`."""
    slots, rank = SLOTS[engine]
    _, (read,) = launched(build, engine, **ADAPTERS)
    assert read.one(slots) == 8
    assert read.one("--max-lora-rank") == rank
    assert read.flags["--lora-target-modules"] == [["q_proj", "o_proj", "down_proj"]]
    assert "--enable-lora" in read.flags


@pytest.mark.parametrize("engine", SLOTS)
def test_both_pools_have_the_slots_and_a_plan_without_adapters_none(build, engine):
    _, both = launched(build, engine, pool("prefill", chunk=0), pool("decode", chunk=0), **ADAPTERS)
    assert sum("--enable-lora" in read.flags for read in both) == 2
    _, (plain,) = launched(build, engine)
    assert not any("lora" in flag for flag in plain.flags)


def test_trtllm_is_told_in_its_options_file(build):
    _, (read,) = launched(build, "trtllm", **ADAPTERS)
    told = options_file(read.files["serve.yaml"])["lora_config"]
    assert told["lora_target_modules"] == ["attn_q", "attn_dense", "mlp_4h_to_h"]
    assert (told["max_lora_rank"], told["max_loras"]) == (24, 8)


def test_trtllm_says_that_it_has_no_name_for_a_matrix(build):
    lines, (read,) = launched(build, "trtllm", **ADAPTERS | {"lora_modules": ("q_a_proj", "o_proj")})
    assert "lora_config" not in read.files["serve.yaml"]
    assert any("not set up" in line for line in lines)


def test_vllm_says_that_it_has_no_slots_of_a_rank(build):
    lines, (read,) = launched(build, "vllm", **ADAPTERS | {"lora_rank": 1024})
    assert read.one("--max-lora-rank") == 512
    assert any("no slots above rank 512" in line for line in lines)


@pytest.mark.parametrize(
    ("experts", "modules", "warned"), [(64, ("down_proj",), True), (64, ("q_proj",), False), (0, ("down_proj",), False)]
)
def test_sglang_adapts_experts_where_their_matrices_are_named(build, experts, modules, warned):
    lines, _ = launched(build, "sglang", **ADAPTERS | {"lora_modules": modules, "routed_experts": experts})
    assert any("adapts routed experts too" in line for line in lines) == warned
