"""The timeline of a step and its pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from steptime.cli.views.training_view import schedule_picture
from steptime.errors import DataFileError, InputError
from steptime.training.schedule_timeline import IDLE, Timeline, memory_over_time, timeline, timeline_figure, write_timeline
from steptime.training.schedules.schedule import known_schedules
from steptime.training.training_memory import TrainingMemory
from tests.conftest import each
from tests.training.shapes import NAMES, equal, legal

KNOWN = known_schedules()


def made(name: str, p: int, m: int, v: int) -> Timeline:
    return timeline(equal(KNOWN[name], p, m, v, 0.1, 0.2, 0.1))


def printed(drawn: Timeline, width: int, title: str = "") -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as text:
        console.print(schedule_picture(drawn, width, title))
    return text.get().splitlines()


@each("name", NAMES)
def test_intervals_of_a_device_follow_one_another(name: str) -> None:
    for shape in legal(name)[::5]:
        drawn = made(name, *shape)
        for device in range(drawn.devices):
            place = drawn.device_slice(device)
            assert (drawn.device[place] == device).all()
            assert (drawn.start[place][1:] >= drawn.end[place][:-1] - 1e-12).all()
            busy = (drawn.end - drawn.start)[place].sum()
            assert drawn.total - busy == pytest.approx(drawn.idle[device], abs=1e-9)


def test_cells_are_what_stands_in_their_middle() -> None:
    """1F1B of 2 stages and 2 micro-batches, b = 2 f, by hand; a cell is an f."""
    drawn = made("1f1b", 2, 2, 1)
    cells = drawn.cells(0.0, 0.1, 9)
    kinds = np.where(cells == IDLE, -1, drawn.kind[cells])
    assert kinds.tolist() == [[0, 0, -1, -1, 1, 1, -1, 1, 1], [-1, 0, 1, 1, 0, 1, 1, -1, -1]]


def test_a_picture_by_hand() -> None:
    lines = printed(made("1f1b", 2, 2, 1), 29, "two stages")
    assert lines[:4] == ["two stages", "0 0█1█····0▒▒▒··1▒▒▒", "1 ··0█0▒▒▒1█1▒▒▒····", "  0           900 ms"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_pictures_fit_their_width(name: str, width: int) -> None:
    for shape in (*legal(name)[::4], legal(name)[-1]):
        lines = printed(made(name, *shape), width, name)
        assert all(len(line) <= width for line in lines)
        assert lines[0] == name
        assert sum(line.lstrip()[:1].isdigit() and line.strip()[-1] in "·█▒░▓" for line in lines) >= shape[0]


def test_of_a_long_step_the_beginning_and_the_end_are_shown() -> None:
    lines = printed(made("1f1b", 4, 256, 1), 80)
    assert all(" … " in line for line in lines[:4])
    assert lines[0].startswith("0 0█1█2█3█···")
    assert lines[3].rstrip().endswith("255▒············")


def test_of_many_devices_the_first_and_the_last_are_shown() -> None:
    lines = printed(made("1f1b", 64, 64, 1), 80)
    assert [line.split()[0] for line in lines[:25]] == [*map(str, range(12)), "⋮", *map(str, range(52, 64))]


def test_numbers_below_a_picture_are_those_of_the_walk() -> None:
    text = " ".join(" ".join(printed(made("1f1b", 4, 8, 1), 120)).split())
    assert "3.30 s for the micro-batches of a step" in text
    assert "900 ms (27.3 %)" in text
    assert "at most 4 micro-batches in flight" in text


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["svg", "png"])
@pytest.mark.parametrize(("name", "shape"), [("dualpipe", (4, 8, 1)), ("zbv", (4, 64, 2))])
def test_pictures_as_files(name: str, shape: tuple[int, int, int], ending: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"step.{ending}"
    names = ("weights", "gradients", "optimizer", "activations", "logits", "gathered", "buffers", "reserved", "capacity")
    drawn = made(name, *shape)
    for memory in (None, memory_over_time(drawn, TrainingMemory(**dict.fromkeys(names, 1e9)))):
        write_timeline(drawn, str(path), name, memory)
        assert path.stat().st_size > 5000


def test_boxes_of_a_picture_are_the_intervals_with_their_colours_and_lose_their_edges_where_they_are_narrow():
    """White edges covered the 23,000 boxes of a step of Llama 3.3 70B on 1,024 H100."""
    pytest.importorskip("matplotlib")
    for shape, edges in (((4, 8, 1), 1), ((4, 512, 1), 0)):
        drawn = made("1f1b", *shape)
        axes = timeline_figure(drawn).axes[0]
        (boxes,) = axes.collections
        corners = np.array([path.vertices[:2, 0] for path in boxes.get_paths()])
        assert corners[:, 0].tolist() == drawn.start.tolist()
        assert corners[:, 1].tolist() == drawn.end.tolist()
        assert np.allclose(boxes.get_facecolors()[0, :3] * 255, (0x00, 0x72, 0xB2))
        assert len(boxes.get_edgecolors()) == edges
        assert axes.get_ylim() == (3.5, -0.5)


@pytest.mark.parametrize(("name", "shape"), [("1f1b", (4, 8, 1)), ("dualpipe", (4, 8, 1)), ("zbv", (4, 16, 2))])
def test_activations_over_time_begin_and_end_with_none_and_have_the_known_peak(name, shape) -> None:
    drawn = made(name, *shape)
    for device in range(drawn.devices):
        seconds, activations = drawn.activations(device)
        assert np.all(np.diff(seconds) >= -1e-12)
        assert activations[0] == pytest.approx(0)
        assert activations[-1] == pytest.approx(0)
        assert activations.max() == pytest.approx(drawn.in_flight[device])


def test_memory_over_time_is_that_of_the_fullest_chip_at_its_peak() -> None:
    """Four stages of 1F1B: the first has four micro-batches in flight; with logits, the fullest is the last, with one."""
    drawn = made("1f1b", 4, 8, 1)
    parts = {"weights": 4e9, "gradients": 2e9, "optimizer": 3e9, "activations": 8e9, "gathered": 0.0, "buffers": 1e9}
    memory = TrainingMemory(**parts, logits=0.0, reserved=1e9, capacity=80e9)
    curve = memory_over_time(drawn, memory)
    assert curve.device == 0
    assert sum(level.max() for level in curve.levels.values()) == pytest.approx(float(memory.used))
    # Forward passes take 0.1 s: four micro-batches of 2 GB after 0.4 s, and one less from the first backward pass on.
    at = dict(zip(np.round(curve.seconds, 9).tolist(), curve.levels["activations"].tolist(), strict=True))
    assert (at[0.0], at[0.1], at[0.2], at[0.3]) == pytest.approx((2e9, 4e9, 6e9, 8e9))
    assert curve.levels["other"][0] == pytest.approx(2e9)
    curve = memory_over_time(drawn, replace(memory, logits=5e9))
    assert curve.device == 3
    assert set(curve.levels["activations"].tolist()) == {0.0, 8e9}


def test_pictures_that_cannot_be_written(tmp_path: Path) -> None:
    drawn = made("1f1b", 2, 2, 1)
    with pytest.raises(InputError, match=r"\.svg, \.png, \.pdf"):
        write_timeline(drawn, "step.gif")
    with pytest.raises(DataFileError):
        write_timeline(drawn, str(tmp_path / "none" / "step.svg"))


def test_a_timeline_is_of_one_step() -> None:
    done = equal(KNOWN["1f1b"], 2, 2, 1, np.array([0.1, 0.2]), np.array([0.2, 0.4]), np.array([0.1, 0.2]))
    with pytest.raises(InputError, match="got 2"):
        timeline(done)


def test_one_stage_is_never_idle() -> None:
    text = " ".join(" ".join(printed(made("1f1b", 1, 3, 1), 120)).split())
    assert "900 ms for the micro-batches of a step" in text
    assert "the busiest device is never idle; at most 1 micro-batch in flight on a device" in text
