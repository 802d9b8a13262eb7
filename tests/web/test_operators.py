"""Board of operators: each lies under its roofline, their times are those of the step, and a batch moves experts."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("fastapi")

from steptime.web.boards.operators import Inputs, answer
from tests.conftest import each


@each("batch", [1, 256, 8192])
@each("engine", ["", "ideal"])
def test_operators_are_under_the_roofline_and_within_the_step(batch, engine):
    data = answer(Inputs(batch=batch, engine=engine)).to_dict()
    rows = {name: np.array(column) for name, column in data["tables"]["operators"].items() if name not in ("name", "term")}
    roof = np.minimum(rows["peak"], rows["intensity"] * data["marks"]["bandwidth"])
    assert (rows["rate"] <= roof * (1 + 1e-9)).all()
    assert rows["seconds"].sum() <= data["marks"]["total"] * (1 + 1e-9)
    assert (np.diff(rows["seconds"]) <= 0).all()


def test_a_projection_by_hand():
    # 8B in BF16 on one chip: the head multiplies 4096 x 128,256 weights for each of 64 sequences.
    data = answer(Inputs(model="llama-3.1-8b", system="hgx-h100", chips=1, batch=64, context=1024, weights="bf16")).to_dict()
    rows = data["tables"]["operators"]
    head = rows["name"].index("lm_head")
    assert rows["flops"][head] == pytest.approx(2 * 4096 * 128_256 * 64)
    assert rows["traffic"][head] == pytest.approx(2 * 4096 * 128_256, rel=0.05)
    assert rows["intensity"][head] == pytest.approx(64, rel=0.05)


def test_a_larger_batch_raises_the_intensity_of_experts():
    def experts(batch):
        rows = answer(Inputs(batch=batch, engine="ideal")).to_dict()["tables"]["operators"]
        return rows["intensity"][rows["name"].index("experts")]

    assert experts(4096) > 3 * experts(256)
