"""Machines of one's own: one file or two, boxes of one domain, and what is said of sizes, peaks and networks."""

from __future__ import annotations

import math

import pytest

import steptime as st
from steptime.catalog.hardware_loading import load_system
from steptime.catalog.system_template import template
from steptime.describe.system_summary import system_card
from steptime.errors import DataFileError, InputError, RangeError, UnknownName
from steptime.hardware.what_if import settable, vary
from steptime.planning.plan_messages import warnings_of_step
from tests.cli.test_commands import run
from tests.conftest import CHOICE_ALONE, each

CHIP = '[chip]\nname = "mine"\n[chip.peak]\nbf16 = "1 PFLOP/s"\nfp8 = "2 PFLOP/s"\n'
CHIP += '[[chip.memory]]\nname = "hbm"\ncapacity = "100 GB"\nbandwidth = "5 TB/s"\n'
FABRIC = '[[domains]]\nname = "fabric"\nkind = "scale-up"\nsize = 72\nbandwidth = "1 TB/s"\nlatency = "1 us"\n'
OUTSIDE = '[[domains]]\nname = "hall"\nkind = "scale-out"\nbandwidth = "50 GB/s"\nlatency = "5 us"\n'
BOX = 'name = "mybox"\nchips = 72\n' + FABRIC
ASKED = st.Workload(input_tokens=1000, output_tokens=1000)


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "mine.toml"
        path.unlink(missing_ok=True)
        path.write_text(text)
        return load_system(str(path))

    return read_text


def test_a_chip_may_stand_in_the_file_of_its_system(read, tmp_path):
    system = read(BOX + OUTSIDE + CHIP)
    assert (system.chip.name, system.chip.peak["fp8"], system.chip.hbm.capacity) == ("mine", 2e15, 1e11)
    assert system.figures["chip.peak.fp8"].text == "2 PFLOP/s"
    (tmp_path / "chip.toml").write_text(CHIP.replace("[chip]\n", "").replace("chip.", ""))
    assert read('chip = "chip"\n' + BOX + OUTSIDE) == system
    sourced = '[sources.sheet]\nurl = "https://x.y"\ndate = "2026-01-01"\ngrade = "vendor"\n'
    figure = read(BOX + OUTSIDE + sourced + CHIP.replace('"1 PFLOP/s"', '{ value = "1 PFLOP/s", from = "sheet" }'))
    assert figure.figures["chip.peak.bf16"].url == "https://x.y"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('name = "mine"\n', ""), r"chip\.name: is missing"),
        (("bf16 =", "bf17 ="), r"chip\.peak\.bf17"),
        (("[chip.peak]\n", '[chip.peak]\ncolour = "1 W"\n'), r"chip\.peak\.colour"),
        (('"100 GB"', '"100 GB/s"'), r"chip\.hbm\.capacity: '100 GB/s' is a quantity in B/s"),
        (('"5 TB/s"', '"-5 TB/s"'), r"chip\.hbm\.bandwidth must be greater than 0 B/s, not -5,000,000,000,000"),
        (('name = "hbm"', 'name = "peak"'), "'peak' is reserved"),
        (('name = "hbm"', 'name = "a b"'), r"chip\.memory\.0\.name: must be a letter and"),
        (("[chip.peak]", "[chip.reached]\nmemory = 5\n[chip.peak]"), r"toml:12: chip\.reached\.memory must be a share"),
        (("[chip.peak]", "[chip.reached]\ncapacity = 2\n[chip.peak]"), r"chip\.reached\.capacity must be at most 1\.07"),
    ],
)
def test_errors_of_a_chip_in_a_system_name_the_place(read, change, says):
    with pytest.raises(DataFileError, match=says):
        read(BOX + CHIP.replace(*change))


def test_a_chip_that_is_not_known_is_told_where_the_system_names_it(read):
    with pytest.raises(DataFileError, match=r"mine\.toml:1: chip: unknown chip 'h1000'; did you mean h100"):
        read('chip = "h1000"\n' + BOX)


