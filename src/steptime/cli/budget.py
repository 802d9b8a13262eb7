"""The command `steptime budget`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.option_groups import grouped
from steptime.cli.options import BRIEF, CSV, JSON, KV, OUTPUT, RENT, WEIGHTS, count, option, read_limits, refuse_idle
from steptime.cli.output import check_outputs, console_of, print_json, show, write_csv, wrote
from steptime.errors import InputError, RangeError

if TYPE_CHECKING:
    from steptime.scaling.lifetime_compute import Demand
    from steptime.scaling.model_sizing import Budget
    from steptime.scaling.size_cost import Serving

AIM, TRAFFIC, RL, LAWS, MIX, PRICE, MACHINE = (
    "What is aimed at: one of these", "What the model will do", "Reinforcement learning", "Scaling laws",
    "The model beside its size",
    "What FLOP cost", "Served by a machine",
)  # fmt: skip
PICTURES = (".svg", ".png", ".pdf")


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What is aimed at."""

    quality_of: Annotated[
        str | None, option("The loss of a model on tokens, such as 100B@200T or llama-3.1-8b@15T.", AIM, metavar="MODEL@TOKENS")
    ] = None
    loss: Annotated[float | None, option("A loss in nats a token, as each law tells it.", AIM)] = None
    compute: Annotated[float | None, option("Least loss for a whole bill in FLOP of training, such as 1e26.", AIM)] = None
    usd: Annotated[str | None, option("Least loss for a whole bill in USD, such as 100M.", AIM, metavar="USD")] = None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the model will do."""

    tokens_served: Annotated[
        str,
        option(
            "Tokens served, input and output: a rate such as 50M/s, or all of them, such as 200T.", TRAFFIC, metavar="N[/s]"
        ),
    ] = "0"
    lifetime: Annotated[str | None, option("How long it is served, such as 60d.", TRAFFIC, metavar="TIME")] = None
    eta: Annotated[float, option("What a FLOP of serving costs over one of training.", TRAFFIC)] = 3.0
    discard: Annotated[float, option("Probability that the model is never served (0 to 1).", TRAFFIC)] = 0.0
    rl_tokens: Annotated[int, count("--rl-tokens", "Tokens rolled out in RL, such as 10T.", RL)] = 0
    rl_share: Annotated[float, option("Share of the whole bill that RL takes, in place of tokens.", RL)] = 0.0
    rl_flop: Annotated[float, option("FLOP a parameter and token of RL: 2 to roll out, up to 6 to train on all.", RL)] = 3.0

    def demand(self) -> "Demand":
        """Return what is asked for."""
        from steptime.scaling.lifetime_compute import Demand
        from steptime.scaling.quality_target import read_served

        served, lifetime = read_served(self.tokens_served, self.lifetime)
        return Demand(
            served=served, lifetime=lifetime, eta=self.eta, discard=self.discard, rl_tokens=float(self.rl_tokens),
            rl_share=self.rl_share, rl_flop=self.rl_flop,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class By:
    """Laws, and what the model is beside its size."""

    law: Annotated[
        list[str] | None,
        option("A law, or several with commas: the first leads, the others give a range. Repeatable.", LAWS, metavar="NAME",
               show_default="those that `steptime laws` marks"),
    ] = None  # fmt: skip
    experts: Annotated[int | None, count("--experts", "Experts of a mixture, by laws that know them.", MIX)] = None
    granularity: Annotated[int | None, count("--granularity", "Into how many each is cut, and as many are active.", MIX)] = None
    sparsity: Annotated[float | None, option("Share of all parameters that a token leaves out.", MIX)] = None
    unique_tokens: Annotated[int | None, count("--unique-tokens", "Tokens that there are; more are repeats.", MIX)] = None

    def more(self) -> dict[str, float]:
        """Return what the model is beside its size."""
        given = {
            "experts": self.experts,
            "granularity": self.granularity,
            "sparsity": self.sparsity,
            "unique": self.unique_tokens,
        }
        return {name: float(value) for name, value in given.items() if value is not None}

    def names(self) -> list[str] | None:
        """Return the laws that are named."""
        found = [part.strip() for text in self.law or [] for part in text.split(",") if part.strip()]
        return None if self.law is None else found


@dataclass(frozen=True, kw_only=True)
class Price:
    """What FLOP cost in the lecture's mode."""

    system: Annotated[str, option("The system that trains.", PRICE, metavar="SYSTEM")] = "hgx-h100"
    mfu: Annotated[float, option("Share of its bf16 rate that training reaches.", PRICE)] = 0.43
    rent: RENT = None
    training_days: Annotated[float, option("Days of training that chips are counted for.", PRICE)] = 60.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How the model is served, with steptime's own costs."""

    machine: Annotated[
        str | None, option("Reckon with steptime's own costs too: the system that serves.", MACHINE, metavar="SYSTEM")
    ] = None
    input_: Annotated[int, count("--input", "Prompt tokens of a request.", MACHINE)] = 2048
    output: Annotated[int, count("--output", "Output tokens of a request.", MACHINE)] = 512
    cached: Annotated[float, option("Share of the prompt that a prefix cache holds (0 to 1).", MACHINE)] = 0.0
    speed: Annotated[float | None, option("Least output speed for each user, in tok/s.", MACHINE)] = None
    ttft: Annotated[float | None, option("Longest mean time to first token, in s.", MACHINE)] = None
    engine: Annotated[str | None, option("Serving engine, or ideal.", MACHINE, metavar="NAME")] = None
    training_chips: Annotated[
        int | None,
        count("--training-chips", "Chips of --system that train.", MACHINE, show_default="those that end in --training-days"),
    ] = None
    training_batch: Annotated[int, count("--training-batch", "Sequences of 8,192 tokens a step of training.", MACHINE)] = 2048
    machine_rent: Annotated[
        str | None,
        option(
            "Rent of the machine, as --rent.", MACHINE, metavar="USD", show_default="its own, or --rent if it is --system too"
        ),
    ] = None
    weights: WEIGHTS = None
    kv: KV = None

    def serving(self, price: Price) -> "Serving | None":
        """Return how the model is served; None unless a machine is named."""
        if self.machine is None:
            return None
        from steptime.catalog.hardware_loading import load_system
        from steptime.cli.options import with_rent
        from steptime.planning.workload import Workload
        from steptime.scaling.size_cost import Serving

        same = self.machine == price.system
        return Serving(
            system=with_rent(load_system(self.machine), self.machine_rent or (price.rent if same else None), None),
            workload=Workload(input_tokens=self.input_, output_tokens=self.output, cached_share=self.cached),
            slo=read_limits(self.speed, self.ttft),
            weights=self.weights or "",
            kv=self.kv or "",
            engine=self.engine,
            training_system=with_rent(load_system(price.system), price.rent, None),
            training_chips=self.training_chips,
            training_days=price.training_days,
            training_batch=self.training_batch,
        )


