"""The command of a training run in Megatron-LM, with the flags of release 0.19 of Megatron Core: `torchrun pretrain_gpt.py`.

The flags of the model's shape come from its numbers. So a plain GPT, a Llama, a mixture of experts or a model with latent
attention needs no recipe. Sources: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py and
megatron/core/transformer/pipeline_parallel_layer_layout.py of the package.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Final

from steptime.launch.shell_script import Command, select_texts
from steptime.launch.training_run import STEPS, SYNTHETIC, Latent, Run, Shape, hosts_started, layers_by_chunk, torchrun
from steptime.training.training_job import ACTIVATIONS, OPTIMIZER

TITLE: Final = "Megatron-LM"
# Makers of the chips that it runs on; "" is an unknown maker.
VENDORS: Final = ("NVIDIA", "AMD", "")
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
# Modules whose saved activations go to host memory, with the recomputed modules that drop them instead. Source:
# https://docs.nvidia.com/megatron-core/developer-guide/latest/user-guide/features/fine_grained_activation_offloading.html
OFFLOADED: Final = {"attn_norm": "norms", "core_attn": "attention", "attn_proj": "", "mlp_norm": "norms"}
OFFLOADED_EXPERTS: Final = {"expert_fc1": "moe_input", "moe_act": "moe_act"}
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
    odd = ", ".join(run.shape.odd)
    problems = select_texts(
        (run.job.task == "lora", "pretrain_gpt.py has no LoRA adapters; use the stack megatron-bridge"),
        (odd, f"its flags cannot express {odd}; the stack megatron-bridge reads a checkpoint's config"),
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
    job, sharding, muon = run.job, run.layout.sharding, run.job.optimizer == "muon"
    narrow_states = job.optimizer in ("adamw-bf16", "adamw-fp8")
    # Context parallelism needs a multiple of 2 cp; together with sequence parallelism, also of tp x cp.
    every = math.lcm(2 * run.cp if run.cp > 1 else 1, run.tp * run.cp if job.sequence_parallel else 1)
    problems = select_texts(
        (run.vendor not in VENDORS, f"it runs on GPUs of NVIDIA and AMD, not on chips of {run.vendor}"),
        (job.dtype not in PRECISION, f"it has no GEMMs in {job.dtype}; use {', '.join(PRECISION)}"),
        (job.dtype == "mxfp8" and run.vendor == "NVIDIA" and not run.blackwell, "mxfp8 needs Blackwell or later; use fp8"),
        (job.optimizer not in OPTIMIZERS, f"it has no optimizer {job.optimizer}; use {', '.join(OPTIMIZERS)}"),
        (run.seq % every, f"a sequence of {run.seq} is not a multiple of {every}, as tensor and context parallelism require"),
        (narrow_states and sharding == "none", f"narrow states of {job.optimizer} need its distributed optimizer; use zero1"),
        (muon and sharding in STRATEGIES, f"{sharding} is Megatron-FSDP, which has adamw and sgd but not muon; use zero1"),
        (
            muon and sharding == "zero1" and run.group < run.dp,
            "its muon shards states over all data-parallel ranks; leave the sharding group out",
        ),
        (sharding != "none" and run.dp % run.group, f"dp {run.dp} is not a multiple of the sharding group {run.group}"),
        (
            run.job.offloads(ACTIVATIONS) and run.words == ("full",),
            "activations that are all recomputed cannot be offloaded; use --recompute none",
        ),
        (run.job.offloads(OPTIMIZER) and sharding != "zero1", "it offloads states of its distributed optimizer; use zero1"),
        (run.pp == 1 and run.virtual > 1, "virtual stages need a pipeline; use vpp 1"),
        (run.pp > 1 and run.schedule not in SCHEDULES, f"it has no schedule {run.schedule}; use {' or '.join(SCHEDULES)}"),
    )
    return [*problems, *_recomputation_cannot(run), *_experts_cannot(run)]


def _recomputation_cannot(run: Run) -> list[str]:
    """Return the reasons against the recomputed modules."""
    if run.words == ("full",):
        return []
    unknown = [w for w in run.words if w not in MODULES and PARENT_MODULES.get(w) not in run.words]
    usable = f"use {', '.join(MODULES)}, or full"
    parents = {w: f"it is part of {parent}" for w, parent in PARENT_MODULES.items()}
    problems = [f"it cannot recompute only {w!r}; {parents.get(w, usable)}" for w in unknown]
    needs_latent = "mla_up_proj" in run.words and not run.shape.latent
    return problems + select_texts((needs_latent, "mla_up_proj is part of latent attention, which this model does not have"))


def _experts_cannot(run: Run) -> list[str]:
    if not run.shape.experts:
        return []
    experts, stage_chips = run.shape.experts.count, run.tp * run.cp * run.dp
    return select_texts(
        (run.tp > 1 and not run.job.sequence_parallel, "experts with tensor parallelism need sequence parallelism"),
        (experts % run.ep, f"{experts} experts are not a multiple of ep {run.ep}"),
        (stage_chips % (run.ep * run.etp), f"{stage_chips} chips per stage are not a multiple of ep {run.ep} x etp {run.etp}"),
    )


def commands(run: Run) -> list[Command]:
    """Return the command of a host.

    Args:
        run: The training run.

    Returns:
        One command, the same on each host.
    """
    words = [
        *torchrun(run), "pretrain_gpt.py", *_shape_flags(run), *_parallel_flags(run),
        f"--micro-batch-size {run.micro_batch}", f"--global-batch-size {run.batch}", *PRECISION[run.job.dtype],
        *_sharding_flags(run), *OPTIMIZERS[run.job.optimizer], *_recompute_flags(run), *_offload_flags(run), *_data(run),
    ]  # fmt: skip
    both_copies = run.job.dtype == "mxfp8" and run.layout.sharding == "zero1"
    notes = select_texts(
        (run.vendor == "AMD", "on AMD chips: use ROCm's fork of Megatron-LM, which may not have all these flags"),
        (run.job.task == "sft", "fine-tuning has the same step: add --sft with your data, and --load with a checkpoint"),
        (both_copies, "weights stay in bf16 in addition to their mxfp8 copies: --fp8-param-gather with"),
        (both_copies, "--reuse-grad-buf-for-mxfp8-param-ag keeps only the mxfp8 copies"),
    )
    return [Command(words=tuple(words), environment=environment(run), notes=(*hosts_started(run), SYNTHETIC, *notes))]


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


def _shape_flags(run: Run) -> list[str]:
    """Return the flags of the model's shape."""
    s, grouped = run.shape, run.shape.groups != run.shape.heads
    return [
        f"--num-layers {s.layers}", f"--hidden-size {s.width}", f"--ffn-hidden-size {s.hidden}",
        f"--num-attention-heads {s.heads}",
        *(_latent_flags(s.latent) if s.latent else select_texts(
            (s.head * s.heads != s.width or grouped, f"--kv-channels {s.head}"),
            (grouped, "--group-query-attention", f"--num-query-groups {s.groups}"),
        )),
        f"--seq-length {run.seq}", f"--max-position-embeddings {run.seq}",
        f"--position-embedding-type {'learned_absolute' if s.learned_positions else 'rope'}",
        *select_texts(
            (s.rms, "--normalization RMSNorm"),
            (s.gated, "--swiglu"),
            (not s.bias, "--disable-bias-linear"),
            (s.qkv_bias and not s.bias, "--add-qkv-bias"),
            (s.query_norms or s.latent, "--qk-layernorm"),
            (not s.tied, "--untie-embeddings-and-output-weights"),
        ),
        # The default of both is 0.1.
        "--attention-dropout 0", "--hidden-dropout 0",
        *select_texts((run.drafts, f"--mtp-num-layers {run.drafts}")),
        *_expert_flags(s),
    ]  # fmt: skip


