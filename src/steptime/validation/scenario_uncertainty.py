r"""Scenario uncertainty: tuning of submissions, and what can go wrong with predictions of maximum throughput.

**Tuning.** MLPerf's submitters tune engines, kernels and schedules for one benchmark over several rounds. The table
has log ratios of measured to predicted throughput. Each is the median of groups of one model, system, engine and format (closed
division, Offline and Server, chips of NVIDIA):

| Benchmark, first round | v5.1 | v6.0 |
|---|---|---|
| Llama-2-70B, v4.0 | +0.20 | +0.10 |
| Mixtral-8x7B, v4.1 | -0.35 | -0.36 |
| Llama-3.1-405B, v5.0 | -0.03 | +0.07 |
| Llama-3.1-8B, v5.1 | -0.09 | -0.13 |
| DeepSeek-R1, v5.1 | -0.53 | +0.11 |
| gpt-oss-120b, v6.0 | | -0.28 |

In its first round a benchmark is slower, and software improves the most to the second round. Later rounds repeat. So the
expected log ratio is `FIRST_ROUND` in the first round. In later rounds it is the mean of the benchmark's later rounds, shrunken
towards zero:

$$ \hat\beta = \frac{n \tau^2}{n \tau^2 + \sigma^2}\,\bar\beta. $$

Here $n$ is the number of later rounds. $\tau$ is the deviation between benchmarks (`BENCHMARK_DEVIATION`), and $\sigma$ that
between rounds of one benchmark (`ROUND_DEVIATION`).

Submissions on chips of other vendors are faster than these means by `VENDORS`, in all scenarios: vendors tune products and
kernels for them, but constants of engines rest on public runs of untuned engines for AMD's chips, and on no run at all for
Intel's.

**Range.** The range of an engine is that of closed loops on a known layout. Independent errors add in quadrature:

- the benchmark's tuning that is left after shrinking,
- tuning of a submitter for a chip: deviations between groups of one benchmark and round (`SCENARIO_DEVIATIONS`),
- layouts that a run may have had, where its columns do not say (variance over them),
- the end of a run whose number of requests is not stated: half of its loss.

`docs/throughput.py` computes all figures, and errors with rounds and benchmarks left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from steptime.number_checks import Array
from steptime.physics.uncertainty import Z90, Distance
from steptime.validation.mlperf_data_sets import find_data_set
from steptime.validation.run_table import HIGHEST, INTERACTIVE, MLPERF, OFFLINE, SERVER, run_kind

# Mean log ratio of benchmarks in their first round.
FIRST_ROUND: Final = -0.30
# Log ratio of submissions on chips of a vendor to those on NVIDIA's: the median of groups.
VENDORS: Final[Mapping[str, float]] = {"AMD": 0.23, "Intel": 0.55}
# Standard deviations of the logarithm: between benchmarks, and between rounds of one benchmark.
BENCHMARK_DEVIATION: Final = 0.15
ROUND_DEVIATION: Final = 0.1
# Standard deviations of the logarithm between groups of one benchmark, by kind of run.
SCENARIO_DEVIATIONS: Final = {OFFLINE: 0.1, SERVER: 0.1, INTERACTIVE: 0.5, HIGHEST: 0.1}
# Mean log ratios of the rounds after the first one.
LATER_ROUNDS: Final[Mapping[str, tuple[float, ...]]] = {
    "llama-2-70b": (0.20, 0.10),
    "mixtral-8x7b": (-0.35, -0.36),
    "llama-3.1-405b": (-0.03, 0.07),
    "llama-3.1-8b": (-0.13,),
    "deepseek-r1": (0.11,),
}


def tuning(
    row: Mapping[str, str],
    vendor: str = "",
    later_rounds: Mapping[str, Sequence[float]] = LATER_ROUNDS,
    first_round: float = FIRST_ROUND,
    vendors: Mapping[str, float] = VENDORS,
) -> tuple[float, float]:
    """Return the expected log ratio of a submission's throughput to that of the engine, and its standard deviation.

    Args:
        row: Run.
        vendor: Vendor of its chips.
        later_rounds: Mean log ratios of a benchmark's rounds after its first.
        first_round: Mean log ratio of first rounds.
        vendors: Log ratios of vendors to NVIDIA.

    Returns:
        Mean and deviation of the logarithm; zeros for other runs than MLPerf's.

    >>> tuning({"part": "trt_max", "model": "Llama-3.1-8B"})
    (0.0, 0.0)
    >>> row = {"part": "mlperf", "model": "Llama-2-70b-hf", "engine_version": "v6.0", "scenario": "Server"}
    >>> [round(x, 3) for x in tuning(row)]
    [0.123, 0.064]
    """
    if row.get("part") != MLPERF:
        return 0.0, 0.0
    tuned = vendors.get(vendor, 0.0)
    # Latency limits Interactive runs, and the table is that of Offline and Server.
    if run_kind(row) == INTERACTIVE:
        return tuned, BENCHMARK_DEVIATION
    # A benchmark that is not in the table is newer than it.
    data_set = find_data_set(row)
    if data_set is None or row.get("engine_version") == data_set.first_round:
        return tuned + first_round, BENCHMARK_DEVIATION
    rounds = later_rounds.get(data_set.name, ())
    weight = len(rounds) * BENCHMARK_DEVIATION**2 / (len(rounds) * BENCHMARK_DEVIATION**2 + ROUND_DEVIATION**2)
    mean = weight * sum(rounds) / len(rounds) if rounds else 0.0
    return tuned + mean, BENCHMARK_DEVIATION * math.sqrt(1 - weight)


def scenario_distances(
    row: Mapping[str, str], speeds: Sequence[float], shares: Array, end_loss: float = 0.0
) -> tuple[tuple[Distance, Array], ...]:
    """Return how far the range of a run is wider than that of a closed loop on a known layout.

    Args:
        row: Run.
        speeds: Output rates by layout that the run may have had.
        shares: Probabilities of these layouts.
        end_loss: Share of the time of a run that its end adds to a steady state.

    Returns:
        Differences, with the logarithms that they add to a 90 % range, and whether they apply.

    >>> layout, _, end = scenario_distances({"part": "trt_max"}, [1.0, 2.0], np.array([0.5, 0.5]), 0.1)
    >>> round(layout[0].low, 3), round(end[0].high, 3)
    (0.347, 0.053)
    """
    logs = np.log(speeds)
    spread = math.sqrt(float(np.average((logs - np.average(logs, weights=shares)) ** 2, weights=shares)))
    # Rates lie between those of the layouts, so that half of their range is enough.
    divided = min(Z90 * spread, float(np.ptp(logs)) / 2)
    tuned = math.hypot(tuning(row)[1], SCENARIO_DEVIATIONS[run_kind(row)])
    ended = 0.0 if row.get("requests") else -math.log1p(-end_loss) / 2
    parts = {"layout not stated": divided, "tuning of a submission": Z90 * tuned, "end of a run": ended}
    return tuple((Distance(words=words, low=width, high=width), np.array(True)) for words, width in parts.items())
