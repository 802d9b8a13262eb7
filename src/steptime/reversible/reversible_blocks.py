"""Reversible blocks for PyTorch, which rebuild their inputs from their outputs.

    stack = ReversibleSequence([ReversibleBlock(f, g) for f, g in pairs])
    stack(x).sum().backward()

Each block has two functions, y1 = x1 + f(x2) and y2 = x2 + g(y1), on the halves of x along `dim`. A sequence keeps
only its last output. In the backward pass, each block rebuilds its input and computes f and g once more. Needs the
extra `torch`.

Dropout draws the same random numbers again: the state of the generator is saved if a function draws. Autocast,
running statistics (updated once), gradient hooks, frozen and shared parameters, and nested blocks work as in plain
PyTorch.

`torch.compile` runs a sequence uncompiled, between the compiled code before and after it, because the compiler cannot
trace a backward pass that calls autograd. Compile f and g instead. Second derivatives are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from steptime.errors import InputError, RangeError, install_hint
from steptime.reversible.feistel import half_width

Tensor = Any
Pair = tuple[Tensor, Tensor]

MISSING = (
    f"reversible blocks and their measurement need PyTorch, which is not installed: {install_hint('torch')}; "
    "`steptime reversible mixing`, `sboxes` and `cache` work without it"
)


def load(name: str) -> Any:
    """Import a module of PyTorch.

    Args:
        name: Name of the module, such as "torch.utils.checkpoint".

    Returns:
        The module.

    Raises:
        InputError: PyTorch is not installed; the message names the extra.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        # A missing module other than torch is an error of the installation, not a missing extra.
        if str(missing.name).partition(".")[0] != "torch":
            raise
        raise InputError(MISSING) from None


# PyTorch is an optional extra: this module and `reversible_stacks` are imported where it is needed.
torch: Any = load("torch")


