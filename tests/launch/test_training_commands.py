"""Commands that start a training run: what they say of layout, model and job, and what cannot run."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError, LayoutError, UnknownName
from steptime.launch import maxtext
from steptime.launch.training_commands import training_commands, training_lines
from steptime.launch.training_run import layers_by_chunk, training_run
from steptime.models.model import total_parameters
from steptime.training.training_job import TrainingJob, TrainingLayout
from steptime.training.training_stack import load_stack
from tests.conftest import each
from tests.launch.reading_training import (
    flags,
    golden,
    keys,
    shell_words,
    stages_of,
)

JOB = TrainingJob(seq=8192, batch=1024)
model, system = lru_cache(st.load_model), lru_cache(st.load_system)


def started(name: str, layout: TrainingLayout, stack: str, job: TrainingJob = JOB, machine: str = "hgx-h100"):
    """Return the environment, the words and the files of the one command."""
    (command,) = training_commands(model(name), job, layout, system(machine), stack)
    return (*shell_words(command), dict(command.files))


def pretrain(name: str, layout: TrainingLayout, job: TrainingJob = JOB, machine: str = "hgx-h100") -> dict[str, list[str]]:
    """Return the flags of pretrain_gpt.py."""
    return flags(started(name, layout, "megatron", job, machine)[1])[1]


# --- what they say ------------------------------------------------------------------------------------------------------


def test_megatron_says_every_way_and_the_batch():
    layout = TrainingLayout(tp=8, pp=4, cp=2, dp=16, virtual_stages=5, schedule="interleaved", micro_batch=2)
    own = pretrain("llama-3.1-70b", layout)
    said = {f"--{way}-parallel-size": [str(n)] for way, n in (("tensor-model", 8), ("pipeline-model", 4), ("context", 2))}
    assert said.items() <= own.items()
    assert own["--num-layers-per-virtual-pipeline-stage"] == ["4"]
    assert (own["--micro-batch-size"], own["--global-batch-size"]) == (["2"], ["1024"])
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"} <= set(own)
    assert "--account-for-embedding-in-pipeline-split" not in own
    launcher, _, _ = flags(started("llama-3.1-70b", layout, "megatron")[1])
    assert (launcher["--nnodes"], launcher["--nproc-per-node"]) == (["128"], ["8"])


@each("name", ["llama-3.1-8b", "deepseek-v3", "qwen3-30b-a3b", "gpt2-xl",
                                  "qwen2.5-72b", "mistralai/Mixtral-8x7B-v0.1", "deepseek-v2-lite",
                                  "moonshotai/Kimi-K2-Instruct"])  # fmt: skip
def test_megatron_shape_flags_count_up_to_the_models_parameters(name):
    """By what the flags mean in Megatron Core: its own layers, summed by hand."""
    seq = 1024
    own = pretrain(name, TrainingLayout(dp=8), TrainingJob(seq=seq, batch=8, mtp=False))

    def number(flag: str, default: int = 0) -> int:
        return int(own[flag][0]) if flag in own else default

    layers, width, heads = (number(f"--{w}") for w in ("num-layers", "hidden-size", "num-attention-heads"))
    biased, matrices = "--disable-bias-linear" not in own, 3 if "--swiglu" in own else 2
    gain = width if own.get("--normalization") == ["RMSNorm"] else 2 * width

    def block(hidden: int) -> int:
        return matrices * width * hidden + biased * ((matrices - 1) * hidden + width)

    if "--multi-latent-attention" in own:
        rank, queries, rotary = number("--kv-lora-rank"), number("--q-lora-rank"), number("--qk-pos-emb-head-dim")
        key, value = number("--qk-head-dim"), number("--v-head-dim")
        attention = width * (rank + rotary) + rank + rank * heads * (key + value) + heads * value * width
        wide = heads * (key + rotary)
        attention += width * queries + queries + queries * wide if queries else width * wide
    else:
        head = number("--kv-channels", width // heads)
        groups = number("--num-query-groups", heads)
        attention = width * head * (2 * heads + 2 * groups)
        attention += (biased or "--add-qkv-bias" in own) * head * (heads + 2 * groups) + biased * width
        attention += 2 * head if "--qk-layernorm" in own else 0
    sparse = 0
    if "--num-experts" in own:
        pattern = eval(own["--moe-layer-freq"][0]) if "--moe-layer-freq" in own else [1] * layers
        assert len(pattern) == layers
        sparse = sum(pattern)
    experts = number("--num-experts")
    moe = experts * block(number("--moe-ffn-hidden-size")) + experts * width if experts else 0
    moe += block(number("--moe-shared-expert-intermediate-size")) if "--moe-shared-expert-intermediate-size" in own else 0
    table = number("--vocab-size") * width
    total = layers * (attention + 2 * gain) + (layers - sparse) * block(number("--ffn-hidden-size")) + sparse * moe
    total += table * (2 if "--untie-embeddings-and-output-weights" in own else 1) + gain
    total += seq * width if own["--position-embedding-type"] == ["learned_absolute"] else 0
    positions = sum(op.total_weights for op in model(name).stem if op.name == "positions")
    meant = total_parameters(model(name)) - positions + (seq * width if positions else 0)
    assert total == pytest.approx(meant, rel=1e-6)


def test_layers_that_divide_with_embedding_and_head_are_counted_so():
    layout = TrainingLayout(tp=8, pp=16, dp=8, virtual_stages=8, schedule="interleaved")
    own = pretrain("llama-3.1-405b", layout)
    assert {"--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"} <= set(own)
    assert own["--num-layers-per-virtual-pipeline-stage"] == ["1"]  # (126 + 2) / (16 x 8)


@each("pp", [2, 4, 6, 8, 16])
@each("virtual", [1, 2, 3])
def test_layers_that_divide_by_nothing_are_spelt_out(pp, virtual):
    layout = TrainingLayout(pp=pp, dp=64, ep=8, virtual_stages=virtual, schedule="interleaved" if virtual > 1 else "1f1b")
    job = TrainingJob(seq=4096, batch=64 * pp * 2, mtp=True)
    own = pretrain("deepseek-v3", layout, job)
    (text,) = own["--pipeline-model-parallel-layout"]
    chunks = stages_of(text)
    assert len(chunks) == pp * virtual
    assert "".join(chunks) == "E" + 61 * "t" + "mL"
    assert chunks[0][0] == "E"
    assert chunks[-1].endswith("mL")
    held = [sum(chunks[turn * pp + stage].count("t") for turn in range(virtual)) for stage in range(pp)]
    assert max(held) == math.ceil(61 / pp)
    assert max(held) - min(held) <= 1
    assert held[-1] == min(held)
    assert not {"--num-layers-per-virtual-pipeline-stage", "--account-for-loss-in-pipeline-split"} & set(own)


def test_chunks_of_a_v_are_dealt_by_the_stage_that_holds_them():
    layout = TrainingLayout(pp=4, dp=8, virtual_stages=2, schedule="zbv", sharding="zero3")
    counts = layers_by_chunk(training_run(model("deepseek-v3"), TrainingJob(seq=4096, batch=64), layout, system("hgx-h100")))
    held = [counts[stage] + counts[7 - stage] for stage in range(4)]
    assert sum(held) == 61
    assert max(held) - min(held) <= 1
    assert held[0] == min(held)


@pytest.mark.parametrize(
    ("layers", "virtual", "said"),
    [
        ("6,8x15", 1, "Et*6|(t*8|)*14t*8L"),  # as given
        ("7,8x14,7", 2, None),  # as embedding and head counted as layers make it: two flags say it
    ],
)
def test_megatron_is_told_the_layers_of_chunks_that_are_given(layers, virtual, said):
    order = "interleaved" if virtual > 1 else "1f1b"
    own = pretrain(
        "llama-3.1-405b", TrainingLayout(tp=8, pp=16 // virtual, dp=8, virtual_stages=virtual, layers=layers, schedule=order)
    )
    assert own.get("--pipeline-model-parallel-layout") == ([said] if said else None)
    assert ("--account-for-loss-in-pipeline-split" in own) == (said is None)


def test_maxtext_has_no_stages_but_equal_ones():
    layout = TrainingLayout(pp=2, dp=8, layers="15,17", schedule="gpipe", sharding="zero3")
    assert "layers=15,17 are not" in training_lines(model("llama-3.1-8b"), JOB, layout, system("hgx-h100"), "maxtext")[0]


def test_ways_of_experts_are_always_said_as_megatron_would_divide_them_by_tp():
    layout = TrainingLayout(tp=4, dp=16, ep=16, etp=1)
    own = pretrain("qwen3-30b-a3b", layout)
    assert (own["--expert-model-parallel-size"], own["--expert-tensor-parallel-size"]) == (["16"], ["1"])


@each(
    "machine, layout, asked",
    [
        ("hgx-h100", TrainingLayout(tp=8, dp=8), "1"),
        ("hgx-h100", TrainingLayout(cp=2, dp=8), "1"),
        ("hgx-h100", TrainingLayout(dp=8), None),
        ("gb200-nvl72", TrainingLayout(tp=8, dp=8), None),
        ("hgx-h100", TrainingLayout(tp=8, dp=8, sharding="zero3"), None),
    ],
)
def test_one_queue_where_tensor_or_context_parallelism_asks_for_it_and_never_with_fsdp(machine, layout, asked):
    environment, *_ = started("llama-3.1-8b", layout, "megatron", JOB, machine)
    assert environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == asked


@each(
    "recompute, said",
    [
        ("full", {"--recompute-granularity": ["full"], "--recompute-method": ["uniform"], "--recompute-num-layers": ["1"]}),
        ("selective", {"--recompute-granularity": ["selective"], "--recompute-modules": ["core_attn"]}),
        ("norms+mlp", {"--recompute-granularity": ["selective"], "--recompute-modules": ["layernorm", "mlp"]}),
        ("mlp+activation", {"--recompute-granularity": ["selective"], "--recompute-modules": ["mlp"]}),
        ("none", {}),
    ],
)
def test_megatron_computes_again_what_the_layout_says(recompute, said):
    own = pretrain("llama-3.1-8b", TrainingLayout(dp=8, recompute=recompute))
    assert {flag: own[flag] for flag in own if flag.startswith("--recompute")} == said


@each(
    "dtype, said",
    [
        ("bf16", {}),
        ("fp8", {"--fp8-format": ["hybrid"], "--fp8-recipe": ["tensorwise"]}),
        ("mxfp8", {"--fp8-format": ["e4m3"], "--fp8-recipe": ["mxfp8"]}),
        ("nvfp4", {"--fp4-format": ["e2m1"], "--fp4-recipe": ["nvfp4"]}),
    ],
)
def test_megatron_computes_in_the_format_of_the_job(dtype, said):
    own = pretrain("llama-3.1-8b", TrainingLayout(dp=8), replace(JOB, dtype=dtype), "gb200-nvl72")
    assert "--bf16" in own
    assert {flag: own[flag] for flag in own if flag.startswith(("--fp8", "--fp4"))} == said


def test_hybrid_sharding_is_said_by_every_stack():
    layout = TrainingLayout(tp=2, dp=64, sharding="zero3", sharding_group=16)
    own = pretrain("llama-3.1-8b", layout)
    assert own["--num-distributed-optimizer-instances"] == ["4"]
    assert own["--data-parallel-sharding-strategy"] == ["optim_grads_params"]
    assert own["--ckpt-format"] == ["fsdp_dtensor"]
    own = flags(started("llama-3.1-8b", layout, "torchtitan")[1])[1]
    assert own["--parallelism.data_parallel_shard_degree"] == ["16"]
    assert own["--parallelism.data_parallel_replicate_degree"] == ["4"]
    told = keys(started("llama-3.1-8b", layout, "maxtext", JOB, "tpu-v5p")[1])
    assert (told["ici_fsdp_parallelism"], told["ici_data_parallelism"], told["ici_tensor_parallelism"]) == ("16", "4", "2")


def test_torchtitan_takes_all_micro_batches_of_a_pipeline_as_one_local_batch():
    layout = TrainingLayout(tp=8, pp=4, dp=8, micro_batch=2, sharding="zero2", schedule="1f1b")
    own = flags(started("llama-3.1-70b", layout, "torchtitan")[1])[1]
    assert own["--training.local_batch_size"] == ["128"]  # 1,024 sequences on 8 copies
    assert own["--parallelism.pipeline_parallel_microbatch_size"] == ["2"]
    assert own["--parallelism.fsdp_reshard_after_forward"] == ["never"]
    flat = flags(started("llama-3.1-70b", replace(layout, pp=1), "torchtitan")[1])[1]
    assert flat["--training.local_batch_size"] == ["2"]
    assert flat["--training.global_batch_size"] == own["--training.global_batch_size"] == ["1024"]


@each("pp, virtual, less, each", [(8, 2, 1, 8), (8, 1, 1, 16), (2, 3, 0, 21), (14, 1, 0, 9), (4, 2, 1, 16)])
def test_torchtitan_deals_layers_as_the_layout_does(pp, virtual, less, each):
    """By its own rule: ceil((layers + less at both ends) / layers of a stage) stages in all."""
    order = "interleaved" if virtual > 1 else "1f1b"
    layout = TrainingLayout(tp=8, pp=pp, dp=8, virtual_stages=virtual, schedule=order, sharding="zero3")
    own = flags(started("llama-3.1-405b", layout, "torchtitan", TrainingJob(seq=8192, batch=8 * 4 * pp))[1])[1]
    section = "--parallelism.pipeline_parallel_"
    first, last = own[f"{section}first_stage_less_layers"], own[f"{section}last_stage_less_layers"]
    assert first == last == [str(less)]
    assert own[f"{section}layers_per_stage"] == [str(each)]
    assert math.ceil((126 + 2 * less) / each) == pp * virtual


def test_torchtitan_names_the_modules_of_stages_that_divide_by_nothing():
    layout = TrainingLayout(pp=8, dp=8, ep=8, sharding="zero3", schedule="1f1b")
    _, words, files = started("deepseek-v3", layout, "torchtitan", TrainingJob(seq=4096, batch=128))
    assert "--parallelism.pipeline_parallel_layers_per_stage" not in words
    body = next(n for n in ast.parse(files["steptime_run.py"]).body if isinstance(n, ast.FunctionDef)).body
    kept = [line for line in body if "config" not in ast.unparse(line)]
    scope: dict = {}
    exec(compile(ast.Module(body=kept, type_ignores=[]), "run", "exec"), scope)
    parts = scope["parts"]
    assert [name for part in parts for name in part] == [
        "tok_embeddings",
        *(f"layers.{n}" for n in range(61)),
        "norm",
        "lm_head",
    ]
    assert len(parts) == 8
    assert max(sum("layers" in name for name in part) for part in parts) == 8


def test_torchtitan_compiles_no_model_whose_backward_pass_is_split():
    layout = TrainingLayout(pp=4, tp=8, dp=8, virtual_stages=2, schedule="zbv", sharding="zero2")
    text = started("llama-3.1-70b", layout, "torchtitan", replace(JOB, dtype="fp8"))[2]["steptime_run.py"]
    assert 'components = ["loss"]' in text
    assert "model_compile_enabled=False" in text
    alternate = replace(layout, recompute="alternate")
    assert "alternate" in training_lines(model("llama-3.1-70b"), JOB, alternate, system("hgx-h100"), "torchtitan")[0]


def test_torchtitan_and_bridge_train_adapters():
    layout, job = TrainingLayout(dp=8, sharding="zero3"), TrainingJob(seq=4096, batch=16, task="lora", lora_rank=32)
    text = started("llama-3.1-8b", layout, "torchtitan", job, "rtx-4090-8")[2]["steptime_run.py"]
    assert "LoRAConverter.Config(rank=32, alpha=64.0)" in text
    text = started("llama-3.1-8b", replace(layout, sharding="zero1"), "megatron-bridge", job, "rtx-4090-8")[2][
        "steptime_run.py"
    ]
    assert "LoRA(dim=32" in text
    assert "finetune(config" in text


@each("chips", [2048, 4096, 12288])
def test_maxtext_axes_multiply_to_slices_and_to_all(chips):
    layout = TrainingLayout(tp=4, pp=2, dp=chips // 8, sharding="zero3", schedule="gpipe")
    job = TrainingJob(seq=8192, batch=chips)
    machine = "tpu-v5e"  # slices of 256
    told = keys(started("llama-3.1-70b", layout, "maxtext", job, machine)[1])
    inside = math.prod(int(v) for k, v in told.items() if k.startswith("ici_"))
    between = math.prod(int(v) for k, v in told.items() if k.startswith("dcn_"))
    assert (inside, inside * between) == (256, chips)
    assert int(chips * float(told["per_device_batch_size"])) == job.batch
    assert int(told["num_pipeline_microbatches"]) == job.batch // (chips // 8)
    stages = 2 * int(told["num_pipeline_repeats"]) * int(told["num_layers_per_pipeline_stage"])
    assert stages == 80


@each("sequences, chips", [(16, 48), (1, 3), (7, 49), (1000, 768), (5, 4096), (33, 10)])
def test_maxtext_gets_back_the_sequences_that_it_rounds_down(sequences, chips):
    assert int(chips * float(maxtext.per_device(sequences, chips))) == sequences


def test_maxtext_says_a_llama_of_ones_own_by_its_numbers():
    own = replace(model("llama-3.1-8b"), name="mine")
    (command,) = training_commands(own, JOB, TrainingLayout(dp=8, sharding="zero3"), system("tpu-v5p"), "maxtext")
    told = keys(shell_words(command)[1])
    numbers = {key: str(value) for key, value in golden("maxtext")["models"]["llama3.1-8b"].items()}
    assert numbers.items() <= told.items()


# --- what cannot run ----------------------------------------------------------------------------------------------------


SMALL, SPARSE, FSDP = "llama-3.1-8b", "qwen3-30b-a3b", {"sharding": "zero3"}


@each(
    "stack, name, job, layout, machine, words",
    [
        ("megatron", SMALL, {}, {"pp": 4, "schedule": "zb-h1"}, "hgx-h100", "no schedule zb-h1; use 1f1b or interleaved"),
        ("megatron", SMALL, {"task": "lora"}, {}, "hgx-h100", "use the stack megatron-bridge"),
        ("megatron", SMALL, {"optimizer": "adafactor"}, {}, "hgx-h100", "no optimizer adafactor"),
        ("megatron", SMALL, {}, {"recompute": "norms+activation"}, "hgx-h100", "it is part of mlp"),
        ("megatron", SMALL, {}, {"recompute": "alternate"}, "hgx-h100", "only 'alternate'"),
        ("megatron", SMALL, {"dtype": "mxfp8"}, {}, "hgx-h100", "needs Blackwell"),
        ("megatron", "openai/gpt-oss-20b", {}, {}, "hgx-h100", "windows of 128 tokens"),
        ("megatron", "bigscience/bloom", {}, {}, "hgx-h100", "ALiBi"),
        ("megatron", SMALL, {}, {}, "tpu-v5p", "not on chips of Google"),
        ("megatron", SPARSE, {"sequence_parallel": False}, {"tp": 2}, "hgx-h100", "need sequence parallelism"),
        ("megatron", SMALL, {"optimizer": "muon"}, FSDP, "hgx-h100", "not muon; use zero1"),
        ("megatron", SMALL, {}, {"virtual_stages": 2}, "hgx-h100", "use vpp 1"),
        ("megatron-bridge", SMALL, {"dtype": "fp32"}, {}, "hgx-h100", "no recipe in fp32"),
        ("torchtitan", SMALL, {}, {}, "hgx-h100", "use zero2, or zero3"),
        ("torchtitan", "gpt2-xl", {}, FSDP, "hgx-h100", "no configuration of openai-community/gpt2-xl"),
        ("torchtitan", SMALL, {}, {**FSDP, "recompute": "norms"}, "hgx-h100", "use none, full, alternate"),
        ("torchtitan", SPARSE, {}, {**FSDP, "tp": 2, "ep": 8, "etp": 2}, "hgx-h100", "use etp 1"),
        ("torchtitan", SMALL, {}, {**FSDP, "pp": 4, "virtual_stages": 2, "schedule": "v-half"}, "hgx-h100", "no schedule v-"),
        ("torchtitan", SMALL, {}, {**FSDP, "pp": 4, "micro_batch": 64}, "hgx-h100", "at least 4 micro-batches"),
        ("megatron", SMALL, {"seq": 2050}, {"cp": 2}, "hgx-h100", "a sequence of 2050 is not a multiple of 4"),
        ("megatron", "deepseek-v2-lite", {}, {"ep": 24, "dp": 24}, "hgx-h100", "64 experts are not a multiple of ep 24"),
        ("maxtext", SMALL, {}, {"sharding": "zero2"}, "tpu-v5p", "use zero1 or zero3"),
        ("maxtext", SMALL, {}, {**FSDP, "pp": 5, "schedule": "gpipe"}, "tpu-v5p", "not a multiple of 5 chunks"),
        ("maxtext", SMALL, {"task": "lora"}, FSDP, "tpu-v5p", "no LoRA adapters"),
        ("maxtext", "bigscience/bloom", {}, FSDP, "tpu-v5p", "only plain Llama"),
        ("maxtext", SMALL, {}, {**FSDP, "recompute": "norms"}, "tpu-v5p", "no policy"),
        ("maxtext", SPARSE, {}, {**FSDP, "ep": 3, "dp": 12}, "tpu-v5p", None),
    ],
)  # fmt: skip
def test_what_a_stack_cannot_run_is_told_with_what_it_can(stack, name, job, layout, machine, words):
    asked = replace(TrainingJob(seq=2048, batch=3072 if layout.get("dp") else 1024), **job)
    laid = TrainingLayout(**{"dp": 8, **layout})
    lines = training_lines(model(name), asked, laid, system(machine), stack)
    if words is None:
        assert len(lines) > 1
        return
    (reason,) = lines
    assert words in reason
    with pytest.raises(LayoutError, match="cannot run this") as refusal:
        training_commands(model(name), asked, laid, system(machine), stack)
    assert reason == f"# {refusal.value}"


def test_bad_input_is_named():
    fine = TrainingLayout(dp=8)
    with pytest.raises(UnknownName, match="megatron"):
        training_commands(model("llama-3.1-8b"), JOB, fine, system("hgx-h100"), "megatrom")
    with pytest.raises(LayoutError, match="1f1b has no virtual stages"):
        training_commands(model("llama-3.1-8b"), JOB, replace(fine, pp=4, virtual_stages=2), system("hgx-h100"), "megatron")
    laid = replace(fine, pp=4, virtual_stages=5, schedule="zbv")
    with pytest.raises(LayoutError, match="zbv has 2 virtual stages"):
        training_commands(model("llama-3.1-8b"), JOB, laid, system("hgx-h100"), "torchtitan")
    with pytest.raises(InputError, match="use 1020"):
        training_commands(model("llama-3.1-8b"), JOB, replace(fine, dp=12), system("hgx-h100"), "megatron")
    with pytest.raises(InputError, match=r"dp: .* array of 2"):
        training_commands(model("llama-3.1-8b"), JOB, replace(fine, dp=np.array([8, 16])), system("hgx-h100"), "megatron")
    with pytest.raises(InputError, match="2 hosts of 8"):
        training_commands(model("llama-3.1-8b"), replace(JOB, batch=9), replace(fine, dp=9), system("hgx-h100"), "megatron")


def test_a_stack_has_one_command_under_each_of_its_names():
    layout = TrainingLayout(tp=8, dp=8)
    commands = [
        training_commands(model("llama-3.1-8b"), JOB, layout, system("hgx-h100"), name) for name in ("megatron", "megatron-lm")
    ]
    assert commands[0] == commands[1]
    assert load_stack("megatron-bridge") == load_stack("megatron")
