"""Plans that many commands print: each question is answered once, since a plan follows from what is asked alone."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import wraps
from typing import Any

import pytest

from steptime.planning import planner


@pytest.fixture(scope="package", autouse=True)
def answered_once() -> Iterator[None]:
    """Keep the plans of this folder by their questions: the same words are set in several widths, or as JSON.

    Files that a plan reads beside them, such as acceptances in a home folder, are no part of a question: a test that changes
    them asks something that no other test asks.
    """
    answer, known = planner.plan, dict[bytes, Any]()

    @wraps(answer)  # other tests of a worker may meet it as st.plan, which is known by its name
    def plan(*given: Any, **more: Any) -> Any:
        question = pickle.dumps((given, sorted(more.items())))
        if question not in known:
            known[question] = answer(*given, **more)
        return known[question]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(planner, "plan", plan)
        yield
