"""Launch commands of plans that draft: flags of the released packages, and room for every token that is verified."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from steptime.launch.launch_commands import launch_commands
from steptime.workload.workload import Speculation
from tests.launch.conftest import pool
from tests.launch.reading import commands, golden, options_file
from tests.launch.test_read_back import check

TWO = Speculation(drafts=2, acceptance=2.2, source="as given")


def drafted(build, engine, *pools):
    made = build(*(pools or (pool(),)))
    return commands(launch_commands(replace(made, speculation=TWO), engine)), commands(launch_commands(made, engine))


def test_vllm_drafts_with_the_models_own_layers(build):
    """Ten sequences of three tokens each, and a chunk of 512."""
    (read,), (plain,) = drafted(build, "vllm")
    assert json.loads(read.one("--speculative-config")) == {"method": "mtp", "num_speculative_tokens": 2}
    assert read.one("--max-num-batched-tokens") == 10 * 3 + 512
    assert plain.one("--max-num-batched-tokens") == 10 + 512
    assert "--speculative-config" not in plain.flags


def test_sglang_verifies_a_window_of_one_token_more(build):
    (read,), (plain,) = drafted(build, "sglang")
    given = {"algorithm": "EAGLE", "num-steps": 2, "eagle-topk": 1, "num-draft-tokens": 3}
    assert {name: read.one(f"--speculative-{name}") for name in given} == given
    assert not any("speculative" in flag for flag in plain.flags)


def test_trtllm_is_told_in_its_options_file(build):
    (read,), (plain,) = drafted(build, "trtllm")
    told = options_file(read.files["serve.yaml"])
    assert told["speculative_config"] == {"decoding_type": "MTP", "num_nextn_predict_layers": 2}
    models = golden("tensorrt_llm")["objects"]
    assert set(told) <= set(models["BaseLlmArgs"]) | set(models["TorchLlmArgs"])
    assert "speculative_config" not in plain.files["serve.yaml"]
    assert read.one("--max_num_tokens") == 10 * 3 + 512


@pytest.mark.parametrize(
    ("engine", "word"),
    [("vllm", "--speculative-config"), ("sglang", "--speculative-algorithm"), ("trtllm", '"speculative_config":')],
)
def test_every_flag_is_the_engines_own_and_both_pools_draft(build, engine, word):
    made = replace(build(pool("prefill", chunk=0), pool("decode", chunk=0)), speculation=TWO)
    lines = launch_commands(made, engine)
    for read in commands(lines):
        check(read)
    assert sum(line.count(word) for line in lines) == 2
