"""Plots of a model sizing, with the curves and the open models that they show.

The plots are the lifetime cost by size at equal loss, contours of the loss, and the frontier of equal loss. They also show open
models with their published training tokens, and experts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from steptime import picture_files
from steptime.blackboard.training_compute import overtraining
from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import Reader
from steptime.catalog.schema import TrainedListEntry, validated
from steptime.errors import InputError, UnknownName, install_hint
from steptime.models.model import active_parameters, total_parameters
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.result_base import unit
from steptime.scaling.lifetime_compute import Bill, Demand, lifetime_bill
from steptime.scaling.model_sizing import Budget
from steptime.scaling.moe_vs_dense import MoeBoard, moe_board
from steptime.scaling.scaling_laws import LawLike, load_law, loss, tokens_for
from steptime.units import show

# Factor between the best size and the ends of a curve.
SPAN: Final = 8.0
POINTS: Final = 121


def cost_curve(law: LawLike, demand: Demand, at_loss: float, around: float, **inputs: float) -> Bill:
    """Return the lifetime cost of models of equal loss around the best size.

    Sizes go from the best size over `SPAN` to the best size times `SPAN`.

    Args:
        law: Scaling law, or its name or path.
        demand: Served tokens and RL over the lifetime.
        at_loss: Loss to reach [nats per token].
        around: Parameters of the best size.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Costs by size, infinite where a size is too small.

    >>> curve = cost_curve("hoffmann", Demand(served=200e12), 1.8046, 104.9e9)
    >>> curve.params.size, bool(np.isinf(curve.total[0]))
    (121, True)
    """
    scaling_law = load_law(law)
    params = np.geomspace(around / SPAN, around * SPAN, POINTS)
    return lifetime_bill(demand, params, np.asarray(tokens_for(scaling_law, params, at_loss, **inputs)), at_loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contours:
    """Losses over parameters (rows) and tokens (columns)."""

    params: Array
    tokens: Array
    losses: Array


def contours(law: LawLike, around: tuple[float, float], **inputs: float) -> Contours:
    """Return losses within a factor of 100 around parameters and tokens.

    Args:
        law: Scaling law, or its name or path.
        around: Parameters and tokens at the center.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Losses, (61, 61).

    >>> found = contours("epoch", (100e9, 10e12))
    >>> found.losses.shape, bool((np.diff(found.losses, axis=0) < 0).all())
    ((61, 61), True)
    """
    params = np.geomspace(around[0] / 100, around[0] * 100, 61)
    tokens = np.geomspace(around[1] / 100, around[1] * 100, 61)
    return Contours(params=params, tokens=tokens, losses=np.asarray(loss(law, params[:, None], tokens, **inputs)))


def frontier(law: LawLike, at_loss: float, around: float, **inputs: float) -> tuple[Array, Array]:
    """Return training FLOP and serving FLOP per token of models of equal loss.

    Serving takes 2 N FLOP per token. The smallest model comes first. Models larger than the training optimum are left out,
    because they cost more in training and in serving.

    Args:
        law: Scaling law, or its name or path.
        at_loss: Loss to reach [nats per token].
        around: Parameters at the center of the sizes.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Training FLOP, and serving FLOP per token.

    >>> training, serving = frontier("hoffmann", 1.8046, 104.9e9)
    >>> bool((np.diff(training) < 0).all() and (np.diff(serving) > 0).all())
    True
    """
    curve = cost_curve(law, Demand(), at_loss, around, **inputs)
    training = np.asarray(curve.training)
    is_finite = np.isfinite(training)
    best = int(np.argmin(np.where(is_finite, training, np.inf)))
    on_frontier = is_finite & (np.arange(training.size) <= best)
    return training[on_frontier], 2 * np.asarray(curve.params)[on_frontier]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """An open model: active and total parameters, and published training tokens."""

    model: str = field(metadata=unit("", "model"))
    active: float = field(metadata=unit("", "active parameters"))
    total: float = field(metadata=unit("", "total parameters"))
    tokens: float = field(metadata=unit("tokens", "training tokens"))
    over_chinchilla: float = field(metadata=unit("", "training tokens over 20 per active parameter"))
    url: str = field(metadata=unit("", "source of the training tokens"))
    grade: str = field(metadata=unit("", "grade of the source"))


def open_models(catalog: str | os.PathLike[str] | None = None) -> tuple[Trained, ...]:
    """Return the open models with published training tokens, most overtrained first.

    Args:
        catalog: Folder of the catalog; the one of the package if None.

    Returns:
        Models.

    >>> llama = next(one for one in open_models() if one.model == "meta-llama/Meta-Llama-3-8B")
    >>> round(llama.over_chinchilla)
    93
    """
    return tuple(sorted(_every(catalog), key=lambda model: -model.over_chinchilla))


def _every(catalog: str | os.PathLike[str] | None) -> Iterator[Trained]:
    names: set[str] = set()
    for path in files("trained", catalog).values():
        entry = validated(TrainedListEntry, path)
        reader = Reader(path, entry.sources)
        for position, published in enumerate(entry.trained):
            place = f"trained.{position}.tokens"
            tokens = reader.number(place, published.tokens, "")
            model = load_model(published.model, catalog=catalog)
            # Several files may list the same model; the first one counts.
            if model.name in names:
                continue
            names.add(model.name)
            active = float(active_parameters(model))
            figure = reader.figures[place]
            yield Trained(
                model=model.name,
                active=active,
                total=float(total_parameters(model)),
                tokens=tokens,
                over_chinchilla=float(overtraining(tokens, active)),
                url=figure.url,
                grade=figure.grade,
            )


MARKS: Final = ("o", "s", "^", "D", "v", "P")
# One colour for each mark.
COLOURS: Final = picture_files.COLOURS[: len(MARKS)]
# Upper end of the plot over the minimum cost.
HEADROOM: Final = 5.0
# Larger gains of mixtures are extrapolations and stay out of the plot.
MOST_GAIN: Final = 100.0
# Upper end of a frontier over the training of the choice.
FARTHEST: Final = 100.0
# Open models with a label.
MAX_LABELS: Final = 12


def draw(budget: Budget, kind: str, path: str) -> None:
    """Draw a plot of a model sizing to a file.

    Args:
        budget: Result of `budget`.
        kind: Kind of plot: cost, contours, open, experts or frontier.
        path: File to write.

    Raises:
        UnknownName: If there is no such kind.
        InputError: If matplotlib is not installed.
        DataFileError: If the file cannot be written.
    """
    if kind not in KINDS:
        raise UnknownName("picture", kind, KINDS, f"Known: {', '.join(KINDS)}.")
    _save(lambda axes: KINDS[kind](axes, budget), path)


def draw_board(board: MoeBoard, path: str) -> None:
    """Draw the dense equivalents of mixtures against the number of experts.

    Args:
        board: Result of `moe_board`.
        path: File to write.

    Raises:
        InputError: If matplotlib is not installed.
        DataFileError: If the file cannot be written.
    """
    _save(lambda axes: _board(axes, board), path)


def _save(paint: Callable[[Any], None], path: str) -> None:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(f"plots need matplotlib: {install_hint('plot')}") from None
    with matplotlib.rc_context(picture_files.STYLE):
        figure = Figure(figsize=(7.5, 4.8))
        paint(figure.subplots())
        picture_files.replace_file(path, lambda place: figure.savefig(place, dpi=160))


def _cost(axes: Any, budget: Budget) -> None:
    best = budget.choice
    curve = cost_curve(best.scaling_law, budget.demand, best.loss, best.params, **budget.law_inputs)
    axes.loglog(curve.params, curve.total, color="black", linewidth=2, label="total")
    for name, values, colour, dash in zip(
        ("training, 6 N D", "RL", "serving, 2 N D η"), (curve.training, curve.rl, curve.serving), COLOURS, ("-", "-.", "--"),
        strict=False,
    ):  # fmt: skip
        if np.any(np.asarray(values) > 0):
            axes.loglog(curve.params, np.broadcast_to(values, np.shape(curve.params)), dash, color=colour, label=name)
    axes.plot(best.params, best.total_flop, "D", color="black", label=f"minimum: {show(best.params)}")
    # Without served tokens there is no equality.
    if np.isfinite(best.equality_params):
        axes.plot(best.equality_params, best.equality_cost * best.total_flop, "o", color=COLOURS[4],
                  label=f"equality: {show(best.equality_params)}")  # fmt: skip
    axes.set(xlabel="parameters", ylabel="training-equivalent FLOP", ylim=(best.total_flop / 30, best.total_flop * HEADROOM),
             title=f"Lifetime cost at a loss of {best.loss:.4f} by {best.law}")  # fmt: skip
    axes.legend(frameon=False)


def _contours(axes: Any, budget: Budget) -> None:
    best = budget.choice
    grid = contours(best.scaling_law, (best.params, best.tokens), **budget.law_inputs)
    axes.set(xscale="log", yscale="log")
    lines = axes.contour(grid.tokens, grid.params, grid.losses, levels=14, cmap="cividis")
    axes.clabel(lines, fmt="%.3g", fontsize=8)
    # Lines of equal training compute.
    for share in (0.01, 0.1, 1.0, 10.0):
        compute = best.training_flop * share
        axes.plot(grid.tokens, compute / 6 / grid.tokens, ":", color="grey", linewidth=1)
        axes.annotate(
            f"{compute:.1g} FLOP", (grid.tokens[8], compute / 6 / grid.tokens[8]), fontsize=7, color="grey", clip_on=True
        )
    axes.plot(best.tokens, best.params, "D", color="black", label="minimum cost")
    axes.plot(grid.tokens, grid.tokens / 20, "--", color=COLOURS[1], linewidth=1, label="20 tokens per parameter")
    axes.set(xlabel="training tokens", ylabel="parameters", title=f"Loss by {best.law}",
             xlim=(grid.tokens[0], grid.tokens[-1]), ylim=(grid.params[0], grid.params[-1]))  # fmt: skip
    axes.legend(frameon=False)


def _open(axes: Any, budget: Budget) -> None:
    models = open_models()
    for position, grade in enumerate(dict.fromkeys(model.grade for model in models)):
        mine = [model for model in models if model.grade == grade]
        sizes, ratios = [model.active for model in mine], [model.over_chinchilla for model in mine]
        axes.loglog(sizes, ratios, MARKS[position], color=COLOURS[position],
                    label=f"open models, tokens {grade}")  # fmt: skip
    for model in models[:: max(1, len(models) // MAX_LABELS)]:
        axes.annotate(model.model.rpartition("/")[2], (model.active, model.over_chinchilla), fontsize=7,
                      textcoords="offset points", xytext=(4, 3))  # fmt: skip
    for position, choice in enumerate(budget.choices):
        axes.loglog(choice.params, choice.over_chinchilla, "D", color="black", markersize=5,
                    label="this budget, by law" if not position else None)  # fmt: skip
    axes.axhline(1.0, color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="active parameters", ylabel="tokens over 20 per parameter", title="Overtraining of models")
    axes.legend(frameon=False)


def _experts(axes: Any, budget: Budget) -> None:
    _board(axes, moe_board(budget.choice.params, tokens=budget.choice.tokens))


def _board(axes: Any, board: MoeBoard) -> None:
    for position, law in enumerate(dict.fromkeys(row.law for row in board.rows)):
        mine = [row for row in board.rows if row.law == law]
        rows = [row for row in mine if row.gain <= MOST_GAIN]
        colour, label = COLOURS[position % len(COLOURS)], law if len(rows) == len(mine) else f"{law}, to {MOST_GAIN:g}x"
        axes.loglog([row.experts for row in rows], [row.equivalent for row in rows], marker=MARKS[position % len(MARKS)],
                    color=colour, linestyle="-" if len(mine) > 2 else "none", label=label)  # fmt: skip
        best = min(mine, key=lambda row: row.cost_over_dense)
        if best in rows:
            axes.plot(best.experts, best.equivalent, "o", markersize=13, fillstyle="none", color=colour)
    axes.set_xscale("log", base=2)
    axes.axhline(board.active, color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="experts", ylabel="dense parameters of equal loss",
             title=f"{show(board.active)} active parameters; circle: cheapest at a batch of {board.batch:,.0f}")  # fmt: skip
    axes.legend(frameon=False)


def _frontier(axes: Any, budget: Budget) -> None:
    for position, choice in enumerate(budget.choices):
        training, serving = frontier(choice.scaling_law, choice.loss, choice.params, **budget.law_inputs)
        in_range = training <= FARTHEST * choice.training_flop
        # USD per training-equivalent FLOP.
        usd = choice.usd / choice.total_flop
        million = budget.demand.eta * usd * 1e6
        axes.loglog(
            training[in_range] * usd, serving[in_range] * million, color=COLOURS[position % len(COLOURS)], label=choice.law
        )
        axes.plot(choice.training_usd, 2 * choice.params * million, "D", color=COLOURS[position % len(COLOURS)])
    axes.set(
        xlabel="training [USD]",
        ylabel="serving [USD per million tokens]",
        title=f"Equal loss on {budget.system}: training against serving; minimum cost marked",
    )
    axes.legend(frameon=False)


KINDS: Final[Mapping[str, Callable[[Any, Budget], None]]] = {
    "cost": _cost, "contours": _contours, "open": _open, "experts": _experts, "frontier": _frontier,
}  # fmt: skip
"""Plots of a model sizing by kind."""
