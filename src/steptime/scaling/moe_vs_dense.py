r"""Mixtures of experts against dense models, by several laws.

Source: the lecture, section 6.

Each row is a law with a number of experts. It has the dense model of equal loss and the weights in memory. It has the optimal
batch $B^* = R \sigma$ and the cost per token at equal quality. At the optimal batch, arithmetic takes as long as weight reads.
The machine is ideal, and the KV cache does not count.

Laws may disagree because they were fitted to different runs. `MoeRow.beyond` gives the extrapolation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.blackboard.decode_latency import balance, multiplies
from steptime.blackboard.training_compute import optimal_batch
from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError
from steptime.hardware.number_formats import number_format, peak_rate
from steptime.hardware.system import System
from steptime.number_checks import Number, between, positive
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.scaling.compute_optimal import equivalent_dense
from steptime.scaling.law_forms import vanishing_point
from steptime.scaling.lifetime_compute import total_parameters
from steptime.scaling.scaling_laws import Law, LawLike, beyond, extrapolation_note, fitted_to, load_laws
from steptime.units import MILLION, in_digits, show

LAWS: Final = ("clark-s-base", "clark-rl-r", "clark-hash", "krajewski", "ludziejewski", "abnar")
EXPERTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SYSTEM: Final = "gb200-nvl72"
# Sequences per replica; the lecture has 2,000.
BATCH: Final = 2048.0
TOKENS_A_PARAMETER: Final = 20.0
# Feed-forward share of a layer, which gives Abnar's sparsity from the number of experts.
ROUTED: Final = {"experts": 2 / 3}
# Finest granularity of Krajewski et al.
GRANULAR: Final = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeRow:
    """A mixture of experts by one law."""

    law: str = field(metadata=unit("", "scaling law"))
    experts: float = field(metadata=unit("", "experts, of which a token uses one, or an equivalent part"))
    total_params: float = field(metadata=unit("", "total parameters, as built in the runs of the law"))
    equivalent: float = field(metadata=unit("", "parameters of the dense model of equal loss"))
    gain: float = field(metadata=unit("", "dense parameters of equal loss over active parameters"))
    sparsity: float = field(metadata=unit("", "total over active parameters"))
    optimal_batch: float = field(metadata=unit("", "sequences at which arithmetic takes as long as weight reads: R sigma"))
    weight_bytes: float = field(metadata=unit("B", "bytes of all weights"))
    chips: float = field(metadata=unit("", "chips with enough memory for the weights, without KV cache"))
    usd_per_million_tokens: float = field(
        metadata=unit("USD", "cost of output tokens at the batch, on an ideal machine", key="usd_per_million_tokens")
    )
    cost_over_dense: float = field(metadata=unit("", "cost over the dense model of equal loss at the same batch"))
    beyond: Mapping[str, float] = field(metadata=unit("", "factor of extrapolation beyond the runs of the law, by input"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MoeBoard(Tabular):
    """Mixtures with the same active parameters by several laws.

    There is one row per law and number of experts.
    """

    SCHEMA: ClassVar[str] = "steptime.moe/2"

    active: float = field(metadata=unit("", "active parameters"))
    tokens: float = field(metadata=unit("tokens", "training tokens of all models, dense and mixture"))
    system: str = field(metadata=unit("", "system"))
    weight_format: str = field(metadata=unit("", "number format of weights and arithmetic"))
    balance: float = field(metadata=unit("", "hardware balance R: multiplies per weight read"))
    batch: float = field(metadata=unit("", "decode batch per replica, in sequences"))
    rows: tuple[MoeRow, ...] = field(metadata=unit("", "rows, by law and rising number of experts"))
    vanishing: dict[str, float] = field(metadata=unit("", "parameters from which experts no longer help, by law"))
    fitted: dict[str, str] = field(metadata=unit("", "runs that each law was fitted to"))
    warnings: tuple[str, ...] = field(default=(), metadata=unit("", "warnings"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the largest gain by each law.

        Returns:
            Title, and lines by law.
        """
        title = f"Mixtures of {show(self.active)} active parameters on {show(self.tokens)} tokens"
        best: dict[str, MoeRow] = {}
        for row in self.rows:
            if row.law not in best or row.gain > best[row.law].gain:
                best[row.law] = row
        return title, {law: f"at most {in_digits(row.gain)}x, at {row.experts:g} experts" for law, row in best.items()}

    def columns(self) -> dict[str, Any]:
        """Return one row per law and number of experts.

        Returns:
            Values by column name.
        """
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
    """Return mixtures of experts by several laws, with their cost on a machine.

    Args:
        active: Active parameters per token.
        experts: Numbers of experts.
        tokens: Training tokens of all models; 20 per active parameter if None.
        law: Scaling law or several; six laws for mixtures if None.
        system: System, or its name.
        weights: Number format of weights and arithmetic.
        batch: Decode batch per replica, in sequences; below the optimal batch, weight reads cost more than arithmetic.

    Returns:
        One row per law and number of experts.

    >>> board = moe_board(370e6, experts=(64,), law="clark-s-base")
    >>> round(board.rows[0].equivalent / 1e9, 2), round(board.rows[0].gain, 1), round(board.rows[0].sparsity, 1)
    (1.37, 3.7, 22.0)
    """
    positive("active parameters", active)
    positive("batch", batch)
    token_count = TOKENS_A_PARAMETER * active if tokens is None else positive("tokens", tokens)
    laws = load_laws(LAWS if law is None else law)

    # The hardware balance gives the optimal batch of every row.
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
    # The experts of a row have their own factors.
    note = extrapolation_note([(scaling_law, beyond(scaling_law, params=active, tokens=token_count)) for scaling_law in laws])
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
        warnings=(note,) if note else (),
    )


