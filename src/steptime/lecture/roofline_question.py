"""The question `roofline`: the blackboard's answers for a model and a system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from steptime.lecture.model_on_system import CONTEXT
from steptime.lecture.pair_roofline import Roofline, roofline
from steptime.questions.declaration import Reader, bind_declared, count, question_of_result, read_answers
from steptime.questions.subject import PricedSubject, read_subject


@dataclass(frozen=True, kw_only=True)
class RooflineInputs(PricedSubject):
    """A model on one scale-up domain of a system."""

    context: Any = count(CONTEXT, "context of each sequence in tokens (k is 1,000)", unit="tokens", group="Workload")


def solve(values: Mapping[str, Any]) -> Roofline:
    """Return the blackboard's answers for a model on a system.

    Args:
        values: Values of `RooflineInputs` by name, and figures of the machine by path.

    Returns:
        Roofline with one answer per question.
    """
    inputs = bind_declared(RooflineInputs, values, "roofline")
    model, system, engine = read_subject(values)
    return roofline(model, system, context=inputs.context, engine=engine)


READS: Final[Mapping[str, Reader]] = {
    "active_parameters": Reader(meaning="active parameters", value=lambda board: board.active),
    "total_parameters": Reader(meaning="total parameters", value=lambda board: board.total),
    "kv_bytes_per_token": Reader(meaning="KV cache read per token of context", unit="B", value=lambda board: board.kv_bytes),
    "chips": Reader(meaning="chips of the scale-up domain", unit="chips", value=lambda board: board.chips),
}
ROOFLINE = question_of_result(
    "roofline",
    "the lecture's numbers for a model on one scale-up domain",
    form=RooflineInputs,
    solve=solve,
    reads=READS,
    shows=tuple(READS),
    figures=True,
    seconds=0.05,
)


def summary(board: Roofline) -> dict[str, Any]:
    """Return the answers of the question from its result.

    Args:
        board: Result of `solve`.

    Returns:
        Answers by name.
    """
    return read_answers(READS, board)