def test_quotes_find_their_chip_whatever_its_capitals(tmp_path):
    (tmp_path / "rents").mkdir()
    quote = 'name = "mine"\ndate = "2027-01-01"\n[sources.s]\nurl = "u"\ndate = "2027-01-01"\ngrade = "vendor"\n'
    quote += '[[quotes]]\nchip = "H100"\nkind = "contract"\nrate = { value = "7 USD/h", from = "s" }\n'
    (tmp_path / "rents" / "mine.toml").write_text(quote)
    assert load_system("hgx-h100", tmp_path).rent.typical * 3600 == pytest.approx(7.0)


def test_a_machine_of_one_domain_is_a_box(read):
    box, joined = read(BOX + CHIP), read(BOX + OUTSIDE + CHIP)
    assert box.is_box
    assert not joined.is_box
    assert box.scale_out is box.scale_up
    assert box.scale_up.size == 72
    assert not [path for path in settable(box) if path.startswith("scale_out")]
    with pytest.raises(UnknownName, match=r"unknown key 'scale_out\.bandwidth'"):
        vary(box, {"scale_out.bandwidth": 1e12})
    card = system_card(box)
    assert math.isnan(card.up_over_out)
    assert math.isnan(card.scale_out_bandwidth)
    assert card.scale_up_links.count == 72


@pytest.mark.thorough
def test_a_box_is_planned_as_the_same_chips_with_a_network_that_is_not_used(read, closed_forms):
    model = st.load_model("llama-3.1-8b")
    box, joined = (vary(read(text), {"rent": 2 / 3600}) for text in (BOX + CHIP, BOX + OUTSIDE + CHIP))
    inside, with_network = (
        st.plan(model, system, ASKED, st.Slo(tpot=0.02), chips=8, **CHOICE_ALONE) for system in (box, joined)
    )
    assert inside.usd_per_million_output_tokens == with_network.usd_per_million_output_tokens
    assert inside.layout_text == with_network.layout_text
    assert "scale_out_bandwidth" not in inside.elasticities
    assert inside.elasticities == {k: v for k, v in with_network.elasticities.items() if k != "scale_out_bandwidth"}


def test_nothing_lies_beyond_a_box(read):
    box, model = read(BOX + CHIP), st.load_model("llama-3.1-8b")
    with pytest.raises(RangeError, match="at most 72, because mybox has no network beyond them, got 80"):
        st.plan(model, box, ASKED, chips=80, alternatives=False)
    with pytest.raises(InputError, match="128 chips are more than the 72 of mybox"):
        st.decode_step(model, box, batch=8, context=100, layout=st.Layout(tp=32, pp=4))
    large = st.load_model("deepseek-v3")
    with pytest.raises(InputError) as caught:
        st.plan(large, box, ASKED, chips=4, alternatives=False)
    assert "--chips" in str(caught.value)
    with pytest.raises(InputError) as caught:
        st.plan(large, vary(box, {"scale_up.size": 4}), ASKED, chips=4, alternatives=False)
    assert "--chips" not in str(caught.value)


def test_one_domain_without_a_size_is_a_network_without_end(read):
    system = read(BOX.replace("size = 72\n", "") + CHIP)
    assert not system.is_box
    assert system.scale_out.size == math.inf


@each(
    "text, says",
    [
        (BOX.replace("size = 72", "size = 0"), "domains.0.size: must be at least 1, got 0"),
        (BOX.replace("size = 72", "size = -3"), "must be at least 1, got -3"),
        (BOX.replace("size = 72", "size = 2.5"), "must be a whole number, got 2.5"),
        (BOX.replace("size = 72", "size = 1000000000"), "must be at most 200,000, got"),
        (BOX.replace("size = 72", "size = 1000").replace("chips = 72", "chips = 8"), "is one box, but its size is 1,000"),
        (BOX.replace("chips = 72", "chips = 144"), "chips: must be at most 72, .* fabric, got 144"),
        (BOX.replace("chips = 72", "chips = 0"), "chips: must be at least 1, got 0"),
        (BOX + FABRIC, "domains: the kind 'scale-up' occurs twice"),
        (BOX + OUTSIDE.replace('bandwidth = "50 GB/s"', 'bandwidth = "0 GB/s"'), "scale_out.bandwidth must be greater than 0"),
        (BOX + OUTSIDE.replace('latency = "5 us"', 'latency = "-5 us"'), "scale_out.latency must be at least 0 s"),
        (BOX + OUTSIDE.replace("bandwidth", "size = 8\nbandwidth"), "sizes must grow"),
    ],
)  # fmt: skip
def test_sizes_are_checked(read, text, says):
    with pytest.raises(DataFileError, match=says):
        read(text + CHIP)


