"""Terminal views of `steptime budget`, `steptime laws` and `steptime rl`: model sizes, scaling laws, and a step of RL."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import Ticks, figure, label, plain, render_chart, room
from steptime.cli.views.widgets import Answer, Grid, bar, facts, footnote, ranged, section, sourced, table
from steptime.describe.law_summary import LawCard
from steptime.hardware.rental_prices import usd as write_usd
from steptime.scaling.compute_optimal import Losses
from steptime.scaling.model_sizing import Budget, Choice
from steptime.scaling.moe_vs_dense import MoeBoard, MoeRow
from steptime.scaling.rl_step import RlStep
from steptime.scaling.scaling_laws import in_beyond
from steptime.scaling.sizing_on_system import MachineBudget
from steptime.scaling.sizing_plots import cost_curve
from steptime.units import DAY, HOUR, counted, in_digits, show

PARTS = (("training", "green", "o"), ("RL", "magenta", "+"), ("serving", "cyan", "x"))
MARKS = ("o", "x", "+", "#", "%", "@")
COLOURS = ("green", "cyan", "yellow", "magenta", "red", "blue")
LEADING_LAW = "epoch"  # of a predicted loss, as in budgets
MAX_GAIN = 100.0  # of a chart: higher gains are far outside the runs that a law was fitted to
# Time of published steps / computed parts of the same steps: 11 steps of NeMo RL (docs/budget.md).
PUBLISHED_STEPS = (1.4, 4.8)
NARROW, MIN_SHARE = 60, 1e-3  # columns up to which phases have no bars; share of the RL step from which the tail is shown


# --- budget -------------------------------------------------------------------------------------------------------------


def budget_view(budget: Budget, *, width: int, full: bool = False) -> RenderableType:
    """Return the model size and training tokens of lowest lifetime cost.

    Args:
        budget: a choice by each law, and by the machine if one was named.
        width: columns of the terminal.
        full: whether to show the chart of costs and all sizes that were planned on the machine.

    Returns:
        The answer.
    """
    best, machine = budget.choice, budget.machine
    charts = _cost_chart(budget, best, width) if budget.demand.weight else []
    laws = _laws_table(budget)
    bill: list[RenderableType] = [_bill_table(budget, best), footnote(_bill_meaning(budget, best))]
    meaning = _laws_meaning(laws, width)
    body: list[RenderableType] = [laws, *([footnote(meaning)] if meaning else []), *bill]
    sizes: list[RenderableType] = []
    # a named machine answers in money; the closed form becomes a detail
    if machine is not None:
        body = [_machine_table(machine, budget), laws, *([footnote(meaning)] if meaning else [])]
        sizes = [*bill, section(_served(machine), [_sizes_table(machine)])]
    extrapolations = [
        f"{choice.law}: {in_beyond(choice.beyond, choice.scaling_law)}." for choice in budget.choices if choice.beyond
    ]
    sizes += [section("Extrapolation beyond the runs of each law", extrapolations)] if extrapolations else []
    return Answer(
        sentence=_budget_sentence(budget), conditions=f"Target: {budget.target.words}. Scaling law: {best.law}.",
        body=[*body, *charts],
        details=sizes, warnings=[*budget.warnings, *(machine.notes if machine is not None else ())],
        full_adds=", ".join(
            [
                *(["bill by law, sizes that were planned"] if machine is not None else []),
                *(["extrapolation of each law"] if extrapolations else []),
            ]
        ),
        full=full,
    )  # fmt: skip


def _budget_sentence(budget: Budget) -> str:
    """Say how many parameters and tokens are cheapest, how far laws disagree, and its cost."""
    best, machine = budget.choice, budget.machine
    ratio = in_digits(best.over_chinchilla)
    mixed = f" ({show(best.total_params)} in total)" if best.total_params > 1.01 * best.params else ""
    text = f"Train {show(best.params)} parameters{mixed} on {show(best.tokens)} tokens: "
    text += f"{ratio}x the Chinchilla-optimal 20 tokens per parameter."
    parts = {"training": best.training_usd, "RL": best.rl_usd, "serving": best.serving_usd}
    if math.isfinite(best.usd):
        bill = ", ".join(f"{money(usd)} {name}" for name, usd in parts.items() if usd)
        text += f" Lifetime cost: {money(best.usd)} ({bill})."
    if budget.params_over_laws and budget.tokens_over_laws:
        spans = (f"{show(low)} to {show(high)}" for low, high in (budget.params_over_laws, budget.tokens_over_laws))
        costs = [choice.usd for choice in budget.choices]
        cost = f", {money(min(costs))} to {money(max(costs))}" if all(map(math.isfinite, costs)) else ""
        text += f" {len(budget.choices)} scaling laws disagree: {' parameters, '.join(spans)} tokens{cost}."
    if machine is not None:
        loss = f" at a loss of {machine.loss:.4f}" if not math.isnan(budget.target.usd) else ""
        text += f" On {machine.system}: {show(machine.params)} parameters on {show(machine.tokens)} tokens{loss}, "
        text += f"{money(machine.total_usd)} in total."
    return text


def _laws_table(budget: Budget) -> Grid:
    """Return a row for each law."""
    with_range = [choice.law for choice in budget.choices if choice.ranges]
    grid = table(
        "Law", "Parameters", "Tokens", "Tokens / 20 N", "Training share", "Half", "Twice", "Tokens / optimal", "Equal", "Loss",
        title="By scaling law" + (f" (90 % range: {', '.join(with_range)})" if with_range else ""), numbers=range(1, 10),
        first_to_go=(9, 8, 7, 5, 6),
    )  # fmt: skip
    for choice in budget.choices:
        grid.add_row(
            choice.law,
            ranged(choice.params, choice.ranges.get("params"), show, label=""),
            ranged(choice.tokens, choice.ranges.get("tokens"), show, label=""),
            _times(choice.over_chinchilla), f"{choice.training_share:.0%}", _ratio(choice.half_cost),
            _ratio(choice.double_cost), _times(choice.over_own), _ratio(choice.equality_cost), f"{choice.loss:.3f}",
        )  # fmt: skip
    return grid


def _laws_meaning(grid: Grid, width: int) -> str:
    """Say what the columns that the width shows mean."""
    heads = {grid.columns[position] for position in grid.widths(width)}
    words = []
    if "Half" in heads:
        words.append(
            "Half, twice: relative cost at the same loss with half or twice the parameters (-: no number of tokens reaches it)."
        )
    if "Tokens / optimal" in heads:
        words.append("Tokens / optimal: training tokens / compute-optimal tokens of this law.")
    if "Equal" in heads:
        words.append("Equal: relative cost where training costs as much as RL and serving.")
    return " ".join(words)


def _bill_meaning(budget: Budget, best: Choice) -> str:
    """Say which factor turns the FLOP of serving and RL into training-equivalent FLOP, and what a chip costs."""
    eta = budget.demand.eta
    words = ""
    if best.serving_flop:
        served = f"{best.serving_flop / eta:.3g}"
        words = f"Serving: {served} FLOP x {eta:g} (--eta), since one serving FLOP costs as much as {eta:g} training FLOP. "
    rent = f" at {budget.rent * HOUR:.2f} USD per chip-hour" if math.isfinite(budget.rent) else ""
    return f"{words}Chips: {budget.system}{rent}, {budget.mfu:.0%} MFU."


def _bill_table(budget: Budget, best: Choice) -> Grid:
    """Return the cost of the first law's choice, in FLOP, money and chips."""
    title = f"Lifetime cost by the law {best.law}"
    grid = table("", "Training-equivalent FLOP", "Share", "USD", "Chips", title=title, numbers=(1, 2, 3, 4))
    trained = f"{_chips(best.training_chips)} for {budget.training_days:g} d"
    serving = (
        f"{_chips(best.serving_chips)} for {budget.demand.lifetime / DAY:g} d" if math.isfinite(best.serving_chips) else "-"
    )
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
    grid.add_row("Total", f"{best.total_flop:.3g}", "", money(best.usd), "")
    return grid


