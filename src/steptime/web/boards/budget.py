"""Board: lifetime cost of a model against its size, and overtraining. Section 12."""

from __future__ import annotations

import shlex
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.blackboard.training_compute import tokens_equal_to_serving
from steptime.errors import Impossible
from steptime.lecture.current_figures import cheapest_overtraining
from steptime.number_checks import Array
from steptime.scaling.lifetime_compute import Demand, Target, lifetime_bill, read_target
from steptime.scaling.model_sizing import Budget, budget
from steptime.scaling.scaling_laws import load_law, tokens_for
from steptime.units import in_digits, percent, show
from steptime.web.board import Answer, Board, Figure, Shared, choice, question_input, slider, text
from steptime.web.page_subject import at_field, catalog_model

LAWS: Final = ("hoffmann", "epoch", "hoffmann-tex", "sardana")
# Served tokens of the lower picture.
SERVED: Final = np.geomspace(1e11, 1e16, 61)
POINTS: Final = 121
TERA: Final = 1e12
PARTS: Final = ("training", "rl", "serving", "total")


class Inputs(Shared):
    """A target quality and the workload over the model's life."""

    served: float = slider(200, 0.1, 10_000, "tokens served", "T tokens", "Input and output tokens of its lifetime.", log=True)
    quality: str = text("100B@200T", "target quality", "A dense model and its training tokens, such as llama-3.1-8b@15T.")
    rl: float = slider(0, 0, 1000, "tokens of RL", "T tokens", "Tokens of rollouts in reinforcement learning.")
    law: str = choice("hoffmann", LAWS, "scaling law", "Scaling law that predicts the loss from parameters and tokens.")
    eta: float = question_input("budget.eta", 3, 1, 10, label="cost of a decode FLOP", unit="x training", is_advanced=True)


