"""Write docs/models.md, json.md, engines.md, training.md, lecture.md and questions.md; `--check` compares them.

Models come from the catalogue, docs/oracle.json and tests/golden. Keys of JSON and constants of engines come from the
metadata of their fields.
"""

# ruff: noqa: E402, I001 - the tests are imported from the folder above, which is put on the path first
from __future__ import annotations

import inspect
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
os.environ["STEPTIME_CATALOG"] = str(HERE)  # holds no data files: a home folder changes no page

from steptime.scaling.model_sizing import Budget
from steptime.scaling.moe_vs_dense import MoeBoard
from steptime.scaling.law_forms import Refit
from steptime.scaling.rl_step import RlStep
from steptime.scaling.compute_optimal import Losses
from steptime.describe.kv_tradeoff import CacheTrade
from steptime.describe.model_summary import ConfigCard
from steptime.describe.system_summary import EngineCard, EngineTable
from steptime.questions.image_cost import ImageCost
from steptime.describe.law_summary import LawCard, LawTable
from steptime.describe.model_summary import Comparison, ModelCard, ModelTable
from steptime.questions.registry import HOMES, find_question
from steptime.questions.step_question import StepSummary
from steptime.describe.system_summary import SystemCard, SystemTable
from steptime.catalog.data_files import files
from steptime.lecture.lecture_content import Lecture, Verdicts
from steptime.lecture.lecture_content import Section
from steptime.lecture.pair_roofline import Roofline
from steptime.validation.live_drift import Watched
from steptime.validation.validate_api import Calibrated, Validation
from steptime.validation.training_validation import TrainingValidation
from steptime.models.model_loading import load_model
from steptime.errors import InputError
from steptime.blackboard.expert_activation import expected_maximum
from steptime.physics import attention_kernels
from steptime.physics.attention_kernels import load_kernels
from steptime.physics.bias_correction import Anchors
from steptime.physics.engine_parameters import DESCRIPTIONS, GROUPS, Experts
from steptime.physics.expert_kernels import ExpertKernel
from steptime.physics.engine import Engine, constant, load_engine
from steptime.physics.engine_rules import ENGINE_RULES
from steptime.physics.expert_imbalance import busiest_rows
from steptime.models.model import (
    Model,
    active_parameters,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    state_bytes,
    total_parameters,
)
from steptime.physics.chip_memory import Memory
from steptime.planning.model_fleet import ModelFleet
from steptime.planning.plan_result import Plan
from steptime.pricing.price_inversion import PriceReading
from steptime.pricing.price_history import PriceHistory
from steptime.pricing.price_list import PriceList
from steptime.pricing.market import Market
from steptime.pricing.price_proposal import Proposal
from steptime.pricing.self_hosting import SelfHosting
from steptime.pricing.price_estimate import Reading
from steptime.result_base import entries
from steptime.reversible.avalanche import Mixing
from steptime.reversible.sboxes import SboxCard
from steptime.reversible.memory_tradeoff import Stacks
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.step_predictor import StepPredictor
from steptime.simulation.max_rate import HighestRate
from steptime.planning.plan_replay import Replay
from steptime.sweeps.context_limit import ContextWalls
from steptime.sweeps.design import Design
from steptime.sweeps.ranking import Ranking
from steptime.sweeps.sweep_result import Sweep
from steptime.sweeps.sensitivity_result import Sensitivity
from steptime.questions.train_comparison import TrainComparison
from steptime.training.training_memory import TrainingMemory
from steptime.training.training_planner import Training
from steptime.training.training_planner import TrainingStep
from steptime.training.training_alternatives import Scaling
from steptime.units import percent, percent_change
from tests.published import DIFFERENT, GOLDEN, KV, RATIOS, agrees, counted, ratios
from lecture_page import page as lecture_page
from training_page import page as training_page

