r"""Forms of scaling laws: loss from parameters $N$ and tokens $D$, and reverse; and the fit of a law to measured losses.

Each form is a pair of functions. `FORMS` has them by name, with the constants and the further inputs of each form.
Constants come by name (`Law.constants`), as numbers or arrays, and all functions broadcast. Losses are in nats per token.
In most forms the loss is a sum of terms of size and tokens, which give both functions (`_loss_and_tokens`).

An input that a law does not have is left out, and never guessed: `experts` 1, `sparsity` 0, `bits` and `unique` infinite
are the plain model.

For mixtures of experts, parameters are the active ones per token, even if the law counts all. A form that counts all
parameters converts them by `total_of_active` or by the sparsity.

`refit` fits the additive form with bootstrap errors, by the method of Hoffmann et al. (arXiv 2203.15556, section 3.3) and
Besiroglu et al. (arXiv 2404.10102). It minimizes the Huber loss of the difference of logarithms by L-BFGS from a grid of
starts. Standard errors come from resampled points. It needs scipy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from steptime.errors import InputError, RangeError, install_hint
from steptime.number_checks import Array, Number, positive
from steptime.result_base import Result, unit
from steptime.units import in_digits

Constants: TypeAlias = Mapping[str, Number]
# Largest number of tokens of a search.
MAX_TOKENS: Final = 1e30
# FLOP per parameter and token: 2 forward, 4 backward.
TRAINING_FLOP: Final = 6.0
# Steps of a bisection over a logarithm, down to the last digits.
HALVINGS: Final = 60
ADDITIVE: Final = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True, slots=True, kw_only=True)
class LawInputs:
    """Inputs of a law in addition to parameters and tokens.

    sparsity: share of all parameters that a token does not use. unique: unique tokens. bits: bits per value.
    """

    experts: Number = 1.0
    granularity: Number = 1.0
    sparsity: Number = 0.0
    unique: Number = np.inf
    bits: Number = np.inf


LossOfTokens: TypeAlias = Callable[[Constants, Number, Number, LawInputs], Number]
"""Loss from constants, parameters, tokens and further inputs; or tokens from constants, parameters, loss and inputs."""


Terms: TypeAlias = tuple[Number, Number, Number, Number]
r"""Loss without limits of size and tokens, term of the size, and $B$ and $\beta$ of the term $B / D^\beta$ of the tokens."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form: its formula, constants, further inputs and functions.

    loss: function of constants, parameters, tokens and `LawInputs`. tokens: function of constants, parameters, loss and
    `LawInputs`; infinite where no number of tokens reaches the loss. None where the form has no such function.
    """

    formula: str
    constants: tuple[str, ...]
    takes: tuple[str, ...] = ()
    loss: LossOfTokens | None = None
    tokens: LossOfTokens | None = None


def bisect(is_enough: Callable[[Array], Any], low: float, high: float, shape: tuple[int, ...] = ()) -> Array:
    """Return the smallest sizes that are enough, by bisection over the logarithm.

    Args:
        is_enough: Function of the sizes, of shape `shape`; true above the result.
        low: Lower bound.
        high: Upper bound, which is assumed to be enough.
        shape: Shape of the result.

    Returns:
        Sizes.

    >>> float(f"{bisect(lambda size: size**2 >= 2, 1e-3, 1e3):.6g}")
    1.41421
    """
    low_log, high_log = np.full(shape, np.log(low)), np.full(shape, np.log(high))
    for _ in range(HALVINGS):
        middle = (low_log + high_log) / 2
        enough = is_enough(np.exp(middle))
        low_log, high_log = np.where(enough, low_log, middle), np.where(enough, middle, high_log)
    return np.asarray(np.exp(high_log))


def power_term(scale: Number, size: Number, exponent: Number) -> Number:
    r"""Return a term $A / N^\alpha$ that falls with size.

    Args:
        scale: Constant $A$.
        size: Parameters or tokens $N$.
        exponent: Exponent $\alpha$.

    Returns:
        Part of the loss [nats per token].

    >>> round(float(power_term(406.4, 70e9, 0.34)), 4)
    0.0835
    """
    term: Number = scale * np.asarray(size, dtype=float) ** -np.asarray(exponent)
    return term


def left_for_tokens(scale: Number, exponent: Number, term: Number) -> Array:
    r"""Return the tokens at which $B / D^\beta$ has a given value.

    Args:
        scale: Constant $B$.
        exponent: Exponent $\beta$.
        term: Value of the term [nats per token].

    Returns:
        Tokens; infinite where the value is not above 0.

    >>> [float(f"{x:.3g}") for x in left_for_tokens(410.7, 0.28, np.array([0.1, -0.1]))]
    [8040000000000.0, inf]
    """
    room = np.asarray(term) > 0
    with np.errstate(over="ignore"):
        return np.where(room, (np.asarray(scale) / np.where(room, term, 1.0)) ** (1 / np.asarray(exponent)), np.inf)


def _loss_and_tokens(terms: Callable[[Constants, Number, LawInputs], Terms]) -> tuple[LossOfTokens, LossOfTokens]:
    """Return the functions of a form whose loss is a sum of `Terms`."""

    def loss_from_tokens(c: Constants, params: Number, tokens: Number, inputs: LawInputs) -> Number:
        floor, size, scale, exponent = terms(c, params, inputs)
        return floor + size + power_term(scale, tokens, exponent)

    def tokens_from_loss(c: Constants, params: Number, loss: Number, inputs: LawInputs) -> Number:
        floor, size, scale, exponent = terms(c, params, inputs)
        return left_for_tokens(scale, exponent, loss - floor - size)

    return loss_from_tokens, tokens_from_loss


def _additive_terms(c: Constants, params: Number, _: LawInputs) -> Terms:
    return c["E"], power_term(c["A"], params, c["alpha"]), c["B"], c["beta"]


_additive, _additive_tokens = _loss_and_tokens(_additive_terms)


def effective(unique: Number, total: Number, half: Number) -> Array:
    """Return the fresh tokens that repeated tokens are equivalent to.

    The formula is $U + U R^* (1 - e^{-R/R^*})$. Any number of repeats is worth at most $U (1 + R^*)$. The formula also
    holds for excess parameters.

    Args:
        unique: Unique tokens $U$.
        total: All tokens, $U (1 + R)$.
        half: Decay constant $R^*$ of the repeats.

    Returns:
        Effective tokens.

    References:
        Muennighoff et al., equation 5.

    >>> round(float(effective(100e9, 400e9, 15.387756)) / 1e9), float(effective(np.inf, 400e9, 15.387756)) / 1e9
    (373, 400.0)
    """
    limited = np.asarray(total) > np.asarray(unique)
    base = np.where(limited, unique, 1.0)
    repeats = np.where(limited, total / base - 1, 0.0)
    return np.where(limited, base * (1 - half * np.expm1(-repeats / half)), total)


def _best_for(c: Constants, unique: Number) -> Array:
    r"""Return the optimal parameters for unique tokens: $G (U G)^{\beta/\alpha}$."""
    split = (c["alpha"] * c["A"] / (c["beta"] * c["B"])) ** (1 / (np.asarray(c["alpha"]) + c["beta"]))
    return np.asarray(split * (unique * split) ** (np.asarray(c["beta"]) / c["alpha"]))


def _repeated_params(c: Constants, params: Number, unique: Number) -> Array:
    """Return effective parameters; those beyond the optimum decay.

    The optimum is that of the unique tokens. Source: Muennighoff et al., section 3.1.
    """
    return effective(_best_for(c, unique), params, c["R_N"])


def _repeated(c: Constants, params: Number, tokens: Number, inputs: LawInputs) -> Number:
    effective_params = _repeated_params(c, params, np.minimum(inputs.unique, tokens))
    return _additive(c, effective_params, effective(inputs.unique, tokens, c["R_D"]), inputs)


def _repeated_tokens(c: Constants, params: Number, loss: Number, inputs: LawInputs) -> Number:
    """Return the tokens, by bisection where tokens repeat or parameters are too many.

    In these cases the effective tokens or parameters decay, which has no closed form.
    """
    plain = np.asarray(_additive_tokens(c, params, loss, inputs))
    # The plain form is exact while no token repeats and the parameters are below their optimum.
    none = np.isinf(plain)
    if np.all(none | ((plain <= inputs.unique) & (params <= _best_for(c, np.where(none, 1.0, plain))))):
        return plain
    shape = np.broadcast(params, loss, inputs.unique, *c.values()).shape
    tokens = bisect(lambda total: _repeated(c, params, total, inputs) <= loss, 1.0, MAX_TOKENS, shape)
    return np.where(_repeated(c, params, MAX_TOKENS, inputs) <= loss, tokens, np.inf)


def _kaplan(c: Constants, params: Number, tokens: Number, _: LawInputs) -> Number:
    # Kaplan et al. combine both terms under one exponent.
    inner = (c["N_c"] / np.asarray(params, dtype=float)) ** (np.asarray(c["alpha_N"]) / c["alpha_D"]) + c["D_c"] / tokens
    return inner ** c["alpha_D"]


def _kaplan_tokens(c: Constants, params: Number, loss: Number, _: LawInputs) -> Number:
    size = (c["N_c"] / np.asarray(params, dtype=float)) ** (np.asarray(c["alpha_N"]) / c["alpha_D"])
    data_term = np.asarray(loss, dtype=float) ** (1 / np.asarray(c["alpha_D"])) - size
    return np.where(data_term > 0, c["D_c"] / np.where(data_term > 0, data_term, 1.0), np.inf)


def _overtrained(c: Constants, params: Number, tokens: Number, _: LawInputs) -> Number:
    ratio, compute = tokens / params, TRAINING_FLOP * params * tokens
    return c["E"] + (c["a"] * ratio ** c["eta"] + c["b"] * ratio ** -c["eta"]) * compute ** -c["eta"]


def _overtrained_tokens(c: Constants, params: Number, loss: Number, inputs: LawInputs) -> Number:
    """Return the tokens, from the equivalent additive form: both exponents are 2 eta, with (a, b) over 6 to the eta."""
    scale, exponent = TRAINING_FLOP ** -c["eta"], 2 * c["eta"]
    additive = {"E": c["E"], "A": c["a"] * scale, "B": c["b"] * scale, "alpha": exponent, "beta": exponent}
    return _additive_tokens(additive, params, loss, inputs)


def _precision_terms(c: Constants, params: Number, inputs: LawInputs) -> Terms:
    r"""Return the terms at $P$ bits for weights, activations and KV cache.

    Each of the three multiplies the effective parameters by $1 - e^{-P/\gamma}$.
    """
    share: Number = 1.0
    for name in ("gamma_w", "gamma_a", "gamma_kv"):
        share = share * -np.expm1(-np.asarray(inputs.bits) / c[name])
    return _additive_terms(c, params * share, inputs)


def reward(c: Constants, compute: Number) -> Number:
    """Return the pass rate after RL with a compute.

    The formula is $R_0 + (A - R_0) / (1 + (C_{mid}/C)^B)$, with half the gain at $C_{mid}$.

    Args:
        c: Constants of the law by name.
        compute: RL compute $C$, in the unit of $C_{mid}$.

    Returns:
        Pass rate, 0 to 1.

    >>> float(reward({"R_0": 0.2, "A": 0.6, "B": 2.0, "C_mid": 1e4}, 1e4))
    0.4
    """
    return c["R_0"] + (c["A"] - c["R_0"]) / (1 + (c["C_mid"] / np.asarray(compute, dtype=float)) ** c["B"])


def split_of_compute(c: Constants, compute: Number) -> tuple[Number, Number]:
    """Return the compute-optimal parameters and tokens of a law without a loss.

    The formulas are $D = d C^{e}$ and $N = C / (6 D)$.

    Args:
        c: Constants of the law by name.
        compute: Training compute $C$ [FLOP].

    Returns:
        Parameters, and tokens.

    >>> params, tokens = split_of_compute({"d": 0.299, "e": 0.537}, 3.8e25)
    >>> float(f"{tokens:.4g}"), float(f"{params:.3g}")
    (16290000000000.0, 389000000000.0)
    """
    tokens = c["d"] * np.asarray(compute, dtype=float) ** c["e"]
    return compute / (6 * tokens), tokens


def saturated(experts: Number, start: Number, maximum: Number) -> Array:
    r"""Return the effective number of experts, which saturates.

    The formula is $1/\hat E = 1 / (E - 1 + (1/E_{start} - 1/E_{max})^{-1}) + 1/E_{max}$. It is $E_{start}$ at one expert,
    and at most $E_{max}$.

    Args:
        experts: Experts $E$.
        start: Constant $E_{start}$.
        maximum: Constant $E_{max}$.

    Returns:
        Effective experts $\hat E$.

    References:
        Clark et al. (arXiv 2202.01169), equation 12.

    >>> [round(float(e), 3) for e in saturated(np.array([1.0, 64.0, 1e9]), 1.847, 314.478)]
    [1.847, 53.769, 314.478]
    """
    shifted = np.asarray(experts) - 1 + 1 / (1 / np.asarray(start) - 1 / np.asarray(maximum))
    return np.asarray(1 / (1 / shifted + 1 / np.asarray(maximum)))


def _clark(c: Constants, params: Number, tokens: Number, inputs: LawInputs) -> Number:
    size, experts = np.log10(params), np.log10(saturated(inputs.experts, c["E_start"], c["E_max"]))
    loss = c["a"] * size + c["b"] * experts + c["c"] * size * experts + c["d"]
    return np.asarray(10.0 ** (loss + np.zeros_like(tokens, dtype=float)))


def clark_equivalent(c: Constants, params: Number, experts: Number) -> Array:
    r"""Return the dense parameters with the same loss as a mixture, by Clark et al.

    The formula is $N^{\alpha(\hat E)/\alpha(E_s)} (\hat E/E_s)^{b/\alpha(E_s)}$ with $\alpha(x) = a + c \log_{10} x$.
    `vanishing_point` gives the size from which experts no longer help.

    Args:
        c: Constants of the law by name.
        params: Active parameters $N$ of the mixture.
        experts: Experts $E$.

    Returns:
        Dense parameters.

    References:
        Clark et al. (arXiv 2202.01169), equation 10.

    >>> s_base = dict(a=-0.082, b=-0.108, c=0.009, d=1.104, E_start=1.847, E_max=314.478)
    >>> round(float(clark_equivalent(s_base, 370e6, 64)) / 1e9, 2)
    1.37
    """
    effective_experts = saturated(experts, c["E_start"], c["E_max"])
    slope, dense = (c["a"] + c["c"] * np.log10(e) for e in (effective_experts, np.asarray(c["E_start"])))
    return np.asarray(
        np.asarray(params, dtype=float) ** (slope / dense) * (effective_experts / c["E_start"]) ** (c["b"] / dense)
    )


def vanishing_point(c: Constants) -> Number:
    """Return the parameters from which experts no longer help, $10^{-b/c}$.

    Args:
        c: Constants of the law by name.

    Returns:
        Parameters.

    >>> float(f"{vanishing_point(dict(b=-0.108, c=0.009)):.2g}")
    1000000000000.0
    """
    return 10.0 ** (-np.asarray(c["b"]) / c["c"])


def _granular_terms(c: Constants, params: Number, inputs: LawInputs) -> Terms:
    """Return the terms with the constants of a mixture, or of a dense model at one expert."""
    mixed = np.asarray(inputs.experts) > 1
    total = params * np.where(mixed, c["total_of_active"], 1.0)
    scale = np.where(mixed, c["g"] / np.asarray(inputs.granularity, dtype=float) ** c["gamma"] + c["a"], c["a_dense"])
    size = power_term(scale, total, np.where(mixed, c["alpha"], c["alpha_dense"]))
    return c["c"], size, np.where(mixed, c["b"], c["b_dense"]), np.where(mixed, c["beta"], c["beta_dense"])


def reduced(c: Constants, experts: Number) -> tuple[Number, Number, Number, Number]:
    r"""Return $m, \mu, n, \nu$ of $L = m N^\mu + n D^\nu + c$ at a number of experts.

    Ludziejewski et al. list these values in Table 4.

    Args:
        c: Constants of the law by name.
        experts: Experts.

    Returns:
        The four values.

    >>> law = dict(a=35.91, alpha=-.1889, delta=-.2285, gamma=.0098, b=35.98, beta=-.1775, omega=.5529, zeta=-.0259,
    ...            E_start=2.0732, E_max=290.4521)
    >>> [round(float(x), 2 if x > 1 else 4) for x in reduced(law, 8)]
    [21.84, -0.1676, 119.84, -0.2339]
    """
    effective_experts = saturated(experts, c["E_start"], c["E_max"])
    size = c["a"] * effective_experts ** c["delta"], c["alpha"] + c["gamma"] * np.log(effective_experts)
    return *size, c["b"] * effective_experts ** c["omega"], c["beta"] + c["zeta"] * np.log(effective_experts)


def _joint_terms(c: Constants, params: Number, inputs: LawInputs) -> Terms:
    m, mu, n, nu = reduced(c, inputs.experts)
    return c["c"], power_term(m, params, -np.asarray(mu)), n, -np.asarray(nu)


def _sparse_terms(c: Constants, params: Number, inputs: LawInputs) -> Terms:
    """Return the terms; the form counts all parameters: active ones over 1 - S."""
    active_share = 1 - np.asarray(inputs.sparsity, dtype=float)
    total = params / active_share
    mixed = c["c"] / active_share ** c["lam"] + power_term(c["d"] / active_share ** c["delta"], total, c["gamma"])
    floor = c["e"] + power_term(c["a"], total, c["alpha"]) + mixed
    return floor, 0.0, c["b"], c["beta"]


FORMS: Final[dict[str, Form]] = {
    "additive": Form("L = E + A / N^alpha + B / D^beta", ADDITIVE, (), _additive, _additive_tokens),
    "repeated": Form(
        "L = E + A / N'^alpha + B / D'^beta, D' = U + U R_D (1 - exp(-(D/U - 1)/R_D)), N' likewise with R_N",
        (*ADDITIVE, "R_D", "R_N"),
        ("unique",),
        _repeated,
        _repeated_tokens,
    ),
    "kaplan": Form(
        "L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D", ("N_c", "D_c", "alpha_N", "alpha_D"), (), _kaplan, _kaplan_tokens
    ),
    "overtrained": Form(
        "L = E + (a M^eta + b M^-eta) C^-eta, M = D/N, C = 6ND", ("E", "a", "b", "eta"), (), _overtrained, _overtrained_tokens
    ),
    "precision": Form(
        "L = E + A / N_eff^alpha + B / D^beta, N_eff = N times 1 - exp(-P/gamma) for gamma_w, gamma_a, gamma_kv",
        (*ADDITIVE, "gamma_w", "gamma_a", "gamma_kv"),
        ("bits",),
        *_loss_and_tokens(_precision_terms),
    ),
    "split": Form("D = d C^e, N = C / (6 D): the optimal split of compute, no loss", ("d", "e")),
    "reward": Form("R = R_0 + (A - R_0) / (1 + (C_mid/C)^B): pass rate after RL, no loss", ("R_0", "A", "B", "C_mid")),
    "routed": Form(
        "log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d, Ê from E between E_start and E_max; no tokens",
        ("a", "b", "c", "d", "E_start", "E_max"),
        ("experts",),
        _clark,
    ),
    "granular": Form(
        "L = c + (g / G^gamma + a) / N^alpha + b / D^beta, N total; dense models: without g, by the _dense constants",
        ("c", "a", "alpha", "b", "beta", "g", "gamma", "a_dense", "alpha_dense", "b_dense", "beta_dense", "total_of_active"),
        ("experts", "granularity"),
        *_loss_and_tokens(_granular_terms),
    ),
    "joint": Form(
        "L = a Ê^delta N^(alpha + gamma ln Ê) + b Ê^omega D^(beta + zeta ln Ê) + c",
        ("a", "alpha", "delta", "gamma", "b", "beta", "omega", "zeta", "E_start", "E_max", "c"),
        ("experts",),
        *_loss_and_tokens(_joint_terms),
    ),
    "sparse": Form(
        "L = a / N^alpha + b / D^beta + c / (1-S)^lam + d / ((1-S)^delta N^gamma) + e, N total",
        ("a", "alpha", "b", "beta", "c", "lam", "d", "delta", "gamma", "e"),
        ("sparsity",),
        *_loss_and_tokens(_sparse_terms),
    ),
}
"""Every form by its name."""


# Threshold of the Huber loss between its quadratic and its linear part (Hoffmann et al.).
DELTA: Final = 1e-3
# Constants, in the order of the fitted values log A, log B, log E, alpha, beta.
NAMES: Final = ("A", "B", "E", "alpha", "beta")
GRID: Final = ((0, 5, 10, 15, 20, 25), (0, 5, 10, 15, 20, 25), (-1, -0.5, 0, 0.5, 1), (0.25, 0.5, 1.0), (0.25, 0.5, 1.0))
"""Starts of log A, log B, log E, alpha and beta, similar to Hoffmann et al. (their exponents go from 0 to 2)."""
# Starts of the grid with the smallest Huber loss, from which the fit runs.
BEST_STARTS: Final = 24
# Smallest number of points, one more than constants.
FEWEST: Final = 6
# Ends of a 90 % interval.
QUANTILES: Final = (0.05, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Refit(Result):
    """Constants fitted to points, with bootstrap errors."""

    SCHEMA: ClassVar[str] = "steptime.refit/2"

    constants: Mapping[str, float] = field(metadata=unit("", "A, B, E, alpha and beta of L = E + A / N^alpha + B / D^beta"))
    errors: Mapping[str, float] = field(metadata=unit("", "standard errors of the constants, by bootstrap"))
    low: Mapping[str, float] = field(metadata=unit("", "lower ends of the 90 % intervals"))
    high: Mapping[str, float] = field(metadata=unit("", "upper ends of the 90 % intervals"))
    huber: float = field(metadata=unit("", "Huber loss at the minimum, summed over the points"))
    points: int = field(metadata=unit("", "fitted points"))
    bootstraps: int = field(metadata=unit("", "bootstrap resamples"))
    deviations: tuple[float, ...] = field(metadata=unit("", "standard errors of log A, log B, log E, alpha and beta"))
    correlations: tuple[tuple[float, ...], ...] = field(
        metadata=unit("", "correlations of log A, log B, log E, alpha and beta over the resamples", kind="list of lists")
    )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of points, and the constants with their errors.

        Returns:
            Title, and lines by constant.
        """
        title = f"Refit: {self.points} points, {self.bootstraps} resamples"
        return title, {
            name: in_digits(value, 4) + (f" ± {in_digits(self.errors[name], 2)}" if self.bootstraps else "")
            for name, value in self.constants.items()
        }


