r"""The forms of scaling laws: loss from parameters $N$, tokens $D$ and what else a law knows, and tokens from a loss.

One pair of functions a form; `FORMS` names them, with the constants that each needs and the further inputs that it takes.
Constants come by name (`Law.constants`), numbers or arrays, and all functions broadcast. Losses are nats a token. What a law
does not know is left out, and never guessed: `experts` 1, `sparsity` 0, `bits` and `unique` infinite are the plain model.

The forms of scaling laws of mixtures of experts; `forms` says how forms are made.

Parameters are those that a token passes through (active ones), whatever a law itself counts; a form that counts all of them
has `total_of_active` or the sparsity to turn one into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from steptime.number_checks import Array, Number

Constants: TypeAlias = Mapping[str, Number]
MAX_TOKENS: Final = 1e30  # tokens that are looked at
HALVINGS: Final = 60  # of that range in logarithms, down to the last digits
ADDITIVE: Final = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True, slots=True, kw_only=True)
class LawInputs:
    """What a model is beside its size; sparsity: share of all parameters that a token leaves out; unique: tokens there are."""

    experts: Number = 1.0
    granularity: Number = 1.0
    sparsity: Number = 0.0
    unique: Number = np.inf
    bits: Number = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form: its formula, the constants that it needs, the further inputs that it takes, and its functions.

    loss: of constants, parameters, tokens and `LawInputs`; tokens: of constants, parameters, loss and `LawInputs`, infinite
    where no number of tokens reaches it; None of a form that knows no tokens.
    """

    formula: str
    constants: tuple[str, ...]
    takes: tuple[str, ...] = ()
    loss: Callable[[Constants, Number, Number, LawInputs], Number] | None = None
    tokens: Callable[[Constants, Number, Number, LawInputs], Number] | None = None


def power_term(scale: Number, size: Number, exponent: Number) -> Number:
    """Return a term $A / N^\\alpha$ that falls with size.

    >>> round(float(power_term(406.4, 70e9, 0.34)), 4)
    0.0835
    """
    term: Number = scale * np.asarray(size, dtype=float) ** -np.asarray(exponent)
    return term


def left_for_tokens(scale: Number, exponent: Number, term: Number) -> Array:
    """Return the tokens at which the term $B / D^\\beta$ is `term`; infinite where nothing is left.

    >>> [float(f"{x:.3g}") for x in left_for_tokens(410.7, 0.28, np.array([0.1, -0.1]))]
    [8040000000000.0, inf]
    """
    room = np.asarray(term) > 0
    with np.errstate(over="ignore"):
        return np.where(room, (np.asarray(scale) / np.where(room, term, 1.0)) ** (1 / np.asarray(exponent)), np.inf)


def _additive(c: Constants, params: Number, tokens: Number, _: LawInputs) -> Number:
    return c["E"] + power_term(c["A"], params, c["alpha"]) + power_term(c["B"], tokens, c["beta"])


def _additive_tokens(c: Constants, params: Number, loss: Number, _: LawInputs) -> Number:
    return left_for_tokens(c["B"], c["beta"], loss - c["E"] - power_term(c["A"], params, c["alpha"]))


def effective(unique: Number, total: Number, half: Number) -> Array:
    r"""Return what repeated tokens (or excess parameters) are worth in fresh ones: $U + U R^* (1 - e^{-R/R^*})$.

    unique $U$, total $U (1 + R)$, half $R^*$: however many repeats, $U (1 + R^*)$ is the most. Muennighoff et al., equation 5.

    >>> round(float(effective(100e9, 400e9, 15.387756)) / 1e9), float(effective(np.inf, 400e9, 15.387756)) / 1e9
    (373, 400.0)
    """
    limited = np.asarray(total) > np.asarray(unique)
    base = np.where(limited, unique, 1.0)
    repeats = np.where(limited, total / base - 1, 0.0)
    return np.where(limited, base * (1 - half * np.expm1(-repeats / half)), total)


def _best_for(c: Constants, unique: Number) -> Array:
    r"""Return the parameters that are best for some unique tokens, as at the best split: $G (U G)^{\beta/\alpha}$."""
    split = (c["alpha"] * c["A"] / (c["beta"] * c["B"])) ** (1 / (np.asarray(c["alpha"]) + c["beta"]))
    return np.asarray(split * (unique * split) ** (np.asarray(c["beta"]) / c["alpha"]))


