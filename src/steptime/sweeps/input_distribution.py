r"""An input of which only a range is known: its low, base and high value, what the range rests on, and how it becomes known.

**Log-normal.** Of most inputs the base is the median, and low and high are the 5 % and 95 % points: each side of the range is
half of a log-normal distribution, as everywhere in steptime. With the standard normal $z$ and $Z = 1.645$

$$ x = b \, e^{w z / Z}, \qquad w = \log(b / l) \text{ below}, \quad \log(h / b) \text{ above} $$

**Even.** Where only the ends are known, every value between them is as likely (JCGM 100:2008, 4.3.7): rents between dated
quotes, and ranges that whoever asks gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from steptime.number_checks import Array, Number
from steptime.physics.uncertainty import Z90

ASSUMED: Final = 0.25
"""Of what is a forecast of one's own traffic, about which nothing is known: a quarter more, or a fifth less. An assumption."""
GUESSED: Final = 2.0
"""Factor within which a guess is right, as times of an engine that was never measured are taken to be (`uncertainty.WIDE`)."""

SEEN_TWICE: Final[Mapping[str, tuple[tuple[float, float], ...]]] = {
    "measured": ((0.724, 0.741), (0.693, 0.686)),
    "vendor": ((8.0, 7.7), (8.0, 7.75), (7.38, 7.37)),
    "reported": ((13.5, 14.0), (13.5, 13.1), (1.87, 2.10), (1.37, 1.73), (1.71, 2.17), (120.0, 136.0), (1800.0, 2300.0)),
}
"""Figures of one thing that two sources of a grade tell otherwise, as notes of the catalogue have them.

measured: the shares of bandwidth and of arithmetic that matrix products reach on B200 and on GB200, which have one die.
vendor: HBM of B200, of B300 and of TPU7x [TB/s]. reported: FP4 of B300 [PFLOP/s]; power of GB200, H100 and B200 with all around
it [kW], of a GB300 rack [kW] and of VR200 [W].
"""


def half_width(pairs: Sequence[tuple[float, float]]) -> float:
    r"""Half of the 90 % range of one figure, in logarithms, from pairs of independent figures of one thing.

    $w = Z \sqrt{\overline{d^2} / 2}$ with the difference $d$ of the logarithms of a pair, whose variance is twice that of a
    figure. Valid for differences well below 1.

    >>> round(half_width([(1.0, 1.1)]), 4), half_width([(8.0, 8.0)])
    (0.1109, 0.0)
    """
    differences = [math.log(a / b) for a, b in pairs]
    return Z90 * math.sqrt(math.fsum(d * d for d in differences) / len(differences) / 2)


HALF_WIDTHS: Final[Mapping[str, float]] = {
    **{grade: half_width(pairs) for grade, pairs in SEEN_TWICE.items()},
    "recalled": half_width(SEEN_TWICE["reported"]),
    "guess": math.log(GUESSED),
}
"""Half of the 90 % range of a figure, in logarithms, by grade: measured 2 %, vendor 3 %, reported and recalled 22 %, guess a
factor of two. Recalled figures are as good as reported ones: of eleven that were looked up since, none was wrong
(docs/models.md)."""

GRADE_WORDS: Final[Mapping[str, str]] = {
    "measured": "measured", "vendor": "data sheet", "reported": "reported", "recalled": "recalled", "guess": "a guess",
}  # fmt: skip


def in_words(grade: str) -> str:
    """Say what the range of a figure rests on.

    >>> in_words("vendor"), in_words("guess")
    ('data sheet, 3 %', 'a guess, a factor of 2')
    """
    width = HALF_WIDTHS[grade]
    return f"{GRADE_WORDS[grade]}, " + (
        f"{math.expm1(width):.0%}".replace("%", " %") if width < 0.5 else f"a factor of {GUESSED:g}"
    )


InputValues = Mapping[str, Any]
Place = Callable[[InputValues, str, Any], InputValues]


def put(input_values: InputValues, name: str, value: Any) -> InputValues:
    """Return what a question is asked with, an input of a name set."""
    return {**input_values, name: value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """An input with its range, and what that rests on.

    description: the thing in words, as in "the rent". learn: how it becomes known. even: whether every value of the range is as
    likely; else its ends are the 5 % and 95 % points. place: puts a value into what a question is asked with. minimum,
    maximum: what no value can be beyond. is_count: whether it is a count. broadcasts: whether it may be an array.
    """

    name: str
    description: str
    unit: str = ""
    low: float
    base: float
    high: float
    basis: str
    learn: str = ""
    even: bool = False
    place: Place = put
    minimum: float = -math.inf
    maximum: float = math.inf
    is_count: bool = False
    broadcasts: bool = True

    def checked(self, values: Number) -> Array:
        """Return values within what is possible, and whole where it is a count."""
        within = np.clip(np.asarray(values, dtype=np.float64), self.minimum, self.maximum)
        return np.maximum(np.round(within), 1.0) if self.is_count else within

    @property
    def ends(self) -> tuple[float, float]:
        """The low and the high value, as a question takes them."""
        low, high = self.checked(np.array([self.low, self.high])).tolist()
        return low, high

    @property
    def deviations(self) -> float:
        """Standard deviations that half of the range has: 1.645, or the square root of 3 where it is even."""
        return math.sqrt(3.0) if self.even else Z90

    def values(self, shares: Array) -> Array:
        """Return the values below which shares of all cases lie (from 0 to 1, both excluded).

        >>> rent = Unsure(name="rent", description="the rent", low=1.0, base=2.0, high=3.0, basis="quotes", even=True)
        >>> rent.values(np.array([0.25, 0.5])).tolist()
        [1.5, 2.0]
        >>> rate = Unsure(name="rate", description="a rate", low=1.0, base=2.0, high=8.0, basis="guess")
        >>> rate.values(np.array([0.05, 0.5, 0.95])).round(3).tolist()
        [1.0, 2.0, 7.999]
        """
        if self.even:
            return self.checked(self.low + shares * (self.high - self.low))
        from scipy.special import ndtri

        z = ndtri(shares) / Z90
        below, above = math.log(self.base / self.low), math.log(self.high / self.base)
        return self.checked(self.base * np.exp(np.where(z < 0, below, above) * z))


def spread(name: str, base: float, width: float | tuple[float, float], **attributes: Any) -> Unsure:
    """Return an input whose logarithm has a 90 % range of half `width` to both sides, or of two widths, below and above."""
    below, above = width if isinstance(width, tuple) else (width, width)
    return Unsure(name=name, base=base, low=base * math.exp(-below), high=base * math.exp(above), **attributes)
