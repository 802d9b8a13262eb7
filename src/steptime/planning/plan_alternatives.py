"""Alternatives to a plan: formats, more chips, another mode, speculative tokens.

A full search for each alternative would take as long as the plan itself. Each is therefore searched only
among layouts near the chosen one, with every axis within a factor of `NEAR`. Where these are too many, the
factor is `NEARER` and only the plan's mode is searched. All alternatives together take about a third of the
plan's time, and nearly always find the result of a full search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

import numpy as np

from steptime.catalog.acceptance_lengths import OWN_LAYERS
from steptime.hardware.rental_prices import usd_per_million
from steptime.models.model import weight_bytes, with_formats
from steptime.models.quantization import release_format
from steptime.number_checks import MOST_CHIPS
from steptime.physics.compute_dtype import as_served, with_small_cache
from steptime.physics.engine_rules import LLAMA_CPP, has_pools
from steptime.physics.layout import Layout
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate, PlanProblem, evaluate_state
from steptime.planning.plan_result import Alternative, Plan
from steptime.planning.plan_search import AS_CHEAP, held_by, lawful, ranked, search
from steptime.planning.refinement import Peak, best, served_by
from steptime.units import percent
from steptime.workload.workload import DRAFTED_BY, NONE, Speculation, known_draftings

# Factor on each axis within which layouts count as near the chosen one.
NEAR: Final = 4
# The same factor where near layouts are too many.
NEARER: Final = 2
# Up to this number, all near layouts are searched in every mode.
MAX_NEARBY_LAYOUTS: Final = 160
# Candidates of a search that are refined.
ROWS: Final = 100
DRAFTS: Final = "--drafts"
# Alternative weight formats of llama.cpp.
GGUF_WEIGHTS: Final = ("q8_0", "q4_k_m")
# Largest ratio of weight bytes for which a format is an alternative.
SMALLER: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An alternative to try: its option, description, changed problem and modes.

    Empty `modes` stand for the modes of the plan.
    """

    option: str
    words: str
    case: PlanProblem
    modes: tuple[str, ...] = ()


def list_choices(case: PlanProblem, modes: tuple[str, ...]) -> list[Choice]:
    """List the alternatives that a plan can try.

    Args:
        case: Plan problem.
        modes: Modes that the plan searched.

    Returns:
        Alternatives to evaluate.
    """
    tries = (*_weights(case), *_cache(case), *_chips(case))
    choices = [Choice(option=option, words=words, case=changed_case) for option, words, changed_case in tries]
    mode_words = {AGGREGATED: "one pool for prefill and decode", DISAGGREGATED: "separate pools for prefill and decode"}
    choices += [
        Choice(option=f"--mode {mode}", words=words, case=case, modes=(mode,))
        for mode, words in mode_words.items()
        if mode not in modes and (mode == AGGREGATED or has_pools(case.engine.name))
    ]
    if not case.speculation.drafts and any(speculation.drafts for speculation in known_draftings(case.model)):
        # The number of tokens is chosen later, with the chosen candidate.
        choices.append(Choice(option=DRAFTS, words="", case=case))
    return choices


def evaluate_alternative(case: PlanProblem, candidate: Candidate, modes: tuple[str, ...], choice: Choice) -> Alternative | None:
    """Evaluate the effect of an alternative on the cost of the chosen candidate.

    Args:
        case: Plan problem.
        candidate: Candidate that the plan chose.
        modes: Modes that the plan searched.
        choice: Alternative to evaluate.

    Returns:
        The alternative with its saving; None where no layout meets the limits.
    """
    trial = _drafted(case, candidate) if choice.option == DRAFTS else choice
    changes_chips = trial.case.chips != case.chips
    searched, near = _nearby(trial.case if changes_chips else case, candidate, modes)
    return _alternative(trial, served_by(case, candidate) / case.chips, _best(trial.case, trial.modes or searched, near))


