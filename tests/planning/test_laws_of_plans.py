"""Laws over thousands of plans: nothing gets dearer where a limit is relaxed, chips are added, or a machine gets better."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError
from steptime.hardware.what_if import scale, settable

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from replayed_plans import questions

from tests.planning.cases import closed_plan

PLANS = int(os.environ.get("STEPTIME_PLANS", "480"))  # 3,000 take an hour of one core
SEEDS = 4
TOLERANCE = 0.01
BETTER = ("chip.hbm.bandwidth", "chip.hbm.capacity", "chip.peak", "scale_up.bandwidth", "scale_out.bandwidth")


def output(asked, **changed):
    """Output tokens a second of a plan for a question, with changes; 0 where nothing meets the limits or fits."""
    given = {"model": asked.model, "system": asked.system, "slo": asked.slo, "chips": asked.chips} | changed
    try:
        plan = closed_plan(
            given["model"], given["system"], asked.workload, given["slo"], chips=given["chips"], alternatives=False
        )
    except InputError:
        return 0.0, None
    return (plan.requests_per_second * asked.workload.output_tokens if plan.feasible else 0.0), plan


def in_ranges(plan):
    """Whether each range holds its figure. Without a rent there is neither a cost nor its range."""
    pairs = ((plan.tpot, plan.tpot_range), (plan.ttft, plan.ttft_range), (plan.usd_per_million_output_tokens, plan.cost_range))
    return all(limits is None or np.isnan([value, *limits]).all() or limits[0] <= value <= limits[1] for value, limits in pairs)


def broken(seed, count):
    """Return the laws that plans of drawn questions break, in words."""
    draw, found = np.random.default_rng(seed), []
    for number, asked in zip(range(count), questions(seed), strict=False):
        before, plan = output(asked)
        if plan is None or not plan.feasible:
            continue
        if not in_ranges(plan):
            found.append(f"{number} {asked}: a range without its figure")
        if any(pool.memory.used > pool.memory.capacity for pool in plan.pools):
            found.append(f"{number} {asked}: {plan.layout_text} does not fit")
        system = st.load_system(asked.system)
        path = str(draw.choice([path for path in BETTER if path == "chip.peak" or path in settable(system)]))
        # A wafer has SRAM in place of HBM.
        memory = f"chip.{system.chip.memory[0].name}.bandwidth"
        changes = {
            "speed": {"slo": st.Slo(tpot=asked.slo.tpot * 1.25, ttft=asked.slo.ttft)},
            "no speed": {"slo": st.Slo(ttft=asked.slo.ttft)},
            "first token": {"slo": st.Slo(tpot=asked.slo.tpot, ttft=asked.slo.ttft * 1.5)},
            "one chip": {"chips": asked.chips + 1},
            "twice the chips": {"chips": 2 * asked.chips},
            path: {"system": scale(system, path, 1.25)},
            memory: {"system": scale(system, memory, 1.1)},
        }
        for name, changed in changes.items():
            after, _ = output(asked, **changed)
            least = (2 if name == "twice the chips" else 1) * before * (1 - TOLERANCE)
            if after < least:
                found.append(f"{number} {asked} {name}: {before:,.0f} -> {after:,.0f} tok/s, {after / least - 1:+.2%}")
    return found


@pytest.mark.slow
def test_nothing_gets_dearer_in_eight_plans():
    assert broken(5, 1) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_nothing_gets_dearer_in_hundreds_of_plans(seed):
    assert broken(seed, PLANS // 8 // SEEDS) == []
