"""Systems, or models, side by side for one workload, the cheapest first."""

from __future__ import annotations

from typing import Any

from steptime.units import counted, show
from steptime.web.board import Answer, Board, Figure
from steptime.web.board_inputs import Shared, bar_inputs, coarse, slider, text
from steptime.web.page_subject import WrongField, load_subject
from steptime.web.plan_cache import PlanSpec, answered, cost_and_unit, plan_call, priced
from steptime.web.snippets import command, loaded, python

MAX_BARS = 6  # bars
SYSTEMS = "hgx-h200, hgx-b200, gb200-nvl72, mi355x-8"


class Inputs(Shared):
    """Systems, a workload and its limits."""

    systems: str = text(SYSTEMS, "systems", f"Names of the catalogue with commas between, at most {MAX_BARS}.")
    models: str = text(
        "", "models", f"Names with commas between, instead of the one above: each on each system, at most {MAX_BARS} in all."
    )
    speed: float = slider(30, 1, 500, "speed of each user", "tok/s", "At least so fast does each user read.", log=True)
    ttft: float = slider(5, 0.1, 60, "first token within", "s", "Longest mean time to the first token.", log=True)
    prompt: int = slider(4096, 16, 131_072, "prompt", "tokens", "Tokens of a prompt.", log=True)
    output: int = slider(1024, 1, 32_768, "answer", "tokens", "Tokens of an answer.", log=True)
    coarse: bool = coarse()


def answer(inputs: Inputs) -> Answer:
    """Return what each system costs at its best deployment; while a slider moves, at a point of a front that is known."""
    models, names = _names(inputs, "models"), _names(inputs, "systems")
    if len(models) * len(names) > MAX_BARS:
        raise WrongField("models", f"{len(models)} models on {len(names)} systems are more than {MAX_BARS}; leave some out")
    spec = PlanSpec(prompt=inputs.prompt, output=inputs.output, speed=inputs.speed, ttft=inputs.ttft)
    rows = [
        _row(inputs.model_copy(update={"model": model, "system": name}), spec, _label(model, name, models, names))
        for model in models
        for name in names
    ]
    unit = "USD" if any(row["unit"] == "USD" for row in rows) else "chip-h"
    for row in rows:
        if row["unit"] not in ("", unit):
            row |= {"cost": None, "reason": f"no rent of it is known; a chip makes {show(row['per_chip'], 'tok/s')}"}
    able = sorted((row for row in rows if row["cost"] is not None), key=lambda row: (row["cost"], row["system"]))
    rows = able + [row for row in rows if row["cost"] is None]
    rough = any(row["rough"] for row in rows)
    columns = ("system", "cost", "low", "high", "speed", "ttft", "per_chip", "chips", "layout", "reason")
    return Answer(
        tables={"systems": {name: [row[name] for row in rows] for name in columns}},
        marks={"unit": unit, "speed": inputs.speed, "rough": rough},
        sentence=_sentence(inputs, able, rows, unit),
        figures=tuple(Figure(name=row["system"], value=row["cost"], unit=unit, words=row["layout"]) for row in able),
        formula=tuple(
            f"{row['system']}: {priced(row['cost'], unit)} a million = rent of {counted(row['chips'], 'chip')} / "
            f"({row['chips']} x {row['per_chip']:,.4g} tok/s), {row['layout']}"
            for row in able
        ),
        notes=("a rough answer, of plans that were made before",) if rough else (),
        command=_command(inputs, models, names),
        python=python(plan_call("compare", f"{_loaded(inputs, models)}, {names!r}", spec, inputs.engine)),
    )  # fmt: skip