def refit(
    params: Array,
    tokens: Array,
    losses: Array,
    *,
    bootstraps: int = 200,
    seed: int = 0,
    start: Mapping[str, float] | None = None,
) -> Refit:
    """Return the additive law that fits measured runs best.

    Args:
        params: Parameters, one value per run.
        tokens: Training tokens, one value per run.
        losses: Losses [nats per token], one value per run.
        bootstraps: Number of resamples of the points, with replacement.
        seed: Random seed of the resamples.
        start: Constants near the minimum, instead of the grid of starts.

    Returns:
        Constants with standard errors and 90 % intervals.

    Raises:
        RangeError: If the arrays differ in length or have too few runs.
        InputError: If scipy is not installed.
    """
    observations = [np.asarray(positive(name, np.asarray(values, dtype=float))) for name, values in
             (("parameters", params), ("tokens", tokens), ("losses", losses))]  # fmt: skip
    sizes = {values.size for values in observations}
    if len(sizes) > 1 or observations[0].ndim != 1 or observations[0].size < FEWEST:
        raise RangeError(
            f"params, tokens, losses: a fit needs the same {FEWEST} runs or more, one value per run, "
            f"got {', '.join(str(values.shape) for values in observations)}"
        )
    logs = np.log(np.stack(observations))
    middle = logs.mean(axis=1)
    # Centered logarithms decouple each scale from its exponent: L-BFGS takes a tenth of the steps.
    logs[:2] -= middle[:2, None]
    if start is None:
        grid = _shifted(np.array(list(product(*GRID)), dtype=float).T, middle).T
        starts = grid[np.argsort([_value_and_slope(node, logs)[0] for node in grid])[:BEST_STARTS]]
    else:
        near = [*np.log([start[name] for name in NAMES[:3]]), *(start[name] for name in NAMES[3:])]
        starts = _shifted(np.array(near), middle)[None]
    best = min((_minimise(logs, node) for node in starts), key=lambda minimum: float(minimum.fun))

    # Each fit to resampled points starts from the fit to all points.
    random, points = np.random.default_rng(seed), observations[0].size
    resamples = [_minimise(logs[:, random.integers(0, points, points)], best.x).x for _ in range(bootstraps)]

    # Shift the constants back to the original parameters and tokens.
    bootstrap_estimates = _shifted(np.array(resamples).reshape(bootstraps, len(NAMES)).T, -middle).T
    every = _constants(bootstrap_estimates.T)
    ends = {name: np.quantile(values, QUANTILES) if bootstraps else np.full(2, np.nan) for name, values in every.items()}
    return Refit(
        constants={name: float(value) for name, value in _constants(_shifted(best.x, -middle)).items()},
        errors={name: float(np.std(values, ddof=1)) if bootstraps > 1 else np.nan for name, values in every.items()},
        low={name: float(pair[0]) for name, pair in ends.items()},
        high={name: float(pair[1]) for name, pair in ends.items()},
        huber=float(best.fun),
        points=points,
        bootstraps=bootstraps,
        deviations=tuple(np.std(bootstrap_estimates, axis=0, ddof=1).tolist()) if bootstraps > 1 else (),
        correlations=tuple(map(tuple, np.corrcoef(bootstrap_estimates.T).tolist())) if bootstraps > len(NAMES) else (),
    )


