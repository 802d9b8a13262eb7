"""Training run table: columns of measured training runs, and the job, layout and machine of each row.

Missing values have the default of most stacks: parallel sizes of 1, distributed optimizer states, and one sequence per
micro-batch. If the recomputation is not recorded, it is the minimum that fits. It covers all layers, or the modules that
recipes for mixtures of experts name. Without any layout, the layout is the fastest that fits (`training_search.search`).
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from steptime.catalog.data_files import require_regular_file
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, InputError, os_problem, short_repr
from steptime.hardware.system import System
from steptime.models.model import Model, matmul_flops_per_token
from steptime.models.model_loading import load_model
from steptime.training.layer_profile import MODULES
from steptime.training.layer_time import ALTERNATE
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_job import DTYPES, FLASH, SHARDINGS, TASKS, UNFUSED, TrainingJob, TrainingLayout
from steptime.training.training_stack import TUNED, TrainingEngine, decimal_year, training_engine

NEEDED: Final = ("model", "system", "chips", "seq_len", "global_batch", "dtype")
LAYOUT_COLUMNS: Final = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro_batch", "sharding_group")
MEASURED: Final = ("step_s", "tokens_per_s_per_chip", "model_tflops_per_chip", "peak_memory_gib")
STACKS: Final = {
    "megatron-bridge": "megatron", "megatron-lm": "megatron-lm", "megatron-deepspeed": "megatron-deepspeed", "nemo": "nemo",
    "nemo (mlperf)": "nemo-mlperf", "maxtext": "maxtext", "maxtext (mlperf)": "maxtext", "torchtitan": "torchtitan",
    "llm-foundry (fsdp)": "llm-foundry", "llm-foundry": "llm-foundry", "pytorch rocm (mlperf)": "rocm-mlperf",
    "llmboost (mlperf)": "rocm-mlperf", "megatron": "megatron", "nemo automodel (fsdp2)": "automodel",
    "nemo automodel": "automodel",
}  # fmt: skip
"""Stack by name of the framework in a file; other frameworks are `typical`."""
# Year of flash attention in training stacks: the end of 2022 (Dao et al., arXiv 2205.14135).
FUSED_SINCE: Final = 2023.0
# Year of sequence parallelism: published in May 2022 (arXiv 2205.05198).
SEQUENCE_SINCE: Final = 2022.35
REMAT: Final = {
    "": "", "none": "none", "full": "full", "selective": "selective", "minimal": "norms+activation",
    "minimal_with_context": "norms+activation", "qkv_proj_offloaded": "full", "core_attn": "attention",
}  # fmt: skip
"""Recomputation by its name in a stack; MaxText's `minimal` stores GEMM outputs only."""
MODULE_WORDS: Final = {
    "rmsnorm": "norms", "layernorm": "norms", "swiglu": "moe_act", "core_attn": "attention", "mlp": "mlp", "moe": "moe",
    "moe_act": "moe_act", "mla_up_proj": "mla_up_proj", "shared_experts": "shared_experts",
}  # fmt: skip
LEAST_RECOMPUTED: Final = ("none", "norms+activation", "mlp", "full")
# For models with experts, in the order of their cost: the modules that tuned recipes recompute,
# https://github.com/NVIDIA-NeMo/Megatron-Bridge/tree/main/scripts/performance/configs
LEAST_RECOMPUTED_WITH_EXPERTS: Final = (
    "none", "moe_act", "norms+moe_act", "mla_up_proj+norms+moe_act", "mla_up_proj+mlp+shared_experts+norms+moe_act",
    "mla_up_proj+norms+moe", "full",
)  # fmt: skip
RECIPE_RECOMPUTES: Final = {
    ("deepseek_v3", ""): "mla_up_proj",
    ("deepseek_v3", "h100"): "mla_up_proj+mlp",
    ("kimi_k2", ""): "mla_up_proj",
    ("nemotron_h", "h100"): "moe+norms+attention+moe_act",
}
"""Recomputation by family of models with experts and chip ("": all others) of recipes of Megatron-Bridge, where a row does not
record it: https://github.com/NVIDIA-NeMo/Megatron-Bridge/tree/v0.4.0/scripts/performance/configs."""
OUT_OF_MEMORY: Final = "OUT OF MEMORY"
# Note of a run that drops tokens beyond an expert's capacity: it does less work.
DROPPED: Final = "tokendrop"
PORTS: Final = re.compile(r"(\d{1,9})x(\d{1,9}) ?Gb/s")
NODE: Final = re.compile(r"(\d{1,9}) ?Gbps node-node")
CAP: Final = re.compile(r"(\d{1,9}) ?W cap")
MEMORY_RATE: Final = re.compile(r"([\d.]{1,20}) ?TB/s")
NODE_CHIPS: Final = 8
# Share of the data sheet that products in 16 bits reach on the machine of a source, where the source timed them: the median
# of 514 products, https://github.com/MooreThreads/SimuMax/blob/main/configs/system/b200_bf16_ceperm.json.
TIMED_PRODUCTS: Final = {"SimuMax v1.2 B200 real runs": 0.485}
# Chunks per stage of a schedule with several, if not configured:
# https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/pipeline_parallel.py
TORCHTITAN_CHUNKS: Final = 2
# torchtitan compiles the loss together with the cast of the logits.
LOSS_COMPILED_SINCE: Final = 2025.25
EAGER_LOGIT_BYTES: Final = 12.0
COMPILED_LOGIT_BYTES: Final = 4.0
# Releases of recipes with fused experts: NeMo 26.06, and 26.06.01 for `LATER_FUSED_EXPERTS`. `cutedsl_fused_grouped_mlp`
# of scripts/performance/configs at the tags v0.5.0 and v0.5.1 of https://github.com/NVIDIA-NeMo/Megatron-Bridge.
FUSED_EXPERTS_SINCE: Final = "2026-06-01"
LATER_FUSED_EXPERTS_SINCE: Final = "2026-07-01"
LATER_FUSED_EXPERTS: Final = ("qwen3_moe@b200", "deepseek_v3@b300")
# Recipes of Megatron-Bridge that overlap expert exchanges without fused experts, by part of the model's name, chip and release:
# the first date, and the first date without. `moe_a2a_overlap` of scripts/performance/configs at the tags v0.2.0, v0.3.0,
# v0.3.1, v0.4.0, v0.4.2 and v0.5.1 of https://github.com/NVIDIA-NeMo/Megatron-Bridge, and scripts/performance/run_script.py of
# 25.09.
OVERLAPPED_EXCHANGES: Final = {
    ("DeepSeek-V3", "h100"): ("2025-09", "2026-02"), ("DeepSeek-V3", "b200"): ("2026-05", "2099-01"),
    ("Qwen3-30B", "h100"): ("2025-09", "2026-03"), ("Qwen3-235B", "h100"): ("2025-09", "2099-01"),
    ("Qwen3-235B", "b200"): ("2025-12", "2026-02"), ("Qwen3-235B", "b300"): ("2026-02", "2026-03"),
    ("gpt-oss-120b", "gb200"): ("2026-04", "2099-01"),
}  # fmt: skip
# Its benchmarks train bf16 parameters with torch.optim.Adam and checkpoint all blocks, but not those on one chip:
# https://github.com/NVIDIA-NeMo/Automodel/tree/main/examples/llm_benchmark
AUTOMODEL: Final = "automodel"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A measured training run: model, machine, job, layout and measured values.

    layout: as recorded, or None. open: whether the recomputation is unknown; any_order: whether both the schedule and the
    virtual stages are unknown. step [s] and peak [B] are measured, or None. driver: whether the peak is that of the driver,
    with caches and context.
    """

    id: str
    source: str
    model: Model
    system: System
    stack: str
    framework: str
    date: str
    chips: int
    job: TrainingJob
    layout: TrainingLayout | None
    open: bool
    any_order: bool
    step: float | None
    peak: float | None
    driver: bool
    out_of_memory: bool
    dropped: bool

    @property
    def experts(self) -> bool:
        """Whether the model has routed experts."""
        return self.model.routed


def is_training(header: list[str]) -> bool:
    """Check whether a file contains training runs.

    Args:
        header: Column names.

    Returns:
        True for training runs.

    >>> is_training(["model", "chips", "seq_len", "global_batch", "step_s"]), is_training(["model", "tpot_s"])
    (True, False)
    """
    return {"seq_len", "global_batch"} <= set(header)


def read_header(path: str | os.PathLike[str]) -> list[str]:
    """Read the column names of a CSV file.

    Args:
        path: CSV file.

    Returns:
        Column names; an empty list if the file is not a CSV file.
    """
    require_regular_file(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return [name.strip() for name in next(csv.reader(file), [])]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


def read_training_runs(
    path: str | os.PathLike[str], *, catalog: str | None = None, stack: str | None = None
) -> tuple[list[TrainingRun | str], list[dict[str, str]]]:
    """Read the training runs of a CSV file.

    Args:
        path: CSV file.
        catalog: Folder of additional catalogue entries.
        stack: Training stack for all runs; by default from the framework of each row.

    Returns:
        For each row its run, or the reason why it is invalid; and the rows.

    Raises:
        DataFileError: The file is not a CSV file, or a column is missing.
    """
    require_regular_file(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = [{k.strip(): (v or "").strip() for k, v in row.items() if k} for row in reader]
            columns = [name.strip() for name in reader.fieldnames or ()]
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not a CSV file in UTF-8 ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise DataFileError(path, os_problem(error)) from None
    except csv.Error as error:
        raise DataFileError(path, f"is not a CSV file in UTF-8: {error!s:.200}") from None
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise DataFileError(path, f"has no column {missing[0]!r}; training runs need {', '.join(NEEDED)}")
    if not rows:
        raise DataFileError(path, "has no runs below its first line")
    runs: list[TrainingRun | str] = []
    for number, row in enumerate(rows, 2):
        try:
            runs.append(read_run(row, Path(path).parent, line=number, catalog=catalog, stack=stack))
        except InputError as error:
            runs.append(str(error))
    return runs, rows


def read_run(
    row: Mapping[str, str], folder: Path, *, line: int = 0, catalog: str | None = None, stack: str | None = None
) -> TrainingRun:
    """Convert a row to a training run.

    Args:
        row: Row of the table.
        folder: Folder of the file, for model configs with a relative path.
        line: Line of the row, for its default id.
        catalog: Folder of additional catalogue entries.
        stack: Training stack; by default from the framework of the row.

    Returns:
        The run.

    Raises:
        InputError: A value is missing or invalid.
    """
    model = _model(row["model"], folder, catalog)
    note = row.get("note", "")
    system = adjust_system(note, load_system(row["system"], catalog))
    if timed_share := TIMED_PRODUCTS.get(row.get("source", "")):
        system = replace(system, chip=replace(system.chip, reached={**system.chip.reached, "compute": timed_share}))
    stack_name = stack or STACKS.get(row.get("framework", "").casefold(), "typical")
    engine = training_engine(stack_name, system, catalog)
    date = row.get("date", "")
    year = decimal_year(date) if date else FUSED_SINCE
    job = _job(row, note, engine, year, model, system.chip.name)
    chips = _read_whole_number(row, "chips")
    layout, open_ = _layout(row, job, chips, stack_name)
    if layout and open_ and stack_name == TUNED and model.routed:
        chips_recompute, usual = (RECIPE_RECOMPUTES.get((model.family, name), "") for name in (system.chip.name, ""))
        open_ = not (chips_recompute or usual)
        layout = layout if open_ else replace(layout, recompute=chips_recompute or usual)
    return TrainingRun(
        id=row.get("id", "") or f"line {line}",
        source=row.get("source", ""),
        model=model,
        system=system,
        stack=stack_name,
        framework=row.get("framework", ""),
        date=date,
        chips=chips,
        job=job,
        layout=layout,
        open=open_,
        # Since 2023 stacks may interleave stages without a record of it.
        any_order=bool(
            layout and layout.pp > 1 and not row.get("schedule") and not row.get("vpp") and date and year >= FUSED_SINCE
        ),
        step=measured_step(row, model),
        peak=_number(row, "peak_memory_gib") * 2**30 if row.get("peak_memory_gib") else None,
        driver="SimuMax" not in row.get("source", ""),
        out_of_memory=OUT_OF_MEMORY in note,
        dropped=DROPPED in note,
    )


def _model(name: str, folder: Path, catalog: str | None) -> Model:
    """Load a model of the catalogue, or a config in the folder of the file."""
    config_path = folder / name
    return load_model(str(config_path) if name.endswith(".json") and config_path.exists() else name, catalog=catalog)


def adjust_system(note: str, system: System) -> System:
    """Apply the differences in a note to a system.

    A note can contain node links, a power cap or another memory bandwidth. A node has eight chips that share its links.

    Args:
        note: Text of the row.
        system: System of the catalogue.

    Returns:
        The changed system.
    """
    domains, chip = list(system.domains), system.chip
    node_gbps = None
    if match := PORTS.search(note):
        node_gbps = float(match[1]) * float(match[2])
    elif match := NODE.search(note):
        node_gbps = float(match[1])
    if node_gbps is not None and len(domains) > 1:
        domains[-1] = replace(domains[-1], link=replace(domains[-1].link, bandwidth=node_gbps / NODE_CHIPS / 8 * 1e9))
    if match := CAP.search(note):
        chip = replace(chip, power_w=float(match[1]))
    if match := MEMORY_RATE.search(note):
        chip = replace(chip, memory=(*chip.memory[:-1], replace(chip.hbm, bandwidth=float(match[1]) * 1e12)))
    return replace(system, domains=tuple(domains), chip=chip)


def measured_step(row: Mapping[str, str], model: Model) -> float | None:
    """Return the measured step time of a row.

    It is measured directly, or follows from tokens per second or from the printed FLOP/s.

    Args:
        row: Row of the table.
        model: Model.

    Returns:
        Seconds; None if nothing was measured.
    """
    if row.get("step_s"):
        return _number(row, "step_s")
    tokens = _read_whole_number(row, "global_batch") * _read_whole_number(row, "seq_len")
    chips = _read_whole_number(row, "chips")
    if row.get("tokens_per_s_per_chip"):
        return tokens / _number(row, "tokens_per_s_per_chip") / chips
    if row.get("model_tflops_per_chip") and row.get("flops_convention") in ("full", "causal", "unknown"):
        # Undo the source's FLOP count: its convention is with or without the causal mask.
        seq, causal = _read_whole_number(row, "seq_len"), row["flops_convention"] == "causal"
        pairs = sum(n * a.flops_per_pair_prefill for layer, n in model.layers for a in layer.attention)
        flops_per_token = 3 * (matmul_flops_per_token(model) + pairs * seq * (0.5 if causal else 1.0))
        return flops_per_token * tokens / (_number(row, "model_tflops_per_chip") * 1e12 * chips)
    return None


def _job(row: Mapping[str, str], note: str, engine: TrainingEngine, year: float, model: Model, chip: str) -> TrainingJob:
    dtype, task = row["dtype"], row.get("task") or "pretrain"
    for column, value, choices in (("dtype", dtype, DTYPES), ("task", task, (*TASKS, "rl"))):
        if value not in choices:
            raise InputError(f"{column}: {short_repr(value)} is not one of {', '.join(choices)}")
    if task == "rl":
        raise InputError("task: an RL step is rollout, training and refit together; only its training part is predicted")
    gradient = engine.gradient_bytes
    # DeepSpeed keeps 16-bit gradients, and with bf16 also fp32 gradients (BF16_Optimizer).
    if engine.name == "megatron-deepspeed":
        gradient = 6.0 if dtype == "bf16" else 2.0
    flags = engine.recipe_flags(model.family, chip)
    is_later = f"{model.family}@{chip}" in LATER_FUSED_EXPERTS
    flags["fused_experts"] &= year >= decimal_year(LATER_FUSED_EXPERTS_SINCE if is_later else FUSED_EXPERTS_SINCE)
    flags["overlapped_exchange"] = engine.name == TUNED and any(
        name in model.name and recipe_chip == chip and first <= row.get("date", "") < last
        for (name, recipe_chip), (first, last) in OVERLAPPED_EXCHANGES.items()
    )
    return TrainingJob(
        optimizer="adam-bf16" if engine.name == AUTOMODEL else "adamw",
        gathered_inputs=engine.gathered_inputs,
        grouped_experts=engine.grouped_experts,
        narrow_gather=engine.narrow_gather,
        adapted=engine.adapted,
        seq=_read_whole_number(row, "seq_len"),
        batch=_read_whole_number(row, "global_batch"),
        dtype=dtype,
        task=task,
        gradient_bytes=gradient,
        mtp="MTP" in note and "w/o MTP" not in note,
        attention=UNFUSED if year < FUSED_SINCE else FLASH,
        sequence_parallel=year >= SEQUENCE_SINCE or (year >= SEQUENCE_SINCE - 0.1 and row.get("recompute") == "selective"),
        logit_bytes=_logit_bytes(note, engine, year),
        whole_hops=engine.name == "megatron-deepspeed",
        **flags,
    )


def _logit_bytes(note: str, engine: TrainingEngine, year: float) -> float:
    """Return the bytes per logit of a run.

    PyTorch's cross-entropy without compilation saves log-probabilities in fp32, and has gradients of them and of the logits:
    12 bytes. A compiled one has 16-bit logits and their gradients: 4 bytes.

    References:
        https://github.com/pytorch/torchtitan/pull/1033 (compiled loss, 2025), https://github.com/Dao-AILab/quack/issues/48
    """
    if year < FUSED_SINCE:
        return 10.0
    if engine.name == "torchtitan" and "eager" in note:
        return EAGER_LOGIT_BYTES
    return COMPILED_LOGIT_BYTES if engine.name == "torchtitan" and year >= LOSS_COMPILED_SINCE else engine.logit_bytes


def _layout(row: Mapping[str, str], job: TrainingJob, chips: int, stack: str) -> tuple[TrainingLayout | None, bool]:
    """Return the layout of a row (None if not recorded), and whether its recomputation is unknown."""
    if not row.get("tp") and not row.get("dp"):
        return None, True
    sizes = {name: _read_whole_number(row, name, 1) for name in LAYOUT_COLUMNS}
    shared = sizes["tp"] * sizes["pp"] * sizes["cp"]
    dp = _read_whole_number(row, "dp", max(chips // shared, 1))
    if shared * dp != chips:
        raise InputError(f"tp x pp x cp x dp = {shared * dp} is not the {chips} chips of the row")
    recompute = translate_recompute(row.get("recompute", ""), stack)
    if not recompute and stack == AUTOMODEL:
        recompute = "full" if chips > 1 else "none"
    schedule = row.get("schedule") or ""
    virtual = sizes["vpp"]
    if schedule == "interleaved" and not row.get("vpp") and stack == "torchtitan":
        virtual = TORCHTITAN_CHUNKS
    if schedule in ("", "1f1b", "interleaved"):
        schedule = "interleaved" if virtual > 1 else "1f1b"
    micro = _read_whole_number(row, "micro_batch", 1)
    if not row.get("micro_batch") and stack == "torchtitan" and sizes["pp"] > 1:
        # torchtitan's default: the number of micro-batches equals the number of stages.
        micro = max(int(job.batch) // dp // sizes["pp"], 1)
    sharding = {"hsdp": "zero3", "": "zero1"}.get(row.get("sharding", ""), row.get("sharding", ""))
    if sharding not in SHARDINGS:
        raise InputError(f"sharding: {short_repr(sharding)} is not one of {', '.join(SHARDINGS)}, hsdp")
    return TrainingLayout(
        tp=sizes["tp"], pp=sizes["pp"], virtual_stages=virtual, cp=sizes["cp"], ep=sizes["ep"], etp=sizes["etp"], dp=dp,
        micro_batch=min(micro, max(int(job.batch) // dp, 1)), sharding=sharding,
        sharding_group=_read_whole_number(row, "sharding_group", 0) if row.get("sharding") == "hsdp" else 0,
        recompute=recompute or "none", schedule=schedule_named(schedule).name,
    ), not recompute  # fmt: skip


def translate_recompute(recompute: str, stack: str) -> str:
    """Translate a stack's recomputation to the names of this package.

    Args:
        recompute: Recomputation in the file.
        stack: Training stack.

    Returns:
        Recomputation; "" if not recorded.

    Raises:
        InputError: A module is unknown.

    >>> cases = ("rmsnorm+mla_up_proj+swiglu", "megatron"), ("selective", "torchtitan"), ("", "megatron")
    >>> tuple(translate_recompute(*case) for case in cases)
    ('norms+mla_up_proj+moe_act', 'alternate', '')
    """
    if recompute == "selective" and stack == "torchtitan":
        return ALTERNATE
    if recompute in REMAT:
        return REMAT[recompute]
    parts = [MODULE_WORDS.get(part, part) for part in recompute.split("+")]
    unknown = [part for part in parts if part not in MODULES]
    if unknown:
        raise InputError(f"recompute: {short_repr(unknown[0])} is not one of none, full, selective, {', '.join(MODULES)}")
    return "+".join(parts)


def _number(row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        raise InputError(f"{name}: must be a number, got {short_repr(row[name])}") from None
    if not 0 < value < 1e15:
        raise InputError(f"{name}: must be more than 0, got {short_repr(row[name])}")
    return value


def _read_whole_number(row: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = row.get(name, "")
    if not text and default is not None:
        return default
    if not text:
        raise InputError(f"{name}: is empty")
    value = _number(row, name)
    if value != int(value):
        raise InputError(f"{name}: must be a whole number, got {short_repr(text)}")
    return int(value)
