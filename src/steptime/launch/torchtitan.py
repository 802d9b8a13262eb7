"""The command of a training run in torchtitan 0.3: `torchrun -m torchtitan.train`, with flags and a Python file.

Release 0.3 reads no TOML. A run is a function that returns a configuration; flags can change its numbers. The written file
takes the configuration of a built-in model, and changes settings that flags cannot: formats, recomputation and LoRA. Sources:
torchtitan/config/configs.py, torchtitan/models/*/config_registry.py, torchtitan/distributed/activation_checkpoint.py and
torchtitan/components/ of the package; names of schedules: torch/distributed/pipelining/schedules.py of PyTorch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from steptime.launch.shell_script import Command, select_texts
from steptime.launch.training_run import STEPS, Run, hosts_started, layers_by_chunk, torchrun
from steptime.training.training_job import NO_OFFLOAD

TITLE: Final = "torchtitan"
# Makers of the chips that it runs on; "" is an unknown maker.
VENDORS: Final = ("NVIDIA", "AMD", "")
# Name of the written module.
FILE: Final = "steptime_run"


class BuiltIn(NamedTuple):
    """A model of torchtitan: module, size, and the configuration to start from."""

    module: str
    size: str
    start: str


# Built-in models by their name in the catalogue.
MODELS: Final = {
    "meta-llama/Llama-3.2-1B": BuiltIn("llama3", "1B", "llama3_8b"),
    "meta-llama/Llama-3.2-3B": BuiltIn("llama3", "3B", "llama3_8b"),
    "meta-llama/Llama-3.1-8B": BuiltIn("llama3", "8B", "llama3_8b"),
    "meta-llama/Meta-Llama-3-8B": BuiltIn("llama3", "8B", "llama3_8b"),
    "meta-llama/Llama-3.1-70B": BuiltIn("llama3", "70B", "llama3_70b"),
    "meta-llama/Meta-Llama-3-70B": BuiltIn("llama3", "70B", "llama3_70b"),
    "meta-llama/Llama-3.3-70B-Instruct": BuiltIn("llama3", "70B", "llama3_70b"),
    "meta-llama/Llama-3.1-405B": BuiltIn("llama3", "405B", "llama3_405b"),
    "Qwen/Qwen3-0.6B": BuiltIn("qwen3", "0.6B", "qwen3_0_6b"),
    "Qwen/Qwen3-1.7B": BuiltIn("qwen3", "1.7B", "qwen3_1_7b"),
    "Qwen/Qwen3-4B": BuiltIn("qwen3", "4B", "qwen3_14b"),
    "Qwen/Qwen3-8B": BuiltIn("qwen3", "8B", "qwen3_14b"),
    "Qwen/Qwen3-14B": BuiltIn("qwen3", "14B", "qwen3_14b"),
    "Qwen/Qwen3-32B": BuiltIn("qwen3", "32B", "qwen3_32b"),
    "Qwen/Qwen3-30B-A3B": BuiltIn("qwen3", "30B-A3B", "qwen3_30b_a3b"),
    "Qwen/Qwen3-235B-A22B": BuiltIn("qwen3", "235B-A22B", "qwen3_30b_a3b"),
    "deepseek-ai/DeepSeek-V2-Lite": BuiltIn("deepseek_v3", "16B", "deepseek_v3_16b"),
    "deepseek-ai/DeepSeek-V3": BuiltIn("deepseek_v3", "671B", "deepseek_v3_671b"),
    "deepseek-ai/DeepSeek-V3.1": BuiltIn("deepseek_v3", "671B", "deepseek_v3_671b"),
    "openai/gpt-oss-20b": BuiltIn("gpt_oss", "20b", "gpt_oss_20b"),
    "openai/gpt-oss-120b": BuiltIn("gpt_oss", "120b", "gpt_oss_120b"),
}  # fmt: skip
# PyTorch's names of pipeline schedules. Its InterleavedZeroBubble needs at least two stages per rank, unlike ZB-H1.
SCHEDULES: Final = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
# Schedules that split the backward pass. PyTorch refuses compiled models in them,
# https://github.com/pytorch/pytorch/issues/161904. Selective recomputation by operators does not work with them,
# https://github.com/areal-project/AReaL/pull/916.
SPLIT: Final = ("zbv", "dualpipev")
# Settings of recomputation.
CHECKPOINTING: Final = {"none": "None", "full": "FullAC.Config()", "alternate": "SelectiveAC.Config()"}
DTYPES: Final = ("bf16", "fp32", "fp8", "mxfp8", "nvfp4")
# Modules whose GEMMs stay in bf16 under fp8.
SKIPPED: Final = ("lm_head", "router.gate")
# Implementations of AdamW, the only optimizer of the configurations.
IMPLEMENTATIONS: Final = {"adamw": "fused", "adamw-bf16": "fused_opt_states_bf16"}
# Bytes of a reduced gradient: mixed_precision_reduce accepts only float32.
WIDE: Final = 4.0
# Scale of LoRA over its rank; no time depends on it.
ALPHA: Final = 2


def unable(run: Run) -> list[str]:
    """Return the reasons why torchtitan cannot run a training layout.

    Args:
        run: The training run.

    Returns:
        One sentence per reason; empty if it can.
    """
    job, name, dtype, recompute = run.job, run.model.name, run.job.dtype, run.layout.recompute
    trains_drafts = name in MODELS and MODELS[name].module == "deepseek_v3"
    problems = select_texts(
        (run.vendor not in VENDORS, f"it runs on GPUs of NVIDIA and AMD, not on chips of {run.vendor}"),
        (name not in MODELS, f"it has no configuration of {name}; it has {', '.join(MODELS)}"),
        (dtype not in DTYPES, f"it has no GEMMs in {dtype}; use {', '.join(DTYPES)}"),
        (dtype in ("mxfp8", "nvfp4") and not run.blackwell, f"{dtype} needs Blackwell or later; use fp8"),
        (dtype == "nvfp4" and run.shape.experts, "it has no grouped GEMMs of experts in nvfp4; use mxfp8"),
        (
            job.optimizer not in IMPLEMENTATIONS,
            f"its configurations have no optimizer {job.optimizer}; use {' or '.join(IMPLEMENTATIONS)}",
        ),
        (job.attention == "unfused", "it has no unfused attention"),
        (recompute not in CHECKPOINTING, f"it cannot recompute {recompute!r}; use {', '.join(CHECKPOINTING)}"),
        # Some built-in models lack features that torchtitan has in general.
        (
            run.cp > 1 and name.startswith("openai/"),
            "context parallelism does not work with the attention of its gpt-oss configurations; use cp 1",
        ),
        (run.drafts and not trains_drafts, "it trains multi-token-prediction layers only of DeepSeek-V3"),
    )
    if job.offload != NO_OFFLOAD:
        problems.append("steptime cannot configure its offload to host memory; use --launch megatron")
    return [*problems, *_axes_cannot(run), *_pipeline_cannot(run)]


def _axes_cannot(run: Run) -> list[str]:
    """Return the reasons against the sharding and the parallel sizes."""
    sharding, experts = run.layout.sharding, run.shape.experts is not None
    within = (run.group if sharding != "none" else 1) * run.cp * run.tp
    # Context parallelism splits a sequence in 2 cp parts, sequence parallelism in tp parts.
    every = (run.tp if run.job.sequence_parallel else 1) * (2 * run.cp if run.cp > 1 else 1)
    return select_texts(
        (
            sharding == "zero1",
            "it shards gradients together with optimizer states; use zero2, or zero3, which shards weights too",
        ),
        (sharding == "none" and run.cp > 1, "its context parallelism shards states as well; use zero3"),
        (sharding != "none" and run.dp % run.group, f"dp {run.dp} is not a multiple of the sharding group {run.group}"),
        (experts and run.ep > 1 and run.etp > 1, "expert parallelism has no tensor parallelism within experts; use etp 1"),
        (
            experts and run.ep == 1 and run.etp != run.tp,
            f"without expert parallelism, tp divides experts like all other weights; use etp {run.tp}",
        ),
        (experts and within % run.ep, f"ep {run.ep} is not a divisor of the {within} chips that shard the states"),
        (run.seq % every, f"a sequence of {run.seq} is not a multiple of {every}, as tensor and context parallelism require"),
    )


def _pipeline_cannot(run: Run) -> list[str]:
    if run.pp == 1 or run.schedule not in SCHEDULES:
        return select_texts(
            (run.pp == 1 and run.virtual > 1, "virtual stages need a pipeline; use vpp 1"),
            (run.pp > 1, f"it has no schedule {run.schedule}; use {', '.join(SCHEDULES)}"),
        )
    splits = run.schedule in SPLIT and run.layout.recompute == "alternate"
    least, m = {"gpipe": run.pp, "1f1b": run.pp, "dualpipev": 2 * run.pp}.get(run.schedule, 1), run.micro_batches
    return select_texts(
        (run.drafts, "its pipeline has no multi-token-prediction layers"),
        (splits, f"{run.schedule} splits the backward pass, which excludes 'alternate'; use none or full"),
        (m < least, f"its {run.schedule} needs at least {least} micro-batches, got {m}"),
    )


def commands(run: Run) -> list[Command]:
    """Return the command of a host, with the file that it reads.

    Args:
        run: The training run.

    Returns:
        One command, the same on each host.
    """
    words = (*torchrun(run), "-m torchtitan.train", f"--module {FILE}", "--config run", *_flags(run))
    gradient, m = run.job.gradient_bytes, run.micro_batches
    notes = select_texts(
        (
            True,
            f"it reads c4 with the tokenizer in hf_assets_path, and {STEPS} steps only time a step: replace both for training",
        ),
        (gradient < WIDE, f"it reduces gradients in 4 bytes; the plan assumes {gradient:g}"),
        (
            run.schedule in SPLIT,
            f"PyTorch does not compile a model with {run.schedule}, which splits the backward pass: expect slower kernels",
        ),
        (run.pp > 1 and m < run.chunks, f"{m} micro-batches are fewer than the {run.chunks} stages: expect a larger bubble"),
    )
    return [Command(words=words, notes=(*hosts_started(run), *notes), files={f"{FILE}.py": _file_text(run)})]


def _flags(run: Run) -> list[str]:
    """Return the numbers of a run as flags.

    The local batch is the batch of a data-parallel rank between two reductions: one micro-batch, or all of them with a
    pipeline.
    """
    sharding, piped = run.layout.sharding, run.pp > 1
    # Without sharding, FSDP has one rank, and all others replicate.
    shard = 1 if sharding == "none" else run.group
    degrees = {
        "data_parallel_shard": shard,
        "data_parallel_replicate": run.dp // shard,
        "tensor_parallel": run.tp,
        "context_parallel": run.cp,
        "pipeline_parallel": run.pp,
        "expert_parallel": run.ep if run.shape.experts else 1,
    }
    reshard = "always" if sharding == "zero3" else "never"
    pipeline = {"schedule": SCHEDULES[run.schedule], "microbatch_size": run.micro_batch} if piped else {}
    if piped and (run.even or run.slotted):
        fewer = int(run.slotted)
        layers_per_stage = (run.shape.layers + 2 * fewer) // run.chunks
        pipeline |= {"first_stage_less_layers": fewer, "last_stage_less_layers": fewer, "layers_per_stage": layers_per_stage}
    return [
        f"--training.local_batch_size {run.micro_batch * (run.micro_batches if piped else 1)}",
        f"--training.global_batch_size {run.batch}",
        f"--training.seq_len {run.seq}",
        f"--training.steps {STEPS}",
        *(f"--parallelism.{axis}_degree {size}" for axis, size in degrees.items()),
        *select_texts((sharding != "none", f"--parallelism.fsdp_reshard_after_forward {reshard}")),
        *(f"--parallelism.pipeline_parallel_{name} {value}" for name, value in pipeline.items()),
        "--metrics.log_freq 1",
    ]


# --- the file -----------------------------------------------------------------------------------------------------------


def _file_text(run: Run) -> str:
    """Return the Python file that makes the configuration, with the settings that flags cannot change."""
    built_in, policy, converters = MODELS[run.model.name], CHECKPOINTING[run.layout.recompute], _converters(run)
    quantizers = sorted({name.partition(".")[0] for name in converters if not name.startswith("LoRA")})
    lora = any(name.startswith("LoRA") for name in converters)
    imports = select_texts(
        (quantizers, f"from torchtitan.components.quantization import {', '.join(quantizers)}"),
        (lora, "from torchtitan.components.lora import LoRAConverter"),
        (policy != "None", f"from torchtitan.distributed.activation_checkpoint import {policy.partition('.')[0]}"),
    )
    arguments = select_texts(
        (True, f'"{built_in.size}"'),
        (converters, f"converters=[{', '.join(converters)}]"),
        (run.drafts, f"num_mtp_layers={run.drafts}"),
    )
    # PyTorch cannot compile a model whose backward pass the schedule splits.
    components = '["loss"]' if run.schedule in SPLIT else '["model", "loss"]'
    lines = [
        f'"""A run of {built_in.module} {built_in.size}; flags set its numbers."""',
        "",
        *imports,
        f"from torchtitan.models.{built_in.module} import config_registry, model_registry",
        "",
        "",
        "def run():",
        f"    config = config_registry.{built_in.start}()",
        f"    config.model_spec = model_registry({', '.join(arguments)})",
        f"    config.activation_checkpoint = {policy}",
        "    config.compile.enable = True",
        f"    config.compile.components = {components}",
        *(f"    {line}" for line in _settings(run)),
        "    return config",
    ]
    return "\n".join(lines) + "\n"


def _settings(run: Run) -> list[str]:
    """Return the settings of a configuration that are words, truth values or lists."""
    lines = select_texts(
        (True, f'config.optimizer.implementation = "{IMPLEMENTATIONS[run.job.optimizer]}"'),
        # CUDA graphs do not work with pipeline stages, nor with expert parallelism.
        (run.pp > 1 or (run.shape.experts and run.ep > 1), "config.training.disable_cuda_graphs = True"),
        (run.job.dtype == "fp32", 'config.training.mixed_precision_param = "float32"'),
        (not run.job.sequence_parallel, "config.parallelism.enable_sequence_parallel = False"),
    )
    if run.pp == 1 or run.even or run.slotted:
        return lines
    return [
        *lines,
        f'names, counts = [f"layers.{{i}}" for i in range({run.shape.layers})], {layers_by_chunk(run)}',
        "parts = [[names.pop(0) for _ in range(n)] for n in counts]",
        'parts[0].insert(0, "tok_embeddings")',
        'parts[-1] += ["norm", "lm_head"]',
        "config.parallelism.module_fqns_per_model_part = parts",
    ]


def _converters(run: Run) -> list[str]:
    """Return the converters of a model as Python expressions: narrow formats first, then adapters."""
    dtype, experts, rank = run.job.dtype, run.shape.experts, run.job.lora_rank
    compiled = f"model_compile_enabled={run.schedule not in SPLIT}"
    skipped = ", ".join(f'"{name}"' for name in SKIPPED)
    places = '"attention", "feed_forward", "shared_experts"' if experts else '"layers"'
    return select_texts(
        (dtype == "fp8", f"Float8LinearConverter.Config(filter_fqns=[{skipped}], {compiled})"),
        (dtype == "fp8" and experts, f"Float8GroupedExpertsConverter.Config({compiled})"),
        (dtype in ("mxfp8", "nvfp4"), f"{dtype.upper()}LinearConverter.Config(fqns=[{places}], {compiled})"),
        (dtype in ("mxfp8", "nvfp4") and experts, f"MXFP8GroupedExpertsConverter.Config({compiled})"),
        (run.job.task == "lora", f"LoRAConverter.Config(rank={rank}, alpha={float(ALPHA * rank)})"),
    )
