"""Patterns that name modules: a name, a glob, or a regular expression after "re:".

A config may come from anywhere, so a regular expression that could take long is refused before it is run, and the time
spent on all of them is bounded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from fnmatch import translate
from functools import lru_cache
from math import comb, inf
from typing import Final

PREFIXES: Final = (
    "", "model.", "language_model.model.", "model.language_model.", "language_model.", "backbone.", "transformer.",
)  # fmt: skip
LONGEST_PATTERN: Final = 4_000
LONGEST_MODULE: Final = 100
MOST_WAYS: Final = 1_000_000  # hundredths of a second for one module; real checkpoints need up to 40,000
DEEPEST_GROUP: Final = 20
PATIENCE: Final = 1.0  # seconds of the processor for all modules of a model; real checkpoints take hundredths


class Patterns:
    """An ordered set of patterns; `first` says which of them names a module or a parent of it."""

    def __init__(self, patterns: Iterable[str], refuse: Callable[[str], Exception]) -> None:
        self._names: dict[str, int] = {}
        self._expressions: list[tuple[int, re.Pattern[str]]] = []
        self._refuse, self._spent = refuse, 0.0
        for rank, pattern in enumerate(patterns):
            if pattern.startswith("re:") or "*" in pattern or "?" in pattern:
                start_time = time.process_time()
                self._expressions.append((rank, compiled(pattern, refuse)))
                self._count(time.process_time() - start_time)
            else:
                self._names.setdefault(pattern, rank)

    def first(self, module: str) -> int | None:
        """Return the position of the first pattern that names `module`, or None."""
        ranks = [self._names[name] for name in _name_suffixes(module) if name in self._names] if self._names else []
        rank = min(ranks, default=None)
        for position, expression in self._expressions:
            if rank is not None and position > rank:
                break
            start_time = time.process_time()
            is_match = any(map(expression.fullmatch, _candidates(module)))
            self._count(time.process_time() - start_time)
            if is_match:
                return position
        return rank

    def _count(self, seconds: float) -> None:
        self._spent += seconds
        if self._spent > PATIENCE:
            raise self._refuse("holds more patterns, or harder ones, than can be matched in a second: 'ignore' fewer")


@lru_cache(maxsize=8192)
def _candidates(module: str) -> tuple[str, ...]:
    """The module and its parents, each behind every prefix that checkpoints put before them."""
    parents = [module]
    while "." in parents[-1]:
        parents.append(parents[-1].rpartition(".")[0])
    return tuple(prefix + parent for parent in parents for prefix in PREFIXES)


@lru_cache(maxsize=8192)
def _name_suffixes(module: str) -> frozenset[str]:
    """Every plain name that means `module`: its own behind any prefix, those of its parents, and its endings."""
    words = module.split(".")
    endings = (".".join(words[start:]) for start in range(1, len(words)))
    prefixes = (prefix.rstrip(".") for prefix in PREFIXES if prefix)
    tops = {".".join(words[:stop]) for prefix in prefixes for words in [prefix.split(".")] for stop in range(1, len(words) + 1)}
    return frozenset((*_candidates(module), *endings, *tops))


def compiled(pattern: str, refuse: Callable[[str], Exception]) -> re.Pattern[str]:
    """Return the expression of a glob or of what follows "re:"; one that is malformed or could take long is refused."""
    if len(pattern) > LONGEST_PATTERN:
        raise refuse(f"holds a pattern of {len(pattern):,} characters, '{pattern[:20]}...'; at most {LONGEST_PATTERN:,}")
    if not pattern.startswith("re:"):
        return re.compile(translate(pattern))
    if max_match_count(pattern[3:]) > MOST_WAYS:
        raise refuse(f"holds the pattern {pattern[:60]!r}, which could take very long to match")
    try:
        return re.compile(pattern[3:])
    except (re.error, OverflowError, RecursionError) as error:
        raise refuse(f"holds the pattern {pattern[:60]!r}, which is no regular expression: {error}") from None


_ATOM: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[()|*+?{]", re.DOTALL)
_REPEAT: Final = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")


def max_match_count(expression: str) -> float:
    r"""Return an upper bound on the ways to match `expression` with a module's name, infinity where a repeat holds a choice.

    Alternatives add, what follows each other multiplies, `?` doubles, and $u$ repeats divide a text of $n$ characters in
    $\binom{n + u}{u}$ ways.

    >>> max_match_count("layers.(?:1|2).*"), max_match_count("(a+)+"), max_match_count("(a|a)*")
    (202.0, inf, inf)
    """
    total, repeats, position = _match_count(expression, 0, 0)
    if position < len(expression):
        return 0.0  # a bracket that closes nothing: the compiler says so
    return total * comb(LONGEST_MODULE + repeats, repeats) if repeats <= LONGEST_MODULE else inf


def _match_count(text: str, position: int, depth: int) -> tuple[float, int, int]:
    """Return (ways without repeats, number of repeats, position of the end) of the alternatives that begin at `position`."""
    if depth > DEEPEST_GROUP:
        return inf, 0, len(text)
    branches, most_repeats = 0.0, 0  # of the alternatives so far: the sum of their ways, the most repeats of one
    branch, repeats = 1.0, 0
    while position < len(text) and text[position] != ")":
        if text[position] == "|":
            branches, most_repeats = branches + branch, max(most_repeats, repeats)
            branch, repeats, position = 1.0, 0, position + 1
            continue
        inner, within = 1.0, 0
        if text[position] == "(":
            inner, within, position = _match_count(text, _group_start(text, position), depth + 1)
            position += 1
        else:
            atom = _ATOM.match(text, position)
            position = atom.end() if atom else position + 1
        repeat = _REPEAT.match(text, position)
        while repeat:  # one after another, as in a{2}{3}, is refused by the compiler or multiplies the same atom
            position = repeat.end()
            if repeat.group().startswith("?") and not within:
                inner += 1
            elif inner > 1 or within:
                inner = inf
            else:
                within += 1
            repeat = _REPEAT.match(text, position)
        branch *= inner
        repeats += within
    return branches + branch, max(most_repeats, repeats), position


def _group_start(text: str, position: int) -> int:
    """Return where the content of the group at `position` begins, after ?:, ?=, ?<name> and their like."""
    opened = re.compile(r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:|<?[=!]|>))?").match(text, position)
    return opened.end() if opened else position + 1
