r"""Chip power: watts of a chip from what a step computes, reads and sends, and the energy of a token.

A step takes $t$ seconds on one chip. It moves $B$ bytes of memory and $L$ bytes on links, and computes $F_a$ FLOP in format
$a$:

$$ E = \min(P_0 t + e_B B + \sum_a e_a F_a + e_L L,\ P_{TDP}\, t), \quad e_a = e_{bf16} R_{bf16} / R_a. $$

$P_0$ is the power of a chip that serves but waits: its clocks, leakage and control. It is a share of the thermal design power.
A FLOP of narrower arithmetic takes less energy, in proportion to its peak rate $R_a$. The power around the chip (host,
network, cooling) is taken as constant: the source's figure for a chip at its limit, less that limit.

The coefficients are fitted to measured power of H100 and B200 with vLLM (`docs/fit_power.py`). The spread is that of
models that the fit leaves out. Chips of other generations have pooled coefficients, relative to their own limits and rates,
with the spread of a generation that the fit leaves out.

References:
    ML.ENERGY Leaderboard 3.0, https://github.com/ml-energy/leaderboard (Apache-2.0).
    Form of the law: Choi et al., A roofline model of energy, IPDPS 2013, https://doi.org/10.1109/IPDPS.2013.77.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from steptime.catalog.data_files import PACKAGED, read_file
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Number
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.step import Step, ledger_of_step
from steptime.physics.uncertainty import Z90
from steptime.result_base import Result, in_words, unit
from steptime.units import MILLION, show

POOLED: Final = "pooled"
# Arithmetic of the coefficient; its rate is the base of the others.
BASE: Final = "bf16"
# Relative difference up to which two rates are equal.
SAME_RATE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyCoefficients:
    """Energy coefficients of one chip.

    static: Power of a chip that serves but waits [W]. limit: Thermal design power [W]. byte, link_byte: Energy of a byte of
    memory and of links [J]. flops: Energy of a FLOP by arithmetic [J]. spread: Standard deviation of the log of an energy.
    source: Generation of the fit, or `POOLED`.
    """

    static: float
    limit: float
    byte: float
    link_byte: float
    flops: Mapping[str, float]
    spread: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Work of one chip in one step: FLOP by arithmetic, bytes of memory, and bytes sent on links."""

    flops: Mapping[str, Number]
    memory: Number
    links: Number


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepEnergy(Result):
    """Power of a chip in a step, and the energy of a token with the power around the chips."""

    watts: Number = field(
        metadata=unit("W", "power of a chip at this load, without host, network and cooling", key="chip_power_w")
    )
    total_watts: Number = field(metadata=unit("W", "the same with the power around the chip", key="total_power_w"))
    basis: str = field(default="", metadata=unit("", "what that includes: all-in, rack, whole, chip or given"))
    joules_per_token: Number = field(
        metadata=unit("J", "energy of all chips per token, with the power around them", key="joules_per_token")
    )
    joules_range: tuple[Number, Number] | None = field(
        default=None,
        metadata=unit("J", "90 % range, of time and coefficients; null for the ideal engine", key="joules_per_token_range"),
    )
    tokens_per_second_per_megawatt: Number = field(
        metadata=unit("tok/s", "tokens per second of a megawatt", key="tokens_per_s_per_megawatt")
    )
    coefficients: str = field(default="", metadata=unit("", "chips whose measured power gave the coefficients"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return power and energy.

        Returns:
            Title, and text by label.
        """
        return "Energy of a step", {
            "power of a chip": in_words(self.watts, lambda value: show(value, "W")),
            "energy per token": in_words(self.joules_per_token, lambda value: show(value, "J")),
        }


def energy_coefficients(system: System, shares: Mapping[str, float] | None = None) -> EnergyCoefficients | None:
    """Return the energy coefficients of a system's chip.

    Args:
        system: The system.
        shares: Shares of the limit: static, and memory, compute and network at their full rates; by default the fitted ones.

    Returns:
        Coefficients; None if the power of the chip or its bf16 rate is not known.

    >>> from steptime.catalog.hardware_loading import load_system
    >>> coefficients = energy_coefficients(load_system("hgx-h100"))
    >>> coefficients.limit, coefficients.flops["fp8"] < coefficients.flops["bf16"]
    (700.0, True)
    """
    chip, link = system.chip, system.scale_up.link
    limit = float(chip.power_w)
    if not math.isfinite(limit) or BASE not in chip.peak:
        return None
    source = "given"
    reference: Mapping[str, Any] = {}
    spread = 0.0
    if shares is None:
        # Chips of other generations have the pooled fit.
        groups: dict[str, Any] = read_file(PACKAGED / "chip_power.json")["groups"]
        source = next((name for name, group in groups.items() if chip.name in group["chips"]), POOLED)
        reference = groups[source]
        shares, spread = reference, float(reference["spread"])

    # Energy of a byte and of a FLOP are those of the measured chip of the generation, whose own rates may be others.
    rates: Mapping[str, float] = reference.get("measured") or {
        "limit": limit, "bandwidth": float(chip.hbm.bandwidth), "rate": float(chip.peak[BASE]), "link": float(link.bandwidth),
    }  # fmt: skip
    flop = shares["compute"] * rates["limit"] / rates["rate"]
    return EnergyCoefficients(
        static=shares["static"] * limit,
        limit=limit,
        byte=shares["memory"] * rates["limit"] / rates["bandwidth"],
        link_byte=shares["network"] * rates["limit"] / rates["link"],
        flops={name: flop * float(chip.peak[BASE]) / float(rate) for name, rate in chip.peak.items()},
        spread=spread,
        source=source,
    )


def step_work(
    model: Model, system: System, sizes: Mapping[str, Number], *, layout: Layout, engine: Engine
) -> tuple[Step, StepWork]:
    """Return a step, and the work of one chip in it, as a mean over the stages of a pipeline.

    Args:
        model: The model.
        system: The system.
        sizes: Sizes of `mixed_step` by name.
        layout: Layout of the replica.
        engine: The engine.

    Returns:
        Step and work, with the broadcast shape of the sizes.
    """
    step, entries = ledger_of_step(model, system, sizes, layout=layout, engine=engine)
    passes = np.asarray(layout.microbatches) / np.asarray(layout.pp)
    peaks = system.chip.peak
    flops: dict[str, Number] = {}
    memory: Number = 0.0
    links: Number = 0.0
    for entry in entries:
        if (demand := entry.demand) is not None:
            remaining: Number = np.asarray(demand.flops * entry.times * passes, dtype=np.float64)
            # The rate of an operator tells its arithmetic; bf16 comes first of equal rates.
            for name in sorted(peaks, key=lambda name: name != BASE):
                applies = np.abs(demand.peak - np.asarray(peaks[name])) <= SAME_RATE * np.asarray(peaks[name])
                if np.any(applies):
                    flops[name] = flops.get(name, 0.0) + np.where(applies, remaining, 0.0)
                    remaining = np.where(applies, 0.0, remaining)
            memory = memory + (demand.weights + demand.activations + demand.kv) * entry.times * passes
        if (traffic := entry.traffic) is not None:
            for seconds, domain in zip(traffic.busy, system.domains, strict=True):
                links = links + seconds * domain.link.bandwidth * passes
    return step, StepWork(flops=flops, memory=memory, links=links)


def chip_joules(coefficients: EnergyCoefficients, work: StepWork, seconds: Number) -> Number:
    """Return the energy of one chip in a step.

    Args:
        coefficients: Coefficients of the chip.
        work: Work of the chip in the step.
        seconds: Time of the step [s].

    Returns:
        Joules, at most those of the thermal design power.

    >>> chip = EnergyCoefficients(static=100.0, limit=300.0, byte=1e-10, link_byte=0.0, flops={"bf16": 1e-12}, spread=0.1,
    ...     source="given")
    >>> float(chip_joules(chip, StepWork(flops={"bf16": 2e12}, memory=1e12, links=0.0), 2.0))
    302.0
    >>> float(chip_joules(chip, StepWork(flops={"bf16": 2e12}, memory=1e12, links=0.0), 0.5))
    150.0
    """
    computed = sum(coefficients.flops[name] * flop for name, flop in work.flops.items())
    joules = coefficients.static * seconds + coefficients.byte * work.memory + computed + coefficients.link_byte * work.links
    capped: Number = np.minimum(joules, coefficients.limit * seconds)
    return capped


def surrounding_watts(system: System) -> float:
    """Return the power around a chip: its share of host, network and cooling.

    Args:
        system: The system.

    Returns:
        Watts: the figure of the system less the limit of the chip; 0 where the figure is that of the chip.
    """
    total, limit = float(system.power.watts), float(system.chip.power_w)
    return max(total - limit, 0.0) if math.isfinite(total) else 0.0


def step_energy(
    model: Model,
    system: System,
    sizes: Mapping[str, Number],
    *,
    layout: Layout,
    engine: Engine,
    seconds: Number,
    tokens: Number,
    time_range: tuple[Number, Number] | None = None,
) -> StepEnergy | None:
    """Return the power of a chip in a step and the energy of its tokens.

    Drafts add passes: these take the power of the pass that verifies.

    Args:
        model: The model.
        system: The system.
        sizes: Sizes of `mixed_step` by name.
        layout: Layout of the replica.
        engine: The engine.
        seconds: Time of the step, with its drafts [s].
        tokens: Tokens of the step in all replica's sequences.
        time_range: 90 % range of the time [s].

    Returns:
        Power and energy; None if the power of the chip is not known.
    """
    coefficients = energy_coefficients(system)
    if coefficients is None:
        return None
    step, work = step_work(model, system, sizes, layout=layout, engine=engine)
    around = surrounding_watts(system)
    # The energy of a chip and its surroundings, if the step takes its time, or that of the ends of its range.
    factors: list[Number] = [1.0, *(end / seconds for end in time_range or ())]
    joules = [
        chip_joules(coefficients, work, step.total * factor) * seconds / step.total + around * seconds * factor
        for factor in factors
    ]
    watts = chip_joules(coefficients, work, step.total) / step.total
    per_token = joules[0] * layout.chips / tokens
    limits = None
    if time_range is not None:
        # Errors of the time and of the coefficients are independent.
        margin = Z90 * coefficients.spread * watts / (watts + around)
        fast, slow = (np.log(end / joules[0]) for end in joules[1:])
        limits = (per_token * np.exp(-np.hypot(fast, margin)), per_token * np.exp(np.hypot(slow, margin)))
    return StepEnergy(
        watts=watts,
        total_watts=watts + around,
        basis=system.power.basis,
        joules_per_token=per_token,
        joules_range=limits,
        tokens_per_second_per_megawatt=MILLION / per_token,
        coefficients=coefficients.source,
    )