PAGE = HERE / "models.md"
KEYS = HERE / "json.md"
ENGINES = HERE / "engines.md"
TRAINING = HERE / "training.md"
LECTURE = HERE / "lecture.md"
QUESTIONS = HERE / "questions.md"
README = Path(__file__).parent.parent / "README.md"
ANSWERS: dict[type, str] = {
    Plan: "`steptime plan`, `st.plan`. The command adds `launch`, the commands that start each engine, and with `--simulate` "
    "`simulated`, a [Replay](#replay); if no rate meets the limits, `feasible` is false and `reason` has the reason. "
    "With `--explain` it adds `explanation`: `pools`, each with `equations` and the `lines` "
    "of its `passes` (as in a step), `model_source`, and `sources` of the machine's figures.",
    ModelFleet: "`steptime fleet`, `st.plan_fleet`.",
    StepPredictor: "`steptime predictor`, `st.compile_predictor`.",
    Ranking: "`steptime compare`, `st.compare`.",
    Market: "`steptime prices MODEL`, `st.survey_prices`.",
    PriceReading: "`steptime prices SELLER/MODEL --read` and `--list FILE.toml`, `st.read_prices`.",
    PriceList: "`st.read_prices(...).list`.",
    Reading: "`st.read_prices(...)[NAME]`.",
    PriceHistory: "`steptime prices MODEL --history`.",
    Proposal: "`steptime prices MODEL SYSTEM --target-margin 2`, `st.propose_prices`.",
    SelfHosting: "`steptime prices MODEL --self-host SYSTEM --tokens-per-day N`, `st.compare_self_hosting`.",
    Sweep: "`steptime sweep`, `st.sweep`.",
    Design: "`steptime design`, `st.design`.",
    Sensitivity: "`steptime sensitivity`, `st.sensitivity`. `low`, `base` and `high` of an input are in its `unit`; `at_low` "
    "and `at_high` are in the `unit` of the answer.",
    StepSummary: "`steptime step`. A `Step`, which `st.decode_step`, `st.prefill_step` and `st.mixed_step` return, has keys "
    "up to `latency_s`, and `bound`; with array inputs, its figures are lists. With `--explain` the command "
    "adds `explanation`. Its `lines` have `term`, `name`, `formula` and `seconds`; the sum is the step. Its `sources` of the "
    "system's figures have `figure`, `value`, `grade`, `date` and `url`.",
    Memory: "`st.memory_per_chip`.",
    Training: "`steptime train`, `st.train`. With `--scaling` the command adds `scaling`, a [Scaling](#scaling), "
    "and with `--launch` `launch`, the lines of a script.",
    TrainComparison: "`steptime compare train MODEL SYSTEM,SYSTEM`, `steptime.questions.train_comparison.compare_training`.",
    TrainingStep: "`st.training_step`, and `step` of a training run; with array inputs, its figures are lists.",
    TrainingMemory: "`memory` of a training step.",
    Scaling: "`steptime train --scaling`, under `scaling`.",
    Simulation: "`steptime simulate`, `st.simulate`. The command adds `range` with `--range`: for each end `slowness`, the "
    "factor on the predicted step times, and `answers`.",
    HighestRate: "`steptime simulate --find-rate`. The command adds `model`, `system`, `engine`, `layout`, "
    "`anchor` and `policy`.",
    Replay: "`steptime plan --simulate`, under `simulated`; `st.replay`.",
    Anchors: "`steptime anchors`, `st.load_anchor`.",
    Watched: "`steptime watch URL`; without `--once` a line of JSON for each window.",
    Validation: "`steptime validate`, `st.validate`.",
    TrainingValidation: "`steptime validate` of a file of training runs.",
    Calibrated: "`st.calibrate`.",
    ModelCard: "`steptime models NAME`.",
    ModelTable: "`steptime models`.",
    ImageCost: "`steptime models NAME --image 1024x1024`, `st.image_cost`; `images` of a step.",
    Comparison: "`steptime models NAME NAME` and `--table`.",
    SystemCard: "`steptime systems NAME`.",
    SystemTable: "`steptime systems`.",
    Budget: "`steptime budget`, `st.budget`.",
    MoeBoard: "`steptime laws --moe`, `st.moe_board`.",
    Losses: "`steptime laws --params --tokens` as CSV; `steptime.scaling.compute_optimal.predict_losses`.",
    RlStep: "`steptime rl`, `st.rl_step`.",
    Refit: "`steptime.scaling.law_forms.refit`.",
    LawCard: "`steptime laws NAME`. With `--params` and `--tokens` the command adds `losses`, what laws say of that model.",
    LawTable: "`steptime laws`.",
    EngineCard: "`steptime engines NAME`.",
    EngineTable: "`steptime engines`.",
    Stacks: "`steptime reversible`, `steptime.reversible.reversible_stacks.measure_stacks`.",
    Mixing: "`steptime reversible mixing`, `steptime.reversible.avalanche.mixing`.",
    SboxCard: "`steptime reversible sboxes`, `steptime.reversible.sboxes.sbox_card`.",
    Lecture: "`steptime lecture`.",
    Section: "`steptime lecture 3`.",
    Verdicts: "`steptime lecture --check`.",
    Roofline: "`steptime roofline`, `st.roofline`.",
    ConfigCard: "`steptime models --new FILE`, `steptime.describe.model_summary.config_card`.",
    ContextWalls: "`steptime context`, `st.context_walls`.",
    CacheTrade: "`steptime reversible cache`, `steptime.describe.kv_tradeoff.cache_trade`.",
}
WORDS = {
    "float": "number", "int": "whole number", "Number": "number or list", "Array": "number or list", "str": "text",
    "bool": "true or false", "Any": "any", "None": "null", "Figure": "object",
}  # fmt: skip
ORACLE = json.loads((HERE / "oracle.json").read_text(encoding="utf-8"))
FAR = 0.005  # deviation of a stated total that the page explains


