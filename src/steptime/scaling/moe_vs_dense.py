r"""Mixtures of experts against dense models, by several laws at once: the lecture's board, section 6.

For each law and number of experts: the dense model of equal loss, what the mixture asks of a machine (weights to hold, the
batch $B^* = R \sigma$ at which its arithmetic takes as long as reading them), and what a token costs at equal quality, on an
ideal machine where the KV cache is not counted. Where laws disagree they were fitted to other runs: `MoeRow.beyond` says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.blackboard.critical_batch import optimal_batch
from steptime.blackboard.ideal_machine import balance, multiplies
from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError
from steptime.hardware.number_formats import number_format, peak_rate
from steptime.hardware.system import System
from steptime.number_checks import Number, between, positive
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.scaling.compute_optimal import TRAINING_FLOP, equivalent_dense
from steptime.scaling.law_forms import vanishing_point
from steptime.scaling.lifetime_compute import total_parameters
from steptime.scaling.scaling_laws import Law, LawLike, beyond, fitted_to, load_laws
from steptime.units import MILLION, in_digits, show

LAWS: Final = ("clark-s-base", "krajewski", "ludziejewski", "abnar")
EXPERTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SYSTEM: Final = "gb200-nvl72"
BATCH: Final = 2048.0  # sequences of a replica, the lecture's 2,000
TOKENS_A_PARAMETER: Final = 20.0
ROUTED: Final = {"experts": 2 / 3}  # Abnar's sparsity from experts: of a layer, two thirds are the feed-forward block
GRANULAR: Final = 16.0  # Krajewski's finest


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeRow:
    """A mixture by a law."""

    law: str = field(metadata=unit("", "the law"))
    experts: float = field(metadata=unit("", "experts, of which a token passes through one, or through as much as one"))
    total_params: float = field(metadata=unit("", "parameters in all, as the law's own runs were built"))
    equivalent: float = field(metadata=unit("", "parameters of the dense model of equal loss"))
    gain: float = field(metadata=unit("", "those over the active ones"))
    sparsity: float = field(metadata=unit("", "total over active parameters"))
    optimal_batch: float = field(
        metadata=unit("", "sequences at which arithmetic takes as long as reading the weights: R sigma")
    )
    weight_bytes: float = field(metadata=unit("B", "weights in all"))
    chips: float = field(metadata=unit("", "chips whose memory holds them, cache aside"))
    usd_per_million_tokens: float = field(
        metadata=unit("USD", "of output at the batch, at the peak of an ideal machine", key="usd_per_million_tokens")
    )
    cost_over_dense: float = field(metadata=unit("", "that over the dense model of equal loss at the same batch"))
    beyond: Mapping[str, float] = field(metadata=unit("", "how many times it lies outside the law's runs, by input"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MoeBoard(Tabular):
    """Mixtures of some active parameters by several laws; a row for each law and number of experts."""

    SCHEMA: ClassVar[str] = "steptime.moe/2"

    active: float = field(metadata=unit("", "parameters that a token passes through"))
    tokens: float = field(metadata=unit("tokens", "training tokens of all, dense and mixed"))
    system: str = field(metadata=unit("", "the machine"))
    weight_format: str = field(metadata=unit("", "number format of weights and arithmetic"))
    balance: float = field(metadata=unit("", "R: multiplies per weight that memory delivers"))
    batch: float = field(metadata=unit("", "sequences that decode together in a replica"))
    rows: tuple[MoeRow, ...] = field(metadata=unit("", "law by law, experts rising"))
    vanishing: dict[str, float] = field(metadata=unit("", "parameters from which experts no longer help, by law"))
    fitted: dict[str, str] = field(metadata=unit("", "what each law was fitted to"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the largest gain by each law."""
        title = f"Mixtures of {show(self.active)} active parameters on {show(self.tokens)} tokens"
        best: dict[str, MoeRow] = {}
        for row in self.rows:
            if row.law not in best or row.gain > best[row.law].gain:
                best[row.law] = row
        return title, {law: f"at most {in_digits(row.gain)}x, at {row.experts:g} experts" for law, row in best.items()}

    def columns(self) -> dict[str, Any]:
        """Return a row for each law and number of experts."""
        columns = columns_by_key(MoeRow, self.rows)
        columns.pop("beyond")
        return columns


