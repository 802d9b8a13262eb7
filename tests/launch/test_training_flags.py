"""Commands that start a training run: every flag, key and field is one of the stack's release, and so is every model's size."""

from __future__ import annotations

import ast
import random
from functools import lru_cache

import pytest

import steptime as st
from steptime.errors import LayoutError
from steptime.launch import maxtext, megatron, megatron_bridge, torchtitan
from steptime.launch.training_commands import STACKS, training_commands
from steptime.training.schedules.schedule import known_schedules
from steptime.training.training_job import OPTIMIZERS, TrainingJob, TrainingLayout
from tests.conftest import each
from tests.launch.reading_training import (
    LAUNCHER,
    assignments,
    flags,
    golden,
    imported,
    keys,
    known,
    shell_words,
)

model, system = lru_cache(st.load_model), lru_cache(st.load_system)


NAMES = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-32b", "qwen3-30b-a3b", "deepseek-v3", "gpt2-xl",
         "mistralai/Mixtral-8x7B-v0.1", "deepseek-v2-lite", "qwen2.5-72b")  # fmt: skip
OWN = {
    "megatron": {
        "recompute": ("none", "full", "selective", "norms+mlp", "norms+moe_act", "moe+moe_input"),
        "sharding": ("none", "zero1", "zero1", "zero3"), "machine": ("hgx-h100", "gb200-nvl72", "mi300x-8"),
    },
    "torchtitan": {
        "recompute": ("none", "full", "alternate"), "sharding": ("zero2", "zero3"), "machine": ("hgx-h100", "gb200-nvl72"),
    },
    "maxtext": {
        "recompute": ("none", "full", "norms+activation", "norms+mlp"), "sharding": ("none", "zero1", "zero3"),
        "machine": ("tpu-v5p", "hgx-h100"),
    },
}  # fmt: skip
"""What a stack has, that most draws are from: others would be refused for one word or another."""
ANY = {
    "recompute": ("norms+activation", "mla_up_proj+moe_act", "norms+mla_up_proj+moe_act+shared_experts", "moe", "alternate"),
    "sharding": ("none", "zero1", "zero2", "zero3"), "machine": ("hgx-a100", "tpu-v5e", "rtx-4090-8", "cs-3"),
}  # fmt: skip