def verdict(name: str, total: float) -> str:
    """Return in words what docs/oracle.json holds on a model; "not judged" where it has no line."""
    row = ORACLE["models"].get(name)
    if row is None:
        return "not judged"
    kind = row["verdict"]
    if kind == "equal":
        part = "" if row["total"] == total else "text part "
        return f"{part}equal to transformers {ORACLE['transformers']} ({row['reference']})"
    if kind == "same shape":
        return f"same shape as {row['as']}, which is equal to transformers"
    if kind == "published":
        return f"published, {percent_change(row['deviation'])}"
    if kind == "nominal":
        return f"published total is nominal, {percent_change(row['deviation'])}"
    return "no reference and no published total" if kind == "no reference" else kind


def line(name: str, model: Model) -> str:
    """Return one model's row of the table."""
    total, stated, source = total_parameters(model), model.published.get("total"), model.source
    cells = [
        name,
        f"{total:,.0f}",
        f"{active_parameters(model):,.0f}",
        f"{kv_bytes_per_token(model):,.0f}",
        f"{growing_kv_bytes_per_token(model):,.0f}",
        model.kv_format,
        f"{state_bytes(model):,.0f}" if state_bytes(model) else "-",
        f"{stated:,.0f} ({percent_change(total / stated - 1)})" if stated else "-",
        f"[{source.get('grade')}]({source.get('url')}), {source.get('date')}",
        verdict(name, total),
    ]
    return "| " + " | ".join(cells) + " |"


def judged() -> str:
    """Return the sentence that counts the verdicts."""
    count = Counter(row["verdict"] for row in ORACLE["models"].values())
    held = count["published"] + count["nominal"]
    return (
        f"The reference is the model that transformers {ORACLE['transformers']} builds from the same config on PyTorch's meta "
        f"device. Of {sum(count.values())} models {count['equal']} equal it to the last parameter, total and active; "
        f"{count['same shape']} have the shape of such a model; {held}, which transformers lacks, are compared with the "
        f"maker's total; {count['no reference']} has neither."
    )


