"""Measures the rows, FLOPs and caches of a PyTorch module tree in two prompts.

Tensors are on the meta device, which computes only shapes. Two prompts of different lengths separate the parts that
grow with tokens ($a$), with pairs ($b$) and with neither: $F(n) = a n + b n^2$ for FLOPs, $s + g n$ for the values of a
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from steptime.errors import InputError

# Tokens of the two prompts.
SHORT, LONG = 8, 16
# Operators of PyTorch that are counted as matrix multiplies.
PLAIN: Final = ("mm", "addmm", "bmm", "baddbmm")


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a module in a prompt: number, and rows per token."""

    count: int
    rows: float


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer.

    per_token: values per token. heads: KV heads. state_bytes: bytes that do not grow with tokens. window: tokens.
    """

    per_token: float = 0.0
    heads: int = 1
    state_bytes: float = 0.0
    window: float = float("inf")


@dataclass(frozen=True)
class Trace:
    """The result of two prompts, by name of module."""

    calls: Mapping[str, Calls]
    # FLOPs of matrix multiplies per token, with those of children.
    per_token: Mapping[str, float]
    # FLOPs of matrix multiplies per pair of tokens, with those of children.
    per_pair: Mapping[str, float]
    caches: tuple[LayerCache, ...] = field(default_factory=tuple)

    def exclusive_flops(self, name: str, children: tuple[str, ...]) -> float:
        """Return the FLOPs per token of a module without its children.

        Args:
            name: Full name of the module.
            children: Full names of its children.

        Returns:
            FLOPs per token.
        """
        return self.per_token.get(name, 0.0) - sum(self.per_token.get(child, 0.0) for child in children)


def trace(torch: Any, model: Any, device: Callable[[], AbstractContextManager[Any]]) -> Trace:
    """Run two prompts through a model without weights.

    Args:
        torch: The module torch.
        model: The module tree.
        device: Makes the context in which tensors have no values.

    Returns:
        The trace.

    Raises:
        InputError: The code needs the values of tensors, or fails.
    """
    short, long = (_run(torch, model, device, tokens) for tokens in (SHORT, LONG))
    names = short[1].keys() | long[1].keys()

    # Solve F(n) = a n + b n^2 for the two lengths.
    pairs = {n: (long[1].get(n, 0) - LONG / SHORT * short[1].get(n, 0)) / (LONG**2 - SHORT * LONG) for n in names}
    tokens = {n: short[1].get(n, 0) / SHORT - SHORT * pairs[n] for n in names}
    caches = tuple(_cache(*both) for both in zip(short[2], long[2], strict=True))
    return Trace(calls=short[0], per_token=tokens, per_pair=pairs, caches=caches)


def _run(
    torch: Any, model: Any, device: Callable[[], AbstractContextManager[Any]], tokens: int
) -> tuple[dict[str, Calls], dict[str, float], list[dict[str, Any]]]:
    from torch.utils.flop_counter import FlopCounterMode

    calls: dict[str, Calls] = {}
    counter = FlopCounterMode(display=False)
    try:
        with _counted(model, calls, tokens), torch.no_grad(), device(), counter:
            prompt = torch.zeros(1, tokens, dtype=torch.long)
            output = model(prompt, use_cache=True)
    except Exception as problem:
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise InputError(
            f"the code of {type(model).__name__} cannot be traced without weights; it needs the values of tensors or fails: "
            f"{first[:160]}"
        ) from None

    prefix = f"{type(model).__name__}."
    flops: dict[str, float] = {}
    for name, by_operator in counter.get_flop_counts().items():
        module = name.removeprefix(prefix)
        flops[module] = sum(n for operator, n in by_operator.items() if str(operator).rpartition(".")[2] in PLAIN)

    return calls, flops, _layers(torch, output)


@contextmanager
def _counted(model: Any, calls: dict[str, Calls], tokens: int) -> Iterator[None]:
    """Count the calls of every module, and the rows of modules with a weight."""

    def count(name: str, inputs: float) -> Callable[..., None]:
        def hook(_module: Any, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            first = next((v for v in (*positional, *keywords.values()) if hasattr(v, "numel")), None)
            rows = first.numel() / inputs if first is not None and inputs else float(tokens)
            # A module may run several times in a prompt.
            before = calls.get(name, Calls(0, 0.0))
            calls[name] = Calls(before.count + 1, before.rows + rows / tokens)

        return hook

    handles = [
        module.register_forward_pre_hook(count(name, input_width(module)), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def input_width(module: Any) -> int:
    """Return the input values per row of a module.

    Args:
        module: A PyTorch module.

    Returns:
        Values; 0 if its weight is not a matrix that multiplies the input.
    """
    weight = getattr(module, "weight", None)
    if weight is None or getattr(weight, "ndim", 0) != 2 or hasattr(module, "num_embeddings"):
        return 0
    return int(weight.shape[0] if type(module).__name__ == "Conv1D" else weight.shape[1])


def _layers(torch: Any, output: Any) -> list[dict[str, Any]]:
    """Return the tensors of each layer of a cache by name, and its window."""
    # Names of the cache in the outputs of transformers.
    names = ("past_key_values", "cache_params", "state")
    cache = next((getattr(output, name) for name in names if getattr(output, name, None) is not None), None)
    if cache is None:
        return []
    listed = getattr(cache, "layers", None)
    if listed is None:
        # The cache has one tensor per kind, each for all layers.
        parts = cache if isinstance(cache, list | tuple) else list(vars(cache).values())
        layers = {str(i): {"values": part} for i, part in enumerate(_tensors(torch, parts))}
        return [{"tensors": {f"{k}.{n}": v for k, t in layers.items() for n, v in t.items()}, "window": None, "all": True}]

    return [
        {
            "tensors": {str(i): value for i, value in enumerate(_tensors(torch, vars(layer)))},
            "heads": _heads(getattr(layer, "keys", None)),
            "position": sum(_position(getattr(layer, name, None)) for name in ("keys", "values")),
            "window": getattr(layer, "sliding_window", None),
        }
        for layer in listed
    ]


def _tensors(torch: Any, value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        return [tensor for part in value.values() for tensor in _tensors(torch, part)]
    return [tensor for part in value for tensor in _tensors(torch, part)] if isinstance(value, list | tuple) else []


def _heads(keys: Any) -> int:
    return int(keys.shape[1]) if getattr(keys, "ndim", 0) == 4 else 1


def _position(stored: Any) -> float:
    """Return the values of one position of a cache.

    The axes of the cache are sequences, heads, positions and values.
    """
    return float(stored.numel() / stored.shape[-2]) if getattr(stored, "ndim", 0) == 4 and stored.shape[-2] else 0.0


def _cache(short: Mapping[str, Any], long: Mapping[str, Any]) -> LayerCache:
    per_token, state = 0.0, 0.0
    for name, tensor in long["tensors"].items():
        before = short["tensors"].get(name)
        values = before.numel() if before is not None else 0
        grown = (tensor.numel() - values) / (LONG - SHORT)
        per_token += grown
        state += (values - grown * SHORT) * tensor.element_size()
    window = long["window"]
    if window and long["position"]:
        # The prompts may be shorter than the window, so the values per position are taken.
        return LayerCache(long["position"], long["heads"], 0.0, float(window))
    return LayerCache(per_token, long.get("heads", 1), state)
