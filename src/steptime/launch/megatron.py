"""Megatron-LM, as release 0.19 of Megatron Core takes its flags: `torchrun pretrain_gpt.py`.

Shape flags are said from the model's numbers, so that a plain GPT, Llama, mixture of experts or model with latent attention
needs no recipe. Sources: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py and
megatron/core/transformer/pipeline_parallel_layer_layout.py of the package.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Final

from steptime.launch.shell_script import Command
from steptime.launch.training_run import MINE, STEPS, Run, hosts_started, layers_by_chunk, torchrun

SCHEDULES: Final = ("1f1b", "interleaved")
MODULES: Final = {
    "attention": "core_attn", "norms": "layernorm", "mlp": "mlp", "moe_act": "moe_act", "mla_up_proj": "mla_up_proj",
    "shared_experts": "shared_experts", "moe": "moe",
}  # fmt: skip
"""Its words for what is computed again; https://docs.nvidia.com/megatron-core/developer-guide/latest/"""
PARENT_MODULES: Final = {"activation": "mlp", "moe_act": "moe", "moe_input": "moe"}  # modules that another one holds
PRECISION: Final = {
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp32": (),
    "fp8": ("--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"),
    "mxfp8": ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"),
}
OPTIMIZERS: Final = {
    "adamw": (),
    "adamw-bf16": ("--use-precision-aware-optimizer", "--exp-avg-dtype bf16", "--exp-avg-sq-dtype bf16"),
    "adamw-fp8": (
        "--use-precision-aware-optimizer", "--main-params-dtype fp16", "--exp-avg-dtype fp8", "--exp-avg-sq-dtype fp8",
    ),
    "muon": ("--optimizer muon",),
    "sgd": ("--optimizer sgd",),
}  # fmt: skip
STRATEGIES: Final = {"zero2": "optim_grads", "zero3": "optim_grads_params"}  # of Megatron-FSDP
NARROW: Final = 2.0  # bytes of a gradient that is reduced in bf16
FUSED: Final = 6.0  # bytes of a logit with a fused cross-entropy


def unable(run: Run) -> list[str]:
    """Say what of a run Megatron-LM does not do."""
    problems = []
    if run.job.task == "lora":
        problems.append("pretrain_gpt.py trains no LoRA adapters; the stack megatron-bridge does")
    if run.shape.odd:
        problems.append(
            f"its flags cannot say {', '.join(run.shape.odd)}; the stack megatron-bridge reads a checkpoint's config"
        )
    return [*problems, *cannot(run)]


def cannot(run: Run) -> list[str]:
    """Say what of a run Megatron Core does not do, whoever starts it."""
    job, problems = run.job, []
    if run.system.chip.vendor not in ("NVIDIA", "AMD", ""):
        problems.append(f"it runs on GPUs of NVIDIA and AMD, not on chips of {run.system.chip.vendor}")
    if job.dtype not in PRECISION:
        problems.append(f"it computes no products in {job.dtype}; its formats are {', '.join(PRECISION)}")
    if job.dtype == "mxfp8" and run.system.chip.vendor == "NVIDIA" and not run.blackwell:
        problems.append("mxfp8 needs Blackwell or later; take fp8")
    if job.optimizer not in OPTIMIZERS:
        problems.append(f"it has no optimizer {job.optimizer}; its are {', '.join(OPTIMIZERS)}")
    every = math.lcm(2 * run.cp if run.cp > 1 else 1, run.tp * run.cp if job.sequence_parallel else 1)
    if run.seq % every:
        problems.append(f"a sequence of {run.seq} does not divide by {every}, as tensor and context parallelism want")
    return [*problems, *_states(run), *_pipeline_cannot(run), *_recomputation_cannot(run), *_experts_cannot(run)]


def _states(run: Run) -> list[str]:
    """Say which optimizers and groups do not go with a sharding."""
    problems, sharding = [], run.layout.sharding
    fsdp = sharding in STRATEGIES
    if run.job.optimizer in ("adamw-bf16", "adamw-fp8") and sharding == "none":
        problems.append(f"narrow states of {run.job.optimizer} need its distributed optimizer; take zero1")
    if run.job.optimizer == "muon" and fsdp:
        problems.append(f"Megatron-FSDP, which is its {sharding}, runs adamw and sgd, not muon; take zero1")
    if run.job.optimizer == "muon" and sharding == "zero1" and run.group < run.dp:
        problems.append("its muon divides states over all copies; leave the sharding group out")
    if sharding != "none" and run.dp % run.group:
        problems.append(f"{run.dp} copies do not divide by groups of {run.group}")
    return problems


def _pipeline_cannot(run: Run) -> list[str]:
    if run.pp == 1:
        return ["virtual stages need a pipeline; take vpp 1"] if run.virtual > 1 else []
    if run.schedule not in SCHEDULES:
        return [f"it has no schedule {run.schedule}; its are {' and '.join(SCHEDULES)}"]
    return []


def _recomputation_cannot(run: Run) -> list[str]:
    """Say which modules it does not compute again by themselves, or not in a format."""
    words = run.words
    if words == ("full",):
        return []
    unknown = [w for w in words if w not in MODULES and not (w in PARENT_MODULES and PARENT_MODULES[w] in words)]
    problems = [f"it does not compute {w!r} again by itself; {_nearest(w)}" for w in unknown]
    if "mla_up_proj" in words and not run.shape.latent:
        problems.append("mla_up_proj is a part of latent attention, which this model has not")
    return problems


