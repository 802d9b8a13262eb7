"""Compare plans by closed forms with their simulation and write docs/replayed_plans.md: `python docs/replayed_plans.py`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.plan_vs_simulation import Compared, compare

import steptime as st
from steptime.errors import InputError
from steptime.planning import planner
from steptime.planning.plan_result import Plan

HERE = Path(__file__).parent
SEED, DRAWN, COUNTED = 11, 60, 6000
# Models with the systems and chips of their plans.
MODELS = {
    "llama-3.1-8b": (("hgx-h100", 1), ("hgx-h100", 8), ("hgx-h200", 4), ("mi300x-8", 8)),
    "llama-3.3-70b": (("hgx-h100", 8), ("hgx-h200", 8), ("hgx-b200", 8), ("hgx-h100", 16)),
    "qwen3-30b-a3b": (("hgx-h100", 8), ("hgx-h200", 8)),
    "gpt-oss-120b": (("hgx-h100", 8), ("hgx-b200", 8)),
    "mixtral-8x7b": (("hgx-h100", 8), ("hgx-h200", 8)),
    "qwen3-235b-a22b": (("hgx-h200", 8), ("hgx-b200", 8), ("gb200-nvl72", 72)),
    "glm-4.5": (("hgx-h200", 8), ("gb200-nvl72", 72)),
    "deepseek-v3": (("hgx-h200", 16), ("hgx-b200", 8), ("gb200-nvl72", 36), ("gb200-nvl72", 72)),
    "kimi-k2": (("hgx-b200", 16), ("gb200-nvl72", 72)),
}
INPUTS, OUTPUTS = (256, 1000, 2048, 4096, 8192), (128, 300, 512, 1024)
SPEEDS, FIRST_TOKENS = (15.0, 25.0, 40.0, 60.0), (1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Question:
    """The workload, limits and system of one plan."""

    model: str
    system: str
    chips: int
    workload: st.Workload
    slo: st.Slo
    mode: str


def questions(seed: int = SEED) -> Iterator[Question]:
    """Yield random questions without end."""
    draw = np.random.default_rng(seed)
    pairs = [(model, system, chips) for model, places in MODELS.items() for system, chips in places]
    while True:
        model, system, chips = pairs[draw.integers(len(pairs))]
        sizes = {"input_tokens": int(draw.choice(INPUTS)), "output_tokens": int(draw.choice(OUTPUTS))}
        slo = st.Slo(tpot=1 / float(draw.choice(SPEEDS)), ttft=float(draw.choice(FIRST_TOKENS)))
        mode = ("aggregated", "disaggregated")[draw.integers(2)]
        yield Question(model, system, int(chips), st.Workload(**sizes, input_spread=0.0, output_spread=0.0), slo, mode)


def replayed(count: int = DRAWN, seed: int = SEED) -> Iterator[tuple[Question, Plan, Compared]]:
    """Yield random plans with their simulation at the same rate; questions without an answer are skipped."""
    for asked in questions(seed):
        if count <= 0:
            return
        try:
            # Without numba, a plan has the closed forms alone.
            with patch.object(planner, "find_spec", return_value=None):
                plan = planner.plan(
                    asked.model, asked.system, asked.workload, asked.slo, chips=asked.chips, modes=asked.mode,
                    alternatives=False, percentile="mean", evidence="any",
                )  # fmt: skip
        except InputError:
            continue
        if plan.feasible:
            count -= 1
            yield asked, plan, compare(plan, requests=COUNTED)


def off(found: Compared) -> tuple[float, float, float]:
    """Return plan over simulation, minus 1, of TPOT and TTFT at the client and of cost."""
    return 1 / found.tpot_ratio - 1, 1 / found.ttft_ratio - 1, 1 / found.cost_ratio - 1


def main() -> None:
    """Write the page."""
    lines, errors, refused = [], [], 0
    for number, (asked, plan, found) in enumerate(replayed()):
        print(number, asked, plan.layout_text, [f"{x:+.1%}" for x in off(found)], found.steady, file=sys.stderr, flush=True)
        errors.append(off(found))
        refused += not found.steady
        one = [
            f"{asked.model}, {asked.chips} x {asked.system}",
            f"{asked.workload.input_tokens}/{asked.workload.output_tokens}",
        ]
        one += [f"{1 / asked.slo.tpot:g}", f"{asked.slo.ttft:g}", plan.layout_text, f"{plan.utilisation:.0%}"]
        one += [f"{1e3 * plan.tpot:.1f}", f"{1e3 * plan.ttft:.0f}", *(f"{x:+.1%}" for x in errors[-1])]
        lines.append("| " + " | ".join(one) + " |")
    table = np.abs(np.array(errors))
    head = [
        "model and system",
        "in/out",
        "tok/s",
        "TTFT limit, s",
        "layout",
        "utilization",
        "TPOT, ms",
        "TTFT, ms",
        "TPOT",
        "TTFT",
        "cost",
    ]
    page = [
        "# Plans against their own simulation",
        "",
        f"{len(table)} plans of equal requests by closed forms (`docs/replayed_plans.py`, seed {SEED}). The simulator runs "
        "each plan at its own rate with",
        "Poisson arrivals, without warm-up and end. The last three columns are plan over simulation, minus 1, of mean TPOT,",
        f"mean TTFT and cost. Overloaded (the queue grows): {refused}.",
        "",
        "| | median | worst |",
        "|---|---:|---:|",
        *(f"| {name} | {np.median(of):.1%} | {np.max(of):.1%} |" for name, of in zip(head[-3:], table.T, strict=True)),
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * 2 + "---:|" * 2 + "---|" + "---:|" * 6,
        *lines,
    ]
    (HERE / "replayed_plans.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print(f"median {np.median(table, axis=0)}, worst {np.max(table, axis=0)}, refused {refused}", file=sys.stderr)
    assert math.isfinite(float(np.sum(table)))


if __name__ == "__main__":
    main()
