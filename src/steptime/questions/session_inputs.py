"""Inputs of sessions: conversations and agents as requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from steptime.errors import RangeError, UnitError, UnknownName, short_repr
from steptime.hardware.system import System
from steptime.number_checks import MOST_TOKENS, at_least_zero
from steptime.questions.declaration import count, number, text
from steptime.questions.subject import REQUESTS_GROUP
from steptime.units import parse
from steptime.workload.sessions import LONGEST_THINK_TIME, PRESETS, Sessions, read_turns

# Sessions with a number of turns in place of a preset have the think time of conversations.
USUAL_THINK_TIME: Final = PRESETS["chat"].think_time


@dataclass(frozen=True, kw_only=True)
class SessionInputs:
    """Inputs that make each request a turn of a conversation or of an agent."""

    sessions: Any = text(
        None,
        "conversations or agents, whose prompts repeat their history: chat, agent, or a mean number of turns; input and output "
        "are then the new tokens of a turn, and a rate counts turns",
        group=REQUESTS_GROUP,
        metavar="KIND",
        bare=True,
        default_words="each request stands alone",
    )
    think_time: Any = number(
        None, "mean time from an answer to the next turn (exponential)", unit="s", minimum=0.0, maximum=LONGEST_THINK_TIME,
        group=REQUESTS_GROUP, default_words=f"of the kind; {USUAL_THINK_TIME:g} s with a number of turns",
    )  # fmt: skip
    system_prompt: Any = count(
        None, "tokens of a system prompt that all sessions share", unit="tokens", minimum=0, maximum=MOST_TOKENS,
        group=REQUESTS_GROUP, default_words="of the kind; 0 with a number of turns",
    )  # fmt: skip

    def session_figures(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs that the kind of sessions sets.

        Args:
            values: Values by input name, as the user gives them; these stay.

        Returns:
            Values by input name: turns in place of a kind, and figures that the user does not give.

        Raises:
            RangeError: A think time or a system prompt is given without sessions.
            UnknownName: There is no such kind.
        """
        if self.sessions is None:
            for name in ("think_time", "system_prompt"):
                if getattr(self, name) is not None:
                    raise RangeError(f"{name}: needs sessions, got {getattr(self, name):g} without; give sessions (--sessions)")
            return {}
        kind = read_turns(self.sessions)
        if not isinstance(kind, Sessions):
            defaults = {"think_time": USUAL_THINK_TIME, "system_prompt": 0}
            turns = kind
        else:
            turns = kind.turns
            defaults = {
                "think_time": kind.think_time, "system_prompt": kind.system_prompt, "input": kind.input_tokens,
                "output": kind.output_tokens,
            }  # fmt: skip
        return {"sessions": turns} | {name: value for name, value in defaults.items() if values.get(name) is None}

    def drawn_sessions(self, input_tokens: float, output_tokens: float, spread: float, output_spread: float | None) -> Sessions:
        """Return the sessions, after `session_figures` has set their inputs.

        Args:
            input_tokens: New input tokens per turn.
            output_tokens: Output tokens per turn.
            spread: Standard deviation of lengths over their mean.
            output_spread: That of output lengths; None: as `spread`.

        Returns:
            The sessions.
        """
        return Sessions(
            turns=self.sessions, input_tokens=input_tokens, output_tokens=output_tokens, think_time=self.think_time,
            system_prompt=self.system_prompt, input_spread=spread,
            output_spread=spread if output_spread is None else output_spread,
        )  # fmt: skip


def read_tier_capacities(words: str, system: System) -> dict[str, float]:
    """Return the capacities of memory tiers in a text.

    Args:
        words: Text such as "hbm=20GB,host=1TB".
        system: System, which has the tiers.

    Returns:
        Bytes by tier.

    Raises:
        RangeError: If a tier has no capacity, is given twice, or is not one of the system.
        UnitError: If a capacity is not a number of bytes.
    """
    names, tiers = [tier.name for tier in (system.chip.hbm, *system.tiers)], dict[str, float]()
    for part in words.split(","):
        name, equals, size = part.strip().partition("=")
        if not equals:
            raise RangeError(f"prefix_cache: must be TIER=CAPACITY, such as host=1TB, got {short_repr(part)}")
        if name in tiers:
            raise RangeError(f"prefix_cache: {name} is given twice; keep one")
        if name not in names:
            unknown = UnknownName("memory tier", name, names, f"Known: {', '.join(names)}.")
            raise RangeError(f"prefix_cache: {unknown}")
        try:
            capacity = parse(size, "B")
        except UnitError as problem:
            raise UnitError(f"prefix_cache: {name}: {problem}") from None
        tiers[name] = at_least_zero(f"prefix_cache: {name}", capacity, "B")
    return tiers