def answer(inputs: Inputs) -> Answer:
    """Return the cost against size, and the optimum against served tokens.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.

    Raises:
        WrongField: The target quality is invalid.
    """
    target = _target(inputs.quality)
    tokens, rl = inputs.served * TERA, inputs.rl * TERA
    solution = _solve(inputs.quality, inputs.law, tokens, rl, inputs.eta)
    law_names = dict.fromkeys((inputs.law, "hoffmann", "epoch"))
    ratios = {"served": SERVED, **{law: _ratios(inputs.quality, law, rl, inputs.eta) for law in law_names}}
    command = (
        f"steptime budget --match-quality {shlex.quote(inputs.quality)} --tokens-served {tokens:.0f} --law {inputs.law} "
        f"--eta {inputs.eta:g}" + (f" --rl-tokens {rl:.0f}" if rl else "")
    )
    demand = f"st.Demand(served={tokens!r}, rl_tokens={rl!r}, eta={inputs.eta:g})"
    code = (
        f"best = st.budget({inputs.quality!r}, {demand}, law={inputs.law!r}).choice\nbest.params, best.tokens, best.total_flop"
    )
    if isinstance(solution, str):
        return Answer(
            tables={"bill": dict.fromkeys(("params", *PARTS), ()), "ratios": ratios},
            marks=dict.fromkeys(("params", "usd", "ratio", "served")), sentence=solution, command=command, python=code,
        )  # fmt: skip
    best, law = solution.choice, load_law(inputs.law)
    low, high = min(target.params / 10, best.params / 4), max(target.params * 10, best.params * 4)
    sizes = np.unique(np.append(np.geomspace(low, high, POINTS), best.params))
    bill = lifetime_bill(solution.demand, sizes, np.asarray(tokens_for(law, sizes, best.loss)), best.loss)
    # One price per FLOP turns the curves of FLOP into money.
    price = best.usd / best.total_flop
    curves = {name: np.broadcast_to(getattr(bill, name), sizes.shape) * price for name in PARTS}
    even = float(tokens_equal_to_serving(tokens, inputs.eta))
    return Answer(
        tables={"bill": {"params": sizes, **curves}, "ratios": ratios},
        marks={
            "params": best.params, "usd": best.usd, "ratio": best.over_chinchilla, "served": tokens, "law": inputs.law,
            "equality": best.equality_params, "equality_usd": best.equality_cost * best.usd,
        },
        sentence=_sentence(inputs, best),
        figures=(
            Figure("parameters", best.params, words="Active parameters of the cheapest model of this quality."),
            Figure("training tokens", best.tokens),
            Figure("over Chinchilla's tokens", best.over_chinchilla, "x", "Training tokens over 20 per parameter."),
            Figure("training", best.training_share, "%", "Share of the total cost."),
            Figure("RL", best.rl_flop / best.total_flop, "%", "Share of the total cost."),
            Figure("serving", best.serving_flop / best.total_flop, "%", "Share of the total cost."),
            Figure("total cost", best.usd, "USD", f"At the rent of {solution.system}."),
            Figure("equal parts over the minimum", best.equality_cost, "x", "Cost by the lecture's rule."),
        ),
        formula=(
            f"training 6 N D = 6 x {show(best.params)} x {show(best.tokens)} = {best.training_flop:.3g} FLOP",
            *((f"RL 3 N D_RL eta = {best.rl_flop:.3g} FLOP",) if best.rl_flop else ()),
            f"serving 2 N D_inf eta = 2 x {show(best.params)} x {show(tokens)} x {inputs.eta:g} = {best.serving_flop:.3g} FLOP",
            f"the lecture's rule: D = eta/3 D_inf = {show(even)} tokens; by the scaling law: {show(best.tokens)}",
            f"overtraining = D / 20 N = {show(best.tokens)} / (20 x {show(best.params)}) = {in_digits(best.over_chinchilla)}",
        ),
        command=command, python=code, notes=solution.warnings,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _target(quality: str) -> Target:
    return at_field("quality", read_target, quality, load=catalog_model)


@lru_cache(maxsize=256)
def _solve(quality: str, law: str, served: float, rl: float, eta: float) -> Budget | str:
    try:
        return budget(_target(quality), Demand(served=served, rl_tokens=rl, eta=eta), law=law)
    except Impossible as error:
        return f"No size reaches this quality: {error}."


@lru_cache(maxsize=256)
def _ratios(quality: str, law: str, rl: float, eta: float) -> Array:
    """Return the overtraining of the cheapest model, by served tokens."""
    target = _target(quality)
    weights = np.array([Demand(served=float(served), rl_tokens=rl, eta=eta).weight for served in SERVED])
    return np.asarray(cheapest_overtraining(law, target.params, target.tokens, weights))


def _sentence(inputs: Inputs, best: Any) -> str:
    shares = [f"training {percent(best.training_share)}"]
    shares += [f"RL {percent(best.rl_flop / best.total_flop)}"] if inputs.rl else []
    advice = "A smaller model needs far more training; a larger model costs more per served token."
    if best.serving_flop <= best.training_flop / 10:
        advice = "Few tokens are served, so training is nearly the whole cost."
    return (
        f"For the quality of {inputs.quality} and {show(inputs.served * TERA)} served tokens, the cheapest model has "
        f"{show(best.params)} parameters and trains on {show(best.tokens)} tokens, {in_digits(best.over_chinchilla, 2)} times "
        f"Chinchilla's. Cost: {', '.join(shares)} and serving {percent(best.serving_flop / best.total_flop)}. {advice}"
    )


BOARD = Board(
    name="budget", order=80, section=12, inputs=Inputs, answer=answer, bar=(),
    title="How long should a model train if it serves this many tokens?",
    spoken={"served": 200, "quality": "100B@200T", "rl": 133, "law": "hoffmann"},
    today={"served": 3000, "quality": "37B@14.8T", "rl": 0, "law": "epoch"},
)  # fmt: skip
