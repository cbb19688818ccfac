"""Compute a shell's whole-number arithmetic, `$(( (TP > 1) ? 1 : 0 ))`, without running a shell."""

import operator
import re
from collections.abc import Callable, Mapping

from oppa.problem.bounds import DEEPEST, LARGEST_STORED, LONGEST_EXPRESSION

_TOKEN = re.compile(r"\s*([0-9]{1,18}|\|\||&&|[<>=!]=|[-+*/%()<>?:!])")
_LEVELS: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {"<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b), "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: int(a / b) if abs(a) < 2**52 else a // b, "%": lambda a, b: a - b * int(a / b)},
)
"""Binary operators, the weakest first."""


def compute(text: str) -> int | None:
    """Return the value of an expression; None for anything but whole-number arithmetic, and for a number beyond the bounds."""
    tokens = _TOKEN.findall(text)
    if len(text) > LONGEST_EXPRESSION or "".join(tokens) != re.sub(r"\s", "", text) or not tokens:
        return None
    try:
        expression = _Expression(tokens)
        value = expression.ternary(0)
        return value if expression.is_read else None
    except (ValueError, ZeroDivisionError, IndexError):
        return None


class _Expression:
    """Reads tokens from left to right."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at = tokens, 0

    @property
    def is_read(self) -> bool:
        return self._at == len(self._tokens)

    def ternary(self, depth: int) -> int:
        if depth > DEEPEST:
            raise ValueError
        condition = self._binary(0, depth)
        if not self._takes("?"):
            return condition
        first = self.ternary(depth + 1)
        if not self._takes(":"):
            raise ValueError
        second = self.ternary(depth + 1)
        return first if condition else second

    def _binary(self, level: int, depth: int) -> int:
        if level == len(_LEVELS):
            return self._unary(depth)
        value = self._binary(level + 1, depth)
        while not self.is_read and (token := self._tokens[self._at]) in _LEVELS[level]:
            self._at += 1
            value = _LEVELS[level][token](value, self._binary(level + 1, depth))
            if abs(value) > LARGEST_STORED:
                raise ValueError
        return value

    def _unary(self, depth: int) -> int:
        if depth > DEEPEST:
            raise ValueError
        token = self._tokens[self._at]
        self._at += 1
        if token in "+-!":
            value = self._unary(depth + 1)
            return {"+": value, "-": -value, "!": int(not value)}[token]
        if token == "(":
            value = self.ternary(depth + 1)
            if not self._takes(")"):
                raise ValueError
            return value
        return int(token, 8 if token.startswith("0") else 10)

    def _takes(self, token: str) -> bool:
        found = not self.is_read and self._tokens[self._at] == token
        self._at += found
        return found
