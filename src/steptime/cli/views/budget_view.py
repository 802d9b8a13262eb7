"""What the terminal shows of a budget: the choice in a sentence, the laws beside one another, the bill, and the machine's."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import figure, label, render_chart, room
from steptime.cli.views.widgets import heading, notes, ranged, table
from steptime.scaling.model_sizing import Budget, Choice
from steptime.scaling.sizing_on_system import MachineBudget
from steptime.scaling.sizing_plots import cost_curve
from steptime.units import DAY, in_digits, show

PARTS = (("training", "green", "o"), ("RL", "magenta", "+"), ("serving", "cyan", "x"))


def budget_view(budget: Budget, width: int, *, brief: bool = False) -> RenderableType:
    """Return the answer: first in a sentence, then by law, in money, as a picture, and by machine."""
    best = budget.choice
    parts: list[RenderableType] = [Text(_sentence(budget), style="bold"), *notes(budget.warnings)]
    if brief:
        return Group(*parts, *(notes(budget.machine.notes) if budget.machine is not None else []))
    parts += [_laws(budget), _bill(budget, best)]
    if budget.demand.weight:
        parts += _picture(budget, best, width)
    if budget.machine is not None:
        parts += [heading("By machine"), machine_view(budget.machine, budget)]
    return Group(*parts)


def _sentence(budget: Budget) -> str:
    best = budget.choice
    spread = budget.params_over_laws
    tokens = budget.tokens_over_laws
    laws = f", over {len(budget.choices)} laws {_span(spread)} on {_span(tokens)}" if spread and tokens else ""
    mixed = f" ({show(best.total_params)} in all)" if best.total_params > 1.01 * best.params else ""
    return (
        f"For {budget.target.words}: {show(best.params)} parameters{mixed} on {show(best.tokens)} tokens, "
        f"{in_digits(best.over_chinchilla)}x over 20 a parameter, by {best.law}{laws}.{_by_machine(budget)}"
    )


def _by_machine(budget: Budget) -> str:
    """Return the machine's answer in a sentence."""
    machine = budget.machine
    if machine is None:
        return ""
    bought = f" at a loss of {machine.loss:.4f}" if not math.isnan(budget.target.usd) else ""
    return (
        f" By machine: {show(machine.params)} parameters on {show(machine.tokens)} tokens{bought}, "
        f"{money(machine.total_usd)} in all on {machine.system}."
    )


def _span(ends: tuple[float, float]) -> str:
    return f"{show(ends[0])} to {show(ends[1])}"


def _laws(budget: Budget) -> RenderableType:
    """Return a row a law, with its 90 % range where there is one."""
    grid = table(
        "Law", "Parameters", "Tokens", "Over 20 N", "Over its own best", "Training", "Half", "Twice", "At equality", "Loss",
        numbers=range(1, 10), first_to_go=(9, 8, 4, 6, 7),
    )  # fmt: skip
    for choice in budget.choices:
        grid.add_row(
            choice.law, show(choice.params), show(choice.tokens), _times(choice.over_chinchilla), _times(choice.over_own),
            f"{choice.training_share:.0%}", _ratio(choice.half_cost), _ratio(choice.double_cost), _ratio(choice.equality_cost),
            f"{choice.loss:.4f}",
        )  # fmt: skip
    below = Text(
        "Training: share of the bill. Half, twice: the bill at the same loss with so many parameters, over the least; at "
        "equality: where training costs what the rest does; -: there is none, as no number of tokens makes up for the size."
    )
    ranged_choices = [choice for choice in budget.choices if choice.ranges]
    words = [Text(_range(choice)) for choice in ranged_choices]
    return Group(grid, below, *words)


def _range(choice: Choice) -> str:
    """Return the 90 % range of a law's choice in words."""
    params = ranged(choice.params, choice.ranges.get("params"), show)
    tokens = ranged(choice.tokens, choice.ranges.get("tokens"), show)
    ratio = ranged(choice.over_chinchilla, choice.ranges.get("over_chinchilla"), _times)
    return f"90 % range over the errors of {choice.law}: {params} parameters, {tokens} tokens, {ratio} over 20 N."


def _bill(budget: Budget, best: Choice) -> RenderableType:
    """Return the bill of the first law's choice, in FLOP, money and chips."""
    title = f"The bill by {best.law}, FLOP of training at {budget.mfu:.0%} of bf16 on {budget.system}"
    grid = table(title, "FLOP", "Share", "USD", "Chips", numbers=(1, 2, 3, 4))
    trained = f"{best.training_chips:,.0f} for {budget.training_days:g} d"
    serving = f"{best.serving_chips:,.0f} for {budget.demand.lifetime / DAY:g} d" if math.isfinite(best.serving_chips) else "-"
    likely = f", {1 - budget.demand.discard:.0%} likely" if budget.demand.discard else ""
    rows = [
        ("Training", best.training_flop, best.training_usd, trained),
        ("RL", best.rl_flop, best.rl_usd, "-"),
        (f"Serving{likely}", best.serving_flop, best.serving_usd, serving),
    ]  # fmt: skip
    for name, flop, usd, chips in rows:
        if flop:
            grid.add_row(name, f"{flop:.3g}", f"{flop / best.total_flop:.0%}", money(usd), chips)
    grid.add_section()
    grid.add_row("In all", f"{best.total_flop:.3g}", "", money(best.usd), "")
    return grid


