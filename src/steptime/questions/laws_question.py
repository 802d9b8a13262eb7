"""The question `laws`: the loss of a dense model by one scaling law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final

from steptime.questions.declaration import Reader, bind, count, question_of_result, read_answers, text
from steptime.scaling.compute_optimal import Losses, predict_losses
from steptime.scaling.scaling_laws import load_law

LOSS_GROUP = "A loss"


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Inputs of `laws`: a scaling law, and a dense model with its training tokens."""

    name: str = text("epoch", "scaling law: catalogue name, or path to a TOML file")
    params: Any = count(MISSING, "parameters of the model, such as 70B", group=LOSS_GROUP)
    tokens: Any = count(MISSING, "training tokens, such as 15T", unit="tokens", group=LOSS_GROUP)
    catalog: str | None = text(None, "folder with a subfolder laws/, searched before the packaged laws", metavar="FOLDER")


def solve(values: Mapping[str, Any]) -> Losses:
    """Return the loss of a dense model by one scaling law.

    Args:
        values: Values of `LossInputs` by name.

    Returns:
        The loss, and the compute-optimal size for the same compute.
    """
    inputs = bind(LossInputs, values, "laws")
    return predict_losses([load_law(inputs.name, inputs.catalog)], inputs.params, inputs.tokens)


def _of_law(name: str) -> Any:
    return lambda losses: getattr(losses.losses[0], name)


READS: Final[Mapping[str, Reader]] = {
    "loss": Reader(meaning="loss in nats per token", value=_of_law("loss")),
    "over_chinchilla": Reader(
        meaning="training tokens, as a multiple of 20 tokens per parameter", value=_of_law("over_chinchilla")
    ),
    "compute_optimal_params": Reader(meaning="compute-optimal parameters for the same compute", value=_of_law("best_params")),
    "compute_optimal_tokens": Reader(
        meaning="compute-optimal training tokens for the same compute", unit="tokens", value=_of_law("best_tokens")
    ),
    "compute_optimal_loss": Reader(meaning="loss of the compute-optimal model in nats per token", value=_of_law("best_loss")),
}
LOSS = question_of_result(
    "laws",
    "the loss of a dense model by one scaling law",
    form=LossInputs,
    solve=solve,
    reads=READS,
    shows=tuple(READS),
    seconds=0.01,
)


def summary(losses: Losses) -> dict[str, Any]:
    """Return the answers of the question from its result.

    Args:
        losses: Result of `solve`.

    Returns:
        Answers by name.
    """
    return read_answers(READS, losses)