def by_saving(alternatives: Iterable[Alternative | None]) -> tuple[Alternative, ...]:
    """Return alternatives by saving, the largest first.

    Args:
        alternatives: Alternatives; None entries are left out.

    Returns:
        Sorted alternatives.
    """
    return tuple(
        sorted(
            (alternative for alternative in alternatives if alternative is not None),
            key=lambda alternative: -alternative.saving,
        )
    )


def best_alternative(plan_: Plan) -> Alternative | None:
    """Return the alternative with the largest saving, if it is above half a percent.

    Args:
        plan_: Plan with its alternatives.

    Returns:
        The alternative, or None.
    """
    first = plan_.alternatives[0] if plan_.alternatives else None
    return first if first is not None and first.saving > AS_CHEAP else None


def alternative_sentence(plan_: Plan) -> str:
    """Return a sentence on the alternative that saves most.

    Args:
        plan_: Plan with its alternatives.

    Returns:
        Saving in cost, or in output per chip where no rent is known; empty if none saves.
    """
    alternative = best_alternative(plan_)
    if alternative is None:
        return ""
    money = math.isfinite(plan_.usd_per_million_output_tokens)
    share = alternative.saving if money else 1 / (1 - alternative.saving) - 1
    gain = f"{percent(share)} {'cheaper' if money else 'more output per chip'}"
    option = f" ({alternative.option})" if alternative.option else ""
    hangs = f", {alternative.caveat}" if alternative.caveat else ""
    return f" The best alternative is {alternative.words}{option}: about {gain}{hangs}."


def _weights(case: PlanProblem) -> Iterator[tuple[str, str, PlanProblem]]:
    """Yield narrower weight formats that the chip computes in.

    The 4-bit format applies to the experts only, as in published checkpoints.
    """
    peak, model = case.system.chip.peak, case.model
    routed = model.routed
    eight = "fp8" if "fp8" in peak else "int8" if "int8" in peak else ""
    tries = [("--weights", eight, "weights")] if eight else []
    tries += [("--experts", "nvfp4", "experts") if routed else ("--weights", "nvfp4", "weights")] if "fp4" in peak else []
    if case.engine.name == LLAMA_CPP:
        tries = [("--weights", name, "weights") for name in GGUF_WEIGHTS]
    for option, name, words in tries:
        stored = release_format(model.name, name)
        smaller = with_formats(model, weights=stored if option == "--weights" else None, experts=stored)
        if weight_bytes(smaller) < SMALLER * weight_bytes(model):
            served = as_served(smaller, case.system, case.engine)
            changes_cache = served.kv_format != model.kv_format
            stored_words = (
                f"{words} and KV cache in {name}" if changes_cache and served.kv_format == name else f"{words} in {name}"
            )
            stored_words += f" and KV cache in {served.kv_format}" if changes_cache and served.kv_format != name else ""
            yield f"{option} {name}", stored_words, replace(case, model=served)


def _cache(case: PlanProblem) -> Iterator[tuple[str, str, PlanProblem]]:
    if case.engine.name == LLAMA_CPP:
        # llama.cpp has no KV cache in fp8.
        return
    if case.model.kv_format in ("bf16", "fp16"):
        yield "--kv fp8", "KV cache in fp8", replace(case, model=with_small_cache(case.model))


def _chips(case: PlanProblem) -> Iterator[tuple[str, str, PlanProblem]]:
    chips = 2 * case.chips
    if chips <= min(MOST_CHIPS, case.system.scale_out.size):
        yield f"--chips {chips}", "twice the chips", replace(case, chips=chips)


def _nearby(case: PlanProblem, candidate: Candidate, modes: tuple[str, ...]) -> tuple[tuple[str, ...], list[Layout]]:
    """Return the modes and the legal layouts near the chosen ones.

    Weights need not fit in these layouts.
    """
    about, every = [layout for layout in (candidate.layout, candidate.prefill_layout) if layout is not None], lawful(case)
    near = _near(every, about, NEAR)
    return (modes, near) if len(near) <= MAX_NEARBY_LAYOUTS else ((candidate.mode,), _near(every, about, NEARER))


