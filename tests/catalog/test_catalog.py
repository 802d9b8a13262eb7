"""The catalogue: everything in it loads, every figure has a source, and broken files say what is wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import steptime as st
from steptime.catalog.data_files import files, find, read_file
from steptime.catalog.hardware_loading import load_chip, load_system
from steptime.errors import DataFileError, RangeError, UnitError, UnknownName
from steptime.hardware.what_if import read_changes, read_figure, settable, vary
from steptime.units import GRADES
from tests.conftest import CHOICE_ALONE, each

CHIPS = (
    "a100",
    "h100",
    "h200",
    "h800",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "vr200",
    "mi300x",
    "mi355x",
    "tpu-v5p",
    "tpu-v6e",
    "tpu7x",
)
MEMORY = '[[memory]]\nname="hbm"\ncapacity="1 GB"\nbandwidth="1 TB/s"\n'
SYSTEMS = (
    "hgx-h100", "hgx-h200", "hgx-h800", "hgx-b200", "hgx-b300", "gb200-nvl72", "gb300-nvl72", "vr200-nvl72", "mi300x-8",
    "mi355x-8", "tpu7x",
)  # fmt: skip


# Machines without a bf16 rate, a scale-out network or a rent that anybody lists.
WITHOUT_RENT = (
    "cs-3", "groq-rack", "m3-ultra", "dgx-spark", "strix-halo", "mi350x-8", "rtx-pro-4500-4", "intel-b70-4", "blackhole-p150-4",
    "wormhole-n300-4", "rtx-3090-4", "m2-ultra", "m3-max", "m4-max", "m4",
)  # fmt: skip


@each("name", files("systems"))
def test_every_system_loads_with_sourced_figures(name):
    system = st.load_system(name)
    assert system.chips >= 1
    assert system.scale_out.size == math.inf
    for path, figure in system.figures.items():
        assert figure.grade in GRADES
        assert figure.grade == "guess" or (figure.url.startswith("http") and figure.date), path
    usual = {"chip.peak.bf16", "scale_out.bandwidth", "rent"}
    assert set(settable(system)) >= usual or name in WITHOUT_RENT


@each("name", CHIPS)
def test_the_chips_that_people_deploy_are_there(name):
    chip, figures = load_chip(name)
    assert {"chip.hbm.capacity", "chip.hbm.bandwidth", "chip.peak.bf16"} <= set(figures)
    assert chip.hbm.capacity > 0


@each("name", SYSTEMS)
def test_the_systems_that_people_deploy_are_there_with_a_rent(name):
    system = st.load_system(name)
    assert 0 < system.rent.low <= system.rent.typical <= system.rent.high
    assert {tier.name for tier in system.tiers} >= {"host", "ssd", "hdd"}


@each(
    "system, path, value",
    [
        # "FLOP/byte (dense bf16/HBM)" of data sheets: A100 153, H100 295, H200 206, GB200 312, MI300X 247
        ("hgx-a100", "bf16", 153),
        ("hgx-h100", "bf16", 295),
        ("hgx-h200", "bf16", 206),
        ("gb200-nvl72", "bf16", 312),
        ("mi300x-8", "bf16", 247),
        ("tpu7x", "bf16", 313),
    ],
)
def test_flops_per_byte(system, path, value):
    chip = st.load_system(system).chip
    assert chip.peak[path] / chip.hbm.bandwidth == pytest.approx(value, rel=0.01)


@each("name", files("models"))
def test_every_model_file_names_its_source(name):
    entry = read_file(find("models", name))
    assert entry["name"] == name
    assert entry["source"]["grade"] in GRADES
    assert entry["source"]["date"]
    assert "config" in entry


def test_a_name_without_its_owner_is_found_in_any_case(tmp_path):
    assert st.load_model("kimi-k2-instruct").name == "moonshotai/Kimi-K2-Instruct"
    # Two entries of one name need the owner.
    folder = tmp_path / "models"
    folder.mkdir()
    text = find("models", "moonshotai/Kimi-K2-Instruct").read_text()
    (folder / "me--Kimi-K2-Instruct.json").write_text(text.replace('"moonshotai/Kimi-K2-Instruct"', '"me/Kimi-K2-Instruct"'))
    with pytest.raises(UnknownName, match="did you mean"):
        st.load_model("kimi-k2-instruct", catalog=tmp_path)
    for owner in ("me", "moonshotai"):
        assert st.load_model(f"{owner}/kimi-k2-instruct", catalog=tmp_path).name.startswith(owner)


def test_names_are_found_in_any_case_and_by_alias():
    assert st.load_system("GB200-NVL72").name == "gb200-nvl72"
    assert st.load_model("DEEPSEEK-V3").name == "deepseek-ai/DeepSeek-V3"


@pytest.mark.slow
def test_a_name_is_an_argument_away_from_its_neighbours():
    with pytest.raises(UnknownName, match="did you mean gb200-nvl72"):
        st.load_system("gb200-nvl")
    with pytest.raises(UnknownName, match="DeepSeek-V3"):
        st.load_model("deepseek-ai/Deepseek-V33")


def test_a_path_and_a_catalogue_of_ones_own_come_first(tmp_path):
    for kind in ("chips", "systems"):
        (tmp_path / kind).mkdir()
    (tmp_path / "chips" / "mine.toml").write_text(
        'name = "mine"\n[peak]\nbf16 = "1 PFLOP/s"\n[[memory]]\nname = "hbm"\ncapacity = "100 GB"\nbandwidth = "5 TB/s"\n'
    )
    (tmp_path / "systems" / "hgx-h100.toml").write_text(
        'name = "hgx-h100"\nchip = "mine"\nchips = 4\n'
        '[[domains]]\nname = "a"\nkind = "scale-up"\nsize = 4\nbandwidth = "1 TB/s"\n'
        '[[domains]]\nname = "b"\nkind = "scale-out"\nbandwidth = "100 GB/s"\n'
    )
    system = load_system("hgx-h100", tmp_path)
    assert (system.chip.name, system.chips, system.figures["chip.hbm.capacity"].grade) == ("mine", 4, "guess")
    assert math.isnan(system.rent.typical)
    by_path = load_system(str(tmp_path / "systems" / "hgx-h100.toml"), tmp_path)
    assert by_path.chip.name == "mine"
    config = tmp_path / "config.json"
    config.write_text(json.dumps(read_file(find("models", "llama-3.1-8b"))["config"]))
    assert st.load_model(config).layers == st.load_model("llama-3.1-8b").layers
    assert st.load_model(tmp_path).layers == st.load_model("llama-3.1-8b").layers


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("[peak\n", "not valid TOML", 1),
        ('[peak]\nbf16 = "1 TB"\n' + MEMORY, "chip.peak.bf16: '1 TB' is a quantity in B", 2),
        ('[peak]\nbf17 = "1 PFLOP/s"\n' + MEMORY, "peak.bf17", 2),
        ('[peak]\nbf16 = "1 PFLOP/s"\n[[memory]]\nname="hbm"\ncapacity="1 GB"\n', "bandwidth: is missing", None),
        ('colour = "red"\n[peak]\nbf16 = "1 PFLOP/s"\n' + MEMORY, "colour: no such key", 1),
        ('[peak]\nbf16 = {value="1 PFLOP/s", from="nowhere"}\n' + MEMORY, "source 'nowhere'", None),
        ('[peak]\nbf16 = "-1 PFLOP/s"\n' + MEMORY, "greater than 0", None),
    ],
)
def test_broken_files_name_the_file_the_line_and_the_cause(tmp_path, text, says, line):
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\n' + text)
    with pytest.raises(DataFileError, match=says.replace(".", r"\.")) as caught:
        load_chip(str(path))
    assert str(path) in str(caught.value)
    if line is not None:
        assert caught.value.line == line + 1


def test_broken_json_names_the_line(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{\n "hidden_size": 1,\n oops\n}')
    with pytest.raises(DataFileError, match=r"config\.json:3: is not valid JSON"):
        st.load_model(path)
    path.write_text("[1, 2]")
    with pytest.raises(DataFileError, match="must be an object"):
        st.load_model(path)


def test_what_ifs_reach_every_figure(rack):
    for path, unit in settable(rack).items():
        value = read_figure(rack, path)
        if math.isfinite(value) and value > 0:
            assert read_figure(vary(rack, {path: value * 2}), path) == value * 2
        assert unit is not None
    assert read_changes(rack, ("chip.hbm.bandwidth=16TB/s", "rent = 2 USD/h", "scale_up.size=144")) == {
        "chip.hbm.bandwidth": 16e12,
        "rent": 2 / 3600,
        "scale_up.size": 144,
    }


@each(
    "text, error, says",
    [
        ("chip.hbm.bandwith=1TB/s", UnknownName, "chip.hbm.bandwidth"),
        ("chip.hbm.bandwidth=1TB", UnitError, "B/s"),
        ("chip.hbm.bandwidth", RangeError, "KEY=VALUE"),
        ("chip.hbm.bandwidth=-1TB/s", RangeError, "greater than 0"),
        ("chip.hbm.bandwidth=0 TB/s", RangeError, "greater than 0"),
        ("rent=2", UnitError, "USD/s"),
        ("rent=1USD/h; rent=2USD/h", RangeError, "rent is set twice"),
        ("scale-up.size=8; scale_up.size=16", RangeError, "scale_up.size is set twice"),
    ],
)
def test_wrong_what_ifs_are_refused(rack, text, error, says):
    with pytest.raises(error, match=says):
        read_changes(rack, tuple(text.split("; ")))


def test_a_figure_that_was_set_has_no_longer_the_source_of_its_data_sheet(rack, closed_forms):
    changed = vary(rack, {"chip.hbm.bandwidth": 16e12, "rent": 2 / 3600})
    figure = changed.figures["chip.hbm.bandwidth"]
    assert (figure.value, figure.text, figure.grade, figure.url, figure.date) == (16e12, "16.0 TB/s", "given", "", "")
    assert changed.rent.grade == "given"
    assert changed.figures["chip.hbm.capacity"] == rack.figures["chip.hbm.capacity"]
    swept = vary(rack, {"chip.hbm.bandwidth": np.array([1e12, 2e12])})
    assert swept.figures["chip.hbm.bandwidth"].text == "1.00 TB/s to 2.00 TB/s, shape (2,)"
    asked = st.Workload(input_tokens=1000, output_tokens=100)
    assert not [words for words in st.plan("llama-3.1-8b", changed, asked, chips=1, **CHOICE_ALONE).warnings if "rent" in words]


def test_an_empty_name_of_a_model_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RangeError, match="must be a name or a path, got an empty text"):
        st.load_model("")


def test_an_unknown_system_suggests_names_and_no_aliases():
    with pytest.raises(UnknownName) as raised:
        load_system("h200-8")
    assert raised.value.nearest[0] == "hgx-h200"
    assert set(raised.value.nearest) <= set(files("systems"))


def test_a_system_in_place_of_a_model_is_named():
    with pytest.raises(UnknownName, match="the system hgx-h200"):
        st.load_model("h200")
