"""Patterns of module names: a name, a glob, or a regular expression after "re:".

A config is untrusted. A regular expression that could take long is refused before it runs, and the total time of all
patterns is limited.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from fnmatch import translate
from functools import lru_cache
from math import comb, inf
from typing import Final

# Prefixes that checkpoints put before module names.
PREFIXES: Final = (
    "", "model.", "language_model.model.", "model.language_model.", "language_model.", "backbone.", "transformer.",
)  # fmt: skip
# Characters.
LONGEST_PATTERN: Final = 4_000
# Characters of a module name, for the bound on the time.
LONGEST_MODULE: Final = 100
# Most ways to match one module, which take hundredths of a second; real checkpoints need up to 40,000.
MOST_WAYS: Final = 1_000_000
# Levels of nested groups.
DEEPEST_GROUP: Final = 20
# CPU time [s] for all modules of a model; real checkpoints take hundredths of a second.
PATIENCE: Final = 1.0


class Patterns:
    """An ordered list of patterns of module names."""

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
        """Return the position of the first pattern that matches a module or its parent.

        Args:
            module: Path of the module.

        Returns:
            Position from 0; None if no pattern matches.

        Raises:
            Exception: The error of `refuse`, if all matches together take too long.
        """
        ranks = [self._names[name] for name in _name_suffixes(module) if name in self._names] if self._names else []
        rank = min(ranks, default=None)
        for position, expression in self._expressions:
            # A plain name matched earlier in the list.
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
            raise self._refuse("has patterns that take more than a second to match; list fewer in 'ignore'")


@lru_cache(maxsize=8192)
def _candidates(module: str) -> tuple[str, ...]:
    """Return a module and its parents, each with every prefix."""
    parents = [module]
    while "." in parents[-1]:
        parents.append(parents[-1].rpartition(".")[0])
    return tuple(prefix + parent for parent in parents for prefix in PREFIXES)


@lru_cache(maxsize=8192)
def _name_suffixes(module: str) -> frozenset[str]:
    """Return every plain name that means a module.

    These are the module and its parents with any prefix, and the endings of its path.
    """
    words = module.split(".")
    endings = (".".join(words[start:]) for start in range(1, len(words)))
    prefixes = (prefix.rstrip(".") for prefix in PREFIXES if prefix)
    tops = {".".join(words[:stop]) for prefix in prefixes for words in [prefix.split(".")] for stop in range(1, len(words) + 1)}
    return frozenset((*_candidates(module), *endings, *tops))


def compiled(pattern: str, refuse: Callable[[str], Exception]) -> re.Pattern[str]:
    """Return the regular expression of a glob, or of the text after "re:".

    Args:
        pattern: The pattern.
        refuse: Makes the error for a problem.

    Returns:
        The compiled expression.

    Raises:
        Exception: The error of `refuse`, if the pattern is malformed or could take long.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise refuse(f"has a pattern of {len(pattern):,} characters, '{pattern[:20]}...'; the limit is {LONGEST_PATTERN:,}")
    if not pattern.startswith("re:"):
        return re.compile(translate(pattern))
    if max_match_count(pattern[3:]) > MOST_WAYS:
        raise refuse(f"has the pattern {pattern[:60]!r}, which could take very long to match")
    try:
        return re.compile(pattern[3:])
    except (re.error, OverflowError, RecursionError) as error:
        raise refuse(f"has the pattern {pattern[:60]!r}, which is not a regular expression: {error}") from None


_ATOM: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[()|*+?{]", re.DOTALL)
_REPEAT: Final = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")


def max_match_count(expression: str) -> float:
    r"""Return an upper bound on the ways to match an expression with a module's name.

    Alternatives add, sequences multiply, `?` doubles, and $u$ repeats divide a text of $n$ characters in $\binom{n +
    u}{u}$ ways.

    Args:
        expression: The regular expression.

    Returns:
        The bound; infinity if a repeat contains a choice.

    >>> max_match_count("layers.(?:1|2).*"), max_match_count("(a+)+"), max_match_count("(a|a)*")
    (202.0, inf, inf)
    """
    total, repeats, position = _match_count(expression, 0, 0)
    if position < len(expression):
        # A closing bracket without an opening one; the compiler refuses it.
        return 0.0
    return total * comb(LONGEST_MODULE + repeats, repeats) if repeats <= LONGEST_MODULE else inf


def _match_count(text: str, position: int, depth: int) -> tuple[float, int, int]:
    """Return (ways without repeats, repeats, end) of the alternatives at `position`."""
    if depth > DEEPEST_GROUP:
        return inf, 0, len(text)

    # Sum of the ways of the alternatives so far, and the most repeats of one alternative.
    branches, most_repeats = 0.0, 0
    branch, repeats = 1.0, 0
    while position < len(text) and text[position] != ")":
        if text[position] == "|":
            branches, most_repeats = branches + branch, max(most_repeats, repeats)
            branch, repeats, position = 1.0, 0, position + 1
            continue

        # Ways and repeats of the next atom or group.
        inner, within = 1.0, 0
        if text[position] == "(":
            inner, within, position = _match_count(text, _group_start(text, position), depth + 1)
            position += 1
        else:
            atom = _ATOM.match(text, position)
            position = atom.end() if atom else position + 1
        repeat = _REPEAT.match(text, position)
        # Repeats of repeats, as in a{2}{3}, are refused by the compiler or multiply the same atom.
        while repeat:
            position = repeat.end()
            if repeat.group().startswith("?") and not within:
                inner += 1
            # A repeat of a choice or of a repeat can take exponential time.
            elif inner > 1 or within:
                inner = inf
            else:
                within += 1
            repeat = _REPEAT.match(text, position)
        branch *= inner
        repeats += within

    return branches + branch, max(most_repeats, repeats), position


def _group_start(text: str, position: int) -> int:
    """Return the first position inside a group, after ?:, ?=, ?<name> and others."""
    opened = re.compile(r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:|<?[=!]|>))?").match(text, position)
    return opened.end() if opened else position + 1