def inputs_for_experts(law: Law, experts: float) -> dict[str, float] | None:
    """Return the inputs of a law for a number of experts.

    Args:
        law: Scaling law.
        experts: Experts, of which a token uses one, or an equivalent part.

    Returns:
        Inputs by name; None where the law does not cover this number.

    Raises:
        InputError: If the law has no experts.

    >>> from steptime.scaling.scaling_laws import load_law
    >>> inputs_for_experts(load_law("krajewski"), 64), inputs_for_experts(load_law("krajewski"), 8)
    ({'experts': 64, 'granularity': 16.0}, None)
    """
    takes = law.kind.takes
    if "sparsity" in takes:
        return {"sparsity": 1 - 1 / (1 + ROUTED["experts"] * (experts - 1))}
    if "experts" not in takes:
        raise InputError(f"{law.name} has no input for experts; take clark-s-base, krajewski, ludziejewski or abnar")
    if "experts" in law.fixed and experts not in (1, law.fixed["experts"]):
        return None
    return {"experts": experts} | ({"granularity": GRANULAR} if "granularity" in takes and experts > 1 else {})


def _rows(
    law: Law, active: float, tokens: float, counts: Number, system: System, machine: tuple[float, float, float, float]
) -> Iterator[MoeRow]:
    rate, width, ratio, batch = machine
    # USD per million tokens of a compute-bound model.
    floor = active / multiplies(rate) * float(system.rent.typical) * MILLION
    for experts in np.asarray(counts):
        inputs = inputs_for_experts(law, float(experts))
        if inputs is None:
            continue
        total = float(np.asarray(total_parameters(law, active, inputs)))
        same = float(equivalent_dense(law, active, inputs.get("experts", 1.0), tokens=tokens,
                                      **{name: value for name, value in inputs.items() if name != "experts"}))  # fmt: skip

        # Below the optimal batch, weight reads raise the cost in proportion.
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
            beyond=beyond(law, params=active, tokens=tokens, **inputs),
        )
