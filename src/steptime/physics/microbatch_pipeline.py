r"""Micro-batch pipeline: the period and the latency of a step over pipeline stages.

Let $c$, $s$ and $n$ be the seconds of one micro-batch in all stages together: on operators of layers, on the stem
(embedding and head) and on collectives. Let $h$ be its seconds on hops between stages, and $\varphi$ the share of the
layers in the stage with the most layers. A stage must process all $m$ micro-batches, on its arithmetic and on its links. A
micro-batch must pass all stages before its next token:

$$ t = \max(m (\varphi c + s),\; m \varphi n,\; c + s + n + h) $$

One micro-batch on one stage takes $c + s + n$. With two, the collectives of one overlap with the operators of the other
(two-batch overlap), at the cost of reading the weights twice. With $P$ micro-batches on $P$ stages it is the looped
pipeline of lecture section 10.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from steptime.number_checks import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """A cycle of micro-batches: `period` and `latency` [s], and weights of the parts.

    The weights times the seconds of the parts add up to the period. Collectives that overlap with operators
    have the weight 0.
    """

    period: Number
    latency: Number
    layers: Number
    stem: Number
    links: Number
    hops: Number

    def slowed(self, factor: Number) -> Cycle:
        """Return the cycle with all times multiplied by `factor`.

        Args:
            factor: A factor, or an array.

        Returns:
            The slower cycle.
        """
        return Cycle(**{f.name: getattr(self, f.name) * factor for f in fields(self)})


def cycle(layers: Number, stem: Number, links: Number, hops: Number, *, microbatches: Number, share: Number) -> Cycle:
    r"""Return the cycle of `microbatches` micro-batches over pipeline stages.

    The latency is from the start of the first micro-batch to the end of the last. One micro-batch spends $a = \varphi (c +
    n) + s$ in the stage with the most layers, and the rest of its time elsewhere. That stage processes all $m$, each in
    $a$, or in $t / m$ where micro-batches overlap in it: $c + s + n + h - a + \min(t, m a)$. On one stage the latency is
    the period. The formula is exact without collectives where the stem is in the stage with the most layers. With
    collectives it ignores how those of neighbouring micro-batches interlock.

    Args:
        layers: Seconds of one micro-batch on operators of layers, in all stages together.
        stem: Seconds on embedding and head.
        links: Seconds on collectives.
        hops: Seconds on transfers between stages.
        microbatches: Number of micro-batches.
        share: Share of the layers in the stage with the most layers; 1 for one stage.

    Returns:
        The cycle, with the broadcast shape of the arguments.

    >>> one = cycle(3.0, 0.0, 1.0, 0.0, microbatches=1, share=1.0)
    >>> float(one.period), float(one.latency)
    (4.0, 4.0)
    >>> two = cycle(3.0, 0.0, 1.0, 0.0, microbatches=2, share=1.0)  # collectives hide
    >>> float(two.period), float(two.layers), float(two.links)
    (6.0, 2.0, 0.0)
    >>> loop = cycle(8.0, 0.0, 0.0, 0.0, microbatches=4, share=0.25)  # (2P - 1) / P of the period
    >>> float(loop.period), float(loop.latency)
    (8.0, 14.0)
    """
    # Most searches have one micro-batch: skip the comparisons.
    chain = layers + stem + links + hops
    if np.all(np.asarray(microbatches) == 1):
        return Cycle(period=chain, latency=chain, layers=1.0, stem=1.0, links=1.0, hops=1.0)
    by_operators, by_links = microbatches * (share * layers + stem), microbatches * share * links
    period = np.maximum(np.maximum(by_operators, by_links), chain)

    # Exactly one of three limits sets the period; its parts get the weights that add up to it.
    in_chain = chain >= period
    operators = ~in_chain & (by_operators >= by_links)
    linked = ~in_chain & ~operators
    unchained = np.where(in_chain, 1.0, 0.0)
    single = share * (layers + links) + stem
    return Cycle(
        period=period,
        latency=np.maximum(chain - single + np.minimum(period, microbatches * single), period),
        layers=unchained + operators * microbatches * share,
        stem=unchained + operators * microbatches,
        links=unchained + linked * microbatches * share,
        hops=unchained,
    )


def bounds(
    operators: dict[str, Number],
    stem: dict[str, Number],
    links: dict[str, Number],
    hops: Number,
    *,
    microbatches: Number,
    share: Number,
) -> tuple[Number, Number]:
    """Return lower and upper bound of a step [s]: full overlap and no overlap.

    Args:
        operators: Busy seconds of each resource on operators of layers, in one micro-batch.
        stem: Busy seconds of each resource on embedding and head.
        links: Busy seconds of each resource on collectives.
        hops: Seconds on transfers between stages; only in the upper bound.
        microbatches: Number of micro-batches.
        share: Share of the layers in the stage with the most layers.

    Returns:
        Two times in seconds.
    """
    lower: Number = 0.0
    serial: Number = 0.0
    serial_stage: Number = 0.0
    fullest = microbatches * share
    for name in dict.fromkeys((*operators, *stem, *links)):
        inside, outside = operators.get(name, 0.0) + links.get(name, 0.0), stem.get(name, 0.0)
        latency, stage = inside + outside, fullest * inside + microbatches * outside
        lower = np.maximum(lower, np.maximum(latency, stage))
        serial, serial_stage = serial + latency, serial_stage + stage
    return lower, np.maximum(serial + hops, serial_stage)
