"""Where candidates have to aim: at the limits, or so far below them that they are met with the probability asked for."""

from __future__ import annotations

from steptime.numbers import Array, Number
from steptime.physics.distance import Distance, distances, widening
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import factors, has_range, regime_of
from steptime.planning.candidates import Case
from steptime.planning.confidence import deviations


def ways_of(case: Case, layout: Layout, reader: Layout | None) -> tuple[tuple[Distance, Array], ...]:
    """Return in which ways candidates are unlike what was measured; their layouts may hold arrays, `reader` reads prompts."""
    return distances(case.engine, case.system, layout, reader, drafts=bool(case.drafting.drafts))


def aims_of(case: Case, layout: Layout, reader: Layout | None, prompts: Number = 0.0) -> tuple[Number, Number]:
    """Return where TPOT and TTFT have to be [s]: below the limits by what the range at `case.sure` holds above a figure.

    prompts: share of a token's time that goes to others' prompts. `case.aim` sets right what is known of a candidate alone.
    """
    if case.sure is None or not has_range(case.engine):
        return case.slo.tpot, case.slo.ttft
    ways = ways_of(case, layout, reader)
    regime = regime_of(prompts)
    waiting = regime if reader is None else "mixed"
    slow = factors(case.engine, "tpot", regime, system=case.system, wider=widening(ways))[1]
    late = factors(case.engine, "ttft", waiting, system=case.system, wider=widening(ways, "ttft"))[1]
    share = deviations(case.sure)
    return case.slo.tpot * case.aim[0] / slow**share, case.slo.ttft * case.aim[1] / late**share
