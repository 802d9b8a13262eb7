"""Reversible blocks for PyTorch: a stack whose inputs are rebuilt from its outputs instead of being kept.

    stack = ReversibleSequence([ReversibleBlock(f, g) for f, g in pairs])
    stack(x).sum().backward()

Each block is two functions, y1 = x1 + f(x2) and y2 = x2 + g(y1), on the halves of x along `dim`. Of a whole sequence its output
alone is kept; going back, each block rebuilds its input and computes f and g once more. Needs the extra `torch`.

Kept as in plain PyTorch: the random numbers of dropout (the generator's state is kept where a function draws from it),
autocast, running statistics (updated once), gradient hooks, frozen and shared parameters, blocks within blocks.

In `torch.compile` a sequence runs as it is, between what is compiled before and after: the compiler would have to trace a
backward pass that calls autograd itself, which it cannot; compile f and g on their own. Gradients of gradients are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from steptime.errors import InputError, RangeError
from steptime.reversible.feistel import half_width
from steptime.reversible.torch_extra import torch

Tensor = Any
Pair = tuple[Tensor, Tensor]


class ReversibleBlock(torch.nn.Module):  # type: ignore[misc]
    """An additive coupling of two modules that keep shapes, on the halves of a tensor along `dim`."""

    def __init__(self, f: Any, g: Any, *, dim: int = -1) -> None:
        super().__init__()
        for name, function in (("f", f), ("g", g)):
            if not isinstance(function, torch.nn.Module):
                raise InputError(f"{name} of a reversible block is a torch.nn.Module, not {type(function).__name__}")
        self.f, self.g, self.dim = f, g, dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the output; its gradient needs no input."""
        return _through((self,), x, self.dim, free_input=False)

    def inverse(self, y: Tensor) -> Tensor:
        """Return the input that gives this output, to within rounding."""
        with torch.no_grad():
            return torch.cat(self.undone(*halves(y, self.dim)), self.dim)

    def coupled(self, a: Tensor, b: Tensor) -> Pair:
        """Return the halves after this block, by plain autograd where gradients are wanted."""
        a = a + _called(self.f, b, a, "f")
        return a, b + _called(self.g, a, b, "g")

    def undone(self, a: Tensor, b: Tensor) -> Pair:
        """Return the halves before this block."""
        b = b - _called(self.g, a, b, "g")
        return a - _called(self.f, b, a, "f"), b


class ReversibleSequence(torch.nn.Module):  # type: ignore[misc]
    """Reversible blocks one after the other, of which the last output alone is kept.

    free_input: empty the storage of the input on the way, and fill it again going back, so that what made the input keeps
    nothing of it either. Only where nothing else reads the input after this sequence, as a skip around it would, and where what
    made it has no gradient that jumps: the zeros of a ReLU come back as roundings, of which some are above 0. An input that
    no layer made (a leaf) stays.
    """

    def __init__(self, blocks: Iterable[ReversibleBlock], *, dim: int = -1, free_input: bool = False) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)
        if not len(self.blocks) or not all(isinstance(block, ReversibleBlock) for block in self.blocks):
            raise InputError("a reversible sequence is of one ReversibleBlock or more")
        self.dim, self.free_input = dim, free_input

    def forward(self, x: Tensor) -> Tensor:
        """Return the output; the gradient rebuilds the input of each block from it."""
        return _through(tuple(self.blocks), x, self.dim, free_input=self.free_input)

    def inverse(self, y: Tensor) -> Tensor:
        """Return the input that gives this output, to within rounding; with dropout only under `eval()`."""
        with torch.no_grad():
            a, b = halves(y, self.dim)
            for block in reversed(self.blocks):
                a, b = block.undone(a, b)
            return torch.cat((a, b), self.dim)


def halves(x: Tensor, dim: int) -> Pair:
    """Return the halves of a tensor; raise RangeError where it has none, or holds NaN."""
    if not -x.dim() <= dim < x.dim():
        raise RangeError(f"a tensor of shape {tuple(x.shape)} has no dimension {dim} to be halved; the last is -1")
    half_width(f"dimension {dim} of a tensor of shape {tuple(x.shape)}", x.shape[dim], "values wide")
    if not x.is_floating_point():
        raise InputError(f"a reversible block works on floats, not {x.dtype}; `feistel.forward` works on whole numbers")
    if x.device.type != "meta" and bool(torch.isnan(x).any()):
        raise RangeError(f"the input of a reversible block, of shape {tuple(x.shape)}, holds NaN")
    a, b = x.chunk(2, dim)
    return a, b


