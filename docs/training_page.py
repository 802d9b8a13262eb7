"""The page docs/training.md: parts of a training step, errors on measured runs, and constants of the stacks."""

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
from steptime.units import percent, percent_change

HERE = Path(__file__).parent
INTRO = """# Training

`steptime train MODEL SYSTEM --chips N --seq L --batch B` finds a layout that fits and is about the fastest. It prints the step time
and its parts, the memory, and the timeline of the pipeline. With `--tokens` it adds the time and cost of the run and its failures.
Without `--chips`, `--deadline 60d` takes the cheapest number of chips (a power of two) that ends the run in time, or fewer chips
that cost at most 3.5 % more. `--budget 5M` takes the fastest run within the rent, on at most 8,192 chips as in measured runs.
`st.train`, `st.training_step` and `st.TrainingLayout` do the same in Python. This page is written
by `docs/generate.py`.

## Parts of a step

| part | formula | source |
|---|---|---|
| products | outputs, gradients of inputs and of weights (none with a frozen base, LoRA). Each is the larger time of arithmetic and memory traffic. Writes that arithmetic does not hide are added. So are the outputs that a chip loses while it is not filled (2 k FLOP each, for sums of k values). No product exceeds the best timed share of its chip | [AIConfigurator](https://github.com/ai-dynamo/aiconfigurator) |
| attention | causal pairs, 2.5 times backward with flash attention; without fusion, all pairs, with scores in memory. On Hopper, stacks with FlashAttention-2 (llm-foundry, torchtitan, nanotron among `typical`) have their own rate: it reaches 35 % of the data sheet, later kernels up to 75 % | arXiv 2307.08691, arXiv 2407.08608 |
| LoRA adapters | each reads its input and moves four times its output forward; backward it moves five times its input and twice its output. `megatron` and `nemo` adapt queries, keys and values, MLPerf's stacks attention, others all dense products | [Megatron-Bridge](https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/src/megatron/bridge/peft/lora_layers.py), [MLPerf](https://github.com/mlcommons/training/tree/master/llama2_70b_lora), [AutoModel](https://github.com/NVIDIA-NeMo/Automodel/tree/main/examples/llm_benchmark) |
| launches | a layer takes the longer of the host's launches and the kernels of the chip. Layers of experts add a time in which the host waits for the sizes of their groups. Each expert of a chip adds the launches of its products and casts, unless the stack has one kernel for all of them (`automodel`, `torchtitan`, `maxtext`, fused experts) | [Transformer Engine](https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/common/gemm/cublaslt_gemm.cu), [AutoModel](https://github.com/NVIDIA-NeMo/Automodel/blob/main/nemo_automodel/components/moe/experts.py) |
| scans | states of chunks of 128 tokens pass through memory in 12 bytes per value forward and 34 backward; inputs, convolution and outputs once each | [mamba](https://github.com/state-spaces/mamba/blob/main/mamba_ssm/ops/triton/ssd_combined.py) |
| element-wise | norms, residuals, rotary positions, activations, permutation of expert rows; each value is read or written once | |
| sustained rate | min(1, chip power per TFLOP/s in bf16 / 1 W) to a fitted exponent: below about 1 W per TFLOP/s a chip lowers its clock | |
| tensor parallel | 4 collectives per layer forward, 6 backward, with sequence parallelism; inputs of products in 8 or 4 bits are gathered in this format | arXiv 2205.05198, [Transformer Engine](https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/module/layernorm_linear.py) |
| context parallel | keys and values around a ring of all chips of a sequence, at the rate of its slowest link, once forward and twice backward, hidden by attention but for the first step of the ring; outputs of steps are added up. Scans exchange their inputs and outputs for whole sequences of some heads | arXiv 2310.01889, [Megatron-LM](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/ssm/mamba_context_parallel.py) |
| experts | dispatch and combine, forward and backward; a token crosses a link once per destination domain. DualPipe, steps with fused experts and recipes that say so run a forward and a backward pass together. The computation of both hides the exchanges of both, which take 20 of 132 multiprocessors while they run: max(s c, c - T) is exposed, of exchanges of c seconds, a share s and a computation of T. Experts of a latent width exchange rows of this width. DualPipe dispatches in 8 bits if products have 8 bits, and its network levels run at the same time | arXiv 2412.19437, [Megatron-Bridge](https://github.com/NVIDIA-NeMo/Megatron-Bridge/tree/v0.4.2/scripts/performance/configs) |
| recomputation | norms, activations and up-projections discard their output; `mlp`, `shared_experts` and `moe` run the whole block again, `moe` with its exchange and its shared experts | [Megatron-LM](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/transformer/moe/moe_layer.py) |
| pipeline | m (f + b) of the slowest stage, plus idle time and hops of the schedule; the head is on the last stage | arXiv 2104.04473 |
| data parallel | reduce-scatter of gradients, all-gather of weights, minus the part that passes hide; ZeRO-3 per micro-batch. `megatron` and `nemo-mlperf` gather weights of fp8 and mxfp8 in 8 bits, and reduce bf16 gradients | arXiv 1910.02054, [Megatron-Bridge](https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/src/megatron/bridge/training/mixed_precision.py), [MLPerf Training v5.0](https://github.com/mlcommons/training_results_v5.0) |
| fused experts | recipes in mxfp8 since NeMo 26.06, of DeepSeek-V3 (GB200, GB300, B300), Qwen3 (these and B200) and gpt-oss-120b (GB200, GB300): activation and quantization are inside the products, exchanges overlap with another micro-batch, and a captured step launches nothing from the host. The heads of DeepSeek-V3 and gpt-oss are in 8 bits, and attention but for DeepSeek-V3 on GB200 (1.62 times as fast as in 16 bits, arXiv 2407.08608) | [Megatron-Bridge 0.5.1](https://github.com/NVIDIA-NeMo/Megatron-Bridge/tree/v0.5.1/scripts/performance/configs) |
| offload | `--offload optimizer`: the CPU reads and writes the states at the bandwidth of host memory, while gradients and weights cross the link. `--offload activations`: saved activations cross the link once in each pass, hidden by computation as data-parallel exchanges are; two layers stay on the chip | arXiv 2101.06840, [Megatron-Bridge](https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/training/cpu-offloading.md) |
| optimizer | states, gradients and weights are read and written once, at the data sheet bandwidth | |
| gathered inputs | saved by stacks on DTensor (torchtitan), which then do not gather them again; others save their part | [torchtitan](https://github.com/pytorch/torchtitan/blob/main/torchtitan/models/llama3/infra/parallelize.py) |
| experts of the busiest rank | `--imbalance`: its rows over the mean multiply the time and the buffers of experts | |
| memory | states by sharding, activations by operator and recomputation, micro-batches in flight by schedule, logits, gathered weights of one layer | arXiv 2205.05198 |
| run | steps, failures at a rate per chip (0.107 to 0.297 a year), checkpoints (6.3 to 149 s) at Daly's interval, restarts (2 to 30 minutes), with their uncertainty in the range of the run; other overhead (slow periods, evaluations, network problems): a factor of 1.08, the median of five published runs (0.99 to 1.27; `--overhead`) | FGCS 22(3), 2006; arXiv 2407.21783, arXiv 2410.21680; [`training_runs.py`](../src/steptime/training/training_runs.py) |

Not modelled: unbalanced routing of experts, input pipelines, contention between concurrent collectives. Evaluations and stragglers are
only in the overhead of a run.
"""


