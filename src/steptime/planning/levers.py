"""Choices that would make a plan cheaper: number formats, more chips, pools apart or together, drafts.

A full search for each choice would take as long as the plan itself. Each is searched only among layouts near the one that the
plan chose (every axis within a factor of `NEAR`), and where those are many among nearer ones and in its mode only: all choices
take about a third of the plan's time, and nearly always find what full searches do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from steptime.machines.formats import number_format
from steptime.machines.money import usd_per_million
from steptime.models.model import draft_parameters, weight_bytes, with_formats
from steptime.numbers import MOST_CHIPS
from steptime.physics.cache_format import as_served, with_small_cache
from steptime.physics.layout import Layout
from steptime.physics.search_space import legal
from steptime.physics.step import decode_step
from steptime.planning.candidates import AGGREGATED, DISAGGREGATED, Candidate, Case, state_of
from steptime.planning.deployment import Lever, Plan
from steptime.planning.refine import best, matched_rate, planned_prefill
from steptime.planning.search import AS_CHEAP, held_by, ranked, search

NEAR: Final = 4  # how far from the chosen layout, on each axis, a choice is searched
NEARER: Final = 2  # the same where near layouts are many
FEW: Final = 160  # near layouts, all of which are searched, and in every mode
ROWS: Final = 100  # of a search that are looked at again
SMALLER: Final = 0.95  # of the weights' bytes: a format that saves less is no choice
ACCEPTED: Final = 0.85
"""Share of single drafts by a model's own layers that are accepted. DeepSeek-V3's technical report, arXiv 2412.19437: 85 to
90 % (reported); other models' own layers are taken to be as good."""


def levers_of(case: Case, chosen: Candidate, modes: tuple[str, ...]) -> tuple[Lever, ...]:
    """Return what choices would do to the cost of a plan's chosen candidate, the one that saves most first.

    modes: those that the plan has searched.
    """
    base = _requests_per_chip(case, chosen)
    near = _nearby(case, chosen, modes)
    found = [_lever(*choice, base, _best(choice[2], *near)) for choice in (*_weights(case), *_cache(case))]
    found += [_lever(*more, base, _best(more[2], *_nearby(more[2], chosen, modes))) for more in _chips(case)]
    found += [_lever(f"--mode {mode}", words, case, base, _best(case, (mode,), near[1])) for mode, words in _other_modes(modes)]
    found.append(_drafts(case, chosen, base))
    known = [lever for lever in found if lever is not None]
    return tuple(sorted(known, key=lambda lever: -lever.saving))


def best_lever(plan_: Plan) -> Lever | None:
    """Return the choice that saves most, where one saves more than half a percent."""
    first = plan_.levers[0] if plan_.levers else None
    return first if first is not None and first.saving > AS_CHEAP else None


def lever_sentence(plan_: Plan) -> str:
    """Say which choice would help most, in money or in output for the same chips; nothing where none would."""
    lever = best_lever(plan_)
    if lever is None:
        return ""
    money = math.isfinite(plan_.usd_per_million_output_tokens)
    gain = f"{lever.saving:.0%} cheaper" if money else f"{1 / (1 - lever.saving) - 1:.0%} more output per chip"
    option = f" ({lever.option})" if lever.option else ""
    hangs = f", {lever.caveat}" if lever.caveat else ""
    return f" Of choices, {lever.words}{option} would help most: about {gain}{hangs}."


def _weights(case: Case) -> Iterator[tuple[str, str, Case]]:
    """Yield narrower formats of weights that the chip multiplies, of experts alone for 4 bits, as checkpoints have them."""
    peak, model = case.system.chip.peak, case.model
    routed = any(layer.routed for layer, _ in model.layers)
    eight = "fp8" if "fp8" in peak else "int8" if "int8" in peak else ""
    tries = [("--weights", eight, "weights")] if eight else []
    tries += [("--experts", "nvfp4", "experts") if routed else ("--weights", "nvfp4", "weights")] if "fp4" in peak else []
    for option, name, what in tries:
        stored = number_format(name)
        smaller = with_formats(model, weights=stored if option == "--weights" else None, experts=stored)
        if weight_bytes(smaller) < SMALLER * weight_bytes(model):
            served = as_served(smaller, case.system, case.engine)
            cache = f" and the KV cache in {served.kv_format} with them" if served.kv_format != model.kv_format else ""
            yield f"{option} {name}", f"{what} in {name}{cache}", replace(case, model=served)


def _cache(case: Case) -> Iterator[tuple[str, str, Case]]:
    if case.model.kv_format in ("bf16", "fp16"):
        yield "--kv fp8", "a KV cache in fp8", replace(case, model=with_small_cache(case.model))


