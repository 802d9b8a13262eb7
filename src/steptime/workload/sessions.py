r"""Sessions: conversations and agents, whose prompts repeat the whole history of the session.

The prompt of turn $k$ begins with a system prompt that all sessions share. Then follow the input and output of the turns
before, and the new input of the turn. The number of turns is geometric, and the next turn arrives after a think time, which is
exponential. A session ends where its next turn would exceed the context of the model.

With $m$ turns on average, a request has $m - 1$ turns before it on average, because a geometric distribution has no memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from steptime.errors import RangeError, UnknownName, short_repr
from steptime.number_checks import LONGEST, MOST_TOKENS, at_least_zero, between, single
from steptime.result_base import unit
from steptime.workload.traffic import MAX_REQUESTS, Lengths, Traffic, arrivals
from steptime.workload.workload import LARGEST_SPREAD, Workload

# Most turns of a session on average, and longest think time [s].
MOST_TURNS, LONGEST_THINK_TIME = 10_000.0, 1e6
# Tokens of a block of the prefix cache, as in engines.
BLOCK = 16
# Sessions in progress when a run starts have begun up to this multiple of their mean duration before it. The estimate of
# the duration takes this time per output token [s].
DURATIONS, SECONDS_PER_TOKEN = 5.0, 0.03
# More turns than needed, because their number is random.
SURPLUS = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Sessions of several turns, each of which is a request.

    `input_tokens` and `output_tokens` are the new tokens of a turn. Lengths are log-normal, as in a `Workload`.
    """

    turns: float = field(metadata=unit("", "mean turns of a session; their number is geometric"))
    input_tokens: float = field(metadata=unit("tokens", "mean new input tokens per turn"))
    output_tokens: float = field(metadata=unit("tokens", "mean output tokens per turn"))
    think_time: float = field(metadata=unit("s", "mean time from an answer to the next turn; it is exponential", key="think_s"))
    system_prompt: float = field(default=0.0, metadata=unit("tokens", "system prompt, which all sessions share"))
    input_spread: float = field(default=1.0, metadata=unit("", "standard deviation of input tokens over their mean"))
    output_spread: float = field(default=1.0, metadata=unit("", "standard deviation of output tokens over their mean"))

    def __post_init__(self) -> None:
        single(turns=self.turns, think_time=self.think_time, system_prompt=self.system_prompt)
        between("turns", self.turns, 1, MOST_TURNS)
        between("input tokens per turn", self.input_tokens, 1, MOST_TOKENS, "token")
        between("output tokens per turn", self.output_tokens, 1, MOST_TOKENS, "token")
        between("think_time", self.think_time, 0, LONGEST_THINK_TIME, "s")
        between("system_prompt", self.system_prompt, 0, MOST_TOKENS, "token")
        for name, spread in (("input_spread", self.input_spread), ("output_spread", self.output_spread)):
            between(name, spread, 0.0, LARGEST_SPREAD)

    @property
    def growth(self) -> float:
        """Tokens that a turn adds to the history."""
        return self.input_tokens + self.output_tokens


PRESETS: Final = {
    # Turns: more than 2.5 million turns in a million conversations. Tokens of users and of the chatbot: table 1 of the
    # paper (recalled). https://arxiv.org/abs/2405.01470
    # Think time: users of coding assistants answer after 86 s in the median, 86 s / ln 2 on average if exponential.
    # https://github.com/uw-syfi/TraceLab/blob/main/artifacts/human_in_the_loop/human_input_wait/README.md
    "chat": Sessions(turns=2.5, input_tokens=296, output_tokens=441, think_time=124, system_prompt=0),
    # TraceLab, 4,265 sessions of Claude Code and Codex with 357,161 model calls: 54.9 G input, 186.9 M output tokens, so
    # 523 output tokens a call. The context grows by 609 M tokens in all, 1,705 a call, of which 1,182 are new input.
    # A session has 16 calls in the median and 83 on average; a task of Manus takes about 50. Tools take 14 s a call on
    # average (1,664 h in 432,510 calls).
    # https://tracelab.cs.washington.edu/ https://arxiv.org/abs/2606.30560
    # https://github.com/uw-syfi/TraceLab/blob/main/artifacts/trace_facts/paper_macros/paper_macros.tex
    # https://github.com/uw-syfi/TraceLab/blob/main/artifacts/tool_calls/tool_latency_distribution/README.md
    # https://manus.im/blog/Context-Engineering-for-AI-Agents-Lessons-from-Building-Manus
    # System prompt and tools of Claude Code: 12,974 and about 3,000 tokens.
    # https://huggingface.co/datasets/semianalysisai/cc-traces-weka-042026
    "agent": Sessions(turns=30, input_tokens=1182, output_tokens=523, think_time=14, system_prompt=16_000),
}
"""Public figures of conversations and of coding agents."""


