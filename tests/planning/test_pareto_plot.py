"""The picture of a plan's Pareto front."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError
from steptime.picture_files import BLUE, GREEN, GREY, ORANGE
from steptime.planning.plan_result import Plan, Point
from tests.cli.test_commands import run

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgb

from steptime.planning.pareto_plot import TICKS, draw_pareto_front
from tests.conftest import every
from tests.planning.cases import equal_requests


def point(speed: float, cost: float, output: float) -> Point:
    return Point(
        mode="aggregated",
        layout_text="tp=1",
        batch=1,
        tokens_per_second_per_user=speed,
        tokens_per_second_per_chip=output,
        usd_per_million_output_tokens=cost,
        ttft=1.0,
    )


# 40 requests of 100 tokens a second on two chips: 2,000 tok/s per chip, 50 tok/s per user.
MADE = Plan(
    feasible=True,
    model="toy",
    system="box",
    engine="test",
    workload=equal_requests(input_tokens=3000, output_tokens=100),
    slo=st.Slo(tpot=0.025),
    chips=2,
    tpot=0.02,
    tpot_range=(0.016, 0.025),
    requests_per_second=40.0,
    usd_per_second=0.012,
    usd_per_million_output_tokens=3.0,
    cost_range=(2.5, 4.0),
    throughput_range=(1500.0, 2400.0),
    front=(point(240.0, 30.0, 200.0), point(50.0, 3.0, 2000.0), point(8.0, 1.5, 4000.0)),
    ideal=point(80.0, 1.2, 5000.0),
)
FREE = replace(
    MADE,
    usd_per_second=math.nan,
    usd_per_million_output_tokens=math.nan,
    cost_range=None,
    front=tuple(replace(one, usd_per_million_output_tokens=math.nan) for one in MADE.front),
)


def drawn(plan: Plan):
    """Return the axes, the points and the straight ranges of a picture, by label."""
    axes = draw_pareto_front(plan).axes[0]
    lines = {line.get_label().partition(":")[0]: np.column_stack(line.get_data()) for line in axes.lines}
    ranges = [segment.tolist() for part in axes.collections for segment in part.get_segments()]
    return axes, lines, ranges


def test_picture_has_the_front_the_plan_its_ranges_its_bound_and_the_limit():
    axes, lines, ranges = drawn(MADE)
    assert lines["Pareto front"].tolist() == [[240, 30], [50, 3], [8, 1.5]]
    assert lines["this plan"].tolist() == [[50, 3]]
    assert lines["the same layout without losses"].tolist() == [[80, 1.2]]
    assert lines["speed limit"][:, 0] == pytest.approx([40, 40])
    assert ranges == [[[pytest.approx(40), 3], [pytest.approx(62.5), 3]], [[50, 2.5], [50, 4]]]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylabel() == "USD per million output tokens"
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "this plan: $3.00 at 50 tok/s, with 90 % ranges" in words
    axes = drawn(replace(MADE, tpot=0.0205))[0]
    assert axes.get_legend().get_texts()[1].get_text() == "this plan: $3.00 at 48.8 tok/s, with 90 % ranges"
    assert axes.figure.get_suptitle() == "toy on 2 chips of box, 3,000 tokens in, 100 out"


def test_picture_without_a_rent_shows_the_output_per_chip():
    axes, lines, ranges = drawn(FREE)
    assert lines["Pareto front"].tolist() == [[240, 200], [50, 2000], [8, 4000]]
    assert lines["this plan"].tolist() == [[50, 2000]]
    assert lines["the same layout without losses"].tolist() == [[80, 5000]]
    assert ranges[1] == [[50, 1500], [50, 2400]]
    assert axes.get_ylabel() == "output tokens per second per chip"
    assert any(text.get_text().startswith("this plan: 2,000 tok/s per chip") for text in axes.get_legend().get_texts())


@pytest.mark.parametrize("plan", [MADE, FREE], ids=["rented", "free"])
def test_ticks_are_all_of_1_2_and_5_within_the_axes(plan):
    axes, _, _ = drawn(plan)
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        expected = [m * 10.0**e for e in range(-4, 8) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        assert len(expected) > 1
        assert list(axis.get_majorticklocs()) == pytest.approx(expected)
        assert len(axis.get_minorticklocs()) == 0
    assert axes.xaxis.get_major_formatter()(2000.0, 0) == "2,000"
    assert axes.yaxis.get_major_formatter()(0.5, 0) == "0.5"
    assert (TICKS[0], TICKS[-1]) == (pytest.approx(1e-4), 5e7)


def test_a_single_user_on_a_whole_rack_does_not_flatten_the_picture():
    """From 0.7 of the lowest cost, the bound's included, to 1.3 of the highest, but at most 60 times the lowest."""
    assert drawn(MADE)[0].get_ylim() == pytest.approx((1.2 * 0.7, 30 * 1.3))
    dear = replace(MADE, front=(point(99.0, 900.0, 9.0), *MADE.front))
    assert drawn(dear)[0].get_ylim() == pytest.approx((1.2 * 0.7, 1.2 * 60))
    assert drawn(replace(dear, ideal=None))[0].get_ylim() == pytest.approx((1.5 * 0.7, 1.5 * 60))