def _nearest(word: str) -> str:
    if word in PARENT_MODULES:
        return f"{PARENT_MODULES[word]} holds it"
    return f"its modules are {', '.join(MODULES)}, and full"


def _experts_cannot(run: Run) -> list[str]:
    if not run.shape.experts:
        return []
    problems = []
    if run.tp > 1 and not run.job.sequence_parallel:
        problems.append("experts with tensor parallelism need sequence parallelism in it")
    if run.shape.experts.count % run.ep:
        problems.append(f"{run.shape.experts.count} experts do not divide by ep {run.ep}")
    if run.tp * run.cp * run.dp % (run.ep * run.etp):
        problems.append(f"{run.tp * run.cp * run.dp} chips of a stage do not divide by ep {run.ep} x etp {run.etp}")
    return problems


def commands(run: Run) -> list[Command]:
    """Return the command of a host."""
    words = [
        *torchrun(run), "pretrain_gpt.py", *shape_flags(run), *parallel_flags(run), *_batch(run), *PRECISION[run.job.dtype],
        *sharding_flags(run), *OPTIMIZERS[run.job.optimizer], *recompute_flags(run), *_data(run),
    ]  # fmt: skip
    return [Command(words=(" ".join(words[:1]), *words[1:]), environment=environment(run), notes=notes(run))]


def notes(run: Run) -> tuple[str, ...]:
    """Return what to mind."""
    lines = [*hosts_started(run), MINE.format(steps=STEPS)]
    if run.system.chip.vendor == "AMD":
        lines.append("on AMD's chips: ROCm's fork of Megatron-LM, which may lag behind these flags")
    if run.job.task == "sft":
        lines.append("fine-tuning takes the same step: --sft with your data and --load with a checkpoint")
    if run.job.dtype == "mxfp8" and run.layout.sharding == "zero1":
        lines.append("weights stay in bf16 beside their mxfp8 copies: --fp8-param-gather with")
        lines.append("--reuse-grad-buf-for-mxfp8-param-ag would keep them in mxfp8")
    return tuple(lines)


def environment(run: Run) -> dict[str, str]:
    """Return the one variable that tensor and context parallelism ask for before Blackwell, and that FSDP forbids."""
    asks = (run.tp > 1 or run.cp > 1) and not run.blackwell and run.layout.sharding not in STRATEGIES
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if asks else {}


# --- the model ----------------------------------------------------------------------------------------------------------


def shape_flags(run: Run) -> list[str]:
    """Return the flags of a model's shape."""
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
    words += ["--attention-dropout 0", "--hidden-dropout 0"]  # 0.1 unless told
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
    """Return the flags of the ways; experts are divided by tp too unless told, so that their ways are always said."""
    words = [f"--tensor-model-parallel-size {run.tp}"] if run.tp > 1 else []
    words += ["--sequence-parallel"] if run.tp > 1 and run.job.sequence_parallel else []
    words += [f"--context-parallel-size {run.cp}"] if run.cp > 1 else []
    if run.shape.experts:
        words += [f"--expert-model-parallel-size {run.ep}", f"--expert-tensor-parallel-size {run.etp}"]
    if run.pp > 1:
        words += [f"--pipeline-model-parallel-size {run.pp}", *split_flags(run)]
    return words


def split_flags(run: Run) -> list[str]:
    """Return the flags that say which layers lie on which stage.

    Where they divide once the embedding and the head count as a layer each (Llama 3.1 405B: 126 + 2 = 8 x 16), two flags count
    them so. Where they divide by nothing, each chunk is spelt out.
    """
    chunks = run.pp * run.virtual
    if run.even or run.slotted:
        layers_per_chunk = (run.shape.layers + 2 * run.slotted) // chunks
        words = ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"] if run.slotted else []
        return words + ([f"--num-layers-per-virtual-pipeline-stage {layers_per_chunk}"] if run.virtual > 1 else [])
    return [f"--pipeline-model-parallel-layout '{spelt(layers_by_chunk(run), run.drafts)}'"]


def spelt(counts: list[int], drafts: int = 0) -> str:
    """Write layers by chunk as Megatron Core reads them: E embedding, t layer, m multi-token prediction, L loss.

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
    """Return the flags of what copies divide, and of what they exchange while they compute."""
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
    """Return the flags of what the backward pass computes again."""
    words = run.words
    if words == ("full",):
        return ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    modules = [MODULES[w] for w in words if w in MODULES]
    return ["--recompute-granularity selective", f"--recompute-modules {' '.join(dict.fromkeys(modules))}"] if modules else []


def _data(run: Run) -> list[str]:
    """Return the flags of kernels, of synthetic data and of the run's length."""
    fused = ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl native"] if run.job.logit_bytes <= FUSED else []
    kernel = ["--attention-backend unfused"] if run.job.attention == "unfused" else []
    return [
        *kernel, *fused, "--mock-data", "--tokenizer-type NullTokenizer", f"--vocab-size {run.shape.vocabulary}",
        "--lr 1e-4", f"--train-iters {STEPS}", "--eval-interval 1000", "--eval-iters 0", "--log-interval 1",
        "--log-throughput",
    ]  # fmt: skip