def moe_board(
    active: float,
    *,
    experts: Sequence[float] = EXPERTS,
    tokens: float | None = None,
    law: LawLike | Sequence[LawLike] | None = None,
    system: SystemLike = SYSTEM,
    weights: str = "fp8",
    batch: float = BATCH,
) -> MoeBoard:
    """Return mixtures of `active` parameters by several laws, with what they ask of a machine.

    tokens: that all are trained on, 20 for each active parameter by default; weights: the number format of weights and
    arithmetic; batch: sequences that decode together, below the best of which reading weights costs more than arithmetic.

    >>> board = moe_board(370e6, experts=(64,), law="clark-s-base")
    >>> round(board.rows[0].equivalent / 1e9, 2), round(board.rows[0].gain, 1), round(board.rows[0].sparsity, 1)
    (1.37, 3.7, 22.0)
    """
    positive("active parameters", active)
    positive("batch", batch)
    token_count = TOKENS_A_PARAMETER * active if tokens is None else positive("tokens", tokens)
    laws = load_laws(LAWS if law is None else law)
    machine = resolve_system(system)
    kind = number_format(weights)
    rate, width = float(peak_rate(machine.chip.peak, kind.arithmetic)), kind.bytes
    ratio = float(balance(multiplies(rate), width, machine.chip.hbm.bandwidth))
    counts = np.asarray(between("experts", np.asarray(experts, dtype=float), 1, 1e6)).ravel()
    rows = [
        row
        for scaling_law in laws
        for row in _rows(scaling_law, active, token_count, counts, machine, (rate, width, ratio, batch))
    ]
    return MoeBoard(
        active=float(active),
        tokens=float(token_count),
        system=machine.name,
        weight_format=weights,
        balance=ratio,
        batch=float(batch),
        rows=tuple(rows),
        vanishing={
            scaling_law.name: float(vanishing_point(scaling_law.constants))
            for scaling_law in laws
            if scaling_law.form == "routed"
        },
        fitted={scaling_law.name: fitted_to(scaling_law) for scaling_law in laws},
    )


def inputs_for_experts(law: Law, experts: float) -> dict[str, float] | None:
    """Return the inputs by which a law knows so many experts; None where it does not know the number.

    >>> from steptime.scaling.scaling_laws import load_law
    >>> inputs_for_experts(load_law("krajewski"), 64), inputs_for_experts(load_law("krajewski"), 8)
    ({'experts': 64, 'granularity': 16.0}, None)
    """
    takes = law.kind.takes
    if "sparsity" in takes:
        return {"sparsity": 1 - 1 / (1 + ROUTED["experts"] * (experts - 1))}
    if "experts" not in takes:
        raise InputError(f"{law.name} knows nothing of experts; clark-s-base, krajewski, ludziejewski and abnar do")
    if "experts" in law.fixed and experts not in (1, law.fixed["experts"]):
        return None
    return {"experts": experts} | ({"granularity": GRANULAR} if "granularity" in takes and experts > 1 else {})


def _rows(
    law: Law, active: float, tokens: float, counts: Number, system: System, machine: tuple[float, float, float, float]
) -> Iterator[MoeRow]:
    rate, width, ratio, batch = machine
    floor = active / multiplies(rate) * float(system.rent.typical) * MILLION  # USD of a million tokens where arithmetic binds
    for experts in np.asarray(counts):
        inputs = inputs_for_experts(law, float(experts))
        if inputs is None:
            continue
        total = float(np.asarray(total_parameters(law, active, inputs)))
        same = float(equivalent_dense(law, active, inputs.get("experts", 1.0), tokens=tokens,
                                      **{name: value for name, value in inputs.items() if name != "experts"}))  # fmt: skip
        best = float(optimal_batch(ratio, total / active))
        cost = floor * max(1.0, best / batch)
        dense = floor * same / active * max(1.0, ratio / batch)
        yield MoeRow(
            law=law.name,
            experts=float(experts),
            total_params=total,
            equivalent=same,
            gain=same / active,
            sparsity=total / active,
            optimal_batch=best,
            weight_bytes=total * width,
            chips=float(np.ceil(total * width / float(system.chip.hbm.capacity))),
            usd_per_million_tokens=float(cost),
            cost_over_dense=float(cost / dense),
            beyond=_beyond(law, active, tokens, inputs),
        )


def _beyond(law: Law, active: float, tokens: float, inputs: Mapping[str, float]) -> dict[str, float]:
    """Return how far a mixture lies outside the runs of a law; Clark's tells nothing of tokens."""
    trained: dict[str, Number] = {"tokens": tokens, "compute": TRAINING_FLOP * active * tokens} if law.kind.tokens else {}
    return beyond(law, params=active, **trained, **inputs)
