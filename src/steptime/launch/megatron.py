"""The command of a training run in Megatron-LM, with the flags of release 0.19 of Megatron Core: `torchrun pretrain_gpt.py`.

The flags of the model's shape come from its numbers, so that a plain GPT, a Llama, a mixture of experts or a model with latent
attention needs no recipe. Sources: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py and
megatron/core/transformer/pipeline_parallel_layer_layout.py of the package.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Final

from steptime.launch.shell_script import Command
from steptime.launch.training_run import MINE, STEPS, Run, hosts_started, layers_by_chunk, torchrun

SCHEDULES: Final = ("1f1b", "interleaved")
# Megatron Core's names of recomputed modules; https://docs.nvidia.com/megatron-core/developer-guide/latest/
MODULES: Final = {
    "attention": "core_attn", "norms": "layernorm", "mlp": "mlp", "moe_act": "moe_act", "mla_up_proj": "mla_up_proj",
    "shared_experts": "shared_experts", "moe": "moe",
}  # fmt: skip
# Modules that are part of another module.
PARENT_MODULES: Final = {"activation": "mlp", "moe_act": "moe", "moe_input": "moe"}
# Flags of each number format.
PRECISION: Final = {
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp32": (),
    "fp8": ("--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"),
    "mxfp8": ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"),
}
# Flags of each optimizer.
OPTIMIZERS: Final = {
    "adamw": (),
    "adamw-bf16": ("--use-precision-aware-optimizer", "--exp-avg-dtype bf16", "--exp-avg-sq-dtype bf16"),
    "adamw-fp8": (
        "--use-precision-aware-optimizer", "--main-params-dtype fp16", "--exp-avg-dtype fp8", "--exp-avg-sq-dtype fp8",
    ),
    "muon": ("--optimizer muon",),
    "sgd": ("--optimizer sgd",),
}  # fmt: skip
# Sharding strategies of Megatron-FSDP.
STRATEGIES: Final = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
# Bytes of a gradient that is reduced in bf16.
NARROW: Final = 2.0
# Bytes of a logit with a fused cross-entropy.
FUSED: Final = 6.0


def unable(run: Run) -> list[str]:
    """Return the reasons why Megatron-LM cannot run a training layout.

    Args:
        run: The training run.

    Returns:
        One sentence per reason; empty if it can.
    """
    problems = []
    if run.job.task == "lora":
        problems.append("pretrain_gpt.py has no LoRA adapters; use the stack megatron-bridge")
    if run.shape.odd:
        problems.append(
            f"its flags cannot express {', '.join(run.shape.odd)}; the stack megatron-bridge reads a checkpoint's config"
        )
    return [*problems, *cannot(run)]


def cannot(run: Run) -> list[str]:
    """Return the reasons why Megatron Core cannot run a training layout.

    They apply to Megatron-LM and to Megatron-Bridge.

    Args:
        run: The training run.

    Returns:
        One sentence per reason; empty if it can.
    """
    job, problems = run.job, []
    if run.system.chip.vendor not in ("NVIDIA", "AMD", ""):
        problems.append(f"it runs on GPUs of NVIDIA and AMD, not on chips of {run.system.chip.vendor}")
    if job.dtype not in PRECISION:
        problems.append(f"it has no GEMMs in {job.dtype}; use {', '.join(PRECISION)}")
    if job.dtype == "mxfp8" and run.system.chip.vendor == "NVIDIA" and not run.blackwell:
        problems.append("mxfp8 needs Blackwell or later; use fp8")
    if job.optimizer not in OPTIMIZERS:
        problems.append(f"it has no optimizer {job.optimizer}; use {', '.join(OPTIMIZERS)}")
    # Context parallelism needs a multiple of 2 cp; together with sequence parallelism, also of tp x cp.
    every = math.lcm(2 * run.cp if run.cp > 1 else 1, run.tp * run.cp if job.sequence_parallel else 1)
    if run.seq % every:
        problems.append(f"a sequence of {run.seq} is not a multiple of {every}, as tensor and context parallelism require")
    return [*problems, *_states(run), *_pipeline_cannot(run), *_recomputation_cannot(run), *_experts_cannot(run)]


def _states(run: Run) -> list[str]:
    """Return the reasons against an optimizer or a group with this sharding."""
    problems, sharding = [], run.layout.sharding
    fsdp = sharding in STRATEGIES
    if run.job.optimizer in ("adamw-bf16", "adamw-fp8") and sharding == "none":
        problems.append(f"narrow states of {run.job.optimizer} need its distributed optimizer; use zero1")
    if run.job.optimizer == "muon" and fsdp:
        problems.append(f"{sharding} is Megatron-FSDP, which has adamw and sgd but not muon; use zero1")
    if run.job.optimizer == "muon" and sharding == "zero1" and run.group < run.dp:
        problems.append("its muon shards states over all data-parallel ranks; leave the sharding group out")
    if sharding != "none" and run.dp % run.group:
        problems.append(f"dp {run.dp} is not a multiple of the sharding group {run.group}")
    return problems


def _pipeline_cannot(run: Run) -> list[str]:
    if run.pp == 1:
        return ["virtual stages need a pipeline; use vpp 1"] if run.virtual > 1 else []
    if run.schedule not in SCHEDULES:
        return [f"it has no schedule {run.schedule}; use {' or '.join(SCHEDULES)}"]
    return []


def _recomputation_cannot(run: Run) -> list[str]:
    """Return the reasons against the recomputed modules."""
    words = run.words
    if words == ("full",):
        return []
    unknown = [w for w in words if w not in MODULES and not (w in PARENT_MODULES and PARENT_MODULES[w] in words)]
    problems = [f"it cannot recompute only {w!r}; {_nearest(w)}" for w in unknown]
    if "mla_up_proj" in words and not run.shape.latent:
        problems.append("mla_up_proj is part of latent attention, which this model does not have")
    return problems


def _nearest(word: str) -> str:
    if word in PARENT_MODULES:
        return f"it is part of {PARENT_MODULES[word]}"
    return f"use {', '.join(MODULES)}, or full"


def _experts_cannot(run: Run) -> list[str]:
    if not run.shape.experts:
        return []
    problems = []
    if run.tp > 1 and not run.job.sequence_parallel:
        problems.append("experts with tensor parallelism need sequence parallelism")
    if run.shape.experts.count % run.ep:
        problems.append(f"{run.shape.experts.count} experts are not a multiple of ep {run.ep}")
    if run.tp * run.cp * run.dp % (run.ep * run.etp):
        problems.append(f"{run.tp * run.cp * run.dp} chips per stage are not a multiple of ep {run.ep} x etp {run.etp}")
    return problems


def commands(run: Run) -> list[Command]:
    """Return the command of a host.

    Args:
        run: The training run.

    Returns:
        One command, the same on each host.
    """
    words = [
        *torchrun(run), "pretrain_gpt.py", *shape_flags(run), *parallel_flags(run), *_batch(run), *PRECISION[run.job.dtype],
        *sharding_flags(run), *OPTIMIZERS[run.job.optimizer], *recompute_flags(run), *_data(run),
    ]  # fmt: skip
    return [Command(words=(" ".join(words[:1]), *words[1:]), environment=environment(run), notes=notes(run))]


def notes(run: Run) -> tuple[str, ...]:
    """Return notes on the command.

    Args:
        run: The training run.

    Returns:
        Comment lines.
    """
    lines = [*hosts_started(run), MINE.format(steps=STEPS)]
    if run.system.chip.vendor == "AMD":
        lines.append("on AMD chips: use ROCm's fork of Megatron-LM, which may not have all these flags")
    if run.job.task == "sft":
        lines.append("fine-tuning has the same step: add --sft with your data, and --load with a checkpoint")
    if run.job.dtype == "mxfp8" and run.layout.sharding == "zero1":
        lines.append("weights stay in bf16 in addition to their mxfp8 copies: --fp8-param-gather with")
        lines.append("--reuse-grad-buf-for-mxfp8-param-ag keeps only the mxfp8 copies")
    return tuple(lines)


def environment(run: Run) -> dict[str, str]:
    """Return the environment of the command.

    Before Blackwell, tensor and context parallelism need one connection per device; FSDP forbids it.

    Args:
        run: The training run.

    Returns:
        Variables by name.
    """
    asks = (run.tp > 1 or run.cp > 1) and not run.blackwell and run.layout.sharding not in STRATEGIES
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if asks else {}


# --- the model ----------------------------------------------------------------------------------------------------------


def shape_flags(run: Run) -> list[str]:
    """Return the flags of the model's shape.

    Args:
        run: The training run.

    Returns:
        Flags with their values.
    """
    s = run.shape
    words = [
        f"--num-layers {s.layers}", f"--hidden-size {s.width}", f"--ffn-hidden-size {s.hidden}",
        f"--num-attention-heads {s.heads}",
    ]  # fmt: skip
    if s.latent:
        words += _latent(run)
    elif s.head * s.heads != s.width or s.groups != s.heads:
        words.append(f"--kv-channels {s.head}")
    if not s.latent and s.groups != s.heads:
        words += ["--group-query-attention", f"--num-query-groups {s.groups}"]
    words += [f"--seq-length {run.seq}", f"--max-position-embeddings {run.seq}"]
    words.append(f"--position-embedding-type {'learned_absolute' if s.learned_positions else 'rope'}")
    words += ["--normalization RMSNorm"] if s.rms else []
    words += ["--swiglu"] if s.gated else []
    words += [] if s.bias else ["--disable-bias-linear"]
    words += ["--add-qkv-bias"] if s.qkv_bias and not s.bias else []
    words += ["--qk-layernorm"] if s.query_norms or s.latent else []
    words += [] if s.tied else ["--untie-embeddings-and-output-weights"]

    # The default of both is 0.1.
    words += ["--attention-dropout 0", "--hidden-dropout 0"]
    words += [f"--mtp-num-layers {run.drafts}"] if run.drafts else []
    return [*words, *_expert_shape(run)]


def _latent(run: Run) -> list[str]:
    latent = run.shape.latent
    assert latent is not None
    return [
        "--multi-latent-attention",
        *([f"--q-lora-rank {latent.query_rank}"] if latent.query_rank else []),
        f"--kv-lora-rank {latent.rank}",
        f"--qk-head-dim {latent.plain}",
        f"--qk-pos-emb-head-dim {latent.rotary}",
        f"--v-head-dim {latent.value}",
        f"--kv-channels {latent.value}",
    ]


def _expert_shape(run: Run) -> list[str]:
    experts, s = run.shape.experts, run.shape
    if experts is None:
        return []
    words = [
        f"--num-experts {experts.count}", f"--moe-router-topk {experts.active}", f"--moe-ffn-hidden-size {experts.width}",
        "--moe-grouped-gemm", "--moe-token-dispatcher-type alltoall", "--moe-router-load-balancing-type aux_loss",
    ]  # fmt: skip
    if experts.shared:
        words.append(f"--moe-shared-expert-intermediate-size {experts.shared}")
    if s.dense:
        words.append(f"--moe-layer-freq '([0]*{s.dense}+[1]*{s.layers - s.dense})'")
    groups, topk_groups = experts.groups
    if groups > 1:
        words += [f"--moe-router-num-groups {groups}", f"--moe-router-group-topk {topk_groups}"]
    return words


# --- the layout ---------------------------------------------------------------------------------------------------------


def parallel_flags(run: Run) -> list[str]:
    """Return the flags of the parallel sizes.

    By default Megatron divides experts by tp too, so that the sizes of experts are always given.

    Args:
        run: The training run.

    Returns:
        Flags with their values.
    """
    words = [f"--tensor-model-parallel-size {run.tp}"] if run.tp > 1 else []
    words += ["--sequence-parallel"] if run.tp > 1 and run.job.sequence_parallel else []
    words += [f"--context-parallel-size {run.cp}"] if run.cp > 1 else []
    if run.shape.experts:
        words += [f"--expert-model-parallel-size {run.ep}", f"--expert-tensor-parallel-size {run.etp}"]
    if run.pp > 1:
        words += [f"--pipeline-model-parallel-size {run.pp}", *split_flags(run)]
    return words


def split_flags(run: Run) -> list[str]:
    """Return the flags that assign layers to pipeline stages.

    Two flags count the embedding and the head as one layer each, if the layers then divide evenly (Llama 3.1 405B:
    126 + 2 = 8 x 16). Any other layout lists the layers of each chunk.

    Args:
        run: The training run.

    Returns:
        Flags with their values.
    """
    chunks = run.pp * run.virtual
    if run.even or run.slotted:
        layers_per_chunk = (run.shape.layers + 2 * run.slotted) // chunks
        words = ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"] if run.slotted else []
        return words + ([f"--num-layers-per-virtual-pipeline-stage {layers_per_chunk}"] if run.virtual > 1 else [])
    return [f"--pipeline-model-parallel-layout '{spelt(layers_by_chunk(run), run.drafts)}'"]


def spelt(counts: list[int], drafts: int = 0) -> str:
    """Return layers by chunk in the notation of Megatron Core.

    E is the embedding, t a layer, m multi-token prediction, L the loss.

    Args:
        counts: Layers of each chunk.
        drafts: Multi-token-prediction layers.

    Returns:
        Text such as "Et*7|(t*8|)*3t*7L".

    >>> spelt([7, 8, 8, 8, 7]), spelt([4, 4, 3], 1)
    ('Et*7|(t*8|)*3t*7L', 'Et*4|t*4|t*3mL')
    """

    def layers(n: int) -> str:
        return "" if n == 0 else "t" if n == 1 else f"t*{n}"

    text = f"E{layers(counts[0])}|"
    for n, equal_counts in groupby(counts[1:-1]):
        times = len(list(equal_counts))
        text += f"({layers(n)}|)*{times}" if times > 1 else f"{layers(n)}|"
    return text + layers(counts[-1]) + "m" * drafts + "L"


def _batch(run: Run) -> list[str]:
    return [f"--micro-batch-size {run.micro_batch}", f"--global-batch-size {run.batch}"]


def sharding_flags(run: Run) -> list[str]:
    """Return the flags of sharding, and of its exchange during computation.

    Args:
        run: The training run.

    Returns:
        Flags with their values.
    """
    sharding, overlap = run.layout.sharding, ["--overlap-grad-reduce", "--overlap-param-gather"]
    groups = [f"--num-distributed-optimizer-instances {run.dp // run.group}"] if run.group < run.dp else []
    narrow = ["--grad-reduce-in-bf16"] if run.job.gradient_bytes <= NARROW and run.job.dtype not in ("fp32", "fp16") else []
    if sharding == "none":
        return ["--overlap-grad-reduce", *narrow]
    if sharding == "zero1":
        return ["--use-distributed-optimizer", *overlap, *groups, *narrow]
    return [
        "--use-megatron-fsdp", f"--data-parallel-sharding-strategy {STRATEGIES[sharding]}", "--use-distributed-optimizer",
        *overlap, *groups, "--no-gradient-accumulation-fusion", "--init-model-with-meta-device",
        "--ckpt-format fsdp_dtensor", *narrow,
    ]  # fmt: skip


def recompute_flags(run: Run) -> list[str]:
    """Return the flags of recomputation.

    Args:
        run: The training run.

    Returns:
        Flags with their values.
    """
    words = run.words
    if words == ("full",):
        return ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    modules = [MODULES[w] for w in words if w in MODULES]
    return ["--recompute-granularity selective", f"--recompute-modules {' '.join(dict.fromkeys(modules))}"] if modules else []


def _data(run: Run) -> list[str]:
    """Return the flags of kernels, synthetic data and length of the run."""
    fused = ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl native"] if run.job.logit_bytes <= FUSED else []
    kernel = ["--attention-backend unfused"] if run.job.attention == "unfused" else []
    return [
        *kernel, *fused, "--mock-data", "--tokenizer-type NullTokenizer", f"--vocab-size {run.shape.vocabulary}",
        "--lr 1e-4", f"--train-iters {STEPS}", "--eval-interval 1000", "--eval-iters 0", "--log-interval 1",
        "--log-throughput",
    ]  # fmt: skip
