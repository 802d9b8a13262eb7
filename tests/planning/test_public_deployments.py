"""Rates that others published of wide deployments: each lies inside the range that an engine fitted to single nodes states.

DeepSeek's day: github.com/deepseek-ai/open-infra-index, 202502OpenSourceWeek, day 6 (rates are means of a day, idle time among
them). SGLang on 96 H100: lmsys.org/blog/2025-05-05-large-scale-ep. SGLang on GB200: lmsys.org/blog/2025-06-16-gb200-part-1 and
2025-09-25-gb200-part-2 (batch of 1,408 a chip at 2,000 tokens in; that of its BF16 row and of part 1 is not stated: 768 and
512 are guesses); its products in FP8 run in DeepGEMM, whose scales of blocks are powers of two, for the tensor cores: no
`block_efficiency` is lost (`demand.in_blocks`). vLLM on GB200: vllm.ai/blog, 2026-02-03, 2,000 in and 2,000 out, batch not
stated (1,024 is a guess).
"""

from __future__ import annotations

import pytest

import steptime as st
from steptime.physics.engine import with_constants
from steptime.physics.uncertainty import distances, factors, widening
from tests.conftest import each

PAPER = "deepseek-v3"
NVFP4 = {"weights": "fp8", "experts": "nvfp4", "kv": "fp8"}
PLAIN = {"kv": "bf16"}
NINE_NODES = st.Layout(dp=72, ep=72, microbatches=2, redundant_experts=32)
UNIT = st.Layout(dp=144, ep=144, microbatches=2, redundant_experts=32)
FOUR_NODES = st.Layout(dp=32, ep=32, microbatches=2, redundant_experts=32)
RACK = st.Layout(dp=48, ep=48, redundant_experts=32)


def engine_of(name, system):
    """Return the engine as it was run: SGLang on GB200 with scales that tensor cores apply."""
    scaled = {"block_efficiency": 1.0} if (name, system) == ("sglang", "gb200-nvl72") else {}
    return with_constants(st.load_engine(name), scaled)


def spread(system, engine, layout, regime):
    wider = widening(distances(engine, system, layout, layout))
    return factors(engine, "tpot", regime, system=system, wider=wider)


@pytest.mark.parametrize(
    ("system", "engine", "layout", "batch", "context", "formats", "published", "within"),
    [
        ("hgx-h100", "sglang", NINE_NODES, 256, 2050, PLAIN, 22_282 / 8, 0.3),
        ("gb200-nvl72", "sglang", RACK, 768, 2050, PLAIN, 9_087, 0.2),
        ("gb200-nvl72", "sglang", RACK, 1408, 2050, NVFP4, 13_386, 0.22),
        ("gb200-nvl72", "sglang", RACK, 512, 2050, PLAIN, 7_583, 0.18),
        ("gb200-nvl72", "vllm", st.Layout(dp=8, ep=8), 1024, 3072, NVFP4, 10_100, 0.3),
        ("hgx-h800", "vllm", UNIT, 88, 4989, PLAIN, 14_800 / 8, 0.3),
    ],
)
def test_decode(system, engine, layout, batch, context, formats, published, within):
    """Output tokens a second of a chip, `batch` sequences on each."""
    model, system, engine = st.load_model(PAPER, **formats), st.load_system(system), engine_of(engine, system)
    given = {"batch": batch * layout.chips, "context": context, "layout": layout, "engine": engine}
    rate = batch / float(st.decode_step(model, system, **given).total)
    low, high = spread(system, engine, layout, "decode")
    assert rate / high <= published <= rate / low
    assert rate == pytest.approx(published, rel=within)


@each(
    "system, engine, layout, tokens, length, formats, published, within",
    [
        ("hgx-h100", "sglang", FOUR_NODES, 16_384, 2048, PLAIN, 54_543 / 8, 0.2),
        ("gb200-nvl72", "sglang", st.Layout(dp=4, ep=4), 32_768, 2048, PLAIN, 18_471, 0.25),
        ("gb200-nvl72", "sglang", st.Layout(dp=2, ep=2), 65_536, 2048, NVFP4, 26_156, 0.23),
        ("hgx-h800", "vllm", FOUR_NODES, 16_384, 4096, PLAIN, 73_700 / 8 * 266 / 608, 1.2),  # fresh tokens, a day's mean
    ],
)
def test_prefill(system, engine, layout, tokens, length, formats, published, within):
    """Input tokens a second of a chip, `tokens` of each in a pass."""
    model, system, engine = st.load_model(PAPER, **formats), st.load_system(system), engine_of(engine, system)
    prompts = tokens // length * layout.dp
    step = st.prefill_step(model, system, tokens=length, prompts=prompts, layout=layout, engine=engine)
    rate = tokens / float(step.total)
    low, high = spread(system, engine, layout, "mixed")
    assert rate / high <= published <= rate / low
    assert rate == pytest.approx(published, rel=within)
