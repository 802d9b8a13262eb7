"""The command `steptime step`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.option_groups import grouped
from steptime.cli.options import BRIEF, CSV, JSON, LAYOUT, OUTPUT, Held, Subject, Ways, count, option, refuse_idle
from steptime.cli.output import check_outputs, console_of, print_json, show, write_csv

if TYPE_CHECKING:
    from steptime.describe.step_summary import StepCard
    from steptime.hardware.system import System
    from steptime.models.model import Model
    from steptime.physics.engine import Engine

PASS = "The pass"


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What one forward pass computes."""

    phase: Annotated[str, option("decode, prefill, or mixed.", PASS)] = "decode"
    batch: Annotated[int, count("--batch", "Sequences that decode in one replica.", PASS)] = 1
    context: Annotated[int, count("--context", "Tokens of context of each.", PASS)] = 4096
    query: Annotated[int, count("--query", "Tokens that each sequence gets in the pass (above 1: verified drafts).", PASS)] = 1
    prompts: Annotated[
        int | None, count("--prompts", "Prompts in the pass; by default one for each attention group.", PASS)
    ] = None
    tokens: Annotated[int, count("--tokens", "New tokens of each prompt in the pass.", PASS)] = 8192
    prefix: Annotated[int, count("--prefix", "Cached tokens before them.", PASS)] = 0


@dataclass(frozen=True, kw_only=True)
class Layered(Ways):
    """How the replica is laid over chips, and in how many parts the batch goes through."""

    microbatches: Annotated[
        int | None, count("--microbatches", "Parts of the batch in flight; by default one a stage.", LAYOUT)
    ] = None


@grouped
def step(
    ctx: typer.Context,
    subject: Subject,
    asked: Pass,
    held: Held,
    ways: Layered,
    explain: Annotated[bool, option("Show each term's formula with its numbers and sources.", OUTPUT, "--explain")] = False,
    brief: BRIEF = False,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """Time one forward pass: decode, prefill, or both at once, on a layout of your choice."""
    from steptime.describe.step_summary import asked_of, step_card

    refuse_idle(
        ctx,
        {
            "--phase prefill or mixed": (asked.phase != "decode", "tokens prompts prefix image audio"),
            "--phase decode or mixed": (asked.phase != "prefill", "batch context query"),
            "text, not --json": (not json, "brief"),
            "a whole step, not --brief": (not brief, "explain"),
        },
    )
    check_outputs({"--csv": csv}, subject.files())
    model, system, engine = subject.read()
    parts = {} if ways.microbatches is None else {"microbatches": ways.microbatches}
    # what is wrong with the pass is said before a layout is searched
    given: dict[str, Any] = asked_of(layout=ways.layout(**parts), **vars(asked))
    context = given.get("context", asked.tokens + asked.prefix)
    layout = ways.layout_for(model, system, engine, batch=given.get("batch", 1), context=context, **parts)
    given = dict[str, Any](asked_of(layout=layout, **vars(asked)))
    if "tokens" in given:
        more = held.tokens(model)
        model = held.read(model, given["tokens"])
        given["tokens"] += more
    card = step_card(model, system, **given, layout=layout, engine=engine)
    if csv is not None:
        write_csv(csv, card)
    code = 0 if bool(card.memory.fits) else 1
    if json:
        print_json(card.to_dict(**_explained(model, system, card, given, engine) if explain else {}))
        raise typer.Exit(code)
    from steptime.cli.views.step_view import step_brief, step_view

    console = console_of()
    show(step_brief(card) if brief else step_view(card, console.width), console=console)
    if explain:
        _explain(model, system, card, given, engine)
    raise typer.Exit(code)


def _explained(
    model: "Model", system: "System", card: "StepCard", given: dict[str, int], engine: "Engine"
) -> dict[str, object]:
    """Return what a step is made of, and the sources of the machine's figures, as data."""
    from steptime.cli.views.explain_view import sources_json
    from steptime.planning.step_explanation import explain_step

    lines = explain_step(model, system, given=given, layout=card.layout, engine=engine)
    return {"explanation": {"lines": lines, "sources": sources_json(system)}}


def _explain(model: "Model", system: "System", card: "StepCard", given: dict[str, int], engine: "Engine") -> None:
    """Print what a step is made of, and the sources of the machine's figures."""
    from steptime.cli.views.explain_view import lines_table, sources_table
    from steptime.planning.step_explanation import explain_step

    show(lines_table(explain_step(model, system, given=given, layout=card.layout, engine=engine)))
    show(sources_table(system))
