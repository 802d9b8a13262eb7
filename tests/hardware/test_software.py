"""Software of engines for a chip, by the day on which it was measured."""

from __future__ import annotations

import pytest

import steptime as st
from steptime.catalog.system_template import template
from steptime.errors import DataFileError, RangeError
from steptime.hardware.number_formats import as_measured, software_day, with_software
from tests.conftest import each

NEWEST = {"mi355x-8": 0.86, "mi300x-8": 0.71}


@each(
    "system, day, share",
    [
        ("mi355x-8", "2025-10-06", 0.57),
        ("mi355x-8", "2025-12-18", 0.57),
        ("mi355x-8", "2025-12-19", 0.86),
        ("mi355x-8", "2026-06-11", 0.86),
        ("mi300x-8", "2026-02-27", 0.57),
        ("mi300x-8", "2026-04-01", 0.71),  # between two periods: the next
        ("mi300x-8", "2026-05-18", 0.71),
    ],
)
def test_a_day_has_the_share_of_its_period(system, day, share):
    found = with_software(st.load_system(system), day)
    assert found.chip.reached["software"] == share
    assert as_measured(st.load_system(system), {"measured": day}).chip.reached["software"] == share


@pytest.mark.parametrize("system", list(NEWEST))
def test_the_newest_is_taken_unless_a_day_is_told(system):
    machine = st.load_system(system)
    assert machine.chip.reached["software"] == NEWEST[system]
    assert as_measured(machine, {"measured": ""}) == machine
    assert as_measured(machine, {}) == machine


def test_older_software_is_slower_by_the_ratio_of_the_shares():
    new = st.load_system("mi355x-8")
    old = with_software(new, "2025-11-01")
    times = [st.decode_step("deepseek-v3", of, batch=8, context=1000, layout=st.Layout(tp=8)).total for of in (new, old)]
    assert float(times[1] / times[0]) == pytest.approx(0.86 / 0.57)


@each(
    "system, day, said",
    [
        ("mi355x-8", "2025-10-05", "from 2025-10-06 to 2026-06-11"),
        ("mi355x-8", "2027-01-01", "got 2027-01-01"),
        ("mi355x-8", "last week", "must be a day such as 2025-12-31"),
        ("mi355x-8", "2025-13-01", "must be a day such as 2025-12-31"),
        ("hgx-h100", "2026-01-01", "has no data by day"),
    ],
)
def test_other_days_and_chips_are_refused(system, day, said):
    with pytest.raises(RangeError, match=said):
        with_software(st.load_system(system), day)


def test_days_of_runs_count_where_software_is_known_by_the_day():
    row = {"measured": "2026-01-01"}
    assert (software_day(st.load_system("mi355x-8"), row), software_day(st.load_system("hgx-h100"), row)) == ("2026-01-01", "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('last = "2025-12-18"', 'last = "Christmas"'),
        ('first = "2025-12-19"', 'first = "2025-12-10"'),
        ('"2025-10-06"', '"2025-12-18T"'),
    ],
)
def test_days_of_a_file_that_are_none_or_overlap_are_named(before, after, tmp_path):
    text = template("mi355x-8")
    assert before in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(DataFileError, match="in order of the periods"):
        st.load_system(path)