def _chips(count: float) -> str:
    """Write a number of chips with three digits."""
    return f"{float(f'{count:.3g}'):,.0f}" if count >= 1 else f"{count:.2g}"


def _cost_chart(budget: Budget, best: Choice, width: int) -> list[RenderableType]:
    """Return cost against parameters at equal loss, in its parts, with the minimum and the point of equality."""
    curve = cost_curve(best.scaling_law, budget.demand, best.loss, best.params, **budget.law_inputs)
    x, total = np.log10(curve.params), np.asarray(curve.total)
    # small models cannot reach the loss with any number of tokens: their cost is infinite
    finite = np.isfinite(total)
    if finite.sum() < 3:
        return []
    chart = figure(room(width), 10)
    least_bill = float(np.log10(best.total_flop))
    served = np.asarray(curve.serving)
    low = float(np.log10(served[served > 0].min())) if (served > 0).any() else least_bill
    chart.set_x_limits(float(x[finite].min()), float(x.max()))
    chart.set_y_limits(min(low, least_bill - 1.0), least_bill + 0.7)
    label(chart, "parameters", "FLOP", width)
    legend = Text()
    chart.plot(x[finite], np.log10(total[finite]), lc="white")
    legend.append("━ total   ")
    for (name, colour, mark), values in zip(
        PARTS, (np.broadcast_to(part, x.shape) for part in (curve.training, curve.rl, curve.serving)), strict=True
    ):
        visible = finite & (values > 0) & (np.log10(np.maximum(values, 1e-300)) < least_bill + 0.7)
        if visible.any():
            chart.scatter(x[visible][::3], np.log10(values[visible])[::3], lc=colour, marker=mark)
            legend.append(f"{mark} {name}   ", style=colour)
    chart.scatter([math.log10(best.params)], [least_bill], lc="yellow", marker="◆")
    legend.append("◆ lowest   ", style="yellow")
    if math.isfinite(best.equality_params):
        chart.scatter(
            [math.log10(best.equality_params)], [math.log10(best.equality_cost * best.total_flop)], lc="red", marker="="
        )
        legend.append("= training equals the rest", style="red")
    picture = render_chart(chart, Ticks(plain), Ticks("{:.0e}".format))
    return [section(f"Lifetime cost [FLOP] at a loss of {best.loss:.3f} by {best.law}", [picture, legend])]