def differences(models: dict[str, Model]) -> list[str]:
    """Return the section on figures that a config contradicts."""
    recalled = [entry for entry in KV if entry["grade"] == "recalled"]
    wrong = [entry for entry in recalled if not agrees(entry)]
    lines = [
        "## Wrong recalled figures",
        "",
        f"`tests/golden/kv_bytes.toml` has {len(KV)} published figures of KV caches. {len(recalled)} of them were first "
        f"written from memory; the config showed that {len(wrong) or 'none'} were wrong.",
        "Other figures that the configs contradict:",
        "",
        "| model | figure | stated | counted | grade | source | why |",
        "|---|---|---:|---:|---|---|---|",
    ]
    for entry in KV:
        if not agrees(entry):
            why, what = DIFFERENT[entry["model"], entry["bytes"]], f"{entry['what']} KV bytes, {entry.get('format', 'bf16')}"
            lines.append(told(entry, what, f"{entry['bytes']:,}", f"{counted(entry):,.0f}", why))
    for entry in RATIOS:
        over, context = entry["over"].rpartition("/")[2], f"{entry['context']:,}"
        for what, stated, found in zip(("cache", "FLOPs"), (entry["cache"], entry["flops"]), ratios(entry), strict=True):
            if round(found, 2) != stated:
                why = "Stated without the formats of the two caches or of their arithmetic; counted alike in BF16."
                lines.append(told(entry, f"{what} over {over} at {context} tokens", percent(stated), percent(found, 1), why))
    lines += [
        "",
        f"Stated totals that differ from the count by more than {percent(FAR, 1)} and are not mere names of a size "
        '("nominal"):',
        "",
        "| model | stated | counted | difference | basis | grade |",
        "|---|---:|---:|---:|---|---|",
    ]
    for name, model in models.items():
        stated, basis = model.published.get("total"), str(model.published.get("basis", ""))
        if stated and "nominal" not in basis and abs(total_parameters(model) / stated - 1) > FAR:
            total, grade = total_parameters(model), model.published.get("grade", "-")
            lines.append(
                f"| {name} | {stated:,.0f} | {total:,.0f} | {percent_change(total / stated - 1)} | {basis or '-'} | {grade} |"
            )
    return lines


def told(entry: dict[str, Any], what: str, stated: str, found: str, why: str) -> str:
    """Return one row of the table of differences."""
    source = GOLDEN["sources"][entry["from"]]
    link = f"[{source['text']}]({source['url']})"
    return f"| {entry['model']} | {what} | {stated} | {found} | {entry['grade']} | {link} | {why} |"


def page() -> str:
    """Return the page: every model with its counts, its source and its check."""
    models, unread = {}, []
    for name, path in files("models").items():
        try:
            models[name] = load_model(str(path))
        except InputError as problem:
            unread.append(f"- {name} cannot be read: {problem}")
    lines = [
        "# Models",
        "",
        "Counted from each `config.json`. KV bytes are for one more token in the format of the config: *full* while no",
        "window is full, the figure of published tables; *growing* once every window is full. State is the recurrent state",
        "of a sequence, independent of its length. Total and active parameters are without multi-token-prediction layers.",
        "Written by `docs/generate.py`.",
        "",
        judged(),
        "",
        "| model | total | active | KV B/token, full | growing | format | state, B | stated total | source | oracle |",
        "|---|---:|---:|---:|---:|---|---:|---:|---|---|",
        *(line(name, model) for name, model in models.items()),
        *unread,
        "",
        *differences(models),
    ]
    return "\n".join(lines) + "\n"


def kinds_in(kind: type) -> list[type]:
    """Return the dataclasses that a result's keys hold, in order."""
    known = vars(sys.modules[kind.__module__])
    named = [word for entry in entries(kind) for word in re.findall(r"\w+", entry.type)]
    return [known[word] for word in dict.fromkeys(named) if is_dataclass(known.get(word)) and word not in WORDS]


