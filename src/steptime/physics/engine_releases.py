"""Releases of an engine whose constants differ from those of its file, and the cost of sampling.

An engine file describes the releases to which it was fitted. A [[releases]] table has the constants of older releases. Public
runs draw tokens greedily; an application draws them with top-p, which costs time for each token and entry of the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from steptime.errors import short_repr
from steptime.physics.engine_parameters import CONSTANTS, find_problem, numbered_tables

GREEDY, TOP_P = "greedy", "top-p"
SAMPLINGS: Final = (GREEDY, TOP_P)
# A version, with the name of its engine or "v" before it or not. Versions of Dynamo are not those of its engine.
RELEASE: Final = re.compile(r"\s{0,9}(?!dynamo)(?:[A-Za-z-]{1,20}\s{1,9})?v?(\d{1,9}(?:\.\d{1,9})+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Constants of the releases of an engine before a version.

    before: First version to which the constants do not apply.
    constants: Values by name.
    experts: Times of the kernels of routed experts, over those of the file, by stored format.
    source: Where they were found.
    """

    before: str
    constants: Mapping[str, float]
    experts: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison.

    Args:
        version: Text such as "0.11.1" or "1.2.0rc6".

    Returns:
        Its numbers in their order.

    >>> version_numbers("0.11.1") < version_numbers("0.12"), version_numbers("nightly")
    (True, ())
    """
    return tuple(map(int, re.findall(r"\d{1,9}", version)))


def select_release(releases: tuple[Release, ...], version: str) -> Release | None:
    """Return the release table that applies to a version.

    Args:
        releases: Tables of an engine, the oldest first.
        version: Version; "" and names without numbers are a release of the file.

    Returns:
        The first table whose `before` is above the version; None for the releases of the file.

    >>> old = Release(before="0.12", constants={})
    >>> select_release((old,), "vllm v0.11.1") is old, select_release((old,), "0.12.0"), select_release((old,), "")
    (True, None, None)
    >>> select_release((old,), "dynamo-vllm 0.8.1") is None
    True
    """
    release = RELEASE.match(version)
    numbers = version_numbers(release[1]) if release else ()
    return next((entry for entry in releases if numbers and numbers < version_numbers(entry.before)), None)


def release_bound(releases: tuple[Release, ...], version: str) -> str:
    """Return `before` of the release table that applies to a version.

    Args:
        releases: Tables of an engine, the oldest first.
        version: Version of a run.

    Returns:
        A version; "" for the releases of the file.
    """
    release = select_release(releases, version)
    return release.before if release else ""


def read_releases(entries: object) -> tuple[Release, ...]:
    """Read the [[releases]] tables of an engine file.

    Args:
        entries: Value of the key "releases" of the file.

    Returns:
        The releases, in the order of the file.

    Raises:
        ValueError: A table is malformed; the message says which and why.
    """
    releases: list[Release] = []
    for place, entry in numbered_tables("releases", entries):
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: must be a table")
        keys = ("before", "experts", "source")
        constants: dict[str, Any] = {name: value for name, value in entry.items() if name not in keys}
        before, source = entry.get("before"), entry.get("source", "")
        if not isinstance(before, str) or not version_numbers(before) or not isinstance(source, str):
            raise ValueError(f'{place}: needs before, a version such as "0.12", and may have a source, a text')
        for name, value in constants.items():
            if name not in CONSTANTS:
                raise ValueError(f"{place}: unknown constant, got {short_repr(name)}")
            if problem := find_problem(name, value):
                raise ValueError(f"{place}: {name}: {problem}")
        if releases and version_numbers(before) <= version_numbers(releases[-1].before):
            raise ValueError(f"{place}: must follow the older release {releases[-1].before}, got {before}")
        experts = entry.get("experts", {})
        if not isinstance(experts, dict) or not all(
            isinstance(factor, int | float) and 0.1 <= factor <= 10 for factor in experts.values()
        ):
            raise ValueError(f"{place}: experts must be factors from 0.1 to 10 by stored format, got {short_repr(experts)}")
        releases.append(Release(before=before, constants=constants, experts=experts, source=source))
    return tuple(releases)
