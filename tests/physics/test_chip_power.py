"""Power of a chip: its law by hand, published power of H100 and B200, and what load, format and range change."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steptime.catalog.hardware_loading import load_system
from steptime.models.model_loading import load_model
from steptime.physics import chip_power
from steptime.physics.chip_power import (
    EnergyCoefficients,
    StepWork,
    chip_joules,
    energy_coefficients,
    step_energy,
    step_work,
    surrounding_watts,
)
from steptime.physics.engine import load_engine
from steptime.physics.layout import Layout
from steptime.physics.network_time import Traffic
from steptime.physics.op_work import Demand
from steptime.physics.time_ledger import Entry
from steptime.physics.uncertainty import Z90
from steptime.questions.registry import ask
from steptime.questions.step_question import step_summary
from tests.conftest import each, machine, one_matrix

VLLM = load_engine("vllm")


def test_chip_joules_is_the_sum_of_parts_up_to_the_limit():
    chip = EnergyCoefficients(
        static=100.0, limit=500.0, byte=2e-11, link_byte=5e-11, flops={"bf16": 4e-13, "fp8": 2e-13}, spread=0.1, source="given"
    )
    work = StepWork(flops={"bf16": 1e14, "fp8": 1e14}, memory=1e12, links=2e11)
    # 100 W x 1 s + 20 J + 40 J + 20 J + 10 J; in 0.2 s the chip would take more than 500 W.
    assert chip_joules(chip, work, 1.0) == pytest.approx(190.0)
    assert chip_joules(chip, work, 0.2) == pytest.approx(100.0)


def test_step_work_of_one_matrix_is_its_bytes_and_flops():
    """One matrix of 1e9 weights in fp8, in ten layers: 2 FLOP a weight and token, each weight read once."""
    _, work = step_work(one_matrix(), machine(), {"batch": 4, "context": 100}, layout=Layout(), engine=load_engine("ideal"))
    assert sum(float(flop) for flop in work.flops.values()) == pytest.approx(4 * 2 * 1e10, rel=0.01)
    assert float(work.memory) == pytest.approx(1e10 + 4 * 100 * 1000 * 10, rel=0.01)
    assert float(work.links) == 0.0


def test_energy_coefficients_of_generations():
    h100, h200, b200, mi300x = (
        energy_coefficients(load_system(name)) for name in ("hgx-h100", "hgx-h200", "hgx-b200", "mi300x-8")
    )
    assert (h100.source, b200.source, mi300x.source) == ("hopper", "blackwell", "pooled")
    # Static power, pJ per byte and per bf16 FLOP of the fit to ML.ENERGY's rows.
    assert (h100.static, b200.static) == (pytest.approx(424, abs=5), pytest.approx(427, abs=5))
    assert (1e12 * h100.byte, 1e12 * b200.byte) == (pytest.approx(36.4, rel=0.03), pytest.approx(93.9, rel=0.03))
    assert (1e12 * h100.flops["bf16"], 1e12 * b200.flops["bf16"]) == (
        pytest.approx(0.503, rel=0.03),
        pytest.approx(0.394, rel=0.03),
    )
    # A byte costs the same in a generation; a narrower FLOP costs less in proportion to its rate.
    assert h200.byte == h100.byte
    assert h100.flops["fp8"] == pytest.approx(h100.flops["bf16"] / 2, rel=0.01)
    assert mi300x.spread > max(h100.spread, b200.spread)


def test_the_page_of_energy_has_the_shipped_coefficients():
    lines = (Path(__file__).parents[2] / "docs/energy.md").read_text(encoding="utf-8").splitlines()
    for name, title in (("hgx-h100", "Hopper"), ("hgx-b200", "Blackwell")):
        one = energy_coefficients(load_system(name))
        row = next(line for line in lines if line.startswith(f"| {title} |"))
        figures = [1e12 * one.byte, 1e12 * one.flops["bf16"], 1e12 * one.link_byte]
        assert [float(cell.split()[0]) for cell in row.split("|")[2:6]] == [
            pytest.approx(figure, rel=0.02) for figure in (one.static / one.limit, *figures)
        ]


def test_energy_coefficients_unknown_power_has_no_energy():
    assert energy_coefficients(load_system("tpu-v6e")) is None
    assert step_summary("llama-3.1-8b", "tpu-v6e", batch=8, context=1000).energy is None
    assert math.isnan(ask("step", model="llama-3.1-8b", system="tpu-v6e")["joules_per_token"])


# Watts per chip of dense models of ML.ENERGY Leaderboard 3.0 with 64 requests in flight, of chats of some 500 tokens.
@each(
    "model, system, layout, watts",
    [
        ("Qwen/Qwen3-8B", "hgx-h100", Layout(), 514.4),
        ("meta-llama/Llama-3.1-70B-Instruct", "hgx-h100", Layout(tp=4), 500.4),
        ("Qwen/Qwen3-32B", "hgx-b200", Layout(), 945.4),
        ("meta-llama/Llama-3.1-405B-Instruct", "hgx-b200", Layout(tp=8), 918.7),
    ],
)
def test_step_energy_is_near_published_power(model, system, layout, watts):
    energy = step_summary(model, system, batch=64, context=500, layout=layout, engine="vllm").energy
    assert float(energy.watts) == pytest.approx(watts, rel=0.25)


def test_step_energy_follows_load_and_format():
    batch = np.array([1, 8, 64, 256])
    found = ask("step", model="llama-3.1-8b", system="hgx-h100", batch=batch, context=1000)
    assert np.all(np.diff(found["chip_watts"]) > 0)
    assert np.all(found["chip_watts"] <= 700)
    assert np.all(np.diff(found["joules_per_token"]) < 0)
    in_fp8 = ask("step", model="llama-3.1-8b", system="hgx-h100", batch=batch, context=1000, weights="fp8")
    assert np.all(in_fp8["joules_per_token"] < found["joules_per_token"])
    prefill = ask("step", model="llama-3.1-8b", system="hgx-h100", phase="prefill", tokens=8192)
    assert prefill["chip_watts"] > found["chip_watts"][-1]


def test_step_energy_joules_are_watts_over_rate():
    summary = step_summary("llama-3.1-70b", "hgx-h100", batch=64, context=4096, layout=Layout(tp=4))
    energy = summary.energy
    assert surrounding_watts(load_system("hgx-h100")) == pytest.approx(1370 - 700)
    assert energy.total_watts == pytest.approx(energy.watts + 670)
    assert energy.joules_per_token == pytest.approx(energy.total_watts / summary.output_tokens_per_second_per_chip)
    assert energy.tokens_per_second_per_megawatt * energy.joules_per_token == pytest.approx(1e6)


def test_step_energy_range_joins_time_and_coefficients():
    model, system = load_model("llama-3.1-8b"), load_system("hgx-h100")
    sizes = {"batch": 8, "context": 1000}
    step, work = step_work(model, system, sizes, layout=Layout(), engine=VLLM)
    chip, around = energy_coefficients(system), surrounding_watts(system)
    arguments = {"layout": Layout(), "engine": VLLM, "seconds": step.total, "tokens": 8}
    narrow = step_energy(model, system, sizes, **arguments, time_range=(step.total, step.total))
    wide = step_energy(model, system, sizes, **arguments, time_range=(step.total / 1.2, step.total * 1.2))
    share = float(narrow.watts / (narrow.watts + around))
    low, high = (float(end / narrow.joules_per_token) for end in narrow.joules_range)
    assert (low, high) == (pytest.approx(math.exp(-Z90 * chip.spread * share)), pytest.approx(1 / low))
    slow = math.log(
        float((chip_joules(chip, work, step.total * 1.2) + around * step.total * 1.2) / narrow.joules_per_token / 8)
    )
    assert float(wide.joules_range[1] / wide.joules_per_token) == pytest.approx(math.exp(math.hypot(slow, math.log(high))))
    assert step_summary(model, system, batch=8, context=1000, engine="ideal").energy.joules_range is None


def test_work_of_a_chip_is_the_mean_of_the_stages_of_a_pipeline(monkeypatch):
    """Two micro-batches on four stages: half of what an entry has, of three instances, and of 2 s on links of 10 GB/s."""
    bf16 = Demand(flops=8.0, peak=1e15, weights=1.0, activations=2.0, kv=4.0)
    entries = [
        Entry(term="x", name="a", seconds=0.0, demand=bf16, times=3),
        Entry(term="x", name="b", seconds=0.0, demand=replace(bf16, peak=2e15), times=1),
        Entry(term="x", name="c", seconds=0.0, traffic=Traffic((2.0, 1.0), 0.0)),
        Entry(term="overhead", name="d", seconds=9.0),
    ]
    monkeypatch.setattr(chip_power, "ledger_of_step", lambda *_, **__: ("step", entries))
    system = machine(size=8, up=10e9, out=4e9)
    system = replace(system, chip=replace(system.chip, peak={"fp8": 2e15, "bf16": 1e15}))
    step, work = step_work(one_matrix(), system, {}, layout=Layout(pp=4, microbatches=2), engine=VLLM)
    assert step == "step"
    assert {name: float(flop) for name, flop in work.flops.items()} == {"bf16": 12.0, "fp8": 4.0}
    assert (float(work.memory), float(work.links)) == ((3 + 1) * 7 / 2, (20e9 + 4e9) / 2)
