"""MaxText 0.2: `python3 -m maxtext.trainers.pre_train.train base.yml key=value ...`, on TPUs and GPUs.

Its axes are `ici_*` inside a slice (the chips that one fast fabric joins) and `dcn_*` between slices. Sources:
maxtext/configs/base.yml, maxtext/configs/types.py and maxtext/layers/nnx_decoders.py of the package.
"""

from __future__ import annotations

import math
from typing import Final

from steptime.launch.shell_script import Command
from steptime.launch.training_run import STEPS, Run, hosts_started

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
"""Names of models in its configs/models, by those of the catalogue; others are said by their numbers where they are Llamas."""
SCHEDULES: Final = ("gpipe", "1f1b", "interleaved")
POLICIES: Final = {
    frozenset(("norms", "activation")): "minimal_with_context",
    frozenset(("norms", "activation", "attention")): "minimal",
    frozenset(("norms", "mlp")): "save_dot_with_context_except_mlp",
    frozenset(("norms", "mlp", "attention")): "save_dot_except_mlp",
}
"""Of dense models: a policy names the products whose outputs are kept, so that all that is no product is computed again."""
WHOLE_LAYER_POLICIES: Final = {"none": "none", "full": "full"}
ON_TPU: Final = {
    "bf16": (), "fp32": ("dtype=float32",), "int8": ("quantization=int8", "use_qwix_quantization=true"),
    "fp8": ("quantization=fp8_full", "use_qwix_quantization=true"),
}  # fmt: skip
ON_GPU: Final = {
    "bf16": (), "fp32": ("dtype=float32",), "fp16": ("dtype=float16",), "fp8": ("quantization=te_fp8_currentscaling",),
    "mxfp8": ("quantization=te_mxfp8",), "nvfp4": ("quantization=te_nvfp4",),
}  # fmt: skip
OPTIMIZERS: Final = {"adamw": "adamw", "muon": "muon", "sgd": "sgd"}
AXES: Final = ("tensor", "context", "expert", "fsdp", "data", "pipeline")  # from the innermost
NARROW: Final = 2.0  # bytes of a gradient in 16 bits
PORT: Final = 1234  # on which processes on GPUs meet


def unable(run: Run) -> list[str]:
    """Say what of a run MaxText does not do."""
    job, problems, formats = run.job, [], _formats(run)
    if run.system.chip.vendor not in ("Google", "NVIDIA", "AMD", ""):
        problems.append(f"it runs on TPUs and GPUs, not on chips of {run.system.chip.vendor}")
    if run.model.name not in MODELS and (run.shape.odd or not _llama(run)):
        problems.append(f"it has no configuration of {run.model.name}, which is no plain Llama that numbers could say")
    if job.task == "lora":
        problems.append("its pretraining trains no LoRA adapters; maxtext.trainers.post_train.sft does, on data of its own")
    if job.dtype not in formats:
        problems.append(f"it computes no products in {job.dtype} on these chips; take {', '.join(formats)}")
    if job.dtype in ("mxfp8", "nvfp4") and run.system.chip.vendor == "NVIDIA" and not run.blackwell:
        problems.append(f"{job.dtype} needs Blackwell or later; take fp8")
    if job.optimizer not in OPTIMIZERS:
        narrow = "; mu_dtype narrows the first moment alone" if job.optimizer.startswith("adamw-") else ""
        problems.append(f"it has no optimizer {job.optimizer}{narrow}; take {', '.join(OPTIMIZERS)}")
    if _policy(run) is None:
        policies = ", ".join([*WHOLE_LAYER_POLICIES, *("+".join(sorted(p)) for p in POLICIES)])
        scope_text = " of a model with experts" if run.shape.experts else ""
        problems.append(f"no policy of its own computes {run.layout.recompute!r}{scope_text} again; take {policies}")
    return [*problems, *_axes_cannot(run), *_pipeline_cannot(run)]


def _formats(run: Run) -> dict[str, tuple[str, ...]]:
    return ON_TPU if run.system.chip.vendor == "Google" else ON_GPU


def _llama(run: Run) -> bool:
    """Whether numbers say all of a model: its "llama2" block has two norms, no biases and a gated feed-forward block."""
    s = run.shape
    plain = s.gated and s.rms and not (s.bias or s.qkv_bias or s.query_norms or s.learned_positions)
    return plain and s.latent is None and s.experts is None


