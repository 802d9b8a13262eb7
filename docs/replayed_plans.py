"""Compare plans with their own simulation and write docs/replayed_plans.md: `python docs/replayed_plans.py`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.plan_vs_simulation import Compared, compare

import steptime as st
from steptime.errors import InputError
from steptime.planning.plan_result import Plan, Point

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
# Cached shares of prompts, and percentiles of the limits; the usual ones more often.
CACHED, LIMITED = (0.0, 0.0, 0.0, 0.5, 0.9), ("p90", "p90", "mean", "p99")
# Limits near what the system can do: on a log scale between the slowest and the fastest speed of the Pareto front, and a
# multiple of its shortest time to first token.
SPEED_RANGE, FIRST_TOKEN_RANGE = (0.15, 0.85), (3.0, 15.0)
# Most of a model's context that a mean request takes: longer ones are cut at it.
CONTEXT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Question:
    """The workload, limits and system of one plan."""

    model: str
    system: str
    chips: int
    workload: st.Workload
    slo: st.Slo
    percentile: str
    mode: str

    def answer(self, **settings: Any) -> Plan:
        """Plan with the limits at the question's percentile."""
        return st.plan(
            self.model, self.system, self.workload, self.slo, percentile=self.percentile, chips=self.chips, modes=self.mode,
            **{"alternatives": False, "elasticities": False, "diagnostics": False, "front": False} | settings,
        )  # fmt: skip


def questions(seed: int = SEED) -> Iterator[Question]:
    """Yield random questions without end, whose requests stay well inside the context of their model."""
    draw = np.random.default_rng(seed)
    pairs = [(model, system, chips) for model, places in MODELS.items() for system, chips in places]
    while True:
        model, system, chips = pairs[draw.integers(len(pairs))]
        workload = st.Workload(
            input_tokens=int(draw.choice(INPUTS)), output_tokens=int(draw.choice(OUTPUTS)),
            cached_share=float(draw.choice(CACHED)),
        )  # fmt: skip
        percentile, mode = str(draw.choice(LIMITED)), ("aggregated", "disaggregated")[draw.integers(2)]
        asked = Question(model, system, int(chips), workload, st.Slo(), percentile, mode)
        places = draw.random(2)
        longest = CONTEXT_SHARE * float(st.load_model(model).max_context)
        if workload.input_tokens + workload.output_tokens <= longest:
            front = replace(asked, percentile="mean").answer(evidence="any", front=True).front
            if front:
                yield replace(asked, slo=_limits(front, *places))


def _limits(front: tuple[Point, ...], speed: float, first: float) -> st.Slo:
    """Return limits at places between 0 and 1 of their ranges."""
    speeds = [point.tokens_per_second_per_user for point in front]
    slowest, fastest = min(speeds), max(speeds)
    share = SPEED_RANGE[0] + speed * (SPEED_RANGE[1] - SPEED_RANGE[0])
    times = FIRST_TOKEN_RANGE[0] + first**2 * (FIRST_TOKEN_RANGE[1] - FIRST_TOKEN_RANGE[0])
    return st.Slo(speed=slowest * (fastest / slowest) ** share, ttft=times * min(point.ttft for point in front))


def replayed(count: int = DRAWN, seed: int = SEED) -> Iterator[tuple[Question, Plan, Compared]]:
    """Yield random plans with their simulation at the same rate; questions without an answer are skipped."""
    for asked in questions(seed):
        if count <= 0:
            return
        try:
            plan = asked.answer()
        except InputError:
            continue
        if plan.feasible:
            count -= 1
            # Draws of its own, other than those of the plan.
            yield asked, plan, compare(plan, requests=COUNTED, seed=seed + count)


def off(found: Compared) -> tuple[float, float, float]:
    """Return plan over simulation, minus 1, of mean TPOT, of TTFT at the percentile and of cost."""
    return 1 / found.tpot_ratio - 1, 1 / found.tail_ttft_ratio - 1, 1 / found.cost_ratio - 1


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
            f"{asked.workload.cached_share:.0%}",
        ]
        one += [f"{1 / asked.slo.tpot:.0f}", f"{asked.slo.ttft:.2g}", asked.percentile, plan.layout_text]
        one += [f"{1e3 * plan.mean_tpot:.1f}", f"{1e3 * plan.ttft:.0f}", *(f"{x:+.1%}" for x in errors[-1])]
        lines.append("| " + " | ".join(one) + " |")
    table = np.abs(np.array(errors))
    head = [
        "model and system",
        "in/out",
        "cached",
        "tok/s",
        "TTFT limit, s",
        "at",
        "layout",
        "mean TPOT, ms",
        "TTFT, ms",
        "TPOT",
        "TTFT",
        "cost",
    ]
    page = [
        "# Plans against their own simulation",
        "",
        f"{len(table)} plans of random workloads (`docs/replayed_plans.py`, seed {SEED}). Requests arrive at random, with "
        "log-normal lengths",
        "whose standard deviation is their mean, and the limits are of a percentile. Another run of the simulator serves each",
        "plan's own rate: it starts empty, draws other requests, and counts neither the warm-up nor the end. The last three",
        f"columns are plan over simulation, minus 1, of mean TPOT, TTFT at the percentile and cost. Overloaded: {refused}.",
        "",
        "| | median | 95 of 100 | worst |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {np.median(of):.1%} | {np.quantile(of, 0.95):.1%} | {np.max(of):.1%} |"
            for name, of in zip(head[-3:], table.T, strict=True)
        ),
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * 2 + "---:|" * 3 + "---|" * 2 + "---:|" * 5,
        *lines,
    ]
    (HERE / "replayed_plans.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print(f"median {np.median(table, axis=0)}, worst {np.max(table, axis=0)}, refused {refused}", file=sys.stderr)
    assert math.isfinite(float(np.sum(table)))


if __name__ == "__main__":
    main()
