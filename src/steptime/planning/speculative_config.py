"""How many tokens are drafted for a step, how many of them are accepted, and where that was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from steptime.catalog.acceptance_lengths import Curve, acceptance_curve
from steptime.errors import InputError, RangeError
from steptime.models.model import Model
from steptime.number_checks import Number, single, whole_number
from steptime.planning.workload import Workload
from steptime.result_base import unit

MOST_DRAFTS: Final = 8  # tokens a step, as far as acceptance was measured
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: `drafts` tokens are drafted for a step, which yields `acceptance` tokens of a sequence in the mean.

    acceptance counts the token that is sure, so that it is from 1 to drafts + 1; source: where it is from, in words.
    """

    drafts: int = field(default=0, metadata=unit("tokens", "drafted for a step of a sequence; 0: none", key="drafts"))
    acceptance: float = field(
        default=1.0, metadata=unit("tokens", "that a step yields of a sequence in the mean, the sure one among them")
    )
    source: str = field(default="", metadata=unit("", "where that was measured, with its grade; empty: nothing is drafted"))

    def __post_init__(self) -> None:
        single(drafts=self.drafts, acceptance=self.acceptance)
        whole_number("drafts", self.drafts, minimum=0, maximum=MOST_DRAFTS)
        if not 1 <= self.acceptance <= self.drafts + 1:
            raise RangeError(
                f"acceptance is the tokens that a step yields, from 1 to {self.drafts + 1} with drafts {self.drafts} "
                f"(drafts + 1), not {self.acceptance:g}"
            )

    @property
    def text(self) -> str:
        """Say what is drafted and accepted."""
        count_text = "1 draft" if self.drafts == 1 else f"{self.drafts} drafts"
        return f"{count_text} a step, {self.acceptance:.3g} tokens accepted ({self.source})" if self.drafts else "no drafts"


NONE: Final = Speculation()
"""Nothing is drafted, as engines do unless told."""


def decode_steps(workload: Workload, speculation: Speculation = NONE) -> Number:
    """Decode steps of a request in the mean: the first token comes from prefill, each step yields the accepted ones.

    >>> decode_steps(Workload(input_tokens=8, output_tokens=101)), decode_steps(Workload(input_tokens=8, output_tokens=1))
    (100.0, 1.0)
    """
    owed = np.maximum(1.0, workload.output_tokens - 1)
    steps: Number = np.maximum(1.0, owed / speculation.acceptance)
    return steps if np.ndim(steps) else float(steps)


def step_yield(workload: Workload, speculation: Speculation = NONE) -> Number:
    """Tokens of a request that one decode step yields in the mean: those accepted, or all that it still owes."""
    owed = np.maximum(1.0, workload.output_tokens - 1)
    gained: Number = owed / decode_steps(workload, speculation)
    return gained


def check_asked(drafts: int | str | None, acceptance: float | None) -> None:
    """Raise RangeError for numbers of drafts and acceptances that say nothing together."""
    if isinstance(drafts, str) and drafts != AUTO:
        raise RangeError(f"drafts is a number of tokens from 0 to {MOST_DRAFTS}, or auto, not {drafts!r}")
    if acceptance is not None and drafts is None:
        raise RangeError("acceptance goes with a number of drafts: give drafts too (--drafts 2)")
    if acceptance is not None and drafts == AUTO:
        raise RangeError("acceptance goes with one number of drafts, which auto searches: give the number (--drafts 2)")
    if drafts is not None and drafts != AUTO:
        whole_number("drafts", drafts, minimum=0, maximum=MOST_DRAFTS)


def choose_speculation(model: Model, drafts: int, acceptance: float | None = None) -> Speculation:
    """Return the drafting of a model's own layers: with the acceptance given, or as it was measured of such a model.

    Raises InputError for a model without layers that draft, and RangeError beyond what was measured of it.
    """
    if drafts == 0:
        return Speculation(acceptance=1.0 if acceptance is None else acceptance)
    if not model.draft:
        raise InputError(
            f"{model.name} has no layers that draft tokens (multi-token prediction), and draft models of their own are not "
            "counted: plan without --drafts, or a model that has such layers, such as deepseek-v3 or glm-5.2"
        )
    if acceptance is not None:
        return Speculation(drafts=drafts, acceptance=acceptance, source="acceptance as given")
    curve = acceptance_curve(model.name)
    if drafts > len(curve.figures):
        raise RangeError(
            f"how many of {drafts} drafts {model.name} accepts was not measured; known up to {len(curve.figures)}: "
            "give the tokens that a step yields (--acceptance)"
        )
    return _measured(curve, drafts)


def known_draftings(model: Model) -> tuple[Speculation, ...]:
    """Return every number of drafts whose acceptance is known of a model, none first; none alone without draft layers."""
    if not model.draft:
        return (Speculation(),)
    curve = acceptance_curve(model.name)
    return (Speculation(), *(_measured(curve, drafts) for drafts in range(1, min(MOST_DRAFTS, len(curve.figures)) + 1)))


def _measured(curve: Curve, drafts: int) -> Speculation:
    return Speculation(drafts=drafts, acceptance=curve.tokens[drafts - 1], source=_words(curve, drafts))


def drafting_warnings(model: Model, speculation: Speculation) -> tuple[str, ...]:
    """Say where an acceptance is a guess."""
    if not speculation.drafts or not speculation.source.startswith("guess"):
        return ()
    return (
        f"no acceptance of drafts by {model.name} was published: {speculation.acceptance:.3g} tokens a step are a guess from "
        "other models, and ranges do not count how far it may be off; give yours as --acceptance",
    )


def _words(curve: Curve, drafts: int) -> str:
    figure = curve.figures[drafts - 1]
    return f"{figure.grade}: {figure.note or curve.words}"