def _latent_flags(latent: Latent) -> list[str]:
    return [
        "--multi-latent-attention", *select_texts((latent.query_rank, f"--q-lora-rank {latent.query_rank}")),
        f"--kv-lora-rank {latent.rank}", f"--qk-head-dim {latent.plain}", f"--qk-pos-emb-head-dim {latent.rotary}",
        f"--v-head-dim {latent.value}", f"--kv-channels {latent.value}",
    ]  # fmt: skip


def _expert_flags(shape: Shape) -> list[str]:
    experts = shape.experts
    if experts is None:
        return []
    groups, topk_groups = experts.groups
    return [
        f"--num-experts {experts.count}", f"--moe-router-topk {experts.active}", f"--moe-ffn-hidden-size {experts.width}",
        "--moe-grouped-gemm", "--moe-token-dispatcher-type alltoall", "--moe-router-load-balancing-type aux_loss",
        *select_texts(
            (experts.shared, f"--moe-shared-expert-intermediate-size {experts.shared}"),
            (shape.dense, f"--moe-layer-freq '([0]*{shape.dense}+[1]*{shape.layers - shape.dense})'"),
            (groups > 1, f"--moe-router-num-groups {groups}", f"--moe-router-group-topk {topk_groups}"),
        ),
    ]  # fmt: skip