def without_highest(losses: Array, count: int = 5) -> Array:
    """Return a mask that leaves out the points of highest loss.

    Besiroglu et al. leave out five.

    Args:
        losses: Losses of the points.
        count: Points to leave out.

    Returns:
        True for each point that stays.

    >>> without_highest(np.array([3.0, 9.0, 2.0]), 1).tolist()
    [True, False, True]
    """
    mask = np.ones(len(losses), dtype=bool)
    mask[np.argsort(losses)[len(losses) - count :]] = False
    return mask


def huber(differences: Number, delta: Number = DELTA) -> Number:
    r"""Return the Huber loss, which limits the pull of outliers.

    It is $x^2/2$ where $|x| \le \delta$, and $\delta (|x| - \delta/2)$ beyond.

    Args:
        differences: Differences $x$.
        delta: Threshold $\delta$.

    Returns:
        Loss, with the shape of `differences`.

    >>> float(huber(0.5, 1.0)), float(huber(-3.0, 1.0))
    (0.125, 2.5)
    """
    size = np.abs(differences)
    return np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))


def _constants(fitted: Array) -> dict[str, Array]:
    return dict(zip(NAMES, (*np.exp(fitted[:3]), *fitted[3:]), strict=True))


def _value_and_slope(fitted: Array, logs: Array) -> tuple[float, Array]:
    """Return the summed Huber loss over points and its gradient."""
    a, b, e, alpha, beta = fitted
    params, tokens, losses = logs
    terms = np.stack([a - alpha * params, b - beta * tokens, np.full_like(params, e)])
    top = terms.max(axis=0)
    parts = np.exp(terms - top)
    total = parts.sum(axis=0)
    # Log-sum-exp of the three terms, without overflow.
    difference = top + np.log(total) - losses
    pull = np.clip(difference, -DELTA, DELTA) * (parts / total)
    slope = np.array([pull[0].sum(), pull[1].sum(), pull[2].sum(), -(pull[0] @ params), -(pull[1] @ tokens)])
    return float(np.sum(huber(difference))), slope


def _shifted(fitted: Array, shift: Array) -> Array:
    """Return the constants for logarithms that are smaller by `shift`."""
    a, b, e, alpha, beta = fitted
    return np.stack([a - alpha * shift[0], b - beta * shift[1], e, alpha, beta])


def _minimise(logs: Array, start: Array) -> Any:
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise InputError(f"a fit needs scipy: {install_hint('calibrate')}") from None
    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-14, "gtol": 1e-10, "maxcor": 20}
    return minimize(_value_and_slope, start, args=(logs,), jac=True, method="L-BFGS-B", options=options)