def _policy(run: Run) -> str | None:
    """Return its policy for what is computed again; of its own, as models with experts name other outputs, for dense models."""
    if run.layout.recompute in WHOLE_LAYER_POLICIES:
        return WHOLE_LAYER_POLICIES[run.layout.recompute]
    return None if run.shape.experts else POLICIES.get(frozenset(run.words))


def _axes_cannot(run: Run) -> list[str]:
    """Say which shardings, groups and ways of experts it has not."""
    problems, sharding = [], run.layout.sharding
    if sharding == "zero2":
        problems.append("it divides gradients with the weights, or neither; take zero1 or zero3")
    if sharding == "zero1" and run.group < run.dp:
        problems.append("its zero1 divides states over all copies; leave the sharding group out")
    if sharding != "none" and run.dp % run.group:
        problems.append(f"{run.dp} copies do not divide by groups of {run.group}")
    if run.shape.experts:
        if run.group % run.ep:
            problems.append(f"its experts lie on chips of different sequences: ep {run.ep} must divide {run.group} copies")
        if run.etp != run.tp:
            problems.append(f"its tensor parallelism divides experts as all else; take etp {run.tp}")
    slice_chips = _slice(run)
    if run.chips % slice_chips:
        problems.append(
            f"{run.chips} chips are no whole slices of {slice_chips}; take {run.chips // slice_chips * slice_chips}"
        )
    elif _split(run) is None:
        problems.append(f"its ways do not fill slices of {slice_chips} chips, innermost first")
    return problems


def _pipeline_cannot(run: Run) -> list[str]:
    if run.pp == 1:
        return ["virtual stages need a pipeline; take vpp 1"] if run.virtual > 1 else []
    if run.schedule not in SCHEDULES:
        return [f"it has no schedule {run.schedule}; its own is as idle as {', '.join(SCHEDULES)}"]
    problems = []
    if not run.even:
        chunks = run.pp * run.virtual
        layers, reason = run.layout.layers, f"{run.shape.layers} layers do not divide by {chunks} chunks"
        problems.append("its stages are equal, and " + (f"layers={layers} are not" if layers else reason))
    if len(run.model.layers) > 1:
        problems.append("its pipeline repeats one kind of layer, and this model has several")
    if run.micro_batches % run.pp:
        problems.append(f"its pipeline wants micro-batches, {run.micro_batches}, that divide by the {run.pp} stages")
    if run.drafts:
        problems.append("its pipeline has no multi-token-prediction layers")
    return problems


# --- axes ---------------------------------------------------------------------------------------------------------------


def _slice(run: Run) -> int:
    """Return the chips of a slice: those that the innermost fabric joins, or all where they are fewer."""
    size = float(run.system.scale_up.size)
    return run.chips if not math.isfinite(size) or size >= run.chips else int(size)


def axis_sizes(run: Run) -> dict[str, int]:
    """Return its axes: experts lie across copies; what copies divide is fsdp, what they repeat is data."""
    expert = run.ep if run.shape.experts else 1
    divided = run.group if run.layout.sharding == "zero3" else 1
    fsdp = divided // expert if divided >= expert else 1
    return {
        "tensor": run.tp, "context": run.cp, "expert": expert, "fsdp": fsdp, "data": run.dp // (expert * fsdp),
        "pipeline": run.pp,
    }  # fmt: skip


