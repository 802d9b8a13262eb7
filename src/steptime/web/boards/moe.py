"""Board: dense equivalent, weights and price of a mixture of experts. Section 6."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime import blackboard
from steptime.number_checks import Array
from steptime.scaling.compute_optimal import equivalent_dense
from steptime.scaling.lifetime_compute import total_parameters
from steptime.scaling.moe_vs_dense import MoeBoard, MoeRow, inputs_for_experts, moe_board
from steptime.scaling.scaling_laws import DOMAINS, beyond, load_law
from steptime.units import in_digits, show
from steptime.web.board import Answer, Board, Figure, Shared, choice, question_input, slider
from steptime.web.page_subject import load_subject, require_rent, subject_names

BILLION, TRILLION, MAX_EXPERTS = 1e9, 1e12, 1024
COUNTS: Final = tuple(2.0 ** (n / 2) for n in range(21))
LAWS: Final = ("clark-s-base", "ludziejewski", "abnar")
# A law that was fitted at one number of experts only.
POINT: Final = ("krajewski", 64.0)
# Largest gain that is shown: beyond it a law is far outside its fitted runs.
MOST_GAIN: Final = 100.0


class Inputs(Shared):
    """Experts and active parameters, a law, and a serving batch."""

    experts: int = slider(64, 1, MAX_EXPERTS, "experts", "experts", "Number of experts; each token uses one.", log=True)
    active: float = slider(37, 0.05, 1000, "active parameters", "billion", "Parameters that each token uses.", log=True)
    batch: int = question_input("step.batch", 2048, high=65_536, log=True)
    law: str = choice("clark-s-base", LAWS, "law", "MoE scaling law of the main curve.")
    tokens: float = slider(14.8, 0.01, 300, "training tokens", "trillion", "Of both models.", log=True, is_advanced=True)


def answer(inputs: Inputs) -> Answer:
    """Return mixtures over all numbers of experts by several laws, and the chosen one.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.

    Raises:
        WrongField: The rent of the system is not known.
    """
    subject = load_subject(inputs)
    require_rent(subject, "a token")
    system, weights = subject_names(inputs)[1], inputs.weights or "fp8"
    active, tokens = inputs.active * BILLION, inputs.tokens * TRILLION
    arguments: dict[str, Any] = {"tokens": tokens, "system": subject.system, "weights": weights, "batch": inputs.batch}
    board = moe_board(active, experts=(1.0, inputs.experts), law=inputs.law, **arguments)
    dense, row = board.rows
    point = moe_board(active, experts=(POINT[1],), law=POINT[0], **arguments).rows[0]
    curves = {law: _curve(law, active, tokens) for law in LAWS}
    sizes = curves[inputs.law][1]
    # The first entry is the dense model.
    best = blackboard.optimal_batch(board.balance, np.append(1.0, sizes))
    used = np.asarray(blackboard.utilisation(blackboard.memory_over_compute(inputs.batch, 0.0, best, np.inf)))
    return Answer(
        tables={"mixtures": {
            "experts": COUNTS, "weights": sizes, "price": used[0] / used[1:], **{law: curves[law][0] for law in LAWS},
            **{f"{law}, fitted": np.where(inside, gains, np.nan) for law, (gains, _, inside) in curves.items()},
        }},
        marks={
            "experts": inputs.experts, "gain": row.gain if row.gain <= MOST_GAIN else None, "law": inputs.law,
            "names": {law: _law_label(law) for law in (*LAWS, POINT[0])},
            "other": {"law": POINT[0], "experts": POINT[1], "gain": point.gain if point.gain <= MOST_GAIN else None},
        },
        sentence=_sentence(inputs, row, price := row.usd_per_million_tokens / dense.usd_per_million_tokens),
        figures=(
            Figure("dense equivalent", row.equivalent, "", "Dense model of equal loss on equal tokens, by the law."),
            Figure("total parameters", row.total_params, "", "With the architecture of the law's runs."),
            Figure("weights", row.weight_bytes, "B"),
            Figure("chips that hold them", row.chips, "chips", "By weights only, without KV caches."),
            Figure("B*", row.optimal_batch, "sequences", "From here on the weights add no time."),
            Figure("per million tokens", row.usd_per_million_tokens, "USD", "Ideal, without KV caches."),
            Figure("over the dense equivalent", row.cost_over_dense, "x", "Cost of a token at equal loss."),
        ),
        formula=(
            f"gain = {show(row.equivalent)} / {show(board.active)} = {row.gain:.3g} times",
            f"sigma = N_tot / N_act = {show(row.total_params)} / {show(board.active)} = {row.sparsity:.3g}",
            f"price = max(1, R sigma / B) / max(1, R / B) = {in_digits(price)}, R = {board.balance:,.0f}, B = {inputs.batch:,}",
        ),
        notes=_notes(inputs, board, row),
        command=f"steptime laws --moe {active:g} --tokens {tokens:g} --experts {inputs.experts} --batch {inputs.batch} "
        f"--system {system} --weights {weights}",
        python=f"st.moe_board({board.active:g}, experts=({inputs.experts},), tokens={board.tokens:g}, law={inputs.law!r},\n"
        f"             system={system!r}, weights={weights!r}, batch={inputs.batch}).rows[0]",
    )  # fmt: skip


@lru_cache(maxsize=512)
def _curve(name: str, active: float, tokens: float) -> tuple[Array, Array, Array]:
    """Return gain, total over active parameters, and validity, by number of experts."""
    law = load_law(name)
    every = [inputs_for_experts(law, count) or {} for count in COUNTS]
    columns = {key: np.array([inputs[key] for inputs in every]) for key in every[0]}
    sizes = np.array([float(np.asarray(total_parameters(law, active, inputs))) for inputs in every]) / active
    inside = np.array([not beyond(law, params=active, tokens=tokens, **inputs) for inputs in every])
    same = equivalent_dense(law, active, columns.pop("experts", 1.0), tokens=tokens, **columns)
    return np.where(same <= MOST_GAIN * active, same / active, np.nan), sizes, inside


def _law_label(law: str) -> str:
    return f"{law.partition('-')[0].capitalize()} {load_law(law).year}"


def _sentence(inputs: Inputs, row: MoeRow, price: float) -> str:
    words = f"{inputs.experts:,} experts, {show(inputs.active * BILLION)} active, take {row.sparsity:.3g} times the weights "
    if not row.gain <= MOST_GAIN:
        return words + "and, by this law, a gain above a hundredfold: far beyond the runs that it was fitted to."
    words += f"and equal a dense model of {show(row.equivalent)} parameters, {row.gain:.3g} times as large. "
    if price <= 1.001:
        return words + f"At {inputs.batch:,} sequences a token costs no more than with the active parameters only: a pure gain."
    verdict = "less than" if row.cost_over_dense < 0.995 else "more than" if row.cost_over_dense > 1.005 else "the same as"
    words += f"At {inputs.batch:,} sequences a token costs {in_digits(price)} times as much, {verdict} in that dense model; "
    return words + f"from {row.optimal_batch:,.0f} sequences on, the extra weights cost nothing."


def _notes(inputs: Inputs, board: MoeBoard, row: MoeRow) -> tuple[str, ...]:
    notes = [f"{_law_label(inputs.law)} was fitted to {board.fitted[inputs.law]}"]
    notes += [f"the {DOMAINS[name]} here are {far:,.3g} times outside those runs" for name, far in row.beyond.items()]
    notes += [f"by this law experts no longer help above {show(size)} active parameters" for size in board.vanishing.values()]
    return (*notes, "dotted: outside the fitted runs of a law")


BOARD = Board(
    name="moe", title="How much better is a model with more experts?", order=130, section=6, inputs=Inputs, answer=answer,
    spoken={"system": "gb200-nvl72", "experts": 64, "active": 0.37, "tokens": 0.13, "batch": 2000},
    today={"system": "gb300-nvl72", "experts": 256, "active": 37, "tokens": 14.8, "batch": 8192, "law": "ludziejewski"},
    bar=("system", "weights"),
)  # fmt: skip
