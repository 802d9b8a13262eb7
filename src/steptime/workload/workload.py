"""The workload of a deployment, the limits (SLO) that it must meet, and its speculative tokens."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass, field
from typing import Final

import numpy as np

from steptime.catalog.acceptance_lengths import OWN_LAYERS, Curve, acceptance_curve
from steptime.errors import InputError, RangeError
from steptime.models.draft_models import RULE
from steptime.models.model import Model
from steptime.number_checks import MOST_TOKENS, Number, between, check_shapes, limit, positive, share, single, whole_number
from steptime.result_base import unit
from steptime.units import DAY, in_span
from steptime.workload.draft_acceptance import estimate_acceptance

# Longest plausible TPOT [s]; a larger value was probably meant as a speed.
LONGEST_TPOT: Final = 10.0
# Largest standard deviation of lengths over their mean; traces have up to 2.2.
LARGEST_SPREAD: Final = 5.0
# Searches relax a limit a little.
SLACK: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests with mean input and output tokens; part of each input may be cached.

    `cached_share` is the share of the input that is in a prefix cache. Lengths are log-normal. `input_spread`
    and `output_spread` are their standard deviations over their means. The default of 1 is that of public
    traces: conversations on Azure have 0.96 (input) and 0.77 (output), code completion 0.96 and 2.15, Mooncake 1.31
    and 0.73. With 0, all requests are equal, as in most benchmarks.
    """

    input_tokens: float = field(metadata=unit("tokens", "mean input tokens per request"))
    output_tokens: float = field(metadata=unit("tokens", "mean output tokens per request"))
    cached_share: float = field(default=0.0, metadata=unit("", "share of the input that is in a prefix cache"))
    input_spread: float = field(default=1.0, metadata=unit("", "standard deviation of input tokens over their mean"))
    output_spread: float = field(default=1.0, metadata=unit("", "standard deviation of output tokens over their mean"))

    def __post_init__(self) -> None:
        between("input tokens", self.input_tokens, 1, MOST_TOKENS, "token")
        between("output tokens", self.output_tokens, 1, MOST_TOKENS, "token")
        share("cached share", self.cached_share, whole_too=False)
        spreads = {"input_spread": self.input_spread, "output_spread": self.output_spread}
        for name, spread in spreads.items():
            between(name, spread, 0.0, LARGEST_SPREAD)
        check_shapes(
            input_tokens=self.input_tokens, output_tokens=self.output_tokens, cached_share=self.cached_share, **spreads
        )
        reach = np.asarray(self.input_tokens, dtype=np.float64) + np.asarray(self.output_tokens, dtype=np.float64)
        between("input and output tokens together", reach, 1, MOST_TOKENS, "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits on the TTFT `ttft` [s] and the time per output token `tpot` [s], of a percentile or on average.

    `speed` [tok/s] is the minimum output speed per user, in place of `tpot`.

    >>> Slo(speed=50, ttft=2)
    Slo(ttft=2, tpot=0.02)
    """

    ttft: float = field(default=math.inf, metadata=unit("s", "limit on the time to first token; null: no limit"))
    tpot: float = field(default=math.inf, metadata=unit("s", "limit on the time per output token; null: no limit"))

    speed: InitVar[float | None] = None

    def __post_init__(self, speed: float | None) -> None:
        if speed is not None:
            if self.tpot != math.inf:
                raise InputError("speed: tpot = 1 / speed is the same limit, got both; give one of the two")
            object.__setattr__(self, "tpot", 1 / positive("speed", speed, "tok/s", minimum=1 / LONGEST_TPOT, maximum=1e9))
        limit("the TTFT limit", self.ttft)
        limit("the TPOT limit", self.tpot)
        for name, value, maximum, fix in (
            ("tpot", self.tpot, LONGEST_TPOT, "to limit a speed in tok/s, give the speed"),
            ("ttft", self.ttft, DAY, "it is a time in s; to limit a speed in tok/s, give the speed"),
        ):
            times = np.asarray(value, dtype=np.float64)
            longest = np.max(times, where=np.isfinite(times), initial=0.0)
            if longest > maximum * SLACK:
                raise InputError(f"{name} must be at most {maximum:g} s, got {longest:g}; {fix}")


def limits(*, speed: float | None = None, ttft: float | None = None) -> Slo:
    """Return limits from a minimum output speed and a maximum TTFT.

    Args:
        speed: Minimum output speed per user [tok/s]; None: no limit.
        ttft: Maximum time to first token [s]; None: no limit.

    Returns:
        The limits.

    >>> limits(speed=50)
    Slo(ttft=inf, tpot=0.02)
    """
    return Slo(speed=speed, ttft=math.inf if ttft is None else ttft)


# Most speculative tokens per step; acceptance was not measured beyond.
MOST_DRAFTS: Final = 8
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: tokens drafted per step, and tokens that a step yields.

    `acceptance` is the mean acceptance length of a sequence, including the token that is always accepted. It
    is from 1 to drafts + 1.
    """

    drafts: int = field(default=0, metadata=unit("tokens", "speculative tokens per step and sequence; 0: off", key="drafts"))
    acceptance: float = field(
        default=1.0, metadata=unit("tokens", "mean acceptance length per step, including the token that is always accepted")
    )
    source: str = field(default="", metadata=unit("", "grade and source of the acceptance length; empty: no drafts"))
    method: str = field(default="", metadata=unit("", "what drafts: mtp, eagle3 or draft_model; empty: no drafts"))
    draft_model: str = field(
        default="", metadata=unit("", "id or folder of a separate drafter; empty: MTP layers, or no public weights known")
    )
    acceptance_range: tuple[float, float] | None = field(
        default=None,
        metadata=unit("tokens", "range of the acceptance length where it is a prior of the method; null: measured or given"),
    )

    def __post_init__(self) -> None:
        single(drafts=self.drafts, acceptance=self.acceptance)
        whole_number("drafts", self.drafts, minimum=0, maximum=MOST_DRAFTS)
        if not 1 <= self.acceptance <= self.drafts + 1:
            raise RangeError(
                f"acceptance: must be from 1 to {self.drafts + 1} tokens per step with drafts {self.drafts} "
                f"(drafts + 1), got {self.acceptance:g}"
            )

    @property
    def text(self) -> str:
        """Speculative tokens and acceptance length in words."""
        count_text = "1 speculative token" if self.drafts == 1 else f"{self.drafts} speculative tokens"
        drafter = ""
        if self.method not in ("", OWN_LAYERS):
            drafter = f" from {DRAFTED_BY[self.method]}" + (f" ({self.draft_model})" if self.draft_model else "")
        length = f"acceptance length {self.acceptance:.3g} ({self.source})"
        return f"{count_text} per step{drafter}, {length}" if self.drafts else "none"

    @property
    def log_range(self) -> tuple[float, float]:
        """Logarithms by which the time per token may be lower and higher, because the acceptance is a prior; 0 if not."""
        if self.acceptance_range is None:
            return 0.0, 0.0
        low, high = self.acceptance_range
        return math.log(max(high / self.acceptance, 1.0)), math.log(max(self.acceptance / low, 1.0))


# What drafts, in words, by method.
DRAFTED_BY: Final = {OWN_LAYERS: "the model's own MTP layers", "eagle3": "an EAGLE-3 head", "draft_model": "a draft model"}
NONE: Final = Speculation()
"""No speculative tokens, the default of engines."""


def decode_steps(workload: Workload, speculation: Speculation = NONE) -> Number:
    """Return the mean number of decode steps per request.

    The first token comes from prefill. Each step yields the acceptance length.

    Args:
        workload: Requests.
        speculation: Speculative tokens.

    Returns:
        Steps, at least 1.

    >>> decode_steps(Workload(input_tokens=8, output_tokens=101)), decode_steps(Workload(input_tokens=8, output_tokens=1))
    (100.0, 1.0)
    """
    owed = np.maximum(1.0, workload.output_tokens - 1)
    steps: Number = np.maximum(1.0, owed / speculation.acceptance)
    return steps if np.ndim(steps) else float(steps)


def step_yield(workload: Workload, speculation: Speculation = NONE) -> Number:
    """Return the mean number of tokens that a decode step yields for a request.

    This is the acceptance length, or all remaining tokens if these are fewer.

    Args:
        workload: Requests.
        speculation: Speculative tokens.

    Returns:
        Tokens per step.
    """
    owed = np.maximum(1.0, workload.output_tokens - 1)
    gained: Number = owed / decode_steps(workload, speculation)
    return gained


def check_asked(drafts: int | str | None, acceptance: float | None) -> None:
    """Check the options for speculative tokens together.

    Args:
        drafts: Speculative tokens per step, "auto" or None.
        acceptance: Acceptance length, or None.

    Raises:
        RangeError: A value is out of range, or an acceptance has no number of tokens.
    """
    if isinstance(drafts, str) and drafts != AUTO:
        raise RangeError(f"drafts: must be a number of tokens from 0 to {MOST_DRAFTS}, or auto, got {drafts!r}")
    if acceptance is not None and drafts is None:
        raise RangeError("acceptance: needs a number of drafts, got none; give drafts too (--drafts 2)")
    if acceptance is not None and drafts == AUTO:
        raise RangeError("acceptance: needs one number of drafts, got auto, which searches it; give the number (--drafts 2)")
    if drafts is not None and drafts != AUTO:
        whole_number("drafts", drafts, minimum=0, maximum=MOST_DRAFTS)


def choose_speculation(model: Model, drafts: int, acceptance: float | None = None) -> Speculation:
    """Return the speculation of a model's drafter, or of its draft layers.

    Args:
        model: Model.
        drafts: Speculative tokens per step.
        acceptance: Acceptance length; by default the measured value of such a model, or the prior of its drafter.

    Returns:
        The speculation with its source.

    Raises:
        InputError: The model has nothing that can draft.
        RangeError: No acceptance was measured for this number of tokens.
    """
    if drafts == 0:
        return Speculation(acceptance=1.0 if acceptance is None else acceptance)
    if not model.can_draft:
        raise InputError(
            f"drafts: {model.name} has no layers that draft tokens (multi-token prediction); name a draft model with "
            "--draft-model (eagle3, or a small model with the same vocabulary), or leave out --drafts"
        )
    method, place = drafted_with(model)
    if acceptance is not None:
        return Speculation(drafts=drafts, acceptance=acceptance, source="given", method=method, draft_model=place)
    if model.drafter is not None:
        return _estimated(model, drafts)
    curve = acceptance_curve(model.name)
    if drafts > len(curve.figures):
        raise RangeError(
            f"drafts: no acceptance of {model.name} was measured beyond {len(curve.figures)}, got {drafts}; "
            "give the acceptance length (--acceptance)"
        )
    return _measured(curve, drafts)


def drafted_with(model: Model) -> tuple[str, str]:
    """Return the method that drafts for a model, and the id or folder of a separate drafter.

    Args:
        model: Model.

    Returns:
        mtp, eagle3 or draft_model, and the place; empty texts where nothing drafts.
    """
    if model.drafter is not None:
        return model.drafter.method, model.drafter.place
    return (OWN_LAYERS if model.draft else ""), ""


def known_draftings(model: Model) -> tuple[Speculation, ...]:
    """List every number of speculative tokens with a known acceptance.

    Args:
        model: Model.

    Returns:
        Speculations, starting with no tokens; only that one where nothing drafts.
    """
    if not model.can_draft:
        return (Speculation(),)
    if model.drafter is not None:
        return (Speculation(), *(_estimated(model, drafts) for drafts in range(1, MOST_DRAFTS + 1)))
    curve = acceptance_curve(model.name)
    return (Speculation(), *(_measured(curve, drafts) for drafts in range(1, min(MOST_DRAFTS, len(curve.figures)) + 1)))


def _estimated(model: Model, drafts: int) -> Speculation:
    """Return the speculation of a separate drafter."""
    estimate = estimate_acceptance(model, drafts)
    method, place = drafted_with(model)
    return Speculation(
        drafts=drafts,
        acceptance=estimate.length,
        source=estimate.source,
        method=method,
        draft_model=place,
        acceptance_range=None if estimate.is_measured else (estimate.low, estimate.high),
    )


def _measured(curve: Curve, drafts: int) -> Speculation:
    return Speculation(drafts=drafts, acceptance=curve.tokens[drafts - 1], source=_words(curve, drafts), method=OWN_LAYERS)


def drafting_warnings(model: Model, speculation: Speculation) -> tuple[str, ...]:
    """Return warnings where the acceptance length is a guess or a prior, or a head has a shape by rule.

    Args:
        model: Model.
        speculation: Speculative tokens.

    Returns:
        Warnings; empty where the value was measured or given.
    """
    if not speculation.drafts:
        return ()
    warnings: tuple[str, ...] = ()
    if speculation.method == "eagle3" and model.drafter is not None and model.drafter.source.startswith(RULE):
        warnings = (f"the shape of the EAGLE-3 head of {model.name} is {RULE}",)
    if speculation.acceptance_range is not None:
        low, high = speculation.acceptance_range
        return (
            *warnings,
            f"no acceptance length of {model.name} with this drafter was published: {speculation.acceptance:.3g} tokens per "
            f"step are the median of others, and the ranges include {in_span(low, high)}; give yours as --acceptance",
        )
    if not speculation.source.startswith("guess"):
        return warnings
    return (
        f"no acceptance length of {model.name} was published: {speculation.acceptance:.3g} tokens per step are a guess from "
        "other models, and the ranges do not include its error; give yours as --acceptance",
    )


def _words(curve: Curve, drafts: int) -> str:
    figure = curve.figures[drafts - 1]
    return f"{figure.grade}: {figure.note or curve.words}"