def read_turns(value: Any) -> Sessions | float:
    """Return the preset of a name, or the mean number of turns.

    Args:
        value: Name of a preset, or a number of turns.

    Returns:
        Sessions of the preset, or turns.

    Raises:
        UnknownName: There is no such preset.

    >>> read_turns("agent").turns, read_turns("8")
    (30, 8.0)
    """
    if isinstance(value, str) and value in PRESETS:
        return PRESETS[value]
    try:
        turns = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UnknownName(
            "kind of sessions", value, PRESETS, f"Known: {', '.join(PRESETS)}; a mean number of turns works too."
        ) from None
    if not 1 <= turns <= MOST_TURNS:
        raise RangeError(f"sessions: must be from 1 to {MOST_TURNS:,.0f} turns on average, got {short_repr(value)}")
    return turns


def turn_shares(sessions: Sessions, longest: float = math.inf) -> Any:
    r"""Return the share of requests that are the first, second, ... turn of their session.

    Turn $k$ exists with probability $q^{k-1}$, where $q = 1 - 1/m$. Sessions end before their context exceeds `longest`;
    this counts with the mean lengths.

    Args:
        sessions: Sessions.
        longest: Longest context of the model [tokens].

    Returns:
        Shares by turn; their sum is 1.

    >>> turn_shares(Sessions(turns=2, input_tokens=100, output_tokens=100, think_time=1), longest=600).round(3).tolist()
    [0.571, 0.286, 0.143]
    """
    room = (longest - sessions.system_prompt) / sessions.growth
    if room < 1:
        raise RangeError(
            f"system_prompt, input, output: one turn must fit the context of the model, {longest:,.0f} tokens, got "
            f"{sessions.system_prompt + sessions.growth:,.0f}"
        )
    # Turns beyond a share of 1e-12 of the sessions do not matter.
    stay = 1 - 1 / sessions.turns
    rare = 1 if stay == 0 else math.ceil(math.log(1e-12) / math.log(stay))
    weights = stay ** np.arange(int(min(room, max(rare, 1))), dtype=np.float64)
    return weights / weights.sum()


def held_share(sessions: Sessions, longest: float = math.inf) -> float:
    """Return the share of prompt tokens that were in an earlier prompt or answer: what a cache of any size could keep.

    Args:
        sessions: Sessions.
        longest: Longest context of the model [tokens].

    Returns:
        Share from 0 to 1.

    >>> round(held_share(Sessions(turns=3, input_tokens=100, output_tokens=100, think_time=1)), 3)
    0.8
    """
    repeated = sessions.system_prompt + mean_history(sessions, longest)
    return repeated / (repeated + sessions.input_tokens)


def mean_history(sessions: Sessions, longest: float = math.inf) -> float:
    """Return the mean tokens of the turns before a request, without the system prompt.

    Args:
        sessions: Sessions.
        longest: Longest context of the model [tokens].

    Returns:
        Tokens.
    """
    shares = turn_shares(sessions, longest)
    return float(np.arange(len(shares)) @ shares) * sessions.growth


def mean_turns(sessions: Sessions, longest: float = math.inf) -> float:
    """Return the mean turns of a session, which the context of the model may end.

    Args:
        sessions: Sessions.
        longest: Longest context of the model [tokens].

    Returns:
        Turns.

    >>> round(mean_turns(Sessions(turns=2, input_tokens=100, output_tokens=100, think_time=1), longest=600), 2)
    1.75
    """
    return 1 / float(turn_shares(sessions, longest)[0])