def _called(function: Any, x: Tensor, like: Tensor, name: str) -> Tensor:
    """Return what f or g gives; raise InputError where that cannot be undone."""
    version = x._version
    out = function(x)
    label = f"{name} of a reversible block ({type(function).__name__})"
    if not isinstance(out, torch.Tensor):
        raise InputError(f"{label} gives a {type(out).__name__} where a tensor is needed; return its first part alone")
    if out.shape != like.shape:
        raise InputError(
            f"{label} turns {tuple(x.shape)} into {tuple(out.shape)}: a block that changes the shape cannot be undone; "
            "keep the shape, or put such a layer between two sequences"
        )
    if torch.promote_types(out.dtype, like.dtype) != like.dtype:
        raise InputError(f"{label} gives {out.dtype} where the stream has {like.dtype}, too narrow for it; cast one of them")
    if x._version != version:
        raise InputError(f"{label} changes its input in place, so that it could not be undone; set inplace=False")
    return out


# --- one block in autograd ----------------------------------------------------------------------------------------------


class _Run:
    """What the blocks of one pass share: where they are halved, and the pair that was rebuilt last, going back."""

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
    del pair, x  # so that each block lets go of its input
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
    """Return the place of the parameter of each name, each module once under whatever names it has, each of its parameters."""
    return {
        f"{module}.{name}".lstrip("."): places[id(parameter)]
        for module, part in function.named_modules()
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False)
        if id(parameter) in places
    }


class _Coupling(torch.autograd.Function):  # type: ignore[misc]
    """One block: the first of a run takes a whole tensor, the last gives one and keeps it; between them go pairs.

    names: of f and of g, where the parameter of each name stands among those that are given.
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
        of_parameters = [f if g is None else g if f is None else f + g for f, g in zip(of_f, of_g, strict=True)]
        if ctx.number > 0:
            run.rebuilt = a, b
            return None, None, None, da, db, *of_parameters
        if ctx.emptied is not None:
            _filled(ctx.emptied, torch.cat((a, b), run.dim))
        return None, None, None, torch.cat((da, db), run.dim), *of_parameters


def _recorded(function: Any, x: Tensor, like: Tensor, name: str) -> tuple[Tensor, Any]:
    """Return what a function gives, and the state of the random numbers before it where it drew from them."""
    before = _random_state(x)
    out = _called(function, x, like, name)
    drew = any(not torch.equal(was, now) for was, now in zip(before, _random_state(x), strict=True))
    return out, before if drew else None


def _gradients(
    function: Any, x: Tensor, grad: Tensor, random_state: Any, parameters: Any, names: dict[str, int]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Compute a function once more; return what it gives, and the gradients of its input and of the parameters.

    It is computed with aliases of the parameters, so that hooks on those run once: when their gradients arrive.
    """
    x = x.detach().requires_grad_()
    alias = {place: parameters[place].detach().requires_grad_() for place in dict.fromkeys(names.values())}
    aliases_by_name = {name: alias[place] for name, place in names.items()}
    with torch.enable_grad(), _buffers_as_they_are(function):
        with _random_numbers(random_state, x):
            # a view of x, as hooks on inputs, which counters of FLOPs set, refuse leaves here
            out = torch.func.functional_call(function, aliases_by_name, (x.view_as(x),), tie_weights=False)
        if not out.requires_grad:
            return out, None, [None for _ in parameters]
        gradients = torch.autograd.grad(out, (x, *alias.values()), grad.to(out.dtype), allow_unused=True)
    gradient_by_place = dict(zip(alias, gradients[1:], strict=True))
    return out.detach(), gradients[0], [gradient_by_place.get(place) for place in range(len(parameters))]


def _emptied(x: Tensor) -> tuple[Tensor, int] | None:
    """Let go of what an input holds; return it with its size. A leaf stays, as does a part of a larger tensor."""
    storage, size = x.untyped_storage(), x.untyped_storage().nbytes()
    if x.is_leaf or size != x.numel() * x.element_size():
        return None
    storage.resize_(0)
    return x.detach(), size


def _filled(gone: tuple[Tensor, int], x: Tensor) -> None:
    """Put a rebuilt input back to where it lay."""
    emptied, size = gone
    emptied.untyped_storage().resize_(size)
    emptied.data.copy_(x)  # .data: the version that autograd checks stays, as the values are those that it saw


# --- what a second call must find as the first did ----------------------------------------------------------------------


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
    """Compute in the number formats of the forward pass; casts of weights are not kept, which without a graph have none."""
    with ExitStack() as stack:
        for kind, enabled, dtype in states:
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
        yield
