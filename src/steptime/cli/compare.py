"""The command `steptime compare`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.options import (
    CATALOG,
    CSV,
    EXPERTS,
    FULL,
    JSON,
    KV,
    LIMITS,
    RENT,
    SUBJECT,
    WEIGHTS,
    Load,
    grouped,
    not_empty,
    option,
    read_limits,
    read_model,
    read_modes,
    read_system,
    read_systems,
    refuse_idle,
    with_rent,
)
from steptime.cli.output import check_outputs, patience, print_result
from steptime.errors import RangeError, UnknownName, short_repr
from steptime.units import count as read_count
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
        typer.Argument(metavar="[SYSTEM[,SYSTEM...]]", help="System names, separated by commas, or all."),
    ] = ALL
    year: Annotated[str | None, option("Years of the chips: 2024, 2022..2024 or 2024.. .", SUBJECT, metavar="YEARS")] = None
    vendor: Annotated[str | None, option("Makers of the chips, such as NVIDIA,AMD.", SUBJECT)] = None
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine of all systems: a name (`steptime engines`), a file of constants, or ideal (the physical bound).",
            show_default="vllm on NVIDIA chips, typical on others",
            rich_help_panel=SUBJECT,
        ),
    ] = None
    weights: WEIGHTS = None
    experts: EXPERTS = None
    kv: KV = None
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
            raise RangeError(
                f"no system is of {self.year or 'any year'} and {self.vendor or 'any maker'}; their years are "
                f"{min(system.chip.year for system in systems)} to {max(system.chip.year for system in systems)}"
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
class CompareOptions(Load):
    """Requests, limits and deployment of each pair."""

    sure: Annotated[
        float | None,
        option(
            "Required probability that a plan meets each limit (0.5 to 0.99).",
            LIMITS,
            show_default="the predicted mean meets the limits, about 0.5",
        ),
    ] = None
    chips: Annotated[
        str | None,
        option(
            "Chips of each system; any: try 1, 2, 4, ... up to 64 or one scale-up domain, and keep the cheapest.",
            "Deployment",
            metavar="N",
            show_default="a scale-up domain",
        ),
    ] = None
    mode: Annotated[str, option("Deployment mode: aggregated, disaggregated, or any.", "Deployment")] = "any"
    full: FULL = False
    csv: CSV = None
    json: JSON = False

    def chip_count(self) -> int | str | None:
        """Return the number of chips.

        Returns:
            A number, ANY, or None for a scale-up domain of each system.
        """
        not_empty("--chips", self.chips, "a number, or any")
        return self.chips if self.chips is None or self.chips == ANY else read_count(self.chips, "--chips")


@grouped
def compare(ctx: typer.Context, rivals: Rivals, options: CompareOptions) -> None:
    """Compare models and systems: the cheapest plan of each pair, ties, and changes that would reverse the order.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    refuse_idle(ctx, {"text, not --json": (not options.json, "full")})
    names = _parts("models", rivals.models)
    check_outputs({"--csv": options.csv}, [*names, *([] if rivals.systems == ALL else _parts("systems", rivals.systems))])
    modes = read_modes(options.mode)
    chip_count, limits = options.chip_count(), read_limits(options.speed, options.ttft)
    machines = rivals.machines()
    models = [read_model(name, rivals.weights, rivals.experts, rivals.kv, rivals.catalog) for name in names]
    if rivals.rent is not None and not any(_has_rent(machine, rivals.rent) for machine in machines):
        if len(machines) == 1:
            with_rent(machines[0], rivals.rent, None)  # its message lists the known rents
        raise RangeError(
            f"none of the {len(machines)} systems has a rent of kind {rivals.rent}; leave --rent out, or give USD per "
            "chip-hour, such as --rent 2.10"
        )
    from steptime.sweeps.ranking import compare as rank

    pairs, seconds_per_pair = len(models) * len(machines), 2 if chip_count == ANY else 0.3
    with patience(f"steptime: planning {counted(pairs, 'pair')} of model and system, some {seconds_per_pair:g} s each ..."):
        ranking = rank(
            models, machines, options.workload(), limits, chips=chip_count, engine=rivals.engine, catalog=rivals.catalog,
            modes=modes, rent=rivals.rent, sure=options.sure,
        )  # fmt: skip
    print_result(ranking, "ranking_view.ranking_view", csv=options.csv, json=options.json, full=options.full)
    if not any(standing.feasible for standing in ranking.standings):
        raise typer.Exit(1)


def _has_rent(system: "System", rent: str) -> bool:
    try:
        with_rent(system, rent, None)
    except RangeError:
        return False
    return True