def page() -> str:
    """Return the page."""
    data: dict[str, Any] = json.loads((HERE / "training_fit.json").read_text(encoding="utf-8"))
    lines = [INTRO, "## Errors on measured runs", ""]
    many = data["tables"]["fitted"]["runs"]
    lines += [
        f"Predicted over measured step time of {many:,} public runs (Megatron-Bridge, MLPerf Training, llm-foundry, BLOOM, MaxText, "
        "SimuMax, NeMo, AutoModel, torchtitan, papers). Left-out rows are predicted by constants fitted without all runs of their model, system or "
        "source, from the derivatives of the fit of all runs. `covered`: share inside the 90 % range of the other groups. Runs on left-out systems are slower than the "
        "constants predict. A stack that ran on fewer than two other chips therefore has a factor (`elsewhere`) on chips without runs. "
        "In the table each system's factor comes from all other systems. SimuMax timed the products of its B200s, which reach "
        "0.485 of the data sheet; AIConfigurator's reach 0.693. Its rows take its own timings.",
        "",
        "| | runs | median | mean | 90th percentile | bias | covered |",
        "|---|---|---|---|---|---|---|",
    ]
    names = {
        "fitted": "fitted",
        "models": "models left out",
        "dense": "of these, dense models",
        "experts": "of these, models with experts",
        "systems": "systems left out",
        "sources": "sources left out",
        "systems, constants alone": "systems left out, without the factor",
        "models, regression": "models left out, regression without physics",
        "systems, regression": "systems left out, regression without physics",
        "sources, regression": "sources left out, regression without physics",
    }
    for key, words in names.items():
        lines.append(f"| {words} {_row(data['tables'][key])}")
    ends = training_engine("typical", load_system("hgx-h100")).fit["interval"]
    widths = {kind: f"{high / low:.2f}" for kind, (low, high) in ends.items()}
    lines += ["", "The 90 % range of a step of a left-out model is from "
              f"{ends['dense'][0]:.2f} to {ends['dense'][1]:.2f} times the prediction for dense models (a factor of {widths['dense']}), and from "
              f"{ends['experts'][0]:.2f} to {ends['experts'][1]:.2f} for models with experts (a factor of {widths['experts']}). "
              f"On a new system its factor is {widths['new system']}."]  # fmt: skip
    lines += ["", "The regression without physics (`docs/training_regression.py`) has 39 numbers of a run: model, job, "
              "layout, chip, links, stack and date. It is a ridge regression on logarithms, with the best of five strengths."]  # fmt: skip
    lines += ["", "By source: median error of the fit, and with models, systems and sources left out.", "",
              "| source | runs | fitted | models | systems | sources |", "|---|---|---|---|---|---|"]  # fmt: skip
    for cell in data["by"]:
        figures = " | ".join(percent(cell[key]["median"], 1) for key in ("fitted", "models", "systems", "sources"))
        lines.append(f"| {cell['source']} | {cell['fitted']['runs']:,} | {figures} |")
    m = data["memory"]
    lines += [
        "",
        f"Errors of peak memory: {percent(m['all']['mean'], 1)} on average over {m['all']['runs']} runs. "
        f"They are {percent(m['simumax']['mean'], 1)} on average and {percent(m['simumax']['worst'], 1)} at most for SimuMax's "
        f"{m['simumax']['runs']} runs on eight B200. At the median they are {percent(m['torchtitan']['median'], 1)} for torchtitan "
        f"(reserved) and {percent(m['bloom']['median'], 1)} for BLOOM (driver). Of {m['ran']:,} layouts that ran, {len(m['refused'])} are said not to fit: "
        f"{', '.join(f'`{name}`' for name in m['refused'])}. A recomputation that is not recorded is the smallest that fits.",
        "",
    ]
    return "\n".join([*lines, *_searches(), *_published(), *_stacks(), *_schedules(), *_optimizers()])


