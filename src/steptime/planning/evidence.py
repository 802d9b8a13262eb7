"""Evidence for a layout: whether layouts of its kind were measured, published elsewhere, or run by nobody.

Engines are fitted to runs in one pool on one node, with powers of two as widths, and with data-parallel ranks where enough
of the runs have them (TensorRT-LLM on NVIDIA's chips). Other kinds have public results elsewhere: data-parallel ranks of
other engines, separate pools without pipeline stages, and expert parallelism over several nodes, in widths of whole nodes. A
search over thousands of layouts tends to choose one whose unmeasured costs are underestimated. A plan therefore prefers
measured layouts.

References:
    InferenceX, disaggregated runs of DeepSeek-R1: pools of 4 to 72 chips, https://github.com/SemiAnalysisAI/InferenceX
    DeepSeek-V3 technical report, section 3.4: prefill on 32 chips, decode on 320
    SGLang, large-scale expert parallelism on 96 H100: prefill on 32 chips, decode on 72,
    https://lmsys.org/blog/2025-05-05-large-scale-ep/
"""

from __future__ import annotations

from typing import Final

import numpy as np

from steptime.errors import UnknownName
from steptime.hardware.system import System
from steptime.number_checks import Array, Number
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import LARGEST_MEASURED, MIN_RUNS_PER_SYSTEM

MEASURED: Final = "measured"
PUBLISHED: Final = "published"
ANY: Final = "any"
# The levels, the best evidence first.
EVIDENCE: Final = (MEASURED, PUBLISHED, ANY)
# Widths of published pools: powers of two, and whole nodes of this many chips.
NODE: Final = 8


def check_evidence(evidence: str) -> None:
    """Check that a level of evidence is known.

    Args:
        evidence: One of `EVIDENCE`.

    Raises:
        UnknownName: It is not one of these.
    """
    if evidence not in EVIDENCE:
        raise UnknownName("evidence", evidence, EVIDENCE, f"Known: {', '.join(EVIDENCE)}.")


def layout_evidence(layouts: Layout, engine: Engine, system: System) -> tuple[Array, Array]:
    """Return whether layouts are of a kind that was measured, and of one that was published.

    Args:
        layouts: Layouts, whose fields may be arrays.
        engine: Engine. Its fit counts the runs on each system, and those with data-parallel ranks; with few of them, nothing
            counts as measured there.
        system: System.

    Returns:
        Booleans for a single pool on one node, and booleans for pools of any width.
    """
    plain = (np.asarray(layouts.pp) == 1) & (np.asarray(layouts.cp) == 1)
    widths = _power_of_two(layouts.tp) & _power_of_two(layouts.dp)
    # Data-parallel ranks on AMD chips were published, and are in no fitted run.
    has_ranks = int(engine.fit.get("ranks", 0)) >= MIN_RUNS_PER_SYSTEM and system.chip.vendor != "AMD"
    ranks = (np.asarray(layouts.dp) == 1) | has_ranks
    has_runs = int(engine.fit.get("systems", {}).get(system.name, 0)) >= MIN_RUNS_PER_SYSTEM
    measured = plain & widths & ranks & (np.asarray(layouts.chips) <= LARGEST_MEASURED) & has_runs
    measured = measured & (np.asarray(layouts.microbatches) == 1)
    published = plain & _power_of_two(layouts.tp) & (_power_of_two(layouts.chips) | (np.asarray(layouts.chips) % NODE == 0))
    return measured, published


def deployment_evidence(engine: Engine, system: System, layout: Layout, reader: Layout | None = None) -> str:
    """Return the evidence for a layout.

    Args:
        engine: Engine.
        system: System.
        layout: Layout of the replicas that decode.
        reader: Layout of a separate prefill pool, or None.

    Returns:
        "measured", "published" or "any".
    """
    kinds = [layout_evidence(pool, engine, system) for pool in (layout, reader) if pool is not None]
    if reader is None and bool(kinds[0][0]):
        return MEASURED
    return PUBLISHED if all(bool(published) for _, published in kinds) else ANY


def _power_of_two(number: Number) -> Array:
    exponent = np.log2(np.asarray(number, dtype=np.float64))
    is_power: Array = exponent == np.rint(exponent)
    return is_power
