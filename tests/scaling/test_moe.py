"""The board of mixtures: the lecture's section 6 with what it asks of a machine."""

from __future__ import annotations

import pytest

import steptime as st
from steptime.blackboard.training_compute import optimal_batch
from steptime.errors import InputError, RangeError, UnknownName
from steptime.scaling.moe_vs_dense import inputs_for_experts, moe_board
from steptime.scaling.scaling_laws import load_law


def test_11_routed_equivalence_of_the_lecture():
    """370 M active x 64 experts by S-BASE: 1.37 B to 1 %, spoken of as 1.3 B (10 %), at 22 times the parameters."""
    row = moe_board(370e6, experts=[64], law="clark-s-base").rows[0]
    assert row.equivalent == pytest.approx(1.37e9, rel=0.01)
    assert row.equivalent == pytest.approx(1.3e9, rel=0.1)
    assert row.sparsity == pytest.approx(22)


def test_laws_stand_on_one_board_and_say_where_they_were_fitted():
    """Clark's three routers: experts stop to help at 10^(-b/c), 10^12, 10^10.5 and 10^11.33 parameters."""
    board = moe_board(1e9)
    laws = ["clark-s-base", "clark-rl-r", "clark-hash", "krajewski", "ludziejewski", "abnar"]
    assert list(dict.fromkeys(row.law for row in board.rows)) == laws
    assert set(board.fitted) == set(laws)
    ends = (12, 10.5, 136 / 12)
    assert board.vanishing == {law: pytest.approx(10**end) for law, end in zip(laws, ends, strict=False)}
    # 1 B parameters are within Clark's runs.
    assert board.warnings == ("krajewski extrapolates 10x beyond 3.50 M to 100 M parameters",)
    assert moe_board(37e9).warnings == ("clark-s-base extrapolates 28x beyond 15.0 M to 1.30 B parameters; so do 5 other laws",)
    assert [row.experts for row in board.rows if row.law == "krajewski"] == [1, 64]
    for row in board.rows:
        assert row.gain >= 1 - 1e-9
        assert (row.gain == pytest.approx(1)) == (row.experts == 1)


def test_batch_and_memory_grow_with_sparsity():
    chip = st.load_system("gb200-nvl72").chip
    balance = chip.peak["fp8"] / 2 / chip.hbm.bandwidth
    board = moe_board(37e9, law="clark-s-base", weights="fp8")
    assert board.balance == pytest.approx(balance)
    for row in board.rows:
        assert row.optimal_batch == pytest.approx(float(optimal_batch(balance, row.sparsity)))
        assert row.weight_bytes == pytest.approx(row.total_params)
        assert (row.chips - 1) * chip.hbm.capacity < row.weight_bytes <= row.chips * chip.hbm.capacity


def test_a_gain_is_a_saving_until_the_batch_is_too_small():
    """At a batch above B* a token costs what its active parameters do; below, reading the weights costs more."""
    many = moe_board(37e9, law="clark-s-base", batch=1e9)
    for row in many.rows:
        assert row.cost_over_dense == pytest.approx(1 / row.gain)
    few = {row.experts: row for row in moe_board(37e9, law="clark-s-base", batch=2048).rows}
    assert few[16].cost_over_dense < 1 < few[512].cost_over_dense
    assert few[512].cost_over_dense == pytest.approx(few[512].optimal_batch / 2048 / few[512].gain)


def test_what_a_law_is_asked_is_what_it_knows():
    assert inputs_for_experts(load_law("clark-hash"), 8) == {"experts": 8}
    assert inputs_for_experts(load_law("krajewski"), 8) is None
    assert inputs_for_experts(load_law("abnar"), 1) == {"sparsity": 0.0}
    with pytest.raises(InputError, match="epoch has no input for experts"):
        moe_board(1e9, law="epoch")
    with pytest.raises(RangeError, match="experts must be at least 1"):
        moe_board(1e9, experts=[0])
    with pytest.raises(UnknownName, match="number format"):
        moe_board(1e9, weights="fp9")
