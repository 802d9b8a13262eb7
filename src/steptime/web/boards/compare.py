"""Board: several systems or models for one workload, cheapest first. Section 2."""

from __future__ import annotations

import math
from typing import Any

from steptime.blackboard.token_cost import cost_per_token
from steptime.lecture.story import measured_runs
from steptime.units import MILLION, counted, show
from steptime.web.board import Answer, Board, Figure, SlowInputs, question_input, text
from steptime.web.board import columns as table_of
from steptime.web.page_subject import WrongField, command, load_subject, loaded
from steptime.web.plan_cache import PlanSpec, answered, cost_and_unit, plan_call, priced

# Most bars of the picture.
MAX_BARS = 6
# Largest ratio of the contexts of a measured run and of the workload, and chips of a whole server.
NEAR_CONTEXT, SERVER_CHIPS = 2.0, 8
DOTS = "dots are measured runs of 8 chips with half to twice this context; their waits for first tokens are left out"
SYSTEMS = "hgx-h200, hgx-b200, gb200-nvl72, mi355x-8"


class Inputs(SlowInputs):
    """Systems, models, a workload and its limits."""

    systems: str = text(SYSTEMS, "systems", f"Names in the catalogue, separated by commas, at most {MAX_BARS}.")
    models: str = text("", "models", f"Names instead of the model above; at most {MAX_BARS} pairs of model and system.")
    speed: float = question_input("plan.speed", 30, 1, 500, label="speed of each user", log=True)
    ttft: float = question_input("plan.ttft", 5, 0.1, 60, label="first token within", log=True)
    prompt: int = question_input("plan.input", 4096, 16, 131_072, label="prompt", log=True)
    output: int = question_input("plan.output", 1024, high=32_768, log=True)


def answer(inputs: Inputs) -> Answer:
    """Return the cost of the best deployment on each system.

    While a slider moves, the answer comes from a known front.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.

    Raises:
        WrongField: There are too many pairs, or a name is unknown.
    """
    models, names = _names(inputs, "models"), _names(inputs, "systems")
    if len(models) * len(names) > MAX_BARS:
        raise WrongField("models", f"{len(models)} models on {len(names)} systems are more than {MAX_BARS} pairs; remove some")
    spec = PlanSpec(prompt=inputs.prompt, output=inputs.output, speed=inputs.speed, ttft=inputs.ttft)
    pairs = [(model, name) for model in models for name in names]
    rows = [_row(_with(inputs, model=model, system=name), spec, _label(model, name, models, names)) for model, name in pairs]
    # One unit for all bars: money if any rent is known, else chip-hours.
    unit = "USD" if any(row["unit"] == "USD" for row in rows) else "chip-h"
    for row in rows:
        if row["unit"] not in ("", unit):
            row |= {"cost": None, "reason": f"rent not known; {show(row['per_chip'], 'tok/s')} per chip"}
    able = sorted((row for row in rows if row["cost"] is not None), key=lambda row: (row["cost"], row["system"]))
    rows = able + [row for row in rows if row["cost"] is None]
    rough = any(row["rough"] for row in rows)
    options = {"--input": inputs.prompt, "--output": inputs.output, "--speed": inputs.speed, "--ttft": inputs.ttft}
    runs = _runs(inputs, pairs, rows, unit)
    columns = ("system", "cost", "low", "high", "speed", "ttft", "per_chip", "chips", "layout", "reason")
    return Answer(
        tables={
            "systems": {name: [row[name] for row in rows] for name in columns},
            "fronts": _fronts(rows, unit),
            "runs": runs,
        },
        marks={"unit": unit, "speed": inputs.speed, "rough": rough},
        sentence=_sentence(inputs, able, rows, unit),
        figures=tuple(Figure(row["system"], row["cost"], unit, row["layout"]) for row in able),
        formula=tuple(
            f"{row['system']}: {priced(row['cost'], unit)} per million = rent of {counted(row['chips'], 'chip')} / "
            f"({row['chips']} x {row['per_chip']:,.4g} tok/s), {row['layout']}"
            for row in able
        ),
        notes=(
            *(("rough answer from earlier plans",) if rough else ()),
            *((DOTS,) if runs["system"] else ()),
        ),
        command=command("compare", _with(inputs, model=",".join(models), system=",".join(names)), options),
        python=plan_call("compare", f"{_loaded(inputs, models)}, {names!r}", spec, inputs),
    )  # fmt: skip


def _fronts(rows: list[dict[str, Any]], unit: str) -> dict[str, list[Any]]:
    """Return the points of all fronts in one unit, slowest first."""
    return table_of(
        "system speed cost layout",
        (
            (row["system"], point.tokens_per_second_per_user, cost_and_unit(point)[0], point.layout_text)
            for row in rows
            for point in sorted(row["front"], key=lambda point: point.tokens_per_second_per_user)
            if cost_and_unit(point)[1] == unit
        ),
    )


