r"""Random networks as ciphers, with and without residual paths and layer norms.

Lecture section 18. A layer is $h \to W \tanh(h)$, or $h \to h + W \tanh(h)$ with a residual path; a layer norm may
come before the tanh. $W$ is Gaussian of variance $g^2 / n$.

The correlation $c$ of two inputs changes from layer to layer by the correlation map of mean-field theory (Poole et
al., arXiv 1606.05340). The map is exact for wide networks:

$$ q' = [q +] g^2 E[\tanh^2], \qquad q' c' = [q c +] g^2 E[\tanh(u) \tanh(v)]. $$

The expectations are over Gaussians $u, v$ of variance $q$ (1 after a norm) and correlation $c$. Without residual
paths and with $g$ above 1, two inputs separate as in a cipher. A residual path adds the old correlation at each
layer, so the inputs stay similar.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from steptime.number_checks import Array, whole_number
from steptime.result_base import unit

GAIN: Final = 5 / 3
"""Gain g of random weights before tanh: PyTorch's nn.init.calculate_gain("tanh")."""
KINDS: Final = {
    "network, random": (False, False),
    "network with layer norm": (False, True),
    "network with residual paths": (True, False),
    "network with residual paths and layer norm": (True, True),
}
"""Kinds of random networks: whether they have residual paths, and whether they have layer norms."""
# Nodes of the Gauss-Hermite quadrature.
NODES = 64
# Largest depth and width.
DEEPEST, WIDEST = 1000, 4096


def random_weights(draw: np.random.Generator, depth: int, width: int, gain: float = GAIN) -> list[Array]:
    """Draw a square weight matrix for each layer.

    The first matrix has variance 1 / width, because its inputs are signs; the others have gain**2 / width.

    Args:
        draw: Random generator.
        depth: Layers, 1 to 1,000.
        width: Values of a layer, 2 to 4,096.
        gain: Gain of the weights before tanh.

    Returns:
        Matrices [width x width], one per layer.
    """
    depth = whole_number("depth", depth, maximum=DEEPEST, unit="layer")
    width = whole_number("width", width, minimum=2, maximum=WIDEST)
    return [draw.normal(0, (gain if layer else 1.0) / math.sqrt(width), (width, width)) for layer in range(depth)]


def pairs(draw: np.random.Generator, samples: int, width: int) -> tuple[Array, Array]:
    """Draw random signs, and the same signs with one of each sample flipped.

    Args:
        draw: Random generator.
        samples: Number of samples.
        width: Signs of a sample.

    Returns:
        Both arrays [samples x width].
    """
    x = draw.choice((-1.0, 1.0), size=(samples, width))
    flipped = x.copy()
    flipped[np.arange(samples), draw.integers(0, width, size=samples)] *= -1
    return x, flipped


def layers(x: Array, weights: list[Array], *, residual: bool, normed: bool) -> Iterator[Array]:
    """Yield the output of each layer; the first layer is a matrix product only.

    Args:
        x: Inputs [samples x width].
        weights: Matrices [width x width], one per layer.
        residual: Whether a layer adds its input to its output.
        normed: Whether a layer norm comes before the tanh.

    Yields:
        Outputs [samples x width] of each layer.
    """
    h = x @ weights[0]
    yield h
    for matrix in weights[1:]:
        fed = (h - h.mean(axis=1, keepdims=True)) / h.std(axis=1, keepdims=True) if normed else h
        h = (h if residual else 0.0) + np.tanh(fed) @ matrix
        yield h


def expected_shares(depth: int, width: int, *, residual: bool, normed: bool, gain: float = GAIN) -> Array:
    """Return the expected share of flipped signs by the correlation map.

    Args:
        depth: Layers.
        width: Values of a layer; one of the inputs is flipped.
        residual: Whether a layer adds its input to its output.
        normed: Whether a layer norm comes before the tanh.
        gain: Gain of the weights before tanh.

    Returns:
        Share of signs that differ, one value per layer.

    >>> expected_shares(3, 256, residual=False, normed=False).round(4).tolist()
    [0.0398, 0.0432, 0.0471]
    """
    q, c, shares = 1.0, 1 - 2 / width, []
    for layer in range(depth):
        if layer:
            square, product = _moments(1.0 if normed else q, c, gain)
            before = q if residual else 0.0
            c, q = (before * c + product) / (before + square), before + square
        # Rounding can lift the correlation slightly above 1.
        shares.append(math.acos(min(c, 1.0)) / math.pi)
    return np.array(shares)


