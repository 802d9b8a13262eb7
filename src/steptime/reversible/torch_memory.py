"""Count PyTorch's saved tensors, live bytes and FLOP. Needs the extra `torch`.

Bytes are counted per storage, on any device, also on the meta device, which computes nothing. Not counted:
fragmentation of the allocator and workspaces of kernels.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from steptime.reversible.torch_extra import load, torch

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