class ReversibleBlock(torch.nn.Module):  # type: ignore[misc]
    """An additive coupling of two shape-preserving modules on the halves of a tensor."""

    def __init__(self, f: Any, g: Any, *, dim: int = -1) -> None:
        super().__init__()
        for name, function in (("f", f), ("g", g)):
            if not isinstance(function, torch.nn.Module):
                raise InputError(f"{name} of a reversible block must be a torch.nn.Module, not {type(function).__name__}")
        self.f, self.g, self.dim = f, g, dim

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block; its gradient does not need the input.

        Args:
            x: Input with an even size along `dim`.

        Returns:
            Output of the same shape.
        """
        return _through((self,), x, self.dim, free_input=False)

    def inverse(self, y: Tensor) -> Tensor:
        """Rebuild the input from the output, within rounding.

        Args:
            y: Output of the block.

        Returns:
            Input of the block.
        """
        with torch.no_grad():
            return torch.cat(self.undone(*halves(y, self.dim)), self.dim)

    def coupled(self, a: Tensor, b: Tensor) -> Pair:
        """Apply the block to two halves with plain autograd.

        Args:
            a: First half.
            b: Second half, of the same shape.

        Returns:
            Both halves after the block.
        """
        a = a + _called(self.f, b, a, "f")
        return a, b + _called(self.g, a, b, "g")

    def undone(self, a: Tensor, b: Tensor) -> Pair:
        """Apply the inverse of `coupled`.

        Args:
            a: First half after the block.
            b: Second half after the block.

        Returns:
            Both halves before the block.
        """
        b = b - _called(self.g, a, b, "g")
        return a - _called(self.f, b, a, "f"), b


class ReversibleSequence(torch.nn.Module):  # type: ignore[misc]
    """Reversible blocks in sequence, which keep only the last output.

    `free_input` empties the storage of the input in the forward pass and fills it again in the backward pass. Then
    the layer that made the input keeps no copy either.

    Use it only if nothing else reads the input after this sequence, such as a skip connection. The gradient of the
    layer that made the input must not jump: the zeros of a ReLU come back with rounding errors, some of them above 0.
    A leaf tensor is not emptied.
    """

    def __init__(self, blocks: Iterable[ReversibleBlock], *, dim: int = -1, free_input: bool = False) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)
        if not len(self.blocks) or not all(isinstance(block, ReversibleBlock) for block in self.blocks):
            raise InputError("a reversible sequence needs one ReversibleBlock or more")
        self.dim, self.free_input = dim, free_input

    def forward(self, x: Tensor) -> Tensor:
        """Apply all blocks; the gradient rebuilds the input of each block.

        Args:
            x: Input with an even size along `dim`.

        Returns:
            Output of the same shape.
        """
        return _through(tuple(self.blocks), x, self.dim, free_input=self.free_input)

    def inverse(self, y: Tensor) -> Tensor:
        """Rebuild the input from the output, within rounding.

        A sequence with dropout needs `eval()`.

        Args:
            y: Output of the sequence.

        Returns:
            Input of the sequence.
        """
        with torch.no_grad():
            a, b = halves(y, self.dim)
            for block in reversed(self.blocks):
                a, b = block.undone(a, b)
            return torch.cat((a, b), self.dim)


def halves(x: Tensor, dim: int) -> Pair:
    """Split a floating-point tensor into two halves along a dimension.

    Args:
        x: Tensor of floats without NaN.
        dim: Dimension to split, of even size.

    Returns:
        Both halves, as views.

    Raises:
        RangeError: The dimension does not exist, its size is odd, or a value is NaN.
        InputError: The tensor is not of floats.
    """
    if not -x.dim() <= dim < x.dim():
        raise RangeError(f"a tensor of shape {tuple(x.shape)} has no dimension {dim} to split; the last is -1")
    half_width(f"dimension {dim} of a tensor of shape {tuple(x.shape)}", x.shape[dim], "values wide")
    if not x.is_floating_point():
        raise InputError(f"a reversible block works on floats, not {x.dtype}; `feistel.forward` works on whole numbers")
    if x.device.type != "meta" and bool(torch.isnan(x).any()):
        raise RangeError(f"the input of a reversible block, of shape {tuple(x.shape)}, contains NaN")
    a, b = x.chunk(2, dim)
    return a, b


def _called(function: Any, x: Tensor, like: Tensor, name: str) -> Tensor:
    """Return the output of f or g; raise InputError if it has no inverse."""
    version = x._version
    out = function(x)
    label = f"{name} of a reversible block ({type(function).__name__})"
    if not isinstance(out, torch.Tensor):
        raise InputError(f"{label} gives a {type(out).__name__}, but a tensor is needed; return only its first part")
    if out.shape != like.shape:
        raise InputError(
            f"{label} turns {tuple(x.shape)} into {tuple(out.shape)}: a block that changes the shape has no inverse; "
            "keep the shape, or put this layer between two sequences"
        )
    if torch.promote_types(out.dtype, like.dtype) != like.dtype:
        raise InputError(f"{label} gives {out.dtype}, which is wider than {like.dtype} of the stream; cast one of them")
    if x._version != version:
        raise InputError(f"{label} changes its input in place and so has no inverse; set inplace=False")
    return out


# --- one block in autograd ----------------------------------------------------------------------------------------------


class _Run:
    """The state that the blocks of one pass share, with the last rebuilt pair."""

    def __init__(self, blocks: tuple[ReversibleBlock, ...], dim: int, free_input: bool) -> None:
        self.blocks, self.dim, self.free_input = blocks, dim, free_input
        self.rebuilt: Pair | None = None


def _through(blocks: tuple[ReversibleBlock, ...], x: Tensor, dim: int, *, free_input: bool) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.compiler.disable(_chained)(blocks, x, dim, free_input)
    return _chained(blocks, x, dim, free_input)


def _chained(blocks: tuple[ReversibleBlock, ...], x: Tensor, dim: int, free_input: bool) -> Tensor:
    pair = halves(x, dim)
    if not torch.is_grad_enabled() or not (x.requires_grad or any(_trainable_parameters(block) for block in blocks)):
        for block in blocks:
            pair = block.coupled(*pair)
        return torch.cat(pair, dim)
    run, stream = _Run(blocks, dim, free_input), (x,)
    # No reference may remain here, so that each block can free its input.
    del pair, x
    for number, block in enumerate(blocks):
        parameters = _trainable_parameters(block)
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        names = [_parameter_places(part, places) for part in (block.f, block.g)]
        stream = _Coupling.apply(run, number, names, *stream, *parameters)
        stream = stream if isinstance(stream, tuple) else (stream,)
    return stream[0]


def _trainable_parameters(block: ReversibleBlock) -> list[Tensor]:
    return [parameter for parameter in block.parameters() if parameter.requires_grad]


def _parameter_places(function: Any, places: dict[int, int]) -> dict[str, int]:
    """Return the index of each parameter under each of its names."""
    return {
        f"{module}.{name}".lstrip("."): places[id(parameter)]
        for module, part in function.named_modules()
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False)
        if id(parameter) in places
    }


class _Coupling(torch.autograd.Function):  # type: ignore[misc]
    """One block in autograd.

    The first block of a run takes a whole tensor; the last block returns a whole tensor and saves it; pairs pass
    between them. `names` holds, for f and for g, the index of each named parameter in the arguments.
    """

    @staticmethod
    def forward(ctx: Any, run: _Run, number: int, names: list[dict[str, int]], *tensors: Tensor) -> Any:
        block, first, last = run.blocks[number], number == 0, number == len(run.blocks) - 1
        streams = [stream.detach() for stream in tensors[: 1 if first else 2]]
        a, b = streams[0].chunk(2, run.dim) if first else streams
        ctx.run, ctx.number, ctx.names = run, number, names
        ctx.autocast = _autocast_states(a)
        with _autocast_as(ctx.autocast):
            out, ctx.drawn_f = _recorded(block.f, b, a, "f")
            a = a + out
            out, ctx.drawn_g = _recorded(block.g, a, b, "g")
            b = b + out
        del out
        saved: Any = (torch.cat((a, b), run.dim),) if last else ()
        ctx.save_for_backward(*saved, *tensors[len(streams) :])
        # The input can be freed only after the last read of it above.
        ctx.emptied = _emptied(tensors[0]) if first and run.free_input else None
        return saved[0] if last else (a, b)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> Any:
        run, block, saved = ctx.run, ctx.run.blocks[ctx.number], ctx.saved_tensors
        last = ctx.number == len(run.blocks) - 1
        if last:
            run.rebuilt = saved[0].chunk(2, run.dim)
            grads = grads[0].chunk(2, run.dim)
        parameters = saved[1:] if last else saved
        (a, b), (da, db) = run.rebuilt, grads
        run.rebuilt = None
        with _autocast_as(ctx.autocast):
            out, of_a, of_g = _gradients(block.g, a, db, ctx.drawn_g, parameters, ctx.names[1])
            b, da = b - out, da if of_a is None else da + of_a
            del out, of_a
            out, of_b, of_f = _gradients(block.f, b, da, ctx.drawn_f, parameters, ctx.names[0])
            a, db = a - out, db if of_b is None else db + of_b
            del out, of_b
        # A parameter that f and g share gets the sum of both gradients.
        of_parameters = [f if g is None else g if f is None else f + g for f, g in zip(of_f, of_g, strict=True)]
        if ctx.number > 0:
            run.rebuilt = a, b
            return None, None, None, da, db, *of_parameters
        if ctx.emptied is not None:
            _filled(ctx.emptied, torch.cat((a, b), run.dim))
        return None, None, None, torch.cat((da, db), run.dim), *of_parameters


def _recorded(function: Any, x: Tensor, like: Tensor, name: str) -> tuple[Tensor, Any]:
    """Return the output, and the random state before it if the function drew numbers."""
    before = _random_state(x)
    out = _called(function, x, like, name)
    drew = any(not torch.equal(was, now) for was, now in zip(before, _random_state(x), strict=True))
    return out, before if drew else None


def _gradients(
    function: Any, x: Tensor, grad: Tensor, random_state: Any, parameters: Any, names: dict[str, int]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Recompute a function; return its output and its gradients.

    It uses aliases of the parameters, so that their hooks run once, with the final gradients.
    """
    x = x.detach().requires_grad_()
    alias = {place: parameters[place].detach().requires_grad_() for place in dict.fromkeys(names.values())}
    aliases_by_name = {name: alias[place] for name, place in names.items()}
    with torch.enable_grad(), _buffers_as_they_are(function):
        with _random_numbers(random_state, x):
            # A view of x: FLOP counters set hooks on inputs, and these refuse leaf tensors here.
            out = torch.func.functional_call(function, aliases_by_name, (x.view_as(x),), tie_weights=False)
        if not out.requires_grad:
            return out, None, [None for _ in parameters]
        gradients = torch.autograd.grad(out, (x, *alias.values()), grad.to(out.dtype), allow_unused=True)
    gradient_by_place = dict(zip(alias, gradients[1:], strict=True))
    return out.detach(), gradients[0], [gradient_by_place.get(place) for place in range(len(parameters))]


