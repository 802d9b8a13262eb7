"""Experts or layers over several racks: what the slow links cost, and what a chip then holds. Lecture sections 8 to 10."""

from __future__ import annotations

from typing import Any

import numpy as np

from steptime.blackboard.pipeline_stages import kv_bytes_per_chip, weight_bytes_per_chip
from steptime.blackboard.scale_out import across_racks, pipeline_condition
from steptime.hardware.system import System
from steptime.lecture.model_on_system import Pair, build_pair
from steptime.models.model import Model
from steptime.physics.network_time import exchange
from steptime.units import show
from steptime.web.board import Answer, Board, Figure
from steptime.web.board_inputs import Shared, slider
from steptime.web.page_subject import WrongField, load_subject
from steptime.web.snippets import command, python

RACKS = np.arange(1, 9)


class Inputs(Shared):
    """Sequences at a context, and racks."""

    racks: int = slider(2, 1, 8, "racks", "racks", "Racks, or scale-up domains, that one replica spans.", step=1)
    batch: int = slider(8192, 1, 65_536, "batch", "sequences", "Sequences that each rack works on at once.", log=True)
    context: int = slider(8192, 1, 1_048_576, "context", "tokens", "Tokens of context of each sequence.", log=True)


def answer(inputs: Inputs) -> Answer:
    """Return the exchange of a layer, and what a chip holds, over one to eight racks."""
    model, system = load_subject(inputs).model, load_subject(inputs).system
    if inputs.context > model.max_context:
        raise WrongField("context", f"this model has a context of at most {model.max_context:,.0f} tokens")
    pair = build_pair(model, system, context=inputs.context)
    weights = np.asarray(weight_bytes_per_chip(pair.total, pair.bytes_of_weight, pair.chips, RACKS))
    cache = np.asarray(kv_bytes_per_chip(inputs.batch, inputs.context, pair.kv_bytes, pair.chips, RACKS))
    room, index = pair.capacity / pair.chips, inputs.racks - 1
    tables: dict[str, Any] = {"held": {"racks": RACKS, "weights": weights / room, "kv": cache / room}}
    ratio = np.nan if system.is_box else float(system.scale_up.link.bandwidth) / float(system.scale_out.link.bandwidth)
    both = pair.experts > 1 and not system.is_box
    hidden = np.asarray(pipeline_condition(pair.active_experts, model.depth / RACKS, ratio) if both else RACKS * np.nan)
    spread = _spread(model, system, pair, inputs.batch, RACKS) if both else RACKS * np.nan
    exchange_formula: tuple[str, ...] = ()
    if both:
        closed = np.asarray(across_racks(RACKS, ratio))
        layers = np.where(RACKS > 1, np.maximum(1.0, 1 / hidden), 1.0)
        tables["exchange"] = {"racks": RACKS, "experts": spread, "board": closed, "layers": layers}
        exchange_formula = (
            f"experts over racks, the board: max(1/r, beta (r - 1)/r) = {closed[index]:.3g}",
            f"layers: 2 k l / beta = 2 x {pair.active_experts} x {model.depth} / {inputs.racks} / {ratio:.3g} = {hidden[index]:.3g}",
        )
    fits = bool(weights[index] + cache[index] <= room)
    return Answer(
        tables=tables,
        marks={"racks": inputs.racks, "chips": pair.chips, "experts": float(spread[index]), "fits": fits},
        sentence=_sentence(
            inputs, pair, system, tuple(float(curve[index]) for curve in (spread, hidden, weights, cache)), fits=fits
        ),
        figures=tuple(
            Figure(name=name, value=float(value), unit=unit, words=words)
            for name, value, unit, words in (
                ("weights of a chip", weights[index], "B", "Layers divided over the racks."),
                ("cache of a chip", cache[index], "B", "The same over any number of racks."),
                ("memory of a chip", room, "B", ""),
                ("links inside over outside", ratio, "", "Bandwidth of a chip, one direction."),
                ("experts spread: time x", spread[index], "", "An exchange of the full model over that in one rack."),
                ("pipeline condition", hidden[index], "", "2 k l / beta, section 9: from 1 on the hop hides."),
            )
            if np.isfinite(value)
        ),
        formula=(
            f"weights of a chip = b_w N_tot / (E P) = {show(weights[index], 'B')} on {pair.chips} x {inputs.racks} chips",
            f"cache of a chip = b L kappa / E = {inputs.batch:,} x {inputs.context:,} x {show(pair.kv_bytes, 'B')} / E",
            *exchange_formula,
        ),
        command=command("roofline", inputs, {"--context": inputs.context}),
        python=python(f"st.blackboard.kv_bytes_per_chip({inputs.batch}, {inputs.context}, {pair.kv_bytes!r}, {pair.chips}, 1)"),
    )  # fmt: skip


def _spread(model: Model, system: System, pair: Pair, batch: int, racks: Any) -> Any:
    """Return the full model's exchange of one layer with experts over all chips of so many racks, over that in one."""
    op = next(op for layer, _ in model.layers if (op := layer.routed) is not None)
    moved = exchange(
        system, racks * pair.chips, batch / pair.chips, 2.0 * model.width, experts=op.experts, active=round(op.active),
        expert_groups=op.expert_groups, active_groups=op.active_groups,
    )  # fmt: skip
    seconds = np.max(np.broadcast_arrays(*moved.busy), axis=0) + moved.latency  # the levels at once, as engines overlap them
    return np.where(racks * pair.chips <= max(op.experts, pair.chips), seconds / seconds[0], np.nan)


def _sentence(inputs: Inputs, pair: Pair, system: System, values: tuple[float, ...], *, fits: bool) -> str:
    spread, hidden, weights, cache = values
    memory_words = (
        f"A chip holds {show(weights, 'B')} of weights and {show(cache, 'B')} of cache, which more racks do not lessen"
    )
    memory_words += "." if fits else ": more than its memory."
    if system.is_box or pair.experts == 1:
        none = "This machine has no network beyond its chips" if system.is_box else "This model has no experts to exchange"
        return f"{none}: only its memory is drawn. {memory_words}"
    if inputs.racks == 1:
        return "Within one rack every link is fast. " + memory_words
    words = f"There are too few experts for {inputs.racks} racks"
    if np.isfinite(spread):
        words = f"Experts over {inputs.racks} racks exchange for {spread:.2g} times as long as in one"
    layers = "hides behind the fast ones" if hidden >= 1 else f"takes {1 / hidden:.2g} times as long as the fast ones"
    return f"{words}; with layers over them the slow link {layers}. {memory_words}"


BOARD = Board(
    name="racks",
    title="What does leaving the rack cost?",
    order=60,
    section=9,
    inputs=Inputs,
    answer=answer,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "system": "gb200-nvl72", "racks": 4, "batch": 2000, "context": 32768},
    today={"model": "deepseek-ai/DeepSeek-V3", "system": "gb300-nvl72", "racks": 2, "batch": 8192, "context": 8192},
    bar=("model", "system", "weights", "kv"),
)
