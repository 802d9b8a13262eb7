"""The command of a training run in Megatron-Bridge 0.6: a Python file that changes a common recipe.

It is for models that flags of Megatron-LM cannot express, and for LoRA. The model comes from the config of its checkpoint, so
that every architecture that Megatron-Bridge converts can be trained. The limits of Megatron Core apply as well. Sources:
megatron/bridge/recipes/common.py, megatron/bridge/training/config.py, megatron/bridge/training/mixed_precision.py and
megatron/bridge/peft/lora.py of the package.
"""

from __future__ import annotations

import json
from typing import Final

from steptime.launch import megatron
from steptime.launch.shell_script import Command, select_texts
from steptime.launch.training_run import STEPS, SYNTHETIC, Run, hosts_started, layers_by_chunk, torchrun
from steptime.training.training_job import ACTIVATIONS, OPTIMIZER

TITLE: Final = "Megatron-Bridge"
VENDORS: Final = megatron.VENDORS
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
    dtype, optimizer, sharding = run.job.dtype, run.job.optimizer, run.layout.sharding
    lora_fsdp = run.job.task == "lora" and sharding in megatron.STRATEGIES
    problems = select_texts(
        (not run.model.checkpoint.place, "it reads a checkpoint's config, and this model has no checkpoint"),
        (dtype in megatron.PRECISION.keys() - PRECISION, f"it has no recipe in {dtype}; use {', '.join(PRECISION)}"),
        (
            optimizer in megatron.OPTIMIZERS.keys() - OPTIMIZERS,
            f"this recipe has no optimizer {optimizer}; use {', '.join(OPTIMIZERS)}",
        ),
        (lora_fsdp, f"{sharding} is Megatron-FSDP, whose frozen weights steptime cannot configure; use zero1"),
    )
    return [*problems, *megatron.cannot(run)]


def commands(run: Run) -> list[Command]:
    """Return the command of a host, with the file that it runs.

    Args:
        run: The training run.

    Returns:
        One command, the same on each host.
    """
    weights = "CHECKPOINT: folder of the model's weights, imported by Megatron-Bridge's convert_checkpoints.py"
    notes = (*hosts_started(run), SYNTHETIC, *select_texts((run.job.task == "lora", weights)))
    files = {FILE: _file_text(run)}
    return [Command(words=(*torchrun(run), FILE), environment=megatron.environment(run), notes=notes, files=files)]


def _file_text(run: Run) -> str:
    """Return the Python file that makes the configuration and trains."""
    lora, verb = run.job.task == "lora", "finetune" if run.job.task == "lora" else "pretrain"
    needs_torch = run.pp > 1 or any("torch." in line for line in OPTIMIZERS[run.job.optimizer])

    # The place may be a folder with any name, so that it enters the Python file only through `repr`.
    place = run.model.checkpoint.place
    trust = ", trust_remote_code=True" if run.model.checkpoint.remote_code else ""
    imports = select_texts(
        (lora, "import os"),
        (needs_torch, "import torch"),
        (lora or needs_torch, ""),
        (True, "from megatron.bridge import AutoBridge"),
        (lora, "from megatron.bridge.peft.lora import LoRA"),
    )
    lines = [
        repr(f"Training of {place} on {run.chips} chips."),
        "",
        *imports,
        "from megatron.bridge.recipes.common import _pretrain_common",
        f"from megatron.bridge.training.{verb} import {verb}",
        "from megatron.bridge.training.gpt_step import forward_step",
        "",
        "config = _pretrain_common()",
        f"config.model = AutoBridge.from_hf_pretrained({place!r}{trust}).to_megatron_provider(load_weights=False)",
        *(f"config.{line}" for line in _settings(run)),
        "",
        'if __name__ == "__main__":',
        f"    {verb}(config=config, forward_step_func=forward_step)",
    ]
    return "\n".join(lines) + "\n"


