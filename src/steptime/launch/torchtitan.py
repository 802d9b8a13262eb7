"""The command of a training run in torchtitan 0.3: `torchrun -m torchtitan.train`, with flags and a Python file.

Release 0.3 reads no TOML. A run is a function that returns a configuration; flags can change its numbers. The written file
takes the configuration of a built-in model, and changes settings that flags cannot: formats, recomputation and LoRA. Sources:
torchtitan/config/configs.py, torchtitan/models/*/config_registry.py, torchtitan/distributed/activation_checkpoint.py and
torchtitan/components/ of the package; names of schedules: torch/distributed/pipelining/schedules.py of PyTorch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from steptime.launch.shell_script import Command
from steptime.launch.training_run import STEPS, Run, hosts_started, layers_by_chunk, torchrun

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
    job, problems = run.job, []
    if run.system.chip.vendor not in ("NVIDIA", "AMD", ""):
        problems.append(f"it runs on GPUs of NVIDIA and AMD, not on chips of {run.system.chip.vendor}")
    if run.model.name not in MODELS:
        problems.append(f"it has no configuration of {run.model.name}; it has {', '.join(MODELS)}")
    if job.dtype not in DTYPES:
        problems.append(f"it has no GEMMs in {job.dtype}; use {', '.join(DTYPES)}")
    if job.dtype in ("mxfp8", "nvfp4") and not run.blackwell:
        problems.append(f"{job.dtype} needs Blackwell or later; use fp8")
    if job.dtype == "nvfp4" and run.shape.experts:
        problems.append("it has no grouped GEMMs of experts in nvfp4; use mxfp8")
    if job.optimizer not in IMPLEMENTATIONS:
        problems.append(f"its configurations have no optimizer {job.optimizer}; use {' or '.join(IMPLEMENTATIONS)}")
    if job.attention == "unfused":
        problems.append("it has no unfused attention")
    if run.layout.recompute not in CHECKPOINTING:
        problems.append(f"it cannot recompute {run.layout.recompute!r}; use {', '.join(CHECKPOINTING)}")

    # Some built-in models lack features that torchtitan has in general.
    if run.cp > 1 and run.model.name.startswith("openai/"):
        problems.append("context parallelism does not work with the attention of its gpt-oss configurations; use cp 1")
    if run.drafts and MODELS.get(run.model.name, BuiltIn("", "", "")).module != "deepseek_v3":
        problems.append("it trains multi-token-prediction layers only of DeepSeek-V3")
    return [*problems, *_axes(run), *_pipeline_cannot(run)]


def _axes(run: Run) -> list[str]:
    """Return the reasons against the sharding and the parallel sizes."""
    sharding, problems = run.layout.sharding, []
    if sharding == "zero1":
        problems.append("it shards gradients together with optimizer states; use zero2, or zero3, which shards weights too")
    if sharding == "none" and run.cp > 1:
        problems.append("its context parallelism shards states as well; use zero3")
    if sharding != "none" and run.dp % run.group:
        problems.append(f"dp {run.dp} is not a multiple of the sharding group {run.group}")
    if run.shape.experts:
        within = run.group * run.cp * run.tp if sharding != "none" else run.cp * run.tp
        if run.ep > 1 and run.etp > 1:
            problems.append("expert parallelism has no tensor parallelism within experts; use etp 1")
        if run.ep == 1 and run.etp != run.tp:
            problems.append(f"without expert parallelism, tp divides experts like all other weights; use etp {run.tp}")
        if within % run.ep:
            problems.append(f"ep {run.ep} is not a divisor of the {within} chips that shard the states")

    # Context parallelism splits a sequence in 2 cp parts, sequence parallelism in tp parts.
    every = (run.tp if run.job.sequence_parallel else 1) * (2 * run.cp if run.cp > 1 else 1)
    if run.seq % every:
        problems.append(f"a sequence of {run.seq} is not a multiple of {every}, as tensor and context parallelism require")
    return problems


def _pipeline_cannot(run: Run) -> list[str]:
    if run.pp == 1:
        return ["virtual stages need a pipeline; use vpp 1"] if run.virtual > 1 else []
    if run.schedule not in SCHEDULES:
        return [f"it has no schedule {run.schedule}; use {', '.join(SCHEDULES)}"]
    problems, m = [], run.micro_batches
    if run.drafts:
        problems.append("its pipeline has no multi-token-prediction layers")
    if run.schedule in SPLIT and run.layout.recompute == "alternate":
        problems.append(f"{run.schedule} splits the backward pass, which excludes 'alternate'; use none or full")
    least = {"gpipe": run.pp, "1f1b": run.pp, "dualpipev": 2 * run.pp}.get(run.schedule, 1)
    if m < least:
        problems.append(f"its {run.schedule} needs at least {least} micro-batches, got {m}")
    return problems


def commands(run: Run) -> list[Command]:
    """Return the command of a host, with the file that it reads.

    Args:
        run: The training run.

    Returns:
        One command, the same on each host.
    """
    words = [*torchrun(run), "-m torchtitan.train", f"--module {FILE}", "--config run", *_flags(run)]
    return [Command(words=tuple(words), notes=(*hosts_started(run), *_notes(run)), files={f"{FILE}.py": file_text(run)})]


def _notes(run: Run) -> tuple[str, ...]:
    lines = [f"it reads c4 with the tokenizer in hf_assets_path, and {STEPS} steps only time a step: replace both for training"]
    if run.job.gradient_bytes < WIDE:
        lines.append(f"it reduces gradients in 4 bytes; the plan assumes {run.job.gradient_bytes:g}")
    if run.schedule in SPLIT:
        lines.append(
            f"PyTorch does not compile a model with {run.schedule}, which splits the backward pass: expect slower kernels"
        )
    if run.pp > 1 and run.micro_batches < run.pp * run.virtual:
        lines.append(
            f"{run.micro_batches} micro-batches are fewer than the {run.pp * run.virtual} stages: expect a larger bubble"
        )
    return tuple(lines)


def _flags(run: Run) -> list[str]:
    """Return the numbers of a run as flags.

    The local batch is the batch of a data-parallel rank between two reductions: one micro-batch, or all of them with a
    pipeline.
    """
    sharding, piped = run.layout.sharding, run.pp > 1
    local = run.micro_batch * run.micro_batches if piped else run.micro_batch
    # Without sharding, FSDP has one rank, and all others replicate.
    shard = 1 if sharding == "none" else run.group
    modules: dict[str, object] = {
        "training.local_batch_size": local,
        "training.global_batch_size": run.batch,
        "training.seq_len": run.seq,
        "training.steps": STEPS,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.data_parallel_replicate_degree": run.dp // shard,
        "parallelism.tensor_parallel_degree": run.tp,
        "parallelism.context_parallel_degree": run.cp,
        "parallelism.pipeline_parallel_degree": run.pp,
        "parallelism.expert_parallel_degree": run.ep if run.shape.experts else 1,
    }
    if sharding != "none":
        modules["parallelism.fsdp_reshard_after_forward"] = "always" if sharding == "zero3" else "never"
    if piped:
        modules["parallelism.pipeline_parallel_schedule"] = SCHEDULES[run.schedule]
        modules["parallelism.pipeline_parallel_microbatch_size"] = run.micro_batch
    if piped and (run.even or run.slotted):
        reduced_flags = int(run.slotted)
        modules["parallelism.pipeline_parallel_first_stage_less_layers"] = reduced_flags
        modules["parallelism.pipeline_parallel_last_stage_less_layers"] = reduced_flags
        modules["parallelism.pipeline_parallel_layers_per_stage"] = (run.shape.layers + 2 * reduced_flags) // (
            run.pp * run.virtual
        )
    modules["metrics.log_freq"] = 1
    return [f"--{name} {value}" for name, value in modules.items()]


# --- the file -----------------------------------------------------------------------------------------------------------


def file_text(run: Run) -> str:
    """Return the Python file that makes the configuration.

    Args:
        run: The training run.

    Returns:
        Text of the module, with the settings that flags cannot change.
    """
    built_in = MODELS[run.model.name]
    converter_lines = converters(run)
    imported = sorted({name.partition(".")[0] for name in converter_lines if not name.startswith("LoRA")})
    lines = [f'"""A run of {built_in.module} {built_in.size}; flags set its numbers."""', ""]
    if imported:
        lines.append(f"from torchtitan.components.quantization import {', '.join(imported)}")
    if any(name.startswith("LoRA") for name in converter_lines):
        lines.append("from torchtitan.components.lora import LoRAConverter")
    policy = CHECKPOINTING[run.layout.recompute]
    if policy != "None":
        lines.append(f"from torchtitan.distributed.activation_checkpoint import {policy.partition('.')[0]}")

    # PyTorch cannot compile a model whose backward pass the schedule splits.
    components = '["loss"]' if run.schedule in SPLIT else '["model", "loss"]'
    size_literal = f"{built_in.size!r}".replace("'", '"')
    arguments = [size_literal] + ([f"converters=[{', '.join(converter_lines)}]"] if converter_lines else [])
    arguments += [f"num_mtp_layers={run.drafts}"] if run.drafts else []
    lines += [
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
    lines = [f'config.optimizer.implementation = "{IMPLEMENTATIONS[run.job.optimizer]}"']
    graphs = run.pp > 1 or (run.shape.experts is not None and run.ep > 1)

    # CUDA graphs do not work with pipeline stages, nor with expert parallelism.
    lines += ["config.training.disable_cuda_graphs = True"] if graphs else []
    lines += ['config.training.mixed_precision_param = "float32"'] if run.job.dtype == "fp32" else []
    lines += [] if run.job.sequence_parallel else ["config.parallelism.enable_sequence_parallel = False"]
    if run.pp > 1 and not (run.even or run.slotted):
        counts = layers_by_chunk(run)
        lines += [
            f'names, counts = [f"layers.{{i}}" for i in range({run.shape.layers})], {counts}',
            "parts = [[names.pop(0) for _ in range(n)] for n in counts]",
            'parts[0].insert(0, "tok_embeddings")',
            'parts[-1] += ["norm", "lm_head"]',
            "config.parallelism.module_fqns_per_model_part = parts",
        ]
    return lines


def converters(run: Run) -> list[str]:
    """Return the converters of a model: narrow formats first, then adapters.

    Args:
        run: The training run.

    Returns:
        Python expressions.
    """
    lines, dtype, experts = [], run.job.dtype, run.shape.experts
    compiled = f"model_compile_enabled={run.schedule not in SPLIT}"
    if dtype == "fp8":
        skipped = ", ".join(f'"{name}"' for name in SKIPPED)
        lines.append(f"Float8LinearConverter.Config(filter_fqns=[{skipped}], {compiled})")
        lines += [f"Float8GroupedExpertsConverter.Config({compiled})"] if experts else []
    if dtype in ("mxfp8", "nvfp4"):
        places = '"attention", "feed_forward", "shared_experts"' if experts else '"layers"'
        name = "MXFP8" if dtype == "mxfp8" else "NVFP4"
        lines.append(f"{name}LinearConverter.Config(fqns=[{places}], {compiled})")
        lines += [f"MXFP8GroupedExpertsConverter.Config({compiled})"] if experts else []
    if run.job.task == "lora":
        rank = run.job.lora_rank
        lines.append(f"LoRAConverter.Config(rank={rank}, alpha={float(ALPHA * rank)})")
    return lines