def test_plan_stands_out_from_its_front():
    """A small round mark for each layout, a diamond with a white edge above them for the plan, a star for the bound."""
    axes = drawn(MADE)[0]
    looks = {
        line.get_label().partition(":")[0]: (
            line.get_color(), line.get_linestyle(), line.get_linewidth(), line.get_marker(), line.get_markersize(),
            line.get_markeredgecolor(), line.get_markeredgewidth(), line.get_zorder(),
        )
        for line in axes.lines
    }  # fmt: skip
    assert looks == {
        "Pareto front": (BLUE, "-", 2, "o", 3.5, BLUE, 1.0, 2),
        "this plan": (ORANGE, "None", 1.5, "D", 8, "white", 1.2, 5),
        "the same layout without losses": (GREEN, "None", 1.5, "*", 11, "white", 1.0, 2),
        "speed limit": (GREY, "--", 1.2, "None", 6.0, GREY, 1.0, 2),
    }
    assert [part.get_color().tolist() for part in axes.collections] == [[[*to_rgb(ORANGE), 0.8]]] * 2
    assert [part.get_linewidth().tolist() for part in axes.collections] == [[1.2]] * 2
    assert axes.figure.get_size_inches().tolist() == [7.2, 4.4]
    legend, title = axes.get_legend(), axes.figure._suptitle
    assert (legend._loc, drawn(FREE)[0].get_legend()._loc, legend.get_frame().get_alpha()) == (2, 1, 1)
    assert legend.get_texts()[0].get_fontsize() == 8.5
    assert (title.get_fontsize(), title.get_position()[0], title.get_ha()) == (10.5, 0.01, "left")


def test_what_a_plan_does_not_have_is_not_drawn():
    bare = replace(MADE, ideal=None, tpot_range=None, slo=st.Slo())
    _, lines, ranges = drawn(bare)
    assert sorted(lines) == ["Pareto front", "this plan"]
    assert ranges == []
    assert "ranges" not in draw_pareto_front(bare).axes[0].get_legend().get_texts()[1].get_text()
    assert sorted(drawn(replace(MADE, feasible=False))[1]) == ["Pareto front", "speed limit"]
    without = replace(MADE, front=(point(math.inf, 1.0, 1.0), point(20.0, 0.0, 1.0), *MADE.front[:2]))
    assert drawn(without)[1]["Pareto front"].tolist() == [[240, 30], [50, 3]]


@pytest.mark.parametrize("count", [0, 1])
def test_a_front_of_less_than_two_points_has_no_picture(count):
    with pytest.raises(InputError, match="Pareto front"):
        draw_pareto_front(replace(MADE, front=MADE.front[:count]))


@pytest.mark.parametrize("ending", every(3, ["svg", "png", "pdf"]))
def test_plot_writes_the_kind_of_its_ending(tmp_path, ending, closed_forms):
    path = tmp_path / f"front.{ending}"
    MADE.plot(str(path))
    assert path.read_bytes()[:5] == {"svg": b"<?xml", "png": b"\x89PNG\r", "pdf": b"%PDF-"}[ending]


def test_plot_refuses_other_endings_before_the_work(tmp_path):
    shown = run(f"plan llama-3.1-8b hgx-h100 --plot {tmp_path}/front.jpg")
    assert shown.returncode == 2
    assert ".svg, .png, .pdf" in shown.stderr