def _runs(inputs: Inputs, pairs: list[tuple[str, str]], rows: list[dict[str, Any]], unit: str) -> dict[str, list[Any]]:
    """Return measured runs of whole servers with nearly the context of the workload, where the rent is known."""
    context, labels = inputs.prompt + inputs.output / 2, {row["system"] for row in rows}
    names = {
        pair: _label(*pair, [model for model, _ in pairs], [system for _, system in pairs]) for pair in dict.fromkeys(pairs)
    }
    points = []
    for (model, system), name in names.items():
        rent = load_subject(_with(inputs, model=model, system=system)).rent
        for engine, run_context, concurrency, seconds, chips in measured_runs().get(model, {}).get(system, ()):
            is_near = 1 / NEAR_CONTEXT <= run_context / context <= NEAR_CONTEXT
            if is_near and chips == SERVER_CHIPS and unit == "USD" and math.isfinite(rent) and name in labels:
                cost = float(cost_per_token(seconds, concurrency, chips, rent * MILLION))
                points.append((name, 1 / seconds, cost, engine, concurrency))
    return table_of("system speed cost engine concurrency", points)


def _with(inputs: Inputs, **names: str) -> Inputs:
    return inputs.model_copy(update=names)


def _names(inputs: Inputs, field: str) -> list[str]:
    """Return the full names of the models or systems; by default the bar's model."""
    kind = field.removesuffix("s")
    names = list(dict.fromkeys(part.strip() for part in getattr(inputs, field).split(",") if part.strip()))
    if field == "models" and not names:
        return [inputs.model]
    if not 1 <= len(names) <= MAX_BARS:
        raise WrongField(field, f"{field}: need 1 to {MAX_BARS} names separated by commas, got {len(names)}")
    full_names = []
    for name in names:
        try:
            full_names.append(getattr(load_subject(_with(inputs, **{kind: name})), kind).name)
        except WrongField as problem:
            raise WrongField(field if problem.field == kind else problem.field, str(problem)) from None
    return list(dict.fromkeys(full_names))


def _label(model: str, system: str, models: list[str], systems: list[str]) -> str:
    """Return the label of a bar: its system, its model, or both."""
    short = model.rpartition("/")[2]
    return system if len(models) == 1 else short if len(systems) == 1 else f"{short} on {system}"


def _row(inputs: Inputs, spec: PlanSpec, name: str) -> dict[str, Any]:
    """Return the plan of one pair as a row, or the reason why there is no plan."""
    outcome, point, rough = answered(inputs, spec, rough=inputs.coarse, diagnostics=False)
    row: dict[str, Any] = dict.fromkeys(("cost", "low", "high", "speed", "ttft", "per_chip", "chips", "layout"))
    row |= {"system": name, "reason": "", "rough": rough, "unit": "", "front": outcome.plan.front if outcome.plan else ()}
    if outcome.plan is None or point is None:
        reason = outcome.plan.reason if outcome.plan else outcome.reason
        return row | {"reason": reason or f"no deployment reaches {spec.speed:g} tok/s per user"}
    cost, unit = cost_and_unit(point)
    low, high = (not rough and unit == "USD" and outcome.plan.cost_range) or (None, None)
    return row | {
        "cost": cost, "low": low, "high": high, "unit": unit, "speed": point.tokens_per_second_per_user, "ttft": point.ttft,
        "per_chip": point.tokens_per_second_per_chip, "chips": outcome.plan.chips, "layout": point.layout_text,
    }  # fmt: skip


def _loaded(inputs: Inputs, models: list[str]) -> str:
    """Return the models as a Python expression: one model, or a list."""
    expressions = [loaded(_with(inputs, model=model))[0] for model in models]
    return expressions[0] if len(expressions) == 1 else f"[{', '.join(expressions)}]"


def _sentence(inputs: Inputs, able: list[dict[str, Any]], rows: list[dict[str, Any]], unit: str) -> str:
    if not able:
        return f"No system reaches {inputs.speed:g} tok/s per user with a p90 TTFT of at most {inputs.ttft:g} s."
    first, none = able[0], [row["system"] for row in rows if row["cost"] is None]
    words = f"{first['system']} is the cheapest, at {priced(first['cost'], unit)} per million output tokens"
    if len(able) > 1:
        words += f"; the most expensive costs {able[-1]['cost'] / first['cost']:.2g} times as much"
    # Overlapping 90 % ranges do not decide between two systems.
    tied = [row["system"] for row in able[1:] if (row["low"] or first["cost"]) < (first["high"] or 0)]
    words += f". {' and '.join(tied)} may be as cheap: the 90 % ranges overlap" if tied else ""
    return words + (f". No result for {', '.join(none)}: see the picture." if none else ".")


BOARD = Board(
    name="compare", title="Which machine, or which model, is cheapest?", order=140, section=2, inputs=Inputs, answer=answer,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "engine": "ideal", "systems": "hgx-h200, gb200-nvl72, vr200-nvl72"},
    today={"model": "deepseek-ai/DeepSeek-V3", "systems": "hgx-h200, hgx-b300, gb300-nvl72, mi355x-8"},
    bar=("model", "engine", "weights", "kv"), slow=True,
)  # fmt: skip
