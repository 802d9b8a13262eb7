"""The command of a training run in Megatron-Bridge 0.6: a Python file that changes a common recipe.

It is for models that flags of Megatron-LM cannot express, and for LoRA. The model comes from the config of its checkpoint, so
that every architecture that Megatron-Bridge converts can be trained. The limits of Megatron Core apply as well. Sources:
megatron/bridge/recipes/common.py, megatron/bridge/training/config.py, megatron/bridge/training/mixed_precision.py and
megatron/bridge/peft/lora.py of the package.
"""

from __future__ import annotations

from typing import Final

from steptime.launch import megatron
from steptime.launch.shell_script import Command
from steptime.launch.training_run import MINE, STEPS, Run, hosts_started, layers_by_chunk, torchrun

# Name of the written file.
FILE: Final = "steptime_run.py"
# Names of Megatron-Bridge's recipes by number format.
PRECISION: Final = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip
# Settings of each optimizer.
OPTIMIZERS: Final = {
    "adamw": (),
    "adamw-bf16": (
        "optimizer.use_precision_aware_optimizer = True",
        "optimizer.exp_avg_dtype = torch.bfloat16",
        "optimizer.exp_avg_sq_dtype = torch.bfloat16",
    ),
    "adamw-fp8": (
        "optimizer.use_precision_aware_optimizer = True",
        "optimizer.main_params_dtype = torch.float16",
        "optimizer.exp_avg_dtype = torch.uint8",
        "optimizer.exp_avg_sq_dtype = torch.uint8",
    ),
    "sgd": ('optimizer.optimizer = "sgd"',),
}


def unable(run: Run) -> list[str]:
    """Return the reasons why Megatron-Bridge cannot run a training layout.

    Args:
        run: The training run.

    Returns:
        One sentence per reason; empty if it can.
    """
    problems = [] if run.model.checkpoint.place else ["it reads a checkpoint's config, and this model has no checkpoint"]
    if run.job.dtype in megatron.PRECISION and run.job.dtype not in PRECISION:
        problems.append(f"it has no recipe in {run.job.dtype}; use {', '.join(PRECISION)}")
    if run.job.optimizer in megatron.OPTIMIZERS and run.job.optimizer not in OPTIMIZERS:
        problems.append(f"this recipe has no optimizer {run.job.optimizer}; use {', '.join(OPTIMIZERS)}")
    if run.job.task == "lora" and run.layout.sharding in megatron.STRATEGIES:
        problems.append(f"{run.layout.sharding} is Megatron-FSDP, whose frozen weights steptime cannot configure; use zero1")
    return [*problems, *megatron.cannot(run)]


def commands(run: Run) -> list[Command]:
    """Return the command of a host, with the file that it runs.

    Args:
        run: The training run.

    Returns:
        One command, the same on each host.
    """
    notes = [*hosts_started(run), MINE.format(steps=STEPS)]
    if run.job.task == "lora":
        notes.append("CHECKPOINT: folder of the model's weights, imported by Megatron-Bridge's convert_checkpoints.py")
    words = (*torchrun(run), FILE)
    return [Command(words=words, environment=megatron.environment(run), notes=tuple(notes), files={FILE: file_text(run)})]


def file_text(run: Run) -> str:
    """Return the Python file that makes the configuration and trains.

    Args:
        run: The training run.

    Returns:
        Text of the file.
    """
    lora, needs_torch = run.job.task == "lora", any("torch." in line for line in OPTIMIZERS[run.job.optimizer])

    # The place may be a folder with any name, so that it enters the Python file only through `repr`.
    place = run.model.checkpoint.place
    trust = ", trust_remote_code=True" if run.model.checkpoint.remote_code else ""
    lines = [repr(f"Training of {place} on {run.chips} chips."), ""]
    lines += ["import os"] if lora else []
    lines += ["import torch"] if needs_torch or run.pp > 1 else []
    lines += [""] if lora or needs_torch or run.pp > 1 else []
    lines += ["from megatron.bridge import AutoBridge"]
    lines += ["from megatron.bridge.peft.lora import LoRA"] if lora else []
    lines += [
        "from megatron.bridge.recipes.common import _pretrain_common",
        f"from megatron.bridge.training.{'finetune' if lora else 'pretrain'} import {'finetune' if lora else 'pretrain'}",
        "from megatron.bridge.training.gpt_step import forward_step",
        "",
        "config = _pretrain_common()",
        f"config.model = AutoBridge.from_hf_pretrained({place!r}{trust}).to_megatron_provider(load_weights=False)",
        *(f"config.{line}" for line in settings(run)),
        "",
        'if __name__ == "__main__":',
        f"    {'finetune' if lora else 'pretrain'}(config=config, forward_step_func=forward_step)",
    ]
    return "\n".join(lines) + "\n"


