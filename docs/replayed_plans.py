"""Compare plans of drawn questions with other runs of the simulator, and write docs/replayed_plans.md.

`python docs/replayed_plans.py [COUNT [FIRST [JOURNAL]]]` draws COUNT questions from number FIRST on (400 from 0) on two cores.
JOURNAL keeps each result, and a later call with it goes on from there.
"""

from __future__ import annotations

import math
import pickle
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.plan_vs_simulation import Compared, compare

import steptime as st
from steptime.catalog.data_files import files
from steptime.errors import InputError
from steptime.planning import planner
from steptime.planning.plan_result import Plan, Point
from steptime.units import percent, percent_change

HERE = Path(__file__).parent
COUNT = 400
# Requests of the other run, fewer where outputs are long.
COUNTED, LEAST_COUNTED, COUNTED_TOKENS = 60_000, 4000, 20_000_000
# Lifetimes of a request before those that count: the longest of unequal outputs fill a deployment slowly.
WARM_UP = 12.0
# Each drawn model is of another kind: dense, sparse, latent or sliding attention, state-space and hybrid layers.
MODELS = (
    "llama-3.1-8b", "llama-3.3-70b", "llama-3.1-405b", "llama-4-maverick", "mixtral-8x7b", "qwen2.5-7b", "qwen3-30b-a3b",
    "qwen3-32b", "qwen3-235b-a22b", "Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3.5-397b-a17b", "gpt-oss-20b", "gpt-oss-120b",
    "deepseek-v2-lite", "deepseek-v3", "deepseek-v3.2", "kimi-k2", "kimi-linear-48b-a3b", "glm-4.5", "glm-4.5-air",
    "minimax-m2.5", "minimax-text-01", "google/gemma-3-27b-it", "gemma-2-9b", "phi-4", "command-a",
    "mistralai/Mistral-Small-24B-Instruct-2501", "jamba-1.5-mini", "nemotron-h-8b", "granite-4.0-h-small",
    "falcon-mamba-7b", "bamba-9b-v2", "lfm2-8b-a1b", "mimo-v2-flash", "ernie-4.5-300b-a47b", "longcat-flash-chat", "grok-2",
    "allenai/OLMo-2-0325-32B", "starcoder2-15b", "step3",
)  # fmt: skip
LARGEST = 576
INPUTS, OUTPUTS = (64, 200_000), (8, 8000)
SPREADS, LIMITED = (0.0, 0.5, 1.0, 1.0, 1.5), ("p90", "p90", "mean", "p99")
MODES = (("aggregated",), ("disaggregated",), ("aggregated", "disaggregated"))
# Limits near what the system can do: on a log scale between the slowest and the fastest speed of the Pareto front, and a
# multiple of its shortest time to first token.
SPEED_RANGE, FIRST_TOKEN_RANGE = (0.15, 0.85), (3.0, 15.0)
# Most of a model's context that a mean request takes: longer ones are cut at it.
CONTEXT_SHARE = 0.25
SHORT = 64


