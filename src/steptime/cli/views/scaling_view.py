"""Text of `steptime budget`, `steptime laws` and `steptime rl`: model sizes, scaling laws, and a step of RL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType

from steptime.cli.views.terminal_plots import Axis, Curve, draw
from steptime.cli.views.widgets import Answer, Grid, bar_table, facts, footnote, listing, ranged, section, sourced, table, write
from steptime.describe.law_summary import LawCard, LawTable
from steptime.hardware.rental_prices import usd as write_usd
from steptime.scaling.compute_optimal import Losses
from steptime.scaling.model_sizing import Budget, Choice
from steptime.scaling.moe_vs_dense import MoeBoard, MoeRow
from steptime.scaling.rl_step import RlStep
from steptime.scaling.scaling_laws import in_beyond
from steptime.scaling.sizing_on_system import MachineBudget
from steptime.scaling.sizing_plots import cost_curve
from steptime.training.training_evidence import MEASURED
from steptime.units import DAY, HOUR, counted, in_digits, in_span, percent, show

PARTS = (("training", "green", "o"), ("RL", "magenta", "+"), ("serving", "cyan", "x"))
MARKS = ("o", "x", "+", "#", "%", "@")
COLOURS = ("green", "cyan", "yellow", "magenta", "red", "blue")
# Law of a predicted loss, as in budgets.
LEADING_LAW = "epoch"
# Gain of a chart at most: higher gains are far outside the runs that a law was fitted to.
MAX_GAIN = 100.0
# Columns up to which phases have no bars; share of the RL step from which the tail is shown.
NARROW, MIN_SHARE = 60, 1e-3
# Share of the RL step from which the first sentences name the overhead.
LARGE_OVERHEAD = 0.2
# Saving of an unmeasured layout from which it is shown.
SMALLEST_SAVING = 0.005
# Meaning of columns that a wide terminal shows.
LAW_COLUMNS = {
    "Half": "Half, twice: relative cost at the same loss with half or twice the parameters (-: no number of tokens reaches "
    "it).",
    "Tokens / optimal": "Tokens / optimal: training tokens / compute-optimal tokens of this law.",
    "Equal": "Equal: relative cost where training costs as much as RL and serving.",
}


# --- budget -------------------------------------------------------------------------------------------------------------


def budget_view(budget: Budget, *, width: int) -> Answer:
    """Return the model size and training tokens of lowest lifetime cost.

    Args:
        budget: A choice by each law, and by the machine if one was named.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    best, machine = budget.choice, budget.machine
    laws = _laws_table(budget)
    # Only the columns that fit are explained.
    shown_heads = {laws.columns[position] for position in laws.widths(width)}
    meaning = footnote(" ".join(words for head, words in LAW_COLUMNS.items() if head in shown_heads))
    bill = [_bill_table(budget, best), footnote(_bill_meaning(budget, best))]
    chart = _cost_chart(budget, best, width) if budget.demand.weight else None
    beyond = [f"{choice.law}: {in_beyond(choice.beyond, choice.scaling_law)}." for choice in budget.choices if choice.beyond]
    extrapolation = section("Extrapolation beyond the runs of each law", beyond)
    traffic = "the ranges hold traffic, lifetime and --eta fixed; `steptime sensitivity budget` with these options varies them"
    fixed = [traffic] if budget.demand.served and machine is None else []
    # A named machine answers in money; the closed form becomes a detail.
    body: list[RenderableType | None] = [laws, meaning, *bill, chart]
    details: list[RenderableType | None] = [extrapolation]
    if machine is not None:
        body = [_machine_table(machine, budget), laws, meaning, chart]
        details = [*bill, section(_served(machine), [_sizes_table(machine)]), extrapolation]
    return Answer(
        sentence=_budget_sentence(budget),
        conditions=f"Target: {budget.target.words}. Scaling law: {best.law}.{_demand_in_words(budget)}",
        body=body, details=details, warnings=[*budget.warnings, *fixed, *(machine.notes if machine is not None else ())],
        full_adds=[
            "bill by law, sizes that were planned" if machine is not None else "",
            "extrapolation of each law" if beyond else "",
        ],
    )  # fmt: skip


