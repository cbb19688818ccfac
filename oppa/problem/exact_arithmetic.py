"""Compute with numbers and with numpy's columns as Python computes: no whole number wraps around, and none is rounded.

numpy computes in 64 bits, and a result that does not fit wraps around without an error. So the extremes of the operands are computed first,
in Python's own numbers. Only if every result surely fits, numpy computes; otherwise Python computes row by row, which takes longer.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

from oppa.problem.bounds import INTEGERS

Operation = Callable[[Any, Any], Any]
EXACT_IN_FLOAT = range(-(2**53), 2**53 + 1)
"""Whole numbers that a float represents."""
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_DIVISIONS = (operator.floordiv, operator.mod)


def exact(operation: Operation) -> Operation:
    """Return an operation of two numbers or columns whose results are those of Python.

    The operation raises ArithmeticError for a division by zero, and for a float that is not finite.
    """

    def compute(left: Any, right: Any) -> Any:
        if not (_is_column(left) or _is_column(right)):
            return _finite(operation(left, right))
        from numpy import errstate  # slow to import, and without columns it is not needed

        with errstate(divide="raise", over="raise", invalid="raise"):
            if _fits(operation, left, right):
                return operation(left, right)
            return operation(_in_python(left), _in_python(right))

    return compute


def _finite(number: Any) -> Any:
    if isinstance(number, float) and not math.isfinite(number):
        raise OverflowError("the result is not finite")
    return number


add, subtract, multiply = exact(operator.add), exact(operator.sub), exact(operator.mul)
divide, remainder = exact(operator.floordiv), exact(operator.mod)


def _fits(operation: Operation, left: Any, right: Any) -> bool:
    """Return whether numpy computes an operation exactly."""
    kinds = _kind(left), _kind(right)
    if "O" in kinds or kinds == ("f", "f"):
        return True
    if "f" in kinds:
        return all(end in EXACT_IN_FLOAT for end in _extremes(left if kinds[0] == "i" else right))
    if operation in _COMPARISONS:
        return True
    ends, others = _extremes(left), _extremes(right)
    results = [-end for end in ends] if operation in _DIVISIONS else [operation(end, other) for end in ends for other in others]
    return all(number in INTEGERS for number in (*ends, *others, *results))


def _extremes(number: Any) -> tuple[int, int]:
    """Return the smallest and the largest whole number."""
    if not _is_column(number):
        return number, number
    return (int(number.min()), int(number.max())) if number.size else (0, 0)


def _kind(number: Any) -> str:
    """Return `i` for whole numbers, `f` for floats, and `O` for those that Python computes with."""
    return str(number.dtype.kind) if _is_column(number) else "f" if isinstance(number, float) else "i"


def _in_python(number: Any) -> Any:
    return number.astype(object) if _is_column(number) else number


def _is_column(number: Any) -> bool:
    return hasattr(number, "dtype")