@dataclass(frozen=True, slots=True)
class Question:
    """The workload, limits and system of one plan."""

    model: str
    system: str
    chips: int
    workload: st.Workload
    slo: st.Slo
    percentile: str
    mode: tuple[str, ...]

    def answer(self, **settings: Any) -> Plan:
        """Plan with the limits at the question's percentile."""
        return st.plan(
            self.model, self.system, self.workload, self.slo, percentile=self.percentile, chips=self.chips, modes=self.mode,
            **{"alternatives": False, "elasticities": False, "diagnostics": False, "front": False} | settings,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """A question with its plan and its comparison; None for both where nothing meets the limits."""

    number: int
    question: Question
    plan: Plan | None
    compared: Compared | None
    seconds: float


def questions(seed: int = 0) -> Iterator[Question]:
    """Yield drawn questions without end, whose requests stay well inside the context of their model."""
    number = 0
    while True:
        yield question(seed, number)
        number += 1


def question(seed: int, number: int) -> Question:
    """Draw a question that some layout answers without limits."""
    draw = np.random.default_rng((seed, number))
    systems = sorted(files("systems"))
    while True:
        model, system = st.load_model(str(draw.choice(MODELS))), st.load_system(str(draw.choice(systems)))
        largest = min(LARGEST, float(system.scale_out.size))
        chips = min(int(2 ** draw.integers(0, 1 + math.floor(math.log2(largest)))), 8 * int(system.scale_up.size))
        tokens = [
            int(low * (high / low) ** place) for (low, high), place in zip((INPUTS, OUTPUTS), draw.random(2), strict=True)
        ]
        cached = 0.0 if draw.random() < 0.5 else 1 - 10 ** -(2 * draw.random())
        spreads = draw.choice(SPREADS, 2)
        percentile, mode = str(draw.choice(LIMITED)), MODES[draw.integers(len(MODES))]
        places = draw.random(2)
        if sum(tokens) > CONTEXT_SHARE * float(model.max_context):
            continue
        workload = st.Workload(
            input_tokens=tokens[0], output_tokens=tokens[1], cached_share=cached,
            input_spread=float(spreads[0]), output_spread=float(spreads[1]),
        )  # fmt: skip
        asked = Question(model.name, system.name, chips, workload, st.Slo(), percentile, mode)
        try:
            equal = replace(workload, input_spread=0.0, output_spread=0.0)
            # The front comes from closed forms: it needs no simulated finalists.
            with mock.patch.object(planner, "has_simulator", return_value=False):
                front = replace(asked, percentile="mean", workload=equal).answer(evidence="any", front=True).front
        except InputError:
            continue
        if front:
            return replace(asked, slo=_limits(front, *places))


def _limits(front: tuple[Point, ...], speed: float, first: float) -> st.Slo:
    """Return limits at places between 0 and 1 of their ranges."""
    speeds = [point.tokens_per_second_per_user for point in front]
    slowest, fastest = min(speeds), max(speeds)
    share = SPEED_RANGE[0] + speed * (SPEED_RANGE[1] - SPEED_RANGE[0])
    times = FIRST_TOKEN_RANGE[0] + first**2 * (FIRST_TOKEN_RANGE[1] - FIRST_TOKEN_RANGE[0])
    return st.Slo(speed=float(slowest * (fastest / slowest) ** share), ttft=float(times * min(point.ttft for point in front)))


def found(number: int, seed: int = 0) -> Found:
    """Plan a drawn question, and run the simulator at the plan's rate with other draws."""
    asked = question(seed, number)
    started = time.perf_counter()
    try:
        plan = asked.answer()
    except InputError:
        return Found(number, asked, None, None, time.perf_counter() - started)
    took = time.perf_counter() - started
    if not plan.feasible:
        return Found(number, asked, None, None, took)
    counted = int(min(COUNTED, max(LEAST_COUNTED, COUNTED_TOKENS / asked.workload.output_tokens)))
    return Found(number, asked, plan, compare(plan, requests=counted, seed=number + 5000, warm_up=WARM_UP), took)


def off(compared: Compared) -> tuple[float, float, float]:
    """Return plan over simulation, minus 1, of mean TPOT, of TTFT at the percentile and of cost."""
    return 1 / compared.tpot_ratio - 1, 1 / compared.tail_ttft_ratio - 1, 1 / compared.cost_ratio - 1


def page(rows: list[Found], asked: int) -> str:
    """Return the page of answered questions."""
    errors = np.abs(np.array([off(row.compared) for row in rows if row.compared is not None]))
    refused = sum(row.compared is not None and not row.compared.steady for row in rows)
    short = np.array([row.question.workload.output_tokens < SHORT for row in rows])
    columns = ("mean TPOT", "TTFT", "cost")

    def table(which: Any, name: str) -> list[str]:
        few = errors[which]
        return [
            f"| {name} | {len(few)} | {column} | "
            + " | ".join(percent(np.quantile(part, level), 1) for level in (0.5, 0.95, 1.0))
            + " |"
            for column, part in zip(columns, few.T, strict=True)
            if len(few)
        ]

    lines = [
        "# Plans against their own simulation",
        "",
        textwrap.fill(
            f"{asked} questions drawn over {len(MODELS)} models, all systems, 1 to {LARGEST} chips, "
            f"{INPUTS[0]} to {INPUTS[1]:,} tokens in, {OUTPUTS[0]} to {OUTPUTS[1]:,} out, 0 to 99 % cached, "
            "spreads of 0 to 1.5, and limits near what the system can do (`docs/replayed_plans.py`). "
            f"{len(rows)} have a plan. Another run of the simulator serves each plan's rate: it starts empty, "
            "draws other requests, more than those that chose the plan, and counts neither the warm-up nor the end. "
            "Errors are plan over simulation, minus 1, without the sign: of mean TPOT, of TTFT at the percentile, "
            f"and of cost. Overloaded: {refused}. A mean over rare requests, such as prompts of nearly the whole memory, is "
            "not known well: its standard error in the simulation (of the mean TPOT) is in the second table.",
            140,
        ),
        "",
        "| questions | number | figure | median | 95 of 100 | worst |",
        "|---|---:|---|---:|---:|---:|",
        *table(slice(None), "all"),
        *table(short, f"outputs below {SHORT} tokens"),
        *table(~short, f"outputs of {SHORT} tokens and more"),
        "",
        "The ten with the largest error of mean TPOT:",
        "",
        "| number | model and system | in/out | cached | spread | tok/s | TTFT limit, s | at | layout "
        "| TPOT | its error | TTFT | cost |",
        "|---:|---|---|---:|---:|---:|---:|---|---|---:|---:|---:|---:|",
    ]
    for place in np.argsort(-errors[:, 0])[:10]:
        row, load = rows[place], rows[place].question.workload
        assert row.plan is not None
        assert row.compared is not None
        tpot, ttft, cost = off(row.compared)
        cells = (
            row.number, f"{row.question.model}, {row.question.chips} x {row.question.system}",
            f"{load.input_tokens:,}/{load.output_tokens:,}", percent(load.cached_share),
            f"{load.input_spread:g}/{load.output_spread:g}", f"{1 / row.question.slo.tpot:.3g}", f"{row.question.slo.ttft:.2g}",
            row.question.percentile, row.plan.layout_text, percent_change(tpot), f"± {percent(row.compared.tpot_error, 1)}",
            percent_change(ttft), percent_change(cost),
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def kept_rows(journal: Path | None) -> dict[int, Found]:
    """Return the results of an earlier call by number."""
    rows: dict[int, Found] = {}
    if journal is not None and journal.exists():
        with journal.open("rb") as file:
            while file.peek(1):
                row = pickle.load(file)
                rows[row.number] = row
    return rows


def main(count: int = COUNT, first: int = 0, journal: Path | None = None) -> None:
    """Write the page."""
    numbers = range(first, first + count)
    rows = {number: row for number, row in kept_rows(journal).items() if number in numbers}
    with ProcessPoolExecutor(2) as pool:
        for job in as_completed([pool.submit(found, number) for number in numbers if number not in rows]):
            row = job.result()
            text = "no plan" if row.compared is None else [percent_change(x) for x in off(row.compared)]
            steady = row.compared is None or row.compared.steady
            layout = "" if row.plan is None else row.plan.layout_text
            print(row.number, row.question, layout, text, "" if steady else "OVERLOADED", f"{row.seconds:.1f} s", flush=True)
            rows[row.number] = row
            if journal is not None:
                with journal.open("ab") as file:
                    pickle.dump(row, file)
    answered = sorted((row for row in rows.values() if row.compared is not None), key=lambda row: row.number)
    print(Counter(row.compared is not None for row in rows.values()), file=sys.stderr)
    if count == COUNT:
        (HERE / "replayed_plans.md").write_text(page(answered, count), encoding="utf-8")
    else:
        print(page(answered, count))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *map(Path, sys.argv[3:4]))
