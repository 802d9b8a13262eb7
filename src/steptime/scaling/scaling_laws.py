"""Scaling laws by name: constants with sources, loss, and the runs of the fit.

A law is a TOML file of `data/laws` (or a file of the user), read into a `Law`. `loss`, `tokens_for` and the functions of
`compute_optimal` take a name or a `Law`.

They broadcast over parameters, tokens, further inputs, and the constants themselves. `sample_constants` returns a law with
many sets of constants, drawn from its errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from steptime.catalog.data_files import files, find
from steptime.catalog.hardware_loading import Reader
from steptime.catalog.schema import LawEntry, SpreadEntry, validated
from steptime.errors import DataFileError, InputError, RangeError, UnknownName, did_you_mean, expect, short_repr
from steptime.number_checks import LARGEST, Number, between, positive, share
from steptime.result_base import Result
from steptime.scaling.law_forms import FORMS, TRAINING_FLOP, Form, LawInputs
from steptime.units import GRADES, Figure, counted, in_digits, show

DOMAINS: Final = {
    "params": "parameters", "tokens": "tokens", "compute": "FLOP", "experts": "experts", "granularity": "granularity",
    "sparsity": "sparsity", "bits": "bits", "ratio": "tokens per parameter",
}  # fmt: skip
PLAIN: Final = LawInputs()
MOST_EXPERTS: Final = 1e6
# Largest deviation of a drawn constant, in standard deviations.
DRAWN_QUANTILE: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Joint errors of the constants of a law.

    The deviations of constants in `logs` are those of their logarithms.
    """

    names: tuple[str, ...]
    logs: tuple[str, ...]
    deviations: tuple[float, ...]
    correlations: tuple[tuple[float, ...], ...]
    url: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Law(Result):
    """A scaling law: form, constants, published errors, domain and sources.

    Constants are numbers, or arrays of one shape.
    """

    name: str
    title: str
    form: str
    year: int
    counts: str
    corpus: str = ""
    default: bool = False
    constants: Mapping[str, Number] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    spread: Spread | None = None
    fixed: Mapping[str, float] = field(default_factory=dict)
    domain: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def kind(self) -> Form:
        """Form of the law, with its functions."""
        return FORMS[self.form]

    @property
    def grade(self) -> str:
        """Worst grade of the sources of its constants."""
        grades = [self.figures[f"constants.{name}"].grade for name in self.constants if f"constants.{name}" in self.figures]
        return max(grades, key=GRADES.index, default="recalled" if self.figures else "guess")

    @property
    def lacks(self) -> tuple[str, ...]:
        """Constants that the form needs and that are unknown."""
        return tuple(name for name in self.kind.constants if name not in self.constants)

    @property
    def tells_loss(self) -> bool:
        """Whether a loss follows from parameters and tokens."""
        return self.kind.tokens is not None and not self.lacks

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the name, the formula and the runs of the fit.

        Returns:
            Title, and lines by name.
        """
        title = f"Law {self.name}: {self.title} ({self.year}, {self.grade})"
        return title, {"form": self.kind.formula, "fitted to": fitted_to(self)}


LawLike: TypeAlias = Law | str | os.PathLike[str]


def load_law(name: LawLike, catalog: str | os.PathLike[str] | None = None) -> Law:
    """Return a law by name, alias or path.

    Args:
        name: Name, alias, path to a TOML file, or a Law, which is returned.
        catalog: Folder of the catalog; the one of the package if None.

    Returns:
        Law.

    Raises:
        UnknownName: If no law has this name.

    >>> load_law("chinchilla").constants["alpha"]
    0.34
    """
    if isinstance(name, Law):
        return name
    expect("a law", name, (str, os.PathLike), "a name, a path or a Law")
    path = find("laws", os.fspath(name), catalog)
    return _load(path, path.stat().st_mtime)


def load_laws(
    names: Iterable[LawLike] | LawLike | None = None, catalog: str | os.PathLike[str] | None = None
) -> tuple[Law, ...]:
    """Return laws by name, or the default laws.

    Args:
        names: Names, paths or laws; the default laws if None.
        catalog: Folder of the catalog; the one of the package if None.

    Returns:
        Laws.

    Raises:
        InputError: If the list is empty.
    """
    if names is None:
        every = (load_law(name, catalog) for name in files("laws", catalog))
        return tuple(law for law in every if law.default)
    name_list = [names] if isinstance(names, str | os.PathLike | Law) else list(names)
    if not name_list:
        raise InputError("law: the list is empty; give a name, such as epoch (`steptime laws` lists them)")
    return tuple(load_law(name, catalog) for name in name_list)


def with_constants(law: LawLike, **constants: Number) -> Law:
    """Return a law with other constants, or with constants that were not published.

    Args:
        law: Scaling law, or its name or path.
        **constants: Constants by name.

    Returns:
        Law without errors.

    Raises:
        UnknownName: If the form has no such constant.

    >>> made = with_constants("gadre", E=1.7, a=140.0, b=190.0, eta=0.15)
    >>> round(float(loss(made, 1e9, 20e9)), 2)
    2.03
    """
    scaling_law = load_law(law)
    for name in constants:
        if name not in scaling_law.kind.constants:
            raise UnknownName(
                f"constant of {scaling_law.name}",
                name,
                scaling_law.kind.constants,
                f"It has {', '.join(scaling_law.kind.constants)}.",
            )
    return replace(scaling_law, constants={**scaling_law.constants, **constants}, spread=None, errors={})


def loss(law: LawLike, params: Number, tokens: Number, **inputs: Number) -> Number:
    """Return the loss of models by a law; broadcasts.

    Args:
        law: Scaling law, or its name or path.
        params: Active parameters.
        tokens: Training tokens, with repeats.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity` (share of parameters that a token does not
            use), `unique` tokens and `bits`.

    Returns:
        Loss [nats per token].

    Raises:
        InputError: If the law has no loss, lacks constants, or has no such input.

    >>> round(float(loss("hoffmann", 70e9, 1.4e12)), 3), loss("epoch", [1e9, 10e9], 2e12).shape
    (1.937, (2,))
    """
    scaling_law = load_law(law)
    form = _knowing(scaling_law, "loss")
    law_inputs = _check_inputs(scaling_law, inputs)
    sizes = np.asarray(positive("parameters", params), dtype=float)
    return form.loss(scaling_law.constants, sizes, np.asarray(positive("tokens", tokens), dtype=float), law_inputs)  # type: ignore[misc]


def tokens_for(law: LawLike, params: Number, at_loss: Number, **inputs: Number) -> Number:
    """Return the training tokens that models need for a loss.

    Args:
        law: Scaling law, or its name or path.
        params: Active parameters.
        at_loss: Loss to reach [nats per token].
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Tokens; infinite where no number of tokens reaches the loss.

    Raises:
        InputError: If the law has no tokens, lacks constants, or has no such input.

    >>> float(f"{tokens_for('hoffmann', 70e9, 1.9365):.3g}"), tokens_for("hoffmann", 1e9, 1.7).item()
    (1400000000000.0, inf)
    """
    scaling_law = load_law(law)
    form = _knowing(scaling_law, "tokens")
    sizes = np.asarray(positive("parameters", params), dtype=float)
    return form.tokens(scaling_law.constants, sizes, positive("loss", at_loss), _check_inputs(scaling_law, inputs))  # type: ignore[misc]


def sample_constants(law: Law, count: int, seed: int = 0) -> Law:
    """Return a law with sets of constants drawn from its joint errors.

    The first set has the published constants.

    Args:
        law: Scaling law.
        count: Number of sets.
        seed: Random seed.

    Returns:
        Law with arrays of constants, (count,).

    Raises:
        InputError: If the joint errors were not published.
    """
    if law.spread is None:
        raise InputError(f"{law.name}: the joint errors of its constants are unknown; take epoch, which has them")
    names, deviations = law.spread.names, np.asarray(law.spread.deviations)
    cov = np.asarray(law.spread.correlations) * np.outer(deviations, deviations)
    # Rounded correlations may have tiny negative eigenvalues, which are set to 0.
    values, vectors = np.linalg.eigh(cov)
    steps = np.random.default_rng(seed).standard_normal((count - 1, len(names)))
    steps = np.clip(steps, -DRAWN_QUANTILE, DRAWN_QUANTILE) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    steps = np.vstack([np.zeros(len(names)), steps])
    constants: dict[str, Number] = dict(law.constants)
    for position, name in enumerate(names):
        step = steps[:, position]
        constants[name] = law.constants[name] * np.exp(step) if name in law.spread.logs else law.constants[name] + step
    return replace(law, constants=constants)


def with_constant(law: Law, name: str, value: float) -> Law:
    r"""Return a law with one constant set, and the others at their most probable values with it.

    With the covariance $\Sigma$ of the joint errors, a step $s$ of constant $i$ moves constant $j$ by
    $s \Sigma_{ji} / \Sigma_{ii}$. This is the conditional mean of a normal distribution. One exponent alone would move losses
    by far more than the points of the law allow.

    Args:
        law: Scaling law with joint errors.
        name: Name of the constant.
        value: Its value.

    Returns:
        Law with other constants.

    Raises:
        InputError: If the joint errors were not published.

    >>> law = load_law("epoch")
    >>> flatter = with_constant(law, "alpha", 0.33)
    >>> flatter.constants["alpha"], bool(flatter.constants["A"] < law.constants["A"])
    (0.33, True)
    """
    if law.spread is None or name not in law.spread.names:
        raise InputError(f"{law.name}: the joint errors of {name} are unknown; take epoch, which has them")
    place, logs = law.spread.names.index(name), law.spread.logs
    base = float(law.constants[name])
    step = float(np.log(value / base)) if name in logs else value - base
    deviations = law.spread.deviations
    constants: dict[str, Number] = dict(law.constants)
    for constant, deviation, correlation in zip(law.spread.names, deviations, law.spread.correlations[place], strict=True):
        moved = step * correlation * deviation / deviations[place]
        start = law.constants[constant]
        constants[constant] = start * np.exp(moved) if constant in logs else start + moved
    return replace(law, constants=constants | {name: value})


def beyond(law: Law, **inputs: Number) -> dict[str, float]:
    """Return the factors by which inputs are beyond the runs of a law.

    Args:
        law: Scaling law.
        **inputs: Values by the names of the domain: params, tokens, or a further input. Parameters and tokens also give the
            ratio and the compute.

    Returns:
        Factor above 1 by name, only for inputs beyond the runs.

    >>> {name: round(far, 2) for name, far in beyond(load_law("hoffmann"), params=100e9, tokens=1e11).items()}
    {'params': 6.25}
    """
    if {"params", "tokens"} <= inputs.keys():
        params, tokens = inputs["params"], inputs["tokens"]
        compute = TRAINING_FLOP * params * tokens
        inputs = {"params": params, "tokens": tokens, "ratio": tokens / params, "compute": compute} | inputs
    factors = {}
    for name, value in inputs.items():
        if name not in law.domain or np.ndim(value):
            continue
        low, high = law.domain[name]
        number = float(value)
        if not low <= number <= high:
            factors[name] = number / high if number > high else low / number
    return factors


def in_beyond(far: Mapping[str, float], law: Law | None = None) -> str:
    """Return the extrapolation beyond the runs of a law as text.

    Args:
        far: Factors of `beyond`.
        law: Law whose runs are named in the text; none if None.

    Returns:
        Text.

    >>> in_beyond({"params": 6.25}), in_beyond({"params": 6.25}, load_law("hoffmann"))
    ('6.2x in parameters', '6.2x beyond 44.0 M to 16.0 B parameters')
    """
    # Runs without a lower end are named by their upper end.
    places = {name: f"beyond {_span(*law.domain[name]).removeprefix('up to ')}" if law else "in" for name in far}
    return " and ".join(f"{in_digits(times, 2)}x {places[name]} {DOMAINS[name]}" for name, times in far.items())


def extrapolation_note(factors: Sequence[tuple[Law, Mapping[str, float]]]) -> str:
    """Return how far laws extrapolate as one sentence: the first of them with the bounds of its runs, and how many others do.

    Args:
        factors: Laws with their factors of `beyond`.

    Returns:
        Text; "" if no law extrapolates.

    >>> hoffmann, epoch = load_law("hoffmann"), load_law("epoch")
    >>> extrapolation_note([(epoch, {}), (hoffmann, {"params": 6.25}), (epoch, {"tokens": 2.0})])
    'hoffmann extrapolates 6.2x beyond 44.0 M to 16.0 B parameters; so does 1 other law'
    """
    far = [(law, beyond_runs) for law, beyond_runs in factors if beyond_runs]
    if not far:
        return ""
    other_laws = f"; so {'does' if len(far) == 2 else 'do'} {counted(len(far) - 1, 'other law')}" if len(far) > 1 else ""
    return f"{far[0][0].name} extrapolates {in_beyond(far[0][1], far[0][0])}{other_laws}"


def _span(low: float, high: float) -> str:
    return f"{_short(low)} to {_short(high)}" if low > 0 and np.isfinite(high) else f"up to {_short(high)}"


def fitted_to(law: Law) -> str:
    """Return the runs that a law was fitted to as text.

    Args:
        law: Scaling law.

    Returns:
        Text.
    """
    spans = []
    for name, (low, high) in law.domain.items():
        spans.append(f"{_span(low, high)} {DOMAINS[name]}")
    spans += [f"{_short(value)} {DOMAINS.get(name, name)} always" for name, value in law.fixed.items()]
    return "; ".join([*([law.corpus] if law.corpus else []), *spans])


def _short(value: float) -> str:
    return in_digits(value) if value < 1e6 else (f"{value:.2g}" if value >= 1e16 else show(value))


def _knowing(law: Law, quantity: str) -> Form:
    """Return the form of a law after a check that it has a loss, or tokens for a loss."""
    if law.kind.loss is None:
        raise InputError(f"{law.name} has no loss: {law.kind.formula}")
    if quantity == "tokens" and law.kind.tokens is None:
        raise InputError(f"{law.name} has no tokens ({fitted_to(law)}); it has only sizes of equal loss")
    if law.lacks:
        raise InputError(
            f"{law.name} lacks the constants {', '.join(law.lacks)}, which are unknown; give them by "
            "steptime.scaling.scaling_laws.with_constants, or in a copy of its file"
        )
    return law.kind


def _check_inputs(law: Law, inputs: Mapping[str, Number]) -> LawInputs:
    """Return the further inputs of a law, checked; unknown inputs raise an error."""
    if not inputs:
        return PLAIN
    checked: dict[str, Any] = {}
    input_names = list(LawInputs.__dataclass_fields__)
    for name, value in inputs.items():
        if name not in input_names:
            raise UnknownName("input of a law", name, input_names, f"Known: {', '.join(input_names)}.")
        plain = getattr(PLAIN, name)
        if name not in law.kind.takes:
            # The value of the plain model has no effect, so that every law accepts it.
            if np.all(np.asarray(value) == plain):
                continue
            raise InputError(f"{law.name} has no input for {name}: {law.kind.formula}")
        checked[name] = np.asarray(_CHECKS[name](value), dtype=float)
    if "experts" in law.fixed and "experts" in checked:
        every = checked["experts"]
        if not np.all((every == 1) | (every == law.fixed["experts"])):
            raise RangeError(
                f"{law.name} has only dense models and {law.fixed['experts']:g} experts, got {short_repr(inputs['experts'])}"
            )
    return LawInputs(**checked)


_CHECKS: Final[dict[str, Any]] = {
    "experts": lambda value: between("experts", value, 1, MOST_EXPERTS),
    "granularity": lambda value: between("granularity", value, 1, MOST_EXPERTS),
    "sparsity": lambda value: share("sparsity", value, whole_too=False),
    "unique": lambda value: value if np.all(np.isposinf(value)) else positive("unique tokens", value),
    "bits": lambda value: value if np.all(np.isposinf(value)) else positive("bits", value),
}


def _any(name: str, value: Number, _: str) -> Number:
    """Return a constant, which may be below 0."""
    return between(name, value, -LARGEST, LARGEST)


@lru_cache(maxsize=128)
def _load(path: Path, _modified: float) -> Law:
    entry = validated(LawEntry, path)
    reader = Reader(path, entry.sources)
    if entry.form not in FORMS:
        near = did_you_mean(entry.form, FORMS, max_names=1)
        hint = f"; did you mean {near[0]}?" if near else f"; the forms are {', '.join(FORMS)}"
        raise DataFileError(path, f"form: unknown form {short_repr(entry.form)}{hint}", reader.line("form"))

    # A misspelled constant would otherwise count as unknown.
    for part in ("constants", "errors"):
        for name in getattr(entry, part):
            if name not in FORMS[entry.form].constants:
                constant_names = ", ".join(FORMS[entry.form].constants)
                raise DataFileError(
                    path, f"{part}.{name}: the form {entry.form} has {constant_names}", reader.line(f"{part}.{name}")
                )
    constants = {name: reader.number(f"constants.{name}", value, "", _any) for name, value in entry.constants.items()}
    return Law(
        name=entry.name,
        title=entry.title,
        form=entry.form,
        year=entry.year,
        counts=entry.counts,
        corpus=entry.corpus,
        default=entry.default,
        constants=constants,
        errors={name: reader.number(f"errors.{name}", value, "") for name, value in entry.errors.items()},
        spread=_spread(entry.spread, reader, constants) if entry.spread else None,
        fixed={name: reader.number(f"fixed.{name}", value, "") for name, value in entry.fixed.items()},
        domain={
            name: (
                reader.number(f"domain.{name}.least", span.least, "", _any) if span.least else 0.0,
                reader.number(f"domain.{name}.most", span.largest, "", _any) if span.largest else np.inf,
            )
            for name, span in entry.domain.items()
        },
        figures=reader.figures,
    )


def _spread(entry: SpreadEntry, reader: Reader, constants: Mapping[str, Number]) -> Spread:
    """Return the joint errors of the constants, checked."""
    sizes = {len(entry.names), len(entry.deviations), len(entry.correlations), *map(len, entry.correlations)}
    unknown = [name for name in (*entry.names, *entry.logs) if name not in constants]
    line = reader.line("spread")
    if unknown:
        raise DataFileError(reader.path, f"spread: there is no constant {short_repr(unknown[0])}", line)
    if len(sizes) > 1 or entry.source not in reader.sources:
        raise DataFileError(
            reader.path, "spread: needs a source, and as many deviations and rows of correlations as names", line
        )
    wrong = [deviation for deviation in entry.deviations if not 0 <= deviation <= LARGEST]
    if wrong:
        problem = f"spread.deviations: must be standard deviations of at least 0, got {short_repr(wrong[0])}"
        raise DataFileError(reader.path, problem, reader.line("spread.deviations"))
    # A matrix that is not symmetric would give wrong draws without an error.
    matrix = np.asarray(entry.correlations)
    if not np.allclose(matrix, matrix.T) or not np.allclose(np.diag(matrix), 1.0) or np.abs(matrix).max() > 1:
        raise DataFileError(reader.path, "spread.correlations: not a correlation matrix", line)
    return Spread(
        names=tuple(entry.names),
        logs=tuple(entry.logs),
        deviations=tuple(entry.deviations),
        correlations=tuple(map(tuple, entry.correlations)),
        url=reader.sources[entry.source].url,
    )
