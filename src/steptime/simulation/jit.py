"""How the functions of the event loop are compiled.

The loop is made of small functions that pass tuples of arrays on. By itself numba counts references to each of those arrays in
every call, and copies a hundred words for it: most of the time of the loop. So nothing here counts references (`_nrt`): whoever
calls an `entry` from Python holds its arrays while it runs, and compiled functions make none. What the loop calls in every step
is `inlined`. Only an `entry` can be called from Python: the wrappers of all others would take a third of the compiler's time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def entry(function: Function) -> Function:
    """Compile a function that is called from Python."""
    return _compiled(function)


def compiled(function: Function) -> Function:
    """Compile a function that only compiled ones call."""
    return _compiled(function, no_cpython_wrapper=True)


def inlined(function: Function) -> Function:
    """Compile a function that only compiled ones call, and copy it to where it is called."""
    return _compiled(function, no_cpython_wrapper=True, forceinline=True)


def _compiled(function: Function, **options: bool) -> Function:
    """Compile a function with numba, and keep what comes of it on disk where there is a place for it."""
    settings: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False, "no_cfunc_wrapper": True, **options}
    dispatcher: Any
    try:
        dispatcher = njit(cache=True, **settings)(function)
    except RuntimeError:  # neither the package's folder nor a home can be written
        dispatcher = njit(**settings)(function)
    return cast(Function, dispatcher)