def _machine_table(machine: MachineBudget, budget: Budget) -> Grid:
    """Return the choice by FLOP and the choice on the machine, next to each other."""
    best = budget.choice
    both = table(f"By {best.law}", "Closed form", machine.system, numbers=(1, 2))
    rows = [
        ("Parameters", show(best.params), show(machine.params)),
        *(
            [("Total parameters", show(best.total_params), show(machine.total_params))]
            if best.total_params > 1.01 * best.params
            else []
        ),
        ("Tokens", show(best.tokens), show(machine.tokens)),
        ("Loss", f"{best.loss:.4f}", f"{machine.loss:.4f}"),
        ("Tokens / 20 N", _times(best.over_chinchilla), _times(machine.tokens / machine.params / 20)),
        ("MFU", f"{budget.mfu:.0%}", f"{machine.mfu:.0%}"),
        ("η (inference efficiency)", f"{budget.demand.eta:g}", f"{machine.eta:.2f}" if math.isfinite(machine.eta) else "-"),
        ("Chips that train", f"{best.training_chips:,.0f}", f"{machine.training_chips:,}"),
        ("Days of training", f"{budget.training_days:g}", f"{machine.training_seconds / DAY:,.0f}"),
        ("Training", money(best.training_usd), money(machine.training_usd)),
        ("RL", money(best.rl_usd), money(machine.rl_usd)),
        ("Serving", money(best.serving_usd), money(machine.serving_usd)),
        ("Total cost", money(best.usd), money(machine.total_usd)),
        ("Half the parameters", _ratio(best.half_cost), _ratio(machine.half_cost)),
        ("Twice the parameters", _ratio(best.double_cost), _ratio(machine.double_cost)),
    ]
    for row in rows:
        both.add_row(*row)
    return both


