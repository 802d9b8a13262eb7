"""Measure plain, checkpointed and reversible stacks on PyTorch, by depth.

The measurement covers memory, arithmetic, time and gradients. A block has two functions; each is a layer norm, a
matrix, GELU and a matrix, all of half the width, with PyTorch's initialization. The three stacks have the same blocks
and weights and differ only in the activations that they keep. Needs the extra `torch`.

Bytes are counted per storage, on any device, also on the meta device, which computes nothing. Not counted: fragmentation
of the allocator and workspaces of kernels.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from steptime.errors import InputError, UnknownName
from steptime.number_checks import whole_number
from steptime.reversible.feistel import half_width
from steptime.reversible.memory_tradeoff import (
    KINDS,
    ErrorPoint,
    StackPoint,
    Stacks,
    arithmetic_ratio,
    reversible_bytes,
    stream_bytes,
)
from steptime.reversible.reversible_blocks import ReversibleBlock, ReversibleSequence, halves, load, torch

DTYPES = ("float64", "float32", "bfloat16")
DEEPEST, WIDEST, MOST_ROWS = 4096, 1 << 16, 1 << 20
# Width and rows of the stacks that measure errors; small, to save time.
ERROR_WIDTH, ERROR_ROWS = 256, 16
# Depths of a curve, each twice the one before.
DEPTHS = 5


def measure_stacks(
    *,
    depth: int = 64,
    width: int = 1024,
    rows: int = 64,
    dtype: str = "float32",
    device: str | None = None,
    repeats: int = 3,
    seed: int = 0,
) -> Stacks:
    """Measure stacks of up to `depth` blocks.

    A CPU uses one thread, because the matrix products are too small to gain from more.

    Args:
        depth: Blocks of the deepest stack, 1 to 4,096.
        width: Values of a row, even.
        rows: Rows of the input.
        dtype: float64, float32 or bfloat16.
        device: cpu or cuda; None: a GPU if there is one.
        repeats: Timed runs of each step; the median counts.
        seed: Seed of weights and inputs.

    Returns:
        Memory, FLOP, time and gradient errors by depth and kind of stack.

    Raises:
        RangeError: The width is odd, or a number is out of range.
        InputError: PyTorch is not installed, or there is no GPU for `device="cuda"`.
    """
    depth = whole_number("depth", depth, maximum=DEEPEST, unit="block")
    half_width("the width of a stack", whole_number("width", width, minimum=2, maximum=WIDEST), "values")
    rows, repeats = whole_number("rows", rows, maximum=MOST_ROWS), whole_number("repeats", repeats, maximum=1000)
    if dtype not in DTYPES:
        raise UnknownName("number format", dtype, DTYPES, "Known: " + ", ".join(DTYPES) + ".")
    device = _resolve_device(device)
    depths = sorted({max(1, depth >> power) for power in range(DEPTHS)})
    blocks = _blocks(depth, width, dtype, device, seed)
    x = _input(rows, width, dtype, device, seed)
    with _one_thread():
        points = [point for d in depths for point in _points(blocks[:d], x, repeats)]
        errors = tuple(gradient_errors(depths, width=min(width, ERROR_WIDTH), seed=seed))
    streams = float(reversible_bytes(stream_bytes(rows, width // 2, x.element_size())))
    return Stacks(
        depth=depth, width=width, rows=rows, dtype=dtype, device=device, torch=str(torch.__version__), streams=streams,
        # Reversible layers need a second forward pass.
        arithmetic=float(arithmetic_ratio(2)), points=tuple(points),
        error_width=min(width, ERROR_WIDTH), errors=errors,
    )  # fmt: skip


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit PyTorch to one CPU thread inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gradient_errors(depths: Sequence[int], *, width: int = ERROR_WIDTH, seed: int = 0) -> list[ErrorPoint]:
    """Measure the errors of gradients and rebuilt inputs on the CPU.

    Args:
        depths: Numbers of blocks.
        width: Values of a row, even.
        seed: Seed of weights and inputs.

    Returns:
        One point per number format and depth.
    """
    errors = []
    for dtype in DTYPES:
        blocks = _blocks(max(depths), width, dtype, "cpu", seed)
        wide = _blocks(max(depths), width, "float64", "cpu", seed)
        x = _input(ERROR_ROWS, width, dtype, "cpu", seed)
        for depth in depths:
            plain, reversible = (_gradients(blocks[:depth], x, kind) for kind in ("plain", "reversible"))
            # The reference of the error of a format is the plain stack in float64.
            exact = plain if dtype == "float64" else _gradients(wide[:depth], x.double(), "plain")
            stack = ReversibleSequence(blocks[:depth])
            errors.append(
                ErrorPoint(
                    depth=depth, dtype=dtype, gradient_error=_distance(reversible, plain), plain_error=_distance(plain, exact),
                    input_error=_distance([stack.inverse(stack(x).detach())], [x]),
                )
            )  # fmt: skip
    return errors


def run_stack(blocks: Sequence[ReversibleBlock], x: Any, kind: str) -> Any:
    """Run a stack of one kind.

    Args:
        blocks: Blocks in order.
        x: Input [rows x width].
        kind: plain, checkpointed or reversible.

    Returns:
        Output [rows x width].
    """
    if kind == "reversible":
        return ReversibleSequence(blocks)(x)
    checkpoint = load("torch.utils.checkpoint").checkpoint
    a, b = halves(x, -1)
    for block in blocks:
        a, b = block.coupled(a, b) if kind == "plain" else checkpoint(block.coupled, a, b, use_reentrant=False)
    return torch.cat((a, b), -1)


def _points(blocks: Sequence[ReversibleBlock], x: Any, repeats: int) -> list[StackPoint]:
    """Measure the three stacks of some blocks."""
    flops, seconds, gradients, points = {}, {}, {}, []
    for kind in KINDS:
        gradients[kind] = _gradients(blocks, x, kind)
        saved, peak, allocated, flops[kind] = _memory_and_flops(blocks, x, kind)
        seconds[kind] = _seconds(partial(_step, blocks, x, kind), repeats, x.device)
        points.append(
            StackPoint(
                depth=len(blocks), kind=kind, saved=saved, peak=peak, allocated=allocated, flop=flops[kind],
                arithmetic=flops[kind] / flops["plain"], seconds=seconds[kind], slowness=seconds[kind] / seconds["plain"],
                gradient_error=_distance(gradients[kind], gradients["plain"]),
            )
        )  # fmt: skip
    return points


def _step(blocks: Sequence[ReversibleBlock], x: Any, kind: str) -> list[Any]:
    """Run one forward and backward pass; return the gradients of the parameters."""
    for block in blocks:
        block.zero_grad()
    y = run_stack(blocks, x, kind)
    # The loss is half the sum of squares, whose gradient is the output itself.
    y.backward(y.detach())
    return [parameter.grad for block in blocks for parameter in block.parameters()]


def _gradients(blocks: Sequence[ReversibleBlock], x: Any, kind: str) -> list[Any]:
    x = x.clone().requires_grad_()
    grads = _step(blocks, x, kind)
    return [x.grad, *(grad.clone() for grad in grads)]


def _memory_and_flops(blocks: Sequence[ReversibleBlock], x: Any, kind: str) -> tuple[int, int, int | None, int]:
    """Return bytes saved, peak bytes alive, peak bytes allocated (None on a CPU), FLOP."""
    x = x.clone().requires_grad_()
    with SavedBytes(parameter for block in blocks for parameter in block.parameters()) as saved:
        y = run_stack(blocks, x, kind)
    saved_bytes = saved.bytes()
    del y
    with LiveBytes() as live:
        grads = _step(blocks, x, kind)
    peak = live.peak([*grads, x.grad])
    del grads
    # The counters run in separate steps, so that one does not count the work of another.
    with flop_counter() as flops:
        _step(blocks, x, kind)
    allocated = None
    if x.device.type == "cuda":
        for block in blocks:
            block.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _step(blocks, x, kind)
        allocated = int(torch.cuda.max_memory_allocated() - before)
    return saved_bytes, peak, allocated, int(flops.get_total_flops())


def _seconds(step: Callable[[], Any], repeats: int, device: Any) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _distance(computed: Sequence[Any], true: Sequence[Any]) -> float:
    """Return the norm of all differences over the norm of the true values."""
    off = sum(float((f.double() - t.double()).square().sum()) for f, t in zip(computed, true, strict=True))
    return float(np.sqrt(off / sum(float(t.double().square().sum()) for t in true)))


def _blocks(depth: int, width: int, dtype: str, device: str, seed: int) -> list[ReversibleBlock]:
    """Return blocks with the weights of float32, rounded to the format."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = [ReversibleBlock(_function(width // 2), _function(width // 2)) for _ in range(depth)]
    return [block.to(dtype=getattr(torch, dtype), device=device) for block in blocks]