def _near(layouts: list[Layout], about: list[Layout], factor: int) -> list[Layout]:
    """Return the layouts whose axes are all within a factor of one of `about`."""
    axes = attrgetter("tp", "pp", "dp", "cp")
    degrees = np.array([axes(layout) for layout in layouts]).reshape(-1, 1, 4)
    other_degrees = np.array([axes(layout) for layout in about])
    near = np.any(np.all((degrees <= factor * other_degrees) & (other_degrees <= factor * degrees), axis=-1), axis=-1)
    return [layout for layout, good in zip(layouts, near, strict=True) if good]


def _best(case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout]) -> Peak | None:
    """Return the best candidate of some modes and layouts; None if none fits."""
    fits = held_by(case, layouts)
    candidates = ranked(case, search(replace(case, front=False, levels=()), modes, fits), ROWS) if fits else []
    return best(case, candidates, finalists=1)[0] if candidates else None


def _alternative(choice: Choice, base: float, peak: Peak | None) -> Alternative | None:
    """Return an alternative, given the rate per chip without it; None without a peak."""
    if peak is None:
        return None
    case, option = choice.case, choice.option
    caveat, speculation, rate = "", case.speculation, peak.rate / case.chips
    if option.startswith(("--weights", "--experts", "--kv")):
        caveat = "if the model stays accurate enough"
    elif option.startswith(DRAFTS):
        caveat = f"if each step yields {speculation.acceptance:.3g} tokens ({speculation.source})"
    tokens = rate * case.workload.output_tokens
    return Alternative(
        option=option,
        words=choice.words,
        caveat=caveat,
        layout_text=peak.candidate.text,
        tokens_per_second_per_chip=tokens,
        usd_per_million_output_tokens=float(usd_per_million(case.system.rent.typical, tokens)),
        saving=1 - base / rate,
    )


def _drafted(case: PlanProblem, candidate: Candidate) -> Choice:
    """Return the number of speculative tokens that serves most with the same batch."""
    tries = [replace(case, speculation=speculation) for speculation in known_draftings(case.model) if speculation.drafts]
    rates = [
        float(evaluate_state(changed_case, candidate, candidate.batch, max(candidate.chunk, 1)).rate) for changed_case in tries
    ]
    best_trial = tries[rates.index(max(rates))]
    tokens, method = best_trial.speculation.drafts, best_trial.speculation.method
    drafter = DRAFTED_BY.get(method, DRAFTED_BY[OWN_LAYERS])
    return Choice(
        option=f"{DRAFTS} {tokens}",
        words=f"{tokens} speculative token{'s' * (tokens > 1)} per step from {drafter}",
        case=best_trial,
    )


def best_drafting(case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout]) -> Speculation:
    """Return the number of speculative tokens that serves most requests.

    All layouts are searched without speculative tokens. Each number of them is then searched near the layout
    that was best without them; if no layout met the limits, it is searched in all layouts.

    Args:
        case: Plan problem.
        modes: Modes to search.
        layouts: Layouts to search.

    Returns:
        Speculation with a known acceptance; of equal rates the fewest tokens.
    """
    plain = _best(case, modes, layouts)
    near = (modes, layouts) if plain is None else _nearby(case, plain.candidate, modes)
    rates: list[tuple[float, Speculation]] = []
    for speculation in known_draftings(case.model):
        changed_case = replace(case, speculation=speculation)
        plan_found = _best(changed_case, *near) if speculation.drafts else plain
        if plan_found is not None:
            rates.append((plan_found.rate, speculation))
    highest = max((rate for rate, _ in rates), default=0.0)
    return next((speculation for rate, speculation in rates if rate >= highest * (1 - AS_CHEAP)), NONE)
