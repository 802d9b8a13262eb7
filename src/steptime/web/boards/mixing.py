"""Board: mixing of ciphers and networks; memory of reversible layers. Section 18."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.reversible import memory_tradeoff as memory
from steptime.reversible.avalanche import cipher_curve, network_curve
from steptime.units import percent, show
from steptime.web.board import Answer, Board, Figure, Shared, finite_figures, slider

# Pairs of blocks per cipher.
SAMPLES: Final = 4096
ROUNDS: Final = 16
CURVES: Final = {
    "feistel": "Feistel, random functions", "arx": "Speck32/64 (ARX)", "aes": "AES-128", "rows": "AES without ShiftRows",
    "columns": "AES without MixColumns", "network": "network with residual paths and layer norm",
}  # fmt: skip
LAYERS: Final = np.unique(np.geomspace(1, 512, 73).round())
# Bytes of an activation in bf16.
VALUE_BYTES: Final = 2.0


class Inputs(Shared):
    """A round of the ciphers, and a stack of layers."""

    rounds: int = slider(3, 1, ROUNDS, "round", "", "Round after which the ciphers are compared.", step=1)
    layers: int = slider(64, 1, 512, "layers", "layers", "Layers of the trained network.", log=True)
    activation_ratio: float = slider(
        16, 4, 64, "activations of a layer", "x its input", "Activations kept by a plain layer for its backward pass.", log=True
    )
    tokens: int = slider(4096, 256, 65_536, "tokens", "tokens", "Tokens of a micro-batch.", log=True, is_advanced=True)
    width: int = slider(8192, 256, 32_768, "width", "values", "Values per token between layers.", log=True, is_advanced=True)


def answer(inputs: Inputs) -> Answer:
    """Return the avalanche by round, and the activation memory by depth.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    shares, index = _shares(), inputs.rounds - 1
    stream = float(memory.stream_bytes(inputs.tokens, inputs.width, VALUE_BYTES))
    layer = inputs.activation_ratio * stream
    depths = np.unique(np.append(LAYERS, inputs.layers))
    plain, undone = float(memory.plain_bytes(inputs.layers, layer)), float(memory.reversible_bytes(stream, layer))
    checks, flop_ratio = float(_checkpointed(inputs.layers, stream, layer)), float(memory.arithmetic_ratio(2))
    return Answer(
        tables={
            "rounds": {"round": np.arange(1, ROUNDS + 1), **shares},
            "depths": {
                "layers": depths, "plain": memory.plain_bytes(depths, layer),
                "checkpointed": _checkpointed(depths, stream, layer), "reversible": np.full(depths.shape, undone),
            },
        },
        marks={
            "rounds": inputs.rounds, "feistel": shares["feistel"][index], "layers": inputs.layers, "plain": plain,
            "reversible": undone, "times": plain / undone,
        },
        sentence=_sentence(inputs, shares, plain, undone, flop_ratio),
        figures=finite_figures(
            *(
                Figure(f"{words} after {inputs.rounds}", shares[key][index], "%", CURVES[key])
                for key, words in (("feistel", "Feistel"), ("arx", "Speck (ARX)"), ("aes", "AES"), ("network", "network"))
            ),
            Figure("plain layers keep", plain, "B", "Peak activations of a chip."),
            Figure("with checkpoints", checks, "B", "At the best distance; grows with the square root of the depth."),
            Figure("reversible layers keep", undone, "B", "Two streams and the layer in its backward pass."),
            Figure("extra arithmetic", flop_ratio - 1, "%", "A second forward pass: 8 N D over 6 N D."),
        ),
        formula=(
            "Feistel: (x, y) -> (x, z = y + f(x)), inverse y = z - f(x), for any f",
            f"plain: layers x {inputs.activation_ratio:g} streams = {inputs.layers} x {show(layer, 'B')} = {show(plain, 'B')}",
            f"reversible: 2 streams + 1 layer = 2 x {show(stream, 'B')} + {show(layer, 'B')} = {show(undone, 'B')}",
            f"arithmetic: (2 forward + 2) / (1 forward + 2) = {flop_ratio:.3g}",
        ),
        command=f"steptime reversible mixing --samples {SAMPLES}",
        python="from steptime.reversible.avalanche import cipher_curve\n"
        "from steptime.reversible.memory_tradeoff import plain_bytes, reversible_bytes\n\n"
        f'share = cipher_curve("{CURVES["feistel"]}", samples={SAMPLES}).shares[{index}]\n'
        f"share, plain_bytes({inputs.layers}, {layer:.0f}), reversible_bytes({stream:.0f}, {layer:.0f})",
        notes=(f"{SAMPLES:,} pairs of blocks per cipher; for the network, signs that differ after a layer",),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _shares() -> dict[str, list[float | None]]:
    """Return the shares of all rounds by curve; None after the last round of a cipher."""
    padded: dict[str, list[float | None]] = {}
    for key, name in CURVES.items():
        curve = network_curve(name, samples=1024) if key == "network" else cipher_curve(name, samples=SAMPLES)
        padded[key] = [*curve.shares[:ROUNDS], *[None] * (ROUNDS - len(curve.shares))]
    return padded


def _checkpointed(layers: Any, stream: float, layer: float) -> Any:
    """Return the activations with checkpoints at the best whole distance."""
    every = np.clip(np.round(memory.best_checkpoint(layers, stream, layer)), 1, layers)
    return memory.checkpointed_bytes(layers, stream, layer, every)


def _sentence(inputs: Inputs, shares: dict[str, list[float | None]], plain: float, undone: float, flop_ratio: float) -> str:
    feistel, network = shares["feistel"][inputs.rounds - 1] or 0.0, shares["network"][inputs.rounds - 1] or 0.0
    after = "1 round" if inputs.rounds == 1 else f"{inputs.rounds} rounds"
    words = (
        f"After {after}, one flipped bit changes {percent(feistel)} of the bits of a Feistel cipher and "
        f"{percent(network)} of the signs of a network: a cipher needs half, a network keeps similar inputs similar. "
    )
    if plain <= undone:
        return words + "A Feistel layer is invertible, but with so few layers this does not save memory."
    return words + (
        f"A Feistel layer is invertible: {inputs.layers} such layers keep {show(undone, 'B')} instead of {show(plain, 'B')}, "
        f"at {percent(flop_ratio - 1)} more arithmetic."
    )


BOARD = Board(
    name="mixing", order=150, section=18, inputs=Inputs, answer=answer, bar=(),
    title="What do ciphers and networks share, and what do reversible layers save?",
    spoken={"rounds": 3, "layers": 64, "activation_ratio": 16},
    today={"rounds": 10, "layers": 126, "activation_ratio": 34, "tokens": 8192, "width": 16_384},
)  # fmt: skip
