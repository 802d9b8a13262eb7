"""The commands `steptime compare` and `steptime context`: alternatives next to each other."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.models import ModelFormats
from steptime.cli.options import (
    CATALOG,
    OUTPUT,
    RENT,
    SUBJECT,
    Output,
    SubjectChanges,
    declared,
    grouped,
    lengths_need,
    not_empty,
    option,
    read_system,
    read_systems,
    typed_values,
    with_rent,
)
from steptime.cli.output import counting_plans, patience, reported
from steptime.errors import RangeError, UnknownName, short_repr
from steptime.questions.plan_question import PlanInputs, read_modes
from steptime.questions.subject import Subject
from steptime.sweeps.compare_question import COMPARE, ComparedLoad
from steptime.sweeps.context_limit import CONTEXT, ContextInputs, solve
from steptime.units import counted

if TYPE_CHECKING:
    from steptime.hardware.system import System

ALL, ANY = "all", "any"


@dataclass(frozen=True, kw_only=True)
class Rivals:
    """Models and systems to compare."""

    models: Annotated[
        str, typer.Argument(metavar="MODEL[,MODEL...]", help="Model names, separated by commas.", show_default=False)
    ]
    systems: Annotated[
        str,
        typer.Argument(
            metavar="[SYSTEM[,SYSTEM...]]",
            help="System names, separated by commas, or all. `compare train MODEL SYSTEM,SYSTEM` compares training runs, with "
            "the options of `steptime train`.",
        ),
    ] = ALL
    year: Annotated[str | None, option("Years of the chips: 2024, 2022..2024 or 2024.. .", SUBJECT, metavar="YEARS")] = None
    vendor: Annotated[str | None, option("Makers of the chips, such as NVIDIA,AMD.", SUBJECT)] = None
    engine: str | None = declared(Subject, "engine")
    rent: RENT = None
    catalog: CATALOG = None

    def machines(self) -> "list[System]":
        """Return the systems to compare.

        Returns:
            Systems of the named years and makers.

        Raises:
            RangeError: if no system matches.
        """
        names = _parts("systems", self.systems)
        systems = read_systems(self.catalog) if names == [ALL] else [read_system(name, None, self.catalog) for name in names]
        first, last = self._years()
        makers = None if self.vendor is None else self._makers(systems)
        matches = [
            system
            for system in systems
            if first <= system.chip.year <= last and (makers is None or system.chip.vendor.casefold() in makers)
        ]
        if not matches:
            years = [system.chip.year for system in systems]
            raise RangeError(
                "no system matches"
                + f" --year {self.year}" * bool(self.year)
                + f" --vendor {self.vendor}" * bool(self.vendor)
                + f"; the years of the chips are {min(years)} to {max(years)}"
            )
        return matches

    def _makers(self, systems: "list[System]") -> set[str]:
        """Return the makers in small letters; raise UnknownName for one that no system has."""
        vendors = sorted({system.chip.vendor for system in (*systems, *read_systems(self.catalog))})
        makers = {maker.casefold(): maker for maker in _parts("--vendor", self.vendor or "")}
        for folded, maker in makers.items():
            if folded not in {name.casefold() for name in vendors}:
                raise UnknownName("maker of chips", maker, vendors, f"Known: {', '.join(vendors)}.")
        return set(makers)

    def _years(self) -> tuple[int, int]:
        if self.year is None:
            return 0, 9999
        first, dots, last = self.year.strip().partition("..")
        ends = [first or "0", (last or "9999") if dots else first]
        if not first + last or not all(end.isascii() and end.isdigit() and len(end) <= 4 for end in ends):
            raise RangeError(f"--year takes 2024, 2022..2024 or 2024.., not {short_repr(self.year)}")
        if int(ends[0]) > int(ends[1]):
            raise RangeError(f"--year {self.year} ends before it begins")
        return int(ends[0]), int(ends[1])


def _parts(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise RangeError(f"{name}: {short_repr(text)} has nothing between two commas, or at an end")
    return list(dict.fromkeys(parts))


@dataclass(frozen=True, kw_only=True)
class Requests(ComparedLoad):
    """Requests, limits, load and deployment of each pair."""

    evidence: str = declared(PlanInputs, "evidence")
    sure: Any = declared(PlanInputs, "sure")
    mode: str = declared(PlanInputs, "mode")
    pairs: Annotated[
        bool,
        option(
            "Also try prefill on one system and decode on another of the same vendor, for at most 4 systems.", "Deployment",
            "--pairs",
        ),
    ] = False  # fmt: skip


@grouped
def compare(ctx: typer.Context, rivals: Rivals, formats: ModelFormats, requests: Requests, show: Output) -> None:
    """Compare models and systems: the cheapest plan of each pair, ties, and changes that would reverse the order.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    names = _parts("models", rivals.models)
    files = [*names, requests.trace or "", *([] if rivals.systems == ALL else _parts("systems", rivals.systems))]
    show.check(ctx, lengths_need(requests.trace), inputs=files)
    not_empty("--chips", requests.chips, "a number, or any")
    modes, load = read_modes(requests.mode), requests.load(typed_values(ctx, Requests))
    chip_count = load["chips"]
    machines = rivals.machines()
    models = [formats.read_model(name, rivals.catalog) for name in names]
    if rivals.rent is not None and not any(_has_rent(machine, rivals.rent) for machine in machines):
        if len(machines) == 1:
            # The message of this error lists the known rents.
            with_rent(machines[0], rivals.rent, None)
        raise RangeError(
            f"none of the {len(machines)} systems has a rent of kind {rivals.rent}; leave --rent out, or give USD per "
            "chip-hour, such as --rent 2.10"
        )
    from steptime.sweeps.ranking import compare as rank
    from steptime.sweeps.ranking import system_pairs

    words = f"planning {counted(len(models) * len(machines), 'pair')} of model and system"
    if requests.pairs:
        words += f", and {counted(len(system_pairs(models, machines, chip_count, modes)), 'pair')} of systems"
    with counting_plans(f"steptime: {words} ..."):
        ranking = rank(
            models, machines, engine=rivals.engine, catalog=rivals.catalog, modes=modes, rent=rivals.rent, sure=requests.sure,
            evidence=requests.evidence, pairs=requests.pairs, **load,
        )  # fmt: skip
    show.print(ranking, "comparison_view.ranking_view", summary=COMPARE.read_result)
    if not any(standing.feasible for standing in ranking.standings):
        raise typer.Exit(1)


def _has_rent(system: "System", rent: str) -> bool:
    try:
        with_rent(system, rent, None)
    except RangeError:
        return False
    return True


@grouped
def context(
    ctx: typer.Context,
    inputs: ContextInputs,
    changes: SubjectChanges,
    output: Output,
    plot: Annotated[
        str | None, option("PNG, SVG or PDF file with cost against length of context, by technique.", OUTPUT, metavar="FILE")
    ] = None,
) -> None:
    """Find the longest context for a speed and a price, and the effect of windows, latents or selection.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    output.check(ctx, inputs=changes.files(vars(inputs)), plot=plot)
    values = changes.values(ctx, ContextInputs)
    with patience("Trying layouts and batches for each length of context ..."):
        walls = solve(values)
    if plot is not None:
        with reported(plot, "the picture of costs by length"):
            walls.plot(plot)
    output.print(walls, "comparison_view.contexts_view", summary=CONTEXT.read_result)
    if walls.reason:
        raise typer.Exit(1)