def _sizes_table(machine: MachineBudget) -> Grid:
    """Return a row for each size that was planned."""
    sizes = table(
        "Size", "Width", "Layers", "Chips", "USD/request", "Tokens", "Training chips", "Days", "Training", "MFU", "Serving",
        numbers=range(11), first_to_go=(1, 2, 9),
    )  # fmt: skip
    for size in machine.sizes:
        usd = write_usd(size.usd_per_request) if math.isfinite(size.usd_per_request) else "-"
        tokens = show(size.tokens) if math.isfinite(size.tokens) else "-" if size.training_chips else "too small"
        days = f"{size.training_seconds / DAY:,.0f}" if math.isfinite(size.training_seconds) else "-"
        trainers = f"{size.training_chips:,}" if size.training_chips else "-"
        sizes.add_row(show(size.params), f"{size.width:,}", f"{size.layers}", f"{size.chips:,}" if size.chips else "-", usd,
                      tokens, trainers, days, money(size.training_usd),
                      f"{size.mfu:.0%}" if math.isfinite(size.mfu) else "-", money(size.serving_usd))  # fmt: skip
    return sizes


def _served(machine: MachineBudget) -> str:
    if not math.isfinite(machine.serving_chips):
        return f"Served on {machine.system}; trained on {machine.training_by}"
    cost = f"{write_usd(machine.usd_per_million_tokens)} per million tokens"
    return f"Served on {machine.serving_chips:,.0f} chips of {machine.system}, {cost}; trained on {machine.training_by}"


def money(usd: float) -> str:
    """Write USD for people, in millions or billions from a million on.

    Args:
        usd: amount [USD].

    Returns:
        Three digits; a dash for nothing.

    >>> money(73_754_594.0), money(0.0), money(float("inf"))
    ('$73.8 M', '-', '-')
    """
    if not math.isfinite(usd) or usd == 0:
        return "-"
    return f"${show(usd)}" if usd >= 1e6 else f"${usd:,.0f}" if usd >= 100 else write_usd(usd)


# --- laws ---------------------------------------------------------------------------------------------------------------


def laws_view(cards: Sequence[LawCard], *, full: bool = False) -> RenderableType:
    """Return the list of laws.

    Args:
        cards: the laws.
        full: whether to show the formula of each and the range of its runs.

    Returns:
        The answer.
    """
    heads = ("Formula", "Fitted to") if full else ("Fitted on",)
    grid = table("Law", "Year", "Grade", *heads, numbers=(1,), first_to_go=(4, 1))
    for card in cards:
        corpus = card.fitted_to if full else card.fitted_to.partition(";")[0]
        grid.add_row(
            card.name + (" *" if card.default else ""), str(card.year), card.grade, *([card.formula] if full else []), corpus
        )
    return Answer(
        sentence=f"{counted(len(cards), 'scaling law')}; `steptime laws NAME` shows constants, errors and sources.",
        body=[grid, footnote("* default of `steptime budget`. Grade: the least certain source of its constants.")],
        full_adds="formulas and ranges of the runs", full=full,
    )  # fmt: skip


def law_view(card: LawCard) -> RenderableType:
    """Return one law: its formula, its runs, and every constant with its source.

    Args:
        card: the law.

    Returns:
        The answer.
    """
    pairs = [("Formula", card.formula), ("Counts", card.counts + (" parameters" if card.counts != "compute" else "")),
             ("Fitted to", card.fitted_to), ("Other inputs", ", ".join(card.takes) or "none")]  # fmt: skip
    if card.lacks:
        pairs.append(("Missing", ", ".join(card.lacks) + ": set them in a copy of its file"))
    rows = []
    for name, value in card.constants.items():
        source, error = card.figures[f"constants.{name}"], card.errors.get(name)
        rows.append(
            (name, f"{value:g}" + (f" ± {error:g}" if error is not None else ""), source.grade, source.date, source.url)
        )
    warnings = []
    if card.errors and not card.drawn_together:
        warnings = ["correlations of its errors are not published, so budgets by this law have no range"]
    elif not card.errors and not card.lacks:
        warnings = ["errors of its constants are not published, so budgets by this law have no range"]
    return Answer(
        sentence=f"{card.name}: {card.title} ({card.year})",
        body=[facts(pairs), *([sourced("Constant", rows)] if rows else [])], warnings=warnings, files="", full=True,
    )  # fmt: skip


