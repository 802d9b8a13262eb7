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


# --- EAGLE-3 heads and draft models ---------------------------------------------------------------------------------------

HEAD = Speculation(drafts=3, acceptance=2.2, source="as given", method="eagle3", draft_model="org/head-3.3")
SMALL = replace(HEAD, method="draft_model", draft_model="org/small")
TP4 = pool(tp=4)
ENGINES = ("vllm", "sglang", "trtllm")


def with_drafter(build, engine, speculation, *pools):
    """Return a plan's lines, and the command of its one pool."""
    lines = launch_commands(replace(build(*(pools or (TP4,))), speculation=speculation), engine)
    (read,) = commands(lines)
    check(read)
    return lines, read


def is_config_of(told, engine) -> bool:
    """Whether every key of a speculative configuration is one of the engine's own, and its kind one of its kinds."""
    models = golden("tensorrt_llm")["objects"] if engine == "trtllm" else golden("vllm")["objects"]
    if engine == "vllm":
        fields = models["--speculative-config"]
        return set(told) <= set(fields) and (not fields["method"] or told["method"] in fields["method"].split())
    kinds = {models[name]["decoding_type"]: models[name] for name in models if "decoding_type" in models[name]}
    return set(told) <= set(kinds[told["decoding_type"]]) | set(models["DecodingBaseConfig"])


@pytest.mark.parametrize("speculation", [HEAD, SMALL])
def test_vllm_names_the_drafter_its_tokens_and_its_tensor_parallel_size(build, speculation):
    method, place = {HEAD: ("eagle3", "org/head-3.3"), SMALL: ("draft_model", "org/small")}[speculation]
    told = json.loads(with_drafter(build, "vllm", speculation)[1].one("--speculative-config"))
    assert told == {"method": method, "model": place, "num_speculative_tokens": 3, "draft_tensor_parallel_size": 4}
    assert is_config_of(told, "vllm")
    one_chip = json.loads(with_drafter(build, "vllm", speculation, pool())[1].one("--speculative-config"))
    assert "draft_tensor_parallel_size" not in one_chip


@pytest.mark.parametrize(("speculation", "algorithm"), [(HEAD, "EAGLE3"), (SMALL, "STANDALONE")])
def test_sglang_names_the_algorithm_and_the_path(build, speculation, algorithm):
    read = with_drafter(build, "sglang", speculation)[1]
    given = {"algorithm": algorithm, "draft-model-path": speculation.draft_model, "num-steps": 3, "num-draft-tokens": 4}
    assert {name: read.one(f"--speculative-{name}") for name in given} == given
    assert read.one("--speculative-eagle-topk") == 1


@pytest.mark.parametrize(("speculation", "kind"), [(HEAD, "Eagle"), (SMALL, "Draft_Target")])
def test_trtllm_names_the_kind_and_the_folder(build, speculation, kind):
    told = options_file(with_drafter(build, "trtllm", speculation)[1].files["serve.yaml"])
    given = {"decoding_type": kind, "max_draft_len": 3, "speculative_model_dir": speculation.draft_model}
    assert told["speculative_config"] == given
    assert is_config_of(given, "trtllm")
    assert bool(told.get("disable_overlap_scheduler")) == (kind == "Draft_Target")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("speculation", [TWO, HEAD, SMALL])
def test_both_pools_have_the_drafter(build, engine, speculation):
    made = replace(build(pool("prefill", chunk=0), pool("decode", chunk=0)), speculation=speculation)
    for read in commands(launch_commands(made, engine)):
        check(read)
        if engine == "vllm" and "--speculative-config" in read.flags:
            assert is_config_of(json.loads(read.one("--speculative-config")), engine)
        for name, text in read.files.items():
            if engine == "trtllm" and name != "router.yaml":
                assert is_config_of(options_file(text)["speculative_config"], engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("place", ["", "org/x\ntouch PWN"])
def test_weights_that_nobody_published_are_a_variable_with_a_comment(build, engine, place):
    """No id is made up: the shell stops where the variable is not set."""
    lines = launch_commands(replace(build(TP4), speculation=replace(HEAD, draft_model=place)), engine)
    text = "\n".join(lines)
    assert "DRAFT_MODEL" in text
    assert "PWN" not in text
    comments = [line for line in lines if line.startswith("#") and "DRAFT_MODEL" in line]
    assert len(comments) == 1
    assert "EAGLE-3 head of org/m" in comments[0]
