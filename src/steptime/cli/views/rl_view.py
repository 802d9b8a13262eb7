"""What the terminal shows of a step of RL."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.budget_view import money
from steptime.cli.views.widgets import bar, notes, table
from steptime.scaling.rl_step import RlStep
from steptime.units import show

CELLS, SEEN = 24, 1e-3  # of a bar; share of the step from which a part is shown


def rl_view(found: RlStep, *, brief: bool = False) -> RenderableType:
    """Return the step in a sentence, and its phases with their shares."""
    made = found.rollouts * found.output
    kind = "on policy" if found.on_policy else f"one step off, {found.rollout_chips:,} chips rolling out"
    first = (
        f"{show(found.total, 's')} a step of {found.rollouts:,} answers ({show(made)} tokens) of {found.model} on "
        f"{found.chips:,} chips of {found.system}, {kind}: {money(found.usd)}, {money(found.usd / made * 1e6)} a million "
        "tokens."
    )
    if brief:
        return Group(Text(first, style="bold"), *notes(found.notes))
    tail = {"  its last tenth of answers": found.tail} if found.tail > SEEN * found.total else {}
    phases = {"Rollout": found.rollout, **tail, "Log-probabilities": found.log_probs,
              "Training": found.training, "Refit": found.refit}  # fmt: skip
    shown = table("Phase", "Time", "Of the step", "", numbers=(1, 2), first_to_go=(3,))
    for name, value in phases.items():
        shown.add_row(name, show(value, "s"), f"{value / found.total:.0%}", bar(value / found.total, CELLS, "green"))
    words = [
        f"rollout at {found.layout} of each replica; training reaches {found.mfu:.1%} of the bf16 rate",
        "left out: rewards, the environment, starts of engines and what else lies between phases: published steps take up to "
        "several times what is reckoned here (docs/budget.md)",
    ]
    return Group(Text(first, style="bold"), *notes(found.notes), shown, *notes(words))
