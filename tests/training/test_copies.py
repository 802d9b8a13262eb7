"""What copies exchange for a step and how much of it hides, by hand; and the optimizer's own time."""

from __future__ import annotations

import pytest

from steptime.training.layer_time import ChipParameters, exposed_exchange_seconds, optimizer_seconds, sharding_ranks
from steptime.training.training_job import TrainingLayout
from tests.conftest import each, machine
from tests.training.cases import LINKED, job, lossy

HELD = ChipParameters(1e9, 0.0)
UP = 1e11
FORWARD, BACKWARD = 10e-3, 20e-3


def seconds(held=HELD, asked=None, engine=None, on=LINKED, microbatches=4, **layout):
    found = exposed_exchange_seconds(
        held, asked or job(), on, engine or lossy(), TrainingLayout(**{"dp": 8} | layout), forward=FORWARD, backward=BACKWARD,
        microbatches=microbatches,
    )  # fmt: skip
    return float(found)


def test_weights_in_eight_bits_are_gathered_as_such():
    """4 B of gradients and 2 B of weights; 1 B in fp8, with a scale of 1 B per 32 values in mxfp8; not in nvfp4."""

    def seconds_of(dtype, narrow_gather):
        return seconds(asked=job(dtype=dtype, narrow_gather=narrow_gather))

    wide = seconds_of("bf16", narrow_gather=True)
    assert seconds_of("fp8", narrow_gather=False) == wide == seconds_of("nvfp4", narrow_gather=True)
    assert seconds_of("fp8", narrow_gather=True) / wide == pytest.approx(5 / 6)
    assert seconds_of("mxfp8", narrow_gather=True) / wide == pytest.approx((5 + 1 / 32) / 6)


def test_gradients_are_scattered_and_weights_gathered_once_a_step():
    """1e9 parameters over eight ranks at 100 GB/s: (4 + 2) B x 7/8, however many micro-batches."""
    once = 1e9 * 7 / 8 / UP
    assert seconds() == pytest.approx((4 + 2) * once)
    assert seconds(microbatches=64) == seconds()
    assert seconds(sharding="zero2", microbatches=1) == seconds(sharding="zero1")
    assert seconds(sharding="zero2", microbatches=64) == pytest.approx((64 * 4 + 2) * once)  # reduced at once: for each
    assert seconds(asked=job(gradient_bytes=2.0)) == pytest.approx((2 + 2) * once)


def test_nothing_divided_is_an_all_reduce_of_gradients():
    assert seconds(sharding="none") == pytest.approx(2 * 4 * 1e9 * 7 / 8 / UP)


def test_gradients_of_experts_are_reduced_over_all_copies_in_groups_too():
    """1e9 parameters of experts on eight ranks, their states in groups of four: (4 + 2) B x 7/8, not 3/4."""
    of_experts = ChipParameters(0.0, 1e9)
    assert seconds(of_experts, sharding_group=4) == pytest.approx((4 + 2) * 1e9 * 7 / 8 / UP)


def test_divided_weights_are_gathered_twice_and_gradients_scattered_for_each_micro_batch():
    """ZeRO-3: (2 + 2 + 4) B a parameter and micro-batch (arXiv 1910.02054, section 7.2.2: 1.5 times the traffic in 16 bits)."""
    once = 1e9 * 7 / 8 / UP
    assert seconds(sharding="zero3") == pytest.approx(4 * (2 + 2 + 4) * once)
    sixteen = job(gradient_bytes=2.0)
    assert seconds(sharding="zero3", asked=sixteen, microbatches=1) == pytest.approx(1.5 * seconds(asked=sixteen))


def test_one_copy_exchanges_nothing():
    for sharding in ("none", "zero1", "zero2", "zero3"):
        assert seconds(dp=1, sharding=sharding) == 0


def test_exchanges_hide_behind_the_passes_beside_them():
    """The reduction behind one backward pass, the gather behind one forward pass; ZeRO-3 behind each."""
    once = 1e9 * 7 / 8 / UP  # 8.75 ms a byte
    hiding = lossy(data_overlap=1.0)
    assert seconds(engine=hiding) == pytest.approx((4 * once - BACKWARD) + (2 * once - FORWARD))
    half = lossy(data_overlap=0.5)
    assert seconds(engine=half) == pytest.approx((4 * once - BACKWARD / 2) + (2 * once - FORWARD / 2))
    each = (2 * once - FORWARD) + (6 * once - BACKWARD)
    assert seconds(engine=hiding, sharding="zero3") == pytest.approx(4 * each)
    assert seconds(ChipParameters(1e8, 0.0), engine=hiding) == 0


def test_context_ranks_share_states_as_copies_do():
    assert seconds(dp=4, cp=2) == pytest.approx(seconds(dp=8))
    assert float(sharding_ranks(TrainingLayout(dp=4, cp=2))) == 8


def test_experts_are_reduced_among_their_own_copies():
    """16 chips, experts over 8: two copies of each, eight chips apart, on the outer links of 10 GB/s."""
    held = ChipParameters(0.0, 1e9)
    assert seconds(held, dp=16, ep=8) == pytest.approx((4 + 2) * 1e9 / 2 / 1e10)
    assert seconds(held, dp=8, ep=8) == 0
    assert float(TrainingLayout(dp=16, ep=8).expert_copies) == 2


def test_hybrid_sharding_reduces_between_groups():
    """Two groups of eight: ZeRO-3 inside one, and an all-reduce of an eighth of the gradients between, once."""
    found = seconds(sharding="zero3", dp=16, sharding_group=8)
    inside = 4 * 8 * 1e9 * 7 / 8 / UP
    between = 2 * 4 * (1e9 / 8) / 2 / 1e10
    assert found == pytest.approx(inside + between)


def test_a_frozen_base_is_not_reduced():
    frozen = job(task="lora")
    assert seconds(asked=frozen) == 0
    assert seconds(asked=frozen, sharding="zero3") == pytest.approx(4 * (2 + 2) * 1e9 * 7 / 8 / UP)
    assert float(optimizer_seconds(HELD, frozen, LINKED, TrainingLayout(dp=8))) == 0


@each(
    "sharding, bytes_",
    [
        ("none", 24 + 4 + 2 + 4),  # states read and written, gradients read, weights written; and the norm of gradients
        ("zero1", (24 + 4 + 2) / 8 + 4),
        ("zero2", (24 + 4 + 2) / 8 + 4 / 8),
        ("zero3", (24 + 4 + 2) / 8 + 4 / 8),
    ],
)
def test_the_optimizer_moves_its_states(sharding, bytes_):
    on = machine(bandwidth=1e12)
    found = optimizer_seconds(HELD, job(), on, TrainingLayout(dp=8, sharding=sharding))
    assert float(found) == pytest.approx(bytes_ * 1e9 / 1e12)


def test_the_optimizer_of_experts_is_divided_among_their_copies():
    on = machine(bandwidth=1e12)
    found = optimizer_seconds(ChipParameters(0.0, 1e9), job(), on, TrainingLayout(dp=16, ep=8))
    assert float(found) == pytest.approx((30 / 2 + 4) * 1e9 / 1e12)