def losses_view(comparison: Losses, *, full: bool = False) -> RenderableType:
    """Return the losses that laws predict for a model.

    Args:
        comparison: the loss by each law.
        full: whether to show laws that predict no loss.

    Returns:
        The answer.
    """
    rows = [estimate for estimate in comparison.losses if full or math.isfinite(estimate.loss)]
    grid = table(
        "Law", "Loss [nats/token]", "Tokens / optimal", "Extrapolation beyond its runs",
        *(["Best split of the same compute"] if full else []),
        numbers=(1, 2),
    )  # fmt: skip
    for estimate in rows:
        best = f"{show(estimate.best_params)} on {show(estimate.best_tokens)}" if math.isfinite(estimate.best_params) else "-"
        loss = f"{estimate.loss:.2f}" if math.isfinite(estimate.loss) else "-"
        beyond = estimate.reason or in_beyond(estimate.beyond)
        grid.add_row(estimate.law, loss, _times(estimate.over_own), beyond, *([best] if full else []))
    return Answer(
        sentence=_losses_sentence(comparison),
        body=[grid, footnote("Tokens / optimal: training tokens / compute-optimal tokens of this law for the parameters.")],
        full_adds="laws that predict no loss, best split of the compute",
        full=full,
    )


def _losses_sentence(comparison: Losses) -> str:
    """Say the loss by one law, and that losses of other laws are not comparable with it."""
    ratio = f"{in_digits(comparison.losses[0].over_chinchilla)}x the rule of thumb of 20 tokens per parameter"
    losses = {estimate.law: estimate.loss for estimate in comparison.losses if math.isfinite(estimate.loss)}
    if not losses:
        return f"{comparison.words}; the tokens are {ratio}."
    law = LEADING_LAW if LEADING_LAW in losses else next(iter(losses))
    model = f"{show(comparison.params)} parameters on {show(comparison.tokens)} tokens"
    text = f"{model}: loss {losses[law]:.3g} nats per token by the law {law}; the tokens are {ratio}."
    if len(losses) > 1:
        span = f"{min(losses.values()):.3g} to {max(losses.values()):.3g}"
        text += f" {len(losses)} laws give {span}, but do not compare them: each has its own corpus and tokenizer."
    return text


def board_view(board: MoeBoard, *, width: int, full: bool = False) -> RenderableType:
    """Return mixtures of experts compared with dense models.

    Args:
        board: a row for each law and number of experts.
        width: columns of the terminal.
        full: whether to show every number of experts, and the runs of each law.

    Returns:
        The answer.
    """
    laws = list(dict.fromkeys(row.law for row in board.rows))
    cheapest = [min((row for row in board.rows if row.law == law), key=lambda row: row.cost_over_dense) for law in laws]
    grid = table(
        "Law", "Experts", "Dense of equal loss", "Gain", "USD/Mtok", "Over dense", "B* = R σ", "Total", "Chips",
        numbers=range(1, 9), first_to_go=(8, 7, 6),
    )  # fmt: skip
    for law in laws if full else []:
        _add_rows(grid, [row for row in board.rows if row.law == law], cheapest)
        grid.add_section()
    if not full:
        _add_rows(grid, cheapest, [])
    # gains far outside the runs of a law are no advice: they are named as a warning only
    far = [row.law for row in cheapest if row.gain > MAX_GAIN]
    warnings = [f"{', '.join(far)}: gains above {MAX_GAIN:g}x are far outside the runs that it was fitted to"] if far else []
    warnings += [
        f"{law}: experts no longer help from {show(size)} parameters on, known to a factor of 3 at best"
        for law, size in board.vanishing.items()
    ]
    best = [f"{row.experts:g} by {row.law} ({_times(row.cost_over_dense)})" for row in cheapest if row.gain <= MAX_GAIN]
    return Answer(
        sentence=f"Cheapest number of experts for {show(board.active)} active parameters on {show(board.tokens)} tokens: "
        f"{', '.join(best)}, with cost relative to a dense model of equal loss.",
        conditions=f"{board.weight_format} on {board.system} (R = {board.balance:.0f}), {board.batch:,.0f} sequences.",
        body=[
            grid,
            footnote("USD/Mtok: of output at the roofline, without the KV cache. Chips: by memory only."),
            *_gain_chart(board, width),
        ],
        details=[section("Runs of each law", [facts(board.fitted.items())])], warnings=warnings,
        full_adds="all numbers of experts, runs of each law", full=full,
    )  # fmt: skip


