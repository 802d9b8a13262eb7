r"""How micro-batches pass through stages: the period of a step, its latency, and what counts in it.

Let $c$, $s$ and $n$ be the seconds that one micro-batch spends in all stages together on operators of layers, on the stem
(embedding and head) and on collectives, $h$ on hops between stages, and $\varphi$ the share of the layers in the fullest stage.
A stage must serve all $m$ micro-batches, on its arithmetic and on its links, and a micro-batch must pass all stages before its
next token:

$$ t = \max(m (\varphi c + s),\; m \varphi n,\; c + s + n + h) $$

With one micro-batch on one stage this is $c + s + n$; with two, the collectives of one hide behind the operators of the other
(two-batch overlap), at the price of reading the weights twice; with $P$ on $P$ stages it is the looped pipeline of lecture
section 10.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from steptime.number_checks import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """A cycle of micro-batches: its `period` and `latency` [s], and how often the seconds of each part count in the period.

    The weights add the parts up to the period: collectives that hide behind operators weigh nothing.
    """

    period: Number
    latency: Number
    layers: Number
    stem: Number
    links: Number
    hops: Number

    def slowed(self, factor: Number) -> Cycle:
        """Return the cycle with all times `factor` times as long."""
        return Cycle(**{f.name: getattr(self, f.name) * factor for f in fields(self)})


def cycle(layers: Number, stem: Number, links: Number, hops: Number, *, microbatches: Number, share: Number) -> Cycle:
    r"""Return the cycle of `microbatches` that each take the given seconds in all stages together; all broadcast.

    layers, stem, links, hops [s] of one micro-batch; share of the layers in the fullest stage: 1 for one stage.
    The latency is from the first micro-batch's start to the last one's end. One alone spends $a = \varphi (c + n) + s$ in the
    fullest stage and the rest of its way elsewhere; that stage serves all $m$, each in $a$, or in $t / m$ where micro-batches
    overlap in it: $c + s + n + h - a + \min(t, m a)$. On one stage it is the period. Exact without collectives where the stem
    is in the fullest stage; with collectives it leaves out how those of neighbouring micro-batches interlock.

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
    chain = layers + stem + links + hops
    if np.all(np.asarray(microbatches) == 1):
        return Cycle(period=chain, latency=chain, layers=1.0, stem=1.0, links=1.0, hops=1.0)
    by_operators, by_links = microbatches * (share * layers + stem), microbatches * share * links
    period = np.maximum(np.maximum(by_operators, by_links), chain)
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
    """Return the least and the most time [s] of a step: were all resources overlapped, and were nothing.

    operators, stem, links: busy seconds of each resource in one micro-batch; hops [s] count in the upper bound only.
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
