"""The command of a training run in MaxText 0.2, on TPUs and GPUs.

`python3 -m maxtext.trainers.pre_train.train base.yml key=value ...`. The axes of MaxText are `ici_*` inside a slice (the chips
that one fast fabric joins) and `dcn_*` between slices. Sources: maxtext/configs/base.yml, maxtext/configs/types.py and
maxtext/layers/nnx_decoders.py of the package.
"""

from __future__ import annotations

import math
from typing import Final

from steptime.launch.shell_script import Command, select_texts
from steptime.launch.training_run import STEPS, Run, hosts_started
from steptime.training.training_job import NO_OFFLOAD

TITLE: Final = "MaxText"
# Makers of the chips that it runs on; "" is an unknown maker.
VENDORS: Final = ("Google", "NVIDIA", "AMD", "")
# Names of models in MaxText's configs/models by their name in the catalogue. Other Llama models are described by numbers.
MODELS: Final = {
    "meta-llama/Llama-2-7b-hf": "llama2-7b", "meta-llama/Llama-2-13b-hf": "llama2-13b",
    "meta-llama/Llama-2-70b-hf": "llama2-70b", "meta-llama/Meta-Llama-3-8B": "llama3-8b",
    "meta-llama/Meta-Llama-3-70B": "llama3-70b", "meta-llama/Llama-3.1-8B": "llama3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama3.1-70b", "meta-llama/Llama-3.1-405B": "llama3.1-405b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3.3-70b", "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b", "mistralai/Mixtral-8x22B-v0.1": "mixtral-8x22b",
    "deepseek-ai/DeepSeek-V2-Lite": "deepseek2-16b", "deepseek-ai/DeepSeek-V2": "deepseek2-236b",
    "deepseek-ai/DeepSeek-V3": "deepseek3-671b", "deepseek-ai/DeepSeek-V3.1": "deepseek3-671b",
    "moonshotai/Kimi-K2-Instruct": "kimi-k2-1t", "Qwen/Qwen2.5-1.5B": "qwen2.5-1.5b", "Qwen/Qwen2.5-7B": "qwen2.5-7b",
    "Qwen/Qwen2.5-14B": "qwen2.5-14b", "Qwen/Qwen3-0.6B": "qwen3-0.6b", "Qwen/Qwen3-1.7B": "qwen3-1.7b",
    "Qwen/Qwen3-4B": "qwen3-4b", "Qwen/Qwen3-8B": "qwen3-8b", "Qwen/Qwen3-14B": "qwen3-14b", "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b", "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": "qwen3-480b-a35b", "openai/gpt-oss-20b": "gpt-oss-20b",
    "openai/gpt-oss-120b": "gpt-oss-120b", "google/gemma-2-2b": "gemma2-2b", "google/gemma-2-9b": "gemma2-9b",
    "google/gemma-2-27b": "gemma2-27b", "google/gemma-3-4b-it": "gemma3-4b", "google/gemma-3-12b-it": "gemma3-12b",
    "google/gemma-3-27b-it": "gemma3-27b",
}  # fmt: skip
SCHEDULES: Final = ("gpipe", "1f1b", "interleaved")
# Recomputation policies of dense models. A policy names the GEMMs whose outputs are stored; everything else is recomputed.
POLICIES: Final = {
    frozenset(("norms", "activation")): "minimal_with_context",
    frozenset(("norms", "activation", "attention")): "minimal",
    frozenset(("norms", "mlp")): "save_dot_with_context_except_mlp",
    frozenset(("norms", "mlp", "attention")): "save_dot_except_mlp",
}
# Policies of all models: recompute nothing, or everything.
WHOLE_LAYER_POLICIES: Final = {"none": "none", "full": "full"}
# Keys of each number format on TPUs.
ON_TPU: Final = {
    "bf16": (), "fp32": ("dtype=float32",), "int8": ("quantization=int8", "use_qwix_quantization=true"),
    "fp8": ("quantization=fp8_full", "use_qwix_quantization=true"),
}  # fmt: skip
# Keys of each number format on GPUs, through Transformer Engine.
ON_GPU: Final = {
    "bf16": (), "fp32": ("dtype=float32",), "fp16": ("dtype=float16",), "fp8": ("quantization=te_fp8_currentscaling",),
    "mxfp8": ("quantization=te_mxfp8",), "nvfp4": ("quantization=te_nvfp4",),
}  # fmt: skip
OPTIMIZERS: Final = ("adamw", "muon", "sgd")
# Bytes of a 16-bit gradient.
NARROW: Final = 2.0
# Port on which processes on GPUs meet.
PORT: Final = 1234


