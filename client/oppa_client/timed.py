"""Count the seconds that a program spends in the calls of its run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


class Counting(Protocol):
    """Has the seconds of its calls so far."""

    overhead_s: float


def timed(method: Method) -> Method:
    """Add the seconds of each call of a method to `overhead_s` of its object. A timed method must not call another one."""

    @functools.wraps(method)
    def call(owner: Counting, *values: Any, **named: Any) -> Any:
        begin_s = time.perf_counter()
        try:
            return method(owner, *values, **named)
        finally:
            owner.overhead_s += time.perf_counter() - begin_s

    return cast(Method, call)
