"""Plans of ten usual deployments have the kind of layout that public guides of engines start (docs/plans.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import steptime as st
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED

PAGE = Path(__file__).parents[2] / "docs" / "plans.md"
# Model, weights, system, chips, input and output tokens, speed [tok/s], TTFT [s]; mode, chips of a replica that decodes, and
# its expert-parallel size at least. Sources of the guides: the table of the page.
CASES = {
    "Llama-3.3-70B": ("llama-3.3-70b", "fp8", "hgx-h100", 8, 1024, 512, 30, 2, AGGREGATED, (1, 2, 4), 1),
    "DeepSeek-V3 on nodes": ("deepseek-v3", "", "hgx-h200", 16, 4096, 1024, 25, 4, AGGREGATED, (8,), 1),
    "DeepSeek-V3 on a rack": ("deepseek-v3", "", "gb200-nvl72", 72, 4096, 1024, 40, 3, DISAGGREGATED, range(16, 65), 16),
    "Qwen3-235B": ("qwen3-235b-a22b", "fp8", "hgx-h200", 8, 4096, 1024, 30, 3, AGGREGATED, (4, 8), 1),
    "gpt-oss on H100": ("gpt-oss-120b", "", "hgx-h100", 1, 1024, 1024, 40, 2, AGGREGATED, (1,), 1),
    "gpt-oss on MI300X": ("gpt-oss-120b", "", "mi300x-8", 8, 1024, 1024, 50, 2, AGGREGATED, (2, 4, 8), 1),
    "Kimi-K2": ("kimi-k2", "", "gb200-nvl72", 144, 8192, 1024, 40, 4, DISAGGREGATED, range(16, 97), 16),
    "Qwen3-14B": ("qwen3-14b", "fp8", "rtx-4090-8", 1, 1024, 512, 20, 3, AGGREGATED, (1,), 1),
    "Llama-3.1-8B": ("llama-3.1-8b", "", "tpu-v6e", 1, 1024, 512, 30, 2, AGGREGATED, (1,), 1),
    "Llama-3.1-405B": ("llama-3.1-405b", "fp8", "hgx-h200", 8, 1024, 512, 20, 3, AGGREGATED, (8,), 1),
}


def guide_rows() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("## Layouts of public guides")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| model")]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_plan_has_the_kind_of_layout_of_public_guides(name):
    model, weights, system, chips, tokens_in, tokens_out, speed, ttft, mode, replica_chips, expert_ranks = CASES[name]
    plan = st.plan(
        st.load_model(model, weights=weights), system, st.Workload(input_tokens=tokens_in, output_tokens=tokens_out),
        st.Slo(tpot=1 / speed, ttft=ttft), chips=chips, alternatives=False, elasticities=False, diagnostics=False, front=False,
    )  # fmt: skip
    assert plan.feasible, plan.reason
    printed_cost = float(guide_rows()[list(CASES).index(name)].split("|")[5])
    assert plan.usd_per_million_output_tokens == pytest.approx(printed_cost, rel=0.01)
    layout = plan.pools[-1].layout
    assert plan.mode == mode
    assert int(layout.chips) in replica_chips, plan.layout_text
    assert int(layout.ep) >= expert_ranks
    assert int(layout.pp) == int(layout.cp) == 1
    # A guide starts tensor parallelism of powers of two inside a node.
    assert int(layout.tp) in (1, 2, 4, 8)


def test_each_deployment_of_the_page_has_a_guide():
    assert len(guide_rows()) == len(CASES)
    assert all(re.search(r"\]\(https://\S+\)", row) for row in guide_rows())