def _budget_sentence(budget: Budget) -> str:
    """Say how many parameters and tokens are cheapest, how far laws disagree, and its cost."""
    best, machine = budget.choice, budget.machine
    ratio = in_digits(best.over_chinchilla)
    mixed = f" ({show(best.total_params)} in total)" if best.total_params > 1.01 * best.params else ""
    text = f"Train {show(best.params)} parameters{mixed} on {show(best.tokens)} tokens: "
    text += f"{ratio}x the Chinchilla-optimal 20 tokens per parameter."
    if machine is None and math.isfinite(best.usd):
        text += f" Lifetime cost: {money(best.usd)} ({_bill_in_words(best)})."
    if machine is not None:
        # A named machine gives the answer; the closed form stands second, with the reason for another total.
        loss = f" at a loss of {machine.loss:.4f}" if not math.isnan(budget.target.usd) else ""
        text = f"On {machine.system}, train {show(machine.params)} parameters on {show(machine.tokens)} tokens{loss}: "
        text += f"{money(machine.total_usd)} over the lifetime ({_bill_in_words(machine)}). The closed form gives "
        text += f"{show(best.params)}{mixed} on {show(best.tokens)} tokens"
        text += f", {money(best.usd)}" if math.isfinite(best.usd) else ""
        text += f": it takes a served FLOP to cost {in_digits(budget.demand.eta)} training FLOP (--eta); "
        text += f"on {machine.system} it costs {in_digits(machine.eta)}."
    if budget.params_over_laws and budget.tokens_over_laws:
        spans = (f"{show(low)} to {show(high)}" for low, high in (budget.params_over_laws, budget.tokens_over_laws))
        costs = [choice.usd for choice in budget.comparable_choices]
        ends = [money(min(costs)), money(max(costs))]
        cost = f", {' to '.join(ends)}" if all(map(math.isfinite, costs)) and ends[0] != ends[1] else ""
        closed = "" if machine is None else "In closed form, "
        text += f" {closed}{len(budget.comparable_choices)} scaling laws disagree: {' parameters, '.join(spans)} tokens{cost}."
    return text


def _demand_in_words(budget: Budget) -> str:
    """Say how many tokens are served, in all and a day; "" for none."""
    served, lifetime = budget.demand.served, budget.demand.lifetime
    if not served:
        return ""
    if math.isnan(lifetime):
        return f" Served: {show(served)} tokens in all; a rate such as --tokens-served 50M/day needs --lifetime."
    daily = show(served / lifetime * DAY)
    return f" Served: {show(served)} tokens in all, {daily} a day for {show(lifetime, 's')}."


def _bill_in_words(bill: Choice | MachineBudget) -> str:
    """Return the parts of a lifetime cost."""
    parts = {"training": bill.training_usd, "RL": bill.rl_usd, "serving": bill.serving_usd}
    return ", ".join(f"{money(usd)} {name}" for name, usd in parts.items() if usd)


def _laws_table(budget: Budget) -> Grid:
    """Return a row for each law."""
    with_range = [choice.law for choice in budget.choices if choice.ranges]
    return listing(
        "Law: {law} | Parameters: {params} | Tokens: {tokens} | Tokens / 20 N: {over_chinchilla:x} | "
        "Training share: {training_share:.0%} | Half: {half_cost:ratio} | Twice: {double_cost:ratio} | "
        "Tokens / optimal: {over_own:x} | Equal: {equality_cost:ratio} | Loss: {loss:.3f}",
        budget.choices, title="By scaling law" + (f" (90 % range for {', '.join(with_range)})" if with_range else ""),
        numbers=(1, 2), first_to_go=(9, 8, 7, 5, 6),
        params=lambda choice: ranged(choice.params, choice.ranges.get("params"), "count", label=""),
        tokens=lambda choice: ranged(choice.tokens, choice.ranges.get("tokens"), "count", label=""),
    )  # fmt: skip


def _bill_meaning(budget: Budget, best: Choice) -> str:
    """Say which factor turns the FLOP of serving and RL into training-equivalent FLOP, and what a chip costs."""
    eta = budget.demand.eta
    words = ""
    if best.serving_flop:
        served = f"{best.serving_flop / eta:.3g}"
        words = f"Serving: {served} FLOP x {eta:g} (--eta), since one serving FLOP costs as much as {eta:g} training FLOP. "
    rent = f" at {budget.rent * HOUR:.2f} USD per chip-hour" if math.isfinite(budget.rent) else ""
    days = f"{budget.training_days:g} d of training (--training-days)"
    return f"{words}Chips: {budget.system}{rent}, {percent(budget.mfu)} MFU, {days}."


