"""What the terminal shows of a step of RL."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.budget_view import money
from steptime.cli.views.widgets import bar, notes, table
from steptime.scaling.rl_step import RlStep
from steptime.units import show

CELLS, MIN_SHARE = 24, 1e-3  # of a bar; share of the step from which a part is shown


def rl_view(step: RlStep, *, brief: bool = False) -> RenderableType:
    """Return the step in a sentence, and its phases with their shares."""
    output_tokens = step.rollouts * step.output
    kind = "on policy" if step.on_policy else f"one step off, {step.rollout_chips:,} chips rolling out"
    first = (
        f"{show(step.total, 's')} a step of {step.rollouts:,} answers ({show(output_tokens)} tokens) of {step.model} on "
        f"{step.chips:,} chips of {step.system}, {kind}: {money(step.usd)}, {money(step.usd / output_tokens * 1e6)} a million "
        "tokens."
    )
    if brief:
        return Group(Text(first, style="bold"), *notes(step.notes))
    tail = {"  its last tenth of answers": step.tail} if step.tail > MIN_SHARE * step.total else {}
    phases = {"Rollout": step.rollout, **tail, "Log-probabilities": step.log_probs,
              "Training": step.training, "Refit": step.refit}  # fmt: skip
    grid = table("Phase", "Time", "Of the step", "", numbers=(1, 2), first_to_go=(3,))
    for name, value in phases.items():
        grid.add_row(name, show(value, "s"), f"{value / step.total:.0%}", bar(value / step.total, CELLS, "green"))
    words = [
        f"rollout at {step.layout} of each replica; training reaches {step.mfu:.1%} of the bf16 rate",
        "left out: rewards, the environment, starts of engines and what else lies between phases: published steps take up to "
        "several times what is reckoned here (docs/budget.md)",
    ]
    return Group(Text(first, style="bold"), *notes(step.notes), grid, *notes(words))
