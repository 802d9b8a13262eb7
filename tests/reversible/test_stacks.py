"""What stacks hold, compute and take on PyTorch: constant in depth where plain ones grow, a third more arithmetic."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from steptime.errors import InputError, RangeError

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'steptime[torch]'")

from steptime.reversible.reversible_stacks import LiveBytes, SavedBytes, flop_counter, gradient_errors, measure_stacks  # noqa: E402  # noqa: E402

pytestmark = pytest.mark.slow  # the stage that has PyTorch


@pytest.fixture(scope="module")
def measured():
    return measure_stacks(depth=64, width=128, rows=32, dtype="float64", repeats=1)


def of(measured, kind, name):
    return np.array([getattr(point, name) for point in measured.points if point.kind == kind], dtype=float)


def test_reversible_stacks_keep_two_streams_whatever_their_depth(measured):
    depths, kept = of(measured, "reversible", "depth"), of(measured, "reversible", "saved")
    assert depths.tolist() == [4, 8, 16, 32, 64]
    np.testing.assert_allclose(kept, 2 * 32 * 64 * 8, rtol=0.02)
    assert measured.streams == 2 * 32 * 64 * 8
    peak = of(measured, "reversible", "peak")
    np.testing.assert_allclose(peak, peak[0], rtol=0.02)


def test_plain_and_checkpointed_stacks_keep_more_with_each_block(measured):
    depths = of(measured, "plain", "depth")
    for kind, each in (("plain", 8 * 32 * 64 * 8), ("checkpointed", 2 * 32 * 64 * 8)):
        slope = np.polyfit(depths, of(measured, kind, "saved"), 1)[0]
        # two functions of four tensors each (inputs of norm, both matrices and GELU), and the norms' few numbers; or the pair
        assert slope == pytest.approx(each, rel=0.04)


def test_arithmetic_is_a_third_more(measured):
    ratios = of(measured, "reversible", "arithmetic")
    assert ((ratios > 1.30) & (ratios < 1.40)).all()
    assert ratios[-1] == pytest.approx(measured.arithmetic, rel=0.005)
    plain = of(measured, "plain", "flop")
    # products of rows by two matrices of 64 x 64 in two functions, three times; the first needs its input's gradient too
    np.testing.assert_allclose(plain, of(measured, "plain", "depth") * 2 * 2 * 3 * 2 * 32 * 64 * 64)


def test_gradients_are_exact_at_depth_64(measured):
    assert of(measured, "reversible", "gradient_error").max() < 1e-12
    assert of(measured, "checkpointed", "gradient_error").max() < 1e-12


def test_errors_grow_with_depth_and_shrink_with_width_of_the_format():
    found = gradient_errors([4, 64], width=64)
    by = {(point.dtype, point.depth): point for point in found}
    assert by["float64", 64].gradient_error < 1e-12
    for dtype in ("float64", "float32", "bfloat16"):
        assert by[dtype, 4].gradient_error < by[dtype, 64].gradient_error
        assert by[dtype, 4].input_error < by[dtype, 64].input_error
    for depth in (4, 64):
        errors = [by[dtype, depth].gradient_error for dtype in ("float64", "float32", "bfloat16")]
        assert errors[0] * 1e6 < errors[1] < errors[2] * 1e-2
        assert by["bfloat16", depth].gradient_error < 3 * by["bfloat16", depth].plain_error  # no worse than the format itself


def test_the_tracker_counts_what_autograd_keeps():
    layer = torch.nn.Linear(8, 8)
    x = torch.randn(4, 8, requires_grad=True)
    with SavedBytes(layer.parameters()) as saved:
        y = torch.tanh(layer(x))
    assert saved.bytes() == 4 * 8 * 4 * 2  # the layer's input, and tanh's output
    y.sum().backward()
    assert saved.bytes() == 0


def test_live_bytes_are_those_of_a_step_by_hand():
    x = torch.zeros(1000, dtype=torch.float64)
    with LiveBytes() as live:
        a = x + 1  # one
        b = a + 1  # two
        del a
        c = b + 1  # two again
        c.add_(1)
    assert live.peak() == 2 * 8000
    assert live.peak([c]) == 2 * 8000  # when a and b were there
    del b, c
    with LiveBytes() as live:
        kept = [x + number for number in range(5)]
    assert live.peak() == 5 * 8000
    assert live.peak(kept[:2]) == 3 * 8000


def test_live_bytes_agree_with_pytorchs_own_tracker():
    """The tracker of torch.distributed counts what was there before apart, and all else alike: to the byte."""
    tracker = pytest.importorskip("torch.distributed._tools.mem_tracker", reason="torch was built without distributed")
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
    x = torch.randn(512, 64)
    with LiveBytes() as live:
        model(x).sum().backward()
    model.zero_grad()
    theirs = tracker.MemTracker()
    theirs.track_external(model, x)
    with theirs:
        model(x).sum().backward()
    peak = theirs.get_tracker_snapshot("peak")[torch.device("cpu")]
    kinds = {getattr(kind, "value", kind): size for kind, size in peak.items()}
    assert live.peak() == kinds["Total"] - kinds["Parameter"] - kinds["Other"]  # which are there before, the input among them


def test_flops_are_two_for_a_multiply_and_an_add():
    with flop_counter() as count:
        torch.randn(3, 5) @ torch.randn(5, 7)
    assert count.get_total_flops() == 2 * 3 * 5 * 7


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"width": 7}, "width of a stack must be even.* not 7 values; 6 or 8 will do"),
        ({"depth": 0}, "depth must be at least 1 block"),
        ({"rows": float("nan")}, "rows must be a finite number, not nan"),
        ({"width": float("nan")}, "width must be a finite number"),
        ({"dtype": "float8"}, "unknown number format 'float8'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_bad_input_is_named(given, says):
    with pytest.raises(InputError, match=says):
        measure_stacks(**given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(InputError, match="finds no GPU here; --device cpu"):
        measure_stacks(device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_allocator_sees_the_same():
    found = measure_stacks(depth=32, width=1024, rows=4096, repeats=1)
    plain, _, reversible = found.deepest()
    assert reversible.allocated < plain.allocated / 2


def test_odd_widths_are_range_errors():
    with pytest.raises(RangeError):
        measure_stacks(width=9)


def test_without_pytorch_the_extra_is_named():
    code = """
import sys
sys.modules["torch"] = None
sys.argv = ["steptime", "reversible", "--depth", "4"]
from steptime.cli.main import main
main()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "pip install '.[torch]'" in found.stderr
    assert "Traceback" not in found.stderr