def settings(run: Run) -> list[str]:
    """Return the settings that differ from the common recipe.

    Args:
        run: The training run.

    Returns:
        Assignments to fields of the configuration.
    """
    experts = run.shape.experts is not None

    # The tokenizer is a stub, because the data are synthetic.
    lines = [
        'tokenizer.tokenizer_type = "NullTokenizer"',
        f"tokenizer.vocab_size = {run.shape.vocabulary}",
        f"dataset.seq_length = {run.seq}",
        f"model.seq_length = {run.seq}",
        f"model.tensor_model_parallel_size = {run.tp}",
        f"model.sequence_parallel = {run.tp > 1 and run.job.sequence_parallel}",
        f"model.context_parallel_size = {run.cp}",
        f"model.pipeline_model_parallel_size = {run.pp}",
    ]
    lines += _pipeline(run) if run.pp > 1 else []
    lines += (
        [f"model.expert_model_parallel_size = {run.ep}", f"model.expert_tensor_parallel_size = {run.etp}",
         'model.moe_token_dispatcher_type = "alltoall"']
        if experts else []
    )  # fmt: skip
    lines += [f"model.mtp_num_layers = {run.drafts or None}"] if run.shape.drafts else []
    lines += [
        f"train.micro_batch_size = {run.micro_batch}",
        f"train.global_batch_size = {run.batch}",
        f"train.train_iters = {STEPS}",
        "validation.eval_iters = 0",
        "logger.log_interval = 1",
        f'mixed_precision = "{PRECISION[run.job.dtype]}"',
    ]
    return [*lines, *_sharding(run), *OPTIMIZERS[run.job.optimizer], *_recomputation(run), *_adapters(run)]


def _pipeline(run: Run) -> list[str]:
    """Return the settings of stages.

    Embedding and head count as layers, or the layers of each chunk are listed.
    """
    lines = ["model.pipeline_dtype = torch.bfloat16"]
    if run.even or run.slotted:
        lines += [f"model.virtual_pipeline_model_parallel_size = {run.virtual}"] if run.virtual > 1 else []
        counted = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
        return lines + [f"model.{name} = True" for name in counted if run.slotted]
    lines += [f"model.virtual_pipeline_model_parallel_size = {run.virtual}"] if run.virtual > 1 else []
    return [*lines, f'model.pipeline_model_parallel_layout = "{megatron.spelt(layers_by_chunk(run), run.drafts)}"']


def _sharding(run: Run) -> list[str]:
    sharding, lines = run.layout.sharding, []
    if sharding == "none":
        lines += ["ddp.use_distributed_optimizer = False", "ddp.overlap_param_gather = False"]
        lines += ["optimizer.use_distributed_optimizer = False", "optimizer.overlap_param_gather = False"]
    if sharding in megatron.STRATEGIES:
        lines += [
            "ddp.use_megatron_fsdp = True",
            f'ddp.data_parallel_sharding_strategy = "{megatron.STRATEGIES[sharding]}"',
            "ddp.average_in_collective = False",
            'checkpoint.ckpt_format = "fsdp_dtensor"',
            "model.gradient_accumulation_fusion = False",
            "model.init_model_with_meta_device = True",
        ]
    if run.group < run.dp:
        lines.append(f"ddp.num_distributed_optimizer_instances = {run.dp // run.group}")

    # The recipe reduces gradients in fp32 by default.
    narrow = run.job.gradient_bytes <= megatron.NARROW
    return lines + ([f"ddp.grad_reduce_in_fp32 = {not narrow}"] if narrow else [])


def _recomputation(run: Run) -> list[str]:
    words = run.words
    if words == ("full",):
        return [
            'model.recompute_granularity = "full"',
            'model.recompute_method = "uniform"',
            "model.recompute_num_layers = 1",
        ]
    modules = list(dict.fromkeys(megatron.MODULES[w] for w in words if w in megatron.MODULES))
    if not modules:
        return ["model.recompute_granularity = None"]
    listed = ", ".join(f'"{name}"' for name in modules)
    return ['model.recompute_granularity = "selective"', f"model.recompute_modules = [{listed}]"]


def _adapters(run: Run) -> list[str]:
    if run.job.task != "lora":
        return []
    rank = run.job.lora_rank
    return [f"peft = LoRA(dim={rank}, alpha={rank})", 'checkpoint.pretrained_checkpoint = os.environ["CHECKPOINT"]']