def _function(half: int) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.LayerNorm(half), nn.Linear(half, half), nn.GELU(), nn.Linear(half, half))


def _input(rows: int, width: int, dtype: str, device: str, seed: int) -> Any:
    inputs = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed + 1))
    return inputs.to(dtype=getattr(torch, dtype), device=device)


def _resolve_device(device: str | None) -> str:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise UnknownName("device", device, ("cpu", "cuda"), "Known: cpu, cuda.")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch finds no GPU here; --device cpu measures without one")
    return device


DispatchMode: Any = load("torch.utils._python_dispatch").TorchDispatchMode


class _SavedTensor:
    """A tensor that autograd saved; it is freed when autograd drops it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class SavedBytes:
    """Bytes of the tensors that autograd saves for the backward pass.

    Each storage counts once; parameters do not count.

        with SavedBytes(model.parameters()) as saved: y = model(x)
        saved.bytes()
    """

    def __init__(self, parameters: Iterable[Any] = ()) -> None:
        self._left_out = {_key(parameter) for parameter in parameters}
        self._held: weakref.WeakSet[_SavedTensor] = weakref.WeakSet()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Any) -> _SavedTensor:
        saved = _SavedTensor(tensor)
        self._held.add(saved)
        return saved

    def bytes(self) -> int:
        """Return the bytes that are saved now.

        Returns:
            Bytes, until the backward pass frees them.
        """
        storages = {_key(saved.tensor): saved.tensor.untyped_storage().nbytes() for saved in self._held}
        return sum(size for key, size in storages.items() if key not in self._left_out)


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


class LiveBytes(DispatchMode):  # type: ignore[misc]
    """Live bytes of all tensors that are created inside the context.

    Each storage counts once; the count changes from one operation to the next.

        with LiveBytes() as live: model(x).sum().backward()
        live.peak()
    """

    def __init__(self) -> None:
        super().__init__()
        # Serial number of each live storage, by its key.
        self._alive: dict[int, int] = {}
        # Serial number and bytes of each storage, with negative bytes when it is freed.
        self._made: list[tuple[int, int]] = []
        self._numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        input_keys = {_key(tensor) for tensor in _tensors((args, kwargs or {}))}
        for tensor in _tensors(out):
            key = _key(tensor)
            # Views and outputs in place share the storage of an input and are not new.
            if key not in self._alive and key not in input_keys:
                self._follow(tensor.untyped_storage(), key)
        return out

    def _follow(self, storage: Any, key: int) -> None:
        number, size = self._numbers, storage.nbytes()
        self._numbers += 1
        self._alive[key] = number
        self._made.append((number, size))
        weakref.finalize(storage, self._gone, key, number, size)

    def _gone(self, key: int, number: int, size: int) -> None:
        # A new storage may reuse the key of a freed one.
        if self._alive.get(key) == number:
            del self._alive[key]
            self._made.append((number, -size))

    def peak(self, left_out: Iterable[Any] = ()) -> int:
        """Return the peak of live bytes.

        Args:
            left_out: Live tensors that do not count, such as gradients of parameters.

        Returns:
            Bytes.
        """
        without = {self._alive.get(_key(tensor)) for tensor in left_out}
        now = largest = 0
        for number, size in self._made:
            if number not in without:
                now += size
                largest = max(largest, now)
        return largest


def _tensors(tree: Any) -> list[Any]:
    flat = torch.utils._pytree.tree_leaves(tree)
    return [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]


def flop_counter() -> Any:
    """Return PyTorch's counter of the FLOP of matrix products and similar operations, with those of backward passes.

    Returns:
        Context manager; `get_total_flops()` gives the FLOP so far.
    """
    return load("torch.utils.flop_counter").FlopCounterMode(display=False)
