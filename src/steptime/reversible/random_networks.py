r"""Networks as ciphers: random ones, with and without residual paths and layer norms, and one that is trained. Section 18.

A layer is $h \to W \tanh(h)$, or with a residual path $h \to h + W \tanh(h)$, of a normed $h$ or of $h$ itself; $W$ is
Gaussian of variance $g^2 / n$. Of two inputs, the correlation $c$ goes from layer to layer by the correlation map of mean-field
theory (Poole et al., arXiv 1606.05340), exact for wide networks:

$$ q' = [q +] g^2 E[\tanh^2], \qquad q' c' = [q c +] g^2 E[\tanh(u) \tanh(v)] $$

over Gaussians $u, v$ of variance $q$ (1 after a norm) and correlation $c$. Without residual paths and with $g$ above 1
inputs part like a cipher's; a residual path adds the old correlation at each layer and keeps them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from steptime.errors import UnknownName
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
"""Kinds of random networks: whether they have residual paths, and layer norms."""
NODES = 64  # of Gauss-Hermite quadrature
DEEPEST, WIDEST = 1000, 4096


def network_features(name: str) -> tuple[bool, bool]:
    """Return whether a kind of network has residual paths, and layer norms."""
    if name not in KINDS:
        raise UnknownName("kind of network", name, KINDS, "Known: " + "; ".join(KINDS) + ".")
    return KINDS[name]


def random_weights(draw: np.random.Generator, depth: int, width: int, gain: float = GAIN) -> list[Array]:
    """Return a square of weights for each layer, the first of variance 1 / width as it is fed signs."""
    depth, width = (
        whole_number("depth", depth, maximum=DEEPEST, unit="layer"),
        whole_number("width", width, minimum=2, maximum=WIDEST),
    )
    return [draw.normal(0, (gain if layer else 1.0) / math.sqrt(width), (width, width)) for layer in range(depth)]


def pairs(draw: np.random.Generator, samples: int, width: int) -> tuple[Array, Array]:
    """Return random signs [samples x width], and the same with one of each sample flipped."""
    x = draw.choice((-1.0, 1.0), size=(samples, width))
    flipped = x.copy()
    flipped[np.arange(samples), draw.integers(0, width, size=samples)] *= -1
    return x, flipped


def layers(x: Array, weights: list[Array], *, residual: bool, normed: bool) -> Iterator[Array]:
    """Yield what comes out of each layer; the first is a matrix alone."""
    h = x @ weights[0]
    yield h
    for matrix in weights[1:]:
        fed = (h - h.mean(axis=1, keepdims=True)) / h.std(axis=1, keepdims=True) if normed else h
        h = (h if residual else 0.0) + np.tanh(fed) @ matrix
        yield h


def expected_shares(depth: int, width: int, *, residual: bool, normed: bool, gain: float = GAIN) -> Array:
    """Return the share of signs that one flipped input flips after each layer, by the correlation map.

    >>> expected_shares(3, 256, residual=False, normed=False).round(4).tolist()
    [0.0398, 0.0432, 0.0471]
    """
    q, c, shares = 1.0, 1 - 2 / width, []
    for layer in range(depth):
        if layer:
            square, product = _moments(1.0 if normed else q, c, gain)
            before = q if residual else 0.0
            c, q = (before * c + product) / (before + square), before + square
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

GROUPS, VOTERS = 7, 5  # of the task: the majority of each group of inputs
DEPTH, HIDDEN, STEPS, SAMPLES, RATE = 4, 64, 1500, 48, 3e-3  # products so small that no second thread is worth its start


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One network before and after it has learnt which way each group of its inputs votes."""

    inputs: int = field(metadata=unit("", "signs that it reads"))
    outputs: int = field(metadata=unit("", "signs that it gives"))
    random: float = field(metadata=unit("", "share of outputs that one flipped input flips before training"))
    trained: float = field(metadata=unit("", "after training"))
    expected: float = field(metadata=unit("", "of the task itself, by counting"))
    accuracy: float = field(metadata=unit("", "share of outputs that the trained network gets right"))


def trained_and_random(*, steps: int = STEPS, seed: int = 0) -> Trained:
    """Train a random network by gradient descent (Adam) on the majority of each group of inputs; return both avalanches."""
    draw, inputs = np.random.default_rng(seed), GROUPS * VOTERS
    sizes = [inputs, *[HIDDEN] * (DEPTH - 1), GROUPS]
    weights = [draw.normal(0, (GAIN if n else 1) / math.sqrt(a), (a, b)) for n, (a, b) in enumerate(pairwise(sizes))]
    before = _flips(draw, weights)
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    for step in range(1, whole_number("steps", steps, maximum=1_000_000) + 1):
        x = draw.choice((-1.0, 1.0), size=(SAMPLES, inputs))
        for number, slope in enumerate(_slopes(x, weights)):
            first, second = (0.9 * moments[number][0] + 0.1 * slope, 0.999 * moments[number][1] + 0.001 * slope**2)
            moments[number] = first, second
            weights[number] -= RATE * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    x = draw.choice((-1.0, 1.0), size=(4096, inputs))
    right = float(((_outputs(x, weights)[-1] > 0) == (_votes(x) > 0)).mean())
    deciding_share = math.comb(VOTERS - 1, VOTERS // 2) / 2 ** (VOTERS - 1)  # the others are tied, and one vote decides
    return Trained(
        inputs=inputs, outputs=GROUPS, random=before, trained=_flips(draw, weights),
        expected=deciding_share / GROUPS, accuracy=right,
    )  # fmt: skip


def _votes(x: Array) -> Array:
    votes: Array = np.sign(x.reshape(len(x), GROUPS, VOTERS).sum(axis=2))
    return votes


def _outputs(x: Array, weights: list[Array]) -> list[Array]:
    """Return the input, what each hidden layer gives, and the output."""
    outputs = [x]
    for matrix in weights[:-1]:
        outputs.append(np.tanh(outputs[-1] @ matrix))
    return [*outputs, outputs[-1] @ weights[-1]]


def _slopes(x: Array, weights: list[Array]) -> list[Array]:
    """Return the gradient of the logistic loss by each layer's weights."""
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