def _repeated_params(c: Constants, params: Number, unique: Number) -> Array:
    """Return what parameters are worth: those beyond the best for the unique tokens decay (Muennighoff et al., section 3.1)."""
    return effective(_best_for(c, unique), params, c["R_N"])


def _repeated(c: Constants, params: Number, tokens: Number, inputs: LawInputs) -> Number:
    effective_params = _repeated_params(c, params, np.minimum(inputs.unique, tokens))
    return _additive(c, effective_params, effective(inputs.unique, tokens, c["R_D"]), inputs)


def _repeated_tokens(c: Constants, params: Number, loss: Number, inputs: LawInputs) -> Number:
    """Return the tokens: by bisection where tokens repeat or parameters are too many for them, as then their worth decays."""
    plain = _additive_tokens(c, params, loss, inputs)
    none = np.isinf(plain)
    if np.all(none | ((plain <= inputs.unique) & (params <= _best_for(c, np.where(none, 1.0, plain))))):
        return plain
    shape = np.broadcast(params, loss, inputs.unique, *c.values()).shape
    low, high = np.zeros(shape), np.full(shape, np.log(MAX_TOKENS))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = _repeated(c, params, np.exp(middle), inputs) <= loss
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(_repeated(c, params, MAX_TOKENS, inputs) <= loss, np.exp(high), np.inf)


def _kaplan(c: Constants, params: Number, tokens: Number, _: LawInputs) -> Number:
    inner = (c["N_c"] / np.asarray(params, dtype=float)) ** (np.asarray(c["alpha_N"]) / c["alpha_D"]) + c["D_c"] / tokens
    return inner ** c["alpha_D"]


def _kaplan_tokens(c: Constants, params: Number, loss: Number, _: LawInputs) -> Number:
    size = (c["N_c"] / np.asarray(params, dtype=float)) ** (np.asarray(c["alpha_N"]) / c["alpha_D"])
    data_term = np.asarray(loss, dtype=float) ** (1 / np.asarray(c["alpha_D"])) - size
    return np.where(data_term > 0, c["D_c"] / np.where(data_term > 0, data_term, 1.0), np.inf)


def _overtrained(c: Constants, params: Number, tokens: Number, _: LawInputs) -> Number:
    ratio = tokens / params
    compute = 6.0 * params * tokens
    return c["E"] + (c["a"] * ratio ** c["eta"] + c["b"] * ratio ** -c["eta"]) * compute ** -c["eta"]


def _overtrained_tokens(c: Constants, params: Number, loss: Number, _: LawInputs) -> Number:
    """Return the tokens: the form is the additive one with both exponents 2 eta, its terms (a, b) over 6 to the eta."""
    scale = 6.0 ** -c["eta"]
    data_term = loss - c["E"] - power_term(c["a"] * scale, params, 2 * c["eta"])
    return left_for_tokens(c["b"] * scale, 2 * c["eta"], data_term)


def _narrow_params(c: Constants, params: Number, bits: Number) -> Number:
    r"""Return effective parameters: weights, activations and KV in $P$ bits each, $N (1 - e^{-P/\gamma})$ for each of three."""
    share: Number = 1.0
    for name in ("gamma_w", "gamma_a", "gamma_kv"):
        share = share * -np.expm1(-np.asarray(bits) / c[name])
    return params * share


def _precision(c: Constants, params: Number, tokens: Number, inputs: LawInputs) -> Number:
    return _additive(c, _narrow_params(c, params, inputs.bits), tokens, inputs)


def _precision_tokens(c: Constants, params: Number, loss: Number, inputs: LawInputs) -> Number:
    return _additive_tokens(c, _narrow_params(c, params, inputs.bits), loss, inputs)


def reward(c: Constants, compute: Number) -> Number:
    r"""Return the pass rate after RL with some compute: $R_0 + (A - R_0) / (1 + (C_{mid}/C)^B)$, half the gain at $C_{mid}$.

    >>> float(reward({"R_0": 0.2, "A": 0.6, "B": 2.0, "C_mid": 1e4}, 1e4))
    0.4
    """
    return c["R_0"] + (c["A"] - c["R_0"]) / (1 + (c["C_mid"] / np.asarray(compute, dtype=float)) ** c["B"])