def _bill_table(budget: Budget, best: Choice) -> Grid:
    """Return the cost of the first law's choice, in FLOP, money and chips."""
    title = f"Lifetime cost by the law {best.law}"
    grid = table("", "Training-equivalent FLOP", "Share", "USD", "Chips", title=title, numbers=(1, 2, 3, 4))
    lifetime = f" for {budget.demand.lifetime / DAY:g} d"
    serving = _chips(best.serving_chips) + (lifetime if math.isfinite(best.serving_chips) else "")
    likely = f", {percent(1 - budget.demand.discard)} likely" if budget.demand.discard else ""
    for name, flop, usd, chips in (
        ("Training", best.training_flop, best.training_usd, f"{_chips(best.training_chips)} for {budget.training_days:g} d"),
        ("RL", best.rl_flop, best.rl_usd, "-"),
        (f"Serving{likely}", best.serving_flop, best.serving_usd, serving),
    ):
        if flop:
            grid.add_row(name, f"{flop:.3g}", percent(flop / best.total_flop), money(usd), chips)
    grid.add_section()
    grid.add_row("Total", f"{best.total_flop:.3g}", "", money(best.usd), "")
    return grid


def _chips(count: float) -> str:
    """Write a number of chips with three digits."""
    return in_digits(count) if math.isfinite(count) else "-"


def _cost_chart(budget: Budget, best: Choice, width: int) -> Group | None:
    """Return cost against parameters at equal loss, in its parts, with the minimum and the point of equality."""
    curve = cost_curve(best.scaling_law, budget.demand, best.loss, best.params, **budget.law_inputs)
    x, total, served = np.log10(curve.params), np.asarray(curve.total), np.asarray(curve.serving)
    # Small models cannot reach the loss with any number of tokens: their cost is infinite.
    finite = np.isfinite(total)
    if finite.sum() < 3:
        return None
    least_bill = float(np.log10(best.total_flop))
    low = float(np.log10(served[served > 0].min())) if (served > 0).any() else least_bill
    top = least_bill + 0.7
    curves = [Curve(x[finite], np.log10(total[finite]), "total", "white", glyph="━")]
    for (name, colour, mark), part in zip(PARTS, (curve.training, curve.rl, curve.serving), strict=True):
        values = np.broadcast_to(part, x.shape)
        visible = finite & (values > 0) & (np.log10(np.maximum(values, 1e-300)) < top)
        if visible.any():
            position = np.log10(values[visible])
            curves.append(Curve(x[visible], position, name, colour, mark, (0, 3), has_line=False))
    curves.append(Curve([math.log10(best.params)], [least_bill], "lowest", "yellow", "◆", has_line=False))
    if math.isfinite(best.equality_params):
        equality = [math.log10(best.equality_params)], [math.log10(best.equality_cost * best.total_flop)]
        curves.append(Curve(*equality, "training equals the rest", "red", "=", has_line=False))
    across = Axis("parameters", x[finite].min(), x.max())
    up = Axis("FLOP", min(low, least_bill - 1.0), top, "{:.0e}".format)
    title = f"Lifetime cost [FLOP] at a loss of {best.loss:.3f} by {best.law}"
    return section(title, [draw(curves, across, up, width)])


