"""The page docs/training.md: what a training step is made of, how far off it is, and the constants of the stacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import load_system
from steptime.training.schedules.schedule import known_schedules
from steptime.training.training_job import OPTIMIZERS
from steptime.training.training_planner import train
from steptime.training.training_runs import Phase
from steptime.training.training_stack import CONSTANTS, training_engine

HERE = Path(__file__).parent
INTRO = """# Training

`steptime train MODEL SYSTEM --chips N --seq L --batch B` finds the fastest layout that fits and says how long a step takes, what it is
spent on, what fills the memory, what the pipeline does when, and with `--tokens` how long the run takes, what it costs and what fails.
`st.train`, `st.training_step` and `st.TrainingLayout` are the same from Python. This page is written by `docs/generate.py`.

## What a step is made of

| part | formula | source |
|---|---|---|
| products | FLOPs forward, twice backward (once with a frozen base, LoRA); the larger of arithmetic and traffic | |
| attention | causal pairs, 2.5 times backward with flash attention; all pairs and scores through memory where it is not fused | arXiv 2307.08691 |
| element-wise | values of norms, residuals, rotary positions, activations, permutation of experts' rows, each read or written once | |
| sustained rate | min(1, power of a chip for 1 TFLOP/s in bf16 / 1 W) to a power that is fitted: below about a watt a chip lowers its clock | |
| tensor parallel | 4 collectives of a layer forward, 6 backward, with sequence parallelism | arXiv 2205.05198 |
| context parallel | keys and values to all that share a sequence, once forward and twice backward, beside attention | arXiv 2310.01889 |
| experts | dispatch and combine, forward and backward; a token crosses a link once for every domain that it needs | arXiv 2412.19437 |
| pipeline | m (f + b) of the slowest stage, and the schedule's idle time and hops; the head is on the last stage | arXiv 2104.04473 |
| copies | reduce-scatter of gradients, all-gather of weights, less what the passes beside them hide; ZeRO-3 for each micro-batch | arXiv 1910.02054 |
| optimizer | states, gradients and weights read and written once, at the bandwidth of the data sheet | |
| memory | states by sharding, activations by operator and recomputation, micro-batches in flight by the schedule, logits, one layer's gathers | arXiv 2205.05198 |
| run | steps, failures at a rate per chip, checkpoints at Daly's interval, restarts | FGCS 22(3), 2006 |