def test_a_chip_with_fp8_alone_says_which_peak_is_missing_and_where_it_goes(read):
    system = read(BOX + CHIP.replace('bf16 = "1 PFLOP/s"\n', ""))
    with pytest.raises(InputError, match=r'peak rates only for fp8.*add bf16 = "\.\.\. TFLOP/s" under \[peak\]'):
        st.decode_step(st.load_model("llama-3.1-8b"), system, batch=8, context=100)


@pytest.mark.thorough
def test_what_is_odd_about_a_step_is_told(read, closed_forms):
    model = st.load_model("gpt2")
    assert warnings_of_step(model, st.load_system("hgx-h100"), reach=1000) == ()
    (long,) = warnings_of_step(model, st.load_system("hgx-h100"), reach=1_000_000)
    assert long == "requests of 1,000,000 tokens exceed the model's context of 1,024"
    slow = read(BOX.replace("1 TB/s", "10 GB/s") + OUTSIDE + CHIP)
    (network,) = warnings_of_step(model, slow, reach=1000)
    assert network.startswith("fabric, the scale-up network, is slower than hall, the scale-out network outside it")
    assert network in st.plan(model, slow, st.Workload(input_tokens=10, output_tokens=10), alternatives=False).warnings


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        (
            'bandwidth = { value = "3.35 TB/s"',
            'bandwidth = { value = "3.35 TB"',
            "chip.hbm.bandwidth: '3.35 TB' is a quantity in B",
        ),
        ('capacity = { value = "80 GB"', 'capacity = { value = "80"', "chip.hbm.capacity: '80' has no unit"),
        ('bandwidth = { value = "50 GB/s"', 'bandwidth = { value = "50 GB"', "scale_out.bandwidth: '50 GB' is a quantity in B"),
        ('kind = "scale-out"', 'kind = "scaleout"', "domains.1.kind: must be scale-up, pod or scale-out, got 'scaleout'"),
        ('kind = "scale-out"', 'kind = "scale-up"', "domains: the kind 'scale-up' occurs twice"),
        (
            'bandwidth = { value = "3.35 TB/s"',
            'bandwith = { value = "3.35 TB/s"',
            "bandwith: no such key; did you mean bandwidth?",
        ),
        ('fp8 = { value = "1', 'fp9 = { value = "1', "chip.peak.fp9"),
        ('name = "hdd"', 'name = "host"', "tiers: the name 'host' occurs twice"),
    ],
)
def test_an_error_names_the_line_of_the_key_and_no_other_of_that_name(tmp_path, line, instead, says):
    path, text = tmp_path / "mine.toml", template("hgx-h100")
    assert text.count(line) == 1
    path.write_text(text.replace(line, instead))
    with pytest.raises(DataFileError) as problem:
        load_system(path)
    wrong = next(n for n, found in enumerate(path.read_text().splitlines(), 1) if instead in found)
    if "twice" in says:
        wrong = path.read_text().splitlines().index(instead, wrong) + 1
    assert (problem.value.line, says in str(problem.value)) == (wrong, True), str(problem.value)


def test_a_folder_of_the_user_that_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_CATALOG", str(tmp_path / "nowhere"))
    with pytest.raises(DataFileError, match="nowhere: is not a folder; the variable STEPTIME_CATALOG"):
        load_system("hgx-h100")


def test_a_chip_without_maker_and_year_is_its_name_alone(tmp_path):
    (tmp_path / "mine.toml").write_text(BOX + CHIP)
    shown = run("systems mine.toml", folder=tmp_path)
    assert shown.returncode == 0
    assert next(line for line in shown.stdout.splitlines() if line.startswith(" Chip ")).split() == ["Chip", "mine"]