def _machine_table(machine: MachineBudget, budget: Budget) -> Grid:
    """Return the choice by FLOP and the choice on the machine, next to each other."""
    best, days = budget.choice, f"{machine.training_seconds / DAY:,.0f}"
    total = ("Total parameters", show(best.total_params), show(machine.total_params))
    rows = [
        ("Parameters", show(best.params), show(machine.params)),
        *([total] if best.total_params > 1.01 * best.params else []),
        ("Tokens", show(best.tokens), show(machine.tokens)),
        ("Loss", f"{best.loss:.4f}", f"{machine.loss:.4f}"),
        ("Tokens / 20 N", write(best.over_chinchilla, "x"), write(machine.tokens / machine.params / 20, "x")),
        ("MFU", percent(budget.mfu), percent(machine.mfu)),
        ("η (inference efficiency)", f"{budget.demand.eta:g}", write(machine.eta, ".2f")),
        ("Chips that train", f"{best.training_chips:,.0f}", f"{machine.training_chips:,}"),
        ("Days of training", f"{budget.training_days:g}", days),
        ("Training", money(best.training_usd), money(machine.training_usd)),
        ("RL", money(best.rl_usd), money(machine.rl_usd)),
        ("Serving", money(best.serving_usd), money(machine.serving_usd)),
        ("Total cost", money(best.usd), money(machine.total_usd)),
        ("Half the parameters", write(best.half_cost, "ratio"), write(machine.half_cost, "ratio")),
        ("Twice the parameters", write(best.double_cost, "ratio"), write(machine.double_cost, "ratio")),
    ]
    return table(f"By {best.law}", "Closed form", machine.system, rows=rows, numbers=(1, 2))


def _sizes_table(machine: MachineBudget) -> Grid:
    """Return a row for each size that was planned."""
    return listing(
        "Size: {params:count} | Width: {width:,} | Layers: {layers:,} | Chips: {chips:or -} | "
        "USD/request: {usd_per_request:USD} | Tokens: {tokens} | Training chips: {training_chips:or -} | Days: {days:,.0f} | "
        "Training: {training} | MFU: {mfu:.0%} | Serving: {serving}",
        machine.sizes, numbers=(5, 8, 10), first_to_go=(1, 2, 9),
        tokens=lambda size: write(size.tokens, "count") if math.isfinite(size.tokens) or size.training_chips else "too small",
        days=lambda size: size.training_seconds / DAY,
        training=lambda size: money(size.training_usd), serving=lambda size: money(size.serving_usd),
    )  # fmt: skip


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
    return f"${show(usd)}" if usd >= 1e6 else f"${in_digits(usd)}" if usd >= 100 else write_usd(usd)


# --- laws ---------------------------------------------------------------------------------------------------------------


def laws_view(laws: LawTable, *, full: bool) -> Answer:
    """Return the list of laws.

    Args:
        laws: The laws.
        full: Whether to show the formula of each and the range of its runs.

    Returns:
        The answer.
    """
    fitted = "Formula: {formula} | Fitted to: {fitted_to}" if full else "Fitted on: {corpus}"
    grid = listing(
        "Law: {mark} | Year: {year} | Grade: {grade} | " + fitted, laws.laws, numbers=(1,), first_to_go=(4, 1),
        mark=lambda card: card.name + (" *" if card.default else ""), corpus=lambda card: card.fitted_to.partition(";")[0],
        year=lambda card: str(card.year),
    )  # fmt: skip
    return Answer(
        sentence=f"{counted(len(laws.laws), 'scaling law')}; `steptime laws NAME` shows constants, errors and sources.",
        body=[grid, footnote("* default of `steptime budget`. Grade: that of the most uncertain source of its constants.")],
        full_adds="formulas and ranges of the runs",
    )


def law_view(card: LawCard) -> Answer:
    """Return one law: its formula, its runs, and every constant with its source.

    Args:
        card: The law.

    Returns:
        The answer.
    """
    about = facts(
        [
            ("Formula", card.formula),
            ("Counts", card.counts + (" parameters" if card.counts != "compute" else "")),
            ("Fitted to", card.fitted_to),
            ("Other inputs", ", ".join(card.takes) or "none"),
            ("Missing", f"{', '.join(card.lacks)}: set them in a copy of its file" if card.lacks else ""),
        ]
    )
    rows = []
    for name, value in card.constants.items():
        source, error = card.figures[f"constants.{name}"], card.errors.get(name)
        text = f"{value:g}" + (f" ± {error:g}" if error is not None else "")
        rows.append((name, text, source.grade, source.date, source.url))
    missing = "correlations of its errors" if card.errors else "errors of its constants"
    has_range = card.drawn_together if card.errors else card.lacks
    return Answer(
        sentence=f"{card.name}: {card.title} ({card.year})", body=[about, sourced("Constant", rows) if rows else None],
        warnings=[] if has_range else [f"{missing} are not published, so budgets by this law have no range"], files="",
        full=True,
    )  # fmt: skip