def _parallel_flags(run: Run) -> list[str]:
    """Return the flags of the parallel sizes.

    By default Megatron divides experts by tp too, so that the sizes of experts are always given.
    """
    flags = select_texts(
        (run.tp > 1, f"--tensor-model-parallel-size {run.tp}"),
        (run.tp > 1 and run.job.sequence_parallel, "--sequence-parallel"),
        (run.cp > 1, f"--context-parallel-size {run.cp}"),
        (run.shape.experts, f"--expert-model-parallel-size {run.ep}", f"--expert-tensor-parallel-size {run.etp}"),
        (run.pp > 1, f"--pipeline-model-parallel-size {run.pp}"),
    )
    return flags + (_split_flags(run) if run.pp > 1 else [])


def _split_flags(run: Run) -> list[str]:
    """Return the flags that assign layers to pipeline stages.

    Two flags count the embedding and the head as one layer each, if the layers then divide evenly (Llama 3.1 405B:
    126 + 2 = 8 x 16). Any other layout lists the layers of each chunk.
    """
    if not (run.even or run.slotted):
        return [f"--pipeline-model-parallel-layout '{spelt(layers_by_chunk(run), run.drafts)}'"]
    layers_per_chunk = (run.shape.layers + 2 * run.slotted) // run.chunks
    return select_texts(
        (run.slotted, "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
        (run.virtual > 1, f"--num-layers-per-virtual-pipeline-stage {layers_per_chunk}"),
    )


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


def _sharding_flags(run: Run) -> list[str]:
    """Return the flags of sharding, and of its exchange during computation."""
    sharding, fsdp = run.layout.sharding, run.layout.sharding in STRATEGIES
    shards, groups = sharding != "none", run.dp // run.group
    return select_texts(
        (fsdp, "--use-megatron-fsdp", f"--data-parallel-sharding-strategy {STRATEGIES.get(sharding)}"),
        (shards, "--use-distributed-optimizer"),
        (True, "--overlap-grad-reduce"),
        (shards, "--overlap-param-gather"),
        (shards and run.group < run.dp, f"--num-distributed-optimizer-instances {groups}"),
        (fsdp, "--no-gradient-accumulation-fusion", "--init-model-with-meta-device", "--ckpt-format fsdp_dtensor"),
        (run.job.gradient_bytes <= NARROW and run.job.dtype not in ("fp32", "fp16"), "--grad-reduce-in-bf16"),
    )


def recomputed_modules(run: Run) -> list[str]:
    """Return Megatron Core's names of the recomputed modules.

    Args:
        run: The training run.

    Returns:
        Names without repetition, in the order of the layout.
    """
    return list(dict.fromkeys(MODULES[w] for w in run.words if w in MODULES))


def _recompute_flags(run: Run) -> list[str]:
    if run.words == ("full",):
        return ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    modules = recomputed_modules(run)
    return ["--recompute-granularity selective", f"--recompute-modules {' '.join(modules)}"] if modules else []


def offloaded_modules(run: Run) -> list[str]:
    """Return Megatron Core's names of the modules whose activations are offloaded.

    Args:
        run: The training run.

    Returns:
        Names; modules that are recomputed are left out.
    """
    modules = OFFLOADED | (OFFLOADED_EXPERTS if run.shape.experts else {})
    return [name for name, recomputed in modules.items() if recomputed not in run.words]


def _offload_flags(run: Run) -> list[str]:
    job = run.job
    states = job.offloads(OPTIMIZER)
    return select_texts(
        (states, "--optimizer-cpu-offload", "--optimizer-offload-fraction 1.0", "--overlap-cpu-optimizer-d2h-h2d"),
        (states and job.optimizer == "adamw", "--use-precision-aware-optimizer"),
        (job.offloads(ACTIVATIONS), "--fine-grained-activation-offloading"),
        (job.offloads(ACTIVATIONS), f"--offload-modules {' '.join(offloaded_modules(run))}"),
    )


def _data(run: Run) -> list[str]:
    """Return the flags of kernels, synthetic data and length of the run."""
    fused = run.job.logit_bytes <= FUSED
    kernels = select_texts(
        (run.job.attention == "unfused", "--attention-backend unfused"),
        (fused, "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl native"),
    )
    return [
        *kernels, "--mock-data", "--tokenizer-type NullTokenizer", f"--vocab-size {run.shape.vocabulary}", "--lr 1e-4",
        f"--train-iters {STEPS}", "--eval-interval 1000", "--eval-iters 0", "--log-interval 1", "--log-throughput",
    ]  # fmt: skip