def unable(run: Run) -> list[str]:
    """Return the reasons why MaxText cannot run a training layout.

    Args:
        run: The training run.

    Returns:
        One sentence per reason; empty if it can.
    """
    job, name, formats, s = run.job, run.model.name, _formats(run), run.shape
    # The "llama2" block of MaxText has two norms, no biases and a gated feed-forward block.
    biased = s.bias or s.qkv_bias or s.query_norms or s.learned_positions
    plain = s.gated and s.rms and not (s.odd or biased or s.latent or s.experts)
    # Narrow optimizer states have no equivalent: MaxText narrows only the first moment.
    narrow = "; mu_dtype narrows only the first moment" if job.optimizer.startswith("adamw-") else ""
    policies = ", ".join([*WHOLE_LAYER_POLICIES, *("+".join(sorted(p)) for p in POLICIES)])
    scope_text = " of a model with experts" if s.experts else ""
    before_blackwell = run.vendor == "NVIDIA" and not run.blackwell
    problems = select_texts(
        (run.vendor not in VENDORS, f"it runs on TPUs and GPUs, not on chips of {run.vendor}"),
        (name not in MODELS and not plain, f"it has no configuration of {name}, and its keys describe only plain Llama models"),
        (job.task == "lora", "pretraining has no LoRA adapters; use maxtext.trainers.post_train.sft with your own data"),
        (job.dtype not in formats, f"it has no GEMMs in {job.dtype} on these chips; use {', '.join(formats)}"),
        (job.dtype in ("mxfp8", "nvfp4") and before_blackwell, f"{job.dtype} needs Blackwell or later; use fp8"),
        (job.optimizer not in OPTIMIZERS, f"it has no optimizer {job.optimizer}{narrow}; use {', '.join(OPTIMIZERS)}"),
        (not _policy(run), f"it has no policy that recomputes {run.layout.recompute!r}{scope_text}; use {policies}"),
    )
    if job.offload != NO_OFFLOAD:
        problems.append("steptime cannot configure its offload to host memory; use --launch megatron")
    return [*problems, *_axes_cannot(run), *_pipeline_cannot(run)]


def _formats(run: Run) -> dict[str, tuple[str, ...]]:
    return ON_TPU if run.vendor == "Google" else ON_GPU


def _policy(run: Run) -> str:
    """Return the recomputation policy; "" if MaxText has no such policy.

    Models with experts have other names of outputs, so that policies by name exist only for dense models.
    """
    by_name = "" if run.shape.experts else POLICIES.get(frozenset(run.words), "")
    return WHOLE_LAYER_POLICIES.get(run.layout.recompute, by_name)


def _axes_cannot(run: Run) -> list[str]:
    """Return the reasons against the sharding, its groups and the expert sizes."""
    sharding, experts = run.layout.sharding, run.shape.experts
    chips, slice_chips = run.chips, _slice(run)
    # Axes must fill whole slices, since each axis is inside or between slices.
    fills_slices = chips % slice_chips == 0
    return select_texts(
        (sharding == "zero2", "it shards gradients only together with weights; use zero1 or zero3"),
        (
            sharding == "zero1" and run.group < run.dp,
            "its zero1 shards states over all data-parallel ranks; leave the sharding group out",
        ),
        (sharding != "none" and run.dp % run.group, f"dp {run.dp} is not a multiple of the sharding group {run.group}"),
        (
            experts and run.group % run.ep,
            f"its expert axis spans data-parallel ranks: ep {run.ep} must divide {run.group} ranks",
        ),
        (experts and run.etp != run.tp, f"its tensor parallelism divides experts like all other weights; use etp {run.tp}"),
        (
            not fills_slices,
            f"{chips} chips are not a multiple of the slice of {slice_chips}; use {chips // slice_chips * slice_chips}",
        ),
        (
            fills_slices and _split(run) is None,
            f"the parallel sizes do not fill slices of {slice_chips} chips from the innermost axis",
        ),
    )