def losses_view(comparison: Losses, *, full: bool) -> Answer:
    """Return the losses that laws predict for a model.

    Args:
        comparison: The loss by each law.
        full: Whether to show laws that predict no loss.

    Returns:
        The answer.
    """
    rows = [estimate for estimate in comparison.losses if full or math.isfinite(estimate.loss)]
    template = "Law: {law} | Loss [nats/token]: {loss:.2f} | Tokens / optimal: {over_own:x} | "
    template += "Extrapolation beyond its runs: {words}" + (" | Best split of the same compute: {split}" if full else "")

    def split(estimate: Any) -> str:
        best = estimate.best_params, estimate.best_tokens
        return " on ".join(map(show, best)) if math.isfinite(best[0]) else "-"

    grid = listing(template, rows, split=split, words=lambda estimate: estimate.reason or in_beyond(estimate.beyond))
    return Answer(
        sentence=_losses_sentence(comparison),
        body=[grid, footnote("Tokens / optimal: training tokens / compute-optimal tokens of this law for the parameters.")],
        full_adds="laws that predict no loss, best split of the compute",
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
        span = in_span(min(losses.values()), max(losses.values()))
        text += f" {len(losses)} laws give {span}, but do not compare them: each has its own corpus and tokenizer."
    return text


def board_view(board: MoeBoard, *, width: int, full: bool) -> Answer:
    """Return mixtures of experts compared with dense models.

    Args:
        board: A row for each law and number of experts.
        width: Columns of the terminal.
        full: Whether to show every number of experts, and the runs of each law.

    Returns:
        The answer.
    """
    rows_by_law: dict[str, list[MoeRow]] = {}
    for row in board.rows:
        rows_by_law.setdefault(row.law, []).append(row)
    cheapest = [min(rows, key=lambda row: row.cost_over_dense) for rows in rows_by_law.values()]
    grid = listing(
        "Law: {law} | Experts: {experts:g} | Dense of equal loss: {equivalent:count} | Gain: {gain:x} | "
        "USD/Mtok: {usd_per_million_tokens:USD} | Over dense: {cost_over_dense:x} | B* = R σ: {optimal_batch:,.0f} | "
        "Total: {total_params:count} | Chips: {chips:,.0f}",
        [row for rows in rows_by_law.values() for row in rows] if full else cheapest, first_to_go=(8, 7, 6),
        style=lambda row: "green" if full and row in cheapest else None,
    )  # fmt: skip
    # A line ends the rows of each law.
    grid.sections = set(np.cumsum([len(rows) for rows in rows_by_law.values()]).tolist()) if full else set()
    # Gains far outside the runs of a law are no advice: they are named as a warning only.
    far = [row.law for row in cheapest if row.gain > MAX_GAIN]
    warnings = [f"{', '.join(far)}: gains above {MAX_GAIN:g}x are far outside the runs that it was fitted to"] if far else []
    if board.vanishing:
        ends = ", ".join(f"{show(size)} ({law})" for law, size in board.vanishing.items())
        warnings.append(f"experts no longer help from {ends} parameters on, known to a factor of 3 at best")
    warnings += board.warnings
    best = [f"{row.experts:g} by {row.law} ({write(row.cost_over_dense, 'x')})" for row in cheapest if row.gain <= MAX_GAIN]
    return Answer(
        sentence=f"Cheapest number of experts for {show(board.active)} active parameters on {show(board.tokens)} tokens: "
        f"{', '.join(best)}, with cost relative to a dense model of equal loss.",
        conditions=f"{board.weight_format} on {board.system} (R = {board.balance:.0f}), {board.batch:,.0f} sequences.",
        body=[
            grid,
            footnote("USD/Mtok: of output at the roofline, without the KV cache. Chips: by memory only."),
            _gain_chart(rows_by_law, width),
        ],
        details=[section("Runs of each law", [facts(board.fitted.items())])], warnings=warnings,
        full_adds="all numbers of experts, runs of each law",
    )  # fmt: skip


def _gain_chart(rows_by_law: Mapping[str, Sequence[MoeRow]], width: int) -> Group | None:
    """Return gain against experts, a mark for each law."""
    drawable = {law: [row for row in rows if row.gain <= MAX_GAIN] for law, rows in rows_by_law.items()}
    points = [row for rows in drawable.values() for row in rows]
    if len({row.experts for row in points}) < 2:
        return None
    curves: list[Curve] = []
    for law, rows in drawable.items():
        if rows:
            x, y = np.log10([row.experts for row in rows]), np.log10([row.gain for row in rows])
            style = COLOURS[len(curves) % len(COLOURS)], MARKS[len(curves) % len(MARKS)]
            curves.append(Curve(x, y, law, *style, has_line=False))
    across = Axis("experts", 0.0, math.log10(max(row.experts for row in points)) + 0.1)
    top = math.log10(max(2.0, *(row.gain for row in points))) + 0.05
    chart = draw(curves, across, Axis("dense size / active", 0.0, top, "{:g}x".format), width, 12)
    return section("Parameters of the dense model of equal loss over active parameters", [chart])


# --- RL -----------------------------------------------------------------------------------------------------------------


def rl_view(step: RlStep, *, width: int) -> Answer:
    """Return a step of RL and its phases.

    Args:
        step: The step.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    kind = f"one step off policy: {counted(step.rollout_chips, 'chip')} for rollouts, the others train"
    kind = "on policy: all chips alternate between rollout and training" if step.on_policy else kind
    phases = {
        "Rollout": step.rollout, "  of it, slowest tenth": step.tail, "Log-probabilities": step.log_probs,
        "Training": step.training, "Weight transfer": step.refit,
        "Overhead": step.overhead,
    }  # fmt: skip
    rows = [
        (
            name,
            show(value, "s"),
            percent(value / step.total, 0 if value >= 0.01 * step.total else 1),
            value / step.total,
            "green",
        )
        for name, value in phases.items()
        if value > MIN_SHARE * step.total or not name.startswith(" ")
    ]
    cost, rent = "", ""
    if math.isfinite(step.usd):
        output_tokens = step.rollouts * step.output
        cost = f" and costs {money(step.usd)}, {money(step.usd / output_tokens * 1e6)} per million of its "
        cost += f"{show(output_tokens)} output tokens"
        rent = f" Rent: {step.rent * HOUR:.2f} USD per chip-hour."
    overhead = ""
    if step.overhead >= LARGE_OVERHEAD * step.total:
        overhead = f" Overhead is {percent(step.overhead / step.total)} of it ({show(step.overhead, 's')})."
    overlap = "" if step.on_policy else (
        "Rollout runs at the same time as log-probabilities and training: the longer of both counts, so that shares add up to "
        "over 100 %."
    )  # fmt: skip
    options = "layouts" if step.on_policy else "layouts and splits of the chips"
    search = f"; fastest of {step.searched:,} {options}" if step.searched > 1 else ""
    mfu = f"{percent(step.mfu, 1)} MFU (bf16)"
    training = f"{step.training_layout}; {mfu}" if step.training_layout else f"{mfu}, as given"
    evidence = "published steps have this kind of rollout layout: tensor parallelism alone"
    saving = f"{step.unmeasured}: {percent(step.unmeasured_saving)} less time, if its prediction holds (--evidence any)"
    layouts = facts(
        [
            ("Rollout", step.layout + search),
            ("Training", training),
            ("Evidence", evidence if step.evidence == MEASURED else "no published step has this kind of rollout layout"),
            *([("Unmeasured", saving)] if step.unmeasured_saving >= SMALLEST_SAVING else []),
        ]
    )
    return Answer(
        sentence=f"One RL step takes {ranged(step.total, (step.low, step.high), 's')}{cost}.{overhead}",
        conditions=f"{step.rollouts:,} answers of {step.model} on {step.chips:,} chips of {step.system}, {kind}.{rent}",
        body=[
            layouts,
            bar_table(("Phase", "Time", "Share of the step", ""), rows, max(8, min(40, width - NARROW))),
            footnote(overlap),
        ],
        warnings=[
            *step.notes,
            "weight transfer: all new weights over the link of each chip"
            + ("; the training state moves to host memory and back" if step.on_policy else ""),
            "overhead: rewards, the environment and engine starts, as in published steps of two models; the range is theirs",
        ], files="",
    )  # fmt: skip