def type_in_words(text: str) -> str:
    """Return an annotation as what JSON has.

    >>> type_in_words("tuple[float, float] | None"), type_in_words("Mapping[str, Number]"), type_in_words("tuple[Pool, ...]")
    ('pair of numbers or null', 'object of number or list', 'list of [Pool](#pool)')
    """
    for pattern, words in (
        (r"tuple\[(?:float|Number), (?:float|Number)\]", "pair of numbers"),
        (r"tuple\[(\w+), \.\.\.\]", r"list of \1"),
        (r"(?:Mapping|dict)\[str, list\[float\]\]", "object of lists"),
        (r"(?:Mapping|dict)\[str, Any\]", "object"),
        (r"(?:Mapping|dict)\[str, (\w+)\]", r"object of \1"),
    ):
        text = re.sub(pattern, words, text)
    text = text.replace(" | ", " or ")
    text = re.sub(r"\b[A-Z]\w+\b", lambda found: _link(found[0]), text)
    return re.sub(r"\b(float|int|str|bool)\b", lambda found: WORDS[found[0]], text)


def _link(name: str) -> str:
    return WORDS.get(name) or f"[{name}](#{name.casefold()})"


def keys_of(kind: type, about: str) -> list[str]:
    """Return the section of a result: every key with its unit, type and meaning."""
    schema = getattr(kind, "SCHEMA", "") if about else ""
    lines = [f"{'##' if about else '###'} {kind.__name__}", ""]
    lines += [f"{about} Schema `{schema}`.", ""] if about else []
    lines += ["| key | unit | type | meaning |", "|---|---|---|---|"]
    return [*lines, *(f"| `{e.key}` | {e.unit} | {e.kind or type_in_words(e.type)} | {e.meaning} |" for e in entries(kind)), ""]


def keys_page() -> str:
    """Return the page of JSON: every key of every answer."""
    lines = [
        "# JSON",
        "",
        "The output of `--json` and `to_dict()`. Figures are in SI units; the end of a key names the unit (`_s`, `_bytes`,",
        "`_usd_per_s`, ...). A key without a unit is a count, a share or a text. A number that is not finite (no limit, not",
        "known) is null. `schema` names the object and its version. The version rises when a key is removed or changes its",
        "meaning. Terms are explained in [nomenclature.md](nomenclature.md). Written by `docs/generate.py`.",
        "",
    ]
    for kind, about in ANSWERS.items():
        lines += keys_of(kind, about)
    lines += [
        "## Errors",
        "",
        "Instead of a result, with exit code 2. Schema `steptime.error/2`.",
        "",
        "| key | unit | type | meaning |",
        "|---|---|---|---|",
        "| `error` |  | text | kind of the error: UnknownName, DataFileError, RangeError, DoesNotFit, ... |",
        "| `message` |  | text | cause, place and nearest valid choice |",
        "| `nearest` |  | list of text | valid choices that the message names |",
        "",
        "## Parts",
        "",
        "Parts of answers.",
        "",
    ]
    done, ahead = set(ANSWERS), list(ANSWERS)
    while ahead:
        for kind in kinds_in(ahead.pop(0)):
            if kind not in done:
                done.add(kind)
                ahead.append(kind)
                lines += keys_of(kind, "")
    return "\n".join(lines).rstrip() + "\n"