def drawn(count: int):
    """Yield so many runs, each with a stack, which may not be able to run it."""
    draw = random.Random(20261122)
    for _ in range(count):
        stack = draw.choice(STACKS)
        own = OWN["megatron" if stack.startswith("megatron") else stack]
        word = {key: draw.choice(own[key] if draw.random() < 0.9 else ANY[key]) for key in ANY}
        name = draw.choice(NAMES)
        experts = name in NAMES[4:9] and name != "gpt2-xl"
        pp, virtual = draw.choice((1, 1, 2, 4, 8, 16)), draw.choice((1, 1, 1, 2, 5))
        virtual = virtual if pp > 1 else 1
        tp, cp, dp = draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2)), draw.choice((2, 8, 16))
        mbs, m = draw.choice((1, 2)), draw.choice((16, 32, 64))
        ep = draw.choice([n for n in (1, 2, 8) if dp % n == 0]) if experts else 1
        usual = "interleaved" if virtual > 1 else "1f1b"
        layout = TrainingLayout(
            tp=tp, pp=pp, cp=cp, dp=dp, virtual_stages=virtual, micro_batch=mbs, ep=ep,
            etp=tp if stack == "maxtext" or ep == 1 else 1, sharding=word["sharding"], recompute=word["recompute"],
            sharding_group=draw.choice((0, 0, dp // 2)),
            schedule=draw.choice(tuple(known_schedules())) if draw.random() < 0.1 else usual,
        )  # fmt: skip
        job = TrainingJob(
            seq=8192, batch=dp * mbs * m, dtype=draw.choice(("bf16", "bf16", "fp8", "mxfp8", "nvfp4", "fp16", "int8")),
            task=draw.choice(("pretrain", "pretrain", "pretrain", "sft", "lora")),
            optimizer=draw.choice(("adamw", "adamw", *OPTIMIZERS)), mtp=draw.random() < 0.2,
            gradient_bytes=draw.choice((2.0, 4.0)), sequence_parallel=draw.random() < 0.8,
        )  # fmt: skip
        yield model(name), job, layout, system(word["machine"]), stack


@pytest.mark.slow
@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_every_flag_and_field_is_one_of_the_released_stack(count):
    made = dict.fromkeys(STACKS, 0)
    for asked in drawn(count):
        try:
            (command,) = training_commands(*asked)
        except LayoutError:
            continue
        made[asked[-1]] += 1
        CHECKS[asked[-1]](command)
    assert all(n > count / 80 for n in made.values()), made


def check_launcher(words: list[str]) -> tuple[dict[str, list[str]], str]:
    launcher, own, program = flags(words)
    assert set(launcher) <= set(golden("torch")["torchrun"].split())
    assert set(LAUNCHER) >= set(launcher)
    return own, program


def check_megatron(command):
    own, program = check_launcher(shell_words(command)[1])
    assert program == golden("megatron_core")["program"]
    free, counted = known("megatron_core")
    assert set(own) <= free, set(own) - free
    for flag, values in counted.items():
        if flag in own:
            assert set(own[flag]) <= values, (flag, own[flag])
    switches = set(golden("megatron_core")["switches"].split())
    assert {flag for flag, values in own.items() if not values} == set(own) & switches
    assert set(own.get("--recompute-modules", ())) <= set(golden("megatron_core")["recompute_modules"])


def check_bridge(command):
    own, program = check_launcher(shell_words(command)[1])
    (text,) = command.files.values()
    assert program == "steptime_run.py"
    assert not own
    told, core = golden("megatron_bridge"), golden("megatron_core")
    fields = {
        "model": core["fields"]["TransformerConfig"] + ["seq_length"],
        "optimizer": core["fields"]["OptimizerConfig"],
        "ddp": core["fields"]["DistributedDataParallelConfig"],
        "train": core["fields"]["TrainingConfig"],
        "validation": core["fields"]["ValidationConfig"],
        "logger": core["fields"]["LoggerConfig"],
        "tokenizer": core["fields"]["TokenizerConfig"],
        "checkpoint": core["fields"]["CheckpointConfig"] + told["fields"]["CheckpointConfig"],
        "dataset": told["fields"]["GPTDatasetConfig"],
    }
    for name, value in assignments(text).items():
        parts = name.split(".")
        if parts[0] == "config" and len(parts) == 3:
            assert parts[2] in fields[parts[1]], name
        elif len(parts) == 2:
            assert parts[1] in told["fields"]["ConfigContainer"], name
        if name == "config.mixed_precision":
            assert ast.literal_eval(value) in told["recipes"]
    for module, names in imported(text).items():
        functions = told["functions"].get(module.replace(".", "/") + ".py", ["AutoBridge", "LoRA"])
        assert set(names) <= set(functions)
    for call in [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "LoRA"]:
        assert {word.arg for word in call.keywords} <= set(told["fields"]["LoRA"])


def check_torchtitan(command):
    own, program = check_launcher(shell_words(command)[1])
    assert program == "torchtitan.train"
    assert own.pop("--module") == ["steptime_run"]
    assert own.pop("--config") == ["run"]
    free, counted = known("torchtitan")
    assert set(own) <= free, set(own) - free
    assert all(set(own[flag]) <= values for flag, values in counted.items() if flag in own)
    assert set(own.get("--parallelism.pipeline_parallel_schedule", ())) <= set(golden("torch")["schedules"].split())
    text, told = command.files["steptime_run.py"], golden("torchtitan")
    (module,) = [name.rpartition(".")[2] for name in imported(text) if name.startswith("torchtitan.models.")]
    made = assignments(text)
    assert made["config"].removeprefix("config_registry.").removesuffix("()") in told["registries"][module].split()
    for call in [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]:
        called = ast.unparse(call.func)
        if called.endswith(".Config"):
            fields = told["configs"][called.removesuffix(".Config")] + told["configs"]["QuantizationConverter"]
            assert {word.arg for word in call.keywords} <= set(fields), called
        if called == "model_registry":
            assert ast.literal_eval(call.args[0]) in told["models"][module]
    for name in made:
        parts = name.split(".")
        if len(parts) == 3 and parts[1] != "optimizer":
            assert f"--{parts[1]}.{parts[2]}" in free, name
    assert ast.literal_eval(made["config.optimizer.implementation"]) in told["optimizer.implementation"]


def check_maxtext(command):
    _, words = shell_words(command)
    assert words[:4] == ["python3", "-m", golden("maxtext")["program"], "$MAXTEXT_CONFIGS/base.yml"]
    told, (free, counted) = keys(words), known("maxtext")
    assert set(told) <= free, set(told) - free
    for key, values in counted.items():
        if key in told:
            assert told[key] in values, (key, told[key])


CHECKS = {"megatron-lm": check_megatron, "megatron-bridge": check_bridge, "torchtitan": check_torchtitan,
          "maxtext": check_maxtext}  # fmt: skip


# --- tables -----------------------------------------------------------------------------------------------------------


@each("name", maxtext.MODELS)
def test_models_that_maxtext_names_are_those_of_the_catalogue(name):
    told, ours = golden("maxtext")["models"][maxtext.MODELS[name]], model(name)
    pair = 2 if "gemma-2" in name else 1  # layers with a window and without, counted as one
    assert (told["base_emb_dim"], told["base_num_decoder_layers"] * pair) == (ours.width, ours.depth)
    routed = next((layer.routed for layer, _ in ours.layers if layer.routed), None)
    assert told.get("num_experts", 0) == (routed.experts if routed else 0)
    assert told["base_num_query_heads"] == ours.heads


@each("name", torchtitan.MODELS)
def test_models_that_torchtitan_names_are_those_of_the_catalogue(name):
    entry, ours = torchtitan.MODELS[name], model(name)
    told = golden("torchtitan")["models"][entry.module][entry.size]
    assert (told["dim"], told["n_layers"], told["vocab_size"]) == (ours.width, ours.depth, ours.vocabulary)
    routed = next((layer.routed for layer, _ in ours.layers if layer.routed), None)
    assert told.get("num_experts", 0) == (routed.experts if routed else 0)
    assert entry.start in golden("torchtitan")["registries"][entry.module].split()


def test_tables_name_what_there_is():
    assert set(megatron.OPTIMIZERS) < set(OPTIMIZERS)
    assert set(megatron_bridge.OPTIMIZERS) < set(OPTIMIZERS)
    assert set(megatron.SCHEDULES) | set(torchtitan.SCHEDULES) | set(maxtext.SCHEDULES) <= set(known_schedules())