def _chips(case: Case) -> Iterator[tuple[str, str, Case]]:
    chips = 2 * case.chips
    if chips <= min(MOST_CHIPS, case.system.scale_out.size):
        yield f"--chips {chips}", "twice the chips", replace(case, chips=chips)


def _other_modes(modes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    words = {AGGREGATED: "one pool for prompts and output", DISAGGREGATED: "separate pools for prompts and output"}
    yield from ((mode, text) for mode, text in words.items() if mode not in modes)


def _nearby(case: Case, chosen: Candidate, modes: tuple[str, ...]) -> tuple[tuple[str, ...], list[Layout]]:
    """Return the modes and the legal layouts to search about the chosen ones, whether the weights fit or not."""
    about = [layout for layout in (chosen.layout, chosen.prefill_layout) if layout is not None]
    tried = legal(case.model, case.system, case.chips, engine=case.engine)
    near = [layout for layout in tried if any(_near(layout, one, NEAR) for one in about)]
    if len(near) <= FEW:
        return modes, near
    return (chosen.mode,), [layout for layout in near if any(_near(layout, one, NEARER) for one in about)]


def _near(layout: Layout, other: Layout, factor: int) -> bool:
    pairs = ((int(getattr(layout, axis)), int(getattr(other, axis))) for axis in ("tp", "pp", "dp", "cp"))
    return all(a <= factor * b and b <= factor * a for a, b in pairs)


def _best(case: Case, modes: tuple[str, ...], layouts: list[Layout]) -> Candidate | None:
    """Return the best candidate of some modes among those of some layouts that leave room on a chip."""
    held = held_by(case, layouts)
    candidates = ranked(case, search(case, modes, held), ROWS) if held else []
    return best(case, candidates, finalists=1)[0] if candidates else None


def _requests_per_chip(case: Case, candidate: Candidate) -> float:
    state = state_of(case, candidate, candidate.batch, max(candidate.chunk, 1))
    return float(matched_rate(case, candidate, state, planned_prefill(case, candidate, state.tpot))[0]) / case.chips


def _lever(option: str, words: str, case: Case, base: float, candidate: Candidate | None) -> Lever | None:
    """Return what a choice comes to; None where it meets no limits."""
    if candidate is None:
        return None
    caveat = "if answers stay good enough" if option.startswith(("--weights", "--experts", "--kv")) else ""
    return _made(option, words, caveat, case, base, _requests_per_chip(case, candidate), candidate.text)


def _made(option: str, words: str, caveat: str, case: Case, base: float, rate: float, text: str) -> Lever:
    tokens = rate * case.workload.output_tokens
    return Lever(
        option=option,
        words=words,
        caveat=caveat,
        layout_text=text,
        tokens_per_second_per_chip=tokens,
        usd_per_million_output_tokens=float(usd_per_million(case.system.rent.typical, tokens)),
        saving=1 - base / rate,
    )


def _drafts(case: Case, chosen: Candidate, base: float) -> Lever | None:
    """Return what one token drafted by the model's own layers would do, the batch kept; None for a model without such layers.

    A step verifies two tokens of each sequence and yields 1 + `ACCEPTED`; the draft layers take their share of a step besides.
    Time that prompts take stays as it is. In two pools, chips are taken as divisible between them.
    """
    model, work = case.model, case.workload
    if not draft_parameters(model):
        return None
    one, two = (
        float(
            decode_step(
                model,
                case.system,
                batch=chosen.batch,
                context=work.input_tokens + work.output_tokens / 2,
                query=tokens,
                layout=replace(chosen.layout, replicas=1),
                engine=case.engine,
            ).total
        )
        for tokens in (1, 2)
    )
    drafting = sum(n for _, n in model.draft) / model.depth
    slower = two / one + drafting
    share = _prompt_share(case, chosen)
    rate = base / (share + (1 - share) * slower / (1 + ACCEPTED))
    caveat = f"if {ACCEPTED:.0%} of drafts are accepted, as DeepSeek reports of V3"
    return _made("", "one draft a step by the model's own layers", caveat, case, base, rate, chosen.text)


def _prompt_share(case: Case, chosen: Candidate) -> float:
    """Return the share of the chips' time that prompts take, or of the chips where they have their own."""
    if chosen.prefill_layout is None:
        return float(state_of(case, chosen, chosen.batch, max(chosen.chunk, 1)).input_share)
    reading = chosen.prefill_layout.chips * chosen.prefill_layout.replicas
    return float(reading / (reading + chosen.layout.chips * chosen.layout.replicas))