def _searches() -> list[str]:
    data: dict[str, Any] = json.loads((HERE / "search_fit.json").read_text(encoding="utf-8"))
    lines = [
        "## Searches", "",
        "A search takes the most conventional of the layouts within 3.5 % of the fastest: fewest of tensor, context and pipeline",
        "parallelism, virtual stages and recomputation. 3.5 % is the median deviation between predicted and measured times of",
        "layouts of one job. `--evidence measured` (default) takes kinds of layouts that measured runs cover, if any of them fits:",
        "tensor parallelism up to 8, at most 16 stages with a micro-batch each, 1F1B or interleaved. With experts,",
        "stacks without a list of schedules, such as `typical`, also take DualPipe. Context parallelism is 2 from",
        "4,096 tokens a rank, and more from sequences of 16,384 tokens. A micro-batch has at least 512 rows on a chip. With experts:",
        "at most 2 tensor-parallel ranks, expert parallelism up to 64, whole sequences. `--evidence any` takes all layouts. The answer says",
        "what an unmeasured layout would save. Rules: [`training_evidence.py`](../src/steptime/training/training_evidence.py).", "",
        "The times of a searched layout are corrected: `docs/fit_search.py` searches every measured job without its layout, with",
        "constants fitted without its model, and compares with the best measured layout. Releases of a stack, and batches within a",
        "factor of 2, are one job. Jobs of NeMo AutoModel keep the recomputation of its recipes. The correction has a value for",
        "dense models and experts, and deviations by stack and chip architecture; it never makes a search faster. The upper end of the 90 % range",
        "is that of these jobs. A layout with given tp and pp (and ep) is not corrected.", "",
        "Two kinds of jobs are set apart. A stack may be new on the chip, once the model is left out: its speed there is not known.",
        "And a measured layout may be one that a search would not take: of another kind, such as tensor parallelism over 32 chips,",
        "or with a pipeline that is idle for more than a fifth of a step. The search is faster than such a layout, as it should be;",
        f"{list(data['tables'].values())[-1]['over their layouts']['worst']:.2f} times at most. The last row compares it with the largest measured",
        "FLOP/s of the same model, stack, chip, format and task.", "",
        "Predicted over measured tokens/s. `corrected`: measured kinds, with a correction fitted without the model of the job.", "",
        "| jobs | number | layout as measured | fastest of all layouts | measured kinds | corrected: median | 10 to 90 % | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in data["tables"].items():
        medians = " | ".join(f"{row[key]['median']:.2f}" for key in ("layout as measured", "fastest of all", "measured kinds"))
        last = row["corrected"]
        lines.append(
            f"| {name} | {last['jobs']} | {medians} | {last['median']:.2f} | {last['p10']:.2f} to {last['p90']:.2f} | {last['worst']:.2f} |"
        )
    regret = data["regret"]
    lines += [
        "", "| part of the correction | value |", "|---|---|",
        *(f"| {part[:-1]} {name} | {percent_change(value)} |" for part, values in data["corrections"].items() for name, value in values.items() if name),
        "", f"Some jobs ran with several layouts ({regret['jobs']} jobs). The one with the best prediction reaches {percent(regret['median'])} of the best "
        f"throughput at the median, and {percent(regret['p10'])} at the 10th percentile.", "",
    ]  # fmt: skip
    return lines


def _row(figures: dict[str, float]) -> str:
    covered = percent(figures["held"]) if "held" in figures else ""
    shares = " | ".join(percent(figures[key], 1) for key in ("median", "mean", "p90"))
    return f"| {figures['runs']:,} | {shares} | {percent_change(figures['bias'])} | {covered} |"


# Squared ReLU without a gate, and no biases (arXiv 2406.11704, table 1): the products of a StarCoder 2 of these sizes.
NEMOTRON_4 = {
    "architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "hidden_size": 18432, "intermediate_size": 73728,
    "num_attention_heads": 96, "num_hidden_layers": 96, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    "vocab_size": 256000, "tie_word_embeddings": False, "use_bias": False, "torch_dtype": "bfloat16",
}  # fmt: skip
# Tokens per second of the training scripts on H100: 9,700 to 10,000 (7B) and 4,400 to 4,600 (13B). Tokens and batches:
# arXiv 2501.00656, section 2.3 and table 3. Hosts: scripts/beaker/peteish/peteish7-launch.sh (32) and
# scripts/augusta/peteish13-highlr-launch.sh (64) of https://github.com/allenai/OLMo.
OLMO_CORE = "https://pypi.org/project/ai2-olmo-core/1.2.0"
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
    ("Llama 3.1 405B, layout searched", "meta-llama/Llama-3.1-405B", "hgx-h100", 30.84e6,
     "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md",
     {"chips": 16384, "seq": 8192, "batch": 2048, "tokens": 15.6e12}),
    ("DeepSeek-V3, layout searched", "deepseek-v3", "hgx-h800", 2.664e6, "https://arxiv.org/abs/2412.19437",
     {"chips": 2048, "seq": 4096, "batch": 15360, "dtype": "fp8", "optimizer": "adamw-bf16", "mtp": True, "tokens": 14.8e12}),
    ("OLMo 2 7B, 4.05T tokens, 256 H100, from 9,850 tok/s per chip", "allenai/OLMo-2-1124-7B", "hgx-h100", 4.05e12 / 9850 / 3600,
     OLMO_CORE, {"chips": 256, "seq": 4096, "batch": 1024, "tokens": 4.05e12}),
    ("OLMo 2 13B, 5.6T tokens, 512 H100, from 4,500 tok/s per chip", "allenai/OLMo-2-1124-13B", "hgx-h100", 5.6e12 / 4500 / 3600,
     OLMO_CORE, {"chips": 512, "seq": 4096, "batch": 2048, "tokens": 5.6e12}),
    ("OLMo 2 32B, 6T tokens, H100 (1,280 assumed), from 1,800 tok/s per chip", "allenai/OLMo-2-0325-32B", "hgx-h100", 0.926e6,
     "https://allenai.org/blog/olmo2-32B", {"chips": 1280, "seq": 4096, "batch": 2048, "tokens": 6e12}),
    ("Olmo 3 7B, 5.93T tokens, H100 (512 assumed)", "allenai/Olmo-3-1025-7B", "hgx-h100", 0.234e6,
     "https://muxup.com/2025q4/minipost-olmo3-training-cost", {"chips": 512, "seq": 8192, "batch": 512, "tokens": 5.93e12}),
    ("Olmo 3 32B, 5.5T tokens, H100 (1,024 assumed)", "allenai/Olmo-3.1-32B-Instruct", "hgx-h100", 1.05e6,
     "https://muxup.com/2025q4/minipost-olmo3-training-cost", {"chips": 1024, "seq": 8192, "batch": 1024, "tokens": 5.5e12}),
    ("Nemotron-4 340B, 7.6T tokens, 6,144 H100, from 8.0 s per step", NEMOTRON_4, "hgx-h100", 10.99e6,
     "https://arxiv.org/abs/2406.11704", {"chips": 6144, "seq": 4096, "batch": 2304, "tokens": 7.6e12}),
    *((f"Llama 2 {size}, 2T tokens, A100 ({chips:,} assumed)", f"meta-llama/Llama-2-{size.lower()}-hf", "hgx-a100", hours,
       "https://arxiv.org/abs/2307.09288", {"chips": chips, "seq": 4096, "batch": 1024, "tokens": 2e12})
      for size, chips, hours in (("7B", 1024, 184_320), ("13B", 1024, 368_640), ("70B", 2048, 1_720_320))),
)  # fmt: skip


