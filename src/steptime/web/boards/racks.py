"""Board: experts or pipeline stages over several racks. Lecture sections 8 to 10."""

from __future__ import annotations

from typing import Any

import numpy as np

from steptime import blackboard
from steptime.hardware.system import System
from steptime.lecture.current_figures import Pair, build_pair
from steptime.models.model import Model
from steptime.physics.network_time import exchange
from steptime.units import show
from steptime.web.board import Answer, Board, Figure, Shared, finite_figures, question_input, slider
from steptime.web.page_subject import load_subject, python_command, refuse_long_context

# Racks of the picture.
RACKS = np.arange(1, 9)


class Inputs(Shared):
    """A number of racks, and sequences at a context."""

    racks: int = slider(2, 1, 8, "racks", "racks", "Racks (scale-up domains) of one replica.", step=1)
    batch: int = slider(8192, 1, 65_536, "batch", "sequences", "Sequences in each rack at once.", log=True)
    context: int = question_input("roofline.context", 8192, high=1_048_576, log=True)


def answer(inputs: Inputs) -> Answer:
    """Return the exchange of a layer and the memory of a chip over one to eight racks.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.

    Raises:
        WrongField: The context is too long for the model.
    """
    subject = load_subject(inputs)
    model, system = subject.model, subject.system
    refuse_long_context(model, inputs.context)
    pair = build_pair(model, system, context=inputs.context)
    weights = np.asarray(blackboard.weight_bytes_per_chip(pair.total, pair.bytes_of_weight, pair.chips, RACKS))
    cache = np.asarray(blackboard.kv_bytes_per_chip(inputs.batch, inputs.context, pair.kv_bytes, pair.chips, RACKS))
    room, index = pair.capacity / pair.chips, inputs.racks - 1
    tables: dict[str, Any] = {"held": {"racks": RACKS, "weights": weights / room, "kv": cache / room}}
    ratio = np.nan if system.is_box else float(system.scale_up.link.bandwidth) / float(system.scale_out.link.bandwidth)
    both = pair.experts > 1 and not system.is_box
    hidden = spread = RACKS * np.nan
    exchange_formula: tuple[str, ...] = ()
    if both:
        hidden = np.asarray(blackboard.pipeline_condition(pair.active_experts, model.depth / RACKS, ratio))
        spread = _spread(model, system, pair, inputs.batch, RACKS)
        closed = np.asarray(blackboard.across_racks(RACKS, ratio))
        # A hop that takes longer than the stage delays the pipeline by the ratio.
        layers = np.where(RACKS > 1, np.maximum(1.0, 1 / hidden), 1.0)
        tables["exchange"] = {"racks": RACKS, "experts": spread, "board": closed, "layers": layers}
        exchange_formula = (
            f"experts over racks, ideal: max(1/r, beta (r - 1)/r) = {closed[index]:.3g}",
            f"layers: 2 k l / beta = 2 x {pair.active_experts} x {model.depth} / {inputs.racks} / {ratio:.3g} = "
            f"{hidden[index]:.3g}",
        )
    fits = bool(weights[index] + cache[index] <= room)
    return Answer(
        tables=tables,
        marks={"racks": inputs.racks, "chips": pair.chips, "experts": float(spread[index]), "fits": fits},
        sentence=_sentence(inputs, both, system, spread[index], hidden[index], weights[index], cache[index], fits=fits),
        figures=finite_figures(
            Figure("weights of a chip", weights[index], "B", "Layers are divided over the racks."),
            Figure("cache of a chip", cache[index], "B", "Independent of the number of racks."),
            Figure("memory of a chip", room, "B"),
            Figure("scale-up over scale-out bandwidth", ratio, "x", "Bandwidth of a chip, one direction."),
            Figure("experts over racks: time", spread[index], "x", "All-to-all of the full model over that in one rack."),
            Figure("stage over its transfer: time", hidden[index], "x", "2 k l / beta, section 9: from 1 on it is hidden."),
        ),
        formula=(
            f"weights of a chip = b_w N_tot / (E P) = {show(weights[index], 'B')} on {pair.chips} x {inputs.racks} chips",
            f"cache of a chip = b L kappa / E = {inputs.batch:,} x {inputs.context:,} x {show(pair.kv_bytes, 'B')} / E",
            *exchange_formula,
        ),
        command=python_command(_program(inputs, pair)), python=_program(inputs, pair),
    )  # fmt: skip


def _program(inputs: Inputs, pair: Pair) -> str:
    """Return the program that prints weights and cache of a chip."""
    weights = f"{pair.total!r}, {pair.bytes_of_weight!r}, {pair.chips}, {inputs.racks}"
    cache = f"{inputs.batch}, {inputs.context}, {pair.kv_bytes!r}, {pair.chips}, {inputs.racks}"
    return f"(st.blackboard.weight_bytes_per_chip({weights}),\n st.blackboard.kv_bytes_per_chip({cache}))"


def _spread(model: Model, system: System, pair: Pair, batch: int, racks: Any) -> Any:
    """Return the all-to-all time of a layer over several racks, over that in one rack."""
    op = next(op for layer, _ in model.layers if (op := layer.routed) is not None)
    moved = exchange(
        system, racks * pair.chips, batch / pair.chips, 2.0 * model.width, experts=op.experts, active=round(op.active),
        expert_groups=op.expert_groups, active_groups=op.active_groups,
    )  # fmt: skip
    # Engines overlap the levels of the network, so the slowest level counts.
    seconds = np.max(np.broadcast_arrays(*moved.busy), axis=0) + moved.latency
    return np.where(racks * pair.chips <= max(op.experts, pair.chips), seconds / seconds[0], np.nan)


def _sentence(
    inputs: Inputs, both: bool, system: System, spread: float, hidden: float, weights: float, cache: float, *, fits: bool
) -> str:  # fmt: skip
    memory_words = (
        f"A chip stores {show(weights, 'B')} of weights and {show(cache, 'B')} of KV cache, which more racks do not reduce"
        + ("." if fits else ": more than its memory.")
    )
    if not both:
        none = "This machine has no scale-out network" if system.is_box else "This model has no experts"
        return f"{none}: only the memory is shown. {memory_words}"
    if inputs.racks == 1:
        return "Within one rack all links are fast. " + memory_words
    words = f"There are too few experts for {inputs.racks} racks"
    if np.isfinite(spread):
        words = f"With experts over {inputs.racks} racks, the all-to-all takes {spread:.2g} times as long as in one rack"
    layers = "is hidden" if hidden >= 1 else f"takes {1 / hidden:.2g} times as long as the transfers inside a rack"
    return f"{words}; with pipeline stages over the racks, the transfer between racks {layers}. {memory_words}"


BOARD = Board(
    name="racks", title="What does it cost to use several racks?", order=60, section=9, inputs=Inputs, answer=answer,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "system": "gb200-nvl72", "racks": 4, "batch": 2000, "context": 32768},
    today={"model": "deepseek-ai/DeepSeek-V3", "system": "gb300-nvl72", "racks": 2, "batch": 8192, "context": 8192},
    bar=("model", "system", "weights", "kv"),
)  # fmt: skip
