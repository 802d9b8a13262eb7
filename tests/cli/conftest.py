"""Answers that many commands print: each question is answered once, since its answer follows from what is asked alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest

from steptime.planning import planner
from steptime.questions import plan_question, train_question


@pytest.fixture(scope="package", autouse=True)
def answered_once() -> Iterator[None]:
    """Keep the answers of this folder by their questions: the same words are set in several widths, or as JSON.

    Files that an answer reads beside them, such as acceptances in a home folder, are no part of a question: a test that changes
    them asks something that no other test asks.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan_question, "plan", remembered(plan_question.plan))
        patched.setattr(train_question, "train", remembered(train_question.train))
        yield


def remembered(answer: Callable[..., Any]) -> Callable[..., Any]:
    known = dict[bytes, Any]()

    @wraps(answer)
    def ask(*given: Any, **more: Any) -> Any:
        # Closed forms answer another question than simulations.
        question = pickle.dumps((given, sorted(more.items()), planner.find_spec("numba") is None))
        if question not in known:
            known[question] = answer(*given, **more)
        return known[question]

    return ask
