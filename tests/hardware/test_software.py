"""Software of engines for a chip, by the day on which it was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

import steptime as st
from steptime.catalog.system_template import template
from steptime.errors import DataFileError, RangeError
from steptime.hardware.number_formats import as_measured, software_day, with_software
from tests.conftest import each

NEWEST = {"mi355x-8": 0.86, "mi300x-8": 0.71}


@each(
    "system, day, share, launches",
    [
        ("mi355x-8", "2025-10-06", 0.62, 2.3),
        ("mi355x-8", "2025-12-13", 1.0, 2.3),
        ("mi355x-8", "2025-12-19", 0.86, 1.0),
        ("mi355x-8", "2026-06-11", 0.86, 1.0),
        ("mi300x-8", "2025-12-10", 0.9, 2.3),
        ("mi325x-8", "2026-02-27", 0.75, 2.3),
        ("mi300x-8", "2026-04-01", 0.71, 1.0),  # between two periods: the next
        ("mi300x-8", "2026-05-18", 0.71, 1.0),
    ],
)
def test_a_day_has_the_share_of_its_period_and_its_factor_on_fixed_times(system, day, share, launches):
    for found in (with_software(st.load_system(system), day), as_measured(st.load_system(system), {"measured": day})):
        assert (found.chip.reached["software"], found.chip.reached["launches"]) == (share, launches)


@pytest.mark.parametrize("system", list(NEWEST))
def test_the_newest_is_taken_unless_a_day_is_told(system):
    machine = st.load_system(system)
    assert machine.chip.reached["software"] == NEWEST[system]
    assert as_measured(machine, {"measured": ""}) == machine
    assert as_measured(machine, {}) == machine


def test_older_software_is_slower_by_the_ratio_of_the_shares_and_by_its_launches():
    """All times follow the share; fixed times of kernels and collectives, which are a part of them, take 2.3 times as long."""
    new = st.load_system("mi355x-8")
    old = with_software(new, "2025-12-15")
    prompt = replace(old, chip=replace(old.chip, reached={**old.chip.reached, "launches": 1.0}))
    case = {"batch": 8, "context": 1000, "layout": st.Layout(tp=8), "engine": "sglang"}
    times = [float(st.decode_step("deepseek-v3", system, **case).total) for system in (new, prompt, old)]
    assert times[1] / times[0] == pytest.approx(0.86 / 1.0)
    assert 1.3 < times[2] / times[1] < 2.3


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