def _add_rows(grid: Grid, rows: Sequence[MoeRow], marked: Sequence[MoeRow]) -> None:
    for row in rows:
        cells = [row.law, f"{row.experts:g}", show(row.equivalent), _times(row.gain), write_usd(row.usd_per_million_tokens),
                 _times(row.cost_over_dense), f"{row.optimal_batch:,.0f}", show(row.total_params),
                 f"{row.chips:,.0f}"]  # fmt: skip
        grid.add_row(*cells, style="green" if row in marked else None)


def _gain_chart(board: MoeBoard, width: int) -> list[RenderableType]:
    """Return gain against experts, a mark for each law."""
    rows = [row for row in board.rows if row.gain <= MAX_GAIN]
    counts = [row.experts for row in rows]
    if len(set(counts)) < 2:
        return []
    chart = figure(room(width), 12)
    top = max(row.gain for row in rows)
    chart.set_x_limits(0.0, float(np.log10(max(counts))) + 0.1)
    chart.set_y_limits(0.0, float(np.log10(max(top, 2.0))) + 0.05)
    label(chart, "experts", "dense size / active", width)
    legend = Text()
    for position, law in enumerate(dict.fromkeys(row.law for row in rows)):
        mine = [row for row in rows if row.law == law]
        mark, colour = MARKS[position % len(MARKS)], COLOURS[position % len(COLOURS)]
        chart.scatter([np.log10(row.experts) for row in mine], [np.log10(row.gain) for row in mine], lc=colour, marker=mark)
        legend.append(f"{mark} {law}   ", style=colour)
    picture = render_chart(chart, Ticks(plain), Ticks("{:g}x".format))
    return [section("Parameters of the dense model of equal loss over active parameters", [picture, legend])]


def _ratio(value: float) -> str:
    return f"{value:,.2f}x" if math.isfinite(value) else "-"


def _times(value: float) -> str:
    return f"{in_digits(value)}x" if math.isfinite(value) else "-"


# --- RL -----------------------------------------------------------------------------------------------------------------


def rl_view(step: RlStep, *, width: int, full: bool = False) -> RenderableType:
    """Return a step of RL and its phases.

    Args:
        step: the step.
        width: columns of the terminal.
        full: whether to show all warnings.

    Returns:
        The answer.
    """
    output_tokens = step.rollouts * step.output
    kind = (
        "on policy: all chips alternate between rollout and training"
        if step.on_policy
        else f"one step off policy: {step.rollout_chips:,} chips for rollouts, the others train"
    )
    tail = {"  of it, slowest tenth": step.tail} if step.tail > MIN_SHARE * step.total else {}
    phases = {"Rollout": step.rollout, **tail, "Log-probabilities": step.log_probs,
              "Training": step.training, "Weight transfer": step.refit}  # fmt: skip
    grid = table("Phase", "Time", "Share of the step", "", numbers=(1, 2), first_to_go=(3,))
    for name, value in phases.items():
        grid.add_row(
            name,
            show(value, "s"),
            f"{value / step.total:.{0 if value >= 0.01 * step.total else 1}%}",
            bar(value / step.total, max(8, min(40, width - NARROW)), "green"),
        )
    low, high = PUBLISHED_STEPS
    limits = "rewards, the environment and engine starts are left out"
    cost, rent = "", ""
    if math.isfinite(step.usd):
        cost = f" and costs at least {money(step.usd)}, {money(step.usd / output_tokens * 1e6)} per million of its "
        cost += f"{show(output_tokens)} output tokens"
        rent = f" Rent: {step.rent * HOUR:.2f} USD per chip-hour."
    return Answer(
        sentence=f"One RL step takes at least {show(step.total, 's')}{cost}. Published steps took {low:g} to {high:g} times as "
        "long as computed.",
        conditions=f"{step.rollouts:,} answers of {step.model} on {step.chips:,} chips of {step.system}, {kind}; rollout "
        f"replicas of {step.layout}; training at {step.mfu:.1%} MFU (bf16).{rent}",
        body=[grid], warnings=[*step.notes, limits], files="", full=full,
    )  # fmt: skip
