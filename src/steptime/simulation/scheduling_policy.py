"""How a server schedules: each policy is a few numbers that the loop reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from steptime.blackboard.ideal_machine import drain_seconds
from steptime.errors import RangeError, UnknownName
from steptime.hardware.system import System
from steptime.number_checks import LONGEST, at_least_zero, limit, positive, single, whole
from steptime.physics.engine import Engine
from steptime.result_base import unit
from steptime.simulation.loop_state import CONTINUOUS, PREFILL_FIRST, STATIC, TRAIN, Rules

KINDS = {"continuous": CONTINUOUS, "prefill-first": PREFILL_FIRST, "static": STATIC, "train": TRAIN}
ROUTES = ("round-robin", "least-loaded", "prefix-aware")
UNIT = 64  # parts of a token in which contexts grow where drafts make it a fraction
ENDLESS = 1 << 50
MOST_SEATS, MOST_TOKENS = 1 << 20, 1 << 24  # of a replica, of a step
MOST_BLOCK, MOST_DRAFTED, MOST_RANKS = 1 << 16, 1 << 10, 1 << 10  # tokens, tokens of a step, classes


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
    decoded ones among them. chunk: prompt tokens of a group in a step at most, however few it decodes.
    kv_tokens: room of a replica [tokens], without end if infinite; block: tokens that are allotted at once. when_full:
    "recompute" (the last seated sequence gives up its room and starts over) or "queue" (a request is seated only with room for
    all of it).
    patience [s]: how long a static batch that is not full waits after its first request. acceptance: tokens that a sequence
    gains in a decode step by drafts, of which there are `drafted`. ranks: classes of priority, 0 first. max_context [tokens].
    """

    kind: str = field(default="continuous", metadata=unit("", "continuous, prefill-first, static or train"))
    max_sequences: int = field(default=256, metadata=unit("", "seats of a replica"))
    token_budget: int = field(default=2048, metadata=unit("tokens", "of an attention group in a step", key="token_budget"))
    chunk: float = field(default=math.inf, metadata=unit("tokens", "of prompts of a group in a step; null: no limit"))
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
            if not isinstance(chosen, str) or chosen not in options:
                raise UnknownName(kind, chosen, options, f"Known: {', '.join(options)}.")
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("kind", "route", "when_full")}
        single(**numbers)
        for name, number in numbers.items():
            if isinstance(number, np.generic):  # a narrow one would overflow
                object.__setattr__(self, name, number.item())
        whole("max sequences", self.max_sequences, most=MOST_SEATS)
        whole("token budget", self.token_budget, most=MOST_TOKENS)
        whole("block", self.block, most=MOST_BLOCK, unit="token")
        whole("drafted tokens", self.drafted, least=0, most=MOST_DRAFTED)
        whole("ranks", self.ranks, most=MOST_RANKS)
        limit("chunk", self.chunk, "token", least=1)
        limit("KV tokens", self.kv_tokens, "token", least=1)
        limit("max context", self.max_context, "token", least=1)
        limit("patience", self.patience, least=0)
        at_least_zero("interval", self.interval, "s", most=LONGEST)
        if self.kind == "train":
            positive("the interval of a train schedule", self.interval, "s", least=1e-6, most=LONGEST)
        positive("acceptance", self.acceptance)
        if not 1 <= self.acceptance <= self.drafted + 1:
            raise RangeError(f"a step yields between 1 and {self.drafted + 1} tokens (drafted + 1), not {self.acceptance:g}")

    def rules(self, *, closed: bool = False, groups: int = 1) -> Rules:
        """Return the numbers that the loop reads, for a replica of `groups` attention groups."""
        drafting = self.acceptance > 1
        unit, block = (UNIT, 1) if drafting else (1, self.block)
        room = int(min(float(self.kv_tokens), ENDLESS) * unit // block)
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
            growth=round(float(self.acceptance) * unit),
            interval=float(self.interval),
            patience=float(self.patience),
            ranks=int(self.ranks),
            closed=closed,
            longest=int(min(float(self.max_context), ENDLESS)),
            reads=int(min(float(self.chunk), MOST_TOKENS)),
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