@grouped
def budget(
    ctx: typer.Context,
    aim: Aim,
    traffic: Traffic,
    by: By,
    price: Price,
    machine: Machine,
    plot: Annotated[str | None, option("Draw to a file: .png, .svg or .pdf.", OUTPUT, metavar="FILE")] = None,
    picture: Annotated[
        str, option("What is drawn: cost, contours, open (models), experts or frontier.", OUTPUT, metavar="KIND")
    ] = "cost",
    brief: BRIEF = False,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """Choose the parameters and tokens of least bill for a quality and a traffic, by scaling laws with their ranges."""
    from steptime.catalog.hardware_loading import load_system
    from steptime.cli.options import with_rent
    from steptime.scaling.model_sizing import budget as answer
    from steptime.scaling.quality_target import read_target
    from steptime.units import count as read_count

    refuse_idle(
        ctx,
        {
            "--machine": (
                machine.machine is not None,
                "input_ output cached speed ttft engine weights kv training_chips training_batch machine_rent",
            ),
            "--plot": (plot is not None, "picture"),
            "--tokens-served": (traffic.tokens_served != "0", "lifetime discard"),
            "--tokens-served or --rl-tokens": (traffic.tokens_served != "0" or traffic.rl_tokens > 0, "eta"),
            "--rl-tokens": (traffic.rl_tokens > 0, "rl_flop"),
            "text, not --json": (not json, "brief"),
        },
    )
    check_outputs({"--csv": csv, "--plot": plot}, ())
    if plot is not None:
        check_picture(plot)
    usd = None if aim.usd is None else float(read_count(aim.usd.lstrip("$").removesuffix("USD").strip(), "--usd"))
    target = read_target(aim.quality_of, aim.loss, aim.compute, usd)
    found = answer(
        target,
        traffic.demand(),
        law=by.names(),
        system=with_rent(load_system(price.system), price.rent, None),
        mfu=price.mfu,
        training_days=price.training_days,
        machine=machine.serving(price),
        **by.more(),
    )
    if csv is not None:
        write_csv(csv, found)
    if plot is not None:
        from steptime.scaling.sizing_plots import draw

        draw(found, picture, plot)
        wrote(plot, f"the picture {picture}")
    _print(found, brief=brief, json=json)


def _print(found: "Budget", *, brief: bool, json: bool) -> None:
    if json:
        print_json(found)
        return
    from steptime.cli.views.budget_view import budget_view

    console = console_of()
    show(budget_view(found, console.width, brief=brief), console=console)


def check_picture(path: str) -> None:
    """Raise InputError for a file that is no picture, or where matplotlib is not installed."""
    if not path.casefold().endswith(PICTURES):
        raise InputError(f"--plot writes a picture, {', '.join(PICTURES)}, not {path or 'a file without a name'}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise RangeError("a picture needs matplotlib: pip install 'steptime[plot]'")
