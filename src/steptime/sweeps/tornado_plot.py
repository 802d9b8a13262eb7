r"""One input at a time: the change of an answer if one input takes its low or high value, and the others their base.

Let $\Delta_i = y(h_i) - y(l_i)$ be the swing of input $i$, and $k_i$ the standard deviations in half of its range (1.645, or
$\sqrt 3$ for a uniform range). The variance of the answer is approximately the sum over single inputs,

$$ \sigma_i = \frac{|\Delta_i|}{2 k_i}, \qquad \text{share}_i = \frac{\sigma_i^2}{\sum_j \sigma_j^2} $$

If all answers are above 0, as for costs, times and rates, $y$ is the logarithm of the answer: products of inputs become sums.
The result is exact if $y$ is linear in independent inputs. A swing ends at a missed limit (`slo_cliffs`): values beyond it are
another question, and no variance. For products and thresholds use Sobol's indices (`sobol`).

Plot of a sensitivity: swings as bars around the base answer, and shares of the variance next to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steptime.errors import InputError
from steptime.number_checks import Array
from steptime.picture_files import COLOURS, save_picture
from steptime.sweeps.input_distribution import Unsure
from steptime.sweeps.sensitivity_result import written
from steptime.units import in_digits

if TYPE_CHECKING:
    from steptime.sweeps.sensitivity_result import Sensitivity, Swing


def points(inputs: Sequence[Unsure]) -> dict[str, Array]:
    """Return the values of all inputs at all points of the analysis.

    Args:
        inputs: The uncertain inputs.

    Returns:
        Values by input, of shape (1 + 2 inputs,): all inputs at their base, then each at its low and its high value.

    >>> parameter = Unsure(name="a", description="a", low=1.0, base=2.0, high=3.0, basis="")
    >>> points([parameter])["a"].tolist()
    [2.0, 1.0, 3.0]
    """
    columns = {}
    for position, parameter in enumerate(inputs):
        column = np.full(1 + 2 * len(inputs), parameter.base)
        column[1 + 2 * position : 3 + 2 * position] = parameter.ends
        columns[parameter.name] = column
    return columns


def logged(*answers: Array) -> tuple[Array, ...]:
    """Return the logarithms of answers; the answers themselves if one is not above 0.

    Args:
        *answers: Arrays of any shape.

    Returns:
        Arrays of the same shapes.

    >>> logged(np.array([1.0, np.e]))[0].tolist(), logged(np.array([-1.0, 2.0]))[0].tolist()
    ([0.0, 1.0], [-1.0, 2.0])
    """
    if any(np.any(answer <= 0) for answer in answers):
        return answers
    return tuple(np.log(answer) for answer in answers)


def deviations(low: Array, high: Array, halves: Array) -> Array:
    """Return the standard deviation of an answer that each input makes by itself.

    Args:
        low: Answers at the low ends, of shape (inputs,).
        high: Answers at the high ends, of shape (inputs,).
        halves: Standard deviations in half of each range, of shape (inputs,).

    Returns:
        Standard deviations of shape (inputs,); NaN if an end has no answer.

    >>> deviations(np.array([1.0]), np.array([4.29]), np.array([1.645])).round(6).tolist()
    [1.0]
    """
    deviation: Array = np.abs(high - low) / 2 / halves
    return deviation


def shares(sigmas: Array) -> Array:
    """Return the share of each standard deviation in the sum of variances.

    Args:
        sigmas: Standard deviations of shape (inputs,); NaN if unknown.

    Returns:
        Shares of shape (inputs,); 0 for NaN.

    >>> shares(np.array([3.0, 4.0, np.nan])).tolist()
    [0.36, 0.64, 0.0]
    """
    squares = np.square(np.nan_to_num(sigmas))
    total = squares.sum()
    share: Array = squares / total if total > 0 else squares
    return share


def correlated(signed: Mapping[str, float], names: Sequence[str], covariance: Array) -> float:
    r"""Return the variance of correlated inputs, divided by that of independent ones.

    The ratio is $s^T R s / s^T s$ with the correlations $R$.

    Args:
        signed: Change of the answer per standard deviation of each input, with its sign.
        names: Names of the rows of `covariance`.
        covariance: Covariance of the inputs, of shape (names, names).

    Returns:
        The ratio; 1 if the inputs are independent, or have no effect.

    >>> correlated({"a": 1.0, "b": 1.0}, ["a", "b"], np.array([[1.0, -0.5], [-0.5, 1.0]]))
    0.5
    """
    s = np.array([signed.get(name, 0.0) for name in names])
    root = np.sqrt(np.diagonal(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.nan_to_num(covariance / np.outer(root, root))
    independent_variance = float(s @ s)
    return float(s @ correlation @ s) / independent_variance if independent_variance > 0 else 1.0


# Largest number of bars.
MAX_BARS: Final = 15
# Colour of the total index.
TOTAL: Final = "#BBBBBB"
STYLE: Final[Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "svg.fonttype": "none",
    "figure.constrained_layout.use": True, "svg.hashsalt": "steptime", "hatch.linewidth": 0.6,
}  # fmt: skip

# Place of the legends: above each panel.
ABOVE: Final[Any] = {"bbox_to_anchor": (0.0, 1.0), "ncols": 2, "fontsize": 8, "frameon": False, "borderaxespad": 0.2}


def plot(analysis: Sensitivity, path: str) -> None:
    """Write a plot of the swings to a file.

    Args:
        analysis: Result of `sensitivity`.
        path: File with the ending .svg, .png or .pdf.
    """
    save_picture(path, lambda: draw_figure(analysis))


def draw_figure(analysis: Sensitivity) -> Any:
    """Draw the swings and the shares of the variance.

    Args:
        analysis: Result of `sensitivity`.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: If no input changes the answer.
    """
    import matplotlib
    from matplotlib.figure import Figure

    bars = analysis.mattering[:MAX_BARS]
    if not bars:
        raise InputError("plot: no input changes the answer, so that there is nothing to draw; give wider ranges")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 1.6 + 0.34 * len(bars)))
        swings, share_axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        _swings(swings, analysis, bars)
        _shares(share_axes, analysis, bars)
        figure.suptitle(_title(analysis), fontsize=10.5, x=0.01, ha="left")
    return figure


def _title(analysis: Sensitivity) -> str:
    names = [str(getattr(value, "name", value)) for key in ("model", "system") if (value := analysis.fixed.get(key))]
    fixed_texts = [
        f"{key} {in_digits(float(value), 4) if isinstance(value, int | float) else getattr(value, 'name', value)}"
        for key, value in analysis.fixed.items()
        if key not in ("model", "system", "catalog")
    ]
    words = f"{analysis.question}: {', '.join([*names, *fixed_texts])}" if names or fixed_texts else analysis.question
    return words if len(words) <= 100 else words[:97] + "..."


def _swings(place: Any, analysis: Sensitivity, bars: list[Swing]) -> None:
    """Draw one bar per input, from its answer at the low end to that at the high end."""
    from matplotlib.patches import Patch

    for row, bar in enumerate(bars):
        # Hatching distinguishes the two ends without colour.
        for end, colour, hatch, value, side in (
            (bar.at_met[0], COLOURS[0], "", bar.feasible_range[0], bar.at_met[1]),
            (bar.at_met[1], COLOURS[4], "////", bar.feasible_range[1], bar.at_met[0]),
        ):  # fmt: skip
            if not math.isfinite(end):
                continue
            place.barh(
                row, end - analysis.base, left=analysis.base, height=0.62, color=colour, hatch=hatch, edgecolor="white", lw=0
            )

            # The value of the input stands outside its bar.
            outward = end > analysis.base if end != analysis.base else side <= analysis.base
            place.annotate(
                written(value, bar.unit), (end, row), xytext=(3 if outward else -3, 0), textcoords="offset points",
                fontsize=7, va="center", ha="left" if outward else "right", color="#444444",
            )  # fmt: skip
    place.axvline(analysis.base, color="black", lw=0.9)
    place.set_yticks(range(len(bars)), [bar.name for bar in bars])
    place.invert_yaxis()
    place.margins(x=0.17)
    place.grid(axis="x", alpha=0.3)
    place.set_xlabel(
        f"{analysis.answer.replace('_', ' ').replace('usd', 'USD')}" + (f" [{analysis.unit}]" if analysis.unit else "")
        + f"; base {written(analysis.base, analysis.unit)}"
    )  # fmt: skip
    low = Patch(color=COLOURS[0], label="input at its low")
    high = Patch(facecolor=COLOURS[4], hatch="////", edgecolor="white", lw=0, label="input at its high")
    place.legend(handles=[low, high], loc="lower left", **ABOVE)


def _shares(place: Any, analysis: Sensitivity, bars: list[Swing]) -> None:
    """Draw the shares of the variance: both indices, or shares from the swings."""
    rows = range(len(bars))
    if not analysis.samples:
        place.barh(rows, [100 * bar.share for bar in bars], height=0.62, color=COLOURS[2])
        place.set_xlabel("% of the variance")
    else:
        # First and total index of an input lie side by side, each with its 90 % range.
        for offset, name, colour in ((-0.17, "first", COLOURS[2]), (0.17, "total", TOTAL)):
            values = [100 * (getattr(bar, name) or 0.0) for bar in bars]
            ends = [getattr(bar, f"{name}_range") or (0.0, 0.0) for bar in bars]
            errors = [
                [max(value - 100 * end[0], 0.0) for value, end in zip(values, ends, strict=True)],
                [max(100 * end[1] - value, 0.0) for value, end in zip(values, ends, strict=True)],
            ]
            place.barh([row + offset for row in rows], values, height=0.32, color=colour, xerr=errors, label=name,
                       error_kw={"lw": 0.8, "ecolor": "#333333"})  # fmt: skip
        place.legend(loc="lower left", **ABOVE)
        place.set_xlabel("% of the variance")
    place.grid(axis="x", alpha=0.3)
    place.set_xlim(left=0)
    place.tick_params(axis="y", length=0)
