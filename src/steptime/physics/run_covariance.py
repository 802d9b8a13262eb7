r"""Covariance of prediction errors by what two runs share: the curve, the group, the model and the engine.

The error of a run is $r = \log(\text{measured} / \text{predicted})$. Two runs of one engine share a part of it:

$$ C_{ij} = \sigma^2_{engine} + \sigma^2_{model} [m] + \sigma^2_{group} [g] N + \sigma^2_{release} [g, v] +
\sigma^2_{layout} [l] N + \sigma^2_{layout, release} [l, v] N. $$

A bracket is 1 where both runs share the item in it, else 0. The items are the model $m$, the group $g$ (model and system), the
release $v$ of the engine, and the group's formats and layout $l$. Nearness $N$ falls with the distance in load (running
sequences per replica) and in context. Both distances are in doublings, with the length scales $\ell$:

$$ N = \exp\left(-\frac{(\Delta \log_2 load)^2}{2 \ell_{load}^2} -
\frac{(\Delta \log_2 context)^2}{2 \ell_{context}^2}\right). $$

A repeated run has a further error with the variance $\sigma^2_{noise}$. Errors are distributed as Student's with $\nu$
degrees of freedom. With the errors $r$ of $n$ runs, $K = C + \sigma^2_{noise} I$ and the covariance $k$ with a further run:

$$ \hat r = k^T K^{-1} r, \qquad s^2 = \frac{\nu + r^T K^{-1} r}{\nu + n} (C_{**} + \sigma^2_{noise} - k^T K^{-1} k). $$

The 90 % range is $\hat r \pm q s$. A run that is far from its prediction therefore widens the range. $n$ counts points: the
repeats of one point are one error, their mean (`bias_correction`).

The variances and lengths are estimated by restricted maximum likelihood, $\nu$ and $q$ from the same runs
(`docs/correction_fit.py`); `data/corrections.toml` has them. Training steps have their own, in `data/training_corrections.toml`
(`docs/training_correction_fit.py`): their load is the number of sequences per step, and the squared distance in load includes
that in chips.

References:
    Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), equations 2.23 and 2.24,
    https://gaussianprocess.org/gpml/. Shah, Wilson and Ghahramani, Student-t Processes (2014), https://arxiv.org/abs/1402.4306.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.catalog.data_files import PACKAGED, read_file
from steptime.errors import DataFileError
from steptime.number_checks import Array, Number

# Quantity of training steps, next to "tpot" and "ttft".
TRAINING: Final = "training_step"
# Levels inside a group, and whether their share falls with the distance in load and context.
LEVELS: Final = {"group": True, "release": False, "layout": True, "layout_release": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariance:
    """Variances of one quantity by what two runs share, lengths in doublings, and degrees of freedom of the scale."""

    engine: float
    model: float
    group: float
    release: float
    layout: float
    layout_release: float
    noise: float
    doublings: float
    context_doublings: float
    degrees: float
    quantile: float

    @property
    def total(self) -> float:
        """Variance of one run, with noise."""
        return self.engine + self.model + self.group + self.release + self.layout + self.layout_release + self.noise

    def nearness(self, load: Number, context: Number) -> Array:
        """Return the share of an error that two runs of a curve have in common.

        Args:
            load: Squared distance in load [doublings squared].
            context: Squared distance in context [doublings squared].

        Returns:
            Shares from 0 to 1, with the shape of the arguments.
        """
        near: Array = np.exp(-load / (2 * self.doublings**2) - context / (2 * self.context_doublings**2))
        return near

    def between(self, shared: Mapping[str, Any], near: Number) -> Array:
        """Return the covariance of the errors of two runs of one engine, without noise.

        Args:
            shared: Whether two runs share each level: `model` and those of `LEVELS`.
            near: Their `nearness`.

        Returns:
            Covariances, with the broadcast shape of the arguments.

        >>> one = read_covariances()["tpot"]
        >>> same = dict.fromkeys(("model", *LEVELS), True)
        >>> round(float(one.between(same, 1.0)) + one.noise - one.total, 12)
        0.0
        """
        result: Any = self.engine + self.model * np.asarray(shared["model"])
        for name, is_near in LEVELS.items():
            result = result + getattr(self, name) * np.asarray(shared[name]) * (near if is_near else 1.0)
        covariance: Array = result
        return covariance

    def scale(self, square: Number, runs: int) -> Array:
        """Return the factor on standard deviations from how far runs are from their predictions.

        Args:
            square: $r^T K^{-1} r$ of the runs; about their number where they are as far as usual.
            runs: Number of runs.

        Returns:
            Factors with the shape of `square`.

        >>> one = read_covariances()["tpot"]
        >>> float(one.scale(4.0, 4)), bool(one.scale(40.0, 4) > 1)
        (1.0, True)
        """
        factor: Array = np.sqrt((self.degrees + np.asarray(square)) / (self.degrees + runs))
        return factor

    def figures(self) -> dict[str, float]:
        """Return the values by name, as the data file has them.

        Returns:
            Values by name.
        """
        return asdict(self)


@lru_cache(maxsize=1)
def read_covariances() -> dict[str, Covariance]:
    """Read the estimated covariances.

    Returns:
        Covariances of time per token, `tpot`, time to first token, `ttft`, and time of a training step, `training_step`.

    Raises:
        DataFileError: The file lacks a figure, or a figure is not a number above 0.
    """
    covariances = {}
    for quantity in ("tpot", "ttft", TRAINING):
        path = PACKAGED / ("training_corrections.toml" if quantity == TRAINING else "corrections.toml")
        table = read_file(path).get(quantity, {})
        for name in Covariance.__dataclass_fields__:
            value = table.get(name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise DataFileError(path, f"{quantity}.{name}: must be a number greater than 0, got {value!r}")
        covariances[quantity] = Covariance(**{name: float(table[name]) for name in Covariance.__dataclass_fields__})
    return covariances