def imbalance_rows() -> list[str]:
    """Return rows of the table of expert imbalance: DeepSeek-V3 with the skew of vLLM."""
    skew, rows = float(load_engine("vllm").experts.expert_skew), []
    for ranks, copies in ((8, 0), (8, 8), (32, 0), (32, 32), (64, 0), (64, 64), (144, 32), (144, 176)):
        ratios = []
        for tokens, requests in ((256.0 * ranks, 256.0 * ranks), (8192.0 * ranks, 1.0 * ranks)):
            mean = tokens * 8 / ranks
            chance = float(expected_maximum(mean, mean * 248 / 255, ranks)) - mean
            ratios.append(float(busiest_rows(mean, chance, requests, skew, 256, ranks, copies)) / mean)
        rows.append(f"| {ranks} | {copies} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return rows


def experts_note() -> list[str]:
    """Return the section on the imbalance of expert-parallel ranks."""
    return [
        "",
        "The busiest expert-parallel rank has more rows than the mean (`physics/expert_imbalance.py`). How many depends on",
        "the skew of the popularity of experts, experts per rank, tokens and requests of the batch, and copies of busy",
        "experts. The skew of 1.28 was counted in 58 layers of DeepSeek-R1 (TensorRT-LLM, tech blog 4). Models, layers and",
        "data differ, so that its logarithm has a prior deviation of 0.6 (`[fit.prior]` of an engine file), which widens",
        "ranges. DeepSeek-V3 with vLLM, 256 sequences per rank in decode, one prompt of 8,192 tokens per rank in prefill:",
        "",
        "| ranks | redundant experts | busiest over mean, decode | prefill |",
        "|---:|---:|---:|---:|",
        *imbalance_rows(),
        "",
        "`--imbalance` replaces the ratio by one that you counted. An engine file with `expert_imbalance` and without",
        "`expert_skew` has this ratio at any width. The exchange of rows between ranks is computed as if it were even.",
    ]


def kernel_rows() -> list[str]:
    """Return rows of the table of expert kernels, with the factors of engines."""
    shipped = [load_engine(name) for name in files("engines")]
    rows = []
    experts = load_kernels(ExpertKernel)
    for (name, chips, stored), kernel in sorted(experts.items(), key=lambda entry: (*entry[0][1:], entry[0][0])):
        factors = [
            next((f"{one.factor:g}" for one in engine.expert_factors if (one.chips, one.stored) == (chips, stored)), "")
            if name in ("", engine.name) else ""
            for engine in shipped
        ]  # fmt: skip
        shares = f"{percent(kernel.memory_share)} | {percent(kernel.compute_share)}"
        largest = f" to {kernel.tile_rows * kernel.tile_growth:.0f}" if kernel.tile_growth > 1 else ""
        shares += f" | {kernel.fill_columns:.0f} | {kernel.tile_rows:.0f}{largest} | {kernel.token_passes:.0f}"
        numbers = f"{1e6 * float(kernel.seconds):.0f} us | {shares} | {percent(kernel.error)} of {kernel.timings:,}"
        rows.append(f"| {chips} | {stored} | {name or 'all'} | {kernel.computed} | {numbers} | {' | '.join(factors)} |")
    return rows


def kernels_note() -> list[str]:
    """Return the section on the kernels of routed experts."""
    names = " | ".join(load_engine(name).name for name in files("engines"))
    return [
        "",
        "Kernels of routed experts have constants by generation of chips and format of the weights",
        "(`physics/expert_kernels.py`), fitted to timings of one call by",
        "[AIConfigurator](https://github.com/ai-dynamo/aiconfigurator) (`docs/fit_kernels.py`). Where it is known which",
        "kernels an engine runs, it has them alone (`kernel_engine` of its file); elsewhere the timings of all engines count.",
        "An engine that is calibrated from one of these, or copied from its file, runs its kernels. An engine file has factors",
        "on these times from whole runs (`[[experts]]`: chips, stored, factor). Where ranks exchange tokens, experts with",
        "scales for blocks run in other kernels, whose factor is that of `fp8_block, exchanged`, and TensorRT-LLM's experts in",
        "nvfp4 run in those of `nvfp4, exchanged`. Some kernels choose the rows of a tile by those that they expect of an",
        "expert: the smallest and the largest tile are given. Chips without timings have the kernels of all chips (`any`).",
        "Experts without runs have a factor of 1 with a prior deviation of 0.15, which widens ranges.",
        "",
        "| chips | stored | engine | computed | call | memory | compute | fill, columns | tile, rows | tokens, passes "
        f"| error of timings | "
        f"{names} |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|" + "---:|" * (names.count("|") + 1),
        *kernel_rows(),
    ]


def attention_note() -> list[str]:
    """Return the section on attention kernels."""
    rows = []
    for (operation, engine, chips, form, most), kernel in sorted(load_kernels(attention_kernels.AttentionKernel).items()):
        shares = f"{percent(kernel.memory_share)} | {percent(kernel.compute_share)} | {kernel.tile_entries:.0f}"
        fills = f"{kernel.pair_values:.0f} | {kernel.fill_rows:.4g} | {kernel.activation_passes:.1f}"
        numbers = f"{1e6 * float(kernel.seconds):.0f} us | {shares} | {fills} | {percent(kernel.error)} of {kernel.timings:,}"
        heads = "" if operation != attention_kernels.LATENT_DECODE else "more" if math.isinf(most) else f"up to {most:.0f}"
        rows.append(f"| {operation} | {engine or 'all'} | {chips} | {form} | {heads} | {numbers} |")
    return [
        "",
        "Attention kernels have constants by operation, generation of chips and format (`physics/attention_kernels.py`),",
        "fitted to timings by the same source (`docs/fit_kernels.py attention`). The format is that of the cache in decode,",
        "and that of the arithmetic in prefill. An engine has the timings of its kernels alone where they are known.",
        "Decode from latents (MLA) has kernels by the query heads of a chip.",
        "`attention_time` is the factor of an engine on these times, from whole runs.",
        "Recurrent mixers, which were not timed, have the shares of dense products.",
        "vLLM runs FlashAttention 2 on NVIDIA chips other than Hopper and data-centre Blackwell. It takes prompts and decoding",
        "sequences in one call, where each sequence takes a tile of 64 queries per query head",
        "(`data/kernels/joint_attention.toml`, [predictor.md](predictor.md#one-simulator-two-clocks)).",
        "",
        "| operation | engine | chips | format | heads | call | memory | compute | tile, entries | exponentials, values "
        "| fill, rows | passes | error of timings |",
        "|---|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *rows,
    ]


def engines_page() -> str:
    """Return the page of engines: every constant by group with its meaning, unit, range, reader and shipped values."""
    shipped = [load_engine(name) for name in files("engines")]
    names = " | ".join(engine.name for engine in shipped)
    lines = [
        "# Engines",
        "",
        "An engine is a set of physical constants, shared by all models and chips (`physics/engine_parameters.py`). The",
        "ideal engine has the defaults: every efficiency 1, every overhead 0. Shipped engines are fitted to public runs",
        "([validation.md](validation.md)). Constants in *italics* are fitted to time per token, as are the factors of experts.",
        "The waits of first tokens (`seconds_per_request` to `seconds_to_start`) are fitted to time to first token, without a",
        "variance. The others come from timings of kernels, engines' code and published counts, and a few from public runs.",
        "Comments in `docs/engine_cross_validation.py` name each source. `[fit.prior]` of an engine file has their deviations.",
        "",
        "An engine file is TOML: `name`, `title`, a table `[constants]` with any of the names below (missing names have the",
        "default), `[source]`, and `[fit]` as written by `steptime calibrate`. *Read by*: `step`, every step and its users;",
        "`plan`; `simulator`; `runs`, rows of measured runs. Written by `docs/generate.py`.",
    ]
    for group, kind in GROUPS.items():
        lines += ["", f"## {group.capitalize()}", "", inspect.cleandoc(kind.__doc__ or ""), ""]
        lines.append(f"| constant | meaning | unit | range | default | read by | {names} |")
        lines.append("|---|---|---|---|---:|---|" + "---:|" * len(shipped))
        for field_ in fields(kind):
            told = DESCRIPTIONS[field_.name]
            ends = f"{told['least']:g} to {told['most']:g}" if math.isfinite(told["most"]) else f"{told['least']:g} or more"
            values = [_value(engine, field_.name) for engine in shipped]
            cells = [f"`{field_.name}`", told["line"], told["unit"], ends, f"{told['default']:g}", told["read_by"], *values]
            lines.append("| " + " | ".join(cells) + " |")
        lines += [*experts_note(), *kernels_note(), *attention_note()] if kind is Experts else []
    return "\n".join([*lines, *rules_table()]) + "\n"


def rules_table() -> list[str]:
    """Return the section on the rules of engines: what each refuses, and where it says so."""
    lines = [
        "",
        "## Layouts that engines start",
        "",
        "A plan has only layouts that its engine can start (`physics/engine_rules.py`). `ideal` allows every mathematically",
        "possible layout; `typical` and other engines obey the common rules of vLLM, SGLang and TensorRT-LLM. Sources were",
        "read on 2026-11-21, at the named commits; recalled rules are marked. Some rules always hold here and are not",
        "listed. One is SGLang's tp % dp == 0, whose tp is tp x cp x dp here. The other is vLLM's tp % dcp == 0,",
        "whose tp is tp x cp. Pipelines with DP attention start in all three (vLLM counts pp x tp x dp processes,",
        "vllm/config/parallel.py; TensorRT-LLM removed its check in pull 3244; for SGLang this is recalled).",
        "",
        "| rule | condition on a layout | engine | source |",
        "|---|---|---|---|",
    ]
    for rule in ENGINE_RULES:
        for number, (engine, source) in enumerate(rule.sources.items()):
            told = (rule.name, rule.says) if number == 0 else ("", "")
            lines.append(f"| {told[0]} | {told[1]} | {engine} | {source} |")
    return lines


def _value(engine: Engine, name: str) -> str:
    text = f"{float(constant(engine, name)):.4g}"
    return f"*{text}*" if name in engine.fit.get("names", ()) else text


def questions_page() -> str:
    """Return the page of questions: the inputs and answers that each declares."""
    lines = [
        "# Questions",
        "",
        "Each question is declared once. Its inputs are options of the command, axes of `steptime sweep`, keywords of",
        "`st.ask` and keys of `POST /api/questions/NAME`. Its answers have the same value in all of them. Figures of the",
        "machine, such as `chip.hbm.bandwidth`, are inputs too if a question has a system.",
    ]
    for name in HOMES:
        question = find_question(name)
        lines += ["", f"## {name}", "", f"{question.meaning[:1].upper()}{question.meaning[1:]}.", ""]
        lines += ["| input | unit | default | meaning |", "|---|---|---|---|"]
        for key, declared in question.inputs.items():
            default = "required" if declared.required else declared.default_words or _default_text(declared.default)
            lines.append(f"| `{key}` | {declared.unit} | {default} | {declared.meaning.replace('|', ' or ')} |")
        lines += ["", "| answer | unit | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | {answer.unit} | {answer.meaning} |" for key, answer in question.answers.items()]
    return "\n".join(lines) + "\n"


def _default_text(value: object) -> str:
    return "" if value is None or value == () else f"{value:,}" if isinstance(value, int) and value is not False else str(value)


def readme_page() -> str:
    """Return the README with its blocks of output as the commands print them today, without lines of how long they took."""

    def with_output(match: re.Match[str]) -> str:
        command = match[1]
        environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
        run = subprocess.run(
            [sys.executable, "-m", *shlex.split(command)], capture_output=True, text=True, env=environment, check=True
        )
        lines = [line.rstrip() for line in run.stdout.splitlines() if not re.search(r"layouts in [\d.]+ s", line)]
        text = "\n".join(lines).strip("\n")
        return f"<!-- output of: {command} -->\n```\n{text}\n```\n<!-- end of output -->"

    block = re.compile(r"<!-- output of: (.+?) -->\n```\n.*?```\n<!-- end of output -->", re.DOTALL)
    return block.sub(with_output, README.read_text(encoding="utf-8"))


def main() -> int:
    """Write the pages, or compare them."""
    stale = []
    pages = {
        PAGE: page(), KEYS: keys_page(), ENGINES: engines_page(), TRAINING: training_page(), LECTURE: lecture_page(),
        QUESTIONS: questions_page(), README: readme_page(),
    }  # fmt: skip
    for path, text in pages.items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(f"docs/{path.name}")
    if stale:
        print(f"{' and '.join(stale)} out of date: run python docs/generate.py")
    return int(bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
