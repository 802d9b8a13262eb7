"""The keys of plans, their pools and steps in JSON: as the page of keys tells their units and meanings."""

from __future__ import annotations

from pathlib import Path

from steptime.physics.chip_memory import Memory
from steptime.physics.layout import Layout
from steptime.physics.step import Step
from steptime.planning.plan_result import Plan, Point, Pool
from steptime.result_base import entries
from steptime.workload.workload import Slo, Workload
from tests.conftest import each

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")


def told(kind: type) -> list[tuple[str, str, str]]:
    """Return (key, unit, meaning) of a kind's rows on the page."""
    section = PAGE.split(f"# {kind.__name__}\n")[1].split("\n#")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row] for row in rows]
    return [(row[0].strip("`"), row[1], row[-1].replace("\\|", "|")) for row in cells]


@each("kind", [Step, Layout, Memory, Plan, Pool, Point, Workload, Slo])
def test_keys_units_and_meanings_are_those_of_the_page(kind):
    assert [(entry.key, entry.unit, entry.meaning) for entry in entries(kind)] == told(kind)