def split_of_compute(c: Constants, compute: Number) -> tuple[Number, Number]:
    r"""Return parameters and tokens of a law that tells the best split alone: $D = d C^{e}$, $N = C / (6 D)$.

    >>> params, tokens = split_of_compute({"d": 0.299, "e": 0.537}, 3.8e25)
    >>> float(f"{tokens:.4g}"), float(f"{params:.3g}")
    (16290000000000.0, 389000000000.0)
    """
    tokens = c["d"] * np.asarray(compute, dtype=float) ** c["e"]
    return compute / (6 * tokens), tokens


DENSE: Final[dict[str, Form]] = {
    "additive": Form(formula="L = E + A / N^alpha + B / D^beta", constants=ADDITIVE, loss=_additive, tokens=_additive_tokens),
    "repeated": Form(
        formula="L = E + A / N'^alpha + B / D'^beta, D' = U + U R_D (1 - exp(-(D/U - 1)/R_D)), N' likewise with R_N",
        constants=(*ADDITIVE, "R_D", "R_N"),
        takes=("unique",),
        loss=_repeated,
        tokens=_repeated_tokens,
    ),
    "kaplan": Form(
        formula="L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D",
        constants=("N_c", "D_c", "alpha_N", "alpha_D"),
        loss=_kaplan,
        tokens=_kaplan_tokens,
    ),
    "overtrained": Form(
        formula="L = E + (a M^eta + b M^-eta) C^-eta, M = D/N, C = 6ND",
        constants=("E", "a", "b", "eta"),
        loss=_overtrained,
        tokens=_overtrained_tokens,
    ),
    "precision": Form(
        formula="L = E + A / N_eff^alpha + B / D^beta, N_eff = N times 1 - exp(-P/gamma) for gamma_w, gamma_a, gamma_kv",
        constants=(*ADDITIVE, "gamma_w", "gamma_a", "gamma_kv"),
        takes=("bits",),
        loss=_precision,
        tokens=_precision_tokens,
    ),
    "split": Form(formula="D = d C^e, N = C / (6 D): the best split of compute, no loss", constants=("d", "e")),
    "reward": Form(
        formula="R = R_0 + (A - R_0) / (1 + (C_mid/C)^B): pass rate after RL, no loss", constants=("R_0", "A", "B", "C_mid")
    ),
}


def saturated(experts: Number, start: Number, maximum: Number) -> Array:
    r"""Return experts as they count: $1/\hat E = 1 / (E - 1 + (1/E_{start} - 1/E_{max})^{-1}) + 1/E_{max}$.

    $E_{start}$ at one expert, never more than $E_{max}$. Clark et al. (arXiv 2202.01169), equation 12.

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
    r"""Return the dense size of equal loss: $N^{\alpha(\hat E)/\alpha(E_s)} (\hat E/E_s)^{b/\alpha(E_s)}$.

    $\alpha(x) = a + c \log_{10} x$. Clark et al., equation 10. Where experts stop to help: `vanishing_point`.

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
    r"""Return the parameters from which experts no longer help: $10^{-b/c}$.

    >>> float(f"{vanishing_point(dict(b=-0.108, c=0.009)):.2g}")
    1000000000000.0
    """
    return 10.0 ** (-np.asarray(c["b"]) / c["c"])


def _granular_terms(c: Constants, params: Number, inputs: LawInputs) -> tuple[Number, Number, Number]:
    """Return the term of size, and scale and exponent of that of tokens: of a mixture, or of a dense model at one expert."""
    mixed = np.asarray(inputs.experts) > 1
    total = params * np.where(mixed, c["total_of_active"], 1.0)
    scale = np.where(mixed, c["g"] / np.asarray(inputs.granularity, dtype=float) ** c["gamma"] + c["a"], c["a_dense"])
    size = power_term(scale, total, np.where(mixed, c["alpha"], c["alpha_dense"]))
    return size, np.where(mixed, c["b"], c["b_dense"]), np.where(mixed, c["beta"], c["beta_dense"])


def _granular(c: Constants, params: Number, tokens: Number, inputs: LawInputs) -> Number:
    size, scale, exponent = _granular_terms(c, params, inputs)
    return c["c"] + size + power_term(scale, tokens, exponent)