def _pipeline_cannot(run: Run) -> list[str]:
    if run.pp == 1 or run.schedule not in SCHEDULES:
        return select_texts(
            (run.pp == 1 and run.virtual > 1, "virtual stages need a pipeline; use vpp 1"),
            (run.pp > 1, f"it has no schedule {run.schedule}; its bubble equals that of {', '.join(SCHEDULES)}"),
        )
    stage_layers, multiple = run.layout.layers, f"{run.shape.layers} layers are not a multiple of {run.chunks} chunks"
    # The pipeline is a loop over equal stages of one kind of layer.
    return select_texts(
        (not run.even, "its stages must be equal: " + (f"layers={stage_layers} are not" if stage_layers else multiple)),
        (len(run.model.layers) > 1, "its pipeline needs layers of one kind, and this model has several"),
        (
            run.micro_batches % run.pp,
            f"its pipeline needs micro-batches in multiples of the {run.pp} stages, got {run.micro_batches}",
        ),
        (run.drafts, "its pipeline has no multi-token-prediction layers"),
    )


# --- axes ---------------------------------------------------------------------------------------------------------------


def _slice(run: Run) -> int:
    """Return the chips of a slice: the scale-up domain, at most all chips of the run."""
    return int(min(float(run.system.scale_up.size), run.chips))


def _axis_sizes(run: Run) -> dict[str, int]:
    """Return the size of each axis of MaxText, from the innermost to the outermost.

    Experts span data-parallel ranks. The axis fsdp shards states, the axis data repeats them.
    """
    expert = run.ep if run.shape.experts else 1
    divided = run.group if run.layout.sharding == "zero3" else 1
    fsdp = divided // expert if divided >= expert else 1
    return {
        "tensor": run.tp, "context": run.cp, "expert": expert, "fsdp": fsdp, "data": run.dp // (expert * fsdp),
        "pipeline": run.pp,
    }  # fmt: skip


