"""Spreadsheet formulas of closed forms, traced from the functions themselves.

A function is called with cells in place of numbers. Its operators and numpy functions are recorded as a formula. A function
that does anything else raises `Untraceable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Largest number in formulas, near the limit of spreadsheets; an infinite answer is #N/A.
INFINITE = 1e300
# Formula of each numpy function.
UFUNCS: dict[Any, Callable[..., str]] = {
    np.add: "({}+{})".format,
    np.subtract: "({}-{})".format,
    np.multiply: "({}*{})".format,
    np.divide: "({}/{})".format,
    np.power: "({}^{})".format,
    np.negative: "(-{})".format,
    np.maximum: "MAX({},{})".format,
    np.minimum: "MIN({},{})".format,
    np.sqrt: "SQRT({})".format,
    np.exp: "EXP({})".format,
    np.expm1: "(EXP({})-1)".format,
    np.log: "LN({})".format,
    np.log1p: "LN(1+{})".format,
    np.log2: "LOG({},2)".format,
    np.absolute: "ABS({})".format,
    np.square: "({0}*{0})".format,
    np.floor: "FLOOR({},1)".format,
    np.ceil: "CEILING({},1)".format,
    np.greater: "({}>{})".format,
    np.greater_equal: "({}>={})".format,
    np.less: "({}<{})".format,
    np.less_equal: "({}<={})".format,
    np.equal: "({}={})".format,
    np.not_equal: "({}<>{})".format,
    np.logical_and: "AND({},{})".format,
    np.logical_or: "OR({},{})".format,
    np.isinf: "(ABS({})>=1E+300)".format,
}


class Untraceable(Exception):
    """An operation that no formula can express."""


class Cell(np.lib.mixins.NDArrayOperatorsMixin):
    """A number of a spreadsheet, as the formula that computes it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Cell:
        if method != "__call__" or ufunc not in UFUNCS or options:
            raise Untraceable(getattr(ufunc, "__name__", str(ufunc)))
        return Cell(UFUNCS[ufunc](*map(_text, inputs)))

    def __array_function__(self, function: Any, _: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Cell:
        if function is np.where and len(arguments) == 3 and not options:
            if not isinstance(arguments[0], Cell):
                return Cell(_text(arguments[1 if arguments[0] else 2], answer=True))
            return Cell("IF({},{},{})".format(_text(arguments[0]), *(_text(branch, answer=True) for branch in arguments[1:])))
        raise Untraceable(getattr(function, "__name__", str(function)))

    def __bool__(self) -> bool:
        raise Untraceable("a branch on a value")

    def __float__(self) -> float:
        raise Untraceable("a number")

    __int__ = __index__ = __float__
    __hash__ = None  # type: ignore[assignment]


def _text(value: Any, *, answer: bool = False) -> str:
    if isinstance(value, Cell):
        return value.text
    if np.ndim(value):
        raise Untraceable("an array")
    number = float(value)
    if math.isinf(number) and answer:
        return "NA()"
    if math.isinf(number):
        return repr(math.copysign(INFINITE, number)).upper()
    return repr(int(number)) if number == int(number) and abs(number) < 1e15 else repr(number).upper()


def formula(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Return a function of cells and numbers as a spreadsheet formula.

    Args:
        function: Closed form.
        arguments: Cells and numbers by parameter.

    Returns:
        The formula, with a leading "=".

    Raises:
        Untraceable: If the function does something that no formula can express.

    >>> from steptime.blackboard import drain_seconds, optimal_batch
    >>> formula(drain_seconds, {"capacity": Cell("A2"), "bandwidth": Cell("B2")})
    '=(A2/B2)'
    >>> formula(optimal_batch, {"machine_balance": Cell("A2"), "sparsity": 8})
    '=((A2*8)/1)'
    """
    try:
        cell = function(**arguments)
    except Untraceable:
        raise
    except (TypeError, ValueError, AttributeError) as problem:
        raise Untraceable(str(problem)) from None
    # numpy wraps a result that is not a number into an array without axes.
    if isinstance(cell, np.ndarray) and cell.dtype == object and cell.ndim == 0:
        cell = cell.item()
    return f"={_text(cell)}"