def _settings(run: Run) -> list[str]:
    """Return the assignments to fields that differ from the common recipe."""
    # The tokenizer is a stub, because the data are synthetic.
    rank, experts, lora = run.job.lora_rank, run.shape.experts, run.job.task == "lora"
    return [
        'tokenizer.tokenizer_type = "NullTokenizer"',
        f"tokenizer.vocab_size = {run.shape.vocabulary}",
        f"dataset.seq_length = {run.seq}",
        f"model.seq_length = {run.seq}",
        f"model.tensor_model_parallel_size = {run.tp}",
        f"model.sequence_parallel = {run.tp > 1 and run.job.sequence_parallel}",
        f"model.context_parallel_size = {run.cp}",
        f"model.pipeline_model_parallel_size = {run.pp}",
        *(_pipeline(run) if run.pp > 1 else []),
        *select_texts(
            (experts, f"model.expert_model_parallel_size = {run.ep}", f"model.expert_tensor_parallel_size = {run.etp}"),
            (experts, 'model.moe_token_dispatcher_type = "alltoall"'),
            (run.shape.drafts, f"model.mtp_num_layers = {run.drafts or None}"),
        ),
        f"train.micro_batch_size = {run.micro_batch}",
        f"train.global_batch_size = {run.batch}",
        f"train.train_iters = {STEPS}",
        "validation.eval_iters = 0",
        "logger.log_interval = 1",
        f'mixed_precision = "{PRECISION[run.job.dtype]}"',
        *_sharding(run),
        *OPTIMIZERS[run.job.optimizer],
        *_recomputation(run),
        *_offload(run),
        *select_texts(
            (lora, f"peft = LoRA(dim={rank}, alpha={rank})", 'checkpoint.pretrained_checkpoint = os.environ["CHECKPOINT"]'),
        ),
    ]


def _pipeline(run: Run) -> list[str]:
    """Return the settings of stages.

    Embedding and head count as layers, or the layers of each chunk are listed.
    """
    listed = not (run.even or run.slotted)
    spelt = megatron.spelt(layers_by_chunk(run), run.drafts) if listed else ""
    return select_texts(
        (True, "model.pipeline_dtype = torch.bfloat16"),
        (run.virtual > 1, f"model.virtual_pipeline_model_parallel_size = {run.virtual}"),
        (run.slotted, "model.account_for_embedding_in_pipeline_split = True"),
        (run.slotted, "model.account_for_loss_in_pipeline_split = True"),
        (listed, f'model.pipeline_model_parallel_layout = "{spelt}"'),
    )


def _sharding(run: Run) -> list[str]:
    sharding = run.layout.sharding
    replicated, fsdp = sharding == "none", sharding in megatron.STRATEGIES
    return select_texts(
        (replicated, "ddp.use_distributed_optimizer = False", "ddp.overlap_param_gather = False"),
        (replicated, "optimizer.use_distributed_optimizer = False", "optimizer.overlap_param_gather = False"),
        (fsdp, "ddp.use_megatron_fsdp = True", f'ddp.data_parallel_sharding_strategy = "{megatron.STRATEGIES.get(sharding)}"'),
        (fsdp, "ddp.average_in_collective = False", 'checkpoint.ckpt_format = "fsdp_dtensor"'),
        (fsdp, "model.gradient_accumulation_fusion = False", "model.init_model_with_meta_device = True"),
        (run.group < run.dp, f"ddp.num_distributed_optimizer_instances = {run.dp // run.group}"),
        # The recipe reduces gradients in fp32 by default.
        (run.job.gradient_bytes <= megatron.NARROW, "ddp.grad_reduce_in_fp32 = False"),
    )


def _offload(run: Run) -> list[str]:
    states, activations = run.job.offloads(OPTIMIZER), run.job.offloads(ACTIVATIONS)
    return select_texts(
        (states, "optimizer.optimizer_cpu_offload = True", "optimizer.optimizer_offload_fraction = 1.0"),
        (states, "optimizer.overlap_cpu_optimizer_d2h_h2d = True"),
        (activations, "model.fine_grained_activation_offloading = True"),
        (activations, f"model.offload_modules = {json.dumps(megatron.offloaded_modules(run))}"),
    )


def _recomputation(run: Run) -> list[str]:
    full, modules = run.words == ("full",), megatron.recomputed_modules(run)
    listed = ", ".join(f'"{name}"' for name in modules)
    return select_texts(
        (full, 'model.recompute_granularity = "full"', 'model.recompute_method = "uniform"', "model.recompute_num_layers = 1"),
        (not full and not modules, "model.recompute_granularity = None"),
        (modules, 'model.recompute_granularity = "selective"', f"model.recompute_modules = [{listed}]"),
    )
