"""The layout that is taken where none is given."""

from __future__ import annotations

import steptime as st
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.layout_space import default_layout
from tests.conftest import each


@each(
    "model, system, ways",
    [
        ("llama-3.1-8b", "hgx-h100", (1, 1, 1)),
        ("llama-3.3-70b", "hgx-h100", (2, 1, 1)),
        ("deepseek-v3", "hgx-h200", (8, 1, 8)),
        ("kimi-k2", "gb200-nvl72", (8, 1, 8)),
        ("kimi-k2", "hgx-h100", (8, 2, 8)),
    ],
)
def test_default_layout_is_the_smallest_that_fits(model, system, ways):
    loaded, machine = st.load_model(model), st.load_system(system)
    found = default_layout(loaded, machine, context=4096)
    assert (found.tp, found.pp, found.ep) == ways
    assert memory_per_chip(loaded, machine, batch=1, context=4096, layout=found).fits


def test_default_layout_with_a_batch_holds_the_batch():
    loaded, machine = st.load_model("llama-3.3-70b"), st.load_system("hgx-h100")
    found = default_layout(loaded, machine, batch=64, context=8192)
    assert found.tp > 2
    assert memory_per_chip(loaded, machine, batch=64, context=8192, layout=found).fits


def test_default_layout_of_a_batch_that_no_domain_holds_is_the_smallest_of_the_model():
    loaded, machine = st.load_model("llama-3.3-70b"), st.load_system("hgx-h100")
    assert default_layout(loaded, machine, batch=1e6, context=8192).tp == 2


def test_default_layout_of_two_sequences_holds_both():
    """Two chips of 80 GB hold weights of 141 GB and one sequence of 20,000 tokens with 6.6 GB of cache, and not two."""
    loaded, machine = st.load_model("llama-3.3-70b"), st.load_system("hgx-h100")
    one, two = (default_layout(loaded, machine, batch=batch, context=20_000) for batch in (1, 2))
    assert (one.chips, two.chips) == (2, 4)


def test_default_layout_is_one_chip_wherever_one_sequence_fits_it():
    """64 sequences of 8,192 tokens take 69 GB next to 16 GB of weights: the answer then names memory."""
    assert default_layout(st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), batch=64, context=8192).chips == 1