def _published() -> list[str]:
    lines = ["## Published runs", "",
             "Published chip-hours, and predicted chip-hours at the published layout (else a searched one), with failures and other overhead.",
             "For the smaller Llama models the model card states more than the chip-hours of the steps; the rest is not explained. The",
             "lower end of a run has no overhead. The upper end has, in addition to the error of a step, the largest published overhead,",
             "a factor of 1.27. Both ends have the uncertainty of failures. DeepSeek-V3 at its published layout is one of the runs of the fit.", "",
             "| run | published | predicted | 90 % range | |", "|---|---|---|---|---|"]  # fmt: skip
    searched, widest = [], 1.0
    for words, model, system, hours, url, given in PUBLISHED:
        run = train(model, system, changes=False, **given).run
        assert run is not None
        low, high = (run.chip_hours * end / run.seconds / 1e6 for end in (run.low, run.high))
        is_inside, widest = low <= hours / 1e6 <= high, max(widest, high / low)
        lines.append(
            f"| [{words}]({url}) | {hours / 1e6:.2f} M | {run.chip_hours / 1e6:.2f} M | {low:.2f} to {high:.2f} M | "
            f"{'inside' if is_inside else 'outside'} |"
        )
        searched.append(is_inside and "layout" not in given)
    several = sum("layout" not in given for *_, given in PUBLISHED)
    words = f"{sum(searched)} of {several} runs are inside the range of a search without a layout. The widest range is a factor of {widest:.2f}."
    return [*lines, "", words, ""]