def _split(run: Run) -> dict[str, tuple[int, int]] | None:
    """Return the size of each axis inside and between slices, from the innermost axis.

    None if slices are not filled.
    """
    room, sizes = _slice(run), {}
    for axis, size in _axis_sizes(run).items():
        inside = math.gcd(size, room)
        sizes[axis] = (inside, size // inside)
        room //= inside
    return sizes if room == 1 else None


def _axis_words(run: Run) -> list[str]:
    """Return the parallel sizes as keys."""
    words = []
    for axis, (inside, between) in (_split(run) or {}).items():
        # MaxText gives the remaining chips to fsdp and data unless their sizes are given.
        words += select_texts(
            (inside > 1 or axis == "fsdp", f"ici_{axis}_parallelism={inside}"),
            (between > 1 or axis == "data", f"dcn_{axis}_parallelism={between}"),
        )
    return words


# --- the command --------------------------------------------------------------------------------------------------------


def commands(run: Run) -> list[Command]:
    """Return the command of a host.

    Args:
        run: The training run.

    Returns:
        One command, the same on each host.
    """
    words = (
        "python3 -m maxtext.trainers.pre_train.train", "$MAXTEXT_CONFIGS/base.yml", "run_name=steptime", *_model(run),
        *_axis_words(run), *_batch(run), f"max_target_length={run.seq}", f"remat_policy={_policy(run)}",
        *_formats(run)[run.job.dtype], f"opt_type={run.job.optimizer}", *_training_words(run),
    )  # fmt: skip
    # Processes on GPUs of several hosts meet by these variables; TPUs find each other.
    hosts = {
        "JAX_COORDINATOR_IP": "$HEAD_ADDRESS", "JAX_COORDINATOR_PORT": str(PORT), "NNODES": str(run.nodes),
        "NODE_RANK": "$NODE_RANK",
    }  # fmt: skip
    environment = hosts if run.nodes > 1 and run.vendor != "Google" else {}
    return [Command(words=words, environment=environment, notes=_notes(run))]


def _notes(run: Run) -> tuple[str, ...]:
    tpus, looped = run.vendor == "Google", run.schedule in ("1f1b", "interleaved")
    repeats_weights = run.layout.sharding in ("none", "zero1")
    notes = select_texts(
        (tpus and run.nodes > 1, f"run on each of {run.nodes} hosts; they find each other automatically"),
        (True, "MAXTEXT_CONFIGS: folder maxtext/configs of the installed package"),
        (True, f"synthetic data and {STEPS} steps, only to time a step: replace them for training"),
        (looped, f"MaxText's pipeline has the bubble of {run.schedule}, but runs all forward passes before backward:"),
        (looped, "expect activations of all micro-batches in memory, as with gpipe"),
        (repeats_weights and _axis_sizes(run)["expert"] > 1, "the expert axis shards the weights of dense layers too"),
    )
    return (*(() if tpus else hosts_started(run)), *notes)


def _model(run: Run) -> list[str]:
    """Return the keys of the model: its name in MaxText, or its numbers."""
    s, name = run.shape, MODELS.get(run.model.name)
    if name:
        return [f"model_name={name}", *select_texts((run.drafts, f"mtp_num_layers={run.drafts}"))]
    return [
        "decoder_block=llama2", f"base_num_decoder_layers={s.layers}", f"base_emb_dim={s.width}", f"base_mlp_dim={s.hidden}",
        f"base_num_query_heads={s.heads}", f"base_num_kv_heads={s.groups}", f"head_dim={s.head}",
        f"vocab_size={s.vocabulary}", f"logits_via_embedding={str(s.tied).lower()}",
    ]  # fmt: skip


def _batch(run: Run) -> list[str]:
    """Return the keys of the batch: sequences per chip and pass, and passes per step.

    With a pipeline, one pass takes the whole batch in micro-batches.
    """
    piped = run.pp > 1
    sequences_per_chip = per_device(run.batch if piped else run.micro_batch * run.dp, run.chips)
    return select_texts(
        (True, f"per_device_batch_size={sequences_per_chip}"),
        (True, f"gradient_accumulation_steps={1 if piped else run.micro_batches}"),
        (piped, f"num_pipeline_microbatches={run.micro_batches}", f"num_pipeline_repeats={run.virtual}"),
        (piped, f"num_layers_per_pipeline_stage={run.shape.layers // run.chunks}"),
    )


def per_device(sequences: int, chips: int) -> str:
    """Return sequences per chip, such that MaxText computes the same batch from it.

    MaxText multiplies by the number of chips, and rounds down.

    Args:
        sequences: Sequences of all chips.
        chips: Number of chips.

    Returns:
        The quotient as a text.

    >>> per_device(16, 64), per_device(512, 256), int(48 * float(per_device(16, 48)))
    ('0.25', '2', 16)
    """
    share = sequences / chips
    # A rounded quotient may give one sequence less: increase it by the smallest step.
    while int(chips * float(f"{share:.17g}")) < sequences:
        share = math.nextafter(share, math.inf)
    return f"{share:.17g}"


def _training_words(run: Run) -> list[str]:
    """Return the keys of states, kernels, synthetic data and length of the run."""
    unfused, gpu = run.job.attention == "unfused", run.vendor != "Google"
    return select_texts(
        (run.layout.sharding == "zero1", "shard_optimizer_over_data=true"),
        (run.job.gradient_bytes <= NARROW, "grad_dtype=bfloat16"),
        (unfused, "attention=dot_product"),
        (gpu, "hardware=gpu"),
        (gpu and not unfused, "attention=cudnn_flash_te", "packing=false"),
        (True, "dataset_type=synthetic", "enable_checkpointing=false", f"steps={STEPS}"),
    )