Left out: real (unbalanced) routing of experts, input pipelines, evaluation, stragglers, contention of collectives that run at once.
"""


def page() -> str:
    """Return the page."""
    data: dict[str, Any] = json.loads((HERE / "training_fit.json").read_text(encoding="utf-8"))
    lines = [INTRO, "## How far off it is", ""]
    many = data["tables"]["fitted"]["runs"]
    lines += [
        f"Predicted over measured step time of {many:,} public runs (Megatron-Bridge, MLPerf Training, llm-foundry, BLOOM, MaxText, "
        "SimuMax, NeMo, torchtitan, papers). Rows left out are predicted by constants fitted without their whole model, system or "
        "source. `covered`: share inside the 90 % range that the other groups give. On systems left out runs are slower than the "
        "constants say, so that a stack is as much slower (`elsewhere`) on a chip of which it has no run; in the table each system's "
        "factor is that of all others.",
        "",
        "| | runs | median | mean | 90th percentile | bias | covered |",
        "|---|---|---|---|---|---|---|",
    ]
    names = {
        "fitted": "fitted",
        "models": "whole models left out",
        "systems": "whole systems left out",
        "sources": "whole sources left out",
        "systems, constants alone": "whole systems left out, by constants alone",
    }
    for key, words in names.items():
        lines.append(f"| {words} {_row(data['tables'][key])}")
    lines += ["", "By source: median error fitted, and with models, systems and sources left out.", "",
              "| source | runs | fitted | models | systems | sources |", "|---|---|---|---|---|---|"]  # fmt: skip
    for cell in data["by"]:
        figures = " | ".join(f"{cell[key]['median']:.1%}" for key in ("fitted", "models", "systems", "sources"))
        lines.append(f"| {cell['source']} | {cell['fitted']['runs']:,} | {figures} |")
    m = data["memory"]
    lines += [
        "",
        f"Peaks of memory: SimuMax's {m['simumax']['runs']} runs on eight B200 {m['simumax']['mean']:.1%} off in the mean and "
        f"{m['simumax']['worst']:.1%} at worst; torchtitan (reserved) {m['torchtitan']['median']:.1%} and BLOOM (as the driver shows it) "
        f"{m['bloom']['median']:.1%} at the median. {m['fitting']:.1%} of the runs that ran are called fitting.",
        "",
    ]
    return "\n".join([*lines, *_published(), *_stacks(), *_schedules(), *_optimizers()])


def _row(figures: dict[str, float]) -> str:
    covered = f"{figures['held']:.0%}" if "held" in figures else ""
    shares = " | ".join(f"{figures[key]:.1%}" for key in ("median", "mean", "p90"))
    return f"| {figures['runs']:,} | {shares} | {figures['bias']:+.1%} | {covered} |"


PUBLISHED = (
    ("Llama 3.1 405B, 15.6T tokens, 16,384 H100", "meta-llama/Llama-3.1-405B", "hgx-h100", 30.84e6,
     "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md",
     {"chips": 16384, "seq": 8192, "batch": 2048, "layout": {"tp": 8, "pp": 16, "cp": 1},
      "phases": [Phase(tokens=252e9, seq=8192, batch=2048, first=512), Phase(tokens=15.35e12, seq=8192, batch=2048)]}),
    ("DeepSeek-V3, 14.8T tokens, 2,048 H800, pre-training", "deepseek-v3", "hgx-h800", 2.664e6, "https://arxiv.org/abs/2412.19437",
     {"chips": 2048, "seq": 4096, "batch": 15360, "dtype": "fp8", "optimizer": "adamw-bf16", "mtp": True, "engine": "typical",
      "layout": {"tp": 1, "pp": 16, "ep": 64, "schedule": "dualpipe"},
      "phases": [Phase(tokens=469e9, seq=4096, batch=15360, first=3072), Phase(tokens=14.33e12, seq=4096, batch=15360)]}),
    ("Llama 3.1 70B, 15T tokens, H100 (4,096 assumed)", "meta-llama/Llama-3.1-70B", "hgx-h100", 7.0e6,
     "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md",
     {"chips": 4096, "seq": 8192, "batch": 2048, "tokens": 15e12}),
    ("Llama 3.1 8B, 15T tokens, H100 (1,024 assumed)", "meta-llama/Llama-3.1-8B", "hgx-h100", 1.46e6,
     "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md",
     {"chips": 1024, "seq": 8192, "batch": 1024, "tokens": 15e12}),
)  # fmt: skip


def _published() -> list[str]:
    lines = ["## Whole runs that were published", "",
             "Chip-hours as published, and as a run at the layout that is known (the fastest where none is), with failures. Of the smaller",
             "models of Llama the figure of the card is two to three times what their step allows: what else it counts is not told.", "",
             "| run | published | predicted | 90 % range |", "|---|---|---|---|"]  # fmt: skip
    for words, model, system, hours, url, given in PUBLISHED:
        run = train(model, system, changes=False, **given).run
        assert run is not None
        low, high = (run.chip_hours * end / run.seconds / 1e6 for end in (run.low, run.high))
        lines.append(f"| [{words}]({url}) | {hours / 1e6:.2f} M | {run.chip_hours / 1e6:.2f} M | {low:.2f} to {high:.2f} M |")
    return [*lines, ""]


def _stacks() -> list[str]:
    system = load_system("hgx-h100")
    stacks = [training_engine(name, system) for name in files("stacks")]
    lines = ["## Stacks", "", "`--engine NAME`. All share the constants below; a stack has a factor on its speed and its element-wise passes.",
             "", "| stack | what | runs | speed |", "|---|---|---|---|"]  # fmt: skip
    lines += [f"| `{s.name}` | {s.title} | {s.fit.get('runs', 0):,} | {float(s.speed):.2f} |" for s in stacks]
    typical = next(s for s in stacks if s.name == "typical")
    lines += ["", "| constant | value | one standard deviation | meaning |", "|---|---|---|---|"]
    for name, told in CONSTANTS.items():
        width = typical.fit["width"][name]
        sure = f"{width:.2g}" if told["unit"] in ("log", "exponent") else f"{width:.0%} (of its logarithm or logit)"
        lines.append(f"| `{name}` | {float(getattr(typical.constants, name)):.3g} | {sure} | {told['unit']} {told['line']} |")
    return [*lines, ""]


def _schedules() -> list[str]:
    lines = ["## Schedules", "", "`--schedule NAME`.", "", "| schedule | also | virtual stages | copies of parameters | source |",
             "|---|---|---|---|---|"]  # fmt: skip
    for name, one in known_schedules().items():
        virtual = {0: "2 or more", 1: "none"}.get(one.virtual, str(one.virtual))
        lines.append(f"| `{name}` | {', '.join(one.aliases)} | {virtual} | {one.copies} | <{one.source}> |")
    return [*lines, ""]


def _optimizers() -> list[str]:
    lines = ["## Optimizers", "", "`--optimizer NAME`: bytes of a parameter beside 16-bit weights and the stack's gradients.", "",
             "| optimizer | master | moments | source |", "|---|---|---|---|"]  # fmt: skip
    lines += [f"| `{o.name}` | {o.master:g} | {o.moments:g} | {o.source} |" for o in OPTIMIZERS.values()]
    return [*lines, ""]
