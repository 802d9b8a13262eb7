"""What to mind of a model's sellers: who is not in the median, where sources disagree, who copies whom."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steptime.pricing.families import LEAST_SELLERS
from steptime.pricing.reading import held_of
from steptime.pricing.shipped import FIRST_PARTY, RESELLER
from steptime.units import counted

if TYPE_CHECKING:
    from steptime.pricing.finding import Offer
    from steptime.pricing.market import Market

NAMED = 3  # sellers that a note names, where there may be dozens


def minded(found: Market) -> list[str]:
    """Return what to mind of a market: who is not in the median, where sources disagree, how far a margin goes."""
    notes = [] if found.provider else uncounted(found)
    differ = {f"{one.provider} {one.variant}".strip(): one.others.replace(";", ", ") for one in found.offers if one.others}
    if differ:
        told = [f"{name} ({others} elsewhere)" for name, others in sorted(differ.items())[:NAMED]]
        more = f" and {len(differ) - NAMED} more" if len(differ) > NAMED else ""
        notes.append(
            f"sources disagree on {', '.join(told)}{more}: what most of them say is taken, and --csv FILE has what others say"
        )
    offers = [found.offers[at] for at in found.sold]
    if len(offers) < LEAST_SELLERS and not found.provider:
        few = f"{counted(len(offers), 'seller')} of the present market is" if len(offers) == 1 else f"{len(offers)} sellers are"
        notes.append(f"{few} no market: margins of fewer than {LEAST_SELLERS} are in no calibration")
    makers = [one for one in offers if one.role == FIRST_PARTY]
    hosts = [one for one in offers if one.role != FIRST_PARTY]
    same = [one for one in hosts if any(_alike(one, maker) for maker in makers)]
    if same:
        notes.append(
            f"{len(same)} of {counted(len(hosts), 'host')} ask what the maker asks; sellers copy one another, so that "
            "they are far fewer independent draws"
        )
    held = held_of("margin")
    notes.append(
        f"in aggregated mode on Hopper, {held.held} of {held.of} models with at least {LEAST_SELLERS} sellers have margins of "
        "0.5 to 10: priors of margins are fitted on that cost"
    )
    notes.append("margin is price over the cost of a busy chip: 30 to 60 % of the day (reported) leave 0.3 to 0.6 of it")
    return notes


def uncounted(found: Market) -> list[str]:
    """Return the note of sellers that are shown and are not in the median, each by the first reason that holds."""
    inside = {found.offers[at].provider for at in found.counted}
    reasons: dict[str, set[str]] = {
        "resell it": set(),
        "sell another variant alone": set(),
        "were last read before June 2026": set(),
    }
    resells, other, old = reasons.values()
    for name in {one.provider for one in found.offers} - inside:
        mine = [one for one in found.offers if one.provider == name]
        same = [one for one in mine if one.variant == found.variant]
        kind = resells if all(one.role == RESELLER for one in mine) else old if same else other
        kind.add(name)
    told = [f"{len(names)} {why} ({', '.join(sorted(names))})" for why, names in reasons.items() if names]
    return [f"shown, and not in the median: {'; '.join(told)}"] if told else []


def _alike(one: Offer, other: Offer) -> bool:
    """Whether two offers are the same to 1 %."""
    return math.isclose(one.input, other.input, rel_tol=0.01) and math.isclose(one.output, other.output, rel_tol=0.01)
