"""Engine rules: layouts that engines refuse to start, each with its source.

`layout_rules` has the whole table. The rules were read in the engines' sources and threads on 2026-11-21: files at the
given commits, otherwise single lines. vLLM counts tp x cp of a data-parallel rank as its tensor parallel size, and divides
contexts inside it. SGLang and TensorRT-LLM count the chips of a stage.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from steptime.number_checks import Number
from steptime.physics.layout import ENGINE, READ_ENGINES, Facts, Layout, Rule, axis, exchanges_experts, near

VLLM, SGLANG, TRTLLM = "github.com/vllm-project/vllm", "github.com/sgl-project/sglang", "github.com/NVIDIA/TensorRT-LLM"
LLAMA_CPP: Final = "llama.cpp"
LLAMA_SOURCE: Final = "github.com/ggml-org/llama.cpp"


# Ranks for which DeepEP has kernels inside one NVLink host.
DEEPEP_IN_A_HOST = (2, 4, 8)
# Ranks per host for its kernels between hosts.
DEEPEP_HOST = 8
"""Source, read 2026-11-21: TensorRT-LLM's `is_deepep_feasible` accepts 2, 4 or 8 ranks in a host, and 2, 4, 8 or 16 hosts of 8.
SGLang's reports of 3, 9 and 12 hosts (recalled) show that other numbers of hosts work. vLLM 0.33 needs ranks 0 to 7 on one
node."""


# Sequences that an engine serves at a time, where its source has a limit that no flag raises.
MOST_SEQUENCES: Final = {LLAMA_CPP: 256}
"""Source: llama.cpp, src/llama-cparams.h, `LLAMA_MAX_SEQ 256`; a context with a larger `-np` is refused."""


def most_sequences(engine: str) -> float:
    """Return the largest number of sequences that a replica of an engine serves at a time.

    Args:
        engine: Name of the engine.

    Returns:
        Sequences; infinite where no limit is known.

    >>> most_sequences("llama.cpp"), most_sequences("vllm")
    (256, inf)
    """
    return MOST_SEQUENCES.get(engine, math.inf)


# Engines whose servers cannot pass a KV cache on.
WITHOUT_POOLS: Final = (LLAMA_CPP,)
"""Source: llama.cpp, tools/server/README.md (00dc805): slots are saved to and restored from files of the same server only."""
# Most chips of one server of llama.cpp, and the formats of a KV cache that it divides over chips.
LLAMA_CPP_CHIPS: Final = 16
LLAMA_CPP_CACHES: Final = ("", "bf16", "fp16", "fp32")
# Architectures that llama.cpp does not divide over chips by `--split-mode tensor`, as `model_type` of their configs.
LLAMA_CPP_WHOLE: Final = frozenset({
    "grok", "mpt", "olmoe", "olmo2", "olmo3", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "kimi_k2",
    "glm4_moe_lite", "glm_moe_dsa", "nemotron_h", "granitemoehybrid", "lfm2_moe", "minimax_m2", "mistral4", "kimi_linear",
    "jamba", "falcon_h1", "falcon_mamba", "mamba", "mamba2", "plamo2", "minicpm3", "gemma3n", "gemma3n_text", "bitnet", "t5",
    "git", "grok-1", "mistral_large_3", "deepseek_ref",
})  # fmt: skip
"""Source: llama.cpp, docs/multi-gpu.md (5815cb8). Of its names, DeepSeek2 is that of DeepSeek-V2 and V3, Kimi-K2 and
GLM-4.7-Flash and of Mistral Large 3. OLMo2 is that of OLMo 3, Grok that of Grok-1 and Grok-2, Mamba that of Falcon Mamba."""


def has_pools(engine: str) -> bool:
    """Whether servers of an engine can pass a KV cache from a prefill pool to a decode pool.

    Args:
        engine: Name of the engine.

    Returns:
        True or false; true for engines that steptime does not know.

    >>> has_pools("llama.cpp"), has_pools("vllm")
    (False, True)
    """
    return engine not in WITHOUT_POOLS


def deepep_counts(host: float, ranks: Number) -> Any:
    """Whether DeepEP has kernels for `ranks` ranks on hosts of `host` chips.

    DeepEP supports a few numbers of ranks inside one host, and whole hosts of eight.

    Args:
        host: Chips of one host; infinite where any number of ranks works.
        ranks: Number of ranks, or an array.

    Returns:
        Booleans with the shape of `ranks`.

    >>> deepep_counts(8.0, np.array([3, 4, 12, 16])).tolist(), bool(deepep_counts(4.0, 8))
    ([False, True, False, True], False)
    """
    within = (axis(ranks) <= host) & np.isin(ranks, DEEPEP_IN_A_HOST)
    return np.isinf(host) | within | ((host == DEEPEP_HOST) & (axis(ranks) % DEEPEP_HOST == 0))


def _kv_heads_hold(facts: Facts, layout: Layout) -> Any:
    tp, replicated = axis(layout.tp), axis(True)
    for heads in facts.kv_kinds:
        replicated = replicated & ((heads % tp == 0) | (tp % heads == 0))
    return replicated


def _kv_heads_reason(facts: Facts, layout: Layout) -> str:
    if np.ndim(layout.tp):
        return f"tp={layout.tp} and the {facts.kv_heads} KV heads of {facts.model} do not divide each other"
    tp = int(layout.tp)
    heads = next((h for h in facts.kv_kinds if h % tp and tp % h), facts.kv_heads)
    return (
        f"tp={tp} and the {heads} KV heads of {facts.model} do not divide each other, as {_who(facts)} needs; "
        f"try {near(heads, tp, facts.chips)}"
    )


def _state_heads_hold(facts: Facts, layout: Layout) -> Any:
    replicated = axis(True)
    for heads in facts.state_heads:
        replicated = replicated & (heads % axis(layout.group) == 0)
    return replicated


def _copies_needed(facts: Facts, layout: Layout) -> Any:
    """Return the redundant experts that give every chip the same number of experts."""
    copies, ep = axis(layout.redundant_experts), axis(layout.ep)
    return copies + -(facts.experts + copies) % ep


def _uneven(facts: Facts, layout: Layout) -> Any:
    # A dense model has nothing to divide.
    return (facts.experts > 0) & ((facts.experts + axis(layout.redundant_experts)) % axis(layout.ep) != 0)


def _uneven_reason(facts: Facts, layout: Layout) -> str:
    copies = f" and {layout.redundant_experts} copies" if np.any(axis(layout.redundant_experts) > 0) else ""
    needed = _copies_needed(facts, layout)
    return (
        f"{facts.experts} experts{copies} do not divide evenly over ep={layout.ep} chips, as {_who(facts)} needs; "
        f"try redundant_experts={needed}"
    )


def _sharing(layout: Layout) -> Any:
    """Chips that divide an expert's columns among them."""
    return np.maximum(axis(layout.stage) // axis(layout.ep), 1)


def _divided(columns: int, shards: Any, block: int) -> Any:
    """Whether columns divide evenly over chips, in whole blocks; true for no columns."""
    return axis(True) if not columns else columns % (shards * max(block, 1)) == 0


def _columns_reason(facts: Facts, columns: int, shards: Any, label: str, block: int = 0) -> str:
    columns_text = f"{columns:,} columns of {label} in {facts.model}"
    if not block:
        return f"{columns_text} do not divide evenly over {shards} chips, as {_who(facts)} needs"
    return (
        f"{columns_text} give each of {shards} chips {columns / float(np.max(shards)):g} columns, "
        f"but {_who(facts)} needs whole blocks of {block} that share a scale"
    )


def _context_holds(facts: Facts, layout: Layout) -> Any:
    """Whether vLLM can divide contexts in this way.

    Each chip has one KV head, and chips that share a KV head divide its query heads.
    """
    tp, cp, kv = axis(layout.tp), axis(layout.cp), max(facts.kv_heads, 1)
    return (cp == 1) | (kv == 1) | ((tp >= kv) & (tp % kv == 0) & (facts.heads // kv % cp == 0))


def _other_ways(layout: Layout) -> str:
    """Return the degrees of a layout other than tp that are above 1, in words."""
    return " ".join(f"{name}={getattr(layout, name)}" for name in ("pp", "cp", "dp", "ep") if np.any(getattr(layout, name) > 1))


def _who(facts: Facts) -> str:
    return facts.engine or "the engine"


ENGINE_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="KV heads",
        scope=ENGINE,
        engines=READ_ENGINES,
        says="tp divides the number of KV heads, or is a multiple of it; a latent counts as one head, so that any tp works",
        holds=_kv_heads_hold,
        reason=_kv_heads_reason,
        sources={
            "vllm": f"{VLLM} vllm/model_executor/models/llama.py (e06c9ba): asserts both cases",
            "sglang": f"{SGLANG} python/sglang/srt/models/qwen3_moe.py (008af3a): asserts both cases",
            "trtllm": f"{TRTLLM} tensorrt_llm/_torch/models/modeling_utils.py: duplicate_kv_weight asserts both cases",
        },
    ),
    Rule(
        name="state heads",
        scope=ENGINE,
        engines=("vllm", "sglang"),
        says="tp x cp divides the heads of recurrent mixers",
        holds=_state_heads_hold,
        reason=lambda f, x: (
            f"tp x cp={x.group} does not divide the {' and '.join(map(str, f.state_heads))} heads of recurrent mixers in "
            f"{f.model}, as {_who(f)} needs"
        ),
        sources={
            "vllm": f"{VLLM} vllm/model_executor/layers/mamba/mamba_mixer2.py: num_heads % tp_size == 0",
            "sglang": f"{SGLANG} python/sglang/srt/layers/attention/mamba (path recalled): num_heads % tp_size == 0",
        },
    ),
    Rule(
        name="even experts",
        scope=ENGINE,
        engines=("sglang", "trtllm"),
        says="experts and their redundant copies are a multiple of ep",
        holds=lambda f, x: ~_uneven(f, x),
        reason=_uneven_reason,
        sources={
            "sglang": f"{SGLANG} python/sglang/srt/layers/moe/fused_moe_triton/layer.py: num_experts, "
            "ep_num_redundant_experts among them, % moe_ep_size == 0",
            "trtllm": f"{TRTLLM} tensorrt_llm/_torch/modules/fused_moe/moe_load_balancer.py: num_slots % ep_size == 0",
        },
    ),
    Rule(
        name="even experts in an exchange",
        scope=ENGINE,
        engines=READ_ENGINES,
        says="where data-parallel ranks exchange tokens, experts and their redundant copies are a multiple of ep",
        holds=lambda f, x: ~(exchanges_experts(x) & _uneven(f, x)),
        reason=_uneven_reason,
        sources={
            "vllm": "github.com/deepseek-ai/DeepEP csrc: num_experts % num_ranks == 0; "
            f"{VLLM}/issues/52435; without an exchange vLLM distributes experts unevenly",
            "sglang": "as for all experts",
            "trtllm": "as for all experts",
        },
    ),
    Rule(
        name="copies of experts",
        scope=ENGINE,
        engines=("trtllm",),
        says="redundant experts only with dp above 1 and ep above 1",
        holds=lambda _, x: (axis(x.redundant_experts) == 0) | exchanges_experts(x),
        reason=lambda f, x: (
            f"{_who(f)} has redundant experts only where data-parallel ranks exchange tokens (dp and ep above 1), "
            f"got ep={x.ep} and dp={x.dp}"
        ),
        sources={
            "trtllm": f"{TRTLLM} tensorrt_llm/_torch/modules/fused_moe/interface.py: load balancer should be "
            "only used with ADP and EP > 1"
        },
    ),
    Rule(
        name="experts over a stage",
        scope=ENGINE,
        engines=("vllm",),
        says="ep is 1, or the number of chips of a stage",
        holds=lambda _, x: (axis(x.ep) == 1) | (axis(x.ep) == x.stage),
        reason=lambda f, x: (
            f"ep={x.ep}: {_who(f)} spreads experts over all {x.stage} chips of a stage (ep={x.stage}) or not at all (ep=1)"
        ),
        sources={"vllm": f"{VLLM}/pull/30615: expert layers always use EP of size TP x DP"},
    ),
    Rule(
        name="exchange over a stage",
        scope=ENGINE,
        engines=("vllm", "sglang"),
        says="where data-parallel ranks exchange tokens, ep is the number of chips of a stage",
        holds=lambda _, x: ~exchanges_experts(x) | (axis(x.ep) == x.stage),
        reason=lambda f, x: (
            f"ep={x.ep}: {_who(f)} exchanges tokens among all {x.stage} chips of a stage (ep={x.stage}) or not at all (ep=1)"
        ),
        sources={
            "vllm": "as for experts over a stage",
            "sglang": f"{SGLANG} python/sglang/srt/server_args.py: DeepEP sets ep_size to tp_size",
        },
    ),
    Rule(
        name="an expert for each chip of a group",
        scope=ENGINE,
        engines=("vllm",),
        says="tp x cp is at most the number of experts",
        holds=lambda f, x: (axis(x.group) <= f.experts) | (f.experts == 0),
        reason=lambda f, x: f"tp x cp={x.group} is more than the {f.experts} experts of {f.model}; {_who(f)} refuses this",
        sources={"vllm": f"{VLLM} vllm/model_executor/models/qwen3_moe.py: tensor parallel size greater than experts"},
    ),
    Rule(
        name="an expert for each chip of a stage",
        scope=ENGINE,
        engines=("sglang",),
        says="tp x cp x dp is at most the number of experts",
        holds=lambda f, x: (axis(x.stage) <= f.experts) | (f.experts == 0),
        reason=lambda f, x: (
            f"a stage of {x.stage} chips has more chips than {f.model} has experts ({f.experts}); {_who(f)} refuses this"
        ),
        sources={"sglang": f"{SGLANG} python/sglang/srt/models/qwen3_moe.py: tp_size greater than experts"},
    ),
    Rule(
        name="columns",
        scope=ENGINE,
        engines=READ_ENGINES,
        says="tp x cp divides the columns of dense feed-forward blocks",
        holds=lambda f, x: _divided(f.columns, axis(x.group), 0),
        reason=lambda f, x: _columns_reason(f, f.columns, x.group, "feed-forward blocks"),
        sources={
            "vllm": f"{VLLM} vllm/model_executor/layers/linear.py: output_size % tp_size == 0 (recalled; SGLang copies it)",
            "sglang": f"{SGLANG} python/sglang/srt/layers/linear.py (98b3b24): output_size % tp_size == 0",
            "trtllm": f"{TRTLLM} tensorrt_llm/_torch/modules/linear.py: out_features must be divisible by tp_size",
        },
    ),
    Rule(
        name="expert columns",
        scope=ENGINE,
        engines=READ_ENGINES,
        says="the chips that share an expert (tp x cp x dp / ep; all of a stage with ep 1) divide its columns",
        holds=lambda f, x: _divided(f.expert_columns, _sharing(x), 0),
        reason=lambda f, x: _columns_reason(f, f.expert_columns, _sharing(x), "an expert"),
        sources={
            "vllm": f"{VLLM} vllm/model_executor/layers/fused_moe/config.py: intermediate_size % tp_size == 0, "
            "tp_size being TP x DP without expert parallelism",
            "sglang": f"{SGLANG} python/sglang/srt/layers/moe/fused_moe_triton/layer.py: intermediate_size % moe_tp_size == 0",
            "trtllm": f"{TRTLLM} docs/source/features/parallel-strategy.md (65b31db): moe_tp x moe_ep = tp, matrices "
            "evenly sliced",
        },
    ),
    Rule(
        name="blocks of columns",
        scope=ENGINE,
        engines=("vllm", "sglang"),
        says="with one scale per block of weights (FP8, 128 x 128), each chip has whole blocks of dense columns",
        holds=lambda f, x: (axis(x.group) == 1) | _divided(f.columns * bool(f.block), axis(x.group), f.block),
        reason=lambda f, x: _columns_reason(f, f.columns, x.group, "feed-forward blocks", f.block),
        sources={
            "vllm": f"{VLLM} vllm/model_executor/layers/quantization/utils/fp8_utils.py: validate_fp8_block_shape",
            "sglang": f"{SGLANG} python/sglang/srt/layers/quantization/fp8.py (00563d3): validate_block_quant_shapes",
        },
    ),
    Rule(
        name="blocks of expert columns",
        scope=ENGINE,
        engines=("vllm", "sglang"),
        says="with one scale per block of weights (FP8, 128 x 128), each chip has whole blocks of an expert's columns",
        holds=lambda f, x: (_sharing(x) == 1) | _divided(f.expert_columns * bool(f.expert_block), _sharing(x), f.expert_block),
        reason=lambda f, x: _columns_reason(f, f.expert_columns, _sharing(x), "an expert", f.expert_block),
        sources={
            "vllm": f"{VLLM}/pull/39046: intermediate_size_per_partition % block_n (closed; MiniMax-M2.5 at tp 8 fails)",
            "sglang": f"{SGLANG} python/sglang/srt/layers/quantization/fp8.py (00563d3): same message",
        },
    ),
    Rule(
        name="one chip a group",
        scope=ENGINE,
        engines=("trtllm",),
        says="with dp above 1, a data-parallel rank is one chip (tp x cp is 1)",
        holds=lambda _, x: (axis(x.dp) == 1) | (axis(x.group) == 1),
        reason=lambda f, x: f"dp={x.dp} with tp x cp={x.group}: {_who(f)} makes each chip a data-parallel rank",
        sources={
            "trtllm": f"{TRTLLM} tensorrt_llm/_torch/modules/attention.py: tp_size = 1 with enable_attention_dp; "
            "docs/source/features/parallel-strategy.md"
        },
    ),
    Rule(
        name="divided contexts",
        scope=ENGINE,
        engines=("vllm",),
        says="cp above 1 only for a latent, or if the KV heads divide tp and cp divides the query heads per KV head",
        holds=_context_holds,
        reason=lambda f, x: (
            f"cp={x.cp} with tp={x.tp}: {_who(f)} divides contexts only where tp is a multiple of the {f.kv_heads} KV heads of "
            f"{f.model} and cp divides the {f.heads // max(f.kv_heads, 1)} query heads per KV head"
        ),
        sources={
            "vllm": f"{VLLM} vllm/config/parallel.py (00193b8): tp % dcp == 0; vllm/config/model.py (0052a5b): "
            "tp > KV heads, dcp <= tp // KV heads, query heads a KV head % dcp == 0"
        },
    ),
    Rule(
        name="divided latents",
        scope=ENGINE,
        engines=("sglang",),
        says="cp above 1 only for a latent",
        holds=lambda f, x: (axis(x.cp) == 1) | (f.kv_heads == 1),
        reason=lambda f, x: f"cp={x.cp}: {_who(f)} divides contexts of latent attention only, and {f.model} has KV heads",
        sources={"sglang": f"{SGLANG}/pull/34654: decode context parallelism of MLA (--dcp-size); /pull/34355 of others"},
    ),
    Rule(
        name="whole contexts",
        scope=ENGINE,
        engines=("trtllm",),
        says="cp is 1: the engine's context parallelism (Helix) is experimental, for decode servers of latent models only",
        holds=lambda _, x: axis(x.cp) == 1,
        reason=lambda f, x: f"cp={x.cp}: {_who(f)} divides contexts only as an experiment, in decode servers of latent models",
        sources={"trtllm": f"{TRTLLM}/pull/9342; docs/source/features/helix.md"},
    ),
    Rule(
        name="two batches",
        scope=ENGINE,
        says="two micro-batches per stage where `two_batch` allows them: always, with dp and ep above 1, or never",
        holds=lambda f, x: (axis(x.microbatches) <= x.pp) | (f.two_batch >= np.where(exchanges_experts(x), 1, 2)),
        reason=lambda f, _: (
            f"{f.engine or 'the engine'} overlaps two micro-batches of a stage "
            + ("in no layout" if f.two_batch < 1 else "only where data-parallel ranks exchange tokens (dp and ep above 1)")
        ),
        sources={
            "vllm": "https://docs.vllm.ai/en/stable/design/dbo/",
            "sglang": "https://docs.sglang.io/advanced_features/expert_parallelism.html",
        },
    ),
    Rule(
        name="two batches without stages",
        scope=ENGINE,
        engines=("vllm",),
        says="two micro-batches per stage only with one stage",
        holds=lambda _, x: (axis(x.microbatches) <= x.pp) | (axis(x.pp) == 1),
        reason=lambda f, x: f"{_who(f)} overlaps two micro-batches of a stage only without pipeline stages, not with pp={x.pp}",
        sources={"vllm": f"{VLLM} docs/design/dbo.md (0621454): currently only targets DP+EP deployments"},
    ),
    Rule(
        name="two batches of ranks that DeepEP has",
        scope=ENGINE,
        engines=("vllm", "sglang"),
        says="two micro-batches per stage only over 2, 4 or 8 ranks of a host, or whole hosts of 8, except in NVLink racks",
        holds=lambda f, x: (axis(x.microbatches) <= x.pp) | ~exchanges_experts(x) | deepep_counts(f.host, x.stage),
        reason=lambda f, x: f"{_who(f)} overlaps two micro-batches over DeepEP, which has no kernels for {x.stage} ranks here",
        sources={
            "vllm": f"{VLLM} docs/design/dbo.md (0621454): DBO needs DeepEP; DeepEP csrc/config.hpp: 2, 4 or 8 ranks a host",
            "sglang": f"{SGLANG} docs: two-batch overlap is of DeepEP's dispatcher; the same kernels",
        },
    ),
    Rule(
        name="models that llama.cpp divides",
        scope=ENGINE,
        engines=(LLAMA_CPP,),
        says="one chip a replica for some architectures (DeepSeek-V3, MiniMax-M2, OLMo 2 and others), and for KV caches of "
        "fewer than 16 bits",
        holds=lambda f, x: (axis(x.chips) == 1) | (f.family not in LLAMA_CPP_WHOLE and f.cache_format in LLAMA_CPP_CACHES),
        reason=lambda f, x: (
            f"{_who(f)} does not divide {f.model} over chips by --split-mode tensor, and a replica has {x.chips}"
            if f.family in LLAMA_CPP_WHOLE
            else f"{_who(f)} does not divide a KV cache in {f.cache_format} over chips; use bf16 or fp16"
        ),
        sources={LLAMA_CPP: f"{LLAMA_SOURCE} docs/multi-gpu.md (5815cb8), limitations of --split-mode tensor"},
    ),
    Rule(
        name="tensor parallelism only",
        scope=ENGINE,
        engines=(LLAMA_CPP,),
        says="tp only: cp, dp, ep and pp are 1",
        holds=lambda _, x: (axis(x.chips) == x.tp) & (axis(x.ep) == 1),
        reason=lambda f, x: (
            f"{_who(f)} divides a model over chips by tensor parallelism only, not with {_other_ways(x)}; use tp, or replicas"
        ),
        sources={
            LLAMA_CPP: f"{LLAMA_SOURCE} docs/multi-gpu.md (5815cb8): --split-mode tensor; --split-mode layer passes one batch "
            "from chip to chip, without the micro-batches of pp"
        },
    ),
    Rule(
        name="tensor parallelism in a host",
        scope=ENGINE,
        engines=(LLAMA_CPP,),
        says="tp is at most the chips of a host, and 16",
        holds=lambda f, x: axis(x.tp) <= min(f.host_chips, LLAMA_CPP_CHIPS),
        reason=lambda f, x: (
            f"tp={x.tp}: {_who(f)} divides a model over at most {min(f.host_chips, LLAMA_CPP_CHIPS):.0f} chips of a host"
        ),
        sources={LLAMA_CPP: f"{LLAMA_SOURCE} docs/multi-gpu.md (5815cb8): GGML_CUDA_MAX_DEVICES is 16; other hosts need --rpc"},
    ),
    Rule(
        name="a decode pool without stages",
        scope=ENGINE,
        engines=("vllm", "sglang"),
        says="no pipeline stages in the decode pool of a disaggregated deployment (SGLang: as many as prefill has, which the "
        "search does not pair)",
        holds=lambda f, x: (axis(x.pp) == 1) | (f.role != "decode"),
        reason=lambda f, x: (
            f"pp={x.pp}: {_who(f)} refuses pipeline stages in a decode pool, because it cannot transfer a KV cache to "
            + ("one" if f.engine != "sglang" else "one with other stages than the prefill pool")
        ),
        sources={
            "sglang": f"{SGLANG}/pull/14265: the stages of a decode pool are those of the prefill pool, or 1",
            "vllm": f"{VLLM}/pull/45880: pipeline parallelism of the decode side is not planned; "
            "vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py of release 0.33",
        },
    ),
    Rule(
        name="prefill stages with one kind of cache",
        scope=ENGINE,
        engines=("vllm",),
        says="no pipeline stages in the prefill pool of a model whose layers have caches of several kinds",
        holds=lambda f, x: (axis(x.pp) == 1) | (f.role != "prefill") | np.logical_not(f.hybrid),
        reason=lambda f, x: (
            f"pp={x.pp}: {_who(f)} sends no cache of {f.model} from stages, because its layers have caches of several kinds"
        ),
        sources={
            "vllm": f"{VLLM}/pull/45880: HMA and hybrid models are left to a follow-up; "
            "nixl/base_worker.py of release 0.33 raises NotImplementedError"
        },
    ),
    Rule(
        name="contexts handed on",
        scope=ENGINE,
        engines=("vllm",),
        says="in a disaggregated deployment, cp is 1 or the number of chips of a data-parallel rank",
        holds=lambda f, x: (axis(x.cp) == 1) | (axis(x.cp) == axis(x.group)) | (f.role == ""),
        reason=lambda f, x: (
            f"cp={x.cp}: {_who(f)} transfers contexts divided over all {x.group} chips of a data-parallel rank, or undivided"
        ),
        sources={"vllm": f"{VLLM} vllm/config/vllm.py of release 0.33: NixlConnector and decode context parallelism"},
    ),
)