def _split(run: Run) -> dict[str, tuple[int, int]] | None:
    """Return the ways of each axis inside and between slices, filled from the innermost; None where slices stay unfilled."""
    room, sizes = _slice(run), {}
    for axis in AXES:
        n = axis_sizes(run)[axis]
        inside = math.gcd(n, room)
        sizes[axis] = (inside, n // inside)
        room //= inside
    return sizes if room == 1 else None


def _axis_words(run: Run) -> list[str]:
    """Return the ways as keys; every axis that would else fill what is left is said."""
    split = _split(run)
    assert split is not None
    words = []
    for axis in AXES:
        inside, between = split[axis]
        words += [f"ici_{axis}_parallelism={inside}"] if inside > 1 or axis == "fsdp" else []
        words += [f"dcn_{axis}_parallelism={between}"] if between > 1 or axis == "data" else []
    return words


# --- the command --------------------------------------------------------------------------------------------------------


def commands(run: Run) -> list[Command]:
    """Return the command of a host."""
    words = (
        "python3 -m maxtext.trainers.pre_train.train", "$MAXTEXT_CONFIGS/base.yml", "run_name=steptime", *_model(run),
        *_axis_words(run), *_batch(run), f"max_target_length={run.seq}", f"remat_policy={_policy(run)}",
        *_formats(run)[run.job.dtype], f"opt_type={OPTIMIZERS[run.job.optimizer]}", *_training_words(run),
    )  # fmt: skip
    return [Command(words=words, environment=_environment(run), notes=_notes(run))]


def _model(run: Run) -> list[str]:
    """Return the model by its name there, or by its numbers."""
    s, name = run.shape, MODELS.get(run.model.name)
    drafts = [f"mtp_num_layers={run.drafts}"] if run.drafts else []
    if name:
        return [f"model_name={name}", *drafts]
    return [
        "decoder_block=llama2", f"base_num_decoder_layers={s.layers}", f"base_emb_dim={s.width}", f"base_mlp_dim={s.hidden}",
        f"base_num_query_heads={s.heads}", f"base_num_kv_heads={s.groups}", f"head_dim={s.head}",
        f"vocab_size={s.vocabulary}", f"logits_via_embedding={str(s.tied).lower()}",
    ]  # fmt: skip


def _batch(run: Run) -> list[str]:
    """Return sequences a chip and a pass, and passes a step: with a pipeline one pass takes the batch, in micro-batches."""
    if run.pp == 1:
        sequences_per_chip = per_device(run.micro_batch * run.dp, run.chips)
        return [f"per_device_batch_size={sequences_per_chip}", f"gradient_accumulation_steps={run.micro_batches}"]
    return [
        f"per_device_batch_size={per_device(run.batch, run.chips)}",
        "gradient_accumulation_steps=1",
        f"num_pipeline_microbatches={run.micro_batches}",
        f"num_pipeline_repeats={run.virtual}",
        f"num_layers_per_pipeline_stage={run.shape.layers // (run.pp * run.virtual)}",
    ]


def per_device(sequences: int, chips: int) -> str:
    """Write sequences a chip so that MaxText, which rounds their product with the chips down, gets the same sequences back.

    >>> per_device(16, 64), per_device(512, 256), int(48 * float(per_device(16, 48)))
    ('0.25', '2', 16)
    """
    share = sequences / chips
    while int(chips * float(f"{share:.17g}")) < sequences:
        share = math.nextafter(share, math.inf)
    return f"{share:.17g}"


def _training_words(run: Run) -> list[str]:
    """Return the keys of states, kernels, synthetic data and the run's length."""
    words = ["shard_optimizer_over_data=true"] if run.layout.sharding == "zero1" else []
    words += ["grad_dtype=bfloat16"] if run.job.gradient_bytes <= NARROW else []
    words += ["attention=dot_product"] if run.job.attention == "unfused" else []
    if run.system.chip.vendor != "Google":
        words.append("hardware=gpu")
        words += [] if run.job.attention == "unfused" else ["attention=cudnn_flash_te", "packing=false"]
    return [*words, "dataset_type=synthetic", "enable_checkpointing=false", f"steps={STEPS}"]


def _environment(run: Run) -> dict[str, str]:
    """Return how processes on GPUs of several hosts find each other; those on TPUs know."""
    if run.nodes == 1 or run.system.chip.vendor == "Google":
        return {}
    return {
        "JAX_COORDINATOR_IP": "$HEAD_ADDRESS", "JAX_COORDINATOR_PORT": str(PORT), "NNODES": str(run.nodes),
        "NODE_RANK": "$NODE_RANK",
    }  # fmt: skip


def _notes(run: Run) -> tuple[str, ...]:
    """Return what to mind."""
    tpus = run.system.chip.vendor == "Google"
    notes = [] if tpus else list(hosts_started(run))
    if tpus and run.nodes > 1:
        notes.append(f"on each of {run.nodes} hosts, which find one another by themselves")
    notes.append("MAXTEXT_CONFIGS: the folder maxtext/configs of the installed package")
    notes.append(f"synthetic data and {STEPS} steps, which serve to time one: put your own in their place")
    if run.schedule in ("1f1b", "interleaved"):
        notes.append(f"MaxText's pipeline waits as {run.schedule} does, but runs every forward pass before a backward one:")
        notes.append("expect activations of all micro-batches in memory, as with gpipe")
    if run.layout.sharding in ("none", "zero1") and axis_sizes(run)["expert"] > 1:
        notes.append("its expert axis divides the weights of dense layers too")
    return tuple(notes)