def _granular_tokens(c: Constants, params: Number, loss: Number, inputs: LawInputs) -> Number:
    size, scale, exponent = _granular_terms(c, params, inputs)
    return left_for_tokens(scale, exponent, loss - c["c"] - size)


def reduced(c: Constants, experts: Number) -> tuple[Number, Number, Number, Number]:
    r"""Return $m, \mu, n, \nu$ of $L = m N^\mu + n D^\nu + c$ at so many experts, as Ludziejewski et al. list them in Table 4.

    >>> law = dict(a=35.91, alpha=-.1889, delta=-.2285, gamma=.0098, b=35.98, beta=-.1775, omega=.5529, zeta=-.0259,
    ...            E_start=2.0732, E_max=290.4521)
    >>> [round(float(x), 2 if x > 1 else 4) for x in reduced(law, 8)]
    [21.84, -0.1676, 119.84, -0.2339]
    """
    effective_experts = saturated(experts, c["E_start"], c["E_max"])
    size = c["a"] * effective_experts ** c["delta"], c["alpha"] + c["gamma"] * np.log(effective_experts)
    return *size, c["b"] * effective_experts ** c["omega"], c["beta"] + c["zeta"] * np.log(effective_experts)


def _joint(c: Constants, params: Number, tokens: Number, inputs: LawInputs) -> Number:
    m, mu, n, nu = reduced(c, inputs.experts)
    return c["c"] + power_term(m, params, -np.asarray(mu)) + power_term(n, tokens, -np.asarray(nu))


def _joint_tokens(c: Constants, params: Number, loss: Number, inputs: LawInputs) -> Number:
    m, mu, n, nu = reduced(c, inputs.experts)
    return left_for_tokens(n, -np.asarray(nu), loss - c["c"] - power_term(m, params, -np.asarray(mu)))


def _sparse_floor(c: Constants, params: Number, inputs: LawInputs) -> Number:
    """Return the loss with endless tokens: parameters count in all, active ones over 1 - S."""
    active_share = 1 - np.asarray(inputs.sparsity, dtype=float)
    total = params / active_share
    mixed = c["c"] / active_share ** c["lam"] + power_term(c["d"] / active_share ** c["delta"], total, c["gamma"])
    return c["e"] + power_term(c["a"], total, c["alpha"]) + mixed


def _sparse(c: Constants, params: Number, tokens: Number, inputs: LawInputs) -> Number:
    return _sparse_floor(c, params, inputs) + power_term(c["b"], tokens, c["beta"])


def _sparse_tokens(c: Constants, params: Number, loss: Number, inputs: LawInputs) -> Number:
    return left_for_tokens(c["b"], c["beta"], loss - _sparse_floor(c, params, inputs))


MIXED: Final[dict[str, Form]] = {
    "routed": Form(
        formula="log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d, Ê from E between E_start and E_max; no tokens",
        constants=("a", "b", "c", "d", "E_start", "E_max"),
        takes=("experts",),
        loss=_clark,
    ),
    "granular": Form(
        formula="L = c + (g / G^gamma + a) / N^alpha + b / D^beta, N in all; dense models: without g, by the _dense constants",
        constants=("c", "a", "alpha", "b", "beta", "g", "gamma", "a_dense", "alpha_dense", "b_dense", "beta_dense",
                   "total_of_active"),
        takes=("experts", "granularity"),
        loss=_granular,
        tokens=_granular_tokens,
    ),
    "joint": Form(
        formula="L = a Ê^delta N^(alpha + gamma ln Ê) + b Ê^omega D^(beta + zeta ln Ê) + c",
        constants=("a", "alpha", "delta", "gamma", "b", "beta", "omega", "zeta", "E_start", "E_max", "c"),
        takes=("experts",),
        loss=_joint,
        tokens=_joint_tokens,
    ),
    "sparse": Form(
        formula="L = a / N^alpha + b / D^beta + c / (1-S)^lam + d / ((1-S)^delta N^gamma) + e, N in all",
        constants=("a", "alpha", "b", "beta", "c", "lam", "d", "delta", "gamma", "e"),
        takes=("sparsity",),
        loss=_sparse,
        tokens=_sparse_tokens,
    ),
}  # fmt: skip
FORMS: Final[dict[str, Form]] = DENSE | MIXED
"""Every form by its name."""
