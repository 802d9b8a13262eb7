"""Lazy import of PyTorch, which is an optional extra; only this file imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from steptime.errors import InputError, install_hint

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


def __getattr__(name: str) -> Any:
    if name == "torch":
        return load("torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