def _stacks() -> list[str]:
    system = load_system("hgx-h100")
    stacks = [training_engine(name, system) for name in files("stacks")]
    lines = ["## Stacks", "", "`--engine NAME`. All stacks share the constants below; a stack has a factor on its speed and on element-wise passes.",
             "Without it, AMD has `rocm-mlperf`, TPUs have `maxtext`, and other chips have `typical`, which is the nearest to published runs.",
             "`megatron` are recipes tuned by NVIDIA; where they ran, the answer says how much faster they are. A stack has its speed on",
             "chips where it ran. On other chips with runs it is at most as fast as all stacks together. On a chip without any run its",
             "speed holds if it ran on several chips; else `elsewhere` applies. Recipes on B200, GB200, GB300 and H200 were within 6 %",
             "of predictions without these chips. Both factors are never multiplied.",
             "", "| stack | description | runs | speed |", "|---|---|---|---|"]  # fmt: skip
    lines += [f"| `{s.name}` | {s.title} | {s.fit.get('runs', 0):,} | {float(s.speed):.2f} |" for s in stacks]
    typical = next(s for s in stacks if s.name == "typical")
    lines += ["", "| constant | value | one standard deviation | meaning |", "|---|---|---|---|"]
    for name, told in CONSTANTS.items():
        width = typical.fit["width"][name]
        sure = f"{width:.2g}" if told["unit"] in ("log", "exponent") else f"{percent(width)} (of its logarithm or logit)"
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
    lines = ["## Optimizers", "", "`--optimizer NAME`: bytes per parameter, in addition to 16-bit weights and the gradients of the stack.", "",
             "| optimizer | master | moments | source |", "|---|---|---|---|"]  # fmt: skip
    lines += [f"| `{o.name}` | {o.master:g} | {o.moments:g} | {o.source} |" for o in OPTIMIZERS.values()]
    return [*lines, ""]
