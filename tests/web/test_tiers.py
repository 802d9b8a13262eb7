import numpy as np
import pytest

pytest.importorskip("fastapi")


import steptime as st
from steptime.describe.kv_tradeoff import cache_trade
from steptime.pricing.kv_storage_cost import tiers
from tests.conftest import each
from tests.web.page_client import CLIENT

PAIR = {"model": "deepseek-ai/DeepSeek-V3", "system": "gb200-nvl72"}
TIERS = ("hbm", "host", "ssd", "hdd")


def asked(**inputs):
    answer = CLIENT.post("/api/boards/tiers", json=PAIR | inputs)
    assert answer.status_code == 200, answer.text
    return answer.json()


def trade():
    return cache_trade(["deepseek-ai/DeepSeek-V3"], "gb200-nvl72", [8192]).caches[0]


def test_points_are_what_reading_back_and_holding_cost():
    table, held, rent = asked()["tables"]["costs"], trade(), float(st.load_system("gb200-nvl72").rent.typical)
    seconds = np.array(table["seconds"][::12][:10])
    byte = {one.name: one.usd_per_byte_second for one in tiers()}
    assert table["again"][:10] == pytest.approx([held.recompute_seconds * rent / 8192 * 1e9] * 10, rel=1e-12)
    for tier, priced in zip(held.tiers, ("HBM", "DRAM", "flash", "disk"), strict=True):
        each = rent / tier.capacity if priced == "HBM" else byte[priced]
        drain = 0.0 if priced == "HBM" else tier.drain_seconds
        expected = held.held_bytes / 8192 * each * (drain + seconds) * 1e9
        assert table[tier.name][::12][:10] == pytest.approx(expected, rel=1e-12)


def test_with_tiers_as_dear_as_the_chip_lines_cross_where_the_command_says():
    figures = {one["name"]: one["value"] for one in asked(price="chip", waits="chip")["figures"]}
    for name, tier in zip(("HBM", "host memory", "flash"), trade().tiers, strict=False):
        assert figures[f"{name} breaks even at"] == pytest.approx(tier.break_even_seconds, rel=1e-9)
    assert figures["disk breaks even at"] == 0  # reading back takes longer than making it again


def test_the_longer_a_cache_waits_the_slower_the_memory_that_suits_it():
    spans = asked()["tables"]["spans"]["tier"]
    assert spans == [name for name in (*TIERS, "again") if name in spans]


def test_a_cache_that_no_memory_pays_for_is_made_again():
    answer = asked(hold_seconds=1e7)
    assert "recompute" in answer["sentence"]
    assert answer["marks"]["tier"] == "again"


@each("wrong, field", [({"context": 4_000_000}, "context"), ({"hold_seconds": 0}, "hold_seconds"), ({"price": "x"}, "price")])
def test_wrong_input_is_told_at_its_field(wrong, field):
    answer = CLIENT.post("/api/boards/tiers", json=PAIR | wrong)
    assert (answer.status_code, answer.json()["detail"][0]["field"]) == (422, field)
