"""Compilation of the event loop with numba.

The loop consists of small functions that pass tuples of arrays. By default, numba counts references to each
array in every call, and copies a hundred words for it. This takes most of the time of the loop. Therefore
compiled functions do not count references (`_nrt`). This is safe: the Python caller of an `entry` keeps its
arrays alive while it runs, and compiled functions create no arrays.

Functions that run in every step are `inlined`. Only an `entry` can be called from Python, because the
wrappers of all other functions would take a third of the compile time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def entry(function: Function) -> Function:
    """Compile a function that is called from Python.

    Args:
        function: Function to compile.

    Returns:
        The compiled function.
    """
    return _compiled(function)


def compiled(function: Function) -> Function:
    """Compile a function that only compiled functions call.

    Args:
        function: Function to compile.

    Returns:
        The compiled function.
    """
    return _compiled(function, no_cpython_wrapper=True)


def inlined(function: Function) -> Function:
    """Compile a function that only compiled functions call, and inline it there.

    Args:
        function: Function to compile.

    Returns:
        The compiled function.
    """
    return _compiled(function, no_cpython_wrapper=True, forceinline=True)


def _compiled(function: Function, **options: bool) -> Function:
    """Compile a function with numba, and cache the result on disk where possible."""
    settings: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False, "no_cfunc_wrapper": True, **options}
    dispatcher: Any
    try:
        dispatcher = njit(cache=True, **settings)(function)
    # Neither the package's folder nor the home folder is writable.
    except RuntimeError:
        dispatcher = njit(**settings)(function)
    return cast(Function, dispatcher)