def _picture(budget: Budget, best: Choice, width: int) -> list[RenderableType]:
    """Return the bill against parameters at equal loss, in its parts, with the minimum and the point of equality."""
    curve = cost_curve(best.scaling_law, budget.demand, best.loss, best.params, **budget.law_inputs)
    x, total = np.log10(curve.params), np.asarray(curve.total)
    finite = np.isfinite(total)
    if finite.sum() < 3:
        return []
    chart = figure(room(width), 14)
    least_bill = float(np.log10(best.total_flop))
    served = np.asarray(curve.serving)
    low = float(np.log10(served[served > 0].min())) if (served > 0).any() else least_bill
    chart.set_x_limits(float(x[finite].min()), float(x.max()))
    chart.set_y_limits(min(low, least_bill - 1.0), least_bill + 0.7)
    chart.x_ticks_fkt = lambda value, _: show(10**value, "", 2)
    chart.y_ticks_fkt = lambda value, _: f"{10**value:.1e}"
    label(chart, "parameters", "FLOP", width)
    legend = Text()
    chart.plot(x[finite], np.log10(total[finite]), lc="white")
    legend.append("━ in all   ")
    for (name, colour, mark), values in zip(
        PARTS, (np.broadcast_to(part, x.shape) for part in (curve.training, curve.rl, curve.serving)), strict=True
    ):
        visible = finite & (values > 0) & (np.log10(np.maximum(values, 1e-300)) < least_bill + 0.7)
        if visible.any():
            chart.scatter(x[visible][::3], np.log10(values[visible])[::3], lc=colour, marker=mark)
            legend.append(f"{mark} {name}   ", style=colour)
    chart.scatter([math.log10(best.params)], [least_bill], lc="yellow", marker="◆")
    legend.append("◆ least   ", style="yellow")
    if math.isfinite(best.equality_params):
        chart.scatter(
            [math.log10(best.equality_params)], [math.log10(best.equality_cost * best.total_flop)], lc="red", marker="="
        )
        legend.append("= at equality", style="red")
    return [Text(f"The bill at a loss of {best.loss:.4f} by {best.law}", style="bold"), render_chart(chart), legend]


def machine_view(machine: MachineBudget, budget: Budget) -> RenderableType:
    """Return the two modes side by side, and the sizes that were planned."""
    best = budget.choice
    both = table(f"By {best.law}", "Lecture", "Machine", numbers=(1, 2))
    rows = [
        ("Parameters", show(best.params), show(machine.params)),
        *([("In all", show(best.total_params), show(machine.total_params))] if best.total_params > 1.01 * best.params else []),
        ("Tokens", show(best.tokens), show(machine.tokens)),
        ("Loss", f"{best.loss:.4f}", f"{machine.loss:.4f}"),
        ("Over 20 N", _times(best.over_chinchilla), _times(machine.tokens / machine.params / 20)),
        ("Share of the peak", f"{budget.mfu:.0%}", f"{machine.mfu:.0%}"),
        ("η", f"{budget.demand.eta:g}", f"{machine.eta:.2f}" if math.isfinite(machine.eta) else "-"),
        ("Chips that train", f"{best.training_chips:,.0f}", f"{machine.training_chips:,}"),
        ("Days of training", f"{budget.training_days:g}", f"{machine.training_seconds / DAY:,.0f}"),
        ("Training", money(best.training_usd), money(machine.training_usd)),
        ("RL", money(best.rl_usd), money(machine.rl_usd)),
        ("Serving", money(best.serving_usd), money(machine.serving_usd)),
        ("The bill", money(best.usd), money(machine.total_usd)),
        ("Half the parameters", _ratio(best.half_cost), _ratio(machine.half_cost)),
        ("Twice the parameters", _ratio(best.double_cost), _ratio(machine.double_cost)),
    ]
    for row in rows:
        both.add_row(*row)
    sizes = table(
        "Size",
        "Width",
        "Layers",
        "Chips",
        "USD/request",
        "Tokens",
        "Trained by",
        "Days",
        "Training",
        "Of peak",
        "Serving",
        numbers=range(11),
        first_to_go=(1, 2, 9),
    )
    for size in machine.sizes:
        usd = f"{size.usd_per_request:.3g}" if math.isfinite(size.usd_per_request) else "-"
        tokens = show(size.tokens) if math.isfinite(size.tokens) else "-" if size.training_chips else "too small"
        days = f"{size.training_seconds / DAY:,.0f}" if math.isfinite(size.training_seconds) else "-"
        trainers = f"{size.training_chips:,}" if size.training_chips else "-"
        sizes.add_row(show(size.params), f"{size.width:,}", f"{size.layers}", f"{size.chips:,}" if size.chips else "-", usd,
                      tokens, trainers, days, money(size.training_usd),
                      f"{size.mfu:.0%}" if math.isfinite(size.mfu) else "-", money(size.serving_usd))  # fmt: skip
    words = (
        f"Served on {machine.system} ({machine.serving_chips:,.0f} chips all its life), "
        f"${machine.usd_per_million_tokens:.3g} a million tokens; trained on {machine.training_by}."
        if math.isfinite(machine.serving_chips)
        else f"Served on {machine.system}; trained on {machine.training_by}."
    )
    return Group(both, Text(words), *notes(machine.notes), sizes)


def money(usd: float) -> str:
    """Write USD for people, in thousands, millions or billions.

    >>> money(73_754_594.0), money(0.0), money(float("inf"))
    ('$73.8 M', '-', '-')
    """
    if not math.isfinite(usd) or usd == 0:
        return "-"
    return f"${show(usd)}" if usd >= 1e6 else f"${usd:,.0f}" if usd >= 100 else f"${usd:.3g}"


def _ratio(value: float) -> str:
    return f"{value:,.2f}x" if math.isfinite(value) else "-"


def _times(value: float) -> str:
    return f"{in_digits(value)}x" if math.isfinite(value) else "-"
