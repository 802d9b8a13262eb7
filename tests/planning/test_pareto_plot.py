"""The picture of a plan's Pareto front."""

from __future__ import annotations

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError
from tests.cli.test_commands import run

pytest.importorskip("matplotlib")

from steptime.planning.pareto_plot import draw_pareto_front
from tests.planning.cases import closed_plan, equal_requests


@pytest.fixture(scope="module")
def plan():
    workload = equal_requests(input_tokens=1024, output_tokens=256)
    return closed_plan("llama-3.1-8b", "hgx-h100", workload, st.Slo(tpot=0.02), chips=1)


def test_picture_has_the_front_the_plan_and_the_limit(plan):
    axes = draw_pareto_front(plan).axes[0]
    front = axes.lines[0]
    assert np.allclose(front.get_xdata(), [point.tokens_per_second_per_user for point in plan.front])
    assert np.allclose(front.get_ydata(), [point.usd_per_million_output_tokens for point in plan.front])
    marks = [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axes.lines[1:]]
    assert (plan.tokens_per_second_per_user, plan.usd_per_million_output_tokens) in marks
    assert any(x == pytest.approx(50) for x, _ in marks)


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_plot_writes_the_kind_of_its_ending(plan, tmp_path, ending):
    path = tmp_path / f"front.{ending}"
    plan.plot(str(path))
    assert path.read_bytes()[:5] == {"svg": b"<?xml", "png": b"\x89PNG\r", "pdf": b"%PDF-"}[ending]


def test_plot_refuses_other_endings_before_the_work(tmp_path):
    shown = run(f"plan llama-3.1-8b hgx-h100 --plot {tmp_path}/front.jpg")
    assert shown.returncode == 2
    assert ".svg, .png, .pdf" in shown.stderr


def test_plan_without_a_front_has_no_picture():
    workload = equal_requests(input_tokens=1024, output_tokens=256)
    plan = closed_plan("llama-3.1-8b", "hgx-h100", workload, st.Slo(tpot=0.02), chips=1, front=False)
    with pytest.raises(InputError, match="Pareto front"):
        draw_pareto_front(plan)