def _moments(q: float, c: float, gain: float) -> tuple[float, float]:
    """Return g^2 E[tanh(u)^2] and g^2 E[tanh(u) tanh(v)] over Gaussians of variance q and correlation c."""
    nodes, weight = np.polynomial.hermite_e.hermegauss(NODES)
    weight = weight / weight.sum()
    u = np.tanh(math.sqrt(q) * nodes)
    v = np.tanh(math.sqrt(q) * (c * nodes[:, None] + math.sqrt(max(0.0, 1 - c * c)) * nodes))
    return gain**2 * float(weight @ u**2), gain**2 * float((weight * u) @ (v @ weight))


# --- training -----------------------------------------------------------------------------------------------------------

# The task: the majority of each group of inputs.
GROUPS, VOTERS = 7, 5
# Layers, hidden width, steps, batch and learning rate. The matrix products are too small to gain from a second thread.
DEPTH, HIDDEN, STEPS, SAMPLES, RATE = 4, 64, 1500, 48, 3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One network before and after it learned the majority of each group of inputs."""

    inputs: int = field(metadata=unit("", "input signs"))
    outputs: int = field(metadata=unit("", "output signs"))
    random: float = field(metadata=unit("", "share of outputs that one flipped input flips before training"))
    trained: float = field(metadata=unit("", "share of outputs that one flipped input flips after training"))
    expected: float = field(metadata=unit("", "share of outputs that one flipped input flips in the task itself, by counting"))
    accuracy: float = field(metadata=unit("", "share of outputs that the trained network gets right"))


def trained_and_random(*, steps: int = STEPS, seed: int = 0) -> Trained:
    """Train a random network on group majorities; measure its avalanche twice.

    The optimizer is Adam with the logistic loss.

    Args:
        steps: Training steps.
        seed: Seed of the random generator.

    Returns:
        Avalanche before and after training, and the accuracy.
    """
    draw, inputs = np.random.default_rng(seed), GROUPS * VOTERS
    sizes = [inputs, *[HIDDEN] * (DEPTH - 1), GROUPS]
    weights = [draw.normal(0, (GAIN if n else 1) / math.sqrt(a), (a, b)) for n, (a, b) in enumerate(pairwise(sizes))]
    before = _flips(draw, weights)
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    for step in range(1, whole_number("steps", steps, maximum=1_000_000) + 1):
        x = draw.choice((-1.0, 1.0), size=(SAMPLES, inputs))
        for number, slope in enumerate(_slopes(x, weights)):
            # Adam: moving averages of the gradient and of its square.
            first, second = 0.9 * moments[number][0] + 0.1 * slope, 0.999 * moments[number][1] + 0.001 * slope**2
            moments[number] = first, second
            weights[number] -= RATE * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    x = draw.choice((-1.0, 1.0), size=(4096, inputs))
    right = float(((_outputs(x, weights)[-1] > 0) == (_votes(x) > 0)).mean())
    # A vote decides its group exactly if the other votes are tied.
    deciding_share = math.comb(VOTERS - 1, VOTERS // 2) / 2 ** (VOTERS - 1)
    return Trained(
        inputs=inputs, outputs=GROUPS, random=before, trained=_flips(draw, weights),
        expected=deciding_share / GROUPS, accuracy=right,
    )  # fmt: skip


def _votes(x: Array) -> Array:
    votes: Array = np.sign(x.reshape(len(x), GROUPS, VOTERS).sum(axis=2))
    return votes


def _outputs(x: Array, weights: list[Array]) -> list[Array]:
    """Return the input, the output of each hidden layer, and the final output."""
    outputs = [x]
    for matrix in weights[:-1]:
        outputs.append(np.tanh(outputs[-1] @ matrix))
    return [*outputs, outputs[-1] @ weights[-1]]


def _slopes(x: Array, weights: list[Array]) -> list[Array]:
    """Return the gradient of the logistic loss for the weights of each layer."""
    outputs, votes = _outputs(x, weights), _votes(x)
    slope = -votes / (1 + np.exp(np.clip(votes * outputs[-1], -50, 50))) / len(x)
    gradients = []
    for number in reversed(range(len(weights))):
        gradients.append(outputs[number].T @ slope)
        slope = (slope @ weights[number].T) * (1 - outputs[number] ** 2)
    return gradients[::-1]


def _flips(draw: np.random.Generator, weights: list[Array], samples: int = 8192) -> float:
    both = pairs(draw, samples, len(weights[0]))
    signs, flipped_signs = (_outputs(x, weights)[-1] > 0 for x in both)
    return float((signs != flipped_signs).mean())