def _names(inputs: Inputs, field: str) -> list[str]:
    """Return the models or the systems that are asked for, each by its own name; of the bar where none is named."""
    kind = field.removesuffix("s")
    names = list(dict.fromkeys(part.strip() for part in getattr(inputs, field).split(",") if part.strip()))
    if field == "models" and not names:
        return [inputs.model]
    if not 1 <= len(names) <= MAX_BARS:
        raise WrongField(field, f"give 1 to {MAX_BARS} {field} with commas between, not {len(names)}")
    full_names = []
    for name in names:
        try:
            full_names.append(getattr(load_subject(inputs.model_copy(update={kind: name})), kind).name)
        except WrongField as problem:
            raise WrongField(field if problem.field == kind else problem.field, str(problem)) from None
    return list(dict.fromkeys(full_names))


def _label(model: str, system: str, models: list[str], systems: list[str]) -> str:
    """Return what a bar is called: its system, its model, or both."""
    short = model.rpartition("/")[2]
    return system if len(models) == 1 else short if len(systems) == 1 else f"{short} on {system}"


def _row(inputs: Inputs, spec: PlanSpec, name: str) -> dict[str, Any]:
    """Return one pair's plan as a row; without a cost where nothing serves the model there."""
    outcome, point, rough = answered(bar_inputs(inputs), spec, rough=inputs.coarse)
    row: dict[str, Any] = dict.fromkeys(("cost", "low", "high", "speed", "ttft", "per_chip", "chips", "layout"))
    reason = (
        outcome.reason or (outcome.plan.reason if outcome.plan else "") or f"nothing there gives each user {spec.speed:g} tok/s"
    )
    row |= {"system": name, "reason": "" if point else reason, "rough": rough, "unit": ""}
    if outcome.plan is None or point is None:
        return row
    cost, unit = cost_and_unit(point)
    low, high = (not rough and unit == "USD" and outcome.plan.cost_range) or (None, None)
    return row | {
        "cost": cost, "low": low, "high": high, "unit": unit, "speed": point.tokens_per_second_per_user, "ttft": point.ttft,
        "per_chip": point.tokens_per_second_per_chip, "chips": outcome.plan.chips, "layout": point.layout_text,
    }  # fmt: skip


def _command(inputs: Inputs, models: list[str], names: list[str]) -> str:
    """Return the command: one that takes several models and systems names them where others name one."""
    options = {"--input": inputs.prompt, "--output": inputs.output, "--speed": inputs.speed, "--ttft": inputs.ttft}
    return command("compare", inputs.model_copy(update={"model": ",".join(models), "system": ",".join(names)}), options)


def _loaded(inputs: Inputs, models: list[str]) -> str:
    """Return the models as an expression: one as it is loaded, several by their names."""
    expressions = [loaded(inputs.model_copy(update={"model": model}))[0] for model in models]
    return expressions[0] if len(expressions) == 1 else f"[{', '.join(expressions)}]"


def _sentence(inputs: Inputs, able: list[dict[str, Any]], rows: list[dict[str, Any]], unit: str) -> str:
    if not able:
        return f"None of these gives each user {inputs.speed:g} tokens a second and a first token within {inputs.ttft:g} s."
    first, none = able[0], [row["system"] for row in rows if row["cost"] is None]
    serves = "is" if inputs.models else "serves it"
    words = f"{first['system']} {serves} cheapest, at {priced(first['cost'], unit)} a million answer tokens"
    if len(able) > 1:
        words += f"; the dearest here costs {able[-1]['cost'] / first['cost']:.2g} times as much"
    tied = [row["system"] for row in able[1:] if (row["low"] or first["cost"]) < (first["high"] or 0)]
    words += f". {' and '.join(tied)} may be as cheap: the ranges overlap" if tied else ""
    return words + (f". {', '.join(none)}: cannot, as told beside." if none else ".")


BOARD = Board(
    name="compare",
    title="Which machine, or which model, is cheapest?",
    order=140,
    section=2,
    inputs=Inputs,
    answer=answer,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "engine": "ideal", "systems": "hgx-h200, gb200-nvl72, vr200-nvl72"},
    today={"model": "deepseek-ai/DeepSeek-V3", "systems": "hgx-h200, hgx-b300, gb300-nvl72, mi355x-8"},
    bar=("model", "engine", "weights", "kv"),
    slow=True,
)
