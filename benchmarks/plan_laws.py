"""Laws over plans: what is easier never costs more.

`python benchmarks/plan_laws.py [COUNT [SEED [JOURNAL [CHIPS]]]]` draws COUNT questions (40) as `docs/replayed_plans.py` does,
with layouts of any evidence. Those of more than CHIPS chips are left out. Each is planned once, and again with LAWS_EACH
changes that make it easier: wider limits, more chips, a better machine, more cached or fewer tokens. All plans use the same
draws. It prints every pair whose cost per request rises by more than 1 %, with both plans. JOURNAL keeps each answer as a line
of JSON, and a later call with it goes on from there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from replayed_plans import Question, question

import steptime as st
from steptime.errors import InputError
from steptime.hardware.what_if import scale
from steptime.number_checks import MOST_CHIPS

COUNT, SEED, LAWS_EACH = 40, 7, 4
# Relative rise of the cost per request that counts as an exception.
TOLERANCE = 0.01
BETTER = ("chip.hbm.capacity", "chip.hbm.bandwidth", "chip.peak")
# Factor on a limit, on a figure of the machine, and on tokens.
WIDER, FASTER, FEWER = 1.3, 1.2, 0.75


def _with_workload(asked: Question, **changes: Any) -> Question:
    return replace(asked, workload=replace(asked.workload, **changes))


def _better_machine(asked: Question) -> Any:
    """Return a system with more memory, bandwidth and FLOP/s."""
    system = st.load_system(asked.system)
    for path in BETTER:
        system = scale(system, path, FASTER)
    return system


LAWS: dict[str, Callable[[Question], Question]] = {
    "slower tokens": lambda asked: replace(asked, slo=replace(asked.slo, tpot=asked.slo.tpot * WIDER)),
    "later first tokens": lambda asked: replace(asked, slo=replace(asked.slo, ttft=asked.slo.ttft * WIDER)),
    "one more chip": lambda asked: replace(asked, chips=asked.chips + 1),
    "twice the chips": lambda asked: replace(asked, chips=2 * asked.chips),
    "a better machine": lambda asked: replace(asked, system=_better_machine(asked)),
    "more cached tokens": lambda asked: _with_workload(
        asked, cached_share=1 - FEWER * (1 - float(asked.workload.cached_share))
    ),
    "fewer input tokens": lambda asked: _with_workload(asked, input_tokens=max(1, int(FEWER * asked.workload.input_tokens))),
    "fewer output tokens": lambda asked: _with_workload(asked, output_tokens=max(1, int(FEWER * asked.workload.output_tokens))),
}


def answer(asked: Question) -> dict[str, Any]:
    """Plan a question; the rate is 0 where nothing meets the limits or fits."""
    started = time.process_time()
    try:
        plan = asked.answer(evidence="any")
    except InputError as problem:
        return {"rate": 0.0, "layout": str(problem), "seconds": time.process_time() - started}
    return {
        "rate": float(plan.requests_per_second) if plan.feasible else 0.0,
        "layout": plan.layout_text if plan.feasible else plan.reason,
        "seconds": time.process_time() - started,
    }


def list_laws(seed: int, number: int) -> list[str]:
    """Draw the laws of a question."""
    return sorted(np.random.default_rng((seed, number, 1)).choice(list(LAWS), LAWS_EACH, replace=False).tolist())


def rise(law: str, before: float, after: float) -> float:
    """Return the relative rise of the cost per request. With more chips as a maximum, the first ones may serve as before."""
    expected = 2 * before if law == "twice the chips" else before
    return expected / after - 1 if after else np.inf


def describe(asked: Question) -> str:
    """Return the question in words."""
    work, slo = asked.workload, asked.slo
    return (
        f"{asked.model} on {asked.chips} x {getattr(asked.system, 'name', asked.system)}, {'/'.join(asked.mode)}, "
        f"{work.input_tokens} in (spread {work.input_spread}, cached {float(work.cached_share):.4g}), {work.output_tokens} out "
        f"(spread {work.output_spread}), TPOT {float(slo.tpot):.5g} s, TTFT {float(slo.ttft):.5g} s at {asked.percentile}"
    )


def _read_journal(journal: str) -> dict[tuple[int, int, str], dict[str, Any]]:
    """Return the answers of earlier calls by seed, number and law; the question itself has an empty law."""
    lines = Path(journal).read_text().splitlines() if journal and Path(journal).exists() else []
    return {(line["seed"], line["number"], line["law"]): line for line in map(json.loads, lines)}


def main(count: int = COUNT, seed: int = SEED, journal: str = "", chips: int = MOST_CHIPS) -> None:
    """Plan the pairs and print the exceptions."""
    answers, checked, exceptions = _read_journal(journal), 0, 0

    def answer_once(number: int, law: str) -> dict[str, Any]:
        """Return an answer from the journal, or a new one."""
        if (seed, number, law) not in answers:
            asked = question(seed, number)
            new = {"rate": 0.0, "layout": "left out", "seconds": 0.0} if asked.chips > chips else {}
            new = new or answer(LAWS[law](asked) if law else asked)
            answers[seed, number, law] = {"seed": seed, "number": number, "law": law} | new
            if journal:
                with Path(journal).open("a") as file:
                    file.write(json.dumps(answers[seed, number, law]) + "\n")
        return answers[seed, number, law]

    for number in range(count):
        before = answer_once(number, "")
        # A question without a plan cannot become dearer.
        for law in list_laws(seed, number) if before["rate"] else ():
            after, checked = answer_once(number, law), checked + 1
            excess = rise(law, before["rate"], after["rate"])
            if excess > TOLERANCE:
                exceptions += 1
                asked = question(seed, number)
                print(f"{number} {law}: {excess:+.2%}")
                print(f"  {describe(asked)}\n    {before['rate']:.5g} requests/s: {before['layout']}")
                print(f"  {describe(LAWS[law](asked))}\n    {after['rate']:.5g} requests/s: {after['layout']}", flush=True)
    seconds = [line["seconds"] for line in answers.values() if line["seconds"]]
    print(f"{checked} pairs, {exceptions} exceptions; {np.median(seconds):.2f} s of CPU per plan at the median")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(*map(int, arguments[:2]), *arguments[2:3], *map(int, arguments[3:4]))
