"""Pictures of a sweep: what is drawn, and that axes and units are named."""

from __future__ import annotations

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError, RangeError, UnknownName

pytest.importorskip("matplotlib")

from steptime.picture_files import COLOURS
from steptime.sweeps.plots import draw_sweep

ON = {"model": "llama-3.1-8b", "system": "hgx-h100"}


@pytest.mark.thorough
def test_curves_with_their_ranges():
    found = st.sweep("step", {"batch": "1:4096:log2", "context": [1000, 8000]}, **ON)
    place = draw_sweep(found).axes[0]
    assert place.get_xlabel() == "batch [sequences]"
    assert place.get_ylabel() == "USD per million tokens [USD]\n90 % range shaded"
    assert (place.get_xscale(), place.get_yscale()) == ("log", "log")
    assert [line.get_color() for line in place.lines if line.get_label() in ("1,000", "8,000")] == list(COLOURS[:2])
    assert len(place.collections) == 2  # a band each
    curve = next(line for line in place.lines if line.get_label() == "8,000")
    assert curve.get_ydata() == pytest.approx(found.answers["usd_per_million_tokens"].values[:, 1])
    full = [line for line in place.lines if line.get_marker() == "x"]
    assert sum(len(line.get_xdata()) for line in full) == np.count_nonzero(found.answers["memory_share"].values > 1)


@pytest.mark.thorough
def test_a_map_of_two_long_axes_with_the_memory_that_is_full():
    found = st.sweep("step", {"batch": "1:1000:40", "context": "1000:100000:30"}, **ON)
    figure = draw_sweep(found)
    assert figure.axes[0].get_xlabel() == "batch [sequences]"
    assert figure.axes[0].get_ylabel() == "context [tokens]"
    assert figure.axes[1].get_ylabel() == "USD per million tokens [USD]"
    mesh = figure.axes[0].collections[0]
    assert mesh.get_array().reshape(30, 40)[3, 7] == pytest.approx(found.answers["usd_per_million_tokens"].values[7, 3])


@pytest.mark.thorough
def test_names_are_intervals_and_a_third_axis_is_panels():
    found = st.sweep("step", {"system": ["hgx-h100", "hgx-b200"]}, model="llama-3.1-8b", batch=64)
    place = draw_sweep(found).axes[0]
    assert [text.get_text() for text in place.get_xticklabels()] == ["hgx-h100", "hgx-b200"]
    found = st.sweep("step", {"batch": [1, 2, 4, 8], "context": [1000, 2000, 4000], "tp": [1, 2]}, **ON)
    titles = [place.get_title() for place in draw_sweep(found).axes]
    assert titles == ["tp 1", "tp 2"]


@pytest.mark.thorough
def test_the_front_of_two_answers_is_what_no_other_beats():
    found = st.sweep("step", {"batch": [1, 8, 64], "tp": [1, 2]}, **ON)
    place = draw_sweep(found, answer="usd_per_million_tokens", against="tokens_per_second_per_user").axes[0]
    front = next(line for line in place.lines if line.get_label() == "Pareto front")
    cost, speed = (found.answers[name].values.ravel() for name in ("usd_per_million_tokens", "tokens_per_second_per_user"))
    best = [i for i in range(6) if not any(cost[j] < cost[i] and speed[j] >= speed[i] for j in range(6))]
    assert found.fits.all()
    assert sorted(front.get_xdata()) == pytest.approx(sorted(speed[best]))


@pytest.mark.parametrize("ending", ["png", pytest.param("pdf", marks=pytest.mark.thorough)])
def test_files(tmp_path, ending):
    found = st.sweep("step", {"batch": [1, 8, 64]}, **ON)
    for name in ("a.svg", f"a.{ending}"):
        found.plot(str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 1000
    assert "batch [sequences]" in (tmp_path / "a.svg").read_text()
    with pytest.raises(InputError, match="not a picture file"):
        found.plot(str(tmp_path / "a.csv"))


def test_what_has_no_picture_is_said():
    found = st.sweep("step", {"batch": [1, 8], "context": [1000, 2000]}, together=True, **ON)
    with pytest.raises(RangeError, match="together"):
        draw_sweep(found)
    found = st.sweep("step", {name: [1, 2] for name in ("batch", "context", "tp", "query")}, **ON)
    with pytest.raises(RangeError, match="three axes"):
        draw_sweep(found)
    with pytest.raises(UnknownName, match="did you mean time"):
        draw_sweep(found, answer="tim")
    words = st.sweep("step", {"batch": [1, 8]}, answers=["bound"], **ON)
    with pytest.raises(InputError, match="no answer is a number"):
        draw_sweep(words)


def test_what_does_not_fit_is_on_no_front():
    found = st.sweep("step", {"batch": [1, 64, 4096]}, **ON)
    place = draw_sweep(found, answer="usd_per_million_tokens", against="tokens_per_second_per_user").axes[0]
    front = next(line for line in place.lines if line.get_label() == "Pareto front")
    full = next(line for line in place.lines if line.get_label() == "memory full")
    speed = found.answers["tokens_per_second_per_user"].values
    assert sorted(front.get_xdata()) == pytest.approx(sorted(speed[:2]))
    assert list(full.get_xdata()) == [speed[2]]