def as_workload(sessions: Sessions, cached_share: float, longest: float = math.inf) -> Workload:
    """Return the requests of sessions as a workload with the same mean and spread of prompts.

    Args:
        sessions: Sessions.
        cached_share: Share of the prompt tokens that are in a prefix cache.
        longest: Longest context of the model [tokens].

    Returns:
        The workload.
    """
    shares = turn_shares(sessions, longest)
    before = np.arange(len(shares))
    turns_before = float(before @ shares)
    new_variance, out_variance = (
        (spread * mean) ** 2
        for spread, mean in (
            (sessions.input_spread, sessions.input_tokens), (sessions.output_spread, sessions.output_tokens)
        )
    )  # fmt: skip
    # The variance of a sum of a random number of turns, and of the new input.
    variance = float((before - turns_before) ** 2 @ shares) * sessions.growth**2
    variance += turns_before * (new_variance + out_variance) + new_variance
    mean = sessions.system_prompt + turns_before * sessions.growth + sessions.input_tokens
    return Workload(
        input_tokens=round(mean), output_tokens=sessions.output_tokens, cached_share=cached_share,
        input_spread=min(math.sqrt(variance) / mean, LARGEST_SPREAD), output_spread=sessions.output_spread,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTurns:
    """Turns of drawn sessions, whose arrivals depend on how long their answers take.

    Arrays have one entry per turn, sessions one after another. A turn arrives `think` s after the answer of the turn before.
    `start` is the time at which its session starts, and `new` its new input tokens. Turns that arrive before `ramp` s are left
    out. Of the others, the first `served` ones only fill the prefix cache.
    """

    session: Any
    start: Any
    think: Any
    inputs: Any
    new: Any
    outputs: Any
    shared_blocks: int
    ramp: float
    served: int
    name: str

    def arrivals(self, latency: Any) -> Any:
        """Return the arrival of every turn.

        Args:
            latency: Time from arrival to last token [s], one for all turns or by turn.

        Returns:
            Times [s].
        """
        first = np.diff(self.session, prepend=-1) > 0
        passed = np.concatenate([[0.0], np.broadcast_to(latency, self.session.shape)[:-1]]) + self.think
        elapsed = np.cumsum(np.where(first, 0.0, passed))
        return self.start + elapsed - np.repeat(elapsed[first], np.diff(np.append(np.flatnonzero(first), len(first))))

    def traffic(self, latency: Any = 0.0, use: Any = None) -> Traffic:
        """Return the turns as traffic, given how long their answers take.

        Args:
            latency: Time from arrival to last token [s], one for all turns or by turn.
            use: Time for which a replica has the blocks of a turn in use [s]; by default to its last token.

        Returns:
            Requests; `earlier` are those that fill the prefix cache before.
        """
        arrival = self.arrivals(latency)
        release = arrival + (latency if use is None else use)
        # The next turn of a session comes after the answer, apart from rounding.
        follows = np.flatnonzero(np.diff(self.session) == 0)
        release[follows] = np.minimum(release[follows], arrival[follows + 1])
        order = np.argsort(arrival, kind="stable")
        order = order[np.searchsorted(arrival[order], self.ramp) :][: 2 * self.served]
        earlier_count = max(0, len(order) - self.served)
        begins = arrival[order[earlier_count]]
        parts = order[:earlier_count], order[earlier_count:]
        earlier, served = (self._part(index, arrival[index] - begins, release[index] - begins) for index in parts)
        return Traffic(**served, turns=self, earlier=Traffic(**earlier))

    def _part(self, index: Any, arrival: Any, release: Any) -> dict[str, Any]:
        return {
            "arrival": arrival, "release": release, "inputs": self.inputs[index], "outputs": self.outputs[index],
            "block_tokens": BLOCK, "turn": index, "name": self.name,
        }  # fmt: skip


def _draw_turns(sessions: Sessions, count: int, longest: float, lengths: str, random: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return the turns of some sessions that fit the context, one session after another.

    Returns:
        By turn: number of the session, think time [s], prompt, new tokens of it, and output [tokens].
    """
    turns = np.minimum(random.geometric(1 / sessions.turns, count), max(1, math.ceil(40 * sessions.turns)))
    session = np.repeat(np.arange(count), turns)
    new, outputs = (
        Lengths(mean=mean, shape=lengths, spread=0.0 if lengths == "fixed" else spread).draw(random, len(session))
        for mean, spread in (
            (sessions.input_tokens, sessions.input_spread), (sessions.output_tokens, sessions.output_spread)
        )
    )  # fmt: skip
    think = random.exponential(sessions.think_time, len(session))
    first = np.concatenate([[0], np.cumsum(turns)[:-1]])
    grown = np.cumsum(new + outputs)
    history = grown - (new + outputs)
    inputs = round(sessions.system_prompt) + history - np.repeat(history[first], turns) + new

    # Contexts only grow, so that the turns that fit are the first ones of a session.
    fits = inputs + outputs <= longest
    if not np.any(fits):
        raise RangeError(f"sessions: no turn fits the context of the model, {longest:,.0f} tokens; use shorter turns")
    return session[fits], think[fits], inputs[fits], new[fits], outputs[fits]


def draw_sessions(
    sessions: Sessions,
    *,
    rate: float,
    requests: int,
    longest: float = math.inf,
    lengths: str = "lognormal",
    kind: str = "poisson",
    burst: float = 1.0,
    seed: int = 0,
) -> Traffic:
    """Draw sessions whose turns arrive at a rate in the long run.

    As many turns again arrive before the run and fill the prefix cache; they are not served. The run starts with sessions
    in progress. A prompt and its answer are known to the cache, as engines keep both.

    Args:
        sessions: Sessions.
        rate: Turns per second [requests/s].
        requests: Turns that are served.
        longest: Longest context of the model [tokens], before which a session ends.
        lengths: Distribution of the new tokens: "fixed", "uniform" or "lognormal".
        kind: Arrival process of sessions: "poisson", "constant" or "gamma".
        burst: Squared coefficient of variation of gamma intervals.
        seed: Random seed.

    Returns:
        The traffic, as if answers took no time; `simulate` lets each turn wait for the answer before.

    Raises:
        RangeError: No turn fits the context, or prompts have too many blocks.
    """
    single(rate=rate, requests=requests)
    at_least_zero("rate", rate, "requests/s", maximum=LONGEST)
    random = np.random.default_rng(seed)
    per_session = mean_turns(sessions, longest)
    # Length of the draw: the time before the run in which sessions in progress start, and that of twice the requests.
    ramp = DURATIONS * per_session * (sessions.think_time + SECONDS_PER_TOKEN * sessions.output_tokens)
    needed = rate * ramp + SURPLUS * 2 * requests
    if needed * per_session > MAX_REQUESTS:
        raise RangeError(f"requests: sessions in progress take {needed:,.0f} turns before the run, at most {MAX_REQUESTS:,}")
    count = math.ceil(needed / per_session + 6 * math.sqrt(needed / per_session + 1))

    session, think, inputs, new, outputs = _draw_turns(sessions, count, longest, lengths, random)
    # Means say how many turns fit the context. Where few do, unequal ones may be fewer.
    while len(session) < needed:
        count = math.ceil(SURPLUS * count * needed / len(session))
        session, think, inputs, new, outputs = _draw_turns(sessions, count, longest, lengths, random)
    start = arrivals(rate * count / len(session), count, random, kind=kind, burst=burst)

    turns_drawn = DrawnTurns(
        session=session, start=start[session], think=think, inputs=inputs, new=new, outputs=outputs,
        shared_blocks=round(sessions.system_prompt) // BLOCK, ramp=ramp, served=requests,
        name=f"sessions at {rate:g} requests/s",
    )  # fmt: skip
    # The number of turns in a time depends on those of few sessions. The sample has the requested rate.
    sample = turns_drawn.traffic(SECONDS_PER_TOKEN * outputs).rate
    if rate > 0 and math.isfinite(sample):
        turns_drawn = replace(turns_drawn, start=turns_drawn.start * (sample / rate))
    return turns_drawn.traffic()
