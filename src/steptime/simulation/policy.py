"""How a server schedules: each policy is a few numbers that the loop reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from steptime.blackboard.machine import drain_seconds
from steptime.errors import RangeError, UnknownName
from steptime.machines.system import System
from steptime.physics.engine import Engine
from steptime.results import unit
from steptime.simulation.state import CONTINUOUS, PREFILL_FIRST, STATIC, TRAIN, Rules

KINDS = {"continuous": CONTINUOUS, "prefill-first": PREFILL_FIRST, "static": STATIC, "train": TRAIN}
ROUTES = ("round-robin", "least-loaded", "prefix-aware")
UNIT = 64  # parts of a token in which contexts grow where drafts make it a fraction
ENDLESS = 1 << 50
MOST_SEATS, MOST_TOKENS = 1 << 20, 1 << 24  # of a replica, of a step


def kind_of(engine: Engine) -> str:
    """The schedule that an engine has: prompts before decode, or beside it."""
    return "prefill-first" if float(engine.scheduler.prefill_first) > 0.5 else "continuous"


def budget_of(engine: Engine, *, prompt: float, batch: float) -> int:
    """Tokens of an attention group in a step of an engine: its own figure, or a prompt and a decode batch [tokens]."""
    return int(engine.scheduler.step_tokens) or math.ceil(prompt + batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A schedule for the replicas of one pool.

    kind: "continuous" (prompt chunks beside decode, as vLLM), "prefill-first" (steps that read prompts come before steps that
    decode, as SGLang and TensorRT-LLM), "static" (a batch is done before the next begins) or "train" (a step departs every
    `interval` [s], full or not). max_sequences: seats of a replica. token_budget: tokens of an attention group in a step,
    decoded ones among them.
    kv_tokens: room of a replica [tokens], without end if infinite; block: tokens that are allotted at once. when_full:
    "recompute" (the last seated sequence gives up its room and starts over) or "queue" (a request is seated only with room for
    all of it).
    patience [s]: how long a static batch that is not full waits after its first request. acceptance: tokens that a sequence
    gains in a decode step by drafts, of which there are `drafted`. ranks: classes of priority, 0 first. max_context [tokens].
    """

    kind: str = field(default="continuous", metadata=unit("", "continuous, prefill-first, static or train"))
    max_sequences: int = field(default=256, metadata=unit("", "seats of a replica"))
    token_budget: int = field(default=2048, metadata=unit("tokens", "of an attention group in a step", key="token_budget"))
    kv_tokens: float = field(default=math.inf, metadata=unit("tokens", "room of a replica"))
    block: int = field(default=16, metadata=unit("tokens", "that are allotted at once"))
    when_full: str = field(default="recompute", metadata=unit("", "recompute or queue"))
    interval: float = field(default=0.0, metadata=unit("s", "between trains"))
    patience: float = field(default=0.0, metadata=unit("s", "that a static batch waits to fill"))
    acceptance: float = field(default=1.0, metadata=unit("tokens", "that a sequence gains in a step by drafts"))
    drafted: int = field(default=0, metadata=unit("tokens", "drafted for a step"))
    ranks: int = field(default=1, metadata=unit("", "classes of priority"))
    max_context: float = field(default=math.inf, metadata=unit("tokens", "longest context; null: no limit"))
    route: str = field(default="round-robin", metadata=unit("", "round-robin, least-loaded or prefix-aware"))

    def __post_init__(self) -> None:
        for kind, chosen, options in (
            ("policy", self.kind, tuple(KINDS)),
            ("routing", self.route, ROUTES),
            ("answer to a full cache", self.when_full, ("recompute", "queue")),
        ):
            if chosen not in options:
                raise UnknownName(kind, chosen, options, f"Known: {', '.join(options)}.")
        for name, least, value in (
            ("max sequences", 1, self.max_sequences),
            ("token budget", 1, self.token_budget),
            ("KV tokens", 1, self.kv_tokens),
            ("block", 1, self.block),
            ("drafted tokens", 0, self.drafted),
            ("ranks", 1, self.ranks),
            ("patience", 0, self.patience),
        ):
            if not value >= least:
                raise RangeError(f"{name} must be at least {least}, not {value}")
        if self.kind == "train" and not 0 < self.interval < math.inf:
            raise RangeError(f"a train schedule needs an interval greater than 0 s, not {self.interval}")
        if self.max_sequences > MOST_SEATS:
            raise RangeError(f"max sequences must be at most {MOST_SEATS:,}, not {self.max_sequences:,}")
        if self.token_budget > MOST_TOKENS:
            raise RangeError(f"the token budget must be at most {MOST_TOKENS:,}, not {self.token_budget:,}")
        if not 1 <= self.acceptance <= self.drafted + 1:
            raise RangeError(f"a step yields between 1 and {self.drafted + 1} tokens (drafted + 1), not {self.acceptance:g}")

    def rules(self, *, closed: bool = False, groups: int = 1) -> Rules:
        """Return the numbers that the loop reads, for a replica of `groups` attention groups."""
        drafting = self.acceptance > 1
        unit, block = (UNIT, 1) if drafting else (1, self.block)
        room = int(min(self.kv_tokens, ENDLESS) * unit // block)
        return Rules(
            kind=KINDS[self.kind],
            seats=int(self.max_sequences),
            budget=int(self.token_budget) * groups,
            chunk=int(self.token_budget),
            unit=unit,
            block=block,
            blocks=room,
            reserve=self.when_full == "queue" or self.kind == "static",
            query=int(self.drafted) + 1,
            growth=round(self.acceptance * unit),
            interval=float(self.interval),
            patience=float(self.patience),
            ranks=int(self.ranks),
            closed=closed,
            longest=int(min(self.max_context, ENDLESS)),
        )


def policy_for(
    engine: Engine,
    system: System,
    *,
    prompt: float,
    kind: str | None = None,
    max_sequences: int = 256,
    token_budget: int | None = None,
    kv_tokens: float | None = None,
    interval: float | None = None,
    **more: Any,
) -> Policy:
    """Return the schedule that an engine has on a system, with what is given in place of its own figures.

    prompt: the longest [tokens], for engines that read a prompt in one step. kv_tokens: what the chips hold where None.
    interval [s] between trains: the time to read the whole HBM once where None. `more` goes to `Policy`.
    """
    hbm = system.chip.hbm
    return Policy(
        kind=kind or kind_of(engine),
        max_sequences=max_sequences,
        token_budget=budget_of(engine, prompt=prompt, batch=max_sequences) if token_budget is None else token_budget,
        kv_tokens=math.inf if kv_tokens is None else kv_tokens,
        interval=float(drain_seconds(hbm.capacity, hbm.bandwidth)) if interval is None else interval,
        **more,
    )