def _emptied(x: Tensor) -> tuple[Tensor, int] | None:
    """Free the storage of an input; return it with its size, or None for leaves and views."""
    storage, size = x.untyped_storage(), x.untyped_storage().nbytes()
    if x.is_leaf or size != x.numel() * x.element_size():
        return None
    storage.resize_(0)
    return x.detach(), size


def _filled(gone: tuple[Tensor, int], x: Tensor) -> None:
    """Write a rebuilt input back to its storage."""
    emptied, size = gone
    emptied.untyped_storage().resize_(size)
    # `.data` keeps the version that autograd checks; the values are the same as before.
    emptied.data.copy_(x)


# --- state that must be equal in both calls of a function ---------------------------------------------------------------


def _random_state(x: Tensor) -> tuple[Tensor, ...]:
    on_device = (torch.cuda.get_rng_state(x.device),) if x.device.type == "cuda" else ()
    return (torch.get_rng_state(), *on_device)


@contextmanager
def _random_numbers(random_state: Any, x: Tensor) -> Iterator[None]:
    if random_state is None:
        yield
        return
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        torch.set_rng_state(random_state[0])
        if len(random_state) > 1:
            torch.cuda.set_rng_state(random_state[1], x.device)
        yield


@contextmanager
def _buffers_as_they_are(function: Any) -> Iterator[None]:
    saved_buffers = [(buffer, buffer.clone()) for buffer in function.buffers()] if function.training else []
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved_buffers:
                buffer.copy_(value)


def _autocast_states(x: Tensor) -> list[tuple[str, bool, Any]]:
    kinds = dict.fromkeys(("cpu", x.device.type))
    return [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds if kind != "meta"]


@contextmanager
def _autocast_as(states: list[tuple[str, bool, Any]]) -> Iterator[None]:
    """Compute in the number formats of the forward pass.

    Casts of weights are not cached: a cast that was made without a graph has no gradient.
    """
    with ExitStack() as stack:
        for kind, enabled, dtype in states:
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
        yield
